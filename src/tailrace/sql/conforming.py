"""Constants of a SELECT that are compared with columns of UUIDs. Pure: nothing is read here.

DuckDB sees a UUID as the stored text, in lower case with hyphens. A constant may be written in another form that INSERT
accepts; it is put into the stored form where it is compared directly with a column of a table. In case of doubt about
whose column it is, the constant stays as it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from sqlglot import exp

_COMPARED: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


class ComparedSource(msgspec.Struct, frozen=True):
    """A table that a SELECT reads: its names in the statement, its columns, and which of them hold UUIDs; in lower
    case."""

    names: tuple[str, ...]  # the alias and the full name
    columns: frozenset[str]
    uuids: frozenset[str]


def uuid_constants(tree: exp.Expr, tables: Sequence[tuple[exp.Table, ComparedSource]]) -> Iterator[exp.Expr]:
    """The operands of comparisons whose other operand is a column of UUIDs."""
    sources = {id(node): source for node, source in tables}
    for node in tree.find_all(*_COMPARED, exp.In, exp.Between, exp.Case):
        if node.this is None:  # a CASE without an operand
            continue
        one, others = node.this.unnest(), [other.unnest() for other in _others(node)]
        if _is_uuid(one, sources):
            yield from others
        elif isinstance(node, _COMPARED) and _is_uuid(others[0], sources):
            yield one


def _others(node: exp.Expr) -> list[exp.Expr]:
    """What the first operand is compared with."""
    if isinstance(node, exp.In):
        return list(node.expressions)
    if isinstance(node, exp.Between):
        return [node.args["low"], node.args["high"]]
    return [each.this for each in node.args["ifs"]] if isinstance(node, exp.Case) else [node.expression]


def _is_uuid(node: exp.Expr, sources: dict[int, ComparedSource]) -> bool:
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return False
    name, qualifier = node.name.lower(), ".".join(part.name for part in node.parts[:-1]).lower()
    select = node.find_ancestor(exp.Select)
    while select is not None:
        relations = [select.args.get("from_"), *(select.args.get("joins") or ()), *(select.args.get("laterals") or ())]
        found: list[ComparedSource] = []
        for relation in relations:
            if relation is None:
                continue
            of = relation.this
            shape = of.args.get("alias")
            known = sources.get(id(of))
            if known is None or of.args.get("joins") or (shape is not None and shape.columns):
                if not qualifier or of.alias_or_name.lower() == qualifier:
                    return False  # it may be a column of this one
            elif qualifier in known.names if qualifier else name in known.columns:
                found.append(known)
        if found:
            return len(found) == 1 and name in found[0].uuids
        select = select.find_ancestor(exp.Select)
    return False

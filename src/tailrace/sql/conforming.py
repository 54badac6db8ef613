"""Comparisons of a SELECT that have to be rewritten for DuckDB. Pure: nothing is read here.

DuckDB sees a UUID as the stored text, in lower case with hyphens. A constant may be written in another form that INSERT
accepts; it is put into the stored form where it is compared directly with a column of a table.

DuckDB sees an undeclared column with values of several types as JSON. Where it is compared directly with a text or a
number, each value is compared by itself, as a text or as a number, and whether it is found does not depend on which
values of other types are in the other rows. A column of one type alone is left to DuckDB, which compares numbers with
a text as numbers.

In case of doubt about whose column it is, the comparison stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from sqlglot import exp

from tailrace.sql.arrow import number_type
from tailrace.sql.narrowing import number_or_text

TEXT: Final = "text"
NUMBER: Final = "number"
MIXED: Final = "mixed"

# What `compared_text` makes of a column, as DuckDB writes it in the name of a result column.
COMPARED_TEXT: Final = re.compile(
    r"(?:TRY_CAST\()?CASE  WHEN \(starts_with\(((?s:.){1,600}?), '\"'\)\) THEN \(json_extract_string\(\1, '\$'\)\) "
    r"ELSE \1 END(?: AS (?:BIGINT|DOUBLE|DECIMAL\(38, ?\d+\))\))?"
)
_COMPARED: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)


class ComparedSource(msgspec.Struct, frozen=True):
    """A table that a SELECT reads: its names in the statement, its columns, and which of them hold UUIDs; in lower
    case. A column's kind is `TEXT`, `NUMBER`, `MIXED` or an empty text."""

    names: tuple[str, ...]  # the alias and the full name
    columns: Mapping[str, str]  # the kind of each
    uuids: frozenset[str]


class MixedOperand(msgspec.Struct, frozen=True):
    """A column of values of several types that is compared with texts or with numbers."""

    column: exp.Column
    name: str  # in lower case
    source: ComparedSource
    kind: str  # of what it is compared with: TEXT or NUMBER


def mixed_operands(
    tree: exp.Expr, tables: Sequence[tuple[exp.Table, ComparedSource]], params: Sequence[Any]
) -> Iterator[MixedOperand]:
    """The columns of values of several types whose comparisons have to be rewritten."""
    sources = {id(node): source for node, source in tables}

    def kind_of(node: exp.Expr) -> str:
        found = _owner(node, sources)
        return number_or_text(node, params) if found is None else found.columns[node.name.lower()]

    for node in tree.find_all(*_COMPARED, exp.In, exp.Between, exp.Like, exp.ILike):
        operands = [node.this.unnest(), *(other.unnest() for other in _others(node))]
        for at, one in enumerate(operands[:1] if isinstance(node, exp.In | exp.Between) else operands):
            found = _owner(one, sources)
            if found is None or not isinstance(one, exp.Column) or found.columns[one.name.lower()] != MIXED:
                continue
            kinds = {kind_of(other) for other in operands[:at] + operands[at + 1 :]}
            if kinds in ({TEXT}, {NUMBER}):
                yield MixedOperand(one, one.name.lower(), found, kinds.pop())


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
    found = _owner(node, sources)
    return found is not None and node.name.lower() in found.uuids


def _owner(node: exp.Expr, sources: dict[int, ComparedSource]) -> ComparedSource | None:
    """The table that a column surely belongs to."""
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return None
    name, qualifier = node.name.lower(), ".".join(part.name for part in node.parts[:-1]).lower()
    select = node.find_ancestor(exp.Select)
    if not qualifier and select is not None and _is_result(node, select):
        return None
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
                    return None  # it may be a column of this one
            elif qualifier in known.names if qualifier else name in known.columns:
                found.append(known)
        if found:
            return found[0] if len(found) == 1 and name in found[0].columns else None
        select = select.find_ancestor(exp.Select)
    return None


def _is_result(column: exp.Column, select: exp.Select) -> bool:
    """Whether a column in HAVING has the name of a column of the result, which DuckDB takes unless the table's column
    is grouped."""
    if not isinstance(column.find_ancestor(exp.Having, exp.Select), exp.Having):
        return False
    name = column.name.lower()
    return any(isinstance(each, exp.Alias) and each.alias.lower() == name for each in select.expressions)


def mixed_splices(
    tree: exp.Expr,
    text: str,
    compared: Sequence[tuple[exp.Table, ComparedSource]],
    tables: Sequence[pa.Table],
    params: Sequence[Any],
    taken: set[int],
) -> list[tuple[int, int, str]]:
    """What to put into the text of a statement for columns of values of several types, but where it is replaced."""
    by_source = {id(source): table for (_, source), table in zip(compared, tables, strict=True)}
    splices: dict[int, tuple[int, int, str]] = {}
    types: dict[tuple[int, str], str] = {}  # a column may be compared thousands of times
    for each in mixed_operands(tree, compared, params):
        parts = [part.meta for part in each.column.parts if "start" in part.meta]
        start, end = parts[0]["start"], parts[-1]["end"] + 1
        if start not in splices and taken.isdisjoint(range(start, end)):
            place = id(each.source), each.name
            if each.kind == NUMBER and place not in types:
                table = by_source[place[0]]
                types[place] = number_type(
                    next(table[name] for name in table.schema.names if name.lower() == each.name)
                )
            splices[start] = start, end, compared_text(text[start:end], "" if each.kind == TEXT else types[place])
    return list(splices.values())


def kinds_of(table: pa.Table, mixed: frozenset[str]) -> dict[str, str]:
    """The kinds of a source's columns, by their names in lower case."""
    kinds = {}
    for field in table.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_decimal(field.type) or pa.types.is_floating(field.type)
        kind = NUMBER if numeric else TEXT if pa.types.is_string(field.type) else ""
        kinds[field.name.lower()] = MIXED if field.name in mixed else kind
    return kinds


def compared_text(column: str, number: str) -> str:
    """An expression for a column of JSON, by which its values are compared with a text, or with a number as values of
    the type `number`."""
    text = f"CASE WHEN starts_with({column}, '\"') THEN json_extract_string({column}, '$') ELSE {column} END"
    return f"TRY_CAST({text} AS {number})" if number else f"({text})"

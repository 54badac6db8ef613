"""How much of each source a SELECT needs, told from its text alone. Pure: nothing is read here.

Three things are looked for: comparisons of a column with a constant that every row has to meet, a LIMIT that nothing
stands before, and the names of the columns. What is in doubt is taken as needed: an answer may cost more for that and
never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from sqlglot import exp

from tailrace.sql.lexer import NUMBER_CHARACTERS_MAX, parameter_number
from tailrace.sql.sources import Comparison, Wanted

_OPERATORS: Final[dict[type[exp.Expr], str]] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# What a SELECT may have if its LIMIT is to count for the source: anything else needs, drops or reorders rows.
_UNTOUCHED: Final = frozenset(
    ("with_", "expressions", "from_", "where", "limit", "offset", "operation_modifiers", "kind")
)
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})*+")
_NO_CONSTANT: Final = object()


class Names(msgspec.Struct, frozen=True):
    """The columns that a statement names."""

    used: frozenset[str] | None  # in lower case; None: it may need any
    ensured: dict[str, tuple[str, ...]]  # by a source's alias in lower case: the columns it should have
    bare: tuple[str, ...]  # and those that the only source should have, if there is one


def wanted(table: exp.Table, alias: str, name: str, names: Names, params: Sequence[Any]) -> Wanted:
    """What is needed of a source, which the statement calls `alias` or, in full, `name`."""
    select = _alone(table)
    ensure = tuple(dict.fromkeys((*names.ensured.get(alias.lower(), ()), *names.bare)))
    if select is None:
        return Wanted(names=names.used, ensure=ensure)
    where, complete = [], True
    for each in _conjuncts(select):
        found = list(_comparisons(each, alias, name, params))
        where += found
        complete = complete and bool(found)
    return Wanted(tuple(where), _limit(select, params) if complete else None, names.used, ensure)


def _alone(table: exp.Table) -> exp.Select | None:
    """The SELECT that reads this source and no other, if there is one."""
    select = table.parent.parent if isinstance(table.parent, exp.From) else None
    if not isinstance(select, exp.Select):
        return None
    if any(select.args.get(each) for each in ("joins", "laterals", "pivots", "sample", "match", "connect")):
        return None
    if any(table.args.get(each) for each in ("joins", "laterals", "pivots", "sample")):
        return None
    shape = table.args.get("alias")
    return None if shape is not None and shape.columns else select


def _conjuncts(select: exp.Select) -> Iterator[exp.Expr]:
    where = select.args.get("where")
    if where is not None:
        condition = where.this.unnest()
        if isinstance(condition, exp.And):
            yield from (each.unnest() for each in condition.flatten())
        else:
            yield condition


def _comparisons(node: exp.Expr, alias: str, name: str, params: Sequence[Any]) -> Iterator[Comparison]:
    """What a condition says about columns of the source, if it is simple enough."""
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        column = _column(node.this, alias, name)
        low, high = constant(node.args["low"], params), constant(node.args["high"], params)
        if column is not None and low is not _NO_CONSTANT and high is not _NO_CONSTANT:
            yield Comparison(column, ">=", low)
            yield Comparison(column, "<=", high)
        return
    op = _OPERATORS.get(type(node))
    if op is None:
        return
    left, right = node.this, node.expression
    for one, other, sign in ((left, right, op), (right, left, _MIRRORED[op])):
        column, held = _column(one, alias, name), constant(other, params)
        if column is not None and held is not _NO_CONSTANT:
            yield Comparison(column, sign, held)


def _column(node: exp.Expr, alias: str, name: str) -> str | None:
    node = node.unnest()
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        return None
    qualifier = ".".join(part.name for part in node.parts[:-1])
    return node.name.lower() if qualifier.lower() in ("", alias.lower(), name.lower()) else None


def constant(node: exp.Expr, params: Sequence[Any]) -> Any:
    """The value of a literal or a parameter: a text, an int, a Decimal or bytes. Others have no place here."""
    node = node.unnest()
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        held = constant(node.this, params)
        return held if held is _NO_CONSTANT else -held
    if isinstance(node, exp.Placeholder):
        place = str(node.this)
        number = parameter_number(place)
        if 0 < number <= len(params):
            held = params[number - 1]
            if isinstance(held, str | bytes | Decimal) or type(held) is int:
                return held
        return _NO_CONSTANT
    if isinstance(node, exp.Heredoc | exp.RawString):  # $$text$$
        return node.this
    if isinstance(node, exp.HexString):
        return bytes.fromhex(node.this) if _HEX.fullmatch(node.this) else _NO_CONSTANT
    if not isinstance(node, exp.Literal):
        return _NO_CONSTANT
    if node.is_string:
        return node.this
    # With an exponent it is a DOUBLE, which compares in another way. Whether what is longer, or 1_000, is a number is
    # for DuckDB to say.
    text = node.this
    if len(text) > NUMBER_CHARACTERS_MAX or not text.isascii() or "_" in text or "e" in text.lower():
        return _NO_CONSTANT
    try:
        return int(text) if text.isdecimal() else Decimal(text)
    except InvalidOperation:
        return _NO_CONSTANT


def _limit(select: exp.Select, params: Sequence[Any]) -> int | None:
    """How many rows of the source are enough, if the first ones do."""
    limit, offset = select.args.get("limit"), select.args.get("offset")
    if (
        not isinstance(limit, exp.Limit)
        or limit.args.get("limit_options")
        or isinstance(select.parent, exp.SetOperation)
    ):
        return None
    if any(held for each, held in select.args.items() if each not in _UNTOUCHED):
        return None
    for each in select.expressions:
        if any(
            isinstance(node, exp.Func | exp.Window | exp.Query) and not isinstance(node, exp.Cast)
            for node in each.walk()
        ):
            return None  # it may be an aggregate
    most = constant(limit.expression, params)
    skipped = 0 if offset is None else constant(offset.expression, params)
    if type(most) is not int or type(skipped) is not int or most < 0 or skipped < 0:
        return None
    return most + skipped


# -- names


def names(tree: exp.Expr, aliases: Sequence[str]) -> Names:
    """The columns that a statement names; `aliases` are what it calls its sources."""
    lowered = {each.lower() for each in aliases}
    columns = [node for node in tree.find_all(exp.Column) if not isinstance(node.this, exp.Star)]
    ensured: dict[str, list[str]] = {}
    for node in columns:
        alias = node.table.lower()
        if alias in lowered and not node.db:
            ensured.setdefault(alias, []).append(node.name)
    distinct = {alias: tuple(dict.fromkeys(each)) for alias, each in ensured.items()}
    return Names(_used(tree, columns, lowered), distinct, tuple(dict.fromkeys(_bare(tree, columns, lowered))))


def _used(tree: exp.Expr, columns: list[exp.Column], aliases: set[str]) -> frozenset[str] | None:
    for node in tree.walk():
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            return None
        if isinstance(node, exp.Columns | exp.Pivot | exp.PositionalColumn):
            return None
        if isinstance(node, exp.Join) and node.method:  # NATURAL, POSITIONAL
            return None
        if isinstance(node, exp.TableAlias) and node.columns:
            return None
    if any(node.name.lower() in aliases for node in columns if not node.table):
        return None  # a whole row
    return frozenset(node.name.lower() for node in tree.find_all(exp.Identifier, exp.Var))


def _bare(tree: exp.Expr, columns: list[exp.Column], aliases: set[str]) -> Iterator[str]:
    """The names without a qualifier, where they can only be those of the one source that there is."""
    sources = list(tree.find_all(exp.Table, exp.Subquery, exp.CTE, exp.Values, exp.Unnest, exp.Lateral, exp.Lambda))
    if len(sources) != 1 or len(list(tree.find_all(exp.Select))) != 1:
        return
    given = aliases | {node.alias.lower() for node in tree.find_all(exp.Alias)}
    for node in columns:
        if not node.table and node.name.lower() not in given:
            yield node.name

"""How much of each source a SELECT needs, derived from its syntax tree alone. Pure: nothing is read here.

Three things are derived: comparisons of a column with a constant that hold for every row of the result, a LIMIT that
applies to the source itself, and the names of the columns. In case of doubt a row or column counts as needed; that may
make a statement slower but never changes its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from sqlglot import exp

from tailrace.sql.access import IN, PREFIX, Comparison, SourceNeeds
from tailrace.sql.lexer import NUMBER_CHARACTERS_MAX, parameter_number

_OPERATORS: Final[dict[type[exp.Expr], str]] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Clauses that a SELECT may have for its LIMIT to apply to the source: any other needs, drops or reorders rows.
_UNTOUCHED: Final = frozenset(
    ("with_", "expressions", "from_", "where", "limit", "offset", "order", "operation_modifiers", "kind")
)
# Joins of which each row has a row of both sources, or is NULL in all columns of one of them.
_JOINS: Final = frozenset(("INNER", "CROSS", "OUTER"))
_EQUATING: Final = (exp.EQ, exp.In, exp.Paren)
_WILD: Final = re.compile("[%_]")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_NO_CONSTANT: Final = object()
_NAMING: Final = (exp.Table, exp.TableAlias, exp.Alias)  # their names are no columns; whole rows are found elsewhere


class NamedColumns(msgspec.Struct, frozen=True):
    """The columns that a statement names."""

    used: frozenset[str] | None  # in lower case; None: possibly all
    ensured: dict[str, tuple[str, ...]]  # by a source's alias in lower case: the columns it should have
    bare: tuple[str, ...]  # columns without a qualifier that the only source should have, if there is only one


def needs(table: exp.Table, alias: str, name: str, names: NamedColumns, params: Sequence[Any]) -> SourceNeeds:
    """What the statement needs of a source with this alias and full name."""
    select = _owner(table)
    ensure = tuple(dict.fromkeys((*names.ensured.get(alias.lower(), ()), *names.bare)))
    if select is None:
        return SourceNeeds(names=names.used, ensure=ensure)
    alone = not select.args.get("joins")
    where, complete = [], True
    for each in _conjuncts(select):
        comparisons = list(_comparisons(each, alias, name, params, alone))
        where += [one for one, _ in comparisons]
        complete = complete and bool(comparisons) and all(exact for _, exact in comparisons)
    limit = _limit(select, params) if complete and alone else None
    order = None if limit is None else _order(select, alias, name)
    if limit is not None and select.args.get("order") and order is None:
        limit = None
    return SourceNeeds(tuple(where), limit, names.used, ensure, order)


def _owner(table: exp.Table) -> exp.Select | None:
    """The SELECT that reads this source, if each row of its result meets the conditions of its WHERE."""
    parent = table.parent
    select = parent.parent if isinstance(parent, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select):
        return None
    if any(select.args.get(each) for each in ("laterals", "pivots", "sample", "match", "connect")):
        return None
    if any(table.args.get(each) for each in ("joins", "laterals", "pivots", "sample")):
        return None
    # A row that an outer join adds is NULL in the column, and meets no comparison. Other joins choose among rows.
    for join in select.args.get("joins") or ():
        if join.method or (join.kind or "INNER").upper() not in _JOINS:
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


def comparisons(condition: exp.Expr, name: str, params: Sequence[Any]) -> Iterator[Comparison]:
    """The comparisons of columns of the table `name` that hold for every row which meets a condition, whose parameters
    have numbers."""
    condition = condition.unnest()
    parts = [each.unnest() for each in condition.flatten()] if isinstance(condition, exp.And) else [condition]
    for each in parts:
        yield from (one for one, _ in _comparisons(each, name, name, params, True))


def _comparisons(
    node: exp.Expr, alias: str, name: str, params: Sequence[Any], alone: bool
) -> Iterator[tuple[Comparison, bool]]:
    """The comparisons of the source's columns with constants that a condition consists of, if it is simple enough; and
    whether it is no more than that. `alone`: a column without a qualifier is one of this source."""
    if node.args.get("negate"):  # NOT LIKE
        return
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        column = _column(node.this, alias, name, alone)
        low, high = constant(node.args["low"], params), constant(node.args["high"], params)
        if column is not None and low is not _NO_CONSTANT and high is not _NO_CONSTANT:
            yield Comparison(column, ">=", low), True
            yield Comparison(column, "<=", high), True
    elif isinstance(node, exp.In):
        listed = not any(node.args.get(each) for each in ("query", "unnest", "field", "is_global"))
        yield from _one_of(node.this, node.expressions if listed else (), alias, name, params, alone)
    elif isinstance(node, exp.Or):
        yield from _either(node, alias, name, params, alone)
    elif isinstance(node, exp.Like | exp.StartsWith):
        column, pattern = _column(node.this, alias, name, alone), constant(node.expression, params)
        if column is not None and isinstance(pattern, str):
            begin = pattern if isinstance(node, exp.StartsWith) else _WILD.split(pattern, maxsplit=1)[0]
            if begin:
                yield Comparison(column, PREFIX, begin), isinstance(node, exp.StartsWith) or pattern == begin + "%"
    op = _OPERATORS.get(type(node))
    if op is None:
        return
    left, right = node.this, node.expression
    for one, other, sign in ((left, right, op), (right, left, _MIRRORED[op])):
        column, held = _column(one, alias, name, alone), constant(other, params)
        if column is not None and held is not _NO_CONSTANT:
            yield Comparison(column, sign, held), True


def _one_of(
    of: exp.Expr, listed: Sequence[exp.Expr], alias: str, name: str, params: Sequence[Any], alone: bool
) -> Iterator[tuple[Comparison, bool]]:
    column = _column(of, alias, name, alone)
    values = [constant(each, params) for each in listed]
    if column is not None and values and not any(each is _NO_CONSTANT for each in values):
        yield Comparison(column, IN, tuple(values)), True


def _either(
    node: exp.Or, alias: str, name: str, params: Sequence[Any], alone: bool
) -> Iterator[tuple[Comparison, bool]]:
    """Equalities of one column that are joined by OR."""
    columns: set[str] = set()
    values: list[Any] = []
    for each in node.flatten():
        equal = list(_comparisons(each.unnest(), alias, name, params, alone)) if isinstance(each, _EQUATING) else []
        if len(equal) != 1 or equal[0][0].op not in ("=", IN):
            return
        comparison = equal[0][0]
        columns.add(comparison.column)
        values += comparison.value if comparison.op == IN else (comparison.value,)
    if len(columns) == 1:
        yield Comparison(columns.pop(), IN, tuple(values)), True


def _column(node: exp.Expr, alias: str, name: str, alone: bool = True) -> str | None:
    node = node.unnest()
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        return None
    qualifier = ".".join(part.name for part in node.parts[:-1]).lower()
    return node.name.lower() if (qualifier or not alone) in (alias.lower(), name.lower(), False) else None


def constant(node: exp.Expr, params: Sequence[Any]) -> Any:
    """The value of a literal or a parameter: a text, an int, a Decimal or bytes; no other type counts as a constant."""
    node = node.unnest()
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        held = constant(node.this, params)
        return held if held is _NO_CONSTANT else -held
    if isinstance(node, exp.Placeholder):
        number = parameter_number(str(node.this))
        if 0 < number <= len(params):
            held = params[number - 1]
            if isinstance(held, str | bytes | Decimal) or type(held) is int:
                return held
        return _NO_CONSTANT
    if isinstance(node, exp.Heredoc | exp.RawString):  # $$text$$
        return node.this
    if isinstance(node, exp.HexString):
        whole = len(node.this) % 2 == 0 and _HEX.fullmatch(node.this)
        return bytes.fromhex(node.this) if whole else _NO_CONSTANT
    if not isinstance(node, exp.Literal):
        return _NO_CONSTANT
    if node.is_string:
        return node.this
    # A number with an exponent is a DOUBLE, which compares differently. Longer numbers, and 1_000, are left to DuckDB.
    text = node.this
    if len(text) > NUMBER_CHARACTERS_MAX or not text.isascii() or "_" in text or "e" in text.lower():
        return _NO_CONSTANT
    try:
        return int(text) if text.isdecimal() else Decimal(text)
    except InvalidOperation:
        return _NO_CONSTANT


def number_or_text(node: exp.Expr, params: Sequence[Any]) -> str:
    """`number` or `text`, if it is a constant of such a type, else an empty text."""
    if isinstance(node, exp.Literal):
        return "text" if node.is_string else "number"
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return "number"
    held = constant(node, params)
    if isinstance(held, str):
        return "text"
    return "number" if type(held) is int or isinstance(held, Decimal) else ""


def _limit(select: exp.Select, params: Sequence[Any]) -> int | None:
    """The number of the source's first rows that are enough, if any are."""
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


def _order(select: exp.Select, alias: str, name: str) -> tuple[str, bool] | None:
    """The only column that the rows are ordered by, and whether it is descending. An alias of the SELECT has precedence
    over a column."""
    order = select.args.get("order")
    if order is None or len(order.expressions) != 1:
        return None
    by = order.expressions[0]
    if not isinstance(by, exp.Ordered) or by.args.get("with_fill"):
        return None
    column = _column(by.this, alias, name)
    if column is None or any(
        each.alias.lower() == column and _column(each.this, alias, name) != column
        for each in select.expressions
        if isinstance(each, exp.Alias)
    ):
        return None
    return column, bool(by.args.get("desc"))


# -- names


def names(tree: exp.Expr, aliases: Sequence[str]) -> NamedColumns:
    """The columns that a statement names; `aliases` are those of its sources."""
    lowered = {each.lower() for each in aliases}
    columns = [node for node in tree.find_all(exp.Column) if not isinstance(node.this, exp.Star)]
    ensured: dict[str, list[str]] = {}
    for node in columns:
        alias = node.table.lower()
        if alias in lowered and not node.db:
            ensured.setdefault(alias, []).append(node.name)
    distinct = {alias: tuple(dict.fromkeys(each)) for alias, each in ensured.items()}
    return NamedColumns(_used(tree, columns, lowered), distinct, tuple(dict.fromkeys(_bare(tree, columns, lowered))))


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
    return frozenset(
        node.name.lower()
        for node in tree.find_all(exp.Identifier, exp.Var)
        if not isinstance(node.parent, _NAMING) and not _qualifies(node, aliases)
    )


def _qualifies(node: exp.Expr, aliases: set[str]) -> bool:
    """Whether it is the name of a source before that of a column."""
    column = node.parent
    return isinstance(column, exp.Column) and column.this is not node and node.name.lower() in aliases


def _bare(tree: exp.Expr, columns: list[exp.Column], aliases: set[str]) -> Iterator[str]:
    """The column names without a qualifier, if the statement has a single source that they must belong to."""
    sources = list(tree.find_all(exp.Table, exp.Subquery, exp.CTE, exp.Values, exp.Unnest, exp.Lateral, exp.Lambda))
    if len(sources) != 1 or len(list(tree.find_all(exp.Select))) != 1:
        return
    given = aliases | {node.alias.lower() for node in tree.find_all(exp.Alias)}
    for node in columns:
        if not node.table and node.name.lower() not in given:
            yield node.name

"""The plan of a materialized view: its tables, filter, groups and aggregates, parsed from its SELECT.

Only a SELECT that can be maintained change by change is accepted; anything else is refused with its position in the
text. sqlglot parses the statement, `tailrace.scalar` compiles its expressions: they mean the same as in a route or an
UPDATE, and an expression that cannot be evaluated for a row is NULL. Pure: the server plans a view when it is created,
and every task that works for it plans it again, from the same text and schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

import msgspec
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from tailrace import limits, scalar
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import DEPTH_MAX, DIALECT, first_too_deep
from tailrace.tables.value import Item

COUNT: Final = "count"
DISTINCT: Final = "count distinct"
SUM: Final = "sum"
AVG: Final = "avg"
MIN: Final = "min"
MAX: Final = "max"
KEY: Final = "key"  # the partition key of a view whose groups are not one or two columns
ALL: Final = "all"  # and its value where there are no groups
CODE: Final = "INVALID_VIEW"
_DEPTH_MAX: Final = 2 * DEPTH_MAX  # of the SELECT around its expressions

_AGGREGATES: Final[dict[type[exp.Expr], str]] = {
    exp.Count: COUNT, exp.Sum: SUM, exp.Avg: AVG, exp.Min: MIN, exp.Max: MAX,
}  # fmt: skip
_KEY_KINDS: Final = {"S": "TEXT", "N": "DECIMAL", "B": "BLOB"}
_SCALAR_KINDS: Final = {
    "TEXT": "S", "BIGINT": "N", "DOUBLE": "N", "DECIMAL": "N", "BOOLEAN": "BOOL",
}  # fmt: skip
# The supported clauses of a SELECT; all others are refused by name.
_TAKEN: Final = frozenset(("expressions", "from_", "joins", "where", "group", "kind", "operation_modifiers"))
_CLAUSES: Final = {
    "having": "HAVING", "order": "ORDER BY", "limit": "LIMIT", "offset": "OFFSET", "distinct": "DISTINCT",
    "qualify": "QUALIFY", "windows": "WINDOW", "with_": "WITH", "sample": "a sample", "laterals": "LATERAL",
}  # fmt: skip
_INSTEAD: Final = {
    "having": "; leave it to the SELECT that reads the view",
    "order": "; leave it to the SELECT that reads the view",
    "limit": "; leave it to the SELECT that reads the view",
    "distinct": "; GROUP BY all columns instead",
}


class SourceTable(msgspec.Struct, frozen=True):
    """A table that a view reads, as it was when the view was created."""

    table: str
    log: int  # of its change stream
    keys: tuple[tuple[str, str], ...]  # name and type, the partition key first
    columns: tuple[tuple[str, str], ...] = ()  # declared ones; none: any may be there


class GroupColumn(msgspec.Struct, frozen=True):
    """A column of the view's key: its name and its expression."""

    name: str
    of: Callable[..., Any]
    kind: str | None  # S, N or BOOL, where it is the same for all rows
    verbatim: str | None  # S, N or B: it is a key attribute of a source, and keeps its type


class AggregateArgument(msgspec.Struct, frozen=True):
    """The argument of aggregates; several may share one."""

    of: Callable[..., Any]
    kept: bool  # each value with how often it is there, for min, max and count(DISTINCT)


class Aggregate(msgspec.Struct, frozen=True):
    name: str
    function: str
    argument: int | None  # None: count(*)


class ViewJoin(msgspec.Struct, frozen=True):
    """Rows of two tables whose keys are equal; `left`: rows of the first one without a partner too."""

    left: bool
    keys: tuple[tuple[Callable[..., Any], ...], tuple[Callable[..., Any], ...]]  # by side


class ViewPlan(msgspec.Struct, frozen=True):
    """The compiled plan of a view. Expressions take one item: of a join, both rows with names like `0.total`."""

    sources: tuple[SourceTable, ...]
    used: tuple[tuple[str, ...] | None, ...]  # per source, the columns that are read; None: all
    where: Callable[..., bool] | None
    groups: tuple[GroupColumn, ...]
    arguments: tuple[AggregateArgument, ...]
    aggregates: tuple[Aggregate, ...]
    values: tuple[tuple[str, Callable[..., Any]], ...]  # of a view of rows: its other columns
    rows: bool  # one row for each of the source's, no aggregates
    star: bool  # SELECT *
    join: ViewJoin | None

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The key of the view's table: name and type of its one or two attributes."""
        if not 1 <= len(self.groups) <= 2:
            return ((KEY, "S"),)
        return tuple((group.name, group.verbatim or "S") for group in self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes of its rows, as far as they are known."""
        names = [group.name for group in self.groups]
        names += [name for name, _ in self.values] + [each.name for each in self.aggregates]
        return tuple(names) if self.keys[0][0] != KEY or self.keys[0][0] in names else (KEY, *names)


@lru_cache(maxsize=256)
def plan(sql: str, sources: tuple[SourceTable, ...]) -> ViewPlan:
    """The plan of an existing view."""
    return _ViewParser(sql, TextOrigin(), sources).plan()


def check(sql: str, sources: tuple[SourceTable, ...], line: int, column: int) -> ViewPlan:
    """The plan of a new view; an error has its position in the text, which begins at `line` and `column`."""
    return _ViewParser(sql, TextOrigin(line, column), sources).plan()


def tables(sql: str, line: int = 1, column: int = 1) -> tuple[str, ...]:
    """The tables that a view's SELECT reads, one or two."""
    origin = TextOrigin(line, column)
    return tuple(name for name, _, _ in _sources(_select(sql, origin), origin))


# -- reading


def _select(sql: str, origin: TextOrigin) -> exp.Select:
    if len(sql) > limits.VIEW_SQL_CHARACTERS_MAX:
        raise origin.error(f"a view's SELECT has at most {limits.VIEW_SQL_CHARACTERS_MAX} characters", 1, 1, CODE)
    try:
        deep = first_too_deep(list(sqlglot.tokenize(sql, dialect=DIALECT)), _DEPTH_MAX)
        if deep is not None:
            raise origin.error(
                f"a view's SELECT is nested at most {_DEPTH_MAX} deep", deep.line, max(1, deep.col), CODE
            )
        trees = [tree for tree in sqlglot.parse(sql, dialect=DIALECT) if tree is not None]
        for tree in trees:
            tree.sql(DIALECT)  # columns without a name are named by their text, so it must exist
    except ExpressionError:
        raise
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        near = str(detail.get("highlight") or "")
        line, end = int(detail.get("line") or 1), int(detail.get("col") or 1)
        raise origin.error(f"the SELECT cannot be read at {near[:60]!r}", line, max(1, end - len(near) + 1)) from None
    except TokenError:
        raise origin.error("the SELECT cannot be read: a quote or a bracket is not closed", 1, 1) from None
    except RecursionError:
        raise origin.error("the SELECT is nested too deep; take a part of it out", 1, 1, CODE) from None
    except Exception:  # sqlglot may raise anything for invalid text
        raise origin.error("the SELECT cannot be read; write it in another way", 1, 1) from None
    if len(trees) != 1 or not isinstance(trees[0], exp.Select):
        raise origin.error("a view is one SELECT: no UNION, WITH or VALUES", 1, 1, CODE)
    select = trees[0]
    for name, held in select.args.items():
        if held and name not in _TAKEN:
            clause = _CLAUSES.get(name, name.rstrip("_").upper())
            node = held[0] if isinstance(held, list) else held
            reason = f"a view has no {clause}{_INSTEAD.get(name, '')}"
            raise origin.error_at(reason, node if isinstance(node, exp.Expr) else select, CODE)
    for node in select.find_all(exp.Query, exp.Window, exp.Placeholder, exp.Parameter):
        if node is not select:
            what = "subquery" if isinstance(node, exp.Query) else "window function"
            what = "parameter; write the value" if isinstance(node, exp.Placeholder | exp.Parameter) else what
            raise origin.error_at(f"a view has no {what}", node, CODE)
    return select


def _sources(select: exp.Select, origin: TextOrigin) -> list[tuple[str, str, exp.Expr]]:
    """The name, the alias and the node of each table."""
    first = select.args.get("from_")
    if first is None:
        raise origin.error_at("a view reads a table: FROM is missing", select, CODE)
    joins = select.args.get("joins") or []
    if len(joins) > 1:
        raise origin.error_at("a view joins two tables at most", joins[1], CODE)
    found: list[tuple[str, str, exp.Expr]] = []
    for node in (first.this, *(join.this for join in joins)):
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise origin.error_at("a view can only read tables", node, CODE)
        for name, held in node.args.items():
            if held and name not in ("this", "db", "catalog", "alias"):
                raise origin.error_at("a view reads whole tables", node, CODE)
        name = ".".join(part.name for part in node.parts)
        if name.lower().startswith("system."):
            raise origin.error_at(f"{name} has no changes to follow; a view reads tables", node, CODE)
        found.append((name, node.alias or name, node))
    if len(found) == 2:
        if found[0][0] == found[1][0]:
            raise origin.error_at("a view does not join a table with itself", found[1][2], CODE)
        if found[0][1].lower() == found[1][1].lower():
            raise origin.error_at(f"both tables are called {found[1][1]!r}; give one an alias", found[1][2], CODE)
    return found


class _ViewParser:
    """Parses one SELECT."""

    def __init__(self, sql: str, origin: TextOrigin, sources: tuple[SourceTable, ...]) -> None:
        self._origin = origin
        self._select = _select(sql, origin)
        self._named = _sources(self._select, origin)
        self._sources = sources
        self._columns: dict[str, str] = {}  # by the name that expressions use, the declared kind
        self._used: list[dict[str, None]] = [{} for _ in sources]
        self._arguments: dict[str, tuple[exp.Expr, bool]] = {}

    def plan(self) -> ViewPlan:
        self._check_star()
        join = self._join()
        where = self._select.args.get("where")
        condition = None if where is None else self._condition(where.this)
        outputs = [self._output(node) for node in self._select.expressions]
        star = any(isinstance(node, exp.Star) for _, node in outputs)
        summed = any(_aggregate(each) for _, node in outputs for each in node.walk())
        aggregated = summed or self._select.args.get("group") is not None
        self._check_names(outputs)
        if aggregated:
            groups, aggregates = self._aggregated(outputs)
            values: list[tuple[str, Callable[..., Any]]] = []
        else:
            groups, values = self._rows(outputs, star)
            aggregates = []
        arguments = tuple(AggregateArgument(self._value(node), kept) for node, kept in self._arguments.values())
        used = tuple(None if star else tuple(names) for names in self._used)
        return ViewPlan(
            self._sources, used, condition, tuple(groups), arguments, tuple(aggregates), tuple(values), not aggregated,
            star, join,
        )  # fmt: skip

    # -- the parts

    def _check_star(self) -> None:
        stars = [node for node in self._select.expressions if isinstance(node, exp.Star) or node.is_star]
        if not stars or isinstance(stars[0], exp.Count):
            return
        if len(self._select.expressions) > 1 or len(self._sources) > 1 or self._select.args.get("group"):
            self._refuse("* is only supported alone, in a view of one table's rows; name the columns", stars[0])
        if not isinstance(stars[0], exp.Star) or any(stars[0].args.values()):
            self._refuse("write * alone; name the columns to have fewer", stars[0])

    def _join(self) -> ViewJoin | None:
        joins = self._select.args.get("joins") or []
        if not joins:
            return None
        join = joins[0]
        side, kind, method = (str(join.args.get(each) or "").upper() for each in ("side", "kind", "method"))
        if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER") or method or join.args.get("using"):
            self._refuse("a view joins by JOIN or LEFT JOIN … ON a.x = b.y; swap the tables of a RIGHT JOIN", join)
        on = join.args.get("on")
        if on is None:
            self._refuse("ON is missing: a view joins tables by equal columns", join)
        sides: tuple[list[Callable[..., Any]], list[Callable[..., Any]]] = ([], [])
        condition = on.unnest()
        parts = [each.unnest() for each in condition.flatten()] if isinstance(condition, exp.And) else [condition]
        for part in parts:
            if not isinstance(part, exp.EQ):
                self._refuse(
                    "ON takes equations of the two tables' columns, joined by AND; put the rest in WHERE", part
                )
            left, right = self._sides(part.this), self._sides(part.expression)
            if {*left, *right} != {0, 1} or len(left) != 1 or len(right) != 1:
                self._refuse("each equation of ON has one table on either side", part)
            pair = (part.this, part.expression) if left == {0} else (part.expression, part.this)
            for at, node in enumerate(pair):
                sides[at].append(self._value(node))
        return ViewJoin(side == "LEFT", (tuple(sides[0]), tuple(sides[1])))

    def _sides(self, node: exp.Expr) -> set[int]:
        return {self._found(column)[0] for column in node.find_all(exp.Column)}

    def _output(self, node: exp.Expr) -> tuple[str, exp.Expr]:
        """The name and the expression of a column of the view."""
        if isinstance(node, exp.Alias):
            return node.alias, node.this.unnest()
        node = node.unnest()
        if isinstance(node, exp.Star):
            return "*", node
        if isinstance(node, exp.Column):
            return self._found(node)[1][-1], node
        if _aggregate(node) and isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return "count_star()", node
        return " ".join(node.sql(DIALECT).split()).lower()[:255], node

    def _check_names(self, outputs: list[tuple[str, exp.Expr]]) -> None:
        seen: set[str] = set()
        for name, node in outputs:
            if name.lower() in seen:
                self._refuse(f"two columns are called {name!r}; give one another name with AS", node)
            seen.add(name.lower())

    def _aggregated(self, outputs: list[tuple[str, exp.Expr]]) -> tuple[list[GroupColumn], list[Aggregate]]:
        wanted = self._grouped_by(outputs)
        groups: list[GroupColumn] = []
        aggregates: list[Aggregate] = []
        for name, node in outputs:
            if _aggregate(node):
                aggregates.append(self._aggregate(name, node))
                continue
            if isinstance(node, exp.Filter):
                self._refuse("FILTER is not supported; write the condition inside: sum(CASE WHEN … THEN x END)", node)
            if any(_aggregate(each) for each in node.walk()):
                self._refuse(
                    "an aggregate cannot be part of an expression; compute in the SELECT that reads the view", node
                )
            if _same(node) not in wanted:
                self._refuse(f"{name!r} is neither in GROUP BY nor an aggregate", node)
            groups.append(self._group(name, node))
            wanted.pop(_same(node))
        for node in wanted.values():
            self._refuse("the columns of GROUP BY must be in SELECT too: they are the key of the view's rows", node)
        self._check_key(groups, outputs)
        return groups, aggregates

    def _check_key(self, groups: list[GroupColumn], outputs: list[tuple[str, exp.Expr]]) -> None:
        """Raise if a column has the name of a composed key."""
        for name, node in outputs:
            if name == KEY and not 1 <= len(groups) <= 2:
                self._refuse(f"the view's own key is called {KEY!r}; call this column another name with AS", node)

    def _grouped_by(self, outputs: list[tuple[str, exp.Expr]]) -> dict[str, exp.Expr]:
        """The expressions of GROUP BY; numbers and names of columns of the view are resolved."""
        group = self._select.args.get("group")
        if group is None:
            return {}
        plain = [node for _, node in outputs if not _aggregate(node)]
        if group.args.get("all"):
            return {_same(node): node for node in plain}
        for option, held in group.args.items():
            if held and option not in ("expressions", "all"):
                self._refuse("GROUP BY takes columns and expressions, no sets of them", group)
        by_name = {name.lower(): node for name, node in outputs}
        found: dict[str, exp.Expr] = {}
        for node in group.expressions:
            inner = node.unnest()
            if isinstance(inner, exp.Literal) and not inner.is_string:
                at = int(inner.name) if inner.name.isdecimal() and len(inner.name) < 5 else 0
                if not 1 <= at <= len(outputs):
                    self._refuse(f"there is no column {inner.name} in SELECT", inner)
                inner = outputs[at - 1][1]
            elif isinstance(inner, exp.Column) and len(inner.parts) == 1 and inner.name.lower() in by_name:
                named = by_name[inner.name.lower()]
                if not any(_same(inner) == _same(each) for each in plain):
                    inner = named
            if _aggregate(inner):
                self._refuse("GROUP BY takes no aggregates", node)
            found[_same(inner)] = inner
        return found

    def _group(self, name: str, node: exp.Expr) -> GroupColumn:
        if not name.strip():
            self._refuse("a column of the key needs a name; use AS", node)
        kind = verbatim = None
        if isinstance(node, exp.Column):
            side, path = self._found(node)
            source = self._sources[side]
            if len(path) == 1:
                kind = _SCALAR_KINDS.get(dict(source.columns).get(path[0], ""))
                key = dict(source.keys).get(path[0])
                nullable = side == 1 and self._left()
                if key is not None:
                    kind = key if key != "B" else None
                    verbatim = None if nullable else key
        elif isinstance(node, exp.Cast):
            kind = {"TEXT": "S", "VARCHAR": "S", "BOOLEAN": "BOOL"}.get(node.to.sql(DIALECT).upper())
        return GroupColumn(name, self._value(node), kind, verbatim)

    def _left(self) -> bool:
        joins = self._select.args.get("joins") or []
        return bool(joins) and str(joins[0].args.get("side") or "").upper() == "LEFT"

    def _aggregate(self, name: str, node: exp.Expr) -> Aggregate:
        function, inner = _AGGREGATES[type(node)], node.this
        extra = [each for key, each in node.args.items() if each and key not in ("this", "big_int")]
        if extra:
            self._refuse("an aggregate of a view takes one value", node)
        if isinstance(inner, exp.Star):
            if function != COUNT:
                self._refuse(f"{function}(*) is not supported; name a column", node)
            return Aggregate(name, COUNT, None)
        if isinstance(inner, exp.Distinct):
            if len(inner.expressions) != 1 or inner.args.get("on"):
                self._refuse("DISTINCT takes one value", node)
            inner = inner.expressions[0]
            if function in (SUM, AVG):
                self._refuse(f"{function}(DISTINCT …) is not supported in a view; count(DISTINCT …) is", node)
            function = DISTINCT if function == COUNT else function
        if inner is None:
            return Aggregate(name, COUNT, None)
        if any(_aggregate(each) for each in inner.walk()):
            self._refuse("aggregates cannot be nested", node)
        text = _same(inner)
        kept = function in (DISTINCT, MIN, MAX)
        before = self._arguments.get(text)
        self._arguments[text] = (inner, kept or (before is not None and before[1]))
        return Aggregate(name, function, list(self._arguments).index(text))

    def _rows(
        self, outputs: list[tuple[str, exp.Expr]], star: bool
    ) -> tuple[list[GroupColumn], list[tuple[str, Callable[..., Any]]]]:
        """A view of rows: its key is that of the source, or of both sources."""
        if star:
            source = self._sources[0]
            keys = [exp.column(exp.to_identifier(name, quoted=True)) for name, _ in source.keys]
            return [self._group(name, node) for (name, _), node in zip(source.keys, keys, strict=True)], []
        places = {self._place_of(node): (name, node) for name, node in outputs if isinstance(node, exp.Column)}
        groups: list[GroupColumn] = []
        keyed: list[str] = []
        for side, source in enumerate(self._sources):
            for key, _ in source.keys:
                found = places.get((side, (key,)))
                if found is None:
                    whose = f"{self._named[side][1]}.{key}" if len(self._sources) > 1 else key
                    self._refuse(
                        f"a view of rows is found by the key of its source: add {whose} to SELECT", self._select
                    )
                groups.append(self._group(*found))
                keyed.append(found[0])
        self._check_key(groups, outputs)
        return groups, [(name, self._value(node)) for name, node in outputs if name not in keyed]

    def _place_of(self, node: exp.Column) -> tuple[int, tuple[str, ...]]:
        side, path = self._found(node)
        return side, tuple(path)

    # -- expressions

    def _condition(self, node: exp.Expr) -> Callable[..., bool]:
        if any(_aggregate(each) for each in node.walk()):
            self._refuse("WHERE cannot have aggregates", node)
        tree = self._rewritten(node)
        return scalar.compile_condition(tree, columns=list(self._columns.items()), **self._at(), before=None).true

    def _value(self, node: exp.Expr) -> Callable[..., Any]:
        tree = self._rewritten(node)
        return scalar.compile_value(tree, columns=list(self._columns.items()), **self._at(), before=None).of

    def _at(self) -> dict[str, int]:
        return {"line": self._origin.line, "column": self._origin.column}

    def _rewritten(self, node: exp.Expr) -> exp.Expr:
        """The expression with each column renamed as in the item that it is evaluated on."""
        return node.copy().transform(self._renamed) if not isinstance(node, exp.Column) else self._renamed(node)

    def _renamed(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return node
        side, path = self._found(node)
        source = self._sources[side]
        name = path[0] if len(self._sources) == 1 else f"{side}.{path[0]}"
        kinds = dict(source.columns)
        key = dict(source.keys).get(path[0])
        self._columns[name] = kinds.get(path[0]) or (_KEY_KINDS[key] if key else "")
        self._used[side][path[0]] = None
        made: exp.Expr = exp.Column(this=self._like(node, name))
        for part in path[1:]:
            made = exp.Dot(this=made, expression=self._like(node, part))
        return made

    def _like(self, node: exp.Expr, name: str) -> exp.Identifier:
        """An identifier with the position of the column, for errors."""
        made = exp.to_identifier(name, quoted=True)
        made.meta.update(next((part.meta for part in node.find_all(exp.Identifier) if part.meta), {}))
        return made

    def _found(self, column: exp.Expr) -> tuple[int, list[str]]:
        """The source of a column, and its name with the parts below it."""
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]  # type: ignore[attr-defined]
        names = [part.name for part in parts]
        for side, (table, alias, _) in enumerate(self._named):
            for called in (alias, table):
                size = called.count(".") + 1
                if len(names) > size and ".".join(names[:size]).lower() == called.lower():
                    return side, self._resolved(side, parts[size], names[size:])
        if len(self._sources) == 1:
            return 0, self._resolved(0, parts[0], names)
        sides = [side for side, source in enumerate(self._sources) if self._has(source, names[0])]
        if len(sides) != 1:
            there = " or ".join(f"{alias}.{names[0]}" for _, alias, _ in self._named)
            self._refuse(f"{names[0]!r} may be of either table; write {there}", column)
        return sides[0], self._resolved(sides[0], parts[0], names)

    def _has(self, source: SourceTable, name: str) -> bool:
        known = source.columns or source.keys
        return any(each.lower() == name.lower() for each, _ in known) or not source.columns

    def _resolved(self, side: int, part: exp.Identifier, names: list[str]) -> list[str]:
        source = self._sources[side]
        declared = [name for name, _ in source.columns]
        if not declared or names[0] in declared or names[0] in dict(source.keys):
            return names
        alike = [name for name in declared if name.lower() == names[0].lower()]
        if len(alike) != 1 or part.quoted:
            reason = f"table {source.table!r} has no column {names[0]!r}; it has {', '.join(declared[:50])}"
            raise self._origin.error_at(reason, part, "UNKNOWN_COLUMN")
        return [alike[0], *names[1:]]

    def _refuse(self, reason: str, node: exp.Expr) -> NoReturn:
        raise self._origin.error_at(reason, node, CODE)


def _aggregate(node: exp.Expr) -> bool:
    """Whether it is a supported aggregate; others are refused as expressions."""
    return type(node) in _AGGREGATES


def _same(node: exp.Expr) -> str:
    """A text that is the same for equal expressions."""
    return node.sql(DIALECT).lower() if isinstance(node, exp.Column) else node.sql(DIALECT)


def projected(names: Sequence[str] | None, item: Item, side: int | None = None) -> Item:
    """The columns of an item that a plan reads; of a join, under the names of the plan."""
    if names is None:
        return item
    if side is None:
        return {name: item[name] for name in names if name in item}
    return {f"{side}.{name}": item[name] for name in names if name in item}

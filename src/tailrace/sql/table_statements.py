"""Execution of statements about tables and rows.

A statement is first checked against the committed definition of the table, where errors have their location in the
text; then one command writes, and checks that the table is still the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from time import monotonic
from typing import Any, Final

import msgspec

from tailrace import extras, limits, scalar
from tailrace.errors import Invalid, TooLarge, Unavailable
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import read
from tailrace.scalar.runtime import number_in_text
from tailrace.sql import statements as ast
from tailrace.sql.access import Comparison, SourceNeeds, access_path
from tailrace.sql.commands import (
    AllTables,
    DeleteRows,
    FindRows,
    InsertRows,
    RowExpression,
    RowsWritten,
    UpdateRows,
)
from tailrace.sql.lexer import PARAMETER, WORD, lex
from tailrace.sql.result import ColumnInfo, Execute, Result, counted, distinct_names, done, shown, table
from tailrace.sql.table_grammar import ROWS_MAX
from tailrace.sql.values import StatementTime, columns_of, resolved, row, type_of, typed, unknown
from tailrace.tables import lifecycle
from tailrace.tables.definition import Column, Definition
from tailrace.tables.operations import FindTable
from tailrace.tables.value import Item, to_plain
from tailrace.topics.topic import MODES, OPERATIONS

_NUMBERS: Final = ("BIGINT", "DECIMAL", "DOUBLE")
_SHOWN_KINDS: Final = {"TEXT": "VARCHAR", "JSON": "VARCHAR"}  # as SELECT shows them


# -- tables


def show_tables(execute: Execute, statement: ast.ShowTablesStatement) -> Result:
    rows: list[tuple[Any, ...]] = []
    after: str | None = None
    while page := execute(AllTables(after)):
        for description in page:
            definition = description.definition
            counts = description.counts[definition.space]
            view = None if definition.stream is None else definition.stream.view
            key = ", ".join(definition.keys)
            rows.append((definition.name, key, counts.items, counts.bytes, view, definition.ttl, description.status))
        after = page[-1].definition.name
    columns = "name TEXT, key TEXT, items BIGINT, bytes BIGINT, stream TEXT, ttl TEXT, status TEXT"
    return table(statement.title, columns, rows, counted(len(rows), "table"))


def describe_table(execute: Execute, statement: ast.DescribeTableStatement) -> Result:
    description = execute(lifecycle.DescribeTable(statement.name))
    definition = description.definition
    roles = dict(zip(definition.keys, ("PARTITION", "SORT"), strict=False))
    rows = [
        (column.name, type_of(column), not column.required, roles.get(column.name))
        for column in columns_of(definition).values()
    ]
    counts = description.counts[definition.space]
    message = counted(len(rows), "column") + ("" if definition.columns else "; rows may have other attributes")
    return table(
        statement.title,
        "column TEXT, type TEXT, nullable BOOLEAN, key TEXT",
        rows,
        message,
        table=definition.name,
        items=counts.items,
        bytes=counts.bytes,
        status=description.status,
        stream=None if definition.stream is None else definition.stream.view,
        ttl=definition.ttl,
        defaults={column.name: column.default for column in definition.columns if column.default is not None},
        checks=dict(definition.checks),
        indexes=[index.name for index in definition.indexes],
        sources=[
            {"topic_id": str(route.topic), "op": OPERATIONS[route.event], "payload_mode": MODES[route.mode]}
            for route in definition.routes
        ],
    )


# -- rows


def insert(execute: Execute, statement: ast.InsertStatement) -> Result:
    definition = execute(FindTable(statement.table))
    columns = columns_of(definition)
    rows = statement.rows
    if statement.select is not None:
        rows = _selected(execute, statement.select)
    names = None if statement.columns is None else _resolved_each(definition, statement.columns)
    if names is None:
        if not definition.columns:
            raise Invalid(
                f"table {statement.table!r} has no declared columns; name the columns of the values: INSERT INTO "
                f"{statement.table} (a, b) VALUES (…)",
                code="COLUMNS_NEEDED",
            )
        names = tuple(columns)
    if rows and len(rows[0]) != len(names):
        raise Invalid(
            f"the rows have {counted(len(rows[0]), 'value')}, but table {statement.table!r} has "
            f"{counted(len(names), 'column')}: {', '.join(names)}"
            if statement.columns is None
            else f"the rows have {counted(len(rows[0]), 'value')}, but {counted(len(names), 'column')} are named",
            code="WRONG_COUNT",
        )
    items: list[Item] = []
    now = StatementTime()
    for number, values in enumerate(rows, start=1):
        try:
            given = {
                name: _constant_value(each, now)
                for name, each in zip(names, values, strict=True)
                if not isinstance(each, ast.DefaultValue)
            }
            items.append(row(definition, columns, given, now))
        except Invalid as error:
            if len(rows) > 1 and not hasattr(error, "line"):
                raise Invalid(f"row {number}: {error}", code=error.code) from None
            raise
    sets, where = _conflict(definition, statement.conflict, now)
    _check_returning(definition, statement.returning)
    written = execute(
        InsertRows(
            definition.name,
            definition.uuid,
            tuple(items),
            statement.replace,
            statement.conflict is not None,
            sets,
            where,
            bool(statement.returning),
        )
    )
    return _written(statement.title, "inserted", definition, statement.returning, written, now)


def _selected(execute: Execute, select: ast.Expression) -> tuple[tuple[ast.Assigned, ...], ...]:
    """The rows of INSERT … SELECT."""
    extras.require("sql")
    from tailrace.sql import select as selecting  # slow to import, and not needed by most programs
    from tailrace.sql.sources import ReadBudget

    found = selecting.selection(execute, select.text, select.params, ReadBudget(), select.line, select.column)
    if found.row_count > ROWS_MAX:
        raise TooLarge(
            f"the SELECT gives {found.row_count:,} rows; one INSERT can have at most {ROWS_MAX:,}; select fewer, with "
            "WHERE or LIMIT",
            code="TOO_MANY_ROWS",
        )
    return tuple(tuple(map(ast.Constant, each)) for each in found.selected.tuples())


def _conflict(
    definition: Definition, clause: ast.ConflictClause | None, now: StatementTime
) -> tuple[tuple[tuple[str, RowExpression], ...], tuple[RowExpression, ...]]:
    """What ON CONFLICT sets, and its conditions."""
    if clause is None:
        return (), ()
    if clause.columns and set(_resolved_each(definition, clause.columns)) != set(definition.keys):
        raise Invalid(
            f"ON CONFLICT ({', '.join(clause.columns)}) must name the key of table {definition.name!r}: "
            f"{', '.join(definition.keys)}; other columns may have equal values",
            code="KEY_NEEDED",
        )
    sets = _sets(definition, clause.sets, now, excluded=True)
    where = () if clause.where is None else (_condition(definition, clause.where, now, excluded=True),)
    return sets, where


def update(execute: Execute, statement: ast.UpdateStatement) -> Result:
    definition, now = execute(FindTable(statement.table)), StatementTime()
    sets = _sets(definition, statement.sets, now)
    where = _conditions(definition, statement.where, now)
    _check_returning(definition, statement.returning)
    keys = _keys(execute, definition, statement.where, where, statement.title, now)
    written = RowsWritten(0)
    if keys:
        written = execute(
            UpdateRows(definition.name, definition.uuid, keys, where, bool(statement.returning), sets=sets)
        )
    return _written(statement.title, "updated", definition, statement.returning, written, now)


def delete(execute: Execute, statement: ast.DeleteStatement) -> Result:
    definition, now = execute(FindTable(statement.table)), StatementTime()
    where = _conditions(definition, statement.where, now)
    _check_returning(definition, statement.returning)
    keys = _keys(execute, definition, statement.where, where, statement.title, now)
    written = RowsWritten(0)
    if keys:
        written = execute(DeleteRows(definition.name, definition.uuid, keys, where, bool(statement.returning)))
    return _written(statement.title, "deleted", definition, statement.returning, written, now)


def explain(execute: Execute, statement: ast.ExplainStatement) -> Result:
    """What a statement would read, without running it."""
    of = statement.of
    steps: list[tuple[str, str, str]] = []
    if isinstance(of, ast.SelectStatement):
        steps = _explained_select(execute, of.text, of.params, of.line, of.column)
    elif isinstance(of, ast.InsertStatement):
        definition = execute(FindTable(of.table))
        if of.select is not None:
            steps = _explained_select(execute, of.select.text, of.select.params, of.select.line, of.select.column)
        steps.append((definition.name, "tailrace", "writes the rows in one transaction"))
    elif isinstance(of, ast.UpdateStatement | ast.DeleteStatement):
        definition, now = execute(FindTable(of.table)), StatementTime()
        if isinstance(of, ast.UpdateStatement):
            _sets(definition, of.sets, now)
        _conditions(definition, of.where, now)
        _check_returning(definition, of.returning)
        reads = f"keys of {definition.name} by {', '.join(definition.keys)}"
        if _given_key(definition, of.where, now) is None:
            reads = access_path(definition, SourceNeeds(_compared(definition, of.where))).described()
        steps = [
            (definition.name, "tailrace", f"{reads}; finds the rows that meet all conditions"),
            (definition.name, "tailrace", "judges and writes these rows in one transaction"),
        ]
    columns = "source TEXT, engine TEXT, step TEXT"
    return table(statement.title, columns, steps, counted(len(steps), "step"))


def _explained_select(
    execute: Execute, text: str, params: Sequence[Any], line: int, column: int
) -> list[tuple[str, str, str]]:
    extras.require("sql")
    from tailrace.sql import select as selecting
    from tailrace.sql.sources import ReadBudget

    return selecting.explained(execute, text, params, ReadBudget(), line, column)


def truncate(execute: Execute, statement: ast.TruncateStatement) -> Result:
    """All rows that exist now, a transaction for each part of them."""
    definition = execute(FindTable(statement.table))
    rows, sequence = 0, None
    for found in _found(execute, definition, (), ()):
        if found:
            written = execute(DeleteRows(definition.name, definition.uuid, tuple(found)))
            rows += written.rows
            sequence = written.sequence or sequence
    return done(statement.title, counted(rows, "row") + " deleted", rows, sequence=sequence)


def _written(
    title: str,
    verb: str,
    definition: Definition,
    returning: Sequence[ast.ReturnedColumn],
    written: RowsWritten,
    now: StatementTime,
) -> Result:
    message = f"{counted(written.rows, 'row')} {verb}"
    if not returning:
        return done(title, message, written.rows, sequence=written.sequence)
    columns, rows = _returned(definition, returning, written.items, now)
    return Result(title, columns, rows, written.rows, message, {"sequence": written.sequence})


def _returned(
    definition: Definition, returning: Sequence[ast.ReturnedColumn], items: Sequence[Item], now: StatementTime
) -> tuple[list[ColumnInfo], list[dict[str, Any]]]:
    """The columns and rows of RETURNING."""
    declared = {name: column.kind for name, column in columns_of(definition).items()}
    made: list[tuple[str, str, Callable[[Item], Any]]] = []
    for column in returning:
        if column.value is None:
            others = dict.fromkeys(name for item in items for name in item if name not in declared)
            for name in (*declared, *others):
                kind = declared.get(name, "VARCHAR")
                made.append((name, kind, _attribute(name)))
        else:
            expression = _expression(definition, column.value)
            compiled = expression.value(definition)
            kind = declared.get(column.name, "VARCHAR")
            made.append((column.name, kind, _evaluated(compiled.of, now.added(compiled, expression.params))))
    names = distinct_names([name for name, _, _ in made])
    infos = [ColumnInfo(name, _SHOWN_KINDS.get(kind, kind)) for name, (_, kind, _) in zip(names, made, strict=True)]
    rows = [{name: shown(of(item)) for name, (_, _, of) in zip(names, made, strict=True)} for item in items]
    return infos, rows


def _attribute(name: str) -> Callable[[Item], Any]:
    return lambda item: to_plain(item[name]) if name in item else None


def _evaluated(of: Callable[..., Any], params: tuple[Any, ...]) -> Callable[[Item], Any]:
    return lambda item: of(item, None, params)


def _check_returning(definition: Definition, returning: Sequence[ast.ReturnedColumn]) -> None:
    """Raise an error of RETURNING before anything is written."""
    for column in returning:
        if column.value is not None:
            _expression(definition, column.value).value(definition)


def _sets(
    definition: Definition, sets: Sequence[tuple[str, ast.Assigned]], now: StatementTime, *, excluded: bool = False
) -> tuple[tuple[str, RowExpression], ...]:
    columns = columns_of(definition)
    made: list[tuple[str, RowExpression]] = []
    for given, value in sets:
        name = resolved(definition, given)
        if name in definition.keys:
            raise Invalid(
                f"column {name!r} is part of the key and cannot be set; delete the row and insert another",
                code="KEY_COLUMN",
            )
        if definition.columns and name not in columns:
            raise unknown(definition.name, name, columns)
        if name in dict(made):
            raise Invalid(f"column {name!r} is set twice; set it once")
        if isinstance(value, ast.DefaultValue):
            default = columns[name].default if name in columns else None
            value = ast.Constant(None) if default is None else ast.Expression(default, 1, 1)
        if isinstance(value, ast.Constant):
            typed(columns.get(name), name, value.value)  # an error must not depend on whether the row exists
        expression = _expression(definition, value, excluded=excluded)
        params = now.added(expression.value(definition), expression.params)
        made.append((name, msgspec.structs.replace(expression, params=params)))
    return tuple(made)


def _conditions(definition: Definition, where: Sequence[ast.Conjunct], now: StatementTime) -> tuple[RowExpression, ...]:
    return tuple(_condition(definition, each.whole, now) for each in where)


def _condition(
    definition: Definition, value: ast.Expression, now: StatementTime, *, excluded: bool = False
) -> RowExpression:
    """A condition as commands carry it; raises if it is not valid."""
    expression = _expression(definition, value, excluded=excluded)
    params = now.added(expression.condition(definition), expression.params)
    return msgspec.structs.replace(expression, params=params)


def _expression(definition: Definition, value: ast.Value, *, excluded: bool = False) -> RowExpression:
    """An expression as commands carry it: the table's own name before a column is left out, and EXCLUDED is OLD, with
    spaces so that everything keeps its place."""
    if isinstance(value, ast.Constant):
        return RowExpression("?", (value.value,))
    text = value.text
    own = definition.name.upper()
    if "." in text and (own in text.upper() or excluded):
        tokens = lex(text)
        for token, dot in reversed(list(pairwise(tokens))):
            if token.kind != WORD or dot.key != ".":
                continue
            if excluded and token.key == "EXCLUDED":
                text = text[: token.start] + "OLD".ljust(token.end - token.start) + text[token.end :]
            elif excluded and token.key == "OLD":
                raise ExpressionError("OLD is not allowed here; write EXCLUDED", line=value.line, column=value.column)
            elif token.key == own and token.text not in dict(definition.column_kinds or ()):
                text = text[: token.start] + " " * (dot.end - token.start) + text[dot.end :]
    stripped = text.lstrip()
    column = value.column + len(text) - len(stripped)
    return RowExpression(stripped, value.params, value.line, column, excluded)


def _keys(
    execute: Execute,
    definition: Definition,
    where: Sequence[ast.Conjunct],
    conditions: tuple[RowExpression, ...],
    title: str,
    now: StatementTime,
) -> tuple[Item, ...]:
    """The keys of the rows that meet the conditions, or may meet them."""
    given = _given_key(definition, where, now)
    if given is not None:
        return given
    found: dict[str, Item] = {}
    for some in _found(execute, definition, where, conditions):
        for key in some:
            found[repr(key)] = key
        if len(found) > limits.SQL_WRITE_ROWS_MAX:
            raise TooLarge(
                f"{title} would change more than {limits.SQL_WRITE_ROWS_MAX:,} rows in one transaction, the limit; "
                "nothing was changed; narrow WHERE and send several statements",
                code="TOO_MANY_ROWS",
            )
    return tuple(found.values())


def _given_key(definition: Definition, where: Sequence[ast.Conjunct], now: StatementTime) -> tuple[Item, ...] | None:
    """The key in WHERE, none if no row can have it; None if WHERE does not give the whole key."""
    columns = columns_of(definition)
    given: dict[str, ast.Value] = {}
    for conjunct in where:
        if conjunct.column is not None and conjunct.value is not None:
            given.setdefault(resolved(definition, conjunct.column), conjunct.value)
    if any(name not in given for name in definition.keys):
        return None
    key: Item = {}
    for name in definition.keys:
        value = given[name]
        if isinstance(value, ast.Expression) and not _expression(definition, value).value(definition).constant:
            return None  # it depends on the row
        plain = _constant_value(value, now)
        kind = columns[name].kind
        if kind in _NUMBERS:
            plain = number_in_text(plain)
        if plain is None or (kind in _NUMBERS and _is_number(plain) and not _holds(columns[name], plain)):
            return ()  # nothing equals NULL, and no row has a number that its key cannot be
        stored = typed(columns[name], name, plain)
        assert stored is not None
        key[name] = stored
    return (key,)


def _is_number(plain: Any) -> bool:
    return isinstance(plain, int | float | Decimal) and not isinstance(plain, bool)


def _holds(column: Column, plain: Any) -> bool:
    try:
        typed(column, column.name, plain)
    except Invalid:
        return False
    return True


def _found(
    execute: Execute,
    definition: Definition,
    where: Sequence[ast.Conjunct],
    conditions: tuple[RowExpression, ...],
) -> Iterator[list[Item]]:
    """Keys of rows that meet the conditions, some at a time."""
    compared = _compared(definition, where)
    after: tuple[int, bytes] | None = (0, b"")
    by = 0
    ends_s = monotonic() + limits.SQL_WRITE_S if where else math.inf  # TRUNCATE takes as long as it takes
    while after is not None:
        page = execute(FindRows(definition.name, definition.uuid, conditions, compared, after, by))
        yield page.keys
        after, by = page.next, page.by
        if monotonic() > ends_s:
            raise Unavailable(
                f"the rows were not found within {limits.SQL_WRITE_S:g} s; compare the key or an indexed column",
                code="SELECT_TIMEOUT",
            )


def _compared(definition: Definition, where: Sequence[ast.Conjunct]) -> tuple[Comparison, ...]:
    """The comparisons of columns with constants among the conditions."""
    from tailrace.sql import narrowing

    found: list[Comparison] = []
    for each in where:
        tree = read(_numbered(each.whole.text), TextOrigin(each.whole.line, each.whole.column))
        found += narrowing.comparisons(tree, definition.name, each.whole.params)
    return tuple(found)


def _numbered(text: str) -> str:
    """The text with $1, $2 and so on instead of question marks."""
    marks = [token for token in lex(text) if token.kind == PARAMETER and not token.text]
    for number, token in reversed(list(enumerate(marks, start=1))):
        text = f"{text[: token.start]}${number}{text[token.end :]}"
    return text


def _resolved_each(definition: Definition, names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(resolved(definition, name) for name in names)
    for at, name in enumerate(found):
        if name in found[:at]:
            raise Invalid(f"column {name!r} is named twice; name it once")
    return found


def _constant_value(value: ast.Value, now: StatementTime) -> Any:
    """The value of an expression that reads no row."""
    if isinstance(value, ast.Constant):
        return value.value
    compiled = scalar.exact_value(value.text, columns=(), line=value.line, column=value.column)
    return compiled.of(None, None, now.added(compiled, value.params))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.InsertStatement: insert,
    ast.UpdateStatement: update,
    ast.DeleteStatement: delete,
    ast.TruncateStatement: truncate,
    ast.ExplainStatement: explain,
    ast.ShowTablesStatement: show_tables,
    ast.DescribeTableStatement: describe_table,
}

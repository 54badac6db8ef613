"""Statements about tables and rows, carried out.

A statement is first checked against the table as it is committed, where its mistakes can be told with their place in
the text; then one command writes, and sees to it that the table is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from tailrace import scalar
from tailrace.errors import Invalid, TableNotFound
from tailrace.scalar.problem import ExpressionError, Origin
from tailrace.scalar.reading import read
from tailrace.sql import statements as ast
from tailrace.sql.commands import DefineTable, DeleteRow, InsertRows, Term, UpdateRow
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.sql.values import KEY_TYPES, columns_of, row, typed, unknown
from tailrace.tables import lifecycle, schema, streams
from tailrace.tables.definition import Attribute, Column, Definition
from tailrace.tables.operations import FindTable
from tailrace.tables.value import Item
from tailrace.topics.topic import MODES, OPERATIONS

# -- tables


def create_table(execute: Execute, asked: ast.CreateTable) -> Result:
    kinds = {column.name: column.kind for column in asked.columns}
    for name in asked.key:
        if kinds[name] not in KEY_TYPES:
            raise Invalid(
                f"the key's column {name!r} is {kinds[name]}; a key is {', '.join(KEY_TYPES)}", code="WRONG_TYPE"
            )
    if asked.ttl is not None and kinds.get(asked.ttl) not in ("BIGINT", "DECIMAL"):
        raise Invalid(
            f"ttl names {asked.ttl!r}; it must be a BIGINT column: when a row expires, in seconds since 1970",
            code="UNKNOWN_COLUMN" if asked.ttl not in kinds else "WRONG_TYPE",
        )
    spec = schema.Spec(
        name=asked.name,
        attributes=tuple(Attribute(name, KEY_TYPES[kinds[name]]) for name in asked.key),
        keys=tuple(
            schema.KeyElement(name, role) for name, role in zip(asked.key, (schema.HASH, schema.RANGE), strict=False)
        ),
        billing=schema.PAY_PER_REQUEST,
        stream=None if asked.stream is None else schema.StreamSpec(True, asked.stream),
    )
    columns = tuple(
        Column(column.name, column.kind, column.required or column.name in asked.key) for column in asked.columns
    )
    made = execute(DefineTable(spec, columns, asked.ttl, asked.if_not_exists))
    message = f"table {asked.name} created" if made.fresh else f"table {asked.name} was there already"
    return done(asked.title, message, created=made.fresh)


def drop_table(execute: Execute, asked: ast.DropTable) -> Result:
    try:
        execute(lifecycle.DeleteTable(asked.name))
    except TableNotFound:
        if not asked.if_exists:
            raise
        return done(asked.title, f"there was no table {asked.name}", dropped=False)
    return done(asked.title, f"table {asked.name} dropped", dropped=True)


def enable_stream(execute: Execute, asked: ast.EnableStream) -> Result:
    stream = execute(streams.EnableStream(asked.table, asked.view))
    return done(asked.title, f"changes of table {asked.table} are recorded from now on", label=stream.label)


def disable_stream(execute: Execute, asked: ast.DisableStream) -> Result:
    execute(streams.DisableStream(asked.table))
    return done(asked.title, f"changes of table {asked.table} are recorded no more; what is there stays readable")


def show_tables(execute: Execute, asked: ast.ShowTables) -> Result:
    from tailrace.sql.system import AllTables  # what it needs takes long to import, and few ask

    rows: list[tuple[Any, ...]] = []
    after: str | None = None
    while page := execute(AllTables(after)):
        for found in page:
            definition = found.definition
            counts = found.counts[definition.space]
            view = None if definition.stream is None else definition.stream.view
            key = ", ".join(definition.keys)
            rows.append((definition.name, key, counts.items, counts.bytes, view, definition.ttl, found.status))
        after = page[-1].definition.name
    columns = "name TEXT, key TEXT, items BIGINT, bytes BIGINT, stream TEXT, ttl TEXT, status TEXT"
    return table(asked.title, columns, rows, counted(len(rows), "table"))


def describe_table(execute: Execute, asked: ast.DescribeTable) -> Result:
    found = execute(lifecycle.DescribeTable(asked.name))
    definition = found.definition
    roles = dict(zip(definition.keys, ("PARTITION", "SORT"), strict=False))
    rows = [
        (column.name, column.kind, not column.required, roles.get(column.name))
        for column in columns_of(definition).values()
    ]
    counts = found.counts[definition.space]
    message = counted(len(rows), "column") + ("" if definition.columns else "; a row may have any others")
    return table(
        asked.title,
        "column TEXT, type TEXT, nullable BOOLEAN, key TEXT",
        rows,
        message,
        table=definition.name,
        items=counts.items,
        bytes=counts.bytes,
        status=found.status,
        stream=None if definition.stream is None else definition.stream.view,
        ttl=definition.ttl,
        indexes=[index.name for index in definition.indexes],
        sources=[
            {"topic_id": str(route.topic), "op": OPERATIONS[route.event], "payload_mode": MODES[route.mode]}
            for route in definition.routes
        ],
    )


# -- rows


def insert(execute: Execute, asked: ast.Insert) -> Result:
    definition = execute(FindTable(asked.table))
    columns = columns_of(definition)
    names = asked.columns
    if names is None:
        if not definition.columns:
            raise Invalid(
                f"table {asked.table!r} has no declared columns; name those of the values: INSERT INTO {asked.table} "
                "(a, b) VALUES (…)",
                code="COLUMNS_NEEDED",
            )
        names = tuple(columns)
        if len(asked.rows[0]) != len(names):
            raise Invalid(
                f"the rows have {counted(len(asked.rows[0]), 'value')}, and table {asked.table!r} has "
                f"{counted(len(names), 'column')}: {', '.join(names)}",
                code="WRONG_COUNT",
            )
    items: list[Item] = []
    for number, values in enumerate(asked.rows, start=1):
        try:
            items.append(
                row(definition, columns, {name: _alone(each) for name, each in zip(names, values, strict=True)})
            )
        except Invalid as error:
            if len(asked.rows) > 1 and not hasattr(error, "line"):
                raise Invalid(f"row {number}: {error}", code=error.code) from None
            raise
    written = execute(InsertRows(definition.name, definition.uuid, tuple(items), asked.replace))
    return done(asked.title, counted(written.rows, "row") + " inserted", written.rows, sequence=written.sequence)


def update(execute: Execute, asked: ast.Update) -> Result:
    definition = execute(FindTable(asked.table))
    columns = columns_of(definition)
    sets: list[tuple[str, Term]] = []
    for name, value in asked.sets:
        if name in definition.keys:
            raise Invalid(
                f"column {name!r} is part of the key and cannot be set; delete the row and insert another",
                code="KEY_COLUMN",
            )
        if definition.columns and name not in columns:
            raise unknown(definition.name, name, columns)
        if isinstance(value, ast.Constant):
            typed(columns.get(name), name, value.value)  # to say now what is wrong, whether there is a row or not
        sets.append((name, _term(name, value, definition)))
    key, conditions = _found_by(definition, asked.where, asked.title)
    if key is None:
        return done(asked.title, "0 rows updated", 0, sequence=None)
    written = execute(UpdateRow(definition.name, definition.uuid, key, conditions, sets=tuple(sets)))
    return done(asked.title, counted(written.rows, "row") + " updated", written.rows, sequence=written.sequence)


def delete(execute: Execute, asked: ast.Delete) -> Result:
    definition = execute(FindTable(asked.table))
    key, conditions = _found_by(definition, asked.where, asked.title)
    if key is None:
        return done(asked.title, "0 rows deleted", 0, sequence=None)
    written = execute(DeleteRow(definition.name, definition.uuid, key, conditions))
    return done(asked.title, counted(written.rows, "row") + " deleted", written.rows, sequence=written.sequence)


def _found_by(
    definition: Definition, where: Sequence[ast.Conjunct], title: str
) -> tuple[Item | None, tuple[Term, ...]]:
    """The key of the row that is meant, None if there can be no such row, and the conditions that are left."""
    columns = columns_of(definition)
    given: dict[str, ast.Value] = {}
    rest: list[ast.Expression] = []
    for conjunct in where:
        name = conjunct.column
        if name in definition.keys and name not in given:
            assert conjunct.value is not None
            given[name] = conjunct.value
        else:
            rest.append(conjunct.whole)
    missing = [name for name in definition.keys if name not in given]
    if missing:
        wanted = " AND ".join(f"{name} = …" for name in definition.keys)
        raise Invalid(
            f"{title} finds a row by its key, and WHERE does not say what {missing[0]!r} equals; write WHERE {wanted}",
            code="KEY_NEEDED",
        )
    conditions = tuple([_condition(each, definition) for each in rest])
    key: Item = {}
    for name in definition.keys:
        value = _alone(given[name])
        if value is None:
            return None, ()  # nothing equals NULL
        found = typed(columns[name], name, value)
        assert found is not None
        key[name] = found
    return key, conditions


def _alone(value: ast.Value) -> Any:
    """The value of an expression that is about no row."""
    if isinstance(value, ast.Constant):
        return value.value
    compiled = scalar.exact_value(value.text, columns=(), line=value.line, column=value.column)
    return compiled.of(None, None, value.params)


def _term(name: str, value: ast.Value, definition: Definition) -> Term:
    """What works the value of a column out from a row."""
    if isinstance(value, ast.Constant):
        constant = value.value
        return lambda row: constant
    compiled = scalar.exact_value(value.text, columns=definition.column_kinds, line=value.line, column=value.column)
    _check_sides(compiled, value)
    of, params = compiled.of, value.params

    def worked_out(row: Item) -> Any:
        try:
            return of(row, None, params)
        except scalar.NoResult as error:
            raise scalar.NoResult(f"column {name!r}: {error}; nothing was changed") from None

    return worked_out


def _condition(value: ast.Expression, definition: Definition) -> Term:
    """What says of a row whether the condition holds."""
    columns = definition.column_kinds
    try:
        compiled = _compiled(value.text, columns)
    except ExpressionError:  # once more, to say where
        origin = Origin(value.line, value.column)
        tree = read(value.text, origin)
        compiled = scalar.compile_condition(tree, columns=columns, line=value.line, column=value.column)
    _check_sides(compiled, value)
    true, params = compiled.true, value.params
    return lambda row: true(row, None, params)


@lru_cache(maxsize=1_024)
def _compiled(text: str, columns: tuple[tuple[str, str], ...] | None) -> scalar.Condition:
    return scalar.compile_condition(read(text, Origin()), columns=columns)


def _check_sides(compiled: scalar.Scalar, value: ast.Expression) -> None:
    if "old" in compiled.sides or "new" in compiled.sides:
        raise ExpressionError(
            "OLD and NEW are for the sources of topics; here a name alone is the row as it is",
            line=value.line,
            column=value.column,
        )


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateTable: create_table,
    ast.DropTable: drop_table,
    ast.EnableStream: enable_stream,
    ast.DisableStream: disable_stream,
    ast.Insert: insert,
    ast.Update: update,
    ast.Delete: delete,
    ast.ShowTables: show_tables,
    ast.DescribeTable: describe_table,
}

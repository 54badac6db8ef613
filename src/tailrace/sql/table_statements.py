"""Execution of statements about tables and rows.

A statement is first checked against the committed definition of the table, where errors have their location in the
text; then one command writes, and checks that the table is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from tailrace import scalar
from tailrace.errors import Invalid, TableNotFound
from tailrace.jobs import view as views
from tailrace.jobs.queries import ListJobs
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import read
from tailrace.sql import statements as ast
from tailrace.sql.commands import AllTables, DefineTable, DeleteRow, InsertRows, RowTerm, UpdateRow
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.sql.values import KEY_TYPES, columns_of, row, typed, unknown
from tailrace.tables import change_stream, lifecycle, schema
from tailrace.tables.definition import Attribute, Column, Definition
from tailrace.tables.operations import FindTable
from tailrace.tables.value import Item
from tailrace.topics.topic import MODES, OPERATIONS

# The kinds of sources of terms: a constant; a value expression; a condition.
CONSTANT, VALUE, CONDITION = "constant", "value", "condition"

# -- tables


def create_table(execute: Execute, statement: ast.CreateTableStatement) -> Result:
    kinds = {column.name: column.kind for column in statement.columns}
    for name in statement.key:
        if kinds[name] not in KEY_TYPES:
            raise Invalid(
                f"key column {name!r} is {kinds[name]}; a key column must be {', '.join(KEY_TYPES)}", code="WRONG_TYPE"
            )
    if statement.ttl is not None and kinds.get(statement.ttl) not in ("BIGINT", "DECIMAL"):
        raise Invalid(
            f"ttl = {statement.ttl!r} must name a BIGINT column with the time a row expires, in seconds since 1970",
            code="UNKNOWN_COLUMN" if statement.ttl not in kinds else "WRONG_TYPE",
        )
    spec = schema.TableSpec(
        name=statement.name,
        attributes=tuple(Attribute(name, KEY_TYPES[kinds[name]]) for name in statement.key),
        keys=tuple(
            schema.KeyElement(name, role)
            for name, role in zip(statement.key, (schema.HASH, schema.RANGE), strict=False)
        ),
        billing=schema.PAY_PER_REQUEST,
        stream=None if statement.stream is None else schema.StreamSpec(True, statement.stream),
    )
    columns = tuple(
        Column(column.name, column.kind, column.required or column.name in statement.key)
        for column in statement.columns
    )
    made = execute(DefineTable(spec, columns, statement.ttl, statement.if_not_exists))
    message = f"table {statement.name} created" if made.created else f"table {statement.name} already exists"
    return done(statement.title, message, created=made.created)


def drop_table(execute: Execute, statement: ast.DropTableStatement) -> Result:
    try:
        execute(lifecycle.DeleteTable(statement.name))
    except TableNotFound:
        if not statement.if_exists:
            raise
        return done(statement.title, f"table {statement.name} does not exist", dropped=False)
    except Invalid:  # protected against deletion
        name = statement.name
        if any(status.job.name == name and status.job.kind == views.KIND for status in execute(ListJobs())):
            problem = f"table {statement.name} belongs to a materialized view"
            raise Invalid(f"{problem}; use DROP MATERIALIZED VIEW {name}") from None
        raise
    return done(statement.title, f"table {statement.name} dropped", dropped=True)


def enable_stream(execute: Execute, statement: ast.EnableStreamStatement) -> Result:
    stream = execute(change_stream.EnableStream(statement.table, statement.view))
    return done(statement.title, f"change stream of table {statement.table} enabled", label=stream.label)


def disable_stream(execute: Execute, statement: ast.DisableStreamStatement) -> Result:
    execute(change_stream.DisableStream(statement.table))
    return done(statement.title, f"change stream of table {statement.table} disabled; its records remain readable")


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
        (column.name, column.kind, not column.required, roles.get(column.name))
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
    names = statement.columns
    if names is None:
        if not definition.columns:
            raise Invalid(
                f"table {statement.table!r} has no declared columns; name the columns of the values: INSERT INTO "
                f"{statement.table} (a, b) VALUES (…)",
                code="COLUMNS_NEEDED",
            )
        names = tuple(columns)
        if len(statement.rows[0]) != len(names):
            raise Invalid(
                f"the rows have {counted(len(statement.rows[0]), 'value')}, but table {statement.table!r} has "
                f"{counted(len(names), 'column')}: {', '.join(names)}",
                code="WRONG_COUNT",
            )
    items: list[Item] = []
    for number, values in enumerate(statement.rows, start=1):
        try:
            items.append(
                row(
                    definition, columns, {name: _constant_value(each) for name, each in zip(names, values, strict=True)}
                )
            )
        except Invalid as error:
            if len(statement.rows) > 1 and not hasattr(error, "line"):
                raise Invalid(f"row {number}: {error}", code=error.code) from None
            raise
    written = execute(InsertRows(definition.name, definition.uuid, tuple(items), statement.replace))
    return done(statement.title, counted(written.rows, "row") + " inserted", written.rows, sequence=written.sequence)


def update(execute: Execute, statement: ast.UpdateStatement) -> Result:
    definition = execute(FindTable(statement.table))
    columns = columns_of(definition)
    sets: list[tuple[str, RowTerm]] = []
    for name, value in statement.sets:
        if name in definition.keys:
            raise Invalid(
                f"column {name!r} is part of the key and cannot be set; delete the row and insert another",
                code="KEY_COLUMN",
            )
        if definition.columns and name not in columns:
            raise unknown(definition.name, name, columns)
        if isinstance(value, ast.Constant):
            typed(columns.get(name), name, value.value)  # an error must not depend on whether the row exists
        sets.append((name, _term(name, value, definition)))
    key, conditions = _where_key(definition, statement.where, statement.title)
    if key is None:
        return done(statement.title, "0 rows updated", 0, sequence=None)
    written = execute(UpdateRow(definition.name, definition.uuid, key, conditions, sets=tuple(sets)))
    return done(statement.title, counted(written.rows, "row") + " updated", written.rows, sequence=written.sequence)


def delete(execute: Execute, statement: ast.DeleteStatement) -> Result:
    definition = execute(FindTable(statement.table))
    key, conditions = _where_key(definition, statement.where, statement.title)
    if key is None:
        return done(statement.title, "0 rows deleted", 0, sequence=None)
    written = execute(DeleteRow(definition.name, definition.uuid, key, conditions))
    return done(statement.title, counted(written.rows, "row") + " deleted", written.rows, sequence=written.sequence)


def _where_key(
    definition: Definition, where: Sequence[ast.Conjunct], title: str
) -> tuple[Item | None, tuple[RowTerm, ...]]:
    """The key in WHERE, None if no row can have it, and the remaining conditions."""
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
        condition = " AND ".join(f"{name} = …" for name in definition.keys)
        raise Invalid(
            f"{title} needs the key of the row, but WHERE has no value for {missing[0]!r}; write WHERE {condition}",
            code="KEY_NEEDED",
        )
    conditions = tuple([_condition(each, definition) for each in rest])
    key: Item = {}
    for name in definition.keys:
        value = _constant_value(given[name])
        if value is None:
            return None, ()  # nothing equals NULL
        stored = typed(columns[name], name, value)
        assert stored is not None
        key[name] = stored
    return key, conditions


def _constant_value(value: ast.Value) -> Any:
    """The value of an expression that reads no row."""
    if isinstance(value, ast.Constant):
        return value.value
    compiled = scalar.exact_value(value.text, columns=(), line=value.line, column=value.column)
    return compiled.of(None, None, value.params)


def _term(name: str, value: ast.Value, definition: Definition) -> RowTerm:
    """The term that computes the value of a column from a row."""
    if isinstance(value, ast.Constant):
        return _constant_term(value.value)
    columns = definition.column_kinds
    compiled = scalar.exact_value(value.text, columns=columns, line=value.line, column=value.column)
    _check_sides(compiled, value)
    return _value_term(name, compiled, (VALUE, name, value.text, value.params, columns))


def _condition(value: ast.Expression, definition: Definition) -> RowTerm:
    """The term that tells whether the condition is true for a row."""
    columns = definition.column_kinds
    try:
        compiled = _compiled(value.text, columns)
    except ExpressionError:  # compile again with the location, for the error
        origin = TextOrigin(value.line, value.column)
        tree = read(value.text, origin)
        compiled = scalar.compile_condition(tree, columns=columns, line=value.line, column=value.column)
    _check_sides(compiled, value)
    return _condition_term(compiled, (CONDITION, value.text, value.params, columns))


def term_of(source: Sequence[Any]) -> RowTerm:
    """The term that was compiled from this, compiled again: in another process, for example."""
    kind, *given = source
    if kind == CONSTANT:
        return _constant_term(given[0])
    columns = None if given[-1] is None else tuple((name, kind) for name, kind in given[-1])
    if kind == CONDITION:
        text, params, _ = given
        return _condition_term(_compiled(text, columns), (CONDITION, text, tuple(params), columns))
    assert kind == VALUE, f"a term has no source of kind {kind!r}"
    name, text, params, _ = given
    compiled = scalar.exact_value(text, columns=columns)
    return _value_term(name, compiled, (VALUE, name, text, tuple(params), columns))


def _constant_term(constant: Any) -> RowTerm:
    return RowTerm(lambda row: constant, (CONSTANT, constant))


def _value_term(name: str, compiled: scalar.ValueExpression, source: tuple[Any, ...]) -> RowTerm:
    of, params = compiled.of, source[-2]

    def computed(row: Item) -> Any:
        try:
            return of(row, None, params)
        except scalar.NoResult as error:
            raise scalar.NoResult(f"column {name!r}: {error}; nothing was changed") from None

    return RowTerm(computed, source)


def _condition_term(compiled: scalar.Condition, source: tuple[Any, ...]) -> RowTerm:
    true, params = compiled.true, source[-2]
    return RowTerm(lambda row: true(row, None, params), source)


@lru_cache(maxsize=1_024)
def _compiled(text: str, columns: tuple[tuple[str, str], ...] | None) -> scalar.Condition:
    return scalar.compile_condition(read(text, TextOrigin()), columns=columns)


def _check_sides(compiled: scalar.Scalar, value: ast.Expression) -> None:
    if "old" in compiled.sides or "new" in compiled.sides:
        raise ExpressionError(
            "OLD and NEW are only allowed in the sources of topics; here, write the name of the column alone",
            line=value.line,
            column=value.column,
        )


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateTableStatement: create_table,
    ast.DropTableStatement: drop_table,
    ast.EnableStreamStatement: enable_stream,
    ast.DisableStreamStatement: disable_stream,
    ast.InsertStatement: insert,
    ast.UpdateStatement: update,
    ast.DeleteStatement: delete,
    ast.ShowTablesStatement: show_tables,
    ast.DescribeTableStatement: describe_table,
}

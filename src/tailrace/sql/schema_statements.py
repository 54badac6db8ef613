"""Execution of statements that define tables: CREATE, ALTER and DROP of tables, columns and indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType

from tailrace import scalar
from tailrace.errors import Conflict, Invalid, TableNotFound
from tailrace.jobs import view as views
from tailrace.jobs.queries import ListJobs
from tailrace.scalar.problem import ExpressionError
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done
from tailrace.sql.schema_commands import (
    AddColumn,
    AlterConstraint,
    DefineTable,
    DropColumn,
    RenameColumn,
    SetTable,
    check_texts,
)
from tailrace.sql.values import KEY_TYPES, StatementTime, columns_of, default_value, resolved, typed, unknown
from tailrace.tables import change_stream, lifecycle, schema
from tailrace.tables.definition import Attribute, Column
from tailrace.tables.operations import FindTable
from tailrace.tables.value import Value


def create_table(execute: Execute, statement: ast.CreateTableStatement) -> Result:
    kinds = {column.name: column.kind for column in statement.columns}
    settings = statement.settings
    for name in statement.key:
        if kinds[name] not in KEY_TYPES:
            raise Invalid(
                f"key column {name!r} is {kinds[name]}; a key column must be {', '.join(KEY_TYPES)}", code="WRONG_TYPE"
            )
    ttl = None if settings.ttl is UNSET else settings.ttl
    if ttl is not None:
        _check_ttl(kinds, ttl)
    stream = None if settings.stream is UNSET else settings.stream
    retention = (settings.retention_seconds, settings.retention_records)
    if stream is None and retention != (UNSET, UNSET):
        raise Invalid("retention_seconds and retention_records are of the change stream; write stream = true as well")
    spec = schema.TableSpec(
        name=statement.name,
        attributes=tuple(Attribute(name, KEY_TYPES[kinds[name]]) for name in statement.key),
        keys=tuple(
            schema.KeyElement(name, role)
            for name, role in zip(statement.key, (schema.HASH, schema.RANGE), strict=False)
        ),
        billing=schema.PAY_PER_REQUEST,
        stream=None if stream is None else schema.StreamSpec(True, stream),
    )
    columns = tuple(_declared(each, required=each.required or each.name in statement.key) for each in statement.columns)
    texts = tuple(kinds.items())
    checks = _named_checks(statement.name, [*[c for each in statement.columns for c in each.checks], *statement.checks])
    made = execute(DefineTable(spec, columns, ttl, statement.if_not_exists, check_texts(texts, checks), *retention))
    message = f"table {statement.name} created" if made.created else f"table {statement.name} already exists"
    return done(statement.title, message, created=made.created)


def _check_ttl(kinds: dict[str, str], ttl: str) -> None:
    if kinds.get(ttl) not in ("BIGINT", "DECIMAL"):
        raise Invalid(
            f"ttl = {ttl!r} must name a BIGINT column with the time a row expires, in seconds since 1970",
            code="UNKNOWN_COLUMN" if ttl not in kinds else "WRONG_TYPE",
        )


def _declared(spec: ast.ColumnSpec, *, required: bool) -> Column:
    default = None if spec.default is None else spec.default.text
    column = Column(spec.name, spec.kind, required, spec.length, default, spec.digits, spec.scale)
    _filled(column, spec.default)  # raises if the default is not valid
    return column


def _filled(column: Column, default: ast.Expression | None) -> Value | None:
    """The value of a column's default."""
    if default is None:
        return None
    compiled = scalar.stored_value(default.text, columns=(), line=default.line, column=default.column, exact=True)
    if not compiled.constant:
        raise ExpressionError("a default cannot read columns", line=default.line, column=default.column)
    given = default_value(column, StatementTime())
    return None if given is None else typed(column, column.name, given)


def _named_checks(table: str, checks: Sequence[ast.CheckSpec]) -> list[tuple[str, Any]]:
    return [(each.name or f"{table}_check", each.condition) for each in checks]


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


def add_column(execute: Execute, statement: ast.AddColumnStatement) -> Result:
    definition = execute(FindTable(statement.table))
    spec = statement.added
    column = _declared(spec, required=spec.required)
    kinds = (*(definition.expression_kinds or ()), (spec.name, spec.kind))
    checks = check_texts(kinds, _named_checks(definition.name, spec.checks))
    try:
        rows = execute(AddColumn(definition.name, definition.uuid, column, checks, _filled(column, spec.default)))
    except Conflict as error:
        if error.code != "COLUMN_EXISTS" or not statement.if_not_exists:
            raise
        return done(statement.title, f"column {spec.name} already exists", added=False)
    return done(statement.title, f"column {spec.name} added, {counted(rows, 'row')} changed", added=True)


def drop_column(execute: Execute, statement: ast.DropColumnStatement) -> Result:
    definition = execute(FindTable(statement.table))
    name = resolved(definition, statement.name)
    if statement.if_exists and definition.columns and name not in columns_of(definition):
        return done(statement.title, f"column {statement.name} does not exist", dropped=False)
    rows = execute(DropColumn(definition.name, definition.uuid, name))
    return done(statement.title, f"column {name} dropped, {counted(rows, 'row')} changed", dropped=True)


def rename_column(execute: Execute, statement: ast.RenameColumnStatement) -> Result:
    definition = execute(FindTable(statement.table))
    name = resolved(definition, statement.name)
    rows = execute(RenameColumn(definition.name, definition.uuid, name, statement.to))
    return done(statement.title, f"column {name} renamed to {statement.to}, {counted(rows, 'row')} changed")


def alter_constraint(execute: Execute, statement: ast.ConstraintStatement) -> Result:
    definition = execute(FindTable(statement.table))
    condition = statement.condition
    if condition is None:
        if statement.if_exists and all(name != statement.name for name, _ in definition.checks):
            return done(statement.title, f"constraint {statement.name} does not exist", dropped=False)
        execute(AlterConstraint(definition.name, definition.uuid, statement.name))
        return done(statement.title, f"constraint {statement.name} dropped", dropped=True)
    check_texts(definition.expression_kinds or (), [(statement.name, condition)])
    execute(AlterConstraint(definition.name, definition.uuid, statement.name, condition.text))
    return done(statement.title, "constraint added", added=True)


def set_table(execute: Execute, statement: ast.SetTableStatement) -> Result:
    definition = execute(FindTable(statement.table))
    settings = statement.settings
    ttl: str | UnsetType | None = settings.ttl
    if isinstance(ttl, str):
        ttl = resolved(definition, ttl)
        if definition.columns:
            _check_ttl({column.name: column.kind for column in definition.columns}, ttl)
    execute(SetTable(definition.name, settings.stream, ttl, settings.retention_seconds, settings.retention_records))
    return done(statement.title, f"table {definition.name} changed")


def create_index(execute: Execute, statement: ast.CreateIndexStatement) -> Result:
    definition = execute(FindTable(statement.table))
    if statement.name in definition.by_name and statement.if_not_exists:
        return done(statement.title, f"index {statement.name} already exists", created=False)
    names = tuple(resolved(definition, name) for name in statement.columns)
    columns = columns_of(definition)
    attributes: list[Attribute] = []
    for name in names:
        if name in definition.kinds:
            attributes.append(Attribute(name, definition.kinds[name]))
        elif definition.columns and name not in columns:
            raise unknown(definition.name, name, columns)
        elif not definition.columns:
            attributes.append(Attribute(name, "S"))
        elif columns[name].kind not in KEY_TYPES:
            raise Invalid(
                f"column {name!r} is {columns[name].kind}; an indexed column must be {', '.join(KEY_TYPES)}",
                code="WRONG_TYPE",
            )
        else:
            attributes.append(Attribute(name, KEY_TYPES[columns[name].kind]))
    spec = schema.IndexSpec(
        name=statement.name,
        keys=tuple(
            schema.KeyElement(name, role) for name, role in zip(names, (schema.HASH, schema.RANGE), strict=False)
        ),
        projection=schema.ProjectionSpec("ALL"),
    )
    known = tuple(each for each in attributes if each.name not in definition.kinds)
    every = (*definition.attributes, *known)
    changes = schema.TableChanges(attributes=every, indexes=(schema.IndexChange(create=spec),))
    execute(lifecycle.UpdateTable(definition.name, changes))
    return done(statement.title, f"index {statement.name} created; existing rows are being added", created=True)


def drop_index(execute: Execute, statement: ast.DropIndexStatement) -> Result:
    definition = execute(FindTable(statement.table))
    if statement.name not in definition.by_name and statement.if_exists:
        return done(statement.title, f"index {statement.name} does not exist", dropped=False)
    changes = schema.TableChanges(indexes=(schema.IndexChange(delete=statement.name),))
    execute(lifecycle.UpdateTable(definition.name, changes))
    return done(statement.title, f"index {statement.name} dropped", dropped=True)


def enable_stream(execute: Execute, statement: ast.EnableStreamStatement) -> Result:
    stream = execute(change_stream.EnableStream(statement.table, statement.view))
    return done(statement.title, f"change stream of table {statement.table} enabled", label=stream.label)


def disable_stream(execute: Execute, statement: ast.DisableStreamStatement) -> Result:
    execute(change_stream.DisableStream(statement.table))
    return done(statement.title, f"change stream of table {statement.table} disabled; its records remain readable")


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateTableStatement: create_table,
    ast.DropTableStatement: drop_table,
    ast.AddColumnStatement: add_column,
    ast.DropColumnStatement: drop_column,
    ast.RenameColumnStatement: rename_column,
    ast.ConstraintStatement: alter_constraint,
    ast.SetTableStatement: set_table,
    ast.CreateIndexStatement: create_index,
    ast.DropIndexStatement: drop_index,
    ast.EnableStreamStatement: enable_stream,
    ast.DisableStreamStatement: disable_stream,
}

"""Parsed statements: one frozen struct for each kind of statement.

`title` is the statement's name in results and in the reference. `line` and `column` count from 1 and locate the
statement's first word.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all statements."""

    title: ClassVar[str] = ""

    line: int = 1
    column: int = 1


# -- parts


class Constant(msgspec.Struct, frozen=True):
    """The value of a literal or of a parameter."""

    value: Any


class Expression(msgspec.Struct, frozen=True):
    """The text of an expression for `tailrace.scalar`, its location, and its parameters."""

    text: str
    line: int
    column: int
    params: tuple[Any, ...] = ()


class DefaultValue(msgspec.Struct, frozen=True):
    """The word DEFAULT where a value is assigned."""


Value: TypeAlias = Constant | Expression
Assigned: TypeAlias = Value | DefaultValue


class Conjunct(msgspec.Struct, frozen=True):
    """One of the conditions joined by AND. `column` is set if it reads `column = value`, possibly a part of the key."""

    whole: Expression
    column: str | None = None
    value: Value | None = None


class Secret:
    """A password. Its text is never part of its repr, so it does not end up in logs."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret(***)"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The topic settings of WITH and SET; None resets a setting."""

    alias: str | UnsetType | None = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    dead_letter: str | UnsetType | None = UNSET


class StartClause(msgspec.Struct, frozen=True):
    """The position to start at: `at` is an offset, or milliseconds since 1970."""

    kind: str = "earliest"  # earliest, latest, offset, timestamp
    at: int = 0


class ProducerClause(msgspec.Struct, frozen=True):
    id: str
    epoch: int
    sequence: int


# -- topics


class CreateTopicStatement(Statement, frozen=True, kw_only=True):
    title = "CREATE TOPIC"

    name: str
    if_not_exists: bool = False
    partitions: int = 1
    settings: TopicSettings = TopicSettings()


class DropTopicStatement(Statement, frozen=True, kw_only=True):
    title = "DROP TOPIC"

    name: str
    if_exists: bool = False


class AddSourceStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC ADD SOURCE"

    topic: str
    table: str
    events: tuple[int, ...]  # 0 insert, 1 update, 2 delete
    name: str | None = None
    replace: bool = False
    where: Expression | None = None
    partition_by: Expression | None = None
    mode: int = 0  # 0 key, 1 full, 2 diff
    backfill: bool = False


class DropSourceStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC DROP SOURCE"

    topic: str
    table: str
    name: str | None = None
    events: tuple[int, ...] | None = None


class SetTopicStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC SET"

    name: str
    settings: TopicSettings


class SetAliasStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC SET ALIAS"

    name: str
    alias: str | None
    force: bool = False


class AddPartitionsStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC SET PARTITIONS"

    name: str
    partitions: int  # in all


class ClearTopicStatement(Statement, frozen=True, kw_only=True):
    title = "CLEAR TOPIC"

    name: str


class PublishStatement(Statement, frozen=True, kw_only=True):
    title = "PUBLISH"

    topic: str
    payloads: tuple[bytes, ...]
    partition: int | None = None
    key: bytes | None = None
    producer: ProducerClause | None = None


class ConsumeStatement(Statement, frozen=True, kw_only=True):
    title = "CONSUME"

    topic: str
    group: str | None = None
    partition: int | None = 0  # None: any
    start: StartClause = StartClause()
    limit: int = 100
    consumer: str = ""
    visibility_ms: int | None = None


class LeaseStatement(Statement, frozen=True, kw_only=True):
    """The base of ACK, NACK and EXTEND: statements about messages that a consumer has leased."""

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None


class AckStatement(LeaseStatement, frozen=True, kw_only=True):
    title = "ACK"

    upto: int | None = None
    offsets: tuple[int, ...] = ()


class NackStatement(LeaseStatement, frozen=True, kw_only=True):
    title = "NACK"

    first: int | None = None
    upto: int | None = None
    delay_ms: int = 0


class ExtendStatement(LeaseStatement, frozen=True, kw_only=True):
    title = "EXTEND"

    visibility_ms: int


class ResetGroupStatement(Statement, frozen=True, kw_only=True):
    title = "RESET CONSUMER GROUP"

    topic: str
    group: str
    to: StartClause
    partition: int | None = None  # None: all


class DropGroupStatement(Statement, frozen=True, kw_only=True):
    title = "DROP CONSUMER GROUP"

    topic: str
    group: str


class ShowTopicsStatement(Statement, frozen=True, kw_only=True):
    title = "SHOW TOPICS"


class ShowGroupsStatement(Statement, frozen=True, kw_only=True):
    title = "SHOW CONSUMER GROUPS"

    topic: str | None = None


class DescribeTopicStatement(Statement, frozen=True, kw_only=True):
    title = "DESCRIBE TOPIC"

    name: str


# -- tables


class CheckSpec(msgspec.Struct, frozen=True):
    """A CHECK; without a name it gets one."""

    name: str
    condition: Expression


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of WITH and SET; None resets one."""

    stream: str | UnsetType | None = UNSET  # the view
    ttl: str | UnsetType | None = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_records: int | UnsetType | None = UNSET


class ColumnSpec(msgspec.Struct, frozen=True):
    name: str
    kind: str  # TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB, JSON, TIMESTAMP, DATE or UUID
    required: bool = False
    length: int | None = None
    default: Expression | None = None
    checks: tuple[CheckSpec, ...] = ()
    digits: int | None = None  # of DECIMAL(digits, scale)
    scale: int = 0


class CreateTableStatement(Statement, frozen=True, kw_only=True):
    title = "CREATE TABLE"

    name: str
    columns: tuple[ColumnSpec, ...]
    key: tuple[str, ...]
    if_not_exists: bool = False
    settings: TableSettings = TableSettings()
    checks: tuple[CheckSpec, ...] = ()


class DropTableStatement(Statement, frozen=True, kw_only=True):
    title = "DROP TABLE"

    name: str
    if_exists: bool = False


class AddColumnStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE ADD COLUMN"

    table: str
    added: ColumnSpec
    if_not_exists: bool = False


class DropColumnStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE DROP COLUMN"

    table: str
    name: str
    if_exists: bool = False


class RenameColumnStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE RENAME COLUMN"

    table: str
    name: str
    to: str


class ConstraintStatement(Statement, frozen=True, kw_only=True):
    """ADD CONSTRAINT, with a condition; else DROP CONSTRAINT."""

    title = "ALTER TABLE CONSTRAINT"

    table: str
    name: str
    condition: Expression | None = None
    if_exists: bool = False


class SetTableStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE SET"

    table: str
    settings: TableSettings


class CreateIndexStatement(Statement, frozen=True, kw_only=True):
    title = "CREATE INDEX"

    name: str
    table: str
    columns: tuple[str, ...]
    if_not_exists: bool = False


class DropIndexStatement(Statement, frozen=True, kw_only=True):
    title = "DROP INDEX"

    name: str
    table: str
    if_exists: bool = False


class EnableStreamStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE ENABLE STREAM"

    table: str
    view: str


class DisableStreamStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE DISABLE STREAM"

    table: str


class ReturnedColumn(msgspec.Struct, frozen=True):
    """A column of RETURNING; without an expression it is *, all columns."""

    name: str = "*"
    value: Value | None = None


class ConflictClause(msgspec.Struct, frozen=True):
    """ON CONFLICT: what happens to a row whose key is taken. Without `sets`, nothing."""

    columns: tuple[str, ...] = ()  # the key, if it is named
    sets: tuple[tuple[str, Assigned], ...] = ()
    where: Expression | None = None


class InsertStatement(Statement, frozen=True, kw_only=True):
    """`select` instead of `rows`: the rows that it gives."""

    title = "INSERT"

    table: str
    rows: tuple[tuple[Assigned, ...], ...] = ()
    select: Expression | None = None
    columns: tuple[str, ...] | None = None
    replace: bool = False
    conflict: ConflictClause | None = None
    returning: tuple[ReturnedColumn, ...] = ()


class UpdateStatement(Statement, frozen=True, kw_only=True):
    title = "UPDATE"

    table: str
    sets: tuple[tuple[str, Assigned], ...]
    where: tuple[Conjunct, ...]
    returning: tuple[ReturnedColumn, ...] = ()


class DeleteStatement(Statement, frozen=True, kw_only=True):
    title = "DELETE"

    table: str
    where: tuple[Conjunct, ...]
    returning: tuple[ReturnedColumn, ...] = ()


class TruncateStatement(Statement, frozen=True, kw_only=True):
    title = "TRUNCATE"

    table: str


class ShowTablesStatement(Statement, frozen=True, kw_only=True):
    title = "SHOW TABLES"


class DescribeTableStatement(Statement, frozen=True, kw_only=True):
    title = "DESCRIBE TABLE"

    name: str


# -- materialized views


class CreateViewStatement(Statement, frozen=True, kw_only=True):
    title = "CREATE MATERIALIZED VIEW"

    name: str
    select: Expression
    if_not_exists: bool = False


class DropViewStatement(Statement, frozen=True, kw_only=True):
    title = "DROP MATERIALIZED VIEW"

    name: str
    if_exists: bool = False


class ShowViewsStatement(Statement, frozen=True, kw_only=True):
    title = "SHOW MATERIALIZED VIEWS"


class RefreshViewStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER MATERIALIZED VIEW"

    name: str


class ExplainViewStatement(Statement, frozen=True, kw_only=True):
    title = "EXPLAIN MATERIALIZED VIEW"

    name: str


# -- users


class CreateUserStatement(Statement, frozen=True, kw_only=True):
    title = "CREATE USER"

    name: str
    password: Secret
    if_not_exists: bool = False
    role: str = "user"
    access: tuple[str, ...] | None = None


class AlterUserStatement(Statement, frozen=True, kw_only=True):
    title = "ALTER USER"

    name: str
    password: Secret | None = None
    role: str | None = None
    access: tuple[str, ...] | UnsetType | None = UNSET  # None: no restriction
    disabled: bool | None = None


class DropUserStatement(Statement, frozen=True, kw_only=True):
    title = "DROP USER"

    name: str
    if_exists: bool = False


class ShowUsersStatement(Statement, frozen=True, kw_only=True):
    title = "SHOW USERS"


# -- queries


class ExplainStatement(Statement, frozen=True, kw_only=True):
    title = "EXPLAIN"

    of: Statement


class SelectStatement(Statement, frozen=True, kw_only=True):
    """A query that DuckDB runs; `text` is the statement as written."""

    title = "SELECT"

    text: str
    params: tuple[Any, ...] = ()


# -- transactions


class BeginStatement(Statement, frozen=True, kw_only=True):
    title = "BEGIN"


class CommitStatement(Statement, frozen=True, kw_only=True):
    title = "COMMIT"


class RollbackStatement(Statement, frozen=True, kw_only=True):
    title = "ROLLBACK"

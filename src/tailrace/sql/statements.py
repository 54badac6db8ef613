"""What a statement says, once it is read: one frozen value for each kind of statement.

`title` is what its result is called, and what the reference calls it. Places (`line`, `column`) count from 1 and
are those of the statement's first word.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all statements."""

    title: ClassVar[str] = ""

    line: int = 1
    column: int = 1


# -- parts


class Constant(msgspec.Struct, frozen=True):
    """A value that was written as it is, or given as a parameter."""

    value: Any


class Expression(msgspec.Struct, frozen=True):
    """A piece of text that `tailrace.scalar` reads, where it stands, and the parameters in it."""

    text: str
    line: int
    column: int
    params: tuple[Any, ...] = ()


Value: TypeAlias = Constant | Expression


class Conjunct(msgspec.Struct, frozen=True):
    """One of the conditions that AND joins. `column` is set where it says `column = value`: maybe a part of the key."""

    whole: Expression
    column: str | None = None
    value: Value | None = None


class Secret:
    """A password: it shows itself to nobody who does not ask by name."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret(***)"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What WITH and SET can say of a topic; None takes a setting back."""

    alias: str | UnsetType | None = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    max_attempts: int | UnsetType | None = UNSET
    dead_letter: str | UnsetType | None = UNSET


class From(msgspec.Struct, frozen=True):
    """Where to begin: `at` is an offset, or milliseconds since 1970."""

    kind: str = "earliest"  # earliest, latest, offset, timestamp
    at: int = 0


class Producer(msgspec.Struct, frozen=True):
    id: str
    epoch: int
    sequence: int


# -- topics


class CreateTopic(Statement, frozen=True, kw_only=True):
    title = "CREATE TOPIC"

    name: str
    if_not_exists: bool = False
    partitions: int = 1
    settings: Settings = Settings()


class DropTopic(Statement, frozen=True, kw_only=True):
    title = "DROP TOPIC"

    name: str
    if_exists: bool = False


class AddSource(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC ADD SOURCE"

    topic: str
    table: str
    event: int  # 0 insert, 1 update, 2 delete
    where: Expression | None = None
    partition_by: Expression | None = None
    mode: int = 0  # 0 key, 1 full, 2 diff


class DropSource(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC DROP SOURCE"

    topic: str
    table: str
    event: int | None = None


class SetTopic(Statement, frozen=True, kw_only=True):
    title = "ALTER TOPIC SET"

    name: str
    settings: Settings


class ClearTopic(Statement, frozen=True, kw_only=True):
    title = "CLEAR TOPIC"

    name: str


class Publish(Statement, frozen=True, kw_only=True):
    title = "PUBLISH"

    topic: str
    payloads: tuple[bytes, ...]
    partition: int | None = None
    key: bytes | None = None
    producer: Producer | None = None


class Consume(Statement, frozen=True, kw_only=True):
    title = "CONSUME"

    topic: str
    group: str | None = None
    partition: int | None = 0  # None: any
    start: From = From()
    limit: int = 100
    consumer: str = ""
    visibility_ms: int | None = None


class Holding(Statement, frozen=True, kw_only=True):
    """What a consumer says of messages that it holds."""

    topic: str
    group: str
    partition: int = 0
    consumer: str = ""
    lease: str | None = None


class Ack(Holding, frozen=True, kw_only=True):
    title = "ACK"

    upto: int


class Nack(Holding, frozen=True, kw_only=True):
    title = "NACK"

    first: int | None = None
    upto: int | None = None
    delay_ms: int = 0


class Extend(Holding, frozen=True, kw_only=True):
    title = "EXTEND"

    visibility_ms: int


class ResetGroup(Statement, frozen=True, kw_only=True):
    title = "RESET CONSUMER GROUP"

    topic: str
    group: str
    to: From
    partition: int | None = None  # None: all


class DropGroup(Statement, frozen=True, kw_only=True):
    title = "DROP CONSUMER GROUP"

    topic: str
    group: str


class ShowTopics(Statement, frozen=True, kw_only=True):
    title = "SHOW TOPICS"


class ShowGroups(Statement, frozen=True, kw_only=True):
    title = "SHOW CONSUMER GROUPS"

    topic: str | None = None


class DescribeTopic(Statement, frozen=True, kw_only=True):
    title = "DESCRIBE TOPIC"

    name: str


# -- tables


class ColumnSpec(msgspec.Struct, frozen=True):
    name: str
    kind: str  # TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB or JSON
    required: bool = False


class CreateTable(Statement, frozen=True, kw_only=True):
    title = "CREATE TABLE"

    name: str
    columns: tuple[ColumnSpec, ...]
    key: tuple[str, ...]
    if_not_exists: bool = False
    stream: str | None = None  # the view
    ttl: str | None = None


class DropTable(Statement, frozen=True, kw_only=True):
    title = "DROP TABLE"

    name: str
    if_exists: bool = False


class EnableStream(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE ENABLE STREAM"

    table: str
    view: str


class DisableStream(Statement, frozen=True, kw_only=True):
    title = "ALTER TABLE DISABLE STREAM"

    table: str


class Insert(Statement, frozen=True, kw_only=True):
    title = "INSERT"

    table: str
    rows: tuple[tuple[Value, ...], ...]
    columns: tuple[str, ...] | None = None
    replace: bool = False


class Update(Statement, frozen=True, kw_only=True):
    title = "UPDATE"

    table: str
    sets: tuple[tuple[str, Value], ...]
    where: tuple[Conjunct, ...]


class Delete(Statement, frozen=True, kw_only=True):
    title = "DELETE"

    table: str
    where: tuple[Conjunct, ...]


class ShowTables(Statement, frozen=True, kw_only=True):
    title = "SHOW TABLES"


class DescribeTable(Statement, frozen=True, kw_only=True):
    title = "DESCRIBE TABLE"

    name: str


# -- materialized views


class CreateView(Statement, frozen=True, kw_only=True):
    title = "CREATE MATERIALIZED VIEW"

    name: str
    select: Expression
    if_not_exists: bool = False


class DropView(Statement, frozen=True, kw_only=True):
    title = "DROP MATERIALIZED VIEW"

    name: str
    if_exists: bool = False


class ShowViews(Statement, frozen=True, kw_only=True):
    title = "SHOW MATERIALIZED VIEWS"


# -- users


class CreateUser(Statement, frozen=True, kw_only=True):
    title = "CREATE USER"

    name: str
    password: Secret
    if_not_exists: bool = False
    role: str = "user"
    access: tuple[str, ...] | None = None


class AlterUser(Statement, frozen=True, kw_only=True):
    title = "ALTER USER"

    name: str
    password: Secret | None = None
    role: str | None = None
    access: tuple[str, ...] | UnsetType | None = UNSET  # None: no restriction
    disabled: bool | None = None


class DropUser(Statement, frozen=True, kw_only=True):
    title = "DROP USER"

    name: str
    if_exists: bool = False


class ShowUsers(Statement, frozen=True, kw_only=True):
    title = "SHOW USERS"


# -- questions


class Select(Statement, frozen=True, kw_only=True):
    """A question that DuckDB answers; `text` is the statement as it was written."""

    title = "SELECT"

    text: str
    params: tuple[Any, ...] = ()

"""The definition of a table, and the rows of tables.

A *space* is a number that identifies a set of ordered keys: a table's items have one, and so has each of its indexes.
Numbers are never reused, so the rows of a dropped table or index can be removed later, in small steps.

A `Definition` is stored as one blob and decoded once; it is immutable, and a change creates a new one.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import TableNotFound
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable

CREATING: Final = "CREATING"
ACTIVE: Final = "ACTIVE"


TEXTS: Final = {"TIMESTAMP": "TEXT", "DATE": "TEXT", "UUID": "TEXT"}  # declared kinds that are stored as text


class Attribute(msgspec.Struct, frozen=True):
    """A key attribute of the table or of an index."""

    name: str
    kind: str  # S, N or B


class Throughput(msgspec.Struct, frozen=True):
    """Provisioned capacity: stored and reported, never enforced."""

    read: int = 0
    write: int = 0
    increased_ms: int | None = None
    decreased_ms: int | None = None
    decreases: int = 0  # today


class Projection(msgspec.Struct, frozen=True):
    kind: str = "ALL"  # ALL, KEYS_ONLY or INCLUDE
    attributes: tuple[str, ...] = ()


class IndexDefinition(msgspec.Struct, frozen=True):
    """A secondary index. Several hash or range attributes form one composite key."""

    name: str
    space: int
    local: bool
    hash: tuple[str, ...]
    range: tuple[str, ...] = ()
    projection: Projection = Projection()
    throughput: Throughput | None = None  # of a global index of a provisioned table
    on_demand: tuple[int, int] | None = None  # the maximum read and write units of an on-demand index
    warm: tuple[int, int] | None = None
    status: str = ACTIVE  # CREATING while existing items are added
    partial: bool = False  # an item that was there before it does not fit its key, and so is not in it


class StreamRef(msgspec.Struct, frozen=True):
    """The current change stream of a table."""

    label: str
    log: int
    view: str  # KEYS_ONLY, NEW_IMAGE, OLD_IMAGE or NEW_AND_OLD_IMAGES
    hidden: bool = False  # it was made for point-in-time recovery, and the DynamoDB API does not show it


class Recovery(msgspec.Struct, frozen=True):
    """Point-in-time recovery of a table."""

    since_ms: int
    days: int


class Column(msgspec.Struct, frozen=True):
    """A column declared in SQL. Writes of every API are checked against its constraints (`constraints.py`), and only
    those of SQL against other types."""

    name: str
    kind: str  # TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB, JSON, TIMESTAMP, DATE or UUID
    required: bool = False  # NOT NULL
    length: int | None = None  # of TEXT, at most; in characters
    default: str | None = None  # an expression, for rows that SQL inserts without a value
    digits: int | None = None  # of DECIMAL(digits, scale), at most
    scale: int = 0  # of these digits, after the point


class TopicRoute(msgspec.Struct, frozen=True):
    """A route of one kind of changes to a topic. It is part of the table's definition, so that a write has its routes
    at hand, and both change in one transaction."""

    topic: int
    event: int  # into change.EVENTS
    filter: str | None  # a condition in SQL; None: every change
    partition_by: str | None  # a value in SQL; None: the row's key
    mode: int  # 0 key, 1 full, 2 diff
    name: str | None = None  # unique within the topic, but for the events that share it
    backfill: int = 0  # while existing rows are sent: the space that marks those whose message was sent ahead of time


class Definition(msgspec.Struct, frozen=True, dict=True):
    """A table. `dict`: what is derived from it is cached on it, the compiled routes included."""

    name: str
    space: int  # of the items; also the number of the table
    uuid: str
    created_ms: int
    attributes: tuple[Attribute, ...]
    hash: str
    range: str | None = None
    indexes: tuple[IndexDefinition, ...] = ()
    billing: str = "PROVISIONED"  # or PAY_PER_REQUEST
    billing_ms: int | None = None  # when it became PAY_PER_REQUEST
    throughput: Throughput = Throughput()
    on_demand: tuple[int, int] | None = None
    warm: tuple[int, int] | None = None
    table_class: str | None = None
    protected: bool = False  # DeletionProtectionEnabled
    encryption: str | None = None  # the requested kind of SSE; encryption of the disk is up to the operator
    ttl: str | None = None  # the attribute with an item's expiry time
    ttl_space: int | None = None  # the order of items by expiry
    stream: StreamRef | None = None
    tags: dict[str, str] = {}
    columns: tuple[Column, ...] = ()  # none: any attribute is allowed
    routes: tuple[TopicRoute, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()  # CHECK constraints: their names and conditions
    partials_space: int | None = None  # of a view: the partial aggregates of its groups, under the keys of its rows
    copies: tuple[int, ...] = ()  # the spaces of copies that are being made of the table
    recovery: Recovery | None = None

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The type of each key attribute."""
        return {attribute.name: attribute.kind for attribute in self.attributes}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names of the primary key's attributes."""
        return (self.hash,) if self.range is None else (self.hash, self.range)

    @cached_property
    def by_name(self) -> dict[str, IndexDefinition]:
        return {index.name: index for index in self.indexes}

    @cached_property
    def routes_of(self) -> tuple[tuple[TopicRoute, ...], ...]:
        """The routes by event, in the order of change.EVENTS."""
        return tuple(tuple(route for route in self.routes if route.event == event) for event in range(3))

    @cached_property
    def backfilled(self) -> tuple[TopicRoute, ...]:
        """The routes that are being backfilled; they are concerned with every event."""
        return tuple(route for route in self.routes if route.backfill and route.event == 0)

    @cached_property
    def column_kinds(self) -> tuple[tuple[str, str], ...] | None:
        """The declared columns by name and the kind of their values; None: none are declared, any attribute is
        allowed."""
        return tuple((column.name, TEXTS.get(column.kind, column.kind)) for column in self.columns) or None

    @cached_property
    def expression_kinds(self) -> tuple[tuple[str, str], ...] | None:
        """As `column_kinds`, for expressions: there, times compare as times and UUIDs as UUIDs, not as texts."""
        return tuple((each.name, each.kind) for each in self.columns) or None

    @cached_property
    def plain(self) -> bool:
        """Whether a write touches only the item: there is no index, no expiry and no constraint, and no copy is being
        made."""
        return not self.indexes and self.ttl_space is None and not self.constrained and not self.copies

    @cached_property
    def digest(self) -> bytes:
        """What tells it from any other definition. Copies that are being made change no read and no write."""
        return blake2b(_encode(msgspec.structs.replace(self, copies=())), digest_size=16).digest()

    @cached_property
    def constrained(self) -> bool:
        """Whether an item may violate a constraint."""
        return bool(self.checks) or any(
            column.length is not None or column.kind in TEXTS or (column.required and column.name not in self.keys)
            for column in self.columns
        )


class TableRow(msgspec.Struct, frozen=True, gc=False):
    name: str
    space: int
    definition: bytes


class ItemRow(msgspec.Struct, frozen=True, gc=False):
    space: int
    key: bytes
    size: int  # as DynamoDB counts it
    body: bytes  # MessagePack of the typed item


class IndexRow(msgspec.Struct, frozen=True, gc=False):
    """An item's entry in an index: ordered by `key`, it points to the key `item` in the table's space."""

    space: int
    key: bytes
    item: bytes


class CountRow(msgspec.Struct, frozen=True, gc=False):
    """The size of a space; under the negated number of a change stream's log: the total of all its records ever."""

    space: int
    items: int
    bytes: int


class DroppedRow(msgspec.Struct, frozen=True):
    """A space whose rows are unreachable; the list of work of `PurgeSpace`."""

    space: int


class BackfillRow(msgspec.Struct, frozen=True):
    """An index, an expiry order or a route whose table had items before it; `after` is the last key that is done."""

    space: int  # of the index, or of the marks of the route
    owner: str  # the table's name
    after: bytes


class TokenRow(msgspec.Struct, frozen=True):
    """A client request token that was used, and the digest of its request."""

    token: str
    digest: bytes
    at_ms: int


class TokenAgeRow(msgspec.Struct, frozen=True):
    """Tokens by age, to forget them."""

    at_ms: int
    token: str


TABLES = StorageTable("tables", TableRow, key=("name",), cached=True)
ITEMS = StorageTable("items", ItemRow, key=("space", "key"), checked=True, recent_bytes=limits.RECENT_ITEMS_BYTES)
INDEX_ENTRIES = StorageTable("index_entries", IndexRow, key=("space", "key"))
COUNTS = StorageTable("counts", CountRow, key=("space",), cached=True)
DROPPED_SPACES = StorageTable("dropped_spaces", DroppedRow, key=("space",))
BACKFILLS = StorageTable("backfills", BackfillRow, key=("space",))
TOKENS = StorageTable("tokens", TokenRow, key=("token",))
TOKEN_AGES = StorageTable("token_ages", TokenAgeRow, key=("at_ms", "token"))

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Definition)


@lru_cache(maxsize=4096)
def _decode(body: bytes) -> Definition:
    return _decoder.decode(body)


def find(reader: Reader | Tx, name: str) -> Definition:
    """The table of this name."""
    row = reader.get(TABLES, name)
    if row is None:
        raise TableNotFound(name)
    return _decode(row.definition)


def save(tx: Tx, definition: Definition) -> None:
    """Store the definition of a table."""
    tx.put(TABLES, TableRow(definition.name, definition.space, _encode(definition)))


def decoded(row: TableRow) -> Definition:
    return _decode(row.definition)


def counted(reader: Reader | Tx, space: int) -> CountRow:
    """The number of items in a space, and their bytes."""
    return reader.get(COUNTS, space) or CountRow(space, 0, 0)


def add_count(tx: Tx, space: int, items: int, size: int) -> None:
    """Add to the number of items in a space, and to their bytes."""
    row = counted(tx, space)
    tx.put(COUNTS, CountRow(space, row.items + items, row.bytes + size))

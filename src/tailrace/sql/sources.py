"""The sources of a SELECT, loaded as Arrow: tables, their changes, the messages of topics, and the system tables.

A source is read only as far as the statement needs it: one partition if the key is given, the rows within a LIMIT, the
columns that are named. DuckDB evaluates every condition again, so reading too much is slow but never wrong. The rows,
bytes and time of one statement are limited.

All tables of a statement are read from one snapshot: in one transaction if they are small, else in pages
(`tables/export.py`), because a long transaction keeps SQLite from reusing its write-ahead log. Changes and messages are
immutable, so they are read in pages, up to the end of the log at the start of the statement.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from time import monotonic
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Query
from tailrace.errors import Error, Gone, Invalid, TooLarge, Unavailable
from tailrace.sql.arrow import (
    BIGINT,
    BLOB,
    BOOLEAN,
    MOMENT,
    TEXT,
    ItemTableBuilder,
    KnownColumn,
    RowTableBuilder,
    image,
)
from tailrace.sql.result import Execute
from tailrace.sql.system import SYSTEM_TABLES
from tailrace.storage.engine import Reader
from tailrace.tables import number, queries
from tailrace.tables.change_info import DescribeChangeStream
from tailrace.tables.change_reading import ReadChanges
from tailrace.tables.definition import ITEMS, Definition, find
from tailrace.tables.export import AFTER_ALL, Export, Exports, ExportStart
from tailrace.tables.key_condition import KeyCondition
from tailrace.tables.value import Item, Value, decode
from tailrace.topics.group import StartPoint
from tailrace.topics.queries import DescribeTopic, PartitionInfo, ReadTopic
from tailrace.topics.topic import MODES, OPERATIONS, DeliveredMessage

READ_ROWS_MAX: Final = 1_000_000  # of one statement, all in memory at once
READ_BYTES_MAX: Final = 128 * limits.MiB  # likewise, as Arrow; columns that are not needed do not count
SELECT_S: Final = 30.0  # how long a statement may take, including reading
_ROWS_AT_ONCE: Final = 256  # read between two checks of the budget
SYSTEM: Final = "system"
TABLE: Final = "table"
CHANGES: Final = "changes"
TOPIC: Final = "topic"
FUNCTIONS: Final = (CHANGES, TOPIC)

CHANGE_COLUMNS: Final = (
    ("sequence", BIGINT), ("index", BIGINT), ("last", BOOLEAN), ("event", TEXT), ("keys", TEXT), ("old", TEXT),
    ("new", TEXT), ("at", MOMENT), ("by", TEXT),
)  # fmt: skip
MESSAGE_COLUMNS: Final = (
    ("partition_id", BIGINT), ("offset", BIGINT), ("message_id", TEXT), ("source_table", TEXT), ("op", TEXT),
    ("ts", MOMENT), ("payload_mode", TEXT), ("payload", BLOB), ("value", TEXT), ("by", TEXT),
)  # fmt: skip
# Declared types, by key type, that DuckDB compares in the same way as the table's key.
_DECLARED_ALIKE: Final = {"S": ("TEXT",), "N": ("BIGINT", "DECIMAL"), "B": ("BLOB",)}


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of a column (in lower case) with a constant."""

    column: str
    op: str  # =, <, <=, > or >=
    value: Any


class SourceNeeds(msgspec.Struct, frozen=True):
    """How much of a source a statement needs. Every row of its result meets all of `where`."""

    where: tuple[Comparison, ...] = ()
    limit: int | None = None  # rows; applies only if the reader can evaluate all of `where`
    names: frozenset[str] | None = None  # columns, in lower case; None: all
    ensure: tuple[str, ...] = ()  # columns that a table without declared columns must have, if only with nulls


class Reference(msgspec.Struct, frozen=True):
    """A source that a statement names."""

    kind: str  # SYSTEM, TABLE, CHANGES or TOPIC
    name: str
    needs: SourceNeeds = SourceNeeds()


class ReadBudget:
    """The rows, bytes and time that a statement has left. It is over as well when `halted` is set."""

    def __init__(
        self,
        *,
        rows: int = READ_ROWS_MAX,
        bytes_: int = READ_BYTES_MAX,
        timeout_s: float = SELECT_S,
        halted: threading.Event | None = None,
    ) -> None:
        self._rows, self._rows_max = rows, rows
        self._bytes, self._bytes_max = bytes_, bytes_
        self.timeout_s = timeout_s
        self.deadline_s = monotonic() + timeout_s
        self.halted = halted if halted is not None else threading.Event()

    @property
    def over(self) -> bool:
        """Whether the statement must end now."""
        return self.halted.is_set() or monotonic() > self.deadline_s

    def spend(self, rows: int, size: int) -> None:
        """Count what was read; raises if it is too much, or took too long."""
        self._rows -= rows
        self._bytes -= size
        if self._rows < 0 or self._bytes < 0:
            most = f"{self._rows_max:,} rows" if self._rows < 0 else f"{self._bytes_max:,} bytes"
            raise TooLarge(
                f"the statement reads more than {most}; select by key, name only the columns you need, or use LIMIT",
                code="SELECT_TOO_LARGE",
            )
        if self.over:
            raise self.exceeded()

    def take(self, size: int) -> None:
        """Count memory."""
        self.spend(0, size)

    def exceeded(self) -> Unavailable:
        """The error for a statement that is over."""
        if self.halted.is_set():
            return Unavailable(
                "the statement was stopped: the server is stopping, or the client has disconnected", code="STOPPING"
            )
        return Unavailable(
            f"the statement took longer than {self.timeout_s:g} s and was stopped; select by key, or use LIMIT",
            code="SELECT_TIMEOUT",
        )


def load(execute: Execute, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    """The sources, in order; an error carries the source that it is about (`reference`)."""
    tables = [each for each in references if each.kind == TABLE]
    read = iter(_tables(execute, tables, budget) if tables else ())
    return [next(read) if each.kind == TABLE else _load(execute, each, budget) for each in references]


def _load(execute: Execute, reference: Reference, budget: ReadBudget) -> pa.Table:
    try:
        if reference.kind == SYSTEM:
            return _system(execute, reference.name, budget)
        if reference.kind == CHANGES:
            return _changes(execute, reference, budget)
        return _messages(execute, reference, budget)
    except Error as error:
        raise about(error, reference) from None


def about(error: Error, reference: Reference) -> Error:
    """The error, with the source that it is about."""
    vars(error).setdefault("reference", reference)
    return error


def _system(execute: Execute, name: str, budget: ReadBudget) -> pa.Table:
    system = SYSTEM_TABLES[name]
    rows = RowTableBuilder(system.columns, budget.take)
    for row in system.rows(execute):
        rows.add(row)
        budget.spend(1, 0)
    return rows.table()


# -- tables


class TableRange(ExportStart, frozen=True, kw_only=True):
    """The part of a table to read: a range of keys, and at most `limit` of its items."""

    limit: int | None


class TablesSnapshot(msgspec.Struct, frozen=True):
    """Ranges of tables in one snapshot. `bodies` are the items of each; None if they are too many for one transaction
    and must be read through `exports`."""

    ranges: list[TableRange]
    bodies: list[list[bytes]] | None
    exports: Exports


class PlanTables(Query[list[TableRange]], frozen=True):
    """The ranges of tables to read."""

    permission = Permission.SYSTEM  # `ReadTables` has checked the caller's permission

    references: tuple[Reference, ...]

    def run(self, reader: Reader) -> list[TableRange]:
        return [_range_of(reader, each) for each in self.references]


class ReadTables(Query[TablesSnapshot], frozen=True):
    """Read ranges of several tables in one transaction, unless they are large."""

    references: tuple[Reference, ...]

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{each.name}" for each in self.references)

    def run(self, reader: Reader) -> TablesSnapshot:
        ranges = [_range_of(reader, each) for each in self.references]
        return TablesSnapshot(ranges, _small(reader, ranges), reader.exports)


def _range_of(reader: Reader, reference: Reference) -> TableRange:
    needs = reference.needs
    try:
        definition = find(reader, reference.name)
        query, exact = _table_query(definition, needs)
        plan = query.plan(reader)
    except Error as error:
        raise about(error, reference) from None
    start = plan.start or b"" if plan.after is None else plan.after + b"\0"
    before = AFTER_ALL if plan.before is None else plan.before
    return TableRange(definition, 0, start, before, limit=needs.limit if exact else None)


def _small(reader: Reader, ranges: list[TableRange]) -> list[list[bytes]] | None:
    """The items of each range; None if they are more than one transaction should read."""
    rows, size = limits.SELECT_SLICE_ROWS, limits.SELECT_SLICE_BYTES
    all_bodies: list[list[bytes]] = []
    for each in ranges:
        bodies: list[bytes] = []
        most = rows + 1 if each.limit is None else min(each.limit, rows + 1)
        for row in reader.scan(ITEMS, each.definition.space, start=each.start, before=each.before, limit=most):
            bodies.append(row.body)
            rows -= 1
            size -= len(row.body)
            if rows < 0 or size < 0:
                return None
        all_bodies.append(bodies)
    return all_bodies


class _TableLoader:
    """Loads the items of a range into an Arrow table."""

    def __init__(self, reference: Reference, range_: TableRange, budget: ReadBudget) -> None:
        self._reference = reference
        self._range = range_
        self._budget = budget
        self._columns = ItemTableBuilder(known(range_.definition), budget.take, reference.needs.names)

    @property
    def full(self) -> bool:
        return self._range.limit is not None and self._columns.count >= self._range.limit

    def add(self, item: Item, size: int) -> None:
        try:
            self._columns.add(item, size)
            if self._columns.count % _ROWS_AT_ONCE == 0:
                self._budget.spend(_ROWS_AT_ONCE, 0)
        except Error as error:
            raise about(error, self._reference) from None

    def table(self) -> pa.Table:
        try:
            self._budget.spend(self._columns.count % _ROWS_AT_ONCE, 0)
            if not self._range.definition.columns:
                self._columns.ensure(self._reference.needs.ensure)
            return self._columns.table()
        except Error as error:
            raise about(error, self._reference) from None


def _tables(execute: Execute, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    snapshot = execute(ReadTables(tuple(references)))
    if snapshot.bodies is None:
        return _pages(snapshot, references, budget)
    loaders = [_TableLoader(*each, budget) for each in zip(references, snapshot.ranges, strict=True)]
    for loader, bodies in zip(loaders, snapshot.bodies, strict=True):
        for body in bodies:
            loader.add(decode(body), len(body))
    return [loader.table() for loader in loaders]


def _pages(snapshot: TablesSnapshot, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    """Large tables, read a page at a time."""
    ranges = {(each.definition.space, each.start, each.before) for each in snapshot.ranges}
    begun = snapshot.exports.begin_together(PlanTables(tuple(references)), len(ranges))
    readers: dict[Export, list[int]] = {}
    for at, (_, export) in enumerate(begun):
        readers.setdefault(export, []).append(at)
    try:
        loaders = [_TableLoader(each, range_, budget) for each, (range_, _) in zip(references, begun, strict=True)]
        for export, indexes in readers.items():
            try:
                _page_by_page(snapshot.exports, export, [loaders[at] for at in indexes], budget)
            except Gone:
                dropped = Gone(f"table {export.table!r} was dropped while the statement was reading it")
                raise about(dropped, references[indexes[0]]) from None
            except Error as error:
                raise about(error, references[indexes[0]]) from None
    finally:
        snapshot.exports.end(*readers)
    return [loader.table() for loader in loaders]


def _page_by_page(exports: Exports, export: Export, loaders: list[_TableLoader], budget: ReadBudget) -> None:
    while not all(loader.full for loader in loaders):
        page = exports.read(export)
        if page is None:
            return
        budget.spend(0, 0)
        start = 0
        for size in page.sizes:
            item = decode(page.body[start : start + size])
            start += size
            for loader in loaders:
                if not loader.full:
                    loader.add(item, size)


def known(definition: Definition) -> list[KnownColumn]:
    """The columns that a table has even without items: the declared ones and the key."""
    kinds = {column.name: column.kind for column in definition.columns}
    for name in definition.keys:
        kinds.setdefault(name, "")
    keys = [KnownColumn(name, kinds[name] or None, definition.kinds[name]) for name in definition.keys]
    if not definition.columns:
        return keys
    by_name = {each.name: each for each in keys}
    return [by_name.get(name) or KnownColumn(name, kind or None) for name, kind in kinds.items()]


def _table_query(definition: Definition, needs: SourceNeeds) -> tuple[queries.QueryItems | queries.ScanItems, bool]:
    """The query or scan to run, and whether every item it returns meets all of the statement's conditions."""
    condition, used = _key_condition(definition, needs.where)
    exact = used == len(needs.where)
    if condition is None:
        return queries.ScanItems(table=definition.name), exact
    key_condition = condition

    def bound(hashes: tuple[str, ...], ranges: tuple[str, ...], kinds: Mapping[str, str]) -> KeyCondition:
        return key_condition

    return queries.QueryItems(table=definition.name, condition=bound), exact


def _key_condition(definition: Definition, where: tuple[Comparison, ...]) -> tuple[KeyCondition | None, int]:
    """The key condition that the comparisons amount to, if there is one, and how many of them it covers."""
    of_hash = [value for op, value in _on(definition, definition.hash, where) if op == "="]
    if not of_hash:
        return None, 0
    of_sort = _on(definition, definition.range, where)
    equal = [value for op, value in of_sort if op == "="]
    if equal:
        return KeyCondition(of_hash[:1], equal[:1]), 2
    low = [(op, value) for op, value in of_sort if op in (">", ">=")][:1]
    high = [(op, value) for op, value in of_sort if op in ("<", "<=")][:1]
    if low and high:
        condition = KeyCondition(of_hash[:1], [], "BETWEEN", [low[0][1], high[0][1]])
        return condition, 3 if low[0][0] == ">=" and high[0][0] == "<=" else 1
    for op, value in low + high:
        return KeyCondition(of_hash[:1], [], op, [value]), 2
    return KeyCondition(of_hash[:1]), 1


def _on(definition: Definition, name: str | None, where: tuple[Comparison, ...]) -> list[tuple[str, Value]]:
    """The comparisons of a key attribute that the table evaluates in the same way as DuckDB."""
    if name is None:
        return []
    kind = definition.kinds[name]
    declared = dict(definition.column_kinds or ()).get(name)
    if declared is not None and declared not in _DECLARED_ALIKE[kind]:
        return []
    operands = [(each.op, _operand(kind, each.value)) for each in where if each.column == name.lower()]
    return [(op, operand) for op, operand in operands if operand is not None]


def _operand(kind: str, constant: Any) -> Value | None:
    """The constant as a key value; None if it cannot be one."""
    if kind == "N":
        if type(constant) is int or (isinstance(constant, Decimal) and constant.is_finite()):
            try:
                return {"N": number.canonical(str(constant))}
            except Invalid:
                return None
        return None
    if kind == "S" and isinstance(constant, str):
        return {"S": constant} if 0 < len(constant.encode("utf-8", "replace")) <= limits.SORT_KEY_BYTES_MAX else None
    if kind == "B" and isinstance(constant, bytes):
        return {"B": constant} if 0 < len(constant) <= limits.SORT_KEY_BYTES_MAX else None
    return None


# -- changes


def _changes(execute: Execute, reference: Reference, budget: ReadBudget) -> pa.Table:
    needs = reference.needs
    low, high, exact = _range(needs, "sequence")
    limit = needs.limit if exact else None
    whole = _named(needs, "keys", "old", "new")
    info = execute(DescribeChangeStream(reference.name))
    rows = RowTableBuilder(CHANGE_COLUMNS, budget.take)
    if info.oldest is not None and info.latest is not None and low <= info.latest and limit != 0:
        last = min(info.latest, high)
        after = None if low <= info.earliest else low - 1
        more = True
        while more and (limit is None or rows.count < limit):
            most = limits.CHANGE_PAGE_RECORDS if limit is None else min(limits.CHANGE_PAGE_RECORDS, limit - rows.count)
            page = execute(ReadChanges(reference.name, after, most, label=info.stream.label))
            for record in page.records:
                if record.sequence <= last:
                    rows.add(_change(record, whole))
            budget.spend(len(page.records), 0)
            after, more = page.after, page.more and page.after < last
    return rows.table()


def _change(record: Any, whole: bool) -> Sequence[Any]:
    """A row; without the images, if the statement does not use them."""
    keys: Item = record.keys
    images = (image(keys), image(record.old), image(record.new)) if whole else (None, None, None)
    return (record.sequence, record.index, record.last, record.event, *images, record.at_ms, record.by)


def _named(needs: SourceNeeds, *columns: str) -> bool:
    """Whether a statement may use one of these columns."""
    return needs.names is None or not needs.names.isdisjoint(columns)


def _range(needs: SourceNeeds, column: str) -> tuple[int, int, bool]:
    """The range of a whole-number column that is needed, and whether it covers all conditions."""
    low, high, used = 0, limits.POSITION_MAX, 0
    for each in needs.where:
        if each.column == column and type(each.value) is int:
            used += 1
            if each.op in ("=", ">=", ">"):
                low = max(low, each.value + (each.op == ">"))
            if each.op in ("=", "<=", "<"):
                high = min(high, each.value - (each.op == "<"))
    return low, high, used == len(needs.where)


# -- messages


def _messages(execute: Execute, reference: Reference, budget: ReadBudget) -> pa.Table:
    needs = reference.needs
    low, high, exact = _range(needs, "offset")
    first, last, _ = _range(needs, "partition_id")
    exact = all(each.column in ("offset", "partition_id") and type(each.value) is int for each in needs.where)
    limit = needs.limit if exact else None
    whole = _named(needs, "payload", "value")
    rows = RowTableBuilder(MESSAGE_COLUMNS, budget.take)
    for info in execute(DescribeTopic(reference.name)).partitions:
        if first <= info.partition <= last and (limit is None or rows.count < limit):
            bounds = max(low, info.start), min(high + 1, info.next)
            _partition(execute, reference.name, info, bounds, limit, budget, whole, rows)
    return rows.table()


def _partition(
    execute: Execute,
    name: str,
    info: PartitionInfo,
    bounds: tuple[int, int],
    limit: int | None,
    budget: ReadBudget,
    whole: bool,
    rows: RowTableBuilder,
) -> None:
    """Add messages of a partition with offsets in [first, before) until there are `limit` rows; with payloads if
    `whole`."""
    first, before = bounds
    while first < before and (limit is None or rows.count < limit):
        most = min(limits.CONSUME_MESSAGES_MAX, before - first, before - first if limit is None else limit - rows.count)
        page = execute(ReadTopic(name, info.partition, StartPoint("offset", first), most))
        if page.log != info.log or not page.messages:
            break  # the topic was dropped and recreated, or trimmed by retention, since its end was read
        messages = [message for message in page.messages if message.offset < before]
        for message in messages:
            rows.add(_message(message, whole))
        budget.spend(len(messages), 0)
        first = page.next_offset


def _message(message: DeliveredMessage, whole: bool) -> Sequence[Any]:
    envelope = message.envelope
    payload, text = (envelope.payload, _text(envelope.payload)) if whole else (None, None)
    return (
        message.partition, message.offset, message.id, envelope.source, OPERATIONS[envelope.operation], message.at_ms,
        MODES[envelope.mode], payload, text, envelope.by,
    )  # fmt: skip


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None

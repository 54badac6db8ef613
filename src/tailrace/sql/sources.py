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
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Query
from tailrace.errors import Corrupt, Error, Gone, TooLarge, Unavailable
from tailrace.sql.access import AccessPath, KeyRange, SourceNeeds, access_path
from tailrace.sql.arrow import (
    BIGINT,
    BLOB,
    BOOLEAN,
    MOMENT,
    TEXT,
    ItemTableBuilder,
    KnownColumn,
    RowTableBuilder,
    documents_of,
    image,
)
from tailrace.sql.column_cache import (
    CachedColumns,
    ChangedRows,
    ColumnCache,
    TableVersion,
    advanced,
    cache_of,
    changes_since,
    joined,
    version_of,
)
from tailrace.sql.result import Execute
from tailrace.sql.stored import packed_array
from tailrace.sql.system import INFORMATION, INFORMATION_TABLES, SYSTEM_TABLES, SystemTable
from tailrace.sql.workers import TOKEN
from tailrace.storage.engine import Packed, Reader
from tailrace.tables.change_info import DescribeChangeStream
from tailrace.tables.change_reading import ReadChanges
from tailrace.tables.definition import INDEX_ENTRIES, ITEMS, Definition, ItemRow, counted, find
from tailrace.tables.export import Export, Exports, ExportStart
from tailrace.tables.value import Item
from tailrace.topics.group import StartPoint
from tailrace.topics.queries import ListTopicPartitions, PartitionInfo, ReadTopic
from tailrace.topics.topic import MODES, OPERATIONS, DeliveredMessage

READ_ROWS_MAX: Final = 1_000_000  # of one statement, all in memory at once
READ_BYTES_MAX: Final = 128 * limits.MiB  # likewise, as Arrow; columns that are not needed do not count
SELECT_S: Final = 30.0  # how long a statement may take, including reading
_ROWS_AT_ONCE: Final = 4_096  # read between two checks of the budget
RANGES_IN_PAGES: Final = 16  # of a source that is read in pages; if it has more, all of it is read
SYSTEM: Final = "system"
TABLE: Final = "table"
CHANGES: Final = "changes"
TOPIC: Final = "topic"
FUNCTIONS: Final = (CHANGES, TOPIC)
_UUIDS: Final = b"uuids"
_JSONS: Final = b"jsons"

CHANGE_COLUMNS: Final = (
    ("sequence", BIGINT), ("index", BIGINT), ("last", BOOLEAN), ("event", TEXT), ("keys", TEXT), ("old", TEXT),
    ("new", TEXT), ("at", MOMENT), ("by", TEXT),
)  # fmt: skip
MESSAGE_COLUMNS: Final = (
    ("partition_id", BIGINT), ("offset", BIGINT), ("message_id", TEXT), ("source_table", TEXT), ("op", TEXT),
    ("ts", MOMENT), ("payload_mode", TEXT), ("payload", BLOB), ("value", TEXT), ("by", TEXT),
)  # fmt: skip


class Reference(msgspec.Struct, frozen=True):
    """A source that a statement names."""

    kind: str  # SYSTEM, INFORMATION, TABLE, CHANGES or TOPIC
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
    """The sources, in order; an error carries the source that it is about (`reference`). The schema of a table says
    which columns hold UUIDs (`uuids_of`)."""
    tables = [each for each in references if each.kind == TABLE]
    read = iter(_tables(execute, tables, budget) if tables else ())
    return [next(read) if each.kind == TABLE else _load(execute, each, budget) for each in references]


def _load(execute: Execute, reference: Reference, budget: ReadBudget) -> pa.Table:
    try:
        if reference.kind in (SYSTEM, INFORMATION):
            known = SYSTEM_TABLES if reference.kind == SYSTEM else INFORMATION_TABLES
            return _system(execute, known[reference.name], budget)
        if reference.kind == CHANGES:
            return _changes(execute, reference, budget)
        return _messages(execute, reference, budget)
    except Error as error:
        raise about(error, reference) from None


def uuids_of(table: pa.Table) -> frozenset[str]:
    """The columns of a source that are declared as UUID, in lower case."""
    return frozenset((table.schema.metadata or {}).get(_UUIDS, b"").decode().split("\0")) - {""}


def mixed_of(table: pa.Table) -> frozenset[str]:
    """The columns of a source that may hold values of several types, as JSON."""
    return documents_of(table) - frozenset((table.schema.metadata or {}).get(_JSONS, b"").decode().split("\0"))


def _marked(table: pa.Table, definition: Definition) -> pa.Table:
    marks = {}
    for mark, kind in ((_UUIDS, "UUID"), (_JSONS, "JSON")):
        names = [column.name for column in definition.columns if column.kind == kind]
        if names:
            marks[mark] = "\0".join(name.lower() if kind == "UUID" else name for name in names).encode()
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **marks}) if marks else table


def about(error: Error, reference: Reference) -> Error:
    """The error, with the source that it is about."""
    vars(error).setdefault("reference", reference)
    return error


def _system(execute: Execute, system: SystemTable, budget: ReadBudget) -> pa.Table:
    rows = RowTableBuilder(system.columns, budget.take)
    for row in system.rows(execute):
        rows.add(row)
        budget.spend(1, 0)
    return rows.table()


# -- tables


class TablePart(ExportStart, frozen=True, kw_only=True):
    """The part of a table to read in pages: one range of keys of the source with this number."""

    source: int
    path: AccessPath
    version: TableVersion | None  # of the table, if all of it is read


FoundRows: TypeAlias = list[bytes] | int | CachedColumns | ChangedRows


class TablesSnapshot(msgspec.Struct, frozen=True):
    """Tables in one snapshot: how each is read, and its stored items; or their number, if that is all that is needed;
    or columns in the cache, and what has changed since. `read` is None if there are too many items for one transaction,
    which must be read through `exports`."""

    paths: list[AccessPath]
    read: list[FoundRows] | None
    exports: Exports


class PlanTables(Query[list[TablePart]], frozen=True):
    """The parts of tables to read in pages."""

    permission = Permission.SYSTEM  # `ReadTables` has checked the caller's permission

    references: tuple[Reference, ...]

    def run(self, reader: Reader) -> list[TablePart]:
        parts = []
        for source, each in enumerate(self.references):
            path = path_of(reader, each)
            if path.index is not None or len(path.ranges) > RANGES_IN_PAGES:
                path = AccessPath(path.definition)  # its items are too many to look them up one by one
            elif path.reverse:  # pages are read in one direction
                path = msgspec.structs.replace(path, limit=None, reverse=False)
            definition = path.definition
            version = version_of(reader, definition) if path.whole and path.limit is None else None
            parts += [
                TablePart(definition, 0, one.start, one.before, source=source, path=path, version=version)
                for one in path.ranges
            ]
        return parts


class ReadTables(Query[TablesSnapshot], frozen=True):
    """Read parts of several tables in one transaction, unless they are large."""

    references: tuple[Reference, ...]

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{each.name}" for each in self.references)

    def run(self, reader: Reader) -> TablesSnapshot:
        before = reader.version(ITEMS)
        paths = [path_of(reader, each) for each in self.references]
        settled = before is not None and reader.version(ITEMS) == before
        return TablesSnapshot(paths, _small(reader, self.references, paths, settled), reader.exports)


class ExplainTables(Query[list[str]], frozen=True):
    """How each of these tables would be read now, in words."""

    references: tuple[Reference, ...]

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{each.name}" for each in self.references)

    def run(self, reader: Reader) -> list[str]:
        return [self._explained(reader, each) for each in self.references]

    def _explained(self, reader: Reader, reference: Reference) -> str:
        path = path_of(reader, reference)
        if counts_only(reference, path):
            return f"number of rows of {path.definition.name}"
        cached = _cached(reader, reference, path, settled=True)
        if cached is None:
            return path.described()
        return f"{path.described()}, from the cache" + (
            "" if isinstance(cached, CachedColumns) else " and what changed"
        )


def path_of(reader: Reader, reference: Reference) -> AccessPath:
    """How a table is read."""
    try:
        return access_path(find(reader, reference.name), reference.needs)
    except Error as error:
        raise about(error, reference) from None


def counts_only(reference: Reference, path: AccessPath) -> bool:
    """Whether the statement needs the number of rows and nothing else of them."""
    return path.whole and path.limit is None and reference.needs.names == frozenset() and not reference.needs.ensure


def _small(
    reader: Reader, references: Sequence[Reference], paths: Sequence[AccessPath], settled: bool
) -> list[FoundRows] | None:
    """The items of each table; None if they are more than one transaction should read. `settled`: the version of items
    is of this snapshot."""
    found: list[FoundRows] = []
    rows, size = limits.SELECT_SLICE_ROWS, limits.SELECT_SLICE_BYTES
    pointers, pointed = limits.SELECT_POINTERS_MAX, limits.SELECT_POINTED_BYTES
    for reference, path in zip(references, paths, strict=True):
        if counts_only(reference, path) and _committed(reader):
            found.append(counted(reader, path.definition.space).items)
            continue
        cached = _cached(reader, reference, path, settled)
        if cached is not None:
            found.append(cached)
            continue
        bodies: list[bytes] = []
        for row in items_at(reader, path, pointers + 1 if path.index is not None else rows + 1):
            bodies.append(row.body)
            if path.index is None:
                rows -= 1
                size -= len(row.body)
            else:
                pointers -= 1
                pointed -= len(row.body)
            if min(rows, size, pointers, pointed) < 0:
                return None
        found.append(bodies)
    return found


def _committed(reader: Reader) -> bool:
    """Whether it shows committed rows alone: within a transaction, counts and the cache lack the rows that it has
    written, and what it reads is recorded row by row."""
    return isinstance(reader.exports, Exports)


def _cached(
    reader: Reader, reference: Reference, path: AccessPath, settled: bool
) -> CachedColumns | ChangedRows | None:
    """The columns of a whole table that are in the cache, and what has changed since."""
    if not path.whole or path.limit is not None or not _committed(reader):
        return None
    entry = cache_of(reader.exports).get(path.definition)
    version = version_of(reader, path.definition) if entry is not None else None
    if entry is None or version is None or not entry.covers(reference.needs.names) or not (version[0] or settled):
        return None
    return entry if entry.version == version else changes_since(reader, entry, version)


def items_at(reader: Reader, path: AccessPath, most: int) -> Iterator[ItemRow]:
    """The items of a path, up to `most` of them, in the order of the path."""
    definition, index = path.definition, path.index
    left = most if path.limit is None else min(most, path.limit)
    for each in path.ranges:
        if left <= 0:
            return
        if path.unique:
            row = reader.get(ITEMS, definition.space, each.start)
            if row is not None:
                yield row
                left -= 1
        elif index is None:
            for row in reader.scan(
                ITEMS, definition.space, start=each.start, before=each.before, limit=left, reverse=path.reverse
            ):
                yield row
                left -= 1
        else:
            found = reader.scan(
                INDEX_ENTRIES, index.space, start=each.start, before=each.before, limit=left, reverse=path.reverse
            )
            for pointer in list(found):
                row = reader.get(ITEMS, definition.space, pointer.item)
                if row is None:
                    raise Corrupt(
                        f"index {index.name!r} of {definition.name} points to an item that does not exist; run "
                        "`tailrace check` and restore a backup"
                    )
                yield row
                left -= 1


class _TableLoader:
    """Loads the items of a path into an Arrow table."""

    def __init__(self, reference: Reference, path: AccessPath, budget: ReadBudget, keep: frozenset[str] | None) -> None:
        self._reference = reference
        self._path = path
        self._budget = budget
        self._keep = keep
        self._columns = ItemTableBuilder(known(path.definition), budget.take, keep)

    @property
    def full(self) -> bool:
        return self._path.limit is not None and self._columns.count >= self._path.limit

    def add(self, bodies: pa.Array) -> None:
        limit = self._path.limit
        if limit is not None:
            bodies = bodies.slice(0, limit - self._columns.count)
        try:
            for first in range(0, len(bodies), _ROWS_AT_ONCE):
                some = bodies.slice(first, _ROWS_AT_ONCE)
                self._columns.add_stored(some)
                self._budget.spend(len(some), 0)
        except Error as error:
            raise about(error, self._reference) from None

    def table(self) -> pa.Table:
        try:
            if not self._path.definition.columns:
                self._columns.ensure(self._reference.needs.ensure)
            return self._columns.table()
        except Error as error:
            raise about(error, self._reference) from None

    def columns(self, version: TableVersion) -> CachedColumns:
        """All columns, for the cache."""
        try:
            return CachedColumns(
                self._path.definition, version, self._keep, joined(self._columns.built()), self._columns.count
            )
        except Error as error:
            raise about(error, self._reference) from None


def _tables(execute: Execute, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    """Each table once for all sources that need the same of it."""
    needed = [_what(each) for each in references]
    distinct = dict(reversed(list(zip(needed, references, strict=True))))  # the first of each, for errors
    snapshot = execute(ReadTables(tuple(distinct.values())))
    tables = _loaded(snapshot, list(distinct.values()), budget)
    marked = [_marked(table, path.definition) for table, path in zip(tables, snapshot.paths, strict=True)]
    read = dict(zip(distinct, marked, strict=True))
    seen: set[Reference] = set()
    for what, each in zip(needed, references, strict=True):
        if what in seen and TOKEN not in (read[what].schema.metadata or {}):  # the worker gets another copy
            try:
                budget.spend(read[what].num_rows, int(read[what].nbytes))
            except Error as error:
                raise about(error, each) from None
        seen.add(what)
    return [read[what] for what in needed]


def _what(reference: Reference) -> Reference:
    """What is read for a source: equal ones read the same."""
    needs = msgspec.structs.replace(reference.needs, ensure=tuple(sorted(reference.needs.ensure)))
    return msgspec.structs.replace(reference, needs=needs)


def _loaded(snapshot: TablesSnapshot, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    if snapshot.read is None:
        return _pages(snapshot, references, budget)
    tables = []
    for reference, path, found in zip(references, snapshot.paths, snapshot.read, strict=True):
        if isinstance(found, int):
            tables.append(_numbered(path.definition, found))
            continue
        if isinstance(found, ChangedRows):
            moved = advanced(found, known(path.definition))
            if moved is None:
                return _pages(snapshot, references, budget)
            cache_of(snapshot.exports).put(moved)
            found = moved
        if isinstance(found, CachedColumns):
            tables.append(_from_cache(found, reference, budget))
            continue
        loader = _TableLoader(reference, path, budget, reference.needs.names)
        loader.add(pa.array(found, pa.binary()))
        tables.append(loader.table())
    return tables


def _from_cache(entry: CachedColumns, reference: Reference, budget: ReadBudget) -> pa.Table:
    """The columns that the statement needs; they count as if they had been read."""
    table = entry.table(known(entry.definition), reference.needs.names, _ensured(reference, entry))
    try:
        budget.spend(entry.rows, int(table.nbytes))
    except Error as error:
        raise about(error, reference) from None
    return table


def _numbered(definition: Definition, rows: int) -> pa.Table:
    """As many rows, of which nothing is read."""
    return pa.table({definition.hash: pa.nulls(rows)})


def _pages(snapshot: TablesSnapshot, references: Sequence[Reference], budget: ReadBudget) -> list[pa.Table]:
    """Large tables, read a page at a time."""
    ranges = {
        (each.definition.space, part)
        for each in snapshot.paths
        for part in (each.ranges if each.index is None and len(each.ranges) <= RANGES_IN_PAGES else (KeyRange(),))
    }
    begun = snapshot.exports.begin_together(PlanTables(tuple(references)), len(ranges))
    readers: dict[Export, list[int]] = {}
    parts: dict[int, TablePart] = {}
    for part, export in begun:
        readers.setdefault(export, []).append(part.source)
        parts[part.source] = part
    cache = cache_of(snapshot.exports)
    try:
        loaders = [
            _TableLoader(each, parts[at].path, budget, _kept(each, parts[at], cache))
            for at, each in enumerate(references)
        ]
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
    tables = []
    for at, (reference, loader) in enumerate(zip(references, loaders, strict=True)):
        version = parts[at].version
        if version is None:
            tables.append(loader.table())
        else:
            entry = loader.columns(version)
            cache.put(entry)
            tables.append(entry.table(known(entry.definition), reference.needs.names, _ensured(reference, entry)))
    return tables


def _kept(reference: Reference, part: TablePart, cache: ColumnCache) -> frozenset[str] | None:
    """The names of the columns to read: of a table that will be in the cache also the key, by which it is advanced, and
    what was asked for lately."""
    names = reference.needs.names
    if part.version is None or names is None:
        return names
    entry = cache.get(part.definition)
    before = frozenset[str]() if entry is None or entry.covered is None else entry.covered
    return names | {name.lower() for name in part.definition.keys} | before


def _ensured(reference: Reference, entry: CachedColumns) -> tuple[str, ...]:
    return () if entry.definition.columns else reference.needs.ensure


def _page_by_page(exports: Exports, export: Export, loaders: list[_TableLoader], budget: ReadBudget) -> None:
    while not all(loader.full for loader in loaders):
        page = exports.read(export)
        if page is None:
            return
        budget.spend(0, 0)
        bodies = bodies_of(page)
        for loader in loaders:
            if not loader.full:
                loader.add(bodies)


def bodies_of(page: Packed) -> pa.Array:
    """The items of a page, as they are stored."""
    return packed_array(memoryview(page.sizes).cast("B"), page.body, len(page.sizes))


def known(definition: Definition) -> list[KnownColumn]:
    """The columns that a table has even without items: the declared ones, the key, and those that are indexed."""
    kinds = {column.name: column.kind for column in definition.columns}
    indexed = [name for index in definition.indexes for name in (*index.hash, *index.range)]
    for name in (*definition.keys, *indexed):
        kinds.setdefault(name, "")
    return [KnownColumn(name, kind or None, definition.kinds.get(name)) for name, kind in kinds.items()]


# -- changes


def _changes(execute: Execute, reference: Reference, budget: ReadBudget) -> pa.Table:
    needs = reference.needs
    low, high, exact = _range(needs, "sequence")
    limit = needs.limit if exact and needs.order is None else None
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
        if each.column == column and type(each.value) is int:  # of IN and PREFIX, the value is something else
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
    limit = needs.limit if exact and needs.order is None else None
    whole = _named(needs, "payload", "value")
    rows = RowTableBuilder(MESSAGE_COLUMNS, budget.take)
    for info in execute(ListTopicPartitions(reference.name)):
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

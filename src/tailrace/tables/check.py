"""The consistency check of tables: items, indexes, counts, change streams and lists of work.

Each invariant is checked in the direction that needs no memory: every item looks up its index entries, and as keys are
unique, an index that has all of them and no further entries is correct. Only otherwise are the entries scanned, to name
the wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tailrace.errors import Error
from tailrace.log import segments
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Reader
from tailrace.storage.table import META, StorageTable
from tailrace.tables import change, value, write
from tailrace.tables import key as keys
from tailrace.tables.change_stream import CHANGE_STREAMS, OWNER, ChangeStream
from tailrace.tables.copies import BACKUP, COPIES, COPYING
from tailrace.tables.definition import (
    ACTIVE,
    BACKFILLS,
    COUNTS,
    DROPPED_SPACES,
    INDEX_ENTRIES,
    ITEMS,
    TABLES,
    TOKEN_AGES,
    TOKENS,
    CountRow,
    Definition,
    IndexDefinition,
    IndexRow,
    ItemRow,
    counted,
    decoded,
)
from tailrace.tables.retention import CHANGE_CURSORS
from tailrace.tables.value import Item

Progress = Callable[[str, int, int], None]
_DAMAGED = (Error, msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, IndexError)


class TablesChecked(msgspec.Struct):
    """The findings, and how much was checked."""

    findings: list[str] = []
    tables: int = 0
    items: int = 0
    records: int = 0


def check_tables(reader: Reader, on_progress: Progress) -> TablesChecked:
    """Check all tables in one view of a database."""
    checked = TablesChecked()
    definitions: dict[str, Definition] = {}
    for row in reader.scan(TABLES):
        try:
            definition = definitions[row.name] = decoded(row)
        except _DAMAGED as error:
            checked.findings.append(f"table {row.name!r}: its definition cannot be read: {error}")
            continue
        if (definition.name, definition.space) != (row.name, row.space):
            checked.findings.append(f"table {row.name!r}: its definition is that of {definition.name!r}")
    checked.tables = len(definitions)
    changes = list(reader.scan(CHANGE_STREAMS))
    total = len(definitions) + len(changes)
    checked.findings += _check_spaces(reader, definitions)
    checked.findings += _check_work(reader, definitions)
    checked.findings += _check_tokens(reader)
    checked.findings += _check_ownership(reader, definitions, changes)
    for done, definition in enumerate(definitions.values(), start=1):
        checked.findings += _Items(reader, definition, checked).check()
        on_progress("checking tables", done, total)
    for done, stream in enumerate(changes, start=len(definitions) + 1):
        log = reader.get(LOGS, stream.log)
        if log is not None:
            checked.findings += _Records(reader, stream, log, definitions.get(stream.name), checked).check()
        on_progress("checking tables", done, total)
    return checked


# -- numbers and lists


def _counter(reader: Reader, name: str) -> int:
    row = reader.get(META, f"counter/{name}")
    return int(row.value) if row else 0


def _item_spaces(definition: Definition) -> list[int]:
    """The spaces of a table that hold items, or what is stored beside them."""
    space = definition.partials_space
    return [definition.space] if space is None else [definition.space, space]


def _orders(definition: Definition) -> list[int]:
    """The spaces of a table that hold index entries."""
    spaces = [index.space for index in definition.indexes]
    return spaces if definition.ttl_space is None else [*spaces, definition.ttl_space]


def _marks(definition: Definition) -> list[int]:
    """The spaces of a table whose index entries mark items that a route has sent ahead of its backfill."""
    return [route.backfill for route in definition.backfilled]


def _check_spaces(reader: Reader, definitions: dict[str, Definition]) -> Iterator[str]:
    """A space has one owner, and rows only while it has an owner or waits to be purged."""
    owners: dict[int, str] = {}
    for definition in definitions.values():
        for space in (*_item_spaces(definition), *_orders(definition), *_marks(definition)):
            if space in owners:
                yield f"tables {owners[space]!r} and {definition.name!r} share space {space}"
            owners[space] = definition.name
    copies = list(reader.scan(COPIES))
    for copy in copies:
        for space in (copy.space, *([copy.marks] if copy.marks else [])):
            if space in owners:
                yield f"{copy.kind} {copy.name!r} and {owners[space]!r} share space {space}"
            owners[space] = f"{copy.kind} {copy.name}"
        source = definitions.get(copy.facts.source)
        if copy.phase == COPYING and copy.kind == BACKUP and (source is None or copy.space not in source.copies):
            yield f"backup {copy.name!r} is being made of table {copy.facts.source!r}, which does not know of it"
    last = _counter(reader, "space")
    if owners and max(owners) > last:
        yield f"space {max(owners)} exists but the counter is at {last}: its number could be assigned again"
    dropped = {row.space for row in reader.scan(DROPPED_SPACES)}
    for space in sorted(dropped & owners.keys()):
        yield f"space {space} is listed as dropped, but belongs to table {owners[space]!r}"
    items = {space for definition in definitions.values() for space in _item_spaces(definition)}
    items |= {space for copy in copies for space in (copy.space, copy.marks)}
    orders = {space for each in definitions.values() for space in (*_orders(each), *_marks(each))}
    orders |= {copy.marks for copy in copies}
    for table, known in ((ITEMS, items), (INDEX_ENTRIES, orders)):
        for space in _spaces(reader, table):
            if space not in known and space not in dropped:
                yield f"{table.name} of space {space}, which has no owner: they would never be removed"
    for row in reader.scan(COUNTS):
        if row.space > 0 and row.space not in owners:
            yield f"counts of space {row.space}, which has no owner"


def _spaces(reader: Reader, table: StorageTable[Any]) -> Iterator[int]:
    """Every space that has a row."""
    last: int | None = None
    while rows := list(reader.scan(table, after=last, limit=1)):
        last = rows[0].space
        yield rows[0].space


def _check_work(reader: Reader, definitions: dict[str, Definition]) -> Iterator[str]:
    """The list of backfills has exactly the indexes and routes that are being filled."""
    fills = {row.space: row.owner for row in reader.scan(BACKFILLS)}
    for space, owner in fills.items():
        if owner not in definitions or space not in (*_orders(definitions[owner]), *_marks(definitions[owner])):
            yield f"backfill of space {space} for table {owner!r}, which has no such index or route"
    for definition in definitions.values():
        for space in _marks(definition):
            if space not in fills:
                yield f"table {definition.name!r}: a route is to be backfilled by space {space}, which is not listed"
        for index in definition.indexes:
            if index.status != ACTIVE and index.space not in fills:
                yield f"table {definition.name!r}: index {index.name!r} is {index.status} but not listed to be filled"
            if index.status == ACTIVE and index.space in fills:
                yield f"table {definition.name!r}: index {index.name!r} is {ACTIVE} but listed to be filled"


def _check_tokens(reader: Reader) -> Iterator[str]:
    ages = {(row.at_ms, row.token) for row in reader.scan(TOKEN_AGES)}
    tokens = {(row.at_ms, row.token) for row in reader.scan(TOKENS)}
    if tokens - ages:
        yield f"{len(tokens - ages)} client request tokens have no age: they would never be forgotten"


# -- items and their indexes


class _Items:
    """One table's items, each against its row, its indexes and the counts."""

    def __init__(self, reader: Reader, definition: Definition, checked: TablesChecked) -> None:
        self._reader = reader
        self._definition = definition
        self._checked = checked
        self._name = f"table {definition.name!r}"
        self._expected: dict[int, CountRow] = {space: CountRow(space, 0, 0) for space in _orders(definition)}

    def check(self) -> Iterator[str]:
        definition = self._definition
        filling = {row.space for row in self._reader.scan(BACKFILLS)}
        count = size = 0
        for row in self._reader.scan(ITEMS, definition.space):
            count += 1
            size += row.size
            try:
                item = value.decode(row.body)
                yield from self._check_item(row, item)
                yield from self._check_entries(row, item, filling)
            except _DAMAGED as error:
                yield f"{self._name}: the item at {row.key.hex()} cannot be read: {error}"
        self._checked.items += count
        yield from self._check_count(CountRow(definition.space, count, size), self._name)
        for index in definition.indexes:
            name = f"{self._name}: index {index.name!r}"
            yield from self._check_order(index.space, name, index, filling)
        if definition.ttl_space is not None:
            yield from self._check_order(definition.ttl_space, f"{self._name}: expiry", None, filling)

    def _check_item(self, row: ItemRow, item: Item) -> Iterator[str]:
        if keys.item_key(self._definition, item) != row.key:
            yield f"{self._name}: the item at {row.key.hex()} has another key"
        size = value.item_size(item)
        if size != row.size:
            yield f"{self._name}: the item at {row.key.hex()} has {size} bytes, its row says {row.size}"

    def _check_entries(self, row: ItemRow, item: Item, filling: set[int]) -> Iterator[str]:
        """The item has its entry in every index, and in the expiry order."""
        for index in self._definition.indexes:
            key = write.entry_key(self._definition, index, item, row.key)
            if key is not None:
                size = write.projected_size(self._definition, index, item)
                yield from self._check_entry(index.space, key, row, size, f"index {index.name!r}", filling)
        if self._definition.ttl_space is not None:
            key = write.expiry(self._definition, item, row.key)
            if key is not None:
                yield from self._check_entry(self._definition.ttl_space, key, row, 0, "expiry", filling)

    def _check_entry(
        self, space: int, key: bytes, row: ItemRow, size: int, name: str, filling: set[int]
    ) -> Iterator[str]:
        entry = self._reader.get(INDEX_ENTRIES, space, key)
        if entry is None:
            if space not in filling:
                yield f"{self._name}: {name} lacks the item at {row.key.hex()}"
            return
        if entry.item != row.key:
            yield f"{self._name}: {name} leads from {row.key.hex()} to {entry.item.hex()}"
        known = self._expected[space]
        self._expected[space] = CountRow(space, known.items + 1, known.bytes + size)

    def _check_order(self, space: int, name: str, index: IndexDefinition | None, filling: set[int]) -> Iterator[str]:
        expected = self._expected[space]
        entries = sum(1 for _ in self._reader.scan(INDEX_ENTRIES, space))
        if entries != expected.items:
            for entry in self._reader.scan(INDEX_ENTRIES, space):
                if self._entry_key(entry, index) != entry.key:
                    yield f"{name}: the entry at {entry.key.hex()} is not that of the item it leads to"
        if index is not None:
            yield from self._check_count(expected, name)

    def _entry_key(self, entry: IndexRow, index: IndexDefinition | None) -> bytes | None:
        row = self._reader.get(ITEMS, self._definition.space, entry.item)
        if row is None:
            return None
        try:
            item = value.decode(row.body)
        except _DAMAGED:
            return None
        if index is None:
            return write.expiry(self._definition, item, row.key)
        return write.entry_key(self._definition, index, item, row.key)

    def _check_count(self, real: CountRow, name: str) -> Iterator[str]:
        stored = counted(self._reader, real.space)
        if stored != real:
            yield (
                f"{name} has {real.items} items of {real.bytes} bytes, its counts say {stored.items} of {stored.bytes}"
            )


# -- change streams


def _check_ownership(reader: Reader, definitions: dict[str, Definition], changes: list[ChangeStream]) -> Iterator[str]:
    """Change streams and logs refer to each other, and tables and change streams."""
    owned: set[int] = set()
    for stream in changes:
        name = f"change stream {stream.name}/{stream.label}"
        log = reader.get(LOGS, stream.log)
        owned.add(stream.log)
        if log is None or log.dropped:
            yield f"{name}: its log {stream.log} does not exist"
            continue
        if log.owner != f"{OWNER}{stream.name}/{stream.label}":
            yield f"{name}: its log {log.id} belongs to {log.owner!r}"
        definition = definitions.get(stream.name)
        current = definition.stream if definition is not None and definition.space == stream.space else None
        is_current = current is not None and (current.label, current.log, current.view) == (
            stream.label, stream.log, stream.view,
        )  # fmt: skip
        if is_current != (stream.closed_ms is None):
            yield f"{name} is {'open' if stream.closed_ms is None else 'closed'}, but its table says otherwise"
    labels = {(stream.name, stream.label) for stream in changes}
    for definition in definitions.values():
        if definition.stream is not None and (definition.name, definition.stream.label) not in labels:
            yield f"table {definition.name!r}: its change stream {definition.stream.label} does not exist"
    for log in reader.scan(LOGS):
        if log.owner.startswith(OWNER) and not log.dropped and log.id not in owned:
            yield f"log {log.id} of {log.owner!r} has no change stream"
    for row in reader.scan(COUNTS, before=0):
        if -row.space not in owned:
            yield f"counts of the records in log {-row.space}, which is no change stream's"
    for number in sorted({cursor.log for cursor in reader.scan(CHANGE_CURSORS)} - owned):
        yield f"cursors of log {number}, which is no change stream's"


class _Records:
    """One change stream's records, against each other and against the table."""

    def __init__(
        self, reader: Reader, stream: ChangeStream, log: Log, definition: Definition | None, checked: TablesChecked
    ) -> None:
        self._reader = reader
        self._stream = stream
        self._log = log
        self._checked = checked
        self._name = f"change stream {stream.name}/{stream.label}"
        self._of = definition if definition is not None and definition.space == stream.space else None
        self._last: dict[bytes, tuple[bool, int | None]] = {}  # by identity: whether the item exists, and its image
        self._images = (stream.view in (change.OLD_IMAGE, change.BOTH), stream.view in (change.NEW_IMAGE, change.BOTH))

    def check(self) -> Iterator[str]:
        last_sequence = _counter(self._reader, change.SEQUENCE)
        if self._stream.first - 1 > last_sequence:
            yield f"{self._name} begins after sequence {self._stream.first - 1}, but the counter is at {last_sequence}"
        number: int | None = None
        size = 0
        for entry in segments.scan(self._reader, self._log.id):
            if entry.next - 1 > last_sequence:
                yield f"{self._name}: sequence {entry.next - 1} exists but the counter is at {last_sequence}"
            before = change.before(entry.body)
            if number is None and self._whole:
                number = 0
            if number is not None and before != number:
                yield f"{self._name}: the entry of {entry.next - 1} counts {before} records before it, not {number}"
            records = 0
            try:
                records = len(change.opened(entry.body).records)
                if entry.position >= self._log.start:
                    for record in change.decode(entry):
                        yield from self._check_record(record)
            except _DAMAGED as error:
                yield f"{self._name}: the entry of {entry.next - 1} cannot be read: {error}"
            if not records:
                yield f"{self._name}: the entry of {entry.next - 1} has no records"
            number = before + records
            size += len(entry.body)
            self._checked.records += records
        yield from self._check_totals(number, size)
        if self._of is not None and self._stream.closed_ms is None:
            yield from self._check_replay(self._of)

    @property
    def _whole(self) -> bool:
        """Whether nothing was ever trimmed."""
        return self._log.start == self._stream.first

    def _check_totals(self, number: int | None, size: int) -> Iterator[str]:
        stored = counted(self._reader, -self._log.id)
        if number is not None and stored.items != number:
            yield f"{self._name} has had {number} records, its counts say {stored.items}"
        if self._whole and (number or 0, size) != (stored.items, stored.bytes):
            yield (
                f"{self._name} has {number or 0} records of {size} bytes, "
                f"its counts say {stored.items} of {stored.bytes}"
            )

    def _check_record(self, record: change.ChangeRecord) -> Iterator[str]:
        """The record has the images of its view, and continues from the last record of its item."""
        where = f"{self._name}: record {record.index} of {record.sequence}"
        if tuple(sorted(record.keys)) != tuple(sorted(name for name, _ in self._stream.keys)):
            yield f"{where} has other keys than the table"
            return
        wanted = (record.event != "INSERT" and self._images[0], record.event != "REMOVE" and self._images[1])
        if (record.old is not None, record.new is not None) != wanted:
            yield f"{where} lacks the images of {self._stream.view}"
        key = _identity(self._stream, record.keys)
        known = self._last.get(key)
        if known is not None:
            there, image = known
            if there != (record.event != "INSERT"):
                yield f"{where} is {record.event}, but the item {'was' if there else 'was not'} there"
            if image is not None and record.old is not None and _digest(record.old) != image:
                yield f"{where} has not the old image that the record before it left"
        self._last[key] = (record.event != "REMOVE", None if record.new is None else _digest(record.new))

    def _check_replay(self, definition: Definition) -> Iterator[str]:
        """Replaying the records yields the items; all of them, if the table was empty before."""
        for identity, (there, image) in self._last.items():
            key = keys.key_of(definition, value.decode(identity))
            row = self._reader.get(ITEMS, definition.space, key)
            if (row is not None) != there:
                yield f"{self._name} ends with the item at {key.hex()} {'there' if there else 'gone'}, but it is not so"
            elif row is not None and image is not None and hash(row.body) != image:
                yield f"{self._name} ends with another item at {key.hex()} than there is"
        if self._whole and self._stream.complete:
            for row in self._reader.scan(ITEMS, definition.space):
                if _identity(self._stream, value.decode(row.body)) not in self._last:
                    yield f"{self._name} has no record of the item at {row.key.hex()}"


def _identity(stream: ChangeStream, attributes: Item) -> bytes:
    """The identity of an item within its table, also if the table was deleted."""
    return value.encode({name: attributes[name] for name, _ in stream.keys})


def _digest(item: Item) -> int:
    return hash(value.encode(item))

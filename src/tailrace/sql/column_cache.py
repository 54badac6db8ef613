"""Columns of whole tables that SELECT has decoded, kept for the next statement that reads them.

Theory of operation
-------------------
An entry has columns of one table as of one *version*. For a table with a change stream, that is the end of its log; the
next statement reads the records since then, takes out the rows that they changed and adds these as they are now. For
other tables it is a number that any write of items changes, and the columns are read again then. A statement asks in
its snapshot which version that is, so what it gets is the table of its snapshot.

What a column's type is follows from all its values. If changes could alter it, the columns are read again: an entry
never differs from what a new read would give, but for the order of the rows.

Entries are immutable. The memory of all of them is bounded, and the least recently used go first.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.log.entry import LOGS
from tailrace.sql.arrow import BuiltColumn, ItemTableBuilder, KnownColumn, with_names
from tailrace.sql.workers import TOKEN
from tailrace.storage.engine import Reader
from tailrace.tables import change, key
from tailrace.tables.change_reading import entries_from
from tailrace.tables.definition import ITEMS, Definition
from tailrace.tables.value import Item, encode

TableVersion: TypeAlias = tuple[int, int]  # the log and its end; or 0 and the version of all items
CHUNKS_MAX: Final = 32  # of a column; then they are joined
_JSON: Final = "JSON"


class CachedColumns(msgspec.Struct, frozen=True):
    """Columns of all rows of a table, by attribute; `covered` are the names in lower case, None: all attributes."""

    definition: Definition
    version: TableVersion
    covered: frozenset[str] | None
    columns: dict[str, BuiltColumn]
    rows: int
    number: int = msgspec.field(default_factory=itertools.count().__next__)  # never that of other rows

    @property
    def bytes(self) -> int:
        return sum(int(column.array.nbytes) for column in self.columns.values())

    def covers(self, names: frozenset[str] | None) -> bool:
        return self.covered is None or (names is not None and names <= self.covered)

    def table(self, known: Iterable[KnownColumn], names: frozenset[str] | None, ensure: Iterable[str]) -> pa.Table:
        """The columns with these names, and those that the table always has, as a new read would give them."""
        always = {each.name for each in known}
        columns = {
            name: column
            if names is None or name.lower() in names
            else BuiltColumn(None, pa.chunked_array([pa.nulls(self.rows, column.array.type)]))
            for name, column in self.columns.items()
            if names is None or name in always or name.lower() in names
        }
        there = {name.lower() for name in columns}
        for name in ensure:
            if name.lower() not in there:
                there.add(name.lower())
                columns[name] = BuiltColumn(None, pa.chunked_array([pa.nulls(self.rows)]))
        made = with_names(columns, always)
        token = f"{self.number} {sorted(names or ())} {list(columns)}"
        return made.replace_schema_metadata({**(made.schema.metadata or {}), TOKEN: token})


class ChangedRows(msgspec.Struct, frozen=True):
    """What changed since an entry: the keys, and the items that now have them, in their stored form."""

    base: CachedColumns
    version: TableVersion
    keys: list[Item]
    bodies: list[bytes]


class ColumnCache:
    """The entries of one database, by the number of the table."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, CachedColumns] = OrderedDict()
        self._bytes = 0

    def get(self, definition: Definition) -> CachedColumns | None:
        with self._lock:
            entry = self._entries.get(definition.space)
            if entry is None:
                return None
            if entry.definition != definition:
                self._drop(definition.space)
                return None
            self._entries.move_to_end(definition.space)
            return entry

    def put(self, entry: CachedColumns) -> None:
        """Keep an entry, unless it is large, or there is a newer one."""
        size, space = entry.bytes, entry.definition.space
        with self._lock:
            there = self._entries.get(space)
            if there is not None and there.version[0] == entry.version[0] and there.version > entry.version:
                return
            self._drop(space)
            if size > self._bytes_max // 2:
                return
            self._entries[space] = entry
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._entries)))

    def _drop(self, space: int) -> None:
        entry = self._entries.pop(space, None)
        if entry is not None:
            self._bytes -= entry.bytes

    @property
    def bytes(self) -> int:
        return self._bytes


_caches: Final[weakref.WeakKeyDictionary[Any, ColumnCache]] = weakref.WeakKeyDictionary()
_caches_lock: Final = threading.Lock()


def cache_of(exports: Any) -> ColumnCache:
    """The cache of a database, by its exports."""
    with _caches_lock:
        found = _caches.get(exports)
        if found is None:
            found = _caches[exports] = ColumnCache(limits.SELECT_CACHE_BYTES)
        return found


# -- in the snapshot of a statement


def version_of(reader: Reader, definition: Definition) -> TableVersion | None:
    """The version of a table in this snapshot; None: it is not known."""
    if definition.stream is not None:
        log = reader.get(LOGS, definition.stream.log)
        return None if log is None else (log.id, log.next)
    version = reader.version(ITEMS)
    return None if version is None else (0, version)


def changes_since(reader: Reader, entry: CachedColumns, version: TableVersion) -> ChangedRows | None:
    """What changed between an entry and a version of this snapshot; None: too much, or it is not known."""
    log = reader.get(LOGS, version[0]) if version[0] else None
    if log is None or entry.version[0] != version[0] or not log.start <= entry.version[1] <= version[1]:
        return None
    keys: dict[bytes, Item] = {}
    left = limits.SELECT_SLICE_BYTES
    for found in entries_from(reader, log, entry.version[1]):
        for record in change.decode(found):
            keys[key.key_of(entry.definition, record.keys)] = record.keys
        left -= len(found.body)
        if len(keys) > limits.SELECT_SLICE_ROWS or left < 0:
            return None
    bodies: list[bytes] = []
    for stored in sorted(keys):
        row = reader.get(ITEMS, entry.definition.space, stored)
        if row is not None:
            bodies.append(row.body)
            left -= len(row.body)
    return ChangedRows(entry, version, list(keys.values()), bodies) if left > -limits.SELECT_SLICE_BYTES else None


# -- afterwards


def advanced(changes: ChangedRows, known: list[KnownColumn]) -> CachedColumns | None:
    """The entry with the changes; None: it has to be read again."""
    base = changes.base
    if not changes.keys:
        return msgspec.structs.replace(base, version=changes.version)
    names = base.definition.keys
    old, gone = _key_texts(base.columns, names, None), _key_texts(_built(changes.keys, known), names, base.columns)
    if old is None or gone is None:
        return None
    stays = pc.invert(pc.is_in(old, value_set=gone))
    left = int(pc.sum(stays).as_py() or 0)
    builder = ItemTableBuilder(known, _unspent, base.covered)
    builder.add_stored(pa.array(changes.bodies, pa.binary()))
    new = builder.built()
    if any(name not in base.columns for name in new):
        return None
    columns: dict[str, BuiltColumn] = {}
    for name, column in base.columns.items():
        merged = _merged(column, new.get(name), stays, left, builder.count)
        if merged is None:
            return None
        columns[name] = merged
    return CachedColumns(base.definition, changes.version, base.covered, columns, left + builder.count)


def joined(columns: dict[str, BuiltColumn]) -> dict[str, BuiltColumn]:
    """The columns with all their chunks in one."""
    for name, column in columns.items():
        if column.array.num_chunks > 1:
            columns[name] = BuiltColumn(column.kind, pa.chunked_array([column.array.combine_chunks()]))
    return columns


def _unspent(size: int) -> None:
    """Changes are few; what they take is counted with the columns."""


def _built(items: list[Item], known: list[KnownColumn]) -> dict[str, BuiltColumn]:
    builder = ItemTableBuilder(known, _unspent, None)
    builder.add_stored(pa.array([encode(item) for item in items], pa.binary()))
    return builder.built()


def _key_texts(
    columns: dict[str, BuiltColumn], names: tuple[str, ...], alike: dict[str, BuiltColumn] | None
) -> pa.ChunkedArray | None:
    """The keys of rows as one column of bytes, with numbers in the types of the columns `alike`."""
    parts = []
    for name in names:
        column = columns.get(name)
        if column is None or column.array.null_count:
            return None
        array = column.array
        if pa.types.is_floating(array.type):
            return None  # different keys may be the same double
        if alike is not None and array.type != alike[name].array.type:
            try:
                array = array.cast(alike[name].array.type)
            except pa.ArrowInvalid:
                return None
        parts.append(array if pa.types.is_binary(array.type) else array.cast(pa.string()).cast(pa.binary()))
    if len(parts) == 1:
        return parts[0]
    first, second = (part.combine_chunks() for part in parts)
    size = pc.binary_length(first).cast(pa.string()).cast(pa.binary())
    return pa.chunked_array([pc.binary_join_element_wise(size, first, second, b":")])


def _merged(
    column: BuiltColumn, new: BuiltColumn | None, stays: pa.ChunkedArray, left: int, count: int
) -> BuiltColumn | None:
    """A column without the rows that have changed, and with these as they are now; None: its type may be another."""
    type_ = column.array.type
    if column.kind is None:
        if new is not None and new.kind is not None:
            return None
        return BuiltColumn(None, pa.chunked_array([pa.nulls(left + count, type_)], type_))
    kept = column.array if left == len(column.array) else column.array.filter(stays)
    lost = len(column.array) - column.array.null_count > len(kept) - kept.null_count
    added = pa.chunked_array([pa.nulls(count, type_)], type_)
    if new is not None and new.kind is not None:
        if new.kind != column.kind:
            return None
        added = new.array
        if added.type != type_:
            if not pa.types.is_decimal(type_) or not _narrower(added.type, type_):
                return None
            try:
                added = added.cast(type_)
            except pa.ArrowInvalid:
                return None
    chunks = [*kept.chunks, *added.chunks]
    array = pa.chunked_array(chunks, type_)
    if lost and (array.null_count == len(array) or not _still(array, column.kind)):
        return None
    if array.num_chunks > CHUNKS_MAX:
        array = pa.chunked_array([array.combine_chunks()], type_)
    return BuiltColumn(column.kind, array)


def _narrower(type_: pa.DataType, than: pa.DataType) -> bool:
    return bool(pa.types.is_int64(type_) or (pa.types.is_decimal(type_) and type_.scale <= than.scale))


def _still(array: pa.ChunkedArray, kind: str) -> bool:
    """Whether a column whose values have become fewer surely has the type that it had."""
    if kind == _JSON or (kind == "N" and pa.types.is_string(array.type)):
        return False
    if pa.types.is_decimal(array.type):
        scale = array.type.scale
        return scale > 0 and bool(pc.any(pc.not_equal(pc.round(array, scale - 1), array)).as_py())
    return True

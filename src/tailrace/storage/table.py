"""Declarations of stored tables: each is declared once, beside the rules that use it, for every engine.

A row is a frozen `msgspec.Struct`; its fields are the columns, in order, and their types the column types
(int, str, bytes, and ``| None`` for nullable). Rows are immutable, so they can be shared and cached.

Rows of a `checked` table have a checksum, in a column that only this module knows: computed when a row is written, and
verified whenever it is read.
"""

from __future__ import annotations

import struct
import types
import typing
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from tailrace.checksum import crc32
from tailrace.errors import Corrupt
from tailrace.storage.sums import summing, with_sum

R = TypeVar("R", bound=msgspec.Struct)
Key = tuple[Any, ...]

_KINDS: dict[type, str] = {int: "INTEGER", str: "TEXT", bytes: "BLOB"}


class StorageColumn(msgspec.Struct, frozen=True):
    name: str
    kind: str  # INTEGER, TEXT or BLOB; an engine translates
    nullable: bool


SUM: Final = StorageColumn("sum", "INTEGER", True)  # a row's checksum; NULL if it was written before there were any
UNKNOWN: Final = -1  # stands for NULL among sums


class StorageTable(Generic[R]):
    """A table of rows `R`, unique by `key`.

    `heap`: rows are only added and removed in ranges, never replaced; stored in arrival order with an index on the
    key. `cached`: committed rows are kept in memory where one process owns the database. `checked`: rows have a
    checksum. `pack`: combines the rows that a transaction has added, before they are stored. `recent_bytes`: the
    memory for rows that were read or written lately (`recent.py`). `staging`: added rows for which `staged` is true go
    to this table first, which has a number and then the same columns; in a heap of two key columns, to which rows with
    the same first one are added in the order of the second (`staging.py`). `names`: the first columns, which name a
    damaged row; the key, if none are given.
    """

    def __init__(
        self,
        name: str,
        row: type[R],
        *,
        key: tuple[str, ...],
        heap: bool = False,
        cached: bool = False,
        checked: bool = False,
        pack: Callable[[list[R]], list[R]] | None = None,
        recent_bytes: int = 0,
        staging: StorageTable[Any] | None = None,
        staged: Callable[[R], bool] = lambda row: False,
        names: tuple[str, ...] = (),
    ) -> None:
        assert pack is None or heap, f"{name}: only rows of a heap are packed"
        assert staging is None or (heap and len(key) == 2), f"{name}: only rows of a heap are staged"
        self.name = name
        self.row = row
        self.key = key
        self.heap = heap
        self.cached = cached
        self.pack = pack
        self.recent_bytes = recent_bytes
        self.staging = staging
        self.staged = staged
        self.columns = tuple(_column(name, hint) for name, hint in typing.get_type_hints(row).items())
        fields = tuple(column.name for column in self.columns)
        assert fields[: len(key)] == key, f"{name}: key columns come first, in key order"
        self._names = names or key
        assert fields[: len(self._names)] == self._names
        self.key_of = _getter(key)
        self.blobs_of = _getter(tuple(column.name for column in self.columns if column.kind == "BLOB"))
        kinds = [column.kind for column in self.columns]
        self.blob = kinds.index("BLOB") if "BLOB" in kinds else -1  # the first column of bytes
        self.checked = checked
        self.stored = (*self.columns, SUM) if checked else self.columns  # as they are in the database
        self.fields_of = _getter(fields)  # a row as a tuple
        self.values = self.fields_of  # as the tuple that is bound to an INSERT
        self.store: Callable[[Key], Key] = lambda fields: fields  # this one from the other
        self.load: Callable[[Any], R] = lambda values: row(*values)  # and back, from what a SELECT returns
        if checked:
            assert not any(column.nullable for column in self.columns[:-1])
            plain, sum_of = self.fields_of, summing(kinds, self.columns[-1].nullable)

            def summed(row: R) -> Key:
                values = plain(row)
                return (*values, sum_of(values))

            self.values = summed
            self.store = with_sum(sum_of)

            def verified(values: tuple[Any, ...]) -> R:
                if sum_of(values) != values[-1] and values[-1] is not None:
                    raise self._damaged(values)
                return row(*values[:-1])

            self.load = verified

    def load_anyway(self, damaged: dict[str, None], values: tuple[Any, ...]) -> R:
        """As `load`, but a row that fails its checksum is added to `damaged` and returned."""
        try:
            return self.load(values)
        except Corrupt as error:
            damaged[str(error)] = None
            return self.row(*values[:-1])

    def verify_packed(
        self,
        prefix: Key,
        numbers: dict[str, array[int]],
        blobs: dict[str, tuple[array[int], bytes]],
        sums: array[int],
    ) -> None:
        """Verify many rows under a key's `prefix`: columns of numbers, and concatenated bytes with their sizes. Fast
        per row."""
        fixed = dict(zip(self.key, prefix, strict=False))
        columns: list[Iterable[int]] = [
            numbers[column.name] if column.name in numbers else repeat(fixed[column.name], len(sums))
            for column in self.columns
            if column.kind == "INTEGER"
        ]
        bodies = [blobs[column.name] for column in self.columns if column.kind == "BLOB"]
        columns += [sizes for sizes, _ in bodies]
        found: Iterable[int] = map(crc32, map(struct.Struct(f"<{len(columns)}q").pack, *columns))
        for sizes, together in bodies:
            ends = list(accumulate(sizes, initial=0))
            found = map(crc32, map(memoryview(together).__getitem__, map(slice, ends, ends[1:])), found)
        for at, (one, stored) in enumerate(zip(found, sums, strict=True)):
            if one != stored != UNKNOWN:
                where = [numbers[name][at] for name in self.key[len(prefix) :] if name in numbers]
                raise self._damaged([*prefix, *where])

    def _damaged(self, fields: Sequence[Any]) -> Corrupt:
        named = ", ".join(f"{name} {value!r}" for name, value in zip(self._names, fields, strict=False))
        return Corrupt(
            f"a row of {self.name} fails its checksum ({named}): it is not what was written; run `tailrace check` and "
            "restore a backup"
        )

    def __repr__(self) -> str:
        return f"Table({self.name})"


def _getter(names: tuple[str, ...]) -> Callable[[Any], Key]:
    if not names:
        return lambda row: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)


def _column(name: str, hint: Any) -> StorageColumn:
    nullable = False
    if isinstance(hint, types.UnionType):
        nullable = type(None) in hint.__args__
        (hint,) = (part for part in hint.__args__ if part is not type(None))
    return StorageColumn(name, _KINDS[hint], nullable)


class MetaRow(msgspec.Struct, frozen=True):
    """A named value of the whole database: counters, its identity, its keys."""

    name: str
    value: bytes


META = StorageTable("meta", MetaRow, key=("name",), cached=True)

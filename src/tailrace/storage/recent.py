"""Rows that were read or written lately, kept in memory where one process owns the database.

The rule: a row in here is the row of the last commit. A write begins when the first of its rows goes to the database:
all rows that it changes are dropped, and until it has ended, committed or rolled back, none is added. The version is
odd meanwhile. A reader takes the version before it reads a row, and the row is added only if the version is the same
afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic

from tailrace.storage.table import Key, R, StorageTable

ROW_BYTES: Final = 400  # of memory for a row beside its own bytes
BULK_ROWS: Final = 64  # a commit with more of them is a bulk load, which would replace rows that are read


class RecentRows(Generic[R]):
    """Rows of one table, up to `bytes_max` of memory: when the newer half is full, the older half is dropped."""

    __slots__ = ("_blobs", "_half_max", "_lock", "_newer", "_newer_bytes", "_older", "version")

    def __init__(self, table: StorageTable[R], bytes_max: int) -> None:
        self._blobs = table.blobs_of
        self._half_max = bytes_max // 2
        self._lock = threading.Lock()
        self._newer: dict[Key, R] = {}
        self._older: dict[Key, R] = {}
        self._newer_bytes = 0
        self.version = 0

    def get(self, key: Key) -> R | None:
        row = self._newer.get(key)
        return self._older.get(key) if row is None else row

    def offer(self, key: Key, row: R, version: int) -> None:
        """Add a row that was read when `version` was the version or later."""
        if version & 1:
            return
        with self._lock:
            if version == self.version:
                self._add(key, row)

    def begin(self, keys: Iterable[Key]) -> None:
        """A write changes the rows with these keys; called before it does, perhaps several times."""
        with self._lock:
            self.version |= 1
            for key in keys:
                self._newer.pop(key, None)
                self._older.pop(key, None)

    def begin_all(self) -> None:
        """As `begin`, for a write that may change any row."""
        with self._lock:
            self.version |= 1
            self._newer, self._older, self._newer_bytes = {}, {}, 0

    def end(self, written: Mapping[Key, Any] | None = None) -> None:
        """The write has ended; `written`: rows that it has committed, None for a deleted one."""
        if not self.version & 1:
            return
        with self._lock:
            if written is not None and len(written) <= BULK_ROWS:
                for key, row in written.items():
                    if row is not None:
                        self._add(key, row)
            self.version += 1

    def _add(self, key: Key, row: R) -> None:
        size = ROW_BYTES + sum(map(len, self._blobs(row)))
        if size > self._half_max:
            return
        if self._newer_bytes + size > self._half_max:
            self._older, self._newer, self._newer_bytes = self._newer, {}, 0
        self._newer[key] = row
        self._newer_bytes += size


class RecentTables:
    """The recent rows of all tables. `kept`: False where another process writes, so that none can be."""

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._tables: dict[StorageTable[Any], RecentRows[Any]] = {}

    def of(self, table: StorageTable[R]) -> RecentRows[R]:
        found = self._tables.get(table)
        if found is None:
            made: RecentRows[R] = RecentRows(table, table.recent_bytes if self._kept else 0)
            found = self._tables.setdefault(table, made)  # of two threads, one sets it
        return found

    def version(self, table: StorageTable[Any]) -> int | None:
        """A number that is the same as long as no row of the table is written; None: it is not known, or one is being
        written."""
        version = self.of(table).version
        return None if version & 1 or not self._kept else version

    def end(self, written: Mapping[StorageTable[Any], Mapping[Key, Any]]) -> None:
        """A write has ended; `written`: the rows that it has committed."""
        for table, recent in list(self._tables.items()):
            recent.end(written.get(table))

"""The rows of several sorted files as one sorted sequence, with at most a row group of each in memory.

Each file has a *cursor*: from its statistics it has a lower bound for the keys still to come, and the file is opened
only when that key is reached. Of files that follow each other, as those of one log do, only one is open at a time, and
its row groups pass through unchanged. Where files overlap, the rows up to the nearest end of a row group are taken from
each and sorted together.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.cold.store import Store, plain
from tailrace.errors import Corrupt, Error

Key = tuple[int, int]  # log and position
_OURS = re.compile(r"[0-9a-f]{32}\.parquet")  # names of files that `writing` wrote, whose rows are in order


class ColdFile(msgspec.Struct, frozen=True):
    """A file that a commit lists, with its statistics; None where they are missing."""

    place: str
    path: str
    size: int
    rows: int | None = None
    log_min: int | None = None
    log_max: int | None = None
    position_min: int | None = None
    position_max: int | None = None
    next_max: int | None = None
    timestamp_max: datetime | None = None

    def may_have(self, log: int, start: int | None, end: int | None) -> bool:
        """Whether entries of the log that end after `start` and begin before `end` can be in it."""
        if self.log_min is not None and self.log_max is not None and not self.log_min <= log <= self.log_max:
            return False
        # The greatest next of any log in the file.
        if start is not None and self.next_max is not None and self.next_max <= start:
            return False
        return not (end is not None and self.position_min is not None and self.position_min >= end)


class Vanished(Exception):
    """A file does not exist. Compaction may have replaced it since it was listed."""

    def __init__(self, file: ColdFile) -> None:
        super().__init__(file.path)
        self.file = file


class RowSelection(msgspec.Struct, frozen=True):
    """The rows of a log to read: of entries that end after `start` and begin before `end`."""

    log: int
    start: int | None = None
    end: int | None = None


class FileCursor:
    """One file's rows, a row group at a time."""

    def __init__(self, store: Store, file: ColdFile, columns: Sequence[str], selection: RowSelection | None) -> None:
        self.file = file
        self._store, self._columns, self._selection = store, list(columns), selection
        self._open: pq.ParquetFile | None = None
        self._groups: list[tuple[Key, int, bool]] = []  # lowest key, number, whether all of its rows are wanted
        log = selection.log if selection is not None else _or(file.log_min, -1)
        alone = file.log_min is not None and file.log_min == file.log_max
        self.low: Key = (log, _or(file.position_min, -1) if alone or selection is not None else -1)

    def load(self) -> pa.Table | None:
        """The next row group with selected rows; None at the end. Afterwards `low` is a lower bound for the next
        one."""
        with file_errors(self._store, self.file):
            if self._open is None:
                self._open = self._store.opened(self.file.place, self.file.path)
                lacking = set(self._columns) - set(self._open.schema_arrow.names)
                if lacking:
                    raise self._corrupt(f"it has no column {sorted(lacking)[0]!r}")
                self._groups = list(self._wanted(self._open))
                self._groups.reverse()
            if self._groups and not _OURS.fullmatch(self.file.path):
                return self._sorted(self._open)
            while self._groups:
                _, number, whole = self._groups.pop()
                table = self._open.read_row_group(number, columns=self._columns).select(self._columns)
                if not whole:
                    table = self._filtered(table)
                if table.num_rows:
                    if self._groups:
                        self.low = max(self._groups[-1][0], self.low)
                    return table
            self.close()
        return None

    def _sorted(self, file: pq.ParquetFile) -> pa.Table | None:
        """All rows of a file that another tool wrote: such tools do not keep rows in order."""
        tables = [file.read_row_group(number, columns=self._columns) for _, number, _ in self._groups]
        self._groups = []
        whole = pa.concat_tables(tables).select(self._columns)
        if self._selection is not None:
            whole = self._filtered(whole)
        keys = [(name, "ascending") for name in ("log", "position", "index") if name in self._columns]
        return whole.sort_by(keys) if whole.num_rows else None

    @property
    def more(self) -> bool:
        return self._open is None or bool(self._groups)

    def close(self) -> None:
        """Close the file."""
        self._groups = []
        if self._open is not None:
            self._open.close(force=True)

    def _corrupt(self, why: str) -> Corrupt:
        return damaged(self._store, self.file, why)

    def _wanted(self, file: pq.ParquetFile) -> Iterator[tuple[Key, int, bool]]:
        footer = file.metadata
        if self.file.rows is not None and footer.num_rows != self.file.rows:
            raise self._corrupt(f"it has {footer.num_rows} rows where {self.file.rows} were committed")
        columns = (
            {footer.row_group(0).column(i).path_in_schema: i for i in range(footer.num_columns)}
            if (footer.num_row_groups)
            else {}
        )
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            (log_min, log_max), (position_min, position_max), (_, next_max) = (
                _span(group, columns[name]) for name in ("log", "position", "next")
            )
            alone = log_min is not None and log_min == log_max
            if self._selection is None:
                yield (_or(log_min, -1), _or(position_min, -1) if alone else -1), number, True
                continue
            log, start, end = self._selection.log, self._selection.start, self._selection.end
            known = ColdFile("", "", 0, None, log_min, log_max, position_min, position_max, next_max)
            if not known.may_have(log, start, end):
                continue
            whole = alone and position_min is not None and position_max is not None
            if alone and whole:
                assert position_min is not None and position_max is not None
                # An entry that begins at or after `start` ends after it; the one that covers it is found by row.
                whole = (start is None or position_min >= start) and (end is None or position_max < end)
                yield (log, position_min), number, whole
                continue
            keys = self._filtered(file.read_row_group(number, columns=["log", "position", "next"]))
            if keys.num_rows:  # the group has rows of this log
                yield (log, keys["position"][0].as_py()), number, False

    def _filtered(self, table: pa.Table) -> pa.Table:
        assert self._selection is not None
        mask = pc.equal(table["log"], self._selection.log)
        if self._selection.start is not None:
            mask = pc.and_(mask, pc.greater(table["next"], self._selection.start))
        if self._selection.end is not None:
            mask = pc.and_(mask, pc.less(table["position"], self._selection.end))
        return table.filter(mask)


class file_errors:  # noqa: N801 - used as a statement
    """Converts errors of reading one file: it is gone, it is damaged, or the store does not answer."""

    def __init__(self, store: Store, file: ColdFile) -> None:
        self._store, self._file = store, file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, Error | Vanished | GeneratorExit | KeyboardInterrupt):
            return
        store, file = self._store, self._file
        store.forget_footer(file.place, file.path)
        if isinstance(error, FileNotFoundError):
            raise Vanished(file) from error
        if isinstance(error, pa.ArrowInvalid | pa.ArrowNotImplementedError | pa.ArrowTypeError | KeyError | EOFError):
            raise damaged(store, file, plain(error)) from error
        if isinstance(error, OSError):
            # Arrow reports damage as OSError too, but without an errno and without the texts of the store.
            if error.errno is None and not any(word in str(error) for word in ("AWS Error", "S3 error", "curlCode")):
                raise damaged(store, file, plain(error)) from error
            raise store.error(f"{file.place}/{file.path}", error) from error
        if isinstance(error, pa.ArrowException | ValueError):
            raise damaged(store, file, plain(error)) from error


def damaged(store: Store, file: ColdFile, why: str) -> Corrupt:
    """The error for a damaged file, with the fix."""
    return Corrupt(
        f"the cold file {store.uri(file.place)}/{file.path} is damaged: {why}; restore it from a copy of cold "
        "storage: its entries are nowhere else"
    )


def merge(cursors: Sequence[FileCursor], keys: Sequence[str]) -> Iterator[tuple[pa.Table, list[ColdFile]]]:
    """All rows of the cursors sorted by `keys` (log, position[, index]), in tables, each with the files it is from."""
    waiting = [(cursor.low, number, cursor) for number, cursor in enumerate(cursors)]
    heapq.heapify(waiting)
    active: list[tuple[pa.Table, FileCursor, int]] = []
    try:
        while waiting or active:
            if not active:
                _take(waiting, active)
                continue
            boundary = min(_key(table, -1, keys) for table, _, _ in active)
            if waiting and waiting[0][0] <= (boundary[0], boundary[1]):
                _take(waiting, active)
                continue
            if len(active) == 1:
                table, cursor, number = active.pop()
                yield table, [cursor.file]
                _back(waiting, cursor, number)
                continue
            parts, files, rest = [], [], []
            for table, cursor, number in active:
                count = _up_to(table, boundary, keys)
                if count:
                    parts.append(table.slice(0, count))
                    files.append(cursor.file)
                if count < table.num_rows:
                    rest.append((table.slice(count), cursor, number))
                else:
                    _back(waiting, cursor, number)
            active = rest
            if len(parts) == 1:
                yield parts[0], files
            else:
                yield pa.concat_tables(parts).sort_by([(name, "ascending") for name in keys]), files
    finally:
        for cursor in cursors:
            cursor.close()


def _take(waiting: list[tuple[Key, int, FileCursor]], active: list[tuple[pa.Table, FileCursor, int]]) -> None:
    _, number, cursor = heapq.heappop(waiting)
    table = cursor.load()
    if table is not None:
        active.append((table, cursor, number))


def _back(waiting: list[tuple[Key, int, FileCursor]], cursor: FileCursor, number: int) -> None:
    if cursor.more:
        heapq.heappush(waiting, (cursor.low, number, cursor))
    else:
        cursor.close()


def _key(table: pa.Table, row: int, keys: Sequence[str]) -> tuple[int, ...]:
    at = row % table.num_rows
    return tuple(table[name][at].as_py() for name in keys)


def _up_to(table: pa.Table, boundary: tuple[int, ...], keys: Sequence[str]) -> int:
    """The number of leading rows that are not above the boundary."""
    mask: Any = None
    for name, value in zip(reversed(keys), reversed(boundary), strict=True):
        if mask is None:
            mask = pc.less_equal(table[name], value)
        else:
            mask = pc.or_(pc.less(table[name], value), pc.and_(pc.equal(table[name], value), mask))
    return int(pc.sum(mask).as_py() or 0)


def _span(group: Any, column: int) -> tuple[int | None, int | None]:
    stats = group.column(column).statistics
    return (stats.min, stats.max) if stats is not None and stats.has_min_max else (None, None)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value

"""Staged rows of a heap: stored in the order of their commits, without an index, until they are moved.

Theory of operation
-------------------
An index entry per row would make each commit write a page for each log that it touches. So small rows go to a table of
their own first, numbered in the order in which they were added. A list in memory says which numbers the rows of each
log have. Later the oldest rows are moved in bulk, combined into fewer and larger ones (`Tx.settle`).

A staged row and a stored one look the same to readers: a scan merges both. The list may have numbers of rows that a
reader does not see (not committed yet, or removed since): a row is found by its number in the reader's own view, or is
not there. What the list must never lack is a row that a reader sees:

- A row is listed before it is committed. A reader takes the lowest and the highest number of its view first, then the
  list. Numbers grow, and are not reused while the database is open.
- Rows that were moved stay listed until the next ones are moved, and rows that were deleted until the list has become
  several times as long as it need be, and is made anew. A reader with a view that is older than that, and one in a
  process that does not write, reads the numbers of all staged rows in its view, which are few.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from operator import attrgetter, gt, itemgetter, lt
from typing import Any, Final, TypeVar

from tailrace import limits
from tailrace.errors import Corrupt
from tailrace.storage import sql
from tailrace.storage.table import Key, R, StorageTable

T = TypeVar("T")
Numbers = tuple[int, int]  # the lowest and the highest
Listed = list[tuple[int, int]]  # the second key column and the number of each row, both ascending
Execute = Callable[..., Any]

MARK: Final = "?"  # the placeholder of a parameter
EVERY: Final = (0, 2**63 - 1)
_AT_ONCE: Final = (2, 16, 100)  # rows that one statement reads: few at first, a reader may want one
_TOGETHER: Final = 64  # rows whose bytes and age are known together
_second, _number = itemgetter(0), itemgetter(1)


class StagingList:
    """The numbers of the staged rows of one table, by their first key column. Used by many threads; one writes."""

    def __init__(self, table: StorageTable[Any]) -> None:
        self.table = table
        self.lowest = 0  # numbers below it are of rows that were moved
        self._floor = 0  # numbers below it are not listed
        self._since = 0  # a view without this number, or a higher one, may have rows that are not listed
        self._next = 1
        self._listed: dict[int, Listed] = {}
        self._length = 0  # of all lists
        self._length_max = limits.STAGED_LISTED_ROWS
        self.open: list[tuple[int, int]] = []  # first key column and number of rows that are not committed
        self._bytes = 0  # of all rows that were ever listed
        self._moved_bytes = 0  # and of those that were moved
        self._added: deque[tuple[int, int, int]] = deque()  # a number, the bytes up to that row, when the first came
        self._changing = threading.Lock()

    def __len__(self) -> int:
        """The number of rows that are listed, some of which may be deleted."""
        return self._length

    @property
    def empty(self) -> bool:
        """Whether no row is listed."""
        return not self._listed

    @property
    def pending(self) -> int:
        """The last number of the rows that were added and are not committed; 0 if there are none."""
        return self.open[-1][1] if self.open else 0

    def load(self, execute: Execute, since: int = 0) -> None:
        """List the rows that are staged. If there are readers, whose views may have others: `since` is the number of a
        row of the last commit, which only later views have."""
        listed, numbers = _read_listed(execute, self.table)
        size = total_bytes(execute, self.table)
        with self._changing:
            self._listed = listed
            self._moved_bytes, self._bytes = 0, size
            self._added = deque([(numbers[1], size, 0)] if size else [])
            self._length = sum(map(len, listed.values()))
            self._length_max = max(limits.STAGED_LISTED_ROWS, 2 * self._length)
            self.open.clear()
            self._next = max(self._next, numbers[1] + 1)
            self.lowest = self._floor = numbers[0] if listed else self._next
            self._since = max(self._since, since)

    @property
    def overgrown(self) -> bool:
        """Whether the list may have become long by rows that were deleted, and not moved."""
        return self._length > self._length_max

    def due(self, numbers: Numbers, least: int, now_ms: int) -> bool:
        """Whether rows are to be moved; see `Reader.staged`. Rows that were deleted may count."""
        with self._changing:
            size = self._bytes - self._moved_bytes
            rows = numbers[1] - numbers[0] + 1 + size // limits.STAGED_ROW_BYTES
            if rows >= least:
                return True
            begun_ms = self._added[0][2] if self._added else now_ms
            old = now_ms - begun_ms >= limits.STAGED_AGE_S * 1000
            return old and rows >= limits.STAGED_LOG_ROWS * len(self._listed)

    def add(self, rows: list[Any], now_ms: int = 0) -> list[Key]:
        """Number rows that are about to be staged, and list them; the values to be stored."""
        fields_of, staging, blob = self.table.fields_of, self.table.staging, self.table.blob
        assert staging is not None
        store, listed, added = staging.store, self._listed, self.open
        values: list[Key] = []
        with self._changing:
            number = self._next
            for row in rows:
                fields = fields_of(row)
                first, second = fields[0], fields[1]
                held = listed.get(first)
                if held is None:
                    held = listed[first] = []
                elif held and held[-1][0] >= second:
                    raise Corrupt(
                        f"a row of {self.table.name} would be added at {second} of {first}, which has one at "
                        f"{held[-1][0]}; run `tailrace check` and restore a backup"
                    )
                held.append((second, number))
                added.append((first, number))
                values.append(store((number, *fields)))
                self._bytes += len(fields[blob])
                number += 1
                self._next = number
                self._length += 1
            sizes = self._added
            if sizes and sizes[-1][2] and sizes[-1][0] // _TOGETHER == (number - 1) // _TOGETHER:
                now_ms = sizes.pop()[2]
            sizes.append((number - 1, self._bytes, now_ms))
        return values

    def mark(self) -> int:
        """The number of the next row."""
        return self._next

    def undo(self, mark: int = 0) -> None:
        """Rows that were added since then are rolled back."""
        with self._changing:
            while self.open and self.open[-1][1] >= mark:
                first, _ = self.open.pop()
                self._listed[first].pop()
                self._length -= 1
                if not self._listed[first]:
                    del self._listed[first]

    def ended(self, execute: Execute) -> None:
        """The transaction is over, and only the database knows how: all that was added is there, or nothing."""
        if self.open:
            found = numbers(execute, self.table)
            if found is not None and found[1] >= self.open[0][1]:
                self.committed()
            else:
                self.undo()

    def committed(self, moved: int = 0) -> None:
        """What was added is committed, and so is the move of rows up to a number."""
        self.open.clear()
        if not moved:
            return
        with self._changing:
            while self._added and self._added[0][0] <= moved:
                self._moved_bytes = self._added.popleft()[1]
            floor, self.lowest = self.lowest, moved + 1
            if floor <= self._floor:
                return
            self._floor = floor
            for first, held in list(self._listed.items()):
                gone = bisect_left(held, floor, key=_number)
                self._length -= gone
                if gone == len(held):
                    del self._listed[first]
                elif gone:
                    del held[:gone]

    def between(self, first: int, numbers: Numbers, start: int | None, before: int | None) -> Listed | None:
        """The rows with this first key column, the second one in [start, before), and their numbers among these; None
        if some may not be listed any more."""
        with self._changing:
            return _select(self._listed.get(first), numbers, start, before) if self._complete(numbers) else None

    def firsts(self, numbers: Numbers) -> list[int] | None:
        """The first key columns, with the same exception."""
        with self._changing:
            return sorted(self._listed) if self._complete(numbers) else None

    def _complete(self, numbers: Numbers) -> bool:
        """Whether all rows of a view with these numbers are listed."""
        return numbers[0] >= self._floor and numbers[1] >= self._since


class StagedView:
    """The staged rows in a view of the database: `execute` reads it, and they have these numbers. `rows`: None in a
    process that does not write."""

    def __init__(self, table: StorageTable[Any], rows: StagingList | None, execute: Execute, numbers: Numbers) -> None:
        self._table = table
        self._rows = rows
        self._execute = execute
        self._numbers = numbers
        self._own: dict[int, Listed] | None = None

    def between(self, first: int, start: int | None, before: int | None) -> Listed:
        """The rows with this first key column and the second one in [start, before). Some may not be there."""
        if self._own is None and self._rows is not None:
            found = self._rows.between(first, self._numbers, start, before)
            if found is not None:
                return found
        return _select(self._listed().get(first), EVERY, start, before)

    def firsts(self) -> list[int]:
        """The first key columns of all rows."""
        found = None if self._own is not None or self._rows is None else self._rows.firsts(self._numbers)
        return sorted(self._listed()) if found is None else found

    def covering(self, first: int, second: int) -> int | None:
        """The second key column of the last row at or below this one."""
        listed = self.between(first, None, second + 1)
        listed.reverse()
        for row in self.fetch(self._table.key[1], listed):
            return row[1]  # type: ignore[no-any-return]
        return None

    def fetch(self, columns: str, listed: Listed) -> Iterator[tuple[Any, ...]]:
        """The number and these columns of those rows that are there, lazily."""
        staging = self._table.staging
        assert staging is not None
        at = 0
        for size in chain(_AT_ONCE, repeat(_AT_ONCE[-1])):
            some = [number for _, number in listed[at : at + size]]
            if not some:
                return
            padded = some + some[-1:] * (size - len(some))  # so that few statements are prepared
            found = {row[0]: row for row in self._execute(sql.numbered(staging, columns, size, MARK), padded)}
            for number in some:
                row = found.get(number)
                if row is not None:
                    yield row
            at += size

    def _listed(self) -> dict[int, Listed]:
        if self._own is None:
            self._own, _ = _read_listed(self._execute, self._table)
        return self._own


def _read_listed(execute: Execute, table: StorageTable[Any]) -> tuple[dict[int, Listed], Numbers]:
    """All staged rows, by their first key column, and the lowest and the highest number."""
    assert table.staging is not None
    listed: dict[int, Listed] = {}
    lowest = number = 0
    for number, first, second in execute(sql.all_numbers(table.staging, table.key)):
        lowest = lowest or number
        listed.setdefault(first, []).append((second, number))
    return listed, (lowest, number)


def _select(held: Listed | None, numbers: Numbers, start: int | None, before: int | None) -> Listed:
    if held is None:
        return []
    low, high = bisect_left(held, numbers[0], key=_number), bisect_right(held, numbers[1], key=_number)
    if start is not None:
        low = bisect_left(held, start, low, high, key=_second)
    if before is not None:
        high = bisect_left(held, before, low, high, key=_second)
    return held[low:high]


def numbers(execute: Execute, table: StorageTable[Any]) -> Numbers | None:
    """The lowest and the highest number of the staged rows; None if there are none."""
    assert table.staging is not None
    ((lowest, highest),) = execute(sql.number_range(table.staging)).fetchall()
    return None if lowest is None else (lowest, highest)


def total_bytes(execute: Execute, table: StorageTable[Any]) -> int:
    """About how many bytes are staged. They are not read."""
    assert table.staging is not None
    ((size,),) = execute(sql.total_bytes(table.staging, table.columns[table.blob].name)).fetchall()
    return size or 0


def oldest(
    execute: Execute, table: StorageTable[R], rows: StagingList | None, now_ms: int, least: int, limit: int
) -> Iterator[tuple[int, R]]:
    """The rows of `Reader.staged`."""
    staging, found = table.staging, numbers(execute, table)
    assert staging is not None
    if found is None or rows is None or not rows.due(found, least, now_ms):
        return
    statement, bound = sql.scan(staging, (), None, None, None, limit, False, MARK)
    for row in map(staging.load, execute(statement, bound)):
        number, *fields = staging.fields_of(row)
        yield number, table.row(*fields)


# -- reading both


def scan(
    view: StagedView,
    table: StorageTable[R],
    stored: Callable[[int | None], Iterator[R]],
    load: Callable[[tuple[Any, ...]], Any],
    prefix: Key,
    start: Any,
    after: Any,
    before: Any,
    limit: int | None,
    reverse: bool,
    covering: Any,
) -> Iterator[R]:
    """The rows of `Reader.scan`, stored ones and staged ones. `stored` gets a limit, `load` makes a row of the staging
    table."""
    listed = _in_range(view, prefix, start, after, before, covering)
    if not listed:
        return stored(limit)
    if reverse:
        listed.reverse()
    assert table.staging is not None
    width = len(table.columns) + 1
    make = table.row

    def staged() -> Iterator[R]:
        for values in view.fetch("*", listed):
            load(values)  # verifies it
            yield make(*values[1:width])

    kept = None if limit is None else limit + 1  # of two rows that begin before `covering`, one goes
    get = table.key_of if not prefix else attrgetter(table.key[1])
    first = listed[0][0] if prefix else None
    found: Iterator[R] = _merged(stored(kept), staged(), get, gt if reverse else lt, first)
    if covering is not None:
        found = _covered(found, lambda row: get(row) <= covering, reverse)
    return found if limit is None else islice(found, limit)


def values(
    view: StagedView,
    table: StorageTable[Any],
    columns: str,
    stored: Callable[[str, int | None], list[tuple[Any, ...]]],
    prefix: Key,
    start: Any,
    limit: int | None,
    covering: Any,
) -> list[tuple[Any, ...]]:
    """The rows of `Reader.values`, stored ones and staged ones. `stored` gets columns and a limit."""
    listed = _in_range(view, prefix, start, None, None, covering)
    if not listed:
        return stored(columns, limit)
    with_key = f"{columns}, {table.key[1]}"
    kept = None if limit is None else limit + 1

    def staged() -> Iterator[tuple[Any, ...]]:
        for row in view.fetch(with_key, listed):
            yield row[1:]

    found: Iterator[tuple[Any, ...]] = _merged(stored(with_key, kept), staged(), itemgetter(-1), lt, listed[0][0])
    if covering is not None:
        found = _covered(found, lambda row: row[-1] <= covering, False)
    return [row[:-1] for row in (found if limit is None else islice(found, limit))]


def _in_range(view: StagedView, prefix: Key, start: Any, after: Any, before: Any, covering: Any) -> Listed:
    if not prefix:
        assert start is after is before is covering is None, "a range of staged rows has a prefix"
        return [row for first in view.firsts() for row in view.between(first, None, None)]
    first = prefix[0]
    if len(prefix) > 1:
        return view.between(first, prefix[1], prefix[1] + 1)
    if after is not None:
        start = after + 1 if start is None else max(start, after + 1)
    if covering is not None:
        begin = view.covering(first, covering)
        begin = covering if begin is None else begin
        start = begin if start is None else max(start, begin)
    return view.between(first, start, before)


def _merged(
    stored: Iterable[T],
    staged: Iterator[T],
    key: Callable[[T], Any],
    comes_first: Callable[[Any, Any], bool],
    first: Any,
) -> Iterator[T]:
    """Both in order. Mostly one is before all of the other, which costs a comparison for each row. No staged row comes
    before the key `first`, if it is known: none is read before it is needed."""
    stored = iter(stored)
    if first is not None:
        for row in stored:
            if comes_first(first, key(row)):
                stored = chain((row,), stored)
                break
            yield row
    waiting = next(staged, None)
    if waiting is None:
        yield from stored
        return
    at = key(waiting)
    for row in stored:
        while waiting is not None and comes_first(at, key(row)):
            yield waiting
            waiting = next(staged, None)
            if waiting is not None:
                at = key(waiting)
        yield row
    if waiting is not None:
        yield waiting
    yield from staged


def _covered(rows: Iterator[T], before: Callable[[T], bool], reverse: bool) -> Iterator[T]:
    """The rows without those before the last one for which `before` is true."""
    if reverse:
        for row in rows:
            yield row
            if before(row):
                return
        return
    last: list[T] = []
    for row in rows:
        if before(row):
            last = [row]
            continue
        yield from last
        last = []
        yield row
        break
    yield from last
    yield from rows

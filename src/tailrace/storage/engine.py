"""The interface of storage engines: rows in tables, one writer, readers that see whole commits.

Theory of operation
-------------------
A `Tx` serves a batch of commands that share one commit. Commands read and write rows; writes are buffered in
memory and reach the database in bulk at `flush`. Each command is independent: after it, the runner calls `keep`, or
`undo`, which reverts just that command. While a command only gets, puts and adds, reverting walks a small journal. A
command that must see its own buffered writes in a range (`scan`, `remove_range`) makes the engine flush early, behind a
savepoint; so the common path never pays for one.

Nothing a `Tx` wrote is visible to a `Reader` before the commit is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from tailrace.errors import Unavailable
from tailrace.storage.notice import Notice as Notice
from tailrace.storage.packing import Packed as Packed
from tailrace.storage.table import META, Key, MetaRow, R, StorageTable

if TYPE_CHECKING:  # it imports SQLite, which most CLI commands do not need
    from tailrace.storage.scratch import Scratch

_ABSENT: Final[Any] = object()
_DELETED: Final[Any] = None
Peek = Callable[..., Any]  # of a table and a key: the row, if it is in memory; otherwise it will be read
UNSTORABLE: Final = "UNSTORABLE"  # the code of a flush that failed for a value, not for the storage
LOST: Final = "DATABASE_LOST"  # the code of an error where the database was not reached, and nothing was written
NOT_LEADER: Final = "NOT_LEADER"  # the code of a server that may not write, since another one does


def closed() -> Unavailable:
    """The error of a closed database."""
    return Unavailable("the database is closed; open it again", code="CLOSED")


def unstorable(table: StorageTable[Any], error: Exception) -> Unavailable:
    """The error for a value that its column cannot store: a bug of the command, not damage of the database."""
    return Unavailable(
        f"a row of {table.name} cannot be stored ({error}), and nothing that shared its commit was written; "
        "if your command has no such value, try again",
        code=UNSTORABLE,
    )


class Reader(Protocol):
    """A consistent view of committed rows."""

    now_ms: int  # when it was opened
    lag_ms: int  # by how much the confirmed time was behind it (`clock.py`)
    cold: Any  # the `ColdReader` (`log/cold.py`); None without cold storage
    recent: Any  # the `RecentSegments` (`log/recent.py`), if any
    exports: Any  # the exports of tables (`tables/export.py`), if any
    vault: Any  # decrypts the secrets in rows (`storage/vault.py`)

    @property
    def settled_ms(self) -> int:
        """The time for deletion by age: `now_ms`, unless the clock has jumped."""

    def version(self, table: StorageTable[Any]) -> int | None:
        """A number that is the same as long as no row of the table is committed; None: it is not known. It is of this
        view, if it is the same before and after something was read."""

    def get(self, table: StorageTable[R], *key: Any) -> R | None:
        """The row with this key."""

    def get_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        """As `get`, for many keys: a prefix, and each value in `last`. By these values, the rows that exist."""

    def scan(
        self,
        table: StorageTable[R],
        *prefix: Any,
        start: Any = None,
        after: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        covering: Any = None,
    ) -> Iterator[R]:
        """Rows whose key begins with `prefix`, in key order. The bounds are on the key column after the prefix:
        `start` includes, `after` and `before` exclude; `covering` includes the last row at or below it. Lazy: take
        what you need before the next call."""

    def values(
        self,
        table: StorageTable[Any],
        columns: str,
        *prefix: Any,
        start: Any = None,
        limit: int | None = None,
        covering: Any = None,
    ) -> list[tuple[Any, ...]]:
        """Some columns ("position, next") of rows whose key begins with `prefix`, from `start` on or as `scan` from
        `covering` on, in key order. Other columns are not read: bodies may be large."""

    def packed(
        self,
        table: StorageTable[Any],
        numbers: tuple[str, ...],
        body: str,
        *prefix: Any,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        """Columns of numbers and one of bytes, of rows whose key begins with `prefix`, in key order, from `start` on
        and below `before`: at least one if there is any, then up to `limit` rows and `bytes_max`. For bulk reads: there
        is hardly an object per row, and other threads run meanwhile."""

    def staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        """The oldest staged rows, up to `limit`, and their numbers; none unless about `least` rows are staged, of which
        large ones count as several, or fewer that are old and belong to few logs. For `Tx.settle`. Lazy, as `scan`."""


class Tx(ABC):
    """The one write transaction. Not for use by two threads at once."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms  # the same for all commands of a batch
        self.lag_ms = 0  # as a reader's
        self.by = ""  # the principal that runs the current command
        self.exports: Mapping[int, Sequence[Any]] = {}  # by space, exports that need the old items
        self.router: Callable[..., None] | None = None  # turns changes of tables into messages of topics
        self.cold: Any = None  # as a reader's
        self.recent: Any = None  # as a reader's, but none is added: what a transaction sees may not be durable yet
        self.vault: Any = None  # likewise
        self.notices: list[Notice] = []
        self._dirty: dict[StorageTable[Any], dict[Key, Any]] = {}
        self._added: dict[StorageTable[Any], list[Any]] = {}
        self._journal: list[tuple[Any, Any, Any]] = []
        self._flushed: dict[StorageTable[Any], dict[Key, Any]] = {}
        self._saved = False
        self.wrote = False  # whether any row was written
        self.tentative = False  # whether its writes are tried only, and never stored

    # -- for commands

    @property
    def settled_ms(self) -> int:
        """As a reader's."""
        return self.now_ms - self.lag_ms

    def get(self, table: StorageTable[R], *key: Any) -> R | None:
        """The row with this key, as this transaction has left it."""
        dirty = self._dirty.get(table)
        if dirty is not None:
            row = dirty.get(key, _ABSENT)
            if row is not _ABSENT:
                return row  # type: ignore[no-any-return]
        return self._load(table, key)

    def version(self, table: StorageTable[Any]) -> int | None:
        """As a reader's: a transaction in which rows are written has none."""
        return None

    def get_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]:
        """As `get`, for many keys: a prefix, and each value in `last`. By these values, the rows that exist."""
        found = self._load_each(table, prefix, last)
        dirty = self._dirty.get(table)
        if dirty:
            for value in last:
                row = dirty.get((*prefix, value), _ABSENT)
                if row is _DELETED:
                    found.pop(value, None)
                elif row is not _ABSENT:
                    found[value] = row
        return found

    def put(self, table: StorageTable[R], row: R) -> None:
        """Insert the row, or replace the one with its key."""
        assert not table.heap, f"rows of {table.name} are added, not put"
        self._set(table, table.key_of(row), row)

    def put_each(self, table: StorageTable[R], rows: Mapping[Key, R | None]) -> None:
        """As `put`, and `delete` where there is None, for many rows by their keys. Cheaper than one by one."""
        assert not table.heap, f"rows of {table.name} are added, not put"
        dirty = self._dirty.setdefault(table, {})
        self._journal.append((dirty, dict(rows), {key: dirty[key] for key in rows.keys() & dirty.keys()}))
        dirty.update(rows)

    def delete(self, table: StorageTable[R], *key: Any) -> None:
        """Remove the row with this key, if there is one."""
        self._set(table, key, _DELETED)

    def add(self, table: StorageTable[R], row: R) -> None:
        """Add a row to a heap. Its key must be new."""
        rows = self._added.get(table)
        if rows is None:
            rows = self._added[table] = []
        rows.append(row)
        self._journal.append((rows, None, None))

    def add_each(self, table: StorageTable[R], rows: list[R]) -> None:
        """As `add`, for many rows. Cheaper than one by one."""
        added = self._added.get(table)
        if added is None:
            added = self._added[table] = []
        added += rows
        self._journal.append((added, len(rows), None))

    def scan(
        self,
        table: StorageTable[R],
        *prefix: Any,
        start: Any = None,
        after: Any = None,
        before: Any = None,
        limit: int | None = None,
        reverse: bool = False,
        covering: Any = None,
    ) -> Iterator[R]:
        """As `Reader.scan`, over what this transaction has written so far."""
        if self._dirty.get(table) or self._added.get(table):
            self._flush_early()
        return self._select(table, prefix, start, after, before, limit, reverse, covering)

    def values(
        self,
        table: StorageTable[Any],
        columns: str,
        *prefix: Any,
        start: Any = None,
        limit: int | None = None,
        covering: Any = None,
    ) -> list[tuple[Any, ...]]:
        """As `Reader.values`, over what this transaction has written so far."""
        if self._dirty.get(table) or self._added.get(table):
            self._flush_early()
        return self._select_values(table, columns, prefix, start, limit, covering)

    def packed(
        self,
        table: StorageTable[Any],
        numbers: tuple[str, ...],
        body: str,
        *prefix: Any,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed:
        """As `Reader.packed`, over what this transaction has written so far."""
        if self._dirty.get(table) or self._added.get(table):
            self._flush_early()
        return self._select_packed(table, numbers, body, prefix, start, before, limit, bytes_max)

    def remove_range(self, table: StorageTable[R], *prefix: Any, before: Any = None, limit: int) -> int:
        """Remove up to `limit` rows under `prefix` from the lowest key on; how many were removed."""
        self._flush_early(always=True)
        self.wrote = True
        self._flushed.pop(table, None)  # rows that this transaction has written may be among them
        return self._remove(table, prefix, before, limit)

    def staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]:
        """As `Reader.staged`, over what this transaction has written so far."""
        if self._added.get(table):
            self._flush_early()
        return self._select_staged(table, least, limit)

    def settle(self, table: StorageTable[R], first: int, last: int, count: int, rows: list[R]) -> bool:
        """Store rows in place of the oldest staged ones, of which `first` is the lowest number and `last` the highest.
        False, and nothing is done, if these are not the oldest any more, or are not as many as `count`."""
        self._flush_early(always=True)
        self.wrote = True
        return self._settle(table, first, last, count, rows)

    def notify(self, log: int, item: Any) -> None:
        """Notify the waiters of `log` of `item` once the commit is durable."""
        self.notices.append(Notice(log, item))
        self._journal.append((self.notices, None, None))

    def notify_each(self, notices: list[Notice]) -> None:
        """As `notify`, for many notices. Cheaper than one by one."""
        self.notices += notices
        self._journal.append((self.notices, len(notices), None))

    def next_id(self, name: str, count: int = 1) -> int:
        """The next number of a counter, the first of `count`; numbers are never reused."""
        row = self.get(META, f"counter/{name}")
        number = int(row.value) + 1 if row else 1
        self.put(META, MetaRow(f"counter/{name}", b"%d" % (number + count - 1)))
        return number

    # -- for the runner

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return self.wrote or any(self._added.values()) or any(self._dirty.values())

    def fetch_ahead(self, declare: Sequence[Callable[[Peek], None]]) -> None:  # noqa: B027 - most need none
        """Read the rows that a batch of commands is going to get, as they declare (`Command.prefetch`), all at once. An
        engine that is not `blocking` does nothing: its reads are cheap."""

    def keep(self) -> None:
        """The command succeeded: its writes stay."""
        if self._journal:
            self._journal.clear()
        if self._saved:
            self._release()
            self._saved = False

    def undo(self) -> None:
        """The command failed: revert its writes."""
        self._unwind()
        if self._saved:
            self._rollback_to()
            self._release()
            self._saved = False
            self._flushed.clear()

    def flush(self) -> None:
        """Write everything buffered into the open transaction, table by table. Raises `Unavailable` UNSTORABLE if a row
        has a value that cannot be stored."""
        for table, rows in self._added.items():
            if rows:
                self.wrote = True
                self._insert(table, rows)
                rows.clear()
        for table, dirty in self._dirty.items():
            if dirty:
                self.wrote = True
                self._write(table, dirty)
                if table.cached or table.recent_bytes:
                    self._flushed.setdefault(table, {}).update(dirty)
                dirty.clear()

    @abstractmethod
    def commit(self) -> None:
        """Make it durable, then visible. A failure here stops the writer: the outcome may be unknown."""

    @abstractmethod
    def ended(self) -> bool:
        """Whether the transaction is over: after `commit` without an error, whether it is durable."""

    @abstractmethod
    def rollback(self) -> None:
        """Drop the whole batch."""

    # -- mechanics

    def _set(self, table: StorageTable[Any], key: Key, row: Any) -> None:
        dirty = self._dirty.get(table)
        if dirty is None:
            dirty = self._dirty[table] = {}
        self._journal.append((dirty, key, dirty.get(key, _ABSENT)))
        dirty[key] = row

    def _unwind(self) -> list[tuple[Any, Any, Any]]:
        """Revert the current command's buffered writes; returns them, to be applied again."""
        redo: list[tuple[Any, Any, Any]] = []
        while self._journal:
            holder, key, before = self._journal.pop()
            if key is None:
                redo.append((holder, None, holder.pop()))
            elif type(key) is int:  # of `add_each` and `notify_each`
                redo.append((holder, key, holder[len(holder) - key :]))
                del holder[len(holder) - key :]
            elif type(key) is dict:  # of `put_each`: the rows, and those of them that were there before
                redo.append((holder, key, None))
                for each in key:
                    del holder[each]
                holder.update(before)
            else:
                redo.append((holder, key, holder[key]))
                if before is _ABSENT:
                    del holder[key]
                else:
                    holder[key] = before
        redo.reverse()
        return redo

    def _flush_early(self, *, always: bool = False) -> None:
        """Flush in the middle of a command, so that `undo` still reverts this command alone."""
        if not self._journal and not always:
            self.flush()
            return
        notices = len(self.notices)
        redo = self._unwind()
        if not self._saved:
            self.flush()
            self._savepoint()
            self._saved = True
        for holder, key, value in redo:
            if holder is self.notices:
                self._journal.append((holder, key, None))
            if key is None:
                holder.append(value)
            elif type(key) is int:
                holder += value
            elif type(key) is dict:
                holder.update(key)
            else:
                holder[key] = value
        assert len(self.notices) == notices
        self.flush()

    @abstractmethod
    def _load(self, table: StorageTable[R], key: Key) -> R | None: ...

    @abstractmethod
    def _load_each(self, table: StorageTable[R], prefix: Key, last: Sequence[Any]) -> dict[Any, R]: ...

    @abstractmethod
    def _select(
        self,
        table: StorageTable[R],
        prefix: Key,
        start: Any,
        after: Any,
        before: Any,
        limit: int | None,
        reverse: bool,
        covering: Any,
    ) -> Iterator[R]: ...

    @abstractmethod
    def _select_values(
        self, table: StorageTable[Any], columns: str, prefix: Key, start: Any, limit: int | None, covering: Any
    ) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _select_packed(
        self,
        table: StorageTable[Any],
        numbers: tuple[str, ...],
        body: str,
        prefix: Key,
        start: Any,
        before: Any,
        limit: int,
        bytes_max: int,
    ) -> Packed: ...

    @abstractmethod
    def _insert(self, table: StorageTable[Any], rows: list[Any]) -> None: ...

    @abstractmethod
    def _write(self, table: StorageTable[Any], rows: dict[Key, Any]) -> None: ...

    @abstractmethod
    def _remove(self, table: StorageTable[Any], prefix: Key, before: Any, limit: int) -> int: ...

    @abstractmethod
    def _select_staged(self, table: StorageTable[R], least: int, limit: int) -> Iterator[tuple[int, R]]: ...

    @abstractmethod
    def _settle(self, table: StorageTable[Any], first: int, last: int, count: int, rows: list[Any]) -> bool: ...

    @abstractmethod
    def _savepoint(self) -> None: ...

    @abstractmethod
    def _rollback_to(self) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...


class Engine(Protocol):
    """A storage engine."""

    blocking: bool  # whether a call may wait for another machine: then it never runs on an event loop's thread

    @property
    def floor_ms(self) -> int:
        """The latest time that another machine has used to write; 0 if there is none."""

    def begin(self, now_ms: int) -> Tx:
        """Open the write transaction. One at a time."""

    def reader(self, now_ms: int = 0, *, single: bool = False) -> AbstractContextManager[Reader]:
        """A view of the committed rows; keep it short. `single`: each row is of some commit that was durable when it
        was read, but two rows may be of two commits, and nothing is scanned."""

    def verify(self) -> None:
        """Raise `Unavailable` DATABASE_GONE if the files of the database are no longer in place, and `Corrupt`
        WAL_DAMAGED if `examine` found damage."""

    def examine(self) -> None:
        """Verify data that is not verified by every read; from any thread, regularly. `verify` and every reader report
        damage from then on."""

    def brief(self) -> bool:
        """Whether the next commit, if it is small, does no more than to write and sync what it has written."""

    def make_room(self, freeing: bool) -> None:
        """After DISK_FULL, before a transaction: release the reserve if the transaction only frees space; or take it
        again, as far as there is room."""

    def roomy(self) -> bool:
        """Whether there is room for ordinary writes, after DISK_FULL and a successful commit."""

    def scratch(self) -> Scratch:
        """Temporary storage that does not outlive the process."""

    def close(self) -> None:
        """Close; everything acknowledged is already durable."""

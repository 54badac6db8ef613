"""Exports: all items of a table, or a range of them, at one sequence, read a page at a time, however slowly.

Theory of operation
-------------------
Each page is read in a short read transaction of its own, which sees the table as it is then; a transaction that lasted
from the first page to the last would keep SQLite from reusing its write-ahead log. Later changes are reverted with *old
images*: while an export is open, the writer saves the old image of each item that it changes for the first time and
that the export has not read yet (`save`). An old image is the item as it was when the export began, even if the write
failed: so it replaces the item in the page, or is added if the item is gone. A page reads the old images after its
rows; the old image of a change that it saw was saved before the commit. Writes from before the export have no old
images: it begins between two commits (`Runner.between`).

Old images that the export has passed are dropped. If the remaining ones exceed EXPORT_IMAGES_BYTES, the export fails
with an error; the writer never waits and never fails for it.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Permission, Principal
from tailrace.command import Query
from tailrace.errors import Error, Gone, Unavailable
from tailrace.storage.engine import Packed, Reader
from tailrace.storage.scratch import Scratch
from tailrace.tables import change_stream, value
from tailrace.tables import key as keys
from tailrace.tables.definition import ITEMS, TABLES, Definition, decoded, find

AFTER_ALL: Final = b"\xff" * 8192  # keys of items are shorter
_IMAGES_AT_ONCE: Final = 500  # read while the writer may wait
T = TypeVar("T")
logger = logging.getLogger("tailrace.export")


class ExportStart(msgspec.Struct, frozen=True):
    """The range of an export: the items of a table with keys from `start` on and below `before`."""

    definition: Definition
    sequence: int
    start: bytes = b""
    before: bytes = AFTER_ALL


S = TypeVar("S", bound=ExportStart)


class BeginExport(Query[list[ExportStart]], frozen=True):
    """The range of an export that begins now: of a whole table, or one of the segments that it is divided into."""

    subject = ("tables", "table")

    table: str
    segment: int = 0
    segments: int = 1

    def run(self, reader: Reader) -> list[ExportStart]:
        start, before = keys.segment_bounds(self.segment, self.segments)
        definition, sequence = find(reader, self.table), change_stream.last_sequence(reader)
        return [ExportStart(definition, sequence, start or b"", before or AFTER_ALL)]


class Export:
    """A running export. `save` is for the writer; the rest is for one reader at a time, on any thread."""

    def __init__(self, of: ExportStart, scratch: Scratch, statement: bool = False) -> None:
        """`statement`: it belongs to a SELECT, and does not count towards EXPORTS_MAX."""
        self.table = of.definition.name
        self.space = of.definition.space
        self.sequence = of.sequence
        self.keys = of.definition.keys
        self.statement = statement
        self.before = of.before
        self._start = of.start  # items before this key were read, or are outside the range
        self._scratch = scratch
        self._lock = threading.Lock()
        self._failed: Error | None = None
        self._closed = False

    def save(self, key: bytes, body: bytes | None) -> None:
        """Save the old image of an item before a write, if it was not saved yet and is still to be read."""
        with self._lock:
            if key < self._start or key >= self.before or self._failed is not None or self._closed:
                return
            try:
                self._scratch.keep(key, body)
            except Error as error:
                self._failed = error
            else:
                if self._scratch.bytes <= limits.EXPORT_IMAGES_BYTES:
                    return
                self._failed = Unavailable(
                    f"more than {limits.EXPORT_IMAGES_BYTES} bytes of items of {self.table!r} changed before they were "
                    "read; read the items again, faster or when there are fewer writes",
                    code="EXPORT_BEHIND",
                )
            self._scratch.forget(AFTER_ALL)
        logger.warning("the export of the items of %r failed: %s", self.table, self._failed)

    def images(self, until: bytes | None) -> tuple[list[tuple[bytes, bytes | None]], bool]:
        """The old images from the export's position up to a key, and whether these are all; not too many at once."""
        found: list[tuple[bytes, bytes | None]] = []
        start, size = self._start, 0
        while len(found) < limits.BULK_ENTRIES and size < limits.EXPORT_PAGE_BYTES:
            with self._lock:
                self._check()
                some = self._scratch.between(start, until, _IMAGES_AT_ONCE)
            found += some
            if len(some) < _IMAGES_AT_ONCE:
                return found, True
            start = some[-1][0] + b"\0"
            size += sum(len(body) for _, body in some if body is not None)
        return found, False

    def passed(self, until: bytes) -> None:
        """Items up to this key were read."""
        with self._lock:
            self._check()
            self._start = until + b"\0"
            self._scratch.forget(until)

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("the export was closed; read the items again", code="EXPORT_CLOSED")
        if self._failed is not None:
            raise self._failed

    @property
    def start(self) -> bytes:
        """The first key that was not read yet."""
        return self._start

    def page(self, reader: Reader) -> Packed | None:
        """The next items, as `ReadExport`."""
        row = reader.get(TABLES, self.table)
        definition = None if row is None else decoded(row)
        if definition is None or definition.space != self.space:
            raise Gone(
                f"table {self.table!r} was dropped while its items were read; the pages before this are complete"
            )
        start = self.start
        found = reader.packed(
            ITEMS, ("size",), "body", self.space, start=start, before=self.before, limit=limits.BULK_ENTRIES,
            bytes_max=limits.EXPORT_PAGE_BYTES,
        )  # fmt: skip
        until: bytes | None = None
        if found.sizes:
            last = value.decode(found.body[-found.sizes[-1] :])
            until = keys.key_of(definition, {name: last[name] for name in definition.keys})
        images, whole = self.images(until)
        if not whole:
            until = images[-1][0]
        if images:
            rows = reader.scan(ITEMS, self.space, start=start, limit=len(found.sizes))
            found = _merged([(row.key, row.body) for row in rows if until is None or row.key <= until], images)
        self.passed(AFTER_ALL if until is None else until)
        return found if found.sizes or until is not None else None

    def close(self) -> None:
        """Save no more images, and drop the saved ones. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._scratch.close()


class ReadExport(Query[Packed | None], frozen=True):
    """The next items of an export, as they were when it began. A page may be empty if all its items are new; None:
    there are no more. Each call continues after the last."""

    permission = Permission.SYSTEM  # the permission was checked when the export began

    export: Export

    def run(self, reader: Reader) -> Packed | None:
        return self.export.page(reader)


def _merged(rows: list[tuple[bytes, bytes]], images: list[tuple[bytes, bytes | None]]) -> Packed:
    """Rows as they were: those with an old image are replaced by it, or left out if there was none."""
    items: dict[bytes, bytes | None] = dict(rows)
    items.update(images)
    bodies = [body for _, body in sorted(items.items()) if body is not None]
    return Packed((), array("q", map(len, bodies)), b"".join(bodies))


class ExportWriter(Protocol):
    """The part of the runner that exports use: each transaction sees them, and they begin and end between two."""

    exports: Mapping[int, Sequence[Any]]

    def between(self, work: Callable[[], T]) -> T: ...


class Exports:
    """The running exports of a database. From any thread but an event loop's."""

    def __init__(self, scratch: Callable[[], Scratch], writer: ExportWriter, execute: Callable[..., Any]) -> None:
        self._scratch = scratch
        self._writer = writer
        self._execute = execute

    def begin(self, table: str, principal: Principal = SYSTEM, segment: int = 0, segments: int = 1) -> Export:
        """Begin to read all items of a table as they are now, or those of a segment. Read on with `ReadExport`; `end`
        it."""
        query = BeginExport(table, segment, segments)
        self._execute(query, principal)  # raises if the table does not exist or may not be read
        return self._begin(query, [self._scratch()], statement=False)[0][1]

    def begin_together(self, query: Query[list[S]], count: int) -> list[tuple[S, Export]]:
        """Begin the exports of a statement, all at one moment; equal ranges share one export. `count` is the expected
        number of ranges. The caller has checked the permission."""
        scratches: list[Scratch] = []
        try:
            while len(scratches) < count:
                scratches.append(self._scratch())
        except BaseException:
            for scratch in scratches:
                scratch.close()
            raise
        return self._begin(query, scratches, statement=True)

    def _begin(self, query: Query[list[S]], scratches: list[Scratch], *, statement: bool) -> list[tuple[S, Export]]:
        def begin() -> list[tuple[S, Export]]:
            exports = dict(self._writer.exports)
            under_way = sum(not export.statement for some in exports.values() for export in some)
            if not statement and under_way >= limits.EXPORTS_MAX:
                raise Unavailable(
                    f"{limits.EXPORTS_MAX} exports of items are running; try again when one has ended",
                    code="SCANS_BUSY",
                )
            begun: dict[tuple[int, bytes, bytes], Export] = {}
            found: list[tuple[S, Export]] = []
            for of in self._execute(query):
                bounds = of.definition.space, of.start, of.before
                export = begun.get(bounds)
                if export is None:
                    export = begun[bounds] = Export(of, scratches.pop() if scratches else self._scratch(), statement)
                    exports[export.space] = (*exports.get(export.space, ()), export)
                found.append((of, export))
            self._writer.exports = exports
            return found

        try:
            return self._writer.between(begin)
        finally:
            for scratch in scratches:  # that were not needed
                scratch.close()

    def read(self, export: Export) -> Packed | None:
        """The next page of an export, as `ReadExport`."""
        found: Packed | None = self._execute(ReadExport(export))
        return found

    def end(self, *ended: Export) -> None:
        """End exports, whether they were read completely or not. Idempotent."""

        def end() -> None:
            exports = dict(self._writer.exports)
            for space in {export.space for export in ended}:
                left = tuple(each for each in exports.pop(space, ()) if each not in ended)
                if left:
                    exports[space] = left
            self._writer.exports = exports

        self._writer.between(end)
        for export in ended:
            export.close()

    def close(self) -> None:
        """Drop the images of all exports; nothing is written any more."""
        for exports in self._writer.exports.values():
            for export in exports:
                export.close()

"""Reads the rows of a log, in order, and proves that none is missing.

Entries of a log tile its positions. So a reader can check by itself that it has all of them: the first entry covers the
start position, each begins where the one before ended, and the last reaches the end. Anything else is `Corrupt`, with
the name of the file. A range may be cut anywhere: an entry belongs to the range that its position is in.

Compaction replaces files while they are read. A file that is gone and no longer listed is no damage: the reader lists
the files again and continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.cold.merging import ColdFile, FileCursor, RowSelection, Vanished, damaged, merge
from tailrace.cold.schemas import schema_of
from tailrace.cold.store import Store
from tailrace.cold.writing import out_of_order
from tailrace.errors import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable

_NAMES = {
    "path": "path",
    "size": "size_bytes",
    "rows": "num_records",
    "log_min": "min.log",
    "log_max": "max.log",
    "position_min": "min.position",
    "position_max": "max.position",
    "next_max": "max.next",
    "timestamp_max": "max.timestamp",
}


class ColdListing:
    """The files of a Delta table at one version."""

    def __init__(self, place: str, table: DeltaTable | None) -> None:
        self.place = place
        self.version = -1 if table is None else table.version()
        self.files: list[ColdFile] = []
        if table is None:
            return
        if table.protocol().min_reader_version > 1:
            raise Invalid(
                f"the Delta table {table.table_uri} was changed by a writer with features that readers must support "
                "(deletion vectors, renamed columns); undo that, or copy it to a new one without them"
            )
        listed = pa.table(table.get_add_actions(flatten=True))
        columns = {ours: _column(listed, theirs) for ours, theirs in _NAMES.items()}
        rows = zip(*(columns[name] for name in _NAMES), strict=True)
        self.files = [ColdFile(place, *row) for row in rows]

    def having(self, log: int, start: int | None, end: int | None) -> list[ColdFile]:
        """Files that may have such entries, in order of position."""
        found = [file for file in self.files if file.may_have(log, start, end)]
        return sorted(found, key=lambda file: (file.position_min or 0, file.next_max or 0, file.path))


def listing(store: Store, place: str) -> ColdListing:
    """The current listing."""
    table = store.delta(place)
    with store.wrap_errors(place):
        return ColdListing(place, table)


def files(store: Store, place: str, log: int, start: int | None = None, end: int | None = None) -> list[ColdFile]:
    """The files that may have entries of the log in [start, end), or the one that covers `start`."""
    return listing(store, place).having(log, start, end)


def read(
    store: Store,
    files: Sequence[ColdFile],
    log: int,
    start: int | None = None,
    end: int | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of entries whose position is in [start, end), in order, with these columns (default: all).

    With a start, the entry that covers it must be there; with an end, entries up to it. A few row groups are in memory
    at once."""
    if start is not None and end is not None and start >= end:
        return
    if not files:
        if start is not None and end is not None:
            raise Corrupt(
                f"no file of {store.url} has positions {start} to {end} of log {log}, which are marked as tiered; "
                "check the Delta history there"
            )
        return
    place = files[0].place
    chain = EntryChain(store, place, log, start, end)
    wanted = list(columns) if columns is not None else schema_of(place).names
    present = list(files)
    for _ in range(limits.COLD_COMMIT_TRIES):
        try:
            yield from rows(store, present, chain, wanted)
        except Vanished as vanished:
            present = again(store, vanished, chain).having(log, chain.at, end)
            chain.resume()
        else:
            chain.ended()
            return
    raise Unavailable(f"files of {store.uri(place)} are replaced faster than they can be read; try again")


def again(store: Store, vanished: Vanished, chain: EntryChain) -> ColdListing:
    """The current listing, after a file was missing. Corrupt if that file is still listed: then it is lost."""
    fresh = listing(store, vanished.file.place)
    if any(file.path == vanished.file.path for file in fresh.files):
        raise Corrupt(
            f"the cold file {store.uri(vanished.file.place)}/{vanished.file.path} is missing; it holds positions of "
            f"log {chain.log}: restore it from a copy of cold storage: its entries are nowhere else"
        ) from vanished
    return fresh


def rows(
    store: Store, files: Sequence[ColdFile], chain: EntryChain, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of these files from the position of the chain on, checked. Raises Vanished."""
    schema = schema_of(chain.place)
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise Invalid(f"{chain.place!r} has no column {sorted(unknown)[0]!r}; it has {', '.join(schema.names)}")
    fetched = [name for name in schema.names if name in {*columns, *chain.names}]
    target = pa.schema([schema.field(name) for name in fetched])
    selection = RowSelection(chain.log, chain.at, chain.end)
    cursors = [FileCursor(store, file, fetched, selection) for file in files]
    for table, sources in merge(cursors, [name for name in chain.names if name != "next"]):
        if table.schema.types != target.types:  # another tool rewrote the file
            table = table.cast(target)
        table = chain.check(table, sources)
        if table.num_rows:
            yield from table.select(list(columns)).to_batches()


class EntryChain:
    """Checks that the entries read from a log follow each other without a gap."""

    def __init__(
        self, store: Store, place: str, log: int, start: int | None, end: int | None, *, covering: bool = False
    ) -> None:
        self.store, self.place, self.log = store, place, log
        self.start, self.end = start, end
        self.covering = covering  # include the entry that covers the start, although it begins before
        self.files: Sequence[ColdFile] = ()  # the files of the rows that were checked last
        self.names = [name for name in ("log", "position", "next", "index") if name in schema_of(place).names]
        self.at = start  # where reading continues: the start, or the position of the last entry
        self.tail: pa.Table | None = None  # its last row
        self.resumed = False

    def check(self, table: pa.Table, files: Sequence[ColdFile]) -> pa.Table:
        """The rows in the range that were not read before; Corrupt if any is missing, duplicated or out of order."""
        self.files = files
        if self.resumed:
            table = self._unread(table)
            if table.num_rows == 0:
                return table
        keys = table.select(self.names)
        first = keys.slice(0, 1).to_pylist()[0]
        if self.tail is None:
            if first.get("index", 0) != 0:
                raise damaged(self.store, files[0], f"the entry at position {first['position']} has no first record")
            if self.start is not None and first["position"] > self.start:
                raise self._gap(files[0], self.start, first["position"])
        else:
            keys = pa.concat_tables([self.tail, keys])
        problem = out_of_order(keys.combine_chunks(), gaps=False) if keys.num_rows > 1 else None
        if problem is not None:
            raise damaged(self.store, files[0], f"it does not continue log {self.log} of {self.place!r}: {problem}")
        self.tail = keys.slice(keys.num_rows - 1).combine_chunks()
        self.at = self.tail["position"][0].as_py()
        if not self.covering and self.start is not None and first["position"] < self.start:
            # The entry that covers the start proves that none is missing, and belongs to the range before.
            table = table.filter(pc.greater_equal(table["position"], self.start))
        return table

    def resume(self) -> None:
        """Continue with other files, which may repeat rows of the last entry."""
        self.resumed = self.tail is not None

    def _unread(self, table: pa.Table) -> pa.Table:
        """Without the rows that were read before the files were listed again."""
        assert self.tail is not None
        old = pc.equal(table["position"], self.at)
        if "index" in self.names:
            old = pc.and_(old, pc.less_equal(table["index"], self.tail["index"][0]))
        table = table.filter(pc.invert(old))
        self.resumed = table.num_rows == 0
        return table

    def ended(self) -> None:
        """All files were read: Corrupt if the end was not reached."""
        reached = self.start if self.tail is None else self.tail["next"][0].as_py()
        if self.end is not None and reached is not None and reached < self.end:
            raise Corrupt(
                f"log {self.log} at {self.store.uri(self.place)} ends at position {reached}, and should continue to "
                f"{self.end}; a commit or a file is missing: check its Delta history"
            )

    def _gap(self, file: ColdFile, start: int, first: int) -> Corrupt:
        return Corrupt(
            f"positions {start} to {first} of log {self.log} are missing at {self.store.uri(self.place)}: the first "
            f"ones there are in {file.path}; check the Delta history of that table"
        )


def _column(listed: pa.Table, name: str) -> list[Any]:
    return listed[name].to_pylist() if name in listed.column_names else [None] * listed.num_rows

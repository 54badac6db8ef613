"""Rows to Parquet files, files to a commit; once each.

Theory of operation
-------------------
Whoever has the rows (an executor) writes files under random names. They are durable and unknown: no reader looks at a
file that no commit lists. Whoever drives then lists them all in one Delta commit, which carries an *application
transaction*: a name and a generation. Delta refuses a commit when another one with the same name came between what it
saw and itself; and a generation that is there already is not written again. So of two drivers with the same generation
one wins, and the other learns so, whether they race, or one of them repeats what it did before a crash.

A table is made in a commit of its own, empty, and that commit is never tried twice: Delta lets two drivers that create
a table with rows in it both succeed, and the rows are doubled.

Files that no commit lists stay behind when a driver loses or dies. `compacting.vacuum` removes them.
"""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace import limits
from tailrace.cold.store import Output, Store, plain, schema_equal, sync_directory
from tailrace.errors import Fenced, Invalid, Unavailable
from tailrace.storage.modes import make_directory

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

STATS: Final = ("log", "position", "next", "timestamp", "sequence")  # columns by which files are pruned
_ABOUT: Final = "History of Tailrace database "  # the description of every table of ours; the rest is the id
_METADATA: Final = "tailrace"  # under which name our metadata is in a commit


class Written(msgspec.Struct, frozen=True):
    """A file that is durable and that no commit lists yet."""

    path: str  # below the place
    size: int
    rows: int
    stats: str  # as Delta has them, JSON
    ranges: dict[int, tuple[int, int]]  # by log: the first entry's position, the last one's next


# -- files


def write_rows(
    store: Store, place: str, batches: Iterable[pa.RecordBatch], *, gaps: bool = False, file_bytes: int | None = None
) -> list[Written]:
    """Write rows, sorted by (log, position, index), to new files. Entries are never split between files.

    Rows that are out of order, or (unless `gaps`) not all entries of a log from the first to the last, are a bug of the
    caller's and fail before anything is listed."""
    full = file_bytes or limits.COLD_FILE_BYTES
    done: list[Written] = []
    file: _File | None = None
    try:
        for group in _groups(batches):
            rest = group
            if file is not None and file.output.size >= full:
                straddling = file.straddling(rest)
                if straddling:
                    file.write(rest.slice(0, straddling))
                rest = rest.slice(straddling)
                if rest.num_rows:
                    done.append(file.finish())
                    file = None
            if rest.num_rows:
                if file is None:
                    file = _File(store, place, rest.schema, gaps)
                file.write(rest)
        if file is not None:
            done.append(file.finish())
            file = None
    except BaseException:
        if file is not None:
            file.abandon()
        raise
    return done


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        for batch in _pieces(whole):
            if held and (
                rows + batch.num_rows > limits.COLD_GROUP_ROWS or size + batch.nbytes > limits.COLD_GROUP_BYTES
            ):
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halves of halves until each fits into a row group."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > 1 and (batch.num_rows > limits.COLD_GROUP_ROWS or batch.nbytes > limits.COLD_GROUP_BYTES):
        middle = min(batch.num_rows // 2, limits.COLD_GROUP_ROWS)
        if batch.num_rows > limits.COLD_GROUP_ROWS and batch.nbytes * limits.COLD_GROUP_ROWS < (
            limits.COLD_GROUP_BYTES * batch.num_rows
        ):
            middle = limits.COLD_GROUP_ROWS  # rows are small: whole groups, not halves
        yield from _pieces(batch.slice(0, middle))
        yield from _pieces(batch.slice(middle))
    else:
        yield batch


class _File:
    """One Parquet file being written."""

    def __init__(self, store: Store, place: str, schema: pa.Schema, gaps: bool) -> None:
        self.path = f"{uuid.uuid4().hex}.parquet"
        self.store, self.place = store, place
        self.output: Output = store.create(place, self.path)
        self.writer = pq.ParquetWriter(
            pa.PythonFile(self.output, mode="w"),
            schema,
            compression="zstd",
            write_page_checksum=True,
            write_batch_size=8192,
        )
        self.rows = 0
        self.stats = {name: _Stat() for name in STATS if name in schema.names}
        self.entries = {"log", "position", "next"} <= set(schema.names)
        self.tail: pa.Table | None = None  # the last row, to be compared with the next
        self.gaps = gaps
        self.ranges: dict[int, tuple[int, int]] = {}

    def straddling(self, table: pa.Table) -> int:
        """How many rows at the beginning belong to the entry that this file ends with."""
        if not self.entries or self.tail is None:
            return 0
        log, position = self.tail["log"][0], self.tail["position"][0]
        same = pc.and_(pc.equal(table["log"], log), pc.equal(table["position"], position))
        return int(pc.sum(same).as_py() or 0)

    def write(self, table: pa.Table) -> None:
        if self.entries:
            self._look(table)
        with self.store.told(self.place):
            self.writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        for name, stat in self.stats.items():
            stat.add(table[name])

    def _look(self, table: pa.Table) -> None:
        """Check the order, and note which entries of which logs are here."""
        names = [name for name in ("log", "position", "next", "index") if name in table.column_names]
        keys = table.select(names)
        chain = keys if self.tail is None else pa.concat_tables([self.tail, keys])
        chain = chain.combine_chunks()
        if chain.num_rows > 1:
            problem = out_of_order(chain, gaps=self.gaps)
            assert problem is None, f"rows for {self.place!r} are not the entries of a log in order: {problem}"
        self.tail = keys.slice(keys.num_rows - 1).combine_chunks()
        spans = keys.group_by("log").aggregate([("position", "min"), ("next", "max")])
        for log, first, last in zip(
            *(spans[name].to_pylist() for name in ("log", "position_min", "next_max")), strict=True
        ):
            self.ranges[log] = (self.ranges.get(log, (first, last))[0], last)

    def abandon(self) -> None:
        """Leave nothing behind. What the writer still wants to say goes nowhere."""
        self.output.dropped = True
        try:
            self.writer.close()
        finally:
            self.output.abandon()

    def finish(self) -> Written:
        with self.store.told(self.place):
            self.writer.close()
            self.output.close()
        kept = {name: stat for name, stat in self.stats.items() if stat.low is not None}
        stats = {
            "numRecords": self.rows,
            "minValues": {name: _json(stat.low) for name, stat in kept.items()},
            "maxValues": {name: _json(stat.high) for name, stat in kept.items()},
            "nullCount": {name: stat.nulls for name, stat in self.stats.items()},
        }
        return Written(self.path, self.output.size, self.rows, json.dumps(stats), self.ranges)


class _Stat:
    """The least and the greatest value of a column, and how many are null."""

    def __init__(self) -> None:
        self.low: Any = None
        self.high: Any = None
        self.nulls = 0

    def add(self, column: pa.ChunkedArray) -> None:
        self.nulls += column.null_count
        both = pc.min_max(column).as_py()
        if both["min"] is not None:
            self.low = both["min"] if self.low is None else min(self.low, both["min"])
            self.high = both["max"] if self.high is None else max(self.high, both["max"])


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


def out_of_order(chain: pa.Table, *, gaps: bool) -> str | None:
    """What is wrong with consecutive rows (log, position, next[, index]), if something is: the first such pair, told.

    Of one entry, indexes count up by one; the next entry of a log begins where the one before ends (or with `gaps`, not
    before), at index 0; logs come in order."""
    before, after = chain.slice(0, chain.num_rows - 1), chain.slice(1)
    same_log = pc.equal(before["log"], after["log"])
    if gaps:
        follows = pc.greater_equal(after["position"], before["next"])
    else:
        follows = pc.equal(after["position"], before["next"])
    further = pc.or_(pc.and_(same_log, follows), pc.less(before["log"], after["log"]))
    if "index" in chain.column_names:
        further = pc.and_(further, pc.equal(after["index"], 0))
        entry = pc.and_(same_log, pc.equal(before["position"], after["position"]))
        right = pc.or_(further, pc.and_(entry, pc.equal(after["index"], pc.add(before["index"], 1))))
    else:
        right = further
    if pc.all(right).as_py():
        return None
    at = pc.index(right, pa.scalar(False)).as_py()
    one, two = before.slice(at, 1).to_pylist()[0], after.slice(at, 1).to_pylist()[0]
    told = [", ".join(f"{name} {value}" for name, value in row.items()) for row in (one, two)]
    return f"({told[0]}) is followed by ({told[1]})"


# -- commits


def commit(
    store: Store,
    place: str,
    schema: pa.Schema,
    written: Sequence[Written],
    *,
    app: str,
    generation: int,
    database: str,
    metadata: Mapping[str, Any] | None = None,
    strict: bool = False,
    replace: bool = False,
) -> Literal["committed", "already"]:
    """List the files, once per (app, generation); "already" where that generation, or a later one, is there.

    After "already" the files given here are not listed: what was committed is in `committed_metadata`. With `strict`
    the generation must be the very next one, else Fenced: a place that lost its history is not gone on with. With
    `replace` the rows that were there are no longer. Also makes the table. Durable when it returns."""
    for _ in range(limits.COLD_COMMIT_TRIES):
        table = opened(store, place, schema, database)
        last = table.transaction_version(app)
        if last is not None and last >= generation:
            settle(store, place, table.version())
            return "already"
        if strict and (last or 0) != generation - 1:
            raise Fenced(
                f"generation {generation} of {app!r} cannot follow {last or 0}, the last one at {store.uri(place)}; "
                "its history was replaced, or is another server's: look there before going on"
            )
        actions: list[AddAction | RemoveAction] = [*added(written)]
        if replace:
            actions += removed(paths_of(table))
        if attempt(store, place, table, actions, app=app, generation=generation, metadata=metadata):
            return "committed"
    raise Unavailable(
        f"{app!r} could not commit to {store.uri(place)}: others got ahead {limits.COLD_COMMIT_TRIES} times; try again"
    )


def committed_metadata(store: Store, place: str, app: str, generation: int) -> dict[str, Any] | None:
    """The metadata of that commit, to go on after a crash; None where it was not committed. Makes it durable."""
    table = store.delta(place)
    last = None if table is None else table.transaction_version(app)
    if table is None or last is None or last < generation:
        return None
    settle(store, place, table.version())
    found = _ours(_committed(store, place, table, app, generation))
    assert found is not None
    return dict(found["metadata"])


def committed_version(store: Store, place: str, app: str, generation: int) -> int:
    """The version of the Delta table that this commit made."""
    table = store.delta(place)
    assert table is not None, f"nothing was committed to {place!r}"
    return int(_committed(store, place, table, app, generation)["version"])


def _committed(store: Store, place: str, table: DeltaTable, app: str, generation: int) -> dict[str, Any]:
    """What Delta's history has of that commit."""
    limit: int | None = 16
    while True:
        with store.told(place):
            history = table.history(limit)
        for entry in history:
            ours = _ours(entry)
            if ours is not None and ours["app"] == app and ours["generation"] == generation:
                return entry
        if limit is None or len(history) < limit:
            break
        limit = limit * 16 if limit < 4096 else None
    last = table.transaction_version(app)
    raise Unavailable(
        f"generation {generation} of {app!r} was committed to {store.uri(place)} (the last one is {last}), but that "
        "commit is no longer in the Delta log; look at the greatest position of each log there"
    )


committed_ranges = committed_metadata


def last_generation(store: Store, place: str, app: str) -> int | None:
    """The last generation of that name that was committed."""
    table = store.delta(place)
    return None if table is None else table.transaction_version(app)


def database_of(table: DeltaTable) -> str | None:
    """Whose history it is; None where no Tailrace made it."""
    about = table.metadata().description or ""
    return about.removeprefix(_ABOUT) if about.startswith(_ABOUT) else None


def hand_over(store: Store, place: str, database: str) -> None:
    """Let the history of a place belong to another database, which is a copy of the one that it belonged to."""
    table = store.delta(place)
    assert table is not None, f"there is no {place!r}"
    with store.told(place):
        table.alter.set_table_description(f"{_ABOUT}{database}")
    settle(store, place, table.version())


def opened(store: Store, place: str, schema: pa.Schema, database: str) -> DeltaTable:
    """The table, made if need be; of this database and with these columns, or Invalid."""
    table = store.delta(place)
    if table is None:
        _create(store, place, schema, database)
        table = store.delta(place)
        assert table is not None, f"{place!r} was made and is not there"
    owner = database_of(table)
    if owner != database:
        whose = f"the history of database {owner}" if owner is not None else "a Delta table that Tailrace did not make"
        raise Invalid(
            f"{store.uri(place)} is {whose}, and this is database {database}; give each database a URL of its own"
        )
    there = pa.schema(table.schema().to_arrow())
    if not schema_equal(there, schema):
        raise Invalid(
            f"{store.uri(place)} has other columns ({_told(there)}) than what was to be added ({_told(schema)})"
        )
    return table


def _create(store: Store, place: str, schema: pa.Schema, database: str) -> None:
    """An empty table. Of several who create it one does; the others find it."""
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError

    if store.local is not None:
        with store.told(place):
            folder = Path(store.uri(place))
            make_directory(folder)
    try:
        DeltaTable.create(
            store.uri(place),
            Schema.from_arrow(schema),
            mode="error",
            name=place.replace("/", "."),
            description=f"{_ABOUT}{database}",
            storage_options=store.storage_options or None,
            commit_properties=CommitProperties(max_commit_retries=0),  # or a second creation comes on top
        )
    except CommitFailedError:
        pass  # another one was first; it is looked at next
    except (DeltaError, OSError) as error:
        if "already exists" not in str(error):
            raise store.error(place, error) from error
    settle(store, place, 0)


def attempt(
    store: Store,
    place: str,
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    app: str,
    generation: int,
    metadata: Mapping[str, Any] | None,
) -> bool:
    """Commit on top of `table`; False where another commit that matters came between, and the caller looks again.

    The outcome may also be unknown to Delta itself (an answer that was lost): looking again tells that too."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    properties = CommitProperties(
        app_transactions=[Transaction(app, generation, _now_ms())],
        custom_metadata={
            _METADATA: json.dumps({"app": app, "generation": generation, "metadata": dict(metadata or {})})
        },
    )
    with store.told(place):
        try:
            table.create_write_transaction(list(actions), "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            if "append-only" in str(error) or "appendOnly" in str(error):
                raise Invalid(f"{store.uri(place)} only takes appends (delta.appendOnly): {plain(error)}") from error
            time.sleep(random.uniform(0, 0.05))
            return False
    settle(store, place, table.version())
    return True


def added(written: Sequence[Written], *, change: bool = True) -> list[AddAction]:
    """Actions that list the files. Without `change` they hold the rows of others that go."""
    from deltalake.transaction import AddAction

    now = _now_ms()
    return [AddAction(file.path, file.size, {}, now, change, file.stats) for file in written]


def removed(files: Iterable[tuple[str, int]], *, change: bool = True) -> list[RemoveAction]:
    """Actions by which files (path, size) are no longer listed."""
    from deltalake.transaction import RemoveAction

    now = _now_ms()
    return [RemoveAction(path, change, now, size, {}) for path, size in files]


def paths_of(table: DeltaTable) -> list[tuple[str, int]]:
    """The files that are listed, with their sizes."""
    listed = pa.table(table.get_add_actions(flatten=True))
    if listed.num_rows == 0:
        return []
    return list(zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True))


def settle(store: Store, place: str, version: int) -> None:
    """Make commits of late durable, from `version` on those that came since, and back to the last that was. Delta's
    client leaves that to the operating system, and the hot log is trimmed on the strength of a commit. A bucket has
    nothing to settle. A log has many files, and only the newest are looked at."""
    if store.local is None:
        return
    folder = Path(store.uri(place), "_delta_log")
    with store.told(place):
        newest = version
        while (folder / f"{newest + 1:020d}.json").exists():
            newest += 1
        before = store.settled.get(place, -1)
        before = -1 if before > newest else before  # it was removed and made again
        recent = time.time() - 3600  # what is older the system has written long ago
        for number in range(newest, before, -1):
            commit = folder / f"{number:020d}.json"
            try:
                if commit.stat().st_mtime < recent:
                    break
            except FileNotFoundError:
                break  # Delta's client removed it: a checkpoint has it
            for path in (commit, folder / f"{number:020d}.checkpoint.parquet"):
                _sync(path)
        _sync(folder / "_last_checkpoint")
        for parent in (folder, folder.parent, folder.parent.parent):
            sync_directory(parent)
    store.settled[place] = newest


def _sync(path: Path) -> None:
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        pass  # there is no such checkpoint, or Delta's client just removed it


def _ours(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our metadata in an entry of Delta's history."""
    said = entry.get(_METADATA)
    if said is None:
        return None
    ours = json.loads(said) if isinstance(said, str) else said
    return ours if isinstance(ours, dict) and {"app", "generation", "metadata"} <= set(ours) else None


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

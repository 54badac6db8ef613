"""Writing: rows to Parquet files, and files to a commit, exactly once.

Theory of operation
-------------------
A writer (an executor) writes files under random names. They are durable and not visible: no reader opens a file that no
commit lists. The driver then lists them all in one Delta commit, which has an *application transaction*: a name and a
generation. Delta refuses a commit if another one with the same name was made since the version it is based on; and a
generation that exists is not written again. So of two drivers with the same generation one wins, and the other detects
it, whether they race, or one of them repeats a commit after a crash.

A table is created in a separate, empty commit, which is never retried: if two drivers create a table with rows, Delta
lets both succeed, and the rows are duplicated.

Files that no commit lists are left behind when a driver loses or dies. `compacting.vacuum` deletes them.
"""

from __future__ import annotations

import inspect
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
from tailrace.cold.store import ColdOutput, Store, plain, schema_equal, sync_directory
from tailrace.errors import Fenced, Invalid, Unavailable
from tailrace.storage.modes import make_directory

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

BLOOM: Final = ("keys", "key")  # columns with Bloom filters: the key of an item, and of a message
BLOOM_ERROR: Final = 0.01  # how often a filter has a key that the row group does not have
BLOOM_KEYS_MIN: Final = 64
STATS: Final = ("log", "position", "next", "timestamp", "sequence")  # columns by which files are pruned
_ABOUT: Final = (
    "History of Tailrace database "  # the description of every Delta table, followed by the id of the database
)
_METADATA: Final = "tailrace"  # the name of our metadata in a commit


class WrittenFile(msgspec.Struct, frozen=True):
    """A durable file that no commit lists yet."""

    path: str  # relative to the Delta table
    size: int
    rows: int
    stats: str  # as Delta has them, JSON
    ranges: dict[int, tuple[int, int]]  # by log: the first entry's position, the last one's next


# -- files


def write_rows(
    store: Store,
    place: str,
    batches: Iterable[pa.RecordBatch],
    *,
    gaps: bool = False,
    file_bytes: int | None = None,
    name: str = "",
) -> list[WrittenFile]:
    """Write rows, sorted by (log, position, index), to new files. Entries are never split between files. The names of
    the files begin with `name`.

    Rows that are out of order, or (unless `gaps`) have gaps between entries of a log, are a bug of the caller and fail
    before anything is committed."""
    full = file_bytes or limits.COLD_FILE_BYTES
    done: list[WrittenFile] = []
    file: _ParquetFile | None = None
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
                    file = _ParquetFile(store, place, rest, gaps, name)
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
        for batch in _halves(whole):
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


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch, halved until each part fits into a row group."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > 1 and (batch.num_rows > limits.COLD_GROUP_ROWS or batch.nbytes > limits.COLD_GROUP_BYTES):
        middle = min(batch.num_rows // 2, limits.COLD_GROUP_ROWS)
        if batch.num_rows > limits.COLD_GROUP_ROWS and batch.nbytes * limits.COLD_GROUP_ROWS < (
            limits.COLD_GROUP_BYTES * batch.num_rows
        ):
            middle = limits.COLD_GROUP_ROWS  # rows are small: whole groups, not halves
        yield from _halves(batch.slice(0, middle))
        yield from _halves(batch.slice(middle))
    else:
        yield batch


class _ParquetFile:
    """One Parquet file being written."""

    def __init__(self, store: Store, place: str, first: pa.Table, gaps: bool, name: str) -> None:
        schema = first.schema
        self.path = f"{name}{uuid.uuid4().hex}.parquet"
        self.store, self.place = store, place
        self.output: ColdOutput = store.create(place, self.path)
        self.writer = pq.ParquetWriter(
            pa.PythonFile(self.output, mode="w"),
            schema,
            compression="zstd",
            write_page_checksum=True,
            write_batch_size=8192,
            **_bloom_filters(first),
        )
        self.rows = 0
        self.stats = {name: _ColumnStat() for name in STATS if name in schema.names}
        self.entries = {"log", "position", "next"} <= set(schema.names)
        self.tail: pa.Table | None = None  # the last row, to be compared with the next
        self.gaps = gaps
        self.ranges: dict[int, tuple[int, int]] = {}

    def straddling(self, table: pa.Table) -> int:
        """The number of leading rows that belong to the entry that this file ends with."""
        if not self.entries or self.tail is None:
            return 0
        log, position = self.tail["log"][0], self.tail["position"][0]
        same = pc.and_(pc.equal(table["log"], log), pc.equal(table["position"], position))
        return int(pc.sum(same).as_py() or 0)

    def write(self, table: pa.Table) -> None:
        if self.entries:
            self._check_order(table)
        with self.store.wrap_errors(self.place):
            self.writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        for name, stat in self.stats.items():
            stat.add(table[name])

    def _check_order(self, table: pa.Table) -> None:
        """Check the order, and note the range of each log."""
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
        """Delete the file; further output of the writer is discarded."""
        self.output.dropped = True
        try:
            self.writer.close()
        finally:
            self.output.abandon()

    def finish(self) -> WrittenFile:
        with self.store.wrap_errors(self.place):
            self.writer.close()
            self.output.close()
        kept = {name: stat for name, stat in self.stats.items() if stat.low is not None}
        stats = {
            "numRecords": self.rows,
            "minValues": {name: _json(stat.low) for name, stat in kept.items()},
            "maxValues": {name: _json(stat.high) for name, stat in kept.items()},
            "nullCount": {name: stat.nulls for name, stat in self.stats.items()},
        }
        return WrittenFile(self.path, self.output.size, self.rows, json.dumps(stats), self.ranges)


def _bloom_filters(first: pa.Table) -> dict[str, Any]:
    """The option for Bloom filters of keys, for row groups of the size of the first one. The history of one key is in
    few row groups, and their statistics do not say in which. Earlier versions of Arrow write none."""
    if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter).parameters:
        return {}
    expected = max(first.num_rows, BLOOM_KEYS_MIN)
    wanted = {name: {"ndv": expected, "fpp": BLOOM_ERROR} for name in BLOOM if name in first.column_names}
    return {"bloom_filter_options": wanted} if wanted else {}


class _ColumnStat:
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
    """The first pair of consecutive rows (log, position, next[, index]) that is out of order, as text; None: none is.

    Within an entry, indexes increase by one; the next entry of a log begins where the one before ends (with `gaps`,
    there or later), at index 0; logs are in order."""
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
    pair = [", ".join(f"{name} {value}" for name, value in row.items()) for row in (one, two)]
    return f"({pair[0]}) is followed by ({pair[1]})"


# -- commits


def commit(
    store: Store,
    place: str,
    schema: pa.Schema,
    written: Sequence[WrittenFile],
    *,
    app: str,
    generation: int,
    database: str,
    metadata: Mapping[str, Any] | None = None,
    strict: bool = False,
    replace: bool = False,
) -> Literal["committed", "already"]:
    """List the files, once per (app, generation); "already" if that generation, or a later one, was committed.

    After "already" these files are not listed: see `committed_metadata` for the commit. With `strict` the generation
    must be exactly the next one, else Fenced: a Delta table that lost commits is not continued. With `replace` all
    earlier rows are removed. Creates the table if needed. Durable when it returns."""
    for _ in range(limits.COLD_COMMIT_TRIES):
        table = opened(store, place, schema, database)
        last = table.transaction_version(app)
        if last is not None and last >= generation:
            settle(store, place, table.version())
            return "already"
        if strict and (last or 0) != generation - 1:
            raise Fenced(
                f"generation {generation} of {app!r} cannot follow {last or 0}, the last one at {store.uri(place)}; "
                "its history was replaced, or belongs to another server: check it before continuing"
            )
        actions: list[AddAction | RemoveAction] = [*added(written)]
        if replace:
            actions += removed(paths_of(table))
        if attempt(store, place, table, actions, app=app, generation=generation, metadata=metadata):
            return "committed"
    raise Unavailable(
        f"{app!r} could not commit to {store.uri(place)}: others committed first "
        f"{limits.COLD_COMMIT_TRIES} times; try again"
    )


def committed_metadata(store: Store, place: str, app: str, generation: int) -> dict[str, Any] | None:
    """The metadata of a commit, to continue after a crash; None if it was not committed. Makes the commit durable."""
    table = store.delta(place)
    last = None if table is None else table.transaction_version(app)
    if table is None or last is None or last < generation:
        return None
    settle(store, place, table.version())
    found = _ours(_committed(store, place, table, app, generation))
    assert found is not None
    return dict(found["metadata"])


def version_of(store: Store, place: str, app: str, generation: int) -> int:
    """The last version of the Delta table that has no commit of `app` after this generation.

    Not taken from Delta's history, whose numbers are wrong while others commit. The commits since then are few: the
    search goes back in steps that double, and then bisects."""
    table = store.delta(place)
    assert table is not None, f"there is no {place!r}"

    def is_after(version: int) -> bool:
        with store.wrap_errors(place):
            table.load_as_version(version)
            return (table.transaction_version(app) or 0) > generation

    low = high = table.version()
    step = 1
    while is_after(low):
        if low == 0:
            raise Unavailable(f"{store.uri(place)} has no version of generation {generation}; run `tailrace check`")
        high, low, step = low, max(low - step, 0), step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_after(middle) else (middle, high)
    return low


def _committed(store: Store, place: str, table: DeltaTable, app: str, generation: int) -> dict[str, Any]:
    """The entry of a commit in Delta's history."""
    limit: int | None = 16
    while True:
        with store.wrap_errors(place):
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
        "commit is no longer in the Delta log; check the greatest position of each log there"
    )


def last_generation(store: Store, place: str, app: str) -> int | None:
    """The last generation of that name that was committed."""
    table = store.delta(place)
    return None if table is None else table.transaction_version(app)


def database_of(table: DeltaTable) -> str | None:
    """The database that the Delta table belongs to; None if Tailrace did not create it."""
    about = table.metadata().description or ""
    return about.removeprefix(_ABOUT) if about.startswith(_ABOUT) else None


def hand_over(store: Store, place: str, database: str) -> None:
    """Assign a Delta table to another database, which is a copy of the one that it belonged to."""
    table = store.delta(place)
    assert table is not None, f"{place!r} does not exist"
    with store.wrap_errors(place):
        table.alter.set_table_description(f"{_ABOUT}{database}")
    settle(store, place, table.version())


def opened(store: Store, place: str, schema: pa.Schema, database: str) -> DeltaTable:
    """The Delta table, created if needed; Invalid if it belongs to another database or has other columns."""
    table = store.delta(place)
    if table is None:
        _create(store, place, schema, database)
        table = store.delta(place)
        assert table is not None, f"{place!r} was created and does not exist"
    owner = database_of(table)
    if owner != database:
        whose = f"the history of database {owner}" if owner is not None else "a Delta table that Tailrace did not make"
        raise Invalid(f"{store.uri(place)} is {whose}, but this is database {database}; give each database its own URL")
    there = pa.schema(table.schema().to_arrow())
    if not schema_equal(there, schema):
        raise Invalid(
            f"{store.uri(place)} has other columns than the rows to be added: it has {_column_list(there)}, they have "
            f"{_column_list(schema)}"
        )
    return table


def _create(store: Store, place: str, schema: pa.Schema, database: str) -> None:
    """Create an empty table. If several drivers do so, one succeeds and the others find it."""
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError

    if store.local is not None:
        with store.wrap_errors(place):
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
            commit_properties=CommitProperties(max_commit_retries=0),  # a retry would create the table again
        )
    except CommitFailedError:
        pass  # another driver created it first; it is checked next
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
    """Commit on top of `table`; False if a conflicting commit came first, and the caller has to check again.

    The outcome may also be unknown to Delta itself (a lost response): checking again resolves that too."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    properties = CommitProperties(
        app_transactions=[Transaction(app, generation, _now_ms())],
        custom_metadata={
            _METADATA: json.dumps({"app": app, "generation": generation, "metadata": dict(metadata or {})})
        },
    )
    with store.wrap_errors(place):
        try:
            table.create_write_transaction(list(actions), "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            if "append-only" in str(error) or "appendOnly" in str(error):
                raise Invalid(f"{store.uri(place)} accepts only appends (delta.appendOnly): {plain(error)}") from error
            time.sleep(random.uniform(0, 0.05))
            return False
    settle(store, place, table.version())
    return True


def added(written: Sequence[WrittenFile], *, change: bool = True) -> list[AddAction]:
    """Actions that list the files. Without `change` the rows are those of files that are removed."""
    from deltalake.transaction import AddAction

    now = _now_ms()
    return [AddAction(file.path, file.size, {}, now, change, file.stats) for file in written]


def removed(files: Iterable[tuple[str, int]], *, change: bool = True) -> list[RemoveAction]:
    """Actions that remove files (path, size) from the listing."""
    from deltalake.transaction import RemoveAction

    now = _now_ms()
    return [RemoveAction(path, change, now, size, {}) for path, size in files]


def paths_of(table: DeltaTable) -> list[tuple[str, int]]:
    """The listed files, with their sizes."""
    listed = pa.table(table.get_add_actions(flatten=True))
    if listed.num_rows == 0:
        return []
    return list(zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True))


def settle(store: Store, place: str, version: int) -> None:
    """Make recent commits durable, from the newest one back to the last durable one. Delta's client leaves that to the
    operating system, and the hot log is trimmed after a commit. Commits in a bucket are durable. Only the newest files
    of the Delta log are synced."""
    if store.local is None:
        return
    folder = Path(store.uri(place), "_delta_log")
    with store.wrap_errors(place):
        newest = version
        while (folder / f"{newest + 1:020d}.json").exists():
            newest += 1
        before = store.settled.get(place, -1)
        before = -1 if before > newest else before  # it was deleted and recreated
        recent = time.time() - 3600  # the system has written older files long ago
        for number in range(newest, before, -1):
            commit = folder / f"{number:020d}.json"
            try:
                if commit.stat().st_mtime < recent:
                    break
            except FileNotFoundError:
                break  # Delta's client deleted it: a checkpoint has it
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
        pass  # there is no such checkpoint, or Delta's client just deleted it


def _ours(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Our metadata in an entry of Delta's history, if it has any."""
    metadata = entry.get(_METADATA)
    if metadata is None:
        return None
    ours = json.loads(metadata) if isinstance(metadata, str) else metadata
    return ours if isinstance(ours, dict) and {"app", "generation", "metadata"} <= set(ours) else None


def _column_list(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

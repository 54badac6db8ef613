"""Many small files into few large ones; retention; what nobody lists is removed.

Theory of operation
-------------------
A rewrite reads files that are listed and writes their rows anew; one commit then lists the new files and no longer
the old ones. Appends that come between do not matter to it, nor it to them: it names the files it replaces one by one.
Another rewrite does matter. Delta itself would accept both, and double the rows: so all rewrites of a place carry the
same application transaction, each its next number, and each looks, on the very version that its commit is based on,
whether all files it replaces are still there. Of two rewrites at once one wins; the other finds its files gone and
begins again.

The parts are apart so that executors can do the work: `plan`, then `rewrite` for each step, anywhere, then `replace`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.cold.merging import ColdFile, Cursor, Selection, Vanished, merge
from tailrace.cold.reading import Listing, listing
from tailrace.cold.schemas import name_of, schema_of
from tailrace.cold.store import Store
from tailrace.cold.writing import Written, added, attempt, removed, settle, write_rows
from tailrace.errors import Corrupt, Fenced, Invalid, Unavailable

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

APP = "tailrace-rewrite"  # the application transaction of all rewrites: no two of them can miss each other


class Step(msgspec.Struct, frozen=True):
    """Files that become fewer, or lose rows."""

    place: str
    files: list[ColdFile]
    starts: dict[int, int] = {}  # by log: entries that end at or before it are dropped

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files)


class Compacted(msgspec.Struct, frozen=True):
    """What was done."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0  # in the files that were written
    dropped: int = 0  # rows that are past retention


def plan(
    store: Store, place: str, *, file_bytes: int = limits.COLD_FILE_BYTES, starts: Mapping[int, int] | None = None
) -> list[Step]:
    """What is worth merging: neighbours that are smaller than half a full file, about a full file's worth in a step.
    Entries below `starts`, which no reader may ask for, are left out when they are merged."""
    listed = sorted(listing(store, place).files, key=_order)
    steps: list[Step] = []
    held: list[ColdFile] = []
    for file in listed:
        if file.size * 2 >= file_bytes:
            _step(steps, place, held)
            held = []
            continue
        if len(held) >= limits.COLD_MERGE_FILES or sum(other.size for other in held) + file.size > file_bytes:
            _step(steps, place, held)
            held = []
        held.append(file)
    _step(steps, place, held)
    if starts:
        known = sorted(starts.items())
        steps = [msgspec.structs.replace(step, starts=_touched(step.files, known)) for step in steps]
    return steps


def _step(steps: list[Step], place: str, files: list[ColdFile]) -> None:
    if len(files) > 1:
        steps.append(Step(place, files))


def _order(file: ColdFile) -> tuple[int, int, int, str]:
    """Neighbours in a place are those whose entries follow each other. In files of many logs, the least position of one
    says little; the greatest next is a better guess at which was written first."""
    alone = file.log_min is not None and file.log_min == file.log_max
    first = (file.position_min or 0) if alone else (file.next_max or 0)
    return (file.log_min or 0 if alone else 0, first, file.next_max or 0, file.path)


def rewrite(store: Store, step: Step, *, file_bytes: int | None = None) -> list[Written]:
    """Write the rows of the step's files, sorted, to new files. Nothing is listed yet. Raises Fenced if one is gone."""
    schema = schema_of(step.place)
    keys = [name for name in ("log", "position", "index") if name in schema.names]
    cursors = [Cursor(store, file, schema.names, None) for file in step.files]
    count = [0]

    def batches() -> Iterator[pa.RecordBatch]:
        for table, _ in merge(cursors, keys):
            count[0] += table.num_rows
            if table.schema.types != schema.types:
                table = table.cast(schema)
            yield from _kept(table, step.starts).to_batches()

    try:
        written = write_rows(store, step.place, batches(), gaps=True, file_bytes=file_bytes)
    except Vanished as vanished:
        raise _gone(store, vanished) from vanished
    if all(file.rows is not None for file in step.files) and count[0] != step.rows:
        raise Corrupt(f"{count[0]} rows were read from files of {step.place!r} that should have {step.rows}")
    kept = sum(file.rows for file in written)
    assert step.starts or kept == count[0], f"{count[0]} rows became {kept}"
    return written


def _gone(store: Store, vanished: Vanished) -> Corrupt | Fenced:
    """A file is not there: lost, or replaced by another compaction."""
    file = vanished.file
    path = f"{store.uri(file.place)}/{file.path}"
    if any(each.path == file.path for each in listing(store, file.place).files):
        return Corrupt(
            f"the cold file {path} is missing; put it back from a copy of cold storage, nothing that it holds is "
            "anywhere else"
        )
    return Fenced(f"the cold file {path} was replaced by another compaction; plan again")


def _kept(table: pa.Table, starts: Mapping[int, int]) -> pa.Table:
    if not starts:
        return table
    at = pc.index_in(table["log"], value_set=pa.array(starts, pa.int64()))
    start = pa.array(starts.values(), pa.int64()).take(at.combine_chunks())  # null: of another log
    return table.filter(pc.fill_null(pc.greater(table["next"], start), True))


def replace(store: Store, step: Step, written: Sequence[Written], *, metadata: Mapping[str, Any] | None = None) -> None:
    """List the new files and no longer the old ones, in one commit. Fenced if an old one is not listed any more: then
    another rewrite was there, and what was written here is left for `vacuum`."""
    change = bool(step.starts) and sum(file.rows for file in written) != step.rows
    for _ in range(limits.COLD_COMMIT_TRIES):
        table = store.delta(step.place)
        if table is None:
            raise Invalid(f"there is no Delta table at {store.uri(step.place)}")
        present = {file.path for file in Listing(step.place, table).files}
        if all(file.path in present for file in written) and written:
            settle(store, step.place, table.version())
            return  # done before, and the answer was lost
        gone = [file.path for file in step.files if file.path not in present]
        if gone:
            raise Fenced(
                f"{store.uri(step.place)}/{gone[0]} was replaced by another compaction, which went ahead; plan again"
            )
        actions: list[AddAction | RemoveAction] = [
            *added(written, change=change),
            *removed([(file.path, file.size) for file in step.files], change=change),
        ]
        number = (table.transaction_version(APP) or 0) + 1
        if attempt(store, step.place, table, actions, app=APP, generation=number, metadata=metadata):
            return
    raise Unavailable(
        f"compaction could not commit to {store.uri(step.place)}: others got ahead {limits.COLD_COMMIT_TRIES} times; "
        "try again"
    )


def compact(store: Store, place: str, *, file_bytes: int = limits.COLD_FILE_BYTES) -> Compacted:
    """Merge what is worth it, here and now. Safe beside appends, readers and another compaction."""
    done = Compacted()
    for _ in range(limits.COLD_COMMIT_TRIES):
        steps = plan(store, place, file_bytes=file_bytes)
        if not steps:
            return done
        try:
            done = _all(store, steps, done, file_bytes)
        except Fenced:
            continue
        return done
    raise Unavailable(f"another compaction of {store.uri(place)} keeps going ahead; let it finish")


def forget(store: Store, place: str, starts: Mapping[int, int]) -> Compacted:
    """Drop entries of those logs that end at or before the position given. Tell the server first: then no reader asks
    for them. Files that hold nothing else go unread."""
    done = Compacted()
    wanted = dict(starts)
    for _ in range(limits.COLD_COMMIT_TRIES):
        steps = list(_forgetting(place, listing(store, place).files, wanted))
        try:
            return _all(store, steps, done, None)
        except Fenced:
            continue
    raise Unavailable(f"compaction of {store.uri(place)} keeps going ahead of retention; try again")


def _forgetting(place: str, files: Iterable[ColdFile], starts: Mapping[int, int]) -> Iterator[Step]:
    known = sorted(starts.items())
    for file in files:
        if touched := _touched([file], known):
            yield Step(place, [file], touched)


def _touched(files: Sequence[ColdFile], starts: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The starts, sorted by log, below which these files may have entries."""
    found: dict[int, int] = {}
    for file in files:
        first = 0 if file.log_min is None else bisect_left(starts, (file.log_min,))
        for log, start in starts[first:]:
            if file.log_max is not None and log > file.log_max:
                break
            if file.may_have(log, None, start):
                found[log] = start
    return found


def _all(store: Store, steps: Sequence[Step], done: Compacted, file_bytes: int | None) -> Compacted:
    for step in steps:
        written: list[Written] = []
        if not _wholly_old(step):
            if step.starts and not _any_old(store, step):
                continue  # the statistics promised more than there is
            written = rewrite(store, step, file_bytes=file_bytes)
        replace(store, step, written, metadata={"files": len(step.files), "starts": _named(step.starts)})
        rows = sum(file.rows for file in written)
        done = Compacted(
            done.files_before + len(step.files),
            done.files_after + len(written),
            done.rows + rows,
            done.dropped + step.rows - rows,
        )
    return done


def _wholly_old(step: Step) -> bool:
    """Whether all rows of the step's one file are past retention, by its statistics alone."""
    if not step.starts:
        return False
    (file,) = step.files
    if file.log_min is None or file.log_min != file.log_max or file.next_max is None:
        return False
    return file.next_max <= step.starts.get(file.log_min, -1)


def _any_old(store: Store, step: Step) -> bool:
    """Whether a row of the step's one file is past retention: a look at few columns, of few row groups."""
    (file,) = step.files
    columns = ["log", "position", "next"]
    try:
        for log, start in step.starts.items():
            for table, _ in merge([Cursor(store, file, columns, Selection(log, None, start))], columns[:2]):
                if pc.any(pc.less_equal(table["next"], start)).as_py():
                    return True
    except Vanished as vanished:
        raise _gone(store, vanished) from vanished
    return False


def _named(starts: Mapping[int, int]) -> dict[str, int]:
    return {str(log): start for log, start in starts.items()}


def vacuum(store: Store, place: str, *, hours: int = limits.COLD_VACUUM_HOURS, dry_run: bool = False) -> list[str]:
    """Remove files that no version lists since `hours`: replaced by a rewrite, or never committed. The paths of them.

    Readers that listed files longer ago than that list again. A writer that takes longer than that from a file to its
    commit would lose it: not less than an hour, therefore, unless nobody else is there."""
    if hours < 0:
        raise Invalid(f"{hours} hours is no age of a file; give 0 or more")
    table = store.delta(place)
    if table is None:
        return []
    kept = dict(table.metadata().configuration).get("delta.deletedFileRetentionDuration")
    if kept is None and name_of(place)[0] == "snapshot":
        kept = "not set yet"  # whoever made it is about to
    if kept is not None:
        raise Invalid(
            f"{store.uri(place)} keeps its earlier versions (delta.deletedFileRetentionDuration is {kept}), and "
            "their files with them; change that property first if they are not wanted"
        )
    with store.told(place):
        paths = table.vacuum(retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
    if not dry_run:
        settle(store, place, table.version())
    return list(paths)

"""Compaction: merges small files, removes entries past retention, and deletes unlisted files.

Theory of operation
-------------------
A rewrite reads listed files and writes their rows to new ones; one commit then lists the new files instead of the old
ones. Concurrent appends do not conflict with it: it names the files it replaces one by one. Another rewrite does
conflict. Delta itself would accept both, and duplicate the rows: so all rewrites of a Delta table have the same
application transaction, each with the next number, and each checks, on the version that its commit is based on, that
all files it replaces are still listed. Of two rewrites at once one wins; the other finds its files gone and starts
over.

The steps are separate so that executors can do the work: `plan` or `plan_drops`, then `rewrite` or `drop` for each
step, anywhere, then `replace_all` for many of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import limits
from tailrace.cold.merging import ColdFile, FileCursor, RowSelection, Vanished, merge
from tailrace.cold.reading import ColdListing, listing
from tailrace.cold.schemas import name_of, schema_of
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile, added, attempt, removed, settle, write_rows
from tailrace.errors import Corrupt, Fenced, Invalid, Unavailable

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

APP = "tailrace-rewrite"  # the application transaction of all rewrites, so that two of them conflict


class RewriteStep(msgspec.Struct, frozen=True):
    """Files to merge, or to drop rows from."""

    place: str
    files: list[ColdFile]
    starts: dict[int, int] = {}  # by log: entries that end at or before it are dropped

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files)


class Rewritten(msgspec.Struct, frozen=True):
    """The result of rewrites."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0  # in the files that were written
    dropped: int = 0  # rows past retention


def plan(
    store: Store, place: str, *, file_bytes: int = limits.COLD_FILE_BYTES, starts: Mapping[int, int] | None = None
) -> list[RewriteStep]:
    """The merges that are worthwhile: adjacent files smaller than half a full file, about a full file per step.
    Entries below `starts`, which readers may not request, are dropped when files are merged."""
    return plan_merges(place, listing(store, place).files, file_bytes=file_bytes, starts=starts)


def plan_merges(
    place: str,
    files: Iterable[ColdFile],
    *,
    file_bytes: int = limits.COLD_FILE_BYTES,
    starts: Mapping[int, int] | None = None,
) -> list[RewriteStep]:
    """As `plan`, of these files."""
    listed = sorted(files, key=_order)
    steps: list[RewriteStep] = []
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


def _step(steps: list[RewriteStep], place: str, files: list[ColdFile]) -> None:
    if len(files) > 1:
        steps.append(RewriteStep(place, files))


def _order(file: ColdFile) -> tuple[int, int, int, str]:
    """Adjacent files have entries that follow each other. For files of many logs, the greatest next position is the
    best guess at which was written first."""
    alone = file.log_min is not None and file.log_min == file.log_max
    first = (file.position_min or 0) if alone else (file.next_max or 0)
    return (file.log_min or 0 if alone else 0, first, file.next_max or 0, file.path)


def rewrite(store: Store, step: RewriteStep, *, file_bytes: int | None = None) -> list[WrittenFile]:
    """Write the rows of the step's files, sorted, to new files, which no commit lists yet. Raises Fenced if a file is
    gone."""
    schema = schema_of(step.place)
    keys = [name for name in ("log", "position", "index") if name in schema.names]
    cursors = [FileCursor(store, file, schema.names, None) for file in step.files]
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
    """The error for a missing file: lost, or replaced by another compaction."""
    file = vanished.file
    path = f"{store.uri(file.place)}/{file.path}"
    if any(each.path == file.path for each in listing(store, file.place).files):
        return Corrupt(
            f"the cold file {path} is missing; restore it from a copy of cold storage: its entries are nowhere else"
        )
    return Fenced(f"the cold file {path} was replaced by another compaction; plan again")


def _kept(table: pa.Table, starts: Mapping[int, int]) -> pa.Table:
    if not starts:
        return table
    at = pc.index_in(table["log"], value_set=pa.array(starts, pa.int64()))
    start = pa.array(starts.values(), pa.int64()).take(at.combine_chunks())  # null: of another log
    return table.filter(pc.fill_null(pc.greater(table["next"], start), True))


def replace(
    store: Store, step: RewriteStep, written: Sequence[WrittenFile], *, metadata: Mapping[str, Any] | None = None
) -> None:
    """List the new files instead of the old ones, in one commit. Fenced if an old one is no longer listed: then another
    rewrite committed first, and the new files are left for `vacuum`."""
    if replace_all(store, step.place, [(step, written)], metadata=metadata):
        raise Fenced(f"a file of {store.uri(step.place)} was replaced by another compaction; plan again")


def replace_all(
    store: Store,
    place: str,
    rewritten: Sequence[tuple[RewriteStep, Sequence[WrittenFile]]],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> list[RewriteStep]:
    """List the new files of many steps instead of their old ones, in one commit. Returns the steps that are left out
    because one of their old files is no longer listed: another rewrite committed first."""
    for _ in range(limits.COLD_COMMIT_TRIES):
        table = store.delta(place)
        if table is None:
            raise Invalid(f"there is no Delta table at {store.uri(place)}")
        present = {file.path for file in ColdListing(place, table).files}
        left: list[tuple[RewriteStep, Sequence[WrittenFile]]] = []
        fenced: list[RewriteStep] = []
        for step, written in rewritten:
            if written and all(file.path in present for file in written):
                continue  # committed before, and the response was lost
            if all(file.path in present for file in step.files):
                left.append((step, written))
            else:
                fenced.append(step)
        if not left:
            settle(store, place, table.version())
            return fenced
        actions: list[AddAction | RemoveAction] = []
        for step, written in left:
            change = bool(step.starts) and sum(file.rows for file in written) != step.rows
            actions += added(written, change=change)
            actions += removed([(file.path, file.size) for file in step.files], change=change)
        number = (table.transaction_version(APP) or 0) + 1
        if attempt(store, place, table, actions, app=APP, generation=number, metadata=metadata):
            return fenced
    raise Unavailable(
        f"compaction could not commit to {store.uri(place)}: others committed first "
        f"{limits.COLD_COMMIT_TRIES} times; try again"
    )


def compact(store: Store, place: str, *, file_bytes: int = limits.COLD_FILE_BYTES) -> Rewritten:
    """Merge small files in this process. Safe beside appends, readers and another compaction."""
    done = Rewritten()
    for _ in range(limits.COLD_COMMIT_TRIES):
        steps = plan(store, place, file_bytes=file_bytes)
        if not steps:
            return done
        try:
            done = _all(store, steps, done, file_bytes)
        except Fenced:
            continue
        return done
    raise Unavailable(f"another compaction of {store.uri(place)} keeps committing first; let it finish")


def forget(store: Store, place: str, starts: Mapping[int, int]) -> Rewritten:
    """Drop entries of these logs that end at or before the position. Inform the server first: then no reader requests
    them. Files with no other entries are dropped without being read."""
    done = Rewritten()
    for _ in range(limits.COLD_COMMIT_TRIES):
        steps = plan_drops(store, place, starts)
        try:
            return _all(store, steps, done, None)
        except Fenced:
            continue
    raise Unavailable(f"compaction of {store.uri(place)} keeps committing first; try again")


def plan_drops(store: Store, place: str, starts: Mapping[int, int]) -> list[RewriteStep]:
    """The files that may have entries of these logs that end at or before the position: a step for each."""
    return drops_of(place, listing(store, place).files, starts)


def drops_of(place: str, files: Iterable[ColdFile], starts: Mapping[int, int]) -> list[RewriteStep]:
    """As `plan_drops`, of these files."""
    known = sorted(starts.items())
    touched = ((file, _touched([file], known)) for file in files)
    return [RewriteStep(place, [file], found) for file, found in touched if found]


def drop(store: Store, step: RewriteStep) -> list[WrittenFile] | None:
    """The files that take the place of the step's one file, without old rows; None: it has no such row, because the
    statistics are not exact."""
    if is_wholly_old(step):
        return []
    return rewrite(store, step) if _any_old(store, step) else None


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


def _all(store: Store, steps: Sequence[RewriteStep], done: Rewritten, file_bytes: int | None) -> Rewritten:
    for step in steps:
        written = drop(store, step) if step.starts else rewrite(store, step, file_bytes=file_bytes)
        if written is None:
            continue
        replace(store, step, written, metadata={"files": len(step.files), "starts": _named(step.starts)})
        rows = sum(file.rows for file in written)
        done = Rewritten(
            done.files_before + len(step.files),
            done.files_after + len(written),
            done.rows + rows,
            done.dropped + step.rows - rows,
        )
    return done


def is_wholly_old(step: RewriteStep) -> bool:
    """Whether all rows of the step's one file are past retention, by its statistics alone."""
    (file,) = step.files
    if file.log_min is None or file.log_min != file.log_max or file.next_max is None:
        return False
    return file.next_max <= step.starts.get(file.log_min, -1)


def _any_old(store: Store, step: RewriteStep) -> bool:
    """Whether a row of the step's one file is past retention: a look at few columns, of few row groups."""
    (file,) = step.files
    columns = ["log", "position", "next"]
    try:
        for log, start in step.starts.items():
            for table, _ in merge([FileCursor(store, file, columns, RowSelection(log, None, start))], columns[:2]):
                if pc.any(pc.less_equal(table["next"], start)).as_py():
                    return True
    except Vanished as vanished:
        raise _gone(store, vanished) from vanished
    return False


def _named(starts: Mapping[int, int]) -> dict[str, int]:
    return {str(log): start for log, start in starts.items()}


def vacuum(store: Store, place: str, *, hours: int = limits.COLD_VACUUM_HOURS, dry_run: bool = False) -> list[str]:
    """Delete files that no version has listed for `hours`: replaced by a rewrite, or never committed. Their paths.

    Readers with an older listing list the files again. A writer that takes longer than that from a file to its commit
    would lose it: use at least an hour, unless nothing else runs."""
    if hours < 0:
        raise Invalid(f"{hours} hours is not an age of a file; give 0 or more")
    table = store.delta(place)
    if table is None:
        return []
    kept = dict(table.metadata().configuration).get("delta.deletedFileRetentionDuration")
    if kept is None and name_of(place)[0] == "snapshot":
        kept = "not set yet"  # the job that created it is about to set it
    if kept is not None:
        raise Invalid(
            f"{store.uri(place)} keeps its earlier versions (delta.deletedFileRetentionDuration is {kept}), and "
            "their files with them; change that property first if they are not needed"
        )
    with store.wrap_errors(place):
        paths = table.vacuum(retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
    if not dry_run:
        settle(store, place, table.version())
    return list(paths)

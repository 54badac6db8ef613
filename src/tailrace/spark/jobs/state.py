"""The state of a table at a sequence: the snapshot that it starts from, the changes after it, or why it is unavailable.

A sequence is *restorable* if all changes up to it are known: from the beginning, if the table was empty when its change
stream was enabled, or from a snapshot on. Ranges are of sequences here. A snapshot also has the offset at which the
changes after it begin, because the entry of a transaction begins where the one before it ended, which may be long
before its sequence.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.client import Client
from tailrace.cold import states
from tailrace.cold.schemas import place_of
from tailrace.cold.states import StateVersion
from tailrace.cold.store import Store
from tailrace.errors import Invalid
from tailrace.spark.jobs import fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOKED_AT: Final = 1_000  # positions before a sequence that are searched for the end of an entry
NEW_IMAGES: Final = frozenset(("NEW_IMAGE", "NEW_AND_OLD_IMAGES"))


class ChangeStreamInfo(msgspec.Struct, frozen=True):
    """The change stream of a table, as the server describes it."""

    table: str
    label: str
    log: int
    view: str
    database: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    complete: bool  # the changes from `earliest` on cover every item
    earliest: int
    next: int

    @property
    def tail(self) -> int:
        """The last sequence."""
        return self.next - 1


class FoldStart(msgspec.Struct, frozen=True):
    """The start of a fold: a snapshot, or an empty table; and the offset at which the changes after it begin."""

    snapshot: StateVersion | None
    sequence: int
    offset: int


def change_stream_info(client: Client, table: str) -> ChangeStreamInfo:
    """The change stream of the table; an error with the fix if its changes cannot be folded."""
    info = client.logs(table=table)
    partition = info["partitions"][0]
    found = ChangeStreamInfo(
        table,
        info["label"],
        partition["log"],
        info["view"],
        info["database"],
        tuple((name, kind) for name, kind in info["keys"]),
        tuple((name, kind) for name, kind in info.get("columns") or ()),
        info["complete"],
        partition["earliest"],
        partition["next"],
    )
    if found.view not in NEW_IMAGES:
        raise Invalid(
            f"the change stream of table {table!r} has the view {found.view}, which has no new images; "
            f"disable it and enable it again with NEW_AND_OLD_IMAGES: ALTER TABLE {table} DISABLE STREAM; "
            f"ALTER TABLE {table} ENABLE STREAM",
            code="INVALID_VIEW",
        )
    return found


def store_of(client: Client) -> Store:
    """The server's cold storage."""
    return Store(client.cold()["url"])


def snapshots_of(store: Store, known: ChangeStreamInfo) -> list[StateVersion]:
    """The snapshots of this change stream, the oldest first; not those of an earlier change stream."""
    place = place_of("snapshot", known.table)
    found = [each for each in states.versions(store, place, fold.STATE, known.database) if each.log == known.log]
    return sorted(found, key=lambda each: each.sequence)


def start_at(
    known: ChangeStreamInfo, snapshots: list[StateVersion], sequence: int | None
) -> tuple[int, FoldStart | None]:
    """The sequence (None: the last one), and the start of its fold; None: the state is not available."""
    wanted = known.tail if sequence is None else sequence
    if wanted > known.tail:
        raise Invalid(
            f"sequence {wanted} is not in the changes of table {known.table!r} yet: "
            f"{_ranges(known, snapshots)} are available",
            code="INVALID_SEQUENCE",
        )
    for each in reversed(snapshots):
        if each.sequence <= wanted and (each.next >= known.earliest or wanted < each.next):
            return wanted, FoldStart(each, each.sequence, each.next)
    if known.complete and wanted >= known.earliest - 1:
        return wanted, FoldStart(None, known.earliest - 1, known.earliest)
    return wanted, None


def unknown(known: ChangeStreamInfo, snapshots: list[StateVersion], sequence: int) -> Invalid:
    """The error for a sequence whose state is not available."""
    ranges = _ranges(known, snapshots)
    if not ranges:
        return Invalid(
            f"the state of table {known.table!r} at sequence {sequence} is not available: it had items before its "
            f"changes were recorded, or changes were trimmed, and there is no snapshot; take one now to restore later "
            f"sequences: tailrace pipeline snapshot {known.table}",
            code="INVALID_SEQUENCE",
        )
    return Invalid(
        f"the state of table {known.table!r} at sequence {sequence} is not available; {ranges} are",
        code="INVALID_SEQUENCE",
    )


def _ranges(known: ChangeStreamInfo, snapshots: list[StateVersion]) -> str:
    """The available sequences, as text."""
    found: list[tuple[int, int]] = []
    for each in snapshots:
        if each.next < known.earliest:
            found.append((each.sequence, each.next - 1))
    reaching = [each.sequence for each in snapshots if each.next >= known.earliest]
    if known.complete:
        reaching.append(known.earliest - 1)
    if reaching:
        found.append((min(reaching), known.tail))
    shown = [str(low) if low == high else f"{low} to {high}" for low, high in found]
    return ", ".join(shown)


def aligned(client: Client, known: ChangeStreamInfo, low: int, sequence: int) -> int:
    """Where the changes after `sequence` begin, not before `low`, which is where an entry begins.

    An entry begins where the one before it ends, so the first one after a sequence may begin before it. The entries at
    some positions before it are searched; where there are none, `low` is safe."""
    if sequence >= known.tail:
        return known.next
    begin = max(low, sequence + 1 - _LOOKED_AT)
    if begin > sequence:
        return low
    with client.arrow(
        table=known.table, label=known.label, offset=begin, until=sequence + 1, form="entries"
    ) as batches:
        ends: list[int] = [end for batch in batches for end in batch.column("next").to_pylist() if end <= sequence + 1]
    return max([low, *ends])


# -- in Spark


def changes(
    spark: SparkSession,
    known: ChangeStreamInfo,
    url: str,
    token: str | None,
    start: int,
    end: int,
    tasks: int | None = None,
) -> DataFrame:
    """The changes whose entries begin in [start, end), exact."""
    options: dict[str, Any] = {
        "url": url,
        "table": known.table,
        "label": known.label,
        "startingOffsets": json.dumps({"0": start}),
        "endingOffsets": json.dumps({"0": end}),
        "images": "dynamodb",
        "minPartitions": tasks or parallelism(spark),
    }
    if token is not None:
        options["token"] = token
    return spark.read.format("tailrace").options(**options).load()


def base(spark: SparkSession, store: Store, known: ChangeStreamInfo, version: StateVersion) -> DataFrame:
    """A snapshot, read by executors straight from its files."""
    place = place_of("snapshot", known.table)
    paths = [(path,) for path in states.files(store, place, version.version)]
    reading = states.reader(store, place, fold.STATE)
    frame = spark.createDataFrame(paths, "path string")
    return frame.repartition(max(1, len(paths))).mapInArrow(reading, fold.STATE_DDL)


def state(
    spark: SparkSession,
    store: Store,
    known: ChangeStreamInfo,
    start: FoldStart,
    sequence: int,
    *,
    url: str,
    token: str | None,
) -> tuple[DataFrame, DataFrame | None, int]:
    """The parts of the state at `sequence`: the marks of the changes, the snapshot below them, and the number of
    partitions for the fold."""
    below = None if start.snapshot is None else base(spark, store, known, start.snapshot)
    rows = (start.snapshot.rows if start.snapshot else 0) + max(0, sequence - start.sequence)
    found = marks_after(spark, known, start, sequence, url=url, token=token)
    return found, below, fold.partitions_for(rows, parallelism(spark))


def marks_after(
    spark: SparkSession, known: ChangeStreamInfo, start: FoldStart, sequence: int, *, url: str, token: str | None
) -> DataFrame:
    """The marks of the changes after the start of a fold, up to `sequence`."""
    if start.offset > sequence:
        return spark.createDataFrame([], fold.MARKS_DDL)
    found = changes(spark, known, url, token, start.offset, sequence + 1)
    return fold.marks(found.where(f"sequence > {start.sequence} AND sequence <= {sequence}"))


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that run at once."""
    return int(spark.sparkContext.defaultParallelism)

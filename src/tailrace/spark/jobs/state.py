"""The state of a table at a sequence: which snapshot it begins with, which changes come on top, or why it cannot be
had.

A sequence is *restorable* if all changes up to it are known: from the beginning, if the table was empty when its change
stream began, or from a snapshot on. Ranges are in sequences here. A snapshot also notes the offset at which the changes
after it begin, because a transaction's entry begins where the one before it ended, which may be long before its
sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.client import Client
from tailrace.cold import states
from tailrace.cold.schemas import place_of
from tailrace.cold.states import Version
from tailrace.cold.store import Store
from tailrace.errors import Conflict, Invalid
from tailrace.spark.jobs import fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOKED_AT: Final = 1_000  # positions before a sequence, for where an entry ends
NEW_IMAGES: Final = frozenset(("NEW_IMAGE", "NEW_AND_OLD_IMAGES"))


class Facts(msgspec.Struct, frozen=True):
    """What the server says of a table's changes."""

    table: str
    label: str
    log: int
    view: str
    database: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    complete: bool  # the changes from `earliest` on tell of every item
    earliest: int
    next: int

    @property
    def tail(self) -> int:
        """The last sequence."""
        return self.next - 1


class Start(msgspec.Struct, frozen=True):
    """What a fold begins with: a snapshot, or nothing at all; and the offset at which the changes after it begin."""

    snapshot: Version | None
    sequence: int
    offset: int


def facts(client: Client, table: str) -> Facts:
    """What is known of the table's changes; an error with the fix where they cannot be folded."""
    told = client.logs(table=table)
    partition = told["partitions"][0]
    found = Facts(
        table,
        told["label"],
        partition["log"],
        told["view"],
        told["database"],
        tuple((name, kind) for name, kind in told["keys"]),
        tuple((name, kind) for name, kind in told.get("columns") or ()),
        told["complete"],
        partition["earliest"],
        partition["next"],
    )
    if found.view not in NEW_IMAGES:
        raise Invalid(
            f"the change stream of table {table!r} has the view {found.view}, which does not tell what items become; "
            f"disable it and enable it again with NEW_AND_OLD_IMAGES: ALTER TABLE {table} DISABLE STREAM; "
            f"ALTER TABLE {table} ENABLE STREAM",
            code="INVALID_VIEW",
        )
    return found


def store_of(client: Client) -> Store:
    """The server's cold storage."""
    return Store(client.cold()["url"])


def snapshots_of(store: Store, known: Facts) -> list[Version]:
    """The snapshots of this change stream, the oldest first; those of a stream before it tell nothing of this one."""
    place = place_of("snapshot", known.table)
    found = [each for each in states.versions(store, place, fold.STATE, known.database) if each.log == known.log]
    return sorted(found, key=lambda each: each.sequence)


def start_at(known: Facts, snapshots: list[Version], sequence: int | None) -> tuple[int, Start | None]:
    """The sequence that is meant (None: the last one), and what its fold begins with; None: nothing does."""
    wanted = known.tail if sequence is None else sequence
    if wanted > known.tail:
        raise Invalid(
            f"sequence {wanted} is not in the changes of table {known.table!r} yet: "
            f"{_ranges(known, snapshots)} can be asked for",
            code="INVALID_SEQUENCE",
        )
    for each in reversed(snapshots):
        if each.sequence <= wanted and (each.next >= known.earliest or wanted < each.next):
            return wanted, Start(each, each.sequence, each.next)
    if known.complete and wanted >= known.earliest - 1:
        return wanted, Start(None, known.earliest - 1, known.earliest)
    return wanted, None


def unknown(known: Facts, snapshots: list[Version], sequence: int) -> Invalid:
    """What is raised for a sequence whose state cannot be had."""
    ranges = _ranges(known, snapshots)
    if not ranges:
        return Invalid(
            f"the state of table {known.table!r} at sequence {sequence} is not known: it had items before its changes "
            f"were recorded, or changes were trimmed, and there is no snapshot; take one now for what comes "
            f"later: tailrace pipeline snapshot {known.table}",
            code="INVALID_SEQUENCE",
        )
    return Invalid(
        f"the state of table {known.table!r} at sequence {sequence} is not known; {ranges} can be asked for",
        code="INVALID_SEQUENCE",
    )


def _ranges(known: Facts, snapshots: list[Version]) -> str:
    """The sequences that can be asked for, for people."""
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


def aligned(client: Client, known: Facts, low: int, sequence: int, looked_at: int | None = _LOOKED_AT) -> int:
    """Where the changes after `sequence` begin, not before `low`, which is where an entry begins.

    An entry begins where the one before it ends, so the first one after a sequence may begin before it. The entries at
    the `looked_at` positions before it tell (None: all from `low` on); where there are none, `low` is on the safe
    side."""
    if sequence >= known.tail:
        return known.next
    begin = low if looked_at is None else max(low, sequence + 1 - looked_at)
    if begin > sequence:
        return low
    with client.arrow(
        table=known.table, label=known.label, offset=begin, until=sequence + 1, form="entries"
    ) as batches:
        ends: list[int] = [end for batch in batches for end in batch.column("next").to_pylist() if end <= sequence + 1]
    return max([low, *ends])


@contextmanager
def items(client: Client, known: Facts) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """What is in the table now: where the changes after it begin, and the rows of its state. When each was changed last
    is not known; before that."""
    with client.items(known.table) as (sequence, batches):
        # The sequence is the database's; those of this table may end before it.
        now = facts(client, known.table)
        if now.log != known.log:
            raise Conflict(f"the change stream of table {known.table!r} was just made anew; start again")
        after = aligned(client, now, known.next, sequence, None)
        yield after, (_as_state(batch, after - 1) for batch in batches)


def _as_state(batch: pa.RecordBatch, sequence: int) -> pa.RecordBatch:
    columns = [batch.column(name).cast(pa.string()) for name in ("keys", "item", "typed")]
    columns.append(pa.repeat(pa.scalar(sequence, pa.int64()), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=fold.STATE)


# -- in Spark


def changes(
    spark: SparkSession, known: Facts, url: str, token: str | None, start: int, end: int, tasks: int | None = None
) -> DataFrame:
    """The changes whose entries begin in [start, end), exact."""
    options: dict[str, Any] = {
        "url": url,
        "table": known.table,
        "label": known.label,
        "startingOffsets": json.dumps({"0": start}),
        "endingOffsets": json.dumps({"0": end}),
        "images": "typed",
        "minPartitions": tasks or parallelism(spark),
    }
    if token is not None:
        options["token"] = token
    return spark.read.format("tailrace").options(**options).load()


def base(spark: SparkSession, store: Store, known: Facts, version: Version) -> DataFrame:
    """A snapshot, read by executors straight from its files."""
    place = place_of("snapshot", known.table)
    paths = [(path,) for path in states.files(store, place, version.version)]
    reading = states.reader(store, place, fold.STATE)
    frame = spark.createDataFrame(paths, "path string")
    return frame.repartition(max(1, len(paths))).mapInArrow(reading, fold.STATE_DDL)


def state(
    spark: SparkSession, store: Store, known: Facts, start: Start, sequence: int, *, url: str, token: str | None
) -> tuple[DataFrame, DataFrame | None, int]:
    """What folds to the state at `sequence`: the marks of the changes, the snapshot that they come on top of, and
    how many partitions the fold wants."""
    below = None if start.snapshot is None else base(spark, store, known, start.snapshot)
    if start.offset > sequence:
        return spark.createDataFrame([], fold.MARKS_DDL), below, parallelism(spark)
    found = changes(spark, known, url, token, start.offset, sequence + 1)
    found = found.where(f"sequence > {start.sequence} AND sequence <= {sequence}")
    rows = (start.snapshot.rows if start.snapshot else 0) + max(0, sequence - start.sequence)
    return fold.marks(found), below, fold.partitions_for(rows, parallelism(spark))


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once."""
    return int(spark.sparkContext.defaultParallelism)

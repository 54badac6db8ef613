"""`python -m bench.scale`: the plans of the pipeline's jobs for a large history, which is simulated: metadata alone.

The history is a topic of 1,000 partitions and a table, with 10^9 entries of 1,000 bytes each, about 1 TB in cold
storage; copies and snapshots have 10^9 items. The planners of the jobs are run over the descriptions that a server and
a Delta table would give. Nothing is read or written. Printed is what the driver plans: tasks and commits, the
bytes of the plan that it sends to executors, and what one task reads.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.cold import compacting
from tailrace.cold.compacting import RewriteStep
from tailrace.cold.merging import ColdFile
from tailrace.cold.states import StateFile
from tailrace.cold.writing import BLOOM_ERROR
from tailrace.spark import planning
from tailrace.spark.jobs import clusters, copies, fold, replicate, tasks, view
from tailrace.spark.jobs.filling import COMMIT_ROWS
from tailrace.spark.jobs.ranges import TASK_RECORDS, split
from tailrace.spark.jobs.settings import BATCH_RECORDS
from tailrace.spark.jobs.tasks import Task, TaskEndpoints
from tailrace.spark.jobs.tier import TierBatch, TierDriver

ENTRIES: Final = 10**9
ENTRY_BYTES: Final = 1_000
PARTITIONS: Final = 1_000
CORES: Final = 64
FILES: Final = ENTRIES * ENTRY_BYTES // limits.COLD_FILE_BYTES
LEAF_ROWS: Final = clusters.LEAF_BYTES // ENTRY_BYTES  # of a full leaf, if an item has as many bytes as an entry
SPLIT_BYTES: Final = 128 * limits.MiB  # of a file that one task of Spark reads (spark.sql.files.maxPartitionBytes)
BLOOM_BITS: Final = 10  # for each key, at a probability of errors of 0.01
SNAPSHOT: Final = "snapshot, the first"


class JobPlan(msgspec.Struct, frozen=True):
    """The plan of one job."""

    job: str
    step: str  # what is planned
    tasks: int
    commits: int
    plan_bytes: int  # in the driver, and sent to executors
    task_bytes: int  # read by one task
    requests: int | None = None  # to the server, where they are simulated


class SimulatedServer:
    """Answers the questions of `tier` and `view` about one topic, and counts them."""

    def __init__(self) -> None:
        self.requests = 0
        self._each = ENTRIES // PARTITIONS

    def describe_logs(self, sources: Sequence[Any]) -> list[dict[str, Any] | None]:
        self.requests += 1
        parts = [
            {"partition": number, "log": number + 1, "tiered": 0, "next": self._each} for number in range(PARTITIONS)
        ]
        cold = {"url": "file:///nowhere", "place": "topics/all", "generation": 0}
        return [{"cold": cold, "database": "d", "partitions": parts, "content_type": None} for _ in sources]

    def advance_logs(self, wanted: Sequence[tuple[Any, dict[int, int], int]]) -> list[dict[int, int] | None]:
        self.requests += 1
        return [{number: at + records // len(at_all) for number, at in at_all.items()} for _, at_all, records in wanted]


def tier_plan(batch_records: int = BATCH_RECORDS) -> JobPlan:
    """A round of `tier` of the whole topic."""
    server: Any = SimulatedServer()
    driver = TierDriver(
        server, lambda *_: [], {"table": (), "topic": ("all",), "stream": ()},
        endpoints=TaskEndpoints("", None, ""), tasks=CORES, batch_records=batch_records, clock=lambda: 0.0,
    )  # fmt: skip
    driver._attached["topic", "all"] = None
    driver._listed_at = 0.0
    batches: list[TierBatch] = driver._plan(driver.look(), flush=True)
    cut = [Task(batch.place.name, ranges) for batch in batches for ranges in split(batch.ranges, CORES)]
    rows = max(sum(part.end - part.start for part in task.ranges) for task in cut)
    return JobPlan(
        "tier", f"a batch of {batch_records:,} records", len(cut), len(batches), _size(cut), rows * ENTRY_BYTES,
        server.requests,
    )  # fmt: skip


def history(files: int, size: int) -> list[ColdFile]:
    """The files of a log, one after the other."""
    each = ENTRIES // files
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        ColdFile(
            "tables/all", f"{number:032x}.parquet", size, each, 1, 1, number * each, (number + 1) * each - 1,
            (number + 1) * each, moment,
        )
        for number in range(files)
    ]  # fmt: skip


def merge_plan() -> JobPlan:
    """`compact`, of small files: what `tier` wrote of the whole history."""
    small = ENTRIES // TASK_RECORDS  # a task of `tier` writes a file
    steps = compacting.plan_merges("tables/all", history(small, ENTRIES * ENTRY_BYTES // small))
    return _compaction("merge small files", steps, max(step.bytes for step in steps))


def drop_plan() -> JobPlan:
    """`compact --retention`, when half of the history is past it: files of which nothing is left need no task."""
    steps = compacting.drops_of("tables/all", history(FILES, limits.COLD_FILE_BYTES), {1: ENTRIES // 2 + 17})
    left = [step for step in steps if not compacting.is_wholly_old(step)]
    return _compaction("drop half of the history", left, max(step.bytes for step in left), len(steps))


def _compaction(what: str, steps: Sequence[RewriteStep], task_bytes: int, files: int | None = None) -> JobPlan:
    wave = tasks.WAVE_TASKS * CORES
    commits = -(-(len(steps) if files is None else files) // wave)
    return JobPlan("compact", what, len(steps), commits, _size(steps[:wave]), task_bytes)


def clustered() -> clusters.Clustering:
    """The leaves of a state of 10^9 items."""
    leaves = ENTRIES // LEAF_ROWS
    bounds = [(clusters.HASH_MAX + 1) * number // leaves for number in range(leaves + 1)]
    names = [f"{low:08x}-{high - 1:08x}-{number:032x}.parquet" for number, (low, high) in enumerate(pairwise(bounds))]
    return clusters.clustering([StateFile(name, LEAF_ROWS * ENTRY_BYTES, LEAF_ROWS) for name in names])


def merging(job: str, changes: int) -> JobPlan:
    """A batch of changes of random keys, merged into a state of 10^9 items."""
    found = clustered()
    chance = random.Random(1)
    lows = [leaf.low for leaf in found.leaves]
    touched = len({_leaf(lows, chance.getrandbits(32)) for _ in range(changes)})
    size = LEAF_ROWS * ENTRY_BYTES + changes * ENTRY_BYTES // touched
    tasks_ = clusters.partitions_for(len(found.leaves), CORES)
    what = f"{changes:,} changes in {touched:,} of {len(found.leaves):,} leaves"
    return JobPlan(job, what, tasks_, 1, _size(found.leaves), size * touched // tasks_)


def _leaf(lows: Sequence[int], value: int) -> int:
    return bisect_right(lows, value) - 1


def fold_plan(job: str) -> JobPlan:
    """All changes of a table, folded: to its first snapshot, or to a restored table."""
    reading = planning.tasks_wanted("table", [ENTRIES], CORES, None)
    leaves = clusters.clustering([], ENTRIES, ENTRIES * ENTRY_BYTES).leaves
    folding = clusters.partitions_for(len(leaves), CORES) if job == SNAPSHOT else fold.partitions_for(ENTRIES, CORES)
    files = history(FILES, limits.COLD_FILE_BYTES)
    commits = 1 if job == SNAPSHOT else ENTRIES // COMMIT_ROWS
    what = "10^9 changes folded"
    return JobPlan(job, what, reading + folding, commits, _size(files), ENTRIES * ENTRY_BYTES // reading)


def copy_plan(kind: str) -> JobPlan:
    """The first copy of a table with 10^9 items, whose changes do not cover them."""
    segments = copies.tasks_for(ENTRIES, ENTRIES * ENTRY_BYTES, CORES)
    leaves = clusters.clustering([], ENTRIES, ENTRIES * ENTRY_BYTES).leaves
    merging_ = clusters.partitions_for(len(leaves), CORES) if kind == "Delta" else 0
    commits = ENTRIES // COMMIT_ROWS if kind == "Tailrace" else 1
    # Of PostgreSQL the driver holds the names of all parts, of Tailrace the stages of one wave.
    wave = min(copies.WAVE_TASKS * CORES, copies.WAVE_TASKS_MAX) * (ENTRIES // segments // COMMIT_ROWS + 1)
    held: Sequence[Any] = leaves if kind == "Delta" else [("0" * 16, 1)] * (segments if kind == "PostgreSQL" else wave)
    what = "10^9 items"
    return JobPlan(
        f"replicate to {kind}, first copy", what, segments + merging_, commits, _size(held),
        ENTRIES * ENTRY_BYTES // segments,
    )  # fmt: skip


def view_plan(records: int = view.MAX_RECORDS_ALONE) -> JobPlan:
    """A batch of an additive view of the whole topic, which has not begun."""
    server: Any = SimulatedServer()
    logs = [
        {"table": "all", "partition": number, "log": number + 1, "position": 0, "next": ENTRIES // PARTITIONS}
        for number in range(PARTITIONS)
    ]
    known = {"tables": [{"table": "all", "topic": 1}], "sources": logs}
    ranges = view.batch_ranges(server, known, records)
    sizes = [end - start for start, end in ranges.values()]
    wanted = planning.tasks_wanted("topic", sizes, CORES, None)
    what = f"a batch of {records:,} messages"
    return JobPlan("view", what, wanted, 1, _size(ranges), sum(sizes) * ENTRY_BYTES // wanted, server.requests)


def view_start_plan() -> JobPlan:
    """The start of a view that needs the rows of a table with 10^9 items: executors read all of them."""
    segments = planning.tasks_wanted("table", [ENTRIES], CORES, None)
    return JobPlan(
        "view, its start", "10^9 items", segments, 0, _size([(0, 1, None)] * segments),
        ENTRIES * ENTRY_BYTES // segments,
    )  # fmt: skip


def audit_plan() -> JobPlan:
    """`audit` of one key: Spark reads the footers and Bloom filters of all files, and few row groups."""
    groups = ENTRIES * ENTRY_BYTES // limits.COLD_GROUP_BYTES
    bits = limits.COLD_GROUP_BYTES // ENTRY_BYTES * BLOOM_BITS
    filters = groups * (1 << (bits // 8).bit_length())  # the size of a filter is a power of two
    read = filters + int(groups * BLOOM_ERROR) * limits.COLD_GROUP_BYTES  # and row groups that have the key by mistake
    paths = [file.path for file in history(FILES, limits.COLD_FILE_BYTES)]
    splits = -(-ENTRIES * ENTRY_BYTES // SPLIT_BYTES)
    return JobPlan("audit", "the history of one key", splits, 0, _size(paths), read // splits)


def plans() -> list[JobPlan]:
    """The plans of all jobs."""
    return [
        tier_plan(),
        merge_plan(),
        drop_plan(),
        merging("replicate to Delta", replicate.MAX_RECORDS["delta"]),
        *(copy_plan(kind) for kind in ("Delta", "PostgreSQL", "Tailrace")),
        merging("snapshot", 10**6),
        fold_plan(SNAPSHOT),
        fold_plan("restore"),
        view_plan(),
        view_start_plan(),
        audit_plan(),
    ]


def _size(plan: Any) -> int:
    return len(msgspec.msgpack.encode(plan))


def report() -> list[str]:
    """The plans as a table in Markdown."""
    rows = [
        f"| {each.job} | {each.step} | {each.tasks:,} | {each.commits:,} | {each.plan_bytes / 1e6:.1f} | "
        f"{each.task_bytes / 1e6:,.0f} |"
        for each in plans()
    ]
    return ["| job | plan | tasks | commits | plan, MB | a task reads, MB |", "|---|---|---|---|---|---|", *rows]


if __name__ == "__main__":
    print("\n".join(report()))

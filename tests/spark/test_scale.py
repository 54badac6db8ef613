"""The plans of jobs for a simulated history of 10^9 entries in 1,000 partitions: they do not grow with the entries."""

from __future__ import annotations

from bench import scale
from tailrace import limits
from tailrace.spark.jobs import clusters, copies, tasks
from tests.support.server import ROOT


def test_a_round_of_tier_asks_twice_and_holds_one_batch() -> None:
    plan = scale.tier_plan()
    assert plan.requests == 2, "all partitions in one request, and how far the batch reaches in another"
    assert plan.tasks == 10 and plan.commits == 1
    assert plan.plan_bytes < 200_000
    larger = scale.tier_plan(10_000_000)
    assert larger.requests == 2 and larger.tasks == scale.CORES, "a larger batch has a task for each core"
    assert larger.plan_bytes < 200_000, "ranges, however many entries they have"


def test_a_compaction_is_cut_into_tasks_and_waves() -> None:
    merging = scale.merge_plan()
    assert merging.tasks > 3_000 and merging.task_bytes <= 2 * limits.COLD_FILE_BYTES
    assert merging.commits == -(-merging.tasks // (tasks.WAVE_TASKS * scale.CORES))
    assert merging.plan_bytes < 2_000_000, "the driver holds the files of one wave"
    dropping = scale.drop_plan()
    assert dropping.tasks == 1, "of all files but one nothing is left: they are not read"
    assert dropping.commits < 10, "not one for each file"


def test_a_batch_is_merged_by_leaves() -> None:
    """A task holds one leaf at a time; a batch of one key touches one of them."""
    found = scale.clustered()
    assert len(found.leaves) == scale.ENTRIES // scale.LEAF_ROWS and not found.loose
    one = scale.merging("replicate", 1)
    assert "1 changes in 1 of" in one.step and one.commits == 1
    assert one.task_bytes <= clusters.LEAF_BYTES
    many = scale.merging("replicate", 100_000)
    assert many.tasks == clusters.TASKS_PER_CORE * scale.CORES
    assert many.plan_bytes == one.plan_bytes < 1_000_000, "names of files, whatever the batch has"


def test_a_fold_and_an_audit_are_cut_by_size() -> None:
    for job in (scale.SNAPSHOT, "restore"):
        plan = scale.fold_plan(job)
        assert 2_000 <= plan.tasks <= 5_000
        assert plan.task_bytes <= 1_000_000_000
    audit = scale.audit_plan()
    assert audit.task_bytes * audit.tasks < scale.ENTRIES * scale.ENTRY_BYTES // 50, "a key is in few row groups"


def test_a_batch_of_a_view_asks_once_for_all_partitions() -> None:
    plan = scale.view_plan()
    assert plan.requests == 1, "not one for each partition"
    assert plan.tasks == scale.PARTITIONS and plan.commits == 1
    assert plan.plan_bytes < 200_000, "ranges, however many messages they have"


def test_the_start_of_a_view_is_cut_into_segments() -> None:
    plan = scale.view_start_plan()
    assert plan.tasks >= scale.CORES and plan.plan_bytes < 200_000
    assert plan.task_bytes <= 1_000_000_000


def test_a_first_copy_is_cut_into_segments() -> None:
    for kind in ("Delta", "PostgreSQL", "Tailrace"):
        plan = scale.copy_plan(kind)
        assert plan.task_bytes <= copies.TASK_BYTES
        assert plan.plan_bytes < 1_000_000, "names of files, parts or stages"


def test_the_page_has_the_figures_of_the_simulation() -> None:
    page = (ROOT / "docs" / "explanation" / "scaling-jobs.md").read_text().splitlines()
    for line in scale.report():
        assert line in page, "run python -m bench.scale, and copy its table to the page"

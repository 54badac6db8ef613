"""Compaction and retention: the same rows in fewer files, beside appends, readers and other compactions."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tailrace import limits
from tailrace.cold import compacting, reading
from tailrace.cold.compacting import (
    RewriteStep,
    compact,
    drop,
    forget,
    is_wholly_old,
    plan,
    plan_drops,
    replace,
    replace_all,
    rewrite,
    vacuum,
)
from tailrace.cold.store import Store
from tailrace.cold.writing import last_generation
from tailrace.errors import Fenced, Invalid
from tests.support.patience import PATIENCE_S
from tests.unit.cold.rows import ORDERS, change_rows, entries, message_rows, positions, stream_rows, tiered, whole


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def fill(store: Store, generations: int, *, records: int = 1) -> None:
    for generation in range(generations):
        batch = change_rows(entries(7, 10 * generation, 10 * generation + 10), records)
        tiered(store, ORDERS, [batch], generation + 1)


def delta(store: Store, place: str = ORDERS) -> DeltaTable:
    table = store.delta(place)
    assert table is not None
    return table


def test_the_same_rows_in_one_file(store: Store) -> None:
    fill(store, 12, records=3)
    before = whole(store, ORDERS, 7, 0, 120)
    done = compact(store, ORDERS)
    assert (done.files_before, done.files_after, done.rows, done.dropped) == (12, 1, 360, 0)
    assert whole(store, ORDERS, 7, 0, 120).equals(before)
    assert len(delta(store).file_uris()) == 1
    assert compact(store, ORDERS).files_before == 0  # nothing left to do
    assert last_generation(store, ORDERS, "tier") == 12  # appends go on where they were
    assert tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 12)[0] == "already"


def test_files_of_many_logs_come_out_sorted(store: Store) -> None:
    for generation in range(6):
        span = (10 * generation, 10 * generation + 10)
        tiered(store, "topics/t", [message_rows(entries(log, *span), log) for log in (3, 4, 5)], generation + 1)
    compact(store, "topics/t")
    (uri,) = delta(store, "topics/t").file_uris()
    import pyarrow.parquet as pq

    table = pq.read_table(uri)
    assert list(zip(table["log"].to_pylist(), table["position"].to_pylist(), strict=True)) == [
        (log, at) for log in (3, 4, 5) for at in range(60)
    ]
    for log in (3, 4, 5):
        assert positions(store, "topics/t", log, 0, 60) == list(range(60))


def test_large_files_are_left_alone_and_steps_are_bounded(store: Store) -> None:
    fill(store, 6)
    size = reading.listing(store, ORDERS).files[0].size
    assert plan(store, ORDERS, file_bytes=size) == []
    steps = plan(store, ORDERS, file_bytes=3 * size + size // 2)
    assert [[file.position_min for file in step.files] for step in steps] == [[0, 10, 20], [30, 40, 50]]
    assert all(step.bytes <= 3 * size + size // 2 for step in steps)


# -- races


def test_an_append_meanwhile_survives(store: Store) -> None:
    fill(store, 4)
    (step,) = plan(store, ORDERS)
    written = rewrite(store, step)
    tiered(store, ORDERS, [change_rows(entries(7, 40, 50))], 5)
    replace(store, step, written)
    assert positions(store, ORDERS, 7, 0, 50) == list(range(50))
    assert len(delta(store).file_uris()) == 2


def test_two_compactions_of_the_same_files_never_double_rows(store: Store) -> None:
    fill(store, 4)
    (one,), (two,) = plan(store, ORDERS), plan(store, ORDERS)
    first, second = rewrite(store, one), rewrite(store, two)
    replace(store, one, first)
    with pytest.raises(Fenced, match="replaced by another compaction"):
        replace(store, two, second)
    replace(store, one, first)  # the answer was lost, and it is tried again
    assert positions(store, ORDERS, 7, 0, 40) == list(range(40))


def test_two_commits_of_one_version_cannot_both_replace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look, both find their files, then both commit: Delta has to refuse one."""
    fill(store, 4)
    (step,) = plan(store, ORDERS)
    written = [rewrite(store, step) for _ in range(2)]
    barrier, real, outcomes = threading.Barrier(2), compacting.attempt, []
    first = threading.local()

    def together(*arguments: object, **named: object) -> bool:
        if not getattr(first, "passed", False):
            first.passed = True
            barrier.wait()
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(compacting, "attempt", together)

    def go(number: int) -> None:
        try:
            replace(store, step, written[number])
            outcomes.append("replaced")
        except Fenced:
            outcomes.append("fenced")

    threads = [threading.Thread(target=go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["fenced", "replaced"]
    assert positions(store, ORDERS, 7, 0, 40) == list(range(40))


def work(url: str, job: str, start: float, out: str) -> None:
    """One process of several: appends, or compacts again and again."""
    store = Store(url)
    time.sleep(max(0.0, start - time.time()))
    if job == "tier":
        for generation in range(5, 25):
            tiered(
                store, ORDERS, [change_rows(entries(7, 10 * generation - 10, 10 * generation))], generation, strict=True
            )
    else:
        for _ in range(8):
            compact(store, ORDERS)
    Path(out, job).write_text(json.dumps("done"))


def test_processes_append_and_compact_at_once(store: Store, tmp_path: Path) -> None:
    fill(store, 4)
    context = multiprocessing.get_context("spawn")
    start = time.time() + 4.0
    jobs = ["tier", "compact-1", "compact-2"]
    processes = [context.Process(target=work, args=(store.url, job, start, str(tmp_path))) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert all((tmp_path / job).exists() for job in jobs)
    assert positions(store, ORDERS, 7, 0, 240) == list(range(240))
    assert DeltaTable(store.uri(ORDERS)).to_pyarrow_table().num_rows == 240


# -- retention


def test_forget_drops_entries_below_a_position(store: Store) -> None:
    fill(store, 5, records=2)
    done = forget(store, ORDERS, {7: 25})
    assert done.dropped == 50 and done.rows == 10
    assert positions(store, ORDERS, 7, 25, 50) == [at for at in range(25, 50) for _ in range(2)]
    assert positions(store, ORDERS, 7, None, None)[0] == 25
    assert forget(store, ORDERS, {7: 25}).dropped == 0  # twice is once
    assert forget(store, ORDERS, {8: 1000}).dropped == 0  # not a log of this place
    version = delta(store).version()
    forget(store, ORDERS, {7: 25})
    assert delta(store).version() == version


def test_many_files_are_dropped_from_by_one_commit(store: Store) -> None:
    """A step for each file with old entries; those that are wholly old are not read; one that another compaction
    replaced meanwhile is left out, and the others are committed."""
    for number in range(4):
        tiered(store, ORDERS, [change_rows(entries(7, number * 10, number * 10 + 10))], number + 1)
    steps = plan_drops(store, ORDERS, {7: 25})
    assert [is_wholly_old(step) for step in sorted(steps, key=lambda step: step.files[0].position_min or 0)] == [
        True, True, False,
    ]  # fmt: skip
    done = [(step, drop(store, step)) for step in steps]
    assert sorted(sum(file.rows for file in written or ()) for _, written in done) == [0, 0, 5]
    (other,) = [step for step in steps if step.files[0].position_min == 10]
    replace(store, other, [])  # another compaction is faster
    before = store.delta(ORDERS).version()  # type: ignore[union-attr]
    rewritten = [(step, written) for step, written in done if written is not None]
    assert replace_all(store, ORDERS, rewritten) == [other]
    assert store.delta(ORDERS).version() == before + 1  # type: ignore[union-attr]
    assert whole(store, ORDERS, 7, 25, 40)["position"].to_pylist() == list(range(25, 40))
    # Once more, as after a lost response: nothing is doubled.
    assert replace_all(store, ORDERS, [each for each in rewritten if each[1]]) == []
    assert sum(file.rows or 0 for file in reading.files(store, ORDERS, 7)) == 15
    assert drop(store, plan_drops(store, ORDERS, {7: 26})[0]) is not None


def test_forget_keeps_the_entry_that_covers_the_position(store: Store) -> None:
    tiered(store, "streams", [stream_rows(entries(3, 0, 70, width=7)), stream_rows(entries(4, 0, 70, width=7))], 1)
    assert forget(store, "streams", {3: 24}).dropped == 3
    assert positions(store, "streams", 3, None, None) == list(range(21, 70, 7))
    assert positions(store, "streams", 4, 0, 70) == list(range(0, 70, 7))  # another log is not touched


def test_forget_beside_compaction_and_appends(store: Store) -> None:
    fill(store, 6)
    (step,) = plan(store, ORDERS)
    written = rewrite(store, step)
    forget(store, ORDERS, {7: 35})
    tiered(store, ORDERS, [change_rows(entries(7, 60, 70))], 7)
    with pytest.raises(Fenced):  # or what was dropped would come back
        replace(store, step, written)
    compact(store, ORDERS)
    assert positions(store, ORDERS, 7, 35, 70) == list(range(35, 70))
    assert positions(store, ORDERS, 7, None, None)[0] == 35


# -- vacuum


def test_vacuum_waits_a_day_and_removes_only_unlisted_files(store: Store) -> None:
    fill(store, 4)
    compact(store, ORDERS)
    place = Path(store.uri(ORDERS))
    assert len(list(place.glob("*.parquet"))) == 5
    assert vacuum(store, ORDERS) == []
    assert len(vacuum(store, ORDERS, hours=0, dry_run=True)) == 4
    assert len(list(place.glob("*.parquet"))) == 5
    assert len(vacuum(store, ORDERS, hours=0)) == 4
    assert positions(store, ORDERS, 7, 0, 40) == list(range(40))
    assert vacuum(store, "tables/nothing") == []
    with pytest.raises(Invalid):
        vacuum(store, ORDERS, hours=-1)


def test_vacuum_leaves_places_that_keep_their_versions(store: Store) -> None:
    fill(store, 2)
    delta(store).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 5200 weeks"})
    compact(store, ORDERS)
    with pytest.raises(Invalid, match="keeps its earlier versions"):
        vacuum(store, ORDERS, hours=0)
    assert DeltaTable(store.uri(ORDERS), version=2).to_pyarrow_table().num_rows == 20


def test_a_step_over_many_files_holds_few_rows(store: Store) -> None:
    """Files that follow each other are opened one after the other."""
    import pyarrow as pa

    for generation in range(20):
        span = (5_000 * generation, 5_000 * (generation + 1))
        tiered(store, ORDERS, [change_rows(entries(7, *span, size=400))], generation + 1)
    (step,) = plan(store, ORDERS)
    pool = pa.default_memory_pool()
    before, highest, stop = pool.bytes_allocated(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.002):
            highest[0] = max(highest[0], pool.bytes_allocated() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    rewrite(store, step)
    stop.set()
    watcher.join()
    assert highest[0] < 5 * limits.COLD_GROUP_BYTES


def test_a_step_travels(store: Store) -> None:
    import pickle

    fill(store, 2)
    (step,) = plan(store, ORDERS)
    assert pickle.loads(pickle.dumps(step)) == step == RewriteStep(ORDERS, step.files)


# -- what the server no longer has


def test_rows_below_the_starts_of_logs_go_when_files_are_merged(store: Store) -> None:
    for generation in range(4):
        span = (10 * generation, 10 * generation + 10)
        tiered(store, "topics/t", [message_rows(entries(log, *span), log) for log in (3, 4, 5)], generation + 1)
    (step,) = plan(store, "topics/t", starts={3: 25, 4: 0, 9: 1000})
    assert step.starts == {3: 25}
    replace(store, step, rewrite(store, step))
    assert positions(store, "topics/t", 3, None, None) == list(range(25, 40))
    assert positions(store, "topics/t", 4, 0, 40) == positions(store, "topics/t", 5, 0, 40) == list(range(40))


def test_a_merge_that_drops_nothing_is_no_change_for_readers(store: Store) -> None:
    tiered(store, "streams", [stream_rows(entries(3, 0, 70, width=7))], 1)
    tiered(store, "streams", [stream_rows(entries(3, 70, 140, width=7))], 2)
    (step,) = plan(store, "streams", starts={3: 6})  # the entry that covers it stays
    assert step.starts == {3: 6}
    replace(store, step, rewrite(store, step))
    folder = Path(store.uri("streams"), "_delta_log")
    actions = [json.loads(line) for line in max(folder.glob("*.json")).read_text().splitlines()]
    (added,) = [each["add"] for each in actions if "add" in each]
    assert added["dataChange"] is False


def test_files_without_such_rows_are_not_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tiered(store, "streams", [stream_rows(entries(3, 0, 70, width=7)), stream_rows(entries(4, 700, 770, width=7))], 1)
    version = delta(store, "streams").version()
    monkeypatch.setattr(compacting, "rewrite", lambda *_, **__: pytest.fail("nothing was to be dropped"))
    # By the least position of the file both could have something below; no row of theirs has.
    assert forget(store, "streams", {4: 700}).dropped == 0
    assert forget(store, "streams", {3: 6}).dropped == 0
    assert delta(store, "streams").version() == version

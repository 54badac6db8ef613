"""Rows to files, files to commits: once each, whoever races and whoever dies."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tailrace import limits
from tailrace.cold import compacting, writing
from tailrace.cold.schemas import CHANGES, STREAMS
from tailrace.cold.store import Store
from tailrace.cold.writing import (
    WrittenFile,
    commit,
    committed_metadata,
    hand_over,
    last_generation,
    version_of,
    write_rows,
)
from tailrace.errors import Fenced, Invalid
from tests.support.patience import PATIENCE_S
from tests.unit.cold.rows import DATABASE, ORDERS, change_rows, entries, positions, stream_rows, tiered, whole


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def listed(store: Store, place: str = ORDERS) -> DeltaTable:
    table = store.delta(place)
    assert table is not None
    return table


# -- files


def test_what_was_written_comes_back(store: Store) -> None:
    batch = change_rows(entries(7, 0, 100), records=3)
    tiered(store, ORDERS, [batch], 1)
    assert whole(store, ORDERS, 7, 0, 100).equals(pa.Table.from_batches([batch]))


def test_statistics_are_those_of_the_rows(store: Store) -> None:
    (file,) = write_rows(store, ORDERS, [change_rows(entries(7, 10, 20), records=2), change_rows(entries(9, 3, 4))])
    stats = json.loads(file.stats)
    assert stats["numRecords"] == file.rows == 21
    assert stats["minValues"] == {
        "log": 7,
        "position": 3,
        "next": 4,
        "timestamp": "2023-11-14T22:13:20.003000Z",
        "sequence": 3,
    }
    assert {name: stats["maxValues"][name] for name in ("log", "position", "next", "sequence")} == {
        "log": 9,
        "position": 19,
        "next": 20,
        "sequence": 19,
    }
    assert stats["nullCount"] == dict.fromkeys(("log", "position", "next", "timestamp", "sequence"), 0)
    assert file.ranges == {7: (10, 20), 9: (3, 4)}
    assert file.size == Path(store.uri(ORDERS), file.path).stat().st_size


@pytest.mark.skipif(
    "bloom_filter_options" not in inspect.signature(pq.ParquetWriter).parameters, reason="this Arrow writes none"
)
def test_row_groups_have_bloom_filters_of_keys(store: Store) -> None:
    (file,) = write_rows(store, ORDERS, [change_rows(entries(7, 0, 120_000, width=2))])
    path = Path(store.uri(ORDERS), file.path)
    assert pq.ParquetFile(path).num_row_groups == 2

    def excluded(key: int) -> list[bool]:
        """By row group, whether its filter says that it does not have the key."""
        probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', 'keys', '{{\"id\": {key}}}')"
        return [row[0] for row in duckdb.sql(probe).fetchall()]

    assert [excluded(key) for key in (0, 99_998, 100_000, 119_998)] == [
        [False, True],
        [False, True],
        [True, False],
        [True, False],
    ]
    absent = [each for key in range(1, 2_000, 2) for each in excluded(key)]
    assert absent.count(False) < 100, "about one in a hundred is wrong"
    assert file.size < 4_000_000


def test_row_groups_are_bounded_by_rows_and_bytes(store: Store) -> None:
    small = change_rows(entries(7, 0, 120_000))
    large = stream_rows(entries(8, 0, 60, size=1024 * 1024))
    (rows,) = write_rows(store, ORDERS, [small])
    (sizes,) = write_rows(store, "streams", [large])
    footer = pq.read_metadata(Path(store.uri(ORDERS), rows.path))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [50_000, 50_000, 20_000]
    assert footer.row_group(0).column(0).compression == "ZSTD"
    footer = pq.read_metadata(Path(store.uri("streams"), sizes.path))
    assert footer.num_row_groups >= 4
    for i in range(footer.num_row_groups):
        assert footer.row_group(i).total_byte_size <= limits.COLD_GROUP_BYTES + limits.MiB


def test_many_small_batches_become_one_row_group(store: Store) -> None:
    (file,) = write_rows(store, ORDERS, [change_rows(entries(7, at, at + 10)) for at in range(0, 1000, 10)])
    assert pq.read_metadata(Path(store.uri(ORDERS), file.path)).num_row_groups == 1


def test_files_roll_between_entries_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_GROUP_ROWS", 100)
    batch = change_rows(entries(7, 0, 300, size=50), records=7)
    written = write_rows(store, ORDERS, [batch], file_bytes=6_000)
    assert len(written) > 3
    reached = 0
    for file in written:  # each goes on exactly where the one before ended
        assert file.ranges[7][0] == reached
        reached = file.ranges[7][1]
    assert reached == 300
    commit(store, ORDERS, CHANGES, written, app="tier", generation=1, database=DATABASE)
    assert whole(store, ORDERS, 7, 0, 300).num_rows == 2100


@pytest.mark.parametrize(
    "wrong",
    [
        [(7, 0, 10), (7, 11, 20)],  # a gap
        [(7, 0, 10), (7, 9, 20)],  # twice
        [(7, 10, 20), (7, 0, 10)],  # backwards
        [(8, 0, 10), (7, 0, 10)],  # logs backwards
    ],
)
def test_rows_that_are_not_a_log_are_refused_and_leave_nothing(store: Store, wrong: list[tuple[int, int, int]]) -> None:
    with pytest.raises(AssertionError, match="is followed by"):
        write_rows(store, ORDERS, [change_rows(entries(*span)) for span in wrong])
    assert list(Path(store.uri(ORDERS)).iterdir()) == []


def test_no_rows_no_file(store: Store) -> None:
    assert write_rows(store, ORDERS, []) == []
    assert write_rows(store, ORDERS, [change_rows([])]) == []


def test_files_and_commits_are_synced_before_they_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acknowledged as cold lets the hot log be trimmed: file, directory and commit must be on the disk."""
    synced: set[str] = set()
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    _, written = tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    place = store.uri(ORDERS)
    expected = {f"{place}/{written[0].path}", place, f"{place}/_delta_log", str(Path(place).parent)}
    expected |= {f"{place}/_delta_log/{version:020}.json" for version in (0, 1)}
    assert expected <= synced


# -- commits


def test_a_generation_is_committed_once(store: Store) -> None:
    batch = change_rows(entries(7, 0, 10))
    assert tiered(store, ORDERS, [batch], 1)[0] == "committed"
    assert tiered(store, ORDERS, [batch], 1)[0] == "already"
    assert tiered(store, ORDERS, [change_rows(entries(7, 10, 20))], 2)[0] == "committed"
    assert tiered(store, ORDERS, [batch], 1)[0] == "already"
    assert positions(store, ORDERS, 7, 0, 20) == list(range(20))
    assert last_generation(store, ORDERS, "tier") == 2
    assert last_generation(store, ORDERS, "another") is None


def test_metadata_of_a_commit_is_found_behind_many_others(store: Store) -> None:
    assert committed_metadata(store, ORDERS, "tier", 1) is None
    for generation in range(1, 41):
        tiered(store, ORDERS, [change_rows(entries(7, generation, generation + 1))], generation)
    for generation in (1, 20, 40):
        found = committed_metadata(store, ORDERS, "tier", generation)
        assert found is not None and found["generation"] == generation
    assert committed_metadata(store, ORDERS, "tier", 41) is None


def test_the_version_of_a_generation_is_found_whatever_was_committed_since(store: Store) -> None:
    last = {}
    for generation in range(1, 14):
        tiered(store, ORDERS, [change_rows(entries(7, generation, generation + 1))], generation)
        if generation % 3 == 0:
            hand_over(store, ORDERS, DATABASE)  # a commit that is not of the tier job
        last[generation] = listed(store).version()
    assert {generation: version_of(store, ORDERS, "tier", generation) for generation in last} == last
    assert version_of(store, ORDERS, "tier", 99) == last[13]
    for generation, version in last.items():
        table = listed(store)
        table.load_as_version(version)
        assert table.transaction_version("tier") == generation


def test_strict_generations_leave_no_gap(store: Store) -> None:
    batch = change_rows(entries(7, 0, 10))
    with pytest.raises(Fenced, match="generation 5 of 'tier' cannot follow 0"):
        tiered(store, ORDERS, [batch], 5, strict=True)
    tiered(store, ORDERS, [batch], 1, strict=True)
    with pytest.raises(Fenced, match="cannot follow 1"):
        tiered(store, ORDERS, [change_rows(entries(7, 10, 20))], 3, strict=True)
    assert tiered(store, ORDERS, [change_rows(entries(7, 10, 20))], 2, strict=True)[0] == "committed"


def test_another_databases_place_is_refused(store: Store, tmp_path: Path) -> None:
    batch = change_rows(entries(7, 0, 10))
    tiered(store, ORDERS, [batch], 1)
    with pytest.raises(Invalid, match=r"database db-1, but this is database db-2"):
        tiered(store, ORDERS, [batch], 2, database="db-2")
    foreign = Store(tmp_path / "foreign")
    DeltaTable.create(foreign.uri(ORDERS), listed(store).schema())
    with pytest.raises(Invalid, match="Tailrace did not make"):
        tiered(foreign, ORDERS, [batch], 1)
    with pytest.raises(Invalid, match="other columns"):
        commit(store, ORDERS, STREAMS, [], app="tier", generation=2, database=DATABASE)


def test_replace_leaves_only_the_new_rows(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    tiered(store, ORDERS, [change_rows(entries(7, 0, 3))], 2, replace=True)
    assert positions(store, ORDERS, 7, None, None) == [0, 1, 2]


# -- races


def race(url: str, name: int, generations: int, start: float, out: str) -> None:
    """One driver of several: the same ranges under the same generations."""
    store = Store(url)
    time.sleep(max(0.0, start - time.time()))
    results = []
    for generation in range(1, generations + 1):
        batch = change_rows(entries(7, 10 * generation, 10 * generation + 10))
        results.append(tiered(store, ORDERS, [batch], generation)[0])
    Path(out, f"{name}.json").write_text(json.dumps(results))


def settled(store: Store, results: list[list[str]], generations: int) -> None:
    for outcomes in zip(*results, strict=True):
        assert sorted(outcomes) == ["already"] * (len(results) - 1) + ["committed"]
    assert positions(store, ORDERS, 7, 10, 10 * generations + 10) == list(range(10, 10 * generations + 10))
    assert listed(store).version() == generations  # and one creation


def test_drivers_of_several_processes_race(store: Store, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = time.time() + 4.0  # all from the creation of the table on
    drivers = [context.Process(target=race, args=(store.url, i, 6, start, str(tmp_path))) for i in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(PATIENCE_S)
        assert driver.exitcode == 0
    settled(store, [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)], 6)


def test_drivers_of_several_threads_race(tmp_path: Path) -> None:
    for round_ in range(8):
        folder = tmp_path / str(round_)
        folder.mkdir()
        start = time.time() + 0.05
        threads = [
            threading.Thread(target=race, args=((folder / "cold").as_uri(), i, 3, start, str(folder))) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = [json.loads((folder / f"{i}.json").read_text()) for i in range(4)]
        settled(Store(folder / "cold"), results, 3)


def test_two_databases_create_one_place_at_once(tmp_path: Path) -> None:
    for round_ in range(8):
        store, outcomes = Store(tmp_path / str(round_)), {}

        def go(database: str, store: Store = store, outcomes: dict[str, str] = outcomes) -> None:
            try:
                outcomes[database] = tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1, database=database)[0]
            except Invalid:
                outcomes[database] = "refused"

        threads = [threading.Thread(target=go, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes.values()) == ["committed", "refused", "refused"]
        assert positions(store, ORDERS, 7, 0, 10) == list(range(10))


# -- crashes

DIES = """
import os, signal, sys
from tailrace.cold.store import Store
from tailrace.cold.writing import write_rows
from tests.unit.cold.rows import ORDERS, change_rows, entries
write_rows(Store(sys.argv[1]), ORDERS, [change_rows(entries(7, 10, 20))])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_dies_between_files_and_commit(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{root}/src", root])}
    assert subprocess.run([sys.executable, "-c", DIES, store.url], env=environment, check=False).returncode == -9

    place = Path(store.uri(ORDERS))
    assert len(list(place.glob("*.parquet"))) == 2
    assert positions(store, ORDERS, 7, None, None) == list(range(10))  # nobody sees what was not committed
    assert committed_metadata(store, ORDERS, "tier", 2) is None
    tiered(store, ORDERS, [change_rows(entries(7, 10, 20))], 2)
    assert positions(store, ORDERS, 7, 0, 20) == list(range(20))

    assert compacting.vacuum(store, ORDERS) == []  # it might still be about to be committed
    committed = {Path(uri).name for uri in listed(store).file_uris()}
    (orphan,) = [path for path in place.glob("*.parquet") if path.name not in committed]
    long_ago = time.time() - (limits.COLD_VACUUM_HOURS + 1) * 3600
    os.utime(orphan, (long_ago, long_ago))
    assert [Path(path).name for path in compacting.vacuum(store, ORDERS)] == [orphan.name]
    assert not orphan.exists()
    assert positions(store, ORDERS, 7, 0, 20) == list(range(20))


def test_a_driver_dies_after_its_commit(store: Store) -> None:
    """The next one has other files for the generation, and goes on with what was committed."""
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    done, _ = tiered(store, ORDERS, [change_rows(entries(7, 0, 15))], 1)
    found = committed_metadata(store, ORDERS, "tier", 1)
    assert done == "already" and found is not None
    assert found["files"] == [Path(uri).name for uri in listed(store).file_uris()]
    assert positions(store, ORDERS, 7, 0, 10) == list(range(10))


def test_written_travels_as_json(store: Store) -> None:
    import msgspec

    written = write_rows(store, ORDERS, [change_rows(entries(7, 0, 10))])
    assert msgspec.json.decode(msgspec.json.encode(written), type=list[WrittenFile]) == written


def test_a_commit_is_made_durable_and_only_the_newest_files_are_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real, looked = writing._sync, []
    monkeypatch.setattr(writing, "_sync", lambda path: (synced.append(path.name), real(path)))
    for generation in range(1, 31):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation - 10, 10 * generation))], generation)
    commits = [name for name in synced if name.endswith(".json")]
    assert commits == [f"{number:020d}.json" for number in range(31)]  # each once
    stat = Path.stat

    def counted(self: Path, **options: Any) -> Any:
        if self.parent.name == "_delta_log":
            looked.append(self.name)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", counted)
    monkeypatch.setattr(Path, "iterdir", lambda self: pytest.fail(f"all of {self} was looked at"))
    tiered(store, ORDERS, [change_rows(entries(7, 300, 310))], 31)
    assert len(looked) <= 4
    # Another process begins with what is not older than an hour.
    folder = Path(store.uri(ORDERS), "_delta_log")
    for number in range(25):
        os.utime(folder / f"{number:020d}.json", (0, 0))
    synced.clear()
    tiered(Store(store.url), ORDERS, [change_rows(entries(7, 310, 320))], 32)
    assert sorted(name for name in synced if name.endswith(".json")) == [f"{at:020d}.json" for at in range(25, 33)]

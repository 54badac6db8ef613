"""Reading back: all of it, in order, in little memory; what is missing or damaged is named."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace import limits
from tailrace.cold import compacting, reading
from tailrace.cold.merging import ColdFile
from tailrace.cold.schemas import CHANGES
from tailrace.cold.store import Store
from tailrace.cold.writing import commit, write_rows
from tailrace.errors import Corrupt, Invalid
from tests.unit.cold.rows import DATABASE, ORDERS, change_rows, entries, positions, stream_rows, tiered, whole


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def only(store: Store, place: str = ORDERS) -> Path:
    """The one file of a place."""
    table = store.delta(place)
    assert table is not None
    (uri,) = table.file_uris()
    return Path(uri)


def test_files_are_pruned_by_what_they_hold(store: Store) -> None:
    for generation in range(1, 11):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10))], generation)
    tiered(store, ORDERS, [change_rows(entries(9, 0, 1000))], 11)
    assert len(reading.files(store, ORDERS, 7)) == 10
    (file,) = reading.files(store, ORDERS, 7, 42, 43)
    assert (file.log_min, file.log_max, file.position_min, file.position_max, file.next_max) == (7, 7, 40, 49, 50)
    assert file.rows == 10 and file.size > 0
    assert [f.position_min for f in reading.files(store, ORDERS, 7, 49, 51)] == [40, 50]
    assert len(reading.files(store, ORDERS, 9, 500, 600)) == 1
    assert reading.files(store, ORDERS, 8) == []
    assert reading.files(store, "tables/nothing", 7) == []


def test_any_cut_of_a_range_loses_and_doubles_nothing(store: Store) -> None:
    """Entries are seven positions wide; cuts fall into the middle of them."""
    for generation in range(5):
        batch = stream_rows(entries(7, 70 * generation, 70 * generation + 70, width=7))
        tiered(store, "streams", [batch], generation + 1)
    chance = random.Random(1)
    for _ in range(30):
        cuts = sorted({0, 350, *(chance.randrange(350) for _ in range(6))})
        found = [at for start, end in pairwise(cuts) for at in positions(store, "streams", 7, start, end)]
        assert found == list(range(0, 350, 7))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=12),
    st.integers(1, 9),
    st.data(),
)
def test_files_of_many_logs_read_as_each_log(
    tmp_path_factory: pytest.TempPathFactory, appends: list[tuple[int, int]], per_batch: int, data: st.DataObject
) -> None:
    """Whatever logs a file holds and however files overlap, also after compaction of any of them."""
    store = Store(tmp_path_factory.mktemp("cold"))
    ends: dict[int, int] = {}
    for generation, at in enumerate(range(0, len(appends), per_batch), 1):
        rows: dict[int, list] = {}
        for log, count in appends[at : at + per_batch]:
            rows.setdefault(log, []).extend(entries(log, ends.get(log, 0), ends.get(log, 0) + count))
            ends[log] = ends.get(log, 0) + count
        tiered(store, "streams", [stream_rows(rows[log]) for log in sorted(rows)], generation)
    listed = reading.listing(store, "streams").files
    chosen = data.draw(st.lists(st.sampled_from(listed), unique=True))
    if chosen:
        step = compacting.RewriteStep("streams", chosen)
        compacting.replace(store, step, compacting.rewrite(store, step))
    for log, end in ends.items():
        assert positions(store, "streams", log, 0, end) == list(range(end))
        start = data.draw(st.integers(0, end - 1))
        assert positions(store, "streams", log, start, end) == list(range(start, end))


def test_only_the_columns_asked_for_in_that_order(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    assert whole(store, ORDERS, 7, 0, 10, ["keys", "position"]).column_names == ["keys", "position"]
    assert whole(store, ORDERS, 7, 0, 10).schema == CHANGES
    with pytest.raises(Invalid, match="no column 'price'"):
        whole(store, ORDERS, 7, 0, 10, ["price"])


def test_row_groups_outside_the_range_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_GROUP_ROWS", 100)
    tiered(store, ORDERS, [change_rows(entries(7, 0, 1000))], 1)
    path = only(store)
    footer = pq.read_metadata(path)
    spoilt = bytearray(path.read_bytes())
    for number in range(footer.num_row_groups):
        if number != 4:
            column = footer.row_group(number).column(0)
            at = column.dictionary_page_offset or column.data_page_offset
            spoilt[at : at + 8] = b"\xff" * 8
    path.write_bytes(spoilt)
    assert positions(store, ORDERS, 7, 410, 420) == list(range(410, 420))
    with pytest.raises(Corrupt, match=path.name):
        positions(store, ORDERS, 7, 0, 10)


# -- what is not there


def test_a_gap_is_found_and_named(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    _, (late,) = tiered(store, ORDERS, [change_rows(entries(7, 12, 20))], 2)
    with pytest.raises(Corrupt, match=rf"{late.path}.*next 10.*followed by.*position 12"):
        positions(store, ORDERS, 7, 0, 20)
    with pytest.raises(Corrupt, match="positions 11 to 12 of log 7 are missing"):
        positions(store, ORDERS, 7, 11, 20)
    with pytest.raises(Corrupt, match="ends at position 20, and should continue to 25"):
        positions(store, ORDERS, 7, 12, 25)
    with pytest.raises(Corrupt, match="no file"):
        positions(store, ORDERS, 7, 30, 40)
    assert positions(store, ORDERS, 7, 0, 10) == list(range(10))


def test_rows_that_are_there_twice_are_found(store: Store) -> None:
    for generation in (1, 2):
        tiered(store, ORDERS, [change_rows(entries(7, 0, 10), records=2)], generation)
    with pytest.raises(Corrupt, match="does not continue log 7"):
        positions(store, ORDERS, 7, 0, 10)


def test_a_missing_file_is_named(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    path = only(store)
    path.unlink()
    with pytest.raises(Corrupt, match=f"{path} is missing"):
        positions(store, ORDERS, 7, 0, 10)
    with pytest.raises(Corrupt, match=f"{path} is missing"):
        compacting.rewrite(store, compacting.RewriteStep(ORDERS, reading.files(store, ORDERS, 7)))


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.99])
def test_a_truncated_file_is_named(store: Store, keep: float) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 1000))], 1)
    path = only(store)
    whole_file = path.read_bytes()
    path.write_bytes(whole_file[: int(keep * len(whole_file)) if keep < 1 else int(keep)])
    with pytest.raises(Corrupt, match=str(path)):
        positions(store, ORDERS, 7, 0, 1000)


def test_garbage_anywhere_is_found_or_harmless(store: Store) -> None:
    """Pages carry sums: no flipped byte is ever read as data."""
    batch = change_rows(entries(7, 0, 2000))
    tiered(store, ORDERS, [batch], 1)
    path = only(store)
    sound, expected = path.read_bytes(), pa.Table.from_batches([batch])
    chance, found = random.Random(2), 0
    for _ in range(150):
        spoilt = bytearray(sound)
        at = chance.randrange(len(sound))
        for i in range(at, min(at + chance.choice((1, 8, 64)), len(sound))):
            spoilt[i] ^= chance.randrange(1, 256)
        path.write_bytes(spoilt)
        try:
            assert whole(Store(store.url), ORDERS, 7, 0, 2000).equals(expected)
        except Corrupt as corrupt:
            assert str(path) in str(corrupt)
            found += 1
    assert found > 100
    path.write_bytes(sound)
    assert whole(store, ORDERS, 7, 0, 2000).equals(expected)


def test_a_file_of_another_commit_in_its_place_is_found(store: Store) -> None:
    tiered(store, ORDERS, [change_rows(entries(7, 0, 10))], 1)
    (other,) = write_rows(store, ORDERS, [change_rows(entries(7, 0, 9))])
    Path(store.uri(ORDERS), other.path).replace(only(store))
    with pytest.raises(Corrupt, match="9 rows where 10 were committed"):
        positions(store, ORDERS, 7, 0, 10)


# -- compaction meanwhile


def test_files_replaced_and_removed_under_a_reader(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLD_GROUP_ROWS", 7)  # row groups end inside entries of three records
    for generation in range(1, 9):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10), records=3)], generation)
    found: list[tuple[int, int]] = []
    steps = 0
    for batch in reading.read(store, reading.files(store, ORDERS, 7, 10, 90), 7, 10, 90, ["position", "index"]):
        found += zip(*(batch.column(i).to_pylist() for i in (0, 1)), strict=True)
        if len(found) > 30 * (steps + 1) and steps < 4:
            steps += 1
            compacting.compact(store, ORDERS, file_bytes=10**9 if steps % 2 else 1)
            tiered(store, ORDERS, [change_rows(entries(7, 80 + 10 * steps, 90 + 10 * steps), records=3)], 8 + steps)
            compacting.vacuum(store, ORDERS, hours=0)
    assert found == [(position, index) for position in range(10, 90) for index in range(3)]


# -- others read it


def test_duckdb_and_deltalake_read_it_without_us(store: Store) -> None:
    for generation in range(1, 4):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10), records=2)], generation)
    table = DeltaTable(store.uri(ORDERS))
    assert table.to_pyarrow_table().num_rows == 60
    assert table.to_pyarrow_table(filters=[("position", ">=", 35)]).num_rows == 10
    query = "select count(*), min(position), max(next), count(body) from "
    expected = [(60, 10, 40, 30)]
    assert duckdb.sql(f"{query} read_parquet({table.file_uris()!r})").fetchall() == expected
    dataset = table.to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql(f"{query} dataset").fetchall() == expected
    assert duckdb.sql("select typeof(timestamp) from dataset limit 1").fetchall() == [("TIMESTAMP WITH TIME ZONE",)]


def test_a_file_that_another_tool_rewrote_is_read(store: Store) -> None:
    for generation in range(1, 4):
        tiered(store, ORDERS, [change_rows(entries(7, 10 * generation, 10 * generation + 10))], generation)
    table = store.delta(ORDERS)
    assert table is not None
    table.optimize.compact()
    assert len(reading.files(store, ORDERS, 7)) == 1
    assert whole(store, ORDERS, 7, 10, 40).schema == CHANGES
    assert positions(store, ORDERS, 7, 15, 40) == list(range(15, 40))


# -- memory


def test_a_large_place_is_read_in_little_memory(store: Store) -> None:
    """About 200 MiB of rows; never more than a few row groups at once."""
    step = 50_000
    body = 400
    for generation in range(10):
        batch = change_rows(entries(7, step * generation, step * (generation + 1), size=body))
        tiered(store, ORDERS, [batch], generation + 1)
    del batch
    compacting.compact(store, ORDERS)
    (file,) = reading.files(store, ORDERS, 7)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    highest = rows = size = 0
    for found in reading.read(store, [file], 7, 0, 10 * step):
        rows += found.num_rows
        size += found.nbytes
        highest = max(highest, pool.bytes_allocated() - before)
    assert rows == 10 * step and size > 150 * limits.MiB
    assert highest < 4 * limits.COLD_GROUP_BYTES


def test_a_file_without_statistics_is_never_left_out() -> None:
    assert ColdFile(ORDERS, "x", 1).may_have(7, 10, 20)


def test_an_empty_range_reads_nothing(store: Store) -> None:
    commit(store, ORDERS, CHANGES, [], app="tier", generation=1, database=DATABASE)
    assert positions(store, ORDERS, 7, 5, 5) == []
    assert positions(store, ORDERS, 7, None, None) == []

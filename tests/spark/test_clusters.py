"""States clustered by hash: every key has one leaf, a batch touches few of them, and nothing is lost or doubled."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailrace.cold import states, writing
from tailrace.cold.states import StateFile
from tailrace.cold.store import Store
from tailrace.spark.jobs import clusters, fold
from tailrace.spark.jobs.clusters import HASH_MAX, Clustering, Leaf, LeafResult

PLACE = "snapshots/t"
DATABASE = "db"
Spark = Any


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def key(number: int) -> str:
    return json.dumps({"id": f"k{number}"}, separators=(",", ":"))


def marks(changes: list[tuple[int, int | None]], sequence: int) -> pa.Table:
    """A mark for each (number of the key, value); None removes it."""
    rows = [
        {
            "keys": key(number),
            "item": None,
            "typed": None if value is None else json.dumps({"id": {"S": f"k{number}"}, "n": {"N": str(value)}}),
            "sequence": sequence,
            "index": index,
        }
        for index, (number, value) in enumerate(changes)
    ]
    return pa.Table.from_pylist(rows, fold.MARKS)


def here(store: Store, found: Clustering, batch: pa.Table) -> list[LeafResult]:
    """What executors do, without them."""
    for path in found.loose:
        rows = pa.Table.from_batches(list(states.rows(store, PLACE, path, fold.STATE)), fold.STATE)
        index = pa.array([-1] * rows.num_rows, pa.int32())
        batch = pa.concat_tables([batch, rows.append_column(fold.MARKS.field("index"), index)])
    leaf = clusters.numbers(batch["keys"], found.leaves)
    done = [
        clusters.merge_leaf(store, PLACE, found.leaves[number], batch.filter(pc.equal(leaf, number)))
        for number in leaf.unique().to_pylist()
    ]
    return [*done, LeafResult(tuple(found.loose), [])]


def applied(store: Store, batch: pa.Table, start: int, end: int) -> list[LeafResult]:
    """Merge and commit."""
    table = writing.opened(store, PLACE, fold.STATE, DATABASE)
    found = clusters.clustering(states.listed(store, PLACE, table), batch.num_rows)
    done = here(store, found, batch)
    states.exchange(
        store, PLACE, fold.STATE, [file for leaf in done for file in leaf.written],
        [path for leaf in done for path in leaf.removed], app="test", start=start, end=end, database=DATABASE,
        metadata={},
    )  # fmt: skip
    return done


def content(store: Store) -> dict[str, int]:
    table = store.delta(PLACE)
    assert table is not None
    rows = table.to_pyarrow_table().to_pylist()
    found = {row["keys"]: int(json.loads(row["typed"])["n"]["N"]) for row in rows}
    assert len(found) == len(rows), "a key is there once"
    assert all(json.loads(row["item"])["n"] == found[row["keys"]] for row in rows)
    return found


def begun(store: Store, batch: pa.Table | None = None) -> None:
    """A state at position 0: nothing, or these marks in one loose file."""
    rows = [] if batch is None else fold.folded(batch.to_batches())
    files = writing.write_rows(store, PLACE, rows)
    states.replace(
        store, PLACE, fold.STATE, files, app="test", reached=0, database=DATABASE, metadata={}
    )  # fmt: skip


def test_leaves_have_every_hash_once() -> None:
    names = [f"{low:08x}-{high:08x}-{'0' * 31}{number}.parquet" for number, (low, high) in enumerate(
        [(10, 19), (20, 29), (25, 40), (100, HASH_MAX - 5), (10, 19)]
    )]  # fmt: skip
    found = clusters.clustering([StateFile(name, 1, 1) for name in (*names, "0123.parquet")])
    assert found.loose == ["0123.parquet"]
    assert [(leaf.low, leaf.high, len(leaf.paths)) for leaf in found.leaves] == [
        (0, 9, 0), (10, 19, 2), (20, 40, 2), (41, 99, 0), (100, HASH_MAX - 5, 1), (HASH_MAX - 4, HASH_MAX, 0),
    ]  # fmt: skip
    many = clusters.clustering([], 3 * clusters.LEAF_ROWS).leaves
    assert len(many) == 3 and many[0].low == 0 and many[-1].high == HASH_MAX
    assert all(one.high + 1 == two.low for one, two in pairwise(many))
    assert clusters.clustering([]).leaves == [Leaf(0, HASH_MAX)]
    assert len(clusters.clustering([], 10, 4 * clusters.LEAF_BYTES).leaves) == 4, "few rows may be large"
    loose = StateFile("1.parquet", clusters.LEAF_BYTES, 10)
    assert len(clusters.clustering([loose]).leaves) == clusters.COMPRESSION


@pytest.mark.parametrize("seed", range(5))
def test_batches_merge_to_what_a_dictionary_has(store: Store, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves grow, are split and emptied; the first file is loose."""
    monkeypatch.setattr(clusters, "LEAF_BYTES", 4_000)
    chance = random.Random(seed)
    model = {key(number): number for number in range(60)}
    begun(store, marks([(number, number) for number in range(60)], 0))
    for at in range(12):
        changes = [
            (chance.randrange(200), None if chance.random() < 0.3 else chance.randrange(10**6))
            for _ in range(chance.choice((1, 5, 80)))
        ]
        if at == 8:
            changes = [(number, None) for number in range(200)]
        for number, value in changes:
            model.pop(key(number), None)
            if value is not None:
                model[key(number)] = value
        applied(store, marks(changes, at + 1), at, at + 1)
        assert content(store) == model, f"after batch {at}"
    table = store.delta(PLACE)
    assert table is not None
    found = clusters.clustering(states.listed(store, PLACE, table))
    assert not found.loose
    ranges = [(leaf.low, leaf.high) for leaf in found.leaves]
    assert ranges[0][0] == 0 and ranges[-1][1] == HASH_MAX
    assert all(len(leaf.paths) <= 1 for leaf in found.leaves), "a leaf that is split has no file in common"


def test_a_change_rewrites_its_leaf_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LEAF_BYTES", 4_000)
    begun(store)
    applied(store, marks([(number, number) for number in range(500)], 1), 0, 1)
    before = {file.path for file in states.listed(store, PLACE, store.delta(PLACE))}  # type: ignore[arg-type]
    assert len(before) > 10
    (done,) = [leaf for leaf in applied(store, marks([(3, -1)], 2), 1, 2) if leaf.removed]
    after = {file.path for file in states.listed(store, PLACE, store.delta(PLACE))}  # type: ignore[arg-type]
    assert len(done.removed) == len(done.written) == 1
    assert before - after == set(done.removed)
    assert content(store)[key(3)] == -1


def test_a_commit_on_another_state_is_fenced_off(store: Store) -> None:
    from tailrace.errors import Fenced

    begun(store, marks([(1, 1)], 0))
    (path,) = (file.path for file in states.listed(store, PLACE, store.delta(PLACE)))  # type: ignore[arg-type]
    applied(store, marks([(1, 2)], 1), 0, 1)
    for start, gone in ((0, []), (1, [path])):
        with pytest.raises(Fenced, match="another replicate job"):
            states.exchange(
                store, PLACE, fold.STATE, [], gone, app="test", start=start, end=9, database=DATABASE, metadata={}
            )
    assert content(store) == {key(1): 2}


def test_executors_merge(spark: Spark, store: Store) -> None:
    """Loose files and changes, grouped by Spark, give the same as here."""
    begun(store, marks([(number, number) for number in range(300)], 0))
    table = writing.opened(store, PLACE, fold.STATE, DATABASE)
    changes = [(number, None if number % 3 else -number) for number in range(0, 600, 2)]
    found = clusters.clustering(states.listed(store, PLACE, table), 3 * clusters.LEAF_ROWS)
    assert len(found.leaves) > 2 and len(found.loose) == 1
    frame = spark.createDataFrame(marks(changes, 1).to_pandas(), fold.MARKS_DDL).repartition(3)
    done = clusters.merge(frame, store, PLACE, found, 2)
    written = [file for leaf in done for file in leaf.written]
    assert [path for leaf in done for path in leaf.removed] == found.loose
    assert len(written) == len(found.leaves), "a file for each leaf"
    states.exchange(
        store, PLACE, fold.STATE, written, found.loose, app="test", start=0, end=1, database=DATABASE, metadata={}
    )
    expected = {key(number): number for number in range(300)}
    for number, value in changes:
        expected.pop(key(number), None)
        if value is not None:
            expected[key(number)] = value
    assert content(store) == expected


# -- expired versions


def test_expired_versions_are_gone_with_their_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LEAF_BYTES", 4_000)
    states.keep_versions(store, PLACE, fold.STATE, DATABASE)

    def take(at: int, changes: list[tuple[int, int | None]]) -> None:
        table = writing.opened(store, PLACE, fold.STATE, DATABASE)
        done = here(store, clusters.clustering(states.listed(store, PLACE, table)), marks(changes, at))
        facts = {"sequence": at, "rows": 0, "log": 1, "next": at + 1}
        files = [file for leaf in done for file in leaf.written]
        if at == 1:
            states.replace(
                store, PLACE, fold.STATE, files, app="s", reached=at, database=DATABASE, metadata=facts
            )  # fmt: skip
            return
        states.exchange(
            store, PLACE, fold.STATE, files, [path for leaf in done for path in leaf.removed], app="s", start=at - 1,
            end=at, database=DATABASE, metadata=facts,
        )  # fmt: skip

    take(1, [(number, number) for number in range(300)])
    for at in (2, 3, 4):
        take(at, [(at, -at)])

    def known() -> list[int]:
        return [each.sequence for each in states.versions(store, PLACE, fold.STATE, DATABASE)]

    def readable(version: int) -> bool:
        there = {each.name for each in Path(store.uri(PLACE)).glob("*.parquet")}
        return set(states.files(store, PLACE, version)) <= there

    versions = {each.sequence: each.version for each in states.versions(store, PLACE, fold.STATE, DATABASE)}
    assert known() == [4, 3, 2, 1]
    assert states.expire(store, PLACE, versions[1]) == 0, "there is nothing before the first"
    assert states.expire(store, PLACE, versions[3]) == 2, "of each one the file that the next one replaced"
    assert known() == [4, 3]
    assert [readable(versions[at]) for at in (1, 2, 3, 4)] == [False, False, True, True]
    assert states.expire(store, PLACE, versions[3]) == 0
    before = content(store)

    def dying(*_: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:  # it dies when the versions are marked, and before files are deleted
        patched.setattr(states, "files", dying)
        with pytest.raises(RuntimeError):
            states.expire(store, PLACE, versions[4])
    assert known() == [4]
    assert states.expire(store, PLACE, versions[4]) == 1
    assert readable(versions[4]) and content(store) == before


def test_a_leaf_is_divided_before_many_new_rows_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "LEAF_ROWS", 20)
    store = Store(tmp_path / "cold")
    begun(store)
    applied(store, marks([(number, number) for number in range(5)], 1), 0, 1)
    done = applied(store, marks([(number, number + 1) for number in range(3, 400)], 2), 1, 2)
    assert max(sum(file.rows for file in leaf.written) for leaf in done) < 60, "no task holds all of them"
    assert content(store) == {key(n): n if n < 3 else n + 1 for n in range(400)}
    one = StateFile(f"{0:08x}-{clusters.HASH_MAX:08x}-{'0' * 32}.parquet", 1, 1)
    assert clusters.clustering([one], 5).loose == [], "a few rows leave it as it is"


def test_the_last_mark_of_a_key() -> None:
    both = pa.concat_tables([marks([(1, 1), (2, 2)], 1), marks([(1, None), (2, 5)], 2)])
    found = pa.Table.from_batches(list(fold._lasts(both.to_batches())), fold.MARKS).to_pylist()
    assert [(row["keys"], row["typed"] is None) for row in found] == [(key(1), True), (key(2), False)]

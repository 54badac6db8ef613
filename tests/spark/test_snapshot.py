"""Snapshots: what is folded is exactly what the table was, however it was cut, and whoever else is at it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client import Client
from tailrace.errors import Conflict, Invalid, Unavailable
from tailrace.spark.jobs import clusters, fold
from tailrace.spark.jobs import snapshot as module
from tailrace.spark.jobs.snapshot import snapshot, snapshots
from tailrace.tables import value as values
from tests.spark.states import History, key_of, live, same_item, same_items
from tests.support.server import ServerProcess

Spark = Any


def stored(place: str, version: int | None = None) -> dict[Any, Any]:
    """A snapshot, read by plain deltalake: by key, the exact items."""
    table = DeltaTable(place, version=version).to_pyarrow_table()
    assert table.schema.names == ["keys", "item", "typed", "sequence"]
    found = {}
    for row in table.to_pylist():
        item = json.loads(row["typed"])
        assert json.loads(row["keys"]) == {
            "id": item["id"]["S"], "at": int(item["at"]["N"])
        }, "the key is the item's"  # fmt: skip
        assert json.loads(row["item"]).keys() == item.keys()
        assert key_of(item) not in found, "a key is there once"
        found[key_of(item)] = same_item(item)
    return found


# -- the fold, without Spark

_changes = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)),  # key, removed, how far the sequence moves on
    max_size=40,
)


def _records(found: list[tuple[int, bool, int]]) -> tuple[list[dict[str, Any]], dict[str, tuple[int, str]]]:
    rows: list[dict[str, Any]] = []
    state: dict[str, tuple[int, str]] = {}
    sequence, index = 1, -1
    for number, (key, removed, step) in enumerate(found):
        sequence, index = (sequence + step, 0) if step else (sequence, index + 1)
        text = json.dumps({"id": {"N": str(key)}})
        image = json.dumps({"id": {"N": str(key)}, "n": {"N": str(number)}})
        event = "REMOVE" if removed else "MODIFY"
        rows.append({
            "sequence": sequence, "index": index, "event": event, "keys": text,
            "after": None if removed else image,
        })  # fmt: skip
        plain = f'{{"id":{key}}}'
        if removed:
            state.pop(plain, None)
        else:
            state[plain] = (sequence, image)
    return rows, state


_schema = pa.schema(
    [("sequence", pa.int64()), ("index", pa.int32()), ("event", pa.string()), ("keys", pa.string()),
     ("after", pa.string())]
)  # fmt: skip


@given(_changes, st.integers(1, 5), st.randoms(use_true_random=False))
def test_marks_fold_in_any_grouping_and_any_order(found: Any, groups: int, random: Any) -> None:
    rows, state = _records(found)
    marks: list[pa.RecordBatch] = []
    for group in range(groups):
        part = rows[group::groups]
        marks += fold.combined([pa.RecordBatch.from_pylist(part, _schema)])
    random.shuffle(marks)
    got = {
        row["keys"]: (row["sequence"], row["typed"])
        for batch in fold.folded(marks)
        for row in batch.to_pylist()
    }  # fmt: skip
    assert got == state


@given(_changes, st.integers(0, 40))
def test_a_fold_on_an_earlier_state_is_the_fold_of_all(found: Any, cut: int) -> None:
    rows, state = _records(found)
    cut = min(cut, len(rows))
    if 0 < cut < len(rows) and rows[cut]["sequence"] == rows[cut - 1]["sequence"]:
        cut = next((at for at in range(cut, len(rows)) if rows[at]["index"] == 0), len(rows))  # whole transactions
    base = [
        pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array([-1] * batch.num_rows, pa.int32())], schema=fold.MARKS
        )
        for batch in fold.folded(fold.combined([pa.RecordBatch.from_pylist(rows[:cut], _schema)]))
    ]  # fmt: skip
    later = list(fold.combined([pa.RecordBatch.from_pylist(rows[cut:], _schema)]))
    got = {row["keys"]: row["typed"] for batch in fold.folded(later + base) for row in batch.to_pylist()}
    assert got == {key: image for key, (_, image) in state.items()}


def test_windows_bound_what_a_task_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, state = _records([(number % 3, False, 1) for number in range(100)])
    monkeypatch.setattr(fold, "WINDOW_BYTES", 1)
    batches = [pa.RecordBatch.from_pylist([row], _schema) for row in rows]
    marks = list(fold.combined(batches))
    assert len(marks) == 100, "each batch was a window of its own"
    assert sum(batch.num_rows for batch in fold.folded(marks)) == len(state) == 3


def test_plain_items_keep_all_digits() -> None:
    digits = "12345678901234567890123456789012345678"
    typed = {"n": {"N": digits}, "s": {"NS": ["1.5", digits]}, "b": {"B": "AAE="}, "z": {"NULL": True}}
    text = fold.plain(json.dumps(typed))
    assert digits in text and json.loads(text)["b"] == "AAE=" and json.loads(text)["z"] is None
    stored = values.read_item(json.loads(json.dumps(typed)))[0]
    assert text == msgspec.json.encode(values.item_to_json(stored)).decode()


# -- with Spark and a server


def test_snapshots_are_what_the_table_was(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "exact", 11)
    taken = []
    for steps in (40, 1, 25):
        history.run(steps, note=False)
        done = snapshot(spark, table="exact", url=server.url)
        assert (done.how, done.sequence, done.rows) == ("folded", history.sequence, len(history.items))
        taken.append((done, same_items(history.items)))
    assert live(client, "exact") == taken[-1][1]
    for done, items in taken:
        assert stored(done.place, done.version) == items, f"the snapshot at {done.sequence}"
    assert [(row[0], row[1], row[2]) for row in snapshots("exact", url=server.url)] == [
        (done.sequence, done.version, done.rows) for done, _ in taken
    ]
    # Once more: nothing has changed, so nothing is written.
    again = snapshot(spark, table="exact", url=server.url)
    assert (again.how, again.version) == ("already", taken[-1][0].version)
    # DuckDB reads it with no code of ours.
    files = DeltaTable(done.place).file_uris()
    found = duckdb.sql(f"SELECT count(*), max(sequence) <= {done.sequence} FROM read_parquet({files!r})").fetchall()
    assert found == [(len(history.items), True)]
    assert {"snapshot"} <= {job["kind"] for job in client.jobs()}


def test_incremental_and_from_scratch_agree(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(client, "twice", 12)
    history.run(30)
    middle = history.states[14]
    first = snapshot(spark, table="twice", url=server.url, at=middle[0])
    assert (first.sequence, stored(first.place)) == (middle[0], same_items(middle[1]))
    second = snapshot(spark, table="twice", url=server.url)
    monkeypatch.setattr(module, "snapshots_of", lambda store, known: [])
    monkeypatch.setattr(module, "place_of", lambda kind, name: "snapshots/twice-from-scratch")
    monkeypatch.setattr(module, "TRIES", 1)
    with pytest.raises(Unavailable):  # it looks for what it has committed, and we have hidden that
        snapshot(spark, table="twice", url=server.url)
    scratch = Path(second.place).parent / "twice-from-scratch"
    assert stored(str(scratch)) == stored(second.place) == live(client, "twice")


def test_a_snapshot_writes_what_changed_and_shares_the_rest(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(client, "shared", 21, stream=None)
    for _ in range(60):
        history.step()
    history.enable()
    with monkeypatch.context() as patched:
        patched.setattr(clusters, "LEAF_ROWS", 5)
        taken = [snapshot(spark, table="shared", url=server.url)]  # of items, in leaves
    assert stored(taken[0].place) == same_items(history.items)
    (key, item), *_ = history.items.items()
    for number in range(3):
        item = {**item, "n": {"N": str(number)}}
        history.items[key] = item
        client.call("PutItem", {"TableName": "shared", "Item": item})
        taken.append(snapshot(spark, table="shared", url=server.url))
        assert stored(taken[-1].place) == same_items(history.items)
        assert taken[-1].rows == len(history.items)
    files = [set(DeltaTable(each.place, version=each.version).file_uris()) for each in taken]
    assert len(files[0]) > 3
    assert len(files[1] - files[0]) == len(files[0] - files[1]) == 1, "the others are shared"
    assert len(files[2] - files[1]) == len(files[3] - files[2]) == 1
    # Those that are past their retention go, but for the last of them.
    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic))
    done = snapshot(spark, table="shared", url=server.url, retention="1h")
    assert (done.how, done.version) == ("already", taken[-1].version)
    assert [row[1] for row in snapshots("shared", url=server.url)] == [taken[-1].version]
    there = {str(each) for each in Path(done.place).glob("*.parquet")}
    assert there == {each.removeprefix("file://") for each in files[3]}
    assert stored(done.place) == same_items(history.items)
    with pytest.raises(Invalid, match="is not a duration"):
        snapshot(spark, table="shared", url=server.url, retention="soon")


def test_unavailable_sequences_are_reported(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "ranged", 13)
    history.run(12)
    tail = history.sequence
    with pytest.raises(Invalid, match=rf"sequence {tail + 1} is not in the changes .* to {tail} are available"):
        snapshot(spark, table="ranged", url=server.url, at=tail + 1)
    snapshot(spark, table="ranged", url=server.url, at=history.states[6][0])
    with pytest.raises(Invalid, match=r"cannot be of an earlier sequence.*restore"):
        snapshot(spark, table="ranged", url=server.url, at=history.states[3][0])
    keys_only = History(client, "keysonly", 14, stream="KEYS_ONLY")
    keys_only.run(2)
    with pytest.raises(Invalid, match=r"KEYS_ONLY.*NEW_AND_OLD_IMAGES"):
        snapshot(spark, table="keysonly", url=server.url)
    before = History(client, "prior", 15, stream=None)
    before.run(5, note=False)
    before.enable()
    before.run(5, note=False)
    with pytest.raises(Invalid, match=r"had items before its changes were recorded.*snapshot prior"):
        snapshot(spark, table="prior", url=server.url, at=before.sequence - 1)


def test_a_table_that_had_items_before_its_stream(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "late", 16, stream=None)
    for _ in range(20):
        history.step()
    history.enable()
    history.run(3, note=False)
    other = History(client, "noise", 17)
    other.run(3, note=False)  # sequences of the database that are not this table's
    first = snapshot(spark, table="late", url=server.url)
    assert (first.how, first.sequence) == ("items", history.sequence)
    assert stored(first.place) == same_items(history.items)
    assert snapshot(spark, table="late", url=server.url).how == "already"
    history.run(15, note=False)
    second = snapshot(spark, table="late", url=server.url)
    assert (second.how, stored(second.place)) == ("folded", same_items(history.items))


def test_a_snapshot_starts_over_after_lost_history(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "pruned", 18)
    history.run(10)
    client.prune("pruned", history.states[5][0])
    first = snapshot(spark, table="pruned", url=server.url)
    assert (first.how, stored(first.place)) == ("items", same_items(history.items))
    history.run(5, note=False)
    second = snapshot(spark, table="pruned", url=server.url)
    assert (second.how, stored(second.place)) == ("folded", same_items(history.items))


def test_drivers_that_race(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "raced", 19)
    history.run(20)
    at = [history.states[9][0], history.sequence, history.sequence]
    done: list[Any] = [None] * len(at)

    def take(number: int) -> None:
        try:
            done[number] = snapshot(spark, table="raced", url=server.url, at=at[number])
        except Exception as error:
            done[number] = error

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(at))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in done[1:]:
        assert found.sequence == history.sequence, done
    assert stored(done[1].place) == same_items(history.items), "the last one is the latest, and is there once"
    listed = snapshots("raced", url=server.url)
    assert len({row[0] for row in listed}) == len(listed), "no sequence twice"


def test_another_database_is_refused(spark: Spark, server: ServerProcess, client: Client, tmp_path: Path) -> None:
    history = History(client, "owned", 20)
    history.run(3, note=False)
    done = snapshot(spark, table="owned", url=server.url)
    cold = Path(done.place).parents[1]
    with (
        ServerProcess.tailrace(tmp_path / "data", env={"TAILRACE_COLD_URL": cold.as_uri()}) as other,
        Client(other.url) as their,
    ):
        assert their.cold()["url"] == cold.as_uri()
        History(their, "owned", 21).run(2, note=False)
        with pytest.raises((Invalid, Conflict), match="database"):
            snapshot(spark, table="owned", url=other.url)
    assert stored(done.place) == same_items(history.items)

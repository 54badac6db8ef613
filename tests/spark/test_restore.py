"""Restores: the table as it was at any sequence, exactly, and never a mixture."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tailrace.client import Client
from tailrace.errors import Conflict, Invalid, NotFound
from tailrace.spark.jobs import filling
from tailrace.spark.jobs import restore as module
from tailrace.spark.jobs.restore import moment_ms, restore
from tailrace.spark.jobs.snapshot import snapshot
from tests.spark.states import KEYS, History, live, same_items
from tests.support.server import ServerProcess

Spark = Any


def test_any_sequence_of_the_past(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "orders", 31)
    history.run(60)
    snapshot(spark, table="orders", url=server.url, at=history.states[25][0])
    snapshot(spark, table="orders", url=server.url, at=history.states[45][0])
    history.run(20)
    begun = set()
    chosen, parts = random.Random(5), (history.states[:25], history.states[25:45], history.states[45:])
    for number, (sequence, items) in enumerate(each for part in parts for each in chosen.sample(part, 3)):
        done = restore(spark, table="orders", into=f"orders-{number}", url=server.url, at_sequence=sequence)
        assert live(client, f"orders-{number}") == same_items(items), f"at sequence {sequence}, from {done.snapshot}"
        assert (done.sequence, done.rows) == (sequence, len(items))
        begun.add(done.snapshot)
    assert begun == {None, history.states[25][0], history.states[45][0]}, "from the beginning, and from each snapshot"
    now = restore(spark, table="orders", into="orders-now", url=server.url)
    assert live(client, "orders-now") == live(client, "orders") == same_items(history.items)
    assert now.sequence == history.sequence
    made = client.call("DescribeTable", {"TableName": "orders-now"})["Table"]
    assert [key["AttributeName"] for key in made["KeySchema"]] == [name for name, _ in KEYS]
    assert [index["IndexName"] for index in made["GlobalSecondaryIndexes"]] == ["by-tag"]
    tagged = client.call(
        "Query",
        {
            "TableName": "orders-now", "IndexName": "by-tag", "KeyConditionExpression": "tag = :t",
            "ExpressionAttributeValues": {":t": {"S": "x"}},
        },
    )  # fmt: skip
    assert tagged["Count"] == sum(item.get("tag") == {"S": "x"} for item in history.items.values())


def test_many_commits_and_their_progress(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(client, "many", 32, keys=200)
    history.run(60, note=False)
    reports: list[Any] = []
    done = restore(spark, table="many", into="many-back", url=server.url, on_progress=reports.append)
    assert live(client, "many-back") == same_items(history.items)
    assert reports[-1].state == "done" and reports[-1].rows == done.rows == len(history.items)
    job = client.job("restore/many-back")
    assert (job["kind"], job["state"]) == ("restore", "stopped")


def test_a_time(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "timed", 33)
    history.run(10)
    time.sleep(0.01)
    at = datetime.now(UTC)
    time.sleep(0.01)
    before = dict(history.items)
    history.run(10)
    restore(spark, table="timed", into="timed-back", url=server.url, at_time=at)
    assert live(client, "timed-back") == same_items(before)
    with pytest.raises(Invalid, match="future"):
        restore(spark, table="timed", into="timed-not", url=server.url, at_time=at.replace(year=at.year + 1))
    assert moment_ms("2026-01-31T12:00:00Z") == moment_ms("2026-01-31T12:00:00") == 1769860800000
    assert moment_ms("1769860800000") == 1769860800000
    with pytest.raises(Invalid, match="'tomorrow' is not a time"):
        moment_ms("tomorrow")


def test_a_table_with_items_is_left_alone(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "source", 34)
    history.run(8)
    other = History(client, "mine", 35)
    other.run(5)
    with pytest.raises(Conflict, match="'mine' has items already"):
        restore(spark, table="source", into="mine", url=server.url)
    assert live(client, "mine") == same_items(other.items)
    with pytest.raises(Invalid, match="into itself"):
        restore(spark, table="source", into="source", url=server.url)
    client.call(
        "CreateTable",
        {
            "TableName": "otherkey", "KeySchema": [{"AttributeName": "x", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "x", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST",
        },
    )  # fmt: skip
    with pytest.raises(Conflict, match=r"has the key x \(S\)"):
        restore(spark, table="source", into="otherkey", url=server.url)
    empty = History(client, "empty", 36)
    restore(spark, table="source", into="empty", url=server.url)
    assert live(client, "empty") == same_items(history.items) and empty.items == {}
    with pytest.raises(Conflict, match="'empty' has items already"):  # what was restored is its owner's now
        restore(spark, table="source", into="empty", url=server.url)
    with pytest.raises(NotFound):
        restore(spark, table="nowhere", into="empty-too", url=server.url)


def _crash_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """Let the driver die after so many commits of items."""
    committed = filling.Filling.commit
    left = [commits]

    def commit(self: filling.Filling, stages: list[str]) -> None:
        if stages:
            if not left[0]:
                raise KeyboardInterrupt("killed")
            left[0] -= 1
        committed(self, stages)

    monkeypatch.setattr(filling.Filling, "commit", commit)


def test_a_restore_that_died_resumes_or_restarts(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(client, "crashed", 37)
    history.run(40)
    earlier = history.states[20]
    with monkeypatch.context() as patched:
        _crash_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            restore(spark, table="crashed", into="back", url=server.url)
    part = live(client, "back")
    assert part and part != same_items(history.items), "it died in the middle"
    # Another state is wanted now: what is there must not be mixed with it.
    with monkeypatch.context() as patched:
        _crash_after(patched, 2)
        with pytest.raises(KeyboardInterrupt):
            restore(spark, table="crashed", into="back", url=server.url, at_sequence=earlier[0])
    done = restore(spark, table="crashed", into="back", url=server.url, at_sequence=earlier[0])
    assert live(client, "back") == same_items(earlier[1]) and done.rows == len(earlier[1])


def test_a_driver_that_was_thought_dead_is_shut_out(
    spark: Spark, server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(client, "overtaken", 38)
    history.run(30)
    earlier = history.states[10]
    held: list[filling.Filling] = []
    prepared = module._prepared

    def kept(*args: Any) -> Any:
        found = prepared(*args)
        held.append(found[0])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(module, "_prepared", kept)
        _crash_after(patched, 0)
        with pytest.raises(KeyboardInterrupt):
            restore(spark, table="overtaken", into="overtaken-back", url=server.url)
    restore(spark, table="overtaken", into="overtaken-back", url=server.url, at_sequence=earlier[0])
    with Client(server.url) as late:
        held[0]._client = late
        stray = ["PUT", {"id": {"S": "stray"}, "at": {"N": "1"}}]
        stage = late.stage([stray], table="overtaken-back")
        with pytest.raises(Conflict, match="another job has begun to fill"):
            held[0].write([msgspec.msgpack.encode((stage, 1))])
    assert live(client, "overtaken-back") == same_items(earlier[1])


def test_columns_of_sql_tables_come_back(spark: Spark, server: ServerProcess, client: Client) -> None:
    client.sql(
        "CREATE TABLE shop.sales (id TEXT PRIMARY KEY, total DECIMAL NOT NULL, paid BOOLEAN, lines JSON) "
        "WITH (stream = true); "
        "INSERT INTO shop.sales VALUES ('a', 12.50, true, '[1, {\"x\": null}]'), ('b', 3, false, NULL)"
    )
    client.sql("UPDATE shop.sales SET total = 4 WHERE id = 'b'; INSERT INTO shop.sales (id, total) VALUES ('c', 1)")
    client.sql("DELETE FROM shop.sales WHERE id = 'a'")
    restore(spark, table="shop.sales", into="shop.back", url=server.url)
    wanted, found = (client.sql(f"SELECT * FROM {name} ORDER BY id")[0] for name in ("shop.sales", "shop.back"))
    assert found.rows == wanted.rows and found.columns == wanted.columns


def test_a_dropped_table_is_restored_from_its_history(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "dropped", 39)
    history.run(25)
    client.call("DeleteTable", {"TableName": "dropped"})
    restore(spark, table="dropped", into="undone", url=server.url)
    assert live(client, "undone") == same_items(history.items)


def test_unavailable_sequences_are_reported(spark: Spark, server: ServerProcess, client: Client) -> None:
    history = History(client, "bounded", 40)
    history.run(20)
    kept = history.states[8]
    snapshot(spark, table="bounded", url=server.url, at=kept[0])
    client.prune("bounded", history.states[12][0])
    oldest = history.states[12][0]
    with pytest.raises(Invalid, match=rf"at sequence {history.states[5][0]} is not available; {kept[0]}\b.* are"):
        restore(spark, table="bounded", into="bounded-not", url=server.url, at_sequence=history.states[5][0])
    with pytest.raises(Invalid, match="is not available"):  # the changes between the snapshot and it are gone
        restore(spark, table="bounded", into="bounded-not", url=server.url, at_sequence=oldest)
    restore(spark, table="bounded", into="bounded-back", url=server.url, at_sequence=kept[0])
    assert live(client, "bounded-back") == same_items(kept[1])
    with pytest.raises(NotFound):
        client.call("DescribeTable", {"TableName": "bounded-not"})

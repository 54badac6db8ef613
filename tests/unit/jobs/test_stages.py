"""Staged rows: checked, kept, written all at once and once, dropped, expired."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace import failpoints, limits
from tailrace.access import ROLES, SYSTEM, Access, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Query
from tailrace.database import Database
from tailrace.errors import Closed, Conflict, Fenced, Invalid, LimitExceeded, NotFound, TableNotFound, TooLarge
from tailrace.housekeeping import FindDueWork
from tailrace.jobs import sweep
from tailrace.jobs.commands import CommitStages, Committed, DropStage, RegisterJob, StageResult, StageRows
from tailrace.jobs.queries import FindStage, FindTarget, GetJob
from tailrace.jobs.stage import SINKS, STAGE_CHUNKS, STAGES, STREAM, TABLE, TOPIC, Target
from tailrace.jobs.target import checked
from tailrace.storage.engine import Reader
from tailrace.streams.commands import Append, CreateStream, DeleteStream
from tailrace.streams.queries import ReadStream
from tailrace.tables.commands import DeleteItem, PutItem
from tailrace.tables.definition import Attribute
from tailrace.tables.lifecycle import SetTimeToLive, UpdateTable
from tailrace.tables.schema import IndexChange, IndexSpec, KeyElement, TableChanges
from tailrace.tables.value import item_from_plain, item_size
from tailrace.topics.commands import AddSource, CreateTopic, DropTopic, TopicOptions
from tailrace.topics.queries import ReadTopic

ORDERS, EVENTS, TEXT, NEWS = (
    Target(TABLE, "orders"),
    Target(STREAM, "events"),
    Target(STREAM, "text"),
    Target(TOPIC, "news"),
)
BY_STATUS = TableChanges(
    attributes=(Attribute("id", "S"), Attribute("status", "S")),
    indexes=(IndexChange(create=IndexSpec("by_status", (KeyElement("status", "HASH"),))),),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as opened:
        opened.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        opened.execute(CreateStream("events", "application/json"))
        opened.execute(CreateStream("text", "text/plain"))
        opened.execute(CreateTopic("news", 3, TopicOptions(alias="n")))
        yield opened
    failpoints.disarm()
    assert check_database(data_dir).findings == []


def put(**item: Any) -> list[Any]:
    return ["PUT", item_from_plain(item)[0]]


def delete(name: str) -> list[Any]:
    return ["DELETE", {"id": {"S": name}}]


def stage(
    db: Database, target: Target, rows: list[Any], into: str | None = None, chunk: int | None = None
) -> StageResult:
    here = db.execute(FindTarget(target))
    done = checked(here, msgspec.msgpack.encode(rows))
    return db.execute(StageRows(here.target, here.number, done.rows, done.body, into, chunk))


def commit(
    db: Database, target: Target, batch: int, *stages: StageResult, query: str = "q", **options: Any
) -> Committed:
    return db.execute(CommitStages(query, batch, target, tuple(each.stage.id for each in stages), **options))


class Held(Query[tuple[int, int, int]], frozen=True):
    """How many stages, chunks and queries there are."""

    def run(self, reader: Reader) -> tuple[int, int, int]:
        return tuple(len(list(reader.scan(table))) for table in (STAGES, STAGE_CHUNKS, SINKS))  # type: ignore


def items(db: Database) -> dict[str, Any]:
    return {item["id"]: item for item in db.table("orders").scan()}


def bodies(db: Database, path: str) -> list[bytes]:
    return [entry.body for entry in db.execute(ReadStream(path, bytes_max=10**9)).page.entries]


def messages(db: Database) -> list[tuple[int, bytes, bytes | None]]:
    found = []
    for partition in range(3):
        read = db.execute(ReadTopic("news", partition, limit=10_000))
        found += [(partition, each.envelope.payload, each.envelope.key) for each in read.messages]
    return found


# -- what is written


def test_rows_are_invisible_before_they_are_committed(db: Database) -> None:
    one = stage(db, ORDERS, [put(id="a", n=1), put(id="b", n=2)])
    two = stage(db, ORDERS, [put(id="c", n=3)])
    assert items(db) == {}
    done = commit(db, ORDERS, 0, one, two)
    assert (done.applied, done.rows, done.positions) == (True, 3, {})
    assert items(db) == {"a": {"id": "a", "n": 1}, "b": {"id": "b", "n": 2}, "c": {"id": "c", "n": 3}}
    assert db.execute(Held()) == (0, 0, 1)


def test_items_are_written_as_by_anybody(db: Database) -> None:
    """Changes are recorded, routed and indexed; what changes nothing leaves no record."""
    db.execute(AddSource("news", "orders", 0, None, None, 1))
    db.table("orders").put({"id": "a", "n": 1})
    db.table("orders").put({"id": "b", "n": 1})
    rows = [put(id="a", n=1), put(id="b", n=2), put(id="c", n=3), delete("a"), delete("missing")]
    commit(db, ORDERS, 0, stage(db, ORDERS, rows))
    changes = [(each.event, each.keys["id"]) for each in db.table("orders").changes()][2:]
    assert changes == [("MODIFY", "b"), ("INSERT", "c"), ("REMOVE", "a")]
    assert sorted(payload for _, payload, _ in messages(db))[-1] == b'{"id":"c","n":3}'


def test_an_item_that_comes_twice_is_as_it_came_last(db: Database) -> None:
    commit(db, ORDERS, 0, stage(db, ORDERS, [put(id="a", n=1), put(id="a", n=2), delete("b"), put(id="b", n=1)]))
    assert items(db) == {"a": {"id": "a", "n": 2}, "b": {"id": "b", "n": 1}}


def test_many_items_are_several_transactions_to_those_who_follow(db: Database) -> None:
    rows = [put(id=f"{number:05d}", n=number) for number in range(2_500)]
    commit(db, ORDERS, 0, stage(db, ORDERS, rows))
    sequences: dict[int, int] = {}
    for each in db.table("orders").changes(limit=10_000):
        sequences[each.sequence] = sequences.get(each.sequence, 0) + 1
    assert list(sequences.values()) == [1_000, 1_000, 500]


def test_json_messages_share_entries(db: Database) -> None:
    rows = [b" %d\n" % number for number in range(2_500)] + [b"[1,2]", b'{"a": "\xc3\xa4"}']
    commit(db, EVENTS, 0, stage(db, EVENTS, rows))
    found = bodies(db, "events")
    assert [len(msgspec.json.decode(b"[" + body + b"]")) for body in found] == [1_000, 1_000, 502]
    assert msgspec.json.decode(b"[" + b",".join(found) + b"]") == [*range(2_500), [1, 2], {"a": "ä"}]
    commit(db, EVENTS, 1, stage(db, EVENTS, [b'"%s"' % (b"x" * 200_000)] * 3))
    assert len(bodies(db, "events")) == 6, "large messages do not"


def test_other_rows_are_an_entry_each(db: Database) -> None:
    commit(db, TEXT, 0, stage(db, TEXT, [b"one\n", b"two\n"]))
    assert bodies(db, "text") == [b"one\n", b"two\n"]
    assert db.execute(ReadStream("text")).log.next == 8


def test_messages_go_where_their_key_says(db: Database) -> None:
    rows = [[b"k", b"one", None], [None, b"two", 2], [None, b"three"], [b"k", b"four", None]]
    commit(db, Target(TOPIC, "n"), 0, stage(db, NEWS, rows))
    found = messages(db)
    (partition,) = {where for where, payload, _ in found if payload in (b"one", b"four")}
    assert (2, b"two", None) in found and (0, b"three", None) in found
    assert [payload for where, payload, _ in found if where == partition and payload in (b"one", b"four")] == [
        b"one",
        b"four",
    ]


# -- once


def test_a_batch_is_written_once(db: Database) -> None:
    assert commit(db, EVENTS, 3, stage(db, EVENTS, [b"1"])).applied
    for batch in (3, 2, 0):
        again = commit(db, EVENTS, batch, stage(db, EVENTS, [b"2"]))
        assert (again.applied, again.rows) == (False, 0)
    assert bodies(db, "events") == [b"1"]
    assert db.execute(Held())[:2] == (0, 0), "stages that came too late are gone too"
    assert commit(db, EVENTS, 4, stage(db, EVENTS, [b"3"])).applied
    assert commit(db, EVENTS, 0, stage(db, EVENTS, [b"4"]), query="another").applied
    assert bodies(db, "events") == [b"1", b"3", b"4"]


def test_a_query_is_known_by_what_it_writes_to(db: Database) -> None:
    """One query may write to two targets, and its name is nobody's: what others do with it elsewhere is theirs."""
    assert commit(db, EVENTS, 0, stage(db, EVENTS, [b"1"])).applied
    assert commit(db, TEXT, 0, stage(db, TEXT, [b"one"])).applied
    bob = Principal("bob", ROLES["user"], "user", Access(("streams/text",)))
    assert db.execute(CommitStages("q", limits.POSITION_MAX, TEXT, ()), bob).applied
    assert db.execute(CommitStages("victim", limits.POSITION_MAX, TEXT, ()), bob).applied
    assert commit(db, EVENTS, 1, stage(db, EVENTS, [b"2"])).applied
    assert commit(db, EVENTS, 0, stage(db, EVENTS, [b"3"]), query="victim").applied
    assert (bodies(db, "events"), bodies(db, "text")) == ([b"1", b"2", b"3"], [b"one"])


def test_a_target_that_was_made_again_knows_no_batches(db: Database) -> None:
    assert commit(db, EVENTS, 5, stage(db, EVENTS, [b"1"])).applied
    db.execute(DeleteStream("events"))
    db.execute(CreateStream("events", "application/json"))
    assert commit(db, EVENTS, 0, stage(db, EVENTS, [b"2"])).applied
    assert bodies(db, "events") == [b"2"]


def test_a_commit_that_is_sent_again_is_known_though_its_stages_are_gone(db: Database) -> None:
    staged = stage(db, EVENTS, [b"1"])
    assert commit(db, EVENTS, 0, staged).applied
    assert not commit(db, EVENTS, 0, staged).applied
    assert bodies(db, "events") == [b"1"]


def test_of_two_sets_of_stages_the_first_counts(db: Database) -> None:
    """The batch was computed again, with another number of partitions."""
    first = [stage(db, EVENTS, [b"%d" % number]) for number in range(4)]
    second = [stage(db, EVENTS, [b"0", b"1"]), stage(db, EVENTS, [b"2", b"3"])]
    assert commit(db, EVENTS, 0, *first).applied
    assert not commit(db, EVENTS, 0, *second).applied
    assert bodies(db, "events") == [b"0", b"1", b"2", b"3"]
    assert db.execute(Held()) == (0, 0, 1)


def test_an_empty_batch_counts_too(db: Database) -> None:
    assert commit(db, EVENTS, 0).applied
    assert not commit(db, EVENTS, 0, stage(db, EVENTS, [b"1"])).applied


def test_those_who_race_write_once(db: Database) -> None:
    staged = [stage(db, ORDERS, [put(id=f"{racer}")]) for racer in range(8)]
    results: list[Committed] = []

    def race(each: StageResult) -> None:
        results.append(commit(db, ORDERS, 0, each, consumer="c", ranges={1: (0, 5)}))

    threads = [threading.Thread(target=race, args=(each,)) for each in staged]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.applied for each in results) == [False] * 7 + [True]
    assert len(items(db)) == 1
    assert {tuple(each.positions.items()) for each in results} == {((1, 5),)}


# -- fenced


def test_a_consumer_is_where_its_last_range_ended(db: Database) -> None:
    done = commit(db, EVENTS, 0, stage(db, EVENTS, [b"1"]), consumer="copy", ranges={7: (0, 5)})
    assert (done.applied, done.positions) == (True, {7: 5})
    # The checkpoint was lost: another query, from batch 0 on.
    again = commit(db, EVENTS, 0, stage(db, EVENTS, [b"1"]), query="r", consumer="copy", ranges={7: (0, 5)})
    assert (again.applied, again.positions) == (False, {7: 5})
    with pytest.raises(Fenced) as caught:
        commit(db, EVENTS, 1, stage(db, EVENTS, [b"1"]), query="r", consumer="copy", ranges={7: (3, 9)})
    assert caught.value.facts == {"positions": {"7": 5}}
    assert commit(db, EVENTS, 1, stage(db, EVENTS, [b"2"]), query="r", consumer="copy", ranges={7: (5, 9)}).applied
    assert bodies(db, "events") == [b"1", b"2"]


def test_with_a_consumer_the_number_of_a_batch_says_nothing(db: Database) -> None:
    """A checkpoint that was put back counts batches again, under the same query, of what was not written yet."""
    for batch, (start, end) in enumerate([(0, 2), (2, 3), (3, 5)]):
        assert commit(db, EVENTS, batch, consumer="copy", ranges={7: (start, end)}).applied
    assert not commit(db, EVENTS, 1, consumer="copy", ranges={7: (2, 5)}, strict=False).applied
    for batch, (start, end) in enumerate([(5, 8), (8, 9)], start=2):
        staged = stage(db, EVENTS, [b"%d" % start])
        assert commit(db, EVENTS, batch, staged, consumer="copy", ranges={7: (start, end)}, strict=False).applied
    assert bodies(db, EVENTS.name) == [b"5", b"8"]


def test_a_known_gap_is_accepted(db: Database) -> None:
    commit(db, EVENTS, 0, consumer="copy", ranges={7: (0, 5)})
    with pytest.raises(Fenced):
        commit(db, EVENTS, 1, consumer="copy", ranges={7: (6, 9)})
    assert commit(db, EVENTS, 1, consumer="copy", ranges={7: (6, 9)}, strict=False).applied


def test_a_commit_that_fails_moves_no_position_and_notes_no_batch(db: Database) -> None:
    staged = stage(db, EVENTS, [b"1"])
    with pytest.raises(NotFound, match="there is no stage 'gone'"):
        db.execute(CommitStages("q", 0, EVENTS, (staged.stage.id, "gone"), "copy", {7: (0, 5)}))
    with pytest.raises(NotFound):
        db.execute(GetJob("copy"))
    assert db.execute(Held()) == (1, 1, 0)
    assert bodies(db, "events") == []
    assert commit(db, EVENTS, 0, staged, consumer="copy", ranges={7: (0, 5)}).applied


def test_the_positions_of_a_view_are_its_own(db: Database) -> None:
    db.execute(RegisterJob("totals", "view"))
    db.execute(RegisterJob("cold", "tier"))
    with pytest.raises(Conflict, match="'cold' is a tier"):
        commit(db, EVENTS, 0, stage(db, EVENTS, [b"1"]), consumer="cold", ranges={1: (0, 1)})
    with pytest.raises(Conflict, match="'totals' is a view"):
        commit(db, EVENTS, 0, consumer="totals", ranges={7: (0, 5)})


# -- all or nothing


@pytest.mark.parametrize("name", ["stages.fenced", "stages.part", "stages.written", "command.ran", "batch.flushed"])
@pytest.mark.parametrize("target", [ORDERS, EVENTS, NEWS], ids=lambda target: target.kind)
def test_a_commit_that_breaks_in_the_middle_leaves_nothing(db: Database, target: Target, name: str) -> None:
    rows = {
        TABLE: [put(id=f"{number}") for number in range(1_500)],
        STREAM: [b"%d" % number for number in range(1_500)],
        TOPIC: [[None, b"%d" % number, number % 3] for number in range(1_500)],
    }[target.kind]
    staged = stage(db, target, rows)
    failpoints.arm(name)
    with pytest.raises(failpoints.Failure):
        commit(db, target, 0, staged, consumer="c", ranges={1: (0, 9)})
    failpoints.disarm()
    assert (items(db), bodies(db, "events"), messages(db)) == ({}, [], [])
    if db.stopped is not None:
        return  # the outcome of that commit counts as unknown; opening again shows that nothing is there
    assert db.execute(Held()) == (1, 1, 0)
    assert commit(db, target, 0, staged, consumer="c", ranges={1: (0, 9)}).rows == 1_500
    assert len(items(db)) + len(messages(db)) + sum(body.count(b",") + 1 for body in bodies(db, "events")) == 1_500


def test_the_target_is_looked_at_again(db: Database) -> None:
    orders, events, news = stage(db, ORDERS, [put(id="a")]), stage(db, EVENTS, [b"1"]), stage(db, NEWS, [[None, b"1"]])
    db.drop_table("orders")
    db.execute(DeleteStream("events"))
    db.execute(DropTopic("news"))
    with pytest.raises(TableNotFound):
        commit(db, ORDERS, 0, orders)
    with pytest.raises(NotFound, match="there is no stream"):
        commit(db, EVENTS, 0, events)
    with pytest.raises(NotFound, match="there is no topic"):
        commit(db, NEWS, 0, news)
    db.create_table("orders", partition_key="other")
    db.execute(CreateStream("events", "text/plain"))
    db.execute(CreateTopic("news"))
    for target, staged in ((ORDERS, orders), (EVENTS, events), (NEWS, news)):
        with pytest.raises(Conflict, match="dropped and recreated") as caught:
            commit(db, target, 0, staged)
        assert caught.value.code == "TARGET_CHANGED"
    assert db.execute(Held()) == (3, 3, 0)


def test_a_table_that_was_made_again_while_rows_were_checked(db: Database) -> None:
    here = db.execute(FindTarget(ORDERS))
    done = checked(here, msgspec.msgpack.encode([put(id="a")]))
    db.drop_table("orders")
    db.create_table("orders", partition_key="other")
    with pytest.raises(Conflict, match="dropped and recreated"):
        db.execute(StageRows(here.target, here.number, done.rows, done.body))


def test_a_closed_stream_takes_no_rows(db: Database) -> None:
    staged = stage(db, EVENTS, [b"1"])
    db.execute(Append("events", close=True))
    with pytest.raises(Closed):
        commit(db, EVENTS, 0, staged)
    assert db.execute(Held()) == (1, 1, 0)


def test_a_stage_is_for_one_target(db: Database) -> None:
    staged = stage(db, ORDERS, [put(id="a")])
    db.create_table("other", partition_key="id")
    with pytest.raises(Conflict, match="is for tables/orders, not for tables/other") as caught:
        commit(db, Target(TABLE, "other"), 0, staged)
    assert caught.value.code == "WRONG_TARGET"


def test_an_item_that_no_longer_fits_fails_the_commit(db: Database) -> None:
    """An index was added after the rows were staged."""
    staged = stage(db, ORDERS, [put(id="a", status="new"), put(id="b", status=5)])
    db.execute(UpdateTable("orders", BY_STATUS))
    with pytest.raises(Invalid, match="status"):
        commit(db, ORDERS, 0, staged, consumer="c", ranges={1: (0, 1)})
    assert items(db) == {}
    assert db.execute(Held()) == (1, 1, 0)
    with pytest.raises(Invalid, match=r"row 0: .*status"):
        stage(db, ORDERS, [put(id="b", status=5)])


# -- chunks


def test_rows_come_in_chunks(db: Database) -> None:
    first = stage(db, EVENTS, [b"1", b"2"])
    second = stage(db, EVENTS, [b"3"], first.stage.id, 1)
    assert (second.stage.id, second.stage.rows) == (first.stage.id, 3)
    again = stage(db, EVENTS, [b"3"], first.stage.id, 1)
    assert (again.fresh, again.stage.rows) == (False, 3), "a chunk that is sent again is there once"
    with pytest.raises(Conflict, match="chunk 4 leaves a gap"):
        stage(db, EVENTS, [b"3"], first.stage.id, 4)
    with pytest.raises(Conflict, match="is for streams/events, not for streams/text"):
        stage(db, TEXT, [b"3"], first.stage.id)
    with pytest.raises(NotFound, match="there is no stage 'gone'"):
        stage(db, EVENTS, [b"3"], "gone")
    assert commit(db, EVENTS, 0, second).rows == 3
    assert bodies(db, "events") == [b"1,2", b"3"]


def test_limits(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STAGES_MAX", 4)
    monkeypatch.setattr(limits, "STAGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(limits, "STAGE_CHUNKS_MAX", 2)
    monkeypatch.setattr(limits, "COMMIT_ROWS_MAX", 5)
    first = stage(db, EVENTS, [b"1"] * 3)
    second = stage(db, EVENTS, [b"1"] * 3)
    with pytest.raises(LimitExceeded, match="2 stages of"):
        stage(db, EVENTS, [b"1"])
    with pytest.raises(TooLarge, match="6 rows") as caught:
        stage(db, EVENTS, [b"1"] * 3, first.stage.id)
    assert caught.value.code == "STAGE_FULL"
    with pytest.raises(TooLarge, match="bytes"):
        stage(db, EVENTS, [b'"%s"' % (b"x" * 1_000)], first.stage.id)
    stage(db, EVENTS, [b"1"], first.stage.id)
    with pytest.raises(TooLarge, match="in 3 chunks"):
        stage(db, EVENTS, [b"1"], first.stage.id)
    with pytest.raises(TooLarge, match="exceed one commit") as too_many:
        commit(db, EVENTS, 0, first, second)
    assert too_many.value.code == "COMMIT_TOO_LARGE"
    assert commit(db, EVENTS, 0, first).applied
    monkeypatch.setattr(limits, "COMMIT_BYTES_MAX", 2)
    with pytest.raises(TooLarge):
        commit(db, EVENTS, 1, second)


def test_what_waits_is_bounded_in_all_and_for_each(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def staged(by: str) -> StageResult:
        here = db.execute(FindTarget(EVENTS))
        rows = checked(here, msgspec.msgpack.encode([b'"%s"' % (b"x" * 93)]))
        assert len(rows.body) == 100
        return db.execute(StageRows(EVENTS, here.number, 1, rows.body), Principal(by, ROLES["user"], "user"))

    monkeypatch.setattr(limits, "STAGES_BYTES_MAX", 600)
    kept = [staged("ann") for _ in range(3)]
    with pytest.raises(LimitExceeded, match="3 stages of 300 bytes are uncommitted for 'ann'"):
        staged("ann")
    kept += [staged("bob"), staged("bob"), staged("cat")]
    with pytest.raises(LimitExceeded, match="6 stages of 600 bytes are uncommitted, "):
        staged("cat")
    with pytest.raises(LimitExceeded, match="600 bytes"):
        stage(db, EVENTS, [b"1"], kept[5].stage.id)
    db.execute(DropStage(kept[3].stage.id, EVENTS))
    staged("cat")
    commit(db, EVENTS, 0, kept[0], kept[4])
    monkeypatch.setattr(limits, "STAGES_MAX", 6)
    monkeypatch.setattr(limits, "STAGES_BYTES_MAX", 1_000)
    staged("ann")
    with pytest.raises(LimitExceeded, match="the limit is 3 of 500"):
        staged("ann")


# -- large commits


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction takes ten items, or four of a larger commit."""
    monkeypatch.setattr(limits, "COMMIT_ITEMS_MAX", 10)
    monkeypatch.setattr(limits, "COMMIT_SLICE_ITEMS", 4)


def many(db: Database, count: int, first: int = 0, **attributes: Any) -> StageResult:
    return stage(db, ORDERS, [put(id=f"{number:03d}", **attributes) for number in range(first, first + count)])


@pytest.mark.usefixtures("small")
def test_a_large_commit_is_written_in_slices(db: Database) -> None:
    staged = [many(db, 7), many(db, 3, 7), stage(db, ORDERS, [put(id="010")], many(db, 1, 11).stage.id)]
    for count in (4, 8):
        done = commit(db, ORDERS, 0, *staged)
        assert (done.applied, done.rows, done.more, len(items(db))) == (True, 12, True, count)
    assert db.execute(Held())[0] == 2, "stages are removed as they are done"
    done = commit(db, ORDERS, 0, *staged)
    assert (done.applied, done.rows, done.more) == (True, 12, False)
    assert db.execute(Held()) == (0, 0, 1)
    records = list(db.table("orders").changes())
    assert [each.keys["id"] for each in records] == [*(f"{number:03d}" for number in range(10)), "011", "010"]
    assert len({each.sequence for each in records}) == 3
    again = commit(db, ORDERS, 0, *staged)
    assert (again.applied, again.rows, again.more) == (False, 0, False)
    assert len(list(db.table("orders").changes())) == 12


@pytest.mark.usefixtures("small")
def test_bytes_cut_slices_too(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COMMIT_SLICE_ITEMS", 1_000)
    monkeypatch.setattr(limits, "COMMIT_SLICE_BYTES", 5_000)
    staged = [many(db, 3, number * 3, text="x" * 1_000) for number in range(4)]
    steps = 1
    while commit(db, ORDERS, 0, *staged).more:
        steps += 1
    assert (steps, len(items(db))) == (2, 12)


@pytest.mark.usefixtures("small")
def test_up_to_the_limit_it_is_one_transaction(db: Database) -> None:
    assert not commit(db, ORDERS, 0, many(db, 10)).more
    assert len(items(db)) == 10


@pytest.mark.usefixtures("small")
def test_a_commit_that_was_accepted_is_not_replaced(db: Database) -> None:
    """The driver died between two slices; its batch was computed again, in other stages."""
    assert commit(db, ORDERS, 0, many(db, 12, n=1)).more
    again = many(db, 12, n=2)
    while (done := commit(db, ORDERS, 0, again)).more:
        assert not done.applied
    assert (done.applied, done.rows) == (False, 0)
    assert {item["n"] for item in items(db).values()} == {1}
    assert (len(items(db)), db.execute(Held())) == (12, (0, 0, 1))


@pytest.mark.usefixtures("small")
def test_the_next_commit_continues_the_pending_one_first(db: Database) -> None:
    """Otherwise the rest of it would replace newer rows. Whoever sends the next one, the records are of the first."""
    first, second = many(db, 12, n=1), many(db, 2, 10, n=2)
    bob = Principal("bob", ROLES["service"], "service")
    ids = (first.stage.id,)
    assert db.execute(CommitStages("first", 0, ORDERS, ids, "c", {7: (0, 5)}), bob).positions == {7: 5}
    for _ in range(2):
        assert commit(db, ORDERS, 0, second, query="second").more
    assert (len(items(db)), items(db)["011"]["n"]) == (12, 1)
    done = commit(db, ORDERS, 0, second, query="second")
    assert (done.applied, done.rows, items(db)["011"]["n"]) == (True, 2, 2)
    changed = [(each.by, each.event) for each in db.table("orders").changes()]
    assert changed[:12] == [("bob", "INSERT")] * 12
    assert [event for by, event in changed[12:] if by != "bob"] == ["MODIFY"] * 2
    assert not db.execute(CommitStages("first", 0, ORDERS, ids, "c", {7: (0, 5)}), bob).applied


@pytest.mark.usefixtures("small")
def test_others_write_between_two_slices(db: Database) -> None:
    staged = many(db, 12, n=1)
    commit(db, ORDERS, 0, staged)
    db.table("orders").put({"id": "000", "n": 5})
    db.table("orders").put({"id": "011", "n": 5})
    while commit(db, ORDERS, 0, staged).more:
        pass
    assert (items(db)["000"]["n"], items(db)["011"]["n"]) == (5, 1), "each row is written when its slice is"


@pytest.mark.usefixtures("small")
def test_stages_that_were_accepted_stay(db: Database, clock: ManualClock) -> None:
    staged = many(db, 12)
    commit(db, ORDERS, 0, staged)
    with pytest.raises(Conflict, match="is part of a commit that was accepted"):
        db.execute(DropStage(staged.stage.id, ORDERS))
    with pytest.raises(Conflict, match="is part of a commit that was accepted"):
        stage(db, ORDERS, [put(id="x")], staged.stage.id)
    clock.advance(limits.STAGE_S)
    assert not db.execute(sweep.ExpireStage(staged.stage.id), SYSTEM)


@pytest.mark.usefixtures("small")
def test_a_commit_that_was_left_is_finished(db: Database, clock: ManualClock) -> None:
    commit(db, ORDERS, 0, many(db, 12))
    assert (swept(db), len(items(db))) == (0, 4), "its client may go on"
    clock.advance(limits.COMMIT_IDLE_S)
    while swept(db) == 0:
        clock.advance(limits.COMMIT_IDLE_S)
    assert (len(items(db)), db.execute(Held())) == (12, (0, 0, 1))


@pytest.mark.usefixtures("small")
def test_a_table_that_is_dropped_between_two_slices(db: Database, clock: ManualClock) -> None:
    staged = many(db, 12)
    commit(db, ORDERS, 0, staged)
    db.drop_table("orders")
    with pytest.raises(TableNotFound):
        commit(db, ORDERS, 0, staged)
    db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    assert commit(db, ORDERS, 0, many(db, 2)).rows == 2
    clock.advance(limits.STAGE_S)
    swept(db)
    swept(db)
    assert db.execute(Held())[:2] == (0, 0)


@pytest.mark.usefixtures("small")
def test_an_index_that_accepted_rows_do_not_fit_has_no_entries_for_them(db: Database) -> None:
    """As for items that were there before it."""
    staged = stage(db, ORDERS, [put(id=f"{number:03d}", status=number if number > 9 else "x") for number in range(12)])
    commit(db, ORDERS, 0, staged)
    db.execute(UpdateTable("orders", BY_STATUS))
    while commit(db, ORDERS, 0, staged).more:
        pass
    assert len(items(db)) == 12


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["stages.fenced", "stages.slice", "command.ran"])
def test_a_slice_that_breaks_is_written_again(db: Database, name: str) -> None:
    staged = many(db, 12)
    if name != "stages.fenced":
        commit(db, ORDERS, 0, staged)
    before = len(items(db))
    failpoints.arm(name)
    with pytest.raises(failpoints.Failure):
        commit(db, ORDERS, 0, staged)
    failpoints.disarm()
    assert len(items(db)) == before
    while commit(db, ORDERS, 0, staged).more:
        pass
    assert len(list(db.table("orders").changes())) == 12


def test_rows_of_an_earlier_version_are_staged_again(db: Database) -> None:
    here = db.execute(FindTarget(ORDERS))
    old = db.execute(StageRows(ORDERS, here.number, 1, msgspec.msgpack.encode([[3, {"id": {"S": "a"}}]])))
    with pytest.raises(Conflict, match="staged by an earlier version of the server; stage them again"):
        commit(db, ORDERS, 0, old)
    assert commit(db, ORDERS, 0, stage(db, ORDERS, [put(id="a")])).applied


# -- in bulk


@pytest.mark.parametrize("extra", ["nothing", "index", "ttl", "route"])
def test_what_is_written_in_bulk_is_as_one_by_one(db: Database, extra: str) -> None:
    """Puts, deletes and repetitions of the same keys: the same items, records and messages. `check` compares indexes
    and counts with the items."""
    db.create_table("single", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    for table in ("orders", "single"):
        match extra:
            case "index":
                db.execute(UpdateTable(table, BY_STATUS))
            case "ttl":
                db.execute(SetTimeToLive(table, "until", True))
            case "route":
                db.execute(CreateTopic(f"of-{table}"))
                for event in range(3):
                    db.execute(AddSource(f"of-{table}", table, event, None, None, 2))
    chance = random.Random(7)
    rows: list[list[Any]] = []
    for _ in range(700):
        name = f"{chance.randrange(90)}"
        if chance.random() < 0.2:
            rows.append(delete(name))
        else:
            attributes = {
                "n": chance.randrange(3),
                "status": chance.choice("ab"),
                "until": 10**10 + chance.randrange(3),
            }
            order = chance.sample(sorted(attributes), 3)
            rows.append(put(id=name, **{key: attributes[key] for key in order}))
    for op, item in rows:
        if op == "PUT":
            db.execute(PutItem(table="single", item=item, item_size=item_size(item)))
        else:
            db.execute(DeleteItem(table="single", key=item))
    commit(db, ORDERS, 0, stage(db, ORDERS, rows))

    def seen(table: str) -> list[Any]:
        return [(each.event, each.keys, each.old, each.new) for each in db.table(table).changes(limit=10_000)]

    def sent(table: str) -> list[Any]:
        if extra != "route":
            return []
        found = db.execute(ReadTopic(f"of-{table}", 0, limit=10_000)).messages
        return [(each.envelope.operation, each.envelope.payload) for each in found]

    assert seen("orders") == seen("single")
    assert sent("orders") == sent("single")
    assert sorted(db.table("orders").scan(), key=str) == sorted(db.table("single").scan(), key=str)


# -- what is wrong


@pytest.mark.parametrize(
    ("target", "rows", "why"),
    [
        (ORDERS, [put(id="a"), ["PUT", {"n": {"N": "1"}}]], "row 1: .*Missing the key id"),
        (ORDERS, [put(id=1)], "row 0: .*Type mismatch for key id"),
        (ORDERS, [["PUT", {"id": {"S": ""}}]], "row 0"),
        (ORDERS, [["PUT", {"id": {"X": "a"}}]], "row 0"),
        (ORDERS, [["PUT", {"id": "a"}]], "row 0"),
        (ORDERS, [["PUT", {"id": {"S": "a"}, "n": {"N": "one"}}]], "row 0"),
        (ORDERS, [["PUT", {"id": {"S": "a"}, "b": {"B": 5}}]], "row 0"),
        (ORDERS, [["UPSERT", {"id": {"S": "a"}}]], "row 0: operation 'UPSERT' is unknown"),
        (ORDERS, [["DELETE", {"n": {"N": "1"}}]], "row 0"),
        (ORDERS, [put(id="a", text="x" * 500_000)], "row 0: Item size has exceeded"),
        (ORDERS, [["PUT"]], "not MessagePack of the expected form"),
        (ORDERS, {"id": "a"}, "not MessagePack of the expected form"),
        (ORDERS, [["PUT", {1: 2}]], "not MessagePack of the expected form"),
        (EVENTS, [b"1", b"{"], "row 1: the body is not valid JSON"),
        (EVENTS, [b"1,2"], "row 0: the body is not valid JSON"),
        (EVENTS, [b""], "row 0"),
        (EVENTS, [b'"\xff"'], "row 0"),
        (EVENTS, [b"[" * 100_000], "row 0"),
        (EVENTS, ["text"], "not MessagePack of the expected form"),
        (TEXT, [b"a", b""], "row 1: it is empty"),
        (NEWS, [[b"k", b"x", 3]], "row 0: topic 'news' has no partition 3"),
        (NEWS, [[b"k", "x"]], "not MessagePack of the expected form"),
        (NEWS, [[b"k", b"x" * (limits.MESSAGE_BYTES_MAX + 1)]], "row 0: a message of"),
    ],
)
def test_rows_that_cannot_be_written_are_not_staged(db: Database, target: Target, rows: Any, why: str) -> None:
    with pytest.raises((Invalid, TooLarge), match=why):
        stage(db, target, rows)
    assert db.execute(Held()) == (0, 0, 0)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\x91\xc7\x01\x05x"])
def test_what_is_not_messagepack_is_refused(db: Database, body: bytes) -> None:
    for target in (ORDERS, EVENTS, NEWS):
        with pytest.raises(Invalid, match="not MessagePack of the expected form"):
            checked(db.execute(FindTarget(target)), body)


def test_bad_commits_are_refused(db: Database) -> None:
    staged = stage(db, EVENTS, [b"1"])
    name = staged.stage.id
    for command, why in (
        (CommitStages("", 0, EVENTS, ()), "cannot name a query"),
        (CommitStages("x" * 257, 0, EVENTS, ()), "cannot name a query"),
        (CommitStages("q", -1, EVENTS, ()), "batch -1"),
        (CommitStages("q", 0, EVENTS, (name, name)), "names one twice"),
        (CommitStages("q", 0, EVENTS, (), "c"), "go together"),
        (CommitStages("q", 0, EVENTS, (), None, {1: (0, 1)}), "go together"),
        (CommitStages("q", 0, EVENTS, (), "", {1: (0, 1)}), "cannot name a consumer"),
        (CommitStages("q", 0, EVENTS, (), "c", {1: (1, 0)}), "not a range of log"),
    ):
        with pytest.raises(Invalid, match=why):
            db.execute(command)
    assert db.execute(Held()) == (1, 1, 0)


# -- what is not committed


def test_stages_are_dropped(db: Database) -> None:
    first, second = stage(db, EVENTS, [b"1"]), stage(db, EVENTS, [b"2"])
    stage(db, EVENTS, [b"3"], first.stage.id)
    assert db.execute(FindStage(first.stage.id)) == EVENTS
    db.execute(DropStage(first.stage.id, EVENTS))
    assert db.execute(FindStage(first.stage.id)) is None
    assert db.execute(Held()) == (1, 1, 0)
    with pytest.raises(NotFound, match="committed, dropped, or has expired"):
        db.execute(DropStage(first.stage.id, None))
    assert commit(db, EVENTS, 0, second).applied


def test_uncommitted_stages_expire(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_STREAMS", 2)
    old = [stage(db, EVENTS, [b"%d" % number]) for number in range(5)]
    commit(db, EVENTS, 0, stage(db, EVENTS, [b"0"]))
    clock.advance(limits.STAGE_S - 10)
    kept = stage(db, EVENTS, [b"6"])
    touched = stage(db, EVENTS, [b"6"], old[0].stage.id)
    assert swept(db) == 0
    clock.advance(10)
    assert swept(db) == 4
    assert db.execute(Held())[:2] == (2, 3)
    assert commit(db, EVENTS, 1, kept, touched).applied
    with pytest.raises(NotFound, match="there is no stage"):
        commit(db, EVENTS, 2, old[1])
    clock.advance(limits.SINK_S)
    assert swept(db) == 1
    assert db.execute(Held()) == (0, 0, 0)


def swept(db: Database) -> int:
    """Do the work of each task, page by page; how much was removed."""
    steps = 0
    for task in sweep.TASKS:
        position, first = None, True
        while first or position is not None:
            due = db.execute(FindDueWork(task, position))
            steps += sum(db.execute(command, SYSTEM) for command in due.commands)
            position, first = due.position, False
    return steps

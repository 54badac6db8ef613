"""The record of acknowledgements: who, when, which offsets; what is joined, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import limits
from tailrace.access import ROLES, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Forbidden, NotFound
from tailrace.storage.sqlite import SqliteEngine
from tailrace.topics import group as rules
from tailrace.topics.commands import CreateTopic, DropTopic, Outgoing, Publish
from tailrace.topics.consuming import Ack, AckHeld, Consume, DropGroup, ResetGroup
from tailrace.topics.consumption import CONSUMPTION, AckRange
from tailrace.topics.group import LATEST, LeasedRange, StartPoint
from tailrace.topics.queries import ListAcks, RecordedAck

ANN = Principal("ann", ROLES["service"], "service")
BOB = Principal("bob", ROLES["service"], "service")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with Database(SqliteEngine(data_dir), clock=clock, housekeeping_s=None) as opened:
        opened.execute(CreateTopic("work", 2))
        yield opened
    assert check_database(data_dir).findings == []


def publish(db: Database, count: int, partition: int = 0) -> None:
    db.execute(Publish("work", tuple(Outgoing(b"%d" % number, partition=partition) for number in range(count))))


def take(db: Database, count: int, consumer: str, principal: Principal = ANN, partition: int = 0) -> None:
    db.execute(Consume("work", "workers", partition, limit=count, consumer=consumer), principal)


def ack(db: Database, upto: int, consumer: str, principal: Principal = ANN, partition: int = 0) -> None:
    db.execute(Ack("work", "workers", upto, partition, consumer), principal)


def recorded(db: Database, partition: int | None = None) -> list[tuple[int, int, int, str, str]]:
    """The record, the oldest first: partition, first, end, consumer, principal."""
    db.sweep()
    found = db.execute(ListAcks("work", "workers", partition))
    return [
        (each.partition, each.range.first, each.range.end, each.range.consumer, each.range.by)
        for each in reversed(found)
    ]


def test_who_and_when(db: Database, clock: ManualClock) -> None:
    publish(db, 10)
    publish(db, 5, partition=1)
    take(db, 4, "a")
    began = clock.now_ms()
    ack(db, 1, "a")
    ack(db, 3, "a")  # within a second: one range
    clock.advance(2)
    take(db, 6, "b", BOB)
    ack(db, 9, "b", BOB)
    clock.advance(2)
    take(db, 5, "a", partition=1)
    ack(db, 4, "a", partition=1)
    assert recorded(db) == [(0, 0, 4, "a", "ann"), (0, 4, 10, "b", "bob"), (1, 0, 5, "a", "ann")]
    assert recorded(db, 0) == [(0, 0, 4, "a", "ann"), (0, 4, 10, "b", "bob")]
    times = [each.range.at_ms - began for each in db.execute(ListAcks("work", "workers"))]
    assert times == [4000, 2000, 0]
    assert db.execute(ListAcks("work", "workers", limit=1)) == [
        RecordedAck(1, AckRange(0, 5, began + 4000, "a", "ann"))
    ]


def test_only_what_was_acknowledged(db: Database) -> None:
    publish(db, 10)
    take(db, 10, "a")
    db.execute(Ack("work", "workers", 0, consumer="a", offsets=(2, 3, 7)), ANN)
    ack(db, 3, "other")  # it holds nothing
    db.execute(AckHeld("work", "workers", ((4, 5), (9, 9)), consumer="a"), ANN)
    assert recorded(db) == [
        (0, 2, 4, "a", "ann"), (0, 7, 8, "a", "ann"), (0, 4, 6, "a", "ann"), (0, 9, 10, "a", "ann"),
    ]  # fmt: skip


def test_the_record_outlives_the_process_and_a_reset(data_dir: Path) -> None:
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        db.execute(CreateTopic("work"))
        publish(db, 3)
        take(db, 3, "a")
        ack(db, 2, "a")  # and closing writes it
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        db.execute(ResetGroup("work", "workers", StartPoint(LATEST)))
        assert recorded(db) == [(0, 0, 3, "a", "ann")]


def test_it_is_bounded(db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACK_RANGES_IN_ROW", 4)
    monkeypatch.setattr(limits, "ACK_ROWS", 3)
    publish(db, 60)
    take(db, 60, "a")
    for offset in range(60):
        ack(db, offset, "a")
        clock.advance(2)
        if offset % 7 == 0:
            db.sweep()
    found = recorded(db)
    assert [first for _, first, _, _, _ in found] == list(range(60 - len(found), 60))
    assert 8 < len(found) <= 12
    with db._engine.reader() as reader:
        assert len(reader.values(CONSUMPTION, "number")) <= 3


def test_what_is_dropped_leaves_nothing(db: Database) -> None:
    publish(db, 3)
    take(db, 3, "a")
    ack(db, 2, "a")
    db.execute(DropGroup("work", "workers"))
    db.sweep()  # the notice comes too late
    with pytest.raises(NotFound):
        db.execute(ListAcks("work", "workers"))
    publish(db, 3)
    take(db, 3, "a")
    ack(db, 1, "a")
    assert len(recorded(db)) == 1
    db.execute(DropTopic("work"))
    with db._engine.reader() as reader:
        assert not list(reader.scan(CONSUMPTION))


def test_it_is_for_those_who_may_consume(db: Database) -> None:
    publish(db, 1)
    take(db, 1, "a")
    with pytest.raises(Forbidden):
        db.execute(ListAcks("work", "workers"), Principal("reader", ROLES["user"], "user"))


def leased(*ranges: tuple[int, int]) -> list[LeasedRange]:
    return [LeasedRange(first, end, 1, "", 0, 0, 0) for first, end in ranges]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([(0, 5)], [], [(0, 5)]),
        ([(0, 5), (5, 9)], [], [(0, 9)]),
        ([(0, 5), (7, 9)], [], [(0, 5), (7, 9)]),
        ([(0, 9)], [(0, 2), (4, 5)], [(2, 4), (5, 9)]),
        ([(0, 9)], [(3, 9)], [(0, 3)]),
        ([(0, 4), (4, 8), (8, 12)], [(0, 2), (4, 12)], [(2, 4)]),  # two of them were joined
        ([(0, 4), (4, 8)], [(0, 8)], []),
        ([(0, 4), (6, 8)], [(0, 4)], [(6, 8)]),
    ],
)
def test_what_was_removed(
    before: list[tuple[int, int]], after: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert list(rules.removed(leased(*before), leased(*after))) == expected


def test_of_very_many_ranges_some_are_recorded() -> None:
    many = leased(*((2 * number, 2 * number + 1) for number in range(1_000)))
    assert len(rules.removed(many, [])) == limits.ACK_RANGES_NOTED

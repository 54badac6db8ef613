"""Topics: made, named, changed, cleared, dropped, published to, consumed, kept for a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import InUse, Invalid, LimitExceeded, NotFound, SequenceGap, StaleEpoch, TooLarge
from tailrace.streams.producer import ProducerClaim
from tailrace.topics.commands import AlterTopic, ClearTopic, CreateTopic, DropTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, ConsumedMessages, DropGroup, Extend, Nack, ResetGroup
from tailrace.topics.group import StartPoint
from tailrace.topics.queries import (
    DescribeTopic,
    FindTopic,
    ListGroups,
    ListPartitions,
    ListTopics,
    ReadPartition,
    ReadTopic,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


def publish(db: Database, topic: str, count: int, size: int = 0) -> None:
    for at in range(0, count, 500):
        messages = range(at, min(count, at + 500))
        db.execute(Publish(topic, tuple(Outgoing((b"%d" % each).ljust(size)) for each in messages)))


def offsets(delivery: ConsumedMessages) -> list[int]:
    return [message.offset for message in delivery.messages]


# -- names


def test_a_topic_is_found_by_name_and_alias(db: Database) -> None:
    made = db.execute(CreateTopic("app.new_messages", 3, TopicOptions(alias="app.nm", retention_seconds=60)))
    assert made.fresh
    assert db.execute(FindTopic("app.new_messages")) == db.execute(FindTopic("app.nm")) == made.topic
    assert made.topic.partitions == 3
    assert [topic.name for topic in db.execute(ListTopics())] == ["app.new_messages"]


def test_names_and_aliases_share_one_namespace_both_ways(db: Database) -> None:
    db.execute(CreateTopic("one", options=TopicOptions(alias="uno")))
    db.execute(CreateTopic("two"))
    for command in (
        CreateTopic("uno"),
        CreateTopic("one"),
        CreateTopic("three", options=TopicOptions(alias="one")),
        CreateTopic("three", options=TopicOptions(alias="uno")),
        CreateTopic("uno", if_not_exists=True),
        AlterTopic("two", TopicOptions(alias="uno")),
        AlterTopic("two", TopicOptions(alias="one")),
        AlterTopic("two", TopicOptions(alias="two")),
    ):
        with pytest.raises(InUse) as raised:
            db.execute(command)
        assert raised.value.code == "NAME_TAKEN"
    assert [topic.name for topic in db.execute(ListTopics())] == ["one", "two"]


def test_an_alias_can_be_changed_and_taken_back(db: Database) -> None:
    db.execute(CreateTopic("one", options=TopicOptions(alias="uno")))
    db.execute(AlterTopic("uno", TopicOptions(alias="eins")))
    with pytest.raises(NotFound):
        db.execute(FindTopic("uno"))
    db.execute(AlterTopic("eins", TopicOptions(alias=None)))
    with pytest.raises(NotFound):
        db.execute(FindTopic("eins"))
    db.execute(CreateTopic("eins"))


def test_if_not_exists_finds_what_is_there(db: Database) -> None:
    first = db.execute(CreateTopic("one", 2))
    again = db.execute(CreateTopic("one", 5, if_not_exists=True))
    assert (again.fresh, again.topic) == (False, first.topic)


@pytest.mark.parametrize("name", ["", ".a", "a b", "a/b", "ü", "system.topics", "x" * 256, "a'b"])
def test_a_name_that_cannot_be_one(db: Database, name: str) -> None:
    with pytest.raises(Invalid) as raised:
        db.execute(CreateTopic(name))
    assert raised.value.code == "INVALID_TOPIC_NAME"


@pytest.mark.parametrize("partitions", [0, -1, limits.PARTITIONS_MAX + 1])
def test_a_number_of_partitions_that_cannot_be_one(db: Database, partitions: int) -> None:
    with pytest.raises(Invalid, match=str(partitions)):
        db.execute(CreateTopic("one", partitions))
    assert db.execute(ListTopics()) == []


def test_settings_that_are_wrong_change_nothing(db: Database) -> None:
    before = db.execute(CreateTopic("one")).topic
    for options in (
        TopicOptions(retention_seconds=0),
        TopicOptions(retention_max_bytes=-1),
        TopicOptions(max_attempts=3),
        TopicOptions(dead_letter="one", max_attempts=3),
        TopicOptions(dead_letter="nowhere", max_attempts=3),
    ):
        with pytest.raises((Invalid, NotFound)):
            db.execute(AlterTopic("one", options))
    assert db.execute(FindTopic("one")) == before


def test_there_may_be_only_so_many_topics(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 2)
    db.execute(CreateTopic("one"))
    db.execute(CreateTopic("two"))
    with pytest.raises(LimitExceeded):
        db.execute(CreateTopic("three"))


# -- life


def test_a_dropped_topic_leaves_nothing_to_one_of_the_same_name(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 3)
    db.execute(Consume("one", "g"))
    db.execute(Publish("one", (Outgoing(b"x"),), ProducerClaim("p", 0, 0)))
    assert db.execute(DropTopic("one"))
    with pytest.raises(NotFound) as raised:
        db.execute(Consume("one", "g"))
    assert raised.value.code == "TOPIC_NOT_FOUND"
    db.execute(CreateTopic("one"))
    assert db.execute(ListGroups("one")) == []
    assert db.execute(Publish("one", (Outgoing(b"new"),), ProducerClaim("p", 0, 0))).offsets == [(0, 0)]
    assert offsets(db.execute(Consume("one", "g"))) == [0]
    db.sweep()


def test_dropping_what_is_not_there(db: Database) -> None:
    with pytest.raises(NotFound):
        db.execute(DropTopic("one"))
    assert db.execute(DropTopic("one", if_exists=True)) is False


def test_clearing_removes_the_messages_and_keeps_the_offsets(db: Database) -> None:
    db.execute(CreateTopic("one", 2))
    for partition in (0, 1):
        db.execute(Publish("one", tuple(Outgoing(b"x", partition=partition) for _ in range(5))))
    db.execute(Consume("one", "g", limit=2))
    assert db.execute(ClearTopic("one")) == 10
    assert [(info.start, info.next, info.bytes) for info in db.execute(ListPartitions("one"))] == [(5, 5, 0), (5, 5, 0)]
    assert db.execute(Publish("one", (Outgoing(b"y", partition=0),))).offsets == [(0, 5)]
    delivery = db.execute(Consume("one", "g"))
    assert (offsets(delivery), delivery.skipped) == ([5], 3), "the two in flight are held by a consumer"
    db.sweep()


# -- publishing


def test_a_key_always_goes_to_the_same_partition(db: Database) -> None:
    db.execute(CreateTopic("one", 8))
    # The CRC-32 of these keys is 0x0, 0xE8B7BE43 and 0xD87F7E0C, as any other program works it out.
    for key, partition in ((b"", 0), (b"a", 3), (b"test", 4)):
        places = db.execute(Publish("one", (Outgoing(b"1", key), Outgoing(b"2", key)))).offsets
        assert {place for place, _ in places} == {partition}


def test_partition_by_hand_or_none(db: Database) -> None:
    db.execute(CreateTopic("one", 3))
    assert db.execute(Publish("one", (Outgoing(b"x", partition=2), Outgoing(b"y")))).offsets == [(2, 0), (0, 0)]
    with pytest.raises(Invalid) as raised:
        db.execute(Publish("one", (Outgoing(b"x"), Outgoing(b"y", partition=3))))
    assert raised.value.code == "NO_SUCH_PARTITION"
    assert db.execute(Publish("one", (Outgoing(b"z"),))).offsets == [(0, 1)], "nothing of the refused one was written"


def test_a_producer_publishes_once(db: Database) -> None:
    db.execute(CreateTopic("one", 2))
    messages = (Outgoing(b"a", partition=1), Outgoing(b"b", partition=0))
    assert db.execute(Publish("one", messages, ProducerClaim("p", 0, 0))).offsets == [(1, 0), (0, 0)]
    again = db.execute(Publish("one", messages, ProducerClaim("p", 0, 0)))
    assert (again.duplicate, again.offsets, again.sequence) == (True, [], 0)
    with pytest.raises(SequenceGap):
        db.execute(Publish("one", messages, ProducerClaim("p", 0, 2)))
    db.execute(Publish("one", messages, ProducerClaim("p", 1, 0)))
    with pytest.raises(StaleEpoch):
        db.execute(Publish("one", messages, ProducerClaim("p", 0, 1)))
    assert [info.next for info in db.execute(ListPartitions("one"))] == [2, 2]


def test_a_message_that_is_too_large(db: Database) -> None:
    db.execute(CreateTopic("one"))
    with pytest.raises(TooLarge):
        db.execute(Publish("one", (Outgoing(b"x"), Outgoing(bytes(limits.MESSAGE_BYTES_MAX + 1)))))
    assert db.execute(ListPartitions("one"))[0].next == 0


# -- consuming


def test_start_counts_for_the_first_consume_only(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5)
    assert offsets(db.execute(Consume("one", "late", start=StartPoint("latest")))) == []
    publish(db, "one", 1)
    assert offsets(db.execute(Consume("one", "late", start=StartPoint("earliest")))) == [5], "its place was stored then"
    assert offsets(db.execute(Consume("one", "third", start=StartPoint("offset", 3)))) == [3, 4, 5]
    assert offsets(db.execute(Consume("one", "third", start=StartPoint("offset", 0)))) == []


def test_without_a_group_the_start_counts_each_time(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5)
    for _ in range(2):
        delivery = db.execute(ReadTopic("one", start=StartPoint("offset", 2), limit=2))
        assert (offsets(delivery), delivery.next_offset, delivery.has_more, delivery.lease) == ([2, 3], 4, True, None)
    assert offsets(db.execute(ReadTopic("one", start=StartPoint("latest")))) == []


def test_an_offset_that_is_not_there(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5)
    for query in (
        ResetGroup("one", "g", StartPoint("offset", 6)),
        Consume("one", "g", start=StartPoint("offset", -1)),
        ReadTopic("one", start=StartPoint("offset", -1)),
    ):
        with pytest.raises(Invalid) as raised:
            db.execute(query)
        assert raised.value.code == "INVALID_OFFSET"
    assert db.execute(ListGroups("one")) == []


def test_an_offset_that_is_not_there_yet_means_what_comes_next(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5)
    for delivery in (
        db.execute(Consume("one", "g", start=StartPoint("offset", 12_345))),
        db.execute(ReadTopic("one", start=StartPoint("offset", 12_345))),
    ):
        assert (delivery.messages, delivery.next_offset, delivery.skipped) == ([], 5, 0)
    publish(db, "one", 1)
    assert offsets(db.execute(Consume("one", "g"))) == [5], "nothing is passed over"


def test_a_lease_of_a_group_that_was_dropped_is_none_of_the_next(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 3)
    old = db.execute(Consume("one", "g", consumer="ann")).lease
    db.execute(DropGroup("one", "g"))
    assert db.execute(Consume("one", "g", consumer="ann")).lease != old
    assert db.execute(Ack("one", "g", 2, consumer="ann", lease=old)).acked == 0


def test_very_many_that_failed_too_often_are_moved_in_steps(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_ENTRIES", 10)
    db.execute(CreateTopic("dead"))
    db.execute(CreateTopic("one", options=TopicOptions(max_attempts=1, dead_letter="dead")))
    publish(db, "one", 35)
    db.execute(Consume("one", "g", limit=34))
    db.execute(Nack("one", "g"))
    seen: list[int] = []
    for _ in range(5):
        delivery = db.execute(Consume("one", "g", limit=5))
        seen += offsets(delivery)
        assert all(message.attempt == 1 for message in delivery.messages)
        if not delivery.has_more:
            break
    assert seen == [34]
    assert db.execute(ListPartitions("dead"))[0].next == 34


def test_an_answer_holds_so_many_bytes_or_one_message(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5, size=1000)
    assert offsets(db.execute(Consume("one", "g", bytes_max=2500))) == [0, 1]
    delivery = db.execute(Consume("one", "g", bytes_max=10))
    assert (offsets(delivery), delivery.has_more) == ([2], True)
    assert offsets(db.execute(ReadTopic("one", bytes_max=10))) == [0]


def test_any_partition_that_has_something(db: Database, clock: ManualClock) -> None:
    db.execute(CreateTopic("one", 3))
    for partition in (1, 2):
        db.execute(Publish("one", (Outgoing(b"x", partition=partition),)))
    seen = {db.execute(Consume("one", "g", None, first=first, visibility_ms=1000)).partition for first in (0, 2)}
    assert seen == {1, 2}
    empty = db.execute(Consume("one", "g", None))
    assert (empty.messages, empty.wake_ms) == ([], clock.now_ms() + 1000)


def test_next_offset_of_an_empty_answer_is_the_groups_cursor(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 3)
    db.execute(Consume("one", "g"))
    delivery = db.execute(Consume("one", "g"))
    assert (delivery.messages, delivery.next_offset, delivery.has_more) == ([], 3, False)


def test_a_group_that_never_consumed_has_nothing_to_settle(db: Database) -> None:
    db.execute(CreateTopic("one"))
    for command in (Ack("one", "g", 0), Nack("one", "g"), Extend("one", "g")):
        with pytest.raises(Invalid) as raised:
            db.execute(command)
        assert raised.value.code == "NOT_DELIVERED"
    with pytest.raises(NotFound):
        db.execute(DropGroup("one", "g"))


@pytest.mark.parametrize(
    "command",
    [
        Consume("one", ""),
        Consume("one", "g" * 257),
        Consume("one", "g\n"),
        Consume("one", "g", consumer="c" * 257),
        Consume("one", "g", limit=0),
        Consume("one", "g", limit=limits.CONSUME_MESSAGES_MAX + 1),
        Consume("one", "g", visibility_ms=0),
        Consume("one", "g", visibility_ms=limits.VISIBILITY_MS_MAX + 1),
        Consume("one", "g", 1),
        Consume("one", "g", -1),
        Consume("one", "g", start=StartPoint("somewhere")),
    ],
)
def test_a_consume_that_is_wrong_changes_nothing(db: Database, command: Consume) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 1)
    with pytest.raises(Invalid):
        db.execute(command)
    assert db.execute(ListGroups("one")) == []


@pytest.mark.parametrize("lease", ["x", "-1", "1.5", "", "1", "1-", "1-2-3", "1-" + "9" * 20])
def test_a_lease_that_is_none(db: Database, lease: str) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 1)
    db.execute(Consume("one", "g"))
    with pytest.raises(Invalid):
        db.execute(Ack("one", "g", 0, lease=lease))
    assert db.execute(ListGroups("one"))[0].in_flight == 1


def test_a_reset_moves_a_group_and_takes_its_leases(db: Database, clock: ManualClock) -> None:
    db.execute(CreateTopic("one"))
    times = []
    for _ in range(6):
        clock.advance(10)
        times.append(clock.now_ms())
        publish(db, "one", 1)
    held = db.execute(Consume("one", "g", limit=4, consumer="ann"))
    for to, cursor in (
        (StartPoint("earliest"), 0),
        (StartPoint("latest"), 6),
        (StartPoint("offset", 2), 2),
        (StartPoint("timestamp", times[3]), 3),
        (StartPoint("timestamp", times[3] + 1), 4),
        (StartPoint("timestamp", 0), 0),
        (StartPoint("timestamp", times[5] + 1), 6),
    ):
        assert db.execute(ResetGroup("one", "g", to)).offsets == {0: cursor}
        (info,) = db.execute(ListGroups("one"))
        assert (info.cursor, info.in_flight) == (cursor, 0)
    assert db.execute(Ack("one", "g", 3, consumer="ann", lease=held.lease)).acked == 0
    assert db.execute(ResetGroup("one", "fresh", StartPoint("offset", 1), 0)).offsets == {0: 1}
    assert offsets(db.execute(Consume("one", "fresh", limit=1))) == [1]


def test_a_reset_of_all_partitions_moves_all_or_none(db: Database) -> None:
    db.execute(CreateTopic("one", 2))
    publish(db, "one", 3)
    assert db.execute(ResetGroup("one", "g", StartPoint("latest"))).offsets == {0: 3, 1: 0}
    with pytest.raises(Invalid):
        db.execute(ResetGroup("one", "g", StartPoint("offset", 2)))
    assert [info.cursor for info in db.execute(ListGroups("one"))] == [3, 0]


def test_a_message_that_failed_too_often_is_moved(db: Database, clock: ManualClock) -> None:
    db.execute(CreateTopic("dead", 2))
    db.execute(CreateTopic("one", options=TopicOptions(max_attempts=2, dead_letter="dead")))
    publish(db, "one", 3)
    for attempt in (1, 2):
        delivery = db.execute(Consume("one", "g", limit=2, visibility_ms=1000))
        assert [(message.offset, message.attempt) for message in delivery.messages] == [(0, attempt), (1, attempt)]
        clock.advance(1)
    assert offsets(db.execute(Consume("one", "g"))) == [2]
    letters = [message for partition in (0, 1) for message in db.execute(ReadTopic("dead", partition)).messages]
    assert sorted(message.envelope.payload for message in letters) == [b"0", b"1"]
    assert sorted(tuple(message.envelope.origin) for message in letters) == [
        ("one", 0, 0, "g", 2),
        ("one", 0, 1, "g", 2),
    ]
    assert db.execute(ListGroups("one"))[0].floor == 2, "they need no acknowledgement any more"
    with pytest.raises(InUse):
        db.execute(DropTopic("dead"))
    db.execute(AlterTopic("one", TopicOptions(max_attempts=None, dead_letter=None)))
    db.execute(DropTopic("dead"))


def test_there_may_be_only_so_many_groups(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_MAX", 2)
    db.execute(CreateTopic("one"))
    for name in ("a", "b"):
        db.execute(Consume("one", name))
    with pytest.raises(LimitExceeded):
        db.execute(Consume("one", "c"))
    db.execute(DropGroup("one", "a"))
    db.execute(Consume("one", "c"))


# -- retention


def test_retention_by_age(db: Database, clock: ManualClock) -> None:
    db.execute(CreateTopic("one", options=TopicOptions(retention_seconds=60)))
    publish(db, "one", 3)
    clock.advance(50)
    publish(db, "one", 2)
    clock.advance(15)
    db.sweep()
    (info,) = db.execute(ListPartitions("one"))
    assert (info.start, info.next) == (3, 5)
    assert db.metrics.messages_trimmed == 3
    clock.advance(60)
    db.sweep()
    assert db.execute(ListPartitions("one"))[0].start == 5
    assert db.execute(Publish("one", (Outgoing(b"x"),))).offsets == [(0, 5)], "offsets never go back"


def test_retention_by_bytes_of_each_partition(db: Database) -> None:
    db.execute(CreateTopic("one", 2, TopicOptions(retention_max_bytes=5_000)))
    for partition in (0, 1):
        db.execute(Publish("one", tuple(Outgoing(bytes(1000), partition=partition) for _ in range(10))))
    db.sweep()
    for info in db.execute(ListPartitions("one")):
        assert info.bytes <= 5_000 and info.next - info.start == 4
    db.execute(AlterTopic("one", TopicOptions(retention_max_bytes=10)))
    db.sweep()
    assert [info.next - info.start for info in db.execute(ListPartitions("one"))] == [1, 1], "the last one is kept"


def test_retention_that_overtakes_a_group(db: Database, clock: ManualClock) -> None:
    db.execute(CreateTopic("one", options=TopicOptions(retention_seconds=60)))
    publish(db, "one", 10)
    db.execute(Consume("one", "g", limit=4, consumer="ann", visibility_ms=120_000))
    clock.advance(61)
    publish(db, "one", 2)
    db.sweep()
    delivery = db.execute(Consume("one", "g", consumer="bob"))
    assert (offsets(delivery), delivery.skipped) == ([10, 11], 6)
    assert db.execute(Ack("one", "g", 3, consumer="ann")).acked == 4, "ann has them in her hands"
    assert db.execute(ListGroups("one"))[0].lost == 6


def test_more_than_one_step_of_retention(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ENTRIES", 7)
    db.execute(CreateTopic("one", options=TopicOptions(retention_max_bytes=100)))
    publish(db, "one", 100)
    db.sweep()
    (info,) = db.execute(ListPartitions("one"))
    assert info.bytes <= 100


# -- looking


def test_how_a_topic_is_described(db: Database) -> None:
    db.execute(CreateTopic("dead"))
    db.execute(CreateTopic("one", 2, TopicOptions(alias="uno", max_attempts=5, dead_letter="dead")))
    publish(db, "one", 4)
    db.execute(Consume("one", "g", limit=3, consumer="ann"))
    found = db.execute(DescribeTopic("uno"))
    assert (found.topic.name, found.dead_letter) == ("one", "dead")
    assert [(info.partition, info.start, info.next) for info in found.partitions] == [(0, 0, 4), (1, 0, 0)]
    ((info),) = found.groups
    assert (info.group, info.lag, info.in_flight, info.consumers) == ("g", 4, 3, ["ann"])
    assert found.routes == []


def test_a_partition_is_read_like_a_log(db: Database) -> None:
    db.execute(CreateTopic("one"))
    publish(db, "one", 5)
    run = db.execute(ReadPartition("one", 0, None, limits.MiB, 3))
    assert (run.position, [entry.position for entry in run.entries], run.next) == (0, [0, 1, 2], 3)
    assert db.execute(ReadPartition("one", 0, 3, limits.MiB, 9)).next == 5


def test_settings_that_name_other_topics_are_about_those_too() -> None:
    """Whoever was given some topics gets no message out of, or into, others by an alias or as dead letters."""
    options = TopicOptions(alias="app.a", dead_letter="app.secret", max_attempts=1)
    for command in (CreateTopic("app.mine", 1, options), AlterTopic("app.mine", options)):
        assert command.subjects() == ("topics/app.mine", "topics/app.a", "topics/app.secret")


def test_any_partition_has_its_start_from_the_first_consume_on(db: Database) -> None:
    db.execute(CreateTopic("one", 2))
    for partition in (0, 1):
        db.execute(Publish("one", (Outgoing(b"x", partition=partition),)))
    first = db.execute(Consume("one", "g", None, start=StartPoint("earliest")))
    assert first.has_more
    assert len(db.execute(Consume("one", "g", None, start=StartPoint("latest"))).messages) == 1
    db.execute(CreateTopic("two", 2))
    db.execute(Publish("two", (Outgoing(b"x", partition=0),)))
    db.execute(Publish("two", (Outgoing(b"x", partition=1),)))
    db.execute(ResetGroup("two", "g", StartPoint("earliest")))
    db.execute(ClearTopic("two"))
    db.execute(Publish("two", (Outgoing(b"x", partition=0),)))
    assert not db.execute(Consume("two", "g", None)).has_more, "what was cleared is not to come"


def test_large_messages_that_failed_too_often_are_moved_in_steps(db: Database) -> None:
    db.execute(CreateTopic("dead"))
    db.execute(CreateTopic("one", options=TopicOptions(max_attempts=1, dead_letter="dead")))
    for _ in range(6):
        db.execute(Publish("one", (Outgoing(bytes(200_000)),)))
    db.execute(Consume("one", "g", bytes_max=10**8))
    db.execute(Nack("one", "g"))
    db.execute(Consume("one", "g"))
    assert 0 < db.execute(ListPartitions("dead"))[0].next < 6
    while db.execute(Consume("one", "g")).has_more:
        pass
    assert db.execute(ListPartitions("dead"))[0].next == 6
    assert db.execute(ListGroups("one"))[0].lag == 0

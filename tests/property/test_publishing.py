"""Messages that are published by one batch, and read in parts: run together, they are those of one by one."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace
from tailrace import limits
from tailrace.clock import ManualClock
from tailrace.log import segments
from tailrace.log.entry import LOGS
from tailrace.runner import QueuedCommand, _Batch
from tailrace.streams.producer import PRODUCERS, ProducerClaim
from tailrace.topics import topic
from tailrace.topics.commands import AlterTopic, CreateTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.group import OFFSET, StartPoint
from tailrace.topics.queries import ReadTopic
from tailrace.topics.topic import PARTITIONS, Envelope, encode

OTHERS = (
    Publish("missing", (Outgoing(b"x"),)),
    Publish("one", (Outgoing(b"x", None, 1),)),
    Publish("one", (Outgoing(b"x", None, -1),)),
    Publish("one", (Outgoing(b"x" * (limits.MESSAGE_BYTES_MAX + 1)),)),
    Publish("one", (Outgoing(b"x"),), ProducerClaim("p", 0, 0)),
    Publish("one", (Outgoing(b"x"),), ProducerClaim("p", 0, 2)),
    Publish("three", (Outgoing(b"x"), Outgoing(b"y", b"key"))),
    AlterTopic("one", TopicOptions(alias="other")),
)
SINGLE = st.builds(
    lambda topic, payload, key, partition: Publish(topic, (Outgoing(payload, key, partition),)),
    st.sampled_from(("one", "uno", "three")),
    st.sampled_from((b"", b"a", b"bcd" * 100)),
    st.sampled_from((None, b"k", b"key-2", b"\xff")),
    st.sampled_from((None, None, 0)),
)
JOB = st.tuples(SINGLE | st.sampled_from(OTHERS), st.sampled_from(("ann", "ann", "bob")))


def run_in_one_batch(commands: list[tuple[Any, str]]) -> tuple[list[Any], list[Any], dict[int, list[Any]]]:
    """The outcomes, the rows and the entries of the notices of a batch."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tailrace.open(directory, clock=ManualClock(), housekeeping_s=None) as db,
    ):
        db.execute(CreateTopic("one", 1, TopicOptions(alias="uno")))
        db.execute(CreateTopic("three", 3))
        jobs = [QueuedCommand(command, by) for command, by in commands]
        batch = db._runner._prepare(_Batch(jobs))
        db._runner._commit(batch)
        assert batch.error is None
        outcomes = [(job.result, repr(job.error)) for job in jobs]
        with db._engine.reader() as reader:
            numbers = [log.id for log in reader.scan(LOGS)]
            rows: list[Any] = [list(reader.scan(table)) for table in (LOGS, PARTITIONS, PRODUCERS)]
            rows += [list(segments.scan(reader, number)) for number in numbers]
        noticed: dict[int, list[Any]] = {}
        for notice in batch.notices:
            noticed.setdefault(notice.log, []).extend(segments.entries(notice.item.segment))
        return outcomes, rows, noticed


@settings(max_examples=40)
@given(st.lists(JOB, min_size=2, max_size=12))
def test_messages_that_are_published_together_are_those_of_one_by_one(commands: list[tuple[Any, str]]) -> None:
    together = run_in_one_batch(commands)
    with mock.patch.object(Publish, "together", False):
        alone = run_in_one_batch(commands)
    assert together == alone


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: repr(other)[:60])
def test_one_that_is_not_single_among_single_messages(other: Any) -> None:
    single = (Publish("one", (Outgoing(b"abc"),)), "ann")
    test_messages_that_are_published_together_are_those_of_one_by_one.hypothesis.inner_test(  # type: ignore[attr-defined]
        [single, single, (other, "ann"), single, (other, "bob"), (single[0], "bob"), (single[0], "bob")]
    )


def test_single_messages_run_together() -> None:
    """Otherwise the tests above would compare nothing."""
    commands = [(Publish("one", (Outgoing(b"a"),)), by) for by in ("ann", "ann", "ann", "bob", "bob")]
    with mock.patch.object(Publish, "run", side_effect=AssertionError("it ran alone")):
        outcomes, _, _ = run_in_one_batch(commands[:3])
    assert [result.offsets for result, _ in outcomes] == [[(0, 0)], [(0, 1)], [(0, 2)]]
    _, rows, _ = run_in_one_batch(commands)
    assert [b"bob" in entry.body for entry in rows[3]] == [False] * 3 + [True] * 2


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.binary(max_size=12), min_size=1, max_size=9), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 400)), min_size=1, max_size=8),
)
def test_any_part_of_a_partition_is_read_as_it_was_published(
    batches: list[list[bytes]], reads: list[tuple[int, int, int]]
) -> None:
    published = [payload for batch in batches for payload in batch]
    with (
        tempfile.TemporaryDirectory() as directory,
        tailrace.open(directory, housekeeping_s=None) as db,
        mock.patch.object(topic, "READ_AHEAD", 5),
    ):
        db.execute(CreateTopic("t"))
        for batch in batches:
            db.execute(Publish("t", tuple(Outgoing(payload) for payload in batch)))
        for first, limit, bytes_max in reads:
            found = db.execute(ReadTopic("t", 0, StartPoint(OFFSET, first), limit, bytes_max))
            first = min(first, len(published))
            read = [(message.offset, message.envelope.payload) for message in found.messages]
            assert read == list(enumerate(published))[first : first + len(read)]
            assert found.count == len(read)
            assert found.next_offset == first + len(read)
            sizes = [len(encode(message.envelope)) for message in found.messages]
            assert len(read) == 1 or sum(sizes) <= bytes_max
            if first < len(published) and len(read) < min(limit, len(published) - first):
                following = Envelope(0, 0, 3, 1, None, published[first + len(read)], "system")
                assert read
                assert sum(sizes) + len(encode(following)) > bytes_max, "one more had room"

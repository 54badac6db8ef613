"""Ranges, moments and reach over logs of which a part is in cold storage; the cold cache is a dictionary."""

from __future__ import annotations

import itertools
import random

import pyarrow as pa
import pytest

from tailrace import Put
from tailrace.bulk import queries
from tailrace.bulk.entries import SCHEMA
from tailrace.bulk.queries import LogSelector
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Gone, Invalid, Trimmed
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.tables import change
from tailrace.topics.commands import CreateTopic, Outgoing, Publish
from tests.unit.test_cold_reads import DictCache, cache, clock, db, tier

__all__ = ["cache", "clock", "db"]

STREAM, TABLE, TOPIC = LogSelector("stream", "doc"), LogSelector("table", "orders"), LogSelector("topic", "news")


def entries(
    db: Database, which: LogSelector, first: int | None = None, until: int | None = None, bytes_max: int = 60
) -> pa.Table:
    """The entries of a range, in small batches."""
    found = db.execute(queries.plan(which, 0, first, until))
    batches, at = [], found.first
    while at < found.end:
        run = db.execute(queries.packed_entries(which, found.log, at, found.end, bytes_max))
        assert run.next > at, "it goes on"
        batches.append(run.entries)
        at = run.next
    return pa.Table.from_batches(batches, SCHEMA).combine_chunks()


def fill(db: Database, clock: ManualClock, which: LogSelector, count: int = 24) -> int:
    """Entries of all sizes and times; the number of the log."""
    if which is STREAM:
        db.execute(CreateStream("doc", "text/plain"))
    elif which is TOPIC:
        db.execute(CreateTopic("news"))
    else:
        db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
        db.create_table("other", partition_key="id", stream="KEYS_ONLY")
    for number in range(count):
        clock.advance(number % 3)
        if which is STREAM:
            db.execute(Append("doc", b"%03d" % number * (1 + number % 4), "text/plain"))
        elif which is TOPIC:
            db.execute(Publish("news", (Outgoing(b"m%d" % number),)))
        else:
            db.table("other").put({"id": str(number)})
            db.transact_write([Put("orders", {"id": f"{number}-{each}"}) for each in range(1 + number % 3)])
    return db.execute(queries.find_logs(which)).parts[0].log.id


@pytest.mark.parametrize("which", [STREAM, TABLE, TOPIC], ids=lambda which: which.kind)
@pytest.mark.parametrize("count", [1, 10, 24])
def test_ranges_over_cold_and_hot(
    db: Database, cache: DictCache, clock: ManualClock, which: LogSelector, count: int
) -> None:
    log = fill(db, clock, which)
    whole = entries(db, which)
    assert whole.num_rows == 24
    start = tier(db, cache, log, count)
    assert entries(db, which) == whole
    (part,) = db.execute(queries.find_logs(which)).parts
    assert (part.log.start, part.earliest) == (start, whole["position"][0].as_py())
    chance = random.Random(count)
    low, high = part.earliest, part.log.next
    for _ in range(10):
        cuts = [low, *sorted(chance.sample(range(low + 1, high), 4)), high]
        pieces = [entries(db, which, *bounds) for bounds in itertools.pairwise(cuts)]
        assert pa.concat_tables(pieces).combine_chunks() == whole
    assert cache.fetches


@pytest.mark.parametrize("which", [STREAM, TABLE, TOPIC], ids=lambda which: which.kind)
def test_moments_over_cold_and_hot(db: Database, cache: DictCache, clock: ManualClock, which: LogSelector) -> None:
    log = fill(db, clock, which)
    logged = entries(db, which).to_pylist()
    tier(db, cache, log, 10)
    for at_ms in range(logged[0]["at_ms"] - 1, logged[-1]["at_ms"] + 2):
        expected = next((entry["position"] for entry in logged if entry["at_ms"] >= at_ms), logged[-1]["next"])
        assert db.execute(queries.offsets_at(which, at_ms)) == {0: expected}


@pytest.mark.parametrize("which", [STREAM, TABLE, TOPIC], ids=lambda which: which.kind)
@pytest.mark.parametrize("records", [1, 4, 1000])
def test_reach_comes_to_the_end(
    db: Database, cache: DictCache, clock: ManualClock, which: LogSelector, records: int
) -> None:
    log = fill(db, clock, which)
    tier(db, cache, log, 10)
    (part,) = db.execute(queries.find_logs(which)).parts
    at, steps = part.earliest, 0
    while at < part.log.next:
        reached = db.execute(queries.advance(which, {0: at}, records))[0]
        assert at < reached <= part.log.next, "at least one entry further"
        at, steps = reached, steps + 1
    assert db.execute(queries.advance(which, {0: at}, records)) == {0: at}
    assert steps <= 24 and (records > 1 or steps >= 20)


@pytest.mark.parametrize("pieces", [1, 2, 5, 100])
def test_records_are_counted_and_cut_by_their_number(
    db: Database, cache: DictCache, clock: ManualClock, pieces: int
) -> None:
    log = fill(db, clock, TABLE)
    for number in range(500):  # sequences that the table has no part in
        db.table("other").put({"id": f"more-{number}"})
    db.table("orders").put({"id": "last"})
    logged = entries(db, TABLE).to_pylist()
    sizes = {entry["position"]: len(change.skimmed(entry["body"]).records) for entry in logged}

    def within(first: int, until: int) -> int:
        return sum(size for position, size in sizes.items() if first <= position < until)

    hot = tier(db, cache, log, 10)
    tail = logged[-1]["next"]
    for first, until in [(hot, tail), (0, tail), (hot + 5, hot + 20), (tail - 400, tail - 300), (tail, tail), (5, 5)]:
        found = db.execute(queries.CountRecords(TABLE, first, until, pieces))
        assert found.records == within(max(first, hot), until)
        assert (found.cuts[0], found.cuts[-1]) == (first, until)
        assert len(found.cuts) - 1 <= pieces
        if first < until:
            assert found.cuts == sorted(set(found.cuts))
        for low, high in itertools.pairwise(found.cuts):
            assert within(max(low, hot), high) <= -(-found.records // pieces) + max(sizes.values())


def test_two_records_among_many_sequences_are_two(db: Database, clock: ManualClock) -> None:
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    orders.put({"id": "1"})
    other = db.create_table("other", partition_key="id", stream="KEYS_ONLY")
    for number in range(1_000):
        other.put({"id": str(number)})
    orders.put({"id": "2"})
    (part,) = db.execute(queries.find_logs(TABLE)).parts
    assert part.log.next - part.earliest > 1_000
    assert db.execute(queries.CountRecords(TABLE, part.earliest, part.log.next, 8)).records == 2


def test_only_tables_are_counted(db: Database, clock: ManualClock) -> None:
    fill(db, clock, TOPIC)
    with pytest.raises(Invalid, match="is not a table"):
        db.execute(queries.CountRecords(TOPIC, 0, 5, 1))
    fill(db, clock, TABLE)
    with pytest.raises(Invalid, match="is greater than until=4"):
        db.execute(queries.CountRecords(TABLE, 5, 4, 1))


def test_below_the_earliest_and_beyond_the_tail(db: Database, cache: DictCache, clock: ManualClock) -> None:
    fill(db, clock, TABLE)
    (part,) = db.execute(queries.find_logs(TABLE)).parts
    with pytest.raises(Trimmed):
        db.execute(queries.plan(TABLE, 0, part.earliest - 1, None))
    with pytest.raises(Trimmed):
        db.execute(queries.advance(TABLE, {0: part.earliest - 1}, 1))
    db.table("other").put({"id": "later"})
    assert entries(db, TABLE, part.log.next + 1).num_rows == 0, "a sequence that another table has"
    with pytest.raises(Invalid, match="beyond the tail"):
        db.execute(queries.plan(TABLE, 0, part.log.next + 2, None))


def test_a_fork_has_what_it_shares_and_its_own(db: Database, clock: ManualClock) -> None:
    fill(db, clock, STREAM, 6)
    shared = entries(db, STREAM).to_pylist()
    at = shared[3]["position"]
    db.execute(CreateStream("fork", "text/plain", fork=Fork("doc", at)))
    db.execute(Append("fork", b"own", "text/plain"))
    fork = LogSelector("stream", "fork")
    found = entries(db, fork).to_pylist()
    assert [entry["body"] for entry in found] == [entry["body"] for entry in shared[:3]] + [b"own"]
    assert {entry["log"] for entry in found} == {db.execute(queries.find_logs(fork)).parts[0].log.id}
    steps = [0]
    while steps[-1] < at + 3:
        steps.append(db.execute(queries.advance(fork, {0: steps[-1]}, 2))[0])
    assert sorted(set(steps)) == steps


def test_a_log_that_was_deleted_is_not_read_on(db: Database, clock: ManualClock) -> None:
    log = fill(db, clock, STREAM)
    db.execute(DeleteStream("doc"))
    with pytest.raises(Gone, match="deleted"):
        db.execute(queries.packed_entries(STREAM, log, 0, 10, 10))

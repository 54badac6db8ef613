"""History that was trimmed from the hot log is read through the same positions, by every query that reads a log.

The cold cache here is a dictionary; Delta tables are tested in tests/unit/cold, and the whole path in
tests/integration.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace import Put, limits
from tailrace.access import Permission
from tailrace.clock import ManualClock
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.errors import Damaged, Invalid, Trimmed, Unavailable
from tailrace.jobs.stage import Target
from tailrace.jobs.tiering import AttachTier, DetachTier, MoveTiered
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.cold import COLD_RANGES, ColdMiss, ColdRange
from tailrace.log.entry import LOGS, Entry
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream, Fork
from tailrace.streams.queries import DescribeStream, ReadStream
from tailrace.tables.change_info import DescribeChangeStream, FindStreamBounds
from tailrace.tables.change_reading import ReadChanges, ReadEntries
from tailrace.tables.change_trimming import AlterRetention, PruneStream
from tailrace.tables.cursors import ListCursors, SaveCursor
from tailrace.topics.commands import ClearTopic, CreateTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, ResetGroup
from tailrace.topics.group import EARLIEST, OFFSET, TIMESTAMP, StartPoint
from tailrace.topics.queries import DescribeTopic, ReadPartition, ReadTopic
from tests.support.patience import AT_ONCE_S, PATIENCE_S

RUN = 3  # entries that the cold cache fetches at once


class DictCache:
    """Cold storage in memory: `kept` is what is durable there, `held` what was fetched."""

    url = "memory:"

    def __init__(self) -> None:
        self.kept: dict[int, list[Entry]] = {}
        self.held: dict[tuple[int, int], list[Entry]] = {}
        self.times: dict[int, int] = {}
        self.fetches = 0
        self.threads: set[int] = set()

    def segment(self, tier: ColdRange, position: int) -> list[Entry]:
        for entries in self.held.values():
            for number, entry in enumerate(entries):
                if entry.log == tier.log and entry.position <= position < entry.next:
                    return entries[number:]
        raise ColdMiss(tier, position)

    def fetch(self, missing: ColdMiss) -> None:
        self.fetches += 1
        self.threads.add(threading.get_ident())
        entries = [entry for entry in self.kept[missing.tier.log] if entry.next > missing.position][:RUN]
        if missing.at_ms is not None:
            since = (entry.position for entry in self.kept[missing.tier.log] if entry.at_ms >= missing.at_ms)
            self.times[missing.at_ms] = next(since, missing.tier.tiered)
            return
        while len(self.held) > 1:  # almost the smallest cache there can be: a fetch crowds out the one before the last
            del self.held[next(iter(self.held))]
        self.held[missing.tier.log, missing.position] = entries

    def first_since(self, tier: ColdRange, at_ms: int) -> int:
        if at_ms not in self.times:
            raise ColdMiss(tier, tier.start, at_ms)
        return self.times[at_ms]


class All(Query[list[Entry]], frozen=True):
    log: int

    def run(self, reader: Reader) -> list[Entry]:
        return list(segments.scan(reader, self.log))


class Tiered(Command[None], frozen=True):
    """Say that a log is in cold storage up to `tiered`; with `trim`, let the hot part start there too."""

    permission = Permission.ADMIN

    log: int
    tiered: int
    trim: bool = True

    def run(self, tx: Tx) -> None:
        log = tx.get(LOGS, self.log)
        assert log is not None
        tx.put(COLD_RANGES, ColdRange(log.id, log.start, self.tiered, "somewhere"))
        if self.trim:
            logs.trim(tx, log, self.tiered)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache() -> DictCache:
    return DictCache()


@pytest.fixture
def db(tmp_path: Path, cache: DictCache, clock: ManualClock) -> Iterator[Database]:
    with Database(SqliteEngine(tmp_path), clock=clock, housekeeping_s=None, cold=cache) as db:  # type: ignore[arg-type]
        yield db


def tier(db: Database, cache: DictCache, log: int, count: int | None = None, *, trim: bool = True) -> int:
    """Put the first `count` entries (None: all) into cold storage and let them go; where the hot part starts."""
    entries = db.execute(All(log))[:count]
    cache.kept[log] = entries
    db.execute(Tiered(log, entries[-1].next, trim))
    db.sweep()
    return entries[-1].next


# -- streams


def pages(db: Database, path: str, position: int | None = None, bytes_max: int = 1 << 20) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while True:
        piece = db.execute(ReadStream(path, position, bytes_max))
        found += [(entry.position, entry.body) for entry in piece.page.entries]
        position = piece.page.next
        if piece.page.at_tail:
            return found


@pytest.fixture
def stream(db: Database) -> int:
    db.execute(CreateStream("doc", "text/plain"))
    for number in range(20):
        db.execute(Append("doc", b"%03d " % number * (number + 1), "text/plain"))
    return db.execute(DescribeStream("doc")).log.id


@pytest.mark.parametrize("count", [1, 7, 20])
@pytest.mark.parametrize("bytes_max", [1, 50, 1 << 20])
def test_a_stream_reads_as_before_it_was_trimmed(
    db: Database, cache: DictCache, stream: int, count: int, bytes_max: int
) -> None:
    before = pages(db, "doc")
    start = tier(db, cache, stream, count)
    assert [entry.position >= start for entry in db.execute(All(stream))] == [True] * (20 - count)
    assert pages(db, "doc", None, bytes_max) == before
    for position, _ in before:
        assert pages(db, "doc", position, bytes_max) == [each for each in before if each[0] >= position]
    assert db.execute(DescribeStream("doc")).earliest == 0
    assert cache.fetches


def test_a_read_from_inside_a_cold_message_begins_with_that_message(
    db: Database, cache: DictCache, stream: int
) -> None:
    before = pages(db, "doc")
    tier(db, cache, stream, 10)
    starts = [position for position, _ in before]
    for position in range(db.execute(DescribeStream("doc")).log.next):
        covering = max(start for start in starts if start <= position)
        found = db.execute(ReadStream("doc", position))
        assert (found.position, found.page.entries[0].position) == (covering, covering)


def test_what_is_not_in_cold_storage_is_not_trimmed(db: Database, cache: DictCache, stream: int) -> None:
    start = tier(db, cache, stream, 5)
    db.execute(Forgetful(stream, 10**6))
    assert db.execute(DescribeStream("doc")).log.start == start


class Forgetful(Command[None], frozen=True):
    """What retention does, whatever it has found."""

    permission = Permission.ADMIN
    log: int
    position: int

    def run(self, tx: Tx) -> None:
        log = tx.get(LOGS, self.log)
        assert log is not None
        logs.trim(tx, log, self.position)


def test_retention_of_a_stream_waits_for_cold_storage(db: Database, cache: DictCache, clock: ManualClock) -> None:
    db.execute(CreateStream("kept", "text/plain", max_bytes=10))
    for number in range(10):
        db.execute(Append("kept", b"message %d" % number, "text/plain"))
    log = db.execute(DescribeStream("kept")).log.id
    before = pages(db, "kept")
    start = tier(db, cache, log, 4, trim=False)
    db.sweep()
    assert db.execute(DescribeStream("kept")).log.start == start, (
        "trimmed as far as cold storage reaches, and no further"
    )
    assert pages(db, "kept") == before


def test_below_what_cold_storage_has_it_says_so(db: Database, cache: DictCache, stream: int) -> None:
    tier(db, cache, stream, 10)
    first = cache.kept[stream][4].position
    db.execute(Forgotten(stream, first))
    with pytest.raises(Trimmed) as raised:
        db.execute(ReadStream("doc", 0))
    assert raised.value.earliest == first
    assert pages(db, "doc")[0][0] == first == db.execute(DescribeStream("doc")).earliest


class Forgotten(Command[None], frozen=True):
    permission = Permission.ADMIN
    log: int
    position: int

    def run(self, tx: Tx) -> None:
        log = tx.get(LOGS, self.log)
        assert log is not None
        logs.forget(tx, log, self.position)


def test_a_fork_has_what_was_hot_and_a_clear_end(db: Database, cache: DictCache, stream: int) -> None:
    start = tier(db, cache, stream, 10)
    db.execute(CreateStream("branch", fork=Fork("doc", start + 44)))
    db.execute(Append("branch", b"its own", "text/plain"))
    assert db.execute(DescribeStream("branch")).earliest == start
    assert pages(db, "branch")[0][0] == start
    for position in (0, start - 1):
        with pytest.raises(Trimmed) as raised:
            db.execute(ReadStream("branch", position))
        assert raised.value.earliest == start


def test_a_fork_that_was_trimmed_says_so_although_its_source_has_it(db: Database, stream: int) -> None:
    before = pages(db, "doc")
    db.execute(CreateStream("branch", fork=Fork("doc", before[10][0])))
    db.execute(Append("branch", b"its own", "text/plain"))
    branch = db.execute(DescribeStream("branch")).log
    db.execute(Forgetful(branch.id, branch.next))
    with pytest.raises(Trimmed):
        db.execute(ReadStream("branch", before[3][0]))


def test_what_a_tiered_fork_shares_is_not_trimmed(db: Database, cache: DictCache, stream: int) -> None:
    before = pages(db, "doc")
    db.execute(CreateStream("branch", fork=Fork("doc", before[10][0])))
    db.execute(Append("branch", b"its own", "text/plain"))
    branch = db.execute(DescribeStream("branch")).log
    (mark,) = db.execute(AttachTier(Target("streams", "branch")))
    assert mark.start == branch.base, "only its own entries go to cold storage"
    db.execute(MoveTiered(mark.place, 1, {branch.id: (mark.start, branch.next)}))
    db.execute(Forgetful(branch.id, branch.next))
    assert pages(db, "branch") == [*before[:10], (before[10][0], b"its own")]


def test_attached_again_it_goes_on_at_its_mark(db: Database, cache: DictCache, stream: int) -> None:
    entries = db.execute(All(stream))
    doc = Target("streams", "doc")
    (mark,) = db.execute(AttachTier(doc))
    cache.kept[stream] = entries
    db.execute(MoveTiered(mark.place, 1, {stream: (0, entries[4].next)}))
    db.execute(DetachTier(doc))
    (again,) = db.execute(AttachTier(doc))
    assert (again.start, again.tiered) == (0, entries[4].next)
    db.execute(Forgetful(stream, entries[-1].next))
    assert db.execute(DescribeStream("doc")).log.start == entries[4].next, "what is not in cold storage stays"


# -- tables


@pytest.fixture
def orders(db: Database) -> int:
    table = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    other = db.create_table("other", partition_key="id", stream="KEYS_ONLY")
    for number in range(15):
        table.put({"id": f"o-{number % 4}", "n": number})
        other.put({"id": str(number)})  # so that sequences have gaps
    for number in range(4):
        table.put({"id": f"b-{number}"})
    db.batch_write([Put("orders", {"id": f"t-{number}"}) for number in range(5)])  # several records, one transaction
    return db.execute(DescribeChangeStream("orders")).log.id


def changes(db: Database, after: int | None = None, limit: int = 1000) -> list[Any]:
    found: list[Any] = []
    while True:
        page = db.execute(ReadChanges("orders", after, limit))
        found += page.records
        after = page.after
        if not page.more:
            return found


@pytest.mark.parametrize("count", [1, 9, 20])
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_changes_read_as_before_they_were_trimmed(
    db: Database, cache: DictCache, orders: int, count: int, limit: int
) -> None:
    before, info = changes(db), db.execute(DescribeChangeStream("orders"))
    tier(db, cache, orders, count)
    assert changes(db, None, limit) == before
    for sequence in range(before[0].sequence, before[-1].sequence + 1):
        assert changes(db, sequence, limit) == [record for record in before if record.sequence > sequence]
    after = db.execute(DescribeChangeStream("orders"))
    assert (after.oldest, after.latest, after.latest_index, after.count, after.bytes) == (
        info.oldest, info.latest, info.latest_index, info.count, info.bytes,
    )  # fmt: skip
    assert db.execute(ReadEntries("orders")).position == info.log.start


def test_embedded_changes_and_sql_reach_cold_history(db: Database, cache: DictCache, orders: int) -> None:
    table = db.table("orders")
    before, rows = list(table.changes(limit=1000)), db.sql("SELECT count(*) AS n FROM changes('orders')").rows
    tier(db, cache, orders, 12)
    found: list[Any] = []
    while len(found) < len(before):
        found += table.changes(after=found[-1].sequence if found else None, limit=1000)
    assert found == before
    assert db.sql("SELECT count(*) AS n FROM changes('orders')").rows == rows


def test_a_cursor_in_cold_history_is_not_cut_off(db: Database, cache: DictCache, orders: int) -> None:
    before = changes(db)
    db.execute(SaveCursor("orders", "slow", before[2].sequence))
    lag = db.execute(ListCursors("orders"))[0].lag
    db.execute(AlterRetention("orders", max_count=3))
    tier(db, cache, orders, 10, trim=False)
    db.sweep()
    (cursor,) = db.execute(ListCursors("orders"))
    assert not cursor.cut_off and not cursor.lost
    assert cursor.lag == lag
    assert changes(db, cursor.after) == before[3:]


def test_what_a_cursor_loses_by_pruning_is_counted_in_cold_history_too(
    db: Database, cache: DictCache, orders: int
) -> None:
    before = changes(db)
    db.execute(SaveCursor("orders", "slow", before[1].sequence))
    tier(db, cache, orders, 10)
    db.execute(PruneStream("orders", before[5].sequence))
    (cursor,) = db.execute(ListCursors("orders"))
    assert cursor.cut_off and cursor.lost == 4


def test_who_follows_the_hot_end_needs_no_cold_storage(db: Database, cache: DictCache, orders: int) -> None:
    tier(db, cache, orders, 10)
    state = db.execute(FindStreamBounds("orders"))
    assert (state.earliest, state.enabled) == (cache.kept[orders][0].position, True)
    assert not db.execute(ReadEntries("orders", None, state.log.next)).entries
    assert cache.fetches == 0


def test_pruning_forgets_cold_history_too(db: Database, cache: DictCache, orders: int) -> None:
    before = changes(db)
    tier(db, cache, orders, 10)
    pruned = db.execute(PruneStream("orders", before[3].sequence))
    assert pruned.records == 4
    assert changes(db) == before[4:]
    with pytest.raises(Trimmed):
        db.execute(ReadChanges("orders", before[0].sequence))


# -- topics


@pytest.fixture
def events(db: Database, clock: ManualClock) -> int:
    db.execute(CreateTopic("events", 1, TopicOptions()))
    for number in range(20):
        clock.advance(1000)
        db.execute(Publish("events", (Outgoing(b"m%d" % number),)))
    return db.execute(DescribeTopic("events")).partitions[0].log


def consumed(db: Database, group: str, start: StartPoint = StartPoint(), limit: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while True:
        delivery = db.execute(Consume("events", group, 0, start, limit))
        if not delivery.messages:
            return found
        found += [message.envelope.payload for message in delivery.messages]
        db.execute(Ack("events", group, delivery.messages[-1].offset))


@pytest.mark.parametrize("count", [1, 9, 20])
def test_messages_are_consumed_as_before_they_were_trimmed(
    db: Database, cache: DictCache, events: int, count: int
) -> None:
    before = consumed(db, "early")
    half = db.execute(Consume("events", "half", 0, StartPoint(), 5))
    tier(db, cache, events, count)
    assert consumed(db, "late", StartPoint(EARLIEST)) == before
    assert consumed(db, "middle", StartPoint(OFFSET, 3)) == before[3:]
    db.execute(Ack("events", "half", half.messages[-1].offset))
    assert consumed(db, "half") == before[5:], "a group goes on where it was, and nothing counts as lost"
    db.execute(ResetGroup("events", "late", StartPoint(OFFSET, 2)))
    assert consumed(db, "late") == before[2:]
    described = db.execute(DescribeTopic("events"))
    assert described.partitions[0].start == 0
    assert [group.lost for group in described.groups] == [0] * len(described.groups)


def test_a_time_in_cold_history_is_found(db: Database, cache: DictCache, events: int) -> None:
    times = [entry.at_ms for entry in db.execute(All(events))]
    tier(db, cache, events, 12)
    for number in (0, 1, 5, 11, 12, 19):
        found = db.execute(ReadTopic("events", 0, StartPoint(TIMESTAMP, times[number]), 1))
        assert found.messages[0].offset == number
    assert not db.execute(ReadTopic("events", 0, StartPoint(TIMESTAMP, times[-1] + 1), 1)).messages


def test_a_partition_reads_as_before_it_was_trimmed(db: Database, cache: DictCache, events: int) -> None:
    before = [entry.body for entry in db.execute(All(events))]
    tier(db, cache, events, 11)
    found: list[bytes] = []
    position = None
    while len(found) < len(before):
        run = db.execute(ReadPartition("events", 0, position, 1 << 20, 4))
        found += [entry.body for entry in run.entries]
        position = run.next
    assert found == before


def test_clearing_a_topic_clears_what_is_cold(db: Database, cache: DictCache, events: int) -> None:
    tier(db, cache, events, 11)
    assert db.execute(ClearTopic("events")) == 20
    assert consumed(db, "late", StartPoint(EARLIEST)) == []


def test_retention_of_a_topic_waits_for_cold_storage(db: Database, cache: DictCache, clock: ManualClock) -> None:
    db.execute(CreateTopic("events", 1, TopicOptions(retention_seconds=5)))
    for number in range(8):
        db.execute(Publish("events", (Outgoing(b"m%d" % number),)))
    log = db.execute(DescribeTopic("events")).partitions[0].log
    tier(db, cache, log, 3, trim=False)
    clock.advance(60_000)
    db.sweep()
    assert [entry.position for entry in db.execute(All(log))] == [3, 4, 5, 6, 7]
    assert len(consumed(db, "late", StartPoint(EARLIEST))) == 8


def test_redelivery_over_much_of_cold_history_needs_little_of_it_at_once(
    db: Database, cache: DictCache, events: int
) -> None:
    for _ in range(20):  # each message a lease of its own, all of which run out
        db.execute(Consume("events", "slow", 0, StartPoint(EARLIEST), 1, "c", 1000))
    tier(db, cache, events, 20)
    db.clock.advance(60_000)  # type: ignore[attr-defined]
    found: list[bytes] = []
    while len(found) < 20:
        delivery = db.execute(Consume("events", "slow", 0, StartPoint(), 20, "c"))
        assert delivery.messages
        found += [message.envelope.payload for message in delivery.messages]
    assert sorted(found) == sorted(b"m%d" % number for number in range(20))


def test_a_damaged_message_in_cold_storage_stops_no_writer(db: Database, cache: DictCache, events: int) -> None:
    tier(db, cache, events, 10)
    cache.kept[events][0] = msgspec.structs.replace(cache.kept[events][0], body=b"\xc1 no message")
    with pytest.raises(Damaged, match="offset 0"):
        db.execute(Consume("events", "group", 0, StartPoint(EARLIEST)))
    db.execute(Publish("events", (Outgoing(b"writes go on"),)))


# -- who waits


def test_the_event_loop_never_fetches(db: Database, cache: DictCache, stream: int, events: int) -> None:
    before = pages(db, "doc")
    tier(db, cache, stream, 10)
    tier(db, cache, events, 10)

    async def read() -> tuple[Any, Any, int]:
        piece = await db.aexecute(ReadStream("doc"))
        delivery = await db.aexecute(Consume("events", "group", 0, StartPoint(EARLIEST), 2))
        return piece, delivery, threading.get_ident()

    piece, delivery, thread = asyncio.run(read())
    assert [(entry.position, entry.body) for entry in piece.page.entries] == before[:RUN]
    assert [message.envelope.payload for message in delivery.messages] == [b"m0", b"m1"]
    assert cache.fetches == 2 and thread not in cache.threads


class Stuck:
    """Lets the fetches of a cache hang until they are let go; none may be in this thread, which is the loop's."""

    def __init__(self, cache: DictCache) -> None:
        self._home = threading.get_ident()
        self.let_go = threading.Event()
        self._hanging = threading.Semaphore(0)
        self._one = threading.Lock()
        self._fetch = cache.fetch
        cache.fetch = self.fetch  # type: ignore[method-assign]

    def fetch(self, missing: ColdMiss) -> None:
        assert threading.get_ident() != self._home, "the event loop waits for cold storage"
        self._hanging.release()
        assert self.let_go.wait(PATIENCE_S)
        with self._one:
            self._fetch(missing)

    def until(self, count: int) -> None:
        """Wait until so many hang."""
        for _ in range(count):
            assert self._hanging.acquire(timeout=PATIENCE_S), "fewer fetches hang"


async def execute(db: Database, ask: Query[Any] | Command[Any]) -> Any:
    return await db.aexecute(ask)


def test_hot_readers_and_writers_go_on_while_all_cold_fetches_hang(
    db: Database, cache: DictCache, stream: int, events: int
) -> None:
    before = pages(db, "doc")
    start = tier(db, cache, stream, 10)
    tier(db, cache, events, 10)
    stuck = Stuck(cache)
    count = limits.COLD_THREADS + 40  # more than the threads of the loop's own pool

    async def scenario() -> None:
        cold_reads = [asyncio.ensure_future(execute(db, ReadStream("doc"))) for _ in range(count)]
        cold_commands = [
            asyncio.ensure_future(execute(db, Consume("events", f"g{number}", 0, StartPoint(EARLIEST), 2)))
            for number in range(count)
        ]
        try:
            async with asyncio.timeout(AT_ONCE_S):
                await asyncio.to_thread(stuck.until, limits.COLD_THREADS)
                for _ in range(3):
                    piece = await db.aexecute(ReadStream("doc", start))
                    assert [(entry.position, entry.body) for entry in piece.page.entries] == before[10:]
                    assert (
                        await asyncio.to_thread(db.execute, ReadStream("doc", start))
                    ).page.entries == piece.page.entries
                    delivery = await db.aexecute(Consume("events", "hot", 0, StartPoint(OFFSET, 10), 1))
                    assert [message.offset for message in delivery.messages] == [10]
                    await db.aexecute(Ack("events", "hot", 10))
                    await db.aexecute(ResetGroup("events", "hot", StartPoint(OFFSET, 10)))
                    await db.aexecute(Publish("events", (Outgoing(b"writes go on"),)))
            assert not any(each.done() for each in (*cold_reads, *cold_commands))
        finally:
            stuck.let_go.set()
        for piece in await asyncio.gather(*cold_reads):
            assert [(entry.position, entry.body) for entry in piece.page.entries] == before[:RUN]
        for delivery in await asyncio.gather(*cold_commands):
            assert [message.envelope.payload for message in delivery.messages] == [b"m0", b"m1"]

    asyncio.run(scenario())


def test_when_too_many_wait_for_cold_storage_the_next_is_refused(
    db: Database, cache: DictCache, stream: int, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "COLD_WAITING_MAX", limits.COLD_THREADS + 2)
    start = tier(db, cache, stream, 10)
    tier(db, cache, events, 10)
    stuck = Stuck(cache)

    async def scenario() -> None:
        waiting = [asyncio.ensure_future(execute(db, ReadStream("doc"))) for _ in range(limits.COLD_WAITING_MAX)]
        try:
            await asyncio.to_thread(stuck.until, limits.COLD_THREADS)
            async with asyncio.timeout(AT_ONCE_S):
                for ask in (ReadStream("doc"), Consume("events", "group", 0, StartPoint(EARLIEST))):
                    with pytest.raises(Unavailable, match="wait for cold storage already") as refused:
                        await execute(db, ask)
                    assert refused.value.code == "COLD_BUSY"
                assert (await db.aexecute(ReadStream("doc", start))).page.entries
        finally:
            stuck.let_go.set()
        await asyncio.gather(*waiting)
        assert (await db.aexecute(Consume("events", "group", 0, StartPoint(EARLIEST)))).messages
        for _ in range(2 * limits.COLD_WAITING_MAX):  # those that came back have made room
            cache.held.clear()
            assert (await execute(db, ReadStream("doc"))).page.entries

    asyncio.run(scenario())


def test_a_failed_fetch_is_reported_to_its_caller(db: Database, cache: DictCache, stream: int, events: int) -> None:
    tier(db, cache, stream, 10)
    tier(db, cache, events, 10)

    def broken(missing: ColdMiss) -> None:
        raise Invalid("the file part-1.parquet is gone")

    cache.fetch = broken  # type: ignore[method-assign]
    with pytest.raises(Invalid, match=r"part-1\.parquet"):
        db.execute(ReadStream("doc"))
    with pytest.raises(Invalid, match=r"part-1\.parquet"):
        db.execute(Consume("events", "group", 0, StartPoint(EARLIEST)))

    async def read() -> None:
        for ask in (ReadStream("doc"), Consume("events", "group", 0, StartPoint(EARLIEST))):
            with pytest.raises(Invalid, match=r"part-1\.parquet"):
                await db.aexecute(ask)

    asyncio.run(read())
    db.execute(Append("doc", b"writes go on", "text/plain"))


def test_without_cold_storage_it_says_so(tmp_path: Path) -> None:
    with Database(SqliteEngine(tmp_path), housekeeping_s=None) as db:
        db.execute(CreateStream("doc", "text/plain"))
        for _ in range(3):
            db.execute(Append("doc", b"x", "text/plain"))
        db.execute(Tiered(db.execute(DescribeStream("doc")).log.id, 2))
        with pytest.raises(Invalid, match="opened without"):
            db.execute(ReadStream("doc"))


def test_entries_asks_for_what_is_there(db: Database, cache: DictCache, stream: int) -> None:
    class Cold(Query[list[int]], frozen=True):
        def run(self, reader: Reader) -> list[int]:
            log = reader.get(LOGS, stream)
            assert log is not None
            return [entry.position for entry in cold.entries(reader, log, 0)]

    tier(db, cache, stream, 3)
    assert db.execute(Cold()) == [entry.position for entry in cache.kept[stream]]

"""History in cold storage that is forgotten, compacted, lost and damaged, with real files in a real directory.

What Spark's executors do is done here by the same functions, in this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.bulk import queries
from tailrace.bulk.queries import LogSelector
from tailrace.check import check_database
from tailrace.client import Client
from tailrace.clock import ManualClock
from tailrace.cold import cache as cold_cache
from tailrace.cold import compacting, reading
from tailrace.cold.reading import ColdListing
from tailrace.cold.store import Store
from tailrace.database import Database
from tailrace.errors import Corrupt, Error, Invalid, NotFound, Trimmed
from tailrace.jobs.queries import ListCold
from tailrace.jobs.tiering import ForgetCold
from tailrace.log.cold import ColdRange
from tailrace.streams.commands import Append, CreateStream, Fork
from tailrace.streams.queries import ReadStream
from tailrace.tables.change_reading import ReadEntries
from tailrace.tables.change_trimming import AlterRetention, PruneStream
from tailrace.topics.commands import ClearTopic, CreateTopic, TopicOptions
from tailrace.topics.group import TIMESTAMP, StartPoint
from tailrace.topics.queries import ReadPartition, ReadTopic
from tests.support.cold import Hot, Trim, store_of, tier
from tests.unit.bulk.test_queries import STREAM, TABLE, TOPIC, entries, fill
from tests.unit.threaded import Served

KINDS = pytest.mark.parametrize("which", [STREAM, TABLE, TOPIC], ids=lambda which: which.kind)
Rows = list[dict[str, Any]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as opened:
        yield opened
    assert check_database(data_dir).findings == []


def trim(db: Database, log: int) -> None:
    """Let the hot log go as far as it may, as retention would that keeps nothing."""
    db.execute(Trim(log, 10**12))
    db.sweep()


def tier_of(db: Database, log: int) -> ColdRange:
    (found,) = [each.tier for place in db.execute(ListCold()) for each in place.logs if each.tier.log == log]
    return found


def clear_cold_cache(db: Database) -> None:
    """Let nothing be remembered of what was read from cold storage."""
    assert db.cold is not None and db.cold._cache is not None
    db.cold._cache.clear()


def all_entries(db: Database, which: LogSelector) -> Rows:
    """All entries that can be read, as bulk readers see them."""
    found: Rows = entries(db, which, bytes_max=1 << 20).to_pylist()
    return found


def own(db: Database, which: LogSelector, position: int | None = None) -> list[int]:
    """The positions of all entries from one on (None: the earliest), by the kind's own reader."""
    found: list[int] = []
    while True:
        if which is STREAM:
            page = db.execute(ReadStream("doc", position)).page
            got, position, end = page.entries, page.next, page.tail
        elif which is TABLE:
            changes = db.execute(ReadEntries("orders", None, position))
            got, end = changes.entries, changes.log.next
            position = got[-1].next if got else end
        else:
            run = db.execute(ReadPartition("news", 0, position, 1 << 20, 1000))
            got, position, end = run.entries, run.next, run.log.next
        found += [entry.position for entry in got]
        if position >= end:
            return found


def check_moments(db: Database, which: LogSelector, rows: Rows, end: int, *, every: int = 1) -> None:
    """Of every moment around these entries, the first offset is the right one."""
    first_ms, last_ms = (rows[0]["at_ms"], rows[-1]["at_ms"]) if rows else (0, 0)
    for at_ms in (0, *range(first_ms - 2000, last_ms + 2000, every * 500), 10**15):
        expected = next((row["position"] for row in rows if row["at_ms"] >= at_ms), end)
        assert db.execute(queries.offsets_at(which, at_ms)) == {0: expected}, at_ms
        if which is TOPIC:
            messages = db.execute(ReadTopic("news", 0, StartPoint(TIMESTAMP, at_ms), 1)).messages
            assert [each.offset for each in messages] == ([expected] if expected < end else []), at_ms


# -- where a moment lies


@KINDS
def test_moments_in_history_that_is_compacted_and_forgotten(
    db: Database, clock: ManualClock, which: LogSelector
) -> None:
    log = fill(db, clock, which)
    rows = all_entries(db, which)
    end = rows[-1]["next"]
    tier(db, which, 8, files=4)
    tier(db, which, 6, files=3)
    check_moments(db, which, rows, end)
    assert db.metrics.cold_reads == 0, "all of it is hot still"
    trim(db, log)
    assert [entry.position for entry in db.execute(Hot(log))] == [row["position"] for row in rows[14:]]
    check_moments(db, which, rows, end, every=2)
    assert db.metrics.cold_reads > 5
    store, place = store_of(db), tier_of(db, log).place
    assert compacting.compact(store, place).files_before == 7
    assert len(compacting.vacuum(store, place, hours=0)) == 7
    check_moments(db, which, rows, end)  # half of them were looked up before, half are now
    for kept in (3, 4, 9, 14):
        assert db.execute(ForgetCold(place, {log: rows[kept]["position"]})) == {log: rows[kept]["position"]}
        check_moments(db, which, rows[kept:], end)  # what was looked up before has moved on
        clear_cold_cache(db)
        check_moments(db, which, rows[kept:], end)  # the files have what is forgotten, and nobody is led there
        compacting.forget(store, place, {log: rows[kept]["position"]})
        compacting.vacuum(store, place, hours=0)
        clear_cold_cache(db)
        check_moments(db, which, rows[kept:], end)
        assert all_entries(db, which) == rows[kept:]


def test_moments_in_history_that_is_pruned(db: Database, clock: ManualClock) -> None:
    log = fill(db, clock, TABLE)
    rows = all_entries(db, TABLE)
    tier(db, TABLE, 14, files=4)
    trim(db, log)
    check_moments(db, TABLE, rows, rows[-1]["next"])
    for kept in (5, 14, 17):  # in cold history, all of it, and a part of the hot
        db.execute(PruneStream("orders", rows[kept]["position"] - 1))
        check_moments(db, TABLE, rows[kept:], rows[-1]["next"])
        clear_cold_cache(db)
        check_moments(db, TABLE, rows[kept:], rows[-1]["next"])


def test_moments_where_nothing_is_hot_and_where_nothing_is_left(db: Database, clock: ManualClock) -> None:
    log = fill(db, clock, TOPIC)
    rows = all_entries(db, TOPIC)
    tier(db, TOPIC, 24, files=5)
    trim(db, log)
    assert db.execute(Hot(log)) == []
    check_moments(db, TOPIC, rows, rows[-1]["next"])
    assert db.execute(ClearTopic("news")) == 24
    check_moments(db, TOPIC, [], rows[-1]["next"])


def test_a_moment_in_files_that_are_replaced_while_it_is_looked_up(
    db: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(db, clock, STREAM)
    rows = all_entries(db, STREAM)
    tier(db, STREAM, 14, files=7)
    trim(db, log)
    store, real = store_of(db), cold_cache.listing
    replaced: list[int] = []

    def listing(*arguments: Any) -> ColdListing:
        found = real(*arguments)
        if not replaced:
            compacting.compact(store, "streams")
            replaced.append(len(compacting.vacuum(store, "streams", hours=0)))
        return found

    monkeypatch.setattr(cold_cache, "listing", listing)
    assert db.execute(queries.offsets_at(STREAM, rows[9]["at_ms"])) == {
        0: next(row["position"] for row in rows if row["at_ms"] == rows[9]["at_ms"])
    }
    assert replaced == [7]


def test_a_moment_in_cold_storage_that_is_not_there_is_an_error(
    db: Database, clock: ManualClock, tmp_path: Path
) -> None:
    """A disk that is not mounted, say. Who was led past all of it would miss it without a word."""
    log = fill(db, clock, STREAM)
    rows = all_entries(db, STREAM)
    tier(db, STREAM, 14)
    trim(db, log)
    store = store_of(db)
    shutil.move(store.uri("streams"), tmp_path / "away")
    for at_ms in (0, rows[13]["at_ms"]):
        with pytest.raises(Corrupt, match=f"positions 0 to {rows[14]['position']} of log {log} should be in cold"):
            db.execute(queries.offsets_at(STREAM, at_ms))
    assert db.execute(queries.offsets_at(STREAM, rows[-1]["at_ms"] + 1)) == {0: rows[-1]["next"]}
    shutil.move(tmp_path / "away", store.uri("streams"))
    check_moments(db, STREAM, rows, rows[-1]["next"])


# -- what is forgotten


@KINDS
def test_forgetting_at_any_position_loses_nothing_after_it(
    db: Database, clock: ManualClock, which: LogSelector
) -> None:
    log = fill(db, clock, which)
    rows = all_entries(db, which)
    tier(db, which, 12, files=4)
    trim(db, log)
    tiered, place, store = rows[12]["position"], tier_of(db, log).place, store_of(db)
    first, kept = rows[0]["position"], rows
    for position in range(first, tiered + 1):
        now = db.execute(ForgetCold(place, {log: position}))
        kept = [row for row in rows if row["position"] >= position]
        earliest = kept[0]["position"]
        assert now == {log: earliest}, "an entry of which a part is forgotten goes as a whole"
        assert db.execute(queries.find_logs(which)).parts[0].earliest == earliest
        assert own(db, which)[0] == earliest
        if position in (first + 1, tiered - 1) or position % 9 == 0:
            compacting.forget(store, place, {log: position})  # as it was asked for, as the job does
            compacting.vacuum(store, place, hours=0)
            clear_cold_cache(db)
        assert own(db, which) == [row["position"] for row in kept]
        assert all_entries(db, which) == kept
        assert tier_of(db, log) == ColdRange(log, earliest, tiered, place)
    compacting.forget(store, place, {log: tiered})
    assert reading.files(store, place, log) == [], "nothing is left there that anybody could ask for"
    with pytest.raises(Trimmed) as raised:
        db.execute(queries.plan(which, 0, tiered - 1, None))
    assert raised.value.earliest == tiered == kept[0]["position"]


@KINDS
def test_forgetting_what_is_hot_too_takes_nothing_from_readers_and_does_not_stop_retention(
    db: Database, clock: ManualClock, which: LogSelector
) -> None:
    log = fill(db, clock, which)
    rows = all_entries(db, which)
    tier(db, which, 12, files=4)
    position = rows[5]["position"] + (1 if rows[5]["next"] > rows[5]["position"] + 1 else 0)
    earliest = next(row["position"] for row in rows if row["position"] >= position)
    place = tier_of(db, log).place
    assert db.execute(ForgetCold(place, {log: position})) == {log: earliest}
    assert own(db, which) == [row["position"] for row in rows], "it is hot"
    db.execute(Trim(log, rows[3]["position"]))
    db.sweep()
    assert all_entries(db, which) == rows[3:]
    trim(db, log)
    assert db.execute(Hot(log))[0].position == rows[12]["position"], "all that is in cold storage, or was, may go"
    compacting.forget(store_of(db), place, {log: position})
    kept = [row for row in rows if row["position"] >= earliest]
    assert db.execute(queries.find_logs(which)).parts[0].earliest == earliest
    assert own(db, which) == [row["position"] for row in kept]
    assert all_entries(db, which) == kept


def test_what_a_fork_shares_stays_when_its_own_history_is_forgotten(db: Database, clock: ManualClock) -> None:
    fill(db, clock, STREAM, 10)
    base = all_entries(db, STREAM)[6]["position"]
    db.execute(CreateStream("fork", fork=Fork("doc", base)))
    for _ in range(4):
        db.execute(Append("fork", b"own", "text/plain"))
    fork = LogSelector("stream", "fork")
    rows = all_entries(db, fork)
    (part,) = db.execute(queries.find_logs(fork)).parts
    tier(db, fork, 4)
    assert db.execute(ForgetCold("streams", {part.log.id: base + 4})) == {part.log.id: base + 6}
    trim(db, part.log.id)
    assert all_entries(db, fork) == rows


def test_bad_marks_change_nothing(db: Database, clock: ManualClock) -> None:
    logs = {which: fill(db, clock, which) for which in (STREAM, TABLE)}
    db.execute(CreateStream("other", "text/plain", b"123"))
    other = LogSelector("stream", "other")
    files = {which: tier(db, which, 12, files=3) for which in (STREAM, TABLE)}
    tier(db, other, 1)
    for log in logs.values():
        trim(db, log)
    before, rows = db.execute(ListCold()), {which: all_entries(db, which) for which in (STREAM, TABLE, other)}
    log, beside = logs[STREAM], db.execute(queries.find_logs(other)).parts[0].log.id
    good = rows[STREAM][4]["position"] + 1
    wrong: list[tuple[str, dict[int, int], type[Error], str]] = [
        ("streams", {log: good, beside: 4}, Invalid, "up to 3 only; 4 is beyond that"),
        ("streams", {log: rows[STREAM][12]["position"] + 1}, Invalid, "is beyond that"),
        ("streams", {beside: 3, log: -1}, Invalid, "is not a range of log"),
        ("streams", {beside: 3, log: 1 << 63}, Invalid, "is not a range of log"),
        ("streams", {log: good, 0: 1}, Invalid, "is not a range of log 0"),
        ("tables/missing", {log: good}, NotFound, "no Delta table 'tables/missing'"),
    ]
    for place, starts, kind, why in wrong:
        with pytest.raises(kind, match=why):
            db.execute(ForgetCold(place, starts))
        assert db.execute(ListCold()) == before
    # The log of another place, and one that is none, are passed over.
    assert db.execute(ForgetCold("tables/orders", {log: good, 999: 5})) == {}
    assert db.execute(ListCold()) == before
    # Where an entry ends is looked up in cold storage; if that cannot be, nothing is forgotten.
    clear_cold_cache(db)
    path = files[STREAM][1]
    sound = path.read_bytes()
    path.unlink()
    with pytest.raises(Corrupt, match=path.name):
        db.execute(ForgetCold("streams", {beside: 3, log: good}))
    assert db.execute(ListCold()) == before
    path.write_bytes(sound)
    assert {which: all_entries(db, which) for which in rows} == rows
    assert db.execute(ForgetCold("streams", {log: good})) == {log: rows[STREAM][5]["position"]}


# -- what is lost or damaged


class ColdServer:
    """A server with some history of each kind, of which the first four of six entries are cold, in two files each; and
    every way to read it from its beginning."""

    names = {"stream": "doc", "topic": "news", "table": "orders"}

    def __init__(self, served: Served, client: Client) -> None:
        self.client, self.db, self.url = client, served.running.db, served.url
        self.written = 0
        self.db.execute(CreateStream("doc", "text/plain", max_bytes=1))
        self.db.execute(CreateTopic("news", 1, TopicOptions(retention_max_bytes=1)))
        self.table = self.db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
        for kind, name in self.names.items():
            client.attach(**{kind: name})  # from now on retention takes only what is in cold storage
        self.db.execute(AlterRetention("orders", max_count=1))
        self.write(6)
        self.files = {kind: tier(self.db, LogSelector(kind, name), 4, files=2) for kind, name in self.names.items()}
        self.db.sweep()
        self.reads: dict[str, tuple[str, Callable[[], Any]]] = {
            "a stream": ("stream", lambda: client.read("doc").body),
            "a stream, followed": ("stream", lambda: next(client.follow("doc")).body),
            "when, of a stream": ("stream", lambda: client.logs_at(0, stream="doc")),
            "how far, of a stream": ("stream", lambda: client.advance({0: 0}, 1, stream="doc")),
            "changes": ("table", lambda: client.changes("orders").body),
            "changes, by SQL": ("table", lambda: client.sql("SELECT count(*) AS n FROM changes('orders')")[0].rows),
            "changes, in Python": ("table", lambda: list(self.table.changes())),
            "when, of changes": ("table", lambda: client.logs_at(0, table="orders")),
            "messages": ("topic", lambda: client.consume("news", "group", start="earliest").messages),
            "messages, followed": ("topic", lambda: next(client.follow_topic("news")).body),
            "messages, by SQL": ("topic", lambda: client.sql("SELECT count(*) AS n FROM topic('news')")[0].rows),
            "when, of messages": ("topic", lambda: client.logs_at(0, topic="news")),
        }

    def write(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            self.client.append("doc", b"m%d" % self.written)
            self.client.publish("news", b"m%d" % self.written)
            self.table.put({"id": str(self.written)})

    def part(self, kind: str) -> dict[str, Any]:
        (found,) = self.client.logs(**{kind: self.names[kind]})["partitions"]
        return dict(found)

    def rows(self, kind: str, offset: int = -1) -> int:
        """How many rows Arrow readers get from there on."""
        with self.client.arrow(**{kind: self.names[kind]}, offset=offset) as batches:
            count: int = batches.read_all().num_rows
        return count


@pytest.fixture
def server(data_dir: Path) -> Iterator[ColdServer]:
    with Served(data_dir) as served, Client(served.url) as client:
        yield ColdServer(served, client)
    assert check_database(data_dir).findings == []


def without(path: Path) -> None:
    path.unlink()


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def with_other_bytes(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(60) + whole[260:])


@pytest.mark.parametrize("spoil", [without, shorter, with_other_bytes])
def test_a_damaged_file_is_named_by_every_api_and_hot_data_stays_readable(
    server: ColdServer, spoil: Callable[[Path], None]
) -> None:
    for kind in server.names:
        part = server.part(kind)
        assert part["earliest"] < part["hot"] == part["tiered"] < part["next"]
    sound = {paths[0]: paths[0].read_bytes() for paths in server.files.values()}
    for path in sound:
        spoil(path)
    before = {kind: server.part(kind) for kind in server.names}
    for name, (kind, read) in server.reads.items():
        with pytest.raises(Error) as caught:
            read()
        assert caught.value.code == "CORRUPT" and str(server.files[kind][0]) in str(caught.value), name
    for kind in server.names:
        with pytest.raises(Error) as caught:
            server.rows(kind)
        assert caught.value.code == "CORRUPT" and str(server.files[kind][0]) in str(caught.value), kind
    # What is not in that file is read as before, and writes go on; retention takes nothing that is not in cold storage.
    for kind in server.names:
        assert server.rows(kind, before[kind]["hot"]) == 2
    server.write(3)
    server.db.sweep()
    for kind in server.names:
        after = server.part(kind)
        assert {**after, "at_ms": 0, "next": 0} == {**before[kind], "at_ms": 0, "next": 0}
        assert server.rows(kind, after["hot"]) == 5
    for path, body in sound.items():
        path.write_bytes(body)
    for name, (_, read) in server.reads.items():
        assert read(), name
    assert {kind: server.rows(kind) for kind in server.names} == dict.fromkeys(server.names, 9)


def test_moments_over_http_in_history_that_is_cold_and_forgotten(server: ColdServer) -> None:
    client = server.client
    for kind, name in server.names.items():
        with client.arrow(**{kind: name}, form="entries") as batches:
            rows = batches.read_all().to_pylist()
        part, place = server.part(kind), client.logs(**{kind: name})["cold"]["place"]
        times = sorted({row["at_ms"] for row in rows})
        for kept in (rows, rows[3:]):
            for at_ms in (0, times[0] - 1, *times, *(each + 1 for each in times), times[-1] + 10**6):
                expected = next((row["position"] for row in kept if row["at_ms"] >= at_ms), part["next"])
                assert client.logs_at(at_ms, **{kind: name}) == {0: expected}
            inside = rows[2]["next"] - 1  # the last position of the third entry, or all of it
            expected = rows[2]["position"] if inside == rows[2]["position"] else rows[3]["position"]
            if kept is rows:
                assert client.forget(place, {part["log"]: inside})["starts"] == {str(part["log"]): expected}
                client.forget(place, {part["log"]: rows[3]["position"]})
                assert server.part(kind)["earliest"] == rows[3]["position"]


@pytest.mark.parametrize("spoil", [without, shorter])
def test_what_was_not_written_well_is_not_marked_and_nothing_of_it_is_trimmed(
    server: ColdServer, spoil: Callable[[Path], None]
) -> None:
    pytest.importorskip("pyspark")
    from tests.spark.histories import driver, here

    spoilt: list[Path] = []
    sound: dict[Path, bytes] = {}

    def badly(loads: Any, reached: Any, write: bool) -> Any:
        found = here(loads, reached, write)
        if write:
            store = Store(reached.cold)
            spoilt.extend(
                Path(store.uri(load.place), file.path)
                for load, each in zip(loads, found, strict=True)
                for file in each.files
            )
            for path in spoilt:
                sound[path] = path.read_bytes()
                spoil(path)
        return found

    server.write(5)
    before = {kind: server.part(kind) for kind in server.names}
    patterns = {f"{kind}s": [name] for kind, name in server.names.items()}
    for carried in (badly, here):  # the second finds what the first has committed
        work = driver(server.url, server.client, run_tasks=carried, **patterns)
        work.round(flush=True)
        assert len(spoilt) == len(work.failures) == 3
        for path in spoilt:
            failed = work.failures[str(path.relative_to(store_of(server.db).uri("")).parent)]
            assert isinstance(failed, Corrupt) and path.name in str(failed)
        server.db.sweep()
        assert {kind: server.part(kind) for kind in server.names} == before
    for path, data in sound.items():  # the database is checked in the end
        path.write_bytes(data)
        assert {kind: server.rows(kind, before[kind]["hot"]) for kind in server.names} == dict.fromkeys(server.names, 7)
    assert {kind: server.rows(kind) for kind in server.names} == dict.fromkeys(server.names, 11)

"""Opening, closing, both ways in, and housekeeping under a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import tailrace
from tailrace import failpoints, limits
from tailrace.access import Permission, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Conflict, Forbidden, Gone, NotFound, Trimmed, Unavailable
from tailrace.log import segments
from tailrace.log.entry import GARBAGE, LOGS
from tailrace.log.segments import SEGMENTS
from tailrace.storage.engine import Tx
from tailrace.storage.pages import VFS
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.storage.writing import SqliteTx
from tailrace.streams.commands import Append, Appended, CreateStream, DeleteStream, Fork, TouchStream
from tailrace.streams.producer import PRODUCERS, ProducerClaim
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.streams.stream import DEADLINES, RETAINED, STREAMS
from tailrace.streams.sweep import ReclaimLog, TrimStream
from tests.support.patience import PATIENCE_S

TEXT = "text/plain"


class House:
    """A database whose clock stands still and whose housekeeping runs on command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.engine = SqliteEngine(directory)
        self.db = Database(self.engine, clock=self.clock, housekeeping_s=None)
        self.do = self.db.execute

    def rows(self, table: Any, *prefix: Any) -> list[Any]:
        with self.engine.reader() as reader:
            return list(reader.scan(table, *prefix))

    def paths(self) -> list[str]:
        return [stream.path for stream in self.do(ListStreams())]

    def text(self, path: str, position: int | None = None) -> bytes:
        found = self.do(ReadStream(path, position, 10**9))
        return b"".join(entry.body for entry in found.page.entries)

    def append(self, path: str, body: bytes) -> None:
        self.do(Append(path, body, "text/plain"))


@pytest.fixture
def house(data_dir: Path) -> Iterator[House]:
    house = House(data_dir)
    yield house
    house.db.close()
    assert check_database(data_dir).findings == []


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


# -- life


def test_open_makes_a_database_and_finds_it_again(data_dir: Path) -> None:
    with tailrace.open(data_dir) as db:
        db.execute(CreateStream("a", "text/plain", b"hello"))
    with tailrace.open(str(data_dir)) as db:
        found = db.execute(ReadStream("a"))
        assert [entry.body for entry in found.page.entries] == [b"hello"]


def test_a_closed_database_refuses(data_dir: Path) -> None:
    db = tailrace.open(data_dir)
    db.close()
    with pytest.raises(Unavailable, match="closed; open it again"):
        db.execute(CreateStream("a"))
    db.close()
    tailrace.open(data_dir).close()


def test_the_context_manager_closes_after_an_error_too(data_dir: Path) -> None:
    with pytest.raises(ZeroDivisionError), tailrace.open(data_dir):
        raise ZeroDivisionError
    tailrace.open(data_dir).close()


def test_no_threads_are_left(data_dir: Path) -> None:
    before = set(threading.enumerate())
    with tailrace.open(data_dir) as db:
        db.execute(CreateStream("a"))
        assert any(thread.name == "tailrace-housekeeping" for thread in threading.enumerate())

    async def main() -> None:
        db = tailrace.open(data_dir)
        await db.aexecute(CreateStream("b"))
        await db.aclose()

    asyncio.run(main())
    assert {thread for thread in threading.enumerate() if thread.name.startswith("tailrace")} - before == set()


def test_asynchronous_use(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir)
        await db.aexecute(CreateStream("a", "text/plain"))
        appended = await asyncio.gather(*[db.aexecute(Append("a", b"%d" % n, "text/plain")) for n in range(10)])
        assert [one.tail for one in appended] == list(range(1, 11))
        found = await db.aexecute(DescribeStream("a"))
        assert found.log.next == 10
        with pytest.raises(NotFound):
            await db.aexecute(Append("missing", b"x", "text/plain"))
        with pytest.raises(NotFound):
            await db.aexecute(DescribeStream("missing"))
        tails = await asyncio.gather(
            asyncio.to_thread(db.execute, Append("a", b"x", "text/plain")), db.aexecute(Append("a", b"y", "text/plain"))
        )
        assert sorted(one.tail for one in tails) == [11, 12]
        await db.aclose()
        with pytest.raises(Unavailable):
            await db.aexecute(CreateStream("b"))

    asyncio.run(main())


def test_a_waiter_that_gives_up_does_not_undo_the_write(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir)

        async def create() -> None:
            await db.aexecute(CreateStream("a", "text/plain"))

        task = asyncio.create_task(create())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await db.aexecute(Append("a", b"x", "text/plain"))
        await db.aclose()

    asyncio.run(main())


def test_closing_answers_what_was_submitted(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir)
        await db.aexecute(CreateStream("a", "text/plain"))
        tasks = [asyncio.ensure_future(db.aexecute(Append("a", b"x", "text/plain"))) for _ in range(50)]
        await db.aclose()
        assert [task.result().tail for task in tasks] == list(range(1, 51))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_writers_from_many_threads(data_dir: Path) -> None:
    db = tailrace.open(data_dir)
    db.execute(CreateStream("a", "text/plain"))
    tails: list[int] = []

    def work() -> None:
        for _ in range(50):
            tails.append(db.execute(Append("a", b"x", "text/plain")).tail)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tails) == list(range(1, 401))
    assert db.metrics.commits <= 401
    db.close()


# -- who may what


def test_a_command_needs_its_permission(house: House) -> None:
    anonymous = Principal("nobody", frozenset())
    reader = Principal("reader", frozenset({Permission.READ}))
    writer = Principal("writer", frozenset({Permission.READ, Permission.WRITE}))
    with pytest.raises(Forbidden, match="'nobody' may not DescribeStream: it needs the read permission"):
        house.db.execute(DescribeStream("a"), anonymous)
    with pytest.raises(Forbidden, match="'reader' may not CreateStream: it needs the write permission"):
        house.db.execute(CreateStream("a"), reader)
    with pytest.raises(Forbidden, match="'writer' may not ReclaimLog: it needs the admin permission"):
        house.db.execute(ReclaimLog(1), writer)
    house.db.execute(CreateStream("a"), writer)
    house.db.execute(DescribeStream("a"), reader)
    assert house.paths() == ["a"]


def test_permission_is_checked_before_anything_runs_also_asynchronously(data_dir: Path) -> None:
    async def main() -> None:
        db = tailrace.open(data_dir)
        with pytest.raises(Forbidden):
            await db.aexecute(CreateStream("a"), Principal("nobody", frozenset()))
        assert await db.aexecute(ListStreams()) == []
        await db.aclose()

    asyncio.run(main())


# -- housekeeping: expiry


def test_nothing_is_due_in_an_empty_database(house: House) -> None:
    assert house.db.sweep() == 0


def test_an_idle_stream_expires_at_its_ttl_and_is_removed(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"x", ttl_s=60))
    house.do(CreateStream("b", "text/plain", b"x"))
    house.clock.advance(59.9)
    assert house.db.sweep() == 0
    assert house.paths() == ["a", "b"]
    house.clock.advance(0.1)
    with pytest.raises(NotFound, match="it has expired"):
        house.text("a")
    assert house.db.sweep() > 0
    assert house.paths() == ["b"]
    assert [log.owner for log in house.rows(LOGS)] == ["stream/b"]
    assert house.rows(DEADLINES) == house.rows(GARBAGE) == house.rows(SEGMENTS, 1) == []
    assert house.db.metrics.expired == 1


@pytest.mark.parametrize("what", ["append", "touch"])
def test_use_renews_the_ttl(house: House, what: str) -> None:
    house.do(CreateStream("a", "text/plain", ttl_s=60))
    for _ in range(3):
        house.clock.advance(50)
        if what == "append":
            house.append("a", b"x")
        else:
            house.do(TouchStream("a"))
        house.db.sweep()
    assert house.paths() == ["a"]
    house.clock.advance(60)
    house.db.sweep()
    assert house.paths() == []
    assert house.rows(DEADLINES) == []


def test_an_absolute_expiry_is_not_renewed(house: House) -> None:
    at_ms = house.clock.now_ms() + 60_000
    house.do(CreateStream("a", "text/plain", expires_ms=at_ms, expires_text="as it was written"))
    house.clock.advance(50)
    house.append("a", b"x")
    house.do(TouchStream("a"))
    house.clock.advance(10)
    house.db.sweep()
    assert house.paths() == []


def test_a_deadline_of_a_recreated_stream(house: House) -> None:
    """The old stream's deadline finds the new one, which lives longer, or for ever."""
    house.do(CreateStream("a", "text/plain", ttl_s=10))
    house.do(CreateStream("b", "text/plain", ttl_s=10))
    for path, ttl_s in (("a", 100), ("b", None)):
        house.do(DeleteStream(path))
        house.do(CreateStream(path, "text/plain", ttl_s=ttl_s))
    house.clock.advance(11)
    house.db.sweep()
    assert house.paths() == ["a", "b"]
    house.clock.advance(100)
    house.db.sweep()
    assert house.paths() == ["b"]


def test_an_expired_stream_with_forks_lives_on_in_them(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"shared", ttl_s=10))
    house.do(CreateStream("f", fork=Fork("a"), ttl_s=1000))
    house.clock.advance(10)
    with pytest.raises(Gone, match="only its forks remain"):
        house.text("a")
    house.db.sweep()
    assert house.text("f") == b"shared"
    with pytest.raises(Conflict) as blocked:
        house.do(CreateStream("a", "text/plain"))
    assert blocked.value.code == "PATH_BLOCKED"
    house.do(DeleteStream("f"))
    house.db.sweep()
    assert house.rows(LOGS) == house.rows(SEGMENTS) == house.rows(STREAMS) == []
    house.do(CreateStream("a", "text/plain"))


def test_many_expire_at_once(house: House) -> None:
    for number in range(250):  # more than one look finds
        house.do(CreateStream(f"s{number}", ttl_s=1))
    house.clock.advance(1)
    house.db.sweep()
    assert house.paths() == []
    assert house.db.metrics.expired == 250


# -- housekeeping: retention


def test_retention_by_age(house: House) -> None:
    house.do(CreateStream("a", "text/plain", max_age_s=60))
    for body in (b"one ", b"two ", b"three"):
        house.append("a", body)
        house.clock.advance(30)
    house.db.sweep()
    assert house.text("a") == b"two three"
    with pytest.raises(Trimmed) as trimmed:
        house.text("a", 0)
    assert trimmed.value.offset == "0000000000000000_0000000000000004"
    assert [entry.position for entry in house.rows(SEGMENTS)] == [4, 8], "and the entry is gone from the disk"
    house.clock.advance(1000)
    house.db.sweep()
    assert house.text("a") == b""
    assert house.rows(SEGMENTS) == []
    house.append("a", b"again")
    assert house.do(DescribeStream("a")).log.next == 18, "positions go on"


def test_retention_by_bytes(house: House) -> None:
    house.do(CreateStream("a", "text/plain", max_bytes=10))
    for number in range(10):
        house.append("a", b"<%d>" % number)
    house.db.sweep()
    assert house.text("a") == b"<7><8><9>"
    assert house.db.metrics.trimmed >= 1
    assert house.db.sweep() == 0


def test_retention_in_steps(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ENTRIES", 4)
    house.do(CreateStream("a", "text/plain", max_bytes=2))
    for _ in range(30):
        house.append("a", b"x")
    house.db.sweep()
    assert house.text("a") == b"xx"
    assert len(house.rows(SEGMENTS)) == 2


def test_retention_of_a_fork_leaves_the_source_alone(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"12345"))
    house.do(CreateStream("f", fork=Fork("a"), max_bytes=3))
    house.append("f", b"678")
    house.db.sweep()
    assert (house.text("a"), house.text("f")) == (b"12345", b"678")


def test_retention_of_a_source_leaves_its_forks_alone(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"12", max_bytes=2))
    house.do(CreateStream("f", fork=Fork("a"), max_bytes=1000))
    house.append("a", b"34")
    house.db.sweep()
    assert (house.text("a"), house.text("f")) == (b"34", b"12")
    house.do(DeleteStream("f"))
    house.db.sweep()
    assert [entry.body for entry in house.rows(SEGMENTS)] == [b"34"], "what was kept for the fork is gone with it"


def test_a_deleted_stream_is_retained_no_more(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"x", max_bytes=1))
    house.do(DeleteStream("a"))
    house.db.sweep()
    assert house.rows(RETAINED) == []


# -- housekeeping: garbage


def test_garbage_is_removed_in_steps(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ENTRIES", 10)
    house.do(CreateStream("a", "text/plain"))
    for number in range(35):
        house.do(Append("a", b"x", "text/plain", ProducerClaim(f"p{number}", 0, 0)))
    house.do(DeleteStream("a"))
    assert len(house.rows(SEGMENTS)) == 35
    assert not house.do(ReclaimLog(1))
    assert 0 < len(house.rows(SEGMENTS)) + len(house.rows(PRODUCERS)) < 70, "one step does a part"
    assert house.db.sweep() > 3
    assert house.rows(SEGMENTS) == house.rows(PRODUCERS) == house.rows(LOGS) == house.rows(GARBAGE) == []


def test_interrupted_housekeeping_is_taken_up_again(house: House) -> None:
    for number in range(10):
        house.do(CreateStream(f"s{number}", "text/plain", b"x", ttl_s=1))
    house.clock.advance(1)
    failpoints.arm("sweep.step", at=5)
    with pytest.raises(failpoints.Failure):
        house.db.sweep()
    assert 0 < len(house.rows(STREAMS)) < 10
    house.db.sweep()
    assert house.rows(STREAMS) == house.rows(LOGS) == house.rows(SEGMENTS) == []


def test_housekeeping_happens_by_itself(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=0.01) as db:
        db.execute(CreateStream("a", "text/plain", ttl_s=0))
        deadline = time.monotonic() + PATIENCE_S
        while db.metrics.expired == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    assert check_database(data_dir).findings == []


def test_housekeeping_goes_on_after_a_failure(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=0.01) as db:
        failpoints.arm("sweep.step")
        db.execute(CreateStream("a", "text/plain", ttl_s=0))
        deadline = time.monotonic() + PATIENCE_S
        while db.metrics.expired == 0:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_writes_go_on_beside_housekeeping(data_dir: Path) -> None:
    """Appends and deletions of large streams under way: nobody waits for all of it, nothing is lost."""
    with tailrace.open(data_dir, housekeeping_s=0.005) as db:
        db.execute(CreateStream("live", "text/plain"))
        for round_ in range(5):
            db.execute(CreateStream(f"big{round_}", "text/plain"))
            for _ in range(40):
                db.execute(Append(f"big{round_}", b"x" * 100, "text/plain"))
            db.execute(DeleteStream(f"big{round_}"))
            db.execute(Append("live", b"y", "text/plain"))
        assert db.execute(DescribeStream("live")).log.next == 5
    assert check_database(data_dir).findings == []


def test_a_stopped_writer_still_reads(house: House) -> None:
    house.do(CreateStream("a", "text/plain", b"x"))
    failpoints.arm("batch.flushed")
    with pytest.raises(failpoints.Failure):
        house.append("a", b"lost")
    assert house.db.stopped is not None
    with pytest.raises(Unavailable, match="writes are stopped"):
        house.append("a", b"y")
    assert house.text("a") == b"x"


def test_a_bug_in_a_command_fails_it_alone(house: House) -> None:
    class Broken(Command[None], frozen=True):
        def run(self, tx: Any) -> None:
            tx.delete(STREAMS, "a")
            raise ZeroDivisionError

    house.do(CreateStream("a", "text/plain", b"x"))
    with pytest.raises(ZeroDivisionError):
        house.do(Broken())
    assert house.text("a") == b"x"
    assert house.db.stopped is None


def test_a_trim_found_for_one_stream_is_not_done_to_the_next_at_its_path(house: House) -> None:
    """Between the look and the step the stream may be deleted and recreated, without retention or with other text."""
    house.do(CreateStream("a", TEXT, max_bytes=4))
    for _ in range(10):
        house.do(Append("a", b"1234", TEXT))
    house.do(DeleteStream("a"))
    house.do(CreateStream("a", TEXT, b"precious"))
    house.do(TrimStream("a"))
    assert house.text("a") == b"precious"
    house.do(DeleteStream("a"))
    house.do(CreateStream("a", TEXT, b"long enough to be cut", max_bytes=4))
    house.do(TrimStream("a"))
    assert house.text("a") == b"long enough to be cut"


def test_a_deleted_stream_leaves_no_deadline(house: House) -> None:
    for _ in range(3):
        house.do(CreateStream("a", TEXT, ttl_s=1_000_000))
        house.clock.advance(1)
        house.do(DeleteStream("a"))
        house.db.sweep()
    with house.db._engine.reader() as reader:
        assert list(reader.scan(DEADLINES)) == []


def test_a_duplicate_and_a_repeated_close_renew_the_ttl(house: House) -> None:
    house.do(CreateStream("a", TEXT, ttl_s=10))
    house.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0)))
    for _ in range(3):
        house.clock.advance(9)
        assert house.do(Append("a", b"x", TEXT, ProducerClaim("p", 0, 0))).duplicate
    house.do(Append("a", close=True))
    for _ in range(3):
        house.clock.advance(9)
        assert house.do(Append("a", close=True)).closed


def test_large_entries_are_removed_in_small_steps(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_BYTES", 10)
    house.do(CreateStream("a", TEXT))
    for _ in range(7):
        house.do(Append("a", b"12345", TEXT))
    house.do(Append("a", b"x" * 50, TEXT))
    house.do(DeleteStream("a"))
    with house.db._engine.reader() as reader:
        (log,) = [row.log for row in reader.scan(GARBAGE)]
    left = []
    done = False
    while not done:
        done = house.do(ReclaimLog(log))
        with house.db._engine.reader() as reader:
            left.append(len(list(segments.scan(reader, log))))
    assert left == [6, 4, 2, 1, 0, 0] or left == [6, 4, 2, 1, 0]


def test_a_second_event_loop_takes_over_from_a_closed_one(data_dir: Path) -> None:
    db = tailrace.open(data_dir, housekeeping_s=None)

    async def main(body: bytes) -> int:
        if body == b"a":
            await db.aexecute(CreateStream("s", TEXT))
        return (await db.aexecute(Append("s", body, TEXT))).tail

    assert asyncio.run(main(b"a")) == 1
    assert asyncio.run(main(b"b")) == 2
    db.close()


def test_ctrl_c_during_a_commit_is_passed_on_and_stops_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    commit = SqliteTx.commit

    def interrupted(tx: SqliteTx) -> None:
        commit(tx)
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteTx, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.execute(Append("s", b"a", TEXT))
    monkeypatch.setattr(SqliteTx, "commit", commit)
    run = Append.run

    def early(command: Append, tx: Tx) -> Appended:
        run(command, tx)
        raise KeyboardInterrupt

    monkeypatch.setattr(Append, "run", early)
    with pytest.raises(KeyboardInterrupt):
        db.execute(Append("s", b"b", TEXT))
    monkeypatch.setattr(Append, "run", run)
    assert db.execute(Append("s", b"c", TEXT)).tail == 2, "the first is there, the second is not"
    db.close()


def test_a_foreign_lock_on_the_file_passes(data_dir: Path) -> None:
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    other = apsw.Connection(str(data_dir / FILE), vfs=VFS)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another program has locked the database"):
        db.execute(Append("s", b"a", TEXT))
    assert db.stopped is None
    assert db.trouble is not None
    other.execute("ROLLBACK")
    other.close()
    assert db.execute(Append("s", b"a", TEXT)).tail == 1
    assert db.trouble is None
    db.close()


def test_housekeeping_finds_out_that_writes_work_again(data_dir: Path) -> None:
    db = tailrace.open(data_dir, housekeeping_s=0.02)
    db.execute(CreateStream("s", TEXT))
    other = apsw.Connection(str(data_dir / FILE), vfs=VFS)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        db.execute(Append("s", b"a", TEXT))
    assert db.trouble is not None
    other.execute("ROLLBACK")
    other.close()
    deadline = time.monotonic() + PATIENCE_S
    while db.trouble is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    db.close()


class _AppendThenFail(Command[None], frozen=True):
    path: str

    def run(self, tx: Tx) -> None:
        Append(self.path, b"undone", TEXT).run(tx)
        raise Conflict("this command is undone")


def test_what_is_committed_is_read_from_memory_and_what_is_undone_is_not(house: House) -> None:
    house.do(CreateStream("a", TEXT))
    house.append("a", b"kept")
    with pytest.raises(Conflict):
        house.do(_AppendThenFail("a"))
    (log,) = house.rows(LOGS)
    recent = house.db.recent
    held = recent.covering(log.id, 0)
    assert held is not None
    assert held.body == b"kept"
    assert recent.covering(log.id, len(held.body)) is None
    assert house.text("a") == b"kept"

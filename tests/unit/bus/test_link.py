"""Frames, and what the two sides of a link do: over a real Unix socket, both in this process."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.access import ROLES, Principal
from tailrace.auth.users import AlterUser, CreateUser
from tailrace.bus import asking, link, messages
from tailrace.bus.link import BusLink, FrameReader, framed
from tailrace.bus.server_commands import ForgetLife, ListSent, life_name
from tailrace.bus.writer import BusServer
from tailrace.config import Config
from tailrace.database import Database, open_configured, open_worker
from tailrace.errors import Corrupt, Forbidden, Invalid, LoginThrottled, NotFound, Unavailable
from tailrace.log.cold import ColdMiss, ColdRange
from tailrace.log.tail import MISSED, USERS_CHANGED
from tailrace.policy import ACCOUNT
from tailrace.runner import CalledBack
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import DescribeStream
from tailrace.tables import commands, schema
from tailrace.tables.definition import Attribute
from tailrace.tables.export import BeginExport, ReadExport
from tailrace.tables.lifecycle import CreateTable
from tailrace.tables.operations import FindTable
from tailrace.tables.policies import DeletePolicy, PutPolicy
from tests.support.patience import PATIENCE_S

TEXT = "text/plain"


# -- frames


def test_frames_are_cut_wherever_they_break() -> None:
    sent = [["run", [[1, "Append", "ann", b"\x00" * 100]]], ["confirm", 3], ["beat", {"now_ms": 1}]]
    data = b"".join(map(framed, sent))
    for size in (1, 3, 7, len(data)):
        reader, found = FrameReader(), []
        for at in range(0, len(data), size):
            found += reader.feed(data[at : at + size])
        assert found == sent


def test_a_frame_that_is_too_long_is_refused() -> None:
    with pytest.raises(Invalid, match="longer than"):
        FrameReader().feed(struct.pack(">I", limits.BUS_FRAME_BYTES_MAX + 1))


def test_the_previous_protocol_is_accepted() -> None:
    link.check_protocol(link.PROTOCOL, "0.2.0")
    link.check_protocol(link.PROTOCOL - 1, "0.1.0")
    for other in (link.PROTOCOL + 1, link.PROTOCOL - 2):
        with pytest.raises(Invalid, match="one version at a time"):
            link.check_protocol(other, "9")


# -- a writer and workers


class Server:
    """A writer, and workers of it."""

    def __init__(self, directory: Path) -> None:
        self.config = Config(data=str(directory / "data"))
        self.path = str(directory / "bus")
        self.db: Database = None  # type: ignore[assignment]
        self.bus: BusServer = None  # type: ignore[assignment]
        self.workers: list[Database] = []

    async def start_writer(self, replaces: bool = False) -> None:
        self.db = open_configured(self.config)
        self.db.attach(asyncio.get_running_loop())
        self.bus = BusServer(self.db, self.db.sharing.login_throttle(), "0", replaces=replaces)
        await self.bus.start(self._listen)

    async def _listen(self, protocol: Callable[[], BusLink]) -> asyncio.AbstractServer:
        if os.path.exists(self.path):
            os.unlink(self.path)
        return await asyncio.get_running_loop().create_unix_server(protocol, self.path)

    async def add_worker(self) -> Database:
        async def connect(loop: asyncio.AbstractEventLoop, protocol: Callable[[], BusLink]) -> None:
            await loop.create_unix_connection(protocol, self.path)

        db = open_worker(self.config, connect, f"worker-{len(self.workers)}", "0")
        self.workers.append(db)
        db.attach(asyncio.get_running_loop())
        await until(lambda: forwarder(db).welcomed.is_set())
        return db

    async def stop_writer(self) -> None:
        await self.bus.stop()
        await self.db.aclose()

    async def stop(self) -> None:
        for worker in self.workers:
            await worker.aclose()
        await self.stop_writer()


def forwarder(db: Database) -> Any:
    assert db.forwarder is not None
    return db.forwarder


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def on_server(test: Callable[[Server], Awaitable[None]], directory: Path) -> None:
    async def run() -> None:
        server = Server(directory)
        await server.start_writer()
        try:
            await test(server)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_write_by_one_worker_is_read_by_another(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        await one.aexecute(CreateStream("a", TEXT))
        for number in range(20):
            writer, reader = (one, two) if number % 2 else (two, one)
            appended = await writer.aexecute(Append("a", b"x", TEXT))
            found = await reader.aexecute(DescribeStream("a"))
            assert found.log.next == appended.tail == number + 1
        with pytest.raises(NotFound):
            await two.aexecute(Append("nowhere", b"x", TEXT))
        assert await asyncio.to_thread(two.execute, Append("a", b"from a thread", TEXT))

    on_server(test, tmp_path)


def test_notices_are_applied_before_the_result(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        await one.aexecute(CreateStream("a", TEXT))
        number = (await one.aexecute(DescribeStream("a"))).log.id
        seen: list[str] = []
        one.tail.subscribe(number, lambda notices: seen.append("one"))
        two.tail.subscribe(number, lambda notices: seen.append("two"))
        await one.aexecute(Append("a", b"x", TEXT))
        assert "one" in seen
        await until(lambda: "two" in seen)

    on_server(test, tmp_path)


def test_what_was_not_committed_is_sent_again(tmp_path: Path) -> None:
    """The writer ends with commands in all states: answered, committed without an answer, and not seen at all."""

    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        await worker.aexecute(Append("a", b"answered;", TEXT))
        server.bus._flush = lambda: None  # type: ignore[method-assign]
        committed = worker.aexecute(Append("a", b"committed;", TEXT))
        await until(lambda: any(row.upto == 3 for row in server.db.execute(ListSent())))
        await server.stop_writer()
        assert isinstance(worker.trouble, Unavailable)
        waiting = worker.aexecute(Append("a", b"waiting;", TEXT))
        await server.start_writer(replaces=True)
        with pytest.raises(Unavailable) as unknown:
            await committed
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        assert (await waiting).tail == len(b"answered;committed;waiting;")
        assert worker.metrics.resent == 1
        assert worker.metrics.outcomes_unknown == 1
        assert worker.trouble is None

    on_server(test, tmp_path)


def test_a_lost_link_alone_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        results = []
        for number in range(40):
            results.append(worker.aexecute(Append("a", b"%02d" % number, TEXT)))
            if number % 10 == 5:
                await until(lambda: worker.trouble is None)
                forwarder(worker)._link.cut()
        outcomes = await asyncio.gather(*results, return_exceptions=True)
        unknown = [each for each in outcomes if isinstance(each, BaseException)]
        assert all(isinstance(each, Unavailable) and each.code == "OUTCOME_UNKNOWN" for each in unknown)
        assert (await worker.aexecute(DescribeStream("a"))).log.next == 2 * 40  # each once

    on_server(test, tmp_path)


def test_commands_that_share_the_commit_of_a_hello_are_not_repeated(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        runner: Any = server.db._runner
        runner._turn.acquire()  # a commit takes long
        first = worker.aexecute(Append("a", b"first;", TEXT))
        await until(lambda: len(runner._pending) == 1)
        forwarder(worker)._link.cut()
        await until(lambda: len(runner._pending) == 2)  # the hello
        runner._release_turn()
        with pytest.raises(Unavailable) as unknown:
            await first
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        await worker.aexecute(Append("a", b"second;", TEXT))
        assert (await worker.aexecute(DescribeStream("a"))).log.next == len(b"first;second;")

    on_server(test, tmp_path)


def test_what_a_lost_link_holds_is_not_done_after_the_next_hello(
    tmp_path: Path,
) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        (held,) = server.bus._links
        held.read_on(False)  # its window is full
        first = worker.aexecute(Append("a", b"first;", TEXT))
        await asyncio.sleep(0.05)
        forwarder(worker)._link.cut()
        assert (await first).tail == len(b"first;")
        assert not held.open
        assert (await worker.aexecute(Append("a", b"second;", TEXT))).tail == len(b"first;second;")

    on_server(test, tmp_path)


def test_a_command_that_cannot_be_sent_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        encode = messages.encode_command

        def encode_some(command: Any) -> tuple[str, bytes]:
            if command.body == b"broken":
                raise RuntimeError("a bug")
            return encode(command)

        monkeypatch.setattr(messages, "encode_command", encode_some)
        for lost in (False, True):
            if lost:
                forwarder(worker)._link.cut()
                await until(lambda: worker.trouble is not None)
            results = [worker.aexecute(Append("a", body, TEXT)) for body in (b"x", b"broken", b"y")]
            outcomes = await asyncio.gather(*results, return_exceptions=True)
            assert [getattr(each, "code", None) for each in outcomes] == [None, messages.UNSENDABLE, None]
        assert (await worker.aexecute(DescribeStream("a"))).log.next == 4

    on_server(test, tmp_path)


def test_servers_of_an_earlier_start_are_forgotten(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        assert len(await server.db.aexecute(ListSent())) == 1
        await worker.aclose()
        server.workers.clear()
        await server.stop_writer()
        await server.start_writer(replaces=True)
        assert len(await server.db.aexecute(ListSent())) == 1
        await server.stop_writer()
        await server.start_writer()
        there = await server.add_worker()
        (row,) = await server.db.aexecute(ListSent())
        assert (row.server, row.upto) == (life_name(forwarder(there).server, forwarder(there).life), 0)

    on_server(test, tmp_path)


@pytest.mark.parametrize("failing", [False, True])
def test_a_command_whose_history_cannot_be_read_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    fetches: list[Any] = []

    def miss(self: Any, tx: Any) -> Any:
        raise ColdMiss(ColdRange(1, 0, 1, ""), 0)

    def fetch(missing: ColdMiss) -> None:
        fetches.append(missing)
        if failing:
            raise OSError("no disk")

    async def test(server: Server) -> None:
        worker = await server.add_worker()
        monkeypatch.setattr(limits, "COLD_FETCHES_MAX", 3)
        monkeypatch.setattr(server.db.cold, "fetch", fetch)
        monkeypatch.setattr(CreateStream, "run", miss)
        expected = "OSError: no disk" if failing else "the cold cache is thrashing"
        with pytest.raises(messages.RemoteFailure if failing else Unavailable, match=expected):
            await asyncio.wait_for(worker.aexecute(CreateStream("a", TEXT)), PATIENCE_S)
        assert len(fetches) == (1 if failing else 3)

    on_server(test, tmp_path)


def test_too_many_commands_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        monkeypatch.setattr(limits, "BUS_WAITING_MAX", 3)
        results = [worker.aexecute(Append("a", b"x", TEXT)) for _ in range(5)]
        outcomes = await asyncio.gather(*results, return_exceptions=True)
        assert [getattr(each, "code", None) for each in outcomes] == [None] * 3 + ["QUEUE_FULL"] * 2
        await worker.aexecute(Append("a", b"x", TEXT))

    on_server(test, tmp_path)


def test_without_a_writer_commands_are_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        monkeypatch.setattr(limits, "WRITER_WAIT_S", 0.2)
        await server.stop_writer()
        await until(lambda: worker.trouble is not None)
        with pytest.raises(Unavailable):
            await worker.aexecute(CreateStream("a", TEXT))
        await server.start_writer()
        await until(lambda: worker.trouble is None)
        await worker.aexecute(CreateStream("a", TEXT))

    on_server(test, tmp_path)


def test_a_change_of_a_user_is_acknowledged_when_all_have_confirmed_it(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        await one.aexecute(CreateUser(name="ann", role="user"))
        seen: list[Any] = []
        apply, forwarder(two)._apply = forwarder(two)._apply, lambda *given: seen.append(given)
        changed = one.aexecute(AlterUser(name="ann", disabled=True))
        await until(lambda: bool(seen))
        for _ in range(50):  # whatever one is sent arrives by then
            await asyncio.sleep(0.001)
        assert not changed.done()  # type: ignore[attr-defined]
        apply(*seen[0])
        assert (await changed).disabled

    on_server(test, tmp_path)


def test_a_worker_that_does_not_confirm_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        monkeypatch.setattr(limits, "BUS_TTL_S", 0.3)
        forwarder(two)._apply = lambda *given: None  # it does not read what it gets
        lost = [made for made, each in server.bus._links.items() if each.name.startswith("worker-1")]
        await one.aexecute(CreateUser(name="ann", role="user"))
        assert not lost[0].open
        assert forwarder(one).fresh

    on_server(test, tmp_path)


def test_without_beats_caches_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        assert forwarder(worker).fresh
        monkeypatch.setattr(limits, "BUS_TTL_S", 0.0)
        assert not forwarder(worker).fresh

    on_server(test, tmp_path)


def test_damage_that_the_writer_finds_ends_reads_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        monkeypatch.setattr(limits, "BUS_BEAT_S", 0.02)
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        engine: Any = server.db._engine
        engine._checkpoints.damage = Corrupt("a page is not what was written", code="WAL_DAMAGED")

        def refused() -> bool:
            try:
                worker._query(DescribeStream("a"))
            except Corrupt:
                return True
            return False

        await until(refused)
        engine._checkpoints.damage = None

    on_server(test, tmp_path)


def test_logins_are_counted_together(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        throttles = [each.sharing.login_throttle() for each in (one, two)]
        with pytest.raises(LoginThrottled):
            for number in range(2 * limits.LOGIN_USER_FREE + 2):
                await throttles[number % 2].attempt("ann", "192.0.2.1")
        for _ in range(limits.LOGIN_PEER_FREE + 1):
            throttles[0].failed("192.0.2.9")

        def refused() -> bool:
            try:
                throttles[1].check_peer("", "192.0.2.9")
            except LoginThrottled:
                return True
            return False

        await until(refused)

    on_server(test, tmp_path)


def test_metrics_are_added_up(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        one, two = await server.add_worker(), await server.add_worker()
        one.metrics.requests, two.metrics.requests = 3, 4
        await asyncio.to_thread(one.sharing.total_metrics)
        found = await asyncio.to_thread(two.sharing.total_metrics)
        assert found.requests == 7
        assert found.workers == 2
        await one.aclose()
        server.workers.remove(one)
        await until(lambda: server.bus.servers == 1)
        found = await asyncio.to_thread(two.sharing.total_metrics)
        assert (found.requests, found.workers) == (7, 1)  # a counter does not go back

    on_server(test, tmp_path)


def test_an_export_is_of_one_moment(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        keys = (schema.KeyElement("id", "HASH"),)
        await worker.aexecute(
            CreateTable(
                schema.TableSpec(
                    name="things", attributes=(Attribute("id", "S"),), keys=keys, billing=schema.PAY_PER_REQUEST
                )
            )
        )
        for number in range(3):
            await worker.aexecute(commands.PutItem("things", {"id": {"S": f"{number}"}}, 3))
        export = await asyncio.to_thread(worker.exports.begin, "things")
        await worker.aexecute(commands.DeleteItem("things", {"id": {"S": "1"}}))
        page = await asyncio.to_thread(worker.execute, ReadExport(export))
        assert page is not None
        assert len(page.sizes) == 3
        await asyncio.to_thread(worker.exports.end, export)
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.to_thread(worker.execute, ReadExport(export))

    on_server(test, tmp_path)


def test_an_export_that_begins_while_its_link_is_lost_ends(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await asyncio.to_thread(server.db.sql, "CREATE TABLE things (id TEXT PRIMARY KEY)")
        runner: Any = server.db._runner
        runner._turn.acquire()  # a commit takes long
        asked = forwarder(worker).ask(asking.BeginItems(BeginExport("things")))
        await until(lambda: bool(server.bus._tasks))
        forwarder(worker)._link.cut()
        await until(lambda: not any(each.name for each in server.bus._links.values()))
        runner._release_turn()
        await asked  # again, over the next link
        await until(lambda: not server.bus._tasks)
        assert sum(map(len, runner.exports.values())) == 1

    on_server(test, tmp_path)


def test_a_stranger_is_cut_off(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        for first in (["run", []], ["hello", link.PROTOCOL + 7, "9", "x", "y"]):
            reader, writer = await asyncio.open_unix_connection(server.path)
            writer.write(framed(first))
            async with asyncio.timeout(PATIENCE_S):
                found = FrameReader().feed(await reader.read())
            writer.close()
            assert [message[0] for message in found] == ([link.REFUSED] if first[0] == "hello" else [])
            for _, error in found:
                assert isinstance(messages.decode_error(error), Invalid)

    on_server(test, tmp_path)


def test_a_refused_server_knows_why_and_tries_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        hellos: list[float] = []
        greet = server.bus._greet

        def counted(*given: Any) -> None:
            hellos.append(asyncio.get_running_loop().time())
            greet(*given)

        monkeypatch.setattr(server.bus, "_greet", counted)
        monkeypatch.setattr(link, "PROTOCOL", link.PROTOCOL + 7)
        forwarder(worker)._link.cut()
        await asyncio.sleep(1.0)
        assert 3 <= len(hellos) <= 12
        assert "one version at a time" in str(worker.trouble)
        for side in ("is refused", "cannot use the writer"):
            assert len([each for each in caplog.records if side in each.getMessage()]) == 1
        monkeypatch.undo()
        await until(lambda: worker.trouble is None)
        assert forwarder(worker)._retry_s() == limits.BUS_RETRY_S

    on_server(test, tmp_path)


def test_pauses_between_links_end_when_another_server_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        bus = forwarder(worker)
        monkeypatch.setattr(limits, "BUS_RETRY_S_MAX", 1000.0)
        bus._ended = 30
        assert bus._retry_s() >= 500
        pausing = asyncio.ensure_future(bus._pause())
        await asyncio.sleep(0.05)
        assert not pausing.done()
        bus.dropped("other", 1)
        await asyncio.wait_for(pausing, PATIENCE_S)
        assert bus._retry_s() == limits.BUS_RETRY_S

    on_server(test, tmp_path)


# -- what one command, or one worker, must not do to the others


UNSENDABLE_POLICY = r"""{"Version": "2012-10-17", "Statement": [
    {"Effect": "Deny", "\ud800": "x", "Principal": "*", "Action": "dynamodb:*", "Resource": "*"}]}"""


def test_an_error_that_cannot_be_encoded_does_not_hold_up_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CreateStream.run

    def fail(self: Any, tx: Any) -> Any:
        if self.path == "bad":
            raise Invalid("a text \ud800", facts={"name": ["\ud800"], "pair": ("\ud801", 1)})
        return run(self, tx)

    async def test(server: Server) -> None:
        await asyncio.to_thread(server.db.sql, "CREATE TABLE things (id TEXT PRIMARY KEY)")
        one, two = await server.add_worker(), await server.add_worker()
        await one.aexecute(CreateUser(name="ann", role="user"))
        monkeypatch.setattr(CreateStream, "run", fail)
        seen: list[Any] = []
        two.tail.subscribe(USERS_CHANGED, seen.append)
        results = (
            one.aexecute(CreateStream("bad", TEXT)),
            one.aexecute(PutPolicy("things", "", UNSENDABLE_POLICY)),
            one.aexecute(CreateStream("good", TEXT)),
            two.aexecute(AlterUser(name="ann", disabled=True)),
        )
        async with asyncio.timeout(PATIENCE_S):
            bad, refused, good, altered = await asyncio.gather(*results, return_exceptions=True)
        assert isinstance(bad, Invalid) and str(bad) == r"a text \ud800"
        assert bad.facts == {"name": [r"\ud800"], "pair": (r"\ud801", 1)}
        assert isinstance(refused, Invalid) and r"'\ud800' is not supported" in str(refused)
        assert not isinstance(good, BaseException) and not isinstance(altered, BaseException)
        assert seen

    on_server(test, tmp_path)


def test_workers_that_have_ended_are_forgotten_and_what_they_counted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: Server) -> None:
        there = await server.add_worker()
        monkeypatch.setattr(limits, "BUS_FORGET_S", 0.1)
        await server.stop_writer()
        await server.start_writer(replaces=True)  # which forgets after so long
        await until(lambda: there.trouble is None)
        for number in range(4):
            worker = await server.add_worker()
            worker.metrics.requests = 10
            await worker.aexecute(CreateStream(f"{number}", TEXT))
            await asyncio.to_thread(worker.sharing.total_metrics)
            server.workers.remove(worker)
            await worker.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await server.db.aexecute(ListSent())) > 1:
                await asyncio.sleep(0.01)
        assert [row.server for row in found] == [life_name(forwarder(there).server, forwarder(there).life)]
        total = await asyncio.to_thread(there.sharing.total_metrics)
        assert (total.requests, total.workers) == (40, 1)
        assert len(server.bus._totals._servers) == 1

    on_server(test, tmp_path)


def test_a_worker_that_was_frozen_and_forgotten_repeats_nothing(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        worker = await server.add_worker()
        await worker.aexecute(CreateStream("a", TEXT))
        server.bus._flush = lambda: None  # type: ignore[method-assign]
        committed = worker.aexecute(Append("a", b"committed;", TEXT))
        await until(lambda: any(row.upto == 2 for row in server.db.execute(ListSent())))
        (row,) = await server.db.aexecute(ListSent())
        await asyncio.to_thread(server.db.execute, ForgetLife(row.server))
        forwarder(worker)._link.cut()
        with pytest.raises(Unavailable) as unknown:
            await committed
        assert unknown.value.code == "OUTCOME_UNKNOWN"
        del server.bus._flush  # type: ignore[method-assign]
        server.bus._flush()
        assert (await worker.aexecute(Append("a", b"later;", TEXT))).tail == len(b"committed;later;")

    on_server(test, tmp_path)


# -- resource policies


ann = Principal("ann", ROLES["user"], "user")
DENYING = json.dumps({"Version": "2012-10-17", "Statement": [
    {"Effect": "Deny", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/ann"}, "Action": "*", "Resource": "*"}
]})  # fmt: skip


async def denied(db: Database, *, write: bool = False) -> bool:
    command: Any = commands.DeleteItem("things", {"id": {"S": "1"}}) if write else FindTable("things")
    try:
        await db.aexecute(command, ann)
    except Forbidden:
        return True
    return False


async def with_table(server: Server) -> None:
    await asyncio.to_thread(server.db.sql, "CREATE TABLE things (id TEXT PRIMARY KEY)")


def test_a_worker_that_is_cut_off_reads_the_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        await with_table(server)
        one, two = await server.add_worker(), await server.add_worker()
        assert not await denied(one) and not await denied(two)
        monkeypatch.setattr(limits, "BUS_TTL_S", 0.3)

        async def unreachable(*given: Any) -> None:
            raise OSError("the network is split")

        bus = forwarder(two)
        bus._apply, bus._connect = (lambda *given: None), unreachable
        await one.aexecute(PutPolicy("things", "", DENYING))
        assert not bus.fresh
        assert await denied(one)
        assert await denied(two)
        await one.aexecute(DeletePolicy("things", ""))
        assert not await denied(two)

    on_server(test, tmp_path)


def test_a_change_of_a_policy_while_they_are_read_is_not_lost(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        await with_table(server)
        one, two = await server.add_worker(), await server.add_worker()
        await one.aexecute(PutPolicy("things", "", DENYING))
        two.policies.notice([MISSED])
        load, was_read, go_on = two.policies._load, threading.Event(), threading.Event()

        def slow() -> Any:
            rows = list(load())
            was_read.set()
            go_on.wait()
            return rows

        two.policies._load = slow
        loading = asyncio.create_task(asyncio.to_thread(two.policies.load))
        await until(was_read.is_set)
        await one.aexecute(DeletePolicy("things", ""))  # two has confirmed it
        go_on.set()
        await loading
        two.policies._load = load
        assert not await denied(two)

    on_server(test, tmp_path)


def test_policies_on_another_machine_are_not_read_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Server) -> None:
        await with_table(server)
        one = await server.add_worker()
        load, threads = one.policies._load, []

        def noted() -> Any:
            threads.append(threading.get_ident())
            return load()

        one.policies._load = noted
        monkeypatch.setattr(Database, "blocking", True)
        monkeypatch.setattr(type(one._engine), "blocking", True)
        for write in (False, True):
            one.policies.notice([MISSED])
            assert not await denied(one, write=write)
            assert not await denied(one, write=write)
        job = CalledBack(commands.DeleteItem("things", {"id": {"S": "1"}}), "ann", lambda result, error: None)
        one.policies.notice([MISSED])
        one.submit(job, ann)
        await until(lambda: job.result is not None)
        assert len(threads) == 3  # otherwise they are known
        await one.aexecute(PutPolicy("things", "", DENYING))
        for write in (False, True):
            one.policies.notice([MISSED])
            assert await denied(one, write=write)
        one.policies.notice([MISSED])
        one.submit(job, ann)
        await until(lambda: isinstance(job.error, Forbidden))
        assert len(threads) == 6 and threading.get_ident() not in threads

    on_server(test, tmp_path)

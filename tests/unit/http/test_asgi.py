"""The ASGI adapter, driven directly: the events of a server in, the events of an application out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tailrace.completion import Completion
from tailrace.config import Config
from tailrace.http.asgi import AsgiAdapter, AsgiSink, application, create_app
from tailrace.http.message import Answer, Frame, LiveResponse, Request, Response, ResponseSink, origin
from tailrace.http.unsent import SEND_BYTES, Budget
from tailrace.metrics import Metrics
from tests.support.patience import PATIENCE_S

LOOPBACK = {"client": ("127.0.0.1", 1)}
Event = dict[str, Any]


class Host:
    """A server's side of one request."""

    def __init__(self, *events: Event) -> None:
        self._incoming: asyncio.Queue[Event] = asyncio.Queue()
        for event in events or ({"type": "http.request", "body": b"", "more_body": False},):
            self._incoming.put_nowait(event)
        self.sent: list[Event] = []
        self.came = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def receive(self) -> Event:
        return await self._incoming.get()

    async def send(self, event: Any) -> None:
        await self.takes.wait()
        self.sent.append(event)
        self.came.set()

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until_sent(self, count: int) -> None:
        while len(self.sent) < count:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), PATIENCE_S)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(event["body"] for event in self.sent[1:])


class StalledHost(Host):
    """A server whose client takes a head and one slice, and the rest when `takes` is set."""

    async def send(self, event: Any) -> None:
        if len(self.sent) == 2:
            self.takes.clear()
        await super().send(event)


def scope(path: str = "/", method: str = "GET", **more: Any) -> Event:
    return {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], **more}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def echo(request: Request) -> Answer:
    return Response(200, [(b"x", b"y")], b"%b %b?%b %b" % (request.method, request.path, request.query, request.body))


def serve(app: AsgiAdapter, request: Event, *events: Event) -> Host:
    hosts: list[Host] = []

    async def main() -> None:
        host = Host(*events)
        await app(request, host.receive, host.send)
        hosts.append(host)

    run(main())
    return hosts[0]


def test_a_request_is_translated_both_ways() -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Answer:
        seen.append(request)
        return await echo(request)

    request = scope(
        "/a b", "POST", raw_path=b"/a%20b", query_string=b"q=1", client=("10.0.0.1", 5), scheme="https",
        headers=[(b"X-Two", b"1"), (b"x-two", b"2"), (b"host", b"h")],
    )  # fmt: skip
    pieces = ({"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.request", "body": b"c"})
    host = serve(application(handler, [(b"server", b"tailrace")]), request, *pieces)
    assert host.status == 200
    assert host.body == b"POST /a%20b?q=1 abc"
    assert host.headers == {b"x": b"y", b"server": b"tailrace", b"content-length": b"19"}
    assert seen[0].headers == {b"x-two": b"1, 2", b"host": b"h"}
    assert (seen[0].peer, seen[0].secure) == ("10.0.0.1", True)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"path": "/mount/a", "raw_path": b"/mount/a", "root_path": "/mount"}, b"/a"),
        ({"path": "/a", "raw_path": b"/a", "root_path": "/mount"}, b"/a"),
        ({"path": "/mount", "root_path": "/mount"}, b"/"),
        ({"path": "/mountain", "root_path": "/mount"}, b"/mountain"),
        ({"path": "/a b/é"}, b"/a%20b/%C3%A9"),
        ({"path": "/a", "raw_path": b"/a?q=1", "query_string": b"q=1"}, b"/a"),
    ],
)
def test_paths_are_raw_and_below_the_mount(more: dict[str, Any], path: bytes) -> None:
    host = serve(application(echo), scope(**more))
    assert host.body.split(b"?")[0] == b"GET " + path


@pytest.mark.parametrize(
    ("root", "mount"),
    [(None, ""), ("", ""), ("/", ""), ("/log", "/log"), ("/log/", "/log"), ("/a b/é", "/a%20b/%C3%A9")],
)
def test_the_mount_is_part_of_how_clients_reach_us(root: str | None, mount: str) -> None:
    async def handler(request: Request) -> Answer:
        found = [origin(request, Config(dev=True)), origin(request, Config(dev=True, public_url="https://x/y/"))]
        return Response(200, [], f"{request.mount} {' '.join(found)}".encode())

    more = {} if root is None else {"root_path": root}
    host = serve(application(handler), scope("/a", headers=[(b"host", b"h")], **more))
    assert host.body.decode() == f"{mount} http://h{mount} https://x/y"


def test_a_mounted_server_names_its_streams_below_the_mount(data_dir: Path) -> None:
    async def main() -> None:
        app = create_app(dev=True, data=str(data_dir))
        async with app.lifespan():
            host = Host()
            more = {
                "root_path": "/log",
                "headers": [(b"host", b"localhost"), (b"content-type", b"text/plain")],
                **LOOPBACK,
            }
            await app(scope("/log/v1/stream/a", "PUT", **more), host.receive, host.send)
            assert host.status == 201
            assert host.headers[b"location"] == b"http://localhost/log/v1/stream/a"
            for source in (b"/log/v1/stream/a", b"/v1/stream/a"):
                host = Host()
                more["headers"] = [(b"host", b"localhost"), (b"stream-forked-from", source)]
                await app(scope(f"/log/v1/stream/fork{len(source)}", "PUT", **more), host.receive, host.send)
                assert host.status == 201, host.body

    run(main())


def test_frames_sent_together_are_taken_or_dropped_together() -> None:
    async def main() -> None:
        sink = AsgiSink(1000, Budget(1000, Metrics()))
        sink.send(Frame(b"x" * 5000), Frame(b"end"))
        assert not sink.dropped.done(), "the first may be of any size"
        sink.send(Frame(b"y"), Frame(b"z"))
        assert sink.dropped.done()

    run(main())


def test_a_long_response_is_sent_in_slices_and_the_oldest_stall_is_cut() -> None:
    body = bytes(range(256)) * 4096  # 1 MiB

    async def long(request: Request) -> Answer:
        return Response(200, [], body)

    async def main() -> None:
        app = application(long, unsent_bytes_max=len(body) * 5 // 2)
        reading = Host()
        await app(scope(), reading.receive, reading.send)
        assert reading.body == body
        assert max(len(event["body"]) for event in reading.sent[1:]) <= SEND_BYTES
        hosts, tasks = [], []
        for _ in range(3):
            host = StalledHost()
            hosts.append(host)
            tasks.append(asyncio.ensure_future(app(scope(), host.receive, host.send)))
            await host.until_sent(2)
        await tasks[0]
        assert len(hosts[0].body) < len(body) and hosts[0].sent[-1]["more_body"]
        assert not tasks[1].done() and not tasks[2].done()
        for host in hosts:
            host.takes.set()
        await asyncio.gather(*tasks)
        assert hosts[1].body == hosts[2].body == body

    run(main())


def test_head_and_empty_answers() -> None:
    host = serve(application(echo), scope(method="HEAD"))
    assert host.headers[b"content-length"] == b"8"
    assert host.body == b""

    async def nothing(request: Request) -> Answer:
        return Response(204, [])

    assert b"content-length" not in serve(application(nothing), scope()).headers


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_too_large_is_refused(declared: bool) -> None:
    headers = [(b"content-length", b"11")] if declared else []
    piece = {"type": "http.request", "body": b"x" * 6, "more_body": True}
    host = serve(application(echo, body_bytes_max=10), scope(method="POST", headers=headers), piece, piece)
    assert host.status == 413
    assert json.loads(host.body)["error"]["code"] == "TOO_LARGE"


def test_a_client_that_leaves_before_its_body_is_whole() -> None:
    piece = {"type": "http.request", "body": b"x", "more_body": True}
    assert serve(application(echo), scope(method="POST"), piece, {"type": "http.disconnect"}).sent == []


def test_our_bugs_are_answered_500(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> Answer:
        raise ZeroDivisionError

    assert serve(application(broken), scope()).status == 500
    assert caplog.records[0].exc_info


@pytest.mark.parametrize(("method", "cancelled"), [("GET", True), ("POST", False)])
def test_a_client_that_leaves_ends_its_reads_but_not_its_writes(method: str, cancelled: bool) -> None:
    async def main() -> None:
        completion: Completion[None] = Completion()
        seen: list[str] = []
        parked = asyncio.Event()

        async def park(request: Request) -> Answer:
            parked.set()
            try:
                await completion
                seen.append("finished")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            return Response(200, [])

        host = Host()
        task = asyncio.ensure_future(application(park)(scope(method=method), host.receive, host.send))
        await parked.wait()
        host.disconnect()
        if not cancelled:
            await asyncio.sleep(0)
            completion.set(None)
        await task
        assert seen == ["cancelled" if cancelled else "finished"]

    run(main())


def test_a_live_answer_is_sent_piece_by_piece() -> None:
    async def live(request: Request) -> Answer:
        async def count(sink: ResponseSink) -> None:
            for number in range(3):
                sink.send(Frame(b"n%d" % number))
                await sink.drained()
            sink.send(Frame(b"last"))

        return LiveResponse(200, [(b"a", b"b")], count)

    host = serve(application(live, [(b"c", b"d")]), scope())
    assert host.headers == {b"a": b"b", b"c": b"d"}
    assert [event["body"] for event in host.sent[1:]] == [b"", b"n0", b"n1", b"n2", b"last", b""]
    assert [event["more_body"] for event in host.sent[1:]] == [True] * 5 + [False]


def test_a_live_reader_that_leaves_ends_the_run() -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def live(request: Request) -> Answer:
            async def forever(sink: ResponseSink) -> None:
                sink.send(Frame(b"hello"))
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    ended.set()

            return LiveResponse(200, [], forever)

        host = Host()
        task = asyncio.ensure_future(application(live)(scope(), host.receive, host.send))
        await host.until_sent(3)
        host.disconnect()
        await task
        assert ended.is_set()
        assert host.sent[-1]["more_body"]

    run(main())


def test_a_live_reader_that_does_not_read_is_dropped() -> None:
    async def main() -> None:
        async def live(request: Request) -> Answer:
            async def flood(sink: ResponseSink) -> None:
                while True:
                    sink.send(Frame(b"x" * 600))
                    await asyncio.sleep(0)

            return LiveResponse(200, [], flood)

        host = Host()
        task = asyncio.ensure_future(application(live, reader_buffer_max=1000)(scope(), host.receive, host.send))
        await host.until_sent(2)
        host.takes.clear()
        await task
        assert host.sent[-1]["more_body"]

    run(main())


def test_a_live_answer_that_fails_does_not_look_whole() -> None:
    async def live(request: Request) -> Answer:
        async def falls(sink: ResponseSink) -> None:
            raise ZeroDivisionError

        return LiveResponse(200, [], falls)

    with pytest.raises(ZeroDivisionError):
        serve(application(live), scope())


def test_lifespan_runs_the_hooks() -> None:
    ran: list[str] = []

    async def up() -> None:
        ran.append("up")

    async def down() -> None:
        ran.append("down")

    app = application(echo, on_startup=up, on_shutdown=down)
    host = serve(app, {"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert ran == ["up", "down"]
    assert [event["type"] for event in host.sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_failing_start_is_reported_to_the_server() -> None:
    async def up() -> None:
        raise OSError("disk full")

    host = serve(application(echo, on_startup=up), {"type": "lifespan"}, {"type": "lifespan.startup"})
    assert host.sent == [{"type": "lifespan.startup.failed", "message": "disk full"}]


def test_other_scopes_are_not_served() -> None:
    with pytest.raises(RuntimeError, match="websocket"):
        serve(application(echo), {"type": "websocket"})


def test_heads_are_held_to_the_limits_of_the_own_transport() -> None:
    app = application(echo)
    many = [(b"a%d" % at, b"b") for at in range(101)]
    assert serve(app, scope(headers=many[:100])).status == 200
    assert serve(app, scope(headers=many)).status == 431
    assert serve(app, scope(headers=[(b"a", b"b")] * 101)).status == 431, "repeated ones, too"
    assert serve(app, scope(headers=[(b"a", b"b" * 20_000)])).status == 200
    assert serve(app, scope(headers=[(b"a", b"b" * 33_000)])).status == 431
    assert serve(app, scope(query_string=b"b" * 33_000)).status == 431
    target = (b"x-amz-target", b"DynamoDB_20120810.ListTables")
    refused = serve(app, scope(headers=[target, (b"a", b"b" * 17_000)], method="POST"))
    assert refused.status == 400, "as the service does"
    assert json.loads(refused.body)["__type"].endswith("#SerializationException")

"""The HTTP/1.1 transport over real sockets: framing, order, limits, time-outs, live answers, stopping."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace.completion import Completion
from tailrace.http.connection import Connection
from tailrace.http.message import Answer, Frame, LiveResponse, Request, Response, ResponseSink
from tests.unit.http.serving import PATIENCE_S, Answered, Client, Serving

TEXT = [(b"content-type", b"text/plain")]


class Handlers:
    """A handler for each case that a transport must cope with, chosen by path; it keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.parked: dict[bytes, Completion[None]] = {}
        self.cancelled = threading.Event()
        self.finished = threading.Event()
        self.sinks: list[ResponseSink] = []
        self.live_ended = threading.Event()
        self.arrived = threading.Semaphore(0)

    async def handle(self, request: Request) -> Answer:
        self.requests.append(request)
        self.arrived.release()
        route: Callable[[Request], Awaitable[Answer]] = getattr(
            self, request.path[1:].split(b"/")[0].decode() or "echo"
        )
        return await route(request)

    async def echo(self, request: Request) -> Answer:
        return Response(200, TEXT, b"%b %b?%b %b" % (request.method, request.path, request.query, request.body))

    async def empty(self, request: Request) -> Answer:
        return Response(int(request.query), [], b"")

    async def big(self, request: Request) -> Answer:
        return Response(200, TEXT, b"x" * int(request.query))

    async def park(self, request: Request) -> Answer:
        completion: Completion[None] = Completion()
        self.parked[request.query] = completion
        try:
            await completion
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.finished.set()
        return Response(200, TEXT, b"parked " + request.query)

    async def task(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.sleep(0.001)
        return Response(200, TEXT, b"from a task")

    async def broken(self, request: Request) -> Answer:
        raise ZeroDivisionError("our bug")

    async def splitting(self, request: Request) -> Answer:
        return Response(200, [(b"x", b"a\r\nset-cookie: b")], b"")

    async def nothing(self, request: Request) -> Answer:
        return None  # type: ignore[return-value]

    async def count(self, request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            for number in range(3):
                sink.send(Frame(b"n%d" % number))
                sink.send(Frame(b""))
                await sink.drained()

        return LiveResponse(200, [(b"content-type", b"text/event-stream")], run)

    async def forever(self, request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            self.sinks.append(sink)
            sink.send(Frame(b"hello"))
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.live_ended.set()

        return LiveResponse(200, [], run)

    async def flood(self, request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            frame = Frame(b"x" * 8192)
            try:
                while True:
                    sink.send(frame)
                    await asyncio.sleep(0)
            finally:
                self.live_ended.set()

        return LiveResponse(200, [], run)

    async def polite(self, request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            for _ in range(200):
                sink.send(Frame(b"x" * 65536))
                await sink.drained()

        return LiveResponse(200, [], run)

    async def falls(self, request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            sink.send(Frame(b"half"))
            raise ZeroDivisionError("our bug")

        return LiveResponse(200, [], run)

    def release(self, name: bytes) -> None:
        self.parked[name].set(None)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def serving(handlers: Handlers) -> Iterator[Serving]:
    with Serving(handlers.handle) as running:
        yield running


def get(path: str = "/", *fields: str, version: str = "1.1", method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/{version}", "Host: test", *fields, "", "")).encode("latin-1")


def post(path: str, body: bytes, *fields: str) -> bytes:
    return get(path, f"Content-Length: {len(body)}", *fields, method="POST") + body


def code(answer: Answered) -> str:
    """The code in an error's body, which must also say something to a person."""
    error = json.loads(answer.body)["error"]
    assert error["message"]
    return str(error["code"])


def closed(client: Client) -> bool:
    return client.rest() == b""


# -- requests and answers


def test_an_answer_carries_length_date_and_the_common_fields(serving: Serving) -> None:
    with serving.client() as client:
        answer = client.ask(post("/echo/a%20b?c=d", b"body", "X-Two: 1", "x-two:  2  "))
    assert answer.status == 200
    assert answer.body == b"POST /echo/a%20b?c=d body"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["date"].endswith("GMT")
    assert answer.headers["server"] == "tailrace"
    assert "connection" not in answer.headers


def test_repeated_fields_are_joined_and_names_lowered(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.ask(get("/", "X-Two: 1", "x-two:  2  ", "Empty:"))
    (request,) = handlers.requests
    assert request.headers == {b"host": b"test", b"x-two": b"1, 2", b"empty": b""}
    assert request.peer == "127.0.0.1"
    assert not request.secure


def test_a_connection_is_kept_alive(serving: Serving) -> None:
    with serving.client() as client:
        for number in range(5):
            assert client.ask(get(f"/?{number}")).body == b"GET /?%d " % number
    assert serving.server.stats.connections == 1
    assert serving.server.stats.requests == 5


def test_connection_close_is_honoured_and_what_follows_is_dropped(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        answer = client.ask(get("/", "Connection: close") + get("/second"))
        assert answer.headers["connection"] == "close"
        assert closed(client)
    assert len(handlers.requests) == 1


def test_http_1_0_closes_unless_asked(serving: Serving) -> None:
    with serving.client() as client:
        assert client.ask(b"GET / HTTP/1.0\r\n\r\n").headers["connection"] == "close"
        assert closed(client)
    with serving.client() as client:
        for _ in range(2):
            answer = client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert answer.headers["connection"] == "keep-alive"


def test_head_has_the_length_but_not_the_body(serving: Serving) -> None:
    with serving.client() as client:
        answer = client.ask(get("/big?1234", method="HEAD"), head_only=True)
        assert answer.headers["content-length"] == "1234"
        assert "content-length" not in client.ask(get("/empty?200", method="HEAD"), head_only=True).headers
        assert client.ask(get("/count", method="HEAD"), head_only=True).status == 200
        assert client.ask(get("/")).body == b"GET /? "


@pytest.mark.parametrize("status", [204, 304])
def test_answers_that_have_no_body(serving: Serving, status: int) -> None:
    with serving.client() as client:
        answer = client.ask(get(f"/empty?{status}"))
        assert answer.status == status
        assert "content-length" not in answer.headers
        assert client.ask(get("/")).status == 200


def test_a_large_answer_arrives_whole(serving: Serving) -> None:
    with serving.client() as client:
        for size in (65_535, 65_537, 20_000_000):
            assert client.ask(get(f"/big?{size}")).body == b"x" * size


def test_chunked_requests_are_put_together_and_trailers_ignored(serving: Serving, handlers: Handlers) -> None:
    chunks = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in (b"a", b"bc", b"d" * 5000))
    with serving.client() as client:
        head = get("/", "Transfer-Encoding: chunked", method="POST")
        answer = client.ask(head + chunks + b"0\r\nX-Trailer: evil\r\nHost: other\r\n\r\n" + get("/?next"))
        assert answer.body == b"POST /? abc" + b"d" * 5000
        assert client.answer().body == b"GET /?next "
    assert handlers.requests[0].headers[b"host"] == b"test"
    assert b"x-trailer" not in handlers.requests[0].headers


def test_absolute_targets_overrule_host(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        assert client.ask(get("http://other:80/echo/a?b")).body == b"GET /echo/a?b "
        assert client.ask(get("HTTPS://other")).body == b"GET /? "
        assert client.ask(get("http://other?q")).body == b"GET /?q "
    assert [request.headers[b"host"] for request in handlers.requests] == [b"other:80", b"other", b"other"]


def test_options_asterisk_reaches_the_handler(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.ask(get("*", method="OPTIONS"))
    assert handlers.requests[0].path == b"*"


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_is_ignored_and_its_body_is_not_taken_for_a_request(
    serving: Serving, handlers: Handlers, chunked: bool
) -> None:
    body = get("/smuggled")
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    with serving.client() as client:
        assert client.ask(get("/", *upgrade)).status == 200
        if chunked:
            head = get("/", "Transfer-Encoding: chunked", *upgrade, method="POST")
            client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        else:
            client.send(post("/", body, *upgrade))
        assert client.answer().body == b"POST /? " + body
        assert client.ask(post("/", body, *upgrade) + get("/?last")).body == b"POST /? " + body
        assert client.answer().body == b"GET /?last "
    assert [request.path for request in handlers.requests] == [b"/"] * 4


def test_what_is_wrong_behind_an_upgrade_is_refused_as_elsewhere(serving: Serving) -> None:
    with serving.client() as client:
        client.send(post("/", b"abc", "Connection: upgrade", "Upgrade: x") + b"GET / HTTP/1.1\r\n\r\n")
        assert [client.answer().status for _ in range(2)] == [200, 400]


def test_an_upgrade_whose_body_comes_byte_by_byte(serving: Serving) -> None:
    with serving.client() as client:
        for byte in post("/", b"abc", "Connection: upgrade", "Upgrade: websocket") + get("/?2"):
            client.send(bytes([byte]))
        assert client.answer().body == b"POST /? abc"
        assert client.answer().body == b"GET /?2 "


def test_a_handler_that_needs_a_task_gets_one(serving: Serving) -> None:
    with serving.client() as client:
        assert client.ask(get("/task")).body == b"from a task"


@pytest.mark.parametrize("path", ["/broken", "/splitting", "/nothing"])
def test_our_bugs_are_logged_and_answered_500(serving: Serving, caplog: pytest.LogCaptureFixture, path: str) -> None:
    with caplog.at_level(logging.ERROR, "tailrace.http"), serving.client() as client:
        answer = client.ask(get(path))
        assert answer.status == 500
        assert code(answer) == "INTERNAL"
        assert "set-cookie" not in answer.headers
        assert client.ask(get("/")).status == 200
    assert caplog.records[0].exc_info
    assert serving.server.stats.failures == 1


# -- pipelining


def test_answers_come_in_the_order_of_the_requests(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b"") + post("/park?b", b"") + post("/echo", b"c") + get("/?d"))
        for _ in range(3):
            assert handlers.arrived.acquire(timeout=PATIENCE_S)
        serving.call(lambda: handlers.release(b"b"))
        serving.call(lambda: handlers.release(b"a"))
        assert [client.answer().body for _ in range(4)] == [b"parked a", b"parked b", b"POST /echo? c", b"GET /?d "]


def test_a_read_waits_for_the_writes_before_it_and_writes_wait_for_it(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b"") + get("/park?b") + post("/echo", b""))
        for name in (b"a", b"b"):
            assert handlers.arrived.acquire(timeout=PATIENCE_S)
            assert not handlers.arrived.acquire(blocking=False)
            serving.call(partial(handlers.release, name))
        assert [client.answer().body for _ in range(3)] == [b"parked a", b"parked b", b"POST /echo? "]


def test_a_full_pipeline_stops_reading(handlers: Handlers) -> None:
    body = b"x" * 100_000
    with Serving(handlers.handle, pipeline_max=3) as serving, serving.client() as client:
        client.sock.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):  # nobody reads any more
            while True:
                client.send(post(f"/park?{sent}", body))
                sent += 1
        _until(lambda: len(handlers.requests) == 3)
        assert sent > 3


def test_thousands_of_pipelined_requests(serving: Serving) -> None:
    count = 5000
    with serving.client() as client:
        sender = threading.Thread(target=client.send, args=(b"".join(get(f"/?{n}") for n in range(count)),))
        sender.start()
        for number in range(count):
            assert client.answer().body == b"GET /?%d " % number
        sender.join()


def test_many_requests_at_once_do_not_hold_up_the_loop() -> None:
    seen: list[bytes] = []
    at_next_turn: list[int] = []

    async def handle(request: Request) -> Answer:
        if not seen:
            asyncio.get_running_loop().call_soon(lambda: at_next_turn.append(len(seen)))
        seen.append(request.query)
        return Response(200, TEXT, request.query)

    count = 500
    with Serving(handle, pipeline_max=8) as serving, serving.client() as client:
        client.send(b"".join(get(f"/?{n}") for n in range(count)))
        assert [client.answer().body for _ in range(count)] == [b"%d" % n for n in range(count)]
        assert at_next_turn[0] <= 8
        assert client.ask(get("/?again")).body == b"again"


def test_an_error_behind_good_requests_waits_its_turn(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b"") + get("/") + b"rubbish\r\n\r\n")
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        serving.call(lambda: handlers.release(b"a"))
        assert [client.answer().status for _ in range(3)] == [200, 200, 400]
        assert closed(client)


# -- refusals

REFUSED = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (get("/", "Host: other"), 400),
    "bad host": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "host with a user": (get("http://user@host/"), 400),
    "folded line": (get("/", "X: a", " b"), 400),
    "bare CR": (get("/", "X: a\rb"), 400),
    "NUL": (get("/", "X: a\0b"), 400),
    "space before colon": (get("/", "X : a"), 400),
    "no colon": (get("/", "X"), 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: test\n\n", 400),
    "fragment": (get("/a#b"), 400),
    "control byte in target": (get("/\x01"), 400),
    "non-ASCII target": (get("/\xff"), 400),
    "authority form": (get("host:80"), 400),
    "asterisk for GET": (get("*"), 400),
    "other scheme": (get("ftp://host/"), 400),
    "no authority": (get("http:///path"), 400),
    "CONNECT": (get("host:80", method="CONNECT"), 400),
    "method nobody knows": (get("/", method="FOO"), 400),
    "HTTP/2.0": (get("/", version="2.0"), 400),
    "HTTP/1.2": (get("/", version="1.2"), 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "bad chunk": (get("/", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n", 400),
    "length and chunked": (get("/", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST"), 400),
    "two lengths": (get("/", "Content-Length: 3", "Content-Length: 4", method="POST"), 400),
    "other coding": (get("/", "Transfer-Encoding: gzip, chunked", method="POST"), 400),
    "chunked in HTTP/1.0": (get("/", "Transfer-Encoding: chunked", method="POST", version="1.0"), 400),
    "unknown expectation": (get("/", "Expect: a-pony", "Content-Length: 1", method="POST"), 417),
    "unknown expectation, no body": (get("/", "Expect: a-pony"), 417),
    "too long by its own word": (get("/", f"Content-Length: {10**9}", method="POST"), 413),
    "long beyond numbers": (get("/", f"Content-Length: {2**64 - 1}", method="POST"), 413),
    "too many fields": (get("/", *(f"X-{n}: 1" for n in range(101))), 431),
    "one field too often": (get("/", *("X: 1" for n in range(101))), 431),
    "too large a field": (get("/", "X: " + "x" * 40_000), 431),
    "too large a target": (get("/" + "x" * 40_000), 431),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(serving: Serving, handlers: Handlers, name: str) -> None:
    data, status = REFUSED[name]
    with serving.client() as client:
        answer = client.ask(data)
        assert answer.status == status
        assert code(answer)
        assert answer.headers["connection"] == "close"
        assert answer.headers["server"] == "tailrace"
        assert closed(client)
    assert handlers.requests == []
    assert serving.server.stats.refusals == 1


def send_until_answered(client: Client, piece: bytes) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not select.select([client.sock], [], [], 0)[0]:
        assert time.monotonic() < deadline, "no answer"
        client.send(piece)


def test_a_field_that_never_ends_is_cut_off(serving: Serving) -> None:
    with serving.client() as client:
        client.send(b"GET / HTTP/1.1\r\nHost: test\r\nX: ")
        send_until_answered(client, b"x" * 1024)
        assert client.answer().status == 431


@pytest.mark.parametrize("filler", [b"X: ", b"X: y\r\n"])
def test_trailers_that_never_end_are_cut_off(serving: Serving, filler: bytes) -> None:
    with serving.client() as client:
        client.send(get("/", "Transfer-Encoding: chunked", method="POST") + b"1\r\na\r\n0\r\n" + filler)
        send_until_answered(client, filler * 300)
        assert client.answer().status == 431


def test_a_chunked_body_too_large_is_refused_as_it_comes(handlers: Handlers) -> None:
    with Serving(handlers.handle, body_bytes_max=10_000) as serving, serving.client() as client:
        client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
        client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        client.send(b"1\r\nx\r\n")
        assert client.answer().status == 413
        assert handlers.requests == []


def test_a_body_of_exactly_the_limit_is_taken(handlers: Handlers) -> None:
    with Serving(handlers.handle, body_bytes_max=10_000) as serving, serving.client() as client:
        assert client.ask(post("/", b"x" * 10_000)).status == 200
        assert client.ask(post("/", b"x" * 10_001)).status == 413


def test_a_client_that_goes_on_sending_still_sees_the_refusal(serving: Serving) -> None:
    with serving.client() as client:
        client.send(get("/", f"Content-Length: {10**9}", method="POST"))
        for _ in range(50):
            client.send(b"x" * 100_000)
        assert client.answer().status == 413
        assert closed(client)


def test_lingering_has_an_end(handlers: Handlers) -> None:
    with Serving(handlers.handle, linger_s=0.05) as serving, serving.client() as client:
        assert client.ask(b"rubbish\r\n\r\n").status == 400
        assert closed(client)
        with pytest.raises(OSError):  # the second send or a later one meets the reset
            while True:
                client.send(b"x")


# -- Expect: 100-continue


def test_continue_is_sent_before_the_body(serving: Serving) -> None:
    with serving.client() as client:
        client.send(get("/", "Expect: 100-Continue", "Content-Length: 4", method="POST"))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.ask(b"body").body == b"POST /? body"


def test_continue_is_not_sent_for_a_body_that_will_be_refused(serving: Serving) -> None:
    with serving.client() as client:
        client.send(get("/", "Expect: 100-continue", f"Content-Length: {10**9}", method="POST"))
        assert client.answer().status == 413


def test_continue_waits_for_earlier_answers(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b"") + get("/", "Expect: 100-continue", "Content-Length: 1", method="POST"))
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        assert client.ask(b"x").body == b"POST /? x"


# -- time-outs


def pass_time(serving: Serving, seconds: float) -> None:
    """Let the connections find that so much time has passed: what a test does meanwhile may then take any time."""
    shared = serving.server._shared
    assert shared is not None
    serving.call(lambda: [each.check(shared.loop.time() + seconds) for each in tuple(shared.connections)])


def test_a_slow_head_is_answered_and_closed(handlers: Handlers) -> None:
    with Serving(handlers.handle, head_timeout_s=0.05) as serving, serving.client() as client:
        answer = client.ask(b"GET / HT")
        assert answer.status == 408
        assert code(answer) == "TIMEOUT"
        assert closed(client)


def test_a_stalled_body_is_answered_and_closed(handlers: Handlers) -> None:
    with Serving(handlers.handle, body_timeout_s=0.05) as serving, serving.client() as client:
        assert client.ask(get("/", "Content-Length: 10", method="POST") + b"abc").status == 408
        assert closed(client)


def test_a_body_that_keeps_coming_gets_more_time(handlers: Handlers) -> None:
    with Serving(handlers.handle, body_timeout_s=PATIENCE_S, body_rate_min=1) as serving, serving.client() as client:
        client.send(get("/", "Content-Length: 1200", method="POST"))
        for number in range(1, 4):
            client.send(b"x" * 300)
            _until(lambda number=number: held(serving) == 300 * number)
            pass_time(serving, PATIENCE_S * number + 1)
        assert client.ask(b"x" * 300).status == 200


def test_an_idle_connection_is_closed_without_a_word(handlers: Handlers) -> None:
    with Serving(handlers.handle, idle_timeout_s=0.05) as serving, serving.client() as client:
        assert closed(client)
    with Serving(handlers.handle) as serving, serving.client() as client:
        assert client.ask(get("/")).status == 200
        pass_time(serving, 3600)
        assert closed(client)


def test_a_parked_request_is_not_idle(handlers: Handlers) -> None:
    with Serving(handlers.handle) as serving, serving.client() as client:
        client.send(get("/park?a"))
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        pass_time(serving, 3600)
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"


def test_a_reader_that_takes_nothing_is_cut_off(handlers: Handlers) -> None:
    with Serving(handlers.handle, idle_timeout_s=2) as serving, serving.client() as client:
        client.send(get("/big?50000000") + get("/"))
        _until(lambda: serving.server.stats.connections == 1 and serving.server.connections == 0)
        with pytest.raises((EOFError, OSError)):
            client.exactly(50_000_000)
    assert len(handlers.requests) == 1  # the second was not started while the first could not be written


def test_one_connection_too_many_is_refused(handlers: Handlers) -> None:
    with Serving(handlers.handle, connections_max=2) as serving:
        with serving.client() as one, serving.client() as two:
            assert one.ask(get("/")).status == two.ask(get("/")).status == 200
            with serving.client() as three:
                answer = three.answer()
                assert answer.status == 503
                assert code(answer) == "UNAVAILABLE"
                assert closed(three)
        _until(lambda: serving.server.connections == 0)
        with serving.client() as client:
            assert client.ask(get("/")).status == 200


# -- leaving


def reset(client: Client) -> None:
    """Close so that the server sees a reset, which only a client that is gone sends."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


def test_a_half_closed_client_gets_its_answers(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b"") + get("/"))
        client.sock.shutdown(socket.SHUT_WR)
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"
        assert client.answer().body == b"GET /? "
        assert closed(client)


def test_a_read_of_a_client_that_left_is_cancelled(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(get("/park?a"))
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        reset(client)
    assert handlers.cancelled.wait(PATIENCE_S)
    assert serving.server.stats.failures == 0


def test_a_read_of_a_client_that_closed_is_cancelled_after_a_while(handlers: Handlers) -> None:
    with Serving(handlers.handle, linger_s=0.05) as serving:
        with serving.client() as client:
            client.send(get("/park?a"))
            assert handlers.arrived.acquire(timeout=PATIENCE_S)
        assert handlers.cancelled.wait(PATIENCE_S)


def test_a_write_of_a_client_that_left_is_finished(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(post("/park?a", b""))
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        reset(client)
    _until(lambda: serving.server.connections == 0)
    assert not handlers.cancelled.is_set()
    serving.call(lambda: handlers.release(b"a"))
    assert handlers.finished.is_set()


# -- live answers


def test_a_live_answer_is_chunked_and_keeps_the_connection(serving: Serving) -> None:
    with serving.client() as client:
        answer = client.ask(get("/count") + get("/?next"))
        assert answer.headers["transfer-encoding"] == "chunked"
        assert "content-length" not in answer.headers
        assert answer.body == b"n0n1n2"
        assert client.answer().body == b"GET /?next "


def test_a_live_answer_to_a_write_in_a_pipeline(serving: Serving) -> None:
    with serving.client() as client:
        client.send(post("/echo", b"1") + post("/count", b"") + post("/echo", b"2"))
        assert [client.answer().body for _ in range(3)] == [b"POST /echo? 1", b"n0n1n2", b"POST /echo? 2"]


def test_a_live_answer_for_http_1_0_ends_with_the_connection(serving: Serving) -> None:
    with serving.client() as client:
        client.send(b"GET /count HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head = client.until(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"connection: close" in head
        assert client.rest() == b"n0n1n2"


def test_a_live_reader_that_closes_is_noticed_at_once(handlers: Handlers) -> None:
    with Serving(handlers.handle, linger_s=1000) as serving:
        with serving.client() as client:
            client.send(get("/forever"))
            client.until(b"hello\r\n")
        assert handlers.live_ended.wait(PATIENCE_S)
        _until(lambda: serving.server.connections == 0)
        serving.call(lambda: handlers.sinks[0].send(Frame(b"nobody reads this")))


def test_a_live_reader_that_does_not_read_is_dropped(handlers: Handlers) -> None:
    with Serving(handlers.handle, reader_buffer_max=100_000) as serving, serving.client() as client:
        client.send(get("/flood"))
        assert handlers.live_ended.wait(PATIENCE_S)
        assert serving.server.stats.readers_dropped == 1


def test_a_writer_that_waits_for_the_reader_loses_nothing(handlers: Handlers) -> None:
    with Serving(handlers.handle, reader_buffer_max=100_000) as serving, serving.client() as client:
        assert len(client.ask(get("/polite")).body) == 200 * 65536
        assert serving.server.stats.readers_dropped == 0


def test_a_frame_larger_than_the_limit_reaches_a_reader_that_keeps_up(handlers: Handlers) -> None:
    with Serving(handlers.handle, reader_buffer_max=1000) as serving, serving.client() as client:
        assert len(client.ask(get("/polite")).body) == 200 * 65536


def test_a_live_answer_that_fails_does_not_look_whole(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "tailrace.http"), serving.client() as client:
        client.send(get("/falls"))
        with pytest.raises((EOFError, ConnectionResetError)):
            client.answer()
    assert caplog.records[0].exc_info


# -- methods, and what bodies of all connections may take


@pytest.mark.parametrize("method", ["MKCOL", "PROPFIND", "M-SEARCH", "LOCK", "REPORT", "PURGE", "TRACE", "PATCH"])
def test_a_method_of_another_protocol_is_for_the_handler_to_refuse(serving: Serving, method: str) -> None:
    with serving.client() as client:
        assert client.ask(get("/", method=method)).body == method.encode() + b" /? "
        assert client.ask(get("/")).status == 200, "and the connection stays"


def held(serving: Serving) -> int:
    shared = serving.server._shared
    assert shared is not None
    return shared.held_bytes


def test_unfinished_bodies_have_one_budget(handlers: Handlers) -> None:
    start = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
    with Serving(handlers.handle, inbound_bytes_max=1500) as serving:
        with serving.client() as one, serving.client() as two, serving.client() as three:
            one.send(start + b"x" * 900)
            _until(lambda: held(serving) == 900)
            assert two.ask(post("/", b"y" * 1000)).status == 200, "what comes whole is not held"
            answer = three.ask(start + b"x" * 700)
            assert answer.status == 503
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
            assert json.loads(answer.body)["error"]["code"] == "UNAVAILABLE"
            _until(lambda: held(serving) == 900)
            assert one.ask(b"x" * 100).status == 200
            _until(lambda: held(serving) == 0)
            for _ in range(3):  # what was let go can be had again
                one.send(start + b"x" * 900)
                _until(lambda: held(serving) == 900)
                assert one.ask(b"x" * 100).status == 200
                _until(lambda: held(serving) == 0)
            one.send(start + b"x" * 900)
            _until(lambda: held(serving) == 900)
        _until(lambda: held(serving) == 0)


def test_a_body_is_held_until_its_request_has_its_turn(handlers: Handlers) -> None:
    with Serving(handlers.handle) as serving, serving.client() as client:
        client.send(get("/park?a"))
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900)
        _until(lambda: held(serving) == 900)
        client.send(b"x" * 100)
        time.sleep(0.05)
        assert held(serving) == 900
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"
        assert client.answer().status == 200
        _until(lambda: held(serving) == 0)


def test_a_body_is_released_when_the_handler_has_it_or_never_will(handlers: Handlers) -> None:
    start = b" HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900
    with Serving(handlers.handle) as serving, serving.client() as client:
        client.send(b"POST /park?a" + start)
        _until(lambda: held(serving) == 900)
        client.send(b"x" * 100)
        assert handlers.arrived.acquire(timeout=PATIENCE_S)
        _until(lambda: held(serving) == 0)
        client.send(b"POST /" + start)  # and no more: it is refused, but the answer has to wait for the first
        _until(lambda: held(serving) == 900)
        pass_time(serving, 3600)
        assert held(serving) == 0
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"
        assert client.answer().status == 408


def test_a_body_too_slow_or_too_large_is_released(handlers: Handlers) -> None:
    with Serving(handlers.handle, body_timeout_s=0.1) as serving, serving.client() as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" + b"x" * 900)
        assert client.answer().status == 408
        assert held(serving) == 0
        assert serving.server._shared is not None
        (lingering,) = serving.server._shared.connections
        assert isinstance(lingering, Connection)
        assert lingering._body == b"", "what is no longer counted is no longer kept"
    with Serving(handlers.handle, body_bytes_max=2000) as serving, serving.client() as client:
        client.send(get("/", "Transfer-Encoding: chunked", method="POST") + b"640\r\n" + b"x" * 1600 + b"\r\n")
        _until(lambda: held(serving) == 1600)
        client.send(b"640\r\n" + b"x" * 1600 + b"\r\n")
        assert client.answer().status == 413
        assert held(serving) == 0


# -- stopping


@pytest.mark.parametrize("beginning", [b"", b"GET /ec"])
def test_a_connection_that_waits_keeps_no_head_and_takes_the_next_request(
    serving: Serving, handlers: Handlers, beginning: bytes
) -> None:
    """Not even the parser, unless the next request has begun to arrive."""
    fields = ("X-Long: " + "x" * 1000,)
    with serving.client() as client:
        client.send(get("/park?a", *fields) + beginning)
        _until(lambda: b"a" in handlers.parked)
        shared = serving.server._shared
        assert shared is not None
        (connection,) = shared.connections
        begun = shared.now
        _until(lambda: shared.now > begun + 3 * shared.limits.tick_s)
        assert (connection._parser is None) == (not beginning)
        assert beginning or connection._headers == {}
        client.send(get("/echo/second", *fields)[len(beginning) :])
        serving.call(lambda: handlers.release(b"a"))
        assert client.answer().body == b"parked a"
        assert client.answer().body == b"GET /echo/second? "
        assert client.ask(get("/echo/third", *fields)).body == b"GET /echo/third? "
    assert [request.headers[b"x-long"] for request in handlers.requests] == [b"x" * 1000] * 3


def test_a_live_answer_keeps_no_head_and_what_follows_waits_for_its_end(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        client.send(get("/forever"))
        client.until(b"hello\r\n")
        shared = serving.server._shared
        assert shared is not None
        (connection,) = shared.connections
        _until(lambda: connection._parser is None)
        client.send(post("/echo", b"x"))
        _until(lambda: bool(connection._waiting))
        begun = shared.now
        _until(lambda: shared.now > begun + 3 * shared.limits.tick_s)
        assert len(handlers.requests) == 1


def test_stopping_answers_what_is_under_way_and_closes_the_rest(handlers: Handlers) -> None:
    with Serving(handlers.handle) as serving:
        idle, busy, live, half = (serving.client() for _ in range(4))
        idle.ask(get("/"))
        live.send(get("/forever"))
        live.until(b"hello\r\n")
        half.send(get("/", "Content-Length: 4", "Expect: 100-continue", method="POST"))
        half.until(b"\r\n\r\n")
        busy.send(post("/park?a", b""))
        _until(lambda: b"a" in handlers.parked)
        stopping = threading.Thread(target=lambda: serving.run(serving.server.stop()))
        stopping.start()
        assert closed(idle)
        assert live.rest() == b"0\r\n\r\n"
        serving.call(lambda: handlers.release(b"a"))
        answer = busy.answer()
        assert answer.body == b"parked a"
        assert answer.headers["connection"] == "close"
        assert closed(busy)
        assert half.ask(b"body").headers["connection"] == "close"
        stopping.join(PATIENCE_S)
        with pytest.raises(OSError):
            serving.client()
        for client in (idle, busy, live, half):
            client.sock.close()


def test_stopping_does_not_wait_for_parked_reads_for_ever(handlers: Handlers) -> None:
    with Serving(handlers.handle, shutdown_s=0.2) as serving, serving.client() as client:
        client.send(get("/park?a"))
        _until(lambda: b"a" in handlers.parked)
        serving.run(serving.server.stop())
        answer = client.answer()
        assert answer.status == 503
        assert answer.headers["connection"] == "close"


def test_stopping_cuts_off_what_does_not_end(handlers: Handlers) -> None:
    with Serving(handlers.handle, shutdown_s=0.2) as serving, serving.client() as client:
        client.send(post("/park?a", b""))
        _until(lambda: b"a" in handlers.parked)
        serving.run(serving.server.stop())
        assert serving.server.connections == 0


def test_stopping_takes_no_longer_than_it_may(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a connection does not end although it was cut off."""
    with Serving(handlers.handle, shutdown_s=2.0) as serving, serving.client() as client:
        client.send(post("/park?a", b""))
        _until(lambda: b"a" in handlers.parked)
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "abort", lambda connection: None)
            began = time.monotonic()
            serving.run(serving.server.stop())
            assert 1.7 < time.monotonic() - began < PATIENCE_S


# -- TLS, and the standard event loop


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("tls")
    key, chain = directory / "key.pem", directory / "chain.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(chain), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return key, chain


@pytest.fixture
def tls_serving(handlers: Handlers, certificate: tuple[Path, Path]) -> Iterator[Serving]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    with Serving(handlers.handle, ssl_context=context, handshake_timeout_s=3) as running:
        yield running


def tls_client(serving: Serving) -> Client:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return Client(context.wrap_socket(socket.create_connection(serving.address, timeout=PATIENCE_S)))


def test_tls_serves_refuses_and_streams(tls_serving: Serving, handlers: Handlers) -> None:
    with tls_client(tls_serving) as client:
        assert client.ask(get("/")).status == 200
        assert client.ask(get("/count")).body == b"n0n1n2"
        assert len(client.ask(get("/big?3000000")).body) == 3_000_000
        assert client.ask(b"rubbish\r\n\r\n").status == 400
    assert handlers.requests[0].secure


def test_a_tls_handshake_has_a_time_out(tls_serving: Serving) -> None:
    with tls_serving.client() as client:
        assert client.rest() == b""


def test_the_standard_event_loop_serves_too(handlers: Handlers) -> None:
    with Serving(handlers.handle, plain_asyncio=True) as serving, serving.client() as client:
        assert client.ask(get("/")).status == 200
        assert client.ask(get("/count")).body == b"n0n1n2"
        assert len(client.ask(get("/big?3000000")).body) == 3_000_000
        assert client.ask(b"rubbish\r\n\r\n").status == 400
        assert closed(client)


def test_a_socket_already_bound_is_listened_on_with_nodelay() -> None:
    async def handle(request: Request) -> Answer:
        return Response(200, [])

    serving = Serving(handle)
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    start = serving.server.start
    serving.server.start = lambda *_, **__: start(sock=bound)  # type: ignore[method-assign]
    with serving, serving.client() as client:
        assert serving.address == ("127.0.0.1", port)
        assert client.ask(get("/")).status == 200


def _until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# -- what is around chunks, and heads of the DynamoDB API


@pytest.mark.parametrize("split", [False, True], ids=["in one piece", "head and body split"])
@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        ([(100, b"a")] * 20, 200),  # 2 kB of extensions in all
        ([(3_000, b"a")], 200),
        ([(20_000, b"a")], 431),
        ([(0, b"a" * 20_000), (20_000, b"b")], 431),
        ([(400, b"a")] * 50, 431),
        ([(60, b"a" * 1_000)] * 500, 431),
        ([(0, b"a" * 50_000)], 200),
        ([(0, b"a")] * 5_000, 200),
        ([(0, b"")], 200),
    ],
)
def test_chunk_extensions_are_bounded_over_the_whole_body(
    serving: Serving, handlers: Handlers, chunks: list[tuple[int, bytes]], status: int, split: bool
) -> None:
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    parts = [
        b"%x%b\r\n%b\r\n" % (len(piece), (b";" + b"e" * size)[: size and size + 1], piece)
        for size, piece in chunks
        if piece
    ]
    body = b"".join(parts) + b"0\r\n\r\n"
    with serving.client() as client:
        if split:
            client.send(head[:-2])
            client.send(head[-2:] + body)
            answer = client.answer()
        else:
            answer = client.ask(head + body)
        assert answer.status == status
    if status == 200:
        assert handlers.requests[-1].body == b"".join(piece for _, piece in chunks)
    else:
        assert not handlers.requests, "it was refused before it was run"


def test_sizes_of_chunks_padded_with_zeros_count_as_extensions(serving: Serving, handlers: Handlers) -> None:
    with serving.client() as client:
        head = get("/", "Transfer-Encoding: chunked", method="POST")
        assert client.ask(head + b"0" * 8_000 + b"1\r\na\r\n0\r\n\r\n").status in (400, 431)
    assert not handlers.requests


def test_trailers_are_counted_like_header_fields(serving: Serving, handlers: Handlers) -> None:
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    for count, status in ((100, 200), (101, 431), (3_000, 431)):
        with serving.client() as client:
            trailers = b"".join(b"T%d: 1\r\n" % number for number in range(count))
            assert client.ask(head + b"1\r\na\r\n0\r\n" + trailers + b"\r\n").status == status
    assert len(handlers.requests) == 1


def test_a_large_body_behind_other_requests_stays_whole(serving: Serving, handlers: Handlers) -> None:
    body = b"\r\n\r\n" + b"x" * 60_000
    first = get("/?1", f"Content-Length: {len(body)}", method="POST") + body
    chunked = get("/?2", "Transfer-Encoding: chunked", method="POST") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with serving.client() as client:
        client.send(first + chunked + first + get("/?end"))
        assert [client.answer().status for _ in range(4)] == [200] * 4
    assert [request.body for request in handlers.requests] == [body, body, body, b""]


@pytest.mark.parametrize(
    ("target", "fields", "status"),
    [
        ("/", ["Header1: " + "x" * 7_000, "Header2: " + "y" * 7_000], 200),
        ("/", ["Header1: " + "x" * 8_192, "Header2: " + "y" * 8_192], 400),
        ("/" + "x" * 17_000, [], 400),
        ("/?" + "x" * 17_000, [], 400),
        ("/", ["Header1: " + "x" * 40_000], 400),
    ],
)
def test_a_head_of_the_dynamodb_api_has_16_kb(
    serving: Serving, handlers: Handlers, target: str, fields: list[str], status: int
) -> None:
    signed = ["X-Amz-Target: DynamoDB_20120810.ListTables", "Content-Length: 2", *fields]
    with serving.client() as client:
        answer = client.ask(get(target, *signed, method="POST") + b"{}")
        assert answer.status == status
        if status == 400:
            assert json.loads(answer.body)["__type"].endswith("#SerializationException"), "SDKs read the type"
            assert "16384" in answer.body.decode() or "32768" in answer.body.decode()
    with serving.client() as client:  # nobody else is held to that
        larger = get("/", "Header1: " + "x" * 20_000)
        assert client.ask(larger).status == 200

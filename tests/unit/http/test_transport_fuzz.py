"""The transport against input that nobody sane would send: every split, mutations, request smuggling."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.http import heads
from tailrace.http.connection import Connection
from tailrace.http.message import Answer, Request, Response
from tests.support.patience import PATIENCE_S
from tests.unit.http.serving import Client, Serving

SEEN: list[Request] = []
ALLOWED = {200, 400, 408, 413, 417, 431}


async def handle(request: Request) -> Answer:
    SEEN.append(request)
    return Response(200, [], b"%b %b?%b %b" % (request.method, request.path, request.query, request.body))


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(handle, head_timeout_s=PATIENCE_S, body_timeout_s=PATIENCE_S, linger_s=0.2) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


PIPELINE = (
    b"POST /first?q=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Long: some value\r\n\r\nhello"
    b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n"
    b"\r\nPUT /third HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"
    b"POST /fourth HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nxyz"
    b"HEAD http://a/fifth HTTP/1.1\r\nHost: a\r\n\r\n"
    b"DELETE /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
)
BODIES = (b"POST /first?q=1 hello", b"GET /second? ", b"PUT /third? abcde", b"POST /fourth? xyz", b"DELETE /last? ")


def exchange(serving: Serving, *pieces: bytes) -> bytes:
    """Send pieces, say that this is all, and take everything until the server closes; dates are taken out."""
    with serving.client() as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                client.send(piece)
            client.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed on us in mid-sentence, as it may
        try:
            return re.sub(rb"date: [^\r]*\r\n", b"", client.rest())
        except ConnectionResetError:
            return b""


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def alive(serving: Serving) -> bool:
    with serving.client() as client:
        return client.ask(b"GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status == 200


def test_the_whole_pipeline(serving: Serving) -> None:
    answers = exchange(serving, PIPELINE)
    assert statuses(answers) == [200] * 6
    for body in BODIES:
        assert body in answers


def feed(serving: Serving, pieces: list[bytes]) -> bytes:
    """Give pieces to a connection as if each had come in a packet of its own, whatever the network does."""

    class Recorder:
        def __init__(self) -> None:
            self.written = b""
            self.closing = False

        def get_extra_info(self, name: str) -> object:
            return ("127.0.0.1", 1) if name == "peername" else None

        def set_write_buffer_limits(self, high: int) -> None: ...
        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: bytes) -> None:
            self.written += data

        def writelines(self, data: tuple[bytes, ...]) -> None:
            self.written += b"".join(data)

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None: ...
        def pause_reading(self) -> None: ...
        def resume_reading(self) -> None: ...
        def is_closing(self) -> bool:
            return self.closing

        def close(self) -> None:
            self.closing = True

        abort = close

    def run() -> bytes:
        shared = serving.server._shared
        assert shared is not None
        connection, recorder = Connection(shared), Recorder()
        connection.connection_made(recorder)  # type: ignore[arg-type]
        for piece in pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        return re.sub(rb"date: [^\r]*\r\n", b"", recorder.written)

    return serving.call(run)


def test_a_split_at_any_byte_changes_nothing(serving: Serving) -> None:
    whole = feed(serving, [PIPELINE])
    assert statuses(whole) == [200] * 6
    for at in range(1, len(PIPELINE)):
        assert feed(serving, [PIPELINE[:at], PIPELINE[at:]]) == whole, at
    assert feed(serving, [bytes([byte]) for byte in PIPELINE]) == whole


@given(cuts=st.lists(st.integers(1, len(PIPELINE) - 1), max_size=12))
def test_any_splits_change_nothing(serving: Serving, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(PIPELINE)]
    pieces = [PIPELINE[a:b] for a, b in pairwise(edges)]
    assert feed(serving, [piece for piece in pieces if piece]) == feed(serving, [PIPELINE])


LINES = (
    b"POST /a HTTP/1.1", b"POST /b HTTP/1.1", b"GET /a HTTP/1.1", b"HEAD /a HTTP/1.1", b"POST /a?q=1 HTTP/1.1",
    b"POST /a HTTP/1.0", b"POST http://a/c HTTP/1.1", b"POST  /a HTTP/1.1", b"\r\nPOST /a HTTP/1.1", b"BAD",
    b"PUT * HTTP/1.1", b"POST /a HTTP/2.0", b"CONNECT a:1 HTTP/1.1", b"POST /a#x HTTP/1.1", b"OPTIONS * HTTP/1.1",
)  # fmt: skip
FIELDS = (
    b"Host: a", b"host:a", b"Host: a\r\nX-Other: 1", b"Host: a\r\nX-Same: 1\r\nx-same: 2", b"X-None: 1", b"Host: b c",
    b"Host: a\r\nConnection: close", b"Host: a\r\nExpect: 100-continue",
    b"Host: a\r\nConnection: upgrade\r\nUpgrade: x", b"Host: a\r\nX-Amz-Target: T",
    b"Host: a\r\nBad Field: 1", b"Host: a\r\n folded", b"Host: a\nX-Bare: 1",
)  # fmt: skip
LENGTHS = (
    b"Content-Length: %d", b"content-length:%d", b"Content-Length: \t%d", b"Content-Length: 0%d",
    b"Content-Length: %d ", b"Content-Length: +%d", b"Content-Length: %d\r\nContent-Length: 1",
    b"Content-Length: 99999999%d", b"Content-Length: %dx", b"Transfer-Encoding: chunked",
)  # fmt: skip
BODIES_SENT = (b"x", b"", b"abc", b"\r\n\r\n", b"POST /a")


@st.composite
def request_sequences(draw: st.DrawFn) -> list[bytes]:
    """Requests that are made of few parts, so that their heads repeat."""

    def some(forms: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
        return st.sampled_from(draw(st.lists(st.just(forms[0]) | st.sampled_from(forms), min_size=1, max_size=2)))

    lines, fields, lengths, bodies = some(LINES), some(FIELDS), some(LENGTHS), some(BODIES_SENT)
    first = draw(st.booleans())  # the length comes before the other fields
    chunked = st.just(False) if draw(st.booleans()) else st.booleans()
    made = []
    for _ in range(draw(st.integers(2, 8))):
        line, framing, body = draw(lines), draw(lengths), draw(bodies)
        if body and draw(chunked):
            framing, body = b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif b"%d" in framing:
            framing %= len(body)
        parts = [framing, draw(fields)] if first else [draw(fields), framing]
        if line.startswith((b"GET", b"HEAD")) and not body:
            parts.remove(framing)
        made.append(b"%b\r\n%b\r\n\r\n%b" % (line, b"\r\n".join(parts), body))
    return made


def seen_and_answered(serving: Serving, pieces: list[bytes]) -> tuple[list[tuple[object, ...]], bytes]:
    SEEN.clear()
    answers = feed(serving, pieces)
    return [(each.method, each.path, each.query, each.headers, each.body) for each in SEEN], answers


@settings(max_examples=300)
@given(
    requests=request_sequences(),
    cuts=st.lists(st.integers(1, 999), max_size=6),
    changed=st.none() | st.tuples(st.integers(0, 999), st.binary(max_size=2)),
    apart=st.booleans(),
)
def test_a_repeated_head_means_what_the_parser_makes_of_it(
    serving: Serving, requests: list[bytes], cuts: list[int], changed: tuple[int, bytes] | None, apart: bool
) -> None:
    whole = b"".join(requests)
    if changed is not None:
        at, put = changed
        whole = whole[: at % len(whole)] + put + whole[at % len(whole) + 1 :]
    ends = [sum(map(len, requests[:count])) for count in range(len(requests))] if apart else []
    edges = sorted({0, len(whole), *(cut % len(whole) for cut in cuts), *(end for end in ends if end < len(whole))})
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    with mock.patch.object(heads, "learn", return_value=None):
        parsed = seen_and_answered(serving, pieces)
    assert seen_and_answered(serving, pieces) == parsed


@pytest.mark.parametrize("line", LINES)
def test_every_kind_of_head_can_be_repeated(serving: Serving, line: bytes) -> None:
    for fields in FIELDS:
        for length in LENGTHS:
            framing, body = (length % 3, b"abc") if b"%d" in length else (length, b"3\r\nabc\r\n0\r\n\r\n")
            request = b"%b\r\n%b\r\n%b\r\n\r\n%b" % (line, fields, framing, body)
            pieces = [request, request, request + request[:20], request[20:]]
            with mock.patch.object(heads, "learn", return_value=None):
                parsed = seen_and_answered(serving, pieces)
            assert seen_and_answered(serving, pieces) == parsed, request


def test_repeated_heads_are_not_parsed(serving: Serving) -> None:
    """Otherwise the test above would compare the parser with itself."""
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX-After: 1\r\n\r\n%b"
    requests = [head % (len(body), body) for body in (b"one", b"two", b"", b"three", b"x" * 5_000)]
    shared = serving.server._shared
    assert shared is not None
    with mock.patch.object(heads, "learn", wraps=heads.learn) as learn:
        answers = feed(serving, [*requests, b"".join(requests), requests[0].replace(b"/a", b"/not/yet/seen")])
    assert statuses(answers) == [200] * 11
    assert learn.call_count == 2
    assert [each.headers[b"content-length"] for each in SEEN[:5]] == [b"3", b"3", b"0", b"5", b"5000"]
    assert [each.body for each in SEEN[5:10]] == [each.body for each in SEEN[:5]]


def test_learning_ends_where_no_head_repeats(serving: Serving) -> None:
    requests = [b"GET /a HTTP/1.1\r\nHost: a\r\nX: %d\r\n\r\n" % number for number in range(50)]
    with mock.patch.object(heads, "learn", wraps=heads.learn) as learn:
        assert statuses(feed(serving, requests)) == [200] * 50
    assert learn.call_count == 16


def test_known_request_lines_are_bounded() -> None:
    lines: heads.RequestLines = {}
    for number in range(heads.LINES_MAX + 10):
        path = b"/%d" % number
        assert heads.learn(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path, b"GET", path, {b"host": b"a"}, lines)
    assert len(lines) == heads.LINES_MAX
    long = b"/" + b"x" * heads.LINE_BYTES_MAX
    assert heads.learn(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % long, b"GET", long, {b"host": b"a"}, lines) is None


def test_heads_are_measured_each_for_itself_however_they_are_cut(serving: Serving) -> None:
    good = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    pieces = [good[:15_000], good[15_000:]] * 4
    assert statuses(feed(serving, pieces)) == [200] * 4
    assert statuses(feed(serving, [good * 10])) == [200] * 10
    bad = good.replace(b"\r\n\r\n", b"\r\nY: " + b"y" * 20_000 + b"\r\n\r\n")
    for data in ([bad], [good + bad], [good + bad[:30_000], bad[30_000:]], [good, bad[:35_000], bad[35_000:]]):
        assert statuses(feed(serving, data))[-1] == 431


FRAGMENTS = st.sampled_from(
    (
        *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"-1", b"f" * 16, b"#", b"*"),
        *(b"Host: b\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: upgrade\r\n"),
        *(b"Upgrade: x\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/2.0", b"CONNECT ", b"\xff", b"\x80"),
    )
)
MUTATION = st.tuples(st.integers(0, len(PIPELINE)), st.integers(0, 6), st.one_of(FRAGMENTS, st.binary(max_size=8)))


@given(mutations=st.lists(MUTATION, min_size=1, max_size=6))
def test_mutated_requests_are_answered_or_dropped(serving: Serving, mutations: list[tuple[int, int, bytes]]) -> None:
    data = PIPELINE
    for at, cut, insert in mutations:
        data = data[:at] + insert + data[at + cut :]
    failures = serving.server.stats.failures
    answers = feed(serving, [data])
    found = statuses(answers)
    assert set(found) <= ALLOWED | {100}, answers
    # Nothing is answered after a refusal.
    assert all(status in (100, 200) for status in found[:-1])
    assert serving.server.stats.failures == failures


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(mutations=st.lists(MUTATION, min_size=1, max_size=6))
def test_mutated_requests_over_a_socket_never_hang(serving: Serving, mutations: list[tuple[int, int, bytes]]) -> None:
    data = PIPELINE
    for at, cut, insert in mutations:
        data = data[:at] + insert + data[at + cut :]
    assert set(statuses(exchange(serving, data))) <= ALLOWED | {100}
    assert alive(serving)


@given(data=st.binary(max_size=400))
def test_noise_is_refused(serving: Serving, data: bytes) -> None:
    assert set(statuses(feed(serving, [data]))) <= ALLOWED - {200}
    assert SEEN == []


# -- request smuggling: what some reader in front of us might take for a body must never become a request

EVIL = b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"


def smuggle(*fields: bytes, body: bytes = b"0\r\n\r\n" + EVIL) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body


SMUGGLING = {
    "CL.TE": smuggle(b"Content-Length: 6", b"Transfer-Encoding: chunked"),
    "TE.CL": smuggle(b"Transfer-Encoding: chunked", b"Content-Length: 6"),
    "xchunked": smuggle(b"Transfer-Encoding: xchunked"),
    "chunked, identity": smuggle(b"Transfer-Encoding: chunked, identity"),
    "identity, chunked": smuggle(b"Transfer-Encoding: identity, chunked"),
    "gzip, chunked": smuggle(b"Transfer-Encoding: gzip, chunked"),
    "identity": smuggle(b"Transfer-Encoding: identity"),
    "quoted chunked": smuggle(b'Transfer-Encoding: "chunked"'),
    "vertical tab": smuggle(b"Transfer-Encoding: \x0bchunked"),
    "space before colon": smuggle(b"Transfer-Encoding : chunked"),
    "folded coding": smuggle(b"Transfer-Encoding:", b" chunked"),
    "two codings": smuggle(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "chunked twice": smuggle(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "empty coding": smuggle(b"Transfer-Encoding:"),
    "chunked in 1.0": smuggle(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "two lengths": smuggle(b"Content-Length: 0", b"Content-Length: 34"),
    "two equal lengths": smuggle(b"Content-Length: 0", b"Content-Length: 0"),
    "list of lengths": smuggle(b"Content-Length: 0, 0"),
    "signed length": smuggle(b"Content-Length: +0"),
    "negative length": smuggle(b"Content-Length: -1"),
    "spaced length": smuggle(b"Content-Length: 0 0"),
    "underscored length": smuggle(b"Content-Length: 0_0"),
    "hexadecimal length": smuggle(b"Content-Length: 0x0"),
    "empty length": smuggle(b"Content-Length:"),
    "overflowing length": smuggle(b"Content-Length: 18446744073709551616"),
    "huge length": smuggle(b"Content-Length: " + b"0" * 5000),
    "non-ASCII digits": smuggle("Content-Length: ٠".encode()),
    "bare LF before length": smuggle(b"X: y\nContent-Length: 0"),
    "bare LF everywhere": smuggle(b"Content-Length: 0").replace(b"\r\n", b"\n"),
    "bare CR": smuggle(b"X: y\rContent-Length: 0"),
    "overflowing chunk": smuggle(b"Transfer-Encoding: chunked", body=b"10000000000000000\r\n\r\n0\r\n\r\n" + EVIL),
    "signed chunk": smuggle(b"Transfer-Encoding: chunked", body=b"+0\r\n\r\n" + EVIL),
    "negative chunk": smuggle(b"Transfer-Encoding: chunked", body=b"-0\r\n\r\n" + EVIL),
    "0x chunk": smuggle(b"Transfer-Encoding: chunked", body=b"0x0\r\n\r\n" + EVIL),
    "spaced chunk": smuggle(b"Transfer-Encoding: chunked", body=b"0 \r\n\r\n" + EVIL),
    "bare LF after chunk size": smuggle(b"Transfer-Encoding: chunked", body=b"0\n\n" + EVIL),
    "bare LF in extension": smuggle(b"Transfer-Encoding: chunked", body=b"2;a\nxx\r\n0\r\n\r\n" + EVIL),
    "line break in quoted extension": smuggle(b"Transfer-Encoding: chunked", body=b'0;a="\r\n\r\n' + EVIL),
    "chunk not ended": smuggle(b"Transfer-Encoding: chunked", body=b"1\r\nxyz0\r\n\r\n" + EVIL),
    "bare LF after chunk": smuggle(b"Transfer-Encoding: chunked", body=b"1\r\nx\n0\r\n\r\n" + EVIL),
    "length in trailer": smuggle(b"Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 3\r\n\r\n" + EVIL),
    "coding in trailer": smuggle(b"Transfer-Encoding: chunked", body=b"0\r\nTransfer-Encoding: chunked\r\n\r\n" + EVIL),
    "trailer ended by bare LF": smuggle(b"Transfer-Encoding: chunked", body=b"0\r\nX: y\n\n" + EVIL),
    "two hosts": smuggle(b"Host: b", b"Content-Length: 0", body=EVIL),
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + EVIL,
    "HTTP/0.9": b"GET /\r\n\r\n" + EVIL,
    "line break in target": b"GET /\nHost: a HTTP/1.1\r\nHost: a\r\n\r\n" + EVIL,
    "space in target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n" + EVIL,
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_smuggling_is_refused_and_nothing_behind_it_is_read(serving: Serving, name: str) -> None:
    data = SMUGGLING[name]
    for answers in (exchange(serving, data), feed(serving, [data]), feed(serving, [bytes([byte]) for byte in data])):
        (status,) = statuses(answers)
        assert status in (400, 413, 431), answers
    assert SEEN == []


HARMLESS = {
    "body that looks like a request": smuggle(b"Content-Length: %d" % len(EVIL), body=EVIL),
    "chunk that looks like a request": smuggle(
        b"Transfer-Encoding: chunked", body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL)
    ),
    "upgrade with a body": smuggle(
        b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: %d" % len(EVIL), body=EVIL
    ),
    "upgrade with chunks": smuggle(
        b"Connection: upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked",
        body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL),
    ),
    "extension that looks like a chunk": smuggle(
        b"Transfer-Encoding: chunked", body=b"%x;0\r\n%b\r\n0\r\n\r\n" % (len(EVIL), EVIL)
    ),
    "trailer that looks like a field": smuggle(
        b"Transfer-Encoding: chunked", body=b"0\r\nHost: evil\r\nAuthorization: evil\r\n\r\n"
    ),
    "GET with a body": smuggle(b"Content-Length: %d" % len(EVIL), body=EVIL).replace(b"POST", b"GET", 1),
    "close, then more": smuggle(b"Connection: close", b"Content-Length: 0", body=EVIL),
    "1.0, then more": b"GET / HTTP/1.0\r\n\r\n" + EVIL,
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_a_second_request_is_none(serving: Serving, name: str) -> None:
    data = HARMLESS[name]
    for answers in (exchange(serving, data), feed(serving, [data]), feed(serving, [bytes([byte]) for byte in data])):
        assert statuses(answers) == [200]
    assert [request.path for request in SEEN] == [b"/"] * 3
    assert all(b"evil" not in value for request in SEEN for value in request.headers.values())


def test_an_absolute_target_decides_over_a_differing_host(serving: Serving) -> None:
    feed(serving, [b"GET http://front/ HTTP/1.1\r\nHost: back\r\n\r\n"])
    assert SEEN[0].headers[b"host"] == b"front"


def test_the_server_is_still_alive(serving: Serving) -> None:
    assert alive(serving)
    assert isinstance(serving.client(), Client)

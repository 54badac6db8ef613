"""Bad input over HTTP: methods, paths, queries, headers and bodies that nobody should send.

Whatever comes, the answer comes soon, is never a 5xx, and says in JSON what was wrong; a request that was refused has
changed nothing: the rows of the database are compared before and after. `TAILRACE_SOAK=1` tries many more.
"""

from __future__ import annotations

import json
import re
import socket
import zlib
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tailrace.check import check_database
from tailrace.jobs.identity import TIME
from tailrace.log.position import offset
from tests.migration.test_schema import TABLES
from tests.support.patience import PATIENCE_S
from tests.support.soak import examples
from tests.unit.threaded import Served

pytestmark = pytest.mark.fuzz

ours = settings(
    max_examples=examples(250),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class Target:
    """A server with a stream of each kind, and a view of all its rows."""

    def __init__(self, served: Served) -> None:
        self.served = served
        host, port = served.url.removeprefix("http://").split(":")
        self.address = (host, int(port))
        self.http = httpx.Client(base_url=served.url, timeout=PATIENCE_S)

    def furnish(self) -> None:
        """Make what an earlier example may have deleted or closed."""
        for path, kind, body, fields in (
            ("text", "text/plain", b"hello", {}),
            ("json", "application/json", b'[{"n":1},2]', {}),
            ("bin", "application/octet-stream", b"\0\xff", {}),
            ("closed", "text/plain", b"end", {"stream-closed": "true"}),
            ("source", "text/plain", b"abc", {}),
            ("fork", "text/plain", b"", {"stream-forked-from": "/v1/stream/source"}),
        ):
            answer = self.http.put(f"/v1/stream/{path}", content=body or None, headers={"content-type": kind, **fields})
            if answer.status_code == 409:
                self.http.delete(f"/v1/stream/{path}")

    def digest(self) -> int:
        """A fingerprint of every row but those that housekeeping may remove meanwhile, all by itself."""
        with self.served.running.db._engine.reader() as reader:
            rows = {name: list(reader.scan(table)) for name, table in TABLES.items()}
        rows["meta"] = [row for row in rows["meta"] if row.name != TIME]
        streams = [
            row for row in rows["streams"] if not (row.deleted or row.expires_ms or row.max_age_s or row.max_bytes)
        ]
        lasting = {stream.log for stream in streams}
        rows["streams"] = streams
        rows["logs"] = [msgspec.structs.replace(row, forks=0) for row in rows["logs"] if row.id in lasting]
        rows["entries"] = [row for row in rows["entries"] if row.log in lasting]
        rows["producers"] = [row for row in rows["producers"] if row.log in lasting]
        for name in ("garbage", "deadlines", "retained"):
            del rows[name]
        return zlib.crc32(repr(rows).encode())

    def send(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own; the whole answer, which must come."""
        with socket.create_connection(self.address, timeout=PATIENCE_S) as sock:
            sock.settimeout(PATIENCE_S)
            try:
                sock.sendall(raw)
            except OSError:
                pass  # refused and closed before all was sent; the answer is there all the same
            received = bytearray()
            try:
                while piece := sock.recv(65536):
                    received += piece
            except ConnectionResetError:
                pass
        head, mark, body = bytes(received).partition(b"\r\n\r\n")
        assert mark, f"no answer to {raw[:300]!r}: {head[:200]!r}"
        lines = head.decode("latin-1").split("\r\n")
        matched = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", lines[0])
        assert matched, lines[0]
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(matched[1]), fields, body

    def judge(self, method: bytes, raw: bytes) -> int:
        """Send a request and hold the answer against what is promised."""
        before = self.digest()
        status, fields, body = self.send(raw)
        shown = raw[:500]
        assert status < 500, f"{status} to {shown!r}: {body[:500]!r}"
        # The DynamoDB API at / has errors of its own form, and a fuzz test of its own.
        ours = raw.split(b" ", 2)[1].partition(b"?")[0] != b"/"
        if status >= 400 and method != b"HEAD" and ours:
            assert fields.get("content-type") == "application/json", f"{status} to {shown!r}: {fields}"
            error = json.loads(body)["error"]
            assert re.fullmatch("[A-Z_]+", error["code"])
            assert len(error["message"]) >= 5
            assert len(body) < 2_000, "an error does not repeat all that was sent"
        if status >= 400 or method in (b"GET", b"HEAD", b"OPTIONS"):
            assert self.digest() == before, f"{status} to {shown!r} changed something"
        return status


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    data = tmp_path_factory.mktemp("fuzz") / "data"
    with Served(data, long_poll_timeout_s=0.02, sse_recycle_s=0.02, body_bytes_max=300_000, page_bytes=1000) as served:
        target = Target(served)
        yield target
        assert target.http.get("/readyz").status_code == 200, "writes are taken to the end"
        target.http.close()
    assert check_database(data).findings == []


def request(method: bytes, path: bytes, fields: list[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: x", b"connection: close"]
    lines += [name + b": " + value for name, value in fields]
    if body:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


STREAMS = [b"text", b"json", b"bin", b"closed", b"source", b"fork", b"missing"]
KNOWN = [b"GET", b"HEAD", b"PUT", b"POST", b"DELETE", b"OPTIONS", b"PATCH"]
METHODS = [*KNOWN, b"TRACE", b"PROPFIND", b"M-SEARCH", b"LOCK"]
_no_break = st.characters(exclude_characters="\r\n\0", max_codepoint=255)
garbage = st.one_of(
    st.text(_no_break, max_size=40).map(lambda text: text.encode("latin-1")),
    st.binary(max_size=40).map(lambda raw: bytes(byte for byte in raw if byte not in b"\r\n\0")),
    st.sampled_from(
        [b"", b"0", b"-1", b"1", b"true", b"TRUE", b"now", b"null", b"9" * 30, b"\xff\xfe", b"%", b'"', b",", b"*"]
    ),
    st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number),
    st.floats().map(lambda number: repr(number).encode()),
    st.integers(1, 20_000).map(lambda size: b"x" * size),
)
segments = st.one_of(
    st.sampled_from(
        [*STREAMS, b"", b".", b"..", b"__ds", b"%2e%2e", b"%2F", b"%00", b"%0a", b"%7f", b"%ff", b"%C3%A4", b"%"]
    ),
    st.text(max_size=8).map(
        lambda text: "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogatepass")).encode()
    ),
    st.binary(max_size=8).map(lambda raw: b"".join(b"%%%02x" % byte for byte in raw)),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="?#"), max_size=12).map(
        lambda text: text.encode("latin-1")
    ),
    st.integers(1, 30_000).map(lambda size: b"p" * size),
)
paths = st.one_of(
    st.lists(segments, max_size=4).map(lambda parts: b"/v1/stream/" + b"/".join(parts)),
    st.lists(segments, max_size=3).map(lambda parts: b"/" + b"/".join(parts)),
    st.sampled_from(
        [
            b"*",
            b"/",
            b"//",
            b"/v1/stream",
            b"/v1/stream/",
            b"/healthz",
            b"/metrics",
            b"/readyz",
            b"http://x/v1/stream/text",
        ]
    ),
)
offsets = st.one_of(
    garbage, st.integers(0, 10**16 - 1).map(lambda position: offset(position).encode()),
    st.sampled_from([offset(0).encode(), offset(3).encode(), b"-1", b"now", b"0000000000000000_00000000000000000"]),
)  # fmt: skip
quoted = garbage.map(lambda raw: b"".join(b"%%%02X" % byte for byte in raw[:3_000]))
pairs = st.one_of(
    st.tuples(
        st.just(b"offset"), st.one_of(offsets.map(lambda raw: raw.replace(b" ", b"+").replace(b"#", b"")), quoted)
    ),
    st.tuples(st.just(b"live"), st.one_of(st.sampled_from([b"sse", b"long-poll", b"", b"SSE", b"true"]), quoted)),
    st.tuples(st.just(b"cursor"), quoted),
    st.tuples(quoted, quoted),
)
queries = st.lists(pairs, max_size=6).map(lambda found: b"&".join(name + b"=" + value for name, value in found))
names = st.sampled_from(
    [b"content-type", b"stream-seq", b"stream-ttl", b"stream-expires-at", b"stream-closed", b"stream-forked-from",
     b"stream-fork-offset", b"stream-fork-sub-offset", b"stream-max-age", b"stream-max-bytes", b"producer-id",
     b"producer-epoch", b"producer-seq", b"if-none-match", b"authorization", b"accept", b"range", b"origin", b"cookie",
     b"x-unknown", b"Content-Type", b"PRODUCER-SEQ", b"stream-cursor"]
)  # fmt: skip
values = st.one_of(
    garbage,
    offsets,
    st.sampled_from([b"text/plain", b"application/json", b"application/octet-stream", b"text/plain, application/json"]),
    st.sampled_from([b"/v1/stream/source", b"/v1/stream/json", b"/v1/stream/%ff"]),
    st.sampled_from([b"2030-01-01T00:00:00Z", b"2030-02-30T00:00:00Z"]),
)
headers = st.lists(st.tuples(names, values), max_size=8)
bodies = st.one_of(
    st.just(b""),
    st.binary(max_size=200),
    st.text(alphabet='[]{}",:0123456789.eE+-\\utrfalsn \t\n', max_size=60).map(str.encode),
    st.sampled_from(
        [b"[]", b"[[]]", b"[1,]", b"NaN", b'{"a":1,"a":2}', b'"\\ud800"', b"\xef\xbb\xbf1", b"[1]\0", b'"\xff"']
    ),
    st.tuples(st.sampled_from([b"[", b'{"a":', b'[{"a":[']), st.integers(1, 50_000)).map(
        lambda found: found[0] * found[1]
    ),
    st.tuples(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]), st.integers(1, 3_000)).map(
        lambda found: found[0][0] * found[1] + b"1" + found[0][1] * found[1]
    ),
    st.integers(1, 400_000).map(lambda size: b"x" * size),
)


def field_safe(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")) for name, value in fields]


@ours
@given(
    method=st.one_of(st.sampled_from(METHODS), st.text("ABCXYZ-_!", min_size=1, max_size=12).map(str.encode)),
    path=paths,
    query=queries,
)
@example(method=b"GET", path=b"/v1/stream/text", query=b"offset=%00")
@example(method=b"GET", path=b"/v1/stream/text", query=b"&".join([b"a=b"] * 100))
@example(method=b"PUT", path=b"/v1/stream/" + b"%41" * 1025, query=b"")
@example(method=b"DELETE", path=b"/v1/stream/%66%6F%72%6B/..", query=b"")
def test_methods_paths_and_queries(target: Target, method: bytes, path: bytes, query: bytes) -> None:
    target.furnish()
    path = path.replace(b"\x7f", b"").replace(b" ", b"")
    target.judge(method, request(method, path + (b"?" + query if query else b""), []))


@ours
@given(
    method=st.sampled_from([b"PUT", b"POST"]), stream=st.sampled_from([*STREAMS, b"new"]), fields=headers, body=bodies
)
@example(method=b"POST", stream=b"json", fields=[(b"content-type", b"application/json")], body=b"[" * 100_000)
@example(
    method=b"POST",
    stream=b"text",
    fields=[(b"content-type", b"text/plain"), (b"content-type", b"text/plain")],
    body=b"x",
)
@example(method=b"PUT", stream=b"new", fields=[(b"stream-ttl", b"1"), (b"stream-ttl", b"1")], body=b"")
def test_headers_and_bodies_of_writes(
    target: Target, method: bytes, stream: bytes, fields: list[tuple[bytes, bytes]], body: bytes
) -> None:
    target.furnish()
    target.judge(method, request(method, b"/v1/stream/" + stream, field_safe(fields), body))


@ours
@given(
    stream=st.sampled_from(STREAMS), fields=headers, query=queries, method=st.sampled_from([b"GET", b"HEAD", b"GET"])
)
@example(stream=b"text", fields=[(b"if-none-match", b"," * 10_000)], query=b"offset=-1", method=b"GET")
def test_headers_and_queries_of_reads(
    target: Target, stream: bytes, fields: list[tuple[bytes, bytes]], query: bytes, method: bytes
) -> None:
    target.furnish()
    target.judge(method, request(method, b"/v1/stream/" + stream + b"?" + query, field_safe(fields)))


numbers = st.one_of(
    st.integers(-2, 3).map(lambda number: b"%d" % number),
    st.sampled_from([b"9007199254740991", b"9007199254740992", b"", b"1e1"]),
    garbage,
)


@ours
@given(
    claims=st.lists(
        st.tuples(st.one_of(st.sampled_from([b"p", b"q"]), garbage), numbers, numbers), min_size=1, max_size=5
    ),
    stream=st.sampled_from([b"text", b"json", b"closed"]),
    close=st.booleans(),
)
def test_producers(target: Target, claims: list[tuple[bytes, bytes, bytes]], stream: bytes, close: bool) -> None:
    """Claims of all kinds in a row: refused or not, what counts is that the log and the producers agree at the end."""
    target.furnish()
    kind = b"application/json" if stream == b"json" else b"text/plain"
    for producer, epoch, sequence in claims:
        fields = [
            (b"content-type", kind),
            (b"producer-id", producer),
            (b"producer-epoch", epoch),
            (b"producer-seq", sequence),
        ]
        if close:
            fields.append((b"stream-closed", b"true"))
        first = target.judge(b"POST", request(b"POST", b"/v1/stream/" + stream, field_safe(fields), b"1"))
        if first in (200, 204):
            before = target.digest()
            again = target.judge(b"POST", request(b"POST", b"/v1/stream/" + stream, field_safe(fields), b"1"))
            assert again == 204, "the same request twice"
            assert target.digest() == before


@pytest.mark.parametrize("count", [101, 1_000])
def test_too_many_headers(target: Target, count: int) -> None:
    target.furnish()
    status = target.judge(b"GET", request(b"GET", b"/v1/stream/text", [(b"x-%d" % n, b"1") for n in range(count)]))
    assert status == 431


@pytest.mark.parametrize("size", [40_000, 1_000_000])
@pytest.mark.parametrize("where", ["path", "query", "header"])
def test_too_large_a_head(target: Target, size: int, where: str) -> None:
    target.furnish()
    path = b"/v1/stream/" + (b"x" * size if where == "path" else b"text")
    path += b"?offset=" + b"1" * size if where == "query" else b""
    status = target.judge(b"GET", request(b"GET", path, [(b"x-large", b"y" * size)] if where == "header" else []))
    assert status in (414, 431)


def test_too_large_a_body(target: Target) -> None:
    target.furnish()
    for size in (300_001, 5_000_000):
        raw = request(b"POST", b"/v1/stream/text", [(b"content-type", b"text/plain")], b"x" * size)
        assert target.judge(b"POST", raw) == 413

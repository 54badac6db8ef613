"""Requests on streams' URLs: what each header may say, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config import Config
from tailrace.http.message import Request, origin
from tailrace.http.route import decode_path
from tailrace.log.position import offset
from tests.migration.test_schema import TABLES
from tests.unit.http.inprocess import Up, serve


async def everything(up: Up) -> dict[str, list[Any]]:
    with up.db._engine.reader() as reader:
        scanned = {name: list(reader.scan(table)) for name, table in TABLES.items()}
    # The time is recorded now and then.
    scanned["meta"] = [row for row in scanned["meta"] if row.name != "clock"]
    return scanned


def test_create_answers(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        answer = await up.ask("PUT", "a/b%20c", b"hello", content_type="text/plain")
        assert answer.status_code == 201
        assert answer.headers["location"] == f"{up.running.url}/v1/stream/a/b%20c"
        assert answer.headers["stream-next-offset"] == offset(5)
        assert answer.headers["content-type"] == "text/plain"
        again = await up.ask("PUT", "a/b%20c", content_type="text/plain")
        assert again.status_code == 200
        assert "location" not in again.headers
        other = await up.ask("PUT", "a/b%20c", content_type="text/html")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "STREAM_EXISTS")
        bare = await up.ask("PUT", "bare")
        assert bare.headers["content-type"] == "application/octet-stream"
        closed = await up.ask("PUT", "closed", content_type="text/plain", stream_closed="TRUE")
        assert closed.headers["stream-closed"] == "true"

    serve(data_dir, scenario)


def test_the_location_is_where_clients_reach_us(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        answer = await up.ask("PUT", "a")
        assert answer.headers["location"] == "https://streams.example.com/base/v1/stream/a"

    serve(data_dir, scenario, public_url="https://streams.example.com/base/")


def test_head_tells_what_a_stream_is(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"xy", stream_ttl="60", stream_max_age="30", stream_max_bytes="100")
        head = await up.ask("HEAD", "a")
        assert (head.status_code, head.content) == (200, b"")
        fields = head.headers
        assert (fields["stream-next-offset"], fields["stream-ttl"]) == (offset(2), "60")
        assert (fields["stream-max-age"], fields["stream-max-bytes"]) == ("30", "100")
        assert fields["cache-control"] == "no-store"
        assert "stream-closed" not in fields
        assert "stream-earliest-offset" not in fields
        await up.create("b", stream_expires_at="2099-12-31T23:59:59.5+01:00")
        await up.close("b")
        fields = (await up.ask("HEAD", "b")).headers
        assert fields["stream-expires-at"] == "2099-12-31T23:59:59.5+01:00"
        assert fields["stream-closed"] == "true"
        assert (await up.ask("HEAD", "missing")).status_code == 404

    serve(data_dir, scenario)


def test_append_answers(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        plain = await up.ask("POST", "a", b"x", content_type="text/plain")
        assert (plain.status_code, plain.headers["stream-next-offset"]) == (204, offset(1))
        producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
        first = await up.ask("POST", "a", b"y", content_type="text/plain", **producer)
        assert first.status_code == 200
        assert (first.headers["producer-epoch"], first.headers["producer-seq"]) == ("0", "0")
        again = await up.ask("POST", "a", b"y", content_type="text/plain", **producer)
        assert (again.status_code, again.headers["producer-seq"]) == (204, "0")
        gap = await up.ask("POST", "a", b"y", content_type="text/plain", **{**producer, "producer_seq": "9"})
        assert gap.status_code == 409
        assert (gap.headers["producer-expected-seq"], gap.headers["producer-received-seq"]) == ("1", "9")
        await up.ask("POST", "a", b"z", content_type="text/plain", **{**producer, "producer_epoch": "4"})
        stale = await up.ask("POST", "a", b"y", content_type="text/plain", **producer)
        assert (stale.status_code, stale.headers["producer-epoch"]) == (403, "4")
        closing = await up.ask("POST", "a", b"end", content_type="text/plain", stream_closed="true")
        assert (closing.status_code, closing.headers["stream-closed"]) == (204, "true")
        refused = await up.ask("POST", "a", b"more", content_type="text/plain")
        assert (refused.status_code, refused.headers["stream-closed"]) == (409, "true")
        assert refused.headers["stream-next-offset"] == offset(6)
        assert (await up.get("a")).content == b"xyzend"

    serve(data_dir, scenario)


CREATE_HEADERS = [
    {"stream_ttl": value}
    for value in (
        "-1",
        "+1",
        "1.5",
        "1e3",
        "01",
        "",
        "x",
        "0x1",
        "99999999999",
        "1" * 30,
        "٣".encode().decode("latin-1"),
    )
]
CREATE_HEADERS += [
    {"stream_expires_at": value}
    for value in ("", "x", "2030-01-01", "2030-01-01 00:00:00Z", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z",
                  "2030-02-30T00:00:00Z", "2030-01-01T25:00:00Z", "2030-01-01T00:00:00+99:99", "1893456000")
]  # fmt: skip
CREATE_HEADERS += [
    {"stream_ttl": "5", "stream_expires_at": "2030-01-01T00:00:00Z"},
    {"stream_max_age": "0"},
    {"stream_max_age": "-1"},
    {"stream_max_bytes": "0"},
    {"stream_max_bytes": "10000000000000000"},
    {"content_type": "nonsense"},
    {"content_type": "text/plain\xe4"},
    {"stream_fork_offset": offset(0)},
    {"stream_fork_sub_offset": "1"},
    {"stream_forked_from": "source"},
    {"stream_forked_from": "/v1/other/source"},
    {"stream_forked_from": "/v1/stream/"},
    {"stream_forked_from": "/v1/stream/a//b"},
    {"stream_forked_from": "/v1/stream/%ff"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": "-1"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": "now"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": "0"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": offset(99)},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": offset(1)},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_sub_offset": "1"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": offset(0), "stream_fork_sub_offset": "-1"},
    {"stream_forked_from": "/v1/stream/source", "stream_fork_offset": offset(0), "stream_fork_sub_offset": "9"},
]


def test_creates_that_are_refused(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("source", body=b"abc")
        before = await everything(up)
        for fields in CREATE_HEADERS:
            raw = {name.replace("_", "-"): value.encode("latin-1") for name, value in fields.items()}
            answer = await up.http.put("/v1/stream/new", headers=raw)
            assert answer.status_code == 400, fields
            error = answer.json()["error"]
            assert error["code"]
            assert len(error["message"]) > 20
            assert await everything(up) == before, fields
        for path, status in (
            ("", 400), ("a//b", 400), ("a/%2e%2e/b", 400), ("%00", 400), ("%0a", 400), ("%ff", 400),
            ("a/", 400), ("%2f", 400), ("x" * 1100, 400),
        ):  # fmt: skip
            answer = await up.http.request("PUT", str(up.http.base_url) + "/v1/stream/" + path)
            assert answer.status_code == status, path
        missing = await up.ask("PUT", "new", stream_forked_from="/v1/stream/missing")
        assert missing.status_code == 404
        assert await everything(up) == before

    serve(data_dir, scenario)


@pytest.mark.parametrize("good", ["0", "1", "10000000000"])
def test_a_ttl(data_dir: Path, good: str) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", stream_ttl=good)

    serve(data_dir, scenario)


APPEND_HEADERS: list[dict[str, str]] = [
    {"producer_id": "p"},
    {"producer_epoch": "0"},
    {"producer_seq": "0"},
    {"producer_id": "p", "producer_epoch": "0"},
    {"producer_id": "p", "producer_seq": "0"},
    {"producer_epoch": "0", "producer_seq": "0"},
    {"producer_id": "", "producer_epoch": "0", "producer_seq": "0"},
    {"producer_id": "x" * 257, "producer_epoch": "0", "producer_seq": "0"},
    {"stream_seq": ""},
    {"stream_seq": "x" * 257},
]
APPEND_HEADERS += [
    {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0", name: value}
    for name in ("producer_epoch", "producer_seq")
    for value in ("-1", "1.5", "", "x", "+0", "0x0", "9007199254740992", "9" * 40, "1 2", "\xb2")
]


def test_appends_that_are_refused(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        before = await everything(up)
        for fields in APPEND_HEADERS:
            raw = {name.replace("_", "-"): value.encode("latin-1") for name, value in fields.items()}
            answer = await up.http.post("/v1/stream/a", content=b"x", headers={"content-type": b"text/plain", **raw})
            assert answer.status_code == 400, fields
            assert len(answer.json()["error"]["message"]) > 20
            assert await everything(up) == before, fields
        assert (await up.http.post("/v1/stream/a", content=b"x")).status_code == 400, "no content type"
        assert (await up.ask("POST", "a", content_type="text/plain")).status_code == 400, "no body"
        assert (await up.ask("POST", "a", b"x", content_type="text/html")).status_code == 409
        assert await everything(up) == before

    serve(data_dir, scenario)


def test_a_body_that_is_too_large(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        before = await everything(up)
        answer = await up.ask("POST", "a", b"x" * 1001, content_type="text/plain")
        assert answer.status_code == 413
        assert await everything(up) == before
        assert (await up.ask("POST", "a", b"x" * 1000, content_type="text/plain")).status_code == 204

    serve(data_dir, scenario, body_bytes_max=1000)


def test_only_true_closes(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a")
        for value in ("false", "1", "yes", "", "true false"):
            answer = await up.ask("POST", "a", b"x", content_type="text/plain", stream_closed=value)
            assert answer.status_code == 204
            assert "stream-closed" not in answer.headers
        assert "stream-closed" not in (await up.ask("HEAD", "a")).headers

    serve(data_dir, scenario)


def test_delete_and_what_comes_after(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("a", body=b"abc")
        assert (await up.ask("PUT", "f", stream_forked_from="/v1/stream/a")).status_code == 201
        assert (await up.ask("DELETE", "a")).status_code == 204
        for method in ("GET", "HEAD", "DELETE"):
            assert (await up.ask(method, "a")).status_code == 410
        assert (await up.ask("POST", "a", b"x", content_type="text/plain")).status_code == 410
        assert (await up.ask("PUT", "a", content_type="text/plain")).status_code == 409
        assert (await up.get("f")).content == b"abc"
        assert (await up.ask("DELETE", "f")).status_code == 204
        assert (await up.ask("GET", "a")).status_code == 404
        assert (await up.ask("PUT", "a", content_type="text/plain")).status_code == 201

    serve(data_dir, scenario)


def test_paths_are_unicode(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        await up.create("%C3%A4/%E6%97%A5", body=b"x")
        answer = await up.http.get("/v1/stream/ä/日")
        assert answer.content == b"x"
        assert (await up.ask("HEAD", "%c3%a4/%e6%97%a5")).status_code == 200
        again = await up.ask("PUT", "%C3%A4/b+c%23", content_type="text/plain")
        assert again.headers["location"].endswith("/v1/stream/%C3%A4/b+c%23")

    serve(data_dir, scenario)


@pytest.mark.parametrize(
    ("raw", "path"),
    [(b"a", "a"), (b"a%2Fb", "a/b"), (b"%C3%A4", "ä"), (b"%", "%"), (b"%zz", "%zz"), (b"a+b", "a+b"), (b"", "")],
)
def test_decode_path(raw: bytes, path: str) -> None:
    assert decode_path(raw) == path


def test_origin() -> None:
    request = Request(b"GET", b"/", b"", {b"host": b"example.com:1"}, b"")
    assert origin(request, Config(dev=True)) == "http://example.com:1"
    assert origin(request, Config(dev=True, public_url="https://x/")) == "https://x"
    secure = Request(b"GET", b"/", b"", {}, b"", secure=True)
    assert origin(secure, Config(dev=True)) == "https://127.0.0.1:4437"

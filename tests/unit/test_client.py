"""The small client, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import Client, StreamPage
from tailrace.errors import Conflict, Error, Forbidden, Gone, Invalid, NotFound, TooLarge, Unauthenticated, Unavailable
from tailrace.log.position import offset
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture
def server(data_dir: Path) -> Iterator[Served]:
    with Served(data_dir, long_poll_timeout_s=0.2, page_bytes=10, body_bytes_max=1000) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_create_append_head_read_delete(client: Client) -> None:
    assert client.create("a/b c", "text/plain") == offset(0)
    assert client.append("a/b c", b"hello") == offset(5)
    assert client.create("a/b c", "text/plain") == offset(5)
    assert client.head("a/b c")["stream-next-offset"] == offset(5)
    assert client.read("a/b c") == StreamPage(b"hello", "text/plain", offset(5), True, False)
    assert client.read("a/b c", "now") == StreamPage(b"", "text/plain", offset(5), True, False)
    client.append("a/b c", b"!", close=True)
    assert client.read("a/b c", offset(5)) == StreamPage(b"!", "text/plain", offset(6), True, True)
    client.delete("a/b c")
    with pytest.raises(NotFound):
        client.read("a/b c")


def test_odd_names(client: Client) -> None:
    for path in ("ä/日", "50%", "a?b", "a#b", "a&b=c", "a+b", '"quoted"', "a;b", "a:b@c"):
        client.create(path)
        client.append(path, path.encode())
        assert client.read(path).body == path.encode()


def test_options_of_a_stream(client: Client) -> None:
    client.create("a", ttl_s=60)
    assert client.head("a")["stream-ttl"] == "60"


def test_pages(client: Client) -> None:
    client.create("a")
    for number in range(5):
        client.append("a", b"%04d" % number)
    page = client.read("a")
    assert (page.body, page.up_to_date) == (b"00000001", False)
    assert client.read("a", page.next).body == b"00020003"


def test_follow_a_closed_stream_page_by_page(client: Client) -> None:
    client.create("a")
    for number in range(5):
        client.append("a", b"%04d" % number)
    client.append("a", b"", close=True)
    assert [page.body for page in client.follow("a")] == [b"00000001", b"00020003", b"0004"]
    assert [page.body for page in client.follow("a", offset(8))] == [b"00020003", b"0004"]


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_follow_waits_for_more_also_over_time_outs(server: Served, client: Client, content_type: str) -> None:
    client.create("a", content_type)
    client.append("a", b"1", content_type)
    arrived = threading.Semaphore(0)
    found: list[bytes] = []

    def follow() -> None:
        with Client(server.url) as other:
            for page in other.follow("a"):
                found.append(page.body)
                arrived.release()

    thread = threading.Thread(target=follow)
    thread.start()
    assert arrived.acquire(timeout=PATIENCE_S)
    assert not arrived.acquire(timeout=0.5), "longer than a long-poll waits"
    client.append("a", b"2", content_type)
    assert arrived.acquire(timeout=PATIENCE_S)
    client.append("a", b"3", content_type, close=True)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert found == ([b"1", b"2", b"3"] if content_type == "text/plain" else [b"[1]", b"[2]", b"[3]"])


def test_follow_from_now(server: Served, client: Client) -> None:
    client.create("a")
    client.append("a", b"old")
    found: list[bytes] = []
    following = threading.Event()

    def follow() -> None:
        with Client(server.url) as other:
            original = other._read

            def read(*args: Any, **options: Any) -> StreamPage:
                following.set()
                return original(*args, **options)

            other._read = read  # type: ignore[method-assign]
            found.extend(page.body for page in other.follow("a", "now"))

    thread = threading.Thread(target=follow)
    thread.start()
    assert following.wait(PATIENCE_S)
    while server.running.db.metrics.live_readers == 0:
        assert thread.is_alive()
    client.append("a", b"new", close=True)
    thread.join(PATIENCE_S)
    assert found == [b"new"]


def test_errors_are_raised_as_on_the_server(client: Client) -> None:
    client.create("a")
    for call, kind, code in (
        (lambda: client.append("missing", b"x"), NotFound, "NOT_FOUND"),
        (lambda: client.append("a", b""), Invalid, "INVALID_REQUEST"),
        (lambda: client.append("a", b"x", "text/html"), Conflict, "CONTENT_TYPE_MISMATCH"),
        (lambda: client.create("a", "text/html"), Conflict, "STREAM_EXISTS"),
        (lambda: client.read("a", "nonsense"), Invalid, "INVALID_OFFSET"),
        (lambda: client.append("a", b"x" * 2000), TooLarge, None),
        (lambda: client.delete("missing"), NotFound, "NOT_FOUND"),
    ):  # fmt: skip
        with pytest.raises(kind) as raised:
            call()
        if code is not None:
            assert raised.value.code == code
            assert len(str(raised.value)) > 10
    assert client.read("a").body == b""


def test_head_of_what_is_not_there(client: Client) -> None:
    with pytest.raises(NotFound, match="404"):  # HEAD has no body to say more
        client.head("missing")


def test_a_stream_that_lives_only_in_forks(server: Served, client: Client) -> None:
    import httpx

    client.create("a")
    httpx.put(
        f"{server.url}/v1/stream/f", headers={"stream-forked-from": "/v1/stream/a"}, timeout=PATIENCE_S
    ).raise_for_status()
    client.delete("a")
    with pytest.raises(Gone):
        client.read("a")


def test_tokens(tmp_path: Path) -> None:
    with Served(tmp_path / "secret", token="s3cret-s3cret-s3cret") as served:
        with Client(served.url) as stranger, pytest.raises(Unauthenticated, match="credentials are needed"):
            stranger.create("a")
        with Client(served.url, token="wrong") as wrong, pytest.raises((Forbidden, Unauthenticated)):
            wrong.create("a")
        with Client(served.url, token="s3cret-s3cret-s3cret") as friend:
            friend.create("a")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_a_server_that_is_not_there(url: str) -> None:
    with Client(url) as client:
        with pytest.raises(Unavailable, match="is the server running"):
            client.read("a")
        with pytest.raises(Unavailable, match="is the server running"):
            list(client.follow("a"))


def test_follow_survives_a_restart(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes away and comes back: what follows is read where it stopped, once."""
    delays: list[float] = []
    with Served(data_dir) as served, Client(served.url) as client:
        client.create("a")
        client.append("a", b"one")
        client.append("a", b"two", close=True)
        original, calls = client._read, []

        def read(target: str, at: str, wait: bool, parameters: Mapping[str, str]) -> StreamPage:
            calls.append(at)
            if len(calls) in (2, 3):
                raise Unavailable("gone for a moment")
            page = original(target, at, wait, parameters)
            return StreamPage(page.body[:3], page.content_type, offset(int(at != "-1") * 3 + 3), at != "-1", at != "-1")

        monkeypatch.setattr(client, "_read", read)
        monkeypatch.setattr("time.sleep", delays.append)
        assert [page.body for page in client.follow("a")] == [b"one", b"two"]
    assert calls == ["-1", offset(3), offset(3), offset(3)]
    assert delays == [0.1, 0.2]


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:port"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Error), Client(url) as client:
        client.read("a")


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "localhost:4437", "http://", "http:///x", "ftp://127.0.0.1", "http://127.0.0.1:99999999",
     "http://a\udcff"],
)  # fmt: skip
def test_a_url_where_no_server_can_be(url: str) -> None:
    with pytest.raises(Invalid) as raised:
        Client(url)
    assert str(raised.value).startswith(f"{url!r} is not a server's URL")


def test_what_no_request_can_carry(client: Client) -> None:
    """Arguments of a command line that are not UTF-8 come as lone surrogates."""
    with pytest.raises(Invalid, match=r"'a\\udcff' cannot name a stream: it is not valid UTF-8"):
        client.create("a\udcff")
    with pytest.raises(Invalid, match="cannot be sent"):
        client.create("a", "text/\udcff")
    client.create("a")
    with pytest.raises(Invalid, match="cannot be sent"):
        client.read("a", "\udcff")
    for token in ("s\u00e9cret", "\udcff", "two\nlines"):
        with pytest.raises(Invalid, match="printable ASCII") as raised:
            Client("http://127.0.0.1:1", token=token)
        assert token not in str(raised.value)

"""The connections of the synchronous client, against sockets that behave as servers do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tailrace.client.connection import ConnectionFailed, ServerAddress, ServerConnections
from tailrace.errors import Invalid
from tests.support.patience import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\nx-a: 2\r\n\r\nok"


@contextmanager
def served(*answers: bytes | Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that takes one connection per answer, and answers every request on it with that; its URL, and the
    requests."""
    requests: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            line, _ = listener.accept()
            line.settimeout(PATIENCE_S)
            with line:
                if not isinstance(answer, bytes):
                    answer(line)
                    continue
                while request := line.recv(1 << 16):
                    requests.append(request)
                    line.sendall(answer)
                    if b"Connection: close" in answer or b"Content-Length: 99" in answer:
                        break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join(PATIENCE_S)


def connections(url: str, **options: object) -> ServerConnections:
    return ServerConnections(ServerAddress.parse(url), PATIENCE_S, **options)  # type: ignore[arg-type]


def test_a_connection_is_used_again() -> None:
    sockets: list[socket.socket] = []
    with served(OK) as (url, requests):
        http = connections(url + "/prefix/", on_connect=sockets.append)
        first = http.request("GET", "/a", headers={"x-b": "1"}, params={"q": "ä &"})
        assert (first.status_code, first.reason_phrase, first.content) == (200, "OK", b"ok")
        assert first.headers == {"content-length": "2", "x-a": "1, 2"}
        http.request("POST", "/b", headers={}, json={"n": 1})
        http.close()
    assert len(sockets) == 1
    assert requests[0].startswith(b"GET /prefix/a?q=%C3%A4%20%26 HTTP/1.1\r\n")
    assert b"x-b: 1\r\n" in requests[0]
    assert b"content-type: application/json\r\n" in requests[1] or requests[1].startswith(b"POST /prefix/b")


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    with served(closing, OK) as (url, requests):
        http = connections(url)
        assert [http.request("GET", "/", headers={}).content for _ in range(2)] == [b"ok", b"ok"]
        http.close()
    assert len(requests) == 2


def test_an_idle_connection_that_has_ended_is_replaced() -> None:
    ended = threading.Event()

    def answer_and_end(line: socket.socket) -> None:
        line.recv(1 << 16)
        line.sendall(OK)
        line.close()
        ended.set()

    with served(answer_and_end, OK) as (url, _):
        http = connections(url)
        http.request("GET", "/", headers={})
        assert ended.wait(PATIENCE_S)
        assert http.request("POST", "/", headers={}, content=b"x").content == b"ok"
        http.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_body_that_breaks_off_is_an_error(stream: bool) -> None:
    with served(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nonly this") as (url, _):
        http = connections(url)
        with pytest.raises(ConnectionFailed):
            response = http.request("GET", "/", headers={}, stream=stream)
            list(response.iter_raw())
        http.close()


def test_a_body_is_read_as_it_arrives() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    with served(chunked) as (url, _):
        http = connections(url)
        response = http.request("GET", "/", headers={}, stream=True)
        assert b"".join(response.iter_raw()) == b"abcde"
        response.close()
        http.close()


def test_no_server_and_no_answer() -> None:
    with pytest.raises(ConnectionFailed, match="refused"):
        connections("http://127.0.0.1:1").request("GET", "/", headers={})
    with served(lambda line: None) as (url, _), pytest.raises(ConnectionFailed):
        connections(url).request("GET", "/", headers={})
    with served(b"nonsense\r\n\r\n") as (url, _):
        http = connections(url)
        with pytest.raises(ConnectionFailed):
            http.request("GET", "/", headers={})
        http.close()


def test_what_cannot_be_sent() -> None:
    with served(OK) as (url, _):
        http = connections(url)
        with pytest.raises(UnicodeEncodeError):
            http.request("GET", "/", headers={"x": "ü€"})
        with pytest.raises(UnicodeEncodeError):
            http.request("GET", "/", headers={}, params={"q": "\udcff"})
        http.close()


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4437", "ftp://x", "http://", "http://x:99999", "http://a b", "http://x\n", "http://[::1"]
)
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(Invalid, match="is not a server's URL"):
        ServerAddress.parse(url)


def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with served(OK) as (url, requests):
        monkeypatch.setenv("http_proxy", url)
        http = connections("http://tailrace.example:4437")
        assert http.request("GET", "/x", headers={}).content == b"ok"
        http.close()
    assert requests[0].startswith(b"GET http://tailrace.example:4437/x HTTP/1.1\r\n")
    assert b"Host: tailrace.example:4437\r\n" in requests[0]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(OK) as (url, requests):
        http = connections(url)
        http.request("GET", "/x", headers={})
        http.close()
    assert requests[0].startswith(b"GET /x HTTP/1.1\r\n")

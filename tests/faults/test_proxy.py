"""The proxy of the tests: passing on, refusing, silence, and breaking connections at COMMIT."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.proxy import CommitFinder, Proxy


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._repeat, args=(connection,), daemon=True).start()

    @staticmethod
    def _repeat(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    echo = Echo()
    made = Proxy(echo.address)
    yield made
    made.close()
    echo.close()


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)


def said(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1000)


def test_passing_on(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        assert said(connection, b"one") == b"one"
        assert said(connection, b"two") == b"two"


def test_refusing(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        assert said(connection, b"one") == b"one"
        proxy.refuse()
        assert ended(connection)
    with connected(proxy) as connection:
        assert ended(connection)
    proxy.heal()
    with connected(proxy) as connection:
        assert said(connection, b"again") == b"again"


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("lose", [False, True])
def test_silence(proxy: Proxy, lose: bool) -> None:
    with connected(proxy) as connection:
        assert said(connection, b"one") == b"one"
        proxy.silence()
        connection.sendall(b"two")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(PATIENCE_S)
        proxy.heal(lose=lose)
        assert ended(connection) if lose else connection.recv(3) == b"two"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


START = message(b"", struct.pack("!i", 80877103)) + message(b"", struct.pack("!i", 196608) + b"user\x00x\x00\x00")
FENCE = message(b"P", b"f\x00WITH mine AS (UPDATE leader SET batch = $1)\x00\x00\x00")
COMMIT = message(b"P", b"c\x00COMMIT\x00\x00\x00")
FENCED, COMMITTED = message(b"B", b"\x00f\x00rest"), message(b"B", b"\x00c\x00rest")


def test_commits_of_leaders_are_found() -> None:
    finder = CommitFinder()
    assert not finder.feed(START + COMMIT + COMMITTED), "a reader's"
    assert finder.feed(FENCE + FENCED + COMMITTED)
    assert not finder.feed(COMMITTED)
    assert finder.feed(FENCED + COMMITTED), "statements that were prepared before"


def test_commits_in_pieces_are_found() -> None:
    finder = CommitFinder()
    whole = START + FENCE + COMMIT + FENCED + COMMITTED
    assert [finder.feed(whole[at : at + 1]) for at in range(len(whole))] == [False] * (len(whole) - 1) + [True]

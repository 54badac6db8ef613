"""Output that clients do not take is bounded, per connection and in total; the oldest stall is disconnected first."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from tailrace.http.message import Answer, Frame, LiveResponse, Request, Response, ResponseSink
from tailrace.http.unsent import Budget, Held
from tailrace.metrics import Metrics

from .serving import PATIENCE_S, Client, Serving

KIB = 1024
MIB = 1024 * KIB
BODY = bytes(range(256)) * (16 * KIB)  # 4 MiB, no two neighbouring slices of it alike in place


async def handle(request: Request) -> Answer:
    if request.path == b"/small":
        return Response(200, [], b"small")
    if request.method == b"POST":
        await asyncio.sleep(0)  # so that all that arrived together are under way together
    return Response(200, [], BODY)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "this should have come about long ago"
        time.sleep(0.005)


def stalled(serving: Serving, request: bytes = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n") -> Client:
    """A client that asks and does not read; its kernel takes as little as possible in its place."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    sock.settimeout(PATIENCE_S)
    sock.connect(serving.address)
    sock.sendall(request)
    return Client(sock)


def is_cut(client: Client) -> bool:
    """Whether the server has closed the connection before its response was whole. Reads what the kernel has."""
    size = 0
    try:
        while piece := client.sock.recv(MIB):
            size += len(piece)
            if size > len(BODY):
                return False
    except ConnectionResetError:
        return True
    return True


def test_a_long_response_arrives_whole_however_slowly_it_is_read() -> None:
    with Serving(handle) as serving:
        client = stalled(serving, b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /small HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: serving.server.stats.unsent_bytes >= len(BODY))
        assert client.answer().body == BODY
        assert client.answer().body == b"small"
        until(lambda: serving.server.stats.unsent_bytes == 0)
        assert serving.server.stats.unsent_disconnects == 0


def test_a_response_in_parts_arrives_whole_and_counts_as_one() -> None:
    parts = [
        bytes([number]) * size for number, size in enumerate((70_000, 1, 600_000, 256 * KIB, 5, 3 * MIB), start=65)
    ]

    def handler(request: Request) -> Response:
        return Response(200, [], parts[0], tuple(parts[1:])) if request.path == b"/" else Response(200, [], b"small")

    with Serving(handler) as serving:
        client = stalled(serving, b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /small HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: serving.server.stats.unsent_bytes >= 3 * MIB)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        answer = client.answer()
        assert answer.headers["content-length"] == str(sum(map(len, parts)))
        assert answer.body == b"".join(parts)
        assert client.answer().body == b"small"
        until(lambda: serving.server.stats.unsent_bytes == 0)
    with Serving(handler) as serving:
        client = stalled(serving, b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"content-length: %d" % sum(map(len, parts)) in client.sock.recv(KIB)


def test_a_client_that_sends_no_more_still_gets_all_of_a_long_response() -> None:
    with Serving(handle) as serving:
        client = stalled(serving)
        until(lambda: serving.server.stats.unsent_bytes >= len(BODY))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.answer().body == BODY
        assert client.rest() == b""


def test_beyond_the_total_the_oldest_stalls_are_cut_and_readers_that_read_are_not() -> None:
    with Serving(handle, unsent_bytes_max=24 * MIB) as serving:
        stats = serving.server.stats
        clients = []
        for number in range(12):
            clients.append(stalled(serving))
            until(lambda wanted=number + 1: stats.requests == wanted)  # type: ignore[misc]
        until(lambda: stats.unsent_disconnects > 0)
        with serving.client() as reader:
            for _ in range(20):
                assert reader.ask(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").body == BODY
        until(lambda: stats.unsent_bytes <= 24 * MIB)
        cut = stats.unsent_disconnects
        assert 12 - 24 // 4 <= cut < 12
        assert [is_cut(client) for client in clients] == [True] * cut + [False] * (12 - cut)
        until(lambda: stats.unsent_bytes == 0)


def test_a_slow_reader_outlives_those_that_stopped() -> None:
    with Serving(handle, unsent_bytes_max=24 * MIB) as serving:
        stats = serving.server.stats
        slow = stalled(serving)  # the first of all, and not stopped
        until(lambda: stats.unsent_bytes >= len(BODY))
        others = []
        for number in range(12):
            head = slow.exactly(256 * KIB)
            assert head
            taken = stats.unsent_disconnects
            others.append(stalled(serving))
            until(lambda wanted=number + 2: stats.requests == wanted)  # type: ignore[misc]
            until(lambda least=max(0, number - 5): stats.unsent_disconnects >= least)  # type: ignore[misc]
            assert stats.unsent_disconnects >= taken
        left = slow.exactly(len(BODY) - 12 * 256 * KIB)
        assert left
        assert is_cut(others[0])


def test_pipelined_responses_count_and_too_many_end_the_connection() -> None:
    def pipelined(count: int) -> bytes:
        return b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n" * count

    with Serving(handle, unsent_connection_max=10 * MIB) as serving:
        with serving.client() as reader:
            reader.send(pipelined(2))
            assert reader.answer().body == reader.answer().body == BODY
        client = stalled(serving, pipelined(32))
        until(lambda: serving.server.stats.unsent_disconnects == 1)
        assert is_cut(client)
        until(lambda: serving.server.stats.unsent_bytes == 0)


@pytest.mark.parametrize("plain_asyncio", [False, True])
def test_frames_held_for_live_readers_count_once_and_are_released_with_them(plain_asyncio: bool) -> None:
    event = Held(16 * MIB)

    async def live(request: Request) -> Answer:
        async def run(sink: ResponseSink) -> None:
            sink.hold(event)
            try:
                while True:
                    await sink.drained()
                    sink.send(Frame(b"x" * 64 * KIB))
                    await asyncio.sleep(0)
            finally:
                sink.release()

        return LiveResponse(200, [], run)

    with Serving(live, plain_asyncio=plain_asyncio, unsent_bytes_max=40 * MIB) as serving:
        stats = serving.server.stats
        clients = [stalled(serving) for _ in range(8)]
        until(lambda: stats.requests == 8 and stats.unsent_bytes > 16 * MIB)
        assert stats.unsent_disconnects == 0
        for client in clients:
            client.sock.close()
        until(lambda: stats.unsent_bytes == 0)
        assert event.holders == 0


class Stall:
    """A holder whose client takes what the test says."""

    def __init__(self, budget: Budget, size: int) -> None:
        self.size, self.taken, self.gone = size, 0, False
        budget.note(self)

    def unsent(self) -> tuple[int, int]:
        return self.size, self.taken

    def cut(self) -> None:
        self.gone = True


def test_the_order_is_that_of_the_last_progress() -> None:
    stats = Metrics()
    budget = Budget(100, stats)
    first, second, third = (Stall(budget, 30) for _ in range(3))
    first.taken = 1
    budget.note(first)
    fourth = Stall(budget, 30)
    assert (first.gone, second.gone, third.gone, fourth.gone) == (False, True, True, False)
    assert stats.unsent_bytes == 60
    assert stats.unsent_disconnects == 2
    large = Stall(budget, 90)  # one that is within the limit by itself stays
    assert (first.gone, fourth.gone, large.gone) == (True, True, False)
    assert stats.unsent_bytes == 90
    assert Stall(budget, 200).gone  # and one that is not cannot
    assert stats.unsent_bytes == 0

"""Live readers for the benchmarks: how long from the write to each reader's data event.

    Reader     one live reader over SSE
    deliver    paced appends to streams with live readers

A thousand readers in Python would take longer for one event than a server takes to send it; `deliver` leaves them to a
C program (`readers.c`) where a C compiler is there.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import msgspec

from bench import generator
from bench.load import (
    ANSWER_TIMEOUT_S,
    CONNECT_AT_ONCE_MAX,
    NO_CONTENT,
    TEXT,
    Address,
    Failed,
    framed,
    post,
    request,
)


class Reader(asyncio.Protocol):
    """One SSE reader. With `sent`, it looks for marks (`@%08d@`) in the data and notes how long each took."""

    def __init__(
        self, target: str, sent: dict[int, float] | None = None, latencies: array[float] | None = None
    ) -> None:
        self.target = target
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received = 0
        self.error: str | None = None
        self.last = b""
        self._sent = sent
        self._latencies = latencies if latencies is not None else array("d")
        self._rest = b""
        self._mark = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(request("GET", f"{self.target}?offset=now&live=sse", [("accept", "text/event-stream")]))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.opened.done():
            data = self._rest = self._rest + data
            if not data.startswith(b"HTTP/1.1 200 ") and len(data) > 12:
                self.error = f"status {data[9:12].decode()}"
                self.opened.set_exception(Failed(f"GET {self.target} as SSE answered {data[:200]!r}"))
            elif b'"streamNextOffset"' in data:
                self._rest = b""
                self.opened.set_result(None)
            return
        if self._sent is None:
            self.last = data if len(data) > 200 else self.last[-400:] + data
            return
        data = self._rest + data
        at = data.find(b"@")
        while at >= 0 and len(data) >= at + 10:
            mark = int(data[at + 1 : at + 9])
            sent = self._sent.get(mark)
            if sent is None:
                self.error = "an event that nobody appended"
            elif mark <= self._mark:
                self.error = "an event again or out of order"
            else:
                self.received += 1
                self._latencies.append(now - sent)
                self._mark = mark
            at = data.find(b"@", at + 10)
        self._rest = data[at:] if at >= 0 else b""

    def connection_lost(self, _error: Exception | None) -> None:
        if self.error is None:
            self.error = "connection lost"
        if not self.opened.done():
            self.opened.set_exception(Failed(f"GET {self.target} as SSE: the connection was closed"))

    def tail(self) -> str | None:
        """The offset in the last control event seen; for readers without marks."""
        found = re.findall(rb'"streamNextOffset":"([^"]+)"', self.last)
        return found[-1].decode() if found else None

    def close(self) -> None:
        self.error = self.error or "closed by us"
        if self._transport is not None:
            self._transport.abort()


async def follow(address: Address, readers: Sequence[Reader]) -> None:
    """Connect the readers; returns when each has received its position."""
    loop = asyncio.get_running_loop()
    for first in range(0, len(readers), CONNECT_AT_ONCE_MAX):
        group = readers[first : first + CONNECT_AT_ONCE_MAX]
        await asyncio.gather(*(loop.create_connection(lambda reader=reader: reader, *address) for reader in group))  # type: ignore[misc]
        await asyncio.wait_for(asyncio.gather(*(reader.opened for reader in group)), ANSWER_TIMEOUT_S)


@dataclass(slots=True)
class Delivery:
    """What `deliver` saw."""

    latencies: array[float] = field(default_factory=lambda: array("d"))  # seconds, one per append and reader
    appended: int = 0
    expected: int = 0  # deliveries: each acknowledged append, to each reader of its stream
    errors: Counter[str] = field(default_factory=Counter)
    late: int = 0  # appends that had to wait for a connection: the server did not keep up with the pace
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    busy_s: float = 0.0  # with the deliveries after the last append


class _Pen(asyncio.Protocol):
    """One connection for paced appends, one under way at a time."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.free = asyncio.Event()
        self.free.set()
        self.acknowledged = 0
        self.errors: Counter[str] = Counter()
        self._partial = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, data: bytes) -> None:
        self.free.clear()
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        if framed(data) is None:
            self._partial = data
            return
        self._partial = b""
        if data.startswith(NO_CONTENT):
            self.acknowledged += 1
        else:
            self.errors[f"status {data[9:12].decode()}"] += 1
        self.free.set()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.free.is_set():
            self.errors["connection lost"] += 1
        self.free.clear()  # and never free again

    def close(self) -> None:
        self._transport.abort()


class _Result(msgspec.Struct):
    appended: int
    late: int
    seconds: float
    busy_s: float
    cpu_s: float
    errors: dict[str, int]


async def deliver(
    address: Address,
    targets: Sequence[str],
    *,
    readers_each: int,
    pens_each: int,
    rate: float,
    seconds: float,
    started: Callable[[], None],
    ended: Callable[[], None],
    size: int = 100,
    settle_s: float = 20.0,
    lockstep: bool = False,
) -> Delivery:
    """Append to the (text) streams in turn at a fixed pace, and time each delivery to each live reader.

    In lockstep an append also waits until the one before it has reached every reader: a server that cannot keep up
    with the pace is then measured at the pace it can, and not by how long its queue has grown. `started` and `ended`
    are called before the first append and after the last delivery.
    """
    if not generator.programs():
        return await _deliver_in_python(
            address, targets, readers_each, pens_each, rate, seconds, started, ended, size, settle_s, lockstep
        )
    words = (readers_each, pens_each, rate, seconds, int(lockstep), size, settle_s)
    text = "\n".join(targets).encode()
    head, latencies = await generator.run_program("readers", address, words, text, started, ended)
    found = msgspec.json.decode(head, type=_Result)
    return Delivery(
        latencies, found.appended, found.appended * readers_each, +Counter(found.errors), found.late, found.seconds,
        found.cpu_s, found.busy_s,
    )  # fmt: skip


async def _deliver_in_python(
    address: Address,
    targets: Sequence[str],
    readers_each: int,
    pens_each: int,
    rate: float,
    seconds: float,
    started: Callable[[], None],
    ended: Callable[[], None],
    size: int,
    settle_s: float,
    lockstep: bool,
) -> Delivery:
    loop = asyncio.get_running_loop()
    result = Delivery()
    sent: dict[int, float] = {}
    readers = [Reader(target, sent, result.latencies) for target in targets for _ in range(readers_each)]
    pens: list[_Pen] = []
    try:
        await follow(address, readers)
        for target in list(targets) * pens_each:
            _, pen = await loop.create_connection(lambda target=target: _Pen(target), *address)  # type: ignore[misc]
            pens.append(pen)
        started()
        cpu, begin = time.process_time(), time.perf_counter()
        for mark in itertools.count():
            if time.perf_counter() >= begin + seconds or mark >= rate * seconds:
                break
            wait_s = begin + mark / rate - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            pen = pens[mark % len(pens)]
            if not pen.free.is_set():
                result.late += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(pen.free.wait(), settle_s)
                if not pen.free.is_set():
                    result.errors["not sent, the append before it unanswered"] += 1
                    break
            data = post(pen.target, (b"@%08d@" % mark).ljust(size, b"x"), TEXT)
            sent[mark] = time.perf_counter()
            pen.send(data)
            if lockstep and not await _arrived(result, (mark + 1) * readers_each, settle_s):
                break
        result.seconds = time.perf_counter() - begin
        await _settle(result, pens, readers, readers_each, settle_s)
        result.client_cpu_s, result.busy_s = time.process_time() - cpu, time.perf_counter() - begin
        ended()
        return result
    finally:
        for pen in pens:
            pen.close()
        for reader in readers:
            reader.close()


async def _arrived(result: Delivery, deliveries: int, patience_s: float) -> bool:
    patience = time.perf_counter() + patience_s
    # A look every 2 ms costs less than a check at each of a thousand deliveries.
    while len(result.latencies) < deliveries and time.perf_counter() < patience:
        await asyncio.sleep(0.002)
    return len(result.latencies) >= deliveries


async def _settle(
    result: Delivery, pens: Sequence[_Pen], readers: Sequence[Reader], readers_each: int, settle_s: float
) -> None:
    """Wait until everything acknowledged has arrived, or for so long; what has not is counted as errors."""
    patience = time.perf_counter() + settle_s
    missing = 0
    while time.perf_counter() < patience:
        result.appended = sum(pen.acknowledged for pen in pens)
        result.expected = result.appended * readers_each
        missing = result.expected - sum(reader.received for reader in readers)
        if missing <= 0 and all(pen.free.is_set() for pen in pens):
            break
        await asyncio.sleep(0.01)
    else:
        result.errors["not delivered"] += max(0, missing)
        result.errors["unanswered"] += sum(not pen.free.is_set() for pen in pens)
    for pen in pens:
        result.errors.update(pen.errors)
    result.errors.update(f"reader: {reader.error}" for reader in readers if reader.error)
    result.errors = +result.errors  # without what counts 0

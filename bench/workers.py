"""The clients of a queue in processes of their own, so that a server has its core and no client waits for another.

Each process makes its connections, says so, waits until all are there, and works: every moment is on one clock
(CLOCK_MONOTONIC is the machine's, not a process's). What a process saw comes back when it is done.

    Publish     messages one after the other from each client, for so long
    Drain       take and acknowledge in batches until nothing is left
    Pace        publish at a fixed pace, each message stamped with when it was due
    Follow      wait for messages, note how old each is, acknowledge
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import uvloop

from bench.clients import Client, Place, connect
from bench.load import Failed, pinned

MESSAGE_BYTES: Final = 1024
READY_TIMEOUT_S: Final = 60.0
DONE_TIMEOUT_S: Final = 300.0  # beyond what the work itself is given
WAIT_S: Final = 5  # one wait of a consumer for a message
NUMBER_BYTES: Final = 20  # at the head of a message
FILLER: Final = (b"abcdefghijklmnopqrstuvwxyz 012345" * 32)[: MESSAGE_BYTES - NUMBER_BYTES]
STALL_S: Final = 20.0  # without a message, after which a follower gives up

clock = time.perf_counter


def message(number: int) -> bytes:
    """A message of 1 KB that says which it is."""
    return b"%020d" % number + FILLER


def number_of(payload: bytes) -> int:
    if len(payload) != MESSAGE_BYTES or not payload.endswith(FILLER):
        raise Failed(f"a message of {len(payload)} bytes is not as it was published")
    return int(payload[:NUMBER_BYTES])


@dataclass
class Seen:
    """What the clients of one process saw."""

    latencies: array[float] = field(default_factory=lambda: array("d"))  # seconds, within the window
    numbers: array[int] = field(default_factory=lambda: array("q"))  # of the messages taken, in order
    acknowledged: int = 0  # by the server or by us, of the whole run
    late: int = 0  # messages behind the pace
    ended: float = 0.0  # when the last answer came
    cpu_s: float = 0.0  # within the window, or of the whole work where there is none
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class Job:
    """What one process does."""

    places: list[Place]

    async def work(self, clients: Sequence[Client], begin: float, seen: Seen) -> None:
        """From the moment `begin` on."""
        raise NotImplementedError


@dataclass
class Publish(Job):
    warmup_s: float = 0.0
    seconds: float = 1.0
    first: int = 0  # the number of the first message

    async def work(self, clients: Sequence[Client], begin: float, seen: Seen) -> None:
        window = begin + self.warmup_s
        end = window + self.seconds
        numbers = itertools.count(self.first)

        async def one(client: Client) -> None:
            while (sent := clock()) < end:
                await client.publish(message(next(numbers)))
                now = clock()
                seen.acknowledged += 1
                if window <= now < end:
                    seen.latencies.append(now - sent)

        await asyncio.gather(self._measure_cpu(window, end, seen), *(one(client) for client in clients))

    async def _measure_cpu(self, window: float, end: float, seen: Seen) -> None:
        await asyncio.sleep(window - clock())
        cpu = time.process_time()
        await asyncio.sleep(end - clock())
        seen.cpu_s = time.process_time() - cpu


@dataclass
class Drain(Job):
    batch: int = 100

    async def work(self, clients: Sequence[Client], begin: float, seen: Seen) -> None:
        async def one(client: Client) -> None:
            payloads = await client.take(self.batch)
            while payloads:
                numbers = [number_of(payload) for payload in payloads]
                payloads = await client.next(self.batch)
                seen.numbers.extend(numbers)
                seen.ended = clock()

        cpu = time.process_time()
        await asyncio.gather(*(one(client) for client in clients))
        seen.cpu_s = time.process_time() - cpu
        seen.acknowledged = len(seen.numbers)


@dataclass
class Pace(Job):
    rate: float = 200.0
    count: int = 200

    async def work(self, clients: Sequence[Client], begin: float, seen: Seen) -> None:
        cpu = time.process_time()
        (client,) = clients
        for number in range(self.count):
            due = begin + number / self.rate
            now = clock()
            if now < due:
                await asyncio.sleep(due - now)
                now = clock()
            else:  # the answer before it came too late: its age counts from when it should have been sent
                seen.late += 1
                now = due
            await client.publish(message(int(now * 1e9)))
            seen.acknowledged += 1
        seen.cpu_s = time.process_time() - cpu


@dataclass
class Follow(Job):
    count: int = 200
    skip: int = 0  # the first ones are a warm-up
    batch: int = 100

    async def work(self, clients: Sequence[Client], begin: float, seen: Seen) -> None:
        cpu = time.process_time()
        (client,) = clients
        last = clock()
        while len(seen.numbers) < self.count:
            payloads = await client.take(self.batch, WAIT_S)
            now = clock()
            if payloads:
                for payload in payloads:
                    stamp = number_of(payload)
                    seen.numbers.append(stamp)
                    if len(seen.numbers) > self.skip:
                        seen.latencies.append(now - stamp / 1e9)
                await client.ack()
                last = now
            elif now - last > STALL_S:
                seen.errors["not delivered"] += self.count - len(seen.numbers)
                break
        seen.acknowledged = len(seen.numbers)
        seen.cpu_s = time.process_time() - cpu


# -- processes


def serve(job: Job, line: Connection) -> None:
    """The life of one process."""
    with suppress(KeyboardInterrupt):
        uvloop.run(_serve(job, line))


async def _serve(job: Job, line: Connection) -> None:
    loop = asyncio.get_running_loop()
    seen = Seen()
    clients: list[Client] = []
    try:
        for place in job.places:
            clients.append(await connect(place))
        line.send(None)
        begin: float = await loop.run_in_executor(None, line.recv)
        await asyncio.sleep(begin - clock())
        await job.work(clients, begin, seen)
    except Exception as error:  # whatever a client library raises is an error of the row
        seen.errors[f"{type(error).__name__}: {error}"[:300]] += 1
    line.send(seen)
    for client in clients:
        with suppress(Exception):
            await client.close()


class Crew:
    """Processes with one job each, all connected and waiting for `go`."""

    def __init__(self, jobs: Sequence[Job], cores: set[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection] = []
        self._processes: list[Any] = []
        try:
            with pinned(cores or None):
                for job in jobs:
                    ours, theirs = context.Pipe()
                    process = context.Process(target=serve, args=(job, theirs), daemon=True)
                    process.start()
                    theirs.close()
                    self._lines.append(ours)
                    self._processes.append(process)
            self._early = [self._receive(line, READY_TIMEOUT_S) for line in self._lines]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def go(self, after_s: float = 0.05) -> float:
        """Let all begin at the same moment, which is returned."""
        for early in self._early:
            if early is not None:
                raise Failed(f"a client could not connect: {', '.join(early.errors)}")
        begin = clock() + after_s
        for line in self._lines:
            line.send(begin)
        return begin

    def seen(self) -> list[Seen]:
        """What each saw, when all are done."""
        return [self._receive(line, DONE_TIMEOUT_S) for line in self._lines]

    def _receive(self, line: Connection, timeout_s: float) -> Any:
        if not line.poll(timeout_s):
            raise Failed(f"a client process printed nothing for {timeout_s:g} s")
        return line.recv()

    def close(self) -> None:
        for process in self._processes:
            process.join(2.0)
            if process.is_alive():
                process.kill()
                process.join()


def processes(cores: set[int]) -> int:
    """How many processes the clients of a row are spread over: one for each core they have, up to four."""
    return min(4, len(cores) or len(os.sched_getaffinity(0)))

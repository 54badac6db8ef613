"""Topics over HTTP, beside Redis Streams and a queue in PostgreSQL: messages of 1 KB, Python clients, equal promises.

Clients are in processes of their own, as many for each server. All three acknowledge a message when it has been synced.
What was acknowledged is counted in the server afterwards, and every message that is consumed says which it is: one that
is missing or comes twice is an error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import hiredis

from bench import generator
from bench.clients import FIELD, QUEUE, Place
from bench.generator import MARK, Prepared, Source
from bench.load import post
from bench.queues import QUEUES, Queue
from bench.rows import Line, Meter, Row, Sample, Settings, cpu_line, milliseconds, run, setting_lines
from bench.servers import QUEUE_PEERS
from bench.workers import Crew, Drain, Follow, Pace, Publish, Seen, clock, message, processes

CLIENTS: Final = 16
BATCH: Final = 100
PACE_PER_S: Final = 200.0
BARE: Final = ("tailrace", "redis-bare")  # what the load generator speaks to


class TopicRow(Row[Queue]):
    """A measurement of servers of queues."""

    group = "topics"
    contenders = ("tailrace", *QUEUE_PEERS)
    what: ClassVar[str] = "messages"

    def contender(self, name: str) -> Queue:
        return QUEUES[name](name, self.settings.data / self.name / name, self.settings.server_core)

    def prepare(self, server: Queue) -> None:
        server.make()

    def secondary(self) -> list[Line]:
        return setting_lines("clients busy, of their cores")

    def busy(self, seen: Sequence[Seen], seconds: float) -> float:
        """Which share of the clients' cores they used, in percent; near 100 it is they who are measured."""
        cores = min(len(seen), len(self.settings.client_cores) or 1)
        return sum(one.cpu_s for one in seen) / (seconds * cores) * 100

    def places(self, server: Queue, count: int, group: str = "") -> list[list[Place]]:
        """So many clients, spread over processes."""
        places = [Place(server.name, server.address, group, f"c{n}") for n in range(count)]
        among = min(count, processes(self.settings.client_cores))
        return [places[n::among] for n in range(among)]


def errors_of(seen: Sequence[Seen]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in seen:
        total.update(one.errors)
    return total


def publish_request(server: str) -> Prepared:
    """A message as it is published to Tailrace or to Redis, without a client around it."""
    payload = message(0).replace(b"0" * len(MARK), MARK, 1)
    if server == "tailrace":
        return Prepared(post(f"/v1/topics/{QUEUE}", payload), 204)
    return Prepared(hiredis.pack_command(("XADD", QUEUE, "*", FIELD, payload)))  # type: ignore[arg-type]


class Publishes(TopicRow):
    """One message to a request and one request under way from each client.

    Tailrace and `redis-bare` are driven by the load generator, the others by their clients in Python.
    """

    name = "topic-publish"
    title = f"publish from {CLIENTS} clients, 1 KB, one message at a time, each durable when acknowledged"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._held: dict[str, int] = {}

    def lines(self) -> list[Line]:
        return [
            Line("rate", self.what, "/s", ratio_at_least=1.0, against="redis-bare"),
            cpu_line("message"),
            Line("p50", "p50 under this load", "ms", higher=False, secondary=True),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
            *self.secondary(),
        ]

    def measure(self, server: Queue) -> Sample:
        held = self._held.setdefault(server.name, server.held())
        bare = server.name in BARE and generator.programs()
        sample, acknowledged = self._bare(server) if bare else self._clients(server)
        self._held[server.name] = server.held()
        added = self._held[server.name] - held
        # A request that failed may have been stored all the same.
        if not acknowledged <= added <= acknowledged + len(sample.errors) * CLIENTS:
            sample.complaints.append(f"{added} messages are there, {acknowledged} were acknowledged")
        return sample

    def _bare(self, server: Queue) -> tuple[Sample, int]:
        """The load generator; how many messages were acknowledged."""
        meter = Meter(server, self.settings)
        source = Source([publish_request(server.name).numbered()])
        done = run(
            generator.drive(
                server.address,
                [source] * CLIENTS,
                seconds=self.settings.short_s,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        figures = {"rate": done.rate, **milliseconds(done.latencies), "client": done.client_share * 100}
        figures |= meter.figures(len(done.latencies))
        return Sample(figures, dict(done.errors)), sum(answers[0].count for answers in done.answers)

    def _clients(self, server: Queue) -> tuple[Sample, int]:
        """Clients in Python; how many messages were acknowledged."""
        warmup_s, seconds = self.settings.warmup_s, self.settings.short_s
        jobs = [Publish(places, warmup_s, seconds, n * 10**9) for n, places in enumerate(self.places(server, CLIENTS))]
        meter = Meter(server, self.settings)
        with Crew(jobs, self.settings.client_cores) as crew:
            begin = crew.go()
            wait_until(begin + warmup_s)
            meter.start()
            wait_until(begin + warmup_s + seconds)
            meter.end()
            seen = crew.seen()
        latencies = [latency for one in seen for latency in one.latencies]
        figures = {"rate": len(latencies) / seconds, **milliseconds(latencies), "client": self.busy(seen, seconds)}
        sample = Sample(figures | meter.figures(len(latencies)), dict(errors_of(seen)))
        return sample, sum(one.acknowledged for one in seen)


class Consumes(TopicRow):
    """Take and acknowledge all that is there, in batches; the clock stops at the last acknowledgement."""

    clients: ClassVar[int] = 1

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.count = settings.messages
        many = "1 client" if self.clients == 1 else f"{self.clients} clients"
        self.title = f"consume and acknowledge {self.count:,} messages of 1 KB, {BATCH} at a time, {many}"

    def lines(self) -> list[Line]:
        rate = Line("rate", self.what, "/s", ratio_at_least=1.0, against="redis-bare")
        return [rate, cpu_line("message"), *self.secondary()]

    def prepare(self, server: Queue) -> None:
        server.make()
        server.fill(self.count)

    def measure(self, server: Queue) -> Sample:
        if server.held() != self.count:  # who takes messages by deleting them needs new ones
            server.fill(self.count)
        group = f"g{time.monotonic_ns()}"
        server.make_group(group)
        jobs = [Drain(places, BATCH) for places in self.places(server, self.clients, group)]
        meter = Meter(server, self.settings)
        with Crew(jobs, self.settings.client_cores) as crew:
            begin = crew.go()
            wait_until(begin)
            meter.start()
            seen = crew.seen()
            meter.end()
        seconds = max(max(one.ended for one in seen) - begin, 1e-9)
        numbers = [number for one in seen for number in one.numbers]
        sample = Sample({"rate": len(numbers) / seconds}, dict(errors_of(seen)))
        sample.figures["client"] = self.busy(seen, seconds)
        sample.figures |= meter.figures(len(numbers))
        distinct = set(numbers)
        if distinct != set(range(self.count)):
            sample.complaints.append(f"{len(distinct)} of {self.count} messages were delivered")
        if len(numbers) != len(distinct):
            sample.complaints.append(f"{len(numbers) - len(distinct)} messages were delivered again")
        if unfinished := server.unfinished(group):
            sample.complaints.append(f"{unfinished} messages are not acknowledged in the server")
        return sample


class ConsumesOne(Consumes):
    name = "topic-consume-1"
    clients = 1


class ConsumesMany(Consumes):
    name = "topic-consume-16"
    clients = CLIENTS


class EndToEnd(TopicRow):
    """From a publisher's send to the waiting consumer that has the message in its hands, in other processes both.

    The clocks are one. A message that could not be sent in time, because the one before it was not acknowledged yet,
    counts from when it was due.
    """

    name = "topic-latency"
    title = f"end to end at {PACE_PER_S:g} messages/s: publisher → waiting consumer, which acknowledges each"

    def lines(self) -> list[Line]:
        return [
            Line("p50", "publish → received p50", "ms", higher=False, at_most=0.9),
            Line("p99", "publish → received p99", "ms", higher=False),
            cpu_line("message"),
            Line("late", "messages behind the pace", "", higher=False, secondary=True, compared=False),
            *self.secondary(),
        ]

    def measure(self, server: Queue) -> Sample:
        seconds, warmup_s = self.settings.seconds * 2, 1.0
        count, skip = int((seconds + warmup_s) * PACE_PER_S), int(warmup_s * PACE_PER_S)
        server.make()
        group = f"g{time.monotonic_ns()}"
        server.make_group(group)
        publisher = Place(server.name, server.address, notify=True)
        consumer = Place(server.name, server.address, group, "c0")
        jobs = [Pace([publisher], PACE_PER_S, count), Follow([consumer], count, skip, BATCH)]
        meter = Meter(server, self.settings)
        with Crew(jobs, self.settings.client_cores) as crew:
            begin = crew.go(0.2)
            wait_until(begin)
            meter.start()
            paced, followed = crew.seen()
            meter.end()
        spent = clock() - begin
        sample = Sample(milliseconds(list(followed.latencies)), dict(errors_of([paced, followed])))
        sample.figures |= {"late": paced.late, "client": self.busy([paced, followed], spent)}
        sample.figures |= meter.figures(followed.acknowledged)
        if followed.acknowledged != paced.acknowledged or len(set(followed.numbers)) != len(followed.numbers):
            distinct = len(set(followed.numbers))
            sample.complaints.append(
                f"{followed.acknowledged} deliveries of {distinct} of {paced.acknowledged} messages"
            )
        return sample


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - clock()))


ROWS: Final[list[type[Row[Any]]]] = [Publishes, ConsumesOne, ConsumesMany, EndToEnd]

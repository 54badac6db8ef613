"""What a route from a table to a topic costs the write that it belongs to, and what its filter costs alone.

The same writes into tables with and without a route whose filter matches each of them, and whose messages carry the
whole row; with and without a change stream on both. Each turn is a few writes to each table, so that the moods of the
disk fall on all. Every routed write must have made one message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any, ClassVar, Final

import duckdb

import tailrace
from bench import generator
from bench.dynamodb import Api, Puts, answer_count
from bench.embedded import BATCH, Home
from bench.load import pinned
from bench.queues import sql, topic_next
from bench.rows import Line, Meter, Row, Sample, ServerRow, Settings, run, setting_lines
from bench.servers import Server
from bench.tables import CONNECTIONS, first_version, item
from tailrace import scalar
from tailrace.embedded import Put
from tailrace.topics.queries import DescribeTopic

FILTER: Final = "is_visible = true AND channel_id = 42"
TIMES_MAX: Final = 1.3  # a routed write as a multiple of one without a route
VARIANTS: Final = ("plain", "routed", "streamed", "streamed_routed")
PAIRS: Final = (("plain", "routed", "no change stream"), ("streamed", "streamed_routed", "a change stream on both"))
BOTH: Final = "NEW_AND_OLD_IMAGES"
PUTS_EACH: Final = 50  # single puts to a table in one turn
NOTE: Final = ("abcdefghijklmnopqrstuvwxyz 012345" * 29)[:912]
EVENTS: Final = 1_000


def source(table: str, event: str) -> str:
    """The statements that give a topic of its own to a table."""
    return (
        f"CREATE TOPIC {table}_events; "
        f"ALTER TOPIC {table}_events ADD SOURCE {table} ON {event} WHERE ({FILTER}) WITH (payload = 'full')"
    )


def ratio_lines(what: str, key: str) -> list[Line]:
    """With a route as a multiple of without, by the clock and in processor time."""
    lines = []
    for _, routed, kind in PAIRS:
        lines.append(Line(f"{key} {routed}", f"{what}, {kind}", "×", False, at_most=TIMES_MAX))
        lines.append(Line(f"{key} {routed} cpu", "the same in processor time", "×", False, secondary=True))
    return lines


def ratios(rounds: list[dict[str, float]], key: str) -> dict[str, float]:
    """The medians over the rounds."""
    return {
        f"{key} {routed}{suffix}": median(
            spent[f"{key} {routed}{suffix}"] / spent[f"{key} {plain}{suffix}"] for spent in rounds
        )
        for plain, routed, _ in PAIRS
        for suffix in ("", " cpu")
    }


# -- from Python


def document(number: int) -> dict[str, Any]:
    """A document of 1 KB that the filter lets through."""
    return {
        "id": f"m{number:08d}",
        "channel_id": 42,
        "is_visible": True,
        "author": "u-1007",
        "likes": 3,
        "body": NOTE,
    }


class EmbeddedRoutes(Row[Home]):
    """New documents into four databases in turn."""

    name = "route-embedded"
    group = "routes"
    title = f"put of 1 KB documents from Python, WHERE {FILTER}, full payload: with a route, without = 1"
    contenders = ("tailrace",)
    repeated = False
    repeatable = False

    def contender(self, name: str) -> Home:
        return Home(name, self.settings.data / self.name / name)

    def lines(self) -> list[Line]:
        return [
            *ratio_lines("each synced on its own", "put"),
            *ratio_lines(f"{BATCH} to a transaction", "batch"),
            Line("rate put", "without a route, each on its own", "/s", secondary=True),
            Line("cpu put", "the same, CPU per document", "µs", higher=False, secondary=True),
            Line("rate batch", f"without a route, {BATCH} to a transaction", "/s", secondary=True),
            Line("cpu batch", "the same, CPU per document", "µs", higher=False, secondary=True),
            setting_lines()[0],
        ]

    def measure(self, server: Home) -> Sample:
        meter = Meter(server, self.settings)
        with pinned(self.settings.server_core), ExitStack() as stack, meter:
            databases = {variant: self._open(stack, server, variant) for variant in VARIANTS}
            sample = self._sample(databases)
        sample.figures["others"] = meter.figures(1)["others"]
        return sample

    def _open(self, stack: ExitStack, server: Home, variant: str) -> tailrace.Database:
        db = stack.enter_context(tailrace.open(server.data / variant))
        stream = BOTH if variant.startswith("streamed") else None
        db.create_table("messages", "id", stream=stream, max_count=None, max_age=None)
        if variant.endswith("routed"):
            db.sql(source("messages", "INSERT"))
        return db

    def _sample(self, databases: dict[str, tailrace.Database]) -> Sample:
        rounds: list[dict[str, float]] = []
        written = 0
        turns = max(1, self.settings.round_batches // 10)
        for _ in range(self.settings.rounds + 1):  # the first is a warm-up
            spent: dict[str, float] = {}
            for turn in range(turns):
                order = VARIANTS[turn % 4 :] + VARIANTS[: turn % 4]  # another one goes first
                written = self._turn(databases, order, "put", PUTS_EACH, written, spent)
                written = self._turn(databases, order, "batch", BATCH * 10, written, spent)
            rounds.append(spent)
        sample = Sample(ratios(rounds[1:], "put") | ratios(rounds[1:], "batch"))
        for kind, each in (("put", PUTS_EACH), ("batch", BATCH * 10)):
            count = turns * each
            sample.figures[f"rate {kind}"] = count / median(spent[f"{kind} plain"] for spent in rounds[1:])
            sample.figures[f"cpu {kind}"] = median(spent[f"{kind} plain cpu"] for spent in rounds[1:]) / count * 1e6
        for variant, db in databases.items():
            if db.table("messages").count() != written:
                sample.complaints.append(f"{variant}: {db.table('messages').count()} documents of {written} are there")
            if variant.endswith("routed"):
                messages = db.execute(DescribeTopic("messages_events")).partitions[0].next
                if messages != written:
                    sample.complaints.append(f"{variant}: {messages} messages of {written} writes")
        return sample

    def _turn(
        self,
        databases: dict[str, tailrace.Database],
        order: tuple[str, ...],
        kind: str,
        count: int,
        first: int,
        spent: dict[str, float],
    ) -> int:
        documents = [document(number) for number in range(first, first + count)]
        for variant in order:
            write = self._writer(databases[variant], kind, documents)
            started, cpu = time.perf_counter(), time.process_time()
            write()
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu
            for key, value in ((f"{kind} {variant}", wall), (f"{kind} {variant} cpu", cpu)):
                spent[key] = spent.get(key, 0.0) + value
        return first + count

    def _writer(self, db: tailrace.Database, kind: str, documents: list[dict[str, Any]]) -> Callable[[], None]:
        table = db.table("messages")
        puts = [Put("messages", one) for one in documents]
        batches = [puts[at : at + BATCH] for at in range(0, len(puts), BATCH)]

        def one_by_one() -> None:
            for one in documents:
                table.put(one)

        def in_batches() -> None:
            for batch in batches:
                db.batch_write(batch)

        return one_by_one if kind == "put" else in_batches


# -- over HTTP


class PutItemRoutes(ServerRow):
    """Items changed from 16 connections, a few moments to each of four tables in turn."""

    name = "route-http"
    group = "routes"
    title = f"PutItem of 1 KB, {CONNECTIONS} connections, WHERE {FILTER}, full payload: with a route, without = 1"
    contenders = ("tailrace",)
    turns: ClassVar[int] = 4

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._versions = dict.fromkeys(VARIANTS, 0)
        self._writes = dict.fromkeys(VARIANTS, 0)

    def lines(self) -> list[Line]:
        rate = Line("rate", "PutItem without a route", "/s", secondary=True)
        cpu = Line("cpu_us", "server CPU per PutItem without a route", "µs", higher=False, secondary=True)
        return [*ratio_lines("PutItem", "put"), rate, cpu, setting_lines()[0]]

    def prepare(self, server: Server) -> None:
        for table in VARIANTS:
            with Api(server.address, table) as api:
                api.create_table(["id"], BOTH if table.startswith("streamed") else None)
                api.fill([self._item(f"k{n:06d}", first_version(0)) for n in range(self.settings.items)])
            if table.endswith("routed"):
                sql(server.address, source(table, "UPDATE"))
            self._drive(server, table, self.settings.warmup_s)

    def _item(self, key: str, version: int | str) -> dict[str, Any]:
        return item({"id": key}, version) | {"is_visible": {"BOOL": True}, "channel_id": {"N": "42"}}

    def _drive(self, server: Server, table: str, seconds: float, errors: dict[str, int] | None = None) -> float:
        """Put for so long; how long one took. What failed is counted in `errors`."""
        puts = Puts(table, self._item, range(self.settings.items), CONNECTIONS)
        done = run(generator.drive(server.address, puts.sources(self._versions[table] + 1), seconds=seconds))
        self._versions[table] = max((version for _, version in puts.versions(done)), default=0)
        self._writes[table] += answer_count(done)
        for what, count in done.errors.items():
            if errors is not None:
                errors[what] = errors.get(what, 0) + count
        return done.seconds / max(1, len(done.latencies))

    def measure(self, server: Server) -> Sample:
        sample = Sample()
        rounds: list[dict[str, float]] = []
        meter = Meter(server, self.settings)
        meter.start()
        for turn in range(self.turns):
            spent: dict[str, float] = {}
            for table in VARIANTS[turn % 4 :] + VARIANTS[: turn % 4]:
                cpu, writes = server.cpu_s(), self._writes[table]
                spent[f"put {table}"] = self._drive(
                    server, table, self.settings.short_s / self.turns * 2, sample.errors
                )
                spent[f"put {table} cpu"] = (server.cpu_s() - cpu) / (self._writes[table] - writes)
            rounds.append(spent)
        meter.end()
        sample.figures = ratios(rounds, "put") | {"rate": 1 / median(spent["put plain"] for spent in rounds)}
        sample.figures["cpu_us"] = median(spent["put plain cpu"] for spent in rounds) * 1e6
        sample.figures["others"] = meter.figures(1)["others"]
        for table in VARIANTS:
            if table.endswith("routed"):
                messages, writes = topic_next(server.address, f"{table}_events"), self._writes[table]
                if not writes <= messages <= writes + sum(sample.errors.values()):
                    sample.complaints.append(f"{table}: {messages} messages for {writes} writes")
        return sample


# -- the filter alone


class Filters(Row[Home]):
    """One event after the other; DuckDB, queried for each, shows what the write path is spared."""

    name = "route-filter"
    group = "routes"
    title = f"filter: {FILTER}"
    contenders = ("tailrace", "duckdb")

    def contender(self, name: str) -> Home:
        return Home(name, self.settings.data / self.name / name)

    def lines(self) -> list[Line]:
        return [Line("us", "one event", "µs", higher=False, at_most=1)]

    def prepare(self, server: Home) -> None:
        # A third of them are let through; some lack a column, which is NULL.
        self.items: list[dict[str, Any]] = []
        for number in range(EVENTS):
            one = item({"id": f"k{number}"}, number) | {"channel_id": {"N": "42"}}
            if number % 3 != 2:
                one["is_visible"] = {"BOOL": number % 3 == 0}
            self.items.append(one)
        self.expected = sum(number % 3 == 0 for number in range(EVENTS))

    def measure(self, server: Home) -> Sample:
        with pinned(self.settings.server_core):
            return self._sample(self._duckdb if server.name == "duckdb" else self._tailrace)

    def _sample(self, count: Callable[[], int]) -> Sample:
        sample = Sample()
        spent, events = 0.0, 0
        while spent < self.settings.short_s / 3:
            started = time.perf_counter()
            found = count()
            spent += time.perf_counter() - started
            events += EVENTS
            if found != self.expected:
                sample.errors["let through what it should not, or not what it should"] = abs(found - self.expected)
        sample.figures["us"] = spent / events * 1e6
        return sample

    def _tailrace(self) -> int:
        true = scalar.condition(FILTER).true
        return sum([true(one, None) for one in self.items])

    def _duckdb(self) -> int:
        found = 0
        with duckdb.connect() as connection:
            for one in self.items:
                row = (one.get("is_visible", {}).get("BOOL"), int(one["channel_id"]["N"]))
                (is_true,) = connection.execute(
                    f"SELECT {FILTER} FROM (SELECT ?::BOOLEAN AS is_visible, ?::BIGINT AS channel_id)", row
                ).fetchone() or (None,)
                found += is_true is True
        return found


ROWS: Final[list[type[Row[Any]]]] = [EmbeddedRoutes, PutItemRoutes, Filters]

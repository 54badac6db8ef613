"""Tables from Python, beside the bare sqlite3 module of the standard library doing the same writes and reads.

All are in this process, on one core and one disk, each in a database of its own in WAL mode with synchronous=FULL.
`sqlite3` has one table (pk, sk, body) and is handed the bytes that Tailrace stores, ready made; `sqlite3+json` has the
documents to encode and decode like any program that has documents. Documents are made outside of what is timed.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from contextlib import ExitStack
from statistics import median
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

import tailrace
from bench.load import pinned
from bench.rows import Line, Meter, Row, Sample, Settings, cpu_line, setting_lines
from bench.servers import Contender
from tailrace.embedded import Put, Table

STORES: Final = ("sqlite3", "sqlite3+json")
BATCH: Final = 100  # documents in a transaction
QUERY_ITEMS: Final = 20
PARTITION_ITEMS: Final = 50
READ_ITEMS: Final = 10_000  # in the stores that are read from
VIEWS: Final = ("KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
OFF: Final = "off"
OFF_AGAIN: Final = "off again"  # a stream that was enabled once
CHANGES_PAGE: Final = 1_000  # records asked for at a time
CHANGES_KEYS: Final = 1_000  # items that are written to over and over
NOTE: Final = ("abcdefghijklmnopqrstuvwxyz 012345" * 29)[:939]


class Document(NamedTuple):
    """A document of 1 KB, and the bytes of it."""

    pk: str
    sk: str
    item: dict[str, Any]
    body: bytes


def document(number: int, version: int = 0) -> Document:
    pk, sk = f"p{number // PARTITION_ITEMS:06d}", f"s{number % PARTITION_ITEMS:04d}"
    item = {
        "pk": pk,
        "sk": sk,
        "version": version,
        "status": "shipped",
        "lines": [{"sku": "A-1007", "count": 3}],
        "paid": True,
        "note": NOTE,
    }
    return Document(pk, sk, item, msgspec.msgpack.encode(item))


# -- stores


class Store(Contender):
    """A place for documents in this process."""

    def put(self, one: Document) -> None:
        raise NotImplementedError

    def batch(self, many: list[Document]) -> None:
        raise NotImplementedError

    def get(self, pk: str, sk: str) -> Any:
        raise NotImplementedError

    def query(self, pk: str) -> list[Any]:
        raise NotImplementedError

    def count(self) -> int:
        raise NotImplementedError

    def expected(self, one: Document) -> Any:
        """What a read brings."""
        return one.item


class TailraceStore(Store):
    def start(self) -> None:
        self._db = tailrace.open(self.data)
        self._table = self._db.create_table("documents", "pk", "sk")

    def stop(self) -> None:
        self._db.close()

    def put(self, one: Document) -> None:
        self._table.put(one.item)

    def batch(self, many: list[Document]) -> None:
        self._db.batch_write([Put("documents", one.item) for one in many])

    def get(self, pk: str, sk: str) -> Any:
        return self._table.get((pk, sk))

    def query(self, pk: str) -> list[Any]:
        return list(self._table.query(pk, limit=QUERY_ITEMS))

    def count(self) -> int:
        return self._table.count()


class SqliteStore(Store):
    """The module as it comes, with the bytes of a document as they are."""

    def start(self) -> None:
        self.data.mkdir(parents=True)
        self._connection = sqlite3.connect(self.data / "bare.db", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE items (pk TEXT, sk TEXT, body BLOB, PRIMARY KEY (pk, sk))",
        ):
            self._connection.execute(statement)

    def stop(self) -> None:
        self._connection.close()

    def row(self, one: Document) -> tuple[str, str, bytes]:
        return one.pk, one.sk, one.body

    def read(self, body: bytes) -> Any:
        return body

    def expected(self, one: Document) -> Any:
        return one.body

    def put(self, one: Document) -> None:
        self._connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", self.row(one))

    def batch(self, many: list[Document]) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", [self.row(one) for one in many])
        execute("COMMIT")

    def get(self, pk: str, sk: str) -> Any:
        row = self._connection.execute("SELECT body FROM items WHERE pk = ? AND sk = ?", (pk, sk)).fetchone()
        return self.read(row[0])

    def query(self, pk: str) -> list[Any]:
        rows = self._connection.execute(
            "SELECT body FROM items WHERE pk = ? ORDER BY sk LIMIT ?", (pk, QUERY_ITEMS)
        ).fetchall()
        return [self.read(body) for (body,) in rows]

    def count(self) -> int:
        number: int = self._connection.execute("SELECT count(*) FROM items").fetchone()[0]
        return number


class SqliteJsonStore(SqliteStore):
    """The module as it comes, with documents as JSON."""

    def row(self, one: Document) -> tuple[str, str, bytes]:
        return one.pk, one.sk, json.dumps(one.item).encode()

    def read(self, body: bytes) -> Any:
        return json.loads(body)

    def expected(self, one: Document) -> Any:
        return one.item


KINDS: Final[dict[str, type[Store]]] = {
    "tailrace": TailraceStore,
    "sqlite3": SqliteStore,
    "sqlite3+json": SqliteJsonStore,
}


# -- rows


class StoreRow(Row[Store]):
    """A measurement within this process, on the core that servers are measured on."""

    group = "embedded"
    contenders = ("tailrace", *STORES)
    what: ClassVar[str] = "documents"

    def contender(self, name: str) -> Store:
        return KINDS[name](name, self.settings.data / self.name / name)

    ratio_at_least: ClassVar[float | None] = None  # than sqlite3+json

    def lines(self) -> list[Line]:
        return [
            Line("rate", self.what, "/s", ratio_at_least=self.ratio_at_least, against="sqlite3+json"),
            cpu_line("query" if self.what == "queries" else self.what.removesuffix("s")),
            setting_lines()[0],
        ]

    def start(self, server: Store) -> None:
        with pinned(self.settings.server_core):  # threads stay where they were started
            server.start()

    def prepare(self, server: Store) -> None:
        self.documents = [document(number) for number in range(READ_ITEMS)]
        for first in range(0, READ_ITEMS, BATCH):
            server.batch(self.documents[first : first + BATCH])

    def measure(self, server: Store) -> Sample:
        meter = Meter(server, self.settings)
        with pinned(self.settings.server_core), meter:
            sample = self.sample(server)
        sample.figures["others"] = meter.figures(1)["others"]
        return sample

    def sample(self, server: Store) -> Sample:
        raise NotImplementedError


class Writes(StoreRow):
    """New documents, in transactions of `each`; what is there afterwards is counted and some of it read."""

    each: ClassVar[int] = 1

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._written: dict[str, int] = {}

    def prepare(self, server: Store) -> None:
        self._written[server.name] = 0

    def sample(self, server: Store) -> Sample:
        written = begin = self._written[server.name]
        spent, cpu = 0.0, 0.0
        while spent < self.settings.short_s:
            some = [document(number) for number in range(written, written + BATCH)]
            started, started_cpu = time.perf_counter(), time.process_time()
            self.write(server, some)
            spent += time.perf_counter() - started
            cpu += time.process_time() - started_cpu
            written += BATCH
        self._written[server.name] = written
        sample = Sample({"rate": (written - begin) / spent, "cpu_us": cpu / (written - begin) * 1e6})
        if server.count() != written:
            sample.complaints.append(f"{server.count()} documents of {written} are there")
        for number in random.Random(3).sample(range(written), 50):
            one = document(number)
            if server.get(one.pk, one.sk) != server.expected(one):
                sample.complaints.append(f"document {number} is not as it was put")
        return sample

    def write(self, server: Store, some: list[Document]) -> None:
        raise NotImplementedError


class DurablePuts(Writes):
    name = "embedded-put"
    title = "put, 1 KB documents, each synced on its own"

    def write(self, server: Store, some: list[Document]) -> None:
        for one in some:
            server.put(one)


class BatchedPuts(Writes):
    name = "embedded-batch"
    ratio_at_least = 1.0
    title = f"put, 1 KB documents, {BATCH} to a transaction"

    def write(self, server: Store, some: list[Document]) -> None:
        server.batch(some)


class Reads(StoreRow):
    """Reads in no particular order; each answer is compared with what was written, outside of what is timed."""

    def sample(self, server: Store) -> Sample:
        order = random.Random(4)
        spent, cpu, count = 0.0, 0.0, 0
        sample = Sample()
        while spent < self.settings.short_s:
            wanted = [self.ask(order) for _ in range(BATCH)]
            started, started_cpu = time.perf_counter(), time.process_time()
            found = self.read(server, wanted)
            spent += time.perf_counter() - started
            cpu += time.process_time() - started_cpu
            count += BATCH
            wrong = sum(self.wrong(server, one, what) for one, what in zip(wanted, found, strict=True))
            if wrong:
                sample.errors["not what was written"] = sample.errors.get("not what was written", 0) + wrong
        sample.figures |= {"rate": count / spent, "cpu_us": cpu / count * 1e6}
        return sample

    def ask(self, order: random.Random) -> Document:
        return order.choice(self.documents)

    def read(self, server: Store, wanted: list[Document]) -> list[Any]:
        raise NotImplementedError

    def wrong(self, server: Store, one: Document, found: Any) -> bool:
        raise NotImplementedError


class Gets(Reads):
    name = "embedded-get"
    ratio_at_least = 1.0
    title = "get, 1 KB documents"

    def read(self, server: Store, wanted: list[Document]) -> list[Any]:
        return [server.get(one.pk, one.sk) for one in wanted]

    def wrong(self, server: Store, one: Document, found: Any) -> bool:
        return bool(found != server.expected(one))


class Queries(Reads):
    name = "embedded-query"
    title = f"query, {QUERY_ITEMS} × 1 KB documents"
    what = "queries"

    def read(self, server: Store, wanted: list[Document]) -> list[Any]:
        return [server.query(one.pk) for one in wanted]

    def wrong(self, server: Store, one: Document, found: Any) -> bool:
        first = int(one.pk[1:]) * PARTITION_ITEMS
        return [server.expected(each) for each in self.documents[first : first + QUERY_ITEMS]] != list(found)


class Home(Contender):
    """A directory for the databases that a row opens by itself."""

    def start(self) -> None:
        self.data.mkdir(parents=True)

    def stop(self) -> None:
        pass


class TailraceAlone(Row[Home]):
    """A measurement of Tailrace against itself."""

    group = "embedded"
    contenders = ("tailrace",)
    repeated = False
    repeatable = False  # each opens databases of its own, in directories that must be new

    def contender(self, name: str) -> Home:
        return Home(name, self.settings.data / self.name / name)

    def measure(self, server: Home) -> Sample:
        meter = Meter(server, self.settings)
        with pinned(self.settings.server_core), meter:
            sample = self.sample(server)
        sample.figures["others"] = meter.figures(1)["others"]
        return sample

    def sample(self, server: Home) -> Sample:
        raise NotImplementedError


class Views(TailraceAlone):
    """What capturing changes costs: the same batches into tables with and without a stream, a few batches in turn.

    Each variant has a database of its own, so that each pays for its own checkpoints. The overhead is the median over
    the rounds of how much longer a variant took than the one without a stream in the same round.
    """

    name = "embedded-views"
    title = f"batched put, {BATCH} × 1 KB documents to a transaction: longer than without a stream"
    variants: Final = (OFF, OFF_AGAIN, *VIEWS)
    turn_batches: Final = 10

    def lines(self) -> list[Line]:
        lines = []
        for kind in ("new", "changed"):
            lines.append(Line(f"rate_{kind}", f"{kind} items, no stream", "/s"))
            lines.append(Line(f"cpu_{kind}", f"CPU per {kind} item, no stream", "µs", higher=False))
        limits = {"KEYS_ONLY": 10.0, "NEW_AND_OLD_IMAGES": 25.0}
        for variant in self.variants[1:]:
            label = "stream enabled once, then disabled" if variant == OFF_AGAIN else variant
            for kind, what in (("new", "new items"), ("changed", "changed items")):
                key, limit = f"{variant} {kind}", limits.get(variant)
                lines.append(Line(key, f"{label}, {what}", "%", False, at_most=limit))
                if limit is not None:  # the disk's moods are not in it
                    lines.append(Line(f"{key} cpu", "the same in processor time", "%", False, secondary=True))
        return [*lines, setting_lines()[0]]

    def sample(self, server: Home) -> Sample:
        sample = Sample()
        rounds: list[dict[str, float]] = []
        with ExitStack() as stack:
            databases = {variant: self._open(stack, server, variant) for variant in self.variants}
            count = self.settings.round_batches * BATCH
            for number in range(self.settings.rounds + 1):  # the first is a warm-up
                spent: dict[str, float] = {}
                for version, kind in enumerate(("new", "changed")):
                    some = [document(at, version) for at in range(number * count, (number + 1) * count)]
                    self._round(databases, some, kind, spent)
                rounds.append(spent)
            for variant, db in databases.items():
                self._verify(db, variant, count * len(rounds), sample)
        for kind in ("new", "changed"):
            sample.figures[f"rate_{kind}"] = count / median(spent[f"{OFF} {kind}"] for spent in rounds[1:])
            sample.figures[f"cpu_{kind}"] = median(spent[f"{OFF} {kind} cpu"] for spent in rounds[1:]) / count * 1e6
            for variant, measure in itertools.product(self.variants[1:], (kind, f"{kind} cpu")):
                longer = median(spent[f"{variant} {measure}"] / spent[f"{OFF} {measure}"] for spent in rounds[1:])
                sample.figures[f"{variant} {measure}"] = (longer - 1) * 100
        return sample

    def _open(self, stack: ExitStack, server: Home, variant: str) -> tailrace.Database:
        db = stack.enter_context(tailrace.open(server.data / variant.replace(" ", "-")))
        view = VIEWS[0] if variant == OFF_AGAIN else variant if variant in VIEWS else None
        table = db.create_table("documents", "pk", "sk", stream=view, max_count=None, max_age=None)
        if variant == OFF_AGAIN:
            table.disable_stream()
        return db

    def _round(
        self, databases: dict[str, tailrace.Database], some: list[Document], kind: str, spent: dict[str, float]
    ) -> None:
        batches = [[Put("documents", one.item) for one in some[at : at + BATCH]] for at in range(0, len(some), BATCH)]
        names = list(databases)
        for first in range(0, len(batches), self.turn_batches):
            for name in names:
                write = databases[name].batch_write
                started, cpu = time.perf_counter(), time.process_time()
                for batch in batches[first : first + self.turn_batches]:
                    write(batch)
                wall, cpu = time.perf_counter() - started, time.process_time() - cpu
                key = f"{name} {kind}"
                spent[key] = spent.get(key, 0.0) + wall
                spent[f"{key} cpu"] = spent.get(f"{key} cpu", 0.0) + cpu
            names.append(names.pop(0))  # another one goes first

    def _verify(self, db: tailrace.Database, variant: str, count: int, sample: Sample) -> None:
        table = db.table("documents")
        if table.count() != count:
            sample.complaints.append(f"{variant}: {table.count()} documents of {count} are there")
        records = table.stream_info().count
        if records != (2 * count if variant in VIEWS else 0):
            sample.complaints.append(f"{variant}: {records} change records for {2 * count} writes")


class AllChanges(TailraceAlone):
    """Read a long change stream from its beginning: the first tenth, quarter, half, and all of it, in pages."""

    name = "embedded-changes"
    shares: Final = (0.1, 0.25, 0.5, 1.0)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.counts = [int(settings.changes * share) for share in self.shares]
        self.title = f"a stream of {settings.changes:,} small changes, read with changes(limit={CHANGES_PAGE:,})"

    def lines(self) -> list[Line]:
        lines = [Line(f"rate_{count}", f"records, the first {count:,}", "/s") for count in self.counts]
        share = Line("share", "the last as a share of the first: 100 % is linear", "%", at_least=80)
        cpu = Line("share_cpu", "the same in processor time", "%", secondary=True)
        fill = Line("fill", "written before, 100 to a transaction", "/s", secondary=True)
        return [*lines, cpu_line("record"), share, cpu, fill, setting_lines()[0]]

    def sample(self, server: Home) -> Sample:
        sample = Sample()
        with tailrace.open(server.data / "changes") as db:
            table = db.create_table("small", "id", stream="NEW_AND_OLD_IMAGES", max_count=None, max_age=None)
            started = time.perf_counter()
            for first in range(0, self.settings.changes, BATCH):
                numbers = range(first, first + BATCH)
                db.batch_write([Put("small", {"id": f"k{n % CHANGES_KEYS:04d}", "version": n}) for n in numbers])
            sample.figures["fill"] = self.settings.changes / (time.perf_counter() - started)
            self._read(table, CHANGES_PAGE * 10, sample)  # a warm-up
            rates: dict[int, list[tuple[float, float]]] = {count: [] for count in self.counts}
            for _ in range(self.settings.repetitions):
                for count in self.counts:
                    rates[count].append(self._read(table, count, sample))
        sample.figures |= {f"rate_{count}": median(rate for rate, _ in found) for count, found in rates.items()}
        sample.figures["cpu_us"] = 1e6 / median(rate for _, rate in rates[self.counts[-1]])
        for key, which in (("share", 0), ("share_cpu", 1)):
            short, long = (median(pair[which] for pair in rates[self.counts[at]]) for at in (0, -1))
            sample.figures[key] = long / short * 100
        return sample

    def _read(self, table: Table, count: int, sample: Sample) -> tuple[float, float]:
        """Records per second, and per second of processor time; a record that is not the next one is an error."""
        seen, wrong, after = 0, 0, None
        spent, spent_cpu = 0.0, 0.0
        while seen < count:
            started, cpu = time.perf_counter(), time.process_time()
            page = table.changes(after=after, limit=CHANGES_PAGE)
            spent += time.perf_counter() - started
            spent_cpu += time.process_time() - cpu
            if not page:
                sample.complaints.append(f"the stream ends after {seen} records of {count}")
                break
            wrong += sum(change.new is None or change.new["version"] != seen + n for n, change in enumerate(page))
            seen += len(page)
            after = page[-1].sequence
        if wrong:
            sample.errors["not the next change"] = sample.errors.get("not the next change", 0) + wrong
        return seen / spent, seen / spent_cpu


ROWS: Final[list[type[Row[Any]]]] = [DurablePuts, BatchedPuts, Gets, Queries, Views, AllChanges]

"""Tables over HTTP, beside other servers of the DynamoDB API: 16 keep-alive connections, items of 1 KB, on disk.

Every put changes its item: it carries a version that was never there before. After each sample the whole table is
scanned, and each item must be in the version that was acknowledged last; a change stream must have one record more for
each put. What a read brings is counted in every single answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from bench import generator
from bench.dynamodb import TABLE, Api, Puts, Records, Typed, answer_count, follow, prepared, reads
from bench.generator import Driven, Source
from bench.load import Failed
from bench.rows import (
    SYNCED_WRITES,
    Line,
    Meter,
    Row,
    Sample,
    ServerRow,
    Settings,
    SyncsRow,
    cpu_line,
    milliseconds,
    run,
    setting_lines,
)
from bench.servers import PEERS, Server

CONNECTIONS: Final = 16
NOTE: Final = ("abcdefghijklmnopqrstuvwxyz 012345" * 29)[:946]
QUERY_ITEMS: Final = 20
PARTITION_ITEMS: Final = 50  # in each partition that is queried
BOTH: Final = "NEW_AND_OLD_IMAGES"
NO_STREAMS: Final = {"dynalite": "it has no change streams"}


def item(keys: dict[str, str], version: int | str) -> Typed:
    """An item of 1 KB; `%` directives in keys and version stay."""
    return {name: {"S": text} for name, text in keys.items()} | {
        "version": {"N": str(version)},
        "status": {"S": "shipped"},
        "total": {"N": "129.95"},
        "lines": {"L": [{"M": {"sku": {"S": "A-1007"}, "count": {"N": "3"}}}]},
        "note": {"S": NOTE},
    }


def numbered(number: int, version: int) -> Typed:
    """An item of the table with a partition key alone."""
    return item({"id": f"k{number:06d}"}, first_version(version))


def first_version(version: int) -> int:
    return 100_000_000 + version  # all as long as each other


class TableRow(ServerRow):
    """A measurement of servers of the DynamoDB API."""

    group = "tables"
    contenders = ("tailrace", *PEERS)
    what: ClassVar[str] = "requests"  # what is counted
    at_least: ClassVar[float | None] = None
    ratio_at_least: ClassVar[float] = 1.0
    against: ClassVar[str | None] = None

    def lines(self) -> list[Line]:
        expected = {"at_least": self.at_least, "ratio_at_least": self.ratio_at_least, "against": self.against}
        return [
            Line("rate", self.what, "/s", **expected),  # type: ignore[arg-type]
            cpu_line(self.what.removesuffix("s")),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
            *setting_lines(),
        ]

    def sources(self, server: Server) -> list[Source]:
        """One for each connection."""
        raise NotImplementedError

    def warm_up(self, server: Server) -> None:
        """Untimed, so that a server that compiles what is hot is measured compiled."""
        run(generator.drive(server.address, self.sources(server), seconds=self.settings.peer_warmup_s))

    def drive(self, server: Server, sources: list[Source]) -> tuple[Driven, Sample]:
        meter = Meter(server, self.settings)
        done = run(
            generator.drive(
                server.address,
                sources,
                seconds=self.settings.short_s,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        figures = {"rate": done.rate, **milliseconds(done.latencies)}
        figures["client"] = done.client_share * 100
        return done, Sample(figures | meter.figures(len(done.latencies)), dict(done.errors))

    def measure(self, server: Server) -> Sample:
        return self.drive(server, self.sources(server))[1]


class PutItems(TableRow):
    """Items are put over and over, each time changed."""

    name = "table-put"
    what = "PutItem"
    at_least = 8_000
    view: ClassVar[str | None] = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"PutItem, {CONNECTIONS} connections, 1 KB, " + (
            f"stream {self.view}" if self.view else "no stream"
        )
        self._held: dict[str, dict[int, int]] = {}  # by server: the version of each item
        self._writes: dict[str, int] = {}  # by server: how many changed something
        self._streams: dict[str, StreamCount] = {}
        self._puts = Puts(TABLE, lambda key, version: item({"id": key}, version), range(settings.items), CONNECTIONS)

    def prepare(self, server: Server) -> None:
        count = self.settings.items
        with Api(server.address) as api:
            api.create_table(["id"], self.view)
            api.fill([numbered(number, 0) for number in range(count)])
        self._held[server.name] = dict.fromkeys(range(count), 0)
        self._writes[server.name] = count
        self._streams[server.name] = StreamCount()
        done = run(generator.drive(server.address, self.sources(server), seconds=self.settings.peer_warmup_s))
        self._note(server, done)

    def sources(self, server: Server) -> list[Source]:
        return self._puts.sources(max(self._held[server.name].values()) + 1)

    def _note(self, server: Server, done: Driven) -> None:
        self._held[server.name].update(self._puts.versions(done))
        self._writes[server.name] += answer_count(done)

    def measure(self, server: Server) -> Sample:
        done, sample = self.drive(server, self.sources(server))
        self._note(server, done)
        self._verify(server, done.errors.total(), sample)
        return sample

    def _verify(self, server: Server, slack: int, sample: Sample) -> None:
        """Where requests failed their outcome is unknown, and so many may be otherwise."""
        held = {f"k{number:06d}": str(first_version(version)) for number, version in self._held[server.name].items()}
        with Api(server.address) as api:
            found = {one["id"]["S"]: one["version"]["N"] for one in api.scan()}
            other = sum(found.get(key) != version for key, version in held.items())
            if other > slack or len(found) != len(held):
                sample.complaints.append(f"{other} of {len(held)} items not as acknowledged, {len(found)} are there")
            if self.view is not None:
                writes, records = self._writes[server.name], self._streams[server.name].count(api)
                if not writes <= records <= writes + slack:
                    sample.complaints.append(f"{records} change records for {writes} writes")


class PutItemsStreamed(PutItems):
    name = "table-put-images"
    without = NO_STREAMS
    view = BOTH
    at_least = 6_000


class StreamCount:
    """How many records a stream has had; remembers how far it was read."""

    def __init__(self) -> None:
        self._next: list[str | None] = []
        self._seen = 0

    def count(self, api: Api) -> int:
        self._next += api.shard_iterators()[len(self._next) :]
        for shard, iterator in enumerate(self._next):
            while iterator is not None:
                page = api.call("GetRecords", ShardIterator=iterator)
                self._seen += len(page["Records"])
                self._next[shard] = following = page.get("NextShardIterator")
                iterator = following if page["Records"] else None
        return self._seen


class GetItems(TableRow):
    """Items are got in no particular order."""

    name = "table-get"
    title = f"GetItem, {CONNECTIONS} connections, 1 KB"
    what = "GetItem"
    ratio_at_least = 1.1
    against = "dynoxide"

    def prepare(self, server: Server) -> None:
        numbers = range(self.settings.items)
        with Api(server.address) as api:
            api.create_table(["id"])
            api.fill([numbered(number, 0) for number in numbers])
            for number in random.Random(1).sample(numbers, 50):
                got = api.call("GetItem", TableName=TABLE, Key={"id": {"S": f"k{number:06d}"}}).get("Item")
                if got != numbered(number, 0):
                    raise Failed(f"item {number} is not as it was put: {str(got)[:200]}")
        self.warm_up(server)

    def sources(self, server: Server) -> list[Source]:
        order = random.Random(2).sample(range(self.settings.items), self.settings.items)
        requests = [
            (prepared("GetItem", {"TableName": TABLE, "Key": {"id": {"S": f"k{number:06d}"}}}), b'"k%06d"' % number)
            for number in order
        ]
        return [reads(requests[n::CONNECTIONS], 1) for n in range(CONNECTIONS)]


class Queries(TableRow):
    """The first items of partitions that have more."""

    name = "table-query"
    title = f"Query of {QUERY_ITEMS} × 1 KB, {CONNECTIONS} connections"
    what = "Query"
    ratio_at_least = 1.1
    against = "dynoxide"

    def prepare(self, server: Server) -> None:
        items = [
            item(
                {"pk": f"p{number // PARTITION_ITEMS:05d}", "sk": f"s{number % PARTITION_ITEMS:05d}"}, first_version(0)
            )
            for number in range(self.settings.items)
        ]
        with Api(server.address) as api:
            api.create_table(["pk", "sk"])
            api.fill(items)
            page = api.call("Query", **self._query(3))
            first = 3 * PARTITION_ITEMS
            if page["Items"] != items[first : first + QUERY_ITEMS] or "LastEvaluatedKey" not in page:
                raise Failed("a query does not bring the first items of its partition")
        self.warm_up(server)

    def _query(self, partition: int) -> dict[str, object]:
        return {
            "TableName": TABLE,
            "KeyConditionExpression": "pk = :p",
            "ExpressionAttributeValues": {":p": {"S": f"p{partition:05d}"}},
            "Limit": QUERY_ITEMS,
        }

    def sources(self, server: Server) -> list[Source]:
        partitions = self.settings.items // PARTITION_ITEMS
        # Each item names its partition, and so does the key where the next page begins.
        requests = [(prepared("Query", self._query(n)), b'"p%05d"' % n) for n in range(partitions)]
        return [reads(requests[n % partitions :: CONNECTIONS], QUERY_ITEMS + 1) for n in range(CONNECTIONS)]


class GetRecords(TableRow):
    """Each connection reads a change stream from the beginning to the end, page after page, again and again."""

    name = "table-records"
    without = NO_STREAMS
    what = "records"
    at_least = 200_000
    view: ClassVar[str] = BOTH

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"GetRecords of {settings.records:,} changes of 1 KB items, {self.view}, {CONNECTIONS} connections"
        self._iterators: dict[str, list[str]] = {}

    def prepare(self, server: Server) -> None:
        half = self.settings.records // 2
        with Api(server.address) as api:
            api.create_table(["id"], self.view)
            for version in (0, 1):  # half of the records are of new items, half of changed ones
                api.fill([numbered(number, version) for number in range(half)])
            count = StreamCount().count(api)
            if count != 2 * half:
                raise Failed(f"{count} change records for {2 * half} writes")
        run(follow(server.address, self._readers(server), seconds=self.settings.peer_warmup_s))

    def _readers(self, server: Server) -> list[Records]:
        with Api(server.address) as api:
            iterators = api.shard_iterators()
        return [Records(iterators, self.settings.records // 2 * 2) for _ in range(CONNECTIONS)]

    def measure(self, server: Server) -> Sample:
        meter = Meter(server, self.settings)
        done = run(
            follow(
                server.address,
                self._readers(server),
                seconds=self.settings.short_s,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        figures = {"rate": done.brought / done.seconds, **milliseconds(done.latencies)}
        figures["client"] = done.client_cpu_s / done.seconds * 100
        return Sample(figures | meter.figures(done.brought), dict(done.errors))


class GetRecordKeys(GetRecords):
    name = "table-records-keys"
    view = "KEYS_ONLY"


class Syncs(SyncsRow):
    name = "table-syncs"
    group = "tables"
    contenders = ("tailrace", *PEERS)
    title = f"{SYNCED_WRITES} × PutItem, one at a time, under strace"
    what = "PutItem"

    def write(self, server: Server) -> Iterator[None]:
        with Api(server.address) as api:
            api.create_table(["id"])
            api.fill([numbered(0, 0)])
            yield
            for version in range(1, SYNCED_WRITES + 1):
                api.call("PutItem", TableName=TABLE, Item=numbered(version % 10, version))
                yield


ROWS: Final[list[type[Row[Any]]]] = [PutItems, PutItemsStreamed, GetItems, Queries, GetRecords, GetRecordKeys, Syncs]

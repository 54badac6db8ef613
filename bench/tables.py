"""Tables over HTTP, beside other servers of the DynamoDB API: 16 keep-alive connections, items of 1 KB, on disk.

Every put changes its item: it carries a version that was never there before. After each sample the whole table is
scanned, and each item must be in the version that was acknowledged last; a change stream must have one record more for
each put. What a read brings is counted in every single answer.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.dynamodb import TABLE, Api, Driven, Puts, Reads, Records, Task, Typed, drive, prepared, template
from bench.load import Failed
from bench.rows import Line, Meter, Row, Sample, ServerRow, Settings, milliseconds, run
from bench.servers import DURABILITY, PEERS, Missing, Server

CONNECTIONS: Final = 16
NOTE: Final = ("abcdefghijklmnopqrstuvwxyz 012345" * 29)[:946]
QUERY_ITEMS: Final = 20
PARTITION_ITEMS: Final = 50  # in each partition that is queried
BOTH: Final = "NEW_AND_OLD_IMAGES"
NO_STREAMS: Final = {"dynalite": "it has no change streams"}
SYNCS_PUTS: Final = 200
SYNC_CALLS: Final = "fsync,fdatasync,sync_file_range,msync"


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

    def lines(self) -> list[Line]:
        return [
            Line("rate", self.what, "/s", at_least=self.at_least, ratio_at_least=1),
            Line("p99", "p99 under this load", "ms", higher=False, secondary=True),
            Line("cpu_us", f"CPU per {self.what.rstrip('s')}", "µs", higher=False, secondary=True),
            Line("others", "of the server's core, taken by others", "%", higher=False, secondary=True),
            Line("client", "load generator busy", "%", higher=False, secondary=True),
        ]

    def tasks(self, server: Server) -> list[Any]:
        """One for each connection."""
        raise NotImplementedError

    def warm_up(self, server: Server) -> None:
        """Untimed, so that a server that compiles what is hot is measured compiled."""
        run(drive(server.address, self.tasks(server), seconds=self.settings.peer_warmup_s))

    def drive(self, server: Server, tasks: list[Any]) -> tuple[Driven, Sample]:
        meter = Meter(server, self.settings)
        done = run(
            drive(
                server.address,
                tasks,
                seconds=self.settings.short_s,
                warmup_s=self.settings.warmup_s,
                started=meter.start,
                ended=meter.end,
            )
        )
        figures = {"rate": done.rate, **milliseconds(done.latencies)}
        figures["client"] = done.client_cpu_s / done.seconds * 100
        return done, Sample(figures | meter.figures(done.brought), dict(done.errors))

    def measure(self, server: Server) -> Sample:
        return self.drive(server, self.tasks(server))[1]


class PutItems(TableRow):
    """Items are put over and over, each time changed."""

    name = "table-put"
    what = "PutItem"
    view: ClassVar[str | None] = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.title = f"PutItem, {CONNECTIONS} connections, 1 KB, " + (
            f"stream {self.view}" if self.view else "no stream"
        )
        self._held: dict[str, dict[int, int]] = {}  # by server: the version of each item
        self._writes: dict[str, int] = {}  # by server: how many changed something
        self._streams: dict[str, StreamCount] = {}

    def prepare(self, server: Server) -> None:
        count = self.settings.items
        with Api(server.address) as api:
            api.create_table(["id"], self.view)
            api.fill([numbered(number, 0) for number in range(count)])
        self._held[server.name] = dict.fromkeys(range(count), 0)
        self._writes[server.name] = count
        self._streams[server.name] = StreamCount()
        tasks = self.tasks(server)
        run(drive(server.address, tasks, seconds=self.settings.peer_warmup_s))
        self._note(server, tasks)

    def tasks(self, server: Server) -> list[Puts]:
        make = template("PutItem", {"TableName": TABLE, "Item": item({"id": "k%06d"}, "1%08d")}, 0, 0)
        version = max(self._held[server.name].values())
        return [Puts(make, range(n, self.settings.items, CONNECTIONS), version) for n in range(CONNECTIONS)]

    def _note(self, server: Server, tasks: list[Puts]) -> None:
        for task in tasks:
            self._held[server.name].update(task.acknowledged)
            self._writes[server.name] += task.count

    def measure(self, server: Server) -> Sample:
        tasks = self.tasks(server)
        done, sample = self.drive(server, tasks)
        self._note(server, tasks)
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
    at_least = 5_000


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
    at_least = 10_000

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

    def tasks(self, server: Server) -> list[Task]:
        order = random.Random(2).sample(range(self.settings.items), self.settings.items)
        requests = [
            (prepared("GetItem", {"TableName": TABLE, "Key": {"id": {"S": f"k{number:06d}"}}}), b'"k%06d"' % number)
            for number in order
        ]
        return [Reads(requests[n::CONNECTIONS], 1) for n in range(CONNECTIONS)]


class Queries(TableRow):
    """The first items of partitions that have more."""

    name = "table-query"
    title = f"Query of {QUERY_ITEMS} × 1 KB, {CONNECTIONS} connections"
    what = "Query"
    at_least = 3_000

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

    def tasks(self, server: Server) -> list[Task]:
        partitions = self.settings.items // PARTITION_ITEMS
        # Each item names its partition, and so does the key where the next page begins.
        requests = [(prepared("Query", self._query(n)), b'"p%05d"' % n) for n in range(partitions)]
        return [Reads(requests[n % partitions :: CONNECTIONS], QUERY_ITEMS + 1) for n in range(CONNECTIONS)]


class GetRecords(TableRow):
    """Each connection reads a change stream from the beginning to the end, page after page, again and again."""

    name = "table-records"
    without = NO_STREAMS
    what = "records"
    at_least = 100_000
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
        self.warm_up(server)

    def tasks(self, server: Server) -> list[Task]:
        with Api(server.address) as api:
            iterators = api.shard_iterators()
        return [Records(iterators, self.settings.records // 2 * 2) for _ in range(CONNECTIONS)]


class GetRecordKeys(GetRecords):
    name = "table-records-keys"
    view = "KEYS_ONLY"


class Syncs(TableRow):
    """How often each server asks the disk to keep what it has: system calls, counted by strace."""

    name = "table-syncs"
    title = f"{SYNCS_PUTS} × PutItem, one at a time, under strace"
    repeated = False

    def lines(self) -> list[Line]:
        return [Line("syncs", "fsync, fdatasync and the like per PutItem", "", compared=False)]

    def _trace(self, server: Server) -> Path:
        return server.data.with_name(f"{server.name}.strace")

    def start(self, server: Server) -> None:
        if shutil.which("strace") is None:
            raise Missing(f"strace is not here to count with. {DURABILITY[server.name]}")
        self._trace(server).parent.mkdir(parents=True, exist_ok=True)
        # -D: the server keeps the process that was started, and strace is the one that goes with it
        server.start(("strace", "-D", "-f", "-qq", "-e", f"trace={SYNC_CALLS}", "-o", str(self._trace(server))))

    def measure(self, server: Server) -> Sample:
        with Api(server.address) as api:
            api.create_table(["id"])
            api.fill([numbered(0, 0)])
            time.sleep(0.5)  # what making a table leaves to be done is not counted
            before = self._count(server)
            for version in range(1, SYNCS_PUTS + 1):
                api.call("PutItem", TableName=TABLE, Item=numbered(version % 10, version))
            after = self._count(server)
        return Sample({"syncs": (after - before) / SYNCS_PUTS})

    def _count(self, server: Server) -> int:
        lines = self._trace(server).read_text().splitlines()
        return sum("sync" in line and "resumed" not in line for line in lines)


ROWS: Final[list[type[Row[Any]]]] = [PutItems, PutItemsStreamed, GetItems, Queries, GetRecords, GetRecordKeys, Syncs]

"""The DynamoDB API as the benchmarks use it: requests made beforehand, and callers that look at every answer.

    Api       one blocking connection: set up, fill, verify
    Puts      requests for the load generator, and what became of them
    Records   a reader of a change stream; each of its requests comes from the answer before it
    follow    a closed loop of such readers with one request under way on each

Requests carry a signature that nobody can verify; the servers under test let any key in.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from bench.generator import MARK, Driven, Prepared, Source
from bench.load import ANSWER_TIMEOUT_S, END, Address, Failed, Session, framed, request

TABLE: Final = "bench"
STREAM_OPERATIONS: Final = ("DescribeStream", "GetShardIterator", "GetRecords")
BATCH_ITEMS_MAX: Final = 25  # in one BatchWriteItem
ACTIVE_TIMEOUT_S: Final = 30.0  # for a table to be made
OK: Final = b"HTTP/1.1 200 "

Typed = dict[str, dict[str, Any]]  # an item in DynamoDB's typed form


def headers(operation: str) -> list[tuple[str, object]]:
    """Of a request that is sent within the next minutes."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    service = "DynamoDBStreams_20120810" if operation in STREAM_OPERATIONS else "DynamoDB_20120810"
    scope = f"bench/{stamp[:8]}/us-east-1/dynamodb/aws4_request"
    signed = "SignedHeaders=host;x-amz-date;x-amz-target"
    return [
        ("content-type", "application/x-amz-json-1.0"),
        ("x-amz-target", f"{service}.{operation}"),
        ("x-amz-date", stamp),
        ("authorization", f"AWS4-HMAC-SHA256 Credential={scope}, {signed}, Signature={'0' * 64}"),
    ]


def prepared(operation: str, body: object) -> bytes:
    """The bytes of one request."""
    return request("POST", "/", headers(operation), json.dumps(body, separators=(",", ":")).encode())


class Api:
    """One blocking connection to a server of the DynamoDB API, and one table there."""

    def __init__(self, address: Address, table: str = TABLE) -> None:
        self._session = Session(address)
        self._table = table

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def call(self, operation: str, **members: object) -> dict[str, Any]:
        answer = self._session.call("POST", "/", headers(operation), json.dumps(members).encode())
        if answer.status != 200:
            raise Failed(f"{operation} answered {answer.status}: {answer.body[:200]!r}")
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def create_table(self, keys: Sequence[str], view: str | None = None) -> None:
        """Make the table, with a change stream if a view is given, and wait until it is there."""
        members: dict[str, object] = {
            "TableName": self._table,
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in keys],
            "KeySchema": [
                {"AttributeName": name, "KeyType": role} for name, role in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
            "BillingMode": "PAY_PER_REQUEST",
        }
        if view is not None:
            members["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": view}
        self.call("CreateTable", **members)
        patience = time.monotonic() + ACTIVE_TIMEOUT_S
        while self.call("DescribeTable", TableName=self._table)["Table"]["TableStatus"] != "ACTIVE":
            if time.monotonic() > patience:
                raise Failed(f"the table is not there after {ACTIVE_TIMEOUT_S:g} s")
            time.sleep(0.02)

    def fill(self, items: Sequence[Typed]) -> None:
        for first in range(0, len(items), BATCH_ITEMS_MAX):
            batch = items[first : first + BATCH_ITEMS_MAX]
            while batch:
                puts = [{"PutRequest": {"Item": item}} for item in batch]
                left = self.call("BatchWriteItem", RequestItems={self._table: puts}).get("UnprocessedItems") or {}
                batch = [one["PutRequest"]["Item"] for one in left.get(self._table, ())]

    def scan(self) -> Iterator[Typed]:
        members: dict[str, object] = {"TableName": self._table, "ConsistentRead": True}
        while True:
            page = self.call("Scan", **members)
            yield from page["Items"]
            last = page.get("LastEvaluatedKey")
            if last is None:
                return
            members["ExclusiveStartKey"] = last

    def shard_iterators(self) -> list[str]:
        """Where each shard of the table's stream begins, the oldest shard first."""
        arn = self.call("DescribeTable", TableName=self._table)["Table"]["LatestStreamArn"]
        shards = self.call("DescribeStream", StreamArn=arn)["StreamDescription"]["Shards"]
        return [
            self.call("GetShardIterator", StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")[
                "ShardIterator"
            ]
            for shard in shards
        ]


# -- requests


class Wrong(Exception):
    """An answer with the right status says something else than it should."""


def reads(requests: Sequence[tuple[bytes, bytes]], times: int) -> Source:
    """Go round over requests; in the answer to each, a piece of text must be there so many times."""
    return Source([Prepared(data, needle=text, times=times) for data, text in requests])


class Puts:
    """Puts of the items of a table, again and again and each time in a new version, spread over connections."""

    def __init__(self, table: str, make: Callable[[str, str], Typed], numbers: range, connections: int) -> None:
        """`make` gives an item for a key and a version; the version is written as a number of nine digits."""
        body = {"TableName": table, "Item": make("k@@@@@@", f"1{MARK.decode()}")}
        whole = prepared("PutItem", body)
        self._keys = [numbers[n::connections] for n in range(connections)]
        self._requests = [
            [Prepared(whole.replace(b"k@@@@@@", b"k%06d" % key)).numbered() for key in keys] for keys in self._keys
        ]

    def sources(self, version: int) -> list[Source]:
        """One for each connection; the first versions are `version`."""
        return [Source(requests, first=version) for requests in self._requests]

    def versions(self, done: Driven) -> Iterator[tuple[int, int]]:
        """The items that were put, each with the version that was acknowledged last."""
        for keys, answers in zip(self._keys, done.answers, strict=True):
            for key, answered in zip(keys, answers, strict=True):
                if answered.count:
                    yield key, answered.number


def answer_count(done: Driven) -> int:
    return sum(answered.count for answers in done.answers for answered in answers)


class Records:
    """Read a change stream from its beginning to its end, again and again. Every pass must bring all records."""

    def __init__(self, iterators: Sequence[str], count: int) -> None:
        self._iterators = iterators
        self._count = count
        self._make = _get_records()
        self._restart()

    def _restart(self) -> None:
        self._shard, self._seen = 0, 0
        self._iterator: bytes = self._iterators[0].encode()

    def request(self) -> bytes:
        return self._make(self._iterator)

    def accept(self, answer: bytes) -> int:
        found = answer.count(b'"eventID"')
        self._seen += found
        following = next_iterator(answer)
        if found and following is not None:
            self._iterator = following
        elif self._shard + 1 < len(self._iterators):
            self._shard += 1
            self._iterator = self._iterators[self._shard].encode()
        else:
            seen = self._seen
            self._restart()
            if seen != self._count:
                raise Wrong(f"{seen} records from the beginning to the end, not {self._count}")
        return found

    def refused(self) -> None:
        self._restart()


def next_iterator(answer: bytes) -> bytes | None:
    """Where the next page of records begins, as JSON has it."""
    at = answer.rfind(b'"NextShardIterator"')
    if at < 0:
        return None
    begin = answer.find(b'"', at + 19)
    return answer[begin + 1 : answer.index(b'"', begin + 1)] if begin >= 0 else None


def _get_records() -> Callable[[bytes], bytes]:
    """Iterators differ in length, so each request has a head of its own."""
    whole = request("POST", "/", headers("GetRecords"), b"x")
    head = whole[: whole.index(b"content-length")]

    def make(iterator: bytes) -> bytes:
        return b'%scontent-length: %d\r\n\r\n{"ShardIterator":"%s"}' % (head, len(iterator) + 20, iterator)

    return make


# -- connections


@dataclass(slots=True)
class Followed:
    """What `follow` did."""

    latencies: list[float] = field(default_factory=list)  # seconds, of the measured window only
    brought: int = 0  # records in the answers of the measured window
    errors: Counter[str] = field(default_factory=Counter)  # of the whole run
    seconds: float = 0.0
    client_cpu_s: float = 0.0


class _Round:
    """What the callers of one run share."""

    __slots__ = ("brought", "errors", "finished", "latencies", "stopping", "under_way")

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.brought = 0
        self.errors: Counter[str] = Counter()
        self.stopping = False
        self.under_way = 0
        self.finished = asyncio.Event()


class _Caller(asyncio.Protocol):
    """One connection with one request under way."""

    def __init__(self, round_: _Round, task: Records) -> None:
        self._round = round_
        self._task = task
        self._parts: list[bytes] = []
        self._left = 0  # bytes of the answer that are still to come, once its length is known
        self._sent = 0.0
        self._active = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        self._active = True
        self._round.under_way += 1
        self._next()

    def data_received(self, data: bytes) -> None:
        parts = self._parts
        if self._left > 0:  # a long answer in pieces: looked at once, when all are there
            parts.append(data)
            self._left -= len(data)
            if self._left > 0:
                return
            data = b"".join(parts)
            parts.clear()
        else:
            if parts:
                data = parts.pop() + data
            end = framed(data)
            if end is None:
                parts.append(data)
                self._left = _missing(data)
                return
        round_, task = self._round, self._task
        if data.startswith(OK):
            try:
                round_.brought += task.accept(data)
                round_.latencies.append(time.perf_counter() - self._sent)
            except Wrong as error:
                round_.errors[f"wrong answer: {error}"] += 1
        else:
            round_.errors[f"status {data[9:12].decode()}"] += 1
            task.refused()
        self._next()

    def _next(self) -> None:
        if self._round.stopping:
            self._leave()
        else:
            data = self._task.request()
            self._sent = time.perf_counter()
            self._transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._active:
            self._round.errors["connection lost"] += 1
            self._leave()

    def _leave(self) -> None:
        self._active = False
        self._round.under_way -= 1
        if not self._round.under_way:
            self._round.finished.set()

    def close(self) -> None:
        self._active = False
        self._transport.abort()


def _missing(data: bytes) -> int:
    """How many bytes an answer lacks, as far as its head is there and says so."""
    head_end = data.find(END)
    head = data[: head_end + 2].lower()
    at = head.find(b"\r\ncontent-length:") if head_end >= 0 else -1
    if at < 0:
        return 0
    return head_end + len(END) + int(head[at + 17 : head.index(b"\r\n", at + 2)]) - len(data)


async def follow(
    address: Address,
    tasks: Sequence[Records],
    *,
    seconds: float,
    warmup_s: float = 0.0,
    started: Callable[[], None] | None = None,
    ended: Callable[[], None] | None = None,
) -> Followed:
    """One connection per reader for so long. `started` and `ended` are called around the measured window."""
    loop = asyncio.get_running_loop()
    round_ = _Round()
    callers: list[_Caller] = []
    try:
        for task in tasks:
            _, caller = await loop.create_connection(lambda task=task: _Caller(round_, task), *address)  # type: ignore[misc]
            callers.append(caller)
        for caller in callers:
            caller.start()
        await asyncio.sleep(warmup_s)
        round_.latencies, round_.brought = [], 0
        if started is not None:
            started()
        cpu, begin = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        result = Followed(round_.latencies, round_.brought, round_.errors, time.perf_counter() - begin)
        round_.latencies = []  # what is answered from here on is not of the window
        result.client_cpu_s = time.process_time() - cpu
        if ended is not None:
            ended()
        round_.stopping = True
        if round_.under_way:
            try:
                await asyncio.wait_for(round_.finished.wait(), ANSWER_TIMEOUT_S)
            except TimeoutError:
                round_.errors["unanswered"] += round_.under_way
        return result
    finally:
        for caller in callers:
            caller.close()

"""One client of a queue, the same four calls for each of the servers that topics are measured beside.

    publish(payload)    one message; returns when the server says that it is durable
    take(limit)         the payloads of the next messages; [] when there are none (after `wait_s` seconds)
    ack()               what was taken last is done
    close()

Redis and PostgreSQL are spoken to with the clients that Python programs use (redis-py with hiredis, psycopg 3), on one
connection each and without a pool; Tailrace with a keep-alive connection and MessagePack, as its own clients do. A
client in Python can cost more than the server it speaks to, so Redis stands there a second time (`redis-bare`), with a
client as plain as Tailrace's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

import hiredis
import msgspec
import psycopg
import redis.asyncio
from psycopg.rows import tuple_row

from bench.load import END, JSON, OCTETS, Address, Failed, framed, post, request

QUEUE: Final = "bench_messages"  # the stream, the table, the topic
CHANNEL: Final = "bench_arrivals"  # what a consumer of the PostgreSQL queue listens to
FIELD: Final = b"p"  # of an entry of a Redis stream
MSGPACK: Final = "application/msgpack"


@dataclass(frozen=True)
class Place:
    """Where a client goes, and as whom."""

    server: str  # the name of the contender
    address: Address
    group: str = ""
    consumer: str = ""
    notify: bool = False  # a publisher tells waiting consumers (of PostgreSQL; others do it by themselves)


class Client:
    """One connection to a queue."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def publish(self, payload: bytes) -> None:
        raise NotImplementedError

    async def take(self, limit: int, wait_s: int = 0) -> list[bytes]:
        raise NotImplementedError

    async def ack(self) -> None:
        raise NotImplementedError

    async def next(self, limit: int) -> list[bytes]:
        """Acknowledge what was taken and take more; in one round trip where the server has a way to."""
        await self.ack()
        return await self.take(limit)


class RedisClient(Client):
    """XADD; XREADGROUP and XACK."""

    async def open(self) -> None:
        host, port = self.place.address
        self._redis = redis.asyncio.Redis(host=host, port=port, single_connection_client=True, socket_timeout=None)
        await self._redis.initialize()
        self._taken: list[bytes] = []

    async def close(self) -> None:
        await self._redis.aclose()

    async def publish(self, payload: bytes) -> None:
        await self._redis.xadd(QUEUE, {FIELD: payload})

    async def take(self, limit: int, wait_s: int = 0) -> list[bytes]:
        place = self.place
        found: Any = await self._redis.xreadgroup(
            place.group, place.consumer, {QUEUE: ">"}, count=limit, block=wait_s * 1000 or None
        )
        entries = found[0][1] if found else ()
        self._taken = [name for name, _ in entries]
        return [fields[FIELD] for _, fields in entries]

    async def ack(self) -> None:
        done = await self._redis.xack(QUEUE, self.place.group, *self._taken)
        if done != len(self._taken):
            raise Failed(f"XACK of {len(self._taken)} entries acknowledged {done}")

    async def next(self, limit: int) -> list[bytes]:
        place, taken = self.place, self._taken
        both = self._redis.pipeline(transaction=False)
        both.xack(QUEUE, place.group, *taken)
        both.xreadgroup(place.group, place.consumer, {QUEUE: ">"}, count=limit)
        done, found = await both.execute()
        if done != len(taken):
            raise Failed(f"XACK of {len(taken)} entries acknowledged {done}")
        entries = found[0][1] if found else ()
        self._taken = [name for name, _ in entries]
        return [fields[FIELD] for _, fields in entries]


class _RedisLine(asyncio.Protocol):
    """A connection that speaks Redis' protocol; commands that are sent at once are answered in their order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._answers: deque[asyncio.Future[Any]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while self._answers and (answer := self._reader.gets()) is not False:
            waiting = self._answers.popleft()
            if waiting.done():
                continue
            if isinstance(answer, Exception):
                waiting.set_exception(Failed(str(answer)))
            else:
                waiting.set_result(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        for waiting in self._answers:
            if not waiting.done():
                waiting.set_exception(Failed("the server closed the connection"))

    def send(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        (answer,) = self.send_all(words)
        return answer

    def send_all(self, *commands: tuple[bytes | str | int, ...]) -> list[asyncio.Future[Any]]:
        """Send commands in one write."""
        answers = [self._loop.create_future() for _ in commands]
        self._answers.extend(answers)
        self._transport.write(b"".join(hiredis.pack_command(words) for words in commands))  # type: ignore[arg-type]
        return answers

    def close(self) -> None:
        self._transport.abort()


class RedisBareClient(Client):
    """The same commands without a client library around them."""

    async def open(self) -> None:
        _, self._line = await asyncio.get_running_loop().create_connection(_RedisLine, *self.place.address)
        self._taken: list[bytes] = []

    async def close(self) -> None:
        self._line.close()

    async def publish(self, payload: bytes) -> None:
        await self._line.send("XADD", QUEUE, "*", FIELD, payload)

    async def take(self, limit: int, wait_s: int = 0) -> list[bytes]:
        block = ("BLOCK", wait_s * 1000) if wait_s else ()
        who = (self.place.group, self.place.consumer)
        found = await self._line.send("XREADGROUP", "GROUP", *who, "COUNT", limit, *block, "STREAMS", QUEUE, ">")
        entries = found[0][1] if found else ()
        self._taken = [name for name, _ in entries]
        return [fields[1] for _, fields in entries]

    async def ack(self) -> None:
        done = await self._line.send("XACK", QUEUE, self.place.group, *self._taken)
        if done != len(self._taken):
            raise Failed(f"XACK of {len(self._taken)} entries acknowledged {done}")

    async def next(self, limit: int) -> list[bytes]:
        group, taken = self.place.group, self._taken
        acked, more = self._line.send_all(
            ("XACK", QUEUE, group, *taken),
            ("XREADGROUP", "GROUP", group, self.place.consumer, "COUNT", limit, "STREAMS", QUEUE, ">"),
        )
        done, found = await acked, await more
        if done != len(taken):
            raise Failed(f"XACK of {len(taken)} entries acknowledged {done}")
        entries = found[0][1] if found else ()
        self._taken = [name for name, _ in entries]
        return [fields[1] for _, fields in entries]


class PostgresClient(Client):
    """INSERT; SELECT ... FOR UPDATE SKIP LOCKED, and DELETE and COMMIT once the messages are processed."""

    INSERT: Final = f"INSERT INTO {QUEUE} (payload) VALUES (%b)"
    INSERT_AND_TELL: Final = f"WITH added AS ({INSERT}) SELECT pg_notify('{CHANNEL}', '')"
    SELECT: Final = f"SELECT id, payload FROM {QUEUE} ORDER BY id LIMIT %b FOR UPDATE SKIP LOCKED"
    DELETE: Final = f"DELETE FROM {QUEUE} WHERE id = ANY(%b)"

    async def open(self) -> None:
        host, port = self.place.address
        self._connection = await psycopg.AsyncConnection.connect(
            host=host, port=port, user="bench", dbname="postgres", autocommit=True, row_factory=tuple_row
        )
        self._connection.prepare_threshold = 0  # each statement is prepared when it is first seen
        self._cursor = self._connection.cursor(binary=True)
        self._taken: list[int] = []
        self._listening = False

    async def close(self) -> None:
        await self._connection.close()

    async def publish(self, payload: bytes) -> None:
        await self._cursor.execute(self.INSERT_AND_TELL if self.place.notify else self.INSERT, (payload,))

    async def take(self, limit: int, wait_s: int = 0) -> list[bytes]:
        if wait_s and not self._listening:
            await self._connection.execute(f"LISTEN {CHANNEL}")
            self._listening = True
        found = await self._select(limit)
        if not found and wait_s:
            # The connection keeps notifications since the LISTEN, so none is lost between the two.
            async for _ in self._connection.notifies(timeout=wait_s, stop_after=1):
                pass
            found = await self._select(limit)
        return found

    async def _select(self, limit: int) -> list[bytes]:
        execute = self._cursor.execute
        await execute("BEGIN")
        await execute(self.SELECT, (limit,))
        rows: Any = await self._cursor.fetchall()
        if not rows:
            await execute("COMMIT")
        self._taken = [number for number, _ in rows]
        return [payload for _, payload in rows]

    async def ack(self) -> None:
        await self._cursor.execute(self.DELETE, (self._taken,))
        if self._cursor.rowcount != len(self._taken):
            raise Failed(f"DELETE of {len(self._taken)} rows deleted {self._cursor.rowcount}")
        await self._cursor.execute("COMMIT")


class _Message(msgspec.Struct, gc=False):
    offset: int
    payload: bytes


class _Consumed(msgspec.Struct):
    messages: list[_Message]
    lease_id: str | None


class _Acked(msgspec.Struct):
    success: bool
    acknowledged_offset: int


class _Line(asyncio.Protocol):
    """A keep-alive connection with one request under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts = b""
        self._needed = 0  # bytes that an answer of known length has in all
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parts:
            data = self._parts + data
        if len(data) < self._needed or framed(data) is None:
            self._parts = data
            if not self._needed:
                self._needed = _length(data)
            return
        self._parts, self._needed = b"", 0
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Failed("the server closed the connection"))

    def send(self, data: bytes) -> asyncio.Future[bytes]:
        """The future is the whole answer."""
        self._answer = self._loop.create_future()
        self._transport.write(data)
        return self._answer

    def close(self) -> None:
        self._transport.abort()


def _length(data: bytes) -> int:
    """How long an answer is in all, as soon as its head says so."""
    head_end = data.find(END)
    head = data[: head_end + 2].lower()
    at = head.find(b"\r\ncontent-length:") if head_end >= 0 else -1
    return head_end + len(END) + int(head[at + 17 : head.index(b"\r\n", at + 2)]) if at >= 0 else 0


class TailraceClient(Client):
    """POST of the payload; consume and ack as a consumer of a group."""

    async def open(self) -> None:
        _, self._line = await asyncio.get_running_loop().create_connection(_Line, *self.place.address)
        self._consumed = msgspec.msgpack.Decoder(_Consumed)
        self._acked = msgspec.json.Decoder(_Acked)
        self._upto = -1
        self._lease: str | None = None
        self._consumes: dict[tuple[int, int], bytes] = {}

    async def close(self) -> None:
        self._line.close()

    async def publish(self, payload: bytes) -> None:
        await self._call(post(f"/v1/topics/{QUEUE}", payload, OCTETS))

    async def take(self, limit: int, wait_s: int = 0) -> list[bytes]:
        data = self._consumes.get((limit, wait_s))
        if data is None:
            members = {"start": "Earliest", "limit": limit, "timeout_seconds": wait_s}
            data = self._consumes[limit, wait_s] = self._post("consume", members)
        return self._took(await self._call(data))

    def _took(self, body: bytes) -> list[bytes]:
        answer = self._consumed.decode(body)  # of an answer in JSON this is an error, and it should be
        if answer.messages:
            self._upto, self._lease = answer.messages[-1].offset, answer.lease_id
        return [message.payload for message in answer.messages]

    async def ack(self) -> None:
        answer = self._acked.decode(await self._call(self._post("ack", {"upto_offset": self._upto})))
        if not answer.success:
            raise Failed(f"an ack up to {self._upto} did not succeed")

    async def next(self, limit: int) -> list[bytes]:
        ack = {"upto_offset": self._upto, "lease_id": self._lease}
        members = {"limit": limit, "timeout_seconds": 0, "ack": ack}
        return self._took(await self._call(self._post("consume", members)))

    def _post(self, action: str, members: dict[str, object]) -> bytes:
        place = self.place
        who = {"topic": QUEUE, "group_id": place.group, "partition_id": 0, "consumer_id": place.consumer}
        kinds = [("content-type", MSGPACK), ("accept", MSGPACK)] if action == "consume" else [("content-type", JSON)]
        encode = msgspec.msgpack.encode if action == "consume" else msgspec.json.encode
        return request("POST", f"/v1/api/topics/{action}", kinds, encode(who | members))

    async def _call(self, data: bytes) -> bytes:
        answer = await self._line.send(data)
        body = answer.partition(END)[2]
        if not answer.startswith(b"HTTP/1.1 2"):
            raise Failed(f"status {answer[9:12].decode()}: {body[:200]!r}")
        return body


KINDS: Final[dict[str, type[Client]]] = {
    "tailrace": TailraceClient,
    "redis": RedisClient,
    "redis-bare": RedisBareClient,
    "postgresql": PostgresClient,
}


async def connect(place: Place) -> Client:
    """A client, connected."""
    client = KINDS[place.server](place)
    await client.open()
    return client

"""Transactions of a server.

The commit has a token: if the response is lost, the same request is sent again, and the server does not do it twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from tailrace.client.async_connection import AsyncServerResponse
from tailrace.embedded import transactions as building
from tailrace.embedded.async_primitives import sleep
from tailrace.embedded.handlers import BackOff
from tailrace.embedded.transactions import FoundItems, FoundTail, ItemRequest, ItemsRequest, TransactionRequest
from tailrace.errors import Invalid, TooMany, Unavailable
from tailrace.log.position import parse
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import value
from tailrace.tables.plain import Plain, Sort, eq
from tailrace.topics.commands import Outgoing
from tailrace.transactions.commands import Transacted
from tailrace.transactions.operations import (
    AckOperation,
    AppendOperation,
    ItemOperation,
    PublishOperation,
    PutOperation,
    TransactionOperation,
    UpdateOperation,
)

API: Final = "/v1/api/transaction"
RETRY_S: Final = 30.0  # how long a server is asked again that cannot be reached
_encode: Final = msgspec.json.Encoder().encode


class AsyncRequestSender(Protocol):
    """The part of a client that sends requests."""

    async def _send(self, method: str, target: str, **options: Any) -> AsyncServerResponse: ...


class AsyncServerTransactions:
    """Runs transactions on a server."""

    def __init__(self, client: AsyncRequestSender) -> None:
        self._client = client

    def transaction_token(self) -> str | None:
        """A new one for each transaction."""
        return str(uuid.uuid4())

    async def send_transaction(self, request: TransactionRequest) -> Transacted:
        """Commit a transaction."""
        body = {**_collected(request), "token": request.token}
        done = await self._answer(API, body)
        published = [[(each["partition_id"], each["offset"]) for each in messages] for messages in done["published"]]
        tails = [parse(tail) for tail in done["appended"]]
        return Transacted(done["sequence"], done["acknowledged"], published, tails, done["replayed"])

    async def send_item_read(self, wanted: ItemRequest, request: TransactionRequest) -> FoundItems:
        """Read an item within a transaction."""
        get = {"table": wanted.table, "key": _key(building.plain_key(wanted.key))}
        if wanted.projection is not None:
            get["projection"] = wanted.projection
        if wanted.names:
            get["names"] = dict(wanted.names)
        return _found(await self._answer(f"{API}/read", {**_collected(request), "get": get}))

    async def send_items_read(self, wanted: ItemsRequest, request: TransactionRequest) -> FoundItems:
        """Read a page of items within a transaction."""
        reading = wanted.reading
        given = {name: getattr(reading, name) for name in ("index", "limit", "filter", "projection")}
        body: dict[str, Any] = {name: option for name, option in given.items() if option is not None}
        body["table"] = wanted.table
        if reading.names:
            body["names"] = dict(reading.names)
        if reading.values:
            body["values"] = {name: value.from_plain(each) for name, each in reading.values.items()}
        if reading.after is not None:
            body["after"] = value.item_from_plain(reading.after)[0]
        if wanted.whole:
            return _found(await self._answer(f"{API}/read", {**_collected(request), "scan": body}))
        partition = wanted.partition if isinstance(wanted.partition, tuple) else (wanted.partition,)
        sort = () if wanted.sort is None else wanted.sort if isinstance(wanted.sort, tuple) else (wanted.sort,)
        body |= {
            "partition": [value.from_plain(part) for part in partition],
            "sort": [_condition(part if isinstance(part, Sort) else eq(part)) for part in sort],
            "reverse": wanted.reverse,
        }
        return _found(await self._answer(f"{API}/read", {**_collected(request), "query": body}))

    async def send_tail_read(self, path: str, request: TransactionRequest) -> FoundTail:
        """Read the tail of a stream within a transaction."""
        done = await self._answer(f"{API}/read", {**_collected(request), "operations": [], "tail": path})
        return FoundTail(done["offset"], tuple(done["reads"]))

    async def _answer(self, target: str, body: dict[str, Any]) -> dict[str, Any]:
        """The response; while the server cannot be reached, the request is sent again."""
        try:
            content = _encode(body)
        except UnicodeEncodeError as error:
            raise Invalid(f"{error.object!r} cannot be sent to the server: {error.reason}") from None
        deadline_s = time.monotonic() + RETRY_S
        pause = BackOff()
        while True:
            try:
                headers = {"content-type": "application/json"}
                response = await self._client._send("POST", target, headers=headers, content=content)
                return msgspec.json.decode(response.content, type=dict[str, Any])
            except (Unavailable, TooMany) as error:
                if error.code == "CLOSED" or time.monotonic() > deadline_s:
                    raise
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise Unavailable("the response is not about a transaction: is it a Tailrace server?") from None
            await sleep(pause.next_s())


def _collected(request: TransactionRequest) -> dict[str, Any]:
    made = [_operation(operation) for operation in request.operations]
    return {"values": "typed", "operations": made, "reads": list(request.reads)}


def _found(done: Mapping[str, Any]) -> FoundItems:
    cursor = done.get("cursor")
    return FoundItems(
        [_plain(item) for item in done["items"]], tuple(done["reads"]), None if cursor is None else _plain(cursor)
    )


def _plain(item: dict[str, Any]) -> Plain:
    return value.item_to_plain(value.read_item(item)[0])


def _condition(sort: Sort) -> dict[str, Any]:
    return {"op": sort.op, "operands": [value.from_plain(operand) for operand in sort.operands]}


def _key(key: Any) -> Any:
    return key if isinstance(key, dict) else list(key)


def _operation(operation: TransactionOperation) -> dict[str, Any]:
    """An operation as it is sent."""
    if isinstance(operation, ItemOperation):
        kind = {"op": str(operation.__struct_config__.tag), "table": operation.table}
        body: dict[str, Any] = dict(kind)
        for name in ("condition", "names", "values"):
            if (given := getattr(operation, name)) is not None:
                body[name] = given
        if isinstance(operation, PutOperation):
            return {**body, "item": operation.item}
        if isinstance(operation, UpdateOperation):
            body["expression"] = operation.expression
        return {**body, "key": _key(operation.key)}
    if isinstance(operation, AckOperation):
        body = {"op": "ack", "topic": operation.topic, "group_id": operation.group, "offsets": operation.offsets}
        body |= {"partition_id": operation.partition, "consumer_id": operation.consumer}
        return body if operation.lease is None else {**body, "lease_id": operation.lease}
    if isinstance(operation, PublishOperation):
        messages = [_outgoing(each) for each in operation.messages]
        return {"op": "publish", "topic": operation.topic, "messages": messages, **_producer(operation.claim)}
    assert isinstance(operation, AppendOperation)
    body = {"op": "append", "stream": operation.path, "payload": operation.body, **_producer(operation.claim)}
    return body if operation.content_type is None else {**body, "content_type": operation.content_type}


def _outgoing(message: Outgoing) -> dict[str, Any]:
    body: dict[str, Any] = {"payload": message.payload}
    if message.key is not None:
        try:
            body["key"] = message.key.decode()
        except UnicodeDecodeError:
            raise Invalid(f"the key {message.key!r} cannot be sent to the server: it is not UTF-8") from None
    return body if message.partition is None else {**body, "partition_id": message.partition}


def _producer(claim: ProducerClaim | None) -> dict[str, Any]:
    if claim is None:
        return {}
    return {"producer": {"id": claim.id, "epoch": claim.epoch, "sequence": claim.sequence}}

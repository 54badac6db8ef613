"""Transactions: one request commits everything that a client has collected, another reads within it.

Values are plain JSON, or typed as in the DynamoDB API (`"values": "typed"`). Large requests are parsed in a thread, one
operation after the other, and so are reads of many items.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from tailrace import limits
from tailrace.access import Principal
from tailrace.errors import Invalid, TooLarge
from tailrace.http.codec import Position, json_body, json_response
from tailrace.http.lookups import look_up
from tailrace.http.message import Request, Response
from tailrace.http.topics import MessageBody, ProducerBody, PublishedOffset, outgoing
from tailrace.log.position import offset
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import operations, plain, value
from tailrace.tables.binding import placeholders
from tailrace.tables.number import decimal_of
from tailrace.tables.plain import Sort
from tailrace.tables.queries import GetItem
from tailrace.topics.commands import Outgoing
from tailrace.transactions.commands import ReadInTransaction, ReadTail, Transact, Transacted, WholePage
from tailrace.transactions.operations import (
    AckOperation,
    AppendOperation,
    CheckOperation,
    DeleteOperation,
    ItemKey,
    PublishOperation,
    PutOperation,
    TransactionOperation,
    UpdateOperation,
)
from tailrace.transactions.reads import TransactionRead, from_text, to_text

if TYPE_CHECKING:
    from tailrace.http.services import Services

T = TypeVar("T")
INLINE_BYTES_MAX: Final = 8 * limits.KiB  # a larger request is parsed in a thread
Names = dict[str, str]


# -- requests


class ItemOperationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="op"):
    table: str
    condition: str | None = None
    names: Names | None = None
    values: dict[str, Any] | None = None


class PutBody(ItemOperationBody, kw_only=True, tag_field="op", tag="put"):
    item: dict[str, Any]


class UpdateBody(ItemOperationBody, kw_only=True, tag_field="op", tag="update"):
    key: Any
    expression: str


class DeleteBody(ItemOperationBody, kw_only=True, tag_field="op", tag="delete"):
    key: Any


class CheckBody(ItemOperationBody, kw_only=True, tag_field="op", tag="check"):
    key: Any


class AckOffsetsBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="ack"):
    topic: str
    group_id: str
    offsets: list[int | list[int]]  # each an offset, or the first and the last of several
    partition_id: Position = 0
    consumer_id: str | None = None
    lease_id: str | None = None


class PublishOperationBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="publish"):
    topic: str
    messages: list[MessageBody]
    producer: ProducerBody | None = None


class AppendBody(msgspec.Struct, forbid_unknown_fields=True, tag_field="op", tag="append"):
    stream: str
    payload: bytes | None = None  # base64
    text: str | None = None
    value: Raw | UnsetType = UNSET  # JSON
    content_type: str | None = None
    producer: ProducerBody | None = None


OperationBody = PutBody | UpdateBody | DeleteBody | CheckBody | AckOffsetsBody | PublishOperationBody | AppendBody
Token = Annotated[str, Meta(min_length=1, max_length=limits.TOKEN_CHARACTERS_MAX)]


class TransactionBody(msgspec.Struct, forbid_unknown_fields=True):
    operations: list[OperationBody]
    reads: list[str] = []
    token: Token | None = None
    values: Literal["plain", "typed"] = "plain"


class GetBody(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    key: Any
    projection: str | None = None
    names: Names | None = None


class SortBody(msgspec.Struct, forbid_unknown_fields=True):
    op: Literal["=", "<", "<=", ">", ">=", "BETWEEN", "begins_with"]
    operands: Annotated[list[Any], Meta(min_length=1, max_length=2)]


class ScanBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    table: str
    index: str | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.POSITION_MAX)] | None = None
    filter: str | None = None
    projection: str | None = None
    names: Names | None = None
    values: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class QueryBody(ScanBody, kw_only=True):
    partition: Any
    sort: list[SortBody] = []
    reverse: bool = False


class TransactionReadBody(msgspec.Struct, forbid_unknown_fields=True):
    """One of `get`, `query`, `scan` and `tail`, the path of a stream."""

    get: GetBody | None = None
    query: QueryBody | None = None
    scan: ScanBody | None = None
    tail: str | None = None
    operations: list[OperationBody] = []
    reads: list[str] = []
    values: Literal["plain", "typed"] = "plain"


class _TransactionOutline(msgspec.Struct, forbid_unknown_fields=True):
    """A body whose operations are not decoded yet."""

    operations: list[Raw]
    reads: list[str] = []
    token: Token | None = None
    values: Literal["plain", "typed"] = "plain"


class _ReadOutline(msgspec.Struct, forbid_unknown_fields=True):
    get: GetBody | None = None
    query: QueryBody | None = None
    scan: ScanBody | None = None
    tail: str | None = None
    operations: list[Raw] = []
    reads: list[str] = []
    values: Literal["plain", "typed"] = "plain"


# -- responses


class TransactionResponse(msgspec.Struct):
    replayed: bool
    sequence: int | None
    acknowledged: int
    published: list[list[PublishedOffset]]
    appended: list[str]  # the tail offset of each stream


class TransactionReadResponse(msgspec.Struct, omit_defaults=True):
    reads: list[str]
    items: list[Any] | UnsetType = UNSET
    cursor: Any = None
    offset: str | UnsetType | None = UNSET


_outline: Final = msgspec.json.Decoder(_TransactionOutline)
_read_outline: Final = msgspec.json.Decoder(_ReadOutline, float_hook=decimal_of)
_operation: Final = msgspec.json.Decoder(OperationBody, float_hook=decimal_of)


class _Values:
    """Reads and writes the values of a request."""

    def __init__(self, typed: bool) -> None:
        self.typed = typed

    def item(self, raw: dict[str, Any]) -> dict[str, Any]:
        return value.read_item(raw)[0] if self.typed else value.item_from_plain(raw)[0]

    def value(self, raw: Any) -> dict[str, Any]:
        return value.read_value(raw) if self.typed else value.from_plain(raw)

    def key(self, raw: Any) -> ItemKey:
        """A key: an object with its attributes, or its values in their order, or its only value."""
        if isinstance(raw, list):
            return tuple([self.value(part) for part in raw])
        if isinstance(raw, dict):
            return self.item(raw)
        return (self.value(raw),)

    def values(self, raw: dict[str, Any] | None) -> dict[str, Any] | None:
        return {_marked(":", name): self.value(each) for name, each in raw.items()} if raw else None

    def plain(self, raw: Any) -> Any:
        """A value as Python has it."""
        return value.to_plain(self.value(raw))

    def shown(self, item: dict[str, Any]) -> Any:
        return item if self.typed else value.item_to_json(item)


# -- the commit


async def transact(services: Services, request: Request, principal: Principal) -> Response:
    """Commit a transaction."""
    command = await _offloaded(services, request, partial(parse_transaction, request))
    done = await services.db.aexecute(command, principal)
    metrics = services.db.metrics
    metrics.published += sum([len(each) for each in done.published])
    return render_transacted(done)


def parse_transaction(request: Request) -> Transact:
    body = json_body(request, _outline, limits.TRANSACTION_BODY_BYTES_MAX)
    values = _Values(body.values == "typed")
    return Transact(_operations(body.operations, values), _reads(body.reads), body.token)


def render_transacted(done: Transacted) -> Response:
    published = [[PublishedOffset(*each) for each in messages] for messages in done.published]
    tails = [offset(tail) for tail in done.tails]
    return json_response(TransactionResponse(done.replayed, done.sequence, done.acked, published, tails))


async def _offloaded(services: Services, request: Request, work: Callable[[], T]) -> T:
    if len(request.body) <= INLINE_BYTES_MAX:
        return work()
    return await services.transaction_workers.run(work, len(request.body))


def _reads(texts: list[str]) -> tuple[TransactionRead, ...]:
    return tuple([read for text in texts for read in from_text(text)])


def _operations(raw: list[Raw], values: _Values) -> tuple[TransactionOperation, ...]:
    if len(raw) > limits.TRANSACTION_OPERATIONS_MAX:
        raise TooLarge(
            f"a transaction has at most {limits.TRANSACTION_OPERATIONS_MAX} operations, and this one has {len(raw)}; "
            "use several transactions",
            code="TRANSACTION_TOO_LARGE",
        )
    made = []
    for number, each in enumerate(raw):
        try:
            made.append(_made(_operation.decode(each), values))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"operations[{number}] does not have the expected form: {error}") from None
        except Invalid as error:
            raise Invalid(f"operations[{number}]: {error}", code=error.code, facts={"operation": number}) from None
    return tuple(made)


def _made(body: OperationBody, values: _Values) -> TransactionOperation:
    if isinstance(body, AckOffsetsBody):
        ranges = tuple([_range(each) for each in body.offsets])
        return AckOperation(
            topic=body.topic, group=body.group_id, offsets=ranges, partition=body.partition_id,
            consumer=body.consumer_id or "", lease=body.lease_id,
        )  # fmt: skip
    if isinstance(body, PublishOperationBody):
        messages: tuple[Outgoing, ...] = tuple([outgoing(each, number) for number, each in enumerate(body.messages)])
        if not messages:
            raise Invalid("there is nothing to publish; give one message or more")
        return PublishOperation(topic=body.topic, messages=messages, claim=_claim(body.producer))
    if isinstance(body, AppendBody):
        return AppendOperation(
            path=body.stream, body=_content(body), content_type=body.content_type, claim=_claim(body.producer)
        )
    names = {_marked("#", name): held for name, held in body.names.items()} if body.names else None
    placeholders(names, None)  # raises if one cannot be a placeholder, or the name of an attribute
    given: dict[str, Any] = {
        "table": body.table,
        "condition": body.condition,
        "names": names,
        "values": values.values(body.values),
    }
    if isinstance(body, PutBody):
        return PutOperation(item=values.item(body.item), **given)
    key = values.key(body.key)
    if isinstance(body, UpdateBody):
        return UpdateOperation(key=key, expression=body.expression, **given)
    return DeleteOperation(key=key, **given) if isinstance(body, DeleteBody) else CheckOperation(key=key, **given)


def _range(offsets: int | list[int]) -> tuple[int, int]:
    first, last = (offsets, offsets) if isinstance(offsets, int) else (offsets[0], offsets[-1]) if offsets else (1, 0)
    if not 0 <= first <= last <= limits.POSITION_MAX or (isinstance(offsets, list) and len(offsets) != 2):
        raise Invalid(f"{str(offsets)[:40]} is not an offset, nor the first and the last offset of a range")
    return first, last


def _claim(producer: ProducerBody | None) -> ProducerClaim | None:
    return None if producer is None else ProducerClaim(producer.id, producer.epoch, producer.sequence)


def _content(body: AppendBody) -> bytes:
    found = [
        content
        for content in (
            body.payload,
            None if body.text is None else body.text.encode(),
            bytes(body.value) if isinstance(body.value, Raw) else None,
        )
        if content is not None
    ]
    if len(found) != 1:
        raise Invalid("an append has one of payload (base64), text and value (JSON)")
    return found[0]


def _marked(mark: str, name: str) -> str:
    return name if name.startswith(mark) else mark + name


# -- reading


async def read(services: Services, request: Request, principal: Principal) -> Response:
    """Read within a transaction."""
    body = await _offloaded(
        services, request, partial(json_body, request, _read_outline, limits.TRANSACTION_BODY_BYTES_MAX)
    )
    work = partial(_answered, services, body, principal)
    return await services.transaction_workers.run(work, len(request.body))


def _answered(services: Services, body: _ReadOutline, principal: Principal) -> Response:
    values = _Values(body.values == "typed")
    made, reads = _operations(body.operations, values), _reads(body.reads)
    wanted = [each for each in (body.get, body.query, body.scan, body.tail) if each is not None]
    if len(wanted) != 1:
        raise Invalid("a read has one of get, query, scan and tail")
    if body.tail is not None:
        tail = services.db.execute(ReadTail(body.tail, reads), principal)
        shown = None if tail.result is None else offset(tail.result)
        return json_response(TransactionReadResponse([to_text(tail.reads)], offset=shown))
    if body.get is not None:
        lookup = operations.FindTable(body.get.table)
        read = ReadInTransaction(GetItem(body.get.table, {}), made, reads)
        definition = look_up(services.db, lookup, principal, (read,))
        key = values.key(body.get.key)
        parts: Any = value.item_to_plain(key) if isinstance(key, dict) else None
        if not isinstance(key, dict):
            parts = tuple([value.to_plain(part) for part in key])
        query = operations.get_item(definition, parts, body.get.projection, body.get.names)
        got = services.db.execute(ReadInTransaction(query, made, reads), principal)
        item = got.result.item
        items = [] if item is None else [values.shown(item)]
        return json_response(TransactionReadResponse([to_text(got.reads)], items))
    scanned = body.scan if body.query is None else body.query
    assert scanned is not None
    step = services.db.execute(ReadInTransaction(_page(scanned, values), made, reads), principal)
    found = [values.shown(each) for each in step.result.items or ()]
    last = step.result.last_key
    cursor = None if last is None else values.shown(last)
    return json_response(TransactionReadResponse([to_text(step.reads)], found, cursor))


def _condition(body: SortBody, values: _Values) -> Sort:
    operands = tuple([values.plain(operand) for operand in body.operands])
    if len(operands) != (2 if body.op == "BETWEEN" else 1):
        raise Invalid(f"{body.op} has {len(operands)} operands; BETWEEN has two, the others have one")
    if body.op == "begins_with" and not isinstance(operands[0], str | bytes):
        raise Invalid("the operand of begins_with is text or binary")
    return Sort(body.op, operands)


def _page(body: ScanBody, values: _Values) -> WholePage:
    reading = operations.ReadOptions(
        index=body.index,
        filter=body.filter,
        projection=body.projection,
        names=body.names,
        values={name: values.plain(each) for name, each in body.values.items()} if body.values else None,
        limit=body.limit,
        after=plain.plain(values.item(body.after)) if body.after is not None else None,
    )
    if not isinstance(body, QueryBody):
        return WholePage(operations.scan(body.table, None, None, reading))
    key = values.key(body.partition)
    if isinstance(key, dict):
        raise Invalid("partition is the value of the partition key, or a list of its values; not an object")
    hashes = tuple([value.to_plain(part) for part in key])
    sort = tuple([_condition(each, values) for each in body.sort])
    return WholePage(operations.query(body.table, hashes, sort or None, body.reverse, reading))

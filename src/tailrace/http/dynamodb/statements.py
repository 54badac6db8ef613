"""PartiQL: ExecuteStatement, BatchExecuteStatement, ExecuteTransaction.

A statement becomes the commands and queries of the other operations. What is wrong with it on any table is found first,
in the service's order: its parameters, its syntax, its operands.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.errors import Error, Forbidden, Invalid, TableNotFound, TransactionCanceled
from tailrace.http.dynamodb import errors, parameters, render
from tailrace.http.dynamodb.context import Context
from tailrace.http.dynamodb.offload import run_sync
from tailrace.http.dynamodb.shape import (
    RETURN_CONSUMED_CAPACITY,
    AttributeValue,
    Boolean,
    Integer,
    ListOf,
    Operation,
    Request,
    String,
    Structure,
    table_name,
)
from tailrace.http.dynamodb.transactions import PAYLOAD_BYTES_MAX, TOO_LARGE
from tailrace.http.lookups import look_up
from tailrace.tables import partiql, sources, value
from tailrace.tables.binding import Placeholders
from tailrace.tables.capacity import Capacity
from tailrace.tables.commands import ItemCommand, TransactWrite
from tailrace.tables.definition import Definition
from tailrace.tables.expression import KeyCondition
from tailrace.tables.partiql_commands import CheckWhere, DeleteWhere, FindTables, InsertItem, ItemWhere, UpdateWhere
from tailrace.tables.partiql_syntax import statement as parsed
from tailrace.tables.partiql_tree import (
    PartiQLDelete,
    PartiQLExists,
    PartiQLInsert,
    PartiQLSelect,
    PartiQLUpdate,
    Statement,
)
from tailrace.tables.queries import GetItem, HeavyItems, ItemPage, Pager, QueryItems, ScanItems, TransactGet
from tailrace.tables.value import Item, Value
from tailrace.tables.write import WrittenItem

_STATEMENT: Final = String(least=1, most=limits.STATEMENT_CHARACTERS_MAX)
_PARAMETERS: Final = ListOf(AttributeValue(), least=1)
_EXISTS: Final = "EXISTS can only be used in ExecuteTransaction write requests."
_DIGEST_BYTES: Final = 16
_LOOP_CHARACTERS: Final = 2_048  # of statements that are parsed on the event loop; longer ones take milliseconds
_NEXT_TOKEN_CHARACTERS_MAX: Final = 32_768
_CODES: Final = {  # of the statements of a batch, by exception
    "AccessDeniedException": "AccessDenied",
    "ConditionalCheckFailedException": "ConditionalCheckFailed",
    "DuplicateItemException": "DuplicateItem",
    "ResourceNotFoundException": "ResourceNotFound",
    "ThrottlingException": "ThrottlingError",
    "ValidationException": "ValidationError",
}
_encode: Final = msgspec.json.Encoder(order="deterministic").encode
T = TypeVar("T")
_decode: Final = msgspec.json.Decoder(tuple[int, dict[str, Any] | None]).decode


class PreparedStatement(NamedTuple):
    """A statement of a request, with its parameters."""

    text: str
    statement: Statement
    parameters: Sequence[Value]
    given: Placeholders
    on_failure: bool  # the stored item is returned if the condition fails
    consistent: bool

    @property
    def table(self) -> str:
        return table_name(self.statement.source.table)

    @property
    def size(self) -> int:
        return len(self.text) + sum(map(value.size, self.parameters))

    @property
    def digest(self) -> bytes:
        """32 bytes that are the same for equal requests."""
        given = {str(at): each for at, each in enumerate(self.parameters)}
        return sha256(_encode([self.text, value.digest(given).hex(), self.on_failure])).digest()


def _read_parameters(request: Request) -> list[Value]:
    return [value.read_value(raw) for raw in request.get("Parameters", ())]


def _prepared(request: Request, given: Sequence[Value]) -> PreparedStatement:
    """The statement, checked as far as possible without its table."""
    text = request["Statement"]
    statement = parsed(text)
    bound = partiql.bound(statement, given)
    if isinstance(statement, PartiQLSelect):
        partiql.condition([] if statement.where is None else [statement.where], bound)
    return PreparedStatement(
        text,
        statement,
        given,
        bound,
        request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD",
        request.get("ConsistentRead", False),
    )


def _write(prepared: PreparedStatement, capacity: bool, within: str | None = None) -> ItemCommand:
    """The command of a write. `within`: the prefix of errors that refuse the whole transaction."""
    statement, given, table = prepared.statement, prepared.given, prepared.table
    shared: dict[str, Any] = {
        "capacity": capacity,
        "on_failure": prepared.on_failure,
        "request_bytes": prepared.size,
    }
    if isinstance(statement, PartiQLInsert):
        item = partiql.item(statement, given)
        return InsertItem(table, item, value.item_size(item), **shared)
    assert not isinstance(statement, PartiQLSelect)
    where = ItemWhere(statement, given, within, (prepared.text, prepared.parameters, within))
    if isinstance(statement, PartiQLUpdate):
        update = partiql.update(statement, given)
        update.source = (sources.STATEMENT, prepared.text, prepared.parameters)
        return UpdateWhere(table, {}, update, where=where, returns=statement.returns, **shared)
    if isinstance(statement, PartiQLDelete):
        return DeleteWhere(table, {}, where=where, returns=statement.returns, **shared)
    return CheckWhere(table, {}, where=where, **shared)


# -- one statement

EXECUTE_STATEMENT: Final = Structure(
    "ExecuteStatementInput",
    {
        "Statement": _STATEMENT,
        "Parameters": _PARAMETERS,
        "ConsistentRead": Boolean(),
        "NextToken": String(least=1, most=_NEXT_TOKEN_CHARACTERS_MAX),
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
        "Limit": Integer(least=1),
        "ReturnValuesOnConditionCheckFailure": parameters.ON_CONDITION_FAILURE,
    },
    required=("Statement",),
)


async def execute_statement(context: Context, request: Request) -> dict[str, Any]:
    prepared = _prepared(request, _read_parameters(request))
    capacity = parameters.capacity(request)
    if isinstance(prepared.statement, PartiQLExists):
        raise Invalid(_EXISTS)
    if isinstance(prepared.statement, PartiQLSelect):
        return await _select(context, request, prepared, prepared.statement, capacity)
    written: WrittenItem = await context.execute(_write(prepared, capacity != "NONE"))
    response: dict[str, Any] = {"Items": [written.attributes] if written.attributes else []}
    if written.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(written.consumed, capacity)
    return response


async def _definition(context: Context, prepared: PreparedStatement, *operations: Query[Any]) -> Definition:
    """The table of a SELECT, which becomes one of these operations."""
    table = prepared.table
    found = await _definitions(context, (table,), operations)
    if table not in found:
        raise TableNotFound(table)
    return found[table]


async def _definitions(
    context: Context, tables: tuple[str, ...], operations: Sequence[Query[Any]]
) -> dict[str, Definition]:
    lookup = FindTables(tables)
    found: dict[str, Definition]
    try:
        found = await context.execute(lookup)
    except Forbidden:
        found = await context.call(lambda: look_up(context.db, lookup, context.principal, operations))
    return found


def _reads(prepared: PreparedStatement, statement: PartiQLSelect) -> tuple[Query[Any], ...]:
    """The operations that a SELECT can stand for, as far as they are known without its table."""
    table, index = prepared.table, statement.source.index
    pages = QueryItems(table=table, index=index, condition=_no_key), ScanItems(table=table, index=index)
    return pages if index is not None else (GetItem(table, {}), *pages)


def _no_key(*_: Any) -> KeyCondition:
    raise AssertionError("the query is judged, but not run")


class _SelectPage:
    """A page of a SELECT, which may go through several ranges of keys."""

    def __init__(self, limit: int | None) -> None:
        self.items: list[msgspec.Raw] = []
        self.consumed: Capacity | None = None
        self._limit = limit
        self._scanned = self._bytes = 0

    @property
    def left(self) -> int | None:
        """How many more items may be examined."""
        return None if self._limit is None else self._limit - self._scanned

    @property
    def full(self) -> bool:
        return self.left == 0 or self._bytes >= limits.ITEM_PAGE_BYTES

    def add(self, page: ItemPage, encoded: Sequence[bytes]) -> None:
        self._bytes += sum(map(len, encoded))
        self.items += map(msgspec.Raw, encoded)
        self._scanned += page.scanned
        if page.consumed is not None:
            self.consumed = page.consumed if self.consumed is None else self.consumed + page.consumed


async def _select(
    context: Context, request: Request, prepared: PreparedStatement, statement: PartiQLSelect, capacity: str
) -> dict[str, Any]:
    at, start = _opened(request["NextToken"], prepared.digest) if "NextToken" in request else (0, None)
    definition = await _definition(context, prepared, *_reads(prepared, statement))
    plan = partiql.plan(statement, prepared.given, definition, consistent=prepared.consistent)
    if plan.key is not None and start is None and at == 0:
        return await _get(context, prepared, plan, capacity)
    if at >= (1 if plan.parts is None else len(plan.parts)):
        raise Invalid("Invalid NextToken")
    page = _SelectPage(request.get("Limit"))
    token: str | None = None
    last_key: Item | None = None
    while True:
        part, encoded = await _read(context, _query(context, prepared, plan, at, start, page.left, capacity))
        page.add(part, encoded)
        last_key, start = part.last_key, None
        if last_key is not None:
            token = _sealed(prepared.digest, at, last_key)
            break
        at += 1
        if plan.parts is None or at == len(plan.parts):
            break
        if page.full:
            token = _sealed(prepared.digest, at, None)
            break
        await asyncio.sleep(0)
    response: dict[str, Any] = {"Items": page.items}
    if token is not None:
        response["NextToken"] = token
    if last_key is not None:
        response["LastEvaluatedKey"] = last_key
    if page.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(page.consumed, capacity)
    return response


async def _get(
    context: Context, prepared: PreparedStatement, plan: partiql.SelectPlan, capacity: str
) -> dict[str, Any]:
    """The item with a whole key."""
    assert plan.key is not None
    got = await context.execute(
        GetItem(prepared.table, plan.key, plan.projection, prepared.consistent, capacity != "NONE")
    )
    item = got.body if plan.projection is None else got.item
    response: dict[str, Any] = {"Items": [] if item is None else [msgspec.Raw(render.encoded_item(item))]}
    if got.consumed is not None:
        response["ConsumedCapacity"] = render.consumed(got.consumed, capacity)
    return response


def _query(
    context: Context,
    prepared: PreparedStatement,
    plan: partiql.SelectPlan,
    at: int,
    start: Item | None,
    limit: int | None,
    capacity: str,
) -> QueryItems | ScanItems:
    """The query of one part of a plan."""
    shared: dict[str, Any] = {
        "table": prepared.table,
        "index": plan.index_name,
        "start": start,
        "limit": limit,
        "projection": plan.projection,
        "consistent": prepared.consistent,
        "capacity": capacity != "NONE",
        "light": context.waits,
        "stored": True,
    }
    if plan.parts is None:
        return ScanItems(filter=plan.filter, **shared)
    part = plan.parts[at]
    return QueryItems(
        condition=partiql.PlannedKey(plan, part), filter=part.filter, filters_key=True, reverse=plan.reverse, **shared
    )


async def _read(context: Context, query: QueryItems | ScanItems) -> tuple[ItemPage, list[bytes]]:
    """A page of a query, and its items encoded. Large items are read and encoded in a thread, from the beginning of the
    page."""
    pager: Pager[Any] = Pager(query)
    try:
        while (step := pager.next()) is not None:
            pager.add(await context.execute(step))
            if not pager.done:
                await asyncio.sleep(0)
    except HeavyItems:
        again = msgspec.structs.replace(query, light=False)
        return await context.call(lambda: run_sync(_read(context.blocking(), again)))
    page = pager.page()
    return page, list(map(render.encoded_item, page.items or ()))


# -- tokens of pages


def _sealed(digest: bytes, at: int, last_key: Item | None) -> str:
    """NextToken: what it continues, the part, and the last key in it."""
    return urlsafe_b64encode(digest[:_DIGEST_BYTES] + _encode((at, last_key))).decode()


def _opened(token: str, digest: bytes) -> tuple[int, Item | None]:
    try:
        raw = urlsafe_b64decode(token.encode())
        at, last_key = _decode(raw[_DIGEST_BYTES:])
        start = None if last_key is None else value.read_item(last_key)[0]
    except (ValueError, Invalid, msgspec.DecodeError):
        raise Invalid("Invalid NextToken") from None
    if raw[:_DIGEST_BYTES] != digest[:_DIGEST_BYTES]:
        raise Invalid("NextToken does not match request")
    if at < 0:
        raise Invalid("Invalid NextToken")
    return at, start


# -- several statements, each by itself

BATCH_EXECUTE_STATEMENT: Final = Structure(
    "BatchExecuteStatementInput",
    {
        "Statements": ListOf(
            Structure(
                "BatchStatementRequest",
                {
                    "Statement": _STATEMENT,
                    "Parameters": _PARAMETERS,
                    "ConsistentRead": Boolean(),
                    "ReturnValuesOnConditionCheckFailure": parameters.ON_CONDITION_FAILURE,
                },
                required=("Statement",),
            ),
            least=1,
            most=limits.BATCH_STATEMENTS_MAX,
        ),
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
    },
    required=("Statements",),
)


async def batch_execute_statement(context: Context, request: Request) -> dict[str, Any]:
    capacity = parameters.capacity(request)
    counted = capacity != "NONE"
    prepared = [_attempted(one) for one in request["Statements"]]
    found = [one for one in prepared if isinstance(one, PreparedStatement)]
    reads = [isinstance(one.statement, PartiQLSelect) for one in found]
    if any(reads) and not all(reads):
        raise Invalid("Read and write requests together in the same batch is not supported.")
    pending = [
        one if isinstance(one, Error) else await _started(context, one, counted) for one in prepared
    ]  # all are begun before the first is awaited, so that writes share commits
    responses: list[dict[str, Any]] = []
    consumed: dict[str, Capacity] = {}
    for one, work in zip(prepared, pending, strict=True):
        table = one.table if isinstance(one, PreparedStatement) else None
        try:
            if isinstance(work, Error):
                table = None
                raise work
            result = await work
        except Error as error:
            responses.append(_error(error, table))
            continue
        if result.consumed is not None:
            units = result.consumed
            consumed[units.table] = consumed[units.table] + units if units.table in consumed else units
        item = result.attributes if isinstance(result, WrittenItem) else result.item
        response: dict[str, Any] = {"TableName": table}
        if item:
            response["Item"] = msgspec.Raw(render.encoded_item(item))
        responses.append(response)
    answer: dict[str, Any] = {"Responses": responses}
    if counted:
        answer["ConsumedCapacity"] = [render.consumed(units, capacity) for units in consumed.values()]
    return answer


def _attempted(request: Request) -> PreparedStatement | Error:
    """The statement of a batch, or what is wrong with it."""
    try:
        prepared = _prepared(request, _read_parameters(request))
        if isinstance(prepared.statement, PartiQLExists):
            return Invalid(_EXISTS)
    except Error as error:
        if error.code == "SERIALIZATION":
            raise
        return error
    return prepared._replace(on_failure=False)  # as in the service, which accepts the parameter and returns no item


async def _started(context: Context, one: PreparedStatement, counted: bool) -> Awaitable[Any] | Error:
    """The statement of a batch, queued; or what is wrong with it."""
    try:
        statement = one.statement
        if not isinstance(statement, PartiQLSelect):
            return context.execute(_write(one, counted))
        definition = await _definition(context, one, GetItem(one.table, {}))
        key = _read_key(one, statement, definition, "BatchExecuteStatement")
        projection = partiql.columns(statement, one.given)
        return context.execute(GetItem(one.table, key, projection, one.consistent, counted))
    except Error as error:
        return error


def _read_key(one: PreparedStatement, statement: PartiQLSelect, definition: Definition, operation: str) -> Item:
    """The key of the only item that a SELECT reads."""
    named = partiql.named_item(statement.where, one.given, definition.keys, one_of=True)
    if statement.source.index is not None or named.rest or len(named.key) != len(definition.keys):
        partiql.plan(statement, one.given, definition, consistent=one.consistent)  # its own errors come first
        raise Invalid(f"Select statements within {operation} must specify the primary key in the where clause.")
    return named.key


def _error(error: Error, table: str | None) -> dict[str, Any]:
    name = errors.exception(error)
    _, shown = errors.response(error)
    response: dict[str, Any] = {
        "Error": {"Code": _CODES.get(name, "InternalServerError"), "Message": shown.get("message", str(error))}
    }
    if table is not None and not isinstance(error, TableNotFound):
        response["TableName"] = table
    return response


# -- several statements in one transaction

EXECUTE_TRANSACTION: Final = Structure(
    "ExecuteTransactionInput",
    {
        "TransactStatements": ListOf(
            Structure(
                "ParameterizedStatement",
                {
                    "Statement": _STATEMENT,
                    "Parameters": _PARAMETERS,
                    "ReturnValuesOnConditionCheckFailure": parameters.ON_CONDITION_FAILURE,
                },
                required=("Statement",),
            ),
            least=1,
            most=limits.TRANSACT_ACTIONS_MAX,
        ),
        "ClientRequestToken": String(least=1, most=limits.TOKEN_CHARACTERS_MAX),
        "ReturnConsumedCapacity": RETURN_CONSUMED_CAPACITY,
    },
    required=("TransactStatements",),
)


async def execute_transaction(context: Context, request: Request) -> dict[str, Any]:
    requests: list[Request] = request["TransactStatements"]
    given = [_read_parameters(one) for one in requests]
    prepared: list[PreparedStatement] = []
    for at, (one, values) in enumerate(zip(requests, given, strict=True)):
        prepared.append(_within(at, _prepared, one, values))
    reads = [isinstance(one.statement, PartiQLSelect) for one in prepared]
    if any(reads) and not all(reads):
        raise Invalid("ExecuteTransaction API does not support both read and write operations in the same request.")
    if sum(one.size for one in prepared) > PAYLOAD_BYTES_MAX:
        raise Invalid(TOO_LARGE)
    if any(reads):
        return await _transact_get(context, request, prepared)
    return await _transact_write(context, request, prepared)


def _prefix(at: int) -> str:
    return f"Validation failed in TransactStatements[{at}]: "


def _within(at: int, work: Callable[..., T], *args: Any) -> T:
    """The result of `work` on a statement of a transaction; its errors name the statement."""
    try:
        return work(*args)
    except Invalid as error:
        raise Invalid(f"{_prefix(at)}{error}") from None


async def _transact_write(context: Context, request: Request, prepared: Sequence[PreparedStatement]) -> dict[str, Any]:
    for at, one in enumerate(prepared):
        if isinstance(one.statement, PartiQLUpdate | PartiQLDelete) and one.statement.returns != "NONE":
            raise Invalid(f"{_prefix(at)}RETURNING clause is not supported in ExecuteTransaction.")
    actions = tuple(_within(at, _write, one, False, _prefix(at)) for at, one in enumerate(prepared))
    capacity = parameters.capacity(request)
    token = request.get("ClientRequestToken")
    meant = b"" if token is None else sha256(b"".join(one.digest for one in prepared)).digest()
    batch = await context.execute(TransactWrite(actions, token, meant, capacity != "NONE", statements=True))
    response: dict[str, Any] = {"Responses": []}
    if capacity != "NONE":
        response["ConsumedCapacity"] = [
            render.consumed(units, capacity, split=True) for units in batch.consumed().values()
        ]
    return response


async def _transact_get(context: Context, request: Request, prepared: Sequence[PreparedStatement]) -> dict[str, Any]:
    tables = tuple(dict.fromkeys(one.table for one in prepared))
    operation = TransactGet(tuple([GetItem(table, {}) for table in tables]))
    definitions = await _definitions(context, tables, (operation,))
    gets: list[GetItem] = []
    for at, one in enumerate(prepared):
        definition = definitions.get(one.table)
        if definition is not None:
            gets.append(_within(at, _transact_read, one, definition))
    if len(gets) < len(prepared):
        raise TransactionCanceled(
            [
                ("None", None, None) if one.table in definitions else ("ResourceNotFound", errors.NOT_FOUND, None)
                for one in prepared
            ]
        )
    capacity = parameters.capacity(request)
    got = await context.execute(TransactGet(tuple(gets), capacity != "NONE"))
    response: dict[str, Any] = {
        "Responses": [{} if item is None else {"Item": item} for item in render.encoded_items(got.items)]
    }
    if capacity != "NONE":
        response["ConsumedCapacity"] = [render.consumed(units, capacity, split=True) for units in got.consumed.values()]
    return response


def _transact_read(one: PreparedStatement, definition: Definition) -> GetItem:
    statement = one.statement
    assert isinstance(statement, PartiQLSelect)
    if statement.source.index is not None:
        raise Invalid("Reads on indices are not supported within transactions.")
    key = _read_key(one, statement, definition, "ExecuteTransaction")
    return GetItem(one.table, key, partiql.columns(statement, one.given))


def _takes_long(statements: Sequence[Request]) -> bool:
    """Whether the statements are read or answered in a thread."""
    return len(statements) > render.ITEMS_AT_ONCE or sum(len(one["Statement"]) for one in statements) > _LOOP_CHARACTERS


OPERATIONS: Final = {
    "ExecuteStatement": Operation(
        EXECUTE_STATEMENT, execute_statement, offload=lambda request: _takes_long((request,))
    ),
    "BatchExecuteStatement": Operation(
        BATCH_EXECUTE_STATEMENT, batch_execute_statement, offload=lambda request: _takes_long(request["Statements"])
    ),
    "ExecuteTransaction": Operation(
        EXECUTE_TRANSACTION, execute_transaction, offload=lambda request: _takes_long(request["TransactStatements"])
    ),
}

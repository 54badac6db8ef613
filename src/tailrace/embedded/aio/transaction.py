"""Transactions of a database and of a server: one surface, one set of parameters.

A transaction holds no lock, and nothing on the server: it collects what it does and what it has read, and `commit`
sends both in one request. Reads see the transaction's own writes, and are all of one moment: if something that was read
before has changed since, the read fails with `TransactionConflict`, as the commit would.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

from tailrace import limits
from tailrace.embedded.async_primitives import ASYNC
from tailrace.embedded.running import Executor
from tailrace.embedded.transactions import (
    FoundItems,
    FoundTail,
    ItemRequest,
    ItemsRequest,
    TransactionBuffer,
    TransactionRequest,
)
from tailrace.log.position import offset
from tailrace.tables import operations, plain
from tailrace.tables.operations import FindTable, ReadOptions
from tailrace.tables.plain import Plain
from tailrace.transactions.commands import (
    ReadInTransaction,
    ReadTail,
    Transact,
    Transacted,
    TransactionStep,
    WholePage,
)

if ASYNC:
    from tailrace.embedded.async_primitives import in_thread

T = TypeVar("T")


class AsyncTransactionSource(Protocol):
    """Runs transactions: a database, or a client of a server."""

    async def send_transaction(self, request: TransactionRequest) -> Transacted: ...
    async def send_item_read(self, wanted: ItemRequest, request: TransactionRequest) -> FoundItems: ...
    async def send_items_read(self, wanted: ItemsRequest, request: TransactionRequest) -> FoundItems: ...
    async def send_tail_read(self, path: str, request: TransactionRequest) -> FoundTail: ...
    def transaction_token(self) -> str | None: ...


class AsyncTransaction(TransactionBuffer):
    """A transaction, for programs on an event loop. Leaving its context commits it; an exception drops it.

    async with db.aio.transaction() as tx:
        account = await tx.get("accounts", "a-1")
        tx.put("accounts", {**account, "balance": account["balance"] - 10})
        tx.publish("payments", {"from": "a-1", "amount": 10})
    """

    def __init__(self, source: AsyncTransactionSource) -> None:
        super().__init__()
        self._source = source
        self._token = source.transaction_token()
        self.result: Transacted | None = None  # once it is committed

    # -- reading

    async def get(
        self, table: str, key: Any, *, projection: str | None = None, names: Mapping[str, str] | None = None
    ) -> Plain | None:
        """The item with this key, None if there is none; as this transaction has left it."""
        self._check_open()
        found = await self._source.send_item_read(ItemRequest(table, key, projection, names), self._request())
        self._reads += found.reads
        return found.items[0] if found.items else None

    async def query(
        self,
        table: str,
        partition: Any,
        sort: Any = None,
        *,
        index: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002 - its name in DynamoDB
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> list[Plain]:
        """The items of one partition in the order of the sort key, at most `limit`; as this transaction has left them.
        The parameters are those of a table's `query`. An item that another transaction adds to the range is a
        conflict."""
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit
        )
        return await self._items(
            ItemsRequest(table=table, partition=partition, sort=sort, reverse=reverse, reading=reading)
        )

    async def scan(
        self,
        table: str,
        *,
        index: str | None = None,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> list[Plain]:
        """All items, at most `limit`; likewise. A change of any of them is a conflict: for small tables."""
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit
        )
        return await self._items(ItemsRequest(table=table, whole=True, reading=reading))

    async def tail(self, stream: str) -> str | None:
        """The tail offset of a stream, None if there is none. An append by another transaction is a conflict; appends
        of this one are not in it."""
        self._check_open()
        found = await self._source.send_tail_read(stream, self._request())
        self._reads += found.reads
        return found.offset

    async def _items(self, wanted: ItemsRequest) -> list[Plain]:
        self._check_open()
        most = wanted.reading.limit
        if wanted.reading.filter is not None:  # the number to examine is not known
            wanted = msgspec.structs.replace(wanted, reading=msgspec.structs.replace(wanted.reading, limit=None))
        items: list[Plain] = []
        while True:
            found = await self._source.send_items_read(wanted, self._request())
            self._reads += found.reads
            items += found.items
            if found.cursor is None or (most is not None and len(items) >= most):
                return items[:most]
            left = wanted.reading.limit if most is None or wanted.reading.limit is None else most - len(items)
            reading = msgspec.structs.replace(wanted.reading, after=found.cursor, limit=left)
            wanted = msgspec.structs.replace(wanted, reading=reading)

    # -- the end

    async def commit(self) -> Transacted:
        """Write everything, in one commit: all of it, or nothing. `TransactionConflict`: something that was read has
        changed; run the transaction again. `ConditionFailed`: a condition does not hold."""
        self._check_open()
        self._ended = "has failed"
        self.result = await self._source.send_transaction(self._request(self._token))
        self._ended = "is committed"
        return self.result

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended:
            return
        if error is None:
            await self.commit()
        else:
            self.rollback()


class AsyncEmbeddedTransactions:
    """Runs the transactions of a database."""

    def __init__(self, db: Executor) -> None:
        self._db = db

    def transaction_token(self) -> str | None:
        """None: a response is not lost within a process."""
        return None

    async def send_transaction(self, request: TransactionRequest) -> Transacted:
        """Commit a transaction."""
        return await self._db.aexecute(Transact(request.operations, request.reads, request.token))

    async def send_item_read(self, wanted: ItemRequest, request: TransactionRequest) -> FoundItems:
        """Read an item within a transaction."""
        definition = await self._db.aexecute(FindTable(wanted.table))
        query = operations.get_item(definition, wanted.key, wanted.projection, wanted.names)
        step = await self._step(ReadInTransaction(query, request.operations, request.reads))
        item = plain.plain(step.result.item)
        return FoundItems([] if item is None else [item], step.reads)

    async def send_items_read(self, wanted: ItemsRequest, request: TransactionRequest) -> FoundItems:
        """Read a page of items within a transaction."""
        query = WholePage(
            operations.scan(wanted.table, None, None, wanted.reading)
            if wanted.whole
            else operations.query(wanted.table, wanted.partition, wanted.sort, wanted.reverse, wanted.reading)
        )
        step = await self._step(ReadInTransaction(query, request.operations, request.reads))
        page = operations.plain_page(step.result)
        return FoundItems(page.items, step.reads, page.cursor)

    async def _step(self, query: ReadInTransaction[T]) -> TransactionStep[T]:
        """Run a query. It reads again what was read before: in a thread, if that is much."""
        if ASYNC and query.rows() > limits.TRANSACTION_LOOP_READS:
            return await in_thread(self._db.execute, query)
        return await self._db.aexecute(query)

    async def send_tail_read(self, path: str, request: TransactionRequest) -> FoundTail:
        """Read the tail of a stream within a transaction."""
        step = await self._db.aexecute(ReadTail(path, request.reads))
        return FoundTail(None if step.result is None else offset(step.result), step.reads)

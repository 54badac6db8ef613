"""How transactions begin, and are tried again. What they need is imported by the first one: most programs have none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, cast

from tailrace import limits
from tailrace.embedded.async_primitives import ASYNC, sleep
from tailrace.embedded.running import AsyncFacade
from tailrace.errors import Conflict

if ASYNC:
    from tailrace.embedded.async_primitives import result_of

if TYPE_CHECKING:
    from tailrace.embedded.aio.transaction import AsyncTransaction, AsyncTransactionSource

T = TypeVar("T")


class AsyncTransactionApi:
    """Transactions, for programs on an event loop."""

    def transaction(self) -> AsyncTransaction:
        """A transaction over tables, topics and streams. Nothing is written before its end, which commits all of it in
        one step, if nothing has changed that it has read.

        >>> async with db.aio.transaction() as tx:
        ...     order = await tx.get("orders", "o-1")
        ...     tx.put("orders", {**order, "state": "sent"})
        """
        from tailrace.embedded.aio.transaction import AsyncTransaction

        return AsyncTransaction(self._transaction_source())

    async def transact(
        self,
        function: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = limits.TRANSACTION_ATTEMPTS,
    ) -> T:
        """Call a function with a transaction and commit it; on a conflict, again, with another transaction and after a
        short pause, up to `attempts` times. Returns the result of the function, which should have no other effects.

        >>> async def rename(tx):
        ...     order = await tx.get("orders", "o-1")
        ...     tx.put("orders", {**order, "name": order["name"].title()})
        >>> await db.aio.transact(rename)
        """
        from tailrace.embedded import transactions as building

        building.check_attempts(attempts)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self.transaction() as tx:
                    returned: object = function(tx)
                    if ASYNC:
                        returned = await result_of(returned)
                    building.check_result(function, returned)
            except Conflict as error:
                if attempt >= attempts or not building.is_conflict(error):
                    raise
                await sleep(building.pause_s(attempt))
            else:
                return cast("T", returned)

    def _transaction_source(self) -> AsyncTransactionSource:
        raise NotImplementedError


class AsyncTransactionOperations(AsyncTransactionApi, AsyncFacade):
    """The transactions of a database, for programs on an event loop."""

    def _transaction_source(self) -> AsyncTransactionSource:
        from tailrace.embedded.aio.transaction import AsyncEmbeddedTransactions

        return AsyncEmbeddedTransactions(self._db)

"""What a database can do with tables: make, find and drop them, and write several at once."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from functools import cached_property
from types import EllipsisType
from typing import Any, TypeVar

from tailrace.command import Command, Query
from tailrace.embedded.async_table import AsyncTable
from tailrace.embedded.running import Followers, arun, run
from tailrace.embedded.table import Table
from tailrace.embedded.topics import AsyncTopicOperations, TopicOperations
from tailrace.log.tail import Tail
from tailrace.tables import operations
from tailrace.tables.plain import Age, Check, Delete, Get, Index, KeySpec, Plain, Put, Update

T = TypeVar("T")


class TableOperations(TopicOperations):
    """The part of `Database` that is about tables, on top of that about topics. It relies on `execute`, `aexecute` and
    `tail`; whoever closes the database calls `followers.close()`, so that nobody waits for ever."""

    tail: Tail

    def execute(self, command: Command[T] | Query[T]) -> T:
        """Run a command or a query."""
        raise NotImplementedError

    def aexecute(self, command: Command[T] | Query[T]) -> Awaitable[T]:
        """Run a command or a query; await the result."""
        raise NotImplementedError

    @cached_property
    def followers(self) -> Followers:
        """Those who wait for changes."""
        return Followers(self.tail)

    @cached_property
    def aio(self) -> AsyncOperations:
        """The same operations for programs on an event loop: `await db.aio.table("orders")`."""
        return AsyncOperations(self)

    def create_table(
        self,
        name: str,
        partition_key: KeySpec,
        sort_key: KeySpec | None = None,
        *,
        stream: str | None = None,
        indexes: Iterable[Index] = (),
        ttl: str | None = None,
        max_age: Age | EllipsisType = ...,
        max_count: int | EllipsisType | None = ...,
        exist_ok: bool = False,
    ) -> Table:
        """Make a table, ready to use.

        A key is the name of a string attribute, or a pair of name and type: S (string), N (number), B (binary).
        `stream` is the view that changes are recorded in (KEYS_ONLY, NEW_IMAGE, OLD_IMAGE, NEW_AND_OLD_IMAGES), None:
        they are not; `max_age` and `max_count` bound what is kept of them. `ttl` names the attribute with the time, in
        seconds since 1970, at which an item expires. With `exist_ok` a table that is there already, with that key, is
        fine.

        >>> db.create_table("events", partition_key="user", sort_key=("at", "N"))
        <Table 'events'>
        """
        steps = operations.create_table(
            name, partition_key, sort_key, stream=stream, indexes=indexes, ttl=ttl, max_age=max_age,
            max_count=max_count, exist_ok=exist_ok,
        )  # fmt: skip
        return Table(self, run(self, steps))

    def table(self, name: str) -> Table:
        """The table of this name; `TableNotFound` if there is none."""
        return Table(self, run(self, operations.find_table(name)))

    def tables(self) -> list[str]:
        """The names of all tables, in order."""
        return run(self, operations.list_tables())

    def drop_table(self, name: str) -> None:
        """Delete a table and all that is in it. Its changes stay readable until their retention passes."""
        run(self, operations.drop_table(name))

    def batch_write(self, writes: Sequence[Put | Delete]) -> int | None:
        """Put and delete items of one or more tables: all, or none if one of them is refused.

        The sequence that their change records share, None if nothing was recorded.

        >>> db.batch_write([Put("orders", {"id": "o-2"}), Delete("lines", ("o-1", 5))])
        3
        """
        return run(self, operations.batch_write(writes))

    def transact_write(
        self, actions: Sequence[Put | Delete | Update | Check], *, token: str | None = None
    ) -> int | None:
        """Up to a hundred actions on different items, each with a condition if wanted: all, or none.

        `TransactionCanceled` gives a reason for each action. A repetition with the same `token` within ten minutes does
        nothing again. The sequence that their change records share, None if nothing was recorded.

        >>> db.transact_write([
        ...     Update("stock", "apple", "SET pieces = pieces - :n", condition="pieces >= :n", values={"n": 2}),
        ...     Put("orders", {"id": "o-3", "apples": 2}, condition="attribute_not_exists(id)"),
        ... ])
        3
        """
        return run(self, operations.transact_write(actions, token))

    def transact_get(self, gets: Sequence[Get]) -> list[Plain | None]:
        """Up to a hundred items as they are at one moment; None for each that is not there.

        >>> db.transact_get([Get("orders", "o-3"), Get("stock", "apple")])
        [None, {'name': 'apple', 'pieces': 5}]
        """
        return run(self, operations.transact_get(gets))


class AsyncOperations(AsyncTopicOperations):
    """`TableOperations` for programs on an event loop."""

    def __init__(self, db: TableOperations) -> None:
        self._db = db

    async def create_table(
        self,
        name: str,
        partition_key: KeySpec,
        sort_key: KeySpec | None = None,
        *,
        stream: str | None = None,
        indexes: Iterable[Index] = (),
        ttl: str | None = None,
        max_age: Age | EllipsisType = ...,
        max_count: int | EllipsisType | None = ...,
        exist_ok: bool = False,
    ) -> AsyncTable:
        """As `TableOperations.create_table`."""
        steps = operations.create_table(
            name, partition_key, sort_key, stream=stream, indexes=indexes, ttl=ttl, max_age=max_age,
            max_count=max_count, exist_ok=exist_ok,
        )  # fmt: skip
        return AsyncTable(self._db, await arun(self._db, steps))

    async def table(self, name: str) -> AsyncTable:
        """As `TableOperations.table`."""
        return AsyncTable(self._db, await arun(self._db, operations.find_table(name)))

    def tables(self) -> Coroutine[Any, Any, list[str]]:
        """As `TableOperations.tables`."""
        return arun(self._db, operations.list_tables())

    def drop_table(self, name: str) -> Coroutine[Any, Any, None]:
        """As `TableOperations.drop_table`."""
        return arun(self._db, operations.drop_table(name))

    def batch_write(self, writes: Sequence[Put | Delete]) -> Coroutine[Any, Any, int | None]:
        """As `TableOperations.batch_write`."""
        return arun(self._db, operations.batch_write(writes))

    def transact_write(
        self, actions: Sequence[Put | Delete | Update | Check], *, token: str | None = None
    ) -> Coroutine[Any, Any, int | None]:
        """As `TableOperations.transact_write`."""
        return arun(self._db, operations.transact_write(actions, token))

    def transact_get(self, gets: Sequence[Get]) -> Coroutine[Any, Any, list[Plain | None]]:
        """As `TableOperations.transact_get`."""
        return arun(self._db, operations.transact_get(gets))

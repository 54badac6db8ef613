"""The operations of a database on tables: create, find and drop them, and write several items at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import EllipsisType

from tailrace.embedded.aio.table import AsyncTable
from tailrace.embedded.running import AsyncFacade
from tailrace.tables import commands, lifecycle, operations, plain, queries, schema
from tailrace.tables.definition import Definition
from tailrace.tables.operations import Action, FindTable
from tailrace.tables.plain import Age, Delete, Get, Index, KeySpec, Plain, Put


class AsyncTableOperations(AsyncFacade):
    """The operations of a database on tables, for programs on an event loop."""

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
        """Create a table, ready to use.

        A key is the name of a string attribute, or a pair of name and type: S (string), N (number), B (binary).
        `stream` is the view in which changes are recorded (KEYS_ONLY, NEW_IMAGE, OLD_IMAGE, NEW_AND_OLD_IMAGES); with
        None they are not recorded. `max_age` and `max_count` limit how long changes are kept, and how many. `ttl` names
        the attribute with the time, in seconds since 1970, at which an item expires. With `exist_ok`, a table that
        exists with the same key is returned as it is.

        >>> await db.aio.create_table("events", partition_key="user", sort_key=("at", "N"))
        <AsyncTable 'events'>
        """
        bounds = plain.retention(max_age, max_count)
        changes = None if stream is None else schema.StreamSpec(True, stream, **bounds)
        command = operations.make_table(name, partition_key, sort_key, indexes, changes, ttl, exist_ok)
        return AsyncTable(self._db, await self._db.aexecute(command))

    async def table(self, name: str) -> AsyncTable:
        """The table with this name; `TableNotFound` if there is none."""
        return AsyncTable(self._db, await self._db.aexecute(FindTable(name)))

    async def tables(self) -> list[str]:
        """The names of all tables, in order."""
        names: list[str] = []
        after: str | None = None
        while True:
            listed = await self._db.aexecute(lifecycle.ListTables(after))
            names += listed.names
            after = listed.last
            if after is None:
                return names

    async def drop_table(self, name: str) -> None:
        """Delete a table and all of its items. Its changes stay readable until their retention passes."""
        await self._db.aexecute(lifecycle.DeleteTable(name))

    async def batch_write(self, writes: Sequence[Put | Delete]) -> int | None:
        """Put and delete items of one or more tables: all of them, or none if one is refused.

        Returns the sequence that their change records share, None if nothing was recorded.

        >>> await db.aio.batch_write([Put("orders", {"id": "o-2"}), Delete("lines", ("o-1", 5))])
        3
        """
        operations.check_batch(writes)
        if not writes:
            return None
        definitions = await self._definitions(writes)
        actions = tuple([operations.item_command(definitions, write) for write in writes])
        done = await self._db.aexecute(commands.BatchWrite(actions))  # type: ignore[arg-type]
        return done.written[0].sequence

    async def transact_write(self, actions: Sequence[Action], *, token: str | None = None) -> int | None:
        """Up to a hundred actions on different items, each with a condition if wanted: all of them, or none.

        `TransactionCanceled` gives a reason for each action. A repetition with the same `token` within ten minutes has
        no further effect. Returns the sequence that their change records share, None if nothing was recorded.

        >>> await db.aio.transact_write([
        ...     Update("stock", "apple", "SET pieces = pieces - :n", condition="pieces >= :n", values={"n": 2}),
        ...     Put("orders", {"id": "o-3", "apples": 2}, condition="attribute_not_exists(id)"),
        ... ])
        3
        """
        operations.check_transaction(actions, token)
        definitions = await self._definitions(actions)
        made = [operations.item_command(definitions, action) for action in actions]
        digest = b"" if token is None else operations.digest(actions, made)
        done = await self._db.aexecute(commands.TransactWrite(tuple(made), token, digest))
        return done.written[0].sequence

    async def transact_get(self, gets: Sequence[Get]) -> list[Plain | None]:
        """Up to a hundred items as they are at one moment; None for each that does not exist.

        >>> await db.aio.transact_get([Get("orders", "o-3"), Get("stock", "apple")])
        [None, {'name': 'apple', 'pieces': 5}]
        """
        operations.check_count(len(gets))
        definitions = await self._definitions(gets)
        items = [operations.get_item(definitions[get.table], get.key, get.projection, get.names) for get in gets]
        got = await self._db.aexecute(queries.TransactGet(tuple(items)))
        return [plain.plain(item) for item in got.items]

    async def _definitions(self, actions: Sequence[Action | Get]) -> dict[str, Definition]:
        """The definitions of the tables whose keys must be known."""
        names = dict.fromkeys(action.table for action in actions if not isinstance(action, Put))
        return {name: await self._db.aexecute(FindTable(name)) for name in names}

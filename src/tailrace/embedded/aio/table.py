"""A table of an open database, for programs on an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from types import EllipsisType
from typing import Any, Literal

from msgspec import UNSET

from tailrace.embedded.async_primitives import AsyncSignal, in_thread
from tailrace.embedded.running import Executor, take_snapshot
from tailrace.errors import ConditionFailed, Unavailable
from tailrace.tables import (
    change_info,
    change_reading,
    change_stream,
    change_trimming,
    commands,
    cursors,
    lifecycle,
    operations,
    plain,
    queries,
    schema,
)
from tailrace.tables.change import BOTH
from tailrace.tables.definition import Definition
from tailrace.tables.following import FindStream, StreamFollower
from tailrace.tables.operations import FindTable, ReadOptions, Walk
from tailrace.tables.paging import Pager
from tailrace.tables.plain import Age, Change, Cursor, Delete, Index, Page, Plain, Put, StreamInfo, TableInfo, Update

Returns = Literal["NONE", "ALL_OLD"]
UpdateReturns = Literal["NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"]
After = int | Literal["latest"] | None


class AsyncTable:
    """A table of an open database, for programs on an event loop. Cheap to make and to keep."""

    def __init__(self, db: Executor, definition: Definition) -> None:
        self.name = definition.name
        self._db = db
        self._definition = definition

    def __repr__(self) -> str:
        return f"<AsyncTable {self.name!r}>"

    # -- items

    async def put(
        self,
        item: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Plain | None:
        """Put an item; it replaces the one with the same key.

        With a condition that does not hold nothing is written and `ConditionFailed` is raised:

        >>> await orders.put({"id": "o-2"}, condition="attribute_not_exists(id)")

        `returns="ALL_OLD"` gives the item that was replaced. With `on_failure` the error has the item as it is:

        >>> from tailrace.errors import ConditionFailed
        >>> try:
        ...     await orders.put({"id": "o-1"}, condition="attribute_not_exists(id)", on_failure=True)
        ... except ConditionFailed as error:
        ...     error.item["amount"]
        15
        """
        put = Put(self.name, item, condition, names, values)
        return await self._write(operations.put_item(put, returns, on_failure))

    async def get(
        self, key: Any, *, projection: str | None = None, names: Mapping[str, str] | None = None
    ) -> Plain | None:
        """The item with this key, None if there is none.

        >>> await orders.get("o-1")
        {'id': 'o-1', 'state': 'paid', 'amount': 15}
        >>> await lines.get(("o-1", 5))
        {'order': 'o-1', 'number': 5}
        >>> await orders.get({"id": "o-1"}, projection="amount")
        {'amount': 15}
        """
        got = await self._db.aexecute(operations.get_item(self._definition, key, projection, names))
        return plain.plain(got.item)

    async def update(
        self,
        key: Any,
        expression: str,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: UpdateReturns = "ALL_NEW",
        on_failure: bool = False,
    ) -> Plain | None:
        """Change attributes of the item with this key, creating it if it does not exist. Returns the item after that.

        >>> expression, names = "SET #s = :s ADD tries :one", {"s": "state"}
        >>> await orders.update("o-1", expression, names=names, values={"s": "sent", "one": 1})
        {'id': 'o-1', 'state': 'sent', 'amount': 15, 'tries': 1}

        Words that DynamoDB reserves, like `state` and `name`, need a placeholder in expressions.
        """
        update = Update(self.name, key, expression, condition, names, values)
        return await self._write(operations.update_item(self._definition, update, returns, on_failure))

    async def delete(
        self,
        key: Any,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Plain | None:
        """Delete the item with this key, if there is one. `returns="ALL_OLD"` gives the item that was deleted."""
        delete = Delete(self.name, key, condition, names, values)
        return await self._write(operations.delete_item(self._definition, delete, returns, on_failure))

    def query(
        self,
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
    ) -> AsyncIterator[Plain]:
        """The items of one partition in the order of the sort key, read as you go; at most `limit`.

        >>> [line["number"] async for line in lines.query("o-1", between(3, 7), reverse=True, limit=2)]
        [7, 6]
        >>> [order async for order in orders.query("paid", index="by-state", filter="amount > :n", values={"n": 10})]
        [{'id': 'o-1', 'state': 'paid', 'amount': 15}]

        The condition on the sort key is a value or one of `eq`, `lt`, `le`, `gt`, `ge`, `between`, `begins_with`. For
        an index whose key has several attributes, give tuples.
        """
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit
        )
        return self._walk(Walk(operations.query(self.name, partition, sort, reverse, reading)))

    async def query_page(
        self,
        partition: Any,
        sort: Any = None,
        *,
        index: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        after: Plain | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Page:
        """One page of a query: up to `limit` items examined, up to a megabyte. Go on with `after=page.cursor`."""
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return await self._page(operations.query(self.name, partition, sort, reverse, reading))

    def scan(
        self,
        *,
        index: str | None = None,
        limit: int | None = None,
        segment: int | None = None,
        segments: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Plain]:
        """All items, in no particular order, read as you go; at most `limit`.

        Several threads can share the work, each with its own `segment` of `segments`. Items that are written
        meanwhile may be missed; `snapshot` shows one moment."""
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit
        )
        return self._walk(Walk(operations.scan(self.name, segment, segments, reading)))

    async def scan_page(
        self,
        *,
        index: str | None = None,
        limit: int | None = None,
        after: Plain | None = None,
        segment: int | None = None,
        segments: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Page:
        """One page of a scan: up to `limit` items examined, up to a megabyte. Go on with `after=page.cursor`."""
        reading = ReadOptions(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return await self._page(operations.scan(self.name, segment, segments, reading))

    async def count(self) -> int:
        """The number of items, from a counter."""
        return (await self.describe()).items

    async def snapshot(self) -> tuple[int, Iterator[Plain]]:
        """All items as they are at one moment, and the sequence of the last change before it.

        Follow the changes after that sequence: none is missing, none comes twice:

        >>> sequence, items = await orders.snapshot()
        >>> copy = {item["id"]: item for item in items}
        >>> later = await orders.changes(after=sequence)
        """
        taken = await in_thread(take_snapshot, self._db, self.name)
        return taken.sequence, iter(taken)

    # -- changes

    async def changes(self, after: int | None = None, limit: int = 100, *, label: str | None = None) -> list[Change]:
        """Changes after the sequence `after`; None is from the oldest change that is kept.

        `limit` is rounded up to the end of a transaction, so reading can go on after the sequence of the last change.
        An empty list means that there is no more yet; `Trimmed`, that the next changes are no longer kept.
        `label` names a stream before the present one, or of a deleted table (`streams`)."""
        page = await self._db.aexecute(change_reading.ReadChanges(self.name, after, limit, label=label))
        return [plain.change(self.name, record) for record in page.records]

    def follow(self, after: After = None, *, timeout_s: float | None = None) -> AsyncIterator[Change]:
        """Changes after the sequence `after` (None: all that are kept; "latest": only new ones), then those to come.

        It ends when the stream is disabled, the table dropped or the database closed, or if nothing happens for
        `timeout_s`.

        >>> async for change in orders.follow(timeout_s=0.01):
        ...     change.event, change.new["amount"]
        ('INSERT', 15)
        """
        return self._follow(StreamFollower(self.name, after), timeout_s)

    async def stream_info(self) -> StreamInfo:
        """Whether changes are recorded, in which view, the oldest and latest sequence, and their number. For a table
        that was dropped since, the changes that are left."""
        info = await self._db.aexecute(FindStream(self.name))
        return StreamInfo(False) if info is None else plain.stream_info(info)

    async def enable_stream(
        self,
        view: str = BOTH,
        *,
        max_age: Age | EllipsisType = ...,
        max_count: int | EllipsisType | None = ...,
    ) -> None:
        """Record changes from now on: KEYS_ONLY, NEW_IMAGE, OLD_IMAGE or NEW_AND_OLD_IMAGES. They are kept for seven
        days and up to a million, by default; None is no bound."""
        await self._db.aexecute(change_stream.EnableStream(self.name, view, **plain.retention(max_age, max_count)))

    async def disable_stream(self) -> None:
        """Record no more changes. Those that are there stay, until their retention passes."""
        await self._db.aexecute(change_stream.DisableStream(self.name))

    async def alter_stream_retention(
        self, max_age: Age | EllipsisType = ..., max_count: int | EllipsisType | None = ...
    ) -> None:
        """Keep changes for `max_age` (a timedelta, or seconds) and at most `max_count` of them; None: without that
        bound. A bound that is left out stays."""
        bounds = plain.retention(max_age, max_count)
        age, count = bounds.get("max_age_s", UNSET), bounds.get("max_count", UNSET)
        await self._db.aexecute(change_trimming.AlterRetention(self.name, age, count))

    async def prune_stream(self, before: int | None = None) -> int:
        """Remove changes of sequences below `before`, or all. Returns their number."""
        pruned = await self._db.aexecute(change_trimming.PruneStream(self.name, None if before is None else before - 1))
        return pruned.records

    async def streams(self) -> list[StreamInfo]:
        """All change streams of the table that still exist, the oldest first; read one with
        `changes(label=...)`."""
        found = await self._db.aexecute(change_info.ListTableStreams(self.name))
        return [plain.stream_info(info) for info in found]

    async def save_cursor(self, name: str, sequence: int, hold_bytes: int | EllipsisType = ...) -> Cursor:
        """Record under `name` that a consumer has seen all changes up to `sequence`; retention waits for it.

        Changes that it has not seen are not trimmed while they take no more than `hold_bytes` (at first 1 GiB, then as
        before). Beyond that the cursor is cut off, and `lost` counts the changes that it missed.

        >>> changes = await orders.changes()
        >>> cursor = await orders.save_cursor("mailer", changes[-1].sequence)
        >>> cursor.lag_records, cursor.cut_off
        (0, False)
        """
        bytes_held = None if hold_bytes is ... else hold_bytes
        saved = await self._db.aexecute(cursors.SaveCursor(self.name, name, sequence, bytes_held))
        return plain.cursor(saved)

    async def drop_cursor(self, name: str) -> bool:
        """Drop a cursor. Returns whether it existed."""
        return await self._db.aexecute(cursors.DropCursor(self.name, name))

    async def cursors(self) -> list[Cursor]:
        """All named cursors, and how far each is behind."""
        found = await self._db.aexecute(cursors.ListCursors(self.name))
        return [plain.cursor(cursor) for cursor in found]

    # -- the table itself

    async def describe(self) -> TableInfo:
        """The definition of the table, and the number and size of its items."""
        return operations.table_info(await self._db.aexecute(lifecycle.DescribeTable(self.name)))

    async def add_index(self, index: Index) -> None:
        """Create an index. It is filled in the background; `describe` shows when it is ACTIVE."""
        definition = await self._db.aexecute(FindTable(self.name))
        await self._db.aexecute(operations.added_index(definition, index))

    async def drop_index(self, name: str) -> None:
        """Delete an index."""
        dropped = schema.TableChanges(indexes=(schema.IndexChange(delete=name),))
        await self._db.aexecute(lifecycle.UpdateTable(self.name, dropped))

    async def set_ttl(self, attribute: str | None) -> None:
        """Let items expire at the time, in seconds since 1970, in this attribute; None: let them stay."""
        await self._db.aexecute(operations.set_expiry(self.name, attribute))

    # -- steps

    async def _write(self, command: commands.ItemCommand) -> Plain | None:
        try:
            written = await self._db.aexecute(command)
        except ConditionFailed as error:
            error.item = plain.plain(error.item)
            raise
        return plain.plain(written.attributes)

    async def _page(self, query: queries.QueryItems | queries.ScanItems) -> Page:
        pager: Pager[Any] = Pager(query)
        while (step := pager.next()) is not None:
            pager.add(await self._db.aexecute(step))
        return operations.plain_page(pager.page())

    async def _walk(self, walk: Walk) -> AsyncIterator[Plain]:
        while walk.next is not None:
            page = await self._page(walk.next)
            for item in walk.take(page):
                yield item

    async def _follow(self, follower: StreamFollower, timeout_s: float | None) -> AsyncIterator[Change]:
        followers = self._db.followers
        happened = AsyncSignal()
        log = follower.start(await self._db.aexecute(follower.locate()))
        with followers.waiting(log, happened.set):
            while not followers.closed:
                happened.clear()
                try:
                    page = await self._db.aexecute(follower.read())
                except Unavailable as error:
                    if error.code == "CLOSED":
                        return
                    raise
                for change in follower.take(page):
                    yield change
                if follower.ended or (not follower.more and not await happened.wait(timeout_s)):
                    return

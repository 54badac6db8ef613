"""A table of an open database, for programs on an event loop. What the methods do is told in `Table`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from types import EllipsisType
from typing import Any

from tailrace.embedded.running import Executor, arun, take_snapshot
from tailrace.embedded.table import After, Returns, UpdateReturns
from tailrace.errors import Unavailable
from tailrace.tables import following, operations
from tailrace.tables.change import BOTH
from tailrace.tables.definition import Definition
from tailrace.tables.operations import Reading, Walk
from tailrace.tables.plain import Age, Change, Cursor, Index, Page, Plain, StreamInfo, TableInfo


class AsyncTable:
    """A table of an open database, for programs on an event loop. Each method is as that of `Table`, to be awaited or
    iterated over asynchronously."""

    def __init__(self, db: Executor, definition: Definition) -> None:
        self.name = definition.name
        self._db = db
        self._definition = definition

    def __repr__(self) -> str:
        return f"<AsyncTable {self.name!r}>"

    # -- items

    def put(
        self,
        item: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Coroutine[Any, Any, Plain | None]:
        """As `Table.put`."""
        steps = operations.put(self._definition, item, condition, names, values, returns, on_failure)
        return arun(self._db, steps)

    def get(
        self, key: Any, *, projection: str | None = None, names: Mapping[str, str] | None = None
    ) -> Coroutine[Any, Any, Plain | None]:
        """As `Table.get`."""
        return arun(self._db, operations.get(self._definition, key, projection, names))

    def update(
        self,
        key: Any,
        expression: str,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: UpdateReturns = "ALL_NEW",
        on_failure: bool = False,
    ) -> Coroutine[Any, Any, Plain | None]:
        """As `Table.update`."""
        steps = operations.update_item(self._definition, key, expression, condition, names, values, returns, on_failure)
        return arun(self._db, steps)

    def delete(
        self,
        key: Any,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Coroutine[Any, Any, Plain | None]:
        """As `Table.delete`."""
        steps = operations.delete(self._definition, key, condition, names, values, returns, on_failure)
        return arun(self._db, steps)

    def query(
        self,
        partition: Any,
        sort: Any = None,
        *,
        index: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Plain]:
        """As `Table.query`."""
        reading = Reading(index=index, filter=filter, projection=projection, names=names, values=values, limit=limit)
        return self._walk(Walk(operations.query(self.name, partition, sort, reverse, reading)))

    def query_page(
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
    ) -> Coroutine[Any, Any, Page]:
        """As `Table.query_page`."""
        reading = Reading(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return arun(self._db, operations.read_page(operations.query(self.name, partition, sort, reverse, reading)))

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
        """As `Table.scan`."""
        reading = Reading(index=index, filter=filter, projection=projection, names=names, values=values, limit=limit)
        return self._walk(Walk(operations.scan(self.name, segment, segments, reading)))

    def scan_page(
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
    ) -> Coroutine[Any, Any, Page]:
        """As `Table.scan_page`."""
        reading = Reading(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return arun(self._db, operations.read_page(operations.scan(self.name, segment, segments, reading)))

    def count(self) -> Coroutine[Any, Any, int]:
        """As `Table.count`."""
        return arun(self._db, operations.count(self.name))

    async def snapshot(self) -> tuple[int, Iterator[Plain]]:
        """As `Table.snapshot`. The items are copied on another thread; iterating over them does not wait."""
        taken = await asyncio.to_thread(take_snapshot, self._db, self.name)
        return taken.sequence, iter(taken)

    # -- changes

    def changes(
        self, after: int | None = None, limit: int = 100, *, label: str | None = None
    ) -> Coroutine[Any, Any, list[Change]]:
        """As `Table.changes`."""
        return arun(self._db, following.changes(self.name, after, limit, label))

    def follow(self, after: After = None, *, timeout_s: float | None = None) -> AsyncIterator[Change]:
        """As `Table.follow`."""
        source = following.Following(self.name, after)
        return self._follow(source, timeout_s)

    def stream_info(self) -> Coroutine[Any, Any, StreamInfo]:
        """As `Table.stream_info`."""
        return arun(self._db, following.stream_info(self.name))

    def enable_stream(
        self,
        view: str = BOTH,
        *,
        max_age: Age | EllipsisType = ...,
        max_count: int | EllipsisType | None = ...,
    ) -> Coroutine[Any, Any, None]:
        """As `Table.enable_stream`."""
        return arun(self._db, following.enable_stream(self.name, view, max_age, max_count))

    def disable_stream(self) -> Coroutine[Any, Any, None]:
        """As `Table.disable_stream`."""
        return arun(self._db, following.disable_stream(self.name))

    def alter_stream_retention(
        self, max_age: Age | EllipsisType = ..., max_count: int | EllipsisType | None = ...
    ) -> Coroutine[Any, Any, None]:
        """As `Table.alter_stream_retention`."""
        return arun(self._db, following.alter_stream_retention(self.name, max_age, max_count))

    def prune_stream(self, before: int | None = None) -> Coroutine[Any, Any, int]:
        """As `Table.prune_stream`."""
        return arun(self._db, following.prune_stream(self.name, before))

    def streams(self) -> Coroutine[Any, Any, list[StreamInfo]]:
        """As `Table.streams`."""
        return arun(self._db, following.list_streams(self.name))

    def save_cursor(
        self, name: str, sequence: int, hold_bytes: int | EllipsisType = ...
    ) -> Coroutine[Any, Any, Cursor]:
        """As `Table.save_cursor`."""
        return arun(self._db, following.save_cursor(self.name, name, sequence, hold_bytes))

    def drop_cursor(self, name: str) -> Coroutine[Any, Any, bool]:
        """As `Table.drop_cursor`."""
        return arun(self._db, following.drop_cursor(self.name, name))

    def cursors(self) -> Coroutine[Any, Any, list[Cursor]]:
        """As `Table.cursors`."""
        return arun(self._db, following.cursors(self.name))

    # -- the table itself

    def describe(self) -> Coroutine[Any, Any, TableInfo]:
        """As `Table.describe`."""
        return arun(self._db, operations.describe(self.name))

    def add_index(self, index: Index) -> Coroutine[Any, Any, None]:
        """As `Table.add_index`."""
        return arun(self._db, operations.add_index(self.name, index))

    def drop_index(self, name: str) -> Coroutine[Any, Any, None]:
        """As `Table.drop_index`."""
        return arun(self._db, operations.drop_index(self.name, name))

    def set_ttl(self, attribute: str | None) -> Coroutine[Any, Any, None]:
        """As `Table.set_ttl`."""
        return arun(self._db, operations.set_ttl(self.name, attribute))

    # -- waiting

    async def _walk(self, walk: Walk) -> AsyncIterator[Plain]:
        while walk.more:
            for item in await arun(self._db, walk.page()):
                yield item

    async def _follow(self, source: following.Following, timeout_s: float | None) -> AsyncIterator[Change]:
        followers = self._db.followers
        happened = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(happened.set)
            except RuntimeError:
                pass  # the loop is closed, so nobody waits here any more; whoever publishes must not suffer for it

        log = await arun(self._db, source.find())
        with followers.waiting(log, wake):
            while not followers.closed:
                happened.clear()
                try:
                    changes = await arun(self._db, source.read())
                except Unavailable as error:
                    if error.code == "CLOSED":
                        return
                    raise
                for change in changes:
                    yield change
                if source.ended:
                    return
                if not source.more:
                    try:
                        await asyncio.wait_for(happened.wait(), timeout_s)
                    except TimeoutError:
                        return

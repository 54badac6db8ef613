"""Exports for servers that do not write: the writer keeps the old images, so it also reads the pages.

`RemoteExports` takes the place of `Exports` in such a server, `ServedExports` answers at the writer. An export ends
with the link of its server.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from tailrace import limits
from tailrace.access import SYSTEM, Principal
from tailrace.bus.asking import (
    BeginItems,
    BeginTables,
    BegunExport,
    BegunTables,
    EndExports,
    ItemsPage,
    ReadItemsPage,
)
from tailrace.bus.forwarder import Forwarder
from tailrace.bus.messages import decode_plain, plain
from tailrace.command import Query
from tailrace.errors import Error, Unavailable
from tailrace.storage.engine import Packed, Reader
from tailrace.tables.export import BeginExport, Export, Exports, S


class RemoteExport(Export):
    """An export that the writer reads. Its own methods are for one reader at a time, on any thread but the loop's."""

    def __init__(self, of: BegunExport, ask: Callable[[Any], Any]) -> None:
        self.table = of.table
        self.space = of.space
        self.sequence = of.sequence
        self.keys = of.keys
        self.number = of.export
        self._ask = ask

    def page(self, reader: Reader) -> Packed | None:
        return self.fetch()

    def fetch(self) -> Packed | None:
        """The next page."""
        page: ItemsPage | None = self._ask(ReadItemsPage(self.number))
        return None if page is None else Packed((), array("q", page.sizes), page.body)

    def close(self) -> None:
        """The writer closes it."""


class RemoteExports(Exports):
    """The exports that this server has begun at the writer. From any thread but the event loop's."""

    def __init__(self, forwarder: Forwarder, execute: Callable[..., Any]) -> None:
        self._ask = forwarder.ask_from_thread
        self._execute = execute

    def begin(self, table: str, principal: Principal = SYSTEM, segment: int = 0, segments: int = 1) -> Export:
        query = BeginExport(table, segment, segments)
        self._execute(query, principal)  # raises if the table does not exist or may not be read
        return RemoteExport(self._ask(BeginItems(query)), self._ask)

    def begin_together(self, query: Query[list[S]], count: int) -> list[tuple[S, Export]]:
        from tailrace.sql.sources import PlanTables, TablePart

        assert isinstance(query, PlanTables), "the only statement that begins exports"
        begun: BegunTables = self._ask(BeginTables(_encoded(query), count))
        made: dict[int, Export] = {}
        found: list[tuple[Any, Export]] = []
        starts = msgspec.msgpack.decode(begun.starts, type=list[TablePart])
        for start, number in zip(starts, begun.exports, strict=True):
            if number not in made:
                definition = start.definition
                of = BegunExport(number, definition.name, definition.space, start.sequence, definition.keys)
                made[number] = RemoteExport(of, self._ask)
            found.append((start, made[number]))
        return found

    def read(self, export: Export) -> Packed | None:
        assert isinstance(export, RemoteExport)
        return export.fetch()

    def end(self, *ended: Export) -> None:
        numbers = [export.number for export in ended if isinstance(export, RemoteExport)]
        try:
            self._ask(EndExports(numbers))
        except Error:
            return  # they have ended with the writer, or with the link

    def close(self) -> None:
        """They end with the link."""


def _encoded(query: Any) -> bytes:
    """A `PlanTables`, whose comparisons have values of any type."""
    replace = msgspec.structs.replace
    references = [
        replace(
            each,
            needs=replace(each.needs, where=tuple(replace(of, value=plain(of.value)) for of in each.needs.where)),
        )
        for each in query.references
    ]
    return msgspec.msgpack.encode(replace(query, references=tuple(references)))


class ServedExports:
    """The exports of other servers, at the writer. Pages are read in threads."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports
        self._number = 0
        self._threads = ThreadPoolExecutor(limits.EXPORTS_MAX, "tailrace-exports")

    async def answer(self, of_link: dict[int, Export], question: Any) -> Any:
        """The answer to a question about the exports of a link."""
        if isinstance(question, BeginItems):
            query = question.query
            export = await self._run(self._exports.begin, query.table, SYSTEM, query.segment, query.segments)
            return BegunExport(self._add(of_link, export), export.table, export.space, export.sequence, export.keys)
        if isinstance(question, BeginTables):
            from tailrace.sql.sources import PlanTables

            plan = decode_plain(PlanTables, question.query)
            begun = await self._run(self._exports.begin_together, plan, question.count)
            numbers: dict[Export, int] = {}
            for _, export in begun:
                if export not in numbers:
                    numbers[export] = self._add(of_link, export)
            starts = msgspec.msgpack.encode([start for start, _ in begun])
            return BegunTables(starts, [numbers[export] for _, export in begun])
        if isinstance(question, ReadItemsPage):
            found = of_link.get(question.export)
            if found is None:
                raise Unavailable("the export was closed; read the items again", code="EXPORT_CLOSED")
            page = await self._run(self._exports.read, found)
            return None if page is None else ItemsPage(list(page.sizes), page.body)
        assert isinstance(question, EndExports), f"no export can answer {type(question).__name__}"
        return await self.end_all({number: of_link.pop(number) for number in question.exports if number in of_link})

    async def end_all(self, exports: dict[int, Export]) -> None:
        if exports:
            await self._run(self._exports.end, *exports.values())

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _add(self, of_link: dict[int, Export], export: Export) -> int:
        self._number += 1
        of_link[self._number] = export
        return self._number

    async def _run(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

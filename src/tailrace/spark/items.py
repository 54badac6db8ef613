"""The source, items: the rows of a table as of one sequence, read by tasks that each have a part of the keys.

Theory of operation
-------------------
The driver notes the end of the table's change stream, `until`: the rows are those after the changes before it. Each
task reads one segment of the table, at a moment of its own, which the server states as a sequence. Then the changes
from `until` up to that sequence are undone: the first one of a key has the item as it was before. So all tasks read the
same rows, whenever they run and however often they are repeated, and the server keeps nothing between them.

That needs a change stream with old images. A table without one is read by one task, as of its own moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.bulk.columns import decoded_entries, decoded_items
from tailrace.bulk.text import TypedItem
from tailrace.bulk.typed_rows import TypedRows
from tailrace.errors import Conflict, Invalid, NotFound, TooMany, Unavailable
from tailrace.spark.connection import FIRST_S, SourceInfo, client, patiently, source_info, target_info
from tailrace.spark.failures import hide_traceback, hide_traceback_each
from tailrace.spark.fetching import RangeFetcher, RowForm
from tailrace.spark.options import ServerAccess, SourceOptions
from tailrace.spark.planning import OffsetRange, tasks_wanted
from tailrace.spark.servers import BEHIND, Turn, beginning, servers
from tailrace.spark.session import planning_cores
from tailrace.tables.key import hash_of, segment_bounds

SAMPLED: Final = 10_000  # items that a schema is inferred from
_OLD_IMAGES: Final = ("OLD_IMAGE", "NEW_AND_OLD_IMAGES")
_encode: Final = msgspec.msgpack.Encoder().encode

Key = tuple[str | bytes, ...]


@dataclass
class ItemsTask(InputPartition):
    """A segment that one task reads, as of the changes before `until`; None: as of its own moment."""

    segment: int
    segments: int
    until: int | None
    log: int = 0  # of the change stream
    servers: tuple[str, ...] = ()  # to ask in this order; none: the given one

    def __repr__(self) -> str:
        return f"ItemsTask({self.segment} of {self.segments})"


def items_info(options: SourceOptions) -> SourceInfo:
    """The table, which need not have a change stream."""
    try:
        return source_info(options, FIRST_S)
    except NotFound:
        found = target_info(options, FIRST_S)
    quoted = options.name.replace('"', '""')
    rows = patiently(lambda: client(options.access).sql(f'DESCRIBE TABLE "{quoted}"'))[-1].rows
    columns = [(row["column"], row["type"]) for row in rows]
    if all(row["key"] is not None for row in rows):
        columns = []  # only the key is known
    return msgspec.structs.replace(found, columns=columns)


def sample_stored(options: SourceOptions) -> Iterator[TypedItem]:
    """Some items of the table."""
    count = 0
    with ExitStack() as stack:
        _, batches = _opened(options, stack, 0, 1)
        for batch in batches:
            for chunk in decoded_items(batch.column("body").slice(0, SAMPLED - count)):
                yield from chunk
                count += len(chunk)
            if count >= SAMPLED:
                return


def _opened(options: SourceOptions, stack: ExitStack, segment: int, segments: int) -> tuple[int, Any]:
    """The sequence of the items, and batches of them."""
    server = client(options.access)
    return patiently(
        lambda: stack.enter_context(server.items(options.name, form="stored", segment=segment, segments=segments))
    )


class HandedOver:
    """The items of a segment that were handed to Spark, which wants each once. A segment is read in the order of the
    hashes of its keys: so those before the last hash, and those keys that have it. But for items that changed
    meanwhile: these come at the end."""

    def __init__(self, kind: str) -> None:
        self._kind = kind  # of the partition key
        self._last: bytes | None = None
        self._keys: set[Key] = set()  # of the last hash
        self._kept: set[Key] = set()
        self.any_before = False  # by an earlier attempt

    @property
    def any(self) -> bool:
        return self._last is not None

    def keep(self, changed: Iterable[Key]) -> None:
        """An attempt begins, in which these come at the end."""
        self.any_before = self.any
        self._kept.update([key for key in changed if not self.has(key)])

    def note(self, keys_from_end: Iterator[Key]) -> None:
        """A batch was handed over."""
        for key in keys_from_end:
            at = hash_of(self._kind, key[0])
            if self._last is None or at > self._last:
                self._last, self._keys = at, set()
            elif at < self._last:
                return
            self._keys.add(key)

    def has(self, key: Key) -> bool:
        if self._last is None or key in self._kept:
            return False
        at = hash_of(self._kind, key[0])
        return at < self._last or key in self._keys


class ItemsReader(DataSourceReader):
    """Reads the items of a table once. It is pickled, and travels to the executors."""

    def __init__(self, options: SourceOptions, found: SourceInfo, form: RowForm) -> None:
        self._options = options
        self._keys = tuple(found.keys)
        self._typed = TypedRows(options.name, form.schema, form.strict)
        self._changes = RangeFetcher(options, found, form)

    @hide_traceback
    def partitions(self) -> list[ItemsTask]:
        found = items_info(self._options)
        table = self._described()
        if not found.partitions or found.view not in _OLD_IMAGES or not _is_recorded(table):
            return [ItemsTask(0, 1, None)]
        segments = tasks_wanted("table", [table["ItemCount"]], planning_cores(), self._options.partitions_min)
        (part,) = found.partitions
        urls = servers(self._options)
        return [
            ItemsTask(segment, segments, part.next, part.log, beginning(urls, segment)) for segment in range(segments)
        ]

    def _described(self) -> dict[str, Any]:
        request = {"TableName": self._options.name}
        found: dict[str, Any] = patiently(lambda: client(self._options.access).call("DescribeTable", request))["Table"]
        return found

    @hide_traceback_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ItemsTask):
            return
        turn, handed = Turn(self._options.access, partition.servers), HandedOver(self._kind)
        while True:
            try:
                yield from self._segment(partition, turn, handed)
                return
            except (Unavailable, TooMany) as error:
                if partition.until is None and handed.any:  # another read would be of another moment
                    raise
                turn.failed(error)

    def _segment(self, partition: ItemsTask, turn: Turn, handed: HandedOver) -> Iterator[pa.RecordBatch]:
        """The items of a segment, without those that were handed over before a server went away."""
        names = tuple(name for name, _ in self._keys)
        with ExitStack() as stack:
            opened = client(turn.access).items(
                self._options.name, form="stored", segment=partition.segment, segments=partition.segments
            )
            sequence, batches = stack.enter_context(opened)
            before: dict[Key, TypedItem | None] = {}
            if partition.until is not None:
                if sequence < partition.until - 1:
                    raise Unavailable(f"{turn.access.url} does not have all of {self._options.noun} yet", code=BEHIND)
                before = self._before(partition.log, partition.until, sequence, turn.access)
                handed.keep(before)
                sequence = partition.until - 1
            for batch in batches:
                bodies = batch.column("body")
                if before or handed.any_before:
                    there = [self._is_new(item, before, handed) for chunk in decoded_items(bodies) for item in chunk]
                    bodies = bodies.filter(pa.array(there, pa.bool_()))
                if len(bodies):
                    yield self._typed.of_items(bodies, names, sequence)
                    turn.worked()
                    handed.note(self._last_keys(bodies))
            undone = [
                _encode(item)
                for key, item in before.items()
                if item is not None and _has(partition, key, self._kind) and not handed.has(key)
            ]
            if undone:
                yield self._typed.of_items(pa.array(undone, pa.binary()), names, sequence)

    def _is_new(self, item: TypedItem, before: dict[Key, TypedItem | None], handed: HandedOver) -> bool:
        key = self._key(item)
        return key not in before and not handed.has(key)

    def _last_keys(self, bodies: Any) -> Iterator[Key]:
        """The keys of a batch, from its end."""
        for at in range(len(bodies) - 1, -1, -1):
            for chunk in decoded_items(bodies.slice(at, 1)):
                yield from map(self._key, chunk)

    def _before(self, log: int, until: int, sequence: int, access: ServerAccess) -> dict[Key, TypedItem | None]:
        """The items that changed from `until` up to a sequence, as they were before it; None: they were not there."""
        now = source_info(self._options, access=access).partitions[0]
        if now.log != log or not _is_recorded(self._described()):
            raise Conflict(
                f"{self._options.noun} or its change stream was dropped while its items were read; repeat the query",
                code="LOG_REPLACED",
            )
        found: dict[Key, TypedItem | None] = {}
        if sequence < until or now.next <= until:
            return found
        wanted = OffsetRange(0, log, until, min(sequence + 1, now.next))
        for batch in self._changes.entries(wanted, access):
            for chunk in decoded_entries(batch.column("body")):
                for entry in chunk:
                    for record in entry.records:
                        found.setdefault(self._key(record.keys), record.old)
        return found

    @property
    def _kind(self) -> str:
        return self._keys[0][1]

    def _key(self, item: TypedItem) -> Key:
        return tuple(_content(item, name) for name, _ in self._keys)


def _is_recorded(table: dict[str, Any]) -> bool:
    """Whether changes are recorded now: the change stream may be one that was disabled."""
    return bool(table.get("StreamSpecification", {}).get("StreamEnabled"))


def _content(item: TypedItem, name: str) -> str | bytes:
    value = item[name]
    for content in (value.S, value.N, value.B):
        if content is not UNSET:
            return content
    raise Invalid(f"the key {name!r} of an item is no string, number or binary; run tailrace check")


def _has(task: ItemsTask, key: Key, kind: str) -> bool:
    """Whether the segment has the key."""
    start, before = segment_bounds(task.segment, task.segments)
    at = hash_of(kind, key[0])
    return (start is None or at >= start) and (before is None or at < before)

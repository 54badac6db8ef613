"""The tasks of a view that run in executors: from changes to deltas, and through a join.

A task reads its share of a batch, evaluates the view's expressions over each row before and after the change, and adds
up the difference (`tailrace.jobs.view_delta`); it returns one row with the packed delta, and the range of the log that
it read. For a join the changes are first grouped by join key; the task that has a key reads the other side's rows under
that key from the server, as they were before the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.jobs.view_delta import Delta, join, typed_item
from tailrace.jobs.view_plan import SourceTable, ViewPlan, plan
from tailrace.spark.connection import client, patiently
from tailrace.spark.failures import hide_traceback_each
from tailrace.spark.options import ServerAccess
from tailrace.tables.value import Item

if TYPE_CHECKING:
    from tailrace.client import Client

PARTS: Final = "side int, low long, high long, records long, body binary"
SIDED: Final = "joined string, side int, low long, high long, records long, body binary"
ITEMS: Final = "side int, sequence long, item string"
FLUSH: Final = (
    5 * limits.VIEW_ENTRIES
)  # entries of a delta in memory before a task returns them, where it may return parts
KEYS_MAX: Final = 256  # join keys in one request to the server
_ROWS: Final = 10_000  # of one batch of Arrow
_NOTHING: Final = -1

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode

_PARTS: Final = pa.schema(
    [("side", pa.int32()), ("low", pa.int64()), ("high", pa.int64()), ("records", pa.int64()), ("body", pa.binary())]
)
_SIDED: Final = pa.schema([("joined", pa.string()), *_PARTS])
_ITEMS: Final = pa.schema([("side", pa.int32()), ("sequence", pa.int64()), ("item", pa.string())])


class ViewTask(msgspec.Struct, frozen=True):
    """The view, its sources and the server; sent to executors."""

    name: str
    sql: str
    sources: tuple[SourceTable, ...]
    access: ServerAccess

    @property
    def plan(self) -> ViewPlan:
        return plan(self.sql, self.sources)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, int, str | None, str | None]]:
    """Side, range and images of each change."""
    for batch in batches:
        names = ("side", "offset", "next_offset", "old_image", "new_image")
        yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


class _Ranges:
    """The range of each log that a task read."""

    def __init__(self) -> None:
        self._seen: dict[int, list[int]] = {}

    def note(self, side: int, low: int, high: int) -> None:
        seen = self._seen.get(side)
        if seen is None:
            self._seen[side] = [low, high, 1]
            return
        seen[0], seen[1] = min(seen[0], low), max(seen[1], high)
        seen[2] += 1

    def rows(self) -> list[tuple[int, int, int, int, bytes]]:
        return [(side, low, high, records, b"") for side, (low, high, records) in self._seen.items()]


def _batch(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _part(delta: Delta) -> tuple[int, int, int, int, bytes]:
    return (_NOTHING, 0, 0, 0, delta.packed())


# -- one table


@hide_traceback_each
def changes(task: ViewTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The delta of a share of a batch, for a view of one table."""
    delta, ranges = Delta(task.plan), _Ranges()
    for side, low, high, old, new in _rows(batches):
        ranges.note(side, low, high)
        delta.change(typed_item(old), typed_item(new))
    if rows := [*ranges.rows(), *([_part(delta)] if len(delta) else [])]:
        yield _batch(_PARTS, rows)


@hide_traceback_each
def filled(task: ViewTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The delta of a share of a table's items, for a view of that table. The ranges are of sequences, to check that
    there is only one."""
    delta, ranges = Delta(task.plan), _Ranges()
    for batch in batches:
        for side, sequence, text in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            ranges.note(side, sequence, sequence)
            if text is None:
                continue
            delta.change(None, typed_item(text))
            if len(delta.groups) + len(delta.rows) >= FLUSH:
                yield _batch(_PARTS, [_part(delta)])
                delta = Delta(task.plan)
    if rows := [*ranges.rows(), *([_part(delta)] if len(delta) else [])]:
        yield _batch(_PARTS, rows)


@hide_traceback_each
def items(task: ViewTask, side: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All items of a source, at one sequence. A row without an item has the sequence of an empty table."""
    for _ in batches:
        pass
    with client(task.access).items(task.sources[side].table) as (sequence, reader):
        yield _batch(_ITEMS, [(side, sequence, None)])
        for batch in reader:
            texts = batch.column("typed").cast(pa.string())
            count = len(texts)
            yield pa.RecordBatch.from_arrays(
                [pa.array([side] * count, pa.int32()), pa.array([sequence] * count, pa.int64()), texts], schema=_ITEMS
            )


# -- two tables


@hide_traceback_each
def sided(task: ViewTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The changes of a share of a batch, by join key."""
    delta, ranges = Delta(task.plan), _Ranges()
    for side, low, high, old, new in _rows(batches):
        ranges.note(side, low, high)
        delta.side(side, typed_item(old), typed_item(new))
    yield from _sided(delta, ranges)


@hide_traceback_each
def sided_items(task: ViewTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Items of both sources, by join key."""
    delta, ranges = Delta(task.plan), _Ranges()
    for batch in batches:
        for side, sequence, text in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            ranges.note(side, sequence, sequence)
            if text is None:
                continue
            delta.side(side, None, typed_item(text))
            if len(delta.joined) >= FLUSH:
                yield from _sided(delta, _Ranges())
                delta = Delta(task.plan)
    yield from _sided(delta, ranges)


def _sided(delta: Delta, ranges: _Ranges) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = [("", *each) for each in ranges.rows()]
    for (side, text, _), parts in delta.joined.items():
        for key, row, weight in parts.values():
            rows.append((text, side, 0, 0, 0, _pack([key, row, weight])))
            if len(rows) >= _ROWS:
                yield _batch(_SIDED, rows)
                rows = []
    if rows:
        yield _batch(_SIDED, rows)


@hide_traceback_each
def joined(task: ViewTask, lookup: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The delta of changes that are sorted by join key. `lookup`: read the rows of the other side from the server."""
    plan_ = task.plan
    delta = Delta(plan_)
    ranges: list[tuple[Any, ...]] = []
    keys: set[str] = set()
    for text, side, low, high, records, body in _sided_rows(batches):
        if records:
            ranges.append((side, low, high, records, b""))
            continue
        if text not in keys and len(keys) >= KEYS_MAX:
            yield _batch(_PARTS, [_part(_joined(task, plan_, delta, lookup))])
            delta, keys = Delta(plan_), set()
        keys.add(text)
        key, row, weight = _unpack(body)
        delta.keep_joined(side, text, key, row, weight)
    if len(delta):
        ranges.append(_part(_joined(task, plan_, delta, lookup)))
    if ranges:
        yield _batch(_PARTS, ranges)


def _sided_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int, int, int, bytes]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _joined(task: ViewTask, plan_: ViewPlan, delta: Delta, lookup: bool) -> Delta:
    held = _JoinRows(task)
    if lookup:
        held.look_up(plan_, delta)
    join(plan_, delta, held.rows, held.count)
    return delta


class _JoinRows:
    """The rows of both sides on the server, under the join keys of one delta."""

    def __init__(self, task: ViewTask) -> None:
        self._task = task
        self._rows: dict[tuple[int, str], list[Item]] = {}
        self._counts: dict[tuple[int, str], int] = {}

    def look_up(self, plan_: ViewPlan, delta: Delta) -> None:
        assert plan_.join is not None
        wanted: dict[tuple[int, str], bool] = {}
        for side, text, _ in delta.joined:
            if not text:
                continue
            wanted[1 - side, text] = True
            if side == 1 and plan_.join.left:
                wanted.setdefault((1, text), False)
        requests = [(side, text, rows, b"") for (side, text), rows in wanted.items()]
        server = client(self._task.access)
        while requests:
            requests = self._round(server, requests)

    def _round(
        self, server: Client, requests: list[tuple[int, str, bool, bytes]]
    ) -> list[tuple[int, str, bool, bytes]]:
        """Send the requests; those for the rows that did not fit into the response."""
        more = []
        found = patiently(lambda: server.held(self._task.name, requests))
        for (side, text, rows, _), (held, count, after) in zip(requests, found, strict=True):
            self._rows.setdefault((side, text), []).extend(held)
            self._counts[side, text] = count
            if after is not None:
                more.append((side, text, rows, after))
        return more

    def rows(self, side: int, text: str) -> list[Item]:
        return self._rows.get((side, text), [])

    def count(self, side: int, text: str) -> int:
        return self._counts.get((side, text), 0)

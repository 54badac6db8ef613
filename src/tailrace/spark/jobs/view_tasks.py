"""What executors do for a view: from changes to deltas, and through a join.

A task reads its share of a batch, evaluates the view's expressions over each row before and after, and adds up what
that means (`tailrace.jobs.view_delta`); what it hands on is one row with the delta packed, and the range of the log
that it saw. For a join the changes are first brought together by the key that they are joined by; the task that has a
key asks the server for the other side's rows under it, as they were before the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.jobs.view_delta import Delta, join, typed_item
from tailrace.jobs.view_plan import Plan, SourceTable, plan
from tailrace.spark.connection import client, patiently
from tailrace.spark.failures import told_each
from tailrace.spark.options import Access
from tailrace.tables.value import Item

if TYPE_CHECKING:
    from tailrace.client import Client

PARTS: Final = "side int, low long, high long, records long, body binary"
SIDED: Final = "joined string, side int, low long, high long, records long, body binary"
ITEMS: Final = "side int, sequence long, item string"
FLUSH: Final = 5 * limits.VIEW_ENTRIES  # entries of a delta that a task holds before it hands them on, where it may
KEYS_MAX: Final = 256  # join keys that the server is asked about at once
_ROWS: Final = 10_000  # of one batch of Arrow
_NOTHING: Final = -1

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode

_PARTS: Final = pa.schema(
    [("side", pa.int32()), ("low", pa.int64()), ("high", pa.int64()), ("records", pa.int64()), ("body", pa.binary())]
)
_SIDED: Final = pa.schema([("joined", pa.string()), *_PARTS])
_ITEMS: Final = pa.schema([("side", pa.int32()), ("sequence", pa.int64()), ("item", pa.string())])


class Work(msgspec.Struct, frozen=True):
    """What a task has to know."""

    name: str
    sql: str
    sources: tuple[SourceTable, ...]
    access: Access

    @property
    def plan(self) -> Plan:
        return plan(self.sql, self.sources)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, int, str | None, str | None]]:
    """Side, range and images of each change."""
    for batch in batches:
        names = ("side", "offset", "next_offset", "old_image", "new_image")
        yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


class _Ranges:
    """What a task saw of each log."""

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


@told_each
def changes(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a share of a batch means for a view of one table."""
    delta, ranges = Delta(work.plan), _Ranges()
    for side, low, high, old, new in _rows(batches):
        ranges.note(side, low, high)
        delta.change(typed_item(old), typed_item(new))
    if rows := [*ranges.rows(), *([_part(delta)] if len(delta) else [])]:
        yield _batch(_PARTS, rows)


@told_each
def filled(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a share of a table's items means for a view of it. The range is that of sequences, to see that there is but
    one."""
    delta, ranges = Delta(work.plan), _Ranges()
    for batch in batches:
        for side, sequence, text in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            ranges.note(side, sequence, sequence)
            if text is None:
                continue
            delta.change(None, typed_item(text))
            if len(delta.groups) + len(delta.rows) >= FLUSH:
                yield _batch(_PARTS, [_part(delta)])
                delta = Delta(work.plan)
    if rows := [*ranges.rows(), *([_part(delta)] if len(delta) else [])]:
        yield _batch(_PARTS, rows)


@told_each
def items(work: Work, side: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All items of a source, at one sequence. A row without an item says which, for a table that is empty."""
    for _ in batches:
        pass
    with client(work.access).items(work.sources[side].table) as (sequence, reader):
        yield _batch(_ITEMS, [(side, sequence, None)])
        for batch in reader:
            texts = batch.column("typed").cast(pa.string())
            count = len(texts)
            yield pa.RecordBatch.from_arrays(
                [pa.array([side] * count, pa.int32()), pa.array([sequence] * count, pa.int64()), texts], schema=_ITEMS
            )


# -- two tables


@told_each
def sided(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The changes of a share of a batch, by what they are joined by."""
    delta, ranges = Delta(work.plan), _Ranges()
    for side, low, high, old, new in _rows(batches):
        ranges.note(side, low, high)
        delta.side(side, typed_item(old), typed_item(new))
    yield from _sided(delta, ranges)


@told_each
def sided_items(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Items of both sources, by what they are joined by."""
    delta, ranges = Delta(work.plan), _Ranges()
    for batch in batches:
        for side, sequence, text in zip(*(batch.column(at).to_pylist() for at in range(3)), strict=True):
            ranges.note(side, sequence, sequence)
            if text is None:
                continue
            delta.side(side, None, typed_item(text))
            if len(delta.joined) >= FLUSH:
                yield from _sided(delta, _Ranges())
                delta = Delta(work.plan)
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


@told_each
def joined(work: Work, asks: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What changes that come sorted by join key mean for the view. `asks`: there are rows on the server already."""
    plan_ = work.plan
    delta = Delta(plan_)
    ranges: list[tuple[Any, ...]] = []
    keys: set[str] = set()
    for text, side, low, high, records, body in _sided_rows(batches):
        if records:
            ranges.append((side, low, high, records, b""))
            continue
        if text not in keys and len(keys) >= KEYS_MAX:
            yield _batch(_PARTS, [_part(_joined(work, plan_, delta, asks))])
            delta, keys = Delta(plan_), set()
        keys.add(text)
        key, row, weight = _unpack(body)
        delta.keep_joined(side, text, key, row, weight)
    if len(delta):
        ranges.append(_part(_joined(work, plan_, delta, asks)))
    if ranges:
        yield _batch(_PARTS, ranges)


def _sided_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int, int, int, bytes]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _joined(work: Work, plan_: Plan, delta: Delta, asks: bool) -> Delta:
    held = _Held(work)
    if asks:
        held.ask(plan_, delta)
    join(plan_, delta, held.rows, held.count)
    return delta


class _Held:
    """The rows of both sides that the server has, under the join keys of one delta."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rows: dict[tuple[int, str], list[Item]] = {}
        self._counts: dict[tuple[int, str], int] = {}

    def ask(self, plan_: Plan, delta: Delta) -> None:
        assert plan_.join is not None
        wanted: dict[tuple[int, str], bool] = {}
        for side, text, _ in delta.joined:
            if not text:
                continue
            wanted[1 - side, text] = True
            if side == 1 and plan_.join.left:
                wanted.setdefault((1, text), False)
        asked = [(side, text, rows, b"") for (side, text), rows in wanted.items()]
        server = client(self._work.access)
        while asked:
            asked = self._round(server, asked)

    def _round(self, server: Client, asked: list[tuple[int, str, bool, bytes]]) -> list[tuple[int, str, bool, bytes]]:
        """What is left to ask."""
        more = []
        found = patiently(lambda: server.held(self._work.name, asked))
        for (side, text, rows, _), (held, count, after) in zip(asked, found, strict=True):
            self._rows.setdefault((side, text), []).extend(held)
            self._counts[side, text] = count
            if after is not None:
                more.append((side, text, rows, after))
        return more

    def rows(self, side: int, text: str) -> list[Item]:
        return self._rows.get((side, text), [])

    def count(self, side: int, text: str) -> int:
        return self._counts.get((side, text), 0)

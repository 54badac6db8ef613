"""What a SELECT can read, as Arrow: user tables, their changes, the messages of topics, and the system tables.

A source is read as far as the statement needs it and no further: a partition where the key is given, the rows that a
LIMIT leaves, the columns that are named. DuckDB looks at every condition again, so reading too much is slow and never
wrong. What one statement may read is bounded, by rows, bytes and time.

All tables of a statement are read in one view of the database; changes and messages never change, so they are read in
pages, up to what was there at the start.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import islice
from time import monotonic
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.command import Query
from tailrace.errors import Error, Invalid, TooLarge, Unavailable
from tailrace.sql.arrow import BIGINT, BLOB, BOOLEAN, MOMENT, TEXT, VALUE_BYTES, Columns, Known, image, rows_table
from tailrace.sql.result import Execute
from tailrace.sql.system import SYSTEM_TABLES
from tailrace.storage.engine import Reader
from tailrace.tables import number, queries
from tailrace.tables.definition import ITEMS, Definition, find
from tailrace.tables.key import RANGE_BYTES_MAX
from tailrace.tables.key_condition import KeyCondition
from tailrace.tables.streams import PAGE_RECORDS, ReadChanges, StreamInfo
from tailrace.tables.value import Item, Value, decode
from tailrace.topics.group import Start
from tailrace.topics.queries import DescribeTopic, PartitionInfo, ReadTopic
from tailrace.topics.topic import MODES, OPERATIONS, Message

READ_ROWS_MAX: Final = 1_000_000  # of one statement, in memory all at once
READ_BYTES_MAX: Final = 128 * limits.MiB  # likewise; the columns that are not wanted do not count
SELECT_S: Final = 30.0  # how long a statement may take, reading included
_ROWS_AT_ONCE: Final = 256  # read between two looks at what is left
SYSTEM: Final = "system"
TABLE: Final = "table"
CHANGES: Final = "changes"
TOPIC: Final = "topic"
FUNCTIONS: Final = (CHANGES, TOPIC)

CHANGE_COLUMNS: Final = (
    ("sequence", BIGINT), ("index", BIGINT), ("last", BOOLEAN), ("event", TEXT), ("keys", TEXT), ("old", TEXT),
    ("new", TEXT), ("at", MOMENT), ("by", TEXT),
)  # fmt: skip
MESSAGE_COLUMNS: Final = (
    ("partition_id", BIGINT), ("offset", BIGINT), ("message_id", TEXT), ("source_table", TEXT), ("op", TEXT),
    ("ts", MOMENT), ("payload_mode", TEXT), ("payload", BLOB), ("value", TEXT), ("by", TEXT),
)  # fmt: skip
_DECLARED_ALIKE: Final = {"S": ("TEXT",), "N": ("BIGINT", "DECIMAL"), "B": ("BLOB",)}  # compared by DuckDB as by us


class Comparison(msgspec.Struct, frozen=True):
    """A column (in lower case) against a constant."""

    column: str
    op: str  # =, <, <=, > or >=
    value: Any


class Wanted(msgspec.Struct, frozen=True):
    """How much of a source a statement needs. Every row that it shows meets all of `where`."""

    where: tuple[Comparison, ...] = ()
    limit: int | None = None  # rows; counts only where whoever reads can tell what meets `where`
    names: frozenset[str] | None = None  # columns, in lower case; None: all
    ensure: tuple[str, ...] = ()  # columns that a table without declared ones is to have, be it of nulls


class Reference(msgspec.Struct, frozen=True):
    """A source that a statement names."""

    kind: str  # SYSTEM, TABLE, CHANGES or TOPIC
    name: str
    wanted: Wanted = Wanted()


class Budget:
    """What is left of what one statement may read; it is over, too, once `halted` is set."""

    def __init__(
        self,
        *,
        rows: int = READ_ROWS_MAX,
        bytes_: int = READ_BYTES_MAX,
        timeout_s: float = SELECT_S,
        halted: threading.Event | None = None,
    ) -> None:
        self._rows, self._rows_max = rows, rows
        self._bytes, self._bytes_max = bytes_, bytes_
        self.timeout_s = timeout_s
        self.deadline_s = monotonic() + timeout_s
        self.halted = halted if halted is not None else threading.Event()

    @property
    def over(self) -> bool:
        """Whether the statement has to end now."""
        return self.halted.is_set() or monotonic() > self.deadline_s

    def spend(self, rows: int, size: int) -> None:
        """Note what was read; raise if it is too much, or took too long."""
        self._rows -= rows
        self._bytes -= size
        if self._rows < 0 or self._bytes < 0:
            most = f"{self._rows_max:,} rows" if self._rows < 0 else f"{self._bytes_max:,} bytes"
            raise TooLarge(
                f"the statement reads more than {most}; narrow it by the key, name the columns it needs, or use LIMIT",
                code="SELECT_TOO_LARGE",
            )
        if self.over:
            raise self.late()

    def late(self) -> Unavailable:
        """What is told when the time is over."""
        if self.halted.is_set():
            return Unavailable("the server stops, and the statement with it; try again later", code="STOPPING")
        return Unavailable(
            f"the statement took longer than {self.timeout_s:g} s and was stopped; narrow it by the key or use LIMIT",
            code="SELECT_TIMEOUT",
        )


def load(execute: Execute, references: Sequence[Reference], budget: Budget) -> list[pa.Table]:
    """The sources, in order; an error is marked with the number of the one that it is about (`reference`)."""
    tables = [each for each in references if each.kind == TABLE]
    read = iter(execute(ReadTables(tuple(tables), budget)) if tables else ())
    return [next(read) if each.kind == TABLE else _load(execute, each, budget) for each in references]


def _load(execute: Execute, reference: Reference, budget: Budget) -> pa.Table:
    try:
        if reference.kind == SYSTEM:
            return _system(execute, reference.name, budget)
        if reference.kind == CHANGES:
            return _changes(execute, reference, budget)
        return _messages(execute, reference, budget)
    except Error as error:
        raise about(error, reference) from None


def about(error: Error, reference: Reference) -> Error:
    """The error, with the source that it is about."""
    vars(error).setdefault("reference", reference)
    return error


def _system(execute: Execute, name: str, budget: Budget) -> pa.Table:
    system = SYSTEM_TABLES[name]
    rows = []
    for row in system.rows(execute):
        rows.append(row)
        budget.spend(1, sum(len(each) for each in row if isinstance(each, str)) + VALUE_BYTES * len(row))
    return rows_table(system.columns, rows)


# -- tables


class ReadTables(Query[list[pa.Table]], frozen=True):
    """Several tables, or parts of them, as they are at one moment."""

    references: tuple[Reference, ...]
    budget: Budget

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{each.name}" for each in self.references)

    def run(self, reader: Reader) -> list[pa.Table]:
        return [_items(reader, each, self.budget) for each in self.references]


def _items(reader: Reader, reference: Reference, budget: Budget) -> pa.Table:
    wanted = reference.wanted
    try:
        definition = find(reader, reference.name)
        columns = Columns(known(definition), wanted.names)
        asked, exact = _question(definition, wanted)
        plan = asked.plan(reader)
        rows = reader.scan(
            ITEMS, definition.space, start=plan.start, after=plan.after, before=plan.before,
            limit=wanted.limit if exact else None,
        )  # fmt: skip
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            budget.spend(len(some), sum([columns.add(decode(row.body), row.size) for row in some]))
    except Error as error:
        raise about(error, reference) from None
    if not definition.columns:
        columns.ensure(wanted.ensure)
    return columns.table()


def known(definition: Definition) -> list[Known]:
    """The columns that a table has without any item: those that were declared, and the key."""
    kinds = {column.name: column.kind for column in definition.columns}
    for name in definition.keys:
        kinds.setdefault(name, "")
    keys = [Known(name, kinds[name] or None, definition.kinds[name]) for name in definition.keys]
    if not definition.columns:
        return keys
    by_name = {each.name: each for each in keys}
    return [by_name.get(name) or Known(name, kind or None) for name, kind in kinds.items()]


def _question(definition: Definition, wanted: Wanted) -> tuple[queries.Query | queries.Scan, bool]:
    """What to ask of the table, and whether each answer meets all of the statement's conditions."""
    condition, used = _key_condition(definition, wanted.where)
    exact = used == len(wanted.where)
    if condition is None:
        return queries.Scan(table=definition.name), exact
    found = condition

    def bound(hashes: tuple[str, ...], ranges: tuple[str, ...], kinds: Mapping[str, str]) -> KeyCondition:
        return found

    return queries.Query(table=definition.name, condition=bound), exact


def _key_condition(definition: Definition, where: tuple[Comparison, ...]) -> tuple[KeyCondition | None, int]:
    """The partition that the comparisons name, if they do, and how many of them it stands for."""
    of_hash = [value for op, value in _on(definition, definition.hash, where) if op == "="]
    if not of_hash:
        return None, 0
    of_sort = _on(definition, definition.range, where)
    equal = [value for op, value in of_sort if op == "="]
    if equal:
        return KeyCondition(of_hash[:1], equal[:1]), 2
    low = [(op, value) for op, value in of_sort if op in (">", ">=")][:1]
    high = [(op, value) for op, value in of_sort if op in ("<", "<=")][:1]
    if low and high:
        condition = KeyCondition(of_hash[:1], [], "BETWEEN", [low[0][1], high[0][1]])
        return condition, 3 if low[0][0] == ">=" and high[0][0] == "<=" else 1
    for op, value in low + high:
        return KeyCondition(of_hash[:1], [], op, [value]), 2
    return KeyCondition(of_hash[:1]), 1


def _on(definition: Definition, name: str | None, where: tuple[Comparison, ...]) -> list[tuple[str, Value]]:
    """What is said about a key attribute that an index of ours can answer just as DuckDB would."""
    if name is None:
        return []
    kind = definition.kinds[name]
    declared = dict(definition.column_kinds or ()).get(name)
    if declared is not None and declared not in _DECLARED_ALIKE[kind]:
        return []
    found = [(each.op, _operand(kind, each.value)) for each in where if each.column == name.lower()]
    return [(op, operand) for op, operand in found if operand is not None]


def _operand(kind: str, constant: Any) -> Value | None:
    """The constant as a key, None where it cannot be one."""
    if kind == "N":
        if type(constant) is int or (isinstance(constant, Decimal) and constant.is_finite()):
            try:
                return {"N": number.canonical(str(constant))}
            except Invalid:
                return None
        return None
    if kind == "S" and isinstance(constant, str):
        return {"S": constant} if 0 < len(constant.encode("utf-8", "replace")) <= RANGE_BYTES_MAX else None
    if kind == "B" and isinstance(constant, bytes):
        return {"B": constant} if 0 < len(constant) <= RANGE_BYTES_MAX else None
    return None


# -- changes


def _changes(execute: Execute, reference: Reference, budget: Budget) -> pa.Table:
    wanted = reference.wanted
    low, high, exact = _range(wanted, "sequence")
    limit = wanted.limit if exact else None
    whole = _named(wanted, "keys", "old", "new")
    info = execute(StreamInfo(reference.name))
    rows: list[Sequence[Any]] = []
    if info.oldest is not None and info.latest is not None and low <= info.latest and limit != 0:
        last = min(info.latest, high)
        after = None if low <= info.earliest else low - 1
        more = True
        while more and (limit is None or len(rows) < limit):
            most = PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit - len(rows))
            page = execute(ReadChanges(reference.name, after, most, label=info.stream.label))
            size = 0
            for record in page.records:
                if record.sequence <= last:
                    rows.append(_change(record, whole))
                    size += (record.size if whole else 0) + VALUE_BYTES * len(CHANGE_COLUMNS)
            budget.spend(len(page.records), size)
            after, more = page.after, page.more and page.after < last
    return rows_table(CHANGE_COLUMNS, rows)


def _change(record: Any, whole: bool) -> Sequence[Any]:
    """A row; without the images, if nobody looks at them."""
    keys: Item = record.keys
    images = (image(keys), image(record.old), image(record.new)) if whole else (None, None, None)
    return (record.sequence, record.index, record.last, record.event, *images, record.at_ms, record.by)


def _named(wanted: Wanted, *columns: str) -> bool:
    """Whether a statement may look at one of these columns."""
    return wanted.names is None or not wanted.names.isdisjoint(columns)


def _range(wanted: Wanted, column: str) -> tuple[int, int, bool]:
    """The first and the last that is wanted of whole numbers, and whether that says all that is wanted."""
    low, high, used = 0, limits.POSITION_MAX, 0
    for each in wanted.where:
        if each.column == column and type(each.value) is int:
            used += 1
            if each.op in ("=", ">=", ">"):
                low = max(low, each.value + (each.op == ">"))
            if each.op in ("=", "<=", "<"):
                high = min(high, each.value - (each.op == "<"))
    return low, high, used == len(wanted.where)


# -- messages


def _messages(execute: Execute, reference: Reference, budget: Budget) -> pa.Table:
    wanted = reference.wanted
    low, high, exact = _range(wanted, "offset")
    first, last, _ = _range(wanted, "partition_id")
    exact = all(each.column in ("offset", "partition_id") and type(each.value) is int for each in wanted.where)
    limit = wanted.limit if exact else None
    whole = _named(wanted, "payload", "value")
    rows: list[Sequence[Any]] = []
    for info in execute(DescribeTopic(reference.name)).partitions:
        if first <= info.partition <= last and (limit is None or len(rows) < limit):
            left = None if limit is None else limit - len(rows)
            bounds = max(low, info.start), min(high + 1, info.next)
            rows += _partition(execute, reference.name, info, bounds, left, budget, whole)
    return rows_table(MESSAGE_COLUMNS, rows)


def _partition(
    execute: Execute,
    name: str,
    info: PartitionInfo,
    bounds: tuple[int, int],
    left: int | None,
    budget: Budget,
    whole: bool,
) -> list[Sequence[Any]]:
    """Messages of a partition with offsets in [first, before), up to `left` of them; with payloads, if `whole`."""
    first, before = bounds
    rows: list[Sequence[Any]] = []
    while first < before and (left is None or len(rows) < left):
        most = min(limits.CONSUME_MESSAGES_MAX, before - first, before - first if left is None else left - len(rows))
        page = execute(ReadTopic(name, info.partition, Start("offset", first), most))
        if page.log != info.log or not page.messages:
            break  # dropped and made anew, or overtaken by retention, since we asked how far it goes
        found = [message for message in page.messages if message.offset < before]
        rows += [_message(message, whole) for message in found]
        size = VALUE_BYTES * len(MESSAGE_COLUMNS) * len(found)
        if whole:
            size += sum(2 * len(message.envelope.payload) for message in found)
        budget.spend(len(found), size)
        first = page.next_offset
    return rows


def _message(message: Message, whole: bool) -> Sequence[Any]:
    envelope = message.envelope
    payload, text = (envelope.payload, _text(envelope.payload)) if whole else (None, None)
    return (
        message.partition, message.offset, message.id, envelope.source, OPERATIONS[envelope.operation], message.at_ms,
        MODES[envelope.mode], payload, text, envelope.by,
    )  # fmt: skip


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None

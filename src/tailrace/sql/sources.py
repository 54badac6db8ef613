"""What a SELECT can read, as Arrow: user tables, their changes, the messages of topics, and the system tables.

A source is read as far as the statement needs it and no further: a partition where the key is given, the rows that a
LIMIT leaves, the columns that are named. DuckDB looks at every condition again, so reading too much is slow and never
wrong. What one statement may read is bounded, by rows, bytes and time.

All tables of a statement are read as they are at one moment: in one transaction if they are small, else in pages
(`tables/export.py`), for a transaction that lasts keeps SQLite from reusing its write-ahead log. Changes and messages
never change, so they are read in pages, up to what was there at the start.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from time import monotonic
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Query
from tailrace.errors import Error, Gone, Invalid, TooLarge, Unavailable
from tailrace.sql.arrow import BIGINT, BLOB, BOOLEAN, MOMENT, TEXT, Columns, Known, Rows, image
from tailrace.sql.result import Execute
from tailrace.sql.system import SYSTEM_TABLES
from tailrace.storage.engine import Reader
from tailrace.tables import number, queries
from tailrace.tables.definition import ITEMS, Definition, find
from tailrace.tables.export import AFTER_ALL, Export, Exports, ExportStart
from tailrace.tables.key import RANGE_BYTES_MAX
from tailrace.tables.key_condition import KeyCondition
from tailrace.tables.streams import PAGE_RECORDS, ReadChanges, StreamInfo
from tailrace.tables.value import Item, Value, decode
from tailrace.topics.group import Start
from tailrace.topics.queries import DescribeTopic, PartitionInfo, ReadTopic
from tailrace.topics.topic import MODES, OPERATIONS, Message

READ_ROWS_MAX: Final = 1_000_000  # of one statement, in memory all at once
READ_BYTES_MAX: Final = 128 * limits.MiB  # likewise, as Arrow; the columns that are not wanted do not count
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

    def take(self, size: int) -> None:
        """Note memory that is taken."""
        self.spend(0, size)

    def late(self) -> Unavailable:
        """What is told when the time is over."""
        if self.halted.is_set():
            return Unavailable("the statement was stopped: the server stops, or its client has left", code="STOPPING")
        return Unavailable(
            f"the statement took longer than {self.timeout_s:g} s and was stopped; narrow it by the key or use LIMIT",
            code="SELECT_TIMEOUT",
        )


def load(execute: Execute, references: Sequence[Reference], budget: Budget) -> list[pa.Table]:
    """The sources, in order; an error is marked with the number of the one that it is about (`reference`)."""
    tables = [each for each in references if each.kind == TABLE]
    read = iter(_tables(execute, tables, budget) if tables else ())
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
    rows = Rows(system.columns, budget.take)
    for row in system.rows(execute):
        rows.add(row)
        budget.spend(1, 0)
    return rows.table()


# -- tables


class Part(ExportStart, frozen=True, kw_only=True):
    """What is read of a table: a range of keys, and as many of its items as are needed."""

    limit: int | None


class Moment(msgspec.Struct, frozen=True):
    """Parts of tables at one moment. `bodies` are the items of each; None if they are too many for one transaction, and
    `exports` can read them."""

    parts: list[Part]
    bodies: list[list[bytes]] | None
    exports: Exports


class PlanTables(Query[list[Part]], frozen=True):
    """What to read of tables."""

    permission = Permission.SYSTEM  # `ReadTables` was asked before

    references: tuple[Reference, ...]

    def run(self, reader: Reader) -> list[Part]:
        return [_part(reader, each) for each in self.references]


class ReadTables(Query[Moment], frozen=True):
    """Several tables, or parts of them, as they are at one moment, unless they are large."""

    references: tuple[Reference, ...]

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{each.name}" for each in self.references)

    def run(self, reader: Reader) -> Moment:
        parts = [_part(reader, each) for each in self.references]
        return Moment(parts, _few(reader, parts), reader.exports)


def _part(reader: Reader, reference: Reference) -> Part:
    wanted = reference.wanted
    try:
        definition = find(reader, reference.name)
        asked, exact = _question(definition, wanted)
        plan = asked.plan(reader)
    except Error as error:
        raise about(error, reference) from None
    start = plan.start or b"" if plan.after is None else plan.after + b"\0"
    before = AFTER_ALL if plan.before is None else plan.before
    return Part(definition, 0, start, before, limit=wanted.limit if exact else None)


def _few(reader: Reader, parts: list[Part]) -> list[list[bytes]] | None:
    """The items of each; None if they are more than one transaction should read."""
    rows, size = limits.SELECT_SLICE_ROWS, limits.SELECT_SLICE_BYTES
    found: list[list[bytes]] = []
    for part in parts:
        bodies: list[bytes] = []
        most = rows + 1 if part.limit is None else min(part.limit, rows + 1)
        for row in reader.scan(ITEMS, part.definition.space, start=part.start, before=part.before, limit=most):
            bodies.append(row.body)
            rows -= 1
            size -= len(row.body)
            if rows < 0 or size < 0:
                return None
        found.append(bodies)
    return found


class _Taking:
    """Items of a part on their way into Arrow."""

    def __init__(self, reference: Reference, part: Part, budget: Budget) -> None:
        self._reference = reference
        self._part = part
        self._budget = budget
        self._columns = Columns(known(part.definition), budget.take, reference.wanted.names)

    @property
    def full(self) -> bool:
        return self._part.limit is not None and self._columns.count >= self._part.limit

    def add(self, item: Item, size: int) -> None:
        try:
            self._columns.add(item, size)
            if self._columns.count % _ROWS_AT_ONCE == 0:
                self._budget.spend(_ROWS_AT_ONCE, 0)
        except Error as error:
            raise about(error, self._reference) from None

    def table(self) -> pa.Table:
        try:
            self._budget.spend(self._columns.count % _ROWS_AT_ONCE, 0)
            if not self._part.definition.columns:
                self._columns.ensure(self._reference.wanted.ensure)
            return self._columns.table()
        except Error as error:
            raise about(error, self._reference) from None


def _tables(execute: Execute, references: Sequence[Reference], budget: Budget) -> list[pa.Table]:
    moment = execute(ReadTables(tuple(references)))
    if moment.bodies is None:
        return _pages(moment, references, budget)
    takings = [_Taking(*each, budget) for each in zip(references, moment.parts, strict=True)]
    for taking, bodies in zip(takings, moment.bodies, strict=True):
        for body in bodies:
            taking.add(decode(body), len(body))
    return [taking.table() for taking in takings]


def _pages(moment: Moment, references: Sequence[Reference], budget: Budget) -> list[pa.Table]:
    """Tables that are large, a page at a time."""
    ranges = {(part.definition.space, part.start, part.before) for part in moment.parts}
    begun = moment.exports.begin_together(PlanTables(tuple(references)), len(ranges))
    readers: dict[Export, list[int]] = {}
    for at, (_, export) in enumerate(begun):
        readers.setdefault(export, []).append(at)
    try:
        takings = [_Taking(reference, part, budget) for reference, (part, _) in zip(references, begun, strict=True)]
        for export, places in readers.items():
            try:
                _page_by_page(moment.exports, export, [takings[at] for at in places], budget)
            except Gone:
                dropped = Gone(f"table {export.table!r} was dropped while the statement read it")
                raise about(dropped, references[places[0]]) from None
            except Error as error:
                raise about(error, references[places[0]]) from None
    finally:
        moment.exports.end(*readers)
    return [taking.table() for taking in takings]


def _page_by_page(exports: Exports, export: Export, takings: list[_Taking], budget: Budget) -> None:
    while not all(taking.full for taking in takings):
        page = exports.read(export)
        if page is None:
            return
        budget.spend(0, 0)
        start = 0
        for size in page.sizes:
            item = decode(page.body[start : start + size])
            start += size
            for taking in takings:
                if not taking.full:
                    taking.add(item, size)


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
    rows = Rows(CHANGE_COLUMNS, budget.take)
    if info.oldest is not None and info.latest is not None and low <= info.latest and limit != 0:
        last = min(info.latest, high)
        after = None if low <= info.earliest else low - 1
        more = True
        while more and (limit is None or rows.count < limit):
            most = PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit - rows.count)
            page = execute(ReadChanges(reference.name, after, most, label=info.stream.label))
            for record in page.records:
                if record.sequence <= last:
                    rows.add(_change(record, whole))
            budget.spend(len(page.records), 0)
            after, more = page.after, page.more and page.after < last
    return rows.table()


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
    rows = Rows(MESSAGE_COLUMNS, budget.take)
    for info in execute(DescribeTopic(reference.name)).partitions:
        if first <= info.partition <= last and (limit is None or rows.count < limit):
            bounds = max(low, info.start), min(high + 1, info.next)
            _partition(execute, reference.name, info, bounds, limit, budget, whole, rows)
    return rows.table()


def _partition(
    execute: Execute,
    name: str,
    info: PartitionInfo,
    bounds: tuple[int, int],
    limit: int | None,
    budget: Budget,
    whole: bool,
    rows: Rows,
) -> None:
    """Add messages of a partition with offsets in [first, before) until there are `limit`; with payloads, if
    `whole`."""
    first, before = bounds
    while first < before and (limit is None or rows.count < limit):
        most = min(limits.CONSUME_MESSAGES_MAX, before - first, before - first if limit is None else limit - rows.count)
        page = execute(ReadTopic(name, info.partition, Start("offset", first), most))
        if page.log != info.log or not page.messages:
            break  # dropped and made anew, or overtaken by retention, since we asked how far it goes
        found = [message for message in page.messages if message.offset < before]
        for message in found:
            rows.add(_message(message, whole))
        budget.spend(len(found), 0)
        first = page.next_offset


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

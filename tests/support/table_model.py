"""What tables, their indexes and their change streams must do, on dicts.

Values are plain: text, `Decimal`, bytes, None, frozenset (of text) and tuple; two of them are equal exactly if the
items are. Nothing here comes from the database: the model says which sequence a transaction gets and what its records
hold. Only what happens in no order that anybody promises is adopted (`expire`), once it was found to be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

Plain = dict[str, Any]
Key = tuple[Any, ...]
FIVE_YEARS_S = 5 * 365 * 24 * 3600
TOKEN_MS = 600_000


def wire(value: Any) -> dict[str, Any]:
    """A plain value as requests have it."""
    match value:
        case None:
            return {"NULL": True}
        case str():
            return {"S": value}
        case Decimal():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case frozenset():
            return {"SS": sorted(value)}
        case _:
            return {"L": [wire(each) for each in value]}


def wire_item(item: Plain) -> dict[str, Any]:
    return {name: wire(value) for name, value in item.items()}


def plain(value: dict[str, Any]) -> Any:
    """A stored value as a plain one."""
    ((kind, held),) = value.items()
    match kind:
        case "NULL":
            return None
        case "N":
            return Decimal(held)
        case "SS":
            assert len(set(held)) == len(held)
            return frozenset(held)
        case "L":
            return tuple(plain(each) for each in held)
        case _:
            return held


def plain_item(item: dict[str, Any] | None) -> Plain | None:
    return None if item is None else {name: plain(value) for name, value in item.items()}


# -- expressions: the text, and what it means


def _same_order(left: Any, right: Any) -> bool:
    return type(left) is type(right) and isinstance(left, str | Decimal | bytes)


CONDITIONS: dict[str, Callable[[Plain, Any], bool]] = {  # the item, empty if there is none, and the operand
    "attribute_exists(pk)": lambda item, _: "pk" in item,
    "attribute_not_exists(pk)": lambda item, _: "pk" not in item,
    "v = :c": lambda item, c: "v" in item and item["v"] == c,
    "NOT v = :c": lambda item, c: not ("v" in item and item["v"] == c),
    "v < :c": lambda item, c: "v" in item and _same_order(item["v"], c) and item["v"] < c,
    "attribute_exists(g) AND NOT attribute_exists(n)": lambda item, _: "g" in item and "n" not in item,
    "v IN (:c) OR attribute_exists(s)": lambda item, c: ("v" in item and item["v"] == c) or "s" in item,
}


class Refused(Exception):
    """The request is wrong for the item as it is."""


def _set(name: str) -> Callable[[Plain, Any], Plain]:
    return lambda item, operand: {**item, name: operand}


def _add(item: Plain, operand: Any) -> Plain:
    return {**item, "n": item.get("n", Decimal(0)) + operand}


def _plus(item: Plain, operand: Any) -> Plain:
    if "n" not in item:
        raise Refused
    return {**item, "n": item["n"] + operand}


def _join(item: Plain, operand: Any) -> Plain:
    return {**item, "s": item.get("s", frozenset()) | operand}


def _leave(item: Plain, operand: Any) -> Plain:
    left = item.get("s", frozenset()) - operand
    rest = {name: value for name, value in item.items() if name != "s"}
    return {**rest, "s": left} if left else rest


def _remove(item: Plain, _: Any) -> Plain:
    return {name: value for name, value in item.items() if name not in ("g", "l")}


UPDATES: dict[str, tuple[Callable[[Plain, Any], Plain], bool]] = {  # and whether it makes an item that is not there
    "SET v = :u": (_set("v"), True),
    "SET v = if_not_exists(v, :u)": (lambda item, u: {"v": u, **item}, True),
    "SET g = :u": (_set("g"), True),
    "SET h = :u": (_set("h"), True),
    "SET l = :u": (_set("l"), True),
    "SET t = :u": (_set("t"), True),
    "ADD n :u": (_add, True),
    "SET n = n + :u": (_plus, True),
    "ADD s :u": (_join, True),
    "DELETE s :u": (_leave, False),
    "REMOVE g, l": (_remove, False),
}


@dataclass(frozen=True)
class Action:
    """One action on one item."""

    kind: str  # put, delete, update or check
    table: str
    key: Key
    item: Plain | None = None  # of a put
    update: str | None = None
    operand: Any = None  # of the update
    condition: str | None = None
    compared: Any = None  # operand of the condition


# -- tables


@dataclass
class Index:
    name: str
    hash: str
    range: str | None
    projection: tuple[str, ...] | None = None  # attributes beside the keys; None: all
    local: bool = False
    active: bool = True


@dataclass(frozen=True)
class Record:
    sequence: int
    index: int
    last: bool
    event: str
    keys: tuple[tuple[str, Any], ...]
    old: Plain | None
    new: Plain | None
    at_ms: int
    by: str


@dataclass
class Cursor:
    position: int
    hold: bool  # as much as it wants, or nothing
    lost: int = 0


@dataclass
class Stream:
    label: str
    view: str
    first: int  # the first sequence that may be in it
    max_age_s: int | None
    max_count: int | None
    base: dict[Key, Plain]  # the table as it was before the first record that is kept
    start: int = 0  # position: the first sequence that is kept
    records: list[Record] = field(default_factory=list)
    total: int = 0  # records there ever were
    closed_ms: int | None = None
    cursors: dict[str, Cursor] = field(default_factory=dict)

    @property
    def next(self) -> int:
        return self.records[-1].sequence + 1 if self.records else max(self.start, self.first)

    def aligned(self, position: int) -> int:
        """Where the transaction begins that covers a position: behind the one before it."""
        if position <= self.start:
            return self.start
        return max([self.start, *(one.sequence + 1 for one in self.records if one.sequence < position)])

    def trim(self, start: int) -> None:
        """Let go of all records below a position."""
        if start <= self.start:
            return
        gone = [record for record in self.records if record.sequence < start]
        for cursor in self.cursors.values():
            cursor.lost += sum(record.sequence >= cursor.position for record in gone)
        self.base = replayed(self.base, gone)
        self.records = self.records[len(gone) :]
        self.start = start

    def retain(self, now_ms: int) -> None:
        """What the sweep does."""
        start = self.start
        for record in self.records:
            if record.index:
                continue
            before = self.total - sum(one.sequence >= record.sequence for one in self.records)
            newest = record.sequence == self.records[-1].sequence
            young = self.max_age_s is None or record.at_ms >= now_ms - self.max_age_s * 1000
            few = self.max_count is None or newest or before >= self.total - self.max_count
            if young and few:
                break
            start = record.sequence + 1
        for cursor in self.cursors.values():
            if cursor.hold and self.start <= cursor.position < start:
                start = self.aligned(cursor.position)
        self.trim(start)


def replayed(items: dict[Key, Plain], records: list[Record]) -> dict[Key, Plain]:
    """Items after the changes, by the model's own records, which have both images."""
    items = dict(items)
    for record in records:
        key = tuple(value for _, value in record.keys)
        if record.new is None:
            del items[key]
        else:
            items[key] = record.new
    return items


@dataclass
class Table:
    name: str
    keys: tuple[str, ...]
    kinds: dict[str, type]  # of attributes in an index's key
    items: dict[Key, Plain] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    ttl: str | None = None
    streaming: bool = False

    @property
    def stream(self) -> Stream | None:
        return self.streams[-1] if self.streaming else None

    def key_of(self, item: Plain) -> Key:
        return tuple(item[name] for name in self.keys)

    def fits(self, index: Index, item: Plain) -> bool | None:
        """Whether the item is in the index; None: it has a value there that no index takes."""
        there = True
        for name in (index.hash, index.range):
            if name is None or name in self.keys:
                continue
            if name not in item:
                there = False
            elif type(item[name]) is not self.kinds[name] or item[name] in ("", b""):
                return None
        return there

    def entries(self, index: Index) -> list[Plain]:
        return [item for item in self.items.values() if self.fits(index, item)]

    def shown(self, index: Index, item: Plain) -> Plain:
        if index.projection is None:
            return item
        named = {*self.keys, index.hash, index.range, *index.projection}
        return {name: value for name, value in item.items() if name in named}

    def expired(self, now_ms: int) -> dict[Key, Plain]:
        """What the TTL service removes now."""
        now_s = now_ms // 1000
        if self.ttl is None:
            return {}
        return {
            key: item
            for key, item in self.items.items()
            if isinstance(item.get(self.ttl), Decimal) and now_s - FIVE_YEARS_S <= item[self.ttl] <= now_s
        }


# -- the database


class Model:
    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.orphans: dict[str, list[Stream]] = {}  # streams of tables that were deleted
        self.sequence = 0
        self.tokens: dict[str, tuple[Any, int]] = {}

    def judge(self, actions: list[Action]) -> tuple[list[str], list[Plain | None]]:
        """Why each action fails ("" if not), and the item that it would leave."""
        reasons, results = [], []
        for action in actions:
            table = self.tables[action.table]
            old = table.items.get(action.key)
            new, reason = old, ""
            if self.doomed(action):
                reason = "refused"
            elif action.condition is not None and not CONDITIONS[action.condition](old or {}, action.compared):
                reason = "condition"
            elif action.kind == "put":
                new = action.item
            elif action.kind == "delete":
                new = None
            elif action.kind == "update":
                assert action.update is not None
                change, creates = UPDATES[action.update]
                if old is not None or creates:
                    try:
                        before = dict(zip(table.keys, action.key, strict=True)) if old is None else old
                        new = change(before, action.operand)
                    except Refused:
                        reason = "refused"
            reasons.append(reason)
            results.append(new)
        return reasons, results

    def doomed(self, action: Action) -> bool:
        """Whether an update would give an index's key a value of the wrong type, whatever the item is like."""
        table = self.tables[action.table]
        if action.update is None or not action.update.endswith("= :u"):
            return False
        name = action.update.split()[1]
        indexed = {part for index in table.indexes.values() for part in (index.hash, index.range)}
        return name in indexed and type(action.operand) is not table.kinds[name]

    def misfits(self, actions: list[Action], results: list[Plain | None]) -> bool:
        """Whether one of the new items cannot be in an index that it would have to be in."""
        for action, new in zip(actions, results, strict=True):
            table = self.tables[action.table]
            if new is None or new == table.items.get(action.key):
                continue
            if any(table.fits(index, new) is None for index in table.indexes.values()):
                return True
        return False

    def write(self, actions: list[Action], results: list[Plain | None], now_ms: int, by: str) -> int | None:
        """One transaction; the sequence of its records, None if nothing was recorded."""
        changed: dict[str, list[tuple[Key, Plain | None, Plain | None]]] = {}
        for action, new in zip(actions, results, strict=True):
            table = self.tables[action.table]
            old = table.items.get(action.key)
            if old == new:
                continue
            if new is None:
                del table.items[action.key]
            else:
                table.items[action.key] = new
            if table.stream is not None:
                changed.setdefault(action.table, []).append((action.key, old, new))
        if not changed:
            return None
        self.sequence += 1
        for name, changes in changed.items():
            table = self.tables[name]
            assert table.stream is not None
            for number, (key, old, new) in enumerate(changes):
                event = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
                keys = tuple(zip(table.keys, key, strict=True))
                last = number == len(changes) - 1
                record = Record(self.sequence, number, last, event, keys, old, new, now_ms, by)
                table.stream.records.append(record)
                table.stream.total += 1
        return self.sequence

    def expire(self, name: str, key: Key, now_ms: int, sequence: int | None) -> None:
        """The TTL service removed an item, under this sequence."""
        if sequence is not None:
            assert sequence > self.sequence
            self.sequence = sequence - 1
        assert self.write([Action("delete", name, key)], [None], now_ms, "ttl") == sequence


# -- comparing


def twice(actions: list[Action]) -> bool:
    places = [(action.table, action.key) for action in actions]
    return len(set(places)) < len(places)


def assert_reasons(actual: list[str], reasons: list[str], misfits: list[bool]) -> None:
    """All failed conditions are reported; an invalid operation is reported alone."""
    if "ValidationError" in actual:
        assert Counter(actual) == {"ValidationError": 1, "None": len(actual) - 1} or len(actual) == 1
        at = actual.index("ValidationError")
        assert reasons[at] == "refused" or misfits[at]
    else:
        assert actual == [{"": "None", "condition": "ConditionalCheckFailed"}[reason] for reason in reasons]


def counted(items: list[Plain]) -> Counter[str]:
    return Counter(repr(sorted((name, shape(part)) for name, part in item.items())) for item in items)


def shape(part: Any) -> str:
    """A value as text, the same for equal ones."""
    if isinstance(part, Decimal):
        return f"N{part.normalize()}"
    return f"SS{sorted(part)}" if isinstance(part, frozenset) else repr(part)


def as_stored(part: Any) -> Any:
    return part.encode() if isinstance(part, str) else part


def meets(item: Plain, name: str | None, op: str | None, operands: list[Any]) -> bool:
    if name is None or not operands:
        return True
    part, low = as_stored(item[name]), as_stored(operands[0])
    match op:
        case "=":
            return bool(part == low)
        case "<":
            return bool(part < low)
        case "<=":
            return bool(part <= low)
        case ">":
            return bool(part > low)
        case ">=":
            return bool(part >= low)
        case _:
            return bool(low <= part <= as_stored(operands[1]))


def from_python(item: dict[str, Any]) -> Plain:
    """An item of the embedded API as the model has it."""

    def one(part: Any) -> Any:
        match part:
            case int():
                return Decimal(part)
            case set():
                return frozenset(part)
            case list():
                return tuple(one(each) for each in part)
            case _:
                return part

    return {name: one(part) for name, part in item.items()}


def expected_record(record: Any) -> Record:
    """A record of the database as the model has them."""
    keys = plain_item(record.keys)
    assert keys is not None
    return Record(
        record.sequence, record.index, record.last, record.event, tuple(keys.items()), plain_item(record.old),
        plain_item(record.new), record.at_ms, record.by,
    )  # fmt: skip


def seen(records: list[Record], view: str) -> list[Record]:
    """Records as a view shows them."""
    return [
        Record(
            one.sequence, one.index, one.last, one.event, one.keys, one.old if "OLD" in view else None,
            one.new if "NEW" in view else None, one.at_ms, one.by,
        )
        for one in records
    ]  # fmt: skip

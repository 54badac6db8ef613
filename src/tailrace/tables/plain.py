"""The plain values of the Python API of tables, and small structs around them.

Strings, ints, `Decimal`, bytes, bools, None, sets, lists and dicts go in; the same come out, numbers as int where they
are whole and as `Decimal` elsewhere. A key is a dict, or its value alone; of a table with a sort key, a pair of values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any, TypeAlias

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import change_info, cursors, value
from tailrace.tables.change import ChangeRecord
from tailrace.tables.definition import Definition
from tailrace.tables.expression import ItemCondition, Paths, Placeholders, condition, projection
from tailrace.tables.value import Item

Plain: TypeAlias = dict[str, Any]
KeySpec: TypeAlias = str | tuple[str, str]  # a name, or a name and its type: S, N or B
Age: TypeAlias = timedelta | float | None  # a number is in seconds; None: any age


# -- parameters


class Index(msgspec.Struct, frozen=True):
    """A secondary index of a table.

    `projection` is "ALL", "KEYS_ONLY" or a list of the attributes that queries of the index return beside the keys. A
    `local` index has the table's partition key and a sort key of its own, and is created with the table."""

    name: str
    partition_key: KeySpec | list[KeySpec] | None = None
    sort_key: KeySpec | list[KeySpec] | None = None
    projection: str | Sequence[str] = "ALL"
    local: bool = False


class Put(msgspec.Struct, frozen=True):
    """Put an item, as part of a batch or transaction."""

    table: str
    item: Mapping[str, Any]
    condition: str | None = None
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None


class Delete(msgspec.Struct, frozen=True):
    """Delete the item with this key, as part of a batch or transaction."""

    table: str
    key: Any
    condition: str | None = None
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None


class Update(msgspec.Struct, frozen=True):
    """Update the item with this key, as part of a transaction."""

    table: str
    key: Any
    expression: str
    condition: str | None = None
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None


class Check(msgspec.Struct, frozen=True):
    """Fail a transaction unless the condition holds for the item with this key."""

    table: str
    key: Any
    condition: str
    names: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None


class Get(msgspec.Struct, frozen=True):
    """Get the item with this key, as part of a transaction."""

    table: str
    key: Any
    projection: str | None = None
    names: Mapping[str, str] | None = None


class Sort(msgspec.Struct, frozen=True):
    """A condition on a sort key: `eq(5)`, `between("a", "b")`."""

    op: str
    operands: tuple[Any, ...]


def eq(wanted: Any) -> Sort:
    """The sort key is equal. A bare value means the same."""
    return Sort("=", (wanted,))


def lt(bound: Any) -> Sort:
    """The sort key is less."""
    return Sort("<", (bound,))


def le(bound: Any) -> Sort:
    """The sort key is less or equal."""
    return Sort("<=", (bound,))


def gt(bound: Any) -> Sort:
    """The sort key is greater."""
    return Sort(">", (bound,))


def ge(bound: Any) -> Sort:
    """The sort key is greater or equal."""
    return Sort(">=", (bound,))


def between(low: Any, high: Any) -> Sort:
    """The sort key is between these bounds, inclusive."""
    return Sort("BETWEEN", (low, high))


def begins_with(prefix: str | bytes) -> Sort:
    """The sort key, a string or binary, begins with this prefix."""
    return Sort("begins_with", (prefix,))


# -- results


class Page(msgspec.Struct, frozen=True):
    """Some items; `cursor` is where the next page continues, None on the last one."""

    items: list[Plain]
    cursor: Plain | None
    scanned: int  # the number of items examined


class Change(msgspec.Struct, frozen=True):
    """One change of one item, identified by `sequence` and `index`. Changes of one transaction share the sequence."""

    sequence: int
    index: int
    last: bool  # of its transaction
    event: str  # INSERT, MODIFY or REMOVE
    table: str
    keys: Plain
    old: Plain | None  # None if there is none, or the stream's view does not include it
    new: Plain | None
    at: datetime
    by: str  # the principal; "ttl": the item expired


class StreamInfo(msgspec.Struct, frozen=True):
    """A table's current or last change stream."""

    enabled: bool
    view: str | None = None
    oldest: int | None = None  # the sequence of the oldest record; None if there is none
    latest: int | None = None
    count: int = 0
    label: str | None = None
    max_age_s: int | None = None
    max_count: int | None = None
    bytes: int = 0  # the approximate size of the records


class Cursor(msgspec.Struct, frozen=True):
    """A consumer's named position in a change stream, and its lag."""

    name: str
    sequence: int  # the last sequence that it has seen
    at: datetime  # when it was saved
    hold_bytes: int  # how much retention keeps for it beyond the stream's bounds
    lost: int  # records trimmed before it reached them
    cut_off: bool  # its next record was trimmed: reading after `sequence` raises Trimmed
    lag_records: int
    lag_bytes: int  # about
    lag_s: float  # the age of the oldest record that it has not seen


class IndexInfo(msgspec.Struct, frozen=True):
    """An index of a table. While it is CREATING it cannot be read."""

    name: str
    partition_key: tuple[str, ...]
    sort_key: tuple[str, ...]
    projection: str | list[str]
    local: bool
    status: str
    items: int
    bytes: int


class TableInfo(msgspec.Struct, frozen=True):
    """A table, its keys, indexes and size."""

    name: str
    partition_key: tuple[str, str]  # name and type
    sort_key: tuple[str, str] | None
    items: int
    bytes: int
    indexes: list[IndexInfo]
    ttl: str | None
    stream: str | None  # the view of its change stream, if one is enabled
    created: datetime
    status: str


# -- plain and typed


class PlaceholderBindings:
    """The names and values for the placeholders of an operation's expressions. `#` and `:` may be left out in the
    dicts, not in the expressions."""

    def __init__(self, names: Mapping[str, str] | None, values: Mapping[str, Any] | None) -> None:
        self._given = bool(names or values)
        self.values: Item = (
            {} if not values else {_marked(":", name): value.from_plain(values[name]) for name in values}
        )
        self.placeholders = Placeholders(
            self.marked_names(names) or None,
            self.values or None,
        )

    @staticmethod
    def marked_names(names: Mapping[str, str] | None) -> dict[str, str]:
        return {} if not names else {_marked("#", name): held for name, held in names.items()}

    def condition(self, text: str | None, parameter: str = "ConditionExpression") -> ItemCondition | None:
        return None if text is None else condition(text, self.placeholders, parameter)

    def projection(self, text: str | None) -> Paths | None:
        return None if text is None else projection(text, self.placeholders)

    def request_bytes(self, key: Item) -> int:
        """The approximate bytes of the values and a key."""
        return value.item_size(key) + (value.item_size(self.values) if self.values else 0)

    def done(self) -> None:
        """Raise if a name or value was not used by the expressions."""
        if self._given:
            self.placeholders.check_used()


def _marked(mark: str, name: str) -> str:
    return name if name.startswith(mark) else mark + name


def key_item(definition: Definition, key: Any) -> Item:
    """A key as an item with only the key's attributes."""
    names = definition.keys
    if isinstance(key, tuple):
        parts = key
    elif not isinstance(key, str) and isinstance(key, Mapping):
        return value.item_from_plain(key)[0]
    else:
        parts = (key,)
    if len(parts) != len(names):
        raise Invalid(f"a key of table {definition.name!r} is {spelt(names)}, which {key!r} is not")
    return {name: value.from_plain(part) for name, part in zip(names, parts, strict=True)}


def spelt(names: tuple[str, ...]) -> str:
    """The names of a key as an error shows them."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def plain(item: Item | None) -> Plain | None:
    """An item as a plain dict."""
    return None if item is None else value.item_to_plain(item)


def moment(at_ms: int) -> datetime:
    """A time as Python has it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def change(table: str, record: ChangeRecord) -> Change:
    """A change record with plain values."""
    return Change(
        record.sequence,
        record.index,
        record.last,
        record.event,
        table,
        value.item_to_plain(record.keys),
        plain(record.old),
        plain(record.new),
        moment(record.at_ms),
        record.by,
    )


def stream_info(info: change_info.ChangeStreamDescription) -> StreamInfo:
    """A change stream as programs see it."""
    stream = info.stream
    return StreamInfo(
        info.enabled,
        info.view,
        info.oldest,
        info.latest,
        info.count,
        stream.label,
        stream.max_age_s,
        stream.max_count,
        info.bytes,
    )


def cursor(saved: cursors.CursorStatus) -> Cursor:
    """A cursor as programs see it."""
    return Cursor(
        saved.name,
        saved.after,
        moment(saved.at_ms),
        saved.hold_bytes,
        saved.lost,
        saved.cut_off,
        saved.lag.records,
        saved.lag.bytes,
        saved.lag.age_ms / 1000,
    )


def retention(max_age: Age | EllipsisType, max_count: int | EllipsisType | None) -> dict[str, int | None]:
    """The bounds as fields of commands. Ages are whole seconds, rounded up."""
    bounds: dict[str, int | None] = {}
    if isinstance(max_age, timedelta):
        max_age = max_age.total_seconds()
    if isinstance(max_age, float) and math.isfinite(max_age):
        max_age = math.ceil(max_age)
    if max_age is not ...:
        bounds["max_age_s"] = max_age  # type: ignore[assignment]  # whatever else it is, the command refuses it
    if max_count is not ...:
        bounds["max_count"] = max_count
    return bounds

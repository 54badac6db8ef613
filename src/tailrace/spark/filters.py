"""Filters that Spark pushes down: which ranges of a log have to be read.

Filters on offsets, sequences and partitions are applied exactly. Times are narrowed to the millisecond, and Spark
filters again. All other filters are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_KNOWN: Final = {
    "table": ["offset", "timestamp", "sequence"],
    "topic": ["offset", "timestamp", "partition"],
    "stream": ["offset", "timestamp"],
}
_NEVER_NULL: Final = ("offset", "next_offset", "timestamp", "sequence", "partition", "index", "last")


class PushedFilters:
    """The pushed filters: for each column, values in [low, high); for partitions also a set."""

    def __init__(self, kind: str, *, is_typed: bool) -> None:
        prefix = "_" if is_typed else ""
        self._names = {f"{prefix}{name}": name for name in _KNOWN[kind]}
        self._never_null = {f"{prefix}{name}" for name in _NEVER_NULL}
        self.low: dict[str, int] = {}
        self.high: dict[str, int] = {}
        self.partitions: set[int] | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Add these filters; return the ones that Spark must still apply."""
        return [each for each in filters if not self._take(each)]

    def has(self, partition: int) -> bool:
        """Whether rows of the partition may pass."""
        if self.partitions is not None and partition not in self.partitions:
            return False
        return self.low.get("partition", partition) <= partition < self.high.get("partition", partition + 1)

    def _take(self, condition: Filter) -> bool:
        """Whether the filter holds for all rows that will be read."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) != 1:
            return False
        if isinstance(condition, IsNotNull):
            return path[0] in self._never_null
        name = self._names.get(path[0])
        if name is None:
            return False
        if isinstance(condition, In):
            return self._within(name, condition.value)
        bounds = _bounds(condition, _micros if name == "timestamp" else _whole)
        if bounds is None:
            return False
        low, high = bounds
        if low is not None:
            self.low[name] = max(low, self.low.get(name, low))
        if high is not None:
            self.high[name] = min(high, self.high.get(name, high))
        return name != "timestamp"

    def _within(self, name: str, values: Iterable[Any]) -> bool:
        found = [_whole(value) for value in values]
        if name != "partition" or any(value is None for value in found):
            return False
        wanted = {value for value in found if value is not None}
        self.partitions = wanted if self.partitions is None else self.partitions & wanted
        return True


def _bounds(condition: Filter, read: Callable[[Any], int | None]) -> tuple[int | None, int | None] | None:
    """The range [low, high) of a comparison; None: it is not supported."""
    value = read(getattr(condition, "value", None))
    if value is None:
        return None
    match condition:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
        case _:
            return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _micros(value: Any) -> int | None:
    """Microseconds since 1970."""
    if not isinstance(value, datetime):
        return None
    at = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    whole = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds

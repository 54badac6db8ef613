"""How a kind of row is stored: declared once, beside the rules that use it, and understood by every engine.

A row is a frozen `msgspec.Struct`; its fields are the columns, in order, and their types the column types
(int, str, bytes, and ``| None`` for nullable). Rows are values: nobody changes one, so they can be shared and cached.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)
Key = tuple[Any, ...]

_KINDS: dict[type, str] = {int: "INTEGER", str: "TEXT", bytes: "BLOB"}


class Column(msgspec.Struct, frozen=True):
    name: str
    kind: str  # INTEGER, TEXT or BLOB; an engine translates
    nullable: bool


class Table(Generic[R]):
    """A table of rows `R`, unique by `key`.

    `heap`: rows are only added and removed in ranges, never replaced; stored in arrival order with an index on the
    key. `cached`: committed rows are kept in memory where one process owns the database.
    """

    def __init__(
        self, name: str, row: type[R], *, key: tuple[str, ...], heap: bool = False, cached: bool = False
    ) -> None:
        self.name = name
        self.row = row
        self.key = key
        self.heap = heap
        self.cached = cached
        self.columns = tuple(_column(name, hint) for name, hint in typing.get_type_hints(row).items())
        names = tuple(column.name for column in self.columns)
        assert names[: len(key)] == key, f"{name}: key columns come first, in key order"
        self.key_of = _getter(key)
        self.values = _getter(names)  # a row as the tuple that is bound to an INSERT

    def __repr__(self) -> str:
        return f"Table({self.name})"


def _getter(names: tuple[str, ...]) -> Callable[[Any], Key]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)


def _column(name: str, hint: Any) -> Column:
    nullable = False
    if isinstance(hint, types.UnionType):
        nullable = type(None) in hint.__args__
        (hint,) = (part for part in hint.__args__ if part is not type(None))
    return Column(name, _KINDS[hint], nullable)


class Meta(msgspec.Struct, frozen=True):
    """A named fact about the whole database: counters, its identity, its keys."""

    name: str
    value: bytes


META = Table("meta", Meta, key=("name",), cached=True)

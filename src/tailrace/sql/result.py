"""The result of a statement: its columns, its rows, and a message for people."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from tailrace.command import Command, Query

T = TypeVar("T")


class Execute(Protocol):
    """Runs a command or a query as the session's principal."""

    def __call__(self, request: Command[T] | Query[T], /) -> T: ...


class ColumnInfo(msgspec.Struct, frozen=True):
    """A column of a result: its name and its SQL type."""

    name: str
    type: str


class Result(msgspec.Struct):
    """The result of one statement. A statement without rows has no columns; `message` says what it did."""

    statement: str  # "SELECT", "CREATE TOPIC", ...
    columns: list[ColumnInfo] = []
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    message: str = ""
    facts: dict[str, Any] = {}  # further values for programs


def table(statement: str, columns: str, rows: Iterable[Sequence[Any]], message: str = "", **facts: Any) -> Result:
    """A result with rows; `columns` as in "name TEXT, lag BIGINT"."""
    infos = [ColumnInfo(*column.split()) for column in columns.split(",")]
    names = [info.name for info in infos]
    dicts = [dict(zip(names, row, strict=True)) for row in rows]
    return Result(statement, infos, dicts, len(dicts), message or counted(len(dicts), "row"), facts)


def done(statement: str, message: str, count: int = 0, **facts: Any) -> Result:
    """A result without rows; `count` is how many were written."""
    return Result(statement, [], [], count, message, facts)


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, with _1, _2 and so on appended to those that occurred before (ignoring case)."""
    taken: set[str] = set()
    given: list[str] = []
    for name in names:
        new, number = name, 0
        while new.lower() in taken:
            number += 1
            new = f"{name}_{number}"
        taken.add(new.lower())
        given.append(new)
    return given


def shown(held: Any) -> Any:
    """A plain value of an item as JSON can represent it."""
    if isinstance(held, bytes):
        return b64encode(held).decode()
    if isinstance(held, set | frozenset | list | tuple):
        return [shown(each) for each in held]
    if isinstance(held, datetime):
        return held.isoformat()
    if isinstance(held, dict):
        return {name: shown(each) for name, each in held.items()}
    return held


def counted(count: int, noun: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

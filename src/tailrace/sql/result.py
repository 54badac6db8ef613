"""What a statement answers: its columns, its rows, and one line for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from tailrace.command import Command, Query

T = TypeVar("T")


class Execute(Protocol):
    """Runs a command or a query for whoever asks."""

    def __call__(self, asked: Command[T] | Query[T], /) -> T: ...


class ColumnInfo(msgspec.Struct, frozen=True):
    """A column of an answer: its name, and its type in SQL's words."""

    name: str
    type: str


class Result(msgspec.Struct):
    """The answer to one statement. A statement without rows has no columns, and says what it did in `message`."""

    statement: str  # "SELECT", "CREATE TOPIC", ...
    columns: list[ColumnInfo] = []
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    message: str = ""
    facts: dict[str, Any] = {}  # what a program wants to know of a statement without rows


def table(statement: str, columns: str, rows: Iterable[Sequence[Any]], message: str = "", **facts: Any) -> Result:
    """An answer with rows; `columns` as in "name TEXT, lag BIGINT"."""
    infos = [ColumnInfo(*column.split()) for column in columns.split(",")]
    names = [info.name for info in infos]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return Result(statement, infos, found, len(found), message or counted(len(found), "row"), facts)


def done(statement: str, message: str, count: int = 0, **facts: Any) -> Result:
    """An answer without rows; `count` is how many were written."""
    return Result(statement, [], [], count, message, facts)


def counted(count: int, noun: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

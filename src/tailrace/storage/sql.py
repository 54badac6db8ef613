"""The statements an engine needs for a table, made from its declaration.

SQLite and PostgreSQL agree on all of them but for the placeholder.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tailrace.storage.table import Key, Table


@cache
def select_one(table: Table[Any], mark: str) -> str:
    return f"SELECT {_columns(table)} FROM {table.name} WHERE {_match(table.key, mark)}"


@cache
def insert(table: Table[Any], mark: str) -> str:
    marks = ", ".join([mark] * len(table.columns))
    return f"INSERT INTO {table.name} ({_columns(table)}) VALUES ({marks})"


@cache
def upsert(table: Table[Any], mark: str) -> str:
    changed = [column.name for column in table.columns if column.name not in table.key]
    sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
    action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
    return f"{insert(table, mark)} ON CONFLICT ({', '.join(table.key)}) {action}"


@cache
def delete(table: Table[Any], mark: str) -> str:
    return f"DELETE FROM {table.name} WHERE {_match(table.key, mark)}"


@cache
def _scan(table: Table[Any], columns: str, prefixed: int, bounds: str, reverse: bool, limited: bool, mark: str) -> str:
    keys = table.key
    terms = [f"{name} = {mark}" for name in keys[:prefixed]]
    terms += [f"{keys[prefixed]} {sign} {mark}" for sign in bounds.split()]
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    direction = " DESC" if reverse else ""
    order = ", ".join(f"{name}{direction}" for name in keys[prefixed:])
    order = f" ORDER BY {order}" if order else ""
    limit = f" LIMIT {mark}" if limited else ""
    return f"SELECT {columns or _columns(table)} FROM {table.name}{where}{order}{limit}"


def scan(
    table: Table[Any],
    prefix: Key,
    start: Any,
    after: Any,
    before: Any,
    limit: int | None,
    reverse: bool,
    mark: str,
    columns: str = "",
) -> tuple[str, Key]:
    """The statement of `Reader.scan` and what is bound to it."""
    bounds, bound = "", prefix
    for sign, value in ((">= ", start), ("> ", after), ("< ", before)):
        if value is not None:
            bounds += sign
            bound += (value,)
    if limit is not None:
        bound += (limit,)
    return _scan(table, columns, len(prefix), bounds, reverse, limit is not None, mark), bound


@cache
def packed(table: Table[Any], numbers: tuple[str, ...], body: str, prefixed: int, mark: str) -> tuple[str, str]:
    """The statements of `Reader.packed`: one for the numbers of some rows, with the bytes' sizes, as texts with commas;
    one for their bytes. Both are bound to the prefix, the two bounds and a limit."""
    inner = _scan(table, f"{', '.join(numbers)}, length({body}) AS packed_size", prefixed, ">= < ", False, True, mark)
    listed = ", ".join(f"group_concat({name})" for name in (*numbers, "packed_size"))
    bodies = _scan(table, body, prefixed, ">= < ", False, True, mark)
    return f"SELECT {listed} FROM ({inner})", f"SELECT CAST(group_concat({body}, '') AS BLOB) FROM ({bodies})"


def _columns(table: Table[Any]) -> str:
    return ", ".join(column.name for column in table.columns)


def _match(key: tuple[str, ...], mark: str) -> str:
    return " AND ".join(f"{name} = {mark}" for name in key)

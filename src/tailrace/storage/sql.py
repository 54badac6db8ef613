"""The SQL statements of an engine for a table, generated from its declaration.

SQLite and PostgreSQL agree on all of them but for the placeholder.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from tailrace.storage.table import UNKNOWN, Key, StorageTable

KEYS_AT_ONCE: Final = 100  # in one statement, which is prepared once for each number of them
_COVERING: Final = "covering"  # among the bounds of a scan
_BEYOND: Final = "beyond"  # likewise: after a row, in the order of the scan


@cache
def select_one(table: StorageTable[Any], mark: str) -> str:
    return f"SELECT {_columns(table)} FROM {table.name} WHERE {_match(table.key, mark)}"


@cache
def select_each(table: StorageTable[Any], prefixed: int, count: int, mark: str) -> str:
    """Rows whose key is a prefix and one of `count` values."""
    one_of = f"{table.key[prefixed]} IN ({', '.join([mark] * count)})"
    return f"SELECT {_columns(table)} FROM {table.name} WHERE {_match(table.key[:prefixed], mark)} AND {one_of}"


@cache
def insert(table: StorageTable[Any], mark: str) -> str:
    marks = ", ".join([mark] * len(table.stored))
    return f"INSERT INTO {table.name} ({_columns(table)}) VALUES ({marks})"


@cache
def numbered(table: StorageTable[Any], columns: str, count: int, mark: str) -> str:
    """Rows of a staging table with one of `count` numbers: the number, and some columns or "*" for all."""
    (number,) = table.key
    listed = _columns(table) if columns == "*" else f"{number}, {columns}"
    return f"SELECT {listed} FROM {table.name} WHERE {number} IN ({', '.join([mark] * count)})"


@cache
def all_numbers(table: StorageTable[Any], key: Key) -> str:
    """The number and these columns of all rows of a staging table, in order."""
    (number,) = table.key
    return f"SELECT {number}, {', '.join(key)} FROM {table.name} ORDER BY {number}"


@cache
def number_range(table: StorageTable[Any]) -> str:
    """The lowest and the highest number in a staging table."""
    (number,) = table.key
    return f"SELECT (SELECT min({number}) FROM {table.name}), (SELECT max({number}) FROM {table.name})"


@cache
def total_bytes(table: StorageTable[Any], column: str) -> str:
    """How many bytes a column of a staging table has in all."""
    return f"SELECT sum(length({column})) FROM {table.name}"


@cache
def count_up_to(table: StorageTable[Any], mark: str) -> str:
    """How many rows a staging table has up to a number."""
    (number,) = table.key
    return f"SELECT count(*) FROM {table.name} WHERE {number} <= {mark}"


@cache
def delete_up_to(table: StorageTable[Any], mark: str) -> str:
    (number,) = table.key
    return f"DELETE FROM {table.name} WHERE {number} <= {mark}"


@cache
def upsert(table: StorageTable[Any], mark: str) -> str:
    changed = [column.name for column in table.stored if column.name not in table.key]
    sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
    action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
    return f"{insert(table, mark)} ON CONFLICT ({', '.join(table.key)}) {action}"


@cache
def delete(table: StorageTable[Any], mark: str) -> str:
    return f"DELETE FROM {table.name} WHERE {_match(table.key, mark)}"


@cache
def _scan(
    table: StorageTable[Any], columns: str, prefixed: int, bounds: str, reverse: bool, limited: bool, mark: str
) -> str:
    keys = table.key
    terms = [f"{name} = {mark}" for name in keys[:prefixed]]
    for sign in bounds.split():
        if sign == _COVERING:
            last = " AND ".join([*terms[:prefixed], f"{keys[prefixed]} <= {mark}"])
            found = f"(SELECT max({keys[prefixed]}) FROM {table.name} WHERE {last})"
            terms.append(f"{keys[prefixed]} >= coalesce({found}, {mark})")
        elif sign == _BEYOND:
            rest = keys[prefixed:]
            marks = ", ".join([mark] * len(rest))
            terms.append(f"({', '.join(rest)}) {'<' if reverse else '>'} ({marks})")
        else:
            terms.append(f"{keys[prefixed]} {sign} {mark}")
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    direction = " DESC" if reverse else ""
    order = ", ".join(f"{name}{direction}" for name in keys[prefixed:])
    order = f" ORDER BY {order}" if order else ""
    limit = f" LIMIT {mark}" if limited else ""
    return f"SELECT {columns or _columns(table)} FROM {table.name}{where}{order}{limit}"


def scan(
    table: StorageTable[Any],
    prefix: Key,
    start: Any,
    after: Any,
    before: Any,
    limit: int | None,
    reverse: bool,
    mark: str,
    columns: str = "",
    covering: Any = None,
    beyond: Key = (),
) -> tuple[str, Key]:
    """The statement of `Reader.scan` and its parameters. `beyond`: only what comes after the row with these values of
    the key columns after the prefix."""
    bounds, bound = "", prefix
    if covering is not None:
        bounds += f"{_COVERING} "
        bound += (*prefix, covering, covering)
    for sign, value in ((">= ", start), ("> ", after), ("< ", before)):
        if value is not None:
            bounds += sign
            bound += (value,)
    if beyond:
        bounds += f"{_BEYOND} "
        bound += beyond
    if limit is not None:
        bound += (limit,)
    return _scan(table, columns, len(prefix), bounds, reverse, limit is not None, mark), bound


def size_of(column: str) -> str:
    """For `Reader.values`: the size of the bytes in a column, which are not read."""
    return f"length({column})"


def head_of(column: str, size: int) -> str:
    """For `Reader.values`: the first bytes in a column."""
    return f"substr({column}, 1, {size})"


# How an engine concatenates numbers with commas, and bytes.
Joining = tuple[str, str]
GROUP_CONCAT: Final[Joining] = ("group_concat({})", "CAST(group_concat({}, '') AS BLOB)")
STRING_AGG: Final[Joining] = ("string_agg({}::text, ',')", "string_agg({}, ''::bytea)")


@cache
def packed(
    table: StorageTable[Any], numbers: tuple[str, ...], body: str, prefixed: int, mark: str, joining: Joining
) -> tuple[str, str]:
    """The statements of `Reader.packed`: one for the numbers of some rows, with the bytes' sizes, as texts with commas;
    one for their bytes. Both are bound to the prefix, the two bounds and a limit. Of a table with checksums the first
    also has what `others` names, their sizes if they are bytes, and the sums; the second the bytes of those."""
    extra = others(table, numbers, body, prefixed)
    listed = [*numbers]
    listed += [name if kind == "INTEGER" else f"length({name}) AS size_of_{name}" for name, kind in extra]
    if table.checked:
        listed.append(f"coalesce(sum, {UNKNOWN}) AS sum")
    listed.append(f"length({body}) AS packed_size")
    inner = _scan(table, ", ".join(listed), prefixed, ">= < ", False, True, mark)
    texts = ", ".join(joining[0].format(name.split(" AS ")[-1]) for name in listed)
    blobs = [body, *(name for name, kind in extra if kind == "BLOB")]
    bodies = _scan(table, ", ".join(blobs), prefixed, ">= < ", False, True, mark)
    joined = ", ".join(joining[1].format(name) for name in blobs)
    return f"SELECT {texts} FROM ({inner}) AS chosen", f"SELECT {joined} FROM ({bodies}) AS chosen"


@cache
def others(table: StorageTable[Any], numbers: tuple[str, ...], body: str, prefixed: int) -> tuple[tuple[str, str], ...]:
    """The other columns of a row that its checksum covers: names and kinds."""
    known = {*numbers, body, *table.key[:prefixed]}
    return tuple((column.name, column.kind) for column in table.columns if table.checked and column.name not in known)


def _columns(table: StorageTable[Any]) -> str:
    return ", ".join(column.name for column in table.stored)


def _match(key: tuple[str, ...], mark: str) -> str:
    return " AND ".join(f"{name} = {mark}" for name in key)

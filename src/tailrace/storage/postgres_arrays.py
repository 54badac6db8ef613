"""Rows for PostgreSQL as binary arrays, one for each column, and the statements that take them.

A statement with arrays stores any number of rows in one message, and is prepared once. The arrays are packed here, and
not element by element by the driver, which takes twice as long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tailrace.storage.engine import unstorable
from tailrace.storage.table import Key, StorageColumn, StorageTable

TYPES: Final = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}
_HEAD: Final = struct.Struct(">iiiii").pack  # dimensions, whether there are NULLs, type, length, first index
_LENGTH: Final = struct.Struct(">i").pack
_INTEGER: Final = struct.Struct(">iq").pack
_NULL: Final = _LENGTH(-1)


class BigintArray(bytes):
    """An array of bigint as PostgreSQL's binary protocol has it."""


class TextArray(bytes):
    """One of text."""


class ByteaArray(bytes):
    """One of bytea."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return bytes(obj)


class _BigintDumper(_ArrayDumper):
    oid = 1016


class _TextDumper(_ArrayDumper):
    oid = 1009


class _ByteaDumper(_ArrayDumper):
    oid = 1001


def register(connection: Any) -> None:
    """Let a connection take the arrays of this module."""
    connection.adapters.register_dumper(BigintArray, _BigintDumper)
    connection.adapters.register_dumper(TextArray, _TextDumper)
    connection.adapters.register_dumper(ByteaArray, _ByteaDumper)


def pack(kind: str, values: Sequence[Any]) -> bytes:
    """Values of one column as an array. struct.error, TypeError, AttributeError or ValueError: one is of another type,
    or has no place in such a column."""
    if kind == "INTEGER":
        return BigintArray(_packed_numbers(values))
    if kind == "TEXT":
        return TextArray(_packed_bytes(25, [None if value is None else _encoded(value) for value in values]))
    return ByteaArray(_packed_bytes(17, values))


def _packed_numbers(values: Sequence[Any]) -> bytes:
    count = len(values)
    if None not in values:
        flat: list[Any] = [8] * (2 * count)
        flat[1::2] = values
        return struct.pack(">iiiii" + "iq" * count, 1, 0, 20, count, 1, *flat)
    parts = [_HEAD(1, 1, 20, count, 1)]
    parts += [_NULL if value is None else _INTEGER(8, value) for value in values]
    return b"".join(parts)


def _packed_bytes(oid: int, values: Sequence[Any]) -> bytes:
    parts = [_HEAD(1, int(None in values), oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(_LENGTH(len(value)))
            parts.append(value)
    return b"".join(parts)


def _encoded(text: str) -> bytes:
    found = text.encode()
    if b"\0" in found:
        raise ValueError("it has U+0000, which PostgreSQL does not store in text")
    return found


def columns_of(table: StorageTable[Any], rows: Iterable[Key], columns: Sequence[StorageColumn]) -> list[bytes]:
    """Rows, as tuples of these columns, turned into arrays. Raises `Unavailable` UNSTORABLE."""
    packed = []
    try:
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            if not column.nullable and None in values:
                raise ValueError(f"{column.name} is NULL")
            packed.append(pack(column.kind, values))
    except (struct.error, TypeError, AttributeError, ValueError) as error:
        raise unstorable(table, error) from error
    return packed


def keys_of(table: StorageTable[Any]) -> tuple[StorageColumn, ...]:
    return table.columns[: len(table.key)]


# -- statements


@cache
def bulk_insert(table: StorageTable[Any]) -> str:
    names = ", ".join(column.name for column in table.stored)
    return f"INSERT INTO {table.name} ({names}) SELECT * FROM {_unnested(table.stored)}"


@cache
def bulk_upsert(table: StorageTable[Any]) -> str:
    changed = [column.name for column in table.stored if column.name not in table.key]
    sets = ", ".join(f"{name} = excluded.{name}" for name in changed)
    action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
    return f"{bulk_insert(table)} ON CONFLICT ({', '.join(table.key)}) {action}"


@cache
def bulk_delete(table: StorageTable[Any]) -> str:
    return f"DELETE FROM {table.name} AS t USING {_wanted(table)} WHERE {_matching(table)}"


@cache
def bulk_select(table: StorageTable[Any]) -> str:
    """The rows with any of these keys."""
    names = ", ".join(f"t.{column.name}" for column in table.stored)
    return f"SELECT {names} FROM {_wanted(table)} JOIN {table.name} AS t ON {_matching(table)}"


@cache
def select_any(table: StorageTable[Any], prefixed: int) -> str:
    """The rows whose key is a prefix and one of the values of an array."""
    names = ", ".join(column.name for column in table.stored)
    terms = [f"{name} = %b" for name in table.key[:prefixed]]
    last = table.columns[prefixed]
    terms.append(f"{last.name} = ANY (%b::{TYPES[last.kind]}[])")
    return f"SELECT {names} FROM {table.name} WHERE {' AND '.join(terms)}"


def _unnested(columns: Sequence[StorageColumn]) -> str:
    return f"unnest({', '.join(f'%b::{TYPES[column.kind]}[]' for column in columns)})"


def _wanted(table: StorageTable[Any]) -> str:
    return f"{_unnested(keys_of(table))} AS wanted ({', '.join(table.key)})"


def _matching(table: StorageTable[Any]) -> str:
    return " AND ".join(f"t.{name} = wanted.{name}" for name in table.key)

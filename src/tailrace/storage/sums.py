"""The checksums of rows: CRC-32 over a row's numbers, the lengths of its bytes, and the bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from tailrace.checksum import crc32


def summing(kinds: list[str], last_nullable: bool) -> Callable[[Sequence[Any]], int]:
    """A function that computes the checksum of a row with columns of these kinds, INTEGER and one or two BLOBs. The
    last column may be NULL, and counts if it is not: rows that were written before there was such a column are
    valid."""
    optional = len(kinds) - 1 if last_nullable else None
    required = kinds[:optional]
    assert all(kind in ("INTEGER", "BLOB") for kind in required)
    numbers = itemgetter(*[at for at, kind in enumerate(required) if kind == "INTEGER"])
    blobs = [at for at, kind in enumerate(required) if kind == "BLOB"]
    pack = struct.Struct(f"<{len(required)}q").pack
    first = blobs[0]
    if len(blobs) == 1:

        def of_one(values: Sequence[Any]) -> int:
            body = values[first]
            return crc32(body, crc32(pack(*numbers(values), len(body))))

        if optional is None:
            return of_one

        def of_one_and_optional(values: Sequence[Any]) -> int:
            body, more = values[first], values[optional]
            found = crc32(body, crc32(pack(*numbers(values), len(body))))
            return found if more is None else crc32(more, found)

        return of_one_and_optional
    assert optional is None
    second = blobs[1]

    def of_two(values: Sequence[Any]) -> int:
        key, body = values[first], values[second]
        return crc32(body, crc32(key, crc32(pack(*numbers(values), len(key), len(body)))))

    return of_two


def with_sum(sum_of: Callable[[Sequence[Any]], int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that adds the checksum to the values of a row."""

    def stored(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*values, sum_of(values))

    return stored

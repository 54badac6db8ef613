"""Bulk reads by column: numbers as texts that the database joins, bytes concatenated."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any, Final

import msgspec

from tailrace.storage import sql
from tailrace.storage.table import Key, StorageTable

_INTS: Final = msgspec.json.Decoder(list[int])


class Packed(msgspec.Struct, frozen=True):
    """Rows in columns: an array for each column of numbers, and the bytes of all rows concatenated."""

    numbers: tuple[array[int], ...]
    sizes: array[int]  # of each row's bytes
    body: bytes


def read(
    execute: Any,
    mark: str,
    table: StorageTable[Any],
    numbers: tuple[str, ...],
    body: str,
    prefix: Key,
    start: Any,
    before: Any,
    limit: int,
    bytes_max: int,
    joining: sql.Joining = sql.GROUP_CONCAT,
) -> Packed:
    """The rows of `Reader.packed`."""
    listing, bodies = sql.packed(table, numbers, body, len(prefix), mark, joining)
    bound = (*prefix, start, before)
    # The row's header has the length of its bytes: rows beyond `bytes_max` are not read.
    ((*texts, sizes),) = execute(listing, (*bound, limit)).fetchall()
    if sizes is None:
        return Packed(tuple(array("q") for _ in numbers), array("q"), b"")
    taken = _fitting(_numbers(sizes), bytes_max)
    ((together, *blobs),) = execute(bodies, (*bound, len(taken))).fetchall()
    columns = [_numbers(text)[: len(taken)] for text in texts]
    if table.checked:
        of = dict(zip(numbers, columns, strict=False))
        packed = {body: (taken, together)}
        for (name, kind), column in zip(
            sql.others(table, numbers, body, len(prefix)), columns[len(numbers) :], strict=False
        ):
            if kind == "BLOB":
                packed[name] = (column, blobs.pop(0))
            else:
                of[name] = column
        table.verify_packed(prefix, of, packed, columns[-1])
    return Packed(tuple(columns[: len(numbers)]), taken, together)


def _numbers(text: str) -> array[int]:
    return array("q", _INTS.decode(f"[{text}]"))


def _fitting(sizes: array[int], bytes_max: int) -> array[int]:
    """The first size, and those that follow while their sum fits `bytes_max`."""
    for count, total in enumerate(accumulate(sizes)):
        if total > bytes_max:
            return sizes[: max(count, 1)]
    return sizes

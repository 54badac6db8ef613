"""Bloom filters of Parquet files, for readers that have none: whether a row group may have a value.

Arrow writes them and says where they are, and does not test them. A filter is of Parquet's only kind: blocks of 256
bits, a value sets one bit in each of the eight words of one block, by its XXH64 hash. Spark's reader does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from tailrace.errors import Corrupt

BLOCK_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 64  # a header has some 20
_SALTS: Final = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_MASK32: Final = 0xFFFF_FFFF
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5


def row_groups(file: Any, metadata: Any, column: str, value: bytes) -> list[int]:
    """The row groups of an open file that may have this value in a column of text or bytes; all that have no filter."""
    names = metadata.schema.to_arrow_schema().names
    if column not in names:
        return list(range(metadata.num_row_groups))
    at = names.index(column)
    hashed = xxh64(value)
    return [
        number
        for number in range(metadata.num_row_groups)
        if _may_have(file, metadata.row_group(number).column(at), hashed)
    ]


def _may_have(file: Any, chunk: Any, hashed: int) -> bool:
    offset = getattr(chunk, "bloom_filter_offset", None)
    if not offset:
        return True
    length = getattr(chunk, "bloom_filter_length", None) or 0
    file.seek(offset)
    head = file.read(length or HEADER_BYTES_MAX)
    size, begins = header(head)
    if size < BLOCK_BYTES or size % BLOCK_BYTES:
        raise Corrupt(f"a Bloom filter of {size} bytes; read the file without it")
    block = begins + ((hashed >> 32) * (size // BLOCK_BYTES) >> 32) * BLOCK_BYTES
    words = head[block : block + BLOCK_BYTES]
    if len(words) < BLOCK_BYTES:
        file.seek(offset + block)
        words = file.read(BLOCK_BYTES)
    return has(struct.unpack("<8I", words), hashed)


def has(words: Sequence[int], hashed: int) -> bool:
    """Whether the block of a value has its bits."""
    low = hashed & _MASK32
    return all(word >> ((low * salt & _MASK32) >> 27) & 1 for word, salt in zip(words, _SALTS, strict=True))


def header(head: bytes) -> tuple[int, int]:
    """The size of a filter, and where it begins behind its header (Thrift's compact protocol: the size, and three
    unions whose only members are empty)."""
    if head[:1] != b"\x15":  # field 1, a number
        raise Corrupt("the header of a Bloom filter is not one that this version knows; read the file without it")
    size, at = _number(head, 1)
    depth = 1
    while depth:
        if at >= len(head):
            raise Corrupt("the header of a Bloom filter does not end; read the file without it")
        kind = head[at] & 0x0F
        at += 1
        if kind == 0:
            depth -= 1
        elif kind == 0x0C:
            depth += 1
        else:
            raise Corrupt("the header of a Bloom filter is not one that this version knows; read the file without it")
    return size, at


def _number(head: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag form, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(head):
            raise Corrupt("the header of a Bloom filter does not end; read the file without it")
        byte = head[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at


# -- XXH64, with seed 0


def xxh64(data: bytes) -> int:
    """The hash of a value. Each query hashes one."""
    at, length = 0, len(data)
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        for first in range(0, length - 31, 32):
            for lane, word in enumerate(struct.unpack_from("<4Q", data, first)):
                lanes[lane] = _round(lanes[lane], word)
            at = first + 32
        found = sum(_turned(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = _P5
    found = (found + length) & _MASK
    while at + 8 <= length:
        found = (_turned(found ^ _round(0, struct.unpack_from("<Q", data, at)[0]), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= length:
        found = (_turned(found ^ struct.unpack_from("<I", data, at)[0] * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _turned(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _turned(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK

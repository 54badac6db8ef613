"""A request's body: inflated within bounds, and parsed in pieces where it is large.

Parsing is one call that nothing interrupts, so its length is how long all others wait, whichever thread makes it. Hence
a large body is first split into the items that it holds, which only skims it, and each is parsed alone. What is
larger than any item can be is refused unparsed.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec

from tailrace.errors import Invalid, TooLarge
from tailrace.limits import BODY_BYTES_MAX, ITEM_BYTES_MAX, KiB, MiB
from tailrace.tables.messages import ITEM_TOO_LARGE

WHOLE_BYTES_MAX: Final = 1 * MiB  # bodies up to this are parsed in one go
# An item in JSON takes at most ten times its size: {"S":""}, is ten bytes for an element of a list that counts one.
# That is half of this; the other half is for expressions, and for white space.
PIECE_BYTES_MAX: Final = 8 * MiB
PIECE_VALUES_MAX: Final = ITEM_BYTES_MAX + 64 * KiB  # each value counts at least a byte; the rest as above
GZIP_MEMBERS_MAX: Final = 1_024  # a body has one, usually
_INFLATED_AT_ONCE: Final = 16 * KiB  # what comes after a member's end is copied: this much at the most

_decode: Final = msgspec.json.Decoder().decode
_split_map: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class CannotInflate(Exception):
    """The body is not what its content-encoding says."""


def inflated(body: bytes, coding: bytes) -> bytes:
    """A request's body as it was before it was compressed, within the limit of bodies."""
    name = coding.strip().lower()
    if name == b"identity":
        return body
    if name not in (b"gzip", b"deflate"):
        raise CannotInflate
    parts: list[bytes] = []
    view = memoryview(body)
    at, members, room = 0, 0, BODY_BYTES_MAX
    while at < len(view) or not members:  # gzip may have several members, one after the other
        members += 1
        if members > (GZIP_MEMBERS_MAX if name == b"gzip" else 1):
            raise CannotInflate
        inflating = zlib.decompressobj(31 if name == b"gzip" else 15)
        while not inflating.eof:
            piece = view[at : at + _INFLATED_AT_ONCE]
            if not piece:
                raise CannotInflate
            try:
                part = inflating.decompress(piece, room + 1)
            except zlib.error as error:
                raise CannotInflate from error
            room -= len(part)
            if room < 0:
                raise TooLarge("the request is too large once inflated; send less at a time")
            parts.append(part)
            at += len(piece) - len(inflating.unused_data)
    return b"".join(parts)


def parsed(body: bytes, pieces: tuple[str, int] | None) -> Any:
    """The JSON of a body. `pieces`: the member that holds the items, and how many lists or maps they are inside of."""
    if len(body) <= WHOLE_BYTES_MAX:
        return _decode(body)
    if pieces is None:
        return _piece(body)
    member, levels = pieces
    return {name: _split(raw, levels if name == member else 0) for name, raw in _split_map(body).items()}


def _split(raw: msgspec.Raw | bytes, levels: int) -> Any:
    # What is not a list or map where there should be one is small, or refused: the shape says what is wrong with it.
    opening = bytes(memoryview(raw)[:1]) if levels else b""
    if opening == b"[":
        return [_split(each, levels - 1) for each in _split_list(raw)]
    if opening == b"{":
        return {name: _split(each, levels - 1) for name, each in _split_map(raw).items()}
    return _piece(raw)


def _piece(raw: msgspec.Raw | bytes) -> Any:
    if len(memoryview(raw)) > WHOLE_BYTES_MAX:
        text = bytes(raw)
        if len(text) > PIECE_BYTES_MAX or text.count(b"{") + text.count(b"[") > PIECE_VALUES_MAX:
            raise Invalid(ITEM_TOO_LARGE)
    return _decode(raw)

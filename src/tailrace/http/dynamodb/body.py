"""Request bodies, parsed item by item if they are large.

Parsing is one call that holds the interpreter lock, so all other requests wait for it, whichever thread makes it. A
large body is therefore split into its items first, which is fast, and each item is parsed on its own. A piece that is
larger than any item can be is refused without parsing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.limits import ITEM_BYTES_MAX, KiB, MiB
from tailrace.tables.messages import ITEM_TOO_LARGE

WHOLE_BYTES_MAX: Final = 1 * MiB  # bodies up to this are parsed in one call
# The JSON of an item is at most ten times its size: {"S":""}, has ten bytes for a list element that counts as one.
# That makes half of this limit; the other half is for expressions and white space.
PIECE_BYTES_MAX: Final = 8 * MiB
PIECE_VALUES_MAX: Final = ITEM_BYTES_MAX + 64 * KiB  # each value counts at least one byte; the rest as above

_decode: Final = msgspec.json.Decoder().decode
_split_map: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def parsed(body: bytes, split: tuple[str, int] | None) -> Any:
    """The JSON of a body. `split`: the member that holds the items, and how many lists or maps enclose them."""
    if len(body) <= WHOLE_BYTES_MAX:
        return _decode(body)
    if split is None:
        return _piece(body)
    member, levels = split
    return {name: _split(raw, levels if name == member else 0) for name, raw in _split_map(body).items()}


def _split(raw: msgspec.Raw | bytes, levels: int) -> Any:
    # Any other value where a list or map is expected is small, or refused later by the shape.
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

"""JSON streams: message boundaries are kept, arrays are flattened by one level.

One append is one entry, whose body is its messages joined by commas: between brackets that is a JSON array, whether
of one entry or of many. Nothing is parsed again to be read.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.errors import Invalid

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_SPACE: Final = b" \t\r\n"
_NESTING_SURE: Final = 200  # a body with no more brackets than this cannot be nested too deeply for anybody
_NESTING_MARGIN: Final = 150  # how much deeper in the stack a reader may be than the writer was


def messages(body: bytes) -> list[msgspec.Raw]:
    """The messages of a request's body: the elements of an array, or the one value."""
    try:
        body.decode()  # a raw decode does not look inside strings
        if body.count(b"[") + body.count(b"{") > _NESTING_SURE:
            return _parsed_from(_NESTING_MARGIN, body)
        return _parsed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", code="INVALID_JSON") from None


def _parsed(body: bytes) -> list[msgspec.Raw]:
    if body.lstrip(_SPACE).startswith(b"["):
        return _ARRAY.decode(body)
    return [msgspec.Raw(bytes(_VALUE.decode(body)).strip(_SPACE))]


def _parsed_from(levels: int, body: bytes) -> list[msgspec.Raw]:
    """Parse from further down the stack, whose depth bounds the nesting: what passes here can be read anywhere."""
    return _parsed_from(levels - 1, body) if levels else _parsed(body)


def entry(body: bytes) -> bytes:
    """The body of the entry that an append makes."""
    parts = messages(body)
    if not parts:
        raise Invalid("the array is empty: there is nothing to append; send at least one message", code="EMPTY_ARRAY")
    return b",".join(parts)


def initial(body: bytes) -> bytes:
    """As `entry`, for a stream's first content, which may be an empty array."""
    return b",".join(messages(body))


def prefix(body: bytes, count: int) -> tuple[bytes, int]:
    """The first `count` messages of an entry, and how many it has."""
    parts = _ARRAY.decode(b"[" + body + b"]")
    return b",".join(parts[:count]), len(parts)


def check(body: bytes) -> None:
    """Refuse what no append can have made."""
    try:
        body.decode()
        prefix(body, 0)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the entry is not valid JSON: {error}", code="INVALID_JSON") from None


def array(bodies: list[bytes]) -> bytes:
    """Entries as one JSON array."""
    return b"[" + b",".join(bodies) + b"]"

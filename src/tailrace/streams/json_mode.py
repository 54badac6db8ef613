"""JSON streams: message boundaries are kept, arrays are flattened by one level.

One append is one entry, whose body is its messages with commas between them, as they came: between brackets that is a
JSON array, whether of one entry or of many. Nothing is taken apart to be written, nor parsed again to be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import msgspec

from tailrace.errors import Invalid

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_SPACE: Final = b" \t\r\n"
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_WRONG: Final = (msgspec.DecodeError, ValueError)
_NESTING_SURE: Final = 200  # a body with no more brackets than this cannot be nested too deeply for anybody
_NESTING_MARGIN: Final = 150  # how much deeper in the stack a reader may be than the writer was


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Slow, but it takes half of a surrogate pair (`"\ud83d"`), which the grammar allows and browsers write.
_LENIENT: Final = json.JSONDecoder(parse_constant=_no_constant)


def initial(body: bytes) -> bytes:
    """The body of the entry that a stream's first content makes; empty for an empty array."""
    try:
        body.decode()  # the decoder does not look inside strings
        if body.count(b"[") + body.count(b"{") > _NESTING_SURE:
            _check_from(_NESTING_MARGIN, body)
        else:
            _check(body)
    except (*_WRONG, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", code="INVALID_JSON") from None
    body = body.strip(_SPACE)
    return body[1:-1].strip(_SPACE) if body.startswith(b"[") else body


def entry(body: bytes) -> bytes:
    """The body of the entry that an append makes."""
    messages = initial(body)
    if not messages:
        raise Invalid("the array is empty: there is nothing to append; send at least one message", code="EMPTY_ARRAY")
    return messages


def _check(body: bytes) -> None:
    try:
        _VALUE.decode(body)
    except msgspec.DecodeError:
        if b"\\u" not in body:
            raise
        _LENIENT.decode(body.decode())


def _check_from(levels: int, body: bytes) -> None:
    """Check from further down the stack, whose depth bounds the nesting: what passes here can be read anywhere."""
    if levels:
        _check_from(levels - 1, body)
    else:
        _check(body)


def messages(entry: bytes) -> list[bytes]:
    """The messages of an entry, one by one."""
    try:
        return [bytes(part) for part in _ARRAY.decode(b"[" + entry + b"]")]
    except msgspec.DecodeError:
        return list(_taken_apart(entry.decode()))


def _taken_apart(text: str) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        at = _after_space(text, at)
        _, end = _LENIENT.raw_decode(text, at)
        yield text[at:end].encode()
        at = _after_space(text, end) + 1  # and the comma


def _after_space(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    assert found is not None
    return found.end()


def prefix(entry: bytes, count: int) -> tuple[bytes, int]:
    """The first `count` messages of an entry, and how many it has."""
    parts = messages(entry)
    return b",".join(parts[:count]), len(parts)


def check(entry: bytes) -> None:
    """Refuse what no append can have made."""
    try:
        entry.decode()
        _check(b"[" + entry + b"]")
    except _WRONG as error:
        raise Invalid(f"the entry is not valid JSON: {error}", code="INVALID_JSON") from None


def array(bodies: list[bytes]) -> bytes:
    """Entries as one JSON array."""
    return b"[" + b",".join(bodies) + b"]"

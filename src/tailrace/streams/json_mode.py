"""JSON streams: message boundaries are kept, arrays are flattened by one level.

One append is one entry, whose body is its messages as they were sent, separated by commas: in brackets that is a JSON
array, of one entry or of many. Messages are not split to be written, nor parsed again to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from tailrace.errors import Invalid

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_SPACE: Final = b" \t\r\n"
_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_WRONG: Final = (msgspec.DecodeError, ValueError)
_NESTING_SURE: Final = 200  # a body with no more brackets than this cannot be nested too deeply
# A match blocks all threads while it lasts, so it must be short: long strings are matched separately. A string can be
# read in one way only, characters and escapes in turn, so one that is not short is given up in linear time.
_SHORT: Final = rb'"[^"\\]{0,1024}(?:\\.[^"\\]{0,1024}){0,64}"'
_STRING: Final = re.compile(_SHORT, re.DOTALL)
_INSIDE: Final = re.compile(rb'(?:[^"\\]{1,1024}|\\.){0,256}', re.DOTALL)  # inside a long string
_RUN: Final = re.compile(rb'(?:[^"]{1,1024}|' + _SHORT + rb"){1,64}", re.DOTALL)  # from outside strings to outside
_TOKEN: Final = re.compile(_SHORT + rb'|[][{},"]', re.DOTALL)
_CUT_BYTES: Final = 64 * 1024  # of messages decoded at once, or one message: other threads wait meanwhile
_CUT_TOKENS: Final = 4_096  # examined one by one to find the end of a message
_COUNTED_BYTES: Final = 64 * 1024  # searched for commas at once
_NESTING_MARGIN: Final = 150  # how much deeper in the stack a reader may be than the writer was


def _without_surrogates(body: bytes) -> bytes:
    """The body with other characters instead of surrogates (`"\\ud83d"`): the decoder rejects half of a pair, which the
    grammar allows and browsers write. The result is valid JSON if and only if the body is, with every value at the same
    position."""
    # Escaped backslashes first: then every remaining backslash begins an escape.
    return body.replace(rb"\\", rb"\n").replace(rb"\ud", rb"\u0").replace(rb"\uD", rb"\u0")


def initial(body: bytes) -> bytes:
    """The body of the entry for a stream's initial content; empty for an empty array."""
    try:
        body.decode()  # the decoder does not check strings
        if body.count(b"[") + body.count(b"{") > _NESTING_SURE:
            _check_from(_NESTING_MARGIN, body)
        else:
            _check(body)
    except (*_WRONG, RecursionError) as error:
        raise Invalid(f"the body is not valid JSON: {error}", code="INVALID_JSON") from None
    body = body.strip(_SPACE)
    return body[1:-1].strip(_SPACE) if body.startswith(b"[") else body


def entry(body: bytes) -> bytes:
    """The body of the entry for an append."""
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
        _VALUE.decode(_without_surrogates(body))


def _check_from(levels: int, body: bytes) -> None:
    """Check with a deeper stack, which bounds the nesting: a body that passes here can be decoded anywhere."""
    if levels:
        _check_from(levels - 1, body)
    else:
        _check(body)


def messages(entry: bytes) -> list[bytes]:
    """The messages of an entry, one by one."""
    return [bytes(message) for some in in_parts(entry) for message in _messages(some)]


def _messages(some: bytes) -> list[msgspec.Raw] | list[bytes]:
    try:
        return _ARRAY.decode(b"[" + some + b"]")
    except msgspec.DecodeError:
        return _split(some)


def in_parts(entry: bytes) -> Iterator[bytes]:
    """The entry in parts of some messages each: a call of the decoder blocks all threads while it lasts."""
    begun = at = depth = 0
    while len(entry) - at > _CUT_BYTES:
        until = at + _CUT_BYTES
        while at < until:  # fast: only the depth at the end is counted
            run = _RUN.match(entry, at)
            if run is None:
                at = _after_string(entry, at)
                continue
            bare = _STRING.sub(b"", run[0]) if b'"' in run[0] else run[0]
            depth += bare.count(b"[") + bare.count(b"{") - bare.count(b"]") - bare.count(b"}")
            at = run.end()
        for token in islice(_TOKEN.finditer(entry, at), _CUT_TOKENS):
            match token[0]:
                case b"[" | b"{":
                    depth += 1
                case b"]" | b"}":
                    depth -= 1
                case b'"':
                    at = token.start()
                    break
                case b"," if depth == 0:
                    yield entry[begun : token.start()]
                    begun = at = token.end()
                    break
            at = token.end()
    yield entry[begun:]


def _after_string(entry: bytes, at: int) -> int:
    """The end of a string that begins here."""
    at += 1
    while entry[at : at + 1] != b'"':
        inside = _INSIDE.match(entry, at)
        assert inside is not None and inside.end() > at, "an entry is valid JSON"
        at = inside.end()
    return at + 1


def _split(entry: bytes) -> list[bytes]:
    """As `messages`, of an entry with surrogates: the bounds are found in a copy without them."""
    found: list[bytes] = []
    at = 0
    for part in _ARRAY.decode(b"[" + _without_surrogates(entry) + b"]"):
        at = _after_space(entry, at)
        end = at + len(memoryview(part))
        found.append(entry[at:end])
        at = _after_space(entry, end) + 1  # and the comma
    return found


def _after_space(entry: bytes, at: int) -> int:
    blanks = _SPACES.match(entry, at)
    assert blanks is not None
    return blanks.end()


def prefix(entry: bytes, count: int) -> tuple[bytes, int]:
    """The first `count` messages of an entry, and how many it has."""
    if not any(mark in entry for mark in (b'"', b"[", b"{")):  # every comma separates two messages
        whole = entry.count(b",") + 1
        return (entry if count >= whole else entry[: _comma(entry, count)].rstrip(_SPACE) if count else b""), whole
    first: list[bytes] = []
    whole = 0
    for some in in_parts(entry):
        parts = _messages(some)
        if whole < count:
            first.append(b",".join(parts[: count - whole]))
        whole += len(parts)
    return b",".join(first), whole


def _comma(entry: bytes, count: int) -> int:
    """The position of the comma with this number."""
    at = 0
    while (found := entry.count(b",", at, at + _COUNTED_BYTES)) < count:
        count, at = count - found, at + _COUNTED_BYTES
    for _ in range(count):
        at = entry.index(b",", at) + 1
    return at - 1


def check(entry: bytes) -> None:
    """Raise if this is not an entry that an append can have written."""
    try:
        entry.decode()
        _check(b"[" + entry + b"]")
    except _WRONG as error:
        raise Invalid(f"the entry is not valid JSON: {error}", code="INVALID_JSON") from None


def array(bodies: list[bytes]) -> bytes:
    """Entries as one JSON array."""
    return b"[%b]" % b",".join(bodies)

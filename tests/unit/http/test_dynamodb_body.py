"""Bodies of requests: inflated and parsed within bounds, however they are made up."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import msgspec
import pytest

from tailrace.errors import Invalid, TooLarge
from tailrace.http.dynamodb import body as bodies
from tailrace.http.dynamodb import compression
from tailrace.http.dynamodb.body import parsed
from tailrace.http.dynamodb.compression import CannotInflate, inflated
from tailrace.limits import BODY_BYTES_MAX

WRITES = ("RequestItems", 2)


def test_members_one_after_the_other() -> None:
    sent = b"".join(gzip.compress(b"%d," % number) for number in range(200))
    assert inflated(sent, b"gzip") == b"".join(b"%d," % number for number in range(200))


def test_a_large_member_in_many_pieces() -> None:
    text = bytes(range(256)) * 4_096
    assert inflated(gzip.compress(text, 1), b" GZip ") == text
    assert inflated(zlib.compress(text, 1), b"deflate") == text
    assert inflated(text, b"identity") == text


def test_members_have_a_limit() -> None:
    empty = gzip.compress(b"")
    assert inflated(empty * compression.GZIP_MEMBERS_MAX, b"gzip") == b""
    with pytest.raises(CannotInflate):
        inflated(empty * (compression.GZIP_MEMBERS_MAX + 1), b"gzip")


def test_what_cannot_be_inflated() -> None:
    text = b"some text"
    whole = gzip.compress(text)
    for sent, coding in (
        (b"", b"gzip"),
        (whole[:-1], b"gzip"),
        (whole + b"x", b"gzip"),
        (zlib.compress(text) + b"x", b"deflate"),
        (whole, b"br"),
    ):
        with pytest.raises(CannotInflate):
            inflated(sent, coding)


def test_what_becomes_too_large() -> None:
    half = gzip.compress(b" " * (BODY_BYTES_MAX // 2))
    assert len(inflated(half + half, b"gzip")) == BODY_BYTES_MAX
    with pytest.raises(TooLarge):
        inflated(half + half + gzip.compress(b" "), b"gzip")


def test_large_bodies_are_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WHOLE_BYTES_MAX", 16)
    request: dict[str, Any] = {
        "RequestItems": {
            "one": [{"PutRequest": {"Item": {"a": {"S": "x[{"}, "l": {"L": [{"N": "1"}]}}}}, {}],
            "two": [],
        },
        "ReturnConsumedCapacity": "TOTAL",
    }
    for text in (msgspec.json.encode(request), msgspec.json.format(msgspec.json.encode(request), indent=3)):
        assert parsed(text, WRITES) == parsed(text, ("ReturnConsumedCapacity", 1)) == parsed(text, None) == request


def test_what_is_larger_than_any_item_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "WHOLE_BYTES_MAX", 16)
    monkeypatch.setattr(bodies, "PIECE_BYTES_MAX", 64)
    small = msgspec.json.encode({"RequestItems": {"one": [{"k": "x" * 40}] * 9}})
    assert len(parsed(small, WRITES)["RequestItems"]["one"]) == 9
    for sent in ({"k": "x" * 64}, {"RequestItems": {"one": [{"k": "x" * 64}]}}):
        with pytest.raises(Invalid, match="Item size has exceeded the maximum allowed size"):
            parsed(msgspec.json.encode(sent), WRITES)
    monkeypatch.setattr(bodies, "PIECE_VALUES_MAX", 4)
    with pytest.raises(Invalid, match="Item size"):
        parsed(b'{"a": [[], {}, [], {}]}', None)


def test_what_is_no_map_is_not_split() -> None:
    with pytest.raises(msgspec.DecodeError):
        parsed(b"[" + b" " * bodies.WHOLE_BYTES_MAX + b"]", WRITES)

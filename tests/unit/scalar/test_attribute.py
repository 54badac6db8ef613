"""Plain SQL values to typed ones and back, and the bytes that partitions are chosen by."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tailrace.errors import Invalid
from tailrace.scalar import from_attribute, key_text, to_attribute


@pytest.mark.parametrize(
    ("plain", "kind", "typed"),
    [
        (42, None, {"N": "42"}),
        (Decimal("1.50"), None, {"N": "1.5"}),
        (0.1, None, {"N": "0.1"}),
        (1e22, None, {"N": "1" + "0" * 22}),
        ("x", None, {"S": "x"}),
        ("", None, {"S": ""}),
        (b"x", None, {"B": b"x"}),
        (True, None, {"BOOL": True}),
        (None, None, {"NULL": True}),
        (None, "BIGINT", {"NULL": True}),
        ([1, 0.5, "x"], None, {"L": [{"N": "1"}, {"N": "0.5"}, {"S": "x"}]}),
        ({"a": {"b": None}}, None, {"M": {"a": {"M": {"b": {"NULL": True}}}}}),
        ("x", "TEXT", {"S": "x"}),
        (42.0, "BIGINT", {"N": "42"}),
        (-(2**63), "BIGINT", {"N": str(-(2**63))}),
        (Decimal("0.1000000000000000055"), "DOUBLE", {"N": "0.1"}),
        (3, "DOUBLE", {"N": "3"}),
        (Decimal("1." + "1" * 37), "DECIMAL", {"N": "1." + "1" * 37}),
        (False, "BOOLEAN", {"BOOL": False}),
        ("aGk=", "BLOB", {"B": b"hi"}),
        (b"hi", "BLOB", {"B": b"hi"}),
        (
            '{"a": [1, 2.50, 123456789012345678901234567890]}',
            "JSON",
            {"M": {"a": {"L": [{"N": "1"}, {"N": "2.5"}, {"N": "123456789012345678901234567890"}]}}},
        ),
        ({"a": 1}, "JSON", {"M": {"a": {"N": "1"}}}),
        ("null", "JSON", {"NULL": True}),
    ],
)
def test_to_attribute(plain: Any, kind: str | None, typed: Any) -> None:
    assert to_attribute(plain, kind) == typed


@pytest.mark.parametrize(
    ("plain", "kind", "words"),
    [
        ("x", "BIGINT", "BIGINT"),
        (1.5, "BIGINT", "whole"),
        (2**63, "BIGINT", "does not fit"),
        (True, "BIGINT", "BIGINT"),
        (1, "TEXT", "TEXT"),
        (1, "BOOLEAN", "BOOLEAN"),
        ("%", "BLOB", "base64"),
        (1, "BLOB", "BLOB"),
        ("{", "JSON", "not JSON"),
        (float("nan"), None, "NaN"),
        (float("inf"), "DOUBLE", "Infinity"),
        (10**400, "DOUBLE", "does not fit"),
        (10**130, None, "overflow"),
        (Decimal("1." + "1" * 40), "DECIMAL", "38"),
        ("\ud800", "TEXT", "surrogate"),
        (object(), None, "cannot be stored"),
        (1, "DATE", "unknown column type"),
    ],
)
def test_what_does_not_fit_is_refused(plain: Any, kind: str | None, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        to_attribute(plain, kind)


def test_from_attribute() -> None:
    assert from_attribute(None) is None and from_attribute({"NULL": True}) is None
    assert from_attribute({"N": "42"}) == 42 and type(from_attribute({"N": "42"})) is int
    assert from_attribute({"N": "1.5"}) == Decimal("1.5")
    assert from_attribute({"L": [{"M": {"a": {"B": b"x"}}}]}) == [{"a": b"x"}]


@pytest.mark.parametrize(
    ("plain", "wanted"),
    [
        (None, b"null"),
        (True, b"true"),
        (42, b"42"),
        (Decimal("42.0"), b"42"),
        (42.0, b"42"),
        (Decimal("1.50"), b"1.5"),
        (10**30, b"1" + b"0" * 30),
        ("x", b'"x"'),
        ('a"\né', '"a\\"\\né"'.encode()),
        (b"hi", b'"aGk="'),
        ({"b": [1, None], "a": "x"}, b'{"a":"x","b":[1,null]}'),
        ({"y", "x"}, b'["x","y"]'),
    ],
)
def test_key_text(plain: Any, wanted: bytes) -> None:
    assert key_text(plain) == wanted

"""Values that are stored: what has no result is an error there, and NULL in a filter."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.scalar import NoResult, exact_value, value
from tailrace.tables.value import item_from_plain

ROW: dict[str, Any] = {"t": "text", "n": 7, "big": 10**37, "l": [1], "b": b"\xff"}


def row() -> Any:
    return item_from_plain(ROW)[0]


@pytest.mark.parametrize(
    "text",
    [
        "n / 0", "n // 0", "n % 0", "big * big + 1", "big * 1000 + 1", "t + 1", "-t", "ABS(t)", "CAST(t AS BIGINT)",
        "CAST(t AS DECIMAL(5, 2))", "CAST(t AS DOUBLE)", "CAST(t AS BOOLEAN)", "CAST(n AS BLOB)", "CAST(b AS TEXT)",
        "CAST(t AS JSON)", "UPPER(n)", "TRIM(l)", "b || t", "CONCAT(b, t)", "LENGTH(n)", "SUBSTR(t, 1.5)",
        "GREATEST(n, t)", "LEAST(l, l)", "ROUND(t)",
    ],
)  # fmt: skip
def test_what_has_no_result_is_an_error_where_it_is_stored_and_null_elsewhere(text: str) -> None:
    assert value(text).of(row()) is None
    with pytest.raises(NoResult):
        exact_value(text).of(row())


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("n + 1", 8), ("n / 2", None), ("missing + 1", None), ("UPPER(missing)", None), ("missing || t", None),
        ("CAST(missing AS BIGINT)", None), ("TRY_CAST(t AS BIGINT)", None), ("TRY_CAST(t AS DECIMAL(3, 1))", None),
        ("TRY_CAST(t AS JSON)", None), ("CONCAT(missing, t)", "text"), ("CONCAT(missing)", ""), ("NULLIF(n, 7)", None),
        ("GREATEST(missing, n)", 7), ("GREATEST(missing)", None), ("CASE WHEN t = 'x' THEN 1 END", None),
        ("CASE WHEN missing > 1 THEN 1 ELSE 2 END", 2), ("t LIKE missing", None), ("LENGTH(l)", 1), ("t", "text"),
        ("SUBSTR(t, 2, 2)", "ex"), ("CAST('12' AS BIGINT)", 12),
    ],
)  # fmt: skip
def test_everything_else_is_the_same(text: str, result: Any) -> None:
    found = exact_value(text).of(row())
    assert found == value(text).of(row())
    if text != "n / 2":
        assert found == result


def test_a_text_that_grows_too_long_is_an_error() -> None:
    grown = exact_value("REPLACE(REPLACE(?, 'a', ?), 'b', ?)")
    with pytest.raises(NoResult, match="longer than"):
        grown.of(None, None, ("a" * 1000, "b" * 600, "c" * 500))

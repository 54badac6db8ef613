from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.log.position import BEGINNING, NOW, offset, parse

positions = st.integers(0, limits.POSITION_MAX)


def test_the_wire_form() -> None:
    assert offset(0) == "0000000000000000_0000000000000000"
    assert offset(42) == "0000000000000000_0000000000000042"
    assert offset(limits.POSITION_MAX) == "0000000000000000_9999999999999999"


@given(positions)
def test_there_and_back(position: int) -> None:
    assert parse(offset(position)) == position
    assert offset(position) not in (BEGINNING, NOW)


@given(positions, positions)
def test_offsets_sort_like_positions(one: int, other: int) -> None:
    assert (offset(one) < offset(other)) == (one < other)


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "-1", "now", "-2", "42", "0_0",
        "0000000000000000_000000000000000", "0000000000000000_00000000000000000",
        "0000000000000001_0000000000000000", "0000000000000000-0000000000000000", " 0000000000000000_0000000000000000",
        "0000000000000000_0000000000000000\n", "0000000000000000_000000000000000a", "0000000000000000_-000000000000001",
        "0000000000000000_000000000000000٣", "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠_0000000000000000", "x" * 10_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert refused.value.code == "INVALID_OFFSET"
    assert repr(text[:80]) in str(refused.value)
    assert len(str(refused.value)) < 400
    assert "Stream-Next-Offset" in str(refused.value)

"""LIKE: every way to look for a segment finds the same, and none takes long."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tailrace.scalar import pattern
from tailrace.scalar.pattern import matcher


def meant(wanted: str, text: str) -> bool:
    regex = "".join(".*" if each == "%" else "." if each == "_" else re.escape(each) for each in wanted)
    return re.fullmatch(regex, text, re.DOTALL) is not None


@settings(deadline=None)
@given(st.text("ab_%", max_size=8), st.text("ab", max_size=10), st.sampled_from([0, 4_000_000]))
def test_both_ways_find_what_is_meant(wanted: str, text: str, steps_max: int) -> None:
    before, pattern.STEPS_MAX = pattern.STEPS_MAX, steps_max  # type: ignore[misc]
    try:
        assert matcher(wanted, None, False)(text) is meant(wanted, text)
    finally:
        pattern.STEPS_MAX = before  # type: ignore[misc]


def test_a_long_pattern_on_a_long_text_is_not_tried_place_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Regex:
        def __init__(self, of: re.Pattern[str]) -> None:
            self.match, self.fullmatch, self._of = of.match, of.fullmatch, of

        def search(self, text: str, at: int) -> Any:
            searched.append((len(text) - at) * len(self._of.pattern))
            return self._of.search(text, at)

    regex = pattern._regex
    monkeypatch.setattr(pattern, "_regex", lambda segment: Regex(regex(segment)))
    matcher.cache_clear()
    try:
        assert matcher("%" + "a_" * 500 + "b%", None, False)("a" * 400_000) is False
        assert matcher("%" + "a_" * 500 + "b%", None, False)("a" * 400_000 + "b") is True
        assert matcher("%a_b%", None, False)("a" * 400_000) is False
    finally:
        matcher.cache_clear()
    assert searched and max(searched) <= pattern.STEPS_MAX

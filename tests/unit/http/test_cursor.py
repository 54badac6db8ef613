from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.http import cursor

NOW_MS = 1_800_000_000_000
CURRENT = cursor.current(NOW_MS)


def test_an_interval_is_twenty_seconds_since_9_october_2024() -> None:
    assert cursor.current(1_728_432_000_000) == 0
    assert cursor.current(1_728_432_000_000 + 19_999) == 0
    assert cursor.current(1_728_432_000_000 + 20_000) == 1
    assert cursor.current(0) == 0, "a clock that is wrong still gives a number that is taken again"


@pytest.mark.parametrize(
    "client",
    [None, "", "abc", "-1", "1.5", " 1", "1 ", "٣", "²", "9" * 16, "9" * 19, str(cursor.CURSOR_MAX + 1), "0x1", "+1"],
)
def test_what_is_not_a_number_counts_as_not_sent(client: str | None) -> None:
    assert cursor.following(NOW_MS, client) == CURRENT


def test_a_client_from_the_past_gets_the_present() -> None:
    assert cursor.following(NOW_MS, "0") == CURRENT
    assert cursor.following(NOW_MS, str(CURRENT - 1)) == CURRENT


@given(st.integers(0, 10**15), st.integers(0, 10**6))
def test_a_cursor_never_goes_back_nor_repeats(seen: int, later_s: int) -> None:
    answer = cursor.following(NOW_MS + later_s * 1000, str(seen))
    assert answer >= cursor.current(NOW_MS + later_s * 1000)
    assert answer > seen or seen < CURRENT
    assert answer <= max(cursor.current(NOW_MS + later_s * 1000), seen + cursor.JITTER_S_MAX // cursor.INTERVAL_S)


@pytest.mark.parametrize("made_up", [10**15, cursor.CURSOR_MAX - 500, cursor.CURSOR_MAX, 10**17, 10**18 - 1, 10**18])
def test_what_was_answered_is_taken_again(made_up: int) -> None:
    """Whatever a client began with: from then on it sends what it was given, and never goes back."""
    seen = cursor.following(NOW_MS, str(made_up))
    for _ in range(20):
        answer = cursor.following(NOW_MS, str(seen))
        assert answer > seen or answer == seen == cursor.CURSOR_MAX
        seen = answer


def test_the_steps_are_spread() -> None:
    assert len({cursor.following(NOW_MS, str(CURRENT)) for _ in range(200)}) > 20

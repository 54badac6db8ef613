"""Who guesses is slowed down, by user and by address; who is right is not; and memory is bounded."""

from __future__ import annotations

import pytest

from tailrace.auth import slowing
from tailrace.auth.slowing import PEER_FREE, USER_FREE, WAIT_S_MAX, Slowing, network
from tailrace.clock import ManualClock
from tailrace.errors import Slowed


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def wait_of(slow: Slowing, user: str = "ann", peer: str = "10.0.0.1") -> int:
    """How long is to be waited; 0: the attempt was let through."""
    try:
        slow.begin(user, peer)
    except Slowed as error:
        return error.retry_after_s
    return 0


def test_waits_double_up_to_a_bound(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    assert [wait_of(slow) for _ in range(USER_FREE)] == [0] * USER_FREE
    waits = []
    for _ in range(10):
        waits.append(wait_of(slow))
        clock.advance(waits[-1])
        assert wait_of(slow) == 0, "the time was waited for"
    assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert max(waits) == WAIT_S_MAX


def test_what_comes_too_soon_does_not_make_it_longer(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    for _ in range(USER_FREE):
        wait_of(slow)
    assert [wait_of(slow) for _ in range(50)] == [1] * 50
    clock.advance(1)
    assert wait_of(slow) == 0


def test_a_success_resets(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    for _ in range(30):
        for _ in range(USER_FREE - 1):
            assert wait_of(slow) == 0
        slow.succeeded("ann", "10.0.0.1")


def test_another_user_is_not_slowed_nor_another_address(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    for _ in range(USER_FREE):
        wait_of(slow)
    assert wait_of(slow) > 0
    assert wait_of(slow, "bob") == 0


def test_an_address_that_tries_many_users_is_slowed(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    waits = [wait_of(slow, f"user{number}") for number in range(PEER_FREE + 1)]
    assert waits == [0] * PEER_FREE + [1]
    assert wait_of(slow, "someone", "10.0.0.2") == 0


def test_an_account_of_ones_own_does_not_buy_guesses_at_others(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    waits = []
    for number in range(PEER_FREE + 5):
        waits.append(wait_of(slow, f"user{number}"))
        if wait_of(slow, "mine") == 0:
            slow.succeeded("mine", "10.0.0.1")
    assert waits[-1] > 0


def test_it_is_forgotten(clock: ManualClock) -> None:
    slow = Slowing(clock.monotonic_s)
    for _ in range(USER_FREE):
        wait_of(slow)
    clock.advance(slowing.FORGET_S)
    assert [wait_of(slow) for _ in range(USER_FREE)] == [0] * USER_FREE


def test_memory_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowing, "TRACKED_MAX", 50)
    slow = Slowing(clock.monotonic_s)
    for number in range(500):
        wait_of(slow, f"user{number}", f"10.0.{number // 250}.{number % 250}")
    assert len(slow) == 100


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::1%eth1", True),
        ("", "", True),
        ("unix", "other", False),
    ],
)
def test_addresses_of_one_customer_count_as_one(one: str, other: str, same: bool) -> None:
    assert (network(one) == network(other)) == same

"""Guessing is throttled by user and by address; a right password is not locked out; memory is bounded."""

from __future__ import annotations

import pytest

from tailrace import limits
from tailrace.auth.throttle import LoginThrottle, network
from tailrace.clock import ManualClock
from tailrace.errors import LoginThrottled


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def wait_of(slow: LoginThrottle, user: str = "ann", peer: str = "10.0.0.1", *, known: bool = True) -> int:
    """How long is to be waited; 0: the attempt was let through."""
    try:
        slow.begin(user, peer, known=known)
    except LoginThrottled as error:
        return error.retry_after_s
    return 0


def test_waits_double_up_to_a_bound(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    assert [wait_of(slow) for _ in range(limits.LOGIN_USER_FREE)] == [0] * limits.LOGIN_USER_FREE
    waits = []
    for _ in range(10):
        waits.append(wait_of(slow))
        clock.advance(waits[-1])
        assert wait_of(slow) == 0, "the time was waited for"
    assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert max(waits) == limits.LOGIN_WAIT_S_MAX


def test_what_comes_too_soon_does_not_make_it_longer(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_USER_FREE):
        wait_of(slow)
    assert [wait_of(slow) for _ in range(50)] == [1] * 50
    clock.advance(1)
    assert wait_of(slow) == 0


def test_a_success_resets(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(30):
        for _ in range(limits.LOGIN_USER_FREE - 1):
            assert wait_of(slow) == 0
        slow.succeeded("ann", "10.0.0.1")


def test_another_user_is_not_throttled_nor_another_address(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_USER_FREE):
        wait_of(slow)
    assert wait_of(slow) > 0
    assert wait_of(slow, "bob") == 0
    assert wait_of(slow, peer="10.0.0.2") == 0


def test_an_address_that_tries_many_users_is_throttled(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    waits = [wait_of(slow, f"user{number}") for number in range(limits.LOGIN_PEER_FREE + 1)]
    assert waits == [0] * limits.LOGIN_PEER_FREE + [1]
    assert wait_of(slow, "someone", "10.0.0.2") == 0


def test_an_account_of_ones_own_does_not_buy_guesses_at_others(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    waits = []
    for number in range(limits.LOGIN_PEER_FREE + 5):
        waits.append(wait_of(slow, f"user{number}"))
        if wait_of(slow, "mine") == 0:
            slow.succeeded("mine", "10.0.0.1")
    assert waits[-1] > 0


def test_it_is_forgotten(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_USER_FREE):
        wait_of(slow)
    clock.advance(limits.LOGIN_FORGET_S)
    assert [wait_of(slow) for _ in range(limits.LOGIN_USER_FREE)] == [0] * limits.LOGIN_USER_FREE


def test_memory_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 50)
    slow = LoginThrottle(clock.monotonic_s)
    for number in range(500):
        for known in (True, False):
            wait_of(slow, f"user{number}", f"10.0.{number // 250}.{number % 250}", known=known)
        slow.succeeded(f"user{number}", f"10.1.{number // 250}.{number % 250}")
        slow.trust("ann", f"10.2.{number // 250}.{number % 250}")
        slow.failed(f"10.3.{number // 250}.{number % 250}")
        clock.advance(0.01)
    assert len(slow) <= 50 * 7 + limits.LOGIN_TRUSTED_MAX


def guessed_from_everywhere(slow: LoginThrottle, count: int = limits.LOGIN_ANYWHERE_FREE) -> None:
    for number in range(count):
        assert wait_of(slow, peer=f"10.7.0.{number}") == 0


def test_guesses_from_many_addresses_are_throttled(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    guessed_from_everywhere(slow)
    accepted, began_s = 0, clock.monotonic_s()
    for number in range(600):
        accepted += wait_of(slow, peer=f"10.{8 + number // 250}.0.{number % 250}") == 0
        clock.advance(1)
    assert clock.monotonic_s() - began_s == 600
    assert accepted <= 600 / limits.LOGIN_ANYWHERE_WAIT_S_MAX + 5


def test_a_known_address_is_not_throttled(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    assert wait_of(slow) == 0
    slow.succeeded("ann", "10.0.0.1")
    clock.advance(limits.LOGIN_TRUSTED_S - 100)
    guessed_from_everywhere(slow)
    assert wait_of(slow, peer="10.0.0.9") > 0
    assert wait_of(slow) == 0, "from the address that is known to be good"
    assert [wait_of(slow) for _ in range(limits.LOGIN_USER_FREE)][-1] > 0, "which is no place to guess from either"
    assert wait_of(slow, "bob", "10.0.0.9") == 0
    clock.advance(100 - 1)
    guessed_from_everywhere(slow, 1)
    assert wait_of(slow, peer="10.7.0.99") > 0
    clock.advance(1)
    guessed_from_everywhere(slow, 0)
    assert wait_of(slow) > 0, "for a while, not for ever"


def test_one_address_does_not_keep_others_out(clock: ManualClock) -> None:
    """Guessing from one address at the permitted rate leaves room for a right password from a new one."""
    slow = LoginThrottle(clock.monotonic_s)
    came_in = 0
    for second in range(1200):
        wait_of(slow, peer="10.6.6.6")
        if second > 600 and wait_of(slow, peer=f"10.0.0.{second % 250}") == 0:
            came_in += 1
            slow.succeeded("ann", f"10.0.0.{second % 250}")
        clock.advance(1)
    assert came_in > 300


def test_a_success_forgives_only_what_was_tried_from_there(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    guessed_from_everywhere(slow, limits.LOGIN_ANYWHERE_FREE - 1)
    for _ in range(3):
        assert wait_of(slow) == 0
        slow.succeeded("ann", "10.0.0.1")
    assert wait_of(slow, peer="10.0.0.8") == 0
    assert wait_of(slow, peer="10.0.0.9") > 0, "the twentieth from elsewhere was counted"


def test_what_is_refused_leaves_no_trace(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for number in range(limits.LOGIN_PEER_FREE):
        assert wait_of(slow, f"user{number}") == 0
    before = len(slow)
    for number in range(1000):
        assert wait_of(slow, f"made up {number}") > 0
    assert len(slow) == before


@pytest.mark.parametrize("known", [True, False])
def test_a_flood_of_names_makes_no_count_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 50)
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_USER_FREE):
        assert wait_of(slow) == 0
    assert wait_of(slow) > 0
    for number in range(500):
        assert wait_of(slow, f"made up {number}", f"10.1.{number // 250}.{number % 250}", known=known) == 0
    assert wait_of(slow) > 0


def test_names_that_no_user_has_take_no_room_from_users(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 50)
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_USER_FREE - 1):
        assert wait_of(slow) == 0
    for number in range(60):  # with more attempts each than ann has had
        for _ in range(limits.LOGIN_USER_FREE):
            wait_of(slow, f"made up {number}", f"10.1.0.{number}", known=False)
    assert wait_of(slow) == 0
    assert wait_of(slow) > 0


def test_what_is_due_goes_first(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOGIN_TRACKED_MAX", 50)
    slow = LoginThrottle(clock.monotonic_s)
    for number in range(25):
        for _ in range(3):
            wait_of(slow, f"old {number}", f"10.1.0.{number}")
    clock.advance(limits.LOGIN_FORGET_S)
    for number in range(25):
        wait_of(slow, f"new {number}", f"10.2.0.{number}")
    for _ in range(limits.LOGIN_USER_FREE):
        assert wait_of(slow) == 0
    for number in range(24):
        wait_of(slow, f"more {number}", f"10.3.0.{number}")
    assert len(slow) == 3 * 50
    assert wait_of(slow) > 0


def test_names_are_throttled_alike_whether_there_is_such_a_user_or_not(clock: ManualClock) -> None:
    known, unknown = LoginThrottle(clock.monotonic_s), LoginThrottle(clock.monotonic_s)
    for number in range(200):
        peer = f"10.0.0.{number % 7}"
        assert wait_of(known, peer=peer) == wait_of(unknown, peer=peer, known=False)
        clock.advance(0.3)


def test_an_address_with_bad_credentials_is_throttled(clock: ManualClock) -> None:
    slow = LoginThrottle(clock.monotonic_s)
    for _ in range(limits.LOGIN_PEER_FREE):
        slow.check_peer("ann", "10.0.0.1")
        slow.failed("10.0.0.1")
    with pytest.raises(LoginThrottled):
        slow.check_peer("ann", "10.0.0.1")
    slow.check_peer("ann", "10.0.0.2")
    slow.trust("ann", "10.0.0.1")
    slow.check_peer("ann", "10.0.0.1")
    assert wait_of(slow, "bob") == 0, "passwords are another matter"


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

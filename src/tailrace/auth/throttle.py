"""Throttles login attempts, so that passwords cannot be guessed. Pure but for the injected clock.

Theory of operation
-------------------
Attempts are counted three times: by user and address together, by address alone, and by user alone. The first few of
each are free; after that each attempt doubles the wait before the next one, up to a maximum, and an earlier attempt is
rejected without checking the password (`LoginThrottled`). An attempt counts when it begins, so that parallel attempts
gain nothing. A successful one is taken back, together with the user's failures from that address; failures on other
users stay, so that an attacker with one account gains no guesses at others.

The count by user alone is for guesses from many addresses. It has more free attempts and a shorter wait, and it does
not apply to addresses from which the user logged in recently: otherwise an attacker could lock a user out.

Rejected attempts are not counted. Counts are forgotten after some time without attempts; when there are too many,
expired counts are evicted first, then the lowest. Unknown user names are counted too, so that the response does not
show which users exist, but in tables of their own, so that made-up names cannot evict the counts of users.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

from tailrace import limits
from tailrace.errors import LoginThrottled

K = TypeVar("K", bound=Hashable)


class _AttemptCount:
    __slots__ = ("attempts", "before_s", "last_s", "until_s")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_s = 0.0
        self.before_s = 0.0  # `until_s` before the last attempt
        self.last_s = 0.0


class _AttemptCounts(Generic[K]):
    """The recent attempts of one kind, LOGIN_TRACKED_MAX at most."""

    def __init__(self, wait_s_max: float = limits.LOGIN_WAIT_S_MAX) -> None:
        self._wait_s_max = wait_s_max
        self._counts: dict[K, _AttemptCount] = {}

    def until_s(self, key: K) -> float:
        """When the next attempt may begin. Changes nothing."""
        count = self._counts.get(key)
        return 0.0 if count is None else count.until_s

    def add(self, key: K, free: int, now_s: float) -> None:
        """Count an attempt that begins now."""
        count = self._counts.get(key)
        if count is None or count.last_s + limits.LOGIN_FORGET_S <= now_s:
            if count is None and len(self._counts) >= limits.LOGIN_TRACKED_MAX:
                self._make_room(now_s)
            count = self._counts[key] = _AttemptCount()
        count.attempts += 1
        count.last_s = now_s
        count.before_s = count.until_s
        over = count.attempts - free
        if over >= 0:
            count.until_s = now_s + min(limits.LOGIN_WAIT_S_MIN * 2.0 ** min(over, 16), self._wait_s_max)

    def take_back(self, key: K, attempts: int, free: int) -> None:
        """Uncount attempts, the last one included."""
        count = self._counts.get(key)
        if count is None:
            return
        count.attempts -= attempts
        if count.attempts <= 0:
            del self._counts[key]
        else:
            count.until_s = 0.0 if count.attempts < free else count.before_s

    def forgive(self, key: K) -> int:
        """Forget the attempts; returns their number."""
        count = self._counts.pop(key, None)
        return 0 if count is None else count.attempts

    def _make_room(self, now_s: float) -> None:
        """Evict expired counts and, if that is not enough, a tenth: those with the fewest attempts, oldest first."""
        counts = self._counts
        kept = {key: count for key, count in counts.items() if count.last_s + limits.LOGIN_FORGET_S > now_s}
        if len(kept) >= limits.LOGIN_TRACKED_MAX:
            order = sorted(kept, key=lambda key: (kept[key].attempts, kept[key].last_s))
            for key in order[: len(kept) - limits.LOGIN_TRACKED_MAX + 1 + limits.LOGIN_TRACKED_MAX // 10]:
                del kept[key]
        self._counts = kept

    def __len__(self) -> int:
        return len(self._counts)


class _UserAttempts:
    """Attempts on users: per address, and from all addresses."""

    def __init__(self) -> None:
        self.here: _AttemptCounts[tuple[str, str]] = _AttemptCounts()
        self.anywhere: _AttemptCounts[str] = _AttemptCounts(limits.LOGIN_ANYWHERE_WAIT_S_MAX)


class LoginThrottle:
    """The recent login attempts. For one thread."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._known = _UserAttempts()
        self._unknown = _UserAttempts()
        self._peers: _AttemptCounts[str] = _AttemptCounts()
        # Addresses as well, counted separately: rejected tokens must not throttle password logins.
        self._refused: _AttemptCounts[str] = _AttemptCounts()
        self._counting = threading.Lock()  # signatures of large requests are verified in threads
        self._trusted: dict[str, dict[str, float]] = {}  # when a user last succeeded, by address

    async def attempt(self, user: str, peer: str, *, known: bool = True) -> None:
        """As `begin`, where the counts may be kept by another process."""
        self.begin(user, peer, known=known)

    def begin(self, user: str, peer: str, *, known: bool = True) -> None:
        """Count an attempt, or raise `LoginThrottled` if it comes too soon. `known`: the user exists."""
        now_s, address = self._monotonic_s(), network(peer)
        tried = self._known if known else self._unknown
        until_s = max(tried.here.until_s((user, address)), self._peers.until_s(address))
        if not self._is_trusted(user, address, now_s):
            until_s = max(until_s, tried.anywhere.until_s(user))
        if until_s > now_s:
            raise LoginThrottled(until_s - now_s)
        tried.here.add((user, address), limits.LOGIN_USER_FREE, now_s)
        tried.anywhere.add(user, limits.LOGIN_ANYWHERE_FREE, now_s)
        self._peers.add(address, limits.LOGIN_PEER_FREE, now_s)

    def succeeded(self, user: str, peer: str) -> None:
        """The password was right: take back the user's failures from this address, and trust the address."""
        address = network(peer)
        failed = self._known.here.forgive((user, address))
        self._known.anywhere.take_back(user, failed, limits.LOGIN_ANYWHERE_FREE)
        self._peers.take_back(address, failed, limits.LOGIN_PEER_FREE)
        self.trust(user, peer)

    def trust(self, user: str, peer: str) -> None:
        """Trust this address for the user, who was authenticated from it."""
        addresses = self._trusted.pop(user, {})
        address = network(peer)
        addresses.pop(address, None)
        if len(addresses) >= limits.LOGIN_TRUSTED_MAX:
            del addresses[next(iter(addresses))]
        addresses[address] = self._monotonic_s()  # inserted last: the first is the oldest
        if len(self._trusted) >= limits.LOGIN_TRACKED_MAX:
            del self._trusted[next(iter(self._trusted))]
        self._trusted[user] = addresses

    # -- tokens and signatures: they cannot be guessed, but rejecting them costs CPU

    def check_peer(self, user: str, peer: str) -> None:
        """Raise `LoginThrottled` if this address was rejected too often, unless the user logged in from it recently."""
        now_s, address = self._monotonic_s(), network(peer)
        until_s = self._refused.until_s(address)
        if until_s > now_s and not self._is_trusted(user, address, now_s):
            raise LoginThrottled(until_s - now_s)

    def failed(self, peer: str) -> None:
        """Count a rejected request from this address. For any thread."""
        with self._counting:
            self._refused.add(network(peer), limits.LOGIN_PEER_FREE, self._monotonic_s())

    def _is_trusted(self, user: str, address: str, now_s: float) -> bool:
        last_s = self._trusted.get(user, {}).get(address)
        return last_s is not None and last_s + limits.LOGIN_TRUSTED_S > now_s

    def __len__(self) -> int:
        counts = [each for tried in (self._known, self._unknown) for each in (tried.here, tried.anywhere)]
        counted = sum(len(each) for each in counts) + len(self._peers) + len(self._refused)
        return counted + sum(len(addresses) for addresses in self._trusted.values())


def network(peer: str) -> str:
    """The key under which an address is counted: itself, or the /64 network of an IPv6 address."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped is not None else address.packed[:8].hex()
    return str(address)

"""Slows down who guesses passwords. Pure but for the clock it is given.

Theory of operation
-------------------
Attempts are counted three times: by the user that is tried together with the address that tries, by the address alone,
and by the user alone. The first few of each are free; after that each one makes the next wait twice as long, up to a
bound, and what comes sooner is refused unseen (`Slowed`). An attempt counts when it begins, so that many at once gain
nothing; one that succeeds is taken back, with all that its user failed from that address. No more than that: whoever
has one account cannot buy guesses at others with it.

The count by user alone is for guesses from many addresses. It has more free attempts and a shorter wait, and it does
not hold for addresses from which the user succeeded lately: otherwise anybody could keep a user out by guessing.

What is refused leaves no trace. Counts are forgotten after a while without attempts; where there are too many, those
that were due go first, then the lowest. Names that no user has are counted like others, so that nothing shows which
there are, but in tables of their own: whoever makes names up makes nobody's count forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeVar

from tailrace.errors import Slowed

USER_FREE: Final = 5  # attempts on one user from one address before the first wait
PEER_FREE: Final = 20  # attempts from one address: many people may share it
ANYWHERE_FREE: Final = 20  # attempts on one user from wherever
FIRST_WAIT_S: Final = 1.0
WAIT_S_MAX: Final = 60.0
ANYWHERE_WAIT_S_MAX: Final = 10.0  # shorter: one address that guesses once a minute must not keep all others out
FORGET_S: Final = 900.0
TRACKED_MAX: Final = 10_000  # of each kind of count
SPARED_S: Final = 7 * 86_400.0  # how long an address is spared after a success
SPARED_MAX: Final = 10  # addresses of one user; the one that was longest unused goes

K = TypeVar("K", bound=Hashable)


class _Count:
    __slots__ = ("attempts", "before_s", "last_s", "until_s")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_s = 0.0
        self.before_s = 0.0  # `until_s` before the last attempt
        self.last_s = 0.0


class _Counts(Generic[K]):
    """The attempts of late of one kind, so many at most."""

    def __init__(self, wait_s_max: float = WAIT_S_MAX) -> None:
        self._wait_s_max = wait_s_max
        self._counts: dict[K, _Count] = {}

    def until_s(self, key: K) -> float:
        """When the next attempt may begin. Only looks."""
        count = self._counts.get(key)
        return 0.0 if count is None else count.until_s

    def add(self, key: K, free: int, now_s: float) -> None:
        """Count an attempt that begins now."""
        count = self._counts.get(key)
        if count is None or count.last_s + FORGET_S <= now_s:
            if count is None and len(self._counts) >= TRACKED_MAX:
                self._make_room(now_s)
            count = self._counts[key] = _Count()
        count.attempts += 1
        count.last_s = now_s
        count.before_s = count.until_s
        over = count.attempts - free
        if over >= 0:
            count.until_s = now_s + min(FIRST_WAIT_S * 2.0 ** min(over, 16), self._wait_s_max)

    def take_back(self, key: K, attempts: int, free: int) -> None:
        """So many attempts, with the last of all, do not count after all."""
        count = self._counts.get(key)
        if count is None:
            return
        count.attempts -= attempts
        if count.attempts <= 0:
            del self._counts[key]
        else:
            count.until_s = 0.0 if count.attempts < free else count.before_s

    def forgive(self, key: K) -> int:
        """Forget the attempts; how many there were."""
        count = self._counts.pop(key, None)
        return 0 if count is None else count.attempts

    def _make_room(self, now_s: float) -> None:
        """Drop what is due and, where that is not enough, a tenth: the fewest attempts, of these the oldest."""
        counts = self._counts
        kept = {key: count for key, count in counts.items() if count.last_s + FORGET_S > now_s}
        if len(kept) >= TRACKED_MAX:
            order = sorted(kept, key=lambda key: (kept[key].attempts, kept[key].last_s))
            for key in order[: len(kept) - TRACKED_MAX + 1 + TRACKED_MAX // 10]:
                del kept[key]
        self._counts = kept

    def __len__(self) -> int:
        return len(self._counts)


class _Tried:
    """What was tried of users: each from one address, and each from wherever."""

    def __init__(self) -> None:
        self.here: _Counts[tuple[str, str]] = _Counts()
        self.anywhere: _Counts[str] = _Counts(ANYWHERE_WAIT_S_MAX)


class Slowing:
    """The attempts of late. For one thread."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._known = _Tried()
        self._unknown = _Tried()
        self._peers: _Counts[str] = _Counts()
        self._refused: _Counts[str] = _Counts()  # addresses too, apart: passwords are not slowed by what is no guess
        self._counting = threading.Lock()  # signatures of large requests are verified in threads
        self._spared: dict[str, dict[str, float]] = {}  # when a user last succeeded, by address

    def begin(self, user: str, peer: str, *, known: bool = True) -> None:
        """Count an attempt, or raise `Slowed` if it comes too soon. `known`: there is such a user."""
        now_s, place = self._monotonic_s(), network(peer)
        tried = self._known if known else self._unknown
        until_s = max(tried.here.until_s((user, place)), self._peers.until_s(place))
        if not self._spares(user, place, now_s):
            until_s = max(until_s, tried.anywhere.until_s(user))
        if until_s > now_s:
            raise Slowed(until_s - now_s)
        tried.here.add((user, place), USER_FREE, now_s)
        tried.anywhere.add(user, ANYWHERE_FREE, now_s)
        self._peers.add(place, PEER_FREE, now_s)

    def succeeded(self, user: str, peer: str) -> None:
        """The attempt was right: what the user failed from this address is taken back, and the address is spared."""
        place = network(peer)
        failed = self._known.here.forgive((user, place))
        self._known.anywhere.take_back(user, failed, ANYWHERE_FREE)
        self._peers.take_back(place, failed, PEER_FREE)
        self.spare(user, peer)

    def spare(self, user: str, peer: str) -> None:
        """The user has shown from this address who it is."""
        places = self._spared.pop(user, {})
        place = network(peer)
        places.pop(place, None)
        if len(places) >= SPARED_MAX:
            del places[next(iter(places))]
        places[place] = self._monotonic_s()  # the last of all: the first is the oldest
        if len(self._spared) >= TRACKED_MAX:
            del self._spared[next(iter(self._spared))]
        self._spared[user] = places

    # -- for what cannot be guessed, but costs something to refuse

    def check_peer(self, user: str, peer: str) -> None:
        """Raise `Slowed` if this address was refused too often, unless the user succeeded from it lately."""
        now_s, place = self._monotonic_s(), network(peer)
        until_s = self._refused.until_s(place)
        if until_s > now_s and not self._spares(user, place, now_s):
            raise Slowed(until_s - now_s)

    def failed(self, peer: str) -> None:
        """Something from this address was refused. For any thread."""
        with self._counting:
            self._refused.add(network(peer), PEER_FREE, self._monotonic_s())

    def _spares(self, user: str, place: str, now_s: float) -> bool:
        last_s = self._spared.get(user, {}).get(place)
        return last_s is not None and last_s + SPARED_S > now_s

    def __len__(self) -> int:
        counts = [each for tried in (self._known, self._unknown) for each in (tried.here, tried.anywhere)]
        counted = sum(len(each) for each in counts) + len(self._peers) + len(self._refused)
        return counted + sum(len(places) for places in self._spared.values())


def network(peer: str) -> str:
    """What an address is counted as: itself, or the network of 64 bits that one customer of IPv6 has."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped is not None else address.packed[:8].hex()
    return str(address)

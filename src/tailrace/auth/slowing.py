"""Slows down who guesses passwords. Pure but for the clock it is given.

Theory of operation
-------------------
Attempts are counted by the user that is tried and by the address that tries. The first few are free; after that each
one makes the next wait twice as long, up to a bound, and what comes sooner is refused unseen (`Slowed`). An attempt
counts when it begins, so that many at once gain nothing; one that succeeds is taken back, with its user's failures.
Of an address only that user's failures are forgiven: whoever has one account cannot buy guesses at others with it.
Counts are forgotten after a while without attempts, or when there are too many of them, the oldest first.

Names that no user has are counted like others, so that nothing shows which there are.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from tailrace.errors import Slowed

USER_FREE: Final = 5  # attempts on one user before the first wait
PEER_FREE: Final = 20  # attempts from one address: many people may share it
FIRST_WAIT_S: Final = 1.0
WAIT_S_MAX: Final = 60.0
FORGET_S: Final = 900.0
TRACKED_MAX: Final = 10_000  # users, and as many addresses


class _Count:
    __slots__ = ("attempts", "last_s", "until_s")

    def __init__(self) -> None:
        self.attempts = 0
        self.until_s = 0.0
        self.last_s = 0.0


class Slowing:
    """The attempts of late. For one thread."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._users: dict[str, _Count] = {}
        self._peers: dict[str, _Count] = {}

    def begin(self, user: str, peer: str) -> None:
        """Count an attempt, or raise `Slowed` if it comes too soon."""
        now_s = self._monotonic_s()
        mine, theirs = _counted(self._users, user, now_s), _counted(self._peers, network(peer), now_s)
        wait_s = max(mine.until_s, theirs.until_s) - now_s
        if wait_s > 0:
            raise Slowed(wait_s)
        _add(mine, USER_FREE, now_s)
        _add(theirs, PEER_FREE, now_s)

    def succeeded(self, user: str, peer: str) -> None:
        """The attempt was right: what was counted for the user is taken back."""
        mine = self._users.pop(user, None)
        theirs = self._peers.get(network(peer))
        if mine is not None and theirs is not None:
            theirs.attempts = max(0, theirs.attempts - mine.attempts)
            if theirs.attempts <= PEER_FREE:
                theirs.until_s = 0.0

    def __len__(self) -> int:
        return len(self._users) + len(self._peers)


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


def _counted(counts: dict[str, _Count], name: str, now_s: float) -> _Count:
    count = counts.pop(name, None)
    if count is None or count.last_s + FORGET_S <= now_s:
        count = _Count()
    if len(counts) >= TRACKED_MAX:
        del counts[next(iter(counts))]
    counts[name] = count  # the last of all: the first is the oldest
    return count


def _add(count: _Count, free: int, now_s: float) -> None:
    count.attempts += 1
    count.last_s = now_s
    over = count.attempts - free
    if over >= 0:
        count.until_s = now_s + min(FIRST_WAIT_S * 2.0 ** min(over, 16), WAIT_S_MAX)

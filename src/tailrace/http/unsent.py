"""The budget for output that clients have not taken yet, of all connections of one server.

Every connection with unsent output has an account here: what its transport has buffered, what is left of its
response, and the responses that wait for their turn. Accounts are ordered by the time of their last progress, so that
the first is the oldest stall. When the sum exceeds the limit, the oldest stalls are disconnected until an eighth of
the budget is free again, so that the accounts are not searched again for every byte.

Connections that take their output in the same turn of the event loop never have an account. A live event that is
sent to many readers is shared memory, and counts for a reader from the moment that it failed to take an earlier one:
the sum is then an upper bound of the memory in use. `Held` memory that several live responses refer to counts once.
"""

from __future__ import annotations

from typing import Final, Protocol

from tailrace import limits
from tailrace.metrics import Metrics

# Handed to a socket in one go. Longer responses follow in slices of this size as the client takes them.
SEND_BYTES: Final = 256 * limits.KiB
# Less than this in the buffer of a transport is counted by the clock tick, not with every response.
COUNTED_FROM: Final = 16 * limits.KiB


class Held:
    """Memory that live responses refer to while they send it in slices."""

    __slots__ = ("__weakref__", "holders", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.holders = 0


class Holder(Protocol):
    """A connection or response with unsent output."""

    def unsent(self) -> tuple[int, int]:
        """Bytes held for the client, and bytes that it has taken since it connected."""

    def cut(self) -> None:
        """Disconnect the client and let go of all memory held for it."""


class Account:
    """The unsent bytes of a holder, and the bytes that it had taken at its last progress."""

    __slots__ = ("taken", "unsent")

    def __init__(self, unsent: int, taken: int) -> None:
        self.unsent = unsent
        self.taken = taken


class Budget:
    """The accounts of one server."""

    def __init__(self, bytes_max: int, stats: Metrics) -> None:
        self._bytes_max = bytes_max
        self._stats = stats
        self._accounts: dict[Holder, Account] = {}  # oldest stall first
        self._cutting = False

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._accounts

    def note(self, holder: Holder) -> None:
        """Bring the account of `holder` up to date, and disconnect the oldest stalls if the sum is too large."""
        self._measure(holder)
        if self._stats.unsent_bytes > self._bytes_max:
            self._make_room()

    def forget(self, holder: Holder) -> None:
        account = self._accounts.pop(holder, None)
        if account is not None:
            self._stats.unsent_bytes -= account.unsent

    def hold(self, held: Held) -> None:
        """Count memory that a live response begins to refer to."""
        held.holders += 1
        if held.holders == 1:
            self._stats.unsent_bytes += held.size
            if self._stats.unsent_bytes > self._bytes_max:
                self._make_room()

    def release(self, held: Held) -> None:
        held.holders -= 1
        if not held.holders:
            self._stats.unsent_bytes -= held.size

    def disconnect(self, holder: Holder) -> None:
        """Disconnect a client that exceeds a limit."""
        self.forget(holder)
        self._stats.unsent_disconnects += 1
        holder.cut()

    def _measure(self, holder: Holder) -> bool:
        """Whether the holder has made progress since it was last measured."""
        unsent, taken = holder.unsent()
        account = self._accounts.get(holder)
        if account is None:
            if unsent:
                self._accounts[holder] = Account(unsent, taken)
                self._stats.unsent_bytes += unsent
            return not unsent
        self._stats.unsent_bytes += unsent - account.unsent
        account.unsent = unsent
        progress = taken > account.taken
        if progress or not unsent:
            del self._accounts[holder]
            if unsent:
                account.taken = taken
                self._accounts[holder] = account
        return progress or not unsent

    def _make_room(self) -> None:
        if self._cutting:
            return
        self._cutting = True
        goal = self._bytes_max - self._bytes_max // 8
        for holder in list(self._accounts)[:-1]:  # the newest has had no time to show progress
            if self._stats.unsent_bytes <= goal:
                break
            if holder in self._accounts and not self._measure(holder):
                self.disconnect(holder)
        while self._stats.unsent_bytes > self._bytes_max and self._accounts:
            self.disconnect(next(iter(self._accounts)))
        self._cutting = False

"""Logins of all servers are counted together: attempts with passwords at the writer, refused tokens everywhere.

An attempt with a password is checked and counted by the writer alone. Rejected tokens and signatures only cost CPU, so
each server counts its own at once, and hears of the others' through the writer.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.auth.throttle import LoginThrottle
from tailrace.bus.asking import BeginLogin, LoginNoted
from tailrace.bus.forwarder import Forwarder

SUCCEEDED, TRUSTED, FAILED = "succeeded", "trusted", "failed"


def note(throttle: LoginThrottle, news: LoginNoted) -> None:
    """Count what another server has seen."""
    if news.what == SUCCEEDED:
        LoginThrottle.succeeded(throttle, news.user, news.peer)
    elif news.what == TRUSTED:
        LoginThrottle.trust(throttle, news.user, news.peer)
    elif news.what == FAILED:
        LoginThrottle.failed(throttle, news.peer)


class SharedThrottle(LoginThrottle):
    """The login attempts, as a server that does not write sees them."""

    def __init__(self, monotonic_s: Callable[[], float], forwarder: Forwarder) -> None:
        super().__init__(monotonic_s)
        self._forwarder = forwarder

    async def attempt(self, user: str, peer: str, *, known: bool = True) -> None:
        await self._forwarder.ask(BeginLogin(user, peer, known))

    def succeeded(self, user: str, peer: str) -> None:
        LoginThrottle.trust(self, user, peer)
        self._forwarder.tell(LoginNoted(SUCCEEDED, user, peer))

    def trust(self, user: str, peer: str) -> None:
        super().trust(user, peer)
        self._forwarder.tell(LoginNoted(TRUSTED, user, peer))

    def failed(self, peer: str) -> None:
        super().failed(peer)
        self._forwarder.tell(LoginNoted(FAILED, "", peer))

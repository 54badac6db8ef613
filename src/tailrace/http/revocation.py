"""Revocation: long-running requests end when their callers lose the right to make them.

A request is authenticated when it begins. Long-polls, consumers that wait, event streams and downloads go on then.
Each of them has a `Caller` here. When a commit changes the user (dropped, disabled, another role, password or list, a
session ended), or when the token expires, the caller has *changed*: its credentials are verified again, as if the
request came now. If they are refused the request ends with that error. If they are still good but stand for other
rights, it ends as it does at its time-out, and the client's next request is judged by these. Otherwise it goes on.

The principals of the server's token and of dev mode never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Error
from tailrace.http.authentication import EVERYONE, TOKEN, Authenticator
from tailrace.http.message import LiveResponse, Request, ResponseSink
from tailrace.log.tail import MISSED, USERS_CHANGED

NEVER_S: Final = 86_400.0  # a timer that fires early only makes the credentials be checked again
TIMER_S_MIN: Final = 0.01


class Caller:
    """The caller of a request that goes on. `changed`: call `is_same` before anything more is sent; `wake` is called
    when it becomes true."""

    __slots__ = ("_callers", "_request", "_timer", "changed", "principal", "wake")

    def __init__(self, callers: CallerRegistry | None, request: Request | None, principal: Principal) -> None:
        self._callers = callers
        self._request = request
        self._timer: asyncio.TimerHandle | None = None
        self.principal = principal
        self.changed = False
        self.wake: Callable[[], None] | None = None

    def follow(self) -> None:
        """Follow changes from now on, and those since the request was authenticated; a second call does nothing."""
        if self._callers is not None and self._request is not None and self._timer is None:
            self._timer = self._callers.add(self, self._request)

    def close(self) -> None:
        if self._timer is not None and self._callers is not None:
            self._timer.cancel()
            self._timer = None
            self._callers.remove(self)

    def change(self) -> None:
        """The caller's rights may have changed."""
        self.changed = True
        if self.wake is not None:
            self.wake()

    async def is_same(self) -> bool:
        """Whether the caller still has the rights that it came with; raises if its credentials are no longer good."""
        assert self._callers is not None and self._request is not None, "a fixed principal does not change"
        while self.changed:
            self.changed = False
            authenticator = self._callers.authenticator
            principal = authenticator.known(self._request) or await authenticator.find(self._request)
            if principal != self.principal:
                self.changed = True
                return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._callers.timer(self, self._request)
        return True


class CallerRegistry:
    """The callers of all requests that go on, by the names of their principals. For the event loop's thread."""

    def __init__(self, db: Database, authenticator: Authenticator) -> None:
        self.authenticator = authenticator
        self._db = db
        self._followed: dict[str, set[Caller]] = {}
        self._checks: set[asyncio.Task[None]] = set()
        # After that of the authenticator, which has removed the user from its cache by then.
        self._unsubscribe = db.tail.subscribe(USERS_CHANGED, self._on_changed)

    def close(self) -> None:
        """Stop following changes."""
        self._unsubscribe()

    def of(self, request: Request, principal: Principal) -> Caller:
        """The caller of a request, to be followed when the request begins to wait."""
        if principal is TOKEN or principal is EVERYONE:
            return Caller(None, None, principal)
        return Caller(self, request, principal)

    def guarded(self, request: Request, principal: Principal, live: LiveResponse) -> LiveResponse:
        """The same response, which ends as soon as the caller may no longer have it."""
        if principal is TOKEN or principal is EVERYONE:
            return live

        async def run(sink: ResponseSink) -> None:
            caller, revoked = Caller(self, request, principal), False
            task = asyncio.current_task()
            assert task is not None, "a live answer runs in a task"

            async def check() -> None:
                nonlocal revoked
                try:
                    # While a password is verified, commits would still be sent: the client has to reconnect.
                    revoked = self.authenticator.is_forgotten_password(request) or not await caller.is_same()
                except Error:
                    revoked = True
                if revoked:
                    task.cancel()

            caller.wake = lambda: self._begin(check())
            caller.follow()
            try:
                await live.run(sink)
            except asyncio.CancelledError:
                if live.whole or not revoked:
                    raise
                task.uncancel()
            finally:
                caller.wake = None
                caller.close()

        return LiveResponse(live.status, live.headers, run, whole=live.whole)

    def add(self, caller: Caller, request: Request) -> asyncio.TimerHandle:
        """Follow a caller; the timer for the end of its token."""
        self._followed.setdefault(caller.principal.name, set()).add(caller)
        if self.authenticator.known(request) != caller.principal:
            caller.change()
        return self.timer(caller, request)

    def timer(self, caller: Caller, request: Request) -> asyncio.TimerHandle:
        expires_ms = self.authenticator.expires_ms(request)
        after_s = NEVER_S if expires_ms is None else max(TIMER_S_MIN, (expires_ms - self._db.clock.now_ms()) / 1000)
        return asyncio.get_running_loop().call_later(min(after_s, NEVER_S), caller.change)

    def remove(self, caller: Caller) -> None:
        name = caller.principal.name
        followed = self._followed[name]
        followed.discard(caller)
        if not followed:
            del self._followed[name]

    def _begin(self, check: Any) -> None:
        task = asyncio.get_running_loop().create_task(check)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    def _on_changed(self, changes: list[Any]) -> None:
        names = self._followed if MISSED in changes else {change.name for change in changes}
        for name in list(names):
            for caller in list(self._followed.get(name, ())):
                caller.change()

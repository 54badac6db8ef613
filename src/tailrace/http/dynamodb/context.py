"""Who asks, and whom an operation asks: on the event loop, or in a thread of its own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, Final, TypeVar

from tailrace.access import SYSTEM, Principal
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.http.dynamodb.apart import Workers

REGION: Final = "us-east-1"  # of those who do not say
_region: Final = re.compile(rb"[a-z0-9-]{1,40}").fullmatch

T = TypeVar("T")


class Context:
    """Who asks, and whom an operation asks."""

    __slots__ = ("_authorization", "_workers", "db", "host", "principal", "size")

    def __init__(
        self,
        db: Database,
        principal: Principal,
        authorization: bytes = b"",
        host: bytes = b"",
        workers: Workers | None = None,
        size: int = 0,
    ) -> None:
        self.size = size  # of the request, in bytes
        self._workers = workers
        self.db = db
        self.principal = principal
        self.host = host  # how the client calls this server
        self._authorization = authorization

    def execute(self, command: Command[Any] | Query[Any]) -> Awaitable[Any]:
        """Run a command or query as the one who asks."""
        return self.db.aexecute(command, self.principal)

    def as_system(self) -> Context:
        """The same for what the server asks of its own accord."""
        twin = copy(self)
        twin.principal = SYSTEM
        return twin

    def apart(self) -> Context:
        """The same for a thread, where nothing is waited for."""
        return _Apart(self.db, self.principal, self._authorization, self.host, size=self.size)

    @property
    def waits(self) -> bool:
        """Whether others wait while an operation works: it is on the event loop."""
        return self._workers is not None

    async def call(self, work: Callable[[], T]) -> T:
        """What `work` returns, which takes long: called in a thread unless this is one."""
        return work() if self._workers is None else await self._workers.run(work)

    @property
    def region(self) -> str:
        """The region that the request was signed for: here it is a word in names, and few answers have those."""
        scope = self._authorization.partition(b"Credential=")[2].split(b"/", 3)
        return scope[2].decode() if len(scope) > 2 and _region(scope[2]) else REGION


class _Apart(Context):
    """A context whose answers are there at once."""

    __slots__ = ()

    async def execute(self, command: Command[Any] | Query[Any]) -> Any:
        return self.db.execute(command, self.principal)

"""The context of an operation: its principal and its database, on the event loop or in a thread."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, Final, TypeVar

from tailrace.access import SYSTEM, Principal
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.http.dynamodb.offload import OffloadPool

REGION: Final = "us-east-1"  # of unsigned requests
_region: Final = re.compile(rb"[a-z0-9-]{1,40}").fullmatch

T = TypeVar("T")


class Context:
    """The principal of a request, and the database that its operation works on."""

    __slots__ = ("_authorization", "_workers", "db", "host", "principal", "size")

    def __init__(
        self,
        db: Database,
        principal: Principal,
        authorization: bytes = b"",
        host: bytes = b"",
        workers: OffloadPool | None = None,
        size: int = 0,
    ) -> None:
        self.size = size  # of the request's body, in bytes
        self._workers = workers
        self.db = db
        self.principal = principal
        self.host = host  # of this server, as the client named it
        self._authorization = authorization

    def execute(self, command: Command[Any] | Query[Any]) -> Awaitable[Any]:
        """Run a command or query as the request's principal."""
        return self.db.aexecute(command, self.principal)

    def as_system(self) -> Context:
        """The same context with the system's permissions."""
        twin = copy(self)
        twin.principal = SYSTEM
        return twin

    def blocking(self) -> Context:
        """The same context for a thread, where commands are executed synchronously."""
        return _BlockingContext(self.db, self.principal, self._authorization, self.host, size=self.size)

    @property
    def waits(self) -> bool:
        """Whether the operation runs on the event loop, so that long work blocks other requests."""
        return self._workers is not None

    async def call(self, work: Callable[[], T]) -> T:
        """Call long-running `work`, in a thread if the operation is on the event loop; returns its result."""
        return work() if self._workers is None else await self._workers.run(work)

    @property
    def region(self) -> str:
        """The region that the request was signed for. It is only used in ARNs."""
        scope = self._authorization.partition(b"Credential=")[2].split(b"/", 3)
        return scope[2].decode() if len(scope) > 2 and _region(scope[2]) else REGION


class _BlockingContext(Context):
    """A context that executes commands synchronously."""

    __slots__ = ()

    async def execute(self, command: Command[Any] | Query[Any]) -> Any:
        return self.db.execute(command, self.principal)

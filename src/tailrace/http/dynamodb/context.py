"""The context of an operation: its principal and its database, on the event loop or in a thread."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import Any, Final, NamedTuple, TypeVar

from tailrace.access import SYSTEM, Principal
from tailrace.command import Command, Query
from tailrace.completion import Completion
from tailrace.database import Database
from tailrace.http.dynamodb.offload import OffloadPool

REGION: Final = "us-east-1"  # of unsigned requests
_region: Final = re.compile(rb"[a-z0-9-]{1,40}").fullmatch

NO_HEADERS: Final[dict[bytes, bytes]] = {}

T = TypeVar("T")


class Commanded(NamedTuple):
    """What an operation does: a command, of whose result `render` makes the body of the response."""

    command: Command[Any]
    render: Callable[[Any], Any]


class Context:
    """The principal of a request, and the database that its operation works on."""

    __slots__ = ("_headers", "_workers", "db", "principal", "size")

    def __init__(
        self,
        db: Database,
        principal: Principal,
        headers: dict[bytes, bytes] = NO_HEADERS,
        workers: OffloadPool | None = None,
        size: int = 0,
    ) -> None:
        self.size = size  # of the request's body, in bytes
        self._workers = workers
        self.db = db
        self.principal = principal
        self._headers = headers

    def execute(self, command: Command[Any] | Query[Any]) -> Awaitable[Any]:
        """Run a command or query as the request's principal."""
        return self.db.aexecute(command, self.principal)

    def then(self, query: Query[Any], render: Callable[[Any], T]) -> T | Coroutine[Any, Any, T]:
        """The response that `render` makes of the result of a query; a coroutine if it is not there yet."""
        result = self.db.aexecute(query, self.principal)
        if type(result) is Completion and result.done():
            return render(result.result())
        return _rendered(result, render)

    def submit(self, command: Command[Any], render: Callable[[Any], T]) -> Commanded | T:
        """The response that `render` makes of the result of a command: to be submitted, and rendered when it is
        durable."""
        return Commanded(command, render)

    @property
    def host(self) -> bytes:
        """This server, as the client named it."""
        return self._headers.get(b"host", b"")

    def as_system(self) -> Context:
        """The same context with the system's permissions."""
        twin = copy(self)
        twin.principal = SYSTEM
        return twin

    def blocking(self) -> Context:
        """The same context for a thread, where commands are executed synchronously."""
        return _BlockingContext(self.db, self.principal, self._headers, size=self.size)

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
        scope = self._headers.get(b"authorization", b"").partition(b"Credential=")[2].split(b"/", 3)
        return scope[2].decode() if len(scope) > 2 and _region(scope[2]) else REGION


class _BlockingContext(Context):
    """A context that executes commands synchronously."""

    __slots__ = ()

    async def execute(self, command: Command[Any] | Query[Any]) -> Any:
        return self.db.execute(command, self.principal)

    def then(self, query: Query[Any], render: Callable[[Any], T]) -> T:
        return render(self.db.execute(query, self.principal))

    def submit(self, command: Command[Any], render: Callable[[Any], T]) -> T:
        return render(self.db.execute(command, self.principal))


async def _rendered(result: Awaitable[Any], render: Callable[[Any], T]) -> T:
    return render(await result)

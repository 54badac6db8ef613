"""The Python API of `Database`: the synchronous operations are its methods, the asynchronous ones are under `aio`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tailrace.embedded.running import Followers
from tailrace.embedded.sync.database import Operations
from tailrace.log.tail import Tail

if TYPE_CHECKING:
    from tailrace.embedded.aio.database import AsyncOperations


class EmbeddedOperations(Operations):
    """The base of `Database`. It relies on `execute`, `aexecute`, `tail`, `clock` and `exports`; when the database is
    closed, `followers.close()` ends every wait."""

    tail: Tail

    @cached_property
    def followers(self) -> Followers:
        """The callers that wait for changes."""
        return Followers(self.tail)

    @cached_property
    def aio(self) -> AsyncOperations:
        """The same operations for programs on an event loop: `await db.aio.table("orders")`."""
        from tailrace.embedded.aio.database import AsyncOperations  # few programs use both

        return AsyncOperations(self)

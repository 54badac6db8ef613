"""Resource policies in a process that does not write.

They are in memory, as in the writer, and notices keep them current. While the server does not hear from the writer, a
change may be acknowledged without its notice; then the rows are read for every command. Where the database is on
another machine they are read in a thread, and the command is admitted afterwards (`LateAdmission`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from tailrace.access import Principal
from tailrace.auth.audit import admit
from tailrace.command import Command, Query
from tailrace.completion import Completion
from tailrace.runner import Done
from tailrace.tables.policies import Policies, PolicyBook, PolicyRow

T = TypeVar("T")


class RemotePolicies(PolicyBook):
    """The policies, which are trusted while the server is `fresh`."""

    def __init__(
        self, load: Callable[[], Iterable[PolicyRow]], now_ms: Callable[[], int], fresh: Callable[[], bool]
    ) -> None:
        self._fresh = fresh
        self._some = True
        super().__init__(load, now_ms)

    @property
    def active(self) -> bool:
        return self._some or not self._fresh()

    @active.setter
    def active(self, some: bool) -> None:
        self._some = some

    def known(self) -> Policies | None:
        """As in `PolicyBook`."""
        return self._known if self._fresh() else None


class LoadedPolicies:
    """The policies as they were read for one command."""

    active = True

    def __init__(self, book: PolicyBook, known: Policies) -> None:
        self._book = book
        self._known = known

    def allowed(self, command: Any, principal: Principal) -> frozenset[str]:
        """As `PolicyBook.allowed`."""
        return self._book.allowed_by(self._known, command, principal)


class LateAdmission:
    """Admits commands and queries when the policies have been read in a thread. For the event loop's thread."""

    def __init__(
        self,
        book: PolicyBook,
        answer: Callable[[Query[Any]], Any],
        submit: Callable[[Command[Any], Principal, Done], None],
    ) -> None:
        """`answer` runs a query in a thread; `submit` runs a command, both after they were admitted."""
        self._book = book
        self._answer = answer
        self._submit = submit

    def aexecute(self, command: Command[T] | Query[T], principal: Principal) -> Awaitable[T]:
        """As `Database.aexecute`."""
        loop = asyncio.get_running_loop()
        if isinstance(command, Query):
            return loop.run_in_executor(None, self._admit_and_answer, command, principal)
        completion: Completion[T] = Completion(loop)
        self.submit(command, principal, completion.set)
        return completion

    def _admit_and_answer(self, query: Query[T], principal: Principal) -> T:
        found: T = self._answer(admit(query, principal, self._book)[0])
        return found

    def submit(self, command: Command[Any], principal: Principal, done: Done) -> None:
        """Run a command; `done` is called with its outcome on the loop, also if it is refused."""
        loading = asyncio.get_running_loop().run_in_executor(None, self._book.load)
        loading.add_done_callback(partial(self._loaded, command, principal, done))

    def _loaded(
        self, command: Command[Any], principal: Principal, done: Done, loading: asyncio.Future[Policies]
    ) -> None:
        try:
            admitted, audit = admit(command, principal, LoadedPolicies(self._book, loading.result()))
        except (Exception, asyncio.CancelledError) as error:  # every error reaches the caller
            done(None, error)
            return
        self._submit(admitted, principal, done if audit is None else audit.then(done))

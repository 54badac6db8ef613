"""Authorization of commands, and the audit log of administrative ones.

`Database` calls this for administrative commands and for principals with a grant; other commands need only the
permission. An audit line has the principal, the command, its subjects and the outcome, but no arguments: they may
contain the hash of a password.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tailrace import limits
from tailrace.access import ADMINISTRATIVE, SYSTEM, Principal
from tailrace.command import Command, Query
from tailrace.errors import Error, Forbidden

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
SUBJECTS_MAX: int = 10  # in one line

logger = logging.getLogger("tailrace.audit")

# The last lines of this process, for administrators who cannot read its log: times in milliseconds, and facts.
recent: deque[tuple[int, dict[str, str]]] = deque(maxlen=limits.AUDIT_LINES_MAX)


class Audit:
    """A running command whose outcome will be logged."""

    __slots__ = ("_subjects", "_what", "_who")

    def __init__(self, who: str, what: str, subjects: tuple[str, ...]) -> None:
        self._who = who
        self._what = what
        self._subjects = subjects

    def report(self, error: BaseException | None) -> None:
        """Log the outcome."""
        outcome = "done" if error is None else error.code if isinstance(error, Error) else type(error).__name__
        record_outcome(self._who, self._what, " ".join(self._subjects[:SUBJECTS_MAX]), outcome)

    def then(self, done: Done) -> Done:
        """A callback that logs the outcome, and then calls `done`."""

        def both(result: Any, error: BaseException | None = None) -> None:
            self.report(error)
            done(result, error)

        return both

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.report(error)


def record_outcome(who: str, what: str, subject: str, outcome: str, **more: str) -> None:
    """Write an audit line. Names are quoted, so that a name cannot forge a line."""
    facts = {"who": who, "what": what, "subject": subject, "outcome": outcome, **more}
    recent.append((time.time_ns() // 1_000_000, facts))
    text = " ".join(f"{name}={value!r}" for name, value in facts.items() if value)
    logger.info("%s", text, extra={"facts": facts})


class ResourcePolicies(Protocol):
    """The resource policies of a database."""

    active: bool

    def allowed(self, command: Any, principal: Principal) -> frozenset[str]:
        """The subjects of a command that policies allow; raises `Forbidden` if one is denied."""


def admit(
    command: Command[T] | Query[T], principal: Principal, policies: ResourcePolicies | None = None
) -> tuple[Any, Audit | None]:
    """The command as this principal runs it, and its `Audit` if it is logged. Raises `Forbidden`. A policy denies what
    the principal may do, or allows what it may not."""
    permission, what = command.permission, type(command).__name__
    administers = permission in ADMINISTRATIVE
    try:
        allowed: frozenset[str] = frozenset()
        if policies is not None and policies.active and principal is not SYSTEM:
            allowed = policies.allowed(command, principal)
        if permission not in principal.permissions and not _all_in(command, allowed):
            raise principal.refusal(permission, what)
        if principal.access is not None and not _all_in(command, allowed):
            principal.check_subjects(tuple(each for each in command.subjects() if each not in allowed), what)
    except Forbidden as error:
        if administers:
            record_outcome(principal.name, what, " ".join(_named(command)), error.code)
        raise
    if not administers or isinstance(command, Query):
        return command, None
    audit = None if principal is SYSTEM else Audit(principal.name, what, _named(command))
    return command.for_principal(principal), audit


def _all_in(command: Command[T] | Query[T], allowed: frozenset[str]) -> bool:
    """Whether policies allow all that a command touches."""
    return bool(allowed) and allowed.issuperset(command.subjects())


def _named(command: Command[T] | Query[T]) -> tuple[str, ...]:
    """The subjects of a command for the log; never fails."""
    try:
        return command.subjects()
    except Error:
        return ()

"""Who may run a command that is not let through at a glance, and a line in the log for each that administers.

`Database` asks here for what administers and for principals that were given only some things; all else passes without.
A line says who, what, about what and how it ended. What a command carries is not in it: it may be a password's hash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tailrace.access import ADMINISTRATIVE, SYSTEM, Principal
from tailrace.command import Command, Query
from tailrace.errors import Error, Forbidden

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]
SUBJECTS_TOLD: int = 10

logger = logging.getLogger("tailrace.audit")


class Audit:
    """A command under way whose outcome will be told."""

    __slots__ = ("_subjects", "_what", "_who")

    def __init__(self, who: str, what: str, subjects: tuple[str, ...]) -> None:
        self._who = who
        self._what = what
        self._subjects = subjects

    def tell(self, error: BaseException | None) -> None:
        """It ended so."""
        outcome = "done" if error is None else error.code if isinstance(error, Error) else type(error).__name__
        told(self._who, self._what, " ".join(self._subjects[:SUBJECTS_TOLD]), outcome)

    def then(self, done: Done) -> Done:
        """A callback that tells, and then calls `done`."""

        def both(result: Any, error: BaseException | None = None) -> None:
            self.tell(error)
            done(result, error)

        return both

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tell(error)


def told(who: str, what: str, subject: str, outcome: str, **more: str) -> None:
    """Leave a line. Names are quoted: whoever chose one cannot make a line of their own with it."""
    facts = {"who": who, "what": what, "subject": subject, "outcome": outcome, **more}
    text = " ".join(f"{name}={value!r}" for name, value in facts.items() if value)
    logger.info("%s", text, extra={"facts": facts})


def admit(command: Command[T] | Query[T], principal: Principal) -> tuple[Any, Audit | None]:
    """The command as this principal runs it, and what tells of its outcome if that is to be told; or `Forbidden`."""
    permission, what = command.permission, type(command).__name__
    administers = permission in ADMINISTRATIVE
    try:
        if permission not in principal.permissions:
            raise principal.refusal(permission, what)
        if principal.access is not None:
            principal.check_subjects(command.subjects(), what)
    except Forbidden as error:
        if administers:
            told(principal.name, what, " ".join(_named(command)), error.code)
        raise
    if not administers or isinstance(command, Query):
        return command, None
    audit = None if principal is SYSTEM else Audit(principal.name, what, _named(command))
    return command.asked_by(principal), audit


def _named(command: Command[T] | Query[T]) -> tuple[str, ...]:
    """What a command is about, for the log: never a reason to fail."""
    try:
        return command.subjects()
    except Error:
        return ()

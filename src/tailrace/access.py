"""Who is asking, and what they may do. The permission sits on the command, so that no door can forget it.

A role is a set of permissions. A principal has a role and, where it was given only some things, a list of patterns that
name them: ``tables/orders``, ``streams/docs/*``, ``topics/app.*``. A command says what it touches in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tailrace.errors import Forbidden, Invalid


class Permission:
    """What a command may need. Plain strings: they are compared on every request."""

    READ: Final = "read"
    WRITE: Final = "write"
    CONSUME: Final = "consume"  # from topics: messages are delivered, leased, acknowledged
    JOBS: Final = "jobs"  # be a job: report, note and move positions, apply what a view gets
    ADMIN: Final = "admin"  # what is there: tables, topics, users, keys
    SYSTEM: Final = "system"  # the server itself, and those who may do so


_USER: Final = frozenset((Permission.READ, Permission.WRITE))
_SERVICE: Final = _USER | {Permission.CONSUME, Permission.JOBS}
_DBA: Final = _SERVICE | {Permission.ADMIN}
EVERYTHING: Final = _DBA | {Permission.SYSTEM}
ROLES: Final[dict[str, frozenset[str]]] = {"user": _USER, "service": _SERVICE, "dba": _DBA, "system": EVERYTHING}
ADMINISTRATIVE: Final = frozenset((Permission.ADMIN, Permission.SYSTEM))
KINDS: Final = ("tables", "streams", "topics", "subscriptions")  # what patterns can name
PATTERNS_MAX: Final = 100  # of one principal
PATTERN_BYTES_MAX: Final = 1_100  # the longest path of a stream, and its kind


def roles(*, user_consumes: bool = False) -> dict[str, frozenset[str]]:
    """What each role may do; `user_consumes`: the role user consumes from topics too."""
    return {**ROLES, "user": _USER | {Permission.CONSUME}} if user_consumes else ROLES


def check_role(name: str) -> str:
    """The name, if there is such a role."""
    if name not in ROLES:
        raise Invalid(f"there is no role {name[:64]!r}; use {', '.join(ROLES)}", code="UNKNOWN_ROLE")
    return name


class Access(msgspec.Struct, frozen=True):
    """What a principal was given: nothing else is there for it. A ``*`` at the end of a pattern stands for any rest."""

    patterns: tuple[str, ...]

    def covers(self, subject: str) -> bool:
        """Whether one of the patterns fits; a subject is a kind and a name, as in ``tables/orders``."""
        for pattern in self.patterns:
            if subject.startswith(pattern[:-1]) if pattern.endswith("*") else subject == pattern:
                return True
        return False


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns without repeats, if each is one."""
    known = tuple(dict.fromkeys(patterns))
    if len(known) > PATTERNS_MAX:
        raise Invalid(f"{len(known)} patterns are more than the {PATTERNS_MAX} that one principal may have; use fewer")
    for pattern in known:
        kind, slash, name = pattern.partition("/")
        if kind not in KINDS or not slash or not name or "*" in name[:-1] or not name.isprintable():
            raise Invalid(
                f"{pattern[:80]!r} does not name what may be used; write one of {', '.join(KINDS)}, then a slash and a "
                "name, as in tables/orders or streams/docs/*",
                code="INVALID_PATTERN",
            )
        if len(pattern.encode("utf-8", "replace")) > PATTERN_BYTES_MAX:
            raise Invalid(f"{pattern[:80]!r}... is longer than {PATTERN_BYTES_MAX} bytes; use a prefix and *")
    return known


class Principal(msgspec.Struct, frozen=True):
    """Someone who was recognised, and what they were given. `access` None: no restriction to some things."""

    name: str
    permissions: frozenset[str]
    role: str = "system"
    access: Access | None = None
    # What is let through at a glance: nothing of it is restricted to some things, and nothing of it is audited.
    plain: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        plain = self.permissions - ADMINISTRATIVE if self.access is None else frozenset()
        msgspec.structs.force_setattr(self, "plain", plain)

    def refusal(self, permission: str, what: str) -> Forbidden:
        """Why it may not: it lacks the permission."""
        return Forbidden(f"{self.name!r} may not {what}: it needs the {permission} permission")

    def check_subjects(self, subjects: tuple[str, ...], what: str) -> None:
        """Raise unless all of them were given. What does not say its subjects is for the unrestricted only."""
        if self.access is None:
            return
        if not subjects:
            raise Forbidden(
                f"{self.name!r} may not {what}: it was given only some things, and this is not about one of them",
                code="NOT_GIVEN",
            )
        for subject in subjects:
            if not self.access.covers(subject):
                raise Forbidden(
                    f"{self.name!r} may not {what} with {subject[:200]!r}: it was not given that", code="NOT_GIVEN"
                )


SYSTEM: Final = Principal("system", EVERYTHING)

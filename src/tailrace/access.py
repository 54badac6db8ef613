"""Principals, roles, permissions and grants. The permission sits on the command, so that no handler can forget it.

A role is a set of permissions. A principal has a role and, optionally, a grant that restricts it to some tables,
streams, topics or subscriptions, by patterns: ``tables/orders``, ``streams/docs/*``, ``topics/app.*``. A command names
its subjects in the same form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Forbidden, Invalid


class Permission:
    """The permissions that commands require. Plain strings: they are compared on every request."""

    READ: Final = "read"
    WRITE: Final = "write"
    CONSUME: Final = "consume"  # from topics: messages are delivered, leased, acknowledged
    JOBS: Final = "jobs"  # run jobs: report, move positions, apply the rows of views
    ADMIN: Final = "admin"  # create, change and delete tables, topics, users and keys
    SYSTEM: Final = "system"  # the server itself, and principals of role system


_READER: Final = frozenset((Permission.READ,))
_USER: Final = _READER | {Permission.WRITE}
_SERVICE: Final = _USER | {Permission.CONSUME, Permission.JOBS}
_DBA: Final = _SERVICE | {Permission.ADMIN}
EVERYTHING: Final = _DBA | {Permission.SYSTEM}
ROLES: Final[dict[str, frozenset[str]]] = {
    "reader": _READER, "user": _USER, "service": _SERVICE, "dba": _DBA, "system": EVERYTHING,
}  # fmt: skip
ADMINISTRATIVE: Final = frozenset((Permission.ADMIN, Permission.SYSTEM))
KINDS: Final = ("tables", "streams", "topics", "subscriptions")  # the kinds of subjects


def roles(*, user_consumes: bool = False) -> dict[str, frozenset[str]]:
    """The permissions of each role; `user_consumes`: the role user may also consume from topics."""
    return {**ROLES, "user": _USER | {Permission.CONSUME}} if user_consumes else ROLES


def check_role(name: str) -> str:
    """Return the name if it is a role; raise `Invalid` otherwise."""
    if name not in ROLES:
        raise Invalid(f"there is no role {name[:64]!r}; use {', '.join(ROLES)}", code="UNKNOWN_ROLE")
    return name


class Access(msgspec.Struct, frozen=True):
    """A grant: the subjects that a principal may use. A trailing ``*`` in a pattern matches any suffix."""

    patterns: tuple[str, ...]

    def covers(self, subject: str) -> bool:
        """Whether a pattern matches the subject, a kind and a name as in ``tables/orders``."""
        for pattern in self.patterns:
            if subject.startswith(pattern[:-1]) if pattern.endswith("*") else subject == pattern:
                return True
        return False


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns without duplicates; raise `Invalid` if one is malformed."""
    known = tuple(dict.fromkeys(patterns))
    if len(known) > limits.ACCESS_PATTERNS_MAX:
        raise Invalid(
            f"{len(known)} patterns are more than the {limits.ACCESS_PATTERNS_MAX} that a principal may have; use fewer"
        )
    for pattern in known:
        kind, slash, name = pattern.partition("/")
        if kind not in KINDS or not slash or not name or "*" in name[:-1] or not name.isprintable():
            raise Invalid(
                f"{pattern[:80]!r} is not an access pattern; write one of {', '.join(KINDS)}, then a slash and a "
                "name, as in tables/orders or streams/docs/*",
                code="INVALID_PATTERN",
            )
        if len(pattern.encode("utf-8", "replace")) > limits.ACCESS_PATTERN_BYTES_MAX:
            raise Invalid(
                f"{pattern[:80]!r}... is longer than {limits.ACCESS_PATTERN_BYTES_MAX} bytes; use a prefix and *"
            )
    return known


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller. `access` None: it is not restricted to some subjects."""

    name: str
    permissions: frozenset[str]
    role: str = "system"
    access: Access | None = None
    # Permissions that need no further check: they are neither restricted to some subjects nor audited.
    plain: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        plain = self.permissions - ADMINISTRATIVE if self.access is None else frozenset()
        msgspec.structs.force_setattr(self, "plain", plain)

    def refusal(self, permission: str, what: str) -> Forbidden:
        """The error for a command whose permission the principal lacks."""
        return Forbidden(f"{self.name!r} may not {what}: it needs the {permission} permission")

    def check_subjects(self, subjects: tuple[str, ...], what: str) -> None:
        """Raise unless all subjects are granted. A command without subjects is for unrestricted principals only."""
        if self.access is None:
            return
        if not subjects:
            raise Forbidden(
                f"{self.name!r} may not {what}: its access is restricted to {', '.join(self.access.patterns)[:200]}, "
                "and this command is not about one of these",
                code="NOT_GIVEN",
            )
        for subject in subjects:
            if not self.access.covers(subject):
                raise Forbidden(
                    f"{self.name!r} may not {what} {subject[:200]!r}: it was not granted access to it", code="NOT_GIVEN"
                )


SYSTEM: Final = Principal("system", EVERYTHING)

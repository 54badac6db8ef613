"""Who is asking, and what they may do. The permission sits on the command, so that no door can forget it."""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.errors import Forbidden


class Permission:
    """What a command may need. Plain strings: they are compared on every request."""

    READ: Final = "read"
    WRITE: Final = "write"
    ADMIN: Final = "admin"


EVERYTHING: Final = frozenset((Permission.READ, Permission.WRITE, Permission.ADMIN))


class Principal(msgspec.Struct, frozen=True):
    """Someone who was recognised, and what they were given."""

    name: str
    permissions: frozenset[str]

    def refusal(self, permission: str, what: str) -> Forbidden:
        return Forbidden(f"{self.name!r} may not {what}: it needs the {permission} permission")


SYSTEM: Final = Principal("system", EVERYTHING)

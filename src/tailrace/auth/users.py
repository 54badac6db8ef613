"""Users: a name, a role, optionally a password and a grant.

A user without a password authenticates with access keys, or with tokens of an external issuer that links users. A
change that must end a user's sessions (a new password, disabling, dropping) gives it a new *generation*, a number that
is never used again; tokens carry the generation in which they were issued. Each change is announced in the notices of
its commit, so that caches drop the user.

Commands carry the hash of a password, never the password: `create_user` and `alter_user` build them, off the event
loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from tailrace import limits
from tailrace.access import Access, Permission, Principal, check_patterns, check_role
from tailrace.auth import passwords
from tailrace.auth.access_key import check_no_gain, delete_keys_of
from tailrace.command import Command, Query
from tailrace.errors import Corrupt, Forbidden, InUse, Invalid, LimitExceeded, NotFound
from tailrace.log.tail import USERS_CHANGED
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable

# Principals that are not users, as they appear in change records: the server, its token, callers in dev mode, anonymous
# callers, and the TTL service under its own name and DynamoDB's. No user, key or external token may have such a name.
RESERVED: Final = frozenset(("system", "token", "everyone", "anonymous", "nobody", "ttl", "dynamodb.amazonaws.com"))


class User(msgspec.Struct, frozen=True):
    """A user as it is stored. Never shown."""

    name: str
    role: str
    password: str | None  # an argon2id hash
    access: bytes  # JSON of the patterns; empty: no restriction
    created_ms: int
    updated_ms: int
    disabled: int  # 0 or 1
    generation: int


class LoginSession(msgspec.Struct, frozen=True):
    """A login that can be refreshed."""

    principal: str
    id: str  # a hash of the session's id in its tokens: `stored_session`
    secret: bytes  # SHA-256 of the secret in the current refresh token
    created_ms: int
    expires_ms: int
    generation: int  # the user's


class UserInfo(msgspec.Struct, frozen=True):
    """A user without the hash of its password."""

    name: str
    role: str
    access: tuple[str, ...] | None  # None: no restriction
    password: bool  # whether the user has one
    disabled: bool
    created_ms: int
    updated_ms: int


class UserChanged(msgspec.Struct, frozen=True, gc=False):
    """The notice that caches must drop this user."""

    name: str


USERS = StorageTable("users", User, key=("name",), cached=True)
SESSIONS = StorageTable("sessions", LoginSession, key=("principal", "id"))


# -- commands


class CreateUser(Command[UserInfo], frozen=True, kw_only=True):
    """Create a user; `password` is a hash. `create_user` builds this from a password."""

    permission = Permission.ADMIN

    name: str
    role: str = "user"
    password: str | None = None
    access: tuple[str, ...] | None = None
    if_not_exists: bool = False
    by_system: bool = False  # the caller may create users of role system; set by `for_principal`

    def for_principal(self, principal: Principal) -> CreateUser:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def subjects(self) -> tuple[str, ...]:
        return (f"users/{self.name}",)

    def run(self, tx: Tx) -> UserInfo:
        check_name(self.name)
        check_system(check_role(self.role), by_system=self.by_system)
        _check_hash(self.password)
        existing = tx.get(USERS, self.name)
        if existing is not None:
            if self.if_not_exists:
                return info(existing)
            raise InUse(f"there is a user {self.name!r}; alter it, or choose another name", code="USER_EXISTS")
        if len(tx.values(USERS, "role", limit=limits.USERS_MAX)) >= limits.USERS_MAX:
            raise LimitExceeded(f"there are {limits.USERS_MAX} users, the maximum; drop some first")
        check_no_gain(tx, self.name, self.role)
        access = _encoded(self.access)
        row = User(self.name, self.role, self.password, access, tx.now_ms, tx.now_ms, 0, _generation(tx))
        return _store(tx, row)


class AlterUser(Command[UserInfo], frozen=True, kw_only=True):
    """Change the fields that are set. `alter_user` builds this from a password."""

    permission = Permission.ADMIN

    name: str
    role: str | UnsetType = UNSET
    password: str | UnsetType | None = UNSET  # a hash; None: remove the password
    access: tuple[str, ...] | UnsetType | None = UNSET  # None: no restriction
    disabled: bool | UnsetType = UNSET
    by_system: bool = False

    def for_principal(self, principal: Principal) -> AlterUser:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def subjects(self) -> tuple[str, ...]:
        return (f"users/{self.name}",)

    def run(self, tx: Tx) -> UserInfo:
        before = existing_user(tx, self.name)
        check_system(before.role, by_system=self.by_system)
        row = before
        if self.role is not UNSET:
            check_system(check_role(self.role), by_system=self.by_system)
            row = msgspec.structs.replace(row, role=self.role)
        if self.access is not UNSET:
            row = msgspec.structs.replace(row, access=_encoded(self.access))
        if self.password is not UNSET:
            _check_hash(self.password)
            row = msgspec.structs.replace(row, password=self.password)
        if self.disabled is not UNSET:
            row = msgspec.structs.replace(row, disabled=int(self.disabled))
        if row == before:
            return info(before)
        if row.password != before.password or (row.disabled and not before.disabled):
            end_sessions(tx, self.name)
            row = msgspec.structs.replace(row, generation=_generation(tx))
        return _store(tx, msgspec.structs.replace(row, updated_ms=max(before.updated_ms, tx.now_ms)))


class DropUser(Command[bool], frozen=True, kw_only=True):
    """Drop a user, with all its sessions and access keys; True if it existed."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    if_exists: bool = False
    by_system: bool = False

    def for_principal(self, principal: Principal) -> DropUser:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def subjects(self) -> tuple[str, ...]:
        return (f"users/{self.name}",)

    def run(self, tx: Tx) -> bool:
        if self.if_exists and tx.get(USERS, self.name) is None:
            return False
        check_system(existing_user(tx, self.name).role, by_system=self.by_system)
        end_sessions(tx, self.name)
        delete_keys_of(tx, self.name)
        tx.delete(USERS, self.name)
        tx.notify(USERS_CHANGED, UserChanged(self.name))
        return True


class ListUsers(Query[list[UserInfo]], frozen=True):
    """All users by name, without the hashes of their passwords."""

    permission = Permission.ADMIN

    def run(self, reader: Reader) -> list[UserInfo]:
        return [info(row) for row in reader.scan(USERS, limit=limits.USERS_MAX)]


class FindUser(Query["UserInfo | None"], frozen=True):
    """The user of this name, or None."""

    permission = Permission.ADMIN

    name: str

    def run(self, reader: Reader) -> UserInfo | None:
        row = reader.get(USERS, self.name)
        return None if row is None else info(row)


class LoadUser(Query["User | None"], frozen=True):
    """A user with the hash of its password, to verify it."""

    permission = Permission.SYSTEM
    single = True

    name: str

    def run(self, reader: Reader) -> User | None:
        return reader.get(USERS, self.name)


class AnyoneCanLogIn(Query[bool], frozen=True):
    """Whether there is a user that is enabled and has a password."""

    permission = Permission.SYSTEM

    def run(self, reader: Reader) -> bool:
        return any(row.password is not None and not row.disabled for row in reader.scan(USERS))


# -- building commands from passwords; slow, and not for an event loop


def create_user(
    name: str,
    password: str | None,
    role: str = "user",
    access: Iterable[str] | None = None,
    *,
    if_not_exists: bool = False,
) -> CreateUser:
    """The command that creates a user with this password (None: without one). Name, role and patterns are checked
    before the password is hashed."""
    check_name(name)
    check_role(role)
    patterns = None if access is None else check_patterns(access)
    kept = None if password is None else passwords.hashed(password)
    return CreateUser(name=name, role=role, password=kept, access=patterns, if_not_exists=if_not_exists)


def alter_user(
    name: str,
    *,
    password: str | UnsetType | None = UNSET,
    role: str | UnsetType = UNSET,
    access: Iterable[str] | UnsetType | None = UNSET,
    disabled: bool | UnsetType = UNSET,
) -> AlterUser:
    """The command that changes the fields that are set, `password` among them."""
    if role is not UNSET:
        check_role(role)
    patterns = access if access is None or access is UNSET else check_patterns(access)
    kept = passwords.hashed(password) if isinstance(password, str) else password
    return AlterUser(name=name, role=role, password=kept, access=patterns, disabled=disabled)


# -- rules


def check_name(name: str) -> str:
    """Return the name if it is valid for a user; raise `Invalid` otherwise."""
    if not name or not name.isprintable() or name.strip() != name or ":" in name:
        raise Invalid(
            f"{name[:64]!r} is not a valid user name; use printable text without colons and surrounding blanks",
            code="INVALID_NAME",
        )
    if len(name.encode()) > limits.USER_NAME_BYTES_MAX:
        raise Invalid(
            f"the name is longer than {limits.USER_NAME_BYTES_MAX} bytes; use a shorter one", code="INVALID_NAME"
        )
    if name in RESERVED:
        raise Invalid(f"the name {name!r} is reserved; use another name", code="INVALID_NAME")
    return name


def check_system(role: str, *, by_system: bool) -> None:
    """Raise unless the caller may grant, change or revoke the role system."""
    if role == "system" and not by_system:
        raise Forbidden(
            "creating or changing a user or key of role system needs the system permission; use the server's token",
            code="NEEDS_SYSTEM",
        )


def access_of(row: User) -> Access | None:
    """The grant of a user; None: unrestricted."""
    if not row.access:
        return None
    try:
        return Access(msgspec.json.decode(row.access, type=tuple[str, ...]))
    except msgspec.DecodeError as error:
        raise Corrupt(f"the access patterns of user {row.name!r} cannot be read: {error}") from error


def info(row: User) -> UserInfo:
    """A user without the hash of its password."""
    access = access_of(row)
    return UserInfo(
        row.name,
        row.role,
        None if access is None else access.patterns,
        row.password is not None,
        bool(row.disabled),
        row.created_ms,
        row.updated_ms,
    )


def existing_user(tx: Tx, name: str) -> User:
    """The user's row; raises `NotFound` if there is none."""
    row = tx.get(USERS, name)
    if row is None:
        raise NotFound(f"there is no user {name[:64]!r}; list the users to see which there are", code="USER_NOT_FOUND")
    return row


def end_sessions(tx: Tx, name: str) -> None:
    """End all sessions of a user."""
    for session in list(tx.scan(SESSIONS, name)):
        tx.delete(SESSIONS, name, session.id)


def _generation(tx: Tx) -> int:
    return tx.next_id("user-generation")


def _encoded(access: tuple[str, ...] | None) -> bytes:
    return b"" if access is None else msgspec.json.encode(check_patterns(access))


def _check_hash(kept: str | None) -> None:
    if kept is not None and not passwords.is_hash(kept):
        raise Invalid("a command takes the hash of a password, not the password; build it with create_user")


def _store(tx: Tx, row: User) -> UserInfo:
    tx.put(USERS, row)
    tx.notify(USERS_CHANGED, UserChanged(row.name))
    return info(row)

"""Access keys, which sign requests to the DynamoDB API.

A key has an id, sent with every request, and a secret, never sent. The secret is stored encrypted and not hashed,
since verifying a signature takes the secret itself; it is shown once, when the key is created, and only the server
reads it afterwards. A key is for a principal, by name; several keys may be for the same principal, so that a key can be
replaced without downtime. A key has a role. If there is a user of the principal's name, the user's role, grant and
state apply instead, and the key is deleted with the user.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission, Principal, check_role
from tailrace.auth.access_key import ACCESS_KEYS, DEFAULT_ROLE, AccessKey, delete_key, store_key
from tailrace.auth.users import RESERVED, USERS, User, check_system
from tailrace.command import Command, Query
from tailrace.errors import Invalid, LimitExceeded, NotFound
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.vault import access_key_label

ID_PREFIX: Final = "TRK"
ID_LENGTH: Final = 20
SECRET_LENGTH: Final = 40

_ID_LETTERS: Final = string.ascii_uppercase + string.digits
_SECRET_LETTERS: Final = string.ascii_letters + string.digits + "+/"


class KeyInfo(msgspec.Struct, frozen=True):
    """A key without its secret."""

    id: str
    principal: str
    created_ms: int
    disabled: bool
    role: str


class NewKey(msgspec.Struct, frozen=True):
    """A new key with its secret, which is shown only once."""

    id: str
    secret: str
    principal: str
    created_ms: int
    role: str


class CreateAccessKey(Command[NewKey], frozen=True):
    """Create a key for a principal. `role` None: the role of the user of that name, or the lowest role."""

    permission = Permission.ADMIN

    principal: str
    role: str | None = None
    by_system: bool = False  # the caller may create keys of role system; set by `for_principal`

    def for_principal(self, principal: Principal) -> CreateAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def subjects(self) -> tuple[str, ...]:
        return (f"keys/{self.principal}",)

    def run(self, tx: Tx) -> NewKey:
        _check_principal(self.principal)
        role = self._role(tx.get(USERS, self.principal))
        if sum(1 for _ in tx.scan(ACCESS_KEYS, limit=limits.ACCESS_KEYS_MAX)) >= limits.ACCESS_KEYS_MAX:
            raise LimitExceeded(f"there are {limits.ACCESS_KEYS_MAX} access keys, the maximum; delete some first")
        name = _new_id()
        while tx.get(ACCESS_KEYS, name) is not None:
            name = _new_id()
        secret = _random(_SECRET_LETTERS, SECRET_LENGTH)
        sealed = tx.vault.seal_text(access_key_label(name), secret)
        row = AccessKey(name, sealed, self.principal, tx.now_ms, 0, role)
        store_key(tx, row)
        return NewKey(row.id, secret, row.principal, row.created_ms, row.role)

    def _role(self, user: User | None) -> str:
        """The role that the key will have."""
        requested = None if self.role is None else check_role(self.role)
        role = user.role if user is not None else requested or DEFAULT_ROLE
        for each in (role, requested or role):
            check_system(each, by_system=self.by_system)
        if requested is not None and requested != role:
            raise Invalid(
                f"the user {self.principal!r} has the role {role}, and so have its keys; leave the role out, "
                f"or alter the user",
                code="ROLE_OF_USER",
            )
        return role


class DeleteAccessKey(Command[KeyInfo], frozen=True):
    """Delete a key: requests signed with it are rejected from now on. Returns the deleted key."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def for_principal(self, principal: Principal) -> DeleteAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        row = _existing(tx, self.id, by_system=self.by_system)
        delete_key(tx, row)
        return _key_info(tx, row)


class DisableAccessKey(Command[KeyInfo], frozen=True):
    """Reject requests signed with a key until it is enabled again."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def for_principal(self, principal: Principal) -> DisableAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        return _switch(tx, self.id, disabled=1, by_system=self.by_system)


class EnableAccessKey(Command[KeyInfo], frozen=True):
    """Accept a disabled key again."""

    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def for_principal(self, principal: Principal) -> EnableAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        return _switch(tx, self.id, disabled=0, by_system=self.by_system)


class ListAccessKeys(Query[list[KeyInfo]], frozen=True):
    """All keys, without their secrets."""

    permission = Permission.ADMIN

    def run(self, reader: Reader) -> list[KeyInfo]:
        return [_key_info(reader, row) for row in reader.scan(ACCESS_KEYS, limit=limits.ACCESS_KEYS_MAX)]


class FindAccessKey(Query[AccessKey | None], frozen=True):
    """A key with its secret, to verify a signature; None if it does not exist or is disabled."""

    permission = Permission.SYSTEM

    id: str

    def run(self, reader: Reader) -> AccessKey | None:
        row = reader.get(ACCESS_KEYS, self.id)
        if row is None or row.disabled:
            return None
        return msgspec.structs.replace(row, secret=reader.vault.open_text(access_key_label(row.id), row.secret))


def _switch(tx: Tx, name: str, *, disabled: int, by_system: bool) -> KeyInfo:
    row = _existing(tx, name, by_system=by_system)
    if row.disabled != disabled:
        row = msgspec.structs.replace(row, disabled=disabled)
        store_key(tx, row)
    return _key_info(tx, row)


def _existing(tx: Tx, name: str, *, by_system: bool) -> AccessKey:
    """An existing key that the caller may change."""
    row = tx.get(ACCESS_KEYS, name)
    if row is None:
        raise NotFound(f"there is no access key {name[:64]!r}; list the keys to see which there are")
    check_system(_role_of(tx, row), by_system=by_system)
    return row


def _role_of(reader: Reader, row: AccessKey) -> str:
    """The effective role: the user's if there is a user of that name."""
    user = reader.get(USERS, row.principal)
    return row.role if user is None else user.role


def _key_info(reader: Reader, row: AccessKey) -> KeyInfo:
    return KeyInfo(row.id, row.principal, row.created_ms, bool(row.disabled), _role_of(reader, row))


def _check_principal(name: str) -> None:
    if not name or not name.isprintable() or name.strip() != name:
        raise Invalid(f"{name[:64]!r} is not a valid principal; use printable text without surrounding blanks")
    if len(name.encode("utf-8", "replace")) > limits.PRINCIPAL_BYTES_MAX:
        raise Invalid(f"the name of the principal is longer than {limits.PRINCIPAL_BYTES_MAX} bytes; use a shorter one")
    if name in RESERVED:
        raise Invalid(f"the name {name!r} is reserved; use another name", code="INVALID_NAME")


def _new_id() -> str:
    return ID_PREFIX + _random(_ID_LETTERS, ID_LENGTH - len(ID_PREFIX))


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))

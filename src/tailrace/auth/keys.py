"""Access keys: what requests to the DynamoDB door are signed with.

A key is an id, which travels with every request, and a secret, which never does. The secret is stored encrypted and
not hashed, since verifying a signature takes the secret itself; it is shown once, when the key is made, and by no query
afterwards but the one that the server verifies with. A key stands for a principal by name; several may stand for the
same one, so that a key can be replaced without a gap. A key has a role; where there is a user of the principal's name,
the user's role, restrictions and state count instead, and the key goes when the user is dropped.
"""

from __future__ import annotations

import secrets
import string
from typing import Final

import msgspec

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
ACCESS_KEYS_MAX: Final = 1_000  # of one database; a list of them is one answer
PRINCIPAL_BYTES_MAX: Final = 256

_ID_LETTERS: Final = string.ascii_uppercase + string.digits
_SECRET_LETTERS: Final = string.ascii_letters + string.digits + "+/"


class KeyInfo(msgspec.Struct, frozen=True):
    """What may be told of a key."""

    id: str
    principal: str
    created_ms: int
    disabled: bool
    role: str


class NewKey(msgspec.Struct, frozen=True):
    """A key that was just made, with the secret that is shown this once."""

    id: str
    secret: str
    principal: str
    created_ms: int
    role: str


class CreateAccessKey(Command[NewKey], frozen=True):
    """A new key for a principal. `role` None: the user's of that name, or the least if there is none."""

    permission = Permission.ADMIN

    principal: str
    role: str | None = None
    by_system: bool = False  # whoever runs it may make keys of role system; set where permissions are checked

    def asked_by(self, principal: Principal) -> CreateAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def subjects(self) -> tuple[str, ...]:
        return (f"keys/{self.principal}",)

    def run(self, tx: Tx) -> NewKey:
        _check_principal(self.principal)
        role = self._role(tx.get(USERS, self.principal))
        if sum(1 for _ in tx.scan(ACCESS_KEYS, limit=ACCESS_KEYS_MAX)) >= ACCESS_KEYS_MAX:
            raise LimitExceeded(f"there are {ACCESS_KEYS_MAX} access keys, the most there may be; delete some first")
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
        asked = None if self.role is None else check_role(self.role)
        role = user.role if user is not None else asked or DEFAULT_ROLE
        for each in (role, asked or role):
            check_system(each, by_system=self.by_system)
        if asked is not None and asked != role:
            raise Invalid(
                f"the user {self.principal!r} has the role {role}, and so have its keys; ask for no other role, "
                f"or alter the user",
                code="ROLE_OF_USER",
            )
        return role


class DeleteAccessKey(Command[KeyInfo], frozen=True):
    """Forget a key; what it signs is refused from now on. The key that was."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def asked_by(self, principal: Principal) -> DeleteAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        row = _existing(tx, self.id, by_system=self.by_system)
        delete_key(tx, row)
        return _told(tx, row)


class DisableAccessKey(Command[KeyInfo], frozen=True):
    """Refuse what a key signs until it is enabled again."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def asked_by(self, principal: Principal) -> DisableAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        return _switch(tx, self.id, disabled=1, by_system=self.by_system)


class EnableAccessKey(Command[KeyInfo], frozen=True):
    """Let a key in again that was disabled."""

    permission = Permission.ADMIN
    subject = ("keys", "id")

    id: str
    by_system: bool = False

    def asked_by(self, principal: Principal) -> EnableAccessKey:
        return msgspec.structs.replace(self, by_system=Permission.SYSTEM in principal.permissions)

    def run(self, tx: Tx) -> KeyInfo:
        return _switch(tx, self.id, disabled=0, by_system=self.by_system)


class ListAccessKeys(Query[list[KeyInfo]], frozen=True):
    """All keys, without their secrets."""

    permission = Permission.ADMIN

    def run(self, reader: Reader) -> list[KeyInfo]:
        return [_told(reader, row) for row in reader.scan(ACCESS_KEYS, limit=ACCESS_KEYS_MAX)]


class FindAccessKey(Query[AccessKey | None], frozen=True):
    """A key with its secret, to verify with; None if there is none, or it is disabled."""

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
    return _told(tx, row)


def _existing(tx: Tx, name: str, *, by_system: bool) -> AccessKey:
    """A key that is there and that whoever asks may change."""
    row = tx.get(ACCESS_KEYS, name)
    if row is None:
        raise NotFound(f"there is no access key {name[:64]!r}; list the keys to see which there are")
    check_system(_role_of(tx, row), by_system=by_system)
    return row


def _role_of(reader: Reader, row: AccessKey) -> str:
    """The role that counts."""
    user = reader.get(USERS, row.principal)
    return row.role if user is None else user.role


def _told(reader: Reader, row: AccessKey) -> KeyInfo:
    return KeyInfo(row.id, row.principal, row.created_ms, bool(row.disabled), _role_of(reader, row))


def _check_principal(name: str) -> None:
    if not name or not name.isprintable() or name.strip() != name:
        raise Invalid(f"{name[:64]!r} cannot name who a key is for; use printable text without blanks around it")
    if len(name.encode("utf-8", "replace")) > PRINCIPAL_BYTES_MAX:
        raise Invalid(f"the name of who a key is for is longer than {PRINCIPAL_BYTES_MAX} bytes; use a shorter one")
    if name in RESERVED:
        raise Invalid(f"{name!r} stands for somebody else in the records; use another name", code="INVALID_NAME")


def _new_id() -> str:
    return ID_PREFIX + _random(_ID_LETTERS, ID_LENGTH - len(ID_PREFIX))


def _random(letters: str, length: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(length))

"""The row of an access key, and the fate of a principal's keys when a user of that name is created or dropped.

A key for a principal that is not a user has its own role. A user's key has the user's role, whatever is stored with it.
To rule out privilege escalation, a user's keys are deleted with the user, and a user is not created if its role would
raise that of existing keys for the same name.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.access import ROLES
from tailrace.errors import InUse
from tailrace.log.tail import KEYS_CHANGED
from tailrace.storage.engine import Tx
from tailrace.storage.table import StorageTable

DEFAULT_ROLE: Final = "user"  # the lowest; for a key without a role whose principal is not a user


class AccessKey(msgspec.Struct, frozen=True):
    """A key as it is stored. Never shown."""

    id: str
    secret: str  # encrypted, as it is stored; `FindAccessKey` decrypts it
    principal: str
    created_ms: int
    disabled: int  # 0 or 1
    role: str


class KeyChanged(msgspec.Struct, frozen=True, gc=False):
    """The notice that a key was created, disabled, enabled or deleted: caches must drop it."""

    id: str


ACCESS_KEYS = StorageTable("access_keys", AccessKey, key=("id",), cached=True)


def store_key(tx: Tx, row: AccessKey) -> None:
    """Store a key."""
    tx.put(ACCESS_KEYS, row)
    tx.notify(KEYS_CHANGED, KeyChanged(row.id))


def delete_key(tx: Tx, row: AccessKey) -> None:
    """Delete a key."""
    tx.delete(ACCESS_KEYS, row.id)
    tx.notify(KEYS_CHANGED, KeyChanged(row.id))


def delete_keys_of(tx: Tx, principal: str) -> None:
    """Delete all keys of a principal."""
    for row in _keys_of(tx, principal):
        delete_key(tx, row)


def check_no_gain(tx: Tx, principal: str, role: str) -> None:
    """Raise if a user of this name and role would raise the role of existing keys for the name."""
    for row in _keys_of(tx, principal):
        if not ROLES[role] <= ROLES[row.role]:
            raise InUse(
                f"the access key {row.id} for {principal!r} has the role {row.role}, and would become {role}; delete "
                "it first, or choose another name",
                code="KEYS_EXIST",
            )


def _keys_of(tx: Tx, principal: str) -> list[AccessKey]:
    return [row for row in tx.scan(ACCESS_KEYS) if row.principal == principal]

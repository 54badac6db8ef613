"""An access key as it is stored, and what becomes of a principal's keys when a user of that name comes or goes.

A key for a principal that is no user has its own role. A user's key has the user's role, whatever is stored with it.
So that nobody gains by the difference, a user's keys go with the user, and a user that would give keys of its name more
than they have is not made.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.access import ROLES
from tailrace.errors import InUse
from tailrace.log.tail import KEYS_CHANGED
from tailrace.storage.engine import Tx
from tailrace.storage.table import Table

DEFAULT_ROLE: Final = "user"  # the least; of a key that is made without a role, for no user


class AccessKey(msgspec.Struct, frozen=True):
    """A key as it is stored. Not for the eyes of anyone."""

    id: str
    secret: str  # encrypted, as it is stored; `FindAccessKey` decrypts it
    principal: str
    created_ms: int
    disabled: int  # 0 or 1
    role: str


class KeyChanged(msgspec.Struct, frozen=True, gc=False):
    """A key was made, disabled, enabled or deleted; whoever remembers keys forgets this one."""

    id: str


ACCESS_KEYS = Table("access_keys", AccessKey, key=("id",), cached=True)


def store_key(tx: Tx, row: AccessKey) -> None:
    """Keep a key as it is now."""
    tx.put(ACCESS_KEYS, row)
    tx.notify(KEYS_CHANGED, KeyChanged(row.id))


def delete_key(tx: Tx, row: AccessKey) -> None:
    """Forget a key."""
    tx.delete(ACCESS_KEYS, row.id)
    tx.notify(KEYS_CHANGED, KeyChanged(row.id))


def delete_keys_of(tx: Tx, principal: str) -> None:
    """Forget all keys of a principal."""
    for row in _keys_of(tx, principal):
        delete_key(tx, row)


def check_no_gain(tx: Tx, principal: str, role: str) -> None:
    """Raise where a user of this name and role would give more to keys that were made for the name before."""
    for row in _keys_of(tx, principal):
        if not ROLES[role] <= ROLES[row.role]:
            raise InUse(
                f"the access key {row.id} for {principal!r} has the role {row.role}, and would become {role}; delete "
                "it first, or choose another name",
                code="KEYS_EXIST",
            )


def _keys_of(tx: Tx, principal: str) -> list[AccessKey]:
    return [row for row in tx.scan(ACCESS_KEYS) if row.principal == principal]

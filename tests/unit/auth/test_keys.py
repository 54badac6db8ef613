"""Access keys: made with a secret that is shown once, listed without it, switched off and on, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Database, limits
from tailrace.access import ROLES, Permission, Principal
from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    FindAccessKey,
    KeyInfo,
    ListAccessKeys,
)
from tailrace.auth.users import RESERVED, AlterUser, CreateUser, DropUser
from tailrace.clock import ManualClock
from tailrace.command import Command, Query
from tailrace.errors import Forbidden, InUse, Invalid, LimitExceeded, NotFound
from tailrace.log.tail import KEYS_CHANGED
from tailrace.tables.change import TTL

DBA = Principal("boss", ROLES["dba"], "dba")


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=ManualClock(), housekeeping_s=None) as db:
        yield db


def test_a_new_key_has_the_form_that_clients_expect(db: Database) -> None:
    key = db.execute(CreateAccessKey("ann"))
    assert re.fullmatch("TRK[A-Z0-9]{17}", key.id)
    assert re.fullmatch("[A-Za-z0-9+/]{40}", key.secret)
    assert (key.principal, key.created_ms) == ("ann", ManualClock().now_ms())
    assert db.execute(CreateAccessKey("ann")).id != key.id


def test_a_key_survives_and_keeps_its_secret(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        key = db.execute(CreateAccessKey("ann"))
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        found = db.execute(FindAccessKey(key.id))
    assert found is not None
    assert (found.secret, found.principal) == (key.secret, "ann")


def test_a_list_shows_no_secrets(db: Database) -> None:
    made = [db.execute(CreateAccessKey(name)) for name in ("ann", "bob")]
    db.execute(DisableAccessKey(made[1].id))
    listed = db.execute(ListAccessKeys())
    assert {(key.id, key.principal, key.disabled) for key in listed} == {
        (made[0].id, "ann", False),
        (made[1].id, "bob", True),
    }
    assert not any(key.secret in repr(listed) for key in made)


def test_disabled_enabled_deleted(db: Database) -> None:
    key = db.execute(CreateAccessKey("ann"))
    info = KeyInfo(key.id, "ann", key.created_ms, True, "user")
    assert db.execute(DisableAccessKey(key.id)) == info
    assert db.execute(DisableAccessKey(key.id)) == info
    assert db.execute(FindAccessKey(key.id)) is None
    assert db.execute(EnableAccessKey(key.id)).disabled is False
    assert db.execute(FindAccessKey(key.id)) is not None
    db.execute(DeleteAccessKey(key.id))
    assert db.execute(FindAccessKey(key.id)) is None
    for command in (DeleteAccessKey, DisableAccessKey, EnableAccessKey):
        with pytest.raises(NotFound, match=key.id):
            db.execute(command(key.id))


def test_every_change_is_published(db: Database) -> None:
    changed: list[str] = []
    db.tail.subscribe(KEYS_CHANGED, lambda changes: changed.extend(change.id for change in changes))
    key = db.execute(CreateAccessKey("ann"))
    db.execute(DisableAccessKey(key.id))
    db.execute(DisableAccessKey(key.id))  # which changes nothing
    db.execute(EnableAccessKey(key.id))
    db.execute(DeleteAccessKey(key.id))
    assert changed == [key.id] * 4


@pytest.mark.parametrize("name", ["", " ann", "ann ", "a\nb", "a\x00", "\ud800", "x" * 257, "ä" * 129])
def test_names_that_are_none(db: Database, name: str) -> None:
    with pytest.raises(Invalid):
        db.execute(CreateAccessKey(name))
    assert db.execute(ListAccessKeys()) == []


def test_there_is_a_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACCESS_KEYS_MAX", 2)
    first = db.execute(CreateAccessKey("ann"))
    db.execute(CreateAccessKey("ann"))
    with pytest.raises(LimitExceeded, match="2 access keys"):
        db.execute(CreateAccessKey("ann"))
    db.execute(DeleteAccessKey(first.id))
    db.execute(CreateAccessKey("ann"))


def test_only_for_administrators(db: Database) -> None:
    key = db.execute(CreateAccessKey("ann"))
    writer = Principal("writer", frozenset((Permission.READ, Permission.WRITE)))
    commands: list[Command[object] | Query[object]] = [
        CreateAccessKey("x"), DeleteAccessKey(key.id), DisableAccessKey(key.id), EnableAccessKey(key.id),
        ListAccessKeys(), FindAccessKey(key.id),
    ]  # type: ignore[list-item]  # fmt: skip
    for command in commands:
        with pytest.raises(Forbidden):
            db.execute(command, writer)


# -- keys and users of the same name


def test_a_dropped_users_keys_go_with_it(db: Database) -> None:
    db.execute(CreateUser(name="ann", role="user"))
    gone = [db.execute(CreateAccessKey("ann")) for _ in range(2)]
    stays = db.execute(CreateAccessKey("bob", "user"))
    changed: list[str] = []
    db.tail.subscribe(KEYS_CHANGED, lambda changes: changed.extend(change.id for change in changes))
    db.execute(DropUser(name="ann"))
    assert sorted(changed) == sorted(key.id for key in gone)
    assert [key.id for key in db.execute(ListAccessKeys())] == [stays.id]
    db.execute(CreateUser(name="ann", role="dba"))
    assert [db.execute(FindAccessKey(key.id)) for key in gone] == [None, None], "another ann has nothing of the first"


def test_a_key_for_a_name_does_not_gain_by_a_user_of_that_name(db: Database) -> None:
    key = db.execute(CreateAccessKey("ann", "service"), DBA)
    for role in ("dba", "system"):
        with pytest.raises(InUse, match=f"{key.id} for 'ann' has the role service, and would become {role}"):
            db.execute(CreateUser(name="ann", role=role))
    db.execute(CreateUser(name="ann", role="user"))
    assert db.execute(ListAccessKeys())[0].role == "user", "less is no gain"


def test_a_users_key_has_the_users_role(db: Database) -> None:
    db.execute(CreateUser(name="ann", role="service"))
    assert db.execute(CreateAccessKey("ann")).role == "service"
    assert db.execute(CreateAccessKey("ann", "service")).role == "service"
    for role in ("user", "dba", "system"):
        with pytest.raises(Invalid, match="the user 'ann' has the role service, and so have its keys"):
            db.execute(CreateAccessKey("ann", role))
    with pytest.raises(Forbidden, match="system permission"):
        db.execute(CreateAccessKey("ann", "system"), DBA)
    db.execute(AlterUser(name="ann", role="user"))
    assert {key.role for key in db.execute(ListAccessKeys())} == {"user"}
    assert db.execute(CreateAccessKey("bob")).role == "user", "who is no user: the least"
    with pytest.raises(Invalid, match="no role"):
        db.execute(CreateAccessKey("bob", "emperor"))


def test_what_has_the_role_system_is_changed_by_system_alone(db: Database) -> None:
    db.execute(CreateUser(name="root", role="system"))
    of_user, of_name = db.execute(CreateAccessKey("root")), db.execute(CreateAccessKey("machine", "system"))
    for key in (of_user, of_name):
        for command in (DisableAccessKey, EnableAccessKey, DeleteAccessKey):
            with pytest.raises(Forbidden, match="system permission"):
                db.execute(command(key.id), DBA)
        assert db.execute(FindAccessKey(key.id)) is not None
        db.execute(DisableAccessKey(key.id))
        db.execute(DeleteAccessKey(key.id))
    other = db.execute(CreateAccessKey("machine"), DBA)
    db.execute(DeleteAccessKey(other.id), DBA)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_that_stand_for_another_principal_in_the_records(db: Database, name: str) -> None:
    with pytest.raises(Invalid, match="is reserved"):
        db.execute(CreateAccessKey(name))
    with pytest.raises(Invalid, match="is reserved"):
        db.execute(CreateUser(name=name))


def test_who_removes_expired_items_has_a_name_of_its_own() -> None:
    assert TTL in RESERVED

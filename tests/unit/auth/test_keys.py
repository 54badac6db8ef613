"""Access keys: made with a secret that is shown once, listed without it, switched off and on, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Database
from tailrace.access import Permission, Principal
from tailrace.auth import keys
from tailrace.auth.keys import (
    CreateAccessKey,
    DeleteAccessKey,
    DisableAccessKey,
    EnableAccessKey,
    FindAccessKey,
    KeyInfo,
    ListAccessKeys,
)
from tailrace.clock import ManualClock
from tailrace.command import Command, Query
from tailrace.errors import Forbidden, Invalid, LimitExceeded, NotFound
from tailrace.log.tail import KEYS_CHANGED


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
    info = KeyInfo(key.id, "ann", key.created_ms, True)
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


def test_every_change_is_told(db: Database) -> None:
    told: list[str] = []
    db.tail.subscribe(KEYS_CHANGED, lambda changes: told.extend(change.id for change in changes))
    key = db.execute(CreateAccessKey("ann"))
    db.execute(DisableAccessKey(key.id))
    db.execute(DisableAccessKey(key.id))  # which changes nothing
    db.execute(EnableAccessKey(key.id))
    db.execute(DeleteAccessKey(key.id))
    assert told == [key.id] * 4


@pytest.mark.parametrize("name", ["", " ann", "ann ", "a\nb", "a\x00", "\ud800", "x" * 257, "ä" * 129])
def test_names_that_are_none(db: Database, name: str) -> None:
    with pytest.raises(Invalid):
        db.execute(CreateAccessKey(name))
    assert db.execute(ListAccessKeys()) == []


def test_there_is_a_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ACCESS_KEYS_MAX", 2)
    first = db.execute(CreateAccessKey("ann"))
    db.execute(CreateAccessKey("ann"))
    with pytest.raises(LimitExceeded, match="2 access keys"):
        db.execute(CreateAccessKey("ann"))
    db.execute(DeleteAccessKey(first.id))
    db.execute(CreateAccessKey("ann"))


def test_only_for_administrators(db: Database) -> None:
    key = db.execute(CreateAccessKey("ann"))
    writer = Principal("writer", frozenset((Permission.READ, Permission.WRITE)))
    asked: list[Command[object] | Query[object]] = [
        CreateAccessKey("x"), DeleteAccessKey(key.id), DisableAccessKey(key.id), EnableAccessKey(key.id),
        ListAccessKeys(), FindAccessKey(key.id),
    ]  # type: ignore[list-item]  # fmt: skip
    for command in asked:
        with pytest.raises(Forbidden):
            db.execute(command, writer)

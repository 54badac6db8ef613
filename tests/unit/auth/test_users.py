"""Users: created, changed and dropped by administrators; described without passwords; their sessions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Database, limits
from tailrace.access import ROLES, SYSTEM, Access, Principal
from tailrace.auth import passwords, sessions, users
from tailrace.auth.keys import CreateAccessKey
from tailrace.auth.sessions import CloseSession, FindSession, OpenSession, RefreshSession
from tailrace.auth.users import (
    AlterUser,
    AnyoneCanLogIn,
    CreateUser,
    DropUser,
    FindUser,
    ListUsers,
    LoadUser,
    alter_user,
    create_user,
)
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.errors import Forbidden, InUse, Invalid, LimitExceeded, NotFound, WrongToken
from tailrace.log.tail import USERS_CHANGED

HASH = passwords.hashed("correct horse")
DBA = Principal("boss", ROLES["dba"], "dba")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as db:
        yield db


def test_a_user_is_created_described_and_kept(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        made = db.execute(create_user("ann", "correct horse", "service", ["tables/orders"]))
        assert (made.name, made.role, made.access, made.password) == ("ann", "service", ("tables/orders",), True)
        assert not made.disabled
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        assert db.execute(FindUser("ann")) == made
        assert db.execute(ListUsers()) == [made]
        assert "argon2" not in repr(db.execute(ListUsers()))
        row = db.execute(LoadUser("ann"))
        assert row is not None
        assert passwords.matches(b"correct horse", row.password)
        assert users.access_of(row) == Access(("tables/orders",))
    assert check_database(data_dir).findings == []


def test_an_empty_access_list_grants_nothing(db: Database) -> None:
    assert db.execute(CreateUser(name="ann", access=())).access == ()
    assert db.execute(CreateUser(name="bob")).access is None
    row = db.execute(LoadUser("ann"))
    assert row is not None
    assert users.access_of(row) == Access(())


def test_two_of_one_name(db: Database) -> None:
    first = db.execute(CreateUser(name="ann", role="dba"))
    with pytest.raises(InUse, match="there is a user 'ann'"):
        db.execute(CreateUser(name="ann"))
    assert db.execute(CreateUser(name="ann", if_not_exists=True)) == first


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"name": ""}, "is not a valid user name"),
        ({"name": "a:b"}, "is not a valid user name"),
        ({"name": " a"}, "is not a valid user name"),
        ({"name": "a\n"}, "is not a valid user name"),
        ({"name": "x" * 257}, "longer than 256 bytes"),
        ({"name": "system"}, "is reserved"),
        ({"name": "token"}, "is reserved"),
        ({"name": "a", "role": "root"}, "no role 'root'"),
        ({"name": "a", "access": ("everything",)}, "is not an access pattern"),
        ({"name": "a", "password": "plain text"}, "the hash of a password, not the password"),
    ],
)
def test_what_is_refused(db: Database, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        db.execute(CreateUser(**facts))
    assert db.execute(ListUsers()) == []


def test_mistakes_are_reported_before_the_password_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "hashed", lambda text: pytest.fail("it was hashed"))
    for make in (
        lambda: create_user("a:b", "correct horse"),
        lambda: create_user("a", "correct horse", "root"),
        lambda: create_user("a", "correct horse", "user", ["x"]),
        lambda: alter_user("a", password="correct horse", role="root"),
    ):
        with pytest.raises(Invalid):
            make()


def test_what_is_altered_and_what_stays(db: Database, clock: ManualClock) -> None:
    made = db.execute(create_user("ann", "correct horse", "user", ["tables/a"]))
    clock.advance(5)
    assert db.execute(AlterUser(name="ann")) == made, "nothing was set, nothing changed"
    altered = db.execute(AlterUser(name="ann", role="dba"))
    assert (altered.role, altered.access, altered.password) == ("dba", ("tables/a",), True)
    assert altered.updated_ms == made.created_ms + 5000
    assert db.execute(AlterUser(name="ann", access=None)).access is None
    assert db.execute(AlterUser(name="ann", disabled=True)).disabled
    assert not db.execute(AlterUser(name="ann", password=None)).password
    with pytest.raises(NotFound, match="there is no user 'bob'"):
        db.execute(AlterUser(name="bob", role="dba"))


def test_what_ends_tokens_gives_a_new_generation(db: Database) -> None:
    def generation() -> int:
        row = db.execute(LoadUser("ann"))
        assert row is not None
        return row.generation

    db.execute(CreateUser(name="ann", password=HASH))
    seen = [generation()]
    for command, ends in (
        (AlterUser(name="ann", role="dba"), False),
        (AlterUser(name="ann", access=("tables/a",)), False),
        (alter_user("ann", password="another horse"), True),
        (AlterUser(name="ann", disabled=True), True),
        (AlterUser(name="ann", disabled=False), False),
        (AlterUser(name="ann", password=None), True),
    ):
        db.execute(command)
        assert (generation() != seen[-1]) == ends, command
        seen.append(generation())
    db.execute(DropUser(name="ann"))
    db.execute(CreateUser(name="ann", password=HASH))
    assert generation() not in seen, "whoever had a token of the first has none of the second"


def test_every_change_is_published(db: Database) -> None:
    changed: list[str] = []
    db.tail.subscribe(USERS_CHANGED, lambda changes: changed.extend(change.name for change in changes))
    db.execute(CreateUser(name="ann"))
    db.execute(AlterUser(name="ann", role="dba"))
    db.execute(AlterUser(name="ann", role="dba"))  # which changes nothing
    db.execute(DropUser(name="ann"))
    db.execute(DropUser(name="ann", if_exists=True))
    assert changed == ["ann"] * 3


def test_dropped(db: Database) -> None:
    db.execute(CreateUser(name="ann"))
    assert db.execute(DropUser(name="ann")) is True
    assert db.execute(FindUser("ann")) is None
    assert db.execute(DropUser(name="ann", if_exists=True)) is False
    with pytest.raises(NotFound):
        db.execute(DropUser(name="ann"))


def test_there_is_a_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "USERS_MAX", 2)
    for name in ("a", "b"):
        db.execute(CreateUser(name=name))
    with pytest.raises(LimitExceeded, match="there are 2 users"):
        db.execute(CreateUser(name="c"))


@pytest.mark.parametrize("role", ["user", "service"])
def test_only_for_administrators(db: Database, role: str) -> None:
    principal = Principal("ann", ROLES[role], role)
    for command in (CreateUser(name="x"), AlterUser(name="x"), DropUser(name="x"), ListUsers(), FindUser("x")):
        with pytest.raises(Forbidden, match="needs the admin permission"):
            db.execute(command, principal)  # type: ignore[arg-type]
    for query in (LoadUser("x"), AnyoneCanLogIn()):
        with pytest.raises(Forbidden, match="needs the system permission"):
            db.execute(query, DBA)  # type: ignore[arg-type]


def test_a_dba_with_restricted_access_cannot_manage_users(db: Database) -> None:
    some = Principal("boss", ROLES["dba"], "dba", Access(("tables/*", "streams/*", "topics/*")))
    for command in (CreateUser(name="x"), ListUsers(), CreateAccessKey("boss")):
        with pytest.raises(Forbidden):
            db.execute(command, some)  # type: ignore[arg-type]


def test_the_role_system_is_made_and_changed_by_system_alone(db: Database) -> None:
    db.execute(CreateUser(name="root", role="system"), SYSTEM)
    db.execute(CreateUser(name="ann"), DBA)
    for command in (
        CreateUser(name="eve", role="system"),
        CreateUser(name="eve", role="system", by_system=True),  # the handler's own claim does not count
        AlterUser(name="ann", role="system", by_system=True),
        AlterUser(name="root", disabled=True, by_system=True),
        alter_user("root", password="eves password"),
        DropUser(name="root", by_system=True),
        CreateAccessKey("x", "system", True),
        CreateAccessKey("root", "user", True),  # a user's key has the user's role
    ):
        with pytest.raises(Forbidden, match="needs the system permission"):
            db.execute(command, DBA)  # type: ignore[arg-type]
    assert {user.name: user.role for user in db.execute(ListUsers())} == {"root": "system", "ann": "user"}
    db.execute(AlterUser(name="ann", role="system"), SYSTEM)
    db.execute(DropUser(name="root"), SYSTEM)


def test_whether_anyone_can_log_in(db: Database) -> None:
    assert not db.execute(AnyoneCanLogIn())
    db.execute(CreateUser(name="ann"))
    assert not db.execute(AnyoneCanLogIn())
    db.execute(alter_user("ann", password="correct horse"))
    assert db.execute(AnyoneCanLogIn())
    db.execute(AlterUser(name="ann", disabled=True))
    assert not db.execute(AnyoneCanLogIn())


# -- the log of who did what


def test_administration_leaves_a_line(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace.audit")
    db.execute(create_user("ann", "correct horse"), DBA)
    db.execute(CreateUser(name="quiet"), SYSTEM)
    with pytest.raises(InUse):
        db.execute(CreateUser(name="ann"), DBA)
    with pytest.raises(Forbidden):
        db.execute(DropUser(name="ann"), Principal("eve", ROLES["user"], "user"))
    assert [record.facts for record in caplog.records] == [  # type: ignore[attr-defined]
        {"who": "boss", "what": "CreateUser", "subject": "users/ann", "outcome": "done"},
        {"who": "boss", "what": "CreateUser", "subject": "users/ann", "outcome": "USER_EXISTS"},
        {"who": "eve", "what": "DropUser", "subject": "users/ann", "outcome": "FORBIDDEN"},
    ]
    assert caplog.records[0].getMessage() == "who='boss' what='CreateUser' subject='users/ann' outcome='done'"
    for record in caplog.records:
        assert "horse" not in repr(vars(record))
        assert "argon2" not in repr(vars(record))


def test_the_same_from_an_event_loop(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    caplog.set_level(logging.INFO, "tailrace.audit")

    async def main() -> None:
        await db.aexecute(CreateUser(name="ann"), DBA)
        with pytest.raises(InUse):
            await db.aexecute(CreateUser(name="ann"), DBA)

    asyncio.run(main())
    outcomes = [record.facts["outcome"] for record in caplog.records]  # type: ignore[attr-defined]
    assert outcomes == ["done", "USER_EXISTS"]


# -- sessions


def opened(db: Database, life_s: int = 60) -> sessions.RefreshToken:
    row = db.execute(LoadUser("ann"))
    assert row is not None
    token = sessions.new_token("ann")
    done = db.execute(OpenSession("ann", row.generation, token.session, sessions.digest_of(token), life_s * 1000))
    assert done.user == row
    return token


def refreshed(db: Database, token: sessions.RefreshToken) -> tuple[str | None, sessions.RefreshToken]:
    fresh = sessions.new_token(token.user, token.session)
    command = RefreshSession(
        token.user, token.session, sessions.digest_of(token), sessions.digest_of(fresh), life_ms=60_000
    )
    return db.execute(command).refused, fresh


@pytest.fixture
def ann(db: Database) -> None:
    db.execute(CreateUser(name="ann", password=HASH))


def test_a_refresh_token_survives_its_text() -> None:
    token = sessions.new_token("ann.ä")
    assert sessions.read_token(token.text()) == token
    for text in (
        "",
        "trr",
        "trr.a.b",
        token.text() + "x.y",
        token.text()[:-4],
        token.text() + "A" * 4,
        "x" + token.text(),
    ):
        with pytest.raises(WrongToken):
            sessions.read_token(text)


@pytest.mark.usefixtures("ann")
def test_a_refresh_token_works_once_and_its_reuse_ends_the_session(db: Database) -> None:
    first = opened(db)
    refused, second = refreshed(db, first)
    assert refused is None
    assert refreshed(db, first)[0] == sessions.REUSED
    assert refreshed(db, second)[0] == sessions.UNKNOWN, "nobody can tell who the thief is"
    assert db.execute(FindSession("ann", first.session)) is None


@pytest.mark.usefixtures("ann")
def test_a_session_expires_unless_it_is_refreshed(db: Database, clock: ManualClock) -> None:
    token = opened(db, life_s=60)
    clock.advance(59)
    refused, token = refreshed(db, token)
    assert refused is None
    clock.advance(59)
    refused, token = refreshed(db, token)
    assert refused is None
    clock.advance(60)
    assert refreshed(db, token)[0] == sessions.EXPIRED
    assert db.execute(FindSession("ann", token.session)) is None


@pytest.mark.usefixtures("ann")
def test_a_clock_that_jumps_ends_no_session_for_good(db: Database, clock: ManualClock) -> None:
    """What is older by the new time is refused, and kept until the new time is confirmed."""
    mine, other = opened(db, life_s=86_400), opened(db, life_s=86_400)
    clock.jump_by(10 * 86_400)
    assert refreshed(db, mine)[0] == sessions.EXPIRED
    opened(db)  # a login removes sessions that are over
    for token in (mine, other):
        assert db.execute(FindSession("ann", token.session)) is not None


@pytest.mark.usefixtures("ann")
@pytest.mark.parametrize(
    "command", [alter_user("ann", password="another horse"), AlterUser(name="ann", disabled=True), DropUser(name="ann")]
)
def test_what_ends_a_users_sessions(db: Database, command: Any) -> None:
    token = opened(db)
    db.execute(command)
    assert refreshed(db, token)[0] == sessions.UNKNOWN


@pytest.mark.usefixtures("ann")
def test_a_login_that_was_overtaken_opens_nothing(db: Database) -> None:
    row = db.execute(LoadUser("ann"))
    assert row is not None
    db.execute(alter_user("ann", password="another horse"))
    done = db.execute(OpenSession("ann", row.generation, "s", b"d", 1000))
    assert done.refused == sessions.UNKNOWN


@pytest.mark.usefixtures("ann")
def test_sessions_are_bounded_and_old_ones_go(db: Database, clock: ManualClock) -> None:
    first = opened(db, life_s=10_000)
    for _ in range(limits.SESSIONS_MAX):
        clock.advance(1)
        last = opened(db, life_s=10_000)
    assert db.execute(FindSession("ann", first.session)) is None
    assert db.execute(FindSession("ann", last.session)) is not None


@pytest.mark.usefixtures("ann")
def test_closed_by_who_holds_it(db: Database) -> None:
    token = opened(db)
    assert not db.execute(CloseSession("ann", token.session, b"x" * 32))
    assert db.execute(CloseSession("ann", token.session, sessions.digest_of(token)))
    assert not db.execute(CloseSession("ann", token.session))

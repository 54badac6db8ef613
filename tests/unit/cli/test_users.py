"""`tailrace users`: in a directory, and at a server; passwords from wherever they may come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import tailrace
from tailrace.auth import passwords
from tailrace.auth.users import LoadUser, User
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess
from tests.unit.cli.test_cli import Done, program

PASSWORD = {"TAILRACE_NEW_PASSWORD": "correct horse"}
BOSS = {"TAILRACE_USER": "boss", "TAILRACE_PASSWORD": "correct horse"}


def user_in(data: Path, name: str) -> User | None:
    with tailrace.open(data, housekeeping_s=None) as db:
        return db.execute(LoadUser(name))


def done(finished: Done) -> str:
    assert finished.returncode == 0, finished.stderr
    return bytes(finished.stdout).decode()


def test_users_in_a_directory(data_dir: Path) -> None:
    at = ("--data", str(data_dir))
    done(program("users", "create", "boss", "--role", "dba", *at, env=PASSWORD))
    row = user_in(data_dir, "boss")
    assert row is not None
    assert row.role == "dba"
    assert passwords.matches(b"correct horse", row.password)
    done(program("users", "create", "ann", "--access", "tables/a", "--access", "streams/*", "--no-password", *at))
    listed = done(program("users", "list", *at)).splitlines()
    assert [line.split()[:2] for line in listed] == [["ann", "user"], ["boss", "dba"]]
    assert "tables/a streams/*" in listed[0]
    assert "no password" in listed[0]
    assert "enabled" in listed[1]
    done(program("users", "alter", "ann", "--password-stdin", "--all-access", *at, stdin=b"a new password\n"))
    row = user_in(data_dir, "ann")
    assert row is not None
    assert passwords.matches(b"a new password", row.password)
    assert row.access == b""
    done(program("users", "alter", "ann", "--disable", *at))
    assert "disabled" in done(program("users", "list", *at))
    done(program("users", "alter", "ann", "--enable", "--role", "service", *at))
    row = user_in(data_dir, "ann")
    assert row is not None
    assert (row.disabled, row.role) == (0, "service")
    done(program("users", "drop", "ann", *at))
    assert user_in(data_dir, "ann") is None


@pytest.mark.parametrize(
    ("args", "env", "status", "message"),
    [
        (("create", "ann"), {}, 2, "--password-stdin or set TAILRACE_NEW_PASSWORD"),
        (("create", "ann"), {"TAILRACE_PASSWORD": "correct horse"}, 2, "--password-stdin or set TAILRACE_NEW_PASSWORD"),
        (("create", "ann"), {"TAILRACE_NEW_PASSWORD": "short"}, 1, "has 5 characters; use at least 8"),
        (("create", "a:b"), PASSWORD, 1, "is not a valid user name"),
        (("create", "ann", "--role", "root"), PASSWORD, 2, "root"),
        (("create", "ann", "--access", "all"), PASSWORD, 1, "is not an access pattern"),
        (("alter", "ann"), {}, 2, "nothing to change"),
        (("alter", "ann", "--access", "tables/a", "--all-access"), {}, 2, "excludes"),
        (("alter", "ann", "--role", "dba"), {}, 1, "there is no database in"),
        (("drop", "ann"), {}, 1, "there is no database in"),
        (("list",), BOSS, 1, "there is no database in"),
        (("list", "--user", "boss"), {}, 2, "--user is for a server: add --url"),
        (("list", "--token", "t"), {}, 2, "--token is for a server: add --url"),
    ],
)
def test_what_is_refused(data_dir: Path, args: tuple[str, ...], env: dict[str, str], status: int, message: str) -> None:
    finished = program("users", *args, "--data", str(data_dir), env=env)
    assert finished.returncode == status
    assert message in bytes(finished.stderr).decode()
    assert b"Traceback" not in finished.stderr
    assert not data_dir.exists()


@pytest.fixture
def served(data_dir: Path) -> Iterator[ServerProcess]:
    program("users", "create", "boss", "--role", "dba", "--data", str(data_dir), env=PASSWORD)
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", "--data", str(data_dir)]
    with ServerProcess(command, env={"TAILRACE_LOG_FORMAT": "json"}) as process:
        yield process


def test_users_are_managed_on_a_server_without_a_token(served: ServerProcess, data_dir: Path) -> None:
    login = {"username": "boss", "password": "correct horse"}
    token = httpx.post(f"{served.url}/v1/api/auth/login", json=login, timeout=PATIENCE_S).json()["access_token"]
    at = ("--url", served.url, "--token", token)
    done(program("users", "create", "ann", "--access", "tables/a", *at, env=PASSWORD))
    assert done(program("users", "list", *at)).splitlines()[0].split()[:3] == ["ann", "user", "enabled"]
    done(program("users", "alter", "ann", "--role", "service", "--disable", *at))
    assert "disabled" in done(program("users", "list", *at))
    refused = program("users", "create", "root", "--role", "system", *at, env=PASSWORD)
    assert refused.returncode == 1
    assert b"needs the system permission" in refused.stderr
    done(program("users", "drop", "ann", *at))
    assert len(done(program("users", "list", *at)).splitlines()) == 1
    refused = program("users", "list", "--url", served.url, "--token", "wrong")
    assert refused.returncode == 1
    assert b"token" in refused.stderr
    taken = program("users", "list", "--data", str(data_dir))
    assert taken.returncode == 1
    assert b"a server has" in taken.stderr
    assert served.terminate() == 0
    assert '"who":"boss","what":"CreateUser","subject":"users/ann","outcome":"done"' in served.output
    assert "correct horse" not in served.output


def logged_in(served: ServerProcess, user: str, password: str) -> bool:
    answer = httpx.post(
        f"{served.url}/v1/api/auth/login", json={"username": user, "password": password}, timeout=PATIENCE_S
    )
    return answer.status_code == 200


def test_a_user_asks_with_its_password_and_gives_another_one(served: ServerProcess) -> None:
    """The server has a dba and no token: who asks, and the user that is made, have passwords of their own."""
    at = ("--url", served.url)
    done(program("users", "create", "ann", *at, "--password-stdin", env=BOSS, stdin=b"her own password\n"))
    assert logged_in(served, "ann", "her own password")
    assert not logged_in(served, "ann", "correct horse")
    new = {"TAILRACE_NEW_PASSWORD": "battery staple"}
    done(program("users", "create", "bob", *at, "--user", "boss", env={"TAILRACE_PASSWORD": "correct horse", **new}))
    assert logged_in(served, "bob", "battery staple")
    done(program("users", "alter", "ann", "--password", *at, env={**BOSS, **new}))
    assert logged_in(served, "ann", "battery staple")
    missing = program("users", "create", "eve", *at, env=BOSS)
    assert missing.returncode == 2
    assert b"the new password of 'eve'" in missing.stderr
    listed = done(program("users", "list", *at, "--user", "boss", "--password-stdin", stdin=b"correct horse\n"))
    assert [line.split()[0] for line in listed.splitlines()] == ["ann", "bob", "boss"]
    done(program("users", "drop", "bob", *at, env=BOSS))
    for env in (
        {**BOSS, "TAILRACE_PASSWORD": "wrong horse"},
        {"TAILRACE_USER": "ann", "TAILRACE_PASSWORD": "battery staple"},
        {},
    ):
        refused = program("users", "list", *at, env=env)
        assert refused.returncode == 1
        assert b"Traceback" not in refused.stderr
    silent = program("users", "create", "eve", *at, "--user", "boss", env=new)
    assert silent.returncode == 2
    assert b"the password of 'boss' is missing: set TAILRACE_PASSWORD\n" in silent.stderr
    both = program("users", "list", *at, "--user", "boss", "--token", "t", env=BOSS)
    assert both.returncode == 2


def test_a_user_makes_keys(served: ServerProcess) -> None:
    at = ("--url", served.url)
    made = done(program("keys", "create", "shop", "--role", "user", *at, env=BOSS))
    key = made.partition("=")[2].split()[0]
    boss = ("--user", "boss", "--password-stdin")
    assert key in done(program("keys", "list", *at, *boss, stdin=b"correct horse\n"))
    for command in ("disable", "enable", "delete"):
        done(program("keys", command, key, *at, env=BOSS))
    assert done(program("keys", "list", *at, env=BOSS)) == ""
    refused = program("keys", "list", *at)
    assert refused.returncode == 1

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
from tests.support.server import ServerProcess
from tests.unit.cli.test_cli import Done, program

PASSWORD = {"TAILRACE_PASSWORD": "correct horse"}


def user_in(data: Path, name: str) -> User | None:
    with tailrace.open(data, housekeeping_s=None) as db:
        return db.execute(LoadUser(name))


def done(finished: Done) -> str:
    assert finished.returncode == 0, finished.stderr
    return bytes(finished.stdout).decode()


def test_users_in_a_directory(data_dir: Path) -> None:
    at = ("--data", str(data_dir))
    done(program("users", "add", "boss", "--role", "dba", *at, env=PASSWORD))
    row = user_in(data_dir, "boss")
    assert row is not None
    assert row.role == "dba"
    assert passwords.matches(b"correct horse", row.password)
    done(program("users", "add", "ann", "--access", "tables/a", "--access", "streams/*", "--no-password", *at))
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
        (("add", "ann"), {}, 2, "--password-stdin or TAILRACE_PASSWORD"),
        (("add", "ann"), {"TAILRACE_PASSWORD": "short"}, 1, "has 5 characters; use at least 8"),
        (("add", "a:b"), PASSWORD, 1, "cannot name a user"),
        (("add", "ann", "--role", "root"), PASSWORD, 2, "root"),
        (("add", "ann", "--access", "all"), PASSWORD, 1, "does not name what may be used"),
        (("alter", "ann"), {}, 2, "nothing to change"),
        (("alter", "ann", "--access", "tables/a", "--all-access"), {}, 2, "two things at once"),
        (("alter", "ann", "--role", "dba"), {}, 1, "there is no database in"),
        (("drop", "ann"), {}, 1, "there is no database in"),
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
    program("users", "add", "boss", "--role", "dba", "--data", str(data_dir), env=PASSWORD)
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", "--data", str(data_dir)]
    with ServerProcess(command, env={"TAILRACE_LOG_FORMAT": "json"}) as process:
        yield process


def test_a_server_starts_with_a_user_and_no_token_and_is_asked_for_more(served: ServerProcess, data_dir: Path) -> None:
    login = {"username": "boss", "password": "correct horse"}
    token = httpx.post(f"{served.url}/v1/api/auth/login", json=login).json()["access_token"]
    at = ("--url", served.url, "--token", token)
    done(program("users", "add", "ann", "--access", "tables/a", *at, env=PASSWORD))
    assert done(program("users", "list", *at)).splitlines()[0].split()[:3] == ["ann", "user", "enabled"]
    done(program("users", "alter", "ann", "--role", "service", "--disable", *at))
    assert "disabled" in done(program("users", "list", *at))
    refused = program("users", "add", "root", "--role", "system", *at, env=PASSWORD)
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

"""No secret is in the files of a database in clear text, and no other user of the machine may read them."""

from __future__ import annotations

import base64
import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

import tailrace
from tailrace import failpoints
from tailrace.auth import sessions, tokens
from tailrace.auth.keys import CreateAccessKey, FindAccessKey
from tailrace.auth.users import CreateUser
from tailrace.check import check_database
from tailrace.cli import cli
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Corrupt, Error, Invalid
from tailrace.secret_key import rotate_secret_key
from tailrace.storage.modes import write_private
from tailrace.storage.sqlite import ENCRYPTED_SINCE, FILE, SqliteEngine, migrations
from tailrace.storage.vault import ENVIRONMENT, NEXT, PREVIOUS, Vault, read_secret
from tailrace.storage.vault import FILE as KEY_FILE
from tailrace.streams.commands import Append, CreateStream
from tailrace.subscriptions import signing, wake_tokens
from tailrace.tables.seal import FindSecret

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.delenv(PREVIOUS, raising=False)


def opened(directory: Path) -> Any:
    return closing(tailrace.open(directory, housekeeping_s=None))


def make_secrets(db: Database) -> dict[str, bytes]:
    """One of each kind, as the server knows them, by what they are."""
    key = db.execute(CreateAccessKey("ann"))
    db.execute(CreateUser(name="bob", role="dba"))
    (active, *_) = db.execute(signing.EnsureSigningKey())
    assert active.d is not None
    token = sessions.new_token("bob")
    generation = 1
    opened_now = db.execute(sessions.OpenSession("bob", generation, token.session, sessions.digest_of(token), 10**9))
    assert opened_now.refused is None
    return {
        "access key": key.secret.encode(),
        "token key": db.execute(tokens.MakeTokenKey()),
        "webhook key": active.d.encode(),
        "raw webhook key": base64.urlsafe_b64decode(active.d + "=="),
        "iterator secret": db.execute(FindSecret()) or b"",
        "wake secret": db.execute(MakeGrantSecret()),
        "session id": token.session.encode(),
        "refresh secret": token.secret,
    }


class MakeGrantSecret(Command[bytes], frozen=True):
    def run(self, tx: Any) -> bytes:
        return wake_tokens.secret(tx)


def contents(directory: Path) -> Iterator[tuple[Path, bytes]]:
    for path in directory.rglob("*"):
        if path.is_file() and path.name != KEY_FILE:
            yield path, path.read_bytes()


def assert_hidden(directory: Path, secrets: dict[str, bytes]) -> None:
    for path, data in contents(directory):
        for kind, secret in secrets.items():
            assert len(secret) >= 16
            for form in (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret)):
                assert form.rstrip(b"=") not in data, f"{kind} is in {path.name}"


# -- encryption


def test_no_secret_session_or_key_is_in_the_files(data_dir: Path) -> None:
    with opened(data_dir) as db:
        secrets = make_secrets(db)
        assert_hidden(data_dir, secrets)  # in the write-ahead log
    assert_hidden(data_dir, secrets)  # in the database file
    key = base64.b64decode((data_dir / KEY_FILE).read_bytes())
    assert len(key) == 32
    assert all(key not in data for _, data in contents(data_dir))
    with opened(data_dir) as db:
        assert db.execute(tokens.FindTokenKey()) == secrets["token key"]
        assert db.execute(FindSecret()) == secrets["iterator secret"]
        assert db.execute(signing.GetSigningKeys())[0].d.encode() == secrets["webhook key"]
        found = db.execute(sessions.FindSession("bob", secrets["session id"].decode()))
        assert found is not None and found.id != secrets["session id"].decode()
    assert check_database(data_dir).findings == []


def old_database(directory: Path) -> dict[str, bytes]:
    """A database of the version before, with secrets in clear text."""
    directory.mkdir(0o755)
    os.chmod(directory, 0o755)
    connection = apsw.Connection(str(directory / FILE))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    for statements in migrations()[: ENCRYPTED_SINCE - 1]:
        connection.execute(statements)
    secrets = {"access key": b"A" * 10 + b"clear access secret", "token key": os.urandom(32)}
    secrets["session id"] = b"clear-session-id-of-bob"
    connection.execute("INSERT INTO meta VALUES ('token-key', ?)", (secrets["token key"],))
    row = ("TRKOLD", secrets["access key"].decode(), "ann", 1, 0, "dba")
    connection.execute("INSERT INTO access_keys VALUES (?, ?, ?, ?, ?, ?)", row)
    user = {name: kind for _, name, kind, *_ in connection.execute("PRAGMA table_info(users)")}
    assert user
    session = ("bob", secrets["session id"].decode(), b"d" * 32, 1, 10**15, 1)
    connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", session)
    connection.execute(f"PRAGMA user_version = {ENCRYPTED_SINCE - 1}")
    connection.close()
    return secrets


@pytest.mark.parametrize("killed", [False, True])
def test_an_old_database_is_encrypted_when_it_is_opened(data_dir: Path, killed: bool) -> None:
    secrets = old_database(data_dir)
    if killed:
        for _ in range(2):
            failpoints.arm("migration.step")
            with pytest.raises(failpoints.Failure):
                SqliteEngine(data_dir)
    with opened(data_dir) as db:
        assert_hidden(data_dir, secrets)  # while it is open: old pages are gone from the write-ahead log too
        assert db.execute(tokens.FindTokenKey()) == secrets["token key"]
        key = db.execute(FindAccessKey("TRKOLD"))
        assert key is not None and key.secret.encode() == secrets["access key"]
        assert db.execute(sessions.FindSession("bob", secrets["session id"].decode())) is not None
        assert_private(data_dir)
    assert_hidden(data_dir, secrets)
    assert_private(data_dir)
    assert check_database(data_dir).findings == []


def test_a_secret_cannot_be_moved_to_another_row(data_dir: Path) -> None:
    with opened(data_dir) as db:
        first, second = db.execute(CreateAccessKey("ann")), db.execute(CreateAccessKey("eve"))
    with closing(SqliteEngine(data_dir)) as engine:
        engine.writer.execute(
            "UPDATE access_keys SET secret = (SELECT secret FROM access_keys WHERE id = ?) WHERE id = ?",
            (second.id, first.id),
        )
    with opened(data_dir) as db:
        with pytest.raises(Corrupt, match=first.id) as failed:
            db.execute(FindAccessKey(first.id))
        assert failed.value.code == "SECRET_UNREADABLE"
        found = db.execute(FindAccessKey(second.id))
        assert found is not None and found.secret == second.secret
    (finding,) = check_database(data_dir).findings
    assert first.id in finding


@pytest.mark.parametrize("form", ["base64", "hexadecimal"])
def test_the_key_may_come_from_the_environment(data_dir: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    key = os.urandom(32)
    monkeypatch.setenv(ENVIRONMENT, base64.b64encode(key).decode() if form == "base64" else key.hex())
    with opened(data_dir) as db:
        secrets = make_secrets(db)
    assert not (data_dir / KEY_FILE).exists()
    assert_hidden(data_dir, secrets)
    assert check_database(data_dir).findings == []
    monkeypatch.delenv(ENVIRONMENT)
    for attempt in (lambda: tailrace.open(data_dir), lambda: check_database(data_dir)):
        with pytest.raises(Invalid, match=ENVIRONMENT) as failed:
            attempt()
        assert failed.value.code == "SECRET_KEY_MISSING"
    assert not (data_dir / KEY_FILE).exists()


def test_a_wrong_or_malformed_key_is_an_error_that_names_the_fix(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(data_dir) as db:
        make_secrets(db)

    def refused() -> Error:
        with pytest.raises(Invalid) as failed:
            tailrace.open(data_dir)
        return failed.value

    monkeypatch.setenv(ENVIRONMENT, "too short")
    assert refused().code == "SECRET_KEY_INVALID"
    monkeypatch.setenv(ENVIRONMENT, os.urandom(32).hex())
    error = refused()
    assert error.code == "SECRET_KEY_WRONG" and "rotate-secret" in str(error)
    monkeypatch.delenv(ENVIRONMENT)
    kept = (data_dir / KEY_FILE).read_bytes()
    (data_dir / KEY_FILE).write_bytes(base64.b64encode(os.urandom(32)))
    assert refused().code == "SECRET_KEY_WRONG"
    (data_dir / KEY_FILE).unlink()
    assert refused().code == "SECRET_KEY_MISSING"
    write_private(data_dir / KEY_FILE, kept)
    tailrace.open(data_dir).close()


# -- rotation


def test_rotation_to_a_new_file_to_the_environment_and_back(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(data_dir) as db:
        secrets = make_secrets(db)
    before = (data_dir / KEY_FILE).read_bytes()
    old = sealed_values(data_dir)
    ran = CliRunner().invoke(cli, ["keys", "rotate-secret", "--data", str(data_dir)])
    assert ran.exit_code == 0, ran.output
    assert (data_dir / KEY_FILE).read_bytes() != before and mode(data_dir / KEY_FILE) == 0o600
    assert not (data_dir / NEXT).exists()
    for path, data in contents(data_dir):
        assert not any(value in data for value in old), f"what the old key decrypts is still in {path.name}"
    assert_same(data_dir, secrets)

    monkeypatch.setenv(ENVIRONMENT, os.urandom(32).hex())
    rotate_secret_key(data_dir)
    assert not (data_dir / KEY_FILE).exists()
    assert_same(data_dir, secrets)
    with pytest.raises(Invalid, match=PREVIOUS):
        rotate_secret_key(data_dir)

    monkeypatch.setenv(PREVIOUS, os.environ[ENVIRONMENT])
    monkeypatch.delenv(ENVIRONMENT)
    rotate_secret_key(data_dir)
    monkeypatch.delenv(PREVIOUS)
    assert_same(data_dir, secrets)


@pytest.mark.parametrize("point", ["rotation.begun", "rotation.committed"])
def test_a_rotation_that_is_killed_leaves_a_key_that_fits(data_dir: Path, point: str) -> None:
    with opened(data_dir) as db:
        secrets = make_secrets(db)
    failpoints.arm(point)
    with pytest.raises(failpoints.Failure):
        rotate_secret_key(data_dir)
    assert (data_dir / NEXT).exists()
    assert check_database(data_dir).findings == []  # which changes nothing
    assert (data_dir / NEXT).exists()
    assert_same(data_dir, secrets)
    assert not (data_dir / NEXT).exists()
    rotate_secret_key(data_dir)
    assert_same(data_dir, secrets)


def sealed_values(directory: Path) -> list[bytes]:
    connection = apsw.Connection(str(directory / FILE))
    values = [secret.encode() for (secret,) in connection.execute("SELECT secret FROM access_keys")]
    values += [value for (value,) in connection.execute("SELECT value FROM meta WHERE name LIKE '%-key%'")]
    connection.close()
    assert len(values) >= 3
    return values


def assert_same(directory: Path, secrets: dict[str, bytes]) -> None:
    with opened(directory) as db:
        assert db.execute(tokens.FindTokenKey()) == secrets["token key"]
        assert db.execute(FindSecret()) == secrets["iterator secret"]
        assert db.execute(MakeGrantSecret()) == secrets["wake secret"]
    assert check_database(directory).findings == []


# -- modes


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def assert_private(directory: Path) -> None:
    assert mode(directory) == 0o700
    for path in directory.rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_every_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "data"
    with opened(directory) as db:
        db.execute(CreateStream("s", "text/plain"))
        db.execute(Append("s", b"x", "text/plain"))
        names = {path.name for path in directory.iterdir()}
        assert {FILE, f"{FILE}-wal", f"{FILE}-shm", "LOCK", KEY_FILE} <= names
        assert_private(directory)
    assert_private(directory)
    with opened(directory) as db:
        db.execute(Append("s", b"y", "text/plain"))
        assert_private(directory)
    assert mode(directory.parent) == 0o700


@pytest.mark.usefixtures("_open_umask")
def test_what_is_looser_is_repaired_with_a_warning(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(data_dir) as db:
        db.execute(CreateStream("s", "text/plain"))
    os.chmod(data_dir, 0o755)
    for path in data_dir.iterdir():
        os.chmod(path, 0o644)
    (data_dir / "notes.txt").write_text("mine")
    os.chmod(data_dir / "notes.txt", 0o644)
    with caplog.at_level(logging.WARNING, "tailrace"), opened(data_dir) as db:
        db.execute(Append("s", b"x", "text/plain"))
        (data_dir / "notes.txt").unlink()
        assert_private(data_dir)
    warned = " ".join(record.getMessage() for record in caplog.records)
    for name in (str(data_dir), FILE, KEY_FILE, "LOCK"):
        assert name in warned
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tailrace"), opened(data_dir):
        pass
    assert not caplog.records


def test_what_is_looser_is_named_by_who_only_reads(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(data_dir) as db:
        db.execute(CreateStream("s", "text/plain"))
    with caplog.at_level(logging.WARNING, "tailrace"):
        assert not check_database(data_dir).findings
        assert not caplog.records
        for path in (data_dir / FILE, data_dir / KEY_FILE):
            os.chmod(path, 0o644)
        os.chmod(data_dir, 0o755)
        assert not check_database(data_dir).findings
    warned = " ".join(record.getMessage() for record in caplog.records)
    for path, mode in ((data_dir, 700), (data_dir / FILE, 600), (data_dir / KEY_FILE, 600)):
        assert f"chmod {mode} {path}" in warned
    assert stat.S_IMODE(os.stat(data_dir / KEY_FILE).st_mode) == 0o644  # the check changes nothing


def test_a_directory_that_users_share_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o1777)
    with pytest.raises(Invalid, match="directory of its own") as failed:
        tailrace.open(shared)
    assert failed.value.code == "DIRECTORY_SHARED"
    assert mode(shared) == 0o1777 and list(shared.iterdir()) == []


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that every user may enter, so that only what is in it can be in the way."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


AS_UNPRIVILEGED_USER = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    found = os.listdir(sys.argv[1])
except PermissionError:
    found = sys.argv[2:]
    for name in found:
        try:
            open(os.path.join(sys.argv[1], name), "rb")
        except PermissionError:
            continue
        sys.exit(f"{name} can be read")
    sys.exit(0)
sys.exit(f"the directory can be listed: {found}")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing(reachable: Path) -> None:
    directory = reachable / "data"
    with opened(directory) as db:
        db.execute(CreateStream("s", "text/plain"))
        names = [path.name for path in directory.iterdir()]
        ran = subprocess.run(
            [sys.executable, "-c", AS_UNPRIVILEGED_USER, str(directory), *names],
            capture_output=True,
            text=True,
            cwd="/",
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_loose_directory_of_another_user_is_refused_with_the_fix(reachable: Path) -> None:
    directory = reachable / "data"
    directory.mkdir()
    os.chmod(directory, 0o777)
    program = (
        "import os, sys, tailrace.storage.modes as modes, pathlib\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    modes.claim_directory(pathlib.Path(sys.argv[1]), ('x',))\n"
        "except modes.Invalid as error:\n    print(error.code, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, text=True)
    assert ran.stdout.startswith("FILES_EXPOSED") and "chown" in ran.stdout, ran.stdout + ran.stderr
    assert mode(directory) == 0o777


def test_ciphertexts_of_one_secret_differ_and_are_bound_to_their_row() -> None:
    vault = Vault(os.urandom(32))
    first, second = vault.seal("meta/a", b"secret"), vault.seal("meta/a", b"secret")
    assert first != second
    assert vault.open("meta/a", first) == vault.open("meta/a", second) == b"secret"
    for label, sealed in (("meta/b", first), ("meta/a", first[:-1]), ("meta/a", b""), ("meta/a", b"\2" + first[1:])):
        with pytest.raises(Corrupt):
            vault.open(label, sealed)
    assert not Vault(os.urandom(32)).fits(vault.seal("meta/secret-check", b""))


def test_every_secret_of_meta_is_known_to_rotation() -> None:
    """`write_secret` refuses names that are not; this finds secrets that were written past it."""
    assert read_secret is not None
    for path in (ROOT / "src" / "tailrace").rglob("*.py"):
        for line in path.read_text().splitlines():
            assert "Meta(" not in line or "token_bytes" not in line, f"{path.name}: a secret in clear text: {line}"

"""Disks that fail: a sync that does not succeed, no space left. Writes stop with 503, reads go on, nothing is lost."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import NotFound, Unavailable
from tailrace.http import system
from tailrace.runner import QueuedCommand
from tailrace.storage.reserve import Reserve
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.queries import ReadStream
from tests.crash.load import TEXT, Connection
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess, check
from tests.support.vfs import FaultyDisk, failed_read, failed_sync, no_space

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]
numbers = itertools.count()


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    made = FaultyDisk(f"faulty{next(numbers)}")
    yield made
    made.unregister()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That writes are stopped is logged as critical; here it is what is wanted."""
    logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("tailrace").setLevel(logging.NOTSET)


def content(db: Database, path: str) -> bytes:
    return b"".join(entry.body for entry in db.execute(ReadStream(path)).page.entries)


def queued(db: Database, command: Command[Any]) -> QueuedCommand:
    """A command that waits for whoever takes the next turn."""
    job = QueuedCommand(command, "me")
    db._runner._enqueue(job)
    return job


def append(db: Database, text: bytes) -> int:
    return db.execute(Append("s", text, TEXT)).tail


# -- a failed sync


def test_a_failed_sync_stops_the_writer_and_keeps_what_was_acknowledged(disk: FaultyDisk, data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    append(db, b"acknowledged;")

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        if operation == "sync" and path.endswith("-wal"):
            raise failed_sync()

    disk.fault = fault
    with pytest.raises(Unavailable):
        append(db, b"unknown;")
    disk.fault = None  # even when the disk is well again: what it lost meanwhile, nobody knows
    assert db.stopped is not None
    assert db.stopped.code == "WRITES_STOPPED"
    with pytest.raises(Unavailable, match="restart"):
        append(db, b"refused;")
    assert content(db, "s") == b"acknowledged;", "reads go on, and see only what is durable"
    db.close()
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        assert content(again, "s") in (b"acknowledged;", b"acknowledged;unknown;")
        append(again, b"later;")
    assert check_database(data_dir).findings == []


def test_a_failed_sync_fails_the_whole_batch(disk: FaultyDisk, data_dir: Path) -> None:
    """Every caller that shared the commit gets the error, and none gets an answer from a later commit."""
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    failing = threading.Event()
    answered: list[bytes] = []
    refused: list[bytes] = []

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        if operation == "sync" and path.endswith("-wal") and failing.is_set():
            raise failed_sync()

    def write(name: int) -> None:
        for number in range(200):
            text = b"%d.%d;" % (name, number)
            try:
                append(db, text)
            except Unavailable:
                refused.append(text)
            else:
                answered.append(text)
            if len(answered) > 100:
                failing.set()

    disk.fault = fault
    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disk.fault = None
    assert len(answered) + len(refused) == 1600
    assert refused
    seen = content(db, "s").split(b";")[:-1]
    assert sorted(seen) == sorted(text[:-1] for text in answered)
    db.close()
    assert check_database(data_dir).findings == []


def test_a_server_whose_sync_fails_says_so_and_goes_on_reading(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    control.mkdir()
    with faulty_server(control, data) as server:
        connection = seeded(server)
        (control / "sync").touch()
        reply = post(connection, b"unknown;")
        assert (reply.status, code(reply.body)) == (503, "STORAGE_FAILED")
        (control / "sync").unlink()
        reply = post(connection, b"refused;")
        assert (reply.status, code(reply.body)) == (503, "WRITES_STOPPED")
        assert connection.ask("PUT", "other", {"Content-Type": TEXT}).status == 503
        assert connection.ask("DELETE", "s").status == 503
        assert get(server, "/readyz") == 503
        assert get(server, "/healthz") == 200
        assert connection.read_all("s").body == b"acknowledged;"
    with ServerProcess.tailrace(data) as server:
        assert Connection(server.url).read_all("s").body in (b"acknowledged;", b"acknowledged;unknown;")
        assert get(server, "/readyz") == 200
    assert_clean(data)


# -- a failed read inside a command


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_failed_read_never_leaves_a_part_of_its_batch(nth: int, disk: FaultyDisk, data_dir: Path) -> None:
    """SQLite takes the whole transaction back when a read of it fails; what shared the batch must not be written."""
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    append(db, b"acknowledged;")
    db.execute(CreateStream("big", TEXT))
    for _ in range(40):
        db.execute(Append("big", b"x" * 20_000, TEXT))
    db.close()  # so that nothing is in memory
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    jobs = [queued(db, Append("s", b"%d;" % number, TEXT)) for number in range(2)]
    left = nth

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        nonlocal left
        left -= operation == "read"
        if left == 0 and operation == "read":
            raise failed_read()

    disk.fault = fault
    try:
        db.execute(CreateStream("fork", fork=Fork("big", 20_000, 7)))
    except Unavailable:
        assert all(job.error is not None for job in jobs)
        assert db.stopped is not None
        kept = b"acknowledged;"
    else:
        assert left > 0, "a read failed and the failure was not reported"
        kept = b"acknowledged;0;1;"
    disk.fault = None
    assert content(db, "s") == kept
    db.close()
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        assert content(again, "s") == kept
    assert check_database(data_dir).findings == []


# -- a full disk


def full(operation: str, path: str, offset: int, size: int) -> None:
    if operation == "write":
        raise no_space()


def test_a_full_disk_refuses_writes_until_there_is_space(disk: FaultyDisk, data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    kept = b""
    for number in range(20):
        append(db, b"%d;" % number)
        kept += b"%d;" % number
        disk.fault = full
        for command in (
            Append("s", b"refused;", TEXT),
            CreateStream("t", TEXT, b"refused"),
            DeleteStream("s"),
            Append("s", close=True),
        ):
            with pytest.raises(Unavailable) as caught:
                db.execute(command)
            assert caught.value.code == "DISK_FULL"
        assert content(db, "s") == kept
        assert db.stopped is None
        disk.fault = None
    assert append(db, b"and on;") == len(kept) + 7
    assert content(db, "s") == kept + b"and on;"
    db.close()
    assert check_database(data_dir).findings == []


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, 8])
def test_a_disk_that_fills_during_a_commit_loses_that_commit_alone(nth: int, disk: FaultyDisk, data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    kept = b""
    for number in range(10):
        left = nth

        def fault(operation: str, path: str, offset: int, size: int) -> None:
            nonlocal left
            left -= operation == "write"
            if left <= 0 and operation == "write":
                raise no_space()

        disk.fault = fault
        text = b"%d" % number * 9000 + b";"
        try:
            append(db, text)
        except Unavailable as error:
            assert error.code == "DISK_FULL"
        else:
            kept += text
        disk.fault = None
        append(db, b"small;")
        kept += b"small;"
        assert content(db, "s") == kept
    db.close()
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        assert content(again, "s") == kept
    assert check_database(data_dir).findings == []


def test_a_disk_that_fills_in_the_middle_of_a_command_does_not_stop_the_writer(
    disk: FaultyDisk, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that makes the engine flush early, in a transaction larger than SQLite's cache."""
    monkeypatch.setattr("tailrace.storage.sqlite._WRITER_CACHE_KIB", 64)
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    db.execute(CreateStream("gone", TEXT))
    for _ in range(30):
        db.execute(Append("gone", b"x" * 20_000, TEXT))
    append(db, b"kept;")
    db.execute(DeleteStream("gone"))
    shared = [queued(db, Append("s", b"y" * 50_000, TEXT)) for _ in range(10)]
    disk.fault = full
    with pytest.raises(Unavailable) as caught:
        db.sweep()
    assert caught.value.code == "DISK_FULL"
    assert all(isinstance(job.error, Unavailable) for job in shared)
    disk.fault = None
    assert db.stopped is None
    db.sweep()
    append(db, b"and on;")
    assert content(db, "s") == b"kept;and on;"
    db.close()
    assert check_database(data_dir).findings == []


def test_a_server_on_a_full_disk_answers_503_and_recovers_by_itself(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    control.mkdir()
    with faulty_server(control, data) as server:
        connection = seeded(server)
        (control / "full").touch()
        for _ in range(3):
            reply = post(connection, b"refused;")
            assert (reply.status, code(reply.body)) == (503, "DISK_FULL")
            assert reply.headers["retry-after"]
        assert connection.read_all("s").body == b"acknowledged;"
        (control / "full").unlink()
        assert post(connection, b"and on;").status == 204
        assert connection.read_all("s").body == b"acknowledged;and on;"
        assert get(server, "/readyz") == 200
    assert_clean(data)


def can_mount() -> bool:
    """Whether this process may mount a file system: being root is not enough in some containers."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="mounting a small tmpfs needs root; the injected full disk was tested")
def test_a_server_on_a_really_full_disk_answers_503_and_recovers_by_itself(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], check=True)
    try:
        data = small / "data"
        with ServerProcess.tailrace(data) as server:
            connection = seeded(server)
            ballast = small / "ballast"
            for size in (64_000, 1_000, 10):
                kept = connection.read_all("s").body
                fill(ballast)
                refused = 0
                while refused < 5:
                    reply = post(connection, b"z" * size + b";")
                    if reply.status == 204:
                        kept += b"z" * size + b";"
                        continue
                    assert (reply.status, code(reply.body)) == (503, "DISK_FULL"), server.output
                    refused += 1
                assert connection.read_all("s").body == kept, "reads go on"
                ballast.unlink()
                assert post(connection, b"and on;").status == 204, "and so do writes, without a restart"
                assert connection.read_all("s").body == kept + b"and on;"
                assert get(server, "/readyz") == 200
        assert_clean(data)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(not can_mount(), reason="mounting a small tmpfs needs root; nothing else shows a reserve at work")
@pytest.mark.parametrize("size_mb", [8, 64])
def test_on_a_really_full_disk_deleting_and_trimming_work_and_then_writes_do(tmp_path: Path, size_mb: int) -> None:
    """Nobody frees space but the database itself."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(small)], check=True)
    try:
        data = small / "data"
        with ServerProcess.tailrace(data) as server:
            connection = seeded(server)
            for name in ("one", "two"):
                assert connection.ask("PUT", name, {"Content-Type": TEXT}).status == 201
            body, names = b"z" * 40_000, itertools.cycle(["one", "two"])
            for _ in range(size_mb * 4):
                if connection.ask("POST", next(names), {"Content-Type": TEXT}, body).status != 204:
                    break
            fill(small / "ballast")
            while connection.ask("POST", "one", {"Content-Type": TEXT}, body).status == 204:
                pass
            assert get(server, "/readyz") == 503
            reply = connection.ask("POST", "one", {"Content-Type": TEXT}, body)
            assert (reply.status, code(reply.body)) == (503, "DISK_FULL")
            assert get(server, "/readyz") == 503, "a write that fails is never called ready"
            assert connection.ask("DELETE", "one").status == 204, server.output
            assert connection.ask("HEAD", "one").status == 404
            assert connection.ask("DELETE", "two").status == 204, server.output
            # Housekeeping takes the entries out; there is room inside the database then, though the disk is still full.
            until = time.monotonic() + PATIENCE_S
            while (reply := connection.ask("POST", "s", {"Content-Type": TEXT}, body)).status != 204:
                assert time.monotonic() < until, reply.body
                time.sleep(0.05)
            (small / "ballast").unlink()
            while get(server, "/readyz") != 200:
                assert time.monotonic() < until, server.output
                time.sleep(0.05)
            assert post(connection, b"and on;").status == 204
            assert oct((data / "RESERVE").stat().st_mode & 0o777) == "0o600"
        assert_clean(data)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(not can_mount(), reason="mounting a small tmpfs needs root; nothing else is full from the start")
def test_a_database_that_is_begun_on_a_really_full_disk_says_so_and_leaves_nothing_broken(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    try:
        data = small / "data"
        fill(small / "full")
        for _ in range(2):
            with pytest.raises(Unavailable, match="full") as caught:
                tailrace.open(data, housekeeping_s=None)
            assert caught.value.code == "DISK_FULL"
        (small / "full").unlink()
        with tailrace.open(data, housekeeping_s=None) as db:
            db.execute(CreateStream("s", TEXT))
            append(db, b"after all")
            assert content(db, "s") == b"after all"
        assert not list(data.glob("*.tmp"))
        assert_clean(data)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_delete_that_shares_its_batch_with_what_finds_no_space_is_done_all_the_same(
    disk: FaultyDisk, data_dir: Path
) -> None:
    """The disk is full while the reserve is there, and not when it was released."""
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    db.execute(CreateStream("gone", TEXT))

    def fault(operation: str, path: str, offset: int, size: int) -> None:
        if operation == "write" and (data_dir / "RESERVE").exists():
            raise no_space()

    disk.fault = fault
    jobs = [queued(db, command) for command in (Append("s", b"a", TEXT), DeleteStream("gone"), Append("s", b"b", TEXT))]
    with pytest.raises(Unavailable) as caught:
        append(db, b"c")
    assert caught.value.code == "DISK_FULL"
    with pytest.raises(Unavailable):
        append(db, b"d")  # whoever waits for its turn runs what waits before it, too
    assert [type(job.error) for job in jobs] == [Unavailable, type(None), Unavailable]
    assert all(job.finished for job in jobs)
    with pytest.raises(NotFound):
        db.execute(Append("gone", b"e", TEXT))
    assert db.trouble is not None, "a commit that used the reserve, or wrote nothing, says nothing of other writes"
    disk.fault = None
    append(db, b"f")
    assert db.trouble is None
    db.close()
    assert check_database(data_dir).findings == []


def test_a_commit_that_writes_nothing_does_not_make_a_full_disk_ready(disk: FaultyDisk, data_dir: Path) -> None:
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    disk.fault = full
    with pytest.raises(Unavailable):
        append(db, b"refused;")
    with pytest.raises(NotFound):
        db.execute(Append("missing", b"x", TEXT))
    assert db.trouble is not None
    assert system.ready(db).status == 503
    disk.fault = None
    append(db, b"on;")
    assert system.ready(db).status == 200
    db.close()


def test_a_small_write_that_fits_does_not_make_a_full_disk_ready(
    disk: FaultyDisk, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds a place in the write-ahead log where one of some size would not."""
    db = Database(SqliteEngine(data_dir, vfs=disk.name), housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    disk.fault = full
    with pytest.raises(Unavailable):
        append(db, b"refused;")
    disk.fault = None
    with monkeypatch.context() as almost:
        almost.setattr(Reserve, "room", lambda self: 4096)
        append(db, b"small;")
        assert system.ready(db).status == 503
    append(db, b"on;")
    assert system.ready(db).status == 200
    db.close()


def fill(path: Path) -> None:
    """Leave no space on the disk that holds `path`."""
    with path.open("wb", buffering=0) as file:
        for block in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(block))
            except OSError:
                continue


# -- helpers of the tests over HTTP


def faulty_server(control: Path, data: Path) -> ServerProcess:
    command = [sys.executable, "-m", "tests.crash.faulty_server", str(control), "serve", "--dev", "--port", "0"]
    return ServerProcess([*command, "--data", str(data)])


def seeded(server: ServerProcess) -> Connection:
    connection = Connection(server.url)
    assert connection.ask("PUT", "s", {"Content-Type": TEXT}).status == 201
    assert post(connection, b"acknowledged;").status == 204
    return connection


def post(connection: Connection, body: bytes):  # type: ignore[no-untyped-def]
    return connection.ask("POST", "s", {"Content-Type": TEXT}, body)


def get(server: ServerProcess, path: str) -> int:
    try:
        with urllib.request.urlopen(server.url + path, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def assert_clean(data: Path) -> None:
    checked = check(data)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"

"""Files that go away under a running database: nothing is acknowledged that no restart would find."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.errors import Unavailable
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import ReadStream
from tailrace.streams.stream import STREAMS
from tests.crash.load import TEXT, Connection
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """That writes are stopped is logged as critical; here it is what is wanted."""
    logging.getLogger("tailrace").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("tailrace").setLevel(logging.NOTSET)


def remove(data: Path) -> None:
    shutil.rmtree(data)


def remove_and_recreate(data: Path) -> None:
    shutil.rmtree(data)
    data.mkdir()


def rename(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def replace_directory(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))
    with tailrace.open(data, housekeeping_s=None) as other:
        other.execute(CreateStream("s", TEXT))


def remove_database(data: Path) -> None:
    (data / FILE).unlink()


def replace_database(data: Path) -> None:
    with tailrace.open(data.with_name("other"), housekeeping_s=None) as other:
        other.execute(CreateStream("s", TEXT))
    os.replace(data.with_name("other") / FILE, data / FILE)


def remove_wal(data: Path) -> None:
    (data / f"{FILE}-wal").unlink()


def replace_wal(data: Path) -> None:
    shutil.copy(data / f"{FILE}-wal", data / "copy")
    os.replace(data / "copy", data / f"{FILE}-wal")


def remove_shm(data: Path) -> None:
    (data / f"{FILE}-shm").unlink()


ALL = [
    remove, remove_and_recreate, rename, replace_directory, remove_database, replace_database, remove_wal,
    replace_wal, remove_shm,
]  # fmt: skip


@pytest.mark.parametrize("happen", ALL, ids=lambda happen: happen.__name__)
def test_a_server_whose_files_are_gone_acknowledges_nothing_more(
    tmp_path: Path, happen: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    with ServerProcess.tailrace(data) as server:
        connection = Connection(server.url)
        assert connection.ask("PUT", "s", {"Content-Type": TEXT}).status == 201
        assert connection.ask("POST", "s", {"Content-Type": TEXT}, b"kept;").status == 204
        happen(data)
        reply = connection.ask("POST", "s", {"Content-Type": TEXT}, b"lost;")
        error = json.loads(reply.body)["error"]
        # Housekeeping may have seen it first.
        assert (reply.status, error["code"] in ("DATABASE_GONE", "WRITES_STOPPED")) == (503, True), error
        assert str(data) in error["message"]
        assert "restart" in error["message"]
        reply = connection.ask("POST", "s", {"Content-Type": TEXT}, b"refused;")
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (503, "WRITES_STOPPED")
        assert connection.read_all("s").body in (b"kept;", b"kept;lost;"), "what is held open is still read"
        status, reason = ready(server)
        assert status == 503
        assert str(data) in reason
        server.kill()


def test_readiness_sees_it_before_anything_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess.tailrace(data) as server:
        assert ready(server)[0] == 200
        shutil.rmtree(data)
        status, reason = ready(server)
        assert status == 503
        assert str(data) in reason
        server.kill()


def test_no_append_is_acknowledged_after_the_files_were_removed_under_load(data_dir: Path) -> None:
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    removed = threading.Event()
    wrong: list[int] = []
    answered = threading.Event()

    def write(number: int) -> None:
        while True:
            after = removed.is_set()
            try:
                db.execute(Append("s", b"x", TEXT))
            except Unavailable:
                return
            answered.set()
            if after:
                wrong.append(number)
                return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert answered.wait(PATIENCE_S)
    shutil.rmtree(data_dir)
    removed.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert db.stopped is not None
    db.close()


def test_a_database_file_that_was_cut_off_is_noticed(data_dir: Path) -> None:
    """It is the same file, and SQLite goes on writing to its log: at the next start nothing could be read."""
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    db.execute(Append("s", b"kept;", TEXT))
    db.verify()
    os.truncate(data_dir / FILE, 0)
    until = time.monotonic() + PATIENCE_S
    while db.stopped is None:
        assert time.monotonic() < until
        db.verify()
    with pytest.raises(Unavailable, match="cut off"):
        db.execute(Append("s", b"lost;", TEXT))
    db.close()


def test_exports_go_on_when_the_directory_is_gone(data_dir: Path) -> None:
    """They keep old images in a file beside the database, if they can."""
    with ServerProcess.tailrace(data_dir) as server:
        arrow = {"Accept": "application/vnd.apache.arrow.stream"}
        made = urllib.request.Request(
            f"{server.url}/v1/api/sql",
            json.dumps(
                {"sql": "CREATE TABLE orders (id TEXT PRIMARY KEY); INSERT INTO orders VALUES ('o-1')"}
            ).encode(),
            {"Content-Type": "application/json"},
        )
        request = urllib.request.Request(f"{server.url}/v1/tables/orders/items", headers=arrow)
        with urllib.request.urlopen(made, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            before = answer.read()
        shutil.rmtree(data_dir)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.read() == before
        server.kill()


def test_readers_that_open_later_never_read_another_database(data_dir: Path) -> None:
    """A connection is opened by name; what has the name now is not this database."""
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    db.execute(Append("s", b"kept;", TEXT))
    replace_database(data_dir)
    with ExitStack() as held, pytest.raises(Unavailable) as caught:
        for _ in range(100):
            assert held.enter_context(db._engine.reader()).get(STREAMS, "s") is not None
    assert caught.value.code == "DATABASE_GONE"
    assert db.execute(ReadStream("s")).page.entries[0].body == b"kept;", "the connections that were open go on"
    db.close()


def test_a_database_whose_lock_file_was_removed_is_still_locked(data_dir: Path) -> None:
    db = tailrace.open(data_dir, housekeeping_s=None)
    db.execute(CreateStream("s", TEXT))
    (data_dir / "LOCK").unlink()
    opening = f"import tailrace; tailrace.open({str(data_dir)!r})"
    other = subprocess.run([sys.executable, "-c", opening], capture_output=True, text=True, check=False)
    assert "another process has" in other.stderr
    db.execute(Append("s", b"on;", TEXT))
    reader = SqliteEngine(data_dir, read_only=True)
    assert not reader._claim_shared(), "nor may anybody repair it"
    reader.close()
    db.close()
    assert check_database(data_dir).findings == []


def test_files_that_stay_are_looked_at_without_harm(data_dir: Path) -> None:
    """Other files come and go in the directory, and the process changes its working directory."""
    here = os.getcwd()
    os.chdir(data_dir.parent)
    try:
        db = tailrace.open("data", housekeeping_s=None)
        db.execute(CreateStream("s", TEXT))
        os.chdir("/")
        for number in range(20):
            (data_dir / "other").write_text("x")
            db.execute(Append("s", b"%d;" % number, TEXT))
            (data_dir / "other").unlink()
        assert len(db.execute(ReadStream("s")).page.entries) == 20
        db.close()
    finally:
        os.chdir(here)


def ready(server: ServerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(server.url + "/readyz", timeout=PATIENCE_S) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as error:
        return error.code, str(json.loads(error.read())["reason"])

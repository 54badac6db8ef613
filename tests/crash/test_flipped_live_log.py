"""One flipped bit in the write-ahead log of a running database: it is never copied into the database file, where it
would get a checksum that is right."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import tailrace
from tailrace.auth.users import CreateUser, ListUsers
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Corrupt, Error, Unavailable
from tailrace.storage import pages, wal
from tailrace.storage.sqlite import FILE
from tailrace.storage.table import META
from tests.crash.bit_rot import extend
from tests.crash.test_flipped_pages import flip
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]
LOG = f"{FILE}{wal.WAL}"
HEADER, FRAME = 32, 24 + 4096


def newest_frames(directory: Path) -> list[int]:
    """Where the frames begin from which pages are read: the last one of each page in the present log."""
    data = (directory / LOG).read_bytes()
    newest: dict[int, int] = {}
    for start in range(HEADER, len(data) - FRAME + 1, FRAME):
        if data[start + 8 : start + 16] != data[16:24]:
            break
        newest[struct.unpack_from(">I", data, start)[0]] = start
    return list(newest.values())


def make_users(db: Database) -> None:
    for number in range(5):
        db.execute(CreateUser(name=f"user{number}", role="user", access=(f"streams/{number}/*",)))


def flip_a_right(directory: Path) -> None:
    """In the page with the users: a row of a table whose rows have no checksums."""
    at = (directory / LOG).read_bytes().rindex(b"streams/3/")
    flip(directory / LOG, (at + 8) * 8)


def test_it_is_seen_by_housekeeping_and_nothing_is_answered_from_then_on(tmp_path: Path) -> None:
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    make_users(db)
    db._engine.examine()
    db.execute(ListUsers())
    flip_a_right(tmp_path / "data")
    db._probe()
    with pytest.raises(Corrupt, match="frame") as caught:
        db.execute(ListUsers())
    assert caught.value.code == "WAL_DAMAGED"
    with pytest.raises(Unavailable, match="accept the loss") as stopped:
        db.execute(CreateUser(name="late", role="user"))
    assert stopped.value.code == "WRITES_STOPPED"
    db.close()
    with pytest.raises(Corrupt, match="not a torn tail"):
        tailrace.open(tmp_path / "data")


def test_a_server_says_so_and_its_next_start_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess.tailrace(data) as server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        assert http.put("/v1/stream/before-the-flip", headers={"content-type": "text/plain"}).status_code == 201
        flip(data / LOG, ((data / LOG).read_bytes().rindex(b"before-the-flip") + 3) * 8)
        deadline = time.monotonic() + PATIENCE_S
        while (ready := http.get("/readyz")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ready.status_code == 503
        assert "write-ahead log" in ready.text
        assert http.post("/v1/stream/before-the-flip", content=b"x").status_code in (500, 503)
    with pytest.raises(Corrupt, match="not a torn tail"):
        check_database(data)
    with tailrace.open(data, accept_loss=True, housekeeping_s=None):
        pass


@pytest.mark.parametrize("seed", range(rounds(3)))
def test_it_is_not_sealed_by_checkpoints_nor_by_a_stop(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = tmp_path / "data"
    db = tailrace.open(data, housekeeping_s=None)
    extend(db)
    start = chance.choice(newest_frames(data))
    flip(data / LOG, (start + 24) * 8 + chance.randrange(4096 * 8))
    if seed % 2:
        with pytest.raises(Error, match="damaged"):
            for number in range(5000):
                db.publish("news", b"%d" % number * 100, partition=0)
    db.close()
    with pytest.raises(Corrupt, match="write-ahead log"):
        tailrace.open(data)


def test_many_frames_at_once_are_judged_as_single_ones_are(tmp_path: Path) -> None:
    """Every frame, and every field that says what a page holds; before what is copied nothing matters."""
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    make_users(db)
    database = tmp_path / "data" / FILE
    index = db._engine._checkpoints._log
    frames = (os.stat(f"{database}{wal.WAL}").st_size - HEADER) // FRAME
    assert index.frames == frames > 15, "more than are verified at once"
    for copied in (0, 1, frames - 1, frames):
        known = wal.WalIndex(frames, copied, index.salts)
        assert wal.examine(database, known, pages.verify) is None
        for number in range(1, frames + 1):
            start = HEADER + (number - 1) * FRAME
            for byte in (start, start + 7, start + 24, start + FRAME - 1):
                flip(tmp_path / "data" / LOG, byte * 8 + number % 8)
                found = wal.examine(database, known, pages.verify)
                flip(tmp_path / "data" / LOG, byte * 8 + number % 8)
                assert (found is not None) == (number > copied)
                assert found is None or found.frame == number
    assert wal.examine(database, wal.WalIndex(frames, 0, b"12345678"), pages.verify) is None
    assert wal.examine(database, wal.WalIndex(frames + 1, 0, index.salts), pages.verify) is not None
    db.close()


def test_a_log_that_is_written_and_restarted_while_it_is_checked_is_no_damage(tmp_path: Path) -> None:
    """Beside readers that keep it from being copied, too."""
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    db._engine._checkpoints.at = 8
    db.create_topic("news", 1)
    done = threading.Event()
    looks = 0

    def look() -> None:
        nonlocal looks
        while not done.is_set():
            db._engine.examine()
            looks += 1

    def publish(numbers: range) -> None:
        for number in numbers:
            db.publish("news", b"x" * (number * 7919 % 30_000), partition=0)
            salts.add(db._engine._checkpoints._log.salts)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    salts: set[Any] = set()
    for first in range(0, rounds(600), 20):
        with db._engine.reader() as reader:
            reader.values(META, "name")
            publish(range(first, first + 10))
        publish(range(first + 10, first + 20))
    done.set()
    for thread in threads:
        thread.join()
    assert db._engine._checkpoints.damage is None
    assert len(salts) > 5, "it was restarted many times"
    assert looks > 5
    db.close()
    assert check_database(tmp_path / "data").findings == []


def test_a_header_that_is_read_while_it_is_written_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The salts of the log before, with the checksum of the next one."""
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    make_users(db)
    log = tmp_path / "data" / LOG
    whole = log.read_bytes()[: wal.HEADER_BYTES]

    def write_header(header: bytes) -> None:
        with open(log, "r+b") as file:
            file.write(header)

    write_header(whole[:24] + bytes(8))
    monkeypatch.setattr(wal.time, "sleep", lambda _: write_header(whole))
    db._engine.examine()
    assert db._engine._checkpoints.damage is None
    db.execute(ListUsers())
    db.close()


def test_a_log_that_was_removed_is_not_complained_about_each_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is reported once, when it stops writes."""
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    make_users(db)
    (tmp_path / "data" / LOG).unlink()
    for _ in range(3):
        db._probe()
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    db.close()


def test_looking_at_the_log_keeps_the_locks_of_the_process(tmp_path: Path) -> None:
    """To close a file that SQLite has locked would let another process take the log for one that nobody uses."""
    db = tailrace.open(tmp_path / "data", housekeeping_s=None)
    make_users(db)
    before = locks(tmp_path / "data")
    assert before
    for _ in range(3):
        db._engine.examine()
        db._engine._checkpoints.run()
    db.execute(CreateUser(name="again", role="user"))
    assert locks(tmp_path / "data") == before
    db.close()


def locks(directory: Path) -> list[str]:
    """What the system says this process has locked of the database's files."""
    inodes = {str(os.stat(directory / name).st_ino): name for name in (FILE, f"{FILE}{wal.INDEX}")}
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, mode, owner, place, *_ = line.replace("-> ", "").split()
        if kind == "POSIX" and owner == str(os.getpid()) and place.rsplit(":", 1)[1] in inodes:
            found.append(f"{inodes[place.rsplit(':', 1)[1]]} {mode}")
    return sorted(found)

"""One flipped bit in the write-ahead log of a killed server: no acknowledged append is lost without an error."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.errors import Corrupt
from tailrace.storage import wal
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import ReadStream
from tests.crash.bit_rot import answers
from tests.support.soak import rounds

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

COUNT = 60
CHILD = """
import os, signal, sys, tailrace
from tailrace.streams.commands import Append, CreateStream
db = tailrace.open(sys.argv[1], housekeeping_s=None)
db.execute(CreateStream("s", "text/plain"))
for number in range(int(sys.argv[2])):
    db.execute(Append("s", b"%d," % number + b"x" * (number % 4 * 1500), "text/plain"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def body(number: int) -> bytes:
    return b"%d," % number + b"x" * (number % 4 * 1500)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server leaves that was killed after its last answer: nothing was torn, everything is in the WAL."""
    directory = tmp_path_factory.mktemp("killed") / "data"
    child = subprocess.run([sys.executable, "-c", CHILD, str(directory), str(COUNT)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert (directory / "tailrace.db-shm").exists()
    return directory


def copied(killed: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "copy"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(killed, directory)
    return directory


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def count_of(directory: Path, **options: bool) -> int:
    with tailrace.open(directory, housekeeping_s=None, **options) as db:
        entries = db.execute(ReadStream("s", bytes_max=10**9)).page.entries
    assert [entry.body for entry in entries] == [body(number) for number in range(len(entries))]
    return len(entries)


def bits(killed: Path, count: int, seed: int) -> list[int]:
    """Some anywhere, all of the header, and some of each field of frames' headers."""
    chance = random.Random(seed)
    size = (killed / "tailrace.db-wal").stat().st_size
    frames = (size - 32) // (24 + 4096)
    anywhere = [chance.randrange(size * 8) for _ in range(count)]
    heads = [(32 + chance.randrange(frames) * 4120) * 8 + chance.randrange(24 * 8) for _ in range(count // 2)]
    last = [(32 + (frames - 1) * 4120) * 8 + chance.randrange(4120 * 8) for _ in range(count // 8)]
    return anywhere + heads + last + [chance.randrange(32 * 8) for _ in range(count // 4)]


def test_undamaged_it_opens(killed: Path, tmp_path: Path) -> None:
    assert count_of(copied(killed, tmp_path)) == COUNT


def test_a_flip_after_a_kill_is_always_refused(killed: Path, tmp_path: Path) -> None:
    """The wal-index is there: it says how much was durable, so that even the last frame is known to be whole."""
    for bit in bits(killed, rounds(32), 1):
        directory = copied(killed, tmp_path)
        flip(directory / "tailrace.db-wal", bit)
        with pytest.raises(Corrupt, match="accept"):
            check_database(directory)
        with pytest.raises(Corrupt) as refused:
            tailrace.open(directory)
        assert refused.value.code == "WAL_DAMAGED"
    directory = copied(killed, tmp_path)
    flip(directory / "tailrace.db-wal", (killed / "tailrace.db-wal").stat().st_size * 4)
    assert 0 < count_of(directory, accept_loss=True) < COUNT
    assert check_database(directory).findings == []


def test_a_flip_without_a_wal_index_loses_at_most_the_last_commit(killed: Path, tmp_path: Path) -> None:
    last = 0
    for bit in bits(killed, rounds(32), 2):
        directory = copied(killed, tmp_path)
        (directory / "tailrace.db-shm").unlink()
        flip(directory / "tailrace.db-wal", bit)
        try:
            count = count_of(directory)
        except Corrupt as error:
            assert error.code == "WAL_DAMAGED"
        else:
            assert count >= COUNT - 1
            last += 1
    assert last < rounds(32)


def test_a_wal_that_is_missing_or_cut_off_is_refused_while_the_wal_index_knows_of_it(
    killed: Path, tmp_path: Path
) -> None:
    size = (killed / "tailrace.db-wal").stat().st_size
    for keep in (0, 1, 31, 32, 4000, size // 2, size - 4120, size - 1):
        directory = copied(killed, tmp_path)
        os.truncate(directory / "tailrace.db-wal", keep)
        with pytest.raises(Corrupt, match="durable"):
            tailrace.open(directory)
    directory = copied(killed, tmp_path)
    (directory / "tailrace.db-wal").unlink()
    with pytest.raises(Corrupt, match="is missing"):
        tailrace.open(directory)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("missing", [True, False])
def test_a_wal_whose_database_file_is_missing_or_empty_is_kept(
    killed: Path, tmp_path: Path, missing: bool, index: bool
) -> None:
    """SQLite deletes the log of an empty database, and a new one would be served in place of what was there."""
    directory = copied(killed, tmp_path)
    database, log = directory / "tailrace.db", directory / "tailrace.db-wal"
    before, logged = database.read_bytes(), log.read_bytes()
    if missing:
        database.unlink()
    else:
        os.truncate(database, 0)
    if not index:
        (directory / "tailrace.db-shm").unlink()
    for _ in range(2):
        with pytest.raises(Corrupt, match="empty or missing") as refused:
            tailrace.open(directory)
        assert refused.value.code == "WAL_DAMAGED"
        with pytest.raises(Corrupt, match="empty or missing"):
            check_database(directory)
        assert log.read_bytes() == logged
    database.write_bytes(before)
    assert count_of(copied(directory, tmp_path / "whole")) == COUNT
    os.truncate(database, 0)
    with tailrace.open(directory, housekeeping_s=None, accept_loss=True) as db:
        db.execute(CreateStream("s", "text/plain"))
    (kept,) = directory.glob("damaged-*/tailrace.db-wal")
    assert kept.read_bytes() == logged


def test_a_wal_that_was_begun_again_over_old_frames_is_no_damage(tmp_path: Path) -> None:
    """After a checkpoint the log starts at the front again, and the older frames stay behind it."""
    directory = tmp_path / "data"
    more = "db._engine.writer.wal_checkpoint(); db.execute(Append('s', b'z', 'text/plain')); os.kill"
    program = CHILD.replace("os.kill", more)
    child = subprocess.run([sys.executable, "-c", program, str(directory), str(COUNT)], check=False)
    assert child.returncode == -signal.SIGKILL
    verdict = wal.judge(directory / "tailrace.db")
    size = (directory / "tailrace.db-wal").stat().st_size
    assert verdict.damage is None
    assert 0 < verdict.frames < (size - 32) // 4120, "older frames are behind it"
    (directory / "tailrace.db-shm").unlink()
    with tailrace.open(directory, housekeeping_s=None) as db:
        assert len(db.execute(ReadStream("s", bytes_max=10**9)).page.entries) == COUNT + 1


def test_frames_of_a_transaction_that_was_rolled_back_are_no_damage(tmp_path: Path) -> None:
    """A large transaction writes to the WAL before it commits; rolled back, its frames stay there, with this log's
    salts, behind those of the next one."""
    with tailrace.open(tmp_path, housekeeping_s=None) as db:
        db.execute(CreateStream("s", "text/plain"))
        writer = db._engine.writer
        writer.execute("PRAGMA cache_size = 10; BEGIN")
        for number in range(100):
            writer.execute("INSERT INTO entries VALUES (?, 0, 1, 1, zeroblob(5000), NULL, NULL)", (-number - 1,))
        writer.execute("ROLLBACK")
        db.execute(Append("s", b"x", "text/plain"))
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("tailrace.db", "tailrace.db-wal"):
            shutil.copy(tmp_path / name, copy / name)
        assert wal.judge(copy / "tailrace.db").damage is None
        assert (copy / "tailrace.db-wal").stat().st_size > 100 * 4120


def test_a_live_database_is_judged_by_what_is_durable(tmp_path: Path) -> None:
    """`check` beside a server: a flip in frames that are durable is found, the frames behind them are nobody's
    business; and a log that is written meanwhile is never taken for a damaged one."""
    with tailrace.open(tmp_path, housekeeping_s=None) as db:
        db.execute(CreateStream("s", "text/plain"))
        for number in range(10):
            db.execute(Append("s", body(number), "text/plain"))
        assert check_database(tmp_path).findings == []
        path = tmp_path / "tailrace.db-wal"
        with open(path, "ab") as file:
            file.write(os.urandom(4120))  # as if a commit were under way
        assert check_database(tmp_path).findings == []
        with open(path, "r+b") as file:
            file.seek(32 + 4120 + 1000)
            old = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([old[0] ^ 1]))
        with pytest.raises(Corrupt, match="frame 2 "):
            check_database(tmp_path)
        with open(path, "r+b") as file:
            file.seek(32 + 4120 + 1000)
            file.write(old)


EVERYTHING = """
import os, signal, sys, tailrace
from tests.crash.bit_rot import extend
db = tailrace.open(sys.argv[1], housekeeping_s=None)
extend(db)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_flip_in_the_log_of_everything_is_refused_or_changes_no_answer(tmp_path: Path) -> None:
    """Tables, indexes, topics, groups, users: some in the database file already, the rest in the log, with a wal-index
    and without."""
    data, directory = tmp_path / "data", tmp_path / "copy"
    child = subprocess.run([sys.executable, "-c", EVERYTHING, str(data)], check=False, cwd=Path(__file__).parents[2])
    assert child.returncode == -signal.SIGKILL
    shutil.copytree(data, directory)
    with tailrace.open(directory, housekeeping_s=None) as db:
        expected = answers(db)
    good = wal.judge(data / "tailrace.db").frames
    refused = 0
    for number, bit in enumerate(bits(data, rounds(24), 3)):
        shutil.rmtree(directory)
        shutil.copytree(data, directory)
        flip(directory / "tailrace.db-wal", bit)
        if number % 2:
            (directory / "tailrace.db-shm").unlink()
        try:
            db = tailrace.open(directory, housekeeping_s=None)
        except Corrupt:
            refused += 1
            continue
        with db:
            found = answers(db)
        # Behind the end are frames of an older log. Without an index the last commit may be taken for a torn one.
        if found != expected:
            assert number % 2
            assert wal.HEADER_BYTES + 4120 * (good - 12) <= bit // 8 < wal.HEADER_BYTES + 4120 * good
    assert refused

"""What only the embedded engine promises: one owner per directory, a synced WAL, versions that are not guessed at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tailrace.errors import Corrupt, Error, Invalid, Unavailable
from tailrace.storage.pages import VFS
from tailrace.storage.sqlite import FILE, SqliteEngine, migrations
from tailrace.storage.table import META, MetaRow
from tests.engine.conftest import NOW_MS
from tests.support.patience import PATIENCE_S

OPEN = "import sys; from tailrace.storage.sqlite import SqliteEngine; SqliteEngine(sys.argv[1])"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "some" / "where" / "new"


def set_version(directory: Path, version: int) -> None:
    connection = apsw.Connection(str(directory / FILE), vfs=VFS)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def test_the_directory_is_made_with_its_parents(directory: Path) -> None:
    SqliteEngine(directory).close()
    assert (directory / FILE).is_file()


def test_every_commit_is_synced_to_a_wal(directory: Path) -> None:
    engine = SqliteEngine(directory)
    execute = engine.writer.execute
    assert execute("PRAGMA journal_mode").fetchall() == [("wal",)]
    assert execute("PRAGMA synchronous").fetchall() == [(2,)], "FULL: the WAL is synced by each COMMIT"
    assert execute("PRAGMA journal_size_limit").fetchall() == [(64 * 1024 * 1024,)], "a WAL that grew is given back"
    engine.close()


def test_a_commit_really_calls_fsync(directory: Path) -> None:
    """A VFS that counts: one sync of the WAL for each commit, none for a rollback."""
    syncs: list[str] = []

    class File(apsw.VFSFile):
        def __init__(self, name: object, flags: list[int]) -> None:
            super().__init__("", name, flags)  # type: ignore[arg-type]
            self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

        def xSync(self, flags: int) -> None:  # noqa: N802 - apsw's name
            syncs.append(self.name)
            super().xSync(flags)

    class Counting(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("counting", "")

        def xOpen(self, name: object, flags: list[int]) -> File:  # noqa: N802
            return File(name, flags)

    vfs = Counting()
    engine = SqliteEngine(directory, vfs="counting")
    for number in range(3):
        syncs.clear()
        tx = engine.begin(NOW_MS)
        tx.put(META, MetaRow("test", b"%d" % number))
        tx.keep()
        tx.flush()
        assert syncs == []
        tx.commit()
        assert [Path(name).suffix for name in syncs] == [".db-wal"]
    engine.close()
    del vfs


def test_a_second_opener_in_the_same_process_is_refused(directory: Path) -> None:
    engine = SqliteEngine(directory)
    with pytest.raises(Unavailable, match=r"another process has .* open; stop it") as refused:
        SqliteEngine(directory)
    assert refused.value.code == "DATABASE_IN_USE"
    assert str(directory) in str(refused.value)
    engine.close()
    SqliteEngine(directory).close()


def test_a_second_process_is_refused(directory: Path) -> None:
    engine = SqliteEngine(directory)
    second = subprocess.run(
        [sys.executable, "-c", OPEN, str(directory)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert second.returncode != 0
    assert "another process has" in second.stderr
    tx = engine.begin(NOW_MS)  # the owner did not notice
    tx.put(META, MetaRow("test", b""))
    tx.flush()
    tx.commit()
    engine.close()
    third = subprocess.run(
        [sys.executable, "-c", OPEN, str(directory)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert third.returncode == 0, third.stderr


def test_a_dead_owner_leaves_no_lock(directory: Path) -> None:
    command = OPEN + "; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", command, str(directory)], timeout=PATIENCE_S)
    SqliteEngine(directory).close()


def test_a_reader_may_look_while_another_process_owns_the_directory(directory: Path) -> None:
    engine = SqliteEngine(directory)
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow("test", b"seen"))
    tx.keep()
    tx.flush()
    tx.commit()
    looking = SqliteEngine(directory, read_only=True)
    with looking.reader() as reader:
        assert reader.get(META, "test") == MetaRow("test", b"seen")
    assert looking.integrity() == []
    looking.close()
    engine.close()


def test_read_only_means_read_only(directory: Path) -> None:
    SqliteEngine(directory).close()
    looking = SqliteEngine(directory, read_only=True)
    with pytest.raises(Error):
        tx = looking.begin(NOW_MS)
        tx.put(META, MetaRow("test", b""))
        tx.flush()
        tx.commit()
    looking.close()


def test_read_only_needs_a_database(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(Invalid, match=r"there is no database in .*--data"):
            SqliteEngine(place, read_only=True)
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(directory: Path, read_only: bool) -> None:
    SqliteEngine(directory).close()
    known = len(migrations())
    set_version(directory, known + 1)
    with pytest.raises(Invalid, match=f"schema version {known + 1}, .*up to {known}; upgrade") as refused:
        SqliteEngine(directory, read_only=read_only)
    assert refused.value.code == "DATABASE_TOO_NEW"
    set_version(directory, known)
    SqliteEngine(directory).close()  # untouched, and not left locked


def test_an_older_schema_is_migrated_by_a_writer_only(directory: Path) -> None:
    SqliteEngine(directory).close()
    set_version(directory, len(migrations()) - 1)
    with pytest.raises(Invalid, match="open it once for writing") as refused:
        SqliteEngine(directory, read_only=True)
    assert refused.value.code == "DATABASE_TOO_OLD"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Invalid, match=r"cannot open .* for writing"):
            SqliteEngine(place)


def test_a_file_that_is_no_database(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / FILE).write_bytes(os.urandom(8192))
    for read_only in (False, True):
        with pytest.raises(Corrupt, match=r"damaged: .*restore a backup"):
            SqliteEngine(directory, read_only=read_only)
    assert (directory / FILE).stat().st_size == 8192


def test_a_full_disk_is_recognized_and_survived(directory: Path) -> None:
    engine = SqliteEngine(directory)
    ((pages,),) = engine.writer.execute("PRAGMA page_count").fetchall()
    engine.writer.execute(f"PRAGMA max_page_count = {pages + 5}")
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow("test", b"x" * 1_000_000))
    with pytest.raises(Unavailable, match="disk is full") as full:
        tx.flush()
    assert full.value.code == "DISK_FULL"
    tx.rollback()
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow("test", b"small"))
    tx.flush()
    tx.commit()
    with engine.reader() as reader:
        assert reader.get(META, "test") == MetaRow("test", b"small")
    engine.close()


def test_closing_twice_does_no_harm(directory: Path) -> None:
    engine = SqliteEngine(directory)
    engine.close()
    engine.close()
    other = SqliteEngine(directory)
    engine.close()
    with pytest.raises(Unavailable):
        SqliteEngine(directory)
    other.close()


def test_a_row_larger_than_sqlite_takes_is_no_damage(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path)
    engine.writer.limit(apsw.SQLITE_LIMIT_LENGTH, 1000)
    tx = engine.begin(NOW_MS)
    tx.put(META, MetaRow("large", b"x" * 2000))
    with pytest.raises(Unavailable, match="row of meta cannot be stored") as failed:
        tx.flush()
    assert failed.value.code == "UNSTORABLE"
    tx.rollback()
    engine.close()

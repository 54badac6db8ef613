"""From every earlier version to the current one, with rows in it; and again after a crash in the middle.

For each version that was ever released there is a file of rows, ``rows_<version>.sql``, as that version wrote them. A
new migration comes with the next one (rows.py): the test that counts them fails until it is there.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tailrace import failpoints
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.storage.sqlite import FILE, SqliteEngine, migrations
from tailrace.streams.commands import Append, Create
from tailrace.streams.queries import ListStreams
from tests.migration import schema
from tests.migration.rows import HERE, STREAMS, rows_file

CURRENT = len(migrations())
VERSIONS = range(CURRENT + 1)


def make(directory: Path, version: int) -> None:
    """A database as version `version` left it."""
    directory.mkdir()
    connection = apsw.Connection(str(directory / FILE))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    for statements in migrations()[:version]:
        connection.execute(statements)
    if version:
        connection.execute(rows_file(version).read_text())
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def look(directory: Path) -> tuple[int, list[str]]:
    """The version and the statements of the database as it is on disk."""
    connection = apsw.Connection(str(directory / FILE))
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    found = schema.statements(connection)
    connection.close()
    assert isinstance(version, int)
    return version, found


def test_every_version_has_rows_to_migrate() -> None:
    expected = [rows_file(version).name for version in VERSIONS if version]
    assert sorted(path.name for path in HERE.glob("rows_*.sql")) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_migrating_from(version: int, data_dir: Path) -> None:
    make(data_dir, version)
    db = Database(SqliteEngine(data_dir), housekeeping_s=None)
    paths = [stream.path for stream in db.execute(ListStreams())]
    assert paths == (STREAMS if version else [])
    db.execute(Create("after", "text/plain"))
    assert db.execute(Append("after", b"x", "text/plain")).tail == 1
    db.close()
    assert look(data_dir) == (CURRENT, schema.statements(schema.migrated()))
    assert check_database(data_dir).findings == []


@pytest.mark.parametrize("version", range(CURRENT))
def test_a_crash_in_a_migration_leaves_the_old_version(version: int, data_dir: Path) -> None:
    make(data_dir, version)
    before = look(data_dir)
    for _ in range(2):
        failpoints.arm("migration.step")
        with pytest.raises(failpoints.Failure) as failed:
            SqliteEngine(data_dir)
        assert look(data_dir) == before
        del failed
    SqliteEngine(data_dir).close()
    assert look(data_dir) == (CURRENT, schema.statements(schema.migrated()))


def test_a_crash_in_a_later_migration_keeps_the_earlier_ones(tmp_path: Path) -> None:
    for step in range(1, CURRENT + 1):
        directory = tmp_path / str(step)
        make(directory, 0)
        failpoints.arm("migration.step", at=step)
        with pytest.raises(failpoints.Failure):
            SqliteEngine(directory)
        assert look(directory) == (step - 1, schema.statements(schema.migrated(step - 1)))


def test_a_failed_opening_leaves_the_directory_free(data_dir: Path) -> None:
    """Also while somebody still holds the error: its traceback knows the half-open engine."""
    failpoints.arm("migration.step")
    with pytest.raises(failpoints.Failure) as failed:
        SqliteEngine(data_dir)
    SqliteEngine(data_dir).close()
    assert failed.value.code == "FAILPOINT"


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    failpoints.disarm()

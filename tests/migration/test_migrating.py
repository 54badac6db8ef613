"""From every earlier version to the current one, with rows in it; and again after a crash in the middle.

For each version that was ever released there is a file of rows, ``rows_<version>.sql``, as that version wrote them. A
new migration comes with the next one (rows.py): the test that counts them fails until it is there.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pytest

from tailrace import failpoints
from tailrace.auth.keys import ListAccessKeys
from tailrace.auth.users import ListUsers
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.jobs.commands import CommitStages
from tailrace.jobs.queries import GetJob, ListCold
from tailrace.jobs.stage import Target
from tailrace.storage.modes import write_private
from tailrace.storage.sqlite import ENCRYPTED_SINCE, FILE, SqliteEngine, migrations
from tailrace.storage.vault import FILE as KEY_FILE
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import ListStreams
from tailrace.tables import change_info, change_reading, queries, value
from tailrace.tables import cursors as named
from tailrace.tables import schema as table_schema
from tailrace.tables.commands import DeleteItem
from tailrace.tables.definition import Attribute
from tailrace.tables.lifecycle import CreateTable, DescribeTable, ListTables
from tailrace.topics.commands import AddSource, CreateTopic, Outgoing, Publish
from tailrace.topics.consuming import Consume
from tailrace.topics.queries import ListGroups, ListPartitions, ListRoutes, ListTopics
from tests.migration import schema
from tests.migration.rows import HERE, KEY, STREAMS, TABLES, index, put, rows_file

CURRENT = len(migrations())
VERSIONS = range(CURRENT + 1)
TABLES_SINCE = 2
TOPICS_SINCE = 3
JOBS_SINCE = 4


def make(directory: Path, version: int) -> None:
    """A database as version `version` left it."""
    directory.mkdir()
    if version >= ENCRYPTED_SINCE:
        write_private(directory / KEY_FILE, KEY)
    connection = apsw.Connection(str(directory / FILE))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    for statements in migrations()[:version]:
        connection.execute(statements)
    if version:
        connection.execute(rows_file(version).read_text())
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def look(directory: Path) -> tuple[int, list[str]]:
    """The version and the statements of the database as it is on disk, in any order: a copy that gets checksums has
    indexes behind tables."""
    connection = apsw.Connection(str(directory / FILE))
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    found = sorted(schema.statements(connection))
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
    db.execute(CreateStream("after", "text/plain"))
    assert db.execute(Append("after", b"x", "text/plain")).tail == 1
    if version >= TABLES_SINCE:
        assert_tables(db)
    if version >= TOPICS_SINCE:
        assert_topics(db)
    if version >= JOBS_SINCE:
        assert_jobs(db)
    assert_takes_tables(db)
    assert_takes_topics(db)
    db.sweep()
    db.close()
    assert look(data_dir) == (CURRENT, sorted(schema.statements(schema.migrated())))
    # The rows say that a stream is tiered; the files of its history are no part of a migration.
    cold, found = [], check_database(data_dir).findings
    if version >= JOBS_SINCE:
        *found, last = found
        cold.append(last)
    assert found == []
    assert ["cold/streams is missing" in each for each in cold] == [True] * len(cold)


def items(db: Database, table: str, name: str | None = None) -> list[dict[str, Any]]:
    pager: queries.Pager[queries.ScanItems] = queries.Pager(queries.ScanItems(table=table, index=name))
    while (step := pager.next()) is not None:
        pager.add(db.execute(step))
    return [value.item_to_plain(item) for item in pager.page().items or ()]


def assert_tables(db: Database) -> None:
    """What rows.py wrote is read as it was written, and goes on."""
    assert db.execute(ListTables()).names == TABLES
    orders = {item["id"]: item for item in items(db, "orders")}
    assert sorted(orders) == ["o-1", "o-2", "o-4"]
    assert orders["o-2"] == {
        "id": "o-2", "status": "open", "total": Decimal("0.5"), "tags": {"a", "b"},
        "nested": {"list": [None, True, b"x"]},
    }  # fmt: skip
    assert {item["id"] for item in items(db, "orders", "by-status")} == {"o-1", "o-2", "o-4"}
    assert [item["code"] for item in items(db, "lines", "by-code")] == [b"\0\xff"]
    records = db.execute(change_reading.ReadChanges("orders")).records
    assert [record.event for record in records] == ["INSERT", "INSERT", "MODIFY", "INSERT", "REMOVE", "INSERT"]
    assert len(db.execute(change_info.ListTableStreams("lines"))) == 2
    assert [cursor.name for cursor in db.execute(named.ListCursors("orders"))] == ["mailer"]
    written = db.execute(put("orders", id="o-5", until=4_000_000_000))
    assert written.sequence is not None
    assert written.sequence > records[-1].sequence, "the counter goes on"
    db.sweep()
    assert db.execute(DescribeTable("orders")).status == "ACTIVE"
    assert {item["id"] for item in items(db, "orders", "by-until")} == {"o-1", "o-5"}


def assert_jobs(db: Database) -> None:
    """What jobs left is as it was, and goes on."""
    (place,) = db.execute(ListCold())
    assert [(each.tier.start, each.tier.tiered) for each in place.logs] == [(0, 5)] and place.place.generation == 1
    described = db.execute(GetJob("copy"))
    assert (described.job.kind, described.job.state, described.job.rows, list(described.positions.values())) == (
        "replicate", "running", 12, [3],
    )  # fmt: skip
    assert db.execute(CommitStages("first", 8, Target("streams", "source"), ())).applied


def assert_topics(db: Database) -> None:
    """Topics and users that rows.py made are as they were, and go on."""
    assert [topic.name for topic in db.execute(ListTopics())] == ["app.places", "dead"]
    (info,) = db.execute(ListGroups("app.p"))
    assert (info.group, info.cursor, info.floor, info.lag) == ("workers", 8, 0, 8)
    delivery = db.execute(Consume("app.p", "workers", consumer="cid"))
    assert [message.offset for message in delivery.messages] == [0, 1, 2, 3, 7, 8, 9, 10], "one of them was routed"
    assert db.execute(Publish("app.places", (Outgoing(b"x"),), ProducerClaim("publisher", 1, 0))).duplicate
    assert db.execute(
        Publish("app.places", (Outgoing(b"x", partition=0),), ProducerClaim("publisher", 1, 1))
    ).offsets == [(0, 11)]
    (route,) = db.execute(ListRoutes())
    assert (route.topic, route.table, route.route.filter) == ("app.places", "orders", "total > 1")
    before = sum(part.next for part in db.execute(ListPartitions("app.places")))
    db.execute(put("orders", id="o-9", status="new", total=2))
    assert sum(part.next for part in db.execute(ListPartitions("app.places"))) == before + 1
    db.execute(DeleteItem("orders", value.item_from_plain({"id": "o-9"})[0]))
    (user,) = db.execute(ListUsers())
    assert (user.name, user.role, user.access) == ("ann", "service", ("topics/app.*",))


def assert_takes_topics(db: Database) -> None:
    """However old the database is, topics can be made and fed; access keys that were there may do what they could."""
    db.execute(CreateTopic("new-topic"))
    db.execute(AddSource("new-topic", "new-table", 0))
    db.execute(put("new-table", id="routed", n=2))
    assert len(db.execute(Consume("new-topic", "g")).messages) == 1
    assert {key.role for key in db.execute(ListAccessKeys())} <= {"dba"}


def assert_takes_tables(db: Database) -> None:
    """However old the database is, tables can be made and used."""
    spec = table_schema.TableSpec(
        name="new-table",
        attributes=(Attribute("id", "S"), Attribute("n", "N")),
        keys=(table_schema.KeyElement("id", "HASH"),),
        globals=(index("by-n", "n"),),
        billing=table_schema.PAY_PER_REQUEST,
        stream=table_schema.StreamSpec(True, "KEYS_ONLY"),
    )
    db.execute(CreateTable(spec))
    db.execute(put("new-table", id="x", n=1))
    assert items(db, "new-table", "by-n") == [{"id": "x", "n": 1}]
    assert len(db.execute(change_reading.ReadChanges("new-table")).records) == 1


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
    assert look(data_dir) == (CURRENT, sorted(schema.statements(schema.migrated())))


def test_a_crash_in_a_later_migration_keeps_the_earlier_ones(tmp_path: Path) -> None:
    for step in range(1, CURRENT + 1):
        directory = tmp_path / str(step)
        make(directory, 0)
        failpoints.arm("migration.step", at=step)
        with pytest.raises(failpoints.Failure):
            SqliteEngine(directory)
        assert look(directory) == (step - 1, sorted(schema.statements(schema.migrated(step - 1))))


def test_a_failed_opening_leaves_the_directory_free(data_dir: Path) -> None:
    """Also while a caller still holds the error: its traceback knows the half-open engine."""
    failpoints.arm("migration.step")
    with pytest.raises(failpoints.Failure) as failed:
        SqliteEngine(data_dir)
    SqliteEngine(data_dir).close()
    assert failed.value.code == "FAILPOINT"


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    failpoints.disarm()

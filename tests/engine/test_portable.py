"""A backup of either engine can be restored into the other: every row is there, and nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.backup import back_up, open_source, restore
from tailrace.check import check_database
from tailrace.cold.store import Store
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.secret_key import rotate_secret_key
from tailrace.storage.postgres import PostgresEngine
from tailrace.storage.sqlite import SqliteEngine
from tests.migration.test_schema import declared
from tests.support import postgres


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_SECRET_KEY", postgres.KEY)


def fill(db: Database) -> None:
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    for number in range(50):
        orders.put({"id": f"ö-{number}", "n": number, "body": "x" * number})
    db.sql("CREATE TOPIC app.news; ALTER TOPIC app.news ADD SOURCE orders ON INSERT WITH (payload = 'full')")
    orders.put({"id": "last", "bytes": b"\0\xff"})
    stream = db.create_stream("greetings")
    for number in range(2_500):
        stream.append({"n": number})
    db.sql("CREATE USER ann WITH PASSWORD 'a long password'")


def rows(engine: Any) -> dict[str, list[Any]]:
    with closing(engine), engine.reader() as reader:
        return {name: list(reader.scan(table)) for name, table in declared().items() if name != "staged_entries"}


def test_a_database_moves_to_postgresql_and_back(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "a") as db:
        fill(db)
    with closing(open_source(tmp_path / "a")) as engine:  # no housekeeping writes between the backup and the comparison
        back_up(engine, tmp_path / "a.tar", cold=Store(tmp_path / "a" / "cold"))
    original = rows(SqliteEngine(tmp_path / "a", read_only=True))
    assert len(original["items"]) > 50

    url = postgres.empty_database()
    restore(tmp_path / "a.tar", tmp_path / "b", database=url)
    assert not list((tmp_path / "b").glob("tailrace.db*"))
    assert rows(PostgresEngine(url, tmp_path / "b", read_only=True)) == original
    report = check_database(tmp_path / "b", database=url)
    assert report.findings == []

    with closing(open_source(tmp_path / "b", url)) as engine:
        back_up(engine, tmp_path / "backups", cold=Store(tmp_path / "b" / "cold"))
    restore(tmp_path / "backups", tmp_path / "c")
    assert rows(SqliteEngine(tmp_path / "c", read_only=True)) == original
    with tailrace.open(tmp_path / "c") as db:
        assert db.table("orders").get("last") == {"id": "last", "bytes": b"\0\xff"}


def test_only_an_empty_database_is_filled(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "a") as db:
        db.create_stream("greetings").append({"n": 1})
        db.backup(tmp_path / "a.tar")
    url = postgres.empty_database()
    restore(tmp_path / "a.tar", tmp_path / "b", database=url)
    before = rows(PostgresEngine(url, tmp_path / "b", read_only=True))
    with pytest.raises(Invalid, match="not empty"):
        restore(tmp_path / "a.tar", tmp_path / "c", database=url)
    assert not (tmp_path / "c").exists()
    assert rows(PostgresEngine(url, tmp_path / "b", read_only=True)) == before


def test_a_text_that_postgresql_does_not_store_is_named(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "a") as db:
        engine: Any = db._engine
        engine.writer.execute("INSERT INTO retained VALUES ('a' || char(0))")
        db.backup(tmp_path / "a.tar")
    with pytest.raises(Invalid, match=r"retained.*U\+0000"):
        restore(tmp_path / "a.tar", tmp_path / "b", database=postgres.empty_database())
    assert not (tmp_path / "b").exists()


def test_the_key_of_the_secrets_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_SECRET_KEY")
    shared = postgres.shared_server()
    url = shared.create()
    PostgresEngine(url, tmp_path / "data").close()
    before = (tmp_path / "data" / "secret.key").read_text()
    assert rotate_secret_key(tmp_path / "data", url) == str(tmp_path / "data" / "secret.key")
    assert (tmp_path / "data" / "secret.key").read_text() != before
    PostgresEngine(url, tmp_path / "data").close()
    (tmp_path / "data" / "secret.key").write_text(before)
    with pytest.raises(Invalid) as refused:
        PostgresEngine(url, tmp_path / "data")
    assert refused.value.code == "SECRET_KEY_WRONG"
    shared.drop(url)


def test_a_backup_with_another_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tailrace.open(tmp_path / "a") as db:
        db.backup(tmp_path / "a.tar")
    shared = postgres.shared_server()
    other = shared.create()
    monkeypatch.setenv("TAILRACE_SECRET_KEY", "11" * 32)
    with pytest.raises(Invalid) as refused:
        restore(tmp_path / "a.tar", tmp_path / "b", database=other)
    assert refused.value.code == "SECRET_KEY_WRONG"
    shared.drop(other)

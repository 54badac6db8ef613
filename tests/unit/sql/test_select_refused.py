"""SELECT reads what it may and nothing else: no files, no settings, nothing that the one who asks may not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Database
from tailrace.access import ROLES, Access, Principal
from tailrace.errors import Error, Forbidden, Invalid
from tailrace.sql import select as selecting
from tailrace.sql import workers
from tailrace.sql.error import SqlError
from tailrace.sql.select import select
from tailrace.topics.commands import CreateTopic


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id", stream="NEW_IMAGE").put({"id": "o-1"})
        db.create_table("secrets", partition_key="id", stream="NEW_IMAGE").put({"id": "s-1"})
        db.execute(CreateTopic("app.news"))
        yield db


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')", "read_text('{file}')", "read_blob('{file}')", "read_json('{file}')", "'{file}'",
        '"{file}"',
        "glob('{file}')", "read_parquet(['{file}'])", "duckdb_settings()", "duckdb_tables()", "duckdb_secrets()",
        "pragma_version()", "query('SELECT 1')", "query_table('orders')", "information_schema.schemata",
        "pg_catalog.pg_class", "sqlite_master", "system.main.duckdb_tables", "temp.orders", "memory.main.orders",
        "changes()", "changes(1)", "changes('orders', 2)", "topic(NULL)", "db.changes('orders')", "range(5)",
        "generate_series(1, 5)", "repeat_row(1, num_rows = 5)", "json_execute_serialized_sql('x')", "(DESCRIBE orders)",
        "(SHOW TABLES)", "(SUMMARIZE orders)", "orders, duckdb_settings() s",
        "orders JOIN read_csv('{file}') c ON TRUE",
        "(SELECT * FROM read_csv('{file}'))", "orders WHERE EXISTS (FROM read_text('{file}'))",
        "orders, LATERAL (FROM read_text('{file}'))", "orders UNION ALL FROM '{file}'",
    ],
)  # fmt: skip
def test_nothing_but_our_own_sources_is_read(db: Database, tmp_path: Path, source: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("password\nhush\n")
    with pytest.raises(Error) as caught:
        select(lambda request: db.execute(request), f"SELECT * FROM {source.format(file=file)}")
    assert caught.value.status in (400, 404)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO orders VALUES (1)", "DELETE FROM orders", "UPDATE orders SET a = 1", "CREATE TABLE t (a INT)",
        "COPY orders TO 'x'", "ATTACH 'x.db'", "INSTALL httpfs", "LOAD httpfs", "SET threads = 9", "PRAGMA version",
        "CALL pragma_version()", "EXPLAIN SELECT 1", "EXPORT DATABASE 'x'", "USE memory", "SHOW TABLES",
        "DESCRIBE orders",
        "PIVOT orders ON id", "BEGIN", "CHECKPOINT", "VACUUM", "TABLE orders", "", ";", "-- nothing",
        "SELECT 1; DROP TABLE x",
        "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x", "SELECT * INTO t FROM orders",
        "WITH x AS (INSERT INTO orders VALUES (1) RETURNING *) SELECT * FROM x",
    ],
)  # fmt: skip
def test_only_queries_are_run(db: Database, text: str) -> None:
    with pytest.raises(SqlError) as caught:
        select(lambda request: db.execute(request), text)
    assert caught.value.line == 1
    assert db.table("orders").get("o-1") == {"id": "o-1"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("enable_external_access", "false"), ("lock_configuration", "true"), ("autoload_known_extensions", "false"),
        ("autoinstall_known_extensions", "false"), ("python_enable_replacements", "false"), ("temp_directory", ""),
        ("TimeZone", "UTC"), ("threads", str(workers.THREADS)),
    ],
)  # fmt: skip
def test_duckdb_is_locked_down(setting: str, value: str) -> None:
    with workers.POOL.worker() as worker:
        _, batch = worker.run(f"SELECT current_setting('{setting}')::VARCHAR AS it", (), [], lambda: False)
    assert batch.to_pylist() == [{"it": value}]


def test_what_sqlglot_overlooks_duckdb_does_not(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a source hidden from the one parser, the other still finds it."""
    monkeypatch.setattr(selecting._SelectQuery, "_check_nodes", lambda self: None)
    monkeypatch.setattr(selecting, "_is_cte", lambda node: True)
    monkeypatch.setattr(selecting, "_recent", selecting._RecentStatements())
    for source in ("orders", "duckdb_settings()", "pg_catalog.pg_class"):
        with pytest.raises(Invalid, match="cannot be read"):
            select(lambda request: db.execute(request), f"SELECT * FROM {source}")


def test_a_variable_of_the_program_is_no_table(db: Database) -> None:
    orders_of_mine = {"a": [1]}  # noqa: F841
    with pytest.raises(Error):
        select(lambda request: db.execute(request), "SELECT * FROM orders_of_mine")


# -- permissions


def select_as(db: Database, role: str, *patterns: str) -> Any:
    principal = Principal("ann", ROLES[role], role, Access(patterns) if patterns else None)
    return lambda text: select(lambda request: db.execute(request, principal), text)


def test_whoever_may_not_read_it_may_not_select_it(db: Database) -> None:
    ask = select_as(db, "user", "tables/orders")
    assert ask("SELECT id FROM orders").rows == [{"id": "o-1"}]
    assert ask("SELECT event FROM changes('orders')").rows == [{"event": "INSERT"}]
    for source in ("secrets", "changes('secrets')", "system.tables", "system.streams", "topic('app.news')"):
        with pytest.raises(Forbidden):
            ask(f"SELECT * FROM {source}")
        with pytest.raises(Forbidden):
            ask(f"SELECT o.id FROM orders o WHERE EXISTS (SELECT 1 FROM {source})")


def test_messages_need_the_permission_to_consume_and_users_that_of_an_administrator(db: Database) -> None:
    assert select_as(db, "service")("SELECT * FROM topic('app.news')").rows == []
    assert select_as(db, "dba")("SELECT * FROM system.users").rows == []
    assert select_as(db, "user")("SELECT name FROM system.topics").rows == [{"name": "app.news"}]
    with pytest.raises(Forbidden):
        select_as(db, "service")("SELECT * FROM system.users")

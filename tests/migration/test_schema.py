"""Schema == migrations applied == what the code declares."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import apsw
import pytest

import tailrace
from tailrace.storage.sqlite import migrations
from tailrace.storage.table import StorageTable
from tests.migration import schema

AGAIN = "the migrations and schema.sql differ; run `python -m tests.migration.schema` and look at the difference"


def declared() -> dict[str, StorageTable[Any]]:
    """Every Table in the package, found by importing all of it."""
    found: dict[str, StorageTable[Any]] = {}
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, StorageTable):
                assert found.setdefault(value.name, value) is value, f"table {value.name} is declared twice"
    return found


TABLES = declared()


def test_the_schema_file_is_the_migrations_applied() -> None:
    assert schema.FILE.read_text() == schema.text(), AGAIN


def test_running_the_schema_file_makes_the_same_database() -> None:
    made = apsw.Connection(":memory:")
    made.execute(schema.FILE.read_text())
    assert schema.statements(made) == schema.statements(schema.migrated()), AGAIN


def test_migrations_are_numbered_without_a_gap_and_never_renamed() -> None:
    assert len(migrations()) >= 1
    assert all(text.strip() for text in migrations())


def test_the_package_declares_tables() -> None:
    assert {"meta", "logs", "entries", "garbage", "streams", "producers", "deadlines", "retained"} <= TABLES.keys()


def test_every_table_of_the_database_is_declared() -> None:
    rows = schema.migrated().execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    assert {name for (name,) in rows} == TABLES.keys()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_declared_table_is_what_the_database_has(name: str) -> None:
    table, database = TABLES[name], schema.migrated()
    found = database.execute(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) ORDER BY cid', (name,)
    ).fetchall()
    # Columns that later migrations added come last in the database, and the key first in both.
    assert sorted((column.name, column.kind, not column.nullable) for column in table.stored) == sorted(
        (column, kind, bool(not_null)) for column, kind, not_null, _ in found
    )
    if table.heap:
        assert [column for column, _, _, pk in found if pk] == [], "a heap has no primary key but a unique index"
        indexes = database.execute('SELECT name FROM pragma_index_list(?) WHERE "unique"', (name,)).fetchall()
        keys = [
            tuple(row[0] for row in database.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", index))
            for index in indexes
        ]
        assert table.key in keys
    else:
        primary = sorted((pk, column) for column, _, _, pk in found if pk)
        assert tuple(column for _, column in primary) == table.key


@pytest.mark.parametrize("name", sorted(TABLES))
def test_tables_are_strict(name: str) -> None:
    """STRICT refuses a value of the wrong type instead of keeping it."""
    ((strict,),) = schema.migrated().execute("SELECT strict FROM pragma_table_list WHERE name = ?", (name,)).fetchall()
    assert strict == 1

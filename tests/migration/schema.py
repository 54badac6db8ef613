"""Writes src/tailrace/storage/schema.sql from the migrations: ``python -m tests.migration.schema``."""

from __future__ import annotations

from pathlib import Path

import apsw

from tailrace.storage.sqlite import migrations

FILE = Path(__file__).resolve().parents[2] / "src" / "tailrace" / "storage" / "schema.sql"
HEADER = """\
-- The current schema: what the numbered migrations lead to, for people to read. Nothing runs this file; a test keeps it
-- equal to the migrations applied. After adding a migration: python -m tests.migration.schema
"""


def migrated(version: int | None = None) -> apsw.Connection:
    """A database in memory after the first `version` migrations (None: all)."""
    connection = apsw.Connection(":memory:")
    for statements in migrations()[:version]:
        connection.execute(statements)
    return connection


def statements(connection: apsw.Connection) -> list[str]:
    """What made a database, in the order in which it was made."""
    return [row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")]


def text() -> str:
    return HEADER + "".join(f"\n{statement};\n" for statement in statements(migrated()))


if __name__ == "__main__":
    FILE.write_text(text())

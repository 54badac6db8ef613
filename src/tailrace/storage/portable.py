"""Moves all rows between a file of SQLite and PostgreSQL: what a backup of either can be restored into the other with.

A file of SQLite is the portable form: its pages have checksums, and everything that reads backups can read it. Rows are
copied as they are stored, table by table, from one view of the source and into one transaction; checksums of rows are
copied, not computed, so that damage cannot be hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import apsw

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.storage import postgres_arrays as arrays
from tailrace.storage import postgres_schema, vault
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import StorageColumn
from tailrace.storage.translation import translated as translated_sqlite

_ROWS: Final = 1_000  # at once
_KEY: Final = "00" * vault.KEY_BYTES  # of a database that gets the rows of another one, with what they are encrypted by
Progress = Callable[[int, int], None]
Row = tuple[Any, ...]


class StoredTable:
    """A table as it is in a file of SQLite."""

    def __init__(self, execute: Callable[..., Any], name: str) -> None:
        self.name = name
        found = list(execute(f"PRAGMA table_info({name})"))
        self.columns = [StorageColumn(column, kind, not required) for _, column, kind, required, *_ in found]
        self.names = ", ".join(column.name for column in self.columns)
        keys = [column for _, column, _, _, _, key in sorted(found, key=lambda row: row[5]) if key]
        self.order = ", ".join(keys) or "log, position"  # of a heap


def stored_tables(connection: apsw.Connection) -> list[StoredTable]:
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    return [StoredTable(connection.execute, str(name)) for (name,) in sorted(names)]


def to_file(source: Any, path: Path, on_progress: Progress | None) -> None:
    """Copy all rows that a connection to PostgreSQL sees at this moment into a new database of SQLite."""
    # The key is that of the rows, which are copied as they are.
    with closing(SqliteEngine(path.parent, environment={vault.ENVIRONMENT: _KEY})) as engine, translated_sqlite():
        tables = stored_tables(engine.writer)
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            version = postgres_schema.version(source)
            if version != engine.version():
                raise Invalid(f"the database has schema version {version}, and its copy {engine.version()}")
            engine.writer.execute("BEGIN IMMEDIATE")
            for done, table in enumerate(tables):
                engine.writer.execute(f"DELETE FROM {table.name}")
                marks = ", ".join("?" * len(table.columns))
                insert = f"INSERT INTO {table.name} ({table.names}) VALUES ({marks})"
                cursor = source.cursor(binary=True)
                rows = cursor.stream(f"SELECT {table.names} FROM {table.name} ORDER BY {table.order}")
                engine.writer.executemany(insert, rows)
                if on_progress is not None:
                    on_progress(done + 1, len(tables))
            engine.writer.execute("COMMIT")
    with suppress(FileNotFoundError):
        (path.parent / "LOCK").unlink()


def from_file(path: Path, writer: Any, epoch: int, key: vault.Vault) -> None:
    """Copy all rows of a database of SQLite into one in PostgreSQL, which has none, as the leader of `epoch`. `key`
    must be that of its secrets."""
    with closing(SqliteEngine(path.parent, read_only=True)) as engine, writer.transaction(), translated_sqlite():
        execute = engine.writer.execute
        tables = stored_tables(engine.writer)
        if writer.execute("SELECT 1 FROM leader WHERE epoch = %s FOR UPDATE", (epoch,)).fetchone() is None:
            raise Invalid("another server leads the database; stop it")
        found: Any = execute("SELECT value FROM meta WHERE name = ?", (vault.CHECK,)).fetchall()
        ((check,),) = found
        if not key.fits(check):
            raise Invalid(
                f"the secrets of the backup have another key; set {vault.ENVIRONMENT} to that of the original",
                code="SECRET_KEY_WRONG",
            )
        execute("BEGIN")
        for table in tables:
            only = f"WHERE name <> '{vault.CHECK}'" if table.name == "meta" else ""
            if writer.execute(f"SELECT 1 FROM {table.name} {only} LIMIT 1").fetchone() is not None:
                raise Invalid("the database in PostgreSQL is not empty; name an empty one")
            if only:
                writer.execute("DELETE FROM meta")
            types = ", ".join(f"%b::{arrays.TYPES[column.kind]}[]" for column in table.columns)
            insert = f"INSERT INTO {table.name} ({table.names}) SELECT * FROM unnest({types})"
            rows = execute(f"SELECT {table.names} FROM {table.name} ORDER BY {table.order}")
            for some in _parts(rows):
                writer.execute(insert, _packed(table, some))
        execute("ROLLBACK")


def _parts(rows: Any) -> Iterator[list[Row]]:
    """Rows, not too many nor too large ones at once."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if len(part) >= _ROWS or size >= limits.SCAN_PAGE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _packed(table: StoredTable, rows: list[Row]) -> list[bytes]:
    packed = []
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
        try:
            packed.append(arrays.pack(column.kind, values))
        except ValueError as error:
            raise Invalid(
                f"a row of {table.name} cannot be moved to PostgreSQL: {column.name}: {error}; rename or delete it in "
                "the original first"
            ) from error
    return packed

"""One contract, every engine. Another engine joins by one entry in ENGINES.

An entry opens an engine over a directory of the test's own (an engine that keeps its rows elsewhere derives a name from
it) and can make the tables that only these tests have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tailrace.storage.engine import Engine
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import StorageTable
from tests.engine.tables import TABLES
from tests.support import postgres

NOW_MS = 1_700_000_000_000


class Kind(NamedTuple):
    open: Callable[[Path], Engine]
    create: Callable[[Any, StorageTable[Any]], None]


def _create_in_sqlite(engine: SqliteEngine, table: StorageTable[Any]) -> None:
    columns = [f"{column.name} {column.kind}{'' if column.nullable else ' NOT NULL'}" for column in table.stored]
    key = ", ".join(table.key)
    if table.heap:
        engine.writer.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(columns)}) STRICT")
        engine.writer.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {table.name}_key ON {table.name} ({key})")
    else:
        columns.append(f"PRIMARY KEY ({key})")
        engine.writer.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({', '.join(columns)}) STRICT, WITHOUT ROWID")


_TYPES = {"INTEGER": "bigint", "TEXT": 'text COLLATE "C"', "BLOB": "bytea"}
_databases: dict[Path, str] = {}
_opened: list[Any] = []


def _open_in_postgres(directory: Path) -> Engine:
    """The database of a directory: there is one, which is emptied when another directory is used."""
    from tailrace.storage.postgres import PostgresEngine

    while _opened:  # an example that was given up has not closed its own
        _opened.pop().close()
    if directory not in _databases:
        _databases.clear()
        _databases[directory] = postgres.empty_database()
    _opened.append(PostgresEngine(_databases[directory], environment={"TAILRACE_SECRET_KEY": postgres.KEY}))
    found: Engine = _opened[0]
    return found


def _create_in_postgres(engine: Any, table: StorageTable[Any]) -> None:
    columns = [
        f"{column.name} {_TYPES[column.kind]}{'' if column.nullable else ' NOT NULL'}" for column in table.stored
    ]
    columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
    if engine.writer.execute("SELECT to_regclass(%s)", (table.name,)).fetchone()[0] is None:
        engine.writer.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")


ENGINES = {"sqlite": Kind(SqliteEngine, _create_in_sqlite), "postgres": Kind(_open_in_postgres, _create_in_postgres)}


class Place:
    """Where the rows of one test are kept; an engine over it can be opened, closed and opened again."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self._kind = kind
        self._directory = directory
        self._engine: Any = None

    def another(self) -> Place:
        """A new one within it."""
        return Place(self._kind, Path(tempfile.mkdtemp(dir=self._directory.parent)))

    def open(self) -> Any:
        self.close()
        self._engine = self._kind.open(self._directory)
        for table in TABLES:
            self._kind.create(self._engine, table)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@pytest.fixture(params=sorted(ENGINES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "postgres":
        postgres.shared_server()  # or the test is skipped
    place = Place(ENGINES[request.param], tmp_path / "engine")
    yield place
    place.close()


@pytest.fixture
def engine(place: Place) -> Engine:
    """An open engine with nothing in the tests' tables."""
    opened: Engine = place.open()
    return opened

"""One contract, every engine. A second engine joins by one entry in ENGINES.

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


ENGINES = {"sqlite": Kind(SqliteEngine, _create_in_sqlite)}


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
    place = Place(ENGINES[request.param], tmp_path / "engine")
    yield place
    place.close()


@pytest.fixture
def engine(place: Place) -> Engine:
    """An open engine with nothing in the tests' tables."""
    opened: Engine = place.open()
    return opened

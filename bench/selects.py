"""SELECT over one table, beside DuckDB over the same rows in a SQLite file and in Parquet, and beside SQLite itself.

All are asked from this process. Tailrace has the rows as items, and DuckDB in a worker process; the others have typed
columns. DuckDB reads a SQLite file by an extension that it downloads; where it cannot, that one is left out.
"""

from __future__ import annotations

import sqlite3
import time
from decimal import Decimal
from typing import Any, ClassVar, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as parquet

import tailrace
from bench.rows import Line, Row, Sample, Settings, milliseconds
from bench.servers import Contender, Missing
from tailrace.embedded import Index, Put

OTHERS: Final = ("duckdb+sqlite", "duckdb+parquet", "sqlite3")
KINDS: Final = 500
BATCH: Final = 1_000


def values(number: int) -> tuple[str, str, int, float, str]:
    return f"e{number:06d}", f"k{number % KINDS}", number * 7 % 1_000, number % 10_000 / 100, f"note number {number}"


class Selected(Contender):
    """Something that has the table `events` and answers queries."""

    rows: int = 0

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError


class TailraceSelect(Selected):
    def start(self) -> None:
        self._db = tailrace.open(self.data)
        self._db.create_table("events", "id", stream="KEYS_ONLY", indexes=[Index("by_kind", "kind")])
        for first in range(0, self.rows, BATCH):
            self._db.batch_write([
                Put("events", {"id": id_, "kind": kind, "amount": amount, "price": Decimal(str(price)), "note": note})
                for id_, kind, amount, price, note in map(values, range(first, first + BATCH))
            ])  # fmt: skip

    def stop(self) -> None:
        self._db.close()

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._db.sql(text).rows]


class SqliteSelect(Selected):
    def start(self) -> None:
        self.data.mkdir(parents=True)
        self._connection = sqlite3.connect(self.data / "rows.db")
        self._connection.execute(
            "CREATE TABLE events (id TEXT PRIMARY KEY, kind TEXT, amount INTEGER, price REAL, note TEXT)"
        )
        self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", map(values, range(self.rows)))
        self._connection.execute("CREATE INDEX by_kind ON events (kind)")
        self._connection.commit()

    def stop(self) -> None:
        self._connection.close()

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text).fetchall()


class SqliteFileSelect(SqliteSelect):
    """DuckDB over the SQLite file."""

    def start(self) -> None:
        super().start()
        self._duckdb = duckdb.connect()
        try:
            self._duckdb.execute("INSTALL sqlite; LOAD sqlite")
        except duckdb.Error as error:
            raise Missing(f"DuckDB's extension for SQLite cannot be installed: {str(error).splitlines()[0]}") from None
        self._duckdb.execute(f"ATTACH '{self.data / 'rows.db'}' AS held (TYPE sqlite); USE held")

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        return self._duckdb.execute(text).fetchall()


class ParquetSelect(Selected):
    def start(self) -> None:
        self.data.mkdir(parents=True)
        path = self.data / "events.parquet"
        columns = zip(*map(values, range(self.rows)), strict=True)
        names = ["id", "kind", "amount", "price", "note"]
        parquet.write_table(pa.table([pa.array(each) for each in columns], names=names), path)
        self._duckdb = duckdb.connect(config={"threads": 2})
        self._duckdb.execute(f"CREATE VIEW events AS FROM '{path}'")

    def stop(self) -> None:
        self._duckdb.close()

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        return self._duckdb.execute(text).fetchall()


CONTENDERS: Final[dict[str, type[Selected]]] = {
    "tailrace": TailraceSelect,
    "duckdb+sqlite": SqliteFileSelect,
    "duckdb+parquet": ParquetSelect,
    "sqlite3": SqliteSelect,
}


class SelectRow(Row[Selected]):
    """One query, again and again, over a table that does not change. The first time it is not in any cache."""

    group = "select"
    contenders = ("tailrace", *OTHERS)
    text: ClassVar[str] = ""
    found: ClassVar[int] = 1  # rows
    at_most: ClassVar[float | None] = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._first: dict[str, float] = {}

    def contender(self, name: str) -> Selected:
        made = CONTENDERS[name](name, self.settings.data / self.name / name)
        made.rows = 60_000 if self.settings.items > 1_000 else 6_000
        return made

    def lines(self) -> list[Line]:
        return [
            Line("p50", "median", "ms", higher=False, at_most=self.at_most),
            Line("p99", "99th percentile", "ms", higher=False, secondary=True),
            Line("first", "the first time", "ms", higher=False, secondary=True),
        ]

    def prepare(self, server: Selected) -> None:
        server.ask("SELECT 1")  # a worker process, if there is one, is there
        started = time.perf_counter()
        server.ask(self.text)
        self._first[server.name] = (time.perf_counter() - started) * 1000

    def measure(self, server: Selected) -> Sample:
        taken: list[float] = []
        sample = Sample()
        while sum(taken) < self.settings.short_s / 2 or len(taken) < 5:
            started = time.perf_counter()
            found = server.ask(self.text)
            taken.append(time.perf_counter() - started)
            if len(found) != self.found * server.rows // 60_000 and len(found) != self.found:
                sample.errors["wrong number of rows"] = sample.errors.get("wrong number of rows", 0) + 1
        sample.figures |= {**milliseconds(taken), "first": self._first[server.name], "others": 0.0}
        return sample


class SelectPoint(SelectRow):
    name = "select-point"
    title = "SELECT by key, 60,000 rows"
    text = "SELECT * FROM events WHERE id = 'e000777'"
    at_most = 3.0


class SelectByIndex(SelectRow):
    name = "select-index"
    title = "SELECT by an indexed column, 120 of 60,000 rows"
    text = "SELECT id, amount FROM events WHERE kind = 'k7'"
    found = 120
    at_most = 3.0


class SelectCount(SelectRow):
    name = "select-count"
    title = "SELECT count(*), 60,000 rows"
    text = "SELECT count(*) FROM events"


class SelectScan(SelectRow):
    name = "select-scan"
    title = "SELECT with GROUP BY over 60,000 rows"
    text = "SELECT kind, sum(amount), max(price) FROM events GROUP BY kind ORDER BY 2 DESC, 1 LIMIT 10"
    found = 10


ROWS: Final[list[type[Row[Any]]]] = [SelectPoint, SelectByIndex, SelectCount, SelectScan]

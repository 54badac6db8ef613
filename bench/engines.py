"""`python -m bench.engines`: appends without HTTP, in commits of some sizes, over SQLite and over PostgreSQL.

Beside them raw PostgreSQL: the same bytes inserted into one table, with as many rows in each commit, by a statement
that takes arrays. All three sync each commit. The runner commits what was queued while the last commit was under way;
here so many appends to as many streams are queued at once. CPU is that of this process: of the server without HTTP.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.load import Failed
from bench.queues import PostgresQueue
from tailrace.access import SYSTEM
from tailrace.database import Database, open_postgres
from tailrace.database import open as open_database
from tailrace.streams.commands import Append, CreateStream
from tailrace.tables.commands import PutItem
from tailrace.tables.value import item_from_plain

SIZES = (1, 8, 64, 512)
BODY = b"x" * 200
TABLE = "bench"
Condition = Callable[[], bool]
CREATE = "CREATE TABLE IF NOT EXISTS raw (stream bigint, position bigint, body bytea, PRIMARY KEY (stream, position))"
INSERT = "INSERT INTO raw SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[])"


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="For each figure.")
def main(seconds: float) -> None:
    """Measure appends per second and CPU per append."""
    console = Console()
    table = Table(
        "appends in a commit", "SQLite /s", "µs CPU", "PostgreSQL /s", "µs CPU", "raw PostgreSQL /s", "of raw"
    )
    with (
        tempfile.TemporaryDirectory(prefix="bench-engines-") as folder,
        postgres(Path(folder)) as url,
        open_database(Path(folder) / "sqlite") as sqlite,
        Database(open_postgres(url, f"{folder}/key")) as there,
    ):
        for db in (sqlite, there):
            prepare(db)
        for size in SIZES:
            rate, cpu = asyncio.run(appends(sqlite, size, seconds))
            rate_there, cpu_there = asyncio.run(appends(there, size, seconds))
            plain = raw(url, size, seconds)
            figures = (f"{rate:,.0f}", f"{cpu:.0f}", f"{rate_there:,.0f}", f"{cpu_there:.0f}", f"{plain:,.0f}")
            table.add_row(str(size), *figures, f"{rate_there / plain:.2f}")
    console.print(table)


def prepare(db: Database) -> None:
    """Make the streams, and the table."""
    for number in range(max(SIZES)):
        db.execute(CreateStream(f"s{number}", "text/plain"))
    db.create_table(TABLE, partition_key="id", stream="NEW_AND_OLD_IMAGES")


async def appends(db: Database, size: int, seconds: float) -> tuple[float, float]:
    """Appends per second, and microseconds of CPU for each."""
    return await _repeated(db, [Append(f"s{number}", BODY, "text/plain") for number in range(size)], seconds)


async def puts(db: Database, size: int, seconds: float) -> tuple[float, float]:
    """PutItem of rows that are there, and microseconds of CPU for each."""
    body = BODY.decode()
    items = [item_from_plain({"id": f"k{number}", "body": body}) for number in range(size)]
    return await _repeated(db, [PutItem(TABLE, item, size) for item, size in items], seconds)


async def _repeated(db: Database, commands: Sequence[Any], seconds: float) -> tuple[float, float]:
    """All of them at once, again and again."""
    size = len(commands)

    async def round_trip() -> None:
        await asyncio.gather(*[_awaited(db, command) for command in commands])

    await round_trip()
    done, began, began_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        await round_trip()
        done += size
    return done / (time.perf_counter() - began), (time.process_time() - began_cpu) / done * 1e6


async def _awaited(db: Database, command: Any) -> Any:
    return await db.aexecute(command, SYSTEM)


def raw(url: str, size: int, seconds: float) -> float:
    from tailrace.storage.postgres import connect
    from tailrace.storage.postgres_arrays import pack

    with connect(url, "bench") as connection:
        connection.execute(CREATE)
        ((position,),) = connection.execute("SELECT coalesce(max(position), 0) + 1 FROM raw").fetchall()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            streams, positions, bodies = range(size), [position] * size, [BODY] * size
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute(
                    INSERT, [pack("INTEGER", list(streams)), pack("INTEGER", positions), pack("BLOB", bodies)]
                )
                connection.execute("COMMIT")
            done += size
            position += 1
        return float(done / (time.perf_counter() - began))


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A server that syncs each commit."""
    folder.chmod(0o755)
    server = PostgresQueue("postgresql", folder / "postgres", os.sched_getaffinity(0))
    server.start()
    try:
        server.make()
        with server._open() as connection:
            connection.execute("CREATE DATABASE tailrace ENCODING 'UTF8' TEMPLATE template0")
        yield f"postgresql://bench@{server.address.host}:{server.address.port}/tailrace"
    except Failed as error:
        raise click.ClickException(str(error)) from error
    finally:
        server.stop()
        shutil.rmtree(folder / "postgres", ignore_errors=True)


if __name__ == "__main__":
    main()

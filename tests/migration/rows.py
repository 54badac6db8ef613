"""Writes the rows that the current version makes: ``python -m tests.migration.rows``.

Run once for each version, when it is released; from then on the file is what old databases hold, and stays.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import apsw

from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.storage.sqlite import FILE, SqliteEngine, migrations
from tailrace.streams.commands import Append, Create, Delete, Fork
from tailrace.streams.producer import Claim
from tailrace.subscriptions.commands import PutSubscription
from tailrace.subscriptions.subscription import Settings

HERE = Path(__file__).parent
STREAMS = ["closed", "fork", "json", "retained", "source", "ttl"]


def rows_file(version: int) -> Path:
    return HERE / f"rows_{version:04d}.sql"


def fill(directory: str) -> None:
    """One of everything: streams of each kind, a fork, a producer, a trimmed and a dropped log, a subscription."""
    clock = ManualClock()
    db = Database(SqliteEngine(directory), clock=clock, housekeeping_s=None)
    do = db.execute
    do(Create("source", "text/plain", b"first"))
    clock.advance(1)
    do(Append("source", b"second", "text/plain", Claim("writer", 0, 0), seq="a"))
    do(Append("source", b"third", "text/plain", Claim("writer", 0, 1), seq="b"))
    do(Create("fork", fork=Fork("source", 5)))
    do(Append("fork", b" branch", "text/plain"))
    do(Create("json", "application/json", '[{"n":1},"ä"]'.encode()))
    do(Append("json", b"[2,3]", "application/json"))
    do(Create("closed", "application/octet-stream", b"\0\xff", closed=True))
    do(Create("ttl", "text/plain", b"x", ttl_s=10**9))
    do(Create("retained", "text/plain", b"0123456789", max_age_s=10**9, max_bytes=4))
    do(Append("retained", b"abcd", "text/plain"))
    settings = Settings(kind="pull-wake", streams=("source", "ttl"), wake_stream="json")
    do(PutSubscription("workers", settings, "http://localhost:4437"))
    db.sweep()
    do(Create("gone", "text/plain", b"x"))
    do(Delete("gone"))
    db.close()


def text(directory: str, version: int) -> str:
    connection = apsw.Connection(f"{directory}/{FILE}")
    lines = [f"-- Rows as schema version {version} wrote them; see rows.py.", ""]
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")]
    for name in names:
        for row in connection.execute(f"SELECT * FROM {name}"):
            values = ", ".join(apsw.format_sql_value(value) for value in row)
            lines.append(f"INSERT INTO {name} VALUES ({values});")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        rows_file(len(migrations())).write_text(text(directory, len(migrations())))

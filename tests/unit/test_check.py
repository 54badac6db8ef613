"""The check finds what it is for: each invariant is broken once, by hand, and must be named."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Corrupt, Invalid
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.streams.commands import Append, Create, Delete, Fork
from tailrace.streams.producer import Claim


@pytest.fixture
def sound(data_dir: Path) -> Path:
    """A database with one of everything: logs 1 a, 2 json, 3 fork of a, 4 ttl, 5 retained, 6 dropped."""
    db = Database(SqliteEngine(data_dir), clock=ManualClock(), housekeeping_s=None)
    db.execute(Create("a", "text/plain", b"hello"))
    db.execute(Append("a", b"world", "text/plain", Claim("p", 0, 0)))
    db.execute(Create("json", "application/json", b'[{"n": 1}, 2]'))
    db.execute(Create("fork", fork=Fork("a", 5)))
    db.execute(Append("fork", b"!", "text/plain"))
    db.execute(Create("ttl", ttl_s=60))
    db.execute(Create("retained", "text/plain", b"xy", max_bytes=10))
    db.execute(Create("gone", "text/plain", b"x"))
    db.execute(Delete("gone"))
    db.close()
    return data_dir


def test_a_sound_database_is_clean(sound: Path) -> None:
    report = check_database(sound)
    assert report.findings == []
    assert (report.streams, report.logs, report.entries, report.bytes) == (5, 6, 6, 5 + 5 + 11 + 1 + 2 + 1)


def test_progress_is_told(sound: Path) -> None:
    told: list[tuple[str, int, int]] = []
    check_database(sound, on_progress=lambda *step: told.append(step))
    assert [done for _, done, _ in told] == list(range(1, 7))
    assert {total for _, _, total in told} == {6}


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM entries WHERE log = 1 AND position = 0", "log 1: first entry at 5, retained from 0"),
        ("DELETE FROM entries WHERE log = 1 AND position = 5", "log 1: entries end at 5, next is 10"),
        ("DELETE FROM entries WHERE log = 1", "log 1: no entries, but next is 10"),
        ("UPDATE entries SET position = 6 WHERE log = 1 AND position = 5", "log 1: entry at 6, expected one at 5"),
        ("UPDATE entries SET next = 0 WHERE log = 1 AND position = 0", r"log 1: entry covers \[0, 0\)"),
        ("UPDATE entries SET at_ms = 1 WHERE log = 1 AND position = 5", "is older than the one before"),
        ("UPDATE entries SET at_ms = at_ms + 9 WHERE log = 1", "log 1: its last entry is newer than it says"),
        ("UPDATE entries SET body = X'00' WHERE log = 1 AND position = 0", "log 1: entry at 0 covers 5 positions"),
        ("UPDATE entries SET body = X'7B7B7B7B7B7B7B7B7B7B' WHERE log = 2", "log 2: entry at 0 is not JSON"),
        ("INSERT INTO entries VALUES (3, 0, 5, 1, X'0000000000')", "over base 5"),
        ("UPDATE logs SET next = 11 WHERE id = 1", "log 1: entries end at 10, next is 11"),
        ("UPDATE logs SET start = 11 WHERE id = 1", "log 1"),
        ("UPDATE logs SET forks = 2 WHERE id = 1", "log 1: counts 2 forks, there are 1"),
        ("UPDATE logs SET depth = 5 WHERE id = 3", "log 3: depth 5 under a parent of depth 0"),
        ("UPDATE logs SET parent = 99 WHERE id = 3", "99"),
        ("UPDATE logs SET base = 50 WHERE id = 3", "log 3"),
        ("DELETE FROM logs WHERE id = 4", "stream 'ttl': its log 4 does not exist"),
        ("UPDATE streams SET log = 1 WHERE path = 'json'", "streams 'a' and 'json' share log 1"),
        ("UPDATE logs SET owner = 'stream/x' WHERE id = 1", "stream 'a': its log 1 belongs to 'stream/x'"),
        ("UPDATE streams SET deleted = 1 WHERE path = 'a'", "stream 'a': deleted is 1, its log's dropped is 0"),
        ("UPDATE streams SET deleted = 1 WHERE path = 'json'; UPDATE logs SET dropped = 1 WHERE id = 2",
         "stream 'json': deleted softly, but no fork needs it"),
        ("DELETE FROM streams WHERE path = 'a'", "log 1 of 'stream/a' has no stream"),
        ("DELETE FROM deadlines", "stream 'ttl' expires but has no deadline"),
        ("DELETE FROM retained", "stream 'retained' has retention but is not listed"),
        ("DELETE FROM garbage", "log 6 is dropped but not listed as garbage"),
        ("UPDATE meta SET value = X'33' WHERE name = 'counter/log'", "log 6 exists but the counter is at 3"),
        ("INSERT INTO producers VALUES (77, 'p', 0, 0)", "producers of log 77, which does not exist"),
    ],
)  # fmt: skip
def test_damage_is_named(sound: Path, damage: str, finding: str) -> None:
    connection = apsw.Connection(str(sound / FILE))
    connection.execute(damage)
    connection.close()
    report = check_database(sound)
    assert any(re.search(finding, found) for found in report.findings), report.findings


def test_a_broken_index_is_found(sound: Path) -> None:
    """What SQLite itself finds is part of the report."""
    connection = apsw.Connection(str(sound / FILE))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(sql, '(log, position)', '(log, next)') WHERE name = 'entries_key'"
    )
    connection.close()
    assert check_database(sound).findings != []


def test_a_file_that_is_no_database(sound: Path) -> None:
    file = sound / FILE
    content = bytearray(file.read_bytes())
    content[:100] = b"x" * 100
    file.write_bytes(content)
    with pytest.raises(Corrupt, match="damaged"):
        check_database(sound)


def test_there_must_be_a_database(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no database"):
        check_database(tmp_path)


def test_while_a_server_has_it_open(data_dir: Path) -> None:
    with Database(SqliteEngine(data_dir)) as db:
        db.execute(Create("a", "text/plain", b"x"))
        assert check_database(data_dir).findings == []
        db.execute(Append("a", b"y", "text/plain"))
        assert check_database(data_dir).entries == 2

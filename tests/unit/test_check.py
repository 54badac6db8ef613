"""The check finds what it is for: each invariant is broken once, by hand, and must be named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Corrupt, Invalid
from tailrace.storage.engine import Tx
from tailrace.storage.pages import VFS
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import key as keys
from tailrace.tables import value, write
from tailrace.tables.change import Capture
from tailrace.tables.cursors import SaveCursor
from tailrace.tables.definition import Attribute, find
from tailrace.tables.lifecycle import CreateTable, DeleteTable, SetTimeToLive, UpdateTable
from tailrace.tables.schema import IndexChange, IndexSpec, KeyElement, StreamSpec, TableChanges, TableSpec


@pytest.fixture
def sound(data_dir: Path) -> Path:
    """A database with one of everything: logs 1 a, 2 json, 3 fork of a, 4 ttl, 5 retained, 6 dropped."""
    db = Database(SqliteEngine(data_dir), clock=ManualClock(), housekeeping_s=None)
    db.execute(CreateStream("a", "text/plain", b"hello"))
    db.execute(Append("a", b"world", "text/plain", ProducerClaim("p", 0, 0)))
    db.execute(CreateStream("json", "application/json", b'[{"n": 1}, 2]'))
    db.execute(CreateStream("fork", fork=Fork("a", 5)))
    db.execute(Append("fork", b"!", "text/plain"))
    db.execute(CreateStream("ttl", ttl_s=60))
    db.execute(CreateStream("retained", "text/plain", b"xy", max_bytes=10))
    db.execute(CreateStream("gone", "text/plain", b"x"))
    db.execute(DeleteStream("gone"))
    db.close()
    return data_dir


def test_a_sound_database_is_clean(sound: Path) -> None:
    report = check_database(sound)
    assert report.findings == []
    assert (report.streams, report.logs, report.entries, report.bytes) == (5, 6, 6, 5 + 5 + 11 + 1 + 2 + 1)


def test_progress_is_reported(sound: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    check_database(sound, on_progress=lambda *step: reports.append(step))
    assert [done for _, done, _ in reports] == list(range(1, 7))
    assert {total for _, _, total in reports} == {6}


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM staged_entries WHERE log = 1 AND position = 0", "log 1: first entry at 5, retained from 0"),
        ("DELETE FROM staged_entries WHERE log = 1 AND position = 5", "log 1: entries end at 5, next is 10"),
        ("DELETE FROM staged_entries WHERE log = 1", "log 1: no entries, but next is 10"),
        ("UPDATE staged_entries SET position = 6 WHERE log = 1 AND position = 5", "entry at 6, expected one at 5"),
        ("UPDATE staged_entries SET next = 0 WHERE log = 1 AND position = 0", r"log 1: entry covers \[0, 0\)"),
        ("UPDATE staged_entries SET at_ms = 1 WHERE log = 1 AND position = 5", "is older than the one before"),
        ("UPDATE staged_entries SET at_ms = at_ms + 9 WHERE log = 1", "log 1: its last entry is newer than it says"),
        ("UPDATE staged_entries SET body = X'00' WHERE log = 1 AND position = 0", "entry at 0 covers 5 positions"),
        ("UPDATE staged_entries SET body = X'7B7B7B7B7B7B7B7B7B7B' WHERE log = 2", "log 2: entry at 0 is not JSON"),
        ("INSERT INTO entries VALUES (3, 0, 5, 1, X'0000000000', NULL, NULL)", "over base 5"),
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
    connection = apsw.Connection(str(sound / FILE), vfs=VFS)
    connection.execute(damage)
    connection.close()
    report = check_database(sound)
    assert any(re.search(finding, found) for found in report.findings), report.findings


def test_a_broken_index_is_found(sound: Path) -> None:
    """What SQLite itself finds is part of the report."""
    connection = apsw.Connection(str(sound / FILE), vfs=VFS)
    connection.execute("INSERT INTO entries VALUES (99, 0, 5, 1, X'0000000000', NULL, NULL)")
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
        db.execute(CreateStream("a", "text/plain", b"x"))
        assert check_database(data_dir).findings == []
        db.execute(Append("a", b"y", "text/plain"))
        assert check_database(data_dir).entries == 2


# -- tables


class Put(Command[None], frozen=True):
    """The smallest write of items: all in one transaction."""

    table: str
    items: tuple[dict[str, dict[str, Any]], ...]

    def run(self, tx: Tx) -> None:
        definition = find(tx, self.table)
        capture = Capture()
        for item in self.items:
            plan = write.find(tx, definition, keys.item_key(definition, item), item)
            plan.new, plan.size = item, value.item_size(item)
            write.do(tx, plan, capture)
        capture.append(tx)


def item(name: str, **attributes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"a": {"S": name}, **attributes}


def byb(name: str) -> IndexSpec:
    return IndexSpec(name, (KeyElement("b", "HASH"),))


@pytest.fixture
def tabled(data_dir: Path) -> Path:
    """Tables: `full` (space 1) with an index (2), expiry (3) and a stream (log 1); `filling` (4) whose index (5) is
    not full yet; one that is gone (6)."""
    db = Database(SqliteEngine(data_dir), clock=ManualClock(), housekeeping_s=None)
    stream = StreamSpec(enabled=True, view="NEW_AND_OLD_IMAGES")
    for name, attributes, indexes in (("full", "ab", (byb("byb"),)), ("filling", "a", None), ("gone", "a", None)):
        spec = TableSpec(
            name=name,
            attributes=tuple(Attribute(letter, "S") for letter in attributes),
            keys=(KeyElement("a", "HASH"),),
            billing="PAY_PER_REQUEST",
            globals=indexes,
            stream=stream if name == "full" else None,
        )
        db.execute(CreateTable(spec))
        if name == "full":
            db.execute(SetTimeToLive("full", "ttl", enabled=True))
        db.execute(Put(name, (item("one", b={"S": "x"}), item("two"), item("three", ttl={"N": "9999999999"}))))
        if name == "filling":
            change = IndexChange(create=byb("byb"))
            db.execute(UpdateTable(name, TableChanges(attributes=(Attribute("b", "S"),), indexes=(change,))))
    db.execute(Put("full", (item("one", b={"S": "y"}),)))
    db.execute(SaveCursor("full", "reader", 1))
    db.execute(DeleteTable("gone"))
    db.close()
    return data_dir


def test_sound_tables_are_clean(tabled: Path) -> None:
    report = check_database(tabled)
    assert report.findings == []
    assert (report.tables, report.items, report.records) == (2, 6, 4)
    with Database(SqliteEngine(tabled), clock=ManualClock(), housekeeping_s=None) as db:
        db.sweep()
    assert check_database(tabled).findings == []


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("UPDATE tables SET definition = X'00' WHERE name = 'full'", "table 'full': its definition cannot be read"),
        ("UPDATE tables SET space = 9 WHERE name = 'full'", "table 'full': its definition is that of 'full'"),
        ("UPDATE items SET size = 1 WHERE space = 4", "table 'filling': the item at .* its row says 1"),
        ("UPDATE items SET key = X'00' WHERE space = 4 AND key = (SELECT min(key) FROM items WHERE space = 4)",
         "table 'filling': the item at 00 has another key"),
        ("UPDATE items SET body = X'00' WHERE space = 4", "table 'filling': the item at .* cannot be read"),
        ("DELETE FROM items WHERE space = 4", "table 'filling' has 0 items of 0 bytes, its counts say 3 of"),
        ("UPDATE counts SET items = 7 WHERE space = 1", "table 'full' has 3 items of .*, its counts say 7"),
        ("UPDATE counts SET bytes = 0 WHERE space = 2", "index 'byb' has 1 items of .* bytes, its counts say 1 of 0"),
        ("DELETE FROM index_entries WHERE space = 2", "table 'full': index 'byb' lacks the item at"),
        ("DELETE FROM index_entries WHERE space = 3", "table 'full': expiry lacks the item at"),
        ("UPDATE index_entries SET item = X'00' WHERE space = 2", "index 'byb' leads from .* to 00"),
        ("INSERT INTO index_entries SELECT space, X'00', item FROM index_entries WHERE space = 2",
         "index 'byb': the entry at 00 is not that of the item it leads to"),
        ("INSERT INTO index_entries VALUES (3, X'00', X'00')", "expiry: the entry at 00 is not that of the item"),
        ("INSERT INTO index_entries VALUES (5, X'00', X'00')", "'filling': index 'byb': the entry at 00 is not that"),
        ("INSERT INTO items VALUES (77, X'00', 1, X'00', NULL)", "items of space 77, which has no owner"),
        ("INSERT INTO index_entries VALUES (77, X'00', X'00')", "index_entries of space 77, which has no owner"),
        ("INSERT INTO counts VALUES (77, 1, 1)", "counts of space 77, which has no owner"),
        ("DELETE FROM dropped_spaces", "items of space 6, which has no owner"),
        ("INSERT INTO dropped_spaces VALUES (2)", "space 2 is listed as dropped, but belongs to table 'full'"),
        ("UPDATE meta SET value = X'33' WHERE name = 'counter/space'", "space 5 exists but the counter is at 3"),
        ("DELETE FROM backfills", "table 'filling': index 'byb' is CREATING but not listed to be filled"),
        ("INSERT INTO backfills VALUES (2, 'full', X'')", "table 'full': index 'byb' is ACTIVE but listed"),
        ("INSERT INTO backfills VALUES (77, 'full', X'')", "backfill of space 77 for table 'full'"),
        ("INSERT INTO backfills VALUES (77, 'none', X'')", "backfill of space 77 for table 'none'"),
        ("INSERT INTO tokens VALUES ('t', X'00', 5)", "1 client request tokens have no age"),
        ("DELETE FROM change_streams", "table 'full': its change stream .* does not exist"),
        ("DELETE FROM change_streams", "log 1 of 'table/full/.*' has no change stream"),
        ("DELETE FROM change_streams", "cursors of log 1, which is no change stream's"),
        ("DELETE FROM change_streams", "counts of the records in log 1"),
        ("UPDATE change_streams SET closed_ms = 1", "change stream full/.* is closed, but its table says otherwise"),
        ("UPDATE change_streams SET log = 77", "change stream full/.*: its log 77 does not exist"),
        ("UPDATE logs SET owner = 'table/x'", "change stream full/.*: its log 1 belongs to 'table/x'"),
        ("UPDATE counts SET items = 9 WHERE space = -1", "has had 4 records, its counts say 9"),
        ("UPDATE counts SET bytes = 9 WHERE space = -1", "has 4 records of .* bytes, its counts say 4 of 9"),
        ("UPDATE staged_entries SET body = X'0000000000000000C0'", "the entry of 2 cannot be read"),
        ("UPDATE staged_entries SET body = CAST(X'0000000000000000' || substr(body, 9) AS BLOB) WHERE position = 3",
         "the entry of 3 counts 0 records before it, not 3"),
        ("UPDATE meta SET value = X'31' WHERE name = 'counter/sequence'", "sequence 3 exists but the counter is at 1"),
        ("UPDATE meta SET value = X'30' WHERE name = 'counter/sequence'",
         "change stream full/.* begins after sequence 1, but the counter is at 0"),
        ("UPDATE staged_entries SET body = (SELECT CAST(X'0000000000000003' || substr(body, 9) AS BLOB) "
         "FROM staged_entries WHERE position = 2) WHERE position = 3", "is INSERT, but the item was there"),
    ],
)  # fmt: skip
def test_damage_to_tables_is_named(tabled: Path, damage: str, finding: str) -> None:
    connection = apsw.Connection(str(tabled / FILE), vfs=VFS)
    connection.execute(damage)
    connection.close()
    report = check_database(tabled)
    assert any(re.search(finding, found) for found in report.findings), report.findings


class Overwrite(Command[None], frozen=True):
    """Write behind the change stream's back."""

    item: dict[str, dict[str, Any]] | None
    key: str = "two"

    def run(self, tx: Tx) -> None:
        definition = find(tx, "full")
        unseen = write.find(tx, definition, keys.item_key(definition, item(self.key)), item(self.key))
        unseen.definition = msgspec.structs.replace(definition, stream=None)
        if self.item is not None:
            unseen.new, unseen.size = self.item, value.item_size(self.item)
        capture = Capture()
        write.do(tx, unseen, capture)
        capture.append(tx)  # the counts, and no record


@pytest.mark.parametrize(
    ("unseen", "finding"),
    [
        (Overwrite(None), "ends with the item at .* there, but it is not so"),
        (Overwrite(item("two", c={"S": "z"})), "ends with another item at .* than there is"),
        (Overwrite(item("four"), "four"), "has no record of the item at"),
    ],
)
def test_a_change_that_was_not_captured_is_named(tabled: Path, unseen: Overwrite, finding: str) -> None:
    with Database(SqliteEngine(tabled), clock=ManualClock(), housekeeping_s=None) as db:
        db.execute(unseen)
    report = check_database(tabled)
    assert len(report.findings) == 1 and re.search(finding, report.findings[0]), report.findings


def test_a_stream_that_is_enabled_on_a_table_with_items_need_not_tell_of_them(tmp_path: Path) -> None:
    db = Database(SqliteEngine(tmp_path), clock=ManualClock(), housekeeping_s=None)
    orders = db.create_table("orders", partition_key="id")
    orders.put({"id": "a"})
    orders.enable_stream("NEW_IMAGE")  # in the very millisecond in which the table was made
    orders.put({"id": "b"})
    db.close()
    assert check_database(tmp_path).findings == []

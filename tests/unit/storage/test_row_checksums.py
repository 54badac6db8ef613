"""Rows that are not what was written: whoever reads one gets an error that names it, by whatever way it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import tailrace
from tailrace.bulk.queries import LogSelector, find_logs, packed_entries
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Corrupt
from tailrace.log.entry import Segment
from tailrace.log.segments import SEGMENTS
from tailrace.storage.pages import VFS
from tailrace.storage.sqlite import FILE
from tailrace.streams.commands import Append, CreateStream
from tailrace.streams.queries import ReadStream
from tailrace.tables.definition import ITEMS, ItemRow
from tailrace.topics.queries import ReadTopic
from tests.support.sealed import seal

TEXT = "text/plain"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tailrace.open(tmp_path / "data", housekeeping_s=None) as db:
        db.execute(CreateStream("s", TEXT))
        for number in range(10):
            db.execute(Append("s", b"message %d" % number, TEXT))
        table = db.create_table("things", "id", stream="NEW_IMAGE")
        for number in range(10):
            table.put({"id": f"i-{number}", "n": number})
        db.create_topic("news")
        for number in range(10):
            db.publish("news", b"payload %d" % number)
    return tmp_path / "data"


def change(data: Path, statement: str) -> None:
    """Change rows behind Tailrace's back; pages keep their checksums."""
    connection = apsw.Connection(str(data / FILE), vfs=VFS)
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()


def bulk(db: Database, which: LogSelector) -> None:
    (part,) = db.execute(find_logs(which)).parts
    at = part.earliest
    while at < part.log.next:
        at = db.execute(packed_entries(which, part.log.id, at, part.log.next, 10**9)).next


LOG = "(SELECT id FROM logs WHERE owner LIKE '{}%')"
STREAM, CHANGES, MESSAGES = LOG.format("stream"), LOG.format("table"), LOG.format("topic")


READS: dict[str, tuple[str, Callable[[Database], Any]]] = {
    "a stream": (STREAM, lambda db: db.execute(ReadStream("s", bytes_max=10**9))),
    "a stream in bulk": (STREAM, lambda db: bulk(db, LogSelector("stream", "s"))),
    "changes": (CHANGES, lambda db: list(db.table("things").changes())),
    "messages": (MESSAGES, lambda db: db.execute(ReadTopic("news"))),
}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("what", ["body = CAST(replace(body, '5', '7') AS BLOB)", "at_ms = at_ms - 1", "sum = sum + 1"])
def test_an_entry_that_was_changed_is_an_error(read: str, what: str, sealed: bool, data: Path) -> None:
    log, ask = READS[read]
    with tailrace.open(data, housekeeping_s=None) as db:
        if sealed:
            seal(db, 1)
        ask(db)
    table = "entries" if sealed else "staged_entries"
    one = f"SELECT rowid FROM {table} WHERE log = {log} LIMIT 1 OFFSET 5"
    change(data, f"UPDATE {table} SET {what} WHERE rowid = ({one})")
    with (
        tailrace.open(data, housekeeping_s=None) as db,
        pytest.raises(Corrupt, match=r"row of \w*entries .*log .*position"),
    ):
        ask(db)
    assert any(f"a row of {table} fails its checksum" in finding for finding in check_database(data).findings)


@pytest.mark.parametrize("read", READS)
def test_an_entry_that_is_missing_is_an_error(read: str, data: Path) -> None:
    log, ask = READS[read]
    for offset in (9, 4, 0):
        one = f"SELECT id FROM staged_entries WHERE log = {log} LIMIT 1 OFFSET {offset}"
        change(data, f"DELETE FROM staged_entries WHERE id = ({one})")
        with tailrace.open(data, housekeeping_s=None) as db, pytest.raises(Corrupt, match="has no entry at position"):
            ask(db)
    assert check_database(data).findings


ITEM_READS: dict[str, Callable[[Database], Any]] = {
    "get": lambda db: db.table("things").get("i-5"),
    "scan": lambda db: list(db.table("things").scan()),
    "query": lambda db: list(db.table("things").query("i-5")),
    "select": lambda db: db.sql("SELECT * FROM things"),
    "snapshot": lambda db: db.table("things").snapshot(),
    "update": lambda db: db.table("things").update("i-5", "SET n = :n", values={"n": 1}),
}


@pytest.mark.parametrize("read", ITEM_READS)
@pytest.mark.parametrize("what", ["body = CAST(replace(body, 'i-5', 'i-7') AS BLOB)", "size = size + 1"])
def test_an_item_that_was_changed_is_an_error(read: str, what: str, data: Path) -> None:
    change(data, f"UPDATE items SET {what} WHERE instr(body, CAST('i-5' AS BLOB))")
    with tailrace.open(data, housekeeping_s=None) as db:
        assert db.table("things").get("i-4") == {"id": "i-4", "n": 4}, "others are read as before"
        with pytest.raises(Corrupt, match="items"):
            ITEM_READS[read](db)
    assert any("a row of items fails its checksum" in finding for finding in check_database(data).findings)


def test_rows_from_before_there_were_checksums_are_read(data: Path) -> None:
    change(data, "UPDATE staged_entries SET sum = NULL")
    change(data, "UPDATE items SET sum = NULL WHERE rowid % 2")
    with tailrace.open(data, housekeeping_s=None) as db:
        for _, ask in READS.values():
            ask(db)
        for ask in ITEM_READS.values():
            ask(db)
    assert check_database(data).findings == []


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (SEGMENTS, Segment(1, 2, 5, 1_700_000_000_000, b"abc")),
        (SEGMENTS, Segment(1, 2, 5, 1_700_000_000_000, b"abc", b"layout")),
        (ITEMS, ItemRow(1, b"key", 5, b"body")),
    ],
    ids=["entry", "segment", "item"],
)
def test_every_bit_of_a_row_counts(table: Any, row: Any) -> None:
    values = table.values(row)
    assert table.load(values) == row
    for at, field in enumerate(values):
        if field is None:
            with pytest.raises(Corrupt):
                table.load((*values[:at], b"x", *values[at + 1 :]))
            continue
        for bit in range(len(field) * 8 if isinstance(field, bytes) else 63):
            if isinstance(field, bytes):
                flipped: Any = bytearray(field)
                flipped[bit // 8] ^= 1 << bit % 8
                flipped = bytes(flipped)
            else:
                flipped = field ^ 1 << bit
            with pytest.raises(Corrupt):
                table.load((*values[:at], flipped, *values[at + 1 :]))
    moved = Segment(1, 2, 5, 3, b"") if table is SEGMENTS else ItemRow(1, b"keyb", 5, b"ody")
    assert table.values(moved)[-1] != values[-1], "bytes that moved from one column to the next"

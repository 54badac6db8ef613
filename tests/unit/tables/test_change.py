"""Records in the log: an entry per transaction and table, positions that are sequences, images as the view has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.log import segments
from tailrace.log.entry import LOGS, Entry, Log
from tailrace.storage.engine import Tx
from tailrace.tables import change, change_stream, value
from tailrace.tables import key as keys
from tailrace.tables import write as writing
from tailrace.tables.change import BOTH, KEYS_ONLY, NEW_IMAGE, OLD_IMAGE, TTL, VIEWS, Capture, StoredRecord
from tailrace.tables.definition import counted, find
from tests.unit.tables.changes import Do, define, item, opened, put, write


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with opened(data_dir, clock) as db:
        define(db)
        define(db, "other")
        clock.advance(1)
        yield db
    assert check_database(data_dir).findings == []


def entries(db: Database, table: str = "orders") -> tuple[Log, list[Entry]]:
    with db._engine.reader() as reader:
        stream = find(reader, table).stream
        assert stream is not None
        log = reader.get(LOGS, stream.log)
        assert log is not None
        return log, list(segments.scan(reader, stream.log))


def records(db: Database, table: str = "orders") -> list[change.ChangeRecord]:
    return [record for entry in entries(db, table)[1] for record in change.decode(entry)]


def test_what_is_encoded_is_decoded() -> None:
    keys = {"pk": {"S": "a"}}
    image = value.encode({**keys, "n": {"N": "1"}, "b": {"B": b"\0"}})
    body = change.encode(
        7, "ann", [StoredRecord(1, 12, keys, msgspec.Raw(image), None), StoredRecord(2, 3, keys, None, None)]
    )
    assert change.before(body) == 7
    assert change.before(body[: change.HEAD_BYTES]) == 7, "the first bytes are enough"
    first, second = change.decode(Entry(1, 40, 43, 1234, body))
    assert (first.sequence, first.index, first.last, first.event) == (42, 0, False, "MODIFY")
    assert (second.sequence, second.index, second.last, second.event) == (42, 1, True, "REMOVE")
    assert first.old == {"pk": {"S": "a"}, "n": {"N": "1"}, "b": {"B": b"\0"}}
    assert (first.new, second.old, second.new) == (None, None, None)
    assert (first.at_ms, first.by, first.size, first.keys) == (1234, "ann", 12, keys)


def test_positions_are_sequences(db: Database) -> None:
    """Of one counter for all tables, so that a log has gaps; each entry covers the gap before it."""
    db.execute(change_stream.EnableStream("other"))
    assert put(db, 0, table="other") == 2, "enabling took one"
    db.execute(change_stream.EnableStream("orders"))
    assert [put(db, 1), put(db, 2, table="other"), put(db, 3), put(db, 4)] == [4, 5, 6, 7]
    log, found = entries(db)
    assert [(entry.position, entry.next) for entry in found] == [(4, 5), (5, 7), (7, 8)]
    assert (log.start, log.next) == (4, 8)
    assert [record.sequence for record in records(db)] == [4, 6, 7]


def note(tx: Tx, table: str, number: int, capture: Capture) -> None:
    """Put an item and capture that."""
    definition = find(tx, table)
    key = {"pk": item(number)["pk"]}
    plan = writing.find(tx, definition, keys.key_of(definition, key), key)
    plan.new, plan.size = item(number), value.item_size(item(number))
    writing.do(tx, plan, capture)


def test_a_transaction_is_one_entry_per_table(db: Database) -> None:
    for name in ("orders", "other"):
        db.execute(change_stream.EnableStream(name))

    def work(tx: Tx) -> int | None:
        capture = Capture()
        for number in range(3):
            for name in ("orders", "other")[: number + 1]:
                note(tx, name, number, capture)
        return capture.append(tx)

    assert db.execute(Do(work)) == 3
    for name, count in (("orders", 3), ("other", 2)):
        assert len(entries(db, name)[1]) == 1
        assert [(record.sequence, record.index, record.last) for record in records(db, name)] == [
            (3, number, number == count - 1) for number in range(count)
        ]


def test_nothing_changed_means_no_sequence(db: Database) -> None:
    db.execute(change_stream.EnableStream("orders"))
    assert db.execute(Do(lambda tx: Capture().append(tx))) is None
    assert write(db, "k1") == 0, "there is nothing to delete"
    assert put(db, 1) == 2
    assert put(db, 1) == 0, "it is there already"
    assert put(db, 2) == 3
    assert len(records(db)) == 2


def test_a_capture_that_was_appended_is_empty(db: Database) -> None:
    db.execute(change_stream.EnableStream("orders"))

    def work(tx: Tx) -> tuple[int | None, int | None]:
        capture = Capture()
        note(tx, "orders", 1, capture)
        return capture.append(tx), capture.append(tx)

    assert db.execute(Do(work)) == (2, None)


@pytest.mark.parametrize("view", VIEWS)
def test_images_are_those_of_the_view(db: Database, view: str) -> None:
    db.execute(change_stream.EnableStream("orders", view))
    first, second = item(1, n={"N": "1"}), item(1, n={"N": "2"})
    write(db, first)
    write(db, second)
    write(db, "k1")
    expected: list[tuple[str, Any, Any]] = [
        ("INSERT", None, first),
        ("MODIFY", first, second),
        ("REMOVE", second, None),
    ]
    for record, (event, old, new) in zip(records(db), expected, strict=True):
        assert record.event == event
        assert record.keys == {"pk": {"S": "k1"}}
        assert record.old == (old if view in (OLD_IMAGE, BOTH) else None)
        assert record.new == (new if view in (NEW_IMAGE, BOTH) else None)
        images = [image for image in (record.old, record.new) if image is not None]
        assert record.size == len("pk") + len("k1") + sum(value.item_size(image) for image in images)


def test_who_and_when(db: Database, clock: ManualClock) -> None:
    db.execute(change_stream.EnableStream("orders", KEYS_ONLY))
    write(db, item(1), by="ann")
    clock.advance(5)
    write(db, item(2), by=TTL)
    one, two = records(db)
    assert (one.by, two.by) == ("ann", "ttl")
    assert two.at_ms == one.at_ms + 5000 == clock.now_ms()


def test_entries_know_how_many_records_came_before(db: Database) -> None:
    db.execute(change_stream.EnableStream("orders"))
    put(db, 1, 2, 3)
    put(db, 4)
    put(db, 5, 6)
    _, found = entries(db)
    assert [change.before(entry.body) for entry in found] == [0, 3, 4]
    with db._engine.reader() as reader:
        total = counted(reader, -found[0].log)
    assert (total.items, total.bytes) == (6, sum(len(entry.body) for entry in found))

"""Change streams: what a reader finds after any sequence, what disabling and deleting leave, what retention takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Invalid, NotFound, TableNotFound, Trimmed
from tailrace.housekeeping import FindDueWork
from tailrace.log import segments
from tailrace.log.entry import LOGS
from tailrace.streams.sweep import ReclaimLog
from tailrace.tables import change_stream, retention, sweep
from tailrace.tables.change_info import DescribeChangeStream, ListRecentStreams, ListTableStreams
from tailrace.tables.change_reading import ChangePage, ReadChanges, ReadEntries
from tailrace.tables.change_stream import DisableStream, EnableStream
from tailrace.tables.change_trimming import AlterRetention, PruneStream
from tailrace.tables.cursors import DropCursor, ListCursors, SaveCursor
from tailrace.tables.definition import find
from tailrace.tables.lifecycle import DeleteTable
from tests.unit.tables.changes import Do, define, item, opened, put, write

DAY_S = 24 * 3600
TRIM = next(task for task in sweep.TASKS if task.name == "tables.trim")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    """A database with a table `orders`; it must be sound afterwards."""
    database = opened(data_dir, clock)
    define(database)
    clock.advance(1)
    yield database
    database.close()
    assert check_database(data_dir).findings == []


def keys_of(changes: ChangePage) -> list[str]:
    return [record.keys["pk"]["S"] for record in changes.records]


def everything(db: Database, table: str = "orders", limit: int = 1000, label: str | None = None) -> list[str]:
    """All that is there, page by page."""
    found: list[str] = []
    after, more = None, True
    while more:
        changes = db.execute(ReadChanges(table, after, limit, label=label))
        found += keys_of(changes)
        after, more = changes.after, changes.more
    return found


def drop_table(db: Database, name: str = "orders") -> None:
    db.execute(DeleteTable(name))


def swept(db: Database) -> list[tuple[str, str]]:
    """One round of retention; what was due."""
    due = db.execute(FindDueWork(TRIM)).commands
    for command in due:
        db.execute(command)
    return [(command.name, command.label) for command in due]


# -- reading


def test_records_are_read_as_they_were_written(db: Database, clock: ManualClock) -> None:
    db.execute(EnableStream("orders"))
    first = put(db, 1, a={"N": "1"})
    clock.advance(1)
    put(db, 7)
    second = write(db, item(1, a={"N": "2"}), "k7", by="somebody")
    changes = db.execute(ReadChanges("orders"))
    assert [(r.sequence, r.index, r.last, r.event) for r in changes.records] == [
        (first, 0, True, "INSERT"),
        (first + 1, 0, True, "INSERT"),
        (second, 0, False, "MODIFY"),
        (second, 1, True, "REMOVE"),
    ]
    inserted, _, modified, removed = changes.records
    assert (inserted.old, inserted.new) == (None, item(1, a={"N": "1"}))
    assert (modified.old, modified.new) == (item(1, a={"N": "1"}), item(1, a={"N": "2"}))
    assert (removed.old, removed.new) == (item(7), None)
    assert [r.by for r in changes.records] == ["me", "me", "somebody", "somebody"]
    assert modified.at_ms - inserted.at_ms == 1000
    assert (changes.after, changes.latest, changes.more) == (second, second, False)


@pytest.mark.parametrize(
    ("view", "old", "new"),
    [
        ("KEYS_ONLY", False, False),
        ("OLD_IMAGE", True, False),
        ("NEW_IMAGE", False, True),
        ("NEW_AND_OLD_IMAGES", True, True),
    ],
)
def test_a_view_says_which_images_are_kept(db: Database, view: str, old: bool, new: bool) -> None:
    write(db, item(1, a={"S": "x"}))
    db.execute(EnableStream("orders", view))
    put(db, 1, a={"S": "y"})
    (record,) = db.execute(ReadChanges("orders")).records
    assert (record.old is not None, record.new is not None) == (old, new)
    assert record.keys == item(1)


def test_a_page_holds_whole_transactions(db: Database) -> None:
    db.execute(EnableStream("orders"))
    put(db, 1)
    big = put(db, *range(100, 250))
    put(db, 2)
    page = db.execute(ReadChanges("orders", None, 100))
    assert (len(page.records), page.after, page.more) == (151, big, True)
    assert db.execute(ReadChanges("orders", None, 1)).records[-1].last
    assert len(db.execute(ReadChanges("orders", big - 1, 1)).records) == 150
    small = db.execute(ReadChanges("orders", bytes_max=1))
    assert keys_of(small) == ["k1"]
    assert everything(db, limit=100) == ["k1", *(f"k{n}" for n in range(100, 250)), "k2"]


def test_any_sequence_is_a_place_to_read_after(db: Database) -> None:
    define(db, "other")
    db.execute(EnableStream("orders"))
    db.execute(EnableStream("other"))
    mine = [put(db, 1)]
    others = [put(db, n, table="other") for n in range(3)]
    mine.append(put(db, 2))
    others.append(put(db, 9, table="other"))
    assert keys_of(db.execute(ReadChanges("orders", mine[0]))) == ["k2"]
    for sequence in others[:3]:
        assert keys_of(db.execute(ReadChanges("orders", sequence))) == ["k2"]
    beyond = db.execute(ReadChanges("orders", others[-1]))
    assert (beyond.records, beyond.after, beyond.more) == ([], others[-1], False)
    put(db, 3)
    assert keys_of(db.execute(ReadChanges("orders", beyond.after))) == ["k3"]
    run = db.execute(ReadEntries("orders", position=others[1]))
    assert (run.position, len(run.entries)) == (mine[0] + 1, 2)


def test_zero_and_none_are_before_everything(db: Database) -> None:
    define(db, "other")
    db.execute(EnableStream("other"))
    put(db, 1, table="other")
    db.execute(EnableStream("orders"))
    put(db, 5)
    assert keys_of(db.execute(ReadChanges("orders", 0))) == keys_of(db.execute(ReadChanges("orders"))) == ["k5"]
    db.execute(PruneStream("orders"))
    with pytest.raises(Trimmed):
        db.execute(ReadChanges("orders", 0))


def test_sequences_never_assigned_are_refused(db: Database) -> None:
    db.execute(EnableStream("orders"))
    last = put(db, 1)
    with pytest.raises(Invalid, match="never assigned"):
        db.execute(ReadChanges("orders", last + 1))
    with pytest.raises(Invalid, match="limit 0"):
        db.execute(ReadChanges("orders", limit=0))
    with pytest.raises(TableNotFound):
        db.execute(ReadChanges("nothing"))


def test_a_position_of_another_database_is_refused(db: Database) -> None:
    stream = db.execute(EnableStream("orders"))
    assert db.execute(ReadEntries("orders", epoch=stream.epoch)).entries == []
    with pytest.raises(Invalid, match="another database"):
        db.execute(ReadEntries("orders", epoch="0123456789abcdef"))


# -- enabling and disabling


def test_each_enabling_makes_a_new_stream(db: Database) -> None:
    made = []
    for number in range(4):
        made.append(db.execute(EnableStream("orders")))
        put(db, number)
        closed = db.execute(DisableStream("orders"))
        assert closed.closed_ms is not None
    assert len({stream.label for stream in made}) == len({stream.epoch for stream in made}) == 4
    assert [stream.label for stream in made] == sorted(stream.label for stream in made)
    assert made[0].label == "2023-11-14T22:13:21.000"
    for number, stream in enumerate(made):
        assert everything(db, label=stream.label) == [f"k{number}"]
    assert everything(db) == ["k3"], "the last one stays what the table's changes are"
    assert db.execute(ReadChanges("orders")).ended


def test_a_sequence_of_the_previous_stream_is_trimmed(db: Database) -> None:
    db.execute(EnableStream("orders"))
    seen = put(db, 1)
    put(db, 2)
    db.execute(DisableStream("orders"))
    db.execute(EnableStream("orders"))
    put(db, 3)
    with pytest.raises(Trimmed) as caught:
        db.execute(ReadChanges("orders", seen))
    assert keys_of(db.execute(ReadChanges("orders", caught.value.earliest - 1))) == ["k3"]


def test_what_was_written_while_there_was_no_stream_is_not_skipped_in_silence(db: Database) -> None:
    db.execute(EnableStream("orders"))
    seen = put(db, 1)
    db.execute(DisableStream("orders"))
    write(db, item(2))
    db.execute(EnableStream("orders"))
    with pytest.raises(Trimmed, match=f"^sequence {seen} is no longer retained; the oldest is {seen + 2}: read after "):
        db.execute(ReadChanges("orders", seen))
    with pytest.raises(Trimmed):
        db.execute(SaveCursor("orders", "reader", seen))
    assert db.execute(ReadChanges("orders", seen + 1)).records == [], "the sequence of the enabling is in time"
    put(db, 3)
    for after in (None, 0, seen + 1):
        assert keys_of(db.execute(ReadChanges("orders", after))) == ["k3"]


def test_a_table_made_again_is_not_mistaken_for_the_one_before(db: Database, clock: ManualClock) -> None:
    db.execute(EnableStream("orders"))
    seen = put(db, 1)
    drop_table(db)
    define(db)
    write(db, item(2))
    clock.advance(1)
    db.execute(EnableStream("orders"))
    with pytest.raises(Trimmed):
        db.execute(ReadChanges("orders", seen))


def test_all_streams_of_a_name(db: Database) -> None:
    assert db.execute(ListTableStreams("orders")) == []
    for number in range(3):
        db.execute(EnableStream("orders"))
        put(db, *range(number * 10, number * 10 + number + 1))
        db.execute(DisableStream("orders"))
    found = db.execute(ListTableStreams("orders"))
    assert [info.count for info in found] == [1, 2, 3]
    assert found[-1] == db.execute(DescribeChangeStream("orders"))
    drop_table(db)
    assert len(db.execute(ListTableStreams("orders"))) == 3
    with pytest.raises(TableNotFound):
        db.execute(ListTableStreams("nothing"))


def test_enabling_or_disabling_twice_is_refused(db: Database) -> None:
    with pytest.raises(Invalid, match="no stream to disable"):
        db.execute(Do(lambda tx: change_stream.disable(tx, find(tx, "orders"))))
    with pytest.raises(NotFound, match="no change stream"):
        db.execute(ReadChanges("orders"))
    db.execute(EnableStream("orders"))
    with pytest.raises(Invalid, match="already has an enabled stream"):
        db.execute(EnableStream("orders"))
    with pytest.raises(Invalid, match="'EVERYTHING' is unknown"):
        define(db, "other")
        db.execute(EnableStream("other", "EVERYTHING"))
    with pytest.raises(Invalid, match="max_age_s 0"):
        db.execute(EnableStream("other", max_age_s=0))


def test_a_stream_outlives_its_table(db: Database, clock: ManualClock) -> None:
    first = db.execute(EnableStream("orders"))
    put(db, 1)
    drop_table(db)
    assert everything(db) == ["k1"]
    assert db.execute(ReadChanges("orders")).ended
    define(db)
    with pytest.raises(NotFound, match="no change stream"):
        db.execute(ReadChanges("orders"))  # the new table never had one
    assert everything(db, label=first.label) == ["k1"]
    second = db.execute(EnableStream("orders"))
    assert second.label > first.label
    clock.advance(7 * DAY_S + 1)
    assert swept(db) == [("orders", first.label)], "the new one is open and empty: nothing to do"
    with pytest.raises(NotFound):
        db.execute(DescribeChangeStream("orders", first.label))
    while not db.execute(ReclaimLog(first.log)):
        pass
    with db._engine.reader() as reader:
        assert reader.get(LOGS, first.log) is None
        assert list(segments.scan(reader, first.log)) == []


def test_waiters_are_notified_of_the_end(db: Database) -> None:
    stream = db.execute(EnableStream("orders"))
    notices: list[object] = []
    db.tail.subscribe(stream.log, notices.extend)
    db.execute(DisableStream("orders"))
    assert [getattr(notice, "gone", None) for notice in notices] == [False]


def test_what_there_is_to_know(db: Database) -> None:
    db.execute(EnableStream("orders", "KEYS_ONLY", max_age_s=60, max_count=None))
    info = db.execute(DescribeChangeStream("orders"))
    assert (info.oldest, info.latest, info.count, info.enabled, info.view) == (None, None, 0, True, "KEYS_ONLY")
    first = put(db, 1)
    last = put(db, 2, 3, 4)
    info = db.execute(DescribeChangeStream("orders"))
    assert (info.oldest, info.latest, info.latest_index, info.count) == (first, last, 2, 4)
    assert info.stream.keys == (("pk", "S"),)
    assert (info.stream.max_age_s, info.stream.max_count) == (60, None)
    with db._engine.reader() as reader:
        assert info.bytes == sum(len(entry.body) for entry in segments.scan(reader, info.log.id))
    db.execute(PruneStream("orders", first))
    assert 0 < db.execute(DescribeChangeStream("orders")).bytes < info.bytes


def test_streams_are_listed_newest_first(db: Database, clock: ManualClock) -> None:
    expected = []
    for name in ("bbb", "aaa", "ccc"):
        define(db, name)
        for _ in range(2):
            clock.advance(1)
            expected.append((db.execute(EnableStream(name)).label, name))
            db.execute(DisableStream(name))
    recent = db.execute(ListRecentStreams())
    assert [(s.label, s.name) for s in recent] == sorted(expected, reverse=True)
    paged, after = [], None
    while page := db.execute(ListRecentStreams(None, after, 1)):
        paged += page
        after = (page[-1].label, page[-1].name)
    assert paged == recent
    assert [info.stream.name for info in db.execute(ListTableStreams("bbb"))] == ["bbb", "bbb"]
    assert db.execute(ListRecentStreams("orders")) == []
    with pytest.raises(TableNotFound):
        db.execute(ListRecentStreams("nothing"))


# -- retention


def test_the_default_is_seven_days_or_a_million_records(db: Database) -> None:
    stream = db.execute(EnableStream("orders"))
    assert (stream.max_age_s, stream.max_count) == (7 * DAY_S, 1_000_000)


def test_retention_by_count(db: Database) -> None:
    stream = db.execute(EnableStream("orders", max_age_s=None, max_count=100))
    sequences = [put(db, number) for number in range(250)]
    assert swept(db) == [("orders", stream.label)]
    assert everything(db) == [f"k{n}" for n in range(150, 250)]
    assert db.execute(DescribeChangeStream("orders")).oldest == sequences[150]
    assert swept(db) == []
    with pytest.raises(Trimmed) as caught:
        db.execute(ReadChanges("orders", sequences[0]))
    assert caught.value.earliest == sequences[149] + 1
    assert keys_of(db.execute(ReadChanges("orders", sequences[149], 1))) == ["k150"]


def test_retention_never_cuts_a_transaction(db: Database) -> None:
    db.execute(EnableStream("orders", max_age_s=None, max_count=10))
    put(db, *range(6))
    put(db, *range(10, 16))
    swept(db)
    assert everything(db) == [f"k{n}" for n in range(10, 16)]
    put(db, *range(100, 130))
    swept(db)
    assert everything(db) == [f"k{n}" for n in range(100, 130)], "the newest is kept however large it is"


def test_retention_by_age(db: Database, clock: ManualClock) -> None:
    db.execute(EnableStream("orders", max_age_s=100, max_count=None))
    for number in range(10):
        put(db, number)
        clock.advance(20)
    swept(db)  # at 200 s; records of 100 s and later stay
    assert everything(db) == [f"k{n}" for n in range(5, 10)]
    clock.advance(1000)
    swept(db)
    info = db.execute(DescribeChangeStream("orders"))
    assert (info.count, info.oldest, info.enabled) == (0, None, True)
    after = db.execute(ReadChanges("orders")).after
    put(db, 77)
    assert keys_of(db.execute(ReadChanges("orders", after))) == ["k77"]


def test_whichever_comes_first(db: Database, clock: ManualClock) -> None:
    db.execute(EnableStream("orders", max_age_s=100, max_count=3))
    for number in range(5):
        put(db, number)
    swept(db)
    assert everything(db) == ["k2", "k3", "k4"]
    clock.advance(101)
    put(db, 9)
    swept(db)
    assert everything(db) == ["k9"]


def test_manual_retention_keeps_until_pruned(db: Database, clock: ManualClock) -> None:
    stream = db.execute(EnableStream("orders", max_age_s=None, max_count=None))
    sequences = [put(db, number) for number in range(5)]
    clock.advance(1000 * DAY_S)
    assert swept(db) == []
    pruned = db.execute(PruneStream("orders", sequences[1]))
    assert (pruned.records, pruned.gone) == (2, False)
    assert everything(db) == ["k2", "k3", "k4"]
    assert db.execute(PruneStream("orders", sequences[0])).records == 0
    drop_table(db)
    clock.advance(1000 * DAY_S)
    assert swept(db) == []
    assert everything(db) == ["k2", "k3", "k4"]
    pruned = db.execute(PruneStream("orders", label=stream.label))
    assert (pruned.records, pruned.gone) == (3, True)
    with pytest.raises(TableNotFound):
        db.execute(DescribeChangeStream("orders"))


def test_retention_can_be_altered(db: Database) -> None:
    db.execute(EnableStream("orders", max_age_s=None, max_count=None))
    for number in range(5):
        put(db, number)
    db.execute(AlterRetention("orders", None, 2))
    swept(db)
    assert everything(db) == ["k3", "k4"]
    with pytest.raises(Invalid, match="max_count -1"):
        db.execute(AlterRetention("orders", None, -1))
    altered = db.execute(AlterRetention("orders", max_age_s=60))
    assert (altered.max_age_s, altered.max_count) == (60, 2), "what is not given stays"
    altered = db.execute(AlterRetention("orders", max_count=None))
    assert (altered.max_age_s, altered.max_count) == (60, None)


def test_sequences_never_assigned_cannot_be_pruned(db: Database) -> None:
    db.execute(EnableStream("orders"))
    last = put(db, 1)
    with pytest.raises(Invalid, match=f"sequence {last + 1} was never assigned"):
        db.execute(PruneStream("orders", last + 1))
    assert everything(db) == ["k1"]
    assert db.execute(PruneStream("orders", last)).records == 1


def test_due_streams_are_found_in_pages(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("aaa", "bbb", "ccc"):
        define(db, name)
        db.execute(EnableStream(name, max_age_s=None, max_count=1))
        put(db, 1, table=name)
        if name != "bbb":
            put(db, 2, table=name)
    monkeypatch.setattr(limits, "SWEEP_STREAMS", 1)
    due, position = [], None
    while True:
        found = db.execute(FindDueWork(TRIM, position))
        due += found.commands
        if (position := found.position) is None:
            break
    assert [command.name for command in due] == ["aaa", "ccc"]


def test_a_long_stream_is_trimmed_with_few_looks(db: Database) -> None:
    stream = db.execute(EnableStream("orders", max_age_s=None, max_count=100))
    for number in range(300):
        put(db, number)
    with db._engine.reader(db.clock.now_ms()) as reader:
        looks = _Counting(reader)
        retention.horizon(looks, change_stream.log_of(reader, stream), None, 100)  # type: ignore[arg-type]
        assert looks.count < 12
    swept(db)
    assert len(everything(db)) == 100


class _Counting:
    """A reader that counts how often entries are looked at."""

    def __init__(self, reader: object) -> None:
        self._reader = reader
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)

    def values(self, *args: object, **more: object) -> object:
        self.count += 1
        return self._reader.values(*args, **more)  # type: ignore[attr-defined]


# -- cursors


def test_a_cursor_knows_how_far_behind_it_is(db: Database, clock: ManualClock) -> None:
    db.execute(EnableStream("orders"))
    first = put(db, 1)
    put(db, 2, 3)
    clock.advance(5)
    put(db, 4)
    clock.advance(5)
    saved = db.execute(SaveCursor("orders", "billing", first))
    assert (saved.after, saved.lag.records, saved.lag.age_ms, saved.cut_off) == (first, 3, 10_000, False)
    assert saved.lag.bytes > 0
    assert db.execute(ListCursors("orders")) == [saved]
    caught_up = db.execute(SaveCursor("orders", "billing", db.execute(ReadChanges("orders")).after))
    assert (caught_up.lag.records, caught_up.lag.bytes, caught_up.lag.age_ms) == (0, 0, 0)
    assert db.execute(DropCursor("orders", "billing"))
    assert not db.execute(DropCursor("orders", "billing"))
    assert db.execute(ListCursors("orders")) == []


def test_a_cursor_holds_retention_back(db: Database) -> None:
    db.execute(EnableStream("orders", max_age_s=None, max_count=2))
    sequences = [put(db, number) for number in range(10)]
    db.execute(SaveCursor("orders", "slow", sequences[3]))
    swept(db)
    assert everything(db) == [f"k{n}" for n in range(4, 10)]
    assert swept(db) == [], "held, and so nothing is due"
    db.execute(SaveCursor("orders", "slow", sequences[6]))
    swept(db)
    assert everything(db) == ["k7", "k8", "k9"]


def test_a_cursor_that_holds_too_much_is_cut_off_loudly(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    db.execute(EnableStream("orders", max_age_s=None, max_count=2))
    sequences = [put(db, number, text={"S": "x" * 100}) for number in range(4)]
    db.execute(SaveCursor("orders", "slow", sequences[0], hold_bytes=500))
    swept(db)
    assert everything(db) == ["k1", "k2", "k3"]
    for number in range(4, 20):
        put(db, number, text={"S": "x" * 100})
    with caplog.at_level(logging.WARNING, "tailrace.tables"):
        swept(db)
    assert everything(db) == ["k18", "k19"]
    assert "cursor 'slow'" in caplog.text
    assert "lost 17 records" in caplog.text
    (cursor,) = db.execute(ListCursors("orders"))
    assert (cursor.lost, cursor.cut_off, cursor.after) == (17, True, sequences[0])
    with pytest.raises(Trimmed):
        db.execute(ReadChanges("orders", cursor.after))
    put(db, 20)
    swept(db)  # it holds nothing any more
    assert everything(db) == ["k19", "k20"]
    (cursor,) = db.execute(ListCursors("orders"))
    assert cursor.lost == 18
    again = db.execute(SaveCursor("orders", "slow", db.execute(ReadChanges("orders")).after))
    assert (again.lost, again.cut_off, again.hold_bytes) == (18, False, 500)


def test_what_a_cursor_may_not_be(db: Database) -> None:
    db.execute(EnableStream("orders", max_age_s=None, max_count=1))
    sequences = [put(db, number) for number in range(3)]
    with pytest.raises(Invalid, match="1 to 256 bytes"):
        db.execute(SaveCursor("orders", "", sequences[0]))
    with pytest.raises(Invalid, match="is not from 0 to"):
        db.execute(SaveCursor("orders", "a", sequences[0], hold_bytes=-1))
    swept(db)
    with pytest.raises(Trimmed):
        db.execute(SaveCursor("orders", "a", sequences[0]))


def test_a_reader_sees_no_record_that_is_newer_than_its_view(db: Database) -> None:
    """Whatever others have read meanwhile, and left in memory."""
    db.execute(EnableStream("orders", "NEW_AND_OLD_IMAGES"))
    large = {"S": "x" * 1_024}
    write(db, item(1, text=large))
    with db._engine.reader() as reader:
        reader.recent = db.recent
        assert keys_of(ReadChanges("orders").run(reader)) == ["k1"]
        write(db, item(2, text=large))
        assert everything(db) == ["k1", "k2"]
        seen = ReadChanges("orders").run(reader)
        assert (keys_of(seen), seen.more, seen.after) == (["k1"], False, seen.latest)
        assert len(ReadEntries("orders").run(reader).entries) == 1

"""Which logs are in cold storage, and up to where: marks that move by compare-and-set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.check import check_database
from tailrace.command import Query
from tailrace.database import Database
from tailrace.errors import Fenced, Invalid, NotFound
from tailrace.jobs.queries import ListCold
from tailrace.jobs.stage import STREAM, TABLE, TOPIC, Target
from tailrace.jobs.tiering import AttachTier, DetachTier, ForgetCold, MoveTiered
from tailrace.log.cold import ColdRange
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Reader
from tailrace.storage.sqlite import SqliteEngine
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.tables.change_trimming import PruneStream
from tailrace.topics.commands import CreateTopic, TopicOptions

DOCS = Target(STREAM, "docs")
ORDERS = Target(TABLE, "orders")


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        opened.execute(CreateStream("docs", "text/plain"))
        for _ in range(3):
            opened.execute(Append("docs", b"12345", "text/plain"))
        opened.create_table("orders", partition_key="id", stream="NEW_IMAGE").put({"id": "a"})
        yield opened
    findings = check_database(data_dir).findings  # the marks of these tests move without files
    assert [each for each in findings if not each.startswith("cold storage")] == []


class FindLog(Query[Log], frozen=True):
    number: int

    def run(self, reader: Reader) -> Log:
        log = reader.get(LOGS, self.number)
        assert log is not None
        return log


def tiers(db: Database, place: str) -> tuple[int, list[ColdRange]]:
    (found,) = [each for each in db.execute(ListCold()) if each.place.name == place]
    return found.place.generation, [each.tier for each in found.logs]


def test_a_log_is_tiered_from_where_it_starts(db: Database) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    assert (tier.start, tier.tiered, tier.place) == (0, 0, "streams")
    (orders,) = db.execute(AttachTier(ORDERS))
    assert orders.start == orders.tiered == db.execute(FindLog(orders.log)).start > 0
    assert orders.place == "tables/orders"
    assert tiers(db, "streams") == (0, [tier])
    assert db.execute(AttachTier(DOCS)) == [tier], "twice is once"


def test_a_topic_is_tiered_with_all_its_partitions(db: Database) -> None:
    db.execute(CreateTopic("app.news", 3, TopicOptions(alias="n")))
    found = db.execute(AttachTier(Target(TOPIC, "n")))
    assert len(found) == 3
    assert {each.place for each in found} == {"topics/app.news"}


def test_marks_move_by_generation(db: Database) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    assert db.execute(MoveTiered("streams", 1, {tier.log: (0, 5)})) == 1
    assert db.execute(MoveTiered("streams", 2, {tier.log: (5, 15)})) == 2
    generation, (now,) = tiers(db, "streams")
    assert (generation, now.start, now.tiered) == (2, 0, 15)
    for generation in (0, 1, 2, 4):
        with pytest.raises(Fenced, match="does not follow 2") as caught:
            db.execute(MoveTiered("streams", generation, {tier.log: (0, 5)}))
        assert caught.value.facts == {"generation": 2, "tiered": {str(tier.log): 15}}


def test_a_gap_is_refused(db: Database) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    with pytest.raises(Fenced, match="leaves a gap") as caught:
        db.execute(MoveTiered("streams", 1, {tier.log: (5, 10)}))
    assert caught.value.facts == {"generation": 0, "tiered": {str(tier.log): 0}}


@pytest.mark.parametrize("end", [3, 16])
def test_a_mark_is_where_an_entry_ends(db: Database, end: int) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    with pytest.raises(Invalid, match="does not end where an entry does"):
        db.execute(MoveTiered("streams", 1, {tier.log: (0, end)}))
    assert tiers(db, "streams") == (0, [tier])


def test_all_marks_move_or_none(db: Database) -> None:
    db.execute(CreateStream("other", "text/plain", b"123"))
    (docs,) = db.execute(AttachTier(DOCS))
    (other,) = db.execute(AttachTier(Target(STREAM, "other")))
    with pytest.raises(Invalid):
        db.execute(MoveTiered("streams", 1, {docs.log: (0, 5), other.log: (0, 2)}))
    assert tiers(db, "streams") == (0, [docs, other])


def test_what_was_dropped_meanwhile_is_passed_over(db: Database) -> None:
    """The batch is in cold storage already: its generation has to be noted, or nothing more would ever be."""
    db.execute(CreateStream("other", "text/plain", b"123"))
    (docs,) = db.execute(AttachTier(DOCS))
    (other,) = db.execute(AttachTier(Target(STREAM, "other")))
    db.execute(DeleteStream("other"))
    db.sweep()
    assert db.execute(MoveTiered("streams", 1, {docs.log: (0, 5), other.log: (0, 3)})) == 1
    generation, (now,) = tiers(db, "streams")
    assert (generation, now.log, now.tiered) == (1, docs.log, 5)


def test_what_was_pruned_meanwhile_stays_pruned(db: Database) -> None:
    for number in range(5):
        db.table("orders").put({"id": f"{number}"})
    (tier,) = db.execute(AttachTier(ORDERS))
    sequences = [each.sequence for each in db.table("orders").changes()]
    db.execute(PruneStream("orders", sequences[3]))
    assert db.execute(MoveTiered("tables/orders", 1, {tier.log: (tier.start, sequences[1] + 1)})) == 1
    _, (now,) = tiers(db, "tables/orders")
    assert now.tiered == sequences[3] + 1
    assert db.execute(MoveTiered("tables/orders", 2, {tier.log: (tier.start, sequences[4] + 1)})) == 2
    _, (now,) = tiers(db, "tables/orders")
    assert now.tiered == sequences[4] + 1


def test_what_is_forgotten_is_no_longer_there(db: Database) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    db.execute(MoveTiered("streams", 1, {tier.log: (0, 10)}))
    assert db.execute(ForgetCold("streams", {tier.log: 5, 999: 1})) == {tier.log: 5}
    assert db.execute(ForgetCold("streams", {tier.log: 3})) == {tier.log: 5}, "it does not come back"
    with pytest.raises(Invalid, match="up to 10 only"):
        db.execute(ForgetCold("streams", {tier.log: 15}))
    _, (now,) = tiers(db, "streams")
    assert (now.start, now.tiered) == (5, 10)


def test_what_is_detached_and_attached_again_is_not_there_twice(db: Database) -> None:
    (tier,) = db.execute(AttachTier(DOCS))
    assert db.execute(DetachTier(DOCS)) == 1
    assert db.execute(DetachTier(DOCS)) == 0
    assert tiers(db, "streams") == (0, [])
    # A batch that was in cold storage before, and is marked only now.
    assert db.execute(MoveTiered("streams", 1, {tier.log: (0, 10)})) == 1
    (again,) = db.execute(AttachTier(DOCS))
    assert (again.start, again.tiered) == (0, 10), "it goes on after what is in cold storage"
    db.execute(Append("docs", b"12345", "text/plain"))
    with pytest.raises(Fenced, match="leaves a gap"):
        db.execute(MoveTiered("streams", 2, {tier.log: (15, 20)}))
    assert db.execute(MoveTiered("streams", 2, {tier.log: (10, 20)})) == 2


def test_a_fork_has_its_own_history(db: Database) -> None:
    db.execute(CreateStream("fork", fork=Fork("docs", 10)))
    db.execute(Append("fork", b"12345", "text/plain"))
    (tier,) = db.execute(AttachTier(Target(STREAM, "fork")))
    assert (tier.start, tier.tiered) == (10, 10)
    db.execute(MoveTiered("streams", 1, {tier.log: (10, 15)}))


def test_what_does_not_exist_is_not_found(db: Database) -> None:
    with pytest.raises(NotFound, match="there is no stream 'x'"):
        db.execute(AttachTier(Target(STREAM, "x")))
    with pytest.raises(NotFound, match="no Delta table 'x'"):
        db.execute(MoveTiered("x", 1, {}))
    with pytest.raises(NotFound, match="no Delta table 'x'"):
        db.execute(ForgetCold("x", {}))


def test_a_check_holds_no_transaction_while_it_reads_cold_storage(
    db: Database, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(AttachTier(DOCS))
    busy: list[int] = []

    def check_cold(*args: Any, **options: Any) -> list[str]:
        db.execute(Append("docs", b"12345", "text/plain"))

        def checkpoint() -> None:
            assert isinstance(db._engine, SqliteEngine)
            busy.append(db._engine.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0])

        db._runner.between(checkpoint)
        return []

    monkeypatch.setattr("tailrace.cold.check.check_cold", check_cold)
    assert check_database(data_dir).findings == []
    assert busy == [0]

"""History in cold storage, put there by the functions that the tier job uses, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tailrace.access import Permission
from tailrace.bulk.cold_rows import cold_batch
from tailrace.bulk.entries import batch
from tailrace.bulk.queries import LogSelector, find_logs
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.cold.writing import commit, write_rows
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.jobs.stage import KINDS, Target
from tailrace.jobs.tiering import AttachTier, MoveTiered
from tailrace.log import log as logs
from tailrace.log import segments
from tailrace.log.entry import LOGS, Entry
from tailrace.storage.engine import Reader, Tx
from tailrace.topics.topic import PARTITIONS, Partition

APP: Final = "tier"


class Hot(Query[list[Entry]], frozen=True):
    """The entries of a log from a position on that are in the database itself."""

    log: int
    start: int = 0

    def run(self, reader: Reader) -> list[Entry]:
        reader.recent = None  # also has segments that were removed, which nobody reads: they are below the log's start
        return list(segments.scan(reader, self.log, start=self.start))


class Trim(Command[None], frozen=True):
    """Let the hot log go below a position, if that is in cold storage, as retention does."""

    permission = Permission.ADMIN

    log: int
    position: int

    def run(self, tx: Tx) -> None:
        before = tx.get(LOGS, self.log)
        assert before is not None
        after, held = logs.trim(tx, before, self.position), tx.get(PARTITIONS, self.log)
        if held is not None:
            gone = segments.outlines(tx, self.log, before.start, after.start - before.start)
            freed = sum(size for _, _, _, size in gone)
            tx.put(PARTITIONS, Partition(held.log, held.topic, held.number, held.bytes - freed))


def store_of(db: Database) -> Store:
    """Its cold storage."""
    assert db.cold is not None
    return Store(db.cold.url)


def tier(db: Database, which: LogSelector, count: int, *, files: int = 1) -> list[Path]:
    """Put the next `count` entries of a log into cold storage, in so many files, and move its mark; where the files
    are. The hot log is as it was."""
    (now,) = db.execute(AttachTier(Target(KINDS[which.kind], which.name)))
    facts = db.execute(find_logs(which))
    entries = db.execute(Hot(now.log, now.tiered))[:count]
    assert len(entries) == count, "so many are not there"
    named = {"stream": which.name, "content_type": facts.content_type} if which.kind == "stream" else {}
    store, written = store_of(db), []
    for number in range(files):
        part = entries[count * number // files : count * (number + 1) // files]
        written += write_rows(store, now.place, [cold_batch(which.kind, batch(part), **named)])
    assert len(written) == files
    generation = 1 if facts.place is None else facts.place.generation + 1
    ranges = {now.log: (now.tiered, entries[-1].next)}
    done = commit(
        store,
        now.place,
        SCHEMAS[which.kind],
        written,
        app=APP,
        generation=generation,
        database=db.identity,
        metadata={"ranges": {str(log): each for log, each in ranges.items()}},
    )
    assert done == "committed"
    db.execute(MoveTiered(now.place, generation, ranges))
    return [Path(store.uri(now.place), file.path) for file in written]

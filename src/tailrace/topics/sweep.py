"""Retention of topics: messages beyond a topic's age or size are trimmed, partition by partition, in small steps.

The entries themselves are removed like those of streams: the log is listed as garbage and reclaimed by the same task.
"""

from __future__ import annotations

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.housekeeping import DueWork, HousekeepingTask
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.metrics import Metrics
from tailrace.storage.engine import Reader, Tx
from tailrace.topics import backfill
from tailrace.topics.topic import PARTITIONS, TOPICS, Partition, Topic


class TrimPartition(Command[int], frozen=True):
    """Apply a topic's retention to one partition; the number of messages removed."""

    freeing = True
    permission = Permission.ADMIN

    topic: int
    partition: int

    def run(self, tx: Tx) -> int:
        failpoints.hit("sweep.step")
        topic = tx.get(TOPICS, self.topic)
        if topic is None or not _retained(topic):
            return 0
        found = _horizon(tx, topic, self.partition)
        if found is None:
            return 0
        log, held, start, freed = found
        logs.trim(tx, log, start)
        tx.put(PARTITIONS, Partition(held.log, held.topic, held.number, held.bytes - freed))
        return start - log.start


def _retained(topic: Topic) -> bool:
    return topic.retention_seconds is not None or topic.retention_max_bytes is not None


def _horizon(reader: Reader | Tx, topic: Topic, partition: int) -> tuple[Log, Partition, int, int] | None:
    """Where a partition should start and how many bytes that frees, one step at most; None if nothing is due."""
    log, held = reader.get(LOGS, topic.log_of(partition)), reader.get(PARTITIONS, topic.log_of(partition))
    assert log is not None and held is not None
    oldest_ms = None if topic.retention_seconds is None else reader.settled_ms - topic.retention_seconds * 1000
    excess = 0 if topic.retention_max_bytes is None else held.bytes - topic.retention_max_bytes
    if log.start == log.next or (oldest_ms is None and excess <= 0):
        return None
    start, freed = log.start, 0
    until = cold.removable(reader, log)  # messages of a tiered partition stay until they are in cold storage
    step = 1  # usually nothing is due, and the first message shows it
    while start < until:
        for _, following, at_ms, size in segments.outlines(reader, log.id, start, step):
            too_old = oldest_ms is not None and at_ms < oldest_ms
            # A single message that exceeds the limit alone is kept: an empty topic is of no use.
            too_much = freed < excess and following < log.next
            if not (too_old or too_much) or start >= until:
                return (log, held, start, freed) if start > log.start else None
            start, freed = following, freed + size
        if step > 1:
            break
        step = limits.SWEEP_ENTRIES
    return (log, held, start, freed) if start > log.start else None


def _find_trims(reader: Reader, after: int | None) -> DueWork[int]:
    """A page of the topics: examining all of them takes long."""
    topics = list(reader.scan(TOPICS, after=after, limit=limits.SWEEP_STREAMS))
    trims = [
        TrimPartition(topic.id, partition)
        for topic in topics
        if _retained(topic)
        for partition in range(topic.partitions)
        if _horizon(reader, topic, partition) is not None
    ]
    return DueWork(trims, topics[-1].id if len(topics) == limits.SWEEP_STREAMS else None)


def _count_trimmed(metrics: Metrics, messages: int) -> None:
    metrics.messages_trimmed += messages


TASKS = (
    HousekeepingTask("topics.trim", _find_trims, count=_count_trimmed),
    HousekeepingTask("topics.backfill", backfill.find_due, finished=bool),
)

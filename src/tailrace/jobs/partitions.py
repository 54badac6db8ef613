"""More partitions for a topic. Here, above topics, because views have pinned the partitions that they read."""

from __future__ import annotations

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import InUse, Invalid
from tailrace.jobs.job import JOB_POSITIONS, JOBS
from tailrace.log import log as logs
from tailrace.log.cold import COLD_RANGES, ColdRange
from tailrace.storage.engine import Tx
from tailrace.topics.commands import subject
from tailrace.topics.group import TopicChanged
from tailrace.topics.topic import OWNER, PARTITIONS, TOPICS, Partition, Topic, find

_VIEW = "view"


class AddPartitions(Command[Topic], frozen=True):
    """Give a topic more partitions. Messages stay where they are; from now on a key may lead to another partition."""

    permission = Permission.ADMIN

    name: str
    partitions: int  # in all

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.name),)

    def run(self, tx: Tx) -> Topic:
        topic = find(tx, self.name)
        if not topic.partitions <= self.partitions <= limits.PARTITIONS_MAX:
            raise Invalid(
                f"topic {topic.name!r} has {topic.partitions} partitions, which can become up to "
                f"{limits.PARTITIONS_MAX}, not {self.partitions}; partitions are never removed"
            )
        if self.partitions == topic.partitions:
            return topic
        self._check_views(tx, topic)
        before = [topic.log_of(partition) for partition in range(topic.partitions)]
        added: list[int] = [] if topic.added is None else msgspec.msgpack.decode(topic.added)
        tier = tx.get(COLD_RANGES, topic.first_log)
        for partition in range(topic.partitions, self.partitions):
            log = logs.create(tx, f"{OWNER}{topic.id}/{partition}")
            added.append(log.id)
            tx.put(PARTITIONS, Partition(log.id, topic.id, partition, 0))
            if tier is not None:  # tiered like the others, so that retention waits for it
                tx.put(COLD_RANGES, ColdRange(log.id, log.start, log.start, tier.place))
        grown = msgspec.structs.replace(topic, partitions=self.partitions, added=msgspec.msgpack.encode(added))
        tx.put(TOPICS, grown)
        for number in before:
            tx.notify(number, TopicChanged())
        return grown

    def _check_views(self, tx: Tx, topic: Topic) -> None:
        for job in tx.scan(JOBS):
            if job.kind == _VIEW and tx.get(JOB_POSITIONS, job.name, topic.first_log) is not None:
                raise InUse(
                    f"view {job.name!r} reads the {topic.partitions} partitions of topic {topic.name!r}, and would "
                    f"miss the others; DROP MATERIALIZED VIEW {job.name} first, and create it again afterwards"
                )

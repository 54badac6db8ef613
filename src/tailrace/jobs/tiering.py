"""Which logs are tiered to cold storage, and up to which position.

Theory of operation
-------------------
A batch of history is first made durable in cold storage, under the next generation of its Delta table; then the mark of
each log in it is moved here. Only below the mark may the hot log be trimmed. The generation is compared and set: of two
concurrent drivers, one has the next generation, and the other gets an error with the current state. If a driver dies
between the two steps, the generation is in cold storage and not here, and the next driver moves the marks for it.

So a batch that is in cold storage can always be marked. A log that was dropped or detached meanwhile is skipped, and
one whose mark is further, because its history was pruned or it was attached again, is left unchanged. Only a gap is
refused.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Fenced, Invalid, NotFound
from tailrace.jobs import fence
from tailrace.jobs.fence import Ranges
from tailrace.jobs.stage import STREAM, TABLE, Target
from tailrace.log import cold, segments
from tailrace.log import log as logs
from tailrace.log.cold import COLD_RANGES, COLD_TABLES, ColdRange, ColdTable
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, MetaRow
from tailrace.streams import commands as streams
from tailrace.tables import change_stream
from tailrace.topics import topic as topics

_encode: Final = msgspec.msgpack.Encoder().encode
_tiers: Final = msgspec.msgpack.Decoder(ColdRange)
_KINDS: Final = {"tables": "table", "topics": "topic", "streams": "stream"}  # the kinds in cold storage


class History(msgspec.Struct, frozen=True):
    """The logs of a table, topic or stream, and their Delta table in cold storage."""

    place: str
    logs: list[Log]


def history(reader: Reader | Tx, target: Target, label: str | None = None) -> History:
    """The logs of a target that can be tiered."""
    from tailrace.cold.schemas import place_of  # its imports are slow, and rarely needed

    kind, name = _KINDS[target.kind], target.name
    if target.kind == TABLE:
        found = [change_stream.log_of(reader, change_stream.find_stream(reader, name, label))]
    elif target.kind == STREAM:
        found = [streams.log_of(reader, streams.live(reader, name))]
    else:
        topic = topics.find(reader, name)
        name = topic.name
        found = [topics.partition_log(reader, topic, partition) for partition in range(topic.partitions)]
    return History(place_of(kind, name), found)


class AttachTier(Command[list[ColdRange]], frozen=True):
    """Tier a target to cold storage from now on, starting with its own entries in the hot log."""

    permission = Permission.ADMIN

    target: Target
    label: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, tx: Tx) -> list[ColdRange]:
        found = history(tx, self.target, self.label)
        tiers = []
        for log in found.logs:
            tier = tx.get(COLD_RANGES, log.id)
            if tier is None:
                tier = self._resumed(tx, log, found.place)
                tx.put(COLD_RANGES, tier)
            tiers.append(tier)
        if tx.get(COLD_TABLES, found.place) is None:
            tx.put(COLD_TABLES, ColdTable(found.place, 0, tx.now_ms))
        return tiers

    @staticmethod
    def _resumed(tx: Tx, log: Log, place: str) -> ColdRange:
        """The part of the log in cold storage. Entries shared with the log it was forked from belong to that one. A log
        that was tiered before continues at its mark, so that no entry is stored twice; or at its current start, if
        retention has removed more than was tiered: entries before the gap are no longer read."""
        known = _released(tx, log.id)
        tx.delete(META, _detached(log.id))
        start = max(log.start, log.base)
        if known is None or known.place != place or known.tiered < start:
            return ColdRange(log.id, start, start, place)
        return known


class DetachTier(Command[int], frozen=True):
    """Stop tiering a target: its history in cold storage is no longer read, and retention trims the hot log freely. The
    number of logs."""

    permission = Permission.ADMIN

    target: Target
    label: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, tx: Tx) -> int:
        count = 0
        for log in history(tx, self.target, self.label).logs:
            tier = tx.get(COLD_RANGES, log.id)
            if tier is not None:
                tx.delete(COLD_RANGES, log.id)
                tx.put(META, MetaRow(_detached(log.id), _encode(tier)))
                count += 1
        return count


class MoveTiered(Command[int], frozen=True):
    """Mark [from, to) of these logs as durable in cold storage, in this generation of the Delta table; the
    generation."""

    freeing = True
    permission = Permission.ADMIN

    place: str
    generation: int
    ranges: Ranges

    def heavy(self) -> bool:
        return True  # there may be very many logs

    def run(self, tx: Tx) -> int:
        fence.check_ranges(self.ranges)
        place = _place(tx, self.place)
        if self.generation != place.generation + 1:
            raise self._fenced(tx, place, f"generation {self.generation} does not follow {place.generation}")
        for number, (start, end) in self.ranges.items():
            tier, log = tx.get(COLD_RANGES, number), tx.get(LOGS, number)
            released = _released(tx, number) if tier is None else None
            if released is not None and released.place == self.place and start <= released.tiered < end:
                # It was detached meanwhile. If it is attached again, tiering continues after these entries.
                tx.put(META, MetaRow(_detached(number), _encode(msgspec.structs.replace(released, tiered=end))))
            if tier is None or log is None or tier.place != self.place:
                continue
            if start > tier.tiered:
                raise self._fenced(tx, place, f"log {number} is tiered up to {tier.tiered}, and {start} leaves a gap")
            if end <= tier.tiered:
                continue
            if end > log.next or not logs.boundary(tx, log, end):
                raise Invalid(
                    f"[{start}, {end}) of log {number} does not end where an entry does; the log ends at {log.next}",
                    code="INVALID_RANGE",
                )
            tx.put(COLD_RANGES, msgspec.structs.replace(tier, tiered=end))
        tx.put(COLD_TABLES, ColdTable(self.place, self.generation, tx.now_ms))
        return self.generation

    def _fenced(self, tx: Tx, place: ColdTable, why: str) -> Fenced:
        tiered = {number: tier.tiered for number in self.ranges if (tier := tx.get(COLD_RANGES, number)) is not None}
        return Fenced(
            f"{place.name!r} in cold storage is in another state: {why}; start over from the current state",
            facts={"generation": place.generation, "tiered": {str(log): at for log, at in tiered.items()}},
        )


class ForgetCold(Command[dict[int, int]], frozen=True):
    """Record that history below these positions is no longer in cold storage; the new start of each log there."""

    freeing = True
    permission = Permission.ADMIN
    history = True

    place: str
    starts: dict[int, int]

    def heavy(self) -> bool:
        return True  # likewise

    def run(self, tx: Tx) -> dict[int, int]:
        _place(tx, self.place)
        fence.check_ranges({log: (position, position) for log, position in self.starts.items()})
        now: dict[int, int] = {}
        for number, start in self.starts.items():
            tier = tx.get(COLD_RANGES, number)
            if tier is None or tier.place != self.place:
                continue
            if start > tier.tiered:
                raise Invalid(
                    f"log {number} is in cold storage up to {tier.tiered} only; {start} is beyond that",
                    code="INVALID_RANGE",
                )
            now[number] = max(_aligned(tx, tier, start), tier.start)
            tx.put(COLD_RANGES, msgspec.structs.replace(tier, start=now[number]))
        return now


def _place(tx: Tx, name: str) -> ColdTable:
    place = tx.get(COLD_TABLES, name)
    if place is None:
        raise NotFound(
            f"cold storage has no Delta table {name[:200]!r}; attach a table, topic or stream first",
            code="PLACE_NOT_FOUND",
        )
    return place


def _aligned(tx: Tx, tier: ColdRange, position: int) -> int:
    """The end of the entry that `position` is inside of; the position itself, if it is a boundary."""
    log = tx.get(LOGS, tier.log)
    if log is None or position <= tier.start:
        return position
    if position >= log.start:  # it is still in the hot log
        found = segments.outline(tx, log.id, position)
        return log.next if found is None else found[0]
    entry = next(cold.entries(tx, log, position))
    return position if entry.position == position else entry.next


def _released(tx: Tx, log: int) -> ColdRange | None:
    """The part of a log that was in cold storage when it was detached."""
    row = tx.get(META, _detached(log))
    return None if row is None else _tiers.decode(row.value)


def _detached(log: int) -> str:
    return f"detached/{log}"

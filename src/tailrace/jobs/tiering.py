"""Which logs are kept in cold storage, and up to where.

Theory of operation
-------------------
A batch of history is first made durable in cold storage, under the next generation of its place; then the mark of each
log in it is moved here. Only below the mark may the hot log be trimmed. The generation is compared and set: of two
drivers that wrote at once, one has the next generation, and the other is told the present state. If a driver dies
between the two steps, the generation is in cold storage and not here, and the next one moves the marks for it.

So a batch that is in cold storage can always be marked. A log that was dropped or detached meanwhile is passed over,
and one whose mark is further, because its history was pruned or it was attached anew, stays where it is. Only a gap is
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
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.cold import PLACES, TIERS, Place, Tier
from tailrace.log.entry import ENTRIES, LOGS, Log
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, Meta
from tailrace.streams import commands as streams
from tailrace.tables import streams as changes
from tailrace.topics import topic as topics

_encode: Final = msgspec.msgpack.Encoder().encode
_tiers: Final = msgspec.msgpack.Decoder(Tier)
_KINDS: Final = {"tables": "table", "topics": "topic", "streams": "stream"}  # as places are found by


class History(msgspec.Struct, frozen=True):
    """The logs of a table, topic or stream, and where they go in cold storage."""

    place: str
    logs: list[Log]


def history(reader: Reader | Tx, target: Target, label: str | None = None) -> History:
    """What of a target can be tiered."""
    from tailrace.cold.schemas import place_of  # it needs what takes long to import, and few ask

    kind, name = _KINDS[target.kind], target.name
    if target.kind == TABLE:
        found = [changes.log_of(reader, changes.find_stream(reader, name, label))]
    elif target.kind == STREAM:
        found = [streams.log_of(reader, streams.live(reader, name))]
    else:
        topic = topics.find(reader, name)
        name = topic.name
        found = [topics.partition_log(reader, topic, partition) for partition in range(topic.partitions)]
    return History(place_of(kind, name), found)


class AttachTier(Command[list[Tier]], frozen=True):
    """Keep history in cold storage from now on: what is hot and its own is to be moved there."""

    permission = Permission.ADMIN

    target: Target
    label: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, tx: Tx) -> list[Tier]:
        found = history(tx, self.target, self.label)
        tiers = []
        for log in found.logs:
            tier = tx.get(TIERS, log.id)
            if tier is None:
                tier = self._resumed(tx, log, found.place)
                tx.put(TIERS, tier)
            tiers.append(tier)
        if tx.get(PLACES, found.place) is None:
            tx.put(PLACES, Place(found.place, 0, tx.now_ms))
        return tiers

    @staticmethod
    def _resumed(tx: Tx, log: Log, place: str) -> Tier:
        """What of the log is in cold storage. What it shares with the log it was forked from is that one's. A log that
        was tiered before goes on at its mark, so that nothing is there twice; or where it starts now, if retention has
        taken more than was tiered: what came before the gap is no longer read."""
        known = _released(tx, log.id)
        tx.delete(META, _detached(log.id))
        start = max(log.start, log.base)
        if known is None or known.place != place or known.tiered < start:
            return Tier(log.id, start, start, place)
        return known


class DetachTier(Command[int], frozen=True):
    """Keep history in cold storage no more: what is there is no longer read, and retention trims the hot log freely;
    how many logs that was."""

    permission = Permission.ADMIN

    target: Target
    label: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def run(self, tx: Tx) -> int:
        count = 0
        for log in history(tx, self.target, self.label).logs:
            tier = tx.get(TIERS, log.id)
            if tier is not None:
                tx.delete(TIERS, log.id)
                tx.put(META, Meta(_detached(log.id), _encode(tier)))
                count += 1
        return count


class MoveTiered(Command[int], frozen=True):
    """Note that [from, to) of these logs is durable in cold storage since that generation of the place; that."""

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
            tier, log = tx.get(TIERS, number), tx.get(LOGS, number)
            released = _released(tx, number) if tier is None else None
            if released is not None and released.place == self.place and start <= released.tiered < end:
                # It was detached meanwhile. Whoever attaches it again goes on after what is in cold storage.
                tx.put(META, Meta(_detached(number), _encode(msgspec.structs.replace(released, tiered=end))))
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
            tx.put(TIERS, msgspec.structs.replace(tier, tiered=end))
        tx.put(PLACES, Place(self.place, self.generation, tx.now_ms))
        return self.generation

    def _fenced(self, tx: Tx, place: Place, why: str) -> Fenced:
        tiered = {number: tier.tiered for number in self.ranges if (tier := tx.get(TIERS, number)) is not None}
        return Fenced(
            f"cold storage at {place.name!r} is elsewhere: {why}; begin again from the present state",
            facts={"generation": place.generation, "tiered": {str(log): at for log, at in tiered.items()}},
        )


class ForgetCold(Command[dict[int, int]], frozen=True):
    """Note that history below these positions is no longer in cold storage; from where each log is there now."""

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
            tier = tx.get(TIERS, number)
            if tier is None or tier.place != self.place:
                continue
            if start > tier.tiered:
                raise Invalid(
                    f"log {number} is in cold storage up to {tier.tiered} only; {start} cannot be forgotten there",
                    code="INVALID_RANGE",
                )
            now[number] = max(_aligned(tx, tier, start), tier.start)
            tx.put(TIERS, msgspec.structs.replace(tier, start=now[number]))
        return now


def _place(tx: Tx, name: str) -> Place:
    place = tx.get(PLACES, name)
    if place is None:
        raise NotFound(
            f"cold storage has no place {name[:200]!r}; attach a table, topic or stream to it first",
            code="PLACE_NOT_FOUND",
        )
    return place


def _aligned(tx: Tx, tier: Tier, position: int) -> int:
    """Where the entry ends that `position` lies inside of; the position, if it lies between two."""
    log = tx.get(LOGS, tier.log)
    if log is None or position <= tier.start:
        return position
    if position >= log.start:  # it is hot still
        found = tx.values(ENTRIES, "position", log.id, start=position, limit=1)
        return int(found[0][0]) if found else log.next
    entry = next(cold.entries(tx, log, position))
    return position if entry.position == position else entry.next


def _released(tx: Tx, log: int) -> Tier | None:
    """What was in cold storage of a log when it was detached."""
    row = tx.get(META, _detached(log))
    return None if row is None else _tiers.decode(row.value)


def _detached(log: int) -> str:
    return f"detached/{log}"

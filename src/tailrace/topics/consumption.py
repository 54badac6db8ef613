"""Who has acknowledged which messages, and when: the recent past of each group, for people who look.

Theory of operation
-------------------
A group needs no such record, so nothing waits for it. An acknowledgement leaves a notice (`Acknowledged`) of the
offsets that it covers; an `AckRecorder` collects the notices in memory, and housekeeping writes them about once in a
second, many to a transaction. What was acknowledged less than a round before a crash is missing from the record.

Ranges of one consumer that follow one another within JOIN_MS are one range. Ranges are stored in numbered rows of
ACK_RANGES_IN_ROW each, the last ACK_ROWS of them for each group and partition: a group that is idle loses nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable
from tailrace.topics.group import Acknowledged
from tailrace.topics.topic import GROUPS

JOIN_MS: Final = 1_000  # ranges of one consumer that are joined; the time is that of the first


class AckRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [first, end) that a consumer has acknowledged; `by`: the principal."""

    first: int
    end: int
    at_ms: int
    consumer: str
    by: str


class ConsumptionRow(msgspec.Struct, frozen=True):
    log: int
    name: str  # of the group
    number: int
    ranges: bytes  # MessagePack of list[AckRange], in the order in which they were acknowledged


class GroupAcks(msgspec.Struct, frozen=True):
    """Ranges of one group in one partition."""

    log: int
    group: str
    ranges: tuple[AckRange, ...]


CONSUMPTION = StorageTable("consumption", ConsumptionRow, key=("log", "name", "number"))
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[AckRange]).decode


# -- writing


class RecordAcks(Command[None], frozen=True):
    """Add acknowledgements to the record of their groups; those of groups that are gone are left out."""

    permission = Permission.ADMIN

    acks: tuple[GroupAcks, ...]

    def run(self, tx: Tx) -> None:
        for each in self.acks:
            if tx.get(GROUPS, each.log, each.group) is not None:
                _record(tx, each)


def _record(tx: Tx, acks: GroupAcks) -> None:
    last = next(iter(list(tx.scan(CONSUMPTION, acks.log, acks.group, reverse=True, limit=1))), None)
    number = 0 if last is None else last.number
    held = joined([*([] if last is None else _decode(last.ranges)), *acks.ranges])
    size = limits.ACK_RANGES_IN_ROW
    rows = [held[at : at + size] for at in range(0, len(held), size)]
    for at, ranges in enumerate(rows):
        tx.put(CONSUMPTION, ConsumptionRow(acks.log, acks.group, number + at, _encode(ranges)))
    kept = number + len(rows) - limits.ACK_ROWS
    if kept > 0:
        for (old,) in tx.values(CONSUMPTION, "number", acks.log, acks.group, limit=len(rows)):
            if old < kept:
                tx.delete(CONSUMPTION, acks.log, acks.group, old)


def joined(ranges: Iterable[AckRange]) -> list[AckRange]:
    """The ranges, with those joined that one consumer has acknowledged one after the other."""
    found: list[AckRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if (
            last is not None
            and last.end == each.first
            and last.consumer == each.consumer
            and last.by == each.by
            and 0 <= each.at_ms - last.at_ms < JOIN_MS
        ):
            found[-1] = AckRange(last.first, each.end, last.at_ms, last.consumer, last.by)
        else:
            found.append(each)
    return found


def forget(tx: Tx, groups: Iterable[tuple[int, str]]) -> None:
    """Remove the records of groups, each in a partition. All are looked up before the first is removed: a scan of rows
    that a transaction has changed writes them to the database first."""
    recorded = [
        (log, group, number)
        for log, group in groups
        for (number,) in tx.values(CONSUMPTION, "number", log, group, limit=2 * limits.ACK_ROWS)
    ]
    for log, group, number in recorded:
        tx.delete(CONSUMPTION, log, group, number)


class AckRecorder:
    """Collects acknowledgements until they are written. `note` is called by the thread that publishes notices, `flush`
    by any other."""

    def __init__(self, execute: Callable[[Command[None]], None]) -> None:
        self._execute = execute
        self._noted: deque[Acknowledged] = deque(maxlen=limits.ACKS_NOTED)  # beyond that, the oldest are dropped

    def note(self, notices: list[Any]) -> None:
        """The notices of a commit."""
        self._noted += [each for each in notices if type(each) is Acknowledged]

    def flush(self) -> None:
        """Write what was collected so far."""
        for _ in range(limits.ACKS_NOTED // limits.ACKS_WRITTEN + 1):
            some = self._taken()
            if not some:
                return
            by_group: dict[tuple[int, str], list[AckRange]] = {}
            for each in some:
                ranges = by_group.setdefault((each.log, each.group), [])
                ranges += [AckRange(first, end, each.at_ms, each.consumer, each.by) for first, end in each.ranges]
            acks = [GroupAcks(log, group, tuple(joined(ranges))) for (log, group), ranges in by_group.items()]
            for at in range(0, len(acks), limits.ACK_GROUPS_WRITTEN):
                self._execute(RecordAcks(tuple(acks[at : at + limits.ACK_GROUPS_WRITTEN])))

    def _taken(self) -> list[Acknowledged]:
        some: list[Acknowledged] = []
        while self._noted and len(some) < limits.ACKS_WRITTEN:
            try:
                some.append(self._noted.popleft())
            except IndexError:  # another thread was faster
                break
        return some


# -- reading


def acknowledgements(reader: Reader | Tx, log: int, group: str, limit: int | None = None) -> Iterator[AckRange]:
    """What was recorded of a group in a partition, the newest first; `limit`: so many, or some more."""
    rows = None if limit is None else 2 + limit // limits.ACK_RANGES_IN_ROW  # the last one may have few
    for row in list(reader.scan(CONSUMPTION, log, group, reverse=True, limit=rows)):
        yield from reversed(_decode(row.ranges))

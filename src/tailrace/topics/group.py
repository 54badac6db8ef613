"""Consumer groups: which consumer holds which messages of a partition, and which are delivered next. Pure rules.

Theory of operation
-------------------
A group has a *cursor*: the first offset that was never delivered to it. Below the cursor every offset is either
acknowledged or in one of the group's *ranges*, which are disjoint, in order, and each

- *held*: leased to a consumer until a time, or
- *free*: its lease has ended, or it was returned (nack) and the delay has passed; to be delivered again.

Consuming takes free ranges, lowest first, then offsets from the cursor on; they become ranges with a new lease.
Acknowledging removes ranges. So the *floor*, below which all messages are acknowledged, is the start of the first
range, or the cursor; nothing else is stored, and an acknowledgement out of order cannot cover messages that another
consumer holds.

A consumer whose lease has ended may still acknowledge or extend until the messages are delivered to another consumer.
Times come from a clock that never goes back while the process lives. After a restart it may; a lease that would then
last longer than its duration counts as ended, since delivering once too often is safe and once too few is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Conflict, Invalid, TooMany

TOO_MANY_RANGES: Final = "TOO_MANY_RANGES"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"


class StartPoint(msgspec.Struct, frozen=True):
    """Where a group begins: `at` is an offset, or milliseconds since 1970."""

    kind: str = EARLIEST
    at: int = 0


class LeasedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [first, end) that were delivered and are not acknowledged."""

    first: int
    end: int
    attempt: int  # the number of deliveries
    consumer: str  # the holder, or the last one; "" is a consumer too
    lease: int  # 0: returned
    until_ms: int  # the end of the lease, or of the delay
    span_ms: int  # the duration of the lease

    def free(self, now_ms: int) -> bool:
        """Whether it may be delivered again: the lease has ended, or was made by a clock that was far ahead. A little
        more than its duration may be left: this process's clock may be behind that of the one that made it."""
        left = self.until_ms - now_ms
        return left <= 0 or left > self.span_ms + limits.LEASE_SKEW_MS

    def held_by(self, consumer: str, lease: int | None) -> bool:
        """Whether this consumer may still acknowledge, extend or return it."""
        return self.lease != 0 and self.consumer == consumer and (lease is None or self.lease == lease)


class GroupMoved(msgspec.Struct, frozen=True, gc=False):
    """The notice that a group has changed: whether it has messages to deliver now, or else when. None: the change has
    made none deliverable, and says nothing about others."""

    group: str
    deliverable: bool | None
    wake_ms: int | None


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """The notice of what a consumer has acknowledged: ranges [first, end) of a partition, for the record."""

    log: int
    group: str
    ranges: tuple[tuple[int, int], ...]
    at_ms: int
    consumer: str
    by: str


class TopicChanged(msgspec.Struct, frozen=True, gc=False):
    """The notice that an alias was moved from a topic, or that a topic has more partitions: waiting consumers look
    again at which logs they wait for."""


class GroupProgress(msgspec.Struct, frozen=True):
    """The progress of a group in a partition: its cursor and its ranges."""

    cursor: int
    ranges: tuple[LeasedRange, ...] = ()

    @property
    def floor(self) -> int:
        """The first offset that is not acknowledged."""
        return self.ranges[0].first if self.ranges else self.cursor


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[LeasedRange, ...])
NOTHING: Final = _encode(())


def packed(ranges: Sequence[LeasedRange]) -> bytes:
    return _encode(ranges) if ranges else NOTHING


def unpacked(body: bytes) -> tuple[LeasedRange, ...]:
    return () if body == NOTHING else _decoder.decode(body)


# -- consuming


def overtaken(progress: GroupProgress, start: int, now_ms: int) -> tuple[GroupProgress, int]:
    """The progress after retention has removed messages below `start`, and how many of them the group has lost.

    Messages that a consumer holds now are not lost yet; they are when the lease ends."""
    lost = max(0, start - progress.cursor)
    cursor = max(progress.cursor, start)
    if not progress.ranges or progress.ranges[0].first >= start:
        return (GroupProgress(cursor, progress.ranges), lost) if lost else (progress, 0)
    kept: list[LeasedRange] = []
    for held in progress.ranges:
        if held.first >= start or not held.free(now_ms):
            kept.append(held)
        elif held.end <= start:
            lost += held.end - held.first
        else:
            lost += start - held.first
            kept.append(msgspec.structs.replace(held, first=start))
    return GroupProgress(cursor, tuple(kept)), lost


def deliverable(progress: GroupProgress, tail: int, now_ms: int) -> bool:
    """Whether there are messages to deliver now."""
    return progress.cursor < tail or any(held.free(now_ms) for held in progress.ranges)


def wake_ms(progress: GroupProgress, now_ms: int) -> int | None:
    """When the next lease or delay ends."""
    return min((held.until_ms for held in progress.ranges if not held.free(now_ms)), default=None)


def offers(progress: GroupProgress, tail: int, now_ms: int, limit: int) -> list[LeasedRange]:
    """The ranges to deliver next, lowest offset first, `limit` messages at most. `attempt` is the deliveries so far."""
    found: list[LeasedRange] = []
    for held in progress.ranges:
        if limit <= 0:
            return found
        if held.free(now_ms):
            taken = held if held.end - held.first <= limit else msgspec.structs.replace(held, end=held.first + limit)
            found.append(taken)
            limit -= taken.end - taken.first
    if limit > 0 and progress.cursor < tail:
        found.append(LeasedRange(progress.cursor, min(tail, progress.cursor + limit), 0, "", 0, 0, 0))
    return found


def taken(
    progress: GroupProgress, leased: Sequence[LeasedRange], consumer: str, lease: int, until_ms: int, span_ms: int
) -> GroupProgress:
    """The progress after `leased`, a part of the offers, was delivered to a consumer."""
    cursor = progress.cursor
    ranges = progress.ranges
    for each in leased:
        ranges = without(ranges, each.first, each.end)
        cursor = max(cursor, each.end)
    added = [LeasedRange(each.first, each.end, each.attempt + 1, consumer, lease, until_ms, span_ms) for each in leased]
    if len(added) > 1:
        added = joined(added)
    ranges = tuple(sorted((*ranges, *added), key=_first)) if ranges else tuple(added)
    return GroupProgress(cursor, bounded(ranges, until_ms - span_ms))


def _first(held: LeasedRange) -> int:
    return held.first


def without(ranges: tuple[LeasedRange, ...], first: int, end: int) -> tuple[LeasedRange, ...]:
    """The ranges with [first, end) cut out."""
    kept: list[LeasedRange] = []
    for held in ranges:
        if held.end <= first or held.first >= end:
            kept.append(held)
            continue
        if held.first < first:
            kept.append(msgspec.structs.replace(held, end=first))
        if held.end > end:
            kept.append(msgspec.structs.replace(held, first=end))
    return tuple(kept)


def joined(ranges: Sequence[LeasedRange]) -> list[LeasedRange]:
    """The ranges, with adjacent ones merged that differ only in their offsets."""
    kept: list[LeasedRange] = []
    for each in ranges:
        last = kept[-1] if kept else None
        if (
            last is not None
            and last.end == each.first
            and msgspec.structs.replace(each, first=last.first) == (msgspec.structs.replace(last, end=each.end))
        ):
            kept[-1] = msgspec.structs.replace(last, end=each.end)
        else:
            kept.append(each)
    return kept


def bounded(ranges: tuple[LeasedRange, ...], now_ms: int) -> tuple[LeasedRange, ...]:
    """The ranges, GROUP_RANGES_MAX at most. If there are more, adjacent ones that no consumer holds are merged: free
    ones, and returned ones, which are then delivered with the first of them."""
    if len(ranges) <= limits.GROUP_RANGES_MAX:
        return ranges
    kept: list[LeasedRange] = []
    for each in ranges:
        if each.lease and not each.free(now_ms):
            kept.append(each)
            continue
        last = kept[-1] if kept else None
        if last is not None and not last.lease and last.end == each.first and last.attempt == each.attempt:
            sooner = last if last.until_ms <= each.until_ms else each
            kept[-1] = LeasedRange(last.first, each.end, each.attempt, "", 0, sooner.until_ms, sooner.span_ms)
        else:
            kept.append(msgspec.structs.replace(each, consumer="", lease=0))
    if len(kept) > limits.GROUP_RANGES_MAX:
        raise TooMany(
            f"the group has {len(kept)} separate ranges of messages that are not acknowledged, and may have "
            f"{limits.GROUP_RANGES_MAX}; acknowledge some, or consume more at a time",
            code=TOO_MANY_RANGES,
        )
    return tuple(kept)


# -- settling


def acknowledged(progress: GroupProgress, consumer: str, lease: int | None, upto: int) -> tuple[GroupProgress, int]:
    """The progress after a consumer acknowledged its messages up to and including an offset, and their number."""
    if upto >= progress.cursor:
        raise Invalid(
            f"offset {upto} was not delivered to the group yet, which is at {progress.cursor}; acknowledge an "
            "offset that was delivered",
            code="NOT_DELIVERED",
        )
    kept: list[LeasedRange] = []
    count = 0
    for held in progress.ranges:
        if held.first > upto or not held.held_by(consumer, lease):
            kept.append(held)
            continue
        end = min(held.end, upto + 1)
        count += end - held.first
        if end < held.end:
            kept.append(msgspec.structs.replace(held, first=end))
    return (GroupProgress(progress.cursor, tuple(kept)) if count else progress), count


def removed(before: Sequence[LeasedRange], after: Sequence[LeasedRange]) -> tuple[tuple[int, int], ...]:
    """The ranges [first, end) of `before` that are not in `after`; ACK_RANGES_NOTED at most, and then there may be
    more."""
    if len(before) == 1 and not after:
        return ((before[0].first, before[0].end),)
    found: list[tuple[int, int]] = []
    at = 0
    for held in before:
        first = held.first
        while at < len(after) and after[at].first < held.end:
            if first < after[at].first:
                _extend(found, first, after[at].first)
            first = max(first, after[at].end)
            if first > held.end:  # it was joined with the next one
                break
            at += 1
        if first < held.end:
            _extend(found, first, held.end)
        if len(found) > limits.ACK_RANGES_NOTED:
            break
    return tuple(found[: limits.ACK_RANGES_NOTED])


def _extend(found: list[tuple[int, int]], first: int, end: int) -> None:
    if found and found[-1][1] == first:
        found[-1] = (found[-1][0], end)
    else:
        found.append((first, end))


def acknowledged_each(
    progress: GroupProgress, consumer: str, lease: int | None, offsets: Sequence[int], now_ms: int
) -> tuple[GroupProgress, int]:
    """The progress after a consumer acknowledged its messages at these offsets, and their number. Those that it does
    not hold, or has acknowledged before, are left alone."""
    wanted = sorted(set(offsets))
    if wanted and wanted[-1] >= progress.cursor:
        raise Invalid(
            f"offset {wanted[-1]} was not delivered to the group yet, which is at {progress.cursor}; acknowledge "
            "offsets that were delivered",
            code="NOT_DELIVERED",
        )
    kept: list[LeasedRange] = []
    count = index = 0
    for held in progress.ranges:
        while index < len(wanted) and wanted[index] < held.first:
            index += 1
        if not held.held_by(consumer, lease):
            kept.append(held)
            continue
        first = held.first
        while index < len(wanted) and wanted[index] < held.end:
            offset = wanted[index]
            if first < offset:
                kept.append(msgspec.structs.replace(held, first=first, end=offset))
            first = offset + 1
            count += 1
            index += 1
        if first < held.end:
            kept.append(held if first == held.first else msgspec.structs.replace(held, first=first))
    return (GroupProgress(progress.cursor, bounded(tuple(kept), now_ms)) if count else progress), count


def settled(
    progress: GroupProgress, consumer: str, lease: int | None, offsets: Sequence[tuple[int, int]], now_ms: int
) -> tuple[GroupProgress, int]:
    """The progress after a consumer acknowledged exactly these messages, each range from an offset up to and including
    another, and their number. All of them must be held by the consumer now: the lease is a fence."""
    wanted = sorted(offsets)
    for (_, last), (first, _) in pairwise(wanted):
        if first <= last:
            raise Invalid(f"offset {first} is acknowledged twice; name each offset once")
    kept: list[LeasedRange] = []
    count = at = 0
    for held in progress.ranges:
        first = held.first
        while at < len(wanted) and wanted[at][0] < held.end and wanted[at][1] >= first:
            low, high = max(first, wanted[at][0]), min(held.end, wanted[at][1] + 1)
            if not held.held_by(consumer, lease) or held.free(now_ms):
                raise _lost(consumer)
            count += high - low
            if first < low:
                kept.append(msgspec.structs.replace(held, first=first, end=low))
            first = high
            if wanted[at][1] >= held.end:
                break
            at += 1
        if first < held.end:
            kept.append(held if first == held.first else msgspec.structs.replace(held, first=first))
    if count != sum([last + 1 - first for first, last in wanted]):
        raise _lost(consumer)
    return GroupProgress(progress.cursor, bounded(tuple(kept), now_ms)), count


def _lost(consumer: str) -> Conflict:
    return Conflict(
        f"consumer {consumer!r} does not hold all of these messages now: its lease has ended, they were acknowledged, "
        "or delivered to another consumer; nothing was written: consume again",
        code="LEASE_LOST",
    )


def extended(
    progress: GroupProgress, consumer: str, lease: int | None, until_ms: int, span_ms: int
) -> tuple[GroupProgress, int]:
    """The progress after a consumer's leases were extended until a time, and the number of messages."""
    count = 0
    ranges: list[LeasedRange] = []
    for held in progress.ranges:
        if held.held_by(consumer, lease):
            count += held.end - held.first
            held = msgspec.structs.replace(held, until_ms=until_ms, span_ms=span_ms)
        ranges.append(held)
    if not count:
        raise Conflict(
            f"consumer {consumer!r} no longer holds these messages: they were acknowledged, or delivered to another "
            "consumer; consume again",
            code="LEASE_LOST",
        )
    return GroupProgress(progress.cursor, tuple(ranges)), count


def returned(
    progress: GroupProgress,
    consumer: str,
    lease: int | None,
    first: int,
    end: int,
    now_ms: int,
    delay_ms: int,
    *,
    undelivered: bool = False,
) -> tuple[GroupProgress, int]:
    """The progress after a consumer returned its messages in [first, end), and their number. `undelivered`: it never
    received them, so that this does not count as an attempt."""
    count = 0
    ranges: list[LeasedRange] = []
    for held in progress.ranges:
        low, high = max(held.first, first), min(held.end, end)
        if low >= high or not held.held_by(consumer, lease):
            ranges.append(held)
            continue
        count += high - low
        if held.first < low:
            ranges.append(msgspec.structs.replace(held, end=low))
        ranges.append(LeasedRange(low, high, held.attempt - undelivered, "", 0, now_ms + delay_ms, delay_ms))
        if high < held.end:
            ranges.append(msgspec.structs.replace(held, first=high))
    return GroupProgress(progress.cursor, bounded(tuple(joined(ranges)), now_ms)), count

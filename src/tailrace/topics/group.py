"""Consumer groups: who holds which messages of a partition, and what may be delivered next. Pure rules.

Theory of operation
-------------------
A group has a *cursor*: the first offset that was never delivered to it. Below the cursor every offset is either
acknowledged or in one of the group's *ranges*, which are disjoint, in order, and each

- *held*: leased to a consumer until a time, or
- *free*: its lease has run out, or it was given back (nack) and the delay has passed; to be delivered again.

To consume is to take free ranges, lowest first, then what lies from the cursor on; what is taken becomes ranges with a
new lease. To acknowledge is to remove. So the *floor*, below which all is acknowledged, is where the first range
begins, or the cursor; nothing else is kept, and an acknowledgement out of order cannot cover what another consumer
holds.

A consumer whose lease ran out may still acknowledge or extend until somebody else has taken the messages: it was the
last to have them. Times are of a clock that never goes back while the process lives. Across a restart it may; a lease
that would then last longer than it was given for counts as run out, for a delivery too many is safe and one too few is
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tailrace.errors import Conflict, Invalid, TooMany

TOO_MANY_RANGES: Final = "TOO_MANY_RANGES"
RANGES_MAX: Final = 2_000  # of a group in a partition: all of them are looked at by each consume and ack
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"


class Start(msgspec.Struct, frozen=True):
    """Where to begin: `at` is an offset, or milliseconds since 1970."""

    kind: str = EARLIEST
    at: int = 0


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets [first, end) that were delivered and not acknowledged."""

    first: int
    end: int
    attempt: int  # how often they were delivered
    consumer: str  # who has them, or had them last; "" is a consumer too
    lease: int  # 0: given back
    until_ms: int  # the lease runs out, or the delay ends
    span_ms: int  # how long it was given for

    def free(self, now_ms: int) -> bool:
        """Whether it may be delivered again."""
        left = self.until_ms - now_ms
        return left <= 0 or left > self.span_ms

    def held_by(self, consumer: str, lease: int | None) -> bool:
        """Whether this consumer may still settle it."""
        return self.lease != 0 and self.consumer == consumer and (lease is None or self.lease == lease)


class Moved(msgspec.Struct, frozen=True, gc=False):
    """The notice that a group has changed: whether it has something to deliver now, or else when."""

    group: str
    deliverable: bool
    wake_ms: int | None


class Place(msgspec.Struct, frozen=True):
    """How far a group has come."""

    cursor: int
    ranges: tuple[Range, ...] = ()

    @property
    def floor(self) -> int:
        """The first offset that is not acknowledged."""
        return self.ranges[0].first if self.ranges else self.cursor


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[Range, ...])
NOTHING: Final = _encode(())


def packed(ranges: Sequence[Range]) -> bytes:
    return _encode(ranges) if ranges else NOTHING


def unpacked(body: bytes) -> tuple[Range, ...]:
    return () if body == NOTHING else _decoder.decode(body)


# -- consuming


def overtaken(place: Place, start: int, now_ms: int) -> tuple[Place, int]:
    """The place after retention has removed what lies below `start`, and how many messages the group has lost by that.

    What a consumer holds at this moment is in its hands and not lost yet; when the lease runs out, it is."""
    lost = max(0, start - place.cursor)
    cursor = max(place.cursor, start)
    if not place.ranges or place.ranges[0].first >= start:
        return (Place(cursor, place.ranges), lost) if lost else (place, 0)
    kept: list[Range] = []
    for held in place.ranges:
        if held.first >= start or not held.free(now_ms):
            kept.append(held)
        elif held.end <= start:
            lost += held.end - held.first
        else:
            lost += start - held.first
            kept.append(msgspec.structs.replace(held, first=start))
    return Place(cursor, tuple(kept)), lost


def deliverable(place: Place, tail: int, now_ms: int) -> bool:
    """Whether there is something to deliver now."""
    return place.cursor < tail or any(held.free(now_ms) for held in place.ranges)


def wake_ms(place: Place, now_ms: int) -> int | None:
    """When the next lease or delay runs out."""
    return min((held.until_ms for held in place.ranges if not held.free(now_ms)), default=None)


def offers(place: Place, tail: int, now_ms: int, limit: int) -> list[Range]:
    """What may be delivered next, lowest offset first, `limit` messages at most. `attempt` is of deliveries so far."""
    found: list[Range] = []
    for held in place.ranges:
        if limit <= 0:
            return found
        if held.free(now_ms):
            taken = held if held.end - held.first <= limit else msgspec.structs.replace(held, end=held.first + limit)
            found.append(taken)
            limit -= taken.end - taken.first
    if limit > 0 and place.cursor < tail:
        found.append(Range(place.cursor, min(tail, place.cursor + limit), 0, "", 0, 0, 0))
    return found


def taken(place: Place, given: Sequence[Range], consumer: str, lease: int, until_ms: int, span_ms: int) -> Place:
    """The place after `given`, a part of what was offered, was delivered to a consumer."""
    cursor = place.cursor
    ranges = place.ranges
    for each in given:
        ranges = without(ranges, each.first, each.end)
        cursor = max(cursor, each.end)
    added = [Range(each.first, each.end, each.attempt + 1, consumer, lease, until_ms, span_ms) for each in given]
    if len(added) > 1:
        added = joined(added)
    ranges = tuple(sorted((*ranges, *added), key=_first)) if ranges else tuple(added)
    return Place(cursor, bounded(ranges, until_ms - span_ms))


def _first(held: Range) -> int:
    return held.first


def without(ranges: tuple[Range, ...], first: int, end: int) -> tuple[Range, ...]:
    """The ranges with [first, end) cut out."""
    kept: list[Range] = []
    for held in ranges:
        if held.end <= first or held.first >= end:
            kept.append(held)
            continue
        if held.first < first:
            kept.append(msgspec.structs.replace(held, end=first))
        if held.end > end:
            kept.append(msgspec.structs.replace(held, first=end))
    return tuple(kept)


def joined(ranges: Sequence[Range]) -> list[Range]:
    """The ranges with neighbours made one that differ in nothing but their place."""
    kept: list[Range] = []
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


def bounded(ranges: tuple[Range, ...], now_ms: int) -> tuple[Range, ...]:
    """The ranges, of which there may be only so many. Before there are too many, neighbours that are nobody's are made
    one: those that are free, and those that were given back, to be delivered with the first of them."""
    if len(ranges) <= RANGES_MAX:
        return ranges
    kept: list[Range] = []
    for each in ranges:
        if each.lease and not each.free(now_ms):
            kept.append(each)
            continue
        last = kept[-1] if kept else None
        if last is not None and not last.lease and last.end == each.first and last.attempt == each.attempt:
            sooner = last if last.until_ms <= each.until_ms else each
            kept[-1] = Range(last.first, each.end, each.attempt, "", 0, sooner.until_ms, sooner.span_ms)
        else:
            kept.append(msgspec.structs.replace(each, consumer="", lease=0))
    if len(kept) > RANGES_MAX:
        raise TooMany(
            f"the group has {len(kept)} separate ranges of messages that are not acknowledged, and may have "
            f"{RANGES_MAX}; acknowledge some, or consume more at a time",
            code=TOO_MANY_RANGES,
        )
    return tuple(kept)


# -- settling


def acknowledged(place: Place, consumer: str, lease: int | None, upto: int) -> tuple[Place, int]:
    """The place after a consumer acknowledged what it holds up to and including an offset, and how much that was."""
    if upto >= place.cursor:
        raise Invalid(
            f"offset {upto} was not delivered to the group yet, which is at {place.cursor}; acknowledge an offset that "
            "was received",
            code="NOT_DELIVERED",
        )
    kept: list[Range] = []
    count = 0
    for held in place.ranges:
        if held.first > upto or not held.held_by(consumer, lease):
            kept.append(held)
            continue
        end = min(held.end, upto + 1)
        count += end - held.first
        if end < held.end:
            kept.append(msgspec.structs.replace(held, first=end))
    return (Place(place.cursor, tuple(kept)) if count else place), count


def extended(place: Place, consumer: str, lease: int | None, until_ms: int, span_ms: int) -> tuple[Place, int]:
    """The place after a consumer's leases were made to last until a time, and how many messages that is."""
    count = 0
    ranges: list[Range] = []
    for held in place.ranges:
        if held.held_by(consumer, lease):
            count += held.end - held.first
            held = msgspec.structs.replace(held, until_ms=until_ms, span_ms=span_ms)
        ranges.append(held)
    if not count:
        raise Conflict(
            f"consumer {consumer!r} holds nothing of that any more: it was acknowledged, or delivered to another; "
            "consume again",
            code="LEASE_LOST",
        )
    return Place(place.cursor, tuple(ranges)), count


def returned(
    place: Place,
    consumer: str,
    lease: int | None,
    first: int,
    end: int,
    now_ms: int,
    delay_ms: int,
    *,
    undelivered: bool = False,
) -> tuple[Place, int]:
    """The place after a consumer gave back what it holds of [first, end), and how much that was. `undelivered`: it
    never got them, so that this was no attempt."""
    count = 0
    ranges: list[Range] = []
    for held in place.ranges:
        low, high = max(held.first, first), min(held.end, end)
        if low >= high or not held.held_by(consumer, lease):
            ranges.append(held)
            continue
        count += high - low
        if held.first < low:
            ranges.append(msgspec.structs.replace(held, end=low))
        ranges.append(Range(low, high, held.attempt - undelivered, "", 0, now_ms + delay_ms, delay_ms))
        if high < held.end:
            ranges.append(msgspec.structs.replace(held, first=high))
    return Place(place.cursor, bounded(tuple(joined(ranges)), now_ms)), count

"""What is wrong with a history of requests and their responses: pure functions, which know no server.

Theory of operation
-------------------
A client notes of every operation when it was sent, when the response was there, and what became of it: `DONE`,
`REFUSED` (the response says that nothing was written, and nothing will be) or `UNKNOWN` (no response, or one that says
so). An operation takes effect at one moment between its begin and its end. One with an unknown outcome takes effect at
any time after its begin, or never: it has no end.

*Logs* (`log_violations`): in the order in which a log is read, an operation that had ended before another began comes
before it. So an entry may not have ended before the latest begin of all entries before it: one pass is enough.

*Registers* (`register_violations`): every value is written once, so a read tells which write it has seen. Then a
history is linearizable if and only if (Gibbons and Korach, 1997) the *zones* of its values fit: that of a value lies
between the first end and the last begin of its write and its reads. If the first end comes first, the value must be in
the register in all of that time (a *forward* zone), and no two of these overlap. Otherwise (a *backward* zone) a moment
within it is enough, so it must not lie inside a forward zone of another value.

*Conditional writes* (`Swap`) have seen the value that they have replaced: of two that replaced the same one, the first
is a lost update.

All times are of one clock. Each violation is a line that names the operation.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import zip_longest
from typing import Final, NamedTuple

INITIAL: Final = "(initial)"  # the value of a register that nobody has written


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN


class Write(NamedTuple):
    """An operation that leaves a value of its own: an append, a message, or a value of a register."""

    value: str
    began_s: float
    ended_s: float
    outcome: Outcome

    @property
    def until_s(self) -> float:
        return math.inf if self.outcome is UNKNOWN else self.ended_s


class Read(NamedTuple):
    """A value that was seen in a register."""

    value: str
    began_s: float
    ended_s: float


class Swap(NamedTuple):
    """A write on the condition that the register has the value `seen`."""

    seen: str
    write: Write


class Delivery(NamedTuple):
    """A message that was handed to a member of a group."""

    value: str
    began_s: float  # when it asked
    ended_s: float


class Acknowledgement(NamedTuple):
    value: str
    began_s: float
    ended_s: float
    outcome: Outcome


# -- logs


def log_violations(name: str, writes: Sequence[Write], found: Sequence[str]) -> list[str]:
    """Of a log as it was read: each acknowledged entry once, the refused ones not, the unknown ones at most once, none
    that nobody wrote, and all in the order of time."""
    wrong: list[str] = []
    by_value = {each.value: each for each in writes}
    assert len(by_value) == len(writes), f"{name}: a value was written twice by the test"
    for value, count in Counter(found).items():
        write = by_value.get(value)
        if write is None:
            wrong.append(f"{name}: {value} is there, and nobody has written it")
        elif write.outcome is REFUSED:
            wrong.append(f"{name}: {value} was refused, and is there")
        if count > 1:
            wrong.append(f"{name}: {value} is there {count} times")
    there = set(found)
    wrong += [
        f"{name}: {each.value} was acknowledged, and is lost"
        for each in writes
        if each.outcome is DONE and each.value not in there
    ]
    return wrong + _out_of_order(name, [by_value[value] for value in found if value in by_value])


def _out_of_order(name: str, entries: Sequence[Write]) -> list[str]:
    wrong: list[str] = []
    latest: Write | None = None
    for each in entries:
        if latest is not None and each.until_s < latest.began_s:
            wrong.append(f"{name}: {each.value} is behind {latest.value}, which was sent after its acknowledgement")
        if latest is None or each.began_s > latest.began_s:
            latest = each
    return wrong


# -- registers


class _Zone(NamedTuple):
    value: str
    first_end_s: float
    last_begin_s: float

    @property
    def forward(self) -> bool:
        return self.first_end_s < self.last_begin_s


def register_violations(name: str, writes: Sequence[Write], reads: Sequence[Read]) -> list[str]:
    """Why a register is not linearizable; nothing if it is. It begins with INITIAL."""
    wrong: list[str] = []
    by_value = {each.value: each for each in writes}
    assert len(by_value) == len(writes), f"{name}: a value was written twice by the test"
    seen: dict[str, list[Read]] = defaultdict(list)
    for read in reads:
        seen[read.value].append(read)
    zones: list[_Zone] = []
    for value, group in seen.items():
        write = by_value.get(value)
        if value == INITIAL:
            zones.append(_Zone(value, -math.inf, max(each.began_s for each in group)))
        elif write is None:
            wrong.append(f"{name}: {value} was read, and nobody has written it")
        elif write.outcome is REFUSED:
            wrong.append(f"{name}: {value} was refused, and was read")
        elif min(each.ended_s for each in group) < write.began_s:
            wrong.append(f"{name}: {value} was read before it was written")
        else:
            first_end_s = min(write.until_s, *(each.ended_s for each in group))
            zones.append(_Zone(value, first_end_s, max(write.began_s, *(each.began_s for each in group))))
    for write in writes:  # one that nobody has seen: the unknown ones may have had no effect
        if write.outcome is DONE and write.value not in seen:
            zones.append(_Zone(write.value, write.ended_s, write.began_s))
    return wrong + _clashes(name, zones)


def _clashes(name: str, zones: Iterable[_Zone]) -> list[str]:
    wrong: list[str] = []
    forward: list[_Zone] = []
    backward: list[_Zone] = []
    for zone in zones:
        (forward if zone.forward else backward).append(zone)
    forward.sort(key=lambda zone: zone.first_end_s)
    widest: _Zone | None = None
    for zone in forward:
        if widest is not None and zone.first_end_s < widest.last_begin_s:
            wrong.append(
                f"{name}: {widest.value} was read after {zone.value} had taken its place, or the other way round"
            )
        if widest is None or zone.last_begin_s > widest.last_begin_s:
            widest = zone
    if wrong:
        return wrong
    backward.sort(key=lambda zone: zone.last_begin_s)
    at = 0
    for zone in backward:  # forward zones do not overlap here, so only the last one that began before it can hold it
        while at < len(forward) and forward[at].first_end_s < zone.last_begin_s:
            at += 1
        if at and zone.first_end_s < forward[at - 1].last_begin_s:
            wrong.append(f"{name}: {forward[at - 1].value} was read, although {zone.value} was written over it before")
    return wrong


def swap_violations(name: str, swaps: Sequence[Swap], reads: Sequence[Read], last: str) -> list[str]:
    """Of a register that is only written on condition: each acknowledged write follows the value that it has seen, so
    all of them are one chain to the value at the end."""
    wrong: list[str] = []
    seen_reads = list(reads)
    replaced_by: dict[str, str] = {}
    before: dict[str, str] = {}
    known_done = {each.write.value for each in swaps if each.write.outcome is DONE}
    for swap in swaps:
        write = swap.write
        before[write.value] = swap.seen
        if write.outcome is not DONE:
            continue
        seen_reads.append(Read(swap.seen, write.began_s, write.ended_s))
        other = replaced_by.setdefault(swap.seen, write.value)
        if other != write.value:
            wrong.append(f"{name}: lost update: {other} and {write.value} have both replaced {swap.seen}")
    chain = set()
    at = last
    while at != INITIAL and at in before and at not in chain:
        chain.add(at)
        at = before[at]
    if at != INITIAL:
        wrong.append(f"{name}: {at} cannot have been reached from the beginning")
    wrong += [f"{name}: lost update: {value} was acknowledged, and nothing followed it" for value in known_done - chain]
    return wrong + register_violations(name, [each.write for each in swaps], seen_reads)


def counter_violations(name: str, outcomes: Iterable[Outcome], found: int) -> list[str]:
    """Of a number to which each operation added 1."""
    counts = Counter(outcomes)
    least, most = counts[DONE], counts[DONE] + counts[UNKNOWN]
    if least <= found <= most:
        return []
    what = "lost updates" if found < least else "updates that were done twice, or after they were refused"
    return [f"{name}: {found}, where {least} additions were acknowledged and {most - least} are unknown: {what}"]


# -- groups


def group_violations(
    name: str, messages: Sequence[str], deliveries: Sequence[Delivery], acknowledged: Sequence[Acknowledgement]
) -> list[str]:
    """Of a group that has consumed all messages of a topic: each was delivered, each delivered one is there, and none
    again after its acknowledgement was answered."""
    wrong: list[str] = []
    last_asked: dict[str, float] = {}
    for each in deliveries:
        last_asked[each.value] = max(each.began_s, last_asked.get(each.value, -math.inf))
    there = set(messages)
    wrong += [f"{name}: {value} was never delivered" for value in messages if value not in last_asked]
    wrong += [f"{name}: {value} was delivered, and is not in the topic" for value in last_asked if value not in there]
    for ack in acknowledged:
        if ack.value not in last_asked:
            wrong.append(f"{name}: {ack.value} was acknowledged, and never delivered")
        elif ack.outcome is DONE and last_asked[ack.value] > ack.ended_s:
            wrong.append(f"{name}: {ack.value} was delivered again after its acknowledgement")
    return wrong


# -- the same in two places


def reader_violations(name: str, delivered: Sequence[str], stored: Sequence[str]) -> list[str]:
    """What a live reader got, and what a log has: the same in the same order."""
    for number, (mine, theirs) in enumerate(zip_longest(delivered, stored)):
        if mine != theirs:
            return [f"{name}: entry {number} is {theirs}, and {mine} was delivered"]
    return []


def route_violations(
    name: str, changes: Mapping[str, Sequence[str]], messages: Mapping[str, Sequence[str]]
) -> list[str]:
    """By key, the values that a table's changes had and those that its messages had: the same in the same order."""
    wrong: list[str] = []
    for key in sorted(changes.keys() | messages.keys()):
        mine, theirs = list(changes.get(key, ())), list(messages.get(key, ()))
        if mine == theirs:
            continue
        missing, extra = Counter(mine) - Counter(theirs), Counter(theirs) - Counter(mine)
        if missing:
            wrong.append(f"{name}: {key}: without a message: {', '.join(sorted(missing))}")
        if extra:
            wrong.append(f"{name}: {key}: messages without a change: {', '.join(sorted(extra.elements()))}")
        if not missing and not extra:
            wrong.append(f"{name}: {key}: changes and messages have different orders")
    return wrong


def transfer_violations(
    name: str, writes: Sequence[Write], places: Mapping[str, Sequence[str]], balance: int, expected: int
) -> list[str]:
    """Of transactions that each leave their value in several places: in all of them or in none; and they move amounts
    whose sum remains."""
    wrong: list[str] = []
    for place, found in places.items():
        wrong += log_violations(f"{name}, {place}", writes, found)
    first, *rest = places.items()
    for place, found in rest:
        for value in sorted(set(found) ^ set(first[1])):
            wrong.append(f"{name}: {value} is in only one of {first[0]} and {place}")
    if balance != expected:
        wrong.append(f"{name}: the sum is {balance}, not {expected}")
    return wrong

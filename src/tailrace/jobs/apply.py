"""Applying deltas to a view, in one transaction with the positions of its sources.

Theory of operation
-------------------
The second table of a view has, for each group, its *totals*: the number of rows, and for each argument of an aggregate
the number of values, their sum, the number of distinct values, the minimum and the maximum. Where an aggregate needs
them, it also has each value with its count, in the order of values; so when the minimum is removed, the next one is
found without reading the sources again. For a join it has each side's rows by join key.

A row of the view is a function of its group's totals; a row that does not change is not written, and leaves no change
record. The fence (`jobs.fence`) makes a delta count once. It is compared with *every* source, with an empty range where
one has no changes: a delta of a join was computed from the view's rows of the other side, and is wrong if they have
changed. Filling (`view_fill`) applies deltas too, in chunks that are numbered instead of fenced, to a view that was
emptied first.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, DecimalException
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Conflict, Invalid, TooLarge
from tailrace.jobs import fence
from tailrace.jobs.job import positions
from tailrace.jobs.view import GROUP, LIVE, PART, STATE, ViewDefinition, changed, found
from tailrace.jobs.view_delta import WIDE, average, group_text, key_item, order, shown
from tailrace.jobs.view_plan import AVG, COUNT, DISTINCT, MAX, SUM, ViewPlan
from tailrace.log import cold
from tailrace.log import log as logs
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import key as keys
from tailrace.tables import value, write
from tailrace.tables.change import Capture
from tailrace.tables.definition import ITEMS, Definition, find
from tailrace.tables.value import Item, Value

_TOTALS: Final = b"\x00"  # the part of a group that has its totals; values come after it
_ORDER_BYTES_MAX: Final = 900  # of a value, within a sort key of 1024
_SUM_EXPONENT_MAX: Final = 250  # of a sum, either way
_SUM_CHARACTERS_MAX: Final = 600  # as it is written
_SIDES: Final = ("a", "b")
_ORDERED: Final = frozenset(("S", "N", "B", "BOOL"))
_SCALARS: Final = _ORDERED | {"NULL"}
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode

GroupWire: TypeAlias = tuple[list[Value], int, list[tuple[int, int, str]], list[tuple[int, Value, int]]]
RowWire: TypeAlias = tuple[list[Value], Item | None]
JoinedWire: TypeAlias = tuple[int, str, Item, Item | None]  # side, join key, primary key, row


class EncodedDelta(msgspec.Struct, frozen=True):
    """A delta of a view, as it is sent to the server."""

    groups: list[GroupWire] = []
    rows: list[RowWire] = []
    joined: list[JoinedWire] = []
    records: int = 0

    def entries(self) -> int:
        kept = sum(len(group[3]) for group in self.groups)
        return len(self.groups) + kept + len(self.rows) + len(self.joined)


class Applied(msgspec.Struct, frozen=True):
    """The result of a delta. `applied` is False if it was applied before."""

    applied: bool
    positions: dict[int, int]


class ViewCommand(Command[Any], frozen=True):
    """A command of a view's job."""

    permission = Permission.JOBS

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}",)

    def heavy(self) -> bool:
        return True


class ApplyView(ViewCommand, frozen=True):
    """Apply a delta of these ranges of the sources' logs, one for each: [p, p) where nothing changed."""

    history = True  # a view that is far behind may read cold entries

    ranges: dict[int, tuple[int, int]]
    moves: EncodedDelta
    bytes: int = 0

    def size(self) -> int:
        return self.bytes

    def run(self, tx: Tx) -> Applied:
        job, view = found(tx, self.name)
        check_size(self.moves)
        check_live(self.name, view)
        followed = {source.log for source in view.sources}
        unknown, missing = set(self.ranges) - followed, followed - set(self.ranges)
        if unknown:
            raise Invalid(
                f"log {min(unknown)} is not a source of view {self.name!r}; describe the view to list its sources"
            )
        if missing:
            raise Invalid(
                f"a range of log {min(missing)} is missing, which is a source of view {self.name!r}; send [p, p) where "
                "nothing changed, where p is the position that the delta was computed from",
                code="INVALID_RANGE",
            )
        applied = fence.check(tx, self.name, self.ranges)
        if applied:
            for log, (start, end) in self.ranges.items():
                _check_end(tx, log, start, end)
            DeltaApplier(tx, self.name, view.plan).add(self.moves)
            changed(tx, job, view, rows=self.moves.records)
        return Applied(applied, positions(tx, self.name))


def check_live(name: str, view: ViewDefinition) -> None:
    """Raise unless the view is live: while it is being filled, its rows are of no one moment."""
    if view.phase != LIVE:
        raise Conflict(
            f"view {name!r} is {view.phase}, not {LIVE}: fill it first (tailrace pipeline view {name}), or try again "
            "when the job that fills it is done",
            code="VIEW_NOT_LIVE",
        )


def _check_end(tx: Tx, number: int, start: int, end: int) -> None:
    """Raise unless a range ends where an entry does: the view could not continue from another position."""
    log = tx.get(LOGS, number)
    if log is None or start == end:
        return
    if end >= log.start:
        fits = logs.boundary(tx, log, end)
    else:
        first = cold.earliest(tx, log)
        fits = end == first or (end > first and next(cold.entries(tx, log, end)).position == end)
    if not fits:
        raise Invalid(
            f"[{start}, {end}) of log {number} does not end where an entry does; the log ends at {log.next}",
            code="INVALID_RANGE",
        )


def check_size(moves: EncodedDelta) -> None:
    if moves.entries() > limits.VIEW_ENTRIES_MAX:
        raise TooLarge(
            f"{moves.entries():,} groups, values and rows are more than the {limits.VIEW_ENTRIES_MAX:,} of "
            "one delta; send shorter ranges",
            code="VIEW_DELTA_TOO_LARGE",
        )


def _check_form(moves: EncodedDelta, arguments: int) -> None:
    """Raise unless all values are valid; those of items are normalized."""
    _check_count(moves.records)
    for values, n, sums, kept in moves.groups:
        _check_count(n)
        for typed in values:
            _check_scalar(typed, _SCALARS)
        for count, numbers, total in sums:
            _check_count(count)
            _check_count(numbers)
            _check_sum(total)
        for argument, typed, weight in kept:
            _check_count(weight)
            if not 0 <= argument < arguments:
                raise Invalid(f"the view has no argument {argument}")
            _check_scalar(typed, _ORDERED)
    for values, row in moves.rows:
        for typed in values:
            _check_scalar(typed, _SCALARS)
        if row is not None:
            value.read_item(row)
    for _, _, key, row in moves.joined:
        value.read_item(key)
        if row is not None:
            value.read_item(row)


def _check_count(count: int) -> None:
    if abs(count) > limits.POSITION_MAX:
        raise Invalid(f"{count} is not a count of rows; the maximum is {limits.POSITION_MAX}")


def _check_sum(total: str) -> None:
    """A sum of numbers that items can have: 38 digits, up to 1E+126 and down to 1E-130, and many of them."""
    fits = False
    if len(total) <= _SUM_CHARACTERS_MAX:
        try:
            number = Decimal(total)
            fits = number.is_finite() and -_SUM_EXPONENT_MAX <= number.adjusted() <= _SUM_EXPONENT_MAX
            fits = fits and -int(number.as_tuple().exponent) <= _SUM_EXPONENT_MAX
        except DecimalException:
            pass
    if not fits:
        raise Invalid(f"{total[:80]!r} is not a sum; send a decimal number")


def _check_scalar(typed: Value, kinds: frozenset[str]) -> None:
    if len(typed) != 1 or not kinds.issuperset(typed) or value.read_value(typed) is not typed:
        raise Invalid(f"{str(typed)[:80]} is not a value of a group; send one of {', '.join(sorted(kinds))}")


# -- adding


class DeltaApplier:
    """Applies one delta: first to the state, then reads the totals, then writes the rows."""

    def __init__(self, tx: Tx, name: str, plan: ViewPlan) -> None:
        self._tx = tx
        self._name = name
        self._plan = plan
        self._rows = find(tx, name)
        self._state = find(tx, name + STATE)
        self._capture = Capture()

    def add(self, moves: EncodedDelta) -> None:
        _check_form(moves, len(self._plan.arguments))
        for side, text, key, row in moves.joined:
            self._join(side, text, key, row)
        touched = [self._totals(group) for group in moves.groups]
        if len({totals.group for totals in touched}) != len(touched):
            raise Invalid(f"a delta of view {self._name!r} has a group twice; combine them before sending")
        for totals in touched:
            totals.look(self._tx, self._state)
        for totals in touched:
            self._show(totals)
        for values, row in moves.rows:
            self._put(self._rows, key_item(self._plan, values), row)
        self._capture.append(self._tx)

    def _put(self, definition: Definition, named: Item, row: Item | None) -> None:
        tx = self._tx
        plan = write.find(tx, definition, keys.item_key(definition, named if row is None else row), named)
        plan.new = row
        plan.size = 0 if row is None else value.item_size(row)
        if plan.size > limits.ITEM_BYTES_MAX:
            raise Invalid(f"a row of view {self._name!r} would have more than {limits.ITEM_BYTES_MAX} bytes")
        write.do(tx, plan, self._capture)

    def _get(self, group: str, part: bytes) -> Item | None:
        named: Item = {GROUP: {"S": group}, PART: {"B": part}}
        row = self._tx.get(ITEMS, self._state.space, keys.item_key(self._state, named))
        return None if row is None else value.decode(row.body)

    def _totals(self, wire: GroupWire) -> _Totals:
        values, n, sums, kept = wire
        if len(sums) != len(self._plan.arguments) or len(values) != len(self._plan.groups):
            raise Invalid(f"the delta does not fit view {self._name!r}: it was computed for another SELECT")
        group = "g" + group_text(values)
        stored = self._get(group, _TOTALS)
        totals = _Totals(group, values, len(sums), stored)
        totals.n += n
        for at, (count, numbers, total) in enumerate(sums):
            mine = totals.arguments[at]
            mine[0] += count
            mine[1] += numbers
            mine[2] = str(WIDE.add(Decimal(mine[2]), Decimal(total)))
        for argument, typed, weight in kept:
            self._keep(totals, argument, typed, weight)
        _check_count(max(totals.n, *(mine[0] for mine in totals.arguments), 0))
        if totals.n < 0 or any(mine[0] < 0 or mine[1] < 0 for mine in totals.arguments):
            raise self._broken(f"group {group[1:][:200]} would have a negative number of rows")
        return totals

    def _keep(self, totals: _Totals, argument: int, typed: Value, weight: int) -> None:
        part = _part(argument, typed)
        stored = self._get(totals.group, part)
        before = 0 if stored is None else int(stored["w"]["N"])
        after = before + weight
        _check_count(after)
        if after < 0:
            raise self._broken(f"group {totals.group[1:][:200]} would have a value a negative number of times")
        named: Item = {GROUP: {"S": totals.group}, PART: {"B": part}}
        row = {**named, "v": typed, "w": {"N": str(after)}} if after else None
        self._put(self._state, named, row)
        totals.arguments[argument][3] += (after > 0) - (before > 0)
        if (after > 0) != (before > 0):
            totals.moved.add(argument)

    def _show(self, totals: _Totals) -> None:
        plan = self._plan
        named: Item = {GROUP: {"S": totals.group}, PART: {"B": _TOTALS}}
        self._put(self._state, named, None if totals.empty else {**named, "t": {"B": totals.packed()}})
        row = key_item(plan, totals.values)
        if totals.n == 0 and plan.groups:
            self._put(self._rows, row, None)
            return
        for each in plan.aggregates:
            row[each.name] = totals.of(each.function, each.argument)
        self._put(self._rows, row, row)

    def _join(self, side: int, text: str, key: Item, row: Item | None) -> None:
        if side not in (0, 1) or self._plan.join is None:
            raise Invalid(f"view {self._name!r} has no side {side}")
        group = join_group(side, text)
        part = b"\x01" + _digested(_pack(list(key.values())), _ORDER_BYTES_MAX)
        named: Item = {GROUP: {"S": group}, PART: {"B": part}}
        before = self._get(group, part)
        self._put(self._state, named, None if row is None else {**named, "r": {"M": row}})
        change = (row is not None) - (before is not None)
        if change:
            counted = self._get(group, _TOTALS)
            count = (0 if counted is None else int(counted["w"]["N"])) + change
            total: Item = {GROUP: {"S": group}, PART: {"B": _TOTALS}}
            self._put(self._state, total, {**total, "w": {"N": str(count)}} if count else None)

    def _broken(self, why: str) -> Conflict:
        return Conflict(
            f"view {self._name!r} does not match its sources: {why}; fill it again "
            f"(tailrace pipeline view {self._name} --refill)",
            code="VIEW_BROKEN",
        )


class _Totals:
    """The totals of a group. Of each argument: values, numbers, sum, distinct values, minimum, maximum."""

    __slots__ = ("arguments", "group", "moved", "n", "values")

    def __init__(self, group: str, values: list[Value], arguments: int, stored: Item | None) -> None:
        self.group = group
        self.values = values
        self.moved: set[int] = set()  # arguments with a value that was added or removed
        self.n: int = 0
        self.arguments: list[list[Any]] = [[0, 0, "0", 0, None, None] for _ in range(arguments)]
        if stored is not None:
            self.n, self.arguments = _unpack(stored["t"]["B"])

    @property
    def empty(self) -> bool:
        return self.n == 0 and not any(mine[0] for mine in self.arguments)

    def packed(self) -> bytes:
        return _pack([self.n, self.arguments])

    def look(self, tx: Tx, state: Definition) -> None:
        """Read the minimum and maximum again, where values were added or removed."""
        for at in self.moved:
            mine = self.arguments[at]
            mine[4], mine[5] = (_extreme(tx, state, self.group, at, last) for last in (False, True))

    def of(self, function: str, argument: int | None) -> Value:
        """An aggregate."""
        if argument is None:
            return {"N": str(self.n)}
        count, numbers, total, distinct, least, greatest = self.arguments[argument]
        if function in (COUNT, DISTINCT):
            return {"N": str(count if function == COUNT else distinct)}
        if function in (SUM, AVG):
            if not numbers:
                return {"NULL": True}
            return shown(Decimal(total)) if function == SUM else average(Decimal(total), numbers)
        found: Value | None = greatest if function == MAX else least
        return {"NULL": True} if found is None else found


def _part(argument: int, typed: Value) -> bytes:
    """The sort key of a value among those of its argument."""
    return bytes((1 + argument,)) + _digested(order(typed), _ORDER_BYTES_MAX)


def _digested(data: bytes, bytes_max: int) -> bytes:
    """The bytes, or if they are too many, their beginning and a digest."""
    return data if len(data) <= bytes_max else data[:bytes_max] + sha256(data).digest()


def _extreme(tx: Tx, state: Definition, group: str, argument: int, last: bool) -> Value | None:
    prefix = keys.partition([{"S": group}]) + bytes((1 + argument,))
    for row in tx.scan(ITEMS, state.space, start=prefix, before=keys.successor(prefix), limit=1, reverse=last):
        found: Value = value.decode(row.body)["v"]
        data = order(found)
        if len(data) <= _ORDER_BYTES_MAX:
            return found
        # Long values with the same beginning are not in order.
        alike = prefix + data[:_ORDER_BYTES_MAX]
        rows = tx.scan(ITEMS, state.space, start=alike, before=keys.successor(alike))
        values: list[Value] = [value.decode(each.body)["v"] for each in rows]
        return max(values, key=order) if last else min(values, key=order)
    return None


def join_group(side: int, text: str) -> str:
    """The group under which a side's rows of one join key are kept."""
    return f"{_SIDES[side]}{text}"


# -- reading a join's state


class HeldRows(msgspec.Struct, frozen=True):
    """Rows of a side under a join key, and their total number. `next` is where to continue; None: these were all."""

    rows: list[Item]
    count: int
    next: bytes | None = None


class ReadHeld(Query[list[HeldRows]], frozen=True):
    """The rows of its sources that a view stores, by side and join key, or only their count. If there are too many for
    one response, pass its `next` as `after` in another request. These are rows of the sources: they are for the job
    that maintains the view, not for all readers of it."""

    permission = Permission.JOBS
    subject = ("tables", "name")

    name: str
    requests: tuple[tuple[int, str, bool, bytes], ...]  # side, join key, whether rows are wanted, after

    def run(self, reader: Reader) -> list[HeldRows]:
        _, view = found(reader, self.name)
        check_live(self.name, view)
        state = find(reader, self.name + STATE)
        answer: list[HeldRows] = []
        left, room = limits.VIEW_ENTRIES, limits.VIEW_HELD_BYTES
        for side, text, wanted, after in self.requests:
            if side not in (0, 1):
                raise Invalid(f"view {self.name!r} has no side {side}")
            group = join_group(side, text)
            rows: list[Item] = []
            last: bytes | None = after if wanted else None
            for key, size, row in _held(reader, state, group, after) if wanted else ():
                if left <= 0 or room <= 0:
                    break
                rows.append(row)
                last = key
                left -= 1
                room -= size
            else:
                last = None
            answer.append(HeldRows(rows, _count(reader, state, group), last))
        return answer


def _held(reader: Reader, state: Definition, group: str, after: bytes) -> Iterator[tuple[bytes, int, Item]]:
    prefix = keys.partition([{"S": group}])
    for row in reader.scan(
        ITEMS,
        state.space,
        start=None if after else prefix + b"\x01",
        after=after or None,
        before=keys.successor(prefix),
    ):
        yield row.key, row.size, value.decode(row.body)["r"]["M"]


def _count(reader: Reader, state: Definition, group: str) -> int:
    named: Item = {GROUP: {"S": group}, PART: {"B": _TOTALS}}
    row = reader.get(ITEMS, state.space, keys.item_key(state, named))
    return 0 if row is None else int(value.decode(row.body)["w"]["N"])

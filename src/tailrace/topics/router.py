"""Routes changes of tables to topics, inside the transaction that made the change.

The routes of a table are part of its definition, by event (`definition.routes_of`), so there is no index to keep up to
date. Filters are compiled once per route and declared columns, so that they mean what the same condition means in
UPDATE and SELECT; neither a parser nor a query engine runs when a row is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from tailrace import scalar
from tailrace.errors import Invalid
from tailrace.log import log as logs
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Tx
from tailrace.tables import value
from tailrace.tables.change import AppliedWrite, Changed
from tailrace.tables.definition import BACKFILLS, INDEX_ENTRIES, Definition, IndexRow, ItemRow, TopicRoute
from tailrace.tables.value import Item
from tailrace.topics.topic import DELETE, INSERT, PARTITIONS, TOPICS, Envelope, Partition, encode

KEY: Final = 0
FULL: Final = 1
DIFF: Final = 2

_json: Final = msgspec.json.Encoder().encode
Filter = Callable[[Item | None, Item | None], bool]
PartitionBy = Callable[[Item | None, Item | None], Any]
_S = TypeVar("_S", bound="scalar.Scalar")


# In a filter, the principal that made the change; NULL where it is not known, as for the rows of a backfill.
BY: Final = "_by"
BACKFILL: Final = "system"  # the principal of messages for rows that were there before their route


class CompiledRoute:
    """A route, ready to run over rows of a table with these columns."""

    __slots__ = ("filter", "looks_back", "named", "names", "partition_by")

    def __init__(self, route: TopicRoute, columns: scalar.Columns | None) -> None:
        condition = None if route.filter is None else _with_columns(scalar.condition, route.filter, columns)
        partition_by = (
            None if route.partition_by is None else _with_columns(scalar.stored_value, route.partition_by, columns)
        )
        # The columns that it reads.
        self.names = frozenset(name for each in (condition, partition_by) if each is not None for name in each.names)
        self.named = BY in self.names
        self.filter: Filter | None = None if condition is None else condition.true
        self.partition_by: PartitionBy | None = None if partition_by is None else partition_by.of
        # Whether it needs the old image, which must be decoded for it.
        self.looks_back = (
            route.event == DELETE
            or route.mode == DIFF
            or any("old" in each.sides for each in (condition, partition_by) if each is not None)
        )


def _with_columns(compiled: Callable[..., _S], text: str, columns: scalar.Columns | None) -> _S:
    """The compiled expression of a stored text. An earlier version may have accepted one that is refused for these
    columns today, such as a comparison of a TIMESTAMP with a text that is no time: then it reads the stored values, as
    it did in that version, because a route fails no write."""
    try:
        return compiled(text, columns=columns)
    except scalar.ExpressionError:
        return compiled(text)


Routes = tuple[tuple[tuple[TopicRoute, CompiledRoute], ...], ...]


def compiled_routes(definition: Definition) -> Routes:
    """The routes of a table and what they are compiled to, by event; cached on the definition, because ALTER TABLE
    passes routes on to a definition with other columns."""
    known: dict[str, Any] = definition.__dict__
    found: Routes | None = known.get("compiled_routes")
    if found is None:
        columns = columns_of(definition)
        found = tuple(tuple((each, CompiledRoute(each, columns)) for each in some) for some in definition.routes_of)
        known["compiled_routes"] = found
    return found


def columns_of(definition: Definition) -> scalar.Columns | None:
    """The columns that a filter may name: those of the table, if they are declared, and `_by`."""
    return with_principal(definition.expression_kinds)


def with_principal(declared: scalar.Columns | None) -> scalar.Columns | None:
    """Declared columns and `_by`."""
    return None if declared is None else (*declared, (BY, "TEXT"))


def route(tx: Tx, sequence: int, by: str, changes: list[Changed]) -> None:
    """Append the messages of a transaction's changes, in the order of the changes."""
    bodies: dict[int, list[bytes]] = {}  # by the number of the partition's log
    for index, (plan, event) in enumerate(changes):
        definition = plan.definition
        if definition.backfilled:
            _send_ahead(tx, plan, bodies)
        for each, compiled in compiled_routes(definition)[event]:
            new = plan.new
            old = plan.old if compiled.looks_back else None
            judged_new, judged_old = (new, old) if not compiled.named else (_by(new, by), _by(old, by))
            if compiled.filter is not None and not compiled.filter(judged_new, judged_old):
                continue
            topic = tx.get(TOPICS, each.topic)
            assert topic is not None, f"table {definition.name!r} has a route to topic {each.topic}, which is no more"
            payload = _payload(each.mode, definition, event, new, old)
            envelope = Envelope(sequence, index, event, each.mode, definition.name, payload, by)
            number = topic.first_log
            if topic.partitions > 1:
                number = topic.number_for(_partition_key(compiled, definition, judged_new, judged_old))
            bodies.setdefault(number, []).append(encode(envelope))
    for number, each_body in bodies.items():
        append(tx, number, each_body)


def _by(row: Item | None, principal: str) -> Item | None:
    return None if row is None else {**row, BY: {"S": principal}}


# -- existing rows


def send_existing(tx: Tx, definition: Definition, backfilled: TopicRoute, rows: list[ItemRow]) -> None:
    """Append the messages of rows that were there before the route, but for those that were sent ahead."""
    bodies: dict[int, list[bytes]] = {}
    for row in rows:
        if tx.get(INDEX_ENTRIES, backfilled.backfill, row.key) is None:
            _send_row(tx, definition, backfilled, value.decode(row.body), bodies)
    for number, each_body in bodies.items():
        append(tx, number, each_body)


def _send_ahead(tx: Tx, plan: AppliedWrite, bodies: dict[int, list[bytes]]) -> None:
    """A row is written before a backfill has reached it: send it as it was, before its change, and mark it as done. So
    each row that was there before the route is sent once, and first."""
    for backfilled in plan.definition.backfilled:
        space = backfilled.backfill
        work = tx.get(BACKFILLS, space)
        assert work is not None, f"the backfill {space} of table {plan.definition.name!r} is not listed"
        if plan.key <= work.after or tx.get(INDEX_ENTRIES, space, plan.key) is not None:
            continue
        tx.put(INDEX_ENTRIES, IndexRow(space, plan.key, plan.key))
        if plan.old is not None:
            _send_row(tx, plan.definition, backfilled, plan.old, bodies)


def _send_row(
    tx: Tx, definition: Definition, backfilled: TopicRoute, row: Item, bodies: dict[int, list[bytes]]
) -> None:
    compiled = next(compiled for each, compiled in compiled_routes(definition)[INSERT] if each == backfilled)
    if compiled.filter is not None and not compiled.filter(row, None):
        return
    topic = tx.get(TOPICS, backfilled.topic)
    assert topic is not None, f"table {definition.name!r} has a route to topic {backfilled.topic}, which is no more"
    payload = _payload(backfilled.mode, definition, INSERT, row, None)
    number = topic.first_log
    if topic.partitions > 1:
        number = topic.number_for(_partition_key(compiled, definition, row, None))
    envelope = Envelope(0, 0, INSERT, backfilled.mode, definition.name, payload, BACKFILL)
    bodies.setdefault(number, []).append(encode(envelope))


def append(tx: Tx, number: int, bodies: list[bytes]) -> int:
    """Add messages to the partition whose log has this number; the offset of the first."""
    log, held = tx.get(LOGS, number), tx.get(PARTITIONS, number)
    assert log is not None and held is not None, f"log {number} is no partition of a topic"
    size = len(bodies[0]) if len(bodies) == 1 else sum([len(body) for body in bodies])
    tx.put(PARTITIONS, Partition(number, held.topic, held.number, held.bytes + size))
    logs.append_each(tx, log, bodies)
    return log.next


def key_bytes(found: Any) -> bytes:
    """The bytes that choose the partition of a value: text as it is, nothing for NULL, else compact JSON."""
    if isinstance(found, str):
        return found.encode("utf-8", "surrogatepass")
    try:
        return b"" if found is None else scalar.key_text(found)
    except (
        Invalid
    ):  # a value that has no text, a number with too many digits, is as unknown as NULL: a route fails no write
        return b""


def _partition_key(compiled: CompiledRoute, definition: Definition, new: Item | None, old: Item | None) -> bytes:
    if compiled.partition_by is not None:
        return key_bytes(compiled.partition_by(new, old))
    row = new if new is not None else old
    assert row is not None
    values = [value.to_json(row[name]) for name in definition.keys]
    only = values[0] if len(values) == 1 else values
    return only.encode("utf-8", "surrogatepass") if isinstance(only, str) else _json(only)


def _payload(mode: int, definition: Definition, event: int, new: Item | None, old: Item | None) -> bytes:
    row = old if event == DELETE else new
    assert row is not None
    if mode == FULL:
        return _json(value.item_to_json(row))
    key = {name: value.to_json(row[name]) for name in definition.keys}
    if mode == KEY:
        return _json(key)
    before, after = old or {}, new or {}
    changed = [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]
    return _json(
        {
            "key": key,
            "old": {name: value.to_json(before[name]) for name in changed if name in before},
            "new": {name: value.to_json(after[name]) for name in changed if name in after},
        }
    )


def _same(one: value.Value | None, other: value.Value | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or value.same({"": one}, {"": other})

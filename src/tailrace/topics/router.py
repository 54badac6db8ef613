"""Routes changes of tables to topics, inside the transaction that made the change.

The routes of a table are part of its definition, by event (`definition.routes_of`), so there is no index to keep up to
date. Filters are compiled once per route; neither a parser nor a query engine runs when a row is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tailrace import scalar
from tailrace.errors import Invalid
from tailrace.log import log as logs
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Tx
from tailrace.tables import value
from tailrace.tables.change import Changed
from tailrace.tables.definition import Definition, TopicRoute
from tailrace.tables.value import Item
from tailrace.topics.topic import DELETE, PARTITIONS, TOPICS, Envelope, Partition, encode

KEY: Final = 0
FULL: Final = 1
DIFF: Final = 2

_json: Final = msgspec.json.Encoder().encode
Filter = Callable[[Item | None, Item | None], bool]
PartitionBy = Callable[[Item | None, Item | None], Any]


class CompiledRoute:
    """A route, ready to run."""

    __slots__ = ("filter", "looks_back", "partition_by")

    def __init__(self, route: TopicRoute) -> None:
        condition = None if route.filter is None else scalar.condition(route.filter)
        partition_by = None if route.partition_by is None else scalar.stored_value(route.partition_by)
        self.filter: Filter | None = None if condition is None else condition.true
        self.partition_by: PartitionBy | None = None if partition_by is None else partition_by.of
        # Whether it needs the old image, which must be decoded for it.
        self.looks_back = (
            route.event == DELETE
            or route.mode == DIFF
            or any("old" in each.sides for each in (condition, partition_by) if each is not None)
        )


def _compiled(route: TopicRoute) -> CompiledRoute:
    """The compiled route; cached on the route, as the route is cached on the definition."""
    known: dict[str, Any] = route.__dict__
    found: CompiledRoute | None = known.get("compiled")
    if found is None:
        found = known["compiled"] = CompiledRoute(route)
    return found


def route(tx: Tx, sequence: int, by: str, changes: list[Changed]) -> None:
    """Append the messages of a transaction's changes, in the order of the changes."""
    bodies: dict[int, list[bytes]] = {}  # by the number of the partition's log
    for index, (plan, event) in enumerate(changes):
        definition = plan.definition
        for each in definition.routes_of[event]:
            compiled = _compiled(each)
            new = plan.new
            old = plan.old if compiled.looks_back else None
            if compiled.filter is not None and not compiled.filter(new, old):
                continue
            topic = tx.get(TOPICS, each.topic)
            assert topic is not None, f"table {definition.name!r} has a route to topic {each.topic}, which is no more"
            payload = _payload(each.mode, definition, event, new, old)
            envelope = Envelope(sequence, index, event, each.mode, definition.name, payload, by)
            number = topic.first_log
            if topic.partitions > 1:
                number += topic.partition_for(_partition_key(compiled, definition, new, old))
            bodies.setdefault(number, []).append(encode(envelope))
    for number, each_body in bodies.items():
        append(tx, number, each_body)


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

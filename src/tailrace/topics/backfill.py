"""Backfill of routes: rows that were in a table before a route are sent to its topic, once each, in small steps.

Theory of operation
-------------------
The route is live from the commit that adds it. Housekeeping walks through the table in the order of keys and sends each
row as an insert; `after` of its work row is how far it has come. A row beyond that which is written meanwhile is sent
by that write, as it was before, and marked in a space of the route (`router._send_ahead`); the walk passes over marked
rows, and so over rows that were inserted meanwhile. So every row that was there is sent once, before its later changes,
and no row twice. The marks are dropped at the end.
"""

from __future__ import annotations

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.housekeeping import DueWork
from tailrace.log.tail import HOUSEKEEPING
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import definition as tables
from tailrace.tables.definition import BACKFILLS, TABLES, BackfillRow, Definition, TopicRoute
from tailrace.tables.lifecycle import drop_space, new_space
from tailrace.tables.sweep import is_of_route, next_items
from tailrace.topics import router


def begin(tx: Tx, definition: Definition) -> int:
    """Schedule a backfill; the number for its route, 0 if there is nothing to send."""
    if tables.counted(tx, definition.space).items == 0:
        return 0
    space = new_space(tx)
    tx.put(BACKFILLS, BackfillRow(space, definition.name, b""))
    tx.notify(HOUSEKEEPING, None)
    return space


def end(tx: Tx, routes: tuple[TopicRoute, ...]) -> None:
    """Give up the backfills of routes that are dropped."""
    for space in {route.backfill for route in routes if route.backfill}:
        drop_space(tx, space)


class BackfillRoute(Command[bool], frozen=True):
    """Send some of the rows that were there before a route; True when all were sent."""

    permission = Permission.ADMIN

    space: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        work = tx.get(BACKFILLS, self.space)
        if work is None:
            return True  # the route was dropped
        row = tx.get(TABLES, work.owner)
        assert row is not None, f"backfill of a table {work.owner!r} that does not exist"
        definition = tables.decoded(row)
        route = next(route for route in definition.backfilled if route.backfill == self.space)
        items, more = next_items(tx, definition.space, work.after)
        router.send_existing(tx, definition, route, items)
        if more:
            tx.put(BACKFILLS, BackfillRow(self.space, work.owner, items[-1].key))
            return False
        drop_space(tx, self.space)
        done = tuple(
            msgspec.structs.replace(each, backfill=0) if each.backfill == self.space else each
            for each in definition.routes
        )
        tables.save(tx, msgspec.structs.replace(definition, routes=done))
        return True


def find_due(reader: Reader, position: None) -> DueWork[bool]:
    """The backfills of routes that are not finished."""
    rows = [row for row in reader.scan(BACKFILLS, limit=limits.SWEEP_DUE) if is_of_route(reader, row)]
    return DueWork([BackfillRoute(row.space) for row in rows], more=len(rows) == limits.SWEEP_DUE)

"""The history that the pipeline is measured on: orders that are put again and again, and what must come of them.

Everything about change number `n` follows from `n`, so that a count and a few sums say whether all changes are there,
once each and as they were written. Totals are the numbers themselves: no put leaves an item as it was.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tailrace
from tailrace import limits
from tailrace.command import Command
from tailrace.database import Database
from tailrace.jobs.view import DescribeView, PlanView, ViewShape
from tailrace.jobs.view_fill import BeginFill, FinishFill
from tailrace.log import log as logs
from tailrace.log.entry import GARBAGE, LOGS
from tailrace.storage.engine import Tx
from tailrace.tables.commands import PutItem
from tailrace.tables.plain import Put
from tailrace.tables.value import Item, item_size

TABLE: Final = "orders"
STREAM: Final = "NEW_AND_OLD_IMAGES"
STATUSES: Final = ("new", "paid", "packed", "shipped", "returned")
CUSTOMERS: Final = 50_000
LARGE: Final = 1_000  # the total of an order that makes its customer one of view `largest`
VIEW: Final = "totals"
VIEW_SQL: Final = f"SELECT status, count(*) AS n, sum(total) AS total FROM {TABLE} GROUP BY status"
# Views over the history: the SELECT, and the key and columns that Spark finds for it.
VIEWS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    VIEW: (VIEW_SQL, "status", ("status string", "n bigint", "total bigint")),
    "by_customer": (
        f"SELECT customer, count(*) AS n, sum(total) AS total FROM {TABLE} GROUP BY customer",
        "customer",
        ("customer string", "n bigint", "total bigint"),
    ),
    "largest": (
        f"SELECT customer, max(total) AS most FROM {TABLE} GROUP BY customer HAVING max(total) > {LARGE}",
        "customer",
        ("customer string", "most bigint"),
    ),
    "latest": (
        f"SELECT customer, id FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY total DESC) AS rn "
        f"FROM {TABLE}) WHERE rn = 1",
        "id",
        ("customer string", "id string"),
    ),
    "joined": (
        f"SELECT o.id, c.tier, p.price, o.total FROM {TABLE} o JOIN customers c ON o.customer = c.id "
        "JOIN products p ON o.status = p.id",
        "id",
        ("id string", "tier string", "price bigint", "total bigint"),
    ),
}
# Of views that are kept by partial aggregates: their form, as the plan has it.
PARTIALS: Final = f"n bigint, n0 bigint, n1 bigint, s1 decimal(38,0): count(1), sum({TABLE}.total)"
ADDITIVE: Final = (VIEW, "by_customer")
AT_ONCE: Final = 5_000  # changes in a commit; each is a transaction of its own all the same
CHANGES_PER_KEY: Final = 5
_SCATTER: Final = 2_654_435_761  # keys come in no order


def key_number(number: int, keys: int) -> int:
    return (number * _SCATTER & 0xFFFFFFFF) % keys


def key_text(key: int) -> str:
    return f"o{key:08d}"


def order(number: int, keys: int) -> Item:
    return {
        "id": {"S": key_text(key_number(number, keys))},
        "status": {"S": STATUSES[number % len(STATUSES)]},
        "total": {"N": str(number)},
        "customer": {"S": f"c{number % CUSTOMERS:05d}"},
    }


class PutOrders(Command[int], frozen=True):
    """So many puts, each under a sequence of its own; the last sequence."""

    first: int
    count: int
    keys: int

    def run(self, tx: Tx) -> int:
        sequence = None
        for number in range(self.first, self.first + self.count):
            item = order(number, self.keys)
            sequence = PutItem(TABLE, item, item_size(item)).run(tx).sequence
        assert sequence is not None, "a put that recorded nothing"
        return sequence


class Trim(Command[None], frozen=True):
    """Let the hot log start behind all that is in cold storage. Its entries stay where they are: removing them goes on
    in the background for a while, and is not what is measured."""

    log: int

    def run(self, tx: Tx) -> None:
        log = tx.get(LOGS, self.log)
        assert log is not None, f"no log {self.log}"
        trimmed = logs.trim(tx, log, log.next)
        assert trimmed.start == log.next, f"the log starts at {trimmed.start}, not all of it is tiered"
        tx.delete(GARBAGE, self.log)


def load(directory: Path, count: int, keys: int, report: Callable[[int], None]) -> tuple[int, float]:
    """Write the history; the sequence of its first change, and the seconds it took."""
    with tailrace.open(directory) as db:
        db.create_table(TABLE, "id", stream=STREAM, max_age=None, max_count=None)
        _load_others(db)
        for name, (sql, key, columns) in VIEWS.items():
            _live_view(db, name, sql, key, columns)
        began = time.perf_counter()
        first = db.execute(PutOrders(0, 1, keys))
        for at in range(1, count, AT_ONCE):
            db.execute(PutOrders(at, min(AT_ONCE, count - at), keys))
            report(at)
        took = time.perf_counter() - began
    return first, took


def _load_others(db: Database) -> None:
    """The tables that orders are joined with."""
    for name in ("customers", "products"):
        db.create_table(name, "id", stream=STREAM)
    for first in range(0, CUSTOMERS, AT_ONCE):
        ids = range(first, first + AT_ONCE)
        db.batch_write([Put("customers", {"id": f"c{each:05d}", "tier": ("gold", "tin")[each % 2]}) for each in ids])
    db.batch_write([Put("products", {"id": each, "price": len(each)}) for each in STATUSES])


def _live_view(db: Database, name: str, sql: str, key: str, columns: tuple[str, ...]) -> None:
    """A view that is planned, and filled while the orders are empty: so its job sees every change."""
    db.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    pairs = [each.split(" ") for each in columns]
    columns_found = tuple((each, kind) for each, kind in pairs)
    partials = PARTIALS if name in ADDITIVE else ""
    db.execute(PlanView(name, ViewShape(((key, "S"),), columns_found, "", partials=partials)))
    sequences = {source.table: limits.POSITION_MAX - 1 for source in db.execute(DescribeView(name)).sources}
    db.execute(FinishFill(name, db.execute(BeginFill(name)), sequences))


def trim(directory: Path, log: int) -> None:
    with tailrace.open(directory) as db:
        db.execute(Trim(log))


class Model:
    """What the first `count` changes leave behind."""

    def __init__(self, count: int, keys: int) -> None:
        self.count = count
        self.totals = count * (count - 1) // 2  # of all new images
        last = array("q", [-1]) * keys
        for number in range(count):
            last[(number * _SCATTER & 0xFFFFFFFF) % keys] = number
        there = [number for number in last if number >= 0]
        self.items = len(there)
        self.state_totals = sum(there)
        best: dict[int, int] = {}  # the largest total of each customer
        for number in there:
            customer = number % CUSTOMERS
            best[customer] = max(number, best.get(customer, -1))
        self.customers = len(best)
        self.largest = sum(number > LARGE for number in best.values())
        self.largest_totals = sum(number for number in best.values() if number > LARGE)
        self.groups = {
            status: (len(mine), sum(mine))
            for nth, status in enumerate(STATUSES)
            if (mine := [number for number in there if number % len(STATUSES) == nth])
        }

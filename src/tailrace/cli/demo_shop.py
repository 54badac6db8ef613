"""The shop of the demo: a table of orders, a topic that is fed by it, a view over it, and who writes.

There are never more than `ORDERS_MAX` orders, and their numbers come again. How much is kept of what happened to them
is bounded too, so the demo may run for as long as it likes.
"""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any, Final

from tailrace.client import Client
from tailrace.errors import Conflict, NotFound

TABLE: Final = "orders"
TOPIC: Final = "app.new_orders"
VIEW: Final = "app.totals"
QUESTION: Final = "SELECT status, count(*) AS n, sum(total) AS total FROM orders GROUP BY status"

ORDERS_MAX: Final = 100  # at any time
NUMBER_MAX: Final = 999  # after it they begin again
CHANGES_KEPT: Final = 200  # in the database; what is older is read from cold storage
MESSAGES_KEPT_S: Final = 3_600
MARK: Final = {"Key": "tailrace:demo", "Value": "orders"}

TABLE_SQL: Final = (
    f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, customer TEXT, status TEXT, total DECIMAL) "
    "WITH (stream = 'NEW_AND_OLD_IMAGES')"
)
TOPIC_SQL: Final = (
    f"CREATE TOPIC IF NOT EXISTS {TOPIC} WITH (retention_seconds = {MESSAGES_KEPT_S}); "
    f"ALTER TOPIC {TOPIC} ADD SOURCE {TABLE} ON INSERT WITH (payload = 'full')"
)
VIEW_SQL: Final = f"CREATE MATERIALIZED VIEW {VIEW} AS {QUESTION}"

_CUSTOMERS: Final = ("ann", "bob", "cleo", "dora", "emil", "finn", "gus")
_NEXT: Final = {"new": "paid", "paid": "sent"}  # and what was sent is deleted

Row = dict[str, Any]


def prepare(client: Client, changes_kept: int | None = None) -> None:
    """Make what is not there yet. A table of that name which the demo did not make is left alone: `Conflict`."""
    found = _arn(client)
    if found is None:
        client.sql(TABLE_SQL)
        client.call("TagResource", {"ResourceArn": _arn(client), "Tags": [MARK]})
    elif MARK not in client.call("ListTagsOfResource", {"ResourceArn": found})["Tags"]:
        raise Conflict(f"there is a table {TABLE!r} already, which the demo did not make and leaves alone")
    if not any(each.name == TOPIC for each in client.topics()):
        client.sql(TOPIC_SQL)
    if not any(each["name"] == VIEW for each in client.views()):
        client.sql(VIEW_SQL)
    if changes_kept is not None:
        for table in (TABLE, VIEW):
            client.alter_retention(table, {"max_count": changes_kept})


def _arn(client: Client) -> str | None:
    try:
        found: str = client.call("DescribeTable", {"TableName": TABLE})["Table"]["TableArn"]
    except NotFound:
        return None
    return found


class Shop:
    """Writes orders, one write at a time, and knows what the table must be."""

    def __init__(self, client: Client, seed: int = 0) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._number = 0
        self.orders: dict[str, Row] = {}
        self.inserted: list[str] = []
        self.writes = 0

    def resume(self) -> None:
        """Take over the orders that are there from an earlier run."""
        rows = self._client.sql(f"SELECT id, customer, status, total FROM {TABLE} ORDER BY id")[-1].rows
        self.orders = {
            row["id"]: {**row, "total": float(row["total"])} for row in rows if str(row["id"]).startswith("o-")
        }
        self._number = self._random.randrange(NUMBER_MAX)

    def write(self) -> str:
        """Do the next write: an order that comes, moves on, or goes. Its id."""
        if len(self.orders) < 3 or (len(self.orders) < ORDERS_MAX and self._random.random() < 0.4):
            return self.insert()
        order = self.orders[self._random.choice(sorted(self.orders))]
        then = _NEXT.get(order["status"])
        if then is None:
            self._client.sql(f"DELETE FROM {TABLE} WHERE id = ?", [order["id"]])
            del self.orders[order["id"]]
        else:
            self._put({**order, "status": then})
        self.writes += 1
        return str(order["id"])

    def insert(self) -> str:
        """A new order, with a number that none has."""
        while True:
            self._number = self._number % NUMBER_MAX + 1
            name = f"o-{self._number:03d}"
            if name not in self.orders:
                break
        cents = self._random.randrange(100, 30_000)
        self._put({"id": name, "customer": self._random.choice(_CUSTOMERS), "status": "new", "total": cents / 100})
        self.inserted.append(name)
        self.writes += 1
        return name

    def _put(self, order: Row) -> None:
        values = [order[name] for name in ("id", "customer", "status", "total")]
        self._client.sql(f"INSERT OR REPLACE INTO {TABLE} VALUES (?, ?, ?, ?)", values)
        self.orders[order["id"]] = order


def exact(rows: list[Row]) -> list[Row]:
    """Rows whose numbers can be compared, whoever gave them."""
    return [
        {
            name: Decimal(str(value)) if isinstance(value, int | float | Decimal) else value
            for name, value in row.items()
        }
        for row in rows
    ]

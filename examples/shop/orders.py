"""The shop: a table of orders, a topic that a route feeds from it, a view over it, and a writer.

There are never more than `ORDERS_MAX` orders, and their numbers are reused. History is bounded too, so the shop can
run for any length of time.
"""

from __future__ import annotations

import random
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import Conflict, NotFound

if TYPE_CHECKING:
    from tailrace.client import Client

TABLE: Final = "orders"
TOPIC: Final = "app.new_orders"
VIEW: Final = "app.totals"
QUERY: Final = "SELECT status, count(*) AS n, sum(total) AS total FROM orders GROUP BY status"

ORDERS_MAX: Final = 100  # at any time
NUMBER_MAX: Final = 999  # after it, numbers start again at 1
CHANGES_KEPT: Final = 200  # in the database; older changes are read from cold storage
MESSAGES_KEPT_S: Final = 3_600
TAG: Final = {"Key": "tailrace:demo", "Value": "orders"}

TABLE_SQL: Final = (
    f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, customer TEXT, status TEXT, total DECIMAL) "
    "WITH (stream = 'NEW_AND_OLD_IMAGES')"
)
TOPIC_SQL: Final = (
    f"CREATE TOPIC IF NOT EXISTS {TOPIC} WITH (retention_seconds = {MESSAGES_KEPT_S}); "
    f"ALTER TOPIC {TOPIC} ADD SOURCE {TABLE} ON INSERT WITH (payload = 'full')"
)
VIEW_SQL: Final = f"CREATE MATERIALIZED VIEW {VIEW} AS {QUERY}"

_CUSTOMERS: Final = ("ann", "bob", "cleo", "dora", "emil", "finn", "gus")
_NEXT: Final = {"new": "paid", "paid": "sent"}  # an order that was sent is deleted

Row = dict[str, Any]


def prepare(client: Client, changes_kept: int | None = None) -> None:
    """Create what is missing. A table of that name which the shop did not create is left alone: `Conflict`."""
    arn = _arn(client)
    if arn is None:
        client.sql(TABLE_SQL)
        client.call("TagResource", {"ResourceArn": _arn(client), "Tags": [TAG]})
    elif TAG not in client.call("ListTagsOfResource", {"ResourceArn": arn})["Tags"]:
        raise Conflict(f"there is already a table {TABLE!r}, which this demo did not create and leaves alone")
    if not any(each.name == TOPIC for each in client.topics()):
        client.sql(TOPIC_SQL)
    if not any(each["name"] == VIEW for each in client.views()):
        client.sql(VIEW_SQL)
    if changes_kept is not None:
        client.alter_retention(TABLE, {"max_count": changes_kept})
        with suppress(NotFound):  # the view has no table before the pipeline has planned it
            client.alter_retention(VIEW, {"max_count": changes_kept})


def view_has_rows(client: Client) -> bool:
    """Whether the pipeline has filled the view."""
    try:
        return bool(client.call("Scan", {"TableName": VIEW, "Limit": 1})["Count"])
    except NotFound:
        return False


def _arn(client: Client) -> str | None:
    try:
        arn: str = client.call("DescribeTable", {"TableName": TABLE})["Table"]["TableArn"]
    except NotFound:
        return None
    return arn


class Shop:
    """Writes orders, one write at a time, and knows the rows that the table must have."""

    def __init__(self, client: Client, seed: int = 0) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._number = 0
        self.orders: dict[str, Row] = {}
        self.inserted: list[str] = []
        self.writes = 0

    def resume(self) -> None:
        """Take over the orders of an earlier run."""
        items = self._client.call("Scan", {"TableName": TABLE})["Items"]
        self.orders = {row["id"]: row for row in map(_row, items) if row["id"].startswith("o-")}
        self._number = self._random.randrange(NUMBER_MAX)

    def write(self) -> str:
        """Do the next write: an order is created, moves on, or is deleted. Returns its id."""
        if len(self.orders) < 3 or (len(self.orders) < ORDERS_MAX and self._random.random() < 0.4):
            return self.insert()
        order = self.orders[self._random.choice(sorted(self.orders))]
        status = _NEXT.get(order["status"])
        if status is None:
            self._client.sql(f"DELETE FROM {TABLE} WHERE id = ?", [order["id"]])
            del self.orders[order["id"]]
        else:
            self._put({**order, "status": status})
        self.writes += 1
        return str(order["id"])

    def insert(self) -> str:
        """Create an order with an unused number. Returns its id."""
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


def _row(item: dict[str, Any]) -> Row:
    """An item of the DynamoDB API as a row."""
    text = {name: item.get(name, {}).get("S") for name in ("id", "customer", "status")}
    return {**text, "total": float(item.get("total", {}).get("N", 0))}


def exact(rows: list[Row]) -> list[Row]:
    """Rows whose numbers compare equal, whichever API returned them."""
    return [
        {
            name: Decimal(str(value)) if isinstance(value, int | float | Decimal) else value
            for name, value in row.items()
        }
        for row in rows
    ]

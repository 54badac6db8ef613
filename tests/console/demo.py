"""A small data set for the console: a shop with orders, a route, groups, dead letters, streams and a fork."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tailrace.bulk.queries import LogSelector
from tailrace.database import ColdStorage, Database
from tailrace.jobs.apply import ApplyView
from tailrace.jobs.view import DescribeView
from tailrace.jobs.view_fill import BeginFill, FinishFill
from tailrace.storage.sqlite import SqliteEngine
from tailrace.topics.consuming import Ack, Consume
from tests.support import views
from tests.support.cold import tier

CUSTOMERS = ("ann", "bob", "cyd", "dan", "eve")
STATES = ("new", "paid", "packed", "sent")


def followed_write(data_dir: Path) -> int:
    """Makes a database with a write of which everything came that can: messages that were consumed, rows of a view, a
    file in cold storage; its sequence. The table is `payments`."""
    cold = ColdStorage(str(data_dir / "cold"))
    with Database(SqliteEngine(data_dir), housekeeping_s=None, cold=cold) as db:
        views.run(db, "CREATE TABLE payments (id TEXT PRIMARY KEY, status TEXT, amount BIGINT) WITH (stream = true)")
        views.run(db, "CREATE TOPIC shop.payments; ALTER TOPIC shop.payments ADD SOURCE payments ON INSERT")
        select = "SELECT status, count(*) AS n FROM payments GROUP BY status"
        views.run(db, f"CREATE MATERIALIZED VIEW revenue AS {select}")
        views.plan(db, "revenue", ("status", "string"), ("n", "bigint"))
        fill = db.execute(BeginFill("revenue"))
        db.execute(FinishFill("revenue", fill, {"payments": db.execute(views.Items("payments"))[0]}))
        for number, (status, count) in enumerate((("paid", 1), ("open", 1), ("paid", 2))):
            db.table("payments").put({"id": f"p-{number}", "status": status, "amount": 20 + number})
            (source,) = db.execute(DescribeView("revenue")).sources
            rows = views.stage(db, "revenue", [("PUT", {"status": {"S": status}, "n": {"N": str(count)}})])
            db.execute(ApplyView("revenue", {source.log: (source.position or 0, source.next)}, (rows,), 1))
        for group, consumer in (("ledger", "ledger-1"), ("mail", "mailer-2")):
            db.execute(Consume("shop.payments", group, consumer=consumer))
            db.execute(Ack("shop.payments", group, 2, consumer=consumer))
        tier(db, LogSelector("table", "payments"), 3)
        return db.table("payments").changes()[-1].sequence


class Shop:
    """Fills a server through its HTTP API."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60)

    def close(self) -> None:
        self.http.close()

    def sql(self, text: str) -> list[dict[str, Any]]:
        answer = self.http.post("/v1/api/sql", json={"sql": text})
        assert answer.status_code == 200, answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def dynamodb(self, operation: str, **parameters: Any) -> dict[str, Any]:
        headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"DynamoDB_20120810.{operation}"}
        answer = self.http.post("/", content=json.dumps(parameters), headers=headers)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def stream(self, path: str, *messages: Any, **headers: str) -> None:
        fields = {
            "content-type": "application/json",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        assert self.http.put(f"/v1/stream/{path}", headers=fields).status_code in (200, 201)
        for message in messages:
            answer = self.http.post(f"/v1/stream/{path}", json=[message], headers={"content-type": "application/json"})
            assert answer.status_code == 204, answer.text

    def fill(self, orders: int = 60) -> None:
        """Everything that a page can show."""
        self.tables(orders)
        self.topics()
        self.pipeline()
        users = (
            ("ann", "dba", None),
            ("shop", "service", None),
            ("cashier", "user", ["tables/orders", "streams/logs/*"]),
        )
        for name, role, access in users:
            answer = self.http.post("/v1/admin/users", json={"name": name, "role": role, "access": access})
            assert answer.status_code == 201, answer.text
        assert self.http.post("/v1/admin/keys", json={"principal": "shop"}).status_code == 201
        for number in range(3):
            place = {"host": f"web-{number}", "path": "/cart", "status": 200, "ms": 12.5 + number}
            self.stream(f"logs/web-{number}", *({**place, "request": each} for each in range(8)))
        self.stream("docs/readme", {"insert": "Hello"}, {"insert": ", world"}, stream_ttl="86400")
        self.stream("docs/readme-draft", stream_forked_from="/v1/stream/docs/readme")
        self.stream("docs/readme-draft-2", stream_forked_from="/v1/stream/docs/readme-draft")
        self.stream("docs/" + "a-very-long-name-" * 9, {"long": True})

    def tables(self, orders: int) -> None:
        self.sql(
            "CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, status TEXT, total DECIMAL, lines JSON)"
            " WITH (stream = 'NEW_AND_OLD_IMAGES');"
            "CREATE TABLE empty (id TEXT PRIMARY KEY)"
        )
        text = [{"AttributeName": name, "AttributeType": "S"} for name in ("id", "city")]
        by_city = [{"AttributeName": "city", "KeyType": "HASH"}, {"AttributeName": "id", "KeyType": "RANGE"}]
        self.dynamodb(
            "CreateTable", TableName="customers", AttributeDefinitions=text, BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            GlobalSecondaryIndexes=[
                {"IndexName": "by_city", "KeySchema": by_city, "Projection": {"ProjectionType": "ALL"}}
            ],
        )  # fmt: skip
        self.sql("CREATE TOPIC shop.failed")
        self.sql("CREATE TOPIC shop.new_orders PARTITIONS 2 WITH (max_attempts = 1, dead_letter = shop.failed)")
        self.sql("CREATE TOPIC shop.large_orders")
        self.sql("ALTER TOPIC shop.new_orders ADD SOURCE orders ON INSERT WITH (payload = 'full')")
        self.sql(
            "ALTER TOPIC shop.large_orders ADD SOURCE orders ON INSERT WHERE (total >= 300) WITH (payload = 'full')"
        )
        for name in CUSTOMERS:
            city = "Basel" if name < "cyd" else "Ulm"
            item = {"id": {"S": name}, "name": {"S": name.title()}, "city": {"S": city}}
            self.dynamodb("PutItem", TableName="customers", Item=item)
        for number in range(orders):
            self.put_order(number)
        for state in STATES[1:]:
            self.sql(f"UPDATE orders SET status = '{state}' WHERE id = 'o-0007'")

    def put_order(self, number: int, **more: Any) -> None:
        customer, total = CUSTOMERS[number % len(CUSTOMERS)], number * 37 % 500
        item = {
            "id": {"S": f"o-{number:04}"}, "customer": {"S": customer}, "status": {"S": STATES[number % 2]},
            "total": {"N": str(total)}, "lines": {"L": [{"M": {"sku": {"S": f"sku-{number % 9}"}, "n": {"N": "2"}}}]},
        }  # fmt: skip
        self.dynamodb("PutItem", TableName="orders", Item={**item, **more})

    def pipeline(self) -> None:
        """A job as its driver would register it, and a view that no job has filled yet."""
        self.sql("CREATE MATERIALIZED VIEW totals AS SELECT status, count(*) AS n FROM orders GROUP BY status")
        job = {"kind": "tier", "source": "orders", "target": "cold storage"}
        assert self.http.put("/v1/jobs/tier", json=job).status_code == 200
        report = {"state": "running", "rows": 63, "message": "63 entries of 1 log"}
        assert self.http.post("/v1/jobs/tier/report", json=report).status_code == 200

    def topics(self) -> None:
        """The group `mail` is behind; `billing` has failed on one message."""
        self.consume("shop.new_orders", "mail", 20, ack=True)
        self.consume("shop.new_orders", "billing", 5, ack=False)
        self.consume("shop.new_orders", "billing", 5, ack=True)
        self.consume("shop.large_orders", "fraud-check", 100, ack=True)

    def consume(self, topic: str, group: str, count: int, *, ack: bool, consumer: str = "") -> None:
        body = {"topic": topic, "group_id": group, "limit": count, "partition_id": 0, "consumer_id": consumer}
        answer = self.http.post("/v1/api/topics/consume", json=body)
        assert answer.status_code == 200, answer.text
        messages = answer.json()["messages"]
        last = messages[-1]["offset"] if messages else None
        if last is None:
            return
        target = {"topic": topic, "group_id": group, "partition_id": 0, "consumer_id": consumer}
        if ack:
            done = self.http.post("/v1/api/topics/ack", json={**target, "upto_offset": last})
        else:
            done = self.http.post("/v1/api/topics/nack", json=target)
        assert done.status_code == 200, done.text

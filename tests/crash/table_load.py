"""Clients of the DynamoDB API that keep a ledger of what was acknowledged, and hold a server to it after a crash.

As in `load`: each client owns its items, so it knows what must be there; what was under way when the connection broke
is there or not, and `settle` adopts which of the two it is. A transaction is sent again with its token instead.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import urlsplit

from tests.crash.load import Lost
from tests.support.patience import PATIENCE_S

ORDERS, STOCK = "orders", "stock"
BALLAST = 600


class Refused(Exception):
    """The server has answered with an error."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.kind = str(body.get("__type", "")).rpartition("#")[2]


class Caller:
    """One kept-alive connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)

    def __call__(self, operation: str, **request: Any) -> Any:
        headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{operation}"}
        try:
            self._connection.request("POST", "/", json.dumps(request).encode(), headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Lost(f"{operation}: {error!r}") from error
        if answer.status != 200:
            raise Refused(answer.status, json.loads(body))
        return json.loads(body) if body else {}

    def get(self, table: str, name: str) -> dict[str, Any] | None:
        answer = self("GetItem", TableName=table, Key={"id": {"S": name}}, ConsistentRead=True)
        item: dict[str, Any] | None = answer.get("Item")
        return item

    def close(self) -> None:
        self._connection.close()


class Client(ABC):
    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = random.Random(f"{name} {seed}")
        self.acknowledged = 0

    @abstractmethod
    def step(self, call: Caller) -> None:
        """Send one request. Raises `Lost` when it broke off; the ledger then says that its outcome is unknown."""

    @abstractmethod
    def settle(self, call: Caller) -> None:
        """Hold the server to the ledger and resolve what was unknown."""


class Writer(Client):
    """Puts, updates and deletes items of its own."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.items: dict[str, dict[str, Any] | None] = {}
        self.unknown: tuple[str, dict[str, Any] | None] | None = None
        self.number = 0

    def step(self, call: Caller) -> None:
        self.number += 1
        name = f"{self.name}-{self.chance.randrange(6)}"
        item: dict[str, Any] | None = {
            "id": {"S": name},
            "n": {"N": str(self.number)},
            "group": {"S": self.chance.choice("abc")},
            "pad": {"S": "x" * self.chance.choice([1, 10, 2000])},
        }
        if self.chance.random() < 0.25:
            item = None
        self.unknown = (name, item)
        if item is None:
            call("DeleteItem", TableName=ORDERS, Key={"id": {"S": name}})
        else:
            call("PutItem", TableName=ORDERS, Item=item)
        self.items[name] = item
        self.unknown = None
        self.acknowledged += 1

    def settle(self, call: Caller) -> None:
        for name, item in self.items.items():
            found = call.get(ORDERS, name)
            allowed = [item]
            if self.unknown is not None and self.unknown[0] == name:
                allowed.append(self.unknown[1])
            assert found in allowed, f"{name}: found {found}, expected one of {allowed}"
            self.items[name] = found
        if self.unknown is not None:
            self.items[self.unknown[0]] = call.get(ORDERS, self.unknown[0])
        self.unknown = None


class Mover(Client):
    """Adds one to an item in each of two tables, with a token that makes it safe to ask again."""

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self.sent = 0
        self.unknown = False

    def step(self, call: Caller) -> None:
        self.unknown = True
        one = {"ExpressionAttributeValues": {":one": {"N": "1"}}, "UpdateExpression": "ADD n :one"}
        actions = [{"Update": {"TableName": name, "Key": {"id": {"S": self.name}}, **one}} for name in (ORDERS, STOCK)]
        call("TransactWriteItems", ClientRequestToken=f"{self.name}-{self.sent}", TransactItems=actions)
        self.sent += 1
        self.unknown = False
        self.acknowledged += 1

    def settle(self, call: Caller) -> None:
        found = self.found(call)
        assert found in ({self.sent, self.sent + 1} if self.unknown else {self.sent}), f"{found}, sent {self.sent}"
        if self.unknown:
            self.step(call)
            assert self.found(call) == self.sent, "the repetition was not applied exactly once"

    def found(self, call: Caller) -> int:
        items = [call.get(table, self.name) for table in (ORDERS, STOCK)]
        numbers = {0 if item is None else int(item["n"]["N"]) for item in items}
        assert len(numbers) == 1, f"{self.name}: the transaction is in one table only: {items}"
        return numbers.pop()


class Passing(Client):
    """Puts items whose time is over: they may be gone at any moment, whole."""

    def step(self, call: Caller) -> None:
        item = {"id": {"S": f"{self.name}-{self.acknowledged}"}, "until": {"N": str(int(time.time()) - 5)}}
        call("PutItem", TableName=STOCK, Item={**item, "group": {"S": "t"}, "n": {"N": "1"}})
        self.acknowledged += 1

    def settle(self, call: Caller) -> None:
        for number in range(max(0, self.acknowledged - 3), self.acknowledged):
            found = call.get(STOCK, f"{self.name}-{number}")
            assert found is None or found["n"] == {"N": "1"}


class Indexer(Client):
    """Makes and deletes an index of a table that has items, whether or not it was filled meanwhile."""

    LIVE = "live"

    def step(self, call: Caller) -> None:
        names = {index["IndexName"] for index in self.described(call)}
        if self.LIVE in names:
            change: dict[str, Any] = {"Delete": {"IndexName": self.LIVE}}
        else:
            keys = [{"AttributeName": "kind", "KeyType": "HASH"}]
            projection = {"ProjectionType": "KEYS_ONLY"}
            change = {"Create": {"IndexName": self.LIVE, "KeySchema": keys, "Projection": projection}}
        attributes = [{"AttributeName": name, "AttributeType": "S"} for name in ("id", "kind")]
        call("UpdateTable", TableName=ORDERS, AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=[change])
        self.acknowledged += 1

    def settle(self, call: Caller) -> None:
        """Unfinished work is completed without a further command."""
        deadline = time.monotonic() + PATIENCE_S
        while any(index["IndexStatus"] != "ACTIVE" for index in self.described(call)):
            assert time.monotonic() < deadline, "the index is not filled"
            time.sleep(0.01)
        if self.LIVE in {index["IndexName"] for index in self.described(call)}:
            value = {":x": {"S": "x"}}
            parameters = {"KeyConditionExpression": "kind = :x", "ExpressionAttributeValues": value, "Select": "COUNT"}
            assert call("Query", TableName=ORDERS, IndexName=self.LIVE, **parameters)["Count"] == BALLAST

    def described(self, call: Caller) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = call("DescribeTable", TableName=ORDERS)["Table"]["GlobalSecondaryIndexes"]
        return found


class TableLoad:
    """All clients, each in a thread of its own while it runs."""

    def __init__(self, seed: int) -> None:
        self.clients: list[Client] = [
            *(Writer(f"writer{number}", seed) for number in range(3)),
            *(Mover(f"mover{number}", seed) for number in range(2)),
            Passing("passing", seed),
            Indexer("indexer", seed),
        ]

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    def prepare(self, url: str) -> None:
        """The tables, and enough items that filling an index takes several steps."""
        call = Caller(url)
        for name, view in ((ORDERS, "NEW_AND_OLD_IMAGES"), (STOCK, "NEW_IMAGE")):
            keys = [{"AttributeName": "group", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}]
            index = {"IndexName": "by-group", "KeySchema": keys, "Projection": {"ProjectionType": "ALL"}}
            kinds = {"id": "S", "group": "S", "n": "N"}
            call(
                "CreateTable",
                TableName=name,
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in kinds.items()],
                BillingMode="PAY_PER_REQUEST",
                GlobalSecondaryIndexes=[index],
                StreamSpecification={"StreamEnabled": True, "StreamViewType": view},
            )
        attribute = {"AttributeName": "until", "Enabled": True}
        call("UpdateTimeToLive", TableName=STOCK, TimeToLiveSpecification=attribute)
        for first in range(0, BALLAST, 25):
            items = [{"id": {"S": f"ballast-{n}"}, "kind": {"S": "x"}} for n in range(first, first + 25)]
            call("BatchWriteItem", RequestItems={ORDERS: [{"PutRequest": {"Item": item}} for item in items]})
        call.close()

    def run(self, url: str, *, until: int | None = None) -> bool:
        """Write until the server is gone or so many requests were acknowledged; whether it is gone."""
        ends = time.monotonic() + PATIENCE_S
        goal = None if until is None else self.acknowledged + until
        lost = threading.Event()
        failures: list[BaseException] = []

        def work(client: Client) -> None:
            call = Caller(url)
            try:
                while not lost.is_set() and not failures and time.monotonic() < ends:
                    if goal is not None and self.acknowledged >= goal:
                        return
                    client.step(call)
            except Lost:
                lost.set()
            except BaseException as error:
                failures.append(error)
            finally:
                call.close()

        threads = [threading.Thread(target=work, args=(client,), name=client.name) for client in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return lost.is_set()

    def settle(self, url: str) -> None:
        call = Caller(url)
        for client in self.clients:
            client.settle(call)
        call.close()

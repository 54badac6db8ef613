"""A writer that knows what it was acknowledged: each write is sent until it is answered, and counts once.

Messages go to a JSON stream, several to an append, with a producer's numbers. Items of a table are put, changed and
deleted on condition of the version that they had, or in a transaction with a token. So a write whose answer was lost
can be sent again. On SIGTERM it finishes the current write and leaves its model in a file.

    python -m tests.cluster.writing URL SEED MODEL PAUSE_MS
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tailrace.cli.signals import stop_on_signals
from tailrace.client import Client
from tailrace.errors import Conflict, TooMany, Unavailable

TABLE, STREAM = "orders", "journal"
KEYS = 300
STATES = ("new", "paid", "sent", "back")


def create(client: Client) -> None:
    """What is written to."""
    client.sql(f"CREATE TABLE {TABLE} (id TEXT PRIMARY KEY, status TEXT, total DECIMAL, v BIGINT) WITH (stream = true)")
    client.create(STREAM, "application/json")


class Writer:
    """Both, in turn. `messages` and `items` are what the server has acknowledged."""

    def __init__(self, url: str, seed: int) -> None:
        self._client = Client(url)
        self._http = httpx.Client(base_url=url, timeout=10)
        self._chance = random.Random(f"writer {seed}")
        self._appends = 0
        self._version = 0
        self.messages: list[Any] = []
        self.items: dict[str, dict[str, Any]] = {}
        self.writes = 0

    def step(self) -> None:
        what = self._chance.random()
        if what < 0.4:
            self._append()
        elif what < 0.85:
            self._put(self._key())
        elif what < 0.93:
            self._delete(self._key())
        else:
            self._transact()
        self.writes += 1

    # -- the stream

    def _append(self) -> None:
        first = len(self.messages)
        made = [
            {"n": first + each, "x": self._chance.randrange(1000)} for each in range(self._chance.choice((1, 1, 2, 5)))
        ]
        headers = {
            "content-type": "application/json",
            "producer-id": "writer",
            "producer-epoch": "0",
            "producer-seq": str(self._appends),
        }
        body = json.dumps(made)

        def send() -> None:
            try:
                answer = self._http.post(f"/v1/stream/{STREAM}", content=body, headers=headers)
            except httpx.HTTPError as error:
                raise Unavailable(str(error)) from error
            if answer.status_code >= 429:
                raise Unavailable(answer.text)
            assert answer.status_code in (200, 204), f"{answer.status_code} {answer.text}"

        again(send)
        self._appends += 1
        self.messages += made

    # -- the table

    def _key(self) -> str:
        return f"k{self._chance.randrange(KEYS)}"

    def _made(self, key: str) -> dict[str, Any]:
        self._version += 1
        cents = self._chance.randrange(100_000)
        return {"id": key, "status": self._chance.choice(STATES), "total": f"{cents / 100:.2f}", "v": self._version}

    def _condition(self, key: str) -> dict[str, Any]:
        """That the item is as the last acknowledged write left it."""
        known = self.items.get(key)
        if known is None:
            return {"ConditionExpression": "attribute_not_exists(id)"}
        values = {":v": {"N": str(known["v"])}}
        return {"ConditionExpression": "v = :v", "ExpressionAttributeValues": values}

    def _put(self, key: str) -> None:
        item = self._made(key)
        self._conditionally(key, item, "PutItem", {"Item": typed(item)})
        self.items[key] = item

    def _delete(self, key: str) -> None:
        if key in self.items:
            self._conditionally(key, None, "DeleteItem", {"Key": {"id": {"S": key}}})
            del self.items[key]

    def _conditionally(self, key: str, wanted: dict[str, Any] | None, operation: str, request: dict[str, Any]) -> None:
        """Send it; where the condition does not hold any more, it was done before."""
        body = {"TableName": TABLE, **request, **self._condition(key)}

        def send() -> None:
            try:
                self._client.call(operation, body)
            except Conflict:
                parameters = {"TableName": TABLE, "Key": {"id": {"S": key}}, "ConsistentRead": True}
                found = self._client.call("GetItem", parameters).get("Item")
                done = found is None if wanted is None else found is not None and found["v"]["N"] == str(wanted["v"])
                if not done:
                    raise

        again(send)

    def _transact(self) -> None:
        keys = sorted({self._key() for _ in range(3)})
        made = [self._made(key) for key in keys]
        body = {
            "ClientRequestToken": f"t{self._version}",
            "TransactItems": [{"Put": {"TableName": TABLE, "Item": typed(item)}} for item in made],
        }
        again(lambda: self._client.call("TransactWriteItems", body))
        self.items.update({item["id"]: item for item in made})


def typed(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": {"S": item["id"]},
        "status": {"S": item["status"]},
        "total": {"N": item["total"]},
        "v": {"N": str(item["v"])},
    }


def again(send: Callable[[], Any]) -> None:
    """Until it is answered."""
    end = time.monotonic() + 120
    while True:
        try:
            send()
            return
        except (Unavailable, TooMany):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main(url: str, seed: str, model: str, pause_ms: str) -> None:
    stop = threading.Event()
    with stop_on_signals(stop, signal.SIGTERM):
        writer = Writer(url, int(seed))
        while not stop.wait(int(pause_ms) / 1000):
            writer.step()
    found = {"messages": writer.messages, "items": writer.items, "writes": writer.writes}
    Path(model).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

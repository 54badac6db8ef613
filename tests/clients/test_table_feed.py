"""The official Durable Streams clients follow a table's changes live while boto3 writes to it.

Live tests wait for what they expect, never for a time: each write follows a read that was seen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from durable_streams import DurableStream, DurableStreamError, stream

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

HERE = Path(__file__).resolve().parent


class Orders:
    """A table with a change stream, written to by boto3."""

    def __init__(self, url: str) -> None:
        resource = boto3.session.Session().resource(
            "dynamodb",
            endpoint_url=url,
            region_name="eu-central-1",
            aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
            aws_secret_access_key="not-a-secret",
        )
        self.table: Any = resource.create_table(
            TableName=f"orders-{uuid.uuid4()}",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        self.table.wait_until_exists()
        self.feed = f"{url}/v1/tables/{self.table.name}/stream"

    def step(self, number: int) -> None:
        """The next change of a history that has every kind of them."""
        match number:
            case 0:
                self.table.put_item(Item={"pk": "a", "price": Decimal("12.50"), "tags": {"new"}, "blob": b"\x00\xff"})
            case 1:
                self.table.update_item(
                    Key={"pk": "a"},
                    UpdateExpression="SET price = price + :more",
                    ExpressionAttributeValues={":more": 1},
                )
            case 2:
                self.table.meta.client.transact_write_items(
                    TransactItems=[
                        {"Put": {"TableName": self.table.name, "Item": {"pk": pk, "list": [1, None, {"x": True}]}}}
                        for pk in "bcd"
                    ]
                )
            case 3:
                self.table.put_item(Item={"pk": "b", "list": [1, None, {"x": True}]})  # changes nothing: no record
                self.table.delete_item(Key={"pk": "a"})

    def close(self) -> None:
        self.table.meta.client.update_table(TableName=self.table.name, StreamSpecification={"StreamEnabled": False})


STEPS = 4
LAST = {0: 1, 1: 2, 2: 5, 3: 6}  # how many records there are after each step
INSERTED = {"pk": "a", "price": 12.5, "tags": ["new"], "blob": "AP8="}
CHANGED = {**INSERTED, "price": 13.5}
LIST = [1, None, {"x": True}]
HISTORY = [
    ("INSERT", None, INSERTED, 0, True),
    ("MODIFY", INSERTED, CHANGED, 0, True),
    *(("INSERT", None, {"pk": pk, "list": LIST}, index, index == 2) for index, pk in enumerate("bcd")),
    ("REMOVE", CHANGED, None, 0, True),
]


def judge(records: list[dict[str, Any]], table: str) -> None:
    """That these records are the whole history, in order."""
    assert [(each["event"], each["old"], each["new"], each["index"], each["last"]) for each in records] == HISTORY
    assert {each["table"] for each in records} == {table}
    assert [each["keys"]["pk"] for each in records] == list("aabcda")
    places = [(each["sequence"], each["index"]) for each in records]
    assert places == sorted(set(places))
    assert len({each["sequence"] for each in records}) == STEPS
    assert [each["at"] for each in records] == sorted(each["at"] for each in records)


@pytest.fixture
def orders(server: ServerProcess) -> Orders:
    return Orders(server.url)


@pytest.fixture
def follow(request: pytest.FixtureRequest, orders: Orders) -> Iterator[subprocess.Popen[str]]:
    """follow.mjs on the table's feed, in the live mode that the test is parametrized with."""
    executable = shutil.which("node")
    assert executable is not None, "node is not installed; `make node-modules` installs it where it can"
    assert (HERE / "node_modules").is_dir(), f"{HERE}/node_modules is missing; run `make node-modules`"
    process = subprocess.Popen(
        [executable, "follow.mjs", orders.feed, request.param],
        cwd=HERE,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("follow", ["long-poll", "sse"], indirect=True)
def test_the_javascript_client_follows_a_table(orders: Orders, follow: subprocess.Popen[str]) -> None:
    assert follow.stdout is not None
    records: list[dict[str, Any]] = []
    steps = 0
    for line in follow.stdout:
        what, *rest = json.loads(line)
        if what == "closed":
            break
        if what == "ready":
            assert rest == [405]
        else:
            records += rest
        if steps < STEPS and (steps == 0 or len(records) == LAST[steps - 1]):
            orders.step(steps)
            steps += 1
        elif len(records) == LAST[STEPS - 1]:
            orders.close()
    else:
        pytest.fail(f"it ended with {follow.wait()} after {len(records)} records")
    judge(records, orders.table.name)
    assert follow.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_python_client_follows_a_table(orders: Orders, live: Any) -> None:
    orders.step(0)
    records: list[dict[str, Any]] = []
    steps = 1
    with stream(orders.feed, offset="-1", live=live) as response:
        for record in response.iter_json():
            records.append(record)
            if len(records) == len(HISTORY):
                break
            if len(records) == LAST[steps - 1]:
                orders.step(steps)
                steps += 1
    judge(records, orders.table.name)


def test_a_reader_goes_on_where_it_stopped(orders: Orders) -> None:
    records: list[dict[str, Any]] = []
    offset = "-1"
    for number in range(STEPS):
        orders.step(number)
        with stream(orders.feed, offset=offset, live=False) as response:
            records += response.read_json()
            assert response.up_to_date
            offset = response.offset
    judge(records, orders.table.name)


def test_typed_values_keep_every_digit(orders: Orders) -> None:
    number = "1234567890123456789012345678901234567.8"
    orders.table.put_item(Item={"pk": "a", "number": Decimal(number)})
    with stream(f"{orders.feed}?values=typed", offset="-1", live=False) as response:
        (record,) = response.read_json()
    assert record["new"] == {"pk": {"S": "a"}, "number": {"N": number}}


def test_a_feed_takes_no_appends(orders: Orders) -> None:
    orders.step(0)
    with DurableStream.connect(orders.feed) as handle:
        assert handle.content_type == "application/json"
        with pytest.raises(DurableStreamError) as refused:
            handle.append({"n": 1})
        assert refused.value.status == 405
    for method in ("PUT", "POST", "DELETE"):
        answer = httpx.request(
            method, orders.feed, content=b"{}", headers={"content-type": "application/json"}, timeout=PATIENCE_S
        )
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD, PATCH, OPTIONS"
    with stream(orders.feed, offset="-1", live=False) as response:
        assert len(response.read_json()) == 1

"""boto3 and what is easily got wrong at the edges: names and keys beyond their limits, and the address / itself."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

LONGEST = "n" * 65_535
NAME_TOO_LONG = "Attribute name is too large, must be less than 65536 bytes"
EMPTY_NAME = "Empty attribute name"
HASH_TOO_LONG = "Size of hashkey has exceeded the maximum size limit of2048 bytes"


def s(text: str) -> dict[str, str]:
    return {"S": text}


# -- names of attributes


def test_the_longest_name(client: Any, hashed: str) -> None:
    key = {"pk": s("a")}
    client.put_item(TableName=hashed, Item={**key, LONGEST: s("x")})
    placeholder = {"#n": LONGEST}
    client.update_item(
        TableName=hashed,
        Key=key,
        UpdateExpression="SET #n = :y",
        ConditionExpression="#n = :x",
        ExpressionAttributeNames=placeholder,
        ExpressionAttributeValues={":x": s("x"), ":y": s("y")},
    )
    got = client.get_item(TableName=hashed, Key=key, AttributesToGet=[LONGEST])
    assert got["Item"] == {LONGEST: s("y")}


@pytest.mark.parametrize(
    ("name", "message"), [("", EMPTY_NAME), (LONGEST + "n", NAME_TOO_LONG), ("ü" * 32_768, NAME_TOO_LONG)]
)
def test_names_that_no_attribute_can_have(client: Any, refuses: Any, hashed: str, name: str, message: str) -> None:
    key = {"pk": s("a")}
    item = {**key, name: s("x")}
    placeholder: Any = {"ExpressionAttributeNames": {"#n": name}}
    with refuses("ValidationException", message):
        client.put_item(TableName=hashed, Item=item)
    with refuses("ValidationException", message):
        client.batch_write_item(RequestItems={hashed: [{"PutRequest": {"Item": item}}]})
    with refuses("ValidationException", message):
        client.transact_write_items(TransactItems=[{"Put": {"TableName": hashed, "Item": item}}])
    with refuses("ValidationException", message):
        client.get_item(TableName=hashed, Key=key, ProjectionExpression="#n", **placeholder)
    with refuses("ValidationException", message):
        client.get_item(TableName=hashed, Key=key, AttributesToGet=[name])
    with refuses("ValidationException", message):
        client.update_item(TableName=hashed, Key=key, AttributeUpdates={name: {"Value": s("x"), "Action": "PUT"}})
    with refuses("ValidationException", message):
        client.update_item(
            TableName=hashed,
            Key=key,
            UpdateExpression="SET #n = :v",
            ExpressionAttributeValues={":v": s("x")},
            **placeholder,
        )
    assert client.scan(TableName=hashed)["Count"] == 0


# -- keys


@pytest.mark.parametrize("size", [2_049, 70_000])
def test_a_partition_key_that_is_too_long(
    client: Any, refuses: Any, create: Callable[..., str], key_schema: Any, size: int
) -> None:
    by_x = {"IndexName": "by-x", "KeySchema": key_schema("x"), "Projection": {"ProjectionType": "ALL"}}
    table = create(client, "pk", GlobalSecondaryIndexes=[by_x])
    long = s("x" * size)
    with refuses("ValidationException", HASH_TOO_LONG):
        client.put_item(TableName=table, Item={"pk": s("a"), "x": long})
    for more in ({"KeyConditionExpression": "pk = :v"}, {"KeyConditionExpression": "x = :v", "IndexName": "by-x"}):
        with refuses("ValidationException", HASH_TOO_LONG):
            client.query(TableName=table, ExpressionAttributeValues={":v": long}, **more)
    assert client.scan(TableName=table)["Count"] == 0


def test_an_index_is_filled_without_what_cannot_be_its_key(
    client: Any, ranged: str, key_schema: Any, eventually: Callable[..., Any]
) -> None:
    for size in (5, 2_048, 2_049, 66_500):
        client.put_item(TableName=ranged, Item={"pk": s(str(size)), "sk": s("a"), "x": s("x" * size)})
    by_x = {"IndexName": "by-x", "KeySchema": key_schema("x"), "Projection": {"ProjectionType": "KEYS_ONLY"}}
    client.update_table(
        TableName=ranged,
        AttributeDefinitions=[{"AttributeName": "x", "AttributeType": "S"}],
        GlobalSecondaryIndexUpdates=[{"Create": by_x}],
    )

    def filled() -> bool:
        (index,) = client.describe_table(TableName=ranged)["Table"]["GlobalSecondaryIndexes"]
        return bool(index["IndexStatus"] == "ACTIVE")

    eventually(filled)
    held = client.scan(TableName=ranged, IndexName="by-x")["Items"]
    assert {item["pk"]["S"] for item in held} == {"5", "2048"}


# -- tags


def test_tags_set_at_the_same_time_all_stay(client: Any, hashed: str) -> None:
    arn = client.describe_table(TableName=hashed)["Table"]["TableArn"]
    together = threading.Barrier(4)

    def tag(at: int) -> None:
        together.wait(timeout=PATIENCE_S)
        for turn in range(5):
            client.tag_resource(ResourceArn=arn, Tags=[{"Key": f"{at}.{turn}", "Value": "x"}])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tag, range(4)))
    tags = client.list_tags_of_resource(ResourceArn=arn)["Tags"]
    assert {one["Key"] for one in tags} == {f"{at}.{turn}" for at in range(4) for turn in range(5)}


# -- the address itself


def ask(server: ServerProcess, method: str, path: str = "/", **fields: str) -> HTTPResponse:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    request = urllib.request.Request(server.url + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.body = answer.read()
            return answer  # type: ignore[no-any-return]
    except urllib.error.HTTPError as error:
        error.body = error.read()  # type: ignore[attr-defined]
        return error  # type: ignore[return-value]


def test_an_endpoint_is_described_as_it_was_reached(
    server: ServerProcess, client: Any, connect: Callable[..., Any]
) -> None:
    (endpoint,) = client.describe_endpoints()["Endpoints"]
    assert endpoint["Address"] == server.url.removeprefix("http://")
    again = connect(f"http://{endpoint['Address']}")
    assert again.describe_endpoints()["Endpoints"] == [endpoint]
    again.close()


def test_whether_the_server_is_well(server: ServerProcess) -> None:
    answer: Any = ask(server, "GET")
    assert (answer.status, answer.body.decode()) == (200, f"healthy: {server.url.removeprefix('http://')} ")
    assert ask(server, "GET", "/index.htm").status == 404
    page: Any = ask(server, "GET", Accept="text/html,*/*;q=0.8")
    assert b"console" in page.body  # browsers get the console, others the list of what is there
    listed: Any = ask(server, "GET", Accept="text/plain")
    assert b"/v1/stream/" in listed.body


def test_a_browser_may_send_what_it_asks_to_send(server: ServerProcess) -> None:
    requested = {
        "Origin": "http://localhost:3000",
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "x-amz-target, x-of-a-newer-sdk",
    }
    answer = ask(server, "OPTIONS", **requested)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert answer.headers["Access-Control-Allow-Headers"] == requested["Access_Control_Request_Headers"]
    assert answer.headers["Access-Control-Allow-Methods"] == "POST"
    assert int(answer.headers["Access-Control-Max-Age"]) > 0
    answer = ask(server, "GET", Origin="http://localhost:3000")
    assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "X-Amz-Crc32" in answer.headers["Access-Control-Expose-Headers"]
    assert answer.headers["Access-Control-Max-Age"] is None

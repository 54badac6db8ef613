"""Operations on items through the handler: combinations of parameters, the order of errors, responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace.access import EVERYTHING, Principal
from tailrace.config import Config
from tailrace.http.dynamodb.handler import DynamoHandler
from tailrace.http.message import Answer, Request, Response
from tailrace.http.submitted import settled

INVALID = "One or more parameter values were invalid: "
KEY = {"p": {"S": "a"}, "c": {"N": "1"}}
ITEM = KEY | {"d": {"S": "x"}, "l": {"S": "one"}}
HUGE = {"S": "x" * 400 * 1024}


class Client:
    """Sends requests to its own handler; raises nothing."""

    def __init__(self, path: Path) -> None:
        self.db = tailrace.open(path)
        everyone = Principal("everyone", EVERYTHING)
        self._handler = DynamoHandler(self.db, Config(dev=True), lambda request: (everyone, None))
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.run(self.db.aclose())
        self._runner.close()

    def send(self, operation: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {
            b"content-type": b"application/x-amz-json-1.0",
            b"x-amz-target": b"DynamoDB_20120810." + operation.encode(),
        }

        async def call() -> Answer:
            return await settled(self._handler(Request(b"POST", b"/", b"", headers, msgspec.json.encode(request))))

        answer = self._runner.run(call())
        assert isinstance(answer, Response)
        return answer.status, msgspec.json.decode(answer.body)

    def do(self, operation: str, **request: Any) -> dict[str, Any]:
        status, answer = self.send(operation, request)
        assert status == 200, answer
        return answer

    def fail(self, operation: str, **request: Any) -> tuple[str, str]:
        """The exception's name and message."""
        status, answer = self.send(operation, request)
        assert status == 400, answer
        return answer["__type"].partition("#")[2], answer.get("message") or answer.get("Message", "")

    def put(self, item: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.do("PutItem", TableName="orders", Item=item, **more)


@pytest.fixture
def client(data_dir: Path) -> Iterator[Client]:
    client = Client(data_dir)
    client.do(
        "CreateTable",
        TableName="orders",
        KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "c", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "p", "AttributeType": "S"},
            {"AttributeName": "c", "AttributeType": "N"},
            {"AttributeName": "l", "AttributeType": "S"},
        ],
        LocalSecondaryIndexes=[
            {
                "IndexName": "by_l",
                "KeySchema": [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "l", "KeyType": "RANGE"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    yield client
    client.close()


# -- what is refused

MIXED = "Can not use both expression and non-expression parameters in the same request: "
NO_EXPRESSIONS = "ExpressionAttributeNames can only be specified when using expressions"
ON: dict[str, Any] = {"TableName": "abc"}
EQ = {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "a"}]}


@pytest.mark.parametrize(
    ("operation", "request_", "message"),
    [
        (
            "PutItem",
            ON | {"Item": {"a": {}}, "Expected": {"a": {}}, "ConditionExpression": ""},
            f"{MIXED}Non-expression parameters: {{Expected}} Expression parameters: {{ConditionExpression}}",
        ),
        ("PutItem", ON | {"Item": {"a": {}}, "ExpressionAttributeNames": {}}, NO_EXPRESSIONS),
        (
            "PutItem",
            ON | {"Item": {"a": {}}, "ExpressionAttributeValues": {}},
            "ExpressionAttributeValues can only be specified when using expressions: ConditionExpression is null",
        ),
        (
            "PutItem",
            ON | {"Item": {"a": {}}, "ReturnValues": "ALL_NEW"},
            "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
        ),
        (
            "PutItem",
            ON | {"Item": {"a": HUGE}, "ReturnValues": "ALL_NEW"},
            "ReturnValues can only be ALL_OLD or NONE",
        ),
        ("PutItem", ON | {"Item": {"a": HUGE}}, "Item size has exceeded the maximum allowed size"),
        (
            "PutItem",
            ON | {"Item": {"a": HUGE}, "ConditionExpression": ""},
            "Item size has exceeded the maximum allowed size",
        ),
        (
            "PutItem",
            ON | {"Item": KEY, "ConditionalOperator": "OR"},
            f"{INVALID}ConditionalOperator cannot be used without Expected",
        ),
        (
            "PutItem",
            ON | {"Item": KEY, "Expected": {"a": {}}},
            f"{INVALID}Value must be provided when Exists is null for Attribute: a",
        ),
        (
            "PutItem",
            ON | {"Item": KEY, "ConditionExpression": ""},
            "Invalid ConditionExpression: The expression can not be empty;",
        ),
        ("DeleteItem", ON | {"Key": KEY, "ReturnValues": "ALL_NEW"}, "ReturnValues can only be ALL_OLD or NONE"),
        (
            "DeleteItem",
            ON
            | {
                "Key": KEY,
                "ConditionExpression": "attribute_exists(p)",
                "ExpressionAttributeNames": {"#a": "a"},
            },
            "1 validation error detected: Value provided in ExpressionAttributeNames unused in expressions: keys: {#a}",
        ),
        (
            "PutItem",
            ON | {"Item": KEY | {"s": {"NS": []}}},
            f"1 validation error detected: {INVALID}An number set  may not be empty",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": "ADD s :s", "ExpressionAttributeValues": {":s": {"SS": []}}},
            f"1 validation error detected: {INVALID}An string set  may not be empty",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": "SET x = y", "ExpressionAttributeValues": {}},
            "1 validation error detected: ExpressionAttributeValues must not be empty",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": ""},
            "1 validation error detected: Invalid UpdateExpression: The expression can not be empty;",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": "SET x = y SET z = y"},
            "1 validation error detected: Invalid UpdateExpression: "
            'The "SET" section can only be used once in an update expression;',
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": "REMOVE x, x.y"},
            "1 validation error detected: Invalid UpdateExpression: Two document paths overlap with each other; "
            "must remove or rewrite one of these paths; path one: [x], path two: [x, y]",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "UpdateExpression": "SET x = y,"},
            'Invalid UpdateExpression: Syntax error; token: "<EOF>", near: ","',
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Update": ON | {"Key": KEY, "UpdateExpression": "SET x = y SET z = y"}}]},
            'Invalid UpdateExpression: The "SET" section can only be used once in an update expression;',
        ),
        (
            "UpdateItem",
            ON | {"Key": {"a": {}}, "UpdateExpression": "", "AttributeUpdates": {}, "Expected": {}},
            f"{MIXED}Non-expression parameters: {{AttributeUpdates, Expected}} "
            "Expression parameters: {UpdateExpression}",
        ),
        (
            "UpdateItem",
            ON | {"Key": KEY, "ExpressionAttributeValues": {":a": {"S": "a"}}},
            "ExpressionAttributeValues can only be specified when using expressions: "
            "UpdateExpression and ConditionExpression are null",
        ),
        ("UpdateItem", ON | {"Key": KEY, "AttributeUpdates": {"": {}}}, f"{INVALID}Empty attribute name"),
        (
            "GetItem",
            ON | {"Key": {"a": {}}, "AttributesToGet": ["a"], "ProjectionExpression": ""},
            f"{MIXED}Non-expression parameters: {{AttributesToGet}} Expression parameters: {{ProjectionExpression}}",
        ),
        (
            "GetItem",
            ON | {"Key": KEY, "AttributesToGet": ["a", "b", "a"]},
            f"{INVALID}Duplicate value in attribute name: a",
        ),
        ("GetItem", ON | {"Key": KEY, "AttributesToGet": [""]}, f"{INVALID}Empty attribute name"),
        (
            "GetItem",
            ON | {"Key": KEY, "AttributesToGet": ["a" * 65_536]},
            f"{INVALID}Attribute name is too large, must be less than 65536 bytes",
        ),
        ("BatchGetItem", {"RequestItems": {}}, "The requestItems parameter is required for BatchGetItem"),
        (
            "BatchGetItem",
            {"RequestItems": {"abc": {"Keys": [{}] * 101}}},
            "1 validation error detected: Value at 'RequestItems.abc.member.Keys' failed to satisfy constraint: "
            "Member must have length less than or equal to 100",
        ),
        ("BatchWriteItem", {"RequestItems": {}}, "The requestItems parameter is required for BatchWriteItem"),
        (
            "BatchWriteItem",
            {"RequestItems": {"abc": [{}]}},
            "Supplied AttributeValue has more than one datatypes set, "
            "must contain exactly one of the supported datatypes",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {name: [{"DeleteRequest": {"Key": KEY}}] * 13 for name in ("abc", "abd")}},
            "Too many items requested for the BatchWriteItem call",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"abc": [{"PutRequest": {"Item": {"a": HUGE}}}]}},
            "Item size has exceeded the maximum allowed size",
        ),
        (
            "BatchWriteItem",
            {"RequestItems": {"orders": [{"PutRequest": {"Item": {"p": {"S": "a"}}}}]}},
            "The provided key element does not match the schema",
        ),
        (
            "Query",
            ON,
            "Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.",
        ),
        (
            "Query",
            ON | {"KeyConditions": {"p": EQ}, "AttributesToGet": ["a"], "FilterExpression": "a"},
            f"{MIXED}Non-expression parameters: {{AttributesToGet}} Expression parameters: {{FilterExpression}}",
        ),
        (
            "Query",
            ON | {"ExclusiveStartKey": {"a": {}}},
            "The provided starting key is invalid: "
            "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
        ),
        (
            "Query",
            ON | {"ExclusiveStartKey": {"a": {"N": "x"}}},
            "The parameter cannot be converted to a numeric value: x",
        ),
        (
            "Scan",
            ON | {"Segment": 0},
            "The TotalSegments parameter is required but was not present in the request when Segment parameter is "
            "present",
        ),
        (
            "Scan",
            ON | {"TotalSegments": 2},
            "The Segment parameter is required but was not present in the request when parameter TotalSegments is "
            "present",
        ),
        (
            "Scan",
            ON | {"Segment": 2, "TotalSegments": 2},
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            "Segment: 2 is not less than TotalSegments: 2",
        ),
        (
            "Scan",
            ON | {"ConditionalOperator": "OR"},
            f"{INVALID}ConditionalOperator cannot be used without Filter or Expected",
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": ON | {"Item": KEY}, "Delete": ON | {"Key": KEY}}]},
            "TransactItems can only contain one of Check, Put, Update or Delete",
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{}]},
            "Invalid Request: TransactWriteRequest should contain Delete or Put or Update request",
        ),
        (
            "TransactWriteItems",
            {
                "TransactItems": [
                    {"Put": ON | {"Item": {"p": {"S": str(i)}, "d": {"S": "x" * 300 * 1024}}}} for i in range(14)
                ]
            },
            "Transaction payload size cannot exceed 4194304 bytes",
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"ConditionCheck": ON | {"Key": KEY}}]},
            "1 validation error detected: Value null at 'transactItems.1.member.conditionCheck.conditionExpression' "
            "failed to satisfy constraint: Member must not be null",
        ),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "orders", "Item": ITEM}}] * 2},
            "Transaction request cannot include multiple operations on one item",
        ),
        (
            "TransactGetItems",
            {"TransactItems": [{"Get": ON | {"Key": KEY, "ExpressionAttributeNames": {"#a": "a"}}}]},
            NO_EXPRESSIONS,
        ),
    ],
)
def test_refused(client: Client, operation: str, request_: dict[str, Any], message: str) -> None:
    assert client.fail(operation, **request_) == ("ValidationException", message)


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("PutItem", ON | {"Item": KEY}),
        ("GetItem", ON | {"Key": KEY}),
        ("UpdateItem", ON | {"Key": KEY}),
        ("DeleteItem", ON | {"Key": KEY}),
        ("Query", ON | {"KeyConditions": {"p": EQ}}),
        ("Scan", ON),
        ("BatchGetItem", {"RequestItems": {"abc": {"Keys": [KEY]}}}),
        ("BatchWriteItem", {"RequestItems": {"abc": [{"PutRequest": {"Item": KEY}}]}}),
        ("TransactWriteItems", {"TransactItems": [{"Put": ON | {"Item": KEY}}]}),
        ("TransactGetItems", {"TransactItems": [{"Get": ON | {"Key": KEY}}]}),
    ],
)
def test_a_table_that_is_not_there(client: Client, operation: str, request_: dict[str, Any]) -> None:
    assert client.fail(operation, **request_) == ("ResourceNotFoundException", "Requested resource not found")


# -- what is answered


def test_one_item(client: Client) -> None:
    assert client.put(ITEM) == {}
    assert client.do("GetItem", TableName="orders", Key=KEY) == {"Item": ITEM}
    assert client.do("GetItem", TableName="orders", Key=KEY | {"c": {"N": "2"}}) == {}
    shown = client.do("GetItem", TableName="orders", Key=KEY, AttributesToGet=["d"], ConsistentRead=True)
    assert shown == {"Item": {"d": {"S": "x"}}}
    assert client.put(ITEM, ReturnValues="ALL_OLD") == {"Attributes": ITEM}
    gone = client.do("DeleteItem", TableName="orders", Key=KEY, ReturnValues="ALL_OLD")
    assert gone == {"Attributes": ITEM}
    assert client.do("DeleteItem", TableName="orders", Key=KEY, ReturnValues="ALL_OLD") == {}


def test_binary_is_base64(client: Client) -> None:
    client.put(ITEM | {"d": {"BS": ["AQI=", "Aw=="]}})
    assert client.do("GetItem", TableName="orders", Key=KEY)["Item"]["d"] == {"BS": ["AQI=", "Aw=="]}


def test_updates(client: Client) -> None:
    update = {"TableName": "orders", "Key": KEY, "ReturnValues": "UPDATED_NEW"}
    new = client.do("UpdateItem", **update, UpdateExpression="SET d = :d", ExpressionAttributeValues={":d": {"N": "1"}})
    assert new == {"Attributes": {"d": {"N": "1"}}}
    old = client.do("UpdateItem", **update, AttributeUpdates={"d": {"Action": "ADD", "Value": {"N": "4"}}})
    assert old == {"Attributes": {"d": {"N": "5"}}}
    assert client.do("UpdateItem", TableName="orders", Key=KEY | {"c": {"N": "9"}}, ReturnValues="UPDATED_OLD") == {}


def test_conditions_of_both_kinds(client: Client) -> None:
    client.put(ITEM)
    failed = ("ConditionalCheckFailedException", "The conditional request failed")
    request = {"TableName": "orders", "Item": ITEM}
    assert client.fail("PutItem", **request, ConditionExpression="attribute_not_exists(p)") == failed
    assert client.fail("PutItem", **request, Expected={"p": {"Exists": False}}) == failed
    either = {"p": {"Exists": False}, "d": {"Value": {"S": "x"}}}
    assert client.fail("PutItem", **request, Expected=either) == failed
    client.put(ITEM, Expected=either, ConditionalOperator="OR")
    _, error = client.send(
        "DeleteItem",
        {
            "TableName": "orders",
            "Key": KEY,
            "ConditionExpression": "attribute_not_exists(p)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        },
    )
    assert error["Item"] == ITEM


def test_capacity_and_collections(client: Client) -> None:
    written = client.put(ITEM, ReturnConsumedCapacity="INDEXES", ReturnItemCollectionMetrics="SIZE")
    assert written == {
        "ConsumedCapacity": {
            "TableName": "orders",
            "CapacityUnits": 2.0,
            "Table": {"CapacityUnits": 1.0},
            "LocalSecondaryIndexes": {"by_l": {"CapacityUnits": 1.0}},
        },
        "ItemCollectionMetrics": {"ItemCollectionKey": {"p": {"S": "a"}}, "SizeEstimateRangeGB": [0.0, 1.0]},
    }
    read = client.do("GetItem", TableName="orders", Key=KEY, ReturnConsumedCapacity="TOTAL")
    assert read["ConsumedCapacity"] == {"TableName": "orders", "CapacityUnits": 0.5}
    transacted = client.do(
        "TransactGetItems",
        TransactItems=[{"Get": {"TableName": "orders", "Key": KEY}}],
        ReturnConsumedCapacity="INDEXES",
    )
    assert transacted["ConsumedCapacity"] == [
        {
            "TableName": "orders",
            "CapacityUnits": 2.0,
            "ReadCapacityUnits": 2.0,
            "Table": {"CapacityUnits": 2.0, "ReadCapacityUnits": 2.0},
        }
    ]


def test_batches(client: Client) -> None:
    other = KEY | {"c": {"N": "2"}}
    answer = client.do(
        "BatchWriteItem",
        RequestItems={"orders": [{"PutRequest": {"Item": ITEM}}, {"DeleteRequest": {"Key": other}}]},
        ReturnConsumedCapacity="TOTAL",
        ReturnItemCollectionMetrics="SIZE",
    )
    assert answer["UnprocessedItems"] == {}
    assert answer["ConsumedCapacity"] == [{"TableName": "orders", "CapacityUnits": 3.0}]
    assert answer["ItemCollectionMetrics"]["orders"] == [
        {"ItemCollectionKey": {"p": {"S": "a"}}, "SizeEstimateRangeGB": [0.0, 1.0]}
    ]
    arn = "arn:aws:dynamodb:us-east-1:123456789012:table/orders"
    got = client.do("BatchGetItem", RequestItems={arn: {"Keys": [KEY, other], "ProjectionExpression": "d"}})
    assert got == {"Responses": {arn: [{"d": {"S": "x"}}]}, "UnprocessedKeys": {}}, "as in the request"


def test_unprocessed_keys_of_a_batch_can_be_requested_again(client: Client) -> None:
    large = {"S": "x" * 390 * 1024}
    keys = [{"p": {"S": "a"}, "c": {"N": str(i)}} for i in range(5)]
    for key in keys:
        client.put(key | {"d": large})
    request_items = {"Keys": keys, "ProjectionExpression": "#c", "ExpressionAttributeNames": {"#c": "c"}}
    first = client.do("BatchGetItem", RequestItems={"orders": request_items})
    left = first["UnprocessedKeys"]
    assert left["orders"] == request_items | {"Keys": left["orders"]["Keys"]}
    second = client.do("BatchGetItem", RequestItems=left)
    assert second["UnprocessedKeys"] == {}
    found = first["Responses"]["orders"] + second["Responses"]["orders"]
    assert sorted(item["c"]["N"] for item in found) == ["0", "1", "2", "3", "4"]


def test_pages(client: Client) -> None:
    for i in range(5):
        client.put({"p": {"S": "a"}, "c": {"N": str(i)}, "d": {"N": str(i % 2)}})
    both = {"p": EQ, "c": {"ComparisonOperator": "GE", "AttributeValueList": [{"N": "1"}]}}
    page = client.do("Query", TableName="orders", KeyConditions=both, Limit=3, ScanIndexForward=False)
    assert [item["c"]["N"] for item in page["Items"]] == ["4", "3", "2"]
    assert page["LastEvaluatedKey"] == {"p": {"S": "a"}, "c": {"N": "2"}}
    rest = client.do(
        "Query",
        TableName="orders",
        KeyConditionExpression="p = :p AND c >= :c",
        ExpressionAttributeValues={":p": {"S": "a"}, ":c": {"N": "1"}},
        ScanIndexForward=False,
        ExclusiveStartKey=page["LastEvaluatedKey"],
        ReturnConsumedCapacity="TOTAL",
    )
    assert (rest["Count"], rest["ScannedCount"]) == (1, 1)
    assert "LastEvaluatedKey" not in rest
    assert rest["ConsumedCapacity"] == {"TableName": "orders", "CapacityUnits": 0.5}
    odd = {"d": {"ComparisonOperator": "EQ", "AttributeValueList": [{"N": "1"}]}}
    counted = client.do("Scan", TableName="orders", ScanFilter=odd, Select="COUNT")
    assert counted == {"Count": 2, "ScannedCount": 5}


def test_whole_items_are_returned_as_decoded_ones_are(client: Client) -> None:
    """Items that are returned whole are rendered from their stored bytes; a filter or a projection decodes them."""
    values: list[dict[str, Any]] = [
        {"S": 'é😀 "quoted" \u2028\x00'},
        {"N": "-0.00000000000000000000000000000000000012345678901234567890123456789012345678"},
        {"N": "9.9999999999999999999999999999999999999E+125"},
        {"B": "AP8="},
        {"SS": ["b", "a", "é"]},
        {"NS": ["1", "-1.5", "1E+20"]},
        {"BS": ["AA==", "/w=="]},
        {"L": [{"M": {"x": {"BOOL": False}, "": {"NULL": True}}}, {"L": []}, {"M": {}}]},
    ]
    for number, held in enumerate(values):
        client.put({"p": {"S": "a"}, "c": {"N": str(number)}, "l": {"S": "x"}, "é": held, "all": {"L": values}})
    for _ in range(2):
        for more in ({}, {"Limit": 3}, {"ReturnConsumedCapacity": "TOTAL"}, {"Select": "COUNT"}):
            asked = {"TableName": "orders", **more}
            filtered = client.do("Scan", **asked, FilterExpression="attribute_exists(p)")
            assert client.do("Scan", **asked) == filtered
            key = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": {":p": {"S": "a"}}}
            assert client.do("Query", **asked, **key) == client.do(
                "Query", **asked, **key, FilterExpression="attribute_exists(l)"
            )
        scanned = client.do("Scan", TableName="orders")["Items"]
        assert len(scanned) == len(values)
        keys = [{"p": item["p"], "c": item["c"]} for item in scanned]
        assert [client.do("GetItem", TableName="orders", Key=key)["Item"] for key in keys] == scanned
        named = {"TableName": "orders", "AttributesToGet": ["p", "c", "l", "é", "all"]}
        projected = [client.do("GetItem", Key=key, **named) for key in keys]
        assert [each["Item"] for each in projected] == scanned
        assert client.do("BatchGetItem", RequestItems={"orders": {"Keys": keys}})["Responses"]["orders"] == scanned


def test_a_page_of_many_slices(client: Client) -> None:
    for i in range(8):
        client.put({"p": {"S": "a"}, "c": {"N": str(i)}, "d": {"S": "x" * 100_000}})
    page = client.do("Scan", TableName="orders")
    assert [item["c"]["N"] for item in page["Items"]] == [str(i) for i in range(8)]


def test_transactions(client: Client) -> None:
    absent = KEY | {"c": {"N": "2"}}
    actions = [
        {"Put": {"TableName": "orders", "Item": ITEM}},
        {
            "ConditionCheck": {
                "TableName": "orders",
                "Key": absent,
                "ConditionExpression": "attribute_not_exists(p)",
            }
        },
        {
            "Update": {
                "TableName": "orders",
                "Key": KEY | {"c": {"N": "3"}},
                "UpdateExpression": "SET d = :d",
                "ExpressionAttributeValues": {":d": {"S": "y"}},
            }
        },
        {"Delete": {"TableName": "orders", "Key": KEY | {"c": {"N": "4"}}}},
    ]
    for _ in range(2):  # the second is the same one again
        assert client.do("TransactWriteItems", TransactItems=actions, ClientRequestToken="once") == {}
    name, _ = client.fail("TransactWriteItems", TransactItems=actions[:1], ClientRequestToken="once")
    assert name == "IdempotentParameterMismatchException"
    got = client.do(
        "TransactGetItems",
        TransactItems=[{"Get": {"TableName": "orders", "Key": key}} for key in (KEY, absent)],
    )
    assert got == {"Responses": [{"Item": ITEM}, {}]}


def test_a_token_stands_for_equal_items(client: Client) -> None:
    def ask(names: list[str], number: str) -> dict[str, Any]:
        item = {**KEY, "s": {"SS": names}, "n": {"N": number}}
        update = {
            "TableName": "orders",
            "Key": {"c": {"N": "2"}, "p": {"S": "a"}},
            "UpdateExpression": "SET s = :s",
            "ExpressionAttributeValues": {":s": {"SS": names}},
        }
        return {"TransactItems": [{"Put": {"TableName": "orders", "Item": item}}, {"Update": update}]}

    client.do("TransactWriteItems", **ask(["x", "y"], "1.0"), ClientRequestToken="t")
    again = ask(["y", "x"], "1")
    again["TransactItems"][0]["Put"]["Item"] = dict(reversed(again["TransactItems"][0]["Put"]["Item"].items()))
    client.do("TransactWriteItems", **again, ClientRequestToken="t")
    name, _ = client.fail("TransactWriteItems", **ask(["y", "z"], "1"), ClientRequestToken="t")
    assert name == "IdempotentParameterMismatchException"


ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/orders"


def test_a_table_by_name_and_by_arn_in_one_batch(client: Client) -> None:
    def writes(number: str) -> list[dict[str, Any]]:
        return [{"PutRequest": {"Item": KEY | {"c": {"N": number}}}}]

    def gets(number: str) -> dict[str, Any]:
        return {"Keys": [KEY | {"c": {"N": number}}]}

    for names in (("orders", ARN), (ARN, "orders"), (ARN, ARN.replace("us-east-1", "eu-west-1"))):
        error = client.fail("BatchWriteItem", RequestItems={names[0]: writes("8"), names[1]: writes("9")})
        assert (error[0], "orders" in error[1]) == ("ValidationException", True)
        error = client.fail("BatchGetItem", RequestItems={names[0]: gets("8"), names[1]: gets("9")})
        assert (error[0], "orders" in error[1]) == ("ValidationException", True)
    assert client.do("Scan", TableName="orders")["Count"] == 0
    client.do("BatchWriteItem", RequestItems={ARN: writes("8")})
    assert len(client.do("BatchGetItem", RequestItems={ARN: gets("8")})["Responses"][ARN]) == 1


def test_requests_that_are_offloaded_to_a_thread(client: Client) -> None:
    large = {"S": "x" * 100_000}
    client.put(KEY | {"x": large})
    writes = [{"PutRequest": {"Item": KEY | {"c": {"N": str(number)}, "x": large}}} for number in range(2, 6)]
    assert client.do("BatchWriteItem", RequestItems={"orders": writes}) == {"UnprocessedItems": {}}
    keys = [KEY | {"c": {"N": str(number)}} for number in range(1, 6)]
    got = client.do("BatchGetItem", RequestItems={"orders": {"Keys": keys}})["Responses"]["orders"]
    assert sorted(item["c"]["N"] for item in got) == ["1", "2", "3", "4", "5"]
    assert all(item["x"] == large for item in got)
    found = client.do("TransactGetItems", TransactItems=[{"Get": {"TableName": "orders", "Key": key}} for key in keys])
    assert [one["Item"]["c"] for one in found["Responses"]] == [key["c"] for key in keys]
    scanned = client.do("Scan", TableName="orders", ReturnConsumedCapacity="TOTAL")
    assert (scanned["Count"], scanned["Items"][0]["x"]) == (5, large)
    assert client.do("Scan", TableName="orders", Select="COUNT")["ScannedCount"] == 5
    checks = [
        {
            "ConditionCheck": {
                "TableName": "orders",
                "Key": key,
                "ConditionExpression": "attribute_not_exists(p)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }
        for key in keys
    ]
    status, error = client.send("TransactWriteItems", {"TransactItems": checks})
    assert (status, [reason["Item"]["c"] for reason in error["CancellationReasons"]]) == (400, [k["c"] for k in keys])


def test_an_item_that_is_larger_than_its_text_can_be(client: Client) -> None:
    item = KEY | {"l": {"L": [{"N": "1"}] * 950_000}}
    for operation, request in (
        ("PutItem", {"TableName": "orders", "Item": item}),
        ("BatchWriteItem", {"RequestItems": {"orders": [{"PutRequest": {"Item": item}}]}}),
        ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": "orders", "Item": item}}]}),
    ):
        error = client.fail(operation, **request)
        assert error == ("ValidationException", "Item size has exceeded the maximum allowed size")


def test_a_cancelled_transaction(client: Client) -> None:
    client.put(ITEM)
    put = {
        "TableName": "orders",
        "Item": ITEM,
        "ConditionExpression": "attribute_not_exists(p)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    _, error = client.send("TransactWriteItems", {"TransactItems": [{"Put": put}]})
    assert error["CancellationReasons"] == [
        {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed", "Item": ITEM}
    ]


def test_a_wrong_type_anywhere_is_reported_first(client: Client) -> None:
    error = client.fail("PutItem", TableName="orders", Item={"p": {"S": 1}}, ConditionExpression="")
    assert error == ("SerializationException", "NUMBER_VALUE cannot be converted to String")


def test_answers_name_a_table_by_its_arn_where_the_request_does(client: Client) -> None:
    capacity = {"ReturnConsumedCapacity": "TOTAL"}
    put = client.do("PutItem", TableName=ARN, Item=ITEM, **capacity)
    assert put["ConsumedCapacity"]["TableName"] == ARN
    for operation, more in (
        ("GetItem", {"Key": KEY}),
        ("UpdateItem", {"Key": KEY, "UpdateExpression": "SET zz = p"}),
        ("Query", {"KeyConditions": {"p": EQ}}),
        ("Scan", {}),
        ("DeleteItem", {"Key": KEY}),
    ):
        answer = client.do(operation, TableName=ARN, **more, **capacity)
        assert answer["ConsumedCapacity"]["TableName"] == ARN, operation
        answer = client.do(operation, TableName="orders", **more, **capacity)
        assert answer["ConsumedCapacity"]["TableName"] == "orders", operation
    written = client.do(
        "BatchWriteItem",
        RequestItems={ARN: [{"PutRequest": {"Item": ITEM}}]},
        ReturnItemCollectionMetrics="SIZE",
        **capacity,
    )
    assert written["ConsumedCapacity"][0]["TableName"] == ARN
    assert written["ItemCollectionMetrics"].keys() == {ARN}
    got = client.do("TransactGetItems", TransactItems=[{"Get": {"TableName": ARN, "Key": KEY}}], **capacity)
    assert got["ConsumedCapacity"][0]["TableName"] == ARN
    assert got["Responses"] == [{"Item": ITEM}]
    done = client.do(
        "TransactWriteItems",
        TransactItems=[{"Put": {"TableName": ARN, "Item": ITEM}}],
        ReturnItemCollectionMetrics="SIZE",
        **capacity,
    )
    assert done["ConsumedCapacity"][0]["TableName"] == ARN
    assert done["ItemCollectionMetrics"].keys() == {ARN}


def test_unprocessed_keys_of_a_batch_by_arn_are_returned_by_arn(client: Client) -> None:
    large = {"S": "x" * 390 * 1024}
    keys = [{"p": {"S": "a"}, "c": {"N": str(i)}} for i in range(5)]
    for key in keys:
        client.put(key | {"d": large})
    request_items = {"Keys": keys, "ProjectionExpression": "#c", "ExpressionAttributeNames": {"#c": "c"}}
    first = client.do("BatchGetItem", RequestItems={ARN: request_items}, ReturnConsumedCapacity="TOTAL")
    left = first["UnprocessedKeys"]
    assert left[ARN] == request_items | {"Keys": left[ARN]["Keys"]}
    second = client.do("BatchGetItem", RequestItems=left)
    found = first["Responses"][ARN] + second["Responses"][ARN]
    assert sorted(item["c"]["N"] for item in found) == ["0", "1", "2", "3", "4"]
    assert first["ConsumedCapacity"][0]["TableName"] == ARN


def test_a_transaction_is_as_large_as_its_request_and_not_as_what_is_stored(client: Client) -> None:
    large = {"S": "x" * 390 * 1024}
    keys = [{"p": {"S": "a"}, "c": {"N": str(i)}} for i in range(12)]
    for key in keys:
        client.put(key | {"d": large})  # together more than 4 MB

    def updates(value: dict[str, Any]) -> list[dict[str, Any]]:
        values = {":v": value}
        fields = {"TableName": "orders", "UpdateExpression": "SET e = :v", "ExpressionAttributeValues": values}
        return [{"Update": {**fields, "Key": key}} for key in keys]

    client.do("TransactWriteItems", TransactItems=updates({"N": "1"}))
    client.do(
        "TransactWriteItems", TransactItems=[{"Delete": {"TableName": "orders", "Key": key}} for key in keys[:11]]
    )
    code, message = client.fail("TransactWriteItems", TransactItems=updates(large))
    assert (code, message) == ("ValidationException", "Transaction payload size cannot exceed 4194304 bytes")


@pytest.mark.parametrize(("billing", "least"), [("PAY_PER_REQUEST", 4), ("PROVISIONED", 1)])
def test_what_scans_and_queries_consume(client: Client, billing: str, least: int) -> None:
    units = {"ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}}
    client.do(
        "CreateTable",
        TableName="scanned",
        KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "p", "AttributeType": "S"}],
        BillingMode=billing,
        **(units if billing == "PROVISIONED" else {}),
    )

    def consumed(operation: str, **more: Any) -> float:
        answer = client.do(operation, TableName="scanned", ReturnConsumedCapacity="TOTAL", **more)
        return float(answer["ConsumedCapacity"]["CapacityUnits"])

    one = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": {":p": {"S": "1"}}}
    nothing = {"FilterExpression": "p = :q", "ExpressionAttributeValues": {":q": {"S": "none"}}}
    for filled in (False, True):
        if filled:
            client.do("PutItem", TableName="scanned", Item={"p": {"S": "1"}, "animal": {"S": "cat"}})
        for consistent, factor in ((True, 1.0), (False, 0.5)):
            assert consumed("Scan", ConsistentRead=consistent) == least * factor
            assert consumed("Scan", ConsistentRead=consistent, Select="COUNT") == least * factor
            assert consumed("Scan", ConsistentRead=consistent, **nothing) == least * factor
            assert consumed("Query", ConsistentRead=consistent, **one) == factor
    segments = [consumed("Scan", Segment=each, TotalSegments=4, ConsistentRead=True) for each in range(4)]
    assert segments == [1.0] * 4
    assert sum(consumed("Scan", Segment=each, TotalSegments=2, ConsistentRead=True) for each in range(2)) == max(
        2, least
    )
    for number in range(2, 12):
        client.do("PutItem", TableName="scanned", Item={"p": {"S": str(number)}, "d": {"S": "x" * 4_000}})
    assert consumed("Scan", ConsistentRead=True) == 10.0, "40 kB"
    assert consumed("Scan") == 5.0
    assert consumed("Scan", ConsistentRead=True, **nothing) == 10.0, "what is filtered out is read all the same"

"""The operations on tables, through the handler, as bytes: shapes, the order of errors, descriptions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.access import EVERYTHING, Permission, Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.http.dynamodb import render
from tailrace.http.dynamodb.handler import DynamoHandler
from tailrace.http.dynamodb.operations import TABLES
from tailrace.http.message import Request, Response
from tailrace.http.submitted import settled
from tailrace.tables.commands import PutItem

INVALID = "One or more parameter values were invalid: "
FAILED = "failed to satisfy constraint: "
A = [{"AttributeName": "a", "AttributeType": "S"}]
AB = [*A, {"AttributeName": "b", "AttributeType": "S"}]
HASH_A = [{"AttributeName": "a", "KeyType": "HASH"}]
A_B = [*HASH_A, {"AttributeName": "b", "KeyType": "RANGE"}]
ONE = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
ALL = {"ProjectionType": "ALL"}
HASHED: dict[str, Any] = {"AttributeDefinitions": A, "KeySchema": HASH_A, "BillingMode": "PAY_PER_REQUEST"}
RANGED: dict[str, Any] = {"AttributeDefinitions": AB, "KeySchema": A_B, "BillingMode": "PAY_PER_REQUEST"}
REGION = "ap-south-1"


class Desk:
    """Sends a request to the handler, and returns the response."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.principal = Principal("tester", EVERYTHING)
        self._handler = DynamoHandler(db, Config(dev=True), lambda _: (self.principal, None))

    async def send(self, operation: str, body: dict[str, Any]) -> tuple[int, Any]:
        headers = {
            b"host": b"here:8000",
            b"content-type": b"application/x-amz-json-1.0",
            b"x-amz-target": (TABLES + operation).encode(),
            b"authorization": f"AWS4-HMAC-SHA256 Credential=key/20260101/{REGION}/dynamodb/aws4_request".encode(),
        }
        answer = await settled(self._handler(Request(b"POST", b"/", b"", headers, json.dumps(body).encode())))
        assert isinstance(answer, Response)
        body = bytes(answer.body)
        return answer.status, json.loads(body) if body else None

    async def ok(self, operation: str, **body: Any) -> Any:
        status, answer = await self.send(operation, body)
        assert status == 200, answer
        return answer

    async def refused(self, operation: str, **body: Any) -> tuple[str, str]:
        status, answer = await self.send(operation, body)
        assert status == 400, answer
        return answer["__type"].partition("#")[2], answer.get("message", answer.get("Message"))

    async def describe(self, name: str) -> dict[str, Any]:
        table: dict[str, Any] = (await self.ok("DescribeTable", TableName=name))["Table"]
        return table


Scenario = Callable[[Desk], Coroutine[Any, Any, None]]


@pytest.fixture
def at_the_desk(data_dir: Path) -> Callable[[Scenario], None]:
    """Runs a scenario against an empty database without background sweeps."""

    def run(scenario: Scenario) -> None:
        async def whole() -> None:
            db = tailrace.open(data_dir, housekeeping_s=None)
            try:
                await scenario(Desk(db))
            finally:
                await db.aclose()

        asyncio.run(whole())

    return run


Run = Callable[[Scenario], None]


# -- descriptions


def test_create_returns_the_requested_settings_and_no_more(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        table = (await desk.ok("CreateTable", TableName="orders", **HASHED))["TableDescription"]
        assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", table.pop("TableId"))
        assert abs(table.pop("CreationDateTime") - desk.db.clock.now_ms() / 1000) < 60
        assert table == {
            "TableName": "orders",
            "TableStatus": "CREATING",
            "TableArn": f"arn:aws:dynamodb:{REGION}:{render.ACCOUNT}:table/orders",
            "AttributeDefinitions": A,
            "KeySchema": HASH_A,
            "ItemCount": 0,
            "TableSizeBytes": 0,
            "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
            "TableThroughputModeSummary": {"TableThroughputMode": "PAY_PER_REQUEST"},
            "ProvisionedThroughput": {
                "NumberOfDecreasesToday": 0,
                "ReadCapacityUnits": 0,
                "WriteCapacityUnits": 0,
            },
        }

    at_the_desk(scenario)


def test_indexes_are_described(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        near = {"IndexName": "near", "KeySchema": A_B, "Projection": {"ProjectionType": "KEYS_ONLY"}}
        far = {
            "IndexName": "far",
            "KeySchema": [{"AttributeName": "b", "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["x"]},
            "ProvisionedThroughput": ONE,
        }
        request = {**RANGED, "BillingMode": "PROVISIONED", "ProvisionedThroughput": ONE}
        made = await desk.ok(
            "CreateTable",
            TableName="orders",
            **request,
            LocalSecondaryIndexes=[near],
            GlobalSecondaryIndexes=[far],
        )
        arn = f"arn:aws:dynamodb:{REGION}:{render.ACCOUNT}:table/orders/index/"
        empty = {"ItemCount": 0, "IndexSizeBytes": 0}
        shown = {**far, **empty, "IndexArn": f"{arn}far"}
        shown["ProvisionedThroughput"] = {**ONE, "NumberOfDecreasesToday": 0}
        assert made["TableDescription"]["LocalSecondaryIndexes"] == [{**near, **empty, "IndexArn": f"{arn}near"}]
        assert made["TableDescription"]["GlobalSecondaryIndexes"] == [{**shown, "IndexStatus": "CREATING"}]
        assert "BillingModeSummary" not in made["TableDescription"]
        table = await desk.describe("orders")
        assert table["TableStatus"] == "ACTIVE"
        assert table["GlobalSecondaryIndexes"] == [{**shown, "IndexStatus": "ACTIVE"}]

    at_the_desk(scenario)


def test_describe_counts_and_dates(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ok("CreateTable", TableName="orders", **HASHED, DeletionProtectionEnabled=False)
        await desk.db.aexecute(PutItem("orders", {"a": {"S": "1"}}, 2))
        table = await desk.describe("orders")
        assert (table["ItemCount"], table["TableSizeBytes"]) == (1, 2)
        assert table["DeletionProtectionEnabled"] is False
        assert table["BillingModeSummary"]["LastUpdateToPayPerRequestDateTime"] == table["CreationDateTime"]

    at_the_desk(scenario)


def test_update_shows_what_is_being_left(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        request = {**HASHED, "BillingMode": "PROVISIONED", "ProvisionedThroughput": ONE}
        await desk.ok("CreateTable", TableName="orders", **request)
        more = {"ReadCapacityUnits": 3, "WriteCapacityUnits": 1}
        answer = await desk.ok("UpdateTable", TableName="orders", ProvisionedThroughput=more)
        under_way = answer["TableDescription"]
        assert under_way["TableStatus"] == "UPDATING"
        assert under_way["ProvisionedThroughput"]["ReadCapacityUnits"] == 1
        done = (await desk.describe("orders"))["ProvisionedThroughput"]
        assert done["ReadCapacityUnits"] == 3
        assert done["LastIncreaseDateTime"] > under_way["ProvisionedThroughput"]["LastIncreaseDateTime"]
        answer = await desk.ok("UpdateTable", TableName="orders", ProvisionedThroughput=ONE)
        under_way = answer["TableDescription"]["ProvisionedThroughput"]
        assert (under_way["NumberOfDecreasesToday"], under_way["ReadCapacityUnits"]) == (0, 3)
        assert under_way["LastIncreaseDateTime"] == done["LastIncreaseDateTime"]
        done = (await desk.describe("orders"))["ProvisionedThroughput"]
        assert (done["NumberOfDecreasesToday"], done["ReadCapacityUnits"]) == (1, 1)
        assert done["LastDecreaseDateTime"] > under_way["LastDecreaseDateTime"]

        answer = await desk.ok("UpdateTable", TableName="orders", BillingMode="PAY_PER_REQUEST")
        assert answer["TableDescription"]["BillingModeSummary"] == {"BillingMode": "PAY_PER_REQUEST"}
        assert answer["TableDescription"]["ProvisionedThroughput"]["ReadCapacityUnits"] == 0

    at_the_desk(scenario)


def test_update_shows_indexes_that_come_and_go(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ok("CreateTable", TableName="orders", **HASHED)
        await desk.db.aexecute(PutItem("orders", {"a": {"S": "1"}}, 2))
        create = {
            "IndexName": "late",
            "KeySchema": [{"AttributeName": "b", "KeyType": "HASH"}],
            "Projection": ALL,
        }
        answer = await desk.ok(
            "UpdateTable",
            TableName="orders",
            AttributeDefinitions=AB,
            GlobalSecondaryIndexUpdates=[{"Create": create}],
        )
        (index,) = answer["TableDescription"]["GlobalSecondaryIndexes"]
        assert (index["IndexStatus"], index["Backfilling"]) == ("CREATING", True)
        assert answer["TableDescription"]["AttributeDefinitions"] == AB
        assert (await desk.describe("orders"))["TableStatus"] == "UPDATING"
        answer = await desk.ok(
            "UpdateTable", TableName="orders", GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "late"}}]
        )
        (index,) = answer["TableDescription"]["GlobalSecondaryIndexes"]
        assert (index["IndexName"], index["IndexStatus"]) == ("late", "DELETING")
        table = await desk.describe("orders")
        assert "GlobalSecondaryIndexes" not in table
        assert table["AttributeDefinitions"] == A

    at_the_desk(scenario)


def test_delete_shows_what_outlives_the_schema(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        far = {"IndexName": "far", "KeySchema": HASH_A, "Projection": ALL}
        await desk.ok("CreateTable", TableName="orders", **RANGED, GlobalSecondaryIndexes=[far])
        answer = await desk.ok("DeleteTable", TableName="orders")
        table = answer["TableDescription"]
        assert table["TableStatus"] == "DELETING"
        assert table["BillingModeSummary"]["LastUpdateToPayPerRequestDateTime"]
        assert table.keys() >= {"TableId", "TableArn", "ItemCount", "TableSizeBytes", "ProvisionedThroughput"}
        hidden = {"KeySchema", "AttributeDefinitions", "CreationDateTime", "GlobalSecondaryIndexes"}
        assert not table.keys() & hidden
        refusal = await desk.refused("DescribeTable", TableName="orders")
        assert refusal == ("ResourceNotFoundException", "Requested resource not found: Table: orders not found")

    at_the_desk(scenario)


def test_a_stream_is_described_also_when_it_is_off(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        on = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
        await desk.ok("CreateTable", TableName="orders", **HASHED, StreamSpecification=on)
        table = await desk.describe("orders")
        assert table["StreamSpecification"] == on
        assert table["LatestStreamArn"] == f"{table['TableArn']}/stream/{table['LatestStreamLabel']}"
        await desk.ok("UpdateTable", TableName="orders", StreamSpecification={"StreamEnabled": False})
        after = await desk.describe("orders")
        assert "StreamSpecification" not in after
        assert after["LatestStreamLabel"] == table["LatestStreamLabel"]

    at_the_desk(scenario)


def test_the_other_stored_settings_are_returned(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ok(
            "CreateTable",
            TableName="orders",
            **HASHED,
            SSESpecification={"Enabled": True, "SSEType": "KMS"},
            TableClass="STANDARD_INFREQUENT_ACCESS",
            DeletionProtectionEnabled=True,
            OnDemandThroughput={"MaxReadRequestUnits": 7},
            WarmThroughput={"ReadUnitsPerSecond": 8, "WriteUnitsPerSecond": 9},
        )
        table = await desk.describe("orders")
        assert table["SSEDescription"] == {"Status": "ENABLED", "SSEType": "KMS"}
        assert table["TableClassSummary"] == {"TableClass": "STANDARD_INFREQUENT_ACCESS"}
        assert table["DeletionProtectionEnabled"] is True
        assert table["OnDemandThroughput"] == {"MaxReadRequestUnits": 7, "MaxWriteRequestUnits": -1}
        assert table["WarmThroughput"] == {
            "ReadUnitsPerSecond": 8,
            "WriteUnitsPerSecond": 9,
            "Status": "ACTIVE",
        }
        await desk.ok("UpdateTable", TableName="orders", SSESpecification={"Enabled": False})
        assert "SSEDescription" not in await desk.describe("orders")

    at_the_desk(scenario)


def test_a_table_is_found_by_its_arn(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        made = await desk.ok("CreateTable", TableName="orders", **HASHED)
        arn = made["TableDescription"]["TableArn"]
        assert (await desk.describe(arn))["TableName"] == "orders"
        await desk.ok("DeleteTable", TableName=arn)

    at_the_desk(scenario)


# -- complaints


def _null(path: str) -> str:
    return f"Value null at '{path}' {FAILED}Member must not be null"


@pytest.mark.parametrize(
    ("request_", "messages"),
    [
        ({}, "The parameter 'TableName' is required but was not present in the request"),
        (
            {"TableName": "abc;"},
            [
                _null("attributeDefinitions"),
                f"Value 'abc;' at 'tableName' {FAILED}"
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
                _null("keySchema"),
            ],
        ),
        (
            {
                "TableName": "abc",
                "AttributeDefinitions": [],
                "KeySchema": [],
                "ProvisionedThroughput": {"ReadCapacityUnits": -1, "WriteCapacityUnits": -1},
                "BillingMode": "A",
            },
            [
                f"Value 'A' at 'billingMode' {FAILED}"
                "Member must satisfy enum value set: [PROVISIONED, PAY_PER_REQUEST]",
                f"Value '-1' at 'provisionedThroughput.writeCapacityUnits' {FAILED}"
                "Member must have value greater than or equal to 1",
                f"Value '-1' at 'provisionedThroughput.readCapacityUnits' {FAILED}"
                "Member must have value greater than or equal to 1",
                f"Value '[]' at 'keySchema' {FAILED}Member must have length greater than or equal to 1",
            ],
        ),
        (
            {
                "TableName": "abc",
                "AttributeDefinitions": [{}],
                "KeySchema": [{"KeyType": "HASH"}, {"AttributeName": "a"}],
            },
            [
                _null("attributeDefinitions.1.member.attributeName"),
                _null("attributeDefinitions.1.member.attributeType"),
                _null("keySchema.1.member.attributeName"),
                _null("keySchema.2.member.keyType"),
            ],
        ),
        (
            {
                **RANGED,
                "TableName": "abc",
                "LocalSecondaryIndexes": [
                    {"IndexName": "h;", "KeySchema": [], "Projection": {"ProjectionType": "b", "NonKeyAttributes": []}}
                ],
            },
            [
                f"Value 'h;' at 'localSecondaryIndexes.1.member.indexName' {FAILED}"
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
                f"Value 'h;' at 'localSecondaryIndexes.1.member.indexName' {FAILED}"
                "Member must have length greater than or equal to 3",
                f"Value '[]' at 'localSecondaryIndexes.1.member.keySchema' {FAILED}"
                "Member must have length greater than or equal to 1",
                f"Value 'b' at 'localSecondaryIndexes.1.member.projection.projectionType' {FAILED}"
                "Member must satisfy enum value set: [ALL, INCLUDE, KEYS_ONLY]",
                f"Value '[]' at 'localSecondaryIndexes.1.member.projection.nonKeyAttributes' {FAILED}"
                "Member must have length greater than or equal to 1",
            ],
        ),
        (
            {**HASHED, "TableName": "abc", "KeySchema": [*A_B, {"AttributeName": "c", "KeyType": "RANGE"}]},
            [
                "Value '[KeySchemaElement(attributeName=a, keyType=HASH), "
                "KeySchemaElement(attributeName=b, keyType=RANGE), "
                f"KeySchemaElement(attributeName=c, keyType=RANGE)]' at 'keySchema' {FAILED}"
                "Member must have length less than or equal to 2"
            ],
        ),
        (
            {**HASHED, "TableName": "abc", "StreamSpecification": {}},
            [_null("streamSpecification.streamEnabled")],
        ),
        (
            {**HASHED, "TableName": "abc", "Tags": [{"Key": ""}]},
            [
                f"Value '' at 'tags.1.member.key' {FAILED}Member must have length greater than or equal to 1",
                _null("tags.1.member.value"),
            ],
        ),
        (
            {**HASHED, "TableName": "abc", "ProvisionedThroughput": ONE},
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is "
            "PAY_PER_REQUEST",
        ),
        ({**HASHED, "TableName": "abc", "ResourcePolicy": "{}"}, "Resource policies are not supported: leave out "
         "ResourcePolicy"),
    ],
)  # fmt: skip
def test_create_complains_in_the_services_order(at_the_desk: Run, request_: dict[str, Any], messages: Any) -> None:
    if isinstance(messages, list):
        count = f"{len(messages)} validation error{'s' if len(messages) > 1 else ''} detected: "
        messages = count + "; ".join(messages)

    async def scenario(desk: Desk) -> None:
        assert await desk.refused("CreateTable", **request_) == ("ValidationException", messages)
        assert await desk.ok("ListTables") == {"TableNames": []}

    at_the_desk(scenario)


@pytest.mark.parametrize(
    ("updates", "messages"),
    [
        (
            [{"Update": {}}],
            [
                _null("globalSecondaryIndexUpdates.1.member.update.indexName"),
                _null("globalSecondaryIndexUpdates.1.member.update.provisionedThroughput"),
            ],
        ),
        (
            [
                {"Update": {"IndexName": "a", "ProvisionedThroughput": {}}},
                {
                    "Update": {
                        "IndexName": "abc;",
                        "ProvisionedThroughput": {"ReadCapacityUnits": 1000000000001, "WriteCapacityUnits": 0},
                    }
                },
            ],
            [
                f"Value 'a' at 'globalSecondaryIndexUpdates.1.member.update.indexName' {FAILED}"
                "Member must have length greater than or equal to 3",
                _null("globalSecondaryIndexUpdates.1.member.update.provisionedThroughput.writeCapacityUnits"),
                _null("globalSecondaryIndexUpdates.1.member.update.provisionedThroughput.readCapacityUnits"),
                f"Value 'abc;' at 'globalSecondaryIndexUpdates.2.member.update.indexName' {FAILED}"
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
                "Value '0' at 'globalSecondaryIndexUpdates.2.member.update.provisionedThroughput.writeCapacityUnits' "
                f"{FAILED}Member must have value greater than or equal to 1",
            ],
        ),
    ],
)
def test_update_complains_in_the_services_order(at_the_desk: Run, updates: Any, messages: list[str]) -> None:
    async def scenario(desk: Desk) -> None:
        code, message = await desk.refused("UpdateTable", TableName="abc", GlobalSecondaryIndexUpdates=updates)
        assert (code, message) == (
            "ValidationException",
            f"{len(messages)} validation errors detected: {'; '.join(messages)}",
        )

    at_the_desk(scenario)


def test_an_update_is_looked_at_before_its_table(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        code, message = await desk.refused("UpdateTable", TableName="missing")
        assert (code, message.partition(",")[0]) == ("ValidationException", "At least one of ProvisionedThroughput")
        code, message = await desk.refused("UpdateTable", TableName="missing", BillingMode="PAY_PER_REQUEST")
        assert (code, message) == (
            "ResourceNotFoundException",
            "Requested resource not found: Table: missing not found",
        )

    at_the_desk(scenario)


def test_an_index_update_takes_any_kind_of_capacity(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        far = {"IndexName": "far", "KeySchema": HASH_A, "Projection": ALL}
        await desk.ok("CreateTable", TableName="orders", **HASHED, GlobalSecondaryIndexes=[far])
        update = {"IndexName": "far", "OnDemandThroughput": {"MaxReadRequestUnits": 5, "MaxWriteRequestUnits": 6}}
        await desk.ok("UpdateTable", TableName="orders", GlobalSecondaryIndexUpdates=[{"Update": update}])
        (index,) = (await desk.describe("orders"))["GlobalSecondaryIndexes"]
        assert index["OnDemandThroughput"] == update["OnDemandThroughput"]

    at_the_desk(scenario)


@pytest.mark.parametrize("operation", ["DescribeTable", "DeleteTable", "DescribeTimeToLive", "UpdateTable"])
def test_names_of_tables(at_the_desk: Run, operation: str) -> None:
    async def scenario(desk: Desk) -> None:
        for name in ("", "a;", "a" * 256):
            assert await desk.refused(operation, TableName=name) == (
                "ValidationException",
                "TableName must be at least 3 characters long and at most 255 characters long",
            )
        code, _ = await desk.refused(operation, TableName=["a"])
        assert code == "SerializationException"

    at_the_desk(scenario)


def test_who_may_only_read_makes_no_tables(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        desk.principal = Principal("reader", frozenset((Permission.READ,)))
        code, _ = await desk.refused("CreateTable", TableName="orders", **HASHED)
        assert code == "AccessDeniedException"
        assert await desk.ok("ListTables") == {"TableNames": []}

    at_the_desk(scenario)


# -- lists, expiry, tags, and what tools ask


def test_lists_go_on_where_they_stopped(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        for name in ("one", "two", "three"):
            await desk.ok("CreateTable", TableName=name, **HASHED)
        assert await desk.ok("ListTables", Limit=2) == {
            "TableNames": ["one", "three"],
            "LastEvaluatedTableName": "three",
        }
        assert await desk.ok("ListTables", Limit=2, ExclusiveStartTableName="three") == {"TableNames": ["two"]}
        assert await desk.ok("ListTables", Limit=3) == {"TableNames": ["one", "three", "two"]}
        for name in ("a", "p", "z"):  # such names are for SQL, and no request here could name them
            await asyncio.to_thread(desk.db.sql, f"CREATE TABLE {name} (id TEXT PRIMARY KEY)")
        assert await desk.ok("ListTables", Limit=2) == {
            "TableNames": ["one", "three"],
            "LastEvaluatedTableName": "three",
        }
        assert await desk.ok("ListTables", Limit=2, ExclusiveStartTableName="three") == {"TableNames": ["two"]}
        code, message = await desk.refused("ListTables", ExclusiveStartTableName="a;", Limit=500)
        assert code == "ValidationException"
        assert message.startswith("3 validation errors detected: Value 'a;' at 'exclusiveStartTableName'")

    at_the_desk(scenario)


def test_time_to_live(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ok("CreateTable", TableName="orders", **HASHED)

        def wanted(name: str, enabled: bool) -> dict[str, Any]:
            return {"TableName": "orders", "TimeToLiveSpecification": {"AttributeName": name, "Enabled": enabled}}

        off = {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
        assert await desk.ok("DescribeTimeToLive", TableName="orders") == off
        assert await desk.ok("UpdateTimeToLive", **wanted("t", True)) == {
            "TimeToLiveSpecification": {"AttributeName": "t", "Enabled": True}
        }
        assert await desk.ok("DescribeTimeToLive", TableName="orders") == {
            "TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": "t"}
        }
        assert (await desk.refused("UpdateTimeToLive", **wanted("t", True)))[1] == "TimeToLive is already enabled"
        assert (await desk.refused("UpdateTimeToLive", **wanted("u", False)))[1] == (
            "TimeToLive is active on a different AttributeName: current AttributeName is t"
        )
        await desk.ok("UpdateTimeToLive", **wanted("t", False))
        assert await desk.ok("DescribeTimeToLive", TableName="orders") == off
        code, message = await desk.refused("UpdateTimeToLive", **wanted("", True))
        assert code == "ValidationException"
        assert "timeToLiveSpecification.attributeName" in message
        code, message = await desk.refused("UpdateTimeToLive", TableName="orders", TimeToLiveSpecification={})
        assert message.startswith("2 validation errors detected: ")

    at_the_desk(scenario)


@pytest.mark.parametrize(
    ("operation", "more"),
    [("TagResource", {"Tags": []}), ("UntagResource", {"TagKeys": []}), ("ListTagsOfResource", {})],
)
def test_arns_of_tag_requests(at_the_desk: Run, operation: str, more: dict[str, Any]) -> None:
    async def scenario(desk: Desk) -> None:
        async def refused(**body: Any) -> tuple[str, str]:
            return await desk.refused(operation, **body)

        assert await refused() == ("ValidationException", "Invalid TableArn")
        assert (await refused(ResourceArn="not-an-arn", **more))[0] == "ValidationException"
        for arn in ("", "a:b:c:d:e:f", "a:b:c:d:e/f"):
            code, message = await refused(ResourceArn=arn)
            assert code == "AccessDeniedException"
            assert message.endswith(f"is not authorized to perform: dynamodb:{operation} on resource: {arn or '*'}")
        assert (await refused(ResourceArn="a:" * 400))[0] == "AccessDeniedException", "at once"
        assert (await refused(ResourceArn="a" * 1_283))[1].startswith("Invalid ResourceArn: ARNs must start with")
        long = await refused(ResourceArn="a" * 1_284, **more)
        assert long[1].endswith(
            "at 'resourceArn' failed to satisfy constraint: Member must have length less than or equal to 1283"
        )
        for member in more:
            path = member[0].lower() + member[1:]
            assert (await refused(ResourceArn="a:b:c:d:e:f/g"))[1] == f"1 validation error detected: {_null(path)}"
        own = f"arn:aws:dynamodb:{REGION}:{render.ACCOUNT}:table/"
        for arn in ("a:b:c:d:e:f/g", f"{own}ab", f"{own}orders/index/far"):
            assert await refused(ResourceArn=arn, **more) == (
                "ValidationException",
                f"Invalid TableArn: Invalid ResourceArn provided as input {arn}",
            )
        foreign = f"arn:aws:dynamodb:{REGION}:999999999999:table/orders"
        assert (await refused(ResourceArn=foreign, **more))[0] == "AccessDeniedException"

    at_the_desk(scenario)


def test_tags(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        made = await desk.ok("CreateTable", TableName="orders", **HASHED, Tags=[{"Key": "a", "Value": "1"}])
        arn = made["TableDescription"]["TableArn"]
        status, answer = await desk.send(
            "TagResource", {"ResourceArn": arn, "Tags": [{"Key": "b", "Value": ""}, {"Key": "a", "Value": "2"}]}
        )
        assert (status, answer) == (200, None)
        tags = (await desk.ok("ListTagsOfResource", ResourceArn=arn))["Tags"]
        assert tags == [{"Key": "a", "Value": "2"}, {"Key": "b", "Value": ""}]
        await desk.ok("UntagResource", ResourceArn=arn, TagKeys=["a", "z"])
        assert await desk.ok("ListTagsOfResource", ResourceArn=arn) == {"Tags": [{"Key": "b", "Value": ""}]}
        assert (await desk.refused("TagResource", ResourceArn=arn, Tags=[]))[1] == (
            "Atleast one Tag needs to be provided as Input."
        )
        assert (await desk.refused("UntagResource", ResourceArn=arn, TagKeys=[]))[1] == (
            "Atleast one Tag Key needs to be provided as Input."
        )
        missing = f"{arn}x"
        for operation, more in (("TagResource", {"Tags": [{"Key": "a", "Value": "1"}]}), ("ListTagsOfResource", {})):
            assert await desk.refused(operation, ResourceArn=missing, **more) == (
                "ResourceNotFoundException",
                f"Requested resource not found: ResourcArn: {missing} not found",
            )
        assert await desk.refused("UntagResource", ResourceArn=missing, TagKeys=["a"]) == (
            "ResourceNotFoundException",
            "Requested resource not found",
        )

    at_the_desk(scenario)


def test_what_tools_ask(at_the_desk: Run) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.ok("CreateTable", TableName="orders", **HASHED)
        assert await desk.ok("DescribeLimits") == {
            "AccountMaxReadCapacityUnits": 80000,
            "AccountMaxWriteCapacityUnits": 80000,
            "TableMaxReadCapacityUnits": 40000,
            "TableMaxWriteCapacityUnits": 40000,
        }
        (endpoint,) = (await desk.ok("DescribeEndpoints"))["Endpoints"]
        assert endpoint["CachePeriodInMinutes"] == 1440
        backups = await desk.ok("DescribeContinuousBackups", TableName="orders")
        recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
        assert recovery == {"PointInTimeRecoveryStatus": "DISABLED"}
        code, _ = await desk.refused("DescribeContinuousBackups", TableName="missing")
        assert code == "TableNotFoundException"

    at_the_desk(scenario)

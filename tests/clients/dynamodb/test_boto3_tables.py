"""boto3 and tables: made, described, changed, listed, tagged and deleted, and every way in which that is refused."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.clients

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PK = [{"AttributeName": "pk", "AttributeType": "S"}]
HASH = [{"AttributeName": "pk", "KeyType": "HASH"}]
ALL = {"ProjectionType": "ALL"}
UNITS = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 4}
INVALID = "One or more parameter values were invalid: "


def fresh() -> str:
    return f"boto3.{uuid.uuid4().hex}"


def describe(client: Any, name: str) -> dict[str, Any]:
    table: dict[str, Any] = client.describe_table(TableName=name)["Table"]
    return table


# -- life


def test_a_table_is_made_used_and_deleted(client: Any, refuses: Any) -> None:
    name = fresh()
    before = time.time()
    made = client.create_table(TableName=name, KeySchema=HASH, AttributeDefinitions=PK, BillingMode="PAY_PER_REQUEST")[
        "TableDescription"
    ]
    assert made["TableStatus"] == "CREATING"
    assert made["TableName"] == name
    assert made["BillingModeSummary"] == {"BillingMode": "PAY_PER_REQUEST"}
    client.put_item(
        TableName=name, Item={"pk": {"S": "at once"}}
    )  # clients may wait while it is CREATING, but need not

    client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 10})
    table = describe(client, name)
    assert table["TableStatus"] == "ACTIVE"
    assert (table["KeySchema"], table["AttributeDefinitions"]) == (HASH, PK)
    assert before - 1 <= table["CreationDateTime"].timestamp() <= time.time() + 1
    assert re.fullmatch(UUID, table["TableId"])
    assert table["TableArn"] == made["TableArn"]
    assert re.fullmatch(rf"arn:aws:dynamodb:eu-central-1:\d{{12}}:table/{re.escape(name)}", table["TableArn"])
    assert table["ProvisionedThroughput"] == {
        "NumberOfDecreasesToday": 0,
        "ReadCapacityUnits": 0,
        "WriteCapacityUnits": 0,
    }
    assert table["BillingModeSummary"]["LastUpdateToPayPerRequestDateTime"]
    assert table["ItemCount"] == 1
    assert table["TableSizeBytes"] == len("pk") + len("at once")
    assert table["DeletionProtectionEnabled"] is False
    for absent in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes", "StreamSpecification", "SSEDescription"):
        assert absent not in table

    deleted = client.delete_table(TableName=name)["TableDescription"]
    assert (deleted["TableName"], deleted["TableStatus"]) == (name, "DELETING")
    assert "KeySchema" not in deleted
    client.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 10})
    with refuses("ResourceNotFoundException", f"Requested resource not found: Table: {name} not found") as refusal:
        client.describe_table(TableName=name)
    assert refusal.status == 400


def test_a_name_is_free_again_and_inherits_nothing(client: Any, hashed: str) -> None:
    client.put_item(TableName=hashed, Item={"pk": {"S": "old"}})
    first = describe(client, hashed)["TableId"]
    client.delete_table(TableName=hashed)
    client.create_table(TableName=hashed, KeySchema=HASH, AttributeDefinitions=PK, BillingMode="PAY_PER_REQUEST")
    assert client.scan(TableName=hashed)["Items"] == []
    assert describe(client, hashed)["TableId"] != first


def test_there_is_one_table_of_a_name(client: Any, hashed: str, refuses: Any) -> None:
    with refuses("ResourceInUseException", f"Table already exists: {hashed}"):
        client.create_table(TableName=hashed, KeySchema=HASH, AttributeDefinitions=PK, BillingMode="PAY_PER_REQUEST")


@pytest.mark.parametrize("call", ["describe_table", "delete_table", "describe_time_to_live"])
def test_what_is_not_there_is_not_found(client: Any, refuses: Any, call: str) -> None:
    with refuses("ResourceNotFoundException"):
        getattr(client, call)(TableName="does.not.exist")
    with refuses("ResourceNotFoundException"):
        client.update_table(TableName="does.not.exist", BillingMode="PAY_PER_REQUEST")


def test_deletion_protection(client: Any, hashed: str, refuses: Any) -> None:
    client.update_table(TableName=hashed, DeletionProtectionEnabled=True)
    assert describe(client, hashed)["DeletionProtectionEnabled"] is True
    with refuses("ValidationException", "protected against deletion"):
        client.delete_table(TableName=hashed)
    client.update_table(TableName=hashed, DeletionProtectionEnabled=False)
    client.delete_table(TableName=hashed)


def test_a_table_answers_to_its_arn(client: Any, hashed: str) -> None:
    arn = describe(client, hashed)["TableArn"]
    client.put_item(TableName=arn, Item={"pk": {"S": "a"}})
    assert client.get_item(TableName=arn, Key={"pk": {"S": "a"}})["Item"] == {"pk": {"S": "a"}}
    assert client.describe_table(TableName=arn)["Table"]["TableName"] == hashed
    assert client.describe_time_to_live(TableName=arn)
    client.delete_table(TableName=arn)


def test_the_resource_half_of_boto3(resource: Any) -> None:
    table = resource.create_table(
        TableName=fresh(), KeySchema=HASH, AttributeDefinitions=PK, BillingMode="PAY_PER_REQUEST"
    )
    table.wait_until_exists()
    table.reload()
    assert table.table_status == "ACTIVE"
    assert table in list(resource.tables.all())
    table.delete()
    table.wait_until_not_exists()


# -- everything that a description tells


def test_a_description_tells_everything(client: Any, create: Callable[..., str], key_schema: Any) -> None:
    name = create(
        client,
        "pk",
        "sk",
        ProvisionedThroughput=UNITS,
        GlobalSecondaryIndexes=[
            {
                "IndexName": "wide",
                "KeySchema": key_schema("n", "pk"),
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["one", "two"]},
                "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 2},
            }
        ],
        LocalSecondaryIndexes=[
            {
                "IndexName": "near",
                "KeySchema": key_schema("pk", "b"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        TableClass="STANDARD_INFREQUENT_ACCESS",
        DeletionProtectionEnabled=True,
        Tags=[{"Key": "team", "Value": "water"}],
    )
    client.put_item(TableName=name, Item={"pk": {"S": "a"}, "sk": {"S": "b"}, "n": {"N": "1"}})
    table = describe(client, name)
    arn = table["TableArn"]
    assert {d["AttributeName"]: d["AttributeType"] for d in table["AttributeDefinitions"]} == {
        "pk": "S",
        "sk": "S",
        "n": "N",
        "b": "B",
    }
    assert table["ProvisionedThroughput"] == {"NumberOfDecreasesToday": 0, **UNITS}
    (wide,) = table["GlobalSecondaryIndexes"]
    assert wide.pop("IndexSizeBytes") > 0
    assert wide == {
        "IndexName": "wide",
        "KeySchema": key_schema("n", "pk"),
        "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["one", "two"]},
        "IndexStatus": "ACTIVE",
        "ProvisionedThroughput": {"NumberOfDecreasesToday": 0, "ReadCapacityUnits": 1, "WriteCapacityUnits": 2},
        "ItemCount": 1,
        "IndexArn": f"{arn}/index/wide",
    }
    (near,) = table["LocalSecondaryIndexes"]
    assert near == {
        "IndexName": "near",
        "KeySchema": key_schema("pk", "b"),
        "Projection": {"ProjectionType": "KEYS_ONLY"},
        "IndexSizeBytes": 0,
        "ItemCount": 0,
        "IndexArn": f"{arn}/index/near",
    }
    assert table["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    assert table["LatestStreamArn"] == f"{arn}/stream/{table['LatestStreamLabel']}"
    assert table["TableClassSummary"]["TableClass"] == "STANDARD_INFREQUENT_ACCESS"
    assert table["DeletionProtectionEnabled"] is True
    assert client.list_tags_of_resource(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "water"}]


def test_limits_on_demand_are_kept(client: Any, create: Callable[..., str]) -> None:
    name = create(client, "pk", OnDemandThroughput={"MaxReadRequestUnits": 10, "MaxWriteRequestUnits": 20})
    assert describe(client, name)["OnDemandThroughput"] == {"MaxReadRequestUnits": 10, "MaxWriteRequestUnits": 20}


# -- refused from the start

CREATE: dict[str, Any] = {"KeySchema": HASH, "AttributeDefinitions": PK, "BillingMode": "PAY_PER_REQUEST"}
AB = [{"AttributeName": "a", "AttributeType": "S"}, {"AttributeName": "b", "AttributeType": "S"}]
A_B = [{"AttributeName": "a", "KeyType": "HASH"}, {"AttributeName": "b", "KeyType": "RANGE"}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"TableName": None}, "The parameter 'TableName' is required but was not present in the request"),
        (
            {"TableName": "ab"},
            "1 validation error detected: Value 'ab' at 'tableName' failed to satisfy constraint: "
            "Member must have length greater than or equal to 3",
        ),
        (
            {"TableName": "not;good"},
            "1 validation error detected: Value 'not;good' at 'tableName' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
        ),
        (
            {"KeySchema": [{"AttributeName": "pk", "KeyType": "MIDDLE"}]},
            "1 validation error detected: Value 'MIDDLE' at 'keySchema.1.member.keyType' failed to satisfy "
            "constraint: Member must satisfy enum value set: [HASH, RANGE]",
        ),
        (
            {"AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "SS"}]},
            "1 validation error detected: Value 'SS' at 'attributeDefinitions.1.member.attributeType' failed to "
            "satisfy constraint: Member must satisfy enum value set: [B, N, S]",
        ),
        (
            {"BillingMode": "FREE"},
            "1 validation error detected: Value 'FREE' at 'billingMode' failed to satisfy constraint: "
            "Member must satisfy enum value set: [PROVISIONED, PAY_PER_REQUEST]",
        ),
        (
            {"BillingMode": "PROVISIONED"},
            f"{INVALID}ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode is PROVISIONED",
        ),
        (
            {"ProvisionedThroughput": UNITS},
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is "
            "PAY_PER_REQUEST",
        ),
        (
            {"AttributeDefinitions": AB},
            f"{INVALID}Some index key attributes are not defined in AttributeDefinitions. "
            "Keys: [pk], AttributeDefinitions: [a, b]",
        ),
        (
            {"AttributeDefinitions": [*PK, *AB]},
            f"{INVALID}Number of attributes in KeySchema does not exactly match number of attributes defined in "
            "AttributeDefinitions",
        ),
        (
            {"AttributeDefinitions": AB, "KeySchema": [A_B[1], A_B[0]]},
            "Invalid KeySchema: The first KeySchemaElement is not a HASH key type",
        ),
        (
            {"AttributeDefinitions": AB, "KeySchema": A_B, "LocalSecondaryIndexes": []},
            f"{INVALID}List of LocalSecondaryIndexes is empty",
        ),
        (
            {
                "AttributeDefinitions": AB,
                "KeySchema": A_B,
                "LocalSecondaryIndexes": [{"IndexName": "loc", "KeySchema": A_B[:1], "Projection": ALL}],
            },
            f"{INVALID}Index KeySchema does not have a range key for index: loc",
        ),
        (
            {
                "AttributeDefinitions": AB,
                "KeySchema": A_B,
                "GlobalSecondaryIndexes": [{"IndexName": "same", "KeySchema": A_B[:1], "Projection": ALL}] * 2,
            },
            f"{INVALID}Duplicate index name: same",
        ),
        (
            {
                "AttributeDefinitions": AB,
                "KeySchema": A_B,
                "GlobalSecondaryIndexes": [{"IndexName": "none", "KeySchema": A_B[:1], "Projection": {}}],
            },
            f"{INVALID}Unknown ProjectionType: null",
        ),
    ],
)
def test_a_table_that_cannot_be(lenient: Any, refuses: Any, changed: dict[str, Any], message: str) -> None:
    request = {"TableName": fresh(), **CREATE, **changed}
    with refuses("ValidationException") as refusal:
        lenient.create_table(**{name: value for name, value in request.items() if value is not None})
    assert refusal.message == message


def test_wrong_types_are_not_even_read(lenient: Any, refuses: Any) -> None:
    with refuses("SerializationException", "NUMBER_VALUE cannot be converted to String"):
        lenient.list_tables(ExclusiveStartTableName=7)


def test_replicas_are_refused_not_forgotten(client: Any, hashed: str, refuses: Any) -> None:
    with refuses("ValidationException", "Replicas are not supported"):
        client.update_table(TableName=hashed, ReplicaUpdates=[{"Create": {"RegionName": "eu-west-1"}}])


# -- changed


def test_provision_is_raised_and_lowered(client: Any, create: Callable[..., str], refuses: Any) -> None:
    name = create(client, "pk", ProvisionedThroughput=UNITS)
    more = {"ReadCapacityUnits": 10, "WriteCapacityUnits": 20}
    answer = client.update_table(TableName=name, ProvisionedThroughput=more)["TableDescription"]
    assert answer["TableStatus"] == "UPDATING"
    assert answer["ProvisionedThroughput"]["ReadCapacityUnits"] == 5
    raised = describe(client, name)["ProvisionedThroughput"]
    assert (raised["ReadCapacityUnits"], raised["WriteCapacityUnits"]) == (10, 20)
    assert raised["LastIncreaseDateTime"] > answer["ProvisionedThroughput"]["LastIncreaseDateTime"]
    assert raised["NumberOfDecreasesToday"] == 0
    with refuses("ValidationException", "The provisioned throughput for the table will not change."):
        client.update_table(TableName=name, ProvisionedThroughput=more)
    client.update_table(TableName=name, ProvisionedThroughput=UNITS)
    lowered = describe(client, name)["ProvisionedThroughput"]
    assert (lowered["NumberOfDecreasesToday"], lowered["ReadCapacityUnits"]) == (1, 5)
    assert lowered["LastIncreaseDateTime"] == raised["LastIncreaseDateTime"]


def test_billing_changes_both_ways(client: Any, create: Callable[..., str], refuses: Any) -> None:
    name = create(client, "pk", ProvisionedThroughput=UNITS)
    assert "BillingModeSummary" not in describe(client, name)
    client.update_table(TableName=name, BillingMode="PAY_PER_REQUEST")
    table = describe(client, name)
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 0
    with refuses("ValidationException", "ProvisionedThroughput must be specified when BillingMode is PROVISIONED"):
        client.update_table(TableName=name, BillingMode="PROVISIONED")
    client.update_table(TableName=name, BillingMode="PROVISIONED", ProvisionedThroughput=UNITS)
    table = describe(client, name)
    assert table["BillingModeSummary"]["BillingMode"] == "PROVISIONED"
    assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 4


def test_an_update_must_change_something(client: Any, hashed: str, refuses: Any) -> None:
    with refuses("ValidationException", "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled"):
        client.update_table(TableName=hashed)


def test_an_index_is_added_to_a_live_table(
    client: Any, ranged: str, key_schema: Any, refuses: Any, eventually: Callable[..., Any]
) -> None:
    for i in range(60):
        item = {"pk": {"S": f"p{i}"}, "sk": {"S": "s"}, "body": {"S": "x" * i}}
        if i % 2:
            item["n"] = {"N": str(i % 3)}
        client.put_item(TableName=ranged, Item=item)
    create = {"IndexName": "late", "KeySchema": key_schema("n", "pk"), "Projection": ALL}
    attributes = [{"AttributeName": "n", "AttributeType": "N"}, {"AttributeName": "pk", "AttributeType": "S"}]
    answer = client.update_table(
        TableName=ranged, AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=[{"Create": create}]
    )["TableDescription"]
    assert answer["TableStatus"] == "UPDATING"
    assert [index["IndexName"] for index in answer["GlobalSecondaryIndexes"]] == ["late"]
    client.put_item(TableName=ranged, Item={"pk": {"S": "during"}, "sk": {"S": "s"}, "n": {"N": "1"}})

    def active() -> bool:
        return bool(describe(client, ranged)["GlobalSecondaryIndexes"][0]["IndexStatus"] == "ACTIVE")

    eventually(active)
    query = {
        "TableName": ranged,
        "IndexName": "late",
        "KeyConditionExpression": "n = :n",
        "ExpressionAttributeValues": {":n": {"N": "1"}},
    }
    found = [item["pk"]["S"] for item in client.query(**query)["Items"]]
    assert found == sorted(["during", *(f"p{i}" for i in range(60) if i % 2 and i % 3 == 1)])

    with refuses("ValidationException", "already exists"):
        client.update_table(
            TableName=ranged, AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=[{"Create": create}]
        )
    client.update_table(TableName=ranged, GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "late"}}])
    eventually(lambda: "GlobalSecondaryIndexes" not in describe(client, ranged))
    with refuses("ValidationException", "The table does not have the specified index: late"):
        client.query(**query)
    with refuses("ResourceNotFoundException"):
        client.update_table(TableName=ranged, GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "late"}}])


def test_indexes_come_and_go_one_at_a_time(client: Any, hashed: str, key_schema: Any, refuses: Any) -> None:
    def create(name: str) -> dict[str, Any]:
        return {"Create": {"IndexName": name, "KeySchema": key_schema("x"), "Projection": ALL}}

    attributes = [{"AttributeName": "x", "AttributeType": "S"}]
    with refuses("LimitExceededException", "Only 1 online index can be created or deleted simultaneously"):
        client.update_table(
            TableName=hashed,
            AttributeDefinitions=attributes,
            GlobalSecondaryIndexUpdates=[create("one"), create("two")],
        )
    with refuses("ValidationException", "must not be null"):
        client.update_table(TableName=hashed, GlobalSecondaryIndexUpdates=[{}])


def test_an_index_with_several_key_attributes(client: Any, create: Callable[..., str]) -> None:
    schema = [{"AttributeName": name, "KeyType": "HASH"} for name in ("h1", "h2")]
    schema += [{"AttributeName": name, "KeyType": "RANGE"} for name in ("r1", "r2")]
    name = create(
        client,
        "pk",
        kinds={"r1": "N"},
        GlobalSecondaryIndexes=[{"IndexName": "many", "KeySchema": schema, "Projection": ALL}],
    )
    assert describe(client, name)["GlobalSecondaryIndexes"][0]["KeySchema"] == schema
    for i in range(6):
        client.put_item(
            TableName=name,
            Item={
                "pk": {"S": str(i)},
                "h1": {"S": "a"},
                "h2": {"S": "b"},
                "r1": {"N": str(i % 2)},
                "r2": {"S": f"r{i}"},
            },
        )
    found = client.query(
        TableName=name,
        IndexName="many",
        KeyConditionExpression="h1 = :a AND h2 = :b AND r1 = :one AND r2 > :r",
        ExpressionAttributeValues={":a": {"S": "a"}, ":b": {"S": "b"}, ":one": {"N": "1"}, ":r": {"S": "r1"}},
    )["Items"]
    assert [item["pk"]["S"] for item in found] == ["3", "5"]


def test_a_stream_is_switched_on_and_off(client: Any, hashed: str, refuses: Any) -> None:
    on = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    client.update_table(TableName=hashed, StreamSpecification=on)
    table = describe(client, hashed)
    assert table["StreamSpecification"] == on
    with refuses("ValidationException"):
        client.update_table(TableName=hashed, StreamSpecification=on)
    client.update_table(TableName=hashed, StreamSpecification={"StreamEnabled": False})
    assert "StreamSpecification" not in describe(client, hashed)
    client.update_table(TableName=hashed, StreamSpecification=on)
    again = describe(client, hashed)
    assert again["LatestStreamLabel"] != table["LatestStreamLabel"]


# -- listed


def test_tables_are_listed_to_the_end(client: Any, create: Callable[..., str]) -> None:
    made = {create(client, "pk") for _ in range(7)}
    pages = list(client.get_paginator("list_tables").paginate(PaginationConfig={"PageSize": 3}))
    names = [name for page in pages for name in page["TableNames"]]
    assert made <= set(names)
    assert names == sorted(names)
    assert len(names) == len(set(names))
    assert all(len(page["TableNames"]) == 3 for page in pages[:-1])
    assert "LastEvaluatedTableName" not in pages[-1]


def test_a_list_starts_after_a_name_that_need_not_exist(client: Any, hashed: str) -> None:
    names = client.list_tables(ExclusiveStartTableName=hashed[:-1], Limit=1)["TableNames"]
    assert names == [hashed]


def test_a_list_has_bounds(lenient: Any, refuses: Any) -> None:
    with refuses("ValidationException", "Value '101' at 'limit' failed to satisfy constraint"):
        lenient.list_tables(Limit=101)
    with refuses("ValidationException", "Value '0' at 'limit' failed to satisfy constraint"):
        lenient.list_tables(Limit=0)


# -- time to live


def test_time_to_live_is_set_and_described(client: Any, hashed: str, refuses: Any) -> None:
    def setting(name: str, enabled: bool) -> dict[str, Any]:
        return {"TableName": hashed, "TimeToLiveSpecification": {"AttributeName": name, "Enabled": enabled}}

    assert client.describe_time_to_live(TableName=hashed)["TimeToLiveDescription"] == {"TimeToLiveStatus": "DISABLED"}
    with refuses("ValidationException", "TimeToLive is already disabled"):
        client.update_time_to_live(**setting("expires", False))
    answer = client.update_time_to_live(**setting("expires", True))
    assert answer["TimeToLiveSpecification"] == {"AttributeName": "expires", "Enabled": True}
    assert client.describe_time_to_live(TableName=hashed)["TimeToLiveDescription"] == {
        "TimeToLiveStatus": "ENABLED",
        "AttributeName": "expires",
    }
    with refuses("ValidationException", "TimeToLive is already enabled"):
        client.update_time_to_live(**setting("expires", True))
    with refuses(
        "ValidationException", "TimeToLive is active on a different AttributeName: current AttributeName is expires"
    ):
        client.update_time_to_live(**setting("other", True))
    client.update_time_to_live(**setting("expires", False))
    assert client.describe_time_to_live(TableName=hashed)["TimeToLiveDescription"] == {"TimeToLiveStatus": "DISABLED"}


def test_what_has_expired_goes(client: Any, hashed: str, eventually: Callable[..., Any]) -> None:
    now = int(time.time())
    expiries = {
        "before": {"N": str(now - 60)},
        "later": {"N": str(now + 3600)},
        "text": {"S": str(now - 60)},
        "ages ago": {"N": str(now - 6 * 366 * 86400)},
    }
    for name, expires in expiries.items():
        client.put_item(TableName=hashed, Item={"pk": {"S": name}, "expires": expires})
    client.put_item(TableName=hashed, Item={"pk": {"S": "never"}})
    client.update_time_to_live(TableName=hashed, TimeToLiveSpecification={"AttributeName": "expires", "Enabled": True})
    client.put_item(TableName=hashed, Item={"pk": {"S": "after"}, "expires": {"N": str(now - 60)}})

    def names() -> set[str]:
        return {item["pk"]["S"] for item in client.scan(TableName=hashed)["Items"]}

    eventually(lambda: not names() & {"before", "after"})
    assert names() == {"later", "text", "ages ago", "never"}


# -- tags


def test_tags_are_set_replaced_and_taken_away(client: Any, hashed: str, refuses: Any) -> None:
    arn = describe(client, hashed)["TableArn"]
    assert client.list_tags_of_resource(ResourceArn=arn)["Tags"] == []
    client.tag_resource(ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}])
    client.tag_resource(ResourceArn=arn, Tags=[{"Key": "a", "Value": "2"}, {"Key": "Grüße", "Value": ""}])
    client.untag_resource(ResourceArn=arn, TagKeys=["b", "was never there"])
    tags = client.list_tags_of_resource(ResourceArn=arn)["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"a": "2", "Grüße": ""}
    with refuses("ValidationException", "Atleast one Tag needs to be provided as Input."):
        client.tag_resource(ResourceArn=arn, Tags=[])
    with refuses("ValidationException"):
        client.tag_resource(ResourceArn=arn, Tags=[{"Key": str(i), "Value": ""} for i in range(60)])
    with refuses("ResourceNotFoundException", f"Requested resource not found: ResourcArn: {arn}x not found"):
        client.tag_resource(ResourceArn=f"{arn}x", Tags=[{"Key": "a", "Value": "1"}])
    with refuses("ValidationException", "Invalid TableArn: Invalid ResourceArn provided as input"):
        client.list_tags_of_resource(ResourceArn=f"{arn}/index/gone")


# -- the rest


def test_limits_and_endpoints(client: Any, server: Any, hashed: str) -> None:
    limits = client.describe_limits()
    assert limits["AccountMaxReadCapacityUnits"] >= limits["TableMaxReadCapacityUnits"] > 0
    assert limits["AccountMaxWriteCapacityUnits"] >= limits["TableMaxWriteCapacityUnits"] > 0
    (endpoint,) = client.describe_endpoints()["Endpoints"]
    assert endpoint["Address"] == server.url.removeprefix("http://")
    assert endpoint["CachePeriodInMinutes"] > 0
    backups = client.describe_continuous_backups(TableName=hashed)["ContinuousBackupsDescription"]
    assert backups["ContinuousBackupsStatus"] == "ENABLED"
    assert backups["PointInTimeRecoveryDescription"] == {"PointInTimeRecoveryStatus": "DISABLED"}


def test_what_is_not_there_says_so(client: Any, hashed: str, refuses: Any) -> None:
    with refuses("UnknownOperationException"):
        client.list_global_tables()
    with refuses("TableNotFoundException"):
        client.describe_continuous_backups(TableName="does.not.exist")


def test_backups_and_recovery_to_a_point_in_time(client: Any, hashed: str, eventually: Callable[..., Any]) -> None:
    for number in range(3):
        client.put_item(TableName=hashed, Item={"pk": {"S": str(number)}})
    arn = client.create_backup(TableName=hashed, BackupName="nightly")["BackupDetails"]["BackupArn"]
    enabled = {"PointInTimeRecoveryEnabled": True}
    client.update_continuous_backups(TableName=hashed, PointInTimeRecoverySpecification=enabled)
    client.delete_item(TableName=hashed, Key={"pk": {"S": "0"}})
    eventually(
        lambda: (
            client.describe_backup(BackupArn=arn)["BackupDescription"]["BackupDetails"]["BackupStatus"] == "AVAILABLE"
        )
    )
    client.restore_table_from_backup(TargetTableName=f"{hashed}-copy", BackupArn=arn)
    client.restore_table_to_point_in_time(
        SourceTableName=hashed, TargetTableName=f"{hashed}-now", UseLatestRestorableTime=True
    )
    for name, count in ((f"{hashed}-copy", 3), (f"{hashed}-now", 2)):
        client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        assert client.scan(TableName=name, Select="COUNT")["Count"] == count
        client.delete_table(TableName=name)
    assert [each["BackupArn"] for each in client.list_backups(TableName=hashed)["BackupSummaries"]] == [arn]
    client.delete_backup(BackupArn=arn)

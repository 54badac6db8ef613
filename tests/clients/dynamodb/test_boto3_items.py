"""boto3 and items: written, read, queried, scanned, in batches and in transactions; pages to the end; every refusal."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from boto3.dynamodb.conditions import Attr, Key
from boto3.dynamodb.types import Binary

pytestmark = pytest.mark.clients

KiB = 1024
EVERY_TYPE: dict[str, Any] = {
    "text": {"S": "Grüße ☃ 𝄞"},
    "empty": {"S": ""},
    "number": {"N": "-12.5"},
    "digits": {"N": "1234567890123456789012345678901234567.8"},
    "tiny": {"N": "1E-130"},
    "huge": {"N": "9.9999999999999999999999999999999999999E+125"},
    "bytes": {"B": bytes(range(256))},
    "yes": {"BOOL": True},
    "no": {"BOOL": False},
    "nothing": {"NULL": True},
    "list": {"L": [{"S": "a"}, {"N": "1"}, {"L": []}, {"M": {}}]},
    "map": {"M": {"inner": {"M": {"deep": {"L": [{"BOOL": True}]}}}, "with.dot": {"S": ""}}},
}
SETS: dict[str, Any] = {
    "texts": {"SS": ["b", "a", "ü"]},
    "numbers": {"NS": ["1", "-2.5", "1000"]},
    "blobs": {"BS": [b"\x00", b"\xff\xfe"]},
}


def s(text: str) -> dict[str, str]:
    return {"S": text}


def n(number: Any) -> dict[str, str]:
    return {"N": str(number)}


def fill(client: Any, table: str, items: list[dict[str, Any]]) -> None:
    """Write items, 25 at a time, until all are taken."""
    for at in range(0, len(items), 25):
        left = {table: [{"PutRequest": {"Item": item}} for item in items[at : at + 25]]}
        while left:
            left = client.batch_write_item(RequestItems=left)["UnprocessedItems"]


def every(client: Any, operation: str, **request: Any) -> list[dict[str, Any]]:
    """All items of all pages."""
    pages = client.get_paginator(operation).paginate(**request)
    return [item for page in pages for item in page["Items"]]


# -- one item


def test_every_type_comes_back_as_it_went(client: Any, hashed: str) -> None:
    item = {"pk": s("all"), **EVERY_TYPE, **SETS}
    client.put_item(TableName=hashed, Item=item)
    got = client.get_item(TableName=hashed, Key={"pk": s("all")}, ConsistentRead=True)["Item"]
    for name, (kind, members) in ((name, next(iter(value.items()))) for name, value in SETS.items()):
        assert sorted(got.pop(name)[kind]) == sorted(members), name
    huge = got.pop("huge")["N"]
    assert Decimal(huge) == Decimal(EVERY_TYPE["huge"]["N"])
    assert Decimal(got.pop("tiny")["N"]) == Decimal("1E-130")
    assert got == {name: value for name, value in item.items() if name not in {*SETS, "huge", "tiny"}}


def test_the_resource_half_speaks_python(resource: Any, hashed: str) -> None:
    table = resource.Table(hashed)
    item = {
        "pk": "python",
        "number": Decimal("3.14"),
        "set": {Decimal(1), Decimal(2)},
        "list": [None, True, "x", {"y": Binary(b"\x01")}],
    }
    table.put_item(Item=item)
    assert table.get_item(Key={"pk": "python"})["Item"] == item
    with table.batch_writer() as batch:
        for i in range(60):
            batch.put_item(Item={"pk": f"b{i}", "i": i})
    assert table.scan(Select="COUNT", FilterExpression=Attr("i").gte(30))["Count"] == 30
    assert table.query(KeyConditionExpression=Key("pk").eq("b7"))["Items"] == [{"pk": "b7", "i": 7}]


@pytest.mark.parametrize(("kind", "low", "high"), [("S", "a", "b"), ("N", "-5", "12"), ("B", b"\x00", b"\xff")])
def test_keys_of_every_type(client: Any, create: Callable[..., str], kind: str, low: Any, high: Any) -> None:
    table = create(client, "h", "r", kinds={"h": kind, "r": kind})
    for hashed in (low, high):
        for ranged in (high, low):
            client.put_item(TableName=table, Item={"h": {kind: hashed}, "r": {kind: ranged}})
    got = client.query(
        TableName=table, KeyConditionExpression="h = :h", ExpressionAttributeValues={":h": {kind: high}}
    )["Items"]
    assert [item["r"][kind] for item in got] == [low, high]
    client.delete_item(TableName=table, Key={"h": {kind: high}, "r": {kind: low}})
    assert client.scan(TableName=table, Select="COUNT")["Count"] == 3


def test_what_a_write_returns(client: Any, hashed: str) -> None:
    key = {"pk": s("k")}

    def put(value: str, **more: Any) -> Any:
        return client.put_item(TableName=hashed, Item={**key, "v": s(value)}, **more)

    assert "Attributes" not in put("1")
    assert put("2", ReturnValues="ALL_OLD")["Attributes"] == {**key, "v": s("1")}

    def update(returns: str) -> Any:
        return client.update_item(
            TableName=hashed,
            Key=key,
            UpdateExpression="SET v = :v, w = if_not_exists(w, :zero) + :one",
            ExpressionAttributeValues={":v": s(returns), ":one": n(1), ":zero": n(0)},
            ReturnValues=returns,
        ).get("Attributes")

    assert update("NONE") is None
    assert update("ALL_OLD") == {**key, "v": s("NONE"), "w": n(1)}
    assert update("UPDATED_OLD") == {"v": s("ALL_OLD"), "w": n(2)}
    assert update("UPDATED_NEW") == {"v": s("UPDATED_NEW"), "w": n(4)}
    assert update("ALL_NEW") == {**key, "v": s("ALL_NEW"), "w": n(5)}
    deleted = client.delete_item(TableName=hashed, Key=key, ReturnValues="ALL_OLD")
    assert deleted["Attributes"] == {**key, "v": s("ALL_NEW"), "w": n(5)}
    assert "Attributes" not in client.delete_item(TableName=hashed, Key=key, ReturnValues="ALL_OLD")
    assert "Item" not in client.get_item(TableName=hashed, Key=key)


def test_conditions_guard_writes(client: Any, hashed: str, refuses: Any) -> None:
    item = {"pk": s("once"), "v": n(1)}
    absent = {"ConditionExpression": "attribute_not_exists(pk)"}
    client.put_item(TableName=hashed, Item=item, **absent)
    with refuses("ConditionalCheckFailedException", "The conditional request failed") as refusal:
        client.put_item(TableName=hashed, Item=item, **absent)
    assert "Item" not in refusal.response
    with refuses("ConditionalCheckFailedException") as refusal:
        client.put_item(TableName=hashed, Item=item, **absent, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    assert refusal.response["Item"] == item
    stale = {"ConditionExpression": "v = :v", "ExpressionAttributeValues": {":v": n(2)}}
    with refuses("ConditionalCheckFailedException"):
        client.delete_item(TableName=hashed, Key={"pk": s("once")}, **stale)
    with refuses("ConditionalCheckFailedException"):
        client.update_item(TableName=hashed, Key={"pk": s("new")}, UpdateExpression="SET a = :v", **stale)
    assert "Item" not in client.get_item(TableName=hashed, Key={"pk": s("new")})


def test_counters_lose_nothing_when_many_add(client: Any, hashed: str) -> None:
    def add(_: int) -> None:
        client.update_item(
            TableName=hashed,
            Key={"pk": s("counter")},
            UpdateExpression="ADD hits :one",
            ExpressionAttributeValues={":one": n(1)},
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(200)))
    assert client.get_item(TableName=hashed, Key={"pk": s("counter")})["Item"]["hits"] == n(200)


def test_of_many_who_want_to_be_first_one_is(client: Any, hashed: str) -> None:
    start = threading.Barrier(8)

    def claim(who: int) -> bool:
        start.wait()
        try:
            client.put_item(
                TableName=hashed,
                Item={"pk": s("lock"), "who": n(who)},
                ConditionExpression="attribute_not_exists(pk)",
            )
        except client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(claim, range(8)))
    assert won.count(True) == 1
    assert client.get_item(TableName=hashed, Key={"pk": s("lock")})["Item"]["who"] == n(won.index(True))


def test_projections_cut_items(client: Any, hashed: str) -> None:
    item = {"pk": s("p"), "a": {"M": {"b": {"L": [n(0), n(1), n(2)]}, "c": s("x")}}, "d": s("y")}
    client.put_item(TableName=hashed, Item=item)
    got = client.get_item(
        TableName=hashed,
        Key={"pk": s("p")},
        ProjectionExpression="a.b[2], a.b[0], #d",
        ExpressionAttributeNames={"#d": "d"},
    )["Item"]
    assert got == {"a": {"M": {"b": {"L": [n(0), n(2)]}}}, "d": s("y")}


# -- refused


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"v": s("x")}, "One or more parameter values were invalid: Missing the key pk in the item"),
        (
            {"pk": n(1)},
            "One or more parameter values were invalid: Type mismatch for key pk expected: S actual: N",
        ),
        ({"pk": s("")}, "empty string value"),
        ({"pk": s("k"), "v": {"N": "one"}}, "The parameter cannot be converted to a numeric value: one"),
        ({"pk": s("k"), "v": {"N": "1" * 39}}, "Attempting to store more than 38 significant digits in a Number"),
        ({"pk": s("k"), "v": {"N": "1E126"}}, "Number overflow"),
        ({"pk": s("k"), "v": {"N": "1E-131"}}, "Number underflow"),
        ({"pk": s("k"), "v": {"SS": []}}, "may not be empty"),
        ({"pk": s("k"), "v": {"SS": ["a", "a"]}}, "contains duplicates"),
        ({"pk": s("k"), "v": {}}, "Supplied AttributeValue is empty, must contain exactly one"),
        ({"pk": s("k"), "v": {"S": "x" * (400 * KiB)}}, "Item size has exceeded the maximum allowed size"),
        ({"pk": s("k" * 2049)}, "Size of hashkey has exceeded the maximum size limit of2048 bytes"),
    ],
)  # fmt: skip
def test_items_that_cannot_be(lenient: Any, hashed: str, refuses: Any, item: Any, message: str) -> None:
    with refuses("ValidationException", message):
        lenient.put_item(TableName=hashed, Item=item)
    assert lenient.scan(TableName=hashed)["Count"] == 0


def test_keys_must_be_the_tables(client: Any, ranged: str, refuses: Any) -> None:
    for key in ({"pk": s("a")}, {"pk": s("a"), "sk": n(1)}, {"pk": s("a"), "sk": s("b"), "x": s("c")}):
        with refuses("ValidationException", "The provided key element does not match the schema"):
            client.get_item(TableName=ranged, Key=key)
    for call in (client.get_item, client.delete_item):
        with refuses("ResourceNotFoundException", "Requested resource not found"):
            call(TableName="does.not.exist", Key={"pk": s("a")})


def test_an_item_may_be_as_large_as_it_may_be(client: Any, hashed: str) -> None:
    body = "x" * (400 * KiB - len("pk") - len("k") - len("v"))
    client.put_item(TableName=hashed, Item={"pk": s("k"), "v": s(body)})
    assert client.get_item(TableName=hashed, Key={"pk": s("k")})["Item"]["v"] == s(body)


# -- query


@pytest.fixture(scope="module")
def library(client: Any, create: Callable[..., str]) -> str:
    """Four shelves of thirty books, each of about 2 KB."""
    table = create(client, "pk", "sk")
    fill(
        client,
        table,
        [
            {"pk": s(f"shelf{i}"), "sk": s(f"book{j:02}"), "n": n(j), "even": {"BOOL": j % 2 == 0}, "v": s("x" * 2000)}
            for i in range(4)
            for j in range(30)
        ],
    )
    return table


def books(found: list[dict[str, Any]]) -> list[int]:
    return [int(item["n"]["N"]) for item in found]


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("sk = :a", {":a": "book07"}, [7]),
        ("sk < :a", {":a": "book03"}, [0, 1, 2]),
        ("sk <= :a", {":a": "book03"}, [0, 1, 2, 3]),
        ("sk > :a", {":a": "book26"}, [27, 28, 29]),
        ("sk >= :a", {":a": "book26"}, [26, 27, 28, 29]),
        ("sk BETWEEN :a AND :b", {":a": "book05", ":b": "book08"}, [5, 6, 7, 8]),
        ("begins_with(sk, :a)", {":a": "book1"}, list(range(10, 20))),
    ],
)
@pytest.mark.parametrize("forward", [True, False])
def test_key_conditions(
    client: Any, library: str, condition: str, values: dict[str, str], expected: list[int], forward: bool
) -> None:
    found = client.query(
        TableName=library,
        KeyConditionExpression=f"pk = :pk AND {condition}",
        ExpressionAttributeValues={":pk": s("shelf2"), **{name: s(value) for name, value in values.items()}},
        ScanIndexForward=forward,
    )
    assert books(found["Items"]) == (expected if forward else expected[::-1])
    assert found["Count"] == found["ScannedCount"] == len(expected)
    assert "LastEvaluatedKey" not in found


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("size", [1, 7, 30, 31])
def test_a_query_in_pages_misses_nothing(client: Any, library: str, size: int, forward: bool) -> None:
    request = {
        "TableName": library,
        "KeyConditionExpression": "pk = :pk",
        "ExpressionAttributeValues": {":pk": s("shelf1")},
        "ScanIndexForward": forward,
    }
    pages = list(client.get_paginator("query").paginate(**request, PaginationConfig={"PageSize": size}))
    assert books([item for page in pages for item in page["Items"]]) == list(range(30))[:: 1 if forward else -1]
    assert all(page["Count"] == size for page in pages if "LastEvaluatedKey" in page)
    for page in pages:
        if "LastEvaluatedKey" in page:
            last = page["Items"][-1]
            assert page["LastEvaluatedKey"] == {"pk": last["pk"], "sk": last["sk"]}


def test_a_filter_works_after_the_limit(client: Any, library: str) -> None:
    page = client.query(
        TableName=library,
        KeyConditionExpression="pk = :pk",
        FilterExpression="even = :yes",
        ExpressionAttributeValues={":pk": s("shelf0"), ":yes": {"BOOL": True}},
        Limit=10,
    )
    assert books(page["Items"]) == [0, 2, 4, 6, 8]
    assert (page["Count"], page["ScannedCount"]) == (5, 10)
    assert page["LastEvaluatedKey"] == {"pk": s("shelf0"), "sk": s("book09")}


def test_a_page_holds_a_megabyte(client: Any, ranged: str) -> None:
    fill(client, ranged, [{"pk": s("p"), "sk": s(f"{i:03}"), "v": s("x" * 100 * KiB)} for i in range(25)])
    request = {
        "TableName": ranged,
        "KeyConditionExpression": "pk = :p",
        "ExpressionAttributeValues": {":p": s("p")},
    }
    first = client.query(**request)
    assert first["Count"] == 11  # the item that reaches the megabyte is the last
    assert "LastEvaluatedKey" in first
    assert [item["sk"]["S"] for item in every(client, "query", **request)] == [f"{i:03}" for i in range(25)]
    counted = client.query(**request, Select="COUNT")
    assert "Items" not in counted
    assert counted["Count"] == 11


def test_what_a_query_may_select(client: Any, library: str, refuses: Any) -> None:
    request = {
        "TableName": library,
        "KeyConditionExpression": "pk = :pk AND sk = :sk",
        "ExpressionAttributeValues": {":pk": s("shelf0"), ":sk": s("book00")},
    }
    (item,) = client.query(**request, ProjectionExpression="sk, n")["Items"]
    assert item == {"sk": s("book00"), "n": n(0)}
    with refuses("ValidationException"):
        client.query(**request, ProjectionExpression="sk", Select="COUNT")
    with refuses("ValidationException", "Filter Expression can only contain non-primary key attributes"):
        client.query(**request, FilterExpression="sk = :sk")
    with refuses("ValidationException", "The provided starting key is"):
        client.query(**request, ExclusiveStartKey={"pk": s("shelf0")})


# -- scan


def test_a_scan_in_pages_misses_nothing(client: Any, library: str) -> None:
    found = every(client, "scan", TableName=library, PaginationConfig={"PageSize": 11})
    assert sorted((item["pk"]["S"], item["sk"]["S"]) for item in found) == [
        (f"shelf{i}", f"book{j:02}") for i in range(4) for j in range(30)
    ]


def test_segments_share_a_scan(client: Any, hashed: str) -> None:
    names = {f"k{i}" for i in range(300)}
    fill(client, hashed, [{"pk": s(name)} for name in names])

    def scan(segment: int) -> list[str]:
        found = every(
            client, "scan", TableName=hashed, Segment=segment, TotalSegments=6, PaginationConfig={"PageSize": 10}
        )
        return [item["pk"]["S"] for item in found]

    with ThreadPoolExecutor(6) as pool:
        parts = list(pool.map(scan, range(6)))
    assert sum(map(len, parts)) == 300
    assert set().union(*parts) == names
    assert sum(bool(part) for part in parts) > 1


def test_a_scan_filters_and_counts(client: Any, library: str, refuses: Any) -> None:
    found = client.scan(
        TableName=library, FilterExpression="n < :two", ExpressionAttributeValues={":two": n(2)}, Select="COUNT"
    )
    assert (found["Count"], found["ScannedCount"]) == (8, 120)
    with refuses("ValidationException"):
        client.scan(TableName=library, Segment=2, TotalSegments=2)
    with refuses("ValidationException"):
        client.scan(TableName=library, Segment=0)


# -- indexes


def test_indexes_follow_their_table(client: Any, wide: str, refuses: Any) -> None:
    items = [{"pk": s("p"), "sk": s(f"s{i}"), "n": n(i % 2), "b": {"B": bytes([9 - i])}, "v": s("x")} for i in range(6)]
    fill(client, wide, items)
    client.put_item(TableName=wide, Item={"pk": s("p"), "sk": s("sparse")})

    def by_number(number: int, **more: Any) -> list[str]:
        request = {
            "TableName": wide,
            "IndexName": "by-n",
            "KeyConditionExpression": "n = :n",
            "ExpressionAttributeValues": {":n": n(number)},
        }
        return [item["sk"]["S"] for item in client.query(**request, **more)["Items"]]

    assert by_number(1) == ["s1", "s3", "s5"]
    assert by_number(1, ScanIndexForward=False) == ["s5", "s3", "s1"]
    assert client.scan(TableName=wide, IndexName="by-n", Select="COUNT")["Count"] == 6

    near = client.query(
        TableName=wide,
        IndexName="by-b",
        KeyConditionExpression="pk = :p AND b >= :b",
        ExpressionAttributeValues={":p": s("p"), ":b": {"B": bytes([7])}},
        ConsistentRead=True,
    )["Items"]
    assert near == [{"pk": s("p"), "sk": s(f"s{i}"), "b": {"B": bytes([9 - i])}} for i in (2, 1, 0)]

    client.update_item(
        TableName=wide,
        Key={"pk": s("p"), "sk": s("s1")},
        UpdateExpression="SET n = :n",
        ExpressionAttributeValues={":n": n(0)},
    )
    client.update_item(TableName=wide, Key={"pk": s("p"), "sk": s("s3")}, UpdateExpression="REMOVE n")
    client.delete_item(TableName=wide, Key={"pk": s("p"), "sk": s("s5")})
    assert by_number(1) == []
    assert by_number(0) == ["s0", "s1", "s2", "s4"]

    pages = client.get_paginator("query").paginate(
        TableName=wide,
        IndexName="by-n",
        KeyConditionExpression="n = :n",
        ExpressionAttributeValues={":n": n(0)},
        PaginationConfig={"PageSize": 1},
    )
    assert [item["sk"]["S"] for page in pages for item in page["Items"]] == ["s0", "s1", "s2", "s4"]

    with refuses("ValidationException", "Consistent reads are not supported on global secondary indexes"):
        by_number(0, ConsistentRead=True)
    with refuses("ValidationException", "The table does not have the specified index: nope"):
        client.scan(TableName=wide, IndexName="nope")
    with refuses("ValidationException", "Type mismatch for Index Key n Expected: N Actual: S IndexName: by-n"):
        client.put_item(TableName=wide, Item={"pk": s("p"), "sk": s("bad"), "n": s("one")})


# -- capacity


def test_consumed_capacity_is_returned(client: Any, wide: str) -> None:
    def consumed(answer: Any) -> float:
        assert answer["ConsumedCapacity"]["TableName"] == wide
        return float(answer["ConsumedCapacity"]["CapacityUnits"])

    item = {"pk": s("p"), "sk": s("s"), "v": s("x" * 1500)}
    assert consumed(client.put_item(TableName=wide, Item=item, ReturnConsumedCapacity="TOTAL")) == 2
    key = {"pk": s("p"), "sk": s("s")}
    assert consumed(client.get_item(TableName=wide, Key=key, ReturnConsumedCapacity="TOTAL")) == 0.5
    consistent = client.get_item(TableName=wide, Key=key, ReturnConsumedCapacity="TOTAL", ConsistentRead=True)
    assert consumed(consistent) == 1
    with_index = client.put_item(TableName=wide, Item={**item, "n": n(1)}, ReturnConsumedCapacity="INDEXES")
    assert with_index["ConsumedCapacity"]["Table"]["CapacityUnits"] == 2
    assert with_index["ConsumedCapacity"]["GlobalSecondaryIndexes"]["by-n"]["CapacityUnits"] == 2
    assert "ConsumedCapacity" not in client.put_item(TableName=wide, Item=item)


# -- batches


def test_batches_write_and_read(client: Any, hashed: str, ranged: str, refuses: Any) -> None:
    client.put_item(TableName=hashed, Item={"pk": s("old")})
    answer = client.batch_write_item(
        RequestItems={
            hashed: [{"PutRequest": {"Item": {"pk": s("a")}}}, {"DeleteRequest": {"Key": {"pk": s("old")}}}],
            ranged: [{"PutRequest": {"Item": {"pk": s("b"), "sk": s("c"), "v": n(1)}}}],
        }
    )
    assert answer["UnprocessedItems"] == {}
    got = client.batch_get_item(
        RequestItems={
            hashed: {"Keys": [{"pk": s("a")}, {"pk": s("old")}, {"pk": s("never")}], "ConsistentRead": True},
            ranged: {"Keys": [{"pk": s("b"), "sk": s("c")}], "ProjectionExpression": "v"},
        }
    )
    assert got["Responses"] == {hashed: [{"pk": s("a")}], ranged: [{"v": n(1)}]}
    assert got["UnprocessedKeys"] == {}
    with refuses("ValidationException", "Provided list of item keys contains duplicates"):
        client.batch_get_item(RequestItems={hashed: {"Keys": [{"pk": s("a")}] * 2}})
    with refuses("ValidationException", "Provided list of item keys contains duplicates"):
        client.batch_write_item(
            RequestItems={
                hashed: [{"PutRequest": {"Item": {"pk": s("x")}}}, {"DeleteRequest": {"Key": {"pk": s("x")}}}]
            }
        )
    with refuses("ResourceNotFoundException"):
        client.batch_write_item(RequestItems={"does.not.exist": [{"PutRequest": {"Item": {"pk": s("a")}}}]})


def test_batches_have_bounds(lenient: Any, hashed: str, refuses: Any) -> None:
    puts = [{"PutRequest": {"Item": {"pk": s(str(i))}}} for i in range(26)]
    with refuses("ValidationException"):
        lenient.batch_write_item(RequestItems={hashed: puts})
    with refuses("ValidationException"):
        lenient.batch_get_item(RequestItems={hashed: {"Keys": [{"pk": s(str(i))} for i in range(101)]}})
    with refuses("ValidationException"):
        lenient.batch_write_item(RequestItems={})
    assert lenient.scan(TableName=hashed)["Count"] == 0


def test_a_batch_get_that_is_too_much_is_finished_by_asking_again(client: Any, hashed: str) -> None:
    names = [f"k{i:02}" for i in range(60)]
    fill(client, hashed, [{"pk": s(name), "v": s("x" * 300 * KiB)} for name in names])
    left = {hashed: {"Keys": [{"pk": s(name)} for name in names]}}
    seen: list[str] = []
    rounds = 0
    while left:
        answer = client.batch_get_item(RequestItems=left)
        seen += [item["pk"]["S"] for item in answer["Responses"].get(hashed, ())]
        left = answer["UnprocessedKeys"]
        rounds += 1
    assert sorted(seen) == names
    assert rounds > 1  # 18 MB do not fit into 16


# -- transactions


def test_a_transaction_is_all_or_nothing(client: Any, hashed: str, ranged: str, refuses: Any) -> None:
    client.put_item(TableName=hashed, Item={"pk": s("stock"), "left": n(1)})
    order = {"pk": s("order"), "sk": s("1")}
    actions = [
        {
            "Update": {
                "TableName": hashed,
                "Key": {"pk": s("stock")},
                "UpdateExpression": "SET #l = #l - :one",
                "ConditionExpression": "#l >= :one",
                "ExpressionAttributeNames": {"#l": "left"},
                "ExpressionAttributeValues": {":one": n(1)},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        },
        {"Put": {"TableName": ranged, "Item": order}},
        {"Delete": {"TableName": hashed, "Key": {"pk": s("cart")}}},
        {
            "ConditionCheck": {
                "TableName": hashed,
                "Key": {"pk": s("closed")},
                "ConditionExpression": "attribute_not_exists(pk)",
            }
        },
    ]
    client.put_item(TableName=hashed, Item={"pk": s("cart")})
    client.transact_write_items(TransactItems=actions)
    assert client.get_item(TableName=hashed, Key={"pk": s("stock")})["Item"]["left"] == n(0)
    assert client.get_item(TableName=ranged, Key=order)["Item"] == order
    assert "Item" not in client.get_item(TableName=hashed, Key={"pk": s("cart")})

    actions[1]["Put"]["Item"] = {"pk": s("order"), "sk": s("2")}
    with refuses("TransactionCanceledException", "[ConditionalCheckFailed, None, None, None]") as refusal:
        client.transact_write_items(TransactItems=actions)
    reasons = refusal.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["ConditionalCheckFailed", "None", "None", "None"]
    assert reasons[0]["Message"] == "The conditional request failed"
    assert reasons[0]["Item"] == {"pk": s("stock"), "left": n(0)}
    assert "Item" not in client.get_item(TableName=ranged, Key={"pk": s("order"), "sk": s("2")})


def test_a_request_token_counts_once(client: Any, hashed: str, refuses: Any) -> None:
    def add(amount: int, token: str) -> Any:
        return client.transact_write_items(
            ClientRequestToken=token,
            TransactItems=[
                {
                    "Update": {
                        "TableName": hashed,
                        "Key": {"pk": s("sum")},
                        "UpdateExpression": "ADD amount :n",
                        "ExpressionAttributeValues": {":n": n(amount)},
                    }
                }
            ],
        )

    token = uuid.uuid4().hex
    for _ in range(3):
        add(5, token)
    add(5, uuid.uuid4().hex)
    assert client.get_item(TableName=hashed, Key={"pk": s("sum")})["Item"]["amount"] == n(10)
    with refuses("IdempotentParameterMismatchException"):
        add(6, token)


def test_a_transaction_touches_an_item_once(client: Any, hashed: str, refuses: Any) -> None:
    put = {"Put": {"TableName": hashed, "Item": {"pk": s("twice")}}}
    with refuses("ValidationException", "Transaction request cannot include multiple operations on one item"):
        client.transact_write_items(TransactItems=[put, put])


def test_reads_in_a_transaction(client: Any, hashed: str, ranged: str) -> None:
    client.put_item(TableName=hashed, Item={"pk": s("a"), "v": n(1), "w": n(2)})
    client.put_item(TableName=hashed, Item={"pk": s("b")})
    got = client.transact_get_items(
        TransactItems=[
            {"Get": {"TableName": hashed, "Key": {"pk": s("a")}, "ProjectionExpression": "w"}},
            {"Get": {"TableName": ranged, "Key": {"pk": s("none"), "sk": s("none")}}},
            {"Get": {"TableName": hashed, "Key": {"pk": s("b")}}},
        ],
        ReturnConsumedCapacity="TOTAL",
    )
    assert got["Responses"] == [{"Item": {"w": n(2)}}, {}, {"Item": {"pk": s("b")}}]
    assert {units["TableName"] for units in got["ConsumedCapacity"]} == {hashed, ranged}


def test_readers_never_see_half_a_transaction(client: Any, hashed: str) -> None:
    keys = [{"pk": s("left")}, {"pk": s("right")}]
    for key in keys:
        client.put_item(TableName=hashed, Item={**key, "v": n(0)})
    done = threading.Event()
    torn: list[Any] = []

    def watch() -> None:
        while not done.is_set():
            got = client.transact_get_items(TransactItems=[{"Get": {"TableName": hashed, "Key": key}} for key in keys])[
                "Responses"
            ]
            left, right = (response["Item"]["v"]["N"] for response in got)
            if left != right:
                torn.append((left, right))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for i in range(1, 60):
        client.transact_write_items(
            TransactItems=[{"Put": {"TableName": hashed, "Item": {**key, "v": n(i)}}} for key in keys]
        )
    done.set()
    watcher.join()
    assert torn == []


# -- what came before expressions


def test_legacy_parameters(client: Any, ranged: str, refuses: Any) -> None:
    key = {"pk": s("l"), "sk": s("1")}
    client.put_item(TableName=ranged, Item={**key, "v": n(1)}, Expected={"pk": {"Exists": False}})
    with refuses("ConditionalCheckFailedException"):
        larger = {"ComparisonOperator": "GT", "AttributeValueList": [n(1)]}
        client.put_item(TableName=ranged, Item=key, Expected={"v": larger})
    updated = client.update_item(
        TableName=ranged,
        Key=key,
        AttributeUpdates={"v": {"Action": "ADD", "Value": n(4)}, "w": {"Action": "PUT", "Value": s("x")}},
        ReturnValues="UPDATED_NEW",
    )
    assert updated["Attributes"] == {"v": n(5), "w": s("x")}
    found = client.query(
        TableName=ranged,
        KeyConditions={
            "pk": {"ComparisonOperator": "EQ", "AttributeValueList": [s("l")]},
            "sk": {"ComparisonOperator": "BEGINS_WITH", "AttributeValueList": [s("1")]},
        },
        QueryFilter={"v": {"ComparisonOperator": "IN", "AttributeValueList": [n(5), n(6)]}},
        AttributesToGet=["v"],
    )
    assert found["Items"] == [{"v": n(5)}]
    scanned = client.scan(TableName=ranged, ScanFilter={"w": {"ComparisonOperator": "NULL"}})
    assert scanned["Count"] == 0
    with refuses("ValidationException", "Can not use both expression and non-expression parameters"):
        client.get_item(TableName=ranged, Key=key, AttributesToGet=["v"], ProjectionExpression="v")

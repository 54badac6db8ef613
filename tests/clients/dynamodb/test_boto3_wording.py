"""boto3 and the service's messages: which error of a request is reported, its text, and the order of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.clients

INVALID = "One or more parameter values were invalid: "
EMPTY = (
    "One or more parameter values are not valid. "
    "The AttributeValue for a key attribute cannot contain an empty string value. Key: pk"
)
TOO_DEEP = (
    "Nesting Levels have exceeded supported limits: Attributes in the item have nested levels beyond supported limit"
)
CAPACITY = (
    "Value 'LOTS' at 'returnConsumedCapacity' failed to satisfy constraint: "
    "Member must satisfy enum value set: [INDEXES, TOTAL, NONE]"
)


def invalid(call: Callable[..., Any], **parameters: Any) -> str:
    """The message of the ValidationException that this must raise."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    assert error["Code"] == "ValidationException", error
    message: str = error["Message"]
    return message


def s(text: str) -> dict[str, str]:
    return {"S": text}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = s("leaf")
    for _ in range(levels):
        value = {"M": {"n": value}}
    return value


# -- key conditions


@pytest.fixture(scope="module")
def numbered(client: Any, create: Callable[..., str]) -> str:
    """A table with the keys `pk` and `n`, a number."""
    return create(client, "pk", "n")


def _operand(op: str, kind: str) -> str:
    return (
        "Invalid KeyConditionExpression: Incorrect operand type for operator or function; "
        f"operator or function: {op}, operand type: {kind}"
    )


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("pk = :p AND begins_with(n, :v)", {":v": {"N": "1"}}, _operand("begins_with", "N")),
        ("pk = :p AND :v >= n", {":v": {"BOOL": True}}, _operand(">=", "BOOL")),
        (
            "pk = :p AND begins_with(n, :v)",
            {":v": s("a")},
            f"{INVALID}Condition parameter type does not match schema type",
        ),
        (
            "pk = :p AND n > :v AND n < :w",
            {":v": {"N": "1"}, ":w": {"N": "2"}},
            "Invalid KeyConditionExpression: KeyConditionExpressions must only contain one condition per key",
        ),
        (
            "pk = :p AND n > :v AND extra = :w",
            {":v": {"N": "1"}, ":w": {"N": "2"}},
            "The number of query conditions (3) exceeds the number of key attributes defined in the schema (2)",
        ),
    ],
)
def test_a_key_condition_that_cannot_be(
    client: Any, numbered: str, text: str, values: dict[str, Any], message: str
) -> None:
    operands = {":p": s("a"), **values}
    assert message == invalid(
        client.query, TableName=numbered, KeyConditionExpression=text, ExpressionAttributeValues=operands
    )


def test_a_type_goes_before_what_a_key_condition_may_compare(client: Any, hashed: str) -> None:
    request = {"TableName": hashed, "KeyConditionExpression": ":v > pk"}
    message = invalid(client.query, **request, ExpressionAttributeValues={":v": {"N": "1"}})
    assert message == f"{INVALID}Condition parameter type does not match schema type"
    message = invalid(client.query, **request, ExpressionAttributeValues={":v": s("1")})
    assert message == "Query key condition not supported"


def test_too_many_conditions_on_a_table_that_is_not_there(client: Any) -> None:
    message = invalid(
        client.query,
        TableName="there-is-no-such-table",
        KeyConditionExpression="a = :v AND b = :v AND c = :v",
        ExpressionAttributeValues={":v": s("x")},
    )
    assert message == "Conditions can be of length 1 or 2 only"


# -- indexes


@pytest.fixture(scope="module")
def multi(client: Any, create: Callable[..., str]) -> str:
    """A table with an index on one HASH and three RANGE attributes, and five items in it."""
    schema = [{"AttributeName": "h", "KeyType": "HASH"}]
    schema += [{"AttributeName": name, "KeyType": "RANGE"} for name in "abc"]
    name = create(
        client,
        "pk",
        kinds={"b": "S"},
        GlobalSecondaryIndexes=[{"IndexName": "by-all", "KeySchema": schema, "Projection": {"ProjectionType": "ALL"}}],
    )
    for pk, parts in {"p1": "xlb", "p2": "xlc", "p3": "xda", "p4": "wlb", "p5": "xla"}.items():
        item = {"pk": s(pk), "h": s("one"), **{key: s(part) for key, part in zip("abc", parts, strict=True)}}
        client.put_item(TableName=name, Item=item)
    return name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h = :h", ["p4", "p3", "p5", "p1", "p2"]),
        ("a = :x AND h = :h", ["p3", "p5", "p1", "p2"]),
        ("h = :h AND a = :x AND b < :l", ["p3"]),
        ("h = :h AND a = :x AND b = :l AND c BETWEEN :b AND :c", ["p1", "p2"]),
    ],
)
def test_several_range_attributes(client: Any, multi: str, text: str, found: list[str]) -> None:
    values = {":h": s("one"), **{f":{letter}": s(letter) for letter in "xlbc" if f":{letter}" in text}}
    answer = client.query(
        TableName=multi, IndexName="by-all", KeyConditionExpression=text, ExpressionAttributeValues=values
    )
    assert [item["pk"]["S"] for item in answer["Items"]] == found


@pytest.mark.parametrize(
    ("text", "missing", "present"),
    [
        ("h = :h AND b = :v", "a", "b"),
        ("h = :h AND a = :v AND c = :v", "b", "c"),
        ("h = :h AND a = :v AND b > :v AND c = :v", "b", "c"),
    ],
)
def test_range_attributes_are_used_from_the_first(
    client: Any, multi: str, text: str, missing: str, present: str
) -> None:
    message = invalid(
        client.query,
        TableName=multi,
        IndexName="by-all",
        KeyConditionExpression=text,
        ExpressionAttributeValues={":h": s("one"), ":v": s("x")},
    )
    assert message == (
        f"RANGE key attributes {missing} must have equality conditions specified in the query "
        f"because a condition is present on key attribute {present}"
    )


def test_items_with_the_same_index_key_page_on(client: Any, wide: str) -> None:
    for number in range(7):
        item = {"pk": s(str(number)), "sk": s("same"), "n": {"N": "1"}}
        client.put_item(TableName=wide, Item=item)
    request = {
        "TableName": wide,
        "IndexName": "by-n",
        "KeyConditionExpression": "n = :n",
        "ExpressionAttributeValues": {":n": {"N": "1"}},
    }
    forward = [item["pk"]["S"] for item in client.query(**request)["Items"]]
    assert sorted(forward) == list("0123456")
    for ahead in (True, False):
        paged: list[str] = []
        more: dict[str, Any] = {"ScanIndexForward": ahead, "Limit": 2}
        while True:
            answer = client.query(**request, **more)
            paged += [item["pk"]["S"] for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                break
            more["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        assert paged == (forward if ahead else forward[::-1])


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        (
            "SET b.x = sk ADD n :s",
            {":s": {"SS": ["a"]}},
            f"{INVALID}Type mismatch for Index Key n Expected: N Actual: SS IndexName: by-n",
        ),
        (
            "SET b[1] = :s",
            {":s": s("a")},
            "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed: IndexKey: b",
        ),
        (
            "SET e = b.c",
            None,
            "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed: IndexKey: b",
        ),
        ("SET n = sk", None, "The update expression attempted to update the secondary index key to unsupported type"),
    ],
)
def test_an_update_that_does_not_fit_an_index(
    client: Any, wide: str, text: str, values: dict[str, Any] | None, message: str
) -> None:
    operands = {} if values is None else {"ExpressionAttributeValues": values}
    key = {"pk": s("a"), "sk": s("b")}
    assert invalid(client.update_item, TableName=wide, Key=key, UpdateExpression=text, **operands) == message


# -- transactions


def test_an_empty_key_is_refused_before_a_transaction_begins(client: Any, hashed: str) -> None:
    key = {"pk": s("")}
    update = {"UpdateExpression": "SET a = :v", "ExpressionAttributeValues": {":v": s("x")}}
    for action in (
        {"Put": {"TableName": hashed, "Item": key}},
        {"Delete": {"TableName": hashed, "Key": key}},
        {"Update": {"TableName": hashed, "Key": key, **update}},
        {"ConditionCheck": {"TableName": hashed, "Key": key, "ConditionExpression": "attribute_exists(pk)"}},
    ):
        assert invalid(client.transact_write_items, TransactItems=[action]) == EMPTY
    get = {"Get": {"TableName": hashed, "Key": key}}
    assert invalid(client.transact_get_items, TransactItems=[get]) == EMPTY


def test_an_index_key_of_the_wrong_type_cancels(client: Any, wide: str) -> None:
    good = {"pk": s("good"), "sk": s("b")}
    bad = {"pk": s("bad"), "sk": s("b"), "n": s("one")}
    with pytest.raises(ClientError) as caught:
        client.transact_write_items(TransactItems=[{"Put": {"TableName": wide, "Item": item}} for item in (good, bad)])
    reasons = caught.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ValidationError"]
    assert reasons[1]["Message"] == f"{INVALID}Type mismatch for Index Key n Expected: N Actual: S IndexName: by-n"
    assert "Item" not in client.get_item(TableName=wide, Key=good)


def test_the_first_fault_of_a_transaction(client: Any, hashed: str) -> None:
    nested = {"Put": {"TableName": hashed, "Item": {"pk": s("a"), "d": deep(40)}}}
    unnamed = {"Put": {"TableName": hashed, "Item": {"pk": s("b"), "d": deep(40), "": s("x")}}}
    broken = {"Delete": {"TableName": hashed, "Key": {"pk": deep(40)}, "ConditionExpression": "a = = b"}}
    syntax = 'Invalid ConditionExpression: Syntax error; token: "=", near: "= = b"'
    for actions, message in (
        ([nested, unnamed], TOO_DEEP),
        ([unnamed, nested], "Empty attribute name"),
        ([broken, nested], syntax),
        ([nested, broken], TOO_DEEP),
    ):
        assert invalid(client.transact_write_items, TransactItems=actions) == message


def test_a_bad_token_is_reported_first(client: Any, hashed: str) -> None:
    token = "t" * 37
    message = invalid(
        client.transact_write_items,
        TransactItems=[{"Put": {"TableName": hashed, "Item": {"pk": s("a")}}}],
        ClientRequestToken=token,
        ReturnConsumedCapacity="LOTS",
    )
    violations = (
        f"Value '{token}' at 'clientRequestToken' failed to satisfy constraint: "
        "Member must have length less than or equal to 36"
    )
    assert message == f"2 validation errors detected: {violations}; {CAPACITY}"


def test_an_update_that_is_too_long_is_refused_without_its_size(client: Any, hashed: str) -> None:
    too_long = "SET " + ", ".join(f"a{number} = :v" for number in range(500))
    request = {"TableName": hashed, "Key": {"pk": s("a")}, "ExpressionAttributeValues": {":v": s("x")}}
    message = invalid(client.update_item, **request, UpdateExpression=too_long)
    assert message == "Invalid UpdateExpression: Expression size has exceeded the maximum allowed size;"
    condition = "a = :v" + " AND a = :v" * 373
    message = invalid(client.delete_item, **request, ConditionExpression=condition)
    assert message == (
        "Invalid ConditionExpression: Expression size has exceeded the maximum allowed size; expression size: 4109"
    )


# -- batches


def test_the_names_of_tables_in_a_batch(lenient: Any) -> None:
    message = invalid(
        lenient.batch_get_item,
        RequestItems={"bad!name": {"Keys": [{"pk": s("a")}]}},
        ReturnConsumedCapacity="LOTS",
    )
    violations = (
        """Value '{"bad!name":{"Keys":[{"pk":{"S":"a"}}]}}' at 'requestItems' failed to satisfy constraint: """
        "Map keys must satisfy constraint: [Member must have length less than or equal to 255, "
        "Member must have length greater than or equal to 3, "
        "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+]"
    )
    assert message == f"2 validation errors detected: {violations}; {CAPACITY}"


def test_a_batch_names_what_it_wants_in_one_way(client: Any, hashed: str, ranged: str) -> None:
    message = invalid(
        client.batch_get_item,
        RequestItems={
            hashed: {"Keys": [{"pk": s("a")}], "ProjectionExpression": "pk"},
            ranged: {"Keys": [{"pk": s("a"), "sk": s("b")}], "AttributesToGet": ["pk"]},
        },
    )
    assert message == (
        "Can not use both expression and non-expression parameters in the same request: "
        "Non-expression parameters: {AttributesToGet} Expression parameters: {ProjectionExpression}"
    )


# -- the order of members


def test_faults_of_an_update_are_in_the_order_of_its_members(lenient: Any) -> None:
    message = invalid(
        lenient.update_item,
        TableName="x!",
        Expected={"a": {"Exists": False}},
        ConditionalOperator="XOR",
        ReturnValues="SOME",
        ReturnConsumedCapacity="LOTS",
    )
    places = [
        message.index(f"'{member}'")
        for member in ("returnConsumedCapacity", "tableName", "returnValues", "conditionalOperator", "key")
    ]
    assert places == sorted(places)


def test_faults_of_global_indexes_come_before_those_of_local_ones(lenient: Any, create: Callable[..., str]) -> None:
    shown = {"Projection": {"ProjectionType": "ALL"}}
    short = "failed to satisfy constraint: Member must have length greater than or equal to 3"
    message = invalid(
        lambda **more: create(lenient, "pk", "sk", **more),
        LocalSecondaryIndexes=[{"IndexName": "aa", "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}], **shown}],
        GlobalSecondaryIndexes=[{"IndexName": "zz", "KeySchema": [{"AttributeName": "g", "KeyType": "HASH"}], **shown}],
    )
    assert message == (
        f"2 validation errors detected: Value 'zz' at 'globalSecondaryIndexes.1.member.indexName' {short}; "
        f"Value 'aa' at 'localSecondaryIndexes.1.member.indexName' {short}"
    )


# -- sets


def test_sets_come_back_in_the_order_of_their_bytes(client: Any, hashed: str) -> None:
    item = {"pk": s("a"), "ss": {"SS": ["b", "é", "a"]}, "bs": {"BS": [b"\xff", b"\x00"]}}
    client.put_item(TableName=hashed, Item=item)
    client.update_item(
        TableName=hashed,
        Key={"pk": s("a")},
        UpdateExpression="ADD ss :ss",
        ExpressionAttributeValues={":ss": {"SS": [""]}},
    )
    got = client.get_item(TableName=hashed, Key={"pk": s("a")}, ConsistentRead=True)["Item"]
    assert got["ss"] == {"SS": ["", "a", "b", "é"]}
    assert got["bs"] == {"BS": [b"\x00", b"\xff"]}

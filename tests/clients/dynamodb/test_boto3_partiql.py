"""boto3 and PartiQL: statements, batches and transactions; pages to the end, tokens, change records."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.clients


def every(client: Any, statement: str, **request: Any) -> list[dict[str, Any]]:
    """All items of all pages."""
    items: list[dict[str, Any]] = []
    while True:
        answer = client.execute_statement(Statement=statement, **request)
        items += answer["Items"]
        if "NextToken" not in answer:
            return items
        request["NextToken"] = answer["NextToken"]


def run(client: Any, statement: str, *parameters: Any) -> list[dict[str, Any]]:
    more = {"Parameters": list(parameters)} if parameters else {}
    items: list[dict[str, Any]] = client.execute_statement(Statement=statement, **more)["Items"]
    return items


def item(client: Any, table: str, pk: str, sk: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = client.get_item(TableName=table, Key={"pk": {"S": pk}, "sk": {"S": sk}}).get("Item")
    return found


def test_one_item_from_beginning_to_end(client: Any, ranged: str) -> None:
    where = "WHERE pk = ? AND sk = ?"
    key = [{"S": "a"}, {"S": "1"}]
    song = {"title": {"S": "Call Me Today"}, "awards": {"L": [{"N": "1"}, {"N": "2"}]}, "b": {"B": b"\x00\xff"}}
    assert run(
        client,
        f"INSERT INTO \"{ranged}\" VALUE {{'pk': ?, 'sk': ?, 'title': 'Call Me Today', 'awards': [1, 2], 'b': ?}}",
        *key,
        song["b"],
    ) == []  # fmt: skip
    assert run(client, f'SELECT title, awards, b FROM "{ranged}" {where}', *key) == [song]
    assert run(client, f'SELECT awards[1] FROM "{ranged}" {where}', *key) == [{"awards[1]": {"N": "2"}}]
    with pytest.raises(client.exceptions.DuplicateItemException):
        run(client, f"INSERT INTO \"{ranged}\" VALUE {{'pk': ?, 'sk': ?}}", *key)
    assert run(
        client, f"UPDATE \"{ranged}\" SET tags = <<'x'>> REMOVE awards[0] {where} RETURNING MODIFIED NEW *", *key
    ) == [{"tags": {"SS": ["x"]}, "awards": {"L": [{"N": "2"}]}}]
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        run(client, f"UPDATE \"{ranged}\" SET title = 'x' {where} AND title = 'y'", *key)
    (deleted,) = run(client, f'DELETE FROM "{ranged}" {where} RETURNING ALL OLD *', *key)
    assert deleted["tags"] == {"SS": ["x"]}
    assert run(client, f'SELECT * FROM "{ranged}" {where}', *key) == []


def test_the_item_of_a_failed_condition(client: Any, ranged: str) -> None:
    run(client, f"INSERT INTO \"{ranged}\" VALUE {{'pk': 'a', 'sk': '1', 'v': 1}}")
    with pytest.raises(ClientError) as failed:
        client.execute_statement(
            Statement=f"DELETE FROM \"{ranged}\" WHERE pk = 'a' AND sk = '1' AND v = 2",
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    assert failed.value.response["Item"] == {"pk": {"S": "a"}, "sk": {"S": "1"}, "v": {"N": "1"}}


def test_pages_of_a_table_an_index_and_several_partitions(client: Any, wide: str) -> None:
    for pk in "abc":
        for sk in range(10):
            client.put_item(
                TableName=wide,
                Item={"pk": {"S": pk}, "sk": {"S": str(sk)}, "n": {"N": str(sk % 2)}, "v": {"S": "x" * 100}},
            )
    everything = sorted((pk, str(sk)) for pk in "abc" for sk in range(10))

    def found(where: str, source: str = f'"{wide}"', **request: Any) -> list[tuple[str, str]]:
        items = every(client, f"SELECT pk, sk FROM {source} {where}", **request)
        return [(each["pk"]["S"], each["sk"]["S"]) for each in items]

    for limit in ({}, {"Limit": 1}, {"Limit": 7}):
        assert sorted(found("", **limit)) == everything
        assert sorted(found("WHERE pk IN ['a', 'b', 'c']", **limit)) == everything
        assert found("WHERE pk = 'b'", **limit) == [("b", str(sk)) for sk in range(10)]
        assert found("WHERE pk = 'b' ORDER BY sk DESC", **limit) == [("b", str(sk)) for sk in reversed(range(10))]
        assert len(found("WHERE n = 1", f'"{wide}"."by-n"', **limit)) == 15
        assert sorted(found("WHERE n = 1 AND begins_with(pk, 'a')", **limit)) == [
            ("a", str(sk)) for sk in (1, 3, 5, 7, 9)
        ]


def test_a_page_ends_after_a_megabyte(client: Any, ranged: str) -> None:
    for sk in range(4):
        client.put_item(TableName=ranged, Item={"pk": {"S": "a"}, "sk": {"S": str(sk)}, "v": {"S": "x" * 390 * 1024}})
    statement = f"SELECT * FROM \"{ranged}\" WHERE pk = 'a'"
    first = client.execute_statement(Statement=statement)
    assert len(first["Items"]) == 3
    assert [each["sk"]["S"] for each in every(client, statement)] == ["0", "1", "2", "3"]
    parts = f"SELECT * FROM \"{ranged}\" WHERE pk = 'a' AND sk IN ['0', '1', '2', '3']"
    assert len(client.execute_statement(Statement=parts)["Items"]) == 3
    assert sorted(each["sk"]["S"] for each in every(client, parts)) == ["0", "1", "2", "3"]


def test_a_batch(client: Any, ranged: str) -> None:
    writes = client.batch_execute_statement(
        Statements=[
            {
                "Statement": f"INSERT INTO \"{ranged}\" VALUE {{'pk': 'a', 'sk': ?, 'v': 1}}",
                "Parameters": [{"S": str(sk)}],
            }
            for sk in (0, 1, 1)
        ],
        ReturnConsumedCapacity="TOTAL",
    )
    assert [answer.get("Error", {}).get("Code") for answer in writes["Responses"]] == [None, None, "DuplicateItem"]
    assert writes["ConsumedCapacity"] == [{"TableName": ranged, "CapacityUnits": 2.0}]
    reads = client.batch_execute_statement(
        Statements=[
            {"Statement": f"SELECT v FROM \"{ranged}\" WHERE pk = 'a' AND sk = '1'", "ConsistentRead": True},
            {"Statement": f"SELECT v FROM \"{ranged}\" WHERE pk = 'a'"},
            {"Statement": f"SELECT v FROM \"{ranged}\" WHERE pk = 'a' AND sk = '9'"},
        ]
    )["Responses"]
    assert reads[0] == {"TableName": ranged, "Item": {"v": {"N": "1"}}}
    assert reads[1]["Error"]["Code"] == "ValidationError"
    assert reads[2] == {"TableName": ranged}


def test_a_transaction_with_a_check(client: Any, ranged: str) -> None:
    for sk in "12":
        run(client, f"INSERT INTO \"{ranged}\" VALUE {{'pk': 'acc', 'sk': '{sk}', 'money': 100}}")

    free = f"SELECT * FROM \"{ranged}\" WHERE pk = 'frozen' AND sk = '1' AND since IS MISSING"
    update = f'UPDATE "{ranged}" SET money = money'

    def transfer(amount: int) -> Any:
        money = [{"N": str(amount)}]
        return client.execute_transaction(
            TransactStatements=[
                {"Statement": f"EXISTS({free})"},
                {
                    "Statement": f"{update} - ? WHERE pk = 'acc' AND sk = '1' AND money >= ?",
                    "Parameters": money * 2,
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                },
                {
                    "Statement": f"{update} + ? WHERE pk = 'acc' AND sk = '2'",
                    "Parameters": money,
                },
            ]
        )  # fmt: skip

    def balances() -> list[str]:
        answer = client.execute_transaction(
            TransactStatements=[
                {"Statement": f"SELECT money FROM \"{ranged}\" WHERE pk = 'acc' AND sk = '{sk}'"} for sk in "12"
            ]
        )
        return [each["Item"]["money"]["N"] for each in answer["Responses"]]

    assert transfer(70)["Responses"] == []
    assert balances() == ["30", "170"]
    with pytest.raises(client.exceptions.TransactionCanceledException) as canceled:
        transfer(70)
    reasons = canceled.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed", "None"]
    assert reasons[1]["Item"]["money"] == {"N": "30"}
    run(client, f"INSERT INTO \"{ranged}\" VALUE {{'pk': 'frozen', 'sk': '1', 'since': 'today'}}")
    with pytest.raises(client.exceptions.TransactionCanceledException) as canceled:
        transfer(1)
    assert [reason["Code"] for reason in canceled.value.response["CancellationReasons"]] == [
        "ConditionalCheckFailed", "None", "None",
    ]  # fmt: skip
    assert balances() == ["30", "170"]


def test_a_token_makes_a_transaction_idempotent(client: Any, ranged: str) -> None:
    run(client, f"INSERT INTO \"{ranged}\" VALUE {{'pk': 'a', 'sk': '1', 'n': 0}}")
    token = uuid.uuid4().hex
    statement = f"UPDATE \"{ranged}\" SET n = n + 1 WHERE pk = 'a' AND sk = '1'"
    for _ in range(3):
        client.execute_transaction(TransactStatements=[{"Statement": statement}], ClientRequestToken=token)
    found = item(client, ranged, "a", "1")
    assert found is not None
    assert found["n"] == {"N": "1"}
    with pytest.raises(client.exceptions.IdempotentParameterMismatchException):
        client.execute_transaction(TransactStatements=[{"Statement": f"{statement} "}], ClientRequestToken=token)


def test_change_records_are_those_of_the_other_operations(
    client: Any, streams: Any, create: Callable[..., str]
) -> None:
    """The same writes as statements and as item operations leave the same records."""
    tables = [
        create(client, "pk", "sk", StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"})
        for _ in range(2)
    ]
    one, two = tables
    key = {"pk": {"S": "a"}, "sk": {"S": "1"}}
    other = {"pk": {"S": "a"}, "sk": {"S": "2"}}
    where = "WHERE pk = 'a' AND sk = '1'"
    run(client, f"INSERT INTO \"{one}\" VALUE {{'pk': 'a', 'sk': '1', 'v': 1, 's': <<'x'>>}}")
    run(client, f"UPDATE \"{one}\" SET v = v + 1, l = [1] SET s = set_add(s, <<'y'>>) {where}")
    run(client, f'UPDATE "{one}" SET v = 2 {where}')  # changes nothing
    client.execute_transaction(
        TransactStatements=[
            {"Statement": f'UPDATE "{one}" REMOVE l {where}'},
            {"Statement": f"INSERT INTO \"{one}\" VALUE {{'pk': 'a', 'sk': '2'}}"},
        ]
    )
    client.batch_execute_statement(Statements=[{"Statement": f'DELETE FROM "{one}" {where}'}])

    client.put_item(TableName=two, Item={**key, "v": {"N": "1"}, "s": {"SS": ["x"]}})
    client.update_item(
        TableName=two,
        Key=key,
        UpdateExpression="SET v = v + :v, l = :l ADD s :s",
        ExpressionAttributeValues={":v": {"N": "1"}, ":l": {"L": [{"N": "1"}]}, ":s": {"SS": ["y"]}},
    )
    client.transact_write_items(
        TransactItems=[
            {"Update": {"TableName": two, "Key": key, "UpdateExpression": "REMOVE l"}},
            {"Put": {"TableName": two, "Item": other}},
        ]
    )
    client.delete_item(TableName=two, Key=key)

    def records(table: str) -> list[dict[str, Any]]:
        arn = client.describe_table(TableName=table)["Table"]["LatestStreamArn"]
        (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        start = streams.get_shard_iterator(StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")[
            "ShardIterator"
        ]
        found = []
        for record in streams.get_records(ShardIterator=start)["Records"]:
            change = record["dynamodb"]
            found.append(
                {name: change.get(name) for name in ("Keys", "NewImage", "OldImage", "SizeBytes", "StreamViewType")}
                | {"event": record["eventName"], "by": record.get("userIdentity")}
            )
        return found

    assert len(records(one)) == 5
    assert records(one) == records(two)


def test_errors_have_their_types(client: Any, ranged: str) -> None:
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        run(client, "SELECT * FROM \"no.such.table\" WHERE pk = 'a'")
    with pytest.raises(ClientError, match="mandatory equality on all key attributes"):
        run(client, f"DELETE FROM \"{ranged}\" WHERE pk = 'a'")
    with pytest.raises(ClientError, match="can't be processed: Expected data manipulation"):
        run(client, "SLECT 1")

"""Resource policies: what they say is enforced through every API, and what is not supported is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tailrace
from tailrace import policy
from tailrace.access import EVERYTHING, ROLES, Access, Principal
from tailrace.errors import Forbidden, Invalid
from tailrace.http import transactions
from tailrace.http.dynamodb.offload import OffloadPool
from tailrace.http.lookups import sql_execute
from tailrace.http.message import Request
from tailrace.sql.session import Result, Session
from tailrace.tables.change_reading import ReadChanges
from tailrace.tables.policies import PutPolicy
from tests.unit.http.test_dynamodb_tables import HASHED, REGION, Desk, Run, at_the_desk  # noqa: F401

ARN = f"arn:aws:dynamodb:{REGION}:123456789012:table/orders"
ANN = "arn:aws:iam::123456789012:user/ann"
ann = Principal("ann", ROLES["user"], "user")
bob = Principal("bob", ROLES["user"], "user", Access(("tables/other",)))
ROOT = Principal("root", EVERYTHING)


def statement(**more: Any) -> dict[str, Any]:
    return {"Effect": "Deny", "Principal": {"AWS": ANN}, "Action": "dynamodb:*", "Resource": ARN, **more}


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


async def _prepared(desk: Desk) -> None:
    desk.principal = ROOT
    await desk.ok("CreateTable", TableName="orders", **HASHED)
    await desk.ok("PutItem", TableName="orders", Item={"a": {"S": "1"}, "b": {"S": "x"}})


async def _put(desk: Desk, *statements: dict[str, Any], arn: str = ARN, **more: Any) -> str:
    before, desk.principal = desk.principal, ROOT
    made = await desk.ok("PutResourcePolicy", ResourceArn=arn, Policy=document(*statements), **more)
    desk.principal = before
    revision: str = made["RevisionId"]
    return revision


KEY = {"a": {"S": "1"}}
ITEM = {"a": {"S": "2"}}
TOUCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "get": ("GetItem", {"TableName": "orders", "Key": KEY}),
    "put": ("PutItem", {"TableName": "orders", "Item": ITEM}),
    "batch get": ("BatchGetItem", {"RequestItems": {"orders": {"Keys": [KEY]}}}),
    "batch write": ("BatchWriteItem", {"RequestItems": {"orders": [{"PutRequest": {"Item": ITEM}}]}}),
    "transact get": ("TransactGetItems", {"TransactItems": [{"Get": {"TableName": "orders", "Key": KEY}}]}),
    "transact write": ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": "orders", "Item": ITEM}}]}),
    "scan": ("Scan", {"TableName": "orders"}),
    "select": ("ExecuteStatement", {"Statement": "SELECT * FROM orders"}),
    "insert": ("ExecuteStatement", {"Statement": "INSERT INTO orders VALUE {'a': '9'}"}),
}


@pytest.mark.parametrize("how", TOUCHES)
def test_a_denial_holds_for_every_operation(at_the_desk: Run, how: str) -> None:  # noqa: F811
    operation, body = TOUCHES[how]

    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        desk.principal = ann
        await desk.ok(operation, **json.loads(json.dumps(body).replace("'9'", "'8'")))
        await _put(desk, statement())
        code, message = await desk.refused(operation, **body)
        assert code == "AccessDeniedException" and "explicit deny" in message
        desk.principal = Principal("eve", ROLES["user"], "user")
        await desk.ok(operation, **body)
        desk.principal = ROOT
        await desk.ok("DeleteResourcePolicy", ResourceArn=ARN)
        desk.principal = ann
        await desk.ok(operation, **json.loads(json.dumps(body).replace("'9'", "'7'")))

    at_the_desk(scenario)


def test_an_allowance_adds_to_grants_and_a_denial_wins(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        desk.principal = bob
        get = {"TableName": "orders", "Key": KEY}
        assert (await desk.refused("GetItem", **get))[0] == "AccessDeniedException"
        allow = statement(Effect="Allow", Principal="*", Action=["dynamodb:Get*", "dynamodb:PutItem"])
        await _put(desk, allow)
        await desk.ok("GetItem", **get)
        assert (await desk.refused("DeleteItem", **get))[0] == "AccessDeniedException"
        assert (await desk.refused("DeleteTable", TableName="orders"))[0] == "AccessDeniedException"
        await _put(desk, allow, statement(Principal={"AWS": "123456789012"}, Action="dynamodb:GetItem"))
        assert (await desk.refused("GetItem", **get))[0] == "AccessDeniedException"
        await desk.ok("PutItem", TableName="orders", Item=ITEM)
        await _put(desk, statement(Effect="Allow", Principal={"AWS": "arn:aws:iam::123456789012:role/user"}))
        await desk.ok("DeleteItem", **get)
        assert (await desk.refused("GetItem", TableName="third", Key=KEY))[0] == "AccessDeniedException"
        await desk.ok("DeleteTable", TableName="orders")
        desk.principal = ROOT
        await desk.ok("CreateTable", TableName="orders", **HASHED)  # without the policy of the table before it
        desk.principal = bob
        assert (await desk.refused("GetItem", **get))[0] == "AccessDeniedException"

    at_the_desk(scenario)


def _allow(*actions: str, **more: Any) -> dict[str, Any]:
    named = [f"dynamodb:{each}" for each in actions]
    return statement(**{"Effect": "Allow", "Principal": "*", "Action": named, **more})


BY_KEY = "SELECT * FROM orders WHERE a = '1'"
PARTIQL_READS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("ExecuteStatement", {"Statement": BY_KEY}),
    "long": ("ExecuteStatement", {"Statement": f"{BY_KEY} -- {'x' * 3000}"}),  # in a thread
    "transaction": ("ExecuteTransaction", {"TransactStatements": [{"Statement": BY_KEY}]}),
}


@pytest.mark.parametrize("how", PARTIQL_READS)
def test_a_statement_is_judged_as_the_operation_it_stands_for(at_the_desk: Run, how: str) -> None:  # noqa: F811
    operation, body = PARTIQL_READS[how]

    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        desk.principal = bob
        await _put(desk, _allow("GetItem"))
        found = await desk.ok(operation, **body)
        assert found.get("Items") == [{"a": {"S": "1"}, "b": {"S": "x"}}] or found["Responses"][0]["Item"]["a"]
        (one,) = (await desk.ok("BatchExecuteStatement", Statements=[{"Statement": BY_KEY}]))["Responses"]
        assert one["Item"] == {"a": {"S": "1"}, "b": {"S": "x"}}
        for text in ("SELECT * FROM orders", "SELECT * FROM orders WHERE b = 'x'"):
            code, message = await desk.refused("ExecuteStatement", Statement=text)
            assert code == "AccessDeniedException" and "ScanItems" in message
        await _put(desk, _allow("Scan"))
        await desk.ok("ExecuteStatement", Statement="SELECT * FROM orders")
        assert "GetItem" in (await desk.refused("ExecuteStatement", Statement=BY_KEY))[1]
        desk.principal = ann  # a grant without limits, and a denial of what the statement is not
        await _put(desk, statement(Action="dynamodb:DescribeTable"))
        await desk.ok(operation, **body)

    at_the_desk(scenario)


def test_a_select_of_an_index_needs_the_index(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        desk.principal = ROOT
        index = {"IndexName": "by_b", "KeySchema": [{"AttributeName": "b", "KeyType": "HASH"}]}
        names = [{"AttributeName": name, "AttributeType": "S"} for name in "ab"]
        made = {**HASHED, "AttributeDefinitions": names}
        indexes = [{**index, "Projection": {"ProjectionType": "ALL"}}]
        await desk.ok("CreateTable", TableName="orders", GlobalSecondaryIndexes=indexes, **made)
        desk.principal = bob
        by_index = {"Statement": "SELECT * FROM orders.by_b WHERE b = 'x'"}
        await _put(desk, _allow("GetItem", "Query"))
        assert (await desk.refused("ExecuteStatement", **by_index))[0] == "AccessDeniedException"
        await _put(desk, _allow("Query", Resource=f"{ARN}/index/*"))
        await desk.ok("ExecuteStatement", **by_index)

    at_the_desk(scenario)


def test_a_refused_statement_does_not_tell_what_the_table_is(at_the_desk: Run) -> None:  # noqa: F811
    """Neither whether it exists, nor its key, nor its indexes, to who may not read it."""

    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        for policy_of in (None, _allow("PutItem"), _allow("GetItem", Principal={"AWS": ANN})):
            if policy_of is not None:
                await _put(desk, policy_of)
            desk.principal = bob
            for where in ("", ".other", " WHERE a = '1'", " WHERE a = 1", " WHERE b = 'x'"):
                there, absent = [
                    await desk.refused("ExecuteStatement", Statement=f"SELECT * FROM {table}{where}")
                    for table in ("orders", "absent")
                ]
                refusal = "'bob' may not FindTables 'tables/orders': it was not granted access to it"
                assert there == ("AccessDeniedException", refusal)
                assert (absent[0], absent[1].replace("absent", "orders")) == there

    at_the_desk(scenario)


def test_sql_writes_are_judged_as_the_operations_they_stand_for(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, n BIGINT); INSERT INTO orders VALUES ('a', 1)")

        def sql(text: str) -> list[Result]:
            return Session(sql_execute(db, bob)).run(text)

        insert, update, delete = (
            "INSERT INTO orders VALUES ('b', 1)",
            "UPDATE orders SET n = 2 WHERE id = 'a'",
            "DELETE FROM orders WHERE id = 'a'",
        )
        refusals: list[str] = []
        for text in (insert, update, delete, "TRUNCATE TABLE orders", update.replace("orders", "absent")):
            with pytest.raises(Forbidden) as refused:
                sql(text)
            refusals.append(str(refused.value).replace("absent", "orders"))
        assert set(refusals) == {"'bob' may not FindTable 'tables/orders': it was not granted access to it"}
        for actions, text in (
            (["PutItem"], insert),
            (["UpdateItem"], update),
            (["DeleteItem"], delete),
            (["DeleteItem", "Scan"], "TRUNCATE TABLE orders"),
        ):
            db.execute(PutPolicy("orders", "", document(_allow(*actions))), ROOT)
            assert sql(text)[0].row_count == 1, text
        db.execute(PutPolicy("orders", "", document(_allow("UpdateItem"))), ROOT)
        for text in (insert, delete, "UPDATE orders SET n = 2 WHERE n = 1", "ALTER TABLE orders ADD COLUMN m BIGINT"):
            with pytest.raises(Forbidden):
                sql(text)


def test_reads_in_a_transaction_are_scans(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, n BIGINT); INSERT INTO orders VALUES ('a', 1)")
        services: Any = SimpleNamespace(db=db, transaction_workers=OffloadPool(1, 8))
        headers = {b"content-type": b"application/json"}

        def read(table: str = "orders") -> Any:
            body = json.dumps({"get": {"table": table, "key": "a"}}).encode()
            request = Request(b"POST", b"/v1/api/transaction/read", b"", headers, body)
            return json.loads(asyncio.run(transactions.read(services, request, bob)).body)

        try:
            refusals: list[str] = []
            for table in ("orders", "absent"):
                with pytest.raises(Forbidden) as refused:
                    read(table)
                refusals.append(str(refused.value).replace("absent", "orders"))
            assert set(refusals) == {"'bob' may not FindTable 'tables/orders': it was not granted access to it"}
            db.execute(PutPolicy("orders", "", document(_allow("Scan"))), ROOT)
            assert read()["items"] == [{"id": "a", "n": 1}]
        finally:
            services.transaction_workers.close()


def test_sql_and_streams_are_denied_too(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.sql("CREATE TABLE orders (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = 'NEW_IMAGE')")
        db.sql("INSERT INTO orders VALUES ('a', 1)")
        writes = document(statement(Action=["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"]))
        db.execute(PutPolicy("orders", "", writes), ROOT)
        assert db.sql("SELECT n FROM orders", principal=ann).rows == [{"n": 1}]
        for text in (
            "INSERT INTO orders VALUES ('b', 1)",
            "UPDATE orders SET n = 2 WHERE true",
            "DELETE FROM orders WHERE id = 'a'",
            "BEGIN; UPDATE orders SET n = 2 WHERE true; COMMIT",
        ):
            with pytest.raises(Forbidden, match="explicit deny"):
                db.sql(text, principal=ann)
        db.execute(PutPolicy("orders", "", document(statement(Action="dynamodb:Scan"))), ROOT)
        with pytest.raises(Forbidden, match="explicit deny"):
            db.sql("SELECT n FROM orders", principal=ann)
        db.execute(PutPolicy("orders", "", document(statement(Action="dynamodb:GetRecords"))), ROOT)
        assert db.sql("SELECT n FROM orders", principal=ann).rows == [{"n": 1}]
        with pytest.raises(Forbidden, match="explicit deny"):
            db.execute(ReadChanges("orders"), ann)
    with tailrace.open(data_dir, housekeeping_s=None) as db, pytest.raises(Forbidden, match="explicit deny"):
        db.execute(ReadChanges("orders"), ann)


def test_policies_of_streams(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        desk.principal = ROOT
        stream = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
        made = await desk.ok("CreateTable", TableName="orders", StreamSpecification=stream, **HASHED)
        arn = made["TableDescription"]["LatestStreamArn"]
        await _put(desk, statement(Resource=arn, Action="dynamodb:GetRecords"), arn=arn)
        assert json.loads((await desk.ok("GetResourcePolicy", ResourceArn=arn))["Policy"])["Statement"]
        assert (await desk.refused("GetResourcePolicy", ResourceArn=ARN))[0] == "PolicyNotFoundException"
        with pytest.raises(Forbidden, match="explicit deny"):
            await desk.db.aexecute(ReadChanges("orders"), ann)
        desk.principal = ann
        await desk.ok("Scan", TableName="orders")
        desk.principal = ROOT
        other = arn[:-3] + "999"
        assert (await desk.refused("GetResourcePolicy", ResourceArn=other))[0] == "ResourceNotFoundException"

    at_the_desk(scenario)


def test_revisions(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        put, arn = "PutResourcePolicy", {"ResourceArn": ARN}
        text, other = document(statement()), document(statement(Action="dynamodb:Scan"))
        missing = await desk.refused(put, **arn, Policy=text, ExpectedRevisionId="1")
        assert missing[0] == "PolicyNotFoundException"
        first = (await desk.ok(put, **arn, Policy=text, ExpectedRevisionId="NO_POLICY"))["RevisionId"]
        assert (await desk.ok(put, **arn, Policy=text))["RevisionId"] == first
        assert (await desk.refused(put, **arn, Policy=other, ExpectedRevisionId="NO_POLICY"))[0] == (
            "PolicyNotFoundException"
        )
        second = (await desk.ok(put, **arn, Policy=other, ExpectedRevisionId=first))["RevisionId"]
        assert second != first
        assert (await desk.ok("GetResourcePolicy", **arn)) == {"Policy": other, "RevisionId": second}
        stale = await desk.refused("DeleteResourcePolicy", **arn, ExpectedRevisionId=first)
        assert stale[0] == "PolicyNotFoundException"
        assert (await desk.ok("DeleteResourcePolicy", **arn))["RevisionId"] == second
        assert (await desk.ok("DeleteResourcePolicy", **arn))["RevisionId"] == ""
        assert await desk.refused("GetResourcePolicy", **arn) == (
            "PolicyNotFoundException",
            f"Resource-based policy not found for the provided ResourceArn: {ARN}",
        )
        for wrong in ("orders", f"{ARN}/index/x", ARN.replace("123456789012", "999999999999")):
            assert (await desk.refused("GetResourcePolicy", ResourceArn=wrong))[0] == "ValidationException"
        gone = {"ResourceArn": ARN.replace("orders", "missing")}
        for operation, more in (("GetResourcePolicy", {}), ("DeleteResourcePolicy", {}), (put, {"Policy": text})):
            assert await desk.refused(operation, **gone, **more) == (
                "ResourceNotFoundException",
                "Requested resource not found: Table: missing not found",
            )

    at_the_desk(scenario)


def test_who_would_lock_itself_out_must_say_so(at_the_desk: Run) -> None:  # noqa: F811
    async def scenario(desk: Desk) -> None:
        await _prepared(desk)
        desk.principal = Principal("admin", ROLES["dba"], "dba")
        text = document(statement(Principal="*"))
        code, message = await desk.refused("PutResourcePolicy", ResourceArn=ARN, Policy=text)
        assert code == "ValidationException" and "ConfirmRemoveSelfResourceAccess" in message
        await desk.ok("PutResourcePolicy", ResourceArn=ARN, Policy=text, ConfirmRemoveSelfResourceAccess=True)
        for operation in ("GetResourcePolicy", "DeleteResourcePolicy"):
            assert (await desk.refused(operation, ResourceArn=ARN))[0] == "AccessDeniedException"
        desk.principal = ROOT  # of role system: it can always repair a policy, but is denied all else
        assert (await desk.refused("Scan", TableName="orders"))[0] == "AccessDeniedException"
        await desk.ok("DeleteResourcePolicy", ResourceArn=ARN)
        await desk.ok("Scan", TableName="orders")

    at_the_desk(scenario)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"Statement": []}',
        '{"Version": "2020-01-01", "Statement": []}',
        document(statement(Effect="Maybe")),
        document(statement(Principal={"Service": "x"})),
        document(statement(Principal={"AWS": "arn:aws:iam::999999999999:user/ann"})),
        document(statement(Principal={"AWS": "arn:aws:iam::123456789012:role/king"})),
        document({**statement(), "NotAction": "dynamodb:GetItem"}),
        document(statement(Action="s3:GetObject")),
        document(statement(Action=[])),
        document(statement(Resource="arn:aws:dynamodb:x:123456789012:table/else")),
        document(statement(Resource="arn:aws:s3:::bucket")),
        document(statement(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})),
        document(statement(Condition={"StringEquals": {"dynamodb:LeadingKeys": "a"}})),
        document(statement(Condition={"DateLessThan": {"aws:CurrentTime": "tomorrow"}})),
        '{"Statement": {"Effect": "Deny", "Effect": "Allow"}}',
        document(statement(Sid="x" * 21_000)),
        "[" * 100_000,
    ],
)
def test_what_is_not_supported_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="policy is refused"):
        policy.parse(text, "table/orders")


def test_conditions_and_indexes() -> None:
    def verdict(name: str, resource: str = "table/orders", now_ms: int = 0, **more: Any) -> str | None:
        return policy.parse(document(statement(**more)), "table/orders").verdict(
            name, "user", "Query", resource, now_ms
        )

    assert verdict("bo", Principal="*", Condition={"StringLike": {"aws:username": ["a*", "b?"]}}) == "Deny"
    assert verdict("bob", Principal="*", Condition={"StringLike": {"aws:username": ["a*", "b?"]}}) is None
    assert verdict("bob", Principal="*", Condition={"StringNotEquals": {"aws:username": "ann"}}) == "Deny"
    for operator, at, expected in (
        ("DateLessThan", 999, "Deny"),
        ("DateLessThan", 1000, None),
        ("DateLessThanEquals", 1000, "Deny"),
        ("DateGreaterThan", 1001, "Deny"),
        ("DateGreaterThan", 1000, None),
        ("DateGreaterThanEquals", 1000, "Deny"),
        ("DateGreaterThanEquals", 999, None),
    ):
        condition = {operator: {"aws:CurrentTime": "1970-01-01T00:00:01Z"}}
        assert verdict("ann", now_ms=at, Condition=condition) == expected, (operator, at)
    assert verdict("ann", "table/orders/index/i") == "Deny"
    assert verdict("ann", "table/orders/index/i", Effect="Allow") is None
    assert verdict("ann", "table/orders/index/i", Effect="Allow", Resource=f"{ARN}/index/*") == "Allow"
    assert verdict("ann", Action="DYNAMODB:query".replace("DYNAMODB", "dynamodb")) == "Deny"
    assert verdict("ann", Action="dynamodb:Que") is None


def test_a_table_without_a_policy_is_not_looked_at(data_dir: Path) -> None:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        assert not db.policies.active

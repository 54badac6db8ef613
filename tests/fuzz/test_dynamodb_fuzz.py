"""Bad input to the DynamoDB API: bytes, JSON, and good requests of every operation with something in them changed.

Whatever comes, the answer comes soon, is never a 5xx, carries the right checksum, and is either a result or an error
as SDKs read it; a request that was refused has changed nothing: the rows of the database are compared before and after.
`TAILRACE_SOAK=1` tries many more.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import re
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tailrace.check import check_database
from tailrace.http.dynamodb.operations import OPERATIONS
from tailrace.jobs.identity import TIME
from tests.migration.test_schema import TABLES
from tests.support.patience import PATIENCE_S
from tests.support.soak import examples
from tests.unit.threaded import Served

pytestmark = pytest.mark.fuzz

JSON_1_0 = "application/x-amz-json-1.0"
ours = settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
UNKNOWN = b"<UnknownOperationException/>\n"
TYPE = re.compile(r"com\.amazon(aws)?\.[a-z0-9.]+#[A-Z][A-Za-z]+(Exception|Error)")


def keys(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)]


def defined(**kinds: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()]


CREATE = {
    "TableName": "ranged",
    "KeySchema": keys("pk", "sk"),
    "AttributeDefinitions": defined(pk="S", sk="N", g="S", b="B"),
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {"IndexName": "by-g", "KeySchema": keys("g", "sk"), "Projection": {"ProjectionType": "ALL"}}
    ],
    "LocalSecondaryIndexes": [
        {
            "IndexName": "by-b",
            "KeySchema": keys("pk", "b"),
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["v"]},
        }
    ],
    "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    "Tags": [{"Key": "team", "Value": "sales"}],
}
KEY = {"pk": {"S": "a"}, "sk": {"N": "1"}}
ITEM = {
    **KEY,
    "g": {"S": "x"},
    "b": {"B": "AAE="},
    "n": {"N": "-1.5e3"},
    "s": {"SS": ["x", "y"]},
    "ns": {"NS": ["1", "2"]},
    "bs": {"BS": ["AA==", "AQ=="]},
    "l": {"L": [{"NULL": True}, {"BOOL": False}, {"M": {"k": {"S": ""}}}]},
}
ARN = "*table"
NAMES = {"#v": "v", "#l": "l"}
VALUES = {":v": {"N": "1"}, ":w": {"S": "x"}}

# Good requests, each with as many parameters as go together. `*` stands for what only the server can tell.
# Well-formed requests that are refused here: what they name is not there, and to make it would change what others see.
REFUSED = (
    "CreateBackup", "DescribeBackup", "DeleteBackup", "RestoreTableFromBackup", "RestoreTableToPointInTime",
    "UpdateContinuousBackups", "EnableKinesisStreamingDestination", "DisableKinesisStreamingDestination",
    "UpdateKinesisStreamingDestination", "ExportTableToPointInTime", "DescribeExport", "ImportTable", "DescribeImport",
    "PutResourcePolicy", "GetResourcePolicy",
)  # fmt: skip
BACKUP = "arn:aws:dynamodb:us-east-1:123456789012:table/ranged/backup/01700000000000-0123abcd"
KINESIS = "arn:aws:kinesis:us-east-1:123456789012:stream/changes"
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("PutItem", {"TableName": "ranged", "Item": ITEM, "ConditionExpression": "#v = :v OR attribute_not_exists(#l[0].k)",
                 "ExpressionAttributeNames": NAMES, "ExpressionAttributeValues": {":v": {"N": "1"}},
                 "ReturnValues": "ALL_OLD", "ReturnConsumedCapacity": "INDEXES",
                 "ReturnItemCollectionMetrics": "SIZE"}),
    ("PutItem", {"TableName": "hashed", "Item": {"pk": {"S": "a"}, "v": {"N": "1"}},
                 "Expected": {"v": {"AttributeValueList": [{"N": "1"}], "ComparisonOperator": "NE"},
                              "w": {"Exists": False}}, "ConditionalOperator": "AND"}),
    ("GetItem", {"TableName": "ranged", "Key": KEY, "ConsistentRead": True, "ReturnConsumedCapacity": "TOTAL",
                 "ProjectionExpression": "#v, l[0], m.k", "ExpressionAttributeNames": {"#v": "v"}}),
    ("GetItem", {"TableName": "ranged", "Key": KEY, "AttributesToGet": ["v", "l"]}),
    ("UpdateItem", {"TableName": "ranged", "Key": KEY, "ReturnValues": "UPDATED_NEW",
                    "UpdateExpression": "SET #v = if_not_exists(#v, :v) + :v, w = list_append(:w, :w) "
                                        "REMOVE q, x ADD c :v DELETE s :s",
                    "ConditionExpression": "size(pk) < :v OR NOT (begins_with(pk, :t) AND contains(s, :t))",
                    "ExpressionAttributeNames": {"#v": "v"},
                    "ExpressionAttributeValues": {":v": {"N": "1"}, ":w": {"L": []}, ":s": {"SS": ["x"]},
                                                  ":t": {"S": "b"}}}),
    ("UpdateItem", {"TableName": "hashed", "Key": {"pk": {"S": "a"}},
                    "AttributeUpdates": {"n": {"Action": "ADD", "Value": {"N": "1"}}, "v": {"Action": "DELETE"},
                                         "w": {"Value": {"S": "x"}}},
                    "Expected": {"zz": {"Exists": False}}, "ReturnValues": "ALL_NEW"}),
    ("DeleteItem", {"TableName": "ranged", "Key": KEY, "ReturnValues": "ALL_OLD",
                    "ConditionExpression": "#v BETWEEN :v AND :v OR #l IN (:v, :w) OR attribute_type(#v, :w)",
                    "ExpressionAttributeNames": NAMES,
                    "ExpressionAttributeValues": {":v": {"N": "1"}, ":w": {"S": "S"}},
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}),
    ("Query", {"TableName": "ranged", "KeyConditionExpression": "pk = :w AND sk BETWEEN :v AND :v", "Limit": 3,
               "FilterExpression": "#v = :v OR attribute_exists(#l)", "ExpressionAttributeNames": NAMES,
               "ExpressionAttributeValues": VALUES, "ScanIndexForward": False, "ConsistentRead": True,
               "ReturnConsumedCapacity": "TOTAL"}),
    ("Query", {"TableName": "ranged", "IndexName": "by-g", "KeyConditionExpression": "g = :w", "Select": "COUNT",
               "ExpressionAttributeValues": {":w": {"S": "x"}}, "ExclusiveStartKey": {**KEY, "g": {"S": "x"}}}),
    ("Query", {"TableName": "ranged", "IndexName": "by-b", "Select": "ALL_ATTRIBUTES", "KeyConditions": {
        "pk": {"AttributeValueList": [{"S": "a"}], "ComparisonOperator": "EQ"},
        "b": {"AttributeValueList": [{"B": "AA=="}], "ComparisonOperator": "BEGINS_WITH"}},
        "QueryFilter": {"v": {"AttributeValueList": [{"N": "1"}], "ComparisonOperator": "GT"}}}),
    ("Scan", {"TableName": "ranged", "Segment": 1, "TotalSegments": 4, "FilterExpression": "#v <> :v",
              "ExpressionAttributeNames": {"#v": "v"}, "ExpressionAttributeValues": {":v": {"N": "1"}},
              "ProjectionExpression": "pk, sk", "Limit": 10}),
    ("Scan", {"TableName": "ranged", "IndexName": "by-g", "ExclusiveStartKey": {**KEY, "g": {"S": "x"}},
              "ScanFilter": {"v": {"ComparisonOperator": "NOT_NULL"}}, "AttributesToGet": ["pk"]}),
    ("BatchGetItem", {"RequestItems": {"ranged": {"Keys": [KEY, {"pk": {"S": "b"}, "sk": {"N": "2"}}],
                                                  "ProjectionExpression": "pk"},
                                       "hashed": {"Keys": [{"pk": {"S": "a"}}]}}, "ReturnConsumedCapacity": "TOTAL"}),
    ("BatchGetItem", {"RequestItems": {"hashed": {"Keys": [{"pk": {"S": "a"}}], "AttributesToGet": ["v"],
                                                  "ConsistentRead": True}}}),
    ("BatchWriteItem", {"RequestItems": {"ranged": [{"PutRequest": {"Item": ITEM}},
                                                    {"DeleteRequest": {"Key": {"pk": {"S": "z"}, "sk": {"N": "9"}}}}],
                                         "hashed": [{"PutRequest": {"Item": {"pk": {"S": "c"}}}}]},
                        "ReturnItemCollectionMetrics": "SIZE"}),
    ("TransactWriteItems", {"ClientRequestToken": "*token", "TransactItems": [
        {"Put": {"TableName": "ranged", "Item": ITEM, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}},
        {"Update": {"TableName": "hashed", "Key": {"pk": {"S": "u"}}, "UpdateExpression": "ADD n :v",
                    "ExpressionAttributeValues": {":v": {"N": "1"}}}},
        {"Delete": {"TableName": "hashed", "Key": {"pk": {"S": "d"}}}},
        {"ConditionCheck": {"TableName": "hashed", "Key": {"pk": {"S": "q"}},
                            "ConditionExpression": "attribute_not_exists(pk)"}}]}),
    ("TransactGetItems", {"TransactItems": [{"Get": {"TableName": "ranged", "Key": KEY, "ProjectionExpression": "pk"}},
                                            {"Get": {"TableName": "hashed", "Key": {"pk": {"S": "a"}}}}]}),
    ("ExecuteStatement", {"Statement": "SELECT pk, l[0], l[2].k FROM ranged WHERE pk = ? AND sk BETWEEN 0 AND 5 AND "
                                       "(v = 1 OR contains(s, 'x')) AND NOT q IS NULL ORDER BY sk DESC",
                          "Parameters": [{"S": "a"}], "ConsistentRead": True, "Limit": 5,
                          "ReturnConsumedCapacity": "INDEXES"}),
    ("ExecuteStatement", {"Statement": "SELECT * FROM ranged.\"by-g\" WHERE g IN ['x', 'y'] AND size(pk) > 0"}),
    ("ExecuteStatement", {"Statement": "UPDATE ranged SET n = n + ?, l = list_append(l, [1, {'a': <<'b'>>}]) "
                                       "SET s = set_add(s, <<'z'>>) REMOVE q WHERE pk = 'a' AND sk = 1 "
                                       "AND attribute_exists(n) RETURNING ALL NEW *", "Parameters": [{"N": "1"}],
                          "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}),
    ("BatchExecuteStatement", {"Statements": [
        {"Statement": "SELECT * FROM ranged WHERE pk = ? AND sk = 1", "Parameters": [{"S": "a"}],
         "ConsistentRead": True}, {"Statement": "SELECT pk FROM hashed WHERE pk = 'a'"}],
        "ReturnConsumedCapacity": "TOTAL"}),
    ("BatchExecuteStatement", {"Statements": [
        {"Statement": "INSERT INTO hashed VALUE {'pk': 'i', 'm': {'a': [1, null, true]}}"},
        {"Statement": "DELETE FROM hashed WHERE pk = 'i' RETURNING ALL OLD *"}]}),
    ("ExecuteTransaction", {"ClientRequestToken": "*token", "TransactStatements": [
        {"Statement": "UPDATE ranged SET v = ? WHERE pk = 'a' AND sk = 1", "Parameters": [{"N": "1"}],
         "ReturnValuesOnConditionCheckFailure": "ALL_OLD"},
        {"Statement": "EXISTS(SELECT * FROM hashed WHERE pk = 'e' AND v IS MISSING)"},
        {"Statement": "DELETE FROM hashed WHERE pk = 'd'"}]}),
    ("ExecuteTransaction", {"TransactStatements": [{"Statement": "SELECT * FROM ranged WHERE pk = 'a' AND sk = 1"}],
                            "ReturnConsumedCapacity": "TOTAL"}),
    ("CreateTable", {**CREATE, "TableName": "made"}),
    ("CreateTable", {"TableName": "made2", "KeySchema": keys("pk"), "AttributeDefinitions": defined(pk="B"),
                     "ProvisionedThroughput": {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
                     "DeletionProtectionEnabled": False, "TableClass": "STANDARD",
                     "SSESpecification": {"Enabled": True}}),
    ("UpdateTable", {"TableName": "hashed", "BillingMode": "PAY_PER_REQUEST", "DeletionProtectionEnabled": False}),
    ("UpdateTable", {"TableName": "hashed", "AttributeDefinitions": defined(pk="S", w="S"),
                     "GlobalSecondaryIndexUpdates": [{"Create": {"IndexName": "by-w", "KeySchema": keys("w"),
                                                                 "Projection": {"ProjectionType": "KEYS_ONLY"}}}]}),
    ("UpdateTable", {"TableName": "hashed", "StreamSpecification": {"StreamEnabled": True,
                                                                    "StreamViewType": "KEYS_ONLY"}}),
    ("DescribeTable", {"TableName": "ranged"}),
    ("DeleteTable", {"TableName": "made"}),
    ("ListTables", {"ExclusiveStartTableName": "hashed", "Limit": 1}),
    ("UpdateTimeToLive", {"TableName": "hashed",
                          "TimeToLiveSpecification": {"AttributeName": "until", "Enabled": True}}),
    ("DescribeTimeToLive", {"TableName": "hashed"}),
    ("DescribeContinuousBackups", {"TableName": "hashed"}),
    ("TagResource", {"ResourceArn": ARN, "Tags": [{"Key": "a", "Value": "b"}]}),
    ("UntagResource", {"ResourceArn": ARN, "TagKeys": ["a", "c"]}),
    ("ListTagsOfResource", {"ResourceArn": ARN, "NextToken": "x"}),
    ("DescribeEndpoints", {}),
    ("DescribeLimits", {}),
    ("ListStreams", {"TableName": "ranged", "Limit": 1}),
    ("DescribeStream", {"StreamArn": "*stream", "Limit": 5}),
    ("GetShardIterator", {"StreamArn": "*stream", "ShardId": "*shard", "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                          "SequenceNumber": "*sequence"}),
    ("GetRecords", {"ShardIterator": "*iterator", "Limit": 10}),
    ("CreateBackup", {"TableName": "no-such-table", "BackupName": "nightly"}),
    ("DescribeBackup", {"BackupArn": BACKUP}),
    ("DeleteBackup", {"BackupArn": BACKUP}),
    ("ListBackups", {"TableName": "ranged", "Limit": 3, "TimeRangeLowerBound": 1, "BackupType": "ALL"}),
    ("RestoreTableFromBackup", {"BackupArn": BACKUP, "TargetTableName": "restored"}),
    (
        "RestoreTableToPointInTime",
        {"SourceTableName": "ranged", "TargetTableName": "restored", "UseLatestRestorableTime": True},
    ),
    (
        "UpdateContinuousBackups",
        {
            "TableName": "no-such-table",
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": 7},
        },
    ),
    ("DescribeKinesisStreamingDestination", {"TableName": "ranged"}),
    ("EnableKinesisStreamingDestination", {"TableName": "ranged", "StreamArn": KINESIS}),
    ("DisableKinesisStreamingDestination", {"TableName": "ranged", "StreamArn": KINESIS}),
    ("UpdateKinesisStreamingDestination", {"TableName": "ranged", "StreamArn": KINESIS}),
    ("DescribeContributorInsights", {"TableName": "ranged"}),
    ("UpdateContributorInsights", {"TableName": "ranged", "ContributorInsightsAction": "DISABLE"}),
    ("ListContributorInsights", {"TableName": "ranged"}),
    ("ExportTableToPointInTime", {"TableArn": ARN, "S3Bucket": "no-bucket", "S3Prefix": "a/b", "ExportTime": 1,
                                  "ExportType": "INCREMENTAL_EXPORT",
                                  "IncrementalExportSpecification": {"ExportFromTime": 1, "ExportToTime": 2}}),
    ("DescribeExport", {"ExportArn": f"{ARN}/export/01700000000000-0123abcd"}),
    ("ListExports", {"TableArn": ARN, "MaxResults": 2}),
    ("ImportTable", {"S3BucketSource": {"S3Bucket": "no-bucket", "S3KeyPrefix": "a/"}, "InputFormat": "CSV",
                     "InputFormatOptions": {"Csv": {"Delimiter": ";", "HeaderList": ["a"]}},
                     "TableCreationParameters": {
                         "TableName": "imported", "BillingMode": "PAY_PER_REQUEST",
                         "AttributeDefinitions": [{"AttributeName": "a", "AttributeType": "S"}],
                         "KeySchema": [{"AttributeName": "a", "KeyType": "HASH"}]}}),
    ("DescribeImport", {"ImportArn": f"{ARN}/import/01700000000000-0123abcd"}),
    ("ListImports", {"TableArn": ARN, "PageSize": 2}),
    ("PutResourcePolicy", {"ResourceArn": ARN, "Policy": "{}", "ExpectedRevisionId": "1"}),
    ("GetResourcePolicy", {"ResourceArn": ARN}),
    ("DeleteResourcePolicy", {"ResourceArn": ARN}),
]  # fmt: skip
STREAM_OPERATIONS = {"ListStreams", "DescribeStream", "GetShardIterator", "GetRecords"}


def target(operation: str) -> str:
    return ("DynamoDBStreams_20120810." if operation in STREAM_OPERATIONS else "DynamoDB_20120810.") + operation


class FuzzServer:
    """A server with two tables, and a view of all its rows."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.connection = http.client.HTTPConnection(served.url.removeprefix("http://"), timeout=PATIENCE_S)
        self.known: dict[str, str] = {}
        self.tokens = 0
        self.answer = b""

    def furnish(self) -> None:
        """Make what an earlier example may have deleted."""
        names = self.ask("ListTables", {})["TableNames"]
        if "ranged" not in names:
            self.ask("CreateTable", CREATE)
        if "hashed" not in names:
            made = {"TableName": "hashed", "KeySchema": keys("pk"), "AttributeDefinitions": defined(pk="S")}
            self.ask("CreateTable", {**made, "BillingMode": "PAY_PER_REQUEST"})
        for name in set(names) - {"ranged", "hashed"}:
            self.ask("UpdateTable", {"TableName": name, "DeletionProtectionEnabled": False})
            self.ask("DeleteTable", {"TableName": name})
        self.ask("PutItem", {"TableName": "ranged", "Item": ITEM})

    def learn(self) -> None:
        """What only the server can tell."""
        table = self.ask("DescribeTable", {"TableName": "ranged"})["Table"]
        arn = table["LatestStreamArn"]
        shards = self.ask("DescribeStream", {"StreamArn": arn})["StreamDescription"]["Shards"]
        shard = shards[0]["ShardId"]
        parameters = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.ask("GetShardIterator", parameters)["ShardIterator"]
        records = self.ask("GetRecords", {"ShardIterator": iterator})["Records"]
        self.tokens += 1
        self.known = {
            "*table": table["TableArn"],
            "*stream": arn,
            "*shard": shard,
            "*iterator": iterator,
            "*sequence": records[-1]["dynamodb"]["SequenceNumber"] if records else "1",
            "*token": f"token-{self.tokens}",
        }

    def filled(self, value: Any) -> Any:
        """A good request with what was learned in it."""
        if isinstance(value, dict):
            return {name: self.filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        return self.known.get(value, value) if isinstance(value, str) else value

    def send(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        try:
            self.connection.request("POST", "/", body, headers)
            answer = self.connection.getresponse()
            content = answer.read()
        except http.client.HTTPException:
            self.connection.close()
            raise
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, content

    def ask(self, operation: str, request: dict[str, Any]) -> Any:
        """A request that must succeed."""
        status, _, body = self.send(json.dumps(request).encode(), self.headers(operation))
        assert status == 200, f"{operation} {request}: {body!r}"
        return json.loads(body)

    @staticmethod
    def headers(operation: str) -> dict[str, str]:
        return {"Content-Type": JSON_1_0, "X-Amz-Target": target(operation)}

    def digest(self) -> int:
        """A fingerprint of every row but those that housekeeping may change meanwhile, all by itself."""
        with self.served.running.db._engine.reader() as reader:
            rows = {
                name: list(reader.scan(table))
                for name, table in TABLES.items()
                if name not in ("dropped_spaces", "backfills", "garbage")
            }
        rows["meta"] = [row for row in rows["meta"] if row.name != TIME]
        spaces = {row.space for row in rows["tables"]}
        rows["items"] = [row for row in rows["items"] if row.space in spaces]
        live = {row.log for row in rows["change_streams"]}
        rows["entries"] = [row for row in rows["entries"] if row.log in live]
        for name in ("index_entries", "counts", "logs"):
            rows[name] = []
        return zlib.crc32(repr(rows).encode())

    def judge(self, body: bytes, headers: dict[str, str]) -> int:
        """Send a request and hold the answer against what is promised."""
        before = self.digest()
        status, fields, answer = self.send(body, headers)
        self.answer = answer
        shown = f"{headers.get('X-Amz-Target')} {body[:600]!r}: {status} {answer[:600]!r}"
        assert status < 500, shown
        assert fields["x-amz-crc32"] == str(zlib.crc32(answer)), shown
        assert re.fullmatch("[A-Z0-9]{52}", fields["x-amzn-requestid"]), shown
        if status == 404:
            assert answer == UNKNOWN, shown
        elif status == 413:
            assert answer == b"", shown
        elif answer or status != 200:  # operations that tell nothing answer with nothing
            assert status in (200, 400), shown
            document = json.loads(answer)
            assert isinstance(document, dict), shown
            if status == 400:
                assert TYPE.fullmatch(document["__type"]), shown
                message = document.get("message", document.get("Message"))
                bare = document["__type"].endswith(("#SerializationException", "#UnknownOperationException"))
                assert (message is None and bare) or isinstance(message, str), shown
                assert document["__type"].endswith("#TransactionCanceledException") == (
                    "CancellationReasons" in document
                )
        if status >= 400:
            assert self.digest() == before, f"refused, but it changed something: {shown}"
        return status


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzServer]:
    data = tmp_path_factory.mktemp("fuzz") / "data"
    with Served(data) as served:
        made = FuzzServer(served)
        yield made
        made.furnish()
        made.connection.close()
    assert check_database(data).findings == []


def test_every_operation_has_good_requests_and_they_are_good(server: FuzzServer) -> None:
    assert {target(name) for name, _ in GOOD} == OPERATIONS.keys()
    for name, request in GOOD:
        server.furnish()
        if request.get("TableName") == "made" and name == "DeleteTable":
            server.ask("CreateTable", {**CREATE, "TableName": "made"})
        server.learn()
        body = json.dumps(server.filled(request)).encode()
        status = server.judge(body, server.headers(name))
        assert status == 200 or name in ("ListTagsOfResource", "DeleteItem", *REFUSED), f"{name}: {server.answer!r}"


# -- anything


@ours
@given(
    body=st.binary(max_size=300),
    operation=st.sampled_from(sorted(OPERATIONS)) | st.text(st.characters(min_codepoint=33, max_codepoint=126)),
    kind=st.sampled_from([JSON_1_0, "application/json", "application/x-amz-json-1.1", "text/plain", "", "*"]),
)
@example(body=b"", operation="DynamoDB_20120810.ListTables", kind=JSON_1_0)
@example(body=b"\xff\xfe", operation="DynamoDB_20120810.ListTables", kind=JSON_1_0)
@example(body=b"null", operation="DynamoDB_20120810.ListTables", kind=JSON_1_0)
@example(body=b'"\\ud800"', operation="DynamoDB_20120810.ListTables", kind=JSON_1_0)
def test_bytes(server: FuzzServer, body: bytes, operation: str, kind: str) -> None:
    server.judge(body, {"Content-Type": kind, "X-Amz-Target": operation})


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "\0", "a\0b", "\ud800", "ä" * 300, "x" * 5000, "ranged", "hashed", "pk", ":v", "#v", "ALL_OLD", "1e400",
         "NaN", "-0", "1" * 50, "arn:aws:dynamodb:us-east-1:000000000000:table/", "AA=", "=", "()", "a.b[0]", "true",
         "__proto__"]
    ),
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS,
    st.sampled_from([0, -1, 2**31, 2**63, 10**400, 1e308, -0.0, 1.5]),
)  # fmt: skip
MEMBERS = st.one_of(
    TEXTS,
    st.sampled_from(
        ["S", "N", "B", "SS", "NS", "BS", "L", "M", "NULL", "BOOL", "TableName", "Key", "Item", "pk", "sk"]
    ),
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MEMBERS, inner, max_size=4), max_leaves=8
)


def rendered(value: Any) -> bytes:
    """JSON as nobody should write it, too: NaN, Infinity, lone surrogates."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@ours
@given(tree=TREES, operation=st.sampled_from(sorted(OPERATIONS)))
def test_any_json(server: FuzzServer, tree: Any, operation: str) -> None:
    server.judge(rendered(tree), {"Content-Type": JSON_1_0, "X-Amz-Target": operation})


# -- good requests with something changed


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in children:
        found += places(each, (*path, name))
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def change(request: Any, chance: random.Random, junk: Any, name: str) -> Any:
    """One of the ways in which requests are wrong."""
    request = copy.deepcopy(request)
    known = places(request)
    if not known:
        return {name: junk}
    path = chance.choice(known)
    parent, last = at(request, path[:-1]), path[-1]
    match chance.randrange(9):
        case 0:
            del parent[last]
        case 1:
            parent[last] = copy.deepcopy(at(request, chance.choice(known)))  # something else of the same request
        case 2 if isinstance(parent, dict):
            parent[name] = parent.pop(last)
        case 3 if isinstance(parent, dict):
            parent[name] = junk
        case 4:
            parent[last] = [parent[last]]
        case 5 if isinstance(parent[last], str):
            text = parent[last]
            cut = chance.randrange(len(text) + 1)
            parent[last] = text[:cut] + name + text[cut + chance.randrange(3) :]
        case 6 if isinstance(parent[last], list):
            parent[last] = parent[last] * chance.choice([2, 30, 101])
        case 7 if isinstance(parent[last], str):
            parent[last] = parent[last] * chance.choice([0, 2, 700])
        case _:
            parent[last] = junk
    return request


@settings(ours, max_examples=examples(900))
@given(
    number=st.integers(0, len(GOOD) - 1), seed=st.integers(0, 2**32), junk=TREES, name=MEMBERS, times=st.integers(1, 3)
)
def test_changed_requests(server: FuzzServer, number: int, seed: int, junk: Any, name: str, times: int) -> None:
    server.furnish()
    if "*" in json.dumps(GOOD[number][1]):
        server.learn()
    operation, request = GOOD[number]
    request = server.filled(request)
    chance = random.Random(seed)
    for _ in range(times):
        request = change(request, chance, junk, name)
    server.judge(rendered(request), server.headers(operation))


WORDS = st.sampled_from(
    ["pk", "v", "#v", ":v", ":w", "AND", "OR", "NOT", "BETWEEN", "IN", "(", ")", ",", "=", "<", "<>", ">=", ".", "[0]",
     "[", "]", "size(", "attribute_exists(", "begins_with(", "contains(", "SET", "REMOVE", "ADD", "DELETE", "+", "-",
     "if_not_exists(", "list_append(", "#", ":", "0", "99999999999999999999", "é", "\0", "'", '"', "select",
     "[-1]", "..."]
)  # fmt: skip
EXPRESSIONS = st.lists(WORDS, min_size=1, max_size=14).flatmap(
    lambda words: st.sampled_from([" ", ""]).map(lambda space: space.join(words))
)


@ours
@given(
    text=EXPRESSIONS,
    where=st.sampled_from(
        [("PutItem", "ConditionExpression"), ("UpdateItem", "UpdateExpression"), ("GetItem", "ProjectionExpression"),
         ("Query", "KeyConditionExpression"), ("Query", "FilterExpression"), ("Scan", "FilterExpression")]
    ),
)  # fmt: skip
def test_expressions(server: FuzzServer, text: str, where: tuple[str, str]) -> None:
    server.furnish()
    send_expression(server, text, *where)


def send_expression(server: FuzzServer, text: str, operation: str, parameter: str) -> int:
    request: dict[str, Any] = {"TableName": "ranged", parameter: text}
    if operation in ("GetItem", "UpdateItem"):
        request["Key"] = KEY
    elif operation == "PutItem":
        request["Item"] = ITEM
    if operation == "Query" and parameter != "KeyConditionExpression":
        request["KeyConditionExpression"] = "pk = :w"
    if "#v" in text:
        request["ExpressionAttributeNames"] = {"#v": "v"}
    used = {name: held for name, held in VALUES.items() if name in text + request.get("KeyConditionExpression", "")}
    if used:
        request["ExpressionAttributeValues"] = used
    return server.judge(rendered(request), server.headers(operation))


# -- bombs


def nested(opening: str, closing: str, depth: int, inside: str = '{"S":"x"}') -> str:
    return opening * depth + inside + closing * depth


@pytest.mark.parametrize("depth", [31, 32, 33, 100, 1_000, 20_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [('{"L":[', "]}"), ('{"M":{"a":', "}}")])
def test_deeply_nested_values(server: FuzzServer, depth: int, opening: str, closing: str) -> None:
    server.furnish()
    item = nested(opening, closing, depth)
    body = '{"TableName":"hashed","Item":{"pk":{"S":"deep"},"v":' + item + "}}"
    status = server.judge(body.encode(), server.headers("PutItem"))
    assert (status == 200) == (depth < 32)
    values = '{"TableName":"hashed","Key":{"pk":{"S":"deep2"}},"UpdateExpression":"SET v = :v",'
    values += '"ExpressionAttributeValues":{":v":' + item + "}}"
    server.judge(values.encode(), server.headers("UpdateItem"))


@pytest.mark.parametrize("depth", [10, 1_000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"TableName":', '{"Item":{"pk":{"L":['])
def test_json_that_is_never_closed(server: FuzzServer, depth: int, opening: str) -> None:
    for name in ("PutItem", "BatchWriteItem", "ListTables"):
        assert server.judge(opening.encode() * depth, server.headers(name)) == 400


@pytest.mark.parametrize("depth", [500, 50_000])
@pytest.mark.parametrize("name", sorted({name for name, _ in GOOD}))
def test_unknown_members_that_are_deep(server: FuzzServer, depth: int, name: str) -> None:
    server.judge(b'{"Unknown":' + b"[" * depth + b"]" * depth + b"}", server.headers(name))


EXPRESSION_BOMBS = [
    "(" * 2_000 + "v = :v" + ")" * 2_000,
    "(" * 4_096,
    ")" * 4_096,
    "NOT " * 1_000 + "v = :v",
    " AND ".join(["v = :v"] * 400),
    " OR ".join(["v = :v"] * 500),
    "v = :v AND " * 300 + "v = :v",
    f"v IN ({', '.join([':v'] * 101)})",
    "v" + ".v" * 2_000 + " = :v",
    "v" + "[0]" * 1_300 + " = :v",
    "size(" * 700 + "v" + ")" * 700 + " = :v",
    "v[99999999999999999999999] = :v",
    "#" * 4_096,
    ":" * 4_096,
    "v = :v" + " " * 4_096,
    "é" * 2_048,
    "v" * 70_000,
    "SET " + ", ".join(f"a{number} = :v" for number in range(350)),
    "SET v = " + "if_not_exists(v, " * 300 + ":v" + ")" * 300,
    "SET v = " + " + ".join([":v"] * 400),
    "SET v = " + "(" * 1_500 + ":v" + ")" * 1_500,
    "REMOVE " + ", ".join(f"v[{number}]" for number in range(500)),
    ", ".join(f"a{number}" for number in range(900)),
]


@pytest.mark.parametrize("text", EXPRESSION_BOMBS, ids=lambda text: text[:12])
def test_expressions_that_go_on_and_on(server: FuzzServer, text: str) -> None:
    server.furnish()
    for where in (
        ("PutItem", "ConditionExpression"),
        ("UpdateItem", "UpdateExpression"),
        ("GetItem", "ProjectionExpression"),
        ("Query", "KeyConditionExpression"),
        ("Scan", "FilterExpression"),
    ):
        send_expression(server, text, *where)


@pytest.mark.parametrize(
    "number",
    ["1e126", "1e-131", "9" * 39, "9" * 100_000, "1e99999999999999999999", "-1e-99999999999", "0x10", "Infinity", "NaN",
     "", " 1", "1 ", "1_000", "١", "--1", "1e", ".", "+1", "1.", ".5", "00001", "1e+0000000001", "\0", "\ud800"],
    ids=lambda text: repr(text[:12]),
)  # fmt: skip
def test_numbers(server: FuzzServer, number: str) -> None:
    """In an item, a set, a key, an operand and a sort condition."""
    server.furnish()
    held = {"N": number}
    for operation, request in (
        ("PutItem", {"TableName": "hashed", "Item": {"pk": {"S": "n"}, "v": held, "s": {"NS": [number, "1"]}}}),
        ("GetItem", {"TableName": "ranged", "Key": {"pk": {"S": "a"}, "sk": held}}),
        ("UpdateItem", {"TableName": "hashed", "Key": {"pk": {"S": "n"}}, "UpdateExpression": "ADD c :v",
                        "ExpressionAttributeValues": {":v": held}}),
        ("Query", {"TableName": "ranged", "KeyConditionExpression": "pk = :p AND sk > :v",
                   "ExpressionAttributeValues": {":p": {"S": "a"}, ":v": held}}),
    ):  # fmt: skip
        server.judge(rendered(request), server.headers(operation))


@pytest.mark.parametrize("depth", [1, 300])
def test_arithmetic_that_overflows(server: FuzzServer, depth: int) -> None:
    server.furnish()
    add = {"TableName": "hashed", "Key": {"pk": {"S": "big"}}, "UpdateExpression": "ADD n :v"}
    for number in ["9.9e125"] * depth:
        request = {**add, "ExpressionAttributeValues": {":v": {"N": number}}}
        server.judge(rendered(request), server.headers("UpdateItem"))


@pytest.mark.parametrize(
    "body",
    [
        '{"TableName":"hashed","TableName":"ranged","Key":{"pk":{"S":"a"}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"a"},"pk":{"S":"b"}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"a","S":"b"}}}',
        '{"TableName":"hashed","Key":{"":{"S":"a"}}}',
        '{"TableName":"hashed","Key":{"pk":{"":"a"}}}',
        '{"TableName":"hashed","Key":{"pk":{}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"a","N":"1"}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"\\ud800"}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"\\u0000"}}}',
        '{"TableName":"hash\\u0000ed","Key":{"pk":{"S":"a"}}}',
        '{"TableName":"hashed","Key":{"pk\\ud800":{"S":"a"}}}',
        '{"TableName":1e999,"Key":{"pk":{"S":"a"}}}',
        '{"TableName":"hashed","Key":{"pk":{"S":"a"}},"ConsistentRead":1e400}',
        "\ufeff{}",
        "{} {}",
        '{"TableName":"hashed"',
        '{"TableName":"hashed",}',
        "{'TableName':'hashed'}",
        "[" * 10 + "]" * 10,
        "0",
        '"text"',
    ],
)
def test_json_that_is_almost_right(server: FuzzServer, body: str) -> None:
    server.furnish()
    for name in ("GetItem", "DeleteItem", "UpdateItem"):
        server.judge(body.encode(), server.headers(name))


@pytest.mark.parametrize("field", ["Limit", "Segment", "TotalSegments"])
@pytest.mark.parametrize("number", [0, -1, 1.5, 2**31, 2**63, -(2**63), 2**64, 10**30, "5", True, None, [], 1e300])
def test_counts(server: FuzzServer, field: str, number: Any) -> None:
    server.furnish()
    request = {"TableName": "ranged", "Segment": 0, "TotalSegments": 1, field: number}
    server.judge(rendered(request), server.headers("Scan"))


def test_large_items_and_requests(server: FuzzServer) -> None:
    server.furnish()
    for size in (409_600, 409_700, 5_000_000):
        item = {"pk": {"S": "large"}, "v": {"S": "x" * size}}
        assert server.judge(rendered({"TableName": "hashed", "Item": item}), server.headers("PutItem")) == 400
        item = {"pk": {"S": "x" * size}}
        assert server.judge(rendered({"TableName": "hashed", "Item": item}), server.headers("PutItem")) == 400
    many = {f"a{number}": {"NULL": True} for number in range(100_000)}
    request = {"TableName": "hashed", "Item": {"pk": {"S": "m"}, **many}}
    assert server.judge(rendered(request), server.headers("PutItem")) == 400

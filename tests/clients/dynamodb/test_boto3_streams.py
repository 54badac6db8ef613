"""boto3 and change streams: read from the beginning to the tip while writers write, across restarts, and refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess

pytestmark = pytest.mark.clients

BOTH = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}


def s(text: str) -> dict[str, str]:
    return {"S": text}


def n(number: Any) -> dict[str, str]:
    return {"N": str(number)}


def stream_of(client: Any, table: str) -> str:
    arn: str = client.describe_table(TableName=table)["Table"]["LatestStreamArn"]
    return arn


def shards(streams: Any, arn: str) -> list[dict[str, Any]]:
    """All shards of a stream, parents before children."""
    found: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    while True:
        described = streams.describe_stream(StreamArn=arn, **more)["StreamDescription"]
        found += described["Shards"]
        if "LastEvaluatedShardId" not in described:
            return found
        more = {"ExclusiveStartShardId": described["LastEvaluatedShardId"]}


def iterator(streams: Any, arn: str, kind: str = "TRIM_HORIZON", sequence: str | None = None) -> str:
    (shard,) = shards(streams, arn)
    more = {} if sequence is None else {"SequenceNumber": sequence}
    found: str = streams.get_shard_iterator(StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType=kind, **more)[
        "ShardIterator"
    ]
    return found


def pages(streams: Any, start: str | None, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Pages until one is empty."""
    more = {} if limit is None else {"Limit": limit}
    while start is not None:
        page = streams.get_records(ShardIterator=start, **more)
        yield page
        if not page["Records"]:
            return
        start = page.get("NextShardIterator")


def records(streams: Any, start: str | None, limit: int | None = None) -> list[dict[str, Any]]:
    return [record for page in pages(streams, start, limit) for record in page["Records"]]


def replay(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a table holds whose whole history this is; each old image must be what was there."""
    state: dict[str, dict[str, Any]] = {}
    for record in found:
        change = record["dynamodb"]
        key = change["Keys"]["pk"]["S"]
        assert change.get("OldImage") == state.get(key), record
        assert record["eventName"] == (
            "REMOVE" if "NewImage" not in change else "MODIFY" if "OldImage" in change else "INSERT"
        )
        if "NewImage" in change:
            state[key] = change["NewImage"]
        else:
            del state[key]
    return state


@pytest.fixture
def watched(client: Any, create: Callable[..., str]) -> str:
    """An empty table whose changes are captured with both images."""
    return create(client, "pk", StreamSpecification=BOTH)


# -- what a record is


def test_a_record_tells_everything(client: Any, streams: Any, watched: str) -> None:
    before = int(time.time())
    key = {"pk": s("k")}
    client.put_item(TableName=watched, Item={**key, "v": n(1), "raw": {"B": b"\x00\xff"}})
    client.update_item(
        TableName=watched, Key=key, UpdateExpression="SET v = :v", ExpressionAttributeValues={":v": n(2)}
    )
    client.delete_item(TableName=watched, Key=key)
    found = records(streams, iterator(streams, stream_of(client, watched)))
    assert [record["eventName"] for record in found] == ["INSERT", "MODIFY", "REMOVE"]
    numbers = [record["dynamodb"]["SequenceNumber"] for record in found]
    assert numbers == sorted(numbers, key=int)
    assert all(21 <= len(number) <= 40 and number.isdigit() for number in numbers)
    assert len({record["eventID"] for record in found}) == 3
    first, second, third = (record["dynamodb"] for record in found)
    one = {**key, "v": n(1), "raw": {"B": b"\x00\xff"}}
    two = {**one, "v": n(2)}
    assert (first.get("OldImage"), first.get("NewImage")) == (None, one)
    assert (second.get("OldImage"), second.get("NewImage")) == (one, two)
    assert (third.get("OldImage"), third.get("NewImage")) == (two, None)
    for record in found:
        assert record["eventSource"] == "aws:dynamodb"
        assert record["awsRegion"] == "eu-central-1"
        assert record["eventVersion"]
        assert record["dynamodb"]["Keys"] == key
        assert record["dynamodb"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
        assert record["dynamodb"]["SizeBytes"] > 0
        assert before - 1 <= record["dynamodb"]["ApproximateCreationDateTime"].timestamp() <= time.time() + 1
        assert "userIdentity" not in record


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", []),
        ("NEW_IMAGE", ["NewImage"]),
        ("OLD_IMAGE", ["OldImage"]),
        ("NEW_AND_OLD_IMAGES", ["NewImage", "OldImage"]),
    ],
)
def test_views(client: Any, streams: Any, create: Callable[..., str], view: str, images: list[str]) -> None:
    table = create(client, "pk", "sk", StreamSpecification={"StreamEnabled": True, "StreamViewType": view})
    key = {"pk": s("p"), "sk": s("s")}
    for value in (1, 2):
        client.put_item(TableName=table, Item={**key, "v": n(value)})
    arn = stream_of(client, table)
    described = streams.describe_stream(StreamArn=arn)["StreamDescription"]
    assert described["StreamViewType"] == view
    assert [element["AttributeName"] for element in described["KeySchema"]] == ["pk", "sk"]
    (_, modified) = records(streams, iterator(streams, arn))
    change = modified["dynamodb"]
    assert change["Keys"] == key
    assert sorted(name for name in change if name.endswith("Image")) == images
    if "NewImage" in images:
        assert change["NewImage"]["v"] == n(2)
    if "OldImage" in images:
        assert change["OldImage"]["v"] == n(1)


def test_what_changes_nothing_makes_no_record(client: Any, streams: Any, watched: str) -> None:
    item = {"pk": s("k"), "n": n("1"), "set": {"SS": ["a", "b"]}}
    client.put_item(TableName=watched, Item=item)
    client.put_item(TableName=watched, Item={**item, "n": n("1.0"), "set": {"SS": ["b", "a"]}})
    client.delete_item(TableName=watched, Key={"pk": s("not there")})
    client.update_item(TableName=watched, Key={"pk": s("k")}, UpdateExpression="REMOVE nothing")
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        client.delete_item(TableName=watched, Key={"pk": s("k")}, ConditionExpression="attribute_not_exists(pk)")
    assert len(records(streams, iterator(streams, stream_of(client, watched)))) == 1


def test_batches_and_transactions_make_a_record_per_item(client: Any, streams: Any, watched: str) -> None:
    client.batch_write_item(RequestItems={watched: [{"PutRequest": {"Item": {"pk": s(f"b{i}")}}} for i in range(10)]})
    client.transact_write_items(
        TransactItems=[{"Put": {"TableName": watched, "Item": {"pk": s(f"t{i}")}}} for i in range(90)]
    )
    start = iterator(streams, stream_of(client, watched))
    found = records(streams, start, limit=7)  # pages end in the middle of the transaction, and lose nothing
    assert sorted(record["dynamodb"]["Keys"]["pk"]["S"] for record in found) == sorted(
        [*(f"b{i}" for i in range(10)), *(f"t{i}" for i in range(90))]
    )
    numbers = [int(record["dynamodb"]["SequenceNumber"]) for record in found]
    assert numbers == sorted(set(numbers))


def test_expiry_is_marked_as_the_services(
    client: Any, streams: Any, watched: str, eventually: Callable[..., Any]
) -> None:
    client.update_time_to_live(TableName=watched, TimeToLiveSpecification={"AttributeName": "expires", "Enabled": True})
    item = {"pk": s("k"), "expires": n(int(time.time()) - 60)}
    client.put_item(TableName=watched, Item=item)
    arn = stream_of(client, watched)
    found = eventually(lambda: len(got := records(streams, iterator(streams, arn))) == 2 and got)
    assert found[1]["eventName"] == "REMOVE"
    assert found[1]["dynamodb"]["OldImage"] == item
    assert found[1]["userIdentity"] == {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}


# -- where a reader starts


def test_the_four_kinds_of_iterators(client: Any, streams: Any, watched: str) -> None:
    arn = stream_of(client, watched)
    latest = iterator(streams, arn, "LATEST")
    for i in range(5):
        client.put_item(TableName=watched, Item={"pk": s(str(i))})

    def names(found: list[dict[str, Any]]) -> list[str]:
        return [record["dynamodb"]["Keys"]["pk"]["S"] for record in found]

    everything = records(streams, iterator(streams, arn))
    assert names(everything) == ["0", "1", "2", "3", "4"]
    assert names(records(streams, latest)) == ["0", "1", "2", "3", "4"]
    middle = everything[2]["dynamodb"]["SequenceNumber"]
    assert names(records(streams, iterator(streams, arn, "AT_SEQUENCE_NUMBER", middle))) == ["2", "3", "4"]
    assert names(records(streams, iterator(streams, arn, "AFTER_SEQUENCE_NUMBER", middle))) == ["3", "4"]
    assert records(streams, iterator(streams, arn, "LATEST")) == []


def test_a_page_has_a_limit_and_a_next(client: Any, streams: Any, watched: str) -> None:
    for i in range(10):
        client.put_item(TableName=watched, Item={"pk": s(str(i))})
    start = iterator(streams, stream_of(client, watched))
    sizes = [len(page["Records"]) for page in pages(streams, start, limit=4)]
    assert sizes == [4, 4, 2, 0]
    again = streams.get_records(ShardIterator=start, Limit=1)["Records"]
    assert again == streams.get_records(ShardIterator=start, Limit=1)["Records"]


def test_an_open_shard_has_no_end(client: Any, streams: Any, watched: str) -> None:
    (page,) = pages(streams, iterator(streams, stream_of(client, watched)))
    assert page["NextShardIterator"]
    client.put_item(TableName=watched, Item={"pk": s("later")})
    assert len(streams.get_records(ShardIterator=page["NextShardIterator"])["Records"]) == 1


# -- while writers write


def test_from_the_beginning_to_the_tip_while_writers_write(client: Any, streams: Any, watched: str) -> None:
    writers, writes, names = 6, 60, 10
    done = threading.Event()
    failures: list[BaseException] = []

    def write(who: int) -> None:
        try:
            for i in range(writes):
                key = {"pk": s(f"{who}.{i % names}")}
                if i % 7 == 6:
                    client.delete_item(TableName=watched, Key=key)
                elif i % 3 == 2:
                    client.update_item(
                        TableName=watched,
                        Key=key,
                        UpdateExpression="ADD hits :one SET latest = :i",
                        ExpressionAttributeValues={":one": n(1), ":i": n(i)},
                    )
                elif i % 5 == 4:
                    other = {"pk": s(f"{who}.{(i + 1) % names}")}
                    client.transact_write_items(
                        TransactItems=[
                            {"Put": {"TableName": watched, "Item": {**k, "i": n(i), "t": {"BOOL": True}}}}
                            for k in (key, other)
                        ]
                    )
                else:
                    client.put_item(TableName=watched, Item={**key, "i": n(i)})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(who,)) for who in range(writers)]
    arn = stream_of(client, watched)
    position: str = iterator(streams, arn)
    for thread in threads:
        thread.start()
    watcher = threading.Thread(target=lambda: ([thread.join() for thread in threads], done.set()))
    watcher.start()
    followed: list[dict[str, Any]] = []
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        over = done.is_set()  # checked before the page is read: an empty page then means the end
        page = streams.get_records(ShardIterator=position, Limit=50)
        followed += page["Records"]
        position = page["NextShardIterator"]
        if over and not page["Records"]:
            break
    watcher.join()
    assert failures == []

    assert followed == records(streams, iterator(streams, arn))
    numbers = [int(record["dynamodb"]["SequenceNumber"]) for record in followed]
    assert numbers == sorted(set(numbers))
    held = {
        item["pk"]["S"]: item
        for page in client.get_paginator("scan").paginate(TableName=watched, ConsistentRead=True)
        for item in page["Items"]
    }
    assert replay(followed) == held
    assert len(followed) >= writers * writes // 2


# -- streams themselves


def test_streams_are_listed_and_described(client: Any, streams: Any, watched: str) -> None:
    arn = stream_of(client, watched)
    (listed,) = streams.list_streams(TableName=watched)["Streams"]
    assert listed == {"StreamArn": arn, "TableName": watched, "StreamLabel": arn.rsplit("/", 1)[1]}
    described = streams.describe_stream(StreamArn=arn)["StreamDescription"]
    assert described["StreamStatus"] == "ENABLED"
    assert described["TableName"] == watched
    assert described["CreationRequestDateTime"].timestamp() <= time.time() + 1
    (shard,) = described["Shards"]
    assert "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    assert shard["SequenceNumberRange"]["StartingSequenceNumber"].isdigit()


def test_all_streams_in_pages(client: Any, streams: Any, create: Callable[..., str]) -> None:
    made = {stream_of(client, create(client, "pk", StreamSpecification=BOTH)) for _ in range(4)}
    found: list[str] = []
    more: dict[str, Any] = {}
    while True:
        page = streams.list_streams(Limit=3, **more)
        found += [listed["StreamArn"] for listed in page["Streams"]]
        if "LastEvaluatedStreamArn" not in page:
            break
        more = {"ExclusiveStartStreamArn": page["LastEvaluatedStreamArn"]}
    assert made <= set(found)
    assert len(found) == len(set(found))


def test_a_stream_that_was_switched_off_can_be_read_to_its_end(client: Any, streams: Any, watched: str) -> None:
    arn = stream_of(client, watched)
    client.put_item(TableName=watched, Item={"pk": s("before")})
    client.update_table(TableName=watched, StreamSpecification={"StreamEnabled": False})
    client.put_item(TableName=watched, Item={"pk": s("between")})
    client.update_table(TableName=watched, StreamSpecification=BOTH)
    client.put_item(TableName=watched, Item={"pk": s("after")})
    again = stream_of(client, watched)
    assert again != arn
    assert len(streams.list_streams(TableName=watched)["Streams"]) == 2

    described = streams.describe_stream(StreamArn=arn)["StreamDescription"]
    assert described["StreamStatus"] == "DISABLED"
    assert described["Shards"][0]["SequenceNumberRange"]["EndingSequenceNumber"]
    found: list[str] = []
    position: str | None = iterator(streams, arn)
    while position is not None:  # a closed shard ends: the last page has no next
        page = streams.get_records(ShardIterator=position)
        found += [record["dynamodb"]["Keys"]["pk"]["S"] for record in page["Records"]]
        position = page.get("NextShardIterator")
    assert found == ["before"]
    assert [r["dynamodb"]["Keys"]["pk"]["S"] for r in records(streams, iterator(streams, again))] == ["after"]


def test_a_stream_outlives_its_table(client: Any, streams: Any, watched: str) -> None:
    arn = stream_of(client, watched)
    client.put_item(TableName=watched, Item={"pk": s("kept")})
    client.delete_table(TableName=watched)
    found = records(streams, iterator(streams, arn))
    assert [record["dynamodb"]["NewImage"] for record in found] == [{"pk": s("kept")}]


# -- refused


def test_what_a_reader_may_not_ask(client: Any, streams: Any, watched: str, refuses: Any) -> None:
    arn = stream_of(client, watched)
    (shard,) = shards(streams, arn)
    with refuses("ResourceNotFoundException"):
        streams.describe_stream(StreamArn=f"{arn[:-1]}{(int(arn[-1]) + 1) % 10}")
    with refuses("ResourceNotFoundException"):
        streams.get_shard_iterator(StreamArn=arn, ShardId="shardId-" + "9" * 20, ShardIteratorType="LATEST")
    with refuses("ValidationException"):
        streams.get_shard_iterator(StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="AT_SEQUENCE_NUMBER")
    with refuses("ValidationException"):
        streams.get_records(ShardIterator="not an iterator")
    with refuses("ValidationException"):
        streams.get_records(ShardIterator=iterator(streams, arn)[:-4] + "AAAA")


# -- restarts


@pytest.mark.parametrize("kill", [False, True])
def test_iterators_survive_a_restart(
    tmp_path: Path, connect: Callable[..., Any], create: Callable[..., str], kill: bool
) -> None:
    data = tmp_path / "data"
    with ServerProcess.tailrace(data) as server:
        client, streams = connect(server.url), connect(server.url, "dynamodbstreams")
        table = create(client, "pk", StreamSpecification=BOTH)
        for i in range(20):
            client.put_item(TableName=table, Item={"pk": s(f"{i:02}")})
        arn = stream_of(client, table)
        page = streams.get_records(ShardIterator=iterator(streams, arn), Limit=8)
        seen, position = page["Records"], page["NextShardIterator"]
        tip = iterator(streams, arn, "LATEST")
        if kill:
            server.kill()
    with ServerProcess.tailrace(data) as server:
        client, streams = connect(server.url), connect(server.url, "dynamodbstreams")
        assert stream_of(client, table) == arn
        client.put_item(TableName=table, Item={"pk": s("after")})
        seen += records(streams, position)
        names = [record["dynamodb"]["Keys"]["pk"]["S"] for record in seen]
        assert names == [*(f"{i:02}" for i in range(20)), "after"]
        assert [r["dynamodb"]["Keys"]["pk"]["S"] for r in records(streams, tip)] == ["after"]
        assert seen == records(streams, iterator(streams, arn))


def test_an_iterator_of_another_database_is_refused(
    tmp_path: Path, connect: Callable[..., Any], create: Callable[..., str], refuses: Any
) -> None:
    kept: list[tuple[Any, str]] = []
    with ServerProcess.tailrace(tmp_path / "one") as one, ServerProcess.tailrace(tmp_path / "two") as two:
        for server in (one, two):
            client, streams = connect(server.url), connect(server.url, "dynamodbstreams")
            table = create(client, "pk", StreamSpecification=BOTH)
            client.put_item(TableName=table, Item={"pk": s("k")})
            kept.append((streams, iterator(streams, stream_of(client, table))))
        (first, _), (_, foreign) = kept
        with pytest.raises(first.exceptions.ClientError):
            first.get_records(ShardIterator=foreign)

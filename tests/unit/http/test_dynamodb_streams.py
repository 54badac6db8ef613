"""The four operations of DynamoDB Streams: what a reader sees, what an iterator survives, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.access import SYSTEM, Permission, Principal
from tailrace.clock import ManualClock
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.errors import Error, NotFound
from tailrace.http.dynamodb import errors, streams
from tailrace.http.dynamodb.context import Context
from tailrace.tables import change
from tailrace.tables.change import TTL
from tailrace.tables.change_stream import ChangeStream, DisableStream, EnableStream
from tailrace.tables.change_trimming import PruneStream
from tailrace.tables.lifecycle import DeleteTable
from tailrace.tables.seal import FindSecret
from tests.unit.tables.changes import define, item, opened, put, write

REGION = "eu-west-1"


class Blocking(Context):
    """A context that runs everything at once, on no event loop that the database would have to be attached to."""

    region = REGION

    async def execute(self, command: Command[Any] | Query[Any]) -> Any:
        return self.db.execute(command, self.principal)


class Client:
    """Asks as an SDK does."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def ask(self, name: str, **request: Any) -> dict[str, Any]:
        operation = streams.OPERATIONS[name]
        checked = operation.shape.check(request)

        async def main() -> Any:
            return await operation.run(Blocking(self.db, SYSTEM), checked)

        answer = asyncio.run(main())
        return msgspec.json.decode(answer if isinstance(answer, bytes) else msgspec.json.encode(answer))

    def refused(self, name: str, **request: Any) -> tuple[str, str]:
        with pytest.raises(Error) as caught:
            self.ask(name, **request)
        return errors.exception(caught.value), str(caught.value)

    def arn(self, stream: ChangeStream) -> str:
        return f"arn:aws:dynamodb:{REGION}:123456789012:table/{stream.name}/stream/{stream.label}"

    def shard(self, stream: ChangeStream) -> dict[str, Any]:
        (shard,) = self.ask("DescribeStream", StreamArn=self.arn(stream))["StreamDescription"]["Shards"]
        return shard

    def iterator(self, stream: ChangeStream, kind: str = "TRIM_HORIZON", number: str | None = None) -> str:
        more = {} if number is None else {"SequenceNumber": number}
        answer = self.ask(
            "GetShardIterator",
            StreamArn=self.arn(stream),
            ShardId=streams.shard_id(stream),
            ShardIteratorType=kind,
            **more,
        )
        return answer["ShardIterator"]

    def records(self, iterator: str, **more: Any) -> tuple[list[dict[str, Any]], str | None]:
        answer = self.ask("GetRecords", ShardIterator=iterator, **more)
        return answer["Records"], answer.get("NextShardIterator")

    def everything(self, iterator: str | None, limit: int = 1000) -> list[str]:
        found: list[str] = []
        while iterator is not None:
            records, iterator = self.records(iterator, Limit=limit)
            if not records:
                break
            found += (record["dynamodb"]["Keys"]["pk"]["S"] for record in records)
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with opened(data_dir, clock) as database:
        define(database)
        yield database


@pytest.fixture
def client(db: Database) -> Client:
    return Client(db)


@pytest.fixture
def stream(db: Database) -> ChangeStream:
    return db.execute(EnableStream("orders"))


# -- GetRecords


def test_a_record_looks_like_the_services(db: Database, client: Client, stream: ChangeStream) -> None:
    put(db, 1, b={"B": b"\x00\xff"}, n={"N": "1"})
    put(db, 1, n={"N": "2"})
    write(db, "k1", by=TTL)
    records, following = client.records(client.iterator(stream))
    inserted, modified, removed = records
    assert following is not None
    assert inserted == {
        "eventID": inserted["eventID"],
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": REGION,
        "dynamodb": {
            "ApproximateCreationDateTime": 1_700_000_000,
            "Keys": {"pk": {"S": "k1"}},
            "NewImage": {"pk": {"S": "k1"}, "b": {"B": "AP8="}, "n": {"N": "1"}},
            "SequenceNumber": inserted["dynamodb"]["SequenceNumber"],
            "SizeBytes": inserted["dynamodb"]["SizeBytes"],
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
    }
    assert modified["dynamodb"]["OldImage"] == inserted["dynamodb"]["NewImage"]
    assert modified["dynamodb"]["NewImage"] == {"pk": {"S": "k1"}, "n": {"N": "2"}}
    assert "NewImage" not in removed["dynamodb"]
    assert removed["userIdentity"] == {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
    assert "userIdentity" not in modified
    assert len({record["eventID"] for record in records}) == 3
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    assert all(21 <= len(number) <= 40 for number in numbers)
    assert numbers == sorted(numbers) == [str(int(number)) for number in numbers]


def test_a_page_may_end_inside_a_transaction(db: Database, client: Client, stream: ChangeStream) -> None:
    put(db, 1)
    put(db, *range(100, 250))
    put(db, 2)
    expected = ["k1", *(f"k{n}" for n in range(100, 250)), "k2"]
    for limit in (1, 7, 100, 151, 152, 1000):
        assert client.everything(client.iterator(stream), limit) == expected, limit
    records, _ = client.records(client.iterator(stream), Limit=100)
    assert len(records) == 100


def test_a_page_holds_a_megabyte_and_at_least_one_record(db: Database, client: Client, stream: ChangeStream) -> None:
    large = {"S": "x" * 300_000}
    put(db, 0, 1, 2, 3, 4, text=large)
    put(db, 5, text=large)
    records, following = client.records(client.iterator(stream))
    assert len(records) == 3
    assert following is not None
    assert client.everything(client.iterator(stream)) == [f"k{n}" for n in range(6)]


def test_a_closed_shard_ends(db: Database, client: Client, stream: ChangeStream) -> None:
    latest = client.iterator(stream, "LATEST")
    put(db, 1, 2)
    db.execute(DisableStream("orders"))
    assert client.records(latest)[1] is None
    records, following = client.records(client.iterator(stream), Limit=1)
    assert (len(records), following is not None) == (1, True)
    records, following = client.records(following or "")
    assert (len(records), following) == (1, None)
    shard = client.shard(stream)
    assert shard["SequenceNumberRange"]["EndingSequenceNumber"] == records[-1]["dynamodb"]["SequenceNumber"]
    db.execute(DeleteTable("orders"))
    assert client.everything(client.iterator(stream)) == ["k1", "k2"]


def test_an_open_shard_goes_on(db: Database, client: Client, stream: ChangeStream) -> None:
    iterator: str | None = client.iterator(stream)
    for number in range(3):
        records, iterator = client.records(iterator or "")
        assert records == []
        put(db, number)
        records, iterator = client.records(iterator or "")
        assert [record["dynamodb"]["Keys"]["pk"]["S"] for record in records] == [f"k{number}"]


# -- iterators


def test_the_four_kinds_of_iterator(db: Database, client: Client, stream: ChangeStream) -> None:
    put(db, 1, 2)
    put(db, 3)
    latest = client.iterator(stream, "LATEST")
    put(db, 4)
    records, _ = client.records(client.iterator(stream))
    numbers = [record["dynamodb"]["SequenceNumber"] for record in records]
    assert client.everything(latest) == ["k4"]
    for index, number in enumerate(numbers):
        expected = ["k1", "k2", "k3", "k4"][index:]
        assert client.everything(client.iterator(stream, "AT_SEQUENCE_NUMBER", number)) == expected
        assert client.everything(client.iterator(stream, "AFTER_SEQUENCE_NUMBER", number)) == expected[1:]


def test_an_empty_shard_starts_before_its_first_record(db: Database, client: Client, stream: ChangeStream) -> None:
    start = client.shard(stream)["SequenceNumberRange"]["StartingSequenceNumber"]
    iterators = [client.iterator(stream, kind, start) for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")]
    put(db, 1)
    for iterator in iterators:
        assert client.everything(iterator) == ["k1"]
    start = client.shard(stream)["SequenceNumberRange"]["StartingSequenceNumber"]
    assert client.everything(client.iterator(stream, "AT_SEQUENCE_NUMBER", start)) == ["k1"]


def test_a_shard_that_was_emptied_starts_after_what_it_had(db: Database, client: Client, stream: ChangeStream) -> None:
    seen = streams.sequence_number(put(db, 1), 0)
    db.execute(PruneStream("orders"))
    ask = {"StreamArn": client.arn(stream), "ShardId": streams.shard_id(stream)}
    refused = client.refused("GetShardIterator", **ask, ShardIteratorType="AT_SEQUENCE_NUMBER", SequenceNumber=seen)
    assert refused[0] == "TrimmedDataAccessException"
    start = client.shard(stream)["SequenceNumberRange"]["StartingSequenceNumber"]
    assert start > seen
    put(db, 2)
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert client.everything(client.iterator(stream, kind, start)) == ["k2"]


def test_iterators_expire_and_are_renewed(client: Client, clock: ManualClock, stream: ChangeStream) -> None:
    iterator = client.iterator(stream)
    clock.advance(15 * 60)
    _, following = client.records(iterator)
    clock.advance(1)
    assert client.refused("GetRecords", ShardIterator=iterator)[0] == "ExpiredIteratorException"
    client.records(following or "")


def test_iterators_survive_a_restart(data_dir: Path, clock: ManualClock) -> None:
    with opened(data_dir, clock) as db:
        define(db)
        stream = db.execute(EnableStream("orders"))
        put(db, 1, 2, 3)
        _, iterator = Client(db).records(Client(db).iterator(stream), Limit=2)
    with opened(data_dir, clock) as db:
        assert Client(db).everything(iterator) == ["k3"]


def test_iterators_of_another_database_are_refused(tmp_path: Path, clock: ManualClock) -> None:
    iterators = []
    for name in ("one", "other"):
        with opened(tmp_path / name, clock) as db:
            define(db)
            stream = db.execute(EnableStream("orders"))
            put(db, 1)
            iterators.append(Client(db).iterator(stream))
            if name == "other":
                refused = Client(db).refused("GetRecords", ShardIterator=iterators[0])
                assert refused == ("ValidationException", "Invalid ShardIterator")
                assert Client(db).everything(iterators[1]) == ["k1"]


def test_iterators_that_were_tampered_with_are_refused(client: Client, stream: ChangeStream) -> None:
    good = client.iterator(stream)
    first, fifth = ("B" if good[at] == "A" else "A" for at in (0, 20))  # other than they were, whatever the seal is
    wrong = [good[:-1], good[:-4], good + "AAAA", first + good[1:], good[:20] + fifth + good[21:], "x", "ä", "=" * 8]
    for text in wrong:
        assert client.refused("GetRecords", ShardIterator=text) == ("ValidationException", "Invalid ShardIterator")


def test_iterators_cannot_be_made_up(db: Database, client: Client, stream: ChangeStream, clock: ManualClock) -> None:
    put(db, 1)
    client.iterator(stream)
    secret = db.execute(FindSecret())
    assert secret is not None and len(secret) == 32
    good = streams.ShardIterator(stream.name, stream.label, stream.epoch, stream.first, 0, clock.now_ms())
    assert client.everything(streams.sealed(good, secret)) == ["k1"]
    for text in (
        streams.sealed(good, b"guessed"),
        streams.sealed(msgspec.structs.replace(good, sequence=-1), secret),
        streams.sealed(msgspec.structs.replace(good, sequence=10**18), secret),
        streams.sealed(msgspec.structs.replace(good, index=-1), secret),
        streams.sealed(msgspec.structs.replace(good, index=10**12), secret),
        streams.sealed(msgspec.structs.replace(good, at_ms=clock.now_ms() + 86_400_000), secret),
    ):
        assert client.refused("GetRecords", ShardIterator=text) == ("ValidationException", "Invalid ShardIterator")


def test_whoever_may_read_may_have_the_first_iterator(db: Database, stream: ChangeStream) -> None:
    reader = Principal("reader", frozenset((Permission.READ,)))

    async def main() -> Any:
        request = {
            "StreamArn": Client(db).arn(stream),
            "ShardId": streams.shard_id(stream),
            "ShardIteratorType": "LATEST",
        }
        return await streams.OPERATIONS["GetShardIterator"].run(Blocking(db, reader), request)

    assert asyncio.run(main())["ShardIterator"]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_a_large_transaction_is_decoded_as_far_as_it_is_read(
    db: Database, client: Client, stream: ChangeStream, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(db, 0)
    write(db, *(item(number) for number in range(1, 8)))
    write(db, "k1", by=TTL)
    plain, _ = client.records(client.iterator(stream))
    decoded = []
    real = change.record

    def counted(raw: msgspec.Raw) -> change.StoredRecord:
        decoded.append(raw)
        return real(raw)

    monkeypatch.setattr(streams, "SKIMMED_BYTES", 0)
    monkeypatch.setattr(change, "record", counted)
    found: list[dict[str, Any]] = []
    iterator: str | None = client.iterator(stream)
    while iterator is not None and len(found) < len(plain):
        decoded.clear()
        records, iterator = client.records(iterator, Limit=limit)
        found += records
        assert len(decoded) <= limit + 1
    assert found == plain


def test_trimmed_records_are_reported(db: Database, client: Client, stream: ChangeStream) -> None:
    early = client.iterator(stream)
    sequences = [put(db, number) for number in range(4)]
    numbers = [streams.sequence_number(sequence, 0) for sequence in sequences]
    db.execute(PruneStream("orders", sequences[1]))
    assert client.refused("GetRecords", ShardIterator=early)[0] == "TrimmedDataAccessException"
    ask = {"StreamArn": client.arn(stream), "ShardId": streams.shard_id(stream)}
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        refused = client.refused("GetShardIterator", **ask, ShardIteratorType=kind, SequenceNumber=numbers[0])
        assert refused[0] == "TrimmedDataAccessException"
    assert client.everything(client.iterator(stream)) == ["k2", "k3"]
    assert client.shard(stream)["SequenceNumberRange"] == {"StartingSequenceNumber": numbers[2]}


def test_what_an_iterator_may_not_ask(db: Database, client: Client, stream: ChangeStream) -> None:
    put(db, 1)
    number = streams.sequence_number(1, 0)
    good = {"StreamArn": client.arn(stream), "ShardId": streams.shard_id(stream), "ShardIteratorType": "LATEST"}
    cases = [
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER"}, "ValidationException"),
        ({"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}, "ValidationException"),
        ({"SequenceNumber": number}, "ValidationException"),
        ({"ShardIteratorType": "TRIM_HORIZON", "SequenceNumber": number}, "ValidationException"),
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "x" * 25}, "ValidationException"),
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": "9" * 25}, "ValidationException"),
        ({"ShardIteratorType": "AT_SEQUENCE_NUMBER", "SequenceNumber": f"1{'9' * 24}"}, "ValidationException"),
        ({"ShardIteratorType": "funny"}, "ValidationException"),
        ({"StreamArn": "x" * 50}, "ValidationException"),
        ({"StreamArn": client.arn(stream).replace("orders", "others")}, "ResourceNotFoundException"),
        ({"ShardId": "x" * 40}, "ResourceNotFoundException"),
        ({"ShardId": "x"}, "ValidationException"),
    ]
    for other, expected in cases:
        assert client.refused("GetShardIterator", **(good | other))[0] == expected, other
    iterator = client.iterator(stream)
    for limit in (0, -1, 1001):
        name, message = client.refused("GetRecords", ShardIterator=iterator, Limit=limit)
        assert (name, "'limit'" in message) == ("ValidationException", True)


# -- ListStreams and DescribeStream


def test_streams_are_listed_in_pages(db: Database, client: Client, clock: ManualClock) -> None:
    made = []
    for name in ("bbb", "aaa", "ccc"):
        define(db, name)
        clock.advance(1)
        made.append(db.execute(EnableStream(name)))
    expected = [client.arn(stream) for stream in reversed(made)]
    answer = client.ask("ListStreams")
    assert [each["StreamArn"] for each in answer["Streams"]] == expected
    assert answer["Streams"][0] == {
        "StreamArn": expected[0], "TableName": "ccc", "StreamLabel": made[-1].label,
    }  # fmt: skip
    assert "LastEvaluatedStreamArn" not in answer
    found: list[str] = []
    more: dict[str, Any] = {}
    while True:
        answer = client.ask("ListStreams", Limit=1, **more)
        found += (each["StreamArn"] for each in answer["Streams"])
        if "LastEvaluatedStreamArn" not in answer:
            break
        assert answer["LastEvaluatedStreamArn"] == found[-1]
        more = {"ExclusiveStartStreamArn": found[-1]}
    assert found == expected
    assert "LastEvaluatedStreamArn" not in client.ask("ListStreams", Limit=3)


def test_paging_goes_on_after_a_stream_that_is_gone(db: Database, client: Client, clock: ManualClock) -> None:
    made = []
    for name in ("aaa", "bbb", "ccc"):
        define(db, name)
        clock.advance(1)
        made.append(db.execute(EnableStream(name)))
    last = client.ask("ListStreams", Limit=2)["LastEvaluatedStreamArn"]
    db.execute(DeleteTable("bbb"))
    db.execute(PruneStream("bbb"))
    with pytest.raises(NotFound):
        client.ask("DescribeStream", StreamArn=last)
    rest = client.ask("ListStreams", ExclusiveStartStreamArn=last)["Streams"]
    assert [each["TableName"] for each in rest] == ["aaa"]


def test_streams_of_one_table(db: Database, client: Client, stream: ChangeStream) -> None:
    define(db, "other")
    assert client.ask("ListStreams", TableName="other") == {"Streams": []}
    db.execute(DisableStream("orders"))
    db.execute(EnableStream("orders"))
    listed = client.ask("ListStreams", TableName="orders")["Streams"]
    assert len(listed) == 2
    assert listed[1]["StreamArn"] == client.arn(stream)
    assert client.refused("ListStreams", TableName="nothing")[0] == "ResourceNotFoundException"
    for wrong in ({"Limit": 0}, {"Limit": 101}, {"TableName": "x"}, {"ExclusiveStartStreamArn": "x" * 50}):
        assert client.refused("ListStreams", **wrong)[0] == "ValidationException"


def test_a_stream_is_described(db: Database, client: Client, clock: ManualClock) -> None:
    define(db, "sorted", range_key="at")
    stream = db.execute(EnableStream("sorted", "KEYS_ONLY"))
    described = client.ask("DescribeStream", StreamArn=client.arn(stream))["StreamDescription"]
    assert described == {
        "StreamArn": client.arn(stream),
        "StreamLabel": stream.label,
        "StreamStatus": "ENABLED",
        "StreamViewType": "KEYS_ONLY",
        "CreationRequestDateTime": 1_700_000_000,
        "TableName": "sorted",
        "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
        "Shards": described["Shards"],
    }
    (shard,) = described["Shards"]
    assert 28 <= len(shard["ShardId"]) <= 65
    assert shard["SequenceNumberRange"].keys() == {"StartingSequenceNumber"}
    for more in (
        {"ExclusiveStartShardId": shard["ShardId"]},
        {"ExclusiveStartShardId": "z" * 40},
        {"ShardFilter": {"Type": "CHILD_SHARDS", "ShardId": shard["ShardId"]}},
    ):
        assert client.ask("DescribeStream", StreamArn=client.arn(stream), **more)["StreamDescription"]["Shards"] == []
    db.execute(DisableStream("sorted"))
    described = client.ask("DescribeStream", StreamArn=client.arn(stream), Limit=1)["StreamDescription"]
    assert described["StreamStatus"] == "DISABLED"
    assert described["Shards"][0]["SequenceNumberRange"].keys() == {"StartingSequenceNumber", "EndingSequenceNumber"}


def test_what_cannot_be_described(client: Client, stream: ChangeStream) -> None:
    arn = client.arn(stream)
    other = arn.replace("orders", "others")
    error = client.refused("DescribeStream", StreamArn=other)
    assert error == ("ResourceNotFoundException", f"Requested resource not found: Stream: {other} not found")
    assert client.refused("DescribeStream", StreamArn="x" * 60)[0] == "ValidationException"
    for shard_filter in ({}, {"Type": "CHILD_SHARDS"}, {"ShardId": "x" * 40}, {"Type": "funny", "ShardId": "x" * 40}):
        assert client.refused("DescribeStream", StreamArn=arn, ShardFilter=shard_filter)[0] == "ValidationException"
    name, message = client.refused(
        "DescribeStream", StreamArn=arn, ShardFilter={"Type": "CHILD_SHARDS", "ShardId": "short"}
    )
    assert (name, "shardFilter.shardId" in message) == ("ValidationException", True)


def test_items_are_as_wide_as_the_view(db: Database, client: Client) -> None:
    stream = db.execute(EnableStream("orders", "NEW_IMAGE"))
    write(db, item(1))
    write(db, item(1, a={"S": "x"}))
    records, _ = client.records(client.iterator(stream))
    assert all("OldImage" not in record["dynamodb"] for record in records)
    assert records[1]["dynamodb"]["NewImage"] == item(1, a={"S": "x"})

"""The source, against a real server: tables, topics and streams, batch and streaming, hot and cold."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from deltalake import DeltaTable
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tailrace.spark as ts
from tailrace.bulk.cold_rows import cold_batch
from tailrace.client import Client
from tailrace.cold.check import TIER_APP
from tailrace.cold.reading import files as cold_files
from tailrace.cold.schemas import SCHEMAS
from tailrace.cold.store import Store
from tailrace.cold.writing import commit, write_rows
from tailrace.errors import Conflict, Corrupt, Gone, Invalid
from tailrace.spark import explain
from tailrace.spark.planning import ReadTask
from tailrace.spark.reading import BatchReader
from tailrace.spark.source import TailraceSource
from tailrace.tables.value import item_from_plain
from tests.spark.conftest import create_table
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]
Put = Callable[..., None]

CHANGES = [
    ("offset", "bigint"),
    ("next_offset", "bigint"),
    ("sequence", "bigint"),
    ("index", "int"),
    ("last", "boolean"),
    ("timestamp", "timestamp"),
    ("event", "string"),
    ("principal", "string"),
    ("keys", "struct<id:string>"),
    ("before", "struct<id:string,n:bigint,colour:string>"),
    ("after", "struct<id:string,n:bigint,colour:string>"),
]


def source(server: ServerProcess, **options: str) -> TailraceSource:
    return TailraceSource(CaseInsensitiveDict({"url": server.url, **options}))


def reader(server: ServerProcess, **options: str) -> BatchReader:
    """The reader as Spark's planner makes it, in this process."""
    opened = source(server, **options)
    made = opened.reader(opened.schema())
    assert isinstance(made, BatchReader)
    return made


def rows(made: BatchReader, tasks: list[ReadTask] | None = None) -> list[dict[str, Any]]:
    planned = made.partitions() if tasks is None else tasks
    return [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]


def tier(client: Client, **named: str) -> None:
    """Copy all that is hot into cold storage, as the job does."""
    ((kind, name),) = named.items()
    facts = client.attach(**named)
    place = facts["cold"]["place"]
    store = Store(facts["cold"]["url"])
    generation = facts["cold"]["generation"] + 1
    batches: list[pa.RecordBatch] = []
    ranges = {}
    for part in facts["partitions"]:
        with client.arrow(
            **named, partition=part["partition"], offset=part["tiered"], until=part["next"], form="entries"
        ) as entries:
            facts_of = {"stream": name, "content_type": facts["content_type"]} if kind == "stream" else {}
            batches += [cold_batch(kind, each, partition=part["partition"], **facts_of) for each in entries]
        ranges[part["log"]] = (part["tiered"], part["next"])
    written = write_rows(store, place, [each for each in batches if each.num_rows], file_bytes=1)
    commit(
        store,
        place,
        SCHEMAS[kind],
        written,
        app=TIER_APP,
        generation=generation,
        database=facts["database"],
        metadata={"ranges": json.dumps(ranges)},
    )
    client.tiered(place, generation, ranges)


def keep(client: Client, table: str, count: int) -> int:
    """Let only so many changes stay in the hot log; where it begins now."""
    before = client.logs(table=table)["partitions"][0]["hot"]
    client.alter_retention(table, {"max_count": count})
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        hot: int = client.logs(table=table)["partitions"][0]["hot"]
        if hot > before:
            return hot
        time.sleep(0.1)
    raise AssertionError("nothing was trimmed")


# -- batch


def test_the_changes_of_a_table(client: Client, table: str, put: Put, load: Load) -> None:
    put(1, 2)
    put(1, colour={"S": "red"})
    client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": "k2"}}})
    frame = load(table=table)
    assert [(each.name, each.dataType.simpleString()) for each in frame.schema.fields] == CHANGES
    found = [row.asDict() for row in frame.orderBy("offset").collect()]
    assert [row["event"] for row in found] == ["INSERT", "INSERT", "MODIFY", "REMOVE"]
    assert [row["keys"].id for row in found] == ["k1", "k2", "k1", "k2"]
    assert found[2]["before"].asDict() == {"id": "k1", "n": 1, "colour": None}
    assert found[2]["after"].asDict() == {"id": "k1", "n": 1, "colour": "red"}
    assert found[3]["after"] is None
    assert [row["offset"] for row in found[1:]] == [row["next_offset"] for row in found[:-1]]
    assert all(row["sequence"] == row["next_offset"] - 1 and row["last"] for row in found)


def test_images_in_other_forms(table: str, put: Put, load: Load) -> None:
    put(1, tags={"SS": ["a", "b"]}, big={"N": "12345678901234567890.123456789012345678"}, raw={"B": "AP8="})
    (row,) = load(table=table, images="dynamodb").collect()
    assert json.loads(row.after) == {
        "id": {"S": "k1"}, "n": {"N": "1"}, "tags": {"SS": ["a", "b"]}, "raw": {"B": "AP8="},
        "big": {"N": "12345678901234567890.123456789012345678"},
    }  # fmt: skip
    (row,) = load(table=table, images="json").collect()
    assert json.loads(row.keys) == {"id": "k1"}
    assert '"big":12345678901234567890.123456789012345678' in row.after
    (row,) = (
        load(table=table, images="variant")
        .selectExpr(
            "after:id::string AS id", "after:n::int AS n", "after:tags[1]::string AS tag", "after:raw::binary AS raw",
            "after:big::decimal(38,18) AS big", "before", "to_json(keys) AS keys",
        )
        .collect()
    )  # fmt: skip
    assert (row.id, row.n, row.tag, bytes(row.raw), row.before) == ("k1", 1, "b", b"\x00\xff", None)
    assert (str(row.big), row["keys"]) == ("12345678901234567890.123456789012345678", '{"id":"k1"}')


def test_the_messages_of_a_topic(client: Client, name: str, load: Load) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    for number in range(6):
        client.publish(name, f"m{number}".encode(), partition=number % 2)
    frame = load(topic=name)
    found = frame.orderBy("partition", "offset").collect()
    assert [(row.partition, bytes(row.payload)) for row in found] == [
        (number % 2, f"m{number}".encode()) for number in (0, 2, 4, 1, 3, 5)
    ]
    assert frame.where("partition = 1 and offset >= 1").count() == 2


@pytest.mark.parametrize(
    ("content_type", "appended", "expected"),
    [
        ("application/json", [b'[{"a":1},{"a":2}]', b'{"a":3}'], ['{"a":1}', '{"a":2}', '{"a":3}']),
        ("text/plain", [b"one", b"two"], ["one", "two"]),
        ("application/octet-stream", [b"\x00\xff", b"\x01"], [b"\x00\xff", b"\x01"]),
    ],
)
def test_streams(
    client: Client, name: str, load: Load, content_type: str, appended: list[bytes], expected: list[Any]
) -> None:
    client.create(name, content_type)
    for each in appended:
        client.append(name, each, content_type)
    found = load(stream=name).orderBy("offset", "index").collect()
    assert [bytes(row.value) if isinstance(row.value, bytearray) else row.value for row in found] == expected


def test_nothing_is_an_empty_frame(table: str, load: Load) -> None:
    frame = load(table=table)
    assert frame.count() == 0
    assert frame.where("offset > 5").collect() == []


def test_where_reading_starts_and_ends(client: Client, table: str, put: Put, load: Load, server: ServerProcess) -> None:
    put(*range(10))
    first, tail = (client.logs(table=table)["partitions"][0][name] for name in ("earliest", "next"))
    middle = f'{{"0": {first + 4}}}'
    assert load(table=table, startingOffsets=middle).count() == tail - first - 4
    assert load(table=table, endingOffsets=middle).count() == 4
    assert load(table=table, startingOffsets="latest").count() == 0
    cut = load(table=table).collect()[5].timestamp.timestamp() * 1_000
    after = len([row for row in load(table=table).collect() if row.timestamp.timestamp() * 1_000 >= cut])
    assert load(table=table, startingTimestamp=str(round(cut))).count() == after
    assert load(table=table, endingTimestamp=str(round(cut))).count() == 10 - after


def test_tasks_cut_a_log(table: str, put: Put, load: Load, server: ServerProcess) -> None:
    put(*range(20))
    made = reader(server, table=table, minPartitions="4")
    tasks = made.partitions()
    assert len(tasks) == 4
    assert [row["offset"] for row in rows(made, tasks)] == [row["offset"] for row in rows(reader(server, table=table))]
    frame = load(table=table, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 20


def test_tasks_are_cut_by_records_and_not_by_offsets(
    client: Client, table: str, name: str, put: Put, server: ServerProcess
) -> None:
    """Another table's changes lie between those of this one: offsets are sequences that all tables share."""
    put(*range(6))
    create_table(client, f"{name}-other")
    for number in range(200):
        client.call("PutItem", {"TableName": f"{name}-other", "Item": {"id": {"S": str(number)}}})
    put(*range(6, 12))
    made = reader(server, table=table, minPartitions="4")
    assert [len(list(rows(made, [task]))) for task in made.partitions()] == [3, 3, 3, 3]
    assert len(reader(server, table=table).partitions()) == 1


def test_tasks_that_lie_within_one_entry(client: Client, name: str, server: ServerProcess) -> None:
    client.create(name, "text/plain")
    for size in (100, 3, 40):
        client.append(name, b"x" * size, "text/plain")
    made = reader(server, stream=name, minPartitions="50")
    tasks = made.partitions()
    assert len(tasks) > 40
    assert [len(row["value"]) for row in rows(made, tasks)] == [100, 3, 40]


@pytest.mark.parametrize("again", [0, 2, 9])
def test_a_stream_recreated_between_planning_and_reading(
    client: Client, name: str, server: ServerProcess, again: int
) -> None:
    client.create(name, "text/plain")
    client.append(name, b"before", "text/plain")
    made = reader(server, stream=name)
    tasks = made.partitions()
    client.delete(name)
    client.create(name, "text/plain")
    if again:
        client.append(name, b"after it"[:again], "text/plain")
    with pytest.raises(Conflict, match="is not the one that this query was planned for") as caught:
        rows(made, tasks)
    assert caught.value.code == "LOG_REPLACED"


# -- filters


def test_filters_ask_for_less(client: Client, table: str, put: Put, load: Load, server: ServerProcess) -> None:
    """Another table's writes lie between, so that a change covers more positions than its own."""
    create_table(client, f"{table}_other")
    for number in range(12):
        put(number)
        for _ in range(number % 4):
            client.call("PutItem", {"TableName": f"{table}_other", "Item": {"id": {"S": "x"}}})
    everything = rows(reader(server, table=table))
    sequences = [row["sequence"] for row in everything]
    assert len(sequences) == 12
    for sequence in range(sequences[0] - 1, sequences[-1] + 2):
        for filter_, keep in (
            (GreaterThan, lambda a, b: a > b),
            (GreaterThanOrEqual, lambda a, b: a >= b),
            (LessThan, lambda a, b: a < b),
            (LessThanOrEqual, lambda a, b: a <= b),
            (EqualTo, lambda a, b: a == b),
        ):
            made = reader(server, table=table)
            assert list(made.pushFilters([filter_(("sequence",), sequence)])) == []
            assert [row["sequence"] for row in rows(made)] == [each for each in sequences if keep(each, sequence)]
    middle = everything[8]
    made = reader(server, table=table)
    assert list(made.pushFilters([GreaterThanOrEqual(("offset",), middle["offset"])])) == []
    assert len(rows(made)) == 4  # no more was asked for
    made = reader(server, table=table)
    assert len(list(made.pushFilters([LessThan(("timestamp",), middle["timestamp"])]))) == 1  # Spark looks again
    assert len(rows(made)) == len([row for row in everything if row["timestamp"] < middle["timestamp"]])
    frame = load(table=table).where(f"sequence > {sequences[3]} and sequence <= {sequences[6]} and event = 'INSERT'")
    assert [row.sequence for row in frame.orderBy("sequence").collect()] == sequences[4:7]


# -- typed rows


def test_a_given_schema_makes_attributes_columns(client: Client, table: str, put: Put, load: Load) -> None:
    put(1, price={"N": "12.50"}, tags={"SS": ["a", "b"]}, at={"M": {"x": {"N": "1"}}})
    client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": "k1"}}})
    schema = "id string, price decimal(10,2), tags array<string>, at struct<x: bigint>, none string, _event string"
    one, two = load(schema + ", _sequence bigint", table=table).orderBy("_sequence").collect()
    assert (one.id, str(one.price), sorted(one.tags), one.at.x, one.none) == ("k1", "12.50", ["a", "b"], 1, None)
    assert (two.id, two._event, one._event) == ("k1", "REMOVE", "INSERT")


_RANDOM_ITEM = st.fixed_dictionaries(
    {"id": st.sampled_from([f"k{number}" for number in range(20)])},
    optional={
        "s": st.text(max_size=8),
        "n": st.integers(-(2**63), 2**63 - 1),
        "d": st.decimals(-(10**15), 10**15, allow_nan=False, places=6),
        "f": st.booleans(),
        "l": st.lists(st.integers(-9, 9), max_size=2),
        "m": st.fixed_dictionaries({}, optional={"x": st.integers(-9, 9), "y": st.text(max_size=4)}),
    },
)


def test_typed_columns_against_json(client: Client, table: str, load: Load) -> None:
    """Random items: what the structs have is what the JSON has. Two jobs of Spark for all of them."""
    row = "id string, s string, n bigint, d decimal(38,18), f boolean, l array<bigint>, m struct<x: bigint, y: string>"

    @seed(20)
    @settings(max_examples=3, database=None, deadline=None, phases=[Phase.generate])
    @given(st.lists(_RANDOM_ITEM, min_size=150, max_size=150))
    def write(items: list[dict[str, Any]]) -> None:
        for each in items:
            client.call("PutItem", {"TableName": table, "Item": item_from_plain(each)[0]})

    write()
    typed = load(table=table, rowSchema=row, minPartitions=2).orderBy("sequence", "index").collect()
    texts = load(table=table, images="json").orderBy("sequence", "index").collect()
    assert len(typed) == len(texts) > 100
    for found, text in zip(typed, texts, strict=True):
        assert (found.sequence, found.event, found["keys"].id) == (
            text.sequence,
            text.event,
            json.loads(text["keys"])["id"],
        )
        for name in ("before", "after"):
            expected = None if text[name] is None else json.loads(text[name], parse_float=Decimal)
            got = None if found[name] is None else found[name].asDict(recursive=True)
            if expected is None or got is None:
                assert expected is got
                continue
            inner = expected.get("m")
            shown = {column: expected.get(column) for column in got}
            shown["m"] = None if inner is None else {"x": inner.get("x"), "y": inner.get("y")}
            assert got == shown


def test_a_misfit_names_table_key_sequence_and_column(client: Client, table: str, put: Put, load: Load) -> None:
    put(*range(3), price={"N": "12.345"})
    first = client.logs(table=table)["partitions"][0]["next"] - 3
    with pytest.raises(Exception) as caught:
        load(table=table, rowSchema="id string, price decimal(10,2)").collect()
    message = explain(caught.value)
    assert message.startswith(
        f'table {table!r}, key {{"id":"k0"}}, sequence {first}: column \'after.price\' is decimal(10,2)'
    )
    assert "which cannot hold the number 12.345; give the column a type that holds it" in message
    frame = load("sequence bigint, after struct<price: decimal(38,9), tags: map<string, bigint>>", table=table)
    assert [str(row.after.price) for row in frame.collect()] == ["12.345000000"] * 3
    frame = load(table=table)
    put(9, later={"S": "x"})
    with pytest.raises(Exception) as caught:
        frame.collect()
    assert "there is no column 'after.later' in the inferred schema" in explain(caught.value)
    assert load(table=table).where("after.later = 'x'").count() == 1  # the next query infers it


def test_a_schema_is_inferred(client: Client, name: str, load: Load) -> None:
    client.create(name, "application/json")
    client.append(
        name,
        b'[{"id":"a","n":1,"x":1.5,"ok":true,"l":[1],"s":{"y":"z"}},{"id":"b","n":null,"more":2}]',
        "application/json",
    )
    frame = load(stream=name, inferSchema=True)
    types = {each.name: each.dataType.simpleString() for each in frame.schema.fields}
    assert types == {
        "id": "string",
        "n": "bigint",
        "x": "decimal(38,18)",
        "ok": "boolean",
        "l": "array<bigint>",
        "s": "struct<y:string>",
        "more": "bigint",
        "_offset": "bigint",
        "_next_offset": "bigint",
        "_index": "int",
        "_timestamp": "timestamp",
    }
    one, two = frame.orderBy("_index").collect()
    assert (one.id, one.n, float(one.x), one.ok, one.l, one.s.y, one.more) == ("a", 1, 1.5, True, [1], "z", None)
    assert (two.id, two.n, two.more) == ("b", None, 2)


# -- cold


def test_history_is_read_through_cold_files_and_the_hot_log(
    client: Client, table: str, put: Put, load: Load, server: ServerProcess
) -> None:
    put(*range(30), tags={"SS": ["a"]})
    before = [row.asDict() for row in load(table=table).orderBy("offset").collect()]
    typed = [row.asDict() for row in load(table=table, images="dynamodb").orderBy("offset").collect()]
    tier(client, table=table)
    keep(client, table, 10)
    put(31)
    facts = client.logs(table=table)["partitions"][0]
    assert facts["earliest"] == before[0]["offset"] < facts["hot"]
    made = reader(server, table=table, minPartitions="3")
    tasks = made.partitions()
    assert [task.files is None for task in tasks] == [False, False, False, True, True, True]
    assert [row["offset"] for row in rows(made, tasks)][:30] == [row["offset"] for row in before]
    frame = load(table=table)
    assert [row.asDict() for row in frame.orderBy("offset").collect()][:30] == before
    assert frame.count() == 31
    again = load(table=table, images="dynamodb").orderBy("offset").collect()
    assert [row.asDict() for row in again][:30] == typed
    assert load(table=table).where(f"sequence = {before[5]['sequence']}").count() == 1


def test_what_was_trimmed_after_planning_is_read_from_cold_storage(
    client: Client, table: str, put: Put, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(*range(10))
    made = reader(server, table=table)
    tasks = made.partitions()
    tier(client, table=table)
    hot = keep(client, table, 3)
    fetch = made._fetch._entries

    def refused(wanted: Any, at: int, *rest: Any) -> Any:
        if at < hot:  # as a server answers that has no cold storage at hand
            raise Gone("trimmed", code="OFFSET_TRIMMED")
        return fetch(wanted, at, *rest)

    monkeypatch.setattr(made._fetch, "_entries", refused)
    assert len(rows(made, tasks)) == 10


def test_cold_topics_and_streams(client: Client, name: str, load: Load) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    for number in range(6):
        client.publish(name, f"m{number}".encode(), partition=number % 2)
    client.create(name, "application/json")
    client.append(name, b'[{"a":1},{"a":2}]', "application/json")
    tier(client, topic=name)
    tier(client, stream=name)
    assert load(topic=name).count() == 6
    assert load(stream=name).count() == 2


def test_a_history_whose_cold_part_spark_reads_itself(
    client: Client, table: str, put: Put, load: Load, server: ServerProcess, spark: SparkSession
) -> None:
    put(*range(30))
    tier(client, table=table)
    put(*range(30, 40))
    hot = keep(client, table, 15)
    expected = sorted(load(table=table, images="json").collect())
    found = ts.history(spark, url=server.url, table=table)
    assert found.schema == load(table=table, images="json").schema
    assert sorted(found.collect()) == expected
    assert len(expected) == 40
    assert "FileScan parquet" in plan(found) and "BatchScan tailrace" in plan(found)
    older = ts.history(spark, url=server.url, table=table, endingOffsets={"0": hot})
    assert sorted(older.collect()) == [row for row in expected if row["offset"] < hot]
    assert "BatchScan tailrace" not in plan(older)
    some = ts.history(spark, url=server.url, table=table, startingOffsets={"0": hot - 3}, endingOffsets={"0": hot + 2})
    assert sorted(some.collect()) == [row for row in expected if hot - 3 <= row["offset"] < hot + 2]
    assert ts.history(spark, url=server.url, table=table, images="typed").count() == 40


def test_a_history_of_a_topic_or_stream(client: Client, name: str, server: ServerProcess, spark: SparkSession) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    client.create(name, "text/plain")
    for number in range(6):
        client.publish(name, f"m{number}".encode(), partition=number % 2)
    client.append(name, b"one", "text/plain")
    tier(client, topic=name)
    tier(client, stream=name)
    client.publish(name, b"later", partition=1)
    payloads = sorted(row["payload"] for row in ts.history(spark, url=server.url, topic=name).collect())
    assert payloads == [b"later", *(f"m{number}".encode() for number in range(6))]
    assert [row["value"] for row in ts.history(spark, url=server.url, stream=name).collect()] == ["one"]


def test_a_history_with_a_gap_is_an_error(
    client: Client, table: str, put: Put, server: ServerProcess, spark: SparkSession
) -> None:
    for number in range(3):
        put(number)
        tier(client, table=table)
    put(3)
    hot = keep(client, table, 1)
    assert ts.history(spark, url=server.url, table=table).count() == 4
    where = client.logs(table=table)["cold"]
    listed = cold_files(Store(where["url"]), where["place"], client.logs(table=table)["partitions"][0]["log"])
    kept = DeltaTable(f"{where['url'].removeprefix('file://')}/{where['place']}")
    version = kept.version()
    kept.delete(f"position = {listed[1].position_min}")
    with pytest.raises(Corrupt, match=rf"positions \d+ to {hot} of log \d+ are missing at .*{where['place']}"):
        ts.history(spark, url=server.url, table=table)
    kept.restore(version)  # the database is checked in the end


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())  # type: ignore[operator]


# -- lost data


def test_lost_data_is_an_error_or_passed_over(client: Client, table: str, put: Put, load: Load) -> None:
    put(*range(10))
    first = client.logs(table=table)["partitions"][0]["earliest"]
    client.prune(table, first + 5)
    start = f'{{"0": {first}}}'
    with pytest.raises(Exception) as caught:
        load(table=table, startingOffsets=start).count()
    assert explain(caught.value).startswith(
        f"offset {first} of table '{table}', partition 0, is no longer available: the ear"
    )
    assert load(table=table, startingOffsets=start, failOnDataLoss=False).count() == 4
    assert load(table=table).count() == 4


# -- streaming


def batches(frame: DataFrame, checkpoint: Path, **trigger: Any) -> list[list[Any]]:
    """What each batch of a run brought."""
    seen: list[list[Any]] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: seen.append(batch.orderBy("offset").collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    return [each for each in seen if each]


def test_batches_of_a_bounded_size_and_a_restart(table: str, put: Put, follow: Load, tmp_path: Path) -> None:
    put(*range(7))
    first = batches(follow(table=table, maxRecordsPerTrigger=3), tmp_path / "c")
    assert [len(each) for each in first] == [3, 3, 1]
    put(7, 8)
    second = batches(follow(table=table, maxRecordsPerTrigger=3), tmp_path / "c")
    assert [row.after.n for each in second for row in each] == [7, 8]
    assert batches(follow(table=table), tmp_path / "c") == []


def test_topics_and_streams_as_they_grow(client: Client, name: str, follow: Load, tmp_path: Path) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    client.create(name, "text/plain")
    for number in range(5):
        client.publish(name, f"m{number}".encode(), partition=number % 2)
        client.append(name, f"s{number}".encode())
    topic = batches(follow(topic=name, maxRecordsPerTrigger=2), tmp_path / "t")
    assert sorted(bytes(row.payload) for each in topic for row in each) == [
        f"m{number}".encode() for number in range(5)
    ]
    assert len(topic) > 1
    assert batches(follow(topic=name, startingOffsets="latest"), tmp_path / "l") == []
    stream = batches(follow(stream=name, minPartitions=3), tmp_path / "s")
    assert [row.value for each in stream for row in each] == [f"s{number}" for number in range(5)]


def test_a_start_is_pinned(client: Client, table: str, put: Put, server: ServerProcess) -> None:
    """Spark asks again for the start of a query that has no checkpoint yet."""
    put(1, 2)
    opened = source(server, table=table, consumer=f"c-{table}", startingOffsets="latest")
    start = opened.streamReader(opened.schema()).initialOffset()
    put(3)
    again = opened.streamReader(opened.schema())
    assert again.initialOffset() == start
    assert again.latestOffset(start, ReadAllAvailable())["offsets"]["0"] > start["offsets"]["0"]


def test_a_batch_ends_where_the_consumer_was(client: Client, table: str, put: Put, server: ServerProcess) -> None:
    put(*range(6))
    part = client.logs(table=table)["partitions"][0]
    client.pin(f"c-{table}", {part["log"]: part["earliest"] + 4})
    opened = source(server, table=table, consumer=f"c-{table}")
    following = opened.streamReader(opened.schema())
    start = following.initialOffset()
    assert start["offsets"] == {"0": part["earliest"] + 4}  # the stored position wins
    old = {**start, "offsets": {"0": part["earliest"]}}  # a checkpoint that is behind
    end = following.latestOffset(old, ReadAllAvailable())
    assert end["offsets"] == {"0": part["earliest"] + 4}
    assert following.latestOffset(old, ReadMaxRows(2))["offsets"] == {"0": part["earliest"] + 2}
    assert following.latestOffset(end, ReadAllAvailable())["offsets"] == {"0": part["next"]}


def test_a_consumer_is_of_one_source(client: Client, table: str, put: Put, server: ServerProcess) -> None:
    """Its positions are by log: those of another source, or of a table of that name before, say nothing here."""
    put(1, 2)
    consumer, other = f"c-{table}", f"other-{table}"
    create_table(client, other)
    here, elsewhere = (source(server, table=each, consumer=consumer) for each in (table, other))
    start = here.streamReader(here.schema()).initialOffset()
    before = client.job(consumer)["positions"]
    assert list(before) == [client.logs(table=table)["partitions"][0]["log"]]
    plain = source(server, table=other)
    theirs = plain.streamReader(plain.schema()).initialOffset()

    def refused(opened: TailraceSource, journal: Any) -> None:
        for ask in (
            lambda made: made.initialOffset(),
            lambda made: made.latestOffset(journal, ReadAllAvailable()),  # a run that has its checkpoint
        ):
            with pytest.raises(Invalid, match=f"consumer '{consumer}' has positions in other logs") as caught:
                ask(opened.streamReader(opened.schema()))
            assert caught.value.code == "CONSUMER_IN_USE"
        assert client.job(consumer)["positions"] == before, "and it has lost nothing by it"

    refused(elsewhere, theirs)
    assert here.streamReader(here.schema()).initialOffset() == start
    client.call("DeleteTable", {"TableName": table})
    create_table(client, table)
    recreated = source(server, table=table)
    refused(here, recreated.streamReader(recreated.schema()).initialOffset())
    client.drop_job(consumer)
    (log,) = elsewhere.streamReader(elsewhere.schema()).initialOffset()["logs"].values()
    assert list(client.job(consumer)["positions"]) == [log]


def test_a_table_that_was_created_again_is_noticed(
    client: Client, table: str, put: Put, follow: Load, tmp_path: Path
) -> None:
    put(*range(5))
    batches(follow(table=table), tmp_path / "c")
    client.call("DeleteTable", {"TableName": table})
    create_table(client, table)
    put(*range(3))
    with pytest.raises(Exception) as caught:
        batches(follow(table=table), tmp_path / "c")
    assert explain(caught.value).startswith(f"table '{table}' is not the one that the checkpoint is of")
    found = batches(follow(table=table, failOnDataLoss=False), tmp_path / "c")
    assert sum(map(len, found)) == 3


def test_data_lost_under_a_checkpoint(client: Client, table: str, put: Put, follow: Load, tmp_path: Path) -> None:
    put(*range(2))
    batches(follow(table=table), tmp_path / "c")
    put(*range(5))
    client.prune(table, client.logs(table=table)["partitions"][0]["next"] - 3)
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    with pytest.raises(Exception) as caught:
        batches(follow(table=table), tmp_path / "c")
    assert "is no longer available: the earliest is" in explain(caught.value)
    assert [len(each) for each in batches(follow(table=table, failOnDataLoss=False), tmp_path / "d")] == [2]


def test_a_streaming_query_adds_nothing_to_what_all_queries_share(
    table: str, put: Put, follow: Load, tmp_path: Path, spark: SparkSession
) -> None:
    def shared() -> set[str]:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return set(dict(manager.lookupDataSource("tailrace").dataSourceCls().envVars()))

    before = dict(spark.sparkContext.environment)
    ts.register(spark)
    assert spark.sparkContext.environment == before
    known = shared()
    put(1)
    assert batches(follow(table=table), tmp_path / "c")
    assert shared() == known


def test_a_task_of_sparks_own_reads_nothing(table: str, server: ServerProcess) -> None:
    assert list(reader(server, table=table).read(InputPartition(None))) == []


def test_inferring_needs_objects(client: Client, name: str, server: ServerProcess) -> None:
    client.create(name, "application/json")
    with pytest.raises(Invalid, match="found no records"):
        source(server, stream=name, inferSchema="true").schema()
    client.append(name, b"[1, 2]", "application/json")
    with pytest.raises(Invalid, match="needs records that are JSON objects, and found '1'"):
        source(server, stream=name, inferSchema="true").schema()

"""The sink, against a real server: every target, and each row once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace import limits
from tailrace.bulk import variant
from tailrace.client import Client
from tailrace.errors import Fenced, Invalid
from tailrace.spark import explain, rows, sink, upsert
from tailrace.spark.sink import StagedRows, grouped, merged
from tailrace.spark.source import TailraceSource
from tests.spark.conftest import create_table
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]
Put = Callable[..., None]
Run = Callable[..., Any]


def items(client: Client, table: str) -> dict[str, dict[str, Any]]:
    found = client.call("Scan", {"TableName": table})["Items"]
    return {item["id"]["S"]: item for item in found}


def values(client: Client, stream: str) -> list[Any]:
    """All that is in a JSON stream."""
    found: list[Any] = json.loads(client.read(stream).body)
    return found


@pytest.fixture
def save(server: ServerProcess) -> Callable[..., None]:
    """Writes a batch frame."""

    def write(frame: DataFrame, **options: Any) -> None:
        frame.write.format("tailrace").options(url=server.url, **options).mode("append").save()

    return write


def test_a_table_needs_no_change_stream_to_be_written_to(
    spark: SparkSession, client: Client, name: str, save: Callable[..., None]
) -> None:
    client.call(
        "CreateTable",
        {
            "TableName": name,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}],
            "AttributeDefinitions": [
                {"AttributeName": "n", "AttributeType": "N"},
                {"AttributeName": "id", "AttributeType": "S"},
            ],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )
    save(spark.sql("SELECT concat('k', id) AS id, id AS n, id * 2 AS twice FROM range(5)"), table=name)
    assert {key: item["twice"]["N"] for key, item in items(client, name).items()} == {
        f"k{number}": str(2 * number) for number in range(5)
    }
    with pytest.raises(Exception) as caught:
        save(spark.sql("SELECT 'a' AS id"), table=name)
    assert "'n', which is a key of" in explain(caught.value)
    with pytest.raises(Exception) as caught:
        save(spark.sql("SELECT 'a' AS id"), table=f"{name}-nowhere")
    assert "nowhere" in explain(caught.value)


# -- rows, without Spark


def test_a_key_is_never_null() -> None:
    with pytest.raises(Invalid, match="the column 'id' is null in a row, and it is a key of table 't'"):
        rows.ItemEncoder("t", ["id"], ["id"], None).rows(pa.record_batch({"id": ["a", None]}))


def test_documents_keep_their_digits() -> None:
    batch = pa.record_batch({"a": [1], "d": pa.array([Decimal("1.10")], pa.decimal128(20, 2)), "b": [b"\x01"]})
    assert rows.DocumentEncoder(batch.schema.names).rows(batch) == [b'{"a":1,"d":1.10,"b":"AQ=="}']
    document = variant.of_item({"x": variant.TypedValue(N="0." + "1" * 30), "y": variant.TypedValue(NULL=True)})
    nested = pa.array([[document, None]], pa.list_(variant.TYPE))
    batch = pa.record_batch({"a": [1], "v": variant.array([document]), "l": nested})
    text = b'{"x":0.%s,"y":null}' % (b"1" * 30)
    assert rows.DocumentEncoder(["v", "l"]).rows(batch) == [b'{"v":%s,"l":[%s,null]}' % (text, text)]


def test_large_batches_are_cut() -> None:
    batch = pa.record_batch({"v": ["x" * 1_000] * 100})
    for rows_max, bytes_max in ((1_000, 10_000), (10, 1_000_000)):
        cut = list(rows.slices(iter([batch]), rows_max, bytes_max))
        assert sum(each.num_rows for each in cut) == 100
        assert max(each.num_rows for each in cut) <= 10
    assert list(rows.slices(iter([batch.slice(0, 0)]), 10, 10)) == []


def test_sizes_are_those_that_are_sent() -> None:
    batch = pa.record_batch({"id": ["a" * 100] * 10, "payload": [b"x" * 50] * 10})
    for shape in (
        rows.MessageEncoder("payload", "id", None),
        rows.ValueEncoder("id"),
    ):
        made = shape.rows(batch)
        assert 0.9 < rows.size_of(made) / len(msgspec.msgpack.encode(made)) < 1.1


def test_items_are_sent_as_arrow() -> None:
    batch = pa.record_batch({"id": ["a" * 100] * 10, "n": range(10), "left": ["out"] * 10, "_op": ["PUT"] * 10})
    made = rows.ItemEncoder("t", ["n", "id"], ["id"], "_op").rows(batch)
    sent = rows.stream([made, made])
    assert pa.ipc.open_stream(sent).read_all() == pa.Table.from_batches([batch.select(["n", "id", "_op"])] * 2)
    assert 1_000 < rows.size_of(made) < 2_000


def test_ranges_of_tasks_are_merged() -> None:
    tasks = [
        StagedRows(["a"], [(1, 9)], "q", 0, {7: (5, 9)}),
        StagedRows(["b"], [(1, 9)], "q", 0, {7: (2, 6), 8: (1, 2)}),
    ]
    assert merged(tasks) == {7: (2, 9), 8: (1, 2)}


def test_commits_are_bounded() -> None:
    counted = [("a", (6, 1)), ("b", (4, 1)), ("c", (1, 1)), ("d", (50, 1))]
    assert list(grouped(counted, 10)) == [["a", "b"], ["c"], ["d"]]
    large = [(name, (1, 100 << 20)) for name in "abc"]
    assert list(grouped(large, 10)) == [["a"], ["b"], ["c"]]


# -- batch


def test_a_frame_into_a_table(spark: SparkSession, client: Client, table: str, put: Put, save: Run) -> None:
    put(9)
    frame = spark.sql(
        "SELECT concat('k', id) AS id, id AS n, cast(id AS decimal(10,2)) AS price, named_struct('x', id) AS deep, "
        "parse_json(format_string('[%d.50, {\"a\": null}]', id)) AS doc, "
        "if(id = 9, 'DELETE', null) AS _op FROM range(10)"
    )
    save(frame, table=table)
    found = items(client, table)
    assert sorted(found) == [f"k{number}" for number in range(9)]
    assert found["k3"] == {
        "id": {"S": "k3"},
        "n": {"N": "3"},
        "price": {"N": "3"},
        "deep": {"M": {"x": {"N": "3"}}},
        "doc": {"L": [{"N": "3.5"}, {"M": {"a": {"NULL": True}}}]},
    }


def test_values_that_no_table_can_hold(spark: SparkSession, client: Client, table: str, save: Run) -> None:
    """The server names the row of the request, and the column."""
    for frame, why in (
        ("SELECT string(id) AS id, if(id = 3, double('NaN'), 1.5D) AS f FROM range(5)", "the column 'f': nan"),
        ("SELECT string(id) AS id, array(1e200D) AS l FROM range(5)", "the column 'l': 1e\\+200: Number overflow"),
        ("SELECT string(id) AS id, 'UPSERT' AS _op FROM range(5)", "operation 'UPSERT' is unknown"),
        ("SELECT '' AS id", "row 0: .*empty string"),
        (
            "SELECT 'a' AS id, make_ym_interval(1) AS i",
            "the column 'i' is interval year to month, which a table cannot",
        ),
    ):
        with pytest.raises(Exception) as caught:
            save(spark.sql(frame).coalesce(1), table=table)
        assert re.search(why, explain(caught.value)), explain(caught.value)
    assert items(client, table) == {}


def test_a_frame_of_any_size_is_one_commit(
    spark: SparkSession, client: Client, table: str, save: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than one transaction takes, in several requests and several slices."""
    monkeypatch.setattr(sink, "SEND_BYTES", 1 << 20)
    count = limits.COMMIT_ITEMS_MAX + 5_000
    save(spark.sql(f"SELECT concat('k', id) AS id, id AS n FROM range({count})"), table=table)
    described = client.call("DescribeTable", {"TableName": table})["Table"]
    assert described["ItemCount"] == count
    assert client.logs(table=table)["partitions"][0]["next"] > count // 1_000


def test_a_frame_into_a_topic(spark: SparkSession, client: Client, name: str, save: Run, load: Load) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    save(spark.sql("SELECT 'a' AS key, concat('m', id) AS payload, int(id % 2) AS partition FROM range(4)"), topic=name)
    found = [(row.partition, bytes(row.payload), bytes(row.key)) for row in load(topic=name).collect()]
    assert sorted(found) == [(0, b"m0", b"a"), (0, b"m2", b"a"), (1, b"m1", b"a"), (1, b"m3", b"a")]
    save(spark.sql("SELECT 'x' AS who, 'y' AS what"), topic=name, keyColumn="who", valueColumn="what")
    assert load(topic=name).where("payload = binary('y') and key = binary('x')").count() == 1


def test_a_frame_into_streams(spark: SparkSession, client: Client, name: str, save: Run, load: Load) -> None:
    client.create(name, "application/json")
    save(spark.sql("SELECT id, concat('n', id) AS name FROM range(3)").coalesce(1), stream=name)
    assert values(client, name) == [{"id": number, "name": f"n{number}"} for number in range(3)]
    save(spark.sql("""SELECT '{"whole": true}' AS value"""), stream=name)
    assert values(client, name)[-1] == {"whole": True}
    client.create(f"{name}/text", "text/plain")
    save(spark.sql("SELECT concat('line ', id) AS value FROM range(2)").coalesce(1), stream=f"{name}/text")
    assert [row.value for row in load(stream=f"{name}/text").orderBy("offset").collect()] == ["line 0", "line 1"]


def test_an_empty_frame(spark: SparkSession, client: Client, table: str, save: Run) -> None:
    save(spark.sql("SELECT 'a' AS id WHERE false"), table=table)
    assert items(client, table) == {}


def test_a_failed_write_leaves_nothing(spark: SparkSession, client: Client, table: str, save: Run) -> None:
    frame = spark.sql("SELECT if(id = 90, null, string(id)) AS id FROM range(0, 100, 1, 4)")
    with pytest.raises(Exception) as caught:
        save(frame, table=table)
    assert explain(caught.value).startswith(f"the column 'id' is null in a row, and it is a key of table '{table}'")
    assert items(client, table) == {}


# -- streaming


def json_stream(client: Client, path: str) -> str:
    client.create(path, "application/json")
    return path


def numbers(frame: DataFrame) -> DataFrame:
    """What is written of a table's changes: their number."""
    return frame.select(F.col("after.n").alias("n"))


def test_from_a_table_into_a_stream(client: Client, table: str, put: Put, follow: Load, run: Run) -> None:
    target = json_stream(client, f"{table}/out")
    put(*range(7))
    run(numbers(follow(table=table, maxRecordsPerTrigger=3)), stream=target)
    put(7)
    run(numbers(follow(table=table)), stream=target)
    assert values(client, target) == [{"n": number} for number in range(8)]


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after its last batch was committed here and before Spark noted it."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_run_again_is_written_once(
    client: Client, table: str, put: Put, follow: Load, run: Run, tmp_path: Path
) -> None:
    """The second run cuts the batch into other tasks than the first."""
    target = json_stream(client, f"{table}/out")
    put(*range(12))
    run(numbers(follow(table=table, minPartitions=2)), stream=target)
    forget_last_commit(tmp_path / "checkpoint")
    put(12)
    run(numbers(follow(table=table, minPartitions=5)), stream=target)
    assert [each["n"] for each in values(client, target)] == list(range(13))


def fenced(frame: DataFrame) -> DataFrame:
    return frame.select("offset", "next_offset", F.col("after.n").alias("n"))


def test_a_fenced_sink_needs_no_checkpoint(
    client: Client, table: str, put: Put, follow: Load, run: Run, tmp_path: Path
) -> None:
    target = json_stream(client, f"{table}/out")
    consumer = f"c-{table}"
    put(*range(7))
    read = {"table": table, "consumer": consumer, "maxRecordsPerTrigger": 3}
    run(fenced(follow(**read)), stream=target, consumer=consumer)
    shutil.rmtree(tmp_path / "checkpoint")
    put(*range(7, 10))
    run(fenced(follow(**read)), stream=target, consumer=consumer)
    assert values(client, target) == [{"n": number} for number in range(10)]


def test_an_old_checkpoint_under_a_fence(
    client: Client, table: str, put: Put, follow: Load, run: Run, tmp_path: Path
) -> None:
    """A checkpoint from a backup is behind what was applied: what it brings again counts once."""
    target = json_stream(client, f"{table}/out")
    consumer = f"c-{table}"
    put(*range(2))
    run(fenced(follow(table=table, consumer=consumer)), stream=target, consumer=consumer)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    put(*range(2, 5))
    run(fenced(follow(table=table, consumer=consumer)), stream=target, consumer=consumer)
    put(*range(5, 8))
    run(fenced(follow(table=table, consumer=consumer)), "old", stream=target, consumer=consumer)
    assert values(client, target) == [{"n": number} for number in range(8)]


def test_a_fence_over_partitions(client: Client, name: str, follow: Load, run: Run, tmp_path: Path) -> None:
    client.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    target = json_stream(client, f"{name}/out")
    for number in range(6):
        client.publish(name, str(number).encode(), partition=number % 2)
    read = {"topic": name, "consumer": name, "maxRecordsPerTrigger": 2}

    def frame() -> DataFrame:
        return follow(**read).select("partition", "offset", "next_offset", F.col("payload").cast("string").alias("n"))

    run(frame(), stream=target, consumer=name)
    shutil.rmtree(tmp_path / "checkpoint")
    client.publish(name, b"6", partition=1)
    run(frame(), stream=target, consumer=name)
    assert sorted(each["n"] for each in values(client, target)) == [str(number) for number in range(7)]
    assert values(client, target)[0].keys() == {"n"}


def test_a_range_that_was_applied_in_part_is_refused(
    client: Client, table: str, put: Put, server: ServerProcess
) -> None:
    put(*range(6))
    part = client.logs(table=table)["partitions"][0]
    client.pin(table, {part["log"]: part["earliest"] + 3})
    target = json_stream(client, f"{table}/out")
    source = TailraceSource(CaseInsensitiveDict({"url": server.url, "stream": target, "consumer": table}))
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField(name, LongType()) for name in ("offset", "next_offset", "n")])
    writer = source.writer(schema, False)
    start = part["earliest"]

    def batch() -> Iterator[pa.RecordBatch]:
        offsets = list(range(start, start + 6))
        yield pa.record_batch({"offset": offsets, "next_offset": [each + 1 for each in offsets], "n": offsets})

    message = writer.write(batch())
    with pytest.raises(Exception, match="neither begins there nor was applied before") as caught:
        writer.commit([message])
    assert getattr(caught.value, "code", "") == Fenced.code
    writer.abort([message, None])
    assert values(client, target) == []


def test_rows_that_change_are_written_by_batch_for_spark_refuses_the_mode_update(
    spark: SparkSession, client: Client, name: str, table: str, put: Put, server: ServerProcess, tmp_path: Path
) -> None:
    """As docs/reference/spark.md says."""
    put(1, 2, 3)
    create_table(client, f"{name}_totals")
    changes = spark.readStream.format("tailrace").options(url=server.url, table=table).load()
    totals = changes.groupBy(F.col("event").alias("id")).agg(F.count("*").alias("n"))
    target = {"url": server.url, "table": f"{name}_totals"}
    refused = totals.writeStream.format("tailrace").options(**target).outputMode("update").trigger(availableNow=True)
    with pytest.raises(Exception, match=r"(?i)update"):
        refused.option("checkpointLocation", str(tmp_path / "refused")).start().awaitTermination()

    def write(rows: DataFrame, batch: int) -> None:
        upsert(rows, target["table"], url=target["url"])

    for count in (3, 5):
        query = (
            totals.writeStream.outputMode("update").foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "totals")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        assert {key: item["n"]["N"] for key, item in items(client, f"{name}_totals").items()} == {"INSERT": str(count)}
        put(4, 5)


def test_a_batch_that_is_upserted_again_is_written_once(
    client: Client, name: str, table: str, put: Put, follow: Load, server: ServerProcess, tmp_path: Path
) -> None:
    """Spark runs the function again for a batch that it does not know to be complete. Another one is written."""
    create_table(client, f"{name}_seen")
    puts = follow(table=table, images="json").select(F.get_json_object("keys", "$.id").alias("id"), "sequence")
    calls: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        stamped = rows.withColumn("call", F.lit(len(calls)))
        calls.append(batch)
        upsert(stamped, f"{name}_seen", url=server.url)
        upsert(stamped, f"{name}_seen", url=server.url, name="again")
        with pytest.raises(Invalid, match=f"batch {batch} was written to table '{name}_seen' already; give each call"):
            upsert(stamped, f"{name}_seen", url=server.url)

    def run() -> None:
        writer = puts.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "seen"))
        writer.trigger(availableNow=True).start().awaitTermination()

    put(1, 2)
    run()
    forget_last_commit(tmp_path / "seen")
    run()
    assert calls == [0, 0]
    assert {key: item["call"]["N"] for key, item in items(client, f"{name}_seen").items()} == {"k1": "0", "k2": "0"}
    put(3)
    run()
    assert {key: item["call"]["N"] for key, item in items(client, f"{name}_seen").items()}["k3"] == "2"


def test_upsert_outside_of_a_query_is_a_write(
    spark: SparkSession, client: Client, table: str, server: ServerProcess
) -> None:
    for n in (1, 2):
        upsert(spark.sql(f"SELECT 'a' AS id, {n} AS n"), table, url=server.url)
    assert items(client, table) == {"a": {"id": {"S": "a"}, "n": {"N": "2"}}}

"""The items of a table as of one sequence, all names in SQL, and how a view is planned and its sources kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyspark")

from pyspark.sql.datasource import CaseInsensitiveDict

import tailrace.spark as ts
from tailrace.cli import cli, pipeline
from tailrace.client import Client
from tailrace.errors import Conflict, Forbidden, Invalid, NotFound
from tailrace.spark import catalog, explain
from tailrace.spark.items import ItemsReader, ItemsTask
from tailrace.spark.options import ServerAccess
from tailrace.spark.source import TailraceSource
from tailrace.spark.views import sources
from tailrace.spark.views.sources import SourceTableReader
from tests.spark.conftest import create_table
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]
Put = Callable[..., None]


def reader(server: ServerProcess, **options: str) -> ItemsReader:
    """The reader as Spark's planner makes it, in this process."""
    opened = TailraceSource(CaseInsensitiveDict({"url": server.url, "mode": "items", **options}))
    schema = opened.schema()
    assert not isinstance(schema, str)
    made = opened.reader(schema)
    assert isinstance(made, ItemsReader)
    return made


def rows(made: ItemsReader, task: ItemsTask) -> list[dict[str, Any]]:
    return [row for batch in made.read(task) for row in batch.to_pylist()]


def test_the_items_of_a_table(client: Client, table: str, put: Put, load: Load) -> None:
    put(*range(5), price={"N": "12.50"}, tags={"SS": ["a"]})
    put(2, price={"N": "3"})
    client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": "k4"}}})
    last = client.logs(table=table)["partitions"][0]["next"] - 1
    frame = load(table=table, mode="items", minPartitions=3)
    assert frame.schema.simpleString() == (
        "struct<id:string,n:bigint,price:decimal(38,18),tags:array<string>,_sequence:bigint>"
    )
    assert frame.rdd.getNumPartitions() == 3
    found = {row.id: (row.n, str(row.price.normalize()), row.tags, row._sequence) for row in frame.collect()}
    assert found == {
        "k0": (0, "12.5", ["a"], last), "k1": (1, "12.5", ["a"], last), "k2": (2, "3", None, last),
        "k3": (3, "12.5", ["a"], last),
    }  # fmt: skip
    given = load(table=table, mode="items", rowSchema="id string, price decimal(10,2)")
    assert given.schema.simpleString() == "struct<id:string,price:decimal(10,2),_sequence:bigint>"
    assert {row.id: str(row.price) for row in given.collect()}["k2"] == "3.00"
    with pytest.raises(Exception) as caught:
        load(table=table, mode="items", rowSchema="id string, price int").collect()
    assert "column 'price' is int, which cannot hold the number 12.5" in explain(caught.value)
    assert f"table {table!r}, key " in explain(caught.value) and f"sequence {last}" in explain(caught.value)


def test_all_tasks_read_the_same_moment(client: Client, table: str, put: Put, server: ServerProcess) -> None:
    """Items are changed, inserted and removed between the plan and each task, and a task is repeated."""
    put(*range(60))
    made = reader(server, table=table, minPartitions="4")
    tasks = made.partitions()
    assert len(tasks) == 4
    found = {}
    for number, task in enumerate(tasks):
        put(*range(0, 60, 7), colour={"S": f"c{number}"})
        put(1000 + number)
        for gone in (number, 10 + number):
            client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": f"k{gone}"}}})
        put(number)  # removed and written again
        first, again = rows(made, task), rows(made, task)
        assert sorted(map(str, first)) == sorted(map(str, again))
        for row in first:
            assert row["id"] not in found
            found[row["id"]] = row
    assert {name: row["n"] for name, row in found.items()} == {f"k{number}": number for number in range(60)}
    assert len({row["_sequence"] for row in found.values()}) == 1


def test_the_table_at_that_sequence_while_writes_go_on(client: Client, table: str, put: Put, load: Load) -> None:
    """What the changes up to the sequence leave behind is what the tasks have read."""
    put(*range(30))
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            put(number % 40, count={"N": str(number)})
            if number % 3 == 0:
                key = {"id": {"S": f"k{number % 37}"}}
                client.call("DeleteItem", {"TableName": table, "Key": key})

    schema = "id string, n bigint, count bigint"
    writer = threading.Thread(target=write)
    writer.start()
    try:
        reads = [load(table=table, mode="items", rowSchema=schema, minPartitions=4).collect() for _ in range(3)]
    finally:
        ended.set()
        writer.join()
    changes = load(table=table, rowSchema=schema).orderBy("sequence", "index").collect()
    for found in reads:
        (sequence,) = {row._sequence for row in found}
        state = {}
        for change in changes:
            if change.sequence <= sequence:
                state[change["keys"].id] = change.after
        expected = {name: (row.n, row["count"]) for name, row in state.items() if row is not None}
        assert {row.id: (row.n, row["count"]) for row in found} == expected
        assert len(found) == len(expected)


def test_tables_that_cannot_be_divided(client: Client, name: str, server: ServerProcess) -> None:
    create_table(client, name)
    for number in range(9):
        client.call("PutItem", {"TableName": name, "Item": {"id": {"S": f"k{number}"}}})
    made = reader(server, table=name, minPartitions="3")
    tasks = made.partitions()
    assert len(tasks) == 3
    client.sql(f"ALTER TABLE {name} DISABLE STREAM")
    assert reader(server, table=name, minPartitions="3").partitions() == [ItemsTask(0, 1, None)]
    with pytest.raises(Conflict, match="its change stream was dropped while its items were read; repeat the query"):
        rows(made, tasks[0])
    client.call("DeleteItem", {"TableName": name, "Key": {"id": {"S": "k1"}}})
    without = reader(server, table=name)
    assert len(rows(without, *without.partitions())) == 8
    client.sql(f"DROP TABLE {name}")
    client.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, total BIGINT)")
    client.sql(f"INSERT INTO {name} (id, total) VALUES ('a', 5)")
    never = reader(server, table=name)
    assert [(row["id"], row["total"]) for row in rows(never, ItemsTask(0, 1, None))] == [("a", 5)]
    source = TailraceSource(CaseInsensitiveDict({"url": server.url, "mode": "items", "table": name}))
    assert source.schema().simpleString() == "struct<id:string,total:bigint,_sequence:bigint>"  # type: ignore[union-attr]


def test_what_items_are_not_for(server: ServerProcess, table: str, follow: Load) -> None:
    with pytest.raises(Invalid, match="the option startingOffsets is for changes; remove it, or remove mode=items"):
        reader(server, table=table, startingOffsets="latest")
    with pytest.raises(Invalid, match="the option mode is for tables"):
        TailraceSource(CaseInsensitiveDict({"url": server.url, "mode": "items", "topic": "t"})).schema()
    source = TailraceSource(CaseInsensitiveDict({"url": server.url, "mode": "items", "table": table}))
    with pytest.raises(Invalid, match="mode=items is read once, not as a stream"):
        source.streamReader(None)  # type: ignore[arg-type]


# -- names in SQL


def test_names_in_sql(spark: SparkSession, client: Client, server: ServerProcess, name: str) -> None:
    ts.register(spark, url=server.url)
    client.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, total DECIMAL, customer TEXT)")
    client.sql(f"ALTER TABLE {name} ENABLE STREAM")
    client.sql(f"INSERT INTO {name} (id, total, customer) VALUES ('a', 12.5, 'x'), ('b', 7, 'y')")
    query = (
        f"SELECT {name}.id, tailrace.{name}.total FROM tailrace.{name} WHERE customer <> 'tailrace.{name}' ORDER BY id"
    )
    assert [(row.id, str(row.total)) for row in spark.sql(query).collect()] == [
        ("a", "12.500000000000000000"), ("b", "7.000000000000000000"),
    ]  # fmt: skip
    client.sql(f"UPDATE {name} SET total = 8 WHERE id = 'b'")
    changes = spark.sql(f"SELECT event, after.total FROM tailrace.{name}.changes WHERE keys.id = 'b' ORDER BY sequence")
    assert [(row.event, int(row.total)) for row in changes.collect()] == [("INSERT", 7), ("MODIFY", 8)]
    client.sql(f"CREATE TABLE {name}_c (id TEXT PRIMARY KEY, name TEXT)")  # later than the session
    client.sql(f"INSERT INTO {name}_c (id, name) VALUES ('x', 'Ada')")
    joined = spark.sql(f"SELECT c.name FROM tailrace.{name} o JOIN tailrace.{name}_c c ON c.id = o.customer")
    assert [row.name for row in joined.collect()] == ["Ada"]
    assert spark.table(f"tailrace.{name}").count() == 2
    shown = [row.tableName for row in spark.sql("SHOW TABLES IN tailrace").collect()]
    assert {name, f"{name}_c"} <= set(shown)
    client.sql(f"CREATE TOPIC {name}_t PARTITIONS 1")
    client.publish(f"{name}_t", b"hello", partition=0)
    client.create(f"{name}/log", "text/plain")
    client.append(f"{name}/log", b"line", "text/plain")
    messages = f"SELECT string(payload) AS text FROM tailrace.{name}_t"
    found = spark.sql(f"{messages} UNION ALL SELECT value FROM tailrace.streams.`{name}/log`")
    assert sorted(row.text for row in found.collect()) == ["hello", "line"]
    assert ts.session() is spark  # and the server is still known
    assert spark.read.format("tailrace").option("topic", f"{name}_t").load().count() == 1
    with pytest.raises(NotFound, match=f"there is no table, topic or stream 'not_there' at {server.url}"):
        spark.sql("SELECT * FROM tailrace.not_there")
    with pytest.raises(Exception, match="PARSE_SYNTAX_ERROR"):
        spark.sql("SELEKT * FROM tailrace.not_there")


def test_names_with_dots(spark: SparkSession, client: Client, server: ServerProcess, name: str) -> None:
    """A table `app` does not hide the table `app.totals`: the longest name is taken."""
    ts.register(spark, url=server.url)
    client.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, totals TEXT)")
    client.sql(f"CREATE TABLE {name}.totals (id TEXT PRIMARY KEY, n BIGINT) WITH (stream = true)")
    client.sql(f"INSERT INTO {name}.totals (id, n) VALUES ('a', 7)")
    client.sql(f"CREATE TOPIC {name}.events PARTITIONS 1")
    client.publish(f"{name}.events", b"hello", partition=0)
    for statement, expected in (
        (f"SELECT n FROM tailrace.{name}.totals", 7),
        (f"SELECT tailrace.{name}.totals.n FROM tailrace.tables.{name}.totals AS t JOIN tailrace.{name}.totals", 7),
        (f"SELECT after.n FROM tailrace.{name}.totals.changes", 7),
        (f"SELECT string(payload) FROM tailrace.{name}.events", "hello"),
        (f"SELECT string(payload) FROM tailrace.topics.{name}.events", "hello"),
    ):
        assert [row[0] for row in spark.sql(statement).collect()] == [expected], statement
    assert spark.table(f"tailrace.{name}.totals").columns == ["id", "n", "_sequence"]


def test_the_longest_name_is_taken(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    there = [
        {"table": "app", "mode": "items"}, {"table": "app.totals", "mode": "items"}, {"table": "app.totals"},
        {"topic": "app"}, {"topic": "app.events"}, {"stream": "app.log"}, {"table": "changes", "mode": "items"},
    ]  # fmt: skip
    forbidden = {"app.totals.n", "secret"}
    made: dict[str, dict[str, str]] = {}

    def make(self: Any, name: str, options: dict[str, str]) -> bool:
        if forbidden & set(options.values()):
            raise Forbidden(f"{name} is not granted")
        if options in there:
            made[name] = options
        return options in there

    monkeypatch.setattr(catalog.TailraceCatalog, "_make", make)
    names = catalog.TailraceCatalog(spark, "http://127.0.0.1:1", None)
    for given, expected, options in (
        ("app.totals", "`app.totals`", {"table": "app.totals", "mode": "items"}),
        ("app.other", "`app`.`other`", {"table": "app", "mode": "items"}),
        ("app.totals.changes", "`app.totals.changes`", {"table": "app.totals"}),
        ("app.totals.changes.after.n", "`app.totals.changes`.`after`.`n`", {"table": "app.totals"}),
        ("tables.app.totals", "`tables.app.totals`", {"table": "app.totals", "mode": "items"}),
        ("tables.app.totals.changes", "`tables.app.totals.changes`", {"table": "app.totals"}),
        ("tables.app.other", "`tables.app`.`other`", {"table": "app", "mode": "items"}),
        ("app.events", "`app.events`", {"topic": "app.events"}),
        ("topics.app.events.payload", "`topics.app.events`.`payload`", {"topic": "app.events"}),
        ("topics.app", "`topics.app`", {"topic": "app"}),
        ("streams.app.log", "`streams.app.log`", {"stream": "app.log"}),
        ("changes", "`changes`", {"table": "changes", "mode": "items"}),
        # A column of a table that is granted has the form of the name of a table that is not.
        ("app.totals.n", "`app.totals`.`n`", {"table": "app.totals", "mode": "items"}),
    ):
        made.clear()
        assert names.prepared(f"FROM tailrace.{given}") == (f"FROM `tailrace`.{expected}", [])
        assert list(made.values()) == [options], given
    with pytest.raises(Forbidden, match="secret is not granted"):
        names.prepared("FROM tailrace.secret")


def test_names_are_found_in_a_statement(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    there = {"orders": {"table": "orders", "mode": "items"}, "orders.changes": {"table": "orders"}}
    made: list[str] = []

    def make(self: Any, name: str, options: dict[str, str]) -> bool:
        if there.get(name) == options:
            made.append(name)
        return there.get(name) == options

    monkeypatch.setattr(catalog.TailraceCatalog, "_make", make)
    names = catalog.TailraceCatalog(spark, "http://127.0.0.1:1", None)
    for statement, expected in (
        ("SELECT 1", "SELECT 1"),
        ("SELECT * FROM tailrace.orders", "SELECT * FROM `tailrace`.`orders`"),
        ("SELECT * FROM `Tailrace` . `orders` . changes c", "SELECT * FROM `tailrace`.`orders.changes` c"),
        ("SELECT tailrace.orders.id", "SELECT `tailrace`.`orders`.`id`"),
        ("SELECT 'tailrace.orders' -- tailrace.orders", "SELECT 'tailrace.orders' -- tailrace.orders"),
        ('SELECT /* tailrace.orders */ "tailrace.orders"', 'SELECT /* tailrace.orders */ "tailrace.orders"'),
        ("SELECT x.tailrace.orders, mytailrace.orders", "SELECT x.tailrace.orders, mytailrace.orders"),
        ("SELECT * FROM tailrace.other", "SELECT * FROM tailrace.other"),
    ):
        assert names.prepared(statement)[0] == expected
    assert names.prepared("SELECT * FROM tailrace.other JOIN tailrace.orders")[1] == ["other"]
    made.clear()
    names.prepared("SELECT tailrace.orders.id FROM tailrace.orders JOIN tailrace.orders.changes")
    assert made == ["orders", "orders.changes"]  # each once


# -- views


def test_a_select_is_explained_by_the_command_line(
    spark: SparkSession, client: Client, server: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, status TEXT, total DECIMAL) WITH (stream = true)")
    monkeypatch.setattr(spark, "stop", lambda: None)  # the session of all tests, which the command finds
    monkeypatch.setattr(pipeline, "_quieten_java", lambda: None)

    def explained(select: str) -> Result:
        return CliRunner().invoke(cli, ["pipeline", "explain", select, "--url", server.url])

    done = explained(f"SELECT status, sum(total) AS total FROM {name} GROUP BY status")
    assert done.exit_code == 0, done.output
    lines = [line.split(maxsplit=1) for line in done.output.splitlines()]
    assert lines[:4] == [
        ["strategy", "additive"], ["key", "status S"], ["column", "status string"],
        ["column", "total decimal(38,18)"],
    ]  # fmt: skip
    assert [value for kind, value in lines if kind == "derivative"][-1] == f"{name}: changes"
    limited = explained(f"SELECT id FROM {name} ORDER BY total LIMIT 3")
    assert "warning " in limited.output, limited.output
    assert name not in str(client.sql("SHOW MATERIALIZED VIEWS")[-1].rows), "nothing was created"
    missing = explained("SELECT * FROM not_there").exception
    assert isinstance(missing, NotFound) and "'not_there'" in str(missing)


def test_a_source_of_a_view_is_written_anew_when_a_share_of_it_has_changed(
    spark: SparkSession, client: Client, server: ServerProcess, table: str, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "OVERLAY_ROWS", 1)
    monkeypatch.setattr(sources, "OVERLAY_SHARE", 2)
    put(*range(8))
    source = SourceTableReader(spark, client, ServerAccess(server.url, None, None, None), table, [("id", "S")])
    source.read_items()

    def change(n: int, *numbers: int) -> None:
        start = source.at
        for number in numbers:
            client.call("PutItem", {"TableName": table, "Item": {"id": {"S": f"k{number}"}, "n": {"N": str(n)}}})
        end = client.logs(table=table)["partitions"][0]["next"]
        found = source.changes({0: (start, end)})
        assert found is not None
        _, overlay = source.batch(source.consolidated(found))
        source.advance({0: end}, overlay)

    def overlaid() -> bool:
        return source._overlay is not None

    change(100, 0, 1, 2)
    assert overlaid(), "3 rows are less than half of 8"
    change(200, 2, 3, 8)
    assert not overlaid() and source._base_rows == 9
    assert {row.id: row.n for row in source.rows().collect()} == {
        "k0": 100, "k1": 100, "k2": 200, "k3": 200, "k4": 4, "k5": 5, "k6": 6, "k7": 7, "k8": 200,
    }  # fmt: skip

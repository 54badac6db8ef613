"""Materialized views, by the job: what Spark works out is what SELECT says of the tables as they are."""

from __future__ import annotations

import random
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import VariantVal

from tailrace import limits
from tailrace.client import Client
from tailrace.errors import Error, Invalid, NotFound
from tailrace.scalar import to_attribute
from tailrace.spark.jobs import view as view_job
from tailrace.spark.options import ServerAccess
from tailrace.spark.views.maintenance import ViewMaintainer
from tailrace.spark.views.sources import SourceTableReader
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess
from tests.unit.threaded import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

AGGREGATES = (
    "SELECT status, count(*) AS n, sum(total) AS total, avg(total) AS mean, min(total) AS least, max(total) AS most, "
    "count(DISTINCT customer) AS customers FROM {o} GROUP BY status"
)
ROWS = "SELECT id, upper(status) AS status, total FROM {o} WHERE total > 10"
LEFT = (
    "SELECT c.country, count(*) AS n, count(c.id) AS known, sum(o.total) AS total, max(c.weight) AS w FROM {o} o "
    "LEFT JOIN {c} c ON o.customer = c.id GROUP BY c.country"
)


class World:
    """Two tables of a test's own, the server and the job."""

    def __init__(self, spark: SparkSession, client: Client, url: str, name: str) -> None:
        self.spark, self.client, self.url = spark, client, url
        self.orders, self.customers = f"{name}.orders", f"{name}.customers"
        self.name = f"{name}.view"
        client.sql(
            f"CREATE TABLE {self.orders} (id TEXT PRIMARY KEY, status TEXT, total DECIMAL, customer TEXT) "
            f"WITH (stream = true); CREATE TABLE {self.customers} (id TEXT PRIMARY KEY, country TEXT, weight DECIMAL) "
            "WITH (stream = true)"
        )

    def create(self, sql: str, name: str = "") -> str:
        name = f"{self.name}{name}"
        self.client.sql(f"CREATE MATERIALIZED VIEW {name} AS {sql.format(o=self.orders, c=self.customers)}")
        return name

    def put(self, table: str, **attributes: Any) -> None:
        item = {name: to_attribute(value) for name, value in attributes.items() if value is not None}
        self.client.call("PutItem", {"TableName": table, "Item": item})

    def delete(self, table: str, key: str) -> None:
        self.client.call("DeleteItem", {"TableName": table, "Key": {"id": {"S": key}}})

    def view(self, name: str = "", **options: Any) -> Any:
        from tailrace.spark.jobs.view import view

        return view(self.spark, name or self.name, url=self.url, **{"once": True, **options})

    def load(self, source: random.Random, count: int) -> None:
        """Writes of all kinds, several to a transaction."""
        for _ in range(count):
            actions: dict[tuple[str, str], Any] = {}
            for _ in range(source.randint(1, 3)):
                table = source.choice([self.orders, self.orders, self.customers])
                key = source.choice("abcdefgh" if table == self.orders else "xy")
                if source.random() < 0.3:
                    actions[table, key] = {"Delete": {"TableName": table, "Key": {"id": {"S": key}}}}
                    continue
                item: dict[str, Any] = {"id": {"S": key}}
                if table == self.orders:
                    item |= _maybe(source, status=["new", "paid", "\\null"], customer=["x", "y", "z"])
                else:
                    item |= _maybe(source, country=["de", "fr"])
                number = Decimal(source.randint(-5000, 5000)).scaleb(-source.randint(0, 3))
                item |= _maybe(source, **{"total" if table == self.orders else "weight": [number]})
                actions[table, key] = {"Put": {"TableName": table, "Item": item}}
            self.client.call("TransactWriteItems", {"TransactItems": list(actions.values())})

    def check(self, name: str = "") -> list[Any]:
        """The view is what Spark makes of its SELECT; its rows."""
        known = self.client.view(name or self.name)
        access = ServerAccess(self.url, None, None, None)
        maintainer = ViewMaintainer(self.spark, self.client, access, known["name"], known["sql"], known["tables"])
        wanted = [
            {key: _plain(value) for key, value in row.asDict(recursive=True).items() if value is not None}
            for row in maintainer.scratch().collect()
        ]
        maintainer.close()
        found = [_decoded(item) for item in self.client.call("Scan", {"TableName": known["name"]})["Items"]]
        assert sorted(found, key=repr) == sorted(({k: r[k] for k in sorted(r)} for r in wanted), key=repr)
        return found


def _decoded(item: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(item[name]) for name in sorted(item)}


def _value(typed: dict[str, Any]) -> Any:
    ((kind, value),) = typed.items()
    match kind:
        case "N":
            return float(f"{float(value):.12g}")
        case "L":
            return [_value(each) for each in value]
        case "M":
            return _decoded(value)
    return None if kind == "NULL" else value


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float | Decimal):
        return float(f"{float(value):.12g}")
    if isinstance(value, VariantVal):
        return _plain(value.toPython())
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _maybe(source: random.Random, **choices: list[Any]) -> dict[str, Any]:
    return {name: to_attribute(source.choice(held)) for name, held in choices.items() if source.random() < 0.85}


@pytest.fixture
def world(spark: SparkSession, client: Client, server: ServerProcess, name: str) -> World:
    return World(spark, client, server.url, name)


def test_a_view_follows_its_table_and_is_read_by_one_key(world: World) -> None:
    world.create("SELECT status, count(*) AS n, sum(total) AS total FROM {o} GROUP BY status")
    assert world.client.view(world.name)["phase"] == "planning"
    assert world.view().rows == 0
    assert world.client.view(world.name)["phase"] == "live"
    world.put(world.orders, id="1", status="paid", total=10)
    world.put(world.orders, id="2", status="paid", total=20)
    world.put(world.orders, id="3", status="new", total=5)
    done = world.view()
    assert done.rows == 3
    found = world.client.call("GetItem", {"TableName": world.name, "Key": {"status": {"S": "paid"}}})["Item"]
    assert found == {"status": {"S": "paid"}, "n": {"N": "2"}, "total": {"N": "30"}}
    world.put(world.orders, id="3", status="paid", total=5)
    world.delete(world.orders, "1")
    assert world.view().rows == 2
    world.check()
    job = next(each for each in world.client.jobs() if each["name"] == world.name)
    assert (job["kind"], job["state"], job["rows"]) == ("view", "stopped", 5)


def test_what_does_not_change_the_view_leaves_no_record(world: World) -> None:
    world.create("SELECT status, count(*) AS n FROM {o} GROUP BY status")
    world.put(world.orders, id="1", status="paid", total=10)
    world.view()
    before = world.client.stream_info(world.name)["latest"]
    world.put(world.orders, id="1", status="paid", total=20)
    assert world.view().rows == 1
    assert world.client.stream_info(world.name)["latest"] == before


def test_a_job_of_an_additive_view_that_restarts_reads_no_items(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create(
        "SELECT status, n, mean, 100 / s AS part FROM (SELECT status, count(*) AS n, avg(total) AS mean, "
        "sum(total) AS s FROM {o} GROUP BY status) WHERE s <> 0"
    )
    world.put(world.orders, id="1", status="paid", total=-7)
    world.put(world.orders, id="2", status="sent", total=-7)
    world.put(world.orders, id="3", status="sent", total=7)  # a group without a row, and with partials
    assert world.view().filled > 0

    def read(self: SourceTableReader) -> int:
        raise AssertionError("the items of the source are read again")

    world.put(world.orders, id="4", status="sent", total=5)
    with monkeypatch.context() as patched:
        patched.setattr(SourceTableReader, "read_items", read)
        assert world.view().rows == 1
    found = world.check()
    assert {each["status"]: (each["n"], each.get("part")) for each in found}["sent"] == (3.0, 20.0)


def test_of_two_jobs_that_each_saw_one_side_of_a_join_one_starts_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("SELECT c.country, count(*) AS n FROM {o} o JOIN {c} c ON o.customer = c.id GROUP BY c.country")
    world.view()
    world.put(world.orders, id="1", customer="x")
    apply, sent = Client.apply_view, []

    def late(self: Client, name: str, body: Any) -> dict[str, Any]:
        """While this job has worked out what the order means without a customer, another one sees the customer too."""
        sent.append(set(body["ranges"]))
        if len(sent) == 1:
            world.put(world.customers, id="x", country="de")
            world.view()
        return apply(self, name, body)

    monkeypatch.setattr(Client, "apply_view", late)
    world.view()
    assert len(world.check()) == 1
    assert {len(logs) for logs in sent} == {2}


def test_a_late_start_is_filled_and_then_follows_also_what_goes_away(world: World) -> None:
    source = random.Random(5)
    world.load(source, 40)
    names = [world.create(AGGREGATES, "a"), world.create(ROWS, "b"), world.create(LEFT, "c")]
    for name in names:
        done = world.view(name)
        assert done.filled > 0 and done.rows == 0
        world.check(name)
    world.load(source, 20)
    for name in names:
        done = world.view(name, max_records=10)
        assert done.filled == 0 and done.rows > 0 and done.batches > 1
        world.check(name)


def test_a_filling_that_crashed_is_begun_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_job, "TAKEOVER_S", 0.5)
    world.load(random.Random(6), 30)
    world.create(AGGREGATES)
    world.view()
    fill = world.client.fill_view(world.name, {"step": "begin"})["fill"]
    stage = world.client.stage([["PUT", {"status": {"S": "left over"}}]], table=world.name)
    world.client.fill_view(world.name, {"step": "piece", "fill": fill, "piece": 1, "stages": [stage]})
    assert world.view().filled > 0
    world.check()
    with pytest.raises(Error, match="not being filled"):
        world.client.fill_view(world.name, {"step": "finish", "fill": fill, "sequences": {}})


def test_a_lost_thread_is_found_again_by_filling(world: World) -> None:
    world.create(AGGREGATES)
    world.load(random.Random(7), 10)
    world.view()
    world.client.sql(f"ALTER TABLE {world.orders} DISABLE STREAM")
    world.put(world.orders, id="unseen", status="paid", total=1)
    world.client.sql(f"ALTER TABLE {world.orders} ENABLE STREAM")
    assert "disabled" in world.client.view(world.name)["stale"]
    assert world.view().filled > 0
    world.check()


def test_a_batch_that_is_too_large_is_cut_or_the_view_is_filled_again(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(served.url) as client:
        own = World(world.spark, client, served.url, "cut")
        own.create("SELECT id, count(*) AS n, max(total) AS most FROM {o} GROUP BY id")
        own.view()
        own.load(random.Random(8), 10)
        monkeypatch.setattr(limits, "VIEW_ROWS_MAX", 2)
        monkeypatch.setattr(view_job, "MIN_RECORDS", 3)
        own.view(max_records=48)  # 48, 12, 3, and then the view is filled
        own.check()


def test_two_at_once(world: World) -> None:
    world.create("SELECT status, count(*) AS n, sum(total) AS total FROM {o} GROUP BY status")
    source = random.Random(9)
    world.load(source, 10)
    world.view(max_records=5)
    world.load(source, 15)
    threads = [threading.Thread(target=lambda: world.view(max_records=4)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE_S)
    world.check()


def test_a_view_of_a_view(world: World) -> None:
    world.create("SELECT customer, sum(total) AS total FROM {o} GROUP BY customer")
    world.load(random.Random(12), 10)
    world.view()
    world.client.sql(
        f"CREATE MATERIALIZED VIEW {world.name}2 AS SELECT c.country, count(*) AS n, max(v.total) AS most "
        f"FROM {world.name} v JOIN {world.customers} c ON v.customer = c.id GROUP BY c.country"
    )
    world.view(f"{world.name}2")
    world.check(f"{world.name}2")
    world.load(random.Random(13), 10)
    world.view()
    world.view(f"{world.name}2")
    world.check()
    world.check(f"{world.name}2")


def test_topics_are_sources(world: World) -> None:
    topic = f"{world.name}_events"
    world.client.sql(f"CREATE TOPIC {topic} PARTITIONS 2")
    status, total = "variant_get(value, '$.status', 'string')", "variant_get(value, '$.total', 'decimal(12,2)')"
    sums = world.create(f"SELECT {status} AS status, count(*) AS n, sum({total}) AS s FROM {topic} GROUP BY 1", "a")
    most = world.create(f"SELECT {status} AS status, max({total}) AS m FROM {topic} GROUP BY 1", "b")
    longest = world.create(
        f"SELECT partition % 1 AS p, max_by(value, length(payload)) AS doc FROM {topic} GROUP BY 1", "c"
    )

    def publish(*payloads: Any) -> None:
        for number, payload in enumerate(payloads):
            world.client.publish(topic, payload, key=str(number))

    publish({"status": "x", "total": 5}, {"status": "y", "total": 7.25}, b"no JSON")
    for name in (sums, most, longest):
        assert world.view(name).filled == (1 if name == longest else 3)
    publish({"status": "x", "total": 9.5}, {"status": "y"}, b"none either", {"long": [1.25, None, {"b": "c" * 9}]})
    for name in (sums, most, longest):
        done = world.view(name)
        assert (done.filled, done.rows) == (0, 4)
        world.check(name)
    assert [world.client.view(name)["strategy"] for name in (sums, most)] == ["additive", "groups"]
    found = world.client.call("GetItem", {"TableName": longest, "Key": {"p": {"S": "0"}}})["Item"]
    document = {"long": {"L": [{"N": "1.25"}, {"NULL": True}, {"M": {"b": {"S": "c" * 9}}}]}}
    assert found["doc"] == {"M": document}, "VARIANT is stored as the document that it holds"

    # Messages that have left the topic stay counted. A view that would need them again stops, until it is refreshed.
    world.client.sql(f"CLEAR TOPIC {topic}")
    publish({"status": "x", "total": 1})
    world.view(sums)
    found = world.client.call("GetItem", {"TableName": sums, "Key": {"status": {"S": "x"}}})["Item"]
    assert found == {"status": {"S": "x"}, "n": {"N": "3"}, "s": {"N": "15.5"}}
    with pytest.raises(Error, match="have left the topic"):
        world.view(most)
    assert world.client.call("Scan", {"TableName": most})["Count"] == 3, "its rows stay"
    world.client.sql(f"ALTER MATERIALIZED VIEW {most} REFRESH")
    world.view(most)
    assert len(world.check(most)) == 1


def test_what_spark_refuses_is_invalid_with_its_message(world: World) -> None:
    world.create("SELECT no_such_function(status) AS x FROM {o}")
    with pytest.raises(Invalid, match="no_such_function"):
        world.view()
    known = world.client.view(world.name)
    assert known["phase"] == "invalid"
    assert "no_such_function" in known["message"]
    world.client.sql(f"DROP MATERIALIZED VIEW {world.name}")
    world.create("SELECT id, make_dt_interval(1) AS x FROM {o}")
    with pytest.raises(Invalid, match="the column 'x' is interval day to second, which a table cannot store"):
        world.view()
    known = world.client.view(world.name)
    assert (known["phase"], "CAST(x AS STRING)" in known["message"]) == ("invalid", True)


def test_a_row_that_fails_is_named_with_its_column(world: World) -> None:
    name = world.create("SELECT id, upper(customer) AS c, CAST(status AS INT) AS number FROM {o}")
    # A view that adds up does not read the key, until it has to name it.
    added = world.create("SELECT customer, sum(CAST(status AS BIGINT)) AS s FROM {o} GROUP BY customer", "s")
    world.put(world.orders, id="first", status="1")
    world.view()
    world.view(added)
    world.put(world.orders, id="good", status="8")
    world.put(world.orders, id="bad", status="eight")
    failed = r"the column 'number' of the SELECT fails for .*, key \{'id': 'bad'\}: The value 'eight'"
    with pytest.raises(Error, match=failed):
        world.view()
    assert "'bad'" in world.client.view(name)["message"]
    with pytest.raises(Error, match=r"key \{'id': 'bad'\}: The value 'eight'"):
        world.view(added)


def test_a_view_counts_rows_without_the_columns_that_it_names(world: World) -> None:
    grouped = world.create("SELECT status, count(*) AS n, sum(total) AS total FROM {o} GROUP BY status", "a")
    counted = world.create("SELECT count(*) AS n FROM {o}", "b")
    for name in (grouped, counted):
        world.view(name)
    world.put(world.orders, id="bare")
    world.put(world.orders, id="gone", status="paid")
    world.put(world.orders, id="bare", customer="x")
    world.delete(world.orders, "gone")
    world.put(world.orders, id="other")
    for name in (grouped, counted):
        assert world.view(name).filled == 0
        (row,) = world.check(name)
        assert row["n"] == 2


def test_a_result_that_changes_by_itself_is_computed_again(world: World) -> None:
    world.create("SELECT id, status, map('s', status, 't', NULL) AS m, now() > TIMESTAMP '2000-01-01' AS late FROM {o}")
    world.load(random.Random(14), 10)
    world.view()
    assert world.client.view(world.name)["strategy"] == "interval"
    world.load(random.Random(15), 10)
    world.delete(world.orders, "a")
    # Each batch but the first is compared with the one before. A row that is the same is not written again.
    assert world.view(max_records=5).batches > 1
    world.check()


def test_explain_and_refresh(world: World) -> None:
    world.create("SELECT status, count(*) AS n FROM {o} GROUP BY status")
    world.put(world.orders, id="1", status="paid", total=10)
    world.view()
    rows = [tuple(row.values()) for row in world.client.sql(f"EXPLAIN MATERIALIZED VIEW {world.name}")[-1].rows]
    assert ("strategy", "additive") in rows and ("key", "status S") in rows and ("column", "n bigint") in rows
    world.client.sql(f"ALTER MATERIALIZED VIEW {world.name} REFRESH")
    assert world.client.view(world.name)["phase"] == "new"
    assert world.view().filled == 1
    world.check()


def test_it_goes_on_until_it_is_stopped_and_reports_progress(world: World) -> None:
    world.create(AGGREGATES)
    reports: list[Any] = []
    stop = threading.Event()
    result: list[Any] = []
    thread = threading.Thread(
        target=lambda: result.append(
            world.view(once=False, interval_s=0.2, stop=stop, on_progress=lambda each: reports.append(each))
        )
    )
    thread.start()
    try:
        world.load(random.Random(10), 15)
        _until(lambda: sum(each.batch_rows for each in reports if each.batch_rows) > 0)
        world.load(random.Random(11), 15)
        _until(lambda: all(s["position"] == s["next"] for s in world.client.view(world.name)["sources"]))
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    world.check()
    assert result and result[0].rows > 0
    assert {"running", "stopped"} <= {each.state for each in reports}


def _until(met: Any, within_s: float = PATIENCE_S) -> None:
    import time

    end = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def test_errors_are_reported_in_our_words(world: World) -> None:
    with pytest.raises(NotFound, match="there is no materialized view 'nope'"):
        world.view("nope")
    with pytest.raises(Invalid, match="max_records"):
        world.view(max_records=0)
    with pytest.raises(Error, match="cannot reach"):
        from tailrace.spark.jobs.view import view

        view(world.spark, "any", url="http://127.0.0.1:9", once=True)
    world.create("SELECT count(*) AS n FROM {o}")
    world.client.sql(f"DROP TABLE {world.orders}")
    with pytest.raises(Error, match="orders"):
        world.view()

"""Materialized views on the server: created, planned, filled, advanced exactly once, refreshed, dropped."""

# ruff: noqa: E501 - queries are on one line

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlglot

import tailrace
from tailrace import limits
from tailrace.access import ROLES, Access, Permission, Principal
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Fenced, Forbidden, InUse, Invalid, NotFound, TableNotFound, TooLarge
from tailrace.jobs import view_sql
from tailrace.jobs.apply import ApplyView, RewriteView
from tailrace.jobs.commands import DropJob, PinPositions
from tailrace.jobs.tracing import TracedJob, trace_write
from tailrace.jobs.view import CreateView, DescribeView, DropView, ListViews, PlanView, ViewShape, sql_kind
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill
from tailrace.scalar.problem import ExpressionError
from tailrace.sql.session import Session
from tailrace.tables.plain import Delete, Put
from tests.support.views import Items, advance, check, fill, plan, run, stage

TABLES = """
    CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, total DECIMAL, customer TEXT) WITH (stream = true);
    CREATE TABLE customers (id TEXT PRIMARY KEY, country TEXT) WITH (stream = true);
"""
TOTALS = "SELECT status, count(*) AS n, sum(total) AS total FROM orders GROUP BY status"
JOINED = "SELECT country AS status, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id GROUP BY country"


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        run(opened, TABLES)
        yield opened
    assert check_database(data_dir).findings == []


def create(db: Database, sql: str = TOTALS, name: str = "app.totals") -> str:
    run(db, f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    return name


def live(db: Database, sql: str = TOTALS, name: str = "app.totals") -> str:
    create(db, sql, name)
    plan(db, name, ("status", "string"), ("n", "bigint"), ("total", "decimal(38,18)"))
    fill(db, name)
    return name


def put(db: Database, *orders: dict[str, Any]) -> None:
    db.batch_write([Put("orders", each) for each in orders])


def items(db: Database, name: str) -> list[dict[str, Any]]:
    from tailrace.tables.value import item_to_plain

    return sorted((item_to_plain(each) for each in db.execute(Items(name))[1]), key=repr)


def test_a_write_is_followed_to_the_rows_of_a_view(db: Database) -> None:
    def traced(sequence: int) -> TracedJob:
        (job,) = trace_write(db.execute, "orders", sequence, None, None).jobs
        return job

    def last(count: int = 1) -> list[int]:
        return [each.sequence for each in db.table("orders").changes()][-count:]

    put(db, {"id": "1", "status": "open", "total": 1, "customer": "a"})
    name = live(db)
    put(db, {"id": "2", "status": "open", "total": 2, "customer": "a"})
    put(db, {"id": "3", "status": "paid", "total": 3, "customer": "a"})
    both = last(2)
    assert not traced(both[0]).applied and traced(both[0]).moved is None
    advance(db, name)
    for sequence in both:
        found = traced(sequence).moved
        assert found is not None and not found.alone and not found.more
        assert sorted(record.keys["status"]["S"] for record in found.records) == ["open", "paid"]
    put(db, {"id": "2", "status": "open", "total": 5, "customer": "a"}, {"id": "4", "status": "open", "total": 1})
    (sequence,) = set(last(2))
    advance(db, name)
    found = traced(sequence).moved
    assert found is not None and found.alone  # two rows, but one write
    (record,) = found.records
    assert record.event == "MODIFY" and record.new is not None and record.new["n"] == {"N": "3"}
    filled = traced(db.table("orders").changes()[0].sequence)
    assert filled.applied and filled.moved is None  # the filling had it
    run(db, f"DROP MATERIALIZED VIEW {name}")  # and nothing is left, as the check at the end finds


# -- topics


EVENTS = "SELECT variant_get(value, '$.status', 'string') AS status, count(*) AS n FROM events GROUP BY 1"


def of_topic(db: Database) -> str:
    """A view of a topic with two partitions and a message in each, which is filled."""
    run(db, "CREATE TOPIC events PARTITIONS 2")
    for partition in range(2):
        db.publish("events", b"{}", partition=partition)
    name = create(db, EVENTS)
    plan(db, name, ("status", "string"), ("n", "bigint"))
    fill_topic(db, name)
    return name


def fill_topic(db: Database, name: str, *, requested: bool = False) -> None:
    number = db.execute(BeginFill(name, requested))
    ends = {source.log: source.next for source in db.execute(DescribeView(name)).sources}
    db.execute(FinishFill(name, number, {}, ends))


def test_the_partitions_of_a_topic_are_sources(db: Database) -> None:
    name = of_topic(db)
    found = db.execute(DescribeView(name))
    assert [(each.table, each.partition, each.first) for each in found.tables] == [("events", 0, 0), ("events", 1, 0)]
    assert [(each.partition, each.position, each.next) for each in found.sources] == [(0, 1, 1), (1, 1, 1)]
    assert run(db, "SHOW MATERIALIZED VIEWS")[0]["sources"] == "events"
    db.publish("events", b"{}", partition=1)
    first, second = db.execute(DescribeView(name)).sources
    ranges = {first.log: (1, 1), second.log: (1, 2)}
    assert db.execute(ApplyView(name, ranges, (), 1)).applied
    assert not db.execute(ApplyView(name, ranges, (), 1)).applied
    with pytest.raises(Invalid, match="does not end where an entry does"):
        db.execute(ApplyView(name, {first.log: (1, 1), second.log: (2, 9)}, (), 1))


def test_a_table_comes_before_a_topic_of_its_name_and_an_alias_is_refused(db: Database) -> None:
    run(db, "CREATE TOPIC orders WITH (alias = 'other')")
    found = db.execute(DescribeView(create(db)))
    assert [each.topic for each in found.tables] == [0]
    with pytest.raises(Invalid, match="alias of topic 'orders'"):
        create(db, "SELECT count(*) AS n FROM other", "app.aliased")


def test_a_view_of_a_topic_needs_a_grant_for_it() -> None:
    command = CreateView("app.totals", EVENTS, ("orders",), topics=("events",))
    assert command.subjects() == ("tables/app.totals", "tables/orders", "topics/events")


def test_messages_that_left_a_topic_are_not_forgotten_silently(db: Database) -> None:
    name = of_topic(db)
    run(db, "CLEAR TOPIC events")
    assert db.execute(DescribeView(name)).stale == "", "all messages were applied"
    with pytest.raises(Conflict, match=r"ALTER MATERIALIZED VIEW app\.totals REFRESH"):
        db.execute(BeginFill(name))
    assert db.execute(DescribeView(name)).phase == "live"
    run(db, f"ALTER MATERIALIZED VIEW {name} REFRESH")
    fill_topic(db, name)
    db.publish("events", b"{}", partition=1)
    run(db, "CLEAR TOPIC events")
    assert "trimmed before the view had applied them" in db.execute(DescribeView(name)).stale
    with pytest.raises(Conflict, match="have left the topic"):
        db.execute(BeginFill(name))
    fill_topic(db, name, requested=True)
    assert db.execute(DescribeView(name)).stale == ""
    run(db, "DROP TOPIC events")
    assert db.execute(DescribeView(name)).stale == "topic 'events' was dropped"


def test_positions_in_a_topic_are_checked_when_a_filling_ends(db: Database) -> None:
    name = of_topic(db)
    number = db.execute(BeginFill(name))
    first, second = (source.log for source in db.execute(DescribeView(name)).sources)
    with pytest.raises(Invalid, match="partition 1 of topic 'events' is missing"):
        db.execute(FinishFill(name, number, {}, {first: 1}))
    with pytest.raises(Invalid, match="ends at 1"):
        db.execute(FinishFill(name, number, {}, {first: 1, second: 7}))
    db.execute(FinishFill(name, number, {}, {first: 1, second: 0}))
    assert [each.position for each in db.execute(DescribeView(name)).sources] == [1, 0]


# -- life


def test_a_view_is_planned_then_filled_then_live(db: Database) -> None:
    put(db, {"id": "1", "status": "paid", "total": 10})
    name = create(db)
    found = db.execute(DescribeView(name))
    assert (found.phase, found.stale, found.keys, found.items) == ("planning", "it was not planned yet", (), 0)
    with pytest.raises(TableNotFound):
        run(db, f"DESCRIBE {name}")
    with pytest.raises(Conflict, match="plan it"):
        db.execute(BeginFill(name))
    plan(db, name, ("status", "string"), ("n", "bigint"))
    found = db.execute(DescribeView(name))
    assert (found.phase, found.keys) == ("new", (("status", "S"),))
    with pytest.raises(Conflict, match="fill it first"):
        db.execute(ApplyView(name, {found.sources[0].log: (1, 2)}))
    fill(db, name)
    found = db.execute(DescribeView(name))
    assert (found.phase, found.stale, found.items) == ("live", "", 1)
    assert items(db, name) == [{"status": "paid", "n": 1, "total": 10}]
    assert [each.name for each in db.execute(ListViews())] == [name]
    (row,) = run(db, "SELECT name, kind, source, target, state FROM system.pipelines")
    assert row == {
        "name": name, "kind": "view", "source": "tables/orders", "target": "tables/app.totals", "state": "registered",
    }  # fmt: skip


def test_a_view_that_spark_refuses_is_invalid_until_it_is_refreshed(db: Database) -> None:
    name = create(db)
    db.execute(PlanView(name, None, "no such function"))
    found = db.execute(DescribeView(name))
    assert (found.phase, found.message) == ("invalid", "no such function")
    (row,) = run(db, "SHOW MATERIALIZED VIEWS")
    assert (row["phase"], row["message"]) == ("invalid", "no such function")
    run(db, f"ALTER MATERIALIZED VIEW {name} REFRESH")
    assert db.execute(DescribeView(name)).phase == "planning"


def test_a_live_view_stays_live_when_a_job_plans_it_again(db: Database) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    advance(db, name)
    plan(db, name, ("status", "string"), ("n", "bigint"))
    assert db.execute(DescribeView(name)).phase == "live"
    assert db.execute(PlanView(name, None, "out of memory")).phase == "live"
    plan(db, name, ("status", "string"), key=(("status", "S"), ("n", "N")))  # another key: another table
    found = db.execute(DescribeView(name))
    assert (found.phase, found.items, found.sources[0].position) == ("new", 0, None)


def test_its_name_and_its_table_are_its_own(db: Database) -> None:
    name = create(db)
    with pytest.raises(InUse, match=r"materialized view .* already; drop it"):
        create(db)
    assert run(db, f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS {TOTALS}") == []
    with pytest.raises(InUse, match="table 'orders' already"):
        create(db, name="orders")
    plan(db, name, ("status", "string"))
    with pytest.raises(Invalid, match="belongs to a materialized view"):
        run(db, f"DROP TABLE {name}")
    with pytest.raises(Invalid, match="one or two keys"):
        db.execute(PlanView(create(db, name="other"), ViewShape((), (), "delta")))


def test_a_dropped_view_leaves_nothing_and_can_be_recreated(db: Database) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    advance(db, name)
    run(db, f"DROP MATERIALIZED VIEW {name}")
    assert db.execute(ListViews()) == []
    assert [row["name"] for row in run(db, "SHOW TABLES")] == ["customers", "orders"]
    with pytest.raises(NotFound, match="SHOW MATERIALIZED VIEWS"):
        run(db, f"DROP MATERIALIZED VIEW {name}")
    assert db.execute(DropView(name, if_exists=True)) is False
    create(db)
    run(db, f"DROP MATERIALIZED VIEW {name}")  # also before it has a table
    live(db)
    check(db, name)


def test_a_source_must_record_old_and_new_images(db: Database) -> None:
    run(
        db,
        "CREATE TABLE quiet (id TEXT PRIMARY KEY); CREATE TABLE half (id TEXT PRIMARY KEY) WITH (stream = 'NEW_IMAGE')",
    )
    with pytest.raises(Invalid, match="run ALTER TABLE quiet ENABLE STREAM WITH") as caught:
        create(db, "SELECT count(*) AS n FROM quiet")
    assert caught.value.code == "STREAM_NEEDED"
    with pytest.raises(
        Invalid, match=r"NEW_IMAGE, and .* run ALTER TABLE half DISABLE STREAM; ALTER TABLE half ENABLE"
    ):
        create(db, "SELECT count(*) AS n FROM half")
    with pytest.raises(TableNotFound):
        create(db, "SELECT count(*) AS n FROM nowhere")
    assert db.execute(ListViews()) == []


def test_permissions(db: Database) -> None:
    user = Principal("u", ROLES["user"], "user")
    made = CreateView("view", TOTALS, ("orders",))
    with pytest.raises(Forbidden):
        db.execute(made, user)
    some = Principal("s", ROLES["dba"], "dba", Access(("tables/v*",)))
    with pytest.raises(Forbidden, match="tables/orders"):
        db.execute(made, some)
    db.execute(made, Principal("s", ROLES["dba"], "dba", Access(("tables/v*", "tables/orders"))))
    assert db.execute(DescribeView("view"), user).phase == "planning"
    with pytest.raises(Forbidden):
        db.execute(ApplyView("view", {}), Principal("o", ROLES["user"], "user", Access(("tables/orders",))))
    with pytest.raises(Forbidden):
        db.execute(DropView("view"), user)
    reader = Principal("r", frozenset((Permission.READ,)), "user")
    assert db.execute(DescribeView("view"), reader).name == "view"
    for other in (reader, user):
        for command in (ApplyView("view", {}), PlanView("view", None, "x"), BeginFill("view")):
            with pytest.raises(Forbidden, match="jobs"):
                db.execute(command, other)
    service = Principal("job", ROLES["service"], "service")
    assert db.execute(PlanView("view", None, "x"), service).phase == "invalid"


def test_the_job_of_a_view_goes_with_it(db: Database) -> None:
    name = create(db)
    with pytest.raises(Conflict, match=f"DROP MATERIALIZED VIEW {name}") as caught:
        db.execute(DropJob(name))
    assert caught.value.code == "IS_VIEW"
    with pytest.raises(Conflict, match="starts where it was created"):
        db.execute(PinPositions(name, {99: 10**15}))


def test_explain(db: Database) -> None:
    name = create(db)
    assert {"property": "phase", "value": "planning"} in run(db, f"EXPLAIN MATERIALIZED VIEW {name}")
    plan(db, name, ("status", "string"), ("n", "bigint"))
    rows = run(db, f"EXPLAIN MATERIALIZED VIEW {name}")
    assert {"property": "strategy", "value": "groups"} in rows
    assert {"property": "column", "value": "n bigint"} in rows
    assert {"property": "derivative", "value": "Aggregate: affected groups [status]"} in rows


# -- advancing


def test_a_batch_counts_once(db: Database) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    ranges = {source.log: (source.position or 0, source.next)}

    def staged(n: int) -> tuple[str, ...]:
        return (stage(db, name, [("PUT", {"status": {"S": "paid"}, "n": {"N": str(n)}, "total": {"N": "10"}})]),)

    assert db.execute(ApplyView(name, ranges, staged(1), 1)).applied
    again = db.execute(ApplyView(name, ranges, staged(2), 1))
    assert not again.applied and again.positions == {source.log: source.next}
    check(db, name)
    with pytest.raises(Fenced):
        db.execute(ApplyView(name, {source.log: (source.next - 1, source.next + 5)}, staged(3)))
    with pytest.raises(Invalid, match="is not a source"):
        db.execute(ApplyView(name, {source.log + 99: (1, 2)}))
    assert db.execute(DescribeView(name)).rows == 1


def test_a_batch_that_cannot_be_written_changes_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    ranges = {source.log: (source.position or 0, source.next)}
    with pytest.raises(NotFound, match="there is no stage"):
        db.execute(ApplyView(name, ranges, ("nope",)))
    other = stage(db, "orders", [("PUT", {"id": {"S": "x"}})])
    with pytest.raises(Conflict, match="is for tables/orders"):
        db.execute(ApplyView(name, ranges, (other,)))
    monkeypatch.setattr(limits, "VIEW_ROWS_MAX", 0)
    mine = stage(db, name, [("PUT", {"status": {"S": "paid"}})])
    with pytest.raises(TooLarge, match="shorter ranges"):
        db.execute(ApplyView(name, ranges, (mine,)))
    assert db.execute(DescribeView(name)).sources[0].position == source.position
    assert items(db, name) == []


def test_a_range_ends_where_an_entry_does(db: Database) -> None:
    name = live(db)
    db.batch_write([Put("customers", {"id": "1"})])  # a sequence that is not of this log
    put(db, {"id": "1", "status": "x", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    at = source.position or 0
    assert source.next > at + 1
    for end in (at + 1, source.next + 1, 10**15):
        with pytest.raises(Invalid, match=r"does not end where an entry does") as caught:
            db.execute(ApplyView(name, {source.log: (at, end)}))
        assert caught.value.code == "INVALID_RANGE"
    assert db.execute(DescribeView(name)).sources[0].position == at
    assert db.execute(ApplyView(name, {source.log: (at, source.next)})).applied


def test_of_two_jobs_that_each_saw_one_side_of_a_join_one_starts_over(db: Database) -> None:
    name = live(db, JOINED)

    def ranges(changed: int) -> dict[int, tuple[int, int]]:
        sources = db.execute(DescribeView(name)).sources
        return {
            each.log: (each.position or 0, each.next if side == changed else each.position or 0)
            for side, each in enumerate(sources)
        }

    put(db, {"id": "1", "customer": "x"})
    first = ranges(0)  # the other side has nothing yet
    db.batch_write([Put("customers", {"id": "x", "country": "de"})])
    second = ranges(1)
    assert db.execute(ApplyView(name, first)).applied
    with pytest.raises(Fenced):
        db.execute(ApplyView(name, second))
    log = max(second, key=lambda each: second[each][1] - second[each][0])
    with pytest.raises(Invalid, match="is missing, which is a source") as caught:
        db.execute(ApplyView(name, {log: second[log]}))
    assert caught.value.code == "INVALID_RANGE"
    assert advance(db, name) is not None
    check(db, name)


def test_rows_that_stay_leave_no_record(db: Database) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10}, {"id": "2", "status": "paid", "total": 20})
    advance(db, name)
    assert items(db, name) == [{"status": "paid", "n": 2, "total": 30}]
    put(db, {"id": "1", "status": "paid", "total": 10, "customer": "x"})
    advance(db, name)
    assert len(list(db.table(name).changes())) == 1
    db.batch_write([Delete("orders", "1"), Delete("orders", "2")])
    advance(db, name)
    assert items(db, name) == []
    assert [each.event for each in db.table(name).changes()] == ["INSERT", "REMOVE"]


def test_a_result_that_changes_by_itself_is_written_at_its_positions(db: Database) -> None:
    name = live(db)
    source = db.execute(DescribeView(name)).sources[0]
    row = ("PUT", {"status": {"S": "paid"}, "n": {"N": "1"}})
    assert db.execute(RewriteView(name, {source.log: source.position or 0}, (stage(db, name, [row]),)))
    assert not db.execute(
        RewriteView(name, {source.log: 10**6}, (stage(db, name, [("PUT", {"status": {"S": "no"}})]),))
    )
    assert items(db, name) == [{"status": "paid", "n": 1}]


# -- filling


def test_a_filling_that_another_job_took_over_is_refused(db: Database) -> None:
    name = live(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    advance(db, name)
    first = db.execute(BeginFill(name))
    assert db.execute(DescribeView(name)).phase == "filling"
    second = db.execute(BeginFill(name))
    with pytest.raises(Fenced, match="not being filled by"):
        db.execute(ClearRows(name, first))
    assert db.execute(ClearRows(name, second)) is False
    row = stage(db, name, [("PUT", {"status": {"S": "paid"}, "n": {"N": "1"}, "total": {"N": "10"}})])
    with pytest.raises(Fenced, match="2 is not the next"):
        db.execute(FillRows(name, second, 2, (row,)))
    assert db.execute(FillRows(name, second, 1, (row,)))
    with pytest.raises(Invalid, match="the sequence of table 'orders' is missing"):
        db.execute(FinishFill(name, second, {}))
    assert db.execute(FinishFill(name, second, {"orders": db.execute(Items("orders"))[0]})).phase == "live"
    check(db, name)


def test_a_source_whose_changes_were_lost_makes_the_view_stale(db: Database) -> None:
    name = live(db)
    run(db, "ALTER TABLE orders DISABLE STREAM; ALTER TABLE orders ENABLE STREAM")
    assert "was disabled since" in db.execute(DescribeView(name)).stale
    fill(db, name)
    assert db.execute(DescribeView(name)).stale == ""


# -- the text


@pytest.mark.parametrize(
    ("sql", "tables", "renamed"),
    [
        ("SELECT * FROM orders", ("orders",), "SELECT * FROM `t0` AS `orders`"),
        ("SELECT o.id FROM app.orders o", ("app.orders",), "SELECT o.id FROM `t0` o"),
        ("SELECT app.x.id FROM app.x", ("app.x",), "SELECT `x`.id FROM `t0` AS `x`"),
        (
            "WITH a AS (SELECT 1 FROM b) SELECT * FROM a JOIN `c-d` USING (x)",
            ("c-d", "b"),
            "WITH a AS (SELECT 1 FROM `t1` AS `b`) SELECT * FROM a JOIN `t0` AS `c-d` USING (x)",
        ),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ("a",), "WITH a AS (SELECT * FROM `t0` AS `a`) SELECT * FROM a"),
        (
            "WITH RECURSIVE c AS (SELECT x FROM a UNION ALL SELECT a.x FROM a JOIN c ON a.p = c.x) SELECT * FROM c",
            ("a",),
            "WITH RECURSIVE c AS (SELECT x FROM `t0` AS `a` UNION ALL SELECT a.x FROM `t0` AS `a` JOIN c ON a.p = c.x) "
            "SELECT * FROM c",
        ),
        (
            "SELECT window.start FROM a WHERE x IN (SELECT y FROM b) GROUP BY window(t, '1 minute')",
            ("a", "b"),
            "SELECT window.start FROM `t0` AS `a` WHERE x IN (SELECT y FROM `t1` AS `b`) GROUP BY window(t, '1 minute')",
        ),
        (
            "SELECT /*+ BROADCAST(c), MERGE(x.o) */ x.o.id FROM x.o JOIN b c ON x.o.c = c.id",
            ("x.o", "b"),
            "SELECT /*+ BROADCAST(c), MERGE(x.o) */ `o`.id FROM `t0` AS `o` JOIN `t1` c ON `o`.c = c.id",
        ),
        (
            "SELECT /*+ SHUFFLE_HASH(a), REPARTITION(3, x.o.id) */ * FROM a JOIN x.o USING (id)",
            ("a", "x.o"),
            "SELECT /*+ SHUFFLE_HASH(a), REPARTITION(3, x.o.id) */ * FROM `t0` AS `a` JOIN `t1` AS `o` USING (id)",
        ),
        ("SELECT value:q.z[0]::int AS z, e.value:kind FROM a.b e", ("a.b",), "SELECT value:q.z[0]::int AS z, e.value:kind FROM `t0` e"),
        ("SELECT 1 FROM a UNION ALL SELECT 2 FROM b", ("a", "b"), "SELECT 1 FROM `t0` AS `a` UNION ALL SELECT 2 FROM `t1` AS `b`"),
    ],
)  # fmt: skip
def test_the_tables_in_a_select(sql: str, tables: tuple[str, ...], renamed: str) -> None:
    assert view_sql.tables(sql) == tables
    assert view_sql.renamed(sql, {name: f"t{index}" for index, name in enumerate(tables)}) == renamed


def test_text_that_is_not_the_name_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = sqlglot.parse

    def shifted(text: str, **options: Any) -> Any:
        return parse("  " + text, **options)

    monkeypatch.setattr(sqlglot, "parse", shifted)
    with pytest.raises(ExpressionError, match="the name 'orders' is not found in the SELECT"):
        view_sql.renamed("SELECT id FROM orders", {"orders": "t0"})


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1", "reads none"),
        ("SELECT * FROM system.tables", "no changes to follow"),
        ("DELETE FROM a", "one SELECT"),
        ("SELECT * FROM a; SELECT * FROM b", "one SELECT"),
        ("SELECT * FROM a WHERE x = ?", "no parameter"),
        ("SELECT (((", "cannot be read"),
        ("SELECT " + "x," * 9_000 + "y FROM a", "at most"),
    ],
)
def test_texts_that_are_refused(sql: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        view_sql.tables(sql)


def test_types_of_spark_in_sql() -> None:
    kinds = {
        "decimal(38,18)": "DECIMAL",
        "int": "BIGINT",
        "struct<a:int>": "JSON",
        "timestamp": "TEXT",
        "double": "DOUBLE",
    }
    assert {kind: sql_kind(kind) for kind in kinds} == kinds


def test_an_administrator_of_some_tables_creates_views(tmp_path: Path) -> None:
    ann = Principal("ann", ROLES["dba"], "dba", Access(("tables/app*",)))
    with tailrace.open(tmp_path / "data") as db:
        run(db, "CREATE TABLE app_o (id TEXT PRIMARY KEY, s TEXT) WITH (stream = true)")
        text = "CREATE MATERIALIZED VIEW app_v AS SELECT s, count(*) AS n FROM app_o GROUP BY s"
        Session(lambda command: db.execute(command, ann)).run(text, ())
        assert db.execute(DescribeView("app_v"), ann).name == "app_v"


def test_rows_of_a_recreated_topic_are_refused(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "data") as db:

        def publish(count: int) -> None:
            for _ in range(count):
                run(db, "PUBLISH TO ev VALUES ('{}')")

        run(db, "CREATE TOPIC ev")
        publish(2)
        run(db, "CREATE MATERIALIZED VIEW vw AS SELECT count(*) AS n FROM ev")
        plan(db, "vw", ("n", "bigint"), key=(("key", "S"),))
        begun_fill = db.execute(BeginFill("vw"))
        ends = {each.log: each.next for each in db.execute(DescribeView("vw")).sources}
        db.execute(FinishFill("vw", begun_fill, {}, ends))
        publish(3)
        ranges = {each.log: (each.position or 0, each.next) for each in db.execute(DescribeView("vw")).sources}
        run(db, "DROP TOPIC ev; CREATE TOPIC ev")
        publish(6)
        with pytest.raises(Conflict, match="recreated"):
            db.execute(ApplyView("vw", ranges, (), 3))
        run(db, "ALTER MATERIALIZED VIEW vw REFRESH")
        begun_fill = db.execute(BeginFill("vw"))
        logs = [each.log for each in db.execute(DescribeView("vw")).sources]
        run(db, "DROP TOPIC ev; CREATE TOPIC ev")
        publish(2)
        with pytest.raises(Conflict, match="recreated"):
            db.execute(FinishFill("vw", begun_fill, {}, dict.fromkeys(logs, 2)))

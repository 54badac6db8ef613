"""Materialized views on the server: made, described, moved on exactly once, filled, dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.access import ROLES, Access, Permission, Principal
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Fenced, Forbidden, InUse, Invalid, NotFound, TableNotFound, TooLarge
from tailrace.jobs import apply, view
from tailrace.jobs.apply import ApplyView, EncodedDelta, ReadHeld
from tailrace.jobs.commands import DropJob, PinPositions, RegisterJob
from tailrace.jobs.view import CreateView, DescribeView, DropView, ListViews
from tailrace.jobs.view_delta import Delta
from tailrace.jobs.view_fill import BeginFill, ClearRows, FillRows, FinishFill
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import change
from tailrace.tables.change_reading import ReadEntries
from tailrace.tables.plain import Delete, Put
from tests.support.views import Items, advance, check, fill, moves, planned, rows_of, run, work_out
from tests.unit.test_cold_reads import All, DictCache, Tiered

TABLES = """
    CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT, total DECIMAL, customer TEXT) WITH (stream = true);
    CREATE TABLE customers (id TEXT PRIMARY KEY, country TEXT) WITH (stream = true);
"""
TOTALS = "SELECT status, count(*) AS n, sum(total) AS total FROM orders GROUP BY status"


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        run(opened, TABLES)
        yield opened
    assert check_database(data_dir).findings == []


def create(db: Database, sql: str = TOTALS, name: str = "app.totals") -> str:
    run(db, f"CREATE MATERIALIZED VIEW {name} AS {sql}")
    return name


def put(db: Database, *orders: dict[str, Any]) -> None:
    db.batch_write([Put("orders", each) for each in orders])


def items(db: Database, name: str) -> list[dict[str, Any]]:
    from tailrace.tables.value import item_to_plain

    return sorted((item_to_plain(each) for each in db.execute(Items(name))[1]), key=repr)


# -- life


def test_a_view_of_empty_tables_is_live_at_once(db: Database) -> None:
    name = create(db)
    found = db.execute(DescribeView(name))
    assert (found.phase, found.stale, found.keys, found.items) == ("live", "", (("status", "S"),), 0)
    assert [source.table for source in found.sources] == ["orders"]
    assert found.sources[0].position == found.sources[0].next
    assert [each.name for each in db.execute(ListViews())] == [name]
    (row,) = run(db, "SELECT name, kind, source, target, state FROM system.pipelines")
    assert row == {
        "name": name, "kind": "view", "source": "tables/orders", "target": "tables/app.totals", "state": "registered",
    }  # fmt: skip


def test_a_view_of_tables_with_rows_has_to_be_filled_first(db: Database) -> None:
    put(db, {"id": "1", "status": "paid", "total": 10})
    name = create(db)
    assert db.execute(DescribeView(name)).phase == "new"
    with pytest.raises(Conflict, match="fill it first"):
        db.execute(ApplyView(name, {db.execute(DescribeView(name)).sources[0].log: (1, 2)}, EncodedDelta()))
    fill(db, name)
    assert items(db, name) == [{"status": "paid", "n": 1, "total": 10}]


def test_its_name_and_its_tables_are_its_own(db: Database) -> None:
    name = create(db)
    with pytest.raises(InUse, match=r"materialized view .* already; drop it"):
        create(db)
    assert run(db, f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS {TOTALS}") == []
    with pytest.raises(InUse, match="table 'orders' already"):
        create(db, name="orders")
    for table in (name, f"{name}__state"):
        with pytest.raises(Invalid, match="belongs to a materialized view"):
            run(db, f"DROP TABLE {table}")
    run(db, "CREATE TABLE mine__state (id TEXT PRIMARY KEY)")
    with pytest.raises(InUse, match="mine__state"):
        create(db, name="mine")
    with pytest.raises(TableNotFound):
        run(db, "DESCRIBE mine")  # nothing is left of it


def test_a_dropped_view_leaves_nothing_and_can_be_recreated(db: Database) -> None:
    name = create(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    advance(db, name)
    run(db, f"DROP MATERIALIZED VIEW {name}")
    assert db.execute(ListViews()) == []
    assert [row["name"] for row in run(db, "SHOW TABLES")] == ["customers", "orders"]
    with pytest.raises(NotFound, match="SHOW MATERIALIZED VIEWS"):
        run(db, f"DROP MATERIALIZED VIEW {name}")
    assert db.execute(DropView(name, if_exists=True)) is False
    create(db)
    fill(db, name)
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


def test_who_may_what(db: Database) -> None:
    user = Principal("u", ROLES["user"], "user")
    made = CreateView("view", TOTALS, ("orders",))
    with pytest.raises(Forbidden):
        db.execute(made, user)
    some = Principal("s", ROLES["dba"], "dba", Access(("tables/v*",)))
    with pytest.raises(Forbidden, match="tables/orders"):
        db.execute(made, some)
    db.execute(made, Principal("s", ROLES["dba"], "dba", Access(("tables/v*", "tables/orders"))))
    assert db.execute(DescribeView("view"), user).phase == "live"
    with pytest.raises(Forbidden):
        db.execute(
            ApplyView("view", {}, EncodedDelta()), Principal("o", ROLES["user"], "user", Access(("tables/orders",)))
        )
    with pytest.raises(Forbidden):
        db.execute(DropView("view"), user)
    reader = Principal("r", frozenset((Permission.READ,)), "user")
    assert db.execute(DescribeView("view"), reader).name == "view"
    for other in (reader, user):
        with pytest.raises(Forbidden, match="jobs"):  # they are rows of the sources
            db.execute(ReadHeld("view", ()), other)
        with pytest.raises(Forbidden, match="jobs"):
            db.execute(ApplyView("view", {}, EncodedDelta()), other)
    assert db.execute(ReadHeld("view", ()), Principal("job", ROLES["service"], "service")) == []


def test_the_job_of_a_view_goes_with_it(db: Database) -> None:
    name = create(db)
    with pytest.raises(Conflict, match=f"DROP MATERIALIZED VIEW {name}") as caught:
        db.execute(DropJob(name))
    assert caught.value.code == "IS_VIEW"
    with pytest.raises(Conflict, match="starts where it was created"):
        db.execute(PinPositions(name, {99: 10**15}))
    db.execute(DropView(name))
    db.execute(RegisterJob("only-named-so", "view"))
    db.execute(DropJob("only-named-so"))


# -- moving on


def test_a_delta_counts_once(db: Database) -> None:
    name = create(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    ranges = {source.log: (source.position or 0, source.next)}
    delta = moves({"groups": [[[{"S": "paid"}], 1, [[1, 1, "10"]], []]], "rows": [], "joined": [], "records": 1})
    assert db.execute(ApplyView(name, ranges, delta)).applied
    again = db.execute(ApplyView(name, ranges, delta))
    assert not again.applied and again.positions == {source.log: source.next}
    check(db, name)
    with pytest.raises(Fenced):
        db.execute(ApplyView(name, {source.log: (source.next - 1, source.next + 5)}, delta))
    with pytest.raises(Invalid, match="is not a source"):
        db.execute(ApplyView(name, {source.log + 99: (1, 2)}, delta))
    assert db.execute(DescribeView(name)).rows == 1


def test_a_delta_that_does_not_fit_changes_nothing(db: Database) -> None:
    name = create(db)
    put(db, {"id": "1", "status": "paid", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    ranges = {source.log: (source.position or 0, source.next)}
    less = moves({"groups": [[[{"S": "paid"}], -1, [[-1, -1, "-10"]], []]], "rows": [], "joined": [], "records": 1})
    with pytest.raises(Conflict, match="fill it again") as caught:
        db.execute(ApplyView(name, ranges, less))
    assert caught.value.code == "VIEW_BROKEN"
    other = moves({"groups": [[[], 1, [], []]], "rows": [], "joined": [], "records": 1})
    with pytest.raises(Invalid, match="another SELECT"):
        db.execute(ApplyView(name, ranges, other))
    assert db.execute(DescribeView(name)).sources[0].position == source.position
    assert items(db, name) == []


def test_a_delta_has_a_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name = create(db)
    monkeypatch.setattr(limits, "VIEW_ENTRIES_MAX", 1)
    group = [[{"S": "x"}], 1, [[0, 0, "0"]], []]
    with pytest.raises(TooLarge, match="shorter ranges"):
        db.execute(ApplyView(name, {}, moves({"groups": [group, group], "rows": [], "joined": [], "records": 0})))


def test_a_group_is_in_a_delta_once_and_its_counts_are_counts(db: Database) -> None:
    name = create(db)
    put(db, {"id": "1", "status": "x", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    ranges = {source.log: (source.position or 0, source.next)}

    def applied(groups: list[Any], records: int = 1) -> None:
        sent = moves({"groups": groups, "rows": [], "joined": [], "records": records})
        db.execute(ApplyView(name, ranges, sent))

    group = [[{"S": "x"}], 1, [[1, 1, "10"]], []]
    with pytest.raises(Invalid, match="a group twice"):
        applied([group, group])
    with pytest.raises(Invalid, match="not a count"):
        applied([group], 2**63)
    for sums in ([2**64 - 1, 1, "1"], [1, -(2**63), "1"]):
        with pytest.raises(Invalid, match="not a count"):
            applied([[[{"S": "x"}], 1, [sums], []]])
    for total in ("1E+99999999", "1E-99999", "9" * 1_000):
        with pytest.raises(Invalid, match="not a sum"):
            applied([[[{"S": "x"}], 1, [[1, 1, total]], []]])
    with pytest.raises(Invalid, match="not a count"):
        applied([[[{"S": "x"}], 2**64 - 1, [[1, 1, "1"]], []]])
    applied([[[{"S": "x"}], limits.POSITION_MAX, [[1, 1, "1"]], []]], limits.POSITION_MAX)
    put(db, {"id": "2", "status": "x"})
    ranges = {source.log: (source.next, db.execute(DescribeView(name)).sources[0].next)}
    with pytest.raises(Invalid, match="not a count"):  # nor what they add up to
        applied([group])
    applied([], limits.POSITION_MAX)
    assert db.execute(DescribeView(name)).rows == limits.POSITION_MAX


def test_a_range_ends_where_an_entry_does(db: Database) -> None:
    name = create(db)
    db.batch_write([Put("customers", {"id": "1"})])  # a sequence that is not of this log
    put(db, {"id": "1", "status": "x", "total": 10})
    source = db.execute(DescribeView(name)).sources[0]
    at = source.position or 0
    assert source.next > at + 1
    for end in (at + 1, source.next + 1, 10**15):
        with pytest.raises(Invalid, match=r"does not end where an entry does") as caught:
            db.execute(ApplyView(name, {source.log: (at, end)}, EncodedDelta()))
        assert caught.value.code == "INVALID_RANGE"
    assert db.execute(DescribeView(name)).sources[0].position == at
    assert db.execute(ApplyView(name, {source.log: (at, source.next)}, EncodedDelta())).applied


JOINED = "SELECT country, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id GROUP BY country"


def test_of_two_jobs_that_each_saw_one_side_of_a_join_one_begins_again(db: Database) -> None:
    name = create(db, JOINED)

    def worked_out(changed: int) -> tuple[dict[int, tuple[int, int]], EncodedDelta]:
        described = db.execute(DescribeView(name))
        delta, ranges = Delta(planned(described)), {}
        for side, source in enumerate(described.sources):
            at = source.position or 0
            ranges[source.log] = (at, at)
            if side == changed:
                page = db.execute(ReadEntries(source.table, position=at, entries_max=10))
                ranges[source.log] = (at, page.next)
                for entry in page.entries:
                    for record in change.decode(entry):
                        delta.side(side, record.old, record.new)
        return ranges, moves(work_out(db, name, planned(described), delta).wire())

    put(db, {"id": "1", "customer": "x"})
    first = worked_out(0)  # the other side has nothing yet
    db.batch_write([Put("customers", {"id": "x", "country": "de"})])
    second = worked_out(1)
    assert db.execute(ApplyView(name, *first)).applied
    with pytest.raises(Fenced):
        db.execute(ApplyView(name, *second))
    log = max(second[0], key=lambda each: second[0][each][1] - second[0][each][0])
    with pytest.raises(Invalid, match="is missing, which is a source") as caught:
        db.execute(ApplyView(name, {log: second[0][log]}, second[1]))
    assert caught.value.code == "INVALID_RANGE"
    assert db.execute(ApplyView(name, *worked_out(1))).applied
    check(db, name)
    assert rows_of(db, name)


def test_what_is_being_filled_is_not_worked_with(db: Database) -> None:
    name = create(db, JOINED)
    db.execute(BeginFill(name))
    with pytest.raises(Conflict, match="try again") as caught:
        db.execute(ReadHeld(name, ()))
    assert caught.value.code == "VIEW_NOT_LIVE"


def test_rows_are_clean_and_those_that_stay_leave_no_record(db: Database) -> None:
    name = create(db)
    put(db, {"id": "1", "status": "paid", "total": 10}, {"id": "2", "status": "paid", "total": 20})
    advance(db, name)
    assert items(db, name) == [{"status": "paid", "n": 2, "total": 30}]
    before = [each.new for each in db.table(name).changes()]
    assert before == [{"status": "paid", "n": 2, "total": 30}]
    put(db, {"id": "1", "status": "paid", "total": 10, "customer": "x"})
    advance(db, name)
    assert len(list(db.table(name).changes())) == 1
    db.batch_write([Delete("orders", "1"), Delete("orders", "2")])
    advance(db, name)
    assert items(db, name) == []
    assert [each.event for each in db.table(name).changes()] == ["INSERT", "REMOVE"]
    assert items(db, f"{name}__state") == []  # nothing is remembered of what is gone


def test_a_view_without_groups_always_has_its_row(db: Database) -> None:
    name = create(db, "SELECT count(*) AS n, sum(total) AS total, min(total) AS least FROM orders")
    empty = {"key": "all", "n": 0, "total": None, "least": None}
    assert items(db, name) == [empty]
    put(db, {"id": "1", "total": 3})
    advance(db, name)
    assert items(db, name) == [{"key": "all", "n": 1, "total": 3, "least": 3}]
    db.batch_write([Delete("orders", "1")])
    advance(db, name)
    assert items(db, name) == [empty]
    put(db, {"id": "1", "total": 3})
    fill(db, name)
    check(db, name)


def test_keys_distinguish_all_groups(db: Database) -> None:
    db.create_table("free", "id", stream="NEW_AND_OLD_IMAGES")  # declares no columns
    name = create(db, "SELECT kind, count(*) AS n FROM free GROUP BY kind", "kinds")
    values = [
        "a",
        "1",
        1,
        Decimal("1.50"),
        True,
        "true",
        None,
        "",
        "\\null",
        b"x",
        "null",
        ["a"],
        "x" * 3000,
        "x" * 3001,
    ]
    for number, value in enumerate(values):
        db.batch_write([Put("free", {"id": str(number), "kind": value})])
    db.batch_write([Put("free", {"id": "absent"})])
    advance(db, name)
    found = {row["kind"]: row["n"] for row in items(db, name)}
    assert len(found) == len(values) and found.pop("\\null") == 2 and set(found.values()) == {1}
    assert {"a", "1", "1.5", "true", '\\"1"', '\\"true"', '\\""', '\\"\\\\null"', "null", "\\base64:eA=="} <= set(found)


@pytest.mark.parametrize(
    ("select", "keys"),
    [
        ("SELECT status, count(*) AS n FROM orders GROUP BY status", (("status", "S"),)),
        ("SELECT status AS s, customer, count(*) AS n FROM orders GROUP BY ALL", (("s", "S"), ("customer", "S"))),
        ("SELECT status, customer, total, count(*) AS n FROM orders GROUP BY 1, 2, 3", (("key", "S"),)),
        ("SELECT count(*) AS n FROM orders", (("key", "S"),)),
        ("SELECT number, count(*) AS n FROM numbers GROUP BY number", (("number", "N"),)),
        ("SELECT number + 1 AS number, count(*) AS n FROM numbers GROUP BY number + 1", (("number", "S"),)),
        ("SELECT * FROM numbers", (("day", "S"), ("number", "N"))),
        ("SELECT day AS d, number, x FROM numbers", (("d", "S"), ("number", "N"))),
        ("SELECT o.id, c.id AS cid FROM orders o JOIN customers c ON o.customer = c.id", (("id", "S"), ("cid", "S"))),
    ],
)
def test_the_key_is_made_of_the_groups(db: Database, select: str, keys: Any) -> None:
    run(db, "CREATE TABLE numbers (day TEXT, number BIGINT, x TEXT, PRIMARY KEY (day, number)) WITH (stream = true)")
    assert db.execute(DescribeView(create(db, select, "keyed"))).keys == keys


def test_a_sum_is_exact_however_it_came_about(db: Database) -> None:
    name = create(db)
    big = Decimal("12345678901234567890123456789012345678")
    small = Decimal("0.00000000000000000000000000000000000001")
    put(db, {"id": "1", "status": "a", "total": big}, {"id": "2", "status": "a", "total": small})
    advance(db, name)
    assert items(db, name)[0]["total"] == big  # 38 digits are shown
    db.batch_write([Delete("orders", "1")])
    advance(db, name)
    assert items(db, name)[0]["total"] == small  # and none was lost


def test_what_is_no_number_is_not_added(db: Database) -> None:
    name = create(db, "SELECT status, count(total) AS n, sum(total) AS s, avg(total) AS a FROM orders GROUP BY status")
    put(db, {"id": "1", "status": "a", "total": "text"}, {"id": "2", "status": "a"})
    advance(db, name)
    assert items(db, name) == [{"status": "a", "n": 1, "s": None, "a": None}]
    put(db, {"id": "3", "status": "a", "total": 1}, {"id": "4", "status": "a", "total": 2})
    advance(db, name)
    assert items(db, name) == [{"status": "a", "n": 3, "s": 3, "a": Decimal("1.5")}]


def test_the_least_and_the_greatest_of_long_texts(db: Database) -> None:
    wanted = "min(customer) AS a, max(customer) AS z, count(DISTINCT customer) AS n"
    name = create(db, f"SELECT status, {wanted} FROM orders GROUP BY status")
    texts = ["y" * 1200 + each for each in "cabd"]
    put(db, *({"id": str(at), "status": "s", "customer": text} for at, text in enumerate(texts)))
    advance(db, name)
    check(db, name)
    db.batch_write([Delete("orders", "1"), Delete("orders", "3")])
    advance(db, name)
    check(db, name)


def test_a_left_join_knows_when_the_last_partner_goes(db: Database) -> None:
    name = create(db, "SELECT o.id, c.id AS cid, country FROM orders o LEFT JOIN customers c ON o.customer = c.id")
    put(db, {"id": "1", "customer": "x"}, {"id": "2"})
    steps: list[Any] = [
        Put("customers", {"id": "x", "country": "de"}), Put("customers", {"id": "x", "country": "fr"}),
        Delete("customers", "x"), Put("orders", {"id": "1", "customer": "y"}), Put("customers", {"id": "y"}),
        Delete("orders", "1"),
    ]  # fmt: skip
    for step in steps:
        advance(db, name)
        check(db, name)
        db.batch_write([step])
    advance(db, name)
    check(db, name)
    assert len(rows_of(db, name)) == 1


def test_held_rows_come_in_pages(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name = create(
        db, "SELECT country, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id GROUP BY country"
    )
    put(db, *({"id": str(number), "customer": "x"} for number in range(7)))
    advance(db, name)
    monkeypatch.setattr(limits, "VIEW_ENTRIES", 3)
    found, after, pages = [], b"", 0
    while True:
        (answer,) = db.execute(ReadHeld(name, ((0, '["x"]', True, after),)))
        assert answer.count == 7
        found += answer.rows
        pages += 1
        if answer.next is None:
            break
        after = answer.next
    assert len(found) == 7 and pages == 3
    (counted,) = db.execute(ReadHeld(name, ((0, '["x"]', False, b""),)))
    assert (counted.rows, counted.count, counted.next) == ([], 7, None)


# -- filling


def test_a_filling_is_taken_over_and_its_pieces_are_counted(db: Database) -> None:
    put(db, {"id": "1", "status": "paid", "total": 10})
    name = create(db)
    first = db.execute(BeginFill(name))
    piece = moves({"groups": [[[{"S": "old"}], 1, [[1, 1, "1"]], []]], "rows": [], "joined": [], "records": 0})
    assert db.execute(FillRows(name, first, 1, piece))
    assert not db.execute(FillRows(name, first, 1, piece))
    with pytest.raises(Fenced, match="not the next"):
        db.execute(FillRows(name, first, 3, piece))
    second = db.execute(BeginFill(name))
    with pytest.raises(Fenced):
        db.execute(FillRows(name, first, 2, piece))
    assert not db.execute(ClearRows(name, second))
    assert items(db, name) == items(db, f"{name}__state") == []
    with pytest.raises(Invalid, match="'orders' is missing"):
        db.execute(FinishFill(name, second, {}))
    fill(db, name)
    check(db, name)


def test_rows_are_cleared_in_steps_and_the_removals_are_recorded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    name = create(db, "SELECT id, total FROM orders")
    put(db, *({"id": str(number), "total": number} for number in range(5)))
    advance(db, name)
    monkeypatch.setattr(limits, "VIEW_CLEAR_ROWS", 2)
    begun = db.execute(BeginFill(name))
    assert [db.execute(ClearRows(name, begun)) for _ in range(3)] == [True, True, False]
    assert [each.event for each in db.table(name).changes()] == ["INSERT"] * 5 + ["REMOVE"] * 5


def test_changes_of_other_tables_between_do_not_matter(db: Database) -> None:
    put(db, {"id": "1", "status": "paid", "total": 10})
    name = create(db)
    for number in range(5):
        db.batch_write([Put("customers", {"id": str(number)})])  # sequences that are not of this log
    fill(db, name)
    db.batch_write([Put("customers", {"id": "9"})])
    put(db, {"id": "2", "status": "paid", "total": 5})
    assert advance(db, name) is not None
    check(db, name)


def test_a_recreated_stream_makes_the_view_stale(db: Database) -> None:
    name = create(db)
    run(db, "ALTER TABLE orders DISABLE STREAM")
    assert "disabled" in db.execute(DescribeView(name)).stale
    put(db, {"id": "1", "status": "paid", "total": 10})
    with pytest.raises(Invalid, match="ENABLE STREAM"):
        db.execute(BeginFill(name))
    run(db, "ALTER TABLE orders ENABLE STREAM")
    assert "disabled" in db.execute(DescribeView(name)).stale
    fill(db, name)
    assert db.execute(DescribeView(name)).stale == ""
    put(db, {"id": "2", "status": "paid", "total": 5})
    advance(db, name)
    check(db, name)
    run(db, "DROP TABLE orders")
    assert "dropped" in db.execute(DescribeView(name)).stale


def test_changes_that_were_trimmed_make_it_stale(db: Database) -> None:
    name = create(db)
    for number in range(3):
        put(db, {"id": str(number), "status": "paid", "total": 10})
    assert db.table("orders").prune_stream() == 3
    assert "trimmed" in db.execute(DescribeView(name)).stale
    fill(db, name)
    check(db, name)


def test_a_filling_whose_changes_were_trimmed_meanwhile_is_refused(db: Database) -> None:
    put(db, {"id": "1", "status": "paid", "total": 10})
    name = create(db)
    begun = db.execute(BeginFill(name))
    sequence, _ = db.execute(Items("orders"))
    put(db, {"id": "2", "status": "paid", "total": 10})
    put(db, {"id": "3", "status": "paid", "total": 10})
    db.table("orders").prune_stream()
    with pytest.raises(Conflict, match="trimmed") as caught:
        db.execute(FinishFill(name, begun, {"orders": sequence}))
    assert caught.value.code == "VIEW_STALE"


async def awaited(db: Database, command: Any) -> Any:
    """What comes of it on an event loop, which waits for no cold storage."""
    return await db.aexecute(command)


def test_history_that_went_cold_is_no_loss(tmp_path: Path) -> None:
    """Neither to a filling that took long, nor to a view that is far behind."""
    cache = DictCache()
    with Database(SqliteEngine(tmp_path / "cold"), housekeeping_s=None, cold=cache) as db:
        run(db, TABLES)
        put(db, {"id": "1", "status": "paid", "total": 10})
        name = create(db)
        begun = db.execute(BeginFill(name))
        sequence, _ = db.execute(Items("orders"))
        db.batch_write([Put("customers", {"id": "1"})])
        for number in range(2, 8):
            put(db, {"id": str(number), "status": "paid", "total": 10})
        piece = moves({"groups": [[[{"S": "paid"}], 1, [[1, 1, "10"]], []]], "rows": [], "joined": [], "records": 0})
        db.execute(FillRows(name, begun, 1, piece))
        log = db.execute(DescribeView(name)).sources[0].log
        cache.kept[log] = db.execute(All(log))
        db.execute(Tiered(log, cache.kept[log][-2].position))
        asyncio.run(awaited(db, FinishFill(name, begun, {"orders": sequence})))
        assert cache.fetches and db.execute(DescribeView(name)).stale == ""
        at = db.execute(DescribeView(name)).sources[0].position or 0
        with pytest.raises(Invalid, match="does not end where"):
            db.execute(ApplyView(name, {log: (at, at + 1)}, EncodedDelta()))
        first = next(entry for entry in cache.kept[log] if entry.position == at)
        group = [[{"S": "paid"}], 1, [[1, 1, "10"]], []]
        one = moves({"groups": [group], "rows": [], "joined": [], "records": 1})
        cache.held.clear()
        assert asyncio.run(awaited(db, ApplyView(name, {log: (at, first.next)}, one))).applied
        while advance(db, name, 2) is not None:
            pass
        check(db, name)


def test_the_names_of_the_parts_are_not_by_chance() -> None:
    assert view.STATE == "__state" and apply.join_group(1, "x") == "bx"

"""Partial aggregates of additive views: stored with the rows that they belong to, and read at the view's positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tailrace
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Fenced, Invalid
from tailrace.jobs.apply import ApplyView
from tailrace.jobs.partials import ReadPartials
from tailrace.jobs.view import DescribeView
from tailrace.jobs.view_fill import BeginFill
from tailrace.spark.views.partials import added
from tests.support.views import advance, check, fill, keys, partials, plan, run, stage

NAME = "app.totals"
FORM = "n bigint: count(1)"


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir) as opened:
        run(opened, "CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT) WITH (stream = true)")
        run(opened, "INSERT INTO orders VALUES ('1', 'new'), ('2', 'paid')")
        run(opened, f"CREATE MATERIALIZED VIEW {NAME} AS SELECT status, count(*) AS n FROM orders GROUP BY status")
        plan(opened, NAME, ("status", "string"), ("n", "bigint"), partials=FORM)
        fill(opened, NAME)
        yield opened
    assert check_database(data_dir).findings == []


def positions(db: Database) -> dict[int, int]:
    return {source.log: source.position or 0 for source in db.execute(DescribeView(NAME)).sources}


def test_they_are_written_with_the_rows_and_read_by_their_keys(db: Database) -> None:
    check(db, NAME)
    run(db, "INSERT INTO orders VALUES ('3', 'new'), ('4', 'sent'); DELETE FROM orders WHERE id = '2'")
    assert advance(db, NAME) is not None
    check(db, NAME)
    found = db.execute(ReadPartials(NAME, positions(db), FORM, keys("sent", "paid", "new")))
    assert found == ["1", None, "2"]


def test_no_reader_of_the_view_sees_them(db: Database) -> None:
    assert run(db, f"SELECT * FROM {NAME} ORDER BY status")[0] == {"status": "new", "n": 1}
    assert [row["name"] for row in run(db, "SELECT name FROM system.tables ORDER BY name")] == [NAME, "orders"]
    assert {each["column"] for each in run(db, f"DESCRIBE {NAME}")} >= {"status", "n"}
    assert "_partials" not in str(run(db, f"DESCRIBE {NAME}"))


def test_a_batch_that_was_applied_before_leaves_them(db: Database) -> None:
    start = positions(db)
    run(db, "INSERT INTO orders VALUES ('3', 'new')")
    advance(db, NAME)
    ranges = {log: (start[log], end) for log, end in positions(db).items()}
    wrong = stage(db, NAME, [("PUT", {"status": {"S": "new"}, "n": {"N": "9"}})])
    assert not db.execute(ApplyView(NAME, ranges, (wrong,), 1, FORM)).applied
    check(db, NAME)


def test_they_are_read_only_at_the_positions_of_the_view_and_while_it_is_live(db: Database) -> None:
    start = positions(db)
    run(db, "INSERT INTO orders VALUES ('3', 'new')")
    advance(db, NAME)
    with pytest.raises(Fenced, match="start over"):
        db.execute(ReadPartials(NAME, start, FORM, keys("new")))
    now = positions(db)
    db.execute(BeginFill(NAME))
    with pytest.raises(Fenced, match="filling"):
        db.execute(ReadPartials(NAME, now, FORM, keys("new")))
    assert partials(db, NAME) == [], "a filling starts without any"
    fill(db, NAME)
    check(db, NAME)


def test_another_form_is_another_state(db: Database) -> None:
    with pytest.raises(Conflict, match="planned again"):
        db.execute(ReadPartials(NAME, positions(db), "s0 decimal(38,2)", keys("new")))
    run(db, "INSERT INTO orders VALUES ('3', 'new')")
    ((log, start),) = positions(db).items()
    (source,) = db.execute(DescribeView(NAME)).sources
    with pytest.raises(Conflict, match="planned again"):
        db.execute(ApplyView(NAME, {log: (start, source.next)}, (), 1, "other"))
    plan(db, NAME, ("status", "string"), ("n", "bigint"), partials=FORM)
    assert db.execute(DescribeView(NAME)).phase == "live"
    plan(db, NAME, ("status", "string"), ("n", "bigint"), partials="other")
    assert db.execute(DescribeView(NAME)).phase == "new"
    fill(db, NAME)
    check(db, NAME)


def test_keys_that_cannot_be_read_are_refused(db: Database) -> None:
    for body in (b"junk", keys("x", column="nope")):
        with pytest.raises(Invalid):
            db.execute(ReadPartials(NAME, positions(db), FORM, body))


def test_dropping_the_view_drops_them(db: Database) -> None:
    run(db, f"DROP MATERIALIZED VIEW {NAME}")  # the fixture checks that nothing without an owner is left


# -- adding


def batch(n: list[int], s: list[str]) -> pa.RecordBatch:
    sums = pa.array(s, pa.string()).cast(pa.decimal128(38, 2))
    return pa.RecordBatch.from_pydict({"g0": ["a"] * len(n), "n": pa.array(n, pa.int64()), "s0": sums})


def test_numbers_are_added_exactly() -> None:
    most = "9" * 36
    made = added(batch([1, -2, 5], ["0.05", "-1.00", "0.01"]), ["n", "s0"], ["2|0E-2", None, f"7|{most}.98"])
    assert made.column("n").to_pylist() == [3, -2, 12]
    assert [str(each) for each in made.column("s0").to_pylist()] == ["0.05", "-1.00", f"{most}.99"]
    assert made.column("g0").to_pylist() == ["a", "a", "a"]


def test_a_sum_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(Invalid, match="too many digits"):
        added(batch([1], ["0.02"]), ["n", "s0"], [f"1|{'9' * 36}.99"])
    with pytest.raises(Invalid, match="too many digits"):
        added(batch([1], ["0"]), ["n", "s0"], [f"{2**63 - 1}|0"])


def test_a_text_of_another_form_is_an_error() -> None:
    with pytest.raises(Invalid, match="fill the view again"):
        added(batch([1], ["0"]), ["n", "s0"], ["1"])


@pytest.mark.parametrize("scale", [0, 19, 20, 23, 38])
def test_sums_may_have_any_scale(scale: int) -> None:
    kind = pa.decimal128(38, scale)
    batch = pa.RecordBatch.from_pydict({"s0": pa.array(["0", "0"]).cast(kind)})
    smallest = "0" if scale == 0 else "0." + "0" * (scale - 1) + "1"
    assert added(batch, ["s0"], [smallest, None]).column("s0").cast(pa.string()).to_pylist()[1] is not None

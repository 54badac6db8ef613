"""A SELECT has its tables as they were at one moment and holds no transaction while it reads them, whatever is written
meanwhile: the budget of these statements writes each time that something is spent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import limits
from tailrace.database import Database
from tailrace.errors import Error, Gone, NotFound, TooLarge
from tailrace.sql.select import run
from tailrace.sql.sources import ReadBudget

# SQLite restarts at the beginning of its log after 1,000 pages (4 MiB), if nobody reads from it; a commit may be large.
WAL_BYTES_MAX = 16 * limits.MiB


class Busy(ReadBudget):
    """A budget of a statement that others write beside."""

    def __init__(self, write: Callable[[], None], **bounds: Any) -> None:
        super().__init__(timeout_s=600, **bounds)
        self._write = write

    def spend(self, rows: int, size: int) -> None:
        super().spend(rows, size)
        self._write()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 5)
    monkeypatch.setattr(limits, "BULK_ENTRIES", 7)
    monkeypatch.setattr("tailrace.tables.export._IMAGES_AT_ONCE", 3)
    monkeypatch.setattr("tailrace.sql.sources._ROWS_AT_ONCE", 4)


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as opened:
        yield opened
        assert not opened._runner.exports, "an export was not ended"


def test_a_long_select_does_not_let_the_log_grow(db: Database, data_dir: Path) -> None:
    draw = random.Random(3)
    db.create_table("orders", partition_key="id")

    def put(names: set[int], n: int) -> None:
        items = [{"id": f"o-{name}", "n": n, "text": draw.randbytes(5_000).hex()} for name in sorted(names)]
        db.batch_write([tailrace.Put("orders", item) for item in items])

    for start in range(0, 2_000, 50):
        put(set(range(start, start + 50)), 1)
    largest = 0

    def write() -> None:
        nonlocal largest
        for _ in range(4):
            put({draw.randrange(3_000) for _ in range(40)}, 2)
            largest = max(largest, (data_dir / "tailrace.db-wal").stat().st_size)

    found = run(db.execute, "SELECT count(*) AS c, sum(n) AS s, sum(length(text)) AS t FROM orders", (), Busy(write))
    assert found.rows == [{"c": 2_000, "s": 2_000, "t": 20_000_000}]
    assert 0 < largest < WAL_BYTES_MAX


@pytest.mark.parametrize("seed", range(4))
def test_what_is_selected_is_of_one_moment(seed: int, db: Database, small_pages: None) -> None:
    """Amounts move between two tables, items come and go: the sum of each SELECT is that of the moment it began at."""
    draw = random.Random(seed)
    model: dict[tuple[str, str, int], int] = {}
    for name in ("here", "there"):
        db.create_table(name, partition_key="room", sort_key=("at", "N"))

    def write() -> None:
        changes: dict[tuple[str, str, int], int | None] = {}
        for name in ("here", "there"):
            place = name, f"r{draw.randrange(3)}", draw.randrange(40)
            changes[place] = None if draw.random() < 0.3 else draw.randrange(1_000)
        db.transact_write(
            [
                tailrace.Delete(name, (room, at)) if n is None else tailrace.Put(name, {"room": room, "at": at, "n": n})
                for (name, room, at), n in changes.items()
            ]
        )
        for place, n in changes.items():
            model.pop(place, None)
            if n is not None:
                model[place] = n

    for _ in range(150):
        write()
    for _ in range(6):
        then = dict(model)
        low, high = sorted(draw.sample(range(40), 2))
        parts: list[tuple[str, str, range]] = [  # of a table: the rooms, and which of their items
            ("here", "r0 r1 r2", range(40)),
            ("there", "r0 r1 r2", range(40)),
            ("here", "r1", range(40)),
            ("there", "r1", range(low, high + 1)),
            ("here", "r2", range(low + 1, 40)),
            ("here", "r2", range(high)),
            ("here", "r0 r1 r2", range(40)),
        ]
        where = ["", "", "room = 'r1'", f"room = 'r1' AND at BETWEEN {low} AND {high}"]
        where += [f"room = 'r2' AND at > {low}", f"room = 'r2' AND at < {high}", ""]
        text = " UNION ALL ".join(
            f"SELECT count(*), coalesce(sum(p{at}.n::BIGINT), 0) FROM {part[0]} AS p{at} WHERE {where[at] or 'true'}"
            for at, part in enumerate(parts)
        )
        found = run(db.execute, text, (), Busy(write))
        for row, (name, rooms, some) in zip(found.rows, parts, strict=True):
            amounts = [
                n for (table, room, at), n in then.items() if table == name and room in rooms.split() and at in some
            ]
            assert list(row.values()) == [len(amounts), sum(amounts)], (name, rooms, some)
        ordered = sorted(at for table, room, at in model if table == "here" and room == "r0")
        first = run(db.execute, "SELECT at FROM here WHERE room = 'r0' LIMIT 9", (), Busy(write))
        assert [row["at"] for row in first.rows] == ordered[:9]


def test_selects_beside_writers_that_race(db: Database, small_pages: None) -> None:
    done = threading.Event()
    for name in ("here", "there"):
        db.create_table(name, partition_key="id")
        for number in range(60):
            db.table(name).put({"id": f"a-{number}", "n": 100})

    def transfer(seed: int) -> None:
        draw = random.Random(seed)
        while not done.is_set():
            amount = draw.randrange(10)
            one, other = f"a-{draw.randrange(60)}", f"a-{draw.randrange(60)}"
            db.transact_write(
                [
                    tailrace.Update("here", one, "SET n = n - :a", values={":a": amount}),
                    tailrace.Update("there", other, "SET n = n + :a", values={":a": amount}),
                ]
            )

    writers = [threading.Thread(target=transfer, args=(seed,)) for seed in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(15):
            found = db.sql("SELECT count(*) AS c, sum(n) AS s FROM (SELECT n FROM here UNION ALL SELECT n FROM there)")
            assert found.rows == [{"c": 120, "s": 12_000}]
    finally:
        done.set()
        for writer in writers:
            writer.join()


def test_a_table_that_is_dropped_while_it_is_read(db: Database, small_pages: None) -> None:
    table = db.create_table("orders", partition_key="id")
    for number in range(50):
        table.put({"id": f"o-{number}"})

    def drop() -> None:
        with suppress(NotFound):  # the second time
            db.drop_table("orders")

    with pytest.raises(Gone, match="'orders' was dropped while the statement was reading it") as raised:
        run(db.execute, "SELECT 1,\n count(id) FROM orders", (), Busy(drop))
    assert vars(raised.value)["line"] == 2


def test_statements_that_fail_leave_no_export_behind(db: Database, small_pages: None) -> None:
    table = db.create_table("orders", partition_key="id")
    for number in range(50):
        table.put({"id": f"o-{number}"})
    with pytest.raises(TooLarge, match="more than 20 rows"):
        run(db.execute, "SELECT count(id) FROM orders", (), Busy(lambda: None, rows=20))
    halted = threading.Event()
    with pytest.raises(Error, match="stopped"):
        run(db.execute, "SELECT count(id) FROM orders", (), Busy(halted.set, halted=halted))
    assert not db._runner.exports


def test_statements_take_no_places_of_exports(db: Database, small_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPORTS_MAX", 1)
    table = db.create_table("orders", partition_key="id")
    for number in range(50):
        table.put({"id": f"o-{number}"})
    taken = []

    def export() -> None:
        if not taken:
            taken.append(db.exports.begin("orders"))

    try:
        assert run(db.execute, "SELECT count(id) AS c FROM orders", (), Busy(export)).rows == [{"c": 50}]
        assert db.sql("SELECT count(id) AS c FROM orders").rows == [{"c": 50}]
    finally:
        db.exports.end(*taken)

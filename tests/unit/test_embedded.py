"""Tables from Python: plain values, sync and async alike, and waiting that nothing slips through."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailrace import embedded
from tailrace.database import Database
from tailrace.embedded import (
    AsyncOperations,
    AsyncTable,
    Change,
    Check,
    Delete,
    Get,
    Index,
    Put,
    Table,
    Update,
    begins_with,
    between,
    eq,
    ge,
    gt,
    le,
    lt,
)
from tailrace.embedded.running import AsyncFacade, Facade
from tailrace.embedded.sync.database import Operations
from tailrace.embedded.sync.tables import TableOperations
from tailrace.errors import (
    ConditionFailed,
    InUse,
    Invalid,
    TableNotFound,
    TokenMismatch,
    TransactionCanceled,
    Trimmed,
    Unavailable,
)
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import operations
from tests.support.patience import PATIENCE_S


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    yield database
    database.close()


@pytest.fixture
def orders(db: Database) -> Table:
    return db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")


@pytest.fixture
def lines(db: Database) -> Table:
    table = db.create_table(
        "lines",
        partition_key="order",
        sort_key=("number", "N"),
        indexes=[
            Index("by-sku", "sku", "order", projection=["price"]),
            Index("by-price", sort_key="price", local=True),
        ],
    )
    db.batch_write(
        [Put("lines", {"order": "o-1", "number": n, "sku": f"s{n % 2}", "price": f"{9 - n}"}) for n in range(6)]
    )
    return table


# -- items


def test_values_come_back_as_they_went_in(orders: Table) -> None:
    item = {
        "id": "o-1",
        "int": 3,
        "big": 10**37,
        "decimal": Decimal("12.50"),
        "bytes": b"\x00\xff",
        "yes": True,
        "none": None,
        "list": [1, "two", {"three": 3}],
        "strings": {"a", "b"},
        "numbers": {1, Decimal("2.5")},
    }
    assert orders.put(item) is None
    got = orders.get("o-1")
    assert got == item
    assert isinstance(got["int"], int) and isinstance(got["decimal"], Decimal)
    assert orders.get({"id": "o-1"}, projection="#l[1], yes", names={"l": "list"}) == {"list": ["two"], "yes": True}
    assert orders.get("nothing") is None
    with pytest.raises(Invalid, match="Decimal"):
        orders.put({"id": "o-1", "price": 1.5})


def test_put_update_delete(orders: Table) -> None:
    orders.put({"id": "o-1", "amount": 1}, condition="attribute_not_exists(id)")
    with pytest.raises(ConditionFailed):
        orders.put({"id": "o-1"}, condition="attribute_not_exists(id)")
    assert orders.put({"id": "o-1", "amount": 2}, returns="ALL_OLD") == {"id": "o-1", "amount": 1}
    assert orders.update("o-1", "SET amount = amount + :n", values={"n": 3}) == {"id": "o-1", "amount": 5}
    changed = orders.update("o-1", "SET #s = :s", names={"#s": "state"}, values={":s": "paid"}, returns="UPDATED_NEW")
    assert changed == {"state": "paid"}
    assert orders.update("o-1", "REMOVE #s", names={"s": "state"}, returns="NONE") is None
    with pytest.raises(ConditionFailed):
        orders.delete("o-1", condition="amount > :n", values={"n": 5})
    assert orders.delete("o-1", returns="ALL_OLD") == {"id": "o-1", "amount": 5}
    assert orders.delete("o-1") is None
    assert orders.count() == 0


def test_what_is_refused_says_how_to_put_it_right(orders: Table, lines: Table) -> None:
    with pytest.raises(Invalid, match=r"a key of table 'lines' is \(order, number\), which 'o-1' is not"):
        lines.get("o-1")
    with pytest.raises(Invalid, match="a key of table 'orders' is id, which"):
        orders.get(("o-1", 5))
    with pytest.raises(Invalid, match="returns='old' is unknown here; use one of NONE, ALL_OLD"):
        orders.put({"id": "x"}, returns="old")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match=r"unused in expressions: keys: {:y}"):
        orders.put({"id": "x"}, condition="amount = :x", values={"x": 1, "y": 2})
    with pytest.raises(Invalid, match="limit=0 is not a number from 1 on"):
        orders.scan(limit=0)
    with pytest.raises(Invalid, match="the sort key does not exist"):
        list(orders.query("o-1", gt(5)))
    with pytest.raises(Invalid, match="give 1 values, not 2"):
        list(orders.query(("o-1", 5)))
    with pytest.raises(Invalid, match="segment and segments belong together"):
        orders.scan(segment=1)
    with pytest.raises(Invalid, match="segment=3 is not from 0 to 2"):
        orders.scan(segment=3, segments=3)


# -- reading


@pytest.mark.parametrize(
    ("sort", "numbers"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        (3, [3]),
        (eq(3), [3]),
        (lt(3), [0, 1, 2]),
        (le(3), [0, 1, 2, 3]),
        (gt(3), [4, 5]),
        (ge(3), [3, 4, 5]),
        (between(2, 4), [2, 3, 4]),
    ],
)
def test_query(lines: Table, sort: Any, numbers: list[int]) -> None:
    assert [item["number"] for item in lines.query("o-1", sort)] == numbers
    assert [item["number"] for item in lines.query("o-1", sort, reverse=True)] == numbers[::-1]
    assert [item["number"] for item in lines.query("o-1", sort, limit=2)] == numbers[:2]


def test_query_of_indexes(lines: Table) -> None:
    found = list(lines.query("s1", index="by-sku"))
    assert [item["number"] for item in found] == [1, 3, 5]
    assert set(found[0]) == {"order", "number", "sku", "price"}
    assert [item["price"] for item in lines.query("o-1", begins_with("5"), index="by-price")] == ["5"]
    assert [item["price"] for item in lines.query("o-1", index="by-price")] == list("456789")


def test_pages(lines: Table) -> None:
    first = lines.query_page("o-1", limit=4, filter="sku = :s", values={"s": "s1"})
    assert [item["number"] for item in first.items] == [1, 3]
    assert (first.cursor, first.scanned) == ({"order": "o-1", "number": 3}, 4)
    second = lines.query_page("o-1", limit=4, after=first.cursor, filter="sku = :s", values={"s": "s1"})
    assert ([item["number"] for item in second.items], second.cursor) == ([5], None)
    page = lines.scan_page(limit=5)
    assert len(page.items) == 5
    assert len(lines.scan_page(after=page.cursor).items) == 1


def test_a_limit_counts_items_that_pass(lines: Table) -> None:
    found = list(lines.query("o-1", limit=2, filter="sku = :s", values={"s": "s1"}))
    assert [item["number"] for item in found] == [1, 3]
    assert len(list(lines.scan(limit=2, filter="sku = :s", values={"s": "s1"}))) == 2


def test_iteration_goes_over_all_pages_and_reads_as_it_goes(db: Database, lines: Table) -> None:
    db.batch_write([Put("lines", {"order": "big", "number": n, "text": "x" * 100_000}) for n in range(25)])
    queries = db.metrics.queries
    found = lines.query("big")
    assert db.metrics.queries == queries
    next(found)
    assert db.metrics.queries - queries < 8
    assert [item["number"] for item in found] == list(range(1, 25))
    parts = [len(list(lines.scan(segment=segment, segments=3))) for segment in range(3)]
    assert sum(parts) == lines.count() == 31


# -- several at once


def test_a_batch_is_all_or_nothing(db: Database, orders: Table, lines: Table) -> None:
    orders.put({"id": "o-9"})
    sequence = db.batch_write([Put("orders", {"id": "o-1"}), Delete("orders", "o-9"), Delete("lines", ("o-1", 0))])
    assert {change.sequence for change in orders.changes()} == {2, sequence}
    assert orders.get("o-9") is None and lines.get(("o-1", 0)) is None
    with pytest.raises(Invalid, match="Missing the key id"):
        db.batch_write([Put("orders", {"id": "o-2"}), Put("orders", {})])
    assert orders.get("o-2") is None
    with pytest.raises(Invalid, match="use transact_write"):
        db.batch_write([Put("orders", {"id": "o-2"}, condition="attribute_exists(id)")])
    assert db.batch_write([]) is None


def test_a_transaction(db: Database, orders: Table) -> None:
    stock = db.create_table("stock", partition_key="name")
    stock.put({"name": "apple", "left": 3})

    def order(number: str, apples: int, token: str | None = None) -> int | None:
        take = "SET #l = #l - :n"
        return db.transact_write(
            [
                Update("stock", "apple", take, condition="#l >= :n", names={"l": "left"}, values={"n": apples}),
                Put("orders", {"id": number, "apples": apples}, condition="attribute_not_exists(id)"),
                Check("stock", "pear", "attribute_not_exists(#n)", names={"n": "name"}),
            ],
            token=token,
        )

    order("o-1", 2, "t-1")
    order("o-1", 2, "t-1")
    assert db.transact_get([Get("stock", "apple"), Get("orders", "o-1"), Get("orders", "none")]) == [
        {"name": "apple", "left": 1},
        {"id": "o-1", "apples": 2},
        None,
    ]
    with pytest.raises(TokenMismatch):
        order("o-1", 1, "t-1")
    with pytest.raises(TransactionCanceled) as caught:
        order("o-2", 2)
    assert [code for code, _, _ in caught.value.reasons] == ["ConditionalCheckFailed", "None", "None"]
    assert orders.get("o-2") is None
    with pytest.raises(Invalid, match="a transaction has 1 to 100 actions, not 0"):
        db.transact_write([])


# -- tables


def test_making_finding_and_dropping(db: Database) -> None:
    made = db.create_table(
        "events",
        partition_key=("user", "B"),
        sort_key=("at", "N"),
        stream="KEYS_ONLY",
        max_age=timedelta(hours=1),
        max_count=None,
        indexes=[Index("by-kind", "kind", ("at", "N"), projection="KEYS_ONLY")],
        ttl="gone",
    )
    info = made.describe()
    assert (info.partition_key, info.sort_key, info.ttl, info.stream) == (
        ("user", "B"),
        ("at", "N"),
        "gone",
        "KEYS_ONLY",
    )
    (index,) = info.indexes
    assert (index.name, index.partition_key, index.sort_key, index.projection) == (
        "by-kind", ("kind",), ("at",), "KEYS_ONLY",
    )  # fmt: skip
    stream = made.stream_info()
    assert (stream.max_age_s, stream.max_count, stream.enabled, stream.view) == (3600, None, True, "KEYS_ONLY")
    with pytest.raises(InUse):
        db.create_table("events", partition_key=("user", "B"))
    again = db.create_table("events", partition_key=("user", "B"), sort_key=("at", "N"), exist_ok=True)
    assert again.name == "events"
    with pytest.raises(InUse, match="exists with the key"):
        db.create_table("events", partition_key="user", exist_ok=True)
    assert db.tables() == ["events"]
    assert db.table("events").describe() == info
    db.drop_table("events")
    assert db.tables() == []
    with pytest.raises(TableNotFound):
        db.table("events")


def test_more_tables_than_one_answer_lists(db: Database) -> None:
    names = [f"table-{number:03}" for number in range(105)]
    for name in names:
        db.create_table(name, partition_key="id")
    assert db.tables() == names


def test_indexes_of_a_table_in_use(db: Database, orders: Table) -> None:
    orders.put({"id": "o-1", "state": "paid", "amount": 5})
    orders.add_index(Index("by-state", "state", ("amount", "N")))
    assert [index.status for index in orders.describe().indexes] == ["CREATING"]
    db.sweep()
    assert [item["id"] for item in orders.query("paid", ge(5), index="by-state")] == ["o-1"]
    orders.drop_index("by-state")
    assert orders.describe().indexes == []
    with pytest.raises(Invalid, match="a local index is created with its table"):
        orders.add_index(Index("local", sort_key="amount", local=True))
    with pytest.raises(Invalid, match="has no partition_key"):
        orders.add_index(Index("none"))
    with pytest.raises(Invalid, match="use 'ALL', 'KEYS_ONLY' or a list"):
        orders.add_index(Index("odd", "x", projection="SOME"))
    with pytest.raises(Invalid, match="has the type 'X'"):
        orders.add_index(Index("odd", ("x", "X")))
    with pytest.raises(Invalid, match="has the types S and N"):
        db.create_table("other", partition_key=("a", "S"), indexes=[Index("odd", ("a", "N"))])


def test_expiry(tmp_path: Path) -> None:
    now = int(datetime.now(UTC).timestamp())
    db = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    table = db.create_table("sessions", partition_key="id", stream="OLD_IMAGE")
    table.put({"id": "old", "until": now - 10})
    table.set_ttl("until")
    table.set_ttl("until")
    db.sweep()
    db.sweep()
    assert table.count() == 0
    assert [(change.event, change.by) for change in table.changes()][-1] == ("REMOVE", "ttl")
    table.set_ttl(None)
    table.put({"id": "old", "until": now - 10})
    db.sweep()
    assert table.count() == 1
    db.close()


# -- changes


def test_changes(db: Database, orders: Table) -> None:
    before = datetime.now(UTC)
    orders.put({"id": "o-1", "amount": 1})
    orders.update("o-1", "SET amount = :n", values={"n": Decimal("2.5")})
    orders.update("o-1", "SET amount = :n", values={"n": Decimal("2.50")})  # changes nothing
    orders.delete("o-1")
    first, second, third = orders.changes()
    assert (first.event, first.keys, first.old, first.new) == (
        "INSERT",
        {"id": "o-1"},
        None,
        {"id": "o-1", "amount": 1},
    )
    assert (second.event, second.old, second.new) == (
        "MODIFY", {"id": "o-1", "amount": 1}, {"id": "o-1", "amount": Decimal("2.5")},
    )  # fmt: skip
    assert (third.event, third.new, third.table, third.by) == ("REMOVE", None, "orders", "system")
    assert abs(first.at - before) < timedelta(seconds=5)
    assert orders.changes(after=second.sequence) == [third]
    assert orders.changes(after=third.sequence) == []


def test_a_transaction_is_never_split(db: Database, orders: Table) -> None:
    orders.put({"id": "first"})
    db.batch_write([Put("orders", {"id": str(number)}) for number in range(150)])
    read = orders.changes(limit=100)
    assert len(read) == 151
    assert [change.index for change in read[1:]] == list(range(150))
    assert [change.last for change in read] == [True] + [False] * 149 + [True]


def test_keeping_a_stream(db: Database, orders: Table) -> None:
    for number in range(5):
        orders.put({"id": str(number)})
    info = orders.stream_info()
    assert (info.oldest, info.latest, info.count, info.enabled, info.view) == (2, 6, 5, True, "NEW_AND_OLD_IMAGES")
    assert orders.prune_stream(before=4) == 2
    assert orders.stream_info().oldest == 4
    with pytest.raises(Trimmed) as caught:
        orders.changes(after=2)
    assert str(caught.value) == (
        "sequence 2 is no longer retained; the oldest is 4: read after 3 or from the beginning with after=None"
    )
    assert (caught.value.earliest, len(orders.changes(after=3))) == (4, 3)
    orders.alter_stream_retention(max_count=2)
    assert (orders.stream_info().max_count, orders.stream_info().max_age_s) == (2, 7 * 24 * 3600)
    orders.alter_stream_retention(max_age=timedelta(days=1))
    assert (orders.stream_info().max_count, orders.stream_info().max_age_s) == (2, 24 * 3600)
    orders.alter_stream_retention(max_age=None, max_count=None)
    assert (orders.stream_info().max_count, orders.stream_info().max_age_s) == (None, None)
    orders.disable_stream()
    assert not orders.stream_info().enabled
    assert len(orders.changes()) == 3
    orders.enable_stream("KEYS_ONLY", max_count=7)
    orders.put({"id": "new"})
    (change,) = orders.changes()
    assert (change.new, orders.stream_info().max_count) == (None, 7)
    assert db.create_table("still", partition_key="id").stream_info().enabled is False


def test_streams_of_before_are_read_by_their_label(db: Database, orders: Table) -> None:
    orders.put({"id": "first"})
    orders.disable_stream()
    orders.enable_stream("KEYS_ONLY")
    orders.put({"id": "second"})
    before, now = orders.streams()
    assert (before.enabled, before.view, now.enabled, now.view) == (False, "NEW_AND_OLD_IMAGES", True, "KEYS_ONLY")
    assert now == orders.stream_info()
    assert [change.keys["id"] for change in orders.changes(label=before.label)] == ["first"]
    assert [change.keys["id"] for change in orders.changes(label=now.label)] == ["second"]
    db.drop_table("orders")
    info = orders.stream_info()
    assert (info.enabled, info.count, info.latest) == (False, 1, orders.changes()[-1].sequence)
    assert [stream.label for stream in orders.streams()] == [before.label, now.label]
    db.create_table("orders", partition_key="id")
    assert not orders.stream_info().enabled, "of the new table, which never had one"
    never = db.create_table("never", partition_key="id")
    assert never.streams() == []
    db.drop_table("never")
    for ask in (never.stream_info, never.streams, never.changes, never.cursors):
        with pytest.raises(TableNotFound):
            ask()


def test_cursors(orders: Table) -> None:
    for number in range(4):
        orders.put({"id": str(number)})
    second = orders.changes()[1].sequence
    saved = orders.save_cursor("mailer", second)
    assert (saved.name, saved.sequence, saved.hold_bytes, saved.lag_records) == ("mailer", second, 1 << 30, 2)
    assert saved.lag_bytes > 0 and saved.lag_s >= 0 and abs(saved.at - datetime.now(UTC)) < timedelta(seconds=5)
    assert orders.save_cursor("mailer", second, hold_bytes=7).hold_bytes == 7
    assert orders.save_cursor("mailer", second).hold_bytes == 7, "as before"
    assert orders.prune_stream() == 4
    (cursor,) = orders.cursors()
    assert (cursor.cut_off, cursor.lost, cursor.lag_records) == (True, 2, 0)
    assert (orders.drop_cursor("mailer"), orders.drop_cursor("mailer"), orders.cursors()) == (True, False, [])


def test_a_failed_condition_returns_the_item(orders: Table) -> None:
    item = {"id": "o-1", "amount": Decimal("1.5"), "tags": {"x"}}
    orders.put(item)
    never = "attribute_not_exists(id)"
    for attempt in (
        lambda **how: orders.put({"id": "o-1"}, condition=never, **how),
        lambda **how: orders.update("o-1", "REMOVE tags", condition=never, **how),
        lambda **how: orders.delete("o-1", condition=never, **how),
    ):
        with pytest.raises(ConditionFailed) as caught:
            attempt(on_failure=True)
        assert caught.value.item == item
        with pytest.raises(ConditionFailed) as caught:
            attempt()
        assert caught.value.item is None
    with pytest.raises(ConditionFailed) as caught:
        orders.delete("nothing", condition="attribute_exists(id)", on_failure=True)
    assert caught.value.item is None


def test_a_snapshot_and_what_follows_it_make_the_table(db: Database, orders: Table) -> None:
    orders.put({"id": "a", "n": 1})
    orders.put({"id": "b", "n": 1})
    sequence, items = orders.snapshot()
    orders.put({"id": "b", "n": 2})
    orders.delete("a")
    orders.put({"id": "c", "n": 3})
    copy = {item["id"]: item for item in items}
    assert copy == {"a": {"id": "a", "n": 1}, "b": {"id": "b", "n": 1}}
    for change in orders.changes(after=sequence):
        if change.new is None:
            del copy[change.keys["id"]]
        else:
            copy[change.keys["id"]] = change.new
    assert copy == {item["id"]: item for item in orders.scan()}


# -- following


def collect(changes: Iterator[Change], into: list[Any], *, until: int) -> None:
    for change in changes:
        into.append(change.keys["id"])
        if len(into) == until:
            return


def test_follow_gives_what_was_and_what_comes(orders: Table) -> None:
    orders.put({"id": "before"})
    seen: list[str] = []
    thread = threading.Thread(target=collect, args=(orders.follow(), seen), kwargs={"until": 301})
    thread.start()
    for number in range(300):
        orders.put({"id": str(number)})
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert seen == ["before", *(str(number) for number in range(300))]


def test_follow_from_now_on_and_for_so_long(orders: Table) -> None:
    orders.put({"id": "before"})
    assert list(orders.follow(after="latest", timeout_s=0.01)) == []
    assert [change.keys["id"] for change in orders.follow(timeout_s=0.01)] == ["before"]
    with pytest.raises(Invalid, match="after='newest' is not a sequence"):
        orders.follow(after="newest")  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["disable", "drop", "close"])
def test_follow_ends_with_its_stream(tmp_path: Path, end: str) -> None:
    db = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    orders = db.create_table("orders", partition_key="id", stream="NEW_IMAGE")
    orders.put({"id": "o-1"})
    seen: list[str] = []
    first = threading.Event()

    def follow() -> None:
        for change in orders.follow():
            seen.append(change.keys["id"])
            first.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(PATIENCE_S)
    if end == "disable":
        orders.disable_stream()
    elif end == "drop":
        db.drop_table("orders")
    else:
        db.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert seen == ["o-1"]
    assert len(db.tail) == 0
    if end != "close":
        db.close()


def test_no_subscriber_is_left(db: Database, orders: Table) -> None:
    orders.put({"id": "o-1"})
    following = orders.follow()
    next(following)
    assert len(db.tail) == 1
    following.close()  # type: ignore[attr-defined]
    assert len(db.tail) == 0


# -- the same from asyncio


def test_async(tmp_path: Path) -> None:
    async def program() -> None:
        db = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
        orders = await db.aio.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        await orders.put({"id": "o-1", "amount": 1})
        assert await orders.update("o-1", "SET amount = :n", values={"n": 2}) == {"id": "o-1", "amount": 2}
        assert await (await db.aio.table("orders")).get("o-1") == {"id": "o-1", "amount": 2}
        await db.aio.batch_write([Put("orders", {"id": f"p-{number}"}) for number in range(3)])
        await db.aio.transact_write([Delete("orders", "p-0")])
        assert await db.aio.transact_get([Get("orders", "p-0"), Get("orders", "p-1")]) == [None, {"id": "p-1"}]
        assert [item async for item in orders.query("o-1")] == [{"id": "o-1", "amount": 2}]
        assert len((await orders.query_page("o-1")).items) == 1
        assert {item["id"] async for item in orders.scan()} == {"o-1", "p-1", "p-2"}
        assert len((await orders.scan_page(limit=2)).items) == 2
        sequence, items = await orders.snapshot()
        assert len(list(items)) == await orders.count() == 3
        assert await orders.changes(after=sequence) == []
        assert (await orders.stream_info()).count == 6
        with pytest.raises(ConditionFailed):
            await orders.put({"id": "o-1"}, condition="attribute_not_exists(id)")
        await orders.set_ttl("until")
        await orders.add_index(Index("by-amount", ("amount", "N")))
        assert (await orders.describe()).ttl == "until"
        await orders.drop_index("by-amount")
        await orders.alter_stream_retention(max_count=3)
        saved = await orders.save_cursor("mailer", (await orders.changes())[-1].sequence)
        assert await orders.cursors() == [saved]
        assert await orders.drop_cursor("mailer")
        assert [stream.label for stream in await orders.streams()] == [(await orders.stream_info()).label]
        with pytest.raises(ConditionFailed) as failed:
            await orders.put({"id": "o-1"}, condition="attribute_not_exists(id)", on_failure=True)
        assert failed.value.item == {"id": "o-1", "amount": 2}
        assert await orders.prune_stream() == 6
        await orders.disable_stream()
        await orders.enable_stream("NEW_IMAGE")
        assert await orders.delete("p-1", returns="ALL_OLD") == {"id": "p-1"}
        assert await db.aio.tables() == ["orders"]
        await db.aio.drop_table("orders")
        await db.aclose()

    asyncio.run(program())


def test_async_follow(tmp_path: Path) -> None:
    async def program() -> None:
        db = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
        orders = await db.aio.create_table("orders", partition_key="id", stream="NEW_IMAGE")
        await orders.put({"id": "before"})
        seen: list[str] = []

        async def follow() -> None:
            async for change in orders.follow():
                seen.append(change.keys["id"])

        task = asyncio.create_task(follow())
        for number in range(50):
            await orders.put({"id": str(number)})
        assert [change.keys["id"] async for change in orders.follow(after=51, timeout_s=0.01)] == ["49"]
        await orders.disable_stream()
        await asyncio.wait_for(task, 30)
        assert seen == ["before", *(str(number) for number in range(50))]
        assert len(db.tail) == 0
        await db.aclose()

    asyncio.run(program())


def signatures(of: type) -> dict[str, list[str]]:
    """The parameters of each method, as text; what is asynchronous is called like its synchronous twin."""
    return {
        name: [
            str(each).replace("AsyncTransaction", "Transaction").replace("Awaitable[T]", "T")
            for each in inspect.signature(method).parameters.values()
        ]
        for name, method in vars(of).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def test_sync_and_async_are_called_alike() -> None:
    assert signatures(AsyncTable) == signatures(Table)
    assert len(signatures(Table)) > 15
    for asynchronous, synchronous in zip(AsyncOperations.__mro__, Operations.__mro__, strict=True):
        if (asynchronous, synchronous) != (AsyncFacade, Facade):
            assert signatures(asynchronous) == signatures(synchronous)
    for of in (Table, AsyncTable, *Operations.__mro__, *AsyncOperations.__mro__):
        assert all(getattr(of, name).__doc__ for name in signatures(of))


def test_the_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parsed = doctest.DocTestParser().get_doctest(embedded.__doc__ or "", {}, "embedded", None, None)
    assert len(parsed.examples) >= 6
    assert doctest.DocTestRunner().run(parsed).failed == 0


@pytest.mark.parametrize(
    "method",
    [
        method
        for of in (Table, TableOperations)
        for name, method in sorted(vars(of).items())
        if ">>>" in (method.__doc__ or "")
    ],
    ids=lambda method: method.__qualname__,
)
def test_the_examples_of_methods_work(db: Database, method: Any) -> None:
    by_state = Index("by-state", "state")
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES", indexes=[by_state])
    lines = db.create_table("lines", partition_key="order", sort_key=("number", "N"))
    db.create_table("stock", partition_key="name").put({"name": "apple", "pieces": 5})
    orders.put({"id": "o-1", "state": "paid", "amount": 15})
    db.batch_write([Put("lines", {"order": "o-1", "number": number}) for number in range(9)])
    names = {**vars(embedded), "db": db, "orders": orders, "lines": lines}
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(method) or "", names, method.__name__, None, None)
    assert doctest.DocTestRunner().run(parsed).failed == 0


# -- what programs get wrong


HALF = "\ud800"  # of a surrogate pair: a str to Python, nothing that UTF-8 can say


@pytest.mark.parametrize(
    "wrong",
    [
        lambda db, orders: orders.alter_stream_retention(max_age=float("nan")),
        lambda db, orders: orders.alter_stream_retention(max_age=float("inf")),
        lambda db, orders: orders.alter_stream_retention(max_age="7"),
        lambda db, orders: orders.alter_stream_retention(max_count=1.5),
        lambda db, orders: orders.alter_stream_retention(max_count=True),
        lambda db, orders: db.create_table("more", "id", stream="KEYS_ONLY", max_count=1.5),
        lambda db, orders: orders.save_cursor("c", 1, hold_bytes=2**70),
        lambda db, orders: orders.save_cursor("c", 1, hold_bytes=1.5),
        lambda db, orders: orders.save_cursor("c", 1.5),
        lambda db, orders: orders.save_cursor(HALF, 1),
        lambda db, orders: orders.save_cursor(5, 1),
        lambda db, orders: orders.prune_stream(2.5),
        lambda db, orders: orders.changes(after=1.5),
        lambda db, orders: orders.changes(limit="5"),
        lambda db, orders: orders.changes(label=HALF),
        lambda db, orders: orders.scan_page(limit=1.5),
        lambda db, orders: orders.set_ttl(HALF),
        lambda db, orders: orders.drop_cursor(HALF),
        lambda db, orders: orders.add_index(Index("by-x", HALF)),
        lambda db, orders: orders.add_index(Index("by-x", "x", projection=[HALF])),
        lambda db, orders: db.create_table("more", "id", ttl=HALF),
        lambda db, orders: db.create_table("more" + HALF, "id"),
        lambda db, orders: db.create_table("more", HALF),
        lambda db, orders: db.table(HALF),
        lambda db, orders: db.drop_table(HALF),
        lambda db, orders: db.batch_write([Put(HALF, {"id": "a"})]),
        lambda db, orders: db.transact_write([Put("orders", {"id": "a"})], token=HALF),
        lambda db, orders: db.transact_write([Put("orders", {"id": "a"})], token=""),
        lambda db, orders: db.transact_write([Put("orders", {"id": "a"})], token="x" * 37),
        lambda db, orders: db.transact_write([Put("orders", {"id": "a"})], token=5),
    ],
)
def test_a_senseless_argument_is_refused_and_changes_nothing(db: Database, orders: Table, wrong: Any) -> None:
    orders.put({"id": "o-1"})
    with pytest.raises(Invalid):
        wrong(db, orders)
    orders.put({"id": "o-2"})
    assert [change.keys["id"] for change in orders.changes()] == ["o-1", "o-2"]
    assert db.tables() == ["orders"]


@pytest.mark.parametrize("age", [90.5, timedelta(seconds=90.5)])
def test_a_part_of_a_second_is_rounded_up(orders: Table, age: Any) -> None:
    orders.alter_stream_retention(max_age=age)
    assert orders.stream_info().max_age_s == 91


def test_a_token_knows_its_transaction_in_any_process(tmp_path: Path) -> None:
    """Sets have an order that differs from process to process; what the token stands for has not."""
    program = (
        "import sys, tailrace; from tailrace import Put, Update\n"
        "with tailrace.open(sys.argv[1], housekeeping_s=None) as db:\n"
        "    orders = db.create_table('orders', partition_key='id', exist_ok=True)\n"
        "    names = {'s': 'strings', '#n': 'n'} if sys.argv[2] == '1' else {'#n': 'n', '#s': 'strings'}\n"
        "    db.transact_write([Put('orders', {'id': 'a', 'l': [{'x', 'y', 'z', 'w'}], 'n': {3, 1, 2}}),\n"
        "        Update('orders', 'b', 'SET #s = :s ADD #n :n', names=names, values={'s': {'p', 'q', 'r'}, 'n': 1})],\n"
        "        token='once')\n"
        "    assert orders.get('b')['n'] == 1\n"
    )
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "data"), seed], env=environment, check=True)


@pytest.mark.parametrize(
    "other",
    [
        Update("orders", "a", "ADD n :n", values={"n": 2}),
        Update("orders", "b", "ADD n :n", values={"n": 1}),
        Update("orders", "a", "ADD m :n", values={"n": 1}),
        Update("orders", "a", "ADD n :n", condition="attribute_exists(id)", values={"n": 1}),
        Put("orders", {"id": "a", "n": 1}),
    ],
)
def test_a_token_stands_for_all_of_its_transaction(db: Database, orders: Table, other: Any) -> None:
    one = Update("orders", "a", "ADD n :n", values={"n": 1})
    db.transact_write([one], token="t")
    db.transact_write([Update("orders", "a", "ADD n :n", values={":n": Decimal("1.0")})], token="t")
    assert orders.get("a") == {"id": "a", "n": 1}
    with pytest.raises(TokenMismatch):
        db.transact_write([other], token="t")


# -- loops and closing


def test_a_closed_loop_is_as_none(db: Database, orders: Table) -> None:
    """A put is answered, and followers on threads receive it."""

    async def main() -> None:
        await (await db.aio.table("orders")).put({"id": "o-1"})

    asyncio.run(main())
    seen: list[Any] = []
    follower = threading.Thread(
        target=collect, args=(orders.follow("latest", timeout_s=PATIENCE_S), seen), kwargs={"until": 1}
    )
    follower.start()
    while not len(db.tail):
        assert follower.is_alive()
    assert orders.put({"id": "o-2"}) is None
    follower.join(PATIENCE_S)
    assert seen == ["o-2"]


def test_a_second_loop_at_once_is_refused(db: Database, orders: Table) -> None:
    async def put() -> None:
        await (await db.aio.table("orders")).put({"id": "o-1"})

    async def main() -> None:
        await put()
        with pytest.raises(Invalid, match="another event loop"):
            await asyncio.to_thread(asyncio.run, put())
        await put()

    asyncio.run(main())
    with pytest.raises(Invalid, match="no event loop"):
        db.aexecute(operations.FindTable("orders"))


def test_nothing_is_read_after_closing(db: Database, orders: Table) -> None:
    orders.put({"id": "o-1"})
    waiting = orders.follow()
    assert next(waiting).keys == {"id": "o-1"}
    db.close()
    assert list(waiting) == [], "who followed comes to an end"
    reads: list[Any] = [
        lambda: orders.get("o-1"),
        lambda: list(orders.scan()),
        lambda: list(orders.follow()),
        orders.changes,
        orders.snapshot,
        db.tables,
    ]
    for read in reads:
        with pytest.raises(Unavailable) as refused:
            read()
        assert refused.value.code == "CLOSED"

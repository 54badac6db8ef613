"""Reading items: what comes back, in which order, where pages end, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.database import Database
from tailrace.errors import Invalid, TableNotFound, TransactionCanceled
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import schema, value
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem
from tailrace.tables.definition import Attribute, find
from tailrace.tables.expression import Placeholders, condition, key_condition, projection
from tailrace.tables.lifecycle import CreateTable, UpdateTable
from tailrace.tables.paging import weight, weight_most
from tailrace.tables.queries import (
    BatchGet,
    BatchGetKeys,
    GetItem,
    HeavyItems,
    ItemPage,
    Pager,
    QueryItems,
    ScanItems,
    TransactGet,
)

Key = tuple[schema.KeyElement, ...]


def key(hash_name: str, range_name: str | None = None) -> Key:
    elements = [schema.KeyElement(hash_name, "HASH")]
    return tuple(elements + ([] if range_name is None else [schema.KeyElement(range_name, "RANGE")]))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Tables `hash` (a) and `range` (a, b) with the local indexes l-all (c), l-some (d, projecting c) and the global
    ones g-all (c), g-some (c, d; projecting e)."""
    database = Database(SqliteEngine(tmp_path / "data"), housekeeping_s=None)
    strings = [Attribute(name, "S") for name in "abcd"]
    database.execute(
        CreateTable(
            schema.TableSpec(name="hash", attributes=(strings[0],), keys=key("a"), billing="PAY_PER_REQUEST"),
        )
    )
    database.execute(
        CreateTable(
            schema.TableSpec(
                name="range",
                attributes=tuple(strings),
                keys=key("a", "b"),
                billing="PAY_PER_REQUEST",
                local=(
                    schema.IndexSpec("l-all", key("a", "c")),
                    schema.IndexSpec("l-some", key("a", "d"), schema.ProjectionSpec("INCLUDE", ("c",))),
                ),
                globals=(
                    schema.IndexSpec("g-all", key("c")),
                    schema.IndexSpec("g-some", key("c", "d"), schema.ProjectionSpec("INCLUDE", ("e",))),
                ),
            )
        )
    )
    numbers = (Attribute("a", "S"), Attribute("b", "N"))
    database.execute(
        CreateTable(schema.TableSpec(name="number", attributes=numbers, keys=key("a", "b"), billing="PAY_PER_REQUEST"))
    )
    yield database
    database.close()


def put(db: Database, table: str, *items: dict[str, Any]) -> None:
    writes = [PutItem(table, *value.item_from_plain(item)) for item in items]
    for at in range(0, len(writes), 500):
        db.execute(BatchWrite(tuple(writes[at : at + 500])))


def typed(**plain: Any) -> value.Item:
    return value.item_from_plain(plain)[0]


def query(table: str, text: str, *, where: str | None = None, of: str | None = None, **options: Any) -> QueryItems:
    """A query; the placeholders of its expressions are among the options."""
    values = {f":{name[1:]}": value.from_plain(options.pop(name)) for name in list(options) if name.startswith("_")}
    placeholders = Placeholders(None, values)
    return QueryItems(
        table=table,
        condition=key_condition(text, placeholders),
        filter=None if where is None else condition(where, placeholders, "FilterExpression"),
        projection=None if of is None else projection(of, placeholders),
        **options,
    )


def page(db: Database, request: QueryItems | ScanItems) -> ItemPage:
    pager: Pager[Any] = Pager(request)
    while (step := pager.next()) is not None:
        pager.add(db.execute(step))
    return pager.page()


def plain(found: ItemPage) -> list[dict[str, Any]]:
    return [value.item_to_plain(item) for item in found.items or ()]


def every(db: Database, make: Callable[..., QueryItems | ScanItems]) -> list[list[dict[str, Any]]]:
    """All pages."""
    pages, start = [], None
    while True:
        found = page(db, make(start=start))
        pages.append(plain(found))
        start = found.last_key
        if start is None:
            return pages


def refusal(db: Database, request: QueryItems | ScanItems) -> str:
    with pytest.raises(Invalid) as caught:
        page(db, request)
    return str(caught.value)


# -- by key


def test_get(db: Database) -> None:
    put(db, "range", {"a": "x", "b": "y", "n": 1, "m": {"k": [1, 2]}})
    got = db.execute(GetItem("range", typed(a="x", b="y"), capacity=True))
    assert got.item == typed(a="x", b="y", n=1, m={"k": [1, 2]})
    assert got.consumed is not None and got.consumed.read == 0.5
    assert db.execute(GetItem("range", typed(a="x", b="z"))).item is None
    some = projection("m.k[1], n", Placeholders())
    assert db.execute(GetItem("range", typed(a="x", b="y"), some, True)).item == typed(m={"k": [2]}, n=1)
    with pytest.raises(Invalid, match=r"^The provided key element does not match the schema$"):
        db.execute(GetItem("range", typed(a="x")))
    with pytest.raises(TableNotFound):
        db.execute(GetItem("nothing", typed(a="x")))
    with pytest.raises(Invalid, match=r"Key attributes must be scalars;.* Key: a$"):
        db.execute(GetItem("hash", typed(a="x"), projection("a.b", Placeholders())))


def test_batch_get(db: Database) -> None:
    put(db, "hash", {"a": "1", "n": 1}, {"a": "2"})
    put(db, "range", {"a": "1", "b": "1"})
    wanted = (
        BatchGetKeys("hash", (typed(a="1"), typed(a="none"), typed(a="2")), consistent=True),
        BatchGetKeys("range", (typed(a="1", b="1"),)),
    )
    got = db.execute(BatchGet(wanted, True))
    assert got.items == {"hash": [typed(a="1", n=1), typed(a="2")], "range": [typed(a="1", b="1")]}
    assert got.unprocessed == {}
    assert {name: units.total for name, units in got.consumed.items()} == {"hash": 3.0, "range": 0.5}
    with pytest.raises(Invalid, match=r"^Provided list of item keys contains duplicates$"):
        db.execute(BatchGet((BatchGetKeys("number", (typed(a="1", b=1), typed(b=1, a="1"))),)))
    with pytest.raises(TableNotFound):
        db.execute(BatchGet((BatchGetKeys("nothing", (typed(a="1"),)),)))


def test_a_batch_that_is_too_large_leaves_keys_unprocessed(db: Database) -> None:
    items = [{"a": str(number), "b": "x" * 300_000} for number in range(7)]
    put(db, "hash", *items)
    got = db.execute(BatchGet((BatchGetKeys("hash", tuple(typed(a=item["a"]) for item in items)),)))
    assert len(got.items["hash"]) + len(got.unprocessed["hash"]) == 7
    assert got.unprocessed["hash"] == [typed(a=str(number)) for number in (4, 5, 6)]


def test_transact_get(db: Database) -> None:
    put(db, "hash", {"a": "1", "n": 1})
    gets = (GetItem("hash", typed(a="1")), GetItem("hash", typed(a="2")), GetItem("range", typed(a="1", b="1")))
    got = db.execute(TransactGet(gets, True))
    assert got.items == [typed(a="1", n=1), None, None]
    assert {name: units.total for name, units in got.consumed.items()} == {"hash": 4.0, "range": 2.0}
    with pytest.raises(Invalid, match=r"^Transaction request cannot include multiple operations on one item$"):
        db.execute(TransactGet((gets[0], gets[0])))
    with pytest.raises(TransactionCanceled) as caught:
        db.execute(TransactGet((gets[0], GetItem("hash", {}))))
    assert [code for code, _, _ in caught.value.reasons] == ["None", "ValidationError"]


# -- query


@pytest.mark.parametrize(
    ("sort", "operands", "found"),
    [
        ("", {}, [-5, 0, 2, 3, 10, 11]),
        ("AND b = :x", {"_x": 3}, [3]),
        ("AND b < :x", {"_x": 3}, [-5, 0, 2]),
        ("AND b <= :x", {"_x": 3}, [-5, 0, 2, 3]),
        ("AND b > :x", {"_x": 3}, [10, 11]),
        ("AND b >= :x", {"_x": 3}, [3, 10, 11]),
        ("AND b BETWEEN :x AND :y", {"_x": 0, "_y": 10}, [0, 2, 3, 10]),
    ],
)
def test_sort_conditions_on_numbers(db: Database, sort: str, operands: dict[str, Any], found: list[int]) -> None:
    put(db, "number", *({"a": "p", "b": number} for number in (10, 2, -5, 11, 0, 3)), {"a": "q", "b": 1})
    request = query("number", f"a = :p {sort}", _p="p", **operands)
    assert [item["b"] for item in plain(page(db, request))] == found
    back = query("number", f"a = :p {sort}", _p="p", reverse=True, **operands)
    assert [item["b"] for item in plain(page(db, back))] == found[::-1]


@pytest.mark.parametrize("index", [None, "l-all"])
def test_begins_with_in_tables_and_indexes(db: Database, index: str | None) -> None:
    words = ["a", "ab", "ab\x00", "abc", "ab\U0010ffff", "ac"]
    put(db, "range", *({"a": "p", "b": word, "c": word} for word in words))
    name = "b" if index is None else "c"
    request = query("range", f"a = :p AND begins_with({name}, :w)", _p="p", _w="ab", index=index)
    assert [item["b"] for item in plain(page(db, request))] == ["ab", "ab\x00", "abc", "ab\U0010ffff"]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 10, 100])
@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("a = :p", None),
        ("a = :p AND b > :low", None),
        ("a = :p", "l-all"),
        ("a = :p AND c > :low", "l-all"),
        ("c = :same", "g-all"),
        ("c = :same AND d = :same", "g-some"),
    ],
)
def test_pages_hold_everything_once(db: Database, text: str, index: str | None, limit: int, reverse: bool) -> None:
    same = index in ("g-all", "g-some")
    items = [
        {"a": "p", "b": f"{number:02}", "c": "same" if same else f"{number % 4}", "d": "same"} for number in range(10)
    ]
    put(db, "range", *items)
    operands = {"_p": "p", "_low": "00", "_same": "same"}
    used = {name: operand for name, operand in operands.items() if f":{name[1:]}" in text}

    def make(start: value.Item | None = None) -> QueryItems:
        return query("range", text, index=index, limit=limit, reverse=reverse, start=start, **used)

    whole = plain(page(db, query("range", text, index=index, reverse=reverse, **used)))
    expected = {"a = :p AND b > :low": 9, "a = :p AND c > :low": 7}.get(text, 10)
    assert len(whole) == expected
    pages = every(db, make)
    assert [item for found in pages for item in found] == whole
    assert all(len(found) <= limit for found in pages)


def test_a_limit_that_is_reached_always_gives_a_last_key(db: Database) -> None:
    put(db, "range", {"a": "p", "b": "1", "c": "x"}, {"a": "p", "b": "2", "c": "y"})
    assert page(db, query("range", "a = :p", _p="p", limit=2)).last_key == typed(a="p", b="2")
    assert page(db, query("range", "a = :p", _p="p", limit=3)).last_key is None
    found = page(db, query("range", "c = :c", _c="x", index="g-all", limit=1))
    assert found.last_key == typed(a="p", b="1", c="x")


def test_a_query_for_one_item_never_has_a_last_key(db: Database) -> None:
    put(db, "hash", {"a": "p"})
    put(db, "range", {"a": "p", "b": "1"})
    assert page(db, query("hash", "a = :p", _p="p", limit=1)).last_key is None
    assert page(db, query("range", "a = :p AND b = :b", _p="p", _b="1", limit=1)).last_key is None


def test_filter_and_projection(db: Database) -> None:
    put(db, "range", *({"a": "p", "b": str(number), "n": number} for number in range(5)))
    found = page(db, query("range", "a = :p", _p="p", _n=3, where="n >= :n", of="n", limit=4))
    assert plain(found) == [{"n": 3}]
    assert (found.count, found.scanned, found.last_key) == (1, 4, typed(a="p", b="3"))
    counted = page(db, query("range", "a = :p", _p="p", _n=3, where="n >= :n", select="COUNT"))
    assert (counted.items, counted.count, counted.scanned) == (None, 2, 5)


@pytest.mark.parametrize("index", [None, "l-all"])
def test_a_page_is_a_megabyte(db: Database, index: str | None) -> None:
    items = [{"a": "p", "b": f"{number:02}", "c": f"{number:02}", "e": "x" * 100_000} for number in range(30)]
    put(db, "range", *items)

    def make(start: value.Item | None = None) -> QueryItems:
        return query("range", "a = :p", _p="p", index=index, start=start, capacity=True)

    pages = every(db, make)
    assert [len(found) for found in pages] == [11, 11, 8]
    assert [item for found in pages for item in found] == items
    first = page(db, make())
    assert first.consumed is not None and first.consumed.total == 134.5  # 11 items of 100,011 bytes, in units of 8 KB


def test_a_page_ends_with_the_item_that_fills_it(db: Database) -> None:
    """The service's own arithmetic, as measured: one byte more and the page is full, which only a last key tells."""
    items = [{"a": "A" * 10, "b": f"{number:02}", "e": "e" * 41_645} for number in range(25)]
    put(db, "range", *items)
    assert page(db, query("range", "a = :p", _p="A" * 10, select="COUNT")).last_key is None
    put(db, "range", {**items[24], "e": "e" * 41_646})
    found = page(db, query("range", "a = :p", _p="A" * 10, select="COUNT"))
    assert (found.count, found.last_key) == (25, typed(a="A" * 10, b="24"))


def test_many_small_items_take_several_slices(db: Database) -> None:
    put(db, "number", *({"a": "p", "b": number} for number in range(2_500)))
    steps = []
    pager: Pager[Any] = Pager(query("number", "a = :p", _p="p", limit=2_400, slice_s=math.inf))
    while (step := pager.next()) is not None:
        steps.append(step)
        pager.add(db.execute(step))
    assert len(steps) == 3
    found = pager.page()
    assert [item["b"] for item in plain(found)] == list(range(2_400))
    assert found.last_key == typed(a="p", b=2_399)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("where", [None, "e > :n"])
def test_how_long_a_slice_may_take_changes_no_page(db: Database, reverse: bool, where: str | None) -> None:
    put(db, "range", *({"a": "p", "b": f"{number:03}", "c": "x", "e": number} for number in range(150)))
    put(db, "range", *({"a": "q", "b": f"{number:03}", "c": "x", "t": "x" * 9_000} for number in range(150)))
    for index, text in ((None, "a = :p"), (None, "a = :q"), ("l-all", "a = :p"), ("g-all", "c = :x")):
        for limit in (None, 31, 32, 33, 100, 150):
            found = []
            for slice_s in (0.0, math.inf):
                more = {"_n": 70} if where else {}
                named = f"_{text[-1]}"
                request = query(
                    "range", text, where=where, index=index, limit=limit, reverse=reverse, slice_s=slice_s,
                    capacity=True, **{named: text[-1]}, **more,
                )  # fmt: skip
                answer = page(db, request)
                found.append((plain(answer), answer.scanned, answer.count, answer.last_key, answer.consumed))
            assert found[0] == found[1]


def test_a_slice_ends_when_its_time_is_over(db: Database) -> None:
    put(db, "number", *({"a": "p", "b": number} for number in range(100)))
    first = db.execute(query("number", "a = :p", _p="p", slice_s=0.0))
    assert (first.scanned, first.weight) == (32, sum(weight(item, "b") for item in first.items))
    assert db.execute(query("number", "a = :p", _p="p", slice_s=math.inf)).scanned == 100
    put(db, "number", *({"a": "q", "b": number, "t": "x" * 20_000} for number in range(10)))
    assert db.execute(query("number", "a = :q", _q="q", slice_s=0.0)).scanned == 2


def test_light_queries_refuse_large_items(db: Database) -> None:
    put(db, "number", {"a": "p", "b": 1, "t": "x" * 70_000}, {"a": "q", "b": 1, "t": "x" * 60_000})
    with pytest.raises(HeavyItems):
        db.execute(query("number", "a = :p", _p="p", light=True))
    assert db.execute(query("number", "a = :q", _q="q", light=True)).count == 1


@pytest.mark.parametrize("again", [False, True])
def test_an_index_that_is_dropped_between_slices_is_noticed(db: Database, again: bool) -> None:
    put(db, "range", *({"a": "p", "b": f"{number:03}", "c": "x"} for number in range(600)))
    pager: Pager[Any] = Pager(query("range", "c = :x", index="g-all", _x="x"))
    pager.add(db.execute(pager.next()))  # type: ignore[arg-type]
    db.execute(UpdateTable("range", schema.TableChanges(indexes=(schema.IndexChange(delete="g-all"),))))
    if again:
        db.sweep()
        made = schema.IndexChange(create=schema.IndexSpec("g-all", key("c")))
        db.execute(UpdateTable("range", schema.TableChanges(attributes=(Attribute("c", "S"),), indexes=(made,))))
        db.sweep()
    db.execute(BatchWrite(tuple(DeleteItem("range", typed(a="p", b=f"{number:03}")) for number in range(600))))
    with pytest.raises(Invalid, match="index"):
        db.execute(pager.next())  # type: ignore[arg-type]


def test_a_table_recreated_between_slices_is_noticed(db: Database) -> None:
    from tailrace.tables.lifecycle import DeleteTable

    put(db, "number", *({"a": "p", "b": number} for number in range(1_100)))
    pager: Pager[Any] = Pager(query("number", "a = :p", _p="p"))
    pager.add(db.execute(pager.next()))  # type: ignore[arg-type]
    db.execute(DeleteTable("number"))
    numbers = (Attribute("a", "S"), Attribute("b", "N"))
    db.execute(
        CreateTable(schema.TableSpec(name="number", attributes=numbers, keys=key("a", "b"), billing="PAY_PER_REQUEST"))
    )
    with pytest.raises(TableNotFound):
        db.execute(pager.next())  # type: ignore[arg-type]


def test_no_item_weighs_more_than_is_assumed() -> None:
    for item in (
        {"a": "", "b": "x" * 1024},
        {"a": "x" * 2048, "b": "y" * 1024, **{chr(0x100 + at): "" for at in range(200)}},
        {"a": "x", "l": [None, True, "", b"", [], {}] * 50},
        {"a": "x", "m": {chr(65 + at): {"": ""} for at in range(20)}},
        {"a": "x", "s": {"a", "b"}, "n": {1, 2}, "b": 1},
    ):
        made, size = value.item_from_plain(item)
        assert weight(made, "b") <= weight_most(size, 1)


# -- indexes


def test_an_index_shows_what_it_projects(db: Database) -> None:
    whole = {"a": "p", "b": "1", "c": "c", "d": "d", "e": "e", "f": "f"}
    put(db, "range", whole, {"a": "p", "b": "2", "d": "d"})
    held = {name: whole[name] for name in "abcd"}
    assert plain(page(db, query("range", "a = :p", _p="p", index="l-some"))) == [held, {"a": "p", "b": "2", "d": "d"}]
    assert plain(page(db, query("range", "c = :c", _c="c", index="g-some"))) == [{**held, "e": "e"}]
    assert plain(page(db, query("range", "c = :c", _c="c", index="g-all"))) == [whole]
    both = query("range", "c = :c", _c="c", index="g-some", select="ALL_PROJECTED_ATTRIBUTES")
    assert plain(page(db, both)) == [{**held, "e": "e"}]


def test_a_local_index_fetches_the_rest(db: Database) -> None:
    whole = {"a": "p", "b": "1", "c": "c", "d": "d", "e": "e" * 5_000, "f": "f"}
    put(db, "range", whole)
    options: dict[str, Any] = {"index": "l-some", "capacity": True, "consistent": True}
    found = page(db, query("range", "a = :p", _p="p", select="ALL_ATTRIBUTES", **options))
    assert plain(found) == [whole]
    assert found.consumed is not None
    assert (found.consumed.read, found.consumed.parts["l-some"].read, found.consumed.parts["l-some"].local) == (
        2,
        1,
        True,
    )
    found = page(db, query("range", "a = :p", _p="p", of="f", **options))
    assert plain(found) == [{"f": "f"}]
    found = page(db, query("range", "a = :p", _p="p", of="c", **options))
    assert plain(found) == [{"c": "c"}]
    assert found.consumed is not None and found.consumed.read == 0


def test_what_a_global_index_refuses(db: Database) -> None:
    assert refusal(db, query("range", "c = :c", _c="c", index="g-all", consistent=True)) == (
        "Consistent reads are not supported on global secondary indexes"
    )
    assert refusal(db, query("range", "c = :c", _c="c", index="none")) == (
        "The table does not have the specified index: none"
    )
    assert refusal(db, query("range", "c = :c", _c="c", index="g-some", select="ALL_ATTRIBUTES")) == (
        "One or more parameter values were invalid: Select type ALL_ATTRIBUTES is not supported for global secondary "
        "index g-some because its projection type is not ALL"
    )
    assert refusal(db, query("range", "c = :c", _c="c", index="g-some", of="f, e, g")) == (
        "One or more parameter values were invalid: Global secondary index g-some does not project [f, g]"
    )


def test_an_index_that_is_being_filled_cannot_be_read(db: Database) -> None:
    put(db, "hash", {"a": "1", "k": "x"})
    new = schema.IndexChange(create=schema.IndexSpec("late", key("k")))
    db.execute(UpdateTable("hash", schema.TableChanges(attributes=(Attribute("k", "S"),), indexes=(new,))))
    assert (
        refusal(db, ScanItems(table="hash", index="late"))
        == "Cannot read from backfilling global secondary index: late"
    )
    db.sweep()
    assert plain(page(db, ScanItems(table="hash", index="late"))) == [{"a": "1", "k": "x"}]


def test_an_index_key_of_several_attributes(db: Database) -> None:
    names = ("tenant", "region", "day", "hour")
    keys = tuple(
        schema.KeyElement(name, role) for name, role in zip(names, ("HASH", "HASH", "RANGE", "RANGE"), strict=True)
    )
    attributes = (*(Attribute(name, "S") for name in names[:3]), Attribute("hour", "N"))
    new = schema.IndexChange(create=schema.IndexSpec("multi", keys))
    db.execute(UpdateTable("hash", schema.TableChanges(attributes=attributes, indexes=(new,))))
    db.sweep()
    items = [
        {"a": f"{region}{day}{hour}", "tenant": "t", "region": region, "day": day, "hour": hour}
        for region in ("eu", "us")
        for day in ("mon", "tue")
        for hour in (1, 5, 10)
    ]
    put(db, "hash", *items)
    text = "tenant = :t AND #r = :r AND #d = :d AND #h >= :h"
    placeholders = Placeholders(
        {"#r": "region", "#d": "day", "#h": "hour"},
        {":t": {"S": "t"}, ":r": {"S": "us"}, ":d": {"S": "tue"}, ":h": {"N": "5"}},
    )
    request = QueryItems(table="hash", condition=key_condition(text, placeholders), index="multi", limit=1)
    assert [item["a"] for item in plain(page(db, request))] == ["ustue5"]
    again = QueryItems(
        table="hash", condition=request.condition, index="multi", limit=1, start=page(db, request).last_key
    )
    assert [item["a"] for item in plain(page(db, again))] == ["ustue10"]


# -- scan


def test_scan(db: Database) -> None:
    items = [{"a": str(number), "b": "x", "n": number} for number in range(50)]
    put(db, "range", *items)

    def make(start: value.Item | None = None) -> ScanItems:
        return ScanItems(table="range", limit=7, start=start)

    found = [item for some in every(db, make) for item in some]
    assert sorted(found, key=lambda item: item["n"]) == items
    assert found == plain(page(db, ScanItems(table="range")))
    assert page(db, ScanItems(table="range", select="COUNT")).count == 50
    assert plain(page(db, ScanItems(table="range", index="g-all"))) == []


@pytest.mark.parametrize("total", [1, 2, 3, 7, 100, 4096, 1_000_000])
def test_segments_hold_everything_once(db: Database, total: int) -> None:
    items = [{"a": str(number), "b": "x"} for number in range(40)]
    put(db, "range", *items)
    wanted = range(total)
    if total > 1_000:  # only the segments that have something
        from tailrace.tables import key as keys

        with db._engine.reader(0) as reader:
            definition = find(reader, "range")
        places = [int.from_bytes(keys.item_key(definition, typed(**item))[:8]) for item in items]
        wanted = sorted({min(place * total >> 64, total - 1) for place in places})  # type: ignore[assignment]
    found = []
    for segment in wanted:
        found += plain(page(db, ScanItems(table="range", segment=segment, total=total)))
    assert sorted(found, key=lambda item: int(item["a"])) == items


def test_a_start_key_of_another_segment(db: Database) -> None:
    put(db, "hash", *({"a": str(number)} for number in range(10)))
    (first, *_) = plain(page(db, ScanItems(table="hash", segment=1, total=2)))
    assert refusal(db, ScanItems(table="hash", segment=0, total=2, start=typed(**first))) == (
        "The provided starting key is invalid: Invalid ExclusiveStartKey. Please use ExclusiveStartKey with correct "
        "Segment. TotalSegments: 2 Segment: 0"
    )


# -- start keys

INVALID = "The provided starting key is invalid"
MISMATCH = "The provided key element does not match the schema"
OUTSIDE = "The provided starting key is outside query boundaries based on provided conditions"
PREDICATE = "The provided starting key does not match the range key predicate"
ONE_ROW = "The query can return at most one row and cannot be restarted"


@pytest.mark.parametrize(
    ("index", "text", "start", "message"),
    [
        (None, "a = :b", {}, INVALID),
        (None, "a = :b", {"a": "a"}, INVALID),
        (None, "a = :b", {"a": "a", "c": "c"}, INVALID),
        (None, "a = :b", {"a": "b", "b": "b", "c": "c"}, INVALID),
        (None, "a = :b", {"a": 1, "z": "b"}, MISMATCH),
        (None, "a = :b", {"a": "b", "b": 1}, MISMATCH),
        (None, "z = :b", {"a": "a", "b": 1}, "Query condition missed key schema element: a"),
        (None, "a = :b", {"a": "a", "b": "a"}, OUTSIDE),
        (None, "a = :b AND b > :b", {"a": "a", "b": "a"}, PREDICATE),
        (None, "a = :b AND b < :b", {"a": "a", "b": "a"}, ONE_ROW),
        ("l-all", "a = :b", {"a": "b", "b": "b"}, INVALID),
        ("l-all", "a = :b", {"a": "b", "b": "b", "c": 1}, MISMATCH),
        ("l-all", "a = :b", {"a": "b", "b": 1, "c": "c"}, f"{INVALID}: {MISMATCH}"),
        ("l-all", "a = :b", {"a": "a", "b": "a", "c": "a"}, OUTSIDE),
        ("l-all", "a = :b AND c > :b", {"a": "a", "b": "a", "c": "a"}, PREDICATE),
        ("g-all", "c = :b", {"x": 1, "y": 1, "c": "a"}, f"{INVALID}: {MISMATCH}"),
        ("g-all", "c = :b", {"a": "a", "b": "b", "c": "a"}, OUTSIDE),
        ("g-some", "c = :b AND d = :b", {"a": "a", "b": "b", "c": "a", "d": "b"}, ONE_ROW),
        ("g-some", "c = :b AND d = :b", {"a": "a", "b": "b", "c": "b", "d": "a"}, PREDICATE),
    ],
)
def test_start_keys_of_queries(db: Database, index: str | None, text: str, start: dict[str, Any], message: str) -> None:
    assert refusal(db, query("range", text, _b="b", index=index, start=typed(**start))) == message


def test_a_partition_of_one_item_cannot_be_restarted(db: Database) -> None:
    assert refusal(db, query("hash", "a = :b", _b="b", start=typed(a="b"))) == (
        "The provided exclusive start key is invalid: ExclusiveStartKey: {a=AttributeValue: {S:b}}"
    )
    assert refusal(db, query("hash", "a = :b", _b="b", start=typed(a="a"))) == OUTSIDE


@pytest.mark.parametrize(
    ("index", "start", "message"),
    [
        (None, {}, f"{INVALID}: {MISMATCH}"),
        (None, {"a": "a"}, f"{INVALID}: {MISMATCH}"),
        (None, {"a": "a", "b": 1}, f"{INVALID}: {MISMATCH}"),
        ("l-all", {"a": "a", "b": "b"}, INVALID),
        ("l-all", {"a": 1, "x": "x", "y": "y"}, MISMATCH),
        ("l-all", {"a": "a", "b": 1, "c": "c"}, f"{INVALID}: {MISMATCH}"),
        ("g-all", {"x": "1", "y": "1", "c": "1"}, f"{INVALID}: {MISMATCH}"),
    ],
)
def test_start_keys_of_scans(db: Database, index: str | None, start: dict[str, Any], message: str) -> None:
    assert refusal(db, ScanItems(table="range", index=index, start=typed(**start))) == message


# -- what else is refused


def test_selections_that_contradict_themselves(db: Database) -> None:
    prefix = ""  # since August 2026
    some = projection("x", Placeholders())
    assert refusal(db, ScanItems(table="hash", select="SPECIFIC_ATTRIBUTES")) == (
        prefix + "Must specify the AttributesToGet or ProjectionExpression when choosing to get SPECIFIC_ATTRIBUTES"
    )
    assert refusal(db, ScanItems(table="hash", select="ALL_ATTRIBUTES", projection=some)) == (
        prefix + "Cannot specify the ProjectionExpression when choosing to get ALL_ATTRIBUTES"
    )
    assert refusal(db, ScanItems(table="hash", select="COUNT", projection=some, legacy=True)) == (
        prefix + "Cannot specify the AttributesToGet when choosing to get only the Count"
    )
    assert refusal(db, ScanItems(table="hash", select="ALL_PROJECTED_ATTRIBUTES")) == (
        prefix + "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName"
    )
    assert page(db, ScanItems(table="hash", select="SPECIFIC_ATTRIBUTES", projection=some)).items == []
    condition = key_condition("a = :a", Placeholders(None, {":a": {"S": "x"}}))
    assert refusal(db, QueryItems(table="hash", condition=condition, select="SPECIFIC_ATTRIBUTES")) == (
        "1 validation error detected: "
        "Must specify the AttributesToGet or ProjectionExpression when choosing to get SPECIFIC_ATTRIBUTES"
    )


def test_conditions_on_the_wrong_attributes(db: Database) -> None:
    reason = "can only contain non-primary key attributes: Primary key attribute:"
    assert refusal(db, query("range", "a = :b", _b="b", where="b = :b")) == f"Filter Expression {reason} b"
    assert refusal(db, query("range", "a = :b", _b="b", where="a.x = :b", legacy=True)) == f"QueryFilter {reason} a"
    assert refusal(db, query("range", "c = :b", _b="b", where="d = :b", index="g-some")) == (
        f"Filter Expression {reason} d"
    )
    assert refusal(db, query("range", "a = :b", _b="b", where="d[1] = :b")) == (
        "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed: IndexKey: d"
    )


def test_operands_of_the_wrong_type(db: Database) -> None:
    expected = "One or more parameter values were invalid: Condition parameter type does not match schema type"
    assert refusal(db, query("range", "a = :b", _b=1)) == expected
    assert refusal(db, query("number", "a = :b AND b > :b", _b="b")) == expected
    assert "cannot contain an empty string value. Key: a" in refusal(db, query("range", "a = :b", _b=""))

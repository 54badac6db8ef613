"""Records of common shapes become the same rows all at once as one by one, and what is no shape is left alone."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bulk import columns, shapes
from tailrace.bulk.columns import items_of, rows_of
from tailrace.bulk.entries import batch, bounds_of, data_of
from tailrace.bulk.shape_texts import PLAIN, JsonColumns
from tailrace.errors import Corrupt
from tailrace.log.entry import Entry
from tailrace.tables import value
from tailrace.tables.change import HEAD_BYTES, StoredRecord
from tests.unit.bulk.test_columns import FLAT, NAMES, NESTED, TEXTS, changed, expected, plain_rows, shown

ENTRIES = 2 * shapes.ROWS_MIN


def records(entries: list[Entry]) -> shapes.ShapedChanges | None:
    body = batch(entries)["body"]
    texts = JsonColumns((0, PLAIN), (1, PLAIN), (2, PLAIN))
    return shapes.ShapeBatch(texts, data_of(body), bounds_of(body), HEAD_BYTES).changes()


def item(**plain: Any) -> dict[str, Any]:
    return value.item_from_plain(plain)[0]


def put(number: int, **plain: Any) -> StoredRecord:
    keys = item(id=f"k{number}")
    return StoredRecord(
        0 if number % 3 else 1, 100 * number, keys, None if number % 3 else keys, item(id=f"k{number}", **plain)
    )


@pytest.mark.parametrize("images", ["plain", "typed"])
@given(
    examples=st.lists(st.dictionaries(NAMES, FLAT | NESTED, min_size=1, max_size=4), min_size=1, max_size=4),
    texts=st.lists(TEXTS, min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 3),
)
def test_items_like_a_few_examples(
    examples: list[dict[str, Any]], texts: list[str], seed: int, size: int, images: str
) -> None:
    """Items with the attributes of an example, and other texts, numbers and flags in them."""
    chance = random.Random(seed)

    def other(held: Any) -> Any:
        match held:
            case bool():
                return chance.random() < 0.5
            case str():
                return chance.choice(texts) * chance.choice((1, 1, 1, 40, 300))
            case int():
                return chance.randrange(-(10 ** chance.randrange(1, 20)), 10 ** chance.randrange(1, 20))
            case list():
                return [other(each) for each in held]
            case dict():
                return {name: other(each) for name, each in held.items()}
        return held

    def image() -> dict[str, Any] | None:
        return value.item_from_plain(other(chance.choice(examples)))[0] if chance.random() < 0.9 else None

    def record() -> StoredRecord:
        return StoredRecord(chance.randrange(3), chance.randrange(10**6), image() or {}, image(), image())

    entries = changed(*([record() for _ in range(chance.randint(1, size))] for _ in range(shapes.ROWS_MIN + 5)))
    assert plain_rows(rows_of("table", batch(entries), images=images)) == expected(entries, images)

    held = [{"id": {"S": str(number)}} | (image() or {}) for number in range(shapes.ROWS_MIN + 5)]
    assert items_of(pa.array(map(value.encode, held), pa.binary()), ("id",)).to_pylist() == [
        {"keys": shown({"id": each["id"]}, "plain"), "item": shown(each, "plain"), "typed": shown(each, "typed")}
        for each in held
    ]


def test_what_is_alike_fits() -> None:
    entries = changed(
        *([put(number, status="new" * number, total=number, paid=bool(number % 2))] for number in range(ENTRIES))
    )
    found = records(entries)
    assert found is not None and not len(found.others)
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


def test_texts_of_every_length() -> None:
    lengths = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
    entries = changed(*([put(number, text="x" * lengths[number % len(lengths)])] for number in range(ENTRIES)))
    found = records(entries)
    assert found is not None
    assert found.others.to_pylist() == list(range(7, ENTRIES, 8)), "too long"
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\x00", "\x1f"])
def test_what_json_escapes_is_left(text: str) -> None:
    entries = changed(*([put(number, text=text if number == 40 else "plain")] for number in range(ENTRIES)))
    found = records(entries)
    assert found is not None
    assert found.others.to_pylist() == [40]
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


def test_transactions_of_many_records() -> None:
    sizes = [1, 2, 15, 16, 40]
    entries = changed(
        *(
            [put(number + each, total=each) for each in range(sizes[number % 5])]
            for number in range(5 * shapes.ROUND_MIN)
        )
    )
    found = records(entries)
    assert found is not None and not len(found.others)
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


def test_too_many_shapes_are_given_up() -> None:
    entries = changed(*([put(number, **{f"a{number}": number})] for number in range(ENTRIES)))
    found = records(entries)
    assert found is None or len(found.fit) <= shapes.SHAPES_MAX
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


def test_some_that_differ_do_not_hold_up_the_rest() -> None:
    entries = changed(
        *(
            [put(number, **({f"a{number}": 1} if number % 10 == 5 else {"a": b"x" if number % 10 == 6 else 1}))]
            for number in range(ENTRIES)
        )
    )
    found = records(entries)
    assert found is not None and len(found.fit) > 0.7 * ENTRIES
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")


@given(seed=st.integers(0, 2**32))
def test_damaged_bytes_are_reported_and_nothing_else_happens(seed: int) -> None:
    chance = random.Random(seed)
    damaged = []
    for entry in changed(*([put(number, text="some text", n=number)] for number in range(ENTRIES))):
        body = bytearray(entry.body)
        if chance.random() < 0.1:
            for _ in range(chance.randrange(1, 4)):
                body[chance.randrange(HEAD_BYTES, len(body))] = chance.choice(
                    (0xC0, 0xD9, 0xDA, 0xDC, 0xFF, chance.randrange(256))
                )
        if chance.random() < 0.02:
            del body[chance.randrange(HEAD_BYTES, len(body)) :]
        damaged.append(Entry(entry.log, entry.position, entry.next, entry.at_ms, bytes(body)))
    try:
        made = rows_of("table", batch(damaged))
    except Corrupt:
        return
    made.validate(full=True)


@pytest.mark.parametrize(
    ("stored", "damage"),
    [
        (b"hello", b""),  # the last text of all is cut off
        (b"\x81\xa4BOOL\xc3", b"\x81\xa4BOOL\xc1"),
        (b"\x95\x00\x07\x81", b"\x95\x00\xc0\x81"),  # a size that is none
        (b"\x95\x00\x07\x81\xa2id\x81\xa1S\xa3k99", b"\x95\x00\x07\xc0"),  # no keys
        (b"\x95\x00\x07", b"\x95\x03\x07"),  # an event that is none
        (b"\xa1N\xa299", b"\xa1N\xa29\\"),  # a number that is none
    ],
)
def test_damage_that_looks_like_a_shape(stored: bytes, damage: bytes) -> None:
    made = [
        StoredRecord(0, 7, item(id=f"k{number}"), None, item(id=f"k{number}", paid=True, n=number, t="hello"))
        for number in range(100)
    ]
    entries = changed(*([each] for each in made))
    body = entries[99].body
    assert stored in body
    entries[99] = Entry(7, entries[99].position, entries[99].next, 0, body.replace(stored, damage))
    with pytest.raises(Corrupt):
        rows_of("table", batch(entries))


def test_what_is_large_is_not_looked_at_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a transaction of thousands nor an item of thousands of elements is followed record by record."""
    looks = []
    follow = shapes.ShapeBatch._follow
    monkeypatch.setattr(
        shapes.ShapeBatch, "_follow", lambda self, known, at: looks.append(1) or follow(self, known, at)
    )
    large = [put(each, total=each) for each in range(5000)]
    entries = changed(large, *([put(number, total=number)] for number in range(ENTRIES)))
    assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")
    assert len(looks) < 20

    for filling in ([None] * 5000, [""] * 5000):
        entries = changed([put(1, l=filling)], *([put(number, total=number)] for number in range(ENTRIES)))
        assert plain_rows(rows_of("table", batch(entries))) == expected(entries, "plain")
    with pytest.raises(shapes.NoShape):
        shapes.ExampleRecord(memoryview(value.encode(item(l=[None] * 5000))), 0).item()


def test_without_numpy_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = changed(*([put(number, total=number)] for number in range(ENTRIES)))
    quick = rows_of("table", batch(entries))
    monkeypatch.setattr(columns, "NUMPY", False)
    assert rows_of("table", batch(entries)).equals(quick)

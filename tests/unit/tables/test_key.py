from __future__ import annotations

from decimal import Decimal
from hashlib import md5
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailrace.errors import Invalid
from tailrace.tables import key, number
from tailrace.tables.definition import Attribute, Definition, IndexDefinition
from tailrace.tables.value import Item, Value


def _table(hash_kind: str = "S", range_kind: str | None = None, *indexes: IndexDefinition, **kinds: str) -> Definition:
    attributes = [Attribute("pk", hash_kind)]
    if range_kind is not None:
        attributes.append(Attribute("sk", range_kind))
    attributes += [Attribute(name, kind) for name, kind in kinds.items()]
    return Definition("t", 1, "u", 0, tuple(attributes), "pk", None if range_kind is None else "sk", tuple(indexes))


def _refused(function: Any, *arguments: Any) -> str:
    with pytest.raises(Invalid) as caught:
        function(*arguments)
    return str(caught.value)


# -- the order of a scan, as the service has it


def test_a_scan_meets_strings_in_the_order_of_the_service() -> None:
    names = [*map(str, range(10)), "aardman", "hello", "zapf", "äáöü"]
    table = _table()
    names.sort(key=lambda name: key.item_key(table, {"pk": {"S": name}}))
    assert names == ["2", "8", "9", "1", "6", "hello", "0", "5", "4", "äáöü", "aardman", "7", "3", "zapf"]


def test_a_scan_meets_numbers_in_the_order_of_the_service() -> None:
    names = [*map(str, range(10)), "-0.09", "999.9", "0.012345", "-999.9"]
    table = _table("N")
    names.sort(key=lambda name: key.item_key(table, {"pk": {"N": name}}))
    assert names == ["7", "999.9", "8", "3", "2", "-999.9", "9", "4", "-0.09", "6", "1", "0", "0.012345", "5"]


@pytest.mark.parametrize(
    ("value", "segment"),
    [
        ({"S": "3635"}, 0),
        ({"S": "228"}, 0),
        ({"S": "1668"}, 1),
        ({"S": "3435"}, 4),
        ({"N": "251"}, 1),
        ({"N": "2388"}, 4095),
    ],
)
def test_segments_are_those_of_the_service(value: Value, segment: int) -> None:
    start, before = key.segment_bounds(segment, 4096)
    place = key.partition([value])
    assert (start is None or start <= place) and (before is None or place < before)


@pytest.mark.parametrize("total", [1, 2, 3, 7, 4096, 4097, 1_000_000])
def test_segments_leave_no_gap(total: int) -> None:
    assert key.segment_bounds(0, total)[0] is None
    assert key.segment_bounds(total - 1, total)[1] is None
    for segment in {0, 1, total // 2, total - 2} & set(range(total - 1)):
        end = key.segment_bounds(segment, total)[1]
        assert end is not None and end == key.segment_bounds(segment + 1, total)[0]
        assert end > (key.segment_bounds(segment, total)[0] or b"")


# -- keys of items


def test_the_key_of_an_item_is_that_of_its_key() -> None:
    table = _table("S", "N")
    place = key.key_of(table, {"pk": {"S": "a"}, "sk": {"N": "1"}})
    assert place == key.item_key(table, {"x": {"S": "y"}, "sk": {"N": "1"}, "pk": {"S": "a"}})
    assert place.startswith(key.partition([{"S": "a"}]))
    assert place != key.key_of(table, {"pk": {"S": "a"}, "sk": {"N": "-1"}})


def test_partitions_do_not_run_into_one_another() -> None:
    table = _table("S", "S")
    assert key.key_of(table, {"pk": {"S": "a"}, "sk": {"S": "bc"}}) != key.key_of(
        table, {"pk": {"S": "ab"}, "sk": {"S": "c"}}
    )
    assert key.partition([{"S": "a"}, {"S": "bc"}]) != key.partition([{"S": "ab"}, {"S": "c"}])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({}, "One or more parameter values were invalid: Missing the key pk in the item"),
        ({"pk": {"S": "a"}}, "One or more parameter values were invalid: Missing the key sk in the item"),
        (
            {"pk": {"N": "1"}, "sk": {"B": b"x"}},
            "One or more parameter values were invalid: Type mismatch for key pk expected: S actual: N",
        ),
        (
            {"pk": {"S": "a"}, "sk": {"NULL": True}},
            "One or more parameter values were invalid: Type mismatch for key sk expected: B actual: NULL",
        ),
        (
            {"pk": {"S": ""}, "sk": {"B": b"x"}},
            "One or more parameter values are not valid. "
            "The AttributeValue for a key attribute cannot contain an empty string value. Key: pk",
        ),
        (
            {"pk": {"S": "a"}, "sk": {"B": b""}},
            "One or more parameter values are not valid. "
            "The AttributeValue for a key attribute cannot contain an empty binary value. Key: sk",
        ),
        (
            {"pk": {"S": "é" * 1025}, "sk": {"B": b"x"}},
            "One or more parameter values were invalid: "
            "Size of hashkey has exceeded the maximum size limit of2048 bytes",
        ),
        (
            {"pk": {"S": "a"}, "sk": {"B": b"x" * 1025}},
            "One or more parameter values were invalid: "
            "Aggregated size of all range keys has exceeded the size limit of 1024 bytes",
        ),
    ],
)
def test_an_item_without_a_proper_key(item: Item, message: str) -> None:
    table = _table("S", "B")
    assert _refused(key.item_key, table, item) == message
    of_key = _refused(key.key_of, table, item)
    if "Missing" in message or "mismatch" in message:
        assert of_key == "The provided key element does not match the schema"
    else:
        assert of_key == message


def test_the_longest_keys() -> None:
    assert key.item_key(_table("S", "B"), {"pk": {"S": "é" * 1024}, "sk": {"B": b"x" * 1024}})


def test_a_key_has_nothing_else() -> None:
    extra: Item = {"pk": {"S": "a"}, "x": {"S": "b"}}
    assert _refused(key.key_of, _table(), extra) == "The provided key element does not match the schema"
    assert _refused(key.key_of, _table("S", "S"), extra) == "The provided key element does not match the schema"


# -- ranges of a table: what is selected is what compares so

texts = st.text(st.sampled_from("\x00\x01aé\uffff\U0010ffff"), min_size=1, max_size=3).map(lambda text: {"S": text})
binaries = st.lists(st.sampled_from([0, 1, 254, 255]), min_size=1, max_size=3).map(lambda raw: {"B": bytes(raw)})
numerals = st.one_of(st.integers(-120, 120).map(str), st.decimals(-3, 3, places=2).map(str)).map(
    lambda text: {"N": number.canonical(text)}
)
of_one_kind = st.sampled_from([texts, binaries, numerals])
OPS = ["=", "<", "<=", ">", ">=", "BETWEEN", "begins_with"]


def _plain(value: Value) -> Any:
    ((kind, inner),) = value.items()
    return inner.encode() if kind == "S" else Decimal(inner) if kind == "N" else inner


def _meets(value: Value, op: str | None, operands: list[Value]) -> bool:
    if op is None:
        return True
    actual, first = _plain(value), _plain(operands[0])
    if op == "begins_with":
        return bool(actual.startswith(first))
    if op == "BETWEEN":
        return bool(first <= actual <= _plain(operands[1]))
    return bool(
        {"=": actual == first, "<": actual < first, "<=": actual <= first, ">": actual > first, ">=": actual >= first}[
            op
        ]
    )


def _within(bounds: key.Bounds, place: bytes) -> bool:
    return (
        (bounds.start is None or bounds.start <= place)
        and (bounds.after is None or bounds.after < place)
        and (bounds.before is None or place < bounds.before)
    )


@given(st.data(), of_one_kind, st.sampled_from([None, *OPS]))
@settings(max_examples=300)
def test_a_range_of_a_table(data: st.DataObject, values: st.SearchStrategy[Value], op: str | None) -> None:
    value, low, high = data.draw(values), data.draw(values), data.draw(values)
    assume(op != "begins_with" or "N" not in low)
    ((kind, _),) = value.items()
    table = _table("S", kind)
    place = key.key_of(table, {"pk": {"S": "p"}, "sk": value})
    bounds = key.range_bounds(key.partition([{"S": "p"}]), index=False, op=op, operands=[low, high])
    assert _within(bounds, place) == _meets(value, op, [low, high])
    other = key.key_of(table, {"pk": {"S": "q"}, "sk": value})
    assert not _within(bounds, other)


def test_an_equal_range_attribute_of_a_table() -> None:
    prefix = key.partition([{"S": "p"}])
    assert key.range_bounds(prefix, index=False, equal=[{"S": "a"}]) == key.range_bounds(
        prefix, index=False, op="=", operands=[{"S": "a"}]
    )


# -- indexes


def _index(hashes: tuple[str, ...], ranges: tuple[str, ...] = ()) -> IndexDefinition:
    return IndexDefinition("by", 2, False, hashes, ranges)


@given(st.data(), of_one_kind, of_one_kind)
@settings(max_examples=300)
def test_composite_keys_compare_part_by_part(
    data: st.DataObject, firsts: st.SearchStrategy[Value], seconds: st.SearchStrategy[Value]
) -> None:
    a, b = ([data.draw(firsts), data.draw(seconds)] for _ in range(2))
    index = _index(("h",), ("a", "b"))
    kinds = {"h": "S", "a": next(iter(a[0])), "b": next(iter(a[1]))}
    table = _table("S", None, index, **kinds)

    def place(parts: list[Value], item_key: bytes) -> bytes:
        found = key.index_key(table, index, {"h": {"S": "p"}, "a": parts[0], "b": parts[1]}, item_key)
        assert found is not None
        return found

    # Whatever the item's own key is, the parts decide first.
    x, y = place(a, b"\xff"), place(b, b"\x00")
    left, right = list(map(_plain, a)), list(map(_plain, b))
    if left != right:
        assert (x < y) == (left < right)
    else:
        assert x > y


@given(st.data(), of_one_kind, of_one_kind, st.sampled_from([None, *OPS]), st.booleans())
@settings(max_examples=300)
def test_a_range_of_an_index(
    data: st.DataObject,
    firsts: st.SearchStrategy[Value],
    seconds: st.SearchStrategy[Value],
    op: str | None,
    second: bool,
) -> None:
    a, b = data.draw(firsts), data.draw(seconds)
    equal = [data.draw(st.one_of(firsts, st.just(a)))] if second else []
    operands = [data.draw(seconds if second else firsts) for _ in range(2)]
    assume(op != "begins_with" or "N" not in operands[0])
    index = _index(("h", "i"), ("a", "b"))
    table = _table("S", None, index, h="S", i="N", a=next(iter(a)), b=next(iter(b)))
    hashes: list[Value] = [{"S": "p"}, {"N": "1"}]
    item: Item = {"h": hashes[0], "i": hashes[1], "a": a, "b": b}
    place = key.index_key(table, index, item, data.draw(st.binary(max_size=2)))
    assert place is not None
    bounds = key.range_bounds(key.partition(hashes), index=True, equal=equal, op=op, operands=operands)
    expected = _plain(a) == _plain(equal[0]) if second else True
    assert _within(bounds, place) == (expected and _meets(b if second else a, op, operands))


def test_items_with_the_same_index_key_are_in_the_order_of_the_service() -> None:
    index = _index(("g",))
    table = _table("S", "S", index, g="S")

    def place(name: str) -> bytes | None:
        item = {"pk": {"S": name[0]}, "sk": {"S": name[1]}, "g": {"S": "same"}}
        return key.index_key(table, index, item, key.item_key(table, item))

    assert sorted(["aa", "ba", "ca", "cb", "da", "db"], key=place) == ["aa", "da", "ba", "ca", "db", "cb"]


@pytest.mark.parametrize(("range_kind", "range_value", "hashed"), [("N", "1", b"\xc1\x02"), ("B", b"\x01", b"\x01")])
def test_the_whole_key_of_an_item_decides_among_equals(range_kind: str, range_value: Any, hashed: bytes) -> None:
    index = _index(("g",))
    table = _table("S", range_kind, index, g="S")
    item: Item = {"pk": {"S": "a"}, "sk": {range_kind: range_value}, "g": {"S": "same"}}
    own = key.item_key(table, item)
    found = key.index_key(table, index, item, own)
    assert found == key.partition([{"S": "same"}]) + md5(b"Outliersa" + hashed).digest()[:8] + own


def test_an_item_that_lacks_an_index_attribute_is_not_in_it() -> None:
    index = _index(("h",), ("a", "b"))
    table = _table("S", None, index, h="S", a="N", b="B")
    whole: Item = {"h": {"S": "x"}, "a": {"N": "1"}, "b": {"B": b"y"}}
    assert key.index_key(table, index, whole, b"k") is not None
    for name in whole:
        assert key.index_key(table, index, {n: v for n, v in whole.items() if n != name}, b"k") is None


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"h": {"N": "1"}},
            "One or more parameter values were invalid: "
            "Type mismatch for Index Key h Expected: S Actual: N IndexName: by",
        ),
        (
            {"a": {"S": "1"}},
            "One or more parameter values were invalid: "
            "Type mismatch for Index Key a Expected: N Actual: S IndexName: by",
        ),
        (
            {"h": {"S": ""}},
            "One or more parameter values are not valid. A value specified for a secondary index key is not supported. "
            "The AttributeValue for a key attribute cannot contain an empty string value. IndexName: by, IndexKey: h",
        ),
        (
            {"h": {"S": "x"}, "a": {"N": "0"}, "b": {"B": b""}},
            "One or more parameter values are not valid. A value specified for a secondary index key is not supported. "
            "The AttributeValue for a key attribute cannot contain an empty binary value. IndexName: by, IndexKey: b",
        ),
        (
            {"h": {"S": "x" * 2049}, "a": {"N": "0"}, "b": {"B": b"y"}},
            "One or more parameter values were invalid: "
            "Size of hashkey has exceeded the maximum size limit of2048 bytes",
        ),
        (
            {"h": {"S": "x"}, "a": {"N": "0"}, "b": {"B": b"y" * 1025}},
            "One or more parameter values were invalid: "
            "Aggregated size of all range keys has exceeded the size limit of 1024 bytes",
        ),
    ],
)
def test_an_item_that_does_not_fit_an_index(item: Item, message: str) -> None:
    index = _index(("h",), ("a", "b"))
    table = _table("S", None, index, h="S", a="N", b="B")
    assert _refused(key.index_key, table, index, item, b"k") == message


@pytest.mark.parametrize("size", [2_049, 65_536])
def test_a_partition_that_no_item_can_be_in(size: int) -> None:
    long: Value = {"S": "x" * size}
    text = "One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 bytes"
    assert _refused(key.partition, [long]) == text
    assert _refused(key.partition, [{"N": "1"}, long]) == text
    index = _index(("h",), ())
    assert _refused(key.index_key, _table("S", None, index, h="S"), index, {"h": long}, b"k") == text


def test_the_longest_index_keys() -> None:
    index = _index(("h",), ("a", "b"))
    table = _table("S", None, index, h="S", a="S", b="B")
    item: Item = {"h": {"S": "x" * 2048}, "a": {"S": "\x00" * 1024}, "b": {"B": b"\x00" * 1024}}
    assert key.index_key(table, index, item, b"k") is not None


# -- pieces


@pytest.mark.parametrize(
    ("prefix", "after"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xfe", b"a\xff\xff"), (b"\xff\xff", None), (b"", None)],
)
def test_the_successor_of_a_prefix(prefix: bytes, after: bytes | None) -> None:
    assert key.successor(prefix) == after


def test_expiry_sorts_by_time() -> None:
    times = ["-5", "0", "999", "1000", "1700000000", "1700000000.5"]
    places = [key.ttl_key(text, b"k") for text in times]
    assert places == sorted(places)
    assert key.ttl_key("5", b"a") < key.ttl_key("5", b"b") < key.ttl_key("6", b"a")

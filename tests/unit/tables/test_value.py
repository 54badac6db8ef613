from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.errors import Invalid
from tailrace.tables import messages, stored_json, value
from tailrace.tables.number import canonical

INVALID = "One or more parameter values were invalid: "
AMBIGUOUS = (
    "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the supported datatypes"
)
EMPTY = "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
NUMERIC = "The parameter cannot be converted to a numeric value"


def _nested(kind: str, levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"S": "leaf"}
    for _ in range(levels):
        inner = {"M": {"n": inner}} if kind == "M" else {"L": [inner]}
    return inner


# -- reading


def test_an_item_is_normalised_and_measured() -> None:
    raw = {
        "pk": {"S": "é"},
        "n": {"N": "01.50"},
        "b": {"B": "AAE="},
        "t": {"BOOL": False},
        "z": {"NULL": True},
        "ss": {"SS": ["a", "ü", ""]},
        "ns": {"NS": ["1.0", "2e1"]},
        "bs": {"BS": ["AA==", ""]},
        "l": {"L": [{"S": "x"}, {"L": []}]},
        "m": {"M": {"ä": {"N": "-7"}}},
    }
    item, size = value.read_item(raw)
    assert item == {
        "pk": {"S": "é"},
        "n": {"N": "1.5"},
        "b": {"B": b"\x00\x01"},
        "t": {"BOOL": False},
        "z": {"NULL": True},
        "ss": {"SS": ["", "a", "ü"]},
        "ns": {"NS": ["1", "20"]},
        "bs": {"BS": [b"", b"\x00"]},
        "l": {"L": [{"S": "x"}, {"L": []}]},
        "m": {"M": {"ä": {"N": "-7"}}},
    }
    names = 2 + 1 + 1 + 1 + 1 + 2 + 2 + 2 + 1 + 1
    assert size == names + 2 + 3 + 2 + 1 + 1 + 3 + (2 + 2) + 1 + (3 + 2 + 1 + 3) + (3 + 1 + 2 + 3)
    assert size == value.item_size(item)


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ({"S": "x", "N": None}, {"S": "x"}),
        ({"S": "x", "Q": 5}, {"S": "x"}),
        ({"BOOL": "yes"}, {"BOOL": True}),
        ({"BOOL": "False"}, {"BOOL": False}),
        ({"NULL": "true"}, {"NULL": True}),
        ({"L": [{"S": "x", "B": None}]}, {"L": [{"S": "x"}]}),
        ({"N": "1", "S": None}, {"N": "1"}),
    ],
)
def test_the_odd_forms_that_the_service_takes(raw: Any, read: Any) -> None:
    assert value.read_value(copy.deepcopy(raw)) == read
    assert value.read_item({"a": raw}) == ({"a": read}, 1 + value.size(read))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, EMPTY),
        (None, EMPTY),
        ({"Q": "x"}, EMPTY),
        ({"S": None}, EMPTY),
        ({"L": [{}]}, EMPTY),
        ({"L": [None]}, EMPTY),
        ({"M": {"x": {}}}, EMPTY),
        ({"S": "a", "N": "1"}, AMBIGUOUS),
        ({"S": "a", "N": ""}, NUMERIC),
        ({"S": "a", "N": "b"}, f"{NUMERIC}: b"),
        ({"N": ""}, NUMERIC),
        ({"NS": ["1", ""]}, NUMERIC),
        ({"NS": ["1", "b"]}, f"{NUMERIC}: b"),
        ({"N": "1" * 39}, "Attempting to store more than 38 significant digits in a Number"),
        ({"N": "1e126"}, messages.NUMBER_OVERFLOW),
        ({"N": "0" * 50 + "1e126"}, messages.NUMBER_OVERFLOW),
        ({"N": "1e-131"}, messages.NUMBER_UNDERFLOW),
        ({"NULL": False}, f"{INVALID}Null attribute value types must have the value of true"),
        ({"NULL": "no"}, f"{INVALID}Null attribute value types must have the value of true"),
        ({"SS": []}, f"{INVALID}An string set  may not be empty"),
        ({"NS": []}, f"{INVALID}An number set  may not be empty"),
        ({"BS": []}, f"{INVALID}Binary sets should not be empty"),
        ({"M": {"x": {"L": [{"SS": []}]}}}, f"{INVALID}An string set  may not be empty"),
        ({"SS": ["a", "a"]}, f"{INVALID}Input collection [a, a] contains duplicates."),
        ({"NS": ["1", "1.0"]}, "Input collection contains duplicates"),
        ({"BS": ["Yg==", "Yg=="]}, f"{INVALID}Input collection [Yg==, Yg==]of type BS contains duplicates."),
        (_nested("M", 32), messages.NESTED_TOO_DEEP),
        (_nested("L", 32), messages.NESTED_TOO_DEEP),
        (_nested("M", 120), messages.NESTED_TOO_DEEP),
    ],
)
def test_what_is_invalid(raw: Any, message: str) -> None:
    for read in (lambda: value.read_value(copy.deepcopy(raw)), lambda: value.read_item({"k": {"S": "x"}, "a": raw})):
        with pytest.raises(Invalid) as caught:
            read()
        assert str(caught.value) == message
        assert caught.value.code != messages.SERIALIZATION


@pytest.mark.parametrize("kind", ["M", "L"])
def test_the_deepest_value(kind: str) -> None:
    deepest = _nested(kind, 31)
    assert value.read_value(copy.deepcopy(deepest)) == deepest
    assert value.decode(value.encode({"a": deepest})) == {"a": deepest}


STRUCTURE = "Start of structure or map found where not expected"
CLASS = "com.amazonaws.dynamodb.v20120810.AttributeValue"
MAP = f"Unrecognized collection type java.util.Map<java.lang.String, {CLASS}>"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("x", "Unexpected value type in payload"),
        ("S", "Unexpected value type in payload"),
        (5, "Unexpected value type in payload"),
        (True, "Unexpected value type in payload"),
        (["S"], f"Unrecognized collection type class {CLASS}"),
        ({"S": 1}, "NUMBER_VALUE cannot be converted to String"),
        ({"S": 1.5}, "DECIMAL_VALUE cannot be converted to String"),
        ({"S": True}, "TRUE_VALUE cannot be converted to String"),
        ({"S": ["x"]}, "Unrecognized collection type class java.lang.String"),
        ({"S": {"x": 1}}, STRUCTURE),
        ({"S": "\ud800"}, "Unable to parse: half of a surrogate pair in a string"),
        ({"N": 123}, "NUMBER_VALUE cannot be converted to String"),
        ({"N": False}, "FALSE_VALUE cannot be converted to String"),
        ({"N": ["1"]}, "Unrecognized collection type class java.lang.String"),
        ({"B": 5}, "only base-64-encoded strings are convertible to bytes"),
        ({"B": True}, "only base-64-encoded strings are convertible to bytes"),
        ({"B": ["x"]}, "Unrecognized collection type class java.nio.ByteBuffer"),
        ({"B": {}}, STRUCTURE),
        ({"B": "abc"}, "Base64 encoded length is expected a multiple of 4 bytes but found: 3"),
        ({"B": "YR=="}, "Invalid last non-pad Base64 character dectected"),
        ({"B": "YWJ="}, "Invalid last non-pad Base64 character dectected"),
        ({"B": "a_-="}, "Invalid last non-pad Base64 character dectected"),
        ({"B": "éééé"}, "Invalid last non-pad Base64 character dectected"),
        ({"B": "===="}, "Invalid last non-pad Base64 character dectected"),
        ({"BOOL": 1}, "NUMBER_VALUE cannot be converted to Boolean"),
        ({"BOOL": "maybe"}, "Unexpected token received from parser"),
        ({"BOOL": []}, "Unrecognized collection type class java.lang.Boolean"),
        ({"NULL": {}}, STRUCTURE),
        ({"SS": "x"}, "Unexpected field type"),
        ({"SS": {}}, STRUCTURE),
        ({"SS": [1]}, "NUMBER_VALUE cannot be converted to String"),
        ({"NS": [1]}, "NUMBER_VALUE cannot be converted to String"),
        ({"BS": [1]}, "only base-64-encoded strings are convertible to bytes"),
        ({"L": "x"}, "Unexpected field type"),
        ({"L": {}}, STRUCTURE),
        ({"L": ["x"]}, "Unexpected value type in payload"),
        ({"M": []}, MAP),
        ({"M": "x"}, "Unexpected field type"),
        ({"M": {"x": []}}, f"Unrecognized collection type class {CLASS}"),
    ],
)
def test_what_is_not_of_the_right_type(raw: Any, message: str) -> None:
    for read in (lambda: value.read_value(copy.deepcopy(raw)), lambda: value.read_item({"k": {"S": "x"}, "a": raw})):
        with pytest.raises(Invalid) as caught:
            read()
        assert (str(caught.value), caught.value.code) == (message, "SERIALIZATION")


@pytest.mark.parametrize(("raw", "message"), [([], MAP), ("x", "Unexpected field type"), (5, "Unexpected field type")])
def test_what_is_not_an_item(raw: object, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        value.read_item(raw)
    assert (str(caught.value), caught.value.code) == (message, "SERIALIZATION")


def test_types_are_looked_at_before_values() -> None:
    with pytest.raises(Invalid, match="NUMBER_VALUE cannot be converted to String"):
        value.read_item({"a": {"N": "x"}, "b": {"SS": []}, "c": {"S": 1}})


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["S", "N", "B", "BOOL", "NULL", "SS", "NS", "BS", "L", "M", "x"]), inner, max_size=2
        )
    ),
    max_leaves=6,
)


@given(json)
@example({"S": [1]})
@settings(max_examples=300)
def test_garbage_is_refused_or_read(raw: Any) -> None:
    """No JSON leads to anything but an item or an Invalid; and what was read once is read the same again."""
    try:
        item, size = value.read_item(raw)
    except Invalid:
        return
    assert size == value.item_size(item)
    assert value.decode(value.encode(item)) == item
    wire = msgspec.json.decode(msgspec.json.encode(item))
    assert value.read_item(wire) == (item, size)


# -- equality and order


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ({"S": "1"}, {"N": "1"}, False),
        ({"S": "1"}, {"S": "1"}, True),
        ({"SS": ["a", "b"]}, {"SS": ["b", "a"]}, True),
        ({"SS": ["a", "b"]}, {"SS": ["b", "c"]}, False),
        ({"SS": ["a"]}, {"SS": ["a", "b"]}, False),
        ({"BS": [b"a", b"b"]}, {"BS": [b"b", b"a"]}, True),
        ({"L": [{"N": "1"}, {"N": "2"}]}, {"L": [{"N": "2"}, {"N": "1"}]}, False),
        ({"L": [{"NS": ["1", "2"]}]}, {"L": [{"NS": ["2", "1"]}]}, True),
        ({"L": [{"NS": ["1", "2"]}]}, {"L": [{"NS": ["2", "1"]}, {"S": "x"}]}, False),
        ({"M": {"x": {"NS": ["1", "2"]}}}, {"M": {"x": {"NS": ["2", "1"]}}}, True),
        ({"M": {"x": {"NS": ["1", "2"]}}}, {"M": {"y": {"NS": ["2", "1"]}}}, False),
        ({"BOOL": True}, {"BOOL": False}, False),
        ({"NULL": True}, {"NULL": True}, True),
    ],
)
def test_equality(a: value.Value, b: value.Value, equal: bool) -> None:
    assert value.equal(a, b) is equal
    assert value.equal(b, a) is equal
    assert value.same({"k": a}, {"k": b}) is equal


def test_items_that_are_the_same() -> None:
    assert value.same(None, None)
    assert not value.same(None, {})
    assert not value.same({"a": {"S": "x"}}, None)
    assert not value.same({"a": {"SS": ["x", "y"]}}, {"a": {"SS": ["y", "x"]}, "b": {"S": "z"}})


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        ({"N": "9"}, {"N": "10"}, -1),
        ({"N": "-1"}, {"N": "-1.5"}, 1),
        ({"S": "9"}, {"S": "10"}, 1),
        ({"S": "\uffff"}, {"S": "\U00010000"}, -1),
        ({"B": b"\xff"}, {"B": b"\x00\xff"}, 1),
        ({"S": "a"}, {"S": "a"}, 0),
        ({"N": "1"}, {"S": "1"}, None),
        ({"BOOL": True}, {"BOOL": True}, None),
        ({"L": []}, {"L": []}, None),
    ],
)
def test_order(a: value.Value, b: value.Value, order: int | None) -> None:
    assert value.compare(a, b) == order


# -- plain Python

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**37), 10**37)
    | st.decimals(-100, 100, places=4)
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sets(st.text(max_size=2), min_size=1)
    | st.sets(st.integers(-9, 9), min_size=1)
    | st.sets(st.binary(max_size=2), min_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(plain)
@settings(max_examples=200)
def test_there_and_back(given_value: Any) -> None:
    typed = value.from_plain(given_value)
    assert value.to_plain(typed) == given_value
    item, size = value.item_from_plain({"a": given_value})
    assert size == value.item_size(item) == 1 + value.size(typed)
    assert value.item_to_plain(item) == {"a": given_value}
    # The quick way of reading agrees that it is in order.
    assert value.read_value(msgspec.json.decode(msgspec.json.encode(typed))) == typed


def test_whole_numbers_come_back_as_int() -> None:
    assert type(value.to_plain(value.from_plain(Decimal("7.00")))) is int
    assert type(value.to_plain(value.from_plain(Decimal("7.5")))) is Decimal
    assert value.from_plain({1, Decimal("1.0"), Decimal(3)}) == {"NS": ["1", "3"]}
    assert value.from_plain((1, True)) == {"L": [{"N": "1"}, {"BOOL": True}]}


@given(st.integers(-(10**20), 10**20))
@example(0)
@example(1200)
@example(10**18)
@example(-(10**18))
@example(10**18 + 1)
@example(10**19)
def test_whole_numbers_are_canonical_wherever_they_are(number: int) -> None:
    """They are converted without the checks of other numbers if they are short."""
    stored = {"N": canonical(str(number))}
    assert value.from_plain(number) == stored
    assert value.item_from_plain({"a": number})[0] == {"a": stored}
    assert value.from_plain([number, {"x": number}]) == {"L": [stored, {"M": {"x": stored}}]}
    assert value.from_plain({number}) == {"NS": [stored["N"]]}


@pytest.mark.parametrize(
    ("given_value", "message"),
    [
        (0.5, r"use Decimal\('0.5'\)"),
        ({"x": [0.5]}, "Decimal"),
        (float("nan"), "Decimal"),
        (Decimal("NaN"), "cannot be converted to a numeric value"),
        (10**200, "overflow"),
        ([10**100_000], "overflow"),
        (set(), "cannot be empty"),
        ({"a", 1}, "all strings"),
        ({True}, "all strings"),
        ({0.5}, "all strings"),
        ({1: "x"}, "names are strings"),
        (object(), "cannot be stored"),
        (["\ud800"], "surrogate"),
    ],
)
def test_what_cannot_be_stored(given_value: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        value.from_plain(given_value)


def test_an_item_is_a_dict() -> None:
    with pytest.raises(Invalid, match="not list"):
        value.item_from_plain([])  # type: ignore[arg-type]


def test_plain_values_have_a_depth() -> None:
    deep: Any = "leaf"
    for _ in range(31):
        deep = [deep]
    value.from_plain(deep)
    with pytest.raises(Invalid, match="Nesting Levels"):
        value.from_plain({"x": deep})
    deep = []
    deep.append(deep)
    with pytest.raises(Invalid, match="Nesting Levels"):
        value.from_plain(deep)


# -- plain JSON


def test_json_keeps_every_digit() -> None:
    item: value.Item = {
        "i": {"N": "42"},
        "d": {"N": "0.1"},
        "big": {"N": "12345678901234567890123456789012345678"},
        "huge": {"N": canonical("1e100")},
        "b": {"B": b"\x00\x01"},
        "bs": {"BS": [b"\x00"]},
        "ns": {"NS": ["1", "2.5"]},
        "ss": {"SS": ["x"]},
        "l": {"L": [{"NULL": True}, {"BOOL": True}]},
        "m": {"M": {"s": {"S": "x"}}},
    }
    assert msgspec.json.encode(value.item_to_json(item)) == (
        b'{"i":42,"d":0.1,"big":12345678901234567890123456789012345678,"huge":1'
        + b"0" * 100
        + b',"b":"AAE=","bs":["AA=="],'
        b'"ns":[1,2.5],"ss":["x"],"l":[null,true],"m":{"s":"x"}}'
    )


# -- names


def test_names_that_an_attribute_can_have() -> None:
    value.check_names(["a", " ", "n" * 65_535, "ü" * 32_767])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Empty attribute name"),
        ("n" * 65_536, "Attribute name is too large, must be less than 65536 bytes"),
        ("ü" * 32_768, "Attribute name is too large, must be less than 65536 bytes"),
    ],
)
def test_names_that_no_attribute_can_have(name: str, message: str) -> None:
    with pytest.raises(Invalid, match=f"^One or more parameter values were invalid: {message}$"):
        value.check_names(["a", name])


# -- digests


def test_equal_items_have_equal_digests() -> None:
    one: value.Item = {
        "a": {"SS": ["x", "y"]},
        "m": {"M": {"p": {"NS": ["1", "2"]}, "q": {"L": [{"BS": [b"1", b"2"]}]}}},
    }
    other: value.Item = {
        "m": {"M": {"q": {"L": [{"BS": [b"2", b"1"]}]}, "p": {"NS": ["2", "1"]}}},
        "a": {"SS": ["y", "x"]},
    }
    assert value.digest(one) == value.digest(other)
    assert len(value.digest(one)) == 32
    assert one["a"] == {"SS": ["x", "y"]}, "the item itself stays as it is"


@pytest.mark.parametrize(
    "other",
    [{}, {"a": {"S": "1"}}, {"b": {"N": "1"}}, {"a": {"N": "1"}, "b": {"N": "1"}}, {"a": {"L": [{"N": "1"}]}}],
)
def test_other_items_have_other_digests(other: value.Item) -> None:
    assert value.digest({"a": {"N": "1"}}) != value.digest(other)


def test_the_order_of_a_list_counts() -> None:
    assert value.digest({"a": {"L": [{"N": "1"}, {"N": "2"}]}}) != value.digest({"a": {"L": [{"N": "2"}, {"N": "1"}]}})


# -- the JSON of the DynamoDB API


@given(st.dictionaries(st.text(min_size=1, max_size=8), plain, max_size=6))
@example({"n": Decimal("1E-130"), "m": Decimal("-9.9999999999999999999999999999999999999E+125")})
@example({"é😀": {"l": [b"\x00\xff", {"a", "é"}, {1, Decimal("0.5")}, {b"", b"x"}, None, True, '\x00"\\\u2028']}})
@settings(deadline=None)
def test_stored_bytes_become_the_json_of_the_item(attributes: dict[str, Any]) -> None:
    item, _ = value.item_from_plain(attributes)
    body = value.encode(item)
    for _ in range(2):  # rendered, and remembered
        assert stored_json.stored_to_json(body) == msgspec.json.encode(item)
    assert value.read_item(msgspec.json.decode(stored_json.stored_to_json(body)))[0] == item


def test_remembered_json_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = stored_json._JsonCache(4_000)
    monkeypatch.setattr(stored_json, "_json_cache", cache)
    items = [{"k": {"S": f"{number:04d}" + "x" * 100}} for number in range(200)]
    for _ in range(2):
        for item in items:
            assert stored_json.stored_to_json(value.encode(item)) == msgspec.json.encode(item)
            held = {**cache._newer, **cache._older}
            sizes = [stored_json.ITEM_BYTES + len(body) + len(text) for body, text in held.items()]
            assert sum(sizes) <= 4_000 + sizes[-1]
    assert cache._newer or cache._older


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**37), 10**37)
    | st.decimals(-1000, 1000, places=3)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.sets(st.text(st.characters(exclude_categories=["Cs"])), min_size=1)
    | st.sets(st.integers(-(10**20), 10**20), min_size=1)
    | st.sets(st.binary(), min_size=1),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), _plain, max_size=5))
def test_a_plain_item_is_measured_as_it_is_converted(plain: dict[str, Any]) -> None:
    item, size = value.item_from_plain(plain)
    assert size == value.item_size(item)
    assert value.read_item(copy.deepcopy(item)) == (item, size)
    assert value.item_to_plain(item) == plain
    assert item == {name: value.from_plain(content) for name, content in plain.items()}


class _Repeating(dict[str, Any]):
    """A mapping that shows a name twice, as some of headers do."""

    def items(self) -> Any:
        return [("a", "first"), ("a", 2)]


def test_a_name_that_a_mapping_shows_twice_counts_once() -> None:
    assert value.item_from_plain(_Repeating()) == ({"a": {"N": "2"}}, 3)

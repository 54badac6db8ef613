from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Invalid
from tailrace.tables import legacy
from tailrace.tables.expression import KeyCondition
from tailrace.tables.value import Item, Value

KEY: Item = {"p": {"S": "key"}}
ITEM: Item = {
    **KEY,
    "n": {"N": "7"},
    "s": {"S": "hello"},
    "b": {"B": b"bytes"},
    "ss": {"SS": ["a", "b"]},
    "l": {"L": [{"N": "1"}, {"S": "x"}]},
}
PREFIX = "One or more parameter values were invalid: "


def on(name: str, op: str, *values: Value) -> dict[str, Any]:
    return {name: {"ComparisonOperator": op, "AttributeValueList": list(values)}}


CASES: list[tuple[dict[str, Any], bool]] = [
    (on("n", "EQ", {"N": "7.0"}), True),
    (on("n", "EQ", {"S": "7"}), False),
    (on("ss", "EQ", {"SS": ["b", "a"]}), True),
    (on("l", "EQ", {"L": [{"N": "1"}, {"S": "x"}]}), True),
    (on("absent", "EQ", {"N": "7"}), False),
    (on("n", "NE", {"N": "8"}), True),
    (on("n", "NE", {"N": "7"}), False),
    (on("absent", "NE", {"N": "7"}), True),
    (on("n", "LT", {"N": "10"}), True),
    (on("n", "LE", {"N": "7"}), True),
    (on("n", "GT", {"N": "7"}), False),
    (on("n", "GE", {"N": "7"}), True),
    (on("s", "LT", {"N": "7"}), False),
    (on("n", "BETWEEN", {"N": "7"}, {"N": "8"}), True),
    (on("n", "IN", {"N": "1"}, {"N": "7"}), True),
    (on("n", "IN", {"N": "1"}), False),
    (on("n", "NULL"), False),
    (on("absent", "NULL"), True),
    (on("n", "NOT_NULL"), True),
    (on("s", "BEGINS_WITH", {"S": "he"}), True),
    (on("n", "BEGINS_WITH", {"S": "7"}), False),
    (on("b", "BEGINS_WITH", {"B": "Ynl0"}), True),
    (on("s", "CONTAINS", {"S": "ell"}), True),
    (on("ss", "CONTAINS", {"S": "a"}), True),
    (on("l", "CONTAINS", {"N": "1"}), True),
    (on("s", "NOT_CONTAINS", {"S": "x"}), True),
    (on("n", "NOT_CONTAINS", {"N": "1"}), True),
    (on("ss", "NOT_CONTAINS", {"S": "a"}), False),
    (on("absent", "NOT_CONTAINS", {"S": "a"}), False),
]


@pytest.mark.parametrize(("condition", "holds"), CASES)
def test_operators(condition: dict[str, Any], holds: bool) -> None:
    assert legacy.query_filter(condition).test(ITEM) is holds
    assert legacy.expected(condition).test(ITEM) is holds


def test_and_or() -> None:
    both = {**on("n", "EQ", {"N": "7"}), **on("s", "EQ", {"S": "other"})}
    assert not legacy.expected(both, "AND").test(ITEM)
    assert legacy.expected(both, "OR").test(ITEM)
    assert not legacy.query_filter(both).test(ITEM)
    assert legacy.query_filter(both, "OR").test(ITEM)
    assert legacy.query_filter(both).names == {"n", "s"}


class TestExpected:
    @pytest.mark.parametrize(
        ("condition", "holds"),
        [
            ({"Value": {"N": "7"}}, True),
            ({"Exists": True, "Value": {"N": "8"}}, False),
            ({"Exists": False}, False),
            ({"ComparisonOperator": "GE", "Value": {"N": "7"}}, True),
            ({"ComparisonOperator": "NOT_NULL"}, True),
        ],
    )
    def test_forms(self, condition: dict[str, Any], holds: bool) -> None:
        assert legacy.expected({"n": condition}).test(ITEM) is holds

    def test_none_is_always_met(self) -> None:
        assert legacy.expected({}).test(None)

    def test_of_an_item_that_does_not_exist(self) -> None:
        assert legacy.expected({"p": {"Exists": False}}).test(None)
        assert not legacy.expected({"p": {"Value": {"S": "key"}}}).test(None)

    @pytest.mark.parametrize(
        ("condition", "message"),
        [
            ({}, "Value must be provided when Exists is null for Attribute: a"),
            ({"Exists": True}, "Value must be provided when Exists is true for Attribute: a"),
            ({"Exists": False, "Value": {"S": "x"}}, "Value cannot be used when Exists is false for Attribute: a"),
            (
                {"Value": {"S": "x"}, "AttributeValueList": []},
                "Value and AttributeValueList cannot be used together for Attribute: a",
            ),
            (
                {"Exists": True, "ComparisonOperator": "LT"},
                "Exists and ComparisonOperator cannot be used together for Attribute: a",
            ),
            (
                {"ComparisonOperator": "LT"},
                "Value or AttributeValueList must be used with ComparisonOperator: LT for Attribute: a",
            ),
            (
                {"AttributeValueList": []},
                "AttributeValueList can only be used with a ComparisonOperator for Attribute: a",
            ),
            (
                {"ComparisonOperator": "BETWEEN", "Value": {"S": "x"}},
                "Invalid number of argument(s) for the BETWEEN ComparisonOperator",
            ),
        ],
    )
    def test_errors(self, condition: dict[str, Any], message: str) -> None:
        with pytest.raises(Invalid) as raised:
            legacy.expected({"a": condition})
        assert str(raised.value) == PREFIX + message


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (on("a", "EQ"), PREFIX + "Invalid number of argument(s) for the EQ ComparisonOperator"),
        (on("a", "NULL", {"S": "x"}), PREFIX + "Invalid number of argument(s) for the NULL ComparisonOperator"),
        (on("a", "IN"), PREFIX + "Invalid number of argument(s) for the IN ComparisonOperator"),
        (
            on("a", "IN", {"S": "x"}, {"N": "1"}),
            PREFIX + "AttributeValues inside AttributeValueList must be of same type",
        ),
        (on("a", "LT", {"L": []}), PREFIX + "ComparisonOperator LT is not valid for L AttributeValue type"),
        (on("a", "IN", {"BOOL": True}), PREFIX + "ComparisonOperator IN is not valid for BOOL AttributeValue type"),
        (
            on("a", "CONTAINS", {"SS": ["x"]}),
            PREFIX + "ComparisonOperator CONTAINS is not valid for SS AttributeValue type",
        ),
        (
            on("a", "BEGINS_WITH", {"N": "1"}),
            PREFIX + "ComparisonOperator BEGINS_WITH is not valid for N AttributeValue type",
        ),
        (
            on("a", "BETWEEN", {"S": "b"}, {"S": "a"}),
            "The BETWEEN condition was provided a range where the lower bound is greater than the upper bound",
        ),
        (on("a", "EQ", {"N": "x"}), "The parameter cannot be converted to a numeric value: x"),
    ],
)
def test_errors_of_conditions(condition: dict[str, Any], message: str) -> None:
    for read in (legacy.query_filter, legacy.expected, legacy.read_key_conditions):
        with pytest.raises(Invalid) as raised:
            read(condition)
        assert str(raised.value) == message


class TestKeyConditions:
    def test_they_are_as_an_expressions(self) -> None:
        p = on("p", "EQ", {"S": "x"})
        assert legacy.read_key_conditions(p)(("p",), ("c",)) == KeyCondition([{"S": "x"}])
        both = {**p, **on("c", "EQ", {"N": "1.0"})}
        assert legacy.read_key_conditions(both)(("p",), ("c",)) == KeyCondition([{"S": "x"}], [{"N": "1"}])
        ranged = {**p, **on("c", "GE", {"N": "1"})}
        assert legacy.read_key_conditions(ranged)(("p",), ("c",)) == KeyCondition([{"S": "x"}], [], ">=", [{"N": "1"}])

    def test_they_can_be_worked_out_again(self) -> None:
        binary = on("p", "EQ", {"B": "Ynl0"})
        assert legacy.read_key_conditions(binary)(("p",), ()) == legacy.read_key_conditions(binary)(("p",), ())

    @pytest.mark.parametrize(
        ("conditions", "message"),
        [
            ({}, "Conditions can be of length 1 or 2 only"),
            (
                {**on("a", "NULL"), **on("b", "NULL"), **on("c", "NULL")},
                "The number of query conditions (3) exceeds the number of key attributes defined in the schema (2)",
            ),
            (on("p", "NULL"), "Attempted conditional constraint is not an indexable operation"),
            (on("p", "NE", {"S": "x"}), "Attempted conditional constraint is not an indexable operation"),
            (on("p", "LT", {"S": "x"}), "Query key condition not supported"),
            (on("c", "EQ", {"S": "x"}), "Query condition missed key schema element: p"),
            (
                {**on("p", "EQ", {"S": "x"}), **on("c", "CONTAINS", {"S": "x"})},
                "Attempted conditional constraint is not an indexable operation",
            ),
        ],
    )
    def test_errors(self, conditions: dict[str, Any], message: str) -> None:
        with pytest.raises(Invalid) as raised:
            legacy.read_key_conditions(conditions)(("p",), ("c",))
        assert str(raised.value) == message


class TestAttributeUpdates:
    @pytest.mark.parametrize(
        ("name", "update", "value"),
        [
            ("a", {"Value": {"S": "x"}}, {"S": "x"}),
            ("a.b", {"Action": "PUT", "Value": {"S": "x"}}, {"S": "x"}),
            ("n", {"Action": "ADD", "Value": {"N": "-0.50"}}, {"N": "6.5"}),
            ("a", {"Action": "ADD", "Value": {"N": "2"}}, {"N": "2"}),
            ("ss", {"Action": "ADD", "Value": {"SS": ["b", "c"]}}, {"SS": ["a", "b", "c"]}),
            ("l", {"Action": "ADD", "Value": {"L": [{"N": "1"}]}}, {"L": [{"N": "1"}, {"S": "x"}, {"N": "1"}]}),
            ("ss", {"Action": "DELETE", "Value": {"SS": ["a"]}}, {"SS": ["b"]}),
            ("ss", {"Action": "DELETE", "Value": {"SS": ["a", "b"]}}, None),
            ("n", {"Action": "DELETE"}, None),
        ],
    )
    def test_actions(self, name: str, update: dict[str, Any], value: Value | None) -> None:
        after = legacy.attribute_updates({name: update}).apply(ITEM, KEY).item
        assert after.get(name) == value
        assert {k: v for k, v in after.items() if k != name} == {k: v for k, v in ITEM.items() if k != name}

    def test_whether_an_item_is_made(self) -> None:
        assert legacy.attribute_updates({}).creates
        assert legacy.attribute_updates({"a": {"Value": {"S": "x"}}}).creates
        assert not legacy.attribute_updates({"a": {"Action": "DELETE"}}).creates

    @pytest.mark.parametrize(
        ("update", "message"),
        [
            ({}, PREFIX + "Only DELETE action is allowed when no attribute value is specified"),
            ({"Action": "ADD"}, PREFIX + "Only DELETE action is allowed when no attribute value is specified"),
            (
                {"Action": "DELETE", "Value": {"L": []}},
                PREFIX + "DELETE action with value is not supported for the type L",
            ),
            ({"Action": "ADD", "Value": {"B": "Yg=="}}, PREFIX + "ADD action is not supported for the type B"),
        ],
    )
    def test_errors(self, update: dict[str, Any], message: str) -> None:
        with pytest.raises(Invalid) as raised:
            legacy.attribute_updates({"a": update})
        assert str(raised.value) == message

    @pytest.mark.parametrize(
        ("name", "update"),
        [
            ("s", {"Action": "ADD", "Value": {"N": "1"}}),
            ("ss", {"Action": "ADD", "Value": {"NS": ["1"]}}),
            ("ss", {"Action": "DELETE", "Value": {"NS": ["1"]}}),
        ],
    )
    def test_other_types(self, name: str, update: dict[str, Any]) -> None:
        with pytest.raises(Invalid, match=r"^Type mismatch for attribute to update$"):
            legacy.attribute_updates({name: update}).apply(ITEM, KEY)


def test_attributes_to_get() -> None:
    assert legacy.attributes_to_get(["n", "absent"]).project(ITEM) == {"n": {"N": "7"}}
    assert legacy.attributes_to_get(["a.b"]).project({"a.b": {"S": "x"}}) == {"a.b": {"S": "x"}}

"""Shapes of requests: types first, then constraints, in the service's words; good requests pass as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Invalid
from tailrace.http.dynamodb.shape import (
    NAME,
    AttributeValue,
    Blob,
    Boolean,
    Integer,
    Item,
    ListOf,
    ManagedTableName,
    MapOf,
    Number,
    String,
    Structure,
    TableName,
    table_name,
)

CAST = (
    "class sun.reflect.generics.reflectiveObjects.ParameterizedTypeImpl cannot be cast to class java.lang.Class "
    "(sun.reflect.generics.reflectiveObjects.ParameterizedTypeImpl and java.lang.Class are in module java.base of "
    "loader 'bootstrap')"
)
STRUCTURE = "Start of structure or map found where not expected"
V1 = "com.amazonaws.dynamodb.v20120810."

SHAPE = Structure(
    "Input",
    {
        "Capacity": String(enum=("INDEXES", "TOTAL", "NONE")),
        "TableName": TableName(),
        "Item": Item(),
        "Count": Integer(least=1, most=100),
        "Long": Integer(long=True),
        "Ratio": Number(),
        "Flag": Boolean(),
        "Limit": Integer(least=1, late=True),
        "Names": MapOf(String()),
        "Tags": ListOf(String(), least=1, most=2),
        "Blob": Blob(),
        "Elements": ListOf(
            Structure(
                "Element", {"AttributeName": String(), "Kind": String(enum=("HASH",))}, required=("AttributeName",)
            )
        ),
        "RequestItems": MapOf(
            ListOf(Structure("WriteRequest", {"Put": Structure("Put", {"Item": Item()}, required=("Item",))})),
            keys=String(least=3, most=255, pattern=NAME),
            values=(1, 2),
        ),
        "Keys": ListOf(Item()),
        "Expected": MapOf(Structure("Expectation", {"Value": AttributeValue()})),
    },
    required=("TableName", "Item"),
)
GOOD: dict[str, Any] = {"TableName": "abc", "Item": {"a": {"S": "x"}}}


def refusal(request: Any, shape: Structure = SHAPE) -> Invalid:
    with pytest.raises(Invalid) as caught:
        shape.check(request)
    return caught.value


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("TableName", True, "TRUE_VALUE cannot be converted to String"),
        ("TableName", False, "FALSE_VALUE cannot be converted to String"),
        ("TableName", 23, "NUMBER_VALUE cannot be converted to String"),
        ("TableName", 34.56, "DECIMAL_VALUE cannot be converted to String"),
        ("TableName", [], "Unrecognized collection type class java.lang.String"),
        ("TableName", {}, STRUCTURE),
        ("Count", "23", "STRING_VALUE cannot be converted to Integer"),
        ("Count", True, "TRUE_VALUE cannot be converted to Integer"),
        ("Count", [], "Unrecognized collection type class java.lang.Integer"),
        ("Long", {}, STRUCTURE),
        ("Long", "1", "STRING_VALUE cannot be converted to Long"),
        ("Ratio", "1", "STRING_VALUE cannot be converted to Double"),
        ("Flag", "23", "Unexpected token received from parser"),
        ("Flag", 23, "NUMBER_VALUE cannot be converted to Boolean"),
        ("Flag", 2.5, "DECIMAL_VALUE cannot be converted to Boolean"),
        ("Flag", [], "Unrecognized collection type class java.lang.Boolean"),
        ("Blob", True, "only base-64-encoded strings are convertible to bytes"),
        ("Blob", 2.5, "only base-64-encoded strings are convertible to bytes"),
        ("Blob", [], "Unrecognized collection type class java.nio.ByteBuffer"),
        ("Blob", {}, STRUCTURE),
        ("Blob", "23456", "Base64 encoded length is expected a multiple of 4 bytes but found: 5"),
        ("Blob", "=+/=", "Invalid last non-pad Base64 character dectected"),
        ("Blob", "+/+=", "Invalid last non-pad Base64 character dectected"),
        ("Names", 23, "Unexpected field type"),
        ("Names", [], "Unrecognized collection type java.util.Map<java.lang.String, java.lang.String>"),
        ("Names", {"#a": 1}, "NUMBER_VALUE cannot be converted to String"),
        ("Tags", "x", "Unexpected field type"),
        ("Tags", {}, STRUCTURE),
        ("Tags", [1], "NUMBER_VALUE cannot be converted to String"),
        ("Elements", ["x"], "Unexpected value type in payload"),
        ("Elements", [[]], f"Unrecognized collection type class {V1}Element"),
        ("RequestItems", {"abc": "x"}, CAST),
        ("RequestItems", {"abc": {}}, STRUCTURE),
        (
            "RequestItems",
            [],
            f"Unrecognized collection type java.util.Map<java.lang.String, java.util.List<{V1}WriteRequest>>",
        ),
        ("RequestItems", {"abc": [{"Put": 1}]}, "Unexpected field type"),
        ("Keys", [1], CAST),
        ("Keys", [[]], f"Unrecognized collection type java.util.Map<java.lang.String, {V1}AttributeValue>"),
        ("Item", "x", "Unexpected field type"),
        ("Item", {"a": 1}, "Unexpected value type in payload"),
        ("Item", {"a": []}, f"Unrecognized collection type class {V1}AttributeValue"),
        ("Item", {"a": {"S": 1}}, "NUMBER_VALUE cannot be converted to String"),
        ("Item", {"a": {"SS": "x"}}, "Unexpected field type"),
        ("Item", {"a": {"L": "x"}}, "Unexpected field type"),
        ("Item", {"a": {"L": [1]}}, "Unexpected value type in payload"),
        ("Item", {"a": {"M": 1}}, "Unexpected field type"),
        ("Item", {"a": {"M": {"b": {"BS": [1]}}}}, "only base-64-encoded strings are convertible to bytes"),
        ("Item", {"a": {"NULL": 1}}, "NUMBER_VALUE cannot be converted to Boolean"),
        ("Expected", {"a": {"Value": 1}}, "Unexpected field type"),
        ("Expected", {"a": {"Value": {"N": 1}}}, "NUMBER_VALUE cannot be converted to String"),
    ],
)
def test_a_wrong_type_is_reported_before_anything_else(member: str, value: Any, message: str) -> None:
    error = refusal({member: value})  # required members are missing too
    assert (str(error), error.code) == (message, "SERIALIZATION")


def errors_text(*violations: str) -> str:
    return f"{len(violations)} validation error{'s' * (len(violations) > 1)} detected: {'; '.join(violations)}"


NULL = "failed to satisfy constraint: Member must not be null"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TableName": None}, errors_text(f"Value null at 'tableName' {NULL}")),
        (
            {"Capacity": "hi", "Count": 101, "Item": None},
            errors_text(
                "Value 'hi' at 'capacity' failed to satisfy constraint: "
                "Member must satisfy enum value set: [INDEXES, TOTAL, NONE]",
                f"Value null at 'item' {NULL}",
                "Value '101' at 'count' failed to satisfy constraint: Member must have value less than or equal to 100",
            ),
        ),
        (
            {"TableName": "bad table!@#"},
            errors_text(
                "Value 'bad table!@#' at 'tableName' failed to satisfy constraint: "
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+"
            ),
        ),
        (
            {"TableName": "a" * 256},
            errors_text(
                f"Value '{'a' * 256}' at 'tableName' failed to satisfy constraint: "
                "Member must have length less than or equal to 255"
            ),
        ),
        (
            {"TableName": ""},
            errors_text(
                "Value '' at 'tableName' failed to satisfy constraint: "
                "Member must have length greater than or equal to 1"
            ),
        ),
        (
            {"TableName": "", "Item": None},
            errors_text(
                "Value '' at 'tableName' failed to satisfy constraint: "
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
                "Value '' at 'tableName' failed to satisfy constraint: "
                "Member must have length greater than or equal to 3",
                f"Value null at 'item' {NULL}",
            ),
        ),
        (
            {"Limit": 0},
            errors_text(
                "Value at 'Limit' failed to satisfy constraint: Member must have value greater than or equal to 1",
            ),
        ),
        (
            {"Limit": 0, "Tags": []},
            errors_text(
                "Value '0' at 'limit' failed to satisfy constraint: Member must have value greater than or equal to 1",
                "Value '[]' at 'tags' failed to satisfy constraint: Member must have length greater than or equal to 1",
            ),
        ),
        (
            {"Tags": ["a", "b", "c"]},
            errors_text(
                "Value '[a, b, c]' at 'tags' failed to satisfy constraint: "
                "Member must have length less than or equal to 2"
            ),
        ),
        (
            {"Elements": [{"AttributeName": "a"}, {"Kind": "SIDE"}]},
            errors_text(
                f"Value null at 'elements.2.member.attributeName' {NULL}",
                "Value 'SIDE' at 'elements.2.member.kind' failed to satisfy constraint: "
                "Member must satisfy enum value set: [HASH]",
            ),
        ),
        ({"Elements": [None]}, errors_text(f"Value null at 'elements.1.member' {NULL}")),
        (
            {"RequestItems": {"a;": [{"Put": {}}]}},
            errors_text(
                "Value '{a;=[WriteRequest(put=Put(item=null))]}' at 'requestItems' failed to satisfy constraint: "
                "Map keys must satisfy constraint: [Member must have length less than or equal to 255, "
                "Member must have length greater than or equal to 3, "
                "Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+]",
                f"Value null at 'requestItems.a;.member.1.member.put.item' {NULL}",
            ),
        ),
        (
            {"RequestItems": {"abc": []}},
            errors_text(
                "Value '{abc=[]}' at 'requestItems' failed to satisfy constraint: Map value must satisfy constraint: "
                "[Member must have length less than or equal to 2, Member must have length greater than or equal to 1]",
            ),
        ),
    ],
)
def test_constraints(changes: dict[str, Any], message: str) -> None:
    error = refusal(GOOD | changes)
    assert str(error) == message
    assert error.code != "SERIALIZATION"


def test_no_more_than_ten_violations_are_reported() -> None:
    assert str(refusal(GOOD | {"Elements": [{}] * 12})).startswith("10 validation errors detected: ")


def test_a_good_request_is_not_copied() -> None:
    request = GOOD | {"Count": 5, "Flag": True, "Names": {"#a": "b"}, "RequestItems": {"abc": [{"Put": {"Item": {}}}]}}
    assert SHAPE.passes(request)
    assert SHAPE.check(request) is request


def test_what_a_request_means() -> None:
    request = GOOD | {"Nothing": 1, "Tags": None, "Flag": "yes", "Count": 5.9, "Long": 1e30, "Ratio": 0.5}
    assert SHAPE.check(request) == GOOD | {"Flag": True, "Count": 5, "Long": 2**63 - 1, "Ratio": 0.5}


def test_nulls_and_unknown_types_in_values_are_dropped() -> None:
    value = GOOD | {"Flag": "no", "Item": {"a": {"S": None, "N": "1"}, "b": None, "c": {"X": 1}, "d": {"L": [None]}}}
    assert SHAPE.check(value)["Item"] == {"a": {"N": "1"}, "b": {}, "c": {}, "d": {"L": [{}]}}


@pytest.mark.parametrize("request_", [None, [], "x", 1])
def test_a_request_is_an_object(request_: Any) -> None:
    assert refusal(request_).code == "SERIALIZATION"


def test_a_table_may_be_named_by_its_arn() -> None:
    arn = "arn:aws:dynamodb:us-east-1:123456789012:table/orders"
    assert SHAPE.check(GOOD | {"TableName": arn})["TableName"] == "orders"
    assert table_name("arn:aws:s3:::orders") == "arn:aws:s3:::orders"
    assert "tableName" in str(refusal(GOOD | {"TableName": "arn:aws:s3:::orders"}))


OWN = Structure("Own", {"TableName": ManagedTableName(), "Count": Integer(least=1)})
CREATED = Structure(
    "Created", {"TableName": ManagedTableName(length_alone=True), "Count": Integer(least=1)}, required=("Count",)
)
TOO_SHORT = "TableName must be at least 3 characters long and at most 255 characters long"


def test_the_name_of_a_table_of_ones_own() -> None:
    for shape in (OWN, CREATED):
        assert shape.check({"TableName": "abc", "Count": 1}) == {"TableName": "abc", "Count": 1}
        assert str(refusal({}, shape)) == "The parameter 'TableName' is required but was not present in the request"
        assert str(refusal({"TableName": "a;"}, shape)) == TOO_SHORT
        assert "pattern" in str(refusal({"TableName": "abc;", "Count": 1}, shape))
    assert str(refusal({"TableName": "ab", "Count": 0}, OWN)) == TOO_SHORT


def test_a_bad_name_of_a_new_table_is_reported_alone() -> None:
    assert str(refusal({"TableName": "ab", "Count": 0}, CREATED)) == errors_text(
        "Value 'ab' at 'tableName' failed to satisfy constraint: Member must have length greater than or equal to 3"
    )


def test_deep_values_are_left_to_whoever_reads_them() -> None:
    deep: dict[str, Any] = {"S": "x"}
    for _ in range(300):
        deep = {"L": [deep]}
    assert SHAPE.check(GOOD | {"Item": {"a": deep}, "Flag": "no"})["Flag"] is False

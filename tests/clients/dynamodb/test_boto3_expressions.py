"""boto3 and expressions: every feature of conditions, updates and projections, and every way to get one wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.clients

ITEM: dict[str, Any] = {
    "s": {"S": "hello"},
    "n": {"N": "5"},
    "b": {"B": b"\x01\x02"},
    "t": {"BOOL": True},
    "z": {"NULL": True},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2"]},
    "l": {"L": [{"S": "x"}, {"N": "7"}, {"L": [{"S": "deep"}]}]},
    "m": {"M": {"k": {"S": "v"}, "mm": {"M": {"n": {"N": "1"}}}, "dot.ted": {"S": "d"}}},
    "size": {"S": "a reserved word"},
}
VALUES: dict[str, Any] = {
    ":hello": {"S": "hello"},
    ":he": {"S": "he"},
    ":ell": {"S": "ell"},
    ":a": {"S": "a"},
    ":x": {"S": "x"},
    ":v": {"S": "v"},
    ":d": {"S": "d"},
    ":deep": {"S": "deep"},
    ":one": {"N": "1"},
    ":five": {"N": "5"},
    ":five0": {"N": "5.00"},
    ":six": {"N": "6"},
    ":seven": {"N": "7"},
    ":bytes": {"B": b"\x01\x02"},
    ":first": {"B": b"\x01"},
    ":true": {"BOOL": True},
    ":null": {"NULL": True},
    ":ba": {"SS": ["b", "a"]},
    ":S": {"S": "S"},
    ":N": {"S": "N"},
    ":L": {"S": "L"},
    ":M": {"S": "M"},
    ":SS": {"S": "SS"},
    ":NULL": {"S": "NULL"},
    ":BOOL": {"S": "BOOL"},
    ":map": {"M": {"n": {"N": "1.0"}}},
}
NAMES = {"#size": "size", "#dotted": "dot.ted", "#m": "m", "#k": "k", "#none": "none"}


@pytest.fixture(scope="module")
def table(client: Any, create: Callable[..., str]) -> str:
    """A table that holds `ITEM` under the key `item`, and nothing else."""
    name = create(client, "pk")
    client.put_item(TableName=name, Item={"pk": {"S": "item"}, **ITEM})
    return name


def used(text: str) -> dict[str, Any]:
    """The placeholders that an expression uses: others would be refused."""
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").replace(".", " ").replace("[", " ").split())
    parameters: dict[str, Any] = {}
    if values := {name: VALUES[name] for name in words & VALUES.keys()}:
        parameters["ExpressionAttributeValues"] = values
    if names := {name: NAMES[name] for name in words & NAMES.keys()}:
        parameters["ExpressionAttributeNames"] = names
    return parameters


# -- conditions, as filters and as guards

TRUE = [
    "s = :hello",
    "n = :five0",
    "b = :bytes",
    "t = :true",
    "z = :null",
    "ss = :ba",
    "m.mm = :map",
    "s <> :a",
    "s <> :five",
    "#none <> :a",
    "n < :six",
    "n <= :five",
    "n > :one",
    "n >= :five",
    "n BETWEEN :one AND :five",
    "s BETWEEN :he AND :hello",
    "n IN (:one, :five)",
    "s IN (:hello)",
    "attribute_exists(m.k)",
    "attribute_exists(l[2][0])",
    "attribute_not_exists(m.nope)",
    "attribute_not_exists(l[9])",
    "attribute_type(s, :S)",
    "attribute_type(l, :L)",
    "attribute_type(m, :M)",
    "attribute_type(ss, :SS)",
    "attribute_type(z, :NULL)",
    "attribute_type(t, :BOOL)",
    "begins_with(s, :he)",
    "begins_with(b, :first)",
    "contains(s, :ell)",
    "contains(ss, :a)",
    "contains(ns, :one)",
    "contains(l, :x)",
    "size(s) = :five",
    "size(m) > :one",
    "size(b) <= size(s)",
    "NOT s = :a",
    "NOT (s = :a OR n = :six)",
    "s = :hello AND n = :five",
    "s = :a OR n = :five",
    "s = :hello OR s = :a AND n = :six",
    "(s = :hello OR s = :a) AND NOT n = :six",
    "l[0] = :x",
    "l[1] = :seven",
    "l[2][0] = :deep",
    "#m.#k = :v",
    "m.#dotted = :d",
    "size(#size) > :five",
    ":five = n",
    "s = :hello and not n = :six",
    "(n = :five)",
]
FALSE = [
    "s = :a",
    "s = :five",
    "#none = :a",
    "n < :five",
    "s < :five",
    "#none < :five",
    "n BETWEEN :six AND :seven",
    "s IN (:a, :x)",
    "attribute_exists(#none)",
    "attribute_not_exists(s)",
    "attribute_type(s, :N)",
    "begins_with(s, :ell)",
    "contains(s, :x)",
    "contains(ss, :x)",
    "size(#none) > :one",
    "NOT s = :hello",
    "s = :hello AND n = :six",
    "s = :a OR n = :six",
    "m.k = :a",
    "l[5] = :x",
]


@pytest.mark.parametrize(("text", "holds"), [*((text, True) for text in TRUE), *((text, False) for text in FALSE)])
def test_a_condition(client: Any, table: str, text: str, holds: bool) -> None:
    found = client.scan(TableName=table, FilterExpression=text, **used(text))
    assert (found["Count"], found["ScannedCount"]) == (int(holds), 1)
    put = {"TableName": table, "Item": {"pk": {"S": "item"}, **ITEM}, "ConditionExpression": text, **used(text)}
    if holds:
        client.put_item(**put)
    else:
        with pytest.raises(client.exceptions.ConditionalCheckFailedException):
            client.put_item(**put)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The expression can not be empty;"),
        ("s =", 'Syntax error; token: "<EOF>", near: "="'),
        ("s == :a", 'Syntax error; token: "="'),
        ("(s = :a", "Syntax error"),
        ("s = :a AND", "Syntax error"),
        ("size = :a", "Attribute name is a reserved keyword; reserved keyword: size"),
        ("s = :missing", "An expression attribute value used in expression is not defined; attribute value: :missing"),
        ("#missing = :a", "An expression attribute name used in the document path is not defined; attribute name: #mi"),
        ("nofunction(s, :a)", "Invalid function name; function: nofunction"),
        ("begins_with(s)", "Incorrect number of operands for operator or function"),
        ("begins_with(s, :five)", "Incorrect operand type for operator or function; operator or function: begins_with"),
        ("attribute_type(s, :hello)", "Invalid attribute type name found; type: hello"),
        ("n BETWEEN :six AND :one", "The BETWEEN operator requires upper bound to be greater than or equal to lower"),
        ("attribute_exists(s) = :true", "not allowed to be used this way in an expression"),
        ("((s = :a))", "The expression has redundant parentheses;"),
        ("n = n", "The first operand must be distinct from the remaining operands for this operator or function"),
        ("s[a] = :a", "Syntax error"),
    ],
)
def test_a_condition_that_cannot_be(client: Any, table: str, refuses: Any, text: str, message: str) -> None:
    with refuses("ValidationException", message) as refusal:
        client.put_item(TableName=table, Item={"pk": {"S": "bad"}}, ConditionExpression=text, **used(text))
    assert refusal.message.startswith("Invalid ConditionExpression: ")


def test_placeholders_must_be_used(client: Any, table: str, refuses: Any) -> None:
    with refuses("ValidationException", "Value provided in ExpressionAttributeNames unused in expressions: keys: {#x}"):
        client.scan(TableName=table, FilterExpression="attribute_exists(n)", ExpressionAttributeNames={"#x": "x"})
    with refuses("ValidationException", "unused in expressions: keys: {:x}"):
        client.scan(
            TableName=table, FilterExpression="attribute_exists(n)", ExpressionAttributeValues={":x": {"S": "x"}}
        )
    with refuses("ValidationException", "ExpressionAttributeNames can only be specified when using expressions"):
        client.get_item(TableName=table, Key={"pk": {"S": "item"}}, ExpressionAttributeNames={"#x": "x"})


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2000 + "n < s" + ")" * 2000,
        "NOT " * 900 + "n < s",
        "n < s" + " AND n < s" * 400,
        "a" + ".a" * 2000 + " = n",
    ],
)
def test_no_expression_is_too_much_for_the_server(client: Any, table: str, refuses: Any, text: str) -> None:
    with refuses("ValidationException"):
        client.scan(TableName=table, FilterExpression=text)
    assert client.scan(TableName=table)["Count"] == 1


# -- updates

START: dict[str, Any] = {
    "a": {"N": "1"},
    "t": {"S": "x"},
    "l": {"L": [{"N": "0"}, {"N": "1"}, {"N": "2"}]},
    "m": {"M": {"k": {"S": "v"}}},
    "ss": {"SS": ["a", "b"]},
}


@pytest.mark.parametrize(
    ("text", "values", "changed"),
    [
        ("SET a = :v", {":v": {"S": "new"}}, {"a": {"S": "new"}}),
        ("SET a = a + :v", {":v": {"N": "0.5"}}, {"a": {"N": "1.5"}}),
        ("SET a = a - :v, b = a", {":v": {"N": "3"}}, {"a": {"N": "-2"}, "b": {"N": "1"}}),
        ("SET b = if_not_exists(b, :v), a = if_not_exists(a, :v)", {":v": {"N": "9"}}, {"b": {"N": "9"}}),
        (
            "SET l = list_append(l, :v)",
            {":v": {"L": [{"S": "end"}]}},
            {"l": {"L": [{"N": "0"}, {"N": "1"}, {"N": "2"}, {"S": "end"}]}},
        ),
        (
            "SET l = list_append(:v, l)",
            {":v": {"L": [{"S": "start"}]}},
            {"l": {"L": [{"S": "start"}, {"N": "0"}, {"N": "1"}, {"N": "2"}]}},
        ),
        ("SET l[1] = :v", {":v": {"S": "mid"}}, {"l": {"L": [{"N": "0"}, {"S": "mid"}, {"N": "2"}]}}),
        ("SET l[9] = :v", {":v": {"N": "3"}}, {"l": {"L": [{"N": "0"}, {"N": "1"}, {"N": "2"}, {"N": "3"}]}}),
        ("SET m.j = :v", {":v": {"N": "1"}}, {"m": {"M": {"k": {"S": "v"}, "j": {"N": "1"}}}}),
        ("REMOVE a, m.k, l[0]", {}, {"a": None, "m": {"M": {}}, "l": {"L": [{"N": "1"}, {"N": "2"}]}}),
        ("REMOVE l[0], l[2]", {}, {"l": {"L": [{"N": "1"}]}}),
        ("REMOVE nothing", {}, {}),
        ("ADD a :v", {":v": {"N": "41"}}, {"a": {"N": "42"}}),
        ("ADD c :v", {":v": {"N": "3"}}, {"c": {"N": "3"}}),
        ("ADD ss :v", {":v": {"SS": ["b", "c"]}}, {"ss": {"SS": ["a", "b", "c"]}}),
        ("DELETE ss :v", {":v": {"SS": ["a", "z"]}}, {"ss": {"SS": ["b"]}}),
        ("DELETE ss :v", {":v": {"SS": ["a", "b"]}}, {"ss": None}),
        (
            "SET t = :v REMOVE m ADD a :n DELETE ss :s",
            {":v": {"S": "y"}, ":n": {"N": "1"}, ":s": {"SS": ["a"]}},
            {"t": {"S": "y"}, "m": None, "a": {"N": "2"}, "ss": {"SS": ["b"]}},
        ),
        ("set a = t, t = a", {}, {"a": {"S": "x"}, "t": {"N": "1"}}),
    ],
)
def test_an_update(client: Any, hashed: str, text: str, values: dict[str, Any], changed: dict[str, Any]) -> None:
    key = {"pk": {"S": "k"}}
    client.put_item(TableName=hashed, Item={**key, **START})
    parameters = {"ExpressionAttributeValues": values} if values else {}
    client.update_item(TableName=hashed, Key=key, UpdateExpression=text, **parameters)
    got = client.get_item(TableName=hashed, Key=key)["Item"]
    for value in got.values():
        if "SS" in value:
            value["SS"].sort()
    expected = {**key, **START, **changed}
    assert got == {name: value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("", {}, "Invalid UpdateExpression: The expression can not be empty;"),
        ("SET a :v", {":v": {"N": "1"}}, "Invalid UpdateExpression: Syntax error"),
        (
            "SET a = :v SET b = :v",
            {":v": {"N": "1"}},
            'The "SET" section can only be used once in an update expression',
        ),
        ("SET a = :v, a = :v", {":v": {"N": "1"}}, "Two document paths overlap with each other"),
        ("SET m = :v, m.k = :v", {":v": {"N": "1"}}, "Two document paths overlap with each other"),
        ("SET m[0] = :v, m.k = :v", {":v": {"N": "1"}}, "Two document paths conflict with each other"),
        ("SET pk = :v", {":v": {"S": "x"}}, "Cannot update attribute pk. This attribute is part of the key"),
        ("SET nope.deep = :v", {":v": {"S": "x"}}, "The document path provided in the update expression is invalid"),
        ("SET t = t + :v", {":v": {"N": "1"}}, "An operand in the update expression has an incorrect data type"),
        ("SET b = nope", {}, "The provided expression refers to an attribute that does not exist in the item"),
        ("ADD t :v", {":v": {"N": "1"}}, "An operand in the update expression has an incorrect data type"),
        ("ADD a :v", {":v": {"S": "1"}}, "Incorrect operand type for operator or function"),
        ("DELETE ss :v", {":v": {"N": "1"}}, "Incorrect operand type for operator or function"),
        ("SET l = list_append(l, :v)", {":v": {"N": "1"}}, "Incorrect operand type for operator or function"),
    ],
)
def test_an_update_that_cannot_be(
    client: Any, hashed: str, refuses: Any, text: str, values: dict[str, Any], message: str
) -> None:
    item = {"pk": {"S": "k"}, **START}
    client.put_item(TableName=hashed, Item=item)
    parameters = {"ExpressionAttributeValues": values} if values else {}
    with refuses("ValidationException", message):
        client.update_item(TableName=hashed, Key={"pk": {"S": "k"}}, UpdateExpression=text, **parameters)
    assert client.get_item(TableName=hashed, Key={"pk": {"S": "k"}})["Item"] == item


def test_an_update_makes_an_item(client: Any, hashed: str) -> None:
    key = {"pk": {"S": "made"}}
    client.update_item(
        TableName=hashed,
        Key=key,
        UpdateExpression="SET a = if_not_exists(a, :zero) + :one",
        ExpressionAttributeValues={":zero": {"N": "0"}, ":one": {"N": "1"}},
    )
    assert client.get_item(TableName=hashed, Key=key)["Item"] == {**key, "a": {"N": "1"}}
    bare = {"pk": {"S": "bare"}}
    client.update_item(TableName=hashed, Key=bare)
    assert client.get_item(TableName=hashed, Key=bare)["Item"] == bare


# -- projections


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s", {"s": ITEM["s"]}),
        ("s, n", {"s": ITEM["s"], "n": ITEM["n"]}),
        ("m.k", {"m": {"M": {"k": {"S": "v"}}}}),
        ("m.k, m.mm.n", {"m": {"M": {"k": {"S": "v"}, "mm": {"M": {"n": {"N": "1"}}}}}}),
        ("l[2], l[0]", {"l": {"L": [{"S": "x"}, {"L": [{"S": "deep"}]}]}}),
        ("l[2][0]", {"l": {"L": [{"L": [{"S": "deep"}]}]}}),
        ("#size, m.#dotted", {"size": ITEM["size"], "m": {"M": {"dot.ted": {"S": "d"}}}}),
        ("#none", {}),
        ("m.k.deeper, l[9]", {}),
        ("pk", {"pk": {"S": "item"}}),
    ],
)
def test_a_projection(client: Any, table: str, text: str, expected: dict[str, Any]) -> None:
    got = client.get_item(TableName=table, Key={"pk": {"S": "item"}}, ProjectionExpression=text, **used(text))
    assert got["Item"] == expected
    scanned = client.scan(TableName=table, ProjectionExpression=text, **used(text))
    assert scanned["Items"] == [expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The expression can not be empty;"),
        ("s,", "Syntax error"),
        ("s s", "Syntax error"),
        ("s, s", "Two document paths overlap with each other"),
        ("m, m.k", "Two document paths overlap with each other"),
        ("m.k, m[0]", "Two document paths conflict with each other"),
        ("size", "Attribute name is a reserved keyword; reserved keyword: size"),
    ],
)
def test_a_projection_that_cannot_be(client: Any, table: str, refuses: Any, text: str, message: str) -> None:
    with refuses("ValidationException", f"Invalid ProjectionExpression: {message}"):
        client.get_item(TableName=table, Key={"pk": {"S": "item"}}, ProjectionExpression=text)


# -- key conditions


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        ("sk = :a", {":a": {"S": "a"}}, "Query condition missed key schema element: pk"),
        ("pk > :a", {":a": {"S": "a"}}, "Query key condition not supported"),
        ("pk = :a AND nope = :a", {":a": {"S": "a"}}, "Query condition missed key schema element: sk"),
        ("pk = :a AND sk <> :a", {":a": {"S": "a"}}, "Invalid operator used in KeyConditionExpression: <>"),
        ("pk = :a OR sk = :a", {":a": {"S": "a"}}, "Invalid operator used in KeyConditionExpression: OR"),
        ("pk = :n", {":n": {"N": "1"}}, "Condition parameter type does not match schema type"),
        (
            "pk = :a AND contains(sk, :a)",
            {":a": {"S": "a"}},
            "Invalid operator used in KeyConditionExpression: contains",
        ),
        ("pk = :a AND sk = :a AND sk = :a", {":a": {"S": "a"}}, "must only contain one condition per key"),
    ],
)
def test_a_key_condition_that_cannot_be(
    client: Any, ranged: str, refuses: Any, text: str, values: dict[str, Any], message: str
) -> None:
    with refuses("ValidationException", message):
        client.query(TableName=ranged, KeyConditionExpression=text, ExpressionAttributeValues=values)

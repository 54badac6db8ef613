from __future__ import annotations

from typing import Any

import pytest

from tailrace.errors import Invalid
from tailrace.tables import expression
from tailrace.tables.expression import KeyCondition, Placeholders
from tailrace.tables.value import Item, Value

ITEM: Item = {
    "p": {"S": "key"},
    "n": {"N": "7"},
    "s": {"S": "hello"},
    "b": {"B": b"\x7fbytes"},
    "t": {"BOOL": True},
    "z": {"NULL": True},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2"]},
    "bs": {"BS": [b"x", b"y"]},
    "l": {"L": [{"N": "1"}, {"S": "two"}, {"SS": ["c", "d"]}]},
    "m": {"M": {"x": {"N": "5"}, "y": {"L": [{"N": "3"}, {"N": "9"}]}}},
}

VALUES: dict[str, Value] = {
    ":n": {"N": "7"},
    ":five": {"N": "5"},
    ":nine": {"N": "9"},
    ":hundred": {"N": "100"},
    ":s": {"S": "hello"},
    ":he": {"S": "he"},
    ":ell": {"S": "ell"},
    ":a": {"S": "a"},
    ":b": {"B": b"\x80"},
    ":bytes": {"B": b"bytes"},
    ":x": {"B": b"x"},
    ":one": {"N": "1"},
    ":t": {"BOOL": True},
    ":z": {"NULL": True},
    ":ba": {"SS": ["b", "a"]},
    ":dc": {"SS": ["d", "c"]},
    ":l": {"L": [{"N": "1"}, {"S": "two"}, {"SS": ["d", "c"]}]},
    ":S": {"S": "S"},
    ":M": {"S": "M"},
    ":DOG": {"S": "DOG"},
}
NAMES = {"#s": "s", "#m": "m", "#x": "x", "#dot": "a.b"}


def holds(text: str, item: Item | None = ITEM) -> bool:
    return expression.condition(text, Placeholders(NAMES, VALUES)).test(item)


def refused(text: str, parameter: str = "ConditionExpression") -> str:
    with pytest.raises(Invalid) as raised:
        expression.condition(text, Placeholders(NAMES, VALUES), parameter)
    return str(raised.value)


class TestConditions:
    @pytest.mark.parametrize(
        "text",
        [
            "n = :n",
            ":n = n",
            "s = :s AND t = :t AND z = :z",
            "ss = :ba",  # sets have no order, however deep
            "l = :l",
            "n <> :s",  # of another type
            "absent <> :n",
            "absent <> lost",
            "n < :nine",
            "n <= :n",
            "n > :five",
            "n >= :n",
            ":five < n",
            "n < :hundred",  # as numbers, not as texts
            "b < :b",  # bytes are unsigned
            "m.x < m.y[1]",
            "#m.#x = :five",
            "n BETWEEN :five AND :nine",
            "n BETWEEN m.x AND m.y[1]",
            "n IN (:s, :n)",
            "n IN (m.x, n2, :n)",
            "attribute_exists(m.y[1])",
            "attribute_not_exists(m.y[2])",
            "attribute_not_exists(s.x)",
            "attribute_not_exists(l.x)",
            "attribute_not_exists(m[0])",
            "attribute_type(s, :S)",
            "attribute_type(:he, :S)",
            "attribute_type(m, :M)",
            "begins_with(s, :he)",
            "begins_with(:s, #s)",
            "contains(s, :ell)",
            "contains(b, :bytes)",
            "contains(ss, :a)",
            "contains(ns, :one)",
            "contains(bs, :x)",
            "contains(l, :one)",
            "contains(l, :dc)",
            "size(s) = :five",
            "size(m) < size(s)",
            "size(b) = size(:he) OR size(ss) = size(:he)",
            "NOT n = :five",
            "NOT NOT n = :n",
            "n = :five OR n = :n AND s = :s",
            "NOT (n = :five AND s = :s)",
            "n = :nine OR s = :he OR (t = :t AND z = :z AND n = :n)",
        ],
    )
    def test_true(self, text: str) -> None:
        assert holds(text)

    @pytest.mark.parametrize(
        "text",
        [
            "n = :five",
            "n = :s",
            "absent = :n",
            "absent = lost",
            "absent < lost",
            "absent BETWEEN lost AND another",
            "n <> :n",
            "ss <> :ba",
            "s < :n",
            ":n < absent",
            "l < :n",  # in the item, a type without order is only false
            "n BETWEEN l AND :nine",
            "n BETWEEN m.y[1] AND :five",
            "absent IN (:n)",
            "attribute_type(absent, :S)",
            "begins_with(n, :he)",
            "begins_with(absent, :he)",
            "contains(n, :n)",
            "contains(ss, :one)",
            "contains(absent, :n)",
            "contains(d, :ba)",
            "size(n) = :one",
            "size(z) = :one",
            "size(absent) = :one",
            "size(s) = :s",
            "NOT n = :n AND s = :s",
        ],
    )
    def test_false(self, text: str) -> None:
        assert not holds(text)

    def test_of_an_item_that_does_not_exist(self) -> None:
        assert holds("attribute_not_exists(p)", None)
        assert holds("p <> :s", None)
        assert not holds("p = :s", None)

    def test_what_it_looks_at(self) -> None:
        condition = expression.condition("#m.#x = :n AND size(s) > :n OR NOT n = :n", Placeholders(NAMES, VALUES))
        assert condition.paths() == {"m", "s", "n"}
        assert condition.nested == {"m"}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "#q = :n",
                "An expression attribute name used in the document path is not defined; attribute name: #q",
            ),
            (
                "n = :q",
                "An expression attribute value used in expression is not defined; attribute value: :q",
            ),
            (
                "size(a, b) = :n",
                "Incorrect number of operands for operator or function; "
                "operator or function: size, number of operands: 2",
            ),
            (
                "begins_with(a)",
                "Incorrect number of operands for operator or function; "
                "operator or function: begins_with, number of operands: 1",
            ),
            (
                "attribute_exists(:n)",
                "Operator or function requires a document path; operator or function: attribute_exists",
            ),
            (
                "attribute_not_exists(size(:s))",
                "Operator or function requires a document path; operator or function: attribute_not_exists",
            ),
            (
                "n < :l",
                "Incorrect operand type for operator or function; operator or function: <, operand type: L",
            ),
            (
                ":t >= n",
                "Incorrect operand type for operator or function; operator or function: >=, operand type: BOOL",
            ),
            (
                "n BETWEEN :ba AND :ba",
                "Incorrect operand type for operator or function; operator or function: BETWEEN, operand type: SS",
            ),
            (
                "begins_with(s, :n)",
                "Incorrect operand type for operator or function; operator or function: begins_with, operand type: N",
            ),
            (
                "begins_with(s, size(n))",
                "Incorrect operand type for operator or function; operator or function: begins_with, operand type: N",
            ),
            (
                "size(:n) = n",
                "Incorrect operand type for operator or function; operator or function: size, operand type: N",
            ),
            (
                "size(size(s)) = n",
                "Incorrect operand type for operator or function; operator or function: size, operand type: N",
            ),
            (
                "attribute_type(s, :n)",
                "Incorrect operand type for operator or function; "
                "operator or function: attribute_type, operand type: N",
            ),
            (
                "attribute_type(s, n)",
                "Incorrect operand type for operator or function; operator or function: attribute_type, "
                "operand type: {NS,SS,L,BS,N,M,B,BOOL,NULL,S}",
            ),
            (
                "attribute_type(s, :DOG)",
                "Invalid attribute type name found; type: DOG, valid types: {B,NULL,SS,BOOL,L,BS,N,NS,S,M}",
            ),
            (
                "s = #s",
                "The first operand must be distinct from the remaining operands for this operator or function; "
                "operator: =, first operand: [s]",
            ),
            (
                "contains(m.y[1].#s, m.y[1].s)",
                "The first operand must be distinct from the remaining operands for this operator or function; "
                "operator: contains, first operand: [m, y, [1], s]",
            ),
            (
                "n BETWEEN :n AND :s",
                "The BETWEEN operator requires same data type for lower and upper bounds; "
                "lower bound operand: AttributeValue: {N:7}, upper bound operand: AttributeValue: {S:hello}",
            ),
            (
                "n BETWEEN :nine AND :n",
                "The BETWEEN operator requires upper bound to be greater than or equal to lower bound; "
                "lower bound operand: AttributeValue: {N:9}, upper bound operand: AttributeValue: {N:7}",
            ),
            (
                "a" + ".b" * 32 + " = :n",
                "The document path has too many nesting levels; nesting levels: 33",
            ),
            ("a = status", "Attribute name is a reserved keyword; reserved keyword: status"),
            ("foo", 'Syntax error; token: "<EOF>", near: "foo"'),
        ],
    )
    def test_errors(self, text: str, message: str) -> None:
        assert refused(text) == f"Invalid ConditionExpression: {message}"
        assert refused(text, "FilterExpression") == f"Invalid FilterExpression: {message}"

    def test_the_first_wrong_condition_is_reported(self) -> None:
        assert refused("n = :n AND contains(a) AND b = :q").endswith("contains, number of operands: 1")
        assert refused("contains(#q)").endswith("attribute name: #q")

    def test_how_many_values_may_be_in(self) -> None:
        values: dict[str, Value] = {f":{n}": {"N": str(n)} for n in range(101)}
        most = "n IN (" + ",".join(f":{n}" for n in range(100)) + ")"
        assert expression.condition(most, Placeholders(None, values)).test(ITEM)
        with pytest.raises(Invalid, match="provided with too many operands; number of operands: 101"):
            expression.condition(most[:-1] + ",:100)", Placeholders(None, values))

    def test_deep_conditions_are_evaluated(self) -> None:
        assert holds("n = :five " + "or (n = :five " * 148 + "or n = :n" + ")" * 148)
        assert holds("NOT (" * 298 + "n = :n" + ")" * 298)


class TestPlaceholders:
    def test_all_have_to_be_used(self) -> None:
        placeholders = Placeholders({"#s": "s", "#u": "u", "#v": "v"}, {":n": {"N": "1"}, ":u": {"N": "1"}})
        expression.condition("#s = :n", placeholders)
        with pytest.raises(
            Invalid, match=r"^Value provided in ExpressionAttributeNames unused in expressions: keys: {#u, #v}$"
        ):
            placeholders.check_used()
        expression.projection("#u, #v", placeholders)
        with pytest.raises(
            Invalid, match=r"^Value provided in ExpressionAttributeValues unused in expressions: keys: {:u}$"
        ):
            placeholders.check_used()
        expression.condition("#s = :n OR #s = :u", placeholders)
        placeholders.check_used()

    @pytest.mark.parametrize(
        ("names", "values", "message"),
        [
            ({}, None, "ExpressionAttributeNames must not be empty"),
            ({"a": "a"}, {}, 'ExpressionAttributeNames contains invalid key: Syntax error; key: "a"'),
            ({"#a!": "a"}, None, 'ExpressionAttributeNames contains invalid key: Syntax error; key: "#a!"'),
            ({"#": "a"}, None, 'ExpressionAttributeNames contains invalid key: Syntax error; key: "#"'),
            ({"#a": ""}, None, "ExpressionAttributeNames contains invalid value: Empty attribute name for key #a"),
            (None, {}, "ExpressionAttributeValues must not be empty"),
            (None, {"b": {"S": ""}}, 'ExpressionAttributeValues contains invalid key: Syntax error; key: "b"'),
            (
                None,
                {":b": {}},
                "ExpressionAttributeValues contains invalid value: Supplied AttributeValue is empty, "
                "must contain exactly one of the supported datatypes for key :b",
            ),
        ],
    )
    def test_errors(self, names: dict[str, str] | None, values: dict[str, Any] | None, message: str) -> None:
        with pytest.raises(Invalid) as raised:
            expression.placeholders(names, values)
        assert str(raised.value) == message

    def test_values_are_read(self) -> None:
        placeholders = expression.placeholders({"#n": "n"}, {":v": {"N": "07.0"}})
        assert expression.condition("#n = :v", placeholders).test(ITEM)


class TestProjections:
    def project(self, text: str) -> Item:
        return expression.projection(text, Placeholders(NAMES)).project(ITEM)

    def test_top_level(self) -> None:
        assert self.project("n, absent, #s") == {"n": ITEM["n"], "s": ITEM["s"]}

    def test_inside(self) -> None:
        assert self.project("m.y[1], m.x") == {"m": {"M": {"y": {"L": [{"N": "9"}]}, "x": {"N": "5"}}}}

    def test_elements_come_in_the_order_of_the_list(self) -> None:
        assert self.project("l[2], l[0]") == {"l": {"L": [{"N": "1"}, ITEM["l"]["L"][2]]}}

    @pytest.mark.parametrize("text", ["m.q", "m.y[2]", "m[0]", "l.x", "n.x", "m.x.y", "m.y[0][0]", "absent.x"])
    def test_what_is_not_there_leaves_nothing(self, text: str) -> None:
        assert self.project(text) == {}

    def test_a_dot_in_a_name_is_no_path(self) -> None:
        paths = expression.projection("#dot", Placeholders(NAMES))
        assert paths.project({"a.b": {"S": "x"}, "a": {"M": {"b": {"S": "y"}}}}) == {"a.b": {"S": "x"}}

    @pytest.mark.parametrize(
        ("text", "how", "one", "two"),
        [
            ("a, a", "overlap", "[a]", "[a]"),
            ("b, a.c, #s, a", "overlap", "[a, c]", "[a]"),
            ("a.b, a.b[2].c", "overlap", "[a, b]", "[a, b, [2], c]"),
            ("s.a, s[0], b, b.c", "overlap", "[b]", "[b, c]"),
            ("a.b, a[1]", "conflict", "[a, b]", "[a, [1]]"),
            ("a[1], b, a.b.c", "conflict", "[a, [1]]", "[a, b, c]"),
        ],
    )
    def test_paths_must_not_overlap(self, text: str, how: str, one: str, two: str) -> None:
        with pytest.raises(Invalid) as raised:
            expression.projection(text, Placeholders({"#s": "s"}))
        assert str(raised.value) == (
            f"Invalid ProjectionExpression: Two document paths {how} with each other; "
            f"must remove or rewrite one of these paths; path one: {one}, path two: {two}"
        )

    def test_names(self) -> None:
        paths = expression.projection("a.b, c", Placeholders())
        assert paths.names == {"a", "c"}
        assert paths.nested == {"a"}


ONE: Value = {"S": "1"}
TWO: Value = {"S": "2"}
KEY_VALUES: dict[str, Value] = {":1": ONE, ":2": TWO, ":n": {"N": "1"}}


def key(text: str, hashes: tuple[str, ...] = ("p",), ranges: tuple[str, ...] = ("c",)) -> KeyCondition:
    return expression.key_condition(text, Placeholders({"#p": "p"}, KEY_VALUES))(hashes, ranges)


class TestKeyConditions:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("p = :1", KeyCondition([ONE])),
            (":1 = #p", KeyCondition([ONE])),
            ("p = :1 AND c = :2", KeyCondition([ONE], [TWO])),
            ("(c < :2) and (p = :1)", KeyCondition([ONE], [], "<", [TWO])),
            ("p = :1 AND :2 < c", KeyCondition([ONE], [], ">", [TWO])),
            ("p = :1 AND :2 >= c", KeyCondition([ONE], [], "<=", [TWO])),
            ("p = :1 AND c BETWEEN :1 AND :2", KeyCondition([ONE], [], "BETWEEN", [ONE, TWO])),
            ("p = :1 AND begins_with(c, :2)", KeyCondition([ONE], [], "begins_with", [TWO])),
        ],
    )
    def test_simple_keys(self, text: str, wanted: KeyCondition) -> None:
        assert key(text) == wanted

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("p = :1 OR c = :2", "Invalid operator used in KeyConditionExpression: OR"),
            ("NOT p = :1", "Invalid operator used in KeyConditionExpression: NOT"),
            ("p IN (:1)", "Invalid operator used in KeyConditionExpression: IN"),
            ("p <> :1", "Invalid operator used in KeyConditionExpression: <>"),
            ("p = :1 AND attribute_exists(c)", "Invalid operator used in KeyConditionExpression: attribute_exists"),
            ("contains(a.b, c)", "Invalid operator used in KeyConditionExpression: contains"),
            ("p > size(c.d)", "KeyConditionExpressions cannot contain nested operations"),
            ("p > c.d", "Invalid condition in KeyConditionExpression: Multiple attribute names used in one condition"),
            ("a.b = :1", "KeyConditionExpressions cannot have conditions on nested attributes"),
            (":1 = :2", "Invalid condition in KeyConditionExpression: No key attribute specified"),
            (
                ":1 BETWEEN p AND c",
                "Invalid condition in KeyConditionExpression: "
                "BETWEEN operator must have the key attribute as its first operand",
            ),
            (
                "begins_with(:1, p)",
                "Invalid condition in KeyConditionExpression: "
                "begins_with operator must have the key attribute as its first operand",
            ),
            (
                "p = :1 AND p = :2",
                "Invalid KeyConditionExpression: KeyConditionExpressions must only contain one condition per key",
            ),
            ("p = :1 AND c = :2 AND d = :1", "Conditions can be of length 1 or 2 only"),
        ],
    )
    def test_what_no_key_condition_may_say(self, text: str, message: str) -> None:
        conditions = expression.key_condition(text, Placeholders(None, KEY_VALUES))
        with pytest.raises(Invalid) as raised:
            conditions.check()
        assert str(raised.value) == message

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "The expression can not be empty;"),
            ("p = :q", "An expression attribute value used in expression is not defined; attribute value: :q"),
            (
                "begins_with(p, :n)",
                "Incorrect operand type for operator or function; operator or function: begins_with, operand type: N",
            ),
        ],
    )
    def test_errors_of_any_condition(self, text: str, message: str) -> None:
        with pytest.raises(Invalid) as raised:
            expression.key_condition(text, Placeholders(None, KEY_VALUES))
        assert str(raised.value) == f"Invalid KeyConditionExpression: {message}"

    @pytest.mark.parametrize(
        ("text", "ranges", "message"),
        [
            ("c = :1", ("c",), "Query condition missed key schema element: p"),
            ("p = :1 AND d = :1", ("c",), "Query condition missed key schema element: c"),
            ("p < :1", ("c",), "Query key condition not supported"),
            ("p = :1 AND c = :1", (), "Query key condition not supported"),
        ],
    )
    def test_what_does_not_fit_the_key(self, text: str, ranges: tuple[str, ...], message: str) -> None:
        with pytest.raises(Invalid) as raised:
            key(text, ranges=ranges)
        assert str(raised.value) == message

    def test_operands_are_of_the_keys_types(self) -> None:
        conditions = expression.key_condition(":n > p", Placeholders(None, KEY_VALUES))
        with pytest.raises(Invalid, match="Condition parameter type does not match schema type"):
            conditions(("p",), (), {"p": "S"})

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("h = :1 AND i = :2", KeyCondition([ONE, TWO])),
            ("h = :1 AND i = :2 AND r = :1", KeyCondition([ONE, TWO], [ONE])),
            ("h = :1 AND i = :2 AND r > :1", KeyCondition([ONE, TWO], [], ">", [ONE])),
            (
                "s BETWEEN :1 AND :2 AND r = :1 AND h = :1 AND i = :2",
                KeyCondition([ONE, TWO], [ONE], "BETWEEN", [ONE, TWO]),
            ),
            ("h = :1 AND i = :2 AND r = :1 AND s = :2", KeyCondition([ONE, TWO], [ONE, TWO])),
        ],
    )
    def test_composite_keys(self, text: str, wanted: KeyCondition) -> None:
        assert key(text, ("h", "i"), ("r", "s")) == wanted

    @pytest.mark.parametrize(
        ("text", "pattern"),
        [
            ("h = :1", "HASH.*equality"),
            ("h = :1 AND i > :1", "HASH.*equality"),
            ("h = :1 AND i = :1 AND s = :1", "RANGE.*equality"),
            ("h = :1 AND i = :1 AND r > :1 AND s = :1", "RANGE.*equality"),
            ("h = :1 AND i = :1 AND q = :1", "^Query key condition not supported$"),
        ],
    )
    def test_what_does_not_fit_a_composite_key(self, text: str, pattern: str) -> None:
        with pytest.raises(Invalid, match=pattern):
            key(text, ("h", "i"), ("r", "s"))

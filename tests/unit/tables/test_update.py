from __future__ import annotations

import copy

import pytest

from tailrace.errors import Invalid
from tailrace.tables import expression
from tailrace.tables.expression import Placeholders
from tailrace.tables.update import BAD_PATH, BAD_TYPE, MISSING
from tailrace.tables.value import Item, Value

KEY: Item = {"p": {"S": "key"}}
ITEM: Item = {
    **KEY,
    "n": {"N": "7"},
    "s": {"S": "text"},
    "ss": {"SS": ["a", "b"]},
    "l": {"L": [{"N": "0"}, {"N": "1"}, {"N": "2"}, {"N": "3"}]},
    "m": {"M": {"x": {"N": "5"}, "in": {"M": {"ss": {"SS": ["a"]}}}, "l": {"L": [{"M": {"y": {"S": "z"}}}]}}},
}
VALUES: dict[str, Value] = {
    ":n": {"N": "3"},
    ":s": {"S": "new"},
    ":l": {"L": [{"S": "e"}]},
    ":m": {"M": {}},
    ":ss": {"SS": ["b", "c"]},
    ":ab": {"SS": ["a", "b"]},
    ":ns": {"NS": ["1"]},
    ":b": {"B": b"x"},
    ":t": {"BOOL": True},
    ":z": {"NULL": True},
}
NAMES = {"#p": "p", "#m": "m", "#in": "in", "#a": "a"}


def numbers(*texts: str) -> Value:
    return {"L": [{"N": text} for text in texts]}


def update(text: str) -> expression.ItemUpdate:
    return expression.update(text, Placeholders(NAMES, VALUES))


def applied(text: str, item: Item | None = ITEM) -> Item:
    """The item after the update, which must have left the one before alone."""
    before = copy.deepcopy(item)
    after = update(text).apply(item, KEY).item
    assert item == before
    return after


def changed(text: str) -> Item:
    """The attributes that the update changed of the item, or None for those it removed."""
    after = applied(text)
    return {name: after.get(name, {}) for name in ITEM.keys() | after.keys() if after.get(name) != ITEM.get(name)}


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        ("SET a = :s, n = n + :n", {"a": {"S": "new"}, "n": {"N": "10"}}),
        ("SET n = :n - n", {"n": {"N": "-4"}}),
        ("SET a = if_not_exists(a, :s), n = if_not_exists(n, :s)", {"a": {"S": "new"}}),
        ("SET a = if_not_exists(b, n) + :n", {"a": {"N": "10"}}),
        ("SET a = if_not_exists(b, if_not_exists(c, :s))", {"a": {"S": "new"}}),
        ("SET a = list_append(:l, l)", {"a": {"L": [{"S": "e"}, *ITEM["l"]["L"]]}}),
        ("SET a = list_append(if_not_exists(b, :l), :l)", {"a": {"L": [{"S": "e"}, {"S": "e"}]}}),
        ("SET n = s, s = n", {"n": {"S": "text"}, "s": {"N": "7"}}),  # all read before anything is written
        ("SET a = n REMOVE n", {"a": {"N": "7"}, "n": {}}),
        ("SET a = m.l[0].y", {"a": {"S": "z"}}),
        ("SET a = #p", {"a": {"S": "key"}}),
        ("REMOVE a, n", {"n": {}}),
        ("ADD n :n, a :n, ss :ss, b :ss", {
            "n": {"N": "10"}, "a": {"N": "3"}, "ss": {"SS": ["a", "b", "c"]}, "b": {"SS": ["b", "c"]},
        }),
        ("DELETE ss :ss", {"ss": {"SS": ["a"]}}),
        ("DELETE ss :ab", {"ss": {}}),
        ("DELETE a :ab", {}),
        ("REMOVE l[1]", {"l": numbers("0", "2", "3")}),
        ("REMOVE l[1], l[2], l[9]", {"l": numbers("0", "3")}),
        ("REMOVE l[1] SET l[2] = :n", {"l": numbers("0", "3", "3")}),  # indexes mean the list as it was
        ("SET l[2] = :n REMOVE l[1]", {"l": numbers("0", "3", "3")}),
        ("SET l[90] = n, l[40] = :n REMOVE l[0]", {"l": numbers("1", "2", "3", "3", "7")}),
        ("ADD l[1] :n, l[7] :n", {"l": numbers("0", "4", "2", "3", "3")}),
    ],
)  # fmt: skip
def test_changes(text: str, differs: Item) -> None:
    assert changed(text) == differs


def test_changes_inside() -> None:
    after = applied("SET m.q = :s, m.l[0].y = n REMOVE m.x ADD m.#in.ss :ss")
    assert after["m"] == {
        "M": {
            "q": {"S": "new"},
            "in": {"M": {"ss": {"SS": ["a", "b", "c"]}}},
            "l": {"L": [{"M": {"y": {"N": "7"}}}]},
        }
    }
    assert applied("REMOVE m.l[0]")["m"]["M"]["l"] == {"L": []}
    assert applied("REMOVE m.absent, m.l[5]") == ITEM
    assert applied("DELETE m.#in.ss :ab")["m"]["M"]["in"] == {"M": {}}
    assert applied("DELETE m.absent :ab") == ITEM


class TestWithoutAnItem:
    def test_what_sets_or_adds_makes_one(self) -> None:
        assert applied("SET a = #p", None) == {**KEY, "a": {"S": "key"}}
        assert applied("ADD a :n", None) == {**KEY, "a": {"N": "3"}}
        assert update("SET a = :s REMOVE b").creates

    @pytest.mark.parametrize("text", ["REMOVE a", "REMOVE a.b, c[0]", "DELETE a :ss"])
    def test_what_only_removes_makes_none(self, text: str) -> None:
        removing = update(text)
        assert not removing.creates
        assert removing.apply(None, KEY).item == KEY

    def test_there_is_nothing_to_read(self) -> None:
        with pytest.raises(Invalid, match=MISSING):
            applied("SET a = n", None)
        with pytest.raises(Invalid, match=BAD_PATH):
            applied("SET a.b = :s", None)


class TestReturned:
    def test_only_what_was_updated(self) -> None:
        updated = update("SET n = :n, m.x = :s, a = :s REMOVE s").apply(ITEM, KEY)
        assert updated.old(ITEM) == {"n": ITEM["n"], "m": {"M": {"x": {"N": "5"}}}, "s": ITEM["s"]}
        assert updated.new() == {"n": {"N": "3"}, "m": {"M": {"x": {"S": "new"}}}, "a": {"S": "new"}}

    def test_nothing(self) -> None:
        assert update("SET a = :s").apply(None, KEY).old(None) is None
        assert update("SET a = :s").apply(ITEM, KEY).old(ITEM) is None
        assert update("REMOVE n").apply(ITEM, KEY).new() is None

    def test_indexes_are_those_of_the_list_that_is_returned(self) -> None:
        updated = update("SET l[90] = :s REMOVE l[1]").apply(ITEM, KEY)
        assert updated.old(ITEM) == {"l": numbers("1")}
        assert updated.new() == {"l": numbers("2")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SET a = absent", MISSING),
        ("SET a = n + absent", MISSING),
        ("SET a = list_append(l, absent)", MISSING),
        ("SET x = :s, a = x", MISSING),
        ("SET a = s + :n", BAD_TYPE),
        ("SET a = list_append(n, :l)", BAD_TYPE),
        ("SET a = list_append(l, if_not_exists(n, :l))", BAD_TYPE),
        ("ADD s :n", BAD_TYPE),
        ("ADD ss :ns", BAD_TYPE),
        ("ADD l :ss", BAD_TYPE),
        ("DELETE ss :ns", BAD_TYPE),
        ("DELETE m.#in.ss :ns", BAD_TYPE),
        ("SET absent.x = :s", BAD_PATH),
        ("SET s.x = :s", BAD_PATH),
        ("SET l.x = :s", BAD_PATH),
        ("SET m[0] = :s", BAD_PATH),
        ("SET l[9].x = :s", BAD_PATH),
        ("REMOVE absent.x", BAD_PATH),
        ("REMOVE s[0]", BAD_PATH),
        ("ADD m[1] :n", BAD_PATH),
        ("DELETE absent[0] :ss", BAD_PATH),
    ],
)
def test_errors_of_the_item(text: str, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        applied(text)
    assert str(raised.value) == message


def test_an_item_does_not_get_too_deep() -> None:
    item = dict(ITEM)
    grow = update("SET m.x = m")
    with pytest.raises(Invalid, match="Nesting Levels have exceeded supported limits"):
        for _ in range(40):
            item = grow.apply(item, KEY).item


def test_deep_operands_are_evaluated() -> None:
    deep = 200
    text = "SET a = " + "if_not_exists(b," * deep + ":s" + ")" * deep
    assert applied(text)["a"] == {"S": "new"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The expression can not be empty;"),
        ("SET #q = :q", "An expression attribute name used in the document path is not defined; attribute name: #q"),
        ("SET a = :q", "An expression attribute value used in expression is not defined; attribute value: :q"),
        (
            "SET a = if_not_exists(:q)",
            "An expression attribute value used in expression is not defined; attribute value: :q",
        ),
        (
            "SET a = list_append(b)",
            "Incorrect number of operands for operator or function; "
            "operator or function: list_append, number of operands: 1",
        ),
        (
            "SET a = if_not_exists(:n, b)",
            "Operator or function requires a document path; operator or function: if_not_exists",
        ),
        (
            "SET a = if_not_exists(if_not_exists(a, b), c)",
            "Operator or function requires a document path; operator or function: if_not_exists",
        ),
        (
            "SET a = list_append(:s, b)",
            "Incorrect operand type for operator or function; operator or function: list_append, operand type: S",
        ),
        (
            "SET a = b + :l",
            "Incorrect operand type for operator or function; operator or function: +, operand type: L",
        ),
        (
            "SET a = :ss - b",
            "Incorrect operand type for operator or function; operator or function: -, operand type: SS",
        ),
        (
            "SET b = list_append(:s, b) ADD a.b :s",
            "Incorrect operand type for operator or function; operator: ADD, operand type: STRING",
        ),
        ("ADD a :l", "Incorrect operand type for operator or function; operator: ADD, operand type: LIST"),
        ("ADD a :b", "Incorrect operand type for operator or function; operator: ADD, operand type: BINARY"),
        ("ADD a :t", "Incorrect operand type for operator or function; operator: ADD, operand type: BOOLEAN"),
        ("DELETE a :n", "Incorrect operand type for operator or function; operator: DELETE, operand type: NUMBER"),
        ("DELETE a :m", "Incorrect operand type for operator or function; operator: DELETE, operand type: MAP"),
        ("DELETE a :z", "Incorrect operand type for operator or function; operator: DELETE, operand type: NULL"),
        (
            "SET a = :s, b = :s REMOVE #a.c",
            "Two document paths overlap with each other; must remove or rewrite one of these paths; "
            "path one: [a], path two: [a, c]",
        ),
        (
            "SET a.b = :s, a[1] = :s",
            "Two document paths conflict with each other; must remove or rewrite one of these paths; "
            "path one: [a, b], path two: [a, [1]]",
        ),
    ],
)
def test_errors_of_the_expression(text: str, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        update(text)
    assert str(raised.value) == f"Invalid UpdateExpression: {message}"


def test_what_it_changes() -> None:
    changes = update("SET a = :s, b.c = d[0], e = n + :n, f = if_not_exists(g, :s), h = n REMOVE i DELETE j :ss")
    assert changes.paths() == changes.names == {"a", "b", "e", "f", "h", "i", "j"}
    assert changes.nested == {"b", "d"}
    assert changes.types == {"a": "S", "e": "N", "f": "S", "j": "SS"}

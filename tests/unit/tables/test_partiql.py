"""PartiQL statements as trees and plans, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import partiql, syntax
from tailrace.tables.definition import Attribute, Definition, IndexDefinition
from tailrace.tables.partiql_syntax import statement
from tailrace.tables.partiql_tree import PartiQLDelete, PartiQLExists, PartiQLInsert, PartiQLSelect, PartiQLUpdate
from tailrace.tables.syntax import Action, Call, Compare, DocumentPath, Either, Every, Not, ValuePlaceholder

DEFINITION = Definition(
    name="tab",
    space=1,
    uuid="",
    created_ms=0,
    attributes=(Attribute("pk", "S"), Attribute("sk", "N"), Attribute("g", "S")),
    hash="pk",
    range="sk",
    indexes=(IndexDefinition("by_g", 2, False, ("g",), ("sk",)),),
)


def path(*parts: str | int) -> DocumentPath:
    return DocumentPath(parts, plain=True)


def where(text: str) -> syntax.Node:
    found = statement(f"SELECT * FROM tab WHERE {text}")
    assert isinstance(found, PartiQLSelect)
    assert found.where is not None
    return found.where


def plan(text: str, parameters: Sequence[Any] = (), source: str = "tab") -> partiql.SelectPlan:
    found = statement(f"SELECT * FROM {source} WHERE {text}")
    assert isinstance(found, PartiQLSelect)
    return partiql.plan(found, partiql.bound(found, parameters), DEFINITION)


# -- trees


def test_conditions_are_those_of_expressions() -> None:
    one, two = ValuePlaceholder(":0"), ValuePlaceholder(":1")
    assert where("a = 1") == Compare("=", (path("a"), one))
    assert where("NOT a.b[2].\"c d\" <> 'x' AND b = ? OR size(c) > 1") == Either(
        (
            Every((Not(Compare("<>", (path("a", "b", 2, "c d"), one))), Compare("=", (path("b"), two)))),
            Compare(">", (Call("size", (path("c"),)), ValuePlaceholder(":2"))),
        )
    )
    assert where("(a = 1 OR b = 2) AND c IN [1, 2]") == Every(
        (
            Either((Compare("=", (path("a"), one)), Compare("=", (path("b"), two)))),
            Compare("IN", (path("c"), ValuePlaceholder(":2"), ValuePlaceholder(":3"))),
        )
    )
    assert where("a IS NOT MISSING") == Call("attribute_exists", (path("a"),))
    assert where("a BETWEEN 1 AND 2 AND NOT NOT b = 3") == Every(
        (Compare("BETWEEN", (path("a"), one, two)), Compare("=", (path("b"), ValuePlaceholder(":2"))))
    )
    assert where("begins_with(a, 'x') AND c < 2") == Every(
        (Call("begins_with", (path("a"), one)), Compare("<", (path("c"), two)))
    )
    assert where("contains(a, ?)") == Call("contains", (path("a"), one))


def test_values_are_constants_and_parameters_in_their_order() -> None:
    found = statement("INSERT INTO tab VALUE {'a': ?, 'b': -1.50, 'c': ?, 'd': <<'y', 'x'>>}")
    assert isinstance(found, PartiQLInsert)
    assert found.values.parameters == (":0", ":2")
    assert found.values.constants == {":1": {"N": "-1.5"}, ":3": {"SS": ["x", "y"]}}
    given = partiql.bound(found, [{"S": "p"}, {"BOOL": True}])
    assert partiql.item(found, given) == {
        "a": {"S": "p"}, "b": {"N": "-1.5"}, "c": {"BOOL": True}, "d": {"SS": ["x", "y"]}
    }  # fmt: skip
    for parameters in ([], [{"S": "p"}], [{"S": "p"}] * 3):
        with pytest.raises(Invalid, match="Number of parameters in request and statement don't match"):
            partiql.bound(found, parameters)


def test_updates_are_those_of_expressions() -> None:
    found = statement(
        "UPDATE tab SET a = b + 1, l = list_append(l, ?) SET s = set_delete(s, <<1>>) REMOVE m.x "
        "WHERE pk = 'x' RETURNING MODIFIED OLD *"
    )
    assert isinstance(found, PartiQLUpdate)
    assert found.returns == "UPDATED_OLD"
    assert found.actions == (
        Action("SET", path("a"), Call("+", (path("b"), ValuePlaceholder(":0")))),
        Action("SET", path("l"), Call("list_append", (path("l"), ValuePlaceholder(":1")))),
        Action("DELETE", path("s"), ValuePlaceholder(":2")),
        Action("REMOVE", path("m", "x"), None),
    )
    other_order = statement("FROM tab WHERE pk = 'x' SET a = 1")
    assert isinstance(other_order, PartiQLUpdate)
    assert other_order.where is not None


def test_sources_columns_and_order() -> None:
    found = statement('SELECT a, b.c[1] FROM "tab"."by_g" WHERE g = \'x\' ORDER BY g DESC, sk')
    assert isinstance(found, PartiQLSelect)
    assert (found.source.table, found.source.index) == ("tab", "by_g")
    assert found.columns == (("a", path("a")), ("c[1]", path("b", "c", 1)))
    assert found.order == (("g", True), ("sk", False))
    assert isinstance(statement("DELETE FROM tab WHERE pk = 'x';"), PartiQLDelete)
    assert isinstance(statement("EXISTS(SELECT * FROM tab WHERE pk = 'x')"), PartiQLExists)


def test_a_parsed_statement_is_remembered() -> None:
    text = "SELECT * FROM tab WHERE a = 'remembered'"
    assert statement(text) is statement(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT f(a) FROM tab", "1:8:1"),
        ("SELECT a\nFROM tab\n  WHERE now() = 1", "3:9:3"),
        ('SELECT "é", l[-7] FROM tab', "1:16:1"),
        ("UPDATE tab SET a = now()", "1:20:3"),
        ("UPDATE tab\nSET a = set_add(b, <<1>>)", "2:9:7"),
        ("INSERT INTO tab VALUE {'a': [\n?]}", "2:1:1"),
        ("DELETE tab", "1:8:3"),
    ],
)
def test_errors_name_the_place(text: str, place: str) -> None:
    with pytest.raises(Invalid) as refused:
        statement(text)
    assert str(refused.value).endswith(f" at {place}")


def test_depth_and_operators_are_limited() -> None:
    deepest = "(" * limits.STATEMENT_DEPTH_MAX + "a = 1" + ")" * limits.STATEMENT_DEPTH_MAX
    assert where(deepest) == where("a = 1")
    with pytest.raises(Invalid, match="nested more than 64 deep"):
        where(f"({deepest})")
    longest = " AND ".join(["a = 1"] * (limits.EXPRESSION_OPERATORS_MAX // 2))
    assert isinstance(where(longest), Every)
    with pytest.raises(Invalid, match="too many operators; operator count: 301"):
        where(f"{longest} AND b = 1")


# -- plans


def ranges(found: partiql.SelectPlan) -> list[tuple[Any, ...]]:
    assert found.parts is not None
    return sorted(
        (
            part.condition.hash[0]["S"],
            *[each["N"] for each in part.condition.equal],
            *([part.condition.op] if part.condition.op else []),
            *[each["N"] for each in part.condition.operands],
            "filtered" if part.filter else "",
        )
        for part in found.parts
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pk = 'a'", [("a", "")]),
        ("'a' = pk AND sk > 1", [("a", ">", "1", "")]),
        ("pk = 'a' AND 1 > sk", [("a", "<", "1", "")]),
        ("pk = 'a' AND sk BETWEEN 1 AND 2", [("a", "BETWEEN", "1", "2", "")]),
        ("pk = 'a' AND v = 1", [("a", "filtered")]),
        ("pk = 'a' AND sk = 1 AND sk < 5", [("a", "1", "filtered")]),
        ("pk = 'a' AND sk < 5 AND sk = 1", [("a", "1", "filtered")]),
        ("pk = 'a' AND sk <> 1", [("a", "filtered")]),
        ("pk = 'a' AND (v = 1 OR w = 1)", [("a", "filtered")]),
        ("pk IN ['a', 'b'] AND sk IN [1, 2]", [("a", "1", ""), ("a", "2", ""), ("b", "1", ""), ("b", "2", "")]),
        ("(pk = 'a' OR pk = 'b') AND v = 1", [("a", "filtered"), ("b", "filtered")]),
        ("(pk = 'a' AND sk > 1) OR (pk = 'b' AND v = 1)", [("a", ">", "1", ""), ("b", "filtered")]),
        ("pk = 'a' AND (sk < 1 OR sk > 1)", [("a", "<", "1", ""), ("a", ">", "1", "")]),
        ("pk = 'a' AND NOT sk = 1 OR pk = 'a' AND sk = 2", [("a", "filtered")]),
    ],
)
def test_a_fixed_partition_key_is_a_query(text: str, expected: list[tuple[Any, ...]]) -> None:
    assert ranges(plan(text)) == expected


@pytest.mark.parametrize(
    "text",
    ["v = 1", "sk = 1", "pk > 'a'", "pk = 'a' OR v = 1", "NOT pk = 'a'", "pk = v", "pk.a = 'a'", "pk IS MISSING"],
)
def test_anything_else_is_a_scan(text: str) -> None:
    found = plan(text)
    assert found.parts is None
    assert found.filter is not None


def test_a_whole_key_is_a_get() -> None:
    assert plan("pk = ? AND sk = 1.0", [{"S": "a"}]).key == {"pk": {"S": "a"}, "sk": {"N": "1"}}
    assert plan("pk IN ['a'] AND sk = 1").key is not None
    assert plan("pk = 'a' AND sk = 1 AND v = 1").key is None
    assert plan("pk = 'a'").key is None
    assert plan("g = 'a' AND sk = 1", source="tab.by_g").key is None


def test_an_index_is_read_by_its_own_key() -> None:
    assert ranges(plan("g = 'a' AND sk >= 1", source="tab.by_g")) == [("a", ">=", "1", "")]
    assert plan("pk = 'a'", source="tab.by_g").parts is None


def test_a_plan_is_for_the_table_that_it_was_made_for() -> None:
    found = plan("pk = 'a'")
    assert found.parts is not None
    key = partiql.PlannedKey(found, found.parts[0])
    assert key(("pk",), ("sk",), DEFINITION.kinds).hash == [{"S": "a"}]
    with pytest.raises(Exception, match="no table"):
        key(("pk",), (), DEFINITION.kinds)
    with pytest.raises(Exception, match="no table"):
        key(("pk",), ("sk",), {**DEFINITION.kinds, "sk": "S"})


# -- what they cost


def test_an_index_of_any_length_is_out_of_range() -> None:
    for digits in ("9" * 5_000, "0" * 5_000 + "2147483648"):
        with pytest.raises(Invalid, match="List index is not within the allowable range"):
            statement(f"SELECT a[{digits}] FROM tab")
    assert isinstance(statement(f"SELECT a[{'0' * 5_000}1] FROM tab"), PartiQLSelect)


def test_long_statements_are_not_kept() -> None:
    """The tree of a list takes a hundred times its text."""
    short, long = "SELECT * FROM tab WHERE a = 1", "SELECT * FROM tab WHERE a = [" + "1," * 1_000 + "1]"
    assert statement(short) is statement(short)
    assert statement(long) is not statement(long)


def test_alternatives_share_their_filter() -> None:
    """Fifty ranges with a hundred conditions each are planned on the event loop."""
    values = ",".join(f"'{at}'" for at in range(limits.STATEMENT_READS_MAX))
    parts = plan(f"pk IN ({values})" + " AND a = 1" * 100).parts
    assert parts is not None
    assert len(parts) == limits.STATEMENT_READS_MAX
    assert len({id(part.filter) for part in parts}) == 1
    mixed = plan("(pk = 'a' AND x = 1) OR (pk = 'b' AND x = 2)").parts
    assert mixed is not None
    assert [part.filter is not None and part.filter.test({"x": {"N": "1"}}) for part in mixed].count(True) == 1

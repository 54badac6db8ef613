"""Expressions over items: operators and functions, three-valued logic, declared columns, errors and their places."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlglot
from hypothesis import given

from tailrace import scalar
from tailrace.errors import Invalid
from tailrace.scalar import ExpressionError, condition, value
from tailrace.scalar.functions import NAMES
from tailrace.scalar.reading import DEPTH_MAX, TEXT_CHARACTERS_MAX
from tailrace.tables.value import Item

ROW: Item = {
    "id": {"S": "m1"},
    "is_visible": {"BOOL": True},
    "hidden": {"BOOL": False},
    "channel_id": {"N": "42"},
    "price": {"N": "12.5"},
    "huge": {"N": "9" * 38},
    "body": {"S": "Hello, wörld"},
    "data": {"B": b"\x00\xff"},
    "nothing": {"NULL": True},
    "doc": {"M": {"a": {"N": "7"}, "in": {"M": {"b c": {"S": "deep"}}}, "list": {"L": [{"S": "p"}, {"BOOL": True}]}}},
    "tags": {"SS": ["x", "y"]},
}
COLUMNS = [("id", "TEXT"), ("is_visible", "BOOLEAN"), ("channel_id", "BIGINT"), ("price", "DECIMAL"), ("doc", "JSON")]


def of(text: str, *params: Any, new: Item | None = ROW, old: Item | None = None) -> Any:
    return value(text).of(new, old, params)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # literals
        ("42", 42),
        ("2.50", Decimal("2.5")),
        ("1e3", 1000),
        ("-0.0", 0),
        ("'it''s'", "it's"),
        ("$$raw$$", "raw"),
        ("NULL", None),
        ("TRUE", True),
        ("false", False),
        # names
        ("channel_id", 42),
        ('"channel_id"', 42),
        ("NEW.channel_id", 42),
        ("new.channel_id", 42),
        ("OLD.channel_id", None),
        ("missing", None),
        ("nothing", None),
        ("doc.a", 7),
        ("doc['a']", 7),
        ('NEW.doc.in."b c"', "deep"),
        ("doc['list'][1]", "p"),
        ("doc['list'][3]", None),
        ("doc.a.b", None),
        ("id.a", None),
        ("tags", {"x", "y"}),
        ("data", b"\x00\xff"),
        # comparisons
        ("channel_id = 42", True),
        ("channel_id = 42.0", True),
        ("42 = channel_id", True),
        ("channel_id <> 42", False),
        ("channel_id != 41", True),
        ("channel_id < 42.5", True),
        ("42.5 > channel_id", True),
        ("channel_id <= 41", False),
        ("price >= 12.5", True),
        ("body = 'Hello, wörld'", True),
        ("body < 'Z'", True),
        ("hidden < is_visible", True),
        ("huge = 99999999999999999999999999999999999999", True),
        ("huge > 99999999999999999999999999999999999998", True),
        ("missing = 1", None),
        ("nothing <> 1", None),
        ("missing = missing", None),
        ("NULL = NULL", None),
        ("doc = doc", True),
        ("doc < doc", None),
        ("tags = tags", True),
        # values of another kind are unknown
        ("body = 42", None),
        ("body <> 42", None),
        ("body > 42", None),
        ("channel_id = 'x'", None),
        ("channel_id = body", None),
        ("channel_id < body", None),
        ("channel_id = TRUE", None),
        ("doc = 1", None),
        ("body IN (1, 2)", None),
        ("body BETWEEN 1 AND 2", None),
        ("channel_id LIKE '4%'", None),
        ("channel_id AND TRUE", None),
        ("channel_id AND FALSE", False),
        # distinct
        ("missing IS DISTINCT FROM nothing", False),
        ("missing IS NOT DISTINCT FROM NULL", True),
        ("channel_id IS DISTINCT FROM body", True),
        ("channel_id IS NOT DISTINCT FROM 42", True),
        ("NEW.doc IS DISTINCT FROM OLD.doc", True),
        # logic
        ("NULL AND FALSE", False),
        ("NULL AND TRUE", None),
        ("NULL OR TRUE", True),
        ("NULL OR FALSE", None),
        ("NOT NULL", None),
        ("NOT hidden", True),
        ("missing IS NULL", True),
        ("nothing IS NULL", True),
        ("body IS NOT NULL", True),
        ("body ISNULL", False),
        ("body NOTNULL", True),
        ("missing IS TRUE", False),
        ("missing IS NOT TRUE", True),
        ("hidden IS FALSE", True),
        ("(missing = 1) IS UNKNOWN", True),
        # IN, BETWEEN
        ("channel_id IN (1, 42)", True),
        ("channel_id IN (1, NULL)", None),
        ("channel_id NOT IN (1, 2)", True),
        ("channel_id NOT IN (42, NULL)", False),
        ("channel_id IN (price, 42)", True),
        ("missing IN (1)", None),
        ("channel_id BETWEEN 42 AND 43", True),
        ("channel_id NOT BETWEEN 42 AND 43", False),
        ("channel_id BETWEEN NULL AND 41", False),
        ("channel_id BETWEEN NULL AND 43", None),
        # LIKE
        ("body LIKE 'Hello%'", True),
        ("body LIKE '%w_rld'", True),
        ("body LIKE '%ello%w%'", True),
        ("body LIKE 'hello%'", False),
        ("body NOT LIKE 'hello%'", True),
        ("body ILIKE 'HELLO%WÖRLD'", True),
        ("'100%' LIKE '100!%' ESCAPE '!'", True),
        ("'1000' LIKE '100!%' ESCAPE '!'", False),
        ("body LIKE body", True),
        ("body LIKE missing", None),
        ("'ab' LIKE 'a%b%b'", False),
        # arithmetic
        ("channel_id + 1", 43),
        ("price - 0.5", 12),
        ("price * 2", 25),
        ("channel_id / 4", Decimal("10.5")),
        ("1 / 3", Decimal("0." + "3" * 38)),
        ("channel_id // 4", 10),
        ("-7 // 2", -3),
        ("channel_id % 5", 2),
        ("-7 % 3", -1),
        ("MOD(7, 2.5)", 2),
        ("-price", Decimal("-12.5")),
        ("- - 1", 1),
        ("1 + 2 * 3 - 4", 3),
        ("0.1 + 0.2", Decimal("0.3")),
        ("huge + 1", 10**38),
        ("huge + 2", None),
        ("huge * huge", None),
        ("1 / 0", None),
        ("1 % 0", None),
        ("1 // 0", None),
        ("body + 1", None),
        ("missing + 1", None),
        # text
        ("'a' || 1 || TRUE || 2.50", "a1true2.5"),
        ("'a' || missing", None),
        ("CONCAT('a', missing, 1)", "a1"),
        ("data || data", b"\x00\xff\x00\xff"),
        ("'a' || data", None),
        ("LOWER(body)", "hello, wörld"),
        ("UPPER(body)", "HELLO, WÖRLD"),
        ("UPPER('ß')", "ẞ"),
        ("LENGTH(body)", 12),
        ("LENGTH(data)", 2),
        ("LENGTH(doc['list'])", 2),
        ("LENGTH(doc)", None),
        ("SUBSTR(body, 1, 5)", "Hello"),
        ("SUBSTRING(body FROM 8 FOR 2)", "wö"),
        ("SUBSTR(body, -3)", "rld"),
        ("TRIM('  a ')", "a"),
        ("LTRIM('  a ')", "a "),
        ("RTRIM('xax', 'x')", "xa"),
        ("TRIM(BOTH 'x' FROM 'xax')", "a"),
        ("REPLACE('aXa', 'a', 'bb')", "bbXbb"),
        ("STARTS_WITH(body, 'Hell')", True),
        ("ENDS_WITH(body, 'x')", False),
        ("CONTAINS(body, 'wör')", True),
        ("CONTAINS(channel_id, '4')", None),
        # choices
        ("CASE WHEN hidden THEN 1 WHEN is_visible THEN 2 ELSE 3 END", 2),
        ("CASE channel_id WHEN 1 THEN 'a' WHEN 42 THEN 'b' END", "b"),
        ("CASE channel_id WHEN 1 THEN 'a' END", None),
        ("CASE WHEN missing THEN TRUE ELSE hidden END", False),
        ("COALESCE(missing, nothing, channel_id, 1)", 42),
        ("IFNULL(missing, 'x')", "x"),
        ("NULLIF(channel_id, 42)", None),
        ("NULLIF(channel_id, 41)", 42),
        ("IF(hidden, 1, 2)", 2),
        ("GREATEST(1, missing, price)", Decimal("12.5")),
        ("LEAST('b', 'a')", "a"),
        ("GREATEST(channel_id, body)", None),
        # numbers
        ("ABS(-5)", 5),
        ("ROUND(2.5)", 3),
        ("ROUND(-2.5)", -3),
        ("ROUND(1.25, 1)", Decimal("1.3")),
        ("ROUND(15, -1)", 20),
        ("CEIL(1.2)", 2),
        ("FLOOR(-1.2)", -2),
        # casts
        ("CAST('42' AS BIGINT)", 42),
        ("CAST(' 42.5 ' AS BIGINT)", 43),
        ("CAST('x' AS BIGINT)", None),
        ("CAST(9223372036854775808 AS BIGINT)", None),
        ("CAST(2147483648 AS INTEGER)", None),
        ("CAST(price AS INTEGER)", 13),
        ("CAST(TRUE AS BIGINT)", 1),
        ("price::TEXT", "12.5"),
        ("CAST(is_visible AS VARCHAR)", "true"),
        ("CAST('yes' AS BOOLEAN)", True),
        ("CAST('maybe' AS BOOLEAN)", None),
        ("CAST(0 AS BOOLEAN)", False),
        ("CAST(2.345 AS DECIMAL(4, 2))", Decimal("2.35")),
        ("CAST(123 AS DECIMAL(4, 2))", None),
        ("CAST('1.50' AS DECIMAL)", Decimal("1.5")),
        ("CAST(0.1 AS DOUBLE)", Decimal("0.1")),
        ("CAST(12345678901234567890 AS DOUBLE)", 12345678901234567000),
        ("CAST('é' AS BLOB)", "é".encode()),
        ("CAST(data AS TEXT)", None),
        ("CAST('{\"a\": [1, 2.50]}' AS JSON)", {"a": [1, Decimal("2.5")]}),
        ("CAST('{' AS JSON)", None),
        ("TRY_CAST('x' AS DOUBLE)", None),
    ],
)
def test_values(text: str, wanted: Any) -> None:
    found = of(text)
    assert found == wanted and type(found) is type(wanted)
    if wanted is None or isinstance(wanted, bool):
        # the same as conditions, both ways round
        assert condition(f"({text}) IS NOT DISTINCT FROM {'NULL' if wanted is None else wanted}").true(ROW)
        assert condition(text).true(ROW) is (wanted is True) if not _numeric(text) else True


def _numeric(text: str) -> bool:
    """Whether a text whose value is NULL would be refused as a condition, because it is no boolean."""
    try:
        condition(text)
    except ExpressionError as error:
        return error.code == "KIND_MISMATCH"
    return False


def test_a_bare_name_is_the_new_row_or_else_the_old_one() -> None:
    new: Item = {"a": {"N": "1"}}
    old: Item = {"a": {"N": "2"}}
    filter_ = condition("a = 1")
    assert filter_.true(new, old) and filter_.true(new, None)
    assert not filter_.true(None, old)
    assert condition("a = 2").true(None, old)
    assert condition("OLD.a = 2 AND NEW.a IS NULL AND a = 2").true(None, old)
    assert condition("NEW.a > OLD.a").true(old, new)
    assert not condition("a = 1").true(None, None)


def test_what_an_expression_reads() -> None:
    found = condition("NEW.a = OLD.b.c AND d IN (1, 2)")
    assert found.names == {"a", "b", "d"} and found.sides == {"new", "old", "row"}
    assert value("1 + 1").constant and not value("a").constant


def test_a_quoted_new_is_a_column() -> None:
    assert of('"new".x', new={"new": {"M": {"x": {"N": "1"}}}}) == 1


def test_parameters() -> None:
    assert of("? + ?", 1, 2.5) == Decimal("3.5")
    assert of("$2 || $1", "a", "b") == "ba"
    assert of("?", {"a": [1, 0.1]}) == {"a": [1, Decimal("0.1")]}
    assert value("$3").parameters == 3 and value("? = ?").parameters == 2
    with pytest.raises(Invalid, match="parameter 2 is missing: 1 were given"):
        of("? + ?", 1)
    with pytest.raises(Invalid, match="NaN"):
        of("?", float("nan"))
    with pytest.raises(ExpressionError, match="cannot have parameters"):
        condition("a = ?")
    for text in ("?", "a || $1"):
        with pytest.raises(ExpressionError, match=r"cannot have parameters.*line 2, column 5"):
            scalar.stored_value(text, line=2, column=5)
    assert scalar.stored_value("channel_id").of(ROW) == 42


def test_syntax_trees_count_parameters_on() -> None:
    tree = sqlglot.parse_one("UPDATE t SET a = ? + 1, b = ? WHERE c = ?", dialect="duckdb")
    first, second = (setting.expression for setting in tree.expressions)
    a = scalar.compile_value(first)
    b = scalar.compile_value(second, before=a.parameters)
    where = scalar.compile_condition(tree.args["where"].this, before=b.parameters)
    params = (1, "x", 42)
    assert a.of(None, None, params) == 2 and b.of(None, None, params) == "x"
    assert where.true({"c": {"N": "42"}}, None, params) and not where.true({"c": {"N": "1"}}, None, params)
    assert scalar.compile_value(sqlglot.parse_one("x'ff'", dialect="postgres")).of(None) == b"\xff"
    assert scalar.compile_value(sqlglot.parse_one("$1", dialect="postgres")).of(None, None, [7]) == 7


# -- declared columns


def test_declared_columns_only_add_checks() -> None:
    assert condition("IS_VISIBLE AND Channel_Id = 42", columns=COLUMNS).true(ROW)
    assert condition("channel_id = 42", columns=COLUMNS).true({"channel_id": {"S": "42"}}) is False
    assert condition("doc.a = 7 AND doc.x IS NULL", columns=COLUMNS).true(ROW)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chanel_id = 42", ["'chanel_id'", "channel_id", "is_visible", "line 1, column 1"]),
        ('id = "x"', ["'x'", "line 1, column 6"]),
        ("id = 'x' AND\n  OLD.nope = 1", ["'nope'", "line 2, column 7"]),
        ("\"ID\" = 'x'", ["'ID'"]),
    ],
)
def test_an_unknown_column_is_named_with_those_there_are(text: str, words: list[str]) -> None:
    with pytest.raises(ExpressionError) as caught:
        condition(text, columns=COLUMNS)
    assert caught.value.code == "UNKNOWN_COLUMN"
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "id = 42",
        "42 <> id",
        "channel_id = 'forty-two'",
        "channel_id = '4.2'",
        "channel_id = id",
        "is_visible = 1",
        "id IN ('a', 1)",
        "price BETWEEN 'a' AND 'b'",
        "id IS DISTINCT FROM 1",
        "channel_id LIKE '4%'",
        "id + 1 > 2",
        "channel_id AND is_visible",
        "NOT id",
        "id",
        "LOWER(price) = 'x'",
        "COALESCE(id, 1) = 1",
        "CASE WHEN is_visible THEN id ELSE 1 END = 1",
        "NULLIF(id, 1) = 'x'",
        "GREATEST(id, 1) = 1",
        "CASE id WHEN 1 THEN TRUE END",
        "'a' = 1",
    ],
)
def test_what_can_never_be_true_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        condition(text, columns=COLUMNS)
    assert caught.value.code == "KIND_MISMATCH"


# -- errors


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", (1, 1), "empty"),
        ("a = ", (1, 3), "missing"),
        ("a = 1)", (1, 6), "unexpected ')'"),
        ("(a = 1", (1, 6), "missing"),
        ("a b c", (1, 3), "unexpected"),
        ("a = 1\n AND b = 'x", (2, 10), "quote that begins here is not closed"),
        ("a /* x", (1, 3), "comment that begins here is not closed"),
        ("a = 1; b = 2", (1, 6), "semicolon"),
        ("a = 1 AND foo(b)", (1, 11), "function 'FOO' is not supported"),
        ("a AND\nregexp_extract(b, 'x') = 'y'", (2, 1), "is not supported"),
        ("SUM(a) > 1", (1, 1), "an aggregate function"),
        ("a = (SELECT 1)", (1, 13), "cannot have a subquery"),
        ("a IN (SELECT b FROM c)", (1, 14), "cannot have a subquery"),
        ("EXISTS (SELECT 1)", (1, 16), "cannot have a subquery"),
        ("ROW_NUMBER() OVER () = 1", (1, 1), "a window function"),
        ("a < b < c", (1, 1), "chained"),
        ("a IN ()", (1, 1), "at least one"),
        ("a IS 5", (1, 1), "IS must be followed by"),
        ("a = 1 AND b LIKE 'x!' ESCAPE '!'", (1, 11), "must not end"),
        ("a LIKE 'x' ESCAPE 'ab'", (1, 1), "one character"),
        ("a LIKE 'x' ESCAPE b", (1, 19), "missing"),
        ("CAST(a AS TIME) = 1", (1, 6), "CAST to TIME is not supported"),
        ("CAST(a AS DECIMAL(50, 2)) = 1", (1, 6), "1 to 38"),
        ("CAST(a AS INTEGER[]) = 1", (1, 6), "is not supported; use TEXT"),
        ("a = 1e400", (1, 5), "not a number that an item can store"),
        ("a BETWEEN SYMMETRIC 1 AND 2", (1, 1), "argument or option"),
        ("a GLOB 'x'", (1, 1), "is not supported in expressions"),
        ("a & 1 = 1", (1, 1), "is not supported in expressions"),
        ("a = 0x1F", (1, 6), "unexpected"),
        ("SUBSTR(a, 1, 2, 3) = 'x'", (1, 1), "argument or option"),
        ("*", (1, 1), "is not supported in expressions"),
        ("a = ANY(b)", (1, 9), "is not supported in expressions"),
        ("(a, b) = (1, 2)", (1, 2), "is not supported in expressions"),
        ("a[-1] = 1", (1, 1), "element of a list"),
        ("a[1:2] = 1", (1, 1), "element of a list"),
        ("SUBSTR(a) = 'x'", (1, 1), "more arguments"),
        ("LOWER(a, b) = 'x'", (1, 11), "too many arguments"),
        ("DROP TABLE x", (1, 1), "unexpected"),
        ("a AS b", (1, 3), "unexpected"),
        ("a = :name", (1, 1), "cannot have parameters"),
    ],
)
def test_errors_say_what_and_where(text: str, place: tuple[int, int], words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        condition(text)
    error = caught.value
    assert words in str(error), str(error)
    assert (error.line, error.column) == place, str(error)
    assert f"line {place[0]}, column {place[1]}" in str(error) and "line" not in error.reason


def test_places_count_from_where_the_text_begins() -> None:
    for _ in range(2):
        with pytest.raises(ExpressionError, match=r"line 3, column 14\)"):
            condition("a = foo(b)", line=3, column=10)
        with pytest.raises(ExpressionError, match=r"line 4, column 3\)"):
            condition("a =\n  foo(b)", line=3, column=10)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(", ")"),
        ("LOWER(", ")"),
        ("NOT ", ""),
        ("- ", ""),
        ("CASE WHEN a THEN ", " END"),
        ("(a OR b AND ", ")"),
        ("(a BETWEEN b AND ", ")"),
        ("(a IN (b, ", "))"),
        ("COALESCE(a, ", ")"),
        ("a = NOT ", ""),
        ("a['x'] = (", ")"),
    ],
)
def test_what_is_too_deep_is_refused(before: str, after: str) -> None:
    shallow = 8
    value(f"{before * shallow}NULL{after * shallow}")
    for depth in (DEPTH_MAX + 2, 400):
        with pytest.raises(ExpressionError, match="nested"):
            value(f"{before * depth}NULL{after * depth}")


def test_long_chains_are_not_deep() -> None:
    assert condition(" OR ".join(f"a = {number}" for number in range(1000))).true({"a": {"N": "999"}})
    assert not condition(" AND ".join(["TRUE"] * 1000) + " AND a = 1").true({})
    assert of(" + ".join(["1"] * 100)) == 100
    assert of(" || ".join(["'a'"] * 500)) == "a" * 500
    assert condition(f"a IN ({', '.join(map(str, range(2000)))})").true({"a": {"N": "1999"}})
    with pytest.raises(ExpressionError, match="chained operators"):
        value(" + ".join(["1"] * 200))
    assert of("'" + "x" * 400_000 + "'") == "x" * 400_000
    with pytest.raises(ExpressionError, match="characters"):
        condition("a = '" + "x" * TEXT_CHARACTERS_MAX + "'")


def test_names_and_constants_never_become_source() -> None:
    evil = "x'); import os; ('"
    quoted = evil.replace("'", "''")
    assert of(f"'{quoted}'") == evil
    name = '__import__("os")'
    doubled = name.replace('"', '""')
    assert of(f'"{doubled}"', new={name: {"S": "fine"}}) == "fine"
    assert value("a").of.__globals__["__builtins__"] == {}  # type: ignore[attr-defined]


def test_expressions_are_compiled_once() -> None:
    assert condition("a = 1") is condition("a = 1")
    assert condition("a = 1", columns=[("a", "BIGINT")]) is not condition("a = 1")


def test_every_function_is_documented() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "expressions.md"
    words = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    assert set(NAMES) <= words and set(scalar.KINDS) <= words


# -- nothing raises

scalars = st.one_of(
    st.text(max_size=5).map(lambda text: {"S": text}),
    st.sampled_from(["0", "-1", "0.5", "9" * 38, "1" + "0" * 125, "-0." + "0" * 129 + "1"]).map(
        lambda text: {"N": text}
    ),
    st.booleans().map(lambda truth: {"BOOL": truth}),
    st.binary(max_size=4).map(lambda data: {"B": data}),
    st.just({"NULL": True}),
    st.just({"NS": ["1", "2"]}),
    st.just({"BS": [b"a"]}),
)
typed = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda parts: {"L": parts})
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(lambda parts: {"M": parts})
    ),
    max_leaves=4,
)
items = st.none() | st.dictionaries(st.sampled_from("abc"), typed, max_size=3)
TOTAL = [
    *(f"a {operator} b" for operator in ("=", "<", "+", "-", "*", "/", "//", "%", "||", "LIKE", "IS DISTINCT FROM")),
    *(f"{name}(a)" for name in ("LOWER", "UPPER", "LENGTH", "ABS", "ROUND", "CEIL", "TRIM")),
    *(
        f"{name}(a, b)"
        for name in ("ROUND", "CONCAT", "STARTS_WITH", "CONTAINS", "GREATEST", "LEAST", "NULLIF", "COALESCE")
    ),
    *(
        f"CAST(a AS {kind})"
        for kind in ("TEXT", "BIGINT", "DOUBLE", "DECIMAL", "DECIMAL(5,2)", "BOOLEAN", "BLOB", "JSON")
    ),
    "SUBSTR(a, b, c)",
    "REPLACE(a, b, c)",
    "TRIM(a, b)",
    "a BETWEEN b AND c",
    "a IN (b, c, 1)",
    "CASE a WHEN b THEN c END",
    "NOT a AND b OR c IS TRUE",
    "a.b['a'][1]",
    "NEW.a = OLD.a",
]


@given(items, items)
def test_nothing_raises_whatever_an_item_holds(new: Item | None, old: Item | None) -> None:
    for text in TOTAL:
        found = value(text).of(new, old)
        scalar.key_text(found)
        assert scalar.from_attribute(scalar.to_attribute(found)) == found or found in ("", [], {}) or found is None


DELIVERY: Item = {
    "text": {"S": "axb"},
    "at": {"S": "2026-03-04T05:06:07+01:00"},
    "none": {"S": "soon"},
    "doc": {"M": {"a": {"M": {"b": {"S": "x"}, "n": {"N": "5"}}}, "list": {"L": [{"M": {"s": {"S": "q"}}}]}}},
}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("doc -> 'a' ->> 'b' = 'x'", True),
        ("json_extract(doc, '$.a.n') = 5 AND doc ->> '$.a.n' = '5'", True),
        ("json_extract_string(doc, '$.list[0].s') = 'q'", True),
        ("doc ->> 'missing' IS NULL", True),
        ("regexp_matches(text, 'x.$')", True),
        ("text ~ '^x' OR text SIMILAR TO 'x'", False),
        ("text SIMILAR TO 'a.b' AND regexp_matches(text, 'XB', 'i') AND NOT text ~ 'XB'", True),
        ("missing ~ 'x' IS NULL", True),
        ("CAST(at AS TIMESTAMP) > TIMESTAMP '2026-01-01'", True),
        ("at > TIMESTAMP '2026-03-04 04:06:06' AND at <= TIMESTAMP '2026-03-04 04:06:07'", True),
        ("CAST(at AS DATE) = '2026-03-04' AND CAST(at AS DATE) IN ('2026-03-05', '2026-03-04')", True),
        ("at BETWEEN DATE '2026-03-01' AND DATE '2026-04-01'", True),
        ("CAST(at AS DATE) IS NOT DISTINCT FROM DATE '2026-03-04'", True),
        ("EXTRACT(YEAR FROM at) = 2026 AND EXTRACT(HOUR FROM at) = 4 AND EXTRACT(ISODOW FROM at) = 3", True),
        ("none > DATE '2026-01-01' OR NOT none > DATE '2026-01-01'", False),
        ("CAST(CAST(at AS DATE) AS TEXT) = '2026-03-04'", True),
        ("CAST(CAST(at AS TIMESTAMP) AS TEXT) = '2026-03-04 04:06:07'", True),
    ],
)
def test_times_regular_expressions_and_json_paths(text: str, wanted: bool) -> None:
    assert condition(text).true(DELIVERY, None) is wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a ~ '('", "cannot be used, missing"),
        ("a ~ b", "written as a text in quotes"),
        ("a ~ '" + "x" * 2_000 + "'", "at most 1024 characters"),
        ("a ~ '(a{1000}){1000}'", "cannot be used"),
        ("regexp_matches(a, 'x', 'g')", "the option of a regular expression"),
        ("t > TIMESTAMP 'soon'", "'soon' is not a timestamp"),
        ("CAST(t AS DATE) = 'soon'", "is not a timestamp"),
        ("CAST(t AS DATE) = 5", "their types differ"),
        ("EXTRACT(foo FROM t) = 1", "no part 'FOO'"),
        ("doc -> '$..a' = 1", "names and positions alone"),
    ],
)
def test_refused_times_regular_expressions_and_json_paths(text: str, why: str) -> None:
    with pytest.raises(ExpressionError, match=why):
        condition(text)

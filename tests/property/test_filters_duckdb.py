"""Compiled expressions agree with DuckDB: TRUE, FALSE and NULL alike, on generated expressions and rows.

An expression is made in two spellings at once, ours and DuckDB's. They differ in how a row is named (`NEW.x` is the
column `new_x` there) and where DuckDB raises an error and we say NULL: there it is spelt with TRY. Each expression is
evaluated by DuckDB over all rows in one query. Values are small, so that DuckDB's fixed widths never overflow; exact
numbers beyond them are in the unit tests.
"""

from __future__ import annotations

import functools
import random
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import hypothesis.strategies as st
from hypothesis import example, given, settings

from tailrace import scalar
from tailrace.tables.value import Item, from_plain
from tests.support.soak import examples

ROWS = 120
COLUMNS = {
    "b": "BOOLEAN",
    "c": "BOOLEAN",
    "i": "BIGINT",
    "j": "BIGINT",
    "d": "DECIMAL",
    "e": "DECIMAL",
    "s": "TEXT",
    "t": "TEXT",
}
DUCKDB_TYPES = {"BOOLEAN": "BOOLEAN", "BIGINT": "BIGINT", "DECIMAL": "DECIMAL(12,3)", "TEXT": "VARCHAR"}
WHOLE = [0, 1, -1, 2, 3, -3, 7, 42, 100]
DECIMALS = [Decimal(text) for text in ("0", "1", "-1", "2.5", "-2.5", "0.125", "42", "3.001", "7.5", "-0.001")]
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "aB",
    "AB%",
    "a_b",
    "é",
    "Éa",
    "ß",
    " a ",
    "b!%",
    "1",
    "-2",
    "2.5",
    " 42 ",
    "true",
    "No",
    "日本",
]
PATTERNS = [
    "",
    "%",
    "_",
    "a_%b",
    "a%b%b",
    "a%",
    "%b",
    "%a%",
    "a_b",
    "_b%",
    "%!%",
    "%_%_%",
    "é%",
    "%é",
    "A%",
    "%a%b%",
    "ab",
    "日_",
]


class Spelt(NamedTuple):
    """An expression as we write it and as DuckDB does."""

    ours: str
    duckdb: str

    def __str__(self) -> str:
        return self.ours


def spell(form: str, *parts: Spelt, duckdb_form: str | None = None) -> Spelt:
    """The form with parts in place of its {}."""
    return Spelt(
        form.format(*(part.ours for part in parts)), (duckdb_form or form).format(*(part.duckdb for part in parts))
    )


def word(text: str) -> Spelt:
    return Spelt(text, text)


def quoted(text: str) -> Spelt:
    return word("'" + text.replace("'", "''") + "'")


# -- rows


def contents(source: random.Random, kind: str) -> Any:
    if kind == "BOOLEAN":
        return source.random() < 0.5
    return source.choice({"BIGINT": WHOLE, "DECIMAL": DECIMALS, "TEXT": TEXTS}[kind])


@functools.cache
def rows() -> list[tuple[dict[str, Any], dict[str, Any], Item, Item]]:
    """Plain rows, new and old, and the items they are: NULL is sometimes a NULL and sometimes missing."""
    source = random.Random(4)
    found = []
    for number in range(ROWS):
        pair = []
        for _ in range(2):
            share = 1.0 if number == 0 else 0.3
            plain = {
                name: None if source.random() < share else contents(source, kind) for name, kind in COLUMNS.items()
            }
            item = {
                name: from_plain(content)
                for name, content in plain.items()
                if content is not None or source.random() < 0.5
            }
            pair.append((plain, item))
        (new, new_item), (old, old_item) = pair
        found.append((new, old, new_item, old_item))
    return found


@functools.cache
def connection() -> duckdb.DuckDBPyConnection:
    connected = duckdb.connect(config={"threads": 1})
    declared = [f"{side}_{name} {DUCKDB_TYPES[kind]}" for side in ("new", "old") for name, kind in COLUMNS.items()]
    connected.execute(f"CREATE TABLE pairs (number INTEGER, {', '.join(declared)})")
    places = ", ".join("?" * (1 + len(declared)))
    for number, (new, old, _, _) in enumerate(rows()):
        connected.execute(f"INSERT INTO pairs VALUES ({places})", [number, *new.values(), *old.values()])
    return connected


def duckdb_values(text: str) -> list[Any]:
    return [found for (found,) in connection().execute(f"SELECT {text} FROM pairs ORDER BY number").fetchall()]


# -- expressions


def column(*kinds: str) -> st.SearchStrategy[Spelt]:
    names = [name for name, kind in COLUMNS.items() if kind in kinds]
    forms = [("{0}", "new_{0}"), ("NEW.{0}", "new_{0}"), ("OLD.{0}", "old_{0}"), ('"{0}"', "new_{0}")]
    return st.sampled_from([Spelt(ours.format(name), theirs.format(name)) for name in names for ours, theirs in forms])


NULL = word("NULL")
whole_leaf = column("BIGINT") | st.sampled_from([word(str(number)) for number in (0, 1, 2, 3, 42, -1)])
number_leaf = whole_leaf | column("DECIMAL") | st.sampled_from([word(text) for text in ("2.5", "0.5", "-2.50", "1.0")])
text_leaf = column("TEXT") | st.sampled_from(TEXTS).map(quoted)
boolean_leaf = column("BOOLEAN") | st.sampled_from([word("TRUE"), word("FALSE")])


def forms(*choices: str, parts: list[st.SearchStrategy[Spelt]]) -> st.SearchStrategy[Spelt]:
    return st.builds(lambda form, filled: spell(form, *filled), st.sampled_from(choices), st.tuples(*parts))


def numbers_over(number: st.SearchStrategy[Spelt]) -> st.SearchStrategy[Spelt]:
    return st.one_of(
        forms(
            "({} + {})", "({} - {})", "GREATEST({}, {})", "LEAST({}, {})", "COALESCE({}, {})", parts=[number, number]
        ),
        forms("({} * {})", parts=[number_leaf, number_leaf]),
        forms("NULLIF({}, {})", parts=[number, number_leaf]),
        forms("(- {})", "ABS({})", "ROUND({})", "CAST({} AS BIGINT)", parts=[number]),
        # Of a BIGINT, CEIL and FLOOR are doubles there.
        forms("ROUND({}, 1)", "CEIL({})", "FLOOR({})", "CAST({} AS DECIMAL(12, 1))", parts=[column("DECIMAL")]),
        st.builds(lambda a, b: spell("({} % {})", a, b, duckdb_form="TRY(({}) % ({}))"), number_leaf, number_leaf),
        st.builds(lambda a, b: spell("({} // {})", a, b, duckdb_form="TRY(({}) // ({}))"), whole_leaf, whole_leaf),
        forms("LENGTH({})", parts=[texts]),
        st.builds(lambda a: spell("CAST({} AS BIGINT)", a, duckdb_form="TRY_CAST({} AS BIGINT)"), text_leaf),
        forms("CAST({} AS BIGINT)", parts=[column("BOOLEAN")]),
        forms("CASE WHEN {} THEN {} ELSE {} END", parts=[booleans, number, number]),
        forms("CASE {} WHEN {} THEN {} WHEN {} THEN {} END", parts=[number_leaf, number_leaf, number, number, number]),
    )


def texts_over(text: st.SearchStrategy[Spelt]) -> st.SearchStrategy[Spelt]:
    return st.one_of(
        forms(
            "({} || {})", "CONCAT({}, {})", "COALESCE({}, {})", "GREATEST({}, {})", "LEAST({}, {})", parts=[text, text]
        ),
        forms("NULLIF({}, {})", parts=[text, text_leaf]),
        forms("LOWER({})", "UPPER({})", "TRIM({})", "LTRIM({})", "RTRIM({})", "TRIM(BOTH 'a' FROM {})", parts=[text]),
        forms("({} || {})", parts=[text, whole_leaf]),
        forms("CAST({} AS VARCHAR)", parts=[whole_leaf | column("BOOLEAN")]),
        forms("REPLACE({}, {}, 'xy')", parts=[text, text_leaf]),
        st.builds(
            lambda a, start, count: spell(f"SUBSTR({{}}, {start}, {count})", a),
            text,
            st.integers(-4, 5),
            st.integers(-3, 4),
        ),
        st.builds(lambda a, start: spell(f"SUBSTR({{}}, {start})", a), text, st.integers(-4, 5)),
        forms("CASE WHEN {} THEN {} ELSE {} END", "IF({}, {}, {})", parts=[booleans, text, text]),
    )


OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">="]
COMPARED = [
    *(f"({{}} {operator} {{}})" for operator in OPERATORS),
    "({} IS DISTINCT FROM {})",
    "({} IS NOT DISTINCT FROM {})",
]
AMONG = ["({} IN ({}, {}))", "({} NOT IN ({}, {}))", "({} IN ({}, NULL, {}))", "({} NOT IN ({}, {}, NULL))"]
RANGES = ["({} BETWEEN {} AND {})", "({} NOT BETWEEN {} AND {})"]


def booleans_over(boolean: st.SearchStrategy[Spelt]) -> st.SearchStrategy[Spelt]:
    patterns = st.sampled_from(PATTERNS).map(quoted) | text_leaf
    return st.one_of(
        forms("({} AND {})", "({} OR {})", parts=[boolean, boolean]),
        forms("({} AND {} AND {})", "({} OR {} OR {})", parts=[boolean, boolean, boolean]),
        forms("(NOT {})", "({} IS TRUE)", "({} IS NOT TRUE)", "({} IS FALSE)", "({} IS NOT FALSE)", parts=[boolean]),
        forms("({} IS NULL)", "({} IS NOT NULL)", parts=[boolean | numbers | texts]),
        *(forms(*COMPARED, parts=[kind, kind]) for kind in (numbers, texts, boolean)),
        *(forms(*COMPARED, parts=[kind, st.just(NULL)]) for kind in (numbers, texts, boolean)),
        *(
            forms(*AMONG, *RANGES, parts=[kind, kind, kind])
            for kind in (numbers, number_leaf, texts, text_leaf, boolean)
        ),
        forms(
            *(f"(({{}} / {by}) {operator} {{}})" for by in (2, 4) for operator in OPERATORS),
            parts=[column("BIGINT"), number_leaf],
        ),
        forms("({} LIKE {})", "({} NOT LIKE {})", "({} ILIKE {})", "({} NOT ILIKE {})", parts=[texts, patterns]),
        forms("({} LIKE '%!%%' ESCAPE '!')", "({} LIKE 'a!_b' ESCAPE '!')", parts=[texts]),
        forms("STARTS_WITH({}, {})", "CONTAINS({}, {})", "ENDS_WITH({}, {})", parts=[texts, text_leaf]),
        st.builds(lambda a: spell("CAST({} AS BOOLEAN)", a, duckdb_form="TRY_CAST({} AS BOOLEAN)"), text_leaf),
        forms("CAST({} AS BOOLEAN)", parts=[column("BIGINT")]),
        forms("CASE WHEN {} THEN {} ELSE {} END", "COALESCE({}, {}, {})", parts=[boolean, boolean, boolean]),
        forms("CASE {} WHEN {} THEN {} END", parts=[texts, text_leaf, boolean]),
        forms("({} = NULL)", "(NULL AND {})", "(NULL OR {})", "COALESCE(NULL, {})", parts=[boolean]),
    )


numbers: st.SearchStrategy[Spelt] = st.deferred(lambda: number_leaf | numbers_over(number_leaf))
texts: st.SearchStrategy[Spelt] = st.deferred(lambda: text_leaf | texts_over(text_leaf))
booleans: st.SearchStrategy[Spelt] = st.deferred(lambda: boolean_leaf | booleans_over(boolean_leaf))
conditions = st.recursive(booleans, booleans_over, max_leaves=8)

flat_numbers = st.lists(number_leaf, min_size=1, max_size=3).flatmap(
    lambda leaves: st.lists(st.sampled_from([" + ", " - ", " * "]), min_size=len(leaves), max_size=len(leaves)).map(
        lambda signs: functools.reduce(
            lambda made, more: Spelt(made.ours + more[0] + more[1].ours, made.duckdb + more[0] + more[1].duckdb),
            zip(signs, leaves[1:], strict=False),
            leaves[0],
        )
    )
)
flat_comparisons = st.one_of(
    forms(*(f"{{}} {operator} {{}}" for operator in OPERATORS), parts=[flat_numbers, flat_numbers]),
    forms("{} BETWEEN {} AND {}", "{} NOT BETWEEN {} AND {}", "{} IN ({}, {})", parts=[flat_numbers] * 3),
    forms("{} IS NULL", "{} IS NOT NULL", parts=[flat_numbers | column("TEXT")]),
    forms("{} || {} = {}", "{} || {} LIKE {}", "{} || {} NOT LIKE {}", parts=[text_leaf] * 3),
    forms("{}", "{} IS NOT TRUE", "{} IS FALSE", parts=[boolean_leaf]),
)
flat_conditions = st.lists(
    st.tuples(st.sampled_from([" AND ", " OR "]), st.sampled_from(["", "NOT "]), flat_comparisons),
    min_size=1,
    max_size=5,
).map(
    lambda parts: Spelt(
        "".join((joint if at else "") + negated + part.ours for at, (joint, negated, part) in enumerate(parts)),
        "".join((joint if at else "") + negated + part.duckdb for at, (joint, negated, part) in enumerate(parts)),
    )
)


# -- agreement


def check_condition(spelt: Spelt) -> None:
    expected = duckdb_values(spelt.duckdb)
    columns = list(COLUMNS.items())
    three_valued = scalar.value(spelt.ours, columns=columns).of
    true = scalar.condition(spelt.ours, columns=columns).true
    false = scalar.condition(f"NOT ({spelt.ours})").true  # without declared columns, it means the same
    for wanted, (new, old, new_item, old_item) in zip(expected, rows(), strict=True):
        found = three_valued(new_item, old_item)
        assert found is wanted, f"{spelt.ours} is {found}, DuckDB says {wanted}: new {new}, old {old}"
        assert true(new_item, old_item) is (wanted is True), (spelt.ours, new, old)
        assert false(new_item, old_item) is (wanted is False), (spelt.ours, new, old)


@given(conditions)
@example(word("TRUE"))
@example(Spelt("b = true AND i = 42", "new_b = true AND new_i = 42"))
@example(Spelt("NEW.d IS DISTINCT FROM OLD.d", "new_d IS DISTINCT FROM old_d"))
@example(Spelt("NOT (b AND NULL)", "NOT (new_b AND NULL)"))
@settings(max_examples=examples(500))
def test_conditions_agree_with_duckdb(spelt: Spelt) -> None:
    check_condition(spelt)


@given(flat_conditions)
@settings(max_examples=examples(150))
def test_operators_bind_as_they_do_in_duckdb(spelt: Spelt) -> None:
    check_condition(spelt)


@given(st.one_of(numbers_over(numbers), texts_over(texts)))
@settings(max_examples=examples(600))
def test_values_agree_with_duckdb(spelt: Spelt) -> None:
    of = scalar.value(spelt.ours, columns=list(COLUMNS.items())).of
    for wanted, (new, old, new_item, old_item) in zip(duckdb_values(spelt.duckdb), rows(), strict=True):
        found = of(new_item, old_item)
        assert (type(found) is str) is (type(wanted) is str), (spelt.ours, found, wanted)
        assert found == wanted, f"{spelt.ours} is {found!r}, DuckDB says {wanted!r}: new {new}, old {old}"


def test_substrings_agree_with_duckdb() -> None:
    for start in range(-6, 7):
        for count in (None, *range(-6, 7)):
            text = f"SUBSTR({{}}, {start})" if count is None else f"SUBSTR({{}}, {start}, {count})"
            of = scalar.value(text.format("s")).of
            found = [of(item, None) for _, _, item, _ in rows()]
            assert found == duckdb_values(text.format("new_s")), text


def test_patterns_agree_with_duckdb() -> None:
    for pattern in [*PATTERNS, *TEXTS]:
        for form in ("{} LIKE {}", "{} NOT LIKE {}", "{} ILIKE {}", "{} LIKE {} ESCAPE '!'"):
            spelt = spell(form, Spelt("s", "new_s"), quoted(pattern))
            check_condition(spelt)

"""Expressions that nobody should write: rows of tokens, and syntax trees of every node that sqlglot knows.

Whatever comes, what comes out is a compiled expression or one of our own errors, that says where; never an exception of
Python's or of sqlglot's. A condition that compiles can be run. `TAILRACE_SOAK=1` tries many more.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from tailrace.errors import Error
from tailrace.jobs import view_sql
from tailrace.scalar import expression
from tailrace.sql import select
from tests.support.soak import examples

pytestmark = pytest.mark.fuzz

ours = settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
COLUMNS = (("id", "TEXT"), ("a", "BIGINT"), ("b", "JSON"), ("c", "BLOB"), ("d", "BOOLEAN"), ("A", "TEXT"))
ITEM: dict[str, Any] = {
    "id": {"S": "x"}, "a": {"N": "1"}, "b": {"M": {"c": {"L": [{"N": "1.5"}]}}}, "c": {"B": b"\0"}, "d": {"BOOL": True},
}  # fmt: skip
WORDS = [
    "a",
    "b",
    "id",
    "c",
    "d",
    "NEW",
    "OLD",
    "NULL",
    "TRUE",
    "FALSE",
    "AND",
    "OR",
    "NOT",
    "IS",
    "IN",
    "BETWEEN",
    "LIKE",
    "ILIKE",
    "ESCAPE",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "CAST",
    "TRY_CAST",
    "AS",
    "INTERVAL",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "ZONE",
    "AT",
    "COLLATE",
    "EXISTS",
    "ANY",
    "ALL",
    "DISTINCT",
    "FROM",
    "SELECT",
    "ISNULL",
    "NOTNULL",
    "OVER",
    "FILTER",
    "WITHIN",
    "BIGINT",
    "TEXT",
    "DECIMAL",
    "STRUCT",
    "MAP",
    "ARRAY",
    "coalesce",
    "lower",
    "substring",
    "position",
    "extract",
    "trim",
    "json_extract",
    "list_value",
    "unnest",
    "count",
    "sum",
    "lambda",
    "GLOB",
    "SIMILAR",
    "TO",
    "RESPECT",
    "NULLS",
    "ORDER",
    "BY",
    "PARTITION",
    "ROWS",
    "x'00'",
    "X'0'",
    "e'\\n'",
    "$$a$$",
    "$1",
    "$999999999999",
    "?",
    "?1",
    ":a",
    "@a",
    "'a'",
    "'..'",
    "'$.'",
    "'$[*]'",
    "'$..a'",
    "''",
    '"b"',
    "1",
    "1.5",
    ".5",
    "1e5",
    "1e",
    "0x1f",
    "1_000",
    "²",
    "١",
    "99999999999999999999999999999999999999999",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    "..",
    ":",
    "::",
    ";",
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "^",
    "||",
    "&&",
    "->",
    "->>",
    "=>",
    "=",
    "==",
    "!=",
    "<>",
    "<",
    "<=",
    ">",
    ">=",
    "<=>",
    "~",
    "!~",
    "~~",
    "!",
    "@>",
    "<@",
    "#",
    "&",
    "|",
    "<<",
    ">>",
    "\\",
    "/*",
    "*/",
    "--",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join)


def taken(text: str) -> None:
    """Read a text in every way. What the compiler stumbles over is refused too, but says so in the log: of texts, there
    is nothing of that kind."""
    for read in (expression.condition, expression.value, expression.exact_value):
        for columns in (COLUMNS, None):
            with contextlib.suppress(Error):
                compiled = read(text, columns=columns, line=2, column=3)
                run = compiled.true if isinstance(compiled, expression.Condition) else compiled.of
                run(ITEM, None, (1,) * compiled.parameters)


@ours
@given(text=TEXTS | st.text(max_size=30))
@example(text="b -> '..'")
@example(text="b ->> '$..c' = 1")
@example(text="x'0'")
@example(text="1" + "_1" * 5_000)
@example(text="$" + "1" * 5_000)
@example(text="a" + " AT TIME ZONE 'UTC'" * 500)
@example(text="²")
def test_texts_of_expressions(caplog: pytest.LogCaptureFixture, text: str) -> None:
    taken(text)
    assert not caplog.records, caplog.text


@ours
@given(text=TEXTS)
@example(text="b -> '..'")
@example(text="a" + " AT TIME ZONE 'UTC'" * 500)
def test_texts_within_statements(text: str) -> None:
    for statement in (f"SELECT * FROM t WHERE {text}", f"SELECT {text} FROM t", text):
        with contextlib.suppress(Error):
            select._SelectQuery(statement, [1], 1, 1)
    for statement in (
        f"SELECT id, count(*) FROM t WHERE {text} GROUP BY id",
        f"SELECT id, sum({text}) FROM t GROUP BY id",
    ):
        with contextlib.suppress(Error):
            view_sql.renamed(statement, dict.fromkeys(view_sql.tables(statement), "other"))


NODES = sorted(
    (
        each
        for each in vars(exp).values()
        if isinstance(each, type) and issubclass(each, exp.Expr) and each is not exp.Expr
    ),
    key=lambda each: each.__name__,
)


def tree(chance: random.Random, depth: int = 0) -> Any:
    """Any node with any arguments, most of them wrong."""
    if depth > 3 or chance.random() < 0.25:
        return chance.choice(
            [
                exp.Literal.number(chance.choice(["1", "1.5", "²", "9" * 5_000, "x", "1e5", ""])),
                exp.Literal.string(chance.choice(["a", "..", "\ud800", "", "$.a"])),
                exp.column(chance.choice(["a", "b", "id", "none"]), table=chance.choice([None, "new", "old"])),
                exp.Placeholder(this=chance.choice([None, "1", "9" * 5_000, "a"])),
                exp.Null(),
                exp.true(),
            ]
        )
    kind = chance.choice(NODES)
    held: dict[str, Any] = {}
    for name in kind.arg_types:
        if chance.random() < 0.7:
            made = tree(chance, depth + 1)
            held[name] = chance.choice([made, [made], [made, tree(chance, depth + 1)], "a", True, None])
    try:
        return kind(**held)
    except (NotImplementedError, AttributeError):  # no such node can be
        return exp.Null()


@ours
@given(seed=st.integers(0, 2**32))
def test_trees(caplog: pytest.LogCaptureFixture, seed: int) -> None:
    # Most of them are no trees that a parser makes, and what is logged of them could not even be printed.
    caplog.set_level("CRITICAL", "tailrace.scalar.expression")
    caplog.set_level("CRITICAL", "sqlglot")
    chance = random.Random(seed)
    for _ in range(10):
        for compile_ in (expression.compile_condition, expression.compile_value):
            with contextlib.suppress(Error):
                made = tree(chance)
                compiled = compile_(made, columns=COLUMNS)
                run = compiled.true if isinstance(compiled, expression.Condition) else compiled.of
                run(ITEM, None, (1,) * min(compiled.parameters, 10))

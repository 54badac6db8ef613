"""PartiQL that nobody should write: rows of tokens, and statements with something changed.

Whatever comes, what comes out is a statement or an `Invalid`, never an exception of Python's; a statement can then be
bound, planned and tested against an item, with the same outcome. The time is linear in the text. `TAILRACE_SOAK=1`
tries many more.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.errors import Invalid
from tailrace.tables import partiql
from tailrace.tables.definition import Attribute, Definition, IndexDefinition, Projection
from tailrace.tables.partiql_commands import ItemWhere
from tailrace.tables.partiql_syntax import statement
from tailrace.tables.partiql_tree import PartiQLInsert, PartiQLSelect, PartiQLUpdate
from tests.support.growth import check_growth
from tests.support.soak import examples

pytestmark = pytest.mark.fuzz

ours = settings(max_examples=examples(1_000), deadline=None)
DEFINITION = Definition(
    name="tab",
    space=1,
    uuid="",
    created_ms=0,
    attributes=(Attribute("pk", "S"), Attribute("sk", "N"), Attribute("g", "S")),
    hash="pk",
    range="sk",
    indexes=(IndexDefinition("idx", 2, False, ("g",), projection=Projection("KEYS_ONLY")),),
)
ITEM: dict[str, Any] = {
    "pk": {"S": "x"}, "sk": {"N": "1"}, "a": {"N": "1"}, "b": {"M": {"c": {"L": [{"N": "1.5"}]}}}, "s": {"SS": ["x"]},
}  # fmt: skip
TOKENS = [
    "SELECT", "FROM", "WHERE", "INSERT", "INTO", "VALUE", "UPDATE", "SET", "REMOVE", "DELETE", "RETURNING", "ALL",
    "OLD", "NEW", "MODIFIED", "EXISTS", "ORDER", "BY", "ASC", "DESC", "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL",
    "MISSING", "TRUE", "false", "LIMIT", "tab", '"tab"', "idx", "pk", "sk", "g", "a", "b", "s", '"a b"', "'x'",
    "'it''s'", "1", "-1", "1e3", "1e999", "0.5", "?", "*", "(", ")", "[", "]", "{", "}", "<<", ">>", ",", ".", ":", ";",
    "=", "<>", "!=", "<", "<=", ">", ">=", "+", "-", "size", "begins_with", "contains", "attribute_type",
    "attribute_exists",
    "list_append", "set_add", "set_delete", "--", "/*", "*/", "'", '"', "`", "#", "\n", "\0", "é",
]  # fmt: skip
GOOD = [
    "SELECT * FROM tab WHERE pk = 'x' AND sk = 1",
    "SELECT pk, b.c[0] FROM tab.idx WHERE g IN ['x', 'y'] AND pk <> 'y' ORDER BY g DESC",
    "SELECT * FROM tab WHERE (pk = 'x' AND sk > 1) OR (pk = 'y' AND NOT sk BETWEEN 1 AND 2) OR pk = 'z'",
    "SELECT * FROM tab WHERE size(s) > 0 AND (begins_with(pk, 'x') OR a IS MISSING) AND attribute_exists(b) = true",
    "INSERT INTO tab VALUE {'pk': 'x', 'sk': 1, 'm': {'a': [1, true, null, <<'x', 'y'>>]}, 'p': ?}",
    "UPDATE tab SET a = a + 1, b.c = list_append(b.c, [1]) SET s = set_add(s, <<'y'>>) REMOVE q "
    "WHERE pk = 'x' AND sk = 1 AND a = ? RETURNING MODIFIED NEW *",
    "DELETE FROM tab WHERE pk = 'x' AND sk = 1 AND contains(s, 'x') RETURNING ALL OLD *",
    "FROM tab WHERE pk = 'x' AND sk = 1 SET a = 2",
    "EXISTS(SELECT * FROM tab WHERE pk = 'x' AND sk = 1 AND a IS NOT NULL)",
]


def use(text: str) -> bool:
    """Parse, bind, plan and evaluate; whether the statement is valid."""
    with contextlib.suppress(Invalid):
        found = statement(text)
        given = partiql.bound(found, [{"N": "1"}] * len(found.values.parameters))
        if isinstance(found, PartiQLSelect):
            plan = partiql.plan(found, given, DEFINITION)
            for part in plan.parts or ():
                assert part.filter is None or part.filter.test(ITEM) in (True, False)
            if plan.projection is not None:
                plan.projection.project(ITEM)
        elif isinstance(found, PartiQLInsert):
            partiql.item(found, given)
        else:
            if isinstance(found, PartiQLUpdate):
                partiql.update(found, given).apply(ITEM, {"pk": {"S": "x"}, "sk": {"N": "1"}})
            _, condition = ItemWhere(found, given).item(DEFINITION)
            assert condition is None or condition.test(ITEM) in (True, False)
        return True
    return False


@pytest.mark.parametrize("text", GOOD)
def test_good_statements_are_good(text: str) -> None:
    assert use(text)


@ours
@given(st.lists(st.sampled_from(TOKENS), max_size=30), st.sampled_from(["", " "]))
@example(["SELECT", "*", "FROM", "tab", "WHERE", *["("] * 30], " ")
def test_rows_of_tokens(tokens: list[str], between: str) -> None:
    use(between.join(tokens))


@ours
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    use(text)
    use(f"SELECT * FROM tab WHERE {text}")


@ours
@given(st.sampled_from(GOOD), st.integers(0, 2**32))
def test_good_statements_with_something_changed(text: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        cut = chance.randrange(len(text) + 1)
        text = text[:cut] + chance.choice(TOKENS) + text[cut + chance.randrange(4) :]
    use(text)


LONG: dict[str, Callable[[int], str]] = {
    "blanks": lambda n: "SELECT * FROM tab" + " " * n + "\0",
    "comments": lambda n: "SELECT * FROM tab " + "/**/ -- x\n" * (n // 10) + "\0",
    "an open comment": lambda n: "SELECT * FROM tab " + "/*" * (n // 2),
    "quotation marks": lambda n: "SELECT * FROM tab WHERE a = '" + "''" * (n // 2),
    "signs": lambda n: "SELECT * FROM tab WHERE a = " + "- " * (n // 2) + "1",
    "digits": lambda n: "SELECT * FROM tab WHERE a = " + "1" * n,
    "an exponent": lambda n: "SELECT * FROM tab WHERE a = 1e" + "9" * n,
    "a path": lambda n: "SELECT a" + ".a" * (n // 2) + " FROM tab",
    "columns": lambda n: "SELECT " + ",".join(f"a{at}" for at in range(n // 8)) + " FROM tab",
    "parentheses": lambda n: "SELECT * FROM tab WHERE " + "(" * n,
    "closed parentheses": lambda n: "SELECT * FROM tab WHERE " + "(" * 60 + "a = 1" + ")" * n,
    "NOT": lambda n: "SELECT * FROM tab WHERE " + "NOT " * (n // 4) + "a = 1",
    "OR": lambda n: "SELECT * FROM tab WHERE " + " OR ".join(["a = 1"] * (n // 9)),
    "IN": lambda n: "SELECT * FROM tab WHERE pk IN [" + "'x'," * (n // 4) + "'x']",
    "a list": lambda n: "INSERT INTO tab VALUE {'a': [" + "1," * (n // 2) + "1]}",
    "nested lists": lambda n: "INSERT INTO tab VALUE {'a': " + "[" * n,
    "a map": lambda n: "INSERT INTO tab VALUE {'a': {" + ",".join(f"'{at}':1" for at in range(n // 8)) + "}}",
    "a bag": lambda n: "INSERT INTO tab VALUE {'a': <<" + ",".join(map(str, range(n // 5))) + ">>}",
    "SET": lambda n: "UPDATE tab " + "SET a = 1 " * (n // 10) + "WHERE pk = 'x'",
    "list_append": lambda n: "UPDATE tab SET a = " + "list_append(" * (n // 12),
    "lines": lambda n: "SELECT *\n" * (n // 9),
}


@pytest.mark.parametrize("what", LONG)
def test_time_is_linear(what: str) -> None:
    """Longer than a request may be: what is not linear shows there."""

    def make(n: int) -> Callable[[], object]:
        text = LONG[what](n)
        return lambda: use(text)

    check_growth(what, make, first=8_192, last=131_072)

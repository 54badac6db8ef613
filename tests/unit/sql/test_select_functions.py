"""Which functions a SELECT may call, however they are written, and that those it may call stay within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sqlglot.dialects.duckdb import DuckDB

import tailrace
from tailrace import Database
from tailrace.errors import Invalid, NotFound, Unavailable
from tailrace.sql import functions
from tailrace.sql import select as selecting
from tailrace.sql.error import SqlError
from tailrace.sql.select import select
from tailrace.sql.sources import ReadBudget
from tailrace.topics.commands import CreateTopic

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        db.create_table("orders", partition_key="id", stream="NEW_IMAGE").put({"id": "o-1", "n": 5})
        db.execute(CreateTopic("app.news"))
        db.sql("PUBLISH TO app.news VALUES ('a'), ('b')")
        yield db


@pytest.fixture
def ask(db: Database) -> Ask:
    return lambda text, *params: select(lambda request: db.execute(request), text, params).rows


@pytest.mark.parametrize(
    ("expression", "name", "column"),
    [
        ("levenshtein(id, id)", "levenshtein", 8), ("id.levenshtein(id)", "levenshtein", 11),
        ("LEVENSHTEIN(id, id)", "levenshtein", 8), ("'é' || hamming(id, id)", "hamming", 15),
        ('"levenshtein"(id, id)', "levenshtein", 8), ("main.levenshtein(id, id)", "levenshtein", 13),
        ("system.main.levenshtein(id, id)", "levenshtein", 20), ("damerau_levenshtein(id, id)", "damerau", 8),
        ("jaro_similarity(id, id)", "jaro_similarity", 8), ("sleep_ms(600000)", "sleep_ms", 8),
        ("pg_sleep(600)", "pg_sleep", 8), ("bitstring('1', 2000000000)", "bitstring", 8),
        ("repeat('x', 9)", "repeat", 8),
        ("lpad('x', 9, 'y')", "lpad", 8), ("range(9)", "range", 8), ("list_resize([1], 9)", "list_resize", 8),
        ("[x for x in [1]]", "list_apply", 8), ("list_transform([1], lambda x: x)", "list_transform", 8),
        ("list_filter([1], x -> sleep_ms(1) > 0)", "sleep_ms", 30), ("getenv('HOME')", "getenv", 8),
        ("current_setting('threads')", "current_setting", 8), ("write_log('x')", "write_log", 8),
        ("nextval('x')", "nextval", 8), ("version()", "version", 8), ("no_such_function(1)", "no_such_function", 8),
        ("sum(n) FILTER (hamming(id, id) > 1)", "hamming", 23), ("list(id ORDER BY hamming(id, id))", "hamming", 25),
        ("sum(hamming(id, id)) OVER ()", "hamming", 12), ("lag(n) OVER (ORDER BY hamming(id, id))", "hamming", 30),
        ("TRY(sleep_ms(1))", "sleep_ms", 12), ("CASE WHEN sleep_ms(1) THEN 1 END", "sleep_ms", 18),
        ("(SELECT max(hamming(id, id)) FROM orders)", "hamming", 20), ("'1'::BIGNUM", "BIGNUM", 13),
    ],
)  # fmt: skip
def test_what_is_not_listed_is_refused_by_name_and_place(ask: Ask, expression: str, name: str, column: int) -> None:
    with pytest.raises(SqlError, match=name) as caught:
        ask(f"SELECT {expression} AS it FROM orders")
    assert (caught.value.code, caught.value.line, caught.value.column) == ("SQL_REFUSED", 1, column)


@pytest.mark.parametrize(
    "rest", ["LIMIT sleep_ms(1)", "ORDER BY hamming(id, id)", "JOIN orders b ON sleep_ms(1) = 1", "WHERE pg_sleep(1)",
             "GROUP BY hamming(id, id)", "QUALIFY hamming(id, id) = 1", ", LATERAL (SELECT sleep_ms(1))"]
)  # fmt: skip
def test_no_clause_is_overlooked(ask: Ask, rest: str) -> None:
    with pytest.raises(SqlError, match="cannot be used") as caught:
        ask(f"SELECT 1 FROM orders a {rest}")
    assert caught.value.code == "SQL_REFUSED"


def test_what_sqlglot_lets_pass_duckdb_finds(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting._SelectQuery, "_check_nodes", lambda self: None)
    with pytest.raises(SqlError, match="sleep_ms"):
        ask("SELECT sleep_ms(1) FROM orders")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("count(*)", 1), ("upper(id)", "O-1"), ("id.upper()", "O-1"), ("id || 'x'", "o-1x"), ("id LIKE 'o%'", True),
        ("id SIMILAR TO 'o.*'", True), ("id ~ 'o'", True), ("replace(id, '-', '+')", "o+1"), ("id[1:2]", "o-"),
        ("replace(id, '-1', '')", "o"), ("regexp_replace(id, '[0-9]+', '#')", "o-#"), ("sum(n) OVER ()", 5),
        ("row_number() OVER (ORDER BY id)", 1), ("list(id)", ["o-1"]), ("len([1, 2])", 2), ("{'a': n}", {"a": 5}),
        ("string_split(id, '-')", ["o", "1"]), ("'{\"a\": 1}'->>'$.a'", "1"), ("n // 2 + n % 2 - n ** 0", 2.0),
        ("date_part('year', DATE '2024-05-01' + INTERVAL 1 YEAR)", 2025), ("coalesce(NULL, n::VARCHAR)", "5"),
        ("if(n > 1, 'y', 'n')", "y"), ("string_agg(id, ',')", "o-1"), ("strftime(DATE '2024-05-01', '%Y')", "2024"),
    ],
)  # fmt: skip
def test_what_is_listed_works(ask: Ask, expression: str, value: Any) -> None:
    assert ask(f"SELECT {expression} AS it FROM orders") == [{"it": value}]


@pytest.mark.parametrize(
    ("expression", "params"),
    [
        ("replace(id, 'o', 'oo')", ()), ("replace(id, id, '')", ()), ("replace(id, 'o', id)", ()),
        ("replace(id, 'o', 'é')", ()), ("replace(id, ?, ?)", ("o", "oo")), ("id.replace('o', 'oo')", ()),
        ("regexp_replace(id, 'o', 'ooooo')", ()), ("regexp_replace(id, 'o', id)", ()), ("id ~ id", ()),
        ("regexp_extract(id, ?)", ("o" * 201,)), ("string_split_regex(id, id)", ()),
    ],
)  # fmt: skip
def test_what_makes_much_of_little_is_bounded(ask: Ask, expression: str, params: tuple[str, ...]) -> None:
    with pytest.raises(SqlError) as caught:
        ask(f"SELECT {expression} FROM orders", *params)
    assert caught.value.code == "SQL_REFUSED"


def test_replacing_takes_parameters(ask: Ask) -> None:
    assert ask("SELECT replace(id, ?, ?) AS it FROM orders", "o-", "p") == [{"it": "p1"}]


def test_every_name_on_the_list_is_a_function_of_duckdb() -> None:
    """A name that is none is a misspelt one: what it was meant for is refused."""
    known = {row[0] for row in duckdb.connect().execute("SELECT function_name FROM duckdb_functions()").fetchall()}
    windows = set(functions._WINDOWS.split())
    parsed = {"->", "coalesce", "ifnull", "try_cast", "unnest"}  # DuckDB's parser has them, its catalog has not
    assert functions.FUNCTIONS - known - windows - parsed == set()


# -- bounds


@pytest.mark.parametrize("text", ["SELECT " + ",".join("1" * 5_000), "SELECT " + "+".join("1" * 40_000)])
def test_a_statement_of_too_many_words_is_refused(ask: Ask, text: str) -> None:
    with pytest.raises(SqlError, match="tokens"):
        ask(text)


def test_what_is_far_too_long_does_not_reach_the_parser(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuckDB, "tokenize", lambda self, text: pytest.fail("it was tokenized"))
    with pytest.raises(SqlError, match="tokens"):
        ask("SELECT " + ",".join("1" * 20_000))


def test_a_statement_ends_when_it_is_cancelled(db: Database) -> None:
    budget = ReadBudget()
    budget.halted.set()
    with pytest.raises(Unavailable) as caught:
        selecting.run(lambda request: db.execute(request), "SELECT id FROM orders", (), budget)
    assert caught.value.code == "STOPPING"


# -- names as parameters


def test_a_topic_and_a_table_of_changes_may_be_parameters(ask: Ask) -> None:
    assert ask("SELECT value FROM topic(?) WHERE value = ?", "app.news", "b") == [{"value": "b"}]
    assert ask("SELECT t.value FROM topic( $2 -- which\n) t WHERE t.value > $1", "a", "app.news") == [{"value": "b"}]
    joined = "SELECT event, n FROM changes(?) c JOIN orders o ON o.id = c.keys->>'$.id' WHERE n = ?"
    assert ask(joined, "orders", 5) == [{"event": "INSERT", "n": 5}]
    with pytest.raises(NotFound):
        ask("SELECT * FROM topic(?)", "nope")
    with pytest.raises(Invalid, match="or a parameter"):
        ask("SELECT * FROM topic(?)", 5)

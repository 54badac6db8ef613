"""SELECT: what the answer holds, how parameters are bound, and what errors say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace import Database
from tailrace.errors import Error, Invalid, TableNotFound, TooLarge, Unavailable
from tailrace.sql.error import SqlError
from tailrace.sql.result import Result
from tailrace.sql.select import run, select
from tailrace.sql.sources import ReadBudget

Ask = Callable[..., Result]


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        for number in range(5):
            orders.put({"id": f"o-{number}", "amount": number * 10, "paid": number % 2 == 0})
        messages = db.create_table("chat.messages", partition_key="room", sort_key=("at", "N"))
        for number in range(20):
            messages.put({"room": f"r{number % 2}", "at": number, "text": f"hello {number}"})
        yield db


@pytest.fixture
def ask(db: Database) -> Ask:
    return lambda text, *params: select(lambda request: db.execute(request), text, params)


def values(result: Result) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in result.rows]


# -- answers


def test_an_answer_has_columns_rows_and_their_number(ask: Ask) -> None:
    result = ask("SELECT id, amount FROM orders WHERE amount > 20 ORDER BY id")
    assert result.statement == "SELECT"
    assert [(column.name, column.type) for column in result.columns] == [("id", "VARCHAR"), ("amount", "BIGINT")]
    assert result.rows == [{"id": "o-3", "amount": 30}, {"id": "o-4", "amount": 40}]
    assert result.row_count == 2
    assert result.message == "2 rows"


def test_an_empty_answer_still_has_its_columns(ask: Ask) -> None:
    result = ask("SELECT id FROM orders WHERE amount > 1000")
    assert [column.name for column in result.columns] == ["id"]
    assert result.rows == []
    assert result.message == "0 rows"


def test_columns_of_the_same_name_get_a_number(ask: Ask) -> None:
    assert ask('SELECT 1 AS a, 2 AS a, 3 AS "A"').rows == [{"a": 1, "a_1": 2, "A_2": 3}]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("NULL", None),
        ("1.50", Decimal("1.50")),
        ("2.00", 2),
        ("sum(3)", 3),
        ("170141183460469231731687303715884105727::HUGEINT", Decimal("170141183460469231731687303715884105727")),
        ("1.5::DOUBLE", 1.5),
        ("'nan'::DOUBLE", "NaN"),
        ("'-inf'::DOUBLE", "-Infinity"),
        ("'\\x01a'::BLOB", "AWE="),
        ("TIMESTAMPTZ '2024-05-01 12:00:00+02'", "2024-05-01T10:00:00Z"),
        ("TIMESTAMPTZ '2024-05-01 12:00:00.25+00'", "2024-05-01T12:00:00.250Z"),
        ("TIMESTAMP '2024-05-01 12:00:00.123456'", "2024-05-01T12:00:00.123456"),
        ("TIMESTAMP_NS '2024-05-01 12:00:00.123456789'", "2024-05-01 12:00:00.123456789"),
        ("DATE '2024-05-01'", "2024-05-01"),
        ("DATE '99999-05-01'::VARCHAR", "99999-05-01"),
        ("TIME '12:30:00'", "12:30:00"),
        ("INTERVAL 3 DAY", "3 days"),
        ("[1, 2]", [1, 2]),
        ("[TIMESTAMPTZ '2024-05-01 00:00:00+00']", ["2024-05-01T00:00:00Z"]),
        ("{'a': 1, 'b': 1.5}", {"a": 1, "b": Decimal("1.5")}),
        ("MAP {'k': 1}", {"k": 1}),
        ("'a'::ENUM('a', 'b')", "a"),
        ("'101'::BIT", "101"),
        ("'{\"a\": 1}'::JSON->>'$.a'", "1"),
    ],
)  # fmt: skip
def test_values_are_what_json_can_hold(ask: Ask, expression: str, expected: Any) -> None:
    ((shown,),) = values(ask(f"SELECT {expression} AS it"))
    assert shown == expected
    assert type(shown) is type(expected)
    msgspec.json.Encoder(decimal_format="number").encode(shown)


def test_a_time_that_cannot_be_shown_is_reported(ask: Ask) -> None:
    with pytest.raises(Invalid, match="cast it to VARCHAR"):
        ask("SELECT DATE '99999-05-01' AS it")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("VALUES (1, 'a'), (2, 'b')", [(1, "a"), (2, "b")]),
        ("FROM orders SELECT id ORDER BY id LIMIT 1", [("o-0",)]),
        ("(SELECT 1) UNION ALL SELECT 2", [(1,), (2,)]),
        ("WITH a AS (SELECT room, count(*) AS n FROM chat.messages GROUP BY room), b AS (SELECT * FROM a) "
         "SELECT n FROM b", [(10,), (10,)]),
        ("WITH orders AS (SELECT * FROM orders WHERE paid) SELECT count(*) FROM orders", [(3,)]),
        ("WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT max(n) FROM t", [(5,)]),
        ("SELECT * FROM unnest([1, 2]) AS u", [(1,), (2,)]),
        ("SELECT o.id FROM orders o JOIN chat.messages m ON m.at = o.amount ORDER BY 1", [("o-0",), ("o-1",)]),
        ("SELECT count(*) FROM orders WHERE EXISTS (SELECT 1 FROM chat.messages WHERE at = amount)", [(2,)]),
        ("SELECT count(*) FROM orders AS a, orders AS b", [(25,)]),
        ("SELECT name FROM SYSTEM.Tables WHERE name = 'orders'", [("orders",)]),
        ("SELECT sum(amount) FROM orders; ", [(100,)]),
    ],
)  # fmt: skip
def test_queries_of_every_form_are_answered(ask: Ask, text: str, expected: list[tuple[Any, ...]]) -> None:
    assert values(ask(text)) == expected


# -- names


def test_a_dotted_name_is_one_table_and_its_last_part_is_what_it_is_called(ask: Ask) -> None:
    expected = [("hello 1", 1)]
    for text in (
        "SELECT text, at FROM chat.messages WHERE at = 1",
        "SELECT messages.text, messages.at FROM chat.messages WHERE messages.at = 1",
        "SELECT chat.messages.text, chat.messages.at FROM chat.messages WHERE chat.messages.at = 1",
        'SELECT text, at FROM "chat.messages" WHERE at = 1',
        'SELECT "m".text, m.at FROM "chat"."messages" AS m WHERE m.at = 1',
    ):
        assert values(ask(text)) == expected, text


def test_two_tables_with_the_same_last_part_are_distinguished_by_the_whole_name(db: Database, ask: Ask) -> None:
    db.create_table("mail.messages", partition_key="id").put({"id": "m", "text": "post"})
    text = """SELECT chat.messages.text AS a, mail.messages.text AS b
              FROM chat.messages, mail.messages WHERE chat.messages.at = 3"""
    assert values(ask(text)) == [("hello 3", "post")]


def test_names_that_duckdb_reserves_need_no_quotes(ask: Ask) -> None:
    result = ask(
        "SELECT at, by, c.at AS offset FROM changes('orders') c WHERE by = 'system' ORDER BY at, by LIMIT 1 OFFSET 1"
    )
    assert [column.name for column in result.columns] == ["at", "by", "offset"]
    assert result.rows[0]["by"] == "system"


def test_a_table_called_like_a_part_of_duckdb_is_ours(db: Database, ask: Ask) -> None:
    db.create_table("pg_tables", partition_key="id").put({"id": "ours"})
    db.create_table("main.sqlite_master", partition_key="id").put({"id": "ours too"})
    assert values(ask("SELECT id FROM pg_tables")) == [("ours",)]
    assert values(ask("SELECT id FROM main.sqlite_master")) == [("ours too",)]


# -- parameters


def test_parameters_are_bound_and_never_pasted(ask: Ask) -> None:
    assert values(ask("SELECT id FROM orders WHERE id = ?", "o-1")) == [("o-1",)]
    assert values(ask("SELECT id FROM orders WHERE id = ? OR 'x' = ?", "' OR 1=1 --", "y")) == []
    assert values(ask("SELECT $2 - $1 AS d, $1 AS first", 1, 10)) == [(9, 1)]
    assert values(
        ask("SELECT amount FROM orders WHERE id = $1 AND amount > $2 LIMIT $3", "o-3", Decimal("1.5"), 5)
    ) == [(30,)]


def test_a_question_mark_in_a_text_or_a_comment_is_no_parameter(ask: Ask) -> None:
    assert values(ask("SELECT '?' AS a -- ? \n, ? AS b", 1)) == [("?", 1)]


@pytest.mark.parametrize(
    ("text", "params"),
    [("SELECT ?", ()), ("SELECT 1", (1,)), ("SELECT $2", (1,)), ("SELECT $x", (1,)), ("SELECT ?, $2", (1, 2))],
)
def test_the_number_of_parameters_is_checked(ask: Ask, text: str, params: tuple[Any, ...]) -> None:
    with pytest.raises(SqlError) as caught:
        ask(text, *params)
    assert caught.value.code == "SQL_PARAMETERS"


def test_a_value_that_no_column_takes_is_refused(ask: Ask) -> None:
    with pytest.raises(Invalid):
        ask("SELECT ?", 2**130)
    with pytest.raises(Invalid):
        ask("SELECT ?", object())


# -- errors


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("SELECT id,\n  frum orders x y", 2, 15, "x"),
        ("SELECT (1", 1, 9, ")"),
        ("SELECT 'abc", 1, 1, "quote"),
        ("SELECT id\nFROM system.nope", 2, 6, "topic_offsets"),
        ("SELECT 'é',\n wrong FROM system.topics", 2, 2, "wrong"),
        ("SELECT t.wrong FROM system.topics AS t", 1, 8, "wrong"),
        ("SELECT chat.messages.at, nofunction(at)\nFROM chat.messages", 1, 26, "nofunction"),
        ("SELECT id FROM orders WHERE 'é' = 'é' AND cast('x' AS INTEGER) = 1", 1, 43, "'x'"),
        ("SELECT 1; SELECT 2", 1, 1, "more than one"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(ask: Ask, text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(SqlError) as caught:
        ask(text)
    error = caught.value
    assert (error.line, error.column) == (line, column), str(error)
    assert message in str(error)
    assert f"line {line}, column {column}" in str(error)
    assert "_tailrace" not in str(error)


def test_lines_and_columns_count_from_where_the_statement_begins(db: Database) -> None:
    for text, line, column in (("SELECT id FROM system.nope", 7, 20), ("SELECT id FROM\nsystem.nope", 8, 1)):
        with pytest.raises(SqlError) as caught:
            select(lambda request: db.execute(request), text, (), 7, 5)
        assert (caught.value.line, caught.value.column) == (line, column)


def test_an_error_of_a_source_says_where_that_is_named(ask: Ask) -> None:
    for text in ("SELECT *\nFROM nosuch", "SELECT *\nFROM changes('nosuch')"):
        with pytest.raises(TableNotFound) as caught:
            ask(text)
        assert (vars(caught.value)["line"], vars(caught.value)["column"]) == (2, 6)
    with pytest.raises(Error) as stream:
        ask("SELECT * FROM changes('chat.messages')")
    assert stream.value.code == "STREAM_NOT_FOUND"


def test_an_unknown_column_is_reported_with_the_known_ones(ask: Ask) -> None:
    with pytest.raises(SqlError) as caught:
        ask("SELECT nme FROM system.tables")
    assert caught.value.code == "UNKNOWN_COLUMN"
    assert "name" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "SELECT " + "NOT " * 20_000 + "TRUE",
     "SELECT '" + "x" * 200_000 + "'", "SELECT 1 FROM " + ", ".join(f"orders AS o{number}" for number in range(65))],
)  # fmt: skip
def test_a_statement_too_long_or_too_deep_is_refused(ask: Ask, text: str) -> None:
    with pytest.raises(SqlError):
        ask(text)


# -- bounds


def test_what_is_read_is_bounded_by_rows_and_bytes(db: Database) -> None:
    for budget in (ReadBudget(rows=19), ReadBudget(bytes_=1_000)):
        with pytest.raises(TooLarge, match="select by key") as caught:
            run(lambda request: db.execute(request), "SELECT * FROM chat.messages", (), budget)
        assert caught.value.code == "SELECT_TOO_LARGE"
    assert (
        run(lambda request: db.execute(request), "SELECT * FROM chat.messages", (), ReadBudget(rows=20)).row_count == 20
    )


def test_a_statement_that_takes_too_long_is_stopped(db: Database) -> None:
    sources = ", ".join(f"chat.messages AS m{number}" for number in range(12))
    with pytest.raises(Unavailable, match=r"longer than 0\.5 s") as caught:
        run(
            lambda request: db.execute(request),
            f"SELECT count(m1.text || m2.text) FROM {sources}",
            (),
            ReadBudget(timeout_s=0.5),
        )
    assert caught.value.code == "SELECT_TIMEOUT"


def test_an_answer_is_bounded(ask: Ask) -> None:
    with pytest.raises(TooLarge, match="use LIMIT"):
        ask("SELECT 1 FROM chat.messages a, chat.messages b, chat.messages c, chat.messages d")


def test_memory_is_bounded(ask: Ask) -> None:
    sources = ", ".join(f"chat.messages AS m{number}" for number in range(7))
    with pytest.raises((TooLarge, Unavailable)):
        ask(f"SELECT len(list(m1.text || m2.text || m3.text || m4.text)) FROM {sources}")


def test_statements_run_side_by_side_and_see_nothing_of_each_other(db: Database) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(5):
                text = f"SELECT count(*) AS n FROM orders WHERE amount >= {number * 10}"
                assert select(lambda request: db.execute(request), text).rows == [{"n": 5 - number}]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number % 5,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_all_tables_of_a_statement_are_read_in_one_view(db: Database) -> None:
    queries: list[str] = []

    def execute(query: Any) -> Any:
        queries.append(type(query).__name__)
        return db.execute(query)

    select(execute, "SELECT count(*) FROM orders a, orders b, chat.messages c")
    assert queries == ["ReadTables"]

"""From text to statements: what is read, and what an error says about what is not."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tailrace.errors import TooLarge
from tailrace.sql import lexer, parser, table_grammar, tokens
from tailrace.sql import statements as ast
from tailrace.sql.error import SqlError
from tailrace.sql.parser import parse


def one(text: str, *params: Any) -> Any:
    (statement,) = parse(text, params)
    return statement


def refused(text: str, *params: Any) -> SqlError:
    with pytest.raises(SqlError) as caught:
        parse(text, params)
    return caught.value


# -- lexing


def test_words_texts_names_and_numbers() -> None:
    found = [(token.kind, token.text) for token in lexer.lex("abc 'it''s' \"a\"\"b\" 12 1.5e3 .5 ? $12 X'00ff' (")]
    assert found == [
        (lexer.WORD, "abc"), (lexer.TEXT, "it's"), (lexer.QUOTED, 'a"b'), (lexer.NUMBER, "12"), (lexer.NUMBER, "1.5e3"),
        (lexer.NUMBER, ".5"), (lexer.PARAMETER, ""), (lexer.PARAMETER, "12"), (lexer.BYTES, "00ff"), (lexer.SIGN, "("),
        (lexer.END, ""),
    ]  # fmt: skip


def test_comments_and_blanks_are_passed_over() -> None:
    assert one("-- first\nSHOW /* ' \" ; ** / */ TOPICS--last") == ast.ShowTopicsStatement(line=2, column=1)
    assert parse(" ;; -- nothing\n ; /**/") == []


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("SHOW 'TOPICS", 1, 6, "close it with '"),
        ('SHOW\n  "TOPICS', 2, 3, 'close it with "'),
        ("SHOW /* TOPICS", 1, 6, "close it with */"),
        ("SHOW $x", 1, 6, "a parameter is"),
        ("PUBLISH TO t VALUES (X'0')", 1, 22, "hexadecimal"),
        ("SHOW \0", 1, 6, "NUL"),
        (f"SHOW {'1' * 300}", 1, 6, "at most 200 digits"),
        ("SHOW 1e1000000", 1, 6, "exponent"),
    ],
)
def test_what_is_no_token(text: str, line: int, column: int, says: str) -> None:
    error = refused(text)
    assert (error.line, error.column) == (line, column)
    assert says in str(error)


# -- names and keywords


def test_names() -> None:
    assert one("DROP TOPIC app.new_messages").name == "app.new_messages"
    assert one('DROP TOPIC "my-topic"').name == "my-topic"
    assert one("DROP TOPIC 'my-topic'").name == "my-topic"
    assert one('DROP TOPIC app . "a b"').name == "app.a b"
    assert one("DROP TOPIC ?", "t").name == "t"
    assert one("DROP TOPIC Größe").name == "Größe"


def test_keywords_are_not_reserved() -> None:
    assert one("consume from group group 'g' from latest").topic == "group"
    assert one("CREATE TOPIC if").name == "if"
    assert one("DROP TOPIC exists").name == "exists"
    assert one("ALTER TOPIC topic DROP SOURCE source ON delete") == ast.DropSourceStatement(
        topic="topic", table="source", events=(2,)
    )
    assert one("DESCRIBE topic") == ast.DescribeTableStatement(name="topic")
    assert one("DESCRIBE table") == ast.DescribeTableStatement(name="table")
    assert one("DESCRIBE TABLE topic") == ast.DescribeTableStatement(name="topic")
    assert one("desc topic topic") == ast.DescribeTopicStatement(name="topic")
    assert one("INSERT INTO values VALUES (1)").table == "values"
    assert one("CREATE TABLE t (primary TEXT PRIMARY KEY, key TEXT)").key == ("primary",)


# -- errors


def test_an_error_says_what_was_found_and_expected_and_where() -> None:
    error = refused("CONSUME FROM app.new\nGROUP 'ai' FORM LATEST")
    assert (error.code, error.line, error.column) == ("SQL_SYNTAX", 2, 12)
    assert str(error) == (
        "line 2, column 12: found 'FORM', expected PARTITION, FROM, LIMIT, CONSUMER, VISIBILITY or the end of the "
        "statement\n  GROUP 'ai' FORM LATEST\n             ^"
    )


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("FROB t", 1, "found 'FROB', expected CREATE, ALTER, DROP"),
        ("CREATE TOPIC", 13, "found the end of the text, expected the name of the topic"),
        ("CREATE TOPIC a.", 16, "the rest of the name after the dot"),
        ("CREATE TOPIC ''", 14, "is empty"),
        ("CONSUME FROM t LIMIT 0", 22, "from 1 to"),
        ("CREATE TOPIC t PARTITIONS 1.5", 27, "as a whole number"),
        ("CREATE TOPIC t WITH (alias = 'a' retention_seconds = 1)", 34, "expected ',' or ')'"),
        ("CREATE TOPIC t WITH (retention = 1)", 22, "expected alias, retention_seconds"),
        ("CREATE TOPIC t WITH (alias = a, ALIAS = b)", 33, "alias is given twice"),
        ("CREATE TOPIC t PARTITIONS 1 PARTITIONS 2", 29, "PARTITIONS is given twice"),
        ("ALTER TOPIC t ADD SOURCE s ON SELECT", 31, "expected INSERT, UPDATE or DELETE"),
        ("ALTER TOPIC t ADD SOURCE s ON INSERT WHERE", 43, "expected a condition"),
        ("ALTER TOPIC t ADD SOURCE s ON INSERT WHERE (a", 46, "expected )"),
        ("ALTER TOPIC t ADD SOURCE s ON INSERT WITH (payload = 'half')", 54, "'key', 'full' or 'diff'"),
        ("ACK t UPTO OFFSET 3", 20, "expected GROUP"),
        ("ACK t GROUP 'g'", 16, "expected UPTO"),
        ("ACK t GROUP 'g' UPTO 3", 22, "expected OFFSET"),
        ("ACK t GROUP 'g' UPTO OFFSET -1", 29, "the offset as a whole number"),
        ("NACK t GROUP 'g' OFFSET 5 TO 3", 25, "write the lower offset first"),
        ("EXTEND t GROUP 'g' VISIBILITY 0", 31, "from 0.1 to 43200 seconds"),
        ("CONSUME FROM t CONSUMER 'c'", 28, "CONSUMER requires GROUP"),
        ("CONSUME FROM t PARTITION ANY", 29, "requires GROUP"),
        ("CONSUME FROM t LIMIT 10001", 22, "from 1 to 10000"),
        ("PUBLISH TO t", 13, "expected VALUES"),
        ("PUBLISH TO t VALUES (1)", 22, "the payload as a text"),
        ("RESET CONSUMER GROUP g ON t TO TIMESTAMP 'yesterday'", 42, "is not a time"),
        ("RESET CONSUMER GROUP g ON t TO TIMESTAMP '2026-13-01'", 42, "is not a time"),
        ("RESET CONSUMER GROUP g ON t TO 5", 32, "EARLIEST, LATEST, OFFSET or TIMESTAMP"),
        ("CREATE TABLE t (a TEXT)", 23, "no primary key"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY, a TEXT)", 37, "declared twice"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY, b TEXT PRIMARY KEY)", 37, "already has a primary key"),
        ("CREATE TABLE t (a TEXT, PRIMARY KEY (b))", 25, "'b' must be declared"),
        ("CREATE TABLE t (a TEXT, b TEXT, c TEXT, PRIMARY KEY (a, b, c))", 60, "has one or two columns"),
        ("CREATE TABLE t (a BIGINT(3) PRIMARY KEY)", 25, "write BIGINT alone"),
        ("CREATE TABLE t (a MONEY PRIMARY KEY)", 19, "TEXT, BIGINT, DOUBLE, DECIMAL, BOOLEAN, BLOB, JSON"),
        ("ALTER TABLE t ENABLE STREAM WITH (view = 'ALL')", 42, "NEW_AND_OLD_IMAGES"),
        ("INSERT INTO t (a, a) VALUES (1, 2)", 19, "named twice"),
        ("INSERT INTO t (a, b) VALUES (1)", 29, "has 1 values, but 2 columns are expected"),
        ("INSERT INTO t VALUES (1, 2), (3)", 30, "has 1 values, but 2 columns are expected"),
        ("INSERT INTO t VALUES ()", 23, "expected a value"),
        ("INSERT INTO t VALUES (1,)", 25, "expected a value"),
        ("UPDATE t SET a = 1", 19, "WHERE and a condition"),
        ("UPDATE t SET a = 1, a = 2 WHERE id = 1", 21, "set twice"),
        ("DELETE FROM t", 14, "WHERE and a condition"),
        ("SHOW TOPICS SHOW TABLES", 13, "expected ';'"),
        ("CREATE USER bob ROLE admin PASSWORD 'x'", 22, "no such role"),
        ("ALTER USER bob", 15, "PASSWORD, ROLE, ACCESS, ENABLE or DISABLE"),
        ("SELECT (1", 10, "expected )"),
        ("SELECT 1)", 9, "expected ';'"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_place(text: str, column: int, says: str) -> None:
    error = refused(text)
    assert (error.line, error.column) == (1, column)
    assert says in str(error)


def test_a_long_line_is_shown_around_the_mistake() -> None:
    error = refused("INSERT INTO t VALUES (" + "1, " * 500 + ", 2)" + ", 3" * 500)
    lines = str(error).splitlines()
    assert len(lines[1]) < 150 and lines[1].startswith("  …") and lines[1].endswith("…")
    assert lines[1][lines[2].index("^")] == ","


@pytest.mark.parametrize(
    "text",
    [
        "CREATE USER bob PASSWORD 'hunter2' ROLL dba",
        "CREATE USER bob PASSWORD hunter2",
        "CREATE USER bob PASWORD 'hunter2'",
        "CREATE USER bob hunter2",
        "CREATE USER bob PASSWORD 'hunter2",
        'CREATE /* a */ USER bob "hunter2"',
        "ALTER USER bob SET PASSWORD 'hunter2' 'hunter2'",
        "CREATE TOPIC t; ALTER -- x\n USER bob SET hunter2",
        "CREATE USER bob PASSWORD 'hunter2'; SHOW TOPIC",
        "CREATE USER bob PASSWORD 'hunter2'; SHOW ?",
        "CRATE USER bob 'hunter2'",
        "USER bob 'hunter2'",
        "CREATE USR bob PASWORD 'hunter2'",
        "SHOW TOPICS; -- a user\n CREATE\nUSER bob 'hunter2'",
        "SELECT '/*'; /* bob */ CREATE USER bob 'hunter2'",
        "SELECT '--'; -- bob\nCREATE USER bob 'hunter2'",
        "SELECT '; /* bob */ CREATE USER bob 'hunter2'",
    ],
)
def test_a_password_is_in_no_error(text: str) -> None:
    assert "hunter2" not in str(refused(text))


@pytest.mark.parametrize(
    "text", ["UPDATE user SET a = 1 FROM", "INSERT INTO t (user) VALUES 1", "CREATE TABLE user (a)"]
)
def test_a_user_in_another_place_is_no_secret(text: str) -> None:
    assert str(refused(text)).endswith("^")


def test_a_password_is_in_no_representation() -> None:
    statement = one("CREATE USER bob WITH PASSWORD 'hunter2' ROLE service ACCESS ('topics/app.*', 'tables/orders')")
    assert "hunter2" not in repr(statement)
    assert statement.password.text == "hunter2"
    assert (statement.role, statement.access) == ("service", ("topics/app.*", "tables/orders"))


# -- parameters


def test_parameters() -> None:
    assert one("CONSUME FROM ? GROUP ? LIMIT ?", "t", "g", 5) == ast.ConsumeStatement(topic="t", group="g", limit=5)
    assert one("CONSUME FROM $3 GROUP $1 LIMIT $2", "g", 5, "t") == ast.ConsumeStatement(topic="t", group="g", limit=5)
    assert one("PUBLISH TO t VALUES (?), (?)", b"\xff", "é").payloads == (b"\xff", "é".encode())
    assert one("CREATE USER bob PASSWORD ?", "secret").password.text == "secret"
    topics = parse("DROP TOPIC ?; DROP TOPIC ?", ["a", "b"])
    assert [each.name for each in topics] == ["a", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "params", "says"),
    [
        ("DROP TOPIC ?", [], "no value for parameter 1: 0 were given"),
        ("DROP TOPIC $2", ["a"], "no value for parameter 2: 1 was given"),
        ("DROP TOPIC t", ["a"], "1 parameters were given, but the text has 0"),
        ("DROP TOPIC $1", ["a", "b"], "2 parameters were given, but the text has 1"),
        ("DROP TOPIC ?; DROP TOPIC $1", ["a", "b"], "either all ? or all $1"),
        ("DROP TOPIC $0", ["a"], "numbers start at $1"),
        ("DROP TOPIC $99999999999999999999", ["a"], "numbers start at $1"),
        ("DROP TOPIC ?", [5], "must be a text, but the parameter is a number"),
        ("CONSUME FROM t LIMIT ?", [True], "must be a whole number, but the parameter is true or false"),
        ("CONSUME FROM t GROUP g VISIBILITY ?", ["x"], "seconds"),
    ],
)
def test_wrong_parameters(text: str, params: list[Any], says: str) -> None:
    assert says in str(refused(text, *params))


def test_a_source_takes_no_parameters() -> None:
    assert "cannot have parameters" in str(refused("ALTER TOPIC t ADD SOURCE s ON INSERT WHERE (a = ?)", 1))


# -- statements


def test_settings() -> None:
    found = one("ALTER TOPIC t SET (alias = NULL, max_attempts = 3, dead_letter = app.failed)")
    assert found.settings == ast.TopicSettings(alias=None, max_attempts=3, dead_letter="app.failed")
    assert found.settings.retention_seconds is UNSET


def test_clauses_come_in_any_order() -> None:
    wanted = ast.ConsumeStatement(
        topic="t", group="g", partition=3, start=ast.StartClause("offset", 7), limit=5, consumer="c", visibility_ms=1500
    )
    assert one("CONSUME FROM t GROUP 'g' PARTITION 3 FROM OFFSET 7 LIMIT 5 CONSUMER 'c' VISIBILITY 1.5") == wanted
    assert one("CONSUME FROM t VISIBILITY 1.5 LIMIT 5 FROM 7 CONSUMER c PARTITION 3 GROUP g") == wanted


def test_a_source_keeps_its_text() -> None:
    found = one(
        "ALTER TOPIC t ADD SOURCE s ON UPDATE\n  WHERE (a = ')' AND (b > 1))\n"
        " PARTITION BY (f(x, y)) WITH (payload=diff)"
    )
    assert found.where == ast.Expression("(a = ')' AND (b > 1))", 2, 9)
    assert found.partition_by == ast.Expression("f(x, y)", 3, 16)
    assert (found.events, found.mode) == ((1,), 2)


def test_values_and_expressions() -> None:
    text = "INSERT INTO t VALUES ('a', -1.5, TRUE, null, X'ff', ?, 1 + ?, f(1, ')', ?), -7)"
    (row,) = one(text, "p", 2, 3).rows
    assert row[:6] == tuple(map(ast.Constant, ("a", Decimal("-1.5"), True, None, b"\xff", "p")))
    assert row[6] == ast.Expression("1 + ?", 1, 56, (2,))
    assert row[7] == ast.Expression("f(1, ')', ?)", 1, 63, (3,))
    assert row[8] == ast.Constant(-7)


def test_a_number_keeps_its_digits() -> None:
    digits = "1.2345678901234567890123456789012345678"
    assert one(f"INSERT INTO t VALUES (-{digits})").rows == ((ast.Constant(Decimal(f"-{digits}")),),)


def test_numbered_parameters_go_whole_to_an_expression() -> None:
    ((value,),) = one("INSERT INTO t VALUES ($2 + $1)", 1, 2).rows
    assert value.params == (1, 2)


def conjuncts(where: str, *params: Any) -> list[tuple[str, str | None, Any]]:
    found = one(f"DELETE FROM t WHERE {where}", *params).where
    return [(each.whole.text, each.column, getattr(each.value, "value", each.value)) for each in found]


def test_conditions_are_split_at_and() -> None:
    assert conjuncts("id = 1 AND b > 2") == [("id = 1", "id", 1), ("b > 2", None, None)]
    assert conjuncts("(id = 1 AND (b = 'x'))") == [("id = 1", "id", 1), ("b = 'x'", "b", "x")]
    assert conjuncts("id = ? AND n < ?", 1, 2) == [("id = ?", "id", 1), ("n < ?", None, None)]
    assert [each[0] for each in conjuncts("a BETWEEN 1 AND 2 AND b = 3")] == ["a BETWEEN 1 AND 2", "b = 3"]
    assert [each[0] for each in conjuncts("id = 1 AND (a = 1 OR b = 2)")] == ["id = 1", "(a = 1 OR b = 2)"]
    assert [each[0] for each in conjuncts("CASE WHEN a AND b THEN c ELSE d END AND e")] == [
        "CASE WHEN a AND b THEN c ELSE d END", "e",
    ]  # fmt: skip
    assert [each[0] for each in conjuncts("NOT (a = 1 AND b = 2) AND c")] == ["NOT (a = 1 AND b = 2)", "c"]
    assert [each[0] for each in conjuncts("(a, b) = (1, 2)")] == ["(a, b) = (1, 2)"]


@pytest.mark.parametrize("where", ["id = 1 = true", "id = a IS NULL", "id = 1 BETWEEN 0 AND 1", "id = NOT a", "id > 1"])
def test_what_is_no_equality_names_no_column(where: str) -> None:
    assert conjuncts(where)[0][1] is None


def test_what_a_parameter_of_an_equality_stands_for() -> None:
    (found,) = one("DELETE FROM t WHERE id = ?", 5).where
    assert found.whole.params == (5,)
    (found,) = one("DELETE FROM t WHERE id = lower(?)", "A").where
    assert (found.column, found.whole.params) == ("id", ("A",))


def test_a_select_keeps_its_text_and_its_place() -> None:
    found = parse("SHOW TOPICS; SELECT a::INT, '{;}', b->>'x'\n FROM t WHERE x = ?; WITH a AS (SELECT 1) SELECT 2", [5])
    assert [type(each) for each in found] == [ast.ShowTopicsStatement, ast.SelectStatement, ast.SelectStatement]
    assert isinstance(found[1], ast.SelectStatement)
    assert found[1].text == "SELECT a::INT, '{;}', b->>'x'\n FROM t WHERE x = ?"
    assert (found[1].line, found[1].column, found[1].params) == (1, 14, (5,))


def test_a_select_gets_the_parameters_that_are_in_it() -> None:
    params = [*range(1, 13)]
    found = parse("SELECT $12 + $3, $3 FROM t WHERE x = $2; SELECT ($1); DROP TOPIC a; SELECT 1", params)
    selects = [(each.text.strip(), each.params) for each in found if isinstance(each, ast.SelectStatement)]
    assert selects == [("SELECT $3  + $2, $2 FROM t WHERE x = $1", (2, 3, 12)), ("SELECT ($1)", (1,)), ("SELECT 1", ())]


def test_times() -> None:
    def at_ms(text: str, *params: Any) -> int:
        found: int = one(f"RESET CONSUMER GROUP g ON t PARTITION 1 TO TIMESTAMP {text}", *params).to.at
        return found

    noon_ms = 1_769_601_600_000
    assert (
        at_ms("'2026-01-28T12:00:00Z'")
        == at_ms("'2026-01-28 13:00:00+01:00'")
        == at_ms("'2026-01-28 12:00'")
        == noon_ms
    )
    assert at_ms(str(noon_ms)) == at_ms("?", noon_ms) == at_ms("?", "2026-01-28T12:00:00Z") == noon_ms


# -- bounds


def test_everything_is_bounded() -> None:
    with pytest.raises(TooLarge, match="characters"):
        parse(" " * (lexer.TEXT_CHARACTERS_MAX + 1))
    with pytest.raises(TooLarge, match="tokens"):
        parse(";" * (lexer.TOKENS_MAX + 1))
    assert parse(" " * lexer.TEXT_CHARACTERS_MAX) == []
    assert len(parse("SHOW TOPICS;" * parser.STATEMENTS_MAX)) == parser.STATEMENTS_MAX
    assert "statements" in str(refused("SHOW TOPICS;" * (parser.STATEMENTS_MAX + 1)))
    deep = tokens.DEPTH_MAX
    one(f"INSERT INTO t VALUES (1 + {'(' * deep}1{')' * deep})")
    assert "nested" in str(refused(f"INSERT INTO t VALUES (1 + {'(' * (deep + 1)}1{')' * (deep + 1)})"))
    assert "nested" in str(refused(f"DELETE FROM t WHERE {'(' * (deep + 1)}id = 1{')' * (deep + 1)}"))
    assert "conditions" in str(refused("DELETE FROM t WHERE " + " AND ".join(["a > 1"] * 101)))
    most = tokens.EXPRESSIONS_MAX
    assert "expressions" in str(refused("INSERT INTO t VALUES " + ",".join(["(1 + 1)"] * (most + 1))))
    rows = table_grammar.ROWS_MAX
    assert len(one("INSERT INTO t VALUES " + ",".join(["(1)"] * rows)).rows) == rows
    assert "rows" in str(refused("INSERT INTO t VALUES " + ",".join(["(1)"] * (rows + 1))))


def test_places_are_counted_on() -> None:
    found = parse("SHOW TOPICS;\n\nSHOW TOPICS; SHOW TOPICS;\n INSERT INTO t VALUES (1 + 1,\n 2 + 2)")
    assert [(each.line, each.column) for each in found] == [(1, 1), (3, 1), (3, 14), (4, 2)]
    assert isinstance(found[3], ast.InsertStatement)
    assert [(each.line, each.column) for each in found[3].rows[0] if isinstance(each, ast.Expression)] == [
        (4, 24),
        (5, 2),
    ]


def test_no_text_takes_long() -> None:
    for text in (
        "CREATE " + "/**/" * 10_000 + "x",
        "CREATE " + "/* " * 10_000,
        "'" + "''" * 100_000,
        "DELETE FROM t WHERE " + "(" * 90 + "a = 1 AND " * 99,
        "DELETE FROM t WHERE a = " + "b + " * 50_000,
        "INSERT INTO t VALUES " + "(1, 'a'),\n" * 9_000,
        "UPDATE t SET " + "a = 1, " * 10_000,
        "SELECT " + "$1 " * 60_000,
    ):
        began = time.thread_time()
        with pytest.raises(SqlError):
            parse(text)
        assert time.thread_time() - began < 10


# -- anything at all

SPOKEN = """
    TOPIC TABLE USER CONSUMER GROUP GROUPS ON FROM TO SET ADD SOURCE INSERT WHERE AND OR BETWEEN CASE END PARTITION BY
    VALUES INTO PRIMARY KEY TEXT NOT NULL IF EXISTS OFFSET UPTO LIMIT PASSWORD ROLE ACCESS TIMESTAMP ANY
    a b.c 'x' "q" 1 2.5 - = ( ) [ } , ; ? $1 X'00' . -- /* */
"""
WORDS = st.sampled_from([*parser.STARTS, *SPOKEN.split(), "--\n", "\n"])


@given(st.text())
def test_no_text_does_more_than_fail(text: str) -> None:
    try:
        parse(text)
    except SqlError as error:
        assert error.line >= 1 and error.column >= 1


@given(st.lists(WORDS, max_size=30), st.lists(st.none() | st.integers() | st.text() | st.binary(), max_size=3))
def test_no_words_do_more_than_fail(words: list[str], params: list[Any]) -> None:
    text = " ".join(words)
    try:
        parse(text, params)
    except SqlError as error:
        lines = (text + " ").split("\n")
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1

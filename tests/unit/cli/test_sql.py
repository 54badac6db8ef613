"""`tailrace sql`: how a text is split, what is drawn, what is completed and remembered, and the shell in a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.cells import cell_len
from rich.console import Console

from tailrace import database
from tailrace.cli import drawing, shell, sql_completion
from tailrace.cli.meta import HELP, MetaCommands
from tailrace.cli.script import complete, located, pointed, statements
from tailrace.cli.session import EmbeddedSession, StatementResult
from tailrace.cli.shell import DiscreetHistory, Shell, coloured, history, history_path
from tailrace.cli.sql import DRAWN_ROWS_MAX, Output, duration
from tailrace.cli.sql_completion import DatabaseNames, SqlCompleter
from tailrace.errors import Invalid, NotFound
from tailrace.sql.error import SqlError
from tailrace.sql.parser import STARTS
from tailrace.sql.session import Session
from tailrace.sql.system import SYSTEM_TABLES
from tests.support.server import ServerProcess
from tests.unit.cli.test_tables_cli import Done, tailrace
from tests.unit.threaded import PATIENCE_S, Served

ROOT = Path(__file__).resolve().parents[3]
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>78])")


# -- a text and its statements


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ;; -- nothing;\n ; /* ; */", []),
        ("SELECT 1", [("SELECT 1", 0, False)]),
        ("SELECT 1 ; ", [("SELECT 1", 0, True)]),
        ("a;b", [("a", 0, True), ("b", 2, False)]),
        ("  -- one\n a b;", [("a b", 10, True)]),
        ("SELECT ';' ;", [("SELECT ';'", 0, True)]),
        ("SELECT 'it''s;' ;", [("SELECT 'it''s;'", 0, True)]),
        ('SELECT "a;b";c', [('SELECT "a;b"', 0, True), ("c", 13, False)]),
        ("a -- x;\n, b /* y; */ c;", [("a -- x;\n, b /* y; */ c", 0, True)]),
        ("a - b / c;", [("a - b / c", 0, True)]),
        ("SELECT 'open;\n", [("SELECT 'open;\n", 0, False)]),
        ("x; SELECT /* open;", [("x", 0, True), ("SELECT /* open;", 3, False)]),
        ("SELECT 1 -- the end", [("SELECT 1", 0, False)]),
    ],
)
def test_a_text_is_split_at_the_semicolons_that_end_statements(text: str, found: list[tuple[str, int, bool]]) -> None:
    assert [tuple(each) for each in statements(text)] == found


def test_input_is_complete_when_its_last_statement_has_ended() -> None:
    assert complete("") and complete("SELECT 1;") and complete("a; b;  -- and so on")
    assert not complete("SELECT 1") and not complete("a; b") and not complete("SELECT ';") and not complete("a /* ;")


def test_splitting_a_large_text_takes_time_in_proportion() -> None:
    began = time.process_time()
    assert len(statements("INSERT INTO t VALUES ('a;''b', 1.5); -- x\n" * 20_000)) == 20_000
    assert not complete("'" + "''" * 200_000)
    assert time.process_time() - began < 10


def test_a_mistake_is_located_in_the_whole_text() -> None:
    text = "SELECT 1;\n\n  SELECT a,\n   b FROM x;"
    second = statements(text)[1]
    error = SqlError("line 2, column 4: there is no b\n   b FROM x\n   ^", line=2, column=4)
    found = located(text, second, error)
    assert (found.message, found.line, found.column) == ("there is no b", 4, 4)
    assert found.text("f.sql") == "f.sql:4:4: there is no b\n     b FROM x;\n     ^"
    assert found.text() == "line 4, column 4: there is no b\n     b FROM x;\n     ^"
    on_the_first_line = located(text, second, SqlError("line 1, column 8: no a", line=1, column=8))
    assert (on_the_first_line.line, on_the_first_line.column) == (3, 10)
    # One with a separate location, and one without.
    placed = NotFound("there is no table 'x'")
    vars(placed).update(line=1, column=1)
    assert located(text, second, placed).text("f") == "f:3:3: there is no table 'x'\n    SELECT a,\n    ^"
    assert located(text, second, NotFound("gone")).text("f") == "f: gone"


@pytest.mark.parametrize("width", [20, 40, 120])
def test_the_caret_stays_below_its_character_in_a_line_that_is_cut(width: int) -> None:
    text = "SELECT 1;\n" + "a" * 70 + "日本\t" + "X" + "b" * 70 + "\nSELECT 2"
    line, caret = pointed(text, text.index("X"), width).split("\n")
    assert cell_len(line[: line.index("X")]) == caret.index("^")
    assert len(line) <= width + 4 and "\t" not in line
    assert pointed("x", 1) == "  x\n   ^"


def test_a_mistake_shows_no_line_that_may_hold_a_password() -> None:
    text = "CREATE USER bob PASSWORD 'hunter22' ROLE king;"
    found = located(text, statements(text)[0], SqlError("line 1, column 42: no such role", line=1, column=42))
    assert found.text("x") == "x:1:42: no such role"


# -- drawing


def drawn(answer: StatementResult, width: int = 80, *, expanded: bool | str = "auto", tty: bool = True) -> str:
    out = io.StringIO()
    output = Output(console=Console(file=out, width=width, force_terminal=tty, color_system=None, markup=False))
    output.expanded = expanded
    output.show(answer, 0.0123)
    return "\n".join(line.rstrip() for line in ESCAPES.sub("", out.getvalue()).splitlines())


ORDERS = StatementResult(
    "SELECT",
    [("id", "VARCHAR"), ("price", "DECIMAL(38,2)"), ("n", "BIGINT"), ("paid", "BOOLEAN")],
    [
        {"id": "a", "price": Decimal("9.90"), "n": 17, "paid": True},
        {"id": "long name", "price": None, "n": 3, "paid": False},
    ],
    2,
)


def test_numbers_stand_to_the_right_and_the_count_and_time_below() -> None:
    assert drawn(ORDERS).splitlines() == [
        "id          price    n   paid",
        "──────────────────────────────",
        "a            9.90   17   true",
        "long name    NULL    3   false",
        "2 rows · 12.3 ms",
    ]


def test_null_is_dim_and_numbers_are_coloured() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard", _environ={})
    console.print(drawing.grid(ORDERS.columns, ORDERS.rows))
    assert "\x1b[2;3m NULL\x1b[0m" in out.getvalue()
    assert "\x1b[96m 9.90\x1b[0m" in out.getvalue()


def test_a_wide_value_is_cut_to_the_terminal_and_whole_elsewhere() -> None:
    answer = StatementResult("SELECT", [("a", "BIGINT"), ("b", "VARCHAR")], [{"a": 1, "b": "x" * 500}], 1)
    assert max(len(line) for line in drawn(answer, 40).splitlines()) <= 40
    assert "…" in drawn(answer, 40)
    whole = drawn(answer, drawing.WIDE, tty=False)
    assert "x" * 500 in whole and "ms" not in whole


def test_text_is_cut_and_numbers_are_not() -> None:
    answer = StatementResult(
        "SELECT",
        [("a", "VARCHAR"), ("number", "BIGINT"), ("b", "VARCHAR")],
        [{"a": "x" * 60, "number": 10**17, "b": "y" * 90}],
        1,
    )
    line = drawn(answer, 60).splitlines()[2]
    assert str(10**17) in line and line.count("…") == 2 and len(line) <= 60
    assert drawing.cut([5, 50, 80, 18], [False, False, False, True], 60) == [5, 14, 14, 18]
    assert drawing.cut([5, 6], [False, False], 60) == [5, 6]


def test_what_does_not_fit_is_shown_a_value_to_a_line() -> None:
    columns = [(f"column_{number}", "VARCHAR") for number in range(12)]
    answer = StatementResult("SELECT", columns, [{name: "some text" for name, _ in columns}] * 2, 2)
    lines = drawn(answer, 60).splitlines()
    assert lines[0] == "─── row 1 ───" and lines[1] == "column_0   some text"
    assert "column_0" in drawn(answer, 200).splitlines()[0] and "column_11" in drawn(answer, 200).splitlines()[0]
    assert drawn(answer, 200, expanded=True).startswith("─── row 1 ───")
    assert not drawn(answer, 60, expanded=False).startswith("─── row")


def test_nothing_that_a_row_holds_reaches_the_terminal_as_a_command() -> None:
    evil = "\x1b[2J\x07\x9b31m\u202eab\r\nc"
    answer = StatementResult("SELECT", [(evil, "VARCHAR")], [{evil: evil}], 1, evil)
    for expanded in (True, False):
        out = io.StringIO()
        output = Output(console=Console(file=out, width=200, force_terminal=True, color_system=None))
        output.expanded = expanded
        output.show(answer)
        assert not set(out.getvalue()) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
        assert "\\x1b[2J" in out.getvalue()


def test_markup_in_a_row_is_text() -> None:
    answer = StatementResult("SELECT", [("[bold]a", "VARCHAR")], [{"[bold]a": "[red]x[/red] :smile:"}], 1)
    assert "[red]x[/red] :smile:" in drawn(answer) and "[bold]a" in drawn(answer)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (b64encode(b'{"x":1}').decode(), "BLOB", '{"x":1}'),
        (b64encode(b"\x00\xff").decode(), "BLOB", "\\x00ff"),
        (b64encode(b"\x1b[0m").decode(), "BLOB", "\\x1b5b306d"),
        (b"h\xc3\xa9", "BLOB", "hé"),
        ("not base64!", "BLOB", "not base64!"),
        ({"a": [1, Decimal("1.50")]}, "JSON", '{"a":[1,1.50]}'),
        (Decimal("1E+3"), "DECIMAL", "1000"),
        (None, "BLOB", ""),
        (12345678901234567890, "HUGEINT", "12345678901234567890"),
    ],
)
def test_a_value_as_text(value: Any, kind: str, shown: str) -> None:
    assert drawing.plain(value, kind) == shown


def test_which_types_are_numbers() -> None:
    assert all(map(drawing.numeric, ("BIGINT", "INTEGER", "HUGEINT", "UBIGINT", "DOUBLE", "DECIMAL(38,2)", "FLOAT")))
    assert not any(map(drawing.numeric, ("VARCHAR", "BOOLEAN", "TIMESTAMPTZ", "BLOB", "BIGINT[]", "INTERVAL", "")))


def test_on_a_terminal_the_first_rows_of_very_many_are_drawn() -> None:
    rows = [{"n": number} for number in range(DRAWN_ROWS_MAX + 500)]
    shown = drawn(StatementResult("SELECT", [("n", "BIGINT")], rows, len(rows)))
    assert f"the first {DRAWN_ROWS_MAX:,} of {DRAWN_ROWS_MAX + 500:,} rows" in shown
    assert len(shown.splitlines()) == DRAWN_ROWS_MAX + 3
    everything = drawn(StatementResult("SELECT", [("n", "BIGINT")], rows, len(rows)), drawing.WIDE, tty=False)
    assert len(everything.splitlines()) == len(rows) + 3


def test_a_time_is_shown_in_its_unit() -> None:
    assert [duration(each) for each in (0.00042, 0.5, 1.234, 75)] == ["0.4 ms", "500.0 ms", "1.23 s", "1 min 15 s"]


# -- completion


def names() -> DatabaseNames:
    rows: dict[str, list[dict[str, Any]]] = {
        "system.topics ": [{"name": "app.new", "alias": "fresh"}, {"name": "odd name", "alias": None}],
        "system.topic_groups ": [{"group_id": "ai-service"}, {"group_id": "mailer"}],
        "system.tables ": [
            {"name": "orders", "partition_key": "id", "sort_key": None, "columns": '[{"name":"id"},{"name":"price"}]'},
            {"name": "chat.messages", "partition_key": "room", "sort_key": "at", "columns": "[]"},
        ],
        "system.users ": [{"name": "bob"}],
    }

    def ask(text: str) -> StatementResult:
        if text.endswith("LIMIT 0"):
            return StatementResult("SELECT", [("lag", "BIGINT"), ("lost", "BIGINT")])
        return StatementResult("SELECT", [], next(found for table, found in rows.items() if f"FROM {table}" in text))

    known = DatabaseNames(ask)
    known.fetch()
    return known


def completions(text: str, *, requested: bool = True) -> list[str]:
    completer = SqlCompleter(names(), HELP)
    event = CompleteEvent(text_inserted=not requested, completion_requested=requested)
    return [each.text for each in completer.get_completions(Document(text), event)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "SELECT"),
        ("sel", "select"),
        ("SEL", "SELECT"),
        ("cre", "create topic"),
        ("CREATE ", "TOPIC"),
        ("SELECT 1; SHO", "SHOW TOPICS"),
        ("SELECT * FROM ", "orders"),
        ("SELECT * FROM ", "chat.messages"),
        ("SELECT * FROM sys", "system.topic_groups"),
        ("SELECT * FROM cha", "changes("),
        ("SELECT * FROM changes(", "'orders'"),
        ("SELECT * FROM topic('a", "'app.new'"),
        ("SELECT * FROM orders WHERE pr", "price"),
        ("SELECT * FROM system.topic_groups WHERE l", "lag"),
        ("SELECT * FROM orders WHERE price > 1 ORD", "ORDER BY"),
        ("CONSUME FROM ", "app.new"),
        ("CONSUME FROM fr", "fresh"),
        ("CONSUME FROM ", '"odd name"'),
        ("CONSUME FROM app.new GROUP ", "'ai-service'"),
        ("consume from app.new group 'm", "'mailer'"),
        ("CONSUME FROM app.new FR", "FROM LATEST"),
        ("ACK ", "app.new"),
        ("ACK app.new GROUP 'x' UP", "UPTO OFFSET"),
        ("PUBLISH TO ", "app.new"),
        ("ALTER TOPIC ", "app.new"),
        ("ALTER TOPIC app.new ADD SOURCE ", "orders"),
        ("ALTER TOPIC app.new ADD SOURCE orders ON INSERT WHERE pr", "price"),
        ("RESET CONSUMER GROUP 'mailer' ON ", "app.new"),
        ("DROP CONSUMER GROUP ", "'mailer'"),
        ("INSERT INTO ", "orders"),
        ("UPDATE ", "orders"),
        ("UPDATE orders SET p", "price"),
        ("DROP TABLE ", "orders"),
        ("DROP TABLE IF EXISTS ", "orders"),
        ("DROP TOPIC IF EXISTS ", "app.new"),
        ("ALTER USER ", "bob"),
        ("ALTER USER bob ROLE", "ROLE dba"),
        ("DESCRIBE ", "orders"),
        ("DESCRIBE TOPIC ", "app.new"),
        ("\\", "\\dt"),
        ("\\d or", "orders"),
        ("\\d app", "app.new"),
    ],
)
def test_what_may_come_next_is_offered(text: str, wanted: str) -> None:
    assert wanted in completions(text)


@pytest.mark.parametrize(
    ("text", "unwanted"),
    [
        ("CONSUME FROM ", "orders"),
        ("SELECT * FROM ", "app.new"),
        ("CONSUME FROM app.new GROUP ", "app.new"),
        ("SELECT * FROM orders WHERE ", "room"),
        ("SELECT 'or", "orders"),
        ("SELECT 1 -- fro", "FROM"),
    ],
)
def test_what_cannot_come_next_is_not_offered(text: str, unwanted: str) -> None:
    assert unwanted not in completions(text)


def test_nothing_is_offered_unasked_before_a_word_has_begun() -> None:
    assert completions("SELECT * FROM ", requested=False) == [] and completions("", requested=False) == []
    assert "orders" in completions("SELECT * FROM o", requested=False)


def test_a_query_may_begin_with_from() -> None:
    assert "orders" in completions("FROM ") and "topic(" in completions("FROM ")
    assert "SELECT" in completions("FROM orders ")


def test_every_statement_and_system_table_can_be_completed() -> None:
    assert {opening.split()[0] for opening in sql_completion.OPENINGS} | {"DESC"} == set(STARTS)
    assert set(sql_completion.SYSTEM_TABLES) == set(SYSTEM_TABLES)


def test_names_are_fetched_again_when_a_statement_may_have_changed_them() -> None:
    queries: list[str] = []

    def ask(text: str) -> StatementResult:
        queries.append(text)
        raise Invalid("not now")

    known = DatabaseNames(ask)
    known.refresh()
    known.wait(PATIENCE_S)
    count = len(queries)
    assert count >= 4  # one failed query does not prevent the others
    known.note("SELECT 1")
    known.refresh()
    known.wait(PATIENCE_S)
    assert len(queries) == count
    known.note("create topic x")
    known.refresh()
    known.wait(PATIENCE_S)
    assert len(queries) > count


def test_what_is_typed_is_coloured() -> None:
    text = "SELECT 'a', 12 -- x\nFROM \"y\""
    pieces = coloured(text)
    assert "".join(piece[1] for piece in pieces) == text
    styles = {piece[1]: piece[0] for piece in pieces}
    assert styles["SELECT"] == styles["FROM"] == "class:keyword"
    assert (styles["'a'"], styles["12"], styles["-- x"]) == ("class:text", "class:number", "class:comment")
    assert coloured("\\d orders")[0] == ("class:command", "\\d")


# -- history


def test_the_history_holds_no_passwords_and_is_the_persons_own(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history"
    kept = history(path)
    assert isinstance(kept, DiscreetHistory)
    for text in (
        "SELECT 1;",
        "CREATE USER bob PASSWORD 'hunter22';",
        "alter  user bob\n set PassWord 'hunter22';",
        "create /* x */ user eve with password 'hunter22';",
        "SELECT\n2;",
    ):
        kept.append_string(text)
    content = path.read_text()
    assert "hunter22" not in content and "SELECT 1;" in content
    assert list(history(path).load_history_strings()) == ["SELECT\n2;", "SELECT 1;"]
    assert path.stat().st_mode & 0o077 == 0


def test_where_the_history_is(tmp_path: Path) -> None:
    def at(**env: str) -> Path:
        with mock.patch.dict(os.environ, {"HOME": "/home/ann", **env}, clear=True):
            return history_path()

    assert at() == Path("/home/ann/.local/state/tailrace/sql_history")
    assert at(XDG_STATE_HOME="/state") == Path("/state/tailrace/sql_history")
    assert at(XDG_STATE_HOME="relative") == Path("/home/ann/.local/state/tailrace/sql_history")
    assert at(XDG_STATE_HOME="/state", TAILRACE_HISTORY="~/h") == Path("/home/ann/h")


def test_where_no_file_can_be_there_is_a_history_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not isinstance(history(tmp_path / "file" / "history"), DiscreetHistory)


def test_a_history_that_grew_too_long_forgets_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "history"
    kept = history(path)
    with mock.patch.object(shell, "HISTORY_BYTES_MAX", 10_000):
        for number in range(400):
            kept.append_string(f"SELECT {number};")
        found = list(history(path).load_history_strings())
    assert found[0] == "SELECT 399;" and 150 < len(found) < 250
    assert path.stat().st_mode & 0o077 == 0 and list(tmp_path.iterdir()) == [path]


# -- the command, embedded


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    done = tailrace(
        "sql",
        "--data",
        str(directory),
        "-c",
        "CREATE TABLE orders (id TEXT PRIMARY KEY, price DECIMAL, n BIGINT); CREATE TOPIC app.t",
        "-c",
        "INSERT INTO orders VALUES ('a', 9.90, 17), ('b', NULL, 3)",
    )
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "table orders created",
        "topic app.t created with 1 partition",
        "2 rows inserted",
    ]
    return directory


def embedded(data: Path, *args: str, stdin: str | bytes = "") -> Done:
    return tailrace("sql", "--data", str(data), *args, stdin=stdin)


def test_rows_as_a_table_as_json_and_as_csv(data: Path) -> None:
    text = "SELECT id, price, n FROM orders ORDER BY id"
    assert embedded(data, "-c", text).out.splitlines() == [
        "id   price    n",
        "───────────────",
        "a      9.9   17",
        "b     NULL    3",
        "2 rows",
    ]
    assert embedded(data, "-c", text, "--json").out == (
        '{"id":"a","price":9.9,"n":17}\n{"id":"b","price":null,"n":3}\n'
    )
    assert embedded(data, "--csv", "-c", text + "; SELECT 'a,b' AS x").out == 'id,price,n\na,9.9,17\nb,,3\n\nx\n"a,b"\n'


def test_a_statement_without_rows_says_what_it_did(data: Path) -> None:
    done = embedded(data, "--json", "-c", "CREATE TOPIC x PARTITIONS 2")
    assert done.lines[0]["statement"] == "CREATE TOPIC" and done.lines[0]["partitions"] == 2
    done = embedded(data, "--csv", "-c", "CREATE TOPIC y")
    assert (done.out, done.err) == ("", "topic y created with 1 partition\n")


def test_files_and_standard_input_run_in_order(data: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.sql", tmp_path / "two.sql"
    one.write_text("\ufeffSELECT 'one' AS a;\n", encoding="utf-8")
    two.write_text("SELECT 'two' AS a;\n-- the end")
    done = embedded(
        data, "--json", str(two), "-f", str(one), "-f", "-", "-c", "SELECT 'zero' AS a", stdin="SELECT 3 AS a"
    )
    assert [row["a"] for row in done.lines] == ["zero", "two", "one", 3]
    assert embedded(data, "--json", stdin="SELECT 1 AS a;\nSELECT 2 AS a").lines == [{"a": 1}, {"a": 2}]
    assert embedded(data, stdin=" -- nothing") == Done(0, "", "")


def test_the_first_error_ends_the_run_and_says_where_it_is(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.sql"
    path.write_text("SELECT 1 AS a;\n\nSELECT *\n  FROM ordrs;\nSELECT 2 AS a;\n")
    done = embedded(data, "--json", str(path))
    assert done.status == 1 and done.lines == [{"a": 1}]
    head, line, caret = done.err.splitlines()
    assert head.startswith(f"tailrace: {path}:4:8: ") and "'ordrs'" in head
    assert line == "    FROM ordrs;" and caret.index("^") == line.index("ordrs")
    done = embedded(data, "-c", "SELECT 1", "-c", "SELEKT 2")
    assert done.status == 1 and done.err.startswith("tailrace: -c:1:1: ") and "1 row" in done.out
    assert embedded(data, stdin="\n CREATE TOPIC;").err.startswith("tailrace: <stdin>:2:14: ")


def test_a_password_is_in_no_error(data: Path) -> None:
    done = embedded(data, "-c", "CREATE USER bob PASSWORD 'hunter2222' ROLE king")
    assert done.status == 1 and "-c:1:" in done.err and "hunter2222" not in done.err


@pytest.mark.parametrize("content", [None, b"SELECT 1;\n\xff"])
def test_a_file_that_cannot_be_read_is_an_error(data: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.sql"
    if content is not None:
        path.write_bytes(content)
    done = embedded(data, str(path))
    assert done.status == 1 and str(path) in done.err and len(done.err.splitlines()) == 1
    if content is not None:
        assert f"{path}:2" in done.err


def test_data_and_url_do_not_go_together(data: Path) -> None:
    done = embedded(data, "--url", "http://127.0.0.1:1", "-c", "SELECT 1")
    assert done.status == 2 and "exclude each other" in done.err
    done = tailrace("sql", "--data", str(data / "nowhere"), "-c", "SELECT 1")
    assert done.status == 1 and "there is no database" in done.err


def test_messages_are_shown_with_what_an_acknowledgement_needs(data: Path) -> None:
    embedded(data, "-c", "PUBLISH TO app.t VALUES ('{\"x\":1}'), (X'00ff')")
    lines = embedded(data, "-c", "CONSUME FROM app.t GROUP 'g' CONSUMER 'me'").out.splitlines()
    assert lines[0].split() == ["partition", "offset", "at", "from", "payload"]
    assert '{"x":1}' in lines[2] and "\\x00ff" in lines[3]
    assert re.fullmatch(r"2 messages · next offset 2 · lease \d+-\d+", lines[4])
    as_json = embedded(data, "--json", "-c", "CONSUME FROM app.t").lines
    assert as_json[0]["payload"] == b64encode(b'{"x":1}').decode() and as_json[0]["value"] == '{"x":1}'


def test_the_shells_own_commands_on_the_command_line(data: Path) -> None:
    done = embedded(data, "-c", "\\d", "-c", "\\d orders", "-c", "\\d app.t", "-c", "\\dt", "-c", "\\dT")
    assert (done.status, done.err) == (0, "")
    assert "price" in done.out and "retention_seconds" in done.out and done.out.count("app.t") >= 3
    for command in ("\\dg", "\\ds", "\\du", "\\?"):
        assert embedded(data, "-c", command).status == 0
    done = embedded(data, "-c", "\\d nothing")
    assert done.status == 1 and "there is no table or topic" in done.err
    assert embedded(data, "-c", "\\nothing").status == 1


def test_all_of_the_shells_commands_are_in_its_help(data: Path) -> None:
    session = EmbeddedSession(str(data))
    try:
        assert set(MetaCommands(session, Output())._commands) == set(HELP)
    finally:
        session.close()


# -- the command, with a server


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


def test_a_server_answers_as_a_directory_does(served: Served, data: Path) -> None:
    text = (
        "CREATE TABLE prices (id TEXT PRIMARY KEY, price DECIMAL);"
        "INSERT INTO prices VALUES ('a', 9.75);"
        "SELECT id, price FROM prices; SHOW TABLES; CREATE TOPIC s.t; PUBLISH TO s.t VALUES ('x')"
    )
    tailrace("sql", "--data", str(data), "-c", "DROP TABLE orders; DROP TOPIC app.t")
    for style in ("--json", "--csv", "--table"):
        here = tailrace("sql", "--data", str(data), style, "-c", text)
        there = tailrace("sql", style, "-c", text, env={"TAILRACE_URL": served.url})
        assert (here.status, there.status, here.err) == (0, 0, there.err)
        assert re.sub(r"\d{4}-\d\d-\d\dT\S+|\"\d+\"", "", here.out) == re.sub(
            r"\d{4}-\d\d-\d\dT\S+|\"\d+\"", "", there.out
        )
        for where in (["--data", str(data)], ["--url", served.url]):
            assert tailrace("sql", *where, "-c", "DROP TABLE prices; DROP TOPIC s.t").status == 0


def test_numbers_of_a_server_keep_all_their_digits(served: Served) -> None:
    done = tailrace("sql", "--json", "-c", "SELECT 12345678901234567890.123456789 AS n", "--url", served.url)
    assert done.out == '{"n":12345678901234567890.123456789}\n'


def test_an_error_of_the_server_has_its_place(served: Served) -> None:
    done = tailrace("sql", "-c", "SELECT 1;\nSELECT x FROM", "--url", served.url)
    assert done.status == 1 and done.err.startswith("tailrace: -c:2:")
    done = tailrace("sql", "-c", "\nDROP TOPIC nothing", "--url", served.url)
    assert done.status == 1 and done.err.startswith("tailrace: -c:2:1: ") and done.err.endswith("  ^\n")


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = tailrace("sql", "-c", "SELECT 1", "--url", "http://127.0.0.1:1")
    assert done.status == 1 and "cannot reach" in done.err and len(done.err.splitlines()) == 1


def test_a_transaction_spans_statements(tmp_path: Path, server: ServerProcess) -> None:
    """They are sent one by one; the client holds the transaction meanwhile."""
    database.open(tmp_path / "data").close()
    for where in (("--data", str(tmp_path / "data")), ("--url", server.url)):
        run = partial(tailrace, "sql", *where)
        assert run("CREATE TABLE IF NOT EXISTS moved (id TEXT PRIMARY KEY, n BIGINT)").status == 0
        text = "INSERT INTO moved VALUES ('a', 1); UPDATE moved SET n = n + 1 WHERE id = 'a'; SELECT n FROM moved"
        done = run("--json", f"BEGIN; {text}; ROLLBACK")
        assert done.status == 0 and '{"n":2}' in done.out.replace(" ", ""), done
        left = run(f"BEGIN; {text}")
        assert left.status == 1 and "COMMIT" in left.err
        assert run("BEGIN;", f"{text};", "COMMIT;").status == 0
        assert run(f"BEGIN; DELETE FROM moved WHERE id = 'a'; {text}; INSERT INTO moved VALUES ('a', 1)").status == 1
        assert '{"n":2}' in run("--json", "SELECT n FROM moved").out.replace(" ", "")


# -- the shell


class Scripted:
    """A session with fixed results."""

    name = "a test"
    user: str | None = "ann"

    def __init__(self) -> None:
        self.statements: list[str] = []

    in_transaction = False

    def look(self, text: str) -> list[StatementResult]:
        return self.run(text)

    def run(self, text: str, params: Sequence[Any] = ()) -> list[StatementResult]:
        if "system." in text:
            raise Invalid("there are no names")
        self.statements.append(text)
        if text.startswith("STOP"):
            raise KeyboardInterrupt
        if text.startswith("BAD"):
            raise SqlError("line 1, column 2: no", line=1, column=2)
        return [StatementResult("SELECT", [("a", "BIGINT")], [{"a": 1}], 1)]

    def close(self) -> None:
        return


def typed(keys: str, tmp_path: Path) -> tuple[list[str], str]:
    """The statements and the output of a shell in which these keys were pressed."""
    session, out = Scripted(), io.StringIO()
    output = Output(console=Console(file=out, width=80, force_terminal=True, color_system=None))
    with (
        mock.patch.dict(os.environ, {"TAILRACE_HISTORY": str(tmp_path / "history")}),
        create_pipe_input() as source,
    ):
        source.send_text(keys)
        Shell(session, output, source=source, screen=DummyOutput()).run()
    return session.statements, out.getvalue()


@pytest.mark.parametrize(
    ("keys", "statements"),
    [
        ("SELECT 1;\r\x04", ["SELECT 1"]),
        ("SELECT\r1\r;\r\x04", ["SELECT\n1"]),
        ("a; b;\r\\q\r", ["a", "b"]),
        ("SELECT ';\r';\r\x04", ["SELECT ';\n'"]),
        ("forgotten\x03SELECT 2;\r\x04", ["SELECT 2"]),
        ("BAD; never;\rSELECT 3;\r\x04", ["BAD", "SELECT 3"]),
        ("STOP;\rSELECT 4;\r\x04", ["STOP", "SELECT 4"]),
        ("\r\r\x04", []),
    ],
)
def test_what_is_typed_is_run(keys: str, statements: list[str], tmp_path: Path) -> None:
    assert typed(keys, tmp_path)[0] == statements


def test_the_shell_shows_rows_errors_and_what_it_switched(tmp_path: Path) -> None:
    shown = typed("SELECT 1;\rx\r BAD;\rSTOP;\r\\x on\rSELECT 1;\r\\timing\rSELECT 1;\r\\nix\r\\q\r", tmp_path)[1]
    assert "1 row · " in shown
    assert "─── row 1 ───" in shown
    assert "stopped waiting" in shown
    assert "there is no command \\nix" in shown
    assert shown.rindex(" ms") < shown.index("timing: off") < shown.rindex("1 row\n")


def test_an_error_in_the_shell_points_at_the_column(tmp_path: Path) -> None:
    shown = typed("SELECT 1;\rSELECT\r1;  BAD;\r\x04", tmp_path)[1]
    assert "line 2, column 6: no\n  1;  BAD;\n       ^\n" in shown


def test_a_file_is_run_from_the_shell_and_its_error_names_it(tmp_path: Path) -> None:
    path = tmp_path / "my file.sql"
    path.write_text("SELECT 8;\nBAD;\nSELECT 9;")
    statements, shown = typed(f"\\i {path}\r\\i\r\\i {tmp_path}/none\r\x04", tmp_path)
    assert statements == ["SELECT 8", "BAD"]
    assert f"{path}:2:2: no\n  BAD;\n   ^" in shown
    assert "the file is missing" in shown and "cannot read" in shown


class Terminal:
    """The program in a pseudo-terminal."""

    def __init__(self, *args: str, env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        clean = {name: text for name, text in os.environ.items() if not name.startswith("TAILRACE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", *args],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            env={**clean, "TERM": "xterm-256color", "PYTHONPATH": "src", **env},
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def type(self, keys: str) -> None:
        """Press keys; what was seen before is forgotten."""
        self.seen = ""
        os.write(self._master, keys.encode())

    def until(self, pattern: str) -> str:
        """Wait until the screen has shown what the pattern says, since keys were last pressed."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not re.search(pattern, ESCAPES.sub("", self.seen), re.S):
            ready, _, _ = select.select([self._master], [], [], max(0, deadline_s - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            try:
                part = os.read(self._master, 65_536).decode(errors="replace")
            except OSError:
                part = ""
            assert part, f"it ended without {pattern!r}: {self.seen!r}"
            self.seen += part
            for _ in range(part.count("\x1b[6n")):  # where is the cursor?
                os.write(self._master, b"\x1b[1;1R")
        return ESCAPES.sub("", self.seen)

    def ended(self) -> int:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                if select.select([self._master], [], [], 0.05)[0]:
                    self.seen += os.read(self._master, 65_536).decode(errors="replace")
        if self.process.poll() is None:
            self.process.kill()
        os.close(self._master)
        return self.process.wait()


def test_the_shell_in_a_terminal(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "history"
    terminal = Terminal("sql", "--data", str(data), env={"TAILRACE_HISTORY": str(kept)})
    terminal.until("tailrace> ")
    terminal.type("SELECT id, n FROM orders\r")
    terminal.until("-> ")
    terminal.type("ORDER BY id;\r")
    terminal.until(r"a\s+17.*2 rows.*tailrace> ")
    terminal.type("\x1b[A")
    terminal.until("ORDER BY id;")
    terminal.type("\r")
    terminal.until("2 rows.*tailrace> ")
    terminal.type("CREATE USER bob PASSWORD 'hunter2222';\r")
    terminal.until("user bob.*tailrace> ")
    terminal.type("SELECT 1 FROM nowhere;\r")
    terminal.until(r"\^.*tailrace> ")
    terminal.type("\x04")
    assert terminal.ended() == 0
    assert "ORDER BY id" in kept.read_text() and "hunter2222" not in kept.read_text()


def test_ctrl_c_stops_waiting_for_an_answer(served: Served, tmp_path: Path) -> None:
    history_file = str(tmp_path / "history")
    terminal = Terminal("sql", "--url", served.url, env={"TAILRACE_HISTORY": history_file})
    terminal.until("tailrace> ")
    began = threading.Event()
    real = Session.run_statements

    def run_statements(self: Session, text: str, statements: Sequence[Any]) -> Any:
        if "sleepy" in text:
            began.set()
            answered.wait(PATIENCE_S)
        return real(self, text, statements)

    answered = threading.Event()
    with mock.patch.object(Session, "run_statements", run_statements):
        terminal.type("SELECT 1 AS sleepy;\r")
        assert began.wait(PATIENCE_S)
        terminal.type("\x03")
        terminal.until("stopped waiting.*tailrace> ")
        answered.set()
    terminal.type("SELECT 41 + 1 AS answer;\r")
    terminal.until(r"answer.*42.*tailrace> ")
    terminal.type("\\q\r")
    assert terminal.ended() == 0

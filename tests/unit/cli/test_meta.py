"""The shell's meta-commands: what psql users type, and `help`, `exit` and `quit`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli import copying
from tailrace.cli.copying import parse_copy
from tailrace.cli.meta import HELP
from tailrace.cli.shell import meta_command
from tailrace.cli.sql_help import SYNTAX, matching
from tailrace.errors import Invalid
from tests.unit.cli.test_sql import data as data
from tests.unit.cli.test_sql import embedded, typed

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "sql.md"


@pytest.mark.parametrize("keys", ["exit\r", "quit\r", "EXIT;\r", "\\q\r", "\x04"])
def test_the_shell_ends(keys: str, tmp_path: Path) -> None:
    statements, shown = typed(f"SELECT 1;\r{keys}", tmp_path)
    assert statements == ["SELECT 1"]
    assert "Type help for help, exit to quit." in shown


@pytest.mark.parametrize("keys", ["help\r", "HELP;\r", "\\?\r"])
def test_help_lists_every_command(keys: str, tmp_path: Path) -> None:
    shown = typed(f"{keys}exit\r", tmp_path)[1]
    for command in HELP:
        assert f"\n{command} " in shown, command


def test_words_within_a_statement_are_no_commands() -> None:
    assert meta_command("SELECT help") is None
    assert meta_command("help me") is None
    assert meta_command(" help ; ") == "\\?"
    assert meta_command(" \\d orders") == "\\d orders"


def test_conninfo_names_the_server_and_the_user(tmp_path: Path) -> None:
    assert "connected to a test as user 'ann'" in typed("\\conninfo\r\\q\r", tmp_path)[1]


def test_the_syntax_of_statements(tmp_path: Path) -> None:
    shown = typed("\\h\r\\h create topic\r\\h nonsense\r\\q\r", tmp_path)[1]
    assert "ALTER TOPIC ADD SOURCE" in shown
    assert "CREATE TOPIC [IF NOT EXISTS] <topic>" in shown
    assert "there is no statement 'nonsense'" in shown
    assert list(matching("alter topic")) == [
        "ALTER TOPIC ADD SOURCE",
        "ALTER TOPIC DROP SOURCE",
        "ALTER TOPIC SET",
        "ALTER TOPIC SET ALIAS",
        "ALTER TOPIC SET PARTITIONS",
    ]
    assert next(iter(matching("consumer;"))) == "RESET CONSUMER GROUP"


def test_every_statement_of_the_reference_has_its_syntax() -> None:
    def keywords(text: str) -> list[str]:
        return re.findall(r"\b[A-Z]{2,}\b", text)

    parts = re.findall(r"^### ([A-Z][^\n]*)\n(.*?)(?=^##)", REFERENCE.read_text(), re.M | re.S)
    blocks = {name: re.findall(r"^```text\n(.*?)^```", text, re.M | re.S) for name, text in parts}
    documented = {name: keywords(found[0]) for name, found in blocks.items() if found}
    assert {name: keywords(syntax) for name, syntax in SYNTAX.items()} == documented


def test_watch_repeats_the_last_statement(tmp_path: Path) -> None:
    statements, shown = typed("\\watch\rSELECT 1;\r\\watch 0.1 3\r\\watch x\r\\watch 0\r\\q\r", tmp_path)
    assert statements == ["SELECT 1"] * 4
    assert "there is no statement to repeat" in shown
    assert "'x' is not a number of seconds" in shown
    assert "with at least 0.1 seconds" in shown


def test_ctrl_c_ends_watch_and_not_the_shell(tmp_path: Path) -> None:
    statements, shown = typed("STOP;\r\\watch\rSELECT 2;\r\\q\r", tmp_path)
    assert statements == ["STOP", "STOP", "SELECT 2"]
    assert shown.count("stopped waiting") == 1


def test_the_last_statement_is_edited_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/1/2/' \"$1\"\ntouch -d '+10 seconds' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    file = tmp_path / "a file.sql"
    file.write_text("SELECT 1;")
    statements, shown = typed(f"SELECT 1;\r\\e\r\\e {file}\r\\q\r", tmp_path)
    assert statements == ["SELECT 1", "SELECT 2", "SELECT 2"]
    assert "SELECT 2" in shown


def test_nothing_saved_is_nothing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "true")
    statements, shown = typed("SELECT 1;\r\\e\r\\q\r", tmp_path)
    assert statements == ["SELECT 1"]
    assert "nothing was saved" in shown
    monkeypatch.setenv("VISUAL", str(tmp_path / "missing"))
    assert "EDITOR" in typed("SELECT 1;\r\\e\r\\q\r", tmp_path)[1]


# -- on a database


def test_the_contents_of_a_database(data: Path) -> None:
    rows = [line.split() for line in embedded(data, "\\l").out.splitlines()]
    assert ["tables", "1"] in [row[:2] for row in rows]
    assert ["topics", "1"] in [row[:2] for row in rows]
    assert embedded(data, "\\dv").out == "0 views\n"


def test_a_table_and_a_topic_in_detail(data: Path) -> None:
    plain, detailed = (embedded(data, f"\\d{more} orders").out for more in ("", "+"))
    assert detailed.startswith(plain)
    assert "ttl" in detailed and "ACTIVE" in detailed
    topic = embedded(data, '\\d+ "app.t"').out
    assert "retention_seconds" in topic and topic.endswith("Sources\n0 rows\nGroups\n0 rows\n")
    assert "there is no table or topic nothing" in embedded(data, "\\d+ nothing").err
    assert embedded(data, "\\d+").status == 0


def test_rows_are_copied_to_a_file_and_back(data: Path, tmp_path: Path) -> None:
    for name in ("orders.csv", "orders.json"):
        file = tmp_path / name
        assert embedded(data, f"\\copy orders TO '{file}'").out == "2 rows copied\n"
        embedded(data, "DELETE FROM orders WHERE id = 'a'; DELETE FROM orders WHERE id = 'b'")
        assert embedded(data, f"\\copy orders FROM {file}").out == "2 rows copied\n"
        assert (
            embedded(data, "--csv", "SELECT id, price, n FROM orders ORDER BY id").out == "id,price,n\na,9.9,17\nb,,3\n"
        )
    assert (tmp_path / "orders.json").read_text().count("\n") == 2


def test_a_query_is_copied_to_standard_output(data: Path) -> None:
    assert embedded(data, "\\copy (SELECT id FROM orders ORDER BY id) TO STDOUT csv header").out == "id\na\nb\n"
    assert embedded(data, "\\copy (SELECT id FROM orders WHERE id = 'a') to stdout JSON").out == '{"id":"a"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,n\nx,1\ny,many\n", "line 3: 'many' is not a number, which n (BIGINT) needs; 0 rows were copied before"),
        ("id,n\nx\n", "line 2: 1 values for 2 columns"),
        ("id,n\nx,1\na,2\n", "lines 2 to 3: "),
        ('id,n\n"x', "line 2: unexpected end of data"),
        ("id,nix\nx,1\n", "nix"),
    ],
)
def test_an_error_of_a_copy_names_the_line(data: Path, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(content)
    done = embedded(data, f"\\copy orders from '{file}'")
    assert done.status == 1
    assert str(file) in done.err
    assert message in done.err
    assert embedded(data, "--csv", "SELECT count(*) AS n FROM orders").out == "n\n2\n"


def test_rows_of_several_batches(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BATCH_ROWS", 3)
    file = tmp_path / "rows.jsonl"
    rows = [f'{{"id": "r{n}", "price": {n}.50}}' if n % 2 else f'{{"id": "r{n}", "n": {n}}}' for n in range(10)]
    file.write_text("\n".join([*rows, "", '{"id": "a", "n": 1}', "{"]))
    done = embedded(data, f"\\copy orders FROM {file}")
    assert "10 rows were copied before" in done.err
    assert embedded(data, "--csv", "SELECT price FROM orders WHERE id = 'r9'").out == "price\n9.5\n"


@pytest.mark.parametrize(
    "text", ["", "orders", "orders to", "(SELECT 1) from x", "orders sideways x", "orders to x xml"]
)
def test_a_copy_that_cannot_be_read_shows_how_it_is_written(text: str) -> None:
    with pytest.raises(Invalid, match=r"\\copy TABLE FROM FILE"):
        parse_copy(text)


def test_where_a_file_cannot_be_read_or_written(data: Path, tmp_path: Path) -> None:
    assert "cannot read" in embedded(data, f"\\copy orders from {tmp_path}/none").err
    assert "cannot write" in embedded(data, f"\\copy orders to {tmp_path}/none/file").err


# -- statements without -c


def test_an_argument_is_sql_or_a_file(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a file.sql"
    file.write_text("SELECT 2 AS two")
    assert embedded(data, "--csv", "SELECT 1 AS one").out == "one\n1\n"
    assert embedded(data, "--csv", "VALUES(3);").status == 0
    assert embedded(data, "--csv", str(file)).out == "two\n2\n"
    assert embedded(data, "--csv", "-c", "SELECT 0 AS zero", "SELECT 1 AS one", str(file)).out == (
        "zero\n0\n\none\n1\n\ntwo\n2\n"
    )
    missing = embedded(data, "missing.sql")
    assert missing.status == 1 and "cannot read 'missing.sql'" in missing.err
    wrong = embedded(data, "SELECT\n nix FROM orders")
    assert wrong.status == 1 and wrong.err.startswith("tailrace: SQL:2:2: ")

"""The command line: what it prints, where, and with which status it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import apsw
import pytest
from click.testing import CliRunner, Result

import tailrace
from tailrace import build
from tailrace.cli import TREE, GroupEntry, cli, main
from tailrace.cli.serve import JsonLines, _command, _welcome
from tailrace.client import Client
from tailrace.database import Database
from tailrace.errors import NotFound
from tailrace.log.position import offset
from tailrace.storage.pages import VFS
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.streams.commands import Append, CreateStream
from tests.support.server import ServerProcess
from tests.unit.threaded import PATIENCE_S, Served


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


def process(*args: str) -> Done:
    """Run `tailrace` as people do."""
    done = subprocess.run([sys.executable, "-m", "tailrace.cli", *args], capture_output=True, timeout=PATIENCE_S)
    return Done(done.returncode, done.stdout, done.stderr)


def program(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
    """The same without a new process, which takes most of a second: all of `main`, its one-line errors included."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["tailrace", *args]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.dict(os.environ, {**clean, **(env or {})}, clear=True),
        contextlib.chdir(cwd or "."),
    ):
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    return Done(status, out.buffer.getvalue(), err.buffer.getvalue())  # type: ignore[attr-defined]


@pytest.fixture
def server(data_dir: Path) -> Iterator[Served]:
    with Served(data_dir, long_poll_timeout_s=5) as served:
        yield served


def run(server: Served, *args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [*args, "--url", server.url], input=stdin, catch_exceptions=False)


# -- the program


def test_version_and_help() -> None:
    shown = CliRunner().invoke(cli, ["--version"]).output.strip()
    assert shown == f"tailrace, version {tailrace.__version__} ({build.describe()})"
    for args in ([], ["-h"], ["--help"]):
        output = CliRunner().invoke(cli, args).output
        for name in TREE:
            assert re.search(rf"^  {name} ", output, re.M), name


def commands() -> list[tuple[str, str]]:
    """The words of each command, and its summary."""
    found = []
    for name, entry in TREE.items():
        if isinstance(entry, GroupEntry):
            found += [(f"{name} {verb}", command.summary) for verb, command in entry.commands.items()]
        else:
            found.append((name, entry.summary))
    return found


@pytest.mark.parametrize(("words", "summary"), commands())
def test_every_command_exists_and_help_lists_it(words: str, summary: str) -> None:
    *group, name = words.split()
    listed = CliRunner().invoke(cli, [*group, "--help"], terminal_width=80).output.splitlines()
    assert [line.split(None, 1) for line in listed if line.startswith(f"  {name} ")] == [[name, summary]]
    result = CliRunner().invoke(cli, [*words.split(), "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tailrace {words} ") or result.output.startswith(f"Usage: cli {words} ")
    assert len(result.output) > 100


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("tabels", "tailrace tables"),
        ("publish", "tailrace topics publish"),
        ("create-table", "tailrace tables create"),
        ("topic", "tailrace topics"),
        ("srve", "tailrace serve"),
        ("tables lst", "tailrace tables list"),
        ("streams lits", "tailrace streams list"),
        ("xyzzy", "see tailrace --help"),
        ("tables xyzzy", "see tailrace tables --help"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    done = program(*typed.split())
    assert done.returncode == 2
    assert meant in done.stderr.decode()


# What a client command must not wait for: they take most of a second.
HEAVY = {
    "pyarrow", "duckdb", "deltalake", "sqlglot", "pyspark", "cryptography", "argon2", "jwt", "httpx", "uvloop",
    "httptools", "apsw", "prompt_toolkit", "prometheus_client", "asyncio",
    "tailrace.database", "tailrace.runner", "tailrace.http", "tailrace.storage.sqlite",
}  # fmt: skip
NOWHERE = ("--url", "http://127.0.0.1:1")


def loaded(*args: str) -> set[str]:
    """The modules that a command imports."""
    code = """
import sys, tailrace.cli
try:
    tailrace.cli.main()
except SystemExit:
    pass
sys.stderr.write("loaded " + " ".join(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    found = set(done.stderr.rpartition("loaded ")[2].split())
    assert "tailrace.cli" in found, done.stderr
    return found


@pytest.mark.parametrize(
    "args",
    [
        ("--version",), ("--help",), ("tables", "--help"), ("tabels",), ("completion", "bash"),
        *((*words.split(), "--help") for words in ("sql", "get", "topics publish", "users create", "keys create")),
    ],
)  # fmt: skip
def test_help_imports_no_client(args: tuple[str, ...]) -> None:
    found = loaded(*args)
    assert not found & (HEAVY | {"rich", "http.client", "tailrace.client.connection"})


@pytest.mark.parametrize(
    "args",
    [
        ("get", "orders", "a"), ("put", "orders", "{}"), ("tables", "list"), ("tables", "changes", "orders"),
        ("topics", "list"), ("topics", "publish", "x", "message"), ("topics", "consume", "x"), ("groups", "list"),
        ("streams", "list"), ("streams", "append", "x", "message"), ("tail", "x"), ("views", "list"),
        ("server", "status"), ("users", "list"), ("keys", "list"), ("pipeline", "status"),
        ("sql", "--json", "SELECT 1"),
    ],
)  # fmt: skip
def test_a_client_command_imports_no_server_and_no_heavy_library(args: tuple[str, ...]) -> None:
    found = loaded(*args, *NOWHERE)
    assert "tailrace.client.connection" in found
    assert not found & (HEAVY | {"rich"})


def test_errors_are_one_line_and_status_1(tmp_path: Path) -> None:
    done = process("check", "--data", str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"tailrace: there is no database in {str(tmp_path / 'nothing')!r}; name the directory of --data\n"
    )
    done = program("tail", "x", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith(b"tailrace: cannot reach http://127.0.0.1:1")
    assert b"Traceback" not in done.stderr


def test_wrong_use_is_status_2() -> None:
    for args in (["nonsense"], ["serve", "--port", "many"], ["tail"], ["streams", "append"], ["check", "extra"]):
        done = program(*args)
        assert done.returncode == 2, args
        assert b"Traceback" not in done.stderr
        assert b"Usage" in done.stderr


# -- serve


def test_serve_needs_credentials_or_dev_mode(tmp_path: Path) -> None:
    for args, message in (
        ((), "no credentials would be accepted: set a token (TAILRACE_TOKEN) or use --dev"),
        (("--dev", "--host", "0.0.0.0"), "in dev mode authentication is off, so the server listens on loopback only"),
        (("--token", ""), "no credentials would be accepted"),
        (("--dev", "--port", "70000"), "port 70000 is out of range"),
        (("--dev", "--config", "missing.toml"), "cannot read the settings in 'missing.toml'"),
        (("--dev", "--tls-key", "x"), "TLS needs both"),
    ):
        done = program("serve", *args, cwd=tmp_path)
        assert done.returncode == 1, args
        assert message in done.stderr.decode(), args
        assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_serve_with_a_token_from_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--port", "0", "--data", str(tmp_path / "data")]
    with ServerProcess(
        command, env={"TAILRACE_TOKEN": "s3cret-s3cret-s3cret", "TAILRACE_LOG_FORMAT": "json"}
    ) as process:
        with Client(process.url, token="s3cret-s3cret-s3cret") as client:
            client.create("a")
        assert (
            program(
                "streams", "append", "a", "x", "--url", process.url, env={"TAILRACE_TOKEN": "s3cret-s3cret-s3cret"}
            ).returncode
            == 0
        )
        assert program("streams", "append", "a", "x", "--url", process.url).returncode == 1
        assert process.terminate() == 0
    stopped = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    assert stopped[-1]["message"] == "stopped"
    assert stopped[-1]["level"] == "info"


def test_a_directory_in_use(server: Served, data_dir: Path) -> None:
    done = program("serve", "--dev", "--port", "0", "--data", str(data_dir))
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"is open in another process" in done.stderr
    assert b"--data DIR" in done.stderr


def test_what_the_welcome_shows_of_tables_works(server: Served) -> None:
    pytest.importorskip("boto3")
    welcome = _welcome(server.url, "data")
    assert f"{server.url}/v1/tables/<name>/stream" in welcome
    assert run(server, "tables", "create", "orders", "--key", "id:S").exit_code == 0
    _, _, pasted = welcome[welcome.index("python -c") : welcome.index("Metrics:")].partition("python ")
    shown = subprocess.run(
        [sys.executable, *shlex.split(pasted)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (shown.returncode, shown.stdout) == (0, "['orders']\n"), shown.stderr


def test_what_the_welcome_shows_of_topics_works(server: Served, tmp_path: Path) -> None:
    welcome = _welcome(server.url, "data")
    pasted = welcome[welcome.index("  export TAILRACE_URL") : welcome.index("Tables, for any AWS SDK")]
    assert f"export TAILRACE_URL={server.url}" in pasted
    lines, shell, _ = pasted.rpartition(f"  {_command()} sql  ")  # the last one is for a terminal
    assert shell
    (tmp_path / "tailrace").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tailrace.cli "$@"\n')
    (tmp_path / "tailrace").chmod(0o755)
    script = f"set -e\n{lines.replace(_command(), str(tmp_path / 'tailrace'))}"
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r'^0:0 .* Insert chat  .*"body":"hello"', shown.stdout, re.M), shown.stdout


def test_log_lines_as_json() -> None:
    import logging

    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        record = logging.LogRecord("tailrace.x", logging.ERROR, "f", 1, "went %s", ("wrong",), sys.exc_info())
    facts = json.loads(JsonLines().format(record))
    assert (facts["level"], facts["logger"], facts["message"]) == ("error", "tailrace.x", "went wrong")
    assert facts["at"].endswith("Z")
    assert "ZeroDivisionError" in facts["traceback"]


# -- check


@pytest.fixture
def database(data_dir: Path) -> Path:
    with Database(SqliteEngine(data_dir), housekeeping_s=None) as db:
        db.execute(CreateStream("a", "text/plain", b"hello"))
        db.execute(Append("a", b"world", "text/plain"))
    return data_dir


def test_check_of_a_sound_database(database: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "--data", str(database)])
    assert (result.exit_code, result.output) == (
        0,
        "1 streams, 0 tables, 0 items, 0 records, 1 logs, 2 entries, 10 bytes: clean\n",
    )


def test_check_of_a_damaged_database(database: Path) -> None:
    connection = apsw.Connection(str(database / FILE), vfs=VFS)
    connection.execute("DELETE FROM staged_entries WHERE position = 0; UPDATE logs SET forks = 3")
    connection.close()
    done = program("check", "--data", str(database))
    assert done.returncode == 1
    assert done.stdout == b"1 streams, 0 tables, 0 items, 0 records, 1 logs, 1 entries, 5 bytes: 2 findings\n"
    assert b"log 1: first entry at 5, retained from 0" in done.stderr
    assert b"log 1: counts 3 forks, there are 0" in done.stderr


def test_check_of_a_torn_file(database: Path) -> None:
    file = database / FILE
    content = bytearray(file.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    file.write_bytes(content)
    done = program("check", "--data", str(database))
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


def test_check_while_a_server_runs(server: Served, data_dir: Path) -> None:
    with Client(server.url) as client:
        client.create("a")
        client.append("a", b"x")
    done = program("check", "--data", str(data_dir))
    assert (done.returncode, done.stdout) == (
        0,
        b"1 streams, 0 tables, 0 items, 0 records, 1 logs, 1 entries, 1 bytes: clean\n",
    )


@pytest.mark.parametrize(
    ("sound", "damaged"), [(b"text/plain", b"text/pl\xffin"), (b"body BLOB NOT NULL", b"body 'LOB NOT NULL")]
)
def test_check_of_rows_that_cannot_be_read(database: Path, sound: bytes, damaged: bytes) -> None:
    file = database / FILE
    assert sound in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(sound, damaged))
    done = program("check", "--data", str(database))
    assert done.returncode == 1
    assert b"fails its checksum" in done.stderr
    assert b"clean" not in done.stdout
    assert done.stderr.count(b"\n") < 5


def test_check_of_what_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / FILE).write_bytes(b"not a database" * 1000)
    for name, message in (
        ("empty", b"tailrace: there is no database in "),
        ("file", b"tailrace: there is no database in "),
        ("garbage", b"tailrace: the database is damaged: "),
    ):
        done = program("check", "--data", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (1, b""), name
        assert done.stderr.startswith(message), name
        assert done.stderr.count(b"\n") == 1, name


# -- append


def test_append_a_message(server: Served) -> None:
    result = run(server, "streams", "append", "a", "hello")
    assert (result.exit_code, result.output) == (0, offset(5) + "\n")
    assert run(server, "streams", "append", "a", " world").output == offset(11) + "\n"
    with Client(server.url) as client:
        assert client.read("a").body == b"hello world"
        assert client.head("a")["content-type"] == "text/plain"


def test_append_standard_input(server: Served) -> None:
    body = bytes(range(256)) * 20_000  # more than one request carries
    result = run(server, "streams", "append", "a", "--content-type", "application/octet-stream", stdin=body)
    assert result.output == offset(len(body)) + "\n"
    with Client(server.url) as client:
        found, at = b"", "-1"
        while True:
            page = client.read("a", at)
            found, at = found + page.body, page.next
            if page.up_to_date:
                break
        assert found == body


def test_append_lines_of_text(server: Served) -> None:
    result = run(server, "streams", "append", "a", "--lines", "--close", stdin=b"one\n\nthree\nno newline")
    assert result.output == offset(21) + "\n"
    with Client(server.url) as client:
        page = client.read("a")
        assert (page.body, page.closed) == (b"one\n\nthree\nno newline", True)
        assert client.read("a", offset(4)).body == b"\nthree\nno newline", "each line is a message"


def test_append_lines_of_json(server: Served) -> None:
    lines = b'{"n": 1}\n\n[2, 3]\n  "four"  \n5'
    result = run(server, "streams", "append", "j", "--content-type", "application/json", "--lines", stdin=lines)
    assert result.exit_code == 0
    with Client(server.url) as client:
        assert json.loads(client.read("j").body) == [{"n": 1}, [2, 3], "four", 5]
    assert run(server, "streams", "append", "j", "6").exit_code == 0, "the type is fetched from the server"
    assert run(server, "streams", "append", "j", stdin=b"[7, 8]").exit_code == 0
    with Client(server.url) as client:
        assert json.loads(client.read("j").body)[4:] == [6, 7, 8]


def test_append_and_close(server: Served) -> None:
    assert run(server, "streams", "append", "a", "last", "--close").exit_code == 0
    assert run(server, "streams", "append", "b", "--close", stdin=b"").output == offset(0) + "\n"
    with Client(server.url) as client:
        assert client.read("a").closed
        assert client.read("b").closed
    done = program("streams", "append", "a", "more", "--url", server.url)
    assert done.returncode == 1
    assert b"is closed and takes no more appends" in done.stderr


def test_append_to_a_stream_with_settings_of_its_own(server: Served) -> None:
    """It is there: nothing is to be created, so its settings need not be known."""
    with Client(server.url) as client:
        client.create("a", "text/html", ttl_s=1000)
    assert run(server, "streams", "append", "a", "<p>").exit_code == 0


def test_append_refused(server: Served) -> None:
    for args, stdin, message in (
        (("streams", "append", "a", "x", "--no-create"), b"", b"there is no stream 'a'"),
        (("streams", "append", "a"), b"", b"there is nothing to append"),
        (("streams", "append", "j", "{", "--content-type", "application/json"), b"", b"not valid JSON"),
        (("streams", "append", "k", "x", "--content-type", "nonsense"), b"", b"is not a media type"),
    ):
        done = program(*args, "--url", server.url, stdin=stdin)
        assert done.returncode == 1, args
        assert message in done.stderr, args


def test_append_refused_changes_nothing(server: Served) -> None:
    as_json = ("--content-type", "application/json")
    for args, stdin, message in (
        ((), b"", b"there is nothing to append"),
        (("",), b"", b"there is nothing to append"),
        (("--lines", *as_json), b"\n  \n", b"there is nothing to append"),
        (as_json, b"", b"there is nothing to append"),
        (("{", *as_json), b"", b"not valid JSON"),
        (("[]", *as_json), b"", b"the array is empty"),
        (as_json, b"1 2", b"not valid JSON"),
        (("--lines", *as_json), b"1\n{\n", b"line 2 of the input is not one JSON value"),
    ):
        done = program("streams", "append", "a", *args, "--url", server.url, stdin=stdin)
        assert (done.returncode, done.stdout) == (1, b""), args
        assert message in done.stderr, args
        assert done.stderr.count(b"\n") == 1, args
    with Client(server.url) as client, pytest.raises(NotFound):
        client.head("a")


def test_append_of_what_is_not_utf8(server: Served) -> None:
    assert program("streams", "append", "a", os.fsdecode(b"\xff!"), "--url", server.url).returncode == 0
    with Client(server.url) as client:
        assert client.read("a").body == b"\xff!"
    for command in (("streams", "append", os.fsdecode(b"\xff"), "x"), ("tail", os.fsdecode(b"\xff"))):
        done = program(*command, "--url", server.url)
        assert done.returncode == 1
        assert done.stderr == b"tailrace: '\\udcff' cannot name a stream: it is not valid UTF-8\n"


def test_append_a_message_and_close_at_once(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request: nobody sees the message in a stream that is still open."""
    calls: list[tuple[bytes, bool]] = []
    original = Client.append

    def append(self: Client, path: str, body: bytes, kind: str = "text/plain", *, close: bool = False) -> str:
        calls.append((body, close))
        return original(self, path, body, kind, close=close)

    monkeypatch.setattr(Client, "append", append)
    assert run(server, "streams", "append", "a", "last", "--close").exit_code == 0
    assert run(server, "streams", "append", "b", "", "--close").exit_code == 0
    assert calls == [(b"last", True), (b"", True)]


@pytest.mark.parametrize(
    ("kind", "args", "pieces", "expected"),
    [
        ("text/plain", (), [b"one", b" two"], [b"one", b"one two"]),
        ("text/plain", ("--lines",), [b"one\ntw", b"o\nend"], [b"one\n", b"one\ntwo\n"]),
        ("application/json", ("--lines",), [b'{"n":1}\n{"n":', b"2}\n3"], [b'[{"n":1}]', b'[{"n":1},{"n":2}]']),
    ],
)
def test_append_from_a_live_pipe(
    server: Served, kind: str, args: tuple[str, ...], pieces: list[bytes], expected: list[bytes]
) -> None:
    """What is there is sent, though the pipe stays open."""
    command = [sys.executable, "-m", "tailrace.cli", "streams", "append", "a", *args, "--url", server.url]
    with Client(server.url) as client:
        client.create("a", kind)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            assert running.stdin is not None
            for piece, body in zip(pieces, expected, strict=True):
                running.stdin.write(piece)
                running.stdin.flush()
                until = time.monotonic() + PATIENCE_S
                while client.read("a").body != body:
                    assert time.monotonic() < until, client.read("a").body
                    time.sleep(0.01)
            running.stdin.close()
            assert running.wait(PATIENCE_S) == 0
        found = client.read("a").body
    last = {"application/json": b'[{"n":1},{"n":2},3]', "text/plain": b"one\ntwo\nend" if args else b"one two"}
    assert found == last[kind]


def test_append_lines_longer_than_a_read(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cli.pipes.CHUNK_BYTES", 3)
    lines = [b"a" * length for length in range(9)]
    assert run(server, "streams", "append", "a", "--lines", stdin=b"\n".join(lines)).exit_code == 0
    values = b"\r\n".join(b'"%s"' % line for line in lines)
    assert (
        run(server, "streams", "append", "j", "--content-type", "application/json", "--lines", stdin=values).exit_code
        == 0
    )
    with Client(server.url) as client:
        assert client.read("a").body == b"\n".join(lines)
        assert client.read("j").body == b"[" + b",".join(b'"%s"' % line for line in lines) + b"]"


@pytest.mark.parametrize("bad", [b"1,2", b"{", b"]", b"1 2", b'"\xff"', b"nonsense", b"[" * 100_000])
def test_append_a_line_that_is_not_one_value(server: Served, monkeypatch: pytest.MonkeyPatch, bad: bytes) -> None:
    command = ("streams", "append", "j", "--content-type", "application/json", "--lines", "--url", server.url)
    done = program(*command, stdin=b"1\n\n" + bad + b"\n4\n")
    assert done.returncode == 1
    assert done.stderr.startswith(b"tailrace: line 3 of the input is not one JSON value: ")
    assert done.stderr.endswith(b"; nothing was appended\n")
    monkeypatch.setattr("tailrace.cli.pipes.CHUNK_BYTES", 4)
    done = program(*command, stdin=b"1\n\n\n" + b"22\n" + bad + b"\n6\n")
    assert done.returncode == 1
    assert done.stderr.startswith(b"tailrace: line 5 of the input is not one JSON value: ")
    assert done.stderr.endswith(b"; the 2 messages up to line 4 were appended\n")
    with Client(server.url) as client:
        assert client.read("j").body == b"[1,22]"


def test_a_url_that_names_no_server() -> None:
    for url in ("notaurl", "localhost:4437"):
        for command in (("streams", "append", "a", "x"), ("tail", "a")):
            done = program(*command, "--url", url)
            assert done.returncode == 1
            assert done.stderr == (
                f"tailrace: {url!r} is not a server's URL: give one like http://127.0.0.1:4437\n".encode()
            )


# -- tail


def test_tail_of_what_is_there(server: Served) -> None:
    with Client(server.url) as client:
        client.create("a")
        client.append("a", b"one\n")
        client.append("a", b"two\n")
        client.create("j", "application/json")
        client.append("j", b'[{"n": 1}, "zw\xc3\xb6lf"]', "application/json")
    assert run(server, "tail", "a", "--no-follow").output == "one\ntwo\n"
    assert run(server, "tail", "a", "--no-follow", "--from", offset(4)).output == "two\n"
    assert run(server, "tail", "a", "--no-follow", "--from", "now").output == ""
    assert run(server, "tail", "j", "--no-follow").output == '{"n": 1}\n"zwölf"\n'
    done = program("tail", "a", "--no-follow", "--offsets", "--url", server.url)
    assert (done.stdout, done.stderr.decode().split()) == (b"one\ntwo\n", [offset(8)])
    assert program("tail", "missing", "--url", server.url).returncode == 1
    assert b"is malformed" in program("tail", "a", "--from", "x", "--url", server.url).stderr


def test_tail_follows_until_the_stream_is_closed(server: Served) -> None:
    with Client(server.url) as client:
        client.create("a")
        client.append("a", b"old ")
        results: list[Done] = []
        thread = threading.Thread(target=lambda: results.append(process("tail", "a", "--url", server.url)))
        thread.start()
        while server.running.db.metrics.live_readers == 0:
            assert thread.is_alive()
        client.append("a", b"new ")
        client.append("a", b"end", close=True)
        thread.join(PATIENCE_S)
    assert results == [Done(0, b"old new end", b"")]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", [(), ("--no-follow",)])
def test_tail_into_a_closed_pipe(server: Served, options: tuple[str, ...], unbuffered: str) -> None:
    """As with `tailrace tail ... | head -1`: whoever reads has enough."""
    with Client(server.url) as client:
        client.create("a")
        client.append("a", b"line\n" * 400_000, close=True)
    command = [sys.executable, "-m", "tailrace.cli", "tail", "a", *options, "--url", server.url]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"line\n"
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(PATIENCE_S) == 0

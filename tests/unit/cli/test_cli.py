"""The command line: what it prints, where, and with which status it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import apsw
import pytest
from click.testing import CliRunner, Result

import tailrace
from tailrace.cli import cli, main
from tailrace.cli.serve import JsonLines
from tailrace.client import Client
from tailrace.database import Database
from tailrace.log.position import offset
from tailrace.storage.sqlite import FILE, SqliteEngine
from tailrace.streams.commands import Append, Create
from tests.support.server import ServerProcess
from tests.unit.threaded import PATIENCE_S, Served


class Done(NamedTuple):
    returncode: int
    stdout: bytes
    stderr: bytes


def process(*args: str) -> Done:
    """Run `tailrace` as people do."""
    done = subprocess.run([sys.executable, "-m", "tailrace.cli", *args], capture_output=True, timeout=60)
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
    assert CliRunner().invoke(cli, ["--version"]).output.strip().endswith(tailrace.__version__)
    for args in ([], ["-h"], ["--help"]):
        output = CliRunner().invoke(cli, args).output
        for command in ("serve", "check", "tail", "append", "bench"):
            assert command in output
    for command in ("serve", "check", "tail", "append", "bench"):
        result = CliRunner().invoke(cli, [command, "--help"])
        assert result.exit_code == 0
        assert len(result.output) > 100


def test_errors_are_one_line_and_status_1(tmp_path: Path) -> None:
    done = process("check", "--data", str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == (
        f"tailrace: there is no database in {str(tmp_path / 'nothing')!r}; name the directory given to --data\n"
    )
    done = program("tail", "x", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith(b"tailrace: cannot reach http://127.0.0.1:1")
    assert b"Traceback" not in done.stderr


def test_wrong_use_is_status_2() -> None:
    for args in (["nonsense"], ["serve", "--port", "many"], ["tail"], ["append"], ["check", "extra"]):
        done = program(*args)
        assert done.returncode == 2, args
        assert b"Traceback" not in done.stderr
        assert b"Usage" in done.stderr


# -- serve


def test_serve_refuses_to_let_nobody_or_everybody_in(tmp_path: Path) -> None:
    for args, message in (
        ((), "nobody could be let in: set a token (TAILRACE_TOKEN) or use --dev"),
        (("--dev", "--host", "0.0.0.0"), "--dev lets everyone in, so it listens on loopback only"),
        (("--token", ""), "nobody could be let in"),
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
    with ServerProcess(command, env={"TAILRACE_TOKEN": "s3cret", "TAILRACE_LOG_FORMAT": "json"}) as process:
        with Client(process.url, token="s3cret") as client:
            client.create("a")
        assert program("append", "a", "x", "--url", process.url, env={"TAILRACE_TOKEN": "s3cret"}).returncode == 0
        assert program("append", "a", "x", "--url", process.url).returncode == 1
        assert process.terminate() == 0
    stopped = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    assert stopped[-1]["message"] == "stopped"
    assert stopped[-1]["level"] == "info"


def test_a_directory_in_use(server: Served, data_dir: Path) -> None:
    done = program("serve", "--dev", "--port", "0", "--data", str(data_dir))
    assert done.returncode == 1
    assert b"another process has" in done.stderr


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
        db.execute(Create("a", "text/plain", b"hello"))
        db.execute(Append("a", b"world", "text/plain"))
    return data_dir


def test_check_of_a_sound_database(database: Path) -> None:
    result = CliRunner().invoke(cli, ["check", "--data", str(database)])
    assert (result.exit_code, result.output) == (0, "1 streams, 1 logs, 2 entries, 10 bytes: clean\n")


def test_check_of_a_damaged_database(database: Path) -> None:
    connection = apsw.Connection(str(database / FILE))
    connection.execute("DELETE FROM entries WHERE position = 0; UPDATE logs SET forks = 3")
    connection.close()
    done = program("check", "--data", str(database))
    assert done.returncode == 1
    assert done.stdout == b"1 streams, 1 logs, 1 entries, 5 bytes: 2 findings\n"
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
    assert (done.returncode, done.stdout) == (0, b"1 streams, 1 logs, 1 entries, 1 bytes: clean\n")


# -- append


def test_append_a_message(server: Served) -> None:
    result = run(server, "append", "a", "hello")
    assert (result.exit_code, result.output) == (0, offset(5) + "\n")
    assert run(server, "append", "a", " world").output == offset(11) + "\n"
    with Client(server.url) as client:
        assert client.read("a").body == b"hello world"
        assert client.head("a")["content-type"] == "text/plain"


def test_append_standard_input(server: Served) -> None:
    body = bytes(range(256)) * 20_000  # more than one request carries
    result = run(server, "append", "a", "--content-type", "application/octet-stream", stdin=body)
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
    result = run(server, "append", "a", "--lines", "--close", stdin=b"one\n\nthree\nno newline")
    assert result.output == offset(21) + "\n"
    with Client(server.url) as client:
        page = client.read("a")
        assert (page.body, page.closed) == (b"one\n\nthree\nno newline", True)
        assert client.read("a", offset(4)).body == b"\nthree\nno newline", "each line is a message"


def test_append_lines_of_json(server: Served) -> None:
    lines = b'{"n": 1}\n\n[2, 3]\n  "four"  \n5'
    result = run(server, "append", "j", "--content-type", "application/json", "--lines", stdin=lines)
    assert result.exit_code == 0
    with Client(server.url) as client:
        assert json.loads(client.read("j").body) == [{"n": 1}, [2, 3], "four", 5]
    assert run(server, "append", "j", "6").exit_code == 0, "the type is asked from the server"
    assert run(server, "append", "j", stdin=b"[7, 8]").exit_code == 0
    with Client(server.url) as client:
        assert json.loads(client.read("j").body)[4:] == [6, 7, 8]


def test_append_and_close(server: Served) -> None:
    assert run(server, "append", "a", "last", "--close").exit_code == 0
    assert run(server, "append", "b", "--close", stdin=b"").output == offset(0) + "\n"
    with Client(server.url) as client:
        assert client.read("a").closed
        assert client.read("b").closed
    done = program("append", "a", "more", "--url", server.url)
    assert done.returncode == 1
    assert b"is closed and takes no more appends" in done.stderr


def test_append_to_a_stream_with_settings_of_its_own(server: Served) -> None:
    """It is there: nothing is to be created, so its settings need not be known."""
    with Client(server.url) as client:
        client.create("a", "text/html", ttl_s=1000)
    assert run(server, "append", "a", "<p>").exit_code == 0


def test_append_refused(server: Served) -> None:
    for args, stdin, message in (
        (("append", "a", "x", "--no-create"), b"", b"there is no stream 'a'"),
        (("append", "a"), b"", b"there is nothing to append"),
        (("append", "j", "{", "--content-type", "application/json"), b"", b"not valid JSON"),
        (("append", "k", "x", "--content-type", "nonsense"), b"", b"is not a media type"),
    ):
        done = program(*args, "--url", server.url, stdin=stdin)
        assert done.returncode == 1, args
        assert message in done.stderr, args


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

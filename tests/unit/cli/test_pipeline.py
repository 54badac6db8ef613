"""`tailrace pipeline`: what it says when something is wrong, and what needs no Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tailrace.cli import cli
from tailrace.cli.pipeline_board import ProgressDisplay, audit_rows, running_jobs, stored_jobs
from tailrace.spark.jobs.progress import Progress
from tests.support.server import ServerProcess
from tests.unit.cli.test_cli import program


def drawn(rendered: object) -> str:
    import io

    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=200).print(rendered)
    return out.getvalue()


def test_init_writes_a_file_that_can_be_run_and_overwrites_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailrace.spark.jobs.settings import PipelineSettings, load

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAILRACE_URL", raising=False)
    done = CliRunner().invoke(cli, ["pipeline", "init"])
    assert done.exit_code == 0, done.output
    assert load() == PipelineSettings()
    before = Path("pipeline.toml").read_text()
    again = program("pipeline", "init", str(tmp_path / "pipeline.toml"))
    assert again.returncode == 1
    assert b"already" in again.stderr
    assert Path("pipeline.toml").read_text() == before
    nowhere = program("pipeline", "init", str(tmp_path / "no" / "x.toml"))
    assert nowhere.returncode == 1
    assert nowhere.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tier",), "--table, --topic, --stream or --all"),
        (("tier", "--all", "--conf", "memory"), "spark.executor.memory=4g"),
        (("restore", "orders", "--into", "x", "--at-time", "1", "--at-sequence", "2"), "exclude each other"),
        (("audit",), "--table or --topic"),
    ],
)
def test_wrong_usage_is_reported(arguments: tuple[str, ...], message: str) -> None:
    done = program("pipeline", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tier", "--all", "--url", "http://127.0.0.1:1"), "is the server running"),
        (("tier", "--all", "--url", "nonsense"), "is not a server's URL"),
        (("compact", "--retention", "soon"), "'soon' is not a duration"),
        (("compact", "--target-bytes", "big"), "'big' is not a size"),
        (("run", "--config", "absent.toml"), "absent.toml"),
        (("status", "--url", "http://127.0.0.1:1"), "is the server running"),
    ],
)
def test_an_error_is_one_line_and_status_1(arguments: tuple[str, ...], message: str) -> None:
    done = program("pipeline", *arguments)
    assert done.returncode == 1
    assert message in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_an_unknown_key_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[teir]\n")
    done = program("pipeline", "run", "--config", str(tmp_path / "p.toml"))
    assert done.returncode == 1
    assert b"teir" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_without_pyspark_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with ServerProcess.tailrace(tmp_path / "data") as server:
        done = program("pipeline", "tier", "--all", "--once", "--url", server.url)
    assert done.returncode == 1
    assert b"pip install 'tailrace[spark]'" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_status_shows_what_the_server_knows(tmp_path: Path) -> None:
    from tailrace.client import Client

    with ServerProcess.tailrace(tmp_path / "data") as server, Client(server.url) as client:
        empty = program("pipeline", "status", "--url", server.url)
        assert empty.returncode == 0
        assert b"no job has run yet" in empty.stderr
        client.register_job("tier/tables/a", "tier", source="tables/a", target="cold")
        client.report_job("tier/tables/a", "running", rows=1234, message="7 behind")
        shown = program("pipeline", "status", "--url", server.url).stdout.decode()
        assert "tier/tables/a" in shown
        assert "running" in shown
        assert "1,234" in shown
        (line,) = program("pipeline", "status", "--json", "--url", server.url).stdout.splitlines()
        assert json.loads(line)["name"] == "tier/tables/a"


# -- what is shown


def test_lines_are_written_now_and_then_and_when_something_turns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with ProgressDisplay(every_s=1000.0) as shown:
        for rows in range(5):
            shown(Progress(job="a", kind="tier", state="running", rows=rows))
        shown(Progress(job="a", kind="tier", state="retrying", message="the \x1b[31mserver"))
        shown(Progress(job="b", kind="tier", state="waiting"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["a: running", "a: retrying, the \\x1b[31mserver", "b: waiting"]


def test_json_lines_are_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(as_json=True, every_s=0.0) as shown:
        shown(Progress(job="a", kind="tier", state="running", rows=5))
        shown(Progress(job="a", kind="tier", state="running", rows=5))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["rows"] == 5


def test_nothing_is_written_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay(quiet=True) as shown:
        shown(Progress(job="a", kind="tier", state="failed"))
    assert capsys.readouterr() == ("", "")


def test_tables_are_drawn() -> None:
    progress = Progress(
        job="tier/a", kind="tier", state="running", rows=10, rows_per_s=5.0, lag=3, batch_rows=10, batch_s=0.5,
        cold_bytes=2048, message="x",
    )  # fmt: skip
    text = drawn(running_jobs([progress]))
    assert all(each in text for each in ("tier/a", "running", "10 in 0.5 s", "2.0 KiB", "lag"))
    assert "starting" in drawn(running_jobs([]))
    row = {"name": "a", "kind": "b", "source": "", "target": "", "state": "failed", "rows": 5, "updated_at": "now"}
    assert "failed" in drawn(stored_jobs([row]))
    change = {"time": 1, "sequence": 2, "event": "MODIFY", "changed": [{"name": "n", "before": "1", "after": None}]}
    assert "n: 1 → –" in drawn(audit_rows([change]))
    assert "no changes" in drawn(audit_rows([]))

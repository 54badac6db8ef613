"""Streams, groups, views and the server on the command line, and what a shell completes; against a real server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.test_cli import program
from tests.unit.cli.test_tables_cli import tailrace
from tests.unit.threaded import PATIENCE_S, Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        env = {"TAILRACE_URL": server.url}
        sql = (
            "CREATE TABLE shop.orders (id TEXT PRIMARY KEY, total DECIMAL) WITH (stream = 'NEW_AND_OLD_IMAGES');"
            "CREATE TOPIC shop.news; CREATE MATERIALIZED VIEW shop.count AS SELECT count(*) AS n FROM shop.orders"
        )
        for args in (
            ("sql", sql),
            ("streams", "append", "docs/one", "hello"),
            ("streams", "append", "docs/two", "[1, 2]", "--content-type", "application/json"),
            ("streams", "append", "logs/one", "x", "--close"),
            ("topics", "publish", "shop.news", "a", "b", "c"),
            ("topics", "consume", "shop.news", "--group", "mailer", "--limit", "1"),
        ):
            done = tailrace(*args, env=env)
            assert done.status == 0, done
        yield server


# -- streams


def test_streams_are_listed_by_prefix_and_to_a_limit(served: Served) -> None:
    env = {"TAILRACE_URL": served.url}
    heading, *lines = tailrace("streams", "list", env=env).out.splitlines()
    assert heading.split("  ")[0] == "stream"
    assert [line.split()[0] for line in lines] == ["docs/one", "docs/two", "logs/one"]
    assert "closed" in lines[2] and "open" in lines[0]
    found = tailrace("streams", "list", "docs/", "--json", env=env).lines
    assert [row["path"] for row in found] == ["docs/one", "docs/two"]
    assert (found[0]["content_type"], found[0]["next_position"], found[0]["closed"]) == ("text/plain", 5, False)
    limited = tailrace("streams", "list", "--limit", "1", env=env)
    assert "more than 1 streams" in limited.err and "docs/one" in limited.out and "docs/two" not in limited.out


def test_a_stream_is_created_described_and_deleted(served: Served) -> None:
    env = {"TAILRACE_URL": served.url}
    assert (
        tailrace("streams", "create", "new", "--content-type", "application/json", "--ttl", "60", env=env).status == 0
    )
    described = tailrace("streams", "describe", "new", env=env).out
    assert described.startswith("content-type: application/json\n")
    assert "stream-next-offset: " in described and "stream-ttl: 60\n" in described
    assert tailrace("streams", "delete", "new", env=env) == (0, "", "")
    gone = tailrace("streams", "describe", "new", env=env)
    assert gone.status == 1 and len(gone.err.splitlines()) == 1


# -- groups


def test_a_group_is_moved_and_dropped(served: Served) -> None:
    env = {"TAILRACE_URL": served.url}

    def lag() -> list[int]:
        return [row["lag"] for row in tailrace("groups", "list", "shop.news", "--json", env=env).lines]

    assert lag() == [2]
    for place, left in (("earliest", 3), ("latest", 0), ("1", 2), ("2020-01-01T00:00:00Z", 3)):
        done = tailrace("groups", "reset", "mailer", "shop.news", "--to", place, env=env)
        assert (done.status, done.err) == (0, "")
        assert lag() == [left], place
    assert tailrace("groups", "reset", "mailer", "shop.news", "--to", "0", "--partition", "7", env=env).status == 1
    wrong = tailrace("groups", "reset", "mailer", "shop.news", "--to", "soon", env=env)
    assert wrong.status == 1 and "give earliest, latest, a number or an ISO 8601 time" in wrong.err
    tailrace("topics", "consume", "shop.news", "--group", "it's", "--limit", "1", env=env)
    assert tailrace("groups", "drop", "it's", "shop.news", env=env).status == 0
    assert lag() == [3]
    assert tailrace("groups", "drop", "nobody", "shop.news", env=env).status == 1


# -- views


def test_views_are_listed_described_and_dropped(served: Served) -> None:
    env = {"TAILRACE_URL": served.url}
    assert "shop.count" in tailrace("views", "list", env=env).out
    assert [row["name"] for row in tailrace("views", "list", "--json", env=env).lines] == ["shop.count"]
    assert "count(*)" in json.loads(tailrace("views", "describe", "shop.count", env=env).out)["sql"]
    assert "planning" in tailrace("views", "explain", "shop.count", env=env).out
    assert "filled again" in tailrace("views", "refresh", "shop.count", env=env).out
    assert "--yes" in tailrace("views", "drop", "shop.count", env=env).err
    assert tailrace("views", "describe", "nothing", env=env).status == 1
    tailrace("sql", "CREATE MATERIALIZED VIEW gone AS SELECT count(*) AS n FROM shop.orders", env=env)
    assert tailrace("views", "drop", "gone", "--yes", env=env).status == 0
    assert [row["name"] for row in tailrace("views", "list", "--json", env=env).lines] == ["shop.count"]


# -- the server


def test_the_status_and_metrics_of_a_server(served: Served) -> None:
    env = {"TAILRACE_URL": served.url}
    assert tailrace("server", "status", env=env).out.startswith(f"{served.url}: ready (")
    (facts,) = tailrace("server", "status", "--json", env=env).lines
    assert (facts["url"], facts["status"]) == (served.url, "ready")
    metrics = tailrace("server", "metrics", "tailrace_commits", env=env).out.splitlines()
    assert all("tailrace_commits" in line for line in metrics) and len(metrics) == 3
    gone = tailrace("server", "status", env={"TAILRACE_URL": "http://127.0.0.1:1"})
    assert gone.status == 1 and gone.err.startswith("tailrace: cannot reach http://127.0.0.1:1")


def test_a_port_that_is_taken_is_one_line_with_the_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = program("serve", "--dev", "--port", port, "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"tailrace: port {port} of 127.0.0.1 is taken by another process")
    assert "--port N" in line


# -- completion


def completed(words: str, url: str) -> list[str]:
    """What bash offers for the last of these words."""
    parts = words.split(" ")
    env = {
        "_TAILRACE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(parts) - 1),
        "TAILRACE_URL": url,
        "PATH": os.environ["PATH"],
        "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
    }
    command = [sys.executable, "-m", "tailrace.cli"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("tailrace str", ["streams"]),
        ("tailrace tables cha", ["changes", "change-stream"]),
        ("tailrace tail docs/", ["docs/one", "docs/two"]),
        ("tailrace get shop.o", ["shop.orders"]),
        ("tailrace topics publish sh", ["shop.news"]),
        ("tailrace topics consume shop.news --group m", ["mailer"]),
        ("tailrace groups drop mai", ["mailer"]),
        ("tailrace views drop ", ["shop.count"]),
        ("tailrace pipeline tier --to", ["--topic", "--token"]),
        ("tailrace --profile", ["--profile"]),
        ("tailrace tail --profile h", ["here"]),
    ],
)
def test_a_shell_completes_commands_and_names(
    served: Served, profiles_home: Path, words: str, names: list[str]
) -> None:
    (profiles_home / "tailrace.toml").write_text("[here]\nurl = 'http://127.0.0.1:1'\n")
    assert sorted(completed(words, served.url)) == sorted(names)


def test_completion_without_a_server_is_silent() -> None:
    assert completed("tailrace tail x", "http://127.0.0.1:1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script(shell: str) -> None:
    script = program("completion", shell).stdout.decode()
    assert "_TAILRACE_COMPLETE" in script and "tailrace" in script

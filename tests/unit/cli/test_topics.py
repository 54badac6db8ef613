"""Topics on the command line: what is printed, acknowledged and given back; against a real server."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import click
import pytest

from tailrace.cli.options import connect, server_options
from tailrace.client import Client
from tailrace.errors import Unavailable
from tailrace.limits import PUBLISH_MESSAGES_MAX
from tests.unit.cli.test_sql import ROOT, Terminal
from tests.unit.cli.test_tables_cli import Done, tailrace
from tests.unit.threaded import PATIENCE_S, Served

topics = importlib.import_module("tailrace.cli.topics")  # the package has the command by this name


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


class Tool:
    """The program, with a topic of its own."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic

    def __call__(self, *args: str, stdin: str | bytes = "") -> Done:
        return tailrace(*args, stdin=stdin, env={"TAILRACE_URL": self.url})

    def ok(self, *args: str, stdin: str | bytes = "") -> Done:
        done = self(*args, stdin=stdin)
        assert (done.status, done.err) == (0, ""), done
        return done

    def group(self, name: str) -> dict[str, Any]:
        """How a group is, over all partitions."""
        found = [row for row in self.ok("groups", "list", self.topic, "--json").lines if row["group_id"] == name]
        return {field: sum(row[field] for row in found) for field in ("lag", "in_flight", "pending", "delivered")}


@pytest.fixture
def tool(served: Served) -> Tool:
    topic = f"app.t{uuid4().hex[:8]}"
    found = Tool(served.url, topic)
    found.ok("sql", "-c", f"CREATE TOPIC {topic} WITH (alias = 'alias_{topic[4:]}')")
    return found


def payloads(done: Done) -> list[str]:
    return [line.split("  ")[-1] for line in done.out.splitlines()]


# -- what there is


def test_topics_are_listed_with_what_they_hold(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "bc")
    tool.ok("topics", "consume", tool.topic, "--group", "fast")
    tool.ok("topics", "consume", tool.topic, "--group", "slow", "--limit", "1")
    (row,) = [row for row in tool.ok("topics", "list", "--json").lines if row["name"] == tool.topic]
    assert (row["partitions"], row["messages"], row["groups"], row["lag"]) == (1, 2, 2, 1) and row["bytes"] > 0
    lines = tool.ok("topics", "list").out.splitlines()
    assert lines[0].split() == ["topic", "alias", "partitions", "messages", "bytes", "groups", "lag"]
    assert any(line.split()[:4] == [tool.topic, f"alias_{tool.topic[4:]}", "1", "2"] for line in lines)


def test_a_topic_is_described_by_name_or_alias(tool: Tool) -> None:
    table = f"orders.{tool.topic[4:]}"
    tool.ok(
        "sql",
        "-c",
        f"CREATE TABLE {table} (id TEXT PRIMARY KEY, price BIGINT);"
        f"ALTER TOPIC {tool.topic} ADD SOURCE {table} ON INSERT WHERE (price > 5) WITH (payload = 'full');"
        f"INSERT INTO {table} VALUES ('a', 9), ('b', 1)",
    )
    tool.ok("topics", "consume", tool.topic, "--group", "g")
    out = tool.ok("topics", "describe", f"alias_{tool.topic[4:]}").out
    assert out.startswith(tool.topic)
    assert re.search(rf"{re.escape(table)} +Insert +Full +\(?price > 5", out)
    assert re.search(r"group +partition +lag", out) and "partitions" in out
    assert max(map(len, out.splitlines())) < 200  # not as wide as it takes
    assert tool.ok("topics", "describe", tool.topic, "--json").lines[0]["name"] == tool.topic
    done = tool("topics", "describe", "nothing")
    assert done.status == 1 and "nothing" in done.err


def test_groups_are_listed_with_how_far_they_are_behind(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "b", "c")
    tool.ok("topics", "consume", tool.topic, "--group", "g", "--limit", "1")
    tool.ok("topics", "consume", tool.topic, "--group", "g", "--limit", "1", "--no-ack")
    assert tool.group("g") == {"lag": 2, "in_flight": 1, "pending": 0, "delivered": 2}
    for args in (["groups", "list"], ["groups", "list", tool.topic]):
        assert re.search(rf"{re.escape(tool.topic)} +g +0 +2 +1 +0 +2 +0 +0$", tool.ok(*args).out, re.M)
    assert any(row["topic"] == tool.topic for row in tool.ok("groups", "list", "--json").lines)
    assert tool("groups", "list", "nothing").status == 1
    assert tool("groups", "list", "--json", "--watch").status == 2


def test_empty_lists_are_reported(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        tool = Tool(server.url, "none")
        for command in ("topics", "groups", "streams", "views", "tables"):
            done = tool(command, "list")
            assert (done.status, done.out) == (0, "") and "there are no" in done.err
            assert tool.ok(command, "list", "--json").out == ""


# -- publishing


def test_each_argument_is_a_message(tool: Tool) -> None:
    assert tool.ok("topics", "publish", tool.topic, '{"x": 1}', "zwei").out == "0:0\n0:1\n"
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == ['{"x": 1}', "zwei"]


@pytest.mark.parametrize("argument", [[], ["-"]])
def test_each_line_of_the_input_is_a_message(tool: Tool, argument: list[str]) -> None:
    assert tool.ok("topics", "publish", tool.topic, *argument, stdin="a\r\n\nb b\nlast").out == "3 messages published\n"
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == ["a", "b b", "last"]


def test_many_lines_arrive_in_order_and_once(tool: Tool) -> None:
    count = 2 * PUBLISH_MESSAGES_MAX + 7
    sent = [str(number) for number in range(count)]
    assert tool.ok("topics", "publish", tool.topic, stdin="\n".join(sent)).out == f"{count:,} messages published\n"
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == sent


def test_lines_are_put_together_as_requests_take_them() -> None:
    lines = [b"x" * 100 + b"\n"] * 25
    with mock.patch.object(topics, "BATCH_BYTES", 1_000), mock.patch.object(topics, "PUBLISH_MESSAGES_MAX", 8):
        assert [len(batch) for batch in topics.batches([lines, [], [b"\n"], [b"y"]])] == [8, 8, 8, 1, 1]
    with mock.patch.object(topics, "BATCH_BYTES", 250):
        assert [len(batch) for batch in topics.batches([lines[:5], [b"z" * 1_000, b"y\n"]])] == [2, 2, 1, 1, 1]


def test_a_message_whose_answer_got_lost_is_published_once(tool: Tool) -> None:
    real, lost = Client.send_publish, []

    def send_publish(self: Client, *args: Any, **options: Any) -> Any:
        done = real(self, *args, **options)
        if not lost:
            lost.append(done)
            raise Unavailable("the answer got lost")
        return done

    with mock.patch.object(Client, "send_publish", send_publish):
        assert tool("topics", "publish", tool.topic, stdin="a\nb\n").out == "2 messages published\n"
    assert lost and payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == ["a", "b"]


def test_keys_and_partitions(tool: Tool) -> None:
    many = f"{tool.topic}.many"
    tool.ok("sql", "-c", f"CREATE TOPIC {many} PARTITIONS 4")
    assert tool.ok("topics", "publish", many, "--partition", "3", "a", "b").out == "3:0\n3:1\n"
    places = {tool.ok("topics", "publish", many, "--key", "k", str(number)).out.split(":")[0] for number in range(3)}
    assert len(places) == 1
    assert "key k" in tool.ok("topics", "consume", many, "--group", "g").out
    assert tool("topics", "publish", many, "--key", "k", "--partition", "1", "x").status == 2
    done = tool("topics", "publish", many, "--partition", "4", "x")
    assert done.status == 1 and "partition 4" in done.err


def test_publishing_to_what_is_not_there_or_nothing_is_an_error(tool: Tool) -> None:
    assert tool("topics", "publish", "nothing", "x").status == 1
    done = tool("topics", "publish", tool.topic, stdin="\n\n")
    assert done.status == 1 and "nothing to publish" in done.err


def test_any_bytes_can_be_published(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, stdin=b"\xff\x00\xfe\n\x1b[2J\n")
    done = tool.ok("topics", "consume", tool.topic, "--group", "g")
    assert payloads(done) == ["\\xff00fe", "\\x1b5b324a"] and "\x1b" not in done.out
    (first, second) = tool.ok("topics", "consume", tool.topic, "--json").lines
    assert first["payload"] == b64encode(b"\xff\x00\xfe").decode() and "text" not in first
    assert second["text"] == "\x1b[2J"


# -- consuming


def test_a_line_holds_all_of_a_message(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "two\nlines")
    line = tool.ok("topics", "consume", tool.topic, "--group", "g").out
    assert re.fullmatch(r"0:0  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  Publish  two\\nlines\n", line)


def test_what_was_printed_is_acknowledged(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "b", "c")
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g", "--limit", "2")) == ["a", "b"]
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == ["c"]
    assert tool.ok("topics", "consume", tool.topic, "--group", "g").out == ""
    assert tool.group("g") == {"lag": 0, "in_flight": 0, "pending": 0, "delivered": 3}


def test_without_acknowledgement_messages_come_again(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "b")
    options = ["topics", "consume", tool.topic, "--group", "g", "--consumer", "me"]
    first = tool.ok(*options, "--no-ack", "--json").lines
    assert [each["value" if "value" in each else "text"] for each in first] == ["a", "b"]
    assert tool.group("g")["in_flight"] == 2
    with Client(tool.url) as client:
        client.nack(tool.topic, "g", consumer="me", lease=first[0]["lease_id"])
    again = tool.ok(*options).out.splitlines()
    assert len(again) == 2 and all("  attempt 2  " in line for line in again)


def test_json_has_the_payload_as_it_was_sent_and_as_it_reads(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, '{"n": 1.50}', "text")
    done = tool.ok("topics", "consume", tool.topic, "--group", "g", "--json")
    first, second = done.lines
    assert first["value"] == {"n": 1.5} and '"value":{"n": 1.50}' in done.out
    assert first["payload"] == b64encode(b'{"n": 1.50}').decode() and first["attempt"] == 1
    assert second["text"] == "text" and "value" not in second


@pytest.mark.parametrize(("start", "seen"), [("earliest", ["a", "b", "c"]), ("latest", []), ("1", ["b", "c"])])
def test_where_a_new_group_begins(tool: Tool, start: str, seen: list[str]) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "b", "c")
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g", "--from", start)) == seen
    assert payloads(tool.ok("topics", "consume", tool.topic, "--from", start)) == seen  # and a reader without a group


@pytest.mark.parametrize("options", [["--from", "soon"], ["--from", "-1"], ["--partition", "x"], ["--limit", "0"]])
def test_bad_options_are_refused(tool: Tool, options: list[str]) -> None:
    done = tool("topics", "consume", tool.topic, "--group", "g", *options)
    assert done.status in (1, 2) and options[0] in done.err


def test_reading_without_a_group_notes_nothing(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, *map(str, range(5)))
    for _ in range(2):
        assert payloads(tool.ok("topics", "consume", tool.topic, "--limit", "3")) == ["0", "1", "2"]
    assert tool.ok("groups", "list", tool.topic, "--json").out == ""
    assert tool("topics", "consume", tool.topic, "--consumer", "me").status == 2


class Follower:
    """The program in a process of its own, whose lines are read as they come."""

    def __init__(self, tool: Tool, *options: str) -> None:
        clean = {name: text for name, text in os.environ.items() if not name.startswith("TAILRACE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli", "topics", "consume", tool.topic, "--follow", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True,
            env={**clean, "PYTHONPATH": "src", "TAILRACE_URL": tool.url},
        )  # fmt: skip

    def line(self) -> str:
        """The next line; the test fails if there is none for long."""
        alarm = threading.Timer(PATIENCE_S, self.process.kill)
        alarm.start()
        try:
            assert self.process.stdout is not None
            return self.process.stdout.readline()
        finally:
            alarm.cancel()

    def interrupt(self) -> tuple[int, str, str]:
        self.process.send_signal(signal.SIGINT)
        alarm = threading.Timer(PATIENCE_S, self.process.kill)
        alarm.start()
        try:
            with self.process:
                assert self.process.stdout is not None and self.process.stderr is not None
                # Not communicate(): that forgets what was read with a line and not asked for yet.
                out, err = self.process.stdout.read(), self.process.stderr.read()
            return self.process.returncode, out, err
        finally:
            alarm.cancel()


@pytest.mark.parametrize("group", [["--group", "g"], []])
def test_a_follower_prints_what_comes_and_leaves_when_interrupted(tool: Tool, group: list[str]) -> None:
    follower = Follower(tool, *group)
    for payload in ("one", "two"):
        tool.ok("topics", "publish", tool.topic, payload)
        assert payload in follower.line()
    assert follower.interrupt() == (0, "", "")
    if group:
        tool.ok("topics", "publish", tool.topic, "three")
        assert tool.group("g") == {"lag": 1, "in_flight": 0, "pending": 0, "delivered": 2}
        assert payloads(tool.ok("topics", "consume", tool.topic, *group)) == ["three"]


def test_an_interrupted_consumer_gives_back_what_it_did_not_print(tool: Tool) -> None:
    # More than a pipe holds, so that it stops in the middle of a delivery, and nobody reads on.
    tool.ok("topics", "publish", tool.topic, *[f"{number:04}{'x' * 2_000}" for number in range(200)])
    follower = Follower(tool, "--group", "g")
    assert follower.line().split("  ")[-1].startswith("0000")
    status, out, err = follower.interrupt()
    assert (status, err) == (0, "")
    seen = 1 + len(out.splitlines())
    after = tool.group("g")
    assert after["in_flight"] == 0 and after["lag"] == 200 - seen
    rest = payloads(tool.ok("topics", "consume", tool.topic, "--group", "g"))
    assert [text[:4] for text in rest] == [f"{number:04}" for number in range(seen, 200)]


def test_when_the_reader_goes_away_messages_are_given_back(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a", "b")

    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with Client(tool.url) as client:
        work = topics._GroupReader(client, tool.topic, "g", "me", "earliest", "any", True, 60.0)
        with mock.patch.object(sys, "stdout", mock.Mock(buffer=Gone())), pytest.raises(BrokenPipeError):
            topics._print_all(work, None, False, False)
    assert tool.group("g") == {"lag": 2, "in_flight": 0, "pending": 2, "delivered": 2}


def test_a_consumer_that_follows_goes_on_after_the_server_was_away(tool: Tool) -> None:
    tool.ok("topics", "publish", tool.topic, "a")
    real, calls = topics._GroupReader.next, iter([False, True, True])

    def away(self: Any, limit: int, timeout_s: float) -> Any:
        if next(calls, False):
            raise Unavailable("away")
        return real(self, limit, 0.0)

    with mock.patch.object(topics._GroupReader, "next", away), mock.patch.object(topics, "PAUSE_S", 0.001):
        publisher = threading.Timer(0.1, lambda: Client(tool.url).publish(tool.topic, "b"))
        publisher.start()
        done = tool("topics", "consume", tool.topic, "--group", "g", "--follow", "--limit", "2")
    publisher.join()
    assert done.status == 0 and payloads(done) == ["a", "b"]
    with mock.patch.object(topics._GroupReader, "next", side_effect=Unavailable("away")):
        assert tool("topics", "consume", tool.topic, "--group", "g", "--follow").status == 1  # it never was there


def test_groups_are_watched_until_interrupted(tool: Tool, tmp_path: Path) -> None:
    tool.ok("topics", "publish", tool.topic, "a")
    tool.ok("topics", "consume", tool.topic, "--group", "watched", "--no-ack")
    terminal = Terminal("groups", "list", tool.topic, "--watch", "--interval", "0.1", env={"TAILRACE_URL": tool.url})
    terminal.until("watched.*watched")
    terminal.type("\x03")
    assert terminal.ended() == 0


# -- who asks


@click.command()
@server_options
def whoami(url: str, token: str | None) -> None:
    connect(url, token).close()


def client_options(*args: str, stdin: str = "", **env: str) -> dict[str, Any]:
    """What the client was made with."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TAILRACE_")}
    with (
        mock.patch("tailrace.client.Client") as made,
        mock.patch.dict(os.environ, {**clean, **env}, clear=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
    ):
        whoami(list(args), standalone_mode=False)
    options: dict[str, Any] = made.call_args.kwargs
    return options


def test_a_user_and_a_password_instead_of_a_token() -> None:
    ann = {"user": "ann", "password": "secret"}
    assert client_options() == {"token": None}
    assert client_options("--user", "ann", "--password-stdin", stdin="secret\nthe rest") == ann
    assert client_options("--user", "ann", TAILRACE_PASSWORD="secret") == ann
    assert client_options(TAILRACE_USER="ann", TAILRACE_PASSWORD="secret") == ann
    assert client_options("--user", "ann", TAILRACE_PASSWORD="secret", TAILRACE_TOKEN="t") == ann
    assert client_options("--token", "t", TAILRACE_USER="ann", TAILRACE_PASSWORD="secret") == {"token": "t"}
    assert client_options(TAILRACE_TOKEN="t", TAILRACE_USER="ann", TAILRACE_PASSWORD="secret") == {"token": "t"}
    for args in (["--user", "ann", "--token", "t"], ["--user", "ann"], ["--password-stdin"]):
        with pytest.raises(click.UsageError):
            client_options(*args)


def test_the_password_is_a_line_of_the_input_and_the_rest_is_the_commands(tool: Tool) -> None:
    with mock.patch("tailrace.client.Client", lambda url, **given: Client(url)):  # whoever it is
        tool.ok("topics", "publish", tool.topic, "--user", "ann", "--password-stdin", stdin="secret\na\nb\n")
    assert payloads(tool.ok("topics", "consume", tool.topic, "--group", "g")) == ["a", "b"]

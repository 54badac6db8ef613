"""Tables on the command line: what is printed, where, and with which status it ends; against a real server."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import httpx
import pytest

from tailrace.cli import main, transfer
from tailrace.cli.tables import table_parameters
from tailrace.client import Client
from tailrace.errors import Invalid, NotFound, Unauthenticated, Unavailable
from tests.unit.threaded import PATIENCE_S, Served

ITEM = {"pk": "a", "n": 1, "price": 1.25, "tags": ["x", None, {"deep": True}], "ä": "日"}


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def tailrace(
    *args: str,
    stdin: str | bytes = "",
    env: dict[str, str] | None = None,
    kind: type[io.TextIOWrapper] = io.TextIOWrapper,
) -> Done:
    """All of `main` without a process of its own, its one-line errors included."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TAILRACE_")}
    content = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = (kind(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.object(sys, "argv", ["tailrace", *args]),
        mock.patch.object(sys, "stdin", kind(io.BytesIO(content))),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
        mock.patch.dict(os.environ, {**clean, **(env or {})}, clear=True),
    ):
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
    shown = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return Done(status, *shown)


class Tool:
    """The program, with the server's URL in its environment."""

    def __init__(self, served: Served) -> None:
        self.url = served.url

    def __call__(self, *args: str, stdin: str | bytes = "") -> Done:
        return tailrace(*args, stdin=stdin, env={"TAILRACE_URL": self.url})

    def ok(self, *args: str, stdin: str | bytes = "") -> Done:
        done = self(*args, stdin=stdin)
        assert (done.status, done.err) == (0, ""), done
        return done

    def fails(self, *args: str, stdin: str | bytes = "") -> str:
        """The one line that says why."""
        done = self(*args, stdin=stdin)
        assert done.status == 1, done
        assert done.out == ""
        assert done.err.startswith("tailrace: ")
        assert done.err.count("\n") == 1
        return done.err

    def put(self, *items: dict[str, Any], table: str = "orders") -> None:
        for item in items:
            self.ok("put", table, json.dumps(item))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("cli") / "data", long_poll_timeout_s=1) as served:
        yield served


@pytest.fixture
def tool(served: Served) -> Iterator[Tool]:
    """The tool, and an empty table with key pk:S, n:N and both images."""
    tool = Tool(served)
    tool.ok("tables", "create", "orders", "--key", "pk:S", "--sort", "n:N", "--stream", "NEW_AND_OLD_IMAGES")
    yield tool
    for each in tool.ok("tables", "list", "--json").lines:
        tool.ok("tables", "drop", each["TableName"], "--yes")


# -- tables


def test_tables_are_listed(tool: Tool) -> None:
    tool.ok(
        "tables", "create", "another", "--key", "id:b", "--index", "by_city:city:S:age:N", "--index", "by_age:age:N"
    )
    tool.put({"pk": "a", "n": 1})
    heading, *rows = tool.ok("tables", "list").out.splitlines()
    assert heading.split() == ["table", "key", "items", "bytes", "indexes", "changes", "status"]
    assert [row.split() for row in rows] == [
        ["another", "id:B", "0", "0", "by_city,", "by_age", "ACTIVE"],
        ["orders", "pk:S,", "n:N", "1", "6", "NEW_AND_OLD_IMAGES", "ACTIVE"],
    ]
    assert [each["TableName"] for each in tool.ok("tables", "list", "--json").lines] == ["another", "orders"]


def test_no_tables(tool: Tool) -> None:
    tool.ok("tables", "drop", "orders", "--yes")
    done = tool("tables", "list")
    assert (done.status, done.out) == (0, "")
    assert "tailrace tables create" in done.err


def test_a_table_is_described(tool: Tool) -> None:
    tool.ok("tables", "create", "others", "--key", "pk:S", "--ttl", "expires", "--stream", "keys_only")
    described = json.loads(tool.ok("tables", "describe", "others").out)
    assert described["TableName"] == "others"
    assert described["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    assert described["TimeToLiveDescription"]["AttributeName"] == "expires"
    assert "not found" in tool.fails("tables", "describe", "nothing")


def test_a_table_that_is_there_is_not_created_again(tool: Tool) -> None:
    assert "already exists" in tool.fails("tables", "create", "orders", "--key", "pk:S")


@pytest.mark.parametrize(
    "options",
    [
        ("--key", "pk"),
        ("--key", "pk:X"),
        ("--key", ":S"),
        ("--key", "pk:S", "--sort", "pk:N"),
        ("--key", "pk:S", "--index", "i"),
        ("--key", "pk:S", "--index", "i:x:S:y"),
        ("--key", "pk:S", "--index", ":x:S"),
        ("--key", "pk:S", "--index", "i:pk:N"),
    ],
)
def test_wrong_keys(tool: Tool, options: tuple[str, ...]) -> None:
    tool.fails("tables", "create", "others", *options)
    assert [each["TableName"] for each in tool.ok("tables", "list", "--json").lines] == ["orders"]


def test_names_may_hold_colons_in_keys() -> None:
    parameters = table_parameters("t", "a:b:S")
    assert parameters["KeySchema"] == [{"AttributeName": "a:b", "KeyType": "HASH"}]


def test_a_table_is_not_dropped_by_mistake(tool: Tool) -> None:
    done = tool("tables", "drop", "orders")
    assert done.status == 2
    assert "--yes" in done.err
    tool.ok("tables", "describe", "orders")
    assert "not found" in tool.fails("tables", "drop", "nothing", "--yes")


def test_a_table_is_dropped_when_the_answer_is_yes(tool: Tool) -> None:
    where = {"TAILRACE_URL": tool.url, "TERM": "xterm"}
    done = tailrace("tables", "drop", "orders", stdin="n\n", env=where, kind=Terminal)
    assert done.status == 130
    assert "Drop table 'orders' with its 0 items?" in done.err
    tool.ok("tables", "describe", "orders")
    assert tailrace("tables", "drop", "orders", stdin="y\n", env=where, kind=Terminal).status == 0
    tool.fails("tables", "describe", "orders")


# -- items


def test_put_get_delete(tool: Tool) -> None:
    tool.put(ITEM)
    assert tool.ok("get", "orders", "a", "1").lines == [ITEM]
    assert tool.ok("get", "orders", '{"pk": "a", "n": 1}').lines == [ITEM]
    assert tool.ok("tables", "delete-item", "orders", "a", "1").lines == [ITEM]
    assert tool.ok("tables", "delete-item", "orders", "a", "1").out == ""
    assert "no item with the key a 1" in tool.fails("get", "orders", "a", "1")


def test_an_item_from_standard_input(tool: Tool) -> None:
    tool.ok("put", "orders", "-", stdin=json.dumps(ITEM))
    assert tool.ok("get", "orders", "a", "1").lines == [ITEM]


def test_numbers_keep_their_digits(tool: Tool) -> None:
    digits = "1234567890123456789012345678901234567.8"
    tool.ok("put", "orders", f'{{"pk": "a", "n": {digits}, "big": 123456789012345678901234567890}}')
    assert tool.ok("get", "orders", "a", digits).out == (
        f'{{"pk":"a","n":{digits},"big":123456789012345678901234567890}}\n'
    )  # fmt: skip


def test_typed_values(tool: Tool) -> None:
    item = {"pk": {"S": "a"}, "n": {"N": "1"}, "b": {"B": "AAE="}, "s": {"NS": ["1", "2"]}}
    tool.ok("put", "orders", json.dumps(item), "--typed")
    assert tool.ok("get", "orders", "a", "1", "--typed").lines == [item]
    assert tool.ok("get", "orders", json.dumps({"pk": item["pk"], "n": item["n"]}), "--typed").lines == [item]
    assert tool.ok("get", "orders", "a", "1").lines == [{"pk": "a", "n": 1, "b": "AAE=", "s": [1, 2]}]


def test_binary_keys(tool: Tool) -> None:
    tool.ok("tables", "create", "others", "--key", "id:B")
    tool.ok("put", "others", '{"id": {"B": "AAE="}}', "--typed")
    assert tool.ok("get", "others", "AAE=").lines == [{"id": "AAE="}]


def test_conditions(tool: Tool) -> None:
    tool.put(ITEM)
    error = tool.fails("put", "orders", json.dumps(ITEM), "--condition", "attribute_not_exists(pk)")
    assert "the condition is false" in error
    options = ("--condition", "#p > :p", "--names", '{"#p": "price"}', "--values", '{":p": 1.5}')
    assert "the condition is false" in tool.fails("tables", "delete-item", "orders", "a", "1", *options)
    tool.ok("tables", "delete-item", "orders", "a", "1", *options[:-1], '{":p": 1}')


@pytest.mark.parametrize(
    "args",
    [
        ("put", "orders", "{"),
        ("put", "orders", "[]"),
        ("put", "orders", "1"),
        ("put", "orders", '{"pk": "a", "n": 1, "x": NaN}'),
        ("put", "orders", '{"pk": "a", "n": 1e999999999999999999999}'),
        ("put", "orders", '{"pk": "a", "n": ' + "9" * 5000 + "}"),
        ("put", "orders", '{"pk": "a", "n": 1, "x": ' + "[" * 100_000 + "}"),
        ("put", "orders", '{"pk": "a", "n": 1, "x": "\udcff"}'),
        ("put", "orders", '{"pk": "a"}'),
        ("put", "orders", '{"pk": "a", "n": "1"}'),
        ("put", "orders", '{"pk": "a", "n": 1}', "--typed"),
        ("put", "nothing", '{"pk": "a"}'),
        ("get", "orders", "a"),
        ("get", "orders", "a", "1", "2"),
        ("get", "orders", "a", "x"),
        ("get", "orders", "\udcff", "1"),
        ("tables", "query", "orders", "a", "1", "2"),
        ("tables", "query", "orders", "a", "1", "--from", "1"),
        ("tables", "query", "orders", "a", "--index", "nothing"),
        ("tables", "query", "orders", "a", "--filter", "x ="),
        ("tables", "scan", "orders", "--filter", "x = :x", "--values", "x"),
        ("tables", "scan", "orders", "--filter", "#x = :x", "--names", '{"#x": 1}'),
        ("tables", "scan", "orders", "--index", "nothing"),
    ],
)
def test_bad_input_is_reported_in_one_line_and_changes_nothing(tool: Tool, args: tuple[str, ...]) -> None:
    tool.fails(*args)
    assert tool.ok("tables", "scan", "orders").out == ""


def test_query(tool: Tool) -> None:
    tool.put(*({"pk": "a", "n": number} for number in (-3, 1, 2, 10)), {"pk": "b", "n": 1})

    def found(*options: str) -> list[int]:
        return [item["n"] for item in tool.ok("tables", "query", "orders", "a", *options).lines]

    assert found() == [-3, 1, 2, 10]
    assert found("--reverse") == [10, 2, 1, -3]
    assert found("--limit", "2") == [-3, 1]
    assert found("2") == [2]
    assert found("--from", "1") == [1, 2, 10]
    assert found("--to", "1") == [-3, 1]
    assert found("--from", "1", "--to", "2") == [1, 2]
    done = tool("tables", "query", "orders", "a", "--begins-with", "x", "--from", "1")
    assert done.status == 2


def test_query_of_an_index(tool: Tool) -> None:
    tool.ok("tables", "create", "others", "--key", "id:S", "--index", "by_city:city:S:street:S")
    streets = [("1", "Ulm", "Am Ufer"), ("2", "Ulm", "Allee"), ("3", "Bonn", "Allee"), ("4", "Ulm", "Weg")]
    for number, city, street in streets:
        tool.put({"id": number, "city": city, "street": street}, table="others")

    def found(*options: str) -> list[str]:
        return [
            item["id"] for item in tool.ok("tables", "query", "others", "Ulm", "--index", "by_city", *options).lines
        ]

    assert found() == ["2", "1", "4"]
    assert found("--begins-with", "A") == ["2", "1"]
    assert found("Weg") == ["4"]
    options = ("--filter", "#i <> :i", "--names", '{"#i": "id"}', "--values", '{":i": "1"}')
    assert found(*options) == ["2", "4"]
    assert [
        item["id"] for item in tool.ok("tables", "scan", "others", *options, "--limit", "2").lines if item["id"] == "1"
    ] == []


def test_pages_are_read_to_the_end(tool: Tool) -> None:
    text = "x" * 300_000
    tool.put(*({"pk": "a", "n": number, "text": text} for number in range(5)))
    assert [item["n"] for item in tool.ok("tables", "query", "orders", "a").lines] == [0, 1, 2, 3, 4]
    assert [item["n"] for item in tool.ok("tables", "scan", "orders", "--limit", "4").lines] == [0, 1, 2, 3]
    many = tool.ok("tables", "scan", "orders", "--filter", "n > :n", "--values", '{":n": 2}', "--limit", "2")
    assert [item["n"] for item in many.lines] == [3, 4]


# -- changes


def test_changes(tool: Tool) -> None:
    tool.put({"pk": "a", "n": 1, "x": 1}, {"pk": "a", "n": 1, "x": 2, "y": "ü"})
    tool.ok("tables", "delete-item", "orders", "a", "1")
    records = tool.ok("tables", "changes", "orders", "--json").lines
    assert [(record["event"], record["old"], record["new"]) for record in records] == [
        ("INSERT", None, {"pk": "a", "n": 1, "x": 1}),
        ("MODIFY", {"pk": "a", "n": 1, "x": 1}, {"pk": "a", "n": 1, "x": 2, "y": "ü"}),
        ("REMOVE", {"pk": "a", "n": 1, "x": 2, "y": "ü"}, None),
    ]
    first = records[0]["sequence"]
    assert tool.ok("tables", "changes", "orders", "--json", "--after", str(first)).lines == records[1:]
    assert tool.ok("tables", "changes", "orders", "--json", "--after", str(first), "--limit", "1").lines == records[1:2]
    assert tool.ok("tables", "changes", "orders", "--json", "--after", "now").lines == []
    typed = tool.ok("tables", "changes", "orders", "--json", "--typed", "--limit", "1").lines
    assert typed[0]["keys"] == {"pk": {"S": "a"}, "n": {"N": "1"}}
    lines = tool.ok("tables", "changes", "orders").out.splitlines()
    assert [line.split()[0] for line in lines] == [str(record["sequence"]) for record in records]
    assert '"x": 1 → 2, "y": – → "ü"' in lines[1]
    assert lines[2].endswith('{"pk":"a","n":1,"x":2,"y":"ü"}  by everyone')


def test_a_change_stream_is_described(tool: Tool) -> None:
    tool.put(*({"pk": "a", "n": number} for number in range(3)))
    head, row = tool.ok("tables", "change-stream", "orders").out.splitlines()
    assert head.split() == ["stream", "view", "oldest", "latest", "records", "bytes", "kept"]
    state = tool.ok("tables", "change-stream", "orders", "--json").lines[0]
    label, view, oldest, latest, records, _, *kept = row.split()
    assert (label, view, records, " ".join(kept)) == (
        state["label"], "NEW_AND_OLD_IMAGES", "3", "for 7d, at most 1,000,000",
    )  # fmt: skip
    sequences = [record["sequence"] for record in tool.ok("tables", "changes", "orders", "--json").lines]
    assert (int(oldest), int(latest)) == (sequences[0], sequences[2])
    tool.ok("tables", "cursors", "orders", "--save", "mailer", "--sequence", oldest)
    drawn = tool.ok("tables", "change-stream", "orders").out.splitlines()
    assert drawn[-1].split()[:3] == ["mailer", oldest, "2"]
    assert "no change stream 'x'" in tool.fails("tables", "change-stream", "orders", "--label", "x")
    assert "no table 'none'" in tool.fails("tables", "change-stream", "none")


def test_retention(tool: Tool) -> None:
    def kept(*options: str) -> str:
        (line,) = tool.ok("tables", "retention", "orders", *options).out.splitlines()
        prefix = "orders: changes are kept "
        assert line.startswith(prefix)
        return line[len(prefix) :]

    assert kept() == "for 7d, at most 1,000,000"
    for age, seconds in (("5s", 5), ("7m", 420), ("36h", 129_600), ("2d", 172_800), ("2w", 1_209_600), ("90", 90)):
        kept("--max-age", age)
        assert tool.ok("tables", "change-stream", "orders", "--json").lines[0]["max_age_s"] == seconds
    assert kept("--max-age", "36h") == "for 36h, at most 1,000,000"
    assert kept("--max-count", "5000") == "for 36h, at most 5,000"
    assert kept("--max-age", "none") == "at most 5,000"
    assert kept("--max-age", "90", "--max-count", "none") == "for 90s"
    assert kept("--max-age", "2w") == "for 14d"
    assert kept("--manual") == kept() == "until pruned"
    for options in (("--max-age", "7x"), ("--max-age", "-1d"), ("--max-age", ""), ("--max-count", "many")):
        assert repr(options[1]) in tool.fails("tables", "retention", "orders", *options)
    assert "max_age_s 0 is not from 1" in tool.fails("tables", "retention", "orders", "--max-age", "0")
    assert tool("tables", "retention", "orders", "--manual", "--max-count", "1").status == 2
    assert kept() == "until pruned"


def test_prune(tool: Tool) -> None:
    tool.put(*({"pk": "a", "n": number} for number in range(3)))
    first, second, third = (record["sequence"] for record in tool.ok("tables", "changes", "orders", "--json").lines)
    assert tool.ok("tables", "prune", "orders", "--through", str(second)).out == (
        f"orders: 2 records removed; the oldest is now {third}\n"
    )
    error = tool.fails("tables", "changes", "orders", "--after", str(first))
    assert f"changes after {first} are no longer retained" in error
    assert "tailrace tables change-stream orders" in error
    assert "never assigned" in tool.fails("tables", "prune", "orders", "--through", str(third + 1000))
    assert tool.ok("tables", "prune", "orders", "--through", str(third)).out.endswith(
        "1 records removed; none is left\n"
    )
    assert tool("tables", "prune", "orders").status == 2


def test_cursors(tool: Tool) -> None:
    none = tool("tables", "cursors", "orders")
    assert (none.status, none.out) == (0, "")
    assert "--save NAME" in none.err
    tool.put(*({"pk": "a", "n": number} for number in range(3)))
    first, second, _ = (record["sequence"] for record in tool.ok("tables", "changes", "orders", "--json").lines)
    saved = tool.ok(
        "tables", "cursors", "orders", "--save", "a/b ü", "--sequence", str(first), "--hold-bytes", "7", "--json"
    )
    assert [(each["name"], each["sequence"], each["hold_bytes"]) for each in saved.lines] == [("a/b ü", first, 7)]
    tool.ok("tables", "cursors", "orders", "--save", "mailer", "--sequence", str(second))
    assert [each["name"] for each in tool.ok("tables", "cursors", "orders", "--json").lines] == ["a/b ü", "mailer"]
    tool.ok("tables", "prune", "orders", "--through", str(second))
    _, cut, whole = tool.ok("tables", "cursors", "orders").out.splitlines()
    assert cut.endswith("cut off, 1 lost")
    assert whole.split()[:3] == ["mailer", str(second), "1"]
    tool.ok("tables", "cursors", "orders", "--drop", "a/b ü")
    assert "no cursor 'a/b ü'" in tool.fails("tables", "cursors", "orders", "--drop", "a/b ü")
    for options in (("--save", "x"), ("--sequence", "1"), ("--save", "x", "--drop", "y"), ("--hold-bytes", "1")):
        assert tool("tables", "cursors", "orders", *options).status == 2, options


def test_images_that_are_not_there(tool: Tool) -> None:
    tool.ok("tables", "create", "others", "--key", "pk:S", "--stream", "KEYS_ONLY")
    tool.put({"pk": "a", "x": 1}, table="others")
    (line,) = tool.ok("tables", "changes", "others").out.splitlines()
    assert line.endswith('INSERT  {"pk":"a"}  by everyone')


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "٣", ""])
def test_not_a_sequence(tool: Tool, after: str) -> None:
    assert "is not a sequence" in tool.fails("tables", "changes", "orders", "--after", after)


def test_changes_of_what_has_none(tool: Tool) -> None:
    tool.ok("tables", "create", "others", "--key", "pk:S")
    tool.fails("tables", "changes", "others")
    tool.fails("tables", "changes", "nothing")


def test_changes_are_followed(served: Served, tool: Tool) -> None:
    tool.put({"pk": "a", "n": 1})
    module = importlib.import_module("tailrace.cli.changes")  # the package has the command of that name
    arrived = threading.Semaphore(0)
    show = module._line
    results: list[Done] = []

    def line(raw: Any) -> bytes:
        arrived.release()
        return show(raw)

    def follow() -> None:
        results.append(tool("tables", "changes", "orders", "--follow", "--limit", "3"))

    with mock.patch.object(module, "_line", line):
        reader = threading.Thread(target=follow)
        reader.start()
        assert arrived.acquire(timeout=PATIENCE_S)
        with Client(served.url) as client:  # not by the tool: its output is the other thread's now
            for number in ("2", "3"):
                client.call("PutItem", {"TableName": "orders", "Item": {"pk": {"S": "a"}, "n": {"N": number}}})
                assert arrived.acquire(timeout=PATIENCE_S)
        reader.join(PATIENCE_S)
    (done,) = results
    assert done.status == 0
    assert [line.split("  ")[3] for line in done.out.splitlines()] == [f'{{"pk":"a","n":{n}}}' for n in (1, 2, 3)]


# -- export and import


def lines_of(*items: dict[str, Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_out_and_in_again(tool: Tool, tmp_path: Path) -> None:
    items = [{"pk": "a", "n": number, "x": [number, None, "ü"]} for number in range(60)]
    assert tool.ok("tables", "import", "orders", stdin=lines_of(*items)).out == "imported 60 items\n"
    file = tmp_path / "t.jsonl"
    assert tool.ok("tables", "export", "orders", str(file)).out == ""
    assert [json.loads(line) for line in file.read_text("utf-8").splitlines()] == items
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]
    tool.ok("tables", "create", "others", "--key", "pk:S", "--sort", "n:N")
    assert tool.ok("tables", "import", "others", str(file)).out == "imported 60 items\n"
    assert tool.ok("tables", "export", "others", "-").lines == items
    assert tool.ok("tables", "scan", "others").lines == items


def test_progress_is_shown_on_a_terminal(tool: Tool) -> None:
    where = {"TAILRACE_URL": tool.url, "TERM": "xterm", "COLUMNS": "150"}
    content = lines_of(*({"pk": "a", "n": number} for number in range(60)))
    done = tailrace("tables", "import", "orders", stdin=content, env=where, kind=Terminal)
    assert (done.status, done.out) == (0, "imported 60 items\n")
    assert "importing" in done.err
    assert "60 items" in done.err
    done = tailrace("tables", "export", "orders", env=where, kind=Terminal)
    assert len(done.lines) == 60
    assert "exporting" in done.err
    assert "60 items" in done.err


def test_types_survive_with_typed_and_are_reported_without(tool: Tool, tmp_path: Path) -> None:
    item = {"pk": {"S": "a"}, "n": {"N": "1"}, "deep": {"M": {"l": {"L": [{"BS": ["AAE="]}]}}}}
    tool.ok("tables", "import", "orders", "--typed", stdin=lines_of(item))
    assert tool.ok("tables", "export", "orders", "--typed").lines == [item]
    plain = tool("tables", "export", "orders")
    assert plain.lines == [{"pk": "a", "n": 1, "deep": {"l": [["AAE="]]}}]
    assert "1 items hold sets or binary" in plain.err


def test_bad_lines_are_reported_and_nothing_else_is_lost(tool: Tool) -> None:
    good = [{"pk": "a", "n": number} for number in range(30)]
    text = [json.dumps(item) for item in good]
    text.insert(3, "{")
    text.insert(5, "")
    text.insert(7, '{"pk": "a"}')  # which only the server knows to be wrong
    text.insert(20, '{"pk": 1, "n": 1}')
    text.append('{"pk": "a", "n": 99, "x": "' + "x" * 500_000 + '"}')
    done = tool("tables", "import", "orders", stdin="\n".join(text))
    assert (done.status, done.out) == (1, "imported 30 items\n")
    lines = done.err.splitlines()
    assert sorted(line.split(":")[0] for line in lines[:-1]) == ["line 21", "line 35", "line 4", "line 8"]
    assert "4 lines were refused" in lines[-1]
    assert tool.ok("tables", "scan", "orders").lines == good


def test_the_last_of_two_lines_with_one_key_counts(tool: Tool) -> None:
    tool.ok("tables", "import", "orders", stdin=lines_of({"pk": "a", "n": 1, "x": 1}, {"pk": "a", "n": 1, "x": 2}))
    assert tool.ok("tables", "scan", "orders").lines == [{"pk": "a", "n": 1, "x": 2}]


def test_odd_input(tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tool.ok("tables", "import", "orders", stdin="").out == "imported 0 items\n"
    assert tool.ok("tables", "import", "orders", stdin=' \r\n{"pk":"a","n":1}\r\n\n').out == "imported 1 items\n"
    assert "line 1:" in tool("tables", "import", "orders", stdin=b'{"pk":"\xff","n":1}\n').err
    monkeypatch.setattr(transfer, "LINE_BYTES_MAX", 20)
    done = tool("tables", "import", "orders", stdin='{"pk":"a","n":2,"x":"' + "x" * 100 + '"}\n{"pk":"a","n":3}\n')
    assert (done.status, done.out) == (1, "imported 1 items\n")
    assert done.err.startswith("line 1: the line is longer than 20 bytes\n")
    assert "cannot read" in tool.fails("tables", "import", "orders", str(tmp_path / "nothing"))
    assert "cannot write" in tool.fails("tables", "export", "orders", str(tmp_path / "nothing" / "x"))
    assert "not found" in tool.fails("tables", "import", "nothing", stdin="x")
    assert "not found" in tool.fails("tables", "export", "nothing")


def test_a_failed_export_leaves_the_file_as_it_was(tool: Tool, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("before")
    tool.put({"pk": "a", "n": 1})
    with mock.patch.object(transfer, "item_line", side_effect=Unavailable("gone")):
        assert "gone" in tool.fails("tables", "export", "orders", str(file))
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


class Busy:
    """A client of a server that does not always process all of a request."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.batches: list[int] = []

    def call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        requests = parameters["RequestItems"]["t"]
        self.batches.append(len(requests))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"UnprocessedItems": {"t": requests[:answer]} if answer else {}}


def imported(client: Busy, count: int) -> transfer.TableImport:
    load = transfer.TableImport(client, "t", lambda items, size: None)  # type: ignore[arg-type]
    with mock.patch.object(transfer.time, "sleep"), contextlib.suppress(Unavailable):
        load.run(io.BytesIO(lines_of(*({"n": number} for number in range(count))).encode()), False)
    return load


def test_what_was_not_processed_is_sent_again() -> None:
    client = Busy(10, Unavailable("away"), 10, 3, 0, 0)
    load = imported(client, 30)
    assert client.batches == [25, 10, 10, 10, 3, 5]
    assert (load.imported, load.refused, load.line) == (30, 0, 30)


def test_not_for_ever() -> None:
    client = Busy(*[25] * 100)
    assert imported(client, 25).imported == 0
    assert len(client.batches) == transfer.TRIES_MAX
    away = Busy(0, *[Unavailable("away")] * 100)
    load = imported(away, 30)
    assert (load.imported, load.line) == (25, 25)
    assert len(away.batches) == 1 + transfer.TRIES_MAX


def test_an_import_that_breaks_off_says_how_far_it_came(tool: Tool) -> None:
    real = Client.call
    left = [2]

    def call(self: Client, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if operation == "BatchWriteItem":
            left[0] -= 1
            if left[0] < 0:
                raise NotFound("the table went away")
        return real(self, operation, parameters)

    with mock.patch.object(Client, "call", call):
        error = tool.fails(
            "tables", "import", "orders", stdin=lines_of(*({"pk": "a", "n": number} for number in range(100)))
        )
    assert "the table went away; 50 items were imported, those up to line 50" in error


# -- keys and tokens


def key_of(done: Done) -> dict[str, str]:
    assert done.status == 0, done
    return dict(line.split("=", 1) for line in done.out.splitlines())


def test_keys_in_a_directory(data_dir: Path) -> None:
    data = ("--data", str(data_dir))
    assert "there is no database" in tailrace("keys", "list", *data).err
    assert not data_dir.exists()
    name = key_of(tailrace("keys", "create", "ann", *data))["AWS_ACCESS_KEY_ID"]

    def listed() -> list[str]:
        return tailrace("keys", "list", *data).out.split()

    assert (listed()[0], listed()[-2:]) == (name, ["enabled", "ann"])
    assert tailrace("keys", "disable", name, *data) == (0, "", "")
    assert listed()[-2:] == ["disabled", "ann"]
    assert tailrace("keys", "enable", name, *data) == (0, "", "")
    assert listed()[-2:] == ["enabled", "ann"]
    assert tailrace("keys", "delete", name, *data) == (0, "", "")
    done = tailrace("keys", "list", *data)
    assert (done.status, done.out) == (0, "")
    assert "keys create" in done.err
    for verb in ("delete", "disable", "enable"):
        done = tailrace("keys", verb, name, *data)
        assert done.status == 1
        assert f"there is no access key '{name}'" in done.err


def test_keys_of_a_running_server(data_dir: Path) -> None:
    with Served(data_dir, token="a-long-secret-token") as served:
        done = tailrace("keys", "list", "--data", str(data_dir))
        assert done.status == 1
        assert "--url" in done.err
        server = {"TAILRACE_URL": served.url, "TAILRACE_TOKEN": "a-long-secret-token"}
        name = key_of(tailrace("keys", "create", "ann", env=server))["AWS_ACCESS_KEY_ID"]
        assert tailrace("keys", "list", env=server).out.split()[-2:] == ["enabled", "ann"]
        with Client(served.url, token="a-long-secret-token") as client:
            assert [key["role"] for key in client.access_keys()] == ["user"], "the least by default"
        assert tailrace("keys", "disable", name, env=server).status == 0
        assert tailrace("keys", "list", env=server).out.split()[-2:] == ["disabled", "ann"]
        assert tailrace("keys", "enable", name, env=server).status == 0
        assert tailrace("keys", "delete", name, env=server).status == 0
        assert tailrace("keys", "list", env=server).out == ""
        assert tailrace("keys", "delete", "a/b", env=server).status == 1
        assert tailrace("keys", "list", env={**server, "TAILRACE_TOKEN": "x"}).status == 1
    assert tailrace("keys", "list", "--data", str(data_dir), env=server).status == 0  # the option takes precedence
    assert tailrace("keys", "list", "--data", str(data_dir), "--url", served.url).status == 2


def test_the_signing_key_of_webhooks_is_rotated_in_a_directory_and_of_a_server(data_dir: Path) -> None:
    assert tailrace("keys", "create", "ann", "--data", str(data_dir)).status == 0  # makes the directory
    kids = [tailrace("keys", "rotate-signing", "--data", str(data_dir)).out.strip()]
    with Served(data_dir, token="a-long-secret-token") as served:
        server = {"TAILRACE_URL": served.url, "TAILRACE_TOKEN": "a-long-secret-token"}
        kids.insert(0, tailrace("keys", "rotate-signing", env=server).out.strip())
        published = httpx.get(f"{served.url}/v1/stream/__ds/jwks.json").json()["keys"]
        assert [key["kid"] for key in published] == kids
        shown = httpx.get(
            f"{served.url}/v1/admin/signing-keys", headers={"authorization": "Bearer a-long-secret-token"}
        ).json()["keys"]
        assert [(key["kid"], key["retired_at"] is None) for key in shown] == [(kids[0], True), (kids[1], False)]
        assert tailrace("keys", "rotate-signing", env={**server, "TAILRACE_TOKEN": "wrong"}).status == 1


def test_the_token_opens_the_tables_too(data_dir: Path) -> None:
    with Served(data_dir, token="a-long-secret-token") as served:
        for options in ((), ("--token", "wrong")):
            done = tailrace("tables", "list", "--url", served.url, *options)
            assert done.status == 1
            assert "TAILRACE_TOKEN" in done.err
        assert tailrace("tables", "list", "--url", served.url, "--token", "a-long-secret-token").status == 0
        with Client(served.url) as client, pytest.raises(Unauthenticated):
            client.call("ListTables", {})


def test_no_server() -> None:
    done = tailrace("tables", "list", "--url", "http://127.0.0.1:1")
    assert done.status == 1
    assert "cannot reach" in done.err
    with Client("http://127.0.0.1:1") as client, pytest.raises(Invalid):
        client.call("GetItem", {"TableName": "\udcff"})

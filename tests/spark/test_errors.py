"""Errors are reported in our words, in one line, before Spark's own output."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tailrace.client import Client
from tailrace.errors import Invalid
from tailrace.spark import explain
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]


def error_of(action: Callable[[], Any]) -> str:
    """The message that a user sees; ours is in its first two lines, and there is no stack."""
    with pytest.raises(Exception) as caught:
        action()
    shown = str(caught.value)
    message = explain(caught.value)
    assert message in "\n".join(shown.splitlines()[:2]), shown
    assert "Traceback" not in shown
    assert "\tat org.apache" not in shown
    return message


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def test_a_url_without_a_server(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    message = error_of(lambda: spark.read.format("tailrace").options(url=url, table="orders").load())
    assert message.startswith(f"cannot reach {url}")


def test_a_url_that_is_none(spark: SparkSession) -> None:
    message = error_of(lambda: spark.read.format("tailrace").options(url="orders:80", table="orders").load())
    assert message.startswith("'orders:80' is not a server's URL")


def test_a_wrong_token(spark: SparkSession, tmp_path: Path) -> None:
    serve = ServerProcess.tailrace(tmp_path / "data")
    serve.command.remove("--dev")
    strict = ServerProcess(serve.command, env={"TAILRACE_TOKEN": "right-token-of-the-server-1234"})
    with strict:
        message = error_of(
            lambda: spark.read.format("tailrace").options(url=strict.url, token="wrong", table="orders").load()
        )
    assert "token" in message


def test_what_is_not_there(load: Load, server: ServerProcess) -> None:
    assert "no_such" in error_of(lambda: load(table="no_such"))
    assert "no_such" in error_of(lambda: load(topic="no_such"))
    assert "no_such" in error_of(lambda: load(stream="no_such"))


def test_wrong_options(load: Load, table: str) -> None:
    assert error_of(lambda: load(table=table, startingOffset=5)).startswith(
        "there is no option 'startingoffset'; did you"
    )
    assert error_of(lambda: load()).startswith("give exactly one of the options table, topic and stream")
    assert error_of(lambda: load(table=table, startingOffsets='{"3": 1}').count()).startswith(
        "startingOffsets names parti"
    )
    assert "is beyond its end" in error_of(lambda: load(table=table, startingOffsets="999999").count())


def test_wrong_schemas(client: Client, load: Load, table: str, put: Callable[..., None]) -> None:
    put(1)
    message = error_of(lambda: load("id string, _offset string", table=table).count())
    assert message.startswith("the column '_offset' is string in the schema and bigint in table")
    message = error_of(lambda: load("id string, n boolean", table=table).collect())
    assert "'n'" in message


def test_wrong_frames(spark: SparkSession, server: ServerProcess, client: Client, table: str) -> None:
    client.sql(f"CREATE TOPIC {table}")
    client.create(table, "text/plain")

    def save(statement: str, mode: str = "append", **options: str) -> str:
        frame = spark.sql(statement)
        return error_of(lambda: frame.write.format("tailrace").options(url=server.url, **options).mode(mode).save())

    assert save("SELECT 1 AS n", table=table).startswith("the frame has no column 'id', which is a key of table")
    assert save("SELECT 1 AS id", table=table).startswith("the column 'id' is int; cast it to string, since the key")
    assert "can only be appended to" in save("SELECT 'a' AS id", "overwrite", table=table)
    assert save("SELECT 'a' AS id", topic=table).startswith("the frame has no column 'payload' to write to topic")
    assert save("SELECT 'a' AS id", stream=table).startswith("the frame has no column 'value' to write to stream")
    assert save("SELECT 1 AS value", stream=table).startswith("the column 'value' is int; cast it to string or binary")
    assert save("SELECT 'a' AS id", table=table, consumer="nobody").startswith("consumer 'nobody' fences by the source")
    assert save("SELECT 'a' AS id, 1L AS offset, 2L AS next_offset", table=table, consumer="nobody").startswith(
        "consumer 'nobody' has no position yet"
    )


def test_a_streaming_query_that_cannot_go_on(follow: Load, run: Callable[..., Any], table: str) -> None:
    message = error_of(lambda: run(follow(table=table, startingOffsets="999999"), stream="no_such"))
    assert "no_such" in message or "beyond its end" in message


def test_explaining() -> None:
    assert explain(Invalid("this is wrong; do that")) == "this is wrong; do that"
    spoken = "[PYTHON_DATA_SOURCE_ERROR] Failed: tailrace.errors.NotFound: there is no table 'x'\n SQLSTATE: 38000"
    assert explain(Exception(spoken)) == "there is no table 'x'"
    assert explain(Exception("[SOME_ERROR] Spark has words. SQLSTATE: 0A000")) == "Spark has words."
    traced = "[X] Failed: Traceback (most recent call last):\n  File 1\n    code()\nTypeError: no\n SQLSTATE: 38000"
    assert explain(Exception(traced)) == "TypeError: no"
    nested = (
        "[X] Failed: Traceback (most recent call last):\n  File 1\npyspark.PythonException: from the Python worker:\n"
        "Traceback (most recent call last):\n  File 2\nValueError: the reason\n\nJVM stacktrace:\nat x"
    )
    assert explain(Exception(nested)) == "ValueError: the reason"
    called = "An error occurred while calling o86.start.\n: org.x.NotFound: [X] No such format. SQLSTATE: 42K02\n\tat y"
    assert explain(Exception(called)) == "No such format."
    assert explain(Exception()) == "Exception"

"""The core works without the packages of the extras; a feature of an extra names it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tailrace import extras
from tailrace.errors import ExtraMissing
from tests.support import environment
from tests.support.patience import PATIENCE_S
from tests.support.server import ServerProcess

CORE = """
import sys
import tailrace
from tailrace.client import Client, Consumer
from tailrace.errors import ExtraMissing

def refused(extra, call, *arguments):
    try:
        call(*arguments)
    except Exception as error:
        assert error.code == "EXTRA_MISSING", repr(error)
        assert f"tailrace[{extra}]" in str(error), error
        return
    raise AssertionError(f"{call} needs no extra")

with tailrace.open("embedded") as db:
    orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    orders.put({"id": "o-1"})
    assert [change.event for change in orders.changes()] == ["INSERT"]
    assert db.create_stream("greetings").append({"hello": "world"})
    refused("sql", db.sql, "SELECT 1")
    refused("cold", db.backup, "copy")

with Client(sys.argv[1]) as client:
    client.sql(
        "CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT) WITH (stream = 'NEW_AND_OLD_IMAGES'); CREATE TOPIC news;"
        "ALTER TOPIC news ADD SOURCE notes ON INSERT WHERE (body LIKE '%!') WITH (payload = 'full');"
        "INSERT INTO notes VALUES ('n-1', 'hello!'), ('n-2', 'hello'); SHOW TABLES; DESCRIBE TABLE notes; SHOW TOPICS"
    )
    with Consumer(client, "news", "readers") as consumer:
        for message in consumer:
            assert message.json()["id"] == "n-1"
            consumer.stop()
    refused("sql", client.sql, "SELECT * FROM notes")
    assert client.call("Scan", {"TableName": "notes"})["Count"] == 2
assert not {"pyarrow", "duckdb", "deltalake", "pyspark", "pandas"} & set(sys.modules)
"""


def test_the_core_needs_no_extra(tmp_path: Path) -> None:
    python = environment.make(tmp_path / "venv")
    command = [str(python), "-m", "tailrace.cli", "serve", "--dev", "--port", "0", "--data", str(tmp_path / "data")]
    with ServerProcess(command) as server:
        done = subprocess.run(
            [str(python), "-c", CORE, server.url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    checked = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "tailrace"), "check", "--data", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    backed_up = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "tailrace"), "backup", "copy", "--data", str(tmp_path / "data")],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert backed_up.returncode == 1
    assert "tailrace[cold]" in backed_up.stderr
    assert "Traceback" not in backed_up.stderr


def test_the_error_names_the_packages_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"SELECT needs duckdb and pyarrow, .*pip install 'tailrace\[sql\]'"):
        extras.require("sql")

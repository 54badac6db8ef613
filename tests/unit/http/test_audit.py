"""The last lines of the audit log over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import limits
from tailrace.auth import audit
from tests.unit.http.inprocess import Up, serve

TOKEN = "a-token-of-the-server"


@pytest.fixture(autouse=True)
def _no_lines() -> None:
    audit.recent.clear()


def test_the_newest_line_comes_first(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        for name, status in (("ann", 201), ("bob", 201), ("ann", 409)):
            assert (await up.http.post("/v1/admin/users", json={"name": name})).status_code == status
        lines = (await up.http.get("/v1/admin/audit")).json()["lines"]
        shown = [(line["what"], line["subject"], line["outcome"] == "done") for line in lines]
        assert shown == [
            ("CreateUser", "users/ann", False),
            ("CreateUser", "users/bob", True),
            ("CreateUser", "users/ann", True),
        ]
        assert lines[0]["at"].endswith("Z")

    serve(data_dir, scenario)


def test_only_so_many_are_kept() -> None:
    for number in range(limits.AUDIT_LINES_MAX + 5):
        audit.record_outcome("ann", "login", "", "done", peer=str(number))
    assert len(audit.recent) == limits.AUDIT_LINES_MAX
    assert audit.recent[0][1]["peer"] == "5"


def test_administrators_with_grants_do_not_read_it(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        made = await up.http.post(
            "/v1/admin/users",
            json={"name": "ann", "role": "dba", "password": "long enough a password", "access": ["tables/a"]},
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        assert made.status_code == 201, made.text
        answer = await up.http.get("/v1/admin/audit", auth=("ann", "long enough a password"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "NOT_GIVEN")

    serve(data_dir, scenario, dev=False, token=TOKEN)

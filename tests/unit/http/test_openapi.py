"""The OpenAPI document is valid and says what the route table says; so do the endpoint tables of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from openapi_spec_validator import OpenAPIV31SpecValidator

from tailrace.http import openapi
from tailrace.http.route import ANY_METHOD
from tailrace.http.routes import ROUTES
from tests.unit.http.inprocess import Up, serve

ROOT = Path(__file__).parents[3]


def document() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi.document(ROUTES)))
    return found


def test_the_document_is_valid() -> None:
    OpenAPIV31SpecValidator(document()).validate()


def test_every_row_is_in_it() -> None:
    paths = document()["paths"]
    rows = {(row.method.lower(), row.path.replace("*}", "}")) for row in ROUTES if row.method != ANY_METHOD}
    assert {(method, path) for path, methods in paths.items() for method in methods} == rows
    names = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_types_have_names_of_their_own() -> None:
    for name in document()["components"]["schemas"]:
        assert re.fullmatch(r"[A-Z]\w+", name), f"{name} is shared by two classes"


def test_an_operation_says_what_it_takes_and_returns() -> None:
    paths = document()["paths"]
    commit = paths["/v1/stages/commit"]["post"]
    assert commit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/CommitBody")
    assert commit["x-permissions"] == ["write", "jobs"]
    read = paths["/v1/stream/{path}"]["get"]
    assert {"offset", "live", "until"} <= {each["name"] for each in read["parameters"]}
    assert {"text/event-stream", "application/vnd.apache.arrow.stream"} <= set(read["responses"]["200"]["content"])
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/v1/stream/__ds/subscriptions/{id}/ack"]["post"]["security"] == [{"wake": []}]


def test_the_server_has_it(data_dir: Path) -> None:
    async def scenario(up: Up) -> None:
        answer = await up.http.get("/openapi.json")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == document()

    serve(data_dir, scenario, token="s3cret-s3cret-s3cret")


def test_the_tables_of_the_documentation_are_current() -> None:
    tool = ROOT / "tools" / "make-endpoints"
    checked = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, f"run tools/make-endpoints: {checked.stdout}{checked.stderr}"


def test_every_endpoint_is_in_the_documentation() -> None:
    names = ("http.md", "topics-http.md", "pipeline-http.md", "arrow.md", "inspection-http.md")
    pages = [ROOT / "docs" / "reference" / name for name in names]
    text = "".join(page.read_text() for page in pages)
    missing = [
        f"{row.method} {row.path}"
        for row in ROUTES
        if row.method != ANY_METHOD and f"`{row.method} {row.path.replace('*}', '}')}`" not in text
    ]
    assert not missing

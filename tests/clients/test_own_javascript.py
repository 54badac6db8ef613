"""The JavaScript client of clients/js: typed, packable, and tested under Node and in Chromium against real servers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.support.control import ControlServer
from tests.support.node import node
from tests.support.patience import PATIENCE_S
from tests.support.server import ROOT, ServerProcess, check

HERE = Path(__file__).resolve().parent
CLIENT = ROOT / "clients" / "js"
TOKEN = "the-token-of-this-test-server"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def run_tests(name: str, tests: int, **environment: str) -> None:
    """Run a file of Node tests, and see that all of them ran."""
    done = node(HERE, ["--test", "--test-reporter=tap", f"js/{name}.test.mjs"], env=environment, timeout_s=500)
    counts = {
        name: int(count) for name, count in re.findall(r"^# (pass|fail|cancelled|skipped) (\d+)$", done.stdout, re.M)
    }
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts == {"pass": tests, "fail": 0, "cancelled": 0, "skipped": 0}, done.stdout


# -- the package


def compiler(*arguments: str) -> subprocess.CompletedProcess[str]:
    return node(HERE, ["node_modules/typescript/bin/tsc", *arguments], env={}, timeout_s=200)


def test_the_module_is_typed_and_its_declarations_are_current(tmp_path: Path) -> None:
    done = compiler("--project", str(CLIENT), "--outDir", str(tmp_path))
    assert done.returncode == 0, done.stdout
    made = (tmp_path / "tailrace.d.ts").read_text(encoding="utf-8")
    assert made == (CLIENT / "tailrace.d.ts").read_text(encoding="utf-8"), "make declarations writes it anew"


def test_the_types_serve_a_program(tmp_path: Path) -> None:
    """A program in TypeScript that uses the package is accepted, and its mistakes are found (`@ts-expect-error`)."""
    package = tmp_path / "node_modules" / "tailrace"
    package.mkdir(parents=True)
    for name in ("package.json", "tailrace.js", "tailrace.d.ts"):
        shutil.copy(CLIENT / name, package)
    shutil.copy(HERE / "js" / "types.ts", tmp_path)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--target", "ES2022", "--module", "nodenext"]
    done = compiler(*options, "--lib", "ES2022,DOM", str(tmp_path / "types.ts"))
    assert done.returncode == 0, done.stdout


def test_the_package_can_be_packed_and_has_the_version_of_the_server(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    assert npm is not None, "npm is not installed; `make node-modules` installs it where it can"
    done = subprocess.run(
        [npm, "pack", "--json", "--pack-destination", str(tmp_path)],
        cwd=CLIENT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (packed,) = json.loads(done.stdout)
    assert packed["version"] == tailrace.__version__
    names = {file["path"] for file in packed["files"]}
    assert names == {"LICENSE", "README.md", "package.json", "tailrace.d.ts", "tailrace.js"}
    source = (CLIENT / "tailrace.js").read_text(encoding="utf-8")
    assert f'export const VERSION = "{tailrace.__version__}"' in source
    assert "import " not in re.sub(r"/\*\*.*?\*/|//[^\n]*", "", source, flags=re.S), "it depends on nothing"
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_every_public_name_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "javascript.md").read_text(encoding="utf-8")
    documented = {name for span in re.findall(r"`+([^`]+)`+", page) for name in re.findall(r"\w+", span)}
    declared = re.sub(r"/\*.*?\*/", "", (CLIENT / "tailrace.d.ts").read_text(encoding="utf-8"), flags=re.S)
    classes = re.findall(r"^export class (\w+).*?\{\n(.*?)^\}", declared, re.M | re.S)
    assert {"Client", "Stream", "Table", "Topic", "Consumer", "Producer", "TailraceError"} <= {
        name for name, _ in classes
    }
    members = {name for _, body in classes for name in re.findall(r"^    (?:get |readonly )*(\w+)[(?:<]", body, re.M)}
    options = set(re.findall(r"^    (\w+)\?: ", declared, re.M))
    functions = set(re.findall(r"^export function (\w+)", declared, re.M))
    missing = (
        (members | options | functions)
        - documented
        - {"constructor", "target", "path", "name", "toJSON", "valueOf", "toString"}
    )
    assert not missing, f"docs/reference/javascript.md lacks {sorted(missing)}"


# -- under Node


def test_streams_and_producers(server: ServerProcess) -> None:
    run_tests("streams", 26, TAILRACE_URL=server.url)


def test_tables_topics_consumers_and_sql(server: ServerProcess) -> None:
    run_tests("data", 27, TAILRACE_URL=server.url)


def test_races_and_faults_without_a_server() -> None:
    run_tests("hostile", 10)


@pytest.fixture
def controlled(data_dir: Path) -> Iterator[ControlServer]:
    """A server that the program under test can kill and start."""
    with ControlServer(lambda port: ServerProcess.tailrace(data_dir, port=port)) as control:
        yield control
    checked = check(data_dir)
    assert checked.returncode == 0, f"tailrace check:\n{checked.stdout}{checked.stderr}"


def test_everything_continues_after_the_server_was_killed(controlled: ControlServer) -> None:
    assert controlled.server is not None
    run_tests("restart", 1, TAILRACE_URL=controlled.server.url, CONTROL_URL=controlled.url)


def test_credentials(data_dir: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tailrace.toml"
    settings.write_text("[auth]\naccess_token_s = 5\n", encoding="utf-8")
    command = [sys.executable, "-m", "tailrace.cli", "serve", "--config", str(settings), "--data", str(data_dir)]
    with ServerProcess([*command, "--port", "0"], env={"TAILRACE_TOKEN": TOKEN}) as server:
        run_tests("access", 8, TAILRACE_URL=server.url, TAILRACE_TEST_TOKEN=TOKEN)


# -- in a browser


def test_a_page_in_chromium_uses_a_server_of_another_origin(data_dir: Path, tmp_path: Path) -> None:
    found = subprocess.run([ROOT / "tools" / "ensure-chromium", "--find"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.skip("Chromium is not installed; tools/ensure-chromium installs it where it can")
    origin: list[str] = []

    def start(port: int) -> ServerProcess:
        command = [sys.executable, "-m", "tailrace.cli", "serve", "--data", str(data_dir), "--port", str(port)]
        return ServerProcess([*command, "--allow-origin", *origin], env={"TAILRACE_TOKEN": TOKEN})

    control = ControlServer(start)
    origin.append(control.url)
    with control:
        assert control.server is not None
        page = (HERE / "js" / "browser.html").read_text(encoding="utf-8")
        settings = json.dumps({"url": control.server.url, "token": TOKEN})
        control.add("/", "text/html", page.replace("SETTINGS", settings).encode())
        control.add("/tailrace.js", "text/javascript", (CLIENT / "tailrace.js").read_bytes())
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += [
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={tmp_path}/profile",
        ]
        with (tmp_path / "chromium.log").open("w") as log:
            browser = subprocess.Popen([found.stdout.strip(), *options, control.url], stdout=log, stderr=log)
            try:
                report = control.reports.get(timeout=PATIENCE_S)
            finally:
                browser.kill()
                browser.wait()
    assert report == {
        "appended": [0, 1, 2, 3, 4, 5],
        "consumed": [0, 1, 2],
        "changes": ["INSERT", "REMOVE"],
        "tables": ["browsed"],
        "refused": [401, "WRONG_TOKEN"],
        "lost": "CONNECTION_FAILED",
    }, report

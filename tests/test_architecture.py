"""ARCHITECTURE.md is true: every module is on the map, the paths of writes are what a profiler sees, the drawings are
current, and every stored table, test and file that it names exists.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tailrace import build
from tests.support.walks import WALKS, Trace

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tailrace"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

# Background work that may happen during a traced request.
BACKGROUND = re.compile(
    r"(housekeeping|config|errors|lazy|metrics|http/(transport|shared|unsent)|"
    r".*/(sweep|retention|change_trimming|checkpoints))\.py"
)
# Packages of other projects, and where they may be imported.
PLACES: dict[str, str | tuple[str, ...]] = {
    "apsw": "storage/",
    "deltalake": "cold/",
    "duckdb": "sql/worker_main.py",
    "httptools": "http/",
    "psycopg": ("storage/", "spark/jobs/replicas/postgres.py"),
    "pyspark": "spark/",
}
SECTIONS = {"append": "An append", "put_item": "A PutItem"}


def section(title: str) -> str:
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"ARCHITECTURE.md has no section {title!r}"
    return found.group(2)


def modules_on_the_map() -> list[str]:
    modules: list[str] = []
    folder = ""
    for package, names in re.findall(r"^\|([^|]*)\|[^|]*\|([^|]*)\|$", section("The map"), re.M):
        start = re.search(r"`([a-z_/]+)/`", package)
        if start is not None:
            folder = "" if start[1] == "tailrace" else f"{start[1]}/"
        modules += [folder + name for name in re.findall(r"`(\w+\.py)`", names)]
    return modules


def modules_of_the_package() -> set[str]:
    names = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    return {name for name in names if not name.endswith("/__init__.py")}


def test_every_module_is_on_the_map_once() -> None:
    listed = modules_on_the_map()
    missing, stale = modules_of_the_package() - set(listed), set(listed) - modules_of_the_package()
    assert sorted(missing) == [], "the map of ARCHITECTURE.md lacks modules"
    assert sorted(stale) == [], "the map of ARCHITECTURE.md has modules that do not exist"
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == [], "on the map twice"


def test_every_file_named_on_the_page_exists() -> None:
    text = TEXT.replace(section("The map"), "")
    modules = modules_of_the_package()
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) | set(re.findall(r"`(tests/[\w/.]+)`", text))
    assert sorted(name for name in named if name not in modules and not (ROOT / name).exists()) == []


@pytest.mark.parametrize(("name", "place"), PLACES.items())
def test_an_external_system_is_used_in_one_place(name: str, place: str | tuple[str, ...]) -> None:
    importing = re.compile(rf"^ *(?:import|from) {name}\b", re.M)
    for module in sorted(modules_of_the_package()):
        text = (PACKAGE / module).read_text(encoding="utf-8")
        text = re.sub(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)+", "", text, flags=re.M)
        assert module.startswith(place) or importing.search(text) is None, f"{module} imports {name}"


def test_every_stored_table_is_described() -> None:
    schema = (PACKAGE / "storage" / "schema.sql").read_text(encoding="utf-8")
    stored = set(re.findall(r"^CREATE TABLE (\w+)", schema, re.M))
    rows = re.findall(r"^\| (`[^|]*) \|", section("The data"), re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == stored


@cache
def traced(name: str) -> Trace:
    return WALKS[name]()


# A profiler sees no calls between compiled modules.
pure_python = pytest.mark.skipif(build.compiled(), reason="the path is traced on the pure build")


@pure_python
@pytest.mark.parametrize("name", list(WALKS))
def test_the_path_of_a_write_is_what_a_profiler_sees(name: str) -> None:
    path, _, also = section(SECTIONS[name]).partition("\nAlso called:")
    steps = list(dict.fromkeys(re.findall(r"`([\w/]+\.py)`", path.partition("\n**")[0])))
    also_called = set(re.findall(r"`([\w/]+\.py)`", also.partition("\n\n")[0]))
    visited = list(traced(name).visited)
    assert [step for step in steps if step not in visited] == [], "on the page, and not called"
    # The order of the page is that of the first calls.
    order = [module for module in visited if module in steps]
    assert order == steps
    unnamed = [module for module in visited if module not in steps and module not in also_called]
    assert [module for module in unnamed if not BACKGROUND.fullmatch(module)] == [], "called, and not on the page"


@pure_python
def test_the_drawing_of_a_write_is_a_part_of_the_trace() -> None:
    script = (ROOT / "tools" / "draw-architecture").read_text(encoding="utf-8")
    drawn = re.findall(r'^    \("(event loop|committer thread)", "([\w/]+\.py)"', script, re.M)
    assert len(drawn) > 10
    path = iter(traced("put_item").path)
    for step in drawn:
        assert step in path, f"{step} is not called after the steps before it"


def test_the_server_waits_where_the_page_says() -> None:
    """The modules that subscribe to the tail of a log."""
    subscribed = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\btail\.(subscribe|watch)\(", path.read_text(encoding="utf-8"))
    }
    named = set(re.findall(r"`([\w/]+\.py)`", section("Where the server waits")))
    assert subscribed - named == set()


def test_the_drawings_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "draw-architecture"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

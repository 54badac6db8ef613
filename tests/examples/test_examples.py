"""The examples run: those of the documentation under the comment ``<!-- run -->``, and the programs in examples/.

The examples of one page run in order, in one session (see `tests.support.session`), in an environment that has the
product and nothing of the tests; those that can be followed again run twice.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import environment as product
from tests.support.jvm import spark_environment
from tests.support.pages import ROOT, SESSIONS, marked, page_name

SPARK = {f"docs/{name}.md" for name in ("tutorial/lakehouse", "how-to/cluster", "how-to/restore", "how-to/views")}
# Pages whose examples are for a directory of their own, and run once. All others can be followed again and again.
ONCE = SPARK | {f"docs/{name}.md" for name in ("reference/python", "how-to/transactions")}
PROGRAMS = [path for path in sorted((ROOT / "examples").rglob("*.py")) if path.parent.name != "shop"]


def environment(directory: Path) -> dict[str, str]:
    """That of a newcomer: no settings but how the JVM compiles, and nothing of the tests' environment on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TAILRACE_"))}
    own = Path(sys.executable).parent
    path = [each for each in kept["PATH"].split(os.pathsep) if Path(each) != own]
    kept.pop("VIRTUAL_ENV", None)
    spark = spark_environment(directory / ".spark")
    return {**kept, **spark, "PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def newcomer(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A directory with what `make run` installs in its .venv. Its Python."""
    on_spark = request.node.callspec.params.get("path") in {ROOT / name for name in SPARK}
    return product.make(tmp_path / ".venv", "sql", "cold", *(["spark"] if on_spark else []))


def run(
    python: Path, arguments: list[str], directory: Path, stdin: str = "", timeout_s: float = 250
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        cwd=directory,
        env={**environment(directory), "PYTHONPATH": str(ROOT)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,  # a tutorial starts a dozen programs; on a busy machine that takes long
        check=False,
    )


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples use curl")
@pytest.mark.parametrize("path", SESSIONS, ids=page_name)
def test_the_marked_session_runs(path: Path, newcomer: Path, tmp_path: Path) -> None:
    name = page_name(path)
    page = json.dumps({"blocks": marked(path), "passes": 1 if name in ONCE else 2})
    done = run(newcomer, ["-m", "tests.support.session"], tmp_path, page, 850 if name in SPARK else 400)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.parametrize("path", PROGRAMS, ids=page_name)
def test_the_example_program_runs(path: Path, newcomer: Path, tmp_path: Path) -> None:
    needed = re.search(r"`pip install ([^`]+)`", path.read_text(encoding="utf-8"))
    if needed is not None:
        product.install(tmp_path / ".venv", shlex.split(needed[1]))
    done = run(newcomer, [str(path)], tmp_path)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"

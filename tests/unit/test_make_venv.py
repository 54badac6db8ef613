"""Which Python `make` takes for its virtual environment: Pythons in directories of their own, and nothing else on the
PATH. They are the one that runs this test, but for what they say about themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MAKE_VENV = Path(__file__).parents[2] / "tools" / "make-venv"
OLD, SLOW, FAST, BARE = "old", "slow", "fast", "bare"  # bare: fast, but it cannot make environments by itself


def made_python(place: Path, kind: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(
        f"""#!/bin/sh
case "$*" in
    *enable-optimizations*) exit {int(kind == SLOW)} ;;
    *ensurepip*) exit {int(kind == BARE)} ;;
    *version_info*) exit {int(kind == OLD)} ;;
    "-m venv "*) shift 2; exec '{sys.executable}' -m venv --without-pip "$@" ;;
esac
exec '{sys.executable}' "$@"
"""
    )
    place.chmod(0o755)


def run(work: Path, directories: Sequence[str]) -> subprocess.CompletedProcess[str]:
    needed = work / "needed"
    needed.mkdir()
    for command in ("bash", "env", "id", "mktemp", "rm"):
        found = shutil.which(command)
        assert found is not None
        (needed / command).symlink_to(found)
    path = os.pathsep.join([*(str(work / name) for name in directories), str(needed)])
    return subprocess.run(
        [MAKE_VENV, "", "out"], cwd=work, env={"PATH": path}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"a/python3": SLOW}, "a/python3"),
        ({"a/python3.12": SLOW}, "a/python3.12"),
        ({"a/python3": OLD, "b/python3.12": SLOW}, "b/python3.12"),
        ({"a/python3": SLOW, "b/python3.12": FAST}, "b/python3.12"),
        ({"a/python3": SLOW, "with a space/python3": FAST}, "with a space/python3"),
        ({"a/python3": BARE, "b/python3.11": FAST}, "b/python3.11"),
        ({"out/bin/python3": FAST, "b/python3.12": SLOW}, "b/python3.12"),
    ],
)
def test_the_python_of_the_environment(tmp_path: Path, pythons: dict[str, str], taken: str) -> None:
    for name, kind in pythons.items():
        made_python(tmp_path / name, kind)
    done = run(tmp_path, [str(Path(name).parent) for name in pythons])
    assert done.returncode == 0, done.stderr
    assert f"({tmp_path / taken})" in done.stdout
    assert (tmp_path / "out/bin/python").exists()


def test_without_a_python_that_is_new_enough_nothing_is_removed(tmp_path: Path) -> None:
    for names, said in (([], "'python3' is not installed"), (["a/python3"], "Python 3.11 or newer is needed")):
        work = tmp_path / str(len(names))
        (work / "out").mkdir(parents=True)
        for name in names:
            made_python(work / name, OLD)
        done = run(work, ["a"])
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
        assert (work / "out").exists()

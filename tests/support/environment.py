"""A virtual environment with the product and nothing else, in a second and without a network.

Its packages are links to those of the tests' own environment: the dependencies of Tailrace and of the extras asked for,
and whatever they depend on. Examples that run in it see what a newcomer's program sees. Its `pip install` adds links to
the packages named, if the tests' environment has them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, *extras: str) -> Path:
    """The environment in `folder`, with these extras of Tailrace. Returns its Python."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [each for name in extras for each in project["optional-dependencies"][name]]
    install(folder, wanted)
    site = _site(folder)
    (site / "tailrace.pth").write_text(f"{ROOT / 'src'}\n")
    _link(site, distribution("tailrace"), lambda top: top.endswith(".dist-info"))
    python = folder / "bin" / "python"
    _script(folder / "bin" / "tailrace", f'exec {shlex.quote(str(python))} -m tailrace.cli "$@"')
    own = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m {__name__}"
    _script(folder / "bin" / "pip", f'{own} {shlex.quote(str(folder))} "$@"')
    return python


def install(folder: Path, requirements: Iterable[str]) -> None:
    """Link the packages that satisfy these requirements."""
    site = _site(folder)
    for found in _closure(requirements):
        _link(site, found, lambda top: top not in ("..", "__pycache__"))
        for entry in found.entry_points.select(group="console_scripts"):
            script = folder / "bin" / entry.name
            if not script.exists():
                code = f"import sys; from {entry.module} import {entry.attr.split('.')[0]}; sys.exit({entry.attr}())"
                _script(script, f'exec {shlex.quote(str(folder / "bin" / "python"))} -c {shlex.quote(code)} "$@"')


def _closure(requirements: Iterable[str]) -> Iterator[Distribution]:
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        mark = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if mark in seen:
            continue
        seen.add(mark)
        found = distribution(requirement.name)
        yield found
        for text in found.requires or []:
            each = Requirement(text)
            contexts = [{"extra": extra} for extra in ("", *requirement.extras)]
            if each.marker is None or any(each.marker.evaluate(context) for context in contexts):
                waiting.append(each)


def _link(site: Path, found: Distribution, wanted: Callable[[str], bool]) -> None:
    for top in {file.parts[0] for file in found.files or []}:
        if wanted(top) and not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))))


def _site(folder: Path) -> Path:
    (site,) = (folder / "lib").glob("python*/site-packages")
    return site


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def main() -> int:
    folder, command, *names = sys.argv[1:]
    if command != "install":
        return 2
    try:
        install(Path(folder), [name for name in names if not name.startswith("-")])
    except PackageNotFoundError as error:
        sys.stderr.write(f"the tests' environment has no package {error}; add it to the extra dev\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

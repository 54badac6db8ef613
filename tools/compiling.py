"""The compiled build: the hot modules of src/tailrace, translated to C by mypyc and compiled.

Theory of operation
-------------------
`pyproject.toml` lists the modules (`tool.tailrace.compiled`). They are never compiled beside their sources, where an
extension module would take precedence over a source that was edited since. `build()` makes a whole tree instead: a copy
of the package plus the extension modules, in ``build/compiled/<digest>``. The digest covers everything that the result
depends on: every source, the list, and the versions of Python and mypyc. So a tree is up to date if and only if it
exists, and a server that runs from an older tree keeps its files.

mypyc is installed into a directory of its own (requirements-compile.lock), so that .venv stays what it is and an
installation of Spark beside it is not disturbed. A wheel is built with the mypyc of its build environment
(`hatch_build.py`).

``build/compiled/work`` has the C files and objects of the last build: an object is reused while its C file, the headers
and the flags are the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Types that mypyc is not to rely on, as (file, pattern, replacement) in the copy that it reads. It would write the
# values of `limits` into the machine code, and refuse the transactions that tests make up.
LOOSENED = (
    ("tailrace/limits.py", r": Final = ", " = "),
    ("tailrace/storage/engine.py", r"(def begin\(self, now_ms: int\)) -> Tx:", r"\1 -> Any:"),
    ("tailrace/runner.py", r"(\w: )Tx\b", r"\1Any"),
)

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
BUILT = ROOT / "build" / "compiled"
LOCK = ROOT / "requirements-compile.lock"
TREES_KEPT = 2  # the current one, and one that a server may still run from


def modules() -> list[str]:
    """The compiled modules, as paths below src: ``tailrace/runner.py``."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed: list[str] = pyproject["tool"]["tailrace"]["compiled"]["modules"]
    return [f"tailrace/{each}" for each in listed]


def compiler() -> str | None:
    """The C compiler, if there is one and it can compile for this Python."""
    wanted = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    found = next((shutil.which(each) for each in (wanted.split()[0], "cc") if shutil.which(each)), None)
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return found if found and headers.exists() else None


def tree() -> Path:
    """Where the compiled build of the present sources is, or would be."""
    digest = hashlib.sha256(f"{sys.version} {modules()}".encode())
    for path in _files(SOURCES / "tailrace"):
        digest.update(f"{path.relative_to(SOURCES)}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for path in (Path(__file__), LOCK):
        digest.update(path.read_bytes())
    return BUILT / digest.hexdigest()[:16]


def install_mypyc() -> None:
    """Install mypyc where `build` finds it, unless it is there, or in this environment."""
    tools = _tools()
    if tools.exists() or _has_mypyc():
        return
    partial = tools.with_suffix(".new")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--require-hashes", "--target", str(partial), "-r", str(LOCK)], check=True)
    partial.rename(tools)


def _has_mypyc() -> bool:
    """Whether this environment has the packages of the lock that matter: the environment of the tests does."""
    try:
        return bool(version("setuptools")) and f"mypy=={version('mypy')} " in LOCK.read_text()
    except PackageNotFoundError:
        return False


def _tools() -> Path:
    return BUILT / "tools" / f"{hashlib.sha256(sys.version.encode() + LOCK.read_bytes()).hexdigest()[:16]}"


def build() -> Path:
    """Make the tree of the present sources, unless it is there."""
    wanted = tree()
    if not wanted.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with (BUILT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not wanted.exists():
                _build(wanted)
    return wanted


def _build(wanted: Path) -> None:
    work = BUILT / "work"
    _copy_changed(SOURCES / "tailrace", work / "tailrace")
    originals = {name: (work / name).read_bytes() for name, _, _ in LOOSENED}
    for name, pattern, replacement in LOOSENED:
        loosened, count = re.subn(pattern, replacement, (work / name).read_text())
        assert count, f"{name} has nothing like {pattern}"
        (work / name).write_text(loosened)
    for stale in [*work.rglob("*.so"), *work.rglob("*.pyd")]:
        stale.unlink()
    # In a process of its own: mypyc exits where it finds an error, and leaves its settings behind.
    environ = {**os.environ, "PYTHONPATH": str(_tools())} if _tools().exists() else None
    subprocess.run([sys.executable, __file__, "translate"], cwd=work, check=True, env=environ)
    made = BUILT / "new"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(work / "tailrace", made / "tailrace", ignore=shutil.ignore_patterns("__pycache__"))
    for library in work.glob("*__mypyc.*"):
        shutil.copy2(library, made)
    for name, original in originals.items():
        (made / name).write_bytes(original)
    made.rename(wanted)
    _remove_old()


def extensions(built: Path) -> dict[Path, str]:
    """The extension modules of a tree, each with its path in a wheel."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return {path: path.relative_to(built).as_posix() for path in sorted(built.rglob(f"*{suffix}"))}


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _copy_changed(source: Path, copy: Path) -> None:
    """Make `copy` equal to `source`; files that have not changed keep their times."""
    there = {path.relative_to(source) for path in _files(source)}
    if copy.exists():
        for path in copy.rglob("*"):
            if path.is_file() and path.relative_to(copy) not in there:
                path.unlink()
    for name in there:
        if not (copy / name).exists() or (copy / name).read_bytes() != (source / name).read_bytes():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, copy / name)


def _remove_old() -> None:
    trees = [path for path in BUILT.iterdir() if path.name not in ("work", "new", "tools", "lock")]
    for old in sorted(trees, key=lambda path: path.stat().st_mtime, reverse=True)[TREES_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _translate() -> None:
    """Translate and compile, in the current directory."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    # Other modules are read for their types alone: `make types` checks them.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", "--no-warn-unused-configs"]
    units = mypycify(
        [*options, *modules()], opt_level="2", debug_level="0", multi_file=True, target_dir="c", group_name="tailrace"
    )

    class ParallelBuild(build_ext):
        def build_extensions(self) -> None:
            self.compiler.compile = _ParallelCompile(self.compiler)
            super().build_extensions()

    command = ParallelBuild(Distribution({"name": "tailrace", "ext_modules": units}))
    command.inplace = True
    command.force = True
    command.build_temp = "objects"
    command.ensure_finalized()
    command.run()


class _ParallelCompile:
    """Compiles the files of an extension side by side, and those that changed only."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler

    def __call__(self, sources: Any, **settings: Any) -> list[str]:
        depends = settings.get("depends")
        macros, objects, extra, cpp_options, units = self._compiler._setup_compile(
            settings.get("output_dir"),
            settings.get("macros"),
            settings.get("include_dirs"),
            sources,
            depends,
            settings.get("extra_postargs"),
        )
        options = self._compiler._get_cc_args(cpp_options, settings.get("debug"), settings.get("extra_preargs"))
        common = hashlib.sha256(repr((self._compiler.compiler_so, macros, options, extra)).encode())
        for header in sorted(Path("c").rglob("*.h")):
            common.update(header.read_bytes())

        def one(item: tuple[str, tuple[str, str]]) -> None:
            name, (source, kind) = item
            digest = common.copy()
            digest.update(Path(source).read_bytes())
            record = Path(name + ".digest")
            if Path(name).exists() and record.exists() and record.read_text() == digest.hexdigest():
                return
            record.unlink(missing_ok=True)
            self._compiler._compile(name, source, kind, options, extra, cpp_options)
            record.write_text(digest.hexdigest())

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, units.items()))
        return list(objects)


if __name__ == "__main__" and sys.argv[1:] == ["translate"]:
    _translate()

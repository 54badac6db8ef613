"""Installs the Spark extra beside a running server, by the command that `make run` passes in.

The progress bar of pip becomes a status line; the other lines that matter are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from examples.shop.background import Background

_BAR: Final = re.compile(r"[━╸╺]+")
_SHOWN: Final = re.compile(r"(?:Downloading|Using cached|Building wheel|Installing collected) ?(?P<what>.*)")


class Installation(Background):
    """A command that installs Spark."""

    def __init__(self, command: str, on_line: Callable[[str], None]) -> None:
        self._package = ""
        super().__init__(command, on_line)

    def _take(self, line: str) -> None:
        if _BAR.search(line):
            self.progress = f"installing Spark: {self._package} {_BAR.sub('', line).strip()}"
            return
        if not line:
            return
        self._last.append(line)
        match = _SHOWN.match(line)
        if match is None:
            return
        if line.startswith("Installing collected"):
            line = "unpacking (about a minute)"
        self._package = match["what"].split("-")[0].rpartition("/")[2]
        self.progress = f"installing Spark: {line}"
        self._on_line(f"installing Spark: {line}")

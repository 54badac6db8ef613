"""Makes the compiled build beside a running server, by the command that `make run` and `make serve` pass in.

The command has the lowest priority. It is started when the server is up, and ended with it; the next start uses the
result.
"""

from __future__ import annotations

from typing import Final

from examples.shop.background import Background

_SHOWN: Final = ("compiling ", "compiled ", "error: ")  # of what tools/compile prints; the rest is from mypyc


class Compilation(Background):
    """A command that compiles."""

    def _take(self, line: str) -> None:
        if line.startswith(_SHOWN):
            self.progress = line if line.startswith("compiling ") else ""
            self._on_line(line)

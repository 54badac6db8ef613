"""The failpoints that a server under load passes.

The others belong to a job, a start or an operation of its own, and are armed by the tests of that.
"""

from __future__ import annotations

from typing import Final

from tailrace import failpoints

COMMITS: Final = tuple(name for name in failpoints.NAMES if name.startswith(("batch.", "command.", "commit.")))
WRITES: Final = (*COMMITS, "sweep.step")  # with what runs in the background

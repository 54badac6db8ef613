"""``python -m tests.crash.small_server serve ...``: the real server, in which few rows are a large commit."""

from __future__ import annotations

from tailrace import limits
from tailrace.cli import main

ITEMS = 1_000
SLICE = 200

if __name__ == "__main__":
    limits.COMMIT_ITEMS_MAX = ITEMS  # type: ignore[misc]
    limits.COMMIT_SLICE_ITEMS = SLICE  # type: ignore[misc]
    main()

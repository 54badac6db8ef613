"""Where tests that open thousands of databases put them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def scratch_directory() -> Path:
    """A new directory, in memory where the machine has such a place: what is tested there is not the disk."""
    memory = "/dev/shm"
    return Path(tempfile.mkdtemp(prefix="tailrace-", dir=memory if os.access(memory, os.W_OK) else None))

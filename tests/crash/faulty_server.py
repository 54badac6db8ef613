"""``python -m tests.crash.faulty_server CONTROL serve ...``: the real server on a disk that fails on command.

While the file CONTROL/sync exists, syncs of the WAL fail. While CONTROL/full exists, no file can be written to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tailrace.cli import main
from tests.support.vfs import FaultyDisk, failed_sync, no_space


def serve(control: Path) -> None:
    def fault(operation: str, path: str, offset: int, size: int) -> None:
        if operation == "sync" and path.endswith("-wal") and (control / "sync").exists():
            raise failed_sync()
        if operation == "write" and (control / "full").exists():
            raise no_space()

    disk = FaultyDisk("faulty", fault, default=True)
    main()
    del disk


if __name__ == "__main__":
    serve(Path(sys.argv.pop(1)))

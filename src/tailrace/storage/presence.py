"""The directory of an open database: it is locked, and the removal, move or replacement of its files is detected.

A process that holds a file open can write to it and sync it after `rm -rf`, and nothing fails; but a restart does not
find the data. So after each commit the files are looked up by name. Creating, removing or renaming a file changes the
modification time of its directory: while that is unchanged, one `stat` of the directory is enough.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tailrace.errors import Unavailable

GONE: Final = "DATABASE_GONE"
# File systems stamp times in ticks. A directory that changed just now may change again without a new time, so it is
# trusted only when its last change is older than this.
_SETTLED_NS: Final = 2_000_000_000
_TRUSTED_NS: Final = 1_000_000_000  # how long the directory's time alone is trusted; then the files are checked again


class Presence:
    """The files that must stay where they are, by device and inode as they are now; the first never gets smaller."""

    def __init__(self, directory: Path, names: tuple[str, ...]) -> None:
        self._directory = os.path.abspath(directory)  # the working directory of the process may change
        self._growing = os.path.join(self._directory, names[0])
        self._size = 0  # of the first file, when it was last checked
        self._inodes = {path: _inode(os.stat(path)) for path in (os.path.join(self._directory, name) for name in names)}
        self._home = _inode(os.stat(self._directory))
        self._mtime_ns: int | None = None
        self._looked_ns = 0

    def verify(self) -> None:
        """Raise `Unavailable` DATABASE_GONE unless every file is where it was when the database was opened."""
        try:
            found = os.stat(self._directory)
        except OSError as error:
            raise _gone(self._directory, error.strerror or str(error)) from error
        if _inode(found) != self._home:
            raise _gone(self._directory, "another directory is in its place")
        monotonic_ns = time.monotonic_ns()
        if found.st_mtime_ns == self._mtime_ns and monotonic_ns - self._looked_ns < _TRUSTED_NS:
            return
        for path, inode in self._inodes.items():
            self._verify_file(path, inode)
        self._looked_ns = monotonic_ns
        self._mtime_ns = found.st_mtime_ns if found.st_mtime_ns < time.time_ns() - _SETTLED_NS else None

    def _verify_file(self, path: str, inode: tuple[int, int]) -> None:
        size = self._size  # before the check: another thread may check later, and store a larger size
        try:
            found = os.stat(path)
        except OSError as error:
            raise _gone(path, error.strerror or str(error)) from error
        if _inode(found) != inode:
            raise _gone(path, "another file is in its place")
        if path == self._growing:
            if found.st_size < size:
                raise _gone(path, f"it was cut off, from {size} to {found.st_size} bytes")
            self._size = found.st_size


def _inode(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _gone(path: str, why: str) -> Unavailable:
    return Unavailable(
        f"{path!r} was removed, moved or replaced while the database was open ({why}), and new writes would "
        "be lost; put the original files back under that name, or restore a backup, and then restart",
        code=GONE,
    )


def locked_directory(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor of the directory that holds its lock; None where directories cannot be locked. BlockingIOError:
    another process has it."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # a network file system
        os.close(handle)
        return None
    return handle


def sync_directory(path: Path) -> None:
    with suppress(OSError):  # not every file system lets a directory be opened; those need no sync either
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""The reserve: disk space set aside, so that data can be deleted on a full disk.

Every commit needs space in the write-ahead log, also one that deletes. While the disk is full the reserve is released
for batches of commands that free space, and for no others; afterwards it is taken again as far as possible.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from tailrace import limits

FILE: Final = "RESERVE"
logger = logging.getLogger("tailrace.storage")


class Reserve:
    """The file whose blocks are the reserve."""

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute() / FILE
        self.wanted = 0
        with suppress(OSError):
            disk = os.statvfs(directory)
            share = disk.f_blocks * disk.f_frsize // limits.DISK_RESERVE_SHARE
            self.wanted = min(limits.DISK_RESERVE_BYTES, share)

    def room(self) -> int:
        """Bytes that are free on the disk."""
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize

    @property
    def full(self) -> bool:
        """Whether the reserve has its full size."""
        try:
            return self._path.stat().st_size >= self.wanted
        except OSError:
            return self.wanted == 0

    def take(self) -> None:
        """Fill the reserve, or as much of it as there is room for."""
        if self.wanted == 0 or self.full:
            return
        size = self.wanted
        while size >= limits.DISK_RESERVE_BYTES_MIN:
            if self._allocate(size):
                return
            size //= 2

    def release(self) -> None:
        """Give the space back to the disk."""
        with suppress(FileNotFoundError):
            self._path.unlink()

    def close(self) -> None:
        """The database is closed: the reserve stays if the disk may be full at the next open."""
        with suppress(OSError):
            if self.room() > self.wanted * limits.DISK_RESERVE_SHARE:
                self.release()

    def _allocate(self, size: int) -> bool:
        handle = -1
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(handle, 0, size)  # existing blocks count
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # not supported by this file system
                logger.warning("no space is set aside for a full disk in %s: %s", self._path, error.strerror or error)
                self.wanted = 0
            if handle >= 0:
                with suppress(OSError):
                    os.ftruncate(handle, 0)
            return False
        finally:
            if handle >= 0:
                os.close(handle)
        return True

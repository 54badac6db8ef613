"""Disks that fail, under SQLite: a sync that fails, a write that finds no space, a power loss.

`FaultyDisk` asks a function before each operation, which may raise. `LossyDisk` keeps beside every file what of it
was synced: the state in which a power loss leaves the directory.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

Fault = Callable[[str, str, int, int], None]  # operation ("write", "sync", "read", "truncate"), path, offset, size


def failed_sync() -> apsw.IOError:
    error = apsw.IOError("injected: fsync failed")
    error.extendedresult = apsw.SQLITE_IOERR_FSYNC
    return error


def failed_read() -> apsw.IOError:
    error = apsw.IOError("injected: read failed")
    error.extendedresult = apsw.SQLITE_IOERR_READ
    return error


def no_space() -> apsw.FullError:
    return apsw.FullError("injected: no space left on device")


def _path(name: Any) -> str:
    return str(name.filename() if isinstance(name, apsw.URIFilename) else name)


class FaultyDisk(apsw.VFS):
    """A VFS whose operations fail when `fault` raises. Registered under `name`; `default` makes it everyone's."""

    def __init__(self, name: str, fault: Fault | None = None, *, default: bool = False) -> None:
        self.name = name
        self.fault = fault
        self.base = apsw.vfs_names()[0]  # by its name: under "" a default one would find itself
        super().__init__(name, self.base, makedefault=default)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _FaultyFile(self, name, flags)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        super().__init__(disk.base, name, flags)
        self._disk = disk
        self._path = _path(name)

    def _ask(self, operation: str, offset: int = 0, size: int = 0) -> None:
        if self._disk.fault is not None:
            self._disk.fault(operation, self._path, offset, size)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._ask("read", offset, amount)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._ask("write", offset, len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._ask("sync")
        super().xSync(flags)


class LossyDisk(apsw.VFS):
    """A VFS that knows what a power loss would leave.

    Every write is remembered until its file is synced. `lose` writes the directory as it would be found afterwards:
    what was synced, and of the rest any part that a disk might have written, in any order, the last one torn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._durable: dict[str, bytearray] = {}
        self._pending: dict[str, list[tuple[int, bytes | None]]] = {}
        self._lock = threading.Lock()
        self.base = apsw.vfs_names()[0]
        super().__init__(name, self.base)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _LossyFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        with self._lock:
            self._durable.pop(filename, None)
            self._pending.pop(filename, None)

    def remember(self, path: str, offset: int, data: bytes | None) -> None:
        with self._lock:
            self._pending.setdefault(path, []).append((offset, data))

    def synced(self, path: str) -> None:
        with self._lock:
            image = self._durable.setdefault(path, bytearray())
            for operation in self._pending.pop(path, []):
                _apply(image, *operation)

    def durable_bytes(self, path: Path) -> int:
        """How much of a file a power loss would surely leave."""
        with self._lock:
            return len(self._durable.get(str(path), b""))

    def lose(self, directory: Path, copy: Path, chance: random.Random) -> None:
        """Write into `copy` what would be found in `directory`."""
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        with self._lock:
            for path in self._durable.keys() | self._pending.keys():
                if Path(path).parent != directory:
                    continue
                image = bytearray(self._durable.get(path, b""))
                share = chance.choice([0.0, 0.0, 0.5, 1.0])
                for offset, data in self._pending.get(path, []):
                    if chance.random() < share:
                        torn = data is not None and chance.random() < 0.2
                        _apply(image, offset, data[: chance.randrange(len(data))] if torn and data else data)
                (copy / Path(path).name).write_bytes(image)
        with suppress(FileNotFoundError):  # written and synced past SQLite, before it was used
            shutil.copy(directory / "secret.key", copy)


class _LossyFile(apsw.VFSFile):
    def __init__(self, disk: LossyDisk, name: Any, flags: list[int]) -> None:
        super().__init__(disk.base, name, flags)
        self._disk = disk
        self._path = _path(name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._disk.remember(self._path, offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._disk.remember(self._path, size, None)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._disk.synced(self._path)


def _apply(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del image[offset:]
        return
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data

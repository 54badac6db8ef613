"""Targets of backups: a directory, or a bucket. An archive is a directory in one file (`archives.py`).

Writes are atomic, and durable when `write` returns. Files are readable by their owner only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, Protocol

import pyarrow.fs

from tailrace import limits
from tailrace.cold.store import Store
from tailrace.errors import Error, Invalid, NotFound, Unavailable

_PARTIAL: Final = ".partial-"


class BackupTarget(Protocol):
    """Stores objects and manifests."""

    url: str

    def read(self, name: str) -> bytes:
        """Raises `FileNotFoundError` if there is none."""

    def write(self, name: str, data: bytes) -> None: ...

    def list(self, folder: str) -> dict[str, int]:
        """Names below a folder, and sizes."""

    def remove(self, name: str, *, unused: bool = False) -> None:
        """`unused`: nothing refers to it now, but a backup in progress may."""

    def scratch(self) -> Path:
        """A new local directory with room for a copy of the database."""

    def close(self) -> None: ...


def open_target(
    url: str | os.PathLike[str], *, writing: bool, options: Mapping[str, str] | None = None
) -> BackupTarget:
    """Open a target. For writing it is created if it does not exist, and locked."""
    text = os.fspath(url)
    if text.startswith(("s3://", "s3a://")):
        return BucketTarget(text, options)
    if "://" in text and not text.startswith("file://"):
        raise Invalid(f"{text!r} is not a backup target; name a directory, an archive (.tar, .tar.zst) or s3://...")
    return DirectoryTarget(Path(text.removeprefix("file://")), writing)


class DirectoryTarget:
    """A local directory."""

    def __init__(self, path: Path, writing: bool) -> None:
        self.url = str(path)
        self._root = path.absolute()
        self._lock: IO[bytes] | None = None
        with self._translated_errors():
            if writing:
                if self._root.is_dir() and any(self._root.iterdir()) and not (self._root / "generations").is_dir():
                    raise Invalid(
                        f"{self.url!r} is not empty and holds no backups of Tailrace; name a new or empty directory"
                    )
                make_folder(self._root / "generations")
                self._claim()
                for stale in self._root.glob(f"{_PARTIAL}*"):  # of a backup that was killed
                    shutil.rmtree(stale, ignore_errors=True)
            elif not (self._root / "generations").is_dir():
                raise NotFound(f"there are no backups in {self.url!r}; name the target of `tailrace backup`")

    def read(self, name: str) -> bytes:
        with self._translated_errors():
            return (self._root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        path = self._root / name
        with self._translated_errors():
            make_folder(path.parent)
            write_file(path, data)

    def list(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        with self._translated_errors():
            for where, _, names in os.walk(self._root / folder):
                for name in names:
                    path = Path(where, name)
                    with suppress(FileNotFoundError):
                        found[str(path.relative_to(self._root))] = path.stat().st_size
        return found

    def remove(self, name: str, *, unused: bool = False) -> None:
        with self._translated_errors(), suppress(FileNotFoundError):
            (self._root / name).unlink()

    def scratch(self) -> Path:
        with self._translated_errors():
            return Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._root))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self) -> None:
        self._lock = os.fdopen(os.open(self._root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise Unavailable(
                f"another backup to {self.url!r} is running; wait for its end", code="BACKUP_IN_USE"
            ) from None

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        with translated_disk_errors(self.url):
            yield


class BucketTarget:
    """Objects below a prefix of a bucket. One backup at a time: buckets have no locks."""

    def __init__(self, url: str, options: Mapping[str, str] | None) -> None:
        self._store = Store(url, options)
        self.url = self._store.url
        self._files = self._store.filesystem()

    def read(self, name: str) -> bytes:
        try:
            with self._store.wrap_errors(""), self._files.open_input_stream(name) as stream:
                data: bytes = stream.read()
                return data
        except Error as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from error
            raise

    def write(self, name: str, data: bytes) -> None:
        with self._store.wrap_errors(""), self._files.open_output_stream(name) as stream:
            stream.write(data)

    def list(self, folder: str) -> dict[str, int]:
        selector = pyarrow.fs.FileSelector(folder, recursive=True, allow_not_found=True)
        with self._store.wrap_errors(""):
            return {info.path: info.size for info in self._files.get_file_info(selector) if info.is_file}

    def remove(self, name: str, *, unused: bool = False) -> None:
        with self._store.wrap_errors(""):
            if unused:
                made_ns = self._files.get_file_info(name).mtime_ns
                if made_ns is None or time.time_ns() - made_ns < limits.BACKUP_UNUSED_S * 10**9:
                    return
            self._files.delete_file(name)

    def scratch(self) -> Path:
        with translated_disk_errors(tempfile.gettempdir()):
            return Path(tempfile.mkdtemp(prefix="tailrace-backup-"))

    def close(self) -> None:
        pass


# -- local files


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only; durable afterwards."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a directory and its missing parents, accessible to the owner only; durable afterwards."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    sync(folder.parent)


@contextmanager
def translated_disk_errors(where: str) -> Iterator[None]:
    """Translate errors of the file system into `Error`s."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(
                f"there is no space left at {where!r}; free some, or name another target, and run the command again",
                code="BACKUP_DISK_FULL",
            ) from error
        raise Unavailable(
            f"cannot use {where!r}: {error.strerror or error}; check its permissions", code="BACKUP_FAILED"
        ) from error

"""File modes: only the owner may read the files of a database. Directories are 0700, files 0600.

Files are created with their mode, not changed afterwards, so that they are never open to others for a moment. SQLite
gives the write-ahead log and its index the mode of the database file, which is why that file is created here.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from tailrace.errors import Invalid, Unavailable
from tailrace.storage.presence import sync_directory

DIRECTORY: Final = 0o700
PRIVATE: Final = 0o600
_OTHERS: Final = 0o077

logger = logging.getLogger("tailrace.storage")


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, accessible to the owner only."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(DIRECTORY)


def claim_directory(path: Path, prefixes: tuple[str, ...]) -> None:
    """Create the directory of a database, or revoke the access of others to an existing one and to its files with these
    prefixes."""
    if not path.exists():
        make_directory(path)
    for each, mode in _private_paths(path, prefixes):
        restrict(each, mode)


def warn_of_exposure(path: Path, prefixes: tuple[str, ...]) -> None:
    """Log a warning if others have access to a database that is opened read-only, without changing modes."""
    for each, mode in _private_paths(path, prefixes):
        try:
            found = os.stat(each)
        except FileNotFoundError:  # a server has the database open, and has ended its log
            continue
        if found.st_mode & _OTHERS:
            logger.warning(
                "%s is not for its owner alone (mode %s), and the database holds secrets; run: chmod %o %s",
                each, _octal(found), mode, each,
            )  # fmt: skip


def _private_paths(path: Path, prefixes: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """The private paths and their modes; the directory first."""
    yield path, DIRECTORY
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(prefixes) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path), PRIVATE
    cold = path / "cold"
    if cold.is_dir() and not cold.is_symlink():
        yield cold, DIRECTORY


def restrict(path: Path, mode: int) -> None:
    """Revoke the access of group and others, with a warning; raises `Invalid` if that fails."""
    found = os.stat(path)
    if not found.st_mode & _OTHERS:
        return
    if found.st_mode & stat.S_ISVTX:
        raise Invalid(
            f"{str(path)!r} is a directory that several users share (its mode is {_octal(found)}); the database holds "
            "secrets, so give it a directory of its own",
            code="DIRECTORY_SHARED",
        )
    with suppress(OSError):
        os.chmod(path, mode)
    if os.stat(path).st_mode & _OTHERS:
        raise Invalid(
            f"other users may read {str(path)!r} (its mode is {_octal(found)}, its owner is user {found.st_uid}) and "
            f"that cannot be changed; run: chmod {mode:o} {path} as its owner, or chown it to the user that runs "
            "Tailrace",
            code="FILES_EXPOSED",
        )
    logger.warning(
        "other users could read %s (mode %s); it is %o now. If others have accounts on this machine, replace what was "
        "in it: tailrace keys rotate-secret, new access keys, new passwords",
        path, _octal(found), mode,
    )  # fmt: skip


def _octal(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file; a new one is accessible to the owner only."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, PRIVATE))


def create_private(path: Path) -> None:
    """Create an empty file if it does not exist."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    except OSError as error:
        raise unwritable(path, error) from error


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically and durably."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise unwritable(path, error) from error
    sync_directory(path.parent)


def unwritable(path: Path, error: OSError) -> Unavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unavailable(f"the disk is full: {str(path)!r} cannot be written; free some space", code="DISK_FULL")
    return Unavailable(f"{str(path)!r} cannot be written: {error.strerror or error}", code="STORAGE_FAILED")

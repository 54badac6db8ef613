"""Who may read the files of a database: its owner and nobody else. Directories are 0700, files 0600.

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
    """Make a directory, and those above it that are missing, for us alone."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(DIRECTORY)


def claim_directory(path: Path, prefixes: tuple[str, ...]) -> None:
    """Make the directory of a database, or take away what others may do in one that exists, and with its files whose
    names begin so."""
    if not path.exists():
        make_directory(path)
    for each, mode in _private_paths(path, prefixes):
        restrict(each, mode)


def warn_of_exposure(path: Path, prefixes: tuple[str, ...]) -> None:
    """For those who only read a database, and so change no modes: say what others may do with it."""
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
    """What is to be for its owner alone, and the mode that it is to have; the directory first."""
    yield path, DIRECTORY
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(prefixes) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path), PRIVATE
    cold = path / "cold"
    if cold.is_dir() and not cold.is_symlink():
        yield cold, DIRECTORY


def restrict(path: Path, mode: int) -> None:
    """Take away what the group and others may do, with a warning; `Invalid` where that cannot be done."""
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
    """Open a file; if it is made, then for us alone."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, PRIVATE))


def create_private(path: Path) -> None:
    """Make an empty file if there is none."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
    except OSError as error:
        raise unwritable(path, error) from error


def write_private(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, and stays."""
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

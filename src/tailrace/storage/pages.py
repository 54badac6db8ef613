"""Checksums of database pages, by SQLite's own extension `cksumvfs`, which comes with apsw.

It keeps a checksum in 8 reserved bytes at the end of each page: computed when a page is written to the database
file, verified in C whenever one is read from it. So a wrong bit anywhere in the file, also in a key, an index or a
pointer between pages, is an error and never a wrong result. Frames of the write-ahead log have checksums of their own
(`wal.py`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import apsw.sqlite_extra

from tailrace.errors import Corrupt, Invalid

VFS: Final = "cksmvfs"
PAGE_BYTES: Final = 4096  # of every database that Tailrace creates
RESERVED: Final = 8  # bytes at the end of a page
_RESERVED_AT: Final = 20  # where the header of a database file says so
_CHUNK_PAGES: Final = 256
_LOOKS: Final = 3  # reads of a page that seems bad: a checkpoint may be writing it
_NEW: Final = ".with-checksums"
_loading = threading.Lock()
_local = threading.local()
logger = logging.getLogger("tailrace.storage")


def load() -> None:
    """Register the VFS with SQLite, once per process; the default VFS does not change."""
    with _loading:
        if VFS in apsw.vfs_names():
            return
        default = apsw.vfs_names()[0]
        try:
            apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
        except (LookupError, apsw.sqlite_extra.NotAvailable, apsw.Error) as error:
            raise Invalid(
                f"this build of apsw has no extension cksumvfs ({error}), which the checksums of pages need; install "
                "the one of PyPI: pip install --force-reinstall --no-cache-dir apsw",
                code="NO_CKSUMVFS",
            ) from error
        apsw.set_default_vfs(default)


def verify(page: bytes) -> bool:
    """Whether a page ends with its checksum. In C, about ten times faster than Python."""
    execute = getattr(_local, "execute", None)
    if execute is None:
        load()
        execute = _local.execute = apsw.Connection(":memory:").execute
    return bool(_first(execute("SELECT verify_checksum(?)", (page,))))


def _first(rows: Any) -> Any:
    return rows.fetchone()[0]


def reserve(connection: apsw.Connection) -> None:
    """Enable checksums for a database that is about to be created. Without effect on an existing one."""
    reserved = ctypes.c_int(RESERVED)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))


def begin(new: Path) -> apsw.Connection:
    """A new database file whose pages get checksums, also when it is filled by SQLite's backup interface. The extension
    writes none before it has seen page 1, so that is written first."""
    load()
    made = apsw.Connection(str(new), vfs=VFS)
    reserve(made)
    made.execute("PRAGMA user_version = 1")
    made.close()
    made = apsw.Connection(str(new), vfs=VFS)
    made.execute("PRAGMA user_version").fetchall()
    return made


def kept(database: Path) -> bool:
    """Whether the pages of a database file have checksums. `Corrupt` if they had, and the mark itself is damaged."""
    try:
        with open(database, "rb") as file:
            page = file.read(PAGE_BYTES)
    except FileNotFoundError:
        return False
    if not page:
        return False
    if page[_RESERVED_AT] == RESERVED:
        return True
    marked = page[:_RESERVED_AT] + bytes([RESERVED]) + page[_RESERVED_AT + 1 :]
    if len(page) == PAGE_BYTES and verify(marked):
        raise Corrupt(
            f"the database file {str(database)!r} is damaged: page 1 says that pages have {page[_RESERVED_AT]} "
            f"reserved bytes, and its checksum that they have {RESERVED}; restore a backup"
        )
    return False


def upgrade(database: Path) -> None:
    """Add checksums to the pages of an older database, by a copy that replaces it. May be killed at any point: the copy
    is renamed when it is complete."""
    new = database.with_name(database.name + _NEW)
    for left in (new, Path(f"{new}-journal")):
        left.unlink(missing_ok=True)
    if not database.exists() or database.stat().st_size == 0 or kept(database):
        return
    size, free = database.stat().st_size, shutil.disk_usage(database.parent).free
    if free < size * 2:
        logger.warning(
            "the pages of %s have no checksums, and to add them needs %d bytes of free disk space, there are %d: wrong "
            "bits in keys and indexes are not noticed until there is room and the database is opened again",
            database, size * 2, free,
        )  # fmt: skip
        return
    started = time.monotonic()
    logger.info("adding checksums to the pages of %s (%d bytes)", database, size)
    connection = apsw.Connection(str(database), vfs=VFS)
    try:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()  # moves the WAL into the file
    except apsw.BusyError as error:
        logger.warning("the pages of %s get no checksums now: %s; another process has it open", database, error)
        return
    finally:
        connection.close()
    _copy(database, new)
    assert next(damaged(new), None) is None, "a page of the copy has no checksum"
    handle = os.open(new, os.O_RDWR)
    try:
        os.fchmod(handle, database.stat().st_mode & 0o777)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(new, database)
    _sync(database.parent)
    logger.info("added checksums to the pages of %s in %.1f s", database, time.monotonic() - started)


def _copy(database: Path, new: Path) -> None:
    """Copy all rows into a file whose pages have checksums."""
    made = begin(new)
    try:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            made.execute(f"PRAGMA {pragma}").fetchall()
        made.execute("ATTACH ? AS old", (str(database),))
        made.execute("BEGIN")
        listed = "SELECT type, name, sql FROM old.sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
        schema = made.execute(listed).fetchall()
        for kind, name, statement in sorted(schema, key=lambda row: row[0] != "table"):  # indexes when rows are there
            made.execute(str(statement))
            if kind == "table":
                made.execute(f'INSERT INTO main."{name}" SELECT * FROM old."{name}"')
        version = _first(made.execute("PRAGMA old.user_version"))
        made.execute(f"PRAGMA main.user_version = {version}")
        made.execute("COMMIT")
    finally:
        made.close()


def damaged(database: Path, elsewhere: frozenset[int] = frozenset()) -> Iterator[int]:
    """The numbers of pages that fail their checksum, except those `elsewhere`, which are read from the WAL."""
    with open(database, "rb", buffering=0) as file:
        number = 0
        while chunk := os.pread(file.fileno(), _CHUNK_PAGES * PAGE_BYTES, number * PAGE_BYTES):
            for start in range(0, len(chunk), PAGE_BYTES):
                number += 1
                good = verify(chunk[start : start + PAGE_BYTES])
                for _ in range(0 if good or number in elsewhere else _LOOKS):
                    good = good or verify(os.pread(file.fileno(), PAGE_BYTES, (number - 1) * PAGE_BYTES))
                if not good and number not in elsewhere:
                    yield number


def names(database: Path, numbers: list[int]) -> dict[int, str]:
    """The tables and indexes that pages belong to, as far as known."""
    found: dict[int, str] = {}
    try:
        connection = apsw.Connection(str(database), vfs=VFS, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute("PRAGMA checksum_verification = OFF").fetchall()
            wanted = set(numbers)
            for name, number in connection.execute("SELECT name, pageno FROM dbstat"):
                if number in wanted:
                    found[number] = name
        finally:
            connection.close()
    except (apsw.Error, UnicodeDecodeError) as error:
        logger.debug("the pages of %s cannot all be named: %s", database, error)
    return found


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The files of cold storage that belong to a copy of a database.

For a Delta table with tiered logs, these are the files of the version whose generation the copy refers to. The database
does not refer to snapshots: for these it is the version before the copy was made, which cannot contain changes that the
copy lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow.fs

from tailrace.backup.manifest import BackupTable
from tailrace.cold.check import TIER_APP
from tailrace.cold.reading import ColdListing
from tailrace.cold.store import Store
from tailrace.cold.writing import version_of
from tailrace.errors import Error, Unavailable
from tailrace.log.cold import COLD_TABLES
from tailrace.storage.engine import Reader

_SNAPSHOTS: Final = "snapshots"
_DELTA_LOG: Final = "_delta_log"
_OF_LOG: Final = re.compile(r"(\d{20})(?:\.json|\.checkpoint[0-9a-z.-]*\.parquet)")
_RANDOM_NAME: Final = re.compile(r"[0-9a-f]{32}\.parquet")  # the names of `cold.writing`: never reused


class ColdSource(msgspec.Struct, frozen=True):
    """A file to copy."""

    path: str  # below the root of cold storage
    size: int
    immutable: bool  # a file of that name and size is always the same


def snapshots_now(store: Store) -> dict[str, int]:
    """The Delta tables of snapshots and the version of each."""
    with store.wrap_errors(_SNAPSHOTS):
        found = store.filesystem().get_file_info(pyarrow.fs.FileSelector(_SNAPSHOTS, allow_not_found=True))
    names = [f"{_SNAPSHOTS}/{info.base_name}" for info in found if info.type == pyarrow.fs.FileType.Directory]
    tables = ((name, store.delta(name)) for name in names)
    return {name: table.version() for name, table in tables if table is not None}


def tables_of(reader: Reader, store: Store, snapshots: dict[str, int]) -> list[BackupTable]:
    """Each Delta table that belongs to the copy, and the version of it."""
    cold_tables = [BackupTable(name, version) for name, version in snapshots.items()]
    for cold_table in reader.scan(COLD_TABLES):
        if store.delta(cold_table.name) is None:
            continue  # nothing was tiered to it yet, or the check reports it
        version = version_of(store, cold_table.name, TIER_APP, cold_table.generation)
        cold_tables.append(BackupTable(cold_table.name, version))
    return sorted(cold_tables, key=lambda cold_table: cold_table.name)


def files_of(store: Store, cold_table: BackupTable) -> Iterator[ColdSource]:
    """The files of one version of a Delta table: data files, and its log up to that version."""
    table = store.delta(cold_table.name)
    if table is None:
        raise _vanished(store, cold_table.name)
    folder = f"{cold_table.name}/{_DELTA_LOG}"
    with store.wrap_errors(cold_table.name):
        table.load_as_version(cold_table.version)
        logged = store.filesystem().get_file_info(pyarrow.fs.FileSelector(folder))
    for file in ColdListing(cold_table.name, table).files:
        name = file.path.rpartition("/")[2]
        yield ColdSource(f"{cold_table.name}/{file.path}", file.size, _RANDOM_NAME.fullmatch(name) is not None)
    for info in logged:
        named = _OF_LOG.fullmatch(info.base_name)
        if info.is_file and named is not None and int(named[1]) <= cold_table.version:
            yield ColdSource(f"{folder}/{info.base_name}", info.size, False)


def read_chunks(store: Store, source: ColdSource, chunk_bytes: int) -> Iterator[bytes]:
    """The content of a file, in chunks."""
    done = 0
    try:
        with store.wrap_errors(source.path), store.filesystem().open_input_stream(source.path) as stream:
            while data := stream.read(chunk_bytes):
                done += len(data)
                yield data
    except Error as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _vanished(store, source.path) from error
        raise
    if done != source.size:
        raise _vanished(store, source.path)


def _vanished(store: Store, path: str) -> Unavailable:
    return Unavailable(
        f"{store.uri(path)} was removed or changed while it was copied; run the backup again; it must take less time "
        "than replaced files are kept",
        code="BACKUP_INTERRUPTED",
    )

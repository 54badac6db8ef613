"""Which files of cold storage belong to a copy of a database.

Of a place that logs are tiered to, it is the version of the Delta table whose generation the copy knows, and no later
one. Snapshots carry no mark in the database: of those it is the version that was there before the copy was made, which
cannot have anything that the copy has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import pyarrow.fs

from tailrace.backup.manifest import BackupPlace
from tailrace.cold.check import TIER_APP
from tailrace.cold.reading import Listing
from tailrace.cold.store import Store
from tailrace.cold.writing import committed_version
from tailrace.errors import Error, Unavailable
from tailrace.log.cold import PLACES
from tailrace.storage.engine import Reader

_SNAPSHOTS: Final = "snapshots"
_DELTA_LOG: Final = "_delta_log"
_OF_LOG: Final = re.compile(r"(\d{20})(?:\.json|\.checkpoint[0-9a-z.-]*\.parquet)")
_RANDOM_NAME: Final = re.compile(r"[0-9a-f]{32}\.parquet")  # as `cold.writing` names files: never used twice


class ColdSource(msgspec.Struct, frozen=True):
    """A file to be copied."""

    path: str  # below the root of cold storage
    size: int
    immutable: bool  # a file of that name and size is always the same


def snapshots_now(store: Store) -> dict[str, int]:
    """The places of snapshots and the version of each."""
    with store.told(_SNAPSHOTS):
        found = store.filesystem().get_file_info(pyarrow.fs.FileSelector(_SNAPSHOTS, allow_not_found=True))
    names = [f"{_SNAPSHOTS}/{info.base_name}" for info in found if info.type == pyarrow.fs.FileType.Directory]
    tables = ((name, store.delta(name)) for name in names)
    return {name: table.version() for name, table in tables if table is not None}


def places_of(reader: Reader, store: Store, snapshots: dict[str, int]) -> list[BackupPlace]:
    """Each Delta table that belongs to the copy, and the version of it."""
    places = [BackupPlace(name, version) for name, version in snapshots.items()]
    for place in reader.scan(PLACES):
        table = store.delta(place.name)
        if table is None:
            continue  # nothing was tiered there yet, or the check has said so
        last = table.transaction_version(TIER_APP) or 0
        version = table.version()
        if last > place.generation:
            version = committed_version(store, place.name, TIER_APP, place.generation + 1) - 1
        places.append(BackupPlace(place.name, version))
    return sorted(places, key=lambda place: place.name)


def files_of(store: Store, place: BackupPlace) -> Iterator[ColdSource]:
    """The files of that version of a place: those that it lists, and its log up to it."""
    table = store.delta(place.name)
    if table is None:
        raise _vanished(store, place.name)
    folder = f"{place.name}/{_DELTA_LOG}"
    with store.told(place.name):
        table.load_as_version(place.version)
        logged = store.filesystem().get_file_info(pyarrow.fs.FileSelector(folder))
    for file in Listing(place.name, table).files:
        name = file.path.rpartition("/")[2]
        yield ColdSource(f"{place.name}/{file.path}", file.size, _RANDOM_NAME.fullmatch(name) is not None)
    for info in logged:
        named = _OF_LOG.fullmatch(info.base_name)
        if info.is_file and named is not None and int(named[1]) <= place.version:
            yield ColdSource(f"{folder}/{info.base_name}", info.size, False)


def read_chunks(store: Store, source: ColdSource, chunk_bytes: int) -> Iterator[bytes]:
    """The content of a file, in chunks."""
    done = 0
    try:
        with store.told(source.path), store.filesystem().open_input_stream(source.path) as stream:
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
        f"{store.uri(path)} was removed or changed while it was copied; run the backup again, and not for longer than "
        "replaced files are kept",
        code="BACKUP_INTERRUPTED",
    )

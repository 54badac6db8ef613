"""The consistency check of cold storage, as seen from a database: all history that the database relies on is there.

By default the check uses the listings of Delta: that every file exists with its size, and that the statistics of the
files cover the positions that the database has marked as tiered. `deep` reads every row and proves that none is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow.fs

from tailrace.cold import reading
from tailrace.cold.merging import ColdFile
from tailrace.cold.reading import ColdListing
from tailrace.cold.store import Store
from tailrace.cold.writing import database_of
from tailrace.errors import Error
from tailrace.log.cold import ColdRange, ColdTable

TIER_APP = "tier"  # the application of Delta transactions that the tier job commits with
Progress = Callable[[str, int, int], None]


def check_cold(
    places: Iterable[ColdTable],
    tiers: Iterable[ColdRange],
    store: Store,
    identity: str | None,
    *,
    deep: bool = False,
    on_progress: Progress | None = None,
) -> list[str]:
    """The problems found in the cold storage of a database with these marks."""
    named = {place.name: place for place in places}
    by_place: dict[str, list[ColdRange]] = {}
    for tier in tiers:
        by_place.setdefault(tier.place, []).append(tier)
    findings: list[str] = []
    for done, (name, held) in enumerate(by_place.items(), start=1):
        try:
            findings += _check_place(store, name, named.get(name), held, identity, deep)
        except Error as error:
            findings.append(f"cold storage: {error}")
        if on_progress is not None:
            on_progress("checking cold storage", done, len(by_place))
    return findings


def _check_place(
    store: Store, name: str, place: ColdTable | None, tiers: list[ColdRange], identity: str | None, deep: bool
) -> Iterator[str]:
    wanted = [tier for tier in tiers if tier.tiered > tier.start]
    where = store.uri(name)
    table = store.delta(name)
    if table is None:
        if wanted:
            logs = ", ".join(str(tier.log) for tier in wanted[:5])
            yield (
                f"cold storage: {where} is missing; it has the only copy of the history of {len(wanted)} logs "
                f"({logs}): restore it, or give the right URL with --cold"
            )
        return
    with store.wrap_errors(name):
        owner, generation = database_of(table), table.transaction_version(TIER_APP) or 0
        listed = ColdListing(name, table)
    if identity is not None and owner != identity:
        yield f"cold storage: {where} belongs to database {owner}, but this is database {identity}"
        return
    if place is not None and generation < place.generation:
        yield f"cold storage: {where} is at generation {generation}, the database is at {place.generation}"
    yield from _check_files(store, listed)
    for tier in wanted:
        files = listed.having(tier.log, tier.start, tier.tiered)
        problem = _gap(files, tier)
        if problem is not None:
            yield f"cold storage: log {tier.log} at {where}: {problem}"
        elif deep:
            try:
                for _ in reading.read(store, files, tier.log, tier.start, tier.tiered):
                    pass
            except Error as error:
                yield f"cold storage: {error}"


def _check_files(store: Store, listed: ColdListing) -> Iterator[str]:
    """The files that Delta lists exist, with the listed size."""
    with store.wrap_errors(listed.place):
        found = store.filesystem().get_file_info(pyarrow.fs.FileSelector(listed.place, allow_not_found=True))
    sizes = {info.base_name: info.size for info in found if info.is_file}
    for file in listed.files:
        size = sizes.get(file.path)
        if size is None and "/" in file.path:  # another tool wrote it to a subdirectory
            with store.wrap_errors(listed.place):
                info = store.filesystem().get_file_info(f"{listed.place}/{file.path}")
            size = info.size if info.is_file else None
        if size is None:
            yield f"cold storage: the file {store.uri(listed.place)}/{file.path} is missing"
        elif size != file.size:
            yield f"cold storage: {store.uri(listed.place)}/{file.path} has {size} bytes, and should have {file.size}"


def _gap(files: list[ColdFile], tier: ColdRange) -> str | None:
    """The positions that are missing by the statistics of the files. For a file with several logs these only say which
    positions may be there."""
    if not files:
        return f"no file has positions {tier.start} to {tier.tiered}"
    if any(file.log_min is None or file.log_min != file.log_max or file.next_max is None for file in files):
        return None
    at = tier.start
    for file in files:
        if file.position_min is not None and file.position_min > at:
            return f"positions {at} to {file.position_min} are in no file"
        at = max(at, file.next_max or 0)
    return None if at >= tier.tiered else f"positions {at} to {tier.tiered} are in no file"

"""Delta tables that hold a state, not history: snapshots, and copies of tables.

A commit replaces the whole state (`replace`) or some of its files (`exchange`). The generation of its application
transaction is the position of the state, which only grows; of two concurrent commits Delta refuses one. So nothing is
applied twice, and the stored generation is authoritative. Earlier states stay readable as versions of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.cold import writing
from tailrace.cold.merging import ColdFile, Vanished, file_errors
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile
from tailrace.errors import Corrupt, Fenced, Unavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

METADATA: Final = "tailrace"  # the name of our metadata in a commit
# By default Delta removes versions after a month, and a restore starts from an earlier state.
_KEPT: Final = {
    "delta.logRetentionDuration": "interval 5200 weeks",
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
}
_FIRST: Final = "first_version"  # in the metadata of a commit: earlier versions have expired
_EXPIRED: Final = "expired"  # the application transaction of such commits
_CLEANED: Final = "cleaned"  # and of those that follow when files are deleted
_BATCH_ROWS: Final = 20_000
_TRIES: Final = 5


class StateVersion(msgspec.Struct, frozen=True):
    """A committed state: its log, its sequence, and where the changes after it begin."""

    sequence: int
    version: int
    rows: int
    at_ms: int
    log: int
    next: int


# -- reading


def versions(store: Store, place: str, schema: pa.Schema, database: str) -> list[StateVersion]:
    """The complete states of a Delta table, the newest first; Invalid if it belongs to another database."""
    if store.delta(place) is None:
        return []
    found = []
    first = 0
    for commit in _history(store, place, writing.opened(store, place, schema, database)):
        metadata_json = commit.get(METADATA)
        if metadata_json is None:
            continue
        facts = json.loads(metadata_json)["metadata"]
        first = max(first, facts.get(_FIRST, 0))
        if "sequence" in facts and commit["version"] >= first:
            found.append(
                StateVersion(
                    facts["sequence"],
                    commit["version"],
                    facts["rows"],
                    commit["timestamp"],
                    facts["log"],
                    facts["next"],
                )
            )
    return found


def _state_versions(store: Store, place: str, table: DeltaTable) -> list[int]:
    """The versions that are states, also those that have expired."""
    found = []
    for commit in _history(store, place, table):
        metadata_json = commit.get(METADATA)
        if metadata_json is not None and "sequence" in json.loads(metadata_json)["metadata"]:
            found.append(int(commit["version"]))
    return found


def _history(store: Store, place: str, table: DeltaTable) -> list[dict[str, Any]]:
    """The commits of a Delta table, the newest first. Delta numbers them wrongly while others commit: then they are
    read again."""
    for _ in range(_TRIES):
        with store.wrap_errors(place):
            commits = table.history()
            version = table.version()
            table.update_incremental()
            if table.version() == version == commits[0]["version"]:
                return commits
    raise Unavailable(f"{store.uri(place)} is committed to all the time, so that its history cannot be read; try again")


def files(store: Store, place: str, version: int) -> list[str]:
    """The files of one version, relative to the Delta table."""
    from deltalake import DeltaTable

    with store.wrap_errors(place):
        table = DeltaTable(store.uri(place), version=version, storage_options=store.storage_options or None)
        return [path for path, _ in writing.paths_of(table)]


class StateFile(msgspec.Struct, frozen=True):
    """A file of a state."""

    path: str
    size: int
    rows: int


def listed(store: Store, place: str, table: DeltaTable) -> list[StateFile]:
    """The files of a Delta table."""
    with store.wrap_errors(place):
        found = pa.table(table.get_add_actions(flatten=True))
    if not found.num_rows:
        return []
    known = "num_records" in found.column_names
    rows = found["num_records"].to_pylist() if known else [None] * found.num_rows
    sizes = found["size_bytes"].to_pylist()
    return [
        StateFile(path, size, count or 0)
        for path, size, count in zip(found["path"].to_pylist(), sizes, rows, strict=True)
    ]


def reader(
    store: Store, place: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of executors over batches of paths: the rows of those files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for paths in batches:
            for path in paths.column(0).to_pylist():
                yield from rows(store, place, path, schema)

    return read


def rows(store: Store, place: str, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one file. Corrupt with its name if it is damaged or gone; a store that does not answer is no
    damage."""
    try:
        with file_errors(store, ColdFile(place, path, 0)):
            file = store.opened(place, path)
            for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()
    except Vanished as vanished:
        raise Corrupt(
            f"the file {store.uri(place)}/{path} of cold storage is missing; restore it from a copy"
        ) from vanished


# -- committing


def keep_versions(store: Store, place: str, schema: pa.Schema, database: str) -> None:
    """Create the Delta table if needed, and keep its earlier versions."""
    from deltalake.exceptions import CommitFailedError

    for _ in range(_TRIES):
        table = writing.opened(store, place, schema, database)
        if _KEPT.items() <= dict(table.metadata().configuration).items():
            return
        with store.wrap_errors(place):
            try:
                table.alter.set_table_properties(_KEPT)
            except CommitFailedError:
                continue  # another job does the same
    raise Unavailable(f"{store.uri(place)} could not be set up: others committed first {_TRIES} times; try again")


def replace(
    store: Store,
    place: str,
    schema: pa.Schema,
    written: Sequence[WrittenFile],
    *,
    app: str,
    reached: int,
    database: str,
    metadata: Mapping[str, Any],
) -> str:
    """Replace the whole state by these files; "already": it is at this position or later."""
    return writing.commit(
        store, place, schema, written, app=app, generation=reached, database=database, metadata=metadata, replace=True
    )


def exchange(
    store: Store,
    place: str,
    schema: pa.Schema,
    written: Sequence[WrittenFile],
    without: Iterable[str],
    *,
    app: str,
    start: int,
    end: int,
    database: str,
    metadata: Mapping[str, Any],
) -> None:
    """List new files instead of some that are there, and move the state from `start` to `end`, in one commit. `Fenced`
    unless the state is at `start` and all of those files are listed, also if another job commits meanwhile."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    table = writing.opened(store, place, schema, database)
    at = table.transaction_version(app)
    sizes = dict(writing.paths_of(table))
    old = list(without)
    if at != start or any(path not in sizes for path in old):
        raise _elsewhere(store, place, at, start)
    metadata_json = json.dumps({"app": app, "generation": end, "metadata": dict(metadata)})
    # No retries by Delta: a commit that lost a race was computed from an outdated state.
    properties = CommitProperties(
        custom_metadata={METADATA: metadata_json}, app_transactions=[Transaction(app, end)], max_commit_retries=0
    )
    actions: list[AddAction | RemoveAction] = [
        *writing.added(written),
        *writing.removed((path, sizes[path]) for path in old),
    ]
    with store.wrap_errors(place):
        try:
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise _elsewhere(store, place, writing.last_generation(store, place, app), start) from error
    writing.settle(store, place, table.version())


def expire(store: Store, place: str, first: int) -> int:
    """Remove the versions before `first`, and the files that only these list; the number of files. First they are
    marked as expired, so that no job starts to read them."""
    table = store.delta(place)
    assert table is not None, f"there is no {place!r}"
    begin = table.transaction_version(_CLEANED) or 0
    expired = [each for each in _state_versions(store, place, table) if begin <= each < first]
    if not expired:
        return 0
    _mark(store, place, _EXPIRED, first, {_FIRST: first})
    old = {path for version in expired for path in files(store, place, version)}
    gone = sorted(old - set(files(store, place, first)))  # a file that a version drops is in none after it
    filesystem = store.filesystem()
    with store.wrap_errors(place):
        for path in gone:
            try:
                filesystem.delete_file(f"{place}/{path}")
            except FileNotFoundError:
                pass  # deleted by a run that did not finish
    _mark(store, place, _CLEANED, first, {})
    return len(gone)


def _mark(store: Store, place: str, app: str, version: int, metadata: Mapping[str, Any]) -> None:
    """Commit an application transaction without any file."""
    for _ in range(_TRIES):
        table = store.delta(place)
        assert table is not None, f"there is no {place!r}"
        if (table.transaction_version(app) or 0) >= version:
            return
        if writing.attempt(store, place, table, [], app=app, generation=version, metadata=metadata):
            return
    raise Unavailable(f"others commit to {store.uri(place)} all the time; try again")


def _elsewhere(store: Store, place: str, at: int | None, start: int) -> Fenced:
    return Fenced(
        f"the copy at {store.uri(place)} is at {at}, and this batch begins at {start}: another replicate job writes "
        "to it; run only one"
    )


def last_metadata(table: DeltaTable) -> dict[str, Any] | None:
    """The metadata of our last commit; None: there is none."""
    for commit in table.history():
        metadata_json = commit.get(METADATA)
        if metadata_json is not None:
            found: dict[str, Any] = json.loads(metadata_json)["metadata"]
            return found
    return None

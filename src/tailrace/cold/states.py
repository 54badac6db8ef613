"""Delta tables that hold a state, not history: snapshots, and copies of tables.

A commit replaces the whole state (`replace`) or changes some of its rows (`merge`). The generation of its application
transaction is the position of the state, which only grows; of two concurrent commits Delta refuses one. So nothing is
applied twice, and the stored generation is authoritative. Earlier states stay readable as versions of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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

METADATA: Final = "tailrace"  # the name of our metadata in a commit
# By default Delta removes versions after a month, and a restore starts from an earlier state.
_KEPT: Final = {
    "delta.logRetentionDuration": "interval 5200 weeks",
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
}
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
    for commit in _history(store, place, writing.opened(store, place, schema, database)):
        metadata_json = commit.get(METADATA)
        if metadata_json is None:
            continue
        facts = json.loads(metadata_json)["metadata"]
        if "sequence" in facts:
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


def merge(
    store: Store,
    place: str,
    changes: pa.Table,
    *,
    app: str,
    start: int,
    end: int,
    database: str,
    metadata: Mapping[str, Any],
) -> None:
    """Replace the rows with these `keys`; delete those where `typed` is null. `Fenced` unless the state is at `start`,
    also if another job moves it meanwhile."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    table = writing.opened(store, place, changes.schema, database)
    at = table.transaction_version(app)
    if at != start:
        raise _elsewhere(store, place, at, start)
    metadata_json = json.dumps({"app": app, "generation": end, "metadata": dict(metadata)})
    # No retries by Delta: a commit that lost a race was computed from an outdated state.
    properties = CommitProperties(
        custom_metadata={METADATA: metadata_json}, app_transactions=[Transaction(app, end)], max_commit_retries=0
    )
    with store.wrap_errors(place):
        try:
            done = _merged(table, changes, properties)
            # Delta does not commit a merge that changes nothing, and the fence has to move.
            if not done:
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise _elsewhere(store, place, writing.last_generation(store, place, app), start) from error
    writing.settle(store, place, table.version())


def _merged(table: DeltaTable, changes: pa.Table, properties: Any) -> bool:
    """Merge; whether there was a commit."""
    before = table.version()
    (
        table.merge(
            changes,
            predicate="copy.keys = batch.keys",
            source_alias="batch",
            target_alias="copy",
            commit_properties=properties,
        )
        .when_matched_delete("batch.typed IS NULL")
        .when_matched_update_all()
        .when_not_matched_insert_all("batch.typed IS NOT NULL")
        .execute()
    )
    return bool(table.version() != before)


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

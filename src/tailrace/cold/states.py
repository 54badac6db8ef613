"""Delta tables that hold a state, not history: snapshots, and copies of tables.

A commit replaces the whole state (`replace`) or changes some of its rows (`merge`). Its application transaction has for
a generation how far the state has come, which only grows; of two who commit at once Delta refuses one. So nothing is
applied twice, and the generation that is read back is the truth. Earlier states stay readable as versions of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.cold import writing
from tailrace.cold.merging import ColdFile, Vanished, reading
from tailrace.cold.store import Store
from tailrace.cold.writing import Written
from tailrace.errors import Corrupt, Fenced, Unavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable

METADATA: Final = "tailrace"  # under which name our metadata is in a commit
# Delta forgets versions after a month unless it is told otherwise, and an earlier state is what a restore begins with.
_KEPT: Final = {
    "delta.logRetentionDuration": "interval 5200 weeks",
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
}
_BATCH_ROWS: Final = 20_000
_TRIES: Final = 5


class Version(msgspec.Struct, frozen=True):
    """A state that was committed: of which log, up to which sequence, and where the changes after it begin."""

    sequence: int
    version: int
    rows: int
    at_ms: int
    log: int
    next: int


# -- looking


def versions(store: Store, place: str, schema: pa.Schema, database: str) -> list[Version]:
    """The whole states that a place has had, the newest first; Invalid if it is not this database's."""
    if store.delta(place) is None:
        return []
    table = writing.opened(store, place, schema, database)
    with store.told(place):
        commits = table.history()
    found = []
    for commit in commits:
        told = commit.get(METADATA)
        if told is None:
            continue
        facts = json.loads(told)["metadata"]
        if "sequence" in facts:
            found.append(
                Version(
                    facts["sequence"],
                    commit["version"],
                    facts["rows"],
                    commit["timestamp"],
                    facts["log"],
                    facts["next"],
                )
            )
    return found


def files(store: Store, place: str, version: int) -> list[str]:
    """The files of one version, relative to the place."""
    from deltalake import DeltaTable

    with store.told(place):
        table = DeltaTable(store.uri(place), version=version, storage_options=store.storage_options or None)
        return [path for path, _ in writing.paths_of(table)]


def reader(
    store: Store, place: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What an executor runs over batches of paths: the rows of those files."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for paths in batches:
            for path in paths.column(0).to_pylist():
                yield from rows(store, place, path, schema)

    return read


def rows(store: Store, place: str, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one file. One that is damaged or gone is named; a store that does not answer is no damage."""
    try:
        with reading(store, ColdFile(place, path, 0)):
            file = store.opened(place, path)
            for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()
    except Vanished as vanished:
        raise Corrupt(
            f"the file {store.uri(place)}/{path} of cold storage is missing; put it back from a copy"
        ) from vanished


# -- committing


def keep_versions(store: Store, place: str, schema: pa.Schema, database: str) -> None:
    """See that the place is there, and that its earlier versions stay."""
    from deltalake.exceptions import CommitFailedError

    for _ in range(_TRIES):
        table = writing.opened(store, place, schema, database)
        if _KEPT.items() <= dict(table.metadata().configuration).items():
            return
        with store.told(place):
            try:
                table.alter.set_table_properties(_KEPT)
            except CommitFailedError:
                continue  # another one does the same
    raise Unavailable(f"{store.uri(place)} could not be set up: others got ahead {_TRIES} times; try again")


def replace(
    store: Store,
    place: str,
    schema: pa.Schema,
    written: Sequence[Written],
    *,
    app: str,
    reached: int,
    database: str,
    metadata: Mapping[str, Any],
) -> str:
    """Let the files be the whole state; "already": it has come as far or further."""
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
    """Put each row in the place of the one with its `keys`; where `typed` is null there is none any more. `Fenced`
    unless the state had come to `start`, also where another one moves it on meanwhile."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    table = writing.opened(store, place, changes.schema, database)
    at = table.transaction_version(app)
    if at != start:
        raise _elsewhere(store, place, at, start)
    told = json.dumps({"app": app, "generation": end, "metadata": dict(metadata)})
    # No retries of Delta's own: what lost a race was computed from a state that is no longer the last.
    properties = CommitProperties(
        custom_metadata={METADATA: told}, app_transactions=[Transaction(app, end)], max_commit_retries=0
    )
    with store.told(place):
        try:
            done = _merged(table, changes, properties)
            # Delta does not commit a merge that changes nothing, and the fence has to move on.
            if not done:
                table.create_write_transaction([], "append", table.schema(), commit_properties=properties)
        except CommitFailedError as error:
            raise _elsewhere(store, place, writing.last_generation(store, place, app), start) from error
    writing.settle(store, place, table.version())


def _merged(table: DeltaTable, changes: pa.Table, properties: Any) -> bool:
    """Merge; whether there was anything to commit."""
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
        f"the copy at {store.uri(place)} has come to {at}, and this batch begins at {start}: another replicate writes "
        "to it; let one run"
    )


def told(table: DeltaTable) -> dict[str, Any] | None:
    """What the last commit of ours says of itself; None: there was none."""
    for commit in table.history():
        said = commit.get(METADATA)
        if said is not None:
            found: dict[str, Any] = json.loads(said)["metadata"]
            return found
    return None

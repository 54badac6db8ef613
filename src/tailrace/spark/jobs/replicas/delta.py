"""A copy in Delta: the columns of a snapshot, merged batch by batch.

The copy is clustered by the hash of the key (`clusters`): executors read and write the files that a batch touches.
The fence is the generation of the application transaction in the very commit that has the rows. A batch is one version
of the Delta table, with its range in the commit's metadata. The Delta table belongs to one source: another one is
refused.
"""

from __future__ import annotations

from types import TracebackType

from tailrace.cold import states, writing
from tailrace.cold.store import Store
from tailrace.errors import Fenced, Invalid
from tailrace.spark.jobs import clusters, fold
from tailrace.spark.jobs.copies import CopyRows, FirstCopy, clustered_files
from tailrace.spark.jobs.replicas import ReplicaSource, fenced


class DeltaReplica:
    """See `Replica`."""

    bytes_max: int | None = None  # no batch passes through the driver

    def __init__(self, url: str, name: str, source: ReplicaSource) -> None:
        root, _, place = url.rstrip("/").rpartition("/")
        if not place or root.endswith((":/", "://")):
            raise Invalid(
                f"{url!r} names no Delta table; give a separate directory or prefix, such as {url}/{source.table}"
            )
        self._store = Store(root)
        self._place = place
        self._source = source
        # Another change stream of the same table is another application: its positions start over.
        self._app = f"replicate/{source.log}"
        self._name = name

    def fence(self) -> int | None:
        if self._store.delta(self._place) is None:
            return None
        writing.opened(self._store, self._place, fold.STATE, self._source.database)
        return writing.last_generation(self._store, self._place, self._app)

    def backfill(self, first: FirstCopy, before: int | None) -> tuple[int, int]:
        found = self.fence()
        if found != before:
            raise fenced(f"the copy at {self._store.uri(self._place)}", found, before or 0)
        self._check_place()
        written, position = clustered_files(first, self._store, self._place)
        count = sum(each.rows for each in written)
        metadata = self._facts() | {"sequence": position - 1, "next": position, "rows": count}
        done = states.replace(
            self._store, self._place, fold.STATE, written, app=self._app, reached=position,
            database=self._source.database, metadata=metadata,
        )  # fmt: skip
        if done != "committed":
            raise fenced(f"the copy at {self._store.uri(self._place)}", self.fence(), position)
        return count, position

    def apply(self, changes: CopyRows, start: int, end: int) -> None:
        table = writing.opened(self._store, self._place, fold.STATE, self._source.database)
        found = table.transaction_version(self._app)
        if found != start:
            raise fenced(f"the copy at {self._store.uri(self._place)}", found, start)
        files = states.listed(self._store, self._place, table)
        done = changes.merge(self._store, self._place, clusters.clustering(files, changes.rows, changes.size))
        states.exchange(
            self._store,
            self._place,
            fold.STATE,
            [file for leaf in done for file in leaf.written],
            [path for leaf in done for path in leaf.removed],
            app=self._app,
            start=start,
            end=end,
            database=self._source.database,
            metadata=self._facts() | {"range": [start, end]},
        )

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> DeltaReplica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _facts(self) -> dict[str, object]:
        source = self._source
        return {"name": self._name, "table": source.table, "log": source.log, "database": source.database}

    def _check_place(self) -> None:
        """A Delta table of the same database may still be of another table."""
        table = self._store.delta(self._place)
        if table is None:
            return
        with self._store.wrap_errors(self._place):
            metadata = states.last_metadata(table)
        if metadata is not None and (metadata.get("table"), metadata.get("name")) != (self._source.table, self._name):
            raise Fenced(
                f"{self._store.uri(self._place)} holds the copy {metadata.get('name')!r} of table "
                f"{metadata.get('table')!r}; give this copy its own directory or prefix",
                code="OTHER_COPY",
            )

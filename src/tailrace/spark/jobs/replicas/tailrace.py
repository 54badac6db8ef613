"""A copy in another Tailrace, or in another table of the same one.

Rows are staged and committed with the job `replicate/<name>` of the target as the consumer, strictly: its position in
the source's log is the fence, and moves in the transaction that writes the rows. A first copy is too large for one
transaction. It is written in many, and the fence is set when it is complete; until then the job has no position, and
the next run starts over. Executors stage the rows of both.
"""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tailrace import limits
from tailrace.client import Client
from tailrace.errors import Conflict, Fenced, NotFound
from tailrace.spark.jobs.copies import CopyRows, FirstCopy, items_of
from tailrace.spark.jobs.filling import Filling, RowStager, staged
from tailrace.spark.jobs.making import check_key, described, make, not_empty
from tailrace.spark.jobs.replicas import ReplicaSource, fenced
from tailrace.spark.jobs.state import ChangeStreamInfo
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES: Final = 16 * limits.MiB  # of items in one transaction of the server; a larger batch is cut
KIND: Final = "replicate"


class TailraceReplica:
    """See `Replica`."""

    bytes_max: int | None = BATCH_BYTES

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        token: str | None,
        name: str,
        table: str,
        source: ReplicaSource,
        known: ChangeStreamInfo,
    ) -> None:
        self._spark = spark
        self._access = ServerAccess(url, token, None, None)
        self._client = Client(url, token=token)
        self._job = f"replicate/{name}"
        self._table = table
        self._source = source
        # Only the fence guards the copy: the name of a query would outlive a copy that is started over.
        self._query = f"{self._job}/{secrets.token_hex(8)}"
        self._batch = 0
        try:
            self._prepare(known)
        except BaseException:
            self._client.close()
            raise

    def fence(self) -> int | None:
        position: int | None = self._client.job(self._job)["positions"].get(self._source.log)
        return position

    def backfill(self, first: FirstCopy, before: int | None) -> tuple[int, int]:
        found = self.fence()
        if found != before:
            raise fenced(f"the copy in table {self._table!r}", found, before or 0)
        filling = Filling(self._client, self._table, f"{self._job}/fill", self._source.log)
        filling.clear(items_of(self._spark, self._client, self._access, self._table, 0), self._access)
        stage = RowStager(self._access, self._table, self._source.keys)
        count = filling.write(first.items().each(stage))
        over, position = first.changes()
        filling.write(over.each(stage))
        filling.commit([])  # if another job filled the table too, one of the two fails here
        self._commit([], before if before is not None else position, position)
        return count, position

    def apply(self, changes: CopyRows, start: int, end: int) -> None:
        answers = changes.each(RowStager(self._access, self._table, self._source.keys))
        self._commit([stage for stage, _ in staged(answers)], start, end)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> TailraceReplica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self, stages: list[str], start: int, end: int) -> None:
        try:
            response = self._client.commit_stages(
                self._query,
                self._batch,
                stages,
                table=self._table,
                consumer=self._job,
                ranges={self._source.log: (start, end)},
                strict=True,
            )
        except Conflict as error:
            if error.code != Fenced.code:
                raise
            raise fenced(f"the copy in table {self._table!r}", self.fence(), start) from error
        self._batch += 1
        if not response["applied"] and (self.fence() or 0) > end:
            raise fenced(f"the copy in table {self._table!r}", self.fence(), start)

    def _prepare(self, known: ChangeStreamInfo) -> None:
        """Create the table if needed, and check that it is ours: it was empty when the job was registered for it."""
        found = described(self._client, self._table)
        if found is None:
            found = make(self._client, known, self._table, None)
        check_key(known, self._table, found)
        source = self._source
        definition: dict[str, Any] = {
            "table": source.table, "database": source.database, "into": self._table, "id": found["TableId"],
        }  # fmt: skip
        try:
            there = self._client.job(self._job)
        except NotFound:
            if found["ItemCount"]:
                raise not_empty(self._table, "the copy") from None
            self._client.register_job(
                self._job, KIND, source=f"tables/{source.table}", target=f"tables/{self._table}", definition=definition
            )
            return
        if there["definition"] != definition:
            raise Conflict(
                f"the job {self._job!r} of the target keeps another copy, or the table {self._table!r} was dropped and "
                "recreated since; give this copy another name, or drop that job and empty the table to begin again",
                code="OTHER_COPY",
            )

"""What is written to a copy of a table: the changes of a batch, or a first copy. Executors write the rows.

Theory of operation
-------------------
A job passes the target a function of executors, which writes rows where nobody sees them (files that no commit lists,
staged rows), and yields a short answer for each part, such as the name of a file. The driver gets the answers, and
makes what they name visible in one commit. What a task wrote that failed, or that ran twice, is named by no answer.

A *first copy* is of the items that a table has now. Each task reads a segment of the table, at a moment of its own.
When all are read, the changes since the beginning are laid over them: the last change of a key has the item as it is
afterwards, whichever moment the item was read at. So the copy is exactly the table where those changes end, no matter
how long it took, and the server holds nothing open for it. It needs new images, as every copy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.client import Client
from tailrace.cold.states import StateFile
from tailrace.cold.store import Store
from tailrace.cold.writing import WrittenFile
from tailrace.errors import Conflict, Error, NotFound, Unavailable
from tailrace.spark.connection import client as connected
from tailrace.spark.connection import patiently
from tailrace.spark.jobs import clusters, fold
from tailrace.spark.jobs.clusters import Clustering, LeafResult
from tailrace.spark.jobs.making import described
from tailrace.spark.jobs.state import ChangeStreamInfo, change_stream_info, changes, parallelism
from tailrace.spark.jobs.tasks import task_error
from tailrace.spark.options import ServerAccess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Work for a further task: less costs more to start than it saves.
SPLIT_ROWS: Final = 5_000
# At most for one task, about.
TASK_ROWS: Final = 100_000
TASK_BYTES: Final = 64 * limits.MiB
WAVE_TASKS: Final = 2  # segments for each core whose rows are written before the next are read
WAVE_TASKS_MAX: Final = 128  # for a server has room for so many stages
_ANSWERS: Final = "answer binary, error string, code string"
_ANSWER_SCHEMA: Final = pa.schema([("answer", pa.binary()), ("error", pa.string()), ("code", pa.string())])

# Of executors: takes rows of a state (`fold.STATE`), writes them, and yields what the driver needs to commit them.
RowsFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[bytes]]


class CopyRows(Protocol):
    """Rows of a state (`fold.STATE`) that executors have, at most one for each key; where `typed` is null the item is
    gone."""

    rows: int  # about, or at most
    size: int  # about, in bytes

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        """Run `work` in executors over parts of the rows; what it yields."""

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        """Merge the rows into a clustered state, in executors."""


class FirstCopy(Protocol):
    """A first copy: first the items are written, then the changes over them."""

    def items(self) -> CopyRows:
        """The items, each as it was at some moment from now on."""

    def changes(self) -> tuple[CopyRows, int]:
        """To be called when the items were written: the changes up to now, and the position where they end."""


# -- in Spark


class SparkChanges:
    """The last changes of each key in a batch that Spark has read."""

    def __init__(self, frame: DataFrame, rows: int, size: int, cores: int) -> None:
        self.rows, self.size = rows, size
        self._marks = fold.marks(frame)
        self._cores = cores

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        parts = tasks_for(self.rows, self.size, self._cores)
        yield from run_rows(self._marks.repartition(parts, "keys"), lambda marks: work(fold.settled(marks)))

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        return clusters.merge(self._marks, store, place, found, self._cores)


class SparkItems:
    """The items of a table, which tasks read by segments. `sequence` is that of all rows."""

    def __init__(
        self,
        spark: SparkSession,
        access: ServerAccess,
        table: str,
        found: dict[str, Any],
        sequence: int,
        *,
        whole: bool = False,
    ) -> None:
        """`found` is the description of the table; `whole`: one task reads all of it, at one moment."""
        self._spark = spark
        self.rows, self.size = int(found["ItemCount"]), int(found["TableSizeBytes"])
        self._cores = parallelism(spark)
        self._segments = 1 if whole else tasks_for(self.rows, self.size, self._cores)
        self._read = ItemSegments(access, table, self._segments, sequence)

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        """In waves of a few segments for each core, so that the driver commits what it has before the next."""
        read = self._read
        wave = min(WAVE_TASKS * self._cores, WAVE_TASKS_MAX)
        for first in range(0, self._segments, wave):
            last = min(first + wave, self._segments)
            numbers = self._spark.range(first, last, 1, last - first)
            yield from run_rows(numbers, lambda segments: work(read(segments)))

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        numbers = self._spark.range(0, self._segments, 1, self._segments)
        rows = numbers.mapInArrow(self._read, fold.STATE_DDL).selectExpr("*", "-1 AS index")
        return clusters.merge(rows, store, place, found, self._cores)


class ItemSegments(msgspec.Struct, frozen=True):
    """Reads segments of a table as rows of a state, given their numbers. Runs in an executor."""

    access: ServerAccess
    table: str
    segments: int
    sequence: int

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for segment in batch.column(0).to_pylist():
                yield from self._rows(segment)

    def _rows(self, segment: int) -> Iterator[pa.RecordBatch]:
        server = connected(self.access)
        with ExitStack() as stack:
            _, batches = patiently(
                lambda: stack.enter_context(server.items(self.table, segment=segment, segments=self.segments))
            )
            for batch in batches:
                columns = [batch.column(name).cast(pa.string()) for name in ("keys", "item", "typed")]
                columns.append(pa.repeat(pa.scalar(self.sequence, pa.int64()), batch.num_rows))
                yield pa.RecordBatch.from_arrays(columns, schema=fold.STATE)


class TableCopy:
    """The first copy of a table whose changes are described."""

    def __init__(self, spark: SparkSession, client: Client, known: ChangeStreamInfo, access: ServerAccess) -> None:
        self._spark, self._client, self._known, self._access = spark, client, known, access
        self._recorded = False

    def items(self) -> CopyRows:
        table = self._known.table
        found = _described(self._client, table)
        # Where changes are not recorded, there are none to lay over items of different moments.
        self._recorded = _is_recorded(found)
        return SparkItems(
            self._spark, self._access, table, found, self._known.next - 1, whole=not self._recorded
        )  # fmt: skip

    def changes(self) -> tuple[CopyRows, int]:
        known = self._known
        now = change_stream_info(self._client, known.table)
        if now.log != known.log:
            raise Conflict(f"the change stream of table {known.table!r} was just recreated; start again")
        if self._recorded and not _is_recorded(_described(self._client, known.table)):
            raise Conflict(f"the change stream of table {known.table!r} was disabled while it was copied; start again")
        if now.earliest > known.next:
            raise Unavailable(
                f"changes of table {known.table!r} were removed while it was copied; keep them for longer and try again"
            )
        if now.next == known.next:
            return NoRows(), known.next
        frame = changes(self._spark, known, self._access.url, self._access.token, known.next, now.next)
        _, _, count, size = measured(frame)
        return SparkChanges(frame, count, size, parallelism(self._spark)), now.next


class EmptyCopy:
    """The first copy of a table without items, at a position."""

    def __init__(self, position: int) -> None:
        self._position = position

    def items(self) -> CopyRows:
        return NoRows()

    def changes(self) -> tuple[CopyRows, int]:
        return NoRows(), self._position


class NoRows:
    """See `CopyRows`."""

    rows = size = 0

    def each(self, work: RowsFunction) -> Iterator[bytes]:
        return iter(())

    def merge(self, store: Store, place: str, found: Clustering) -> list[LeafResult]:
        return []


def items_of(spark: SparkSession, client: Client, access: ServerAccess, table: str, sequence: int) -> SparkItems:
    """The items of a table."""
    return SparkItems(spark, access, table, _described(client, table), sequence)


def _described(client: Client, table: str) -> dict[str, Any]:
    found = described(client, table)
    if found is None:
        raise NotFound(f"table {table!r} was dropped while its items were read; start again")
    return found


def _is_recorded(table: dict[str, Any]) -> bool:
    """Whether changes are recorded now: the change stream may be one that was disabled."""
    return bool(table.get("StreamSpecification", {}).get("StreamEnabled"))


def clustered_files(first: FirstCopy, store: Store, place: str) -> tuple[list[WrittenFile], int]:
    """Write a first copy as a clustered state: its files, which no commit lists yet, and its position."""
    items = first.items()
    done = items.merge(store, place, clusters.clustering([], items.rows, items.size))
    files = [file for leaf in done for file in leaf.written]
    over, position = first.changes()
    if over.rows:
        found = clusters.clustering(
            [StateFile(file.path, file.size, file.rows) for file in files], over.rows, over.size
        )
        merged = over.merge(store, place, found)
        gone = {path for leaf in merged for path in leaf.removed}
        files = [file for file in files if file.path not in gone] + [file for leaf in merged for file in leaf.written]
    return files, position


def tasks_for(rows: int, size: int, cores: int) -> int:
    """The number of tasks for so many rows, of so many bytes together."""
    return max(1, min(cores, rows // SPLIT_ROWS), -(-rows // TASK_ROWS), -(-size // TASK_BYTES))


def measured(frame: DataFrame) -> tuple[int, int, int, int]:
    """The first and last position of the frame, the number of changes, and about how many bytes of items."""
    row: Any = frame.selectExpr(
        "min(offset) AS low", "max(next_offset) AS high", "count(*) AS count",
        "sum(length(keys) + coalesce(length(after), 0)) AS size",
    ).first()  # fmt: skip
    return row["low"] or 0, row["high"] or 0, row["count"], row["size"] or 0


def run_rows(frame: DataFrame, work: RowsFunction) -> list[bytes]:
    """Run `work` in executors over each partition of the frame; what it yields. An `Error` of a task is raised here, of
    its class."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for answer in work(batches):
                yield _answer(answer, None, "")
        except Error as error:
            yield _answer(b"", str(error), error.code)

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = run
    rows = frame.mapInArrow(task, _ANSWERS).collect()
    for row in rows:
        if row.error is not None:
            raise task_error(row.error, row.code)
    return [bytes(row.answer) for row in rows]


def _answer(answer: bytes, error: str | None, code: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"answer": answer, "error": error, "code": code}], schema=_ANSWER_SCHEMA)

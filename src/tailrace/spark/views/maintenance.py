"""The state of a view's job: its planned SELECT, its sources, and what it knows about the view's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.client import Client
from tailrace.errors import Error
from tailrace.spark.options import ServerAccess
from tailrace.spark.session import NEEDED
from tailrace.spark.views.catalyst import WEIGHT
from tailrace.spark.views.encoding import OP, ROW_TEXT, STAGED, StageTask, ViewEncoder
from tailrace.spark.views.failing import failing_row, value_error
from tailrace.spark.views.partials import AddPartials
from tailrace.spark.views.query import ADDITIVE, INTERVAL, REFRESH, SourceRows, ViewQuery
from tailrace.spark.views.sources import SourceTableReader
from tailrace.spark.views.texts import row_text
from tailrace.spark.views.topics import SourceTopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}


class ViewMaintainer:
    """Computes and stages the rows of a view."""

    def __init__(
        self,
        spark: SparkSession,
        server: Client,
        access: ServerAccess,
        name: str,
        sql: str,
        tables: Sequence[dict[str, Any]],
    ) -> None:
        """`tables`: the sources, as the server describes them; a topic has one for each partition."""
        # A session whose temporary views and settings are its own; a new one would not know the format.
        own = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
        for setting, value in (NEEDED | _SETTINGS).items():
            own.conf.set(setting, value)
        self._server, self._access, self._name, self._spark = server, access, name, own
        self._logs = _logs(tables)  # by source and partition
        self._readers: dict[str, SourceTableReader | SourceTopicReader] = {}
        for each in tables:
            if each["table"] in self._readers:
                continue
            if each.get("topic"):
                first = {other["partition"]: other["first"] for other in tables if other["table"] == each["table"]}
                self._readers[each["table"]] = SourceTopicReader(own, server, access, each["table"], first)
            else:
                self._readers[each["table"]] = SourceTableReader(own, server, access, each["table"], each["keys"])
        self._query = ViewQuery(own, sql, {table: reader.source for table, reader in self._readers.items()})
        self._encoder = ViewEncoder(self._query, name)
        for table, reader in self._readers.items():
            reader.used = self._query.used_columns(table)
            reader.needed = self._query.used_columns(table, keyed=False)
        # The positions that the state is of, by source and partition; None: there is no state.
        self._at: dict[str, dict[int, int]] | None = None
        self._previous: DataFrame | None = None  # the keys and texts of the last result of a SELECT that runs again

    @property
    def is_interval(self) -> bool:
        return self._query.strategy == INTERVAL

    @property
    def needs_only_changes(self) -> bool:
        """Whether a batch adds up changes, and needs no rows of the sources."""
        return self._query.strategy == ADDITIVE and not self._query.needs_state

    def shape(self) -> dict[str, Any]:
        """The plan, as it is reported to the server."""
        query = self._query
        return {
            "keys": self._encoder.keys,
            "columns": self._encoder.columns,
            "strategy": query.strategy,
            "explained": query.explained,
            "warnings": query.warnings,
            "partials": query.form,
        }

    def close(self) -> None:
        self._query.drop()

    def forget(self) -> None:
        """Forget the state, which may not be that of the server's positions, or be lost with an executor."""
        self._at = self._previous = None
        for reader in self._readers.values():
            reader.release()

    def scratch(self) -> DataFrame:
        """The items of the view's table, if its SELECT ran now."""
        from pyspark.sql import functions as f

        for reader in self._readers.values():
            reader.read_items()
        self._at = None
        self._plan_again()
        rows = self._query.result({table: reader.rows() for table, reader in self._readers.items()})
        return self._encoder.items(rows.withColumn(WEIGHT, f.lit(1))).drop(OP)

    # -- filling

    def filled(
        self, tables: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, int], dict[int, int], Iterator[tuple[str, int]]]:
        """The sequence of each table and the position in each partition of topics as they are now, and the stages with
        the rows of the view over them. `tables`: the sources, as the server describes them now."""
        self._at = self._previous = None
        self._logs = _logs(tables)
        sequences, positions = dict[str, int](), dict[int, int]()
        for table, reader in self._readers.items():
            if isinstance(reader, SourceTopicReader):
                reader.first = {each["partition"]: each["first"] for each in tables if each["table"] == table}
                reader.read_items()
                positions |= {self._logs[table][number]: end for number, end in reader.at.items()}
            else:
                sequences[table] = reader.read_items()
        now = {table: reader.rows() for table, reader in self._readers.items()}
        return sequences, positions, self._stages(self._encoder.items(self._query.filled(now)), lambda: now, now)

    def _stages(
        self, items: DataFrame, suspects: Callable[[], Mapping[str, DataFrame]], now: Mapping[str, DataFrame]
    ) -> Iterator[tuple[str, int]]:
        """Stages, as the tasks make them. If a row makes the SELECT fail, it is one of `suspects`."""
        task = StageTask(self._access, self._name, *self._encoder.names(items))
        try:
            for row in items.mapInArrow(task, STAGED).toLocalIterator():
                yield row["stage"], row["rows"]
        except Exception as error:
            message = value_error(error)
            if message is None:
                raise
            raise Error(self._located(message, suspects(), now), code="QUERY_FAILED") from error

    def _located(self, message: str, suspects: Mapping[str, DataFrame], now: Mapping[str, DataFrame]) -> str:
        """Spark's message about a value, with the row and the column that it is about."""
        found = failing_row(self._query, suspects, now)
        if found is None:
            return f"the SELECT fails: {message}"
        what = "a condition or several columns" if found.column is None else f"the column {found.column!r}"
        return f"{what} of the SELECT fails for {found.table!r}, key {found.key}: {message}"

    # -- batches

    def _prepare(self, at: dict[str, dict[int, int]]) -> None:
        """Have the state at these positions."""
        if self._at == at:
            return
        for table in self._query.needs_state:
            self._readers[table].move_to(at[table])
        for table in self._readers.keys() - self._query.needs_state:
            self._readers[table].release()
        self._previous = None
        self._at = at

    def apply(self, ranges: dict[int, tuple[int, int]], *, rewrite: bool) -> int | None:
        """Apply a batch of these ranges, by log; the number of changes, or None if another job was faster."""
        query = self._query
        self._prepare(self._positions(ranges, 0))
        records = 0
        sources: dict[str, SourceRows] = {}
        overlays: dict[str, DataFrame | None] = {}
        for table, reader in self._readers.items():
            span = self._span(table, ranges)
            records += reader.records(span)
            if table not in query.tables:
                continue
            if table in query.needs_state:
                changes = reader.changes(span)
                shrunk = None if changes is None else reader.consolidated(changes).localCheckpoint()
                sources[table], overlays[table] = reader.batch(shrunk)
            else:
                sources[table] = SourceRows(reader.nothing(), reader.nothing(), reader.delta(span))
        for table in self._readers:
            nothing = self._readers[table].nothing()
            sources.setdefault(table, SourceRows(nothing, nothing, None))
        found = self._changed(sources, {str(log): start for log, (start, _) in ranges.items()})
        now = {table: each.new for table, each in sources.items()}

        def suspects() -> dict[str, DataFrame]:
            """The changed rows, with their keys."""
            changes = {
                table: self._readers[table].changes(self._span(table, ranges))
                for table, each in sources.items()
                if each.delta is not None and table in query.tables
            }
            return {
                table: self._readers[table].weighted(frame).drop(WEIGHT)
                for table, frame in changes.items()
                if frame is not None
            }

        stages = [] if found is None else [stage for stage, _ in self._stages(found, suspects, now)]
        body = {
            "ranges": {str(log): each for log, each in ranges.items()},
            "stages": stages,
            "records": records,
            "form": query.form,
            "rewrite": rewrite,
        }
        if not self._server.apply_view(self._name, body)["applied"]:
            return None
        self._at = self._positions(ranges, 1)
        for table, overlay in overlays.items():
            self._readers[table].advance(self._at[table], overlay)
        return records

    def _span(self, table: str, ranges: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """The ranges of a source, by partition."""
        return {number: ranges[log] for number, log in self._logs[table].items()}

    def _positions(self, ranges: dict[int, tuple[int, int]], side: int) -> dict[str, dict[int, int]]:
        """Where ranges start (0) or end (1), by source and partition."""
        return {
            table: {number: ranges[log][side] for number, log in logs.items()} for table, logs in self._logs.items()
        }

    def _changed(self, sources: dict[str, SourceRows], at: dict[str, int]) -> DataFrame | None:
        """The items to write; `at`: the positions that the batch starts from."""
        query = self._query
        if query.strategy in (REFRESH, INTERVAL):
            return self._compared({table: each.new for table, each in sources.items()})
        made = query.batch(sources)
        if made is None:
            return None
        if query.strategy == ADDITIVE:
            made = query.finished(self._added(made, at))
        return self._encoder.items(made)

    def _added(self, partials: DataFrame, at: dict[str, int]) -> DataFrame:
        """The partials of a batch, with those that the server has."""
        additive = self._query.additive
        assert additive is not None
        keys = tuple(name for name, _ in self._encoder.keys)
        task = AddPartials(self._access, self._name, at, self._query.form, keys, tuple(additive.names(partials)))
        return self._encoder.with_keys(partials, additive.groups).mapInArrow(task, partials.schema)

    def _plan_again(self) -> None:
        """A plan has the time at which it was made."""
        self._query.drop()
        self._query = ViewQuery(self._spark, self._query.sql, self._query.sources)

    def _compared(self, now: dict[str, DataFrame]) -> DataFrame:
        """The result of the SELECT where it differs from the rows that are there."""
        from pyspark.sql import functions as f

        encoder = self._encoder
        if self.is_interval:
            self._plan_again()
        rows = self._query.result(now)
        rows = rows.withColumn(ROW_TEXT, row_text(rows)).withColumn(WEIGHT, f.lit(1))
        items = encoder.items(rows).drop(OP).localCheckpoint()
        keys = [name for name, _ in encoder.keys]
        if self._previous is None:
            there = SourceTableReader(self._spark, self._server, self._access, self._name, encoder.keys)
            there.used = keys
            there.read_items()
            before, puts = there.rows(), items
        else:
            before, puts = self._previous, items.join(self._previous, [*keys, ROW_TEXT], "left_anti")
        gone = before.select(*keys).join(items.select(*keys), keys, "left_anti")
        self._previous = items.select(*keys, ROW_TEXT)
        puts, items = puts.drop(ROW_TEXT), items.drop(ROW_TEXT)
        empty = [
            f.col(f"`{name}`") if name in keys else f.lit(None).cast(kind).alias(name) for name, kind in items.dtypes
        ]
        deletes = gone.select(*empty).withColumn(OP, f.lit("DELETE"))
        return puts.withColumn(OP, f.lit("PUT")).unionAll(deletes)


def _logs(tables: Sequence[dict[str, Any]]) -> dict[str, dict[int, int]]:
    """The logs of sources, by name and partition; a table has one."""
    found: dict[str, dict[int, int]] = {}
    for each in tables:
        found.setdefault(each["table"], {})[each.get("partition", 0)] = each["log"]
    return found

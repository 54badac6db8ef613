"""A topic as a source of a view: append-only rows, of which the view counts those from its first message on.

The columns are those of the Spark source, and `value`: the payload as VARIANT, NULL if it is not JSON. The rows at a
position are the messages between the first one and the position. If some of them have left the topic, a view that needs
them stops with an error: to go on without them would make it another view. One that needs only changes goes on.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from tailrace.client import Client
from tailrace.errors import Conflict, Unavailable
from tailrace.spark import columns
from tailrace.spark.options import ServerAccess
from tailrace.spark.views.catalyst import WEIGHT, empty_frame
from tailrace.spark.views.query import SourceRows, ViewSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEYS: Final = ("partition", "offset")
VALUE: Final = "value"
PARTS_MAX: Final = 16  # data frames of messages, before they become one


class SourceTopicReader:
    """A topic that a view reads."""

    def __init__(
        self, spark: SparkSession, server: Client, access: ServerAccess, topic: str, first: dict[int, int]
    ) -> None:
        from pyspark.sql.types import StructField, StructType, VariantType

        self._spark, self._server, self._access = spark, server, access
        self.table, self.first = topic, first  # by partition: the position of the first message
        facts = [*columns.facts_of("topic"), StructField(VALUE, VariantType())]
        self.schema: StructType = StructType(
            [StructField(field.name, field.dataType, field.name not in KEYS) for field in facts]
        )
        self.used: list[str] = self.schema.fieldNames()
        self.needed: list[str] = self.used
        self.at: dict[int, int] = {}
        self._parts: list[DataFrame] | None = None
        self._nothing: DataFrame | None = None

    @property
    def source(self) -> ViewSource:
        return ViewSource(KEYS, self.schema)

    # -- changes

    def changes(self, span: dict[int, tuple[int, int]]) -> DataFrame | None:
        """The messages in [start, end) of each partition; None: there are none."""
        from pyspark.sql import functions as f

        if all(start == end for start, end in span.values()):
            return None
        options = {"url": self._access.url, "topic": self.table}
        if self._access.token is not None:
            options["token"] = self._access.token
        options["startingOffsets"] = json.dumps({str(number): start for number, (start, _) in span.items()})
        options["endingOffsets"] = json.dumps({str(number): end for number, (_, end) in span.items()})
        found = self._spark.read.format("tailrace").options(**options).load()
        made: list[Any] = []
        for field in self.schema.fields:
            column = f.lit(None)
            if field.name in self.used:
                is_value = field.name == VALUE
                column = f.try_parse_json(f.col("payload").cast("string")) if is_value else f.col(field.name)
            made.append(column.cast(field.dataType).alias(field.name))
        return found.select(*made)

    def delta(self, span: dict[int, tuple[int, int]]) -> DataFrame | None:
        """The messages as rows with weights."""
        found = self.changes(span)
        return None if found is None else self.weighted(found)

    def records(self, span: dict[int, tuple[int, int]]) -> int:
        return sum(end - start for start, end in span.values())

    def consolidated(self, changes: DataFrame) -> DataFrame:
        return changes  # a message never changes

    def weighted(self, changes: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return changes.withColumn(WEIGHT, f.lit(1))

    # -- rows

    def read_items(self) -> None:
        """Read all messages from the first on; `at` is where they end."""
        info = self._server.logs(topic=self.table)["partitions"]
        self._load({each["partition"]: each["next"] for each in info}, info)

    def move_to(self, position: dict[int, int]) -> None:
        """Have the messages up to these positions."""
        if self._parts is None or position != self.at:
            self._load(position, self._server.logs(topic=self.table)["partitions"])

    def _load(self, until: dict[int, int], info: list[dict[str, Any]]) -> None:
        if self.first.keys() != until.keys() or self.first.keys() != {each["partition"] for each in info}:
            raise Unavailable(f"topic {self.table!r} was recreated with other partitions; try again")
        for each in info:
            if each["earliest"] > self.first[each["partition"]]:
                raise Conflict(
                    f"messages of topic {self.table!r} that the view has counted have left the topic, and the SELECT "
                    "needs them; ALTER MATERIALIZED VIEW ... REFRESH fills it with the messages that are left",
                    code="VIEW_SOURCE_TRIMMED",
                )
        found = self.changes({number: (self.first[number], end) for number, end in until.items()})
        self._parts = [] if found is None else [found.localCheckpoint()]
        self.at = until

    def rows(self) -> DataFrame:
        """The messages up to `at`."""
        assert self._parts is not None
        return reduce(lambda one, other: one.unionAll(other), self._parts) if self._parts else self.nothing()

    def nothing(self) -> DataFrame:
        """No messages."""
        if self._nothing is None:
            self._nothing = empty_frame(self._spark, self.schema).where("false")
        return self._nothing

    def release(self) -> None:
        """Forget the messages, which are not needed any more."""
        self._parts = None

    def batch(self, fresh: DataFrame | None) -> tuple[SourceRows, DataFrame | None]:
        """The rows for a batch with these messages, and what `advance` is to add."""
        old = self.rows()
        if fresh is None:
            return SourceRows(old, old, None), None
        return SourceRows(old, old.unionAll(fresh), self.weighted(fresh)), fresh

    def advance(self, position: dict[int, int], fresh: DataFrame | None) -> None:
        """The batch was applied."""
        self.at = position
        if self._parts is not None and fresh is not None:
            self._parts.append(fresh)
            if len(self._parts) > PARTS_MAX:
                self._parts = [self.rows().localCheckpoint()]

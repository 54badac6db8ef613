"""SourcePlaceholders for the rows of a view's sources, in the plan of its SELECT and in the derivative.

The SELECT is planned over empty relations with the sources' columns; a leaf of the plan is recognized by the number of
its RDD. A finished plan names temporary views instead of placeholders. So a batch registers its rows under these names,
and Spark's analyzer puts them into the plan: that is one call through the gateway, not one for each operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tailrace.spark.views.catalyst import WEIGHT, Catalyst, Java, Relation, empty_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

OLD: Final = "old"
NEW: Final = "new"
DELTA: Final = "delta"
SIDES: Final = (OLD, NEW, DELTA)
_numbers: Final = itertools.count()


class SourcePlaceholders:
    """The placeholders of one view."""

    def __init__(self, catalyst: Catalyst, schemas: Mapping[str, StructType]) -> None:
        self._catalyst = catalyst
        self._prefix = f"__tailrace_{next(_numbers)}"
        self._schemas = schemas
        self._order = list(schemas)
        self._sources: dict[int, str] = {}  # by the number of an RDD
        self._plans: dict[tuple[str, str], Java] = {}
        self._names: dict[int, str] = {}  # the temporary view that replaces a placeholder
        for table, schema in schemas.items():
            frame = empty_frame(self._catalyst.spark, schema)
            self._sources[_number(catalyst.analyzed(frame))] = table
            frame.createOrReplaceTempView(self.relation(table))

    def relation(self, table: str) -> str:
        """The name of a source in the SELECT that is planned."""
        return f"{self._prefix}_{self._order.index(table)}"

    def name(self, table: str, side: str) -> str:
        """The name of the temporary view with the rows of a batch."""
        return f"{self.relation(table)}_{side}"

    def stage_name(self, number: int) -> str:
        return f"{self._prefix}_stage_{number}"

    def source(self, node: Java) -> str | None:
        """The table that a leaf of the plan stands for."""
        if self._catalyst.kind(node) != "LogicalRDD":
            return None
        return self._sources.get(_number(node))

    def plan(self, leaf: Java, side: str) -> Java:
        table = self.source(leaf)
        assert table is not None
        found = self._plans.get((table, side))
        if found is None:
            schema = self._schemas[table]
            if side == DELTA:
                from pyspark.sql.types import IntegerType, StructField, StructType

                schema = StructType([*schema.fields, StructField(WEIGHT, IntegerType(), False)])
            found = self._placeholder(schema, self.name(table, side))
            self._plans[table, side] = found
        return found

    def delta(self, leaf: Java) -> Relation:
        plan = self.plan(leaf, DELTA)
        weight = self._catalyst.output(plan)[-1]
        return self._catalyst.bound(Relation(plan, weight), self._catalyst.output(leaf))

    def stage(self, number: int, keys: Java) -> Java:
        """A placeholder for the keys of a stage."""
        return self._placeholder(self._catalyst.frame(keys).schema, self.stage_name(number))

    def extra(self, name: str, schema: StructType) -> tuple[str, DataFrame]:
        """A further placeholder: the name of its temporary view, and a frame."""
        from pyspark.sql.types import StructType

        view = f"{self._prefix}_{name}"
        frame = empty_frame(self._catalyst.spark, StructType(list(schema.fields)))
        self._names[_number(self._catalyst.analyzed(frame))] = view
        return view, frame

    def _placeholder(self, schema: StructType, name: str) -> Java:
        plan = self._catalyst.analyzed(empty_frame(self._catalyst.spark, schema))
        self._names[_number(plan)] = name
        return plan

    def named(self, plan: Java) -> tuple[Java, set[str]]:
        """The plan with temporary views for placeholders, and their names."""
        catalyst, used = self._catalyst, set[str]()

        def go(node: Java) -> Java:
            children = catalyst.children(node)
            if children:
                changed = [go(child) for child in children]
                same = all(new is old for new, old in zip(changed, children, strict=True))
                return node if same else catalyst.with_children(node, changed)
            name = self._names.get(_number(node)) if catalyst.kind(node) == "LogicalRDD" else None
            if name is None:
                return node
            used.add(name)
            return self._by_name(name, catalyst.output(node))

        return go(plan), used

    def _by_name(self, name: str, output: Sequence[Java]) -> Java:
        catalyst = self._catalyst
        named = [
            catalyst.alias(catalyst.unresolved_attribute(each.name()), each.name(), each.exprId()) for each in output
        ]
        return catalyst.project(named, catalyst.unresolved(name))

    def drop(self) -> None:
        """Drop all temporary views."""
        names = [self.relation(table) for table in self._order] + list(self._names.values())
        for name in names:
            self._catalyst.spark.catalog.dropTempView(name)


def _number(leaf: Java) -> int:
    return int(leaf.rdd().id())

"""Additive aggregates: counts, and sums and averages of exact numbers, of which deltas are enough.

For each group there are *partials*: the number of rows, and for each aggregate the number of its values and their sum.
Partials of a delta are added to those that the server keeps (`partials`). The finished values come from Spark's own
expressions over its aggregation buffers, so that types, rounding and overflow are those of the SELECT. Sums of doubles
are not additive: what was added cannot be subtracted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.spark.views.catalyst import WEIGHT, Catalyst, Java, Relation
from tailrace.spark.views.partials import SEPARATOR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTIALS: Final = "_partials"  # the column with the text of a group's partials
SHOWN: Final = "__shown"  # whether a group has a row
_LOW: Final = (1 << 32) - 1  # the lower half of a whole number
_EXACT: Final = ("tinyint", "smallint", "int", "bigint", "decimal")


def aggregates(catalyst: Catalyst, expression: Java) -> list[Java]:
    """The aggregate expressions in an expression."""
    if catalyst.kind(expression) == "AggregateExpression":
        return [expression]
    return [found for child in catalyst.children(expression) for found in aggregates(catalyst, child)]


def is_additive(catalyst: Catalyst, node: Java) -> bool:
    """Whether all aggregates of an Aggregate are additive."""
    for named in catalyst.items(node.aggregateExpressions()):
        for each in aggregates(catalyst, named):
            function = each.aggregateFunction()
            kind = catalyst.kind(function)
            if each.isDistinct() or kind not in ("Count", "Sum", "Average") or function.children().size() != 1:
                return False
            if kind != "Count" and function.child().dataType().simpleString().partition("(")[0] not in _EXACT:
                return False
    return True


class AdditiveAggregate:
    """The partials of an Aggregate, and what it makes of them."""

    def __init__(self, catalyst: Catalyst, node: Java) -> None:
        self._catalyst, self._node = catalyst, node
        self._groups = catalyst.items(node.groupingExpressions())
        self._found: list[Java] = []
        for named in catalyst.items(node.aggregateExpressions()):
            for each in aggregates(catalyst, named):
                if not any(each.semanticEquals(other) for other in self._found):
                    self._found.append(each)

    @property
    def groups(self) -> list[str]:
        return [f"g{index}" for index in range(len(self._groups))]

    def partials(self, delta: Relation) -> DataFrame:
        """The partials of a delta of the aggregate's input."""
        from pyspark.sql import functions as f

        catalyst, named = self._catalyst, []
        plan, weight = catalyst.bound(delta, catalyst.output(self._node.child()))
        for index, group in enumerate(self._groups):
            named.append(catalyst.alias(group, f"g{index}"))
        for index, each in enumerate(self._found):
            named.append(catalyst.alias(each.aggregateFunction().children().apply(0), f"a{index}"))
            if not each.filter().isEmpty():
                named.append(catalyst.alias(each.filter().get(), f"f{index}"))
        rows = catalyst.frame(catalyst.project([*named, weight], plan))
        kinds = dict(rows.dtypes)
        out = [f.coalesce(f.sum(WEIGHT), f.lit(0)).cast("bigint").alias("n")]  # of no rows, without groups, too
        for index, each in enumerate(self._found):
            value: Column = f.col(f"a{index}")
            there = value.isNotNull()
            if f"f{index}" in kinds:
                there = there & f.coalesce(f.col(f"f{index}"), f.lit(False))
            out.append(f.coalesce(f.sum(f.when(there, f.col(WEIGHT))), f.lit(0)).cast("bigint").alias(f"n{index}"))
            if catalyst.kind(each.aggregateFunction()) != "Count":
                kind = kinds[f"a{index}"]
                wide = _wide(kind)
                out.append(f.coalesce(_signed_sum(value, there, kind), f.lit(0)).cast(wide).alias(f"s{index}"))
        return rows.groupBy(*self.groups).agg(*out)

    def names(self, partials: DataFrame) -> list[str]:
        """The columns of partials, without the groups."""
        return [name for name in partials.columns if name not in self.groups]

    def form(self, partials: DataFrame) -> str:
        """What the texts of partials are: the types of their numbers, and what they are of."""
        kinds = dict(partials.dtypes)
        columns = ", ".join(f"{name} {kinds[name]}" for name in self.names(partials))
        return f"{columns}: {', '.join(each.sql() for each in self._found)}".replace("`", "")

    def finished(self, state: DataFrame, above: Sequence[Java]) -> Java:
        """A plan that makes of partials, one for each group, the rows of the view: the columns of the SELECT, the
        groups, the text of the partials, and whether the group has a row.

        `above` are the operators above the aggregate. A filter among them drops no row here: the text of a group is
        stored even if HAVING leaves it without a row. Expressions are evaluated only while the group may have a row, as
        below a filter, since they may fail for others."""
        from pyspark.sql import functions as f

        catalyst, names = self._catalyst, self.names(state)
        there = f.col("n") > 0 if self._groups else f.lit(True)
        text = f.concat_ws(SEPARATOR, *[f.col(name).cast("string") for name in names])
        kept = f.when(f.col("n") != 0, text) if self._groups else text
        plan = catalyst.analyzed(
            state.select(*state.columns, *self._buffers(state), kept.alias(PARTIALS), there.alias(SHOWN))
        )
        by_name = {each.name(): each for each in catalyst.output(plan)}
        carried, shown = [*(by_name[name] for name in self.groups), by_name[PARTIALS]], by_name[SHOWN]

        def replace(expression: Java) -> Java | None:
            for index, group in enumerate(self._groups):
                if expression.semanticEquals(group):
                    return by_name[f"g{index}"]
            if catalyst.kind(expression) != "AggregateExpression":
                return None
            index = next(i for i, each in enumerate(self._found) if each.semanticEquals(expression))
            return self._evaluated(index, by_name)

        named = []
        for each in catalyst.items(self._node.aggregateExpressions()):
            inner = each.child() if catalyst.kind(each) == "Alias" else each
            value = catalyst.when(shown, catalyst.replaced(inner, replace))
            named.append(catalyst.alias(value, each.name(), each.exprId()))
        plan = catalyst.project([*named, *carried, shown], plan)
        for node in reversed(above):
            columns = catalyst.output(plan)[: -len(carried) - 1]
            if catalyst.kind(node) == "Project":
                columns = [self._guarded(each, shown) for each in catalyst.items(node.projectList())]
                plan = catalyst.project([*columns, *carried, shown], plan)
            elif catalyst.kind(node) == "Filter":
                passed = catalyst.alias(catalyst.equal(catalyst.when(shown, node.condition()), catalyst.true), SHOWN)
                plan, shown = catalyst.project([*columns, *carried, passed], plan), passed.toAttribute()
        return plan

    def _guarded(self, named: Java, shown: Java) -> Java:
        catalyst = self._catalyst
        if catalyst.kind(named) != "Alias":
            return named
        return catalyst.alias(catalyst.when(shown, named.child()), named.name(), named.exprId())

    def _buffers(self, state: DataFrame) -> list[Column]:
        """The buffers of Spark's aggregate functions."""
        from pyspark.sql import functions as f

        columns: list[Column] = []
        for index, each in enumerate(self._found):
            function = each.aggregateFunction()
            count = f.col(f"n{index}")
            for position, buffer in enumerate(self._catalyst.items(function.aggBufferAttributes())):
                kind = buffer.dataType().simpleString()
                match self._catalyst.kind(function), buffer.name():
                    case ("Count", _) | ("Average", "count"):
                        value: Any = count
                    case ("Sum", "isEmpty"):
                        value = count == 0
                    case ("Sum", _):
                        value = (
                            f.when(count > 0, f.col(f"s{index}")) if self._is_plain(function) else f.col(f"s{index}")
                        )
                    case _:
                        value = f.col(f"s{index}")
                columns.append(value.cast(kind).alias(f"b{index}_{position}"))
        return columns

    def _is_plain(self, function: Java) -> bool:
        """Whether the buffer of a sum is NULL where there are no values."""
        return int(function.aggBufferAttributes().size()) == 1

    def _evaluated(self, index: int, by_name: dict[str, Java]) -> Java:
        catalyst, function = self._catalyst, self._found[index].aggregateFunction()
        buffers = catalyst.items(function.aggBufferAttributes())

        def replace(expression: Java) -> Java | None:
            if catalyst.kind(expression) != "AttributeReference":
                return None
            for position, buffer in enumerate(buffers):
                if buffer.exprId().equals(expression.exprId()):
                    return by_name[f"b{index}_{position}"]
            return None

        return catalyst.replaced(function.evaluateExpression(), replace)


def _signed_sum(value: Column, there: Column, kind: str) -> Column:
    """The sum of a type's values that are there, with the sign of their weights, without overflow. Adding decimals of
    38 digits is slow, so whole numbers are added as two halves of 32 bits, of which 2^31 fit into 64 bits."""
    from pyspark.sql import functions as f

    weight = f.col(WEIGHT)
    if kind.startswith("decimal"):
        wide = value.cast(_wide(kind))
        return f.sum(f.when(there, f.when(weight > 0, wide).otherwise(-wide)))
    whole = value.cast("bigint")
    high = f.sum(f.when(there, f.shiftright(whole, 32) * weight)).cast("decimal(20,0)")
    low = f.sum(f.when(there, whole.bitwiseAND(f.lit(_LOW)) * weight)).cast("decimal(20,0)")
    return high * f.lit(_LOW + 1).cast("decimal(10,0)") + low


def _wide(kind: str) -> str:
    """The type in which values of a type are summed up."""
    return f"decimal(38,{kind.rstrip(')').rpartition(',')[2]})" if kind.startswith("decimal") else "decimal(38,0)"

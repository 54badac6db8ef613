"""The SELECT of a view: its plan, its key, the strategy by which it is kept, and what a batch of changes means for it.

The strategies are

- *additive*: the topmost aggregate has only counts, and sums and averages of exact numbers: partials of the delta are
  added to partials of the state;
- *groups*: any other topmost aggregate: the affected groups are computed again from the new state;
- *delta*: everything else: the delta of the rows, by key;
- *refresh*: an operator has no derivative: after changes the SELECT runs again, and is compared with the rows there;
- *interval*: the result changes by itself, as with now(): the same, on an interval.

A view without a key has a row for each distinct row of the SELECT, with the number of its occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tailrace.errors import Invalid
from tailrace.jobs import view_sql
from tailrace.spark.views.additive import PARTIALS, SHOWN, AdditiveAggregate, aggregates, is_additive
from tailrace.spark.views.catalyst import WEIGHT, Catalyst, Java, Relation
from tailrace.spark.views.derivative import BILINEAR, KEYED, LIMITS, SUPPORTED, Derivative
from tailrace.spark.views.keys import KeyFinder
from tailrace.spark.views.placeholders import DELTA, NEW, OLD, SIDES, SourcePlaceholders
from tailrace.spark.views.rewriting import GenerateRewriter, SubqueryRewriter, TieBreaker, UnsupportedPlan
from tailrace.spark.views.texts import comparable, has_variant, is_collated, is_comparable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ADDITIVE: Final = "additive"
GROUPS: Final = "groups"
DELTAS: Final = "delta"
REFRESH: Final = "refresh"
INTERVAL: Final = "interval"
COUNT: Final = "__count"
_ALL_ROWS: Final = "over all rows"
# Aggregates whose result may depend on the order of rows.
_UNORDERED: Final = frozenset(
    ("First", "Last", "AnyValue", "CollectList", "CollectSet", "ListAgg", "MaxBy", "MinBy", "Mode",
     "ApproximatePercentile", "HyperLogLogPlusPlus", "NthValue")
)  # fmt: skip

# Of these, the values come in the order of the rows, or are any of them; and what makes the order of a list the same.
_ANY_ORDER: Final = frozenset(("First", "Last", "AnyValue", "CollectList", "ListAgg"))
_SORTING: Final = frozenset(("SortArray", "ArraySort"))


class ViewSource(msgspec.Struct, frozen=True):
    """A table that a view may read: its key and its typed columns."""

    key: tuple[str, ...]
    schema: Any  # StructType


class SourceRows(NamedTuple):
    """The rows of a source for a batch: before and after it, and its changes with weights; None: there are none."""

    old: DataFrame
    new: DataFrame
    delta: DataFrame | None


class ViewQuery:
    """A SELECT that is planned and differentiated."""

    def __init__(self, spark: SparkSession, sql: str, sources: Mapping[str, ViewSource]) -> None:
        self._catalyst = Catalyst(spark)
        self._spark = spark
        self._placeholders = SourcePlaceholders(self._catalyst, {name: each.schema for name, each in sources.items()})
        self._finder = KeyFinder(
            self._catalyst, self._placeholders.source, {name: each.key for name, each in sources.items()}
        )
        self.sources = sources
        self.sql = sql
        self.explained: list[str] = []
        self.warnings: list[str] = []
        names = {name: self._placeholders.relation(name) for name in sources}
        analyzed, plan = self._catalyst.optimized(view_sql.renamed(sql, names))
        self.columns: list[str] = [each.name() for each in self._catalyst.output(plan)]
        self._plan: Java = plan
        self.key: list[int] = []
        self._plan_strategy(analyzed, plan)
        with self._catalyst.planning():
            self._prepare()

    # -- planning

    def _plan_strategy(self, analyzed: Java, plan: Java) -> None:
        catalyst = self._catalyst
        volatile = catalyst.is_volatile(analyzed)
        try:
            plan = GenerateRewriter(catalyst).rewritten(SubqueryRewriter(catalyst).rewritten(plan))
        except UnsupportedPlan as error:
            raise Invalid(
                f"a view cannot have {error}; write it as a join, or make it a view of its own", code="INVALID_VIEW"
            ) from None
        try:
            if volatile:
                raise UnsupportedPlan("a value that changes by itself")
            self._check(plan)
            plan = TieBreaker(catalyst, self._finder).ordered(plan)
        except UnsupportedPlan as error:
            self.strategy = INTERVAL if volatile else REFRESH
            self.warnings.append(f"the whole SELECT runs again: {error}")
        else:
            self.strategy = DELTAS
        width = len(self.columns)
        found = self._finder.keyed(plan)
        if found is None:
            found = self._counted(plan)
        self._plan, key = found
        self.key = self._indexes(key)
        out = catalyst.output(self._plan)
        self.hidden = [f"__{each.name()}" if not each.name().startswith("__") else each.name() for each in out[width:]]
        self.names = [*self.columns, *_distinct(self.hidden, self.columns)]
        self.nullable = [bool(each.nullable()) for each in out]
        self._choose()

    def _indexes(self, key: Sequence[Java]) -> list[int]:
        ids = [each.exprId().id() for each in self._catalyst.output(self._plan)]
        return [ids.index(part.exprId().id()) for part in key]

    def _counted(self, plan: Java) -> tuple[Java, list[Java]]:
        """The distinct rows of a plan without a key, with their number."""
        catalyst = self._catalyst
        frame = catalyst.frame(plan)
        for name, kind in frame.dtypes:
            if has_variant(kind):
                raise Invalid(
                    f"the rows have no key, so equal rows are counted, and the column {name!r} is {kind}, which has no "
                    f"equality; cast it: CAST({name} AS STRING), or take fields of it: {name}:path::type",
                    code="INVALID_VIEW",
                )
            if is_collated(kind):
                raise Invalid(
                    f"the rows have no key, so equal rows are counted, and the column {name!r} is {kind}, of which "
                    f"different texts are equal; cast it: CAST({name} AS STRING)",
                    code="INVALID_VIEW",
                )
        numbered = frame.toDF(*[f"c{index}" for index in range(len(frame.columns))])
        made = catalyst.analyzed(numbered.groupBy(*numbered.columns).count())
        out = catalyst.output(made)
        named = [catalyst.alias(each, name) for each, name in zip(out, [*frame.columns, COUNT], strict=True)]
        made = catalyst.project(named, made)
        self.warnings.append(f"the rows have no key: {COUNT} has the number of equal rows")
        return made, catalyst.output(made)[:-1]

    def _check(self, node: Java) -> None:
        """Raise if an operator has no derivative."""
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        if kind not in SUPPORTED:
            raise UnsupportedPlan(kind)
        if kind == "Join" and (how := catalyst.kind(node.joinType())) not in BILINEAR | KEYED:
            raise UnsupportedPlan(f"a join of kind {how}")
        if kind == "Aggregate" and "session_window" in node.simpleString(1000):
            raise UnsupportedPlan("session_window, whose groups depend on each other")
        if kind == "Aggregate" and any(
            is_collated(each.dataType().simpleString()) for each in catalyst.items(node.groupingExpressions())
        ):
            raise UnsupportedPlan("groups under a collation, which are named by any of their texts")
        for child in catalyst.children(node):
            self._check(child)

    def _choose(self) -> None:
        catalyst, node = self._catalyst, self._plan
        self._chain: list[Java] = []
        while catalyst.kind(node) in ("Project", "Filter", "Sort"):
            self._chain.append(node)
            node = catalyst.children(node)[0]
        self._core = node
        if self.strategy == DELTAS and catalyst.kind(node) == "Aggregate":
            if is_additive(catalyst, node):
                self.strategy = ADDITIVE
            elif node.groupingExpressions().size():
                self.strategy = GROUPS
        if self.strategy in (ADDITIVE, GROUPS, DELTAS) and self._unstable(self._plan, top=self.strategy != DELTAS):
            self.strategy = REFRESH
            self.warnings.append(
                "the whole SELECT runs again: a sum of doubles, or an aggregate that depends on the order of rows, is "
                "compared or is a part of the key"
            )
        self._explain(self._plan, 0)
        for name in sorted(self._in_any_order(self._core)):
            self.warnings.append(
                f"{name} depends on the order of rows, which a table does not have: sort the result (sort_array), or "
                "give an order (max_by, listagg WITHIN GROUP)"
            )

    def _in_any_order(self, node: Java) -> set[str]:
        """The functions of an aggregate whose result may come out differently from the same rows."""
        catalyst, found = self._catalyst, set[str]()

        def go(expression: Java) -> None:
            kind = catalyst.kind(expression)
            if kind in _SORTING:
                return
            if kind in _ANY_ORDER and not (kind == "ListAgg" and expression.orderExpressions().size()):
                found.add(expression.prettyName())
            for child in catalyst.children(expression):
                go(child)

        if catalyst.kind(node) == "Aggregate":
            for named in catalyst.items(node.aggregateExpressions()):
                go(named)
        return found

    def _unstable(self, plan: Java, *, top: bool) -> bool:
        """Whether a value that may come out differently from the same rows decides about rows below the top."""
        catalyst, used = self._catalyst, [False]

        def refers(node: Java, found: set[int]) -> bool:
            return any(each.exprId().id() in found for each in catalyst.items(node.references().toSeq()))

        def go(node: Java, is_top: bool) -> set[int]:
            kind = catalyst.kind(node)
            children = catalyst.children(node)
            stay = is_top and kind in ("Project", "Filter", "Sort")
            below: set[int] = set()
            for child in children:
                below |= go(child, stay)
            if kind in ("Filter", "Join") and not stay and below and refers(node, below):
                used[0] = True
            if kind not in ("Project", "Aggregate", "Window"):
                return below
            named = catalyst.items(
                node.projectList() if kind == "Project"
                else node.aggregateExpressions() if kind == "Aggregate"
                else node.windowExpressions()
            )  # fmt: skip
            if kind != "Project" and below:
                by = node.groupingExpressions() if kind == "Aggregate" else node.partitionSpec()
                specs = [*catalyst.items(by), *(catalyst.items(node.orderSpec()) if kind == "Window" else ())]
                used[0] = used[0] or any(refers(each, below) for each in specs)
            if kind == "Aggregate" and is_top:
                return set()
            found = set(below) if kind == "Window" else set()
            for each in named:
                if refers(each, below) or (kind != "Project" and self._depends_on_order(each)):
                    found.add(each.exprId().id())
            return found

        unstable = go(plan, top)
        out = catalyst.output(plan)
        return used[0] or any(out[index].exprId().id() in unstable for index in self.key)

    def _depends_on_order(self, named: Java) -> bool:
        catalyst = self._catalyst
        for each in aggregates(catalyst, named):
            function = each.aggregateFunction()
            kind = catalyst.kind(function)
            if kind in _UNORDERED:
                return True
            if kind not in ("Count", "Max", "Min", "Percentile", "Median") and any(
                child.dataType().simpleString() in ("double", "float") for child in catalyst.children(function)
            ):
                return True
        return False

    # -- the derivative

    def _prepare(self) -> None:
        """Differentiate, and name the temporary views that a batch fills."""
        catalyst, placeholders = self._catalyst, self._placeholders
        derivative = Derivative(catalyst, placeholders)
        self._result, self._result_uses = placeholders.named(derivative.rows(self._plan, NEW))
        self._template: Java | None = None
        self._filling: Java | None = None  # the partials of all rows
        self.form = ""  # of the partials
        self._uses: set[str] = set()
        if self.strategy == ADDITIVE:
            self.additive: AdditiveAggregate | None = AdditiveAggregate(catalyst, self._core)
            delta = derivative.delta(self._core.child())
            if delta is None:
                self.strategy = REFRESH
                return
            partials = self.additive.partials(delta)
            self._template, self._uses = placeholders.named(catalyst.analyzed(partials))
            everything = self.additive.partials(catalyst.weighted(derivative.rows(self._core.child(), NEW), 1))
            self._filling, _ = placeholders.named(catalyst.analyzed(everything))
            self._state_name, state = placeholders.extra("state", partials.schema)
            self.form = self.additive.form(partials)
            self._finished, _ = placeholders.named(self.additive.finished(state, self._chain))
        elif self.strategy == GROUPS:
            made = self._groups(derivative)
            if made is not None:
                self._template, self._uses = placeholders.named(catalyst.analyzed(made))
        elif self.strategy == DELTAS:
            delta = derivative.delta(self._plan)
            if delta is not None:
                made = self._by_key(catalyst.frame(delta.plan))
                self._template, self._uses = placeholders.named(catalyst.analyzed(made))
        self._stages: list[tuple[str, Java]] = []
        for number, keys in enumerate(derivative.stages):
            named, uses = placeholders.named(keys)
            self._stages.append((placeholders.stage_name(number), named))
            self._uses |= uses

    def _shown(self, plan: Java) -> Java:
        """The operators above the topmost aggregate, over its rows."""
        for node in reversed(self._chain):
            if self._catalyst.kind(node) != "Sort":
                plan = self._catalyst.over(node, [Relation(plan)]).plan
        return plan

    def _groups(self, derivative: Derivative) -> DataFrame | None:
        catalyst, core = self._catalyst, self._core
        by = catalyst.items(core.groupingExpressions())
        keys = derivative.affected(core.child(), by)
        if keys is None:
            return None
        rows = catalyst.among(derivative.rows(core.child(), NEW), by, keys)
        found = catalyst.frame(self._shown(catalyst.over(core, [Relation(rows)]).plan))
        return self._decided(catalyst.frame(keys), found)

    def _decided(self, keys: DataFrame, found: DataFrame) -> DataFrame:
        """For each affected key its row (+1), or that there is none any more (-1)."""
        from pyspark.sql import functions as f

        found = _numbered(found).withColumn(WEIGHT, f.lit(1))
        test: Any = f.lit(True)
        keys = keys.toDF(*[f"k{index}" for index in range(len(self.key))])
        for index, position in enumerate(self.key):
            test = test & f.col(f"k{index}").eqNullSafe(f.col(f"c{position}"))
        joined = keys.join(found, test, "left")
        key = {position: index for index, position in enumerate(self.key)}
        columns = [
            f.col(f"k{key[index]}").alias(f"c{index}") if index in key else f.col(f"c{index}")
            for index in range(len(found.columns) - 1)
        ]
        return joined.select(*columns, f.coalesce(f.col(WEIGHT), f.lit(-1)).alias(WEIGHT))

    def _by_key(self, delta: DataFrame) -> DataFrame:
        """The delta by key: what came is put, what went and did not come is deleted."""
        from pyspark.sql import functions as f

        rows = _numbered(delta)
        names = [name for name in rows.columns if name != WEIGHT]
        key = [f"c{index}" for index in self.key]
        kinds = dict(rows.dtypes)
        values = [f.first(name).alias(name) for name in names if not is_comparable(kinds[name])]
        by = [
            name if is_comparable(kinds[name]) else comparable(f.col(name), kinds[name]).alias(f"by_{name}")
            for name in names
        ]
        net = rows.groupBy(*by).agg(f.sum(WEIGHT).alias(WEIGHT), *values).where(f"{WEIGHT} <> 0")
        row = f.struct(*names)
        last = net.groupBy(*key).agg(f.max_by(row, f.col(WEIGHT)).alias("row"), f.max(WEIGHT).alias(WEIGHT))
        sign = f.when(f.col(WEIGHT) > 0, 1).otherwise(-1).alias(WEIGHT)
        # Without a key there is one row, also of no changes.
        changed = last if key else last.where(f.col(WEIGHT).isNotNull())
        return changed.select(*[f.col(f"row.{name}").alias(name) for name in names], sign)

    # -- batches

    @property
    def tables(self) -> set[str]:
        """The sources that the plan reads."""
        used = self._result_uses
        return {table for table in self.sources if self._placeholders.name(table, NEW) in used}

    @property
    def needs_state(self) -> set[str]:
        """The sources whose state a batch reads."""
        if self.strategy in (REFRESH, INTERVAL):
            return self.tables
        names = self._placeholders.name
        return {table for table in self.sources if {names(table, OLD), names(table, NEW)} & self._uses}

    def used_columns(self, table: str, *, keyed: bool = True) -> list[str]:
        """The columns of a source that the plan refers to, and its key with `keyed`."""
        catalyst, found, leaves = self._catalyst, set[int](), []

        def go(node: Java) -> None:
            found.update(each.exprId().id() for each in catalyst.items(node.references().toSeq()))
            if self._placeholders.source(node) == table:
                leaves.append(node)
            for child in [*catalyst.children(node), *catalyst.items(node.subqueries())]:
                go(child)

        go(self._plan)
        found.update(each.exprId().id() for each in catalyst.output(self._plan))
        names = {each.name() for leaf in leaves for each in catalyst.output(leaf) if each.exprId().id() in found}
        source = self.sources[table]
        more = source.key if keyed else ()
        return [name for name in source.schema.fieldNames() if name in names or name in more]

    def result(self, sources: Mapping[str, DataFrame]) -> DataFrame:
        """The rows of the view over these rows of its sources, in columns c0, c1 ..."""
        for table in self.tables:
            sources[table].createOrReplaceTempView(self._placeholders.name(table, NEW))
        return _numbered(self._catalyst.frame(self._result))

    def filled(self, sources: Mapping[str, DataFrame]) -> DataFrame:
        """The rows to put into an empty view; of an additive one with the texts of their partials. They are not the
        changes since the sources were empty: an outer join has rows of its constant side then, too."""
        from pyspark.sql import functions as f

        rows = self.result(sources).withColumn(WEIGHT, f.lit(1))  # which names the rows of the sources
        return rows if self._filling is None else self.finished(self._catalyst.frame(self._filling))

    def batch(self, sources: Mapping[str, SourceRows]) -> DataFrame | None:
        """The meaning of a batch: for `groups` and `delta` the rows to put (+1) and the keys to delete (-1) in columns
        c0, c1 ...; for `additive` the partials of the delta. None: nothing changes."""
        if self._template is None or all(sources[table].delta is None for table in self.tables):
            return None
        for table in self.sources:
            for side in SIDES:
                name = self._placeholders.name(table, side)
                if name not in self._uses:
                    continue
                frame = getattr(sources[table], side)
                if frame is None:
                    empty = sources[table].new.where("false")
                    frame = empty.selectExpr("*", f"1 AS {WEIGHT}") if side == DELTA else empty
                frame.createOrReplaceTempView(name)
        for name, plan in self._stages:
            self._catalyst.frame(plan).localCheckpoint().createOrReplaceTempView(name)
        return self._catalyst.frame(self._template)

    def finished(self, partials: DataFrame) -> DataFrame:
        """The rows to put and the keys to delete, with the texts of their partials, out of the partials of affected
        groups after a batch."""
        from pyspark.sql import functions as f

        assert self.additive is not None
        groups = self.additive.groups
        partials.createOrReplaceTempView(self._state_name)
        found = self._catalyst.frame(self._finished)
        width = len(found.columns) - len(groups) - 2
        found = found.toDF(*[f"c{index}" for index in range(width)], *groups, PARTIALS, SHOWN)
        key = {position: group for group, position in zip(groups, self.key, strict=True)}
        columns = [f.col(key.get(index, f"c{index}")).alias(f"c{index}") for index in range(width)]
        return found.select(*columns, PARTIALS, f.when(f.col(SHOWN), 1).otherwise(-1).alias(WEIGHT))

    def drop(self) -> None:
        """Forget the temporary views."""
        self._placeholders.drop()

    # -- EXPLAIN

    def _explain(self, node: Java, depth: int) -> None:
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        table = self._placeholders.source(node)
        if table is not None:
            self.explained.append("  " * depth + f"{table}: changes")
            return
        how = "linear"
        if kind == "Join":
            pairs = catalyst.equal_pairs(node)
            how = "bilinear" if catalyst.kind(node.joinType()) in BILINEAR else "affected keys"
            how += f" [{', '.join(f'{a.sql()} = {b.sql()}' for a, b in pairs)}]" if pairs else f" {_ALL_ROWS}"
        elif kind in ("Aggregate", "Window"):
            by = catalyst.items(node.groupingExpressions() if kind == "Aggregate" else node.partitionSpec())
            how = f"affected groups [{', '.join(each.sql() for each in by)}]" if by else _ALL_ROWS
            if node is self._core and self.strategy == ADDITIVE:
                how = f"partial sums by [{', '.join(each.sql() for each in by)}]"
        elif kind in LIMITS:
            how = _ALL_ROWS
        elif not catalyst.children(node):
            how = "constant"
        if _ALL_ROWS in how:
            self.warnings.append(f"{kind} runs over all rows in each batch")
        self.explained.append("  " * depth + f"{kind}: {how}".replace("`", ""))
        for child in catalyst.children(node):
            self._explain(child, depth + 1)

    @property
    def schema(self) -> StructType:
        """The columns of the view, with those that the SELECT does not name."""
        frame = self._catalyst.frame(self._plan)
        return frame.toDF(*self.names).schema


def _numbered(frame: DataFrame) -> DataFrame:
    """The columns by position; a weight keeps its name."""
    return frame.toDF(*[name if name == WEIGHT else f"c{index}" for index, name in enumerate(frame.columns)])


def _distinct(names: list[str], taken: Sequence[str]) -> list[str]:
    """The names, with a number where one would occur twice."""
    found: list[str] = []
    for name in names:
        new, number = name, 2
        while new in found or new in taken:
            new, number = f"{name}{number}", number + 1
        found.append(new)
    return found

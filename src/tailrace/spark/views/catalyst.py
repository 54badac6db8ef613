"""Catalyst through the JVM gateway: logical plans are inspected, and their operators applied to other rows.

Expressions are never translated: they stay Spark's own. A relation is a resolved logical plan; a *weighted* relation
has one more column, the last, which is +1 for a row that came and -1 for one that went. The classes used here are
private to Spark, so this module is tested with each supported version, and other versions are refused by `session`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WEIGHT: Final = "__w"
_CATALYST: Final = "org.apache.spark.sql.catalyst."
_LOGICAL: Final = _CATALYST + "plans.logical."
_EXPRESSIONS: Final = _CATALYST + "expressions."
# Rules that would replace the operators that are looked for. They run when the derivative is executed.
_EXCLUDED: Final = ",".join(
    f"{_CATALYST}optimizer.{rule}"
    for rule in (
        "InferWindowGroupLimit", "LimitPushDown", "LimitPushDownThroughWindow", "PropagateEmptyRelation",
        "ConvertToLocalRelation", "MergeScalarSubqueries", "MergeSubplans", "OptimizeOneRowPlan",
    )
)  # fmt: skip
# What the view's session is set to while a SELECT is planned.
_PLANNING: Final = {
    "spark.sql.optimizer.excludedRules": _EXCLUDED,
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.ansi.enabled": "true",
}

Java: TypeAlias = Any  # an object of the JVM


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows. `createDataFrame` makes its session the active one: of the process in Python, of the thread in the JVM.
    Here both stay as they are."""
    kind = type(spark)
    java = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before, java_before = kind._activeSession, java.getActiveSession()
    try:
        return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
    finally:
        kind._activeSession = before
        if java_before.isDefined():
            java.setActiveSession(java_before.get())
        else:
            java.clearActiveSession()


class Relation(NamedTuple):
    """A logical plan, and the attribute of its weight if it has one."""

    plan: Java
    weight: Java | None = None


class Catalyst:
    """A session's Catalyst."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._jvm: Any = spark._jvm
        assert self._jvm is not None, "the session has a JVM"
        self._session: Java = spark._jsparkSession
        self._classes: dict[str, Java] = {}
        self._none: Java = self._jvm.scala.Option.empty()
        self._hint: Java = self._class(_LOGICAL + "JoinHint").NONE()
        self.true = self._literal(True)

    # -- the gateway

    def _class(self, name: str) -> Java:
        found = self._classes.get(name)
        if found is None:
            found = self._jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._classes[name] = found
        return found

    def _object(self, name: str) -> Java:
        return getattr(self._class(name + "$"), "MODULE$")

    def seq(self, items: Iterable[Java]) -> Java:
        return self._jvm.PythonUtils.toSeq(list(items))

    @staticmethod
    def items(seq: Java) -> list[Java]:
        return [seq.apply(index) for index in range(seq.size())]

    @staticmethod
    def kind(node: Java) -> str:
        """The name of a node's class."""
        name: str = node.getClass().getSimpleName()
        return name.rstrip("$")

    def children(self, node: Java) -> list[Java]:
        return self.items(node.children())

    def output(self, plan: Java) -> list[Java]:
        """The attributes of a plan's rows."""
        return self.items(plan.output())

    def with_children(self, node: Java, children: Sequence[Java]) -> Java:
        return node.withNewChildren(self.seq(children))

    # -- plans

    def analyzed(self, frame: DataFrame) -> Java:
        return frame._jdf.queryExecution().analyzed()

    def optimized(self, sql: str) -> tuple[Java, Java]:
        """The analyzed and the optimized plan of a SELECT."""
        with self.planning():
            execution = self.spark.sql(sql)._jdf.queryExecution()
            return execution.analyzed(), execution.optimizedPlan()

    @contextmanager
    def planning(self) -> Iterator[None]:
        """The settings with which SELECTs are planned."""
        conf = self.spark.conf
        before = {name: conf.get(name, None) for name in _PLANNING}
        for name, value in _PLANNING.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                if old is None:
                    conf.unset(name)
                else:
                    conf.set(name, old)

    def frame(self, plan: Java) -> DataFrame:
        """The rows of a plan."""
        from pyspark.sql import DataFrame

        made = self._class("org.apache.spark.sql.classic.Dataset").ofRows(self._session, plan)
        return DataFrame(made, self.spark)

    def is_volatile(self, analyzed: Java) -> bool:
        """Whether the result depends on anything but the rows: on the time, or on chance."""
        current = self._class(_CATALYST + "trees.TreePattern").CURRENT_LIKE()
        return bool(analyzed.containsPattern(current)) or not analyzed.deterministic()

    def unresolved(self, name: str) -> Java:
        """The relation of this name, which is found when the plan is analyzed."""
        options = self._class("org.apache.spark.sql.util.CaseInsensitiveStringMap").empty()
        return self._make(_CATALYST + "analysis.UnresolvedRelation", self.seq([name]), options, False)

    def unresolved_attribute(self, name: str) -> Java:
        return self._make(_CATALYST + "analysis.UnresolvedAttribute", self.seq([name]))

    def _make(self, name: str, *arguments: Java) -> Java:
        return self._class(name)(*arguments)

    # -- expressions

    def _literal(self, value: Any) -> Java:
        return self._class(_EXPRESSIONS + "Literal").create(value, self._type_of(value))

    def _type_of(self, value: Any) -> Java:
        kind = "BooleanType" if isinstance(value, bool) else "IntegerType" if isinstance(value, int) else "StringType"
        return self._object(f"org.apache.spark.sql.types.{kind}")

    def literal(self, value: int) -> Java:
        return self._literal(value)

    def alias(self, expression: Java, name: str, expr_id: Java | None = None) -> Java:
        ident = expr_id or self._class(_EXPRESSIONS + "NamedExpression").newExprId()
        return self._make(_EXPRESSIONS + "Alias", expression, name, ident, self.seq([]), self._none, self.seq([]))

    def equal(self, left: Java, right: Java) -> Java:
        """Whether two values are equal; NULL equals NULL."""
        return self._make(_EXPRESSIONS + "EqualNullSafe", left, right)

    def when(self, test: Java, value: Java) -> Java:
        """The value where a test is true, else NULL; it is not evaluated there."""
        kind = value.dataType()
        return self._make(_EXPRESSIONS + "If", test, value, self._class(_EXPRESSIONS + "Literal").create(None, kind))

    def all_of(self, tests: Sequence[Java]) -> Java:
        found = tests[0]
        for each in tests[1:]:
            found = self._make(_EXPRESSIONS + "And", found, each)
        return found

    def ascending(self, expression: Java) -> Java:
        direction = self._object(_EXPRESSIONS + "Ascending")
        return self._object(_EXPRESSIONS + "SortOrder").apply(expression, direction, self.seq([]))

    def conjuncts(self, expression: Java) -> list[Java]:
        if self.kind(expression) == "And":
            return self.conjuncts(expression.left()) + self.conjuncts(expression.right())
        return [expression]

    def replaced(self, expression: Java, replace: Any) -> Java:
        """The expression with parts replaced: `replace(part)` is a new part, or None to look into it."""
        new = replace(expression)
        if new is not None:
            return new
        children = self.children(expression)
        if not children:
            return expression
        changed = [self.replaced(child, replace) for child in children]
        if all(new is old for new, old in zip(changed, children, strict=True)):
            return expression
        return self.with_children(expression, changed)

    # -- operators

    def project(self, named: Iterable[Java], child: Java) -> Java:
        return self._make(_LOGICAL + "Project", self.seq(named), child)

    def distinct(self, child: Java) -> Java:
        return self._make(_LOGICAL + "Distinct", child)

    def filter(self, condition: Java, child: Java) -> Java:
        return self._make(_LOGICAL + "Filter", condition, child)

    def aggregate(self, groups: Sequence[Java], named: Sequence[Java], child: Java) -> Java:
        return self._make(_LOGICAL + "Aggregate", self.seq(groups), self.seq(named), child, self._none)

    def join(self, left: Java, right: Java, how: str, condition: Java | None) -> Java:
        test = self._none if condition is None else self._jvm.scala.Option.apply(condition)
        kind = self._object(f"{_CATALYST}plans.{how}")
        return self._make(_LOGICAL + "Join", left, right, kind, test, self._hint)

    def union(self, parts: Sequence[Relation]) -> Relation:
        """UNION ALL of relations with the same columns. All have a weight, or none."""
        if len(parts) == 1:
            return parts[0]
        fresh = []
        for part in parts:
            named = [self.alias(each, each.name()) for each in self.output(part.plan)]
            fresh.append(self.project(named, part.plan))
        made = self._make(_LOGICAL + "Union", self.seq(fresh), False, False)
        named = [self.alias(each, each.name()) for each in self.output(made)]
        made = self.project(named, made)
        return Relation(made, named[-1].toAttribute() if parts[0].weight is not None else None)

    def weighted(self, plan: Java, weight: int) -> Relation:
        """The plan's rows, all with one weight."""
        named = self.alias(self.literal(weight), WEIGHT)
        return Relation(self.project([*self.output(plan), named], plan), named.toAttribute())

    def bound(self, relation: Relation, expected: Sequence[Java]) -> Relation:
        """The relation under the attributes that an operator expects of its child, by position; its weight beside
        them."""
        got = self.output(relation.plan)
        if all(a.exprId().equals(e.exprId()) for a, e in zip(got, expected, strict=False)):
            return relation
        named = [self.alias(a, e.name(), e.exprId()) for a, e in zip(got, expected, strict=False)]
        if relation.weight is None:
            return Relation(self.project(named, relation.plan))
        weight = self.alias(relation.weight, WEIGHT)
        return Relation(self.project([*named, weight], relation.plan), weight.toAttribute())

    def over(self, node: Java, relations: Sequence[Relation]) -> Relation:
        """The operator over other rows than its children's. If one relation has weights, its rows keep them."""
        pairs = zip(relations, self.children(node), strict=True)
        bound = [self.bound(relation, self.output(child)) for relation, child in pairs]
        weight = next((each.weight for each in bound if each.weight is not None), None)
        plans = [each.plan for each in bound]
        if weight is None:
            return Relation(self.with_children(node, plans))
        kind = self.kind(node)
        if kind == "Project":
            return Relation(self.project([*self.items(node.projectList()), weight], plans[0]), weight)
        if kind == "Expand":
            lists = [self.seq([*self.items(each), weight]) for each in self.items(node.projections())]
            fresh = weight.newInstance()
            out = self.seq([*self.output(node), fresh])
            return Relation(self._make(_LOGICAL + "Expand", self.seq(lists), out, plans[0]), fresh)
        made = self.with_children(node, plans)
        return Relation(self.project([*self.output(node), weight], made), weight)

    def keys(self, relation: Relation, expected: Sequence[Java], expressions: Sequence[Java]) -> Java:
        """The values of expressions over a relation's rows, as columns k0, k1 ..."""
        plan = self.bound(relation, expected).plan
        return self.project([self.alias(each, f"k{i}") for i, each in enumerate(expressions)], plan)

    def among(self, plan: Java, expressions: Sequence[Java], keys: Java) -> Java:
        """The plan's rows for which the values of expressions are among the keys."""
        fresh = [self.alias(each, each.name()) for each in self.output(keys)]
        right = self.project(fresh, keys)
        pairs = zip(expressions, fresh, strict=True)
        return self.join(plan, right, "LeftSemi", self.all_of([self.equal(a, b.toAttribute()) for a, b in pairs]))

    def equal_pairs(self, join: Java) -> list[tuple[Java, Java]]:
        """The expressions of the left and the right side of a join that must be equal."""
        pairs: list[tuple[Java, Java]] = []
        if join.condition().isEmpty():
            return pairs
        left, right = join.left().outputSet(), join.right().outputSet()
        for each in self.conjuncts(join.condition().get()):
            if self.kind(each) not in ("EqualTo", "EqualNullSafe"):
                continue
            a, b = each.left(), each.right()
            if a.references().isEmpty() or b.references().isEmpty():
                continue
            if a.references().subsetOf(left) and b.references().subsetOf(right):
                pairs.append((a, b))
            elif b.references().subsetOf(left) and a.references().subsetOf(right):
                pairs.append((b, a))
        return pairs

"""The derivative of a logical plan: how its result changes when its sources do.

Theory of operation
-------------------
Rows carry a weight: +1 came, -1 went. The delta of an operator's output follows from the deltas of its inputs:

- source: the old images with -1, the new ones with +1;
- project, filter, explode, expand (ROLLUP, CUBE), UNION ALL: the operator itself, over the weighted rows;
- inner join: dA x B_old + A_new x dB;
- other joins, aggregate, distinct, window: the keys in the delta (join keys, groups, partitions) are *affected*; the
  operator runs over the rows with these keys, as they were (-1) and as they are (+1);
- limit, joins without an equality, aggregates and windows without keys: the same over all rows.

The derivative is a plan over placeholders for the old state, the new state and the delta of each source
(`placeholders`). It is built once; a batch fills in the rows.

The affected keys of an operator are needed on both sides. Where they come from the delta of another such operator, they
are a *stage* of their own, which is computed first, or else nested operators would multiply the plan.
"""

from __future__ import annotations

from typing import Final

from tailrace.spark.views.catalyst import Catalyst, Java, Relation
from tailrace.spark.views.placeholders import DELTA, NEW, OLD, SourcePlaceholders

LINEAR: Final = frozenset(("Project", "Filter", "Generate", "Expand"))
CONSTANT: Final = frozenset(("LocalRelation", "OneRowRelation", "Range"))
UNCHANGED: Final = frozenset(("Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions"))
LIMITS: Final = frozenset(("GlobalLimit", "LocalLimit", "Offset"))
BILINEAR: Final = frozenset(("Inner", "Cross"))
KEYED: Final = frozenset(
    ("LeftOuter", "RightOuter", "FullOuter", "LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle")
)
SUPPORTED: Final = LINEAR | CONSTANT | UNCHANGED | LIMITS | {"Union", "Join", "Aggregate", "Window", "LogicalRDD"}


class Derivative:
    """Differentiates plans over the placeholders of a view's sources."""

    def __init__(self, catalyst: Catalyst, placeholders: SourcePlaceholders) -> None:
        self._catalyst = catalyst
        self._placeholders = placeholders
        self.stages: list[Java] = []  # affected keys, in the order in which they are computed

    def rows(self, node: Java, side: str) -> Java:
        """The node's rows, over the sources as they were (OLD) or as they are (NEW)."""
        catalyst = self._catalyst
        if self._placeholders.source(node) is not None:
            return catalyst.bound(Relation(self._placeholders.plan(node, side)), catalyst.output(node)).plan
        children = catalyst.children(node)
        if not children:
            return node
        return catalyst.with_children(node, [self.rows(child, side) for child in children])

    def delta(self, node: Java) -> Relation | None:
        """The rows of the node's output that came and went; None if it never changes."""
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        if self._placeholders.source(node) is not None:
            return self._placeholders.delta(node)
        if kind in CONSTANT:
            return None
        if kind in LIMITS:
            children = catalyst.children(node)
            return self._twice(node, [(child, [], None) for child in children])
        if kind == "Union":
            return self._union(node)
        if kind == "Join":
            return self._join(node)
        (child,) = catalyst.children(node)
        if kind in ("Aggregate", "Window"):
            by = catalyst.items(node.groupingExpressions() if kind == "Aggregate" else node.partitionSpec())
            if not by:
                return self._twice(node, [(child, [], None)])
            keys = self.affected(child, by)
            return None if keys is None else self._twice(node, [(child, by, keys)])
        delta = self.delta(child)
        if delta is None or kind in UNCHANGED:
            return delta
        assert kind in LINEAR, f"{kind} has no derivative"
        return catalyst.over(node, [delta])

    def affected(self, child: Java, by: list[Java], shared: bool = True) -> Java | None:
        """The keys in a child's delta. With `shared`, they are used more than once."""
        catalyst = self._catalyst
        before = len(self.stages)
        source, expressions = self._narrowed(child, by)
        nested = self._is_nested(source)
        delta = self.delta(source)
        if delta is None:
            return None
        keys = catalyst.distinct(catalyst.keys(delta, catalyst.output(source), expressions))
        return self._stage(keys) if shared and (nested or len(self.stages) > before) else keys

    def _narrowed(self, child: Java, by: list[Java]) -> tuple[Java, list[Java]]:
        """Where an aggregate is grouped by groups of the aggregate below it, its affected groups are found in the rows
        below both: there is no need to know how the one below changes."""
        catalyst = self._catalyst
        while catalyst.kind(child) == "Aggregate":
            groups = catalyst.items(child.groupingExpressions())
            named = {each.exprId().id(): each for each in catalyst.items(child.aggregateExpressions())}
            found = []
            for each in by:
                one = named.get(each.exprId().id()) if catalyst.kind(each) == "AttributeReference" else None
                inner = one.child() if one is not None and catalyst.kind(one) == "Alias" else one
                if inner is None or not any(inner.semanticEquals(group) for group in groups):
                    return child, by
                found.append(inner)
            child, by = child.child(), found
        return child, by

    def _is_nested(self, node: Java) -> bool:
        """Whether the node's delta runs an operator over affected keys."""
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        if kind in ("Aggregate", "Window") or kind in LIMITS:
            return True
        if kind == "Join" and catalyst.kind(node.joinType()) not in BILINEAR:
            return True
        return any(self._is_nested(child) for child in catalyst.children(node))

    def _stage(self, keys: Java) -> Java:
        self.stages.append(keys)
        return self._placeholders.stage(len(self.stages) - 1, keys)

    def _twice(self, node: Java, inputs: list[tuple[Java, list[Java], Java | None]]) -> Relation:
        """The node over its inputs' rows with these keys, as they were and as they are."""
        catalyst, sides = self._catalyst, []
        for side, weight in ((OLD, -1), (NEW, 1)):
            relations = []
            for child, by, keys in inputs:
                plan = self.rows(child, side)
                relations.append(Relation(plan if keys is None else catalyst.among(plan, by, keys)))
            made = catalyst.over(node, relations)
            sides.append(catalyst.weighted(made.plan, weight))
        return catalyst.union(sides)

    def _union(self, node: Java) -> Relation | None:
        deltas = [self.delta(child) for child in self._catalyst.children(node)]
        there = [each for each in deltas if each is not None]
        return self._catalyst.union(there) if there else None

    def _join(self, node: Java) -> Relation | None:
        catalyst, left, right = self._catalyst, node.left(), node.right()
        if catalyst.kind(node.joinType()) in BILINEAR:
            parts = []
            if (came := self.delta(left)) is not None:
                parts.append(catalyst.over(node, [came, Relation(self.rows(right, OLD))]))
            if (came := self.delta(right)) is not None:
                parts.append(catalyst.over(node, [Relation(self.rows(left, NEW)), came]))
            return catalyst.union(parts) if parts else None
        pairs = catalyst.equal_pairs(node)
        if not pairs:
            return self._twice(node, [(left, [], None), (right, [], None)])
        ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
        before = len(self.stages)
        found = [self.affected(left, ours, shared=False), self.affected(right, theirs, shared=False)]
        there = [Relation(each) for each in found if each is not None]
        if not there:
            return None
        keys = catalyst.distinct(catalyst.union(there).plan)
        if len(self.stages) > before or self._is_nested(left) or self._is_nested(right):
            keys = self._stage(keys)
        return self._twice(node, [(left, ours, keys), (right, theirs, keys)])


__all__ = ["BILINEAR", "DELTA", "KEYED", "LIMITS", "NEW", "OLD", "SUPPORTED", "Derivative"]

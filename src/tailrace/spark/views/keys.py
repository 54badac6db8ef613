"""The key of a view, found in its plan: the groups of an aggregate, or the keys of its sources, through joins.

Key columns that the SELECT does not name are added to the plan, behind the columns that it names. The rows of a UNION
ALL have the number of their branch, and the branch's key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from tailrace.spark.views.catalyst import Catalyst, Java

_THROUGH: Final = frozenset(("Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Window", "RebalancePartitions"))
_BOTH: Final = frozenset(("Inner", "Cross", "LeftOuter", "RightOuter", "FullOuter"))
_LEFT: Final = frozenset(("LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle"))

Keyed: TypeAlias = tuple[Java, list[Java]]  # a plan, and the attributes of its key


class KeyFinder:
    """Finds keys of plans."""

    def __init__(
        self, catalyst: Catalyst, source: Callable[[Java], str | None], keys: Mapping[str, Sequence[str]]
    ) -> None:
        self._catalyst, self._source, self._keys = catalyst, source, keys

    def keyed(self, node: Java) -> Keyed | None:
        """The node with its key in its output, and the key's attributes; None if it has none."""
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        table = self._source(node)
        if table is not None:
            by_name = {each.name(): each for each in catalyst.output(node)}
            return node, [by_name[name] for name in self._keys[table]]
        if kind in _THROUGH:
            found = self.keyed(catalyst.children(node)[0])
            return None if found is None else (catalyst.with_children(node, [found[0]]), found[1])
        if kind == "OneRowRelation":
            return node, []
        match kind:
            case "Project":
                return self._project(node)
            case "Aggregate":
                return self._aggregate(node)
            case "Join":
                return self._join(node)
            case "Union":
                return self._union(node)
        return None

    def _project(self, node: Java) -> Keyed | None:
        catalyst = self._catalyst
        found = self.keyed(catalyst.children(node)[0])
        if found is None:
            return None
        named, key = catalyst.items(node.projectList()), []
        for attribute in found[1]:
            same = next((each for each in named if self._is(each, attribute)), None)
            if same is None:
                named.append(attribute)
                same = attribute
            key.append(same.toAttribute())
        return catalyst.project(named, found[0]), key

    def _is(self, named: Java, attribute: Java) -> bool:
        if named.exprId().equals(attribute.exprId()):
            return True
        inner = named.child() if self._catalyst.kind(named) == "Alias" else None
        return (
            inner is not None
            and self._catalyst.kind(inner) == "AttributeReference"
            and inner.exprId().equals(attribute.exprId())
        )

    def _aggregate(self, node: Java) -> Keyed:
        catalyst = self._catalyst
        named, key = catalyst.items(node.aggregateExpressions()), []
        for number, group in enumerate(catalyst.items(node.groupingExpressions())):
            same = next(
                (
                    each
                    for each in named
                    if each.semanticEquals(group)
                    or (catalyst.kind(each) == "Alias" and each.child().semanticEquals(group))
                ),
                None,
            )
            if same is None:
                same = group if catalyst.kind(group) == "AttributeReference" else catalyst.alias(group, f"k{number}")
                named.append(same)
            key.append(same.toAttribute())
        return catalyst.aggregate(catalyst.items(node.groupingExpressions()), named, node.child()), key

    def _join(self, node: Java) -> Keyed | None:
        catalyst, how = self._catalyst, self._catalyst.kind(node.joinType())
        left = self.keyed(node.left())
        if left is None:
            return None
        if how in _LEFT:
            return catalyst.with_children(node, [left[0], node.right()]), left[1]
        right = self.keyed(node.right())
        if right is None or how not in _BOTH:
            return None
        key = left[1] + right[1]
        if how in ("Inner", "LeftOuter") and self._is_found_by(node, right[1], left_side=False):
            key = left[1]  # a row of the left side has at most one of the right
        elif how in ("Inner", "RightOuter") and self._is_found_by(node, left[1], left_side=True):
            key = right[1]
        made = catalyst.with_children(node, [left[0], right[0]])
        by_id = {each.exprId().id(): each for each in catalyst.output(made)}
        return made, [by_id[each.exprId().id()] for each in key]

    def _is_found_by(self, node: Java, key: Sequence[Java], *, left_side: bool) -> bool:
        """Whether the join's condition sets the whole key of that side."""
        pairs = self._catalyst.equal_pairs(node)
        ours = [a if left_side else b for a, b in pairs]
        kind = self._catalyst.kind
        return all(
            any(kind(each) == "AttributeReference" and each.exprId().equals(part.exprId()) for each in ours)
            for part in key
        )

    def _union(self, node: Java) -> Keyed | None:
        catalyst = self._catalyst
        found = [self.keyed(child) for child in catalyst.children(node)]
        there = [each for each in found if each is not None]
        kinds = {tuple(part.dataType().simpleString() for part in key) for _, key in there}
        if len(there) < len(found) or len(kinds) > 1:
            return None
        branches = []
        for number, (child, (plan, key)) in enumerate(zip(catalyst.children(node), there, strict=True)):
            columns = [catalyst.alias(each, each.name()) for each in catalyst.output(child)]
            branch = catalyst.alias(catalyst.literal(number), "branch")
            parts = [catalyst.alias(part, f"k{i}") for i, part in enumerate(key)]
            branches.append(catalyst.project([*columns, branch, *parts], plan))
        made = catalyst.with_children(node, branches)
        # The union's own attributes are those that the operators above it name.
        width = len(catalyst.output(node))
        named = [
            catalyst.alias(new, old.name(), old.exprId())
            for new, old in zip(catalyst.output(made), catalyst.output(node), strict=False)
        ]
        hidden = [catalyst.alias(each, each.name()) for each in catalyst.output(made)[width:]]
        return catalyst.project([*named, *hidden], made), [each.toAttribute() for each in hidden]

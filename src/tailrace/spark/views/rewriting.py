"""Rewriting the plan of a SELECT into one that can be differentiated, with the same result.

- A scalar subquery that Catalyst left in an expression becomes a join with its one row.
- The columns that EXCEPT ALL and INTERSECT ALL generate get ids of their own.
- The row numbers that Catalyst makes of ORDER BY ... LIMIT in a correlated subquery get that order.
- Rows that tie in ORDER BY are ordered by their key, for row numbers and LIMIT: so the old state of the sources gives
  again exactly the rows that were stored.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.spark.views.catalyst import Catalyst, Java
from tailrace.spark.views.keys import KeyFinder

_TOP: Final = frozenset(("GlobalLimit", "LocalLimit", "Offset"))
# Spark takes the order of the operator for that of a rank where it drops rows early: see InferWindowGroupLimit.
_RANKS: Final = frozenset(("Rank", "DenseRank", "PercentRank"))


class UnsupportedPlan(Exception):
    """The plan has an operator without a derivative; the message names it."""


class SubqueryRewriter:
    """Makes joins of scalar subqueries."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst

    def rewritten(self, node: Java) -> Java:
        catalyst = self._catalyst
        children = [self.rewritten(child) for child in catalyst.children(node)]
        here = catalyst.with_children(node, children) if children else node
        if not node.subqueries().size():
            return here
        found: list[tuple[Java, Java]] = []  # subqueries and their columns
        joined = [children[0]]

        def replace(expression: Java) -> Java | None:
            kind = catalyst.kind(expression)
            if kind == "ScalarSubquery":
                for same, column in found:
                    if same.exprId().equals(expression.exprId()) or same.semanticEquals(expression):
                        return column
                if not expression.outerAttrs().isEmpty():
                    raise UnsupportedPlan("a correlated subquery")
                joined[0], column = self._join(joined[0], expression.plan())
                found.append((expression, column))
                return column
            if kind.endswith("Subquery") or kind in ("Exists", "ListQuery"):
                raise UnsupportedPlan(f"a subquery ({kind})")
            return None

        match catalyst.kind(node):
            case "Filter":
                condition = catalyst.replaced(node.condition(), replace)
                made = catalyst.filter(condition, joined[0])
            case "Project":
                named = [catalyst.replaced(each, replace) for each in catalyst.items(node.projectList())]
                made = catalyst.project(named, joined[0])
            case "Aggregate":
                groups = [catalyst.replaced(each, replace) for each in catalyst.items(node.groupingExpressions())]
                named = [catalyst.replaced(each, replace) for each in catalyst.items(node.aggregateExpressions())]
                made = catalyst.aggregate(groups, named, joined[0])
            case kind:
                raise UnsupportedPlan(f"a subquery in {kind}")
        return catalyst.project(catalyst.output(node), made)

    def _join(self, left: Java, subquery: Java) -> tuple[Java, Java]:
        """The rows of `left`, each with the subquery's one value."""
        catalyst = self._catalyst
        right = self.rewritten(subquery)
        value = catalyst.alias(catalyst.output(right)[0], "scalar")
        how = "Inner" if self._is_one_row(right) else "LeftSingle"
        made = catalyst.join(left, catalyst.project([value], right), how, None)
        return made, catalyst.output(made)[-1]

    def _is_one_row(self, node: Java) -> bool:
        kind = self._catalyst.kind(node)
        if kind == "Project":
            return self._is_one_row(node.child())
        return kind == "Aggregate" and node.groupingExpressions().isEmpty()


class GenerateRewriter:
    """Gives the columns that an operator generates ids of their own. Those of EXCEPT ALL and INTERSECT ALL have the ids
    of the columns below: if these are constants, as they are in some derivatives, Spark puts the constants in place of
    the columns, and then finds no columns."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst

    def rewritten(self, node: Java) -> Java:
        catalyst, children = self._catalyst, self._catalyst.children(node)
        if not children:
            return node
        made = catalyst.with_children(node, [self.rewritten(child) for child in children])
        if catalyst.kind(node) != "Generate":
            return made
        generated = catalyst.items(node.generatorOutput())
        below = {each.exprId().id() for each in catalyst.output(node.child())}
        if not any(each.exprId().id() in below for each in generated):
            return made
        fresh = [each.newInstance() for each in generated]
        required = catalyst.output(node)[: -len(generated)]
        named = [catalyst.alias(new, old.name(), old.exprId()) for new, old in zip(fresh, generated, strict=True)]
        return catalyst.project([*required, *named], _copied(made, {4: catalyst.seq(fresh)}))


class TieBreaker:
    """Adds keys to the order of rows where ties would make the result ambiguous."""

    def __init__(self, catalyst: Catalyst, finder: KeyFinder) -> None:
        self._catalyst, self._finder = catalyst, finder

    def ordered(self, node: Java, limited: bool = False) -> Java:
        catalyst, kind = self._catalyst, self._catalyst.kind(node)
        below = (limited and kind in ("Project", "Filter")) or kind in _TOP
        children = catalyst.children(node)
        if not children:
            return node
        node = catalyst.with_children(node, [self.ordered(child, below) for child in children])
        if kind in _TOP and not self._is_ordered(node):
            raise UnsupportedPlan("LIMIT without ORDER BY, which takes any rows")
        if kind == "Sort" and limited:
            found = self._finder.keyed(node.child())
            if found is None:
                raise UnsupportedPlan("LIMIT over rows without a key, which may tie")
            order = catalyst.seq([*catalyst.items(node.order()), *map(catalyst.ascending, found[1])])
            made = _copied(node, {0: order, 2: found[0]})
            return catalyst.project(catalyst.output(node), made)
        return self._window(node) if kind == "Window" else node

    def _is_ordered(self, node: Java) -> bool:
        """Whether the rows of a limit are determined: they are sorted, or all the same."""
        catalyst, child = self._catalyst, self._catalyst.children(node)[0]
        kind = catalyst.kind(child)
        if kind == "Sort":
            return True
        if kind == "Project":
            named = catalyst.items(child.projectList())
            if all(catalyst.kind(each) == "Alias" and catalyst.kind(each.child()) == "Literal" for each in named):
                return True
        return kind in ("Project", "Filter", *_TOP) and self._is_ordered(child)

    def _window(self, node: Java) -> Java:
        catalyst, output = self._catalyst, self._catalyst.output(node)
        if not node.orderSpec().size():
            node = self._numbered_in_order(node)
        if not node.orderSpec().size():
            return node
        found = self._finder.keyed(node.child())
        by_peers: list[Java] = []  # the same for all rows that tie
        by_row: list[Java] = []
        for named in catalyst.items(node.windowExpressions()):
            frame = named.child().windowSpec().frameSpecification()
            same = (
                catalyst.kind(frame.frameType()) == "RangeFrame"
                or catalyst.kind(named.child().windowFunction()) in _RANKS
            )
            (by_peers if same else by_row).append(named)
        if not by_row:
            return node
        if found is None:
            raise UnsupportedPlan("a window function over rows without a key, which may tie")
        below = found[0]
        if by_peers:  # rows that tie are those with the same values in ORDER BY alone
            below = _copied(node, {0: catalyst.seq(by_peers), 3: below})
        order = catalyst.seq([*catalyst.items(node.orderSpec()), *map(catalyst.ascending, found[1])])
        made = _copied(node, {0: catalyst.seq(by_row), 2: order, 3: below})
        return catalyst.project(output, made)

    def _numbered_in_order(self, node: Java) -> Java:
        """ORDER BY ... LIMIT in a correlated subquery is a row number over sorted rows: a window without an order of
        its own, which Spark runs and does not analyze again. It gets the order of the sort below it. Without one, LIMIT
        takes any rows: those of a partition are equal in its expressions, and then ordered by their key."""
        catalyst, above = self._catalyst, []
        below = node.child()
        while catalyst.kind(below) in ("Project", "Filter"):
            above.append(below)
            below = below.child()
        if not any("row_number()" in each.sql().lower() for each in catalyst.items(node.windowExpressions())):
            return node
        if catalyst.kind(below) == "Sort":
            ordered, below = catalyst.items(below.order()), below.child()
        else:
            ordered, above, below = [*map(catalyst.ascending, catalyst.items(node.partitionSpec()))], [], node.child()
        needed = [each for part in ordered for each in catalyst.items(part.references().toSeq())]
        for each in reversed(above):
            if catalyst.kind(each) == "Filter":
                below = catalyst.with_children(each, [below])
                continue
            named = catalyst.items(each.projectList())
            there = {one.exprId().id() for one in named}
            for attribute in needed:
                if attribute.exprId().id() not in there:
                    there.add(attribute.exprId().id())
                    named.append(attribute)
            below = catalyst.project(named, below)
        order = catalyst.seq(ordered)

        def replace(expression: Java) -> Java | None:
            return _copied(expression, {1: order}) if catalyst.kind(expression) == "WindowSpecDefinition" else None

        named = [catalyst.replaced(each, replace) for each in catalyst.items(node.windowExpressions())]
        return _copied(node, {0: catalyst.seq(named), 2: order, 3: below})


def _copied(node: Java, changed: dict[int, Any]) -> Java:
    """The node with some of its constructor's arguments replaced."""
    return node.copy(*[changed.get(index, node.productElement(index)) for index in range(node.productArity())])

"""Conditions on items, compiled to closures.

A comparison of values of different types is false, and so is one with an attribute that the item lacks; only <> is
true then. An item that does not exist is like one without attributes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from tailrace import limits
from tailrace.tables import syntax, value
from tailrace.tables.binding import Placeholders, Read, Source, Steps, reader, written
from tailrace.tables.syntax import InvalidExpression, wrong_type
from tailrace.tables.value import Item, Value

Test: TypeAlias = Callable[[Item], bool]

TYPES: Final = ("S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL")
ORDERED: Final = frozenset({"S", "N", "B"})
_SCALAR: Final = frozenset({"S", "N", "B", "NULL", "BOOL"})  # their values are equal exactly if the dicts are
_SIZED: Final = frozenset({"S", "B", "SS", "NS", "BS", "L", "M"})
_SETS: Final = {"SS": "S", "NS": "N", "BS": "B"}
_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ORDERED_OPERATORS: Final = frozenset({*_ORDERS, "BETWEEN"})
_ANY_TYPE: Final = "{NS,SS,L,BS,N,M,B,BOOL,NULL,S}"
_TYPE_NAMES: Final = "{B,NULL,SS,BOOL,L,BS,N,NS,S,M}"
_NOTHING: Final[Item] = {}


class ItemCondition:
    """A test of an item. `names` are the top-level attributes that it reads, `nested` those whose inside it reads;
    `source` is what it was compiled from (`sources.py`), if that is known."""

    __slots__ = ("_test", "names", "nested", "source")

    def __init__(self, test: Test, names: frozenset[str], nested: frozenset[str] = frozenset()) -> None:
        self._test = test
        self.names = names
        self.nested = nested
        self.source: Source | None = None

    def test(self, item: Item | None) -> bool:
        """Whether the condition holds; None is an item that does not exist."""
        return self._test(_NOTHING if item is None else item)

    def paths(self) -> frozenset[str]:
        """The names of the top-level attributes that the condition reads."""
        return self.names


# -- tests, which the legacy parameters share


def equals(read: Read, expected: Value) -> Test:
    """Whether the attribute is equal to this value."""
    if kind_of(expected) in _SCALAR:
        return lambda item: read(item) == expected

    def test(item: Item) -> bool:
        found = read(item)
        return found is not None and value.equal(found, expected)

    return test


def differs(read: Read, expected: Value) -> Test:
    """Whether the attribute has another value, or is missing."""
    same = equals(read, expected)
    return lambda item: not same(item)


def ordered(op: str, read: Read, bound: Value) -> Test:
    """Whether the attribute is <, <=, > or >= a value of its type."""
    holds = _ORDERS[op]

    def test(item: Item) -> bool:
        found = read(item)
        if found is None:
            return False
        compared = value.compare(found, bound)
        return compared is not None and holds(compared, 0)

    return test


def between(read: Read, low: Value, high: Value) -> Test:
    """Whether the attribute has the type of these bounds and is within them."""

    def test(item: Item) -> bool:
        found = read(item)
        return found is not None and _between(found, low, high)

    return test


def _between(found: Value, low: Value, high: Value) -> bool:
    above = value.compare(found, low)
    if above is None or above < 0:
        return False
    below = value.compare(found, high)
    return below is not None and below <= 0


def one_of(read: Read, expected: Sequence[Value]) -> Test:
    """Whether the attribute is one of these values."""
    if all(kind_of(each) in _SCALAR for each in expected):
        return lambda item: read(item) in expected

    def test(item: Item) -> bool:
        found = read(item)
        return found is not None and any(value.equal(found, each) for each in expected)

    return test


def begins(found: Value, prefix: Value) -> bool:
    """Whether a string or binary begins with another."""
    for kind in ("S", "B"):
        text, start = found.get(kind), prefix.get(kind)
        if text is not None and start is not None:
            return bool(text.startswith(start))
    return False


def contains(found: Value, part: Value) -> bool:
    """A substring of a text, a member of a set, an element of a list."""
    kind, content = next(iter(found.items()))
    part_kind, wanted = next(iter(part.items()))
    if kind == "L":
        return any(value.equal(element, part) for element in content)
    if kind in ("S", "B"):
        return bool(part_kind == kind and wanted in content)
    return _SETS.get(kind) == part_kind and wanted in content


def every(tests: Sequence[Test]) -> Test:
    """Whether all of these hold."""
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:  # the deepest nesting is of this form, and then needs one frame per level
        one, two = tests
        return lambda item: one(item) and two(item)
    return lambda item: all(test(item) for test in tests)


def either(tests: Sequence[Test]) -> Test:
    """Whether one of these holds."""
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        one, two = tests
        return lambda item: one(item) or two(item)
    return lambda item: any(test(item) for test in tests)


def negated(test: Test) -> Test:
    """Whether this does not hold."""
    return lambda item: not test(item)


def kind_of(of: Value) -> str:
    """The type of a value: S, N, ..."""
    for kind in of:
        return kind
    raise AssertionError("a value has a type")


# -- binding


class Size:
    """size(operand): a number, if the operand exists and has a size."""

    __slots__ = ("operand",)

    def __init__(self, operand: Bound) -> None:
        self.operand = operand


Bound: TypeAlias = Steps | Value | Size


class ConditionBinder:
    """Fills in a condition's placeholders, checks its operands and compiles it; each leaf's errors in their order."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._names: set[str] = set()
        self._nested: set[str] = set()

    def condition(self, node: syntax.Node) -> ItemCondition:
        """The condition of this tree."""
        test = self._node(node)
        return ItemCondition(test, frozenset(self._names), frozenset(self._nested))

    def leaves(self, node: syntax.Node) -> list[list[Bound]]:
        """The operands of the comparisons and functions that the condition is made of, checked, in their order."""
        found: list[list[Bound]] = []
        todo = [node]
        while todo:
            each = todo.pop()
            if isinstance(each, syntax.Compare):
                found.append(self._compared(each))
            elif isinstance(each, syntax.Call):
                found.append(self._called(each))
            elif isinstance(each, syntax.Not):
                todo.append(each.node)
            else:
                todo.extend(reversed(each.nodes))
        return found

    def _operands(self, args: Sequence[syntax.Operand]) -> list[Bound]:
        bound = []
        for arg in args:
            bound.append(self._operand(arg))
        return bound

    def _node(self, node: syntax.Node) -> Test:
        if isinstance(node, syntax.Compare):
            return _compare(node.op, self._compared(node))
        if isinstance(node, syntax.Call):
            return _call(node.name, self._called(node))
        if isinstance(node, syntax.Not):
            return negated(self._node(node.node))
        tests = []
        for part in node.nodes:
            tests.append(self._node(part))
        return every(tests) if isinstance(node, syntax.Every) else either(tests)

    def _operand(self, arg: syntax.Operand) -> Bound:
        if isinstance(arg, syntax.ValuePlaceholder):
            return self._placeholders.value(arg.name)
        if isinstance(arg, syntax.DocumentPath):
            steps = self._placeholders.path(arg)
            head = str(steps[0])
            self._names.add(head)
            if len(steps) > 1:
                self._nested.add(head)
            return steps
        inner = self._operands(arg.args)
        check_arity(arg)
        kind = static_kind(inner[0])
        if kind is not None and kind not in _SIZED:
            raise wrong_type(arg.name, kind)
        return Size(inner[0])

    def _compared(self, node: syntax.Compare) -> list[Bound]:
        op = node.op
        args = self._operands(node.args)
        if op == "IN" and len(args) - 1 > limits.IN_OPERANDS_MAX:
            raise InvalidExpression(
                f"The IN operator is provided with too many operands; number of operands: {len(args) - 1}"
            )
        check_distinct(op, args)
        if op in _ORDERED_OPERATORS:
            for arg in args:
                kind = static_kind(arg)
                if kind is not None and kind not in ORDERED:
                    raise wrong_type(op, kind)
            if op == "BETWEEN":
                _check_bounds(args[1], args[2])
        return args

    def _called(self, node: syntax.Call) -> list[Bound]:
        name = node.name
        args = self._operands(node.args)
        check_arity(node)
        check_distinct(name, args)
        if name in ("attribute_exists", "attribute_not_exists"):
            if not isinstance(args[0], tuple):
                raise InvalidExpression(f"Operator or function requires a document path; operator or function: {name}")
        elif name == "attribute_type":
            _check_type_name(args[1])
        elif name == "begins_with":
            for arg in args:
                kind = static_kind(arg)
                if kind is not None and kind not in ("S", "B"):
                    raise wrong_type(name, kind)
        return args


def check_arity(call: syntax.Call) -> None:
    """Raise if a function has too few or too many operands."""
    if len(call.args) != syntax.ARITY[call.name]:
        raise InvalidExpression(
            "Incorrect number of operands for operator or function; "
            f"operator or function: {call.name}, number of operands: {len(call.args)}"
        )


def check_distinct(name: str, args: Sequence[Bound]) -> None:
    """Raise if the first operand is a path that is among the others."""
    first = args[0]
    if isinstance(first, tuple) and first in args[1:]:
        raise InvalidExpression(
            "The first operand must be distinct from the remaining operands for this operator or function; "
            f"operator: {name}, first operand: {written(first)}"
        )


def static_kind(bound: Bound) -> str | None:
    """The type of an operand, if it is known from the expression alone."""
    if isinstance(bound, dict):
        return kind_of(bound)
    return "N" if isinstance(bound, Size) else None


def _check_bounds(low: Bound, high: Bound) -> None:
    if not isinstance(low, dict) or not isinstance(high, dict):
        return
    if kind_of(low) != kind_of(high):
        rule = "requires same data type for lower and upper bounds"
    elif (value.compare(low, high) or 0) > 0:
        rule = "requires upper bound to be greater than or equal to lower bound"
    else:
        return
    raise InvalidExpression(
        f"The BETWEEN operator {rule}; lower bound operand: {_shown(low)}, upper bound operand: {_shown(high)}"
    )


def _check_type_name(wanted: Bound) -> None:
    kind = static_kind(wanted)
    if not isinstance(wanted, dict) or kind != "S":
        raise wrong_type("attribute_type", kind or _ANY_TYPE)
    if wanted["S"] not in TYPES:
        raise InvalidExpression(f"Invalid attribute type name found; type: {wanted['S']}, valid types: {_TYPE_NAMES}")


def _shown(bound: Value) -> str:
    kind, content = next(iter(bound.items()))
    if kind == "B":
        content = f"java.nio.HeapByteBuffer[pos=0 lim={len(content)} cap={len(content)}]"
    return f"AttributeValue: {{{kind}:{content}}}"


# -- compiling


def _compare(op: str, args: list[Bound]) -> Test:
    if op == "BETWEEN":
        return _bound_between(args)
    if op == "IN":
        return _bound_in(args)
    if op in _ORDERS:
        return _bound_order(op, args[0], args[1])
    return _bound_equal(op, args[0], args[1])


def _call(name: str, args: list[Bound]) -> Test:
    first = _read(args[0])
    if name == "attribute_exists":
        return lambda item: first(item) is not None
    if name == "attribute_not_exists":
        return lambda item: first(item) is None
    if name == "attribute_type":
        return _bound_type(args[0], args[1])
    return _both(first, _read(args[1]), begins if name == "begins_with" else contains)


def _read(bound: Bound) -> Read:
    if isinstance(bound, tuple):
        return reader(bound)
    if isinstance(bound, Size):
        return _sized(_read(bound.operand))
    constant = bound
    return lambda item: constant


def _sized(read: Read) -> Read:
    def size(item: Item) -> Value | None:
        found = read(item)
        if found is None:
            return None
        kind, content = next(iter(found.items()))
        return {"N": str(len(content))} if kind in _SIZED else None

    return size


def _both(first: Read, second: Read, holds: Callable[[Value, Value], bool]) -> Test:
    def test(item: Item) -> bool:
        one = first(item)
        if one is None:
            return False
        two = second(item)
        return two is not None and holds(one, two)

    return test


def _bound_equal(op: str, left: Bound, right: Bound) -> Test:
    if isinstance(left, dict):
        left, right = right, left
    if isinstance(right, dict):
        return equals(_read(left), right) if op == "=" else differs(_read(left), right)
    same = _both(_read(left), _read(right), value.equal)
    return same if op == "=" else negated(same)


def _bound_order(op: str, left: Bound, right: Bound) -> Test:
    if isinstance(right, dict):
        return ordered(op, _read(left), right)
    holds = _ORDERS[op]

    def compared(one: Value, two: Value) -> bool:
        order = value.compare(one, two)
        return order is not None and holds(order, 0)

    return _both(_read(left), _read(right), compared)


def _bound_between(args: Sequence[Bound]) -> Test:
    found, low, high = args
    if isinstance(low, dict) and isinstance(high, dict):
        return between(_read(found), low, high)
    read, read_low, read_high = _read(found), _read(low), _read(high)

    def test(item: Item) -> bool:
        one, two, three = read(item), read_low(item), read_high(item)
        return one is not None and two is not None and three is not None and _between(one, two, three)

    return test


def _bound_in(args: Sequence[Bound]) -> Test:
    read = _read(args[0])
    constants = [arg for arg in args[1:] if isinstance(arg, dict)]
    if len(constants) == len(args) - 1:
        return one_of(read, constants)
    return either([_both(read, _read(arg), value.equal) for arg in args[1:]])


def _bound_type(of: Bound, wanted: Bound) -> Test:
    assert isinstance(wanted, dict)
    name = wanted["S"]
    read = _read(of)

    def test(item: Item) -> bool:
        found = read(item)
        return found is not None and name in found

    return test

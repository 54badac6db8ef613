"""The legacy parameters that expressions replaced, compiled to the same objects: Expected, QueryFilter and ScanFilter,
KeyConditions, AttributeUpdates, AttributesToGet.

Their input is as on the wire: dicts whose types were checked, but whose values are not read yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from tailrace.errors import Invalid
from tailrace.tables import value
from tailrace.tables.binding import Paths, Read, reader
from tailrace.tables.condition import (
    ORDERED,
    ItemCondition,
    Test,
    begins,
    between,
    contains,
    differs,
    either,
    equals,
    every,
    kind_of,
    one_of,
    ordered,
)
from tailrace.tables.key_condition import AttributeCondition, KeyConditions
from tailrace.tables.messages import INVALID
from tailrace.tables.update import LEGACY_BAD_TYPE, SETS, CompiledAction, ItemUpdate
from tailrace.tables.value import Item, Value

ONE: Final = frozenset({"EQ", "NE", "LE", "LT", "GE", "GT", "CONTAINS", "NOT_CONTAINS", "BEGINS_WITH"})
NONE: Final = frozenset({"NULL", "NOT_NULL"})
_ORDERS: Final = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_KEY_OPERATORS: Final = {"EQ": "=", "BETWEEN": "BETWEEN", "BEGINS_WITH": "begins_with", **_ORDERS}
_SINGLE: Final = ORDERED | {"BOOL", "NULL"}
_TAKEN: Final = {  # the types that an operator accepts; other operators accept every type
    "LE": ORDERED,
    "LT": ORDERED,
    "GE": ORDERED,
    "GT": ORDERED,
    "IN": ORDERED,
    "BETWEEN": ORDERED,
    "BEGINS_WITH": frozenset({"S", "B"}),
    "CONTAINS": _SINGLE,
    "NOT_CONTAINS": _SINGLE,
}
_ACTIONS: Final = ("PUT", "ADD", "DELETE")
COMPARISONS: Final = "comparisons"  # the kind of a source (`sources.py`)
ACTIONS: Final = "actions"  # likewise
Comparison: TypeAlias = tuple[str, str, list[Value]]  # the operator, the attribute, the operands
AttributeAction: TypeAlias = tuple[str, str, Value | None]  # the action, the attribute, its operand


# -- conditions


def expected(conditions: Mapping[str, Mapping[str, Any]], operator: str | None = None) -> ItemCondition:
    """Expected, whose conditions are joined by AND unless `operator` is OR."""
    return joined([_expectation(name, condition) for name, condition in conditions.items()], operator)


def query_filter(conditions: Mapping[str, Mapping[str, Any]], operator: str | None = None) -> ItemCondition:
    """QueryFilter or ScanFilter, whose conditions are joined by AND unless `operator` is OR."""
    comparisons: list[Comparison] = []
    for name, condition in conditions.items():
        op = condition["ComparisonOperator"]
        operands = _read_all(condition.get("AttributeValueList"))
        _check_operands(op, operands)
        comparisons.append((op, name, operands))
    return joined(comparisons, operator)


def joined(comparisons: Sequence[Comparison], operator: str | None) -> ItemCondition:
    """The condition of comparisons that were checked."""
    tests = [_test(*comparison) for comparison in comparisons]
    if not tests:
        found = ItemCondition(lambda item: True, frozenset())
    else:
        names = frozenset([name for _, name, _ in comparisons])
        found = ItemCondition(either(tests) if operator == "OR" else every(tests), names)
    found.source = (COMPARISONS, comparisons, operator)
    return found


def _expectation(name: str, condition: Mapping[str, Any]) -> Comparison:
    op = condition.get("ComparisonOperator")
    listed = condition.get("AttributeValueList")
    single = condition.get("Value")
    exists = condition.get("Exists")
    if listed is not None and single is not None:
        raise _invalid(f"Value and AttributeValueList cannot be used together for Attribute: {name}")
    if op is not None:
        if exists is not None:
            raise _invalid(f"Exists and ComparisonOperator cannot be used together for Attribute: {name}")
        if op not in NONE and listed is None and single is None:
            raise _invalid(
                f"Value or AttributeValueList must be used with ComparisonOperator: {op} for Attribute: {name}"
            )
        operands = _read_all(listed if single is None else [single])
        _check_operands(op, operands)
        return op, name, operands
    if listed is not None:
        raise _invalid(f"AttributeValueList can only be used with a ComparisonOperator for Attribute: {name}")
    if exists is False:
        if single is not None:
            raise _invalid(f"Value cannot be used when Exists is false for Attribute: {name}")
        return "NULL", name, []
    if single is None:
        shown = "null" if exists is None else "true"
        raise _invalid(f"Value must be provided when Exists is {shown} for Attribute: {name}")
    return "EQ", name, _read_all([single])


def _read_all(listed: Sequence[Any] | None) -> list[Value]:
    # Copies, because reading changes its argument, and a request may be evaluated more than once.
    return [value.read_value(dict(raw) if isinstance(raw, dict) else raw) for raw in listed or ()]


def _check_operands(op: str, operands: Sequence[Value]) -> None:
    count = len(operands)
    if op in ONE:
        right = count == 1
    elif op in NONE:
        right = count == 0
    else:
        right = count == 2 if op == "BETWEEN" else count > 0
    if not right:
        raise _invalid(f"Invalid number of argument(s) for the {op} ComparisonOperator")
    if not operands:
        return
    kind = kind_of(operands[0])
    for operand in operands:
        if kind_of(operand) != kind:
            raise _invalid("AttributeValues inside AttributeValueList must be of same type")
    taken = _TAKEN.get(op)
    if taken is not None and kind not in taken:
        raise _invalid(f"ComparisonOperator {op} is not valid for {kind} AttributeValue type")
    if op == "BETWEEN" and (value.compare(operands[0], operands[1]) or 0) > 0:
        raise Invalid(
            "The BETWEEN condition was provided a range where the lower bound is greater than the upper bound"
        )


def _test(op: str, name: str, operands: list[Value]) -> Test:
    read: Read = reader((name,))
    if op == "EQ":
        return equals(read, operands[0])
    if op == "NE":
        return differs(read, operands[0])
    if op in _ORDERS:
        return ordered(_ORDERS[op], read, operands[0])
    if op == "BETWEEN":
        return between(read, operands[0], operands[1])
    if op == "IN":
        return one_of(read, operands)
    if op == "NULL":
        return lambda item: read(item) is None
    if op == "NOT_NULL":
        return lambda item: read(item) is not None
    return _text_test(op, read, operands[0])


def _text_test(op: str, read: Read, operand: Value) -> Test:
    """BEGINS_WITH, CONTAINS and NOT_CONTAINS, all of which are false for a missing attribute."""
    holds = begins if op == "BEGINS_WITH" else contains
    wanted = op != "NOT_CONTAINS"

    def test(item: Item) -> bool:
        found = read(item)
        return found is not None and holds(found, operand) is wanted

    return test


# -- keys


def read_key_conditions(conditions: Mapping[str, Mapping[str, Any]]) -> KeyConditions:
    """KeyConditions, checked as far as possible without the table."""
    on: dict[str, AttributeCondition] = {}
    for name, condition in conditions.items():
        op = condition["ComparisonOperator"]
        operands = _read_all(condition.get("AttributeValueList"))
        _check_operands(op, operands)
        on[name] = AttributeCondition(_KEY_OPERATORS.get(op, op), operands)
    return KeyConditions(on)


# -- projections and updates


def attributes_to_get(names: Sequence[str]) -> Paths:
    """AttributesToGet: top-level attributes, whatever characters their names have."""
    return Paths((name,) for name in names)


def attribute_updates(updates: Mapping[str, Mapping[str, Any]]) -> ItemUpdate:
    """AttributeUpdates: PUT, ADD or DELETE per top-level attribute."""
    actions: list[AttributeAction] = []
    for name, update in updates.items():
        action = update.get("Action") or "PUT"
        raw = update.get("Value")
        operand = None if raw is None else _read_all([raw])[0]
        if action not in _ACTIONS:
            raise Invalid(
                f"1 validation error detected: Value '{action}' at 'attributeUpdates.{name}.member.action' "
                "failed to satisfy constraint: Member must satisfy enum value set: [ADD, DELETE, PUT]"
            )
        if operand is None:
            if action != "DELETE":
                raise _invalid("Only DELETE action is allowed when no attribute value is specified")
        elif action == "DELETE":
            if kind_of(operand) not in SETS:
                raise _invalid(f"DELETE action with value is not supported for the type {kind_of(operand)}")
        elif action == "ADD" and kind_of(operand) not in SETS and kind_of(operand) not in ("N", "L"):
            raise _invalid(f"ADD action is not supported for the type {kind_of(operand)}")
        actions.append((action, name, operand))
    return update_of(actions)


def update_of(actions: Sequence[AttributeAction]) -> ItemUpdate:
    """The update of actions that were checked."""
    changes = [_change(*action) for action in actions]
    types = {name: kind_of(operand) for _, name, operand in actions if operand is not None}
    found = ItemUpdate(changes, types=types, bad_type=LEGACY_BAD_TYPE)
    found.source = (ACTIONS, actions)
    return found


def _change(action: str, name: str, operand: Value | None) -> CompiledAction:
    if operand is None:
        return CompiledAction("REMOVE", (name,))
    if action == "PUT":
        return CompiledAction("SET", (name,), evaluate=lambda item: operand)
    return CompiledAction(action, (name,), operand=operand)


def _invalid(what: str) -> Invalid:
    return Invalid(INVALID + what)

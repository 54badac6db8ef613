"""Key conditions: the part of an index (or of the table) that a query reads.

There are two steps. An expression or the legacy parameter is first reduced to conditions on single attributes
(`KeyConditions`), which needs no table. Then, with the attributes of the key, these become a `KeyCondition`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import syntax
from tailrace.tables.condition import Bound, ConditionBinder
from tailrace.tables.messages import INVALID
from tailrace.tables.value import Value

NOT_SUPPORTED: Final = "Query key condition not supported"
NOT_INDEXABLE: Final = "Attempted conditional constraint is not an indexable operation"
MISMATCHED: Final = INVALID + "Condition parameter type does not match schema type"
INDEXABLE: Final = frozenset({"=", "<", "<=", ">", ">=", "BETWEEN", "begins_with"})
_SIMPLE_MAX: Final = 2  # conditions on a key that is not made of several hash or range attributes
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class KeyCondition(msgspec.Struct, frozen=True):
    """Values of all hash attributes; then values that leading range attributes are equal to, and perhaps one more
    condition, on the range attribute after those."""

    hash: list[Value]
    equal: list[Value] = []
    op: str | None = None  # <, <=, >, >=, BETWEEN or begins_with
    operands: list[Value] = []


class AttributeCondition(msgspec.Struct, frozen=True):
    """A condition on one attribute."""

    op: str
    operands: list[Value]


class KeyConditions:
    """Conditions by attribute, not yet applied to a key. Calling it with the hash and range attributes does that."""

    __slots__ = ("_on", "_problem")

    def __init__(self, on: dict[str, AttributeCondition], problem: Invalid | None = None) -> None:
        self._on = on
        self._problem = problem

    def check(self, indexed: bool = False) -> None:
        """Raise if the conditions are invalid for any key; those on an index may have more attributes."""
        if self._problem is not None:
            raise self._problem
        if not self._on or (len(self._on) > _SIMPLE_MAX and not indexed):
            raise Invalid("Conditions can be of length 1 or 2 only")

    def __call__(
        self, hashes: tuple[str, ...], ranges: tuple[str, ...], kinds: Mapping[str, str] | None = None
    ) -> KeyCondition:
        """The conditions as one on this key. `kinds`: the types of the key's attributes, which operands must have."""
        composite = len(hashes) > 1 or len(ranges) > 1
        self.check(indexed=True)
        if len(self._on) > max(len(hashes) + len(ranges), _SIMPLE_MAX):
            raise Invalid(
                f"The number of query conditions ({len(self._on)}) exceeds the number of key attributes defined in the "
                f"schema ({len(hashes) + len(ranges)})"
            )
        return self._composite(hashes, ranges, kinds) if composite else self._simple(hashes[0], ranges, kinds)

    def _simple(self, hash_: str, ranges: tuple[str, ...], kinds: Mapping[str, str] | None) -> KeyCondition:
        on = self._on
        if not ranges and len(on) > 1:
            raise Invalid(NOT_SUPPORTED)
        partition = self._found(hash_, kinds)
        if partition is None:
            raise _missed(hash_)
        if partition.op != "=":
            raise Invalid(NOT_SUPPORTED)
        if len(on) == 1:
            return KeyCondition(partition.operands)
        sort = self._found(ranges[0], kinds)
        if sort is None:
            raise _missed(ranges[0])
        if sort.op == "=":
            return KeyCondition(partition.operands, sort.operands)
        return KeyCondition(partition.operands, [], sort.op, sort.operands)

    def _composite(
        self, hashes: tuple[str, ...], ranges: tuple[str, ...], kinds: Mapping[str, str] | None
    ) -> KeyCondition:
        values = []
        for name in hashes:
            found = self._found(name, kinds)
            if found is None or found.op != "=":
                raise Invalid(f"HASH key attributes {name} must have equality conditions specified in the query")
            values += found.operands
        equal: list[Value] = []
        op: str | None = None
        operands: list[Value] = []
        used = set(hashes)
        for name in ranges:
            found = self._found(name, kinds)
            if found is None or op is not None:
                break
            used.add(name)
            if found.op == "=":
                equal += found.operands
            else:
                op, operands = found.op, found.operands
        for name in self._on:
            if name in used:
                continue
            if name not in ranges:
                raise Invalid(NOT_SUPPORTED)
            on = self._on
            unequal = [each for each in ranges[: ranges.index(name)] if each not in on or on[each].op != "="]
            raise Invalid(
                f"RANGE key attributes {', '.join(unequal)} must have equality conditions specified in the query "
                f"because a condition is present on key attribute {name}"
            )
        return KeyCondition(values, equal, op, operands)

    def _found(self, name: str, kinds: Mapping[str, str] | None) -> AttributeCondition | None:
        """The condition on this attribute of the key, if there is one."""
        found = self._on.get(name)
        if found is None:
            return None
        if found.op not in INDEXABLE:
            raise Invalid(NOT_INDEXABLE)
        if kinds is not None and any(kinds[name] not in operand for operand in found.operands):
            raise Invalid(MISMATCHED)
        return found


def _missed(name: str) -> Invalid:
    return Invalid(f"Query condition missed key schema element: {name}")


# -- from an expression


def bind(node: syntax.Node, binder: ConditionBinder) -> KeyConditions:
    """The conditions of an expression. Errors specific to key conditions are kept for `check`, because the service
    reports errors of the request's other expressions first."""
    leaves = binder.leaves(node)  # with the errors that every condition can have
    on: dict[str, AttributeCondition] = {}
    try:
        _collect(node, iter(leaves), on)
    except Invalid as problem:
        return KeyConditions({}, problem)
    return KeyConditions(on)


def _collect(node: syntax.Node, leaves: Iterator[list[Bound]], on: dict[str, AttributeCondition]) -> None:
    if isinstance(node, syntax.Every):
        for part in node.nodes:
            _collect(part, leaves, on)
        return
    if isinstance(node, syntax.Either):
        raise _not_allowed("OR")
    if isinstance(node, syntax.Not):
        raise _not_allowed("NOT")
    op = node.op if isinstance(node, syntax.Compare) else node.name
    if op not in INDEXABLE:
        raise _not_allowed(op)
    name, condition = _single(op, node.args, next(leaves))
    if name in on:
        raise Invalid("Invalid KeyConditionExpression: KeyConditionExpressions must only contain one condition per key")
    on[name] = condition


def _single(op: str, args: Sequence[syntax.Operand], bound: Sequence[Bound]) -> tuple[str, AttributeCondition]:
    if op in ("BETWEEN", "begins_with") and not isinstance(args[0], syntax.DocumentPath):
        raise _bad(f"{op} operator must have the key attribute as its first operand")
    name: str | None = None
    values: list[Value] = []
    for each in bound:
        if isinstance(each, tuple):
            if name is not None:
                raise _bad("Multiple attribute names used in one condition")
            if len(each) > 1:
                raise Invalid("KeyConditionExpressions cannot have conditions on nested attributes")
            name = str(each[0])
        elif isinstance(each, dict):
            values.append(each)
        else:
            raise Invalid("KeyConditionExpressions cannot contain nested operations")
    if name is None:
        raise _bad("No key attribute specified")
    if not isinstance(args[0], syntax.DocumentPath):
        op = _MIRRORED[op]
    return name, AttributeCondition(op, values)


def _not_allowed(op: str) -> Invalid:
    return Invalid(f"Invalid operator used in KeyConditionExpression: {op}")


def _bad(what: str) -> Invalid:
    return Invalid(f"Invalid condition in KeyConditionExpression: {what}")

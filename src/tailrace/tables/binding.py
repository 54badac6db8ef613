"""Binding of expressions: a request's placeholders, and document paths.

A bound path is a tuple of attribute names and list indexes, of which the first is the name of a top-level attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import messages, value
from tailrace.tables.syntax import DocumentPath, InvalidExpression
from tailrace.tables.value import NAME_BYTES_MAX, Item, Value

Steps: TypeAlias = tuple[str | int, ...]
Read: TypeAlias = Callable[[Item], Value | None]
Source: TypeAlias = tuple[Any, ...]  # what an object was compiled from, as data: a kind, then texts and values


EXPRESSION: Final = "expression"  # the kind of such a source
_NAME: Final = re.compile(r"#[A-Za-z0-9_]+")
_VALUE: Final = re.compile(r":[A-Za-z0-9_]+")


class Placeholders:
    """The names and values for the expressions of one request; keeps track of those that were used."""

    __slots__ = ("_names", "_used_names", "_used_values", "_values")

    def __init__(self, names: dict[str, str] | None = None, values: dict[str, Value] | None = None) -> None:
        self._names = names or {}
        self._values = values or {}
        self._used_names: set[str] = set()
        self._used_values: set[str] = set()

    def name(self, placeholder: str) -> str:
        """The attribute name of a #placeholder."""
        found = self._names.get(placeholder)
        if found is None:
            raise InvalidExpression(
                f"An expression attribute name used in the document path is not defined; attribute name: {placeholder}"
            )
        self._used_names.add(placeholder)
        return found

    def value(self, placeholder: str) -> Value:
        """The value of a :placeholder."""
        found = self._values.get(placeholder)
        if found is None:
            raise InvalidExpression(
                f"An expression attribute value used in expression is not defined; attribute value: {placeholder}"
            )
        self._used_values.add(placeholder)
        return found

    def path(self, path: DocumentPath) -> Steps:
        """The path with its names filled in."""
        steps = path.parts
        if not path.plain:
            filled: list[str | int] = []
            for part in steps:
                filled.append(self.name(part) if isinstance(part, str) and part[0] == "#" else part)
            steps = tuple(filled)
        if len(steps) > limits.EXPRESSION_PATH_STEPS_MAX:
            raise InvalidExpression(f"The document path has too many nesting levels; nesting levels: {len(steps)}")
        return steps

    def source(self, text: str) -> Source:
        """The source of an expression with this text and these placeholders."""
        return EXPRESSION, text, self._names, self._values

    def check_used(self) -> None:
        """Raise if something was provided that no expression used."""
        _check_used("ExpressionAttributeNames", self._names, self._used_names)
        _check_used("ExpressionAttributeValues", self._values, self._used_values)


def _check_used(parameter: str, provided: Mapping[str, object], used: set[str]) -> None:
    if len(used) != len(provided):
        unused = ", ".join(placeholder for placeholder in provided if placeholder not in used)
        raise Invalid(f"Value provided in {parameter} unused in expressions: keys: {{{unused}}}")


def placeholders(names: dict[str, str] | None, values: dict[str, Any] | None) -> Placeholders:
    """Check names and values of a request; values are read when they are used."""
    if names is not None:
        if not names:
            raise Invalid("ExpressionAttributeNames must not be empty")
        for key, name in names.items():
            _check_key("ExpressionAttributeNames", key, _NAME)
            if not name:
                raise Invalid(f"ExpressionAttributeNames contains invalid value: Empty attribute name for key {key}")
            if len(name) * 4 > NAME_BYTES_MAX and len(name.encode()) > NAME_BYTES_MAX:
                raise Invalid(
                    "ExpressionAttributeNames contains invalid value: Attribute name is too large, "
                    f"must be less than {NAME_BYTES_MAX + 1} bytes for key {key}"
                )
    if values is None:
        return Placeholders(names)
    if not values:
        raise Invalid("ExpressionAttributeValues must not be empty")
    for key in values:
        _check_key("ExpressionAttributeValues", key, _VALUE)
    read: dict[str, Value] = {}
    for key, raw in values.items():
        try:
            read[key] = value.read_value(raw)
        except Invalid as error:
            if error.code == messages.SERIALIZATION:
                raise
            raise Invalid(f"ExpressionAttributeValues contains invalid value: {error} for key {key}") from None
    return Placeholders(names, read)


def _check_key(parameter: str, key: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(key):
        raise Invalid(f'{parameter} contains invalid key: Syntax error; key: "{key}"')
    if len(key) > limits.PLACEHOLDER_BYTES_MAX:
        raise Invalid(
            f"{parameter} contains invalid key: The expression attribute map contains a key that is too long; "
            f"size of key: {len(key)}"
        )


# -- paths


def reader(steps: Steps) -> Read:
    """A function that reads the value at this path of an item; None if there is none."""
    head = steps[0]
    assert isinstance(head, str)
    if len(steps) == 1:

        def top(item: Item) -> Value | None:
            return item.get(head)

        return top
    rest = steps[1:]

    def nested(item: Item) -> Value | None:
        found = item.get(head)
        for step in rest:
            if found is None:
                return None
            if isinstance(step, int):
                elements = found.get("L")
                if elements is None or step >= len(elements):
                    return None
                found = elements[step]
            else:
                members = found.get("M")
                if members is None:
                    return None
                found = members.get(step)
        return found

    return nested


def written(steps: Steps) -> str:
    """A path as error messages show it."""
    return "[" + ", ".join(f"[{step}]" if isinstance(step, int) else step for step in steps) + "]"


class _Branch:
    """A node in the tree of paths: the first path through it, and the path that ends at it."""

    __slots__ = ("children", "end", "first", "index", "member")

    def __init__(self, first: int) -> None:
        self.first = first
        self.end: int | None = None
        self.member: int | None = None  # the first path that goes on with a name
        self.index: int | None = None  # the first path that goes on with an index
        self.children: dict[str | int, _Branch] = {}


def check_disjoint(paths: list[Steps]) -> None:
    """Raise if two paths overlap (one is part of the other) or conflict (a map for one, a list for the other)."""
    root = _Branch(0)
    conflict: tuple[int, int] | None = None
    for at, steps in enumerate(paths):
        branch = root
        for step in steps:
            if branch.end is not None:
                raise _clash("overlap", paths[branch.end], steps)
            if isinstance(step, int):
                other = branch.member
                if branch.index is None:
                    branch.index = at
            else:
                other = branch.index
                if branch.member is None:
                    branch.member = at
            if other is not None and conflict is None:
                conflict = (other, at)
            child = branch.children.get(step)
            if child is None:
                child = branch.children[step] = _Branch(at)
            branch = child
        if branch.end is not None or branch.children:
            raise _clash("overlap", paths[branch.first], steps)
        branch.end = at
    if conflict is not None:
        raise _clash("conflict", paths[conflict[0]], paths[conflict[1]])


def _clash(how: str, one: Steps, two: Steps) -> InvalidExpression:
    return InvalidExpression(
        f"Two document paths {how} with each other; must remove or rewrite one of these paths; "
        f"path one: {written(one)}, path two: {written(two)}"
    )


class Paths:
    """Some paths of an item, and the item reduced to them."""

    __slots__ = ("_flat", "_tree", "names", "nested", "steps")

    def __init__(self, steps: Iterable[Steps]) -> None:
        self.steps = tuple(steps)
        self.names = frozenset(str(path[0]) for path in self.steps)
        self.nested = frozenset(str(path[0]) for path in self.steps if len(path) > 1)
        self._flat: tuple[str, ...] | None = None if self.nested else tuple(str(path[0]) for path in self.steps)
        self._tree: dict[Any, Any] = {}
        if self.nested:
            for path in self.steps:
                branch: Any = self._tree
                for step in path[:-1]:
                    branch = branch.setdefault(step, {})
                    if branch is None:
                        break  # of a path that begins with another one, that one is enough
                else:
                    branch[path[-1]] = None

    def paths(self) -> frozenset[str]:
        """The names of the top-level attributes."""
        return self.names

    def project(self, item: Item) -> Item:
        """Only these paths of the item; missing ones are left out, and list elements close up."""
        if self._flat is not None:
            return {name: item[name] for name in self._flat if name in item}
        return _members(item, self._tree)


def _members(members: Mapping[str, Value], tree: dict[Any, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, below in tree.items():
        member = members.get(name)
        if member is not None:
            reduced = member if below is None else _reduced(member, below)
            if reduced is not None:
                found[name] = reduced
    return found


def _reduced(of: Value, tree: dict[Any, Any]) -> Value | None:
    """A map or list reduced to the tree; None if nothing is left."""
    if isinstance(next(iter(tree)), str):
        members = of.get("M")
        found = None if members is None else _members(members, tree)
        return {"M": found} if found else None
    elements = of.get("L")
    if elements is None:
        return None
    kept = []
    for index in sorted(tree):
        if index < len(elements):
            below = tree[index]
            element = elements[index] if below is None else _reduced(elements[index], below)
            if element is not None:
                kept.append(element)
    return {"L": kept} if kept else None

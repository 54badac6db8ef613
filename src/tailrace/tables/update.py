"""Updates: changes to an item, all computed from the old item.

An update is a list of changes, each to one path. Values to set are evaluated first, against the old item; then every
change is applied. List indexes refer to the old list throughout: elements are removed only at the end, and elements set
beyond the end are appended in the order of their indexes. The old item is not modified; containers on the path of a
change are copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import messages, number, syntax, value
from tailrace.tables.binding import Paths, Placeholders, Source, Steps, check_disjoint, reader
from tailrace.tables.condition import check_arity, check_distinct, kind_of
from tailrace.tables.syntax import InvalidExpression, wrong_type
from tailrace.tables.value import Item, Value

Evaluate: TypeAlias = Callable[[Item], Value]

SETS: Final = frozenset({"SS", "NS", "BS"})
BAD_PATH: Final = "The document path provided in the update expression is invalid for update"
BAD_TYPE: Final = "An operand in the update expression has an incorrect data type"
MISSING: Final = "The provided expression refers to an attribute that does not exist in the item"
LEGACY_BAD_TYPE: Final = "Type mismatch for attribute to update"

_GONE: Final[Value] = {}  # stands for a removed element
_LONG_NAMES: Final = {
    "S": "STRING",
    "N": "NUMBER",
    "B": "BINARY",
    "NULL": "NULL",
    "BOOL": "BOOLEAN",
    "L": "LIST",
    "M": "MAP",
}


class CompiledAction(msgspec.Struct, frozen=True, gc=False):
    """The change of one path: SET to an evaluated value, REMOVE, ADD or DELETE of an operand."""

    section: str
    steps: Steps
    operand: Value | None = None  # of ADD and DELETE
    evaluate: Evaluate | None = None  # of SET


class Updated:
    """The item after an update, and the paths that the update touched."""

    __slots__ = ("_update", "item")

    def __init__(self, item: Item, update: ItemUpdate) -> None:
        self.item = item
        self._update = update

    def old(self, before: Item | None) -> Item | None:
        """The old values of the updated paths, if any."""
        return None if before is None else self._update.touched().project(before) or None

    def new(self) -> Item | None:
        """The new values of the updated paths, if any."""
        return self._update.touched().project(self.item) or None


class ItemUpdate:
    """An update of an item. `names` are the top-level attributes that it changes; `nested` those whose inside it
    changes or reads; `types` the types of top-level attributes after it, as far as they are known; `source` what it
    was compiled from, as of an `ItemCondition`."""

    __slots__ = ("_bad_type", "_changes", "creates", "names", "nested", "source", "types")

    def __init__(
        self,
        changes: Sequence[CompiledAction],
        *,
        nested: frozenset[str] = frozenset(),
        types: dict[str, str] | None = None,
        bad_type: str = BAD_TYPE,
    ) -> None:
        self._changes = changes
        self._bad_type = bad_type
        self.source: Source | None = None
        self.names = frozenset([str(change.steps[0]) for change in changes])
        self.nested = nested
        self.types = types or {}
        # An update that only removes does not create an item.
        self.creates = not changes or any(change.section in ("SET", "ADD") for change in changes)

    def paths(self) -> frozenset[str]:
        """The names of the top-level attributes that are changed."""
        return self.names

    def touched(self) -> Paths:
        """The paths that are changed."""
        return Paths(change.steps for change in self._changes)

    def apply(self, item: Item | None, key: Item) -> Updated:
        """The updated item; an item that does not exist (None) begins as its key. If `creates` is false and there was
        no item, the result must not be stored."""
        if item is None and not self.creates:
            return Updated(dict(key), self)
        before = key if item is None else item
        values = [None if change.evaluate is None else change.evaluate(before) for change in self._changes]
        after = dict(before)
        edits: _Edits | None = None
        for change, set_to in zip(self._changes, values, strict=True):
            steps = change.steps
            if len(steps) > 1:
                if set_to is not None:
                    check_depth(set_to, len(steps))
                edits = edits or _Edits(after)
                self._nested(edits, change, set_to)
                continue
            name: Any = steps[0]
            if set_to is None:
                set_to = self._changed(change, after.get(name))
            if set_to is None:
                after.pop(name, None)
            else:
                after[name] = set_to
        if edits is not None:
            edits.finish()
        return Updated(after, self)

    def _nested(self, edits: _Edits, change: CompiledAction, set_to: Value | None) -> None:
        last = change.steps[-1]
        container = edits.container(change.steps)
        if set_to is None:
            existing = container.get(last) if isinstance(container, dict) else _element(container, last)
            set_to = self._changed(change, existing)
            if set_to is None and existing is None:
                return
        edits.put(container, last, set_to)

    def _changed(self, change: CompiledAction, existing: Value | None) -> Value | None:
        """The value after REMOVE, ADD or DELETE; None: it is removed."""
        operand = change.operand
        if change.section == "REMOVE":
            return None
        assert operand is not None
        if existing is None:
            return operand if change.section == "ADD" else None
        kind, content = next(iter(operand.items()))
        held = existing.get(kind)
        if held is None:
            raise Invalid(self._bad_type)
        if change.section == "DELETE":
            removed = set(content)
            left = [element for element in held if element not in removed]
            return {kind: left} if left else None
        if kind == "N":
            return {"N": number.add(held, content)}
        if kind == "L":  # only the legacy parameter adds to lists
            return {"L": held + content}
        there = set(held)
        return {kind: value.in_order(kind, held + [element for element in content if element not in there])}


def check_depth(of: Value, levels: int) -> None:
    """Raise if a value that is `levels` steps into an item holds more levels than an item may have."""
    todo = [(of, levels)]
    while todo:
        each, deep = todo.pop()
        kind, content = next(iter(each.items()))
        if kind in ("M", "L"):
            if deep > value.DEPTH_MAX:
                raise Invalid(messages.NESTED_TOO_DEEP)
            todo.extend((inner, deep + 1) for inner in (content.values() if kind == "M" else content))


def _element(elements: list[Value], index: str | int) -> Value | None:
    assert isinstance(index, int)
    return elements[index] if index < len(elements) else None


class _Edits:
    """Changes inside the containers of one item, which are copied before they are changed."""

    __slots__ = ("_appended", "_item", "_lists", "_owned")

    def __init__(self, item: Item) -> None:
        self._item = item
        self._owned: set[int] = set()  # by id, of containers that the new item keeps alive
        self._lists: dict[int, list[Value]] = {}  # with removed or appended elements
        self._appended: dict[int, dict[int, Value]] = {}

    def container(self, steps: Steps) -> Any:
        """The map or list that contains the last step, copied so that it can be changed."""
        container: Any = self._item
        for at, step in enumerate(steps[:-1]):
            if isinstance(step, int):
                child = container[step] if step < len(container) else None
            else:
                child = container.get(step)
            kind = "L" if isinstance(steps[at + 1], int) else "M"
            inner = None if child is None else child.get(kind)
            if inner is None:
                raise Invalid(BAD_PATH)
            if id(inner) not in self._owned:
                inner = inner.copy()
                self._owned.add(id(inner))
                container[step] = {kind: inner}
            container = inner
        return container

    def put(self, container: Any, step: str | int, to: Value | None) -> None:
        """Set or remove (None) the value at this step."""
        if isinstance(step, str):
            if to is None:
                container.pop(step, None)
            else:
                container[step] = to
            return
        if step < len(container):
            container[step] = _GONE if to is None else to
            if to is None:
                self._lists[id(container)] = container
        elif to is not None:
            self._lists[id(container)] = container
            self._appended.setdefault(id(container), {})[step] = to

    def finish(self) -> None:
        """Remove deleted elements from the lists, and append those set beyond their ends."""
        for identity, elements in self._lists.items():
            elements[:] = [element for element in elements if element is not _GONE]
            appended = self._appended.get(identity)
            if appended:
                elements.extend(appended[index] for index in sorted(appended))


# -- binding


class UpdateBinder:
    """Fills in an update's placeholders, checks paths and operands, and compiles the values."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._nested: set[str] = set()

    def update(self, actions: Sequence[syntax.Action]) -> ItemUpdate:
        """The update of these actions."""
        try:
            return self._update(actions)
        except InvalidExpression:
            self._explain(actions)
            raise

    def _update(self, actions: Sequence[syntax.Action]) -> ItemUpdate:
        targets = [self._placeholders.path(action.path) for action in actions]
        if len({steps[0] for steps in targets}) != len(targets):
            check_disjoint(targets)
        changes = []
        types: dict[str, str] = {}
        for action, steps in zip(actions, targets, strict=True):
            change, kind = self._change(action, steps)
            changes.append(change)
            if len(steps) > 1:
                self._nested.add(str(steps[0]))
            elif kind is not None:
                types[str(steps[0])] = kind
        return ItemUpdate(changes, nested=frozenset(self._nested), types=types)

    def _explain(self, actions: Sequence[syntax.Action]) -> None:
        """Raise the service's error for an invalid update, in its order: undefined names, overlapping paths, undefined
        values, operands of ADD and DELETE."""
        for action in actions:
            self._placeholders.path(action.path)
        for action in actions:
            for leaf in _leaves(action.operand):
                if isinstance(leaf, syntax.DocumentPath):
                    self._placeholders.path(leaf)
        check_disjoint([self._placeholders.path(action.path) for action in actions])
        for action in actions:
            for leaf in _leaves(action.operand):
                if isinstance(leaf, syntax.ValuePlaceholder):
                    self._placeholders.value(leaf.name)
        for action in actions:
            if action.section in ("ADD", "DELETE"):
                self._check_operand(action)

    def _change(self, action: syntax.Action, steps: Steps) -> tuple[CompiledAction, str | None]:
        operand = action.operand
        if operand is None:
            return CompiledAction(action.section, steps), None
        if action.section == "SET":
            evaluate, kind, _ = self._operand(operand)
            return CompiledAction("SET", steps, evaluate=evaluate), kind
        constant = self._check_operand(action)
        return CompiledAction(action.section, steps, operand=constant), kind_of(constant)

    def _check_operand(self, action: syntax.Action) -> Value:
        assert isinstance(action.operand, syntax.ValuePlaceholder)
        constant = self._placeholders.value(action.operand.name)
        kind = kind_of(constant)
        if kind not in SETS and not (action.section == "ADD" and kind == "N"):
            raise InvalidExpression(
                "Incorrect operand type for operator or function; "
                f"operator: {action.section}, operand type: {_LONG_NAMES[kind]}"
            )
        return constant

    def _operand(self, operand: syntax.Operand) -> tuple[Evaluate, str | None, Steps | Value | None]:
        """How to evaluate an operand, its type if known, and its path or constant."""
        if isinstance(operand, syntax.ValuePlaceholder):
            constant = self._placeholders.value(operand.name)
            return (lambda item: constant), kind_of(constant), constant
        if isinstance(operand, syntax.DocumentPath):
            steps = self._placeholders.path(operand)
            if len(steps) > 1:
                self._nested.add(str(steps[0]))
            return _present(steps), None, steps
        return self._call(operand)

    def _call(self, call: syntax.Call) -> tuple[Evaluate, str | None, None]:
        name = call.name
        check_arity(call)
        one, one_kind, one_is = self._operand(call.args[0])
        two, two_kind, two_is = self._operand(call.args[1])
        if name == "if_not_exists":
            if not isinstance(one_is, tuple):
                raise InvalidExpression(f"Operator or function requires a document path; operator or function: {name}")
            if isinstance(two_is, tuple):
                check_distinct(name, (one_is, two_is))
            return _if_not_exists(one_is, two), two_kind, None
        wanted = "L" if name == "list_append" else "N"
        for kind, constant in ((one_kind, one_is), (two_kind, two_is)):
            if isinstance(constant, dict) and kind is not None and kind != wanted:
                raise wrong_type(name, kind)
        if name == "list_append":
            return _list_append(one, two), "L", None
        return _sum(one, two, number.add if name == "+" else number.subtract), "N", None


def _leaves(operand: syntax.Operand | None) -> list[syntax.DocumentPath | syntax.ValuePlaceholder]:
    """The paths and constants of an operand, in the order in which they are written."""
    found: list[syntax.DocumentPath | syntax.ValuePlaceholder] = []
    todo = [] if operand is None else [operand]
    while todo:
        each = todo.pop()
        if isinstance(each, syntax.Call):
            todo.extend(reversed(each.args))
        else:
            found.append(each)
    return found


def _present(steps: Steps) -> Evaluate:
    read = reader(steps)

    def evaluate(item: Item) -> Value:
        found = read(item)
        if found is None:
            raise Invalid(MISSING)
        return found

    return evaluate


def _if_not_exists(steps: Steps, otherwise: Evaluate) -> Evaluate:
    read = reader(steps)

    def evaluate(item: Item) -> Value:
        found = read(item)
        return otherwise(item) if found is None else found

    return evaluate


def _typed(evaluate: Evaluate, kind: str, item: Item) -> Any:
    content = evaluate(item).get(kind)
    if content is None:
        raise Invalid(BAD_TYPE)
    return content


def _list_append(one: Evaluate, two: Evaluate) -> Evaluate:
    return lambda item: {"L": _typed(one, "L", item) + _typed(two, "L", item)}


def _sum(one: Evaluate, two: Evaluate, combine: Callable[[str, str], str]) -> Evaluate:
    return lambda item: {"N": combine(_typed(one, "N", item), _typed(two, "N", item))}

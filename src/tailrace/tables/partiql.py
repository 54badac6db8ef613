"""PartiQL statements bound to their parameters, and planned for a table.

A condition on the partition key makes a SELECT a query, or one query for each value of the key: the WHERE clause is
written as alternatives, each of which becomes a range of keys and a filter for the other conditions. Any other SELECT
is a scan with a filter. Writes name one item by equalities on its whole key; the rest of their WHERE clause is a
condition on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, Final, NamedTuple, TypeAlias

from tailrace import limits
from tailrace.errors import Invalid, TableNotFound
from tailrace.tables import key as keys
from tailrace.tables import value
from tailrace.tables.binding import Paths, Placeholders, Read, reader
from tailrace.tables.condition import ConditionBinder, ItemCondition
from tailrace.tables.definition import Definition, IndexDefinition
from tailrace.tables.key_condition import INDEXABLE, KeyCondition
from tailrace.tables.messages import INVALID
from tailrace.tables.partiql_tree import PartiQLInsert, PartiQLSelect, PartiQLUpdate, Statement
from tailrace.tables.syntax import (
    Call,
    Compare,
    DocumentPath,
    Either,
    Every,
    InvalidExpression,
    Node,
    Not,
    Operand,
    ValuePlaceholder,
)
from tailrace.tables.update import SETS, ItemUpdate, UpdateBinder
from tailrace.tables.value import Item, Value

NO_INDEX: Final = "The table does not have the specified index"
CONSISTENT_INDEX: Final = "Strongly consistent read is not supported on Global Secondary Indexes"
SEVERAL_PARTS: Final = (
    "PartiQL statements cannot be executed on tables with multi-attribute HASH keys or multi-attribute RANGE keys."
)
OVERLAPPING: Final = "Overlapping conditions with range keys are not supported in where clause"
TOO_MANY_READS: Final = "Too many decomposed read operations for a given query."
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Alternative: TypeAlias = tuple[Node, ...]  # conditions that hold together


# -- binding


def bound(statement: Statement, parameters: Sequence[Value]) -> Placeholders:
    """The values of a statement's placeholders."""
    values = statement.values
    if len(parameters) != len(values.parameters):
        raise Invalid("Number of parameters in request and statement don't match.")
    return Placeholders(None, {**values.constants, **dict(zip(values.parameters, parameters, strict=True))})


def condition(nodes: Iterable[Node], given: Placeholders) -> ItemCondition | None:
    """The condition that all of these hold; None if there are none."""
    joined = tuple(nodes)
    if not joined:
        return None
    try:
        return ConditionBinder(given).condition(joined[0] if len(joined) == 1 else Every(joined))
    except InvalidExpression as refused:
        raise Invalid(str(refused)) from None


def update(statement: PartiQLUpdate, given: Placeholders) -> ItemUpdate:
    """The update of an UPDATE."""
    for operand in statement.sets:
        if not SETS & given.value(operand.placeholder).keys():
            raise Invalid(
                f"The second argument to {operand.function} must be a value with type SET at {operand.position}"
            )
    try:
        return UpdateBinder(given).update(statement.actions)
    except InvalidExpression as refused:
        raise Invalid(str(refused)) from None


def item(statement: PartiQLInsert, given: Placeholders) -> Item:
    """The item of an INSERT."""
    return {name: given.value(placeholder) for name, placeholder in statement.item}


class SelectColumns(Paths):
    """The paths of a SELECT, of which each is a column of its own in the result."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Sequence[tuple[str, DocumentPath]], given: Placeholders) -> None:
        try:
            paths = [(name, given.path(path)) for name, path in columns]
        except InvalidExpression as refused:
            raise Invalid(str(refused)) from None
        super().__init__(steps for _, steps in paths)
        self._columns: list[tuple[str, Read]] = [(name, reader(steps)) for name, steps in paths]

    def project(self, item: Item) -> Item:
        return {name: found for name, read in self._columns if (found := read(item)) is not None}


def columns(statement: PartiQLSelect, given: Placeholders) -> Paths | None:
    """The columns of a SELECT; None: whole items."""
    if statement.columns is None:
        return None
    if any(len(path.parts) > 1 for _, path in statement.columns):
        return SelectColumns(statement.columns, given)
    return Paths((name,) for name, _ in statement.columns)


# -- the WHERE clause


def conjuncts(node: Node | None) -> list[Node]:
    """The conditions that a WHERE clause joins by AND."""
    found: list[Node] = []
    todo = [] if node is None else [node]
    while todo:
        each = todo.pop()
        if isinstance(each, Every):
            todo.extend(reversed(each.nodes))
        else:
            found.append(each)
    return found


class _OnAttribute(NamedTuple):
    """A condition that compares a top-level attribute with values."""

    name: str
    op: str
    values: list[Value]


def _on_attribute(node: Node, given: Placeholders) -> _OnAttribute | None:
    op = node.op if isinstance(node, Compare) else node.name if isinstance(node, Call) else None
    if op is None or (op not in INDEXABLE and op != "IN"):
        return None
    assert isinstance(node, Compare | Call)
    args: Sequence[Operand] = node.args
    if op in _MIRRORED and len(args) == 2 and isinstance(args[0], ValuePlaceholder):
        op, args = _MIRRORED[op], (args[1], args[0])
    path = args[0] if args else None
    if not isinstance(path, DocumentPath) or len(path.parts) > 1:
        return None
    values = [given.value(each.name) for each in args[1:] if isinstance(each, ValuePlaceholder)]
    return _OnAttribute(str(path.parts[0]), op, values) if len(values) == len(args) - 1 else None


class NamedItem(NamedTuple):
    """The key that a WHERE clause names, as far as it does; the other conditions; a key that has two values."""

    key: Item
    rest: list[Node]
    conflict: str | None


def named_item(where: Node | None, given: Placeholders, names: Sequence[str], *, one_of: bool = False) -> NamedItem:
    """The item that equalities on the attributes `names` name. `one_of`: also an IN with one value."""
    key: Item = {}
    rest: list[Node] = []
    conflict: str | None = None
    for node in conjuncts(where):
        found = _on_attribute(node, given)
        named = found is not None and found.name in names
        if (
            found is None
            or not named
            or not (found.op == "=" or (one_of and found.op == "IN" and len(found.values) == 1))
        ):
            rest.append(node)
        elif found.name not in key:
            key[found.name] = found.values[0]
        elif not value.equal(key[found.name], found.values[0]):
            conflict = conflict or found.name
            rest.append(node)
    return NamedItem(key, rest, conflict)


# -- plans of SELECT


class SelectPart(NamedTuple):
    """One range of keys, and the filter of its items."""

    condition: KeyCondition
    filter: ItemCondition | None
    start: bytes  # the first key, by which the parts are ordered


class SelectPlan(NamedTuple):
    """How a SELECT is read: ranges of keys, or everything (`parts` is None) with a filter."""

    definition: Definition
    index_name: str | None
    parts: tuple[SelectPart, ...] | None
    filter: ItemCondition | None
    reverse: bool
    projection: Paths | None
    key: Item | None  # the whole key, if the SELECT names one item of the table and nothing else


def plan(
    statement: PartiQLSelect, given: Placeholders, definition: Definition, *, consistent: bool = False
) -> SelectPlan:
    """The plan of a SELECT."""
    return _SelectPlanner(statement, given, definition, consistent).plan()


class _SelectPlanner:
    def __init__(self, statement: PartiQLSelect, given: Placeholders, definition: Definition, consistent: bool) -> None:
        self._statement = statement
        self._given = given
        self._definition = definition
        self._index = _index(definition, statement.source.index, consistent)
        # The alternatives share most conditions: each is looked at once, and so is each filter.
        self._on_keys: dict[int, tuple[Node, _OnAttribute | None]] = {}
        self._filters: dict[tuple[int, ...], tuple[ItemCondition | None, list[str]]] = {}
        if self._index is None:
            self._hash, self._range = definition.hash, definition.range
        else:
            self._hash = self._index.hash[0]
            self._range = self._index.range[0] if self._index.range else None

    def plan(self) -> SelectPlan:
        statement, where = self._statement, self._statement.where
        projection = columns(statement, self._given)
        keyed = where is not None and self._keyed(where)
        reverse, by_hash = self._order(keyed)
        index = statement.source.index
        if where is None or not keyed:
            only = self._filter([] if where is None else [where])
            return SelectPlan(self._definition, index, None, only, False, projection, None)
        parts = self._parts(where)
        parts.sort(key=lambda part: part.start, reverse=reverse)
        self._arrange(parts, by_hash)
        return SelectPlan(self._definition, index, tuple(parts), None, reverse, projection, self._whole_key(parts))

    def _order(self, keyed: bool) -> tuple[bool, bool | None]:
        """Whether the sort key descends; and whether the partition key does, or None if it is in no order."""
        order = self._statement.order
        if not order:
            return False, None
        if self._statement.where is None:
            raise Invalid("Must have WHERE clause in the statement when using ORDER BY clause.")
        for name, _ in order:
            if name not in (self._hash, self._range):
                raise Invalid(f"Attribute {name} in ORDER BY clause must be part of the primary key")
        if not keyed:
            raise Invalid(
                "Must have at least one non-optional hash key condition in WHERE clause when using ORDER BY clause."
            )
        found = dict(order)
        # The service returns sort keys in descending order if only the partition key is ordered.
        return found.get(self._range or "", True), found.get(self._hash)

    def _arrange(self, parts: list[SelectPart], by_hash: bool | None) -> None:
        """Order the parts by partition, and keep the order of those in the same one."""
        hashes = {keys.partition(part.condition.hash) for part in parts}
        if self._statement.order and by_hash is None and len(hashes) > 1:
            raise Invalid(
                "Must have hash key in ORDER BY clause when more than one hash key condition specified in WHERE clause."
            )
        if by_hash is None:
            parts.sort(key=lambda part: keys.partition(part.condition.hash))
        else:
            parts.sort(key=cmp_to_key(_by_hash), reverse=by_hash)

    def _whole_key(self, parts: Sequence[SelectPart]) -> Item | None:
        definition, only = self._definition, parts[0]
        if len(parts) > 1 or self._index is not None or only.filter is not None:
            return None
        if definition.range is None:
            return {definition.hash: only.condition.hash[0]}
        if not only.condition.equal:
            return None
        return {definition.hash: only.condition.hash[0], definition.range: only.condition.equal[0]}

    # -- alternatives

    def _keyed(self, node: Node) -> bool:
        """Whether the condition fixes the partition key, in each of its alternatives."""
        if isinstance(node, Every):
            return any(map(self._keyed, node.nodes))
        if isinstance(node, Either):
            return all(map(self._keyed, node.nodes))
        found = _on_attribute(node, self._given)
        return found is not None and found.name == self._hash and found.op in ("=", "IN")

    def _on_key(self, node: Node) -> _OnAttribute | None:
        """The condition on a key attribute that a range of keys can meet."""
        known = self._on_keys.get(id(node))
        if known is None:
            found = _on_attribute(node, self._given)
            if found is not None and found.name not in (self._hash, self._range):
                found = None
            known = self._on_keys[id(node)] = node, found  # the node is kept, and so is its id
        return known[1]

    def _selects(self, node: Node) -> bool:
        """Whether a condition, or an alternative in it, is on the key."""
        if isinstance(node, Every | Either):
            return any(map(self._selects, node.nodes))
        return self._on_key(node) is not None

    def _alternatives(self, node: Node) -> list[Alternative]:
        """The condition as alternatives, so far as they differ in the key."""
        found: list[Alternative]
        if isinstance(node, Every):
            found = [()]
            for part in node.nodes:
                more = self._alternatives(part)
                if len(found) * len(more) > limits.STATEMENT_READS_MAX:
                    raise Invalid(TOO_MANY_READS)
                found = [one + other for one in found for other in more]
            return found
        if isinstance(node, Either) and self._selects(node):
            found = [one for part in node.nodes for one in self._alternatives(part)]
        elif isinstance(node, Compare) and node.op == "IN" and self._on_key(node) is not None:
            found = [(Compare("=", (node.args[0], each)),) for each in node.args[1:]]
        else:
            found = [(node,)]
        if len(found) > limits.STATEMENT_READS_MAX:
            raise Invalid(TOO_MANY_READS)
        return found

    def _parts(self, where: Node) -> list[SelectPart]:
        alternatives = self._alternatives(where)
        unprojected: list[list[str]] = []
        parts: list[SelectPart] = []
        if len(alternatives) > 1 and any(self._negates(node) for each in alternatives for node in each):
            return self._merged(where, alternatives)
        bounds: list[keys.Bounds] = []
        for each in alternatives:
            wanted, rest = self._range_of(each)
            same = tuple(map(id, rest))
            if same not in self._filters:
                self._filters[same] = self._filter(rest), self._unprojected(rest)
            only, missed = self._filters[same]
            unprojected.append(missed)
            bounds.append(self._bounds(wanted))
            parts.append(SelectPart(wanted, only, bounds[-1].start or b""))
        _check_disjoint(bounds)
        if all(unprojected):
            raise self._not_projected(unprojected[0])
        return parts

    def _merged(self, where: Node, alternatives: Sequence[Alternative]) -> list[SelectPart]:
        """Whole partitions, for alternatives that exclude sort keys and so may overlap: the filter is the whole
        condition."""
        found: dict[bytes, KeyCondition] = {}
        for each in alternatives:
            wanted, _ = self._range_of(each)
            found.setdefault(keys.partition(wanted.hash), KeyCondition(wanted.hash))
        unprojected = self._unprojected([where])
        if unprojected:
            raise self._not_projected(unprojected)
        only = self._filter([where])
        return [SelectPart(wanted, only, prefix) for prefix, wanted in found.items()]

    def _negates(self, node: Node) -> bool:
        """Whether the condition is that the sort key is not something."""
        if isinstance(node, Not):
            return self._range in _names(node)
        return isinstance(node, Compare) and node.op == "<>" and self._range in _names(node)

    def _range_of(self, alternative: Alternative) -> tuple[KeyCondition, list[Node]]:
        """The range of keys of an alternative, and the conditions that remain."""
        partition: Value | None = None
        sort: _OnAttribute | None = None
        sort_node: Node | None = None
        rest: list[Node] = []
        for node in alternative:
            on = self._on_key(node)
            if on is None:
                rest.append(node)
                continue
            self._check_kind(on)
            if on.name == self._hash:
                if on.op == "=" and partition is None:
                    partition = on.values[0]
                elif on.op != "=" or partition is None or not value.equal(partition, on.values[0]):
                    rest.append(node)
            elif sort is None or (on.op == "=" and sort.op != "="):
                if sort_node is not None:
                    rest.append(sort_node)
                sort, sort_node = on, node
            else:
                rest.append(node)
        assert partition is not None, "an alternative without a partition key"
        if sort is None:
            return KeyCondition([partition]), rest
        if sort.op == "=":
            return KeyCondition([partition], sort.values), rest
        return KeyCondition([partition], [], sort.op, sort.values), rest

    def _check_kind(self, on: _OnAttribute) -> None:
        kind = self._definition.kinds[on.name]
        if any(kind not in each for each in on.values):
            raise Invalid(f"Key attribute's data type should match its data type in table's schema: Key {on.name}")

    def _bounds(self, wanted: KeyCondition) -> keys.Bounds:
        return keys.range_bounds(
            keys.partition(wanted.hash),
            index=self._index is not None,
            equal=wanted.equal,
            op=wanted.op,
            operands=wanted.operands,
        )

    # -- filters

    def _held(self) -> frozenset[str] | None:
        """The attributes that the index holds; None: all."""
        index = self._index
        if index is None or index.projection.kind == "ALL":
            return None
        return frozenset((*self._definition.keys, *index.hash, *index.range, *index.projection.attributes))

    def _unprojected(self, nodes: Iterable[Node]) -> list[str]:
        held = self._held()
        if held is None:
            return []
        return list(dict.fromkeys(name for node in nodes for name in _names(node) if name not in held))

    def _not_projected(self, names: Sequence[str]) -> Invalid:
        assert self._index is not None
        return Invalid(
            f"{INVALID}Secondary index {self._index.name} does not project one or more filter attributes: "
            f"[{', '.join(names)}]"
        )

    def _filter(self, nodes: Sequence[Node]) -> ItemCondition | None:
        """The filter of these conditions. It sees an item as the index holds it."""
        found = condition(nodes, self._given)
        held = self._held()
        if found is None or held is None:
            return found
        test, seen = found.test, held
        return ItemCondition(
            lambda item: test({name: each for name, each in item.items() if name in seen}),
            found.names & held,
            found.nested & held,
        )


def _index(definition: Definition, name: str | None, consistent: bool) -> IndexDefinition | None:
    if name is None:
        return None
    index = definition.by_name.get(name)
    if index is None:
        raise Invalid(NO_INDEX)
    if len(index.hash) > 1 or len(index.range) > 1:
        raise Invalid(SEVERAL_PARTS)
    if consistent and not index.local:
        raise Invalid(CONSISTENT_INDEX)
    return index


def _names(node: Node) -> list[str]:
    """The top-level attributes that a condition names, in their order."""
    found: list[str] = []
    todo: list[Node | Operand] = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, DocumentPath):
            found.append(str(each.parts[0]))
        elif isinstance(each, Compare | Call):
            todo.extend(reversed(each.args))
        elif isinstance(each, Not):
            todo.append(each.node)
        elif isinstance(each, Every | Either):
            todo.extend(reversed(each.nodes))
    return found


def _by_hash(one: SelectPart, other: SelectPart) -> int:
    return value.compare(one.condition.hash[0], other.condition.hash[0]) or 0


def _check_disjoint(ranges: Sequence[keys.Bounds]) -> None:
    """Raise if two ranges have keys in common."""
    end: bytes | None = b""
    for start, _, before in sorted(ranges, key=lambda each: each.start or b""):
        if end is None or (start or b"") < end:
            raise Invalid(OVERLAPPING)
        end = before


# -- reading


class PlannedKey:
    """The key condition of a part, for a query of the table that it was planned for."""

    __slots__ = ("_condition", "_plan")

    def __init__(self, plan: SelectPlan, part: SelectPart) -> None:
        self._plan = plan
        self._condition = part.condition

    def __call__(self, hashes: tuple[str, ...], ranges: tuple[str, ...], kinds: Mapping[str, Any]) -> KeyCondition:
        definition = self._plan.definition
        index = None if self._plan.index_name is None else definition.by_name[self._plan.index_name]
        planned = (index.hash, index.range) if index is not None else ((definition.hash,), definition.keys[1:])
        if (hashes, ranges) != planned or kinds != definition.kinds:
            raise TableNotFound(definition.name)  # it was deleted and made anew since then
        return self._condition

"""Access paths: which keys of a table, or of one of its indexes, a statement has to read. Pure: nothing is read here.

A statement says what it needs (`SourceNeeds`): comparisons that hold for every row it wants, an order, a limit. The
path is a list of ranges of keys that has all these rows, and perhaps others: whoever reads them evaluates the
conditions again. A comparison is used only where the table compares as SQL does: text with text in the order of UTF-8,
numbers with numbers, bytes with bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice, product
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.scalar.runtime import uuid_text
from tailrace.sql.values import moment_text
from tailrace.tables import key as keys
from tailrace.tables import number
from tailrace.tables.definition import ACTIVE, TEXTS, Definition, IndexDefinition
from tailrace.tables.export import AFTER_ALL
from tailrace.tables.value import Value

_OFFSET: Final = re.compile(r"\d:\d\d.*[+-]\d\d(:?\d\d)?$")  # of a time from UTC
EQUAL: Final = "="
IN: Final = "IN"
PREFIX: Final = "PREFIX"
_BOUNDING: Final = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", PREFIX: "begins_with"}
# Declared types, by key type, that SQL compares in the same way as the table's key.
_DECLARED_ALIKE: Final = {"S": ("TEXT",), "N": ("BIGINT", "DECIMAL"), "B": ("BLOB",)}


class Comparison(msgspec.Struct, frozen=True):
    """A comparison of a column (in lower case) with a constant; of IN, with a tuple of constants."""

    column: str
    op: str  # =, <, <=, >, >=, IN or PREFIX
    value: Any


class SourceNeeds(msgspec.Struct, frozen=True):
    """How much of a source a statement needs. Every row of its result meets all of `where`."""

    where: tuple[Comparison, ...] = ()
    limit: int | None = None  # rows; applies only if the reader can evaluate all of `where`, and has them in `order`
    names: frozenset[str] | None = None  # columns, in lower case; None: all
    ensure: tuple[str, ...] = ()  # columns that a table without declared columns must have, if only with nulls
    order: tuple[str, bool] | None = None  # the column (in lower case) that the limit is by, and whether descending


class KeyRange(msgspec.Struct, frozen=True, gc=False):
    """Keys from `start` on and below `before`."""

    start: bytes = b""
    before: bytes = AFTER_ALL


class AccessPath(msgspec.Struct, frozen=True):
    """Ranges of keys of a table, or of its index: disjoint, in order."""

    definition: Definition
    index: IndexDefinition | None = None
    ranges: tuple[KeyRange, ...] = (KeyRange(),)
    columns: tuple[str, ...] = ()  # attributes of the key that the ranges are made of
    limit: int | None = None  # rows that are enough
    reverse: bool = False  # from the last key on
    unique: bool = False  # a range has one row at most

    @property
    def whole(self) -> bool:
        """Whether all of the table is read."""
        return self.index is None and not self.columns

    def described(self) -> str:
        """The path in words, for EXPLAIN."""
        table, columns = self.definition.name, ", ".join(self.columns)
        if self.whole:
            text = f"scan of all of {table}"
        else:
            what = table if self.index is None else f"index {self.index.name} of {table}"
            several = "" if len(self.ranges) == 1 else f" in {len(self.ranges)} ranges"
            text = f"{'keys' if self.unique else 'range'} of {what} by {columns}{several}"
        if self.limit is not None:
            text += f", the {'last' if self.reverse else 'first'} {self.limit}"
        return text


class _Candidate(msgspec.Struct, frozen=True):
    """A path, how much it narrows, and the conditions that all of its rows meet."""

    path: AccessPath
    rank: tuple[int, int, int]
    used: frozenset[int]
    order: str | None  # the attribute that the rows are in the order of


def access_path(definition: Definition, needs: SourceNeeds) -> AccessPath:
    """The narrowest path to what is needed."""
    found = [each for each in _candidates(definition, needs.where) if each is not None]
    best = max(found, key=lambda each: each.rank, default=None)
    if best is None:
        return AccessPath(definition, limit=needs.limit if not needs.where and needs.order is None else None)
    path, limit = best.path, needs.limit
    if limit is None or len(best.used) < len(needs.where):
        return path
    if needs.order is None:
        return msgspec.structs.replace(path, limit=limit)
    column, descending = needs.order
    if len(path.ranges) == 1 and best.order is not None and best.order.lower() == column:
        return msgspec.structs.replace(path, limit=limit, reverse=descending)
    return path


def _candidates(definition: Definition, where: Sequence[Comparison]) -> Iterator[_Candidate | None]:
    if not where:
        return
    ranges = () if definition.range is None else (definition.range,)
    yield _candidate(definition, None, (definition.hash,), ranges, where)
    for index in definition.indexes:
        # An item that lacks an attribute of the index's key is not in the index, and meets no comparison of that
        # attribute. One that has it with another type may meet one, as SQL compares it: then the index is not used.
        if (
            index.status == ACTIVE
            and not index.partial
            and all(
                name in definition.keys or _compared(definition, name, where) for name in (*index.hash, *index.range)
            )
        ):
            yield _candidate(definition, index, index.hash, index.range, where)


def _candidate(
    definition: Definition,
    index: IndexDefinition | None,
    hashes: tuple[str, ...],
    ranges: tuple[str, ...],
    where: Sequence[Comparison],
) -> _Candidate | None:
    used: set[int] = set()
    partitions: list[list[Value]] = []
    for name in hashes:
        equal = _equal(definition, name, where)
        if equal is None:
            return None
        used.add(equal[0])
        partitions.append(equal[1])
    prefixes: list[list[Value]] = []  # values of leading range attributes
    columns = list(hashes)
    bounds: list[tuple[int, str, Value]] = []
    for name in ranges:
        columns.append(name)
        equal = _equal(definition, name, where)
        if equal is None:
            bounds = list(_bounds(definition, name, where))
            used.update(at for at, _, _ in bounds)
            columns = columns if bounds else columns[:-1]
            break
        used.add(equal[0])
        prefixes.append(equal[1])
    made = _ranges(index, partitions, prefixes, bounds)
    if made is None:
        return None
    pinned = len(hashes) + len(prefixes)
    unique = index is None and len(columns) == len(definition.keys) and not bounds
    path = AccessPath(definition, index, made, tuple(columns), unique=unique)
    order = ranges[len(prefixes)] if len(prefixes) < len(ranges) else None
    if order is not None and not _alike(definition, order):
        order = None
    return _Candidate(path, (int(unique), 2 * pinned + bool(bounds), int(index is None)), frozenset(used), order)


def _ranges(
    index: IndexDefinition | None,
    partitions: list[list[Value]],
    prefixes: list[list[Value]],
    bounds: list[tuple[int, str, Value]],
) -> tuple[KeyRange, ...] | None:
    """The ranges, in order; None if they are too many, or a value can be no key."""
    found: set[tuple[bytes, bytes]] = set()
    combined = product(*partitions, *prefixes)
    some = list(islice(combined, limits.SELECT_RANGES_MAX + 1))
    if len(some) > limits.SELECT_RANGES_MAX:
        return None
    try:
        for values in some:
            partition, equal = keys.partition(values[: len(partitions)]), values[len(partitions) :]
            found.add(_narrowed(partition, index is not None, equal, bounds))
    except Invalid:
        return None
    return tuple(KeyRange(start, before) for start, before in sorted(found) if start < before)


def _narrowed(
    partition: bytes, index: bool, equal: Sequence[Value], bounds: list[tuple[int, str, Value]]
) -> tuple[bytes, bytes]:
    whole = keys.range_bounds(partition, index=index, equal=equal)
    start, before = whole.start or b"", AFTER_ALL if whole.before is None else whole.before
    for _, op, value in bounds:
        narrow = keys.range_bounds(partition, index=index, equal=equal, op=op, operands=[value])
        start = max(start, narrow.start or b"")
        before = before if narrow.before is None else min(before, narrow.before)
    return start, before


def _equal(definition: Definition, name: str, where: Sequence[Comparison]) -> tuple[int, list[Value]] | None:
    """The number of the condition that gives an attribute one of some values, and these."""
    if not _alike(definition, name):
        return None
    kind, formed = definition.kinds[name], _formed(definition, name)
    fewest: tuple[int, list[Value]] | None = None
    for at, each in enumerate(where):
        if each.column != name.lower() or each.op not in (EQUAL, IN):
            continue
        values = [_operand(kind, one, formed) for one in (each.value if each.op == IN else (each.value,))]
        known = [one for one in values if one is not None]
        if len(known) == len(values) and (fewest is None or len(known) < len(fewest[1])):
            fewest = at, known
    return fewest


def _bounds(definition: Definition, name: str, where: Sequence[Comparison]) -> Iterator[tuple[int, str, Value]]:
    """The conditions that bound an attribute: their numbers, operators and values."""
    if not _alike(definition, name):
        return
    kind, formed = definition.kinds[name], _formed(definition, name)
    for at, each in enumerate(where):
        op = _BOUNDING.get(each.op)
        if each.op == PREFIX and (kind != "S" or formed not in (None, "UUID")):
            continue
        if each.column == name.lower() and op is not None:
            value = _operand(kind, each.value, formed)
            if value is not None:
                yield at, op, value


def _compared(definition: Definition, name: str, where: Sequence[Comparison]) -> bool:
    """Whether a condition compares an attribute with a value of its type."""
    return _equal(definition, name, where) is not None or next(_bounds(definition, name, where), None) is not None


def _alike(definition: Definition, name: str) -> bool:
    """Whether the table compares the attribute in the same way as SQL."""
    declared = dict(definition.column_kinds or ()).get(name)
    return declared is None or declared in _DECLARED_ALIKE[definition.kinds[name]]


def _formed(definition: Definition, name: str) -> str | None:
    """The kind of a column that is a time or a UUID, which is stored in one form and may be written in others."""
    kind = next((column.kind for column in definition.columns if column.name == name), None)
    return kind if kind in TEXTS else None


def _operand(kind: str, constant: Any, formed: str | None = None) -> Value | None:
    """The constant as a key value; None if it cannot be one. `formed`: the key is a TIMESTAMP, a DATE or a UUID."""
    if formed == "UUID":
        constant = uuid_text(constant)
    elif formed is not None:
        if isinstance(constant, str) and _OFFSET.search(constant):
            return None  # DuckDB reads the time and leaves the offset out
        constant = moment_text(formed, constant)
    if kind == "N":
        if type(constant) is int or (isinstance(constant, Decimal) and constant.is_finite()):
            try:
                return {"N": number.canonical(str(constant))}
            except Invalid:
                return None
        return None
    if kind == "S" and isinstance(constant, str):
        try:
            size = len(constant.encode())
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        return {"S": constant} if 0 < size <= limits.SORT_KEY_BYTES_MAX else None
    if kind == "B" and isinstance(constant, bytes):
        return {"B": constant} if 0 < len(constant) <= limits.SORT_KEY_BYTES_MAX else None
    return None

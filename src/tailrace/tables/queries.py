"""Reading items: one by key, several by key, a partition in order, everything.

`QueryItems` and `ScanItems` return a slice of a page; `Pager` assembles pages. An index holds pointers: the items of an
index query are read from the table, and reduced to the index's projection.

Requests are checked in the order of the service, because a client sees only the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

import msgspec

from tailrace import command, limits
from tailrace.errors import Corrupt, Error, Invalid, TableNotFound, TransactionCanceled
from tailrace.storage.engine import Reader
from tailrace.tables import key as keys
from tailrace.tables import messages, value
from tailrace.tables.capacity import Capacity, read_units
from tailrace.tables.definition import (
    ACTIVE,
    INDEX_ENTRIES,
    ITEMS,
    Definition,
    IndexDefinition,
    IndexRow,
    ItemRow,
    find,
)
from tailrace.tables.expression import ItemCondition, KeyCondition, Paths, check_scalars
from tailrace.tables.paging import (
    ALL_ATTRIBUTES,
    COUNT,
    FoundItem,
    HeavyItems,
    ItemPage,
    ItemSlice,
    PageProgress,
    Pager,
    weight,
    weight_most,
)
from tailrace.tables.value import Item, Value

__all__ = [
    "BatchGet",
    "BatchGetKeys",
    "BatchGot",
    "GetItem",
    "Got",
    "HeavyItems",
    "ItemPage",
    "ItemSlice",
    "Pager",
    "QueryItems",
    "ScanItems",
    "TransactGet",
    "TransactGot",
]

ITEMS_AT_ONCE: Final = 32  # examined before the clock is read
BYTES_AT_ONCE: Final = 32 * limits.KiB
_POINTERS: Final = 256  # index entries of one slice; each costs a lookup in the table
_INVALID_START: Final = "The provided starting key is invalid"
_OUTSIDE: Final = "The provided starting key is outside query boundaries based on provided conditions"
_ONE_ROW: Final = "The query can return at most one row and cannot be restarted"

_decode: Final = value.decode

KeyBinder = Callable[[tuple[str, ...], tuple[str, ...], Mapping[str, str]], KeyCondition]
"""Gives the key condition, once the hash and range attributes are known."""


# -- by key


class Got(msgspec.Struct, frozen=True, gc=False):
    """An item, or None. It is decoded when it is asked for: the stored bytes may be all that is needed."""

    definition: Definition
    body: bytes | None  # the whole item, as it is stored
    projection: Paths | None = None
    consumed: Capacity | None = None

    @property
    def item(self) -> Item | None:
        return None if self.body is None else _projected(self.body, self.projection)


class GetItem(command.Query[Got], frozen=True):
    """The item with this key. Every read is consistent; `consistent` only affects the capacity units."""

    single = True
    subject = ("tables", "table")

    table: str
    key: Item
    projection: Paths | None = None
    consistent: bool = False
    capacity: bool = False

    def run(self, reader: Reader) -> Got:
        definition = find(reader, self.table)
        row = reader.get(ITEMS, definition.space, keys.key_of(definition, self.key))
        if self.projection is not None:
            check_scalars(definition, self.projection)
        units = None
        if self.capacity:
            units = Capacity(definition.name, read_units(0 if row is None else row.size, self.consistent))
        return Got(definition, None if row is None else row.body, self.projection, units)


class BatchGetKeys(msgspec.Struct, frozen=True):
    """The keys of one table in a batch."""

    table: str
    keys: tuple[Item, ...]
    projection: Paths | None = None
    consistent: bool = False


class BatchGot(msgspec.Struct, frozen=True):
    """The result of a batch, by table: items, unprocessed keys, capacity units."""

    items: dict[str, list[FoundItem]]
    unprocessed: dict[str, list[Item]]
    consumed: dict[str, Capacity]


class BatchGet(command.Query[BatchGot], frozen=True):
    """Up to a hundred items of several tables, as they are at one moment."""

    requests: tuple[BatchGetKeys, ...]
    capacity: bool = False
    stored: bool = False  # items that are returned whole are their stored bytes

    def subjects(self) -> tuple[str, ...]:
        return tuple({f"tables/{wanted.table}" for wanted in self.requests})

    def run(self, reader: Reader) -> BatchGot:
        for wanted in self.requests:
            if len({_identity(key) for key in wanted.keys}) != len(wanted.keys):
                raise Invalid("Provided list of item keys contains duplicates")
        if sum(len(wanted.keys) for wanted in self.requests) > limits.BATCH_GET_KEYS_MAX:
            raise Invalid("Too many items requested for the BatchGetItem call")
        stored_keys = [self._stored_keys(reader, wanted) for wanted in self.requests]
        found: dict[str, list[FoundItem]] = {}
        unprocessed: dict[str, list[Item]] = {}
        consumed: dict[str, Capacity] = {}
        size = 0
        for wanted, (definition, stored) in zip(self.requests, stored_keys, strict=True):
            shown = found.setdefault(definition.name, [])
            units = 0.0
            for key, stored_key in zip(wanted.keys, stored, strict=True):
                row = reader.get(ITEMS, definition.space, stored_key)
                if row is not None and size + row.size > limits.BATCH_GET_BYTES_MAX:
                    unprocessed.setdefault(definition.name, []).append(key)
                    units += read_units(0, wanted.consistent)
                    continue
                units += read_units(0 if row is None else row.size, wanted.consistent)
                if row is not None:
                    size += row.size
                    whole = self.stored and wanted.projection is None
                    shown.append(row.body if whole else _projected(row.body, wanted.projection))
            if self.capacity:
                consumed[definition.name] = Capacity(definition.name, units)
        return BatchGot(found, unprocessed, consumed)

    def _stored_keys(self, reader: Reader, wanted: BatchGetKeys) -> tuple[Definition, list[bytes]]:
        definition = find(reader, wanted.table)
        stored_keys = [keys.key_of(definition, key) for key in wanted.keys]
        if wanted.projection is not None:
            check_scalars(definition, wanted.projection)
        return definition, stored_keys


class TransactGot(msgspec.Struct, frozen=True):
    """Items in the order of the gets; None for a missing one."""

    items: list[Item | None]
    consumed: dict[str, Capacity]


class TransactGet(command.Query[TransactGot], frozen=True):
    """Several items as they are at one moment: all, or an error with a reason per get."""

    gets: tuple[GetItem, ...]
    capacity: bool = False

    def subjects(self) -> tuple[str, ...]:
        return tuple({f"tables/{get.table}" for get in self.gets})

    def run(self, reader: Reader) -> TransactGot:
        stored_keys: list[tuple[Definition, bytes]] = []
        reasons: list[tuple[str, str | None, Any]] = []
        for get in self.gets:
            definition = find(reader, get.table)
            try:
                stored_keys.append((definition, keys.key_of(definition, get.key)))
                if get.projection is not None:
                    check_scalars(definition, get.projection)
                reasons.append(("None", None, None))
            except (TableNotFound, messages.RequestInvalid):
                raise
            except Error as error:
                reasons.append(("ValidationError", str(error), None))
        if any(code != "None" for code, _, _ in reasons):
            raise TransactionCanceled(reasons)
        if len({(definition.space, stored_key) for definition, stored_key in stored_keys}) != len(stored_keys):
            raise Invalid("Transaction request cannot include multiple operations on one item")
        rows = [reader.get(ITEMS, definition.space, stored_key) for definition, stored_key in stored_keys]
        if sum(row.size for row in rows if row is not None) > limits.TRANSACT_GET_BYTES_MAX:
            raise Invalid("Collective size of all items in a transaction cannot exceed 4 MB")
        consumed: dict[str, Capacity] = {}
        if self.capacity:
            for (definition, _), row in zip(stored_keys, rows, strict=True):
                units = read_units(0 if row is None else row.size, consistent=True, transactional=True)
                before = consumed.get(definition.name, Capacity(definition.name))
                consumed[definition.name] = before + Capacity(definition.name, units)
        pairs = zip(rows, self.gets, strict=True)
        items = [None if row is None else _projected(row.body, get.projection) for row, get in pairs]
        return TransactGot(items, consumed)


def _projected(body: bytes, projection: Paths | None) -> Item:
    item = _decode(body)
    return item if projection is None else projection.project(item)


def _identity(key: Item) -> bytes:
    return value.encode(dict(sorted(key.items())))


# -- in order


class QueryPlan(msgspec.Struct, frozen=True, gc=False):
    """The plan of a query or scan: a range of keys, and the visible attributes."""

    definition: Definition
    index: IndexDefinition | None
    start: bytes | None  # the first key
    after: bytes | None  # or the one before it
    before: bytes | None  # the key after the last
    names: frozenset[str] | None  # attributes that the index holds; None: all
    fetch: bool  # attributes are requested that the index does not hold
    single: bool  # there can be only one item
    key_names: tuple[str, ...]  # of a last key


class QueryItems(command.Query[ItemSlice], frozen=True, kw_only=True):
    """Items of one partition of a table or index, in the order of the sort key."""

    subject = ("tables", "table")
    scans = False

    table: str
    condition: KeyBinder
    index: str | None = None
    start: Item | None = None  # the last key of the page before
    limit: int | None = None
    reverse: bool = False
    filter: ItemCondition | None = None
    filters_key: bool = False  # the filter may test attributes of the key
    projection: Paths | None = None
    select: str | None = None
    consistent: bool = False
    capacity: bool = False
    legacy: bool = False  # filter and projection come from legacy parameters
    progress: PageProgress | None = None  # the pager's
    slice_s: float = limits.ITEM_SLICE_S
    light: bool = False  # raise `HeavyItems` rather than read large items
    stored: bool = False  # items that are returned whole are their stored bytes

    @property
    def single(self) -> bool:  # type: ignore[override]
        """A table is read by one statement, and so at one moment; an index and the items that it points to are not."""
        return self.index is None

    def run(self, reader: Reader) -> ItemSlice:
        return _slice(reader, self, self.reverse)

    def plan(self, reader: Reader) -> QueryPlan:
        """Check the question against the table and work out what to read."""
        definition = find(reader, self.table)
        index = _index(definition, self.index, self.consistent)
        hash_names, range_names = _key_names(definition, index)
        start = self.start
        if start is not None:
            _check_start_size(definition, index, start, _INVALID_START)
            for name in hash_names:
                _check_start_part(definition, start, name)
        wanted = self.condition(hash_names, range_names, definition.kinds)
        _check_kinds(definition, wanted, hash_names, range_names)
        if start is not None:
            for name in range_names:
                _check_start_part(definition, start, name)
        first, after, before = _bounds(wanted.hash, wanted, index)
        single = index is None and (definition.range is None or bool(wanted.equal))
        if start is not None:
            stored_key = _start_key(definition, index, start)
            self._check_start(definition, index, start, stored_key, wanted)
            if self.reverse:
                before = stored_key if before is None else min(before, stored_key)
            else:
                first, after = None, stored_key if after is None else max(after, stored_key)
        if self.projection is not None:
            check_scalars(definition, self.projection)
        self._check_filter(hash_names + range_names)
        names, fetch = _visible(definition, index, self)
        if self.filter is not None:
            check_scalars(definition, self.filter)
        return QueryPlan(definition, index, first, after, before, names, fetch, single, _last_names(definition, index))

    def _check_start(
        self,
        definition: Definition,
        index: IndexDefinition | None,
        start: Item,
        stored_key: bytes,
        wanted: KeyCondition,
    ) -> None:
        """Raise unless the start key is one that the query could have returned."""
        hash_names, _ = _key_names(definition, index)
        same = all(value.equal(start[name], part) for name, part in zip(hash_names, wanted.hash, strict=True))
        if wanted.op is None and not wanted.equal:
            if not same:
                raise Invalid(_OUTSIDE)
            if index is None and definition.range is None:
                raise Invalid(f"The provided exclusive start key is invalid: ExclusiveStartKey: {_key_text(start)}")
            return
        # The predicate comes first, as if the partition were the right one.
        first, after, before = _bounds([start[name] for name in hash_names], wanted, index)
        if (
            (first is not None and stored_key < first)
            or (after is not None and stored_key <= after)
            or (before is not None and stored_key >= before)
        ):
            raise Invalid("The provided starting key does not match the range key predicate")
        if not same or (index is None and wanted.equal):
            raise Invalid(_ONE_ROW)

    def _check_filter(self, key_names: tuple[str, ...]) -> None:
        if self.filter is None or self.filters_key:
            return
        used = self.filter.names
        for name in key_names:
            if name in used:
                parameter = "QueryFilter" if self.legacy else "Filter Expression"
                raise Invalid(f"{parameter} can only contain non-primary key attributes: Primary key attribute: {name}")


class ScanItems(command.Query[ItemSlice], frozen=True, kw_only=True):
    """All items of a table or index, or of one of `total` segments of it."""

    subject = ("tables", "table")
    scans = True

    table: str
    index: str | None = None
    segment: int | None = None
    total: int | None = None
    start: Item | None = None  # the last key of the page before
    limit: int | None = None
    filter: ItemCondition | None = None
    projection: Paths | None = None
    select: str | None = None
    consistent: bool = False
    capacity: bool = False
    legacy: bool = False  # filter and projection come from legacy parameters
    progress: PageProgress | None = None  # the pager's
    slice_s: float = limits.ITEM_SLICE_S
    light: bool = False  # raise `HeavyItems` rather than read large items
    stored: bool = False  # items that are returned whole are their stored bytes

    @property
    def single(self) -> bool:  # type: ignore[override]
        """A table is read by one statement, and so at one moment; an index and the items that it points to are not."""
        return self.index is None

    def run(self, reader: Reader) -> ItemSlice:
        return _slice(reader, self, False)

    def plan(self, reader: Reader) -> QueryPlan:
        """Check the question against the table and work out what to read."""
        definition = find(reader, self.table)
        index = _index(definition, self.index, self.consistent)
        start = self.start
        if start is not None:
            wrong = _INVALID_START if index is not None else f"{_INVALID_START}: {messages.KEY_MISMATCH}"
            _check_start_size(definition, index, start, wrong)
            if index is not None:
                hash_names, range_names = _key_names(definition, index)
                for name in hash_names + range_names:
                    _check_start_part(definition, start, name)
        names, fetch = _visible(definition, index, self)
        first, before = (None, None) if self.total is None else keys.segment_bounds(self.segment or 0, self.total)
        after = None
        if start is not None:
            after = _start_key(definition, index, start)
            if (first is not None and after < first) or (before is not None and after >= before):
                raise Invalid(
                    f"{_INVALID_START}: Invalid ExclusiveStartKey. Please use ExclusiveStartKey with correct Segment. "
                    f"TotalSegments: {self.total} Segment: {self.segment}"
                )
            first = None
        if self.projection is not None:
            check_scalars(definition, self.projection)
        if self.filter is not None:
            check_scalars(definition, self.filter)
        return QueryPlan(definition, index, first, after, before, names, fetch, False, _last_names(definition, index))


# -- checking


def _index(definition: Definition, name: str | None, consistent: bool) -> IndexDefinition | None:
    if name is None:
        return None
    index = definition.by_name.get(name)
    if index is None:
        raise Invalid(f"The table does not have the specified index: {name}")
    if not index.local:
        if consistent:
            raise Invalid("Consistent reads are not supported on global secondary indexes")
        if index.status != ACTIVE:
            raise Invalid(f"Cannot read from backfilling global secondary index: {name}")
    return index


def _key_names(definition: Definition, index: IndexDefinition | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if index is not None:
        return index.hash, index.range
    return (definition.hash,), () if definition.range is None else (definition.range,)


def _last_names(definition: Definition, index: IndexDefinition | None) -> tuple[str, ...]:
    """The attributes of a last key: those of the index, and of the item's own key."""
    if index is None:
        return definition.keys
    return tuple(dict.fromkeys(definition.keys + index.hash + index.range))


def _check_start_size(definition: Definition, index: IndexDefinition | None, start: Item, wrong: str) -> None:
    if len(start) != len(_last_names(definition, index)):
        raise Invalid(wrong)


def _check_start_part(definition: Definition, start: Item, name: str) -> None:
    part = start.get(name)
    if part is None:
        raise Invalid(_INVALID_START)
    if definition.kinds[name] not in part:
        raise Invalid(messages.KEY_MISMATCH)


def _start_key(definition: Definition, index: IndexDefinition | None, start: Item) -> bytes:
    """The stored key of a start key, whether or not the item exists."""
    own = {name: start[name] for name in definition.keys if name in start}
    try:
        stored_key = keys.key_of(definition, own)
        if index is None:
            return stored_key
        found = keys.index_key(definition, index, start, stored_key)
    except Invalid as error:
        raise Invalid(f"{_INVALID_START}: {error}") from None
    if found is None:
        raise Invalid(_INVALID_START)
    return found


def _check_kinds(
    definition: Definition, wanted: KeyCondition, hash_names: tuple[str, ...], range_names: tuple[str, ...]
) -> None:
    kinds = definition.kinds
    pairs = list(zip(hash_names, wanted.hash, strict=True)) + list(zip(range_names, wanted.equal, strict=False))
    if wanted.op is not None:
        name = range_names[len(wanted.equal)]
        pairs += [(name, operand) for operand in wanted.operands]
    for name, operand in pairs:
        if kinds[name] not in operand:
            raise Invalid(f"{messages.INVALID}Condition parameter type does not match schema type")
        if not operand[kinds[name]]:
            raise messages.empty_key(name, kinds[name])


def _visible(
    definition: Definition, index: IndexDefinition | None, request: QueryItems | ScanItems
) -> tuple[frozenset[str] | None, bool]:
    """The attributes that the index holds (None: all), and whether others are requested."""
    if index is None or index.projection.kind == "ALL":
        return None, False
    held = frozenset((*definition.keys, *index.hash, *index.range, *index.projection.attributes))
    if request.select == ALL_ATTRIBUTES:
        if not index.local:
            raise Invalid(
                f"{messages.INVALID}Select type ALL_ATTRIBUTES is not supported for global "
                f"secondary index {index.name} because its projection type is not ALL"
            )
        return held, True
    wanted = () if request.projection is None else request.projection.steps
    missing = list(dict.fromkeys(str(path[0]) for path in wanted if path[0] not in held))
    if missing and not index.local:
        raise Invalid(f"{messages.INVALID}Global secondary index {index.name} does not project [{', '.join(missing)}]")
    if not missing and index.local and request.filter is not None:
        missing = [name for name in request.filter.names if name not in held]
    return held, bool(missing)


def _key_text(start: Item) -> str:
    """A key as the service's messages show it."""
    parts = ((name, *next(iter(part.items()))) for name, part in start.items())
    return "{" + ", ".join(f"{name}=AttributeValue: {{{kind}:{held}}}" for name, kind, held in parts) + "}"


# -- reading


def _bounds(hashes: list[Value], wanted: KeyCondition, index: IndexDefinition | None) -> keys.Bounds:
    """The keys of the partition of these hash values that meet the condition."""
    return keys.range_bounds(
        keys.partition(hashes), index=index is not None, equal=wanted.equal, op=wanted.op, operands=wanted.operands
    )


def _slice(reader: Reader, request: QueryItems | ScanItems, reverse: bool) -> ItemSlice:
    """Examine the next items: up to a slice's worth, or the rest of the page."""
    progress = request.progress
    if progress is None:
        plan = request.plan(reader)
        first, after, before, heavy = plan.start, plan.after, plan.before, 0
    else:
        plan, heavy = progress.plan, progress.weight
        if reverse:
            first, after, before = plan.start, plan.after, progress.position
        else:
            first, after, before = None, progress.position, plan.before
        _check_still_there(reader, request, plan)
    definition, index = plan.definition, plan.index
    most = limits.SLICE_ENTRIES if index is None else _POINTERS
    if request.limit is not None and request.limit < most:
        most = request.limit
    bounds: dict[str, Any] = {"start": first, "after": after, "before": before, "limit": most, "reverse": reverse}
    pointers: list[IndexRow] = []
    if index is None:
        rows, size, taken = _take(reader.scan(ITEMS, definition.space, **bounds))
    else:
        pointers = list(reader.scan(INDEX_ENTRIES, index.space, **bounds))
        rows, size, taken = _take(_fetched(reader, definition, pointers))
    ended = taken and len(rows) < most
    large = limits.LOOP_ITEM_BYTES_MAX
    if request.light and size > large and any(row.size > large for row in rows):
        raise HeavyItems
    uncertain = heavy + weight_most(size, len(rows)) >= limits.ITEM_PAGE_BYTES
    weighed = uncertain or not (ended or len(rows) == request.limit)
    if not weighed and request.stored and _whole(request, plan):
        seen = _Examined(heavy)
        seen.items = [row.body for row in rows]
        seen.count = seen.scanned = len(rows)
        seen.size = size
    else:
        seen = _examined(request, plan, rows, heavy, weighed=weighed)
    position = last_key = None
    if rows and (seen.full or not ended or seen.scanned < len(rows)) and not plan.single:
        position = rows[seen.scanned - 1].key if index is None else pointers[seen.scanned - 1].key
        last = _decode(rows[seen.scanned - 1].body)
        last_key = {name: last[name] for name in plan.key_names}
    return ItemSlice(
        definition, index, seen.items, seen.count, seen.scanned, seen.size, seen.fetched, seen.weight, plan, position,
        last_key, seen.full,
    )  # fmt: skip


def _check_still_there(reader: Reader, request: QueryItems | ScanItems, plan: QueryPlan) -> None:
    """Raise if the table or the index was deleted between two slices of a page, or recreated."""
    definition = find(reader, request.table)
    if definition.space != plan.definition.space:
        raise TableNotFound(request.table)
    if plan.index is not None:
        index = _index(definition, request.index, request.consistent)
        if index is None or index.space != plan.index.space:
            raise Invalid(f"The table does not have the specified index: {request.index}")


class _Examined:
    """The examined items of a slice, up to its end: the page is full, or the time of the slice is over."""

    __slots__ = ("count", "fetched", "full", "items", "scanned", "size", "weight")

    def __init__(self, weight: int) -> None:
        self.items: list[FoundItem] = []
        self.count = self.scanned = self.size = self.fetched = 0
        self.weight = weight
        self.full = False


def _examined(
    request: QueryItems | ScanItems, plan: QueryPlan, rows: list[ItemRow], heavy: int, *, weighed: bool
) -> _Examined:
    """Examine the items, some at a time, for the time of a slice. `weighed`: their weight is needed."""
    seen = _Examined(heavy)
    began = perf_counter()
    at = 0
    while at < len(rows) and not seen.full:
        if at and perf_counter() - began >= request.slice_s:
            if not weighed:  # the page continues after all, so its weight is needed
                seen.weight, _ = _weigh(_views(plan, rows[:at], False)[0], plan.definition.range, heavy)
            break
        some = _some(rows, at)
        _look(request, plan, some, seen, weighed=weighed)
        at += len(some)
    return seen


def _some(rows: list[ItemRow], at: int) -> list[ItemRow]:
    """The items from `at` on that are examined before the clock is read again."""
    size = 0
    for number, row in enumerate(rows[at : at + ITEMS_AT_ONCE], start=1):
        size += row.size
        if size > BYTES_AT_ONCE:
            return rows[at : at + number]
    return rows[at : at + ITEMS_AT_ONCE]


def _look(
    request: QueryItems | ScanItems, plan: QueryPlan, rows: list[ItemRow], seen: _Examined, *, weighed: bool
) -> None:
    views, size, fetched = _views(plan, rows, request.capacity)
    if weighed:
        seen.weight, kept = _weigh(views, plan.definition.range, seen.weight)
        seen.full = seen.weight >= limits.ITEM_PAGE_BYTES
        if kept < len(rows):
            views, size, fetched = _views(plan, rows[:kept], request.capacity)
    seen.scanned += len(views)
    seen.size += size
    seen.fetched += fetched
    if request.stored and _whole(request, plan):
        seen.count += len(views)
        seen.items += [row.body for row in rows[: len(views)]]
        return
    passed = views if request.filter is None else list(filter(request.filter.test, views))
    seen.count += len(passed)
    if request.select != COUNT:
        seen.items += passed if request.projection is None else [request.projection.project(item) for item in passed]


def _whole(request: QueryItems | ScanItems, plan: QueryPlan) -> bool:
    """Whether all examined items are returned as they are in the table."""
    return plan.names is None and request.filter is None and request.projection is None and request.select != COUNT


def _take(found: Iterable[ItemRow]) -> tuple[list[ItemRow], int, bool]:
    """Rows up to a slice's worth of bytes; their size, and whether these are all."""
    rows: list[ItemRow] = []
    size, size_max = 0, limits.SLICE_BYTES
    for row in found:
        rows.append(row)
        size += row.size
        if size >= size_max:
            return rows, size, False
    return rows, size, True


def _fetched(reader: Reader, definition: Definition, pointers: list[IndexRow]) -> Iterator[ItemRow]:
    """The items of index entries."""
    for pointer in pointers:
        row = reader.get(ITEMS, definition.space, pointer.item)
        if row is None:
            raise Corrupt(
                f"an index of {definition.name} points to an item that does not exist; run `tailrace check` and "
                "restore a backup"
            )
        yield row


def _views(plan: QueryPlan, rows: list[ItemRow], counted: bool) -> tuple[list[Item], int, int]:
    """The items as visible in this table or index; the bytes examined, and the bytes fetched in addition from the table
    (only counted if capacity is requested)."""
    items = [_decode(row.body) for row in rows]
    total = sum([row.size for row in rows]) if counted else 0
    names = plan.names
    if names is None:
        return items, total, 0
    if plan.fetch and not counted:
        return items, 0, 0
    held = [{name: part for name, part in item.items() if name in names} for item in items]
    size = sum(map(value.item_size, held)) if counted else 0
    return (items, size, total) if plan.fetch else (held, size, 0)


def _weigh(views: list[Item], range_name: str | None, heavy: int) -> tuple[int, int]:
    """The weight of the page with these items, up to the one that fills it; and their number."""
    for number, item in enumerate(views, start=1):
        heavy += weight(item, range_name)
        if heavy >= limits.ITEM_PAGE_BYTES:
            return heavy, number
    return heavy, len(views)

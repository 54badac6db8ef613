"""Pages of queries and scans: how they are assembled, and where they end.

Theory of operation
-------------------
A page is read in slices, each a short query of its own, so that the event loop is not blocked for a whole megabyte.
`Pager` yields the queries and merges their results; it never waits itself:

    pager = Pager(query)
    while (step := pager.next()) is not None:
        pager.add(db.execute(step))
    page = pager.page()

A page ends with `limit` items examined, or with the item that makes it a megabyte. Both return a last key, whether or
not items follow. The service measures that megabyte in the bytes of its own storage format, not in those it charges for
(`weight`), and so does Tailrace: clients see where pages end.
"""

from __future__ import annotations

from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from tailrace.errors import Invalid
from tailrace.tables import messages, value
from tailrace.tables.capacity import Capacity, IndexCapacity, partitions_scanned, read_units
from tailrace.tables.definition import Definition, IndexDefinition
from tailrace.tables.value import Item, Value

ALL_ATTRIBUTES: Final = "ALL_ATTRIBUTES"
ALL_PROJECTED_ATTRIBUTES: Final = "ALL_PROJECTED_ATTRIBUTES"
SPECIFIC_ATTRIBUTES: Final = "SPECIFIC_ATTRIBUTES"
COUNT: Final = "COUNT"

FoundItem: TypeAlias = Item | bytes  # an item, or the stored bytes of a whole one (`stored`)


class HeavyItems(Exception):
    """The slice has items that are too large for the event loop: read it in a thread."""


class PageProgress(msgspec.Struct, frozen=True, gc=False):
    """The state of an unfinished page: the plan of the first slice, the last key examined, and the weight so far."""

    plan: Any
    position: bytes
    weight: int


class ItemSlice(msgspec.Struct, frozen=True, gc=False):
    """A part of a page."""

    definition: Definition
    index: IndexDefinition | None
    items: list[Any]  # of FoundItem: those that passed the filter; none if only their number is requested
    count: int
    scanned: int
    size: int  # bytes examined, in the table or in the index
    fetched: int  # bytes read from the table because the index does not hold them
    weight: int  # of the page so far
    plan: Any
    position: bytes | None  # continue after it; None: there are no more
    last_key: Item | None  # of the last item examined, if the page can end with it
    full: bool  # the page has reached its size limit


class ItemPage(msgspec.Struct, frozen=True):
    """The result of a query or a scan."""

    definition: Definition
    items: list[Any] | None  # of FoundItem; None: only the number was requested
    count: int
    scanned: int
    last_key: Item | None  # start the next page after it; None: this was the last one
    consumed: Capacity | None


class Paged(Protocol):
    """The common fields of queries and scans."""

    @property
    def scans(self) -> bool: ...  # whether it goes through many partitions
    @property
    def index(self) -> str | None: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def projection(self) -> Any: ...
    @property
    def select(self) -> str | None: ...
    @property
    def consistent(self) -> bool: ...
    @property
    def capacity(self) -> bool: ...
    @property
    def legacy(self) -> bool: ...


Q = TypeVar("Q", bound=Paged)


class Pager(Generic[Q]):
    """Requests slices until a page is full."""

    __slots__ = ("_count", "_done", "_fetched", "_items", "_last", "_query", "_scanned", "_size")

    def __init__(self, query: Q) -> None:
        check_select(query)
        self._query = query
        self._items: list[Any] = []
        self._count = self._scanned = self._size = self._fetched = 0
        self._last: ItemSlice | None = None
        self._done = False

    def next(self) -> Q | None:
        """The next query; None: the page is complete."""
        last = self._last
        if last is None:
            return self._query
        if self._done:
            return None
        assert last.position is not None
        progress = PageProgress(last.plan, last.position, last.weight)
        limit = self._query.limit
        left = None if limit is None else limit - self._scanned
        return msgspec.structs.replace(self._query, limit=left, progress=progress)  # type: ignore[type-var]

    @property
    def done(self) -> bool:
        """Whether the page is complete."""
        return self._done

    def add(self, part: ItemSlice) -> None:
        """Add the result of a query."""
        self._last = part
        if self._items:
            self._items += part.items
        else:
            self._items = part.items
        self._count += part.count
        self._scanned += part.scanned
        self._size += part.size
        self._fetched += part.fetched
        self._done = part.position is None or part.full or self._scanned == self._query.limit

    def page(self) -> ItemPage:
        """The complete page."""
        last = self._last
        assert last is not None and self._done, "a page is complete when there is nothing to ask any more"
        query = self._query
        items = None if query.select == COUNT else self._items
        last_key = None if last.position is None else last.last_key
        consumed = self._consumed(last) if query.capacity else None
        return ItemPage(last.definition, items, self._count, self._scanned, last_key, consumed)

    def _consumed(self, last: ItemSlice) -> Capacity:
        consistent = self._query.consistent
        units = read_units(self._size, consistent, partitions=self._partitions(last))
        if last.index is None:
            return Capacity(last.definition.name, units)
        fetched = read_units(self._fetched, consistent) if self._fetched else 0.0
        return Capacity(
            last.definition.name, fetched, 0.0, {last.index.name: IndexCapacity(units, 0.0, last.index.local)}
        )

    def _partitions(self, last: ItemSlice) -> int:
        """How many of the service's partitions a scan went through; a query is in one."""
        if not self._query.scans:
            return 1
        plan = last.plan
        first = plan.start if plan.after is None else plan.after
        return partitions_scanned(first, last.position, plan.before, last.definition.billing == "PAY_PER_REQUEST")


def check_select(query: Paged) -> None:
    """Raise if the selection of attributes contradicts itself, whatever the table."""
    select = query.select
    named = query.projection is not None
    if select is None or (select == SPECIFIC_ATTRIBUTES and named):
        return
    if select == SPECIFIC_ATTRIBUTES:
        wrong = f"Must specify the AttributesToGet or ProjectionExpression when choosing to get {select}"
    elif named:
        parameter = "AttributesToGet" if query.legacy else "ProjectionExpression"
        what = "only the Count" if select == COUNT else select
        wrong = f"Cannot specify the {parameter} when choosing to get {what}"
    elif select == ALL_PROJECTED_ATTRIBUTES and query.index is None:
        wrong = f"{select} can be used only when Querying using an IndexName"
    else:
        return
    raise Invalid(wrong if query.scans else messages.DETECTED + wrong)


# -- the weight of items

_WEIGHT_PER_BYTE: Final = 6  # an upper bound of an item's weight per byte of its size
_WEIGHT_PER_ITEM: Final = 1_100  # and in addition per item: its key once more, and the frame
_BLOCK_BYTES: Final = 3_072  # the service stores an item in blocks; each repeats the sort key
_BLOCK_FRAME: Final = 18


def weight_most(size: int, items: int) -> int:
    """An upper bound of the weight of items with this total size. It suffices for most pages, which are small."""
    return size * _WEIGHT_PER_BYTE + items * _WEIGHT_PER_ITEM


def weight(item: Item, range_name: str | None) -> int:
    """The share of a page's megabyte that an item takes: names count one byte, values include their length, and the
    sort key is repeated in every block."""
    total = len(item)
    in_blocks = 0
    for name, attribute in item.items():
        if name == range_name:
            in_blocks = value.size(attribute)
            total -= 1
        elif "S" in attribute:
            text = attribute["S"]
            size = len(text) if text.isascii() else len(text.encode())
            total += size + (1 if size < 128 else 2 if size < 16_384 else 3)
        else:
            total += _stored(attribute)
    return 2 + total + (1 + (1 + total) // _BLOCK_BYTES) * (_BLOCK_FRAME + in_blocks)


def _stored(attribute: Value) -> int:
    ((kind, held),) = attribute.items()
    if kind == "S":
        size = value.size(attribute)
        return size + (1 if size < 128 else 2 if size < 16_384 else 3)
    if kind in ("N", "B"):
        return value.size(attribute) + 1
    if kind == "NULL":
        return 0
    if kind == "BOOL":
        return 1
    if kind == "L":
        return 3 + sum(1 + _stored(inner) for inner in held)
    if kind == "M":
        return 3 + sum(2 + _stored(inner) for inner in held.values())
    return value.size(attribute) + len(held) + 1

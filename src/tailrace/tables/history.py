"""The past of a table: the versions of one item, and the items as of an earlier moment.

Both are read from the change stream, hot and cold, and nothing is stored for them. Versions are searched backwards from
the newest record; a page examines a bounded part of the stream and says where the next one goes on. Items of an earlier
moment are the present ones with the old images of all changes since: the first old image of a key after that moment is
the item at that moment.

The log is read backwards where it is hot. Cold entries are read forwards only, so a window of positions is read below
the last one: it grows where entries are few, and shrinks where they are large. Each step is a query of its own, so that
none needs more of the cold cache than one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.command import Query
from tailrace.errors import Gone, Invalid, NotFound, TooLarge
from tailrace.log import cold, segments
from tailrace.log.entry import Entry, Log
from tailrace.storage.engine import Reader
from tailrace.tables import change, retention, value
from tailrace.tables import key as keys
from tailrace.tables.change_reading import ReadEntries, entries_from, position_after
from tailrace.tables.change_stream import ChangeStream, find_stream, last_sequence, log_of
from tailrace.tables.definition import ITEMS, Definition, counted, find
from tailrace.tables.value import Item

_WINDOW: Final = 4_096  # positions of the first window of cold entries
_json: Final = msgspec.json.Decoder(dict[str, Any], float_hook=str)


class ItemVersion(msgspec.Struct, frozen=True):
    """A change of an item; the images are there if the change stream records them."""

    sequence: int
    index: int  # within its transaction
    at_ms: int
    event: str
    by: str
    old: Item | None
    new: Item | None
    cold: bool  # it was read from cold storage


class ItemHistory(msgspec.Struct, frozen=True):
    """Some versions of an item, the newest first."""

    stream: ChangeStream
    key: Item
    versions: list[ItemVersion]
    before: int | None  # older ones, if any, have sequences before this; None: all were examined


def key_from_json(definition: Definition, text: str) -> Item:
    """A key as JSON has it: plain values, or typed ones like ``{"S": "x"}``."""
    try:
        given = _json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_key(definition, f"is not JSON: {error}") from None
    typed: dict[str, Any] = {}
    for name in definition.keys:
        kind, inner = definition.kinds[name], given.pop(name, None)
        if isinstance(inner, dict) and set(inner) == {kind}:
            inner = inner[kind]
        if kind == "N" and type(inner) is int:
            inner = str(inner)
        if not isinstance(inner, str):
            raise _no_key(definition, f"has no {name} of type {kind}")
        typed[name] = {kind: inner}
    if given:
        raise _no_key(definition, f"has another attribute, {str(next(iter(given)))[:80]!r}")
    return value.read_item(typed)[0]


def _no_key(definition: Definition, why: str) -> Invalid:
    shape = ", ".join(f'"{name}": a value of type {definition.kinds[name]}' for name in definition.keys)
    return Invalid(f"the key {why}; a key of table {definition.name!r} is {{{shape}}}", code="INVALID_KEY")


# -- versions of an item


class HistoryPlan(msgspec.Struct, frozen=True):
    """An item whose history is read, and the bounds of the change stream."""

    definition: Definition
    stream: ChangeStream
    key: Item
    first: int  # the earliest position, hot or cold
    start: int  # of the hot log
    next: int


class PlanHistory(Query[HistoryPlan], frozen=True):
    subject = ("tables", "table")

    table: str
    key: str  # as JSON

    def run(self, reader: Reader) -> HistoryPlan:
        definition = find(reader, self.table)
        stream = find_stream(reader, self.table)
        log, key = log_of(reader, stream), key_from_json(definition, self.key)
        keys.key_of(definition, key)
        return HistoryPlan(definition, stream, key, cold.earliest(reader, log), log.start, log.next)


class SearchHot(Query[int], frozen=True):
    """Search the hot entries of sequences below `before`, backwards; below which to go on."""

    subject = ("tables", "table")

    table: str
    label: str
    before: int
    search: ItemSearch

    def run(self, reader: Reader) -> int:
        log = log_of(reader, find_stream(reader, self.table, self.label))
        for entry in segments.scan(reader, log.id, start=log.start, before=self.before, reverse=True):
            if entry.next > self.before:
                continue  # `before` is within it
            if self.search.done:
                return entry.next
            self.search.examine((entry,), cold=False)
        return min(log.start, self.before)


def item_history(
    execute: Callable[[Query[Any]], Any], table: str, key: str, before: int | None = None, limit: int = 100
) -> ItemHistory:
    """The versions of the item with a key, the newest first, of sequences below `before` (None: from the newest on).
    `limit` is rounded up to a whole transaction. A page may have no version and still a `before` for the next one."""
    if not 1 <= limit <= limits.HISTORY_VERSIONS_MAX:
        raise Invalid(f"limit is 1 to {limits.HISTORY_VERSIONS_MAX}, not {limit}", code="INVALID_LIMIT")
    plan: HistoryPlan = execute(PlanHistory(table, key))
    search = ItemSearch(plan.definition, plan.key, limit)
    before = plan.next if before is None else min(before, plan.next)
    if before > plan.start:
        before = int(execute(SearchHot(table, plan.stream.label, before, search)))
    window = _WINDOW
    while plan.first < before <= plan.start and not search.done:
        low = max(plan.first, before - window)
        found = _window(execute, plan, low, before)
        if found is None:
            window = max(1, window // 4)  # the entries are large: a smaller window
            continue
        search.examine(reversed(found), cold=True)
        if len(found) < limits.HISTORY_ENTRIES // 8:
            window *= 4
        before = low
    return ItemHistory(plan.stream, plan.key, search.found, before if before > plan.first else None)


def _window(execute: Callable[[Query[Any]], Any], plan: HistoryPlan, low: int, before: int) -> list[Entry] | None:
    """The entries of sequences from `low` on and below `before`; None if they are too many or too large, unless there
    is only one."""
    found: list[Entry] = []
    size, position = 0, low
    while position < before:
        page = execute(ReadEntries(plan.stream.name, plan.stream.label, position, limits.CHANGE_PAGE_BYTES))
        for entry in page.entries:
            if entry.next > before:
                return found
            found.append(entry)
            size += len(entry.body)
        if len(found) > 1 and (size > limits.HISTORY_BYTES or len(found) > limits.HISTORY_ENTRIES):
            return None
        if page.next <= position:
            break
        position = page.next
    return found


class ItemSearch:
    """The versions of an item found so far, and how much may still be examined for them."""

    def __init__(self, definition: Definition, key: Item, limit: int) -> None:
        self.found: list[ItemVersion] = []
        self._definition = definition
        self._key = keys.key_of(definition, key)
        self._limit = limit
        self._entries, self._bytes = limits.HISTORY_ENTRIES, limits.HISTORY_BYTES
        # A text is stored as it is: most entries can be passed over without being decoded.
        text = key[definition.hash].get("S")
        self._needle = b"" if text is None else text.encode()

    @property
    def done(self) -> bool:
        return len(self.found) >= self._limit or self._entries <= 0 or self._bytes <= 0

    def examine(self, entries: Iterable[Entry], *, cold: bool) -> None:
        """Add the versions in entries, the newest first."""
        for entry in entries:
            self._entries -= 1
            self._bytes -= len(entry.body)
            if self._needle in entry.body:
                self.found += reversed(self._versions(entry, cold))

    def _versions(self, entry: Entry, cold: bool) -> list[ItemVersion]:
        found = []
        held = change.skimmed(entry.body)
        for index, raw in enumerate(held.records):
            if self._needle not in bytes(raw):
                continue
            record = change.record(raw)
            if keys.key_of(self._definition, record.keys) == self._key:
                event = change.EVENTS[record.event]
                found.append(
                    ItemVersion(entry.next - 1, index, entry.at_ms, event, held.by, record.old, record.new, cold)
                )
        return found


# -- items as of an earlier moment


class PastItems(msgspec.Struct, frozen=True):
    """Some items as they were after the transaction `sequence`, in the order of their keys."""

    definition: Definition
    sequence: int
    items: list[Item]
    after: Item | None  # the key after which the next page begins; None: there are no more


class PastPlan(msgspec.Struct, frozen=True):
    """A moment, and where the changes since then begin."""

    definition: Definition
    stream: ChangeStream
    sequence: int
    position: int
    start: int  # of the hot log


class PlanPast(Query[PastPlan], frozen=True):
    """Find a moment, a sequence or a time, in the change stream of a table."""

    subject = ("tables", "table")

    table: str
    sequence: int | None = None
    at_ms: int | None = None

    def run(self, reader: Reader) -> PastPlan:
        definition = find(reader, self.table)
        stream = _undoable(reader, definition)
        log = log_of(reader, stream)
        sequence = self._sequence(reader, stream, log)
        position = position_after(reader, stream, log, sequence)
        return PastPlan(definition, stream, sequence, position, log.start)

    def _sequence(self, reader: Reader, stream: ChangeStream, log: Log) -> int:
        if self.sequence is not None:
            return self.sequence
        assert self.at_ms is not None
        if self.at_ms < stream.created_ms:
            raise NotFound(
                f"the change stream of table {self.table!r} began later than this time, at sequence "
                f"{stream.first - 1}; earlier items were not recorded",
                code="NOT_RECORDED",
            )
        if self.at_ms >= log.at_ms:
            return max(last_sequence(reader), log.next - 1)
        position = retention.first_after(reader, log, self.at_ms)
        first = cold.earliest(reader, log)
        if position <= first and first > stream.first:
            raise Gone(
                f"the changes of table {self.table!r} from before this time are no longer retained; the oldest is of "
                f"sequence {first}",
                code="OFFSET_TRIMMED",
            )
        return max(position, first) - 1


class ReadPastItems(Query[PastItems | None], frozen=True):
    """A page of items: the present ones, with the changes from `position` on undone, and those before it that `undone`
    has already. None: these changes are no longer hot, and have to be added first."""

    subject = ("tables", "table")

    table: str
    plan: PastPlan
    undone: OldImages
    position: int
    after: str | None
    limit: int

    def run(self, reader: Reader) -> PastItems | None:
        definition = find(reader, self.table)
        if definition.space != self.plan.definition.space:
            raise Gone(f"table {self.table!r} was dropped and created again in the meantime")
        log = log_of(reader, find_stream(reader, self.table, self.plan.stream.label))
        if self.position < log.start:
            return None
        after = None if self.after is None else keys.key_of(definition, key_from_json(definition, self.after))
        for entry in entries_from(reader, log, self.position):
            if not self.undone.records:
                self.undone.check(counted(reader, -log.id).items - change.before(entry.body))
            self.undone.add(entry)
        found, more = _page(reader, definition, self.undone.images, after, self.limit)
        items = [value.decode(body) for body in found]
        last = {name: items[-1][name] for name in definition.keys} if items and more else None
        return PastItems(definition, self.plan.sequence, items, last)


def past_items(
    execute: Callable[[Query[Any]], Any],
    table: str,
    *,
    sequence: int | None = None,
    at_ms: int | None = None,
    after: str | None = None,
    limit: int = 100,
) -> PastItems:
    """A page of the items of a table as of a sequence, or of a time, `after` a key. The changes since then are undone,
    so there may not be too many of them, and the change stream has to record old images."""
    if not 1 <= limit <= limits.HISTORY_VERSIONS_MAX:
        raise Invalid(f"limit is 1 to {limits.HISTORY_VERSIONS_MAX}, not {limit}", code="INVALID_LIMIT")
    plan: PastPlan = execute(PlanPast(table, sequence, at_ms))
    undone, position, start = OldImages(plan.definition), plan.position, plan.start
    while True:
        while position < start:
            page = execute(ReadEntries(table, plan.stream.label, position, limits.CHANGE_PAGE_BYTES))
            for entry in page.entries:
                undone.add(entry)
            position = page.next
        found: PastItems | None = execute(ReadPastItems(table, plan, undone, position, after, limit))
        if found is not None:
            return found
        start = position + 1  # they were trimmed into cold storage in the meantime


class OldImages:
    """By key, the items as they were at a moment, of those that have changed since; `NO_IMAGE` if there was none."""

    def __init__(self, definition: Definition) -> None:
        self.images: dict[bytes, bytes] = {}
        self.records = 0
        self._bytes = 0
        self._definition = definition

    def add(self, entry: Entry) -> None:
        """Add the changes of the next transaction."""
        self._bytes += len(entry.body)
        records = change.skimmed_records(entry.body).records
        self.records += len(records)
        self.check(self.records)
        for record in records:
            key = keys.key_of(self._definition, value.decode(bytes(record.keys)))
            if key not in self.images:
                self.images[key] = bytes(record.old)

    def check(self, records: int) -> None:
        """Raise if so many are too many."""
        if records > limits.UNDONE_RECORDS_MAX or self._bytes > limits.UNDONE_BYTES_MAX:
            raise TooLarge(
                f"table {self._definition.name!r} has had too many changes since this moment: at most "
                f"{limits.UNDONE_RECORDS_MAX} and {limits.UNDONE_BYTES_MAX} bytes of them are undone for one request; "
                "choose a later moment, or restore the table of then with `tailrace pipeline restore`",
                code="TOO_FAR_BACK",
            )


def _undoable(reader: Reader, definition: Definition) -> ChangeStream:
    """The table's change stream, if its changes can be undone."""
    stream = definition.stream
    if stream is not None and stream.view in (change.BOTH, change.OLD_IMAGE):
        return find_stream(reader, definition.name)
    why = "does not record its changes" if stream is None else f"records its changes as {stream.view}"
    raise Invalid(
        f"table {definition.name!r} {why}, so its past is not known; record old images from now on with a change "
        f"stream of view {change.BOTH}",
        code="STREAM_NEEDED",
    )


def _page(
    reader: Reader, definition: Definition, old: dict[bytes, bytes], after: bytes | None, limit: int
) -> tuple[list[bytes], bool]:
    """The next items, as stored, with those that have changed replaced; and whether there may be more."""
    found: list[bytes] = []
    size = 0
    for body in _as_they_were(reader, definition, old, after):
        if len(found) >= limit or size >= limits.ITEM_PAGE_BYTES:
            return found, True
        found.append(body)
        size += len(body)
    return found, False


def _as_they_were(
    reader: Reader, definition: Definition, old: dict[bytes, bytes], after: bytes | None
) -> Iterator[bytes]:
    """The items in the order of their keys, `after` one, merged with the old images."""
    changed = sorted((key for key in old if after is None or key > after), reverse=True)
    for row in reader.scan(ITEMS, definition.space, after=after):
        while changed and changed[-1] <= row.key:
            if (body := old[changed.pop()]) != change.NO_IMAGE:
                yield body
        if row.key not in old:
            yield row.body
    for key in reversed(changed):
        if old[key] != change.NO_IMAGE:
            yield old[key]

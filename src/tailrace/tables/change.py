"""Change records, and how the records of one transaction are stored in the log.

Theory of operation
-------------------
A transaction has a *sequence*, the next number of one counter for the whole database. All that it changes in one
table is one entry of that table's log, so a read of whole entries never splits a transaction. The log's positions are
sequences: the entry of sequence `s` covers everything from the end of the entry before it up to and including `s`.
Hence `entry.next - 1` is the sequence, and a reader that has seen `s` continues at `s + 1`.

An entry's body is the number of records that the stream had before it (eight bytes, so that retention by count can look
without decoding), then MessagePack. Images are the stored bytes of the items: capture copies them without encoding.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import msgspec

from tailrace import limits
from tailrace.errors import TooLarge
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Entry
from tailrace.storage.engine import Tx
from tailrace.tables.definition import COUNTS, CountRow, Definition, add_count, counted
from tailrace.tables.value import Item

SEQUENCE: Final = "sequence"  # the name of the counter
TTL: Final = "ttl"  # the principal that removes expired items
KEYS_ONLY: Final = "KEYS_ONLY"
NEW_IMAGE: Final = "NEW_IMAGE"
OLD_IMAGE: Final = "OLD_IMAGE"
BOTH: Final = "NEW_AND_OLD_IMAGES"
VIEWS: Final = (NEW_IMAGE, OLD_IMAGE, BOTH, KEYS_ONLY)
EVENTS: Final = ("INSERT", "MODIFY", "REMOVE")
HEAD_BYTES: Final = 8
_HAS_OLD: Final = frozenset((OLD_IMAGE, BOTH))
_HAS_NEW: Final = frozenset((NEW_IMAGE, BOTH))


class StoredRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record inside an entry."""

    event: int  # into EVENTS
    size: int  # of keys and images, as DynamoDB counts it
    keys: Any  # Item
    old: Any  # Item | None
    new: Any  # Item | None


class StoredEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All changes of one transaction to one table, and its principal."""

    by: str
    records: list[StoredRecord]


class ChangeRecord(msgspec.Struct, frozen=True):
    """One change of one item."""

    sequence: int
    index: int  # within its transaction
    last: bool  # of its transaction
    event: str
    keys: Item
    old: Item | None
    new: Item | None
    at_ms: int
    by: str
    size: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(StoredEntry)


def opened(body: bytes) -> StoredEntry:
    """An entry's body, decoded."""
    return _decoder.decode(memoryview(body)[HEAD_BYTES:])


class SkimmedEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry whose records are not decoded."""

    by: str
    records: list[msgspec.Raw]


class SkimmedRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record whose items are not decoded: stored bytes, or `NO_IMAGE`."""

    event: int  # into EVENTS
    size: int
    keys: msgspec.Raw
    old: msgspec.Raw
    new: msgspec.Raw


class SkimmedRecords(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry whose records are taken apart, but their items are not decoded."""

    by: str
    records: list[SkimmedRecord]


NO_IMAGE: Final = msgspec.msgpack.encode(None)
_skimmer: Final = msgspec.msgpack.Decoder(SkimmedEntry)
_record: Final = msgspec.msgpack.Decoder(StoredRecord)
_record_skimmer: Final = msgspec.msgpack.Decoder(SkimmedRecord)
_records_skimmer: Final = msgspec.msgpack.Decoder(SkimmedRecords)


def skimmed(body: bytes) -> SkimmedEntry:
    """An entry's body with undecoded records, for readers that need only some of a large transaction."""
    return _skimmer.decode(memoryview(body)[HEAD_BYTES:])


def skimmed_records(body: bytes) -> SkimmedRecords:
    """An entry's body with undecoded items, for readers that copy them."""
    return _records_skimmer.decode(memoryview(body)[HEAD_BYTES:])


def record(raw: msgspec.Raw) -> StoredRecord:
    """A record of a skimmed entry, decoded."""
    return _record.decode(raw)


def skimmed_record(raw: msgspec.Raw) -> SkimmedRecord:
    """A record of a skimmed entry, with undecoded items."""
    return _record_skimmer.decode(raw)


def before(body: bytes) -> int:
    """How many records the stream had before this entry. The first bytes of the body are enough."""
    return int.from_bytes(body[:HEAD_BYTES])


def decode(entry: Entry) -> list[ChangeRecord]:
    """The records of one transaction, in order."""
    found = opened(entry.body)
    sequence, last = entry.next - 1, len(found.records) - 1
    return [
        ChangeRecord(
            sequence, index, index == last, EVENTS[record.event], record.keys, record.old, record.new, entry.at_ms,
            found.by, record.size,
        )
        for index, record in enumerate(found.records)
    ]  # fmt: skip


def encode(records_before: int, by: str, records: list[StoredRecord]) -> bytes:
    return records_before.to_bytes(HEAD_BYTES) + _encode(StoredEntry(by, records))


def made(
    definition: Definition,
    event: int,
    keys: Item | msgspec.Raw,
    size: int,
    old: tuple[bytes, int],
    new: tuple[bytes, int],
) -> StoredRecord:
    """The record of a change to a table that has a stream; images are stored bytes and sizes, empty if there is
    none."""
    stream = definition.stream
    assert stream is not None
    old_image = new_image = None
    if old[0] and stream.view in _HAS_OLD:
        old_image = msgspec.Raw(old[0])
        size += old[1]
    if new[0] and stream.view in _HAS_NEW:
        new_image = msgspec.Raw(new[0])
        size += new[1]
    return StoredRecord(event, size, keys, old_image, new_image)


def append(tx: Tx, number: int, by: str, transactions: list[tuple[int, list[StoredRecord]]]) -> None:
    """Append the records of transactions, in the order of their sequences, to the log of a change stream."""
    log = tx.get(LOGS, number)
    assert log is not None, f"change stream without its log {number}"
    count = counted(tx, -number)
    total, bodies, ends = count.items, [], []
    for sequence, records in transactions:
        bodies.append(encode(total, by, records))
        ends.append(sequence + 1)
        total += len(records)
    tx.put(COUNTS, CountRow(-number, total, count.bytes + sum(map(len, bodies))))
    logs.append_until(tx, log, bodies, ends)


def too_large() -> TooLarge:
    """The error for a transaction that does not fit an entry."""
    return TooLarge(
        f"a transaction's items, as they were and as they are to be, take at most {limits.TRANSACTION_BYTES_MAX} bytes "
        "together, and so do the images in its change record; write them in several transactions"
    )


class AppliedWrite(Protocol):
    """An applied write: the item before and after it, None if there was or is none."""

    @property
    def definition(self) -> Definition: ...
    @property
    def key(self) -> bytes: ...
    @property
    def new(self) -> Item | None: ...
    @property
    def old(self) -> Item | None: ...


Changed: TypeAlias = tuple[AppliedWrite, int]  # and the event, an index into EVENTS


class Capture:
    """The changes of one transaction so far: what they add to the counts, the records by the log that will hold them,
    and those with routes to topics."""

    __slots__ = ("_counts", "_routed", "_streams", "bytes")

    def __init__(self) -> None:
        self.bytes = 0  # of the records
        self._counts: dict[int, tuple[int, int]] = {}
        self._streams: dict[int, list[StoredRecord]] = {}
        self._routed: list[Changed] = []

    def count(self, space: int, items: int, size: int) -> None:
        """Add to the number of items in a space, and to their bytes."""
        before = self._counts.get(space)
        self._counts[space] = (items, size) if before is None else (before[0] + items, before[1] + size)

    def send(self, plan: AppliedWrite, event: int) -> None:
        """Add a change that has routes."""
        self._routed.append((plan, event))

    def add(
        self,
        definition: Definition,
        event: int,
        keys: Item | msgspec.Raw,
        size: int,
        old: tuple[bytes, int],
        new: tuple[bytes, int],
    ) -> None:
        """Add a change, as for `made`."""
        assert definition.stream is not None
        record = made(definition, event, keys, size, old, new)
        self.bytes += record.size
        self._streams.setdefault(definition.stream.log, []).append(record)

    def append(self, tx: Tx, by: str | None = None) -> int | None:
        """Update the counts, and append the records to the logs under a new sequence; returns it, or None if there were
        no records."""
        for space, (items, size) in self._counts.items():
            add_count(tx, space, items, size)
        self._counts.clear()
        if not self._streams:
            if self._routed:
                self._route(tx, 0, by)
            return None
        if self.bytes > limits.TRANSACTION_BYTES_MAX:
            raise too_large()
        sequence = tx.next_id(SEQUENCE)
        for number, records in self._streams.items():
            append(tx, number, tx.by if by is None else by, [(sequence, records)])
        if self._routed:
            self._route(tx, sequence, by)
        self._streams, self.bytes = {}, 0
        return sequence

    def _route(self, tx: Tx, sequence: int, by: str | None) -> None:
        assert tx.router is not None, "a table has routes, and the database was opened without topics"
        tx.router(tx, sequence, tx.by if by is None else by, self._routed)
        self._routed = []

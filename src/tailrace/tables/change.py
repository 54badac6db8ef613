"""The change stream: what a record is, and how the records of one transaction stand in the log.

Theory of operation
-------------------
A transaction has a *sequence*, the next number of one counter for the whole database. All that it changes in one
table is one entry of that table's log, so a read of whole entries never splits a transaction. The log's positions are
sequences: the entry of sequence `s` covers everything from the end of the entry before it up to and including `s`.
Hence `entry.next - 1` is the sequence, and who has seen `s` goes on at `s + 1`.

An entry's body is the number of records that the stream had before it (eight bytes, so that retention by count can look
without decoding), then MessagePack. Images are the very bytes that are stored for the items: capture copies, it does
not encode.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import msgspec

from tailrace import limits
from tailrace.errors import TooLarge
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Entry
from tailrace.storage.engine import Tx
from tailrace.tables.definition import COUNTS, CountRow, Definition, counted
from tailrace.tables.value import Item

SEQUENCE: Final = "sequence"  # the name of the counter
TTL: Final = "ttl"  # who removes expired items
KEYS_ONLY: Final = "KEYS_ONLY"
NEW_IMAGE: Final = "NEW_IMAGE"
OLD_IMAGE: Final = "OLD_IMAGE"
BOTH: Final = "NEW_AND_OLD_IMAGES"
VIEWS: Final = (NEW_IMAGE, OLD_IMAGE, BOTH, KEYS_ONLY)
EVENTS: Final = ("INSERT", "MODIFY", "REMOVE")
HEAD_BYTES: Final = 8
_HAS_OLD: Final = frozenset((OLD_IMAGE, BOTH))
_HAS_NEW: Final = frozenset((NEW_IMAGE, BOTH))


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record inside an entry."""

    event: int  # into EVENTS
    size: int  # of keys and images, as DynamoDB counts it
    keys: Any  # Item
    old: Any  # Item | None
    new: Any  # Item | None


class StoredEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that one transaction did to one table, and who did it."""

    by: str
    records: list[Stored]


class Record(msgspec.Struct, frozen=True):
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


_skimmer: Final = msgspec.msgpack.Decoder(SkimmedEntry)
_record: Final = msgspec.msgpack.Decoder(Stored)


def skimmed(body: bytes) -> SkimmedEntry:
    """An entry's body, looked over: of a large transaction not every reader wants everything, nor at once."""
    return _skimmer.decode(memoryview(body)[HEAD_BYTES:])


def record(raw: msgspec.Raw) -> Stored:
    """A record of a skimmed entry, decoded."""
    return _record.decode(raw)


def before(body: bytes) -> int:
    """How many records the stream had before this entry. The first bytes of the body are enough."""
    return int.from_bytes(body[:HEAD_BYTES])


def decode(entry: Entry) -> list[Record]:
    """The records of one transaction, in order."""
    found = opened(entry.body)
    sequence, last = entry.next - 1, len(found.records) - 1
    return [
        Record(
            sequence, index, index == last, EVENTS[record.event], record.keys, record.old, record.new, entry.at_ms,
            found.by, record.size,
        )
        for index, record in enumerate(found.records)
    ]  # fmt: skip


def encode(records_before: int, by: str, records: list[Stored]) -> bytes:
    return records_before.to_bytes(HEAD_BYTES) + _encode(StoredEntry(by, records))


def too_large() -> TooLarge:
    """What is answered to a transaction that would not fit an entry."""
    return TooLarge(
        f"a transaction's items, as they were and as they are to be, take at most {limits.TRANSACTION_BYTES_MAX} bytes "
        "together, and so do the images in its change record; write them in several transactions"
    )


class Planned(Protocol):
    """A write that was done: the item before and after it, None where there was or is none."""

    @property
    def definition(self) -> Definition: ...
    @property
    def new(self) -> Item | None: ...
    @property
    def old(self) -> Item | None: ...


Changed: TypeAlias = tuple[Planned, int]  # and what happened, into EVENTS


class Capture:
    """What one transaction has changed so far, by the log that is to hold it, and what of it has routes to topics."""

    __slots__ = ("_bytes", "_routed", "_streams")

    def __init__(self) -> None:
        self._streams: dict[int, list[Stored]] = {}
        self._routed: list[Changed] = []
        self._bytes = 0

    def send(self, plan: Planned, event: int) -> None:
        """Note a change that has routes."""
        self._routed.append((plan, event))

    def add(
        self, definition: Definition, event: int, keys: Item, size: int, old: tuple[bytes, int], new: tuple[bytes, int]
    ) -> None:
        """Note a change; images are given as stored bytes and size, empty where there is none."""
        stream = definition.stream
        assert stream is not None
        old_image = new_image = None
        if old[0] and stream.view in _HAS_OLD:
            old_image = msgspec.Raw(old[0])
            size += old[1]
        if new[0] and stream.view in _HAS_NEW:
            new_image = msgspec.Raw(new[0])
            size += new[1]
        self._bytes += size
        self._streams.setdefault(stream.log, []).append(Stored(event, size, keys, old_image, new_image))

    def append(self, tx: Tx, by: str | None = None) -> int | None:
        """Write it all into the logs, under one new sequence; that, or None where nothing was recorded."""
        if not self._streams:
            if self._routed:
                self._route(tx, 0, by)
            return None
        if self._bytes > limits.TRANSACTION_BYTES_MAX:
            raise too_large()
        sequence = tx.next_id(SEQUENCE)
        for number, records in self._streams.items():
            log = tx.get(LOGS, number)
            assert log is not None, f"change stream without its log {number}"
            count = counted(tx, -number)
            body = encode(count.items, tx.by if by is None else by, records)
            tx.put(COUNTS, CountRow(-number, count.items + len(records), count.bytes + len(body)))
            logs.append(tx, log, body, sequence + 1 - log.next)
        if self._routed:
            self._route(tx, sequence, by)
        self._streams, self._bytes = {}, 0
        return sequence

    def _route(self, tx: Tx, sequence: int, by: str | None) -> None:
        assert tx.router is not None, "a table has routes, and the database was opened without topics"
        tx.router(tx, sequence, tx.by if by is None else by, self._routed)
        self._routed = []

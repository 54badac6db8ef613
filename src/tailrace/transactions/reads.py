"""What a transaction has read, and whether it is still so.

Theory of operation
-------------------
A transaction holds no lock. Each of its reads is recorded as the *value* that was read, in a few bytes: the digest of
an item's stored bytes, or that there was no item; of a range of keys the number of rows and one digest over all of
them; of a stream its tail; of a table the digest of its definition; of a change stream or a topic that was read where
its logs begin and end. The commit reads the same again. If all is equal, the transaction has the effect that it
would have had if it had run as a whole at the moment of its commit: transactions are serializable, in the order of
their commits.

Values are compared, not versions, so nothing has to be stored beside an item. An item that was changed and changed back
is no conflict: a transaction that runs now would read the same. A range is compared from its first to its last key that
was examined, so a row that appeared in it (a phantom) or left it is seen. A range with more rows than it had is
refused without reading the rest.

The definition of a table is read with its items, so a table that was altered, or dropped and recreated, is a conflict.
What a log holds never changes between its ends, so its ends stand for all of it.

A read names its table, which is how access to it is checked; the space in it must be one of that table.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from tailrace import limits
from tailrace.errors import Error, Invalid, NotFound, TooLarge, TransactionConflict
from tailrace.log import cold
from tailrace.log.entry import Log
from tailrace.storage.engine import Reader, Tx
from tailrace.streams.commands import live, log_of
from tailrace.tables.change_stream import find_stream
from tailrace.tables.change_stream import log_of as change_log_of
from tailrace.tables.definition import INDEX_ENTRIES, ITEMS, TABLES, Definition, IndexRow, ItemRow, decoded
from tailrace.topics import topic as topics
from tailrace.topics.commands import subject as topic_subject

DIGEST_BYTES: Final = 16
ROWS_AT_FIRST: Final = 4  # rows of a range that are fetched together, first
ROWS_AT_ONCE: Final = 256  # and later
ABSENT: Final = b""  # the digest of no item


LogEnds: TypeAlias = tuple[int, int, int]  # a log, the earliest position that can be read, and the next one


class RowRead(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """One item was read, or found missing."""

    table: str
    space: int
    key: bytes
    digest: bytes

    def subject(self) -> str:
        return f"tables/{self.table}"

    def rows(self) -> int:
        return 1


class RangeRead(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A range of items, or of entries of an index, was read. `last`: up to this key and no further, although the range
    goes on."""

    table: str
    space: int
    index: bool
    start: bytes | None
    after: bytes | None
    before: bytes | None
    reverse: bool
    last: bytes | None
    count: Annotated[int, msgspec.Meta(ge=0)]
    digest: bytes

    def subject(self) -> str:
        return f"tables/{self.table}"

    def rows(self) -> int:
        return 1 + self.count


class TailRead(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The tail of a stream was read. `position` None: there was no such stream."""

    path: str
    position: int | None
    closed: bool = False

    def subject(self) -> str:
        return f"streams/{self.path}"

    def rows(self) -> int:
        return 1


class DefinitionRead(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The definition of a table was read, or there was no such table."""

    table: str
    digest: bytes

    def subject(self) -> str:
        return f"tables/{self.table}"

    def rows(self) -> int:
        return 1


class ChangesRead(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The change stream of a table was read, or there was none."""

    table: str
    ends: LogEnds | None

    def subject(self) -> str:
        return f"tables/{self.table}"

    def rows(self) -> int:
        return 1


class MessagesRead(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """The messages of a topic were read. `partitions`: where each begins and ends; None: there was no such topic."""

    topic: str
    partitions: tuple[LogEnds, ...] | None

    def subject(self) -> str:
        return topic_subject(self.topic)

    def rows(self) -> int:
        return 1 + len(self.partitions or ())


TransactionRead: TypeAlias = RowRead | RangeRead | TailRead | DefinitionRead | ChangesRead | MessagesRead

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(tuple[TransactionRead, ...])


# -- digests


def digest_of(row: ItemRow | None) -> bytes:
    """The digest of an item."""
    return ABSENT if row is None else blake2b(row.body, digest_size=DIGEST_BYTES).digest()


class RangeDigest:
    """The digest of rows, one after the other."""

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self.count = 0
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, row: ItemRow | IndexRow) -> None:
        body = row.body if isinstance(row, ItemRow) else row.item
        self._hash.update(b"%d %d " % (len(row.key), len(body)))
        self._hash.update(row.key)
        self._hash.update(body)
        self.count += 1

    def digest(self) -> bytes:
        return self._hash.digest()


# -- comparing


def check_count(reads: Iterable[TransactionRead]) -> None:
    """Refuse a transaction that has read too many rows."""
    rows = sum([read.rows() for read in reads])
    if rows > limits.TRANSACTION_READS_MAX:
        raise TooLarge(
            f"the transaction has read {rows} rows, and may read {limits.TRANSACTION_READS_MAX}; read fewer, or "
            "outside of the transaction what need not be the same at its end",
            code="TRANSACTION_TOO_LARGE",
        )


def too_many() -> TooLarge:
    return TooLarge(
        f"a transaction may read {limits.TRANSACTION_READS_MAX} rows and {limits.TRANSACTION_READS_BYTES_MAX} bytes of "
        "them; read fewer, or outside of the transaction what need not be the same at its end",
        code="TRANSACTION_TOO_LARGE",
    )


class ComparedBytes:
    """The bytes of rows that are compared; too many are refused, however they were read."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.TRANSACTION_READS_BYTES_MAX

    def add(self, row: ItemRow | IndexRow) -> None:
        self._left -= len(row.body if isinstance(row, ItemRow) else row.item)
        if self._left < 0:
            raise too_many()


def check_unchanged(reader: Reader | Tx, reads: Iterable[TransactionRead]) -> None:
    """Raise `TransactionConflict` unless everything is as it was read."""
    compared = ComparedBytes()
    definitions: dict[str, Definition | None] = {}
    for read in dict.fromkeys(reads):
        if isinstance(read, TailRead):
            same = tail_read(reader, read.path) == read
        elif isinstance(read, ChangesRead):
            same = changes_read(reader, read.table) == read
        elif isinstance(read, MessagesRead):
            same = messages_read(reader, read.topic) == read
        else:
            if read.table not in definitions:
                row = reader.get(TABLES, read.table)
                definitions[read.table] = None if row is None else decoded(row)
            definition = definitions[read.table]
            if isinstance(read, DefinitionRead):
                same = definition_read(read.table, definition) == read
            else:
                same = definition is not None and _is_same(reader, definition, read, compared)
        if not same:
            raise changed(read)


def changed(read: TransactionRead) -> TransactionConflict:
    """The error for a read that would have another result now."""
    if isinstance(read, TailRead):
        what = f"stream {read.path!r}"
    elif isinstance(read, DefinitionRead):
        what = f"the definition of table {read.table!r}"
    elif isinstance(read, ChangesRead):
        what = f"the change stream of table {read.table!r}"
    elif isinstance(read, MessagesRead):
        what = f"topic {read.topic!r}"
    else:
        what = f"{'a range' if isinstance(read, RangeRead) else 'an item'} of table {read.table!r}"
    return TransactionConflict(
        f"{what} was changed by another transaction after this one had read it; nothing was written: run it again"
    )


def _is_same(reader: Reader | Tx, definition: Definition, read: RowRead | RangeRead, compared: ComparedBytes) -> bool:
    if isinstance(read, RowRead):
        if read.space != definition.space:
            return False
        item = reader.get(ITEMS, read.space, read.key)
        if item is not None:
            compared.add(item)
        return digest_of(item) == read.digest
    spaces = [index.space for index in definition.indexes] if read.index else [definition.space]
    if read.space not in spaces:
        return False
    found = RangeDigest()
    for row in islice(_range(reader, read), read.count + 1):
        compared.add(row)
        found.add(row)
    return found.count == read.count and found.digest() == read.digest


def _range(reader: Reader | Tx, read: RangeRead) -> Iterator[Any]:
    for row in in_steps(reader, read.index, read.space, read.start, read.after, read.before, read.reverse):
        if read.last is not None and (row.key < read.last if read.reverse else row.key > read.last):
            return
        yield row


def in_steps(
    reader: Reader | Tx,
    index: bool,
    space: int,
    start: bytes | None,
    after: bytes | None,
    before: bytes | None,
    reverse: bool,
) -> Iterator[Any]:
    """The rows of a range, of which some are fetched at a time, so that others may be read in between."""
    table: Any = INDEX_ENTRIES if index else ITEMS
    step = ROWS_AT_FIRST  # few rows may be wanted, and they may be large
    while True:
        bounds: dict[str, Any] = {"start": start, "after": after, "before": before}
        rows = list(reader.scan(table, space, **bounds, limit=step, reverse=reverse))
        yield from rows
        if len(rows) < step:
            return
        step = min(2 * step, ROWS_AT_ONCE)
        if reverse:
            before = rows[-1].key
        else:
            start, after = None, rows[-1].key


def tail_read(reader: Reader | Tx, path: str) -> TailRead:
    """The tail of a stream as it is now."""
    try:
        stream = live(reader, path)
    except Error:
        return TailRead(path, None)
    return TailRead(path, log_of(reader, stream).next, bool(stream.closed))


def definition_read(table: str, definition: Definition | None) -> DefinitionRead:
    """The definition of a table as it is now."""
    return DefinitionRead(table, ABSENT if definition is None else definition.digest)


def changes_read(reader: Reader | Tx, table: str) -> ChangesRead:
    """Where the change stream of a table begins and ends now."""
    try:
        stream = find_stream(reader, table)
    except NotFound:
        return ChangesRead(table, None)
    return ChangesRead(table, _ends(reader, change_log_of(reader, stream)))


def messages_read(reader: Reader | Tx, name: str) -> MessagesRead:
    """Where the partitions of a topic begin and end now."""
    try:
        topic = topics.find(reader, name)
    except NotFound:
        return MessagesRead(name, None)
    logs = [topics.partition_log(reader, topic, partition) for partition in range(topic.partitions)]
    return MessagesRead(name, tuple([_ends(reader, log) for log in logs]))


def _ends(reader: Reader | Tx, log: Log) -> LogEnds:
    return log.id, cold.earliest(reader, log), log.next


# -- on the wire


def to_text(reads: tuple[TransactionRead, ...]) -> str:
    """Reads as text for clients, which send it back with the transaction."""
    return urlsafe_b64encode(_encode(reads)).decode().rstrip("=")


def from_text(text: str) -> tuple[TransactionRead, ...]:
    """The reads that a client sends back."""
    try:
        return _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise Invalid(
            f"{text[:40]!r} is not a record of reads; send the text that a read of the transaction returned",
            code="INVALID_READS",
        ) from None

"""Transactions: the one command that commits one, and the query that reads within one.

A transaction is collected by its client, which holds no lock. `Transact` has all that it does and all that it has read,
and commits it if nothing of that has changed (`reads.py`). Before that, `ReadInTransaction` answers queries over the
operations so far, and `TryInTransaction` runs a command in the same way, for SQL.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Generic, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import Invalid, TooLarge
from tailrace.storage.engine import Reader, Tx
from tailrace.streams.commands import Appended
from tailrace.tables import value
from tailrace.tables.change import Capture
from tailrace.tables.change_info import DescribeChangeStream
from tailrace.tables.change_reading import ReadChanges
from tailrace.tables.commands import keep_token, token_used
from tailrace.tables.definition import ITEMS, Definition, ItemRow
from tailrace.tables.paging import ItemPage, Pager
from tailrace.tables.queries import QueryItems, ScanItems
from tailrace.topics.commands import PublishedMessages
from tailrace.topics.consuming import Acked
from tailrace.topics.queries import ListTopicPartitions, ReadTopic
from tailrace.transactions import reads as recorded
from tailrace.transactions.operations import (
    AckOperation,
    DeleteOperation,
    ItemOperation,
    PutOperation,
    TransactionOperation,
)
from tailrace.transactions.overlay import OverlayTx, ReadRecorder
from tailrace.transactions.planning import NetWrites, numbered
from tailrace.transactions.reads import TransactionRead

T = TypeVar("T")
_encode: Final = msgspec.msgpack.Encoder().encode


class Transacted(msgspec.Struct, frozen=True):
    """A transaction was committed. `replayed`: it was before, with the same token; its results are in that response."""

    sequence: int | None = None  # that its change records share; None if there are none
    acked: int = 0  # messages that it acknowledged
    published: list[list[tuple[int, int]]] = []  # by operation: partition and offset of each message
    tails: list[int] = []  # by operation: the tail of the stream after the append
    replayed: bool = False


class Transact(Command[Transacted], frozen=True):
    """Do all operations, or none: if all conditions hold, all messages are held, and all that was read is unchanged."""

    operations: tuple[TransactionOperation, ...] = ()
    reads: tuple[TransactionRead, ...] = ()
    token: str | None = None  # makes it idempotent for ten minutes

    @property
    def permission(self) -> str:  # type: ignore[override]
        """That of its operations: who may consume may also write."""
        if any(isinstance(each, AckOperation) for each in self.operations):
            return Permission.CONSUME
        return Permission.WRITE if self.operations else Permission.READ

    def subjects(self) -> tuple[str, ...]:
        return _subjects(self.operations, self.reads)

    def size(self) -> int:
        return sum([operation.size() for operation in self.operations])

    def heavy(self) -> bool:
        return (
            len(self.operations) > limits.LOOP_ACTIONS
            or self.size() > limits.LOOP_BYTES
            or sum([read.rows() for read in self.reads]) > limits.TRANSACTION_LOOP_READS
        )

    def frees(self) -> bool:
        return all(isinstance(operation, DeleteOperation | AckOperation) for operation in self.operations)

    def run(self, tx: Tx) -> Transacted:
        check_operations(self.operations)
        recorded.check_count(self.reads)
        digest = b""
        if self.token is not None:
            if not 1 <= len(self.token) <= limits.TOKEN_CHARACTERS_MAX:
                raise Invalid(f"a token has 1 to {limits.TOKEN_CHARACTERS_MAX} characters, not {len(self.token)}")
            digest = hashlib.sha256(_encode((self.operations, self.reads))).digest()
            if token_used(tx, self.token, digest):
                return Transacted(replayed=True)
        recorded.check_unchanged(tx, self.reads)
        capture = Capture()
        NetWrites(tx, self.operations).apply(tx, capture)
        sequence = capture.append(tx)
        acked, published, tails = 0, [], []
        for number, operation in enumerate(self.operations):
            if isinstance(operation, ItemOperation):
                continue
            with numbered(number):
                done = operation.command(tx).run(tx)
            if isinstance(done, Acked):
                acked += done.acked
            elif isinstance(done, PublishedMessages):
                published.append(done.offsets)
            else:
                assert isinstance(done, Appended)
                tails.append(done.tail)
        if self.token is not None:
            keep_token(tx, self.token, digest)
        return Transacted(sequence, acked, published, tails)


def check_operations(operations: tuple[TransactionOperation, ...]) -> None:
    """Refuse a transaction with too many operations. Each range of acknowledged offsets, and each message, is one."""
    count = 0
    acked: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for operation in operations:
        if isinstance(operation, AckOperation):
            count += len(operation.offsets)
            acked.setdefault((operation.topic, operation.group, operation.partition), []).extend(operation.offsets)
        else:
            count += 1 if isinstance(operation, ItemOperation) else len(getattr(operation, "messages", "1"))
    if count > limits.TRANSACTION_OPERATIONS_MAX:
        raise TooLarge(
            f"a transaction has at most {limits.TRANSACTION_OPERATIONS_MAX} operations, and this one has {count}, "
            "counting messages and ranges of offsets; use several transactions",
            code="TRANSACTION_TOO_LARGE",
        )
    for ranges in acked.values():
        _check_once(ranges)


def _check_once(ranges: list[tuple[int, int]]) -> None:
    """Refuse ranges of offsets that overlap: the second would find its messages acknowledged, not held."""
    last = -1
    for first, end in sorted(ranges):
        if first <= last:
            raise Invalid(
                f"offset {first} is acknowledged twice; name each offset once. In a transactional consumer, the "
                "transaction acknowledges the message itself"
            )
        last = end


def _subjects(operations: tuple[TransactionOperation, ...], reads: tuple[TransactionRead, ...]) -> tuple[str, ...]:
    named = [subject for operation in operations for subject in operation.subjects()]
    return tuple(dict.fromkeys([*named, *(read.subject() for read in reads)]))


# -- before the commit


class TransactionStep(msgspec.Struct, Generic[T], frozen=True):
    """The result of a query or command within a transaction; what it has read of stored rows; and, of a command, the
    items that the transaction has written now, as operations that replace those before."""

    result: T
    reads: tuple[TransactionRead, ...]
    writes: tuple[PutOperation | DeleteOperation, ...] = ()


class ReadInTransaction(Query[TransactionStep[T]], Generic[T], frozen=True):
    """Answer a query as if the operations of a transaction were done. Raises `TransactionConflict` if something that
    the transaction has read before is not as it was: it never sees two states that did not exist at one moment."""

    query: Query[T]
    operations: tuple[TransactionOperation, ...] = ()
    reads: tuple[TransactionRead, ...] = ()

    @property
    def permission(self) -> str:  # type: ignore[override]
        return self.query.permission

    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.query.subjects(), *_subjects(self.operations, self.reads)]))

    def rows(self) -> int:
        """The rows that are looked up before the query runs."""
        return len(self.operations) + sum([read.rows() for read in self.reads])

    def run(self, reader: Reader) -> TransactionStep[T]:
        recorder, overlay = _begun(reader, self.operations, self.reads)
        result = self.query.run(overlay)
        logs: tuple[TransactionRead, ...] = ()
        if isinstance(self.query, DescribeChangeStream | ReadChanges):
            logs = (recorded.changes_read(reader, self.query.table),)
        elif isinstance(self.query, ListTopicPartitions | ReadTopic):
            logs = (recorded.messages_read(reader, self.query.topic),)
        return TransactionStep(result, _added(self.reads, (*recorder.reads(), *logs)))


class WholePage(Query[ItemPage], frozen=True):
    """A page of items in one step."""

    query: QueryItems | ScanItems

    def subjects(self) -> tuple[str, ...]:
        return self.query.subjects()

    def run(self, reader: Reader) -> ItemPage:
        pager: Pager[Any] = Pager(self.query)
        while (step := pager.next()) is not None:
            pager.add(step.run(reader))
        return pager.page()


class TryInTransaction(Query[TransactionStep[T]], Generic[T], frozen=True):
    """Run a command on items as if the operations of a transaction, all on items, were done; likewise."""

    command: Command[T]
    operations: tuple[PutOperation | DeleteOperation, ...] = ()
    reads: tuple[TransactionRead, ...] = ()

    @property
    def permission(self) -> str:  # type: ignore[override]
        return self.command.permission

    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.command.subjects(), *_subjects(self.operations, self.reads)]))

    def run(self, reader: Reader) -> TransactionStep[T]:
        recorder, overlay = _begun(reader, self.operations, self.reads)
        overlay.router = _no_router
        result = self.command.run(overlay)
        writes = tuple(_written(recorder, overlay))
        check_operations(writes)
        return TransactionStep(result, _added(self.reads, recorder.reads()), writes)


class ReadTail(Query[TransactionStep[int | None]], frozen=True):
    """The tail of a stream, for a transaction that depends on it; None if there is no such stream."""

    path: str
    reads: tuple[TransactionRead, ...] = ()

    def subjects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([f"streams/{self.path}", *_subjects((), self.reads)]))

    def run(self, reader: Reader) -> TransactionStep[int | None]:
        recorded.check_unchanged(reader, self.reads)
        tail = recorded.tail_read(reader, self.path)
        return TransactionStep(tail.position, (tail,))


def _added(before: tuple[TransactionRead, ...], made: tuple[TransactionRead, ...]) -> tuple[TransactionRead, ...]:
    """What a step has read beside that of the steps before."""
    known = set(before)
    added = tuple([read for read in made if read not in known])
    recorded.check_count((*before, *added))
    return added


def _begun(
    reader: Reader, operations: tuple[TransactionOperation, ...], reads: tuple[TransactionRead, ...]
) -> tuple[ReadRecorder, OverlayTx]:
    check_operations(operations)
    recorded.check_count(reads)
    recorded.check_unchanged(reader, reads)
    recorder = ReadRecorder()
    return recorder, NetWrites(reader, operations).shown(reader, recorder)


def _written(recorder: ReadRecorder, overlay: OverlayTx) -> list[PutOperation | DeleteOperation]:
    """The items that an overlay holds, as operations."""
    writes: list[PutOperation | DeleteOperation] = []
    for (space, key), row in overlay.written(ITEMS).items():
        definition = recorder.definition(space)
        if row is not None:
            writes.append(PutOperation(table=definition.name, item=value.decode(row.body)))
        elif (stored := overlay.stored(space, key)) is not None:
            writes.append(DeleteOperation(table=definition.name, key=_key(definition, stored)))
    return writes


def _key(definition: Definition, row: ItemRow) -> dict[str, Any]:
    item = value.decode(row.body)
    return {name: item[name] for name in definition.keys}


def _no_router(*args: Any) -> None:
    """The messages of routes are made by the commit."""

"""Transactions as Python programs write them: plain values become operations, for databases and for servers alike."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.embedded.messages import Message, Payload, check_numbers, check_texts, outgoings, payload_bytes
from tailrace.errors import Conflict, Invalid, TransactionConflict
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import value
from tailrace.tables.operations import ReadOptions
from tailrace.tables.plain import PlaceholderBindings, Plain
from tailrace.transactions.operations import (
    AckOperation,
    AppendOperation,
    CheckOperation,
    DeleteOperation,
    ItemKey,
    PublishOperation,
    PutOperation,
    TransactionOperation,
    UpdateOperation,
)

PAUSE_S: Final = 0.002  # before the second attempt; each further one waits up to twice as long


class ItemRequest(msgspec.Struct, frozen=True):
    """The item with a key, within a transaction."""

    table: str
    key: Any
    projection: str | None = None
    names: Mapping[str, str] | None = None


class ItemsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the items of a partition, or of all items, within a transaction."""

    table: str
    whole: bool = False  # all items
    partition: Any = None
    sort: Any = None
    reverse: bool = False
    reading: ReadOptions = ReadOptions()


class TransactionRequest(msgspec.Struct, frozen=True):
    """What a transaction does and has read so far. The reads are as their source returned them."""

    operations: tuple[TransactionOperation, ...]
    reads: tuple[Any, ...]
    token: str | None = None


class FoundItems(msgspec.Struct, frozen=True):
    """Items that a transaction has read, where the next page begins, and the records of the reads."""

    items: list[Plain]
    reads: tuple[Any, ...]
    cursor: Plain | None = None


class FoundTail(msgspec.Struct, frozen=True):
    """The tail offset of a stream that a transaction has read, None if there is none, and the records of the reads."""

    offset: str | None
    reads: tuple[Any, ...]


class TransactionBuffer:
    """The operations of a transaction that is not committed yet. They change nothing before that."""

    def __init__(self) -> None:
        self._operations: list[TransactionOperation] = []
        self._reads: list[Any] = []
        self._ended: str | None = None

    # -- items

    def put(
        self,
        table: str,
        item: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Put an item; it replaces the one with the same key."""
        made, _ = value.item_from_plain(item)
        self._add(PutOperation(table=_text(table), item=made, **_expressions(condition, names, values)))

    def update(
        self,
        table: str,
        key: Any,
        expression: str,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Change attributes of the item with this key, creating it if it does not exist. The expression is evaluated by
        the commit, so two transactions that only add to a number do not conflict."""
        given = _expressions(condition, names, values)
        self._add(UpdateOperation(table=_text(table), key=plain_key(key), expression=expression, **given))

    def delete(
        self,
        table: str,
        key: Any,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Delete the item with this key, if there is one."""
        given = _expressions(condition, names, values)
        self._add(DeleteOperation(table=_text(table), key=plain_key(key), **given))

    def check(
        self,
        table: str,
        key: Any,
        condition: str,
        *,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the transaction fail unless the condition holds for the item with this key."""
        given = _expressions(condition, names, values)
        self._add(CheckOperation(table=_text(table), key=plain_key(key), **given))

    # -- topics and streams

    def publish(
        self, topic: str, payload: Payload, *, key: str | bytes | None = None, partition: int | None = None
    ) -> None:
        """Add a message to a topic, or a list of them."""
        check_texts(topic=topic)
        made = outgoings(payload if isinstance(payload, list) else [payload], key, partition)
        self._add(PublishOperation(topic=topic, messages=made))

    def ack(self, topic: str, group: str, messages: Message | Iterable[Message], *, consumer: str = "") -> None:
        """Acknowledge messages that a consumer of a group has got. Unless it still holds all of them when the
        transaction commits, the transaction fails with `Conflict` LEASE_LOST."""
        check_texts(topic=topic, group=group, consumer=consumer)
        held: dict[tuple[int, str | None], list[int]] = {}
        for message in (messages,) if isinstance(messages, Message) else messages:
            held.setdefault((message.partition, message.lease_id), []).append(message.offset)
        for (partition, lease), offsets in held.items():
            self.ack_offsets(topic, group, offsets, partition=partition, consumer=consumer, lease=lease)

    def ack_offsets(
        self,
        topic: str,
        group: str,
        offsets: Iterable[int],
        *,
        partition: int = 0,
        consumer: str = "",
        lease: str | None = None,
    ) -> None:
        """Acknowledge messages by their offsets; as `ack`."""
        check_texts(topic=topic, group=group, consumer=consumer, lease=lease)
        numbers = list(offsets)
        for number in numbers:
            check_numbers(offset=number)
        self._add(
            AckOperation(
                topic=topic, group=group, offsets=ranges_of(numbers), partition=partition, consumer=consumer,
                lease=lease,
            )
        )  # fmt: skip

    def append(
        self, stream: str, body: Payload, *, content_type: str | None = None, claim: ProducerClaim | None = None
    ) -> None:
        """Append to a stream: bytes, text, or a value that becomes JSON. `content_type` is the stream's by default;
        with the `claim` of a producer it is appended once, however often that sends it."""
        check_texts(stream=stream, content_type=content_type)
        self._add(AppendOperation(path=stream, body=payload_bytes(body), content_type=content_type, claim=claim))

    # -- the end

    def rollback(self) -> None:
        """Drop the transaction: nothing of it is written."""
        self._check_open()
        self._ended = "was rolled back"

    @property
    def ended(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._ended is not None

    def _add(self, operation: TransactionOperation) -> None:
        self._check_open()
        if len(self._operations) >= limits.TRANSACTION_OPERATIONS_MAX:
            raise Invalid(
                f"a transaction has at most {limits.TRANSACTION_OPERATIONS_MAX} operations; use several",
                code="TRANSACTION_TOO_LARGE",
            )
        self._operations.append(operation)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise Conflict(f"this transaction {self._ended}; begin another one", code="TRANSACTION_ENDED")

    def _request(self, token: str | None = None) -> TransactionRequest:
        return TransactionRequest(tuple(self._operations), tuple(self._reads), token)


def plain_key(key: Any) -> ItemKey:
    """A key: a dict, its value alone, or a pair of values. The order of the attributes is known where it runs."""
    if not isinstance(key, str) and isinstance(key, Mapping):
        return value.item_from_plain(key)[0]
    return tuple([value.from_plain(part) for part in (key if isinstance(key, tuple) else (key,))])


def ranges_of(offsets: list[int]) -> tuple[tuple[int, int], ...]:
    """Offsets as ranges, each from the first up to and including the last."""
    found: list[tuple[int, int]] = []
    for number in sorted(offsets):
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def pause_s(attempt: int) -> float:
    """How long to wait after an attempt that conflicted with others: at random, so that they do not meet again."""
    return random.uniform(0.5, 1.0) * min(PAUSE_S * 2.0 ** min(attempt, 20), limits.TRANSACTION_PAUSE_S_MAX)


def check_attempts(attempts: int) -> None:
    check_numbers(attempts=attempts)
    if attempts < 1:
        raise Invalid(f"attempts={attempts} leaves nothing to run; use 1 or more")


def is_conflict(error: BaseException) -> bool:
    """Whether to run the transaction again may help. A server's error has the code alone."""
    return isinstance(error, Conflict) and error.code == TransactionConflict.code


def check_result(function: object, returned: object) -> None:
    """Refuse a function that has returned work that is still to be done: nothing of it would be in the transaction."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python warns of it, too
        raise Invalid(
            f"the function {function!r} is a coroutine function, which transact() does not wait for; nothing was "
            "written: use it with db.aio, or an AsyncClient",
            code="FUNCTION_NOT_RUN",
        )


def _text(table: str) -> str:
    return value.check_text(table, "the name of a table")


def _expressions(
    condition: str | None, names: Mapping[str, str] | None, values: Mapping[str, Any] | None
) -> dict[str, Any]:
    bindings = PlaceholderBindings(names, values)
    return {
        "condition": condition,
        "names": bindings.marked_names(names) or None,
        "values": bindings.values or None,
    }

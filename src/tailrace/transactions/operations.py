"""The operations of a transaction, as plain data: they travel, and are bound to tables and expressions when they run.

An operation on an item becomes the command of its single form (`tables/commands.py`), whose plan is part of the
transaction. The others are the commands themselves.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from tailrace.command import Command
from tailrace.errors import Invalid
from tailrace.storage.engine import Reader, Tx
from tailrace.streams.commands import Append, Appended, live
from tailrace.streams.producer import ProducerClaim
from tailrace.tables import expression, value
from tailrace.tables.binding import Placeholders
from tailrace.tables.commands import CheckItem, DeleteItem, ItemCommand, PutItem, UpdateItem
from tailrace.tables.definition import Definition, find
from tailrace.tables.expression import ItemCondition
from tailrace.tables.plain import spelt
from tailrace.tables.value import Item, Value
from tailrace.topics.commands import Outgoing, Publish, PublishedMessages, subject
from tailrace.topics.consuming import Acked, AckHeld

ItemKey: TypeAlias = dict[str, Any] | tuple[Any, ...]  # an item with the key's attributes, or their values in order


class ItemOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on one item, if its condition holds. `names` and `values` are those of its expressions, with their
    `#` and `:`."""

    condition: str | None = None
    names: dict[str, str] | None = None
    values: dict[str, Any] | None = None

    table: str

    @property
    def blind(self) -> bool:
        """Whether the item after it does not depend on the item before it."""
        return False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.table}",)

    def size(self) -> int:
        return value.item_size(self.values) if self.values else 0

    def command(self, reader: Reader | Tx) -> ItemCommand:
        """The command of its single form."""
        raise AssertionError(f"{type(self).__name__} has no command()")

    def _bound(self) -> tuple[Placeholders, ItemCondition | None]:
        given = Placeholders(self.names, self.values)
        return given, None if self.condition is None else expression.condition(self.condition, given)


class PutOperation(ItemOperation, frozen=True, kw_only=True, tag="put"):
    """Put an item."""

    item: dict[str, Any]

    @property
    def blind(self) -> bool:
        return True

    def size(self) -> int:
        return value.item_size(self.item) + super().size()

    def command(self, reader: Reader | Tx) -> ItemCommand:
        given, wanted = self._bound()
        given.check_used()
        return PutItem(self.table, self.item, value.item_size(self.item), condition=wanted)


class KeyedOperation(ItemOperation, frozen=True, kw_only=True):
    """An operation on the item with this key."""

    key: ItemKey

    def size(self) -> int:
        parts = self.key if isinstance(self.key, dict) else {str(at): part for at, part in enumerate(self.key)}
        return value.item_size(parts) + super().size()

    def attributes(self, reader: Reader | Tx) -> Item:
        return key_attributes(find(reader, self.table), self.key)


class DeleteOperation(KeyedOperation, frozen=True, kw_only=True, tag="delete"):
    """Delete an item, if there is one."""

    @property
    def blind(self) -> bool:
        return True

    def command(self, reader: Reader | Tx) -> ItemCommand:
        given, wanted = self._bound()
        given.check_used()
        return DeleteItem(self.table, self.attributes(reader), condition=wanted)


class UpdateOperation(KeyedOperation, frozen=True, kw_only=True, tag="update"):
    """Change an item, or create it."""

    expression: str

    def command(self, reader: Reader | Tx) -> ItemCommand:
        given = Placeholders(self.names, self.values)
        changes = expression.update(self.expression, given)
        wanted = None if self.condition is None else expression.condition(self.condition, given)
        given.check_used()
        return UpdateItem(self.table, self.attributes(reader), changes, condition=wanted)


class CheckOperation(KeyedOperation, frozen=True, kw_only=True, tag="check"):
    """Change nothing; the transaction fails unless the condition holds."""

    def command(self, reader: Reader | Tx) -> ItemCommand:
        given, wanted = self._bound()
        given.check_used()
        if wanted is None:
            raise Invalid("a check has a condition; give one, or read the item in the transaction")
        return CheckItem(self.table, self.attributes(reader), condition=wanted)


def key_attributes(definition: Definition, key: ItemKey) -> Item:
    """A key as an item with the attributes of the key."""
    if isinstance(key, dict):
        return key
    if len(key) != len(definition.keys):
        shown = [value.to_plain(part) for part in key]
        raise Invalid(f"a key of table {definition.name!r} is {spelt(definition.keys)}, which {shown!r} is not")
    parts: list[Value] = list(key)
    return dict(zip(definition.keys, parts, strict=True))


class AckOperation(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """Acknowledge messages, each range from an offset up to and including another, that a consumer holds."""

    topic: str
    group: str
    offsets: tuple[tuple[int, int], ...]
    partition: int = 0
    consumer: str = ""
    lease: str | None = None

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def size(self) -> int:
        return 16 * len(self.offsets)

    def command(self, reader: Reader | Tx) -> Command[Acked]:
        return AckHeld(self.topic, self.group, self.offsets, self.partition, self.consumer, self.lease)


class PublishOperation(msgspec.Struct, frozen=True, kw_only=True, tag="publish"):
    """Add messages to a topic."""

    topic: str
    messages: tuple[Outgoing, ...]
    claim: ProducerClaim | None = None

    def subjects(self) -> tuple[str, ...]:
        return (subject(self.topic),)

    def size(self) -> int:
        return sum([len(each.payload) for each in self.messages])

    def command(self, reader: Reader | Tx) -> Command[PublishedMessages]:
        return Publish(self.topic, self.messages, self.claim)


class AppendOperation(msgspec.Struct, frozen=True, kw_only=True, tag="append"):
    """Append to a stream. `content_type` None: the stream's."""

    path: str
    body: bytes
    content_type: str | None = None
    claim: ProducerClaim | None = None
    close: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"streams/{self.path}",)

    def size(self) -> int:
        return len(self.body)

    def command(self, reader: Reader | Tx) -> Command[Appended]:
        content_type = live(reader, self.path).content_type if self.content_type is None else self.content_type
        return Append(self.path, self.body, content_type, self.claim, close=self.close)


TableOperation: TypeAlias = PutOperation | DeleteOperation | UpdateOperation | CheckOperation
TransactionOperation: TypeAlias = TableOperation | AckOperation | PublishOperation | AppendOperation

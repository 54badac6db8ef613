"""Tables and topics from Python: what `Database` offers for them, as plain calls and as awaitables.

    >>> import tailrace
    >>> db = tailrace.open("data")
    >>> orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    >>> orders.put({"id": "o-1", "amount": 12})
    >>> orders.update("o-1", "SET amount = amount + :more", values={"more": 3})
    {'id': 'o-1', 'amount': 15}
    >>> [(change.event, change.new["amount"]) for change in orders.changes()]
    [('INSERT', 12), ('MODIFY', 15)]
    >>> db.close()

The facades are thin: they hand the steps of an operation (`tables.operations`, `tables.following`) to the database and
wait in their own way. To wait is to subscribe to the tail first and read then; nothing polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.embedded.async_consumer import AsyncConsumer
    from tailrace.embedded.async_table import AsyncTable
    from tailrace.embedded.consumer import Batch, Consumer
    from tailrace.embedded.messages import Delivery, Message, Place, Published, TopicInfo
    from tailrace.embedded.mixin import AsyncOperations, TableOperations
    from tailrace.embedded.producer import Producer
    from tailrace.embedded.table import Table
    from tailrace.tables.plain import (
        Change,
        Check,
        Cursor,
        Delete,
        Get,
        Index,
        IndexInfo,
        Page,
        Put,
        Sort,
        StreamInfo,
        TableInfo,
        Update,
        begins_with,
        between,
        eq,
        ge,
        gt,
        le,
        lt,
    )
    from tailrace.topics.commands import Outgoing

__all__ = [
    "AsyncConsumer",
    "AsyncOperations",
    "AsyncTable",
    "Batch",
    "Change",
    "Check",
    "Consumer",
    "Cursor",
    "Delete",
    "Delivery",
    "Get",
    "Index",
    "IndexInfo",
    "Message",
    "Outgoing",
    "Page",
    "Place",
    "Producer",
    "Published",
    "Put",
    "Sort",
    "StreamInfo",
    "Table",
    "TableInfo",
    "TableOperations",
    "TopicInfo",
    "Update",
    "begins_with",
    "between",
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
]

_HOMES = {
    "tailrace.embedded.async_consumer": ("AsyncConsumer",),
    "tailrace.embedded.async_table": ("AsyncTable",),
    "tailrace.embedded.consumer": ("Batch", "Consumer"),
    "tailrace.embedded.messages": ("Delivery", "Message", "Place", "Published", "TopicInfo"),
    "tailrace.embedded.mixin": ("AsyncOperations", "TableOperations"),
    "tailrace.embedded.producer": ("Producer",),
    "tailrace.embedded.table": ("Table",),
    "tailrace.tables.plain": (
        "Change",
        "Check",
        "Cursor",
        "Delete",
        "Get",
        "Index",
        "IndexInfo",
        "Page",
        "Put",
        "Sort",
        "StreamInfo",
        "TableInfo",
        "Update",
        "begins_with",
        "between",
        "eq",
        "ge",
        "gt",
        "le",
        "lt",
    ),
    "tailrace.topics.commands": ("Outgoing",),
}
__getattr__, __dir__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})

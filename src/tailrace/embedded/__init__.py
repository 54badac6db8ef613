"""The Python API of a database: tables, topics and streams, as plain calls and as awaitables.

    >>> import tailrace
    >>> db = tailrace.open("data")
    >>> orders = db.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
    >>> orders.put({"id": "o-1", "amount": 12})
    >>> orders.update("o-1", "SET amount = amount + :more", values={"more": 3})
    {'id': 'o-1', 'amount': 15}
    >>> [(change.event, change.new["amount"]) for change in orders.changes()]
    [('INSERT', 12), ('MODIFY', 15)]
    >>> db.close()

The asynchronous API is in `aio`, written by hand; the synchronous one is in `sync`, generated from it by
`tools/make-sync`. The two wait in their own way (`async_primitives`, `primitives`) and share the rest. To wait is to
subscribe to the tail first and to read then; nothing polls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.embedded.aio.consumer import AsyncBatch, AsyncConsumer
    from tailrace.embedded.aio.database import AsyncOperations
    from tailrace.embedded.aio.producer import AsyncProducer
    from tailrace.embedded.aio.stream import AsyncStream
    from tailrace.embedded.aio.table import AsyncTable
    from tailrace.embedded.aio.transaction import AsyncTransaction
    from tailrace.embedded.messages import Delivery, Message, Published, PublishedMessage, TopicInfo
    from tailrace.embedded.mixin import EmbeddedOperations
    from tailrace.embedded.pages import StreamPage, StreamState
    from tailrace.embedded.requests import AckRequest, ConsumeRequest, ExtendRequest, NackRequest, PublishRequest
    from tailrace.embedded.sync.consumer import Batch, Consumer
    from tailrace.embedded.sync.producer import Producer
    from tailrace.embedded.sync.stream import Stream
    from tailrace.embedded.sync.table import Table
    from tailrace.embedded.sync.transaction import Transaction
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
    from tailrace.transactions.commands import Transacted

__all__ = [
    "AckRequest",
    "AsyncBatch",
    "AsyncConsumer",
    "AsyncOperations",
    "AsyncProducer",
    "AsyncStream",
    "AsyncTable",
    "AsyncTransaction",
    "Batch",
    "Change",
    "Check",
    "ConsumeRequest",
    "Consumer",
    "Cursor",
    "Delete",
    "Delivery",
    "EmbeddedOperations",
    "ExtendRequest",
    "Get",
    "Index",
    "IndexInfo",
    "Message",
    "NackRequest",
    "Outgoing",
    "Page",
    "Producer",
    "PublishRequest",
    "Published",
    "PublishedMessage",
    "Put",
    "Sort",
    "Stream",
    "StreamInfo",
    "StreamPage",
    "StreamState",
    "Table",
    "TableInfo",
    "TopicInfo",
    "Transacted",
    "Transaction",
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
    "tailrace.embedded.aio.consumer": ("AsyncBatch", "AsyncConsumer"),
    "tailrace.embedded.aio.database": ("AsyncOperations",),
    "tailrace.embedded.aio.producer": ("AsyncProducer",),
    "tailrace.embedded.aio.stream": ("AsyncStream",),
    "tailrace.embedded.aio.table": ("AsyncTable",),
    "tailrace.embedded.aio.transaction": ("AsyncTransaction",),
    "tailrace.embedded.messages": ("Delivery", "Message", "Published", "PublishedMessage", "TopicInfo"),
    "tailrace.embedded.mixin": ("EmbeddedOperations",),
    "tailrace.embedded.pages": ("StreamPage", "StreamState"),
    "tailrace.embedded.requests": (
        "AckRequest",
        "ConsumeRequest",
        "ExtendRequest",
        "NackRequest",
        "PublishRequest",
    ),
    "tailrace.embedded.sync.consumer": ("Batch", "Consumer"),
    "tailrace.embedded.sync.producer": ("Producer",),
    "tailrace.embedded.sync.stream": ("Stream",),
    "tailrace.embedded.sync.table": ("Table",),
    "tailrace.embedded.sync.transaction": ("Transaction",),
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
    "tailrace.transactions.commands": ("Transacted",),
}
__getattr__, __dir__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})

"""A small HTTP client for a Tailrace server, synchronous and asynchronous, with consumers and producers of topics.

It repeats only requests that may be done twice: reads that follow a stream go on where they stopped, a consumer goes on
where it was, and a producer numbers its requests. For streams there are the official Durable Streams clients too, and
for tables the SDKs of AWS, whose protocol `Client.call` speaks. The command line and the Spark jobs use this client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.client.aio.client import AsyncClient
    from tailrace.client.aio.consumer import AsyncConsumer
    from tailrace.client.sync.client import Client
    from tailrace.client.sync.consumer import Consumer
    from tailrace.embedded.aio.producer import AsyncProducer
    from tailrace.embedded.aio.stream import AsyncStream
    from tailrace.embedded.messages import Delivery, Message, Published, PublishedMessage, TopicInfo
    from tailrace.embedded.pages import StreamPage, StreamState
    from tailrace.embedded.requests import ConsumeRequest
    from tailrace.embedded.sync.consumer import Batch
    from tailrace.embedded.sync.producer import Producer
    from tailrace.embedded.sync.stream import Stream
    from tailrace.topics.commands import Outgoing

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncStream",
    "Batch",
    "Client",
    "ConsumeRequest",
    "Consumer",
    "Delivery",
    "Message",
    "Outgoing",
    "Producer",
    "Published",
    "PublishedMessage",
    "Stream",
    "StreamPage",
    "StreamState",
    "TopicInfo",
]

_HOMES = {
    "tailrace.client.aio.client": ("AsyncClient",),
    "tailrace.client.aio.consumer": ("AsyncConsumer",),
    "tailrace.client.sync.client": ("Client",),
    "tailrace.client.sync.consumer": ("Consumer",),
    "tailrace.embedded.aio.producer": ("AsyncProducer",),
    "tailrace.embedded.aio.stream": ("AsyncStream",),
    "tailrace.embedded.messages": ("Delivery", "Message", "Published", "PublishedMessage", "TopicInfo"),
    "tailrace.embedded.pages": ("StreamPage", "StreamState"),
    "tailrace.embedded.requests": ("ConsumeRequest",),
    "tailrace.embedded.sync.consumer": ("Batch",),
    "tailrace.embedded.sync.producer": ("Producer",),
    "tailrace.embedded.sync.stream": ("Stream",),
    "tailrace.topics.commands": ("Outgoing",),
}
__getattr__, __dir__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})

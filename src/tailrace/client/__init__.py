"""A small HTTP client for a Tailrace server: what the command line uses, and consumers of topics.

It retries nothing by itself but what may be done twice: reads that follow a stream go on where they stopped, a
`Consumer` or an `AsyncConsumer` goes on where it was, and a `Producer` numbers what it sends. For streams there are
the official Durable Streams clients too, and for tables the SDKs of AWS, whose protocol `Client.call` speaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.client.consumer import AsyncConsumer, Consumer
    from tailrace.client.page import Page
    from tailrace.client.server import Client
    from tailrace.embedded.consumer import Batch
    from tailrace.embedded.messages import Delivery, Message, Place, Published, TopicInfo
    from tailrace.embedded.producer import Producer
    from tailrace.topics.commands import Outgoing

__all__ = [
    "AsyncConsumer",
    "Batch",
    "Client",
    "Consumer",
    "Delivery",
    "Message",
    "Outgoing",
    "Page",
    "Place",
    "Producer",
    "Published",
    "TopicInfo",
]

_HOMES = {
    "tailrace.client.consumer": ("AsyncConsumer", "Consumer"),
    "tailrace.client.page": ("Page",),
    "tailrace.client.server": ("Client",),
    "tailrace.embedded.consumer": ("Batch",),
    "tailrace.embedded.messages": ("Delivery", "Message", "Place", "Published", "TopicInfo"),
    "tailrace.embedded.producer": ("Producer",),
    "tailrace.topics.commands": ("Outgoing",),
}
__getattr__, __dir__ = lazy.names(__name__, {name: home for home, names in _HOMES.items() for name in names})

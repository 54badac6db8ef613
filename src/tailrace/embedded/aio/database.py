"""All operations of a database, as `Database` and `Database.aio` offer them."""

from __future__ import annotations

from tailrace.embedded.aio.streams import AsyncStreamOperations
from tailrace.embedded.aio.tables import AsyncTableOperations
from tailrace.embedded.aio.topics import AsyncTopicOperations
from tailrace.embedded.aio.transaction_api import AsyncTransactionOperations


class AsyncOperations(AsyncTableOperations, AsyncTopicOperations, AsyncStreamOperations, AsyncTransactionOperations):
    """All operations of a database, for programs on an event loop."""

"""Consumers of a server that make their own client."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.client.server import Client
from tailrace.embedded import async_consumer, consumer
from tailrace.embedded.leases import Source


class Consumer(consumer.Consumer):
    """A consumer of a topic on a server, given by its URL (and `token`, or `user` and `password`), or by a `Client`.

    The options are those of `tailrace.Consumer`, which it is otherwise."""

    def __init__(
        self,
        source: Source | str,
        topic: str,
        group: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        **options: Any,
    ) -> None:
        self._own = Client(source, token=token, user=user, password=password) if isinstance(source, str) else None
        super().__init__(self._own or source, topic, group, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        """Stop, give back what is in hand, and let go of the server."""
        super().close()
        if self._own is not None:
            self._own.close()


class AsyncConsumer(async_consumer.AsyncConsumer):
    """A consumer of a topic on a server, for programs on an event loop; the server is given as for `Consumer`.

    `concurrency` is how many messages are in work at once. The other options are those of `tailrace.AsyncConsumer`,
    which it is otherwise."""

    def __init__(
        self,
        source: Source | str,
        topic: str,
        group: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        **options: Any,
    ) -> None:
        self._own = Client(source, token=token, user=user, password=password) if isinstance(source, str) else None
        super().__init__(self._own or source, topic, group, **options)  # type: ignore[arg-type]

    async def aclose(self) -> None:
        """Stop, wait for what is in work, give back the rest, and let go of the server."""
        await super().aclose()
        if self._own is not None:
            await asyncio.to_thread(self._own.close)

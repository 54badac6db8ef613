"""Consumers of a server that make their own client."""

from __future__ import annotations

from typing import Unpack

from tailrace.client.aio.client import AsyncClient
from tailrace.embedded.aio import consumer
from tailrace.embedded.aio.leases import AsyncSource
from tailrace.embedded.handlers import ConsumerOptions


class AsyncConsumer(consumer.AsyncConsumer):
    """A consumer of a topic on a server, for programs on an event loop. The server is given by its URL (and `token`, or
    `user` and `password`), or as an `AsyncClient`.

    The options are those of `tailrace.AsyncConsumer`, from which it inherits."""

    def __init__(
        self,
        source: AsyncSource | str,
        topic: str,
        group: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._client: AsyncClient | None = None
        if isinstance(source, str):
            source = self._client = AsyncClient(source, token=token, user=user, password=password)
        super().__init__(source, topic, group, **options)

    async def aclose(self) -> None:
        """Stop, give back the messages in hand, and close the connections to the server."""
        await super().aclose()
        if self._client is not None:
            await self._client.aclose()

"""A consumer of a server that makes its own client."""

from __future__ import annotations

from typing import Any

from tailrace.client.server import Client
from tailrace.embedded import consumer
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

"""The connection of an asynchronous consumer's heartbeat, which is a thread."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.client.sync.client import Client
from tailrace.embedded.requests import AckRequest, ExtendRequest


class HeartbeatClient:
    """Sends acknowledgements and extensions with the current credentials of an asynchronous client. It never renews a
    session, which the asynchronous client does: a request that is refused meanwhile is repeated soon."""

    def __init__(self, url: str, authorization: Callable[[], dict[str, str]]) -> None:
        self._client = Client(url)
        self._current = authorization

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def send_ack(self, request: AckRequest) -> int:
        self._client._authorization = self._current()
        return self._client.send_ack(request)

    def send_extend(self, request: ExtendRequest) -> int:
        self._client._authorization = self._current()
        return self._client.send_extend(request)

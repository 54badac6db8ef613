"""Pages of streams, embedded and over HTTP alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.log.position import offset
from tailrace.streams import json_mode
from tailrace.streams.stream import is_json

if TYPE_CHECKING:
    from tailrace.streams.queries import StreamDescription, StreamSlice

_json: Final = msgspec.json.Encoder(decimal_format="number").encode


class StreamPage(msgspec.Struct, frozen=True):
    """Contents of a stream from one offset on."""

    body: bytes
    content_type: str
    next: str  # the offset at which the next page starts
    up_to_date: bool  # whether it reaches the tail
    closed: bool  # whether there will never be more

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.body or (self.body == b"[]" and is_json(self.content_type))

    def json(self) -> list[Any]:
        """The messages of a JSON stream, decoded."""
        if not is_json(self.content_type):
            raise Invalid(f"the stream is {self.content_type}, not JSON; use the body of the page, which is bytes")
        messages: list[Any] = msgspec.json.decode(self.body)
        return messages


class StreamState(msgspec.Struct, frozen=True):
    """A stream and its tail."""

    path: str
    content_type: str
    tail: str  # the offset after the last entry
    closed: bool = False
    ttl_s: int | None = None


def page_of(found: StreamSlice) -> StreamPage:
    """The page of a read of a database."""
    kind, bodies = found.stream.content_type, [entry.body for entry in found.page.entries]
    body = json_mode.array(bodies) if is_json(kind) else b"".join(bodies)
    return StreamPage(body, kind, offset(found.page.next), found.page.at_tail, found.closed)


def page_of_response(body: bytes, fields: Mapping[str, str]) -> StreamPage:
    """The page of a server's response, from its body and headers."""
    return StreamPage(
        body,
        fields.get("content-type", ""),
        fields["stream-next-offset"],
        fields.get("stream-up-to-date") == "true",
        fields.get("stream-closed") == "true",
    )


def state_of(found: StreamDescription) -> StreamState:
    """The state of a stream of a database."""
    stream = found.stream
    return StreamState(stream.path, stream.content_type, offset(found.log.next), bool(stream.closed), stream.ttl_s)


def state_of_response(path: str, fields: Mapping[str, str]) -> StreamState:
    """The state of a stream of a server, from the headers of its response."""
    ttl_s = fields.get("stream-ttl")
    return StreamState(
        path,
        fields.get("content-type", ""),
        fields["stream-next-offset"],
        fields.get("stream-closed") == "true",
        None if ttl_s is None else int(ttl_s),
    )


def content_bytes(content: Any, content_type: str) -> bytes:
    """Bytes as they are, text as UTF-8; for a JSON stream, any other value as JSON."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    try:
        if is_json(content_type):
            return _json(content)
        return content.encode()  # type: ignore[no-any-return]
    except (TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"{str(content)[:80]!r} cannot be appended to a stream of {content_type}: {error}") from None

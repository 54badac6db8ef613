"""How a log's entries look to a reader: as the body of an answer, and as an event of an event stream.

One data event is followed by one control event. An event's lines are ``data:`` without a space, unless the line
itself begins with one: a reader takes one space off.
"""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tailrace.log.entry import Entry
from tailrace.log.position import offset
from tailrace.streams import json_mode
from tailrace.streams.stream import is_json, is_text

_json: Final = msgspec.json.Encoder().encode
HEARTBEAT: Final = b": alive\n\n"


class Encoding:
    """Bytes as they are; in an event stream as base64."""

    base64 = True
    live_bytes_max: float = math.inf  # of an entry; readers of a larger one ask the feed, which may take its time

    def rendered(self, entry: Entry) -> bytes:
        """What a feed would give for an entry as it is in the log: live readers are sent entries as they are committed,
        without asking a feed."""
        return entry.body

    def body(self, bodies: list[bytes]) -> bytes:
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def event(self, bodies: list[bytes]) -> bytes:
        return b"event: data\ndata:%b\n\n" % b64encode(self.body(bodies))


class TextEncoding(Encoding):
    """Text; a line of it is a line of the event."""

    base64 = False

    def event(self, bodies: list[bytes]) -> bytes:
        text = self.body(bodies)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # Not line by line: a text may be nothing but line breaks, and each would become an object.
        first = b"data: " if text.startswith(b" ") else b"data:"
        text = text.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")
        return b"event: data\n%b%b\n\n" % (first, text)


class JsonEncoding(TextEncoding):
    """Messages in an array. A line break in JSON is white space, so it may become one of the event."""

    def body(self, bodies: list[bytes]) -> bytes:
        return json_mode.array(bodies)


BINARY: Final = Encoding()
TEXT: Final = TextEncoding()
JSON: Final = JsonEncoding()


def encoding(content_type: str) -> Encoding:
    if is_json(content_type):
        return JSON
    return TEXT if is_text(content_type) else BINARY


def rfc3339(at_ms: int) -> str:
    """A time as it stands in JSON."""
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def control(position: int, cursor: int, *, at_tail: bool, closed: bool) -> bytes:
    """The event that tells a reader where it is."""
    facts: dict[str, Any] = {"streamNextOffset": offset(position)}
    if closed:
        facts["streamClosed"] = True
    else:
        facts["streamCursor"] = str(cursor)
    if at_tail:
        facts["upToDate"] = True
    return b"event: control\ndata:%b\n\n" % _json(facts)

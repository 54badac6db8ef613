"""Server-sent events, and page bodies: the encodings of a log's entries for readers.

One data event is followed by one control event. An event's lines are ``data:`` without a space, unless the line
itself begins with one: a reader takes one space off.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.http.message import Frame
from tailrace.http.unsent import Held
from tailrace.log.entry import Entry
from tailrace.log.position import offset
from tailrace.streams import json_mode
from tailrace.streams.stream import is_json, is_text

_json: Final = msgspec.json.Encoder().encode
HEARTBEAT: Final = b": alive\n\n"
# Of an entry that is sent in slices; a line break becomes six bytes. A multiple of three, for base64.
PART_BYTES: Final = 48 * limits.KiB
PARTS_KEPT: Final = 4  # encoded slices of one entry: readers that keep pace with each other share them


class Encoding:
    """Bytes as they are; in an event stream as base64."""

    base64 = True
    opening = b"event: data\ndata:"  # of an event that is sent in slices
    closing = b"\n\n"
    separator = b""
    # Of what one commit appended: readers of more ask the feed, which may take its time, and are sent it in slices.
    live_bytes_max: int = limits.EVENT_BYTES
    sparse = False  # whether an entry may be rendered to nothing, because the reader filters

    def rendered(self, entry: Entry) -> bytes:
        """The entry as a feed renders it: live readers are sent committed entries without reading the feed."""
        return entry.body

    def body(self, bodies: list[bytes]) -> bytes:
        return bodies[0] if len(bodies) == 1 else b"".join(bodies)

    def together(self, bodies: list[bytes]) -> list[bytes]:
        """The bodies of a slice as a page takes them: joined here if they must be, while the loop can turn between two
        slices."""
        return list(bodies)

    def parts(self, bodies: list[bytes]) -> list[bytes]:
        """`body` in parts, where to join them would cost more than to send them one by one."""
        if sum(map(len, bodies)) < limits.PAGE_PART_BYTES * max(len(bodies), 2):
            return [self.body(bodies)]
        return self._apart(bodies)

    def _apart(self, bodies: list[bytes]) -> list[bytes]:
        return list(filter(None, bodies))

    def event(self, bodies: list[bytes]) -> bytes:
        return b"event: data\ndata:%b\n\n" % b64encode(self.body(bodies))

    def part(self, body: bytes, at: int) -> bytes:
        """The slice of an event's data that begins with byte `at` of the entry: together they are what `event` makes
        of it, between `opening` and `closing`."""
        return b64encode(body[at : at + PART_BYTES])


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

    def part(self, body: bytes, at: int) -> bytes:
        before, text = body[max(at - 1, 0) : at], body[at : at + PART_BYTES]
        if before == b"\r" and text.startswith(b"\n"):
            text = text[1:]  # the other half of a line break
        starts_line = before in (b"\r", b"\n") if at else self.opening.endswith(b":")
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        indent = b" " if starts_line and text.startswith(b" ") else b""
        return indent + text.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")


class JsonEncoding(TextEncoding):
    """Messages in an array. A line break in JSON is white space, so it may become one of the event."""

    opening = b"event: data\ndata:["
    closing = b"]\n\n"
    separator = b","

    def body(self, bodies: list[bytes]) -> bytes:
        return json_mode.array(bodies)

    def together(self, bodies: list[bytes]) -> list[bytes]:
        return [self.separator.join(bodies)] if bodies else []

    def _apart(self, bodies: list[bytes]) -> list[bytes]:
        parts = [part for body in bodies for part in (self.separator, body) if part]
        return [b"[", *parts[1:], b"]"]


class SharedEvent(Held):
    """A large event and its slices, for all readers that are sent it."""

    __slots__ = ("_encoding", "_parts", "body")

    def __init__(self, encoding: Encoding, body: bytes) -> None:
        super().__init__(len(body))
        self.body = body
        self._encoding = encoding
        self._parts: dict[int, Frame] = {}

    def part(self, at: int) -> Frame:
        frame = self._parts.get(at)
        if frame is None:
            if len(self._parts) >= PARTS_KEPT:
                del self._parts[next(iter(self._parts))]
            frame = self._parts[at] = Frame(self._encoding.part(self.body, at))
        return frame


BINARY: Final = Encoding()
TEXT: Final = TextEncoding()
JSON: Final = JsonEncoding()


def encoding(content_type: str) -> Encoding:
    if is_json(content_type):
        return JSON
    return TEXT if is_text(content_type) else BINARY


def control(position: int, cursor: int, *, at_tail: bool, closed: bool) -> bytes:
    """The event with the position of the reader."""
    facts: dict[str, Any] = {"streamNextOffset": offset(position)}
    if closed:
        facts["streamClosed"] = True
    else:
        facts["streamCursor"] = str(cursor)
    if at_tail:
        facts["upToDate"] = True
    return b"event: control\ndata:%b\n\n" % _json(facts)

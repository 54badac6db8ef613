"""A link of the bus: frames over a stream socket, in both directions.

A frame is four bytes of length and a MessagePack array whose first element is its kind. From a server that serves
requests to the writer:

    hello    protocol, version, name, life, facts  the first frame; facts: whether this life connects for the first
                                                   time, and the URL of a server of a cluster
    run      [[number, tag, principal, fields]]    commands, in the order of their numbers
    ask      number, tag, fields                   a question, which changes no row (`asking.py`)
    tell     tag, fields                           the same without an answer
    confirm  batch                                 the notices up to this batch are applied
    ping     number, batch                         every BUS_BEAT_S; the notices up to this batch are applied

and back:

    hello    protocol, version, epoch, upto, term  `upto` is the last committed command of this life, -1: it was
                                                   forgotten; `term`: of the leader of a cluster
    refused  error                                 instead of a hello, and the link ends
    batch    number, confirm, notices              what a commit has changed; `confirm`: answer with `confirm`
    done     [[number, ok, result or error]]       results of commands, after the notices of their commit
    answer   number, ok, result or error           of a question
    tell     tag, fields                           as above
    beat     state of the writer                   every BUS_BEAT_S
    pong     number                                answers a ping, unless another server may lead by now

The first frame of each side has the protocol's number; the one before it is accepted as well, so that servers can be
upgraded one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid

PROTOCOL: Final = 1
PROTOCOLS: Final = (PROTOCOL, PROTOCOL - 1)  # that are understood
HELLO, RUN, ASK, TELL, CONFIRM, PING = "hello", "run", "ask", "tell", "confirm", "ping"
BATCH, DONE, ANSWER, BEAT, PONG, REFUSED = "batch", "done", "answer", "beat", "pong", "refused"
FORGOTTEN: Final = -1  # instead of the number of the last committed command
_LENGTH: Final = struct.Struct(">I")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Any]).decode
logger = logging.getLogger("tailrace.bus")


def framed(message: list[Any]) -> bytes:
    """A message as a frame."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[list[Any]]:
        """The messages that are complete now. `Invalid` if a frame is too long: this is no link of the bus."""
        buffer, at, found = self._buffer, 0, []
        buffer += data
        while len(buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > limits.BUS_FRAME_BYTES_MAX:
                raise Invalid(f"a frame of {size} bytes is longer than {limits.BUS_FRAME_BYTES_MAX}, the maximum")
            end = at + _LENGTH.size + size
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                found.append(_decode(view[at + _LENGTH.size : end]))
            at = end
        del buffer[:at]
        return found


def check_protocol(protocol: object, version: object) -> None:
    """Raise `Invalid` unless the other side speaks this protocol or the one before it."""
    if protocol not in PROTOCOLS:
        raise Invalid(
            f"the other server (version {version}) speaks protocol {protocol} of the bus, this one {PROTOCOLS[0]} and "
            f"{PROTOCOLS[1]}; upgrade them one version at a time",
            code="BUS_PROTOCOL",
        )


class BusLink(asyncio.Protocol):
    """One side of a connection. `made` is called when there is one, `receive` with each message, `lost` at the end. A
    connection that fails before TLS is set up calls none of them."""

    def __init__(
        self,
        receive: Callable[[BusLink, list[Any]], None],
        lost: Callable[[BusLink], None],
        made: Callable[[BusLink], None],
    ) -> None:
        self.sent_bytes = 0
        self._made = made
        self._receive = receive
        self._lost = lost
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self.writable = True  # the other side keeps up
        self.drained: Callable[[], None] = lambda: None  # called when it does so again

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: list[Any]) -> None:
        if self.open:
            assert self._transport is not None
            data = framed(message)
            self.sent_bytes += len(data)
            self._transport.write(data)

    def read_on(self, on: bool) -> None:
        """Take more messages, or let the other side wait."""
        if on != self._reading and self.open:
            assert self._transport is not None
            self._reading = on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def finish(self) -> None:
        """End the connection when everything is sent."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(high=limits.BUS_WINDOW_BYTES)  # type: ignore[attr-defined]
        self._made(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._receive(self, message)
        except Exception:
            logger.exception("a link of the bus is cut off")
            self.cut()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.drained()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lost(self)

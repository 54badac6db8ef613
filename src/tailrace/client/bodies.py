"""Bodies of Arrow responses as files, and rows as MessagePack bodies."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from tailrace import limits
from tailrace.client.connection import ConnectionFailed, ServerResponse
from tailrace.errors import Error, Invalid, Unavailable

if TYPE_CHECKING:
    from tailrace.client.async_connection import AsyncServerResponse

CHUNK_BYTES: Final = 8 * limits.MiB  # about how much is staged in one request
SPOOL_BYTES: Final = 64 * limits.MiB  # of a response in memory; more goes to a temporary file
END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of every Arrow stream
encode: Final = msgspec.msgpack.Encoder().encode


class ArrivingBody(io.RawIOBase):
    """The body of a response as it arrives, as a file. It ends with the end of an Arrow stream, or raises."""

    def __init__(self, response: ServerResponse) -> None:
        self._parts = response.iter_raw()
        self._held = b""
        self._last = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None else size
        pieces, have = [self._held], len(self._held)
        while not self._ended and (wanted < 0 or have < wanted):
            piece = self._next()
            pieces.append(piece)
            have += len(piece)
        data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        if wanted < 0:
            wanted = len(data)
        self._held = data[wanted:]
        return data[:wanted]

    def _next(self) -> bytes:
        try:
            piece = next(self._parts, None)
        except ConnectionFailed as error:
            raise _cut(str(error)) from error
        if piece is None:
            self._ended = True
            if self._last != END:
                raise _cut("its end is missing")
            return b""
        self._last = (self._last + piece)[-len(END) :]
        return piece


async def spooled_body(response: AsyncServerResponse) -> IO[bytes]:
    """The whole body of a response, as a file: an Arrow reader cannot await its input."""
    spool = SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - the caller closes it
    last = b""
    try:
        async for piece in response.aiter_raw():
            spool.write(piece)
            last = (last + piece)[-len(END) :]
    except ConnectionFailed as error:
        raise _cut(str(error)) from error
    if last != END:
        raise _cut("its end is missing")
    spool.seek(0)
    return spool


def _cut(why: str) -> Error:
    return Unavailable(f"the server's response broke off: {why}; read again from the last offset", code="CUT_OFF")


def chunks(rows: Iterable[Any]) -> Iterator[bytes]:
    """Rows as MessagePack arrays, each about as large as a request may be."""
    parts: list[bytes] = []
    size = 0
    for row in rows:
        try:
            part = encode(row)
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise Invalid(f"the row {str(row)[:80]!r} cannot be sent to the server: {error}") from None
        if parts and size + len(part) > CHUNK_BYTES:
            yield _array(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield _array(parts)


def _array(parts: list[bytes]) -> bytes:
    return b"\xdd" + len(parts).to_bytes(4) + b"".join(parts)

"""The receiving half of a connection: bytes in, whole requests out, within the limits.

The parser collects a request (`_phase` says how far it is) and `_admit` gets it when it is complete. A request that
repeats a head (see `heads`) and has come whole is taken without the parser, which is between two requests then. The
rule: whatever a client sends, what is kept of it is bounded, and so is the time it may take; what breaks a limit or the
grammar becomes one `Refusal`, after which nothing more is taken (`_deaf`).
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
from typing import Any, Final

import httptools

from tailrace.http import heads, wire
from tailrace.http.message import Request
from tailrace.http.shared import Shared
from tailrace.http.wire import Refusal
from tailrace.limits import AWS_HEAD_BYTES_MAX, CHUNK_EXTENSION_BYTES_MAX

log = logging.getLogger("tailrace.http")

IDLE: Final = 0  # between requests
HEAD: Final = 1
BODY: Final = 2
UPGRADE: Final = 3  # the head asked for another protocol and a body is to follow; see _read_on
CLOSING: Final = 4

_NO_HEADERS: Final[dict[bytes, bytes]] = {}  # never filled
_PART_BYTES: Final = 1024  # fed at once of a body in chunks; extensions are counted this exactly
_CHUNK_FRAME_BYTES: Final = 12  # what a chunk may have around it: a size of up to eight digits, two line ends
_LENGTH_DIGITS_MAX: Final = 8  # of the Content-Length of a repeated head
_UNLIKE_MAX: Final = 16  # heads in a row of which none repeats the one before; then no more is learned


class Inbound(asyncio.Protocol):
    """A protocol object that collects requests. A subclass runs and answers them."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_held_bytes",
        "_body_mark",
        "_chunked",
        "_chunks",
        "_continue_owed",
        "_deadline",
        "_deaf",
        "_fed_bytes",
        "_fields",
        "_headers",
        "_held_bytes",
        "_host",
        "_http10",
        "_last_target",
        "_loose_bytes",
        "_method",
        "_opening",
        "_parser",
        "_path",
        "_peer",
        "_phase",
        "_progress",
        "_query",
        "_repeats",
        "_secure",
        "_shared",
        "_silent_bytes",
        "_target",
        "_trailer_bytes",
        "_trailers",
        "_unlike",
    )

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser: Any = None
        self._peer = ""
        self._secure = False
        self._phase = IDLE
        self._deaf = False
        self._deadline = math.inf
        self._headers = _NO_HEADERS
        self._target = self._method = self._path = self._query = b""
        self._repeats = 0
        self._trailers = self._trailer_bytes = 0
        self._chunked = False  # the body being read comes in chunks
        self._chunks = 0  # begun in the bytes being fed
        self._loose_bytes = 0  # of the body being read, that are neither content nor needed around it
        self._http10 = False
        self._host: bytes | None = None  # the last one found good
        self._last_target = b""
        self._body: bytes | io.BytesIO = b""
        self._body_bytes = 0
        self._body_held_bytes = 0  # how much of _body_bytes is in _held_bytes
        self._held_bytes = 0  # this connection's part of the server's budget for bodies
        self._body_mark = 0  # _body_bytes when its time was last extended
        self._continue_owed = False
        self._progress = 0  # moves with every request completed and every piece of a body
        self._silent_bytes = 0  # received since the last progress
        self._fed_bytes = 0  # received since it was last idle: the head being read cannot be larger
        self._fields: heads.Fields | None = None  # of the last head that may be repeated
        self._unlike = 0  # heads parsed since the last that was a repetition
        self._opening = b""  # the bytes that the parser was given between two requests, until a head is complete

    # -- what the heir does

    def _admit(self, request: Request) -> None:
        raise NotImplementedError

    def _refuse(self, refusal: Refusal) -> None:
        raise NotImplementedError

    def _may_continue(self) -> None:
        """Send 100 Continue as soon as every earlier answer is written."""
        raise NotImplementedError

    # -- bytes

    def data_received(self, data: bytes) -> None:
        if self._phase == IDLE:
            if self._fields is not None and not self._deaf:
                data = self._take_repeated(data, self._fields)
                if not data:
                    return
            self._opening = data
        if self._deaf:
            return
        before = self._progress
        self._fed_bytes = len(data) if self._phase == IDLE else self._fed_bytes + len(data)
        if len(data) > CHUNK_EXTENSION_BYTES_MAX or self._chunked:
            self._feed_in_parts(data)
        else:
            self._feed(data)
        if self._phase != IDLE or self._silent_bytes:
            self._count_silence(len(data), before)
            if self._phase == BODY:
                self._hold()

    def _take_repeated(self, data: bytes, fields: heads.Fields) -> bytes:
        """Take the requests that `data` begins with, as long as their heads are known; the bytes that are left."""
        shared, at = self._shared, 0
        while True:
            line_end = data.find(b"\r\n", at)
            line = shared.lines.get(data[at:line_end])
            if line is None or not data.startswith(fields.before, line_end):
                break
            begin = line_end + len(fields.before)
            body = b""
            if fields.after:
                stop = data.find(b"\r", begin, begin + _LENGTH_DIGITS_MAX + 1)
                digits = data[begin:stop]
                length = fields.length
                if digits != fields.digits:
                    length = int(digits) if stop > 0 and digits.isdigit() else shared.limits.body_bytes_max + 1
                begin = stop + len(fields.after)
                if (
                    not data.startswith(fields.after, stop)
                    or begin + length > len(data)
                    or length > shared.limits.body_bytes_max
                ):
                    break
                if digits != fields.digits:
                    fields.resize(digits, length)
                body = data[begin : begin + length]
                begin += length
            at = begin
            self._unlike = 0
            self._progress += 1
            shared.stats.requests += 1
            self._http10 = False
            if shared.stopping:
                self._deaf = True
            self._admit(Request(line[0], line[1], b"", fields.headers, body, self._peer, self._secure))
            if at == len(data) or self._deaf:
                return b""
        return data[at:] if at else data

    def _feed_in_parts(self, data: bytes) -> None:
        """Feed much data: a head and its body each by themselves, and a body in chunks a little at a time, so that what
        is around the chunks is counted before the request is complete."""
        view, at = memoryview(data), 0
        while at < len(view) and not self._deaf:
            if self._phase == IDLE:
                found = data.find(b"\r\n\r\n", at)
                end = found + 4 if found >= 0 else len(view)
            elif self._phase == BODY and not self._chunked:
                end = at + max(1, int(self._headers[b"content-length"]) - self._body_bytes)
            else:
                end = at + _PART_BYTES
            self._feed_counted(view[at:end])
            at = end

    def _feed_counted(self, part: memoryview) -> None:
        """Feed a part. If it is of a body in chunks, and that goes on, count what of it is not content."""
        chunked, content = self._chunked, self._body_bytes
        self._chunks = 0
        self._feed(part)
        if not chunked or not self._chunked:
            return
        loose = len(part) - (self._body_bytes - content) - self._chunks * _CHUNK_FRAME_BYTES
        self._loose_bytes += max(0, loose)
        if self._loose_bytes - self._trailer_bytes > CHUNK_EXTENSION_BYTES_MAX:
            self._refuse(wire.extensions_too_large(CHUNK_EXTENSION_BYTES_MAX))

    def _forget_head(self) -> None:
        """Let go of the parser and of the last head, until more arrives. Not within a callback of the parser."""
        if self._parser is not None:
            self._parser = self._fields = None
            self._target = self._path = self._query = self._last_target = self._opening = b""
            self._headers = _NO_HEADERS

    def _feed(self, data: bytes | memoryview) -> None:
        upgrade_at = 0
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            upgrade_at = upgrade.args[0]
        except httptools.HttpParserError as error:
            self._refuse(self._refusal(error))
        if upgrade_at:
            # Outside the handler: within it, a refusal would lose its place as an error's context.
            self._read_on(memoryview(data)[upgrade_at:])

    def _read_on(self, data: memoryview) -> None:
        """Go on after a request that asked to upgrade, which we never do: it is a request like any other.

        The parser takes what follows such a head for another protocol, and so would read a body as the next
        request. A fresh parser is therefore given the same framing without the Upgrade, and then the body.
        """
        while True:
            if self._phase == UPGRADE:
                self._parser = self._parser_without_upgrade()
                self._phase = BODY
            if not data or self._deaf:
                return
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._refuse(self._refusal(error))
                return
            else:
                return

    def _parser_without_upgrade(self) -> Any:
        length = self._headers.get(b"content-length")
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %b" % length
        connection = b"keep-alive" if self._parser.should_keep_alive() else b"close"
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\nconnection: %b\r\n\r\n" % (framing, connection))
        return parser

    def _refusal(self, error: httptools.HttpParserError) -> Refusal:
        if not isinstance(error, httptools.HttpParserCallbackError):
            return wire.unparsable(error)
        cause = error.__context__
        if isinstance(cause, Refusal):
            return cause
        self._shared.stats.failures += 1
        log.error("the transport failed", exc_info=cause)
        return Refusal(500, "INTERNAL", "internal error; the server's log has the reason")

    def _count_silence(self, received: int, before: int) -> None:
        """A field without an end, or chunks without content, are not seen by the callbacks; their bytes are."""
        if self._progress != before or self._deaf:
            self._silent_bytes = 0
            return
        self._silent_bytes += received
        if self._silent_bytes > self._shared.limits.head_bytes_max:
            self._refuse(wire.head_too_large(self._shared.limits.head_bytes_max, aws=self._for_aws()))

    # -- the parser's callbacks; what they raise ends the parsing and reaches data_received

    def on_message_begin(self) -> None:
        if self._phase == UPGRADE:
            return
        self._phase = HEAD
        self._deadline = self._shared.now + self._shared.limits.head_timeout_s
        self._headers = {}
        self._target = b""

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase != HEAD:
            self._skip_trailer(name, value)
            return
        name = name.lower()
        if name in self._headers:
            self._join(name, value.strip())
        else:
            self._headers[name] = value.strip()

    def on_headers_complete(self) -> None:
        if self._phase == UPGRADE:
            return
        parser, headers, limits = self._parser, self._headers, self._shared.limits
        if self._fed_bytes > AWS_HEAD_BYTES_MAX:
            self._check_head_size()
        if len(headers) + self._repeats > limits.headers_max:
            raise wire.too_many_fields(limits.headers_max)
        repeats, self._repeats = self._repeats, 0
        version = parser.get_http_version()
        self._http10 = version == "1.0"
        if version != "1.1" and not self._http10:
            raise wire.unsupported_version()
        self._method = method = parser.get_method()
        wire.check_method(method)
        host = headers.get(b"host")
        if host is None or host != self._host:  # the same one with every request, on most connections
            wire.check_host(host, needed=not self._http10)
            self._host = host
        target = self._target
        if target != self._last_target:  # so it often is with the target
            self._path, self._query = wire.split_target(method, target, headers)
            # An absolute target also overrules the Host field, each time.
            self._last_target = target if target.startswith(b"/") else b""
        self._phase = BODY
        if b"content-length" in headers or b"transfer-encoding" in headers:
            self._expect_body()
        elif b"expect" in headers and not self._http10:
            wire.check_expectation(headers[b"expect"])
        if self._opening and wire.AWS_FIELD not in headers:  # those have signatures, which never repeat
            self._learn(repeats)

    def _learn(self, repeats: int) -> None:
        """Keep the head that is complete now, if it may be repeated."""
        opening, self._opening = self._opening, b""
        if self._unlike < _UNLIKE_MAX and not repeats and not self._http10 and self._parser.should_keep_alive():
            self._unlike += 1
            if self._shared.limits.head_bytes_max >= heads.HEAD_BYTES_MAX:
                self._fields = heads.learn(opening, self._method, self._target, self._headers, self._shared.lines)

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, piece: bytes) -> None:
        self._progress += 1
        self._continue_owed = False
        self._body_bytes += len(piece)
        if self._body_bytes > self._shared.limits.body_bytes_max:
            raise wire.too_large(self._shared.limits.body_bytes_max)
        if not self._body:
            self._body = piece
            return
        if isinstance(self._body, bytes):
            # Not a list of pieces: a body sent as one-byte chunks would take many times its size.
            first, self._body = self._body, io.BytesIO()
            self._body.write(first)
        self._body.write(piece)

    def on_message_complete(self) -> None:
        if self._phase == UPGRADE or self._deaf:
            return
        shared = self._shared
        shared.stats.requests += 1
        self._progress += 1
        self._phase = IDLE
        self._continue_owed = self._chunked = False
        if shared.stopping or not self._parser.should_keep_alive():
            self._deaf = True
        body, self._body = self._body, b""
        self._body_held_bytes = 0  # what was held stays so until the request has its turn; see _let_go
        if not isinstance(body, bytes):
            body = body.getvalue()
        self._admit(Request(self._method, self._path, self._query, self._headers, body, self._peer, self._secure))

    # -- heads

    def _join(self, name: bytes, value: bytes) -> None:
        self._repeats += 1
        if self._repeats > self._shared.limits.headers_max:  # now: joining a great many is what costs
            raise wire.too_many_fields(self._shared.limits.headers_max)
        if name in wire.SINGLE:
            raise wire.invalid(f"the field {name.decode()} is sent twice; send it once")
        self._headers[name] = b"%b, %b" % (self._headers[name], value)

    def _skip_trailer(self, name: bytes, value: bytes) -> None:
        self._trailers += 1
        if self._trailers > self._shared.limits.headers_max:
            raise wire.too_many_fields(self._shared.limits.headers_max)
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._shared.limits.head_bytes_max:
            raise wire.head_too_large(self._shared.limits.head_bytes_max)

    def _check_head_size(self) -> None:
        """Measure a head that came with so much else that it may be too large."""
        aws = self._for_aws()
        bytes_max = self._shared.limits.head_bytes_max
        wire.check_head(self._headers, self._target, min(bytes_max, AWS_HEAD_BYTES_MAX) if aws else bytes_max, aws=aws)

    def _for_aws(self) -> bool:
        """Whether the head being read is, as far as it has come, of a request to the DynamoDB API."""
        return wire.AWS_FIELD in self._headers

    # -- bodies

    def _expect_body(self) -> None:
        limits, headers = self._shared.limits, self._headers
        length = wire.body_length(headers, http10=self._http10, bytes_max=limits.body_bytes_max)
        if length == 0:
            return
        self._deadline = self._shared.now + limits.body_timeout_s
        self._body_bytes = self._body_mark = self._body_held_bytes = 0
        self._trailers = self._trailer_bytes = self._loose_bytes = 0
        self._chunked = length == wire.CHUNKED_LENGTH
        if b"expect" in headers and not self._http10:
            wire.check_expectation(headers[b"expect"])
            self._continue_owed = True
            self._may_continue()
        if self._parser.should_upgrade():
            self._phase = UPGRADE

    def _hold(self) -> None:
        """Count the part of a body that has arrived and waits for the rest. Most bodies come whole."""
        grown = self._body_bytes - self._body_held_bytes
        self._body_held_bytes = self._body_bytes
        self._held_bytes += grown
        self._shared.held_bytes += grown
        if self._shared.held_bytes > self._shared.limits.inbound_bytes_max:
            self._refuse(wire.out_of_room(self._shared.limits.inbound_bytes_max))

    def _drop_body(self) -> None:
        """The rest will not come, or not be taken."""
        self._body = b""
        self._held_bytes -= self._body_held_bytes
        self._shared.held_bytes -= self._body_held_bytes
        self._body_held_bytes = 0

    def _let_go(self) -> None:
        """Nothing of a body is kept here any more."""
        self._shared.held_bytes -= self._held_bytes
        self._held_bytes = self._body_held_bytes = 0

    def _check_arrival(self, now: float) -> None:
        """The deadline has passed with a request incomplete: a body that arrives fast enough gets more time."""
        limits = self._shared.limits
        if self._phase == HEAD:
            self._refuse(wire.timed_out(f"the head took longer than {limits.head_timeout_s:g} s; send it at once"))
        elif self._body_bytes - self._body_mark >= limits.body_rate_min * limits.body_timeout_s:
            self._extend_body_time(now)
        else:
            self._refuse(wire.timed_out(f"the body came at less than {limits.body_rate_min} B/s; send it in parts"))

    def _extend_body_time(self, now: float) -> None:
        self._body_mark = self._body_bytes
        self._deadline = now + self._shared.limits.body_timeout_s

"""Durable Streams: requests on stream URLs become commands, results become responses."""

from __future__ import annotations

import math
import re
from collections.abc import Coroutine
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tailrace import limits
from tailrace.access import Principal
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.http.message import Answer, Headers, Request, Response, content_fields, origin
from tailrace.http.reading import FeedSlice
from tailrace.http.route import decode_path
from tailrace.http.sse import encoding
from tailrace.log import segments
from tailrace.log.log import LogPage
from tailrace.log.position import offset, parse
from tailrace.streams.commands import (
    Append,
    Appended,
    CreatedStream,
    CreateStream,
    DeleteStream,
    Fork,
    TouchStream,
    check_retention,
)
from tailrace.streams.producer import ProducerClaim
from tailrace.streams.queries import DescribeStream, ReadStream, StreamDescription
from tailrace.streams.stream import StreamRow, check_path, touch_due

if TYPE_CHECKING:
    from tailrace.http.services import Services

ROOT: Final = "/v1/stream/"

_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_RFC3339: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


class StreamFeed:
    """A stream as something to be read. Reading renews its TTL."""

    def __init__(self, db: Database, principal: Principal, path: str) -> None:
        self._db = db
        self.principal = principal
        self._path = path
        self.slice_bytes = limits.PAGE_SLICE_BYTES
        self.renew_s = math.inf

    async def read(self, position: int | None, bytes_max: int) -> FeedSlice:
        query = ReadStream(self._path, position, bytes_max, limits.PAGE_SLICE_ENTRIES, limits.SLICE_ENTRIES, True)
        found = await self._db.aexecute(query, self.principal)
        self._touch(found.stream)
        return _piece(found.stream, found.position, found.page)

    async def describe(self) -> FeedSlice:
        found = await self._db.aexecute(DescribeStream(self._path), self.principal)
        self._touch(found.stream)
        tail = found.log.next
        return _piece(found.stream, tail, LogPage([], tail, tail))

    def _touch(self, stream: StreamRow) -> None:
        if stream.ttl_s is not None:
            self.renew_s = max(stream.ttl_s / 3, 0.1)
        if stream.ttl_s is not None and touch_due(stream, self._db.clock.now_ms()):
            # The result is not awaited: the read is answered from committed data either way.
            self._db.aexecute(TouchStream(self._path))


def _piece(stream: StreamRow, start: int, page: LogPage) -> FeedSlice:
    kind = stream.content_type
    form = encoding(kind)
    if form.separator:
        bodies = list(chain.from_iterable(map(segments.bodies, page.segments)))
    else:
        bodies = [segment.body for segment in page.segments]  # entries follow one another as they do in a segment
    return FeedSlice(stream.log, kind, form, start, bodies, page.next, page.tail, bool(stream.closed))


# -- creating


def parse_create(request: Request, path: str) -> CreateStream:
    fields = request.headers
    ttl_s = _number(fields, b"stream-ttl", limits.TTL_S_MAX)
    expires_ms, expires_text = _expiry(fields.get(b"stream-expires-at"))
    if ttl_s is not None and expires_ms is not None:
        raise Invalid("Stream-TTL and Stream-Expires-At exclude each other; send one of them")
    max_age_s = _number(fields, b"stream-max-age", limits.TTL_S_MAX)
    max_bytes = _number(fields, b"stream-max-bytes", limits.POSITION_MAX)
    check_retention(max_age_s, max_bytes)
    content_type = fields.get(b"content-type", b"").decode("latin-1").strip() or None
    return CreateStream(
        check_path(path), content_type, request.body, ttl_s, expires_ms, expires_text, _closes(fields),
        _fork(fields, request.mount), max_age_s, max_bytes,
    )  # fmt: skip


def render_created(request: Request, created: CreatedStream) -> Response:
    headers: Headers = [
        *content_fields(created.stream.content_type),
        (b"stream-next-offset", offset(created.tail).encode()),
    ]
    if created.stream.closed:
        headers.append((b"stream-closed", b"true"))
    if created.fresh:
        headers.append((b"location", _url(request, created.stream.path)))
    return Response(201 if created.fresh else 200, headers)


def _url(request: Request, path: str) -> bytes:
    return (origin(request, request.config) + ROOT + quote(path, safe="/~!$&'()*+,;=:@")).encode()


# -- appending


def parse_append(request: Request, path: str) -> Append:
    fields = request.headers
    claim = None
    if b"producer-id" in fields or b"producer-epoch" in fields or b"producer-seq" in fields:
        claim = producer_claim(fields)
    content_type = fields.get(b"content-type")
    seq = fields.get(b"stream-seq")
    return Append(
        path,
        request.body,
        None if content_type is None else content_type.decode("latin-1"),
        claim,
        None if seq is None else _seq(seq),
        b"stream-closed" in fields and _closes(fields),
    )


def render_appended(request: Request, done: Appended) -> Response:
    headers: Headers = [(b"stream-next-offset", b"0000000000000000_%016d" % done.tail)]
    epoch = request.headers.get(b"producer-epoch")
    if epoch is not None:
        headers.append((b"producer-epoch", b"%d" % int(epoch)))
        headers.append((b"producer-seq", b"%d" % (done.sequence or 0)))
    if done.closed:
        headers.append((b"stream-closed", b"true"))
    return Response(200 if epoch is not None and not done.duplicate and request.body else 204, headers)


# -- describing, deleting and reading


def parse_describe(request: Request, path: str) -> DescribeStream:
    return DescribeStream(path)


def render_described(request: Request, found: StreamDescription) -> Response:
    stream, log = found.stream, found.log
    headers: Headers = [
        *content_fields(stream.content_type),
        (b"stream-next-offset", offset(log.next).encode()),
        (b"cache-control", b"no-store"),
    ]
    if stream.ttl_s is not None:
        headers.append((b"stream-ttl", b"%d" % stream.ttl_s))
    elif stream.expires_text is not None:
        headers.append((b"stream-expires-at", stream.expires_text.encode()))
    if stream.closed:
        headers.append((b"stream-closed", b"true"))
    if stream.max_age_s is not None:
        headers.append((b"stream-max-age", b"%d" % stream.max_age_s))
    if stream.max_bytes is not None:
        headers.append((b"stream-max-bytes", b"%d" % stream.max_bytes))
    if found.earliest:
        headers.append((b"stream-earliest-offset", offset(found.earliest).encode()))
    return Response(200, headers)


def parse_delete(request: Request, path: str) -> DeleteStream:
    return DeleteStream(path)


def read(services: Services, request: Request, principal: Principal, path: str) -> Coroutine[Any, Any, Answer]:
    """A page, a long-poll or an event stream."""
    return services.reading.answer(request, StreamFeed(services.db, principal, path))


# -- header fields


def _closes(fields: dict[bytes, bytes]) -> bool:
    value = fields.get(b"stream-closed")
    return value is not None and value.strip().lower() == b"true"


def producer_claim(fields: dict[bytes, bytes]) -> ProducerClaim:
    """The three producer fields, of which there is one at least."""
    values: list[int] = []
    producer = fields.get(b"producer-id")
    for name in ("Producer-Epoch", "Producer-Seq"):
        value = fields.get(name.lower().encode())
        if value is None or producer is None:
            raise Invalid("Producer-Id, Producer-Epoch and Producer-Seq go together; send all three or none")
        text = value.decode("latin-1")
        if not _DIGITS.fullmatch(text) or int(text) > limits.PRODUCER_NUMBER_MAX:
            raise Invalid(f"{name} {text[:80]!r} is not an integer from 0 to {limits.PRODUCER_NUMBER_MAX}")
        values.append(int(text))
    assert producer is not None
    if not producer or len(producer) > limits.PRODUCER_ID_BYTES_MAX:
        raise Invalid(f"Producer-Id must have 1 to {limits.PRODUCER_ID_BYTES_MAX} characters, not {len(producer)}")
    return ProducerClaim(producer.decode("latin-1"), values[0], values[1])


def _seq(value: bytes) -> str:
    if not value or len(value) > limits.STREAM_SEQ_BYTES_MAX:
        raise Invalid(f"Stream-Seq must have 1 to {limits.STREAM_SEQ_BYTES_MAX} characters, not {len(value)}")
    return value.decode("latin-1")


def _number(fields: dict[bytes, bytes], name: bytes, most: int) -> int | None:
    """A decimal number without sign, leading zero, point or exponent."""
    value = fields.get(name)
    if value is None:
        return None
    text = value.decode("latin-1")
    if not _NUMBER.fullmatch(text) or len(text) > 17 or int(text) > most:
        title = name.decode().title().replace("Ttl", "TTL")
        raise Invalid(f"{title} {text[:80]!r} is not an integer from 0 to {most} in plain decimal digits")
    return int(text)


def _expiry(value: bytes | None) -> tuple[int | None, str | None]:
    if value is None:
        return None, None
    text = value.decode("latin-1")
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper())
        return int(moment.timestamp() * 1000), text
    except (ValueError, OverflowError):
        raise Invalid(f"Stream-Expires-At {text[:80]!r} is not an RFC 3339 time such as 2030-01-31T12:00:00Z") from None


def _fork(fields: dict[bytes, bytes], mount: str) -> Fork | None:
    source = fields.get(b"stream-forked-from")
    if source is None:
        for name in (b"stream-fork-offset", b"stream-fork-sub-offset"):
            if name in fields:
                raise Invalid(f"{name.decode().title()} needs Stream-Forked-From: name the source stream's path")
        return None
    root = ROOT.encode()
    source = source.removeprefix(mount.encode())
    if not source.startswith(root):
        raise Invalid(f"Stream-Forked-From {source.decode('latin-1')[:80]!r} must be a path that begins with {ROOT}")
    anchor = fields.get(b"stream-fork-offset")
    sub = _number(fields, b"stream-fork-sub-offset", limits.POSITION_MAX) or 0
    if sub and anchor is None:
        raise Invalid("Stream-Fork-Sub-Offset needs Stream-Fork-Offset: say after which offset it counts")
    return Fork(
        check_path(decode_path(source[len(root) :])), None if anchor is None else parse(anchor.decode("latin-1")), sub
    )

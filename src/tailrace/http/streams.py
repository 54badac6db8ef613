"""The Durable Streams door: requests on stream URLs become commands, results become answers."""

from __future__ import annotations

import math
import re
from collections.abc import Coroutine
from datetime import datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from tailrace import limits
from tailrace.access import Principal
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Invalid, NotAllowed
from tailrace.http.bulk import BulkDoor, wants_arrow
from tailrace.http.encoding import encoding
from tailrace.http.message import Answer, Headers, Request, Response, content_fields, origin
from tailrace.http.reading import Piece, Reading
from tailrace.log.log import Page
from tailrace.log.position import offset, parse
from tailrace.streams.commands import Append, Create, Delete, Fork, Touch, check_retention
from tailrace.streams.producer import Claim
from tailrace.streams.queries import Describe, Read
from tailrace.streams.stream import Stream, check_path, touch_due

ROOT: Final = "/v1/stream/"
METHODS: Final = "GET, HEAD, PUT, POST, DELETE, OPTIONS"

_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,16}", re.ASCII)
_RFC3339: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


class StreamFeed:
    """A stream as something to be read. Reading renews its TTL."""

    def __init__(self, db: Database, principal: Principal, path: str) -> None:
        self._db = db
        self.principal = principal
        self._path = path
        self.renew_s = math.inf

    async def read(self, position: int | None, bytes_max: int) -> Piece:
        query = Read(self._path, position, bytes_max, limits.SLICE_ENTRIES)
        found = await self._db.aexecute(query, self.principal)
        self._touch(found.stream)
        return _piece(found.stream, found.position, found.page)

    async def describe(self) -> Piece:
        found = await self._db.aexecute(Describe(self._path), self.principal)
        self._touch(found.stream)
        tail = found.log.next
        return _piece(found.stream, tail, Page([], tail, tail))

    def _touch(self, stream: Stream) -> None:
        if stream.ttl_s is not None:
            self.renew_s = max(stream.ttl_s / 3, 0.1)
        if stream.ttl_s is not None and touch_due(stream, self._db.clock.now_ms()):
            # Nobody waits for it: the read is answered from what is committed either way.
            self._db.aexecute(Touch(self._path))


def _piece(stream: Stream, start: int, page: Page) -> Piece:
    kind = stream.content_type
    return Piece(stream.log, kind, encoding(kind), start, page.entries, page.next, page.tail, bool(stream.closed))


class StreamsDoor:
    """Everything under /v1/stream/ but the reserved paths."""

    def __init__(self, db: Database, reading: Reading, bulk: BulkDoor, config: Config) -> None:
        self._db = db
        self._reading = reading
        self._bulk = bulk
        self._config = config

    def __call__(self, request: Request, raw: bytes, principal: Principal) -> Coroutine[Any, Any, Answer]:
        """Answer a request; `raw` is the path after /v1/stream/, as it came."""
        method = request.method
        path = decode_path(raw)
        if method == b"POST":
            return self._append(request, path, principal)
        if method == b"GET":
            return self._read(request, path, principal)
        if method == b"PUT":
            return self._create(request, path, principal)
        if method == b"HEAD":
            return self._read(request, path, principal) if wants_arrow(request) else self._head(path, principal)
        if method == b"DELETE":
            return self._delete(path, principal)
        raise NotAllowed(f"a stream does not take {method.decode()}", allow=METHODS)

    async def _append(self, request: Request, path: str, principal: Principal) -> Response:
        fields = request.headers
        claim = None
        if b"producer-id" in fields or b"producer-epoch" in fields or b"producer-seq" in fields:
            claim = producer_claim(fields)
        content_type = fields.get(b"content-type")
        seq = fields.get(b"stream-seq")
        close = _closes(fields)
        done = await self._db.aexecute(
            Append(
                path,
                request.body,
                None if content_type is None else content_type.decode("latin-1"),
                claim,
                None if seq is None else _seq(seq),
                close,
            ),
            principal,
        )
        headers: Headers = [(b"stream-next-offset", b"0000000000000000_%016d" % done.tail)]
        if claim is not None:
            headers.append((b"producer-epoch", b"%d" % claim.epoch))
            headers.append((b"producer-seq", b"%d" % (done.sequence or 0)))
        if done.closed:
            headers.append((b"stream-closed", b"true"))
        return Response(200 if claim is not None and not done.duplicate and request.body else 204, headers)

    async def _create(self, request: Request, path: str, principal: Principal) -> Response:
        fields = request.headers
        ttl_s = _number(fields, b"stream-ttl", limits.TTL_S_MAX)
        expires_ms, expires_text = _expiry(fields.get(b"stream-expires-at"))
        if ttl_s is not None and expires_ms is not None:
            raise Invalid("Stream-TTL and Stream-Expires-At exclude each other; send one of them")
        max_age_s = _number(fields, b"stream-max-age", limits.TTL_S_MAX)
        max_bytes = _number(fields, b"stream-max-bytes", limits.POSITION_MAX)
        check_retention(max_age_s, max_bytes)
        content_type = fields.get(b"content-type", b"").decode("latin-1").strip() or None
        created = await self._db.aexecute(
            Create(
                check_path(path), content_type, request.body, ttl_s, expires_ms, expires_text, _closes(fields),
                _fork(fields, request.mount), max_age_s, max_bytes,
            ),
            principal,
        )  # fmt: skip
        headers: Headers = [
            *content_fields(created.stream.content_type),
            (b"stream-next-offset", offset(created.tail).encode()),
        ]
        if created.stream.closed:
            headers.append((b"stream-closed", b"true"))
        if created.fresh:
            headers.append((b"location", self._url(request, path)))
        return Response(201 if created.fresh else 200, headers)

    async def _head(self, path: str, principal: Principal) -> Response:
        found = await self._db.aexecute(Describe(path), principal)
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

    async def _delete(self, path: str, principal: Principal) -> Response:
        await self._db.aexecute(Delete(path), principal)
        return Response(204, [])

    def _read(self, request: Request, path: str, principal: Principal) -> Coroutine[Any, Any, Answer]:
        if wants_arrow(request):
            return self._bulk.stream(request, principal, path)
        return self._reading.answer(request, StreamFeed(self._db, principal, path))

    def _url(self, request: Request, path: str) -> bytes:
        return (origin(request, self._config) + ROOT + quote(path, safe="/~!$&'()*+,;=:@")).encode()


@lru_cache(maxsize=4096)
def decode_path(raw: bytes) -> str:
    """A stream's path from the URL's."""
    if len(raw) > 3 * limits.PATH_BYTES_MAX:  # percent-encoded, each byte is three; what is longer is not remembered
        raise Invalid(f"the path is longer than {limits.PATH_BYTES_MAX} bytes; shorten it", code="INVALID_PATH")
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid("the path is not valid UTF-8; percent-encode UTF-8 text", code="INVALID_PATH") from None


def _closes(fields: dict[bytes, bytes]) -> bool:
    value = fields.get(b"stream-closed")
    return value is not None and value.strip().lower() == b"true"


def producer_claim(fields: dict[bytes, bytes]) -> Claim:
    """The three producer fields, all or none."""
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
    return Claim(producer.decode("latin-1"), values[0], values[1])


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

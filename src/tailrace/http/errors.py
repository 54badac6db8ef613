"""How errors look on the wire; what a protocol adds to one lives here alone."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.errors import (
    AlreadyClaimed,
    Closed,
    Error,
    LoginThrottled,
    NotAllowed,
    SequenceGap,
    StaleEpoch,
    TooMany,
    Trimmed,
    Unauthenticated,
    Unavailable,
    WrongToken,
)
from tailrace.http.message import Headers, Response
from tailrace.log.position import offset

_encode: Final = msgspec.json.Encoder().encode


def response(error: Error) -> Response:
    """The answer to a request that failed with `error`."""
    # The frames of the traceback hold the request, and the queued command that holds the error: such a cycle would keep
    # the body in memory until the collector runs.
    error.__traceback__ = error.__context__ = None
    body: dict[str, Any] = {"code": error.code, "message": str(error), **error.facts}
    headers: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    match error:
        case Closed():
            headers += [(b"stream-closed", b"true"), (b"stream-next-offset", offset(error.tail).encode())]
        case StaleEpoch():
            headers.append((b"producer-epoch", b"%d" % error.current))
        case SequenceGap():
            headers.append((b"producer-expected-seq", b"%d" % error.expected))
            headers.append((b"producer-received-seq", b"%d" % error.received))
        case Trimmed():
            headers.append((b"stream-earliest-offset", error.offset.encode()))
            body["earliest_offset"] = error.offset
        case AlreadyClaimed():
            body["current_holder"] = error.holder
            body["generation"] = error.generation
        case NotAllowed():
            headers.append((b"allow", error.allow.encode()))
        case Unauthenticated():
            wrong = b', error="invalid_token"' if isinstance(error, WrongToken) else b""
            basic = b', Basic realm="tailrace", charset="UTF-8"'
            headers.append((b"www-authenticate", b'Bearer realm="tailrace"' + wrong + basic))
        case LoginThrottled():
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        case Unavailable() | TooMany():
            headers.append((b"retry-after", b"1"))
    return Response(error.status, headers, _encode({"error": body}))

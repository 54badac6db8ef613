"""Query strings and bodies in, JSON out: the parts of HTTP that all handlers read and write alike."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from tailrace import limits
from tailrace.errors import Invalid, TooLarge
from tailrace.http.message import Headers, Request, Response
from tailrace.http.route import MSGPACK_TYPES
from tailrace.jobs import stage
from tailrace.jobs.stage import Target

T = TypeVar("T")
Position = Annotated[int, Meta(ge=0, le=limits.POSITION_MAX)]
LogNumber = Annotated[int, Meta(ge=1, le=limits.POSITION_MAX)]
Range = tuple[Position, Position]
JSON_FIELDS: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
NO_STORE: Final[Headers] = [(b"cache-control", b"no-store")]
_NAMES: Final = ("table", "topic", "stream")
_encode: Final = msgspec.json.Encoder().encode


class LogName(msgspec.Struct, forbid_unknown_fields=True):
    """A table, a topic or a stream."""

    table: str | None = None
    topic: str | None = None
    stream: str | None = None
    label: str | None = None  # of a table's change stream before the present one

    def target(self) -> Target:
        return stage.target(self.table, self.topic, self.stream)


def query_of(request: Request, *known: str) -> dict[str, str]:
    """The parameters in the query string; each once, and no others than `known`."""
    try:
        pairs = parse_qsl(
            request.query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(request.query),
            errors="strict",
            max_num_fields=64,
        )
    except ValueError as error:
        raise Invalid(f"the query string is malformed: {error}") from None
    parameters = dict(pairs)
    for name in parameters:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise Invalid(f"parameter {name[:80]!r} is unknown here; {there}")
    if len(parameters) != len(pairs):
        raise Invalid("a parameter is given twice; give each once")
    return parameters


def parameters_of(request: Request) -> dict[str, str]:
    """The parameters of a request to a route that knows all of its own."""
    return request.parameters if request.query else {}


def target_of(parameters: dict[str, str]) -> Target:
    """The target that is named by exactly one of table, topic and stream."""
    return stage.target(*(parameters.get(name) for name in _NAMES))


def json_body(
    request: Request,
    decoder: msgspec.json.Decoder[T],
    bytes_max: int = limits.CONTROL_BODY_BYTES_MAX,
    *,
    empty: bytes = b"",
) -> T:
    """The body, which is JSON; `empty` stands for a body that is left out."""
    _check_size(request, bytes_max)
    try:
        return decoder.decode(request.body or empty)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not JSON of the expected form: {error}") from None


def msgpack_body(request: Request, decoder: msgspec.msgpack.Decoder[T], bytes_max: int) -> T:
    """The body, which is MessagePack."""
    _check_size(request, bytes_max)
    try:
        return decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not MessagePack of the expected form: {error}") from None


def sends_msgpack(request: Request) -> bool:
    """Whether the body is MessagePack, by its Content-Type."""
    sent = request.headers.get(b"content-type", b"")
    return b"msgpack" in sent and sent.partition(b";")[0].strip().lower() in MSGPACK_TYPES


def _check_size(request: Request, bytes_max: int) -> None:
    if len(request.body) > bytes_max:
        raise TooLarge(f"the body has {len(request.body)} bytes, and may have {bytes_max}; send less at a time")


def json_response(value: Any, status: int = 200) -> Response:
    return Response(status, JSON_FIELDS, _encode(value))


def no_content(request: Request, result: Any) -> Response:
    """204, for commands whose result is not shown."""
    return Response(204, [])


def no_content_stored(request: Request, result: Any) -> Response:
    """204 that no cache keeps."""
    return Response(204, NO_STORE)


def by_log(positions: dict[int, int]) -> dict[str, int]:
    """Positions by log, as JSON has them: with text for keys."""
    return {str(log): position for log, position in positions.items()}


def rfc3339(at_ms: int) -> str:
    """A time as it stands in JSON."""
    seconds, ms = divmod(at_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def prefers(accept: bytes, wanted: bytes) -> bool:
    """Whether a client that sends this Accept takes a content type, and prefers no other."""
    found, other = 0.0, 0.0
    for part in accept.lower().split(b","):
        kind, *parameters = (each.strip() for each in part.split(b";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith(b"q="):
                weight = _weight(parameter[2:])
        if kind == wanted:
            found = max(found, weight)
        elif b"*" not in kind:
            other = max(other, weight)
    return found > 0 and found >= other


def _weight(text: bytes) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0

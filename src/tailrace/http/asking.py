"""What the doors of the pipeline have in common: how they read a request and write an answer."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from tailrace import limits
from tailrace.errors import Invalid, NotAllowed, NotFound, TooLarge
from tailrace.http.message import Headers, Request, Response
from tailrace.jobs import stage
from tailrace.jobs.stage import Target

T = TypeVar("T")
Position = Annotated[int, Meta(ge=0, le=limits.POSITION_MAX)]
LogNumber = Annotated[int, Meta(ge=1, le=limits.POSITION_MAX)]
Range = tuple[Position, Position]
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder().encode
_NAMES: Final = ("table", "topic", "stream")


class Named(msgspec.Struct, forbid_unknown_fields=True):
    """A table, a topic or a stream."""

    table: str | None = None
    topic: str | None = None
    stream: str | None = None
    label: str | None = None  # of a table's change stream before the present one

    def target(self) -> Target:
        return stage.target(self.table, self.topic, self.stream)


def asked(request: Request, *known: str) -> dict[str, str]:
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
    found = dict(pairs)
    for name in found:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise Invalid(f"parameter {name[:80]!r} is unknown here; {there}")
    if len(found) != len(pairs):
        raise Invalid("a parameter is given twice; give each once")
    return found


def check_none(request: Request) -> None:
    """Refuse any parameter in the query string: what is asked here takes none."""
    if request.query:
        asked(request)


def target(parameters: dict[str, str]) -> Target:
    """What is named by exactly one of table, topic and stream."""
    return stage.target(*(parameters.get(name) for name in _NAMES))


def body(request: Request, decoder: msgspec.json.Decoder[T], bytes_max: int = limits.CONTROL_BODY_BYTES_MAX) -> T:
    """The request's body, which is JSON."""
    if len(request.body) > bytes_max:
        raise TooLarge(f"the body has {len(request.body)} bytes, and may have {bytes_max}; send less at a time")
    try:
        return decoder.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not the JSON that is wanted here: {error}") from None


def answer(told: Any, status: int = 200) -> Response:
    return Response(status, _JSON, _encode(told))


def numbered(positions: dict[int, int]) -> dict[str, int]:
    """Positions by log: JSON has text for keys."""
    return {str(log): position for log, position in positions.items()}


def refused(request: Request, allow: str) -> NotAllowed:
    path, method = request.path.decode("latin-1")[:200], request.method.decode("latin-1")
    return NotAllowed(f"{path!r} does not take {method}", allow=allow)


def nothing(request: Request, there: str) -> NotFound:
    return NotFound(f"there is nothing at {request.path.decode('latin-1')[:200]!r}; {there}")

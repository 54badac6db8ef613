"""A row of the route table, and the matcher that finds the row for a path.

A row says everything about an endpoint: method and path template, the credentials it takes, the content types and query
parameters it accepts, the types of its request and response, and the functions that answer it. Either `parse` makes a
command or query of a request and `render` makes a response of the result, both pure functions; or `answer` is a
function that returns the response, or a coroutine of it: for live reads, and for requests that need several steps.

A template's `{name}` is one segment of the path, `{name*}` is all that is left of it. A literal segment goes before a
placeholder. The matcher is a tree of segments, and caches the paths of recent requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, NotAllowed, NotFound
from tailrace.http.message import Request

ANY_METHOD: Final = "*"
METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")  # in the order of Allow
PATHS_CACHED_MAX: Final = 4_096
PATH_BYTES_MAX: Final = 4 * limits.PATH_BYTES_MAX  # percent-encoded, each byte is three; and there are other segments

OPEN: Final = "open"  # no credentials: for everyone, or the handler checks its own
PRINCIPAL: Final = "principal"  # the credentials of a principal
WAKE_TOKEN: Final = "wake token"  # the token of one wake of a subscription, as the bearer token

JSON: Final = (b"application/json",)
MSGPACK_TYPES: Final = (b"application/vnd.msgpack", b"application/msgpack", b"application/x-msgpack")
JSON_OR_MSGPACK: Final = (*JSON, *MSGPACK_TYPES)
MSGPACK_OR_ARROW: Final = (MSGPACK_TYPES[0], b"application/vnd.apache.arrow.stream", *MSGPACK_TYPES[1:])
ANY_TYPE: Final = ()  # the body is data of the type that it declares

TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
MSGPACK: Final = "application/vnd.msgpack"
HTML: Final = "text/html"
JAVASCRIPT: Final = "text/javascript"
CSS: Final = "text/css"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint. A GET row answers HEAD too, unless that has a row of its own."""

    method: str
    path: str
    summary: str
    tag: str  # the section of the documentation
    also: tuple[str, ...] = ()  # other spellings of the path

    parse: Callable[..., Any] | None = None  # (request, *path parameters) -> Command | Query
    render: Callable[[Request, Any], Any] | None = None  # (request, result) -> Response
    answer: Callable[..., Any] | None = None  # (services, request, principal, *path parameters) -> Answer or coroutine
    complete: bool = False  # `answer` makes all checks itself: its coroutine raises no `Error`, and is not live
    arrow: Route | None = None  # the same resource as Arrow, for clients that accept it
    offload: bool = False  # executed and rendered in a thread: the result may be large
    count: Callable[[Any, Any], None] | None = None  # (metrics, result): counts a command that was executed

    access: Literal["open", "principal", "wake token"] = PRINCIPAL
    permissions: tuple[str, ...] = ()  # those that the command may need, depending on what it names

    types: tuple[bytes, ...] = JSON  # content types of the body
    # The known query parameters: others are refused. None: unknown ones are ignored.
    query: tuple[str, ...] | None = ()
    ignored: tuple[str, ...] = ()  # parameters that are known where others are ignored

    body: Any = None  # the request's type: for msgspec, or the name of a content type
    response: Any = None  # likewise
    status: int = 200
    more: tuple[int, ...] = ()  # other statuses of success


Methods = dict[bytes, Route]
Match = tuple[Methods, tuple[str, ...]]


class _Node:
    """The routes of a path, and what is below it."""

    __slots__ = ("literals", "methods", "placeholder", "rest")

    def __init__(self) -> None:
        self.methods: Methods = {}
        self.literals: dict[bytes, _Node] = {}
        self.placeholder: _Node | None = None
        self.rest: _Node | None = None

    def below(self, segment: str) -> _Node:
        """The node of a template's segment, made if there is none."""
        if segment.endswith("*}"):
            self.rest = self.rest or _Node()
            return self.rest
        if segment.startswith("{"):
            self.placeholder = self.placeholder or _Node()
            return self.placeholder
        return self.literals.setdefault(segment.encode(), _Node())


class RouteTable:
    """Finds the rows for a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._root = _Node()
        for route in self._routes:
            for path in (route.path, *route.also):
                self._add(path, route)
        self.find = lru_cache(PATHS_CACHED_MAX)(self._find)

    def _add(self, path: str, route: Route) -> None:
        node = self._root
        for segment in path[1:].split("/"):
            node = node.below(segment)
        present = node.methods.get(route.method.encode())
        assert present is None or present.method != route.method, f"{route.method} {path} is there twice"
        node.methods[route.method.encode()] = route
        if route.method == "GET":
            node.methods.setdefault(b"HEAD", route)

    def _find(self, path: bytes) -> Match:
        """The rows at a path by their methods, and the values of its placeholders; `NotFound`."""
        if len(path) > PATH_BYTES_MAX:  # it is not remembered
            raise Invalid(f"the path is longer than {PATH_BYTES_MAX} bytes; shorten it", code="INVALID_PATH")
        node, values, rest = self._root, [], path[1:]
        while True:
            segment, slash, below = rest.partition(b"/")
            child = node.literals.get(segment)
            if child is None or not (slash or child.methods):
                if node.placeholder is not None:
                    child = node.placeholder
                    values.append(decode_path(segment))
                elif node.rest is not None:
                    node = node.rest
                    values.append(decode_path(rest))
                    break
                else:
                    raise self._nothing(path)
            node = child
            if not slash:
                break
            rest = below
        if not node.methods:
            raise self._nothing(path)
        return node.methods, tuple(values)

    def _nothing(self, path: bytes) -> NotFound:
        """There is no row; those that begin like this path are named."""
        text = path.decode("latin-1")
        parts = text.split("/")
        for size in range(len(parts) - 1, 1, -1):
            prefix = "/".join(parts[:size]) + "/"
            near = dict.fromkeys(_shown(route.path) for route in self._routes if f"{route.path}/".startswith(prefix))
            if near and prefix not in ("/v1/", "//"):
                return NotFound(f"there is nothing at {text[:200]!r}; there are {', '.join(near)}")
        return NotFound(
            f"there is nothing at {text[:200]!r}; streams are at /v1/stream/<path>, changes of tables at "
            "/v1/tables/<name>/stream, topics at /v1/topics/<name>, SQL at POST /v1/api/sql, the DynamoDB API at "
            "POST /, and all endpoints are listed at /openapi.json"
        )


def _shown(template: str) -> str:
    return template.replace("{", "<").replace("*}", "}").replace("}", ">")


def not_allowed(request: Request, methods: Methods) -> NotAllowed:
    """405, with the methods that there are."""
    allow = ", ".join([name for name in METHODS if name.encode() in methods] + ["OPTIONS"])
    path, method = request.path.decode("latin-1")[:200], request.method.decode("latin-1")
    return NotAllowed(f"{path} does not support {method}; it supports {allow}", allow=allow)


def decode_path(raw: bytes) -> str:
    """The value of a placeholder."""
    if len(raw) > 3 * limits.PATH_BYTES_MAX:  # percent-encoded, each byte is three
        raise Invalid(f"the path is longer than {limits.PATH_BYTES_MAX} bytes; shorten it", code="INVALID_PATH")
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid("the path is not valid UTF-8; percent-encode UTF-8 text", code="INVALID_PATH") from None

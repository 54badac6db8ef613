"""The files of the web console: the same for everyone, without credentials; the data that they show needs them.

The files are read once. A browser asks each time whether its copy is current (`ETag`), so that after an upgrade of the
server all of them are of one version. The policy lets a page run and load what this server sends, and nothing else.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.access import Principal
from tailrace.errors import NotFound
from tailrace.http.message import Headers, Request, Response

if TYPE_CHECKING:
    from tailrace.http.services import Services

FILES: Final = Path(__file__).parent / "console"
PAGE: Final = "index.html"
CLIENT: Final = "tailrace.js"  # the JavaScript client: in a wheel beside the other files, in a checkout in clients/js
_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FIELDS: Final[Headers] = [
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
]


class StaticFile:
    """A file as it is sent."""

    __slots__ = ("compressed", "content", "fields", "tag")

    def __init__(self, path: Path) -> None:
        self.content: Final = path.read_bytes()
        self.compressed: Final = gzip.compress(self.content, mtime=0)
        self.tag: Final = b'W/"%b"' % hashlib.sha256(self.content).hexdigest()[:20].encode()
        self.fields: Final[Headers] = [(b"content-type", _TYPES[path.suffix]), (b"etag", self.tag), *_FIELDS]


def path_of(name: str) -> Path | None:
    """Where the file with this name is; None if there is none."""
    if name == CLIENT and not (FILES / CLIENT).exists():
        checkout = (parent / "clients" / "js" / CLIENT for parent in Path(__file__).parents)
        return next((path for path in checkout if path.exists()), None)
    return {path.name: path for path in FILES.iterdir() if path.suffix in _TYPES}.get(name)


@lru_cache(maxsize=64)
def _load(name: str) -> StaticFile:
    path = path_of(name)
    if path is None:
        raise NotFound(f"the console has no file {name[:80]!r}; it is at /console")
    return StaticFile(path)


def get_console(services: Services, request: Request, principal: Principal) -> Response:
    return _moved() if request.path.endswith(b"/") else page(request)


def get_file(services: Services, request: Request, principal: Principal, name: str) -> Response:
    return _moved() if name == PAGE else _response(request, _load(name))


def _moved() -> Response:
    """The page is at `/console`, and names its files relative to that: the server may be mounted below a path."""
    return Response(308, [(b"location", b"../console"), (b"cache-control", b"no-cache")])


def page(request: Request) -> Response:
    """The page of the console, which loads the rest."""
    return _response(request, _load(PAGE))


def _response(request: Request, file: StaticFile) -> Response:
    if file.tag in request.headers.get(b"if-none-match", b""):
        return Response(304, file.fields)
    if b"gzip" in request.headers.get(b"accept-encoding", b""):
        return Response(200, [*file.fields, (b"content-encoding", b"gzip")], file.compressed)
    return Response(200, file.fields, file.content)

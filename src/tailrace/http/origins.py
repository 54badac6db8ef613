"""Which peers, Hosts and Origins a request may come from, and the CORS fields of its response.

A browser sends requests for any page that is open in it, and says which page in `Origin`. Two things follow.

In dev mode there is no authentication, so that the place a request comes from is all that is known of it: the peer must
be a loopback address, not reached through a proxy; the Host must be a loopback name, since a page can make its own name
resolve to 127.0.0.1 (DNS rebinding); and the Origin must be a page of this machine. `http.allowed_hosts` and
`http.allowed_origins` add to that.

With authentication, a page is no threat if it has to know the credentials: bearer tokens and signatures. It is one if
the browser adds them by itself (Basic). Such a request must come from this server's own origin or a listed one. The
CORS fields, without which a page cannot read a response, are sent to the same origins only; ``*`` in
`http.allowed_origins` adds all others for requests without such credentials.

A preflight request has no effect, so that it is answered for every Origin; without `Access-Control-Allow-Origin` the
browser goes no further.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from tailrace.config import Config, host_of, origin_of
from tailrace.errors import Forbidden
from tailrace.http.message import Headers, Request

EVERY_ORIGIN: Final = "*"
HOSTS_CACHED_MAX: Final = 64

_FORWARDED: Final = frozenset(
    (
        b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto",
        b"x-forwarded-server", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip",
    )
)  # fmt: skip
_READS: Final = frozenset((b"GET", b"HEAD"))
_EXPOSED: Final = (
    b"access-control-expose-headers",
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, Stream-Expires-At, "
    b"Stream-Earliest-Offset, Stream-Max-Age, Stream-Max-Bytes, Stream-SSE-Data-Encoding, Producer-Epoch, "
    b"Producer-Seq, Producer-Expected-Seq, Producer-Received-Seq, Topic-Partition, Topic-Offset, ETag, Location, "
    b"Retry-After, Tailrace-Sequence, X-Amzn-RequestId, X-Amz-Crc32",
)


class OriginPolicy:
    """Decides by peer, Host and Origin whether a request is served, and which pages may read the response."""

    def __init__(self, config: Config) -> None:
        self._dev = config.dev
        self._hosts = {_authority(*(host_of(text) or (text, None))) for text in config.http.allowed_hosts}
        self._origins = {origin_of(text) for text in config.http.allowed_origins if text != EVERY_ORIGIN}
        self._every_origin = EVERY_ORIGIN in config.http.allowed_origins
        public = None if config.public_url is None else origin_of("/".join(config.public_url.split("/", 3)[:3]))
        if public is not None:
            self._origins.add(public)
            self._hosts.add(public.partition("://")[2])
        self._hosts_checked = config.dev or bool(config.http.allowed_hosts)
        # Those that passed the check, so that most requests cost a lookup.
        self._good_hosts: set[bytes] = set()
        self._good_peers: set[str] = set()

    def check(self, request: Request) -> Headers | None:
        """The CORS fields of the response, None where the request has no Origin; or `Forbidden`."""
        headers = request.headers
        if self._hosts_checked and headers.get(b"host") not in self._good_hosts:
            self._check_host(headers.get(b"host"))
        if self._dev and (request.peer not in self._good_peers or not _FORWARDED.isdisjoint(headers)):
            self._check_peer(request)
        origin = headers.get(b"origin")
        if origin is not None:
            return self._check_origin(request, origin)
        if headers.get(b"sec-fetch-site") == b"cross-site":
            self._check_embedding(request)
        return None

    def _check_host(self, host: bytes | None) -> None:
        text = "" if host is None else host.decode("latin-1")
        name, port = host_of(text) or ("", None)
        allowed = self._hosts
        known = name in allowed or _authority(name, port) in allowed
        if not name or not (known or (self._dev and is_loopback_name(name))):
            why = "a server in dev mode answers to loopback names only" if self._dev else "it is not an allowed host"
            raise Forbidden(
                f"the Host {text[:100]!r} is refused: {why}; use http://localhost:<port>, or list the name in the "
                "setting http.allowed_hosts (--allow-host)",
                code="FOREIGN_HOST",
            )
        assert host is not None
        if len(self._good_hosts) < HOSTS_CACHED_MAX:
            self._good_hosts.add(host)

    def _check_peer(self, request: Request) -> None:
        """Dev mode serves this machine alone: its requests may do everything."""
        if not is_loopback_address(request.peer):
            peer = f"from {request.peer[:100]!r}" if request.peer else "whose peer address is unknown (a Unix socket?)"
            raise Forbidden(
                f"a server in dev mode has no authentication and serves loopback addresses only; this request, {peer}, "
                "is refused. Leave dev mode and set a token (TAILRACE_TOKEN) to serve others",
                code="FOREIGN_PEER",
            )
        if not _FORWARDED.isdisjoint(request.headers):
            name = min(_FORWARDED.intersection(request.headers))
            raise Forbidden(
                f"a server in dev mode has no authentication and must not be used through a proxy, but the request "
                f"has {name.decode()}. Leave dev mode and set a token (TAILRACE_TOKEN), or have the proxy leave the "
                "field out",
                code="FOREIGN_PEER",
            )
        if len(self._good_peers) < HOSTS_CACHED_MAX:
            self._good_peers.add(request.peer)

    def _check_origin(self, request: Request, sent: bytes) -> Headers:
        text = sent.decode("latin-1")
        origin = origin_of(text)
        listed = origin is not None and (
            origin in self._origins or _is_same(origin, request) or (self._dev and _is_loopback_origin(origin))
        )
        if not listed and request.method != b"OPTIONS":
            if self._dev:
                raise Forbidden(
                    f"pages of {text[:100]!r} may not use a server in dev mode, which has no authentication; open the "
                    "page from localhost, or list its origin in the setting http.allowed_origins (--allow-origin)",
                    code="FOREIGN_ORIGIN",
                )
            if _has_ambient_credentials(request.headers):
                raise Forbidden(
                    f"Basic credentials are not accepted from pages of {text[:100]!r}, because browsers send them "
                    "automatically; send a bearer token, or list the origin in the setting http.allowed_origins "
                    "(--allow-origin)",
                    code="FOREIGN_ORIGIN",
                )
        if origin is None or not (listed or self._every_origin):
            return []
        return [(b"access-control-allow-origin", sent), _EXPOSED]

    def _check_embedding(self, request: Request) -> None:
        """A page elsewhere shows this as an image, a script or a frame, or sends a form to it; a link that is followed
        is no such thing."""
        headers = request.headers
        followed = (
            request.method in _READS
            and headers.get(b"sec-fetch-mode") == b"navigate"
            and headers.get(b"sec-fetch-dest") == b"document"
        )
        if not followed and (self._dev or _has_ambient_credentials(headers)):
            raise Forbidden(
                "pages of other sites may neither embed content of this server nor send forms to it (Sec-Fetch-Site: "
                "cross-site); fetch it with CORS, from an origin of the setting http.allowed_origins (--allow-origin)",
                code="FOREIGN_ORIGIN",
            )


def _authority(name: str, port: str | None) -> str:
    return name if port is None else f"{name}:{port}"


def _has_ambient_credentials(headers: dict[bytes, bytes]) -> bool:
    """Whether the credentials may be ones that a browser adds by itself. There are no cookies."""
    return headers.get(b"authorization", b"")[:6].lower() == b"basic "


def _is_same(origin: str, request: Request) -> bool:
    """Whether the page came from this server. Behind a proxy that ends TLS, its scheme is not known here."""
    scheme = origin.partition("://")[0]
    if request.secure and scheme != "https":
        return False
    return origin == origin_of(f"{scheme}://{request.headers.get(b'host', b'').decode('latin-1')}")


def _is_loopback_origin(origin: str) -> bool:
    scheme, _, authority = origin.partition("://")
    host = host_of(authority)
    return scheme in ("http", "https") and host is not None and is_loopback_name(host[0])


@lru_cache(maxsize=1024)
def is_loopback_name(name: str) -> bool:
    """Whether a host name, or an address as URLs have it, is always this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_loopback_address(name[1:-1]) if name.startswith("[") else "." in name and is_loopback_address(name)


@lru_cache(maxsize=1024)
def is_loopback_address(peer: str) -> bool:
    """Whether an address is of this machine."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback

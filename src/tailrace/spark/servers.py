"""The servers of a cluster, over which reads are spread: who they are, and what a task does when one does not answer.

The driver asks for the list once for each plan, and keeps it for a moment. Each task has all servers, beginning with
its own: when that one is away, the next one is asked at once, and when all are, the task waits as it does for one
server. The URL that the user gave comes last; it may be that of a load balancer.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tailrace.errors import Error, NotFound, TooMany, Unavailable
from tailrace.spark.connection import PATIENCE_S, WAIT_MAX_S, WAIT_MIN_S, client
from tailrace.spark.options import ServerAccess, SourceOptions

KEPT_S: Final = 10.0  # how long a list of servers is used
BEHIND: Final = "BEHIND"  # the code of an error where a server does not have what the plan was made of

_known: dict[ServerAccess, tuple[float, tuple[str, ...]]] = {}


def servers(options: SourceOptions) -> tuple[str, ...]:
    """The URLs of the servers to read from; none if there is only the given one."""
    if not options.spread:
        return ()
    access = options.access
    kept = _known.get(access)
    if kept is None or kept[0] < time.monotonic():
        kept = _known[access] = time.monotonic() + KEPT_S, _asked(access)
    return kept[1]


def _asked(access: ServerAccess) -> tuple[str, ...]:
    try:
        found: Any = client(access).cluster()
    except (NotFound, Unavailable, TooMany):  # an older server, or one that cannot tell now
        return ()
    except Error as error:
        if error.status == 403:  # a principal that may read some tables, and not see the cluster
            return ()
        raise
    urls = [each["url"] for each in found["servers"] if usable(each["url"], access.url)]
    return tuple(urls) if len(urls) > 1 else ()


def usable(url: str, given: str) -> bool:
    """Whether a server may be asked at its URL: not where credentials would be sent in the clear and were not before,
    and not at an address that means another machine here."""
    there, known = urlsplit(url), urlsplit(given)
    if there.scheme not in ("http", "https") or (known.scheme == "https" and there.scheme == "http"):
        return False
    host = _address(there.hostname or "")
    if host is None:
        return there.hostname != "localhost" or _is_local(known.hostname or "")
    return not host.is_unspecified and (not host.is_loopback or _is_local(known.hostname or ""))


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def beginning(urls: Sequence[str], number: int) -> tuple[str, ...]:
    """All of them, in the order in which the task of that number asks them."""
    at = number % len(urls) if urls else 0
    return (*urls[at:], *urls[:at])


class Turn:
    """Which server a task asks now."""

    def __init__(self, access: ServerAccess, urls: Sequence[str]) -> None:
        every = [*urls, access.url] if access.url not in urls else urls
        self._every = [msgspec.structs.replace(access, url=url) for url in every]
        self._at = 0
        self.worked()

    @property
    def access(self) -> ServerAccess:
        return self._every[self._at % len(self._every)]

    @property
    def several(self) -> bool:
        return len(self._every) > 1

    def worked(self) -> None:
        self._failed = 0
        self._until_s, self._wait_s = time.monotonic() + PATIENCE_S, WAIT_MIN_S

    def failed(self, error: Error) -> None:
        """Ask the next one; when all have failed, wait before that. Raises the error if that took too long."""
        if error.code == "CLOSED":
            raise error
        self._at += 1
        self._failed += 1
        if self._failed % len(self._every):
            return
        if time.monotonic() + self._wait_s > self._until_s:
            raise error
        time.sleep(self._wait_s)
        self._wait_s = min(WAIT_MAX_S, self._wait_s * 2)

"""The connection of Spark's processes to the server: one client per process, and retries while the server restarts.

The first request of a query is retried only briefly: most often a server that does not answer then is a wrong URL.
Later requests wait longer for a server that was reachable before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from tailrace.client import Client
from tailrace.errors import TooMany, Unavailable
from tailrace.spark.options import ServerAccess, SourceOptions

FIRST_S: Final = 3.0
PATIENCE_S: Final = 60.0
WAIT_MIN_S: Final = 0.1
WAIT_MAX_S: Final = 3.0
_FINAL: Final = ("CLOSED", "LIMIT_EXCEEDED", "NO_COLD_STORAGE")

_R = TypeVar("_R")
_clients: dict[ServerAccess, Client] = {}


class SourceLog(msgspec.Struct, frozen=True):
    """One log of a table, topic or stream."""

    partition: int
    log: int
    earliest: int  # the first offset that can be read, hot or cold
    hot: int  # below it, entries are only in cold storage
    tiered: int
    next: int


class ColdLocation(msgspec.Struct, frozen=True):
    """Where the older history is."""

    url: str
    place: str


class SourceInfo(msgspec.Struct, frozen=True):
    """A table, topic or stream, as the server describes it."""

    kind: str
    name: str
    database: str
    partitions: list[SourceLog]
    content_type: str | None = None
    view: str | None = None
    keys: list[tuple[str, str]] = []
    columns: list[tuple[str, str]] = []
    cold: ColdLocation | None = None


def client(access: ServerAccess) -> Client:
    """This process's connections to the server."""
    found = _clients.get(access)
    if found is None:
        found = Client(access.url, token=access.token, user=access.user, password=access.password)
        _clients[access] = found
    return found


def source_info(
    options: SourceOptions, patience_s: float = PATIENCE_S, access: ServerAccess | None = None
) -> SourceInfo:
    """The table, topic or stream that the options name, as its server describes it, or the one of `access`."""
    response = patiently(lambda: client(access or options.access).logs(**options.target), patience_s)
    return msgspec.convert(response, SourceInfo, strict=False)


def target_info(options: SourceOptions, patience_s: float = PATIENCE_S) -> SourceInfo:
    """The target of a write. A table needs no change stream for it."""
    if options.kind != "table":
        return source_info(options, patience_s)
    request = {"TableName": options.name}
    table = patiently(lambda: client(options.access).call("DescribeTable", request), patience_s)["Table"]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    roles = {each["KeyType"]: each["AttributeName"] for each in table["KeySchema"]}
    keys = [(roles[role], kinds[roles[role]]) for role in ("HASH", "RANGE") if role in roles]
    return SourceInfo("table", table["TableName"], "", [], keys=keys)


def patiently(request: Callable[[], _R], patience_s: float = PATIENCE_S) -> _R:
    """The response, with retries while the server is away. Only for requests that may be repeated."""
    until_s = time.monotonic() + patience_s
    wait_s = WAIT_MIN_S
    while True:
        try:
            return request()
        except (Unavailable, TooMany) as error:
            if error.code in _FINAL or time.monotonic() + wait_s > until_s:
                raise
            time.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)

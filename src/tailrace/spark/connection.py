"""The server, as seen from Spark's processes: one client for each, and patience while it restarts.

The first question of a query is asked with little patience: most often a server that does not answer then is a wrong
URL. Later ones wait for a server that was there to come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from tailrace.client import Client
from tailrace.errors import TooMany, Unavailable
from tailrace.spark.options import Access, Options

FIRST_S: Final = 3.0
PATIENCE_S: Final = 60.0
WAIT_MIN_S: Final = 0.1
WAIT_MAX_S: Final = 3.0
_FINAL: Final = ("CLOSED", "LIMIT_EXCEEDED", "NO_COLD_STORAGE")

_R = TypeVar("_R")
_clients: dict[Access, Client] = {}


class Part(msgspec.Struct, frozen=True):
    """One log of a table, topic or stream."""

    partition: int
    log: int
    earliest: int  # the first offset that can be read, hot or cold
    hot: int  # below it only cold storage has it
    tiered: int
    next: int


class Cold(msgspec.Struct, frozen=True):
    """Where its older history is."""

    url: str
    place: str


class Facts(msgspec.Struct, frozen=True):
    """What the server says of a table, topic or stream."""

    kind: str
    name: str
    database: str
    partitions: list[Part]
    content_type: str | None = None
    view: str | None = None
    keys: list[tuple[str, str]] = []
    columns: list[tuple[str, str]] = []
    cold: Cold | None = None


def client(access: Access) -> Client:
    """This process's connections to the server."""
    found = _clients.get(access)
    if found is None:
        found = Client(access.url, token=access.token, user=access.user, password=access.password)
        _clients[access] = found
    return found


def facts(options: Options, patience_s: float = PATIENCE_S) -> Facts:
    """What there is to read or to write to."""
    asked = patiently(lambda: client(options.access).logs(**options.target), patience_s)
    return msgspec.convert(asked, Facts, strict=False)


def target_facts(options: Options, patience_s: float = PATIENCE_S) -> Facts:
    """What there is to write to. A table need not have a change stream for it."""
    if options.kind != "table":
        return facts(options, patience_s)
    asked = {"TableName": options.name}
    told = patiently(lambda: client(options.access).call("DescribeTable", asked), patience_s)["Table"]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in told["AttributeDefinitions"]}
    roles = {each["KeyType"]: each["AttributeName"] for each in told["KeySchema"]}
    keys = [(roles[role], kinds[roles[role]]) for role in ("HASH", "RANGE") if role in roles]
    return Facts("table", told["TableName"], "", [], keys=keys)


def patiently(ask: Callable[[], _R], patience_s: float = PATIENCE_S) -> _R:
    """The answer, asked for again while the server is away. Only for what may be done twice."""
    until_s = time.monotonic() + patience_s
    wait_s = WAIT_MIN_S
    while True:
        try:
            return ask()
        except (Unavailable, TooMany) as error:
            if error.code in _FINAL or time.monotonic() + wait_s > until_s:
                raise
            time.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)

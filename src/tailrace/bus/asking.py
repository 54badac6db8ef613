"""Questions to the writer's process about state that is in no row: logins that are throttled, running exports, metrics.

A question is a struct; `Answering` has a function for each kind. What a question is about lives as long as the writer
process: it is lost with it, and so are the counts of logins.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.errors import Invalid
from tailrace.tables.export import BeginExport


class BeginLogin(msgspec.Struct, frozen=True):
    """An attempt to log in begins: count it, or `LoginThrottled`."""

    user: str
    peer: str
    known: bool


class LoginNoted(msgspec.Struct, frozen=True):
    """The outcome of a login or of a refused token, for all servers. `what`: succeeded, trusted or failed."""

    what: str
    user: str
    peer: str


class BeginItems(msgspec.Struct, frozen=True):
    """Begin to export a segment of a table."""

    query: BeginExport


class BeginTables(msgspec.Struct, frozen=True):
    """Begin the exports of a statement; `query` is an encoded `sql.sources.PlanTables`, whose module needs an extra."""

    query: bytes
    count: int


class BegunExport(msgspec.Struct, frozen=True):
    """An export that has begun, by a number."""

    export: int
    table: str
    space: int
    sequence: int
    keys: tuple[str, ...]


class BegunTables(msgspec.Struct, frozen=True):
    """The ranges of a statement, encoded `TablePart`s, and the numbers of their exports."""

    starts: bytes
    exports: list[int]


class ReadItemsPage(msgspec.Struct, frozen=True):
    """The next page of an export."""

    export: int


class ItemsPage(msgspec.Struct, frozen=True):
    """Items of an export: the sizes of their bytes, and these."""

    sizes: list[int]
    body: bytes


class EndExports(msgspec.Struct, frozen=True):
    """End these exports."""

    exports: list[int]


class CountMetrics(msgspec.Struct, frozen=True):
    """The metrics of one server, for the sum of all; `answer`: the sum is wanted."""

    counts: dict[str, float]
    histograms: dict[str, tuple[list[int], float]]


class ListServers(msgspec.Struct, frozen=True):
    """Which servers are connected."""


class ConnectedServer(msgspec.Struct, frozen=True):
    """A server that is connected to the leader."""

    url: str
    lag_s: float  # how far behind the leader's commits it was at its last message
    seen_s: float  # since then


class ServerList(msgspec.Struct, frozen=True):
    """The servers of a cluster but its leader, and what it has committed."""

    epoch: int
    batch: int
    url: str  # of the leader
    servers: list[ConnectedServer]


# By tag: the class of a question, and the type of its answer.
QUESTIONS: Final[dict[str, tuple[type[Any], Any]]] = {
    kind.__name__: (kind, answer)
    for kind, answer in (
        (BeginLogin, None),
        (BeginItems, BegunExport),
        (BeginTables, BegunTables),
        (ReadItemsPage, ItemsPage | None),
        (EndExports, None),
        (CountMetrics, CountMetrics),
        (ListServers, ServerList),
    )
}
# Those that may be asked twice: where the answer is lost with the writer, the next one is asked.
REPEATABLE: Final = (BeginLogin, BeginItems, BeginTables, CountMetrics, ListServers)
BEGINNING: Final = (BeginItems, BeginTables)  # an export, which ends with its writer
NEWS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (LoginNoted, CountMetrics)}
_encode: Final = msgspec.msgpack.Encoder().encode


def encode(question: Any) -> tuple[str, bytes]:
    return type(question).__name__, _encode(question)


def encode_answer(answer: Any) -> bytes:
    return _encode(answer)


def decode(tag: str, body: bytes) -> Any:
    """A question or news. `Invalid` for a tag that this version does not know."""
    kind = NEWS.get(tag) or (QUESTIONS[tag][0] if tag in QUESTIONS else None)
    if kind is None:
        raise Invalid(f"there is no question {tag!r} here; run the same version everywhere", code="UNKNOWN_COMMAND")
    return msgspec.msgpack.decode(body, type=kind)


def decode_answer(question: Any, body: bytes) -> Any:
    return msgspec.msgpack.decode(body, type=QUESTIONS[type(question).__name__][1])

"""Plain appends, run together: of a body and no more, to streams that take the body as it is.

Apart from `commands.py`: this is compiled, and commands, which are structs, cannot be.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace import limits
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.storage.engine import Tx
from tailrace.streams.stream import JSON_TYPE, STREAMS, Appended, media_type


class _StreamAppends:
    """The appends to one stream."""

    __slots__ = ("bodies", "content_type", "end", "log")

    def __init__(self, content_type: str, log: Log) -> None:
        self.content_type: Final = content_type
        self.log: Final = log
        self.end: int = log.next  # after the bodies so far
        self.bodies: Final[list[bytes]] = []


def run_together(tx: Tx, commands: list[Any]) -> list[Appended]:
    """As `Append.run_together`."""
    streams: dict[str, _StreamAppends] = {}
    results: list[Appended] = []
    for command in commands:
        path: str = command.path
        body: bytes = command.body
        appends = streams.get(path)
        if appends is None:
            appends = _plain_stream(tx, path)
            if appends is None:
                break
            streams[path] = appends
        end = appends.end + len(body)
        if (
            not body
            or end > limits.POSITION_MAX
            or command.content_type != appends.content_type
            or command.claim is not None
            or command.seq is not None
            or command.close
        ):
            break
        appends.bodies.append(body)
        appends.end = end
        results.append(Appended(end, False))
    logs.append_together(tx, [(appends.log, appends.bodies) for appends in streams.values() if appends.bodies])
    return results


def _plain_stream(tx: Tx, path: str) -> _StreamAppends | None:
    """The stream at `path`, if an append changes its log alone, with the body as it is."""
    stream = tx.get(STREAMS, path)
    if stream is None or stream.closed or stream.deleted or stream.expires_ms is not None:
        return None
    if media_type(stream.content_type) == JSON_TYPE:
        return None
    log = tx.get(LOGS, stream.log)
    return None if log is None else _StreamAppends(stream.content_type, log)

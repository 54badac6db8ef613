"""A table's change stream for Python programs: reading, following and keeping it. The operations are like those of
`operations`, and `Following` is one that goes on for as long as somebody waits for more."""

from __future__ import annotations

from types import EllipsisType

from msgspec import UNSET

from tailrace.command import Query
from tailrace.errors import Invalid, NotFound, TableNotFound
from tailrace.storage.engine import Reader
from tailrace.tables import cursors as named
from tailrace.tables import plain, streams
from tailrace.tables.plain import Age, Change, Cursor, Steps, StreamInfo


def changes(name: str, after: int | None, limit: int, label: str | None) -> Steps[list[Change]]:
    """What happened after a sequence."""
    read: streams.Changes = yield streams.ReadChanges(name, after, limit, label=label)
    return [plain.change(name, record) for record in read.records]


class Following:
    """Reads a stream on and on; whoever uses it waits in between."""

    def __init__(self, name: str, after: int | str | None) -> None:
        if isinstance(after, str) and after != "latest":
            raise Invalid(f"after={after!r} is not a sequence; use a number, 'latest', or None for the beginning")
        self._name = name
        self._after = after
        self._label: str | None = None
        self.more = True  # there may be more to read at once
        self.ended = False  # there will never be more

    def find(self) -> Steps[int]:
        """Settle on the present stream; the number of its log, to wait for."""
        info: streams.Info = yield streams.StreamInfo(self._name)
        self._label = info.stream.label
        if self._after == "latest":
            self._after = info.log.next - 1
        return info.stream.log

    def read(self) -> Steps[list[Change]]:
        """What there is now."""
        assert not isinstance(self._after, str)
        read: streams.Changes = yield streams.ReadChanges(self._name, self._after, label=self._label)
        self._after = read.after
        self.more, self.ended = read.more, read.ended
        return [plain.change(self._name, record) for record in read.records]


def stream_info(name: str) -> Steps[StreamInfo]:
    """What is in the stream."""
    info: streams.Info | None = yield FindStream(name)
    return StreamInfo(False) if info is None else plain.stream_info(info)


def list_streams(name: str) -> Steps[list[StreamInfo]]:
    """All streams of the table, the oldest first."""
    found: list[streams.Info] = yield streams.AllStreams(name)
    return [plain.stream_info(info) for info in found]


class FindStream(Query["streams.Info | None"], frozen=True):
    """A table's stream, also a deleted one's; None if the table never had one."""

    subject = ("tables", "table")

    table: str

    def run(self, reader: Reader) -> streams.Info | None:
        try:
            return streams.StreamInfo(self.table).run(reader)
        except TableNotFound:
            raise
        except NotFound:
            return None


def enable_stream(
    name: str, view: str, max_age: Age | EllipsisType, max_count: int | EllipsisType | None
) -> Steps[None]:
    """Record changes from now on."""
    yield streams.EnableStream(name, view, **plain.retention(max_age, max_count))


def disable_stream(name: str) -> Steps[None]:
    """Record no more changes."""
    yield streams.DisableStream(name)


def alter_stream_retention(name: str, max_age: Age | EllipsisType, max_count: int | EllipsisType | None) -> Steps[None]:
    """Keep records for so long and so many; what is not given stays as it is."""
    given = plain.retention(max_age, max_count)
    yield streams.AlterRetention(name, given.get("max_age_s", UNSET), given.get("max_count", UNSET))


def prune_stream(name: str, before: int | None) -> Steps[int]:
    """Remove the records below a sequence, or all; how many they were."""
    pruned: streams.Pruned = yield streams.PruneStream(name, None if before is None else before - 1)
    return pruned.records


def save_cursor(name: str, cursor: str, sequence: int, hold_bytes: int | EllipsisType) -> Steps[Cursor]:
    """Note how far a consumer has come."""
    saved: named.Cursor = yield named.SaveCursor(name, cursor, sequence, None if hold_bytes is ... else hold_bytes)
    return plain.cursor(saved)


def drop_cursor(name: str, cursor: str) -> Steps[bool]:
    """Forget a consumer; whether it was known."""
    known: bool = yield named.DropCursor(name, cursor)
    return known


def cursors(name: str) -> Steps[list[Cursor]]:
    """All cursors, by name."""
    found: list[named.Cursor] = yield named.ListCursors(name)
    return [plain.cursor(cursor) for cursor in found]

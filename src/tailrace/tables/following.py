"""Following a table's change stream from Python, independent of how the caller waits between reads."""

from __future__ import annotations

from tailrace.command import Query
from tailrace.errors import Invalid, NotFound, TableNotFound
from tailrace.storage.engine import Reader
from tailrace.tables import change_info, change_reading, plain
from tailrace.tables.plain import Change


class StreamFollower:
    """The position of a reader that follows a change stream: run `locate` and `start` once, then `read` and `take`
    again and again, and wait in between."""

    def __init__(self, table: str, after: int | str | None) -> None:
        if isinstance(after, str) and after != "latest":
            raise Invalid(f"after={after!r} is not a sequence; use a number, 'latest', or None for the beginning")
        self._table = table
        self._after = after
        self._label: str | None = None
        self.more = True  # there may be more to read at once
        self.ended = False  # there will never be more

    def locate(self) -> change_info.DescribeChangeStream:
        """The query for the current stream."""
        return change_info.DescribeChangeStream(self._table)

    def start(self, info: change_info.ChangeStreamDescription) -> int:
        """Settle on this stream; the number of its log, to wait for."""
        self._label = info.stream.label
        if self._after == "latest":
            self._after = info.log.next - 1
        return info.stream.log

    def read(self) -> change_reading.ReadChanges:
        """The query for the changes that there are now."""
        assert not isinstance(self._after, str)
        return change_reading.ReadChanges(self._table, self._after, label=self._label)

    def take(self, page: change_reading.ChangePage) -> list[Change]:
        """The changes that `read` gave; moves on behind them."""
        self._after = page.after
        self.more, self.ended = page.more, page.ended
        return [plain.change(self._table, record) for record in page.records]


class FindStream(Query["change_info.ChangeStreamDescription | None"], frozen=True):
    """A table's stream, also a deleted one's; None if the table never had one."""

    subject = ("tables", "table")

    table: str

    def run(self, reader: Reader) -> change_info.ChangeStreamDescription | None:
        try:
            return change_info.DescribeChangeStream(self.table).run(reader)
        except TableNotFound:
            raise
        except NotFound:
            return None

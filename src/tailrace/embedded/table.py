"""A table of an open database, for programs with threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any, Literal

from tailrace.embedded.running import Executor, run, take_snapshot
from tailrace.errors import Unavailable
from tailrace.tables import following, operations
from tailrace.tables.change import BOTH
from tailrace.tables.definition import Definition
from tailrace.tables.operations import Reading, Walk
from tailrace.tables.plain import Age, Change, Cursor, Index, Page, Plain, StreamInfo, TableInfo

Returns = Literal["NONE", "ALL_OLD"]
UpdateReturns = Literal["NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"]
After = int | Literal["latest"] | None


class Table:
    """A table of an open database. Thread-safe; cheap to make and to keep."""

    def __init__(self, db: Executor, definition: Definition) -> None:
        self.name = definition.name
        self._db = db
        self._definition = definition

    def __repr__(self) -> str:
        return f"<Table {self.name!r}>"

    # -- items

    def put(
        self,
        item: Mapping[str, Any],
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Plain | None:
        """Put an item, in place of the one with its key if there is one.

        With a condition that does not hold nothing is written and `ConditionFailed` is raised:

        >>> orders.put({"id": "o-2"}, condition="attribute_not_exists(id)")

        `returns="ALL_OLD"` gives the item that was replaced. With `on_failure` the error has the item as it is:

        >>> from tailrace.errors import ConditionFailed
        >>> try:
        ...     orders.put({"id": "o-1"}, condition="attribute_not_exists(id)", on_failure=True)
        ... except ConditionFailed as error:
        ...     error.item["amount"]
        15
        """
        steps = operations.put(self._definition, item, condition, names, values, returns, on_failure)
        return run(self._db, steps)

    def get(self, key: Any, *, projection: str | None = None, names: Mapping[str, str] | None = None) -> Plain | None:
        """The item with this key, None if there is none.

        >>> orders.get("o-1")
        {'id': 'o-1', 'state': 'paid', 'amount': 15}
        >>> lines.get(("o-1", 5))
        {'order': 'o-1', 'number': 5}
        >>> orders.get({"id": "o-1"}, projection="amount")
        {'amount': 15}
        """
        return run(self._db, operations.get(self._definition, key, projection, names))

    def update(
        self,
        key: Any,
        expression: str,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: UpdateReturns = "ALL_NEW",
        on_failure: bool = False,
    ) -> Plain | None:
        """Change attributes of the item with this key, which is made if it is not there; the item as it is then.

        >>> orders.update("o-1", "SET #s = :s ADD tries :one", names={"s": "state"}, values={"s": "sent", "one": 1})
        {'id': 'o-1', 'state': 'sent', 'amount': 15, 'tries': 1}

        Words that the service reserves, like `state` and `name`, need a placeholder in expressions, as there.
        """
        steps = operations.update_item(self._definition, key, expression, condition, names, values, returns, on_failure)
        return run(self._db, steps)

    def delete(
        self,
        key: Any,
        *,
        condition: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        returns: Returns = "NONE",
        on_failure: bool = False,
    ) -> Plain | None:
        """Delete the item with this key, if there is one. `returns="ALL_OLD"` gives the item that was deleted."""
        steps = operations.delete(self._definition, key, condition, names, values, returns, on_failure)
        return run(self._db, steps)

    def query(
        self,
        partition: Any,
        sort: Any = None,
        *,
        index: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        filter: str | None = None,  # noqa: A002 - as the service calls it
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Iterator[Plain]:
        """The items of one partition in the order of the sort key, read as you go; at most `limit`.

        >>> [line["number"] for line in lines.query("o-1", between(3, 7), reverse=True, limit=2)]
        [7, 6]
        >>> list(orders.query("paid", index="by-state", filter="amount > :least", values={"least": 10}))
        [{'id': 'o-1', 'state': 'paid', 'amount': 15}]

        The condition on the sort key is a value or one of `eq`, `lt`, `le`, `gt`, `ge`, `between`, `begins_with`. For
        an index whose key has several attributes, give tuples.
        """
        reading = Reading(index=index, filter=filter, projection=projection, names=names, values=values, limit=limit)
        return self._walk(Walk(operations.query(self.name, partition, sort, reverse, reading)))

    def query_page(
        self,
        partition: Any,
        sort: Any = None,
        *,
        index: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        after: Plain | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Page:
        """One page of a query: up to `limit` items examined, up to a megabyte. Go on with `after=page.cursor`."""
        reading = Reading(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return run(self._db, operations.read_page(operations.query(self.name, partition, sort, reverse, reading)))

    def scan(
        self,
        *,
        index: str | None = None,
        limit: int | None = None,
        segment: int | None = None,
        segments: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Iterator[Plain]:
        """All items, in no order that means something, read as you go; at most `limit`.

        Several threads can share the work, each with its own `segment` of `segments`. What is written meanwhile may be
        seen or not; `snapshot` is the way to see one moment."""
        reading = Reading(index=index, filter=filter, projection=projection, names=names, values=values, limit=limit)
        return self._walk(Walk(operations.scan(self.name, segment, segments, reading)))

    def scan_page(
        self,
        *,
        index: str | None = None,
        limit: int | None = None,
        after: Plain | None = None,
        segment: int | None = None,
        segments: int | None = None,
        filter: str | None = None,  # noqa: A002
        projection: str | None = None,
        names: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Page:
        """One page of a scan: up to `limit` items examined, up to a megabyte. Go on with `after=page.cursor`."""
        reading = Reading(
            index=index, filter=filter, projection=projection, names=names, values=values, limit=limit, after=after
        )
        return run(self._db, operations.read_page(operations.scan(self.name, segment, segments, reading)))

    def count(self) -> int:
        """How many items there are. It is kept, not counted."""
        return run(self._db, operations.count(self.name))

    def snapshot(self) -> tuple[int, Iterator[Plain]]:
        """All items as they are at one moment, and the sequence of the last change before it.

        Follow the changes after that sequence and nothing is missing, nothing twice:

        >>> sequence, items = orders.snapshot()
        >>> copy = {item["id"]: item for item in items}
        >>> later = orders.changes(after=sequence)
        """
        taken = take_snapshot(self._db, self.name)
        return taken.sequence, iter(taken)

    # -- changes

    def changes(self, after: int | None = None, limit: int = 100, *, label: str | None = None) -> list[Change]:
        """What happened after the sequence `after`; None: from the oldest change that is kept.

        `limit` is rounded up to the end of a transaction, so the sequence of the last change is always a good place to
        go on. An empty list says that there is no more yet. `Trimmed` says that what comes next is no longer kept.
        `label` names a stream before the present one, or of a deleted table (`streams`)."""
        return run(self._db, following.changes(self.name, after, limit, label))

    def follow(self, after: After = None, *, timeout_s: float | None = None) -> Iterator[Change]:
        """Changes after the sequence `after` (None: all that are kept; "latest": only new ones), then those to come.

        It ends when the stream is disabled, the table dropped or the database closed, or if nothing happens for
        `timeout_s`.

        >>> for change in orders.follow(timeout_s=0.01):
        ...     change.event, change.new["amount"]
        ('INSERT', 15)
        """
        source = following.Following(self.name, after)
        return self._follow(source, timeout_s)

    def stream_info(self) -> StreamInfo:
        """Whether changes are recorded, in which view, and what there is: oldest, latest, count. Of a table that was
        dropped since, what is left."""
        return run(self._db, following.stream_info(self.name))

    def enable_stream(
        self,
        view: str = BOTH,
        *,
        max_age: Age | EllipsisType = ...,
        max_count: int | EllipsisType | None = ...,
    ) -> None:
        """Record changes from now on: KEYS_ONLY, NEW_IMAGE, OLD_IMAGE or NEW_AND_OLD_IMAGES. They are kept for seven
        days and up to a million, unless told otherwise; None: without that bound."""
        run(self._db, following.enable_stream(self.name, view, max_age, max_count))

    def disable_stream(self) -> None:
        """Record no more changes. Those that are there stay, until their retention passes."""
        run(self._db, following.disable_stream(self.name))

    def alter_stream_retention(
        self, max_age: Age | EllipsisType = ..., max_count: int | EllipsisType | None = ...
    ) -> None:
        """Keep changes for `max_age` (a timedelta, or seconds) and at most `max_count` of them; None: without that
        bound. What is left out stays as it is."""
        run(self._db, following.alter_stream_retention(self.name, max_age, max_count))

    def prune_stream(self, before: int | None = None) -> int:
        """Remove changes of sequences below `before`, or all there are; how many went."""
        return run(self._db, following.prune_stream(self.name, before))

    def streams(self) -> list[StreamInfo]:
        """All change streams that the table has or had and that are not gone yet, the oldest first; read one with
        `changes(label=...)`."""
        return run(self._db, following.list_streams(self.name))

    def save_cursor(self, name: str, sequence: int, hold_bytes: int | EllipsisType = ...) -> Cursor:
        """Note under `name` that a consumer has seen all up to `sequence`, and let retention wait for it.

        While what it has not seen takes no more than `hold_bytes` (at first 1 GiB, then as before), it is not trimmed.
        Afterwards the cursor is cut off, and `lost` counts what it missed.

        >>> cursor = orders.save_cursor("mailer", orders.changes()[-1].sequence)
        >>> cursor.lag_records, cursor.cut_off
        (0, False)
        """
        return run(self._db, following.save_cursor(self.name, name, sequence, hold_bytes))

    def drop_cursor(self, name: str) -> bool:
        """Forget a cursor; whether there was one of this name."""
        return run(self._db, following.drop_cursor(self.name, name))

    def cursors(self) -> list[Cursor]:
        """All named cursors, and how far each is behind."""
        return run(self._db, following.cursors(self.name))

    # -- the table itself

    def describe(self) -> TableInfo:
        """What the table is, and how much is in it."""
        return run(self._db, operations.describe(self.name))

    def add_index(self, index: Index) -> None:
        """Make an index. It is filled in the background; `describe` tells when it is ACTIVE."""
        run(self._db, operations.add_index(self.name, index))

    def drop_index(self, name: str) -> None:
        """Delete an index."""
        run(self._db, operations.drop_index(self.name, name))

    def set_ttl(self, attribute: str | None) -> None:
        """Let items expire at the time, in seconds since 1970, that this attribute says; None: let them stay."""
        run(self._db, operations.set_ttl(self.name, attribute))

    # -- waiting

    def _walk(self, walk: Walk) -> Iterator[Plain]:
        while walk.more:
            yield from run(self._db, walk.page())

    def _follow(self, source: following.Following, timeout_s: float | None) -> Iterator[Change]:
        followers = self._db.followers
        happened = threading.Event()
        log = run(self._db, source.find())
        with followers.waiting(log, happened.set):
            while not followers.closed:
                happened.clear()
                try:
                    changes = run(self._db, source.read())
                except Unavailable as error:
                    if error.code == "CLOSED":
                        return
                    raise
                yield from changes
                if source.ended or (not source.more and not happened.wait(timeout_s)):
                    return

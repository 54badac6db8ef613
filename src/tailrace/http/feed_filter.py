"""Filters of readers: `where=` in the query string of a change stream or of a topic's partition.

A filter is a condition in SQL, compiled like that of a route: only entries for which it is TRUE are sent. Over changes,
bare names are columns of the new row, or of the old one where there is no new row; `NEW.x`, `OLD.x` and `_by` work as
in a route, and so do declared columns. Over messages they are fields of the payload, if that is a JSON object. Readers
with the same text share the work.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from tailrace import limits, scalar
from tailrace.errors import Error, Invalid
from tailrace.http.codec import parameters_of
from tailrace.http.message import Request
from tailrace.tables import value
from tailrace.tables.change import StoredRecord
from tailrace.tables.number import decimal_of
from tailrace.tables.value import Item
from tailrace.topics.router import BY, with_principal
from tailrace.topics.topic import Envelope

PARAMETER: Final = "where"
_payload: Final = msgspec.json.Decoder(float_hook=decimal_of)


class FeedFilter:
    """A compiled condition; equal texts over the same declared columns are equal filters."""

    __slots__ = ("_named", "_true", "_what")

    def __init__(self, text: str, declared: tuple[tuple[str, str], ...] | None = None) -> None:
        condition = scalar.condition(text, columns=with_principal(declared))
        self._what = text, declared
        self._true = condition.true
        self._named = BY in condition.names

    def takes_change(self, record: StoredRecord, by: str) -> bool:
        """Whether a reader gets this change."""
        new, old = record.new, record.old
        if new is None and old is None:
            new = record.keys
        if self._named:
            written: Item = {BY: {"S": by}}
            new, old = None if new is None else {**new, **written}, None if old is None else {**old, **written}
        return self._true(new, old)

    def takes_message(self, envelope: Envelope) -> bool:
        """Whether a reader gets this message."""
        item: Item = {}
        try:
            found = _payload.decode(envelope.payload)
            if isinstance(found, dict):
                item, _ = value.item_from_plain(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Error):
            item = {}  # not a JSON object, or with a number beyond all columns: its fields are unknown
        return self._true({**item, BY: {"S": envelope.by}} if self._named else item, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeedFilter) and self._what == other._what

    def __hash__(self) -> int:
        return hash(self._what)


def requested(request: Request) -> str | None:
    """The condition of a read; None: everything is sent."""
    text = parameters_of(request).get(PARAMETER)
    if text is None:
        return None
    if not text.strip() or len(text) > limits.FEED_FILTER_CHARACTERS_MAX:
        raise Invalid(
            f"where={text[:80]!r} has {len(text)} characters; give a condition of 1 to "
            f"{limits.FEED_FILTER_CHARACTERS_MAX} characters, as in where=total>=100, or leave it out",
            code="INVALID_WHERE",
        )
    return text


async def compiled(text: str, declared: tuple[tuple[str, str], ...] | None = None) -> FeedFilter:
    """The filter of a condition; `declared`: the columns of the table, None for any name."""
    return await asyncio.to_thread(FeedFilter, text, declared)  # to parse it may take longer than others should wait

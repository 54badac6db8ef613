"""The columns of rows in cold storage, and the paths of the Delta tables.

Types are exactly those that Spark expects: string and not large_string, timestamps in microseconds of UTC. Every kind
begins with the columns of the entry, so that one reader serves all kinds; the row with index 0 of an entry (the only
one, except for tables) has the exact bytes in `body`. The first path segment gives the kind.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa

from tailrace.errors import Invalid

TIMESTAMP: Final = pa.timestamp("us", "UTC")

_ENTRY: Final = [("log", pa.int64()), ("position", pa.int64()), ("next", pa.int64()), ("timestamp", TIMESTAMP)]

CHANGES: Final = pa.schema(
    [
        *_ENTRY,
        ("sequence", pa.int64()),
        ("index", pa.int32()),
        ("last", pa.bool_()),
        ("event", pa.string()),
        ("principal", pa.string()),
        ("keys", pa.string()),
        ("old_image", pa.string()),
        ("new_image", pa.string()),
        ("body", pa.binary()),
    ]
)

MESSAGES: Final = pa.schema(
    [
        *_ENTRY,
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("source_table", pa.string()),
        ("op", pa.string()),
        ("mode", pa.string()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("principal", pa.string()),
        ("body", pa.binary()),
    ]
)

STREAMS: Final = pa.schema([*_ENTRY, ("stream", pa.string()), ("content_type", pa.string()), ("body", pa.binary())])

SCHEMAS: Final = {"table": CHANGES, "topic": MESSAGES, "stream": STREAMS}  # by the kind of a log

_PLACES: Final = {"table": "tables", "topic": "topics", "snapshot": "snapshots"}


def place_of(kind: str, name: str) -> str:
    """The path of the Delta table of a table, topic, stream or snapshot, below the root. All streams share one."""
    if kind == "stream":
        return "streams"
    if kind not in _PLACES:
        raise Invalid(f"cold storage has no kind {kind!r}; use table, topic, stream or snapshot")
    if not name:
        raise Invalid(f"a {kind} in cold storage needs a name")
    # An exclamation mark instead of the percent sign of URLs, which Delta decodes once too often.
    quoted = quote(name, safe="-_.").replace("~", "%7E").replace("%", "!")
    if quoted[0] in "._":  # "." and ".." would leave the directory; readers skip names that begin like this as hidden
        quoted = f"!{ord(quoted[0]):02X}{quoted[1:]}"
    return f"{_PLACES[kind]}/{quoted}"


def name_of(place: str) -> tuple[str, str]:
    """The kind and name of a path: the inverse of `place_of` (the name of `streams` is empty)."""
    if place == "streams":
        return "stream", ""
    folder, _, quoted = place.partition("/")
    for kind, known in _PLACES.items():
        if folder == known and quoted and "/" not in quoted:
            return kind, unquote(quoted.replace("!", "%"))
    raise Invalid(f"{place!r} is not a path of cold storage; use streams, or a path below tables, topics or snapshots")


def schema_of(place: str) -> pa.Schema:
    """The columns of a Delta table with entries of logs."""
    kind, _ = name_of(place)
    if kind not in SCHEMAS:
        raise Invalid(f"{place!r} has no entries of logs; only tables, topics and streams do")
    return SCHEMAS[kind]

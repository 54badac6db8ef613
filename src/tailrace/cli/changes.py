"""``tailrace tables changes``: the change records of a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tailrace.cli.items import typed_option
from tailrace.cli.names import table_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import quietly_ended
from tailrace.errors import Gone, Invalid, Trimmed
from tailrace.limits import POSITION_MAX
from tailrace.log.position import BEGINNING, NOW, offset

if TYPE_CHECKING:
    from tailrace.client import Client, StreamPage

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_record: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_encode: Final = msgspec.json.Encoder().encode


@click.command()
@table_argument
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the last change.")
@click.option("--after", metavar="SEQUENCE", help="Start after this sequence, or now (default: at the oldest record).")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON, one per line.")
@typed_option
@server_options
def changes(
    table: str, follow: bool, after: str | None, limit: int | None, as_json: bool, typed: bool, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Print the changes of TABLE, oldest first; with --follow until interrupted.

    Each line has the sequence, the time, the event, the key, the changed attributes and the principal.
    """
    start = _offset(after)
    try:
        with connect(url, token) as client, quietly_ended():
            read = client.follow_changes if follow else partial(_pages_to_end, client)
            _show(read(table, start, typed=typed), limit, as_json)
    except Gone as error:
        if error.code != Trimmed.code:
            raise
        raise Gone(
            f"changes after {after or 'those shown'} are no longer retained; leave out --after to start at the oldest "
            f"(tailrace tables change-stream {table} shows its sequence)",
            code=error.code,
        ) from None
    except KeyboardInterrupt:
        if not follow:
            raise


def _offset(after: str | None) -> str:
    """Where to start reading. A record's sequence is its position in the log, so the next record is one further."""
    if after is None:
        return BEGINNING
    if after == NOW:
        return NOW
    if not (after.isascii() and after.isdigit() and int(after[:20]) < POSITION_MAX):
        raise Invalid(f"--after {after!r} is not a sequence; give the number of a record, or {NOW}")
    return offset(int(after) + 1)


def _pages_to_end(client: Client, table: str, start: str, *, typed: bool) -> Iterator[StreamPage]:
    """Pages up to the present last change."""
    page = client.changes(table, start, typed=typed)
    yield page
    while not page.up_to_date:
        page = client.changes(table, page.next, typed=typed)
        yield page


def _show(pages: Iterator[StreamPage], limit: int | None, as_json: bool) -> None:
    out = sys.stdout.buffer
    left = limit
    for page in pages:
        records = _raws.decode(page.body)[:left]
        out.write(b"".join((bytes(record) if as_json else _line(record)) + b"\n" for record in records))
        out.flush()
        if left is not None:
            left -= len(records)
            if left == 0:
                return


def _line(raw: msgspec.Raw) -> bytes:
    """A record as a line for people."""
    record = _record.decode(raw)
    sequence, event, at, by = (msgspec.json.decode(record[name]) for name in ("sequence", "event", "at", "by"))
    old, new = (_values.decode(record[name]) for name in ("old", "new"))
    parts = [str(sequence), at, f"{event:6}", bytes(record["keys"]).decode(), _difference(old, new)]
    line = "  ".join(part for part in parts if part)
    return f"{line}  by {_printable(by)}".encode()


def _difference(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """The attributes that differ between both images, else the one image there is."""
    if old is None or new is None:
        image = new if new is not None else old
        return "" if image is None else _encode(image).decode()
    parts = []
    for name in {**old, **new}:
        before, after = (bytes(image[name]).decode() if name in image else "–" for image in (old, new))
        if before != after:
            parts.append(f"{_encode(name).decode()}: {before} → {after}")
    return ", ".join(parts)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)

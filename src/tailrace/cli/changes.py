"""``tailrace changes``: what happened to a table, and what is happening."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from tailrace.cli.items import typed_option
from tailrace.cli.streams import connect, quietly_ended, server_options
from tailrace.errors import Gone, Invalid, Trimmed
from tailrace.limits import POSITION_MAX
from tailrace.log.position import BEGINNING, NOW, offset

if TYPE_CHECKING:
    from tailrace.client import Client, Page

_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_record: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_encode: Final = msgspec.json.Encoder().encode


@click.command()
@click.argument("table")
@click.option("--follow", is_flag=True, help="Wait for more instead of stopping at the last change.")
@click.option("--after", metavar="SEQUENCE", help="Begin after this one, or now; without it at the oldest there is.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--json", "as_json", is_flag=True, help="The records as JSON, one to a line.")
@typed_option
@server_options
def changes(
    table: str, follow: bool, after: str | None, limit: int | None, as_json: bool, typed: bool, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Print the changes of TABLE, the oldest first; with --follow until you interrupt.

    A line holds the sequence, the time, what happened, the key, and what is new or was there.
    """
    start = _offset(after)
    try:
        with connect(url, token) as client, quietly_ended():
            pages = client.follow_changes(table, start, typed=typed) if follow else _there(client, table, start, typed)
            _show(pages, limit, as_json)
    except Gone as error:
        if error.code != Trimmed.code:
            raise
        raise Gone(
            f"changes after {after or 'those shown'} are no longer retained; leave --after out to begin at the oldest, "
            f"which tailrace stream {table} names",
            code=error.code,
        ) from None
    except KeyboardInterrupt:
        if not follow:
            raise


def _offset(after: str | None) -> str:
    """Where to begin reading. A record's sequence is its place in the stream, so what follows it is one further."""
    if after is None:
        return BEGINNING
    if after == NOW:
        return NOW
    if not (after.isascii() and after.isdigit() and int(after[:20]) < POSITION_MAX):
        raise Invalid(f"--after {after!r} is not a sequence; give the number of a record, or {NOW}")
    return offset(int(after) + 1)


def _there(client: Client, table: str, start: str, typed: bool) -> Iterator[Page]:
    """Pages up to the last change as it is now."""
    page = client.changes(table, start, typed=typed)
    yield page
    while not page.up_to_date:
        page = client.changes(table, page.next, typed=typed)
        yield page


def _show(pages: Iterator[Page], limit: int | None, as_json: bool) -> None:
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
    """A record for people."""
    record = _record.decode(raw)
    sequence, event, at, by = (msgspec.json.decode(record[name]) for name in ("sequence", "event", "at", "by"))
    old, new = (_values.decode(record[name]) for name in ("old", "new"))
    parts = [str(sequence), at, f"{event:6}", bytes(record["keys"]).decode(), _told(old, new)]
    line = "  ".join(part for part in parts if part)
    return f"{line}  by {_printable(by)}".encode()


def _told(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """What changed: the attributes that differ where both images are there, else the one that is."""
    if old is None or new is None:
        image = new if new is not None else old
        return "" if image is None else _encode(image).decode()
    told = []
    for name in {**old, **new}:
        before, after = (bytes(image[name]).decode() if name in image else "–" for image in (old, new))
        if before != after:
            told.append(f"{_encode(name).decode()}: {before} → {after}")
    return ", ".join(told)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)

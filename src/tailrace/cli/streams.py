"""``tailrace streams`` and ``tailrace tail``: the streams of a running server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from tailrace.cli.names import stream_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import chunks_of, lines_of, quietly_ended
from tailrace.cli.text import json_line, safe
from tailrace.errors import Invalid, NotFound

if TYPE_CHECKING:
    from tailrace.client import Client, StreamPage

JSON_SPACE = b" \t\r\n"
LISTED_MAX: Final = 1_000  # streams that `list` shows unless --limit says otherwise
_STREAMS: Final = """
SELECT path, content_type, start_position, next_position, closed, created_at, updated_at FROM system.streams
WHERE starts_with(path, ?) ORDER BY path LIMIT ?"""


# -- the streams


@click.command("list")
@click.argument("prefix", default="")
@click.option(
    "--limit", type=click.IntRange(1), default=LISTED_MAX, show_default=True, help="List at most this many streams."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per stream and line.")
@server_options
def list_streams(prefix: str, limit: int, as_json: bool, url: str, token: str | None) -> None:
    """List the streams, or those whose path begins with PREFIX, in the order of their paths."""
    with connect(url, token) as client:
        rows = client.sql(_STREAMS.strip(), (prefix, limit + 1))[-1].rows
    shown = rows[:limit]
    if as_json:
        with quietly_ended():
            for row in shown:
                click.echo(json_line(row), nl=False)
    elif shown:
        from rich.text import Text

        from tailrace.cli import drawing

        titles = ("stream", "content type", "start", "tail", "state", "updated")
        lines = [
            [
                Text(safe(row["path"])), Text(safe(row["content_type"])), Text(f"{row['start_position']:,}"),
                Text(f"{row['next_position']:,}"), Text("closed" if row["closed"] else "open"),
                Text(str(row["updated_at"])),
            ]
            for row in shown
        ]  # fmt: skip
        drawing.terminal().print(drawing.listed(titles, lines, titles[2:4]))
    else:
        click.echo("there are no streams; create one with tailrace streams append NAME MESSAGE", err=True)
    if len(rows) > limit:
        click.echo(f"there are more than {limit:,} streams; raise --limit, or give a PREFIX", err=True)


@click.command()
@stream_argument
@click.option("--content-type", default="text/plain", show_default=True, help="The stream's content type.")
@click.option("--ttl", type=click.IntRange(1), metavar="SECONDS", help="Delete the stream when unused for this long.")
@server_options
def create(stream: str, content_type: str, ttl: int | None, url: str, token: str | None) -> None:
    """Create STREAM; prints its tail offset. An existing stream with the same configuration is not changed."""
    with connect(url, token) as client:
        click.echo(client.create(stream, content_type, ttl_s=ttl))


@click.command()
@stream_argument
@server_options
def describe(stream: str, url: str, token: str | None) -> None:
    """Describe STREAM: its content type, tail offset, and whether it is closed or expires."""
    with connect(url, token) as client:
        fields = client.head(stream)
    click.echo(f"content-type: {fields['content-type']}")
    for name in sorted(fields):
        if name.startswith("stream-"):
            click.echo(f"{name}: {fields[name]}")


@click.command()
@stream_argument
@server_options
def delete(stream: str, url: str, token: str | None) -> None:
    """Delete STREAM with everything in it."""
    with connect(url, token) as client:
        client.delete(stream)


@click.command()
@stream_argument
@click.argument("message", required=False)
@click.option("--content-type", help="The content type (default: that of the stream, or text/plain).")
@click.option("--create/--no-create", default=True, show_default=True, help="Create the stream if it does not exist.")
@click.option("--lines", is_flag=True, help="Append each line of the input as a message of its own.")
@click.option("--close", is_flag=True, help="Close the stream after the last message.")
@server_options
def append(
    stream: str, message: str | None, content_type: str | None, create: bool, lines: bool, close: bool, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Append MESSAGE (or standard input) to STREAM; prints the new tail offset."""
    with connect(url, token) as client:
        known = _content_type(client, stream)
        kind = content_type or known or "text/plain"
        bodies = _bodies(sys.stdin.buffer, kind, lines) if message is None else _whole(os.fsencode(message), kind)
        first = next(bodies, None)  # read before the stream is created: bad input changes nothing
        if first is None and not close:
            raise Invalid("there is nothing to append: give a message, or something on standard input")
        if create and known is None:
            client.create(stream, kind)
        if message is not None:
            click.echo(client.append(stream, first or b"", kind, close=close))
            return
        tail = None if first is None else _append_all(client, stream, kind, chain([first], bodies))
        if close:
            tail = client.append(stream, b"", kind, close=True)
        click.echo(tail)


def _content_type(client: Client, stream: str) -> str | None:
    try:
        return client.head(stream)["content-type"]
    except NotFound:
        return None


def _append_all(client: Client, stream: str, kind: str, bodies: Iterable[bytes]) -> str | None:
    """Append each body, with a progress bar on a terminal; the last tail offset."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("appending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tail = None
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("append", total=None)
        for body in bodies:
            tail = client.append(stream, body, kind)
            progress.advance(task, len(body))
    return tail


def _bodies(source: BinaryIO, kind: str, lines: bool) -> Iterator[bytes]:
    """Request bodies, each as soon as the input has it. The lines of a JSON stream that one read brings are sent as
    one array."""
    from tailrace.streams.stream import is_json

    if lines:
        batches = lines_of(source)
        return _arrays(batches) if is_json(kind) else chain.from_iterable(batches)
    return _whole(source.read(), kind) if is_json(kind) else chunks_of(source)


def _whole(body: bytes, kind: str) -> Iterator[bytes]:
    """One body; none if it is empty. Invalid JSON is refused here, as the server would."""
    from tailrace.streams import json_mode
    from tailrace.streams.stream import is_json

    if is_json(kind) and body:
        json_mode.entry(body)
    return iter([body] if body else [])


def _arrays(batches: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Batches of lines as JSON arrays; blank lines are left out."""
    from tailrace.streams import json_mode

    seen = sent = 0
    for batch in batches:
        messages = []
        for number, line in enumerate(batch, start=seen + 1):
            if message := line.strip(JSON_SPACE):
                try:
                    _check_value(message)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    done = f"the {sent} messages up to line {seen} were appended" if sent else "nothing was appended"
                    raise Invalid(f"line {number} of the input is not one JSON value: {error}; {done}") from None
                messages.append(message)
        if messages:
            yield json_mode.array(messages)
        seen += len(batch)
        sent += len(messages)


def _check_value(message: bytes) -> None:
    """A line must be one value by itself: `1,2` would be two inside an array."""
    message.decode()  # a raw decode does not look inside strings
    msgspec.json.decode(message, type=msgspec.Raw)


# -- reading


@click.command()
@stream_argument
@click.option("--from", "start", default="-1", show_default=True, help="-1 (the beginning), now, or an offset.")
@click.option("--no-follow", is_flag=True, help="Stop at the tail instead of waiting for more.")
@click.option("--offsets", is_flag=True, help="Print the offset after each page to standard error.")
@server_options
def tail(stream: str, start: str, no_follow: bool, offsets: bool, url: str, token: str | None) -> None:
    """Print STREAM and follow it until it is closed or interrupted."""
    try:
        with quietly_ended(), connect(url, token) as client:
            for page in _pages_to_tail(client, stream, start) if no_follow else client.follow(stream, start):
                _show(page, offsets)
    except KeyboardInterrupt:
        if no_follow:
            raise


def _pages_to_tail(client: Client, stream: str, start: str) -> Iterator[StreamPage]:
    """Pages up to the present tail."""
    page = client.read(stream, start)
    yield page
    while not page.up_to_date:
        page = client.read(stream, page.next)
        yield page


def _show(page: StreamPage, offsets: bool) -> None:
    from tailrace.streams.stream import is_json

    out = sys.stdout.buffer
    if is_json(page.content_type):
        rest = memoryview(b"".join(bytes(m) + b"\n" for m in msgspec.json.decode(page.body, type=list[msgspec.Raw])))
    else:
        rest = memoryview(page.body)
    while rest:
        rest = rest[out.write(rest) :]  # with PYTHONUNBUFFERED a write may be a short one
    out.flush()
    if offsets:
        click.echo(page.next, err=True)

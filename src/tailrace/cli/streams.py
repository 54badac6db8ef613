"""``tailrace append`` and ``tailrace tail``: write to and follow a stream of a running server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

import click
import msgspec

from tailrace.client import Client, Page
from tailrace.errors import Invalid, NotFound
from tailrace.limits import MiB
from tailrace.streams.stream import is_json

CHUNK_BYTES = 1 * MiB


Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


def server_options(command: Wrapped) -> Wrapped:
    """The options of every command that talks to a server."""
    with_url = click.option(
        "--url", default="http://127.0.0.1:4437", envvar="TAILRACE_URL", show_default=True, help="The server."
    )(command)
    return click.option("--token", envvar="TAILRACE_TOKEN", help="The bearer token, if the server wants one.")(with_url)


@click.command()
@click.argument("stream")
@click.argument("message", required=False)
@click.option("--content-type", default=None, help="The stream's; asked from the server if not given.")
@click.option("--create/--no-create", default=True, show_default=True, help="Create the stream if it is not there.")
@click.option("--lines", is_flag=True, help="Each line of the input is a message of its own.")
@click.option("--close", is_flag=True, help="Close the stream after the last message.")
@server_options
def append(
    stream: str, message: str | None, content_type: str | None, create: bool, lines: bool, close: bool, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Append MESSAGE (or standard input) to STREAM; prints the new tail offset."""
    with Client(url, token=token) as client:
        found = _content_type(client, stream)
        kind = content_type or found or "text/plain"
        if create and found is None:
            client.create(stream, kind)
        if message is not None:
            click.echo(client.append(stream, message.encode(), kind, close=close))
            return
        source = sys.stdin.buffer
        tail = _append_all(client, stream, kind, source, lines)
        if close:
            tail = client.append(stream, b"", kind, close=True)
        if tail is None:
            raise Invalid("there is nothing to append: give a message or something on standard input")
        click.echo(tail)


def _content_type(client: Client, stream: str) -> str | None:
    try:
        return client.head(stream)["content-type"]
    except NotFound:
        return None


def _append_all(client: Client, stream: str, kind: str, source: BinaryIO, lines: bool) -> str | None:
    """Append what the input holds, with a progress bar on a terminal; the last tail offset."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("appending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tail = None
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("append", total=None)
        for body in _bodies(source, kind, lines):
            tail = client.append(stream, body, kind)
            progress.advance(task, len(body))
    return tail


def _bodies(source: BinaryIO, kind: str, lines: bool) -> Iterator[bytes]:
    """Request bodies. Lines of a JSON stream are sent many at a time, as an array."""
    if not lines:
        if is_json(kind):
            body = source.read()
            yield from [body] if body else []
            return
        while body := source.read(CHUNK_BYTES):
            yield body
        return
    if not is_json(kind):
        yield from (line for line in source)
        return
    while batch := source.readlines(CHUNK_BYTES):
        messages = [line.strip() for line in batch if line.strip()]
        if messages:
            yield b"[" + b",".join(messages) + b"]"


@click.command()
@click.argument("stream")
@click.option("--from", "start", default="-1", show_default=True, help="-1 (beginning), now, or an offset.")
@click.option("--no-follow", is_flag=True, help="Stop at the tail instead of waiting for more.")
@click.option("--offsets", is_flag=True, help="Print the offset after each page to standard error.")
@server_options
def tail(stream: str, start: str, no_follow: bool, offsets: bool, url: str, token: str | None) -> None:
    """Print STREAM and what is appended to it, until it is closed or you interrupt."""
    with Client(url, token=token) as client:
        if no_follow:
            page = client.read(stream, start)
            _show(page, offsets)
            while not page.up_to_date:
                page = client.read(stream, page.next)
                _show(page, offsets)
            return
        try:
            for page in client.follow(stream, start):
                _show(page, offsets)
        except KeyboardInterrupt:
            return


def _show(page: Page, offsets: bool) -> None:
    out = sys.stdout.buffer
    if is_json(page.content_type):
        for message in msgspec.json.decode(page.body, type=list[msgspec.Raw]):
            out.write(bytes(message) + b"\n")
    else:
        out.write(page.body)
    out.flush()
    if offsets:
        click.echo(page.next, err=True)

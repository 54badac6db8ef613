"""``tailrace tables export`` and ``import``: a table as JSON lines.

An import puts items in batches. A line that is not an item, or that the server refuses, is reported with its number and
skipped; the others are imported. Putting an item twice changes nothing, so a failed part can be retried: the command
retries by itself while the server is busy, and an interrupted import can be run again.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from tailrace.cli.items import Typed, item_line, pages, read_item, typed_option
from tailrace.cli.names import table_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import quietly_ended
from tailrace.cli.tables import describe_table
from tailrace.errors import Error, Invalid, TooLarge, TooMany, Unavailable
from tailrace.limits import MiB

if TYPE_CHECKING:
    from tailrace.client import Client

BATCH_ITEMS: Final = 25  # the maximum of BatchWriteItem
BATCH_BYTES: Final = 4 * MiB  # of lines, so that a request stays well below the server's limit
LINE_BYTES_MAX: Final = 8 * MiB  # an item holds 400 KB; JSON may escape all of it
TRIES_MAX: Final = 8  # in a row without progress, while the server is busy or unreachable
DELAY_S_MIN: Final = 0.05
DELAY_S_MAX: Final = 5.0

Advance = Callable[[int, int], None]  # items, bytes
Batch = list[tuple[int, Typed]]  # line numbers and items


@contextmanager
def _progress(what: str, *, items: int | None = None, size: int | None = None) -> Iterator[Advance]:
    """A progress bar on a terminal: items, rate and bytes; out of `items` or `size` where that is known."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.fields[items]:,} items, {task.fields[rate]:,.0f}/s, {task.fields[mb]:,.1f} MB"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=items if items is not None else size, items=0, rate=0.0, mb=0.0)
        began_s = time.monotonic()
        done = seen = 0

        def advance(more: int, size_more: int) -> None:
            nonlocal done, seen
            done += more
            seen += size_more
            progress.update(
                task,
                completed=done if items is not None else seen,
                items=done,
                rate=done / max(time.monotonic() - began_s, 0.001),
                mb=seen / 1e6,
            )

        yield advance


# -- export


@click.command("export")
@table_argument
@click.argument("file", default="-", type=click.Path(dir_okay=False))
@typed_option
@server_options
def export_table(table: str, file: str, typed: bool, url: str, token: str | None) -> None:
    """Write all items of TABLE to FILE (or standard output) as JSON lines.

    FILE appears when it is complete. Plain JSON has no sets and no binary: they become lists and base64 text.
    """
    with connect(url, token) as client, quietly_ended():
        expected = describe_table(client, table)["ItemCount"]
        with _output(file) as out, _progress("exporting", items=expected) as advance:
            inexact = 0
            for item in pages(client, "Scan", {"TableName": table, "ConsistentRead": True}):
                inexact += not typed and not all(_is_plain(each) for each in item.values())
                line = item_line(item, typed)
                out.write(line)
                advance(1, len(line))
            out.flush()
    if inexact:
        click.echo(
            f"{inexact} items hold sets or binary, which became lists and text; export with --typed to preserve them",
            err=True,
        )


@contextmanager
def _output(file: str) -> Iterator[BinaryIO]:
    """Where to write: standard output, or a file that gets its name once it is complete and on disk."""
    if file == "-":
        yield sys.stdout.buffer
        return
    target = Path(file)
    try:
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise Invalid(f"cannot write {file!r}: {error.strerror or error}") from error
    try:
        with os.fdopen(number, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except OSError as error:
        raise Unavailable(f"cannot write {file!r}: {error.strerror or error}; no file was written") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    """The umask; reading it takes setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _is_plain(value: dict[str, Any]) -> bool:
    """Whether plain JSON can represent this value."""
    ((kind, inner),) = value.items()
    if kind == "L":
        return all(_is_plain(each) for each in inner)
    if kind == "M":
        return all(_is_plain(each) for each in inner.values())
    return kind in ("S", "N", "BOOL", "NULL")


# -- import


@click.command("import")
@table_argument
@click.argument("file", default="-", type=click.Path(dir_okay=False))
@typed_option
@server_options
def import_table(table: str, file: str, typed: bool, url: str, token: str | None) -> None:
    """Put every line of FILE (or standard input), a JSON object, into TABLE as an item.

    Lines that are not items are reported with their numbers and skipped; the others are imported, and the status is 1.
    """
    with connect(url, token) as client, _input(file) as source:
        describe_table(client, table)  # a missing table is reported before the input is read
        size = os.fstat(source.fileno()).st_size if file != "-" else None
        with _progress("importing", size=size) as advance:
            load = TableImport(client, table, advance)
            try:
                load.run(source, typed)
            except (Error, KeyboardInterrupt) as error:
                so_far = f"{load.imported} items were imported, those up to line {load.line} or refused"
                if isinstance(error, KeyboardInterrupt):
                    click.echo(f"interrupted: {so_far}", err=True)
                    raise
                raise type(error)(f"{error}; {so_far}", code=error.code) from error
    click.echo(f"imported {load.imported} items")
    if load.refused:
        raise Invalid(f"{load.refused} lines were refused; they are listed above")


@contextmanager
def _input(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = open(file, "rb")  # noqa: SIM115 - closed below; an error while it is used is not one of opening it
    except OSError as error:
        raise Invalid(f"cannot read {file!r}: {error.strerror or error}") from error
    with source:
        yield source


class TableImport:
    """The progress of one import."""

    def __init__(self, client: Client, table: str, advance: Advance) -> None:
        self.imported = 0
        self.refused = 0
        self.line = 0  # the last line whose batch was sent
        self._client = client
        self._table = table
        self._advance = advance

    def run(self, source: BinaryIO, typed: bool) -> None:
        """Import all lines."""
        batch: Batch = []
        size = number = 0
        for number, line in enumerate(_lines(source), start=1):
            if len(line) > LINE_BYTES_MAX:
                self._refuse(number, Invalid(f"the line is longer than {LINE_BYTES_MAX} bytes"))
            elif text := line.strip():
                try:
                    batch.append((number, read_item(text, typed)))
                except Invalid as error:
                    self._refuse(number, error)
            size += len(line)
            if len(batch) >= BATCH_ITEMS or size >= BATCH_BYTES:
                self._put(batch, number, size)
                batch, size = [], 0
        self._put(batch, number, size)

    def _put(self, batch: Batch, line: int, size: int) -> None:
        before = self.imported
        if batch:
            try:
                self._put_together([{"PutRequest": {"Item": item}} for _, item in batch])
                self.imported += len(batch)
            except (Invalid, TooLarge):
                # One of them is invalid, or two have the same key: one by one, each gets its own response, in order.
                for number, item in batch:
                    self._put_alone(number, item)
        self.line = line
        self._advance(self.imported - before, size)

    def _put_together(self, requests: list[dict[str, Any]]) -> None:
        tries = 0
        while requests:
            response = self._call("BatchWriteItem", {"RequestItems": {self._table: requests}})
            left = response.get("UnprocessedItems", {}).get(self._table, [])
            tries = 0 if len(left) < len(requests) else tries + 1
            if tries >= TRIES_MAX:
                raise Unavailable("the server keeps refusing work; try again later")
            if left:
                time.sleep(_delay_s(tries))
            requests = left

    def _put_alone(self, number: int, item: Typed) -> None:
        try:
            self._call("PutItem", {"TableName": self._table, "Item": item})
            self.imported += 1
        except (Invalid, TooLarge) as error:
            self._refuse(number, error)

    def _call(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Call, and retry while the server is busy or unreachable: a repeated put changes nothing."""
        for tries in range(TRIES_MAX):
            try:
                return self._client.call(operation, parameters)
            except (TooMany, Unavailable):
                if tries == TRIES_MAX - 1:
                    raise
                time.sleep(_delay_s(tries))
        raise AssertionError("the last try returns or raises")

    def _refuse(self, number: int, error: Error) -> None:
        self.refused += 1
        click.echo(f"line {number}: {error}", err=True)


def _delay_s(tries: int) -> float:
    return min(DELAY_S_MIN * (1 << tries), DELAY_S_MAX)


def _lines(source: BinaryIO) -> Iterator[bytes]:
    """Lines; one that is too long is cut, just long enough to be recognized as such."""
    while line := source.readline(LINE_BYTES_MAX + 2):
        if len(line) > LINE_BYTES_MAX:
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = source.readline(LINE_BYTES_MAX)
        yield line

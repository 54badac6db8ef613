"""``tailrace append`` and ``tailrace tail``: write to and follow a stream of a running server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar, cast

import click
import msgspec

from tailrace.errors import Invalid, NotFound
from tailrace.limits import MiB
from tailrace.streams import json_mode
from tailrace.streams.stream import is_json

if TYPE_CHECKING:
    from tailrace.client import Client, Page

CHUNK_BYTES = 1 * MiB
JSON_SPACE = b" \t\r\n"
_COMMANDLINE: Final = click.core.ParameterSource.COMMANDLINE

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


def server_options(command: Wrapped) -> Wrapped:
    """The options of every command that talks to a server; `connect` makes the client of them."""
    for option in (
        *CREDENTIALS,
        click.option("--token", envvar="TAILRACE_TOKEN", help="The bearer token, if the server wants one."),
        click.option(
            "--url", default="http://127.0.0.1:4437", envvar="TAILRACE_URL", show_default=True, help="The server."
        ),
    ):
        command = option(command)
    return command


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep what `connect` asks for: commands do not need to know of users."""
    context.meta[f"tailrace.{parameter.name}"] = value


USER: Final = click.option(
    "--user", envvar="TAILRACE_USER", expose_value=False, callback=_note,
    help="Who you are, instead of a token; the password is asked for.",
)  # fmt: skip
CREDENTIALS: Final = (
    click.option(
        "--password-stdin", is_flag=True, expose_value=False, callback=_note,
        help="The user's password is the first line of standard input; or give TAILRACE_PASSWORD.",
    ),
    USER,
)  # fmt: skip


def connect(url: str, token: str | None) -> Client:
    """A client of the server, as the user or with the token that the command was given."""
    from tailrace.client import Client  # slow to import: only who asks a server waits for it

    return Client(url, **credentials(token))


def credentials(token: str | None) -> dict[str, str | None]:
    """Who asks: a `token`, or a `user` and a `password`, which may be asked for here."""
    context = click.get_current_context()
    user: str | None = context.meta.get("tailrace.user")
    if user is None:
        if context.meta.get("tailrace.password_stdin"):
            raise click.UsageError("--password-stdin is the password of a user: give --user too")
        return {"token": token}
    if token is not None:
        said = [name for name in ("user", "token") if context.get_parameter_source(name) is _COMMANDLINE]
        if len(said) == 2:
            raise click.UsageError("give --user or --token, not both")
        if said != ["user"]:  # what is said here counts more than the environment, and a token more than a user
            return {"token": token}
    return {"user": user, "password": _password(context, user)}


def _password(context: click.Context, user: str) -> str:
    if context.meta.get("tailrace.password_stdin"):
        # A line and no more: what follows may be the command's own input.
        return sys.stdin.buffer.readline().decode(errors="surrogateescape").rstrip("\r\n")
    if (password := os.environ.get("TAILRACE_PASSWORD")) is not None:
        return password
    if not sys.stdin.isatty():
        other = " or --password-stdin" if "tailrace.password_stdin" in context.meta else ""
        raise click.UsageError(f"the password of {user!r} is missing: give TAILRACE_PASSWORD{other}")
    asked: str = click.prompt(f"Password of {user}", hide_input=True, err=True)
    return asked


@contextmanager
def quietly_ended() -> Iterator[None]:
    """End without a word when whoever reads us (`| head -1`) has enough."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered has nowhere to go; the interpreter would complain of that on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    with connect(url, token) as client:
        found = _content_type(client, stream)
        kind = content_type or found or "text/plain"
        bodies = _bodies(sys.stdin.buffer, kind, lines) if message is None else _whole(os.fsencode(message), kind)
        first = next(bodies, None)  # looked at before the stream is created: bad input changes nothing
        if first is None and not close:
            raise Invalid("there is nothing to append: give a message or something on standard input")
        if create and found is None:
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
    """Request bodies, each as soon as the input holds it. Lines of a JSON stream are sent as many at a time, as an
    array, as one read brings."""
    if lines:
        batches = lines_of(source)
        return _arrays(batches) if is_json(kind) else chain.from_iterable(batches)
    return _whole(source.read(), kind) if is_json(kind) else _chunks(source)


def _whole(body: bytes, kind: str) -> Iterator[bytes]:
    """One body; none if it is empty. What is no JSON is refused here as the server would."""
    if is_json(kind) and body:
        json_mode.entry(body)
    return iter([body] if body else [])


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    """What is there, without waiting until it is much: the input may be a live pipe."""
    return iter(partial(cast(BufferedIOBase, source).read1, CHUNK_BYTES), b"")


def lines_of(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that each read completes, newlines included. The input's last line may lack its own."""
    begun: list[bytes] = []
    for chunk in _chunks(source):
        ended, newline, rest = chunk.rpartition(b"\n")
        if newline:
            yield [line + b"\n" for line in b"".join((*begun, ended)).split(b"\n")]
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield [last]


def _arrays(batches: Iterable[list[bytes]]) -> Iterator[bytes]:
    """Batches of lines as JSON arrays; blank lines are left out."""
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


@click.command()
@click.argument("stream")
@click.option("--from", "start", default="-1", show_default=True, help="-1 (beginning), now, or an offset.")
@click.option("--no-follow", is_flag=True, help="Stop at the tail instead of waiting for more.")
@click.option("--offsets", is_flag=True, help="Print the offset after each page to standard error.")
@server_options
def tail(stream: str, start: str, no_follow: bool, offsets: bool, url: str, token: str | None) -> None:
    """Print STREAM and what is appended to it, until it is closed or you interrupt."""
    try:
        with quietly_ended(), connect(url, token) as client:
            for page in _pages_there(client, stream, start) if no_follow else client.follow(stream, start):
                _show(page, offsets)
    except KeyboardInterrupt:
        if no_follow:
            raise


def _pages_there(client: Client, stream: str, start: str) -> Iterator[Page]:
    """Pages up to the tail as it is now."""
    page = client.read(stream, start)
    yield page
    while not page.up_to_date:
        page = client.read(stream, page.next)
        yield page


def _show(page: Page, offsets: bool) -> None:
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

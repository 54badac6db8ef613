"""``tailrace topics``: the topics of a running server.

A consumer prints a message before it acknowledges it. When interrupted it acknowledges the messages printed and returns
the others at once: nothing is lost, and few messages are delivered twice.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import click
import msgspec

from tailrace.cli.names import complete, topic_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.pipes import lines_of, quietly_ended
from tailrace.cli.text import bytes_text, json_line, moment, safe
from tailrace.errors import Error, Invalid, TooMany, Unavailable
from tailrace.limits import POSITION_MAX, PUBLISH_MESSAGES_MAX, MiB

if TYPE_CHECKING:
    from tailrace.client import Client, Delivery, Message, Producer

BATCH_BYTES: Final = 1 * MiB  # of lines that are published in one request
BATCH_MESSAGES: Final = 500  # of one consume request, unless --limit is less
WAIT_S: Final = 25.0  # for messages, in one request; then it is sent again
PAUSE_S: Final = 0.1  # before the first retry while the server is unreachable; doubles with each
PAUSE_S_MAX: Final = 5.0
ANY: Final = "any"

_TOPICS: Final = """
WITH p AS (SELECT topic_id, sum(messages)::BIGINT AS messages, sum(bytes)::BIGINT AS bytes
           FROM system.topic_partitions GROUP BY topic_id),
     g AS (SELECT topic_id, count(DISTINCT group_id) AS groups, max(lag) AS lag
           FROM (SELECT topic_id, group_id, sum(lag)::BIGINT AS lag FROM system.topic_groups GROUP BY ALL)
           GROUP BY topic_id)
SELECT t.name, t.alias, t.partitions, coalesce(p.messages, 0) AS messages, coalesce(p.bytes, 0) AS bytes,
       coalesce(g.groups, 0) AS groups, coalesce(g.lag, 0) AS lag, t.retention_seconds, t.retention_max_bytes
FROM system.topics t LEFT JOIN p USING (topic_id) LEFT JOIN g USING (topic_id) ORDER BY t.name"""


# -- topics


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per topic and line.")
@server_options
def list_topics(as_json: bool, url: str, token: str | None) -> None:
    """List the topics with their messages, bytes, groups and the lag of the slowest group."""
    with connect(url, token) as client:
        topics = client.sql(_TOPICS.strip())[-1].rows
    if as_json:
        print_json(topics)
    elif topics:
        from tailrace.cli import topic_drawing

        topic_drawing.show(topic_drawing.topic_list(topics))
    else:
        click.echo('there are no topics; create one with tailrace sql "CREATE TOPIC name"', err=True)


@click.command()
@topic_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@server_options
def describe(topic: str, as_json: bool, url: str, token: str | None) -> None:
    """Describe TOPIC: its settings, partitions, sources and groups."""
    with connect(url, token) as client:
        described = client.describe_topic(topic)
    if as_json:
        print_json([described])
    else:
        from tailrace.cli import topic_drawing

        topic_drawing.show(topic_drawing.description(described))


def print_json(values: Iterable[Any]) -> None:
    """Print each value as a line of JSON."""
    with quietly_ended():
        for each in values:
            click.echo(json_line(each), nl=False)


# -- publishing


@click.command()
@topic_argument
@click.argument("payloads", nargs=-1, metavar="[PAYLOAD]...")
@click.option("--key", help="The key that selects the partition: messages with the same key stay in order.")
@click.option("--partition", type=click.IntRange(0), help="The partition to publish to, instead of a key.")
@server_options
def publish(
    topic: str, payloads: tuple[str, ...], key: str | None, partition: int | None, url: str, token: str | None
) -> None:
    """Publish each PAYLOAD to TOPIC as a message, or each line of standard input (also with -), exactly once.

    Prints the partition and offset of each PAYLOAD, or the number of lines published.
    """
    if key is not None and partition is not None:
        raise click.UsageError("--key and --partition exclude each other: both select the partition")
    from tailrace.client import Producer

    with connect(url, token) as client:
        producer = Producer(client, topic)
        if payloads and payloads != ("-",):
            for at in range(0, len(payloads), PUBLISH_MESSAGES_MAX):
                part = [os.fsencode(payload) for payload in payloads[at : at + PUBLISH_MESSAGES_MAX]]
                for place in producer.publish_many(part, key=key, partition=partition).messages:
                    click.echo(f"{place.partition}:{place.offset}")
            return
        count = _publish_lines(producer, key, partition)
    if count == 0:
        raise Invalid("there is nothing to publish: give a PAYLOAD, or lines on standard input")
    click.echo(f"{count:,} {'message' if count == 1 else 'messages'} published")


def _publish_lines(producer: Producer, key: str | None, partition: int | None) -> int:
    """Publish the lines of standard input as they arrive; returns their number."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from tailrace.cli import drawing

    source = sys.stdin.buffer
    counter = TextColumn("{task.fields[messages]:,} messages")
    columns = (TextColumn("publishing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), counter)
    console = drawing.terminal(sys.stderr)
    count = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("publish", total=_size(), messages=0)
        try:
            for batch in batches(lines_of(source)):
                producer.publish_many(batch, key=key, partition=partition)
                count += len(batch)
                progress.update(task, advance=sum(map(len, batch)) + len(batch), messages=count)
        except Error:
            if count:
                click.echo(f"the first {count:,} messages were published", err=True)
            raise
    return count


def _size() -> int | None:
    """The size of the input, where it is known."""
    with suppress(OSError, ValueError):
        return os.fstat(sys.stdin.fileno()).st_size or None
    return None


def batches(reads: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Lines without their ends, in batches that fit into one request; empty lines are skipped."""
    for read in reads:
        batch: list[bytes] = []
        size = 0
        for line in read:
            message = line.removesuffix(b"\n").removesuffix(b"\r")
            if not message:
                continue
            if batch and (size + len(message) > BATCH_BYTES or len(batch) == PUBLISH_MESSAGES_MAX):
                yield batch
                batch, size = [], 0
            batch.append(message)
            size += len(message)
        if batch:
            yield batch


# -- consuming


@click.command()
@topic_argument
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete("groups"),
    help="The consumer group; without it messages are read and no state is kept.",
)
@click.option("--consumer", metavar="ID", help="The consumer's id (default: a unique one).")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="OFFSET",
    help="Where a new group starts: earliest, latest or an offset.",
)
@click.option("--partition", metavar="N", help="Read only this partition (default: any; 0 without a group).")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--follow", is_flag=True, help="Wait for more messages until interrupted.")
@click.option("--ack/--no-ack", default=True, show_default=True, help="Acknowledge the messages printed.")
@click.option(
    "--visibility",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long until unacknowledged messages are delivered again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message and line.")
@server_options
def consume(
    topic: str, group: str | None, consumer: str | None, start: str, partition: str | None, limit: int | None,
    follow: bool, ack: bool, visibility: float, as_json: bool, url: str, token: str | None,
) -> None:  # fmt: skip
    """Print messages of TOPIC as a consumer of a group, and acknowledge them once printed.

    Each line has the partition and offset, the time, the event and table, and the payload. Ctrl-C returns the messages
    that were not printed.
    """
    first = _start(start)
    number = _partition(partition)
    with connect(url, token) as client:
        if group is None:
            if consumer is not None:
                raise click.UsageError("--consumer needs --group: without a group nothing is leased")
            reader: _Reader = _Reader(client, topic, first, 0 if number is None else number)
        else:
            name = consumer or f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid4().hex[:8]}"
            wanted = ANY if number is None else number
            reader = _GroupReader(client, topic, group, name, first, wanted, ack, visibility)
        with quietly_ended():
            _print_all(reader, limit, follow, as_json)


def _start(text: str) -> str | int:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.isascii() and text.isdigit() and int(text[:20]) <= POSITION_MAX:
        return int(text)
    raise Invalid(f"--from {text!r} is not an offset; give earliest, latest or a number")


def _partition(text: str | None) -> int | None:
    if text is None or text == ANY:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise Invalid(f"--partition {text!r} is not a partition; give a number, or {ANY}")


class _Reader:
    """Reads a partition without a group: nothing is leased, and no state is kept."""

    def __init__(self, client: Client, topic: str, start: str | int, partition: int | str) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._partition: Any = partition

    def next(self, limit: int, timeout_s: float) -> Delivery:
        """The next messages; waits for them for `timeout_s`."""
        delivery = self._client.consume(
            self._topic, None, limit=limit, start=self._start, partition=self._partition, timeout_s=timeout_s
        )
        self._start = delivery.next_offset
        return delivery

    def settle(self, delivery: Delivery, printed: int) -> None:
        """Report how many messages of a delivery were printed."""

    def interrupt(self) -> None:
        """End the wait for messages."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """Close the connections."""


class _GroupReader(_Reader):
    """Consumes as a member of a group. After an interrupt nothing more is delivered to it."""

    def __init__(
        self, client: Client, topic: str, group: str, consumer: str, start: str | int, partition: int | str, ack: bool,
        visibility_s: float,
    ) -> None:  # fmt: skip
        super().__init__(client, topic, start, partition)
        self._group = group
        self._consumer = consumer
        self._ack = ack
        self._visibility_s = visibility_s
        self._waiter = client.waiter()

    def next(self, limit: int, timeout_s: float) -> Delivery:
        from tailrace.client import ConsumeRequest

        return self._waiter.consume(
            ConsumeRequest(
                self._topic, self._group, limit, self._consumer, self._start, self._partition, self._visibility_s,
                timeout_s,
            )
        )  # fmt: skip

    def settle(self, delivery: Delivery, printed: int) -> None:
        """Acknowledge the messages printed, and return the others."""
        client, messages, consumer = self._client, delivery.messages, self._consumer
        if printed < len(messages):
            client.nack(
                self._topic, self._group, partition=delivery.partition, consumer=consumer, lease=delivery.lease,
                first=messages[printed].offset, upto=messages[-1].offset,
            )  # fmt: skip
        if printed and self._ack:
            upto = messages[printed - 1].offset
            client.ack(
                self._topic, self._group, upto, partition=delivery.partition, consumer=consumer, lease=delivery.lease
            )

    def interrupt(self) -> None:
        self._waiter.interrupt()

    def close(self) -> None:
        self._waiter.close()


class _Interrupt:
    """Whether Ctrl-C was pressed. The first press lets the delivery finish; the second ends the program at once."""

    def __init__(self, reader: _Reader) -> None:
        self._count = 0
        self._reader = reader
        self._before: Any = None

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
        self._reader.interrupt()

    def pressed(self) -> bool:
        return self._count > 0


def _print_all(reader: _Reader, limit: int | None, follow: bool, as_json: bool) -> None:
    """Print messages as they arrive, and settle each delivery when it is printed."""
    left, reached, pause_s = limit, False, PAUSE_S
    with suppress(KeyboardInterrupt), closing(reader), _Interrupt(reader) as interrupt:
        while left != 0 and not interrupt.pressed():
            try:
                delivery = reader.next(min(left or BATCH_MESSAGES, BATCH_MESSAGES), WAIT_S if follow else 0.0)
                reached, pause_s = True, PAUSE_S
                if delivery.skipped:
                    click.echo(f"{delivery.skipped:,} messages were no longer retained and are skipped", err=True)
                if not delivery.messages and not follow:
                    return
                printed = _print(reader, delivery, as_json, interrupt)
                if left is not None:
                    left -= printed
                reader.settle(delivery, printed)
            except (Unavailable, TooMany):
                if interrupt.pressed():
                    return
                if not (follow and reached):
                    raise
                # Messages that could not be acknowledged are delivered again when their lease expires.
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _print(reader: _Reader, delivery: Delivery, as_json: bool, interrupt: _Interrupt) -> int:
    """Print a delivery until interrupted; returns how many messages were printed."""
    out = sys.stdout.buffer
    printed = 0
    try:
        for message in delivery.messages:
            if interrupt.pressed():
                break
            out.write(_as_json(message) if as_json else _line(message))
            printed += 1
        out.flush()
    except BaseException:
        reader.settle(delivery, 0)  # the buffered output was not seen
        raise
    return printed


def _line(message: Message) -> bytes:
    """A message as a line for people."""
    origin = " ".join(each for each in (message.op, message.source_table) if each)
    parts = [f"{message.partition}:{message.offset}", moment(message.at_ms), origin]
    if message.key is not None:
        parts.append(f"key {message.key}")
    if message.attempt > 1:
        parts.append(f"attempt {message.attempt}")
    return (safe("  ".join([*parts, bytes_text(message.payload)])) + "\n").encode()


def _as_json(message: Message) -> bytes:
    """A message as JSON: as the server sent it, with its payload also as `value` (JSON) or `text`."""
    facts: dict[str, Any] = msgspec.to_builtins(message)
    try:
        text = message.payload.decode()
        try:
            msgspec.json.decode(message.payload)
            facts["value"] = msgspec.Raw(message.payload)
        except (msgspec.DecodeError, RecursionError):
            facts["text"] = text
    except UnicodeDecodeError:
        pass  # the payload itself is base64
    return msgspec.json.encode(facts).replace(b"\n", b" ") + b"\n"

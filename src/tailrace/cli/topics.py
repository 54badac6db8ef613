"""``tailrace topics``, ``topic``, ``publish``, ``consume`` and ``groups``: the topics of a running server.

A consumer prints a message before it acknowledges it: one that is interrupted has printed what it acknowledged, and
gives back the rest, so that nothing is lost and little comes twice.
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

from tailrace.cli.streams import connect, lines_of, quietly_ended, server_options
from tailrace.cli.text import bytes_text, json_line, moment, safe
from tailrace.errors import Error, Invalid, TooMany, Unavailable
from tailrace.limits import POSITION_MAX, PUBLISH_MESSAGES_MAX, MiB

if TYPE_CHECKING:
    from tailrace.client import Client, Delivery, Message, Producer

BATCH_BYTES: Final = 1 * MiB  # of lines that are published in one request
BATCH_MESSAGES: Final = 500  # of a consumer, unless it wants fewer
WAIT_S: Final = 25.0  # for messages, in one request; then it is sent again
PAUSE_S: Final = 0.1  # before a server that went away is asked again; then twice as long each time
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
_GROUPS: Final = """
SELECT topic, group_id, partition_id, lag, in_flight, pending, delivered, redelivered, lost, consumers, updated_at
FROM system.topic_groups ORDER BY topic, group_id, partition_id"""


def _rows(client: Client, text: str) -> list[dict[str, Any]]:
    return client.sql(text.strip())[-1].rows


# -- what there is


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per topic and line, instead of a drawing.")
@server_options
def topics(as_json: bool, url: str, token: str | None) -> None:
    """List the topics, with what they hold and how far the slowest group is behind."""
    with connect(url, token) as client:
        found = _rows(client, _TOPICS)
    if as_json:
        _json(found)
    elif found:
        from tailrace.cli import topic_tables

        topic_tables.show(topic_tables.listed(found))
    else:
        click.echo('there are no topics; make one with tailrace sql -c "CREATE TOPIC name"', err=True)


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, as the server has it.")
@server_options
def topic(name: str, as_json: bool, url: str, token: str | None) -> None:
    """Tell all that there is to say of topic NAME: its settings, partitions, sources and groups."""
    with connect(url, token) as client:
        found = client.describe_topic(name)
    if as_json:
        _json([found])
    else:
        from tailrace.cli import topic_tables

        topic_tables.show(topic_tables.described(found))


@click.command()
@click.argument("topic", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per group, partition and line.")
@click.option("--watch", is_flag=True, help="Draw it again and again, until you interrupt.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between, with --watch."
)
@server_options
def groups(topic: str | None, as_json: bool, watch: bool, interval: float, url: str, token: str | None) -> None:
    """List the consumer groups, of TOPIC or of all: how far they are behind, what they hold, what was lost."""
    if as_json and watch:
        raise click.UsageError("--json and --watch do not go together")
    with connect(url, token) as client:
        if watch:
            from tailrace.cli import topic_tables

            topic_tables.watch(lambda: _groups(client, topic), interval)
            return
        found = _groups(client, topic)
    if as_json:
        _json(found)
    elif found:
        from tailrace.cli import topic_tables

        topic_tables.show(topic_tables.groups(found))
    else:
        click.echo("there are no groups: one begins with its first consume", err=True)


def _groups(client: Client, topic: str | None) -> list[dict[str, Any]]:
    if topic is None:
        return _rows(client, _GROUPS)
    found = client.describe_topic(topic)  # by name or alias, and for those who may see no other topic
    return [{"topic": found["name"], **group} for group in ordered(found["groups"])]


def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups by name, and each by partition."""
    return sorted(found, key=lambda group: (group["group_id"], group["partition_id"]))


def _json(found: Iterable[Any]) -> None:
    with quietly_ended():
        for each in found:
            click.echo(json_line(each), nl=False)


# -- publishing


@click.command()
@click.argument("topic")
@click.argument("payloads", nargs=-1, metavar="[PAYLOAD]...")
@click.option("--key", help="What the partition is chosen by: messages with the same key stay in order.")
@click.option("--partition", type=click.IntRange(0), help="The partition, instead of a key.")
@server_options
def publish(
    topic: str, payloads: tuple[str, ...], key: str | None, partition: int | None, url: str, token: str | None
) -> None:
    """Publish each PAYLOAD to TOPIC as a message, or each line of standard input (also -); each once.

    Prints partition and offset of each PAYLOAD, or how many lines were published.
    """
    if key is not None and partition is not None:
        raise click.UsageError("--key and --partition both say where the messages go; give one of them")
    from tailrace.client import Producer

    with connect(url, token) as client:
        producer = Producer(client, topic)
        if payloads and payloads != ("-",):
            for at in range(0, len(payloads), PUBLISH_MESSAGES_MAX):
                part = [os.fsencode(payload) for payload in payloads[at : at + PUBLISH_MESSAGES_MAX]]
                for place in producer.publish_many(part, key=key, partition=partition).places:
                    click.echo(f"{place.partition}:{place.offset}")
            return
        count = _publish_lines(producer, key, partition)
    if count == 0:
        raise Invalid("there is nothing to publish: give a message, or lines on standard input")
    click.echo(f"{count:,} {'message' if count == 1 else 'messages'} published")


def _publish_lines(producer: Producer, key: str | None, partition: int | None) -> int:
    """Publish the lines of standard input as they come; how many."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from tailrace.cli import drawing

    source = sys.stdin.buffer
    told = TextColumn("{task.fields[messages]:,} messages")
    columns = (TextColumn("publishing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), told)
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
    """How long the input is, where that is known."""
    with suppress(OSError, ValueError):
        return os.fstat(sys.stdin.fileno()).st_size or None
    return None


def batches(reads: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Lines without their ends, as many together as go into one request; empty ones are left out."""
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
@click.argument("topic")
@click.option("--group", metavar="NAME", help="The group; without one, messages are read and nothing is noted.")
@click.option("--consumer", metavar="ID", help="Who consumes; made up if not given.")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="Where a new group begins: earliest, latest or an offset.",
)
@click.option("--partition", metavar="N", help="Only this one; else any of them, or 0 without a group.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--follow", is_flag=True, help="Wait for more, until you interrupt.")
@click.option("--ack/--no-ack", default=True, show_default=True, help="Acknowledge what was printed.")
@click.option(
    "--visibility",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long until what was not acknowledged is delivered again.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per message and line.")
@server_options
def consume(
    topic: str, group: str | None, consumer: str | None, start: str, partition: str | None, limit: int | None,
    follow: bool, ack: bool, visibility: float, as_json: bool, url: str, token: str | None,
) -> None:  # fmt: skip
    """Print the messages of TOPIC for a consumer of a group, and acknowledge them when they are printed.

    A line holds partition and offset, the time, what happened to which table, and the payload. Ctrl-C gives back what
    was not printed.
    """
    begin = _start(start)
    where = _partition(partition)
    with connect(url, token) as client:
        if group is None:
            if consumer is not None:
                raise click.UsageError("--consumer needs a --group: without one nothing is leased")
            work: _Reading = _Reading(client, topic, begin, 0 if where is None else where)
        else:
            who = consumer or f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid4().hex[:8]}"
            work = _Consuming(client, topic, group, who, begin, ANY if where is None else where, ack, visibility)
        with quietly_ended():
            _print_all(work, limit, follow, as_json)


def _start(text: str) -> str | int:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if text.isascii() and text.isdigit() and int(text[:20]) <= POSITION_MAX:
        return int(text)
    raise Invalid(f"--from {text!r} is no place to begin; give earliest, latest or an offset")


def _partition(text: str | None) -> int | None:
    if text is None or text == ANY:
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise Invalid(f"--partition {text!r} is none; give a number, or {ANY}")


class _Reading:
    """Reads a partition without a group: nothing is held, and nothing is noted."""

    def __init__(self, client: Client, topic: str, start: str | int, partition: int | str) -> None:
        self._client = client
        self._topic = topic
        self._start = start
        self._partition: Any = partition

    def next(self, limit: int, timeout_s: float) -> Delivery:
        """The next messages; waits for them for `timeout_s`."""
        found = self._client.consume(
            self._topic, None, limit=limit, start=self._start, partition=self._partition, timeout_s=timeout_s
        )
        self._start = found.next_offset
        return found

    def settle(self, found: Delivery, printed: int) -> None:
        """Say what became of a delivery, of which so many messages were printed."""

    def interrupt(self) -> None:
        """End the wait for messages."""
        raise KeyboardInterrupt

    def close(self) -> None:
        """Let go of connections."""


class _Consuming(_Reading):
    """Consumes as one of a group. Whoever interrupts it gets nothing more delivered."""

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
        return self._waiter.consume(
            self._topic, self._group, limit=limit, consumer=self._consumer, start=self._start,
            partition=self._partition, visibility_s=self._visibility_s, timeout_s=timeout_s,
        )  # fmt: skip

    def settle(self, found: Delivery, printed: int) -> None:
        """Acknowledge what was printed, and give back the rest."""
        client, messages, who = self._client, found.messages, self._consumer
        if printed < len(messages):
            client.nack(
                self._topic, self._group, partition=found.partition, consumer=who, lease=found.lease,
                first=messages[printed].offset, upto=messages[-1].offset,
            )  # fmt: skip
        if printed and self._ack:
            upto = messages[printed - 1].offset
            client.ack(self._topic, self._group, upto, partition=found.partition, consumer=who, lease=found.lease)

    def interrupt(self) -> None:
        self._waiter.interrupt()

    def close(self) -> None:
        self._waiter.close()


class _Stop:
    """Whether the person has pressed Ctrl-C. The first time lets us finish; the second time is meant."""

    def __init__(self, work: _Reading) -> None:
        self._asked = False
        self._work = work
        self._before: Any = None

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _pressed(self, number: int, frame: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._work.interrupt()

    def heard(self) -> bool:
        return self._asked


def _print_all(work: _Reading, limit: int | None, follow: bool, as_json: bool) -> None:
    """Print messages as they come, and settle each delivery when it is printed."""
    left, reached, pause_s = limit, False, PAUSE_S
    with suppress(KeyboardInterrupt), closing(work), _Stop(work) as stop:
        while left != 0 and not stop.heard():
            try:
                found = work.next(min(left or BATCH_MESSAGES, BATCH_MESSAGES), WAIT_S if follow else 0.0)
                reached, pause_s = True, PAUSE_S
                if found.skipped:
                    click.echo(f"{found.skipped:,} messages were no longer retained and are skipped", err=True)
                if not found.messages and not follow:
                    return
                printed = _print(work, found, as_json, stop)
                if left is not None:
                    left -= printed
                work.settle(found, printed)
            except (Unavailable, TooMany):
                if stop.heard():
                    return
                if not (follow and reached):
                    raise
                # What could not be acknowledged comes again when its lease has run out.
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _print(work: _Reading, found: Delivery, as_json: bool, stop: _Stop) -> int:
    """Print a delivery, until asked to stop; how many messages were printed."""
    out = sys.stdout.buffer
    printed = 0
    try:
        for message in found.messages:
            if stop.heard():
                break
            out.write(_as_json(message) if as_json else _line(message))
            printed += 1
        out.flush()
    except BaseException:
        work.settle(found, 0)  # what was still buffered nobody has seen
        raise
    return printed


def _line(message: Message) -> bytes:
    """A message for people."""
    origin = " ".join(each for each in (message.op, message.source_table) if each)
    parts = [f"{message.partition}:{message.offset}", moment(message.at_ms), origin]
    if message.key is not None:
        parts.append(f"key {message.key}")
    if message.attempt > 1:
        parts.append(f"attempt {message.attempt}")
    return (safe("  ".join([*parts, bytes_text(message.payload)])) + "\n").encode()


def _as_json(message: Message) -> bytes:
    """A message for programs: as the server sent it, with its payload once more as `value` (JSON) or `text`."""
    told: dict[str, Any] = msgspec.to_builtins(message)
    try:
        text = message.payload.decode()
        try:
            msgspec.json.decode(message.payload)
            told["value"] = msgspec.Raw(message.payload)
        except (msgspec.DecodeError, RecursionError):
            told["text"] = text
    except UnicodeDecodeError:
        pass  # the payload is there as base64
    return msgspec.json.encode(told).replace(b"\n", b" ") + b"\n"

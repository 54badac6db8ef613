"""``tailrace groups``: the consumer groups of a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tailrace.cli.names import complete, topic_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.text import quoted
from tailrace.cli.topics import print_json
from tailrace.errors import Invalid

if TYPE_CHECKING:
    from tailrace.client import Client

_GROUPS: Final = """
SELECT topic, group_id, partition_id, lag, in_flight, pending, delivered, redelivered, lost, consumers, updated_at
FROM system.topic_groups ORDER BY topic, group_id, partition_id"""

group_argument: Final = click.argument("group", shell_complete=complete("groups"))


@click.command("list")
@click.argument("topic", required=False, shell_complete=complete("topics"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per group, partition and line.")
@click.option("--watch", is_flag=True, help="Refresh the list until interrupted.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="With --watch: seconds between."
)
@server_options
def list_groups(topic: str | None, as_json: bool, watch: bool, interval: float, url: str, token: str | None) -> None:
    """List the consumer groups of TOPIC, or of all topics: lag, messages in flight, lost messages."""
    if as_json and watch:
        raise click.UsageError("--json and --watch exclude each other")
    with connect(url, token) as client:
        if watch:
            from tailrace.cli import topic_drawing

            topic_drawing.watch(lambda: _groups(client, topic), interval)
            return
        groups = _groups(client, topic)
    if as_json:
        print_json(groups)
    elif groups:
        from tailrace.cli import topic_drawing

        topic_drawing.show(topic_drawing.group_list(groups))
    else:
        click.echo("there are no groups; the first consume creates one: tailrace topics consume", err=True)


def _groups(client: Client, topic: str | None) -> list[dict[str, Any]]:
    if topic is None:
        return client.sql(_GROUPS.strip())[-1].rows
    described = client.describe_topic(topic)  # by name or alias, also for principals that may see no other topic
    return [{"topic": described["name"], **group} for group in ordered(described["groups"])]


def ordered(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups by name, and each by partition."""
    return sorted(groups, key=lambda group: (group["group_id"], group["partition_id"]))


@click.command()
@group_argument
@topic_argument
@click.option("--to", "start", required=True, metavar="OFFSET", help="earliest, latest, an offset or an ISO 8601 time.")
@click.option("--partition", type=click.IntRange(0), help="Move the group in this partition only.")
@server_options
def reset(group: str, topic: str, start: str, partition: int | None, url: str, token: str | None) -> None:
    """Move GROUP on TOPIC: it continues at another offset or time."""
    where = "" if partition is None else f" PARTITION {partition}"
    text = f"RESET CONSUMER GROUP {quoted(group, chr(39))} ON {quoted(topic)}{where} TO {_position(start)}"
    with connect(url, token) as client:
        click.echo(client.sql(text)[-1].message)


def _position(text: str) -> str:
    if text.lower() in ("earliest", "latest"):
        return text.upper()
    if text.isascii() and text.isdigit():
        return f"OFFSET {text}"
    if not text[:4].isdigit() or "'" in text:
        raise Invalid(f"--to {text!r} is not an offset; give earliest, latest, a number or an ISO 8601 time")
    return f"TIMESTAMP '{text}'"


@click.command()
@group_argument
@topic_argument
@server_options
def drop(group: str, topic: str, url: str, token: str | None) -> None:
    """Delete GROUP of TOPIC with its offsets. If it consumes again, it starts as a new group."""
    with connect(url, token) as client:
        click.echo(client.sql(f"DROP CONSUMER GROUP {quoted(group, chr(39))} ON {quoted(topic)}")[-1].message)

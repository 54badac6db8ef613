"""Topics and consumer groups as tables, for ``tailrace topics`` and ``tailrace groups``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli import drawing
from tailrace.cli.groups import ordered
from tailrace.cli.text import safe

Facts: TypeAlias = list[dict[str, Any]]
_PLAIN, _LAGGING, _LOST = "", "yellow", "bold red"


def _number(count: int, style: str = _PLAIN) -> Text:
    return Text(f"{count:,}", style=style if count else "dim")


def show(drawn: RenderableType) -> None:
    """Print a table to the terminal."""
    drawing.terminal().print(drawn)


def topic_list(topics: Facts) -> RenderableType:
    """One line per topic."""
    titles = ("topic", "alias", "partitions", "messages", "bytes", "groups", "lag")
    rows = [
        (
            Text(safe(each["name"])), Text(safe(each["alias"] or "")), _number(each["partitions"]),
            _number(each["messages"]), _number(each["bytes"]), _number(each["groups"]),
            _number(each["lag"], _LAGGING),
        )
        for each in topics
    ]  # fmt: skip
    return drawing.listed(titles, rows, titles[2:])


def description(topic: dict[str, Any]) -> RenderableType:
    """A topic with its settings, partitions, sources and groups."""
    settings = [
        (title, topic.get(field))
        for title, field in (
            ("alias", "alias"), ("partitions", "partitions"), ("retention, seconds", "retention_seconds"),
            ("retention, bytes per partition", "retention_max_bytes"), ("maximum attempts", "max_attempts"),
            ("dead-letter topic", "dead_letter"), ("created at", "created_at"), ("created by", "created_by"),
        )
    ]  # fmt: skip
    rows = [(Text(title), Text(safe(f"{value}"))) for title, value in settings if value is not None]
    named = drawing.titled(safe(topic["name"]), drawing.listed(("", ""), rows, header=False))
    parts: list[RenderableType] = [named]
    titles = ("partition", "first", "next", "messages", "bytes")
    partitions = [
        [
            Text(str(each["partition_id"])),
            *(_number(each[field]) for field in ("start_offset", "next_offset", "messages", "bytes")),
        ]
        for each in topic["partition_list"]
    ]
    parts.append(drawing.titled("partitions", drawing.listed(titles, partitions, titles)))
    if topic["routes"]:
        sources = [[Text(safe(text)) for text in _source(each)] for each in topic["routes"]]
        parts.append(drawing.titled("sources", drawing.listed(("table", "on", "payload", "where", "by"), sources)))
    if topic["groups"]:
        parts.append(drawing.titled("groups", group_list(ordered(topic["groups"]), topic=False)))
    return Group(*parts)


def _source(route: dict[str, Any]) -> tuple[str, ...]:
    return (
        route["table"], route["op"], route["payload_mode"], route.get("filter") or "", route.get("partition_by") or "",
    )  # fmt: skip


def group_list(groups: Facts, *, topic: bool = True) -> RenderableType:
    """One line per group and partition, with or without the topic."""
    titles = ("topic", "group", "partition", "lag", "in flight", "to redeliver", "delivered", "redelivered", "lost")
    rows = [
        (
            Text(safe(each.get("topic", ""))), Text(safe(each["group_id"])),
            Text(str(each["partition_id"])), _number(each["lag"], _LAGGING), _number(each["in_flight"]),
            _number(each["pending"]), _number(each["delivered"]), _number(each["redelivered"]),
            _number(each["lost"], _LOST),
        )
        for each in groups
    ]  # fmt: skip
    skip = 0 if topic else 1
    return drawing.listed(titles[skip:], [row[skip:] for row in rows], titles[2:])


def watch(fetch: Callable[[], Facts], interval_s: float) -> None:
    """Draw the groups repeatedly, until interrupted."""
    console = drawing.terminal()
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            groups = fetch()
            table = group_list(groups) if groups else Text("there are no groups yet")
            clock = Text(f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s; Ctrl-C ends\n", style="dim")
            live.update(Group(clock, table), refresh=True)
            time.sleep(interval_s)

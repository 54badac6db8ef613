"""Topics and their groups, drawn: what ``tailrace topics``, ``topic`` and ``groups`` show to people."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli import drawing
from tailrace.cli.text import safe
from tailrace.cli.topics import ordered

Found: TypeAlias = list[dict[str, Any]]
_CALM, _BEHIND, _WRONG = "", "yellow", "bold red"


def _number(count: int, style: str = _CALM) -> Text:
    return Text(f"{count:,}", style=style if count else "dim")


def show(drawn: RenderableType) -> None:
    """Draw it."""
    drawing.terminal().print(drawn)


def listed(found: Found) -> RenderableType:
    """Topics below each other."""
    titles = ("topic", "alias", "partitions", "messages", "bytes", "groups", "lag")
    rows = [
        (
            Text(safe(each["name"])), Text(safe(each["alias"] or "")), _number(each["partitions"]),
            _number(each["messages"]), _number(each["bytes"]), _number(each["groups"]),
            _number(each["lag"], _BEHIND),
        )
        for each in found
    ]  # fmt: skip
    return drawing.listed(titles, rows, titles[2:])


def described(found: dict[str, Any]) -> RenderableType:
    """All that there is to say of a topic."""
    settings = [
        (title, found.get(field))
        for title, field in (
            ("alias", "alias"), ("partitions", "partitions"), ("kept for, seconds", "retention_seconds"),
            ("kept, bytes of a partition", "retention_max_bytes"), ("attempts", "max_attempts"),
            ("dead letters go to topic", "dead_letter"), ("made at", "created_at"), ("made by", "created_by"),
        )
    ]  # fmt: skip
    rows = [(Text(title), Text(safe(f"{value}"))) for title, value in settings if value is not None]
    named = drawing.titled(safe(found["name"]), drawing.listed(("", ""), rows, header=False))
    parts: list[RenderableType] = [named]
    titles = ("partition", "first", "next", "messages", "bytes")
    partitions = [
        [
            Text(str(each["partition_id"])),
            *(_number(each[field]) for field in ("start_offset", "next_offset", "messages", "bytes")),
        ]
        for each in found["partition_list"]
    ]
    parts.append(drawing.titled("partitions", drawing.listed(titles, partitions, titles)))
    if found["routes"]:
        sources = [[Text(safe(text)) for text in _source(each)] for each in found["routes"]]
        parts.append(drawing.titled("sources", drawing.listed(("table", "on", "payload", "where", "by"), sources)))
    if found["groups"]:
        parts.append(drawing.titled("groups", groups(ordered(found["groups"]), topic=False)))
    return Group(*parts)


def _source(route: dict[str, Any]) -> tuple[str, ...]:
    return (
        route["table"], route["op"], route["payload_mode"], route.get("filter") or "", route.get("partition_by") or "",
    )  # fmt: skip


def groups(found: Found, *, topic: bool = True) -> RenderableType:
    """Groups below each other, with or without their topic."""
    titles = ("topic", "group", "partition", "lag", "in flight", "to redeliver", "delivered", "redelivered", "lost")
    rows = [
        (
            Text(safe(each.get("topic", ""))), Text(safe(each["group_id"])),
            Text(str(each["partition_id"])), _number(each["lag"], _BEHIND), _number(each["in_flight"]),
            _number(each["pending"]), _number(each["delivered"]), _number(each["redelivered"]),
            _number(each["lost"], _WRONG),
        )
        for each in found
    ]  # fmt: skip
    skip = 0 if topic else 1
    return drawing.listed(titles[skip:], [row[skip:] for row in rows], titles[2:])


def watch(find: Callable[[], Found], interval_s: float) -> None:
    """Draw the groups again and again, until interrupted."""
    console = drawing.terminal()
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            found = find()
            table = groups(found) if found else Text("there are no groups yet")
            clock = Text(f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s; Ctrl-C leaves\n", style="dim")
            live.update(Group(clock, table), refresh=True)
            time.sleep(interval_s)

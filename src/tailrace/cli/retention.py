"""``tailrace tables`` change-stream, retention, prune and cursors: how long the changes of a table are kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import msgspec

from tailrace.cli.names import table_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.tables import WIDE
from tailrace.errors import Invalid

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
StreamInfo = dict[str, Any]

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
_AGE: Final = re.compile(r"([0-9]{1,15})([smhdw]?)", re.ASCII)
_NONE: Final = "none"


def stream_options(command: Wrapped) -> Wrapped:
    """The options of every command here."""
    label = click.option("--label", help="An earlier stream of the table, by its label.")
    return label(server_options(command))


@click.command("change-stream")
@table_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@stream_options
def change_stream(table: str, as_json: bool, label: str | None, url: str, token: str | None) -> None:
    """Describe the change stream of TABLE: its records, its retention and its cursors."""
    with connect(url, token) as client:
        state = client.stream_info(table, label)
    if as_json:
        click.echo(msgspec.json.encode(state))
        return
    _draw(
        ("stream", "view", "oldest", "latest", "records", "bytes", "kept"),
        [
            [
                state["label"] + ("" if state["enabled"] else " (closed)"),
                state["view"],
                _number(state["oldest"]),
                _number(state["latest"]),
                f"{state['records']:,}",
                f"{state['bytes']:,}",
                _kept(state),
            ]
        ],
    )
    if state["cursors"]:
        click.echo()
        _draw_cursors(state["cursors"])


@click.command()
@table_argument
@click.option("--max-age", metavar="AGE", help="Keep changes this long: 90s, 30m, 12h, 7d, 2w; none: no limit.")
@click.option("--max-count", metavar="N", help="Keep at most this many changes; none: no limit.")
@click.option("--manual", is_flag=True, help="Keep changes until they are pruned.")
@stream_options
def retention(
    table: str, max_age: str | None, max_count: str | None, manual: bool, label: str | None, url: str,
    token: str | None,
) -> None:  # fmt: skip
    """Show how long the changes of TABLE are kept, after applying the options given."""
    if manual and (max_age is not None or max_count is not None):
        raise click.UsageError("--manual sets no limits: leave out --max-age and --max-count")
    limits: dict[str, int | None] = {"max_age_s": None, "max_count": None} if manual else {}
    if max_age is not None:
        limits["max_age_s"] = _seconds(max_age)
    if max_count is not None:
        limits["max_count"] = _count(max_count)
    with connect(url, token) as client:
        state = client.alter_retention(table, limits, label) if limits else client.stream_info(table, label)
    click.echo(f"{table}: changes are kept {_kept(state)}")


@click.command()
@table_argument
@click.option("--through", type=click.IntRange(0), required=True, metavar="SEQUENCE", help="The last one to remove.")
@stream_options
def prune(table: str, through: int, label: str | None, url: str, token: str | None) -> None:
    """Remove the changes of TABLE up to and including a sequence, from cold storage too, regardless of cursors; prints
    how many were removed."""
    with connect(url, token) as client:
        state = client.prune(table, through, label)
    if state["gone"]:
        left = "the stream was closed and is now deleted"
    elif state["oldest"] is None:
        left = "none is left"
    else:
        left = f"the oldest is now {state['oldest']}"
    click.echo(f"{table}: {state['pruned']:,} records removed; {left}")


@click.command()
@table_argument
@click.option("--save", metavar="NAME", help="Save a cursor that has processed everything up to --sequence.")
@click.option("--sequence", type=click.IntRange(0), metavar="N", help="With --save: the last sequence processed.")
@click.option("--hold-bytes", type=click.IntRange(0), metavar="N", help="With --save: bytes retained for it (1 GiB).")
@click.option("--drop", metavar="NAME", help="Delete a cursor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per cursor and line.")
@stream_options
def cursors(
    table: str, save: str | None, sequence: int | None, hold_bytes: int | None, drop: str | None, as_json: bool,
    label: str | None, url: str, token: str | None,
) -> None:  # fmt: skip
    """List the named cursors of TABLE's change stream with their lag; save or drop one."""
    if save is not None and drop is not None:
        raise click.UsageError("--save and --drop exclude each other")
    if (save is None) != (sequence is None):
        raise click.UsageError("--save needs --sequence, the last sequence that was processed, and the reverse")
    if hold_bytes is not None and save is None:
        raise click.UsageError("--hold-bytes needs --save")
    with connect(url, token) as client:
        if drop is not None:
            client.drop_cursor(table, drop, label)
            return
        if save is not None and sequence is not None:
            saved = [client.save_cursor(table, save, sequence, hold_bytes, label)]
        else:
            saved = client.cursors(table, label)
    if as_json:
        for each in saved:
            click.echo(msgspec.json.encode(each))
    elif saved:
        _draw_cursors(saved)
    else:
        click.echo(f"no cursors; save one with tailrace tables cursors {table} --save NAME --sequence N", err=True)


# -- text


def _seconds(text: str) -> int | None:
    if text == _NONE:
        return None
    match = _AGE.fullmatch(text)
    if match is None:
        raise Invalid(f"--max-age {text!r} is not an age: give a number with s, m, h, d or w, e.g. 7d, or {_NONE}")
    return int(match[1]) * _UNITS[match[2]]


def _count(text: str) -> int | None:
    if text == _NONE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(f"--max-count {text!r} is not a number of records; give one, or {_NONE}")
    return int(text)


def _kept(state: StreamInfo) -> str:
    age, count = state["max_age_s"], state["max_count"]
    bounds = []
    if age is not None:
        bounds.append(f"for {_age(age)}")
    if count is not None:
        bounds.append(f"at most {count:,}")
    return ", ".join(bounds) or "until pruned"


def _age(seconds: float) -> str:
    """An age in the largest unit that makes it whole, or in seconds."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]:g}{unit}"
    return f"{seconds:.12g}s"


def _number(sequence: int | None) -> str:
    return "–" if sequence is None else str(sequence)


def _draw_cursors(cursors: list[StreamInfo]) -> None:
    rows = []
    for each in cursors:
        lag = each["lag"]
        state = (
            f"cut off, {each['lost']:,} lost" if each["cut_off"] else f"{each['lost']:,} lost" if each["lost"] else ""
        )
        rows.append(
            [
                each["name"] if each["name"].isprintable() else ascii(each["name"]),
                str(each["sequence"]),
                f"{lag['records']:,}",
                f"{lag['bytes']:,}",
                f"{lag['age_s']:.1f}s",
                f"{each['hold_bytes']:,}",
                state,
            ]
        )
    _draw(("cursor", "sequence", "behind", "bytes", "age", "holds", ""), rows)


def _draw(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        words = column in ("stream", "view", "kept", "cursor", "")
        table.add_column(column, justify="left" if words else "right", no_wrap=not terminal)
    for row in rows:
        table.add_row(*row)
    Console(width=None if terminal else WIDE, markup=False, highlight=False).print(table)

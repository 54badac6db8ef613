"""Tables in the terminal.

Numbers are right-aligned, NULL is dim, and wide values are cut to the terminal; without a terminal nothing is cut. It
imports rich, which is slow: commands import this module when they draw.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tailrace.cli.text import Columns, Rows, numeric, plain, safe

WIDE: Final = 10_000  # columns of an output that is not a terminal: nothing is folded
CELL_CHARACTERS_MAX: Final = 2_000  # of a value in a table on a terminal; it is cut to the width anyway
COLUMN_WIDTH_MIN: Final = 12  # of a column of longer texts; with less room, rows are shown one value per line
GAP: Final = 3  # between two columns
LOOKED_AT: Final = 100  # rows that decide whether a table fits

NUMBER: Final = "bright_cyan"
NULL: Final = Text("NULL", style="dim italic")


def terminal(file: IO[str] | None = None) -> Console:
    """A console as wide as the terminal, or as wide as needed without one."""
    out = sys.stdout if file is None else file
    return Console(file=out, width=None if out.isatty() else WIDE, markup=False, highlight=False, emoji=False)


# -- values


def cell(value: Any, kind: str = "", *, lines: bool = False, characters_max: int | None = None) -> Text:
    """A value as the cell of a table."""
    if value is None:
        return NULL
    text = plain(value, kind)
    if characters_max is not None and len(text) > characters_max:
        text = text[:characters_max] + "…"
    return Text(safe(text, lines=lines), style=NUMBER if numeric(kind) else "")


# -- tables


def grid(columns: Columns, rows: Rows, width: int | None = None) -> Table:
    """A table of rows. With a `width`, text is cut to fit; numbers never are: a part of a number is another number."""
    bound = None if width is None else CELL_CHARACTERS_MAX
    drawn = [[cell(row.get(name), kind, characters_max=bound) for name, kind in columns] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    heads = [Text(safe(name)) for name, _ in columns]
    natural = [max(each.cell_len for each in (head, *cells)) for head, *cells in zip(heads, *drawn, strict=True)]
    kept = natural if width is None else cut(natural, [numeric(kind) for _, kind in columns], width)
    for head, (_, kind), wide in zip(heads, columns, kept, strict=True):
        side: JustifyMethod = "right" if numeric(kind) else "left"
        table.add_column(head, justify=side, no_wrap=True, overflow="ellipsis", width=wide)
    for cells in drawn:
        table.add_row(*cells)
    return table


def cut(natural: Sequence[int], whole: Sequence[bool], width: int) -> list[int]:
    """The widths of columns in a terminal: the widest columns that need not be `whole` are cut to one width."""
    left = width - GAP * (len(natural) - 1)
    low, high = 1, max(natural, default=1)
    while low < high:  # the widest that all of them can have
        middle = (low + high + 1) // 2
        if sum(_cut(natural, whole, middle)) <= left:
            low = middle
        else:
            high = middle - 1
    return _cut(natural, whole, low)


def _cut(natural: Sequence[int], whole: Sequence[bool], most: int) -> list[int]:
    return [each if keep else min(each, most) for each, keep in zip(natural, whole, strict=True)]


def records(columns: Columns, rows: Rows, first: int = 1) -> Iterable[RenderableType]:
    """Each row with one line (or more) per value: `\\x`."""
    for number, row in enumerate(rows, start=first):
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, kind in columns:
            table.add_row(Text(safe(name)), cell(row.get(name), kind, lines=True))
        yield Text(f"─── row {number} ───", style="dim")
        yield table


def fits(columns: Columns, rows: Rows, width: int) -> bool:
    """Whether a table of this width is readable: numbers are whole, and texts have a readable beginning."""
    wanted = [
        max([len(name), *(len(plain(row.get(name), kind)) for row in rows[:LOOKED_AT])]) for name, kind in columns
    ]
    least = _cut(wanted, [numeric(kind) for _, kind in columns], COLUMN_WIDTH_MIN)
    return sum(least) + GAP * (len(least) - 1) <= width


def listed(
    titles: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    right: Iterable[str] = (),
    *,
    header: bool = True,
) -> Table:
    """A list: titles in bold, the columns in `right` right-aligned."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), show_header=header)
    numbers = set(right)
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def titled(title: str, inner: RenderableType) -> Group:
    """A titled part of a longer output."""
    return Group(Text(title, style="bold"), Padding(inner, (0, 0, 1, 2), expand=False))

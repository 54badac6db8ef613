"""Splits an SQL text into statements: where each begins, and whether it has ended.

Statements are sent one by one, so a line and column in an error are relative to one statement; here they become a
location in the whole text. Nothing is validated: that is the server's work.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.cli.text import safe
from tailrace.errors import Error
from tailrace.sql.error import secret

# A text with quotes inside it, 'it''s', is several parts: 'it' and 's'.
_PART: Final = re.compile(
    r"""
      (?P<blank> \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | (?P<rest> '[^']*' | "[^"]*" | [^\s;'"/-]+ )
    | (?P<open> /\* | ' | " )
    | (?P<sign> . )
    """,
    re.X | re.S,
)
LINE_WIDTH: Final = 120  # of the line that an error shows, without a terminal
_PLACED: Final = re.compile(r"line (\d+), column (\d+): ")


class SourceStatement(NamedTuple):
    """One statement without its semicolon. `start` is where it begins in the text."""

    text: str
    start: int
    ended: bool  # by a semicolon


def statements(text: str) -> list[SourceStatement]:
    """The statements of a text, without the white space and comments before them."""
    found: list[SourceStatement] = []
    begins: int | None = None
    ends = 0
    for part in _PART.finditer(text):
        kind = part.lastgroup
        if kind == "blank":
            continue
        if kind == "end":
            if begins is not None:
                found.append(SourceStatement(text[begins:ends], begins, True))
            begins = None
            continue
        if begins is None:
            begins = part.start()
        if kind == "open":  # a text, name or comment without an end: all that follows is in it
            return [*found, SourceStatement(text[begins:], begins, False)]
        ends = part.end()
    if begins is not None:
        found.append(SourceStatement(text[begins:ends], begins, False))
    return found


def complete(text: str) -> bool:
    """Whether the last statement has ended with a semicolon."""
    found = statements(text)
    return not found or found[-1].ended


class StatementError(NamedTuple):
    """An error of a statement. Line and column count from 1, in the whole text; None: it has no location there."""

    message: str
    line: int | None
    column: int | None
    shown: str  # the line with a caret below the column; empty where it may hold a password, or has no location

    def text(self, source: str | None = None) -> str:
        """The error with its location, and the name of the file."""
        if self.line is None:
            head = self.message if source is None else f"{source}: {self.message}"
        elif source is None:
            head = f"line {self.line}, column {self.column}: {self.message}"
        else:
            head = f"{source}:{self.line}:{self.column}: {self.message}"
        return f"{head}\n{self.shown}" if self.shown else head


def located(text: str, statement: SourceStatement, error: Error, width: int = LINE_WIDTH) -> StatementError:
    """An error of a statement with its location in the whole text; the line is cut to a terminal's width."""
    message = str(error)
    line, column = getattr(error, "line", None), getattr(error, "column", None)
    placed = _PLACED.match(message)
    if placed is not None:
        line, column = int(placed[1]), int(placed[2])
        # The server shows the line too, but it knows one statement only.
        message = message[placed.end() :].partition("\n")[0]
    if not isinstance(line, int) or not isinstance(column, int):
        return StatementError(message, None, None, "")
    at = min(_at(statement.text, line, column), len(statement.text)) + statement.start
    shown = "" if secret(statement.text) else pointed(text, at, width)
    return StatementError(message, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at), shown)


def pointed(text: str, at: int, width: int = LINE_WIDTH) -> str:
    """The line of a character, or as much around it as the width takes, and a caret below the character."""
    from rich.cells import cell_len  # which characters take two columns; only a mistake needs it

    begins = text.rfind("\n", 0, at) + 1
    ends = text.find("\n", at)
    line = text[begins:] if ends < 0 else text[begins:ends]
    column = at - begins
    room = max(width - 4, 10)  # for the margin, and the marks of what was cut
    first = max(0, column - room // 2) if len(line) > room else 0
    before = ("…" if first else "") + safe(line[first:column])
    after = safe(line[column : first + room]) + ("…" if first + room < len(line) else "")
    return f"  {before}{after}\n  {' ' * cell_len(before)}^"


def _at(text: str, line: int, column: int) -> int:
    """The index of a line and column."""
    begins = 0
    for _ in range(line - 1):
        newline = text.find("\n", begins)
        if newline < 0:
            break
        begins = newline + 1
    return begins + column - 1

"""What is wrong with a statement's text, and where: line and column count from 1, in characters.

A statement about users may hold a password, so nothing of such a text is ever shown: its errors say where and what was
wanted, and no more.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.errors import Error, Invalid
from tailrace.sql.result import Result

LINE_CHARACTERS_MAX: Final = 120  # of the line that an error shows
FOUND_CHARACTERS_MAX: Final = 60  # of what it found there

# A statement that is about users, or something like "password", also where it is misspelt; in lower case. Nothing is
# taken twice, and each pattern begins with a letter or sign that is found quickly: the text may be long.
_USERS: Final = re.compile(r";\s*+(?!(?:update|describe|desc|ack|nack|extend)\b)(?:\w++\s++)?user\b")
_PASSWORD: Final = re.compile(r"p(?<!\wp)(?:as+w|ass\b|wd\b)")
_COMMENT: Final = r"--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)"
# A text may hold what looks like a comment, and a comment what looks like a text. Where SQL is wrong, nobody can tell
# which it is.
_COMMENTS: Final = re.compile(_COMMENT)
_TEXTS_AND_COMMENTS: Final = re.compile(rf"'[^']*+'|\"[^\"]*+\"|{_COMMENT}")


class SqlError(Invalid):
    """A text that is not SQL as it is spoken here. `done` are the results of the statements before it."""

    code = "SQL_SYNTAX"

    def __init__(self, message: str, *, line: int, column: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.line = line
        self.column = column
        self.done: list[Result] = []


def secret(text: str) -> bool:
    """Whether the text may hold a password."""
    lowered = f";{text.lower()}"
    if _PASSWORD.search(lowered):
        return True
    if "user" not in lowered:
        return False
    return bool(
        _USERS.search(lowered)
        or _USERS.search(_COMMENTS.sub(" ", lowered))
        or _USERS.search(_TEXTS_AND_COMMENTS.sub(" ", lowered))
    )


def place(text: str, at: int) -> tuple[int, int]:
    """The line and the column of a character."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def place_at(text: str, line: int, column: int) -> int:
    """The character at a line and a column; the nearest one if there is none there."""
    begins = 0
    for _ in range(line - 1):
        begins = text.find("\n", begins) + 1
        if begins == 0:
            return len(text)
    return min(begins + column - 1, len(text))


def wrong(text: str, at: int, what: str, *, code: str | None = None) -> SqlError:
    """The error that `what` is wrong at a character of the text; it shows the line, unless that may be a secret."""
    line, column = place(text, at)
    message = f"line {line}, column {column}: {what}"
    if not secret(text):
        message += f"\n{excerpt(text, at)}"
    return SqlError(message, line=line, column=column, code=code)


def excerpt(text: str, at: int) -> str:
    """The line of a character, or what is around it, and a caret below the character."""
    begins = text.rfind("\n", 0, at) + 1
    ends = text.find("\n", at)
    ends = len(text) if ends < 0 else ends
    before, after = "", ""
    if at - begins > LINE_CHARACTERS_MAX // 2:
        begins, before = at - LINE_CHARACTERS_MAX // 2, "…"
    if ends - begins > LINE_CHARACTERS_MAX:
        ends, after = begins + LINE_CHARACTERS_MAX, "…"
    shown = before + "".join(" " if not each.isprintable() else each for each in text[begins:ends]) + after
    return f"  {shown}\n  {' ' * (at - begins + len(before))}^"


def mark(error: Error, done: list[Result], line: int, column: int) -> None:
    """Let an error carry the results of the statements before it, and where its statement or expression begins."""
    carried = vars(error)
    carried["done"] = done
    carried.setdefault("line", line)
    carried.setdefault("column", column)


def marked(error: Error) -> tuple[list[Result], int | None, int | None]:
    """What `mark` left on an error: results, line, column."""
    carried = vars(error)
    return carried.get("done", []), carried.get("line"), carried.get("column")

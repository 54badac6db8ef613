"""SQL errors and their location: line and column count from 1, in characters.

A statement about users may contain a password, so errors never quote such a text: they have the location and what was
expected, and no more.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.errors import Error, Invalid
from tailrace.sql.result import Result

LINE_CHARACTERS_MAX: Final = 120  # of the line quoted in an error
FOUND_CHARACTERS_MAX: Final = 60  # of the token quoted in an error

# Statements about users, and words like "password", also misspelt; in lower case. The text may be long: each pattern
# begins with a letter or sign that is found quickly, and what follows a repetition is never part of it.
_USERS: Final = re.compile(r";\s*(?!(?:update|describe|desc|ack|nack|extend)\b)(?:\w+\s+)?user\b")
_PASSWORD: Final = re.compile(r"p(?<!\wp)(?:as+w|ass\b|wd\b)")
_COMMENT: Final = r"--[^\n]*|/\*(?s:.*?)(?:\*/|\Z)"
# A string may contain text that looks like a comment, and vice versa. Where the SQL is invalid, the two are
# indistinguishable.
_COMMENTS: Final = re.compile(_COMMENT)
_TEXTS_AND_COMMENTS: Final = re.compile(rf"'[^']*'|\"[^\"]*\"|{_COMMENT}")


class SqlError(Invalid):
    """A text that is not valid SQL. `done` holds the results of the statements before it."""

    code = "SQL_SYNTAX"

    def __init__(self, message: str, *, line: int, column: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.line = line
        self.column = column
        self.done: list[Result] = []


def secret(text: str) -> bool:
    """Whether the text may contain a password."""
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


def line_column(text: str, at: int) -> tuple[int, int]:
    """The line and the column of a character."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def character_at(text: str, line: int, column: int) -> int:
    """The index of the character at a line and a column, or of the nearest one."""
    begins = 0
    for _ in range(line - 1):
        begins = text.find("\n", begins) + 1
        if begins == 0:
            return len(text)
    return min(begins + column - 1, len(text))


def syntax_error(text: str, at: int, what: str, *, code: str | None = None) -> SqlError:
    """The error `what` at a character of the text; it quotes the line, unless the text may contain a password."""
    line, column = line_column(text, at)
    message = f"line {line}, column {column}: {what}"
    if not secret(text):
        message += f"\n{excerpt(text, at)}"
    return SqlError(message, line=line, column=column, code=code)


def excerpt(text: str, at: int) -> str:
    """The line of a character, shortened if long, and a caret below the character."""
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
    """Attach to an error the results of the statements before it, and where its statement or expression begins."""
    carried = vars(error)
    carried["done"] = done
    carried.setdefault("line", line)
    carried.setdefault("column", column)


def marked(error: Error) -> tuple[list[Result], int | None, int | None]:
    """The results, line and column that `mark` attached to an error."""
    carried = vars(error)
    return carried.get("done", []), carried.get("line"), carried.get("column")

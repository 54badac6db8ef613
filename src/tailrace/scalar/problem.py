"""Errors of expressions and their location.

Lines and columns count from 1 and refer to the text that the user wrote: the compiler of a part of a longer text gets
the origin of that part.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import ErrorLevel, exp

from tailrace.errors import Invalid


class ExpressionError(Invalid):
    """An invalid or unsupported expression. `reason` is the message without the location."""

    code = "INVALID_EXPRESSION"

    def __init__(self, reason: str, *, line: int, column: int, code: str | None = None) -> None:
        super().__init__(f"{reason} (line {line}, column {column})", code=code)
        self.reason = reason
        self.line = line
        self.column = column


class TextOrigin:
    """The location of an expression's text within the text that the user wrote."""

    __slots__ = ("column", "line")

    def __init__(self, line: int = 1, column: int = 1) -> None:
        self.line = line
        self.column = column

    def error(self, reason: str, line: int, column: int, code: str | None = None) -> ExpressionError:
        """The error at this line and column of the expression's text."""
        if line == 1:
            column += self.column - 1
        return ExpressionError(reason, line=line + self.line - 1, column=column, code=code)

    def error_at(self, reason: str, node: exp.Expr, code: str | None = None) -> ExpressionError:
        """The error at the beginning of a node."""
        return self.error(reason, *location(node), code=code)


def location(node: exp.Expr) -> tuple[int, int]:
    """The line and column where a node begins, or the nearest enclosing node with a known location."""
    around: exp.Expr | None = node
    while around is not None:
        first = min(_locations(around), default=None)
        if first is not None:
            return first
        around = around.parent
    return 1, 1


def _locations(node: exp.Expr) -> Iterator[tuple[int, int]]:
    for part in node.walk():
        meta = part.meta
        if "line" in meta and "col" in meta:
            # sqlglot records the column of a token's last character.
            yield meta["line"], max(1, meta["col"] - (meta["end"] - meta["start"]))


def shown(node: exp.Expr) -> str:
    """The node as SQL, for an error. Nodes that sqlglot can parse but not generate are shown by their type."""
    try:
        return node.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE)
    except Exception:
        return node.key.upper()

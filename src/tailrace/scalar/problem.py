"""What is wrong with an expression, and where.

Places are lines and columns from 1, of the text that the user wrote: whoever compiles a part of a longer text says
where that part begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import ErrorLevel, exp

from tailrace.errors import Invalid


class ExpressionError(Invalid):
    """An expression that cannot be taken. `reason` says why, without the place."""

    code = "INVALID_EXPRESSION"

    def __init__(self, reason: str, *, line: int, column: int, code: str | None = None) -> None:
        super().__init__(f"{reason} (line {line}, column {column})", code=code)
        self.reason = reason
        self.line = line
        self.column = column


class Origin:
    """Where a text begins within the text that the user wrote."""

    __slots__ = ("column", "line")

    def __init__(self, line: int = 1, column: int = 1) -> None:
        self.line = line
        self.column = column

    def error(self, reason: str, line: int, column: int, code: str | None = None) -> ExpressionError:
        """The error at this place of the text."""
        if line == 1:
            column += self.column - 1
        return ExpressionError(reason, line=line + self.line - 1, column=column, code=code)

    def error_at(self, reason: str, node: exp.Expr, code: str | None = None) -> ExpressionError:
        """The error at the beginning of what `node` was read from."""
        return self.error(reason, *place(node), code=code)


def place(node: exp.Expr) -> tuple[int, int]:
    """The line and column where a node begins; of the nearest node around it that knows, if its own parts do not."""
    around: exp.Expr | None = node
    while around is not None:
        found = min(_places(around), default=None)
        if found is not None:
            return found
        around = around.parent
    return 1, 1


def _places(node: exp.Expr) -> Iterator[tuple[int, int]]:
    for part in node.walk():
        meta = part.meta
        if "line" in meta and "col" in meta:
            # The parser notes the column of a token's last character.
            yield meta["line"], max(1, meta["col"] - (meta["end"] - meta["start"]))


def shown(node: exp.Expr) -> str:
    """The node as SQL, for an error. sqlglot reads some things that it cannot write: those are named by their kind."""
    try:
        return node.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE)
    except Exception:
        return node.key.upper()

"""Running SQL: a text of statements in, a result for each out.

Each statement is a transaction of its own. All of them are read before the first is run. The first that fails stops the
run: its error carries `done`, the results of those before it, and the `line` and `column` of what is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace import limits
from tailrace.access import SYSTEM
from tailrace.errors import Error, Invalid, TooLarge
from tailrace.scalar.problem import ExpressionError
from tailrace.sql import statements as ast
from tailrace.sql import table_statements, topic_statements, user_statements, view_statements
from tailrace.sql.error import SqlError, excerpt, mark, marked, place_at, secret
from tailrace.sql.parser import parse
from tailrace.sql.result import ColumnInfo, Execute, Result

if TYPE_CHECKING:
    from tailrace.sql.selected import Selection

__all__ = ["ColumnInfo", "Execute", "Result", "Session", "SqlError", "marked", "selects"]

_RUN: Final = {**topic_statements.RUN, **table_statements.RUN, **user_statements.RUN, **view_statements.RUN}


class Session:
    """Runs SQL for whoever `execute` runs commands for. Blocks; not for an event loop's thread. Once `halted` is set,
    a SELECT that runs ends with an error."""

    def __init__(
        self,
        execute: Execute,
        halted: threading.Event | None = None,
        *,
        arrow: bool = False,
        caller: str = SYSTEM.name,
    ) -> None:
        """`arrow`: the answer to a SELECT is a `Selection`, whose rows are still in Arrow. `caller`: what current_user
        says."""
        self._execute = execute
        self._halted = halted
        self._arrow = arrow
        self._caller = caller

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Result]:
        """The result of each statement, in order."""
        return self.carry_out(text, self.read(text, params))

    def read(self, text: str, params: Sequence[Any] = ()) -> list[ast.Statement]:
        """The statements of a text, none of them run."""
        if not isinstance(text, str):
            raise Invalid(f"SQL is a text, not {type(text).__name__}")
        if isinstance(params, str | bytes) or not isinstance(params, Sequence):
            raise Invalid(f"parameters are a list of values, not {type(params).__name__}", code="SQL_PARAMETERS")
        return parse(text, params)

    def carry_out(self, text: str, statements: Sequence[ast.Statement]) -> list[Result]:
        """The result of each of these statements, which were read from the text."""
        done: list[Result] = []
        left = limits.SELECT_RESULT_BYTES_MAX if self._arrow else limits.SELECT_ROWS_BYTES_MAX
        for statement in statements:
            try:
                if not isinstance(statement, ast.Select):
                    done.append(_RUN[type(statement)](self._execute, statement))
                    continue
                found = self._select(statement)
                left -= found.selected.bytes if self._arrow else found.selected.rows_bytes
                if left < 0 and done:
                    raise TooLarge(
                        "the results of the statements in one text are too large together; send fewer statements at a "
                        "time, or use LIMIT",
                        code="SELECT_TOO_LARGE",
                    )
                done.append(found if self._arrow else found.with_rows())
            except ExpressionError as error:
                told = _told(text, error)
                mark(told, done, error.line, error.column)
                raise told from None
            except Error as error:
                mark(error, done, statement.line, statement.column)
                raise
        return done

    def _select(self, statement: ast.Select) -> Selection:
        from tailrace.sql import select, sources  # what they need takes long to import, and few ask

        budget = sources.Budget(halted=self._halted)
        place = statement.line, statement.column
        return select.selection(self._execute, statement.text, statement.params, budget, *place, self._caller)


def selects(statements: Sequence[ast.Statement]) -> bool:
    """Whether one of them is a SELECT, which may take its time."""
    return any(isinstance(each, ast.Select) for each in statements)


def _told(text: str, error: ExpressionError) -> SqlError:
    """An expression's error, told like those of the statement around it."""
    message = f"line {error.line}, column {error.column}: {error.reason}"
    if not secret(text):
        message += f"\n{excerpt(text, place_at(text, error.line, error.column))}"
    return SqlError(message, line=error.line, column=error.column, code=error.code)

"""Running SQL: a text of statements in, a result for each out.

Each statement is a transaction of its own. All of them are read before the first is run. The first that fails stops the
run: its error carries `done`, the results of those before it, and the `line` and `column` of what is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from tailrace.errors import Error, Invalid
from tailrace.scalar.problem import ExpressionError
from tailrace.sql import statements as ast
from tailrace.sql import table_statements, topic_statements, user_statements, view_statements
from tailrace.sql.error import SqlError, excerpt, mark, marked, place_at, secret
from tailrace.sql.parser import parse
from tailrace.sql.result import ColumnInfo, Execute, Result

__all__ = ["ColumnInfo", "Execute", "Result", "Session", "SqlError", "marked", "selects"]

_RUN: Final = {**topic_statements.RUN, **table_statements.RUN, **user_statements.RUN, **view_statements.RUN}


class Session:
    """Runs SQL for whoever `execute` runs commands for. Blocks; not for an event loop's thread. Once `halted` is set,
    a SELECT that runs ends with an error."""

    def __init__(self, execute: Execute, halted: threading.Event | None = None) -> None:
        self._execute = execute
        self._halted = halted

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
        for statement in statements:
            try:
                done.append(self._one(statement))
            except ExpressionError as error:
                told = _told(text, error)
                mark(told, done, error.line, error.column)
                raise told from None
            except Error as error:
                mark(error, done, statement.line, statement.column)
                raise
        return done

    def _one(self, statement: ast.Statement) -> Result:
        if isinstance(statement, ast.Select):
            from tailrace.sql.select import select  # what it needs takes long to import, and few ask

            place = statement.line, statement.column
            return select(self._execute, statement.text, statement.params, *place, self._halted)
        return _RUN[type(statement)](self._execute, statement)


def selects(statements: Sequence[ast.Statement]) -> bool:
    """Whether one of them is a SELECT, which may take its time."""
    return any(isinstance(each, ast.Select) for each in statements)


def _told(text: str, error: ExpressionError) -> SqlError:
    """An expression's error, told like those of the statement around it."""
    message = f"line {error.line}, column {error.column}: {error.reason}"
    if not secret(text):
        message += f"\n{excerpt(text, place_at(text, error.line, error.column))}"
    return SqlError(message, line=error.line, column=error.column, code=error.code)

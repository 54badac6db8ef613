"""Running SQL: takes a text of statements and returns a result for each.

Each statement is its own transaction, except between BEGIN and COMMIT (`transactions.py`). All statements are parsed
before the first one runs. The first that fails stops the run: its error carries `done`, the results of the statements
before it, and the `line` and `column` of the problem.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace import extras, limits
from tailrace.access import SYSTEM
from tailrace.errors import Error, Invalid, TableNotFound, TooLarge
from tailrace.scalar.problem import ExpressionError
from tailrace.sql import schema_statements, table_statements, topic_statements, user_statements, view_statements
from tailrace.sql import statements as ast
from tailrace.sql.commands import AllTables
from tailrace.sql.error import SqlError, character_at, excerpt, mark, marked, secret
from tailrace.sql.parser import parse
from tailrace.sql.result import ColumnInfo, Execute, Result
from tailrace.sql.transactions import SqlTransaction, TransactionSession

if TYPE_CHECKING:
    from tailrace.sql.selected import ArrowResult

__all__ = ["ColumnInfo", "Execute", "Result", "Session", "SqlError", "marked", "selects"]

SUGGESTION_PAGES_MAX: Final = 10  # of tables, in which a misspelt name is looked for
_RUN: Final = {
    **topic_statements.RUN,
    **table_statements.RUN,
    **schema_statements.RUN,
    **user_statements.RUN,
    **view_statements.RUN,
}


class Session:
    """Runs SQL with the permissions of `execute`. Blocks, so it must not run on an event loop's thread. When `halted`
    is set, a running SELECT ends with an error."""

    def __init__(
        self,
        execute: Execute,
        halted: threading.Event | None = None,
        *,
        arrow: bool = False,
        caller: str = SYSTEM.name,
    ) -> None:
        """`arrow`: a SELECT returns an `ArrowResult`, whose rows are still in Arrow. `caller`: the value of
        current_user."""
        self._transactions = TransactionSession(execute)
        self._execute = self._transactions.execute
        self._halted = halted
        self._arrow = arrow
        self._caller = caller

    @property
    def transaction(self) -> SqlTransaction | None:
        """The transaction that is open: it spans texts, until COMMIT or ROLLBACK."""
        return self._transactions.open

    def resume(self, transaction: SqlTransaction | None) -> None:
        """Continue a transaction of another session."""
        self._transactions.open = transaction

    def check_ended(self) -> None:
        """Raise if a transaction is open, which is rolled back: the session ends."""
        self._transactions.check_ended()

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Result]:
        """The result of each statement, in order."""
        return self.run_statements(text, self.parse(text, params))

    def parse(self, text: str, params: Sequence[Any] = ()) -> list[ast.Statement]:
        """The statements of a text, parsed but not run."""
        if not isinstance(text, str):
            raise Invalid(f"SQL must be a text, not {type(text).__name__}")
        if isinstance(params, str | bytes) or not isinstance(params, Sequence):
            raise Invalid(f"parameters must be a list of values, not {type(params).__name__}", code="SQL_PARAMETERS")
        return parse(text, params)

    def run_statements(self, text: str, statements: Sequence[ast.Statement]) -> list[Result]:
        """The result of each of these statements, which were parsed from the text."""
        done: list[Result] = []
        left = limits.SELECT_RESULT_BYTES_MAX if self._arrow else limits.SELECT_ROWS_BYTES_MAX
        for statement in statements:
            try:
                controlled = self._transactions.control(statement)
                if controlled is not None:
                    done.append(controlled)
                    continue
                if not isinstance(statement, ast.SelectStatement):
                    done.append(_RUN[type(statement)](self._execute, statement))
                    continue
                result = self._select(statement)
                left -= result.selected.bytes if self._arrow else result.selected.rows_bytes
                if left < 0 and done:
                    raise TooLarge(
                        "the combined results of the statements in one text are too large; send fewer statements at a "
                        "time, or use LIMIT",
                        code="SELECT_TOO_LARGE",
                    )
                done.append(result if self._arrow else result.with_rows())
            except ExpressionError as error:
                self._transactions.fail()
                sql_error = _sql_error(text, error)
                mark(sql_error, done, error.line, error.column)
                raise sql_error from None
            except Error as error:
                self._transactions.fail()
                if isinstance(error, TableNotFound):
                    self._suggest(error)
                mark(error, done, statement.line, statement.column)
                raise
        return done

    def _suggest(self, error: TableNotFound) -> None:
        """Name the table that differs only in case, to those who may list tables."""
        after: str | None = None
        try:
            for _ in range(SUGGESTION_PAGES_MAX):
                names = [each.definition.name for each in self._execute(AllTables(after))]
                alike = [name for name in names if name.lower() == error.name.lower()]
                if alike:
                    error.args = (
                        f"there is no table {error.name!r}; did you mean {alike[0]!r}? Names of tables are "
                        "case-sensitive",
                    )
                if alike or not names:
                    return
                after = names[-1]
        except Error:  # the caller gets the error as it is
            return

    def _select(self, statement: ast.SelectStatement) -> ArrowResult:
        extras.require("sql")
        from tailrace.sql import select, sources  # slow to import, and not needed by most programs

        budget = sources.ReadBudget(halted=self._halted)
        location = statement.line, statement.column
        return select.selection(self._execute, statement.text, statement.params, budget, *location, self._caller)


def selects(statements: Sequence[ast.Statement]) -> bool:
    """Whether one of the statements may take long: a SELECT, or one that may have to search the whole table."""
    return any(map(_searches, statements))


def _searches(statement: ast.Statement) -> bool:
    if isinstance(statement, ast.InsertStatement):
        return statement.select is not None
    if isinstance(statement, ast.UpdateStatement | ast.DeleteStatement):
        return any(each.column is None for each in statement.where)  # else it is most likely the key
    return isinstance(statement, ast.SelectStatement | ast.ExplainStatement | ast.TruncateStatement)


def _sql_error(text: str, error: ExpressionError) -> SqlError:
    """An expression's error in the form of a statement's error."""
    message = f"line {error.line}, column {error.column}: {error.reason}"
    if not secret(text):
        message += f"\n{excerpt(text, character_at(text, error.line, error.column))}"
    return SqlError(message, line=error.line, column=error.column, code=error.code)

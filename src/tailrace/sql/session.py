"""Running SQL: takes a text of statements and returns a result for each.

Each statement is its own transaction, except between BEGIN and COMMIT (`transactions.py`). All statements are parsed
before the first one runs. The first that fails stops the run: its error carries `done`, the results of the statements
before it, and the `line` and `column` of the problem.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from tailrace import extras, limits
from tailrace.access import SYSTEM, Access
from tailrace.command import Command, Query
from tailrace.errors import Error, Forbidden, Invalid, NotFound, TooLarge
from tailrace.scalar.problem import ExpressionError
from tailrace.sql import names, schema_statements, table_statements, topic_statements, user_statements, view_statements
from tailrace.sql import statements as ast
from tailrace.sql.error import SqlError, character_at, excerpt, mark, marked, secret
from tailrace.sql.parser import parse
from tailrace.sql.result import ColumnInfo, Execute, Result
from tailrace.sql.transactions import SqlTransaction, TransactionSession

if TYPE_CHECKING:
    from tailrace.sql.selected import ArrowResult

__all__ = ["ColumnInfo", "Execute", "Result", "Session", "SqlError", "marked", "selects"]

T = TypeVar("T")
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
        access: Access | None = None,
    ) -> None:
        """`arrow`: a SELECT returns an `ArrowResult`, whose rows are still in Arrow. `caller`: the value of
        current_user. `access`: the caller's grant, within which names are looked up in any case."""
        self._transactions = TransactionSession(execute)
        self._outside = execute
        self._access = access
        self._wrote = False  # whether the statement that runs has written something
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
                    done.append(self._run(statement))
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
                mark(error, done, statement.line, statement.column)
                raise
        return done

    def _run(self, statement: ast.Statement) -> Result:
        """Run a statement other than SELECT, whose names may be in any case."""
        self._wrote = False
        statement = names.checked_new(self._execute, statement)
        result: Result | None = None
        failed: Error | None = None
        try:
            result = _RUN[type(statement)](self._execute, statement)
            if not names.found_nothing(statement, result):
                return result
        except (NotFound, Forbidden) as error:
            if self._wrote:  # it has begun: what it wrote to was dropped meanwhile
                raise
            failed = error
        again = names.renamed(self._execute, statement)
        if again is not None:
            return _RUN[type(again)](self._execute, again)
        if failed is not None:
            raise failed
        assert result is not None
        return result

    def _execute(self, request: Command[T] | Query[T], /) -> T:
        if isinstance(request, names.FindAlike):  # names are no part of a transaction
            return cast(T, self._outside(msgspec.structs.replace(request, access=self._access)))
        result = self._transactions.execute(request)
        self._wrote = self._wrote or isinstance(request, Command)
        return result

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

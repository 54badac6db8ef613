"""Where the command line runs SQL: on a server, or embedded on a directory that no server has open.

Both give the same results and raise the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tailrace.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from tailrace.client import Client
    from tailrace.sql.result import Result


class StatementResult(msgspec.Struct):
    """The result of one statement. Without columns it has no rows, and `message` says what it did."""

    statement: str
    columns: list[tuple[str, str]] = []  # names and SQL types
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    message: str = ""
    facts: dict[str, Any] = {}


class SqlSession(Protocol):
    """Runs SQL."""

    name: str
    user: str | None  # who is authenticated, where that is known

    def run(self, text: str, params: Sequence[Any] = ()) -> list[StatementResult]:
        """The result of each statement; raises the first error. A transaction may span several calls."""

    def look(self, text: str) -> list[StatementResult]:
        """The same, outside of the transaction that is open."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def close(self) -> None: ...


class RemoteSession:
    """Runs SQL on a server."""

    def __init__(self, client: Client, url: str, user: str | None = None) -> None:
        from tailrace.client.sql_session import SqlClientSession

        self._client = client
        self._session = SqlClientSession()
        self.name = url
        self.user = user

    def run(self, text: str, params: Sequence[Any] = ()) -> list[StatementResult]:
        return [_result(each) for each in self._client.sql(text, params, session=self._session)]

    def look(self, text: str) -> list[StatementResult]:
        return [_result(each) for each in self._client.sql(text)]

    @property
    def in_transaction(self) -> bool:
        return bool(self._session.transaction)

    def close(self) -> None:
        self._client.close()


class EmbeddedSession:
    """Runs SQL on a directory, which this process has open meanwhile."""

    user: str | None = None

    def __init__(self, directory: str) -> None:
        import tailrace  # imports the database, which a client does without
        from tailrace.sql.session import Session

        if not Path(directory).is_dir():
            raise NotFound(f"there is no database in {directory!r}; give its directory, or a server with --url")
        try:
            self._db = tailrace.open(directory)
        except Unavailable as error:
            if error.code != "DATABASE_IN_USE":
                raise
            raise Unavailable(
                f"a server has {directory!r} open; connect to it: --url http://127.0.0.1:4437 (or TAILRACE_URL)",
                code=error.code,
            ) from None
        self._session = Session(self._db.execute)
        self.name = directory

    def run(self, text: str, params: Sequence[Any] = ()) -> list[StatementResult]:
        return [_result(each) for each in self._session.run(text, params)]

    def look(self, text: str) -> list[StatementResult]:
        return [_result(each) for each in self._db.sql(text).results]

    @property
    def in_transaction(self) -> bool:
        return self._session.transaction is not None

    def close(self) -> None:
        self._db.close()


def _result(result: Result) -> StatementResult:
    columns = [(column.name, column.type) for column in result.columns]
    return StatementResult(result.statement, columns, result.rows, result.row_count, result.message, result.facts)

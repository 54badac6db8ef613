"""Where the command line runs SQL: at a server, or embedded on a directory that no server has open.

Either way a statement's answer looks the same, and an error is the one that was raised there.
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


class Answer(msgspec.Struct):
    """What a statement answered. Without columns it has no rows, and says in `message` what it did."""

    statement: str
    columns: list[tuple[str, str]] = []  # names and SQL types
    rows: list[dict[str, Any]] = []
    row_count: int = 0
    message: str = ""
    facts: dict[str, Any] = {}


class Asked(Protocol):
    """Someone who runs SQL."""

    name: str

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Answer]:
        """The answer to each statement; raises the first error."""

    def close(self) -> None: ...


class Remote:
    """A server."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self.name = url

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Answer]:
        return [_answer(found) for found in self._client.sql(text, params)]

    def close(self) -> None:
        self._client.close()


class Embedded:
    """A directory, which is ours while we run."""

    def __init__(self, directory: str) -> None:
        import tailrace  # with all that a database needs; a client needs none of it
        from tailrace.sql.session import Session

        if not Path(directory).is_dir():
            raise NotFound(f"there is no database in {directory!r}; say where it is, or ask a server with --url")
        try:
            self._db = tailrace.open(directory)
        except Unavailable as error:
            if error.code != "DATABASE_IN_USE":
                raise
            raise Unavailable(
                f"a server has {directory!r} open; ask it: --url http://127.0.0.1:4437 (or TAILRACE_URL)",
                code=error.code,
            ) from None
        self._session = Session(self._db.execute)
        self.name = directory

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Answer]:
        return [_answer(found) for found in self._session.run(text, params)]

    def close(self) -> None:
        self._db.close()


def _answer(found: Result) -> Answer:
    columns = [(column.name, column.type) for column in found.columns]
    return Answer(found.statement, columns, found.rows, found.row_count, found.message, found.facts)

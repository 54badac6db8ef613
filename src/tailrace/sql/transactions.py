"""BEGIN … COMMIT: statements whose writes are collected, and written by one command.

Theory of operation
-------------------
A statement becomes commands and queries, as always, but they do not run by themselves. Queries of tables run over the
writes so far (`ReadInTransaction`), and commands on rows are tried over them (`TryInTransaction`): the result is that
of the command, and what it has written is kept as items to put and to delete, beside a record of what it has read.
COMMIT sends both in one command. So nothing is locked, and nothing is kept on a server: a session that spans several
requests is a text that the client sends along.

As in PostgreSQL, an error ends all but ROLLBACK: the other statements are refused, and COMMIT rolls back.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final, TypeVar

import msgspec

from tailrace.command import Command, Query
from tailrace.errors import Invalid
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, done
from tailrace.tables import value
from tailrace.topics.commands import Publish, PublishedMessages
from tailrace.topics.queries import FindTopic, ListTopicPartitions, ReadTopic
from tailrace.transactions import reads as recorded
from tailrace.transactions.commands import ReadInTransaction, Transact, TryInTransaction
from tailrace.transactions.operations import DeleteOperation, PublishOperation, PutOperation
from tailrace.transactions.reads import TransactionRead

T = TypeVar("T")
# Beside statements that only look at definitions, which show what is committed.
ALLOWED: Final = (
    ast.InsertStatement,
    ast.UpdateStatement,
    ast.DeleteStatement,
    ast.SelectStatement,
    ast.PublishStatement,
)


class SqlTransaction(msgspec.Struct):
    """A transaction that is open."""

    writes: tuple[PutOperation | DeleteOperation, ...] = ()
    published: tuple[PublishOperation, ...] = ()
    reads: tuple[TransactionRead, ...] = ()
    failed: bool = False


class TransactionText(msgspec.Struct, array_like=True):
    """An open transaction as it is sent: items are typed JSON, which is checked like that of a request."""

    put: list[tuple[str, dict[str, Any]]]
    deleted: list[tuple[str, dict[str, Any]]]
    published: tuple[PublishOperation, ...]
    reads: str
    failed: bool


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(TransactionText)


def to_text(transaction: SqlTransaction | None) -> str:
    """An open transaction as text, for the client to send along; "" if none is open."""
    if transaction is None:
        return ""
    put = [(each.table, each.item) for each in transaction.writes if isinstance(each, PutOperation)]
    deleted = [(each.table, each.key) for each in transaction.writes if isinstance(each, DeleteOperation)]
    reads = recorded.to_text(transaction.reads)
    text = TransactionText(put, deleted, transaction.published, reads, transaction.failed)  # type: ignore[arg-type]
    return urlsafe_b64encode(_encode(text)).decode()


def from_text(text: str) -> SqlTransaction | None:
    """The transaction that a client sends along."""
    if not text:
        return None
    try:
        found = _decoder.decode(urlsafe_b64decode(text.encode("ascii")))
    except (ValueError, msgspec.DecodeError, UnicodeError, RecursionError):
        raise Invalid(
            f"{text[:40]!r} is not an open transaction; send the text of the response before",
            code="INVALID_TRANSACTION",
        ) from None
    put = [PutOperation(table=table, item=value.read_item(item)[0]) for table, item in found.put]
    deleted = [DeleteOperation(table=table, key=value.read_item(key)[0]) for table, key in found.deleted]
    return SqlTransaction((*put, *deleted), found.published, recorded.from_text(found.reads), found.failed)


class TransactionSession:
    """Begins and ends transactions, and executes commands and queries within them."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self.open: SqlTransaction | None = None

    def control(self, statement: ast.Statement) -> Result | None:
        """The result of BEGIN, COMMIT and ROLLBACK; None: it is another statement, which may run."""
        current = self.open
        if isinstance(statement, ast.BeginStatement):
            if current is not None:
                raise Invalid("a transaction is open already; COMMIT or ROLLBACK it first", code="IN_TRANSACTION")
            self.open = SqlTransaction()
            return done(statement.title, "transaction begun")
        if isinstance(statement, ast.CommitStatement | ast.RollbackStatement):
            if current is None:
                raise Invalid(f"{statement.title} without BEGIN: no transaction is open", code="NO_TRANSACTION")
            self.open = None
            if isinstance(statement, ast.RollbackStatement):
                return done(statement.title, "transaction rolled back")
            if current.failed:
                return done(
                    statement.title, "transaction rolled back, because a statement in it failed", committed=False
                )
            return self._commit(statement.title, current)
        if current is not None and current.failed:
            raise Invalid(
                "a statement of this transaction failed: statements are ignored until ROLLBACK",
                code="TRANSACTION_FAILED",
            )
        if current is not None and not isinstance(statement, ALLOWED) and not _looks(statement):
            raise Invalid(
                f"{statement.title} is not allowed in a transaction; use INSERT, UPDATE, DELETE, SELECT and PUBLISH",
                code="IN_TRANSACTION",
            )
        return None

    def _commit(self, title: str, current: SqlTransaction) -> Result:
        written = self._execute(Transact((*current.writes, *current.published), current.reads))
        return done(title, "transaction committed", sequence=written.sequence, committed=True)

    def fail(self) -> None:
        """A statement has failed, and with it the transaction that it is in."""
        if self.open is not None:
            self.open.failed = True

    def execute(self, request: Command[T] | Query[T], /) -> T:
        """Execute a command or query, within the transaction that is open."""
        current = self.open
        if current is None:
            return self._execute(request)
        if isinstance(request, Publish):
            return self._published(current, request)  # type: ignore[return-value]
        if isinstance(request, Command):
            tried = self._execute(TryInTransaction(request, current.writes, current.reads))
            current.writes = tried.writes
            current.reads = (*current.reads, *tried.reads)
            if hasattr(tried.result, "sequence"):  # that of the commit, which is to come
                return msgspec.structs.replace(tried.result, sequence=None)  # type: ignore[type-var]
            return tried.result
        of_tables = any(subject.startswith("tables/") for subject in request.subjects())
        if not of_tables and not isinstance(request, ListTopicPartitions | ReadTopic):
            return self._execute(request)
        step = self._execute(ReadInTransaction(request, current.writes, current.reads))
        current.reads = (*current.reads, *step.reads)
        return step.result

    def _published(self, current: SqlTransaction, request: Publish) -> PublishedMessages:
        topic = self._execute(FindTopic(request.topic))
        operation = PublishOperation(topic=request.topic, messages=request.messages, claim=request.claim)
        current.published = (*current.published, operation)
        return PublishedMessages(topic, [])  # the offsets are known once it is committed

    def check_ended(self) -> None:
        """Refuse a text that ends within a transaction: nothing of it would be written."""
        if self.open is not None:
            self.open = None
            raise Invalid(
                "the text ends within a transaction, which was rolled back; end it with COMMIT", code="TRANSACTION_OPEN"
            )


def _looks(statement: ast.Statement) -> bool:
    return statement.title.startswith(("SHOW", "DESCRIBE"))

"""Look-ups of definitions that are part of an operation.

A statement becomes an operation once its table is known: which one, the definition decides. Such a look-up is not a
`DescribeTable` of its own: a principal may do it who may do one of the operations that can come of it. The operation
itself is judged when it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from tailrace.access import Principal
from tailrace.auth.audit import admit
from tailrace.command import Command, Query
from tailrace.database import Database
from tailrace.errors import Forbidden
from tailrace.sql.commands import DeleteRows, InsertRows, UpdateRows
from tailrace.sql.result import Execute
from tailrace.tables.operations import FindTable

T = TypeVar("T")
Operation = Command[Any] | Query[Any]


def look_up(db: Database, lookup: Query[T], principal: Principal, operations: Iterable[Operation]) -> T:
    """The result of a look-up, for a principal who may do it or one of these operations. Blocks.

    Everyone else gets the refusal of the look-up: it depends neither on the definition nor on whether the table exists,
    as that of an operation would."""
    try:
        return db.execute(lookup, principal)
    except Forbidden:
        if not any(_may(db, each, principal) for each in operations):
            raise
    return db.execute(lookup)


def _may(db: Database, operation: Operation, principal: Principal) -> bool:
    try:
        admit(operation, principal, db.policies)
    except Forbidden:
        return False
    return True


def sql_execute(db: Database, principal: Principal) -> Execute:
    """How a SQL session executes commands and queries as a principal. Who may write rows may look up their table."""

    def execute(request: Command[T] | Query[T], /) -> T:
        if isinstance(request, FindTable):
            name = request.name
            writes = InsertRows(name, "", ()), UpdateRows(name, "", (), sets=()), DeleteRows(name, "", ())
            return cast(T, look_up(db, request, principal, writes))
        return db.execute(request, principal)

    return execute

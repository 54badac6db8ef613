"""Names of tables, topics and views in statements: a name that exists is that one; else case does not matter.

A statement runs with its names as they are written. Only if something does not exist under its name, or is not granted,
are the names looked up in any case, and the statement runs again with those that were found: so permissions are judged
for them, and a transaction records them. If several names differ only in case from the one that is written, that is an
error. The other APIs are case-sensitive, so such names may exist; SQL does not create them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.access import Access
from tailrace.command import Query
from tailrace.errors import Conflict, Forbidden, Invalid
from tailrace.jobs.job import JOBS
from tailrace.jobs.view import KIND
from tailrace.listing import NameFilter, page
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result
from tailrace.storage.engine import Reader
from tailrace.storage.table import StorageTable
from tailrace.tables.definition import TABLES
from tailrace.topics.topic import TOPIC_NAMES

TABLE: Final = "table"
TOPIC: Final = "topic"
VIEW: Final = "materialized view"
_ROWS: Final[dict[str, tuple[StorageTable[Any], str]]] = {
    TABLE: (TABLES, "tables"),
    TOPIC: (TOPIC_NAMES, "topics"),
    VIEW: (JOBS, "tables"),
}
_SHOWN: Final = 5  # names in an error
_OF_TABLE: Final = (("table", TABLE),)
_OF_TOPIC: Final = (("topic", TOPIC),)
# The fields of each statement with the name of something that exists.
_NAMED: Final[dict[type[ast.Statement], tuple[tuple[str, str], ...]]] = {
    **dict.fromkeys(
        (ast.DropTopicStatement, ast.SetTopicStatement, ast.SetAliasStatement, ast.AddPartitionsStatement,
         ast.ClearTopicStatement, ast.DescribeTopicStatement),
        (("name", TOPIC),),
    ),
    **dict.fromkeys(
        (ast.PublishStatement, ast.ConsumeStatement, ast.AckStatement, ast.NackStatement, ast.ExtendStatement,
         ast.ResetGroupStatement, ast.DropGroupStatement, ast.ShowGroupsStatement),
        _OF_TOPIC,
    ),
    **dict.fromkeys((ast.AddSourceStatement, ast.DropSourceStatement), (*_OF_TOPIC, *_OF_TABLE)),
    **dict.fromkeys((ast.DropTableStatement, ast.DescribeTableStatement), (("name", TABLE),)),
    **dict.fromkeys(
        (ast.AddColumnStatement, ast.DropColumnStatement, ast.RenameColumnStatement, ast.ConstraintStatement,
         ast.SetTableStatement, ast.CreateIndexStatement, ast.DropIndexStatement, ast.EnableStreamStatement,
         ast.DisableStreamStatement, ast.InsertStatement, ast.UpdateStatement, ast.DeleteStatement,
         ast.TruncateStatement),
        _OF_TABLE,
    ),
    **dict.fromkeys(
        (ast.DropViewStatement, ast.RefreshViewStatement, ast.ExplainViewStatement), (("name", VIEW),)
    ),
}  # fmt: skip
# What a name that a statement creates must not be the name of; its own kind comes first.
_CREATED: Final[dict[type[ast.Statement], tuple[str, ...]]] = {
    ast.CreateTableStatement: (TABLE, VIEW),
    ast.CreateTopicStatement: (TOPIC,),
    ast.CreateViewStatement: (VIEW, TABLE),
}
_DROPS: Final = (ast.DropTableStatement, ast.DropTopicStatement, ast.DropViewStatement)


class FindAlike(Query[dict[str, tuple[str, ...]]], frozen=True):
    """What exists under each of these names: the name itself, or else the names within a grant (None: all) that differ
    from it only in case. A topic has one of its name and its alias. Reads no more than each name once."""

    kind: str
    names: frozenset[str]
    access: Access | None = None

    def subjects(self) -> tuple[str, ...]:
        return NameFilter(access=self.access).subjects()

    def run(self, reader: Reader) -> dict[str, tuple[str, ...]]:
        table, subjects = _ROWS[self.kind]
        exact = {name for name in self.names if (row := reader.get(table, name)) is not None and _is_of(self.kind, row)}
        missing = {name.casefold() for name in self.names - exact}
        alike: dict[str, dict[Any, str]] = {}

        def kept(row: Any) -> str | None:
            return row.name if row.name.casefold() in missing and self._add(alike, row) else None

        after: str | None = None
        while missing:
            wanted = NameFilter(after=after, limit=limits.LISTING_MAX, access=self.access)
            after = page(reader, table, subjects, wanted, kept).next
            if after is None:
                break
        return {
            name: (name,) if name in exact else tuple(alike.get(name.casefold(), {}).values()) for name in self.names
        }

    def _add(self, alike: dict[str, dict[Any, str]], row: Any) -> bool:
        if not _is_of(self.kind, row):
            return False
        alike.setdefault(row.name.casefold(), {})[row.topic if self.kind == TOPIC else row.name] = row.name
        return True


def _is_of(kind: str, row: Any) -> bool:
    return kind != VIEW or row.kind == KIND


def _alike(execute: Execute, kind: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    try:
        return execute(FindAlike(kind, frozenset(names)))
    except Forbidden:  # the names are as they are written
        return {}


def resolve(execute: Execute, kind: str, names: Iterable[str]) -> dict[str, str]:
    """The names that exist only in another case, and in which; raises if there are several."""
    found: dict[str, str] = {}
    for name, alike in _alike(execute, kind, names).items():
        if len(alike) > 1:
            several = ", ".join(map(repr, alike[:_SHOWN])) + (", …" if len(alike) > _SHOWN else "")
            raise Invalid(
                f"there is no {kind} {name!r}, and several that differ from it only in case: {several}; write one of "
                "these names exactly",
                code="AMBIGUOUS_NAME",
            )
        if alike and alike[0] != name:
            found[name] = alike[0]
    return found


def renamed(execute: Execute, statement: ast.Statement) -> ast.Statement | None:
    """The statement with the names of what exists, in the case in which it exists; None: it has these already."""
    if isinstance(statement, ast.ExplainStatement):
        of = renamed(execute, statement.of)
        return None if of is None else msgspec.structs.replace(statement, of=of)
    changes: dict[str, str] = {}
    for field, kind in _NAMED.get(type(statement), ()):
        given = getattr(statement, field)
        if given is not None:
            changes.update((field, name) for name in resolve(execute, kind, (given,)).values())
    return msgspec.structs.replace(statement, **changes) if changes else None


def found_nothing(statement: ast.Statement, result: Result) -> bool:
    """Whether it is a DROP … IF EXISTS, and nothing exists under the name."""
    return isinstance(statement, _DROPS) and result.facts.get("dropped") is False


def checked_new(execute: Execute, statement: ast.Statement) -> ast.Statement:
    """The statement, unless it creates something whose name differs only in case from one that exists: that is refused,
    or with IF NOT EXISTS, it is the one that exists."""
    kinds = _CREATED.get(type(statement))
    if kinds is None:
        return statement
    assert isinstance(statement, ast.CreateTableStatement | ast.CreateTopicStatement | ast.CreateViewStatement)
    name = statement.name
    alike = {kind: _alike(execute, kind, (name,)).get(name, ()) for kind in kinds}
    if any(name in found for found in alike.values()):
        return statement
    for kind, found in alike.items():
        if found and statement.if_not_exists and kind == kinds[0]:
            return msgspec.structs.replace(statement, name=found[0])
        if found:
            raise Conflict(
                f"there is a {kind} {found[0]!r} already, whose name differs from {name!r} only in case; "
                "use another name",
                code="ALREADY_EXISTS",
            )
    return statement

"""SELECT: sqlglot finds the sources of a statement, they are loaded as Arrow, and DuckDB computes the result.

Theory of operation
-------------------
sqlglot parses the text for analysis only: it finds the sources, refuses everything that is not a known source, and
determines how much of each source is needed. The sources are loaded as Arrow and sent, under private names, to a worker
process (`workers.py`) whose DuckDB has no files, no network, no extensions and limited memory. DuckDB then runs the
user's own text, in which only the names of the sources are replaced. So the statement means what DuckDB says it means,
and DuckDB's error positions map back to the user's text. The result comes back as Arrow.

sqlglot and DuckDB may parse a text differently, so DuckDB's own parse is checked as well: it must be one SELECT that
reads private names only.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from tailrace import limits
from tailrace.access import SYSTEM as SYSTEM_PRINCIPAL
from tailrace.errors import Error, Forbidden, Invalid, NotFound, TooLarge, TooMany
from tailrace.scalar.reading import first_too_deep
from tailrace.scalar.runtime import uuid_text
from tailrace.sql import functions, narrowing
from tailrace.sql import names as sql_names
from tailrace.sql.arrow import distinct
from tailrace.sql.conforming import (
    COMPARED_TEXT,
    ComparedSource,
    kinds_of,
    mixed_splices,
    uuid_constants,
)
from tailrace.sql.error import SqlError, excerpt, line_column, mark
from tailrace.sql.lexer import parameter_number
from tailrace.sql.result import ColumnInfo, Execute, Result, counted
from tailrace.sql.select_tokens import numbered, with_bytes
from tailrace.sql.selected import ArrowResult, ArrowRows
from tailrace.sql.sources import (
    CHANGES,
    FUNCTIONS,
    SYSTEM,
    TABLE,
    TOPIC,
    ExplainTables,
    ReadBudget,
    Reference,
    load,
    mixed_of,
    uuids_of,
)
from tailrace.sql.system import INFORMATION, INFORMATION_TABLES, SYSTEM_TABLES
from tailrace.sql.workers import POOL, DuckDBError, QueryInterrupted, SelectWorker

R = TypeVar("R")
TEXT_CHARACTERS_MAX: Final = 100_000  # of a statement; it is parsed twice
TOKENS_MAX: Final = 5_000  # of a statement: parsing holds the interpreter lock
DEPTH_MAX: Final = 100  # nested brackets
EQUALITY_DEPTH_MAX: Final = 24  # of the sides of = and <>, chained operators included
SOURCES_MAX: Final = 64  # named by one statement: planning joins of more takes DuckDB seconds
KEPT_MAX: Final = 128  # statements whose parse is remembered
KEPT_CHARACTERS_MAX: Final = 4_096  # of such a statement

_PRIVATE: Final = "_tailrace_source_"
_BEGINNINGS: Final = frozenset((TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES, TokenType.L_PAREN))
# Roughly one token: a comment, a text, a word, or one character. The longest operators have three characters.
_SIGN: Final = re.compile(r"--[^\n]*|/\*(?s:.*?)\*/|'[^']*'|\"[^\"]*\"|\w+|[^\s\w]")
_REFUSED: Final = (
    exp.DML, exp.DDL, exp.Command, exp.Describe, exp.Summarize, exp.Show, exp.Pragma, exp.Set, exp.Use, exp.Into,
    exp.Lock,
)  # fmt: skip
_EQUALITIES: Final = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)
_KINDS: Final = {"NULL": "VARCHAR"}  # of a column that no row has
_RELATIONS: Final = (exp.Table, exp.Subquery, exp.Values, exp.Unnest, exp.Lateral, exp.Paren)
# Our column names that are keywords in DuckDB unless they are quoted.
_QUOTED: Final = frozenset(("at", "by", "offset"))


class _RecentStatements:
    """The statements that ran most recently, by their text, so that a repeated one is not parsed and checked again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _SelectQuery] = OrderedDict()

    def get(self, text: str) -> _SelectQuery | None:
        with self._lock:
            found = self._held.get(text)
            if found is not None:
                self._held.move_to_end(text)
            return found

    def put(self, text: str, statement: _SelectQuery) -> None:
        if len(text) <= KEPT_CHARACTERS_MAX:
            with self._lock:
                self._held[text] = statement
                while len(self._held) > KEPT_MAX:
                    self._held.popitem(last=False)


_recent: Final = _RecentStatements()
_running: Final = threading.BoundedSemaphore(limits.SELECT_WORKERS_MAX)


def select(execute: Execute, text: str, params: Sequence[Any] = (), line: int = 1, column: int = 1) -> Result:
    """The result of a SELECT. `execute` runs queries with the caller's permissions; `line` and `column` locate the
    text's first character in the user's whole text."""
    return run(execute, text, params, ReadBudget(), line, column)


def run(
    execute: Execute, text: str, params: Sequence[Any], budget: ReadBudget, line: int = 1, column: int = 1
) -> Result:
    """Like `select`, with an explicit budget."""
    return selection(execute, text, params, budget, line, column).with_rows()


def selection(
    execute: Execute,
    text: str,
    params: Sequence[Any],
    budget: ReadBudget,
    line: int = 1,
    column: int = 1,
    caller: str = SYSTEM_PRINCIPAL.name,
) -> ArrowResult:
    """Like `run`, with the rows still in Arrow. `caller` is the value of current_user."""
    statement = _prepared(text, params, line, column)
    if not _running.acquire(timeout=max(0.0, budget.deadline_s - monotonic())):
        raise TooMany(f"{limits.SELECT_WORKERS_MAX} SELECT statements are already running, the limit; try again later")
    try:
        with POOL.worker() as worker:
            statement.check(worker, budget)
            read: Callable[[list[Reference]], list[pa.Table]] = partial(load, execute, budget=budget)
            statement, tables = statement.with_sources(execute, read)
            statement = statement.conformed(tables)
            sources = [(f"{_PRIVATE}{number}", table) for number, table in enumerate(tables)]
            del tables
            try:
                answer = worker.run(statement.rewritten, statement.params, sources, lambda: budget.over, caller)
                return _collected(answer, budget, statement.compares_mixed)
            except DuckDBError as failed:
                raise statement.error_of(failed, budget) from None
            except QueryInterrupted:
                raise budget.exceeded() from None
    finally:
        _running.release()


def explained(
    execute: Execute, text: str, params: Sequence[Any], budget: ReadBudget, line: int = 1, column: int = 1
) -> list[tuple[str, str, str]]:
    """What the statement would read: the source, who reads it, and what; and who does the rest."""
    statement = _prepared(text, params, line, column)
    with POOL.worker() as worker:
        statement.check(worker, budget)
    statement, explained = statement.with_sources(execute, partial(_explained_tables, execute))
    paths = iter(explained)
    steps: list[tuple[str, str, str]] = []
    for source in statement.sources:
        reference = source.reference
        reads = next(paths) if reference.kind == TABLE else _log_reads(reference)
        names = reference.needs.names
        if reference.kind == TABLE and names != frozenset():
            reads += "; all columns" if names is None else f"; columns {', '.join(sorted(names))}"
        steps.append((source.alias if source.aliased else _full(source), "tailrace", reads))
    conditions = sum(len(source.reference.needs.where) for source in statement.sources)
    rest = "the statement over these rows" + (", all conditions included" if conditions else "")
    return [*steps, ("", "duckdb", rest)]


def _explained_tables(execute: Execute, references: Sequence[Reference]) -> list[str]:
    tables = tuple(each for each in references if each.kind == TABLE)
    return execute(ExplainTables(tables)) if tables else []


def _log_reads(reference: Reference) -> str:
    if reference.kind in (SYSTEM, INFORMATION):
        return f"all of {reference.kind}.{reference.name}"
    ranges = sorted({each.column for each in reference.needs.where})
    what = "changes of table" if reference.kind == CHANGES else "messages of topic"
    return f"{what} {reference.name}" + (f" by {', '.join(ranges)}" if ranges else "")


def _collected(running: Generator[Any, None, None], budget: ReadBudget, compares_mixed: bool) -> ArrowResult:
    with closing(running) as answer:
        header = next(answer)
        names = distinct(COMPARED_TEXT.sub(r"\1", name) if compares_mixed else name for name, _ in header)
        selected = ArrowRows(names)
        for batch in answer:
            budget.spend(0, 0)
            selected.add(batch)
    kinds = [_KINDS.get(kind, kind).replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") for _, kind in header]
    columns = [ColumnInfo(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return ArrowResult("SELECT", columns, [], selected.count, counted(selected.count, "row"), selected=selected)


# -- the sources of a statement


class _NamedSource(msgspec.Struct, frozen=True):
    """A source, where the text names it, and its alias in the statement."""

    reference: Reference
    start: int
    end: int
    alias: str
    aliased: bool  # the alias is written in the text
    parameter: str = ""  # the parameter that holds the name, as written


def _prepared(text: str, params: Sequence[Any], line: int, column: int) -> _SelectQuery:
    """The statement with these parameters; it is remembered once DuckDB's parse of it was checked."""
    known = _recent.get(text)
    return _SelectQuery(text, params, line, column) if known is None else known.bound(params, line, column)


class _SelectQuery:
    """A parsed SELECT and its sources; `rewritten` is the text for DuckDB."""

    def __init__(self, text: str, params: Sequence[Any], line: int, column: int) -> None:
        self.text = text
        self._first = line, column
        self.params = params
        self._checked: Any = None  # DuckDB's parse, once it was checked
        self.compares_mixed = False  # whether columns of values of several types were replaced
        tokens = self._tokens()
        self._tree = self._parsed(tokens)
        self._check_nodes()
        self._check_equalities()
        self._check_params(len(params))
        nodes = [node for node in self._tree.find_all(exp.Table) if not _is_cte(node)]
        if len(nodes) > SOURCES_MAX:
            raise self.error(0, f"the statement names {len(nodes)} sources; the limit is {SOURCES_MAX}")
        self._nodes = nodes
        self.sources = self._with_aliases([self._source(node, tokens) for node in nodes])
        self._names = narrowing.names(self._tree, [source.alias for source in self.sources])
        self._narrow()
        self._splices = sorted(self._replacements())
        self.rewritten = self._spliced()

    def _narrow(self) -> None:
        self.sources = [
            msgspec.structs.replace(source, reference=self._narrowed(source, node, self._names, self.params))
            for source, node in zip(self.sources, self._nodes, strict=True)
        ]

    def bound(self, params: Sequence[Any], line: int, column: int) -> _SelectQuery:
        """The same statement with other parameters, at another place."""
        other = copy(self)
        other._first, other.params = (line, column), params
        other._check_params(len(params))
        other._narrow()
        return other

    def conformed(self, tables: Sequence[pa.Table]) -> _SelectQuery:
        """The statement for these sources: constants that are compared with UUIDs are in the form in which these are
        stored, and columns of values of several types are compared value by value."""
        uuids, mixed = [uuids_of(table) for table in tables], [mixed_of(table) for table in tables]
        if not any(uuids) and not any(mixed):
            return self
        compared = [
            (node, ComparedSource((source.alias.lower(), _full(source).lower()), kinds_of(table, several), names))
            for node, source, table, several, names in zip(self._nodes, self.sources, tables, mixed, uuids, strict=True)
        ]
        other = self._with_uuids(compared)
        taken = {at for start, end, _ in other._splices for at in range(start, end)}
        splices = mixed_splices(self._tree, self.text, compared, tables, self.params, taken) if any(mixed) else []
        other.compares_mixed = bool(splices)
        other._splices = sorted((*other._splices, *splices))
        other.rewritten = other._spliced()
        return other

    def _with_uuids(self, compared: Sequence[tuple[exp.Table, ComparedSource]]) -> _SelectQuery:
        constants = list(uuid_constants(self._tree, compared))
        other, params, splices = copy(self), list(self.params), list(self._splices)
        for number in {parameter_number(str(each.this)) for each in constants if isinstance(each, exp.Placeholder)}:
            uses = [each for each in self._tree.find_all(exp.Placeholder) if parameter_number(str(each.this)) == number]
            if all(any(each is use for each in constants) for use in uses):  # others need it as it was given
                params[number - 1] = uuid_text(params[number - 1])
        for each in constants:
            if isinstance(each, exp.Literal) and each.is_string and uuid_text(each.this) != each.this:
                splices.append((each.meta["start"], each.meta["end"] + 1, f"'{uuid_text(each.this)}'"))
        other.params, other._splices = params, splices
        return other

    def with_sources(self, execute: Execute, read: Callable[[list[Reference]], R]) -> tuple[_SelectQuery, R]:
        """The statement, and what `read` returns of its sources. If one does not exist under its name, it is the one
        whose name differs only in case."""
        try:
            return self, read([source.reference for source in self.sources])
        except (NotFound, Forbidden) as error:
            found = self._renamed(execute)
            if found is None:
                raise self.located(error) from None
        except Error as error:
            raise self.located(error) from None
        try:
            return found, read([source.reference for source in found.sources])
        except Error as error:
            raise found.located(error) from None

    def _renamed(self, execute: Execute) -> _SelectQuery | None:
        """The statement with the names of sources that exist only in another case; None if there are none."""
        found: dict[tuple[str, str], str] = {}
        for kinds, kind in (((TABLE, CHANGES), sql_names.TABLE), ((TOPIC,), sql_names.TOPIC)):
            given = {source.reference.name for source in self.sources if source.reference.kind in kinds}
            resolved = sql_names.resolve(execute, kind, given) if given else {}
            found.update(((each, name), new) for each in kinds for name, new in resolved.items())
        if not found:
            return None
        other = copy(self)
        other.sources = [
            msgspec.structs.replace(
                source,
                reference=msgspec.structs.replace(
                    source.reference,
                    name=found.get((source.reference.kind, source.reference.name), source.reference.name),
                ),
            )
            for source in self.sources
        ]
        return other

    @property
    def reusable(self) -> bool:
        """Whether only the values of conditions depend on its parameters."""
        return not any(source.parameter for source in self.sources)

    # -- reading the text

    def _tokens(self) -> list[Token]:
        if len(self.text) > TEXT_CHARACTERS_MAX:
            raise self.error(0, f"the statement is longer than {TEXT_CHARACTERS_MAX:,} characters; use parameters")
        # sqlglot's tokenizer holds the interpreter lock until it is done, so the length is checked before.
        signs = sum(1 for _ in islice(_SIGN.finditer(self.text), 3 * TOKENS_MAX + 1))
        if signs > 3 * TOKENS_MAX:
            raise self.error(0, f"the statement has more than {TOKENS_MAX:,} tokens; use parameters")
        try:
            tokens = DuckDB().tokenize(self.text)
        except TokenError:
            raise self.error(
                0, "a text, a quoted name or a comment is not closed; look for an unmatched quote"
            ) from None
        if len(tokens) > TOKENS_MAX:
            raise self.error(
                tokens[TOKENS_MAX].start,
                f"the statement has {len(tokens):,} tokens; the limit is {TOKENS_MAX:,}; use parameters",
            )
        if not tokens or tokens[0].token_type not in _BEGINNINGS:
            raise self.error(0, _QUERIES)
        kinds = {token.token_type for token in tokens}
        if TokenType.PLACEHOLDER in kinds and TokenType.PARAMETER in kinds:
            raise self.error(0, "parameters must be either all ? or all $1, $2, …", _PARAMETERS)
        deep = first_too_deep(tokens, DEPTH_MAX)
        if deep is not None:
            raise self.error(deep.start, f"brackets, paths or casts are nested more than {DEPTH_MAX} deep")
        return tokens

    def _parsed(self, tokens: list[Token]) -> exp.Expr:
        try:
            trees = DuckDB().parser().parse(list(numbered(with_bytes(tokens))), self.text)
        except ParseError as error:
            raise self._unparsed(error) from None
        except RecursionError:
            raise self.error(0, _TOO_DEEP) from None
        except Exception:  # a bug in sqlglot: a text that it cannot parse is refused
            raise self.error(0, "the statement cannot be parsed; write it in another way") from None
        statements = [tree for tree in trees if tree is not None]
        if len(statements) != 1:
            raise self.error(0, "the text has more than one statement; end it at the semicolon")
        tree = statements[0]
        if not isinstance(tree, exp.Query | exp.Values):
            raise self.error(0, _QUERIES)
        return tree

    def _unparsed(self, error: ParseError) -> SqlError:
        details = error.errors[0] if error.errors else {}
        what = str(details.get("description") or "this is not a statement").split(" but got <Token")[0].rstrip(".")
        line, column = details.get("line"), details.get("col")
        if not line:
            return self.error(0, what)
        highlight = str(details.get("highlight") or "")
        starts = [0, *(at + 1 for at, each in enumerate(self.text) if each == "\n")]
        # sqlglot reports the end of the unexpected token.
        at = starts[min(line, len(starts)) - 1] + max((column or 1) - max(len(highlight), 1), 0)
        near = f" at {highlight[:60]!r}" if highlight else ""
        return self.error(at, f"{what}{near}")

    def _check_nodes(self) -> None:
        for node in self._tree.walk():
            if isinstance(node, _REFUSED):
                raise self.error(
                    _start(node), "a SELECT can only read; send anything else as a statement of its own", _REFUSAL
                )
            if isinstance(node, exp.From | exp.Join) and not isinstance(node.this, _RELATIONS):
                raise self.error(_start(node.this), _ONLY, _REFUSAL)
            if (
                isinstance(node, exp.Anonymous)
                and not isinstance(node.parent, exp.Table)
                and not functions.allowed(node.name)
            ):
                raise self.error(_start(node), f"the function {node.name[:80]} cannot be used in a SELECT", _REFUSAL)
            if isinstance(node, exp.Lateral) and not isinstance(node.this, exp.Subquery | exp.Unnest):
                raise self.error(_start(node), _ONLY, _REFUSAL)

    def _check_equalities(self) -> None:
        """DuckDB's optimizer takes more than cubic time for deeply nested operands of an equality."""
        heights: dict[int, int] = {}
        for node in reversed(list(self._tree.walk())):
            height = heights[id(node)] = heights.get(id(node), 0) + 1
            if node.parent is not None:
                heights[id(node.parent)] = max(heights.get(id(node.parent), 0), height)
            if isinstance(node, _EQUALITIES) and height > EQUALITY_DEPTH_MAX:
                raise self.error(
                    _start(node),
                    f"an operand of = or <> can be nested at most {EQUALITY_DEPTH_MAX} deep, chained operators "
                    "included; compute it in a subquery",
                )

    def _check_params(self, given: int) -> None:
        used = 0
        for node in self._tree.find_all(exp.Placeholder, exp.Parameter):
            name = str(node.this or "")
            number = 0 if isinstance(node, exp.Parameter) else parameter_number(name)
            if not number:
                raise self.error(0, f"parameter {name[:40]!r} has no number; use ? or $1, $2, …", _PARAMETERS)
            used = max(used, number)
        if used != given:
            raise self.error(0, f"the statement has {used} parameters, but {given} values were given", _PARAMETERS)

    # -- sources

    def _source(self, node: exp.Table, tokens: list[Token]) -> _NamedSource:
        if isinstance(node.this, exp.Identifier):
            parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
            start = min(part.meta["start"] for part in parts)
            end = max(part.meta["end"] for part in parts) + 1
            name = ".".join(part.name for part in parts)
            if any(self.text[part.meta["start"]] == "'" for part in parts):
                raise self.error(start, f"{name[:80]!r} cannot be read: files are not available; {_ONLY}", _REFUSAL)
            reference = self._named(parts, name, start)
            return _NamedSource(reference, start, end, node.alias or parts[-1].name, bool(node.alias))
        function = node.this
        called = function.name.lower() if isinstance(function, exp.Anonymous) else ""
        start = _start(function)
        arguments = function.expressions if called else []
        if called not in FUNCTIONS or len(node.parts) != 1:
            raise self.error(start, _ONLY, _REFUSAL)
        given = narrowing.constant(arguments[0], self.params) if len(arguments) == 1 else None
        if not isinstance(given, str):
            what = "a table" if called == CHANGES else "a topic"
            raise self.error(start, f"{called}() takes the name of {what} in single quotes, or a parameter")
        after = bisect_right(tokens, start, key=lambda token: token.start)
        opened = next(token for token in islice(tokens, after, None) if token.token_type == TokenType.L_PAREN)
        after = bisect_right(tokens, opened.start, key=lambda token: token.start)
        closed = next(token for token in islice(tokens, after, None) if token.token_type == TokenType.R_PAREN)
        # A parameter stays in the text, because DuckDB must see as many as it is given.
        kept = "" if isinstance(arguments[0], exp.Literal) else self.text[opened.end + 1 : closed.start]
        kind = CHANGES if called == CHANGES else TOPIC
        alias, aliased = node.alias or called, bool(node.alias)
        return _NamedSource(Reference(kind, given), start, closed.end + 1, alias, aliased, kept)

    def _named(self, parts: list[exp.Identifier], name: str, start: int) -> Reference:
        kind = parts[0].name.lower()
        if kind not in (SYSTEM, INFORMATION) or len(parts) == 1:
            return Reference(TABLE, name)
        rest = ".".join(part.name for part in parts[1:]).lower()
        known = SYSTEM_TABLES if kind == SYSTEM else INFORMATION_TABLES
        if rest not in known:
            raise self.error(
                start,
                f"system table {name[:80]!r} does not exist; the system tables are {', '.join(known)}",
                "NO_SYSTEM_TABLE",
            )
        return Reference(kind, rest)

    def _with_aliases(self, sources: list[_NamedSource]) -> list[_NamedSource]:
        """Two sources with the same last part of their names get their full names as aliases."""
        fulls: dict[str, set[str]] = {}
        for each in sources:
            if not each.aliased:
                fulls.setdefault(each.alias.lower(), set()).add(_full(each).lower())
        return [
            msgspec.structs.replace(each, alias=_full(each))
            if not each.aliased and len(fulls[each.alias.lower()]) > 1
            else each
            for each in sources
        ]

    def _narrowed(
        self, source: _NamedSource, node: exp.Table, names: narrowing.NamedColumns, params: Sequence[Any]
    ) -> Reference:
        needs = narrowing.needs(node, source.alias, _full(source), names, params)
        return msgspec.structs.replace(source.reference, needs=needs)

    # -- the text for DuckDB

    def _replacements(self) -> Iterator[tuple[int, int, str]]:
        taken: set[int] = set()
        for number, source in enumerate(self.sources):
            taken.update(range(source.start, source.end))
            alias = "" if source.aliased else f" AS {_quoted(source.alias)}"
            name = f'"{_PRIVATE}{number}"'
            if source.parameter:
                name = f"(FROM {name} WHERE ({source.parameter})::VARCHAR IS NOT NULL)"
            yield source.start, source.end, f"{name}{alias}"
        by_name = {_full(source).lower(): source.alias for source in self.sources if not source.aliased}
        for column in self._tree.find_all(exp.Column):
            owners = [part for part in column.parts[:-1] if isinstance(part, exp.Identifier)]
            known = by_name.get(".".join(part.name for part in owners).lower()) if len(owners) > 1 else None
            if known is not None:
                start, end = owners[0].meta["start"], owners[-1].meta["end"] + 1
                taken.update(range(start, end))
                yield start, end, _quoted(known)
        for identifier in self._tree.find_all(exp.Identifier):
            if not identifier.quoted and identifier.name.lower() in _QUOTED and "start" in identifier.meta:
                start, end = identifier.meta["start"], identifier.meta["end"] + 1
                if start not in taken and self.text[start:end] == identifier.name:
                    taken.add(start)
                    yield start, end, _quoted(identifier.name)

    def _spliced(self) -> str:
        pieces, at = [], 0
        for start, end, new in self._splices:
            pieces += [self.text[at:start], new]
            at = end
        return "".join(pieces) + self.text[at:]

    def original(self, position: int) -> int:
        """The index in the user's text of a byte of the rewritten text."""
        at = len(self.rewritten.encode()[:position].decode(errors="replace"))
        moved = 0
        for start, end, new in self._splices:
            if at < start + moved:
                break
            if at < start + moved + len(new):
                return start
            moved += len(new) - (end - start)
        return min(max(at - moved, 0), len(self.text))

    # -- errors

    def _location(self, at: int) -> tuple[int, int]:
        line, column = line_column(self.text, at)
        return line + self._first[0] - 1, column + (self._first[1] - 1 if line == 1 else 0)

    def error(self, at: int, what: str, code: str | None = None) -> SqlError:
        """The error `what` at a character of the text."""
        line, column = self._location(at)
        message = f"line {line}, column {column}: {what}\n{excerpt(self.text, at)}"
        return SqlError(message, line=line, column=column, code=code)

    def located(self, error: Error) -> Error:
        """An error of a source, with the line and the column at which the source is named."""
        about = vars(error).pop("reference", None)
        for source in self.sources:
            if source.reference is about:
                mark(error, [], *self._location(source.start))
        return error

    def error_of(self, error: DuckDBError, budget: ReadBudget) -> Error:
        """DuckDB's error in terms of the user's text."""
        if error.kind == "InterruptException" or budget.over:
            return budget.exceeded()
        kind, _, message = str(error).partition(": ")
        try:
            facts: dict[str, Any] = msgspec.json.decode(message, type=dict)
        except (msgspec.DecodeError, msgspec.ValidationError):
            facts = {"exception_message": message or kind}
        what = str(facts.get("exception_message", "")).partition("\n")[0].strip() or kind
        if error.kind == "OutOfMemoryException":
            return TooLarge(
                "the statement needs more memory than a SELECT may use "
                f"({limits.SELECT_DUCKDB_BYTES_MAX:,} bytes); make it more selective, or use LIMIT",
                code="SELECT_TOO_LARGE",
            )
        if facts.get("candidates"):
            what += f" Did you mean: {facts['candidates']}"
        for number in range(len(self.sources) - 1, -1, -1):
            what = what.replace(f"{_PRIVATE}{number}", _full(self.sources[number]))
        code = "SQL_SYNTAX" if error.kind == "ParserException" else "SQL_INVALID"
        if facts.get("error_subtype") == "COLUMN_NOT_FOUND":
            code = "UNKNOWN_COLUMN"
        if str(facts.get("position", "")).isdigit():
            return self.error(self.original(int(facts["position"])), what, code)
        return Invalid(what, code=code)

    def check(self, worker: SelectWorker, budget: ReadBudget) -> None:
        """Check DuckDB's own parse: one query, known sources only, and allowed functions only."""
        if self._checked is None:
            self._check_parse(worker, budget)
        elif not self.params:
            return  # nothing has changed since it was checked
        refused = min(functions.refused(self._checked, self.params), default=None)
        if refused is not None:
            raise self.error(self.original(refused.position), refused.reason, _REFUSAL)
        if self.reusable:
            _recent.put(self.text, self)

    def _check_parse(self, worker: SelectWorker, budget: ReadBudget) -> None:
        try:
            kinds, serialized = worker.check(self.rewritten, lambda: budget.over)
        except DuckDBError as error:
            raise self.error_of(error, budget) from None
        except QueryInterrupted:
            raise budget.exceeded() from None
        if kinds != ["SELECT"]:
            raise self.error(0, _QUERIES)
        try:
            tree = msgspec.json.decode(serialized)
        except RecursionError:
            raise self.error(0, _TOO_DEEP) from None
        if tree["error"]:
            raise self.error(0, f"{tree['error_message']} {_QUERIES}")
        known = {f"{_PRIVATE}{number}" for number in range(len(self.sources))}
        known.update(node.alias.lower() for node in self._tree.find_all(exp.CTE))
        for name in functions.sources(tree["statements"]):
            if name.lower() not in known:
                raise self.error(0, f"{name[:80]!r} cannot be read; {_ONLY}", _REFUSAL)
        self._checked = tree["statements"]


_TOO_DEEP: Final = "the statement is nested too deeply; move parts of it into WITH queries"
_QUERIES: Final = "only queries can be run here; begin with SELECT, WITH, FROM or VALUES"
_REFUSAL: Final = "SQL_REFUSED"
_PARAMETERS: Final = "SQL_PARAMETERS"
_ONLY: Final = (
    "a SELECT can only read tables, system.<name>, changes('table'), topic('topic'), WITH queries and subqueries"
)


def _full(source: _NamedSource) -> str:
    """The full name of a source."""
    reference = source.reference
    if reference.kind in (SYSTEM, INFORMATION):
        return f"{reference.kind}.{reference.name}"
    return reference.name if reference.kind == TABLE else reference.kind


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _start(node: Any) -> int:
    """Where a node begins; 0 if that is not known."""
    if not isinstance(node, exp.Expr):
        return 0
    return min((each.meta["start"] for each in node.walk() if "start" in each.meta), default=0)


def _is_cte(table: exp.Table) -> bool:
    """Whether the name refers to a WITH query in scope."""
    if not isinstance(table.this, exp.Identifier) or len(table.parts) != 1:
        return False
    name = table.name.lower()
    below: exp.Expr = table
    node = table.parent
    while node is not None:
        if isinstance(node, exp.With):  # the table is in one of its queries, and can refer to those before
            seen = _index(node.expressions, below) + bool(node.args.get("recursive"))
            if any(each.alias.lower() == name for each in node.expressions[:seen]):
                return True
            node = node.parent  # the statement of this WITH
            assert node is not None
        else:
            known = node.args.get("with_")
            if known is not None and any(each.alias.lower() == name for each in known.expressions):
                return True
        below, node = node, node.parent
    return False


def _index(nodes: list[Any], wanted: Any) -> int:
    return next(at for at, each in enumerate(nodes) if each is wanted)

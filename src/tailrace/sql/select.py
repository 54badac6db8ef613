"""SELECT: sqlglot finds what a statement reads, we read it, DuckDB works out the answer.

Theory of operation
-------------------
sqlglot parses the text, and only to look: it finds the sources, says no to what is none, and tells how much of each is
needed. The sources are loaded as Arrow and sent, under private names, to a worker process (`workers.py`) with a DuckDB
that has no files, no network, no extensions and little memory. Then DuckDB gets the very text that the user wrote, with
nothing but the sources' names replaced; so it means what DuckDB says it means, and a place in it is a place in the
user's text. The result comes back in Arrow.

What sqlglot and DuckDB may read differently is checked twice: DuckDB too has to find one SELECT in the text, of private
names only.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from time import monotonic
from typing import Any, Final

import msgspec
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from tailrace import limits
from tailrace.access import SYSTEM as SYSTEM_PRINCIPAL
from tailrace.errors import Error, Invalid, TooLarge, TooMany
from tailrace.scalar.reading import first_too_deep
from tailrace.sql import functions, narrowing
from tailrace.sql.arrow import distinct
from tailrace.sql.error import SqlError, excerpt, mark, place
from tailrace.sql.lexer import parameter_number
from tailrace.sql.result import ColumnInfo, Execute, Result, counted
from tailrace.sql.selected import Selected, Selection
from tailrace.sql.sources import CHANGES, FUNCTIONS, SYSTEM, TABLE, TOPIC, Budget, Reference, load
from tailrace.sql.system import SYSTEM_TABLES
from tailrace.sql.workers import POOL, Failed, Interrupted, Worker

TEXT_CHARACTERS_MAX: Final = 100_000  # of a statement; it is parsed twice
TOKENS_MAX: Final = 5_000  # of a statement: whoever else wants the interpreter waits while it is parsed
DEPTH_MAX: Final = 100  # brackets within brackets
EQUALITY_DEPTH_MAX: Final = 24  # of the sides of = and <>, signs in a row included
SOURCES_MAX: Final = 50  # that one statement names

_PRIVATE: Final = "_tailrace_source_"
_BEGINNINGS: Final = frozenset((TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES, TokenType.L_PAREN))
# What is about a token: a comment, a text, a word, or one character. The longest signs have three.
_SIGN: Final = re.compile(r"--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/|'[^']*+'|\"[^\"]*+\"|\w++|[^\s\w]")
_REFUSED: Final = (
    exp.DML, exp.DDL, exp.Command, exp.Describe, exp.Summarize, exp.Show, exp.Pragma, exp.Set, exp.Use, exp.Into,
    exp.Lock,
)  # fmt: skip
_EQUALITIES: Final = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)
_RELATIONS: Final = (exp.Table, exp.Subquery, exp.Values, exp.Unnest, exp.Lateral, exp.Paren)
# Names of our columns that DuckDB takes for words of its own unless they are quoted.
_QUOTED: Final = frozenset(("at", "by", "offset"))

_running: Final = threading.BoundedSemaphore(limits.SELECT_WORKERS_MAX)


def select(execute: Execute, text: str, params: Sequence[Any] = (), line: int = 1, column: int = 1) -> Result:
    """The answer to a SELECT. `execute` runs queries for whoever asks; the text's first character is at `line` and
    `column` of what its author wrote."""
    return run(execute, text, params, Budget(), line, column)


def run(execute: Execute, text: str, params: Sequence[Any], budget: Budget, line: int = 1, column: int = 1) -> Result:
    """As `select`, with bounds of one's own."""
    return selection(execute, text, params, budget, line, column).with_rows()


def selection(
    execute: Execute,
    text: str,
    params: Sequence[Any],
    budget: Budget,
    line: int = 1,
    column: int = 1,
    caller: str = SYSTEM_PRINCIPAL.name,
) -> Selection:
    """As `run`, with the rows still in Arrow. `caller` is what current_user says."""
    statement = _Statement(text, params, line, column)
    if not _running.acquire(timeout=max(0.0, budget.deadline_s - monotonic())):
        raise TooMany(f"{limits.SELECT_WORKERS_MAX} SELECT statements are running, as many as may; try again later")
    try:
        with POOL.worker() as worker:
            statement.check(worker, budget)
            try:
                tables = load(execute, [found.reference for found in statement.found], budget)
            except Error as error:
                raise statement.placed(error) from None
            sources = [(f"{_PRIVATE}{number}", table) for number, table in enumerate(tables)]
            del tables
            try:
                answer = worker.run(statement.rewritten, params, sources, lambda: budget.over, caller)
                return _answered(answer, budget)
            except Failed as failed:
                raise statement.failed(failed, budget) from None
            except Interrupted:
                raise budget.late() from None
    finally:
        _running.release()


def _answered(running: Generator[Any, None, None], budget: Budget) -> Selection:
    with closing(running) as answer:
        told = next(answer)
        names = distinct(name for name, _ in told)
        selected = Selected(names)
        for batch in answer:
            budget.spend(0, 0)
            selected.add(batch)
    kinds = [kind.replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ") for _, kind in told]
    columns = [ColumnInfo(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return Selection("SELECT", columns, [], selected.count, counted(selected.count, "row"), selected=selected)


# -- what a statement reads


class _Found(msgspec.Struct, frozen=True):
    """A source, where in the text it is named, and what the statement calls it."""

    reference: Reference
    start: int
    end: int
    alias: str
    aliased: bool  # the text says so
    parameter: str = ""  # that gives the name, as it is written


class _Statement:
    """A statement whose sources are known; `rewritten` is what DuckDB gets to see."""

    def __init__(self, text: str, params: Sequence[Any], line: int, column: int) -> None:
        self.text = text
        self._first = line, column
        self._params = params
        tokens = self._tokens()
        self._tree = self._parsed(tokens)
        self._check_nodes()
        self._check_equalities()
        self._check_params(len(params))
        nodes = [node for node in self._tree.find_all(exp.Table) if not _is_cte(node)]
        if len(nodes) > SOURCES_MAX:
            raise self.wrong(0, f"the statement names {len(nodes)} sources, and {SOURCES_MAX} is the most; use fewer")
        self.found = self._with_aliases([self._source(node, tokens) for node in nodes])
        names = narrowing.names(self._tree, [found.alias for found in self.found])
        self.found = [
            msgspec.structs.replace(found, reference=self._narrowed(found, node, names, params))
            for found, node in zip(self.found, nodes, strict=True)
        ]
        self._splices = sorted(self._replacements())
        self.rewritten = self._spliced()

    # -- reading the text

    def _tokens(self) -> list[Token]:
        if len(self.text) > TEXT_CHARACTERS_MAX:
            raise self.wrong(0, f"the statement is longer than {TEXT_CHARACTERS_MAX:,} characters; use parameters")
        # What comes next lets nobody else run until it is done, so it gets nothing that is too long.
        signs = sum(1 for _ in islice(_SIGN.finditer(self.text), 3 * TOKENS_MAX + 1))
        if signs > 3 * TOKENS_MAX:
            raise self.wrong(0, f"the statement has more than {TOKENS_MAX:,} words and signs; use parameters")
        try:
            tokens = DuckDB().tokenize(self.text)
        except TokenError:
            raise self.wrong(
                0, "a text, a name or a comment is not ended; look for a quote without its other"
            ) from None
        if len(tokens) > TOKENS_MAX:
            raise self.wrong(
                tokens[TOKENS_MAX].start,
                f"the statement has {len(tokens):,} words and signs, and {TOKENS_MAX:,} is the most; use parameters",
            )
        if not tokens or tokens[0].token_type not in _BEGINNINGS:
            raise self.wrong(0, _QUERIES)
        kinds = {token.token_type for token in tokens}
        if TokenType.PLACEHOLDER in kinds and TokenType.PARAMETER in kinds:
            raise self.wrong(0, "parameters are written as ?, or as $1, $2 and so on; use one of the two", _PARAMETERS)
        deep = first_too_deep(tokens, DEPTH_MAX)
        if deep is not None:
            raise self.wrong(deep.start, f"brackets, paths or casts are nested more than {DEPTH_MAX} deep")
        return tokens

    def _parsed(self, tokens: list[Token]) -> exp.Expr:
        try:
            trees = DuckDB().parser().parse(list(_numbered(_with_bytes(tokens))), self.text)
        except ParseError as error:
            raise self._unparsed(error) from None
        except RecursionError:
            raise self.wrong(0, _TOO_DEEP) from None
        except Exception:  # our text made the parser of others fail: what it cannot read is not taken
            raise self.wrong(0, "the statement cannot be read; write it in another way") from None
        found = [tree for tree in trees if tree is not None]
        if len(found) != 1:
            raise self.wrong(0, "this is more than one statement; end it at the semicolon")
        tree = found[0]
        if not isinstance(tree, exp.Query | exp.Values):
            raise self.wrong(0, _QUERIES)
        return tree

    def _unparsed(self, error: ParseError) -> SqlError:
        told = error.errors[0] if error.errors else {}
        what = str(told.get("description") or "this is not a statement").split(" but got <Token")[0].rstrip(".")
        line, column = told.get("line"), told.get("col")
        if not line:
            return self.wrong(0, what)
        highlight = str(told.get("highlight") or "")
        starts = [0, *(at + 1 for at, each in enumerate(self.text) if each == "\n")]
        # sqlglot tells where the token that it did not expect ends.
        at = starts[min(line, len(starts)) - 1] + max((column or 1) - max(len(highlight), 1), 0)
        near = f" at {highlight[:60]!r}" if highlight else ""
        return self.wrong(at, f"{what}{near}")

    def _check_nodes(self) -> None:
        for node in self._tree.walk():
            if isinstance(node, _REFUSED):
                raise self.wrong(
                    _start(node), "a SELECT reads and does nothing else; use a statement of its own", _REFUSAL
                )
            if isinstance(node, exp.From | exp.Join) and not isinstance(node.this, _RELATIONS):
                raise self.wrong(_start(node.this), _ONLY, _REFUSAL)
            if (
                isinstance(node, exp.Anonymous)
                and not isinstance(node.parent, exp.Table)
                and not functions.allowed(node.name)
            ):
                raise self.wrong(_start(node), f"the function {node.name[:80]} cannot be used in a SELECT", _REFUSAL)
            if isinstance(node, exp.Lateral) and not isinstance(node.this, exp.Subquery | exp.Unnest):
                raise self.wrong(_start(node), _ONLY, _REFUSAL)

    def _check_equalities(self) -> None:
        """DuckDB replaces what is equal by one another, and takes more than cubic time of what is deep."""
        heights: dict[int, int] = {}
        for node in reversed(list(self._tree.walk())):
            height = heights[id(node)] = heights.get(id(node), 0) + 1
            if node.parent is not None:
                heights[id(node.parent)] = max(heights.get(id(node.parent), 0), height)
            if isinstance(node, _EQUALITIES) and height > EQUALITY_DEPTH_MAX:
                raise self.wrong(
                    _start(node),
                    f"what is compared by = or <> may be nested {EQUALITY_DEPTH_MAX} deep, signs in a row included; "
                    "work it out in a subquery",
                )

    def _check_params(self, given: int) -> None:
        used = 0
        for node in self._tree.find_all(exp.Placeholder, exp.Parameter):
            name = str(node.this or "")
            number = 0 if isinstance(node, exp.Parameter) else parameter_number(name)
            if not number:
                raise self.wrong(0, f"parameter {name[:40]!r} has no number; use ?, or $1, $2 and so on", _PARAMETERS)
            used = max(used, number)
        if used != given:
            raise self.wrong(
                0, f"the statement has {used} parameters and {given} values were given; give one for each", _PARAMETERS
            )

    # -- sources

    def _source(self, node: exp.Table, tokens: list[Token]) -> _Found:
        if isinstance(node.this, exp.Identifier):
            parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
            start = min(part.meta["start"] for part in parts)
            end = max(part.meta["end"] for part in parts) + 1
            name = ".".join(part.name for part in parts)
            if any(self.text[part.meta["start"]] == "'" for part in parts):
                raise self.wrong(start, f"files cannot be read, {name[:80]!r} neither; {_ONLY}", _REFUSAL)
            reference = self._named(parts, name, start)
            return _Found(reference, start, end, node.alias or parts[-1].name, bool(node.alias))
        function = node.this
        called = function.name.lower() if isinstance(function, exp.Anonymous) else ""
        start = _start(function)
        arguments = function.expressions if called else []
        if called not in FUNCTIONS or len(node.parts) != 1:
            raise self.wrong(start, _ONLY, _REFUSAL)
        given = narrowing.constant(arguments[0], self._params) if len(arguments) == 1 else None
        if not isinstance(given, str):
            what = "a table" if called == CHANGES else "a topic"
            raise self.wrong(start, f"{called}() takes the name of {what} in single quotes, or a parameter")
        after = bisect_right(tokens, start, key=lambda token: token.start)
        opened = next(token for token in islice(tokens, after, None) if token.token_type == TokenType.L_PAREN)
        after = bisect_right(tokens, opened.start, key=lambda token: token.start)
        closed = next(token for token in islice(tokens, after, None) if token.token_type == TokenType.R_PAREN)
        # A parameter stays in the text, for DuckDB wants to see as many as it is given.
        kept = "" if isinstance(arguments[0], exp.Literal) else self.text[opened.end + 1 : closed.start]
        kind = CHANGES if called == CHANGES else TOPIC
        alias, aliased = node.alias or called, bool(node.alias)
        return _Found(Reference(kind, given), start, closed.end + 1, alias, aliased, kept)

    def _named(self, parts: list[exp.Identifier], name: str, start: int) -> Reference:
        if parts[0].name.lower() != SYSTEM or len(parts) == 1:
            return Reference(TABLE, name)
        rest = ".".join(part.name for part in parts[1:]).lower()
        if rest not in SYSTEM_TABLES:
            raise self.wrong(
                start,
                f"there is no system table {name[:80]!r}; there are {', '.join(SYSTEM_TABLES)}",
                "NO_SYSTEM_TABLE",
            )
        return Reference(SYSTEM, rest)

    def _with_aliases(self, found: list[_Found]) -> list[_Found]:
        """Where the last part of a name is not enough to tell two sources apart, they are called by all of it."""
        fulls: dict[str, set[str]] = {}
        for each in found:
            if not each.aliased:
                fulls.setdefault(each.alias.lower(), set()).add(_full(each).lower())
        return [
            msgspec.structs.replace(each, alias=_full(each))
            if not each.aliased and len(fulls[each.alias.lower()]) > 1
            else each
            for each in found
        ]

    def _narrowed(self, found: _Found, node: exp.Table, names: narrowing.Names, params: Sequence[Any]) -> Reference:
        needed = narrowing.wanted(node, found.alias, _full(found), names, params)
        return msgspec.structs.replace(found.reference, wanted=needed)

    # -- the text for DuckDB

    def _replacements(self) -> Iterator[tuple[int, int, str]]:
        taken: set[int] = set()
        for number, found in enumerate(self.found):
            taken.update(range(found.start, found.end))
            alias = "" if found.aliased else f" AS {_quoted(found.alias)}"
            name = f'"{_PRIVATE}{number}"'
            if found.parameter:
                name = f"(FROM {name} WHERE ({found.parameter})::VARCHAR IS NOT NULL)"
            yield found.start, found.end, f"{name}{alias}"
        by_name = {_full(found).lower(): found.alias for found in self.found if not found.aliased}
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
        """The place in the user's text of a byte of the rewritten one."""
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

    def _place(self, at: int) -> tuple[int, int]:
        line, column = place(self.text, at)
        return line + self._first[0] - 1, column + (self._first[1] - 1 if line == 1 else 0)

    def wrong(self, at: int, what: str, code: str | None = None) -> SqlError:
        """The error that `what` is wrong at a character of the text."""
        line, column = self._place(at)
        message = f"line {line}, column {column}: {what}\n{excerpt(self.text, at)}"
        return SqlError(message, line=line, column=column, code=code)

    def placed(self, error: Error) -> Error:
        """An error of a source, with the line and the column at which that is named."""
        about = vars(error).pop("reference", None)
        for found in self.found:
            if found.reference is about:
                mark(error, [], *self._place(found.start))
        return error

    def failed(self, error: Failed, budget: Budget) -> Error:
        """What DuckDB complained about, in terms of the user's text."""
        if error.kind == "InterruptException" or budget.over:
            return budget.late()
        kind, _, told = str(error).partition(": ")
        try:
            facts: dict[str, Any] = msgspec.json.decode(told, type=dict)
        except (msgspec.DecodeError, msgspec.ValidationError):
            facts = {"exception_message": told or kind}
        what = str(facts.get("exception_message", "")).partition("\n")[0].strip() or kind
        if error.kind == "OutOfMemoryException":
            return TooLarge(
                "the statement needs more memory than there is for a SELECT "
                f"({limits.SELECT_DUCKDB_BYTES_MAX:,} bytes); narrow it, or use LIMIT",
                code="SELECT_TOO_LARGE",
            )
        if facts.get("candidates"):
            what += f" Near it are: {facts['candidates']}"
        for number in range(len(self.found) - 1, -1, -1):
            what = what.replace(f"{_PRIVATE}{number}", _full(self.found[number]))
        code = "SQL_SYNTAX" if error.kind == "ParserException" else "SQL_INVALID"
        if facts.get("error_subtype") == "COLUMN_NOT_FOUND":
            code = "UNKNOWN_COLUMN"
        if str(facts.get("position", "")).isdigit():
            return self.wrong(self.original(int(facts["position"])), what, code)
        return Invalid(what, code=code)

    def check(self, worker: Worker, budget: Budget) -> None:
        """DuckDB, too, finds one query in the text, and no source that we do not know of."""
        try:
            kinds, told = worker.check(self.rewritten, lambda: budget.over)
        except Failed as error:
            raise self.failed(error, budget) from None
        except Interrupted:
            raise budget.late() from None
        if kinds != ["SELECT"]:
            raise self.wrong(0, _QUERIES)
        try:
            tree = msgspec.json.decode(told)
        except RecursionError:
            raise self.wrong(0, _TOO_DEEP) from None
        if tree["error"]:
            raise self.wrong(0, f"{tree['error_message']} {_QUERIES}")
        known = {f"{_PRIVATE}{number}" for number in range(len(self.found))}
        known.update(node.alias.lower() for node in self._tree.find_all(exp.CTE))
        for name in _sources_of(tree["statements"]):
            if name.lower() not in known:
                raise self.wrong(0, f"{name[:80]!r} cannot be read; {_ONLY}", _REFUSAL)
        found = min(functions.refused(tree["statements"], self._params), default=None)
        if found is not None:
            raise self.wrong(self.original(found.position), found.reason, _REFUSAL)


def _sources_of(tree: Any) -> Iterator[str]:
    """The names of all that a statement reads, as DuckDB understands it."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            left += node.values()
            if node.get("type") == "BASE_TABLE":
                yield ".".join(filter(None, (node.get("catalog_name"), node.get("schema_name"), node["table_name"])))
            elif node.get("type") == "SHOW_REF":
                yield "SHOW"
            elif node.get("type") == "TABLE_FUNCTION":
                name = str(node["function"].get("function_name"))
                if name.lower() != "unnest":
                    yield f"{name}()"


_TOO_DEEP: Final = "the statement is nested too deep; use brackets, or WITH, to take parts of it out"
_QUERIES: Final = "only queries can be run here; begin with SELECT, WITH, FROM or VALUES"
_REFUSAL: Final = "SQL_REFUSED"
_PARAMETERS: Final = "SQL_PARAMETERS"
_ONLY: Final = (
    "a SELECT reads tables, system.<name>, changes('table'), topic('topic'), WITH queries and subqueries, nothing else"
)


def _full(found: _Found) -> str:
    """All of a source's name."""
    reference = found.reference
    if reference.kind == SYSTEM:
        return f"{SYSTEM}.{reference.name}"
    return reference.name if reference.kind == TABLE else reference.kind


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _start(node: Any) -> int:
    """Where a node begins, as far as it is known."""
    if not isinstance(node, exp.Expr):
        return 0
    return min((each.meta["start"] for each in node.walk() if "start" in each.meta), default=0)


def _numbered(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, each ? with its number, so that whoever finds it in the tree knows which one it is."""
    number = 0
    for token in tokens:
        if token.token_type == TokenType.PLACEHOLDER:
            number += 1
            where = (token.line, token.col, token.start, token.end)
            yield Token(TokenType.PARAMETER, "$", *where)
            yield Token(TokenType.NUMBER, str(number), *where)
        else:
            yield token


def _with_bytes(tokens: list[Token]) -> Iterator[Token]:
    """The tokens, X'00ff' as one of them: DuckDB knows it, and sqlglot does not when it reads DuckDB's language."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        after = tokens[at + 1] if at + 1 < len(tokens) else token
        if (
            after.token_type == TokenType.STRING
            and token.token_type == TokenType.VAR
            and token.text in "xX"
            and after.start == token.end + 1
        ):
            yield Token(TokenType.HEX_STRING, after.text, after.line, after.col, token.start, after.end)
            at += 1
        else:
            yield token
        at += 1


def _is_cte(table: exp.Table) -> bool:
    """Whether the name is that of a WITH query that can be seen from there."""
    if not isinstance(table.this, exp.Identifier) or len(table.parts) != 1:
        return False
    name = table.name.lower()
    below: exp.Expr = table
    node = table.parent
    while node is not None:
        if isinstance(node, exp.With):  # the table is in one of its queries, and sees those before
            seen = _index(node.expressions, below) + bool(node.args.get("recursive"))
            if any(each.alias.lower() == name for each in node.expressions[:seen]):
                return True
            node = node.parent  # whose WITH this is
            assert node is not None
        else:
            known = node.args.get("with_")
            if known is not None and any(each.alias.lower() == name for each in known.expressions):
                return True
        below, node = node, node.parent
    return False


def _index(nodes: list[Any], wanted: Any) -> int:
    return next(at for at, each in enumerate(nodes) if each is wanted)

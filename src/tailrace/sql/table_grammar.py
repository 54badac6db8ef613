"""The grammar of statements about tables and their rows."""

from __future__ import annotations

from typing import Final

from tailrace.sql import statements as ast
from tailrace.sql.column_grammar import COLUMNS_MAX
from tailrace.sql.error import SqlError
from tailrace.sql.lexer import END, PARAMETER, QUOTED, WORD
from tailrace.sql.tokens import DEPTH_MAX, Location, Tokens, absent

ROWS_MAX: Final = 10_000  # of one INSERT
CONJUNCTS_MAX: Final = 100  # conditions joined by AND
CONDITION_TOKENS_MAX: Final = 5_000  # of one condition

# Operators that make `column = value …` more than a plain equality.
_JOINING: Final = frozenset(
    ("=", "<", ">", "!", "~", "AND", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "BETWEEN", "SIMILAR", "GLOB", "ISNULL")
)


_QUERIES: Final = frozenset(("SELECT", "WITH", "FROM"))
_RETURNING: Final = "RETURNING"
_OPENED: Final = frozenset("([{")
_CLOSED: Final = frozenset(")]}")


# -- rows


def insert(tokens: Tokens, location: Location) -> ast.Statement:
    replace = tokens.accept("OR", "REPLACE")
    tokens.expect("INTO")
    table = tokens.name("the name of the table")
    columns: list[str] | None = None
    if tokens.accept("("):
        columns = [tokens.identifier("the name of a column")]
        while tokens.accept(","):
            token = tokens.next
            columns.append(tokens.identifier("the name of a column"))
            if columns[-1] in columns[:-1]:
                raise tokens.error(f"column {columns[-1]!r} is named twice", token)
            if len(columns) > COLUMNS_MAX:
                raise tokens.error(f"a row can have at most {COLUMNS_MAX} columns", token)
        tokens.expect(")")
    rows: list[tuple[ast.Assigned, ...]] = []
    select: ast.Expression | None = None
    if tokens.next.key in _QUERIES:
        select = tokens.rest("SELECT", lambda: tokens.next.key == "RETURNING" or _conflicts(tokens))
    else:
        if tokens.next.key != "VALUES":
            tokens.fail("VALUES", "SELECT")
        tokens.take()
        rows = _rows(tokens, columns)
    conflict = _conflict(tokens) if _conflicts(tokens) else None
    if conflict is not None and replace:
        raise tokens.error("INSERT OR REPLACE replaces a row whose key is taken; write either that or ON CONFLICT")
    return ast.InsertStatement(
        table=table, rows=tuple(rows), select=select, columns=None if columns is None else tuple(columns),
        replace=replace, conflict=conflict, returning=_returning(tokens), **location,
    )  # fmt: skip


def _rows(tokens: Tokens, columns: list[str] | None) -> list[tuple[ast.Assigned, ...]]:
    rows: list[tuple[ast.Assigned, ...]] = []
    while True:
        token = tokens.next
        rows.append(_row(tokens))
        expected = len(rows[0] if columns is None else columns)
        if len(rows[-1]) != expected:
            raise tokens.error(f"the row has {len(rows[-1])} values, but {expected} columns are expected", token)
        if len(rows) > ROWS_MAX:
            raise tokens.error(f"one INSERT can have at most {ROWS_MAX} rows; send several statements", token)
        if not tokens.accept(","):
            return rows


def _conflicts(tokens: Tokens) -> bool:
    return tokens.sees("ON", "CONFLICT") and tokens.peek(2).key in ("DO", "(")


def _conflict(tokens: Tokens) -> ast.ConflictClause:
    tokens.expect("ON", "CONFLICT")
    columns: list[str] = []
    if tokens.accept("("):
        columns.append(tokens.identifier("the name of a key column"))
        while tokens.accept(","):
            columns.append(tokens.identifier("the name of a key column"))
        tokens.expect(")")
    tokens.expect("DO")
    if tokens.one_of("NOTHING", "UPDATE") == "NOTHING":
        return ast.ConflictClause(tuple(columns))
    tokens.expect("SET")
    sets = _sets(tokens, "WHERE", _RETURNING)
    where = None
    if tokens.accept("WHERE"):
        where = tokens.span("a condition", lambda: tokens.next.key == _RETURNING)
    return ast.ConflictClause(tuple(columns), sets, where)


def _returning(tokens: Tokens) -> tuple[ast.ReturnedColumn, ...]:
    """RETURNING and its columns, if it comes next."""
    if not tokens.accept(_RETURNING):
        return ()
    columns: list[ast.ReturnedColumn] = []
    while True:
        if len(columns) >= COLUMNS_MAX:
            raise tokens.error(f"RETURNING can have at most {COLUMNS_MAX} columns")
        if tokens.accept("*"):
            columns.append(ast.ReturnedColumn())
        else:
            first = tokens.next
            value = tokens.value("a value", "AS")
            name = tokens.text[first.start : tokens.last.end]
            if first is tokens.last and first.kind == QUOTED:
                name = first.text
            if tokens.accept("AS"):
                name = tokens.identifier("the name of the column")
            columns.append(ast.ReturnedColumn(name, value))
        if not tokens.accept(","):
            return tuple(columns)


def _row(tokens: Tokens) -> tuple[ast.Assigned, ...]:
    tokens.expect("(")
    values = [_assigned(tokens)]
    while tokens.accept(","):
        values.append(_assigned(tokens))
    tokens.expect(")")
    return tuple(values)


def _assigned(tokens: Tokens, *stops: str) -> ast.Assigned:
    """A value, or DEFAULT."""
    after = tokens.peek()
    ended = after.key in (",", ")", ";", *stops) or after.kind == END
    if ended and tokens.next.kind == WORD and tokens.next.key == "DEFAULT":
        tokens.take()
        return ast.DefaultValue()
    return tokens.value("a value", *stops)


def update(tokens: Tokens, location: Location) -> ast.Statement:
    table = tokens.name("the name of the table")
    tokens.expect("SET")
    sets = _sets(tokens, "WHERE")
    if tokens.next.key != "WHERE":
        tokens.fail("','", "WHERE and a condition (WHERE true: all rows)")
    return ast.UpdateStatement(table=table, sets=sets, where=_where(tokens), returning=_returning(tokens), **location)


def _sets(tokens: Tokens, *stops: str) -> tuple[tuple[str, ast.Assigned], ...]:
    sets: dict[str, ast.Assigned] = {}
    while True:
        token = tokens.next
        several = tokens.accept("(")
        columns = [tokens.identifier("the name of a column")]
        while several and tokens.accept(","):
            columns.append(tokens.identifier("the name of a column"))
        if several:
            tokens.expect(")")
        tokens.expect("=")
        if several:
            values = _row(tokens)
            if len(values) != len(columns):
                raise tokens.error(f"{len(columns)} columns are set to {len(values)} values", token)
        else:
            values = (_assigned(tokens, *stops),)
        for column, value in zip(columns, values, strict=True):
            if column in sets:
                raise tokens.error(f"column {column!r} is set twice", token)
            if len(sets) >= COLUMNS_MAX:
                raise tokens.error(f"a row can have at most {COLUMNS_MAX} columns", token)
            sets[column] = value
        if not tokens.accept(","):
            return tuple(sets.items())


def truncate(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.accept("TABLE")
    return ast.TruncateStatement(table=tokens.name("the name of the table"), **location)


def delete(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("FROM")
    table = tokens.name("the name of the table")
    if tokens.next.key != "WHERE":
        tokens.fail("WHERE and a condition (WHERE true: all rows, or write TRUNCATE)")
    return ast.DeleteStatement(table=table, where=_where(tokens), returning=_returning(tokens), **location)


def _where(tokens: Tokens) -> tuple[ast.Conjunct, ...]:
    """The conditions joined by AND; parentheses around several of them are removed."""
    tokens.expect("WHERE")
    conjuncts: list[ast.Conjunct] = []
    _conjuncts(tokens, conjuncts, 0)
    if not tokens.ends() and tokens.next.key != _RETURNING:
        tokens.fail("AND", "the end of the statement")
    return tuple(conjuncts)


def _conjuncts(tokens: Tokens, conjuncts: list[ast.Conjunct], depth: int) -> None:
    if _either(tokens):  # OR binds weaker than AND, so the conditions around it cannot be taken apart
        conjuncts.append(ast.Conjunct(tokens.span("a condition", lambda: tokens.next.key == _RETURNING)))
        return
    while True:
        if len(conjuncts) >= CONJUNCTS_MAX:
            raise tokens.error(f"a statement can have at most {CONJUNCTS_MAX} conditions")
        if _wrapped(tokens):
            if depth >= DEPTH_MAX:
                raise tokens.error(f"brackets are nested more than {DEPTH_MAX} deep")
            tokens.expect("(")
            _conjuncts(tokens, conjuncts, depth + 1)
            tokens.expect(")")
        else:
            conjuncts.append(_conjunct(tokens))
        if not tokens.accept("AND"):
            return


def _either(tokens: Tokens) -> bool:
    """Whether the next conditions, up to the end of the brackets around them, are joined by OR."""
    depth = cases = 0
    for ahead in range(CONDITION_TOKENS_MAX):
        token = tokens.peek(ahead)
        key = token.key
        if token.kind == END or (not depth and (key in (";", _RETURNING) or key in _CLOSED)):
            return False
        depth += (key in _OPENED) - (key in _CLOSED)
        if not depth:
            cases = max(0, cases + (key == "CASE") - (key == "END"))
            if key == "OR" and not cases:
                return True
    raise _too_long(tokens)


def _wrapped(tokens: Tokens) -> bool:
    """Whether the next condition is a parenthesized list of conditions joined by AND: `(a = 1 AND b > 2)`."""
    if tokens.next.key != "(":
        return False
    depth = 0
    for ahead in range(CONDITION_TOKENS_MAX):
        token = tokens.peek(ahead)
        if token.kind == END:
            return False
        if token.key == "(":
            depth += 1
        elif token.key == ")":
            depth -= 1
            if depth == 0:
                following = tokens.peek(ahead + 1)
                return following.key in ("AND", ")", ";", _RETURNING) or following.kind == END
        elif depth == 1 and token.key in ("OR", ","):
            return False  # a single condition
    raise _too_long(tokens)


def _conjunct(tokens: Tokens) -> ast.Conjunct:
    """One condition. BETWEEN has an AND of its own, and CASE may have one."""
    begins = tokens.next
    pending = 0
    cases = 0

    def stops() -> bool:
        nonlocal pending, cases
        key = tokens.next.key
        if key == "CASE":
            cases += 1
        elif key == "END" and cases:
            cases -= 1
        elif cases:
            return False
        elif key == "BETWEEN":
            pending += 1
        elif key == _RETURNING:
            return True
        elif key == "AND":
            if not pending:
                return True
            pending -= 1
        return False

    if not _equates(tokens):
        return ast.Conjunct(tokens.span("a condition", stops))
    column = tokens.take().text
    tokens.expect("=")
    parameter = tokens.next.kind == PARAMETER
    constant = tokens.constant("AND", _RETURNING)
    if absent(constant):
        value = tokens.span("a value", stops)
        return ast.Conjunct(tokens.expression(begins, tokens.last, value.params), column, value)
    whole = tokens.expression(begins, tokens.last, (constant,) if parameter else ())
    return ast.Conjunct(whole, column, ast.Constant(constant))


def _equates(tokens: Tokens) -> bool:
    """Whether the condition is just `column = value`."""
    if tokens.next.kind not in (WORD, QUOTED) or tokens.peek().key != "=":
        return False
    depth = 0
    for ahead in range(2, CONDITION_TOKENS_MAX):
        token = tokens.peek(ahead)
        if token.kind == END or token.key == ";":
            return True
        if token.key == "(":
            depth += 1
        elif token.key == ")":
            depth -= 1
            if depth < 0:
                return True
        elif depth == 0:
            if token.key in ("AND", _RETURNING):
                return True
            if token.key in _JOINING:
                return False
    raise _too_long(tokens)


def _too_long(tokens: Tokens) -> SqlError:
    return tokens.error(f"the condition that begins here has more than {CONDITION_TOKENS_MAX} tokens")

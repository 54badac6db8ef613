"""The grammar of statements that define tables: columns, constraints, indexes, settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace import limits
from tailrace.sql import statements as ast
from tailrace.sql.lexer import END, PARAMETER, WORD
from tailrace.sql.tokens import Location, Tokens
from tailrace.sql.topic_grammar import settings
from tailrace.tables.number import DIGITS_MAX

COLUMNS_MAX: Final = 1_000  # of a table
BOTH: Final = "NEW_AND_OLD_IMAGES"
VIEWS: Final = (BOTH, "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY")

_KINDS: Final = {
    "TEXT": "TEXT VARCHAR STRING CHAR",
    "BIGINT": "BIGINT INT INTEGER SMALLINT INT8 INT4",
    "DOUBLE": "DOUBLE FLOAT REAL FLOAT8",
    "DECIMAL": "DECIMAL NUMERIC NUMBER",
    "BOOLEAN": "BOOLEAN BOOL",
    "BLOB": "BLOB BYTEA BINARY VARBINARY BYTES",
    "JSON": "JSON JSONB",
    "TIMESTAMP": "TIMESTAMP DATETIME TIMESTAMPTZ",
    "DATE": "DATE",
    "UUID": "UUID",
}
KINDS: Final = {alias: kind for kind, aliases in _KINDS.items() for alias in aliases.split()}

# -- tables


def create_table(tokens: Tokens, location: Location) -> ast.Statement:
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the table")
    tokens.expect("(")
    columns: dict[str, ast.ColumnSpec] = {}
    lowered: dict[str, str] = {}  # their names by these in lower case
    checks: list[ast.CheckSpec] = []
    key: tuple[str, ...] = ()
    while True:
        token = tokens.next
        named: tuple[str, ...] = ()
        if _checks(tokens):
            checks.append(_check(tokens))
        elif tokens.sees("PRIMARY", "KEY", "("):
            named = _primary_key(tokens)
            missing = [each for each in named if each not in columns]
            if missing:
                raise tokens.error(f"key column {missing[0]!r} must be declared before PRIMARY KEY", token)
        else:
            column, named = _column(tokens)
            if column.name.lower() in lowered:
                known = lowered[column.name.lower()]
                alike = "" if known == column.name else f", as {known!r}: names of columns differ in more than case"
                raise tokens.error(f"column {column.name!r} is declared twice{alike}", token)
            if len(columns) >= COLUMNS_MAX:
                raise tokens.error(f"a table can have at most {COLUMNS_MAX} columns")
            columns[column.name] = column
            lowered[column.name.lower()] = column.name
        if named and key:
            raise tokens.error(
                "the table already has a primary key; for a key of two columns, write PRIMARY KEY (a, b)", token
            )
        key = named or key
        if not tokens.accept(","):
            break
    if tokens.next.key != ")":
        tokens.fail("','", "')'")
    closing = tokens.take()
    if not key:
        raise tokens.error(
            "the table has no primary key; write PRIMARY KEY after the column that identifies a row", closing
        )
    given = table_settings(tokens) if tokens.accept("WITH") else ast.TableSettings()
    return ast.CreateTableStatement(
        name=name, columns=tuple(columns.values()), key=key, if_not_exists=fresh, settings=given,
        checks=tuple(checks), **location,
    )  # fmt: skip


def _checks(tokens: Tokens) -> bool:
    return tokens.sees("CHECK", "(") or (tokens.next.key == "CONSTRAINT" and tokens.peek(2).key == "CHECK")


def _check(tokens: Tokens) -> ast.CheckSpec:
    name = tokens.identifier("the name of the constraint") if tokens.accept("CONSTRAINT") else ""
    tokens.expect("CHECK")
    return ast.CheckSpec(name, tokens.bracketed("a condition"))


def _column(tokens: Tokens) -> tuple[ast.ColumnSpec, tuple[str, ...]]:
    """A column, and its name as the key if it is declared PRIMARY KEY."""
    name = tokens.identifier("the name of a column")
    kind = KINDS.get(tokens.next.key) if tokens.next.kind == WORD else None
    if kind is None:
        tokens.fail(f"the type of column {name!r}: {', '.join(_KINDS)}")
    tokens.take()
    if kind == "DOUBLE":
        tokens.accept("PRECISION")
    length: int | None = None
    digits: int | None = None
    scale = 0
    if tokens.next.key == "(":
        if kind not in ("TEXT", "DECIMAL"):
            raise tokens.error(f"a type of this kind has no length or precision; write {kind} alone")
        tokens.take()
        if kind == "TEXT":
            length = tokens.integer("the length", 1, limits.ITEM_BYTES_MAX)
        else:
            digits = tokens.integer("the number of digits", 1, DIGITS_MAX)
            scale = tokens.integer("the number of digits after the point", 0, digits) if tokens.accept(",") else 0
        tokens.expect(")")
    key, required = False, False
    default: ast.Expression | None = None
    checks: list[ast.CheckSpec] = []
    while True:
        if tokens.accept("PRIMARY"):
            tokens.expect("KEY")
            key = True
        elif tokens.accept("NOT"):
            tokens.expect("NULL")
            required = True
        elif tokens.accept("DEFAULT"):
            default = _default(tokens)
        elif _checks(tokens):
            checks.append(_check(tokens))
        elif not tokens.accept("NULL"):
            spec = ast.ColumnSpec(name, kind, required or key, length, default, tuple(checks), digits, scale)
            return spec, (name,) if key else ()


def _default(tokens: Tokens) -> ast.Expression:
    """A literal, or an expression up to the next constraint."""
    if tokens.next.kind == PARAMETER:
        raise tokens.error("a default is stored, and cannot be a parameter; write the value")
    if tokens.next.key == "NULL":
        return tokens.expression(tokens.next, tokens.take(), ())
    stops = ("PRIMARY", "NOT", "NULL", "DEFAULT", "CHECK", "CONSTRAINT", ",", "WITH")
    return tokens.span("a value", lambda: tokens.next.key in stops)


def _primary_key(tokens: Tokens) -> tuple[str, ...]:
    tokens.expect("PRIMARY", "KEY", "(")
    names = [tokens.identifier("the name of a column")]
    while tokens.accept(","):
        token = tokens.next
        names.append(tokens.identifier("the name of a column"))
        if len(names) > 2 or names[0] == names[1]:
            raise tokens.error("a key has one or two columns: the partition key and, optionally, the sort key", token)
    tokens.expect(")")
    return tuple(names)


def table_settings(tokens: Tokens) -> ast.TableSettings:
    def number(name: str) -> Callable[[], int | None]:
        return lambda: None if tokens.accept("NULL") else tokens.integer(name, 1, limits.POSITION_MAX)

    def stream() -> str | None:
        if tokens.accept("TRUE"):
            return BOTH
        if tokens.accept("FALSE") or tokens.accept("NULL"):
            return None
        return _view(tokens)

    def ttl() -> str | None:
        return None if tokens.accept("NULL") else tokens.name("the column with the expiry time of a row")

    given = settings(
        tokens,
        {
            "stream": stream,
            "ttl": ttl,
            "retention_seconds": number("retention_seconds"),
            "retention_records": number("retention_records"),
        },
    )
    return ast.TableSettings(**given)


def _view(tokens: Tokens) -> str:
    token = tokens.next
    view = tokens.word_or_string("the view").upper()
    if view not in VIEWS:
        raise tokens.error(f"unknown stream view {view[:40]!r}; use {', '.join(VIEWS)}", token)
    return view


def drop_table(tokens: Tokens, location: Location) -> ast.Statement:
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropTableStatement(name=tokens.name("the name of the table"), if_exists=quiet, **location)


def alter_table(tokens: Tokens, location: Location) -> ast.Statement:
    table = tokens.name("the name of the table")
    what = tokens.one_of("ENABLE", "DISABLE", "ADD", "DROP", "RENAME", "SET")
    if what == "SET":
        return ast.SetTableStatement(table=table, settings=table_settings(tokens), **location)
    if what in ("ADD", "DROP", "RENAME"):
        return _alter_column(tokens, table, what, location)
    tokens.expect("STREAM")
    if what == "DISABLE":
        return ast.DisableStreamStatement(table=table, **location)
    view = settings(tokens, {"view": lambda: _view(tokens)})["view"] if tokens.accept("WITH") else BOTH
    return ast.EnableStreamStatement(table=table, view=view, **location)


def _alter_column(tokens: Tokens, table: str, what: str, location: Location) -> ast.Statement:
    if what == "ADD" and _checks(tokens):
        check = _check(tokens)
        return ast.ConstraintStatement(table=table, name=check.name, condition=check.condition, **location)
    if what == "DROP" and tokens.next.key == "CONSTRAINT" and tokens.peek().kind != END:
        tokens.take()
        quiet = tokens.accept("IF", "EXISTS")
        name = tokens.identifier("the name of the constraint")
        return ast.ConstraintStatement(table=table, name=name, if_exists=quiet, **location)
    tokens.accept("COLUMN")
    if what == "ADD":
        fresh = tokens.accept("IF", "NOT", "EXISTS")
        token = tokens.next
        column, key = _column(tokens)
        if key:
            raise tokens.error("the key of a table cannot be changed; create another table", token)
        return ast.AddColumnStatement(table=table, added=column, if_not_exists=fresh, **location)
    if what == "DROP":
        quiet = tokens.accept("IF", "EXISTS")
        name = tokens.identifier("the name of the column")
        return ast.DropColumnStatement(table=table, name=name, if_exists=quiet, **location)
    name = tokens.identifier("the name of the column")
    tokens.expect("TO")
    return ast.RenameColumnStatement(table=table, name=name, to=tokens.identifier("the new name"), **location)


def create_index(tokens: Tokens, location: Location) -> ast.Statement:
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the index")
    tokens.expect("ON")
    table = tokens.name("the name of the table")
    tokens.expect("(")
    columns = [tokens.identifier("the name of a column")]
    while tokens.accept(","):
        token = tokens.next
        columns.append(tokens.identifier("the name of a column"))
        if len(columns) > 2 or columns[0] == columns[1]:
            raise tokens.error("an index has one or two columns: one to find by, and one to order by", token)
    tokens.expect(")")
    return ast.CreateIndexStatement(name=name, table=table, columns=tuple(columns), if_not_exists=fresh, **location)


def drop_index(tokens: Tokens, location: Location) -> ast.Statement:
    quiet = tokens.accept("IF", "EXISTS")
    name = tokens.name("the name of the index")
    tokens.expect("ON")
    return ast.DropIndexStatement(name=name, table=tokens.name("the name of the table"), if_exists=quiet, **location)

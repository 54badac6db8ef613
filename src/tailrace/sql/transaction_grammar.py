"""The grammar of BEGIN, COMMIT and ROLLBACK."""

from __future__ import annotations

from tailrace.sql import statements as ast
from tailrace.sql.tokens import Location, Tokens


def begin(tokens: Tokens, location: Location) -> ast.Statement:
    _noise(tokens)
    tokens.accept("ISOLATION", "LEVEL", "SERIALIZABLE")
    return ast.BeginStatement(**location)


def start(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("TRANSACTION")
    tokens.accept("ISOLATION", "LEVEL", "SERIALIZABLE")
    return ast.BeginStatement(**location)


def commit(tokens: Tokens, location: Location) -> ast.Statement:
    _noise(tokens)
    return ast.CommitStatement(**location)


def rollback(tokens: Tokens, location: Location) -> ast.Statement:
    _noise(tokens)
    return ast.RollbackStatement(**location)


def _noise(tokens: Tokens) -> None:
    if not tokens.accept("TRANSACTION"):
        tokens.accept("WORK")

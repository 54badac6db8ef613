"""sqlglot's tokens of a SELECT, before they are parsed: what its DuckDB dialect does not read as DuckDB does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import Token, TokenType


def numbered(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens with each ? replaced by its number, so that the syntax tree has it."""
    number = 0
    for token in tokens:
        if token.token_type == TokenType.PLACEHOLDER:
            number += 1
            where = (token.line, token.col, token.start, token.end)
            yield Token(TokenType.PARAMETER, "$", *where)
            yield Token(TokenType.NUMBER, str(number), *where)
        else:
            yield token


def with_bytes(tokens: list[Token]) -> Iterator[Token]:
    """The tokens with X'00ff' as a single one: DuckDB accepts it, sqlglot's DuckDB dialect does not."""
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

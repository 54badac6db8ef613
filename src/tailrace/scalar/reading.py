"""Parsing of an expression to a syntax tree, within limits: a text that is too long or too deep is never parsed.

The parser is sqlglot's, for DuckDB's dialect. It is recursive, so the depth is checked on the tokens before it runs.
"""

from __future__ import annotations

import re
from typing import Final

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from tailrace.scalar.problem import ExpressionError, TextOrigin

TEXT_CHARACTERS_MAX: Final = 16_384  # of a condition, or of a stored expression
VALUE_CHARACTERS_MAX: Final = 1_048_576  # of a value in a statement: it may contain a text as long as an item
DEPTH_MAX: Final = 24  # nested parentheses, CASE and operators
NODES_MAX: Final = 4_096  # of one expression's tree
TOKENS_MAX: Final = 10_000  # of its text: parsing holds the interpreter lock
DIALECT: Final = "duckdb"

_OPENING: Final = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE))
_CLOSING: Final = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END))
_PREFIX: Final = frozenset((TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE))
# Postfix operators, whose chains are nested: a.b[1]::TEXT -> 'c'
_POSTFIX: Final = frozenset(
    (TokenType.DOT, TokenType.L_BRACKET, TokenType.DCOLON, TokenType.ARROW, TokenType.DARROW, TokenType.COLLATE)
)
# Tokens that end a chain of postfix operators.
_BETWEEN: Final = frozenset(
    (
        TokenType.COMMA, TokenType.SEMICOLON, TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.EQ, TokenType.NEQ,
        TokenType.LT, TokenType.GT, TokenType.LTE, TokenType.GTE, TokenType.PLUS, TokenType.DASH, TokenType.STAR,
        TokenType.SLASH, TokenType.DIV, TokenType.MOD, TokenType.DPIPE, TokenType.IN, TokenType.IS, TokenType.LIKE,
        TokenType.ILIKE, TokenType.BETWEEN, TokenType.CASE, TokenType.WHEN, TokenType.THEN, TokenType.ELSE,
        TokenType.END, TokenType.SELECT, TokenType.FROM, TokenType.WHERE, TokenType.JOIN, TokenType.ON,
        TokenType.USING, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING, TokenType.LIMIT, TokenType.UNION,
        TokenType.EXCEPT, TokenType.INTERSECT, TokenType.VALUES, TokenType.WITH,
    )
)  # fmt: skip
# Whole texts and comments; an unterminated one matches with its first character only.
_QUOTED: Final = re.compile(r"'[^']*(?:''[^']*)*'(?!')|\"[^\"]*(?:\"\"[^\"]*)*\"(?!\")|--[^\n]*|/\*.*?\*/|.", re.DOTALL)


def read(text: str, origin: TextOrigin, characters_max: int = TEXT_CHARACTERS_MAX) -> exp.Expr:
    """The tree of one expression; raises ExpressionError with the location if the text is not valid."""
    if len(text) > characters_max:
        raise origin.error(
            f"the expression has {len(text)} characters; an expression can have at most {characters_max}", 1, 1
        )
    tokens = _tokens(text, origin)
    _check_tokens(tokens, origin)
    try:
        tree = sqlglot.parse_one(text, dialect=DIALECT, into=exp.Condition)
    except ParseError as error:
        raise _syntax(error, origin) from None
    except TokenError:
        raise _unclosed(text, origin) from None
    except RecursionError:
        raise too_deep(origin) from None
    except Exception:  # a bug in sqlglot: a text that it cannot parse is refused
        raise origin.error("syntax error: the text cannot be parsed", 1, 1) from None
    return tree


def too_deep(origin: TextOrigin, node: exp.Expr | None = None) -> ExpressionError:
    """The error for an expression that is nested too deeply."""
    reason = f"an expression can be nested at most {DEPTH_MAX} levels deep; simplify it"
    return origin.error(reason, 1, 1) if node is None else origin.error_at(reason, node)


def _tokens(text: str, origin: TextOrigin) -> list[Token]:
    try:
        return list(sqlglot.tokenize(text, dialect=DIALECT))
    except TokenError:
        raise _unclosed(text, origin) from None


def _check_tokens(tokens: list[Token], origin: TextOrigin) -> None:
    if not tokens:
        raise origin.error("the expression is empty", 1, 1)
    if len(tokens) > TOKENS_MAX:
        raise origin.error(f"an expression can have at most {TOKENS_MAX} tokens", *_location(tokens[TOKENS_MAX]))
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise origin.error("an expression cannot contain a semicolon", *_location(token))
    deep = first_too_deep(tokens, DEPTH_MAX)
    if deep is not None:
        raise origin.error(
            f"an expression can be nested at most {DEPTH_MAX} levels deep; simplify it", *_location(deep)
        )


def first_too_deep(tokens: list[Token], depth_max: int) -> Token | None:
    """The first token that exceeds the depth of brackets and prefix operators, or of postfix operators (paths, casts);
    None if there is none. The parser is recursive in the former, and quadratic in the latter."""
    depth = prefixes = rows = 0  # rows: the postfix operators in the chains of all open brackets
    around: list[int] = []  # the chain that each open bracket interrupts
    row = 0
    for token in tokens:
        kind = token.token_type
        if kind in _BETWEEN:
            rows, row = rows - row, 0
        if kind in _POSTFIX:
            rows, row = rows + 1, row + 1
        if kind in _OPENING:
            depth += 1
            around.append(row)
            row = 0
        elif kind in _CLOSING:
            depth -= 1
            rows -= row
            row = around.pop() if around else 0
        prefixes = prefixes + 1 if kind in _PREFIX else 0
        if max(depth, 0) + prefixes > depth_max or rows > depth_max:
            return token
    return None


def _location(token: Token) -> tuple[int, int]:
    return token.line, max(1, token.col - (token.end - token.start))


def _syntax(error: ParseError, origin: TextOrigin) -> ExpressionError:
    details = error.errors[0] if error.errors else {}
    highlight = str(details.get("highlight") or "")
    line, column = int(details.get("line") or 1), int(details.get("col") or 1)
    column = max(1, column - len(highlight) + 1)
    description = str(details.get("description") or "")
    if description.startswith("Expecting "):
        reason = f"{description.removeprefix('Expecting ')} is missing at {highlight!r}"
    elif description.startswith("Required keyword"):
        reason = f"something is missing at {highlight!r}"
    elif description.startswith("The number of provided arguments"):
        reason = f"too many arguments at {highlight!r}"
    else:
        reason = f"unexpected {highlight!r}"
    return origin.error(f"syntax error: {reason}", line, column)


def _unclosed(text: str, origin: TextOrigin) -> ExpressionError:
    for match in _QUOTED.finditer(text):
        mark = match.group()
        if mark in ("'", '"') or (mark == "/" and text.startswith("/*", match.start())):
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            what = "comment" if mark == "/" else "quote"
            return origin.error(f"syntax error: the {what} that begins here is not closed", line, column)
    return origin.error("syntax error: the text cannot be parsed", 1, 1)

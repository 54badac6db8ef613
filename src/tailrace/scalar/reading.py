"""From text to a syntax tree, within bounds: what is too long or too deep never reaches the parser.

sqlglot parses, as DuckDB's dialect has it. Its parser is recursive, so depth is bounded on the tokens before it runs.
"""

from __future__ import annotations

import re
from typing import Final

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from tailrace.scalar.problem import ExpressionError, Origin

TEXT_CHARACTERS_MAX: Final = 16_384  # of a condition, or of what is kept
VALUE_CHARACTERS_MAX: Final = 1_048_576  # of a value that a statement gives: it may hold a text as long as an item
DEPTH_MAX: Final = 24  # parentheses, CASE and operators inside one another
NODES_MAX: Final = 4_096  # of one expression's tree
TOKENS_MAX: Final = 10_000  # of its text: while it is parsed, nobody else runs
DIALECT: Final = "duckdb"

_OPENING: Final = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE))
_CLOSING: Final = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END))
_PREFIX: Final = frozenset((TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE))
# What takes all that is before it as its operand, so that a row of them nests: a.b[1]::TEXT -> 'c'
_POSTFIX: Final = frozenset(
    (TokenType.DOT, TokenType.L_BRACKET, TokenType.DCOLON, TokenType.ARROW, TokenType.DARROW, TokenType.COLLATE)
)
# What a row of them never goes beyond.
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
# Whole texts and comments; what is left over of one that does not end is its first character.
_QUOTED: Final = re.compile(r"'(?:[^']|'')*+'|\"(?:[^\"]|\"\")*+\"|--[^\n]*+|/\*.*?\*/|.", re.DOTALL)


def read(text: str, origin: Origin, characters_max: int = TEXT_CHARACTERS_MAX) -> exp.Expr:
    """The tree of one expression; raises ExpressionError with the place if the text is none."""
    if len(text) > characters_max:
        raise origin.error(f"an expression has at most {characters_max} characters, this one {len(text)}", 1, 1)
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
    except Exception:  # our text made the parser of others fail: what it cannot read is not taken
        raise origin.error("syntax error: the text cannot be read", 1, 1) from None
    return tree


def too_deep(origin: Origin, node: exp.Expr | None = None) -> ExpressionError:
    """The error of an expression whose parts are too deep inside one another."""
    reason = f"an expression may be nested {DEPTH_MAX} deep; take a part of it out"
    return origin.error(reason, 1, 1) if node is None else origin.error_at(reason, node)


def _tokens(text: str, origin: Origin) -> list[Token]:
    try:
        return list(sqlglot.tokenize(text, dialect=DIALECT))
    except TokenError:
        raise _unclosed(text, origin) from None


def _check_tokens(tokens: list[Token], origin: Origin) -> None:
    if not tokens:
        raise origin.error("the expression is empty", 1, 1)
    if len(tokens) > TOKENS_MAX:
        raise origin.error(f"an expression has at most {TOKENS_MAX} words and signs", *_place(tokens[TOKENS_MAX]))
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            raise origin.error("an expression has no semicolon", *_place(token))
    deep = first_too_deep(tokens, DEPTH_MAX)
    if deep is not None:
        raise origin.error(f"an expression may be nested {DEPTH_MAX} deep; take a part of it out", *_place(deep))


def first_too_deep(tokens: list[Token], depth_max: int) -> Token | None:
    """The first token that is more than so deep inside of brackets, signs before an operand and what comes after one
    (paths, casts); None if there is none. The parser recurses with the former, and is quadratic in the latter."""
    depth = prefixes = rows = 0  # rows: of postfixes, of all brackets that are open
    around: list[int] = []  # the row that each open bracket interrupts
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


def _place(token: Token) -> tuple[int, int]:
    return token.line, max(1, token.col - (token.end - token.start))


def _syntax(error: ParseError, origin: Origin) -> ExpressionError:
    found = error.errors[0] if error.errors else {}
    highlight = str(found.get("highlight") or "")
    line, column = int(found.get("line") or 1), int(found.get("col") or 1)
    column = max(1, column - len(highlight) + 1)
    description = str(found.get("description") or "")
    if description.startswith("Expecting "):
        reason = f"{description.removeprefix('Expecting ')} is missing at {highlight!r}"
    elif description.startswith("Required keyword"):
        reason = f"something is missing at {highlight!r}"
    elif description.startswith("The number of provided arguments"):
        reason = f"the function takes fewer arguments at {highlight!r}"
    else:
        reason = f"{highlight!r} is not expected here"
    return origin.error(f"syntax error: {reason}", line, column)


def _unclosed(text: str, origin: Origin) -> ExpressionError:
    for found in _QUOTED.finditer(text):
        mark = found.group()
        if mark in ("'", '"') or (mark == "/" and text.startswith("/*", found.start())):
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            what = "comment" if mark == "/" else "quote"
            return origin.error(f"syntax error: the {what} that begins here does not end", line, column)
    return origin.error("syntax error: the text cannot be read", 1, 1)

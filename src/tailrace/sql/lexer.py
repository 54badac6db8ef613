"""The lexer: from text to tokens. One regular expression that never backtracks far, so the time is linear in the text.

A token knows where it begins; lines and columns are computed only for errors. Comments (`--` and `/* */`) and white
space are skipped. Signs that the statements have no use for (operators, brackets) become one token per character:
expressions and SELECT are passed on as text and parsed elsewhere.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.errors import TooLarge
from tailrace.sql.error import syntax_error

TEXT_CHARACTERS_MAX: Final = 1024 * 1024  # of a text with all its statements; more is 413
TOKENS_MAX: Final = 200_000  # of a text
NUMBER_CHARACTERS_MAX: Final = 200
EXPONENT_CHARACTERS_MAX: Final = 5

WORD: Final = 1  # a name or a keyword, as written
QUOTED: Final = 2  # "a name"
TEXT: Final = 3  # 'a text' or $$a text$$
NUMBER: Final = 4
PARAMETER: Final = 5  # ? or $1
BYTES: Final = 6  # X'00ff'
SIGN: Final = 7  # any other character
END: Final = 8
NAMES: Final = ("", "a word", "a quoted name", "a text", "a number", "a parameter", "bytes", "a sign", "the end")

# White space before a token is part of its match, which saves an iteration. A comment is a match without a group, as is
# the end. The groups are the kinds above, in order, followed by dollar-quoted texts, unterminated tokens and signs.
# What follows a repetition of characters is never one of them, and the last alternatives match any text, so there is
# nothing to backtrack for. A text with quotes inside it, 'it''s', is several matches, 'it' and 's': one match of any
# number of them would remember each, and take memory in proportion.
_PATTERN: Final = re.compile(
    r"""
    \s*
    (?:
      ( (?![xX]')[^\W\d]\w* )
    | ( "[^"]*" )
    | ( '[^']*' )
    | ( (?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)? )
    | ( \?|\$\d+ )
    | ( [xX]'[^']*' )
    | ( \$((?:[^\W\d]\w{0,62})?)\$.*?\$\8\$ )
    | --[^\n]*
    | /\*.*?\*/
    | ( /\*|'|"|\$|\0 )
    | ( . )
    | \Z
    )
    """,
    re.X | re.S,
)
_DOLLARS: Final = 7  # the group of a text between $$ or $tag$; the next group is the tag
_BAD: Final = 9  # the group of an invalid token; the next group is SIGN
_UNENDED: Final = {
    "/*": "the comment that begins here is not closed; close it with */",
    "'": "the text that begins here is not closed; close it with ' (write a quote inside it twice: '')",
    '"': 'the quoted name that begins here is not closed; close it with " (write a quote inside it twice: "")',
    "$": "a parameter is ? or $ and a number, such as $1; a text that begins with $$ must end with $$",
    "\0": "NUL characters are not allowed in SQL",
}


class Token(NamedTuple):
    kind: int
    text: str  # without quotes
    start: int
    end: int
    key: str  # the token as the grammar compares it: a keyword in upper case, or a sign


def lex(text: str) -> list[Token]:
    """The tokens of a text; the last one is END."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise TooLarge(
            f"the SQL text has {len(text)} characters; the limit is {TEXT_CHARACTERS_MAX}; send fewer statements at a "
            "time",
            code="SQL_TOO_LARGE",
        )
    tokens: list[Token] = []
    add, make = tokens.append, tuple.__new__
    opened = -1  # where the text or name begins that the next match goes on with
    for match in _PATTERN.finditer(text):
        kind = match.lastindex
        if kind is None:  # a comment, or the end
            continue
        matched = match[kind]
        start, end = match.span(kind)
        if kind == WORD:
            add(make(Token, (WORD, matched, start, end, matched.upper())))
        elif kind > _BAD:
            add(make(Token, (SIGN, matched, start, end, matched)))
        elif kind == PARAMETER:
            add(Token(PARAMETER, matched[1:], start, end, ""))
        elif kind == NUMBER:
            add(Token(NUMBER, _number(text, start, end), start, end, ""))
        elif kind == BYTES:
            add(Token(BYTES, _bytes(text, start, matched[2:-1]), start, end, ""))
        elif kind == _DOLLARS:
            tag = len(match[_DOLLARS + 1]) + 2
            add(Token(TEXT, matched[tag:-tag], start, end, ""))
        elif kind == _BAD:
            raise syntax_error(text, start if opened < 0 else opened, _UNENDED[matched])
        else:
            quote = matched[0]
            if text.startswith(quote, end):  # a quote inside it
                opened = start if opened < 0 else opened
                continue
            if opened >= 0:
                start, opened = opened, -1
            add(Token(kind, text[start + 1 : end - 1].replace(quote + quote, quote), start, end, ""))
    if len(tokens) > TOKENS_MAX:
        raise TooLarge(
            f"the SQL text has {len(tokens)} tokens; the limit is {TOKENS_MAX}; send fewer statements at a time",
            code="SQL_TOO_LARGE",
        )
    add(Token(END, "", len(text), len(text), ""))
    return tokens


def _number(text: str, start: int, end: int) -> str:
    if end - start > NUMBER_CHARACTERS_MAX:
        raise syntax_error(text, start, f"a number can have at most {NUMBER_CHARACTERS_MAX} digits")
    number = text[start:end]
    _, _, exponent = number.lower().partition("e")
    if len(exponent) > EXPONENT_CHARACTERS_MAX:
        raise syntax_error(text, start, "the number's exponent is too large")
    return number


def _bytes(text: str, start: int, digits: str) -> str:
    try:
        bytes.fromhex(digits)
    except ValueError:
        raise syntax_error(text, start, "bytes must be pairs of hexadecimal digits, such as X'00ff'") from None
    return digits


def parameter_number(text: str) -> int:
    """The number of a parameter, counted from 1; 0 if the text is not one. int() itself raises for very long texts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0

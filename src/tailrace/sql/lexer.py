"""From text to tokens. One regular expression that never looks back, so the time is that of reading the text once.

A token knows where it begins; lines and columns are counted only when an error wants them. Comments (`--` and `/* */`)
and white space are passed over. What the statements have no use for (operators, brackets) comes through one
character at a time: expressions and SELECT are cut out of the text as they are, and read by others.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tailrace.errors import TooLarge
from tailrace.sql.error import wrong

TEXT_CHARACTERS_MAX: Final = 1024 * 1024  # of all statements of one text; more is 413
TOKENS_MAX: Final = 200_000  # and their tokens
NUMBER_CHARACTERS_MAX: Final = 200
EXPONENT_CHARACTERS_MAX: Final = 5

WORD: Final = 1  # a name or a keyword, as it was written
QUOTED: Final = 2  # "a name"
TEXT: Final = 3  # 'a text' or $$a text$$
NUMBER: Final = 4
PARAMETER: Final = 5  # ? or $1
BYTES: Final = 6  # X'00ff'
SIGN: Final = 7  # any other character
END: Final = 8
NAMES: Final = ("", "a word", "a quoted name", "a text", "a number", "a parameter", "bytes", "a sign", "the end")

# Blanks before a token are part of its match, so that they cost no turn of their own. The groups are the kinds above,
# in their order, but for what no token begins with.
_PATTERN: Final = re.compile(
    r"""
    (?: \s++ | --[^\n]*+ | /\*(?:[^*]++|\*(?!/))*+\*/ )*+
    (?:
      ( (?![xX]')[^\W\d]\w*+ )
    | ( "(?:[^"]++|"")*+" )
    | ( '(?:[^']++|'')*+' )
    | ( (?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+ )
    | ( \?|\$\d++ )
    | ( [xX]'[^']*+' )
    | ( \$((?:[^\W\d]\w{0,62}+)?+)\$.*?\$\8\$ )
    | ( /\*|'|"|\$|\0 )
    | ( . )
    | \Z
    )
    """,
    re.X | re.S,
)
_DOLLARS: Final = 7  # the group of a text between $$ or $tag$; the one behind it is the tag
_BAD: Final = 9  # the group of what is wrong; SIGN is the one behind it
_UNENDED: Final = {
    "/*": "a comment that begins here has no end; close it with */",
    "'": "a text that begins here has no end; close it with ' (a quote inside it is written twice: '')",
    '"': 'a quoted name that begins here has no end; close it with " (a quote inside it is written twice: "")',
    "$": "a parameter is ? or a number after $, such as $1; a text that begins with $$ ends with $$",
    "\0": "a NUL character is not part of SQL",
}


class Token(NamedTuple):
    kind: int
    text: str  # as it means: without quotes
    start: int
    end: int
    key: str  # what grammar compares with: a keyword in capitals, or a sign


def lex(text: str) -> list[Token]:
    """The tokens of a text; the last one is END."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise TooLarge(
            f"the SQL text has {len(text)} characters, at most {TEXT_CHARACTERS_MAX} are taken; send fewer statements "
            "at a time",
            code="SQL_TOO_LARGE",
        )
    tokens: list[Token] = []
    add, make = tokens.append, tuple.__new__
    for match in _PATTERN.finditer(text):
        kind = match.lastindex
        if kind is None:  # nothing but blanks was left
            break
        found = match[kind]
        start, end = match.span(kind)
        if kind == WORD:
            add(make(Token, (WORD, found, start, end, found.upper())))
        elif kind > _BAD:
            add(make(Token, (SIGN, found, start, end, found)))
        elif kind == PARAMETER:
            add(Token(PARAMETER, found[1:], start, end, ""))
        elif kind == NUMBER:
            add(Token(NUMBER, _number(text, start, end), start, end, ""))
        elif kind == BYTES:
            add(Token(BYTES, _bytes(text, start, found[2:-1]), start, end, ""))
        elif kind == _DOLLARS:
            tag = len(match[_DOLLARS + 1]) + 2
            add(Token(TEXT, found[tag:-tag], start, end, ""))
        elif kind == _BAD:
            raise wrong(text, start, _UNENDED[found])
        else:
            quote = found[0]
            add(Token(kind, found[1:-1].replace(quote + quote, quote), start, end, ""))
    if len(tokens) > TOKENS_MAX:
        raise TooLarge(
            f"the SQL text has {len(tokens)} words and signs, at most {TOKENS_MAX} are taken; send fewer statements at "
            "a time",
            code="SQL_TOO_LARGE",
        )
    add(Token(END, "", len(text), len(text), ""))
    return tokens


def _number(text: str, start: int, end: int) -> str:
    if end - start > NUMBER_CHARACTERS_MAX:
        raise wrong(text, start, f"a number has at most {NUMBER_CHARACTERS_MAX} digits")
    found = text[start:end]
    _, _, exponent = found.lower().partition("e")
    if len(exponent) > EXPONENT_CHARACTERS_MAX:
        raise wrong(text, start, "the number's exponent is out of all bounds")
    return found


def _bytes(text: str, start: int, digits: str) -> str:
    try:
        bytes.fromhex(digits)
    except ValueError:
        raise wrong(text, start, "bytes are written as pairs of hexadecimal digits, such as X'00ff'") from None
    return digits


def parameter_number(text: str) -> int:
    """The number of a parameter, from 1 on; 0 if the text is none. int() of a long text is an error of its own."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0

"""The token reader that all grammar rules are built on.

A rule looks at the next token and takes it, or raises an error with the tokens it expected. Keywords are recognized by
position and are not reserved, so a topic may be called `group`. A parameter is allowed wherever a value is; its value
is bound while parsing, so that the error for a bad value points at its question mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from tailrace.sql.error import FOUND_CHARACTERS_MAX, SqlError, line_column, secret, syntax_error
from tailrace.sql.lexer import BYTES, END, NAMES, NUMBER, PARAMETER, QUOTED, SIGN, TEXT, WORD, Token, lex
from tailrace.sql.statements import Constant, Expression, Value

T = TypeVar("T")
Location: TypeAlias = dict[str, Any]  # where a statement begins, as its fields `line` and `column`

DEPTH_MAX: Final = 100  # nested brackets
EXPRESSIONS_MAX: Final = 2_000  # per text; constants and parameters do not count
NAME_PARTS_MAX: Final = 16  # of a dotted name
INTEGER_MAX: Final = 2**63 - 1
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_CLOSING: Final = frozenset(_OPENING.values())
_WORDS: Final[dict[str, Any]] = {"TRUE": True, "FALSE": False, "NULL": None}
_MISSING: Final[Any] = object()


class Tokens:
    """The tokens of a text, read one at a time; `next` is the next one."""

    def __init__(self, text: str, params: Sequence[Any] = ()) -> None:
        self.text = text
        self.params = tuple(params)
        self.used = 0  # question marks so far
        self.numbered = 0  # the highest $n so far
        self._expressions = 0
        self._located = (0, 1, 0)  # the last character located, its line, and where that line begins
        self._tokens = lex(text)
        self._at = 0
        self.next: Token = self._tokens[0]

    # -- looking and taking

    def take(self) -> Token:
        """Take the next token, which is not END."""
        token = self.next
        self._at += 1
        self.next = self._tokens[self._at]
        return token

    def peek(self, ahead: int = 1) -> Token:
        """A token further ahead; END after the last one."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else self._tokens[-1]

    def sees(self, key: str, *more: str) -> bool:
        """Whether these keywords or signs come next."""
        if self.next.key != key:
            return False
        return not more or all(self.peek(ahead).key == each for ahead, each in enumerate(more, start=1))

    def accept(self, key: str, *more: str) -> bool:
        """Take these keywords or signs, if they come next."""
        if self.next.key != key or (more and not self.sees(key, *more)):
            return False
        self._at += 1 + len(more)
        self.next = self._tokens[self._at]
        return True

    def expect(self, *keys: str) -> None:
        """Take these keywords or signs, or raise an error that names the missing one."""
        for key in keys:
            if self.next.key != key:
                self.fail(key)
            self.take()

    def one_of(self, *keys: str) -> str:
        """Take one of these keywords."""
        key = self.next.key
        if key not in keys:
            self.fail(*keys)
        self.take()
        return key

    def ends(self) -> bool:
        """Whether the statement ends here."""
        return self.next.kind == END or self.next.key == ";"

    # -- errors

    def fail(self, *expected: str) -> NoReturn:
        """Raise the error for an unexpected token, with what was expected instead."""
        raise self.expected(*expected)

    def expected(self, *expected: str) -> SqlError:
        """The error that `fail` raises."""
        words = list(dict.fromkeys(expected))
        wanted = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
        return self.error(f"found {self.shown(self.next)}, expected {wanted}")

    def error(self, what: str, token: Token | None = None, *, code: str | None = None) -> SqlError:
        """The error for a problem at a token, by default the next one."""
        return syntax_error(self.text, (token or self.next).start, what, code=code)

    def shown(self, token: Token) -> str:
        """A token as error messages show it."""
        if token.kind == END:
            return "the end of the text"
        if secret(self.text):
            return NAMES[token.kind]
        shown = self.text[token.start : token.end]
        if len(shown) > FOUND_CHARACTERS_MAX:
            shown = shown[:FOUND_CHARACTERS_MAX] + "…"
        return repr(shown) if token.kind in (WORD, SIGN) or not shown.isprintable() else shown

    # -- names

    def name(self, what: str) -> str:
        """A name: dotted, or in quotes of either kind."""
        kind = self.next.kind
        if kind == TEXT:
            return self._nonempty(self.take(), what)
        first = self.next
        if kind == PARAMETER:
            given = self._typed(what, str, "a text")
            if not given:
                raise self.error(f"{what} is empty", first)
            return given
        if kind not in (WORD, QUOTED):
            self.fail(what)
        self.take()
        name = self._nonempty(first, what)
        if self.next.key != ".":
            return name
        parts = [name]
        while self.accept("."):
            if self.next.kind not in (WORD, QUOTED):
                self.fail("the rest of the name after the dot")
            parts.append(self._nonempty(self.take(), what))
            if len(parts) > NAME_PARTS_MAX:
                raise self.error(f"a name has at most {NAME_PARTS_MAX} parts", first)
        return ".".join(parts)

    def identifier(self, what: str) -> str:
        """The name of a column, without dots."""
        if self.next.kind not in (WORD, QUOTED):
            self.fail(what)
        return self._nonempty(self.take(), what)

    def _nonempty(self, token: Token, what: str) -> str:
        if not token.text:
            raise self.error(f"{what} is empty", token)
        return token.text

    # -- values

    def string(self, what: str) -> str:
        """A text in quotes, or a parameter."""
        if self.next.kind == TEXT:
            return self.take().text
        if self.next.kind == PARAMETER:
            return self._typed(what, str, "a text")
        raise self.expected(f"{what} as a text in single quotes")

    def word_or_string(self, what: str) -> str:
        """A text in quotes, a bare word, or a parameter."""
        return self.take().text if self.next.kind in (WORD, QUOTED) else self.string(what)

    def integer(self, what: str, least: int = 0, most: int = INTEGER_MAX) -> int:
        """A whole number, or a parameter."""
        token = self.next
        if token.kind == PARAMETER:
            number = self._typed(what, int, "a whole number")
        elif token.kind == NUMBER and token.text.isdecimal():
            number = int(self.take().text)
        else:
            self.fail(f"{what} as a whole number")
        if not least <= number <= most:
            raise self.error(f"{what} is {number}; it must be from {least} to {most}", token)
        return number

    def seconds_ms(self, what: str, least_ms: int, most_ms: int) -> int:
        """A duration in seconds, possibly with a fraction; returned in milliseconds."""
        token = self.next
        if token.kind == PARAMETER:
            given = self.parameter()
            number = isinstance(given, int | float | Decimal) and not isinstance(given, bool)
            span = Decimal(str(given)) if number else Decimal("NaN")
        elif token.kind == NUMBER:
            span = Decimal(self.take().text)
        else:
            self.fail(f"{what} in seconds")
        if not span.is_finite() or not Decimal(least_ms) / 1000 <= span <= Decimal(most_ms) / 1000:
            raise self.error(f"{what} must be from {least_ms / 1000:g} to {most_ms / 1000:g} seconds", token)
        return int(span * 1000)

    def constant(self, *stops: str) -> Any:
        """The value of a literal or a parameter, if it is followed by a comma, a bracket, the end or one of these
        keywords; else the marker that `absent` recognizes."""
        token = self.next
        signed = token.key == "-" and self.peek().kind == NUMBER
        after = self.peek(2 if signed else 1)
        if after.key not in (",", ")", ";", *stops) and after.kind != END:
            return _MISSING
        if signed:
            self.take()
            number = _number(self.take().text)
            return -number if isinstance(number, int) else number.copy_negate()  # a minus sign would round it
        if token.kind == TEXT:
            return self.take().text
        if token.kind == NUMBER:
            return _number(self.take().text)
        if token.kind == BYTES:
            return bytes.fromhex(self.take().text)
        if token.kind == PARAMETER:
            return self.parameter()
        if token.kind == WORD and token.key in _WORDS:
            self.take()
            return _WORDS[token.key]
        return _MISSING

    def parameter(self) -> Any:
        """Take the next token, a parameter; returns its value."""
        token = self.take()
        return self.params[self._number_of(token)]

    def peek_parameter(self) -> Any:
        """The value of the parameter that comes next, without taking it; None if it has no value."""
        number = int(self.next.text[:9]) if self.next.text else self.used + 1
        return self.params[number - 1] if 1 <= number <= len(self.params) else None

    def _number_of(self, token: Token) -> int:
        """The index of a parameter's value; raises an error if there is none."""
        if token.text:
            number = int(token.text) if len(token.text) < 10 else 0
            self.numbered = max(self.numbered, number)
            if number == 0:
                raise self.error("parameter numbers start at $1", token, code="SQL_PARAMETERS")
        else:
            self.used += 1
            number = self.used
        if self.used and self.numbered:
            raise self.error("parameters must be either all ? or all $1, $2, …", token, code="SQL_PARAMETERS")
        if number > len(self.params):
            given = f"{len(self.params)} {'was' if len(self.params) == 1 else 'were'} given"
            raise self.error(f"there is no value for parameter {number}: {given}", token, code="SQL_PARAMETERS")
        return number - 1

    def _typed(self, what: str, kind: type[T], named: str) -> T:
        token = self.next
        given = self.parameter()
        if not isinstance(given, kind) or isinstance(given, bool):
            raise self.error(
                f"{what} must be {named}, but the parameter is {_kind_of(given)}", token, code="SQL_PARAMETERS"
            )
        return given

    # -- expressions, which are passed on as text

    def value(self, what: str, *stops: str) -> Value:
        """A constant, or an expression up to a comma, the closing bracket or one of these keywords."""
        constant = self.constant(*stops)
        if constant is not _MISSING:
            return Constant(constant)
        ends = (",", *stops)
        return self.span(what, lambda: self.next.key in ends)

    def span(self, what: str, stops: Callable[[], bool] = lambda: False) -> Expression:
        """The text from here to the first token outside brackets for which `stops` is true, to the closing bracket of
        an enclosing pair, or to the end of the statement."""
        self._expressions += 1
        if self._expressions > EXPRESSIONS_MAX:
            raise self.error(f"a text can have at most {EXPRESSIONS_MAX} expressions; pass values as parameters")
        first = last = self.next
        open_brackets: list[str] = []
        params: list[Any] = []
        while self.next.kind != END:
            token = self.next
            key = token.key
            if not open_brackets and (key == ";" or key in _CLOSING or stops()):
                break
            if key in _OPENING:
                open_brackets.append(_OPENING[key])
                if len(open_brackets) > DEPTH_MAX:
                    raise self.error(f"brackets are nested more than {DEPTH_MAX} deep")
            elif key in _CLOSING:
                if open_brackets.pop() != key:
                    raise self.error(f"found {key!r}, which does not match the open bracket")
            elif token.kind == PARAMETER:
                params.append(self.params[self._number_of(token)])
            last = self.take()
        if open_brackets:
            self.fail(open_brackets[-1])
        if first is self.next:
            self.fail(what)
        return self.expression(first, last, params)

    def expression(self, first: Token, last: Token, params: Sequence[Any]) -> Expression:
        """The text from one token to another. With numbered parameters it carries all of them, with ? its own."""
        given = self.params if params and self.numbered else tuple(params)
        line, column = self.location(first)
        return Expression(self.text[first.start : last.end], line, column, given)

    def location(self, token: Token) -> tuple[int, int]:
        """The line and the column of a token. Counts on from the previous call, since there may be many."""
        if token.start < self._located[0]:
            return line_column(self.text, token.start)
        at, line, begins = self._located
        lines = self.text.count("\n", at, token.start)
        if lines:
            begins = self.text.rfind("\n", at, token.start) + 1
        self._located = token.start, line + lines, begins
        return line + lines, token.start - begins + 1

    def rest(self, what: str, stops: Callable[[], bool] = lambda: False) -> Expression:
        """The text to the end of the statement, or as `span`, with only its own parameters: $2 and $5 become $1 and $2,
        padded with spaces so that everything else keeps its column."""
        begins = self._at
        text = self.span(what, stops)
        if not text.params or not self.numbered:
            return text
        tokens = [token for token in self._tokens[begins : self._at] if token.kind == PARAMETER]
        numbers = sorted({int(token.text) for token in tokens})
        renumbered = {number: new for new, number in enumerate(numbers, start=1)}
        start = self._tokens[begins].start
        parts: list[str] = []
        for token in tokens:
            fresh = f"${renumbered[int(token.text)]}"
            parts += [self.text[start : token.start], fresh.ljust(token.end - token.start)]
            start = token.end
        parts.append(self.text[start : self.last.end])
        params = tuple([self.params[number - 1] for number in numbers])
        return Expression("".join(parts), text.line, text.column, params)

    @property
    def last(self) -> Token:
        """The last token taken."""
        return self._tokens[self._at - 1]

    def bracketed(self, what: str) -> Expression:
        """An expression in parentheses."""
        self.expect("(")
        expression = self.span(what)
        self.expect(")")
        return expression


def absent(constant: Any) -> bool:
    """Whether `Tokens.constant` returned no constant."""
    return constant is _MISSING


def _number(text: str) -> int | Decimal:
    return int(text) if text.isdecimal() else Decimal(text)


def _kind_of(value: Any) -> str:
    names = {type(None): "NULL", bool: "true or false", int: "a number", str: "a text", bytes: "bytes"}
    return names.get(type(value), f"a {type(value).__name__}")

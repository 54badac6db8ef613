"""The tokens of a PartiQL statement, and what its clauses are made of: names, document paths, literals.

The texts of errors are the service's where public test suites record its answers, and our own elsewhere. A statement
that cannot be read has its fixed envelope (`malformed`); an error about one token ends with `at line:column:length` of
it, counted in characters from 1.

Tokens are found in one pass, in which no character is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables import number
from tailrace.tables.messages import INVALID, NOT_A_NUMBER
from tailrace.tables.partiql_tree import StatementValues
from tailrace.tables.syntax import DocumentPath, ValuePlaceholder
from tailrace.tables.value import DEPTH_MAX, Value, in_order

MALFORMED: Final = "Statement wasn't well formed, can't be processed: "
TERM: Final = "Unexpected term"
KEYWORDS: Final = frozenset((
    "AND", "ANY", "AS", "BETWEEN", "BY", "CASE", "CAST", "CREATE", "CROSS", "DELETE", "DISTINCT", "DROP", "ELSE",
    "END", "EXCEPT", "EXISTS", "FALSE", "FROM", "FULL", "GROUP", "HAVING", "IN", "INNER", "INSERT", "INTERSECT",
    "INTO", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "MISSING", "NATURAL", "NOT", "NULL", "ON", "OR", "ORDER",
    "OUTER", "PIVOT", "REMOVE", "RETURNING", "RIGHT", "SELECT", "SET", "TABLE", "THEN", "TRUE", "UNION", "UNPIVOT",
    "UPDATE", "USING", "VALUE", "VALUES", "WHEN", "WHERE",
))  # fmt: skip
LITERALS: Final[dict[str, Value]] = {"TRUE": {"BOOL": True}, "FALSE": {"BOOL": False}, "NULL": {"NULL": True}}
_BAG: Final = "Unsupported data type in Bag. DynamoDB only supports either numbers or strings in bags"
_BLANKS: Final = re.compile(r"(?:\s|--[^\r\n]*|/\*[\s\S]*?\*/)*")
_TOKEN: Final = re.compile(
    r"""(?P<string>'[^']*(?:''[^']*)*')
    |(?P<quoted>"[^"]*(?:""[^"]*)*")
    |(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><<|>>|<>|<=|>=|!=|[()\[\]{},.:;=<>*+?-])
    |(?P<end>\Z)""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[0-9]*(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_INT_32: Final = 2**31 - 1
_EXPONENT_DIGITS: Final = 12  # more are never in range, and need not be read


def malformed(detail: str) -> Invalid:
    """The error for a statement that cannot be read."""
    return Invalid(MALFORMED + detail)


@dataclass(slots=True)
class _StatementTokens:
    kinds: list[str] = field(default_factory=list)  # a sign, or one of string, quoted, number, word, end
    texts: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


def _tokens(text: str) -> _StatementTokens:
    tokens = _StatementTokens()
    at = 0
    while True:
        blanks = _BLANKS.match(text, at)
        assert blanks is not None, "there may be none"
        found = _TOKEN.match(text, blanks.end())
        if found is None:  # a character of no token, or a quotation or comment without an end
            raise malformed("")
        kind = found.lastgroup or ""
        content = found[kind]
        tokens.kinds.append(content if kind == "sign" else kind)
        tokens.texts.append(content)
        tokens.starts.append(found.start(kind))
        if kind == "end":
            return tokens
        at = found.end()


class StatementReader:
    """The tokens of one text, and its paths and literals."""

    def __init__(self, text: str) -> None:
        self._text = text
        found = _tokens(text)
        self._kinds, self._texts, self._starts = found.kinds, found.texts, found.starts
        self._at = 0
        self.kind = self._kinds[0]
        self._depth = 0
        self._constants: dict[str, Value] = {}
        self._parameters: list[str] = []

    # -- one token

    @property
    def token(self) -> str:
        return self._texts[self._at]

    @property
    def word(self) -> str:
        """The current word in capitals; empty for other tokens."""
        return self.token.upper() if self.kind == "word" else ""

    @property
    def calls(self) -> bool:
        """Whether the current word is the name of a function."""
        return self.kind == "word" and self._kinds[self._at + 1] == "("

    def advance(self) -> None:
        self._at += 1
        self.kind = self._kinds[self._at]

    def position(self, at: int | None = None) -> str:
        """Where a token is, the current one by default, as errors have it."""
        at = self._at if at is None else at
        start = self._starts[at]
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        return f"{line}:{column}:{len(self._texts[at])}"

    def refuse(self, message: str, at: int | None = None) -> Invalid:
        """An error about a token."""
        return Invalid(f"{message} at {self.position(at)}")

    def expected(self, what: str) -> Invalid:
        return malformed(f"Expected {what} at {self.position()}")

    def passed(self, *words: str) -> bool:
        """Pass a keyword, if it is one of these."""
        if self.word not in words:
            return False
        self.advance()
        return True

    def took(self, sign: str) -> bool:
        """Pass a sign, if it is this one."""
        if self.kind != sign:
            return False
        self.advance()
        return True

    def expect(self, sign: str, name: str) -> None:
        if not self.took(sign):
            raise malformed(f"Expected {name}")

    def expect_word(self, word: str) -> None:
        if not self.passed(word):
            raise self.expected(word)

    def deeper(self) -> None:
        """Enter a parenthesis."""
        self._depth += 1
        if self._depth > limits.STATEMENT_DEPTH_MAX:
            raise malformed(f"parentheses are nested more than {limits.STATEMENT_DEPTH_MAX} deep at {self.position()}")

    def close(self) -> None:
        self._depth -= 1
        self.expect(")", "RIGHT_PAREN")

    # -- names and paths

    def name(self) -> str | None:
        """Pass a name and return it; None if there is none here. Keywords are names only in quotation marks."""
        if self.kind == "quoted":
            found = self.token[1:-1].replace('""', '"')
        elif self.kind == "word" and self.word not in KEYWORDS:
            found = self.token
        else:
            return None
        self.advance()
        return found

    def path(self) -> DocumentPath:
        head = self.name()
        if head is None:
            raise malformed(TERM)
        parts: list[str | int] = [head]
        while self.kind in (".", "["):
            sign = self.kind
            self.advance()
            parts.append(self._member() if sign == "." else self._index())
        if "" in parts:
            raise Invalid("Path component cannot be an empty string")
        return DocumentPath(tuple(parts), plain=True)

    def _member(self) -> str:
        if self.kind == "*":
            raise Invalid("A path has the name of an attribute after a dot, such as a.b, not *")
        found = self.name()
        if found is None:
            raise malformed("Invalid path dot component")
        return found

    def _index(self) -> str | int:
        part: str | int
        if self.kind == "*":
            raise Invalid("A path has the number of an element in brackets, such as a[0], not *")
        if self.kind == "string":
            part = self._string()
        else:
            negative = self._sign()
            digits = self.token
            if self.kind != "number" or not digits.isdigit():
                raise malformed(TERM)
            significant = digits.lstrip("0")[:_EXPONENT_DIGITS]  # more are never in range, and int() has a limit
            value = int(significant or "0")
            if value > limits.LIST_INDEX_MAX or (negative and value):
                shown = f"-{digits}" if negative else digits
                raise self.refuse(f"List index is not within the allowable range; index: [{shown}]")
            self.advance()
            part = value
        self.expect("]", "RIGHT_BRACKET")
        return part

    # -- literals

    def constant(self, value: Value) -> ValuePlaceholder:
        """A placeholder of this value."""
        name = f":{len(self._constants) + len(self._parameters)}"
        self._constants[name] = value
        return ValuePlaceholder(name)

    def value(self) -> ValuePlaceholder:
        """A parameter or a literal."""
        if self.took("?"):
            name = f":{len(self._constants) + len(self._parameters)}"
            self._parameters.append(name)
            return ValuePlaceholder(name)
        return self.constant(self.literal("root", 0))

    @property
    def values(self) -> StatementValues:
        return StatementValues(self._constants, tuple(self._parameters))

    def literal(self, under: str, depth: int) -> Value:
        """A document of literals. `under` is its path in the whole value, `depth` the number of steps in it."""
        if depth > DEPTH_MAX:
            raise Invalid(f"Nesting Levels have exceeded supported limits under {under}")
        kind = self.kind
        if kind == "string":
            return {"S": self._string()}
        if kind in ("number", "-", "+"):
            return {"N": self._number(under)}
        if kind == "[":
            return {"L": self._list(under, depth)}
        if kind == "{":
            return {"M": self.tuple(lambda name: self.literal(f"{under}.{name}", depth + 1), under)}
        if kind == "<<":
            return self._bag(under)
        if self.word in LITERALS:
            value = LITERALS[self.word]
            self.advance()
            return value
        if self.word == "MISSING":
            raise Invalid("MISSING is not a value; test for it with IS, such as a IS MISSING")
        if kind == "?" or (self.calls and self.word not in KEYWORDS):
            found = "Parameter" if kind == "?" else self.token.lower()
            raise self.refuse(f"Unsupported data type: {found} under key {under}")
        if kind in ("word", "quoted") and self.word not in KEYWORDS:
            raise self.refuse(f"A literal has values, not the attribute {self.token}, under {under}")
        raise malformed(TERM)

    def _string(self) -> str:
        found = self.token[1:-1].replace("''", "'")
        self.advance()
        return found

    def _sign(self) -> bool:
        """Pass any signs; whether they make a number negative."""
        negative = False
        while self.kind in ("-", "+"):
            negative ^= self.kind == "-"
            self.advance()
        return negative

    def _number(self, under: str) -> str:
        first = self.token
        negative = self._sign()
        if self.kind != "number":
            raise Invalid(
                "Incorrect number of operands for operator or function; "
                f"operator or function: {first}, number of operands: 1"
            )
        text = self._signed(negative)
        try:
            return number.canonical(text)
        except Invalid as error:
            if str(error).startswith(NOT_A_NUMBER):
                raise malformed("") from None
            raise Invalid(f"{error} under {under}") from None

    def _signed(self, negative: bool) -> str:
        """Pass a number and return its text; exponent and scale are of 32 bits, as in the service."""
        text = self.token
        found = _NUMBER.fullmatch(text)
        assert found is not None, text
        fraction, exponent = found[1] or "", found[2]
        if exponent is not None and (
            len(exponent) > _EXPONENT_DIGITS
            or abs(int(exponent)) > _INT_32
            or abs(len(fraction) - int(exponent)) > _INT_32
        ):
            raise malformed("")
        self.advance()
        return f"-{text}" if negative else text

    def _list(self, under: str, depth: int) -> list[Value]:
        self.advance()
        elements: list[Value] = []
        while self.kind != "]":
            elements.append(self.literal(f"{under}[{len(elements)}]", depth + 1))
            if not self.took(","):
                break
        self.expect("]", "RIGHT_BRACKET")
        return elements

    def tuple(self, value: Callable[[str], Value], under: str) -> dict[str, Value]:
        """{'name': value, ...}; `value` reads the value of a name."""
        self.advance()
        members: dict[str, Value] = {}
        while self.kind != "}":
            if self.kind != "string":
                raise self.refuse(f"A name in a map is a string in single quotes, not {self.token}, under {under}")
            name = self._string()
            self.expect(":", "COLON")
            if name in members:
                raise Invalid(f"A map names the attribute {name} twice, under {under}")
            members[name] = value(name)
            if not self.took(","):
                break
        self.expect("}", "RIGHT_CURLY")
        return members

    def _bag(self, under: str) -> Value:
        self.advance()
        texts: list[str] = []  # as written
        elements: list[str] = []
        kinds: set[str] = set()
        while self.kind != ">>":
            if self.kind not in ("string", "number", "-", "+"):
                raise Invalid(_BAG)
            kinds.add("SS" if self.kind == "string" else "NS")
            start = self._at
            elements.append(self._string() if self.kind == "string" else self._number(under))
            texts.append(elements[-1] if self._kinds[start] == "string" else "".join(self._texts[start : self._at]))
            if not self.took(","):
                break
        self.expect(">>", "RIGHT_DOUBLE_ANGLE_BRACKET")
        if not elements:
            raise Invalid("Empty bags are not supported")
        if len(kinds) > 1:
            raise Invalid(_BAG)
        (kind,) = kinds
        if len(set(elements)) != len(elements):
            end = "." if kind == "SS" else f"! under {under}"
            raise Invalid(f"{INVALID}Input collection [{', '.join(texts)}] contains duplicates{end}")
        return {kind: in_order(kind, elements)}

"""The parser of expressions: text to a tree that still contains placeholders.

Everything that depends on the text alone is checked here, once per text: syntax, redundant parentheses, function names
and their positions, reserved words, list indexes, the number of operators. Checks that depend on a request's names and
values are made when the tree is bound (`binding`, `condition`, `update`).

Nothing here recurses with the text. Parentheses and calls are kept on explicit stacks, and the result is bounded: a
condition nests at most as deep as it has operators, its operand at most `EXPRESSION_CALLS_DEPTH_MAX` calls, an update's
as many `if_not_exists(` as fit into the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from tailrace import limits
from tailrace.tables.reserved import is_reserved

COMPARATORS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
ARITY: Final = {
    "attribute_exists": 1,
    "attribute_not_exists": 1,
    "attribute_type": 2,
    "begins_with": 2,
    "contains": 2,
    "size": 1,
    "if_not_exists": 2,
    "list_append": 2,
    "+": 2,
    "-": 2,
}
UPDATE_FUNCTIONS: Final = frozenset({"if_not_exists", "list_append"})
SECTIONS: Final = ("SET", "REMOVE", "ADD", "DELETE")

_TOKEN: Final = re.compile(
    r"[ \t\r\n]*(?:([A-Za-z][A-Za-z0-9_]*)|([#:][A-Za-z0-9_]+)|([0-9]+)|(<>|<=|>=|[^ \t\r\n]))", re.DOTALL
)
_TRAILING: Final = " \t\r\n"
_CONDITION_WORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN"})
_UPDATE_WORDS: Final = frozenset(SECTIONS)
_NO_WORDS: Final[frozenset[str]] = frozenset()
_REDUNDANT: Final = "The expression has redundant parentheses;"


class InvalidExpression(Exception):
    """An invalid expression; the message is the service's, without the name of the parameter."""


# -- the tree


@dataclass(frozen=True, slots=True)
class DocumentPath:
    """A document path: names, placeholders (which begin with #) and list indexes."""

    parts: tuple[str | int, ...]
    plain: bool  # no placeholder in it


@dataclass(frozen=True, slots=True)
class ValuePlaceholder:
    """A value's placeholder."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or + or - in an update."""

    name: str
    args: tuple[Operand, ...]


Operand: TypeAlias = DocumentPath | ValuePlaceholder | Call


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparator, BETWEEN or IN."""

    op: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """A condition that must not hold."""

    node: Node


@dataclass(frozen=True, slots=True)
class Every:
    """Conditions joined by AND."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Conditions joined by OR."""

    nodes: tuple[Node, ...]


Node: TypeAlias = Call | Compare | Not | Every | Either


@dataclass(frozen=True, slots=True)
class Action:
    """One change: SET (to the operand), REMOVE (no operand), ADD or DELETE (a constant)."""

    section: str
    path: DocumentPath
    operand: Operand | None


# -- public: text to tree


def condition(text: str) -> Node:
    """The tree of a condition, filter or key condition."""
    _measure(text)
    return _condition(text)


def update(text: str) -> tuple[Action, ...]:
    """The actions of an update, in the order they are written."""
    _measure(text, with_size=False)
    return _update(text)


def projection(text: str) -> tuple[DocumentPath, ...]:
    """The paths of a projection."""
    _measure(text)
    return _projection(text)


def _measure(text: str, *, with_size: bool = True) -> None:
    """Raise if there is no text or too much; for conditions and projections the error has the size (`with_size`)."""
    if not text:
        raise InvalidExpression("The expression can not be empty;")
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > limits.EXPRESSION_BYTES_MAX:
        shown = f" expression size: {size}" if with_size else ""
        raise InvalidExpression(f"Expression size has exceeded the maximum allowed size;{shown}")


@lru_cache(limits.EXPRESSIONS_PARSED_MAX)
def _condition(text: str) -> Node:
    node = _Condition(text, _CONDITION_WORDS).parse()
    _check_condition(node)
    return node


@lru_cache(limits.EXPRESSIONS_PARSED_MAX)
def _update(text: str) -> tuple[Action, ...]:
    actions, sections = _Update(text, _UPDATE_WORDS).parse()
    for action in actions:
        _check_path(action.path)
        if action.operand is not None:
            _check_value(action.operand)
    for at, section in enumerate(sections):
        if section in sections[:at]:
            raise InvalidExpression(f'The "{section}" section can only be used once in an update expression;')
    return tuple(actions)


@lru_cache(limits.EXPRESSIONS_PARSED_MAX)
def _projection(text: str) -> tuple[DocumentPath, ...]:
    parser = _Parser(text, _NO_WORDS)
    paths = [parser.path()]
    while parser.kind == ",":
        parser.advance()
        paths.append(parser.path())
    parser.end()
    for path in paths:
        _check_path(path)
    return tuple(paths)


# -- tokens and what all grammars share


class _Parser:
    """Tokens of one text. `kind` is the current one's: a word, a sign, or one of id, name, value, int, end."""

    def __init__(self, text: str, words: frozenset[str]) -> None:
        self._text = text
        self._kinds: list[str] = []
        self._spans: list[tuple[int, int]] = []
        for found in _TOKEN.finditer(text.rstrip(_TRAILING)):
            word, placeholder, digits, sign = found.groups()
            if word is not None:
                upper = word.upper()
                kind = upper if upper in words else "id"
            elif placeholder is not None:
                kind = "name" if placeholder[0] == "#" else "value"
            else:
                kind = "int" if digits is not None else sign
            self._kinds.append(kind)
            self._spans.append((found.start(found.lastindex or 0), found.end()))
        self._kinds.append("end")
        self._at = 0
        self._operators = 0
        self.kind = self._kinds[0]

    @property
    def token(self) -> str:
        start, end = self._spans[self._at]
        return self._text[start:end]

    @property
    def following(self) -> str:
        """The kind of the next token."""
        return self._kinds[self._at + 1] if self.kind != "end" else "end"

    def advance(self) -> None:
        self._at += 1
        self.kind = self._kinds[self._at]

    def expect(self, kind: str) -> None:
        if self.kind != kind:
            raise self.wrong()
        self.advance()

    def end(self) -> None:
        if self.kind != "end":
            raise self.wrong()

    def wrong(self) -> InvalidExpression:
        """A syntax error at the current token; it shows the tokens on both sides."""
        at, spans = self._at, self._spans
        start = spans[max(at - 1, 0)][0] if spans else 0
        if at == len(spans):
            return InvalidExpression(
                f'Syntax error; token: "<EOF>", near: "{self._text[start : spans[-1][1] if spans else 0]}"'
            )
        end = spans[min(at + 1, len(spans) - 1)][1]
        return InvalidExpression(f'Syntax error; token: "{self.token}", near: "{self._text[start:end]}"')

    def operator(self) -> str:
        """Pass an operator; there is a limit to how many."""
        self._operators += 1
        if self._operators > limits.EXPRESSION_OPERATORS_MAX:
            raise InvalidExpression(f"The expression contains too many operators; operator count: {self._operators}")
        kind = self.kind
        self.advance()
        return kind

    def path(self) -> DocumentPath:
        if self.kind not in ("id", "name"):
            raise self.wrong()
        parts: list[str | int] = [self.token]
        plain = self.kind == "id"
        self.advance()
        return self.steps(parts, plain)

    def steps(self, parts: list[str | int], plain: bool) -> DocumentPath:
        """What follows the parts of a path that were read already."""
        while True:
            if self.kind == ".":
                self.advance()
                if self.kind not in ("id", "name"):
                    raise self.wrong()
                plain = plain and self.kind == "id"
                parts.append(self.token)
                self.advance()
            elif self.kind == "[":
                self.advance()
                if self.kind != "int":
                    raise self.wrong()
                digits = self.token
                self.advance()
                self.expect("]")
                parts.append(int(digits))
            else:
                return DocumentPath(tuple(parts), plain)

    def operand(self) -> Operand:
        """A path, a value or a function of operands, each also in parentheses."""
        open_: list[tuple[str, list[Operand]] | None] = []  # a call and its arguments so far, or a parenthesis
        while True:
            kind = self.kind
            if kind == "(":
                open_.append(None)
                self.advance()
                continue
            if kind == "id" and self.following == "(":
                open_.append((self.token, []))
                self.advance()
                self.advance()
                continue
            node: Operand
            if kind == "value":
                node = ValuePlaceholder(self.token)
                self.advance()
            else:
                node = self.path()
            wrapped = False
            while open_:
                call = open_[-1]
                if call is None:
                    self.expect(")")
                    if wrapped:
                        raise InvalidExpression(_REDUNDANT)
                    wrapped = True
                else:
                    call[1].append(node)
                    if self.kind == ",":
                        self.advance()
                        break
                    self.expect(")")
                    node = Call(call[0], tuple(call[1]))
                    wrapped = False
                open_.pop()
            else:
                return node


# -- conditions


class _Frame:
    """An open parenthesis (or the whole text): alternatives of conjuncts, and the NOTs before the next term."""

    __slots__ = ("alternatives", "conjuncts", "nots")

    def __init__(self) -> None:
        self.alternatives: list[Node] = []
        self.conjuncts: list[Node] = []
        self.nots = 0

    @property
    def fresh(self) -> bool:
        return not (self.alternatives or self.conjuncts or self.nots)

    def node(self) -> Node:
        last = _joined(Every, self.conjuncts)
        return _joined(Either, [*self.alternatives, last])


def _joined(kind: type[Every] | type[Either], nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else kind(tuple(nodes))


class _Condition(_Parser):
    """NOT binds before AND before OR. A parenthesis may contain a condition or an operand, which is known when it
    closes."""

    def parse(self) -> Node:
        frames: list[_Frame] = []
        frame = _Frame()
        while True:
            if self.kind == "NOT":
                self.operator()
                frame.nots += 1
                continue
            if self.kind == "(":
                self.advance()
                frames.append(frame)
                frame = _Frame()
                continue
            term: Operand | Node = self.operand()
            wrapped = False
            while True:
                extended = self._comparison(term, wrapped)
                wrapped = wrapped and extended is term
                term = extended
                if isinstance(term, DocumentPath | ValuePlaceholder):
                    # The parenthesis contains only an operand.
                    if not (frames and frame.fresh and self.kind == ")") or wrapped:
                        raise InvalidExpression(_REDUNDANT) if wrapped and frames and self.kind == ")" else self.wrong()
                    self.advance()
                    frame = frames.pop()
                    wrapped = True
                    continue
                if frame.nots:
                    term = Not(term) if frame.nots % 2 else Not(Not(term))
                    frame.nots = 0
                    wrapped = False
                frame.conjuncts.append(term)
                if self.kind == "AND":
                    self.operator()
                    break
                if self.kind == "OR":
                    self.operator()
                    frame.alternatives.append(_joined(Every, frame.conjuncts))
                    frame.conjuncts = []
                    break
                if not frames:
                    self.end()
                    return frame.node()
                self.expect(")")
                if wrapped and not frame.alternatives and len(frame.conjuncts) == 1:
                    raise InvalidExpression(_REDUNDANT)
                term = frame.node()
                frame = frames.pop()
                wrapped = True

    def _comparison(self, term: Operand | Node, wrapped: bool) -> Operand | Node:
        """The comparison that begins with this operand, or the operand."""
        if not isinstance(term, DocumentPath | ValuePlaceholder | Call):
            return term
        if wrapped and isinstance(term, DocumentPath) and self.kind in (".", "["):
            term = self.steps(list(term.parts), term.plain)
        if self.kind in COMPARATORS:
            op = self.operator()
            return Compare(op, (term, self.operand()))
        if self.kind == "BETWEEN":
            self.operator()
            low = self.operand()
            self.expect("AND")
            return Compare("BETWEEN", (term, low, self.operand()))
        if self.kind == "IN":
            self.operator()
            self.expect("(")
            args = [term, self.operand()]
            while self.kind == ",":
                self.advance()
                args.append(self.operand())
            self.expect(")")
            return Compare("IN", tuple(args))
        return term


def _check_condition(node: Node) -> None:
    """Names, functions and indexes, in the order in which they are written."""
    todo: list[tuple[Node | Operand, bool, int]] = [(node, True, 0)]
    while todo:
        node_, outer, deep = todo.pop()
        if isinstance(node_, DocumentPath):
            _check_path(node_)
        elif isinstance(node_, Call):
            name = node_.name
            if name not in ARITY:
                raise InvalidExpression(f"Invalid function name; function: {name}")
            if name in UPDATE_FUNCTIONS:
                raise InvalidExpression(f"The function is not allowed in a condition expression; function: {name}")
            if outer is (name == "size"):
                raise InvalidExpression(
                    f"The function is not allowed to be used this way in an expression; function: {name}"
                )
            if deep > limits.EXPRESSION_CALLS_DEPTH_MAX:
                raise wrong_type(name, "N")
            todo.extend((arg, False, deep + 1) for arg in reversed(node_.args))
        elif isinstance(node_, Compare):
            todo.extend((arg, False, 0) for arg in reversed(node_.args))
        elif isinstance(node_, Not):
            todo.append((node_.node, True, 0))
        elif isinstance(node_, Every | Either):
            todo.extend((part, True, 0) for part in reversed(node_.nodes))


def wrong_type(name: str, kind: str) -> InvalidExpression:
    """The error for an operand of a type that the operator or function does not accept."""
    return InvalidExpression(
        f"Incorrect operand type for operator or function; operator or function: {name}, operand type: {kind}"
    )


def _check_path(path: DocumentPath) -> None:
    for part in path.parts:
        if isinstance(part, int):
            if part > limits.LIST_INDEX_MAX:
                raise InvalidExpression(f"List index is not within the allowable range; index: [{part}]")
        elif part[0] != "#" and is_reserved(part):
            raise InvalidExpression(f"Attribute name is a reserved keyword; reserved keyword: {part}")


# -- updates


class _Update(_Parser):
    def parse(self) -> tuple[list[Action], list[str]]:
        """The actions, and the sections in their order."""
        actions: list[Action] = []
        sections: list[str] = []
        while True:
            section = self.kind
            if section not in SECTIONS:
                raise self.wrong()
            sections.append(section)
            while True:
                self.advance()
                actions.append(self._action(section))
                if self.kind != ",":
                    break
            if self.kind == "end":
                return actions, sections

    def _action(self, section: str) -> Action:
        path = self.path()
        if section == "REMOVE":
            return Action(section, path, None)
        if section == "SET":
            self.expect("=")
            return Action(section, path, self._value())
        if self.kind != "value":
            raise self.wrong()
        constant = ValuePlaceholder(self.token)
        self.advance()
        return Action(section, path, constant)

    def _value(self) -> Operand:
        """An operand, or the sum or difference of two, optionally in parentheses."""
        parentheses = 0
        while self.kind == "(":
            self.advance()
            parentheses += 1
            if parentheses > 2:  # of three, two enclose the same
                raise InvalidExpression(_REDUNDANT)
        left = self.operand()
        if parentheses and self.kind in ("+", "-"):  # (a + b)
            left = self._sum(left)
            self.expect(")")
            if parentheses > 1:
                self.expect(")")
                raise InvalidExpression(_REDUNDANT)
            return left
        if parentheses:
            self.expect(")")
        if parentheses > 1:  # ((a) + b)
            if self.kind not in ("+", "-"):
                self.expect(")")
                raise InvalidExpression(_REDUNDANT)
            left = self._sum(left)
            self.expect(")")
            return left
        return self._sum(left) if self.kind in ("+", "-") else left

    def _sum(self, left: Operand) -> Call:
        op = self.operator()
        return Call(op, (left, self.operand()))


def _check_value(operand: Operand) -> None:
    """Check the value of SET: names, functions and indexes, in the order in which they are written."""
    todo: list[tuple[Operand, bool]] = [(operand, True)]
    while todo:
        node, outer = todo.pop()
        if isinstance(node, DocumentPath):
            _check_path(node)
        elif isinstance(node, Call):
            name = node.name
            if name not in ARITY:
                raise InvalidExpression(f"Invalid function name; function: {name}")
            if name not in UPDATE_FUNCTIONS and name not in ("+", "-"):
                raise InvalidExpression(f"The function is not allowed in an update expression; function: {name}")
            if name == "list_append" and not outer:
                raise InvalidExpression(
                    f"The function is not allowed to be used this way in an expression; function: {name}"
                )
            todo.extend((arg, False) for arg in reversed(node.args))

"""Compiled expressions: conditions and values over rows.

An expression is compiled once to a Python function, and found again by its text. A function takes the row as it is
after the write and as it was before it, either of which may be missing; it reads typed items as tables keep them.

    condition("is_visible = true AND channel_id = 42").true(new, old)
    value("NEW.total - OLD.total").of(new, old)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from sqlglot import exp

from tailrace.errors import Error
from tailrace.scalar.compiler import NEW, OLD, ROW, Compiler
from tailrace.scalar.problem import ExpressionError, Origin
from tailrace.scalar.reading import TEXT_CHARACTERS_MAX, VALUE_CHARACTERS_MAX, read, too_deep
from tailrace.scalar.runtime import parameter, settle
from tailrace.scalar.term import Term
from tailrace.tables.value import Item

log = logging.getLogger(__name__)

Columns: TypeAlias = Sequence[tuple[str, str]]
_CACHED: Final = 1_024  # expressions
_CONDITION, _VALUE, _EXACT_VALUE = range(3)

_PROLOGUES: Final = {
    ROW: f" {ROW} = new if new is not None else old if old is not None else EMPTY\n",
    NEW: " new = new if new is not None else EMPTY\n",
    OLD: " old = old if old is not None else EMPTY\n",
}


class Evaluate(Protocol):
    def __call__(self, new: Item | None, old: Item | None = None, params: Sequence[Any] = (), /) -> Any: ...


class Test(Protocol):
    def __call__(self, new: Item | None, old: Item | None = None, params: Sequence[Any] = (), /) -> bool: ...


class Scalar:
    """A compiled expression.

    `text` is as it was written, empty of a syntax tree; `names` are the columns that it reads, `sides` the rows: "new",
    "old", or "row" for bare names; `parameters` is how many parameters must be given."""

    __slots__ = ("names", "parameters", "sides", "text")

    def __init__(self, text: str, compiler: Compiler) -> None:
        self.text = text
        self.names = frozenset(compiler.used)
        self.sides = frozenset(compiler.sides)
        self.parameters = max(compiler.parameters or 0, compiler.highest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Condition(Scalar):
    """`true(new, old)` is True only where the SQL value is TRUE; bare names are the new row, or the old one where there
    is no new."""

    __slots__ = ("true",)
    true: Test

    def __init__(self, text: str, compiler: Compiler, true: Test) -> None:
        super().__init__(text, compiler)
        self.true = true  # the compiled function itself: a method around it would cost as much again


class ValueExpression(Scalar):
    """`of(new, old, params)` is the plain SQL value: None, bool, int, Decimal, str, bytes, or a list, dict or set.
    `constant`: it reads no row."""

    __slots__ = ("of",)
    of: Evaluate

    def __init__(self, text: str, compiler: Compiler, of: Evaluate) -> None:
        super().__init__(text, compiler)
        self.of = of

    @property
    def constant(self) -> bool:
        return not self.sides


def condition(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> Condition:
    """The condition that a text means, without parameters. `columns` are those there are, with their kinds; without
    them any name is taken. `line` and `column` say where the text begins, for errors."""
    return _cached(_CONDITION, text, columns, line, column)  # type: ignore[return-value]


def value(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> ValueExpression:
    """The value expression that a text means; parameters are `?` or `$1`, and `parameters` says how many it needs."""
    return _cached(_VALUE, text, columns, line, column)  # type: ignore[return-value]


def exact_value(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> ValueExpression:
    """As `value`, of one that is about to be stored: what has no result raises `NoResult`, and is not NULL."""
    return _cached(_EXACT_VALUE, text, columns, line, column)  # type: ignore[return-value]


def stored_value(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> ValueExpression:
    """As `value`, of an expression that is kept and run later, as a route's PARTITION BY: it has no parameters."""
    found = value(text, columns=columns, line=line, column=column)
    if found.parameters:
        raise Origin(line, column).error("this expression is stored, so it has no parameters; write the value", 1, 1)
    if len(text) > TEXT_CHARACTERS_MAX:
        raise Origin(line, column).error(f"a stored expression has at most {TEXT_CHARACTERS_MAX} characters", 1, 1)
    return found


def compile_condition(
    tree: exp.Expr, *, columns: Columns | None = None, line: int = 1, column: int = 1, before: int | None = 0
) -> Condition:
    """The condition of a syntax tree. `before` is how many `?` came before it in the statement, None: it may have
    no parameters; the result's `parameters` counts on from there."""
    return _condition(tree, "", columns, Origin(line, column), before)


def compile_value(
    tree: exp.Expr, *, columns: Columns | None = None, line: int = 1, column: int = 1, before: int | None = 0
) -> ValueExpression:
    """The value expression of a syntax tree; see `compile_condition`."""
    return _value(tree, "", columns, Origin(line, column), before)


def _cached(kind: int, text: str, columns: Columns | None, line: int, column: int) -> Scalar:
    known = None if columns is None else tuple((name, kind) for name, kind in columns)
    if len(text) > TEXT_CHARACTERS_MAX:  # not worth keeping
        return _read(kind, text, known, Origin(line, column))
    if line == 1 and column == 1:
        return _compiled(kind, text, known)
    try:
        return _compiled(kind, text, known)
    except ExpressionError:
        # What is kept does not know where the text begins; an error must.
        return _read(kind, text, known, Origin(line, column))


@lru_cache(maxsize=_CACHED)
def _compiled(kind: int, text: str, columns: tuple[tuple[str, str], ...] | None) -> Scalar:
    return _read(kind, text, columns, Origin())


def _read(kind: int, text: str, columns: Columns | None, origin: Origin) -> Scalar:
    if kind == _CONDITION:
        return _condition(read(text, origin), text, columns, origin, None)
    tree = read(text, origin, VALUE_CHARACTERS_MAX)
    return _value(tree, text, columns, origin, 0, exact=kind == _EXACT_VALUE)


def _condition(tree: exp.Expr, text: str, columns: Columns | None, origin: Origin, before: int | None) -> Condition:
    compiler = Compiler(columns, origin, before)
    term = _term(compiler, tree, lambda: compiler.condition(tree, "a condition"))
    return Condition(text, compiler, _function(compiler, term, term.true))


def _value(
    tree: exp.Expr, text: str, columns: Columns | None, origin: Origin, before: int | None, *, exact: bool = False
) -> ValueExpression:
    compiler = Compiler(columns, origin, before, exact=exact)
    term = _term(compiler, tree, lambda: compiler.term(tree))
    return ValueExpression(text, compiler, _quick(term) or _function(compiler, term, f"settle({term.value})"))


def _term(compiler: Compiler, tree: exp.Expr, made: Callable[[], Term]) -> Term:
    """What `made` returns. sqlglot's trees are of hundreds of kinds, and a newer version has others: one that the
    compiler stumbles over is refused, and the log says how."""
    try:
        return made()
    except Error:
        raise
    except RecursionError:
        raise too_deep(compiler.origin, tree) from None
    except Exception:
        log.exception("an expression could not be compiled")
        raise compiler.origin.error(
            "this expression is not understood; write it in another way", 1, 1, code="UNSUPPORTED_EXPRESSION"
        ) from None


def _quick(term: Term) -> Evaluate | None:
    """The function of a constant or a parameter, which INSERT has thousands of: nothing needs to be generated."""
    if term.constant:
        content = settle(term.content)
        return lambda new, old=None, params=(), /: content
    if term.parameter is not None:
        index = term.parameter
        return lambda new, old=None, params=(), /: parameter(params, index)
    return None


def _function(compiler: Compiler, term: Term, result: str) -> Callable[..., Any]:
    """The Python function that gives this result."""
    # A bare name is told from the rows as they were given, so its line comes first.
    prologue = "".join(_PROLOGUES[side] for side in (ROW, NEW, OLD) if side in compiler.sides)
    source = f"def compiled(new, old=None, params=(), /):\n{prologue} return {result}\n"
    names = compiler.names.bound
    try:
        # Safe: the source is made of our own words and of names that we made; what the user wrote, names and constants,
        # is bound to those names and never part of the source. There are no builtins in reach.
        exec(compile(source, "<expression>", "exec"), names)  # noqa: S102
    except (SyntaxError, RecursionError, MemoryError):
        raise too_deep(compiler.origin, term.node) from None
    compiled: Callable[..., Any] = names.pop("compiled")
    return compiled

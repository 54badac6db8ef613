"""Compiled expressions: conditions and values over rows.

An expression is compiled once to a Python function and cached by its text. The function takes the row after the write
and the row before it, either of which may be missing; it reads typed items as tables store them.

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
from tailrace.scalar.problem import ExpressionError, TextOrigin
from tailrace.scalar.reading import TEXT_CHARACTERS_MAX, VALUE_CHARACTERS_MAX, read, too_deep
from tailrace.scalar.runtime import parameter, settle
from tailrace.scalar.term import MOMENT, Term
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


class EvaluateTest(Protocol):
    def __call__(self, new: Item | None, old: Item | None = None, params: Sequence[Any] = (), /) -> bool: ...


class Scalar:
    """A compiled expression.

    `text` is its text, empty if it was compiled from a syntax tree; `names` are the columns that it reads, `sides` the
    rows: "new", "old", or "row" for bare names; `parameters` is the number of parameters it needs. `timed`: it needs
    the time of the statement as well, as one more parameter after all others."""

    __slots__ = ("names", "parameters", "sides", "text", "timed")

    def __init__(self, text: str, compiler: Compiler) -> None:
        self.text = text
        self.names = frozenset(compiler.used)
        self.sides = frozenset(compiler.sides)
        self.parameters = max(compiler.parameters or 0, compiler.highest)
        self.timed = compiler.timed

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Condition(Scalar):
    """`true(new, old)` is True only if the SQL value is TRUE; bare names refer to the new row, or to the old one if
    there is no new row."""

    __slots__ = ("true",)
    true: EvaluateTest

    def __init__(self, text: str, compiler: Compiler, true: EvaluateTest) -> None:
        super().__init__(text, compiler)
        self.true = true  # the compiled function itself: a method around it would double the cost


class ValueExpression(Scalar):
    """`of(new, old, params)` is the plain SQL value: None, bool, int, Decimal, str, bytes, or a list, dict or set; if
    it is exact, also a datetime in UTC. `constant`: it reads no row."""

    __slots__ = ("of",)
    of: Evaluate

    def __init__(self, text: str, compiler: Compiler, of: Evaluate) -> None:
        super().__init__(text, compiler)
        self.of = of

    @property
    def constant(self) -> bool:
        return not self.sides


def condition(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> Condition:
    """The compiled condition of a text, without parameters. `columns` are the known columns with their kinds; without
    them any name is allowed. `line` and `column` locate the text, for errors."""
    return _cached(_CONDITION, text, columns, line, column)  # type: ignore[return-value]


def value(text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1) -> ValueExpression:
    """The compiled value expression of a text; parameters are `?` or `$1`, and `parameters` is how many it needs."""
    return _cached(_VALUE, text, columns, line, column)  # type: ignore[return-value]


def exact_value(
    text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1, keys: tuple[str, ...] = ()
) -> ValueExpression:
    """Like `value`, for a value that is about to be stored: an operation without a result raises `NoResult`. `keys`:
    names that match in any case, although `columns` are not known."""
    return _cached(_EXACT_VALUE, text, columns, line, column, keys)  # type: ignore[return-value]


def stored_value(
    text: str, *, columns: Columns | None = None, line: int = 1, column: int = 1, exact: bool = False
) -> ValueExpression:
    """Like `value`, for an expression that is stored and run later, such as a route's PARTITION BY: no parameters.
    `exact`: like `exact_value`, for a default, which may be the time of a statement."""
    expression = (exact_value if exact else value)(text, columns=columns, line=line, column=column)
    if expression.parameters:
        raise TextOrigin(line, column).error("a stored expression cannot have parameters; write the value", 1, 1)
    if expression.timed and not exact:
        raise TextOrigin(line, column).error("a stored expression cannot have the current time", 1, 1)
    if len(text) > TEXT_CHARACTERS_MAX:
        reason = f"a stored expression can have at most {TEXT_CHARACTERS_MAX} characters"
        raise TextOrigin(line, column).error(reason, 1, 1)
    return expression


def compile_condition(
    tree: exp.Expr,
    *,
    columns: Columns | None = None,
    line: int = 1,
    column: int = 1,
    before: int | None = 0,
    keys: tuple[str, ...] = (),
) -> Condition:
    """The compiled condition of a syntax tree. `before` is the number of `?` before it in the statement, from which the
    result's `parameters` counts on; None: parameters are not allowed. `keys`: as in `exact_value`."""
    return _condition(tree, "", columns, TextOrigin(line, column), before, keys)


def compile_value(
    tree: exp.Expr, *, columns: Columns | None = None, line: int = 1, column: int = 1, before: int | None = 0
) -> ValueExpression:
    """The compiled value expression of a syntax tree; see `compile_condition`."""
    return _value(tree, "", columns, TextOrigin(line, column), before)


def _cached(
    kind: int, text: str, columns: Columns | None, line: int, column: int, keys: tuple[str, ...] = ()
) -> Scalar:
    known = None if columns is None else tuple((name, kind) for name, kind in columns)
    if len(text) > TEXT_CHARACTERS_MAX:  # not worth keeping
        return _read(kind, text, known, TextOrigin(line, column), keys)
    if line == 1 and column == 1:
        return _compiled(kind, text, known, keys)
    try:
        return _compiled(kind, text, known, keys)
    except ExpressionError:
        # The cache does not know where the text begins, but the error must: compile again.
        return _read(kind, text, known, TextOrigin(line, column), keys)


@lru_cache(maxsize=_CACHED)
def _compiled(kind: int, text: str, columns: tuple[tuple[str, str], ...] | None, keys: tuple[str, ...] = ()) -> Scalar:
    return _read(kind, text, columns, TextOrigin(), keys)


def _read(kind: int, text: str, columns: Columns | None, origin: TextOrigin, keys: tuple[str, ...]) -> Scalar:
    if kind == _CONDITION:
        return _condition(read(text, origin), text, columns, origin, None, keys)
    tree = read(text, origin, VALUE_CHARACTERS_MAX)
    return _value(tree, text, columns, origin, 0, keys, exact=kind == _EXACT_VALUE)


def _condition(
    tree: exp.Expr,
    text: str,
    columns: Columns | None,
    origin: TextOrigin,
    before: int | None,
    keys: tuple[str, ...] = (),
) -> Condition:
    compiler = Compiler(columns, origin, before, keys=keys)
    term = _term(compiler, tree, lambda: compiler.condition(tree, "a condition"))
    return Condition(text, compiler, _function(compiler, term, term.true))


def _value(
    tree: exp.Expr,
    text: str,
    columns: Columns | None,
    origin: TextOrigin,
    before: int | None,
    keys: tuple[str, ...] = (),
    *,
    exact: bool = False,
) -> ValueExpression:
    compiler = Compiler(columns, origin, before, exact=exact, keys=keys)
    term = _term(compiler, tree, lambda: compiler.term(tree))
    if term.kind == MOMENT and term.sure and not exact:  # a column of times takes it, and its type is not known here
        raise compiler.error("a timestamp is not stored as such; CAST it to TEXT", tree, code="KIND_MISMATCH")
    return ValueExpression(text, compiler, _quick(term) or _function(compiler, term, f"settle({term.value})"))


def _term(compiler: Compiler, tree: exp.Expr, made: Callable[[], Term]) -> Term:
    """The result of `made`. sqlglot has hundreds of node types, and newer versions have more: if the compiler fails on
    one, the expression is refused and the failure is logged."""
    try:
        return made()
    except Error:
        raise
    except RecursionError:
        raise too_deep(compiler.origin, tree) from None
    except Exception:
        log.exception("an expression could not be compiled")
        raise compiler.origin.error(
            "this expression cannot be compiled; write it in another way", 1, 1, code="UNSUPPORTED_EXPRESSION"
        ) from None


def _quick(term: Term) -> Evaluate | None:
    """The function of a constant or a parameter, without generated code, because an INSERT may have thousands."""
    if term.constant:
        content = settle(term.content)
        return lambda new, old=None, params=(), /: content
    if term.parameter is not None:
        index = term.parameter
        return lambda new, old=None, params=(), /: parameter(params, index)
    return None


def _function(compiler: Compiler, term: Term, result: str) -> Callable[..., Any]:
    """The compiled Python function that returns this result."""
    # ROW is computed from the arguments as passed, so its line comes first.
    prologue = "".join(_PROLOGUES[side] for side in (ROW, NEW, OLD) if side in compiler.sides)
    source = f"def compiled(new, old=None, params=(), /):\n{prologue} return {result}\n"
    names = compiler.names.bound
    try:
        # Safe: the source consists of our own code and generated names. The user's names and constants are bound to
        # generated names and are never part of the source. No builtins are available.
        exec(compile(source, "<expression>", "exec"), names)  # noqa: S102
    except (SyntaxError, RecursionError, MemoryError):
        raise too_deep(compiler.origin, term.node) from None
    compiled: Callable[..., Any] = names.pop("compiled")
    return compiled

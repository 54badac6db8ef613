"""Terms: parts of an expression as Python source, with what is known about them at compile time.

A boolean term has three sources: `value` is True, False or None; `true` is True if the value is TRUE, else False;
`false` is True if the value is FALSE. NOT swaps the last two, AND and OR combine them, so that a filter runs as plain
Python `and` and `or`, and three-valued logic costs nothing. A source contains each of its parts once, so its length is
linear in that of the expression.

The user's names and constants are never part of a source: they are bound to generated names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tailrace.scalar import exact, moments, runtime

BOOL: Final = "boolean"
NUMBER: Final = "number"
TEXT: Final = "text"
BLOB: Final = "binary"
MOMENT: Final = "timestamp"  # never stored: in an item it is a text
NULL: Final = "null"

# The type tag of a kind in typed values, and the runtime function that checks a plain value for it.
ATTRIBUTE: Final = {BOOL: "BOOL", NUMBER: "N", TEXT: "S", BLOB: "B"}
CHECKS: Final = {BOOL: "as_boolean", NUMBER: "as_number", TEXT: "as_text", BLOB: "as_blob", MOMENT: "as_moment"}

_RUNTIME: Final[dict[str, Any]] = {
    name: content
    for name, content in vars(runtime).items()
    if not name.startswith("_") and (name == "EMPTY" or getattr(content, "__module__", "") == runtime.__name__)
} | moments.FUNCTIONS


@dataclass(frozen=True, slots=True)
class Term:
    """A compiled part of an expression. `sure`: its value is always of `kind` or None; otherwise `kind` is only the
    declared one. `kind` None: not known."""

    node: exp.Expr
    value: str
    kind: str | None = None
    sure: bool = False
    true: str = ""
    false: str = ""
    raw: str | None = None  # of a column: the typed value, empty where it is missing
    constant: bool = False
    content: Any = None  # of a constant
    parameter: int | None = None  # of a parameter: its index
    label: str = ""  # of a column: its name in error messages
    declared: str | None = None  # of a column: its type


@dataclass(slots=True)
class Bindings:
    """The globals of a compiled function: the functions of `runtime` or `exact`, and the bound constants."""

    exact: bool = False
    bound: dict[str, Any] = field(default_factory=lambda: {"__builtins__": {}, **_RUNTIME})
    _count: int = 0

    def __post_init__(self) -> None:
        if self.exact:
            self.bound |= exact.FUNCTIONS

    def bind(self, content: Any) -> str:
        """A generated name for this constant."""
        self._count += 1
        name = f"c{self._count}"
        self.bound[name] = content
        return name

    def temporary(self) -> str:
        """A generated name for a local variable."""
        self._count += 1
        return f"t{self._count}"


def of_kind(term: Term, kind: str) -> str:
    """The source of the term's value if it is of this kind, else of None."""
    if term.kind == NULL:
        return "None"
    if term.sure and term.kind == kind:
        return term.value
    if term.raw is not None:
        tagged = f"{term.raw}.get({ATTRIBUTE[TEXT if kind == MOMENT else kind]!r})"
        return f"number_of({tagged})" if kind == NUMBER else f"as_moment({tagged})" if kind == MOMENT else tagged
    return f"{CHECKS[kind]}({term.value})"


def argument(term: Term, kind: str, names: Bindings) -> str:
    """The source of an argument of this kind; a value of another kind is None, or an error in an exact expression."""
    if not names.exact or term.kind == NULL or (term.sure and term.kind == kind):
        return of_kind(term, kind)
    return f"{exact.EXACT}{CHECKS[kind]}({term.value})"


def truth(node: exp.Expr, value: str, true: str = "", false: str = "") -> Term:
    """A boolean term; `true` and `false` are derived from the value by default."""
    return Term(
        node,
        value,
        BOOL,
        sure=True,
        true=true or f"({value} is True)",
        false=false or f"({value} is False)",
    )


def unknown(node: exp.Expr) -> Term:
    """NULL."""
    return Term(node, "None", NULL, sure=True, true="False", false="False", constant=True)


def negation(node: exp.Expr, term: Term, names: Bindings) -> Term:
    """NOT term."""
    if term.kind == NULL:
        return unknown(node)
    held = names.temporary()
    return truth(node, f"(None if ({held} := {term.value}) is None else not {held})", term.false, term.true)


def junction(node: exp.Expr, terms: list[Term], names: Bindings, *, every: bool) -> Term:
    """AND of the terms, or OR."""
    if len(terms) == 1:
        return terms[0]
    true = f"({(' and ' if every else ' or ').join(term.true for term in terms)})"
    false = f"({(' or ' if every else ' and ').join(term.false for term in terms)})"
    # One deciding term decides the result; otherwise an unknown one makes it unknown.
    held = [(names.temporary(), term.value) for term in terms]
    decides = f"{not every}"
    decided = " or ".join(f"({name} := {value}) is {decides}" for name, value in held)
    left_open = " or ".join(f"{name} is None" for name, _ in held)
    return truth(node, f"({decides} if {decided} else None if {left_open} else {every})", true, false)


def with_held(held: str, value: str, term: Term) -> Term:
    """The term with the local variable that it uses assigned first."""
    # `is` is always true here: it combines the assignment and its use in one expression.
    first = f"({held} := {value}) is {held} and"
    return truth(term.node, f"({first} {term.value})", f"({first} {term.true})", f"({first} {term.false})")

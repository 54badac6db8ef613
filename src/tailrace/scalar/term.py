"""Terms: parts of an expression as Python source, and what is known about them before any row is seen.

A term of SQL's type boolean has three sources: `value` gives True, False or None; `true` gives True where the value is
TRUE, and False elsewhere; `false` gives True where it is FALSE. NOT swaps the last two, AND and OR join them, so that
a filter runs as plain Python `and` and `or`, and its unknowns cost nothing. A source holds each of its parts once, so
it is never longer than a few times the expression.

Names and constants of the user are never part of a source: they are bound to names that the compiler makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from tailrace.scalar import exact, runtime

BOOL: Final = "boolean"
NUMBER: Final = "number"
TEXT: Final = "text"
BLOB: Final = "binary"
NULL: Final = "null"

# What a kind is called in a typed value, and how a plain value is told to be of it.
ATTRIBUTE: Final = {BOOL: "BOOL", NUMBER: "N", TEXT: "S", BLOB: "B"}
CHECKS: Final = {BOOL: "as_boolean", NUMBER: "as_number", TEXT: "as_text", BLOB: "as_blob"}

_RUNTIME: Final[dict[str, Any]] = {
    name: content
    for name, content in vars(runtime).items()
    if not name.startswith("_") and (name == "EMPTY" or getattr(content, "__module__", "") == runtime.__name__)
}


@dataclass(frozen=True, slots=True)
class Term:
    """A compiled part. `sure`: its value is of `kind` or None, whatever the row holds; without it `kind` is only what
    is declared. `kind` None: not known."""

    node: exp.Expr
    value: str
    kind: str | None = None
    sure: bool = False
    true: str = ""
    false: str = ""
    raw: str | None = None  # of a column: the typed value, empty where it is missing
    constant: bool = False
    content: Any = None  # of a constant
    parameter: int | None = None  # of a parameter alone: which, from 0
    label: str = ""  # of a column: what errors call it


@dataclass(slots=True)
class Names:
    """What a compiled function sees: the functions of `runtime`, or of `exact`, and what was bound."""

    exact: bool = False
    bound: dict[str, Any] = field(default_factory=lambda: {"__builtins__": {}, **_RUNTIME})
    _count: int = 0

    def __post_init__(self) -> None:
        if self.exact:
            self.bound |= exact.FUNCTIONS

    def bind(self, content: Any) -> str:
        """A name that stands for this."""
        self._count += 1
        name = f"c{self._count}"
        self.bound[name] = content
        return name

    def temporary(self) -> str:
        """A name for a local variable."""
        self._count += 1
        return f"t{self._count}"


def of_kind(term: Term, kind: str) -> str:
    """The source of the term's value where it is of this kind, else None."""
    if term.kind == NULL:
        return "None"
    if term.sure and term.kind == kind:
        return term.value
    if term.raw is not None:
        found = f"{term.raw}.get({ATTRIBUTE[kind]!r})"
        return f"number_of({found})" if kind == NUMBER else found
    return f"{CHECKS[kind]}({term.value})"


def argument(term: Term, kind: str, names: Names) -> str:
    """The source of what a function or a sign takes, of this kind; of another kind it is None, or an error in an exact
    expression."""
    if not names.exact or term.kind == NULL or (term.sure and term.kind == kind):
        return of_kind(term, kind)
    return f"{exact.EXACT}{CHECKS[kind]}({term.value})"


def truth(node: exp.Expr, value: str, true: str = "", false: str = "") -> Term:
    """A boolean term; what is not given comes from its value."""
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


def negation(node: exp.Expr, term: Term, names: Names) -> Term:
    """NOT term."""
    if term.kind == NULL:
        return unknown(node)
    held = names.temporary()
    return truth(node, f"(None if ({held} := {term.value}) is None else not {held})", term.false, term.true)


def junction(node: exp.Expr, terms: list[Term], names: Names, *, every: bool) -> Term:
    """AND of the terms, or OR."""
    if len(terms) == 1:
        return terms[0]
    true = f"({(' and ' if every else ' or ').join(term.true for term in terms)})"
    false = f"({(' or ' if every else ' and ').join(term.false for term in terms)})"
    # One that decides decides; else one that is unknown leaves it open.
    held = [(names.temporary(), term.value) for term in terms]
    decides = f"{not every}"
    decided = " or ".join(f"({name} := {value}) is {decides}" for name, value in held)
    left_open = " or ".join(f"{name} is None" for name, _ in held)
    return truth(node, f"({decides} if {decided} else None if {left_open} else {every})", true, false)


def with_held(held: str, value: str, term: Term) -> Term:
    """The term, which uses a local variable, with the variable set first."""
    # `is` itself is always true here: it joins the assignment and what uses it in one expression.
    first = f"({held} := {value}) is {held} and"
    return truth(term.node, f"({first} {term.value})", f"({first} {term.true})", f"({first} {term.false})")

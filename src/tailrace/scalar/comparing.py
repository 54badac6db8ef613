"""Compilation of comparisons: =, <>, <, <=, >, >=, IS DISTINCT FROM, IN, BETWEEN, IS NULL, LIKE.

If the kind of one side is certain, as for a literal, the other side is loaded as that kind; a value of another kind is
loaded as None, which makes the comparison unknown. If neither is certain, both are loaded as they are and compared by
their values. A number in an item is its canonical text, so equality with a constant compares texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from tailrace.scalar import regular
from tailrace.scalar.moments import as_moment
from tailrace.scalar.pattern import BadPattern, matcher
from tailrace.scalar.problem import TextOrigin, shown
from tailrace.scalar.runtime import number_in_text, text_of, uuid_text, whole_in_text
from tailrace.scalar.term import (
    ATTRIBUTE,
    BOOL,
    MOMENT,
    NULL,
    NUMBER,
    TEXT,
    Bindings,
    Term,
    junction,
    negation,
    of_kind,
    truth,
    unknown,
    with_held,
)

_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# By the declared type of a column: how a text that is compared with it is read.
_READS: Final[dict[str, Callable[[Any], Any]]] = {
    "UUID": uuid_text,
    "BIGINT": whole_in_text,
    "DECIMAL": number_in_text,
    "DOUBLE": number_in_text,
}
_MIRRORED: Final = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


class ComparisonCompiler:
    """Compiles comparisons of terms; refuses comparisons that can never be true."""

    def __init__(self, names: Bindings, origin: TextOrigin) -> None:
        self._names = names
        self._origin = origin

    def compare(self, node: exp.Expr, operator: str, a: Term, b: Term) -> Term:
        """`a operator b`; the operator as Python writes it."""
        a, b = self._conformed(a, b), self._conformed(b, a)
        self.check(node, a, b)
        if a.kind == NULL or b.kind == NULL:
            return unknown(node)
        if a.constant and not b.constant:
            a, b, operator = b, a, _MIRRORED[operator]
        kind = a.kind if a.sure and a.kind else b.kind if b.sure else None
        if MOMENT in (a.kind, b.kind):
            kind = MOMENT
        if kind is None:
            return self._by_values(node, operator, a, b)
        if operator in ("==", "!=") and b.constant and a.raw is not None and kind != MOMENT:
            return self._with_constant(node, operator, a, b, kind)
        left, right = of_kind(a, kind), of_kind(b, kind)
        held = self._names.temporary()
        known = f"({held} := {left}) is not None"
        missing = f"({held} := {left}) is None"
        if not b.constant:
            other = self._names.temporary()
            known += f" and ({other} := {right}) is not None"
            missing += f" or ({other} := {right}) is None"
            right = other
        return truth(
            node,
            f"(None if {missing} else {held} {operator} {right})",
            f"({known} and {held} {operator} {right})",
            f"({known} and {held} {_OPPOSITE[operator]} {right})",
        )

    def _conformed(self, term: Term, other: Term) -> Term:
        """A constant or parameter in the form of the column that it is compared with: a UUID as it is stored, and a
        text that is a number as that number."""
        reads = _READS.get(other.declared or "")
        if reads is None or not (term.constant or term.parameter is not None):
            return term
        if term.parameter is not None:
            return Term(term.node, f"compared_parameter({self._names.bind(reads)}, {term.value}, {other.declared!r})")
        content = reads(term.content) if term.kind == TEXT else term.content
        if content is term.content:
            return term
        kind = TEXT if isinstance(content, str) else NUMBER
        return replace(term, value=self._names.bind(content), kind=kind, content=content)

    def _with_constant(self, node: exp.Expr, operator: str, a: Term, b: Term, kind: str) -> Term:
        """Equality of a column with a constant, the most common filter."""
        attribute = ATTRIBUTE[kind]
        constant = self._names.bind(text_of(b.content) if kind == NUMBER else b.content)
        held = self._names.temporary()
        value = f"(None if ({held} := {a.raw}.get({attribute!r})) is None else {held} {operator} {constant})"
        equal = f"({a.raw}.get({attribute!r}) == {constant})"
        # A value that is missing or of another kind is replaced by the constant itself, so that it does not differ.
        differs = f"({a.raw}.get({attribute!r}, {constant}) != {constant})"
        return truth(node, value, *((equal, differs) if operator == "==" else (differs, equal)))

    def _by_values(self, node: exp.Expr, operator: str, a: Term, b: Term) -> Term:
        if operator in ("==", "!="):
            if a.raw is not None and b.raw is not None:
                term = truth(node, f"equal_raw({a.raw}, {b.raw})")
            else:
                term = truth(node, f"equal({a.value}, {b.value})")
            return term if operator == "==" else negation(node, term, self._names)
        held = self._names.temporary()
        ordered = f"({held} := order({a.value}, {b.value}))"
        return truth(
            node,
            f"(None if {ordered} is None else {held} {operator} 0)",
            f"({ordered} is not None and {held} {operator} 0)",
            f"({ordered} is not None and {held} {_OPPOSITE[operator]} 0)",
        )

    def same(self, node: exp.Expr, a: Term, b: Term) -> Term:
        """`a IS NOT DISTINCT FROM b`; never unknown."""
        a, b = self._conformed(a, b), self._conformed(b, a)
        self.check(node, a, b)
        if a.kind == NULL or b.kind == NULL:
            return self.is_null(node, b if a.kind == NULL else a)
        if MOMENT in (a.kind, b.kind):
            return self.certain(node, f"same({of_kind(a, MOMENT)}, {of_kind(b, MOMENT)})")
        if a.raw is not None and b.raw is not None:
            return self.certain(node, f"same_raw({a.raw}, {b.raw})")
        return self.certain(node, f"same({a.value}, {b.value})")

    def is_null(self, node: exp.Expr, term: Term) -> Term:
        """`term IS NULL`."""
        if term.raw is None:
            return self.certain(node, f"({term.value} is None)")
        held = self._names.temporary()
        return self.certain(node, f"(not ({held} := {term.raw}) or 'NULL' in {held})")

    def certain(self, node: exp.Expr, source: str) -> Term:
        """A boolean term that is never unknown."""
        return truth(node, source, source, f"(not {source})")

    def among(self, node: exp.Expr, term: Term, options: list[Term]) -> Term:
        """`term IN (options)`."""
        options = [self._conformed(option, term) for option in options]
        for option in options:
            self.check(node, term, option)
        if term.kind == NULL:
            return unknown(node)
        kinds = {option.kind for option in options} - {NULL}
        if term.kind != MOMENT and len(kinds) == 1 and all(option.constant for option in options):
            return self._among_constants(node, term, options, kinds.pop() or "")
        held = self._names.temporary()
        # The held value is loaded once, and compared with each option.
        subject = Term(term.node, held, term.kind, term.sure, label=term.label, declared=term.declared)
        matches = [self.compare(node, "==", subject, option) for option in options]
        return with_held(held, term.value, junction(node, matches, self._names, every=False))

    def _among_constants(self, node: exp.Expr, term: Term, options: list[Term], kind: str) -> Term:
        contents = [option.content for option in options if option.kind != NULL]
        has_null = len(contents) < len(options)
        if term.raw is not None and kind == NUMBER:
            source = f"{term.raw}.get('N')"
            contents = [text_of(content) for content in contents]
        else:
            source = of_kind(term, kind)
        wanted = self._names.bind(frozenset(contents))
        held = self._names.temporary()
        otherwise = "None" if has_null else "False"
        return truth(
            node,
            f"(None if ({held} := {source}) is None else True if {held} in {wanted} else {otherwise})",
            f"({source} in {wanted})",
            "False" if has_null else f"(({held} := {source}) is not None and {held} not in {wanted})",
        )

    def between(self, node: exp.Expr, term: Term, low: Term, high: Term) -> Term:
        """`term BETWEEN low AND high`."""
        low, high = self._conformed(low, term), self._conformed(high, term)
        held = self._names.temporary()
        sure = next((part.kind for part in (term, low, high) if part.sure and part.kind not in (None, NULL)), None)
        sure = MOMENT if MOMENT in (term.kind, low.kind, high.kind) else sure
        self.check(node, term, low)
        self.check(node, term, high)
        if sure is not None:
            subject, source = Term(term.node, held, sure, sure=True), of_kind(term, sure)
        else:
            subject, source = Term(term.node, held, term.kind, label=term.label), term.value
        bounds = [self.compare(node, ">=", subject, low), self.compare(node, "<=", subject, high)]
        return with_held(held, source, junction(node, bounds, self._names, every=True))

    def like(self, node: exp.Expr, term: Term, wanted: Term, escape: Term | None, *, fold: bool) -> Term:
        """`term LIKE wanted ESCAPE escape`; with `fold`, ILIKE."""
        for part in (term, wanted, *([escape] if escape else [])):
            self.expect(part, TEXT, "LIKE")
        if NULL in (term.kind, wanted.kind) or (escape is not None and escape.kind == NULL):
            return unknown(node)
        if escape is not None and not escape.constant:
            raise self._origin.error_at("ESCAPE must be one character in quotes", escape.node)
        mark = escape.content if escape is not None else None
        subject = of_kind(term, TEXT)
        if not wanted.constant:
            return truth(node, f"like({subject}, {of_kind(wanted, TEXT)}, {self._names.bind(mark)}, {fold})")
        try:
            matches = self._names.bind(matcher(wanted.content, mark, fold))
        except BadPattern as error:
            raise self._origin.error_at(f"{error}: {_shown(repr(wanted.content))}", node) from None
        held = self._names.temporary()
        known = f"({held} := {subject}) is not None"
        return truth(
            node,
            f"({matches}({held}) if {known} else None)",
            f"({known} and {matches}({held}))",
            f"({known} and not {matches}({held}))",
        )

    def matches(self, node: exp.Expr, term: Term, wanted: Term, *, fold: bool, whole: bool) -> Term:
        """Whether the term has a match of the regular expression `wanted`: somewhere, or as a `whole`."""
        self.expect(term, TEXT, "a regular expression")
        self.expect(wanted, TEXT, "a regular expression")
        if NULL in (term.kind, wanted.kind):
            return unknown(node)
        if not wanted.constant:
            raise self._origin.error_at("a regular expression is written as a text in quotes", wanted.node)
        try:
            found = self._names.bind(regular.search(wanted.content, fold=fold, whole=whole))
        except BadPattern as error:
            raise self._origin.error_at(f"{error}: {_shown(repr(wanted.content))}", node) from None
        held = self._names.temporary()
        known = f"({held} := {of_kind(term, TEXT)}) is not None"
        return truth(
            node,
            f"({found}({held}) if {known} else None)",
            f"({known} and {found}({held}))",
            f"({known} and not {found}({held}))",
        )

    def boolean(self, term: Term, where: str) -> Term:
        """The term as a condition."""
        if term.kind == NULL or (term.kind == BOOL and term.sure):
            return term
        self.expect(term, BOOL, where)
        if term.raw is not None:
            source = f"{term.raw}.get('BOOL')"
            return truth(term.node, source)
        return truth(term.node, of_kind(term, BOOL))

    def check(self, node: exp.Expr, a: Term, b: Term) -> None:
        """Refuse a comparison of two kinds, which is never true."""
        if {a.kind, b.kind} == {TEXT, MOMENT}:
            self._check_moment(a if a.kind == TEXT else b)
        elif a.kind != b.kind and a.kind not in (None, NULL) and b.kind not in (None, NULL):
            raise self._origin.error_at(
                f"cannot compare {described(a)} with {described(b)}: their types differ; CAST one of them",
                node,
                code="KIND_MISMATCH",
            )

    def _check_moment(self, term: Term) -> None:
        """Refuse a text that is compared with a timestamp and is none."""
        if term.constant and as_moment(term.content) is None:
            raise self._origin.error_at(
                f"{described(term)} is not a timestamp; write it as in '2026-01-28 12:00:00'",
                term.node,
                code="KIND_MISMATCH",
            )

    def alike(self, node: exp.Expr, a: Term, b: Term) -> None:
        """Refuse a choice between values of two kinds."""
        if a.kind != b.kind and not (_written(a) and _written(b)):
            raise self._origin.error_at(
                f"{described(a)} and {described(b)} have different types, but must have the same; CAST one of them",
                node,
                code="KIND_MISMATCH",
            )

    def expect(self, term: Term, kind: str, where: str) -> None:
        """Refuse a term that is known to be of another kind than `where` takes."""
        if term.kind not in (None, NULL, kind) and not (kind == TEXT and _written(term)):
            raise self._origin.error_at(
                f"{where} requires a {kind}, not {described(term)}", term.node, code="KIND_MISMATCH"
            )


def is_time(term: Term) -> bool:
    """Whether it is a constant text that is a time."""
    return term.constant and as_moment(term.content) is not None


def _written(term: Term) -> bool:
    """Whether it is a text, or a time as it is stored: a text."""
    return term.kind == TEXT or (term.kind == MOMENT and not term.sure)


def described(term: Term) -> str:
    """A term as error messages name it."""
    if term.label:
        return term.label
    if not term.constant:
        return f"the {term.kind} {_shown(shown(term.node))}"
    content: Any = text_of(term.content) if term.kind in (NUMBER, BOOL) else repr(term.content)
    return f"the {term.kind} {_shown(str(content))}"


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"

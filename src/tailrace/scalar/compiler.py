"""The compiler from a syntax tree to terms.

Only the node types listed here are supported: any other type, or an unknown option of a node, is refused with its
location, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Final

from sqlglot import exp

from tailrace.errors import Invalid
from tailrace.scalar import functions
from tailrace.scalar.comparing import ComparisonCompiler, is_time
from tailrace.scalar.problem import ExpressionError, TextOrigin, shown
from tailrace.scalar.reading import DEPTH_MAX, NODES_MAX, too_deep
from tailrace.scalar.runtime import negate, number_of
from tailrace.scalar.term import (
    BLOB,
    BOOL,
    MOMENT,
    NULL,
    NUMBER,
    TEXT,
    Bindings,
    Term,
    argument,
    junction,
    negation,
    truth,
    unknown,
    with_held,
)
from tailrace.tables.number import canonical
from tailrace.tables.value import check_text

NEW: Final = "new"
OLD: Final = "old"
ROW: Final = "row"  # the new row, or the old one if there is no new row

_COLUMN_KINDS: Final = {
    "TEXT": TEXT,
    "BIGINT": NUMBER,
    "DOUBLE": NUMBER,
    "DECIMAL": NUMBER,
    "BOOLEAN": BOOL,
    "BLOB": BLOB,
    "TIMESTAMP": MOMENT,
    "DATE": MOMENT,
    "UUID": TEXT,
}
_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "==",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: Final[dict[type[exp.Expr], tuple[str, str]]] = {
    exp.Add: ("+", "add"),
    exp.Sub: ("-", "subtract"),
    exp.Mul: ("*", "multiply"),
    exp.Div: ("/", "divide"),
    exp.IntDiv: ("//", "divide_whole"),
    exp.Mod: ("%", "remainder"),
}
# Options that sqlglot sets by itself, without a meaning here.
_IGNORED: Final = frozenset(("safe", "typed", "coalesce", "ignore_nulls", "jdbc", "big_int", "value_constructor"))
_NAMES_SHOWN: Final = 50
CHAIN_MAX: Final = 100  # chained operators: a + b - c has two


class Compiler:
    """Compiles one expression. `parameters` is the number of `?` before it, and afterwards includes its own. `exact`:
    the value is about to be stored, so a missing result is an error. `keys`: without known columns, the names that
    match in any case; other names match exactly."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]] | None,
        origin: TextOrigin,
        parameters: int | None = None,
        *,
        exact: bool = False,
        keys: Sequence[str] = (),
    ) -> None:
        self.names = Bindings(exact)
        self.origin = origin
        self.used: set[str] = set()
        self.sides: set[str] = set()
        self.parameters = parameters
        self.highest = 0  # of numbered parameters
        self.timed = False  # it needs the time of the statement, which is the last parameter
        self.comparing = ComparisonCompiler(self.names, origin)
        self._columns = None if columns is None else dict(columns)
        self._keys = keys
        self._lowered: dict[str, list[str]] | None = None
        self._depth = 0
        self._nodes = 0

    # -- walking

    def term(self, node: exp.Expr) -> Term:
        """The term of a node."""
        node = node.unnest()
        self._nodes += 1
        if self._depth >= DEPTH_MAX:
            raise too_deep(self.origin, node)
        if self._nodes > NODES_MAX:
            raise self.error(f"an expression can have at most {NODES_MAX} parts; use a shorter list", node)
        self._depth += 1
        try:
            compiled = _HANDLERS.get(type(node))
            if compiled is not None:
                return compiled(self, node)
            if type(node) in functions.HANDLERS:
                return functions.HANDLERS[type(node)](self, node)
        finally:
            self._depth -= 1
        raise self.unsupported(node)

    def error(self, reason: str, node: exp.Expr, code: str | None = None) -> ExpressionError:
        """The error at this node."""
        return self.origin.error_at(reason, node, code)

    def unsupported(self, node: exp.Expr) -> ExpressionError:
        """The error for a node that is not supported."""
        shown = self._shown(node)
        if isinstance(node, exp.Query | exp.Exists | exp.Values):
            reason = "an expression cannot have a subquery"
        elif isinstance(node, exp.Window):
            reason = f"{shown} is a window function; an expression is evaluated on a single row"
        elif isinstance(node, exp.AggFunc):
            reason = f"{shown} is an aggregate function; an expression is evaluated on a single row"
        elif isinstance(node, exp.Func) and not isinstance(node, exp.Binary | exp.Struct | exp.Array):
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            return self.error(
                f"function {name.upper()!r} is not supported in expressions; use {', '.join(functions.NAMES)}",
                node,
                code="UNKNOWN_FUNCTION",
            )
        else:
            reason = f"{shown} is not supported in expressions"
        return self.error(reason, node, code="UNSUPPORTED_EXPRESSION")

    def _shown(self, node: exp.Expr) -> str:
        return repr(" ".join(shown(node).split())[:60])

    def take(self, node: exp.Expr, *names: str) -> list[Any]:
        """These arguments of a node; any other argument is refused."""
        for name, held in node.args.items():
            if held and name not in names and name not in _IGNORED:
                raise self.error(
                    f"{self._shown(node)} has an argument or option that is not supported",
                    node,
                    code="UNSUPPORTED_EXPRESSION",
                )
        return [node.args.get(name) for name in names]

    # -- leaves

    def constant(self, node: exp.Expr, content: Any, kind: str) -> Term:
        """A constant."""
        if kind == TEXT:
            content = self._sound(node, content)
        if kind == BOOL:
            return Term(node, f"{content}", BOOL, True, f"{content}", f"{not content}", None, True, content)
        return Term(node, self.names.bind(content), kind, sure=True, constant=True, content=content)

    def _sound(self, node: exp.Expr, text: str) -> str:
        try:
            return check_text(text, "a text")
        except Invalid as error:
            raise self.error(str(error), node) from None

    def _literal(self, node: exp.Expr) -> Term:
        if node.args.get("is_string"):
            return self.constant(node, node.this, TEXT)
        try:
            return self.constant(node, number_of(canonical(node.this)), NUMBER)
        except Invalid as error:
            raise self.error(f"{node.this[:60]} is not a number that an item can store: {error}", node) from None

    def _boolean(self, node: exp.Expr) -> Term:
        return self.constant(node, bool(node.this), BOOL)

    def _null(self, node: exp.Expr) -> Term:
        return unknown(node)

    def _raw_text(self, node: exp.Expr) -> Term:
        return self.constant(node, node.this, TEXT)

    def _hex(self, node: exp.Expr) -> Term:
        self.take(node, "this")  # 0xFF, a number, has an option and is refused
        try:
            return self.constant(node, bytes.fromhex(node.this), BLOB)
        except ValueError:
            raise self.error(f"X'{node.this[:60]}' must be pairs of hexadecimal digits", node) from None

    def _placeholder(self, node: exp.Expr) -> Term:
        if self.parameters is None:
            raise self.error("a stored expression cannot have parameters; write the value", node)
        given = node.this.this if isinstance(node.this, exp.Expr) else node.this
        if not given:
            index = self.parameters
            self.parameters += 1
        elif str(given).isdecimal() and len(str(given)) < 10 and 0 < int(given) <= NODES_MAX:
            index = int(given) - 1
            self.highest = max(self.highest, index + 1)
        else:
            raise self.error(f"${str(given)[:60]} is not a parameter; use ? or $1, $2, …", node)
        return Term(node, f"parameter(params, {index:d})", parameter=index)

    def time(self, node: exp.Expr, runs: str) -> Term:
        """The time of the statement, as `runs` reads it."""
        if self.parameters is None:
            raise self.error(
                "the current time is not available here: a stored condition has the same result at any time",
                node,
                code="UNSUPPORTED_EXPRESSION",
            )
        self.timed = True
        return Term(node, f"{runs}(params[-1])", MOMENT, sure=True)

    # -- columns

    def _column(self, node: exp.Expr) -> Term:
        parts = self._parts(node)
        side = ROW
        word = "" if parts[0].quoted else parts[0].name.lower()
        if len(parts) > 1 and word in (NEW, OLD):
            side, parts = word, parts[1:]
        root = parts[0]
        if not isinstance(root, exp.Identifier):
            raise self.unsupported(node)
        name, kind = self._resolved(root)
        self._sound(root, name)
        self.used.add(name)
        self.sides.add(side)
        raw = f"{side}.get({self.names.bind(name)}, EMPTY)"
        path = parts[1:]
        if path and kind in _COLUMN_KINDS:
            raise self.error(f"column {name!r} is {kind}, and only JSON columns have paths", node)
        for part in path:
            if isinstance(part, int):
                raw = f"element({raw}, {part:d})"
            else:
                text = self._sound(node, part if isinstance(part, str) else part.name)
                raw = f"{raw}.get('M', EMPTY).get({self.names.bind(text)}, EMPTY)"
        label = f"column {name!r}" + (f" ({kind})" if kind else "")
        known = None if path or kind is None else _COLUMN_KINDS.get(kind)
        return Term(node, f"load({raw})", known, raw=raw, label=label, declared=None if path else kind)

    def _parts(self, node: exp.Expr) -> list[Any]:
        """The parts of a path from its root: identifiers, quoted keys (str) and list indexes (int, from 0)."""
        parts: list[Any] = []
        while not isinstance(node, exp.Column):
            if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
                parts.append(node.expression)
            elif isinstance(node, exp.Bracket) and len(node.expressions) == 1:
                parts.append(self._key(node, node.expressions[0]))
            elif isinstance(node, exp.JSONExtract):
                parts.extend(reversed(self._json_path(node)))
            else:
                raise self.unsupported(node)
            if len(parts) > DEPTH_MAX:
                raise too_deep(self.origin, node)
            node = node.this
        if node.args.get("join_mark") or not all(isinstance(part, exp.Identifier) for part in node.parts):
            raise self.unsupported(node)
        return [*node.parts, *reversed(parts)]

    def _json_path(self, node: exp.Expr) -> list[str | int]:
        """The steps of a JSON path, as in `doc -> 'a'` and `json_extract(doc, '$.a[0]')`."""
        path = node.expression
        steps = path.expressions if isinstance(path, exp.JSONPath) else ()
        found: list[str | int] = []
        for step in steps:
            if (isinstance(step, exp.JSONPathKey) and isinstance(step.this, str)) or (
                isinstance(step, exp.JSONPathSubscript) and isinstance(step.this, int) and step.this >= 0
            ):
                found.append(step.this)
            elif not isinstance(step, exp.JSONPathRoot):
                raise self.error("a JSON path has names and positions alone, as in '$.lines[0].sku'", node)
        if not found:
            raise self.error("a JSON path is a text in quotes, as in '$.lines[0].sku'", node)
        return found

    def _json_text(self, node: exp.Expr) -> Term:
        """`doc ->> 'a'`: the text at a JSON path."""
        found = exp.JSONExtract(this=node.this, expression=node.expression)
        return Term(node, f"to_text({self._column(found).value})", TEXT, sure=True)

    def _key(self, node: exp.Expr, key: exp.Expr) -> str | int:
        if isinstance(key, exp.Literal):
            if key.is_string:
                return key.name
            if key.name.isdecimal() and len(key.name) < 10:
                return int(key.name)
        raise self.error("a part of a document is written ['name'], and an element of a list [1], [2], …", node)

    def _resolved(self, identifier: exp.Identifier) -> tuple[str, str | None]:
        """The name and declared kind of a column. An unquoted name matches in any case if the match is unique."""
        name = identifier.name
        if self._columns is None:
            if name not in self._keys and not identifier.quoted:
                keys = [key for key in self._keys if key.lower() == name.lower()]
                name = keys[0] if len(keys) == 1 else name
            return name, None
        if name not in self._columns and not identifier.quoted:
            alike = self._by_lower().get(name.lower(), ())
            if len(alike) == 1:
                name = alike[0]
        if name not in self._columns:
            there = ", ".join(list(self._columns)[:_NAMES_SHOWN]) or "none"
            more = len(self._columns) - _NAMES_SHOWN
            there += f" and {more} more" if more > 0 else ""
            raise self.error(
                f"column {name!r} does not exist; the columns are: {there}", identifier, code="UNKNOWN_COLUMN"
            )
        return name, self._columns[name]

    def _by_lower(self) -> dict[str, list[str]]:
        """The columns by their names in lower case, built on first use."""
        if self._lowered is None:
            self._lowered = {}
            for column in self._columns or ():
                self._lowered.setdefault(column.lower(), []).append(column)
        return self._lowered

    # -- logic

    def condition(self, node: exp.Expr, where: str) -> Term:
        """The term of a node that must be a condition."""
        return self.comparing.boolean(self.term(node), where)

    def _and(self, node: exp.Expr) -> Term:
        return self._junction(node, "AND")

    def _or(self, node: exp.Expr) -> Term:
        return self._junction(node, "OR")

    def _junction(self, node: exp.Expr, word: str) -> Term:
        terms = [self.condition(part, word) for part in _chain(node)]
        return junction(node, terms, self.names, every=word == "AND")

    def _not(self, node: exp.Expr) -> Term:
        return negation(node, self.condition(node.this, "NOT"), self.names)

    def _is(self, node: exp.Expr) -> Term:
        this, other, negate_ = self.take(node, "this", "expression", "negate")
        if isinstance(other, exp.Null):
            term = self.comparing.is_null(node, self.term(this))
        elif isinstance(other, exp.Boolean):
            condition = self.condition(this, "IS TRUE")
            term = self.comparing.certain(node, condition.true if other.this else condition.false)
        else:
            raise self.error("IS must be followed by NULL, TRUE, FALSE or DISTINCT FROM", node)
        return negation(node, term, self.names) if negate_ else term

    # -- comparisons

    def _comparison(self, node: exp.Expr) -> Term:
        this, other = self.take(node, "this", "expression")
        if type(this) in _COMPARISONS or type(other) in _COMPARISONS:
            raise self.error("comparisons cannot be chained; join them with AND, or use parentheses", node)
        return self.comparing.compare(node, _COMPARISONS[type(node)], self.term(this), self.term(other))

    def _distinct(self, node: exp.Expr) -> Term:
        this, other = self.take(node, "this", "expression")
        term = self.comparing.same(node, self.term(this), self.term(other))
        return negation(node, term, self.names) if isinstance(node, exp.NullSafeNEQ) else term

    def _in(self, node: exp.Expr) -> Term:
        if node.args.get("query"):
            raise self.unsupported(node.args["query"])
        this, options, negate_ = self.take(node, "this", "expressions", "negate")
        if not options:
            raise self.error("IN requires at least one value", node)
        term = self.comparing.among(node, self.term(this), [self.term(option) for option in options])
        return negation(node, term, self.names) if negate_ else term

    def _between(self, node: exp.Expr) -> Term:
        this, low, high, negate_ = self.take(node, "this", "low", "high", "negate")
        term = self.comparing.between(node, self.term(this), self.term(low), self.term(high))
        return negation(node, term, self.names) if negate_ else term

    def _like(self, node: exp.Expr, escape: exp.Expr | None = None) -> Term:
        this, wanted, negate_ = self.take(node, "this", "expression", "negate")
        if isinstance(wanted, exp.Any | exp.All):
            raise self.unsupported(node)
        terms = self.term(this), self.term(wanted), self.term(escape) if escape is not None else None
        term = self.comparing.like(node, *terms, fold=isinstance(node, exp.ILike))
        return negation(node, term, self.names) if negate_ else term

    def _escape(self, node: exp.Expr) -> Term:
        like, mark = self.take(node, "this", "expression")
        if not isinstance(like, exp.Like | exp.ILike):
            raise self.unsupported(node)
        return self._like(like, mark)

    # -- values

    def number(self, node: exp.Expr, where: str) -> Term:
        """The term of a node that stands where a number is due."""
        term = self.term(node)
        self.comparing.expect(term, NUMBER, where)
        return term

    def _arithmetic(self, node: exp.Expr) -> Term:
        spine, first = _spine(node, _ARITHMETIC)
        if len(spine) > CHAIN_MAX:
            raise self.error(f"an expression can have at most {CHAIN_MAX} chained operators; use parentheses", node)
        source = ""
        for part in reversed(spine):
            self.take(part, "this", "expression")
            sign, name = _ARITHMETIC[type(part)]
            a = source or argument(self.number(first, sign), NUMBER, self.names)
            source = f"{name}({a}, {argument(self.number(part.expression, sign), NUMBER, self.names)})"
        return Term(node, source, NUMBER, sure=True)

    def _negative(self, node: exp.Expr) -> Term:
        term = self.number(node.this, "-")
        if term.constant and term.kind == NUMBER:
            return self.constant(node, negate(term.content), NUMBER)
        return Term(node, f"negate({argument(term, NUMBER, self.names)})", NUMBER, sure=True)

    def _pipe(self, node: exp.Expr) -> Term:
        spine, first = _spine(node, (exp.DPipe,))
        for part in spine:
            self.take(part, "this", "expression")
        terms = [self.term(part) for part in (first, *(part.expression for part in reversed(spine)))]
        kinds = {term.kind for term in terms} - {None, NULL}
        if BLOB in kinds and len(kinds) > 1:
            raise self.error(
                "|| cannot concatenate binary values with other values; CAST them", node, code="KIND_MISMATCH"
            )
        certainly_text = any(term.sure and term.kind not in (BLOB, NULL) for term in terms)
        source = f"joined({', '.join(term.value for term in terms)})"
        return Term(node, source, TEXT if certainly_text else None, sure=certainly_text)

    def choice(self, node: exp.Expr, terms: list[Term], value: str) -> Term:
        """A term whose value is one of the values of these terms."""
        kinds = {term.kind for term in terms if term.kind != NULL}
        known = [term for term in terms if term.kind not in (None, NULL)]
        for term in known[1:]:
            self.comparing.alike(node, known[0], term)
        if kinds == {MOMENT, TEXT} and all(is_time(term) for term in known if term.kind == TEXT):
            kinds = {MOMENT}  # texts that are read as times, like those that are stored
        kind = kinds.pop() if len(kinds) == 1 else None
        sure = kind is not None and all(term.sure for term in terms)
        if sure and kind == BOOL:
            return truth(node, value)
        return Term(node, value, kind, sure=sure)

    def _case(self, node: exp.Expr) -> Term:
        operand, branches, default = self.take(node, "this", "ifs", "default")
        held = self.names.temporary()
        subject = self.term(operand) if operand is not None else None
        conditions: list[str] = []
        results: list[Term] = []
        for branch in branches:
            when, then = self.take(branch, "this", "true")
            if subject is None:
                conditions.append(self.condition(when, "WHEN").true)
            else:
                same = Term(
                    subject.node, held, subject.kind, subject.sure, label=subject.label, declared=subject.declared
                )
                conditions.append(self.comparing.compare(when, "==", same, self.term(when)).true)
            results.append(self.term(then))
        return self._chosen(node, subject, held, conditions, [*results, self._default(node, default)])

    def _if(self, node: exp.Expr) -> Term:
        when, then, default = self.take(node, "this", "true", "false")
        conditions = [self.condition(when, "IF").true]
        return self._chosen(node, None, "", conditions, [self.term(then), self._default(node, default)])

    def _default(self, node: exp.Expr, default: exp.Expr | None) -> Term:
        return unknown(node) if default is None else self.term(default)

    def _chosen(
        self, node: exp.Expr, subject: Term | None, held: str, conditions: list[str], results: list[Term]
    ) -> Term:
        def source(parts: list[str]) -> str:
            branches = "".join(f"{part} if {when} else " for part, when in zip(parts, conditions, strict=False))
            return f"({branches}{parts[-1]})"

        term = self.choice(node, results, source([result.value for result in results]))
        if term.kind == BOOL and term.sure:
            true, false = ([getattr(result, form) for result in results] for form in ("true", "false"))
            term = truth(node, term.value, source(true), source(false))
        if subject is None:
            return term
        if term.kind == BOOL and term.sure:
            return with_held(held, subject.value, term)
        value = f"(({held} := {subject.value}) is {held} and {term.value})"
        return Term(node, value, term.kind, term.sure)


def _spine(node: exp.Expr, kinds: Container[type[exp.Expr]]) -> tuple[list[exp.Expr], exp.Expr]:
    """Left-associative operators of these types, as in a + b - c, outermost first, and the first operand. Iterative, so
    that a long sum needs no deep recursion."""
    spine: list[exp.Expr] = []
    while type(node) in kinds:
        spine.append(node)
        node = node.this
    return spine, node


def _chain(node: exp.Expr) -> Iterator[exp.Expr]:
    """The operands of a repeated operator: a AND b AND c. Iterative, because there may be thousands."""
    kind, waiting = type(node), [node]
    while waiting:
        part = waiting.pop().unnest()
        if type(part) is kind:
            waiting += [part.expression, part.this]
        else:
            yield part


_HANDLERS: Final[dict[type[exp.Expr], Callable[[Compiler, exp.Expr], Term]]] = {
    exp.Literal: Compiler._literal,
    exp.Boolean: Compiler._boolean,
    exp.Null: Compiler._null,
    exp.RawString: Compiler._raw_text,
    exp.HexString: Compiler._hex,
    exp.Placeholder: Compiler._placeholder,
    exp.Parameter: Compiler._placeholder,
    exp.Column: Compiler._column,
    exp.Dot: Compiler._column,
    exp.Bracket: Compiler._column,
    exp.JSONExtract: Compiler._column,
    exp.JSONExtractScalar: Compiler._json_text,
    exp.And: Compiler._and,
    exp.Or: Compiler._or,
    exp.Not: Compiler._not,
    exp.Is: Compiler._is,
    exp.NullSafeEQ: Compiler._distinct,
    exp.NullSafeNEQ: Compiler._distinct,
    exp.In: Compiler._in,
    exp.Between: Compiler._between,
    exp.Like: Compiler._like,
    exp.ILike: Compiler._like,
    exp.Escape: Compiler._escape,
    exp.Neg: Compiler._negative,
    exp.DPipe: Compiler._pipe,
    exp.Case: Compiler._case,
    exp.If: Compiler._if,
    **dict.fromkeys(_COMPARISONS, Compiler._comparison),
    **dict.fromkeys(_ARITHMETIC, Compiler._arithmetic),
}

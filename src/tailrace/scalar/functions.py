"""The functions of expressions, including CAST: their arguments, results and runtime functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from sqlglot import exp

from tailrace.scalar import exact
from tailrace.scalar.comparing import ComparisonCompiler
from tailrace.scalar.moments import PARTS, as_day, as_moment
from tailrace.scalar.problem import ExpressionError, shown
from tailrace.scalar.term import BLOB, BOOL, MOMENT, NULL, NUMBER, TEXT, Bindings, Term, argument, of_kind, truth


class FunctionCompiler(Protocol):
    """The compiler's interface for functions."""

    names: Bindings
    comparing: ComparisonCompiler

    def term(self, node: exp.Expr) -> Term: ...
    def take(self, node: exp.Expr, *names: str) -> list[Any]: ...
    def choice(self, node: exp.Expr, terms: list[Term], value: str) -> Term: ...
    def error(self, reason: str, node: exp.Expr, code: str | None = None) -> ExpressionError: ...
    def unsupported(self, node: exp.Expr) -> ExpressionError: ...
    def time(self, node: exp.Expr, runs: str) -> Term: ...


Handler: TypeAlias = Callable[[FunctionCompiler, exp.Expr], Term]

NAMES: Final = (
    "ABS",
    "CAST",
    "CEIL",
    "COALESCE",
    "CONCAT",
    "CONTAINS",
    "ENDS_WITH",
    "EXTRACT",
    "FLOOR",
    "GREATEST",
    "IF",
    "IFNULL",
    "LEAST",
    "LENGTH",
    "LOWER",
    "LTRIM",
    "MOD",
    "NOW",
    "NULLIF",
    "REGEXP_MATCHES",
    "REPLACE",
    "ROUND",
    "RTRIM",
    "STARTS_WITH",
    "SUBSTR",
    "TRIM",
    "TRY_CAST",
    "UPPER",
)

# Per node type: the name, the runtime function, the kind of the result, and the arguments with their kinds; those with
# "?" are optional.
_SIMPLE: Final[dict[type[exp.Expr], tuple[str, str, str, tuple[tuple[str, str], ...]]]] = {
    exp.Abs: ("ABS", "absolute", NUMBER, (("this", NUMBER),)),
    exp.Ceil: ("CEIL", "ceiling", NUMBER, (("this", NUMBER),)),
    exp.Floor: ("FLOOR", "floor", NUMBER, (("this", NUMBER),)),
    exp.Round: ("ROUND", "rounded", NUMBER, (("this", NUMBER), ("decimals?", NUMBER))),
    exp.Lower: ("LOWER", "lower", TEXT, (("this", TEXT),)),
    exp.Upper: ("UPPER", "upper", TEXT, (("this", TEXT),)),
    exp.Substring: ("SUBSTR", "substring", TEXT, (("this", TEXT), ("start", NUMBER), ("length?", NUMBER))),
    exp.Replace: ("REPLACE", "replaced", TEXT, (("this", TEXT), ("expression", TEXT), ("replacement", TEXT))),
    exp.StartsWith: ("STARTS_WITH", "starts_with", BOOL, (("this", TEXT), ("expression", TEXT))),
    exp.EndsWith: ("ENDS_WITH", "ends_with", BOOL, (("this", TEXT), ("expression", TEXT))),
    exp.Contains: ("CONTAINS", "contains", BOOL, (("this", TEXT), ("expression", TEXT))),
}
_TRIMS: Final = {"": "trimmed", "BOTH": "trimmed", "LEADING": "trimmed_left", "TRAILING": "trimmed_right"}
_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "INT128": 128}
_CASTS: Final[dict[str, tuple[str, str | None]]] = {
    "TEXT": ("to_text", TEXT),
    "VARCHAR": ("to_text", TEXT),
    "CHAR": ("to_text", TEXT),
    "DOUBLE": ("to_double", NUMBER),
    "BOOLEAN": ("to_boolean", BOOL),
    "VARBINARY": ("to_blob", BLOB),
    "BLOB": ("to_blob", BLOB),
    "BINARY": ("to_blob", BLOB),
    "JSON": ("to_json", None),
}
_DECIMAL_DIGITS_MAX: Final = 38
_MOMENTS: Final = {
    "TIMESTAMP": "to_moment",
    "TIMESTAMPNTZ": "to_moment",
    "TIMESTAMPTZ": "to_moment",
    "DATETIME": "to_moment",
    "DATE": "to_day",
}


def _result(node: exp.Expr, source: str, kind: str | None) -> Term:
    return truth(node, source) if kind == BOOL else Term(node, source, kind, sure=kind is not None)


def _simple(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    name, runs, kind, parameters = _SIMPLE[type(node)]
    arguments = compiler.take(node, *(parameter.rstrip("?") for parameter, _ in parameters))
    sources = []
    for given, (parameter, wanted) in zip(arguments, parameters, strict=True):
        if given is None:
            if parameter.endswith("?"):
                continue
            raise compiler.error(f"{name} requires more arguments", node)
        term = compiler.term(given)
        compiler.comparing.expect(term, wanted, name)
        sources.append(argument(term, wanted, compiler.names))
    return _result(node, f"{runs}({', '.join(sources)})", kind)


def _length(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    (given,) = compiler.take(node, "this")
    term = compiler.term(given)
    if term.kind in (NUMBER, BOOL):
        compiler.comparing.expect(term, TEXT, "LENGTH")
    return Term(node, f"length({term.value})", NUMBER, sure=True)


def _trim(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    this, characters, position = compiler.take(node, "this", "expression", "position")
    if characters is not None and this.find(exp.Placeholder) and characters.find(exp.Placeholder):
        # The syntax tree does not have their order in the text.
        raise compiler.error("TRIM can have at most one parameter", node)
    terms = [compiler.term(this)] + ([compiler.term(characters)] if characters is not None else [])
    for term in terms:
        compiler.comparing.expect(term, TEXT, "TRIM")
    sources = ", ".join(argument(term, TEXT, compiler.names) for term in terms)
    return Term(node, f"{_TRIMS[str(position or '').upper()]}({sources})", TEXT, sure=True)


def _concat(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    (parts,) = compiler.take(node, "expressions")
    sources = ", ".join(compiler.term(part).value for part in parts)
    return Term(node, f"concatenated({sources})", TEXT, sure=True)


def _coalesce(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    this, others = compiler.take(node, "this", "expressions")
    terms = [compiler.term(part) for part in (this, *(others or ()))]
    *first, last = terms
    held = [(compiler.names.temporary(), term.value) for term in first]
    source = "".join(f"{name} if ({name} := {value}) is not None else " for name, value in held)
    return compiler.choice(node, terms, f"({source}{last.value})")


def _nullif(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    this, other = compiler.take(node, "this", "expression")
    a, b = compiler.term(this), compiler.term(other)
    compiler.comparing.check(node, a, b)
    return compiler.choice(node, [a], f"nullif({a.value}, {b.value})")


def _extreme(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    this, others = compiler.take(node, "this", "expressions")
    terms = [compiler.term(part) for part in (this, *(others or ()))]
    sources = ", ".join(term.value for term in terms)
    return compiler.choice(node, terms, f"{'greatest' if isinstance(node, exp.Greatest) else 'least'}({sources})")


def _cast(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    this, to = compiler.take(node, "this", "to")
    tries = exact.TRY if compiler.names.exact and isinstance(node, exp.TryCast) else ""
    term = compiler.term(this)
    name = to.this.name if isinstance(to.this, exp.DType) else str(to.this)
    if name in _MOMENTS and not to.expressions:
        return _cast_moment(compiler, node, term, _MOMENTS[name], tries)
    if term.kind == MOMENT:
        if name not in ("TEXT", "VARCHAR", "CHAR"):
            raise compiler.error("a timestamp is cast to TEXT alone; EXTRACT has its parts as numbers", node)
        return Term(node, f"{'day' if _is_day(term.node) else 'moment'}_text({term.value})", TEXT, sure=True)
    details = [detail.this.name for detail in to.expressions if isinstance(detail, exp.DataTypeParam)]
    plain = len(details) == len(to.expressions) and not to.args.get("nested")
    if plain and name == "DECIMAL":
        return _cast_decimal(compiler, node, term, details, tries)
    if plain and name in _BITS and not details:
        return Term(node, f"{tries}to_whole({term.value}, {_BITS[name]:d})", NUMBER, sure=True)
    if not plain or name not in _CASTS or (details and name not in ("VARCHAR", "TEXT", "CHAR")):
        raise compiler.error(
            f"CAST to {shown(to)[:60]} is not supported; use TEXT, BIGINT, INTEGER, SMALLINT, TINYINT, DOUBLE, "
            "DECIMAL(digits, places), BOOLEAN, BLOB or JSON",
            node,
        )
    runs, kind = _CASTS[name]
    return _result(node, f"{tries}{runs}({term.value})", kind)


def _cast_moment(compiler: FunctionCompiler, node: exp.Expr, term: Term, runs: str, tries: str) -> Term:
    """CAST to TIMESTAMP or DATE; a constant, as in DATE '2026-01-28', is read once."""
    if term.kind != MOMENT:
        compiler.comparing.expect(term, TEXT, "CAST to a timestamp")
    if term.constant and term.kind != NULL:
        found = {"to_moment": as_moment, "to_day": as_day}[runs](term.content)
        if found is None and not isinstance(node, exp.TryCast):
            raise compiler.error(
                f"{str(term.content)[:40]!r} is not a timestamp; write it as in '2026-01-28 12:00:00'", node
            )
        return Term(node, compiler.names.bind(found), MOMENT, sure=True)
    given = term.value if compiler.names.exact else of_kind(term, MOMENT)
    return Term(node, f"{tries}{runs}({given})", MOMENT, sure=True)


def _now(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    """now() and CURRENT_TIMESTAMP: the time of the statement, in UTC; CURRENT_DATE: its day."""
    compiler.take(node)
    return compiler.time(node, "as_day" if isinstance(node, exp.CurrentDate) else "as_moment")


def _anonymous(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    """A function that sqlglot does not know."""
    if node.name.lower() in ("now", "transaction_timestamp") and not node.expressions:
        return compiler.time(node, "as_moment")
    raise compiler.unsupported(node)


def _is_day(node: exp.Expr) -> bool:
    if isinstance(node, exp.CurrentDate):
        return True
    return isinstance(node, exp.Cast) and isinstance(node.to.this, exp.DType) and node.to.this.name == "DATE"


def _extract(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    part, this = compiler.take(node, "this", "expression")
    name = part.name.upper()
    if name not in PARTS:
        raise compiler.error(f"EXTRACT has no part {name[:40]!r}; use {', '.join(PARTS)}", node)
    term = compiler.term(this)
    if term.kind != MOMENT:
        compiler.comparing.expect(term, TEXT, "EXTRACT")
    number = f"moment_part({compiler.names.bind(PARTS[name])}, {of_kind(term, MOMENT)})"
    return Term(node, number, NUMBER, sure=True)


def _matches(compiler: FunctionCompiler, node: exp.Expr) -> Term:
    """REGEXP_MATCHES(text, pattern [, 'i']), text ~ pattern, and text SIMILAR TO pattern, which matches as a whole."""
    flags = node.args.get("flag")
    if flags is not None and not (isinstance(flags, exp.Literal) and flags.name in ("i", "c")):
        raise compiler.error("the option of a regular expression is 'i', regardless of case, or 'c'", node)
    term, wanted = compiler.term(node.this), compiler.term(node.expression)
    whole = isinstance(node, exp.SimilarTo)
    fold = isinstance(node, exp.RegexpILike) or (flags is not None and flags.name == "i")
    return compiler.comparing.matches(node, term, wanted, fold=fold, whole=whole)


def _cast_decimal(compiler: FunctionCompiler, node: exp.Expr, term: Term, details: list[str], tries: str) -> Term:
    if not details:
        return Term(node, f"{tries}to_number({term.value})", NUMBER, sure=True)
    numbers = [int(detail) for detail in details if detail.isdecimal() and len(detail) < 3]
    digits, places = (*numbers, 0)[:2] if numbers else (0, 0)
    if (
        len(numbers) != len(details)
        or len(details) > 2
        or not 0 <= places <= digits <= _DECIMAL_DIGITS_MAX
        or not digits
    ):
        raise compiler.error(
            f"DECIMAL({', '.join(details)}) is not valid: use 1 to 38 digits, and at most as many places", node
        )
    return Term(node, f"{tries}to_decimal({term.value}, {digits:d}, {places:d})", NUMBER, sure=True)


HANDLERS: Final[dict[type[exp.Expr], Handler]] = {
    **dict.fromkeys(_SIMPLE, _simple),
    exp.Length: _length,
    exp.Trim: _trim,
    exp.Concat: _concat,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.Greatest: _extreme,
    exp.Least: _extreme,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Extract: _extract,
    exp.CurrentTimestamp: _now,
    exp.CurrentDate: _now,
    exp.Localtimestamp: _now,
    exp.Anonymous: _anonymous,
    exp.RegexpLike: _matches,
    exp.RegexpILike: _matches,
    exp.SimilarTo: _matches,
}

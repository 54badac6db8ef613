"""The parser of PartiQL: a statement's text to trees of the expression core (`syntax`).

Conditions, paths and updates become the same nodes that expressions have, so that binding, evaluation and their errors
are the same. A literal becomes a constant and `?` a parameter; both are placeholders in the tree, named `:0`, `:1` and
so on.

The parser descends recursively, `STATEMENT_DEPTH_MAX` parentheses deep at most, and never goes back, so that the time
is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NoReturn, TypeAlias

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.tables.partiql_tokens import KEYWORDS, LITERALS, TERM, StatementReader, malformed
from tailrace.tables.partiql_tree import (
    PartiQLDelete,
    PartiQLExists,
    PartiQLInsert,
    PartiQLSelect,
    PartiQLUpdate,
    SetOperand,
    Statement,
    StatementSource,
)
from tailrace.tables.syntax import (
    COMPARATORS,
    Action,
    Call,
    Compare,
    DocumentPath,
    Either,
    Every,
    Node,
    Not,
    Operand,
    ValuePlaceholder,
)
from tailrace.tables.value import Value

RETURNS: Final = {  # of RETURNING: the values of ReturnValues
    ("ALL", "OLD"): "ALL_OLD",
    ("ALL", "NEW"): "ALL_NEW",
    ("MODIFIED", "OLD"): "UPDATED_OLD",
    ("MODIFIED", "NEW"): "UPDATED_NEW",
}
_LEFTOVER: Final = "Unexpected token after expression"
_NO_RIGHT_SIDE: Final = "Missing right-hand side expression of infix operator"
_NO_TABLE: Final = "Expected identifier for simple path"
_OPERATORS: Final = frozenset({"AND", "BETWEEN", "IN", "IS", "LIKE", "NOT", "OR"})
_ALIAS: Final = "Aliasing is not supported"
_IN: Final = "IN takes an attribute on its left and a list of one or more values on its right, such as a IN [1, 2]"
_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}|arn:[^\s]{1,1020}")
_UNSUPPORTED: Final = frozenset({"GROUP", "HAVING", "LIMIT"})
_TESTS: Final = frozenset({"attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains"})
_IS: Final = {
    "NULL": "NULL",
    "BOOL": "BOOL",
    "BOOLEAN": "BOOL",
    "BLOB": "B",
    "STRING": "S",
    "NUMERIC": "N",
    "STRUCT": "M",
    "TUPLE": "M",
    "LIST": "L",
}
_OTHER_TYPES: Final = frozenset((  # of PartiQL, but not of DynamoDB's values
    "ANY", "BAG", "CHAR", "CHARACTER", "CLOB", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INT2", "INT4", "INT8",
    "INTEGER", "INTEGER2", "INTEGER4", "INTEGER8", "REAL", "SEXP", "SMALLINT", "SYMBOL", "TIME", "TIMESTAMP", "VARCHAR",
))  # fmt: skip

Term: TypeAlias = Operand | Node  # in a condition, either may be in parentheses


def statement(text: str) -> Statement:
    """The statement of a text."""
    return (_short if len(text) <= limits.STATEMENT_CACHED_CHARACTERS_MAX else _parsed)(text)


def _parsed(text: str) -> Statement:
    return _StatementParser(text).statement()


_short = lru_cache(limits.STATEMENTS_PARSED_MAX)(_parsed)


# -- conditions


def is_condition(term: Term) -> bool:
    """Whether a term is true or false, rather than a value."""
    return not isinstance(term, DocumentPath | ValuePlaceholder) and not (
        isinstance(term, Call) and term.name == "size"
    )


def _shown(term: Term) -> str:
    """A value, as errors have it."""
    if isinstance(term, DocumentPath):
        return f"the attribute {_path_text(term)}"
    return "a value" if isinstance(term, ValuePlaceholder) else "the number of size()"


def _path_text(path: DocumentPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path.parts)[1:]


class _ConditionParser(StatementReader):
    """NOT binds before AND before OR."""

    _operators = 0

    def condition(self) -> Node:
        self._operators = 0
        return self._true(self._either(), "WHERE")

    @staticmethod
    def _true(term: Term, word: str) -> Node:
        """The condition that `word` takes."""
        if not is_condition(term):
            raise Invalid(f"{word} takes conditions, such as a = 1, not {_shown(term)}")
        assert not isinstance(term, DocumentPath | ValuePlaceholder)
        return term

    def _operator(self) -> None:
        """Count an operator, and pass it."""
        self._operators += 1
        if self._operators > limits.EXPRESSION_OPERATORS_MAX:
            raise Invalid(f"The expression contains too many operators; operator count: {self._operators}")
        self.advance()

    def _either(self) -> Term:
        return self._joined("OR", self._every, Either)

    def _every(self) -> Term:
        return self._joined("AND", self._not, Every)

    def _joined(self, word: str, part: Callable[[], Term], kind: type[Every] | type[Either]) -> Term:
        first = part()
        if self.word != word:
            return first
        nodes = [self._true(first, word)]
        while self.word == word:
            self._operator()
            if self.kind == "end":
                raise malformed(_NO_RIGHT_SIDE)
            nodes.append(self._true(part(), word))
        return kind(tuple(nodes))

    def _not(self) -> Term:
        nots = 0
        while self.word == "NOT":
            self._operator()
            nots += 1
        term = self._predicate()
        if not nots:
            return term
        node = self._true(term, "NOT")
        return Not(node) if nots % 2 else node

    def _predicate(self) -> Term:
        term = self._term()
        while True:
            negated = self.word == "NOT"
            if negated:
                self._operator()
            if self.word == "BETWEEN":
                self._operator()
                low = self._operand()
                self.expect_word("AND")
                term = Compare("BETWEEN", (self._value_of(term, "BETWEEN"), low, self._operand()))
            elif self.word == "IN":
                self._operator()
                term = self._in(term)
            elif negated:
                raise malformed(TERM)
            elif self.word == "IS":
                self._operator()
                term = self._is(term)
            elif self.kind in COMPARATORS or self.kind == "!=":
                term = self._compared(term)
            elif self.kind in ("+", "-", "*") or self.word == "LIKE":
                raise Invalid(f"Unsupported operator in Condition Expression. Operator: {self.token.upper()}")
            else:
                return term
            term = Not(term) if negated else term

    def _compared(self, left: Term) -> Node:
        op = "<>" if self.kind == "!=" else self.kind
        self._operator()
        right = self._term()
        if not is_condition(left) and not is_condition(right):
            return Compare(op, (self._value_of(left, op), self._value_of(right, op)))
        # A condition is compared with true or false, which is the condition or its opposite.
        node, other = (left, right) if is_condition(left) else (right, left)
        known = self._constants.get(other.name, {}) if isinstance(other, ValuePlaceholder) else {}
        if op not in ("=", "<>"):
            raise Invalid(
                f"Incorrect operand type for operator or function; operator or function: {op}, operand type: BOOL"
            )
        if "BOOL" not in known:
            raise Invalid(f"Unsupported operator in Condition Expression. Operator: {op}")
        node = self._true(node, op)
        return node if (known["BOOL"] is True) is (op == "=") else Not(node)

    @staticmethod
    def _value_of(term: Term, op: str) -> Operand:
        if is_condition(term):
            raise Invalid(f"Unsupported operator in Condition Expression. Operator: {op}")
        assert isinstance(term, DocumentPath | ValuePlaceholder | Call)
        return term

    def _in(self, left: Term) -> Node:
        closing = {"[": "]", "(": ")", "<<": ">>"}.get(self.kind)
        if closing is None or not isinstance(left, DocumentPath):
            raise Invalid(_IN)
        self.advance()
        operands: list[Operand] = [left]
        while self.kind != closing:
            operands.append(self._operand())
            if not self.took(","):
                break
        if len(operands) == 1:
            raise Invalid(_IN)
        self.expect(closing, "RIGHT_PAREN" if closing == ")" else "RIGHT_BRACKET")
        return Compare("IN", tuple(operands))

    def _is(self, left: Term) -> Node:
        if not isinstance(left, DocumentPath):
            raise Invalid("IS takes an attribute on its left, such as a IS MISSING")
        negated = self.word == "NOT"
        if negated:
            self._operator()
        word = self.word
        if word == "MISSING":
            self.advance()
            return Call("attribute_exists" if negated else "attribute_not_exists", (left,))
        if word in _OTHER_TYPES:
            raise Invalid(f"IS does not support the type {word}; use one of MISSING, {', '.join(_IS)}")
        if word not in _IS:
            raise malformed("Expected type name")
        self.advance()
        node = Call("attribute_type", (left, self.constant({"S": _IS[word]})))
        return Not(node) if negated else node

    def _term(self) -> Term:
        if self.kind == "(":
            self.deeper()
            self.advance()
            term = self._either()
            self.close()
            return term
        if self.word in _OPERATORS:
            raise malformed("Unexpected operator")
        if self.calls:
            return self._call()
        if self.kind in ("word", "quoted") and self.word not in LITERALS and self.word != "MISSING":
            if self.word in KEYWORDS:
                raise malformed("Unexpected keyword")
            return self.path()
        return self.value()

    def _operand(self) -> Operand:
        start = self.word or self.token
        return self._value_of(self._term(), start)

    def _call(self) -> Call:
        name = self.token.lower()
        if name not in _TESTS and name != "size":
            raise self.refuse(f"Unrecognized function: {name}")
        self.deeper()
        self.advance()
        self.advance()
        args: list[Operand] = []
        while self.kind != ")":
            args.append(self._operand())
            if not self.took(","):
                break
        self.close()
        return Call(name, tuple(args))


# -- statements


class _StatementParser(_ConditionParser):
    """One statement, and perhaps a semicolon."""

    def statement(self) -> Statement:
        word = self.word
        made: Statement
        if word == "EXISTS":
            made = self._exists()
        elif self.passed("SELECT"):
            made = self._select()
        elif self.passed("INSERT"):
            made = self._insert()
        elif self.passed("UPDATE"):
            made = self._update()
        elif self.passed("DELETE"):
            made = self._delete()
        elif self.passed("FROM"):
            made = self._update_from()
        else:
            raise malformed("Expected data manipulation")
        self.took(";")
        if self.kind != "end":
            raise malformed(_LEFTOVER)
        return made

    def _exists(self) -> PartiQLExists:
        self.advance()
        self.expect("(", "LEFT_PAREN")
        self.expect_word("SELECT")
        select = self._select()
        self.expect(")", "RIGHT_PAREN")
        return PartiQLExists(select)

    # -- clauses

    def _source(self, *, aliased: bool = True, missing: str = TERM) -> StatementSource:
        """A table or index. `missing`: the error if there is none."""
        parts = [self._component(missing)]
        while self.took("."):
            parts.append(self._component())
        if "" in parts:
            raise Invalid("Path component cannot be an empty string")
        if len(parts) > 2:
            raise Invalid("A path may contain at most 2 components in the FROM clause")
        if not _TABLE.fullmatch(parts[0]):
            raise Invalid(
                f"{parts[0]} is no table name; a name has 3 to 255 of the characters a-z, A-Z, 0-9, '_', '-' and '.'"
            )
        if aliased and (self.word in ("AS", "AT") or (self.kind in ("word", "quoted") and self.word not in KEYWORDS)):
            raise Invalid(_ALIAS)
        return StatementSource(*parts)

    def _component(self, missing: str = TERM) -> str:
        found = self.name()
        if found is None:
            raise malformed(missing)
        return found

    def _where(self) -> Node | None:
        return self.condition() if self.passed("WHERE") else None

    def _returning(self) -> str:
        """The values of RETURNING, or NONE."""
        if not self.passed("RETURNING"):
            return "NONE"
        which = self.word
        if not self.passed("ALL", "MODIFIED"):
            raise self._not_returned()
        state = self.word
        if not self.passed("OLD", "NEW") or not self.took("*") or self.kind == ",":
            raise self._not_returned()
        return RETURNS[which, state]

    def _not_returned(self) -> Invalid:
        return malformed(
            "RETURNING takes one of ALL OLD *, ALL NEW *, MODIFIED OLD * and MODIFIED NEW *, not "
            f"{self.token or 'the end of the statement'} at {self.position()}"
        )

    # -- SELECT

    def _select(self) -> PartiQLSelect:
        if self.word in ("VALUE", "PIVOT"):
            raise Invalid(f"SELECT takes * or the names of attributes, not {self.word}")
        if self.word == "DISTINCT":
            raise self.refuse("SELECT does not support DISTINCT")
        columns = self._columns()
        self.expect_word("FROM")
        source = self._source()
        if self.kind == "," or self.word in ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL"):
            raise Invalid(
                f"SELECT reads one table or index; remove {self.token} and what it joins, or use several statements"
            )
        where = self._where()
        order = self._order()
        if self.word in _UNSUPPORTED:
            clause = "GROUP BY" if self.word == "GROUP" else self.word
            instead = " (use Limit of the request)" if clause == "LIMIT" else ""
            raise self.refuse(f"SELECT does not support {clause}{instead}")
        return PartiQLSelect(source, columns, where, order, self.values)

    def _columns(self) -> tuple[tuple[str, DocumentPath], ...] | None:
        star = False
        columns: dict[str, DocumentPath] = {}
        while True:
            if self.took("*"):
                star = True
            else:
                name, path = self._column()
                if name in columns:
                    raise Invalid(f"SELECT has two columns named {name}; remove one")
                columns[name] = path
            if not self.took(","):
                break
        if star and columns:
            raise Invalid(f"SELECT takes * or attributes, not both; remove * or {', '.join(columns)}")
        return None if star else tuple(columns.items())

    def _column(self) -> tuple[str, DocumentPath]:
        """A path; its name is that of the last attribute, and the indexes behind it."""
        if self.calls or self.kind in ("string", "number", "?", "[", "{", "<<", "-", "+"):
            raise self.refuse("Unexpected path component")
        path = self.path()
        if self.word == "AS" or (self.kind in ("word", "quoted") and self.word not in KEYWORDS):
            raise Invalid(_ALIAS)
        last = max(at for at, part in enumerate(path.parts) if isinstance(part, str))
        name = str(path.parts[last]) + "".join(f"[{index}]" for index in path.parts[last + 1 :])
        return name, path

    def _order(self) -> tuple[tuple[str, bool], ...]:
        if not self.passed("ORDER"):
            return ()
        self.expect_word("BY")
        order: list[tuple[str, bool]] = []
        while True:
            path = self.path()
            if len(path.parts) > 1:
                raise Invalid(f"ORDER BY takes attributes of the primary key, not the path {_path_text(path)}")
            descending = self.word == "DESC"
            self.passed("ASC", "DESC")
            order.append((str(path.parts[0]), descending))
            if not self.took(","):
                return tuple(order)

    # -- writes

    def _insert(self) -> PartiQLInsert:
        self.expect_word("INTO")
        at = self._at
        source = self._source(aliased=False)
        if source.index is not None:
            raise self.refuse("FROM clause may only contain a single table name in data manipulation statements", at)
        if self.word == "VALUES" or self.kind == "<<":
            raise Invalid(
                f"INSERT adds one item, such as VALUE {{'pk': 'a'}}, not {self.token}; use BatchExecuteStatement for "
                "several"
            )
        if not self.passed("VALUE"):
            raise malformed(_LEFTOVER)
        if self.kind != "{":
            raise Invalid(
                "INSERT takes an item in braces after VALUE, such as VALUE {'pk': 'a'}, not "
                f"{self.token or 'the end of the statement'}"
            )
        item: list[tuple[str, str]] = []

        def attribute(name: str) -> Value:
            item.append((name, self.value().name))
            return {}

        self.tuple(attribute, "root")
        if self.word == "RETURNING":
            raise Invalid("RETURNING is not supported in INSERT")
        return PartiQLInsert(source, tuple(item), self.values)

    def _update(self) -> PartiQLUpdate:
        source = self._source()
        actions, sets = self._actions()
        where = self._where()
        return PartiQLUpdate(source, actions, sets, where, self._returning(), self.values)

    def _update_from(self) -> PartiQLUpdate:
        source = self._source()
        where = self._where()
        actions, sets = self._actions()
        return PartiQLUpdate(source, actions, sets, where, self._returning(), self.values)

    def _delete(self) -> PartiQLDelete:
        self.expect_word("FROM")
        source = self._source(missing=_NO_TABLE)
        where = self._where()
        returns = self._returning()
        if returns not in ("NONE", "ALL_OLD"):
            shown = next(" ".join(words) for words, name in RETURNS.items() if name == returns)
            raise Invalid(
                f"Invalid returning clause: RETURNING {shown} *. Only RETURNING ALL OLD * is allowed in DELETE "
                "statements."
            )
        return PartiQLDelete(source, where, returns, self.values)

    def _actions(self) -> tuple[tuple[Action, ...], tuple[SetOperand, ...]]:
        actions: list[Action] = []
        sets: list[SetOperand] = []
        while (section := self.word) in ("SET", "REMOVE"):
            self.advance()
            while True:
                path = self.path()
                if section == "REMOVE":
                    actions.append(Action("REMOVE", path, None))
                else:
                    self.expect("=", "EQ")
                    actions.append(self._assignment(path, sets))
                if not self.took(","):
                    break
        if not actions:
            raise self.expected("SET or REMOVE")
        return tuple(actions), tuple(sets)

    def _assignment(self, path: DocumentPath, sets: list[SetOperand]) -> Action:
        if self.calls and self.token.lower() in ("set_add", "set_delete"):
            return self._set_function(path, sets)
        self._operators = 0
        operand = self._addend()
        if self.kind in ("+", "-"):
            op = self.kind
            self.advance()
            operand = Call(op, (operand, self._addend()))
        return Action("SET", path, operand)

    def _addend(self) -> Operand:
        if self.kind == "(":
            self.deeper()
            self.advance()
            operand = self._addend()
            if self.kind in ("+", "-"):
                op = self.kind
                self.advance()
                operand = Call(op, (operand, self._addend()))
            self.close()
            return operand
        if self.calls:
            name = self.token.lower()
            if name != "list_append":
                raise self.refuse(f"Unrecognized function: {name}")
            self.deeper()
            self.advance()
            self.advance()
            args = [self._addend()]
            while self.took(","):
                args.append(self._addend())
            self.close()
            return Call(name, tuple(args))
        if self.kind in ("word", "quoted") and self.word not in LITERALS and self.word != "MISSING":
            return self.path()
        return self.value()

    def _set_function(self, path: DocumentPath, sets: list[SetOperand]) -> Action:
        """set_add(path, set) or set_delete(path, set): ADD and DELETE of an update."""
        name, at = self.token.upper(), self._at
        self.advance()
        self.advance()
        first_at = self._at
        args: list[Operand] = []
        while self.kind != ")":
            args.append(self._addend())
            if not self.took(","):
                break
        self.expect(")", "RIGHT_PAREN")
        if len(args) != 2:
            self._wrong(f"{name} must have exactly two arguments", at)
        if args[0] != path:
            self._wrong(f"The first argument to {name} must equal the assignment value", at)
        operand = args[1]
        if not isinstance(operand, ValuePlaceholder):
            self._wrong(f"The second argument to {name} must be a value with type SET", first_at)
        sets.append(SetOperand(name, operand.name, self.position(first_at)))
        return Action("ADD" if name == "SET_ADD" else "DELETE", path, operand)

    def _wrong(self, message: str, at: int) -> NoReturn:
        raise self.refuse(message, at)

"""The parser: from the text of statements to `statements`, one grammar rule for each kind.

All statements of a text are parsed before the first one runs, so a syntax error in the last one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace.sql import column_grammar as schemas
from tailrace.sql import statements as ast
from tailrace.sql import table_grammar as tables
from tailrace.sql import topic_grammar as topics
from tailrace.sql import transaction_grammar as transactions
from tailrace.sql import user_grammar as users
from tailrace.sql import view_grammar as views
from tailrace.sql.lexer import QUOTED, TEXT, WORD
from tailrace.sql.tokens import Location, Tokens

STATEMENTS_MAX: Final = 1_000  # of one text
PARAMETERS_MAX: Final = 65_535

Rule = Callable[[Tokens, Location], ast.Statement]


def parse(text: str, params: Sequence[Any] = ()) -> list[ast.Statement]:
    """The statements of a text, in order; raises `SqlError` at the first error."""
    tokens = Tokens(text, params)
    if len(params) > PARAMETERS_MAX:
        raise tokens.error(
            f"{len(params)} parameters were given; at most {PARAMETERS_MAX} are allowed", code="SQL_PARAMETERS"
        )
    statements: list[ast.Statement] = []
    while True:
        while tokens.accept(";"):
            pass
        if tokens.ends():
            break
        if len(statements) >= STATEMENTS_MAX:
            raise tokens.error(f"a text can have at most {STATEMENTS_MAX} statements; send several texts")
        statements.append(_statement(tokens))
        if not tokens.ends():
            tokens.fail("';'", "the end of the statement")
    expected = max(tokens.used, tokens.numbered)
    if expected != len(params):
        raise tokens.error(
            f"{len(params)} parameters were given, but the text has {expected}: write one ? (or $1, $2, …) for each",
            code="SQL_PARAMETERS",
        )
    return statements


def _statement(tokens: Tokens) -> ast.Statement:
    first = tokens.next
    rule = _select if first.key == "(" else _STARTS.get(first.key)
    if rule is None:
        tokens.fail(*_STARTS)
    line, column = tokens.location(first)
    location: Location = {"line": line, "column": column}
    if rule is _select:
        return _select(tokens, location)
    tokens.take()
    return rule(tokens, location)


def _choice(rules: dict[str, Rule]) -> Rule:
    """A rule that dispatches on the next keyword."""

    def chosen(tokens: Tokens, location: Location) -> ast.Statement:
        rule = rules.get(tokens.next.key)
        if rule is None:
            tokens.fail(*rules)
        tokens.take()
        return rule(tokens, location)

    return chosen


def _select(tokens: Tokens, location: Location) -> ast.Statement:
    select = tokens.rest("SELECT")
    return ast.SelectStatement(text=select.text, params=select.params, **location)


def _drop_group(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("GROUP")
    return topics.drop_group(tokens, location)


def _show_groups(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("GROUPS")
    return ast.ShowGroupsStatement(
        topic=tokens.name("the name of the topic") if tokens.accept("ON") else None, **location
    )


def _explain(tokens: Tokens, location: Location) -> ast.Statement:
    if tokens.accept("MATERIALIZED"):
        return views.explain_view(tokens, location)
    if tokens.next.key not in _EXPLAINED:
        tokens.fail("MATERIALIZED", *sorted(_EXPLAINED - {"("}))
    return ast.ExplainStatement(of=_statement(tokens), **location)


def _describe(tokens: Tokens, location: Location) -> ast.Statement:
    # A table may be named "topic" or "table": the word is the name if nothing follows it.
    what = tokens.next.key if tokens.peek().kind in (WORD, QUOTED, TEXT) else ""
    if what in ("TOPIC", "TABLE"):
        tokens.take()
    if what == "TOPIC":
        return ast.DescribeTopicStatement(name=tokens.name("the name of the topic"), **location)
    return ast.DescribeTableStatement(name=tokens.name("TOPIC, or the name of a table"), **location)


_EXPLAINED: Final = frozenset(("SELECT", "WITH", "FROM", "VALUES", "(", "INSERT", "UPDATE", "DELETE"))
_STARTS: Final[dict[str, Rule]] = {
    "CREATE": _choice(
        {
            "TOPIC": topics.create_topic,
            "TABLE": schemas.create_table,
            "INDEX": schemas.create_index,
            "USER": users.create_user,
            "MATERIALIZED": views.create_view,
        }
    ),
    "ALTER": _choice(
        {
            "TOPIC": topics.alter_topic,
            "TABLE": schemas.alter_table,
            "USER": users.alter_user,
            "MATERIALIZED": views.alter_view,
        }
    ),
    "DROP": _choice(
        {
            "TOPIC": topics.drop_topic,
            "TABLE": schemas.drop_table,
            "INDEX": schemas.drop_index,
            "USER": users.drop_user,
            "CONSUMER": _drop_group,
            "MATERIALIZED": views.drop_view,
        }
    ),
    "CLEAR": _choice({"TOPIC": topics.clear_topic}),
    "PUBLISH": topics.publish,
    "CONSUME": topics.consume,
    "ACK": topics.ack,
    "NACK": topics.nack,
    "EXTEND": topics.extend,
    "RESET": topics.reset_group,
    "INSERT": tables.insert,
    "UPDATE": tables.update,
    "DELETE": tables.delete,
    "TRUNCATE": tables.truncate,
    "SELECT": _select,
    "WITH": _select,
    "FROM": _select,
    "VALUES": _select,
    "SHOW": _choice(
        {
            "TOPICS": lambda tokens, location: ast.ShowTopicsStatement(**location),
            "TABLES": lambda tokens, location: ast.ShowTablesStatement(**location),
            "USERS": lambda tokens, location: ast.ShowUsersStatement(**location),
            "CONSUMER": _show_groups,
            "MATERIALIZED": views.show_views,
        }
    ),
    "EXPLAIN": _explain,
    "BEGIN": transactions.begin,
    "START": transactions.start,
    "COMMIT": transactions.commit,
    "ROLLBACK": transactions.rollback,
    "DESCRIBE": _describe,
    "DESC": _describe,
}
STARTS: Final = tuple(_STARTS)  # the keywords that begin a statement

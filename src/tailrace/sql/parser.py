"""From text to statements: which rule of the grammar reads what.

All statements of a text are read before the first is run, so a mistake in the last one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace.sql import statements as ast
from tailrace.sql import table_grammar as tables
from tailrace.sql import topic_grammar as topics
from tailrace.sql import user_grammar as users
from tailrace.sql import view_grammar as views
from tailrace.sql.lexer import QUOTED, TEXT, WORD
from tailrace.sql.tokens import Place, Tokens

STATEMENTS_MAX: Final = 1_000  # of one text
PARAMETERS_MAX: Final = 65_535

Rule = Callable[[Tokens, Place], ast.Statement]


def parse(text: str, params: Sequence[Any] = ()) -> list[ast.Statement]:
    """The statements of a text, in order; raises `SqlError` at the first mistake."""
    tokens = Tokens(text, params)
    if len(params) > PARAMETERS_MAX:
        raise tokens.wrong(f"{len(params)} parameters are more than {PARAMETERS_MAX}", code="SQL_PARAMETERS")
    found: list[ast.Statement] = []
    while True:
        while tokens.accept(";"):
            pass
        if tokens.ends():
            break
        if len(found) >= STATEMENTS_MAX:
            raise tokens.wrong(f"a text has at most {STATEMENTS_MAX} statements; send several")
        found.append(_statement(tokens))
        if not tokens.ends():
            tokens.fail("';'", "the end of the statement")
    wanted = max(tokens.used, tokens.numbered)
    if wanted != len(params):
        raise tokens.wrong(
            f"{len(params)} parameters were given, and the text has {wanted}: one ? (or $1, $2, …) for each",
            code="SQL_PARAMETERS",
        )
    return found


def _statement(tokens: Tokens) -> ast.Statement:
    first = tokens.next
    rule = _select if first.key == "(" else _STARTS.get(first.key)
    if rule is None:
        tokens.fail(*_STARTS)
    line, column = tokens.place(first)
    at: Place = {"line": line, "column": column}
    if rule is _select:
        return _select(tokens, at)
    tokens.take()
    return rule(tokens, at)


def _choice(rules: dict[str, Rule]) -> Rule:
    """A rule that goes on by the next keyword."""

    def chosen(tokens: Tokens, at: Place) -> ast.Statement:
        rule = rules.get(tokens.next.key)
        if rule is None:
            tokens.fail(*rules)
        tokens.take()
        return rule(tokens, at)

    return chosen


def _select(tokens: Tokens, at: Place) -> ast.Statement:
    found = tokens.question("SELECT")
    return ast.Select(text=found.text, params=found.params, **at)


def _drop_group(tokens: Tokens, at: Place) -> ast.Statement:
    tokens.expect("GROUP")
    return topics.drop_group(tokens, at)


def _show_groups(tokens: Tokens, at: Place) -> ast.Statement:
    tokens.expect("GROUPS")
    return ast.ShowGroups(topic=tokens.name("the name of the topic") if tokens.accept("ON") else None, **at)


def _describe(tokens: Tokens, at: Place) -> ast.Statement:
    # A table may be called topic or table: it is one if nothing follows.
    what = tokens.next.key if tokens.peek().kind in (WORD, QUOTED, TEXT) else ""
    if what in ("TOPIC", "TABLE"):
        tokens.take()
    if what == "TOPIC":
        return ast.DescribeTopic(name=tokens.name("the name of the topic"), **at)
    return ast.DescribeTable(name=tokens.name("TOPIC, or the name of a table"), **at)


_STARTS: Final[dict[str, Rule]] = {
    "CREATE": _choice(
        {
            "TOPIC": topics.create_topic,
            "TABLE": tables.create_table,
            "USER": users.create_user,
            "MATERIALIZED": views.create_view,
        }
    ),
    "ALTER": _choice({"TOPIC": topics.alter_topic, "TABLE": tables.alter_table, "USER": users.alter_user}),
    "DROP": _choice(
        {
            "TOPIC": topics.drop_topic,
            "TABLE": tables.drop_table,
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
    "SELECT": _select,
    "WITH": _select,
    "FROM": _select,
    "VALUES": _select,
    "SHOW": _choice(
        {
            "TOPICS": lambda tokens, at: ast.ShowTopics(**at),
            "TABLES": lambda tokens, at: ast.ShowTables(**at),
            "USERS": lambda tokens, at: ast.ShowUsers(**at),
            "CONSUMER": _show_groups,
            "MATERIALIZED": views.show_views,
        }
    ),
    "DESCRIBE": _describe,
    "DESC": _describe,
}
STARTS: Final = tuple(_STARTS)  # the words that statements begin with

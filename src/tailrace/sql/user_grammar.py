"""The grammar of statements about users. Passwords go from the text straight into a `Secret`."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from tailrace.access import PATTERNS_MAX, ROLES
from tailrace.sql import statements as ast
from tailrace.sql.lexer import PARAMETER, TEXT
from tailrace.sql.tokens import Place, Tokens
from tailrace.sql.topic_grammar import Readers, clauses

PASSWORD_CHARACTERS_MAX: Final = 1_024


def create_user(tokens: Tokens, place: Place) -> ast.Statement:
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the user")
    tokens.accept("WITH")
    given = clauses(
        tokens,
        {
            "PASSWORD": ("password", lambda: _password(tokens)),
            "ROLE": ("role", lambda: _role(tokens)),
            "ACCESS": ("access", lambda: _access(tokens)),
        },
    )
    if "password" not in given:
        tokens.fail("PASSWORD")
    return ast.CreateUser(name=name, if_not_exists=fresh, **given, **place)


def alter_user(tokens: Tokens, place: Place) -> ast.Statement:
    name = tokens.name("the name of the user")
    tokens.accept("SET")
    readers: Readers = {
        "PASSWORD": ("password", lambda: _password(tokens)),
        "ROLE": ("role", lambda: _role(tokens)),
        "ACCESS": ("access", lambda: None if tokens.accept("NULL") else _access(tokens)),
        "ENABLE": ("disabled", lambda: False),
        "DISABLE": ("disabled", lambda: True),
    }
    if tokens.ends():
        tokens.fail(*readers)
    given: dict[str, Any] = {"access": UNSET} | clauses(tokens, readers)
    return ast.AlterUser(name=name, **given, **place)


def drop_user(tokens: Tokens, place: Place) -> ast.Statement:
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropUser(name=tokens.name("the name of the user"), if_exists=quiet, **place)


def _password(tokens: Tokens) -> ast.Secret:
    token = tokens.next
    if token.kind not in (TEXT, PARAMETER):
        raise tokens.wrong("the password is written as a text in single quotes, or given as a parameter")
    password = tokens.string("the password")
    if not 1 <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise tokens.wrong(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters", token)
    return ast.Secret(password)


def _role(tokens: Tokens) -> str:
    token = tokens.next
    role = tokens.word_or_string("the role").lower()
    if role not in ROLES:
        raise tokens.wrong(f"there is no such role; use {', '.join(ROLES)}", token)
    return role


def _access(tokens: Tokens) -> tuple[str, ...]:
    tokens.expect("(")
    patterns = [tokens.string("what the user may use, such as 'tables/orders',")]
    while tokens.accept(","):
        patterns.append(tokens.string("what the user may use"))
        if len(patterns) > PATTERNS_MAX:
            raise tokens.wrong(f"a user has at most {PATTERNS_MAX} patterns")
    tokens.expect(")")
    return tuple(patterns)

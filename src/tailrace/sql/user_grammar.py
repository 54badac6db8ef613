"""The grammar of statements about users. A password is kept in a `Secret` as soon as it is read."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from tailrace import limits
from tailrace.access import ROLES
from tailrace.sql import statements as ast
from tailrace.sql.lexer import PARAMETER, TEXT
from tailrace.sql.tokens import Location, Tokens
from tailrace.sql.topic_grammar import Readers, clauses

PASSWORD_CHARACTERS_MAX: Final = 1_024


def create_user(tokens: Tokens, location: Location) -> ast.Statement:
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
    return ast.CreateUserStatement(name=name, if_not_exists=fresh, **given, **location)


def alter_user(tokens: Tokens, location: Location) -> ast.Statement:
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
    return ast.AlterUserStatement(name=name, **given, **location)


def drop_user(tokens: Tokens, location: Location) -> ast.Statement:
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropUserStatement(name=tokens.name("the name of the user"), if_exists=quiet, **location)


def _password(tokens: Tokens) -> ast.Secret:
    token = tokens.next
    if token.kind not in (TEXT, PARAMETER):
        raise tokens.error("the password must be a text in single quotes, or a parameter")
    password = tokens.string("the password")
    if not 1 <= len(password) <= PASSWORD_CHARACTERS_MAX:
        raise tokens.error(f"a password has 1 to {PASSWORD_CHARACTERS_MAX} characters", token)
    return ast.Secret(password)


def _role(tokens: Tokens) -> str:
    token = tokens.next
    role = tokens.word_or_string("the role").lower()
    if role not in ROLES:
        raise tokens.error(f"there is no such role; use {', '.join(ROLES)}", token)
    return role


def _access(tokens: Tokens) -> tuple[str, ...]:
    tokens.expect("(")
    patterns = [tokens.string("a pattern of resources, such as 'tables/orders',")]
    while tokens.accept(","):
        patterns.append(tokens.string("a pattern of resources"))
        if len(patterns) > limits.ACCESS_PATTERNS_MAX:
            raise tokens.error(f"a user can have at most {limits.ACCESS_PATTERNS_MAX} access patterns")
    tokens.expect(")")
    return tuple(patterns)

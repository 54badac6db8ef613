"""The grammar of statements about materialized views. The SELECT after AS is stored as written."""

from __future__ import annotations

from tailrace.sql import statements as ast
from tailrace.sql.tokens import Location, Tokens


def create_view(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("VIEW")
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the view")
    tokens.expect("AS")
    if not any(tokens.sees(word) for word in ("SELECT", "WITH", "FROM", "(")):
        tokens.fail("SELECT")
    first = tokens.next
    select = tokens.span("SELECT")
    if select.params:
        raise tokens.error("a view is stored as text and cannot have parameters; write the values", first)
    return ast.CreateViewStatement(name=name, select=select, if_not_exists=fresh, **location)


def drop_view(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("VIEW")
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropViewStatement(name=tokens.name("the name of the view"), if_exists=quiet, **location)


def show_views(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("VIEWS")
    return ast.ShowViewsStatement(**location)


def alter_view(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("VIEW")
    name = tokens.name("the name of the view")
    tokens.expect("REFRESH")
    return ast.RefreshViewStatement(name=name, **location)


def explain_view(tokens: Tokens, location: Location) -> ast.Statement:
    tokens.expect("VIEW")
    return ast.ExplainViewStatement(name=tokens.name("the name of the view"), **location)

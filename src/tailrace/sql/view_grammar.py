"""The grammar of statements about materialized views. What stands after AS is a SELECT, kept as it is written."""

from __future__ import annotations

from tailrace.sql import statements as ast
from tailrace.sql.tokens import Place, Tokens


def create_view(tokens: Tokens, place: Place) -> ast.Statement:
    tokens.expect("VIEW")
    fresh = tokens.accept("IF", "NOT", "EXISTS")
    name = tokens.name("the name of the view")
    tokens.expect("AS")
    if not tokens.sees("SELECT"):
        tokens.fail("SELECT")
    first = tokens.next
    found = tokens.span("SELECT")
    if found.params:
        raise tokens.wrong("a view is kept as it is written and takes no parameters; write the values", first)
    return ast.CreateView(name=name, select=found, if_not_exists=fresh, **place)


def drop_view(tokens: Tokens, place: Place) -> ast.Statement:
    tokens.expect("VIEW")
    quiet = tokens.accept("IF", "EXISTS")
    return ast.DropView(name=tokens.name("the name of the view"), if_exists=quiet, **place)


def show_views(tokens: Tokens, place: Place) -> ast.Statement:
    tokens.expect("VIEWS")
    return ast.ShowViews(**place)

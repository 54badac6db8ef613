"""Execution of statements about materialized views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.jobs import view, view_plan
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table


def create_view(execute: Execute, statement: ast.CreateViewStatement) -> Result:
    select = statement.select
    location = {"line": select.line, "column": select.column}
    names = view_plan.tables(select.text, **location)
    there = any(each.name == statement.name for each in execute(view.ListViews())) if statement.if_not_exists else False
    made = execute(view.CreateView(statement.name, select.text, names, statement.if_not_exists, **location))
    if there:
        return done(statement.title, f"view {statement.name} already exists", created=False)
    state = "it is live" if made.phase == view.LIVE else "its job builds it first"
    return done(
        statement.title,
        f"view {statement.name} created; {state}, and `tailrace pipeline view {statement.name}` keeps it up to date",
        created=True,
    )


def drop_view(execute: Execute, statement: ast.DropViewStatement) -> Result:
    dropped = execute(view.DropView(statement.name, statement.if_exists))
    message = f"view {statement.name} dropped" if dropped else f"view {statement.name} does not exist"
    return done(statement.title, message, dropped=dropped)


def show_views(execute: Execute, statement: ast.ShowViewsStatement) -> Result:
    views = execute(view.ListViews())
    rows = [
        (
            each.name, ", ".join(key for key, _ in each.keys), each.items, each.phase, each.state,
            ", ".join(source.table for source in each.sources), " ".join(each.sql.split()), each.stale or each.message,
        )
        for each in views
    ]  # fmt: skip
    columns = "name TEXT, key TEXT, items BIGINT, phase TEXT, state TEXT, sources TEXT, sql TEXT, message TEXT"
    return table(statement.title, columns, rows, counted(len(rows), "view"))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateViewStatement: create_view,
    ast.DropViewStatement: drop_view,
    ast.ShowViewsStatement: show_views,
}

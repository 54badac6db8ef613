"""Execution of statements about materialized views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.jobs import view, view_sql
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table


def create_view(execute: Execute, statement: ast.CreateViewStatement) -> Result:
    select = statement.select
    names = view_sql.tables(select.text, line=select.line, column=select.column)
    there = any(each.name == statement.name for each in execute(view.ListViews())) if statement.if_not_exists else False
    topics = execute(view.TopicsAmong(statement.name, names))
    tables = tuple(name for name in names if name not in topics)
    execute(view.CreateView(statement.name, select.text, tables, statement.if_not_exists, topics))
    if there:
        return done(statement.title, f"view {statement.name} already exists", created=False)
    return done(
        statement.title,
        f"view {statement.name} created; `tailrace pipeline view {statement.name}` plans it, fills it and keeps it "
        "up to date",
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
            "" if each.shape is None else each.shape.strategy, _names(each),
            " ".join(each.sql.split()), each.message or each.stale,
        )
        for each in views
    ]  # fmt: skip
    columns = (
        "name TEXT, key TEXT, items BIGINT, phase TEXT, state TEXT, strategy TEXT, sources TEXT, sql TEXT, message TEXT"
    )
    return table(statement.title, columns, rows, counted(len(rows), "view"))


def _names(found: view.ViewDescription) -> str:
    """The sources of a view; a topic has several partitions."""
    return ", ".join(dict.fromkeys(source.table for source in found.sources))


def refresh_view(execute: Execute, statement: ast.RefreshViewStatement) -> Result:
    execute(view.RefreshView(statement.name))
    return done(statement.title, f"view {statement.name} is filled again by its job", refreshed=True)


def explain_view(execute: Execute, statement: ast.ExplainViewStatement) -> Result:
    found = execute(view.DescribeView(statement.name))
    rows: list[tuple[str, str]] = [("phase", found.phase)]
    if found.shape is None:
        rows.append(("message", found.message or "its job has not planned it yet"))
    else:
        shape = found.shape
        rows += [("strategy", shape.strategy), ("key", ", ".join(f"{name} {kind}" for name, kind in shape.keys))]
        rows += [("column", f"{name} {kind}") for name, kind in shape.columns]
        rows += [("derivative", line) for line in shape.explained]
        rows += [("warning", text) for text in shape.warnings]
    return table(statement.title, "property TEXT, value TEXT", rows, counted(len(rows), "row"))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateViewStatement: create_view,
    ast.DropViewStatement: drop_view,
    ast.ShowViewsStatement: show_views,
    ast.RefreshViewStatement: refresh_view,
    ast.ExplainViewStatement: explain_view,
}

"""Statements about materialized views, carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.jobs import view, view_plan
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table


def create_view(execute: Execute, asked: ast.CreateView) -> Result:
    select = asked.select
    place = {"line": select.line, "column": select.column}
    names = view_plan.tables(select.text, **place)
    there = any(found.name == asked.name for found in execute(view.ListViews())) if asked.if_not_exists else False
    made = execute(view.CreateView(asked.name, select.text, names, asked.if_not_exists, **place))
    if there:
        return done(asked.title, f"view {asked.name} was there already", created=False)
    how = "it is live" if made.phase == view.LIVE else "its job fills it first"
    return done(
        asked.title,
        f"view {asked.name} created; {how}, and `tailrace pipeline view {asked.name}` keeps it",
        created=True,
    )


def drop_view(execute: Execute, asked: ast.DropView) -> Result:
    dropped = execute(view.DropView(asked.name, asked.if_exists))
    message = f"view {asked.name} dropped" if dropped else f"there was no view {asked.name}"
    return done(asked.title, message, dropped=dropped)


def show_views(execute: Execute, asked: ast.ShowViews) -> Result:
    found = execute(view.ListViews())
    rows = [
        (
            each.name, ", ".join(key for key, _ in each.keys), each.items, each.phase, each.state,
            ", ".join(source.table for source in each.sources), " ".join(each.sql.split()), each.stale or each.message,
        )
        for each in found
    ]  # fmt: skip
    columns = "name TEXT, key TEXT, items BIGINT, phase TEXT, state TEXT, sources TEXT, sql TEXT, message TEXT"
    return table(asked.title, columns, rows, counted(len(rows), "view"))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateView: create_view,
    ast.DropView: drop_view,
    ast.ShowViews: show_views,
}

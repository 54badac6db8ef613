"""Statements about users, carried out.

Whoever may not make users is told so before a password is hashed, for that is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from tailrace.auth import users
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.sql.topic_statements import moment


def create_user(execute: Execute, asked: ast.CreateUser) -> Result:
    there = execute(users.FindUser(asked.name))
    if there is not None and asked.if_not_exists:
        return done(asked.title, f"user {asked.name} was there already", created=False)
    command = users.create_user(
        asked.name, asked.password.text, asked.role, asked.access, if_not_exists=asked.if_not_exists
    )
    made = execute(command)
    return done(asked.title, f"user {made.name} created with role {made.role}", created=True)


def alter_user(execute: Execute, asked: ast.AlterUser) -> Result:
    execute(users.FindUser(asked.name))
    command = users.alter_user(
        asked.name,
        password=UNSET if asked.password is None else asked.password.text,
        role=UNSET if asked.role is None else asked.role,
        access=asked.access,
        disabled=UNSET if asked.disabled is None else asked.disabled,
    )
    execute(command)
    return done(asked.title, f"user {asked.name} changed")


def drop_user(execute: Execute, asked: ast.DropUser) -> Result:
    dropped = execute(users.DropUser(name=asked.name, if_exists=asked.if_exists))
    message = f"user {asked.name} dropped" if dropped else f"there was no user {asked.name}"
    return done(asked.title, message, dropped=dropped)


def show_users(execute: Execute, asked: ast.ShowUsers) -> Result:
    found = execute(users.ListUsers())
    rows = [
        (
            user.name, user.role, None if user.access is None else list(user.access), user.password, user.disabled,
            moment(user.created_ms), moment(user.updated_ms),
        )
        for user in found
    ]  # fmt: skip
    columns = (
        "name TEXT, role TEXT, access JSON, has_password BOOLEAN, disabled BOOLEAN, created_at TEXT, updated_at TEXT"
    )
    return table(asked.title, columns, rows, counted(len(rows), "user"))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateUser: create_user,
    ast.AlterUser: alter_user,
    ast.DropUser: drop_user,
    ast.ShowUsers: show_users,
}

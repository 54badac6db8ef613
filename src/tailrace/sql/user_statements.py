"""Execution of statements about users.

The permission is checked by a query before a password is hashed, because hashing is slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from tailrace.auth import users
from tailrace.sql import statements as ast
from tailrace.sql.result import Execute, Result, counted, done, table
from tailrace.sql.topic_statements import moment


def create_user(execute: Execute, statement: ast.CreateUserStatement) -> Result:
    there = execute(users.FindUser(statement.name))
    if there is not None and statement.if_not_exists:
        return done(statement.title, f"user {statement.name} already exists", created=False)
    command = users.create_user(
        statement.name, statement.password.text, statement.role, statement.access, if_not_exists=statement.if_not_exists
    )
    made = execute(command)
    return done(statement.title, f"user {made.name} created with role {made.role}", created=True)


def alter_user(execute: Execute, statement: ast.AlterUserStatement) -> Result:
    execute(users.FindUser(statement.name))
    command = users.alter_user(
        statement.name,
        password=UNSET if statement.password is None else statement.password.text,
        role=UNSET if statement.role is None else statement.role,
        access=statement.access,
        disabled=UNSET if statement.disabled is None else statement.disabled,
    )
    execute(command)
    return done(statement.title, f"user {statement.name} changed")


def drop_user(execute: Execute, statement: ast.DropUserStatement) -> Result:
    dropped = execute(users.DropUser(name=statement.name, if_exists=statement.if_exists))
    message = f"user {statement.name} dropped" if dropped else f"user {statement.name} does not exist"
    return done(statement.title, message, dropped=dropped)


def show_users(execute: Execute, statement: ast.ShowUsersStatement) -> Result:
    all_users = execute(users.ListUsers())
    rows = [
        (
            user.name, user.role, None if user.access is None else list(user.access), user.password, user.disabled,
            moment(user.created_ms), moment(user.updated_ms),
        )
        for user in all_users
    ]  # fmt: skip
    columns = (
        "name TEXT, role TEXT, access JSON, has_password BOOLEAN, disabled BOOLEAN, created_at TEXT, updated_at TEXT"
    )
    return table(statement.title, columns, rows, counted(len(rows), "user"))


RUN: Final[dict[type[ast.Statement], Callable[[Execute, Any], Result]]] = {
    ast.CreateUserStatement: create_user,
    ast.AlterUserStatement: alter_user,
    ast.DropUserStatement: drop_user,
    ast.ShowUsersStatement: show_users,
}

"""Resource policies: JSON documents in AWS's language that allow or deny actions on one table or stream.

Pure: nothing here reads a database. What a policy may say is checked when it is put, so that a statement is never
ignored: what is not supported is refused.

Principals are those of Tailrace: ``arn:aws:iam::123456789012:user/NAME`` is the user, or the access key, of that name;
``.../role/ROLE`` everyone of that role; the account itself, and ``*``, everyone who is authenticated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from tailrace.access import ROLES
from tailrace.errors import Invalid

ACCOUNT: Final = "123456789012"
POLICY_BYTES_MAX: Final = 20 * 1024  # as in the service
STATEMENTS_MAX: Final = 100  # of one policy
VALUES_MAX: Final = 200  # principals, actions, resources or values of a condition in one statement
ALLOW: Final = "Allow"
DENY: Final = "Deny"

_VERSIONS: Final = ("2012-10-17", "2008-10-17")
_STATEMENT: Final = frozenset(("Sid", "Effect", "Principal", "Action", "Resource", "Condition"))
_principal: Final = re.compile(rf"arn:aws[a-z-]*:iam::{ACCOUNT}:(root|user/(.{{1,256}})|role/(.{{1,64}}))").fullmatch
_resource: Final = re.compile(r"arn:(?:aws[a-z-]*|\*):(?:dynamodb|\*):[a-z0-9*?-]*:([0-9*?]*):(table/.+|\*)").fullmatch
_action: Final = re.compile(r"(?:\*|dynamodb:[A-Za-z*?]+)").fullmatch
_STRINGS: Final = ("StringEquals", "StringNotEquals", "StringLike", "StringNotLike")
_DATES: Final = ("DateGreaterThan", "DateGreaterThanEquals", "DateLessThan", "DateLessThanEquals")


class PolicyCondition(msgspec.Struct, frozen=True):
    operator: str
    values: tuple[str, ...]  # times as milliseconds

    def holds(self, name: str, now_ms: int) -> bool:
        if self.operator in _DATES:
            least = self.operator.startswith("DateGreater")
            equal = self.operator.endswith("Equals")
            return any(
                now_ms == int(each) if equal and now_ms == int(each) else (now_ms > int(each)) == least
                for each in self.values
                if now_ms != int(each) or equal
            )
        like = self.operator.endswith("Like")
        found = any(_matches(each, name) if like else each == name for each in self.values)
        return found != ("Not" in self.operator)


class PolicyStatement(msgspec.Struct, frozen=True):
    effect: str
    users: tuple[str, ...]
    roles: tuple[str, ...]
    everyone: bool
    actions: tuple[str, ...]  # in lower case, without the service
    resources: tuple[str, ...]  # as table/orders
    conditions: tuple[PolicyCondition, ...]

    def applies(self, name: str, role: str, action: str, resources: Iterable[str], now_ms: int) -> bool:
        """Whether it is about this principal, this action, and one of the resources."""
        if not (self.everyone or name in self.users or role in self.roles):
            return False
        if not any(_matches(each, action.lower()) for each in self.actions):
            return False
        if not any(_matches(pattern, each) for pattern in self.resources for each in resources):
            return False
        return all(condition.holds(name, now_ms) for condition in self.conditions)


class Policy(msgspec.Struct, frozen=True):
    statements: tuple[PolicyStatement, ...]

    def verdict(self, name: str, role: str, action: str, resource: str, now_ms: int) -> str | None:
        """ALLOW, DENY, or None if no statement applies. A denial of a table is one of its indexes and streams too."""
        wider = (resource, resource.partition("/index/")[0].partition("/stream/")[0])
        found = None
        for statement in self.statements:
            denies = statement.effect == DENY
            if statement.applies(name, role, action, wider if denies else (resource,), now_ms):
                if denies:
                    return DENY
                found = ALLOW
        return found


def _matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern with ``*`` and ``?``; in time that grows with the product of their lengths."""
    at = here = 0
    star = mark = -1
    while here < len(text):
        if at < len(pattern) and pattern[at] in ("?", text[here]) and pattern[at] != "*":
            at, here = at + 1, here + 1
        elif at < len(pattern) and pattern[at] == "*":
            star, mark, at = at, here, at + 1
        elif star >= 0:
            at, mark = star + 1, mark + 1
            here = mark
        else:
            return False
    return not pattern[at:].strip("*")


# -- parsing


def parse(text: str, resource: str) -> Policy:
    """A policy for a resource, as in ``table/orders``; raises `Invalid` for what is malformed or not supported."""
    if len(text.encode("utf-8", "replace")) > POLICY_BYTES_MAX:
        raise _bad(f"it has more than {POLICY_BYTES_MAX} bytes")
    try:
        document = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise _bad(f"it is not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict) or not document.keys() <= {"Version", "Id", "Statement"}:
        raise _bad("it is an object with Version, Id and Statement")
    if document.get("Version", _VERSIONS[0]) not in _VERSIONS:
        raise _bad(f"Version is {_VERSIONS[0]!r}")
    given = document.get("Statement")
    statements = [given] if isinstance(given, dict) else given
    if not isinstance(statements, list) or not statements or len(statements) > STATEMENTS_MAX:
        raise _bad(f"Statement is a list of 1 to {STATEMENTS_MAX} statements")
    return Policy(tuple(_statement(each, resource) for each in statements))


def _bad(problem: str) -> Invalid:
    return Invalid(f"the resource policy is refused: {problem}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("an object has a member twice")
    return made


def _statement(given: Any, resource: str) -> PolicyStatement:
    if not isinstance(given, dict):
        raise _bad("a statement is an object")
    other = sorted(given.keys() - _STATEMENT)
    if other:
        raise _bad(f"{other[0][:80]!r} is not supported in a statement; write Principal, Action and Resource")
    effect = given.get("Effect")
    if effect not in (ALLOW, DENY):
        raise _bad("Effect is Allow or Deny")
    users, roles, everyone = _principals(given.get("Principal"))
    actions = _texts(given.get("Action"), "Action")
    for action in actions:
        if _action(action) is None:
            raise _bad(f"{action[:80]!r} is not an action of DynamoDB, as dynamodb:GetItem or dynamodb:*")
    return PolicyStatement(
        effect,
        users,
        roles,
        everyone,
        tuple(action.removeprefix("dynamodb:").lower() for action in actions),
        tuple(_about(each, resource) for each in _texts(given.get("Resource"), "Resource")),
        tuple(_conditions(given.get("Condition", {}))),
    )


def _texts(given: Any, what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if (
        not isinstance(texts, list)
        or not texts
        or len(texts) > VALUES_MAX
        or not all(isinstance(t, str) for t in texts)
    ):
        raise _bad(f"{what} is a text, or a list of 1 to {VALUES_MAX} of them")
    return texts


def _principals(given: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    if given == "*":
        return (), (), True
    if not isinstance(given, dict) or given.keys() != {"AWS"}:
        raise _bad('Principal is "*" or {"AWS": ...}: there are neither services nor federated principals here')
    users: list[str] = []
    roles: list[str] = []
    everyone = False
    for each in _texts(given["AWS"], "Principal.AWS"):
        match = _principal(each)
        if each in ("*", ACCOUNT) or (match is not None and match[1] == "root"):
            everyone = True
        elif match is None:
            raise _bad(
                f"{each[:120]!r} is not a principal of this database; write arn:aws:iam::{ACCOUNT}:user/NAME "
                f"(a user, or the name of an access key), :role/ROLE, or {ACCOUNT}"
            )
        elif match[2] is not None:
            users.append(match[2])
        elif match[3] not in ROLES:
            raise _bad(f"there is no role {match[3]!r}; use {', '.join(ROLES)}")
        else:
            roles.append(match[3])
    return tuple(users), tuple(roles), everyone


def _about(pattern: str, resource: str) -> str:
    """The part of an ARN behind the account, which must be about the resource."""
    if pattern == "*":
        return pattern
    match = _resource(pattern)
    if match is None or not _matches(match[1], ACCOUNT):
        raise _bad(f"{pattern[:120]!r} is not the ARN of a table, an index or a stream of this account")
    about = match[2]
    if not (_matches(about, resource) or about.startswith(f"{resource}/") or "*" in about or "?" in about):
        raise _bad(f"the resource {pattern[:120]!r} is not the one that the policy is for, {resource!r}")
    return about


def _conditions(given: Any) -> Iterable[PolicyCondition]:
    if not isinstance(given, dict):
        raise _bad("Condition is an object")
    for operator, keys in given.items():
        if operator not in (*_STRINGS, *_DATES) or not isinstance(keys, dict) or not keys:
            raise _bad(f"the condition {operator[:80]!r} is not supported; use {', '.join((*_STRINGS, *_DATES))}")
        for key, values in keys.items():
            texts = _texts(values, f"Condition.{operator[:80]}")
            wanted = "aws:currenttime" if operator in _DATES else "aws:username"
            if key.lower() != wanted:
                raise _bad(f"the condition key {key[:80]!r} is not supported with {operator}; it takes {wanted}")
            yield PolicyCondition(operator, tuple(map(_time, texts)) if operator in _DATES else tuple(texts))


def _time(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
    except ValueError as error:
        raise _bad(f"{text[:80]!r} is not a time, as 2026-12-31T23:59:59Z: {error}") from error
    return str(int(moment.timestamp() * 1000))

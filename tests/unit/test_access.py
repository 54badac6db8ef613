"""Roles, and what a principal was given: checked where commands enter, closed where a command does not say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import Database
from tailrace.access import EVERYTHING, ROLES, SYSTEM, Access, Permission, Principal, check_patterns, check_role, roles
from tailrace.errors import Forbidden, Invalid
from tailrace.streams.commands import Append, Create, Delete, Fork
from tailrace.streams.queries import Describe, ListStreams, Read
from tailrace.subscriptions.commands import AddStreams, Claim, GetSubscription, PutSubscription, RemoveStream
from tailrace.subscriptions.subscription import Settings
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem, TransactWrite
from tailrace.tables.lifecycle import DeleteTable, DescribeTable, ListTables
from tailrace.tables.queries import BatchGet, GetItem, TransactGet, Wanted
from tailrace.tables.streams import ReadChanges, RecentStreams, StreamInfo


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        yield db


def given(*patterns: str, role: str = "user") -> Principal:
    return Principal("ann", ROLES[role], role, Access(patterns))


def test_each_role_has_what_the_one_before_it_has() -> None:
    assert ROLES["user"] == {"read", "write"}
    assert ROLES["service"] == ROLES["user"] | {"consume", "jobs"}
    assert ROLES["dba"] == ROLES["service"] | {"admin"}
    assert ROLES["system"] == ROLES["dba"] | {"system"} == EVERYTHING
    assert roles() == ROLES
    assert roles(user_consumes=True) == {**ROLES, "user": ROLES["user"] | {"consume"}}
    assert check_role("dba") == "dba"
    with pytest.raises(Invalid, match="no role 'root'; use user, service, dba, system"):
        check_role("root")


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("tables/orders", "tables/orders", True),
        ("tables/orders", "tables/orders2", False),
        ("tables/orders", "streams/orders", False),
        ("streams/docs/*", "streams/docs/a/b", True),
        ("streams/docs/*", "streams/docs", False),
        ("streams/docs/*", "streams/docsx", False),
        ("tables/*", "tables/a", True),
        ("topics/app.*", "topics/app.new", True),
        ("topics/app.*", "topics/apple", False),
    ],
)
def test_what_a_pattern_covers(pattern: str, subject: str, covered: bool) -> None:
    assert check_patterns([pattern]) == (pattern,)
    assert Access((pattern,)).covers(subject) == covered


@pytest.mark.parametrize(
    "pattern", ["", "*", "orders", "tables/", "tables", "things/x", "tables/a*b", "tables/**", "users/ann", "tables/\n"]
)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(Invalid, match="does not name what may be used"):
        check_patterns([pattern])


def test_patterns_are_bounded_and_not_repeated() -> None:
    assert check_patterns(["tables/a", "tables/a"]) == ("tables/a",)
    with pytest.raises(Invalid, match="101 patterns are more than the 100"):
        check_patterns([f"tables/t{number}" for number in range(101)])
    with pytest.raises(Invalid, match="longer than 1100 bytes"):
        check_patterns(["streams/" + "x" * 1100])


def test_permissions_are_checked(db: Database) -> None:
    reader = Principal("r", frozenset((Permission.READ,)), "user")
    with pytest.raises(Forbidden, match="'r' may not Create: it needs the write permission"):
        db.execute(Create("a"), reader)
    db.execute(Create("a"), Principal("w", ROLES["user"], "user"))
    assert db.execute(Describe("a"), reader).stream.path == "a"


ITEM: Any = {"id": {"S": "x"}}
PUT = PutItem("orders", ITEM, 3)
OTHER = DeleteItem("secret", ITEM)
PULL = Settings(kind="pull-wake", pattern="/docs/**", streams=("other/x/",), wake_stream="wakes/w")


@pytest.mark.parametrize(
    ("command", "subjects"),
    [
        (PUT, {"tables/orders"}),
        (BatchWrite((PUT, OTHER)), {"tables/orders", "tables/secret"}),
        (TransactWrite((PUT, OTHER)), {"tables/orders", "tables/secret"}),
        (GetItem("orders", ITEM), {"tables/orders"}),
        (BatchGet((Wanted("orders", (ITEM,)), Wanted("secret", (ITEM,)))), {"tables/orders", "tables/secret"}),
        (TransactGet((GetItem("a", ITEM), GetItem("b", ITEM))), {"tables/a", "tables/b"}),
        (DescribeTable("orders"), {"tables/orders"}),
        (DeleteTable("orders"), {"tables/orders"}),
        (ReadChanges("orders"), {"tables/orders"}),
        (StreamInfo("orders"), {"tables/orders"}),
        (RecentStreams("orders"), {"tables/orders"}),
        (RecentStreams(), set()),
        (ListTables(), set()),
        (ListStreams(), set()),
        (Append("docs/a"), {"streams/docs/a"}),
        (Read("docs/a"), {"streams/docs/a"}),
        (Delete("docs/a"), {"streams/docs/a"}),
        (Create("docs/a"), {"streams/docs/a"}),
        (Create("docs/a", fork=Fork("other/b")), {"streams/docs/a", "streams/other/b"}),
        (
            PutSubscription("s", PULL, "http://x"),
            {"subscriptions/s", "streams/docs/**", "streams/other/x", "streams/wakes/w"},
        ),
        (AddStreams("s", ("/a/",)), {"subscriptions/s", "streams/a"}),
        (RemoveStream("s", "/a"), {"subscriptions/s", "streams/a"}),
        (GetSubscription("s"), {"subscriptions/s"}),
        (Claim("s", "w"), {"subscriptions/s"}),
    ],
)
def test_what_a_command_says_it_touches(db: Database, command: Any, subjects: set[str]) -> None:
    assert set(command.subjects()) == subjects
    with pytest.raises(Forbidden) as refused:
        db.execute(command, given("tables/nothing", role="dba"))
    assert refused.value.code == "NOT_GIVEN"
    for subject in subjects:  # all but one are not enough
        rest = sorted(subjects - {subject})
        with pytest.raises(Forbidden, match="was not given that" if rest else "may not"):
            db.execute(command, given(*(text.replace("**", "*") for text in rest or ["tables/nothing"]), role="dba"))


def test_a_restricted_principal_does_what_it_was_given(db: Database) -> None:
    db.create_table("orders", partition_key="id")
    db.create_table("secret", partition_key="id")
    ann = given("tables/orders", "streams/docs/*")
    db.execute(PUT, ann)
    assert db.execute(GetItem("orders", ITEM), ann).item == ITEM
    db.execute(Create("docs/a"), ann)
    db.execute(Create("private"), SYSTEM)
    for command in (
        PutItem("secret", ITEM, 3), TransactWrite((PUT, DeleteItem("secret", ITEM))), Append("private", b"x"),
        Create("docs/b", fork=Fork("private")), ListTables(), ListStreams(), DescribeTable("secret"),
    ):  # fmt: skip
        with pytest.raises(Forbidden) as refused:
            db.execute(command, ann)  # type: ignore[arg-type]
        assert refused.value.code == "NOT_GIVEN"
    with pytest.raises(Forbidden, match="needs the admin permission"):
        db.execute(DeleteTable("orders"), ann)


def test_the_same_from_an_event_loop(db: Database) -> None:
    import asyncio

    async def main() -> None:
        ann = given("streams/docs/*")
        await db.aexecute(Create("docs/a"), ann)
        assert (await db.aexecute(Describe("docs/a"), ann)).stream.path == "docs/a"
        for command in (Create("other"), ListStreams()):
            with pytest.raises(Forbidden):
                await db.aexecute(command, ann)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_unrestricted_pass_at_a_glance() -> None:
    assert Principal("ann", ROLES["service"], "service").plain == ROLES["service"]
    assert Principal("bob", ROLES["dba"], "dba").plain == ROLES["service"], "what administers is audited"
    assert given("tables/a").plain == frozenset()

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
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.queries import DescribeStream, ListStreams, ReadStream
from tailrace.subscriptions.commands import AddStreams, ClaimWake, GetSubscription, PutSubscription, RemoveStream
from tailrace.subscriptions.subscription import SubscriptionSettings
from tailrace.tables.change_info import DescribeChangeStream, ListRecentStreams
from tailrace.tables.change_reading import ReadChanges
from tailrace.tables.commands import BatchWrite, DeleteItem, PutItem, TransactWrite
from tailrace.tables.lifecycle import DeleteTable, DescribeTable, ListTables
from tailrace.tables.queries import BatchGet, BatchGetKeys, GetItem, TransactGet


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        yield db


def restricted(*patterns: str, role: str = "user") -> Principal:
    return Principal("ann", ROLES[role], role, Access(patterns))


def test_each_role_has_what_the_one_before_it_has() -> None:
    assert ROLES["reader"] == {"read"}
    assert ROLES["user"] == ROLES["reader"] | {"write"}
    assert ROLES["service"] == ROLES["user"] | {"consume", "jobs"}
    assert ROLES["dba"] == ROLES["service"] | {"admin"}
    assert ROLES["system"] == ROLES["dba"] | {"system"} == EVERYTHING
    assert roles() == ROLES
    assert roles(user_consumes=True) == {**ROLES, "user": ROLES["user"] | {"consume"}}
    assert check_role("dba") == "dba"
    with pytest.raises(Invalid, match="no role 'root'; use reader, user, service, dba, system"):
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
    with pytest.raises(Invalid, match="is not an access pattern"):
        check_patterns([pattern])


def test_patterns_are_bounded_and_not_repeated() -> None:
    assert check_patterns(["tables/a", "tables/a"]) == ("tables/a",)
    with pytest.raises(Invalid, match="101 patterns are more than the 100"):
        check_patterns([f"tables/t{number}" for number in range(101)])
    with pytest.raises(Invalid, match="longer than 1100 bytes"):
        check_patterns(["streams/" + "x" * 1100])


def test_permissions_are_checked(db: Database) -> None:
    reader = Principal("r", frozenset((Permission.READ,)), "user")
    with pytest.raises(Forbidden, match="'r' may not CreateStream: it needs the write permission"):
        db.execute(CreateStream("a"), reader)
    db.execute(CreateStream("a"), Principal("w", ROLES["user"], "user"))
    assert db.execute(DescribeStream("a"), reader).stream.path == "a"


ITEM: Any = {"id": {"S": "x"}}
PUT = PutItem("orders", ITEM, 3)
OTHER = DeleteItem("secret", ITEM)
PULL = SubscriptionSettings(kind="pull-wake", pattern="/docs/**", streams=("other/x/",), wake_stream="wakes/w")


@pytest.mark.parametrize(
    ("command", "subjects"),
    [
        (PUT, {"tables/orders"}),
        (BatchWrite((PUT, OTHER)), {"tables/orders", "tables/secret"}),
        (TransactWrite((PUT, OTHER)), {"tables/orders", "tables/secret"}),
        (GetItem("orders", ITEM), {"tables/orders"}),
        (
            BatchGet((BatchGetKeys("orders", (ITEM,)), BatchGetKeys("secret", (ITEM,)))),
            {"tables/orders", "tables/secret"},
        ),
        (TransactGet((GetItem("a", ITEM), GetItem("b", ITEM))), {"tables/a", "tables/b"}),
        (DescribeTable("orders"), {"tables/orders"}),
        (DeleteTable("orders"), {"tables/orders"}),
        (ReadChanges("orders"), {"tables/orders"}),
        (DescribeChangeStream("orders"), {"tables/orders"}),
        (ListRecentStreams("orders"), {"tables/orders"}),
        (ListRecentStreams(), set()),
        (ListTables(), set()),
        (ListStreams(), set()),
        (Append("docs/a"), {"streams/docs/a"}),
        (ReadStream("docs/a"), {"streams/docs/a"}),
        (DeleteStream("docs/a"), {"streams/docs/a"}),
        (CreateStream("docs/a"), {"streams/docs/a"}),
        (CreateStream("docs/a", fork=Fork("other/b")), {"streams/docs/a", "streams/other/b"}),
        (
            PutSubscription("s", PULL, "http://x"),
            {"subscriptions/s", "streams/docs/**", "streams/other/x", "streams/wakes/w"},
        ),
        (AddStreams("s", ("/a/",)), {"subscriptions/s", "streams/a"}),
        (RemoveStream("s", "/a"), {"subscriptions/s", "streams/a"}),
        (GetSubscription("s"), {"subscriptions/s"}),
        (ClaimWake("s", "w"), {"subscriptions/s"}),
    ],
)
def test_what_a_command_says_it_touches(db: Database, command: Any, subjects: set[str]) -> None:
    assert set(command.subjects()) == subjects
    with pytest.raises(Forbidden) as refused:
        db.execute(command, restricted("tables/nothing", role="dba"))
    assert refused.value.code == "NOT_GIVEN"
    for subject in subjects:  # all but one are not enough
        rest = sorted(subjects - {subject})
        with pytest.raises(Forbidden, match="was not granted access" if rest else "may not"):
            db.execute(
                command, restricted(*(text.replace("**", "*") for text in rest or ["tables/nothing"]), role="dba")
            )


def test_a_restricted_principal_uses_what_it_is_granted(db: Database) -> None:
    db.create_table("orders", partition_key="id")
    db.create_table("secret", partition_key="id")
    ann = restricted("tables/orders", "streams/docs/*")
    db.execute(PUT, ann)
    assert db.execute(GetItem("orders", ITEM), ann).item == ITEM
    db.execute(CreateStream("docs/a"), ann)
    db.execute(CreateStream("private"), SYSTEM)
    for command in (
        PutItem("secret", ITEM, 3), TransactWrite((PUT, DeleteItem("secret", ITEM))), Append("private", b"x"),
        CreateStream("docs/b", fork=Fork("private")), ListTables(), ListStreams(), DescribeTable("secret"),
    ):  # fmt: skip
        with pytest.raises(Forbidden) as refused:
            db.execute(command, ann)  # type: ignore[arg-type]
        assert refused.value.code == "NOT_GIVEN"
    with pytest.raises(Forbidden, match="needs the admin permission"):
        db.execute(DeleteTable("orders"), ann)


def test_the_same_from_an_event_loop(db: Database) -> None:
    import asyncio

    async def main() -> None:
        ann = restricted("streams/docs/*")
        await db.aexecute(CreateStream("docs/a"), ann)
        assert (await db.aexecute(DescribeStream("docs/a"), ann)).stream.path == "docs/a"
        for command in (CreateStream("other"), ListStreams()):
            with pytest.raises(Forbidden):
                await db.aexecute(command, ann)  # type: ignore[arg-type]

    asyncio.run(main())


def test_the_unrestricted_pass_at_a_glance() -> None:
    assert Principal("ann", ROLES["service"], "service").plain == ROLES["service"]
    assert Principal("bob", ROLES["dba"], "dba").plain == ROLES["service"], "what administers is audited"
    assert restricted("tables/a").plain == frozenset()

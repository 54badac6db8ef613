"""From rows to messages: which changes are routed, where to, and what the messages hold."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace import Check, Delete, Put, limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.embedded import Table
from tailrace.errors import ConditionFailed, Conflict, Invalid, LimitExceeded, NotFound, TransactionCanceled
from tailrace.tables import definition as tables
from tailrace.tables.definition import Column
from tailrace.tables.operations import FindTable
from tailrace.topics.commands import AddSource, CreateTopic, DropSource, DropTopic
from tailrace.topics.queries import ListRoutes, ReadTopic
from tailrace.topics.topic import DELETE, INSERT, OPERATIONS, UPDATE

KEY, FULL, DIFF = range(3)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=clock, housekeeping_s=None) as opened:
        opened.create_table("chat.messages", partition_key="id", stream="NEW_AND_OLD_IMAGES", ttl="until")
        opened.execute(CreateTopic("app.new"))
        yield opened
    assert check_database(data_dir).findings == []


@pytest.fixture
def chat(db: Database) -> Table:
    return db.table("chat.messages")


def messages_of(db: Database, topic: str = "app.new", partition: int = 0) -> list[tuple[str, Any]]:
    messages = db.execute(ReadTopic(topic, partition)).messages
    return [(OPERATIONS[each.envelope.operation], msgspec.json.decode(each.envelope.payload)) for each in messages]


def test_only_the_operation_that_was_named(db: Database, chat: Table) -> None:
    for operation in (INSERT, UPDATE, DELETE):
        name = f"only.{operation}"
        db.execute(CreateTopic(name))
        db.execute(AddSource(name, "chat.messages", operation))
    chat.put({"id": "m"})
    chat.put({"id": "m", "text": "x"})
    chat.delete("m")
    for operation in (INSERT, UPDATE, DELETE):
        assert messages_of(db, f"only.{operation}") == [(OPERATIONS[operation], {"id": "m"})]


def test_what_the_payload_holds(db: Database, chat: Table) -> None:
    for mode in (KEY, FULL, DIFF):
        db.execute(CreateTopic(f"mode.{mode}"))
        for operation in (INSERT, UPDATE, DELETE):
            db.execute(AddSource(f"mode.{mode}", "chat.messages", operation, mode=mode))
    first = {"id": "m", "n": Decimal("1.5"), "gone": True, "same": [1, "a"], "tags": {"b", "a"}}
    second = {"id": "m", "n": 2, "same": [1, "a"], "tags": {"a", "b"}, "new": None}
    chat.put(first)
    chat.put(second)
    chat.delete("m")
    json_first = {**first, "n": 1.5, "tags": ["a", "b"]}
    json_second = {**second, "tags": ["a", "b"]}
    found = messages_of(db, "mode.1")
    for _, row in found:
        row["tags"].sort()
    assert messages_of(db, "mode.0") == [(what, {"id": "m"}) for what in ("Insert", "Update", "Delete")]
    assert found == [("Insert", json_first), ("Update", json_second), ("Delete", json_second)]
    (_, made), (_, changed), (_, removed) = messages_of(db, "mode.2")
    assert changed == {"key": {"id": "m"}, "old": {"n": 1.5, "gone": True}, "new": {"n": 2, "new": None}}
    assert (made["old"], sorted(made["new"])) == ({}, sorted(first))
    assert (sorted(removed["old"]), removed["new"]) == (sorted(second), {})


def test_only_what_the_filter_says_is_true_of(db: Database, chat: Table) -> None:
    db.execute(AddSource("app.new", "chat.messages", INSERT, "is_visible = true AND channel_id = 42"))
    for name, row in {
        "yes": {"is_visible": True, "channel_id": 42},
        "hidden": {"is_visible": False, "channel_id": 42},
        "elsewhere": {"is_visible": True, "channel_id": 41},
        "unknown": {"is_visible": True},
        "null": {"is_visible": None, "channel_id": 42},
        "text": {"is_visible": True, "channel_id": "42"},
    }.items():
        chat.put({"id": name, **row})
    assert messages_of(db) == [("Insert", {"id": "yes"})]


def test_new_and_old_and_the_bare_column_of_a_deleted_row(db: Database, chat: Table) -> None:
    db.execute(AddSource("app.new", "chat.messages", UPDATE, "NEW.n > OLD.n"))
    db.execute(AddSource("app.new", "chat.messages", DELETE, "n = 2 AND OLD.n = 2 AND NEW.n IS NULL"))
    for n in (1, 2, 1, 2):
        chat.put({"id": "m", "n": n})
    chat.delete("m")
    assert [what for what, _ in messages_of(db)] == ["Update", "Update", "Delete"]


def test_a_write_that_changes_nothing_makes_no_message(db: Database, chat: Table) -> None:
    for operation in (INSERT, UPDATE, DELETE):
        db.execute(AddSource("app.new", "chat.messages", operation))
    chat.put({"id": "m", "n": 1})
    chat.put({"id": "m", "n": Decimal("1.0")})
    chat.delete("nobody")
    assert [what for what, _ in messages_of(db)] == ["Insert"]


def test_a_write_that_is_refused_makes_no_message(db: Database, chat: Table) -> None:
    db.execute(AddSource("app.new", "chat.messages", INSERT))
    with pytest.raises(ConditionFailed):
        chat.put({"id": "m"}, condition="attribute_exists(id)")
    with pytest.raises(TransactionCanceled):
        db.transact_write([Put("chat.messages", {"id": "a"}), Check("chat.messages", "b", "attribute_exists(id)")])
    assert messages_of(db) == []


def test_a_transaction_and_a_batch_make_a_message_for_each_row(db: Database, chat: Table) -> None:
    for operation in (INSERT, DELETE):
        db.execute(AddSource("app.new", "chat.messages", operation))
    db.transact_write([Put("chat.messages", {"id": "a"}), Put("chat.messages", {"id": "b"})], token="once")
    db.transact_write([Put("chat.messages", {"id": "a"}), Put("chat.messages", {"id": "b"})], token="once")
    db.batch_write([Delete("chat.messages", "a"), Put("chat.messages", {"id": "c"})])
    assert [(what, row["id"]) for what, row in messages_of(db)] == [
        ("Insert", "a"),
        ("Insert", "b"),
        ("Delete", "a"),
        ("Insert", "c"),
    ]
    messages = db.execute(ReadTopic("app.new")).messages
    changes = chat.changes()
    assert [each.id for each in messages] == [f"{change.sequence}-{change.index}" for change in changes]


def test_a_row_that_expires_is_a_delete(db: Database, chat: Table, clock: ManualClock) -> None:
    db.execute(AddSource("app.new", "chat.messages", DELETE))
    chat.put({"id": "m", "until": clock.now_ms() // 1000 + 5})
    clock.advance(10)
    db.sweep()
    assert messages_of(db) == [("Delete", {"id": "m"})]
    assert db.execute(ReadTopic("app.new")).messages[0].envelope.by == "ttl"


def test_a_table_without_a_change_stream_has_routes_too(db: Database) -> None:
    quiet = db.create_table("quiet", partition_key="id")
    db.execute(AddSource("app.new", "quiet", INSERT))
    quiet.put({"id": "m"})
    assert messages_of(db) == [("Insert", {"id": "m"})]


def test_several_topics_and_several_routes_to_one(db: Database, chat: Table) -> None:
    db.execute(CreateTopic("other"))
    db.execute(AddSource("other", "chat.messages", INSERT))
    db.execute(AddSource("app.new", "chat.messages", INSERT, "n > 1"))
    db.execute(AddSource("app.new", "chat.messages", INSERT, "n > 2"))
    chat.put({"id": "m", "n": 2})
    chat.put({"id": "o", "n": 3})
    assert [row["id"] for _, row in messages_of(db)] == ["m", "o", "o"]
    assert [row["id"] for _, row in messages_of(db, "other")] == ["m", "o"]


def test_rows_of_a_key_stay_in_a_partition(db: Database, chat: Table) -> None:
    db.execute(CreateTopic("wide", 4))
    for operation in (INSERT, UPDATE, DELETE):
        db.execute(AddSource("wide", "chat.messages", operation))
    for turn in range(3):
        for name in "abcdefgh":
            chat.put({"id": name, "turn": turn})
    for name in "abcdefgh":
        chat.delete(name)
    seen: dict[str, int] = {}
    for partition in range(4):
        for _, row in messages_of(db, "wide", partition):
            assert seen.setdefault(row["id"], partition) == partition
    assert len(set(seen.values())) > 1
    from zlib import crc32

    assert seen == {name: crc32(name.encode()) % 4 for name in "abcdefgh"}


def test_partition_by_an_expression(db: Database, chat: Table) -> None:
    db.execute(CreateTopic("wide", 4))
    db.execute(AddSource("wide", "chat.messages", INSERT, partition_by="channel_id"))
    for at in range(40):
        chat.put({"id": f"m{at}", "channel_id": at % 5} if at % 5 else {"id": f"m{at}"})
    from zlib import crc32

    for at in range(40):
        wanted = crc32(b"%d" % (at % 5)) % 4 if at % 5 else 0  # NULL hashes like nothing at all
        assert f"m{at}" in {row["id"] for _, row in messages_of(db, "wide", wanted)}


def test_a_source_that_cannot_be_one(db: Database) -> None:
    for command, kind in (
        (AddSource("nowhere", "chat.messages", INSERT), NotFound),
        (AddSource("app.new", "nowhere", INSERT), NotFound),
        (AddSource("app.new", "chat.messages", INSERT, "n ="), Invalid),
        (AddSource("app.new", "chat.messages", INSERT, None, "(("), Invalid),
        (DropSource("app.new", "chat.messages"), NotFound),
    ):
        with pytest.raises(kind):
            db.execute(command)
    db.execute(AddSource("app.new", "chat.messages", INSERT))
    with pytest.raises(Conflict) as raised:
        db.execute(AddSource("app.new", "chat.messages", INSERT))
    assert raised.value.code == "SOURCE_EXISTS"
    assert len(db.execute(ListRoutes())) == 1


def test_an_unknown_column_fails_when_the_route_is_made(db: Database) -> None:
    """Of a table whose columns were declared; of others, any attribute may be there."""
    declared = (Column("id", "TEXT"), Column("channel_id", "BIGINT"))

    class Declare(tailrace.database.Command[None], frozen=True):
        def run(self, tx: Any) -> None:
            tables.save(tx, msgspec.structs.replace(tables.find(tx, "chat.messages"), columns=declared))

    db.execute(Declare())
    for where, partition_by in (("nope = 1", None), (None, "nope")):
        with pytest.raises(Invalid) as raised:
            db.execute(AddSource("app.new", "chat.messages", INSERT, where, partition_by))
        assert raised.value.code == "UNKNOWN_COLUMN"
        assert "nope" in str(raised.value) and "channel_id" in str(raised.value)
    db.execute(AddSource("app.new", "chat.messages", INSERT, "channel_id = 1", "channel_id"))


def test_a_source_that_was_dropped_sends_no_more(db: Database, chat: Table) -> None:
    for operation in (INSERT, UPDATE):
        db.execute(AddSource("app.new", "chat.messages", operation))
    chat.put({"id": "a"})
    assert db.execute(DropSource("app.new", "chat.messages", INSERT)) == 1
    chat.put({"id": "b"})
    chat.put({"id": "a", "n": 1})
    assert db.execute(DropSource("app.new", "chat.messages")) == 1
    chat.put({"id": "a", "n": 2})
    assert [what for what, _ in messages_of(db)] == ["Insert", "Update"]


def test_a_topic_that_was_dropped_takes_its_routes_along(db: Database, chat: Table) -> None:
    db.execute(AddSource("app.new", "chat.messages", INSERT))
    db.execute(DropTopic("app.new"))
    chat.put({"id": "a"})
    db.execute(CreateTopic("app.new"))
    chat.put({"id": "b"})
    assert messages_of(db) == []
    assert db.execute(FindTable("chat.messages")).routes == ()


def test_a_table_that_was_dropped_takes_its_routes_along(db: Database, chat: Table) -> None:
    db.execute(AddSource("app.new", "chat.messages", INSERT))
    db.drop_table("chat.messages")
    assert db.execute(ListRoutes()) == []
    db.create_table("chat.messages", partition_key="id").put({"id": "a"})
    assert messages_of(db) == []


def test_routes_stay_when_a_table_is_changed_or_the_database_opened_again(data_dir: Path, db: Database) -> None:
    db.execute(AddSource("app.new", "chat.messages", INSERT, "n = 1", None, FULL))
    db.table("chat.messages").disable_stream()
    db.close()
    with tailrace.open(data_dir, housekeeping_s=None) as again:
        again.table("chat.messages").put({"id": "a", "n": 1})
        assert messages_of(again) == [("Insert", {"id": "a", "n": 1})]


def test_there_may_be_only_so_many_routes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTES_MAX", 2)
    for n in range(2):
        db.execute(AddSource("app.new", "chat.messages", INSERT, f"n = {n}"))
    with pytest.raises(LimitExceeded):
        db.execute(AddSource("app.new", "chat.messages", INSERT, "n = 2"))


def test_a_partition_expression_fails_no_write(db: Database, chat: Table) -> None:
    """A number that no text can be made of is as unknown as one that is missing."""
    db.execute(CreateTopic("wide", 2))
    db.execute(AddSource("wide", "chat.messages", INSERT, partition_by="n // 3"))
    db.execute(AddSource("wide", "chat.messages", DELETE, partition_by="n * n"))
    chat.put({"id": "large", "n": Decimal("1E125")})
    chat.delete("large")
    assert sum(len(messages_of(db, "wide", partition)) for partition in (0, 1)) == 2

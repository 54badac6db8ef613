"""Transactions over tables, topics and streams, from Python: all or nothing, and only if nothing has changed that was
read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace import Index, Put, between, limits
from tailrace.access import ROLES, Access, Permission, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import (
    ConditionFailed,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TableNotFound,
    TokenMismatch,
    TooLarge,
    TransactionConflict,
)
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables.operations import FindTable
from tailrace.tables.queries import GetItem
from tailrace.topics.commands import Outgoing
from tailrace.topics.queries import ReadTopic
from tailrace.transactions.commands import ReadInTransaction, Transact, Transacted
from tailrace.transactions.operations import (
    AckOperation,
    AppendOperation,
    PublishOperation,
    PutOperation,
    UpdateOperation,
)
from tailrace.transactions.reads import DefinitionRead, RowRead, TransactionRead, from_text, to_text


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    database = Database(SqliteEngine(tmp_path / "data"), clock=clock, housekeeping_s=None)
    database.create_table("accounts", "id", stream="NEW_AND_OLD_IMAGES")
    database.create_table(
        "lines", "order", ("number", "N"), indexes=[Index("by-state", "state", ("number", "N"))], stream="KEYS_ONLY"
    )
    database.create_topic("jobs", 2)
    database.create_topic("done")
    database.create_stream("notes", "text/plain")
    yield database
    database.close()
    assert check_database(tmp_path / "data").findings == []


def state(db: Database) -> Any:
    """Everything that a transaction could have changed."""
    return (
        list(db.table("accounts").scan()),
        list(db.table("lines").scan()),
        [(change.event, change.keys) for change in db.table("accounts").changes()],
        [db.describe_topic(name).partitions for name in ("jobs", "done")],
        db.describe_topic("jobs").groups,
        db.stream("notes").state().tail,
    )


# -- one commit


def test_everything_commits_together(db: Database) -> None:
    db.table("accounts").put({"id": "a", "balance": 10})
    db.publish("jobs", {"job": 1})
    got = db.consume("jobs", "workers", consumer="w")
    with db.transaction() as tx:
        account = tx.get("accounts", "a")
        assert account is not None
        tx.put("accounts", {**account, "balance": account["balance"] - 3})
        tx.update("accounts", "b", "ADD balance :n", values={"n": 3})
        tx.put("lines", {"order": "o", "number": 1})
        tx.ack("jobs", "workers", got.messages, consumer="w")
        tx.publish("done", [b"one", b"two"])
        tx.append("notes", "moved")
        assert db.table("accounts").get("b") is None, "nothing before the commit"
    assert tx.result is not None
    assert tx.result.acked == 1
    assert tx.result.published == [[(0, 0), (0, 1)]]
    assert tx.result.tails == [5]
    assert db.table("accounts").get("a") == {"id": "a", "balance": 7}
    changes = db.table("accounts").changes(after=tx.result.sequence - 1)  # type: ignore[operator]
    assert [(change.event, change.keys["id"]) for change in changes] == [("MODIFY", "a"), ("INSERT", "b")]
    (line,) = db.table("lines").changes()
    assert line.sequence == tx.result.sequence, "all tables share the sequence"
    assert db.describe_topic("jobs").groups[0].floor == 1
    assert db.stream("notes").read().body == b"moved"


def test_an_exception_drops_it(db: Database) -> None:
    before = state(db)
    with pytest.raises(ZeroDivisionError), db.transaction() as tx:
        tx.put("accounts", {"id": "a"})
        raise ZeroDivisionError
    assert tx.ended
    with pytest.raises(Conflict) as refused:
        tx.put("accounts", {"id": "a"})
    assert refused.value.code == "TRANSACTION_ENDED"
    with db.transaction() as other:
        other.publish("done", b"x")
        other.rollback()
    assert state(db) == before


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (UpdateOperation(table="accounts", key=({"S": "a"},), expression="SET n = missing"), Invalid),
        (PutOperation(table="accounts", item={"id": {"S": "a"}}, condition="attribute_exists(id)"), ConditionFailed),
        (PutOperation(table="lines", item={"order": {"S": "o"}, "number": {"N": "1"}, "state": {"N": "1"}}), Invalid),
        (PutOperation(table="nowhere", item={"id": {"S": "a"}}), TableNotFound),
        (UpdateOperation(table="lines", key=({"S": "a"},), expression="REMOVE x"), Invalid),
        (PublishOperation(topic="nowhere", messages=(Outgoing(b""),)), NotFound),
        (PublishOperation(topic="jobs", messages=(Outgoing(b"", partition=7),)), Invalid),
        (AppendOperation(path="nowhere", body=b"x"), NotFound),
        (AppendOperation(path="notes", body=b"x", content_type="application/json"), Conflict),
        (AckOperation(topic="jobs", group="workers", offsets=((0, 0),)), Invalid),
    ],
)  # fmt: skip
def test_one_failure_undoes_all(db: Database, operation: Any, error: type[Exception]) -> None:
    before = state(db)
    fine = (
        PutOperation(table="accounts", item={"id": {"S": "other"}}),
        PublishOperation(topic="done", messages=(Outgoing(b"x"),)),
        AppendOperation(path="notes", body=b"x"),
    )
    with pytest.raises(error) as raised:
        db.execute(Transact((*fine, operation)))
    assert raised.value.facts["operation"] == 3  # type: ignore[attr-defined]
    assert state(db) == before


def test_an_item_changes_once_however_many_operations_it_has(db: Database) -> None:
    db.table("accounts").put({"id": "a", "n": 1})
    with db.transaction() as tx:
        tx.update("accounts", "a", "SET n = n + :one", values={"one": 1})
        tx.update("accounts", "a", "SET n = n + :one", values={"one": 1})
        tx.put("accounts", {"id": "b", "n": 1})
        tx.delete("accounts", "b")
        tx.check("accounts", "a", "n = :n", values={"n": 3})
    assert list(db.table("accounts").scan()) == [{"id": "a", "n": 3}]
    assert [(each.event, each.new) for each in db.table("accounts").changes()] == [
        ("INSERT", {"id": "a", "n": 1}),
        ("MODIFY", {"id": "a", "n": 3}),
    ]


def test_routes_see_the_net_change(db: Database) -> None:
    db.sql("ALTER TOPIC done ADD SOURCE accounts ON INSERT WITH (payload = 'full')")
    with db.transaction() as tx:
        tx.put("accounts", {"id": "a", "n": 1})
        tx.update("accounts", "a", "SET n = :n", values={"n": 2})
    assert [message.json() for message in db.consume("done", None)] == [{"id": "a", "n": 2}]


# -- reads


def test_reads_see_own_writes(db: Database) -> None:
    lines = db.table("lines")
    for number in range(1, 6):
        lines.put({"order": "o", "number": number, "state": "open"})
    with db.transaction() as tx:
        tx.put("lines", {"order": "o", "number": 6, "state": "open"})
        tx.delete("lines", ("o", 2))
        tx.update("lines", ("o", 3), "SET #s = :s", names={"s": "state"}, values={"s": "sent"})
        assert tx.get("lines", ("o", 2)) is None
        assert tx.get("lines", ("o", 3), projection="#s", names={"s": "state"}) == {"state": "sent"}
        assert [line["number"] for line in tx.query("lines", "o")] == [1, 3, 4, 5, 6]
        assert [line["number"] for line in tx.query("lines", "o", reverse=True, limit=3)] == [6, 5, 4]
        assert [line["number"] for line in tx.query("lines", "o", between(2, 4))] == [3, 4]
        assert [line["number"] for line in tx.query("lines", "open", index="by-state")] == [1, 4, 5, 6]
        assert [line["number"] for line in tx.query("lines", "sent", index="by-state")] == [3]
        open_only = {"filter": "#s = :s", "names": {"s": "state"}, "values": {"s": "open"}}
        assert len(tx.query("lines", "o", limit=2, **open_only)) == 2  # type: ignore[arg-type]
        assert len(tx.scan("lines")) == 5
        tx.rollback()
    assert len(list(lines.scan())) == 5


def test_a_changed_item_is_a_conflict(db: Database) -> None:
    accounts = db.table("accounts")
    accounts.put({"id": "a", "n": 1})
    before = state(db)
    tx = db.transaction()
    assert tx.get("accounts", "a") == {"id": "a", "n": 1}
    assert tx.get("accounts", "b") is None
    tx.publish("done", b"x")
    accounts.put({"id": "b", "n": 1})
    accounts.delete("b")
    accounts.put({"id": "a", "n": 2})
    accounts.put({"id": "a", "n": 1})
    tx.commit()  # the values are those that were read
    assert state(db)[3] != before[3]

    accounts.put({"id": "b"})
    writes: tuple[Callable[[], Any], ...] = (lambda: accounts.delete("b"), lambda: accounts.put({"id": "a"}))
    for write in writes:
        tx = db.transaction()
        tx.get("accounts", "a")
        tx.get("accounts", "b")
        tx.publish("done", b"x")
        write()
        before = state(db)
        with pytest.raises(TransactionConflict) as refused:
            tx.commit()
        assert refused.value.code == "TRANSACTION_CONFLICT"
        assert state(db) == before


READS: tuple[Callable[[Any], list[Any]], ...] = (
    lambda tx: tx.query("lines", "o", between(2, 5)),
    lambda tx: tx.query("lines", "o", reverse=True, limit=2),
    lambda tx: tx.query("lines", "open", index="by-state", limit=2),
)


@pytest.mark.parametrize("read", READS)
def test_phantoms_are_conflicts(db: Database, read: Callable[[Any], list[Any]]) -> None:
    lines = db.table("lines")
    items = [{"order": "o", "number": number, "state": "open"} for number in (1, 3, 4, 5, 7)]
    conflicts = 0
    for delete in (False, True):
        for number in (0, 2, 4, 5, 6, 9):
            db.batch_write([Put("lines", item) for item in items])
            tx = db.transaction()
            before = read(tx)
            tx.publish("done", b"x")
            if delete:
                lines.delete(("o", number))
            else:
                lines.put({"order": "o", "number": number, "state": "open", "new": 1})
            if read(db.transaction()) == before:
                tx.commit()
            else:
                conflicts += 1
                with pytest.raises(TransactionConflict):
                    tx.commit()
            lines.delete(("o", number))
    assert 2 <= conflicts <= 6


def test_a_read_is_of_the_moment_of_those_before(db: Database) -> None:
    accounts = db.table("accounts")
    accounts.put({"id": "a", "n": 1})
    tx = db.transaction()
    tx.get("accounts", "a")
    accounts.put({"id": "a", "n": 2})
    with pytest.raises(TransactionConflict):
        tx.get("accounts", "b")


def test_updates_that_read_nothing_do_not_conflict(db: Database) -> None:
    transactions = [db.transaction() for _ in range(3)]
    for tx in transactions:
        tx.update("accounts", "a", "ADD n :one", values={"one": 1})
        tx.put("accounts", {"id": "b"})
        tx.get("accounts", "b")  # what this transaction has put, whatever was there
    for tx in transactions:
        tx.commit()
    assert db.table("accounts").get("a") == {"id": "a", "n": 3}
    first, second = db.transaction(), db.transaction()
    for tx in (first, second):
        tx.update("accounts", "a", "ADD n :one", values={"one": 1})
        tx.get("accounts", "a")  # depends on what is stored
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()


def test_a_recreated_table_is_a_conflict(db: Database) -> None:
    db.create_table("short", "id")
    tx = db.transaction()
    assert tx.get("short", "a") is None
    tx.publish("done", b"x")
    db.drop_table("short")
    db.create_table("short", "id")
    with pytest.raises(TransactionConflict):
        tx.commit()


def test_an_altered_table_is_a_conflict(db: Database) -> None:
    db.sql("CREATE TABLE short (id TEXT PRIMARY KEY, n BIGINT, expires BIGINT)")
    short = db.table("short")
    for alter in (
        lambda: db.sql("CREATE INDEX by_n ON short (n)"),
        lambda: db.sql("DROP INDEX by_n ON short"),
        lambda: short.enable_stream(),
        lambda: short.disable_stream(),
        lambda: db.sql("ALTER TABLE short SET (ttl = expires)"),
    ):
        tx, blind = db.transaction(), db.transaction()
        assert tx.get("short", "a") is None
        for each in (tx, blind):
            each.put("short", {"id": "b"})
        alter()
        before = state(db)
        with pytest.raises(TransactionConflict):
            tx.commit()
        assert state(db) == before
        blind.commit()  # it has read nothing, and runs with the table as it is


def test_a_definition_is_recorded_once(db: Database) -> None:
    tx = db.transaction()
    for key in ("a", "b", "a"):
        tx.get("accounts", key)
    assert [type(read) for read in tx._reads] == [DefinitionRead, RowRead, RowRead]
    definition = db.execute(FindTable("accounts"))
    assert msgspec.structs.replace(definition, copies=(7,)).digest == definition.digest
    assert msgspec.structs.replace(definition, ttl="expires").digest != definition.digest


def test_the_tail_of_a_stream_is_compared(db: Database) -> None:
    tx, other = db.transaction(), db.transaction()
    assert tx.tail("notes") == other.tail("notes")
    assert tx.tail("nowhere") is None
    tx.append("notes", b"first")
    other.append("notes", b"second")
    tx.commit()
    with pytest.raises(TransactionConflict):
        other.commit()
    assert db.stream("notes").read().body == b"first"


# -- acknowledgements


def test_the_lease_is_a_fence(db: Database, clock: ManualClock) -> None:
    db.publish("jobs", [b"1", b"2", b"3"])
    got = db.consume("jobs", "g", consumer="w", visibility_s=10)
    before = state(db)

    def transaction(messages: Any, consumer: str = "w") -> Any:
        tx = db.transaction()
        tx.put("accounts", {"id": "a"})
        tx.ack("jobs", "g", messages, consumer=consumer)
        return tx

    with pytest.raises(Conflict) as refused:
        transaction(got.messages, "other").commit()
    assert refused.value.code == "LEASE_LOST"
    foreign = [msgspec.structs.replace(message, lease_id="1-999") for message in got]
    beyond = [msgspec.structs.replace(got.messages[-1], offset=17)]
    for messages in (foreign, beyond):
        with pytest.raises(Conflict):
            transaction(messages).commit()
    assert state(db) == before
    transaction(got.messages[1]).commit()  # of the middle alone
    assert db.describe_topic("jobs").groups[0].floor == 0
    with pytest.raises(Conflict):
        transaction(got.messages).commit()  # one of them is acknowledged
    clock.advance(10.001)
    before = state(db)
    with pytest.raises(Conflict) as refused:
        transaction([got.messages[0], got.messages[2]]).commit()
    assert refused.value.code == "LEASE_LOST", "the lease has ended, although no other consumer has the messages"
    assert state(db) == before
    again = db.consume("jobs", "g", consumer="w2")
    assert [message.payload for message in again] == [b"1", b"3"]
    transaction(again.messages, "w2").commit()
    assert db.describe_topic("jobs").groups[0].floor == 3


def test_a_message_is_acknowledged_once(db: Database) -> None:
    db.publish("jobs", [b"1", b"2", b"3"])
    got = db.consume("jobs", "g", consumer="w").messages
    for more in ([got[0]], [got[2], got[1]]):
        tx = db.transaction()
        tx.ack("jobs", "g", got, consumer="w")
        tx.ack("jobs", "g", more, consumer="w")
        with pytest.raises(Invalid) as refused:
            tx.commit()
        assert f"offset {min(each.offset for each in more)} is acknowledged twice" in str(refused.value)
    tx = db.transaction()
    for message in reversed(got):
        tx.ack("jobs", "g", message, consumer="w")
    assert tx.commit().acked == 3


def test_a_transactional_handler_that_acknowledges_its_message_is_told(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    db.publish("done", b"x")
    consumer = db.consumer("done", "g")
    calls = 0

    def handle(message: Any, tx: Any) -> None:
        nonlocal calls
        calls += 1
        tx.put("accounts", {"id": "a", "n": calls})
        if calls == 1:
            tx.ack("done", "g", message, consumer=consumer.consumer_id)
        else:
            consumer.stop()

    consumer.run(handle, transactional=True, retry_s=0)
    assert "is acknowledged twice" in caplog.text
    assert db.table("accounts").get("a") == {"id": "a", "n": 2}


# -- tokens, limits, access


def test_a_token_makes_it_idempotent(db: Database, clock: ManualClock) -> None:
    command = Transact((PublishOperation(topic="done", messages=(Outgoing(b"x"),)),), (), "t-1")
    assert db.execute(command) == Transacted(None, 0, [[(0, 0)]], [])
    assert db.execute(command) == Transacted(replayed=True)
    with pytest.raises(TokenMismatch):
        db.execute(Transact((), (), "t-1"))
    clock.advance(limits.TOKEN_S)
    assert not db.execute(command).replayed
    assert len(db.consume("done", None).messages) == 2
    for token in ("", "x" * (limits.TOKEN_CHARACTERS_MAX + 1)):
        with pytest.raises(Invalid):
            db.execute(Transact((), (), token))


def test_limits(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_OPERATIONS_MAX", 3)
    monkeypatch.setattr(limits, "TRANSACTION_READS_MAX", 8)
    tx = db.transaction()
    for number in range(3):
        tx.put("lines", {"order": "o", "number": number})
    with pytest.raises(Invalid):
        tx.put("lines", {"order": "o", "number": 3})
    tx.commit()
    with pytest.raises(TooLarge):
        db.execute(Transact((PublishOperation(topic="done", messages=(Outgoing(b""),) * 4),)))
    db.execute(Transact((PublishOperation(topic="done", messages=(Outgoing(b""),) * 3),)))
    tx = db.transaction()
    assert len(tx.query("lines", "o")) == 3
    tx.get("accounts", "a")
    tx.get("accounts", "b")
    with pytest.raises(TooLarge) as refused:
        tx.get("accounts", "c")
    assert refused.value.code == "TRANSACTION_TOO_LARGE"
    monkeypatch.setattr(limits, "TRANSACTION_READS_MAX", 100)
    monkeypatch.setattr(limits, "TRANSACTION_READS_BYTES_MAX", 2_500)
    for number in range(3):
        db.table("lines").put({"order": "o", "number": number, "pad": "x" * 1_000})
    tx = db.transaction()
    with pytest.raises(TooLarge) as refused:  # the bytes are those of all reads, not of each
        for number in range(4):
            tx.get("lines", ("o", number))
    assert refused.value.code == "TRANSACTION_TOO_LARGE"
    monkeypatch.setattr(limits, "TRANSACTION_READS_BYTES_MAX", 10)
    with pytest.raises(TooLarge):
        db.transaction().query("lines", "o")
    read = RowRead("accounts", 1, b"", b"")
    with pytest.raises(TooLarge):
        db.execute(Transact((), (read,) * 101))


def test_access_is_that_of_each_operation_and_read(db: Database) -> None:
    def principal(role: str, *patterns: str) -> Principal:
        return Principal("p", ROLES[role], role, Access(patterns) if patterns else None)

    write = PutOperation(table="accounts", item={"id": {"S": "a"}})
    publish = PublishOperation(topic="done", messages=(Outgoing(b""),))
    append = AppendOperation(path="notes", body=b"x")
    ack = AckOperation(topic="jobs", group="g", offsets=((0, 0),))
    read = RowRead("lines", 2, b"", b"")
    everything = ("tables/*", "topics/*", "streams/*")
    db.execute(Transact((write, publish, append)), principal("user", *everything))
    for operations, reads, missing in (
        ((write, publish), (), "tables/*"),
        ((write, publish), (), "topics/*"),
        ((write, append), (), "streams/*"),
        ((publish,), (read,), "tables/*"),
    ):
        patterns = [pattern for pattern in everything if pattern != missing]
        with pytest.raises(Forbidden):
            db.execute(Transact(operations, reads), principal("user", *patterns))
    with pytest.raises(Forbidden):
        db.execute(Transact((write, ack)), principal("user"))
    assert Transact((write, ack)).permission == Permission.CONSUME
    query = GetItem("accounts", {"id": {"S": "a"}})
    with pytest.raises(Forbidden):
        db.execute(ReadInTransaction(query, (), (read,)), principal("user", "tables/accounts"))
    db.execute(ReadInTransaction(query), principal("user", "tables/accounts"))
    # A query within a transaction needs what it needs by itself.
    query_of_messages = ReadInTransaction(ReadTopic("jobs"))
    assert query_of_messages.permission == Permission.CONSUME
    with pytest.raises(Forbidden):
        db.execute(query_of_messages, principal("reader"))
    # A record of a read names its table; one that names another table's items is refused, not compared.
    item = {"id": {"S": "a"}}
    step = db.execute(ReadInTransaction(GetItem("accounts", item)))
    forged = msgspec.structs.replace(step.reads[-1], table="lines")
    with pytest.raises(TransactionConflict):
        db.execute(Transact((), (forged,)), principal("user", "tables/lines"))


def test_commands_and_reads_are_plain_data(db: Database) -> None:
    tx = db.transaction()
    tx.query("lines", "o")
    tx.get("accounts", "a")
    tx.tail("notes")
    tx.put("accounts", {"id": "a", "raw": b"\0", "set": {1, 2}}, condition="attribute_not_exists(id)")
    tx.update("lines", ("o", 1), "SET #a = :a", names={"a": "a"}, values={"a": b"x"})
    tx.publish("jobs", "x", key="k")
    tx.append("notes", b"x")
    command = Transact(tuple(tx._operations), tuple(tx._reads), "token")
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Transact)
    assert copy == command
    assert db.execute(copy).sequence is not None
    reads: tuple[TransactionRead, ...] = tuple(tx._reads)
    assert from_text(to_text(reads)) == reads
    for text in ("", "?", "AAAA", to_text(reads)[:-4], "é"):
        with pytest.raises(Invalid):
            from_text(text)


# -- trying again


def test_transact_tries_again(db: Database) -> None:
    accounts = db.table("accounts")
    accounts.put({"id": "a", "n": 0})
    calls = 0

    def add(tx: Any) -> int:
        nonlocal calls
        calls += 1
        n: int = tx.get("accounts", "a")["n"]
        if calls < 3:
            accounts.update("a", "ADD n :one", values={"one": 1})
        tx.put("accounts", {"id": "a", "n": n + 10})
        return n

    assert db.transact(add) == 2
    assert accounts.get("a") == {"id": "a", "n": 12}
    calls = -100
    with pytest.raises(TransactionConflict):
        db.transact(add, attempts=3)
    assert calls == -97

    def fails(tx: Any) -> None:
        tx.put("accounts", {"id": "a"})
        raise KeyError("no")

    with pytest.raises(KeyError):
        db.transact(fails)
    with pytest.raises(Invalid):
        db.transact(add, attempts=0)

    async def later(tx: Any) -> None: ...

    with pytest.raises(Invalid):
        db.transact(later)  # type: ignore[unused-coroutine]


def test_on_an_event_loop(db: Database) -> None:
    async def run() -> None:
        async with db.aio.transaction() as tx:
            assert await tx.get("accounts", "a") is None
            tx.put("accounts", {"id": "a", "n": 1})
            assert await tx.get("accounts", "a") == {"id": "a", "n": 1}
        conflicts = 0

        async def add(tx: Any) -> None:
            nonlocal conflicts
            conflicts += 1
            item = await tx.get("accounts", "a")
            await asyncio.sleep(0)
            tx.put("accounts", {"id": "a", "n": item["n"] + 1})

        await asyncio.gather(*(db.aio.transact(add, attempts=50) for _ in range(8)))
        assert conflicts > 8

    asyncio.run(run())
    assert db.table("accounts").get("a") == {"id": "a", "n": 9}


def test_other_writes_share_its_commit(db: Database) -> None:
    """A transaction that fails in a batch leaves the commands beside it alone."""

    async def run() -> list[Any]:
        batch = [
            db.aexecute(Transact((PutOperation(table="accounts", item={"id": {"S": str(n)}}, condition=condition),)))
            for n in range(6)
            for condition in (None, "attribute_exists(nothing)")
        ]
        return await asyncio.gather(*batch, return_exceptions=True)

    results = asyncio.run(run())
    assert [isinstance(each, ConditionFailed) for each in results] == [False, True] * 6
    assert len(list(db.table("accounts").scan())) == 6
    db.batch_write([Put("accounts", {"id": "x"})])

"""Writing items: conditions, what is returned, batches, transactions and their tokens; a failure leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.access import EVERYTHING, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import ConditionFailed, Invalid, TableNotFound, TokenMismatch, TooLarge, TransactionCanceled
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import change_reading, queries, schema, value
from tailrace.tables.commands import (
    ALL_NEW,
    ALL_OLD,
    UPDATED_NEW,
    UPDATED_OLD,
    BatchWrite,
    BatchWritten,
    CheckItem,
    DeleteItem,
    ItemCommand,
    PutItem,
    TransactWrite,
    UpdateItem,
)
from tailrace.tables.definition import COUNTS, ITEMS, TOKEN_AGES, TOKENS, Attribute
from tailrace.tables.expression import ItemCondition, Placeholders, condition, update
from tailrace.tables.lifecycle import CreateTable
from tailrace.tables.schema import IndexSpec, KeyElement, StreamSpec, TableSpec

ANN = Principal("ann", EVERYTHING)
BOB = Principal("bob", EVERYTHING)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(data_dir: Path, clock: ManualClock) -> Iterator[Database]:
    with Database(SqliteEngine(data_dir), clock=clock, housekeeping_s=None) as db:
        for name, stream in (("orders", "NEW_AND_OLD_IMAGES"), ("stock", "KEYS_ONLY"), ("quiet", None)):
            spec = TableSpec(
                name=name,
                attributes=(Attribute("id", "S"), Attribute("g", "S")),
                keys=(KeyElement("id", "HASH"),),
                globals=(IndexSpec("by-g", (KeyElement("g", "HASH"),)),),
                billing=schema.PAY_PER_REQUEST,
                stream=None if stream is None else StreamSpec(True, stream),
            )
            db.execute(CreateTable(spec))
        yield db
    assert check_database(data_dir).findings == []


def only_if(text: str | None, **values: Any) -> ItemCondition | None:
    placed = {f":{name}": value.from_plain(held) for name, held in values.items()} or None
    return None if text is None else condition(text, Placeholders(None, placed))


def put(name: str = "a", when: str | None = None, table: str = "orders", **attributes: Any) -> PutItem:
    return PutItem(table, *value.item_from_plain({"id": name, **attributes}), condition=only_if(when))


def key(name: str) -> Any:
    return value.item_from_plain({"id": name})[0]


def changing(text: str, name: str = "a", *, returns: str = "NONE", table: str = "orders", **values: Any) -> UpdateItem:
    placed = {f":{held}": value.from_plain(each) for held, each in values.items()} or None
    return UpdateItem(table, key(name), update(text, Placeholders(None, placed)), returns=returns)


def got(db: Database, name: str = "a", table: str = "orders") -> dict[str, Any] | None:
    item = db.execute(queries.GetItem(table, key(name))).item
    return None if item is None else value.item_to_plain(item)


def records(db: Database, table: str = "orders") -> list[Any]:
    return db.execute(change_reading.ReadChanges(table)).records


def all_rows(db: Database) -> list[Any]:
    with db._engine.reader() as reader:
        return [list(reader.scan(table)) for table in (ITEMS, COUNTS, TOKENS, TOKEN_AGES)]


def returned(db: Database, command: ItemCommand) -> dict[str, Any] | None:
    attributes = db.execute(command).attributes
    return None if attributes is None else value.item_to_plain(attributes)


# -- one item


def test_put_get_delete(db: Database) -> None:
    db.execute(put(n=1))
    assert got(db) == {"id": "a", "n": 1}
    db.execute(put(m=2))
    assert got(db) == {"id": "a", "m": 2}, "the whole item is replaced"
    db.execute(DeleteItem("orders", key("a")))
    assert got(db) is None


@pytest.mark.parametrize(
    "command",
    [
        put(table="missing"),
        DeleteItem("missing", {"id": {"S": "a"}}),
        UpdateItem("missing", {"id": {"S": "a"}}),
        CheckItem("missing", {"id": {"S": "a"}}),
        BatchWrite((put(), put("b", table="missing"))),
        TransactWrite((put(), put("b", table="missing"))),
    ],
)
def test_a_table_that_is_not_there(db: Database, command: Any) -> None:
    with pytest.raises(TableNotFound, match="missing"):
        db.execute(command)
    assert got(db) is None


def test_the_old_item_is_returned_on_request(db: Database) -> None:
    item, size = value.item_from_plain({"id": "a", "n": 1})
    assert returned(db, PutItem("orders", item, size, returns=ALL_OLD)) is None
    assert returned(db, PutItem("orders", item, size, returns=ALL_OLD)) == {"id": "a", "n": 1}
    assert returned(db, PutItem("orders", item, size)) is None
    assert returned(db, DeleteItem("orders", key("a"), returns=ALL_OLD)) == {"id": "a", "n": 1}
    assert returned(db, DeleteItem("orders", key("a"), returns=ALL_OLD)) is None


@pytest.mark.parametrize(
    ("returns", "of_new", "of_old"),
    [
        ("NONE", None, None),
        (ALL_OLD, None, {"id": "a", "n": 1, "m": 5}),
        (ALL_NEW, {"id": "a", "n": 1, "m": 5}, {"id": "a", "n": 2, "m": 5}),
        (UPDATED_OLD, {}, {"n": 1}),
        (UPDATED_NEW, {"n": 1, "m": 5}, {"n": 2}),
    ],
)
def test_what_an_update_returns(db: Database, returns: str, of_new: Any, of_old: Any) -> None:
    first = returned(db, changing("SET n = :n, m = :m", returns=returns, n=1, m=5))
    assert first == of_new or (not of_new and not first)
    assert returned(db, changing("SET n = :n", returns=returns, n=2)) == of_old


def test_an_update_makes_an_item_unless_it_only_removes(db: Database) -> None:
    db.execute(changing("REMOVE n"))
    assert got(db) is None
    assert records(db) == []
    db.execute(UpdateItem("orders", key("a")))
    assert got(db) == {"id": "a"}
    db.execute(changing("ADD n :n", "b", n=Decimal("1.5")))
    assert got(db, "b") == {"id": "b", "n": Decimal("1.5")}
    assert [record.event for record in records(db)] == ["INSERT", "INSERT"]


def test_an_update_cannot_change_the_key(db: Database) -> None:
    with pytest.raises(Invalid, match=r"Cannot update attribute id\. This attribute is part of the key"):
        db.execute(changing("SET id = :n", n="b"))


def test_items_have_a_size_that_they_may_not_exceed(db: Database) -> None:
    room = limits.ITEM_BYTES_MAX - len("id") - len("a") - len("v")
    db.execute(put(v="x" * room))
    with pytest.raises(Invalid, match="Item size has exceeded the maximum allowed size"):
        db.execute(put("b", v="x" * (room + 1)))
    with pytest.raises(Invalid, match="Item size to update has exceeded the maximum allowed size"):
        db.execute(changing("SET w = :w", w=""))
    assert got(db, "b") is None


def test_a_condition_that_fails_changes_nothing(db: Database) -> None:
    db.execute(put(n=1))
    rows = all_rows(db)
    absent, exists = "attribute_not_exists(id)", "attribute_exists(id)"
    for command in (
        put(n=2, when=absent),
        put("b", when=exists),
        DeleteItem("orders", key("a"), condition=only_if(absent)),
        DeleteItem("orders", key("b"), condition=only_if(exists)),
        UpdateItem("orders", key("b"), condition=only_if(exists)),
        CheckItem("orders", key("b"), condition=only_if(exists)),
    ):
        with pytest.raises(ConditionFailed) as caught:
            db.execute(command)
        assert caught.value.item is None, "it was not asked for"
    assert all_rows(db) == rows
    assert len(records(db)) == 1


def test_the_item_is_returned_where_the_condition_fails_on_request(db: Database) -> None:
    db.execute(put(n=1))
    absent = only_if("attribute_not_exists(id)")
    with pytest.raises(ConditionFailed) as caught:
        db.execute(DeleteItem("orders", key("a"), condition=absent, on_failure=True))
    assert value.item_to_plain(caught.value.item) == {"id": "a", "n": 1}
    with pytest.raises(ConditionFailed) as caught:
        db.execute(DeleteItem("orders", key("b"), condition=only_if("attribute_exists(id)"), on_failure=True))
    assert caught.value.item is None


def test_who_made_a_change_is_in_its_record(db: Database) -> None:
    db.execute(put("a"), ANN)
    db.execute(put("b"))
    db.execute(TransactWrite((put("c"), put("d"))), BOB)
    assert [record.by for record in records(db)] == ["ann", "system", "bob", "bob"]


def test_capacity_is_returned_on_request(db: Database) -> None:
    assert db.execute(put(v="x" * 2000)).consumed is None
    item, size = value.item_from_plain({"id": "b", "v": "x" * 2000})
    consumed = db.execute(PutItem("orders", item, size, capacity=True)).consumed
    assert consumed is not None
    assert (consumed.table, consumed.write) == ("orders", 2)


# -- batches


def test_an_atomic_batch_is_one_transaction(db: Database) -> None:
    done = db.execute(BatchWrite((put("a"), put("b"), put("c", table="stock"), DeleteItem("orders", key("z")))))
    (sequence,) = {one.sequence for one in done.written}
    assert [(record.sequence, record.index, record.last) for record in records(db)] == [
        (sequence, 0, False), (sequence, 1, True),
    ]  # fmt: skip
    assert [record.sequence for record in records(db, "stock")] == [sequence]


def test_a_batch_that_is_not_atomic_has_a_sequence_per_item(db: Database) -> None:
    writes = (put("a"), DeleteItem("orders", key("z")), put("b"), put("c", table="quiet"))
    done = db.execute(BatchWrite(writes, atomic=False))
    first = done.written[0].sequence
    assert first is not None
    assert [one.sequence for one in done.written] == [first, None, first + 1, None]
    assert all(record.last for record in records(db))


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("wrong", [put("a", again=True), put("b", g=1), DeleteItem("orders", {"x": {"S": "a"}})])
def test_a_batch_with_something_wrong_does_nothing(db: Database, atomic: bool, wrong: Any) -> None:
    first = db.execute(put("first")).sequence
    assert first is not None
    rows = all_rows(db)
    with pytest.raises(Invalid):
        db.execute(BatchWrite((put("a"), put("z"), wrong), atomic=atomic))
    assert all_rows(db) == rows
    assert len(records(db)) == 1
    assert db.execute(put()).sequence == first + 1, "no sequence was used up"


def test_units_of_a_batch_are_by_table(db: Database) -> None:
    done = db.execute(BatchWrite((put("a"), put("b"), put("c", table="stock")), capacity=True))
    assert {name: units.write for name, units in done.consumed().items()} == {"orders": 2, "stock": 1}
    assert BatchWritten([]).consumed() == {}


# -- transactions


def check(name: str, text: str = "attribute_exists(id)", *, return_item: bool = False) -> CheckItem:
    return CheckItem("orders", key(name), condition=only_if(text), on_failure=return_item)


def test_a_transaction_does_all(db: Database) -> None:
    db.execute(put("a", n=1))
    actions = (
        check("a"),
        put("b"),
        changing("ADD n :n", "c", table="stock", n=2),
        DeleteItem("quiet", key("d")),
    )
    done = db.execute(TransactWrite(actions))
    assert not done.replayed
    assert got(db, "b") == {"id": "b"}
    assert got(db, "c", "stock") == {"id": "c", "n": 2}
    assert [record.sequence for record in records(db)][1:] == [done.written[0].sequence], "a check is no change"
    assert [record.sequence for record in records(db, "stock")] == [done.written[0].sequence]


def test_a_transaction_does_nothing_where_a_condition_fails_and_says_why(db: Database) -> None:
    db.execute(put("a", n=1))
    rows = all_rows(db)
    actions = (
        put("b"),
        check("a", "attribute_not_exists(id)", return_item=True),
        check("a2"),
        changing("SET n = :n", "c", table="stock", n=1),
    )
    with pytest.raises(TransactionCanceled) as caught:
        db.execute(TransactWrite(actions, "token", b"x"))
    assert [code for code, _, _ in caught.value.reasons] == [
        "None", "ConditionalCheckFailed", "ConditionalCheckFailed", "None",
    ]  # fmt: skip
    assert [message for _, message, _ in caught.value.reasons] == [
        None, "The conditional request failed", "The conditional request failed", None,
    ]  # fmt: skip
    assert value.item_to_plain(caught.value.reasons[1][2]) == {"id": "a", "n": 1}
    assert caught.value.reasons[2][2] is None
    assert all_rows(db) == rows, "and the token was not used"


def test_a_transaction_with_an_update_that_cannot_be_done(db: Database) -> None:
    db.execute(put("a", n="text"))
    with pytest.raises(TransactionCanceled) as caught:
        db.execute(TransactWrite((put("b"), changing("ADD n :n", "a", n=1), put("c"))))
    assert [code for code, _, _ in caught.value.reasons] == ["None", "ValidationError", "None"]
    assert got(db, "b") is None


def test_a_transaction_whose_item_does_not_fit_an_index_does_nothing(db: Database) -> None:
    rows = all_rows(db)
    with pytest.raises((Invalid, TransactionCanceled)):
        db.execute(TransactWrite((put("a"), put("b", table="stock"), put("c", g=5))))
    assert all_rows(db) == rows
    assert (records(db), records(db, "stock")) == ([], [])


def test_a_transaction_touches_an_item_once(db: Database) -> None:
    with pytest.raises(Invalid, match="cannot include multiple operations on one item"):
        db.execute(TransactWrite((put("a"), check("a", "attribute_not_exists(id)"))))
    assert got(db) is None
    db.execute(TransactWrite((put("a"), put("a", table="stock"))))


def test_a_token_makes_a_repetition_harmless(db: Database, clock: ManualClock) -> None:
    adding = TransactWrite((changing("ADD n :n", n=1), put("b", table="stock")), "token", b"digest")
    assert not db.execute(adding, ANN).replayed
    rows = all_rows(db)
    clock.advance(limits.TOKEN_S - 1)
    again = db.execute(adding, ANN)
    assert again.replayed
    assert [one.definition.name for one in again.written] == ["orders", "stock"]
    assert all_rows(db) == rows
    assert got(db) == {"id": "a", "n": 1}
    db.execute(DeleteItem("stock", key("b")))
    assert db.execute(adding, ANN).replayed, "whatever happened since"
    assert got(db, "b", "stock") is None


def test_a_token_for_something_else_is_refused(db: Database) -> None:
    db.execute(TransactWrite((put("a"),), "token", b"one"), ANN)
    with pytest.raises(TokenMismatch):
        db.execute(TransactWrite((put("b"),), "token", b"two"), ANN)
    assert got(db, "b") is None


def test_a_token_is_its_owners(db: Database) -> None:
    one = TransactWrite((changing("ADD n :n", n=1),), "token", b"digest")
    db.execute(one, ANN)
    assert not db.execute(one, BOB).replayed
    assert got(db) == {"id": "a", "n": 2}


def test_a_token_is_forgotten_after_ten_minutes(db: Database, clock: ManualClock) -> None:
    one = TransactWrite((changing("ADD n :n", n=1),), "token", b"digest")
    db.execute(one)
    clock.advance(limits.TOKEN_S)
    assert not db.execute(one).replayed
    assert got(db) == {"id": "a", "n": 2}
    assert db.execute(one).replayed
    clock.advance(1)
    db.sweep()
    assert db.execute(one).replayed, "it was used again since"
    clock.advance(limits.TOKEN_S)
    db.sweep()
    with db._engine.reader() as reader:
        assert list(reader.scan(TOKENS)) == list(reader.scan(TOKEN_AGES)) == []


def test_a_token_counts_also_where_nothing_changed(db: Database) -> None:
    db.execute(put("a"))
    one = TransactWrite((put("a"),), "token", b"digest")
    assert not db.execute(one).replayed
    db.execute(DeleteItem("orders", key("a")))
    assert db.execute(one).replayed
    assert got(db) is None


def test_units_of_a_transaction_are_twice_those_of_its_writes(db: Database) -> None:
    one = TransactWrite((put("a", v="x" * 1500), check("b", "attribute_not_exists(id)")), "token", b"x", True)
    assert {name: units.write for name, units in db.execute(one).consumed().items()} == {"orders": 6}
    replayed = db.execute(one).consumed()["orders"]
    assert (replayed.read, replayed.write) == (4, 0), "a repetition reads"


def test_tokens_of_two_principals_never_meet(db: Database) -> None:
    one = TransactWrite((changing("ADD n :n", n=1),), "b/token", b"digest")
    db.execute(one, Principal("a", EVERYTHING))
    other = TransactWrite((changing("ADD n :n", n=1),), "token", b"digest")
    assert not db.execute(other, Principal("a/b", EVERYTHING)).replayed
    assert got(db) == {"id": "a", "n": 2}


# -- how much one transaction may carry


def test_a_batch_is_bounded_by_what_it_reads_and_writes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", 1000)
    db.execute(BatchWrite((put("a", v="x" * 400), put("b", v="x" * 400))))
    rows = all_rows(db)
    replacing = (put("a", v="y" * 400), put("b", v="y" * 400))
    for writes in (replacing, (put("c", v="x" * 1000),), (*replacing[:1], DeleteItem("orders", key("b")))):
        with pytest.raises(TooLarge, match=r"at most 1000 bytes together.*in several transactions"):
            db.execute(BatchWrite(writes))
    assert all_rows(db) == rows
    db.execute(BatchWrite((DeleteItem("orders", key("a")), DeleteItem("orders", key("b")))))


def test_a_change_record_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.execute(put("a", v="x" * 600))
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", 1000)
    rows = all_rows(db)
    with pytest.raises(TooLarge, match="images"):
        db.execute(TransactWrite((put("a", v="y" * 600),)))
    assert all_rows(db) == rows
    db.execute(TransactWrite((put("a", table="stock", v="y" * 600), put("b", table="stock", v="y" * 600))))


@pytest.mark.parametrize(
    "action",
    [
        DeleteItem("orders", key("big")),
        CheckItem("orders", key("big"), condition=only_if("attribute_exists(id)")),
        changing("SET w = :w", "big", w=1),
        changing("SET w = :w", "new", w="x" * 1000),
        put("big"),
        put("new", v="x" * 1000),
    ],
)
def test_a_transaction_counts_the_larger_of_each_item_before_and_after(db: Database, action: ItemCommand) -> None:
    db.execute(put("big", v="x" * 1000))
    rows = all_rows(db)
    with pytest.raises(TooLarge, match=r"^Transaction payload size cannot exceed 1000 bytes$"):
        db.execute(TransactWrite((put("a"), action), bytes_max=1000))
    assert all_rows(db) == rows
    db.execute(TransactWrite((put("a"), action), bytes_max=1100))


def test_commands_know_what_they_carry() -> None:
    assert put("a").size() == 3
    assert put("a", "attribute_exists(id)").size() == 3 + 1024
    assert DeleteItem("orders", key("a")).size() == CheckItem("orders", key("a")).size() == 1024
    large = changing("SET v = :v", v=1)
    large = UpdateItem("orders", large.key, large.update, request_bytes=5000)
    assert large.size() == 5000
    assert BatchWrite((put("a"), DeleteItem("orders", key("b")))).size() == 3 + 1024
    assert TransactWrite((put("a"), large)).size() == 3 + 5000


def test_what_is_heavy() -> None:
    small = put("a")
    assert not small.heavy()
    assert put("a", v="x" * limits.LOOP_BYTES).heavy()
    assert UpdateItem("orders", key("a"), request_bytes=limits.LOOP_BYTES + 1).heavy()
    assert not TransactWrite((small,) * limits.LOOP_ACTIONS).heavy()
    assert TransactWrite((small,) * (limits.LOOP_ACTIONS + 1)).heavy()
    assert TransactWrite((put("a", v="x" * limits.LOOP_BYTES),)).heavy()
    assert not BatchWrite((small,) * limits.LOOP_WRITES).heavy()
    assert BatchWrite((small,) * (limits.LOOP_WRITES + 1)).heavy()
    assert BatchWrite((put("a", v="x" * limits.LOOP_BYTES),)).heavy()

"""Tables are made, changed and deleted as DynamoDB does it, to the letter of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import limits
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.command import Command
from tailrace.database import Database
from tailrace.errors import Error, InUse, Invalid, LimitExceeded, NotFound, TableNotFound
from tailrace.storage.engine import Tx
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables import key as keys
from tailrace.tables import value, write
from tailrace.tables.change import Capture
from tailrace.tables.definition import ACTIVE, CREATING, Attribute, IndexDefinition, find
from tailrace.tables.lifecycle import (
    CreateTable,
    DeleteTable,
    DescribeTable,
    DescribeTimeToLive,
    ListTables,
    ListTags,
    SetTimeToLive,
    TableDescription,
    TagTable,
    UntagTable,
    UpdateTable,
)
from tailrace.tables.schema import (
    IndexChange,
    IndexSpec,
    IndexUpdate,
    KeyElement,
    ProjectionSpec,
    StreamSpec,
    TableChanges,
    TableSpec,
)

WRONG = "One or more parameter values were invalid: "


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with Database(SqliteEngine(data_dir), clock=ManualClock(), housekeeping_s=None) as db:
        yield db
    assert check_database(data_dir).findings == []


class Put(Command[None], frozen=True):
    """The smallest write of an item."""

    table: str
    item: dict[str, dict[str, Any]]

    def run(self, tx: Tx) -> None:
        definition = find(tx, self.table)
        plan = write.find(tx, definition, keys.item_key(definition, self.item), self.item)
        plan.new, plan.size = self.item, value.item_size(self.item)
        capture = Capture()
        write.do(tx, plan, capture)
        capture.append(tx)


def elements(text: str) -> tuple[KeyElement, ...]:
    """`a b` is a hash and a range; `a,b c,d` has two of each."""
    parts = [part.split(",") for part in text.split(" ")]
    return tuple(
        KeyElement(name, kind) for kind, names in zip(("HASH", "RANGE"), parts, strict=False) for name in names
    )


def attributes(text: str) -> tuple[Attribute, ...]:
    return tuple(Attribute(part[:-1], part[-1]) if part[-1] in "NB" else Attribute(part, "S") for part in text.split())


def table(name: str = "orders", defined: str = "a b", keys: str = "a b", **options: Any) -> TableSpec:
    options.setdefault("billing", "PAY_PER_REQUEST")
    return TableSpec(name=name, attributes=attributes(defined), keys=elements(keys), **options)


def index(name: str, keys: str, **options: Any) -> IndexSpec:
    return IndexSpec(name, elements(keys), **options)


def refused(db: Database, command: Command[Any], message: str, kind: type[Error] = Invalid) -> None:
    with pytest.raises(kind) as caught:
        db.execute(command)
    assert (type(caught.value), str(caught.value)) == (kind, message)


# -- create


def test_a_table_is_there_at_once(db: Database) -> None:
    spec = table(local=(index("byc", "a c"),), globals=(index("byd", "d"),), defined="a b cN d")
    made = db.execute(CreateTable(spec))
    assert made == db.execute(DescribeTable("orders"))
    definition = made.definition
    assert (definition.hash, definition.range, definition.kinds["c"]) == ("a", "b", "N")
    assert [(each.name, each.local, each.status) for each in definition.indexes] == [
        ("byc", True, ACTIVE),
        ("byd", False, ACTIVE),
    ]
    assert len({definition.space, *(each.space for each in definition.indexes)}) == 3
    assert (made.status, made.stream, made.counts[definition.space].items) == (ACTIVE, None, 0)
    assert definition.billing_ms == definition.created_ms


def test_a_table_is_provisioned_by_default(db: Database) -> None:
    made = db.execute(CreateTable(table(billing=None, throughput=(3, 4)))).definition
    assert (made.billing, made.throughput.read, made.throughput.write, made.billing_ms) == ("PROVISIONED", 3, 4, None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (table(billing=None), WRONG + "ReadCapacityUnits and WriteCapacityUnits must both be specified when "
         "BillingMode is PROVISIONED"),
        (table(throughput=(1, 1)), WRONG + "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
         "BillingMode is PAY_PER_REQUEST"),
        (table(billing=None, throughput=(10**12 + 1, 1)),
         "Given value 1000000000001 for ReadCapacityUnits is out of bounds"),
        (table(billing=None, throughput=(10**12, 10**12 + 1)),
         "Given value 1000000000001 for WriteCapacityUnits is out of bounds"),
        (table(defined="a", keys="a a"), "Invalid KeySchema: Some index key attribute have no definition"),
        (table(defined="b", keys="a"), WRONG + "Some index key attributes are not defined in AttributeDefinitions. "
         "Keys: [a], AttributeDefinitions: [b]"),
        (table(defined="a b", keys="a a"),
         "Both the Hash Key and the Range Key element in the KeySchema have the same name"),
        (TableSpec(name="orders", attributes=attributes("a b"), billing="PAY_PER_REQUEST",
              keys=(KeyElement("a", "RANGE"), KeyElement("b", "HASH"))),
         "Invalid KeySchema: The first KeySchemaElement is not a HASH key type"),
        (table(keys="a,b"), "Invalid KeySchema: The second KeySchemaElement is not a RANGE key type"),
        (table(keys="a"), WRONG + "Number of attributes in KeySchema does not exactly match number of attributes "
         "defined in AttributeDefinitions"),
        (table(defined="a aN", keys="a"), WRONG + "Duplicate AttributeName in AttributeDefinitions: a"),
        (table(local=()), WRONG + "List of LocalSecondaryIndexes is empty"),
        (table(globals=()), WRONG + "List of GlobalSecondaryIndexes is empty"),
        (table(keys="a", local=(index("abc", "a b"),)), WRONG + "Table KeySchema does not have a range key, which is "
         "required when specifying a LocalSecondaryIndex"),
        (table(local=(index("abc", "a"),)), WRONG + "Index KeySchema does not have a range key for index: abc"),
        (table(local=(index("abc", "b a"),)), WRONG + "Index KeySchema does not have the same leading hash key as "
         "table KeySchema for index: abc. index hash key: b, table hash key: a"),
        (table(local=(index("abc", "a c"),)), WRONG + "Some index key attributes are not defined in "
         "AttributeDefinitions. Keys: [a, c], AttributeDefinitions: [a, b]"),
        (table(local=tuple(index(f"abc{n}", "a b") for n in range(6))),
         WRONG + "Number of LocalSecondaryIndexes exceeds per-table limit of 5"),
        (table(globals=tuple(index(f"abc{n}", "a b") for n in range(21))),
         WRONG + "GlobalSecondaryIndex count exceeds the per-table limit of 20"),
        (table(local=(index("abc", "a b"),), globals=(index("abc", "b"),)), WRONG + "Duplicate index name: abc"),
        (table(globals=(index("abc", "b", projection=ProjectionSpec()),)), WRONG + "Unknown ProjectionType: null"),
        (table(globals=(index("abc", "b", projection=ProjectionSpec("ALL", ("x",))),)),
         WRONG + "ProjectionType is ALL, but NonKeyAttributes is specified"),
        (table(globals=(index("abc", "b", projection=ProjectionSpec("INCLUDE")),)),
         WRONG + "ProjectionType is INCLUDE, but NonKeyAttributes is not specified"),
        (table(globals=(index("abc", "b", throughput=(1, 1)),)), WRONG + "ProvisionedThroughput should not be "
         "specified for index: abc when BillingMode is PAY_PER_REQUEST"),
        (table(defined="a b c", globals=(index("abc", "b"),)), WRONG + "Some AttributeDefinitions are not used. "
         "AttributeDefinitions: [a, b, c], keys used: [a, b]"),
        (table(defined="a b c", globals=(index("abc", "c,a,c"),)),
         "Both the Hash Key and the Range Key element in the KeySchema have the same name"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be(db: Database, spec: TableSpec, message: str) -> None:
    refused(db, CreateTable(spec), message)
    assert db.execute(ListTables()).names == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("a,b,c,d,e", "HASH"),
        ("a b,c,d,e,f", "RANGE"),
    ],
)
def test_a_global_index_has_up_to_four_and_four_attributes(db: Database, keys: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        db.execute(CreateTable(table(defined="a b c d e f", globals=(index("abc", keys),))))
    made = db.execute(CreateTable(table(defined="a b c d e f g h", globals=(index("abc", "a,b,c,d e,f,g,h"),))))
    assert made.definition.indexes[0].hash == ("a", "b", "c", "d")
    assert made.definition.indexes[0].range == ("e", "f", "g", "h")


def test_hash_attributes_precede_range_attributes(db: Database) -> None:
    mixed = (KeyElement("a", "HASH"), KeyElement("b", "RANGE"), KeyElement("c", "HASH"))
    with pytest.raises(Invalid, match=r"HASH.*precede.*RANGE"):
        db.execute(CreateTable(table(defined="a b c", globals=(IndexSpec("abc", mixed),))))


def test_all_projections_together_name_a_hundred_attributes(db: Database) -> None:
    def including(count: int) -> tuple[IndexSpec, ...]:
        names = [f"x{n}" for n in range(count)]
        parts = [tuple(names[at : at + 20]) for at in range(0, count, 20)]
        return tuple(index(f"abc{n}", "b", projection=ProjectionSpec("INCLUDE", part)) for n, part in enumerate(parts))

    with pytest.raises(Invalid, match="101"):
        db.execute(CreateTable(table(globals=including(101))))
    assert len(db.execute(CreateTable(table(globals=including(100)))).definition.indexes) == 5


def test_a_name_is_taken_once(db: Database) -> None:
    db.execute(CreateTable(table()))
    refused(db, CreateTable(table()), "Table already exists: orders", InUse)


def test_there_are_so_many_tables_and_no_more(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TABLES_MAX", 2)
    db.execute(CreateTable(table("one")))
    db.execute(CreateTable(table("two")))
    with pytest.raises(LimitExceeded, match="Subscriber limit exceeded"):
        db.execute(CreateTable(table("three")))
    db.execute(DeleteTable("one"))
    db.execute(CreateTable(table("three")))


# -- delete, list


def test_a_deleted_table_leaves_nothing(db: Database) -> None:
    db.execute(CreateTable(table(globals=(index("byb", "b"),))))
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    db.execute(Put("orders", {"a": {"S": "x"}, "b": {"S": "y"}, "ttl": {"N": "1"}}))
    described = db.execute(DeleteTable("orders"))
    assert described.counts[described.definition.space].items == 1
    refused(db, DeleteTable("orders"), "Requested resource not found: Table: orders not found", TableNotFound)
    again = db.execute(CreateTable(table()))
    assert again.definition.space > described.definition.space
    assert again.counts[again.definition.space].items == 0


def test_a_protected_table_stays(db: Database) -> None:
    db.execute(CreateTable(table(protected=True)))
    refused(
        db,
        DeleteTable("orders"),
        "Resource cannot be deleted as it is currently protected against deletion. Disable deletion protection first.",
    )
    db.execute(UpdateTable("orders", TableChanges(protected=False)))
    db.execute(DeleteTable("orders"))


def test_tables_are_listed_in_order_and_in_pages(db: Database) -> None:
    for name in ("ccc", "aaa", "bbb"):
        db.execute(CreateTable(table(name)))
    first = db.execute(ListTables(limit=2))
    assert (first.names, first.last) == (["aaa", "bbb"], "bbb")
    rest = db.execute(ListTables(after=first.last, limit=2))
    assert (rest.names, rest.last) == (["ccc"], None)
    assert db.execute(ListTables(limit=3)).last is None


# -- update


def updated(db: Database, **changes: Any) -> TableDescription:
    return db.execute(UpdateTable("orders", TableChanges(**changes)))


def units(index: IndexDefinition) -> tuple[int, int]:
    assert index.throughput is not None
    return index.throughput.read, index.throughput.write


def test_an_update_must_change_something(db: Database) -> None:
    refused(
        db,
        UpdateTable("orders", TableChanges()),
        "At least one of ProvisionedThroughput, BillingMode, UpdateStreamEnabled, GlobalSecondaryIndexUpdates or "
        "SSESpecification or ReplicaUpdates is required",
    )
    missing = "Requested resource not found: Table: orders not found"
    refused(db, UpdateTable("orders", TableChanges(protected=True)), missing, TableNotFound)


def test_throughput_goes_up_and_down(db: Database) -> None:
    db.execute(CreateTable(table(billing=None, throughput=(1, 1))))
    up = updated(db, throughput=(2, 2)).definition.throughput
    assert (up.read, up.increased_ms, up.decreased_ms, up.decreases) == (2, up.increased_ms, None, 0)
    assert updated(db, throughput=(1, 2)).definition.throughput.decreases == 1
    assert updated(db, throughput=(1, 1)).definition.throughput.decreases == 2
    assert isinstance(db.clock, ManualClock)
    db.clock.advance(24 * 3600)
    updated(db, throughput=(5, 5))
    assert updated(db, throughput=(4, 4)).definition.throughput.decreases == 1
    refused(
        db,
        UpdateTable("orders", TableChanges(throughput=(4, 4))),
        "The provisioned throughput for the table will not change. The requested value equals the current value. "
        "Current ReadCapacityUnits provisioned for the table: 4. Requested ReadCapacityUnits: 4. "
        "Current WriteCapacityUnits provisioned for the table: 4. Requested WriteCapacityUnits: 4. "
        "Refer to the Amazon DynamoDB Developer Guide for current limits and how to request higher limits.",
    )


def test_billing_changes_there_and_back(db: Database) -> None:
    db.execute(CreateTable(table(billing=None, throughput=(1, 1), globals=(index("byb", "b", throughput=(2, 2)),))))
    paid = updated(db, billing="PAY_PER_REQUEST").definition
    assert (paid.billing, paid.throughput.read, units(paid.indexes[0])) == ("PAY_PER_REQUEST", 0, (0, 0))
    assert paid.billing_ms is not None
    assert updated(db, billing="PAY_PER_REQUEST").definition == paid
    refused(
        db,
        UpdateTable("orders", TableChanges(throughput=(1, 1))),
        WRONG + "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST",
    )
    refused(
        db,
        UpdateTable("orders", TableChanges(billing="PROVISIONED")),
        WRONG + "ProvisionedThroughput must be specified when BillingMode is PROVISIONED",
    )
    refused(
        db,
        UpdateTable("orders", TableChanges(billing="PROVISIONED", throughput=(1, 1))),
        WRONG + "ProvisionedThroughput must be specified for index: byb",
    )
    back = updated(
        db, billing="PROVISIONED", throughput=(1, 1), indexes=(IndexChange(update=IndexUpdate("byb", (3, 3))),)
    ).definition
    assert (back.billing, back.throughput.read, units(back.indexes[0])) == ("PROVISIONED", 1, (3, 3))


NEW = index("byc", "c")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ((IndexChange(),), Invalid, WRONG + "One of GlobalSecondaryIndexUpdate.Update, GlobalSecondaryIndexUpdate."
         "Create, GlobalSecondaryIndexUpdate.Delete must not be null"),
        ((IndexChange(create=NEW, delete="byb"),), Invalid, WRONG + "Only one of GlobalSecondaryIndexUpdate.Update, "
         "GlobalSecondaryIndexUpdate.Create, GlobalSecondaryIndexUpdate.Delete may be specified in one "
         "GlobalSecondaryIndexUpdate"),
        ((IndexChange(delete="byb"), IndexChange(delete="byb")), Invalid, WRONG + "Only one global secondary index "
         "update per index is allowed simultaneously. Index: byb"),
        ((IndexChange(delete="byb"), IndexChange(create=NEW)), LimitExceeded, "Subscriber limit exceeded: Only 1 "
         "online index can be created or deleted simultaneously per table"),
        ((IndexChange(delete="nope"),), NotFound, "Requested resource not found"),
        ((IndexChange(update=IndexUpdate("nope", (1, 1))),), NotFound, "Requested resource not found"),
        ((IndexChange(create=index("byb", "c")),), Invalid, "Attempting to create an index which already exists"),
        ((IndexChange(create=index("byd", "d")),), Invalid, WRONG + "Some index key attributes are not defined in "
         "AttributeDefinitions. Keys: [d], AttributeDefinitions: [c, b]"),
        ((IndexChange(create=index("again", "b")),), Invalid, WRONG + "Attributes cannot be redefined. Please check "
         "that your attribute has the same type as previously defined. Existing schema: Schema:[SchemaElement: "
         "key{b:S:HASH}] New schema: Schema:[SchemaElement: key{b:N:HASH}]"),
        ((IndexChange(update=IndexUpdate("byb", (10**12 + 1, 1))),), Invalid, "This operation cannot be performed "
         "with given input values. Please contact DynamoDB service team for more info: Action Blocked: IndexUpdate"),
    ],
)  # fmt: skip
def test_changes_of_indexes_that_cannot_be(
    db: Database, changes: tuple[IndexChange, ...], kind: type[Error], message: str
) -> None:
    before = db.execute(CreateTable(table(keys="a", globals=(index("byb", "b"),))))
    refused(db, UpdateTable("orders", TableChanges(attributes=attributes("c bN"), indexes=changes)), message, kind)
    assert db.execute(DescribeTable("orders")) == before


def test_an_index_over_items_is_filled_first(db: Database) -> None:
    db.execute(CreateTable(table(keys="a", defined="a")))
    empty = updated(db, attributes=attributes("b"), indexes=(IndexChange(create=index("byb", "b")),))
    assert (empty.status, empty.definition.indexes[0].status) == (ACTIVE, ACTIVE)
    db.execute(Put("orders", {"a": {"S": "x"}, "c": {"S": "y"}}))
    filling = updated(db, attributes=attributes("c zB"), indexes=(IndexChange(create=NEW),))
    assert (filling.status, filling.definition.by_name["byc"].status) == ("UPDATING", CREATING)
    assert [each.name for each in filling.definition.attributes] == ["a", "b", "c"]
    refused(
        db,
        UpdateTable(
            "orders", TableChanges(attributes=attributes("d"), indexes=(IndexChange(create=index("byd", "d")),))
        ),
        "Attempt to change a resource which is still in use: Table is being updated: orders",
        InUse,
    )
    db.sweep()
    filled = db.execute(DescribeTable("orders"))
    assert (filled.status, filled.counts[filled.definition.by_name["byc"].space].items) == (ACTIVE, 1)


def test_an_index_can_be_deleted_while_it_is_filled(db: Database) -> None:
    db.execute(CreateTable(table(keys="a", defined="a")))
    db.execute(Put("orders", {"a": {"S": "x"}, "c": {"S": "y"}}))
    updated(db, attributes=attributes("c"), indexes=(IndexChange(create=NEW),))
    gone = updated(db, indexes=(IndexChange(delete="byc"),)).definition
    assert (gone.indexes, [each.name for each in gone.attributes]) == ((), ["a"])
    db.execute(Put("orders", {"a": {"S": "z"}, "c": {"N": "1"}}))  # no key any more: of any type


def test_a_local_index_cannot_be_deleted(db: Database) -> None:
    db.execute(CreateTable(table(local=(index("byb", "a b"),))))
    with pytest.raises(Invalid, match="LocalSecondaryIndex"):
        updated(db, indexes=(IndexChange(delete="byb"),))


# -- change streams


def test_a_stream_is_enabled_and_disabled(db: Database) -> None:
    made = db.execute(CreateTable(table(stream=StreamSpec(enabled=True, view="NEW_IMAGE"))))
    assert made.stream is not None and made.definition.stream is not None
    assert (made.stream.view, made.stream.closed_ms) == ("NEW_IMAGE", None)
    refused(
        db,
        UpdateTable("orders", TableChanges(stream=StreamSpec(enabled=True, view="KEYS_ONLY"))),
        "Table already has an enabled stream: TableName: orders",
    )
    off = updated(db, stream=StreamSpec(enabled=False))
    assert off.definition.stream is None
    assert off.stream is not None and off.stream.closed_ms is not None
    with pytest.raises(Invalid, match=r"stream.*disable"):
        updated(db, stream=StreamSpec(enabled=False))
    assert isinstance(db.clock, ManualClock)
    db.clock.advance(1)
    on = updated(db, stream=StreamSpec(enabled=True, view="KEYS_ONLY"))
    assert on.stream is not None and on.stream.label > off.stream.label


def test_the_stream_of_a_deleted_table_is_not_its_successors(db: Database) -> None:
    db.execute(CreateTable(table(stream=StreamSpec(enabled=True, view="NEW_IMAGE"))))
    db.execute(DeleteTable("orders"))
    assert db.execute(CreateTable(table())).stream is None


def test_a_stream_needs_a_view(db: Database) -> None:
    with pytest.raises(Invalid, match="StreamViewType"):
        db.execute(CreateTable(table(stream=StreamSpec(enabled=True))))
    with pytest.raises(Invalid, match="StreamViewType"):
        db.execute(CreateTable(table(stream=StreamSpec(enabled=True, view="SOME"))))


# -- time to live


def test_time_to_live_is_set_once(db: Database) -> None:
    db.execute(CreateTable(table()))
    refused(db, SetTimeToLive("orders", "ttl", enabled=False), "TimeToLive is already disabled")
    assert db.execute(DescribeTimeToLive("orders")).status == "DISABLED"
    db.execute(SetTimeToLive("orders", "ttl", enabled=True))
    found = db.execute(DescribeTimeToLive("orders"))
    assert (found.status, found.attribute) == ("ENABLED", "ttl")
    refused(db, SetTimeToLive("orders", "ttl", enabled=True), "TimeToLive is already enabled")
    for enabled in (True, False):
        refused(
            db,
            SetTimeToLive("orders", "dog", enabled=enabled),
            "TimeToLive is active on a different AttributeName: current AttributeName is ttl",
        )
    db.execute(SetTimeToLive("orders", "ttl", enabled=False))
    assert db.execute(DescribeTimeToLive("orders")).attribute is None
    with pytest.raises(Invalid, match="length"):
        db.execute(SetTimeToLive("orders", "x" * 256, enabled=True))


# -- tags


def test_tags_are_added_replaced_and_removed(db: Database) -> None:
    db.execute(CreateTable(table(tags={"env": "test"})))
    db.execute(TagTable("orders", {"env": "live", "team": "Möwe 7"}))
    assert db.execute(ListTags("orders")) == {"env": "live", "team": "Möwe 7"}
    db.execute(UntagTable("orders", ("env", "never")))
    assert db.execute(ListTags("orders")) == {"team": "Möwe 7"}


@pytest.mark.parametrize(
    "tags",
    [{}, {"": "x"}, {"x" * 129: "x"}, {"x": "x" * 257}, {"ok": "#!"}, {"->>;": "ok"}, {"aws:x": "y"},
     {str(n): "x" for n in range(50)}],
)  # fmt: skip
def test_tags_that_cannot_be(db: Database, tags: dict[str, str]) -> None:
    db.execute(CreateTable(table(tags={"one": "more"})))
    with pytest.raises(Invalid):
        db.execute(TagTable("orders", tags))
    assert db.execute(ListTags("orders")) == {"one": "more"}

"""Sources of topics: names, several events, replacement, existing rows, and who made the change; aliases and partitions
that change while a topic is in use."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace.access import EVERYTHING, Principal
from tailrace.check import check_database
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.errors import Conflict, InUse, Invalid, NotFound
from tailrace.jobs.partitions import AddPartitions
from tailrace.tables import definition as tables
from tailrace.tables import sweep
from tailrace.tables.commands import PutItem
from tailrace.tables.definition import TopicRoute
from tailrace.topics.commands import AlterTopic, CreateTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.queries import FindTopic, ListRoutes, ReadTopic
from tailrace.topics.topic import OPERATIONS
from tests.support.patience import PATIENCE_S


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, clock=ManualClock(), housekeeping_s=None) as opened:
        opened.create_table("orders", partition_key="id", stream="NEW_AND_OLD_IMAGES")
        opened.create_table("returns", partition_key="id")
        opened.sql("CREATE TOPIC news")
        yield opened
    assert check_database(data_dir).findings == []


def messages_of(db: Database, topic: str = "news", partition: int = 0) -> list[tuple[str, Any]]:
    messages = db.execute(ReadTopic(topic, partition, limit=10_000)).messages
    return [(OPERATIONS[each.envelope.operation], msgspec.json.decode(each.envelope.payload)) for each in messages]


# -- names and events


def test_a_source_has_several_events_and_a_name(db: Database) -> None:
    db.sql("ALTER TOPIC news ADD SOURCE orders AS paid ON INSERT, UPDATE WHERE (status = 'paid')")
    orders = db.table("orders")
    orders.put({"id": "a", "status": "new"})
    orders.put({"id": "a", "status": "paid"})
    orders.put({"id": "b", "status": "paid"})
    orders.delete("b")
    assert messages_of(db) == [("Update", {"id": "a"}), ("Insert", {"id": "b"})]
    rows = db.sql("SELECT name, op, backfill FROM system.topic_routes ORDER BY op").rows
    assert [tuple(row.values()) for row in rows] == [("paid", "Insert", False), ("paid", "Update", False)]
    assert db.sql("ALTER TOPIC news DROP SOURCE orders AS paid").facts["dropped"] == 2
    with pytest.raises(NotFound):
        db.sql("ALTER TOPIC news DROP SOURCE orders AS paid")


def test_a_source_is_replaced_by_its_name_in_one_statement(db: Database) -> None:
    db.sql("ALTER TOPIC news ADD SOURCE orders AS big ON INSERT OR DELETE WHERE (total > 10)")
    db.sql("ALTER TOPIC news ADD SOURCE orders ON INSERT WHERE (id = 'always')")
    with pytest.raises(Conflict, match="ADD OR REPLACE"):
        db.sql("ALTER TOPIC news ADD SOURCE returns AS big ON INSERT")
    found = db.sql("ALTER TOPIC news ADD OR REPLACE SOURCE returns AS big ON INSERT")
    assert found.facts["replaced"] == 2
    db.table("orders").put({"id": "o", "total": 11})
    db.table("orders").put({"id": "always", "total": 1})
    db.table("returns").put({"id": "r"})
    assert messages_of(db) == [("Insert", {"id": "always"}), ("Insert", {"id": "r"})]
    assert {(info.table, info.route.name) for info in db.execute(ListRoutes())} == {
        ("orders", None),
        ("returns", "big"),
    }


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ADD OR REPLACE SOURCE orders ON INSERT", "AS and the name"),
        ("ADD SOURCE orders ON INSERT, INSERT", "INSERT is given twice"),
        ("ADD SOURCE orders AS x ON", "INSERT, UPDATE or DELETE"),
        ("ADD SOURCE orders ON UPDATE WITH (backfill = true)", "needs ON INSERT"),
        ("ADD SOURCE orders ON INSERT WITH (backfill = 1)", "TRUE or FALSE"),
        ("ADD SOURCE orders AS 'a b' ON INSERT", "not a valid name for a source"),
    ],
)
def test_refused_sources(db: Database, statement: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        db.sql(f"ALTER TOPIC news {statement}")
    assert db.execute(ListRoutes()) == []


def test_a_filter_knows_who_made_the_change(db: Database) -> None:
    db.sql("CREATE TABLE typed (id TEXT PRIMARY KEY)")
    db.sql("ALTER TOPIC news ADD SOURCE typed ON INSERT WHERE (NEW._by <> 'import')")
    for number, name in enumerate(("ann", "import", "bob")):
        item = {"id": {"S": str(number)}}
        db.execute(PutItem("typed", item, 3), Principal(name, EVERYTHING))
    assert messages_of(db) == [("Insert", {"id": "0"}), ("Insert", {"id": "2"})]


# -- rows that were there before


def test_existing_rows_are_sent_once_and_before_their_changes(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random writes between the steps of the backfill: a reader that applies the messages has the table, and each row
    that was there came first as it was then, exactly once."""
    monkeypatch.setattr(sweep.limits, "SWEEP_ITEMS", 3)
    rng = random.Random(7)
    orders = db.table("orders")
    for round_ in range(6):
        topic = f"copy{round_}"
        db.execute(CreateTopic(topic))
        present = {f"k{number:02d}": {"id": f"k{number:02d}", "n": rng.randrange(9)} for number in range(20)}
        for key in list(orders.scan()):
            orders.delete(key["id"])
        for item in present.values():
            orders.put(item)
        before = dict(present)
        db.sql(
            f"ALTER TOPIC {topic} ADD SOURCE orders ON INSERT, UPDATE, DELETE WITH (payload = 'full', backfill = true)"
        )
        steps = 0
        while any(info.route.backfill for info in db.execute(ListRoutes(topic))):
            for _ in range(rng.randrange(4)):
                key = f"k{rng.randrange(25):02d}"
                if rng.random() < 0.3:
                    orders.delete(key)
                    present.pop(key, None)
                else:
                    present[key] = {"id": key, "n": rng.randrange(9)}
                    orders.put(present[key])
            db.execute(_only_step(db))
            steps += 1
        assert steps > 2
        replica: dict[str, Any] = {}
        first: dict[str, Any] = {}
        for operation, row in messages_of(db, topic):
            first.setdefault(row["id"], (operation, row))
            assert operation != "Insert" or row["id"] not in replica, "a row was sent twice"
            if operation == "Delete":
                del replica[row["id"]]
            else:
                replica[row["id"]] = row
        assert replica == present
        for key, row in before.items():
            assert first[key] == ("Insert", row)


def _only_step(db: Database) -> Any:
    from tailrace.topics.backfill import BackfillRoute

    (space,) = {info.route.backfill for info in db.execute(ListRoutes()) if info.route.backfill}
    return BackfillRoute(space)


def test_housekeeping_sends_existing_rows(db: Database) -> None:
    orders = db.table("orders")
    for number in range(5):
        orders.put({"id": str(number), "status": "new" if number % 2 else "paid"})
    result = db.sql("ALTER TOPIC news ADD SOURCE orders ON INSERT WHERE (status = 'new') WITH (backfill = true)")
    assert "already" in result.message
    db.sweep()
    assert messages_of(db) == [("Insert", {"id": "1"}), ("Insert", {"id": "3"})]
    assert not any(info.route.backfill for info in db.execute(ListRoutes()))
    db.sweep()


@pytest.mark.parametrize("statement", ["ALTER TOPIC news DROP SOURCE orders", "DROP TOPIC news", "DROP TABLE orders"])
def test_a_backfill_ends_with_its_source(db: Database, statement: str) -> None:
    db.table("orders").put({"id": "a"})
    db.sql("ALTER TOPIC news ADD SOURCE orders ON INSERT WITH (backfill = true)")
    db.table("orders").put({"id": "a", "n": 1})  # leaves a mark
    db.sql(statement)
    db.sweep()
    db.sweep()


# -- declared columns

DECLARED = "CREATE TABLE visits (id TEXT PRIMARY KEY, ts TIMESTAMP, Day DATE, N BIGINT, Cust TEXT)"
VISIT = "INSERT INTO visits VALUES ('1', '2026-01-02 03:04:05', '2026-01-02', 1, 'ada')"


@pytest.mark.parametrize(
    "where",
    [
        "n = 1",
        "NEW.n = 1",
        "ts < '2026-01-02 04:00:00'",
        "ts = '2026-01-02 03:04:05'",
        "ts = '2026-01-02T05:04:05+02:00'",
        "NEW.TS BETWEEN '2026-01-02 03:00:00' AND '2026-01-02 04:00:00'",
        "ts IN ('2026-01-02 03:04:05', '2026-01-03')",
        "NOT (ts > '2026-01-02 04:00:00')",
        "extract(hour FROM ts) = 3",
        "day = DATE '2026-01-02' AND cust = 'ada' AND _by <> 'x'",
    ],
)
@pytest.mark.parametrize("backfill", [False, True])
def test_a_filter_reads_declared_columns_as_update_does(db: Database, where: str, backfill: bool) -> None:
    db.sql(DECLARED)
    source = f"ALTER TOPIC news ADD SOURCE visits ON INSERT WHERE ({where.replace('_by', 'id' if backfill else '_by')})"
    for statement in (VISIT, source + " WITH (backfill = true)") if backfill else (source, VISIT):
        db.sql(statement)
    db.sweep()
    assert messages_of(db) == [("Insert", {"id": "1"})]


def test_a_partition_key_names_columns_in_any_case(db: Database) -> None:
    db.sql(DECLARED)
    for name, column in (("exact", "Cust"), ("other", "cust")):
        db.sql(f"CREATE TOPIC {name} PARTITIONS 8")
        db.sql(f"ALTER TOPIC {name} ADD SOURCE visits ON INSERT PARTITION BY ({column})")
    for number in range(20):
        db.sql("INSERT INTO visits (id, cust) VALUES (?, ?)", [str(number), f"c{number}"])
    found = [[messages_of(db, name, partition) for partition in range(8)] for name in ("exact", "other")]
    assert found[0] == found[1]
    assert sum(map(bool, found[1])) > 4


def test_a_route_follows_the_columns_of_its_table(db: Database) -> None:
    db.sql(DECLARED)
    db.sql("ALTER TOPIC news ADD SOURCE visits ON INSERT, UPDATE WHERE (n = 1 AND ts < '2026-02-01 00:00:00')")
    db.sql(VISIT)
    for statement in (
        "ALTER TABLE visits DROP COLUMN n",
        "ALTER TABLE visits RENAME COLUMN N TO number",
        "ALTER TABLE visits RENAME COLUMN TS TO at",
    ):
        with pytest.raises(Invalid) as raised:
            db.sql(statement)
        assert raised.value.code == "COLUMN_USED" and "route" in str(raised.value)
    db.sql("ALTER TABLE visits ADD COLUMN seen BOOLEAN DEFAULT false")  # changes the row: an update
    db.sql("ALTER TABLE visits RENAME COLUMN cust TO customer")
    db.sql("ALTER TABLE visits DROP COLUMN day")
    assert [event for event, _ in messages_of(db)] == ["Insert", "Update", "Update", "Update"]
    db.sql("INSERT INTO visits (id, ts, n) VALUES ('2', '2026-01-31 23:00:00', 1), ('3', '2026-02-01 00:00:00', 1)")
    assert messages_of(db)[4:] == [("Insert", {"id": "2"})]


def test_a_filter_of_an_earlier_version_fails_no_write(db: Database) -> None:
    """One that is refused for the declared columns today reads the stored values, as it did."""
    db.sql(DECLARED)

    class StoreRoute(tailrace.database.Command[None], frozen=True):
        def run(self, tx: Any) -> None:
            topic = db.execute(FindTopic("news")).id
            definition = tables.find(tx, "visits")
            route = TopicRoute(topic, 0, "ts >= 'a time' OR N = 1", None, 0)
            tables.save(tx, msgspec.structs.replace(definition, routes=(route,)))

    db.execute(StoreRoute())
    db.sql(VISIT)
    assert messages_of(db) == [("Insert", {"id": "1"})]
    db.sql("ALTER TABLE visits DROP COLUMN cust")
    with pytest.raises(Invalid, match="route"):
        db.sql("ALTER TABLE visits DROP COLUMN ts")


# -- aliases and partitions


def test_an_alias_moves_and_wakes_those_who_wait(db: Database) -> None:
    db.sql("CREATE TOPIC one WITH (alias = 'live'); CREATE TOPIC two")
    with pytest.raises(InUse):
        db.sql("ALTER TOPIC two SET ALIAS live")
    got: list[Any] = []

    def wait() -> None:
        got.append(db.consume("live", "workers", timeout_s=PATIENCE_S))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not len(db.tail):
        threading.Event().wait(0.01)
    db.sql("ALTER TOPIC two SET ALIAS live FORCE")
    db.execute(Publish("live", (Outgoing(b"moved"),)))
    waiting.join(PATIENCE_S)
    assert [message.payload for message in got[0]] == [b"moved"]
    assert (db.execute(FindTopic("live")).name, db.execute(FindTopic("one")).alias) == ("two", None)
    with pytest.raises(InUse):  # a name is not taken away
        db.execute(AlterTopic("two", TopicOptions(alias="one"), force=True))


def test_partitions_are_added_and_consumed(db: Database) -> None:
    keys = [f"key{number}".encode() for number in range(40)]
    db.execute(Publish("news", tuple(Outgoing(key, key) for key in keys)))
    db.execute(CreateTopic("between"))  # so that the logs are not numbered one after the other
    db.sql("ALTER TOPIC news SET PARTITIONS 3")
    db.sql("ALTER TOPIC news SET PARTITIONS 4")
    topic = db.execute(FindTopic("news"))
    assert topic.partitions == 4 and len({topic.log_of(partition) for partition in range(4)}) == 4
    db.execute(Publish("news", tuple(Outgoing(key, key) for key in keys)))
    counts = [len(db.execute(ReadTopic("news", partition)).messages) for partition in range(4)]
    assert sum(counts) == 80 and counts[0] >= 40 and all(counts)
    got: set[tuple[int, int]] = set()
    while page := db.consume("news", "workers", partition="any", limit=10).messages:
        got |= {(message.partition, message.offset) for message in page}
    assert len(got) == 80
    db.sql("ALTER TOPIC news ADD SOURCE orders ON INSERT")
    for number in range(20):
        db.table("orders").put({"id": str(number)})
    assert sum(len(db.execute(ReadTopic("news", each)).messages) for each in range(4)) == 100
    for wrong in (3, 100_000):
        with pytest.raises(Invalid, match="never removed"):
            db.execute(AddPartitions("news", wrong))


def test_a_waiting_consumer_gets_messages_of_added_partitions(db: Database) -> None:
    got: list[Any] = []
    waiting = threading.Thread(
        target=lambda: got.append(db.consume("news", "workers", partition="any", timeout_s=PATIENCE_S))
    )
    waiting.start()
    while not len(db.tail):
        threading.Event().wait(0.01)
    db.execute(AddPartitions("news", 2))
    db.execute(Publish("news", (Outgoing(b"there", partition=1),)))
    waiting.join(PATIENCE_S)
    assert [(message.partition, message.payload) for message in got[0]] == [(1, b"there")]

"""Writes the rows that the current version makes: ``python -m tests.migration.rows``.

Run once for each version, when it is released; from then on the file is what old databases hold, and stays.
"""

from __future__ import annotations

import base64
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import msgspec

from tailrace.auth.keys import CreateAccessKey
from tailrace.auth.users import CreateUser
from tailrace.clock import ManualClock
from tailrace.database import Database
from tailrace.jobs.commands import CommitStages, PauseJob, PinPositions, RegisterJob, ReportJob, StageRows
from tailrace.jobs.queries import FindTarget
from tailrace.jobs.stage import Target
from tailrace.jobs.target import checked
from tailrace.jobs.tiering import AttachTier, MoveTiered
from tailrace.storage.modes import write_private
from tailrace.storage.sqlite import FILE, SqliteEngine, migrations
from tailrace.storage.vault import FILE as KEY_FILE
from tailrace.streams.commands import Append, CreateStream, DeleteStream, Fork
from tailrace.streams.producer import ProducerClaim
from tailrace.subscriptions.commands import PutSubscription
from tailrace.subscriptions.subscription import SubscriptionSettings
from tailrace.tables import change_stream, schema, value
from tailrace.tables import cursors as named
from tailrace.tables.commands import DeleteItem, PutItem, TransactWrite
from tailrace.tables.definition import Attribute
from tailrace.tables.lifecycle import CreateTable, DeleteTable, SetTimeToLive, UpdateTable
from tailrace.topics.commands import AddSource, CreateTopic, DropTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume, Nack
from tests.support.sealed import seal

HERE = Path(__file__).parent
STREAMS = ["closed", "fork", "json", "retained", "source", "ttl"]
TABLES = ["lines", "orders"]
KEY = base64.b64encode(bytes(range(32))) + b"\n"  # what the secrets among the rows are encrypted with


def rows_file(version: int) -> Path:
    return HERE / f"rows_{version:04d}.sql"


def fill(directory: str) -> None:
    """One of everything: streams of each kind, a fork, a producer, a trimmed and a dropped log, a subscription; tables
    with items of each type, indexes (one being filled), expiry and change streams (one closed), what a dropped table
    leaves, a cursor, a token, an access key; topics with routes, messages and a group; a user; a tiered
    stream, a job, rows that are staged. Some entries are sealed, others are not."""
    clock = ManualClock()
    write_private(Path(directory) / KEY_FILE, KEY)
    db = Database(SqliteEngine(directory), clock=clock, housekeeping_s=None)
    do = db.execute
    do(CreateStream("source", "text/plain", b"first"))
    clock.advance(1)
    do(Append("source", b"second", "text/plain", ProducerClaim("writer", 0, 0), seq="a"))
    do(Append("source", b"third", "text/plain", ProducerClaim("writer", 0, 1), seq="b"))
    do(CreateStream("fork", fork=Fork("source", 5)))
    do(Append("fork", b" branch", "text/plain"))
    do(CreateStream("json", "application/json", '[{"n":1},"ä"]'.encode()))
    do(Append("json", b"[2,3]", "application/json"))
    do(CreateStream("closed", "application/octet-stream", b"\0\xff", closed=True))
    do(CreateStream("ttl", "text/plain", b"x", ttl_s=10**9))
    do(CreateStream("retained", "text/plain", b"0123456789", max_age_s=10**9, max_bytes=4))
    do(Append("retained", b"abcd", "text/plain"))
    settings = SubscriptionSettings(kind="pull-wake", streams=("source", "ttl"), wake_stream="json")
    do(PutSubscription("workers", settings, "http://localhost:4437"))
    make_topics(db)
    fill_tables(db)
    fill_topics(db)
    db.sweep()
    do(CreateStream("gone", "text/plain", b"x"))
    do(DeleteStream("gone"))
    leave_work(db)
    seal(db, 5, steps=3)
    fill_jobs(db)
    db.close()


def put(table: str, **item: Any) -> PutItem:
    return PutItem(table, *value.item_from_plain(item))


def index(name: str, *keys: str) -> schema.IndexSpec:
    elements = [schema.KeyElement(key, role) for key, role in zip(keys, ("HASH", "RANGE"), strict=False)]
    return schema.IndexSpec(name, tuple(elements))


def fill_tables(db: Database) -> None:
    do = db.execute
    kinds = {"id": "S", "number": "N", "status": "S", "total": "N", "code": "B"}
    attributes = {name: Attribute(name, kind) for name, kind in kinds.items()}
    orders = schema.TableSpec(
        name="orders",
        attributes=(attributes["id"], attributes["status"], attributes["total"]),
        keys=(schema.KeyElement("id", "HASH"),),
        globals=(index("by-status", "status", "total"),),
        billing=schema.PAY_PER_REQUEST,
        stream=schema.StreamSpec(True, "NEW_AND_OLD_IMAGES", None, 1000),
        tags={"team": "sales"},
    )
    lines = schema.TableSpec(
        name="lines",
        attributes=(attributes["id"], attributes["number"], attributes["code"]),
        keys=(schema.KeyElement("id", "HASH"), schema.KeyElement("number", "RANGE")),
        local=(index("by-code", "id", "code"),),
        throughput=(5, 5),
        stream=schema.StreamSpec(True, "KEYS_ONLY"),
    )
    do(CreateTable(orders))
    do(CreateTable(lines))
    do(AddSource("app.places", "orders", 0, "total > 1", "status", 1))
    do(SetTimeToLive("orders", "until", True))
    do(put("orders", id="o-1", status="paid", total=12, until=4_000_000_000))
    nested = {"list": [None, True, b"x"]}
    do(put("orders", id="o-2", status="open", total=Decimal("0.5"), tags={"a", "b"}, nested=nested))
    do(put("orders", id="o-1", status="sent", total=12, until=4_000_000_000))
    do(put("orders", id="o-3"))
    do(DeleteItem("orders", value.item_from_plain({"id": "o-3"})[0]))
    actions = (put("orders", id="o-4", status="open", total=1), put("lines", id="o-4", number=1, code=b"\0\xff"))
    do(TransactWrite(actions, "token-1", b"digest"))
    do(put("lines", id="o-4", number=Decimal("-1.5")))
    do(change_stream.DisableStream("lines"))
    do(change_stream.EnableStream("lines", "NEW_IMAGE"))
    do(put("lines", id="o-4", number=2))
    do(named.SaveCursor("orders", "mailer", 2, 1_000_000))
    do(CreateAccessKey("somebody", "dba"))


def make_topics(db: Database) -> None:
    db.execute(CreateTopic("dead"))
    options = TopicOptions(alias="app.p", retention_seconds=10**9, max_attempts=5, dead_letter="dead")
    db.execute(CreateTopic("app.places", 2, options))


def fill_topics(db: Database) -> None:
    do = db.execute
    do(Publish("app.p", tuple(Outgoing(b"%d" % at, partition=0) for at in range(10)), ProducerClaim("publisher", 1, 0)))
    do(Consume("app.places", "workers", limit=4, consumer="ann"))
    do(Consume("app.places", "workers", limit=4, consumer="bob"))
    do(Ack("app.places", "workers", 6, consumer="bob"))
    do(Nack("app.places", "workers", consumer="ann", first=2, upto=3))
    do(CreateTopic("gone"))
    do(Publish("gone", (Outgoing(b"x"),)))
    do(DropTopic("gone"))
    do(CreateUser(name="ann", role="service", access=("topics/app.*",)))


def fill_jobs(db: Database) -> None:
    """A stream with a part marked as being in cold storage, a job's position, a committed and a waiting stage."""
    source = Target("streams", "source")
    (tier,) = db.execute(AttachTier(source))
    db.execute(MoveTiered("streams", 1, {tier.log: (0, 5)}))
    db.execute(RegisterJob("copy", "replicate", "stream json", "stream closed", msgspec.msgpack.encode({"every": 5})))
    db.execute(PinPositions("copy", {tier.log: 3}))
    db.execute(ReportJob("copy", "running", 12, "all is well"))
    db.execute(PauseJob("copy"))
    for query in ("first", None):
        found = db.execute(FindTarget(source))
        rows = checked(found, msgspec.msgpack.encode([b"staged"]))
        staged = db.execute(StageRows(source, found.number, rows.rows, rows.body))
        if query is not None:
            db.execute(CommitStages(query, 7, source, (staged.stage.id,)))


def leave_work(db: Database) -> None:
    """What the sweep has not come to: a table that was dropped, an index that is being filled."""
    attributes = (Attribute("id", "S"),)
    keys = (schema.KeyElement("id", "HASH"),)
    db.execute(CreateTable(schema.TableSpec(name="gone", attributes=attributes, keys=keys, throughput=(1, 1))))
    db.execute(put("gone", id="x"))
    db.execute(DeleteTable("gone"))
    changes = schema.TableChanges(
        attributes=(Attribute("until", "N"),), indexes=(schema.IndexChange(create=index("by-until", "until")),)
    )
    db.execute(UpdateTable("orders", changes))


def text(directory: str, version: int) -> str:
    connection = apsw.Connection(f"{directory}/{FILE}")
    lines = [f"-- Rows as schema version {version} wrote them; see rows.py.", ""]
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")]
    for name in names:
        for row in connection.execute(f"SELECT * FROM {name}"):
            values = ", ".join(apsw.format_sql_value(value) for value in row)
            lines.append(f"INSERT INTO {name} VALUES ({values});")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        rows_file(len(migrations())).write_text(text(directory, len(migrations())))

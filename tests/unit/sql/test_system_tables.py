"""The system tables: their contents, and their columns in docs/reference/select.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace
from tailrace import Database, limits
from tailrace.auth.users import CreateUser
from tailrace.sql import select as selecting
from tailrace.sql import sources, workers
from tailrace.sql.arrow import type_name
from tailrace.sql.commands import AllTables
from tailrace.sql.functions import FUNCTIONS
from tailrace.sql.select import select
from tailrace.sql.system import SYSTEM_TABLES, AllStreams
from tailrace.streams.commands import Append, CreateStream, DeleteStream
from tailrace.topics.commands import AddSource, CreateTopic, Outgoing, Publish, TopicOptions
from tailrace.topics.consuming import Ack, Consume

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "select.md"


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        yield db


def rows(db: Database, text: str) -> list[dict[str, Any]]:
    return select(lambda request: db.execute(request), text).rows


@pytest.mark.parametrize("name", SYSTEM_TABLES)
def test_a_system_table_has_its_columns_also_where_there_is_nothing(db: Database, name: str) -> None:
    result = select(lambda request: db.execute(request), f"SELECT * FROM system.{name}")
    expected = [(column, type_name(type_)) for column, type_ in SYSTEM_TABLES[name].columns]
    assert [(column.name, column.type) for column in result.columns] == expected
    assert result.rows == []


def test_topics_and_their_routes(db: Database) -> None:
    db.create_table("chat.messages", partition_key="id")
    db.execute(CreateTopic("app.dead"))
    options = TopicOptions(
        alias="news", retention_seconds=60, retention_max_bytes=1_000, max_attempts=3, dead_letter="app.dead"
    )
    topic = db.execute(CreateTopic("app.news", 2, options)).topic
    db.execute(AddSource("app.news", "chat.messages", 0, "role = 'user'", "id", 1))
    db.execute(AddSource("news", "chat.messages", 2))
    (news,) = rows(db, "SELECT * FROM system.topics WHERE name = 'app.news'")
    routes = msgspec.json.decode(news.pop("routes"))
    assert news.pop("created_at").endswith("Z")
    assert news == {
        "topic_id": str(topic.id), "name": "app.news", "alias": "news", "partitions": 2, "retention_seconds": 60,
        "retention_max_bytes": 1_000, "max_attempts": 3, "dead_letter": "app.dead", "created_by": "system",
    }  # fmt: skip
    insert = {
        "table_id": "chat.messages", "op": "Insert", "payload_mode": "Full", "filter_expr": "role = 'user'",
        "partition_key_expr": "id", "name": None, "backfill": False,
    }  # fmt: skip
    delete = {
        "table_id": "chat.messages", "op": "Delete", "payload_mode": "Key", "filter_expr": None,
        "partition_key_expr": None, "name": None, "backfill": False,
    }  # fmt: skip
    assert routes == [insert, delete]
    listed = rows(db, "SELECT * FROM system.topic_routes ORDER BY op DESC")
    assert listed == [{"topic_id": str(topic.id), "topic": "app.news", **each} for each in (insert, delete)]


def test_groups_offsets_and_partitions(db: Database) -> None:
    topic = db.execute(CreateTopic("app.news", 2)).topic
    db.execute(Publish("app.news", tuple(Outgoing(b"x", None, 1) for _ in range(10))))
    db.execute(Consume("app.news", "workers", 1, limit=6, consumer="one"))
    offsets = "SELECT last_acked_offset, next_offset FROM system.topic_offsets"
    assert rows(db, offsets) == [{"last_acked_offset": -1, "next_offset": 6}]
    db.execute(Ack("app.news", "workers", 3, 1, "one"))
    (place,) = rows(db, "SELECT * FROM system.topic_offsets")
    assert place.pop("updated_at")
    assert place == {
        "topic_id": str(topic.id), "topic": "app.news", "group_id": "workers", "partition_id": 1,
        "last_acked_offset": 3, "next_offset": 6,
    }  # fmt: skip
    (group,) = rows(db, "SELECT * FROM system.topic_groups")
    assert group.pop("updated_at") >= group.pop("created_at")
    assert group == {
        "topic_id": str(topic.id), "topic": "app.news", "group_id": "workers", "partition_id": 1,
        "lag": 6, "in_flight": 2, "pending": 0, "delivered": 6, "redelivered": 0, "lost": 0, "consumers": '["one"]',
    }  # fmt: skip
    empty, full = rows(db, "SELECT * FROM system.topic_partitions ORDER BY partition_id")
    assert (empty["messages"], empty["bytes"], empty["last_message_at"]) == (0, 0, None)
    assert (full["start_offset"], full["next_offset"], full["messages"]) == (0, 10, 10)
    assert full["bytes"] > 0
    assert full["last_message_at"]


def test_tables(db: Database) -> None:
    db.create_table("orders", partition_key="id", stream="NEW_IMAGE", ttl="expires").put({"id": "a"})
    db.create_table("events", partition_key="user", sort_key=("at", "N"))
    events, orders = rows(db, "SELECT * FROM system.tables ORDER BY name")
    assert (events["partition_key"], events["sort_key"], events["sort_key_type"]) == ("user", "at", "N")
    assert (events["items"], events["stream_view"], events["columns"]) == (0, None, "[]")
    assert (orders["items"], orders["stream_view"], orders["ttl_attribute"]) == (1, "NEW_IMAGE", "expires")
    assert (orders["status"], orders["sort_key"]) == ("ACTIVE", None)
    assert orders["bytes"] > 0


def test_streams(db: Database) -> None:
    db.execute(CreateStream("docs/a", "text/plain", ttl_s=60))
    db.execute(Append("docs/a", b"hello", "text/plain"))
    db.execute(CreateStream("docs/gone", "text/plain"))
    db.execute(DeleteStream("docs/gone"))
    (stream,) = rows(db, "SELECT * FROM system.streams")
    assert (stream["path"], stream["content_type"], stream["closed"]) == ("docs/a", "text/plain", False)
    assert (stream["start_position"], stream["next_position"], stream["ttl_seconds"]) == (0, 5, 60)
    assert stream["expires_at"] > stream["created_at"]


def test_users_without_what_is_kept_of_their_passwords(db: Database) -> None:
    db.execute(CreateUser(name="ann", role="service", password="$argon2id$hush", access=("tables/orders",)))
    (user,) = rows(db, "SELECT * FROM system.users")
    assert (user["name"], user["role"], user["access"], user["disabled"]) == (
        "ann",
        "service",
        '["tables/orders"]',
        False,
    )
    assert "argon2" not in str(user)


def test_more_tables_and_streams_than_one_page_are_all_listed(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(7):
        db.create_table(f"table-{number}", partition_key="id")
        db.execute(CreateStream(f"docs/{number}", "text/plain"))

    def execute(request: Any) -> Any:
        if isinstance(request, AllTables | AllStreams):
            request = msgspec.structs.replace(request, limit=2)
        return db.execute(request)

    for name in ("tables", "streams"):
        assert select(execute, f"SELECT count(*) AS n FROM system.{name}").rows == [{"n": 7}]


# -- the page


def documented(heading: str) -> list[tuple[str, str]]:
    """The columns and their types in the table under a heading."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^### `{re.escape(heading)}`$(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert section is not None, f"docs/reference/select.md has no heading `{heading}`"
    return re.findall(r"^\| `(\w+)` \| (\w+) \|", section.group(1), re.M)


@pytest.mark.parametrize("name", SYSTEM_TABLES)
def test_a_system_table_is_documented_with_all_its_columns(name: str) -> None:
    expected = [(column, type_name(type_)) for column, type_ in SYSTEM_TABLES[name].columns]
    assert documented(f"system.{name}") == expected


@pytest.mark.parametrize(
    ("heading", "columns"),
    [("changes('table')", sources.CHANGE_COLUMNS), ("topic('name')", sources.MESSAGE_COLUMNS)],
)
def test_changes_and_messages_are_documented_with_all_their_columns(heading: str, columns: Any) -> None:
    assert documented(heading) == [(column, type_name(type_)) for column, type_ in columns]


def test_the_page_has_every_system_table_that_there_is_and_no_other() -> None:
    named = set(re.findall(r"`system\.(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named == set(SYSTEM_TABLES)


def test_bounds_and_functions_are_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in (
        "TEXT_CHARACTERS_MAX", "TOKENS_MAX", "DEPTH_MAX", "SOURCES_MAX", "SELECT_RESULT_ROWS_MAX",
        "SELECT_RESULT_BYTES_MAX", "SELECT_ROW_BYTES_MAX", "SELECT_ROWS_BYTES_MAX", "SELECT_RESULTS_BYTES_MAX",
        "SELECT_COLUMNS_MAX", "SELECT_WORKERS_MAX", "SELECT_WORKER_BYTES_MAX", "SELECT_DUCKDB_BYTES_MAX",
        "SELECT_WORKER_IDLE_S", "SELECTS_OF_ONE_MAX", "SELECTS_WAITING_MAX", "SELECT_WAIT_S", "THREADS",
    ):  # fmt: skip
        value = next(getattr(module, name) for module in (limits, selecting, workers) if hasattr(module, name))
        assert re.search(rf"^\| `{name}` \| {shown(value)} \|", text, re.M), f"{name} {shown(value)}"
    for name in ("READ_ROWS_MAX", "READ_BYTES_MAX", "SELECT_S"):
        assert re.search(rf"^\| `{name}` \| {shown(getattr(sources, name))} \|", text, re.M), name
    section = text[text.index("## Functions") : text.index("## Results")]
    listed = set(re.findall(r"[^\s`]+", " ".join(re.findall(r"`([^`]+)`", section.partition("Refused")[0]))))
    assert listed >= {name for name in FUNCTIONS if name.replace("_", "").isalnum()}


def shown(value: Any) -> str:
    """A bound as the page writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g} s"
    return f"{value >> 20} MiB" if value >= 1 << 20 and value % (1 << 20) == 0 else f"{value:,}"

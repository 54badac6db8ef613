"""The validation checklist of the specification of topics, line by line, against a real server, over HTTP and SQL.

Then its examples, sent as they stand there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.topics import HTTP_WAYS, WAYS, Refused, Site, Way, answer, fresh, until
from tests.support.server import ServerProcess

SYSTEM_TABLES = {
    "topics": {"topic_id", "name", "alias", "partitions", "retention_seconds", "retention_max_bytes", "routes"},
    "topic_routes": {"topic_id", "table_id", "op", "payload_mode", "filter_expr", "partition_key_expr"},
    "topic_offsets": {"topic_id", "group_id", "partition_id", "last_acked_offset", "updated_at"},
    "topic_groups": {"topic_id", "group_id", "partition_id", "lag", "in_flight", "redelivered", "lost"},
    "streams": {"path"},
    "tables": {"name"},
    "users": {"name", "role"},
    "pipelines": {"name"},
}
PAYLOADS: list[tuple[str, str, dict[str, Any]]] = [
    ("INSERT", "key", {"id": "m-1"}),
    ("INSERT", "full", {"id": "m-1", "body": "hello", "n": 1}),
    ("INSERT", "diff", {"key": {"id": "m-1"}, "old": {}, "new": {"id": "m-1", "body": "hello", "n": 1}}),
    ("UPDATE", "key", {"id": "m-1"}),
    ("UPDATE", "full", {"id": "m-1", "body": "hello", "n": 2}),
    ("UPDATE", "diff", {"key": {"id": "m-1"}, "old": {"n": 1}, "new": {"n": 2}}),
    ("DELETE", "key", {"id": "m-1"}),
    ("DELETE", "full", {"id": "m-1", "body": "hello", "n": 2}),
    ("DELETE", "diff", {"key": {"id": "m-1"}, "old": {"id": "m-1", "body": "hello", "n": 2}, "new": {}}),
]
DYNAMODB: dict[str, tuple[str, dict[str, Any]]] = {
    "INSERT": ("PutItem", {"Item": {"id": {"S": "m-1"}, "body": {"S": "hello"}, "n": {"N": "1"}}}),
    "UPDATE": (
        "UpdateItem",
        {
            "Key": {"id": {"S": "m-1"}},
            "UpdateExpression": "SET n = :n",
            "ExpressionAttributeValues": {":n": {"N": "2"}},
        },
    ),
    "DELETE": ("DeleteItem", {"Key": {"id": {"S": "m-1"}}}),
}


@pytest.fixture(scope="module")
def site(server: ServerProcess) -> Iterator[Site]:
    found = Site(server.url)
    yield found
    found.close()


@pytest.fixture(params=WAYS)
def way(site: Site, request: pytest.FixtureRequest) -> Way:
    return Way(site, request.param)


@pytest.fixture
def topic(site: Site) -> str:
    name = fresh()
    site.sql(f"CREATE TOPIC {name}")
    return name


def make_table(site: Site) -> str:
    name = fresh("chat")
    site.sql(f"CREATE TABLE {name} (id TEXT PRIMARY KEY, body TEXT, n BIGINT)")
    return name


# -- system tables exist and are queryable


@pytest.mark.parametrize("table", SYSTEM_TABLES)
def test_system_tables_exist_and_are_queryable(site: Site, topic: str, table: str) -> None:
    result = site.sql(f"SELECT * FROM system.{table}")
    assert {column["name"] for column in result["columns"]} >= SYSTEM_TABLES[table]
    (count,) = site.rows(f"SELECT count(*) AS n FROM system.{table}")
    assert count["n"] == len(result["rows"])


def test_system_tables_are_filtered_and_joined(site: Site, topic: str) -> None:
    Way(site, "/v1/api").consume(topic, "g")
    rows = site.rows(
        "SELECT t.name, o.group_id, o.last_acked_offset FROM system.topics t JOIN system.topic_offsets o "
        "ON o.topic_id = t.topic_id WHERE t.name = ?",
        topic,
    )
    assert rows == [{"name": topic, "group_id": "g", "last_acked_offset": -1}]


# -- CREATE TOPIC persists metadata


def metadata(site: Site, name: str, how: str) -> dict[str, Any]:
    """What there is to know of a topic, from SQL or over HTTP."""
    if how == "sql":
        (found,) = site.rows("SELECT * FROM system.topics WHERE name = ?", name)
    else:
        (found,) = [each for each in answer(site.http.get("/v1/topics"))["topics"] if each["name"] == name]
        described = site.topic(name)
        assert {key: described[key] for key in found} == found, "the list and the topic itself say the same"
        assert len(described["partition_list"]) == found["partitions"]
    shown = ("name", "alias", "partitions", "retention_seconds", "retention_max_bytes")
    return {key: found[key] for key in shown}


@pytest.mark.parametrize("how", ["http", "sql"])
def test_create_topic_persists_metadata(site: Site, how: str) -> None:
    name, alias = fresh(), fresh("alias")
    site.sql(
        f"CREATE TOPIC {name} PARTITIONS 4 WITH (alias='{alias}', retention_seconds=3600, retention_max_bytes=100000)"
    )
    assert metadata(site, name, how) == {
        "name": name, "alias": alias, "partitions": 4, "retention_seconds": 3600, "retention_max_bytes": 100000,
    }  # fmt: skip


@pytest.mark.parametrize("how", ["http", "sql"])
def test_create_topic_has_the_defaults_of_the_specification(site: Site, topic: str, how: str) -> None:
    assert metadata(site, topic, how) == {
        "name": topic, "alias": None, "partitions": 1, "retention_seconds": None, "retention_max_bytes": None,
    }  # fmt: skip


def test_create_topic_twice_is_refused_unless_if_not_exists(site: Site, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        site.sql(f"CREATE TOPIC {topic} PARTITIONS 3")
    assert refused.value.status == 409
    site.sql(f"CREATE TOPIC IF NOT EXISTS {topic} PARTITIONS 3")
    assert metadata(site, topic, "sql")["partitions"] == 1


def test_everything_about_a_topic_is_there_after_a_restart(data_dir: Path) -> None:
    """Metadata, routes, messages, group positions and the next offset; the server is killed, not stopped."""
    name, alias = fresh(), fresh("alias")
    first = ServerProcess.tailrace(data_dir).start()
    try:
        site = Site(first.url)
        table = make_table(site)
        site.sql(f"CREATE TOPIC {name} PARTITIONS 2 WITH (alias='{alias}', retention_seconds=3600)")
        site.sql(
            f"ALTER TOPIC {name} ADD SOURCE {table} ON INSERT WHERE (n > 0) PARTITION BY (body) WITH (payload='full')"
        )
        site.publish(name, [0, 1, 2])
        way = Way(site, "/api")
        assert way.consume(name, "g").offsets == [0, 1, 2]
        assert way.ack(name, "g", 1) == 1
        before = site.topic(name), site.rows("SELECT * FROM system.topic_routes")
        offsets = site.rows("SELECT * FROM system.topic_offsets")
        site.close()
    finally:
        first.kill()
    with ServerProcess.tailrace(data_dir) as second:
        site = Site(second.url)
        after = site.topic(name)
        assert {**after, "groups": None} == {**before[0], "groups": None}
        assert site.rows("SELECT * FROM system.topic_routes") == before[1]
        assert site.rows("SELECT * FROM system.topic_offsets") == offsets
        site.sql(f"INSERT INTO {table} VALUES ('a', 'x', 1), ('b', 'x', -1)")
        found = [Way(site, "/api").consume(alias, partition=number) for number in (0, 1)]
        assert [value for each in found for value in each.values if isinstance(value, dict)] == [
            {"id": "a", "body": "x", "n": 1}
        ]
        assert site.publish(name, [3])[0] >= 3
        site.close()


# -- ALTER TOPIC ADD SOURCE creates a route


@pytest.mark.parametrize("how", ["http", "sql"])
@pytest.mark.parametrize("op", ["INSERT", "UPDATE", "DELETE"])
def test_alter_topic_add_source_creates_a_route(site: Site, topic: str, op: str, how: str) -> None:
    table = make_table(site)
    site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON {op} WHERE (n > 1) PARTITION BY (body) WITH (payload='full')")
    expected = {"table": table, "op": op.title(), "mode": "Full", "filter": "n > 1", "partition_by": "body"}
    if how == "http":
        (route,) = site.topic(topic)["routes"]
        found = {**route, "mode": route.pop("payload_mode")}
        found.pop("payload_mode", None)
        assert (found.pop("name"), found.pop("backfill")) == (None, False)
    else:
        (row,) = site.rows("SELECT * FROM system.topic_routes WHERE topic = ?", topic)
        assert row["topic_id"] == site.rows("SELECT topic_id FROM system.topics WHERE name = ?", topic)[0]["topic_id"]
        found = {
            "table": row["table_id"], "op": row["op"], "mode": row["payload_mode"], "filter": row["filter_expr"],
            "partition_by": row["partition_key_expr"],
        }  # fmt: skip
        (embedded,) = json.loads(site.rows("SELECT routes FROM system.topics WHERE name = ?", topic)[0]["routes"])
        assert (embedded["table_id"], embedded["op"]) == (table, op.title())
    assert {**found, "filter": found["filter"].strip("()")} == expected


def test_a_route_is_made_of_declared_columns_only(site: Site, topic: str) -> None:
    table = make_table(site)
    for clause in ("WHERE (nonsense = 1)", "PARTITION BY (nonsense)", "WHERE (NEW.nonsense = 1)"):
        with pytest.raises(Refused) as refused:
            site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT {clause}")
        assert refused.value.status == 400
        assert "nonsense" in refused.value.error["message"]
    assert site.topic(topic)["routes"] == []


def test_a_route_that_is_dropped_makes_no_messages(site: Site, topic: str) -> None:
    table = make_table(site)
    for op in ("INSERT", "DELETE"):
        site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON {op}")
    site.sql(f"INSERT INTO {table} VALUES ('a', 'x', 1)")
    site.sql(f"ALTER TOPIC {topic} DROP SOURCE {table}")
    site.sql(f"DELETE FROM {table} WHERE id = 'a'")
    assert site.topic(topic)["routes"] == []
    assert [message["op"] for message in Way(site, "/api").consume(topic).messages] == ["Insert"]


# -- change events append to topic logs


def write(site: Site, table: str, op: str, api: str) -> None:
    """Make the change `op` of the row m-1."""
    if api == "dynamodb":
        name, request = DYNAMODB[op]
        headers = {"x-amz-target": f"DynamoDB_20120810.{name}", "content-type": "application/x-amz-json-1.0"}
        answer(site.http.post("/", headers=headers, content=json.dumps({"TableName": table, **request})))
    elif op == "INSERT":
        site.sql(f"INSERT INTO {table} VALUES ('m-1', 'hello', 1)")
    elif op == "UPDATE":
        site.sql(f"UPDATE {table} SET n = 2 WHERE id = 'm-1'")
    else:
        site.sql(f"DELETE FROM {table} WHERE id = 'm-1'")


@pytest.mark.parametrize("api", ["sql", "dynamodb"])
@pytest.mark.parametrize(("op", "mode", "payload"), PAYLOADS, ids=[f"{op}-{mode}" for op, mode, _ in PAYLOADS])
def test_change_events_append_to_topic_logs(
    site: Site, topic: str, op: str, mode: str, payload: dict[str, Any], api: str
) -> None:
    """Written through either API, read through every one: the same message, and only for the operation of the route."""
    table = make_table(site)
    site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON {op} WITH (payload='{mode}')")
    for each in ("INSERT", "UPDATE", "DELETE"):
        write(site, table, each, api)
    for kind in WAYS:
        delivered = Way(site, kind).consume(topic, f"g-{kind.replace('/', '')}")
        (message,) = delivered.messages
        assert delivered.values == [payload]
        assert message["offset"] == 0
        assert message["partition_id"] == 0
        assert message["source_table"] == table
        assert message["op"] == op.title()
        assert message["payload_mode"] == mode.title()
        assert isinstance(message["topic_id"], str)
        assert isinstance(message["message_id"], str)
        assert message["ts"] > 1_700_000_000_000


def test_the_payload_is_the_key_by_default(site: Site, topic: str) -> None:
    table = make_table(site)
    site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT")
    write(site, table, "INSERT", "sql")
    delivered = Way(site, "/api").consume(topic)
    assert delivered.values == [{"id": "m-1"}]
    assert delivered.messages[0]["payload_mode"] == "Key"


def test_only_rows_for_which_the_filter_is_true_are_routed(site: Site, topic: str) -> None:
    """NULL is not TRUE, and NOT of it neither."""
    other = fresh()
    site.sql(f"CREATE TOPIC {other}")
    table = make_table(site)
    site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON INSERT WHERE (n > 1)")
    site.sql(f"ALTER TOPIC {other} ADD SOURCE {table} ON INSERT WHERE (NOT n > 1)")
    site.sql(f"INSERT INTO {table} (id, n) VALUES ('one', 1), ('two', 2), ('none', NULL)")
    way = Way(site, "/api")
    assert way.consume(topic).values == [{"id": "two"}]
    assert way.consume(other).values == [{"id": "one"}]


def test_a_write_that_fails_or_changes_nothing_makes_no_message(site: Site, topic: str) -> None:
    table = make_table(site)
    for op in ("INSERT", "UPDATE", "DELETE"):
        site.sql(f"ALTER TOPIC {topic} ADD SOURCE {table} ON {op}")
    site.sql(f"INSERT INTO {table} VALUES ('a', 'x', 1)")
    with pytest.raises(Refused):
        site.sql(f"INSERT INTO {table} VALUES ('b', 'x', 1), ('a', 'x', 1)")
    site.sql(f"UPDATE {table} SET n = 1 WHERE id = 'a'")
    site.sql(f"UPDATE {table} SET n = 5 WHERE id = 'nobody'")
    site.sql(f"DELETE FROM {table} WHERE id = 'nobody'")
    assert Way(site, "/api").consume(topic).values == [{"id": "a"}]


def test_changes_of_one_partition_value_stay_together_and_in_order(site: Site) -> None:
    name, table = fresh(), make_table(site)
    site.sql(f"CREATE TOPIC {name} PARTITIONS 4")
    site.sql(f"ALTER TOPIC {name} ADD SOURCE {table} ON INSERT PARTITION BY (body) WITH (payload='full')")
    rows = ", ".join(f"('{number}', 'u{number % 8}', {number})" for number in range(80))
    site.sql(f"INSERT INTO {table} VALUES {rows}")
    partitions = [Way(site, "/api").consume(name, partition=number).values for number in range(4)]
    assert sum(map(len, partitions)) == 80
    assert sum(1 for each in partitions if each) > 1, "eight values are spread over four partitions"
    for user in (f"u{number}" for number in range(8)):
        (numbers,) = filter(None, ([row["n"] for row in each if row["body"] == user] for each in partitions))
        assert numbers == sorted(numbers)


# -- CONSUME supports EARLIEST/LATEST/OFFSET


def test_consume_from_earliest(site: Site, topic: str, way: Way) -> None:
    site.publish(topic, [0, 1, 2])
    assert way.consume(topic, "g", start="Earliest").values == [0, 1, 2]


def test_consume_from_latest(site: Site, topic: str, way: Way) -> None:
    site.publish(topic, [0, 1, 2])
    empty = way.consume(topic, "g", start="Latest")
    assert (empty.messages, empty.next_offset, empty.has_more) == ([], 3, False)
    site.publish(topic, [3])
    assert way.consume(topic, "g", start="Latest").values == [3]


def test_consume_from_an_offset(site: Site, topic: str, way: Way) -> None:
    site.publish(topic, list(range(5)))
    delivered = way.consume(topic, "g", start={"Offset": 3})
    assert (delivered.values, delivered.next_offset, delivered.has_more) == ([3, 4], 5, False)


def test_consume_by_alias_is_the_same_topic_and_group(site: Site, way: Way) -> None:
    name, alias = fresh(), fresh("alias")
    site.sql(f"CREATE TOPIC {name} WITH (alias='{alias}')")
    site.publish(alias, [0, 1])
    assert way.consume(alias, "g", limit=1).offsets == [0]
    assert way.ack(alias, "g", 0) == 0
    assert way.consume(name, "g").offsets == [1]


def test_consume_is_limited_to_a_hundred_by_default(site: Site, topic: str, way: Way) -> None:
    site.publish(topic, list(range(150)))
    first = way.consume(topic, "g")
    assert (len(first.messages), first.next_offset, first.has_more) == (100, 100, True)
    rest = way.consume(topic, "g", limit=1000)
    assert (rest.offsets, rest.has_more) == (list(range(100, 150)), False)


# -- ACK updates offsets correctly


def test_ack_updates_offsets(site: Site, topic: str, way: Way) -> None:
    site.publish(topic, list(range(6)))
    way.consume(topic, "g")
    way.consume(topic, "other", limit=2)
    assert site.last_acked(topic, "g") == -1
    for upto in (0, 3, 5):
        assert way.ack(topic, "g", upto) == upto
        assert site.last_acked(topic, "g") == upto
        assert site.group(topic, "g")["lag"] == 5 - upto
    assert site.last_acked(topic, "other") == -1, "another group is not touched"


def test_ack_counts_for_its_partition_only(site: Site, way: Way) -> None:
    name = fresh()
    site.sql(f"CREATE TOPIC {name} PARTITIONS 2")
    for partition in (0, 1):
        site.publish(name, [0, 1], partition=partition)
        way.consume(name, "g", partition=partition)
    assert way.ack(name, "g", 1, partition=1) == 1
    assert (site.last_acked(name, "g", 0), site.last_acked(name, "g", 1)) == (-1, 1)


@pytest.mark.parametrize("what", ["consume", "ack"])
@pytest.mark.parametrize("prefix", HTTP_WAYS)
def test_missing_topics_and_partitions_are_reported(site: Site, topic: str, prefix: str, what: str) -> None:
    body: dict[str, Any] = {"topic": fresh(), "group_id": "g"} | ({"upto_offset": 0} if what == "ack" else {})
    response = site.http.post(f"{prefix}/topics/{what}", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "TOPIC_NOT_FOUND")
    response = site.http.post(f"{prefix}/topics/{what}", json={**body, "topic": topic, "partition_id": 1})
    assert response.status_code in (400, 404)
    assert "1" in response.json()["error"]["message"]


# -- the retention job prunes old log entries


def start_offset(site: Site, topic: str, how: str) -> int:
    if how == "http":
        offset: int = site.partition(topic)["start_offset"]
    else:
        offset = site.rows("SELECT start_offset FROM system.topic_partitions WHERE topic = ?", topic)[0]["start_offset"]
    return offset


@pytest.mark.parametrize("how", ["http", "sql"])
def test_retention_prunes_old_entries_by_seconds(site: Site, how: str) -> None:
    name = fresh()
    site.sql(f"CREATE TOPIC {name} WITH (retention_seconds=1)")
    site.publish(name, list(range(20)))
    until(lambda: start_offset(site, name, how) == 20, "all are pruned")
    assert site.partition(name)["messages"] == 0
    assert site.rows(f"SELECT count(*) AS n FROM topic('{name}')") == [{"n": 0}]
    assert site.publish(name, ["next"]) == [20], "offsets go on"
    assert Way(site, "/api").consume(name).offsets == [20]


@pytest.mark.parametrize("how", ["http", "sql"])
def test_retention_prunes_old_entries_by_bytes(site: Site, how: str) -> None:
    name = fresh()
    site.sql(f"CREATE TOPIC {name} WITH (retention_max_bytes=20000)")
    site.publish(name, ["x" * 1000] * 50)
    until(lambda: site.partition(name)["bytes"] <= 20000, "what is too much is pruned")
    start = start_offset(site, name, how)
    assert 25 <= start < 50, "the newest stay, as many as fit"
    assert Way(site, "/api").consume(name).offsets == list(range(start, 50))
    assert site.rows(f"SELECT min(\"offset\") AS low, count(*) AS n FROM topic('{name}')") == [
        {"low": start, "n": 50 - start}
    ]


def test_retention_that_is_set_later_counts_for_what_is_there(site: Site, topic: str) -> None:
    site.publish(topic, ["x" * 1000] * 50)
    site.sql(f"ALTER TOPIC {topic} SET (retention_max_bytes=5000)")
    until(lambda: site.partition(topic)["bytes"] <= 5000, "what is too much is pruned")


# -- the examples of the specification, as they stand there

CREATE_TOPIC = "CREATE TOPIC app.new_messages;"
CREATE_PARTITIONS = "CREATE TOPIC app.new_messages PARTITIONS 4;"
ADD_KEY = """ALTER TOPIC app.new_messages
ADD SOURCE chat.messages
ON INSERT
WITH (payload = 'key');
"""
ADD_FULL = """ALTER TOPIC app.new_messages
ADD SOURCE chat.messages
ON INSERT
WITH (payload = 'full');
"""
ADD_FILTERED = """ALTER TOPIC app.new_messages
ADD SOURCE chat.messages
ON INSERT
WHERE (is_visible = true AND channel_id = 42)
WITH (payload = 'key');
"""
ADD_PARTITIONED = """ALTER TOPIC app.new_messages
ADD SOURCE chat.messages
ON INSERT
PARTITION BY (user_id)
WITH (payload = 'key');
"""
CONSUME_LATEST = """CONSUME FROM app.new_messages
GROUP 'ai-service'
FROM LATEST
LIMIT 100;
"""
CONSUME_EARLIEST = """CONSUME FROM app.new_messages
GROUP 'ai-service'
FROM EARLIEST
LIMIT 100;
"""
CONSUME_OFFSET = """CONSUME FROM app.new_messages
GROUP 'ai-service'
FROM OFFSET 12345
LIMIT 100;
"""
CONSUME_ALIAS = """CONSUME FROM app.new_messages_alias
GROUP 'ai-service'
FROM LATEST
LIMIT 100;
"""
ACK = """ACK app.new_messages
GROUP 'ai-service'
PARTITION 0
UPTO OFFSET 220;
"""
CONSUME_BODY = """{
  "topic": "app.new_messages",
  "group_id": "ai-service",
  "start": %s,
  "limit": 100,
  "partition_id": 0,
  "timeout_seconds": 30
}
"""
ACK_BODY = """{
  "topic": "app.new_messages",
  "group_id": "ai-service",
  "partition_id": 0,
  "upto_offset": 220
}
"""
MESSAGE_FIELDS = {
    "topic_id", "partition_id", "offset", "message_id", "source_table", "op", "ts", "payload_mode", "payload",
}  # fmt: skip


@pytest.fixture
def example(site: Site) -> Site:
    """The table of the examples, and no topic yet."""
    site.sql("DROP TOPIC IF EXISTS app.new_messages; DROP TABLE IF EXISTS chat.messages")
    site.sql("CREATE TABLE chat.messages (id BIGINT PRIMARY KEY, is_visible BOOLEAN, channel_id BIGINT, user_id TEXT)")
    return site


@pytest.fixture
def made(example: Site) -> Site:
    example.sql(CREATE_TOPIC)
    example.sql("ALTER TOPIC app.new_messages SET (alias = 'app.new_messages_alias')")
    return example


def post(site: Site, path: str, body: str) -> dict[str, Any]:
    return answer(site.http.post(path, content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(("statement", "partitions"), [(CREATE_TOPIC, 1), (CREATE_PARTITIONS, 4)])
def test_example_create_topic(example: Site, statement: str, partitions: int) -> None:
    assert example.sql(statement)["statement"] == "CREATE TOPIC"
    assert example.topic("app.new_messages")["partitions"] == partitions


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (ADD_KEY, [{"id": 1}, {"id": 2}]),
        (ADD_FULL, [{"id": 1, "is_visible": True, "channel_id": 42, "user_id": "ada"}, {"id": 2, "is_visible": False}]),
        (ADD_FILTERED, [{"id": 1}]),
        (ADD_PARTITIONED, [{"id": 1}, {"id": 2}]),
    ],
    ids=["key", "full", "filtered", "partitioned"],
)
def test_example_add_source(made: Site, statement: str, expected: list[dict[str, Any]]) -> None:
    made.sql(statement)
    made.sql(
        "INSERT INTO chat.messages (id, is_visible, channel_id, user_id) "
        "VALUES (1, true, 42, 'ada'), (2, false, NULL, NULL)"
    )
    values = Way(made, "/api").consume("app.new_messages").values
    assert [{key: value for key, value in each.items() if value is not None} for each in values] == expected


def test_example_routes_can_all_be_of_one_topic(made: Site) -> None:
    """One topic can have several routes, of one table and operation too."""
    for statement in (ADD_KEY, ADD_FULL, ADD_FILTERED, ADD_PARTITIONED):
        made.sql(statement)
    assert len(made.topic("app.new_messages")["routes"]) == 4


@pytest.mark.parametrize(
    ("statement", "offsets"),
    [
        (CONSUME_EARLIEST, range(100)),
        (CONSUME_LATEST, ()),
        (CONSUME_OFFSET, range(12345, 12348)),
        (CONSUME_ALIAS, ()),
    ],
    ids=["earliest", "latest", "offset", "alias"],
)
def test_example_consume_over_sql(made: Site, statement: str, offsets: range) -> None:
    made.publish("app.new_messages", [0] * (12348 if statement == CONSUME_OFFSET else 101))
    result = made.sql(statement)
    assert [row["offset"] for row in result["rows"]] == list(offsets)


@pytest.mark.parametrize("prefix", HTTP_WAYS)
@pytest.mark.parametrize(
    ("start", "offsets"),
    [('"Latest"', range(101, 102)), ('"Earliest"', range(100)), ('{ "Offset": 12345 }', range(12345, 12348))],
    ids=["latest", "earliest", "offset"],
)
def test_example_consume_over_http(made: Site, prefix: str, start: str, offsets: range) -> None:
    """Who asks for the latest waits for the next one."""
    made.publish("app.new_messages", [0] * (101 if "Offset" not in start else 12348))
    if start == '"Latest"':
        with made.meanwhile(lambda: post(made, f"{prefix}/topics/consume", CONSUME_BODY % start)) as waiting:
            made.publish("app.new_messages", [0])
        delivered = waiting.result()
    else:
        delivered = post(made, f"{prefix}/topics/consume", CONSUME_BODY % start)
    assert [message["offset"] for message in delivered["messages"]] == list(offsets)
    assert delivered["next_offset"] == offsets[-1] + 1
    assert delivered["has_more"] is (start == '"Earliest"')


@pytest.mark.parametrize("prefix", HTTP_WAYS)
def test_example_consume_response(made: Site, prefix: str) -> None:
    """The fields and the kinds of values of the specification; others may be there too."""
    made.sql(ADD_KEY)
    made.sql("INSERT INTO chat.messages (id) VALUES (7)")
    delivered = post(made, f"{prefix}/topics/consume", CONSUME_BODY % '"Earliest"')
    (message,) = delivered["messages"]
    assert message.keys() >= MESSAGE_FIELDS
    assert (message["source_table"], message["op"], message["payload_mode"]) == ("chat.messages", "Insert", "Key")
    assert message["payload"] == "eyJpZCI6N30="  # {"id":7}
    assert (delivered["next_offset"], delivered["has_more"]) == (1, False)


def test_example_ack_over_sql(made: Site) -> None:
    made.publish("app.new_messages", [0] * 221)
    Way(made, "sql").consume("app.new_messages", "ai-service", limit=221)
    assert made.sql(ACK)["acknowledged_offset"] == 220
    assert made.last_acked("app.new_messages", "ai-service") == 220


@pytest.mark.parametrize("prefix", HTTP_WAYS)
def test_example_ack_over_http(made: Site, prefix: str) -> None:
    made.publish("app.new_messages", [0] * 221)
    for _ in range(3):
        post(made, f"{prefix}/topics/consume", CONSUME_BODY % '"Earliest"')
    assert post(made, f"{prefix}/topics/ack", ACK_BODY) == {"success": True, "acknowledged_offset": 220}
    assert made.last_acked("app.new_messages", "ai-service") == 220

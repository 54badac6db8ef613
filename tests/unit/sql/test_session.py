"""Statements carried out on a real database: topics, groups, users, several at once, and who may."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.access import ROLES, Access, Principal
from tailrace.auth import passwords
from tailrace.check import check_database
from tailrace.database import Database
from tailrace.errors import Conflict, Error, Forbidden, InUse, Invalid, NotFound
from tailrace.sql.error import SqlError, marked
from tailrace.sql.session import Result, Session


class Sql:
    """A session that runs as a principal, and returns rows."""

    def __init__(self, db: Database, principal: Principal | None = None) -> None:
        self.db = db
        self.session = Session(db.execute if principal is None else lambda command: db.execute(command, principal))

    def __call__(self, text: str, *params: Any) -> Result:
        """The result of the last statement."""
        return self.session.run(text, params)[-1]

    def rows(self, text: str, *params: Any) -> list[dict[str, Any]]:
        return self(text, *params).rows

    def refused(self, kind: type[Error], text: str, *params: Any) -> Error:
        with pytest.raises(kind) as caught:
            self(text, *params)
        return caught.value

    def as_role(self, role: str, access: tuple[str, ...] | None = None) -> Sql:
        grants = None if access is None else Access(access)
        return Sql(self.db, Principal(role, ROLES[role], role, grants))


@pytest.fixture
def sql(data_dir: Path) -> Iterator[Sql]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        yield Sql(db)
    assert check_database(data_dir).findings == []


def values(result: Result) -> list[str]:
    return [row["value"] for row in result.rows]


# -- topics


def test_a_topic_is_made_changed_and_dropped(sql: Sql) -> None:
    made = sql("CREATE TOPIC app.new PARTITIONS 3 WITH (alias = 'fresh', retention_seconds = 60)")
    assert (made.statement, made.message, made.facts["created"]) == (
        "CREATE TOPIC", "topic app.new created with 3 partitions", True,
    )  # fmt: skip
    assert sql("CREATE TOPIC IF NOT EXISTS app.new").facts["created"] is False
    sql.refused(InUse, "CREATE TOPIC app.new")
    sql.refused(InUse, "CREATE TOPIC fresh")
    sql("CREATE TOPIC failed; ALTER TOPIC fresh SET (alias = NULL, max_attempts = 3, dead_letter = failed)")
    (failed, new) = sorted(sql.rows("SHOW TOPICS"), key=lambda row: row["name"], reverse=True)
    assert (new["name"], new["alias"], new["partitions"], new["dead_letter"]) == ("app.new", None, 3, "failed")
    assert (new["retention_seconds"], new["max_attempts"], failed["max_attempts"]) == (60, 3, None)
    assert sql("DROP TOPIC app.new").facts == {"dropped": True}
    assert sql("DROP TOPIC IF EXISTS app.new").facts == {"dropped": False}
    assert sql.refused(NotFound, "DROP TOPIC app.new").code == "TOPIC_NOT_FOUND"


def test_messages_are_published_and_consumed(sql: Sql) -> None:
    sql("CREATE TOPIC t")
    published = sql("PUBLISH TO t VALUES ('one'), (?), (X'ff00')", b"two")
    assert published.rows == [{"partition_id": 0, "offset": offset} for offset in range(3)]
    got = sql("CONSUME FROM t GROUP 'g' LIMIT 2")
    assert [column.name for column in got.columns] == list(got.rows[0])
    assert values(got) == ["one", "two"]
    first = got.rows[0]
    assert base64.b64decode(first["payload"]) == b"one"
    assert (first["op"], first["payload_mode"], first["source_table"]) == ("Publish", "Full", None)
    assert (first["partition_id"], first["offset"], first["attempt"]) == (0, 0, 1)
    assert first["lease_id"] == got.facts["lease_id"] is not None
    assert (got.facts["next_offset"], got.facts["has_more"], got.facts["skipped"]) == (2, True, 0)
    (last,) = sql.rows("CONSUME FROM t GROUP 'g'")
    assert (last["value"], last["payload"]) == (None, "/wA=")
    acked = sql("ACK t GROUP 'g' PARTITION 0 UPTO OFFSET 1")
    assert (acked.facts, acked.row_count) == ({"acknowledged_offset": 1, "acked": 2}, 2)
    (group,) = sql.rows("SHOW CONSUMER GROUPS ON t")
    assert (group["group_id"], group["last_acked_offset"], group["lag"], group["in_flight"]) == ("g", 1, 1, 1)


def test_without_a_group_nothing_is_remembered(sql: Sql) -> None:
    sql("CREATE TOPIC t; PUBLISH TO t VALUES ('a'), ('b'), ('c')")
    for _ in range(2):
        assert values(sql("CONSUME FROM t")) == ["a", "b", "c"]
        assert values(sql("CONSUME FROM t FROM OFFSET 1 LIMIT 1")) == ["b"]
        assert values(sql("CONSUME FROM t FROM 2")) == ["c"]
        assert values(sql("CONSUME FROM t FROM LATEST")) == []
    assert sql.rows("SHOW CONSUMER GROUPS") == []


def test_where_a_group_starts(sql: Sql) -> None:
    sql("CREATE TOPIC t; PUBLISH TO t VALUES ('a'), ('b'), ('c')")
    assert values(sql("CONSUME FROM t GROUP 'late' FROM LATEST")) == []
    assert values(sql("CONSUME FROM t GROUP 'early' FROM EARLIEST LIMIT 1")) == ["a"]
    assert values(sql("CONSUME FROM t GROUP 'from' FROM OFFSET 2")) == ["c"]
    assert values(sql("CONSUME FROM t GROUP 'early' FROM LATEST")) == ["b", "c"]  # it has a place already
    reset = sql("RESET CONSUMER GROUP 'late' ON t TO OFFSET 1")
    assert reset.rows == [{"partition_id": 0, "next_offset": 1}]
    assert values(sql("CONSUME FROM t GROUP 'late'")) == ["b", "c"]
    sql("DROP CONSUMER GROUP 'late' ON t")
    assert sql.refused(NotFound, "DROP CONSUMER GROUP 'late' ON t").code == "GROUP_NOT_FOUND"


def test_an_ack_covers_only_what_its_consumer_holds(sql: Sql) -> None:
    sql("CREATE TOPIC t; PUBLISH TO t VALUES ('a'), ('b'), ('c'), ('d')")
    sql("CONSUME FROM t GROUP 'g' LIMIT 2 CONSUMER 'one'; CONSUME FROM t GROUP 'g' LIMIT 2 CONSUMER 'two'")
    assert sql("ACK t GROUP 'g' CONSUMER 'two' UPTO OFFSET 3").facts == {"acknowledged_offset": -1, "acked": 2}
    given_back = sql("NACK t GROUP 'g' CONSUMER 'one' OFFSET 1 TO 1")
    assert given_back.row_count == 1
    assert values(sql("CONSUME FROM t GROUP 'g' CONSUMER 'two'")) == ["b"]
    assert sql("EXTEND t GROUP 'g' CONSUMER 'one' VISIBILITY 120").row_count == 1
    assert sql.refused(Conflict, "EXTEND t GROUP 'g' CONSUMER 'three' VISIBILITY 1").code == "LEASE_LOST"


def test_a_producer_is_idempotent(sql: Sql) -> None:
    sql("CREATE TOPIC t")
    text = "PUBLISH TO t PRODUCER 'p' EPOCH 0 SEQUENCE 0 VALUES ('a')"
    assert sql(text).facts == {"duplicate": False, "producer_sequence": 0}
    assert sql(text).facts == {"duplicate": True, "producer_sequence": 0}
    assert values(sql("CONSUME FROM t")) == ["a"]
    sql.refused(Conflict, "PUBLISH TO t PRODUCER 'p' EPOCH 0 SEQUENCE 2 VALUES ('c')")


def test_keys_choose_partitions(sql: Sql) -> None:
    sql("CREATE TOPIC t PARTITIONS 4")
    (first,) = sql.rows("PUBLISH TO t KEY 'k' VALUES ('a')")
    assert sql.rows("PUBLISH TO t KEY 'k' VALUES ('b')") == [{**first, "offset": 1}]
    assert sql.rows("PUBLISH TO t PARTITION 3 VALUES ('c')")[0]["partition_id"] == 3
    assert sql.refused(Invalid, "PUBLISH TO t PARTITION 4 VALUES ('c')").code == "NO_SUCH_PARTITION"
    seen = {row["value"] for _ in range(4) for row in sql.rows("CONSUME FROM t GROUP 'g' PARTITION ANY")}
    assert seen == {"a", "b", "c"}


def test_a_cleared_topic_goes_on_counting(sql: Sql) -> None:
    sql("CREATE TOPIC t; PUBLISH TO t VALUES ('a'), ('b')")
    assert sql("CLEAR TOPIC t").row_count == 2
    assert sql.rows("PUBLISH TO t VALUES ('c')") == [{"partition_id": 0, "offset": 2}]


CHAT = """
    CREATE TABLE chat.messages (id TEXT PRIMARY KEY, channel_id BIGINT, body TEXT, is_visible BOOLEAN);
    CREATE TOPIC app.new;
"""


def test_a_source_sends_what_its_filter_lets_through(sql: Sql) -> None:
    sql(CHAT)
    sql(
        "ALTER TOPIC app.new ADD SOURCE chat.messages ON INSERT WHERE (is_visible = true AND channel_id = 42) "
        "WITH (payload = 'full')"
    )
    sql("INSERT INTO chat.messages VALUES ('a', 42, 'hi', true), ('b', 42, 'no', NULL), ('c', 1, 'no', true)")
    (got,) = sql.rows("CONSUME FROM app.new")
    assert (got["source_table"], got["op"], got["payload_mode"]) == ("chat.messages", "Insert", "Full")
    assert json.loads(got["value"]) == {"id": "a", "channel_id": 42, "body": "hi", "is_visible": True}


def test_payloads_of_updates_and_deletes(sql: Sql) -> None:
    sql(CHAT)
    sql("ALTER TOPIC app.new ADD SOURCE chat.messages ON UPDATE WHERE (NEW.body <> OLD.body) WITH (payload = 'diff')")
    sql("ALTER TOPIC app.new ADD SOURCE chat.messages ON DELETE")
    sql("INSERT INTO chat.messages (id, body) VALUES ('a', 'x'); UPDATE chat.messages SET body = 'y' WHERE id = 'a'")
    sql("UPDATE chat.messages SET channel_id = 1 WHERE id = 'a'; DELETE FROM chat.messages WHERE id = 'a'")
    update, delete = sql.rows("CONSUME FROM app.new")
    assert json.loads(update["value"]) == {"key": {"id": "a"}, "old": {"body": "x"}, "new": {"body": "y"}}
    assert (delete["op"], json.loads(delete["value"])) == ("Delete", {"id": "a"})
    assert sql("ALTER TOPIC app.new DROP SOURCE chat.messages ON DELETE").facts == {"dropped": 1}
    assert sql("ALTER TOPIC app.new DROP SOURCE chat.messages").facts == {"dropped": 1}
    sql.refused(NotFound, "ALTER TOPIC app.new DROP SOURCE chat.messages")


def test_an_unknown_column_fails_when_the_source_is_made(sql: Sql) -> None:
    sql(CHAT)
    error = sql.refused(SqlError, "ALTER TOPIC app.new ADD SOURCE chat.messages\nON INSERT WHERE (chanel_id = 42)")
    assert (error.code, *marked(error)[1:]) == ("UNKNOWN_COLUMN", 2, 18)
    assert "channel_id" in str(error) and str(error).endswith("^")
    error = sql.refused(SqlError, "ALTER TOPIC app.new ADD SOURCE chat.messages ON INSERT PARTITION BY (nobody)")
    assert (error.code, *marked(error)[1:]) == ("UNKNOWN_COLUMN", 1, 70)
    assert sql("DESCRIBE TOPIC app.new").facts["sources"] == []


def test_describing_a_topic(sql: Sql) -> None:
    sql(CHAT)
    sql("ALTER TOPIC app.new ADD SOURCE chat.messages ON INSERT WHERE (channel_id > 1) PARTITION BY (id)")
    sql("PUBLISH TO app.new VALUES ('a'); CONSUME FROM app.new GROUP 'g'")
    found = sql("DESCRIBE TOPIC app.new")
    properties = {row["property"]: row["value"] for row in found.rows}
    assert properties["name"] == "app.new" and properties["partitions"] == "1" and properties["alias"] is None
    assert properties["partition 0"].startswith("offsets 0 to 0, ")
    assert properties["source chat.messages ON INSERT"] == "payload key, WHERE (channel_id > 1), PARTITION BY (id)"
    assert properties["group g, partition 0"] == "lag 1, in flight 1, to be delivered again 0, lost 0"
    assert found.facts["sources"][0]["filter"] == "(channel_id > 1)"
    assert found.facts["groups"][0]["in_flight"] == 1


# -- users


def test_users(sql: Sql) -> None:
    sql(
        "CREATE USER bob PASSWORD 'correct horse' ROLE service ACCESS ('topics/app.*'); CREATE USER eve PASSWORD ?",
        "long enough",
    )
    assert sql("CREATE USER IF NOT EXISTS bob PASSWORD 'correct horse'").facts == {"created": False}
    assert sql.refused(InUse, "CREATE USER bob PASSWORD 'correct horse'").code == "USER_EXISTS"
    bob, eve = sql.rows("SHOW USERS")
    assert (bob["name"], bob["role"], bob["access"], bob["disabled"]) == ("bob", "service", ["topics/app.*"], False)
    assert (eve["name"], eve["role"], eve["access"], eve["has_password"]) == ("eve", "user", None, True)
    sql("ALTER USER bob ROLE dba ACCESS NULL DISABLE; ALTER USER eve SET PASSWORD 'another one'; ALTER USER eve ENABLE")
    (bob, _) = sql.rows("SHOW USERS")
    assert (bob["role"], bob["access"], bob["disabled"]) == ("dba", None, True)
    assert sql("DROP USER bob").facts == {"dropped": True}
    assert sql("DROP USER IF EXISTS bob").facts == {"dropped": False}
    sql.refused(NotFound, "DROP USER bob")
    sql.refused(NotFound, "ALTER USER bob ENABLE")


def test_no_password_is_hashed_for_whoever_may_not(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    monkeypatch.setattr(passwords, "hashed", hashed.append)
    for text in ("CREATE USER bob PASSWORD 'long enough'", "ALTER USER bob PASSWORD 'long enough'"):
        sql.as_role("service").refused(Forbidden, text)
    assert not hashed


# -- who may


def test_permissions_are_those_of_the_commands(sql: Sql) -> None:
    sql("CREATE TABLE orders (id TEXT PRIMARY KEY); CREATE TOPIC t; PUBLISH TO t VALUES ('a')")
    user, service, dba = sql.as_role("user"), sql.as_role("service"), sql.as_role("dba")
    user("INSERT INTO orders VALUES ('a'); DELETE FROM orders WHERE id = 'a'")
    user("PUBLISH TO t VALUES ('b'); SHOW TOPICS; DESCRIBE orders")
    for text in ("CONSUME FROM t", "CONSUME FROM t GROUP 'g'", "ACK t GROUP 'g' UPTO OFFSET 0", "CREATE TOPIC u"):
        user.refused(Forbidden, text)
    service("CONSUME FROM t GROUP 'g'; ACK t GROUP 'g' UPTO OFFSET 0")
    for text in (
        "CREATE TOPIC u",
        "DROP TABLE orders",
        "CREATE USER bob PASSWORD 'long enough'",
        "SHOW USERS",
        "CLEAR TOPIC t",
    ):
        service.refused(Forbidden, text)
    dba("CREATE TOPIC u; CREATE USER bob PASSWORD 'long enough'; DROP TABLE orders")
    dba.refused(Forbidden, "CREATE USER root PASSWORD 'long enough' ROLE system")


def test_a_restricted_principal_reaches_only_its_grants(sql: Sql) -> None:
    sql("CREATE TABLE orders (id TEXT PRIMARY KEY); CREATE TABLE secrets (id TEXT PRIMARY KEY); CREATE TOPIC app.t")
    restricted = sql.as_role("service", ("tables/orders", "topics/app.*"))
    restricted("INSERT INTO orders VALUES ('a'); DELETE FROM orders WHERE id = 'a'")
    restricted("PUBLISH TO app.t VALUES ('x'); CONSUME FROM app.t GROUP 'g'")
    for text in (
        "INSERT INTO secrets VALUES ('a')",
        "DELETE FROM secrets WHERE id = 'a'",
        "SHOW TABLES",
        "DESCRIBE secrets",
    ):
        assert restricted.refused(Forbidden, text).code == "NOT_GIVEN"


# -- several statements


def test_the_first_error_stops_and_carries_what_was_done(sql: Sql) -> None:
    error = sql.refused(NotFound, "CREATE TOPIC a;\n CREATE TOPIC b;\n  CLEAR TOPIC nothing; CREATE TOPIC c")
    done, line, column = marked(error)
    assert [result.statement for result in done] == ["CREATE TOPIC", "CREATE TOPIC"]
    assert (line, column) == (3, 3)
    assert [row["name"] for row in sql.rows("SHOW TOPICS")] == ["a", "b"]


def test_a_mistake_in_the_last_statement_changes_nothing(sql: Sql) -> None:
    error = sql.refused(SqlError, "CREATE TOPIC a; CREATE TOPIC b PARTITION 3")
    assert isinstance(error, SqlError) and error.done == []
    assert sql.rows("SHOW TOPICS") == []


def test_no_statement_no_result(sql: Sql) -> None:
    assert sql.session.run(" -- nothing\n;") == []


def test_what_is_no_sql_at_all(sql: Sql) -> None:
    with pytest.raises(Invalid):
        sql.session.run(b"SHOW TOPICS")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        sql.session.run("DROP TOPIC ?", "t")


def test_a_select_is_one_of_the_statements(sql: Sql) -> None:
    sql("CREATE TABLE orders (id TEXT PRIMARY KEY, total BIGINT)")
    sql("INSERT INTO orders VALUES ('a', 1), ('b', 2), ('c', 3)")
    found = sql("SHOW TOPICS; SELECT id FROM orders WHERE total > ? ORDER BY id", 1)
    assert (found.statement, found.rows, found.row_count) == ("SELECT", [{"id": "b"}, {"id": "c"}], 2)
    numbered = "UPDATE orders SET total = $2 WHERE id = $1; SELECT total FROM orders WHERE total = $2"
    assert sql.rows(numbered, "a", 9) == [{"total": 9}]


@pytest.mark.parametrize("partitions", [0, 5_000])
def test_how_many_partitions_there_may_be_is_no_matter_of_grammar(data_dir: Path, partitions: int) -> None:
    with (
        tailrace.open(data_dir, housekeeping_s=None) as db,
        pytest.raises(Invalid, match="1 to 1024 partitions") as caught,
    ):
        Session(db.execute).run(f"CREATE TOPIC z PARTITIONS {partitions}")
    assert caught.value.code == "INVALID_REQUEST"

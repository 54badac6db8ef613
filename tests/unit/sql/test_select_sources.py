"""What SELECT reads: tables with columns of the right type, changes, messages; and no more than the statement needs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import tailrace
from tailrace import Database, limits
from tailrace.command import Command
from tailrace.errors import Invalid, NotFound, TooLarge
from tailrace.sql import conforming, narrowing
from tailrace.sql.access import SourceNeeds
from tailrace.sql.arrow import number_type
from tailrace.sql.result import Result
from tailrace.sql.select import run, select
from tailrace.sql.sources import CHANGE_COLUMNS, MESSAGE_COLUMNS, ReadBudget
from tailrace.storage.engine import Tx
from tailrace.tables import definition as definitions
from tailrace.tables.definition import Column
from tailrace.topics.commands import AddSource, CreateTopic, Outgoing, Publish, TopicOptions


@pytest.fixture
def db(data_dir: Path) -> Iterator[Database]:
    with tailrace.open(data_dir, housekeeping_s=None) as db:
        yield db


def ask(db: Database, text: str, *params: Any, rows: int = 1_000_000) -> Result:
    return run(lambda request: db.execute(request), text, params, ReadBudget(rows=rows))


def types(result: Result) -> dict[str, str]:
    return {column.name: column.type for column in result.columns}


class Declare(Command[None], frozen=True):
    """As CREATE TABLE with columns does."""

    table: str
    columns: tuple[Column, ...]

    def run(self, tx: Tx) -> None:
        found = definitions.find(tx, self.table)
        definitions.save(tx, msgspec.structs.replace(found, columns=self.columns))


# -- tables


@pytest.mark.parametrize(
    ("held", "type_", "shown"),
    [
        ([1, -(2**63), 2**63 - 1], "BIGINT", [1, -(2**63), 2**63 - 1]),
        ([1, 2**63], "DECIMAL(38,0)", [1, 2**63]),
        ([1, Decimal("0.25")], "DECIMAL(38,2)", [1, Decimal("0.25")]),
        ([-(10**37)], "DECIMAL(38,0)", [Decimal(-(10**37))]),
        ([Decimal("1E100"), 1], "VARCHAR", ["1" + "0" * 100, "1"]),
        ([Decimal("1E30"), Decimal("1E-30")], "VARCHAR", ["1" + "0" * 30, "0." + "0" * 29 + "1"]),
        (["a", "é"], "VARCHAR", ["a", "é"]),
        ([True, False], "BOOLEAN", [True, False]),
        ([b"\x00\x01"], "BLOB", ["AAE="]),
        ([{"a": [1, Decimal("1.5"), None, b"x"]}], "VARCHAR", ['{"a":[1,1.5,null,"eA=="]}']),
        ([["x"], {"k": 1}], "VARCHAR", ['["x"]', '{"k":1}']),
        ([{"b", "a"}], "VARCHAR", ['["a","b"]']),
        (["s", 1, True, None], "VARCHAR", ['"s"', "1", "true", None]),
        ([None], "VARCHAR", [None]),
        ([None, 5], "BIGINT", [None, 5]),
    ],
)  # fmt: skip
def test_a_column_has_the_type_that_its_values_have_in_common(
    db: Database, held: list[Any], type_: str, shown: list[Any]
) -> None:
    table = db.create_table("things", partition_key="id")
    for number, value in enumerate(held):
        table.put({"id": f"{number:03d}", "it": value})
    table.put({"id": "none"})
    result = ask(db, "SELECT * FROM things ORDER BY id")
    assert types(result) == {"id": "VARCHAR", "it": type_}
    assert [row["it"] for row in result.rows] == [*shown, None]


def test_an_empty_table_has_its_key_columns(db: Database) -> None:
    db.create_table("nothing", partition_key=("id", "B"), sort_key=("at", "N"))
    assert types(ask(db, "SELECT * FROM nothing")) == {"id": "BLOB", "at": "BIGINT"}


def test_declared_columns_come_first_with_their_types_and_others_follow(db: Database) -> None:
    table = db.create_table("people", partition_key="id")
    kinds = (
        ("name", "TEXT"),
        ("id", "TEXT"),
        ("score", "DOUBLE"),
        ("cash", "DECIMAL"),
        ("ok", "BOOLEAN"),
        ("doc", "JSON"),
    )
    db.execute(Declare("people", tuple(Column(*kind) for kind in kinds)))
    expected = {
        "name": "VARCHAR", "id": "VARCHAR", "score": "DOUBLE", "cash": "DECIMAL(38,0)", "ok": "BOOLEAN",
        "doc": "VARCHAR",
    }  # fmt: skip
    assert types(ask(db, "SELECT * FROM people")) == expected
    table.put({"id": "1", "score": 2, "cash": Decimal("1.5"), "doc": "text", "extra": 1})
    result = ask(db, "SELECT * FROM people")
    assert types(result) == {**expected, "cash": "DECIMAL(38,1)", "extra": "BIGINT"}
    assert result.rows[0]["score"] == 2.0
    assert result.rows[0]["doc"] == '"text"'
    with pytest.raises(Exception, match="nme"):
        ask(db, "SELECT nme FROM people")


def test_an_attribute_that_no_row_has_is_null_where_no_columns_are_declared(db: Database) -> None:
    table = db.create_table("docs", partition_key="id")
    table.put({"id": "a", "note": "x"})
    table.put({"id": "b"})
    assert ask(db, "SELECT note FROM docs WHERE id = 'b'").rows == [{"note": None}]
    assert ask(db, "SELECT d.nothing, id FROM docs d WHERE d.other IS NULL AND id = 'a'").rows == [
        {"nothing": None, "id": "a"}
    ]
    # A name that is given in the statement itself stays what it is there.
    assert ask(db, "SELECT upper(id) AS g, count(*) AS n FROM docs GROUP BY g ORDER BY g").rows == [
        {"g": "A", "n": 1}, {"g": "B", "n": 1},
    ]  # fmt: skip


def test_names_that_differ_in_case_alone_are_numbered(db: Database) -> None:
    db.create_table("cases", partition_key="id").put({"id": "x", "name": 1, "Name": 2, "NAME": 3})
    result = ask(db, "SELECT * FROM cases")
    assert sorted(column.name.lower() for column in result.columns) == ["id", "name", "name_1", "name_2"]
    assert sorted(row for row in result.rows[0].values() if row != "x") == [1, 2, 3]


def test_which_name_is_numbered_does_not_depend_on_the_order_of_rows(db: Database) -> None:
    for number in range(6):
        table = db.create_table(f"cases{number}", partition_key="id")
        table.put({"id": f"a{number}", "Name": 1})
        table.put({"id": f"b{number}", "name": 2})
        assert ask(db, f"SELECT * FROM cases{number} ORDER BY id").rows[0].keys() == {"id", "Name", "name_1"}
        for _ in range(2):  # read, and then from the cache
            assert db.sql(f"SELECT * FROM cases{number} ORDER BY id").rows == [
                {"id": f"a{number}", "Name": 1, "name_1": None}, {"id": f"b{number}", "Name": None, "name_1": 2},
            ]  # fmt: skip


def test_an_index_that_lacks_items_of_another_type_is_not_used(db: Database) -> None:
    for name in ("indexed", "plain"):
        table = db.create_table(name, partition_key="id")
        for id_, city in (("a", 5), ("b", "5"), ("c", "x"), ("d", "")):
            table.put({"id": id_, "city": city})
        table.put({"id": "e"})
    db.sql("CREATE INDEX by_city ON indexed (city)")
    db.sweep()
    for condition in ("city = '5'", "city = 'x'", "city < 'y'", "city IN ('5', 'x')"):
        found = [db.sql(f"SELECT id FROM {name} WHERE {condition} ORDER BY id").rows for name in ("indexed", "plain")]
        assert found[0] == found[1], condition
    db.sql("CREATE INDEX by_other ON plain (other)")
    db.sweep()
    assert "by_other" in str(db.sql("EXPLAIN SELECT id FROM plain WHERE other = 'x'").rows)


def test_a_table_of_many_pages_is_read_whole(db: Database) -> None:
    table = db.create_table("pages", partition_key="id")
    for number in range(60):
        table.put({"id": f"{number}", "n": number, "body": "x" * 50_000})
    result = ask(db, "SELECT count(*) AS n, sum(n) AS s, sum(length(body)) AS b FROM pages")
    assert result.rows == [{"n": 60, "s": 1770, "b": 3_000_000}]
    assert ask(db, "SELECT id FROM pages LIMIT 45", rows=45).row_count == 45


# -- as little as needed


@pytest.fixture
def notes(db: Database) -> Database:
    table = db.create_table("notes", partition_key="room", sort_key=("at", "N"), stream="NEW_AND_OLD_IMAGES")
    for number in range(60):
        table.put({"room": f"r{number % 3}", "at": number, "text": f"n{number}", "big": "x" * 1_000})
    return db


@pytest.mark.parametrize(
    ("where", "params", "rows"),
    [
        ("room = 'r1'", (), 20),
        ("room = ?", ("r1",), 20),
        ("'r1' = notes.room AND length(text) > 0", (), 20),
        ("room = 'r1' AND at = 4", (), 1),
        ("room = 'r1' AND at >= 30", (), 10),
        ("room = 'r1' AND (at > 30) AND at <= 40.5", (), 4),
        ("room = 'r1' AND at BETWEEN ? AND ?", (10, Decimal("20.5")), 4),
        ("30 > at AND room = 'r1'", (), 10),
        ("room = 'none'", (), 0),
    ],
)
def test_a_partition_is_read_and_no_more(notes: Database, where: str, params: tuple[Any, ...], rows: int) -> None:
    text = f"SELECT count(*) AS n FROM notes WHERE {where}"
    assert ask(notes, text, *params, rows=rows).rows == [{"n": rows}]
    if rows:
        with pytest.raises(TooLarge):
            ask(notes, text, *params, rows=rows - 1)


@pytest.mark.parametrize(
    "tail",
    ["LIMIT 5", "LIMIT 3 OFFSET 2", "WHERE room = 'r1' LIMIT 5", "WHERE room = 'r1' AND at > 10 LIMIT 5"],
)
def test_a_limit_bounds_what_is_read(notes: Database, tail: str) -> None:
    assert ask(notes, f"SELECT text, at + 1 AS x FROM notes {tail}", rows=5).row_count in (3, 5)
    assert ask(notes, "SELECT text FROM notes LIMIT 0", rows=0).rows == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(text) FROM notes LIMIT 5",
        "SELECT text FROM notes ORDER BY text LIMIT 5",
        "SELECT DISTINCT room FROM notes LIMIT 5",
        "SELECT text FROM notes WHERE text LIKE 'n%' LIMIT 5",
        "SELECT text FROM notes WHERE room = 'r1' OR at = 1 LIMIT 5",
        "SELECT text FROM notes WHERE at = 1 LIMIT 5",
        "SELECT row_number() OVER (), text FROM notes LIMIT 5",
        "SELECT list(text) FROM notes LIMIT 5",
        "SELECT text FROM notes GROUP BY text LIMIT 5",
        "SELECT a.text FROM notes a, notes b WHERE a.room = 'r1' AND b.room = 'r2' LIMIT 5",
        "SELECT text FROM notes UNION ALL SELECT text FROM notes LIMIT 5",
        "SELECT text FROM notes QUALIFY row_number() OVER () = 1 LIMIT 5",
        "SELECT text FROM notes USING SAMPLE 5 LIMIT 5",
    ],
)
def test_what_needs_all_rows_reads_all_rows(notes: Database, text: str) -> None:
    with pytest.raises(TooLarge):
        ask(notes, text, rows=20)
    ask(notes, text)


def test_columns_that_are_not_wanted_are_not_kept(notes: Database) -> None:
    budget = ReadBudget(bytes_=20_000)
    result = run(lambda request: notes.execute(request), "SELECT max(text) AS t, count(*) AS n FROM notes", (), budget)
    assert result.rows == [{"t": "n9", "n": 60}]
    for text in (
        "SELECT * FROM notes",
        "SELECT count(big) FROM notes",
        "SELECT notes FROM notes",
        "SELECT #4 FROM notes",
    ):
        with pytest.raises(TooLarge):
            run(lambda request: notes.execute(request), text, (), ReadBudget(bytes_=20_000))


def test_narrowing_never_changes_an_answer(notes: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)

    def condition() -> str:
        column = chance.choice(["room", "at", "text", "notes.at", "sequence_of_nothing"])
        constant = chance.choice(["'r1'", "'r2'", "'n7'", "10", "-3", "31.5", "1e1", "NULL", "at", "'20'", "20.0"])
        if column.endswith("at") and constant in ("'r1'", "'r2'", "'n7'"):
            constant = "12"
        sign = chance.choice(["=", "=", "<", "<=", ">", ">=", "<>"])
        return chance.choice([f"{column} {sign} {constant}", f"{constant} {sign} {column}"])

    compared = 0
    for _ in range(100):
        parts = ["room = 'r1'"] * chance.randrange(2) + [condition() for _ in range(chance.randrange(1, 4))]
        where = chance.choice([" AND ", " AND ", " OR "]).join(parts)
        text = f"SELECT room, at, text FROM notes WHERE {where} ORDER BY at"
        outcomes: list[Any] = []
        for narrow in (True, False):
            with monkeypatch.context() as patched:
                if not narrow:
                    ensure = ("sequence_of_nothing",)
                    patched.setattr(narrowing, "needs", lambda *_: SourceNeeds(ensure=ensure))  # noqa: B023
                try:
                    outcomes.append(ask(notes, text).rows)
                except Invalid:
                    outcomes.append(None)
        if None not in outcomes:  # what cannot be compared at all may fail in either way
            compared += 1
            assert outcomes[0] == outcomes[1], text
    assert compared > 30


# -- changes


def test_changes_have_all_that_a_record_has(notes: Database) -> None:
    table = notes.table("notes")
    table.update(("r0", 0), "SET #t = :t", names={"t": "text"}, values={"t": "new"})
    table.delete(("r1", 1))
    result = ask(notes, "SELECT * FROM changes('notes') ORDER BY sequence DESC LIMIT 2")
    assert [column.name for column in result.columns] == [name for name, _ in CHANGE_COLUMNS]
    assert types(result)["at"] == "TIMESTAMPTZ"
    removed, modified = result.rows
    assert (removed["event"], removed["new"], removed["by"]) == ("REMOVE", None, "system")
    assert msgspec.json.decode(removed["keys"]) == {"room": "r1", "at": 1}
    assert (modified["event"], modified["index"], modified["last"]) == ("MODIFY", 0, True)
    query = "SELECT old->>'$.text' AS old, new->>'$.text' AS new FROM changes('notes') WHERE event = 'MODIFY'"
    assert ask(notes, query).rows == [{"old": "n0", "new": "new"}]


def test_bounds_of_the_sequence_bound_what_is_read(notes: Database) -> None:
    sequences = [row["sequence"] for row in ask(notes, "SELECT sequence FROM changes('notes')").rows]
    assert len(sequences) == 60
    middle = sequences[30]
    for where, expected in (
        (f"sequence > {middle}", sequences[31:]),
        (f"sequence >= {middle} AND sequence < {middle + 5}", sequences[30:35]),
        (f"sequence = {middle}", [middle]),
        (f"sequence BETWEEN {middle} AND {middle + 1}", sequences[30:32]),
        ("sequence > 1000000", []),
        ("sequence > -5 AND sequence <= 3", [each for each in sequences if each <= 3]),
    ):
        found = ask(
            notes, f"SELECT sequence FROM changes('notes') WHERE {where} ORDER BY sequence", rows=len(expected) + 60
        )
        assert [row["sequence"] for row in found.rows] == expected, where
    assert len(ask(notes, f"SELECT 1 FROM changes('notes') WHERE sequence > {middle}", rows=29).rows) == 29
    assert ask(notes, "SELECT sequence FROM changes('notes') LIMIT 3", rows=3).row_count == 3


def test_changes_that_were_trimmed_are_not_there_and_no_error(notes: Database) -> None:
    table = notes.table("notes")
    sequences = [change.sequence for change in table.changes()]
    table.prune_stream(sequences[39])
    left = len(table.changes())
    assert 0 < left < 60
    assert ask(notes, "SELECT count(*) AS n FROM changes('notes') WHERE sequence > 1").rows == [{"n": left}]
    table.prune_stream()
    assert ask(notes, "SELECT count(*) AS n FROM changes('notes')").rows == [{"n": 0}]


# -- messages


def test_messages_have_what_a_consumer_gets(notes: Database) -> None:
    notes.execute(CreateTopic("app.notes", 2, TopicOptions(alias="notes")))
    notes.execute(AddSource("app.notes", "notes", 0, mode=1))
    notes.table("notes").put({"room": "r9", "at": 1, "text": "routed"})
    notes.execute(Publish("app.notes", (Outgoing(b"\xff", partition=1), Outgoing(b"plain", partition=1))))
    result = ask(notes, "SELECT * FROM topic('app.notes') ORDER BY ts, partition_id, offset")
    assert [column.name for column in result.columns] == [name for name, _ in MESSAGE_COLUMNS]
    assert types(result)["payload"] == "BLOB"
    by_op = {(row["op"], row["value"] is None): row for row in result.rows}
    assert len(by_op) == 3
    routed, raw, plain = by_op["Insert", False], by_op["Publish", True], by_op["Publish", False]
    assert routed["source_table"] == "notes"
    assert routed["payload_mode"] == "Full"
    assert msgspec.json.decode(routed["value"])["text"] == "routed"
    assert (raw["payload"], plain["payload"], plain["value"]) == ("/w==", "cGxhaW4=", "plain")
    assert plain["message_id"]
    assert ask(notes, "SELECT count(*) AS n FROM topic('notes')").rows == [{"n": 3}]
    with pytest.raises(NotFound, match="there is no topic 'nosuch'"):
        ask(notes, "SELECT * FROM topic('nosuch')")


def test_bounds_of_partition_and_offset_bound_what_is_read(db: Database) -> None:
    db.execute(CreateTopic("app.numbers", 3))
    for partition in range(3):
        db.execute(Publish("app.numbers", tuple(Outgoing(b"%d" % number, None, partition) for number in range(50))))
    for where, rows in (
        ("partition_id = 1", 50),
        ("partition_id = 1 AND offset >= 40", 10),
        ("offset < 10", 30),
        ("offset BETWEEN 5 AND 6 AND partition_id <= 1", 4),
        ("partition_id = 7", 0),
    ):
        assert ask(db, f"SELECT count(*) AS n FROM topic('app.numbers') WHERE {where}", rows=rows).rows == [{"n": rows}]
    assert ask(db, "SELECT offset FROM topic('app.numbers') LIMIT 60", rows=60).row_count == 60
    assert ask(db, "SELECT offset FROM topic('app.numbers') WHERE value = '7' LIMIT 60").row_count == 3


def test_select_is_what_the_session_calls(db: Database) -> None:
    assert select(lambda request: db.execute(request), "SELECT 1 AS one", ()).rows == [{"one": 1}]


def test_unused_payloads_and_images_are_not_counted(db: Database) -> None:
    """A count over a large topic or history needs no memory for what is in it."""
    db.execute(CreateTopic("big"))
    table = db.create_table("big.rows", partition_key="id", stream="NEW_IMAGE")
    for at in range(20):
        db.execute(Publish("big", (Outgoing(bytes(10_000)),)))
        table.put({"id": str(at), "text": "x" * 10_000})

    def few(text: str) -> Result:
        return run(lambda request: db.execute(request), text, (), ReadBudget(bytes_=50_000))

    assert few("SELECT count(*) AS n FROM topic('big')").rows == [{"n": 20}]
    assert few("SELECT max(offset) AS n FROM topic('big')").rows == [{"n": 19}]
    assert few("SELECT count(*) AS n FROM changes('big.rows') WHERE event = 'INSERT'").rows == [{"n": 20}]
    for text in ("SELECT length(payload) FROM topic('big')", "SELECT * FROM changes('big.rows')"):
        with pytest.raises(TooLarge):
            few(text)


def test_a_table_that_is_joined_with_itself_is_read_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_SLICE_ROWS", 10)  # so that it is read in pages, and then from the cache
    table = db.create_table("t", partition_key="id")
    for number in range(30):
        table.put({"id": str(number), "n": number})
    joins = " ".join(f"JOIN t AS t{number} ON t{number}.id = t0.id AND t{number}.n = t0.n" for number in range(1, 6))
    text = f"SELECT count(*) AS c, sum(t5.n) AS n FROM t AS t0 {joins}"
    for _ in range(3):
        assert ask(db, text, rows=40).rows == [{"c": 30, "n": 435}]
    with pytest.raises(TooLarge):
        ask(db, text, rows=29)
    # What is not kept for the worker is sent to it for each source, and counts for each.
    keyed = "SELECT a.n FROM t AS a, t AS b, t AS c WHERE a.id = '7' AND b.id = '7' AND c.id = '7'"
    assert ask(db, keyed, rows=3).rows == [{"n": 7}]
    with pytest.raises(TooLarge):
        ask(db, keyed, rows=2)


_MIXED: Final = (
    {"id": "a", "kind": "k7", "v": 5},
    {"id": "b", "kind": "k7", "v": "5"},
    {"id": "c", "kind": 7, "v": "x"},
    {"id": "d", "kind": "k8", "v": Decimal("10.25")},
    {"id": "e", "kind": "k8", "v": True},
    {"id": "f", "kind": "k'8", "v": {"deep": 5}},
    {"id": "g", "v": 12345678901234567890},
)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("kind = 'k7'", "ab"),
        ("'k7' = t.kind", "ab"),
        ("kind IN ('k7', 'k8')", "abde"),
        ("kind = ?", "ab"),
        ("kind LIKE 'k_'", "abde"),
        ("kind <> 'k7'", "cdef"),
        ("NOT kind = 'k''8'", "abcde"),
        ("kind = 7", "c"),
        ("v = '5'", "ab"),
        ("v = 5", "ab"),
        ("v = 10.25", "d"),
        ("v = 12345678901234567890", "g"),
        ("v > 9", "dg"),
        ("v BETWEEN 4 AND 11", "abd"),
        ("v = 'x' OR kind = 'k8'", "cde"),
    ],
)
def test_values_of_several_types_are_compared_one_by_one(db: Database, where: str, found: str) -> None:
    table = db.create_table("t", partition_key="id")
    for item in _MIXED:
        table.put(item)
    params = ["k7"] if "?" in where else []
    for _ in range(2):  # the second time from the cache
        rows = db.sql(f"SELECT id FROM t WHERE {where} ORDER BY id", params).rows
        assert "".join(row["id"] for row in rows) == found
    joined = db.sql(
        f"WITH w AS (SELECT t.id FROM t WHERE {where}) SELECT string_agg(id, '' ORDER BY id) AS s FROM w", params
    )
    assert joined.rows == [{"s": found}]


def test_rows_of_several_types_do_not_depend_on_the_access_path(db: Database) -> None:
    wheres = ["v = '5'", "v IN ('5', '7')", "v = 5", "v <> 'x'", "v LIKE '%5%'", "kind = 'k7'", "kind < 'k8'"]
    table = db.create_table("t", partition_key="id")
    for item in _MIXED:
        table.put(item)
    for where in wheres:
        scanned = {row["id"] for row in db.sql(f"SELECT id FROM t WHERE {where}").rows}
        for item in _MIXED:
            try:
                rows = db.sql(f"SELECT id FROM t WHERE id = '{item['id']}' AND {where}").rows
            except Invalid:  # refused for the only type that is read
                continue
            assert {row["id"] for row in rows} == scanned & {item["id"]}, (where, item)


@pytest.mark.parametrize(
    ("values", "where", "found"),
    [
        ([5, "10.5"], "v = 10.5", "1"),
        ([5, "10.5"], "v = 11", ""),
        ([Decimal("10.25"), "10.5"], "v = 11", ""),
        ([5, "99999999999999999999"], "v > 6", "1"),
        ([5, "+.5"], "v < 1", "1"),
        ([10**30, "10.5"], f"v > {10**30 - 1}", "0"),
        ([10**30, "10.5"], "v = 10.5", "1"),
        ([5, "1e-3"], "v = 0", ""),
        ([5, 2**53 + 1, "x1e3"], f"v = {2**53}", ""),
    ],
)
def test_numbers_in_strings_are_not_rounded_to_the_type_of_other_rows(
    db: Database, values: list[Any], where: str, found: str
) -> None:
    table = db.create_table("t", partition_key="id")
    for number, held in enumerate(values):
        table.put({"id": str(number), "v": held})
    rows = db.sql(f"SELECT id FROM t WHERE {where} ORDER BY id").rows
    assert "".join(row["id"] for row in rows) == found


def test_a_result_column_in_having_is_not_taken_for_a_column_of_several_types(db: Database) -> None:
    table = db.create_table("t", partition_key="id")
    for item in _MIXED:
        table.put(item)
    for having, groups in (
        ("v > 1", 2),
        ("max(t.id) > 'b' AND v = 2", 1),
        ("count(*) FILTER (WHERE t.v = '5') > 1", 1),
    ):
        rows = db.sql(f"SELECT kind, count(*) AS v FROM t GROUP BY kind HAVING {having}").rows
        assert len(rows) == groups, having
    assert db.sql("SELECT v AS value FROM t GROUP BY v HAVING v = 'x'").rows == [{"value": '"x"'}]


def test_the_numbers_of_a_column_are_looked_at_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("t", partition_key="id")
    for item in _MIXED:
        table.put(item)
    looks: list[Any] = []

    def looked(documents: Any) -> str:
        looks.append(documents)
        return number_type(documents)

    monkeypatch.setattr(conforming, "number_type", looked)
    where = " OR ".join(f"v = {number}" for number in range(50))
    assert [row["id"] for row in db.sql(f"SELECT id FROM t WHERE {where} ORDER BY id").rows] == ["a", "b"]
    assert len(looks) == 1


def test_result_columns_are_named_after_the_statement_as_it_is_written(db: Database) -> None:
    table = db.create_table("t", partition_key="id")
    for item in _MIXED:
        table.put(item)
    result = db.sql("SELECT v = 7, t.v = '7', v > 7.5, v = -1e300, count(*) OVER (PARTITION BY kind = 'k7') FROM t")
    assert [column.name for column in result.columns] == [
        "(v = 7)", "(t.v = '7')", "(v > 7.5)", "(v = -1e300)", "count() OVER (PARTITION BY (kind = 'k7'))"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["n" * 255, "two\nlines", 'a "quoted" one'])
def test_result_columns_of_long_names_are_named_after_the_statement(db: Database, name: str) -> None:
    table = db.create_table("t", partition_key="id")
    for key, held in (("a", 5), ("b", "x")):
        table.put({"id": key, name: held})
    quoted = '"' + name.replace('"', '""') + '"'
    (column,) = db.sql(f"SELECT {quoted} = 5 FROM t").columns
    assert column.name == f"({name if name.isalnum() else quoted} = 5)"


def test_columns_declared_as_json_are_compared_as_they_are(db: Database) -> None:
    db.sql("""CREATE TABLE t (id TEXT PRIMARY KEY, v JSON); INSERT INTO t VALUES ('a', '"x"')""")
    assert db.sql("""SELECT id FROM t WHERE v = '"x"'""").rows == [{"id": "a"}]
    assert db.sql("SELECT id FROM t WHERE v = 'x'").rows == []

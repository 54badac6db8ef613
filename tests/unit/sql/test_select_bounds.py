"""What a SELECT may not be, because it would cost more than in proportion to its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.database import Database
from tailrace.errors import Invalid
from tailrace.sql.arrow import distinct


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with tailrace.open(tmp_path / "data") as opened:
        opened.sql("CREATE TABLE things (id TEXT PRIMARY KEY, a BIGINT, b JSON)")
        opened.sql("INSERT INTO things (id, a) VALUES ('x', 1)")
        yield opened


def test_what_is_compared_for_equality_is_not_deep(db: Database) -> None:
    deep = " + ".join(["a"] * 60)
    with pytest.raises(Invalid, match=r"nested at most 24 deep"):
        db.sql(f"SELECT id FROM things WHERE a <> 5 AND a = {deep}")
    assert db.sql(f"SELECT {deep} AS s FROM things").rows == [{"s": 60}], "elsewhere it may be"
    assert db.sql(f"SELECT id FROM (SELECT id, {deep} AS s FROM things) WHERE s = 60").rows == [{"id": "x"}]
    assert db.sql("SELECT id FROM things WHERE " + " AND ".join(["a = 1"] * 200)).rows == [{"id": "x"}], "nor wide"


@pytest.mark.parametrize(
    "deep", ["b" + ".c" * 200, "b" + "[1]" * 200, "a" + "::BIGINT" * 200, "(" * 101 + "a" + ")" * 101]
)
def test_paths_and_casts_are_not_deep(db: Database, deep: str) -> None:
    with pytest.raises(Invalid, match="nested"):
        db.sql(f"SELECT {deep} FROM things")
    with pytest.raises(Invalid, match="nested"):
        db.sql(f"UPDATE things SET a = 1 WHERE id = 'x' AND {deep} IS NULL")


def test_a_statement_too_deep_for_its_reader_is_refused(db: Database) -> None:
    with pytest.raises(Invalid, match=r"nested too deep|expression depth"):
        db.sql("SELECT " + " || ".join(["id"] * 900) + " FROM things")


def test_numbers_that_python_does_not_read_are_for_duckdb(db: Database) -> None:
    assert db.sql("SELECT id FROM things WHERE a = 0_1").rows == [{"id": "x"}]
    assert db.sql("SELECT id FROM things WHERE a = 1" + "_1" * 5_000).rows == []
    with pytest.raises(Invalid, match="parameter"):
        db.sql("SELECT $" + "1" * 5_000, [1])


def test_names_that_differ_in_case_get_numbers() -> None:
    assert distinct(["a", "A", "b", "a", "A_1", "a_2"]) == ["a", "A_1", "b", "a_2", "A_1_1", "a_2_1"]

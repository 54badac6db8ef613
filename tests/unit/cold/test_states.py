"""States in cold storage: earlier ones stay, and a damaged file is distinguished from a store that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.cold import compacting, states, writing
from tailrace.cold.store import Store
from tailrace.errors import Corrupt, Invalid, Unavailable
from tests.unit.cold.rows import DATABASE

STATE = pa.schema([("keys", pa.string()), ("typed", pa.string())])
PLACE = "snapshots/orders"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cold")


def snapshot(store: Store, sequence: int, rows: int) -> str:
    """Take one; its only file."""
    states.keep_versions(store, PLACE, STATE, DATABASE)
    batch = pa.record_batch([[f"k{n}" for n in range(rows)], ["{}"] * rows], schema=STATE)
    written = writing.write_rows(store, PLACE, [batch])
    facts = {"sequence": sequence, "rows": rows, "log": 7, "next": sequence + 1}
    states.replace(store, PLACE, STATE, written, app="snapshot", reached=sequence, database=DATABASE, metadata=facts)
    return written[0].path


def test_earlier_states_are_never_vacuumed(store: Store) -> None:
    for sequence in (10, 20, 30):
        snapshot(store, sequence, sequence)
    with pytest.raises(Invalid, match="keeps its earlier versions"):
        compacting.vacuum(store, PLACE, hours=0)
    found = states.versions(store, PLACE, STATE, DATABASE)
    assert [each.sequence for each in found] == [30, 20, 10]
    for each in found:
        rows = [
            row for path in states.files(store, PLACE, each.version) for row in states.rows(store, PLACE, path, STATE)
        ]
        assert sum(batch.num_rows for batch in rows) == each.sequence


def test_a_commit_while_the_history_is_read_moves_no_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta numbers its history from the newest version, which may be another by then."""
    for sequence in (10, 20):
        snapshot(store, sequence, sequence)
    history, late = DeltaTable.history, [30]

    def overtaken(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
        commits = history(table, limit)
        if late:
            snapshot(store, sequence := late.pop(), sequence)
            return [{**commit, "version": commit["version"] + 1} for commit in commits]
        return commits

    monkeypatch.setattr(DeltaTable, "history", overtaken)
    found = states.versions(store, PLACE, STATE, DATABASE)
    assert [each.sequence for each in found] == [30, 20, 10]
    for each in found:
        assert DeltaTable(store.uri(PLACE), version=each.version).to_pyarrow_table().num_rows == each.rows


def test_a_place_of_states_that_does_not_say_yet_that_it_keeps_them_is_not_vacuumed_either(store: Store) -> None:
    writing.opened(store, PLACE, STATE, DATABASE)
    assert "delta.deletedFileRetentionDuration" not in DeltaTable(store.uri(PLACE)).metadata().configuration
    with pytest.raises(Invalid, match="keeps its earlier versions"):
        compacting.vacuum(store, PLACE, hours=0)


def test_a_damaged_or_missing_file_is_named(store: Store) -> None:
    path = Path(store.uri(PLACE), snapshot(store, 10, 1000))
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(50) + whole[150:])
    with pytest.raises(Corrupt, match=path.name):
        list(states.rows(store, PLACE, path.name, STATE))
    path.unlink()
    with pytest.raises(Corrupt, match=f"{path.name} of cold storage is missing"):
        list(states.rows(store, PLACE, path.name, STATE))


def test_a_bucket_that_does_not_answer_is_no_damage() -> None:
    away = Store(
        "s3://bucket/x",
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
            "max_retries": "0", "connect_timeout": "1s", "timeout": "2s",
        },
    )  # fmt: skip
    with pytest.raises(Unavailable) as caught:
        list(states.rows(away, PLACE, "a.parquet", STATE))
    assert caught.value.code == "COLD_STORAGE_FAILED"

"""Items that were read or written lately are kept in memory; single reads return committed rows, never older ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.storage.engine import Engine
from tailrace.storage.reading import SqliteReader
from tailrace.storage.recent import BULK_ROWS, ROW_BYTES, RecentRows
from tailrace.storage.sqlite import SqliteEngine
from tailrace.tables.definition import ITEMS, ItemRow
from tests.engine.conftest import NOW_MS

A, B = b"a", b"b"


def item(key: bytes, number: int) -> ItemRow:
    return ItemRow(1, key, number, b"%d" % number)


def write(engine: Engine, *rows: ItemRow | bytes) -> None:
    """Put rows, and delete keys."""
    tx = engine.begin(NOW_MS)
    for row in rows:
        if isinstance(row, bytes):
            tx.delete(ITEMS, 1, row)
        else:
            tx.put(ITEMS, row)
    tx.keep()
    tx.flush()
    tx.commit()


def read(engine: Engine, *keys: bytes) -> list[int | None]:
    found = []
    for key in keys:
        with engine.reader(single=True) as reader:
            row = reader.get(ITEMS, 1, key)
        found.append(None if row is None else row.size)
    return found


def trace(reader: Any, statements: list[Any]) -> None:
    """List the statements of a reader, which is the only one."""
    if isinstance(reader, SqliteReader):
        reader.connection.set_exec_trace(lambda cursor, statement, bindings: statements.append(statement) is None)
        return
    execute = reader.execute
    reader.execute = lambda statement, bound=(): (statements.append(statement), execute(statement, bound))[1]


def test_rows_are_read_once_and_dropped_when_they_change(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    statements: list[Any] = []
    with engine.reader(single=True) as reader:
        trace(reader, statements)
    engine.recent.of(ITEMS).begin_all()
    engine.recent.of(ITEMS).end()
    assert read(engine, A, B, A, B) == [1, 1, 1, 1]
    assert len(statements) == 2
    write(engine, item(A, 2), B)
    assert read(engine, A, B) == [2, None]
    assert len(statements) == 3  # the written row is kept; that the other is gone, is not


def test_a_write_in_progress_is_not_seen_and_what_is_read_meanwhile_is_not_kept(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    assert read(engine, A, B) == [1, 1]
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, item(A, 2))
    tx.keep()
    assert read(engine, A) == [1]
    tx.flush()
    assert read(engine, A, B) == [1, 1]
    assert tx.get(ITEMS, 1, A) == item(A, 2)
    tx.commit()
    assert read(engine, A, B) == [2, 1]


def test_a_row_that_was_read_before_a_write_is_not_kept_after_it(engine: SqliteEngine) -> None:
    write(engine, item(A, 1))
    recent = engine.recent.of(ITEMS)
    version, stale = recent.version, item(A, 1)
    write(engine, A)
    recent.offer((1, A), stale, version)  # by a slow reader
    assert read(engine, A) == [None]


def test_a_write_that_is_rolled_back(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, item(A, 2))
    tx.delete(ITEMS, 1, B)
    tx.keep()
    tx.flush()
    tx.rollback()
    assert read(engine, A, B, A, B) == [1, 1, 1, 1]


def test_a_command_that_is_undone_after_its_rows_were_flushed(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, item(A, 2))
    tx.keep()
    tx.put(ITEMS, item(B, 2))
    assert [row.size for row in tx.scan(ITEMS, 1)] == [2, 2]  # flushes
    tx.undo()
    assert tx.get(ITEMS, 1, B) == item(B, 1)
    tx.flush()
    tx.commit()
    assert read(engine, A, B, A, B) == [2, 1, 2, 1]


def test_rows_that_are_removed_by_their_prefix(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    assert read(engine, A, B) == [1, 1]
    tx = engine.begin(NOW_MS)
    assert tx.remove_range(ITEMS, 1, limit=10) == 2
    tx.keep()
    tx.flush()
    tx.commit()
    assert read(engine, A, B) == [None, None]


def test_rows_that_are_written_and_removed_by_their_prefix_in_one_transaction(engine: SqliteEngine) -> None:
    write(engine, item(B, 1))
    tx = engine.begin(NOW_MS)
    tx.put(ITEMS, item(A, 1))
    tx.keep()
    assert tx.remove_range(ITEMS, 1, limit=10) == 2
    tx.keep()
    tx.flush()
    tx.commit()
    assert read(engine, A, B) == [None, None]


def test_nothing_is_kept_where_another_process_writes(tmp_path: Path) -> None:
    owner = SqliteEngine(tmp_path / "data")
    write(owner, item(A, 1))
    other = SqliteEngine(tmp_path / "data", read_only=True)
    assert read(other, A) == [1]
    write(owner, item(A, 2))
    assert read(other, A) == [2]
    other.close()
    owner.close()


def test_memory_is_bounded() -> None:
    bytes_max = 20 * (ROW_BYTES + 100)
    recent: RecentRows[ItemRow] = RecentRows(ITEMS, bytes_max)
    for number in range(1000):
        key = b"%04d" % number
        recent.offer((1, key), ItemRow(1, key, number, bytes(90)), recent.version)
        assert len(recent._newer) + len(recent._older) <= 22
        assert recent.get((1, key)) is not None
    recent.offer((1, A), ItemRow(1, A, 1, bytes(bytes_max)), recent.version)
    assert recent.get((1, A)) is None
    assert recent.get((1, b"0999")) is not None


steps = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "read", "undo", "rollback", "range"]), st.sampled_from([A, B, b"c"])),
    max_size=30,
)


@given(steps=steps)
@settings(max_examples=60, deadline=None)
def test_single_reads_agree_with_a_model(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]]
) -> None:
    engine = SqliteEngine(tmp_path_factory.mktemp("recent"))
    model: dict[bytes, int] = {}
    for number, (step, key) in enumerate(steps):
        if step == "read":
            assert read(engine, key) == [model.get(key)]
            continue
        tx = engine.begin(NOW_MS)
        if step == "delete":
            tx.delete(ITEMS, 1, key)
        elif step == "range":
            tx.remove_range(ITEMS, 1, limit=10)
        else:
            tx.put(ITEMS, item(key, number))
        if step == "undo":
            list(tx.scan(ITEMS, 1))
            tx.undo()
        tx.keep()
        tx.flush()
        assert read(engine, key) == [model.get(key)]
        if step == "rollback":
            tx.rollback()
            continue
        tx.commit()
        if step == "put":
            model[key] = number
        elif step == "delete":
            model.pop(key, None)
        elif step == "range":
            model.clear()
    assert read(engine, A, B, b"c") == [model.get(key) for key in (A, B, b"c")]
    engine.close()


def test_readers_beside_a_writer_never_see_an_older_row_than_was_acknowledged(engine: SqliteEngine) -> None:
    write(engine, item(A, 0))
    acknowledged = 0
    failures: list[tuple[int, int | None]] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            least = acknowledged
            (found,) = read(engine, A)
            if found is None or found < least:
                failures.append((least, found))

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 150):
        write(engine, item(A, number))
        acknowledged = number
    done.set()
    for reader in readers:
        reader.join()
    assert not failures


def test_a_bulk_load_drops_what_it_changes_and_is_not_kept(engine: SqliteEngine) -> None:
    write(engine, item(A, 1), item(B, 1))
    assert read(engine, A, B) == [1, 1]
    write(engine, item(A, 2), *[item(b"%d" % number, 2) for number in range(BULK_ROWS)])
    recent = engine.recent.of(ITEMS)
    assert [recent.get((1, key)) for key in (A, b"0", b"1")] == [None] * 3
    assert recent.get((1, B)) is not None
    assert read(engine, A, B, b"0") == [2, 1, 2]
    assert recent.get((1, A)) == item(A, 2), "it is kept when it is read"

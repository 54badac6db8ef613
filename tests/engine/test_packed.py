"""Rows side by side: the same numbers and bytes as rows one by one, whatever bytes they are, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.log.entry import Entry
from tailrace.storage.engine import Engine, Packed
from tailrace.storage.table import StorageTable
from tests.engine.test_scan import View, committed, inside

MUCH = 2**40
HEAP = StorageTable("entries", Entry, key=("log", "position"), heap=True, checked=True)  # one entry in a row


@pytest.fixture(params=[committed, inside], ids=["reader", "tx"])
def view(request: pytest.FixtureRequest) -> View:
    found: View = request.param
    return found


def write(engine: Engine, entries: list[Entry]) -> None:
    tx = engine.begin(0)
    for entry in entries:
        tx.add(HEAP, entry)
    tx.keep()
    tx.flush()
    tx.commit()


def tiled(bodies: list[bytes], log: int = 7, first: int = 0) -> list[Entry]:
    """Entries with these bodies, one after the other."""
    entries = []
    for number, body in enumerate(bodies):
        end = first + len(body) + 1
        entries.append(Entry(log, first, end, 1_700_000_000_000 + number, body))
        first = end
    return entries


def packed(reader: Any, log: int = 7, **options: Any) -> Packed:
    arguments = {"start": 0, "before": MUCH, "limit": 1000, "bytes_max": MUCH, **options}
    found: Packed = reader.packed(HEAP, ("position", "next", "at_ms"), "body", log, **arguments)
    return found


def unpacked(found: Packed, log: int = 7) -> list[Entry]:
    entries, at = [], 0
    for position, following, at_ms, size in zip(*found.numbers, found.sizes, strict=True):
        entries.append(Entry(log, position, following, at_ms, found.body[at : at + size]))
        at += size
    assert at == len(found.body)
    return entries


BODIES = [
    bytes(range(256)),
    b"",
    b"\x00",
    b"\x00\x00\x00",
    b"",
    b"\xff" * 100,
    bytes(reversed(range(256))) * 40,
    "ü→𝄞".encode(),
    b"\xed\xa0\x80",  # half of a surrogate pair, which is no UTF-8
    b",1,2,3",
    b"",
]


def test_all_bytes_come_back_as_they_went(engine: Engine, view: View) -> None:
    entries = tiled(BODIES)
    write(engine, entries)
    with view(engine) as reader:
        assert unpacked(packed(reader)) == entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(bodies=st.lists(st.binary(max_size=40), max_size=30), data=st.data())
def test_the_same_as_a_scan(engine: Engine, bodies: list[bytes], data: st.DataObject) -> None:
    tx = engine.begin(0)
    try:
        entries = tiled(bodies)
        for entry in entries:
            tx.add(HEAP, entry)
        start = data.draw(st.integers(0, 100))
        before = data.draw(st.integers(0, 2000))
        limit = data.draw(st.integers(1, 40))
        found = packed(tx, start=start, before=before, limit=limit)
        assert unpacked(found) == list(tx.scan(HEAP, 7, start=start, before=before, limit=limit))
    finally:
        tx.rollback()


def test_of_one_log_alone(engine: Engine, view: View) -> None:
    write(engine, tiled([b"a", b"b"], log=6) + tiled([b"c", b"d"], log=7) + tiled([b"e"], log=8))
    with view(engine) as reader:
        assert packed(reader).body == b"cd"
        assert packed(reader, 9) == Packed(packed(reader, 9).numbers, packed(reader, 9).sizes, b"")
        assert not packed(reader, 9).sizes and [len(each) for each in packed(reader, 9).numbers] == [0, 0, 0]


def test_nothing_but_empty_bodies(engine: Engine, view: View) -> None:
    entries = tiled([b"", b"", b""])
    write(engine, entries)
    with view(engine) as reader:
        assert unpacked(packed(reader)) == entries


@pytest.mark.parametrize(
    ("bytes_max", "expected"), [(0, 1), (1, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (31, 3), (99, 4)]
)
def test_bounded_by_bytes_and_never_empty(engine: Engine, view: View, bytes_max: int, expected: int) -> None:
    entries = tiled([bytes(10)] * 4)
    write(engine, entries)
    with view(engine) as reader:
        assert unpacked(packed(reader, bytes_max=bytes_max)) == entries[:expected]
        assert unpacked(packed(reader, bytes_max=bytes_max, limit=2)) == entries[: min(expected, 2)]


def test_what_is_too_much_is_not_read(engine: Engine) -> None:
    write(engine, tiled([b"small", bytes(8_000_000), bytes(8_000_000)]))
    with engine.reader() as reader:
        assert packed(reader, bytes_max=1_000).body == b"small"

"""Tables that only these tests have: one of each kind an engine must know."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.storage.table import StorageTable


class Item(msgspec.Struct, frozen=True):
    shelf: int
    name: str
    value: bytes
    note: str | None = None


class Hot(msgspec.Struct, frozen=True):
    name: str
    value: int


class Line(msgspec.Struct, frozen=True):
    log: int
    position: int
    body: bytes


class StagedLine(msgspec.Struct, frozen=True):
    id: int
    log: int
    position: int
    body: bytes


class Mark(msgspec.Struct, frozen=True):
    at: int
    name: str


class Wide(msgspec.Struct, frozen=True):
    id: int
    number: int | None
    text: str | None
    blob: bytes | None


ITEMS = StorageTable("test_items", Item, key=("shelf", "name"))  # a key of two columns
HOT = StorageTable("test_hot", Hot, key=("name",), cached=True)
LINES = StorageTable("test_lines", Line, key=("log", "position"), heap=True)
STAGED_LINES = StorageTable("test_staged_lines", StagedLine, key=("id",), checked=True)
SETTLED = StorageTable(  # rows with at most three bytes are staged
    "test_settled",
    Line,
    key=("log", "position"),
    heap=True,
    checked=True,
    staging=STAGED_LINES,
    staged=lambda row: len(row.body) <= 3,
)
MARKS = StorageTable("test_marks", Mark, key=("at", "name"))  # nothing but its key
WIDE = StorageTable("test_wide", Wide, key=("id",))
TABLES: tuple[StorageTable[Any], ...] = (ITEMS, HOT, LINES, STAGED_LINES, SETTLED, MARKS, WIDE)

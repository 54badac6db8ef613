"""Items that are decoded together have the columns of items that are decoded one by one."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.sql.arrow import ItemTableBuilder, KnownColumn
from tailrace.tables.value import encode, from_plain

VALUES: dict[str, list[Any]] = {
    "text": ["", "a", 'ö\n"quoted" \\', "x" * 300, None],
    "whole": [0, -1, 7, 10**17, 2**63 - 1],
    "number": [Decimal("1.5"), Decimal("-0.001"), 3],
    "huge": [10**37, Decimal("1e-30"), 1],
    "flag": [True, False],
    "bytes": [b"", b"\x00\xff"],
    "list": [[1, "a", {"b": [True, None]}], [], ["é"]],
    "set": [{"a", "b"}, {1, 2}],
    "mixed": ["a", 1, b"x", True, [1], None],
    "Text": ["upper"],
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keep", [None, frozenset(("id", "text", "number")), frozenset(("mixed", "list"))])
def test_columns_are_the_same(seed: int, keep: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.sql.arrow.SHAPED_ROWS_MIN", 1)
    draw = random.Random(seed)
    shapes = [draw.sample(list(VALUES), draw.randrange(1, 6)) for _ in range(draw.choice([1, 3, 8]))]
    together = ItemTableBuilder([KnownColumn("id", "TEXT", "S")], lambda size: None, keep)
    alone = ItemTableBuilder([KnownColumn("id", "TEXT", "S")], lambda size: None, keep)
    number = 0
    for _ in range(3):
        bodies = []
        for _ in range(draw.choice([5, 80, 200])):
            number += 1
            plain = {"id": f"i{number}", **{name: draw.choice(VALUES[name]) for name in draw.choice(shapes)}}
            item = {name: from_plain(value) for name, value in plain.items()}
            bodies.append(encode(item))
            alone.add(item, len(bodies[-1]))
        together.add_stored(pa.array(bodies, pa.binary()))
    expected, found = alone.built(), together.built()
    assert {name: (column.kind, column.array.type) for name, column in found.items()} == {
        name: (column.kind, column.array.type) for name, column in expected.items()
    }
    for name, column in expected.items():
        assert found[name].array.to_pylist() == column.array.to_pylist(), name

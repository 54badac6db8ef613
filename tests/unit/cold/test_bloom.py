"""Bloom filters that Arrow writes, read here: no value that is there is missed, and few that are not are found."""

from __future__ import annotations

import inspect
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.cold import bloom
from tailrace.errors import Corrupt


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # of the definition of XXH64, seed 0
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
    ],
)
def test_the_hash(data: bytes, expected: int) -> None:
    assert bloom.xxh64(data) == expected


def written(**options: object) -> tuple[pa.BufferReader, pq.FileMetaData, list[str]]:
    # Keys shorter and longer than the 32 bytes that are hashed at once.
    keys = [f'{{"id":"{number}"}}' if number % 3 else "x" * (number % 70) + str(number) for number in range(2_000)]
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(2_000), "keys": keys}), sink, row_group_size=500, **options)
    return pa.BufferReader(sink.getvalue()), pq.read_metadata(io.BytesIO(sink.getvalue())), keys


@pytest.mark.skipif(
    "bloom_filter_options" not in inspect.signature(pq.ParquetWriter).parameters,
    reason="this version of pyarrow writes no Bloom filters, and neither does the product with it",
)
def test_filters_of_arrow() -> None:
    file, metadata, keys = written(bloom_filter_options={"keys": {"ndv": 500, "fpp": 0.01}})
    found = [bloom.row_groups(file, metadata, "keys", key.encode()) for key in keys]
    assert all(number // 500 in groups for number, groups in enumerate(found))
    assert sum(map(len, found)) < 2_000 * 1.1
    assert sum(len(bloom.row_groups(file, metadata, "keys", b"none%d" % number)) for number in range(500)) < 100


def test_without_a_filter_every_row_group_may_have_it() -> None:
    file, metadata, _ = written()
    assert bloom.row_groups(file, metadata, "keys", b"none") == [0, 1, 2, 3]
    assert bloom.row_groups(file, metadata, "other", b"none") == [0, 1, 2, 3]


@pytest.mark.parametrize("head", [b"", b"\x15", b"\x15\x80", b"\x15\x40\x2c", b"\x19\x40\x00", b"\x15\x40\x18\x01\x00"])
def test_a_damaged_header(head: bytes) -> None:
    with pytest.raises(Corrupt):
        bloom.header(head)

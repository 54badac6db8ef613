"""The checksums of a write-ahead log, as its reader computes them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from tailrace.storage import pages, wal

SALTS = b"12345678"


def written(big: bool, page_bytes: int, transactions: list[int], seed: int = 0) -> bytes:
    """A WAL whose transactions have these numbers of frames."""
    chance = random.Random(seed)
    header = struct.pack(">IIII8s", 0x377F0682 | big, 3_007_000, page_bytes, 0, SALTS)
    state = wal.add((0, 0), header, big)
    data = header + struct.pack(">II", *state)
    for frames in transactions:
        for left in reversed(range(frames)):
            head = struct.pack(">II", chance.randrange(1, 100), 0 if left else 100)
            page = chance.randbytes(page_bytes)
            state = wal.add(state, head + page, big)
            data += head + SALTS + struct.pack(">II", *state) + page
    return data


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("verify", [wal.verify_slowly, pages.verify])
def test_checksums_of_either_byte_order_and_any_page_size(
    big: bool, page_bytes: int, verify: wal.Verify, tmp_path: Path
) -> None:
    database = tmp_path / "db"
    path = tmp_path / "db-wal"
    data = written(big, page_bytes, [2, 3, 1])
    path.write_bytes(data)
    lost = wal.judge(database, verify).damage
    assert lost is not None, "the log is all that is left"
    database.write_bytes(b"x")
    assert wal.judge(database, verify) == wal.Verdict(6, commits=lost.commits)
    path.write_bytes(data[: -page_bytes // 2])
    assert wal.judge(database, verify) == wal.Verdict(5, commits=lost.commits - 1), "the last transaction is torn"
    flipped = bytearray(data)
    flipped[32 + 24 + page_bytes + 100] ^= 4
    path.write_bytes(flipped)
    damage = wal.judge(database, verify).damage
    assert damage is not None
    assert (damage.frame, damage.commits, damage.keep) == (2, 3, 32)


@pytest.mark.parametrize("bit", range(32 * 8))
def test_every_bit_of_the_header_counts(bit: int, tmp_path: Path) -> None:
    data = bytearray(written(False, 512, [1, 1]))
    data[bit // 8] ^= 1 << bit % 8
    (tmp_path / "db-wal").write_bytes(data)
    damage = wal.judge(tmp_path / "db").damage
    assert damage is not None
    assert (damage.frame, damage.commits) == (0, 2)


@pytest.mark.parametrize("bit", range(24 * 8))
def test_every_bit_of_a_frame_header_counts(bit: int, tmp_path: Path) -> None:
    data = bytearray(written(False, 512, [2, 1, 2, 1]))
    data[32 + 2 * 536 + bit // 8] ^= 1 << bit % 8  # the one frame of the second transaction
    (tmp_path / "db-wal").write_bytes(data)
    verdict = wal.judge(tmp_path / "db")
    assert verdict.damage is not None
    assert verdict.damage.frame == 3
    assert verdict.frames == 2


def test_no_wal_and_an_empty_one_hold_nothing(tmp_path: Path) -> None:
    assert wal.judge(tmp_path / "db") == wal.Verdict(0)
    (tmp_path / "db-wal").write_bytes(b"")
    assert wal.judge(tmp_path / "db") == wal.Verdict(0)
    (tmp_path / "db-wal").write_bytes(bytes(10_000))
    assert wal.judge(tmp_path / "db") == wal.Verdict(0)

"""Reads SQLite's write-ahead log before SQLite does, and distinguishes a torn tail from damage.

SQLite treats the first frame with a wrong checksum as the end of the log. After a power loss that is right: later
frames were never acknowledged. After a flipped bit it silently drops every commit behind it. This module determines
which of the two it is.

Theory of operation
-------------------
A WAL is a header (32 bytes) and frames (24 bytes, then a page). The checksum in each frame continues the one before it,
from the header on. A frame is of this log if its salts are those of the header and it continues the frame before it.

With ``synchronous=FULL`` a commit is synced before the next transaction writes, so a power loss can tear frames of one
transaction only, the last. Hence it is *damage*, not a torn tail, if

- a frame that continues the log lies behind a bad one, and a commit lies between them; or
- the wal-index (``-shm``), whose header is written after the sync, counts more frames than are good; or
- a frame continues the log but has other salts, which no torn write leaves; or
- the header is bad, but the first frame continues it; or
- there are good commits, but the database file is empty or missing: SQLite would delete the log.

Everything else is a torn tail. Frames of an older log behind the end, and those of a transaction that was
rolled back, do not continue what is before them: they prove nothing. Nothing here needs SQLite.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Final

import msgspec

from tailrace.errors import Corrupt

DAMAGED: Final = "WAL_DAMAGED"
WAL: Final = "-wal"
INDEX: Final = "-shm"
HEADER_BYTES: Final = 32
_WAL_HEADER: Final = struct.Struct(">IIII8sII")  # magic, version, page size, number, salts, checksum
_FRAME_HEADER: Final = struct.Struct(">II8sII")  # page, size of the database after a commit or 0, salts, checksum
_MAGIC: Final = 0x377F0682  # the lowest bit says that checksums are over big-endian words
_VERSION: Final = 3_007_000
_PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
_INDEX_HEADER: Final = struct.Struct("=IIIBBHIIII8sII")  # 48 bytes, there twice, in the machine's byte order
_SECTOR: Final = 512  # no disk writes less at once
_VERIFIED_MAX: Final = 65536  # bytes that `Verify` takes at once
_MASK: Final = 0xFFFF_FFFF
_LOOKS: Final = 3  # at a WAL in use, before it counts as damaged
_LOOK_AGAIN_S: Final = 0.02

logger = logging.getLogger("tailrace.storage")
Sum = tuple[int, int]
Verify = Callable[[bytes], bool]  # whether the last 8 bytes are the checksum, begun at (0, 0), of those before


class Damage(msgspec.Struct, frozen=True):
    """A description of a damaged WAL."""

    file: str
    what: str  # the defect, with the frame it is in
    frame: int  # the first bad frame, from 1; 0 for the header, or if the file is missing
    commits: int  # that would be lost, as far as their marks can be read
    keep: int  # bytes of the WAL that are good; 0 also where the database file has all that is good


class Verdict(msgspec.Struct, frozen=True):
    """Where the good part of a WAL ends, and whether what follows is damage."""

    frames: int  # up to the last good commit
    damage: Damage | None = None
    commits: int = 0  # in those frames


class WalIndex(msgspec.Struct, frozen=True):
    """The state of the wal-index: `frames` were durable, of which the first `copied` are in the database file."""

    frames: int
    copied: int
    salts: bytes


def add(state: Sum, data: bytes, big: bool) -> Sum:
    """Continue a checksum over `data`, as SQLite defines it. The slow way, for a few frames."""
    first, second = state
    words = _words(data, big)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & _MASK
        second = (second + words[at + 1] + first) & _MASK
    return first, second


def verify_slowly(page: bytes) -> bool:
    """`Verify` in Python alone."""
    return add((0, 0), page[:-8], False) == struct.unpack("<II", page[-8:])


def judge(database: Path, verify: Verify = verify_slowly, *, live: bool = False) -> Verdict:
    """Judge the WAL beside `database`. It must not be written meanwhile, unless `live`: then only the frames that the
    wal-index counts are examined, which do not change before all of them are copied."""
    path = Path(f"{database}{WAL}")
    index = read_index(Path(f"{database}{INDEX}"))
    if live and index is None:
        return Verdict(0)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return _headless(path, index, "is missing")
    with file:
        verdict = _judge(path, file, index, verify, index.frames if live and index is not None else None)
    if verdict.damage is None and verdict.frames and _is_empty(database):
        what = f"it belongs to {str(database)!r}, which is empty or missing (put that file back if you have it)"
        return Verdict(verdict.frames, Damage(str(path), what, 1, verdict.commits, 0))
    if verdict.damage is not None and live and read_index(Path(f"{database}{INDEX}")) != index:
        return Verdict(0)  # the log was restarted meanwhile: nothing is known to be wrong
    return verdict


def _is_empty(database: Path) -> bool:
    try:
        return database.stat().st_size == 0
    except FileNotFoundError:
        return True


def read_salts(database: Path) -> bytes:
    """The salts, which distinguish this WAL from earlier ones; empty if the WAL is."""
    with open(f"{database}{WAL}", "rb") as file:
        return file.read(HEADER_BYTES)[16:24]


def examine(database: Path, index: WalIndex, verify: Verify) -> Damage | None:
    """Verify the frames of a live WAL that are not in the database file, given its `index`. As `judge`, but many frames
    at a time, so that it can run before every checkpoint.

    The WAL may be restarted meanwhile, or have been: its header changes before any frame does, and then there is
    nothing to report. A read can overlap the write of the header, and return a mix of the old and the new one; damage
    is reported only if several reads find it. The wal-index is not read: closing that file would release SQLite's locks
    on it, for the whole process."""
    damage = _look(database, index, verify)
    for _ in range(_LOOKS - 1):
        if damage is None:
            break
        time.sleep(_LOOK_AGAIN_S)
        damage = _look(database, index, verify)
    return damage


def _look(database: Path, index: WalIndex, verify: Verify) -> Damage | None:
    path = Path(f"{database}{WAL}")
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
        if header[16:24] != index.salts or index.frames <= index.copied:
            return None
        shape = _WalHeader.of(header)
        if shape is not None and _whole(file, shape, index, verify):
            return None
        file.seek(0)
        found = _judge(path, file, index, verify, index.frames)
    with open(path, "rb") as file:  # a new handle: the other one has older buffers
        return found.damage if file.read(HEADER_BYTES) == header else None


def _whole(file: IO[bytes], shape: _WalHeader, index: WalIndex, verify: Verify) -> bool:
    """Whether each durable frame that is not copied continues the one before it."""
    size, before, copied = shape.frame_bytes, shape.sum, index.copied
    if copied:
        file.seek(HEADER_BYTES + (copied - 1) * size)
        header = file.read(_FRAME_HEADER.size)
        if len(header) < _FRAME_HEADER.size:
            return False
        before = struct.unpack_from(">II", header, 16)
    file.seek(HEADER_BYTES + copied * size)
    at_once = (_VERIFIED_MAX - 8) // (8 + shape.page_bytes)
    left = index.frames - copied
    while left and at_once:
        count = min(left, at_once)
        data = memoryview(file.read(count * size))
        if len(data) < count * size:
            return False
        parts: list[memoryview] = []
        for start in range(0, len(data), size):
            parts += (data[start : start + 8], data[start + _FRAME_HEADER.size : start + size])
        after: Sum = struct.unpack_from(">II", data, len(data) - size + 16)
        # Leading zeros do not change the checksum, and pad to a size that can be verified.
        if not _sums_to(before, after, b"".join(parts), shape.big, verify, _VERIFIED_MAX):
            return False
        before = after
        left -= count
    return not left


def pages(database: Path, verify: Verify = verify_slowly) -> frozenset[int]:
    """The numbers of the pages that are read from the WAL, not from the database file; at least those that were durable
    at the call."""
    try:
        with open(f"{database}{WAL}", "rb") as file:
            shape = _WalHeader.of(file.read(HEADER_BYTES))
            if shape is None:
                return frozenset()
            scan = _Scan(file, shape, verify)
            scan.run((os.fstat(file.fileno()).st_size - HEADER_BYTES) // shape.frame_bytes, 0)
            return frozenset(scan.numbers)
    except FileNotFoundError:
        return frozenset()


def guard(database: Path, verify: Verify, *, accept_loss: bool = False) -> None:
    """Raise if the WAL is damaged, before SQLite drops the commits behind the damage; or, if the loss is accepted, keep
    a copy of the WAL and truncate it to its good part. It must not be written meanwhile."""
    damage = judge(database, verify).damage
    if damage is not None:
        damage = judge(database, verify).damage  # a reader that closed just then may have removed the files
    if damage is None:
        return
    if not accept_loss:
        raise refusal(damage)
    kept = _keep_copy(database)
    _cut(database, damage.keep)
    logger.error(
        "%s is damaged (%s) and the loss was accepted: %s; the damaged files are kept in %s; run `tailrace check`",
        damage.file, damage.what, _lost(damage), kept,
    )  # fmt: skip


def refusal(damage: Damage) -> Corrupt:
    """The error for a damaged WAL, with the possible remedies."""
    try:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(os.stat(damage.file).st_mtime)) + " UTC"
    except OSError:
        written = "never"
    return Corrupt(
        f"the write-ahead log {damage.file!r} (last written {written}) is damaged: {damage.what}. It is not a torn "
        f"tail: opening it would lose acknowledged writes ({_lost(damage)}). Restore a backup; or accept the loss "
        "(tailrace serve --accept-loss, tailrace.open(..., accept_loss=True)), which keeps a copy of the damaged files",
        code=DAMAGED,
        facts={"frame": damage.frame, "commits": damage.commits},
    )


def _lost(damage: Damage) -> str:
    if damage.frame == 0 and damage.commits == 0:
        return "an unknown number of commits"
    return f"{damage.commits} commit{'s' if damage.commits != 1 else ''} from frame {max(damage.frame, 1)} on"


def _keep_copy(database: Path) -> Path:
    """Copy the WAL and its index into a directory beside them that only the owner can read."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = Path(tempfile.mkdtemp(prefix=f"damaged-{stamp}-", dir=database.parent))  # mode 0700
    for suffix in (WAL, INDEX):
        source = Path(f"{database}{suffix}")
        if not source.exists():
            continue
        target = os.open(kept / source.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(target, "wb") as out, open(source, "rb") as file:
            shutil.copyfileobj(file, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
    return kept


def _cut(database: Path, keep: int) -> None:
    path = Path(f"{database}{WAL}")
    Path(f"{database}{INDEX}").unlink(missing_ok=True)  # SQLite recreates it
    if path.exists():
        with open(path, "r+b") as file:
            file.truncate(keep)
            os.fsync(file.fileno())


def read_index(path: Path) -> WalIndex | None:
    """The header of the wal-index; None if there is no valid one."""
    try:
        with open(path, "rb") as file:
            data = file.read(136)
    except OSError:
        return None
    if len(data) < 100:
        return None
    found: list[WalIndex] = []
    (copied,) = struct.unpack_from("=I", data, 96)
    for start in (0, 48):
        fields = _INDEX_HEADER.unpack_from(data, start)
        body = data[start : start + 40]
        if fields[0] == _VERSION and fields[3] and add((0, 0), body, sys.byteorder == "big") == fields[-2:]:
            found.append(WalIndex(fields[6], copied, fields[10]))
    return max(found, key=lambda one: one.frames) if found else None


def continues(before: Sum, after: Sum, frame: bytes, big: bool, verify: Verify) -> bool:
    """Whether a frame whose checksum is `after` follows one whose checksum is `before`.

    The checksum is linear: its initial value can be subtracted from the result. So a function that verifies checksums
    that begin at zero works for all but the first words."""
    before = add(before, frame[:8] + frame[24:32], big)
    return _sums_to(before, after, frame[32:], big, verify, len(frame) - _FRAME_HEADER.size)


def _sums_to(before: Sum, after: Sum, data: bytes, big: bool, verify: Verify, size: int) -> bool:
    """Whether `data` turns the checksum `before` into `after`. `size`: of the verified bytes, with leading zeros."""
    if big:
        data = _words(data, True).tobytes()
    first, second = before
    one, two, three, four = _power(len(data) // 8)
    return verify(
        data.rjust(size - 8, b"\0")
        + struct.pack(
            "<II",
            (after[0] - one * first - two * second) & _MASK,
            (after[1] - three * first - four * second) & _MASK,
        )
    )


@cache
def _power(steps: int) -> tuple[int, int, int, int]:
    """The effect of that many zero words on a checksum, as a matrix."""
    one, two, three, four = 1, 0, 0, 1
    for _ in range(steps):
        one, two = (one + three) & _MASK, (two + four) & _MASK
        three, four = (three + one) & _MASK, (four + two) & _MASK
    return one, two, three, four


def _words(data: bytes, big: bool) -> array[int]:
    words = array("I", data)
    assert words.itemsize == 4, "this machine has no integers of 32 bits"
    if big != (sys.byteorder == "big"):
        words.byteswap()
    return words


def _judge(path: Path, file: IO[bytes], index: WalIndex | None, verify: Verify, only: int | None) -> Verdict:
    size = os.fstat(file.fileno()).st_size
    header = file.read(HEADER_BYTES)
    shape = _WalHeader.of(header)
    if shape is None:
        shape = None if only is not None else _guessed(file, header, verify)
        if shape is None:
            return _headless(path, index, f"has {size} bytes and no valid header")
        scan = _Scan(file, shape, verify)
        scan.run((size - HEADER_BYTES) // shape.frame_bytes, 0)
        return Verdict(0, Damage(str(path), "the header fails its checksum", 0, scan.commits + scan.lost(0), 0))
    if index is not None and index.salts != shape.salts:
        index = None  # it belongs to another log: one of the two was started later
        if only is not None:
            return Verdict(0)
    scan = _Scan(file, shape, verify)
    there = (size - HEADER_BYTES) // shape.frame_bytes
    counted = index.frames if index is not None else 0
    scan.run(there if only is None else min(there, only), counted)
    bad = scan.bad or there + 1
    what = scan.defect
    if what is None and scan.good < counted:
        state = "fails its checksum" if bad <= there else "is missing"
        what = f"frame {bad} {state}, and the wal-index counts {counted} frames that were durable"
    if what is None:
        return Verdict(scan.good, commits=scan.commits)
    copied = index.copied if index is not None else 0
    keep = 0 if bad <= copied else HEADER_BYTES + scan.good * shape.frame_bytes
    return Verdict(scan.good, Damage(str(path), what, bad, scan.lost(copied), keep))


def _headless(path: Path, index: WalIndex | None, state: str) -> Verdict:
    """A WAL without a header is empty, unless the wal-index counts frames that are not in the database file."""
    if index is None or index.frames <= index.copied:
        return Verdict(0)
    what = f"the file {state}, and the wal-index counts {index.frames} frames that were durable"
    return Verdict(0, Damage(str(path), what, 0, 0, 0))


class _WalHeader(msgspec.Struct, frozen=True):
    """The header of a WAL: the format of its frames."""

    big: bool
    page_bytes: int
    salts: bytes
    sum: Sum

    @property
    def frame_bytes(self) -> int:
        return _FRAME_HEADER.size + self.page_bytes

    @classmethod
    def of(cls, header: bytes) -> _WalHeader | None:
        if len(header) < HEADER_BYTES:
            return None
        magic, version, page_bytes, _, salts, *stored = _WAL_HEADER.unpack(header)
        big = bool(magic & 1)
        if magic & ~1 != _MAGIC or version != _VERSION or page_bytes not in _PAGE_SIZES:
            return None
        return cls(big, page_bytes, salts, tuple(stored)) if add((0, 0), header[:24], big) == tuple(stored) else None


def _guessed(file: IO[bytes], header: bytes, verify: Verify) -> _WalHeader | None:
    """The original of a damaged header, if the first frame continues it: with its stored checksum, or with the computed
    one if that was damaged. A header is smaller than a sector, so it cannot be torn."""
    if len(header) < HEADER_BYTES:
        return None
    stored: Sum = struct.unpack(">II", header[24:])
    for page_bytes in _PAGE_SIZES:
        file.seek(HEADER_BYTES)
        frame = file.read(_FRAME_HEADER.size + page_bytes)
        if len(frame) < _FRAME_HEADER.size + page_bytes:
            return None
        after: Sum = struct.unpack_from(">II", frame, 16)
        for big in (False, True):
            for before in (stored, add((0, 0), header[:24], big)):
                if any(frame[:24]) and continues(before, after, frame, big, verify):
                    return _WalHeader(big, page_bytes, frame[8:16], before)
    return None


class _Scan:
    """One pass over the frames of a WAL."""

    def __init__(self, file: IO[bytes], shape: _WalHeader, verify: Verify) -> None:
        self._file = file
        self._shape = shape
        self._verify = verify
        self.good = 0  # frames up to the last good commit
        self.commits = 0  # in them
        self.numbers: set[int] = set()  # of the pages before the bad frame
        self.bad = 0  # the first bad frame, 0 if there is none
        self.defect: str | None = None  # the evidence that it is not a torn tail
        self._behind: list[int] = []  # frames from the bad one on that end commits

    def lost(self, copied: int) -> int:
        """The number of commits behind the damage, without those in the database file."""
        return sum(1 for commit in self._behind if commit > copied)

    def run(self, count: int, counted: int) -> None:
        """Examine `count` frames, of which `counted` were durable according to the wal-index."""
        shape, verify = self._shape, self._verify
        self._file.seek(HEADER_BYTES)
        before = shape.sum
        computed: Sum | None = None  # the computed checksum of the previous frame, if the stored one may be wrong
        committed = False  # whether a commit lies between the bad frame and this one, in one chain with it
        for number in range(1, count + 1):
            frame = self._file.read(shape.frame_bytes)
            number_of_page, mark, salts, *stored = _FRAME_HEADER.unpack_from(frame)
            after: Sum = tuple(stored)
            ours = salts == shape.salts
            # Frames of an older log are normal behind the end, and are skipped.
            linked = (ours or not self.bad) and any(frame[:8]) and continues(before, after, frame, shape.big, verify)
            if not self.bad and ours and linked:
                self.numbers.add(number_of_page)
                if mark:
                    self.good = number
                    self.commits += 1
                before = after
                continue
            if not self.bad:
                self.bad = number
                if linked and not self._straddles(number, 16):
                    self.defect = f"frame {number} has other salts than the header"
                committed = ours and bool(mark) and not self._straddles(number, 8)
                chained = True
            else:
                chained = linked or (
                    ours and computed is not None and continues(computed, after, frame, shape.big, verify)
                )
                if chained and committed and self.defect is None:
                    self.defect = f"frame {self.bad} fails its checksum, but frame {number}, of a later commit, is good"
                committed = chained and (committed or bool(mark))
            if mark and ours and (chained or number <= counted):
                self._behind.append(number)
            computed = add(before, frame[:8] + frame[24:], shape.big) if ours and not linked else None
            before = after

    def _straddles(self, number: int, within: int) -> bool:
        """Whether a sector ends `within` a frame's header, so that its two parts may be of different times."""
        return (HEADER_BYTES + (number - 1) * self._shape.frame_bytes + within) % _SECTOR == 0

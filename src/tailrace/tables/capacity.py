"""What an operation would cost in DynamoDB's units. Told to those who ask, never charged.

A read unit covers 4 KB, half of one where the read may be stale; a write unit covers 1 KB. Transactions cost twice.
"""

from __future__ import annotations

import msgspec

_READ_BYTES = 4096
_WRITE_BYTES = 1024


class Part(msgspec.Struct, frozen=True):
    """The units that an index used."""

    read: float
    write: float
    local: bool


class Capacity(msgspec.Struct, frozen=True):
    """Units used on one table: its own, and those of its indexes by name."""

    table: str
    read: float = 0.0
    write: float = 0.0
    parts: dict[str, Part] = {}

    @property
    def total(self) -> float:
        return self.total_read + self.total_write

    @property
    def total_read(self) -> float:
        return self.read + sum(part.read for part in self.parts.values())

    @property
    def total_write(self) -> float:
        return self.write + sum(part.write for part in self.parts.values())

    def __add__(self, other: Capacity) -> Capacity:
        parts = dict(self.parts)
        for name, part in other.parts.items():
            mine = parts.get(name)
            parts[name] = part if mine is None else Part(mine.read + part.read, mine.write + part.write, part.local)
        return Capacity(self.table, self.read + other.read, self.write + other.write, parts)


def read_units(size: int, consistent: bool, transactional: bool = False) -> float:
    """Units to read `size` bytes; an empty answer costs as much as a small one."""
    blocks = max(1, -(-size // _READ_BYTES))
    if transactional:
        return 2.0 * blocks
    return float(blocks) if consistent else blocks / 2


def write_units(size: int, transactional: bool = False) -> float:
    """Units to write an item of `size` bytes, or to remove one."""
    blocks = max(1, -(-size // _WRITE_BYTES))
    return float(2 * blocks if transactional else blocks)

"""The cost of an operation in DynamoDB's capacity units. Reported on request, never enforced.

A read unit covers 4 KB, half a unit for an eventually consistent read; a write unit covers 1 KB. Transactions cost
twice. A scan costs at least the minimum read of each of the service's partitions that it goes through, of which an
on-demand table has four: a scan of one small item costs 2 units, a consistent one 4.
"""

from __future__ import annotations

import msgspec

_READ_BYTES = 4096
_WRITE_BYTES = 1024
_ON_DEMAND_BITS = 2  # an on-demand table begins with four partitions, a provisioned one with one


class IndexCapacity(msgspec.Struct, frozen=True):
    """The units that an index used."""

    read: float
    write: float
    local: bool


class Capacity(msgspec.Struct, frozen=True):
    """Units used on one table: its own, and those of its indexes by name."""

    table: str
    read: float = 0.0
    write: float = 0.0
    parts: dict[str, IndexCapacity] = {}

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
            parts[name] = (
                part if mine is None else IndexCapacity(mine.read + part.read, mine.write + part.write, part.local)
            )
        return Capacity(self.table, self.read + other.read, self.write + other.write, parts)


def partitions_scanned(first: bytes | None, last: bytes | None, before: bytes | None, on_demand: bool) -> int:
    """How many of the service's partitions are between two keys, of which None is the end of the table. A scan that
    did not come to `last`, which then is None, went up to the key `before`."""
    if not on_demand:
        return 1
    start = _hash(first) if first is not None else 0
    if last is not None:
        end = _hash(last)
    else:
        end = (_hash(before) if before is not None else 1 << 64) - 1
    return max(1, (end >> 64 - _ON_DEMAND_BITS) - (start >> 64 - _ON_DEMAND_BITS) + 1)


def _hash(key: bytes) -> int:
    """The position of a key in the hash space: its first bytes (see `key`)."""
    return int.from_bytes(key[:8].ljust(8, b"\0"))


def read_units(size: int, consistent: bool, transactional: bool = False, *, partitions: int = 1) -> float:
    """Units to read `size` bytes; an empty result costs as much as a small one, in each partition."""
    blocks = max(partitions, -(-size // _READ_BYTES))
    if transactional:
        return 2.0 * blocks
    return float(blocks) if consistent else blocks / 2


def write_units(size: int, transactional: bool = False) -> float:
    """Units to write an item of `size` bytes, or to remove one."""
    blocks = max(1, -(-size // _WRITE_BYTES))
    return float(2 * blocks if transactional else blocks)

"""Sealing: staged segments are joined with their neighbours and moved to where they stay.

The oldest staged segments are taken, those of each log joined, and stored in place of them in one small transaction. An
entry is rewritten once. Segments are joined outside of the transaction; if a trim or a deletion has removed one of
them meanwhile, the transaction does nothing, and the next search finds what is left.
"""

from __future__ import annotations

import msgspec

from tailrace import failpoints, limits
from tailrace.log.entry import Segment
from tailrace.log.segments import SEGMENTS, packed
from tailrace.storage.engine import Reader, Tx


class SealableSegments(msgspec.Struct, frozen=True):
    """Segments that take the place of staged ones: how many, from number `first` to `last`."""

    first: int
    last: int
    count: int
    segments: list[Segment]


def find(reader: Reader) -> SealableSegments | None:
    """What is to be sealed next; None if few segments are staged."""
    first = last = size = 0
    found: list[Segment] = []
    for number, segment in reader.staged(SEGMENTS, limits.STAGED_ROWS, limits.SEAL_ROWS):
        size += len(segment.body)
        if found and size > limits.SEAL_BYTES:
            break
        first, last = first or number, number
        found.append(segment)
    if not found:
        return None
    segments = packed(found, limits.SEALED_BYTES, limits.SEALED_ENTRIES)
    return SealableSegments(first, last, len(found), segments)


def seal(tx: Tx, found: SealableSegments) -> bool:
    """Store them; False if the staged ones are not what they were."""
    failpoints.hit("seal.step")
    if not tx.settle(SEGMENTS, found.first, found.last, found.count, found.segments):
        return False
    failpoints.hit("seal.moved")
    if tx.recent is not None:
        for segment in found.segments:
            tx.recent.join(segment)
    return True

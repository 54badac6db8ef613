"""Idempotent producers: a request that is sent twice has the effect of one.

Theory of operation: a producer counts its requests from 0 within an epoch and raises the epoch when it restarts. The
stream remembers, per producer, the epoch and the highest sequence accepted. A request is new (the next sequence, or
sequence 0 of a higher epoch), a duplicate (a sequence seen before), stale (a lower epoch: a zombie) or leaves a gap.
This state commits with the entry, so that neither can exist without the other.
"""

from __future__ import annotations

import msgspec

from tailrace.errors import Invalid, SequenceGap, StaleEpoch
from tailrace.storage.table import StorageTable


class ProducerState(msgspec.Struct, frozen=True, gc=False):
    log: int
    id: str
    epoch: int
    sequence: int  # the highest accepted


class ProducerClaim(msgspec.Struct, frozen=True, gc=False):
    """The producer headers of a request."""

    id: str
    epoch: int
    sequence: int


PRODUCERS = StorageTable("producers", ProducerState, key=("log", "id"), cached=True)


def is_retry(claim: ProducerClaim, known: ProducerState | None) -> bool:
    """Whether this request was accepted before."""
    return known is not None and claim.epoch == known.epoch and claim.sequence <= known.sequence


def is_new(claim: ProducerClaim, known: ProducerState | None) -> bool:
    """True for a new request, False for a duplicate; raises for one that must not be accepted."""
    if known is None:
        if claim.sequence != 0:
            raise SequenceGap(expected=0, received=claim.sequence)
        return True
    if claim.epoch < known.epoch:
        raise StaleEpoch(current=known.epoch, received=claim.epoch)
    if claim.epoch > known.epoch:
        # A new epoch restarts at 0; without this a crashed producer could never write again.
        if claim.sequence != 0:
            raise Invalid(
                f"producer epoch {claim.epoch} is new and must start at sequence 0, not {claim.sequence}",
                code="INVALID_EPOCH_SEQUENCE",
            )
        return True
    if claim.sequence > known.sequence + 1:
        raise SequenceGap(expected=known.sequence + 1, received=claim.sequence)
    return claim.sequence == known.sequence + 1

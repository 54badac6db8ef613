"""The judgement table of idempotent producers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import Invalid, SequenceGap, StaleEpoch
from tailrace.streams.producer import ProducerClaim, ProducerState, is_new

KNOWN = ProducerState(log=1, id="p", epoch=5, sequence=7)


@pytest.mark.parametrize(
    ("known", "epoch", "sequence", "expected"),
    [
        (None, 0, 0, True),
        (None, 9, 0, True),
        (None, 0, 1, SequenceGap),
        (None, 9, 3, SequenceGap),
        (KNOWN, 5, 8, True),
        (KNOWN, 5, 7, False),
        (KNOWN, 5, 6, False),
        (KNOWN, 5, 0, False),
        (KNOWN, 5, 9, SequenceGap),
        (KNOWN, 5, 2**53 - 1, SequenceGap),
        (KNOWN, 6, 0, True),
        (KNOWN, 2**53 - 1, 0, True),
        (KNOWN, 6, 1, Invalid),
        (KNOWN, 6, 8, Invalid),
        (KNOWN, 4, 0, StaleEpoch),
        (KNOWN, 4, 8, StaleEpoch),
        (KNOWN, 0, 7, StaleEpoch),
    ],
)
def test_judgement(known: ProducerState | None, epoch: int, sequence: int, expected: Any) -> None:
    claim = ProducerClaim("p", epoch, sequence)
    if isinstance(expected, bool):
        assert is_new(claim, known) is expected
        return
    with pytest.raises(expected):
        is_new(claim, known)


def test_errors_carry_the_facts() -> None:
    with pytest.raises(SequenceGap, match="sequence 12 leaves a gap, 8 is expected") as gap:
        is_new(ProducerClaim("p", 5, 12), KNOWN)
    assert (gap.value.expected, gap.value.received, gap.value.status) == (8, 12, 409)
    with pytest.raises(StaleEpoch, match="epoch 3 is stale, the current one is 5; restart with epoch 6") as stale:
        is_new(ProducerClaim("p", 3, 0), KNOWN)
    assert (stale.value.current, stale.value.status) == (5, 403)
    with pytest.raises(Invalid, match="epoch 6 is new and must start at sequence 0, not 2") as early:
        is_new(ProducerClaim("p", 6, 2), KNOWN)
    assert early.value.code == "INVALID_EPOCH_SEQUENCE"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_accepted_sequences_are_dense_within_each_epoch(claims: list[tuple[int, int]]) -> None:
    known: ProducerState | None = None
    accepted: list[tuple[int, int]] = []
    for epoch, sequence in claims:
        try:
            if is_new(ProducerClaim("p", epoch, sequence), known):
                known = ProducerState(1, "p", epoch, sequence)
                accepted.append((epoch, sequence))
        except (SequenceGap, StaleEpoch, Invalid):
            continue
    assert accepted == sorted(set(accepted))
    for epoch in {epoch for epoch, _ in accepted}:
        numbers = [sequence for of, sequence in accepted if of == epoch]
        assert numbers == list(range(len(numbers)))

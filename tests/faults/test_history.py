"""The checker finds each kind of violation, and nothing in histories without one."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.history import (
    DONE,
    INITIAL,
    REFUSED,
    UNKNOWN,
    Acknowledgement,
    Delivery,
    Outcome,
    Read,
    Swap,
    Write,
    counter_violations,
    group_violations,
    log_violations,
    reader_violations,
    register_violations,
    route_violations,
    swap_violations,
    transfer_violations,
)


def one(found: list[str], *words: str) -> None:
    """One violation, whose line has these words."""
    assert len(found) == 1, found
    assert all(word in found[0] for word in words), found


A, B, C = Write("a", 0, 1, DONE), Write("b", 2, 3, DONE), Write("c", 4, 5, UNKNOWN)


# -- logs


def test_a_log_without_a_fault() -> None:
    assert log_violations("s", [A, B, C], ["a", "b"]) == []
    assert log_violations("s", [A, B, C], ["a", "b", "c"]) == []
    assert log_violations("s", [A, Write("r", 1, 2, REFUSED)], ["a"]) == []


def test_an_acknowledged_entry_that_is_lost() -> None:
    one(log_violations("s", [A, B], ["a"]), "s: b", "lost")


def test_an_entry_that_is_there_twice() -> None:
    one(log_violations("s", [A, B], ["a", "b", "b"]), "b", "2 times")
    one(log_violations("s", [A, C], ["a", "c", "c"]), "c", "2 times")


def test_a_refused_entry_that_is_there() -> None:
    one(log_violations("s", [Write("r", 0, 1, REFUSED)], ["r"]), "refused")


def test_an_entry_that_nobody_wrote() -> None:
    one(log_violations("s", [A], ["a", "z"]), "z", "nobody")


def test_entries_out_of_order() -> None:
    one(log_violations("s", [A, B], ["b", "a"]), "a is behind b")
    far = [Write("x", 0, 1, DONE), Write("y", 0, 9, DONE), Write("z", 2, 3, DONE)]
    one(log_violations("s", far, ["z", "y", "x"]), "x is behind z")


def test_concurrent_and_unknown_entries_may_have_any_order() -> None:
    both = [Write("x", 0, 5, DONE), Write("y", 1, 4, DONE)]
    assert log_violations("s", both, ["y", "x"]) == []
    late = [Write("u", 0, 1, UNKNOWN), Write("y", 2, 3, DONE)]
    assert log_violations("s", late, ["y", "u"]) == []


# -- registers


def test_a_register_without_a_fault() -> None:
    reads = [Read(INITIAL, -2, -1), Read("a", 1, 2), Read("b", 3, 4), Read("b", 8, 9)]
    assert register_violations("r", [A, B, C], reads) == []
    assert register_violations("r", [A, B, C], [Read("c", 8, 9)]) == []


def test_a_stale_read() -> None:
    one(register_violations("r", [A, B], [Read("a", 4, 5)]), "a was read", "b was written")
    one(register_violations("r", [A, B], [Read("b", 3, 4), Read("a", 5, 6)]), "a", "b")
    one(register_violations("r", [A], [Read(INITIAL, 2, 3)]), INITIAL, "a")


def test_a_read_of_the_future_of_a_refused_value_and_of_none() -> None:
    one(register_violations("r", [B], [Read("b", 0, 1)]), "before it was written")
    one(register_violations("r", [Write("r", 0, 1, REFUSED)], [Read("r", 2, 3)]), "refused")
    one(register_violations("r", [A], [Read("z", 2, 3)]), "nobody")


def test_a_write_with_an_unknown_outcome_that_appears_and_is_gone_again() -> None:
    reads = [Read("c", 6, 7), Read("b", 8, 9)]
    one(register_violations("r", [A, B, C], reads), "b", "c")


def explained(writes: list[Write], reads: list[Read]) -> bool:
    """Whether some order of all operations explains a history: tries all of them."""
    certain = [each for each in writes if each.outcome is DONE]
    doubtful = [each for each in writes if each.outcome is UNKNOWN]
    for number in range(len(doubtful) + 1):
        for chosen in itertools.combinations(doubtful, number):
            operations: list[Write | Read] = [*certain, *chosen, *reads]
            if any(_fits(order) for order in itertools.permutations(operations)):
                return True
    return False


def _fits(order: tuple[Write | Read, ...]) -> bool:
    value, latest_s = INITIAL, -math.inf
    for each in order:
        until_s = each.until_s if isinstance(each, Write) else each.ended_s
        if until_s < latest_s:
            return False
        latest_s = max(latest_s, each.began_s)
        if isinstance(each, Write):
            value = each.value
        elif each.value != value:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Write], list[Read]]:
    count = draw(st.integers(2, 5))
    times = draw(st.permutations(range(2 * count)))  # no two events at the same time
    spans = [sorted(times[2 * number : 2 * number + 2]) for number in range(count)]
    is_write = [draw(st.booleans()) for _ in spans]
    outcomes = st.sampled_from([DONE, DONE, UNKNOWN])
    writes = [
        Write(str(number), span[0], span[1], draw(outcomes))
        for number, (span, is_it) in enumerate(zip(spans, is_write, strict=True))
        if is_it
    ]
    values = st.sampled_from([INITIAL, *(each.value for each in writes)])
    reads = [Read(draw(values), span[0], span[1]) for span, is_it in zip(spans, is_write, strict=True) if not is_it]
    return writes, reads


@given(histories())
def test_the_zones_tell_what_trying_all_orders_tells(history: tuple[list[Write], list[Read]]) -> None:
    writes, reads = history
    assert (register_violations("r", writes, reads) == []) == explained(writes, reads)


# -- conditional writes, counters


def test_a_chain_of_conditional_writes() -> None:
    swaps = [Swap(INITIAL, A), Swap("a", B), Swap("b", C)]
    assert swap_violations("k", swaps, [], "b") == []
    assert swap_violations("k", swaps, [], "c") == []


def test_a_lost_update() -> None:
    both = [Swap(INITIAL, A), Swap(INITIAL, Write("b", 0, 1, DONE))]
    found = swap_violations("k", both, [], "b")
    assert any("lost update: a and b have both replaced" in line for line in found), found
    found = swap_violations("k", [Swap(INITIAL, A), Swap("a", B)], [], "a")
    assert any("lost update: b was acknowledged" in line for line in found), found


def test_a_value_that_cannot_have_been_reached() -> None:
    found = swap_violations("k", [Swap("z", A)], [], "a")
    assert any("cannot have been reached" in line for line in found), found


def test_counters() -> None:
    outcomes: list[Outcome] = [DONE, DONE, UNKNOWN, REFUSED]
    assert counter_violations("n", outcomes, 2) == []
    assert counter_violations("n", outcomes, 3) == []
    one(counter_violations("n", outcomes, 1), "lost updates")
    one(counter_violations("n", outcomes, 4), "twice")


# -- groups


def test_a_group_without_a_fault() -> None:
    deliveries = [Delivery("m", 0, 1), Delivery("m", 1.5, 2), Delivery("n", 0, 1)]
    acks = [Acknowledgement("m", 1, 2, DONE), Acknowledgement("n", 1, 2, UNKNOWN)]
    assert group_violations("g", ["m", "n"], deliveries, acks) == []
    assert group_violations("g", ["m", "n"], [*deliveries, Delivery("n", 5, 6)], acks) == []


def test_messages_that_were_lost_or_came_from_nowhere() -> None:
    one(group_violations("g", ["m", "n"], [Delivery("m", 0, 1)], []), "n was never delivered")
    one(group_violations("g", ["m"], [Delivery("m", 0, 1), Delivery("n", 0, 1)], []), "n", "not in the topic")
    one(group_violations("g", ["m"], [Delivery("m", 0, 1)], [Acknowledgement("q", 2, 3, DONE)]), "q", "never delivered")


def test_an_acknowledgement_that_was_lost() -> None:
    deliveries = [Delivery("m", 0, 1), Delivery("m", 3, 4)]
    one(group_violations("g", ["m"], deliveries, [Acknowledgement("m", 1, 2, DONE)]), "again after")


# -- the same in two places


def test_what_a_live_reader_gets() -> None:
    assert reader_violations("r", ["1", "2"], ["1", "2"]) == []
    one(reader_violations("r", ["1", "1", "2"], ["1", "2"]), "entry 1 is 2, and 1 was delivered")
    one(reader_violations("r", ["1"], ["1", "2"]), "entry 1 is 2, and None was delivered")
    one(reader_violations("r", ["1", "2"], ["1"]), "entry 1 is None, and 2 was delivered")


def test_changes_and_their_messages() -> None:
    changes = {"k": ["1", "2"]}
    assert route_violations("t", changes, {"k": ["1", "2"]}) == []
    one(route_violations("t", changes, {"k": ["1"]}), "without a message: 2")
    one(route_violations("t", changes, {"k": ["1", "2", "2"]}), "without a change: 2")
    one(route_violations("t", changes, {"k": ["2", "1"]}), "different orders")


def test_transactions_that_were_done_in_part() -> None:
    whole = {"topic": ["a", "b"], "stream": ["a", "b"]}
    assert transfer_violations("x", [A, B, C], whole, 100, 100) == []
    one(transfer_violations("x", [A, B], whole, 99, 100), "the sum is 99")
    torn = transfer_violations("x", [A, B, C], {"topic": ["a", "b", "c"], "stream": ["a", "b"]}, 100, 100)
    one(torn, "c is in only one")
    lost = transfer_violations("x", [A, B], {"topic": ["a"], "stream": ["a"]}, 100, 100)
    assert len(lost) == 2
    assert all("b was acknowledged" in line for line in lost)

"""The rules of consumer groups, without a database."""

from __future__ import annotations

import pytest

from tailrace import limits
from tailrace.errors import Conflict, Invalid, TooMany
from tailrace.topics import group
from tailrace.topics.group import GroupProgress, LeasedRange

NOW = 1_000_000


def held(
    first: int, end: int, *, by: str = "ann", lease: int = 1, until_ms: int = NOW + 60_000, attempt: int = 1
) -> LeasedRange:
    return LeasedRange(first, end, attempt, by, lease, until_ms, 60_000)


def test_the_floor_is_the_first_that_is_not_acknowledged() -> None:
    assert GroupProgress(7).floor == 7
    assert GroupProgress(7, (held(2, 4), held(5, 6))).floor == 2


def test_what_is_free_is_offered_before_what_is_new_lowest_first() -> None:
    place = GroupProgress(10, (held(0, 2, until_ms=NOW), held(3, 5), held(6, 9, until_ms=NOW - 1)))
    found = group.offers(place, 12, NOW, 100)
    assert [(each.first, each.end, each.attempt) for each in found] == [(0, 2, 1), (6, 9, 1), (10, 12, 0)]
    assert [(each.first, each.end) for each in group.offers(place, 12, NOW, 3)] == [(0, 2), (6, 7)]


def test_what_was_taken_is_held_and_the_cursor_moves() -> None:
    place = GroupProgress(4, (held(0, 4, until_ms=NOW),))
    given = group.offers(place, 9, NOW, 6)
    after = group.taken(place, given, "bob", 2, NOW + 5, 5)
    assert after.cursor == 6
    assert [(each.first, each.end, each.attempt, each.consumer, each.lease) for each in after.ranges] == [
        (0, 4, 2, "bob", 2),
        (4, 6, 1, "bob", 2),
    ]


def test_an_acknowledgement_covers_only_what_that_consumer_holds() -> None:
    """The loss test of DESIGN.md in small: 0-199 and 200-399, and the second acknowledges 399."""
    place = GroupProgress(400, (held(0, 200, by="first", lease=1), held(200, 400, by="second", lease=2)))
    after, count = group.acknowledged(place, "second", None, 399)
    assert count == 200
    assert after.floor == 0
    assert [(each.first, each.end) for each in after.ranges] == [(0, 200)]


def test_an_acknowledgement_in_the_middle_leaves_the_rest() -> None:
    after, count = group.acknowledged(GroupProgress(10, (held(0, 10),)), "ann", None, 3)
    assert (count, after.floor) == (4, 4)


def test_an_acknowledgement_by_lease_leaves_the_consumers_others() -> None:
    place = GroupProgress(20, (held(0, 10, lease=1), held(10, 20, lease=2)))
    after, count = group.acknowledged(place, "ann", 2, 19)
    assert (count, after.floor) == (10, 0)


def test_an_acknowledgement_beyond_what_was_delivered_is_refused() -> None:
    with pytest.raises(Invalid) as raised:
        group.acknowledged(GroupProgress(10, (held(0, 10),)), "ann", None, 10)
    assert raised.value.code == "NOT_DELIVERED"


def test_an_acknowledgement_below_the_floor_does_nothing() -> None:
    place = GroupProgress(10, (held(8, 10),))
    assert group.acknowledged(place, "ann", None, 5) == (place, 0)


def test_a_lease_that_ran_out_can_be_settled_until_another_has_it() -> None:
    late = GroupProgress(4, (held(0, 4, until_ms=NOW - 1),))
    assert group.acknowledged(late, "ann", None, 3)[1] == 4
    assert group.extended(late, "ann", None, NOW + 9, 9)[1] == 4
    taken = group.taken(late, group.offers(late, 4, NOW, 9), "bob", 2, NOW + 9, 9)
    assert group.acknowledged(taken, "ann", None, 3)[1] == 0
    with pytest.raises(Conflict) as raised:
        group.extended(taken, "ann", None, NOW + 9, 9)
    assert raised.value.code == "LEASE_LOST"


def test_messages_given_back_are_unleased_and_free_after_the_delay() -> None:
    place, count = group.returned(GroupProgress(10, (held(0, 10),)), "ann", None, 3, 5, NOW, 2_000)
    assert count == 2
    assert [(each.first, each.end, each.lease) for each in place.ranges] == [(0, 3, 1), (3, 5, 0), (5, 10, 1)]
    assert group.offers(place, 10, NOW + 1_999, 99) == []
    assert [(each.first, each.end) for each in group.offers(place, 10, NOW + 2_000, 99)] == [(3, 5)]
    assert group.acknowledged(place, "ann", None, 9)[1] == 8, "what was given back is not acknowledged with the rest"


def test_giving_back_one_by_one_makes_one_range() -> None:
    place = GroupProgress(10, (held(0, 10),))
    for offset in range(10):
        place, _ = group.returned(place, "ann", None, offset, offset + 1, NOW, 0)
    assert len(place.ranges) == 1


def test_a_lease_that_would_outlast_its_span_has_run_out() -> None:
    """The wall clock went back while the server was down: better a delivery too many than a message stuck for hours."""
    stuck = held(0, 5, until_ms=NOW + 3_600_000)
    assert stuck.free(NOW)
    assert not held(0, 5, until_ms=NOW + 60_000).free(NOW)


def test_a_clock_that_is_a_little_behind_does_not_end_a_lease() -> None:
    """Processes and machines do not agree to the millisecond: the lease was made at NOW, by another one's clock."""
    fresh = held(0, 5, until_ms=NOW + 60_000)
    assert not fresh.free(NOW - 1)
    assert not fresh.free(NOW - limits.LEASE_SKEW_MS)
    assert fresh.free(NOW - limits.LEASE_SKEW_MS - 1)


def test_retention_takes_what_is_not_in_anybodys_hands() -> None:
    place = GroupProgress(10, (held(0, 2, until_ms=NOW), held(2, 4), held(5, 8, until_ms=NOW)))
    after, lost = group.overtaken(place, 6, NOW)
    assert lost == 2 + 1
    assert [(each.first, each.end) for each in after.ranges] == [(2, 4), (6, 8)]
    assert group.overtaken(GroupProgress(3), 8, NOW) == (GroupProgress(8), 5)
    assert group.overtaken(GroupProgress(8), 3, NOW) == (GroupProgress(8), 0)


def test_when_to_look_again() -> None:
    place = GroupProgress(
        9, (held(0, 2, until_ms=NOW + 50), held(2, 4, until_ms=NOW + 20), held(4, 6, until_ms=NOW - 1))
    )
    assert group.wake_ms(place, NOW) == NOW + 20
    assert group.wake_ms(GroupProgress(9), NOW) is None


def test_ranges_are_bounded() -> None:
    ranges = tuple(held(at * 2, at * 2 + 1) for at in range(limits.GROUP_RANGES_MAX))
    place = GroupProgress(limits.GROUP_RANGES_MAX * 2, ranges)
    with pytest.raises(TooMany):
        group.taken(place, group.offers(place, place.cursor + 5, NOW, 5), "ann", 2, NOW + 9, 9)


def test_ranges_are_packed_and_unpacked() -> None:
    ranges = (held(0, 5), held(9, 12, by="böb", lease=0))
    assert group.unpacked(group.packed(ranges)) == ranges
    assert group.unpacked(group.packed(())) == ()


def test_neighbours_that_are_nobodys_are_made_one_before_there_are_too_many() -> None:
    half = limits.GROUP_RANGES_MAX // 2
    place = GroupProgress(2 * limits.GROUP_RANGES_MAX, (held(0, 2 * limits.GROUP_RANGES_MAX),))
    for offset in range(
        2 * limits.GROUP_RANGES_MAX
    ):  # each with a delay of its own, so that none is like the one before
        place, count = group.returned(place, "ann", None, offset, offset + 1, NOW, 1_000 + offset)
        assert count == 1
    assert len(place.ranges) <= limits.GROUP_RANGES_MAX
    assert sum(each.end - each.first for each in place.ranges) == 2 * limits.GROUP_RANGES_MAX
    later = NOW + 10 * limits.GROUP_RANGES_MAX
    assert sum(each.end - each.first for each in group.offers(place, place.cursor, later, 10**6)) == place.cursor
    expired = GroupProgress(
        4 * half, tuple(held(at * 2, at * 2 + 2, lease=at + 1, until_ms=NOW) for at in range(2 * half))
    )
    after = group.taken(expired, group.offers(expired, 4 * half, NOW, 1), "bob", 9_999, NOW + 9, 9)
    assert after.floor == 0
    assert after.ranges[0].consumer == "bob"


def test_what_a_consumer_never_got_was_no_attempt() -> None:
    place, _ = group.returned(GroupProgress(3, (held(0, 3),)), "ann", None, 0, 3, NOW, 0, undelivered=True)
    (offer,) = group.offers(place, 3, NOW, 9)
    assert offer.attempt == 0
    assert group.taken(place, [offer], "bob", 2, NOW + 9, 9).ranges[0].attempt == 1

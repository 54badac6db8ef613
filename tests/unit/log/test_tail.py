"""Who waits for what is appended."""

from __future__ import annotations

from typing import Any

from tailrace.log import tail as tail_module
from tailrace.log.tail import Tail
from tailrace.storage.engine import Notice


def test_notices_of_commits_that_are_not_of_a_log_have_numbers_of_their_own() -> None:
    numbers = [number for name, number in vars(tail_module).items() if name.isupper() and isinstance(number, int)]
    assert len(numbers) >= 6
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 0


def test_each_waiter_is_notified_of_its_log_once_per_commit() -> None:
    tail, received = Tail(), []
    tail.subscribe(1, lambda items: received.append(("one", items)))
    tail.subscribe(1, lambda items: received.append(("two", items)))
    tail.subscribe(2, lambda items: received.append(("other", items)))
    tail.publish([Notice(1, "a"), Notice(3, "b"), Notice(1, "c")])
    assert received == [("one", ["a", "c"]), ("two", ["a", "c"])]
    tail.publish([])
    tail.publish([Notice(3, "x")])
    assert len(received) == 2
    assert len(tail) == 3


def test_after_unsubscribing_nothing_is_received() -> None:
    tail, received = Tail(), []
    leave = tail.subscribe(1, received.append)
    stay = tail.subscribe(1, received.append)
    leave()
    leave()
    tail.publish([Notice(1, "a")])
    assert received == [["a"]]
    stay()
    assert len(tail) == 0
    tail.publish([Notice(1, "b")])
    assert received == [["a"]]


def test_unsubscribing_and_subscribing_during_a_notification() -> None:
    tail, received = Tail(), []
    leave: list[Any] = []

    def first(items: list[Any]) -> None:
        received.append(("first", items))
        leave[0]()
        tail.subscribe(1, lambda items: received.append(("late", items)))

    leave.append(tail.subscribe(1, first))
    tail.subscribe(1, lambda items: received.append(("second", items)))
    tail.publish([Notice(1, "a")])
    assert received == [("first", ["a"]), ("second", ["a"])]
    tail.publish([Notice(1, "b")])
    assert received[2:] == [("second", ["b"]), ("late", ["b"])]


def test_a_watcher_is_notified_which_logs_were_touched() -> None:
    tail, touched = Tail(), []
    tail.watch(touched.append)
    tail.publish([Notice(1, "a"), Notice(2, "b"), Notice(1, "c")])
    tail.publish([])
    assert touched == [{1, 2}]

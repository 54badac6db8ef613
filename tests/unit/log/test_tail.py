"""Who waits for what is appended."""

from __future__ import annotations

from typing import Any

from tailrace.log.tail import Tail
from tailrace.storage.engine import Notice


def test_each_waiter_hears_of_its_log_once_per_commit() -> None:
    tail, heard = Tail(), []
    tail.subscribe(1, lambda items: heard.append(("one", items)))
    tail.subscribe(1, lambda items: heard.append(("two", items)))
    tail.subscribe(2, lambda items: heard.append(("other", items)))
    tail.publish([Notice(1, "a"), Notice(3, "b"), Notice(1, "c")])
    assert heard == [("one", ["a", "c"]), ("two", ["a", "c"])]
    tail.publish([])
    tail.publish([Notice(3, "x")])
    assert len(heard) == 2
    assert len(tail) == 3


def test_after_leaving_nothing_is_heard() -> None:
    tail, heard = Tail(), []
    leave = tail.subscribe(1, heard.append)
    stay = tail.subscribe(1, heard.append)
    leave()
    leave()
    tail.publish([Notice(1, "a")])
    assert heard == [["a"]]
    stay()
    assert len(tail) == 0
    tail.publish([Notice(1, "b")])
    assert heard == [["a"]]


def test_leaving_and_coming_while_being_told() -> None:
    tail, heard = Tail(), []
    leave: list[Any] = []

    def first(items: list[Any]) -> None:
        heard.append(("first", items))
        leave[0]()
        tail.subscribe(1, lambda items: heard.append(("late", items)))

    leave.append(tail.subscribe(1, first))
    tail.subscribe(1, lambda items: heard.append(("second", items)))
    tail.publish([Notice(1, "a")])
    assert heard == [("first", ["a"]), ("second", ["a"])]
    tail.publish([Notice(1, "b")])
    assert heard[2:] == [("second", ["b"]), ("late", ["b"])]


def test_a_watcher_hears_which_logs_were_touched() -> None:
    tail, touched = Tail(), []
    tail.watch(touched.append)
    tail.publish([Notice(1, "a"), Notice(2, "b"), Notice(1, "c")])
    tail.publish([])
    assert touched == [{1, 2}]

"""Who waits for what is appended.

Waiters register a callback per log. After a commit the runner hands over the commit's notices; callbacks run on the
thread that publishes (the event loop's where there is one), so they must be short and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tailrace.storage.engine import Notice

Callback = Callable[[list[Any]], None]


class Tail:
    """The waiters of all logs of one database."""

    def __init__(self) -> None:
        self._waiters: dict[int, dict[int, Callback]] = {}
        self._watchers: list[Callable[[set[int]], None]] = []
        self._number = 0

    def subscribe(self, log: int, callback: Callback) -> Callable[[], None]:
        """Call back with the notices of each commit that touched `log`; the result ends it."""
        self._number += 1
        number = self._number
        self._waiters.setdefault(log, {})[number] = callback

        def unsubscribe() -> None:
            waiters = self._waiters.get(log)
            if waiters is not None and waiters.pop(number, None) is not None and not waiters:
                del self._waiters[log]

        return unsubscribe

    def watch(self, callback: Callable[[set[int]], None]) -> Callable[[], None]:
        """Call back with the numbers of all logs that each commit touched; the result ends it."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def publish(self, notices: Iterable[Notice]) -> None:
        """Tell everyone. The commit is durable."""
        if self._waiters:
            told: dict[int, list[Any]] = {}
            for notice in notices:
                if notice.log in self._waiters:
                    told.setdefault(notice.log, []).append(notice.item)
            for log, items in told.items():
                for callback in list(self._waiters.get(log, {}).values()):
                    callback(items)
        if self._watchers:
            touched = {notice.log for notice in notices}
            if touched:
                for watcher in self._watchers:
                    watcher(touched)

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._waiters.values())

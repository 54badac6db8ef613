"""Notifications of new entries, for waiting readers.

Waiters register a callback per log, from any thread. After a commit the runner hands over the commit's notices;
callbacks run on the thread that publishes (the event loop's where there is one), so they must be short and must not
raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from tailrace.storage.engine import Notice

# Numbers that no log has, for other notices of a commit.
HOUSEKEEPING: Final = -1  # a commit has left work for housekeeping
KEYS_CHANGED: Final = -2  # an access key was made, changed or deleted
USERS_CHANGED: Final = -3  # a user was made, changed or dropped, or a session of theirs was ended
TRANSFERS_DUE: Final = -4  # an export or import was begun, or can be continued
POLICIES_CHANGED: Final = -5  # a resource policy was put or deleted
ACKNOWLEDGED: Final = -6  # messages of a topic were acknowledged; for the process that writes

MISSED: Final = "missed"  # the item of a notice: others may have been lost, so waiters must look for themselves
Notices = list[Notice]
Callback = Callable[[list[Any]], None]


class Tail:
    """The waiters of all logs of one database."""

    def __init__(self) -> None:
        self._waiters: dict[int, dict[int, Callback]] = {}
        self._watchers: list[Callable[[set[int]], None]] = []
        self._relays: list[Callable[[Notices], None]] = []
        self._number = 0
        self._changing = threading.Lock()  # concurrent registrations must not be lost

    def subscribe(self, log: int, callback: Callback) -> Callable[[], None]:
        """Call back with the notices of each commit that touched `log`; returns a function that unsubscribes."""
        with self._changing:
            self._number += 1
            number = self._number
            self._waiters.setdefault(log, {})[number] = callback

        def unsubscribe() -> None:
            with self._changing:
                waiters = self._waiters.get(log)
                if waiters is not None and waiters.pop(number, None) is not None and not waiters:
                    del self._waiters[log]

        return unsubscribe

    def watch(self, callback: Callable[[set[int]], None]) -> Callable[[], None]:
        """Call back with the numbers of all logs that each commit touched; returns a function that unsubscribes."""
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def relay(self, callback: Callable[[Notices], None]) -> Callable[[], None]:
        """Call back with the notices of each commit, before the waiters; returns a function that ends it."""
        self._relays.append(callback)
        return lambda: self._relays.remove(callback)

    def missed(self) -> None:
        """Notify all waiters that notices may have been lost."""
        for log in list(self._waiters):
            for callback in list(self._waiters.get(log, {}).values()):
                callback([MISSED])

    def publish(self, notices: list[Notice]) -> None:
        """Notify the waiters. The commit is durable."""
        if self._relays:
            for relay in self._relays:
                relay(notices)
        if self._waiters:
            by_log: dict[int, list[Any]] = {}
            for notice in notices:
                if notice.log in self._waiters:
                    by_log.setdefault(notice.log, []).append(notice.item)
            for log, items in by_log.items():
                for callback in list(self._waiters.get(log, {}).values()):
                    callback(items)
        if self._watchers:
            touched = {notice.log for notice in notices}
            if touched:
                for watcher in self._watchers:
                    watcher(touched)

    def __len__(self) -> int:
        """The number of callbacks that wait for entries of a log."""
        return sum(len(waiters) for log, waiters in list(self._waiters.items()) if log > 0)

"""Which subscriptions follow a path: an index in memory, so that a commit costs a look-up per stream it touched.

The index is a hint: commands check the database before they act on it. Patterns are grouped by their first segment, and
results are cached until a subscription is created, deleted or changes its streams by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import limits
from tailrace.subscriptions.subscription import Pattern, compiled


class Routes:
    """Maps paths to the ids of subscriptions."""

    def __init__(self) -> None:
        self._followers: dict[str, tuple[Pattern | None, tuple[str, ...]]] = {}
        self._patterns: dict[str | None, dict[str, Pattern]] = {}
        self._named: dict[str, set[str]] = {}
        self._known: dict[str, tuple[str, ...]] = {}

    def put(self, name: str, pattern: str | None, streams: Iterable[str]) -> None:
        """Subscription `name` follows this pattern and these streams, and nothing else."""
        self.remove(name)
        glob = None if pattern is None else compiled(pattern)
        named = tuple(set(streams))
        self._followers[name] = (glob, named)
        if glob is not None:
            self._patterns.setdefault(glob.head, {})[name] = glob
        for path in named:
            self._named.setdefault(path, set()).add(name)

    def remove(self, name: str) -> None:
        self._known.clear()
        glob, named = self._followers.pop(name, (None, ()))
        if glob is not None:
            group = self._patterns[glob.head]
            del group[name]
            if not group:
                del self._patterns[glob.head]
        for path in named:
            names = self._named[path]
            names.discard(name)
            if not names:
                del self._named[path]

    def of(self, path: str) -> tuple[str, ...]:
        """The subscriptions that follow `path`."""
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= limits.ROW_CACHE_MAX:
                self._known.clear()
            known = self._known[path] = self._find(path)
        return known

    def _find(self, path: str) -> tuple[str, ...]:
        found = set(self._named.get(path, ()))
        for head in (path.partition("/")[0], None):
            found.update(name for name, glob in self._patterns.get(head, {}).items() if glob.matches(path))
        return tuple(sorted(found))

    def __len__(self) -> int:
        return len(self._followers)

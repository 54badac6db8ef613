"""How fast commits have been of late, and what follows for the next one."""

from __future__ import annotations

from tailrace import limits


class CommitPace:
    """Judges by the times of commits whether the next one may run on the event loop's thread, where readers wait for
    it: after LOOP_COMMITS_MIN fast ones. A slow commit outweighs several fast ones, and one that readers would notice
    very many."""

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit = 0

    @property
    def fast(self) -> bool:
        return self._credit >= limits.LOOP_COMMITS_MIN

    def note(self, seconds: float) -> None:
        """A commit took so long."""
        if seconds < limits.LOOP_COMMIT_S:
            self._credit = min(self._credit + 1, 2 * limits.LOOP_COMMITS_MIN)
        elif seconds < limits.LOOP_STALL_S:
            self._credit -= limits.LOOP_COMMITS_MIN // 16
        else:
            self._credit = -limits.LOOP_STALL_COMMITS

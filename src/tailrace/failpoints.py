"""Named points in the code where a test can kill the process or make an operation fail.

A failpoint does nothing unless it was armed, by `arm()` or by the environment:
``TAILRACE_FAILPOINTS="commit.synced=kill@3"`` kills the process (SIGKILL) at the third pass. Actions are `kill`
and `raise`. Passing an unarmed failpoint costs one test of an empty dict.
"""

from __future__ import annotations

import os
import signal
from typing import ClassVar, Final

from tailrace.errors import Error

# Every failpoint, in the order in which a write passes them, with the state at that point.
NAMES: Final = {
    "batch.begun": "a transaction is open, no command has run",
    "command.ran": "a command has run, its writes are buffered",
    "batch.flushed": "the rows are in the transaction, COMMIT has not been called",
    "commit.synced": "the commit is durable, no caller has a response",
    "batch.answered": "the results are handed to the callers, waiters are not woken yet",
    "bus.answering": "with workers: a commit is durable and its notices are sent, no worker has a result",
    "stages.fenced": "a commit of stages is noted as done, none of its rows is written yet",
    "stages.part": "some rows of a commit of stages are written, others are not yet",
    "stages.written": "all rows of a commit of stages are written, the stages are there still",
    "stages.slice": "a transaction of a large commit of stages has written its rows, more transactions are to follow",
    "views.fenced": "a view's positions are moved, none of the rows of the batch is written yet",
    "views.written": "all rows of a batch of a view are written, the batch is not counted yet",
    "sweep.step": "a step of background removal is about to run",
    "seal.step": "segments of entries are joined, nothing of it is written yet",
    "seal.moved": "joined segments of entries have taken the place of staged ones, COMMIT has not been called",
    "backup.copied": "the database is copied, nothing of it is stored yet",
    "backup.object": "a chunk of a backup is stored",
    "backup.stored": "all chunks of a backup are stored, nothing lists them yet",
    "transfer.step": "a file of an export is in its bucket, or records of an import are read; neither is recorded yet",
    "transfer.end": "an export or import is complete, which is not recorded yet",
    "migration.step": "a migration ran, its version is not recorded yet",
    "rotation.begun": "the next secret key is in its file, nothing is encrypted with it yet",
    "rotation.committed": "all secrets are encrypted with the next key, its file is not the current one yet",
}


class Failure(Error):
    """Raised by a failpoint that is armed with `raise`."""

    status: ClassVar[int] = 503

    def __init__(self, name: str) -> None:
        super().__init__(f"failpoint {name} was armed", code="FAILPOINT")


_armed: dict[str, tuple[str, int]] = {}


def arm(name: str, action: str = "raise", *, at: int = 1) -> None:
    """Do `action` at the `at`-th pass of the failpoint `name`."""
    if name not in NAMES:
        raise ValueError(f"there is no failpoint {name!r}; use one of {', '.join(NAMES)}")
    if action not in ("kill", "raise"):
        raise ValueError(f"failpoint action {action!r} is not kill or raise")
    _armed[name] = (action, at)


def disarm() -> None:
    _armed.clear()


def hit(name: str) -> None:
    """Pass the failpoint `name`."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    action, left = armed
    if left > 1:
        _armed[name] = (action, left - 1)
        return
    del _armed[name]
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise Failure(name)


def _arm_from_environment() -> None:
    for part in filter(None, os.environ.get("TAILRACE_FAILPOINTS", "").split(";")):
        name, _, rest = part.partition("=")
        action, _, at = rest.partition("@")
        arm(name, action or "raise", at=int(at or 1))


_arm_from_environment()

"""The thread that exports and imports: it waits for buckets, which neither the writer nor housekeeping may do.

It belongs to the process that writes. What is due is in the database, so that a thread may stop at any point and the
next one goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from tailrace.errors import Error, Unavailable
from tailrace.transfers import exporting, importing
from tailrace.transfers.buckets import BucketError, Buckets
from tailrace.transfers.commands import DueTransfers, EndTransfer
from tailrace.transfers.transfer import EXPORT, TransferRow

logger = logging.getLogger("tailrace.transfers")
STOP_S: Final = 5.0  # how long closing waits for a bucket; the thread then ends by itself
MESSAGE_CHARS: Final = 200  # of an error that is not the bucket's
AGAIN_S: Final = 5.0  # after which work is tried again that could not be recorded


class TransferWorker:
    """Exports and imports what is due."""

    def __init__(self, execute: Callable[[Any], Any], buckets: Buckets) -> None:
        self._execute = execute
        self.buckets = buckets
        self._stopping = threading.Event()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Go on with what an earlier process left."""
        try:
            if self._execute(DueTransfers()):
                self.wake()
        except Error as error:
            logger.warning("exports and imports wait: %s", error)

    def wake(self) -> None:
        """There is something to do: on a thread, which starts with the first."""
        self._wakeup.set()
        with self._starting:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="tailrace-transfers", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End after the current step."""
        with self._starting:
            self._stopping.set()
            thread, self._thread = self._thread, None  # a second call does not wait again
        self._wakeup.set()
        if thread is not None:
            thread.join(STOP_S)

    def _run(self) -> None:
        again_s: float | None = None
        while True:
            self._wakeup.wait(again_s)
            self._wakeup.clear()
            if self._stopping.is_set():
                return
            again_s = None
            try:
                self.advance()
            except Unavailable as error:
                if not self._stopping.is_set():
                    logger.warning("exports and imports wait: %s", error)
                again_s = AGAIN_S
            except Exception:
                if not self._stopping.is_set():
                    logger.exception("an export or import failed")
                again_s = AGAIN_S

    def advance(self) -> int:
        """Do what is due now; the number of exports and imports that were worked on."""
        due: list[TransferRow] = self._execute(DueTransfers())
        for row in due:
            if self._stopping.is_set():
                break
            self._advance(row)
        return len(due)

    def _advance(self, row: TransferRow) -> None:
        step = exporting.advance if row.kind == EXPORT else importing.advance
        name = row.export.bucket if row.kind == EXPORT else row.import_.bucket
        try:
            step(self._call, self.buckets.find(name), row, self._stopping.is_set)
        except BucketError as error:
            logger.warning("%s %s of table %r failed: %s", row.kind, row.id, row.name, error)
            self._call(EndTransfer(row.id, error.code, str(error), failed=True))
        except Unavailable:
            raise
        except Exception as error:  # others must not wait for it
            logger.exception("%s %s of table %r failed", row.kind, row.id, row.name)
            self._call(EndTransfer(row.id, "InternalError", str(error)[:MESSAGE_CHARS], failed=True))

    def _call(self, command: Any) -> Any:
        """Execute, unless the database is being closed."""
        if self._stopping.is_set():
            raise Unavailable("the database is being closed")
        return self._execute(command)

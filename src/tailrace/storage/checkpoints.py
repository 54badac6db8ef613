"""Copies the write-ahead log into the database file, after verifying it.

A page of the database file has a checksum that is verified whenever it is read (`pages.py`). One in the write-ahead log
has not: its frame's checksum is read by SQLite only when it recovers the log. A checkpoint gives a page a new checksum,
whatever its content is by then. So the log is verified before each checkpoint, and regularly in between; damage is
never copied, and the database is not used any more: opening it again reports what is lost (`wal.py`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import apsw

from tailrace.errors import Corrupt
from tailrace.storage import wal

logger = logging.getLogger("tailrace.storage")


class Checkpoints:
    """The checkpoints of one database, by its writing connection. `verify` is None if the files cannot be read
    directly."""

    def __init__(self, writer: apsw.Connection, database: Path, verify: wal.Verify | None) -> None:
        self._writer = writer
        self._database = database
        self._verify = verify
        self._again_at = 0  # pages, after a checkpoint that a reader kept from copying all
        self.at = 0  # pages of the log that are copied
        self.damage: Corrupt | None = None  # the damage that was found
        self._restarts = False  # whether the next commit may restart the log, since all of it is copied
        pages, copied = writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        self._log = wal.WalIndex(pages, copied, wal.read_salts(database))  # after the last commit
        writer.set_wal_hook(self._note)  # instead of the one by which SQLite checkpoints

    def examine(self) -> None:
        """Verify the part of the log that is not copied yet. From any thread."""
        if self._verify is None or self.damage is not None:
            return
        try:
            damage = wal.examine(self._database, self._log, self._verify)
        except FileNotFoundError:  # reported by `presence.py`
            return
        except OSError as error:  # SQLite will fail to read it too
            logger.warning("the write-ahead log of %s cannot be read: %s", self._database, error)
            return
        if damage is not None:
            self.damage = wal.refusal(damage)

    def committed(self) -> None:
        """Checkpoint, if the log is long enough. The commit is durable, whatever the outcome."""
        if self.at and self._log.frames >= max(self.at, self._again_at):
            with suppress(apsw.Error):
                self.run()

    def near(self) -> bool:
        """Whether one of the next commits will checkpoint."""
        return bool(self.at) and self._log.frames >= max(self.at, self._again_at) * 7 // 8

    def run(self) -> None:
        """Checkpoint now, as far as readers permit."""
        self.examine()
        if self.damage is None:
            there, copied = self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._log = wal.WalIndex(self._log.frames, copied, self._log.salts)
            self._restarts = copied == there
            self._again_at = 0 if self._restarts else self._log.frames + self.at // 4

    def finish(self) -> None:
        """Before the connection is closed, which checkpoints if it is the last one."""
        self.examine()
        if self.damage is not None:
            leave_log(self._writer)

    def _note(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        log = self._log
        salts = log.salts
        if self._restarts or pages < log.frames:
            with suppress(OSError):
                salts = wal.read_salts(self._database)
            self._restarts = salts == log.salts
        self._log = wal.WalIndex(pages, log.copied if salts == log.salts else 0, salts)
        return apsw.SQLITE_OK


def leave_log(connection: apsw.Connection) -> None:
    """Keep a connection from checkpointing when it is closed."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

"""A PostgreSQL and its synchronous standby, which take turns: when the primary is killed, the standby is promoted, and
a new standby is made from it. Each is in a file system of its own where that is allowed, so that its disk can be full.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.patience import PATIENCE_S
from tests.support.postgres import PostgresServer

SIZE: Final = "6g"  # of a file system; memory is used only for what is written
# A disk that is full for a while must not need a larger write-ahead log in that time.
SETTINGS: Final = (
    "max_connections = 150",
    "wal_level = replica",
    "hot_standby = on",
    "max_wal_size = '1GB'",
    "wal_recycle = on",
    "wal_receiver_status_interval = '1s'",
    "wal_retrieve_retry_interval = '200ms'",
)


class Standby(PostgresServer):
    """A copy that follows the primary `of`."""

    def __init__(self, of: PostgresServer, within: Path | None) -> None:
        self._of = of
        super().__init__(durable=True, within=within)

    def _create(self, durable: bool, more: Sequence[str]) -> None:
        source = f"host={self._of.directory} user=postgres application_name=standby"
        self._command("pg_basebackup", "-d", source, "-D", str(self._data), "-R", "-X", "stream", "-c", "fast")
        self.configure(f"unix_socket_directories = '{self.directory}'", "synchronous_standby_names = ''")


class Databases:
    """The primary, and perhaps a standby, with the name of a database in them."""

    def __init__(self, *, standby: bool) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-faults-"))
        self._directory.chmod(0o755)  # PostgreSQL runs as another user than these tests, if that is root
        self._mounted: list[Path] = []
        self.can_fill = self._may_mount()
        self.primary = PostgresServer(durable=True, within=self._place(), settings=SETTINGS)
        self.primary.execute("CREATE DATABASE tailrace")
        self.standby: PostgresServer | None = None
        if standby:
            self.follow()

    # -- file systems

    def _may_mount(self) -> bool:
        if os.getuid() != 0 or shutil.which("mount") is None:
            return False
        with contextlib.suppress(subprocess.CalledProcessError):
            self._unmount(self._mount())
            return True
        return False

    def _mount(self) -> Path:
        place = Path(tempfile.mkdtemp(prefix="disk-", dir=self._directory))
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tailrace-faults", str(place)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        place.chmod(0o777)
        self._mounted.append(place)
        return place

    def _unmount(self, place: Path) -> None:
        self._mounted.remove(place)
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()

    def _place(self) -> Path | None:
        return self._mount() if self.can_fill else None

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """While this lasts, the disk of the primary has no space."""
        place = self.primary.directory.parent
        filler = place / "filler"
        free = shutil.disk_usage(place).free
        try:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free - (1 << 20)))
                file.seek(0, os.SEEK_END)
                while file.write(bytes(4096)):  # PostgreSQL is taking the rest meanwhile
                    pass
            yield
        finally:
            filler.unlink()

    # -- who is the primary

    def follow(self) -> None:
        """Make a standby, and let commits wait for it."""
        assert self.standby is None
        self.standby = Standby(self.primary, self._place())
        self._synchronous("standby")
        wait_until(lambda: self.synchronous, "the standby does not follow")

    @property
    def synchronous(self) -> bool:
        """Whether every commit waits for the standby now."""
        states = self.primary.execute("SELECT sync_state FROM pg_stat_replication")
        return ("sync",) in states or ("quorum",) in states

    def _synchronous(self, names: str) -> None:
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.primary.execute("SELECT pg_reload_conf()")

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby. There is none afterwards; `follow` makes one."""
        old, new = self.primary, self.standby
        assert new is not None
        old.kill()
        self.primary, self.standby = new, None
        new.promote()
        self._synchronous("")
        self._remove(old)

    def _remove(self, server: PostgresServer) -> None:
        place = server.directory.parent
        server.remove()
        if place in self._mounted:
            self._unmount(place)

    def close(self) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                self._remove(server)
        shutil.rmtree(self._directory, ignore_errors=True)


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > until_s:
            raise AssertionError(f"{what}, after {timeout_s:g} s")
        time.sleep(0.02)

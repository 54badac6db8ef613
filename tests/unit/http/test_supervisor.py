"""The supervisor while it waits for a process: the writer and signals are not forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.config import Config
from tailrace.errors import Unavailable
from tailrace.http import supervisor
from tailrace.http.supervisor import WRITER, ChildProcess, Supervisor


class Forked(Supervisor):
    """Its processes do nothing: the writer is up at once, workers as soon as there are two writers."""

    def __init__(self, home: Path) -> None:
        super().__init__(Config(), [], str(home), False, Config)
        self.forked: list[int] = []
        self.writing: dict[int, int] = {}
        self.running: list[subprocess.Popen[bytes]] = []

    def _fork(self, slot: int) -> ChildProcess:
        reading, self.writing[slot] = os.pipe()
        self.running.append(subprocess.Popen(["sleep", "600"]))
        self.forked.append(slot)
        if slot == WRITER:
            os.write(self.writing[WRITER], b"\0")
        if self.forked.count(WRITER) == 2:
            os.write(self.writing[0], b"\0")
        return ChildProcess(slot, self.running[-1].pid, reading)

    def close(self) -> None:
        for each in self.running:
            each.kill()
            each.wait()
        for handle in (*self.writing.values(), self._alive, self._alive_writing):
            os.close(handle)
        self._bus.close()


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forked]:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    made = Forked(tmp_path)
    made._start(WRITER)
    yield made
    made.close()
    while signal.sigtimedwait(supervisor.SIGNALS, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)


def test_a_writer_that_ends_while_a_worker_is_awaited_is_replaced(parent: Forked) -> None:
    parent.running[0].send_signal(signal.SIGKILL)
    parent._start(0)
    assert parent.forked == [WRITER, 0, WRITER]
    assert sorted(child.slot for child in parent._children.values()) == [WRITER, 0]


def test_a_signal_to_stop_is_heeded_while_a_process_is_awaited(parent: Forked) -> None:
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    with pytest.raises(supervisor._Terminated):
        parent._start(0)
    assert signal.SIGTERM not in signal.sigpending()


def test_a_process_that_is_not_up_in_time(parent: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_S", 0.05)
    with pytest.raises(Unavailable, match=r"worker 0 .* did not start"):
        parent._start(0)

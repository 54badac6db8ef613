"""Signals that ask a program to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from tailrace.cli.signals import stop_on_signals
from tests.support.patience import AT_ONCE_S, PATIENCE_S

# The lock of the event is held as `wait` holds it for some instructions before and after it sleeps.
SIGNALLED_WITHIN_WAIT = """
import signal, threading
from tailrace.cli.signals import stop_on_signals

stop = threading.Event()
with stop_on_signals(stop, signal.SIGINT):
    with stop._cond:
        signal.raise_signal(signal.SIGINT)
    assert stop.wait({seconds})
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_and_a_second_one_interrupts(how: signal.Signals) -> None:
    stop = threading.Event()
    before = signal.getsignal(how)
    with stop_on_signals(stop):
        signal.raise_signal(how)
        assert stop.wait(PATIENCE_S)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(how)
    assert signal.getsignal(how) is before


def test_a_signal_that_arrives_within_wait_stops_as_well() -> None:
    script = SIGNALLED_WITHIN_WAIT.format(seconds=AT_ONCE_S)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)

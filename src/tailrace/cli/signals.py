"""Signals that ask a program to end."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(stop: threading.Event, *numbers: signal.Signals) -> Iterator[None]:
    """Within this, the first of SIGINT and SIGTERM (or of those given) sets `stop`; the second is a KeyboardInterrupt.

    The event is set on another thread: a handler runs in the middle of whatever the main thread does, and that may be
    to wait for this event, with its lock held, which the handler would then wait for in vain."""
    signalled = False

    def handle(number: int, frame: object) -> None:
        nonlocal signalled
        if signalled:
            raise KeyboardInterrupt
        signalled = True
        _thread.start_new_thread(stop.set, ())  # `threading.Thread` takes locks that the main thread may hold

    before = {each: signal.signal(each, handle) for each in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

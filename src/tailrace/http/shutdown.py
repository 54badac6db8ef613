"""Notices that the process that hosts the ASGI application begins to stop.

ASGI says so too late: a server such as uvicorn first waits for its connections to end and only then sends the lifespan
event, and a live reader's connection does not end by itself. What starts the shutdown is a signal, so the handlers that
the server has installed for SIGTERM and SIGINT are chained: ours first, then the server's own.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def on_stop_signals(callback: Callable[[], object]) -> Callable[[], None]:
    """Call back on the running event loop when the process is signalled to stop; the result undoes it.

    Does nothing outside the main thread, where Python allows no signal handlers, and for signals that the server does
    not handle, which end the process at once."""
    loop = asyncio.get_running_loop()
    installed: dict[int, tuple[Any, Any]] = {}

    def stop() -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, (ours, before) in installed.items():
            if signal.getsignal(number) is ours:  # else it was replaced or chained since
                signal.signal(number, before)
        installed.clear()

    if threading.current_thread() is not threading.main_thread():
        return stop
    for number in SIGNALS:
        before = signal.getsignal(number)
        if not callable(before):
            continue

        def chained(number: int, frame: FrameType | None, before: Callable[..., Any] = before) -> Any:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback)
            return before(number, frame)

        installed[number] = (chained, before)
        signal.signal(number, chained)
    return stop

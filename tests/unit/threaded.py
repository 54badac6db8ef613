"""A server in a thread of its own, for tests of what talks to one with plain, blocking calls."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tailrace.config import Config
from tailrace.http.serve import Running, start
from tests.support.patience import PATIENCE_S


class Served:
    """A started server, as a context manager."""

    def __init__(self, data: Path, **settings: Any) -> None:
        settings.setdefault("dev", "token" not in settings)
        self._config = Config(port=0, data=str(data), **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.running: Running

    def __enter__(self) -> Served:
        self._thread.start()
        self.running = self._call(start(self._config))
        self.url = self.running.url
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self.running.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

"""A small HTTP server beside the one under test: programs in other languages ask it to kill and start that server.

It also serves files to a browser, and collects its reports.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from tests.support.server import ServerProcess


class ControlServer:
    """Answers `POST /kill`, `/start` and `/report`, and `GET` of files. `start` makes a server for a port."""

    def __init__(
        self, start: Callable[[int], ServerProcess], files: Mapping[str, tuple[str, bytes]] | None = None
    ) -> None:
        self._start = start
        self._files = dict(files or {})
        self.reports: Queue[Any] = Queue()
        self.server: ServerProcess | None = None
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._listener.daemon_threads = True
        self._thread = threading.Thread(target=self._listener.serve_forever, name="control")
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> ControlServer:
        self.server = self._start(0).start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()
        assert self.server is not None
        if self.server.returncode is None:
            self.server.terminate()

    def add(self, path: str, content_type: str, content: bytes) -> None:
        """Serve one more file."""
        self._files[path] = (content_type, content)

    def _do(self, what: str, body: bytes) -> None:
        assert self.server is not None
        if what == "/kill":
            self.server.kill()
        elif what == "/start":
            self.server = self._start(self.server.port).start()
        elif what == "/report":
            self.reports.put(json.loads(body))
        else:
            raise AssertionError(f"{what} is unknown")

    def _handler(control) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler below has a `self` of its own
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content_type, content = control._files.get(self.path, ("text/plain", b""))
                self._respond(200 if self.path in control._files else 404, content_type, content)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                try:
                    control._do(self.path, body)
                except Exception as error:
                    self._respond(500, "text/plain", repr(error).encode())
                else:
                    self._respond(200, "text/plain", b"")

            def _respond(self, status: int, content_type: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name in the base class
                pass

        return Handler

"""The results of statements as JSON: whole where they are small, else streamed.

Rows of a SELECT are in Arrow until they are sent. A large reply is encoded a slice at a time, in a thread, when the
client has taken the one before; so it costs the memory of its Arrow batches, which is bounded for all replies, and
that of one slice. A reply that cannot be finished ends with the connection, so that no part is taken for the whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import TooMany
from tailrace.http.message import Answer, Frame, Headers, LiveResponse, Response, ResponseSink
from tailrace.sql.result import Result

WHOLE_BYTES: Final = 256 * limits.KiB  # of rows that are not streamed
FRAME_BYTES: Final = 256 * limits.KiB  # sent at once; then the client has time to take it
THREADS: Final = 2  # that encode

_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
_encode: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode


class Reply:
    """A status, and the fields of a JSON object: some, "results", and some more."""

    def __init__(
        self,
        status: int,
        before: dict[str, Any],
        results: Sequence[Result],
        after: dict[str, Any],
        headers: Headers = _JSON,
    ) -> None:
        self.status = status
        self.headers = headers
        self._before, self._after = before, after
        self._results = list(results)

    @property
    def rows_bytes(self) -> int:
        """About how much memory the rows of SELECT take that are still in Arrow, as JSON or in Python."""
        return sum([_selected(each).rows_bytes for each in self._results if _selected(each)])

    @property
    def arrow_bytes(self) -> int:
        return sum([_selected(each).bytes for each in self._results if _selected(each)])

    def pieces(self) -> Iterator[bytes]:
        """The JSON in pieces. Can be read once."""
        yield _encode(self._before)[:-1] + b',"results":['
        results, self._results = self._results, []
        for number, result in enumerate(results):
            if number:
                yield b","
            selected = _selected(result)
            if selected is None:
                yield _encode(_shown(result, {"rows": result.rows}))
            else:
                yield from _streamed(result)
            results[number] = None  # type: ignore[call-overload]
        after = _encode(self._after)[1:]
        yield b"]" + (b"," if self._after else b"") + after


def _selected(result: Result) -> Any:
    return getattr(result, "selected", None)


def _shown(result: Result, rows: dict[str, Any]) -> dict[str, Any]:
    return {
        **result.facts,
        "statement": result.statement,
        "columns": [{"name": column.name, "type": column.type} for column in result.columns],
        **rows,
        "row_count": result.row_count,
        "message": result.message,
    }


def _streamed(result: Result) -> Iterator[bytes]:
    """The same with rows that come a slice at a time."""
    whole = _encode(_shown(result, {"rows": []}))
    # Behind the rows there are two fields, in which nothing looks like an empty list.
    head, _, tail = whole.rpartition(b"[]")
    yield head + b"["
    first = True
    for rows in _selected(result).slices():
        yield (b"" if first else b",") + _encode(rows)[1:-1]
        first = False
    yield b"]" + tail


class Sender:
    """Makes answers of replies, and bounds what they hold in memory. `answer` is called on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tailrace-sql-rows")
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}  # bytes of Arrow, by principal

    def answer(self, name: str, reply: Reply) -> Answer:
        if reply.rows_bytes <= WHOLE_BYTES:
            return Response(reply.status, reply.headers, b"".join(reply.pieces()))
        size = reply.arrow_bytes
        with self._lock:
            mine, total = self._held.get(name, 0), sum(self._held.values())
            if max(2 * (mine + size), total + size) > limits.SELECT_RESULTS_BYTES_MAX:
                raise TooMany(
                    f"results that are being sent hold {mine:,} bytes for {name!r} and {total:,} for all, and this one "
                    f"has {size:,}; read those first, or use LIMIT",
                    code="SELECT_RESULTS_BUSY",
                )
            self._held[name] = mine + size
        return LiveResponse(reply.status, reply.headers, _Sending(self, name, size, reply), whole=True)

    def give_back(self, name: str, size: int) -> None:
        with self._lock:
            left = self._held[name] - size
            if left:
                self._held[name] = left
            else:
                del self._held[name]

    def next(self, pieces: Iterator[bytes]) -> asyncio.Future[bytes | None]:
        """The next piece, made in a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, next, pieces, None)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class _Sending:
    """Sends a reply. What it holds is given back at its end, also if it never begins: its client may have left."""

    def __init__(self, sender: Sender, name: str, size: int, reply: Reply) -> None:
        self._sender, self._name, self._size = sender, name, size
        self._reply: Reply | None = reply

    async def __call__(self, sink: ResponseSink) -> None:
        assert self._reply is not None
        pieces = self._reply.pieces()
        try:
            async with asyncio.timeout(limits.SELECT_SEND_S):
                while (piece := await self._sender.next(pieces)) is not None:
                    for at in range(0, len(piece), FRAME_BYTES):
                        sink.send(Frame(piece[at : at + FRAME_BYTES]))
                        await sink.drained()
        finally:
            self._end()

    def _end(self) -> None:
        if self._reply is not None:
            self._reply = None
            self._sender.give_back(self._name, self._size)

    def __del__(self) -> None:
        self._end()

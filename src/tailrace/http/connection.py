"""One HTTP/1.1 connection: bytes in, requests to the handler, answers out in the order of the requests.

Theory of operation. A request that has arrived (see `inbound`) becomes an `Exchange`: in `_waiting` while it may
not run yet, in `_owed` from its start until its answer is written. `_pump` moves exchanges on and is called
whenever something may have changed.

* Writes of one connection run side by side, in the order they came, and so share a commit. A read runs alone:
  it sees every write before it and none after it. At most `pipeline_max` run, and no more are begun in one turn of
  the loop, so that a client that sends many at once does not hold up others; the rest wait and, while any
  waits or the peer does not take its answers, nothing more is read from the socket.
* `_deaf` says that no further request is taken: the last one asked for that, was refused, or the server stops.
  When nothing is owed any more, a deaf connection closes; after a refusal it lingers, reading and dropping, because
  closing with unread input resets the connection and the client would lose the answer.
* A live answer is the first of `_owed` until its task ends.
* A long response is handed to the transport in slices, as the peer takes it; `_rest` is what is left, and while
  there is some, writing is paused. All that the peer has not taken is counted (see `unsent`).
* Nothing here sets a timer. Deadlines are compared by `check`, which the server's clock tick calls.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Coroutine
from sys import intern
from typing import Any, Final, cast

from tailrace import limits as named
from tailrace.http import wire
from tailrace.http.drive import Called, Drive
from tailrace.http.inbound import BODY, CLOSING, HEAD, IDLE, Inbound, log
from tailrace.http.message import Answer, Frame, LiveResponse, Request, Response, ResponseSink
from tailrace.http.shared import Shared
from tailrace.http.submitted import Handler, Submitted
from tailrace.http.unsent import COUNTED_FROM, SEND_BYTES, Held
from tailrace.http.wire import Refusal

# Below this, one copy is cheaper than a second buffer for the kernel.
JOIN_BYTES_MAX: Final = 64 * named.KiB

INTERNAL: Final = wire.error_response(500, "INTERNAL", "the server failed to answer; its log says why")
STOPPING: Final = wire.error_response(503, "UNAVAILABLE", "the server is stopping; send the request again")


class Exchange:
    """One request and, in time, its answer: of a queued command, or of the handler's coroutine under way."""

    __slots__ = ("_work", "answer", "connection", "http10", "request", "unsent")

    def __init__(self, connection: Connection, request: Request | None, http10: bool) -> None:
        self._work: Submitted | Drive[Answer] | None = None
        self.connection = connection
        self.request = request
        self.http10 = http10
        self.answer: Answer | None = None
        self.unsent = 0  # bytes of the response while it waits for its turn

    @property
    def reading(self) -> bool:
        """Whether it runs alone on its connection."""
        request = self.request
        return request is not None and (request.method in wire.READS or request.path in wire.CLAIMS)

    def begin(self, handler: Handler) -> None:
        """Call the handler, and answer when its work is done."""
        assert self.request is not None
        try:
            work = handler(self.request)
        except Exception as error:
            self.finished(None, error)
            return
        if isinstance(work, Submitted):
            self._work = work
            work.waiter = self._completed
        else:
            self._answer_with(work)

    def _answer_with(self, work: Answer | Coroutine[Any, Any, Answer]) -> None:
        if isinstance(work, (Response, LiveResponse)):  # a union of types would be made each time
            self.finished(work, None)
        else:
            drive: Drive[Answer] = Called(self.finished)
            self._work = drive
            drive.run(work)

    def _completed(self) -> None:
        submitted = self._work
        if submitted is None:  # the exchange was cancelled
            return
        assert isinstance(submitted, Submitted)
        self._work = None
        try:
            response = submitted.response()
        except Exception as error:
            self.finished(None, error)
        else:
            self._answer_with(response)

    def cancel(self) -> None:
        """Wait no longer. A queued command is executed all the same."""
        work = self._work
        if isinstance(work, Drive):
            work.cancel()
        elif work is None:
            return
        elif asyncio.current_task() is not None:
            asyncio.get_running_loop().call_soon(self.cancel)
        else:
            self._work = None
            self.finished(None, asyncio.CancelledError())

    def finished(self, result: Answer | None, error: BaseException | None) -> None:
        self._work = None  # it refers to this: else the answer would stay in memory until cycles are collected
        connection = self.connection
        if result is None:
            result = connection._failed(error or TypeError("the handler returned no answer"))
        self.answer = result
        if connection._transport is not None:
            owed = connection._owed
            if connection._write_paused or not owed or owed[0] is not self:
                connection._keep(self, result)
            connection._pump()


class LiveSink:
    """Where a live answer is written; see `message.ResponseSink`."""

    __slots__ = ("_chunked", "_connection", "_limit", "_transport")

    def __init__(self, connection: Connection, transport: asyncio.Transport, *, chunked: bool, limit: int) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = transport
        self._chunked = chunked
        self._limit = limit

    def send(self, *frames: Frame) -> None:
        transport = self._transport
        if transport is None:
            return
        # What has piled up counts, not what is to come: a reader that keeps up gets frames of any size.
        connection = self._connection
        piled_up = transport.get_write_buffer_size()
        if piled_up > self._limit:
            connection._drop_reader()
            return
        for frame in frames:
            if frame.data:  # an empty chunk would end the answer
                data = frame.chunk if self._chunked else frame.data
                transport.write(data)
                connection._written += len(data)
        if piled_up > COUNTED_FROM:
            connection._shared.unsent.note(connection)

    async def drained(self) -> None:
        if self._transport is not None:
            await self._connection._writable()

    def hold(self, held: Held) -> None:
        if self._transport is not None:
            self._connection._hold_memory(held)

    def release(self) -> None:
        self._connection._release_memory()

    def close(self) -> None:
        self._transport = None


class Connection(Inbound):
    """The protocol object of one socket."""

    __slots__ = (
        "_answers_bytes",
        "_begun",
        "_eof",
        "_held",
        "_is_cut",
        "_linger",
        "_live",
        "_more",
        "_more_bytes",
        "_owed",
        "_pumping",
        "_read_paused",
        "_rest",
        "_rest_at",
        "_sink",
        "_stall_deadline",
        "_transport",
        "_unsent_mark",
        "_waiting",
        "_writable_waiters",
        "_write_paused",
        "_written",
    )

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._transport: asyncio.Transport | None = None
        self._owed: list[Exchange] = []
        self._begun = 0  # requests, since the loop last had a turn
        self._waiting: deque[Exchange] | None = None  # made when needed: most connections never pipeline
        self._pumping = self._linger = self._eof = self._is_cut = False
        self._read_paused = self._write_paused = False
        self._stall_deadline = math.inf  # for the peer to take some of what is written
        self._unsent_mark = 0
        self._live: asyncio.Task[None] | None = None
        self._sink: LiveSink | None = None
        self._writable_waiters: list[asyncio.Future[None]] | None = None
        self._rest = b""  # the body of the response that is sent in slices; counted whole until its last one
        self._rest_at = 0
        self._more: list[bytes] | None = None  # what follows `_rest`, the last first
        self._more_bytes = 0
        self._answers_bytes = 0  # of responses that wait for their turn
        self._held: Held | None = None  # what the live response sends in slices
        self._written = 0  # bytes ever handed to the transport

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared, limits = self._shared, self._shared.limits
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        peer = transport.get_extra_info("peername")
        self._peer = intern(str(peer[0])) if isinstance(peer, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=shared.write_buffer_high)
        self._deadline = shared.now + limits.idle_timeout_s
        shared.connections.add(self)
        shared.stats.connections += 1
        if shared.stopping:
            self.abort()
        elif len(shared.connections) > limits.connections_max:
            self._turn_away()

    def connection_lost(self, error: Exception | None) -> None:
        shared = self._shared
        shared.connections.discard(self)
        self._transport = self._parser = None
        if self._sink is not None:
            self._sink.close()
        if self._live is not None:
            self._live.cancel()
        for exchange in self._owed:
            # A write is committed anyway; the result of a read or a SELECT has no recipient any more.
            if exchange.reading or (exchange.request is not None and exchange.request.path in wire.QUERIES):
                exchange.cancel()
        self._owed.clear()
        self._waiting = None
        self._let_go()
        self._drop_output()
        if shared.emptied is not None and not shared.connections and not shared.emptied.done():
            shared.emptied.set_result(None)

    def eof_received(self) -> bool:
        """The client sends no more. It still gets what it is owed, if that comes soon."""
        self._eof = self._deaf = True
        # A client that closes looks just like one that only stops sending. Live readers have nothing to send, and are
        # taken to have left; so is, after a while, a client that waits for a read (see check). A consumer that waits is
        # taken to have left at once: nothing may be claimed for it.
        pending = self._owed or self._waiting or self._rest
        if self._live is not None or self._phase == CLOSING or not pending or self._claims():
            return False
        self._phase = IDLE
        self._drop_body()
        self._deadline = self._shared.now + self._shared.limits.linger_s
        return True

    def _claims(self) -> bool:
        """Whether a consumer's request for messages is under way."""
        return any(each.request is not None and each.request.path in wire.CLAIMS for each in self._owed)

    def _asks(self) -> bool:
        """Whether what is owed first is the result of statements, which may take long."""
        request = self._owed[0].request
        return request is not None and request.path in wire.QUERIES

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._write_paused = True
        self._unsent_mark = self._transport.get_write_buffer_size()
        self._stall_deadline = self._shared.now + self._shared.limits.idle_timeout_s
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._rest:
            self._send_rest()
        if self in self._shared.unsent:
            self._shared.unsent.note(self)
        if self._write_paused:
            return
        waiters, self._writable_waiters = self._writable_waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        if self._transport is not None:
            self._pump()

    # -- refusals

    def _refuse(self, refusal: Refusal) -> None:
        if self._deaf:
            return
        self._shared.stats.refusals += 1
        self._deaf = self._linger = True
        self._phase = IDLE
        self._drop_body()
        exchange = Exchange(self, None, False)
        exchange.answer = refusal.response()
        self._line_up(exchange)

    def _turn_away(self) -> None:
        """One connection too many. Some may linger for the refusal; beyond those, none is worth a descriptor."""
        limits = self._shared.limits
        if len(self._shared.connections) > limits.connections_max + limits.connections_max // 8 + 1:
            self.abort()
            return
        self._refuse(Refusal(503, "UNAVAILABLE", "the server has too many connections; try again later"))

    # -- exchanges

    def _admit(self, request: Request) -> None:
        exchange = Exchange(self, request, self._http10)
        if self._owed or self._waiting or self._write_paused or self._begun >= self._shared.limits.pipeline_max:
            self._line_up(exchange)
        else:
            self._begin(exchange)
        if self._held_bytes and not self._waiting:
            self._let_go()

    def _line_up(self, exchange: Exchange) -> None:
        if not self._waiting and self._may_start(exchange):
            self._begin(exchange)
            return
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(exchange)
        self._throttle()

    def _may_start(self, exchange: Exchange) -> bool:
        most = self._shared.limits.pipeline_max
        if self._write_paused or self._begun >= most:
            return False
        owed = self._owed
        if not owed or exchange.answer is not None:
            return True
        return not exchange.reading and not owed[-1].reading and len(owed) < most

    def _begin(self, exchange: Exchange) -> None:
        self._owed.append(exchange)
        if exchange.request is None:
            self._pump()
            return
        self._begun += 1
        if self._begun == self._shared.limits.pipeline_max:
            self._shared.loop.call_soon(self._go_on)
        exchange.begin(self._shared.handler)

    def _go_on(self) -> None:
        """The loop had a turn for others."""
        self._begun = 0
        if self._waiting and self._transport is not None:
            self._pump()

    def _failed(self, error: BaseException) -> Response | None:
        """The answer for an error that a handler let escape: our bug, unless it was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            if self._transport is None:
                return None
            if self._shared.stopping:
                return STOPPING
        self._shared.stats.failures += 1
        log.error("a handler failed", exc_info=error)
        return INTERNAL

    def _pump(self) -> None:
        """Write the answers whose turn has come and start the requests that may run, until neither is left."""
        if self._pumping:
            return
        self._pumping = True
        owed = self._owed
        while True:
            if owed and owed[0].answer is not None and self._live is None and not self._write_paused:
                self._write(owed[0])
            elif self._waiting and self._may_start(self._waiting[0]):
                self._begin(self._waiting.popleft())
            else:
                break
        self._pumping = False
        if self._held_bytes and not self._waiting and self._phase != BODY:
            self._let_go()
        if not owed or self._read_paused:
            self._settle()

    def _settle(self) -> None:
        if not self._owed and not self._waiting and not self._rest and self._phase != CLOSING:
            if self._deaf:
                self._close()
            elif self._phase == IDLE:
                self._deadline = self._shared.now + self._shared.limits.idle_timeout_s
            elif self._continue_owed:
                self._may_continue()
        if self._read_paused:
            self._throttle()

    def _throttle(self) -> None:
        """Read from the socket only while what it brings can be worked on."""
        assert self._transport is not None
        pause = bool(self._waiting) or self._write_paused
        if pause is self._read_paused or self._eof or self._transport.is_closing():
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
            return
        self._transport.resume_reading()
        # The client could not go on while nothing was read: its time starts again.
        if self._phase in (HEAD, BODY):
            self._extend_body_time(self._shared.now)

    # -- answers

    def _may_continue(self) -> None:
        if self._owed or self._waiting or self._rest or self._transport is None:
            return
        self._continue_owed = False
        self._extend_body_time(self._shared.now)
        self._transport.write(wire.CONTINUE)

    def _write(self, exchange: Exchange) -> None:
        transport, answer, owed = self._transport, exchange.answer, self._owed
        assert transport is not None
        head_only = exchange.request is not None and exchange.request.method == b"HEAD"
        if isinstance(answer, LiveResponse):
            if not head_only and wire.has_body(answer.status):
                self._go_live(transport, exchange, answer)
                return
            answer = Response(answer.status, answer.headers)
        connection = b""
        if self._deaf and len(owed) == 1 and not self._waiting:
            connection = wire.CLOSE
        elif exchange.http10:
            connection = wire.KEEP_ALIVE
        del owed[0]
        stamp = self._shared.stamp
        assert answer is not None
        try:
            head = wire.encode_head(answer, stamp, connection, head_only=head_only)
        except Exception as error:
            answer = self._failed(error) or INTERNAL
            head = wire.encode_head(answer, stamp, connection, head_only=head_only)
        if exchange.unsent:
            self._answers_bytes -= exchange.unsent
        body = answer.body
        if body and not head_only and wire.has_body(answer.status):
            if len(body) > JOIN_BYTES_MAX or answer.more:
                transport.write(head)
                self._written += len(head)
                self._rest = body
                if answer.more:
                    self._more = list(reversed(answer.more))
                    self._more_bytes = sum(map(len, answer.more))
                self._send_rest()
                if self._write_paused or transport.get_write_buffer_size() > COUNTED_FROM:
                    self._shared.unsent.note(self)
                return
            head += body
        if transport.get_write_buffer_size() > COUNTED_FROM:
            self._shared.unsent.note(self)
        transport.write(head)
        self._written += len(head)

    def _send_rest(self) -> None:
        """Hand over the next slices of a long response. The last ones, which the transport may still have when the body
        is dropped, are copies: otherwise a few unsent bytes would keep the whole body in memory."""
        transport, body, at = self._transport, self._rest, self._rest_at
        assert transport is not None
        while True:
            copied_from = len(body) - SEND_BYTES - self._shared.write_buffer_high
            while at < len(body) and not self._write_paused:
                end = at + SEND_BYTES
                piece = body[at:end] if end > copied_from else memoryview(body)[at:end]
                at += len(piece)
                transport.write(piece)
                self._written += len(piece)
            if at < len(body):
                self._rest, self._rest_at = body, at
                return
            if not self._more:
                self._rest, self._rest_at, self._more = b"", 0, None
                return
            body, at = self._more.pop(), 0
            self._more_bytes -= len(body)

    # -- unsent output

    def unsent(self) -> tuple[int, int]:
        """See `unsent.Holder`."""
        if self._is_cut or self._transport is None:
            return 0, self._written
        buffered = self._transport.get_write_buffer_size()
        return buffered + len(self._rest) + self._more_bytes + self._answers_bytes, self._written - buffered

    def cut(self) -> None:
        """See `unsent.Holder`. The socket is closed in the next turn: this may be within one of its callbacks."""
        self._deaf = self._is_cut = True
        if self._sink is not None:
            self._sink.close()
        self._drop_output()
        self._shared.loop.call_soon(self.abort)

    def _keep(self, exchange: Exchange, answer: Answer | None) -> None:
        """Count a response that has to wait for its turn, and disconnect a peer that lets too many wait."""
        size = len(answer.body) + sum(map(len, answer.more)) if isinstance(answer, Response) else 0
        if not size:
            return
        if self._is_cut:
            exchange.answer = None
            return
        unsent, _ = self.unsent()
        exchange.unsent = size
        self._answers_bytes += size
        if unsent > self._shared.limits.unsent_connection_max:
            self._shared.unsent.disconnect(self)
        elif unsent > COUNTED_FROM:
            self._shared.unsent.note(self)

    def _hold_memory(self, held: Held) -> None:
        self._release_memory()
        self._held = held
        self._shared.unsent.hold(held)

    def _release_memory(self) -> None:
        if self._held is not None:
            self._shared.unsent.release(self._held)
            self._held = None

    def _drop_output(self) -> None:
        self._rest, self._rest_at, self._answers_bytes = b"", 0, 0
        self._more, self._more_bytes = None, 0
        for exchange in self._owed:
            if exchange.unsent:
                exchange.answer = None
        self._release_memory()
        self._shared.unsent.forget(self)

    def _go_live(self, transport: asyncio.Transport, exchange: Exchange, live: LiveResponse) -> None:
        chunked = not exchange.http10
        if not chunked:
            # Only the end of the connection can end such an answer, so that none can follow it.
            self._deaf = True
            self._waiting = None
            del self._owed[1:]
        connection = wire.CLOSE if self._deaf and len(self._owed) == 1 and not self._waiting else b""
        try:
            head = wire.encode_live_head(live.status, live.headers, self._shared.stamp, connection, chunked=chunked)
        except Exception as error:
            exchange.answer = self._failed(error)
            return
        transport.write(head)
        limit = self._shared.limits.reader_buffer_max
        self._sink = LiveSink(self, transport, chunked=chunked, limit=limit)
        self._live = self._shared.loop.create_task(live.run(self._sink))
        self._live.add_done_callback(self._live_ended)
        exchange.answer = _WHOLE if live.whole else _OPEN  # it may stay for long
        if exchange.reading:
            exchange.request = _READ
        if self._shared.stopping or self._eof:
            self._live.cancel()

    def _live_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
        sink, transport = self._sink, self._transport
        self._live = self._sink = None
        if transport is None or sink is None:
            return
        sink.close()
        if error is not None or (task.cancelled() and cast(LiveResponse, self._owed[0].answer).whole):
            # Half an answer must not look like a whole one.
            self.abort()
            return
        if not self._owed[0].http10:
            transport.write(wire.LAST_CHUNK)
        del self._owed[0]
        self._pump()

    def _drop_reader(self) -> None:
        assert self._sink is not None
        self._sink.close()
        self._shared.stats.readers_dropped += 1
        self.abort()

    async def _writable(self) -> None:
        while self._write_paused:
            waiter = self._shared.loop.create_future()
            if self._writable_waiters is None:
                self._writable_waiters = []
            self._writable_waiters.append(waiter)
            await waiter

    # -- the end, and the clock

    def wind_up(self) -> None:
        """The server stops: take no new request, end the live answer, close when nothing is owed."""
        if self._phase == IDLE:
            self._deaf = True
        if self._live is not None:
            self._live.cancel()
        if self._transport is not None:
            self._pump()

    def give_up_reads(self) -> None:
        """The server will not wait longer for parked reads: they are answered that it stops."""
        for exchange in list(self._owed):
            if exchange.reading:
                exchange.cancel()

    def abort(self) -> None:
        self._deaf = True
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        transport, limits = self._transport, self._shared.limits
        assert transport is not None
        self._phase = CLOSING
        self._unsent_mark = transport.get_write_buffer_size() + 1
        if not self._linger or self._eof:
            self._stall_deadline = self._shared.now + limits.idle_timeout_s
            transport.close()
            return
        self._stall_deadline = self._shared.now + limits.linger_s
        if transport.can_write_eof():
            transport.write_eof()

    def check(self, now: float) -> None:
        """Do what is due at `now`; exact to a tick."""
        if self._phase == IDLE and self._owed and self._owed[0].reading:
            self._forget_head()  # nothing more may arrive before a long-poll or a live answer ends
        if self._transport is not None and (self._transport.get_write_buffer_size() or self in self._shared.unsent):
            self._shared.unsent.note(self)
        if self._phase == CLOSING or self._write_paused:
            if now >= self._stall_deadline:
                self._check_stall(now)
        elif now < self._deadline or self._read_paused or self._transport is None:
            return
        elif self._phase != IDLE:
            self._check_arrival(now)
        elif not self._owed and not self._waiting:
            self._deaf = True
            self._close()
        elif self._eof and (self._owed[0].reading or self._asks()):
            self.abort()

    def _check_stall(self, now: float) -> None:
        """Abort a connection whose peer takes nothing of the output."""
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        if 0 < unsent < self._unsent_mark:
            self._unsent_mark = unsent
            self._stall_deadline = now + self._shared.limits.idle_timeout_s
        else:
            self.abort()


async def _started(sink: ResponseSink) -> None:
    raise AssertionError("a live answer is started once")


# What an exchange keeps of a live answer that has begun.
_OPEN: Final = LiveResponse(200, [], _started)
_READ: Final = Request(b"GET", b"", b"", {}, b"")
_WHOLE: Final = LiveResponse(200, [], _started, whole=True)

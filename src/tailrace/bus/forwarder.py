"""The runner of a server that does not write: commands are sent to the writer's process, results come back.

Theory of operation
-------------------
It takes the place of a `Runner`. Commands are numbered in the order in which they were given, and stay in `_pending`
until they are answered. All that were given in one turn of the event loop travel in one frame. When the connection to
the writer is lost, they stay: the next writer's hello says which of them were committed. Those are answered with
OUTCOME_UNKNOWN, since their results are lost; all others are sent again, in their order, and the client notices
nothing but the wait. If no writer comes within WRITER_WAIT_S they are answered with 503.

The notices of a commit arrive before its results and are applied first, so that whoever is answered finds in this
process what the command has changed. Rows need no notice: they are read from the database itself, which has the commit
before it is acknowledged. Only credentials are cached here: a change of users or keys is acknowledged after every
server has confirmed its notice, and a server that has received nothing from the writer for BUS_TTL_S does not trust its
cache (`fresh`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from tailrace import limits
from tailrace.auth.throttle import LoginThrottle
from tailrace.bus import asking, link, messages
from tailrace.bus.link import BusLink
from tailrace.bus.totals import counts_of, metrics_of
from tailrace.command import Command
from tailrace.completion import Completion
from tailrace.errors import Error, Unavailable
from tailrace.log.notices import Advanced
from tailrace.log.recent import RecentSegments
from tailrace.log.tail import Tail
from tailrace.metrics import Metrics
from tailrace.runner import CalledBack, Done, Followers, QueuedCommand
from tailrace.storage.engine import closed
from tailrace.tables.export import Exports

T = TypeVar("T")
Connect = Callable[[asyncio.AbstractEventLoop, Callable[[], BusLink]], Awaitable[Any]]
logger = logging.getLogger("tailrace.bus")
AWAY: Final = "WRITER_AWAY"
UNKNOWN: Final = "OUTCOME_UNKNOWN"


class WriterState:
    """The state of the writer, as of its last beat."""

    def __init__(self) -> None:
        self.stopped: Error | None = None
        self.trouble: Error | None = None


class Forwarder:
    """As a `Runner`, over a link to the process that writes. `server` is the name of this one, `life` an id that no
    other process has had."""

    def __init__(
        self,
        connect: Connect,
        server: str,
        life: str,
        *,
        version: str,
        tail: Tail,
        metrics: Metrics,
        recent: RecentSegments,
    ) -> None:
        self._version = version
        self.exports: Mapping[int, Sequence[Any]] = {}  # those of other processes are at the writer
        self.followers: list[Followers] = []  # commands are not taken along by commits of another process
        self.server = server
        self.life = life
        self.writer = WriterState()
        self.news: Callable[[Any], None] = lambda news: None  # called with what the writer tells
        self.set_time: Callable[[int, int], None] = lambda now_ms, lag_ms: None  # with the writer's clock
        self.set_damage: Callable[[Error | None], None] = lambda damage: None  # that the writer has found in the files
        self.welcomed = threading.Event()  # the first writer has answered
        self._connect = connect
        self._tail = tail
        self._metrics = metrics
        self._recent = recent
        self._pending: dict[int, QueuedCommand] = {}
        self._pending_bytes = 0
        self._number = 0
        self._unsent: list[int] = []  # numbers of commands that the next frame takes
        self._flushing = False
        self._questions: dict[int, tuple[Any, Completion[Any]]] = {}
        self._asked = 0
        self._link: BusLink | None = None
        self._ready = False  # the writer has said hello
        self._received_s = float("-inf")  # when something was last received from the writer
        self._lost_s = time.monotonic()  # since when there is no writer
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._task: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    # -- the state

    @property
    def stopped(self) -> Error | None:
        """The error that stopped all writes, if any."""
        return closed() if self._closed else self.writer.stopped

    @property
    def trouble(self) -> Error | None:
        """The error of the writer's last commit, or that there is no writer at the moment."""
        if not self._ready:
            return Unavailable("the process that writes is being replaced; retry in a moment", code=AWAY)
        return self.writer.trouble

    @property
    def waiting(self) -> int:
        """The number of commands that are not answered yet."""
        return len(self._pending)

    @property
    def fresh(self) -> bool:
        """Whether caches may be trusted: there is a link, and the last message over it is younger than BUS_TTL_S."""
        return self._ready and time.monotonic() - self._received_s < limits.BUS_TTL_S

    def verify(self) -> None:
        """As a runner's: the writer looks after the files."""

    # -- callers

    def execute(self, command: Command[T], by: str = "system") -> T:
        """Run a command for `by`; its result, once it is durable. From any thread but the loop's."""
        assert self._thread != threading.get_ident(), "the loop's thread cannot wait for the writer"
        if self._loop is None or self._closed:
            raise closed()
        done = threading.Event()
        job = CalledBack(command, by, lambda result, error: done.set())
        self._loop.call_soon_threadsafe(self.queue, job)
        done.wait()
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[no-any-return]

    def submit(self, command: Command[Any], done: Done, by: str = "system") -> None:
        """Run a command for `by`; call `done(result, error)` once it is durable. On the attached loop's thread."""
        self.queue(CalledBack(command, by, done))

    def queue(self, job: QueuedCommand) -> None:
        """Run a command; call its `deliver` once it is durable. On the attached loop's thread."""
        if self._closed:
            job.settle(None, closed())
            return
        if len(self._pending) >= limits.BUS_WAITING_MAX or (
            self._pending and self._pending_bytes + job.size > limits.BUS_WAITING_BYTES_MAX
        ):
            full = Unavailable("too many writes are waiting for the writer; retry in a moment", code="QUEUE_FULL")
            job.settle(None, full)
            return
        if not self._ready and time.monotonic() - self._lost_s > limits.WRITER_WAIT_S:
            job.settle(None, _away())
            return
        self._number += 1
        self._pending[self._number] = job
        self._pending_bytes += job.size
        if self._ready:
            self._unsent.append(self._number)
            self._flush_soon()

    def ask(self, question: Any) -> Completion[Any]:
        """The writer's answer to a question. On the loop's thread."""
        completion: Completion[Any] = Completion(self._loop)
        if self._link is None or not self._ready:
            completion.set(None, _away())
            return completion
        self._asked += 1
        self._questions[self._asked] = (question, completion)
        self._link.send([link.ASK, self._asked, *asking.encode(question)])
        return completion

    def ask_from_thread(self, question: Any) -> Any:
        """The same, from another thread."""
        assert self._loop is not None
        assert self._thread != threading.get_ident(), "the loop's thread cannot wait for the writer"

        async def asked() -> Any:
            return await self.ask(question)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result()

    def tell(self, news: Any) -> None:
        """Tell the writer, if there is one. From any thread."""
        if self._loop is None or self._closed:
            return
        if self._thread != threading.get_ident():
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self.tell, news)
        elif self._link is not None and self._ready:
            self._link.send([link.TELL, *asking.encode(news)])

    # -- in the place of other parts of a database

    def remote_exports(self, execute: Callable[..., Any]) -> Exports:
        """The exports of this server, which the writer keeps."""
        from tailrace.bus.remote_exports import RemoteExports  # it needs this module

        return RemoteExports(self, execute)

    def shared_throttle(self, monotonic_s: Callable[[], float]) -> LoginThrottle:
        """The login attempts of all servers; what others tell is counted here, too."""
        from tailrace.bus.shared_throttle import SharedThrottle, note  # likewise

        throttle = SharedThrottle(monotonic_s, self)
        self.news = lambda news: note(throttle, news)
        return throttle

    def total_metrics(self) -> Metrics:
        """The metrics of all servers. Not on the loop's thread."""
        return metrics_of(self.ask_from_thread(counts_of(self._metrics)))

    # -- opening and closing

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect on this loop, and stay connected."""
        assert self._loop is None, "one loop at a time"
        self._loop = loop
        self._thread = threading.get_ident()
        self._task = loop.create_task(self._stay_connected(loop), name="tailrace-bus")

    def detach(self) -> None:
        """Release the loop, from any other thread. Nothing more is answered."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            done = threading.Event()
            loop.call_soon_threadsafe(self._disconnect, done)
            done.wait()

    def close(self) -> None:
        """Accept no more commands."""
        self._closed = True

    def _disconnect(self, done: threading.Event) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._link.cut()
        self._answer_all(closed())
        done.set()

    async def _stay_connected(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed:
            self._gone.clear()
            try:
                await self._connect(loop, self._new_link)
                while not await self._gone_within(limits.BUS_BEAT_S):
                    self._give_up_old()
            except OSError as error:
                logger.debug("the writer cannot be reached: %s", error)
            self._give_up_old()
            await asyncio.sleep(limits.BUS_RETRY_S)

    async def _gone_within(self, seconds: float) -> bool:
        """Whether the link is lost; one over which nothing is received for long is cut."""
        if self._ready and self._link is not None and time.monotonic() - self._received_s > limits.WRITER_WAIT_S:
            logger.error("the writer sent nothing for %g s", limits.WRITER_WAIT_S)
            self._link.cut()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        return self._gone.is_set()

    def _new_link(self) -> BusLink:
        return _Greeting(self._receive, self._lost, self._greet)

    def _greet(self, made: BusLink) -> None:
        self._link = made
        made.drained = self._flush_soon
        made.send([link.HELLO, link.PROTOCOL, self._version, self.server, self.life])

    def _lost(self, lost: BusLink) -> None:
        if self._link is lost:
            self._link = None
            if self._ready and not self._closed:
                self._lost_s = time.monotonic()
                logger.warning("the connection to the writer is lost")
            self._ready = False
            self._unsent.clear()
            for _, completion in list(self._questions.values()):
                completion.set(None, _away())
            self._questions.clear()
        self._gone.set()

    def _give_up_old(self) -> None:
        """Answer the commands that have waited for a writer for too long."""
        if self._pending and not self._ready and time.monotonic() - self._lost_s > limits.WRITER_WAIT_S:
            # Some may have been committed before the connection was lost.
            self._answer_all(_unknown())

    def _answer_all(self, error: Error) -> None:
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        for job in pending.values():
            job.settle(None, error)

    # -- to the writer

    def _flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        numbers, self._unsent = self._unsent, []
        packed: list[Any] = []
        size = 0
        for at, number in enumerate(numbers):
            made = self._link
            if made is None or not made.writable:  # flow control: they wait here, and new ones are refused at the limit
                self._unsent = numbers[at:] + self._unsent
                break
            job = self._pending.get(number)
            if job is None:
                continue
            try:
                tag, body = messages.encode_command(job.command)
            except Error as error:
                self._settle(number, None, error)
                continue
            except Exception as error:  # of one command: the others are sent all the same
                logger.exception("a command %s could not be sent", type(job.command).__name__)
                self._settle(number, None, messages.unsendable(job.command, error))
                continue
            packed.append((number, tag, job.by, body))
            size += len(body)
            if size >= limits.BUS_FRAME_BYTES:
                made.send([link.RUN, packed])
                self._metrics.forwarded += len(packed)
                packed, size = [], 0
        if packed and self._link is not None:
            self._link.send([link.RUN, packed])
            self._metrics.forwarded += len(packed)

    # -- from the writer

    def _receive(self, made: BusLink, message: list[Any]) -> None:
        self._received_s = time.monotonic()
        kind = message[0]
        if kind == link.DONE:
            for number, ok, body in message[1]:
                job = self._pending.get(number)
                if job is not None:
                    result, error = None, None
                    if ok:
                        result = messages.decode_result(type(job.command), body)
                    else:
                        error = messages.decode_error(body)
                    self._settle(number, result, error)
        elif kind == link.BATCH:
            self._apply(made, *message[1:])
        elif kind == link.ANSWER:
            number, ok, body = message[1:]
            question, completion = self._questions.pop(number, (None, None))
            if completion is not None:
                if ok:
                    completion.set(asking.decode_answer(question, body))
                else:
                    completion.set(None, messages.decode_error(body))
        elif kind == link.BEAT:
            self._beat(message[1])
        elif kind == link.TELL:
            self.news(asking.decode(*message[1:]))
        elif kind == link.HELLO:
            self._welcome(made, *message[1:])

    def _settle(self, number: int, result: Any, error: BaseException | None) -> None:
        job = self._pending.pop(number)
        self._pending_bytes -= job.size
        try:
            job.settle(result, error)
        except Exception:  # of one request: the others are answered all the same
            logger.exception("an answer could not be delivered")

    def _apply(self, made: BusLink, batch: int, confirm: bool, body: bytes) -> None:
        notices = messages.decode_notices(body)
        for notice in notices:
            if type(notice.item) is Advanced:
                self._recent.add(notice.item.segment)
        self._tail.publish(notices)
        if confirm:
            made.send([link.CONFIRM, batch])

    def _beat(self, state: dict[str, Any]) -> None:
        self.set_time(state["now_ms"], state["lag_ms"])
        self.writer.stopped = _error(state["stopped"])
        self.writer.trouble = _error(state["trouble"])
        self.set_damage(_error(state.get("damage")))

    def _welcome(self, made: BusLink, protocol: int, version: str, epoch: str, upto: int) -> None:
        """There is a writer: it has committed our commands up to this number."""
        link.check_protocol(protocol, version)
        logger.info("connected to the writer, which has committed %d of %d commands", upto, self._number)
        self._ready = True
        # Whatever happened in between, and in the epoch of another writer, may have been missed.
        self._tail.missed()
        known = [number for number in self._pending if number <= upto]
        for number in known:
            self._metrics.outcomes_unknown += 1
            self._settle(number, None, _unknown())
        self._unsent = list(self._pending)
        self._metrics.resent += len(self._unsent)
        self._flush_soon()
        self.welcomed.set()


class _Greeting(BusLink):
    """A link that says hello as soon as it is made."""

    def __init__(self, receive: Any, lost: Any, greet: Callable[[BusLink], None]) -> None:
        super().__init__(receive, lost)
        self._greet = greet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._greet(self)


def _error(body: bytes | None) -> Error | None:
    if body is None:
        return None
    error = messages.decode_error(body)
    return error if isinstance(error, Error) else Unavailable(str(error))


def _away() -> Unavailable:
    return Unavailable(
        f"the process that writes has been away for {limits.WRITER_WAIT_S:g} s or more; nothing was written, retry",
        code=AWAY,
    )


def _unknown() -> Unavailable:
    return Unavailable(
        "the process that writes was replaced, and the outcome of this request is lost; look whether it was done",
        code=UNKNOWN,
    )

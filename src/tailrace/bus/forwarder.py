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
before it is acknowledged. Only credentials and policies are cached here: a change of them is acknowledged after every
server has confirmed its notice, and a server whose writer has not answered for BUS_TTL_S does not trust its
cache (`fresh`). What counts is when the server asked, not when the answer was read: it may have waited in a socket.

In a cluster the writer is the leader, and the database says who that is. `dropped` cuts the link to one that leads no
more, which may be frozen and not know it.

A link that is lost is made again after BUS_RETRY_S. If one link after the other ends without a hello of the writer, for
instance because it refuses this server, the pauses grow up to BUS_RETRY_S_MAX, until another server leads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from tailrace import limits
from tailrace.auth.throttle import LoginThrottle
from tailrace.bus import asking, link, messages
from tailrace.bus.link import BusLink
from tailrace.bus.remote_policies import RemotePolicies
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
from tailrace.tables.policies import PolicyBook, PolicyRow

T = TypeVar("T")
Connect = Callable[[asyncio.AbstractEventLoop, Callable[[], BusLink]], Awaitable[Any]]
logger = logging.getLogger("tailrace.bus")
AWAY: Final = "WRITER_AWAY"
UNKNOWN: Final = "OUTCOME_UNKNOWN"
_PINGS_MAX: Final = 64  # that are not answered


class WriterState:
    """The state of the writer, as of its last beat."""

    def __init__(self) -> None:
        self.stopped: Error | None = None
        self.trouble: Error | None = None
        self.server = ""  # of the leader of a cluster: its lease's
        self.epoch = 0


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
        url: str | None = None,
    ) -> None:
        """`url`: where clients reach this server, one of a cluster."""
        self._version = version
        self._url = url
        self._joined = False  # a writer knows this life
        self._sent_upto = 0  # the number of the last command that was ever sent
        self._applied = 0  # the last batch of this link
        self._pinged = 0  # the number of the last ping of this link; the hello is number 0
        self._pings: dict[int, float] = {}  # when those were sent that are not answered
        self._seen_epoch = 0  # of the leader that the database has named last
        self._greeted_epoch = 0  # the same when the link was made
        self._greeted_s = 0.0
        self._trusted_s = float("-inf")  # when the last ping was sent that was answered
        self.exports: Mapping[int, Sequence[Any]] = {}  # those of other processes are at the writer
        self.followers: list[Followers] = []  # commands are not taken along by commits of another process
        self.server = server
        self.life = life
        self.writer = WriterState()
        self.news: Callable[[Any], None] = lambda news: None  # called with what the writer tells
        self.set_time: Callable[[int, int], None] = lambda now_ms, lag_ms: None  # with the writer's clock
        self.set_damage: Callable[[Error | None], None] = lambda damage: None  # that the writer has found in the files
        self.on_welcome: Callable[[], None] = lambda: None  # called with each new writer
        self.totals: Callable[[], Metrics] | None = None  # the metrics of this server, if it does not ask for all
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
        self._ended = 0  # links in a row that ended without a hello of the writer
        self._refusal = ""  # why the writer refuses this server
        self._hurry = asyncio.Event()  # another server leads, which may not refuse this one
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
        if not self._ready and self._refusal:
            return Unavailable(f"this server cannot use the process that writes: {self._refusal}", code=AWAY)
        if not self._ready:
            return Unavailable("the process that writes is being replaced; retry in a moment", code=AWAY)
        return self.writer.trouble

    @property
    def waiting(self) -> int:
        """The number of commands that are not answered yet."""
        return len(self._pending)

    @property
    def fresh(self) -> bool:
        """Whether caches may be trusted: there is a link, over which the writer has answered what was asked within
        BUS_TTL_S."""
        return self._ready and time.monotonic() - self._trusted_s < limits.BUS_TTL_S

    @property
    def connected(self) -> bool:
        return self._ready

    @property
    def _awaiting(self) -> bool:
        """Whether there is no writer, but not for long."""
        return time.monotonic() - self._lost_s <= limits.WRITER_WAIT_S and not self._closed

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
            job.settle(None, _full())
            return
        if not self._ready and not self._awaiting:
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
        if not self._ready and not (isinstance(question, asking.REPEATABLE) and self._awaiting):
            completion.set(None, _away())
            return completion
        if len(self._questions) >= limits.BUS_WAITING_MAX:
            completion.set(None, _full())
            return completion
        self._asked += 1
        self._questions[self._asked] = (question, completion)
        if self._ready and self._link is not None:
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

    def remote_policies(self, load: Callable[[], Iterable[PolicyRow]], now_ms: Callable[[], int]) -> PolicyBook:
        """The resource policies, as this server knows them."""
        return RemotePolicies(load, now_ms, lambda: self.fresh)

    def shared_throttle(self, monotonic_s: Callable[[], float]) -> LoginThrottle:
        """The login attempts of all servers; what others tell is counted here, too."""
        from tailrace.bus.shared_throttle import SharedThrottle, note  # likewise

        throttle = SharedThrottle(monotonic_s, self)
        self.news = lambda news: note(throttle, news)
        return throttle

    def total_metrics(self) -> Metrics:
        """The metrics of all processes; in a cluster, of this server. Not on the loop's thread."""
        if self.totals is not None:
            return self.totals()
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
        self._forget_questions(lambda question: True)  # threads wait for them
        self._answer_all(closed())
        done.set()

    async def _stay_connected(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closed:
            self._gone.clear()
            try:
                await self._connect(loop, self._new_link)
                while not await self._gone_within(limits.BUS_BEAT_S):
                    self._give_up_old()
            except (OSError, Error) as error:
                logger.debug("the writer cannot be reached: %s", error)
                if isinstance(error, ssl.SSLError):  # it has another secret
                    self._ended += 1
                if self._link is not None:
                    self._link.cut()
            self._give_up_old()
            await self._pause()

    async def _pause(self) -> None:
        """Wait before the next connection."""
        self._hurry.clear()
        until_s = time.monotonic() + self._retry_s()
        while (left_s := until_s - time.monotonic()) > 0 and not self._hurry.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(left_s, limits.BUS_BEAT_S))
            self._give_up_old()

    def _retry_s(self) -> float:
        """How long to wait: the longer, the more links in a row have ended without a hello."""
        if self._ended <= 1:
            return limits.BUS_RETRY_S
        longer_s = limits.BUS_RETRY_S * 2.0 ** min(self._ended - 1, 20)
        return min(longer_s, limits.BUS_RETRY_S_MAX) * random.uniform(0.5, 1)

    async def _gone_within(self, seconds: float) -> bool:
        """Whether the link is lost; one over which nothing is received for long is cut."""
        received_s = max(self._received_s, self._greeted_s)
        if self._link is not None and time.monotonic() - received_s > limits.WRITER_WAIT_S:
            logger.error("the writer sent nothing for %g s", limits.WRITER_WAIT_S)
            self._link.cut()
        self._ping()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), seconds)
        return self._gone.is_set()

    def _ping(self) -> None:
        if self._ready and self._link is not None:
            self._pinged += 1
            self._pings[self._pinged] = time.monotonic()
            self._pings.pop(self._pinged - _PINGS_MAX, None)
            self._link.send([link.PING, self._pinged, self._applied])

    def dropped(self, server: str, epoch: int) -> None:
        """The database says that this server leads, in this epoch: a link to an earlier leader is cut. On the loop."""
        if epoch > self._seen_epoch:
            self._seen_epoch = epoch
            self._ended = 0
            self._hurry.set()
        if self._link is None:
            return
        if self._ready:
            other = epoch > self.writer.epoch and server != self.writer.server
        else:  # it may have been frozen before it answered the hello
            other = epoch > self._greeted_epoch
        if other:
            logger.warning("another server leads by now (epoch %d)", epoch)
            self._link.cut()

    def _new_link(self) -> BusLink:
        return BusLink(self._receive, self._lost, self._greet)

    def _greet(self, made: BusLink) -> None:
        if self._closed:
            made.cut()
            return
        self._link = made
        self._greeted_epoch, self._greeted_s = self._seen_epoch, time.monotonic()
        self._pinged, self._pings = 0, {0: self._greeted_s}
        made.drained = self._flush_soon
        self._ended += 1
        facts: dict[str, Any] = {"first": not self._joined}
        if self._url is not None:
            facts["url"] = self._url
        made.send([link.HELLO, link.PROTOCOL, self._version, self.server, self.life, facts])

    def _lost(self, lost: BusLink) -> None:
        if self._link is lost:
            self._link = None
            if self._ready and not self._closed:
                self._lost_s = time.monotonic()
                logger.warning("the connection to the writer is lost")
            self._ready = False
            self._trusted_s = float("-inf")
            self._unsent.clear()
            self._forget_questions(lambda question: not isinstance(question, asking.REPEATABLE))
        self._gone.set()

    def _forget_questions(self, which: Callable[[Any], bool]) -> None:
        for number, (question, completion) in list(self._questions.items()):
            if which(question):
                del self._questions[number]
                completion.set(None, _away())

    def _give_up_old(self) -> None:
        """Answer the commands that have waited for a writer for too long."""
        if (self._pending or self._questions) and not self._ready and not self._awaiting:
            self._forget_questions(lambda question: True)
            for number in list(self._pending):  # what was never sent is not committed
                self._settle(number, None, _unknown() if number <= self._sent_upto else _away())

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
            self._sent_upto = max(self._sent_upto, number)
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
        if made is not self._link:  # one that was cut
            return
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
        elif kind == link.PONG:
            self._trust(message[1])
        elif kind == link.TELL:
            self.news(asking.decode(*message[1:]))
        elif kind == link.HELLO:
            self._welcome(made, *message[1:])
        elif kind == link.REFUSED:
            self._refused(made, messages.decode_error(message[1]))

    def _refused(self, made: BusLink, error: BaseException) -> None:
        """The writer does not take this server, or the other way round; it is logged once."""
        if self._refusal != str(error):
            self._refusal = str(error)
            logger.error("this server cannot use the writer: %s", error)
        made.cut()

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
        self._applied = batch
        if confirm:
            made.send([link.CONFIRM, batch])

    def _beat(self, state: dict[str, Any]) -> None:
        self.set_time(state["now_ms"], state["lag_ms"])
        self.writer.stopped = _error(state["stopped"])
        self.writer.trouble = _error(state["trouble"])
        self.set_damage(_error(state.get("damage")))
        self.writer.epoch = state.get("epoch", 0)

    def _trust(self, number: int) -> None:
        """A ping is answered: what the writer has sent before it is applied."""
        self._trusted_s = max(self._trusted_s, self._pings.pop(number, self._trusted_s))

    def _welcome(
        self,
        made: BusLink,
        protocol: int,
        version: str,
        epoch: str,
        upto: int,
        term: Mapping[str, Any] | None = None,
        batch: int = 0,
    ) -> None:
        """There is a writer: it has committed our commands up to this number."""
        try:
            link.check_protocol(protocol, version)
        except Error as error:
            self._refused(made, error)
            return
        self._ended, self._refusal = 0, ""
        if upto == link.FORGOTTEN:
            self._begin_again(made)
            return
        logger.info("connected to the writer, which has committed %d of %d commands", upto, self._number)
        if term is not None:
            self.writer.server, self.writer.epoch = term["server"], term["epoch"]
        self._ready = self._joined = True
        self._applied = batch
        # Whatever happened in between, and in the epoch of another writer, may have been missed. Caches are trusted
        # after that was published to them: other threads use them, too.
        self.on_welcome()
        self._tail.missed()
        self._trust(0)
        for number in [number for number in self._pending if number <= upto]:
            self._metrics.outcomes_unknown += 1
            self._settle(number, None, _unknown())
        self._unsent = list(self._pending)
        self._metrics.resent += len(self._unsent)
        self._flush_soon()
        for number, (question, _) in self._questions.items():
            made.send([link.ASK, number, *asking.encode(question)])
        self.welcomed.set()

    def _begin_again(self, made: BusLink) -> None:
        """The writer has forgotten this server, which was away for long: what it has sent may have been committed."""
        logger.warning("this server was not connected for so long that it joins as a new one")
        for number in [number for number in self._pending if number <= self._sent_upto]:
            self._metrics.outcomes_unknown += 1
            self._settle(number, None, _unknown())
        self.life, self._joined = os.urandom(8).hex(), False
        made.cut()


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


def _full() -> Unavailable:
    return Unavailable("too many writes are waiting for the writer; retry in a moment", code="QUEUE_FULL")


def _unknown() -> Unavailable:
    return Unavailable(
        "the process that writes was replaced, and the outcome of this request is lost; look whether it was done",
        code=UNKNOWN,
    )

"""The writer's side of the bus: it runs the commands of all servers, and passes on what each commit has changed.

Theory of operation
-------------------
A server's commands go to the runner in the order of their numbers. Before a batch is committed, the number of the last
command of each server in it is written in the same transaction (`mark`), unless the batch changes nothing: after a
crash each server learns which of its commands were committed.

After a commit, results are collected per link and its notices are encoded once for all links. Both are sent in the
loop's next turn, the notices first. A commit that changes users or keys is special: its results wait until every link
has confirmed the notices. A link that does not within BUS_TTL_S is cut off; by then its server does not trust what it
has cached. After a link is lost, or a writer was replaced, such results wait for as long.

In a cluster the writer leads under a lease (`LeaderTerm`). When it is lost, nothing is answered any more, not even that
commands have failed: their servers send them to the next leader, and learn from it which were committed. A leader that
steps down finishes what it has begun first (`drain`), so that no result is lost.

No link can hold up the writer: one whose server does not read is cut off at BUS_UNSENT_BYTES_MAX, and one whose server
sends more than BUS_WINDOW_BYTES that are not answered is not read from until they are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from tailrace import failpoints, limits
from tailrace.auth.throttle import LoginThrottle
from tailrace.bus import asking, link, messages
from tailrace.bus.asking import ConnectedServer, CountMetrics, ListServers, LoginNoted, ServerList
from tailrace.bus.link import BusLink
from tailrace.bus.remote_exports import ServedExports
from tailrace.bus.server_commands import (
    SENT,
    ForgetLife,
    ForgetLives,
    JoinLife,
    LastSent,
    ListSent,
    SentRow,
    life_name,
)
from tailrace.bus.shared_throttle import note
from tailrace.bus.totals import MetricTotals
from tailrace.errors import Error, Unavailable
from tailrace.log.cold import ColdMiss
from tailrace.log.tail import ACKNOWLEDGED, KEYS_CHANGED, POLICIES_CHANGED, USERS_CHANGED
from tailrace.runner import CarriedCommand, QueuedCommand
from tailrace.storage.engine import Notice, Tx

REVOKING: Final = (USERS_CHANGED, KEYS_CHANGED, POLICIES_CHANGED)
_BATCHES_TIMED: Final = 4096
_DRAIN_LOOK_S: Final = 0.005
_REFUSALS_MAX: Final = 256  # servers whose last refusal is remembered
logger = logging.getLogger("tailrace.bus")


class LeaderTerm(Protocol):
    """The lease under which a leader writes, as `storage.lease.LeaderLease`."""

    server: str
    epoch: int

    @property
    def fresh(self) -> bool: ...

    @property
    def lost(self) -> Error | None: ...

    @property
    def committed_batch(self) -> int: ...


class ServerLink:
    """A connected server."""

    def __init__(self, made: BusLink, received_s: float) -> None:
        self.link = made
        self.url = ""  # of a server of a cluster
        self.received_s = received_s  # when its last message was
        self.lag_s = 0.0  # how far it was behind then
        self.running = 0  # commands
        self.name = ""  # and life, since its hello
        self.results: list[Any] = []  # to be sent
        self.unanswered = 0  # bytes of commands
        self.confirmed = 0  # the last batch that was confirmed
        self.exports: dict[int, Any] = {}


class BusServer:
    """Serves the bus for a database that is open for writing. For the event loop's thread."""

    def __init__(
        self,
        db: Any,
        throttle: LoginThrottle,
        version: str,
        *,
        replaces: bool = False,
        term: LeaderTerm | None = None,
        url: str = "",
    ) -> None:
        """`replaces`: there was a writer before, whose servers may still trust what they have cached. `term`: of the
        leader of a cluster, which clients reach at `url`."""
        self._version = version
        self._term = term
        self._url = url
        self._draining = False  # no more commands are run
        self._ending_exports = False  # no more exports begin
        self._published: deque[float] = deque(maxlen=_BATCHES_TIMED)  # when the last batches were
        self._unconnected: dict[str, float] = {}  # lives, and since when they are
        self._refusals: dict[str, str] = {}  # why servers were refused, by name
        self._forgetting: asyncio.Task[None] | None = None
        self.epoch = secrets.token_hex(8)
        self._db = db
        self._throttle = throttle
        self._totals = MetricTotals(db.metrics)
        self._exports = ServedExports(db.exports)
        self._loop = asyncio.get_running_loop()
        self._links: dict[BusLink, ServerLink] = {}
        self._batch = 0
        self._flushing = False
        self._held: list[tuple[int, ServerLink, list[Any]]] = []  # results that wait for confirmations of a batch
        # Until then a server that has lost its link may not have noticed, and may trust what it has cached.
        self._doubt_until = self._loop.time() + limits.BUS_TTL_S if replaces else 0.0
        self._replaces = replaces
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.AbstractServer | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._unrelay: Callable[[], None] = lambda: None

    async def start(self, listen: Callable[[Callable[[], BusLink]], Any]) -> None:
        """Accept links. `listen` starts the listener for the protocols that it is given."""
        self._db.sharing.mark_commits(self.mark)
        self._unrelay = self._db.tail.relay(self.publish)
        if not self._replaces:
            self._db.sharing.submit(ForgetLives(), _log_failure)
        self._server = await listen(self._accept)
        self._beat()
        self._forgetting = self._loop.create_task(self._forget_ended(), name="tailrace-forgetting")

    async def drain(self, timeout_s: float) -> bool:
        """Finish what has begun, and begin nothing more: commands that arrive from now on are for the next writer.
        Whether all was finished in time."""
        until_s = self._loop.time() + timeout_s
        self._ending_exports = True
        await self._drained(lambda: any(each.exports for each in self._links.values()), until_s - timeout_s / 2)
        self._draining = True
        return await self._drained(
            lambda: bool(self._held) or any(each.running or each.results for each in self._links.values()), until_s
        )

    async def _drained(self, busy: Callable[[], bool], until_s: float) -> bool:
        while busy():
            if self._loop.time() >= until_s:
                return False
            await asyncio.sleep(_DRAIN_LOOK_S)
        return True

    def cut_all(self) -> None:
        """End all links at once: another writer may be there."""
        self._draining = True
        for made in list(self._links):
            made.cut()

    async def stop(self) -> None:
        """Send what is left, and end all links."""
        if self._beating is not None:
            self._beating.cancel()
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._server is not None:
            self._server.close()
        self._unrelay()
        self._flush()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)
        for made in list(self._links):
            made.finish()
        await self._exports.close()

    @property
    def servers(self) -> int:
        """How many servers are connected."""
        return sum(bool(server.name) for server in self._links.values())

    # -- links

    def _accept(self) -> BusLink:
        return BusLink(self._receive, self._lost, self._made)

    def _made(self, made: BusLink) -> None:
        if self._draining:
            made.cut()
        else:
            self._links[made] = ServerLink(made, self._loop.time())

    def _lost(self, made: BusLink) -> None:
        server = self._links.pop(made, None)
        if server is None:
            return
        if server.name:
            self._doubt_until = self._loop.time() + limits.BUS_TTL_S
        self._db.metrics.workers = self.servers
        self._totals.gone(server.name)
        self._end_exports(server)
        self._release_held()

    def _end_exports(self, server: ServerLink) -> None:
        """End the exports of a link that is gone."""
        if server.exports:
            self._begin(self._exports.end_all(server.exports.copy()))
            server.exports.clear()

    def _receive(self, made: BusLink, message: list[Any]) -> None:
        server = self._links.get(made)
        if server is None:
            return
        kind = message[0]
        server.received_s = self._loop.time()
        if kind == link.HELLO:
            protocol, version, name, life, *more = message[1:]
            self._greet(server, protocol, version, name, life, more[0] if more else {})
        elif not server.name:
            raise Unavailable("the first frame of a link must be a hello")
        elif kind == link.RUN:
            if not self._draining:  # otherwise they are sent again, to the next one
                for number, tag, by, body in message[1]:
                    self._run(server, number, tag, by, body)
        elif kind == link.PING:
            self._pong(server, *message[1:])
        elif kind == link.CONFIRM:
            server.confirmed = max(server.confirmed, message[1])
            self._release_held()
        elif kind == link.ASK:
            self._begin(self._answer(server, *message[1:]))
        elif kind == link.TELL:
            self._hear(server, asking.decode(*message[1:]))

    def _pong(self, server: ServerLink, number: int, batch: int) -> None:
        behind = self._batch - batch
        behind = min(behind, len(self._published))
        server.lag_s = self._loop.time() - self._published[-behind] if behind > 0 else 0.0
        if self._term is None or self._term.fresh:
            server.link.send([link.PONG, number])

    def _greet(
        self, server: ServerLink, protocol: int, version: str, name: str, life: str, facts: dict[str, Any]
    ) -> None:
        whole = life_name(name, life)

        def refuse(error: BaseException) -> None:
            self._log_refusal(name, error)
            server.link.send([link.REFUSED, messages.encode_error(error)])
            server.link.finish()

        try:
            link.check_protocol(protocol, version)
        except Error as error:
            refuse(error)
            return
        for other in list(self._links.values()):
            if other.name == whole:  # lost there and not yet here: what it still holds is sent again
                other.link.cut()

        async def welcome(known: bool) -> None:
            try:
                upto = await self._db.aexecute(LastSent(whole)) if known else link.FORGOTTEN
            except Exception as error:
                refuse(error)
                return
            if self._term is not None and not self._term.fresh:  # its cache may be out of date for ever
                server.link.cut()
                return
            if known:
                server.name = whole
            server.confirmed = self._batch
            server.url = facts.get("url", "")
            term = None if self._term is None else {"server": self._term.server, "epoch": self._term.epoch}
            server.link.send([link.HELLO, link.PROTOCOL, self._version, self.epoch, upto, term, self._batch])
            self._send_state(server)
            self._db.metrics.workers = self.servers

        def done(result: Any, error: BaseException | None) -> None:
            """Earlier commands of this life have run by now: they were before this one in the queue."""
            if error is not None:
                refuse(error)
            else:
                self._begin(welcome(result is not False))

        self._db.sharing.submit(JoinLife(whole, facts.get("first", True)), done)

    def _log_refusal(self, name: str, error: BaseException) -> None:
        """Once for each server and reason: it tries again and again."""
        if self._refusals.get(name) == str(error):
            return
        if len(self._refusals) >= _REFUSALS_MAX:
            self._refusals.clear()
        self._refusals[name] = str(error)
        logger.error("server %s is refused: %s", name, error)

    # -- commands

    def _run(self, server: ServerLink, number: int, tag: str, by: str, body: bytes) -> None:
        size = len(body)
        server.running += 1
        server.unanswered += size
        if server.unanswered > limits.BUS_WINDOW_BYTES:
            server.link.read_on(False)
        try:
            job = CarriedCommand(messages.decode_command(tag, body), by, server, number, size, self._delivered)
        except Exception as error:
            if not isinstance(error, Error):
                logger.exception("a command %s could not be read", tag)
            self.answer(server, number, size, None, error)
            return
        self._db.sharing.queue(job)

    def mark(self, tx: Tx, jobs: Iterable[QueuedCommand]) -> None:
        """Write how far each server's commands have come, with the commands of this transaction."""
        if not tx.changed:
            return
        upto: dict[str, int] = {}
        for job in jobs:
            if type(job) is CarriedCommand and job.error is None:
                server: ServerLink = job.origin
                upto[server.name] = max(job.number, upto.get(server.name, 0))
        for name, number in upto.items():
            found = tx.get(SENT, name)
            if found is None or found.upto < number:
                tx.put(SENT, SentRow(name, number))

    def _delivered(self, job: CarriedCommand) -> None:
        """A command is committed, or has failed."""
        if isinstance(job.error, ColdMiss):
            self._fetch(job, job.error)
        else:
            self.answer(job.origin, job.number, job.bytes, job.result, job.error)

    def answer(self, server: ServerLink, number: int, size: int, result: Any, error: BaseException | None) -> None:
        """Send the outcome of a command in the loop's next turn."""
        server.running -= 1
        server.unanswered -= size
        if isinstance(error, Unavailable) and self._term is not None and self._term.lost is not None:
            server.link.cut()  # whether it was committed is for the next leader to say
            return
        if server.unanswered < limits.BUS_WINDOW_BYTES // 2:
            server.link.read_on(True)
        if error is None:
            try:
                server.results.append((number, True, messages.encode_result(result)))
            except Exception as broken:
                logger.exception("a result could not be sent")
                server.results.append((number, False, messages.encode_error(broken)))
        else:
            if not isinstance(error, Error):
                logger.error("a command failed", exc_info=error)
            server.results.append((number, False, messages.encode_error(error)))
        self._flush_soon()

    def _fetch(self, job: CarriedCommand, missing: ColdMiss) -> None:
        """Run a command again when the trimmed history that it needs is in memory."""

        async def again() -> None:
            try:
                await self._db.sharing.fetch_cold(missing, job.fetched)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # every error reaches the caller
                job.settle(None, error)
                return
            job.fetched += 1
            if job.origin.link.open:  # otherwise its server sends it again
                job.error = None
                self._db.sharing.queue(job)

        self._begin(again())

    # -- after a commit

    def publish(self, notices: list[Notice]) -> None:
        """Pass the notices of a commit on to all servers."""
        notices = [notice for notice in notices if notice.log != ACKNOWLEDGED]  # which this process records
        if not notices or not self._links:
            return
        self._batch += 1
        self._published.append(self._loop.time())
        confirm = any(notice.log in REVOKING for notice in notices)
        frame = [link.BATCH, self._batch, confirm, messages.encode_notices(notices)]
        for server in list(self._links.values()):
            if server.name:
                self._send(server, frame)
        if confirm:
            for server in self._links.values():
                if server.results:
                    self._held.append((self._batch, server, server.results))
                    server.results = []
            self._loop.call_later(limits.BUS_TTL_S + limits.BUS_BEAT_S, self._cut_silent, self._batch)
            self._release_held()

    def _send(self, server: ServerLink, frame: list[Any]) -> None:
        if server.link.unsent_bytes > limits.BUS_UNSENT_BYTES_MAX:
            logger.error("server %s does not read what it is sent, and is cut off", server.name)
            server.link.cut()
            return
        server.link.send(frame)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        failpoints.hit("bus.answering")
        for server in list(self._links.values()):
            if server.results:
                results, server.results = server.results, []
                self._send(server, [link.DONE, results])

    def _release_held(self) -> None:
        """Send the results that waited until all servers had confirmed a batch."""
        if not self._held:
            return
        doubt_s = self._doubt_until - self._loop.time()
        if doubt_s > 0:
            self._loop.call_later(doubt_s, self._release_held)
            return
        least = min((server.confirmed for server in self._links.values() if server.name), default=self._batch)
        ready = [held for held in self._held if held[0] <= least]
        self._held = [held for held in self._held if held[0] > least]
        for _, server, results in ready:
            if server.link.open:
                self._send(server, [link.DONE, results])

    def _cut_silent(self, batch: int) -> None:
        """Cut off the servers that have not confirmed a batch in time."""
        for server in list(self._links.values()):
            if server.name and server.confirmed < batch:
                logger.error("server %s has not confirmed a change of users or keys, and is cut off", server.name)
                server.link.cut()

    # -- questions and news

    async def _answer(self, server: ServerLink, number: int, tag: str, body: bytes) -> None:
        try:
            question = asking.decode(tag, body)
            if self._ending_exports and isinstance(question, asking.BEGINNING):
                return  # it is asked again, of the next one
            answer, ok = asking.encode_answer(await self._find(server, question)), True
        except Exception as error:
            if not isinstance(error, Error):
                logger.exception("a question could not be answered")
            answer, ok = messages.encode_error(error), False
        server.link.send([link.ANSWER, number, ok, answer])
        if server.link not in self._links:  # it was lost while an export began
            self._end_exports(server)

    async def _find(self, server: ServerLink, question: Any) -> Any:
        if isinstance(question, asking.BeginLogin):
            return self._throttle.begin(question.user, question.peer, known=question.known)
        if isinstance(question, CountMetrics):
            self._totals.count(server.name, question)
            return self._totals.sum()
        if isinstance(question, ListServers):
            return self.listed()
        return await self._exports.answer(server.exports, question)

    def listed(self) -> ServerList:
        """The connected servers, but the leader itself."""
        now_s, term = self._loop.time(), self._term
        servers = [
            ConnectedServer(each.url, round(each.lag_s, 3), round(now_s - each.received_s, 3))
            for each in self._links.values()
            if each.name and each.url and each.url != self._url
        ]
        servers.sort(key=lambda each: each.url)
        epoch, batch = (0, self._batch) if term is None else (term.epoch, term.committed_batch)
        return ServerList(epoch, batch, self._url, servers)

    async def _forget_ended(self) -> None:
        """Forget the lives of servers that were not connected for BUS_FORGET_S."""
        while True:
            await asyncio.sleep(limits.BUS_FORGET_S / 10)
            try:
                known = {row.server for row in await self._db.aexecute(ListSent())}
            except Error as error:
                logger.debug("the servers are not known: %s", error)
                continue
            now_s, there = self._loop.time(), {each.name for each in self._links.values()}
            self._unconnected = {name: self._unconnected.get(name, now_s) for name in known - there}
            for name, since_s in self._unconnected.items():
                if now_s - since_s > limits.BUS_FORGET_S:
                    self._totals.ended(name)
                    self._db.sharing.submit(ForgetLife(name), _log_failure)

    def _hear(self, server: ServerLink, news: Any) -> None:
        if isinstance(news, CountMetrics):
            self._totals.count(server.name, news)
        elif isinstance(news, LoginNoted):
            note(self._throttle, news)
            for other in self._links.values():
                if other is not server and other.name:
                    self._send(other, [link.TELL, *asking.encode(news)])

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- beats

    def _beat(self) -> None:
        self._beating = self._loop.call_later(limits.BUS_BEAT_S, self._beat)
        now_s = self._loop.time()
        for server in list(self._links.values()):
            if now_s - server.received_s > limits.WRITER_WAIT_S:  # it is gone, and the network does not say so
                logger.warning("nothing was received from server %s for %g s", server.name or "?", limits.WRITER_WAIT_S)
                server.link.cut()
            elif server.name:
                self._send_state(server)

    def _send_state(self, server: ServerLink) -> None:
        db = self._db
        stopped, trouble, damage = db.stopped, db.trouble, db.sharing.damage
        state = {
            "now_ms": db.clock.now_ms(),
            "lag_ms": db.clock.lag_ms,
            "epoch": 0 if self._term is None else self._term.epoch,
            "stopped": None if stopped is None else messages.encode_error(stopped),
            "trouble": None if trouble is None else messages.encode_error(trouble),
            "damage": None if damage is None else messages.encode_error(damage),
        }
        self._send(server, [link.BEAT, state])


def _log_failure(result: Any, error: BaseException | None) -> None:
    if error is not None:
        logger.error("the servers of an earlier start are not forgotten: %s", error)

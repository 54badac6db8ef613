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

No link can hold up the writer: one whose server does not read is cut off at BUS_UNSENT_BYTES_MAX, and one whose server
sends more than BUS_WINDOW_BYTES that are not answered is not read from until they are.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

from tailrace import failpoints, limits
from tailrace.auth.throttle import LoginThrottle
from tailrace.bus import asking, link, messages
from tailrace.bus.asking import CountMetrics, LoginNoted
from tailrace.bus.link import BusLink
from tailrace.bus.remote_exports import ServedExports
from tailrace.bus.server_commands import SENT, BeginLife, ForgetLives, LastSent, SentRow, life_name
from tailrace.bus.shared_throttle import note
from tailrace.bus.totals import MetricTotals
from tailrace.errors import Error, Unavailable
from tailrace.log.cold import ColdMiss
from tailrace.log.tail import KEYS_CHANGED, USERS_CHANGED
from tailrace.runner import CarriedCommand, QueuedCommand
from tailrace.storage.engine import Notice, Tx

REVOKING: Final = (USERS_CHANGED, KEYS_CHANGED)
logger = logging.getLogger("tailrace.bus")


class ServerLink:
    """A connected server."""

    def __init__(self, made: BusLink) -> None:
        self.link = made
        self.name = ""  # and life, since its hello
        self.results: list[Any] = []  # to be sent
        self.unanswered = 0  # bytes of commands
        self.confirmed = 0  # the last batch that was confirmed
        self.exports: dict[int, Any] = {}


class BusServer:
    """Serves the bus for a database that is open for writing. For the event loop's thread."""

    def __init__(self, db: Any, throttle: LoginThrottle, version: str, *, replaces: bool = False) -> None:
        """`replaces`: there was a writer before, whose servers may still trust what they have cached."""
        self._version = version
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

    async def stop(self) -> None:
        """Send what is left, and end all links."""
        if self._beating is not None:
            self._beating.cancel()
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
        made = BusLink(self._receive, self._lost)
        self._links[made] = ServerLink(made)
        return made

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
        if kind == link.HELLO:
            self._greet(server, *message[1:5])
        elif not server.name:
            raise Unavailable("the first frame of a link must be a hello")
        elif kind == link.RUN:
            for number, tag, by, body in message[1]:
                self._run(server, number, tag, by, body)
        elif kind == link.CONFIRM:
            server.confirmed = max(server.confirmed, message[1])
            self._release_held()
        elif kind == link.ASK:
            self._begin(self._answer(server, *message[1:]))
        elif kind == link.TELL:
            self._hear(server, asking.decode(*message[1:]))

    def _greet(self, server: ServerLink, protocol: int, version: str, name: str, life: str) -> None:
        link.check_protocol(protocol, version)
        whole = life_name(name, life)
        for other in list(self._links.values()):
            if other.name == whole:  # lost there and not yet here: what it still holds is sent again
                other.link.cut()

        def refuse(error: BaseException) -> None:
            logger.error("server %s is refused: %s", name, error)
            server.link.cut()

        async def welcome() -> None:
            try:
                upto = await self._db.aexecute(LastSent(whole))
            except Exception as error:
                refuse(error)
                return
            server.name = whole
            server.confirmed = self._batch
            server.link.send([link.HELLO, link.PROTOCOL, self._version, self.epoch, upto])
            self._send_state(server)
            self._db.metrics.workers = self.servers

        def done(result: Any, error: BaseException | None) -> None:
            """Earlier commands of this life have run by now: they were before this one in the queue."""
            if error is not None:
                refuse(error)
            else:
                self._begin(welcome())

        self._db.sharing.submit(BeginLife(name, life), done)

    # -- commands

    def _run(self, server: ServerLink, number: int, tag: str, by: str, body: bytes) -> None:
        size = len(body)
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
        server.unanswered -= size
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
        if not notices or not self._links:
            return
        self._batch += 1
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
        return await self._exports.answer(server.exports, question)

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
        for server in list(self._links.values()):
            if server.name:
                self._send_state(server)

    def _send_state(self, server: ServerLink) -> None:
        db = self._db
        stopped, trouble, damage = db.stopped, db.trouble, db.sharing.damage
        state = {
            "now_ms": db.clock.now_ms(),
            "lag_ms": db.clock.lag_ms,
            "stopped": None if stopped is None else messages.encode_error(stopped),
            "trouble": None if trouble is None else messages.encode_error(trouble),
            "damage": None if damage is None else messages.encode_error(damage),
        }
        self._send(server, [link.BEAT, state])


def _log_failure(result: Any, error: BaseException | None) -> None:
    if error is not None:
        logger.error("the servers of an earlier start are not forgotten: %s", error)

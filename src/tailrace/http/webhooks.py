"""The dispatcher: sees that streams advanced and gets wakes to where they go.

Theory of operation
-------------------
One task, woken by an event, takes turns. A turn brings the index of subscriptions up to date with what commits changed,
submits `Notify` for the streams that commits advanced, and does what has become due: deliveries, wake events to write
again, leases to end. What happens during a turn is for the next; so notices pile up in two small sets and never in a
queue. Deliveries run in tasks of their own, one per subscription and WEBHOOKS_AT_ONCE_MAX in all.

A commit costs a server without subscriptions one comparison, any other a union of sets. `Notify` is left out where it
would do nothing: while a wake is in flight its subscription needs no other, and the transaction that ends it looks at
all links again. Then only a stream whose link may be missing is notified of.

Nothing is only in memory. The first turn after a start compares every stream with every subscription that follows it,
and reads what was due from the database; a wake that a crash kept from being issued or delivered is found there.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tailrace import limits
from tailrace.command import Command, Query
from tailrace.config import Config
from tailrace.database import Database
from tailrace.errors import Error, Unavailable
from tailrace.http.courier import Courier, Outcome, Resolve, resolve
from tailrace.http.subscriptions import webhook_rules
from tailrace.streams.queries import ListStreams
from tailrace.subscriptions.dispatch import (
    AnnounceWake,
    BeginDelivery,
    Behind,
    ExpireLease,
    FindDueSubscriptions,
    ListFollowedStreams,
    Notify,
    Owners,
    Pair,
    RecordDelivery,
    SubscriptionStatus,
)
from tailrace.subscriptions.routing import Routes
from tailrace.subscriptions.signing import EnsureSigningKey, GetSigningKeys
from tailrace.subscriptions.subscription import ANNOUNCE, CHANGES, DELIVER, Changed, DueStep

PAIRS_MAX: Final = 500  # in one command, so that writers wait milliseconds at most
PAUSE_S: Final = 1.0  # after the database refused something
TIMER_S_MAX: Final = 60.0
SCHEDULE_VOID_MAX: Final = 64  # void entries of the schedule beyond one per subscription; more, and it is rebuilt
GRACE_S: Final = 2.0  # for deliveries under way when the server stops

logger = logging.getLogger("tailrace.webhooks")
T = TypeVar("T")


class Dispatcher:
    """Serves the subscriptions of one database, on the event loop that `start` is called on."""

    def __init__(
        self, db: Database, config: Config, *, verify: ssl.SSLContext | None = None, resolve: Resolve = resolve
    ) -> None:
        self._db = db
        self._courier = Courier(webhook_rules(config), db.clock, verify=verify, resolve=resolve)
        self._routes = Routes()
        self._paths: dict[int, str | None] = {}  # of logs; a log's number and path never change
        self._changed: dict[str, bool] = {}  # subscriptions to look at again; True: also at what they follow
        self._advanced: set[int] = set()
        self._busy: set[str] = set()  # subscriptions with a wake in flight
        self._linked: set[tuple[str, int]] = set()  # subscriptions and logs that `Notify` has seen to
        self._due: dict[str, DueStep] = {}
        self._schedule: list[tuple[int, str]] = []  # a heap; entries that `_due` does not confirm are void
        self._ready: dict[str, None] = {}  # subscriptions whose delivery waits for its turn, in order
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._event = asyncio.Event()
        self._in_turn = True  # until the first turn is over, every commit counts
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: list[Callable[[], None]] = []

    # -- life

    async def start(self) -> None:
        """Begin. From here on no wake is missed, nor any that was missed before."""
        await self._ensure_key()  # the first query also binds the database to this loop
        tail = self._db.tail
        self._unsubscribe = [tail.subscribe(CHANGES, self._on_changed), tail.watch(self._on_commit)]
        self._task = asyncio.create_task(self._run(), name="tailrace-dispatcher")

    async def _ensure_key(self) -> None:
        """Have a key to sign with. Where it cannot be written now, reads are served all the same; the first webhook
        that is delivered makes it."""
        if not await self._db.aexecute(GetSigningKeys()):
            try:
                await self._db.aexecute(EnsureSigningKey())
            except Unavailable as error:
                logger.warning("there is no key to sign webhooks with yet: %s", error)

    async def stop(self, *, grace_s: float = GRACE_S) -> None:
        """End, before the database is closed. What is under way then is repeated after the next start."""
        self._stopping = True
        while self._unsubscribe:
            self._unsubscribe.pop()()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        tasks = list(self._under_way.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._courier.close()

    # -- what commits tell us; on the event loop's thread, short, and not to raise

    def _on_commit(self, logs: set[int]) -> None:
        if (self._routes or self._changed or self._in_turn) and not self._stopping:
            self._advanced |= logs
            self._event.set()

    def _on_changed(self, notices: list[Changed]) -> None:
        for notice in notices:
            if notice.woken:
                self._db.metrics.wakes += 1
            if notice.warning is not None:
                logger.warning("%s", notice.warning)
            self._look_at(notice.id, membership=notice.membership)

    def _look_at(self, name: str, *, membership: bool = False) -> None:
        self._changed[name] = membership or self._changed.get(name, False)
        self._event.set()

    # -- turns

    async def _run(self) -> None:
        turn = self._first_turn
        while not self._stopping:
            try:
                await turn()
                turn = self._turn
            except Error as error:
                # Nothing is lost: what the turn had taken is put back, and the database knows the rest.
                logger.warning("subscriptions wait: %s", error)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                logger.exception("a turn of the dispatcher failed")
                await asyncio.sleep(PAUSE_S)

    async def _first_turn(self) -> None:
        """Find out what there is and what was missed."""
        for following in await self._in_thread(ListFollowedStreams()):
            self._routes.put(following.id, following.pattern, following.streams)
            await asyncio.sleep(0)
        for duty in await self._in_thread(FindDueSubscriptions()):
            self._plan(duty.id, duty)
        after: str | None = None
        while self._routes and (streams := await self._in_thread(ListStreams(after=after))):
            pairs = [(name, stream.path) for stream in streams for name in self._routes.of(stream.path)]
            for at in range(0, len(pairs), PAIRS_MAX):
                query = Behind(tuple(pairs[at : at + PAIRS_MAX]))
                behind = await self._in_thread(query)
                await self._notify(behind)
                await asyncio.sleep(0)
            after = streams[-1].path
        self._event.set()

    async def _turn(self) -> None:
        self._in_turn = False
        await self._event.wait()
        self._event.clear()
        self._in_turn = True
        changed, self._changed = self._changed, {}
        advanced, self._advanced = self._advanced, set()
        try:
            await self._refresh(changed)
            await self._notify_followers(advanced)
            await self._do_due()
        except BaseException:
            for name, membership in changed.items():
                self._look_at(name, membership=membership)
            self._advanced |= advanced
            self._event.set()
            raise

    async def _refresh(self, changed: dict[str, bool]) -> None:
        """Bring the index and the schedule up to date."""
        members = tuple(name for name, membership in changed.items() if membership)
        if members:
            self._linked.clear()  # a stream that was left out for want of room may fit now
            followings = {following.id: following for following in await self._in_thread(ListFollowedStreams(members))}
            for name in members:
                following = followings.get(name)
                if following is None:
                    self._routes.remove(name)
                else:
                    self._routes.put(name, following.pattern, following.streams)
        if changed:
            duties = {duty.id: duty for duty in await self._query(FindDueSubscriptions, tuple(changed))}
            for name in changed:
                self._plan(name, duties.get(name))

    async def _notify_followers(self, logs: set[int]) -> None:
        """Notify the subscriptions that follow the streams of these logs."""
        if not self._routes:
            return
        if len(self._paths) > limits.ROW_CACHE_MAX:
            self._paths.clear()
        unknown = tuple(number for number in logs if number not in self._paths)
        if unknown:
            for at in range(0, len(unknown), PAIRS_MAX):
                some = unknown[at : at + PAIRS_MAX]
                owners = await self._db.aexecute(Owners(some))
                self._paths.update((number, owners.get(number)) for number in some)
        pairs: dict[Pair, None] = {}
        linked: set[tuple[str, int]] = set()
        for number in logs:
            path = self._paths[number]
            for name in self._routes.of(path) if path is not None else ():
                if name not in self._busy or (name, number) not in self._linked:
                    pairs[(name, path or "")] = None
                    linked.add((name, number))
        await self._notify(list(pairs))
        if len(self._linked) > limits.ROW_CACHE_MAX:
            self._linked.clear()
        self._linked |= linked

    async def _notify(self, pairs: Sequence[Pair]) -> None:
        steps = range(0, len(pairs), PAIRS_MAX)
        await self._execute([Notify(tuple(pairs[at : at + PAIRS_MAX])) for at in steps])

    async def _in_thread(self, query: Query[T]) -> T:
        """The result of a query over very many rows, executed in a thread."""
        return await asyncio.to_thread(self._db.execute, query)

    async def _query(self, query: Callable[[tuple[str, ...]], Query[list[T]]], names: tuple[str, ...]) -> list[T]:
        """The answers to a question about these subscriptions: on the loop if they are few, as nearly always."""
        if len(names) <= PAIRS_MAX:
            return await self._db.aexecute(query(names))
        return await self._in_thread(query(names))

    async def _execute(self, commands: Sequence[Command[Any]]) -> None:
        """Run commands that may share commits; raise the first error once all are through."""
        failure: Error | None = None
        for completion in [self._db.aexecute(command) for command in commands]:
            try:
                await completion
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # -- what is due

    def _plan(self, name: str, duty: SubscriptionStatus | None) -> None:
        if duty is not None and duty.busy:
            self._busy.add(name)
        else:
            self._busy.discard(name)
        due = None if duty is None else duty.due
        if due is None:
            self._due.pop(name, None)
        elif self._due.get(name) != due:
            self._due[name] = due
            heapq.heappush(self._schedule, (due.at_ms, name))
            if len(self._schedule) > 2 * len(self._due) + SCHEDULE_VOID_MAX:
                # Every heartbeat leaves a void entry, which would stay until the lease it was for had ended.
                self._schedule = [(due.at_ms, name) for name, due in self._due.items()]
                heapq.heapify(self._schedule)

    async def _do_due(self) -> None:
        now_ms = self._db.clock.now_ms()
        commands: list[Command[Any]] = []
        names: list[str] = []
        while self._schedule and self._schedule[0][0] <= now_ms:
            at_ms, name = heapq.heappop(self._schedule)
            due = self._due.get(name)
            if due is None or due.at_ms != at_ms:
                continue
            del self._due[name]
            if due.what == DELIVER:
                # One that is under way is looked at again when it ends.
                if name not in self._under_way:
                    self._ready[name] = None
            else:
                commands.append(AnnounceWake(name) if due.what == ANNOUNCE else ExpireLease(name))
                names.append(name)
        self._start_deliveries()
        self._set_timer(now_ms)
        try:
            await self._execute(commands)
        finally:
            for name in names:
                self._look_at(name)

    def _set_timer(self, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._schedule:
            # Not too long, for the wall clock may be set while we wait.
            delay_s = min(max(0.001, (self._schedule[0][0] - now_ms) / 1000), TIMER_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._event.set)

    # -- deliveries

    def _start_deliveries(self) -> None:
        while self._ready and len(self._under_way) < limits.WEBHOOKS_AT_ONCE_MAX and not self._stopping:
            name = next(iter(self._ready))
            del self._ready[name]
            self._under_way[name] = asyncio.create_task(self._deliver(name), name=f"tailrace-webhook {name}")

    async def _deliver(self, name: str) -> None:
        metrics = self._db.metrics
        try:
            delivery = await self._db.aexecute(BeginDelivery(name))
            if delivery is None:
                return
            metrics.webhooks += 1
            try:
                outcome = await self._courier.deliver(delivery)
            except Exception as error:
                logger.exception("a delivery failed with an unexpected error")
                outcome = Outcome(failure=f"{type(error).__name__}: {error}")
            if outcome.failure is not None:
                metrics.webhooks_failed += 1
            row = delivery.subscription
            assert row.wake_id is not None
            await self._db.aexecute(
                RecordDelivery(name, row.generation, row.wake_id, done=outcome.done, failure=outcome.failure)
            )
        except Error as error:
            logger.warning("webhook of subscription %r waits: %s", name, error)
            await asyncio.sleep(PAUSE_S)
        except Exception:
            logger.exception("webhook of subscription %r failed", name)
            await asyncio.sleep(PAUSE_S)
        finally:
            del self._under_way[name]
            self._look_at(name)

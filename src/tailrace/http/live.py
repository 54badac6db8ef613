"""Live reads: long-polls wait for the next entry, event streams for all that follow.

Readers of one log that have caught up share a `Channel`: what a commit appended is encoded once and the same bytes go
to all of them; only the control event may be a reader's own. A reader subscribes before it reads, so nothing is
appended between the two unseen; entries that it then sees twice, or has missed, it recognises by position.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from tailrace import limits
from tailrace.clock import Clock
from tailrace.completion import Completion
from tailrace.errors import TooMany
from tailrace.http import cursor as cursors
from tailrace.http.message import Frame, ResponseSink
from tailrace.http.sse import HEARTBEAT, Encoding, SharedEvent, control
from tailrace.log import segments
from tailrace.log.entry import Entry
from tailrace.log.log import Advanced, Ended
from tailrace.log.tail import MISSED, Tail
from tailrace.metrics import Metrics

_HEARTBEAT: Final = Frame(HEARTBEAT)
# Below this, a copy of the data with each control event is cheaper than a second write to each reader.
JOIN_BYTES_MAX: Final = 1024
_SLOTS_PER_S: Final = 8  # readers that are to be woken within one are woken together
READ_BYTES: Final = 4 * limits.KiB  # what a read costs, beside what it finds


class Turns:
    """Lets the readers that a commit has woken read one after the other.

    In one turn of the event loop they read what a slice holds. In between, others are served, and what was read is
    counted as unsent: else a large entry would be in memory once for each of them before a reader is disconnected."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Completion[None]]] = deque()
        self._left = limits.SLICE_BYTES
        self._begun = False

    async def take(self, size: int) -> None:
        """Return when it is the caller's turn to read about `size` bytes."""
        loop = asyncio.get_running_loop()
        size += READ_BYTES
        if not self._begun:
            self._begun = True
            loop.call_soon(self._next, loop)
        if self._left > 0:
            self._left -= size
            return
        turn: Completion[None] = Completion(loop)
        self._waiting.append((size, turn))
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = limits.SLICE_BYTES
        self._begun = bool(self._waiting)
        if self._begun:
            loop.call_soon(self._next, loop)
        while self._waiting and self._left > 0:
            size, turn = self._waiting.popleft()
            self._left -= size
            turn.set(None)


class EventReader:
    """An event-stream reader that has caught up to `position`."""

    __slots__ = ("behind", "cursor", "ended", "position", "sink", "slot", "woken")

    def __init__(self, sink: ResponseSink, position: int, cursor: int | None) -> None:
        self.sink = sink
        self.position = position
        self.cursor = cursor  # what the reader came with, where that is not in the past
        self.behind = 0  # bytes, about: it missed them, or they are too many, and has to read before it can follow
        self.ended = False  # it is behind, or nothing will follow
        self.slot = 0  # see `LiveReads.wake_at`
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Channel:
    """The caught-up readers of one log."""

    def __init__(self, encoding: Encoding, clock: Clock, metrics: Metrics) -> None:
        self.readers: set[EventReader] = set()
        self._encoding = encoding
        self._clock = clock
        self._metrics = metrics
        self.unsubscribe: Callable[[], None] = lambda: None

    def publish(self, notices: list[Any]) -> None:
        """A commit touched the log: pass it on."""
        entries = [
            entry for notice in notices if isinstance(notice, Advanced) for entry in segments.entries(notice.segment)
        ]
        if MISSED in notices:
            for reader in self.readers:
                reader.behind = limits.EVENT_BYTES
                reader.end()
            return
        ended = next((notice for notice in notices if isinstance(notice, Ended)), None)
        closed = ended is not None and not ended.gone
        now = cursors.current(self._clock.now_ms())
        after = entries[-1].next if entries else 0
        size = sum([len(entry.body) for entry in entries])
        data: dict[int, Frame] = {}
        frames: dict[tuple[int, int], tuple[Frame, ...]] = {}
        place: tuple[int, int] | None = None  # position and cursor of the reader before: most have the same
        found: tuple[Frame, ...] = ()
        for reader in list(self.readers):
            if reader.ended:  # it reads from its position on, in a thread perhaps, and would see these entries twice
                continue
            at, cursor = reader.position, reader.cursor
            if cursor is None or cursor < now:
                cursor = now
            if place is None or at != place[0] or cursor != place[1]:
                place = (at, cursor)
                if place not in frames:
                    frames[place] = self._frames(at, cursor, entries, data, closed=closed)
                found = frames[place]
            if found:
                reader.sink.send(*found)
                if after > at:
                    reader.position = after
            elif after > at:
                reader.behind = max(size, limits.EVENT_BYTES)
                reader.end()
            if ended is not None:
                reader.end()
        self._metrics.frames += len(self.readers)

    def _frames(
        self, at: int, cursor: int, entries: list[Entry], data: dict[int, Frame], *, closed: bool
    ) -> tuple[Frame, ...]:
        """The frames that a reader at this position has not seen yet; empty if there are none, or if it has to read the
        entries, because some are before them, or they are too large to be encoded here.

        The data is encoded once for all readers at one position, however many cursors they have, and kept in `data`."""
        new = [entry for entry in entries if entry.position >= at]
        if (not new and not closed) or (new and new[0].position != at):
            return ()
        if sum([len(entry.body) for entry in new]) > self._encoding.live_bytes_max:
            return ()
        event = control(new[-1].next if new else at, cursor, at_tail=True, closed=closed)
        if not new:
            return (Frame(event),)
        if at not in data:
            bodies = [self._encoding.rendered(entry) for entry in new]
            if self._encoding.sparse:
                bodies = list(filter(None, bodies))
            data[at] = Frame(self._encoding.event(bodies) if bodies else b"")
        if len(data[at].data) <= JOIN_BYTES_MAX:
            return (Frame(data[at].data + event),)
        return (data[at], Frame(event))

    def beat(self) -> None:
        for reader in list(self.readers):
            reader.sink.send(_HEARTBEAT)


def appended_bytes(notices: list[Any]) -> int:
    return sum([len(notice.segment.body) for notice in notices if type(notice) is Advanced])


class Watch:
    """One reader that waits for one commit.

    It waits for a completion and not for a future of asyncio: a request that the transport steps by hand needs no task
    then. That is set in a turn of the loop by itself, because a commit may be published, and a server stopped, within a
    task."""

    __slots__ = ("_live", "_loop", "_missed", "_waiting", "new_bytes", "slot", "unsubscribe")

    def __init__(self, live: LiveReads) -> None:
        self.new_bytes = 0  # appended since the last wait
        self.slot = 0  # see `LiveReads.wake_at`
        self.unsubscribe: Callable[[], None] = lambda: None
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._waiting: Completion[None] | None = None
        self._missed = False  # woken while it did not wait

    def wake(self, notices: list[Any] | None = None) -> None:
        if notices:
            self.new_bytes += appended_bytes(notices)
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            self._missed = True
        else:
            self._live.forget(self)
            self._loop.call_soon(waiting.set, None)

    def wait(self, timeout_s: float) -> Completion[None]:
        """To be awaited: set when there was a commit since the last wait, at once if there already was, or at the
        time-out."""
        completion: Completion[None] = Completion(self._loop)
        if self._missed:
            self._missed = False
            completion.set(None)
        else:
            self._waiting = completion
            self._live.wake_at(self, self._loop.time() + timeout_s)
        return completion

    def close(self) -> None:
        self._waiting = None
        self._live.unwatch(self)
        self.unsubscribe()


class LiveReads:
    """The live readers of one server."""

    def __init__(self, tail: Tail, clock: Clock, metrics: Metrics, *, recycle_s: float) -> None:
        self._tail = tail
        self._clock = clock
        self._metrics = metrics
        self._recycle_s = recycle_s
        self._channels: dict[tuple[int, Encoding], Channel] = {}
        self._events: WeakValueDictionary[tuple[int, int, Encoding], SharedEvent] = WeakValueDictionary()
        self._heart: asyncio.TimerHandle | None = None
        self._slots: dict[int, set[EventReader | Watch]] = {}  # readers to be woken, by time
        self._alarm: asyncio.TimerHandle | None = None  # for the first of them
        self._alarm_slot = 0
        self.turns = Turns()
        self.stopping = False
        self._watches: set[Watch] = set()

    def admit(self) -> None:
        """Room for one more reader, or an error."""
        if self._metrics.live_readers >= limits.WAITERS_MAX:
            raise TooMany(f"{limits.WAITERS_MAX} readers are waiting already; retry in a moment")

    def watch(self, log: int) -> Watch:
        """Follow the next commit that touches `log`. Watch first, then read: nothing falls between."""
        watch = Watch(self)
        self._watches.add(watch)
        self._metrics.live_readers += 1
        watch.unsubscribe = self._tail.subscribe(log, watch.wake)
        return watch

    def unwatch(self, watch: Watch) -> None:
        self._watches.discard(watch)
        self.forget(watch)
        self._metrics.live_readers -= 1

    def shared_event(self, log: int, position: int, encoding: Encoding, bodies: list[bytes]) -> SharedEvent:
        """A large event, the same object for all readers that are being sent it."""
        body = bodies[0] if len(bodies) == 1 else encoding.separator.join(bodies)
        key = (log, position, encoding)
        event = self._events.get(key)
        if event is None or event.body != body:
            event = self._events[key] = SharedEvent(encoding, body)
        return event

    def join(self, log: int, encoding: Encoding, sink: ResponseSink, position: int, cursor: int | None) -> EventReader:
        """Let a reader that has everything below `position` follow the log from now on."""
        key = (log, encoding)
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = Channel(encoding, self._clock, self._metrics)
            channel.unsubscribe = self._tail.subscribe(log, channel.publish)
        reader = EventReader(sink, position, cursor)
        channel.readers.add(reader)
        self._metrics.live_readers += 1
        if self._heart is None:
            self._heart = asyncio.get_running_loop().call_later(limits.SSE_HEARTBEAT_S, self._beat)
        return reader

    def leave(self, log: int, encoding: Encoding, reader: EventReader) -> None:
        key = (log, encoding)
        channel = self._channels.get(key)
        if channel is not None and reader in channel.readers:
            channel.readers.discard(reader)
            self.forget(reader)
            self._metrics.live_readers -= 1
            if not channel.readers:
                channel.unsubscribe()
                del self._channels[key]

    def recycle_s(self) -> float:
        """How long a reader may stay. Spread, so that readers that came together do not all come back together."""
        return self._recycle_s * random.uniform(0.9, 1.1)

    def wake_at(self, reader: EventReader | Watch, when: float) -> None:
        """Wake a reader at this time of the loop, or up to a slot later: one timer serves all of them."""
        self.forget(reader)
        reader.slot = slot = math.ceil(when * _SLOTS_PER_S)
        self._slots.setdefault(slot, set()).add(reader)
        if self._alarm is None or slot < self._alarm_slot:
            self._set_alarm(slot)

    def forget(self, reader: EventReader | Watch) -> None:
        """Do not wake it at the time that was set."""
        slot = self._slots.get(reader.slot)
        if slot is not None:
            slot.discard(reader)
            if not slot:
                del self._slots[reader.slot]

    def _set_alarm(self, slot: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_slot = slot
        self._alarm = asyncio.get_running_loop().call_at(slot / _SLOTS_PER_S, self._wake_due)

    def _wake_due(self) -> None:
        self._alarm = None
        for slot in [slot for slot in self._slots if slot <= self._alarm_slot]:
            for reader in self._slots.pop(slot):
                reader.wake()
        if self._slots:
            self._set_alarm(min(self._slots))

    def stop(self) -> None:
        """End all live reads: long-polls are answered, event streams end."""
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.stopping = True
        for channel in list(self._channels.values()):
            for reader in channel.readers:
                reader.end()
        for watch in list(self._watches):
            watch.wake()

    def _beat(self) -> None:
        self._heart = None
        for channel in list(self._channels.values()):
            channel.beat()
        if self._channels:
            self._heart = asyncio.get_running_loop().call_later(limits.SSE_HEARTBEAT_S, self._beat)

"""What the protocol's text says streams do, as plainly as it can be written: lists in memory, no storage, no log.

It is written from PROTOCOL.md, not from the code, and shares nothing with it. Offsets are opaque here: the model is
told the one that the server answered and checks that it is greater than those before it. Answers are compared by
HTTP status, which is also what errors of the embedded API carry.

Where the text leaves a choice: what has expired is removed by `sweep`, and until then still counts as a fork of its
source; a retry of any request that a producer had accepted is a duplicate, also after the stream was closed.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What should be answered: the status, and what a success says."""

    status: int
    closed: bool = False


@dataclass
class Message:
    """What one request added. `after` is the offset that was answered for it."""

    data: bytes
    at_ms: int
    after: Any = None


@dataclass(eq=False)
class Stream:
    path: str
    content_type: str
    start: Any = None  # the offset of the first readable message
    messages: list[Message] = field(default_factory=list)
    ttl_s: int | None = None
    expires_ms: int | None = None
    closed: bool = False
    seq: str | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    source: Stream | None = None
    config: tuple[Any, ...] = ()  # what an idempotent re-creation must match
    max_age_s: int | None = None
    max_bytes: int | None = None
    deleted: bool = False
    forks: int = 0

    @property
    def json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    @property
    def offsets(self) -> list[Any]:
        """Every offset at which a reader can start, the tail last."""
        return [self.start, *(message.after for message in self.messages)]

    @property
    def tail(self) -> Any:
        return self.offsets[-1]

    def content(self, index: int = 0) -> Any:
        """All that a reader gets from the `index`-th offset on."""
        if self.json:
            return [value for message in self.messages[index:] for value in json.loads(b"[" + message.data + b"]")]
        return b"".join(message.data for message in self.messages[index:])


@dataclass
class Fork:
    """Where a fork branches: at which of the source's offsets (None: the tail), and how much of the next message."""

    source: str
    index: int | None = None
    sub: int = 0


class Model:
    """All streams of one server."""

    def __init__(self, now_ms: int = 0, *, beginning: Any) -> None:
        self.streams: dict[str, Stream] = {}
        self.now_ms = now_ms
        self.beginning = beginning  # the offset before everything, for streams that had content from the start

    def copy(self) -> Model:
        return copy.deepcopy(self)

    # -- queries

    def find(self, path: str) -> tuple[int, Stream | None]:
        """200 and the stream, or 404, or 410 for one that only its forks can read."""
        stream = self.streams.get(path)
        if stream is None:
            return 404, None
        if stream.deleted:
            return 410, stream
        if self.expired(stream):
            return (410 if stream.forks else 404), stream
        return 200, stream

    def live(self) -> list[Stream]:
        return [stream for path, stream in self.streams.items() if self.find(path)[0] == 200]

    def expired(self, stream: Stream) -> bool:
        return stream.expires_ms is not None and self.now_ms >= stream.expires_ms

    # -- what can be done. `after` of new messages is filled in by `answered`.

    def create(
        self,
        path: str,
        content_type: str | None = None,
        body: bytes = b"",
        *,
        ttl_s: int | None = None,
        expires_ms: int | None = None,
        closed: bool = False,
        fork: Fork | None = None,
        max_age_s: int | None = None,
        max_bytes: int | None = None,
    ) -> Answer:
        status, there = self.find(path)
        if status == 410:
            return Answer(409)
        if status == 200:
            assert there is not None
            wanted = self._config(content_type, ttl_s, expires_ms, fork, max_age_s, max_bytes)
            same = _matches(wanted, there.config, forked=fork is not None) and closed == there.closed
            return Answer(200 if same else 409, there.closed)
        made = Stream(path, content_type or "application/octet-stream", closed=closed)
        made.ttl_s, made.expires_ms, made.max_age_s, made.max_bytes = ttl_s, expires_ms, max_age_s, max_bytes
        inherited: list[Message] = []
        if fork is not None:
            status, source = self.find(fork.source)
            if status == 404 or source in self._freed(there):
                return Answer(404)
            if status == 410:
                return Answer(409)
            assert source is not None
            if content_type is not None and media_type(content_type) != media_type(source.content_type):
                return Answer(409)
            branched = _branch(source, fork)
            if branched is None:
                return Answer(400)
            inherited = branched
            made.source, made.start, made.content_type = source, source.start, source.content_type
            if ttl_s is None and expires_ms is None:
                made.ttl_s = source.ttl_s
                made.expires_ms = source.expires_ms if source.ttl_s is None else None
            if max_age_s is None and max_bytes is None:
                made.max_age_s, made.max_bytes = source.max_age_s, source.max_bytes
        made.messages = [copy.copy(message) for message in inherited]
        if body:
            data = _parse(body, empty_allowed=True) if made.json else body
            if data is None:
                return Answer(400)
            if data:
                made.messages.append(Message(data, self.now_ms))
        if fork is not None and fork.index is None and made.source is not None:
            fork = Fork(fork.source, len(made.source.messages), fork.sub)  # what it was created with is what it has
        made.config = self._config(made.content_type, made.ttl_s, made.expires_ms, fork, made.max_age_s, made.max_bytes)
        if made.ttl_s is not None:
            made.expires_ms = self.now_ms + made.ttl_s * 1000
        if there is not None:
            self._bury(there)
        if made.source is not None:
            made.source.forks += 1
        self.streams[path] = made
        return Answer(201, closed)

    def append(
        self,
        path: str,
        body: bytes = b"",
        content_type: str | None = None,
        *,
        producer: tuple[str, int, int] | None = None,
        seq: str | None = None,
        close: bool = False,
    ) -> Answer:
        status, stream = self.find(path)
        if status != 200:
            return Answer(status)
        assert stream is not None
        verdict = 200 if producer is None else _verdict(producer, stream.producers.get(producer[0]))
        if verdict == 204:
            self._touch(stream)  # a repetition is a sign of life, and nothing else
            return Answer(204, stream.closed)
        if stream.closed:
            if not close or body or producer is not None:
                return Answer(409, True)
            self._touch(stream)  # to close again is a sign of life, and nothing else
            return Answer(204, True)
        if verdict != 200:
            return Answer(verdict)
        if body:
            if content_type is None:
                return Answer(400)
            if media_type(content_type) != media_type(stream.content_type):
                return Answer(409)
            if seq is not None and stream.seq is not None and seq.encode() <= stream.seq.encode():
                return Answer(409)
            data = _parse(body, empty_allowed=False) if stream.json else body
            if data is None:
                return Answer(400)
            stream.messages.append(Message(data, self.now_ms))
            stream.seq = seq if seq is not None else stream.seq
        elif not close:
            return Answer(400)
        if producer is not None:
            stream.producers[producer[0]] = producer[1:]
        stream.closed = close
        self._touch(stream)
        return Answer(200 if producer is not None and body else 204, close)

    def answered(self, path: str, tail: Any) -> None:
        """A success answered this tail offset: it is that of what was just added, or the one known before."""
        stream = self.streams[path]
        if stream.start is None:
            stream.start = self.beginning if stream.messages else tail
        for before, message in zip(stream.offsets, stream.messages, strict=False):
            if message.after is None:
                assert tail > before, f"{path}: offset {tail} after {before} does not increase"
                message.after = tail
        assert stream.tail == tail, f"{path}: tail {tail} answered, {stream.tail} known"

    def delete(self, path: str) -> Answer:
        status, stream = self.find(path)
        if status != 200:
            return Answer(status)
        assert stream is not None
        self._bury(stream)
        return Answer(204)

    def touch(self, path: str) -> None:
        """Someone read it."""
        status, stream = self.find(path)
        if status == 200 and stream is not None:
            self._touch(stream)

    def sweep(self) -> None:
        """What has expired is removed. (What retention trims, the server decides within bounds: `trimmed`.)"""
        for stream in list(self.streams.values()):
            if not stream.deleted and self.expired(stream):
                self._bury(stream)

    def trimmed(self, stream: Stream, start: Any) -> None:
        """The server says that the stream now starts at `start`: a message boundary, nothing too young below it."""
        index = stream.offsets.index(start)
        for at, message in zip(stream.offsets, stream.messages[:index], strict=False):
            old = stream.max_age_s is not None and message.at_ms < self.now_ms - stream.max_age_s * 1000
            much = stream.max_bytes is not None and at < stream.tail - stream.max_bytes
            assert old or much, f"{stream.path}: {message} was trimmed of {stream} at {self.now_ms}"
        del stream.messages[:index]
        stream.start = start

    # -- rules

    def _touch(self, stream: Stream) -> None:
        if stream.ttl_s is not None:
            stream.expires_ms = self.now_ms + stream.ttl_s * 1000

    def _bury(self, stream: Stream) -> None:
        """Softly while forks read it; else it goes, and with it every deleted ancestor that only it kept."""
        stream.deleted = True
        gone: Stream | None = stream
        while gone is not None and gone.deleted and not gone.forks:
            if self.streams.get(gone.path) is gone:
                del self.streams[gone.path]
            gone = gone.source
            if gone is not None:
                gone.forks -= 1

    def _freed(self, there: Stream | None) -> list[Stream]:
        """What is removed with `there`, an expired stream without forks whose path is wanted."""
        freed = [] if there is None else [there]
        while freed and (source := freed[-1].source) is not None and source.forks == 1:
            if not source.deleted and not self.expired(source):
                break
            freed.append(source)
            if not source.deleted:
                break
        return freed

    def _config(
        self,
        content_type: str | None,
        ttl_s: int | None,
        expires_ms: int | None,
        fork: Fork | None,
        max_age_s: int | None,
        max_bytes: int | None,
    ) -> tuple[Any, ...]:
        kind = None if content_type is None else media_type(content_type)
        branch = None
        if fork is not None:
            source = self.streams.get(fork.source)
            at = None if fork.index is None or source is None else _offset(source, fork.index)
            branch = (fork.source, at, fork.sub)
        return kind, branch, (ttl_s, None if ttl_s is not None else expires_ms), (max_age_s, max_bytes)


def _matches(wanted: tuple[Any, ...], there: tuple[Any, ...], *, forked: bool) -> bool:
    """Whether a re-creation asks for what is there. A fork need not repeat what it inherited."""
    kind, branch, life, kept = wanted
    if forked:
        kind = kind or there[0]
        life = there[2] if life == (None, None) else life
        kept = there[3] if kept == (None, None) else kept
        if branch is not None and there[1] is not None and branch[1] is None:
            branch = (branch[0], there[1][1], branch[2])
    return (kind or "application/octet-stream", branch, life, kept) == there


def _offset(source: Stream, index: int) -> Any:
    return source.offsets[index] if index < len(source.offsets) else "beyond"


def _branch(source: Stream, fork: Fork) -> list[Message] | None:
    """What a fork inherits, or None if there is no such place."""
    index = len(source.messages) if fork.index is None else fork.index
    if index > len(source.messages):
        return None
    inherited = source.messages[:index]
    if not fork.sub:
        return inherited
    if fork.index is None or index == len(source.messages):
        return None
    following = source.messages[index]
    if source.json:
        values = json.loads(b"[" + following.data + b"]")
        if fork.sub > len(values):
            return None
        if fork.sub == len(values):
            return source.messages[: index + 1]
        return [*inherited, Message(json.dumps(values[: fork.sub])[1:-1].encode(), following.at_ms)]
    if fork.sub > len(following.data):
        return None
    if fork.sub == len(following.data):
        return source.messages[: index + 1]
    return [*inherited, Message(following.data[: fork.sub], following.at_ms)]


def _verdict(claim: tuple[str, int, int], known: tuple[int, int] | None) -> int:
    """The validation logic of section 5.2.1."""
    _, epoch, sequence = claim
    if known is None:
        return 200 if sequence == 0 else 409
    if epoch < known[0]:
        return 403
    if epoch > known[0]:
        return 200 if sequence == 0 else 400
    if sequence <= known[1]:
        return 204
    return 200 if sequence == known[1] + 1 else 409


def _parse(body: bytes, *, empty_allowed: bool) -> bytes | None:
    """The messages of a JSON body, joined by commas; None if it is not acceptable."""
    try:
        value = json.loads(body)
    except ValueError:
        return None
    values = value if isinstance(value, list) else [value]
    if not values and not empty_allowed:
        return None
    return json.dumps(values)[1:-1].encode()


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()

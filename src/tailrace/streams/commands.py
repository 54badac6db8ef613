"""Commands on streams: create (also as a fork), append, close, delete, touch."""

from __future__ import annotations

import msgspec

from tailrace import limits
from tailrace.command import Command
from tailrace.errors import Closed, Conflict, Gone, Invalid, NotFound, Trimmed
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.log.position import offset
from tailrace.storage.engine import Peek, Reader, Tx
from tailrace.streams import appending, json_mode
from tailrace.streams.producer import PRODUCERS, ProducerClaim, ProducerState, is_new, is_retry
from tailrace.streams.stream import (
    DEADLINES,
    DEFAULT_CONTENT_TYPE,
    OWNER,
    RETAINED,
    STREAMS,
    Deadline,
    Retained,
    StreamRow,
    check_content_type,
    check_path,
    expired,
    is_json,
    media_type,
    touched,
)
from tailrace.streams.stream import Appended as Appended


class CreatedStream(msgspec.Struct, frozen=True):
    fresh: bool  # False: it existed already with the same configuration
    stream: StreamRow
    tail: int


class Fork(msgspec.Struct, frozen=True):
    """The point at which a new stream branches off."""

    source: str
    position: int | None = None  # None: the source's tail
    sub: int = 0  # how much of the next message to inherit: bytes, or messages of a JSON stream


class CreateStream(Command[CreatedStream], frozen=True):
    """Create a stream; succeeds if it exists with the same configuration."""

    path: str
    content_type: str | None = None
    body: bytes = b""
    ttl_s: int | None = None
    expires_ms: int | None = None
    expires_text: str | None = None
    closed: bool = False
    fork: Fork | None = None
    max_age_s: int | None = None
    max_bytes: int | None = None

    def size(self) -> int:
        return len(self.body)

    def heavy(self) -> bool:
        # A fork inside a message splits that message, which may be large.
        return len(self.body) > limits.LOOP_BYTES or (self.fork is not None and self.fork.sub > 0)

    def subjects(self) -> tuple[str, ...]:
        own = f"streams/{self.path}"
        return (own,) if self.fork is None else (own, f"streams/{self.fork.source}")

    def run(self, tx: Tx) -> CreatedStream:
        check_path(self.path)
        existing = tx.get(STREAMS, self.path)
        if existing is not None:
            if existing.deleted or not expired(existing, tx.settled_ms):
                return self._confirm(tx, existing)
            remove_stream(tx, existing)
            if tx.get(STREAMS, self.path) is not None:
                raise _blocked(self.path)
        if self.fork is not None:
            stream, log = self._fork(tx, self.fork)
        else:
            content_type = DEFAULT_CONTENT_TYPE if self.content_type is None else check_content_type(self.content_type)
            log = logs.create(tx, OWNER + self.path)
            stream = self._stream(tx, log, content_type)
        body = json_mode.initial(self.body) if self.body and is_json(stream.content_type) else self.body
        if body:
            log = logs.append(tx, log, body, len(body))
        watch_expiry(tx, stream)
        if stream.max_age_s is not None or stream.max_bytes is not None:
            tx.put(RETAINED, Retained(stream.path))
        return CreatedStream(True, stream, log.next)

    def _stream(
        self, tx: Tx, log: Log, content_type: str, source: StreamRow | None = None, fork: Fork | None = None
    ) -> StreamRow:
        """The new row. A fork has the source's TTL and retention unless it sets its own."""
        ttl_s, expires_ms, expires_text = self.ttl_s, self.expires_ms, self.expires_text
        max_age_s, max_bytes = self.max_age_s, self.max_bytes
        if source is not None and ttl_s is None and expires_ms is None:
            ttl_s, expires_text = source.ttl_s, source.expires_text
            expires_ms = source.expires_ms if ttl_s is None else None
        if source is not None and max_age_s is None and max_bytes is None:
            max_age_s, max_bytes = source.max_age_s, source.max_bytes
        if ttl_s is not None:
            expires_ms = tx.now_ms + ttl_s * 1000
        return StreamRow(
            path=self.path, log=log.id, content_type=content_type, created_ms=tx.now_ms, ttl_s=ttl_s,
            expires_ms=expires_ms, expires_text=expires_text, deadline_ms=None, closed=int(self.closed), seq=None,
            forked_from=fork.source if fork else None, fork_position=fork.position if fork else None,
            fork_sub=fork.sub if fork else None, max_age_s=max_age_s, max_bytes=max_bytes, deleted=0,
        )  # fmt: skip

    def _fork(self, tx: Tx, fork: Fork) -> tuple[StreamRow, Log]:
        source = tx.get(STREAMS, fork.source)
        if source is None:
            raise NotFound(f"there is no stream {fork.source!r} to fork")
        origin = log_of(tx, source)
        if source.deleted or (expired(source, tx.settled_ms) and origin.forks):
            raise Conflict(f"stream {fork.source!r} was deleted; only its forks remain; fork one of them")
        if expired(source, tx.settled_ms):
            raise NotFound(f"there is no stream {fork.source!r} to fork: it has expired")
        if self.content_type is not None and media_type(self.content_type) != media_type(source.content_type):
            raise Conflict(
                f"Content-Type {self.content_type!r} differs from the source's {source.content_type!r}; leave it out",
                code="CONTENT_TYPE_MISMATCH",
            )
        position, prefix = branch(tx, origin, fork, json=is_json(source.content_type))
        log = logs.fork(tx, origin, OWNER + self.path, position)
        if prefix:
            log = logs.append(tx, log, prefix, len(prefix))
        resolved = msgspec.structs.replace(fork, position=log.base if fork.position is None else fork.position)
        return self._stream(tx, log, source.content_type, source, resolved), log

    def _confirm(self, tx: Tx, stream: StreamRow) -> CreatedStream:
        """The existing stream if the request matches its configuration; raises `Conflict` otherwise."""
        if stream.deleted:
            raise _blocked(self.path)
        fork = self.fork
        has_expiry = self.ttl_s is not None or self.expires_ms is not None
        if fork is None:
            same_type = media_type(self.content_type or DEFAULT_CONTENT_TYPE) == media_type(stream.content_type)
            same_fork = stream.forked_from is None
        else:
            same_type = self.content_type is None or media_type(self.content_type) == media_type(stream.content_type)
            same_fork = (
                stream.forked_from == fork.source
                and (fork.position is None or fork.position == stream.fork_position)
                and fork.sub == stream.fork_sub
            )
        absolute_ms = stream.expires_ms if stream.ttl_s is None else None
        same_expiry = (fork is not None and not has_expiry) or (
            self.ttl_s == stream.ttl_s and self.expires_ms == absolute_ms
        )
        has_retention = self.max_age_s is not None or self.max_bytes is not None
        same_retention = (fork is not None and not has_retention) or (
            self.max_age_s == stream.max_age_s and self.max_bytes == stream.max_bytes
        )
        for same, what in (
            (same_type, "content type"),
            (same_fork, "fork source or offset"),
            (same_expiry, "TTL or expiry"),
            (same_retention, "retention"),
            (self.closed == bool(stream.closed), "closure status"),
        ):
            if not same:
                raise Conflict(
                    f"stream {self.path!r} exists with a different {what}; delete it first or use another path",
                    code="STREAM_EXISTS",
                )
        return CreatedStream(False, stream, log_of(tx, stream).next)


class Append(Command[Appended], frozen=True, gc=False):
    """Append to a stream, close it, or both; exactly once for an idempotent producer, however often it is sent."""

    subject = ("streams", "path")
    together = True

    path: str
    body: bytes = b""
    content_type: str | None = None
    claim: ProducerClaim | None = None
    seq: str | None = None
    close: bool = False

    def size(self) -> int:
        return len(self.body)

    def heavy(self) -> bool:
        return len(self.body) > limits.LOOP_BYTES

    def prefetch(self, peek: Peek) -> None:
        stream = peek(STREAMS, self.path)
        if stream is not None:
            peek(LOGS, stream.log)
            if self.claim is not None:
                peek(PRODUCERS, stream.log, self.claim.id)

    @classmethod
    def run_together(cls, tx: Tx, commands: list[Append]) -> list[Appended]:
        """As `Command.run_together`: plain appends, that is, of a body and no more, with one pass over each log."""
        return appending.run_together(tx, commands)

    def run(self, tx: Tx) -> Appended:
        stream = live(tx, self.path)
        log = log_of(tx, stream)
        claim = self.claim
        known = None if claim is None else tx.get(PRODUCERS, log.id, claim.id)
        if stream.closed and not (claim is not None and is_retry(claim, known)):
            return self._on_closed(tx, stream, log)
        if claim is not None and not is_new(claim, known):
            assert known is not None
            _renew(tx, stream)
            return Appended(log.next, bool(stream.closed), True, known.sequence)
        if self.body:
            body = self._accepted(stream)
            log = logs.append(tx, log, body, len(body))
        elif not self.close:
            raise Invalid("the body is empty: there is nothing to append; close with Stream-Closed: true")
        if claim is not None:
            tx.put(PRODUCERS, ProducerState(log.id, claim.id, claim.epoch, claim.sequence))
        if self.close or self.seq is not None or stream.ttl_s is not None:
            self._remember(tx, stream)
        return Appended(log.next, self.close, False, None if claim is None else claim.sequence)

    def _accepted(self, stream: StreamRow) -> bytes:
        """The entry's body; raises if the stream does not accept it."""
        if self.content_type is None:
            raise Invalid("Content-Type is missing; send the stream's", code="MISSING_CONTENT_TYPE")
        if self.content_type != stream.content_type and media_type(self.content_type) != media_type(
            stream.content_type
        ):
            raise Conflict(
                f"Content-Type {self.content_type[:80]!r} does not match the stream's {stream.content_type!r}",
                code="CONTENT_TYPE_MISMATCH",
            )
        if self.seq is not None and stream.seq is not None and self.seq.encode() <= stream.seq.encode():
            raise Conflict(  # clients recognise it by its first two words
                f"sequence conflict: Stream-Seq {self.seq!r} does not sort after the last one, {stream.seq!r}",
                code="SEQUENCE_REGRESSION",
            )
        return json_mode.entry(self.body) if is_json(stream.content_type) else self.body

    def _remember(self, tx: Tx, stream: StreamRow) -> None:
        seq = self.seq if self.seq is not None and self.body else stream.seq
        stream = msgspec.structs.replace(stream, closed=int(self.close), seq=seq)
        tx.put(STREAMS, touched(stream, tx.now_ms))
        if self.close:
            tx.notify(stream.log, logs.CLOSED)

    def _on_closed(self, tx: Tx, stream: StreamRow, log: Log) -> Appended:
        if not self.body and self.close and self.claim is None:
            _renew(tx, stream)
            return Appended(log.next, True, True)
        raise Closed(path=self.path, tail=log.next)


class DeleteStream(Command[None], frozen=True):
    """Delete a stream. While forks read from it, its path returns 410 and cannot be reused."""

    freeing = True
    subject = ("streams", "path")

    path: str

    def run(self, tx: Tx) -> None:
        remove_stream(tx, live(tx, self.path))


class TouchStream(Command[None], frozen=True):
    """Renew a stream's TTL because it was read."""

    subject = ("streams", "path")

    path: str

    def run(self, tx: Tx) -> None:
        stream = tx.get(STREAMS, self.path)
        if stream is not None and not stream.deleted and not expired(stream, tx.settled_ms):
            tx.put(STREAMS, touched(stream, tx.now_ms))


def live(reader: Reader | Tx, path: str) -> StreamRow:
    """The stream at `path`; raises if it does not exist, has expired or was deleted."""
    stream = reader.get(STREAMS, path)
    if stream is None:
        raise NotFound(f"there is no stream {path[:200]!r}; create it with PUT")
    if stream.deleted:
        raise Gone(f"stream {path!r} was deleted; only its forks remain")
    if expired(stream, reader.settled_ms):
        if log_of(reader, stream).forks:
            raise Gone(f"stream {path!r} has expired; only its forks remain")
        raise NotFound(f"there is no stream {path!r}: it has expired")
    return stream


def log_of(reader: Reader | Tx, stream: StreamRow) -> Log:
    log = reader.get(LOGS, stream.log)
    assert log is not None, f"stream {stream.path!r} has lost its log {stream.log}"
    return log


def _renew(tx: Tx, stream: StreamRow) -> None:
    """A write that changes nothing renews the TTL all the same."""
    if stream.ttl_s is not None:
        tx.put(STREAMS, touched(stream, tx.now_ms))


def watch_expiry(tx: Tx, stream: StreamRow) -> None:
    """Store the stream's row and, if it expires, its next deadline."""
    at_ms = stream.expires_ms
    if at_ms is not None:
        tx.put(DEADLINES, Deadline(at_ms, stream.path))
    tx.put(STREAMS, msgspec.structs.replace(stream, deadline_ms=at_ms))


def remove_stream(tx: Tx, stream: StreamRow) -> None:
    """Remove a stream; softly if it has forks. Deleted ancestors without other forks are removed with it."""
    tx.delete(RETAINED, stream.path)
    if stream.deadline_ms is not None:
        tx.delete(DEADLINES, stream.deadline_ms, stream.path)
    tx.put(STREAMS, msgspec.structs.replace(stream, deleted=1, deadline_ms=None))
    for log in logs.drop(tx, log_of(tx, stream)):
        tx.delete(STREAMS, log.owner.removeprefix(OWNER))


def _blocked(path: str) -> Conflict:
    return Conflict(
        f"stream {path!r} was deleted but forks still read from it; delete them first or use another path",
        code="PATH_BLOCKED",
    )


def branch(tx: Tx, origin: Log, fork: Fork, *, json: bool) -> tuple[int, bytes]:
    """The position at which a fork's own entries begin, and the part of the next message that it copies."""
    position = origin.next if fork.position is None else fork.position
    if position > origin.next:
        raise Invalid(
            f"Stream-Fork-Offset {offset(position)} is beyond the source's tail {offset(origin.next)}",
            code="INVALID_FORK_OFFSET",
        )
    if position < origin.start:
        raise Trimmed(requested=position, earliest=origin.start, offset=offset(origin.start))
    if not logs.boundary(tx, origin, position):
        raise Invalid(
            f"Stream-Fork-Offset {offset(position)} lies inside a message; use an offset that the server returned, "
            f"with Stream-Fork-Sub-Offset",
            code="INVALID_FORK_OFFSET",
        )
    if fork.sub == 0:
        return position, b""
    page = logs.read(tx, origin, position, 1)
    if fork.position is None or not page.entries:
        raise Invalid(
            f"Stream-Fork-Sub-Offset {fork.sub} needs a message after Stream-Fork-Offset, and there is none",
            code="INVALID_FORK_SUB_OFFSET",
        )
    body = page.entries[0].body
    part, whole = json_mode.prefix(body, fork.sub) if json else (body[: fork.sub], len(body))
    if fork.sub > whole:
        raise Invalid(
            f"Stream-Fork-Sub-Offset {fork.sub} is past the end of the next message, which has {whole} "
            f"{'messages' if json else 'bytes'}",
            code="INVALID_FORK_SUB_OFFSET",
        )
    return (page.entries[0].next, b"") if fork.sub == whole else (position, part)


def check_retention(max_age_s: int | None, max_bytes: int | None) -> None:
    for name, value in (("max age", max_age_s), ("max bytes", max_bytes)):
        if value is not None and not 1 <= value <= limits.POSITION_MAX:
            raise Invalid(f"retention {name} {value} is out of range; use at least 1")

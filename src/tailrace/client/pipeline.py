"""What the client does for the pipeline: logs in bulk, staged writes, jobs and cold storage.

What is read as Arrow arrives in record batches while the server still reads. A stream that breaks off before its end
raises `Unavailable`: what came until then was right, and the rest can be read from there on.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx
import msgspec

from tailrace import limits
from tailrace.errors import Error, Invalid, TooMany, Unavailable
from tailrace.log.position import offset as wire

if TYPE_CHECKING:
    import pyarrow as pa

ARROW: Final = "application/vnd.apache.arrow.stream"
MSGPACK: Final = {"content-type": "application/vnd.msgpack"}
CHUNK_BYTES: Final = 8 * limits.MiB  # about what is staged in one request
TRIES: Final = 5  # of what may be sent again
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of every Arrow stream
_encode: Final = msgspec.msgpack.Encoder().encode

Ranges = Mapping[int, tuple[int, int]]


class Pipeline:
    """The part of `Client` that is about history and the jobs that work on it."""

    def _send(self, method: str, target: str, **options: Any) -> httpx.Response:
        raise NotImplementedError

    def _open(self, target: str, **options: Any) -> httpx.Response:
        raise NotImplementedError

    # -- logs

    def logs(
        self,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        label: str | None = None,
    ) -> dict[str, Any]:
        """What a table, topic or stream has of history: its logs, where they begin and end, and what of it is cold."""
        return self._told("GET", "/v1/logs", params=_named(table, topic, stream, label))

    def logs_at(
        self,
        timestamp_ms: int,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        label: str | None = None,
    ) -> dict[int, int]:
        """By partition, the first offset whose entry is not older."""
        params = {**_named(table, topic, stream, label), "timestamp": str(timestamp_ms)}
        return _numbers(self._told("GET", "/v1/logs/at", params=params)["offsets"])

    def advance(
        self,
        offsets: Mapping[int, int],
        records: int,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        label: str | None = None,
    ) -> dict[int, int]:
        """By partition, how far about so many records reach from `offsets` on; an entry at least, if there is more."""
        begin = msgspec.json.encode({str(partition): at for partition, at in offsets.items()}).decode()
        params = {**_named(table, topic, stream, label), "from": begin, "records": str(records)}
        return _numbers(self._told("GET", "/v1/logs/advance", params=params)["offsets"])

    def count_records(
        self, first: int, until: int, pieces: int = 1, *, table: str, label: str | None = None
    ) -> tuple[int, list[int]]:
        """How many change records of a table lie in [first, until), and offsets that cut it into at most so many ranges
        with about as many each."""
        params = {**_named(table, None, None, label), "first": str(first), "until": str(until), "pieces": str(pieces)}
        told = self._told("GET", "/v1/logs/count", params=params)
        return told["records"], told["cuts"]

    @contextmanager
    def arrow(
        self,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        partition: int = 0,
        label: str | None = None,
        offset: int = -1,
        until: int | None = None,
        form: str = "rows",
        **asked: str,
    ) -> Iterator[pa.RecordBatchReader]:
        """Entries of a log whose position is in [offset, until), as record batches: `form` is rows or entries. Offset
        -1 is the earliest, until None the tail."""
        params = {**asked, "offset": "-1" if offset < 0 else wire(offset), "form": form}
        if until is not None:
            params["until"] = wire(until)
        if label is not None:
            params["label"] = label
        with self._reader(_log(table, topic, stream, partition), params) as (_, reader):
            yield reader

    @contextmanager
    def items(self, table: str) -> Iterator[tuple[int, pa.RecordBatchReader]]:
        """All items of a table at one sequence: that, and the items as record batches."""
        with self._reader(f"/v1/tables/{_quoted(table, 'a table')}/items", {}) as (answer, reader):
            yield int(answer.headers["tailrace-sequence"]), reader

    @contextmanager
    def _reader(self, target: str, params: dict[str, str]) -> Iterator[tuple[httpx.Response, pa.RecordBatchReader]]:
        import pyarrow as pa  # it takes long to import, and few ask

        answer = self._open(target, params=params, headers={"accept": ARROW})
        try:
            if not answer.headers.get("content-type", "").startswith(ARROW):
                raise Unavailable(f"{target} was not answered in Arrow: is it a Tailrace server of this version?")
            source = pa.PythonFile(_Body(answer), mode="r")
            try:
                reader = pa.ipc.open_stream(source)
            except pa.ArrowException as error:
                raise Unavailable(f"the answer to {target} is not an Arrow stream: {error}") from error
            yield answer, reader
        finally:
            answer.close()

    # -- staged writes

    def stage(
        self,
        rows: Iterable[Any],
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
    ) -> str | None:
        """Leave rows on the server, for a commit to write; the id of the stage, None where there were no rows. Rows are
        ``["PUT" | "DELETE", item]`` of typed values for tables, ``[key, payload, partition]`` for topics, bytes for
        streams."""
        stage: str | None = None
        named = _named(table, topic, stream)
        for number, body in enumerate(_chunks(rows)):
            params = named if stage is None else {**named, "stage": stage, "chunk": str(number)}
            told = self._again("POST", "/v1/stages", params=params, headers=MSGPACK, content=body)
            stage = told["stage"]
        return stage

    def drop_stage(self, stage: str) -> None:
        """Forget staged rows."""
        self._send("DELETE", f"/v1/stages/{_quoted(stage, 'a stage')}")

    def commit_stages(
        self,
        query: str,
        batch: int,
        stages: Sequence[str],
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        consumer: str | None = None,
        ranges: Ranges | None = None,
        strict: bool = True,
    ) -> dict[str, Any]:
        """Write the rows of these stages, all at once, and once for each batch of a query. With a `consumer`, only if
        its position in each log is where the range [from, to) begins; it is at `to` then. `applied` says whether it
        was done now; False is that it was before. Sent again by itself where the outcome is unknown."""
        body: dict[str, Any] = {
            "query": query,
            "batch": batch,
            "target": _named(table, topic, stream),
            "stages": list(stages),
            "consumer": consumer,
            "ranges": None if ranges is None else {str(log): list(each) for log, each in ranges.items()},
            "strict": strict,
        }
        told = self._again("POST", "/v1/stages/commit", json=body)
        return {**told, "positions": _numbers(told["positions"])}

    def apply_view(self, name: str, body: Any) -> dict[str, Any]:
        """Move a materialized view on by what changed; once for each range of its sources, however often it is sent."""
        target = f"/v1/views/{_quoted(name, 'a view')}/apply"
        return self._again("POST", target, headers=MSGPACK, content=_encode(body))

    def views(self) -> list[dict[str, Any]]:
        """All materialized views, by name."""
        found: list[dict[str, Any]] = self._told("GET", "/v1/views")["views"]
        return found

    def view(self, name: str) -> dict[str, Any]:
        """A materialized view: its SELECT, its sources, and how far it has come in each."""
        return self._told("GET", f"/v1/views/{_quoted(name, 'a view')}")

    def held(self, name: str, asked: Sequence[tuple[int, str, bool, bytes]]) -> list[tuple[list[Any], int, Any]]:
        """What a view that joins has of its sources' rows: by side and join key, the rows (if wanted, and behind the
        one before), their count, and where to go on."""
        target = f"/v1/views/{_quoted(name, 'a view')}/held"
        answer = self._send("POST", target, headers=MSGPACK, content=_encode({"asked": [list(each) for each in asked]}))
        found: list[tuple[list[Any], int, Any]] = msgspec.msgpack.decode(answer.content)
        return found

    def fill_view(self, name: str, body: Any) -> dict[str, Any]:
        """A step of filling a view anew; sent again by itself where the outcome is unknown."""
        target = f"/v1/views/{_quoted(name, 'a view')}/fill"
        return self._again("POST", target, headers=MSGPACK, content=_encode(body))

    # -- jobs

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, by name."""
        found: list[dict[str, Any]] = [_job(each) for each in self._told("GET", "/v1/jobs")["jobs"]]
        return found

    def job(self, name: str) -> dict[str, Any]:
        """A job: what it is, how it is, and its `positions` by log."""
        return _job(self._told("GET", _named_job(name)))

    def register_job(
        self, name: str, kind: str, *, source: str = "", target: str = "", definition: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Make sure there is this job. One of that name that is of another kind, or does something else, conflicts."""
        body = {"kind": kind, "source": source, "target": target, "definition": dict(definition or {})}
        return _job(self._told("PUT", _named_job(name), json=body))

    def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]:
        """Tell how a job is: its state, how many rows it has worked through, and a message for people."""
        body: dict[str, Any] = {"state": state}
        body |= {} if rows is None else {"rows": rows}
        body |= {} if message is None else {"message": message}
        return _job(self._told("POST", f"{_named_job(name)}/report", json=body))

    def drop_job(self, name: str) -> None:
        """Forget a job and how far it was."""
        self._send("DELETE", _named_job(name))

    def pin(self, name: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Note where a job begins, in those logs where that is not noted yet; its positions in all of them."""
        body = {"positions": {str(log): position for log, position in positions.items()}}
        return _numbers(self._again("POST", f"{_named_job(name)}/pin", json=body)["positions"])

    # -- cold storage

    def cold(self) -> dict[str, Any]:
        """What is in cold storage: its `url`, and `places` with their generation and logs."""
        return self._told("GET", "/v1/cold")

    def attach(
        self,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        label: str | None = None,
    ) -> dict[str, Any]:
        """Let history be kept in cold storage from now on; as `logs`."""
        return self._told("POST", "/v1/cold/attach", json=_named(table, topic, stream, label))

    def detach(
        self,
        *,
        table: str | None = None,
        topic: str | None = None,
        stream: str | None = None,
        label: str | None = None,
    ) -> dict[str, Any]:
        """Let retention trim the hot log again, whatever is in cold storage; as `logs`."""
        return self._told("POST", "/v1/cold/detach", json=_named(table, topic, stream, label))

    def tiered(self, place: str, generation: int, ranges: Ranges) -> int:
        """Say that [from, to) of these logs is durable in cold storage since that generation of the place. `Conflict`
        FENCED, with `facts`, where the server is elsewhere."""
        told = {str(log): list(each) for log, each in ranges.items()}
        body = {"place": place, "generation": generation, "ranges": told}
        moved: int = self._told("POST", "/v1/cold/tiered", json=body)["generation"]
        return moved

    def forget(self, place: str, starts: Mapping[int, int]) -> dict[str, Any]:
        """Say that history below these positions is no longer in cold storage."""
        body = {"place": place, "starts": {str(log): position for log, position in starts.items()}}
        return self._told("POST", "/v1/cold/forget", json=body)

    # -- sending

    def _told(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        answer = self._send(method, target, **options)
        try:
            return msgspec.json.decode(answer.content, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{target} was not answered in JSON: is it a Tailrace server of this version?") from None

    def _again(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        """As `_told`, for what has the effect of one however often it is sent."""
        delay_s = 0.1
        for _ in range(TRIES - 1):
            try:
                return self._told(method, target, **options)
            except (Unavailable, TooMany) as error:
                if error.code in ("CLOSED", "LIMIT_EXCEEDED"):
                    raise
                time.sleep(delay_s)
                delay_s *= 3
        return self._told(method, target, **options)


class _Body(io.RawIOBase):
    """The body of an answer as it arrives, as a file. It ends with the end of an Arrow stream, or raises."""

    def __init__(self, answer: httpx.Response) -> None:
        self._parts = answer.iter_raw() if "content-encoding" not in answer.headers else answer.iter_bytes()
        self._held = b""
        self._last = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None else size
        pieces, have = [self._held], len(self._held)
        while not self._ended and (wanted < 0 or have < wanted):
            piece = self._next()
            pieces.append(piece)
            have += len(piece)
        data = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        if wanted < 0:
            wanted = len(data)
        self._held = data[wanted:]
        return data[:wanted]

    def _next(self) -> bytes:
        try:
            piece = next(self._parts, None)
        except httpx.HTTPError as error:
            raise _cut(str(error)) from error
        except httpx.StreamError as error:
            raise _cut("the answer was closed") from error
        if piece is None:
            self._ended = True
            if self._last != _END:
                raise _cut("its end is missing")
            return b""
        self._last = (self._last + piece)[-len(_END) :]
        return piece


def _cut(why: str) -> Error:
    return Unavailable(f"the server's answer broke off: {why}; read again from the last offset", code="CUT_OFF")


def _chunks(rows: Iterable[Any]) -> Iterator[bytes]:
    """Rows as MessagePack arrays, each about as large as a request may be."""
    parts: list[bytes] = []
    size = 0
    for row in rows:
        try:
            part = _encode(row)
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise Invalid(f"the row {str(row)[:80]!r} cannot be sent to the server: {error}") from None
        if parts and size + len(part) > CHUNK_BYTES:
            yield _array(parts)
            parts, size = [], 0
        parts.append(part)
        size += len(part)
    if parts:
        yield _array(parts)


def _array(parts: list[bytes]) -> bytes:
    return b"\xdd" + len(parts).to_bytes(4) + b"".join(parts)


def _named(table: str | None, topic: str | None, stream: str | None, label: str | None = None) -> dict[str, str]:
    given = {"table": table, "topic": topic, "stream": stream}
    named = {kind: name for kind, name in given.items() if name is not None}
    if len(named) != 1:
        raise Invalid("name exactly one of table, topic and stream", code="INVALID_TARGET")
    return named if label is None else {**named, "label": label}


def _log(table: str | None, topic: str | None, stream: str | None, partition: int) -> str:
    _named(table, topic, stream)
    if table is not None:
        return f"/v1/tables/{_quoted(table, 'a table')}/stream"
    if topic is not None:
        return f"/v1/topics/{_quoted(topic, 'a topic')}/{partition}/stream"
    assert stream is not None
    return f"/v1/stream/{_quoted(stream, 'a stream', '/')}"


def _named_job(name: str) -> str:
    return f"/v1/jobs/{_quoted(name, 'a job')}"


def _quoted(name: str, what: str, safe: str = "") -> str:
    if not name:
        raise Invalid(f"'' cannot name {what}; give its name")
    try:
        return quote(name, safe=safe)
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} cannot name {what}: it is not valid UTF-8") from None


def _numbers(told: Mapping[str, int]) -> dict[int, int]:
    """JSON has text for keys, where these are numbers."""
    return {int(number): at for number, at in told.items()}


def _job(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "positions": _numbers(told["positions"])}

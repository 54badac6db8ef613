"""The client for the pipeline: logs in bulk, staged writes, views, jobs and cold storage.

Arrow is read in record batches. A response that breaks off before its end raises `Unavailable`: the batches until then
are right, and the rest can be read from there on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from tailrace import limits
from tailrace.client.async_connection import AsyncServerResponse
from tailrace.client.bodies import chunks, encode, spooled_body
from tailrace.client.targets import (
    LogSource,
    job_target,
    log_target,
    quoted,
    source_parameters,
    table_target,
    view_target,
)
from tailrace.embedded.async_primitives import sleep
from tailrace.errors import TooMany, Unavailable
from tailrace.log.position import offset as wire

if TYPE_CHECKING:
    import pyarrow as pa

ARROW: Final = "application/vnd.apache.arrow.stream"
MSGPACK: Final = {"content-type": "application/vnd.msgpack"}
TRIES: Final = 5  # of requests that may be repeated
LOGS_MAX: Final = 1_000  # tables, topics and streams in one request

Ranges = Mapping[int, tuple[int, int]]


class AsyncPipeline:
    """The part of the asynchronous client that is about history and the jobs that work on it."""

    async def _send(self, method: str, target: str, **options: Any) -> AsyncServerResponse:
        raise NotImplementedError

    async def _open(self, target: str, **options: Any) -> AsyncServerResponse:
        raise NotImplementedError

    # -- logs

    async def logs(self, **source: Unpack[LogSource]) -> dict[str, Any]:
        """The history of a table, topic or stream: its logs, where they start and end, and which ranges are cold."""
        return await self._json("GET", "/v1/logs", params=_named(source))

    async def logs_at(self, timestamp_ms: int, **source: Unpack[LogSource]) -> dict[int, int]:
        """By partition, the first offset whose entry is not older."""
        params = {**_named(source), "timestamp": str(timestamp_ms)}
        found = await self._json("GET", "/v1/logs/at", params=params)
        return _numbers(found["offsets"])

    async def describe_logs(self, sources: Sequence[LogSource]) -> list[dict[str, Any] | None]:
        """As `logs`, for many at once, in their order; None for each that does not exist."""
        found: list[dict[str, Any] | None] = []
        while len(found) < len(sources):
            wanted = [_named(each) for each in sources[len(found) : len(found) + LOGS_MAX]]
            found += (await self._json("POST", "/v1/logs", json={"logs": wanted}))["logs"]
        return found

    async def advance(self, offsets: Mapping[int, int], records: int, **source: Unpack[LogSource]) -> dict[int, int]:
        """By partition, the offset about so many records after `offsets`; an entry at least, if there is more."""
        (found,) = await self.advance_logs([(source, offsets, records)])
        if found is None:
            await self.logs(**source)  # raises the error that names it
            raise Unavailable(f"{', '.join(_named(source).values())!r} was created just now; try again")
        return found

    async def advance_logs(
        self, wanted: Sequence[tuple[LogSource, Mapping[int, int], int]]
    ) -> list[dict[int, int] | None]:
        """As `advance`, for many tables, topics and streams at once, in their order; None for each that does not
        exist."""
        found: list[dict[int, int] | None] = []
        for part in _by_partitions(wanted):
            logs = [
                {**_named(source), "from": {str(number): at for number, at in offsets.items()}, "records": records}
                for source, offsets, records in part
            ]
            answer = await self._json("POST", "/v1/logs/advance", json={"logs": logs})
            found += [None if each is None else _numbers(each["offsets"]) for each in answer["logs"]]
        return found

    async def count_records(
        self, first: int, until: int, pieces: int = 1, *, table: str, label: str | None = None
    ) -> tuple[int, list[int]]:
        """The number of change records of a table in [first, until), and offsets that cut it into at most so many
        ranges with about as many records each."""
        named = source_parameters(table, None, None, label)
        params = {**named, "first": str(first), "until": str(until), "pieces": str(pieces)}
        found = await self._json("GET", "/v1/logs/count", params=params)
        return found["records"], found["cuts"]

    @asynccontextmanager
    async def arrow(
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
        **parameters: str,
    ) -> AsyncIterator[pa.RecordBatchReader]:
        """Entries of a log whose position is in [offset, until), as record batches: `form` is rows or entries. Offset
        -1 is the earliest, until None the tail."""
        params = {**parameters, "offset": "-1" if offset < 0 else wire(offset), "form": form}
        if until is not None:
            params["until"] = wire(until)
        if label is not None:
            params["label"] = label
        async with self._reader(log_target(table, topic, stream, partition), params) as (_, reader):
            yield reader

    @asynccontextmanager
    async def items(
        self, table: str, *, form: str = "rows", segment: int = 0, segments: int = 1
    ) -> AsyncIterator[tuple[int, pa.RecordBatchReader]]:
        """All items of a table at one sequence, or one of so many segments of them: that sequence, and the items as
        record batches; `form` is rows (JSON) or stored (MessagePack)."""
        params = {"form": form, "segment": str(segment), "segments": str(segments)}
        async with self._reader(f"{table_target(table)}/items", params) as (response, reader):
            yield int(response.headers["tailrace-sequence"]), reader

    @asynccontextmanager
    async def _reader(
        self, target: str, params: dict[str, str]
    ) -> AsyncIterator[tuple[AsyncServerResponse, pa.RecordBatchReader]]:
        import pyarrow as pa  # it takes long to import, and few programs need it

        response = await self._open(target, params=params, headers={"accept": ARROW})
        try:
            if not response.headers.get("content-type", "").startswith(ARROW):
                raise Unavailable(f"{target} was not answered in Arrow: is it a Tailrace server of this version?")
            source = pa.PythonFile(await spooled_body(response), mode="r")
            try:
                reader = pa.ipc.open_stream(source)
            except pa.ArrowException as error:
                raise Unavailable(f"the response to {target} is not an Arrow stream: {error}") from error
            yield response, reader
        finally:
            await response.aclose()

    # -- staged writes

    async def stage(self, rows: Iterable[Any], **source: Unpack[LogSource]) -> str | None:
        """Leave rows on the server, for a commit to write. Returns the id of the stage, None if there were no rows.
        Rows are ``["PUT" | "DELETE", item]`` of typed values for tables, ``[key, payload, partition]`` for topics,
        bytes for streams."""
        stage: str | None = None
        named = _named(source)
        for number, body in enumerate(chunks(rows)):
            params = named if stage is None else {**named, "stage": stage, "chunk": str(number)}
            staged = await self._repeat("POST", "/v1/stages", params=params, headers=MSGPACK, content=body)
            stage = staged["stage"]
        return stage

    async def stage_arrow(self, stream: bytes, table: str) -> str:
        """Leave rows for a table on the server, as an Arrow stream in which each column is an attribute and a null is
        none. A column ``_op`` says "PUT" (or null) or "DELETE". Returns the id of the stage."""
        staged = await self._repeat(
            "POST", "/v1/stages", params={"table": table}, headers={"content-type": ARROW}, content=stream
        )
        stage: str = staged["stage"]
        return stage

    async def drop_stage(self, stage: str) -> None:
        """Drop staged rows."""
        await self._send("DELETE", f"/v1/stages/{quoted(stage, 'a stage')}")

    async def commit_stages(
        self,
        query: str,
        batch: int,
        stages: Sequence[str],
        *,
        consumer: str | None = None,
        ranges: Ranges | None = None,
        strict: bool = True,
        **source: Unpack[LogSource],
    ) -> dict[str, Any]:
        """Write the rows of these stages, and once for each batch of a query: all at once, or if there are more than
        100,000 rows for a table, in several transactions. With a `consumer`, only if
        its position in each log is where the range [from, to) starts; it is at `to` then. `applied` says whether the
        rows were written now; False means that they were before. The request is repeated if its outcome is unknown."""
        body: dict[str, Any] = {
            "query": query,
            "batch": batch,
            "target": _named(source),
            "stages": list(stages),
            "consumer": consumer,
            "ranges": None if ranges is None else {str(log): list(each) for log, each in ranges.items()},
            "strict": strict,
        }
        while True:  # a large commit takes several requests
            done = _positioned(await self._repeat("POST", "/v1/stages/commit", json=body))
            if not done.pop("more", False):  # servers of earlier versions have no such field
                return done

    # -- views

    async def apply_view(self, name: str, body: Any) -> dict[str, Any]:
        """Advance a materialized view by changes; once for each range of its sources, however often it is sent."""
        return await self._repeat("POST", f"{view_target(name)}/apply", headers=MSGPACK, content=encode(body))

    async def view_partials(self, name: str, body: Any) -> list[str | None]:
        """Partial aggregates of an additive view, by key, at its positions."""
        found = await self._repeat("POST", f"{view_target(name)}/partials", headers=MSGPACK, content=encode(body))
        partials: list[str | None] = found["partials"]
        return partials

    async def views(self) -> list[dict[str, Any]]:
        """All materialized views, by name."""
        found = await self._json("GET", "/v1/views")
        views: list[dict[str, Any]] = found["views"]
        return views

    async def view(self, name: str) -> dict[str, Any]:
        """A materialized view: its SELECT, its sources, and its position in each."""
        return await self._json("GET", view_target(name))

    async def plan_view(self, name: str, body: Any) -> dict[str, Any]:
        """Report the plan of a view, or Spark's error about its SELECT."""
        return await self._repeat("POST", f"{view_target(name)}/plan", headers=MSGPACK, content=encode(body))

    async def fill_view(self, name: str, body: Any) -> dict[str, Any]:
        """A step of filling a view again; the request is repeated if its outcome is unknown."""
        return await self._repeat("POST", f"{view_target(name)}/fill", headers=MSGPACK, content=encode(body))

    # -- jobs

    async def jobs(self) -> list[dict[str, Any]]:
        """All jobs, by name."""
        found = await self._json("GET", "/v1/jobs")
        return [_positioned(each) for each in found["jobs"]]

    async def job(self, name: str) -> dict[str, Any]:
        """A job: its definition, its state, and its `positions` by log."""
        return _positioned(await self._json("GET", job_target(name)))

    async def register_job(
        self, name: str, kind: str, *, source: str = "", target: str = "", definition: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Create a job, if it does not exist. A job of that name of another kind, or with another definition,
        conflicts."""
        body = {"kind": kind, "source": source, "target": target, "definition": dict(definition or {})}
        return _positioned(await self._json("PUT", job_target(name), json=body))

    async def report_job(
        self, name: str, state: str, *, rows: int | None = None, message: str | None = None
    ) -> dict[str, Any]:
        """Report the state of a job, how many rows it has processed, and a message for people."""
        body: dict[str, Any] = {"state": state}
        body |= {} if rows is None else {"rows": rows}
        body |= {} if message is None else {"message": message}
        return _positioned(await self._json("POST", f"{job_target(name)}/report", json=body))

    async def pause_job(self, name: str) -> dict[str, Any]:
        """Pause a job until `resume_job`: the program that runs it finishes its batch, and then waits."""
        return _positioned(await self._repeat("POST", f"{job_target(name)}/pause"))

    async def resume_job(self, name: str) -> dict[str, Any]:
        """Let a paused job continue from where it was."""
        return _positioned(await self._repeat("POST", f"{job_target(name)}/resume"))

    async def drop_job(self, name: str) -> None:
        """Drop a job and its positions."""
        await self._send("DELETE", job_target(name))

    async def pin(self, name: str, positions: Mapping[int, int]) -> dict[int, int]:
        """Record where a job starts, in those logs where that is not recorded yet. Returns its positions in all."""
        body = {"positions": {str(log): position for log, position in positions.items()}}
        pinned = await self._repeat("POST", f"{job_target(name)}/pin", json=body)
        return _numbers(pinned["positions"])

    # -- cold storage

    async def cold(self) -> dict[str, Any]:
        """The contents of cold storage: its `url`, and `places` with their generation and logs."""
        return await self._json("GET", "/v1/cold")

    async def attach(self, **source: Unpack[LogSource]) -> dict[str, Any]:
        """Keep history in cold storage from now on; the result is that of `logs`."""
        return await self._json("POST", "/v1/cold/attach", json=_named(source))

    async def detach(self, **source: Unpack[LogSource]) -> dict[str, Any]:
        """Let retention trim the hot log again, whatever is in cold storage; the result is that of `logs`."""
        return await self._json("POST", "/v1/cold/detach", json=_named(source))

    async def tiered(self, place: str, generation: int, ranges: Ranges) -> int:
        """Report that [from, to) of these logs is durable in cold storage since that generation of the place.
        `Conflict` FENCED, with `facts`, if the server is at another one."""
        ended = {str(log): list(each) for log, each in ranges.items()}
        body = {"place": place, "generation": generation, "ranges": ended}
        moved = await self._json("POST", "/v1/cold/tiered", json=body)
        return int(moved["generation"])

    async def forget(self, place: str, starts: Mapping[int, int]) -> dict[str, Any]:
        """Report that history below these positions is no longer in cold storage."""
        body = {"place": place, "starts": {str(log): position for log, position in starts.items()}}
        return await self._json("POST", "/v1/cold/forget", json=body)

    # -- sending

    async def _json(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        response = await self._send(method, target, **options)
        try:
            return msgspec.json.decode(response.content, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(f"{target} was not answered in JSON: is it a Tailrace server of this version?") from None

    async def _repeat(self, method: str, target: str, **options: Any) -> dict[str, Any]:
        """As `_json`, for requests that have the effect of one however often they are sent."""
        delay_s = 0.1
        for _ in range(TRIES - 1):
            try:
                return await self._json(method, target, **options)
            except (Unavailable, TooMany) as error:
                if error.code in ("CLOSED", "LIMIT_EXCEEDED"):
                    raise
                await sleep(delay_s)
                delay_s *= 3
        return await self._json(method, target, **options)


def _named(source: LogSource) -> dict[str, str]:
    return source_parameters(source.get("table"), source.get("topic"), source.get("stream"), source.get("label"))


def _by_partitions(
    wanted: Sequence[tuple[LogSource, Mapping[int, int], int]],
) -> Iterator[list[tuple[LogSource, Mapping[int, int], int]]]:
    """Cut so that each request has a bounded number of partitions."""
    held: list[tuple[LogSource, Mapping[int, int], int]] = []
    partitions = 0
    for each in wanted:
        if held and (partitions + len(each[1]) > limits.BULK_LOGS_MAX or len(held) == LOGS_MAX):
            yield held
            held, partitions = [], 0
        held.append(each)
        partitions += len(each[1])
    if held:
        yield held


def _numbers(by_text: Mapping[str, int]) -> dict[int, int]:
    """JSON has text for keys, where these are numbers."""
    return {int(number): at for number, at in by_text.items()}


def _positioned(described: dict[str, Any]) -> dict[str, Any]:
    return {**described, "positions": _numbers(described["positions"])}

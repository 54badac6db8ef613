"""What executors do in a batch of `tier`: read pieces of logs from the server, write files, say what they found.

A task that fails answers with its error, as data: the driver then commits the places that are whole and tells of the
others in our words. Files of a task that failed, or ran twice, are listed by nothing; `compact` removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.bulk.cold_rows import cold_batch
from tailrace.client import Client
from tailrace.cold import reading
from tailrace.cold.store import Store
from tailrace.cold.writing import Written, write_rows
from tailrace.errors import Corrupt, Error, Fenced, Forbidden, Invalid, NotFound, TooMany, Unavailable
from tailrace.spark.connection import PATIENCE_S, WAIT_MAX_S, WAIT_MIN_S
from tailrace.spark.jobs.pieces import Digest, Piece, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWERS: Final = "answer binary"
_KINDS: Final[dict[str, type[Error]]] = {kind.code: kind for kind in (Corrupt, Fenced, Forbidden, Invalid, NotFound)}
_AWAY: Final = ("UNAVAILABLE", "CUT_OFF", "TOO_MANY", "COLD_STORAGE_FAILED")  # what may go well the next time


class Load(msgspec.Struct, frozen=True):
    """What one task does, for one place."""

    place: str
    pieces: list[Piece]


class Found(msgspec.Struct, frozen=True):
    """What became of a load."""

    number: int
    files: list[Written] = []
    spans: list[Span] = []
    kept: list[int] = []  # without `write`: the checksums of what cold storage has of the pieces
    error: str | None = None
    code: str = ""


class Reached(msgspec.Struct, frozen=True):
    """How an executor reaches the server and cold storage: by URL only."""

    url: str
    token: str | None
    cold: str
    options: dict[str, str] | None = None


def carry(spark: SparkSession, loads: list[Load], reached: Reached, *, write: bool = True) -> list[Found]:
    """Do the loads, each in a task; what became of them, in order. Without `write` they are read, on both sides."""
    answers = spark.range(0, len(loads), 1, len(loads)).mapInArrow(_task(loads, reached, write), _ANSWERS).collect()
    found = [msgspec.msgpack.decode(bytes(row.answer), type=Found) for row in answers]
    return sorted(found, key=lambda each: each.number)


def _task(
    loads: list[Load], reached: Reached, write: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                answer = msgspec.msgpack.encode(done(number, loads[number], reached, write))
                yield pa.record_batch([pa.array([answer], pa.binary())], names=["answer"])

    return run


def done(number: int, load: Load, reached: Reached, write: bool) -> Found:
    """Do one load, here."""
    spans: list[Span] = []
    store = Store(reached.cold, reached.options)
    try:
        with Client(reached.url, token=reached.token) as client:
            rows = (batch for piece in load.pieces for batch in read(client, piece, spans, write))
            if write:
                return Found(number, write_rows(store, load.place, rows), spans)
            for _ in rows:
                pass
        return Found(number, [], spans, [kept(store, load.place, piece) for piece in load.pieces])
    except Error as error:
        return Found(number, error=str(error), code=error.code)


def kept(store: Store, place: str, piece: Piece) -> int:
    """The checksum of what cold storage has of a piece; Corrupt, with the name of the file, where it has not all."""
    digest = Digest()
    columns = ["position", "next", "timestamp", "body"]
    found = reading.files(store, place, piece.log, piece.start, piece.end)
    for batch in reading.read(store, found, piece.log, piece.start, piece.end, columns):
        rows = batch.filter(batch.column("body").is_valid())  # of an entry with several records, the first
        at_ms = pc.divide(rows.column("timestamp").cast(pa.int64()), 1_000)
        parts = [rows.column("position"), rows.column("next"), at_ms, rows.column("body")]
        digest.add(pa.record_batch(parts, names=["position", "next", "at_ms", "body"]))
    return digest.value()


def raised(message: str, code: str) -> Error:
    """The error of a task, as it was raised there."""
    return _KINDS.get(code, Unavailable if code in _AWAY else Error)(message, code=code)


def read(client: Client, piece: Piece, spans: list[Span], convert: bool = True) -> Iterator[pa.RecordBatch]:
    """The rows of a piece as cold storage has them; when it is through, what was found is added to `spans`."""
    first = at = None
    rows = 0
    digest = Digest()
    for entries in _entries(client, piece):
        _check(entries, piece, at)
        if first is None:
            first = entries.column("position")[0].as_py()
        at = entries.column("next")[-1].as_py()
        digest.add(entries)
        if convert:
            batch = cold_batch(piece.kind, entries, **_facts(piece))
            rows += batch.num_rows
            yield batch
    begun, ended = (piece.start, piece.start) if first is None or at is None else (first, at)
    spans.append(Span(piece.log, piece.start, piece.end, begun, ended, rows, digest.value()))


def _entries(client: Client, piece: Piece) -> Iterator[pa.RecordBatch]:
    """The entries of a piece. A server that goes away in the middle is waited for, and asked for the rest."""
    at, wait_s = piece.start, WAIT_MIN_S
    until_s = time.monotonic() + PATIENCE_S
    while at < piece.end:
        try:
            with client.arrow(**_named(piece), offset=at, until=piece.end, form="entries") as found:
                for entries in found:
                    if entries.num_rows:
                        yield entries
                        at = entries.column("next")[-1].as_py()
                        until_s, wait_s = time.monotonic() + PATIENCE_S, WAIT_MIN_S
            return
        except (Unavailable, TooMany):
            if time.monotonic() + wait_s > until_s:
                raise
            time.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)


def _check(entries: pa.RecordBatch, piece: Piece, at: int | None) -> None:
    """Raise unless the entries are of that log, and tile its positions from `at` on (if that is known)."""
    begins, ends = entries.column("position"), entries.column("next")
    if pc.any(pc.not_equal(entries.column("log"), piece.log)).as_py():
        raise NotFound(f"{piece.kind} {piece.name!r} was dropped and made again; look again")
    if at not in (None, begins[0].as_py()) or not begins.slice(1).equals(ends.slice(0, len(ends) - 1)):
        raise Corrupt(f"the server left something out of {piece.kind} {piece.name!r} after position {at}")


def _named(piece: Piece) -> dict[str, Any]:
    named: dict[str, Any] = {piece.kind: piece.name}
    if piece.label is not None:
        named["label"] = piece.label
    return {**named, "partition": piece.partition} if piece.kind == "topic" else named


def _facts(piece: Piece) -> dict[str, Any]:
    """What the rows say that no entry does."""
    if piece.kind == "stream":
        return {"stream": piece.name, "content_type": piece.content_type}
    return {"partition": piece.partition} if piece.kind == "topic" else {}

"""Filling a table of a server, in commits of bounded size, by one writer at a time.

`restore` and the first copy of `replicate` put many items into a table that has no other writers. Each commit moves a
counter on the server, under the name of the filling, by a random step. A driver that was believed dead and continues,
or a second one, finds the counter at another value and stops: two fillings never mix. A commit whose response was lost
finds the counter exactly where it meant to move it, and was done.

Executors stage the rows (`RowStager`); the driver has the names of the stages, and commits them as they come.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from tailrace import limits
from tailrace.client import Client
from tailrace.errors import Conflict, Fenced, NotFound
from tailrace.spark.connection import client as connected
from tailrace.spark.connection import patiently
from tailrace.spark.jobs.copies import CopyRows
from tailrace.spark.options import ServerAccess

COMMIT_ROWS: Final = 5_000
COMMIT_BYTES: Final = 4 * limits.MiB  # of items as JSON, per commit
PUT: Final = "PUT"
_STEP_MAX: Final = 1 << 24  # large enough that two drivers do not choose the same step
DELETE: Final = "DELETE"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class Filling:
    """One writer to one table. The server stores the counter under `name` and `log`."""

    def __init__(self, client: Client, table: str, name: str, log: int) -> None:
        self._client = client
        self._table = table
        self._name = name
        self._log = log
        self._query = f"filling/{secrets.token_hex(8)}"
        self._batch = 0
        try:
            self._at = client.job(name)["positions"].get(log, 0)
        except NotFound:
            self._at = 0
        self.commit([])  # fences off earlier fillings of the table

    def commit(self, stages: list[str]) -> None:
        """Commit these stages."""
        to = self._at + 1 + secrets.randbelow(_STEP_MAX)
        try:
            done = self._client.commit_stages(
                self._query,
                self._batch,
                stages,
                table=self._table,
                consumer=self._name,
                ranges={self._log: (self._at, to)},
            )
        except Conflict as error:
            if error.code != Fenced.code:
                raise
            raise self._fenced() from error
        if not done["applied"] and done["positions"].get(self._log) != to:
            raise self._fenced()
        self._batch += 1
        self._at = to

    def _fenced(self) -> Fenced:
        return Fenced(f"another job has begun to fill table {self._table!r}; run only one, and restart it if needed")

    def write(self, answers: Iterable[bytes]) -> int:
        """Commit what executors have staged, as it comes (`RowStager`); the number of rows."""
        written = 0
        for stage, count in staged(answers):
            self.commit([stage])
            written += count
        return written

    def clear(self, rows: CopyRows, access: ServerAccess) -> int:
        """Delete these items of the table, which are all of them; their number."""
        if not rows.rows:
            return 0
        keys = key_names(self._client, self._table)
        return self.write(rows.each(RowStager(access, self._table, tuple((name, "") for name in keys), delete=True)))


class RowStager(msgspec.Struct, frozen=True):
    """Stages rows of a state on the server, in chunks that fit into one commit; yields the name and size of each stage.
    Runs in an executor."""

    access: ServerAccess
    table: str
    keys: tuple[tuple[str, str], ...]  # name and type of each
    delete: bool = False  # the items are deleted, not put

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        server = connected(self.access)
        rows = deletes(batches, tuple(name for name, _ in self.keys)) if self.delete else writes(batches, self.keys)
        for chunk in chunks(rows):
            # The request may be repeated: a first stage that did arrive expires.
            stage = patiently(lambda chunk=chunk: server.stage(chunk, table=self.table))  # type: ignore[misc]
            yield msgspec.msgpack.encode((stage, len(chunk)))


def staged(answers: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    """The name of each stage, and the number of its rows."""
    for answer in answers:
        yield msgspec.msgpack.decode(answer, type=tuple[str, int])


def chunks(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    """Rows in chunks that fit into one commit."""
    held: list[list[Any]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += _size(row[1])
        if len(held) >= COMMIT_ROWS or size >= COMMIT_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def writes(batches: Iterable[pa.RecordBatch], keys: tuple[tuple[str, str], ...]) -> Iterator[list[Any]]:
    """The rows of a state, as a stage takes them; keys of removed items are deleted."""
    for batch in batches:
        for key, typed in zip(batch.column("keys").to_pylist(), batch.column("typed").to_pylist(), strict=True):
            yield [DELETE, typed_key(key, keys)] if typed is None else [PUT, _decode(typed)]


def typed_key(text: str, keys: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """A key in plain JSON as DynamoDB writes it. The type of each attribute is the table's."""
    raw = _raw_key(text)
    return {name: {kind: raw[name].decode() if kind == "N" else _text(raw[name])} for name, kind in keys}


def key_names(client: Client, table: str) -> tuple[str, ...]:
    """The names of a table's key attributes."""
    schema = client.call("DescribeTable", {"TableName": table})["Table"]["KeySchema"]
    return tuple(each["AttributeName"] for each in schema)


def deletes(batches: Iterable[pa.RecordBatch], keys: tuple[str, ...]) -> Iterator[list[Any]]:
    """The rows of a state as keys to delete."""
    for batch in batches:
        for typed in batch.column("typed").to_pylist():
            item = _decode(typed)
            yield [DELETE, {name: item[name] for name in keys}]


def _size(item: dict[str, Any]) -> int:
    """About how large an item is."""
    return sum(len(name) + _weight(value) for name, value in item.items())


def _weight(value: Any) -> int:
    if isinstance(value, dict):
        return sum(len(name) + _weight(inner) for name, inner in value.items())
    if isinstance(value, list):
        return sum(map(_weight, value))
    return len(value) if isinstance(value, str | bytes) else 4


_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _raw_key(text: str) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in _raw.decode(text).items()}


def _text(raw: bytes) -> str:
    return msgspec.json.decode(raw, type=str)

"""Stages: rows that wait on the server to be committed in one transaction.

Theory of operation
-------------------
The tasks of a distributed write *stage* their rows, each under its own id; readers do not see them. One commit, by the
driver that knows the successful tasks, writes the rows of the listed stages to their target in one transaction, once
for each batch of a query. Uncommitted stages expire. A task that ran twice has two stages, and only one of them is
listed.

A commit to a table that is too large for one transaction is *accepted* in the first one, which stores the listed stages
as a `PendingCommit` of the table, and continued in others, slice by slice. The batch counts as written from then on:
it cannot fail any more, nor be replaced by another set of stages. The next commit to the table, whoever sends it,
continues the pending one first, and housekeeping does if nobody else does.

A chunk is checked when it is staged, and stored in the form in which it will be written.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, LimitExceeded, NotFound
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, MetaRow, StorageTable

TABLE: Final = "tables"
TOPIC: Final = "topics"
STREAM: Final = "streams"
KINDS: Final = {"table": TABLE, "topic": TOPIC, "stream": STREAM}


class Target(msgspec.Struct, frozen=True):
    """The kind and name of a target. `Stage.target` also has its number, which distinguishes it from an earlier one."""

    kind: str  # TABLE, TOPIC or STREAM
    name: str

    @property
    def subject(self) -> str:
        """The subject of grants."""
        return f"{self.kind}/{self.name}"


class Stage(msgspec.Struct, frozen=True):
    id: str
    target: str  # kind/number/name: the number of the target at that time
    rows: int
    bytes: int
    at_ms: int  # of its last chunk
    by: str  # the principal that created it

    @property
    def kind(self) -> str:
        return self.target.split("/", 2)[0]

    @property
    def number(self) -> int:
        return int(self.target.split("/", 2)[1])

    @property
    def subject(self) -> str:
        """The target as a subject of grants."""
        kind, _, name = self.target.split("/", 2)
        return f"{kind}/{name}"


class StageChunk(msgspec.Struct, frozen=True):
    stage: str
    number: int
    body: bytes


class SinkBatch(msgspec.Struct, frozen=True):
    """The last batch of a query that was written to a target. It does not apply to other targets, or to a later one of
    the same name: a query is only a name, which any principal may use where it may write."""

    id: str  # kind/number/query
    batch: int
    at_ms: int


STAGES = StorageTable("stages", Stage, key=("id",))
STAGE_CHUNKS = StorageTable("stage_chunks", StageChunk, key=("stage", "number"))
SINKS = StorageTable("sinks", SinkBatch, key=("id",))
_HELD: Final = "held/stages"  # the counters in META
PENDING: Final = "commit/"  # before the number of the table, of pending commits in META
PENDING_END: Final = "commit0"  # behind all of them


class StagedTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The number and bytes of uncommitted stages."""

    stages: int = 0
    bytes: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(StagedTotals)


def staged_totals(reader: Reader | Tx, by: str | None = None) -> StagedTotals:
    """The uncommitted stages of all, or of one principal. Counters are kept because reading all stages takes long."""
    row = reader.get(META, _counter(by))
    return StagedTotals() if row is None else _decoder.decode(row.value)


def count(tx: Tx, by: str, stages: int, size: int) -> None:
    """Add to the counters of a principal; negative numbers for stages that are removed."""
    for whose in (None, by):
        before = staged_totals(tx, whose)
        after = StagedTotals(before.stages + stages, before.bytes + size)
        if after == StagedTotals():
            tx.delete(META, _counter(whose))
        else:
            tx.put(META, MetaRow(_counter(whose), _encode(after)))


def check_room(tx: Tx, by: str, stages: int, size: int) -> None:
    """Raise if the limits of all or of the principal would be exceeded: one principal may use half of all."""
    for whose, share in ((None, 1), (by, 2)):
        now = staged_totals(tx, whose)
        if now.stages + stages > limits.STAGES_MAX // share or now.bytes + size > limits.STAGES_BYTES_MAX // share:
            whom = "" if whose is None else f" for {by!r}"
            raise LimitExceeded(
                f"{now.stages} stages of {now.bytes} bytes are uncommitted{whom}, "
                f"and the limit is {limits.STAGES_MAX // share} of {limits.STAGES_BYTES_MAX // share}; commit or drop "
                f"some, or wait until they expire {limits.STAGE_S // 3600} hours after they were staged"
            )


class PendingCommit(msgspec.Struct, frozen=True):
    """An accepted commit to a table, and the next row to be written: by its stage, its chunk, and its number there."""

    table: str
    sink: str
    batch: int
    stages: tuple[str, ...]
    rows: int
    by: str  # the principal that committed
    at_ms: int  # of the last slice
    stage: int = 0
    chunk: int = 0
    row: int = 0


_pending: Final = msgspec.json.Decoder(PendingCommit)


def pending_commit(reader: Reader | Tx, number: int) -> PendingCommit | None:
    """The pending commit to the table with this number."""
    row = reader.get(META, f"{PENDING}{number}")
    return None if row is None else _pending.decode(row.value)


def put_pending(tx: Tx, number: int, pending: PendingCommit | None) -> None:
    """Store the pending commit of a table; None: there is none any more."""
    if pending is None:
        tx.delete(META, f"{PENDING}{number}")
    else:
        tx.put(META, MetaRow(f"{PENDING}{number}", _encode(pending)))


def is_accepted(tx: Tx, row: Stage) -> bool:
    """Whether the stage is part of a pending commit."""
    pending = pending_commit(tx, row.number) if row.kind == TABLE else None
    return pending is not None and row.id in pending.stages


def _counter(by: str | None) -> str:
    return _HELD if by is None else f"{_HELD}/{by}"


def sink(kind: str, number: int, query: str) -> str:
    """The id under which the last batch of a query is stored."""
    return f"{kind}/{number}/{query}"


def find(reader: Reader | Tx, stage_id: str) -> Stage:
    """The stage of this id."""
    stage = reader.get(STAGES, stage_id)
    if stage is None:
        raise NotFound(
            f"there is no stage {stage_id[:80]!r}: it was committed, dropped, or has expired; stage its rows again",
            code="STAGE_NOT_FOUND",
        )
    return stage


def target(table: str | None = None, topic: str | None = None, stream: str | None = None) -> Target:
    """The target, named by exactly one of the three."""
    given = [(kind, name) for kind, name in ((TABLE, table), (TOPIC, topic), (STREAM, stream)) if name is not None]
    if len(given) != 1:
        raise Invalid("name exactly one of table, topic and stream", code="INVALID_TARGET")
    return Target(*given[0])

"""Rows that wait on the server to be written all at once.

Theory of operation
-------------------
The tasks of a distributed write *stage* their rows under an id of their own; nobody sees them. One commit, by whoever
knows which tasks counted, writes the rows of the listed stages to their target in one transaction, once for each batch
of a query. What is never committed expires. A task that ran twice has two stages, and only one of them is listed.

A chunk is checked when it is staged, and stored in the form in which it will be written.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, LimitExceeded, NotFound
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import META, Meta, Table

TABLE: Final = "tables"
TOPIC: Final = "topics"
STREAM: Final = "streams"
KINDS: Final = {"table": TABLE, "topic": TOPIC, "stream": STREAM}


class Target(msgspec.Struct, frozen=True):
    """What is written to, as it is called: not the table of that name in another life (`Stage.target` says which)."""

    kind: str  # TABLE, TOPIC or STREAM
    name: str

    @property
    def subject(self) -> str:
        """How it is called where access is given."""
        return f"{self.kind}/{self.name}"


class Stage(msgspec.Struct, frozen=True):
    id: str
    target: str  # kind/number/name: the number is of what had that name then
    rows: int
    bytes: int
    at_ms: int  # of its last chunk
    by: str  # who began it

    @property
    def kind(self) -> str:
        return self.target.split("/", 2)[0]

    @property
    def number(self) -> int:
        return int(self.target.split("/", 2)[1])

    @property
    def subject(self) -> str:
        """What it is for, as it is called where access is given."""
        kind, _, name = self.target.split("/", 2)
        return f"{kind}/{name}"


class StageChunk(msgspec.Struct, frozen=True):
    stage: str
    number: int
    body: bytes


class Sink(msgspec.Struct, frozen=True):
    """The last batch of a query that was written to a target. Another target, or one that took its name later, knows
    nothing of it: a query is no more than a name, which anybody may use where they may write."""

    id: str  # kind/number/query
    batch: int
    at_ms: int


STAGES = Table("stages", Stage, key=("id",))
STAGE_CHUNKS = Table("stage_chunks", StageChunk, key=("stage", "number"))
SINKS = Table("sinks", Sink, key=("id",))
_HELD: Final = "held/stages"  # the counters in META


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How much waits to be committed."""

    stages: int = 0
    bytes: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Held)


def held(reader: Reader | Tx, by: str | None = None) -> Held:
    """What waits of all, or of one principal. It is counted as it comes and goes: looking at all takes long."""
    row = reader.get(META, _counter(by))
    return Held() if row is None else _decoder.decode(row.value)


def count(tx: Tx, by: str, stages: int, size: int) -> None:
    """Note that so many stages and bytes of a principal came; below zero: that they went."""
    for whose in (None, by):
        before = held(tx, whose)
        after = Held(before.stages + stages, before.bytes + size)
        if after == Held():
            tx.delete(META, _counter(whose))
        else:
            tx.put(META, Meta(_counter(whose), _encode(after)))


def check_room(tx: Tx, by: str, stages: int, size: int) -> None:
    """Raise unless so much more may wait, of all and of a principal: one alone must not leave nothing to others."""
    for whose, share in ((None, 1), (by, 2)):
        now = held(tx, whose)
        if now.stages + stages > limits.STAGES_MAX // share or now.bytes + size > limits.STAGES_BYTES_MAX // share:
            whom = "" if whose is None else f" for {by!r}"
            raise LimitExceeded(
                f"{now.stages} stages of {now.bytes} bytes wait to be committed{whom}, "
                f"and there may be {limits.STAGES_MAX // share} of {limits.STAGES_BYTES_MAX // share}; commit or drop "
                f"some, or wait until they expire {limits.STAGE_S // 3600} hours after they were staged"
            )


def _counter(by: str | None) -> str:
    return _HELD if by is None else f"{_HELD}/{by}"


def sink(kind: str, number: int, query: str) -> str:
    """Under what the last batch of a query is noted."""
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
    """What is named by exactly one of the three."""
    given = [(kind, name) for kind, name in ((TABLE, table), (TOPIC, topic), (STREAM, stream)) if name is not None]
    if len(given) != 1:
        raise Invalid("name exactly one of table, topic and stream", code="INVALID_TARGET")
    return Target(*given[0])

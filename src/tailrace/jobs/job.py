"""A job: named work over logs, with a position in each of them.

The server is authoritative. A job's own checkpoint is a cursor that may be lost or replayed; its positions here move in
the transaction that applies the entries in between (`fence`), so that each entry is applied exactly once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, NotFound, TooLarge
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import StorageTable

REGISTERED: Final = "registered"  # it has not run yet
RUNNING: Final = "running"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
PAUSED: Final = "paused"  # the program that runs it holds it, as it was asked to
STATES: Final = (REGISTERED, RUNNING, STOPPED, FAILED, PAUSED)


class Job(msgspec.Struct, frozen=True):
    name: str
    kind: str  # tier, view, replicate, sink ...
    source: str  # for display: tables/orders
    target: str
    state: str
    message: str  # the last report, or why it failed
    definition: bytes  # MessagePack, defined by the kind of job
    rows: int  # processed so far
    created_ms: int
    updated_ms: int

    def settings(self) -> dict[str, Any]:
        """The definition, decoded."""
        found: dict[str, Any] = msgspec.msgpack.decode(self.definition, type=dict[str, Any])
        return found


class JobPause(msgspec.Struct, frozen=True):
    """That a job is paused: the program that runs it, now or later, does no work for it."""

    name: str
    at_ms: int
    by: str


class JobPosition(msgspec.Struct, frozen=True, gc=False):
    """The position up to which a job has applied a log."""

    job: str
    log: int
    position: int


JOBS = StorageTable("jobs", Job, key=("name",), cached=True)
PAUSED_JOBS = StorageTable("paused_jobs", JobPause, key=("name",), cached=True)
JOB_POSITIONS = StorageTable("job_positions", JobPosition, key=("job", "log"))


def find(reader: Reader | Tx, name: str) -> Job:
    """The job of this name."""
    job = reader.get(JOBS, name)
    if job is None:
        raise NotFound(
            f"there is no job {name[:80]!r}; SELECT name FROM system.pipelines lists them", code="JOB_NOT_FOUND"
        )
    return job


def positions(reader: Reader | Tx, job: str) -> dict[int, int]:
    """The positions of a job, by log."""
    return {row.log: row.position for row in reader.scan(JOB_POSITIONS, job)}


def remove(tx: Tx, name: str) -> None:
    """Remove a job with its positions."""
    for log in positions(tx, name):
        tx.delete(JOB_POSITIONS, name, log)
    if tx.get(PAUSED_JOBS, name) is not None:
        tx.delete(PAUSED_JOBS, name)
    tx.delete(JOBS, name)


def check_name(name: str, what: str = "a job") -> str:
    """The name, if it is valid for a job, a consumer or a query."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{name[:64]!r} cannot name {what}: it is not valid UTF-8", code="INVALID_NAME") from None
    if not 1 <= size <= limits.JOB_NAME_BYTES_MAX or not name.isprintable():
        raise Invalid(
            f"{name[:64]!r} cannot name {what}: use 1 to {limits.JOB_NAME_BYTES_MAX} bytes of printable text",
            code="INVALID_NAME",
        )
    return name


def check_text(text: str, what: str) -> str:
    """The text, if it can be stored and displayed."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} {text[:64]!r} is not valid UTF-8") from None
    if size > limits.JOB_TEXT_BYTES_MAX:
        raise TooLarge(f"{what} has {size} bytes; at most {limits.JOB_TEXT_BYTES_MAX} are kept")
    return text

"""What a job is: a named piece of work over logs, and how far it has come in each of them.

The server is the truth. A job's own checkpoint is a cursor that may be lost or replayed; its positions here move in the
transaction that applies what lies between (`fence`), so that nothing is applied twice and nothing is left out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid, NotFound, TooLarge
from tailrace.storage.engine import Reader, Tx
from tailrace.storage.table import Table

REGISTERED: Final = "registered"  # it has not run yet
RUNNING: Final = "running"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
STATES: Final = (REGISTERED, RUNNING, STOPPED, FAILED)


class Job(msgspec.Struct, frozen=True):
    name: str
    kind: str  # tier, view, replicate, sink ...
    source: str  # for people: tables/orders
    target: str
    state: str
    message: str  # what it said last, why it failed
    definition: bytes  # MessagePack, the job's own
    rows: int  # how many it has worked through
    created_ms: int
    updated_ms: int

    def settings(self) -> dict[str, Any]:
        """The definition, as it was given."""
        found: dict[str, Any] = msgspec.msgpack.decode(self.definition, type=dict[str, Any])
        return found


class JobPosition(msgspec.Struct, frozen=True, gc=False):
    """Up to where a job has applied a log."""

    job: str
    log: int
    position: int


JOBS = Table("jobs", Job, key=("name",), cached=True)
JOB_POSITIONS = Table("job_positions", JobPosition, key=("job", "log"))


def find(reader: Reader | Tx, name: str) -> Job:
    """The job of this name."""
    job = reader.get(JOBS, name)
    if job is None:
        raise NotFound(
            f"there is no job {name[:80]!r}; SELECT name FROM system.pipelines lists them", code="JOB_NOT_FOUND"
        )
    return job


def positions(reader: Reader | Tx, job: str) -> dict[int, int]:
    """How far a job is, by log."""
    return {row.log: row.position for row in reader.scan(JOB_POSITIONS, job)}


def check_name(name: str, what: str = "a job") -> str:
    """A name that a job, a consumer or a query may have."""
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
    """Text about a job that can be stored and shown."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} {text[:64]!r} is not valid UTF-8") from None
    if size > limits.JOB_TEXT_BYTES_MAX:
        raise TooLarge(f"{what} has {size} bytes; at most {limits.JOB_TEXT_BYTES_MAX} are kept")
    return text

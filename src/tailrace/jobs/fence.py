"""Nothing is applied twice, and nothing is left out: how a job's positions guard what it applies.

Theory of operation
-------------------
What a job applies comes from ranges [from, to) of logs. Its stored positions say up to where it was applied before.
Both are compared, and the positions moved, in the transaction that applies; so whatever was replayed, retried or raced,
each entry counts once:

- every range begins where its log's position is: *apply*, and move the positions to the ends;
- every range ends at or below its log's position: *already* applied, as a whole; nothing is done;
- anything else is a *conflict*: somebody else applied a part of it, or what lies between is missing. Whoever sent it
  has to begin again from the stored positions, which the error tells.

A log that has no position yet is taken to be where its range begins. Not `strict`, a range may begin later than the
position: what lies between is known to be lost, and is not waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace import limits
from tailrace.errors import Fenced, Invalid, LimitExceeded
from tailrace.jobs.job import JOB_POSITIONS, JOBS, RUNNING, Job, JobPosition, check_name
from tailrace.storage.engine import Tx

APPLY: Final = "apply"
ALREADY: Final = "already"
CONFLICT: Final = "conflict"
CONSUMER: Final = "consumer"  # the kind of a job that is known by its positions alone

Ranges = Mapping[int, tuple[int, int]]


def judge(stored: Mapping[int, int], ranges: Ranges, *, strict: bool = True) -> str:
    """What to do with these ranges, for a job whose positions are `stored`."""
    begins = ends = True
    fresh = False  # whether a position would move
    for log, (start, end) in ranges.items():
        at = stored.get(log)
        fresh = fresh or at is None or end > at
        if start == end and at in (None, start):
            continue  # nothing is in it: it fits with either
        begins = begins and (at is None or start == at or (not strict and start > at))
        ends = ends and at is not None and end <= at
    if begins and fresh:
        return APPLY
    return ALREADY if ends else CONFLICT


def check(tx: Tx, job: str, ranges: Ranges, strict: bool = True) -> bool:
    """Move the job's positions to the ends of `ranges`; False if it was applied before, and nothing is to be done.
    `Fenced`, with the stored positions as facts, if only a part of it was, or something is missing."""
    check_ranges(ranges)
    stored = {}
    for log in ranges:
        row = tx.get(JOB_POSITIONS, job, log)
        if row is not None:
            stored[log] = row.position
    verdict = judge(stored, ranges, strict=strict)
    if verdict == CONFLICT:
        raise fenced(job, stored, ranges)
    if verdict == ALREADY:
        return False
    known(tx, job)
    if len(stored) < len(ranges):
        there = len(tx.values(JOB_POSITIONS, "log", job, limit=limits.JOB_LOGS_MAX))
        check_logs(there + len(ranges) - len(stored))
    for log, (_, end) in ranges.items():
        tx.put(JOB_POSITIONS, JobPosition(job, log, end))
    return True


def known(tx: Tx, name: str) -> Job:
    """The job; one that is known by its positions alone is made at its first use."""
    job = tx.get(JOBS, name)
    if job is None:
        check_name(name, "a consumer")
        check_room(tx)
        job = Job(name, CONSUMER, "", "", RUNNING, "", b"\x80", 0, tx.now_ms, tx.now_ms)
        tx.put(JOBS, job)
    return job


def check_room(tx: Tx) -> None:
    """Raise unless there may be one more job."""
    if len(tx.values(JOBS, "name", limit=limits.JOBS_MAX)) >= limits.JOBS_MAX:
        raise LimitExceeded(f"there are {limits.JOBS_MAX} jobs, the most there may be; drop some first")


def check_logs(count: int) -> None:
    """Raise unless a job may have positions in so many logs."""
    if count > limits.JOB_LOGS_MAX:
        raise LimitExceeded(f"a job has positions in at most {limits.JOB_LOGS_MAX} logs, and this would be {count}")


def check_ranges(ranges: Ranges) -> None:
    """Raise unless these can be ranges of logs."""
    if len(ranges) > limits.JOB_LOGS_MAX:
        raise Invalid(f"{len(ranges)} ranges are more than the {limits.JOB_LOGS_MAX} of one request; send fewer")
    for log, (start, end) in ranges.items():
        if not 0 < log <= limits.POSITION_MAX or not 0 <= start <= end <= limits.POSITION_MAX:
            raise Invalid(f"[{start}, {end}) is no range of a log {log}: give [from, to) with 0 <= from <= to")


def fenced(job: str, stored: Mapping[int, int], ranges: Ranges) -> Fenced:
    """What is answered where positions and ranges do not meet."""
    log, (start, end) = next((log, each) for log, each in ranges.items() if stored.get(log, each[0]) != each[0])
    return Fenced(
        f"{job!r} is at {stored[log]} of log {log}, and [{start}, {end}) neither begins there nor was applied before; "
        "begin again from the stored positions",
        facts={"positions": {str(log): position for log, position in stored.items()}},
    )

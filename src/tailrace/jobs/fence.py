"""The fence: a job's positions ensure that everything is applied exactly once.

Theory of operation
-------------------
A job applies ranges [from, to) of logs. Its stored positions say up to where it has applied each log. Ranges and
positions are compared, and the positions moved, in the transaction that applies; so after any replay, retry or race,
each entry counts once:

- every range begins at its log's position: *apply*, and move the positions to the ends;
- every range ends at or below its log's position: *already* applied as a whole; nothing is done;
- anything else is a *conflict*: another job applied a part of it, or a range in between is missing. The sender has to
  start over from the stored positions, which the error has as facts.

A log that has no position yet starts where its range begins. Without `strict`, a range may begin after the position:
the entries in between are known to be lost, and are skipped.
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
CONSUMER: Final = "consumer"  # the kind of a job that has only positions

Ranges = Mapping[int, tuple[int, int]]


def judge(stored: Mapping[int, int], ranges: Ranges, *, strict: bool = True) -> str:
    """The verdict on these ranges, for a job whose positions are `stored`."""
    begins = ends = True
    fresh = False  # whether a position would move
    for log, (start, end) in ranges.items():
        at = stored.get(log)
        fresh = fresh or at is None or end > at
        if start == end and at in (None, start):
            continue  # an empty range fits with either verdict
        begins = begins and (at is None or start == at or (not strict and start > at))
        ends = ends and at is not None and end <= at
    if begins and fresh:
        return APPLY
    return ALREADY if ends else CONFLICT


def check(tx: Tx, job: str, ranges: Ranges, strict: bool = True) -> bool:
    """Move the job's positions to the ends of `ranges`; False if they were applied before. `Fenced`, with the stored
    positions as facts, if only a part was applied, or a range is missing."""
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
    """The job; a consumer, which has only positions, is created at its first use."""
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
        raise LimitExceeded(f"there are {limits.JOBS_MAX} jobs, the maximum; drop some first")


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
            raise Invalid(f"[{start}, {end}) is not a range of log {log}; give [from, to) with 0 <= from <= to")


def fenced(job: str, stored: Mapping[int, int], ranges: Ranges) -> Fenced:
    """The error for ranges that do not match the positions."""
    log, (start, end) = next((log, each) for log, each in ranges.items() if stored.get(log, each[0]) != each[0])
    return Fenced(
        f"{job!r} is at {stored[log]} of log {log}, and [{start}, {end}) neither begins there nor was applied before; "
        "start over from the stored positions",
        facts={"positions": {str(log): position for log, position in stored.items()}},
    )

"""The consistency check: every invariant, over a whole database.

It reads one consistent view, so it can run while a server writes. Tests run it after every crash; an operator runs it
with ``tailrace check``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tailrace import extras, limits
from tailrace.auth.check import check_secrets
from tailrace.errors import Corrupt, Invalid
from tailrace.jobs.check import check_jobs
from tailrace.jobs.identity import NAME as IDENTITY
from tailrace.log import segments
from tailrace.log.cold import COLD_RANGES, COLD_TABLES
from tailrace.log.entry import GARBAGE, LOGS, Entry, Log
from tailrace.log.segments import SEGMENTS
from tailrace.storage.engine import Reader
from tailrace.storage.sqlite import SqliteEngine
from tailrace.storage.table import META
from tailrace.storage.vault import LockedVault
from tailrace.streams import json_mode
from tailrace.streams.producer import PRODUCERS
from tailrace.streams.stream import DEADLINES, OWNER, RETAINED, STREAMS, StreamRow, is_json
from tailrace.subscriptions.subscription import COUNT as SUBSCRIPTION_COUNT
from tailrace.subscriptions.subscription import LINKS, SUBSCRIPTIONS
from tailrace.tables.check import check_tables
from tailrace.topics.check import check_topics

Progress = Callable[[str, int, int], None]


class Report(msgspec.Struct):
    """The findings, and how much was checked."""

    findings: list[str]
    streams: int = 0
    logs: int = 0
    entries: int = 0
    bytes: int = 0
    tables: int = 0
    items: int = 0
    records: int = 0  # in change streams
    topics: int = 0
    messages: int = 0  # in topics


def check_database(
    path: str | os.PathLike[str],
    *,
    on_progress: Progress | None = None,
    accept_loss: bool = False,
    cold: str | os.PathLike[str] | None = None,
    cold_options: Mapping[str, str] | None = None,
    deep: bool = False,
    without_key: bool = False,
    database: str | None = None,
) -> Report:
    """Check the database in a directory, whether or not a server has it open, and its cold storage (by default the
    directory `cold` in it). `database`: the URL of one in PostgreSQL, whose key may be in the directory. `deep`: read
    all files of cold storage. `without_key`: skip the secrets if their encryption key is missing, which is an error
    otherwise. Raises `Corrupt` WAL_DAMAGED like `tailrace.open`."""
    advance = on_progress or (lambda what, done, total: None)
    engine = _opened(path, database, accept_loss)
    try:
        if isinstance(engine.vault, LockedVault) and not without_key:
            raise engine.vault.error
        report = Report(engine.integrity())
        damaged: dict[str, None] = {}
        try:
            with engine.reader(damaged=damaged) as reader:
                check_rows(reader, report, advance)
                cold_tables, cold_ranges = list(reader.scan(COLD_TABLES)), list(reader.scan(COLD_RANGES))
                known = reader.get(META, IDENTITY)
            if cold_ranges:  # outside the read transaction: this may take hours
                from tailrace.cold import check as cold_check  # slow to import
                from tailrace.cold.store import Store

                store = Store(os.path.join(path, "cold") if cold is None else cold, cold_options)
                identity = None if known is None else known.value.decode()
                found = cold_check.check_cold(cold_tables, cold_ranges, store, identity, deep=deep, on_progress=advance)
                report.findings += found
        except Corrupt as error:
            if not report.findings and not damaged:
                raise
            report.findings.append(f"the check of rows ended early: {' '.join(str(error).split())}")
        report.findings += damaged
        return report
    finally:
        engine.close()


def _opened(path: str | os.PathLike[str], database: str | None, accept_loss: bool) -> Any:
    if database is None:
        return SqliteEngine(path, read_only=True, accept_loss=accept_loss)
    extras.require("postgres")
    from tailrace.storage.postgres import PostgresEngine  # an optional package

    return PostgresEngine(database, path, read_only=True)


def check_rows(reader: Reader, report: Report, on_progress: Progress) -> None:
    """Check all rows of one view."""
    logs = {log.id: log for log in reader.scan(LOGS)}
    streams = {stream.path: stream for stream in reader.scan(STREAMS)}
    report.logs, report.streams = len(logs), len(streams)
    report.findings += _check_counters(reader, logs)
    report.findings += _check_families(logs)
    report.findings += _check_streams(streams, logs)
    report.findings += _check_lists(reader, streams, logs)
    of_log = {stream.log: stream for stream in streams.values()}
    for done, log in enumerate(logs.values(), start=1):
        report.findings += _check_entries(reader, log, of_log.get(log.id), report)
        on_progress("checking logs", done, len(logs))
    strays = {producer.log for producer in reader.scan(PRODUCERS)} - logs.keys()
    report.findings += _check_subscriptions(reader)
    report.findings += [f"producers of log {number}, which does not exist" for number in sorted(strays)]
    checked = check_tables(reader, on_progress)
    report.findings += checked.findings
    report.tables, report.items, report.records = checked.tables, checked.items, checked.records
    topics = check_topics(reader)
    report.findings += topics.findings
    report.topics, report.messages = topics.topics, topics.messages
    report.findings += check_jobs(reader)
    report.findings += check_secrets(reader)


def _check_counters(reader: Reader, logs: dict[int, Log]) -> Iterator[str]:
    row = reader.get(META, "counter/log")
    last = int(row.value) if row else 0
    if logs and max(logs) > last:
        yield f"log {max(logs)} exists but the counter is at {last}: its number could be assigned again"


def _check_families(logs: dict[int, Log]) -> Iterator[str]:
    """Forks point at logs that exist, and are counted there."""
    forks = dict.fromkeys(logs, 0)
    for log in logs.values():
        if not 0 <= log.start <= log.next <= limits.POSITION_MAX or log.base > log.next:
            yield f"log {log.id}: start {log.start}, base {log.base}, next {log.next} are out of order"
        if log.parent is None:
            if log.base or log.depth:
                yield f"log {log.id}: has base {log.base}, depth {log.depth} and no parent"
            continue
        parent = logs.get(log.parent)
        if parent is None:
            if not (log.dropped and not log.forks):
                yield f"log {log.id}: its parent {log.parent} does not exist"
            continue
        if log.base > parent.next:
            yield f"log {log.id}: base {log.base} is beyond the tail {parent.next} of its parent {parent.id}"
        if log.depth != parent.depth + 1:
            yield f"log {log.id}: depth {log.depth} under a parent of depth {parent.depth}"
        if not (log.dropped and not log.forks):  # such a log no longer refers to its parent
            forks[parent.id] += 1
    for number, count in forks.items():
        if logs[number].forks != count:
            yield f"log {number}: counts {logs[number].forks} forks, there are {count}"


def _check_streams(streams: dict[str, StreamRow], logs: dict[int, Log]) -> Iterator[str]:
    owners: dict[int, str] = {}
    for stream in streams.values():
        log = logs.get(stream.log)
        if log is None:
            yield f"stream {stream.path!r}: its log {stream.log} does not exist"
            continue
        if stream.log in owners:
            yield f"streams {owners[stream.log]!r} and {stream.path!r} share log {stream.log}"
        owners[stream.log] = stream.path
        if log.owner != OWNER + stream.path:
            yield f"stream {stream.path!r}: its log {log.id} belongs to {log.owner!r}"
        if bool(log.dropped) != bool(stream.deleted):
            yield f"stream {stream.path!r}: deleted is {stream.deleted}, its log's dropped is {log.dropped}"
        if stream.deleted and not log.forks:
            yield f"stream {stream.path!r}: deleted softly, but no fork needs it"
    for log in logs.values():
        if log.owner.startswith(OWNER) and not log.dropped and log.id not in owners:
            yield f"log {log.id} of {log.owner!r} has no stream"


def _check_lists(reader: Reader, streams: dict[str, StreamRow], logs: dict[int, Log]) -> Iterator[str]:
    """The lists of work are complete."""
    due = {row.path for row in reader.scan(DEADLINES)}
    retained = {row.path for row in reader.scan(RETAINED)}
    garbage = {row.log for row in reader.scan(GARBAGE)}
    for stream in streams.values():
        if stream.deleted:
            continue
        if stream.expires_ms is not None and stream.path not in due:
            yield f"stream {stream.path!r} expires but has no deadline: it would never be deleted"
        if (stream.max_age_s is not None or stream.max_bytes is not None) and stream.path not in retained:
            yield f"stream {stream.path!r} has retention but is not listed: it would never be trimmed"
    for log in logs.values():
        if log.dropped and not log.forks and log.id not in garbage:
            yield f"log {log.id} is dropped but not listed as garbage: it would never be removed"


def _check_subscriptions(reader: Reader) -> Iterator[str]:
    links: dict[str, int] = {}
    for link in reader.scan(LINKS):
        links[link.subscription] = links.get(link.subscription, 0) + 1
    subscriptions = {row.id: row for row in reader.scan(SUBSCRIPTIONS)}
    for name in links.keys() - subscriptions.keys():
        yield f"links of subscription {name!r}, which does not exist"
    for row in subscriptions.values():
        if row.links != links.get(row.id, 0):
            yield f"subscription {row.id!r}: counts {row.links} links, there are {links.get(row.id, 0)}"
        if (row.wake_id is None) != (row.snapshot is None):
            yield f"subscription {row.id!r}: has a wake without a snapshot, or the other way round"
    counted = reader.get(META, SUBSCRIPTION_COUNT)
    if int(counted.value if counted else 0) != len(subscriptions):
        yield f"{len(subscriptions)} subscriptions, the counter says {counted.value.decode() if counted else 0}"


def _stored(reader: Reader, log: Log, flaws: list[str]) -> Iterator[Entry]:
    """A log's own entries, but those of a segment with a flaw."""
    for segment in reader.scan(SEGMENTS, log.id):
        flaw = segments.flaw(segment)
        if flaw is None:
            yield from segments.entries(segment)
        else:
            flaws.append(f"log {log.id}: segment at {segment.position}: {flaw}")


def _check_entries(reader: Reader, log: Log, stream: StreamRow | None, report: Report) -> Iterator[str]:
    """A log's own entries cover [max(base, start), next) without gap or overlap, in order of time."""
    expected: int | None = None
    at_ms = 0
    json = stream is not None and is_json(stream.content_type)
    flaws: list[str] = []
    for entry in _stored(reader, log, flaws):
        report.entries += 1
        report.bytes += len(entry.body)
        if expected is None:
            if not log.dropped and entry.position > max(log.base, log.start):
                yield f"log {log.id}: first entry at {entry.position}, retained from {max(log.base, log.start)}"
        elif entry.position != expected:
            yield f"log {log.id}: entry at {entry.position}, expected one at {expected}"
        if entry.next <= entry.position or entry.position < log.base:
            yield f"log {log.id}: entry covers [{entry.position}, {entry.next}) over base {log.base}"
        if entry.at_ms < at_ms:
            yield f"log {log.id}: entry at {entry.position} is older than the one before it"
        if stream is not None and len(entry.body) != entry.next - entry.position:
            yield f"log {log.id}: entry at {entry.position} covers {entry.next - entry.position} positions"
        if json:
            try:
                json_mode.check(entry.body)
            except Invalid as error:
                yield f"log {log.id}: entry at {entry.position} is not JSON: {error}"
        if entry.position < log.start < entry.next and not log.dropped:
            yield f"log {log.id}: starts at {log.start}, inside the entry at {entry.position}"
        expected, at_ms = entry.next, entry.at_ms
    yield from flaws
    if log.dropped and not log.forks:
        return
    if expected is None:
        if log.next > max(log.base, log.start):
            yield f"log {log.id}: no entries, but next is {log.next} and it is retained from {log.start}"
    elif expected != log.next:
        yield f"log {log.id}: entries end at {expected}, next is {log.next}"
    if at_ms > log.at_ms:
        yield f"log {log.id}: its last entry is newer than it says"

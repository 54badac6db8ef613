"""Commands for jobs and stages: jobs report their progress, rows are staged, and committed in one transaction.

Staging, committing, pinning and reporting need write access to the target, or a grant for it. Registering and dropping
jobs needs ADMIN, because programs that run jobs trust their definitions.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from tailrace import failpoints, limits
from tailrace.access import Permission
from tailrace.command import Command
from tailrace.errors import Conflict, Invalid, NotFound, TooLarge
from tailrace.jobs import fence, rows, stage, view
from tailrace.jobs.fence import CONSUMER, Ranges
from tailrace.jobs.job import (
    JOB_POSITIONS,
    JOBS,
    PAUSED_JOBS,
    REGISTERED,
    STATES,
    Job,
    JobPause,
    JobPosition,
    check_name,
    check_text,
    find,
    positions,
)
from tailrace.jobs.job import remove as remove_job
from tailrace.jobs.stage import (
    SINKS,
    STAGE_CHUNKS,
    STAGES,
    TABLE,
    PendingCommit,
    SinkBatch,
    Stage,
    StageChunk,
    Target,
)
from tailrace.jobs.target import ResolvedTarget, resolve, write
from tailrace.storage.engine import Reader, Tx
from tailrace.tables.definition import Definition
from tailrace.tables.write import EncodedWrite, do_each

OWN_PACE = ("view", "tier")  # kinds of jobs whose positions move only with the data they apply


class Registered(msgspec.Struct, frozen=True):
    """A job, its positions, and whether it is paused."""

    job: Job
    positions: dict[int, int]
    pause: JobPause | None = None


def registered(reader: Reader | Tx, job: Job) -> Registered:
    """The job with what belongs to it."""
    return Registered(job, positions(reader, job.name), reader.get(PAUSED_JOBS, job.name))


class RegisterJob(Command[Registered], frozen=True):
    """Register a job. If another job has that name, it has to be dropped first: its definition is not changed."""

    permission = Permission.ADMIN
    subject = ("jobs", "name")

    name: str
    kind: str
    source: str = ""
    target: str = ""
    definition: bytes = b"\x80"  # MessagePack of a map

    def size(self) -> int:
        return len(self.definition)

    def run(self, tx: Tx) -> Registered:
        check_name(self.name)
        check_name(self.kind, "a kind of job")
        check_text(self.source, "the source")
        check_text(self.target, "the target")
        if len(self.definition) > limits.JOB_DEFINITION_BYTES_MAX:
            raise TooLarge(
                f"the definition has {len(self.definition)} bytes; at most {limits.JOB_DEFINITION_BYTES_MAX} are kept"
            )
        before = tx.get(JOBS, self.name)
        if before is None:
            fence.check_room(tx)
        elif before.kind != CONSUMER:
            same = (before.kind, before.source, before.target, before.definition)
            if same == (self.kind, self.source, self.target, self.definition):
                return registered(tx, before)
            what = f"is a {before.kind}" if before.kind != self.kind else "has another source, target or definition"
            raise Conflict(
                f"there is a job {self.name!r} already, and it {what}; drop it first, or use another name",
                code="JOB_EXISTS",
            )
        created_ms = tx.now_ms if before is None else before.created_ms
        job = Job(
            self.name, self.kind, self.source, self.target, REGISTERED, "", self.definition, 0, created_ms, tx.now_ms
        )
        tx.put(JOBS, job)
        return registered(tx, job)


class ReportJob(Command[Registered], frozen=True):
    """Report the state of a job. Fields that are None stay unchanged."""

    permission = Permission.JOBS
    subject = ("jobs", "name")

    name: str
    state: str
    rows: int | None = None
    message: str | None = None

    def run(self, tx: Tx) -> Registered:
        job = find(tx, self.name)
        if self.state not in STATES:
            raise Invalid(f"state {self.state[:40]!r} is unknown; use {', '.join(STATES)}", code="INVALID_STATE")
        rows = job.rows if self.rows is None else self.rows
        if not 0 <= rows <= limits.POSITION_MAX:
            raise Invalid(f"rows {rows} is not from 0 to {limits.POSITION_MAX}")
        message = job.message if self.message is None else check_text(self.message, "the message")
        job = msgspec.structs.replace(job, state=self.state, rows=rows, message=message, updated_ms=tx.now_ms)
        tx.put(JOBS, job)
        return registered(tx, job)


class DropJob(Command[None], frozen=True):
    """Drop a job and its positions: if it runs again, it starts over."""

    freeing = True
    permission = Permission.ADMIN
    subject = ("jobs", "name")

    name: str

    def run(self, tx: Tx) -> None:
        check_no_view(find(tx, self.name), "is dropped with its tables")
        remove_job(tx, self.name)


class PauseJob(Command[Registered], frozen=True):
    """Pause a job, until `ResumeJob`: the program that runs it finishes its batch, and then does no work for it.
    Without effect on a job that is paused. A consumer cannot be paused: it is a program of which the server knows
    nothing else."""

    permission = Permission.JOBS
    subject = ("jobs", "name")

    name: str

    def run(self, tx: Tx) -> Registered:
        job = find(tx, self.name)
        if job.kind == CONSUMER:
            raise Conflict(
                f"{self.name!r} is a consumer, which is run by a program of yours: pause that instead",
                code="NOT_PAUSABLE",
            )
        pause = tx.get(PAUSED_JOBS, self.name)
        if pause is None:
            pause = JobPause(self.name, tx.now_ms, tx.by)
            tx.put(PAUSED_JOBS, pause)
        return Registered(job, positions(tx, self.name), pause)


class ResumeJob(Command[Registered], frozen=True):
    """Let a paused job work again, from where it was. Without effect on a job that is not paused."""

    freeing = True
    permission = Permission.JOBS
    subject = ("jobs", "name")

    name: str

    def run(self, tx: Tx) -> Registered:
        job = find(tx, self.name)
        if tx.get(PAUSED_JOBS, self.name) is not None:
            tx.delete(PAUSED_JOBS, self.name)
        return Registered(job, positions(tx, self.name))


class PinPositions(Command[dict[int, int]], frozen=True):
    """Set the start positions of a job, in logs where it has none yet; its positions in all logs. So a repeated request
    gets the same positions."""

    permission = Permission.JOBS
    subject = ("jobs", "name")

    name: str
    at: dict[int, int]

    def heavy(self) -> bool:
        return True  # the job may have positions in very many logs, and all are returned

    def run(self, tx: Tx) -> dict[int, int]:
        fence.check_ranges({log: (position, position) for log, position in self.at.items()})
        check_no_view(fence.known(tx, self.name), "starts where it was created or filled")
        stored = positions(tx, self.name)
        new = {log: position for log, position in self.at.items() if log not in stored}
        fence.check_logs(len(stored) + len(new))
        for log, position in new.items():
            tx.put(JOB_POSITIONS, JobPosition(self.name, log, position))
        return {**stored, **new}


def check_no_view(job: Job, why: str) -> None:
    """Raise if the job is that of a materialized view, whose positions and tables belong together."""
    if view.definition_of(job) is not None:
        raise Conflict(
            f"{job.name!r} is a materialized view, which {why}; use DROP MATERIALIZED VIEW {job.name}, or fill it "
            f"again (tailrace pipeline view {job.name} --refill)",
            code="IS_VIEW",
        )


# -- stages


class StageResult(msgspec.Struct, frozen=True):
    stage: Stage
    fresh: bool  # False: this chunk was staged before


class StageRows(Command[StageResult], frozen=True):
    """Store rows that were checked for a target (`number`: the id of the target at that time), as a new stage or the
    next chunk of one. A chunk with a number is added once, however often it is sent."""

    target: Target
    number: int
    rows: int
    body: bytes
    stage: str | None = None  # None: a new one
    chunk: int | None = None

    def subjects(self) -> tuple[str, ...]:
        return (self.target.subject,)

    def size(self) -> int:
        return len(self.body)

    def run(self, tx: Tx) -> StageResult:
        here = resolve(tx, self.target)
        if here.number != self.number:
            raise _changed(self.target)
        if self.stage is None:
            before = Stage(secrets.token_hex(16), here.stored, 0, 0, tx.now_ms, tx.by)
            chunk = 0
        else:
            before = stage.find(tx, self.stage)
            check_target(before, here)
            chunk = chunks(tx, before.id)
            if self.chunk is not None and self.chunk < chunk:
                return StageResult(before, fresh=False)
            if self.chunk is not None and self.chunk > chunk:
                raise Conflict(
                    f"chunk {self.chunk} leaves a gap, stage {before.id} has {chunk}; send the missing chunks first",
                    code="CHUNK_GAP",
                )
            if stage.is_accepted(tx, before):
                raise _accepted(before)
        rows, size = before.rows + self.rows, before.bytes + len(self.body)
        if size > limits.STAGE_BYTES_MAX or rows > limits.COMMIT_ROWS_MAX or chunk >= limits.STAGE_CHUNKS_MAX:
            raise TooLarge(
                f"stage {before.id} would have {rows} rows of {size} bytes in {chunk + 1} chunks; a stage takes "
                f"{limits.COMMIT_ROWS_MAX} rows, {limits.STAGE_BYTES_MAX} bytes and {limits.STAGE_CHUNKS_MAX} chunks: "
                "stage the rest under another id",
                code="STAGE_FULL",
            )
        stage.check_room(tx, before.by, chunk == 0, len(self.body))
        stage.count(tx, before.by, chunk == 0, len(self.body))
        after = Stage(before.id, before.target, rows, size, tx.now_ms, before.by)
        tx.put(STAGES, after)
        tx.put(STAGE_CHUNKS, StageChunk(before.id, chunk, self.body))
        return StageResult(after, fresh=True)


class DropStage(Command[None], frozen=True):
    """Drop staged rows. `target` is the target of the stage, as the caller looked it up."""

    freeing = True

    id: str
    target: Target | None

    def subjects(self) -> tuple[str, ...]:
        return () if self.target is None else (self.target.subject,)

    def heavy(self) -> bool:
        return True

    def run(self, tx: Tx) -> None:
        row = stage.find(tx, self.id)
        assert self.target is None or row.subject == self.target.subject, f"stage {self.id} changed its target"
        if stage.is_accepted(tx, row):
            raise _accepted(row)
        remove(tx, [row])


class Committed(msgspec.Struct, frozen=True):
    """The result of a commit. `applied` is False if it was applied before."""

    applied: bool
    rows: int
    positions: dict[int, int]  # of the consumer
    more: bool = False  # rows of a large commit are still to be written: run the command again


class CommitStages(Command[Committed], frozen=True):
    """Write the rows of these stages to their target: all of them or none, once for each batch of a query; with a
    `consumer` only if its positions match (`fence`), independent of the batch number. If they are too many for one
    transaction, the command writes some of them each time it is run, until there are no `more`.

    Without a consumer, a batch is identified by its number. If it is sent again with other stages, because other tasks
    computed it again, the first commit stays and the other stages are dropped."""

    query: str
    batch: int
    target: Target
    stages: tuple[str, ...]
    consumer: str | None = None
    ranges: Ranges | None = None
    strict: bool = True

    @property
    def permission(self) -> str:  # type: ignore[override]
        """Moving the positions of a job needs the permission for jobs."""
        return Permission.WRITE if self.consumer is None else Permission.JOBS

    def subjects(self) -> tuple[str, ...]:
        of_consumer = () if self.consumer is None else (f"jobs/{self.consumer}",)
        return (self.target.subject, *of_consumer)

    def heavy(self) -> bool:
        return True

    def run(self, tx: Tx) -> Committed:
        self._check(tx)
        here = resolve(tx, self.target)
        sink = stage.sink(here.target.kind, here.number, self.query)
        pending = stage.pending_commit(tx, here.number) if here.target.kind == TABLE else None
        if pending is not None:
            return self._continue(tx, here, pending, sink)
        last = tx.get(SINKS, sink)
        if self.consumer is None:
            fresh = last is None or self.batch > last.batch
        else:  # the number is not used: a restored checkpoint repeats numbers
            assert self.ranges is not None
            fresh = fence.check(tx, self.consumer, self.ranges, self.strict)
        if last is None or self.batch > last.batch:
            tx.put(SINKS, SinkBatch(sink, self.batch, tx.now_ms))
        failpoints.hit("stages.fenced")
        rows = 0
        if fresh:
            staged = [stage.find(tx, each) for each in self.stages]
            rows, size = self._total(staged, here)
            if here.target.kind == TABLE and (rows > limits.COMMIT_ITEMS_MAX or size > limits.COMMIT_BYTES_MAX):
                accepted = PendingCommit(here.target.name, sink, self.batch, self.stages, rows, tx.by, tx.now_ms)
                return self._continue(tx, here, accepted, sink)
            write(tx, here, (body for each in staged for body in bodies(tx, each.id)))
            failpoints.hit("stages.written")
        there = [row for each in self.stages if (row := tx.get(STAGES, each)) is not None]
        remove(tx, [row for row in there if row.target == here.stored])
        return Committed(fresh, rows, {} if self.consumer is None else positions(tx, self.consumer))

    def _continue(self, tx: Tx, here: ResolvedTarget, pending: PendingCommit, sink: str) -> Committed:
        """Write the next rows of a commit that was accepted, this one or another."""
        finished = write_slice(tx, here, pending)
        mine = (pending.sink, pending.batch, pending.stages) == (sink, self.batch, self.stages)
        stored = {} if self.consumer is None else positions(tx, self.consumer)
        return Committed(mine, pending.rows if mine else 0, stored, more=not (finished and mine))

    def _check(self, tx: Tx) -> None:
        check_name(self.query, "a query")
        if not 0 <= self.batch <= limits.POSITION_MAX:
            raise Invalid(f"batch {self.batch} is not from 0 to {limits.POSITION_MAX}")
        if len(self.stages) > limits.STAGES_MAX or len(set(self.stages)) != len(self.stages):
            raise Invalid(f"stages names one twice, or more than {limits.STAGES_MAX}; name each once")
        if (self.consumer is None) != (self.ranges is None):
            raise Invalid("consumer and ranges go together: give both or neither")
        if self.consumer is not None:
            check_name(self.consumer, "a consumer")
            job = tx.get(JOBS, self.consumer)
            if job is not None and job.kind in OWN_PACE:
                raise Conflict(
                    f"{self.consumer!r} is a {job.kind}, whose positions move with its data; use another name",
                    code="JOB_EXISTS",
                )

    def _total(self, staged: list[Stage], here: ResolvedTarget) -> tuple[int, int]:
        """The number and bytes of the rows, if they are for this target and fit into one commit."""
        for each in staged:
            check_target(each, here)
        rows, size = sum(each.rows for each in staged), sum(each.bytes for each in staged)
        if here.target.kind != TABLE and (rows > limits.COMMIT_ROWS_MAX or size > limits.COMMIT_BYTES_MAX):
            raise TooLarge(
                f"{rows} rows of {size} bytes exceed one commit to {here.target.subject}, at most "
                f"{limits.COMMIT_ROWS_MAX} rows and {limits.COMMIT_BYTES_MAX} bytes; make batches smaller with "
                "maxRecordsPerTrigger, and give the query a new checkpoint: the current one still has this batch",
                code="COMMIT_TOO_LARGE",
            )
        return rows, size


def write_slice(tx: Tx, here: ResolvedTarget, pending: PendingCommit) -> bool:
    """Write the next rows of a pending commit, and remove the stages that are done; True if it is finished."""
    assert isinstance(here.thing, Definition)
    number, chunk, row = pending.stage, pending.chunk, pending.row
    rows_left, bytes_left = limits.COMMIT_SLICE_ITEMS, limits.COMMIT_SLICE_BYTES
    lenient = (number, chunk, row) != (0, 0, 0)  # accepted; an index that some rows do not fit was created since
    done: list[Stage] = []
    taken: list[EncodedWrite] = []
    while number < len(pending.stages):
        found = tx.get(STAGE_CHUNKS, pending.stages[number], chunk)
        if found is None:
            done.append(stage.find(tx, pending.stages[number]))
            number, chunk = number + 1, 0
            continue
        if rows_left <= 0 or bytes_left <= 0:
            break
        writes = rows.writes(rows.table_chunk(found.body))
        some = writes[row : row + rows_left]
        taken += some
        row, rows_left = row + len(some), rows_left - len(some)
        if row == len(writes):
            chunk, row, bytes_left = chunk + 1, 0, bytes_left - len(found.body)
    do_each(tx, here.thing, taken, by=pending.by, lenient=lenient)
    remove(tx, done)
    if number == len(pending.stages):
        stage.put_pending(tx, here.number, None)
        return True
    moved = msgspec.structs.replace(pending, stage=number, chunk=chunk, row=row, at_ms=tx.now_ms)
    stage.put_pending(tx, here.number, moved)
    failpoints.hit("stages.slice")
    return False


class ContinueCommit(Command[bool], frozen=True):
    """Write more rows of a pending commit that its client has left; True if there are no more."""

    permission = Permission.ADMIN

    number: int

    def run(self, tx: Tx) -> bool:
        failpoints.hit("sweep.step")
        pending = stage.pending_commit(tx, self.number)
        if pending is None:
            return True
        try:
            here = resolve(tx, Target(TABLE, pending.table))
        except NotFound:
            here = None
        if here is None or here.number != self.number:  # the table was dropped; its stages will expire
            stage.put_pending(tx, self.number, None)
            return True
        return write_slice(tx, here, pending)


def chunks(tx: Tx, stage_id: str) -> int:
    """The number of chunks of a stage."""
    return len(tx.values(STAGE_CHUNKS, "number", stage_id, limit=limits.STAGE_CHUNKS_MAX))


def bodies(tx: Tx, stage_id: str) -> Iterator[bytes]:
    """The chunks of a stage, read one by one because they are large."""
    number = 0
    while (row := tx.get(STAGE_CHUNKS, stage_id, number)) is not None:
        yield row.body
        number += 1


def remove(tx: Tx, rows: list[Stage]) -> None:
    """Remove stages with their chunks."""
    counts = [chunks(tx, row.id) for row in rows]  # read before anything is deleted, which is cheaper
    gone: dict[str, tuple[int, int]] = {}
    for row, count in zip(rows, counts, strict=True):
        for number in range(count):
            tx.delete(STAGE_CHUNKS, row.id, number)
        tx.delete(STAGES, row.id)
        stages, size = gone.get(row.by, (0, 0))
        gone[row.by] = (stages + 1, size + row.bytes)
    for by, (stages, size) in gone.items():
        stage.count(tx, by, -stages, -size)


def check_target(row: Stage, here: ResolvedTarget) -> None:
    """Raise unless the stage is for exactly this target."""
    if row.target == here.stored:
        return
    if row.kind == here.target.kind and row.number != here.number and row.subject == here.target.subject:
        raise _changed(here.target)
    raise Conflict(f"stage {row.id} is for {row.subject}, not for {here.target.subject}", code="WRONG_TARGET")


def _accepted(row: Stage) -> Conflict:
    return Conflict(
        f"stage {row.id} is part of a commit that was accepted, and is being written; commit the batch again to "
        "continue it",
        code="COMMIT_ACCEPTED",
    )


def _changed(target: Target) -> Conflict:
    return Conflict(
        f"{target.subject} was dropped and recreated since the rows were staged; stage them again",
        code="TARGET_CHANGED",
    )

"""Materialized views: definition, creation, description and removal.

A view is a job of kind ``view`` whose definition has its SELECT, the tables that it reads as they were at creation, and
its phase: it is *live*, or it has to be filled first. Its rows are in an ordinary table of its name, with a change
stream; the data that it needs to retract changes (`apply`) is in a second table, ``<name>__state``, which is internal.
Both are protected: DROP MATERIALIZED VIEW drops them.

A view depends on the change streams of its sources. If one was disabled, or has lost changes that the view has not
seen, the view has to be filled again; `ViewDescription.stale` has the reason.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from tailrace import limits
from tailrace.access import Permission
from tailrace.command import Command, Query
from tailrace.errors import InUse, Invalid, NotFound
from tailrace.jobs import fence
from tailrace.jobs.job import JOB_POSITIONS, JOBS, REGISTERED, Job, JobPosition, check_name, positions
from tailrace.jobs.view_delta import key_item
from tailrace.jobs.view_plan import COUNT, DISTINCT, SourceTable, ViewPlan, check, plan
from tailrace.log import cold
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import key as keys
from tailrace.tables import lifecycle, schema, value, write
from tailrace.tables.change import BOTH, Capture
from tailrace.tables.definition import TABLES, Attribute, Definition, counted, decoded, find, save
from tailrace.tables.value import Item

KIND: Final = "view"
NEW: Final = "new"  # not filled yet
FILLING: Final = "filling"
LIVE: Final = "live"
STATE: Final = "__state"
GROUP: Final = "group"  # the keys of the second table
PART: Final = "part"
_TAG: Final = "tailrace:view"  # on both tables: the view that they belong to

_encode: Final = msgspec.msgpack.Encoder().encode


class ViewDefinition(msgspec.Struct, frozen=True):
    """The definition of a view."""

    sql: str
    sources: tuple[SourceTable, ...]
    phase: str = NEW
    fill: str = ""  # the id of the filling in progress
    piece: int = 0  # the number of its chunks that were applied

    @property
    def plan(self) -> ViewPlan:
        return plan(self.sql, self.sources)


_decoder: Final = msgspec.msgpack.Decoder(ViewDefinition)


class SourceState(msgspec.Struct, frozen=True):
    """The current state of a source."""

    table: str
    log: int
    position: int | None  # of the view in its log
    next: int  # where the log ends
    stale: str = ""  # why the view cannot continue from there


class ViewDescription(msgspec.Struct, frozen=True):
    """A view and its current state."""

    name: str
    sql: str
    phase: str
    state: str  # of the job
    message: str
    rows: int  # changes processed
    items: int  # rows of the view
    keys: tuple[tuple[str, str], ...]
    tables: tuple[SourceTable, ...]
    sources: tuple[SourceState, ...]
    fill: str  # the id of the filling in progress, and the number of its chunks
    piece: int
    created_ms: int
    updated_ms: int

    @property
    def stale(self) -> str:
        """Why it has to be filled, for the first time or again; empty: it does not."""
        if self.phase != LIVE:
            return "it was not filled yet"
        return next((source.stale for source in self.sources if source.stale), "")


# -- finding


def found(reader: Reader | Tx, name: str) -> tuple[Job, ViewDefinition]:
    """The view of this name."""
    job = reader.get(JOBS, name)
    if job is not None and job.kind == KIND:
        with suppress(msgspec.ValidationError):  # a job with the kind of a view, registered by a client
            return job, _decoder.decode(job.definition)
    raise NotFound(
        f"there is no materialized view {name[:80]!r}; SHOW MATERIALIZED VIEWS lists them", code="VIEW_NOT_FOUND"
    )


def changed(tx: Tx, job: Job, view: ViewDefinition, *, rows: int = 0) -> None:
    """Save a view's definition."""
    tx.put(
        JOBS,
        msgspec.structs.replace(
            job, definition=_encode(view), rows=min(job.rows + rows, limits.POSITION_MAX), updated_ms=tx.now_ms
        ),
    )


def describe(reader: Reader | Tx, job: Job, view: ViewDefinition) -> ViewDescription:
    """The current state of the view."""
    at = positions(reader, job.name)
    target = find(reader, job.name)
    return ViewDescription(
        job.name, view.sql, view.phase, job.state, job.message, job.rows, counted(reader, target.space).items,
        view.plan.keys, view.sources, tuple(_source(reader, source, at.get(source.log)) for source in view.sources),
        view.fill, view.piece, job.created_ms, job.updated_ms,
    )  # fmt: skip


def _source(reader: Reader | Tx, source: SourceTable, position: int | None) -> SourceState:
    row = reader.get(TABLES, source.table)
    stream = None if row is None else decoded(row).stream
    log = reader.get(LOGS, source.log)
    stale = ""
    if row is None:
        stale = f"table {source.table!r} was dropped"
    elif stream is None or stream.log != source.log or log is None:
        stale = f"the change stream of table {source.table!r} was disabled since"
    elif position is not None and position < cold.earliest(reader, log):
        stale = f"changes of table {source.table!r} were trimmed before the view had applied them"
    return SourceState(source.table, source.log, position, 0 if log is None else log.next, stale)


# -- creating


class CreateView(Command[ViewDescription], frozen=True):
    """Create a materialized view. If its sources are empty it is live immediately; otherwise the job fills it first."""

    permission = Permission.ADMIN

    name: str
    sql: str
    tables: tuple[str, ...]  # that the SELECT reads
    if_not_exists: bool = False
    line: int = 1  # where the SELECT begins, for errors
    column: int = 1

    def subjects(self) -> tuple[str, ...]:
        return tuple(f"tables/{name}" for name in (self.name, self.name + STATE, *self.tables))

    def run(self, tx: Tx) -> ViewDescription:
        there = tx.get(JOBS, self.name)
        if there is not None and there.kind == KIND and self.if_not_exists:
            return describe(tx, *found(tx, self.name))
        if there is not None:
            noun = "materialized view" if there.kind == KIND else f"job of kind {there.kind}"
            raise InUse(f"there is a {noun} {self.name!r} already; drop it first", code="VIEW_EXISTS")
        check_name(self.name, "a view")
        fence.check_room(tx)
        sources = tuple(source_of(tx, name) for name in self.tables)
        planned = check(self.sql, sources, self.line, self.column)
        empty = not any(counted(tx, find(tx, name).space).items for name in self.tables)
        make_tables(tx, self.name, planned)
        view = ViewDefinition(self.sql, sources, LIVE if empty else NEW)
        source_names = ", ".join(f"tables/{source.table}" for source in sources)
        job = Job(
            self.name, KIND, source_names, f"tables/{self.name}", REGISTERED, "", _encode(view), 0, tx.now_ms, tx.now_ms
        )  # fmt: skip
        tx.put(JOBS, job)
        if empty:
            for source in sources:
                log = tx.get(LOGS, source.log)
                assert log is not None
                tx.put(JOB_POSITIONS, JobPosition(self.name, source.log, log.next))
            put_only_row(tx, self.name, planned)
        return describe(tx, job, view)


def source_of(tx: Tx, name: str) -> SourceTable:
    """A table as a source of a view."""
    definition = find(tx, name)
    stream = definition.stream
    if stream is None or stream.view != BOTH:
        fix = f"ALTER TABLE {name} ENABLE STREAM WITH (view = '{BOTH}')"
        if stream is not None:
            fix = f"ALTER TABLE {name} DISABLE STREAM; {fix}"
        why = "does not record its changes" if stream is None else f"records its changes as {stream.view}"
        raise Invalid(f"table {name!r} {why}, and a view needs old and new images; run {fix}", code="STREAM_NEEDED")
    kinds = tuple((key, definition.kinds[key]) for key in definition.keys)
    return SourceTable(name, stream.log, kinds, definition.column_kinds or ())


def make_tables(tx: Tx, name: str, planned: ViewPlan) -> None:
    """Create the table of the view's rows, and the one of its state."""
    _make(tx, name, planned.keys, schema.StreamSpec(True, BOTH), {_TAG: name})
    _make_state(tx, name)


def _make_state(tx: Tx, name: str) -> None:
    _make(tx, name + STATE, ((GROUP, "S"), (PART, "B")), None, {_TAG: name})


def forget(tx: Tx, name: str) -> None:
    """Empty the state of a view."""
    _drop(tx, name + STATE, name)
    _make_state(tx, name)


def _make(
    tx: Tx, name: str, names: tuple[tuple[str, str], ...], stream: schema.StreamSpec | None, tags: dict[str, str]
) -> None:
    if tx.get(TABLES, name) is not None:
        raise InUse(
            f"there is a table {name!r} already, and a view creates its own; use another name", code="TABLE_EXISTS"
        )
    spec = schema.TableSpec(
        name=name,
        attributes=tuple(Attribute(*each) for each in names),
        keys=tuple(schema.KeyElement(each, role) for (each, _), role in zip(names, (schema.HASH, schema.RANGE))),  # noqa: B905
        billing=schema.PAY_PER_REQUEST,
        protected=True,
        stream=stream,
        tags=tags,
    )
    lifecycle.CreateTable(spec).run(tx)


def put_only_row(tx: Tx, name: str, planned: ViewPlan) -> None:
    """Write the row of a view without groups, which exists even if its sources are empty."""
    if planned.groups or planned.rows:
        return
    row: Item = key_item(planned, ())
    for each in planned.aggregates:
        row[each.name] = {"N": "0"} if each.function in (COUNT, DISTINCT) else {"NULL": True}
    definition = find(tx, name)
    capture = Capture()
    plan_row = write.find(tx, definition, keys.item_key(definition, row), row)
    plan_row.new, plan_row.size = row, value.item_size(row)
    write.do(tx, plan_row, capture)
    capture.append(tx)


class DropView(Command[bool], frozen=True):
    """Drop a view with its tables; whether it existed."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    if_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}", f"tables/{self.name}{STATE}")

    def run(self, tx: Tx) -> bool:
        dropped = [_drop(tx, name, self.name) for name in (self.name, self.name + STATE)]
        if not any(dropped):  # a view whose job was dropped still has its tables
            if self.if_exists and tx.get(JOBS, self.name) is None:
                return False
            found(tx, self.name)
        for log in positions(tx, self.name):
            tx.delete(JOB_POSITIONS, self.name, log)
        tx.delete(JOBS, self.name)
        return True


def has_tables(reader: Reader | Tx, view: str) -> bool:
    """Whether a table of the view exists."""
    return any(_made(reader, name, view) is not None for name in (view, view + STATE))


def _made(reader: Reader | Tx, name: str, view: str) -> Definition | None:
    """The table of this name, if the view created it."""
    row = reader.get(TABLES, name)
    made = None if row is None else decoded(row)
    return made if made is not None and made.tags.get(_TAG) == view else None


def _drop(tx: Tx, name: str, view: str) -> bool:
    """Drop a table that the view created; whether it existed."""
    made = _made(tx, name, view)
    if made is None:
        return False
    save(tx, msgspec.structs.replace(made, protected=False))
    lifecycle.DeleteTable(name).run(tx)
    return True


# -- describing


class DescribeView(Query[ViewDescription], frozen=True):
    """The current state of a view."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> ViewDescription:
        return describe(reader, *found(reader, self.name))


class ListViews(Query[list[ViewDescription]], frozen=True):
    """All views, by name."""

    def run(self, reader: Reader) -> list[ViewDescription]:
        names = [job.name for job in reader.scan(JOBS) if job.kind == KIND and reader.get(TABLES, job.name)]
        return [describe(reader, *found(reader, name)) for name in names]

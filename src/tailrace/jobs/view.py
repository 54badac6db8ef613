"""Materialized views: definition, creation, description and removal.

A view is a job of kind ``view`` whose definition has its SELECT, the tables that it reads, and its phase. It is
*planning* until its job has planned the SELECT with Spark and reported its key, its columns and how it is kept
(`PlanView`); *invalid* if Spark refuses the SELECT; then *new* until it is filled, and *live*. Its rows are in an
ordinary table of its name, which exists from planning on, has a change stream, and is protected: DROP MATERIALIZED VIEW
drops it.

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
from tailrace.errors import Conflict, InUse, Invalid, NotFound
from tailrace.jobs import batches, fence
from tailrace.jobs.job import JOB_POSITIONS, JOBS, REGISTERED, Job, check_name, positions, remove
from tailrace.log import cold
from tailrace.log.entry import LOGS
from tailrace.storage.engine import Reader, Tx
from tailrace.tables import lifecycle, schema
from tailrace.tables.change import BOTH
from tailrace.tables.definition import TABLES, Attribute, Column, Definition, counted, decoded, find, save
from tailrace.topics import topic as topics
from tailrace.topics.topic import TOPIC_NAMES

KIND: Final = "view"
PLANNING: Final = "planning"  # its job has not planned it yet
INVALID: Final = "invalid"  # Spark refuses the SELECT
NEW: Final = "new"  # not filled yet
FILLING: Final = "filling"
LIVE: Final = "live"
MESSAGE_KEYS: Final = (("partition", "N"), ("offset", "N"))  # of a message of a topic
_TAG: Final = "tailrace:view"  # on the table: the view that it belongs to

_encode: Final = msgspec.msgpack.Encoder().encode


class SourceTable(msgspec.Struct, frozen=True):
    """A table that a view reads, or a partition of a topic, as it is when the view is created or filled."""

    table: str  # or the topic
    log: int  # of its change stream, or of the partition
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] = ()  # declared ones, with their SQL types
    topic: int = 0  # the number of the topic; 0: it is a table
    partition: int = 0
    first: int = 0  # of a topic: the position of the first message that the view counts


class ViewShape(msgspec.Struct, frozen=True):
    """The plan of a view, as its job reports it."""

    keys: tuple[tuple[str, str], ...]  # the key of its table: names, and S, N or B
    columns: tuple[tuple[str, str], ...]  # with Spark's types
    strategy: str
    explained: tuple[str, ...] = ()  # the derivative, operator by operator
    warnings: tuple[str, ...] = ()
    partials: str = ""  # the form of the partial aggregates, if it is kept by them (`partials`)


class ViewDefinition(msgspec.Struct, frozen=True):
    """The definition of a view."""

    sql: str
    sources: tuple[SourceTable, ...]
    phase: str = PLANNING
    fill: str = ""  # the id of the filling in progress
    piece: int = 0  # the number of its chunks that were applied
    shape: ViewShape | None = None
    refresh: int = 0  # how often a refresh was requested
    filled: bool = False  # it was filled, and no refresh was requested since


_decoder: Final = msgspec.msgpack.Decoder(ViewDefinition)


class SourceState(msgspec.Struct, frozen=True):
    """The current state of a source."""

    table: str
    log: int
    position: int | None  # of the view in its log
    next: int  # where the log ends
    stale: str = ""  # why the view cannot continue from there
    partition: int = 0  # of a topic
    earliest: int = 0  # the first position that can be read


class ViewDescription(msgspec.Struct, frozen=True):
    """A view and its current state."""

    name: str
    sql: str
    phase: str
    state: str  # of the job
    message: str
    rows: int  # changes processed
    items: int  # rows of the view
    shape: ViewShape | None
    tables: tuple[SourceTable, ...]
    sources: tuple[SourceState, ...]
    fill: str  # the id of the filling in progress, and the number of its chunks
    piece: int
    refresh: int
    created_ms: int
    updated_ms: int

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The key of its table; none before it is planned."""
        return () if self.shape is None else self.shape.keys

    @property
    def stale(self) -> str:
        """Why it has to be filled, for the first time or again; empty: it does not."""
        if self.phase in (PLANNING, INVALID):
            return "it was not planned yet" if self.phase == PLANNING else "Spark refused its SELECT"
        if self.phase != LIVE:
            return "it was not filled yet"
        return next((source.stale for source in self.sources if source.stale), "")


# -- finding


def definition_of(job: Job) -> ViewDefinition | None:
    """The definition, if the job is that of a materialized view: a client may register other jobs of this kind."""
    if job.kind == KIND:
        with suppress(msgspec.ValidationError):
            return _decoder.decode(job.definition)
    return None


def found(reader: Reader | Tx, name: str) -> tuple[Job, ViewDefinition]:
    """The view of this name."""
    job = reader.get(JOBS, name)
    definition = None if job is None else definition_of(job)
    if job is not None and definition is not None:
        return job, definition
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
    target = _made(reader, job.name, job.name)
    items = 0 if target is None else counted(reader, target.space).items
    return ViewDescription(
        job.name, view.sql, view.phase, job.state, job.message, job.rows, items, view.shape, view.sources,
        tuple(_source(reader, source, at.get(source.log)) for source in view.sources),
        view.fill, view.piece, view.refresh, job.created_ms, job.updated_ms,
    )  # fmt: skip


def _source(reader: Reader | Tx, source: SourceTable, position: int | None) -> SourceState:
    if source.topic:
        return _partition(reader, source, position)
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


def _partition(reader: Reader | Tx, source: SourceTable, position: int | None) -> SourceState:
    name, log = reader.get(TOPIC_NAMES, source.table), reader.get(LOGS, source.log)
    if name is None or name.topic != source.topic or log is None:
        stale = f"topic {source.table!r} was dropped"
        return SourceState(source.table, source.log, position, 0, stale, source.partition)
    earliest = cold.earliest(reader, log)
    stale = ""
    if position is not None and position < earliest:
        stale = f"messages of topic {source.table!r} were trimmed before the view had applied them"
    return SourceState(source.table, source.log, position, log.next, stale, source.partition, earliest)


# -- creating


class CreateView(Command[ViewDescription], frozen=True):
    """Create a materialized view. Its job plans it, and fills it."""

    permission = Permission.ADMIN

    name: str
    sql: str
    tables: tuple[str, ...]  # that the SELECT reads
    if_not_exists: bool = False
    topics: tuple[str, ...] = ()  # that it reads

    def subjects(self) -> tuple[str, ...]:
        tables = tuple(f"tables/{name}" for name in (self.name, *self.tables))
        return (*tables, *(f"topics/{name}" for name in self.topics))

    def run(self, tx: Tx) -> ViewDescription:
        there = tx.get(JOBS, self.name)
        if there is not None and there.kind == KIND and self.if_not_exists:
            return describe(tx, *found(tx, self.name))
        if there is not None:
            noun = "materialized view" if there.kind == KIND else f"job of kind {there.kind}"
            raise InUse(f"there is a {noun} {self.name!r} already; drop it first", code="VIEW_EXISTS")
        check_name(self.name, "a view")
        fence.check_room(tx)
        _check_free(tx, self.name)
        sources = [source_of(tx, name) for name in self.tables]
        for name in self.topics:
            sources += partitions_of(tx, name)
        fence.check_logs(len(sources))
        view = ViewDefinition(self.sql, tuple(sources))
        source_names = ", ".join(
            [f"tables/{name}" for name in self.tables] + [f"topics/{name}" for name in self.topics]
        )
        source_names = source_names[: limits.JOB_TEXT_BYTES_MAX]
        job = Job(
            self.name, KIND, source_names, f"tables/{self.name}", REGISTERED, "", _encode(view), 0, tx.now_ms, tx.now_ms
        )
        tx.put(JOBS, job)
        return describe(tx, job, view)


def source_of(tx: Tx, name: str) -> SourceTable:
    """A table as a source of a view."""
    job = tx.get(JOBS, name)
    if job is not None and job.kind == KIND and not has_table(tx, name):
        raise Conflict(
            f"view {name!r} has no table yet, because its job has not planned it; run tailrace pipeline view {name} "
            "first",
            code="VIEW_NOT_PLANNED",
        )
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


def partitions_of(tx: Tx, name: str) -> list[SourceTable]:
    """A topic as a source of a view: its partitions, from the first message that they have."""
    topic = topics.find(tx, name)
    if topic.name != name:
        raise Invalid(f"{name!r} is the alias of topic {topic.name!r}; a view names the topic", code="INVALID_VIEW")
    found = []
    for partition in range(topic.partitions):
        log = topics.partition_log(tx, topic, partition)
        first = cold.earliest(tx, log)
        found.append(SourceTable(name, log.id, MESSAGE_KEYS, (), topic.id, partition, first))
    return found


class PlanView(Command[ViewDescription], frozen=True):
    """Report the plan of a view, by its job: its table is created. Or report that Spark refuses its SELECT."""

    permission = Permission.JOBS

    name: str
    shape: ViewShape | None
    error: str = ""

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}",)

    def run(self, tx: Tx) -> ViewDescription:
        job, view = found(tx, self.name)
        if self.shape is None:
            if view.phase in (PLANNING, INVALID):
                job = msgspec.structs.replace(job, message=self.error[: limits.VIEW_ERROR_CHARACTERS_MAX])
                view = msgspec.structs.replace(view, phase=INVALID)
                changed(tx, job, view)
            return describe(tx, *found(tx, self.name))
        if view.shape is not None and view.shape.keys == self.shape.keys:
            if view.shape.partials != self.shape.partials and view.phase in (FILLING, LIVE):
                # The partials that are there, if any, are not those of this plan.
                view = msgspec.structs.replace(view, phase=NEW, fill="", piece=0)
            view = msgspec.structs.replace(view, shape=self.shape)
        else:  # new, or its sources have other columns than before
            _drop(tx, self.name, self.name)
            for log in positions(tx, self.name):
                tx.delete(JOB_POSITIONS, self.name, log)
            _make(tx, self.name, self.shape)
            job = msgspec.structs.replace(job, message="")
            view = msgspec.structs.replace(view, shape=self.shape, phase=NEW, fill="", piece=0)
        changed(tx, job, view)
        return describe(tx, *found(tx, self.name))


def _check_free(tx: Tx, name: str) -> None:
    if tx.get(TABLES, name) is not None:
        raise InUse(
            f"there is a table {name!r} already, and a view creates its own; use another name", code="TABLE_EXISTS"
        )


def _make(tx: Tx, name: str, shape: ViewShape) -> None:
    """Create the table of the view's rows."""
    _check_free(tx, name)
    if not 1 <= len(shape.keys) <= 2:
        raise Invalid(f"the table of a view has one or two keys, not {len(shape.keys)}", code="INVALID_VIEW")
    spec = schema.TableSpec(
        name=name,
        attributes=tuple(Attribute(*each) for each in shape.keys),
        keys=tuple(
            schema.KeyElement(each, role)
            for (each, _), role in zip(shape.keys, (schema.HASH, schema.RANGE), strict=False)
        ),
        billing=schema.PAY_PER_REQUEST,
        protected=True,
        stream=schema.StreamSpec(True, BOTH),
        tags={_TAG: name},
    )
    lifecycle.CreateTable(spec).run(tx)
    columns = tuple(Column(each, sql_kind(kind)) for each, kind in _declared(shape))
    save(tx, msgspec.structs.replace(find(tx, name), columns=columns))
    reset_partials(tx, name, shape)


def reset_partials(tx: Tx, name: str, shape: ViewShape | None) -> None:
    """Give the view an empty space for partial aggregates, if it is kept by them; what the old one has is dropped."""
    definition = find(tx, name)
    if definition.partials_space is not None:
        lifecycle.drop_space(tx, definition.partials_space)
    space = lifecycle.new_space(tx) if shape is not None and shape.partials else None
    save(tx, msgspec.structs.replace(definition, partials_space=space))


def _declared(shape: ViewShape) -> list[tuple[str, str]]:
    """The columns of the table: the view's, and keys that are not among them."""
    known = dict(shape.columns)
    kinds = {"S": "string", "N": "decimal", "B": "binary"}
    keys = {name: kinds[kind] for name, kind in shape.keys}
    first = [(name, keys[name]) for name in keys if name not in known]
    return first + [(name, keys.get(name, kind)) for name, kind in shape.columns]


def sql_kind(kind: str) -> str:
    """The SQL type of a column with a type of Spark."""
    match kind.partition("(")[0].partition("<")[0]:
        case "string" | "date" | "timestamp" | "timestamp_ntz" | "varchar" | "char" | "time":
            return "TEXT"
        case "tinyint" | "smallint" | "int" | "bigint":
            return "BIGINT"
        case "decimal":
            return "DECIMAL"
        case "float" | "double":
            return "DOUBLE"
        case "boolean":
            return "BOOLEAN"
        case "binary":
            return "BLOB"
    return "TEXT" if kind.startswith("interval") else "JSON"


class RefreshView(Command[ViewDescription], frozen=True):
    """Request that the view's job fills it again."""

    permission = Permission.ADMIN

    name: str

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}",)

    def run(self, tx: Tx) -> ViewDescription:
        job, view = found(tx, self.name)
        phase = NEW if view.phase in (LIVE, FILLING) else view.phase
        phase = PLANNING if phase == INVALID else phase
        refresh = view.refresh + 1
        changed(tx, job, msgspec.structs.replace(view, phase=phase, fill="", piece=0, refresh=refresh, filled=False))
        return describe(tx, *found(tx, self.name))


class DropView(Command[bool], frozen=True):
    """Drop a view with its table; whether it existed."""

    freeing = True
    permission = Permission.ADMIN

    name: str
    if_exists: bool = False

    def subjects(self) -> tuple[str, ...]:
        return (f"tables/{self.name}",)

    def run(self, tx: Tx) -> bool:
        if not _drop(tx, self.name, self.name):  # a view whose job was dropped still has its table
            if self.if_exists and tx.get(JOBS, self.name) is None:
                return False
            found(tx, self.name)
        remove(tx, self.name)
        batches.forget(tx, self.name)
        return True


def has_table(reader: Reader | Tx, view: str) -> bool:
    """Whether the table of the view exists."""
    return _made(reader, view, view) is not None


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


class TopicsAmong(Query[tuple[str, ...]], frozen=True):
    """Which of these names a view reads as topics: those of topics that are not names of tables or views too."""

    subject = ("tables", "view")

    view: str
    names: tuple[str, ...]

    def run(self, reader: Reader) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.names
            if reader.get(TABLES, name) is None
            and ((job := reader.get(JOBS, name)) is None or job.kind != KIND)
            and reader.get(TOPIC_NAMES, name) is not None
        )


class DescribeView(Query[ViewDescription], frozen=True):
    """The current state of a view."""

    subject = ("tables", "name")

    name: str

    def run(self, reader: Reader) -> ViewDescription:
        return describe(reader, *found(reader, self.name))


class ListViews(Query[list[ViewDescription]], frozen=True):
    """All views, by name."""

    def run(self, reader: Reader) -> list[ViewDescription]:
        found_views = []
        for job in reader.scan(JOBS):
            if job.kind == KIND:
                with suppress(NotFound):
                    found_views.append(describe(reader, *found(reader, job.name)))
        return found_views

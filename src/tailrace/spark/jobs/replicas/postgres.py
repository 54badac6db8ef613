"""A copy in PostgreSQL: one row for each item, and the fence in `tailrace_replicas`, in the same transaction.

The copy's table has `key` and `item` as `jsonb` for queries, and `typed`, which is DynamoDB's JSON and distinguishes
binary from text and sets from lists. A string may contain U+0000, which jsonb cannot: `item` has U+FFFD instead,
`typed` is exact. A key with U+0000 is refused, because two keys must not become one.

The attributes of the key and the columns that the table declares have typed columns too. PostgreSQL itself generates
them from `item`, so that they are always equal to it, and those of a copy of an earlier version are filled when they
are added. Other APIs do not check items against declared columns: where the value is of another type, or does not fit,
the column is null and `item` has it.

Executors COPY the rows of a batch into a table for staging, each over a connection of its own and under a random
*part*, which the task returns. The driver's transaction moves the rows of these parts to the copy. The table is
unlogged, so a server that crashed empties it: the transaction counts the rows, and writes nothing if any are missing.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tailrace.errors import Conflict, Error, Fenced, Invalid, Unavailable
from tailrace.spark.jobs.copies import CopyRows, FirstCopy
from tailrace.spark.jobs.replicas import ReplicaSource, fenced

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

FENCES: Final = "tailrace_replicas"
_NUL: Final = "\\u0000"
_OWN: Final = ("key", "item", "typed", "sequence")  # the names of our columns
_NAME_BYTES_MAX: Final = 63  # PostgreSQL cuts longer names
_KEY_KINDS: Final = {"S": "TEXT", "N": "DECIMAL", "B": "BLOB"}
_BASE64: Final = "^([A-Za-z0-9+/]{{4}})*([A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?$"
# By declared type: the type in PostgreSQL, and the value of the attribute {name}; null where it is of another type.
_GENERATED: Final = {
    "TEXT": ("text", "CASE jsonb_typeof(item -> {name}) WHEN 'string' THEN item ->> {name} END"),
    "BIGINT": (
        "bigint",
        "CASE WHEN jsonb_typeof(item -> {name}) <> 'number' THEN NULL "
        "WHEN (item ->> {name})::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN NULL "
        "WHEN (item ->> {name})::numeric = trunc((item ->> {name})::numeric) "
        "THEN (item ->> {name})::numeric::bigint END",
    ),
    "DOUBLE": (
        "double precision",
        "CASE jsonb_typeof(item -> {name}) WHEN 'number' THEN (item ->> {name})::numeric::double precision END",
    ),
    "DECIMAL": ("numeric", "CASE jsonb_typeof(item -> {name}) WHEN 'number' THEN (item ->> {name})::numeric END"),
    "BOOLEAN": ("boolean", "CASE jsonb_typeof(item -> {name}) WHEN 'boolean' THEN (item ->> {name})::boolean END"),
    "BLOB": (
        "bytea",
        "CASE WHEN jsonb_typeof(item -> {name}) = 'string' AND item ->> {name} ~ '" + _BASE64 + "' "
        "THEN decode(item ->> {name}, 'base64') END",
    ),
    "JSON": ("jsonb", "item -> {name}"),
}


_SELECTED: Final = "SELECT key, item, typed, sequence FROM {stage} WHERE part = ANY(%s)"


class StagedPart(msgspec.Struct, frozen=True):
    """Rows in the table for staging: those of one task."""

    part: str
    rows: int


class PostgresReplica:
    """See `Replica`."""

    bytes_max: int | None = None  # no batch passes through the driver

    def __init__(self, url: str, name: str, table: str, source: ReplicaSource) -> None:
        self._psycopg, self._sql = _driver()
        self._url = url
        self._name = name
        self._source = source
        self._shown = table
        parts = table.split(".")
        if not all(parts) or len(parts) > 2:
            raise Invalid(f"{table!r} cannot name a table of PostgreSQL; give a name, or a schema and a name")
        self._table = self._sql.Identifier(*parts)
        self._connection: psycopg.Connection[Any] | None = None
        self._stage = ""  # the name of the table for staging, once it is made
        with self._transaction() as connection:
            self._prepare(connection)

    # -- as `Replica`

    def fence(self) -> int | None:
        with self._transaction() as connection:
            return self._fence(connection)

    def backfill(self, first: FirstCopy, before: int | None) -> tuple[int, int]:
        found = self.fence()
        if found != before:
            raise fenced(f"the copy in {self._shown!r}", found, before or 0)
        items = self._staged(first.items())
        over, position = first.changes()
        changes = self._staged(over)
        with self._transaction() as connection:
            found = self._fence(connection)
            if found != before:
                raise fenced(f"the copy in {self._shown!r}", found, position)
            connection.execute(self._written("DELETE FROM {table}"))
            if items:
                self._check_staged(connection, items)
                inserted = "INSERT INTO {table} (key, item, typed, sequence) " + _SELECTED
                connection.execute(self._written(inserted), (_parts(items),))
            self._merge(connection, changes)
            self._move(connection, position)
            self._clear_stages(connection)
        return sum(each.rows for each in items), position

    def apply(self, changes: CopyRows, start: int, end: int) -> None:
        parts = self._staged(changes)
        with self._transaction() as connection:
            found = self._fence(connection)
            if found != start:
                raise fenced(f"the copy in {self._shown!r}", found, start)
            self._merge(connection, parts)
            self._move(connection, end)
            self._clear_stages(connection)

    def close(self) -> None:
        if self._stage:
            stage, self._stage = self._stage, ""
            with suppress(Error), self._transaction() as connection:  # else the next job drops it
                connection.execute(self._sql.SQL("DROP TABLE IF EXISTS {}").format(self._sql.Identifier(stage)))
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> PostgresReplica:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- in a transaction

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Create the tables that do not exist yet. A table that is not a copy is left unchanged."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('tailrace_replicas'))")  # CREATE ... IF races
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {FENCES} (name text PRIMARY KEY, database text NOT NULL, log bigint NOT NULL, "
            '"table" text NOT NULL, target text NOT NULL, position bigint, updated timestamptz NOT NULL)'
        )
        row = connection.execute(f"SELECT database, target FROM {FENCES} WHERE name = %s", (self._name,)).fetchone()
        if row is not None:
            if row[0] != self._source.database:
                raise Conflict(
                    f"the copy {self._name!r} in PostgreSQL is of another database ({row[0]}); give this one another "
                    "name"
                )
            if row[1] != self._shown:
                raise Conflict(
                    f"the copy {self._name!r} in PostgreSQL is in table {row[1]!r}, not in {self._shown!r}; "
                    "give this one another name"
                )
        else:
            self._claim(connection)
        connection.execute(
            self._written(
                "CREATE TABLE IF NOT EXISTS {table} (key jsonb PRIMARY KEY, item jsonb NOT NULL, typed json NOT NULL, "
                "sequence bigint NOT NULL)"
            )
        )
        self._add_columns(connection)

    def _add_columns(self, connection: psycopg.Connection[Any]) -> None:
        """Add the typed columns that are not there yet, all at once: PostgreSQL writes every row of the copy again. A
        column of that name that a user added stays; names of system columns, such as xmin, have none."""
        rows = connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND NOT attisdropped",
            (self._table.as_string(connection),),
        )
        there = {row[0] for row in rows}
        added = []
        for name, kind in typed_columns(self._source):
            if name not in there:
                type_, value = _GENERATED[kind]
                generated = self._sql.SQL(value).format(name=self._sql.Literal(name))
                adding = self._sql.SQL("ADD COLUMN {} " + type_ + " GENERATED ALWAYS AS ({}) STORED")
                added.append(adding.format(self._sql.Identifier(name), generated))
        if added:
            connection.execute(self._sql.SQL("ALTER TABLE {} {}").format(self._table, self._sql.SQL(", ").join(added)))

    def _claim(self, connection: psycopg.Connection[Any]) -> None:
        """Register the table as ours; it must not exist yet, or be empty."""
        other = connection.execute(f"SELECT name FROM {FENCES} WHERE target = %s", (self._shown,)).fetchone()
        if other is not None:
            raise Conflict(
                f"table {self._shown!r} in PostgreSQL holds the copy {other[0]!r}; give another target table"
            )
        there = connection.execute("SELECT to_regclass(%s)", (self._table.as_string(connection),)).fetchone()
        known = there is not None and there[0] is not None
        if known and connection.execute(self._written("SELECT 1 FROM {table} LIMIT 1")).fetchone() is not None:
            raise Conflict(
                f"table {self._shown!r} in PostgreSQL has rows that are not of a copy; give another target table"
            )
        connection.execute(
            f'INSERT INTO {FENCES} (name, database, log, "table", target, position, updated) '
            "VALUES (%s, %s, %s, %s, %s, NULL, now())",
            (self._name, self._source.database, self._source.log, self._source.table, self._shown),
        )

    def _fence(self, connection: psycopg.Connection[Any]) -> int | None:
        """The fence, locked until the end of the transaction."""
        row = connection.execute(
            f"SELECT log, position FROM {FENCES} WHERE name = %s FOR UPDATE", (self._name,)
        ).fetchone()
        if row is None:
            raise Conflict(
                f"the copy {self._name!r} was removed from {FENCES} while it was being written; start it again"
            )
        return None if row[0] != self._source.log else row[1]

    def _move(self, connection: psycopg.Connection[Any], position: int) -> None:
        connection.execute(
            f"UPDATE {FENCES} SET log = %s, position = %s, updated = now() WHERE name = %s",
            (self._source.log, position, self._name),
        )

    # -- staging

    def _staged(self, rows: CopyRows) -> list[StagedPart]:
        """Have executors stage these rows."""
        if not rows.rows:
            return []
        if not self._stage:
            name = f"{self._stages_prefix}{secrets.token_hex(8)}"
            with self._transaction() as connection:
                connection.execute(
                    self._sql.SQL(
                        "CREATE UNLOGGED TABLE {} (part text, key jsonb, item jsonb, typed json, sequence bigint)"
                    ).format(self._sql.Identifier(name))
                )
            self._stage = name
        answers = rows.each(StageParts(self._url, self._stage, self._shown))
        return [msgspec.msgpack.decode(answer, type=StagedPart) for answer in answers]

    def _merge(self, connection: psycopg.Connection[Any], parts: Sequence[StagedPart]) -> None:
        """Write staged changes to the copy."""
        if not parts:
            return
        self._check_staged(connection, parts)
        connection.execute(
            self._written(
                "DELETE FROM {table} AS copy USING {stage} AS batch "
                "WHERE copy.key = batch.key AND batch.typed IS NULL AND part = ANY(%s)"
            ),
            (_parts(parts),),
        )
        connection.execute(
            self._written(
                "INSERT INTO {table} (key, item, typed, sequence) " + _SELECTED + " AND typed IS NOT NULL "
                "ON CONFLICT (key) DO UPDATE SET item = excluded.item, typed = excluded.typed, "
                "sequence = excluded.sequence"
            ),
            (_parts(parts),),
        )

    def _check_staged(self, connection: psycopg.Connection[Any], parts: Sequence[StagedPart]) -> None:
        row = connection.execute(
            self._written("SELECT count(*) FROM {stage} WHERE part = ANY(%s)"), (_parts(parts),)
        ).fetchone()
        if row is None or row[0] != sum(each.rows for each in parts):
            raise Unavailable(
                f"rows that were staged for {self._shown!r} are gone: PostgreSQL was restarted meanwhile; try again"
            )

    def _clear_stages(self, connection: psycopg.Connection[Any]) -> None:
        """Empty the table for staging, and drop those that other jobs of this copy have left. The fence is locked: what
        another job has staged now begins where the copy no longer is."""
        if not self._stage:
            return
        connection.execute(self._written("TRUNCATE {stage}"))
        left = connection.execute(
            "SELECT relname FROM pg_class "
            "WHERE starts_with(relname, %s) AND relname <> %s AND relkind = 'r' AND pg_table_is_visible(oid)",
            (self._stages_prefix, self._stage),
        ).fetchall()
        errors = self._psycopg.errors
        for (name,) in left:
            other = self._sql.Identifier(name)
            # One that its job is still writing to is left to a later batch.
            with suppress(errors.LockNotAvailable, errors.UndefinedTable), connection.transaction():
                connection.execute(self._sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(other))
                connection.execute(self._sql.SQL("DROP TABLE {}").format(other))

    @property
    def _stages_prefix(self) -> str:
        return f"tailrace_stage_{zlib.crc32(self._name.encode()):08x}_"

    def _written(self, text: str) -> sql.Composed:
        composed: sql.Composed = self._sql.SQL(text).format(table=self._table, stage=self._sql.Identifier(self._stage))
        return composed

    # -- the connection

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """One transaction. A broken connection is reopened for the next one."""
        psycopg = self._psycopg
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(self._url)
            with self._connection.transaction():
                yield self._connection
        except psycopg.OperationalError as error:
            self._disconnect()
            raise Unavailable(f"PostgreSQL cannot be reached, or closed the connection: {_first(error)}") from error
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.UndefinedTable) and self._stage and self._stage in str(error):
                self._stage = ""
                raise _taken_over(self._shown) from error
            raise Invalid(f"PostgreSQL refused the copy of {self._source.table!r}: {_first(error)}") from error


class StageParts(msgspec.Struct, frozen=True):
    """Copies rows into the table for staging, as one part. Runs in an executor."""

    url: str
    stage: str
    copy: str  # the name of the copy, for errors

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        psycopg, sql = _driver()
        part, count = secrets.token_hex(8), 0
        into = sql.SQL("COPY {} (part, key, item, typed, sequence) FROM STDIN").format(sql.Identifier(self.stage))
        try:
            with psycopg.connect(self.url) as connection, connection.cursor() as cursor, cursor.copy(into) as copy:
                for batch in batches:
                    for row in _rows(batch):
                        copy.write_row((part, *row))
                    count += batch.num_rows
        except psycopg.OperationalError as error:
            raise Unavailable(f"PostgreSQL cannot be reached, or closed the connection: {_first(error)}") from error
        except psycopg.errors.UndefinedTable as error:
            raise _taken_over(self.copy) from error
        except psycopg.Error as error:
            raise Invalid(f"PostgreSQL refused rows of the copy {self.copy!r}: {_first(error)}") from error
        if count:
            yield msgspec.msgpack.encode(StagedPart(part, count))


def _parts(parts: Iterable[StagedPart]) -> list[str]:
    return [each.part for each in parts]


def _taken_over(copy: str) -> Fenced:
    return Fenced(
        f"the rows that were staged for the copy in {copy!r} were dropped: another replicate job writes to it; run "
        "only one"
    )


def typed_columns(source: ReplicaSource) -> list[tuple[str, str]]:
    """The name and declared type of each typed column: the key first. Names that the copy needs itself, or that are too
    long for PostgreSQL, have none."""
    kinds = {name: _KEY_KINDS[kind] for name, kind in source.keys} | dict(source.columns)
    return [
        (name, kind)
        for name, kind in kinds.items()
        if name not in _OWN and len(name.encode()) <= _NAME_BYTES_MAX and kind in _GENERATED and "\0" not in name
    ]


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str | None, str | None, int]]:
    """Rows as COPY takes them."""
    columns = (batch.column(name).to_pylist() for name in ("keys", "item", "typed", "sequence"))
    for key, item, typed, sequence in zip(*columns, strict=True):
        if _NUL in key and _has_nul(key):
            raise Invalid(
                f"the key {key} of sequence {sequence} holds U+0000, which PostgreSQL's jsonb cannot; "
                "remove the item, or copy the table to Delta or to another Tailrace"
            )
        if item is not None and _NUL in item:
            item = _without_nul(item)
        yield key, item, typed, sequence


def _has_nul(text: str) -> bool:
    return _without_nul(text) != text


def _without_nul(text: str) -> str:
    """JSON with U+FFFD for the escape of U+0000. A backslash that is itself escaped begins no escape."""
    parts = text.split("\\\\")
    return "\\\\".join(part.replace(_NUL, "\\ufffd") for part in parts)


def _driver() -> tuple[Any, Any]:
    try:
        import psycopg
        from psycopg import sql
    except ImportError as error:
        raise Error(
            "a copy in PostgreSQL needs psycopg, which is not installed; run: pip install 'tailrace[postgres]'",
            code="NOT_INSTALLED",
        ) from error
    return psycopg, sql


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

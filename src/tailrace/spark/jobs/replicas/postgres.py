"""A copy in PostgreSQL: one row for each item, and the fence in `tailrace_replicas`, in the same transaction.

The copy's table has `key` and `item` as `jsonb` for queries, and `typed`, which is DynamoDB's JSON and distinguishes
binary from text and sets from lists. A string may contain U+0000, which jsonb cannot: `item` has U+FFFD instead,
`typed` is exact. A key with U+0000 is refused, because two keys must not become one.

The attributes of the key and the columns that the table declares have typed columns too. PostgreSQL itself generates
them from `item`, so that they are always equal to it, and those of a copy of an earlier version are filled when they
are added. Other APIs do not check items against declared columns: where the value is of another type, or does not fit,
the column is null and `item` has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tailrace.errors import Conflict, Error, Invalid, Unavailable
from tailrace.spark.jobs.replicas import BATCH_BYTES, BatchChanges, ReplicaSource, fenced

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


class PostgresReplica:
    """See `Replica`."""

    bytes_max: int | None = BATCH_BYTES

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
        with self._transaction() as connection:
            self._prepare(connection)

    # -- as `Replica`

    def fence(self) -> int | None:
        with self._transaction() as connection:
            return self._fence(connection)

    def backfill(self, rows: Iterable[pa.RecordBatch], position: int, before: int | None) -> int:
        with self._transaction() as connection:
            found = self._fence(connection)
            if found != before:
                raise fenced(f"the copy in {self._shown!r}", found, position)
            connection.execute(self._written("DELETE FROM {table}"))
            count = self._copy(connection, self._table, rows)
            self._move(connection, position)
        return count

    def apply(self, changes: BatchChanges, start: int, end: int) -> None:
        with self._transaction() as connection:
            found = self._fence(connection)
            if found != start:
                raise fenced(f"the copy in {self._shown!r}", found, start)
            connection.execute(
                "CREATE TEMPORARY TABLE tailrace_batch (key jsonb, item jsonb, typed json, sequence bigint) "
                "ON COMMIT DROP"
            )
            self._copy(connection, self._sql.Identifier("tailrace_batch"), changes.table().to_batches())
            connection.execute(
                self._written(
                    "DELETE FROM {table} AS copy USING tailrace_batch AS batch "
                    "WHERE copy.key = batch.key AND batch.typed IS NULL"
                )
            )
            connection.execute(
                self._written(
                    "INSERT INTO {table} (key, item, typed, sequence) "
                    "SELECT key, item, typed, sequence FROM tailrace_batch WHERE typed IS NOT NULL "
                    "ON CONFLICT (key) DO UPDATE SET item = excluded.item, typed = excluded.typed, "
                    "sequence = excluded.sequence"
                )
            )
            self._move(connection, end)

    def close(self) -> None:
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

    def _copy(self, connection: psycopg.Connection[Any], table: sql.Identifier, rows: Iterable[pa.RecordBatch]) -> int:
        count = 0
        into = self._sql.SQL("COPY {} (key, item, typed, sequence) FROM STDIN").format(table)
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            for batch in rows:
                for row in _rows(batch):
                    copy.write_row(row)
                    count += 1
        return count

    def _written(self, text: str) -> sql.Composed:
        composed: sql.Composed = self._sql.SQL(text).format(table=self._table)
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
            self.close()
            raise Unavailable(f"PostgreSQL cannot be reached, or closed the connection: {_first(error)}") from error
        except psycopg.Error as error:
            raise Invalid(f"PostgreSQL refused the copy of {self._source.table!r}: {_first(error)}") from error


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

"""The schema in PostgreSQL: the numbered migrations of SQLite, translated, in a schema of their own.

Migrations keep to what both databases understand (CREATE TABLE, CREATE INDEX, ALTER TABLE ... ADD COLUMN), so that
there is one numbering. What differs is written here: types, the collation of texts, and how rows are laid out. Each
step is one transaction, in which the leader's row is locked: a server that was deposed migrates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from tailrace import failpoints
from tailrace.errors import Corrupt, Invalid, Unavailable
from tailrace.storage import vault
from tailrace.storage.engine import NOT_LEADER
from tailrace.storage.migrations_list import ENCRYPTED_SINCE, migrations, refuse_other

SCHEMA: Final = "tailrace"
ENCODING: Final = "UTF8"
_TYPES: Final = {"INTEGER": "bigint", "BLOB": "bytea", "TEXT": 'text COLLATE "C"'}
_WORD: Final = re.compile(r"\b(INTEGER|BLOB|TEXT)\b")
_STRICT: Final = re.compile(r"\)\s*STRICT(?:, WITHOUT ROWID)?;")
_COMMENT: Final = re.compile(r"--[^\n]*")
_BODIES: Final = ("entries", "staged_entries", "items", "stage_chunks")  # bodies are compressed by who made them
_CHANGING: Final = ("logs", "topic_groups", "topic_partitions", "producers", "counts", "meta")  # updated all the time

# One statement for each round trip of the start, since several servers may start at once.
_CREATE: Final = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.schema_version (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  version bigint NOT NULL
);
INSERT INTO {SCHEMA}.schema_version VALUES (true, 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS {SCHEMA}.leader (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  epoch bigint NOT NULL,              -- grows with each take-over
  batch bigint NOT NULL,              -- the last commit of this epoch
  server text NOT NULL,               -- which process it is
  address text NOT NULL,              -- where that is reached
  pid integer NOT NULL,               -- of its backend
  renewed timestamptz NOT NULL,       -- by the clock of this database
  ttl interval NOT NULL,
  now_ms bigint NOT NULL,             -- the highest time that a leader has used
  asked bigint NOT NULL,              -- the epoch whose leader is asked to step down
  bus text NOT NULL DEFAULT ''        -- where the leader takes commands of other servers
) WITH (fillfactor = 10);
INSERT INTO {SCHEMA}.leader VALUES (true, 0, 0, '', '', 0, '-infinity', '0', 0, 0) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS {SCHEMA}.epochs (
  epoch bigint PRIMARY KEY,
  batches bigint NOT NULL,            -- its last commit
  ended timestamptz NOT NULL
);
"""
_LOCK: Final = 7421  # the class of the advisory locks, here with 0; with an epoch they are the leader's


def prepare(connection: Any) -> None:
    """Create what the lease needs, if it is not there."""
    encoding = connection.execute("SHOW server_encoding").fetchone()[0]
    if encoding != ENCODING:
        raise Invalid(
            f"the PostgreSQL database has the encoding {encoding}, and texts need {ENCODING}; create one with "
            f"CREATE DATABASE name ENCODING '{ENCODING}' TEMPLATE template0"
        )
    if connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.epochs",)).fetchone()[0] is not None:
        _add_bus(connection)
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCK,))
        connection.execute(_CREATE, prepare=False)


def _add_bus(connection: Any) -> None:
    """Add the column that leaders of earlier versions did not have."""
    there = "SELECT 1 FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'bus' AND NOT attisdropped"
    if connection.execute(there, (f"{SCHEMA}.leader",)).fetchone() is None:
        connection.execute(
            f"ALTER TABLE {SCHEMA}.leader ADD COLUMN IF NOT EXISTS bus text NOT NULL DEFAULT ''", prepare=False
        )


def version(connection: Any) -> int | None:
    """The version of the schema; None if there is no database yet."""
    if connection.execute("SELECT to_regclass(%s)", (f"{SCHEMA}.schema_version",)).fetchone()[0] is None:
        return None
    found: int = connection.execute("SELECT version FROM schema_version").fetchone()[0]
    return found


def translate(script: str) -> str:
    """A migration of SQLite's for PostgreSQL."""
    script = _WORD.sub(lambda match: _TYPES[match[1]], _COMMENT.sub("", script))
    return _STRICT.sub(");", script)


def migrate(connection: Any, epoch: int, ttl_s: float, open_vault: Callable[[], vault.Vault]) -> None:
    """Bring the schema to the current version, as the leader of `epoch`."""
    present = version(connection)
    assert present is not None
    steps = migrations()
    if present > len(steps):
        refuse_other(present)
    if present < len(steps):  # a step may take longer than the lease, and keeps it from being renewed
        connection.execute("UPDATE leader SET ttl = interval '1 day' WHERE epoch = %s", (epoch,))
    for number, script in enumerate(steps[present:], start=present + 1):
        with connection.transaction():
            _lock_leader(connection, epoch)
            connection.execute(translate(script), prepare=False)  # several statements
            if number == ENCRYPTED_SINCE:
                vault.encrypt_existing(_marked(connection), open_vault())
            if number == len(steps):
                _lay_out(connection)
            failpoints.hit("migration.step")
            connection.execute("UPDATE schema_version SET version = %s", (number,))
    if present < len(steps):
        connection.execute(
            "UPDATE leader SET ttl = %s * interval '1 s', renewed = clock_timestamp() WHERE epoch = %s", (ttl_s, epoch)
        )


def _lock_leader(connection: Any, epoch: int) -> None:
    """Keep other servers from taking over until the end of the transaction; raises if one has done so already."""
    if connection.execute("SELECT 1 FROM leader WHERE epoch = %s FOR UPDATE", (epoch,)).fetchone() is None:
        raise Unavailable("another server leads the database by now; nothing was changed", code=NOT_LEADER)


def read_check(connection: Any) -> bytes:
    """The row by which a wrong key of the secrets is noticed."""
    row = connection.execute("SELECT value FROM meta WHERE name = %s", (vault.CHECK,)).fetchone()
    if row is None:
        raise Corrupt(f"the row {vault.CHECK!r} of meta is missing; restore a backup")
    return bytes(row[0])


def reencrypt(connection: Any, epoch: int, old: vault.Vault, new: vault.Vault) -> None:
    """Encrypt all secrets with another key, in one transaction, as the leader of `epoch`."""
    with connection.transaction():
        _lock_leader(connection, epoch)
        vault.reencrypt(_marked(connection), old, new)


def integrity(connection: Any) -> list[str]:
    """Findings about the database itself: indexes that PostgreSQL does not use any more."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s AND NOT i.indisvalid",
        (SCHEMA,),
    ).fetchall()
    return [f"the index {name} is invalid; rebuild it with REINDEX INDEX {SCHEMA}.{name}" for (name,) in rows]


def _lay_out(connection: Any) -> None:
    for table in _BODIES:
        connection.execute(f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL")
    for table in _CHANGING:  # room on the page for the next version of a row, which then needs no index entry
        connection.execute(f"ALTER TABLE {table} SET (fillfactor = 50)")


def _marked(connection: Any) -> Callable[..., Any]:
    """Runs statements with the placeholders of SQLite."""

    def execute(statement: str, bound: Any = ()) -> Any:
        return connection.execute(statement.replace("?", "%s"), bound)

    return execute

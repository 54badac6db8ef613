"""Completion in the SQL shell: keywords, and the names in the database.

The words before the cursor determine the kind of name: a topic after CONSUME FROM, a group after GROUP. Names are
fetched by SQL in the background and cached; without them, or without the permission, keywords remain. A completion
never waits.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from tailrace.cli.script import statements
from tailrace.cli.session import StatementResult
from tailrace.cli.text import quoted
from tailrace.errors import Error

STALE_S: Final = 15.0  # names are fetched again when they are older, or when a statement may have changed them
CLOSE_S: Final = 5.0  # how long the last fetch may take when the shell ends
NAMES_MAX: Final = 2_000  # of a kind

OPENINGS: Final = (
    "SELECT", "WITH", "FROM", "VALUES", "INSERT INTO", "INSERT OR REPLACE INTO", "UPDATE", "DELETE FROM",
    "TRUNCATE TABLE",
    "CREATE TABLE", "CREATE TABLE IF NOT EXISTS", "CREATE TOPIC", "CREATE TOPIC IF NOT EXISTS", "CREATE USER",
    "CREATE MATERIALIZED VIEW", "CREATE MATERIALIZED VIEW IF NOT EXISTS",
    "ALTER TABLE", "ALTER TOPIC", "ALTER USER", "ALTER MATERIALIZED VIEW",
    "CREATE INDEX", "DROP INDEX",
    "DROP TABLE", "DROP TABLE IF EXISTS", "DROP TOPIC", "DROP TOPIC IF EXISTS", "DROP USER", "DROP CONSUMER GROUP",
    "DROP MATERIALIZED VIEW", "DROP MATERIALIZED VIEW IF EXISTS", "EXPLAIN", "EXPLAIN MATERIALIZED VIEW",
    "CLEAR TOPIC", "PUBLISH TO", "CONSUME FROM", "ACK", "NACK", "EXTEND", "RESET CONSUMER GROUP",
    "SHOW TOPICS", "SHOW TABLES", "SHOW USERS", "SHOW CONSUMER GROUPS", "SHOW CONSUMER GROUPS ON",
    "SHOW MATERIALIZED VIEWS",
    "DESCRIBE", "DESCRIBE TOPIC", "DESCRIBE TABLE", "BEGIN", "START TRANSACTION", "COMMIT", "ROLLBACK",
)  # fmt: skip
CLAUSES: Final[dict[str, tuple[str, ...]]] = {  # by how a statement begins, what else it may say
    "SELECT": (
        "FROM", "WHERE", "AND", "OR", "NOT", "IN", "IS NULL", "IS NOT NULL", "LIKE", "BETWEEN", "GROUP BY", "HAVING",
        "ORDER BY", "DESC", "ASC", "LIMIT", "OFFSET", "JOIN", "LEFT JOIN", "ON", "AS", "DISTINCT", "UNION ALL",
        "CASE", "WHEN", "THEN", "ELSE", "END", "CAST", "count(*)", "count", "sum", "min", "max", "avg", "coalesce",
        "now()", "SELECT",
    ),
    "INSERT": ("VALUES", "SELECT", "ON CONFLICT", "DO NOTHING", "DO UPDATE SET", "EXCLUDED", "RETURNING"),
    "UPDATE": ("SET", "WHERE", "AND", "OR", "NULL", "TRUE", "FALSE", "RETURNING"),
    "DELETE": ("WHERE", "AND", "OR", "RETURNING"),
    "CREATE TABLE": (
        "TEXT", "BIGINT", "DOUBLE", "DECIMAL", "BOOLEAN", "BLOB", "JSON", "TIMESTAMP", "DATE", "UUID", "PRIMARY KEY",
        "NOT NULL", "DEFAULT", "CHECK (", "CONSTRAINT", "WITH (", "stream", "ttl", "retention_seconds",
        "retention_records",
    ),
    "CREATE TOPIC": (
        "PARTITIONS", "WITH (", "alias", "retention_seconds", "retention_max_bytes", "max_attempts", "dead_letter",
    ),
    "ALTER TOPIC": (
        "ADD SOURCE", "DROP SOURCE", "SET (", "ON INSERT", "ON UPDATE", "ON DELETE", "WHERE", "PARTITION BY (",
        "WITH (payload = 'key')", "WITH (payload = 'full')", "WITH (payload = 'diff')", "AND", "OR", "NOT", "IS NULL",
        "IS NOT NULL", "NEW.", "OLD.", "alias", "retention_seconds", "retention_max_bytes", "max_attempts",
        "dead_letter",
    ),
    "ALTER MATERIALIZED VIEW": ("REFRESH",),
    "ALTER TABLE": ("ENABLE STREAM", "DISABLE STREAM", "WITH ("),
    "CREATE USER": ("PASSWORD", "ROLE user", "ROLE service", "ROLE dba", "ROLE system", "ACCESS ("),
    "ALTER USER": ("PASSWORD", "ROLE user", "ROLE service", "ROLE dba", "ROLE system", "ACCESS (", "ENABLE", "DISABLE"),
    "PUBLISH": ("VALUES (", "KEY", "PARTITION", "PRODUCER", "EPOCH", "SEQUENCE"),
    "CONSUME": (
        "GROUP", "PARTITION", "PARTITION ANY", "FROM EARLIEST", "FROM LATEST", "FROM OFFSET", "LIMIT", "CONSUMER",
        "VISIBILITY",
    ),
    "ACK": ("GROUP", "PARTITION", "CONSUMER", "LEASE", "UPTO OFFSET"),
    "NACK": ("GROUP", "PARTITION", "CONSUMER", "LEASE", "OFFSET", "TO", "DELAY"),
    "EXTEND": ("GROUP", "PARTITION", "CONSUMER", "LEASE", "VISIBILITY"),
    "RESET": ("ON", "PARTITION", "TO EARLIEST", "TO LATEST", "TO OFFSET", "TO TIMESTAMP"),
    "DROP CONSUMER": ("ON",),
}  # fmt: skip
SYSTEM_TABLES: Final = (
    "topics", "topic_routes", "topic_offsets", "topic_groups", "topic_partitions", "streams", "tables", "users",
    "pipelines",
)  # fmt: skip
KEYWORDS: Final = frozenset(
    word
    for phrase in (*OPENINGS, *(each for clauses in CLAUSES.values() for each in clauses))
    for word in re.findall(r"[A-Z]{2,}", phrase)
) | {"FOR", "USING", "INNER", "OUTER", "FULL", "CROSS", "EXCEPT", "INTERSECT", "USER", "KEY", "BY", "INTO", "IF"}

_WORD: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[\w.]+|[^\s\w]""")
_PREFIX: Final = re.compile(r"""['"]?[\w.\-]*$|\\\w*$""")
_CHANGING: Final = frozenset(("CREATE", "ALTER", "DROP", "CONSUME", "RESET"))
_SOURCES: Final = ("changes(", "topic(")

RunStatement = Callable[[str], StatementResult]


class DatabaseNames:
    """The names in a database, as of the last refresh."""

    def __init__(self, run: RunStatement) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._fetched_s: float | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self.topics: list[str] = []
        self.groups: list[str] = []
        self.tables: dict[str, list[str]] = {}  # with their columns
        self.users: list[str] = []
        self.system: dict[str, list[str]] = {f"system.{name}": [] for name in SYSTEM_TABLES}

    def note(self, text: str) -> None:
        """A statement was run: if it may have created or dropped a name, the names are out of date."""
        if text.split(None, 1)[0].upper() in _CHANGING:
            self._fetched_s = None

    def refresh(self) -> None:
        """Fetch again in the background, if the names are old and no fetch is running."""
        if self._fetched_s is not None and time.monotonic() - self._fetched_s < STALE_S:
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._fetched_s = time.monotonic()
                self._thread = threading.Thread(target=self.fetch, name="names", daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for a fetch that is running."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Stop fetching. A database must not be closed during a fetch."""
        self._closed = True
        self.wait(CLOSE_S)

    def fetch(self) -> None:
        """Fetch now. Names that cannot be read stay as they were: the user may lack the permission."""
        for what in (self._fetch_topics, self._fetch_groups, self._fetch_tables, self._fetch_users, self._fetch_system):
            if self._closed:
                return
            try:
                what()
            except Error:
                continue

    def _fetch_topics(self) -> None:
        rows = self._run(f"SELECT name, alias FROM system.topics ORDER BY name LIMIT {NAMES_MAX}").rows
        self.topics = [name for row in rows for name in (row["name"], row["alias"]) if name]

    def _fetch_groups(self) -> None:
        result = self._run(f"SELECT DISTINCT group_id FROM system.topic_groups ORDER BY group_id LIMIT {NAMES_MAX}")
        self.groups = [row["group_id"] for row in result.rows]

    def _fetch_tables(self) -> None:
        rows = self._run(f"SELECT * FROM system.tables ORDER BY name LIMIT {NAMES_MAX}").rows
        self.tables = {row["name"]: columns_of(row) for row in rows}

    def _fetch_users(self) -> None:
        self.users = [row["name"] for row in self._run(f"SELECT name FROM system.users LIMIT {NAMES_MAX}").rows]

    def _fetch_system(self) -> None:
        for name, known in self.system.items():
            if not known and not self._closed:
                self.system[name] = [column for column, _ in self._run(f"SELECT * FROM {name} LIMIT 0").columns]

    @property
    def all_tables(self) -> list[str]:
        return [*self.tables, *self.system]

    def columns(self, text: str) -> list[str]:
        """The columns of all tables that a text names."""
        words = {word.strip("\"'").lower() for word in _WORD.findall(text)}
        found: dict[str, None] = {}
        for name, columns in (*self.tables.items(), *self.system.items()):
            if name.lower() in words:
                found |= dict.fromkeys(columns)
        return list(found)


def columns_of(row: dict[str, Any]) -> list[str]:
    """The columns of a table by its row in system.tables: its key and its declared columns."""
    found = dict.fromkeys(row[part] for part in ("partition_key", "sort_key") if row.get(part))
    try:
        declared = msgspec.json.decode(row.get("columns") or "[]", type=list[dict[str, str]])
    except msgspec.DecodeError:
        declared = []
    return list(found | dict.fromkeys(column["name"] for column in declared))


class SqlCompleter(Completer):
    """Completes statements and the shell's own commands."""

    def __init__(self, names: DatabaseNames, commands: dict[str, str]) -> None:
        self._names = names
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        if before.lstrip().startswith("\\"):
            yield from self._meta(before.lstrip())
            return
        found = statements(before)
        text = found[-1].text if found and not found[-1].ended else ""
        match = _PREFIX.search(before)
        prefix = match.group() if match else ""
        if not text.endswith(prefix):
            return  # in a comment
        if not prefix and not complete_event.completion_requested:
            return  # a menu at every space would be in the way
        known = text[: len(text) - len(prefix)]
        seen: set[str] = set()
        for word, meta in self._words(known, prefix):
            if word not in seen and word.lower() != prefix.lower() and matches(word, prefix):
                seen.add(word)
                yield Completion(_cased(word, prefix), start_position=-len(prefix), display=word, display_meta=meta)

    def _meta(self, before: str) -> Iterator[Completion]:
        name, space, rest = before.partition(" ")
        if not space:
            for command, what in self._commands.items():
                if command.startswith(name):
                    yield Completion(command, start_position=-len(name), display_meta=what)
        elif name in ("\\d", "\\d+"):
            for kind, known in (("table", self._names.all_tables), ("topic", self._names.topics)):
                for each in known:
                    if each.startswith(rest):
                        yield Completion(each, start_position=-len(rest), display_meta=kind)

    def _words(self, known: str, prefix: str) -> Iterator[tuple[str, str]]:
        """Words that may follow `known`, best first, each with its kind."""
        words = [word.upper() for word in _WORD.findall(known)]
        if not words:
            yield from ((opening, "") for opening in OPENINGS)
            return
        names = self._names
        match self._wanted(words):
            case "opening":
                begun = " ".join(words) + " "
                rests = [opening[len(begun) :] for opening in OPENINGS if opening.startswith(begun)]
                yield from ((rest, "") for rest in rests)
                if words == ["DESCRIBE"]:
                    yield from _labelled(map(quoted, names.all_tables), "table")
            case "topic":
                yield from _labelled(map(quoted, names.topics), "topic")
            case "topic text":
                yield from _labelled((quoted(name, "'") for name in names.topics), "topic")
            case "table text":
                yield from _labelled((quoted(name, "'") for name in names.tables), "table")
            case "table":
                yield from _labelled(map(quoted, names.all_tables), "table")
                if words[0] in _QUERIES:
                    yield from _labelled(_SOURCES, "function")
            case "group":
                yield from _labelled((quoted(name, "'") for name in names.groups), "group")
            case "user":
                yield from _labelled(map(quoted, names.users), "user")
            case _:
                columns = names.columns(known if words[0] not in _QUERIES else known + " " + prefix)
                yield from _labelled(map(quoted, columns or _every(names.tables, words)), "column")
                yield from _labelled(_clauses(words), "")

    def _wanted(self, words: list[str]) -> str:
        """The kind of name that follows these words."""
        last, first = words[-1], words[0]
        pair = tuple(words[-2:])
        if pair == ("TOPIC", "(") or pair == ("TOPIC", "'"):
            return "topic text"
        if pair == ("CHANGES", "("):
            return "table text"
        begun = " ".join(words) + " "
        if len(words) < 4 and any(opening.startswith(begun) for opening in OPENINGS) and begun.strip() not in _WHOLE:
            return "opening"
        if last == "TOPIC" or (last == "EXISTS" and words[1:2] == ["TOPIC"]):
            return "topic"
        if (last in ("ACK", "NACK", "EXTEND") and len(words) == 1) or pair in (("CONSUME", "FROM"), ("PUBLISH", "TO")):
            return "topic"
        if last == "ON" and first in ("RESET", "DROP", "SHOW"):
            return "topic"
        if last == "GROUP" and first in ("CONSUME", "ACK", "NACK", "EXTEND", "RESET", "DROP"):
            return "group"
        if last == "USER":
            return "user"
        if last in ("FROM", "JOIN") and first != "CONSUME":
            return "table"
        if last in ("INTO", "TABLE", "SOURCE") or (last == "EXISTS" and words[1:2] == ["TABLE"]) or words == ["UPDATE"]:
            return "table"
        return ""


_QUERIES: Final = ("SELECT", "WITH", "FROM", "VALUES")
_WHOLE: Final = frozenset(("DROP TABLE", "DROP TOPIC", "CREATE TABLE", "CREATE TOPIC", "SHOW CONSUMER GROUPS"))


def _labelled(words: Iterable[str], what: str) -> Iterator[tuple[str, str]]:
    return ((word, what) for word in words)


def _clauses(words: list[str]) -> tuple[str, ...]:
    first = "SELECT" if words[0] in _QUERIES else words[0]
    return CLAUSES.get(" ".join(words[:2])) or CLAUSES.get(first, ())


def _every(tables: dict[str, list[str]], words: list[str]) -> Iterable[str]:
    """In a SELECT without FROM yet, the columns of all tables."""
    if words[0] != "SELECT" or "FROM" in words:
        return ()
    return dict.fromkeys(column for columns in tables.values() for column in columns)


def matches(word: str, prefix: str) -> bool:
    """Whether a word begins with what was typed, in any case and with or without its quote."""
    typed, full = prefix.lower(), word.lower()
    return full.startswith(typed) or full.strip("'\"").startswith(typed)


def _cased(word: str, prefix: str) -> str:
    """A keyword in the case that is typed."""
    if prefix and prefix.islower() and _upper(word):
        return word.lower()
    return word


def _upper(word: str) -> bool:
    """Whether it consists of keywords only."""
    return all(part in KEYWORDS for part in re.findall(r"\w+", word))

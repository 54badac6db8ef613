"""Tables, topics and streams by name in SQL: `spark.sql("SELECT * FROM tailrace.orders")`.

A catalog of Spark's needs a JAR. So the names are global temporary views, in a database that `ts.session` calls
`tailrace`, and the methods `sql` and `table` of the session make the views that a statement names before Spark reads
it: what was created a moment ago is found, with its columns as they are now. A view is of the format "tailrace": it
holds no rows, and reads them when a query runs.

| name | |
|---|---|
| `tailrace.orders` | the rows of a table or view, as of one sequence |
| `tailrace.orders.changes` | its changes |
| `tailrace.events`, `` tailrace.`app/events` `` | a topic, or a stream, if there is no table of that name |
| `tailrace.tables.x`, `tailrace.topics.x`, `tailrace.streams.x` | the same, where a name is taken twice |

A name may have dots itself: `tailrace.app.totals` is the table `app.totals`, and `tailrace.app.totals.changes` its
changes. As many parts as possible are taken as one name on the server, and the others are columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from tailrace.client import Client
from tailrace.errors import Forbidden, Invalid, NotFound
from tailrace.spark.connection import client
from tailrace.spark.options import as_options, server_access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATABASE: Final = "tailrace"
SETTING: Final = "spark.sql.globalTempDatabase"
CHANGES: Final = "changes"
_SERVER: Final = "_tailrace_server"
_KINDS: Final = {"tables": "table", "topics": "topic", "streams": "stream"}
_IDENTIFIER: Final = r"(?:`(?:[^`]|``)+`|[A-Za-z_]\w*)"
# Texts and comments are passed over; of the rest, names that begin with the database.
_TOKENS: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/"""
    rf"|(?<![\w.`])`?{DATABASE}`?\s*\.\s*(?P<name>{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})*)",
    re.I | re.S,
)
_PART: Final = re.compile(_IDENTIFIER)
_UNKNOWN: Final = ("UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY", "TABLE_OR_VIEW_NOT_FOUND")
_SHOW: Final = re.compile(rf"\s*SHOW\s+TABLES\s+(?:IN|FROM)\s+`?{DATABASE}`?\s*;?\s*", re.I)


class TailraceCatalog:
    """The names of one server in a session."""

    def __init__(self, spark: SparkSession, url: str | None, token: str | None) -> None:
        self._spark = spark
        self._access = server_access(url, token)

    def prepared(self, statement: str) -> tuple[str, list[str]]:
        """Make the views that a statement names; the statement with their names, and the names that are unknown."""
        unknown: list[str] = []
        made: dict[tuple[str, ...], bool] = {}

        def is_made(name: str, options: dict[str, str]) -> bool:
            known = name, *options, *options.values()
            if known not in made:
                made[known] = self._make(name, options)
            return made[known]

        def replaced(found: re.Match[str]) -> str:
            if found["name"] is None:
                return found[0]
            parts = [_unquoted(part) for part in _PART.findall(found["name"])]
            refused: Forbidden | None = None
            for used, options in _candidates(parts):
                try:
                    if is_made(".".join(parts[:used]), options):
                        return ".".join([f"`{DATABASE}`", *_quoted([".".join(parts[:used]), *parts[used:]])])
                except Forbidden as error:  # a shorter name may be granted: this one may end in a column
                    refused = error
            if refused is not None:
                raise refused
            unknown.append(".".join(parts))
            return found[0]

        return _TOKENS.sub(replaced, statement), unknown

    def run(self, statement: str, work: Callable[[str], DataFrame]) -> DataFrame:
        """The result of a statement. Spark's error for a name that it does not know speaks of files."""
        prepared, unknown = self.prepared(statement)
        try:
            return work(prepared)
        except Exception as error:
            if not unknown or not any(code in str(error) for code in _UNKNOWN):
                raise
            raise NotFound(
                f"there is no table, topic or stream {unknown[0]!r} at {self._access.url}; SHOW TABLES IN {DATABASE} "
                "lists the tables"
            ) from error

    def _make(self, name: str, options: dict[str, str]) -> bool:
        """Make the view, if there is such a table, topic or stream."""
        if not _exists(client(self._access), options):
            return False
        frame = self._spark.read.format("tailrace").options(**as_options(self._access), **options).load()
        frame.createOrReplaceGlobalTempView(_quoted([name])[0])
        return True

    def names(self) -> list[str]:
        """The tables of the server, views included."""
        found: list[str] = []
        request: dict[str, Any] = {}
        while True:
            page = client(self._access).call("ListTables", request)
            found += page["TableNames"]
            if page.get("LastEvaluatedTableName") is None:
                return found
            request = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}


def _candidates(parts: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """What a name may mean: how many of its parts it takes (others are columns), and the options of the source. The
    longest comes first: a table `app` does not hide the table `app.totals`."""
    if parts[0] in _KINDS:
        yield from _joined(parts, 1, (_KINDS[parts[0]],))
    yield from _joined(parts, 0, tuple(_KINDS.values()))


def _joined(parts: list[str], first: int, kinds: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The names of these kinds that begin with the part `first`, the longest first."""
    for end in range(len(parts), first, -1):
        if "table" in kinds and end - first > 1 and parts[end - 1] == CHANGES:
            yield end, {"table": ".".join(parts[first : end - 1])}
        name = ".".join(parts[first:end])
        for kind in kinds:
            yield end, {kind: name, **({"mode": "items"} if kind == "table" else {})}


def _exists(server: Client, options: dict[str, str]) -> bool:
    try:
        if "table" in options:
            server.call("DescribeTable", {"TableName": options["table"]})
        elif "topic" in options:
            server.logs(topic=options["topic"])
        else:
            server.logs(stream=options["stream"])
    except (NotFound, Invalid):
        return False
    return True


def _unquoted(part: str) -> str:
    return part[1:-1].replace("``", "`") if part[0] == "`" else part


def _quoted(parts: list[str]) -> list[str]:
    return [f"`{part.replace('`', '``')}`" for part in parts]


def install(spark: SparkSession, url: str | None = None, token: str | None = None) -> None:
    """Let `spark.sql` and `spark.table` find the names of a server, if the session has the database for it."""
    if url is not None:
        vars(spark)[_SERVER] = as_options(server_access(url, token))
    if spark.conf.get(SETTING, None) != DATABASE:
        return
    catalog = TailraceCatalog(spark, url, token)
    plain_sql, plain_table = type(spark).sql, type(spark).table

    def sql(statement: str, *args: Any, **kwargs: Any) -> DataFrame:
        if _SHOW.fullmatch(statement):
            rows = [(DATABASE, name, False) for name in catalog.names()]
            return spark.createDataFrame(rows, "namespace string, tableName string, isTemporary boolean")
        return catalog.run(statement, lambda prepared: plain_sql(spark, prepared, *args, **kwargs))

    def table(name: str) -> DataFrame:
        return catalog.run(name, lambda prepared: plain_table(spark, prepared))

    vars(spark).update(sql=sql, table=table)


def named_server(spark: SparkSession) -> dict[str, str]:
    """The options for the server that the session was opened for; none: it was not named."""
    found: dict[str, str] = vars(spark).get(_SERVER, {})
    return found

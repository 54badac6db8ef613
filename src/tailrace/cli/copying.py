"""``\\copy`` in the SQL shell: rows of a query to a file, and rows of a file into a table.

Files are CSV with a header, or JSON lines; the suffix decides, or a word after the file's name. Rows are inserted in
batches, each in a transaction of its own; an error names the line, and how many rows were copied before it.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from decimal import Decimal
from typing import IO, Any, Final, NamedTuple

import msgspec

from tailrace.cli.session import SqlSession
from tailrace.cli.text import csv_lines, json_line, numeric, quoted
from tailrace.errors import Error, Invalid

USAGE: Final = "\\copy {TABLE | (QUERY)} TO FILE [CSV | JSON], or \\copy TABLE FROM FILE [CSV | JSON]"
BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 1024 * 1024

_COPY: Final = re.compile(
    r"""(?P<source> \(.*\) | "(?:[^"]|"")+" | [^\s("]+ ) \s+ (?P<direction> to | from ) \s+
        (?P<file> '(?:[^']|'')+' | \S+ ) (?: \s+ (?:with\s+)? (?P<format> csv | json ) (?:\s+header)? )?""",
    re.X | re.S | re.I,
)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.A)
_BOOLEANS: Final = {"true": "TRUE", "t": "TRUE", "1": "TRUE", "false": "FALSE", "f": "FALSE", "0": "FALSE"}
_decode: Final = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode


class CopyRequest(NamedTuple):
    """What to copy."""

    source: str  # a table, or a query in parentheses
    into_table: bool
    file: str  # - is standard input or output
    format: str


class _CopyRow(NamedTuple):
    """One row of a file: its line, its columns, and its values as SQL with parameters."""

    line: int
    columns: tuple[str, ...]
    values: tuple[str, ...]
    params: tuple[Any, ...]


def parse_copy(text: str) -> CopyRequest:
    """The words after ``\\copy``."""
    match = _COPY.fullmatch(text.strip().rstrip(";").strip())
    if match is None:
        raise Invalid(f"cannot read the command; write {USAGE}")
    file = match["file"]
    file = file[1:-1].replace("''", "'") if file.startswith("'") else file
    into_table = match["direction"].lower() == "from"
    if file.lower() == ("stdin" if into_table else "stdout"):
        file = "-"
    suffix = os.path.splitext(file)[1].lower()
    form = (match["format"] or ("json" if suffix in (".json", ".jsonl", ".ndjson") else "csv")).lower()
    if into_table and match["source"].startswith("("):
        raise Invalid(f"rows can be copied into a table only; write {USAGE}")
    return CopyRequest(match["source"], into_table, os.path.expanduser(file), form)


def copy(session: SqlSession, request: CopyRequest) -> int:
    """Copy; returns the number of rows."""
    try:
        return _copy_in(session, request) if request.into_table else _copy_out(session, request)
    except OSError as error:
        verb = "read" if request.into_table else "write"
        raise Invalid(f"cannot {verb} {request.file!r}: {error.strerror or error}") from None


def _copy_out(session: SqlSession, request: CopyRequest) -> int:
    query = request.source[1:-1] if request.source.startswith("(") else f"SELECT * FROM {_name(request.source)}"
    result = session.run(query)[-1]
    if not result.columns:
        raise Invalid(f"{result.statement} has no rows to copy; write a SELECT")
    with nullcontext(sys.stdout) if request.file == "-" else open(request.file, "w", encoding="utf-8") as out:
        if request.format == "json":
            for row in result.rows:
                out.write(json_line(row).decode())
        else:
            out.write(csv_lines(result.columns, result.rows))
        out.flush()
    return len(result.rows)


def _copy_in(session: SqlSession, request: CopyRequest) -> int:
    table = _name(request.source)
    kinds = {row["column"]: row["type"] for row in session.run(f"DESCRIBE TABLE {table}")[-1].rows}
    copied = 0
    with (
        nullcontext(sys.stdin) if request.file == "-" else open(request.file, encoding="utf-8-sig", newline="") as file
    ):
        rows = _json_rows(file) if request.format == "json" else _csv_rows(file, kinds)
        try:
            for batch in _batches(rows):
                _insert(session, table, batch)
                copied += len(batch)
        except (Error, UnicodeDecodeError) as error:
            raise Invalid(f"{request.file}: {error}; {copied:,} rows were copied before") from error
    return copied


def _insert(session: SqlSession, table: str, batch: list[_CopyRow]) -> None:
    columns = ", ".join(quoted(name) for name in batch[0].columns)
    values = ", ".join(f"({', '.join(row.values)})" for row in batch)
    try:
        session.run(f"INSERT INTO {table} ({columns}) VALUES {values}", [each for row in batch for each in row.params])
    except Error as error:
        lines = f"line {batch[0].line}" if len(batch) == 1 else f"lines {batch[0].line} to {batch[-1].line}"
        message = re.sub(r"^line \d+, column \d+: ", "", str(error)).partition("\n")[0]
        raise Invalid(f"{lines}: {message}", code=error.code) from error


def _batches(rows: Iterable[_CopyRow]) -> Iterator[list[_CopyRow]]:
    """Rows with the same columns, as many as fit into one statement."""
    batch: list[_CopyRow] = []
    size = 0
    for row in rows:
        length = sum(map(len, row.values)) + sum(len(each) for each in row.params)
        if batch and (row.columns != batch[0].columns or len(batch) == BATCH_ROWS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _csv_rows(file: IO[str], kinds: dict[str, str]) -> Iterator[_CopyRow]:
    reader = csv.reader(file, strict=True)
    try:
        columns = tuple(next(reader, ()))
        for values in reader:
            if values:
                if len(values) != len(columns):
                    raise Invalid(f"line {reader.line_num}: {len(values)} values for {len(columns)} columns")
                yield _row(
                    reader.line_num,
                    columns,
                    [
                        _typed(reader.line_num, name, text, kinds.get(name, "TEXT"))
                        for name, text in zip(columns, values, strict=True)
                    ],
                )
    except csv.Error as error:
        raise Invalid(f"line {reader.line_num}: {error}") from None


def _typed(line: int, column: str, text: str, kind: str) -> Any:
    """A field of CSV as a value of its column's type; an empty one is NULL."""
    if not text:
        return None
    if numeric(kind):
        if not _NUMBER.fullmatch(text):
            raise Invalid(f"line {line}: {text[:40]!r} is not a number, which {column} ({kind}) needs")
        return Decimal(text)
    if kind == "BOOLEAN":
        if text.lower() not in _BOOLEANS:
            raise Invalid(f"line {line}: {text[:40]!r} is neither true nor false, which {column} needs")
        return _BOOLEANS[text.lower()] == "TRUE"
    if kind == "BLOB":
        return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()
    return text


def _json_rows(file: IO[str]) -> Iterator[_CopyRow]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            try:
                item = _decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise Invalid(f"line {number}: not a JSON object: {error}") from None
            yield _row(number, tuple(item), list(item.values()))


def _row(line: int, columns: tuple[str, ...], values: list[Any]) -> _CopyRow:
    texts, params = [], []
    for value in values:
        if value is None:
            texts.append("NULL")
        elif isinstance(value, bool):
            texts.append("TRUE" if value else "FALSE")
        elif isinstance(value, int | Decimal):
            texts.append(str(value))
        else:
            texts.append("?")
            params.append(value if isinstance(value, str | bytes) else msgspec.json.encode(value).decode())
    return _CopyRow(line, columns, tuple(texts), tuple(params))


def _name(text: str) -> str:
    return text if text.startswith('"') else quoted(text)

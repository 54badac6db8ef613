"""Values as text, for people and for programs.

Rows and messages are data: control characters in them are escaped, so that they cannot move the cursor or change
colours.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

_NUMERIC: Final = re.compile(
    r"(?:U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|DOUBLE|FLOAT|REAL|DECIMAL|NUMERIC|NUMBER)\b", re.I
)
_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode

Columns: TypeAlias = Sequence[tuple[str, str]]  # names and SQL types
Rows: TypeAlias = Sequence[dict[str, Any]]


# -- for people


def numeric(kind: str) -> bool:
    """Whether values of this SQL type are numbers, which are right-aligned."""
    return _NUMERIC.match(kind) is not None and not kind.endswith("[]")


def plain(value: Any, kind: str = "") -> str:
    """A value as text: bytes as text where they are text, documents as JSON, NULL as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return bytes_text(value)
    if isinstance(value, dict | list):
        return _encode(value).decode()
    if kind == "BLOB" and isinstance(value, str):
        try:
            return bytes_text(b64decode(value, validate=True))
        except (NotBase64, ValueError):
            return value
    return str(value)


def bytes_text(value: bytes) -> str:
    """Bytes as text if they are text, else in hexadecimal."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"
    return text if all(each.isprintable() or each in "\n\t\r" for each in text) else f"\\x{value.hex()}"


def safe(text: str, *, lines: bool = False) -> str:
    """The text with control characters escaped; with `lines`, a newline stays one."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or (lines and each == "\n") else _SPELT.get(each) or ascii(each)[1:-1]
        for each in text
    )


_SPELT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def moment(at_ms: int) -> str:
    """A time in UTC, as text."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")


def quoted(name: str, quote: str = '"') -> str:
    """A name as it is written in a statement."""
    return name if quote == '"' and _NAME.fullmatch(name) else quote + name.replace(quote, quote * 2) + quote


# -- for programs


def json_line(value: Any) -> bytes:
    """One JSON value and a newline; numbers keep their digits."""
    return _encode(value) + b"\n"


def csv_lines(columns: Columns, rows: Rows) -> str:
    """The names and the rows as CSV; NULL is an empty field."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    writer.writerow([name for name, _ in columns])
    for row in rows:
        writer.writerow([plain(row.get(name), kind) for name, kind in columns])
    return out.getvalue()

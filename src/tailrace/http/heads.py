"""Recognises heads that repeat earlier ones, so that they are not parsed again.

A client sends the same header fields with every request of a connection, up to the value of Content-Length, and the
same few request lines. Of the last head that the parser accepted on a connection, the fields are kept as bytes with
what the parser made of them (`Fields`); request lines are kept for all connections of a server (`RequestLines`). The
rule: a request is recognised only if line and fields equal, byte for byte, ones that the parser has accepted, and if it
has arrived whole; everything else goes to the parser.

Line and fields may be combined freely because only plain ones are kept: HTTP/1.1, a path without a query, no other
protocol asked for, no body in chunks, no expectation, and a connection that stays open.
"""

from __future__ import annotations

from typing import Final

FIELDS_BYTES_MAX: Final = 2_048
LINE_BYTES_MAX: Final = 256
LINES_MAX: Final = 4_096  # so these take a few MiB at most
HEAD_BYTES_MAX: Final = FIELDS_BYTES_MAX + LINE_BYTES_MAX

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
_NOT_PLAIN: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))

RequestLines = dict[bytes, tuple[bytes, bytes]]  # the line -> method and path


class Fields:
    """The header fields of a request: the bytes before and after the value of Content-Length, from the end of the
    request line to the end of the head. Without that field, `after` is empty."""

    __slots__ = ("after", "before", "digits", "headers", "length")

    def __init__(self, before: bytes, digits: bytes, after: bytes, headers: dict[bytes, bytes]) -> None:
        self.before = before
        self.digits = digits  # the value of Content-Length
        self.after = after
        self.length = int(digits or b"0")
        self.headers = headers  # shared by the requests that have them, which only read them

    def resize(self, digits: bytes, length: int) -> None:
        """The same fields with another Content-Length."""
        self.headers = {**self.headers, b"content-length": digits}
        self.digits = digits
        self.length = length


def learn(data: bytes, method: bytes, target: bytes, headers: dict[bytes, bytes], lines: RequestLines) -> Fields | None:
    """The fields of the accepted HTTP/1.1 request that `data` begins with, if it is plain; its line is kept too."""
    end = data.find(_END)
    line_end = data.find(b"\r\n")
    line = b"%b %b HTTP/1.1" % (method, target)
    if end - line_end > FIELDS_BYTES_MAX or line_end > LINE_BYTES_MAX or data[:line_end] != line:
        return None
    if not target.startswith(b"/") or b"?" in target:
        return None
    fields = data[line_end : end + len(_END)]
    # One line for each field, so that the parser, too, has seen the end of the head there.
    count = len(headers) + 2
    if fields.count(b"\r") != count or fields.count(b"\n") != count or not _NOT_PLAIN.isdisjoint(headers):
        return None
    if line not in lines:
        if len(lines) >= LINES_MAX:
            del lines[next(iter(lines))]
        lines[line] = (method, target)
    digits = headers.get(b"content-length")
    if digits is None:
        return Fields(fields, b"", b"", headers)
    at = fields.lower().find(_LENGTH) + len(_LENGTH)
    at += len(fields) - at - len(fields[at:].lstrip(b" \t"))
    rest = at + len(digits)
    if fields[at:rest] != digits or fields[rest : rest + 1] != b"\r":
        return None
    return Fields(fields[:at], digits, fields[rest:], headers)

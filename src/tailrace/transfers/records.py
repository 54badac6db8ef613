"""The records of a file that is imported: lines of JSON, or records of CSV; never more of it in memory than one record.

A record that is longer than any item can be is skipped and reported, not collected.
"""

from __future__ import annotations

import base64
import csv
import zlib
from collections.abc import Iterator
from typing import IO, Any, Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.limits import KiB, MiB
from tailrace.tables import key as keys
from tailrace.tables import value
from tailrace.tables.commands import PutItem
from tailrace.tables.definition import Definition
from tailrace.transfers.buckets import BucketError

_READ_BYTES: Final = 256 * KiB
_INFLATE_BYTES: Final = 1 * MiB  # that one call may produce, so that a small file cannot fill the memory
_GZIP: Final = 31  # zlib's number for it
_decode: Final = msgspec.json.Decoder().decode

csv.field_size_limit(limits.IMPORT_RECORD_BYTES_MAX)


def chunks(stream: IO[bytes], gzip: bool, name: str) -> Iterator[bytes]:
    """The content of a file, decompressed."""
    if not gzip:
        while data := stream.read(_READ_BYTES):
            yield data
        return
    inflater, ended = zlib.decompressobj(_GZIP), True
    while data := stream.read(_READ_BYTES):
        try:
            while data:
                if ended and inflater.eof:
                    inflater = zlib.decompressobj(_GZIP)  # a file may consist of several members
                ended = False
                out = inflater.decompress(data, _INFLATE_BYTES)
                if out:
                    yield out
                data = inflater.unconsumed_tail
                if inflater.eof:
                    data, ended = inflater.unused_data, True
        except zlib.error as error:
            raise BucketError("InvalidCompression", f"{name!r} is not compressed with gzip: {error}") from error
    if not ended:
        raise BucketError("InvalidCompression", f"{name!r} ends within its compressed data")


def lines(source: Iterator[bytes], *, quoted: bool) -> Iterator[bytes | None]:
    """The lines of a text, without their ends; None: one that is too long. `quoted`: a quote hides the end of a line,
    as in CSV."""
    most = limits.IMPORT_RECORD_BYTES_MAX
    held: list[bytes] = []
    size, quotes, skipping = 0, 0, False
    for data in source:
        begin = 0
        while (end := data.find(b"\n", begin)) >= 0:
            piece = data[begin:end]
            begin = end + 1
            quotes += piece.count(b'"') if quoted else 0
            size += len(piece) + 1
            if not skipping and size <= most:
                held.append(piece)
                if quotes % 2:
                    held.append(b"\n")
                    continue
            line = None if skipping or size > most else b"".join(held).removesuffix(b"\r")
            held, size, quotes, skipping = [], 0, 0, False
            yield line
        rest = data[begin:]
        quotes += rest.count(b'"') if quoted else 0
        size += len(rest)
        if size > most:
            held, skipping = [], True
        elif not skipping:
            held.append(rest)
    if skipping:
        yield None
    elif last := b"".join(held).removesuffix(b"\r"):
        yield last


# -- items


class ItemReader:
    """Makes items of the records of one file. `header`: the names of the columns of CSV, None until they are known."""

    def __init__(self, definition: Definition, delimiter: str | None, header: tuple[str, ...] | None) -> None:
        self._definition = definition
        self._delimiter = delimiter  # None: lines of JSON
        self._header = header

    @property
    def wants_header(self) -> bool:
        return self._delimiter is not None and self._header is None

    def take_header(self, record: bytes | None) -> None:
        """The first record of a file of CSV."""
        names = [] if record is None else self._fields(record)
        if not names or len(set(names)) != len(names) or "" in names:
            raise BucketError("InvalidCsvHeader", "the first record of a file is not a list of distinct column names")
        self._header = tuple(names)

    def item(self, record: bytes | None) -> tuple[bytes, int, bytes]:
        """The key, size and stored bytes of an item; raises `Invalid`."""
        if record is None:
            raise Invalid(f"a record has more than {limits.IMPORT_RECORD_BYTES_MAX} bytes")
        raw = self._json(record) if self._delimiter is None else self._csv(record)
        item, size = value.read_item(raw)
        definition = self._definition
        key = PutItem(definition.name, item, size).stored_key(definition)
        for index in definition.indexes:
            keys.index_key(definition, index, item, key)
        return key, size, value.encode(item)

    def _json(self, record: bytes) -> dict[str, Any]:
        try:
            decoded = _decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"a line is not JSON: {str(error)[:200]}") from error
        item = decoded.get("Item") if isinstance(decoded, dict) else None
        if not isinstance(item, dict):
            raise Invalid('a line is not {"Item": {...}}')
        return item

    def _csv(self, record: bytes) -> dict[str, Any]:
        assert self._header is not None
        fields = self._fields(record)
        if len(fields) > len(self._header):
            raise Invalid(f"a record has {len(fields)} fields, and the header {len(self._header)}")
        kinds = self._definition.kinds
        item: dict[str, Any] = {}
        for name, text in zip(self._header, fields, strict=False):
            kind = kinds.get(name, "S")
            if kind == "B":
                try:
                    base64.b64decode(text, validate=True)
                except ValueError as error:
                    raise Invalid(f"the column {name!r} is not base64") from error
            item[name] = {kind: text}
        return item

    def _fields(self, record: bytes) -> list[str]:
        try:
            text = record.decode("utf-8-sig")
            rows = list(csv.reader([text], delimiter=self._delimiter or ",", strict=True))
        except (UnicodeDecodeError, csv.Error) as error:
            raise Invalid(f"a record is not CSV: {error}") from error
        return rows[0] if rows else []

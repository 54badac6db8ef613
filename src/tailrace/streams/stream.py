"""Streams and their rules. Pure: no transaction, no clock.

A stream is a log with a path, a content type and a lifecycle: it may be closed (no more appends), expire (idle for its
TTL, or at a fixed time), be trimmed (retention), and be deleted; softly, while forks still read from it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from tailrace import limits
from tailrace.errors import Invalid
from tailrace.storage.table import StorageTable

DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
JSON_TYPE: Final = "application/json"
OWNER: Final = "stream/"  # the prefix of the owner of a stream's log
RESERVED: Final = "__ds"  # the first path segment that belongs to the protocol

_CONTENT_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+\s*(;[\x20-\x7e]*)?", re.ASCII)


class StreamRow(msgspec.Struct, frozen=True, gc=False):
    path: str
    log: int
    content_type: str
    created_ms: int
    ttl_s: int | None  # sliding: each read or write moves expires_ms
    expires_ms: int | None
    expires_text: str | None  # an absolute expiry as the client wrote it
    deadline_ms: int | None  # when expiry is checked next; the key of its Deadline
    closed: int
    seq: str | None  # the last Stream-Seq
    forked_from: str | None
    fork_position: int | None
    fork_sub: int | None
    max_age_s: int | None
    max_bytes: int | None
    deleted: int  # 1: deleted softly; the path is blocked until the last fork is gone


class Deadline(msgspec.Struct, frozen=True):
    """When to check whether a stream has expired. A touch does not move it: the check is repeated later."""

    at_ms: int
    path: str


class Retained(msgspec.Struct, frozen=True):
    """A stream that has a retention rule."""

    path: str


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The result of an append."""

    tail: int
    closed: bool
    duplicate: bool = False
    sequence: int | None = None  # the producer's highest accepted


STREAMS = StorageTable("streams", StreamRow, key=("path",), cached=True)
DEADLINES = StorageTable("deadlines", Deadline, key=("at_ms", "path"))
RETAINED = StorageTable("retained", Retained, key=("path",))


def check_path(path: str) -> str:
    """Return the path if it is valid for a stream; raise `Invalid` otherwise."""
    if not path:
        raise Invalid("the stream's path is empty; name the stream after /v1/stream/", code="INVALID_PATH")
    if len(path.encode()) > limits.PATH_BYTES_MAX:
        raise Invalid(f"the stream's path is longer than {limits.PATH_BYTES_MAX} bytes", code="INVALID_PATH")
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        raise Invalid(f"path {path[:80]!r} has an empty, '.' or '..' segment; leave it out", code="INVALID_PATH")
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in path):
        raise Invalid("the stream's path has a control character; leave it out", code="INVALID_PATH")
    if path == RESERVED or path.startswith(RESERVED + "/"):
        raise Invalid(f"paths under {RESERVED}/ are reserved; choose another first segment", code="INVALID_PATH")
    return path


def check_content_type(text: str) -> str:
    text = text.strip()
    if len(text) > limits.CONTENT_TYPE_BYTES_MAX or not _CONTENT_TYPE.fullmatch(text):
        raise Invalid(
            f"Content-Type {text[:80]!r} is not a media type; use one like text/plain or application/json",
            code="INVALID_CONTENT_TYPE",
        )
    return text


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """The type and subtype of a content type, without parameters and in lower case: two content types must agree in
    these."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return media_type(content_type) == JSON_TYPE


def is_text(content_type: str) -> bool:
    """Whether the bytes can be sent in an event stream unencoded."""
    return media_type(content_type).startswith("text/") or is_json(content_type)


def expired(stream: StreamRow, settled_ms: int) -> bool:
    """Whether it has expired, by the confirmed time: deletion cannot be undone."""
    return stream.expires_ms is not None and settled_ms >= stream.expires_ms


def touched(stream: StreamRow, now_ms: int) -> StreamRow:
    """The stream after a read or write at `now_ms`: its TTL, if it has one, is renewed."""
    if stream.ttl_s is None:
        return stream
    return msgspec.structs.replace(stream, expires_ms=now_ms + stream.ttl_s * 1000)


def touch_due(stream: StreamRow, now_ms: int) -> bool:
    """Whether a read should renew the TTL. Not every read does: less than a twentieth of the TTL (5 s at most) is not
    worth a write."""
    if stream.ttl_s is None or stream.expires_ms is None:
        return False
    elapsed_ms = stream.ttl_s * 1000 - (stream.expires_ms - now_ms)
    return elapsed_ms >= min(stream.ttl_s * 50, 5_000)

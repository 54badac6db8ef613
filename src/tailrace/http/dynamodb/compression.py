"""Compression with gzip and deflate: of requests, within limits, and of responses, as Accept-Encoding prefers."""

from __future__ import annotations

import re
import zlib
from typing import Final

from tailrace.errors import TooLarge
from tailrace.limits import BODY_BYTES_MAX, KiB

GZIP_MEMBERS_MAX: Final = 1_024  # usually a body has one
_INFLATED_AT_ONCE: Final = 16 * KiB  # zlib copies the input after a member's end: at most this much
_quality: Final = re.compile(r"q=\s*([0-9.-]+)\s*(?:;|$)").search


class CannotInflate(Exception):
    """The body does not match its content-encoding."""


def inflated(body: bytes, coding: bytes) -> bytes:
    """The decompressed body of a request, up to the size limit of bodies."""
    name = coding.strip().lower()
    if name == b"identity":
        return body
    if name not in (b"gzip", b"deflate"):
        raise CannotInflate
    parts: list[bytes] = []
    view = memoryview(body)
    at, members, room = 0, 0, BODY_BYTES_MAX
    while at < len(view) or not members:  # gzip may have several members, one after the other
        members += 1
        if members > (GZIP_MEMBERS_MAX if name == b"gzip" else 1):
            raise CannotInflate
        inflating = zlib.decompressobj(31 if name == b"gzip" else 15)
        while not inflating.eof:
            piece = view[at : at + _INFLATED_AT_ONCE]
            if not piece:
                raise CannotInflate
            try:
                part = inflating.decompress(piece, room + 1)
            except zlib.error as error:
                raise CannotInflate from error
            room -= len(part)
            if room < 0:
                raise TooLarge("the decompressed request is too large; send less at a time")
            parts.append(part)
            at += len(piece) - len(inflating.unused_data)
    return b"".join(parts)


def deflated(body: bytes, coding: str) -> bytes:
    """A compressed response."""
    deflating = zlib.compressobj(6, zlib.DEFLATED, 31 if coding == "gzip" else 15)
    return deflating.compress(body) + deflating.flush()


def preferred(accepted: str) -> str | None:
    """The coding, gzip or deflate, that an Accept-Encoding header prefers; the first of two with equal quality."""
    named: dict[str, float] = {}
    rest = 0.0
    for entry in accepted.lower().split(","):
        coding, _, parameters = entry.partition(";")
        coding = coding.strip()
        quality = _read_quality(parameters)
        if coding == "*":
            rest = max(rest, quality)
        elif coding in ("gzip", "deflate"):
            named[coding] = max(named.get(coding, 0.0), quality)
    for coding in ("gzip", "deflate"):
        named.setdefault(coding, rest)
    best = max(named, key=named.__getitem__)
    return best if named[best] > 0 else None


def _read_quality(parameters: str) -> float:
    quality = _quality(parameters)
    if quality is None:
        return 1.0
    try:
        return min(float(quality[1]), 1.0)
    except ValueError:
        return 1.0

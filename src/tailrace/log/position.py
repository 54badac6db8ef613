"""Positions and their wire form.

A position is an integer in a log. On the wire it is an opaque offset, ``%016d_%016d``, that sorts as text like the
position does. The sentinels ``-1`` (the beginning) and ``now`` (the tail) are accepted where a reader starts, and are
never emitted.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.errors import Invalid
from tailrace.limits import POSITION_MAX

BEGINNING: Final = "-1"
NOW: Final = "now"

_FORM: Final = re.compile(r"0{16}_([0-9]{16})", re.ASCII)


def offset(position: int) -> str:
    return f"0000000000000000_{position:016d}"


def parse(text: str) -> int:
    """The position of an offset that this server returned."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Invalid(
            f"offset {text[:80]!r} is malformed; use one that the server returned in Stream-Next-Offset, "
            f"{BEGINNING!r} for the beginning or {NOW!r} for the tail",
            code="INVALID_OFFSET",
        )
    position = int(match[1])
    assert position <= POSITION_MAX
    return position

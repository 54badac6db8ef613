"""Cursors keep a cache in front of live readers from serving the same empty response for ever.

Time is cut into intervals of 20 s; a cursor is the number of the current one. A client that comes back with that number
or a later one gets a number strictly beyond its own, so cursors never go back and never repeat for one client. A cursor
that was issued is always accepted again: a number beyond `CURSOR_MAX` is neither issued nor accepted.
"""

from __future__ import annotations

import random
from typing import Final

INTERVAL_S: Final = 20
JITTER_S_MAX: Final = 3600
# What JavaScript counts exactly. Only a client that makes its cursors up comes near it, and there they stand still.
CURSOR_MAX: Final = 2**53 - 1
_DIGITS_MAX: Final = len(str(CURSOR_MAX))
_EPOCH_MS: Final = 1_728_432_000_000  # 9 October 2024, 00:00 UTC


def current(now_ms: int) -> int:
    return max(0, (now_ms - _EPOCH_MS) // (INTERVAL_S * 1000))


def following(now_ms: int, client: str | None) -> int:
    """The cursor for the response to a client that sent `client`; anything but a number is ignored."""
    now = current(now_ms)
    if client is None or not client.isascii() or not client.isdigit() or len(client) > _DIGITS_MAX:
        return now
    seen = int(client)
    if seen < now or seen > CURSOR_MAX:
        return now
    return min(seen + random.randint(1, JITTER_S_MAX // INTERVAL_S), CURSOR_MAX)

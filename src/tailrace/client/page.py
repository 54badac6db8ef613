"""Pages of what is read, and following them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from tailrace.errors import TooMany, Unavailable


class Page(msgspec.Struct, frozen=True):
    """One answer to a read."""

    body: bytes
    content_type: str
    next: str
    up_to_date: bool
    closed: bool


def followed(read: Callable[[str, bool], Page], offset: str) -> Iterator[Page]:
    """Pages with data, read one after the other; `read` takes an offset and whether to wait."""
    wait = reached = False
    delay_s = 0.1
    while True:
        try:
            page = read(offset, wait or offset == "now")
            delay_s = 0.1
            reached = True
        except (Unavailable, TooMany):
            if not reached:
                raise
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 5.0)
            continue
        if page.body and page.body != b"[]":
            yield page
        if page.closed:
            return
        offset, wait = page.next, page.up_to_date

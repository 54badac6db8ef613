"""The notice that a transaction leaves for waiters. Apart from `engine.py`: that is compiled, and structs cannot be."""

from __future__ import annotations

from typing import Any

import msgspec


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A notice for waiters once the commit is durable: `item` happened in `log`."""

    log: int
    item: Any

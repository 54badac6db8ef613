"""Tailrace: one ordered, durable log with several front doors.

What it gives is imported when it is first asked for: importing a part, as a client or the command line do, does not
import the database.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace import errors as errors

if TYPE_CHECKING:
    from tailrace.database import Database, open
    from tailrace.embedded import (
        AsyncTable,
        Change,
        Check,
        Consumer,
        Delete,
        Get,
        Index,
        Message,
        Outgoing,
        Producer,
        Put,
        Table,
        Update,
        begins_with,
        between,
        eq,
        ge,
        gt,
        le,
        lt,
    )

__all__ = [
    "AsyncTable",
    "Change",
    "Check",
    "Consumer",
    "Database",
    "Delete",
    "Get",
    "Index",
    "Message",
    "Outgoing",
    "Producer",
    "Put",
    "Table",
    "Update",
    "begins_with",
    "between",
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "open",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "tailrace.database" if name in ("Database", "open") else "tailrace.embedded"
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

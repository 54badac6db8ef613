"""Tailrace: one ordered, durable log behind several APIs.

Its names are imported on first use: importing a part, as a client or the command line do, does not
import the database.
"""

from typing import TYPE_CHECKING

from tailrace import errors as errors
from tailrace import lazy

if TYPE_CHECKING:
    from tailrace.database import Database, open
    from tailrace.embedded import (
        AsyncConsumer,
        AsyncProducer,
        AsyncStream,
        AsyncTable,
        AsyncTransaction,
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
        Stream,
        Table,
        Transaction,
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
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncStream",
    "AsyncTable",
    "AsyncTransaction",
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
    "Stream",
    "Table",
    "Transaction",
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
__version__ = "0.2.0"
_OWN = {"Database": "tailrace.database", "open": "tailrace.database"}
__getattr__, __dir__ = lazy.names(__name__, {name: _OWN.get(name, "tailrace.embedded") for name in __all__})

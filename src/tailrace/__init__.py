"""Tailrace: one ordered, durable log with several front doors."""

from tailrace.database import Database, open
from tailrace.embedded import (
    AsyncTable,
    Change,
    Check,
    Delete,
    Get,
    Index,
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
    "Database",
    "Delete",
    "Get",
    "Index",
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

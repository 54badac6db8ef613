"""Tailrace: one ordered, durable log with several front doors."""

from tailrace.database import Database, open

__all__ = ["Database", "open"]
__version__ = "0.1.0"

"""The optional parts of Tailrace, and the packages that each of them needs.

Streams, tables, topics and the statements of SQL other than SELECT need no extra. A feature of an extra checks for its
packages where they are first imported.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple

from tailrace.errors import ExtraMissing


class Extra(NamedTuple):
    """A feature, and the top-level modules that it imports."""

    feature: str
    modules: tuple[str, ...]


EXTRAS: Final = {
    "sql": Extra("SELECT", ("duckdb", "pyarrow")),
    "postgres": Extra("a database in PostgreSQL", ("psycopg",)),
    "cold": Extra("cold storage, backup, a bulk read or a bulk write", ("deltalake", "pyarrow")),
}


def require(name: str) -> None:
    """Raise an error with the command that installs the extra, unless its packages are installed."""
    extra = EXTRAS[name]
    missing = [module for module in extra.modules if find_spec(module) is None]
    if missing:
        raise ExtraMissing(
            f"{extra.feature} needs {' and '.join(missing)}, which the extra {name!r} installs: "
            f"pip install 'tailrace[{name}]', or pip install '.[{name}]' in a checkout"
        )

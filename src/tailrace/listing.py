"""Pages of named rows: those that a principal may see, in order of name, with a bounded amount of work for each page.

A page that examined LISTING_EXAMINED rows ends, however few of them it has kept: the reader continues after `next`.
Rows outside of the principal's grants are not examined at all: the grants are prefixes of names, so a page goes from
one range of names to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from tailrace import limits
from tailrace.access import Access
from tailrace.errors import Invalid
from tailrace.storage.engine import Reader
from tailrace.storage.table import StorageTable

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class NamedPage(msgspec.Struct, Generic[T], frozen=True):
    """Some rows, and the name after which the next page begins; None: there are no more."""

    rows: list[T]
    next: str | None


class NameFilter(msgspec.Struct, frozen=True):
    """Which names are wanted: those that begin with `prefix` and contain `search` in any case, `after` one of them, and
    within a grant (None: all)."""

    prefix: str = ""
    search: str = ""
    after: str | None = None
    limit: int = 100
    access: Access | None = None

    def subjects(self) -> tuple[str, ...]:
        """The subjects of a query with this filter: what it was granted, and nothing else."""
        return () if self.access is None else self.access.patterns


def page(
    reader: Reader,
    table: StorageTable[Any],
    kind: str,
    wanted: NameFilter,
    make: Callable[[Any], T | None],
) -> NamedPage[T]:
    """The next rows, each by `make`, which returns None for a row that is not shown. The table's key is the name."""
    if not 1 <= wanted.limit <= limits.LISTING_MAX:
        raise Invalid(f"limit is 1 to {limits.LISTING_MAX}, not {wanted.limit}", code="INVALID_LIMIT")
    found: list[T] = []
    search, last = wanted.search.casefold(), None
    for examined, (name, row) in enumerate(_rows(reader, table, kind, wanted)):
        if len(found) >= wanted.limit or examined >= limits.LISTING_EXAMINED:
            return NamedPage(found, last)
        last = name
        if search in name.casefold() and (made := make(row)) is not None:
            found.append(made)
    return NamedPage(found, None)


def _rows(
    reader: Reader, table: StorageTable[Any], kind: str, wanted: NameFilter
) -> Iterator[tuple[str, msgspec.Struct]]:
    column = table.key[0]
    for text, exact in _ranges(kind, wanted):
        if wanted.after is not None and wanted.after >= text and (exact or not wanted.after.startswith(text)):
            continue  # this range is before it
        if exact:
            row = reader.get(table, text)
            if row is not None:
                yield text, row
            continue
        after = wanted.after if wanted.after is not None and wanted.after >= text else None
        while True:
            # In small pages: `make` reads other rows meanwhile.
            start = text if after is None else None
            rows = list(reader.scan(table, start=start, after=after, limit=limits.SLICE_ENTRIES))
            for row in rows:
                name = getattr(row, column)
                if not name.startswith(text):
                    rows = []
                    break
                yield name, row
            if len(rows) < limits.SLICE_ENTRIES:
                break
            after = getattr(rows[-1], column)


def _ranges(kind: str, wanted: NameFilter) -> list[tuple[str, bool]]:
    """The wanted names in order: each a name (True), or the prefix of names; none of them within another."""
    if wanted.access is None:
        return [(wanted.prefix, False)]
    found: set[tuple[str, bool]] = set()
    for pattern in wanted.access.patterns:
        granted, _, name = pattern.partition("/")
        if granted != kind:
            continue
        text = name.removesuffix("*")
        if not name.endswith("*"):
            if text.startswith(wanted.prefix):
                found.add((text, True))
        elif text.startswith(wanted.prefix):
            found.add((text, False))
        elif wanted.prefix.startswith(text):
            found.add((wanted.prefix, False))
    prefixes = sorted(text for text, exact in found if not exact)
    kept: list[tuple[str, bool]] = []
    for text, exact in sorted(found):
        wider = any(text.startswith(prefix) and (exact or prefix != text) for prefix in prefixes)
        if not wider:
            kept.append((text, exact))
    return kept

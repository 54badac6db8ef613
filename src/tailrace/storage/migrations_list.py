"""The numbered migrations, which are the same for every engine."""

from __future__ import annotations

from importlib import resources
from typing import Final

from tailrace.errors import Invalid

ENCRYPTED_SINCE: Final = 6  # the migration that encrypts what was in clear text


def migrations() -> list[str]:
    """The numbered steps from nothing to the current schema."""
    folder = resources.files("tailrace.storage") / "migrations"
    names = sorted(path.name for path in folder.iterdir() if path.name[:4].isdigit())
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1)), f"migrations have a gap: {names}"
    return [(folder / name).read_text() for name in names]


def refuse_other(version: int) -> None:
    """Raise `Invalid` unless a schema of this version is the current one."""
    known = len(migrations())
    if version > known:
        raise Invalid(
            f"the database has schema version {version}, this Tailrace supports up to {known}; upgrade to open it",
            code="DATABASE_TOO_NEW",
        )
    if version < known:
        raise Invalid(
            f"the database has schema version {version}, this Tailrace needs {known}; "
            f"open it once for writing (tailrace serve) to migrate it",
            code="DATABASE_TOO_OLD",
        )

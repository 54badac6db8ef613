"""Backups of a whole database, cold storage included.

Theory of operation
-------------------
A target holds *objects* and *generations*. An object is a chunk of a file, named by the hash of its content; it never
changes, and a chunk that exists already is not stored again. A generation is a manifest, the list of files with their
chunks (`manifest.py`); it is written last, when all its objects are durable. An interrupted backup leaves no
generation, and the next one reuses its objects.

The database is copied first, at one moment (`SqliteEngine.copy_to`). The copy refers to one generation of each Delta
table in cold storage, and exactly the files of that version follow (`cold_files.py`): a later version could have
entries that the copy does not know, whose positions it would assign again. The files are immutable, and replaced files
are kept for a day at least.

The manifest names the kind of each file (database, cold storage, key) and the engine of the database. Only the call
that makes the copy depends on SQLite.
"""

from __future__ import annotations

from tailrace import extras

extras.require("cold")

from tailrace.backup.making import BackupResult, back_up, open_source  # noqa: E402
from tailrace.backup.manifest import BackupFile, Manifest  # noqa: E402
from tailrace.backup.restoring import RestoreResult, generations, restore  # noqa: E402

__all__ = [
    "BackupFile",
    "BackupResult",
    "Manifest",
    "RestoreResult",
    "back_up",
    "generations",
    "open_source",
    "restore",
]

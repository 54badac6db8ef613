"""Backups of a whole database, cold storage included.

Theory of operation
-------------------
A target holds *objects* and *generations*. An object is a chunk of a file, under the hash of its content; it is never
changed, and a chunk that is there already is not stored again. A generation is a list of files with the chunks of each
(`manifest.py`); it is written last, when all that it names is durable. So what an interrupted backup leaves is no
generation, and its objects serve the next one.

The database is copied first, at one moment (`SqliteEngine.copy_to`). The copy says which generation of each place of
cold storage it counts on, and the files of just that version of the Delta table follow (`cold_files.py`): a later one
could have entries that the copy does not know, and would give their positions to others. They are immutable, and a file
that was replaced stays for a day at least.

The list of files names what each is (database, cold storage, key) and the engine of the database. Nothing else here
knows SQLite but the call that makes the copy.
"""

from __future__ import annotations

from tailrace.backup.making import Made, back_up, open_source
from tailrace.backup.manifest import BackupFile, Manifest
from tailrace.backup.restoring import Restored, generations, restore

__all__ = ["BackupFile", "Made", "Manifest", "Restored", "back_up", "generations", "open_source", "restore"]

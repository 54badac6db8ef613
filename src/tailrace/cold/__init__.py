"""Cold storage: history that is no longer in the database, as Delta tables under one URL.

    schemas     the columns of each kind of row, and the paths of the Delta tables
    store       the URL: a directory or a bucket, opened the same way
    writing     rows to Parquet files, and files to a commit, exactly once
    reading     the rows of a log, in order, with proof that none is missing
    merging     the rows of several sorted files as one sorted sequence
    cache       recently read entries, for readers that must not wait
    compacting  merges small files, removes old entries, deletes unlisted files
    states      snapshots and copies: Delta tables that hold a state
    check       the consistency check of cold storage

The *place* of a Delta table is its path below the URL. The tables are in an open format: any reader of Delta or Parquet
reads them without Tailrace.
"""

from __future__ import annotations

from tailrace import extras

extras.require("cold")

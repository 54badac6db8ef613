-- Jobs that are paused; which messages of a partition were acknowledged by whom, and when: the recent past of each
-- group, as ranges of offsets in numbered rows; and which sequences of a view's table have applied which changes.

CREATE TABLE paused_jobs (
  name TEXT NOT NULL PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE consumption (
  log INTEGER NOT NULL,
  name TEXT NOT NULL,
  number INTEGER NOT NULL,
  ranges BLOB NOT NULL,
  PRIMARY KEY (log, name, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE view_batches (
  view TEXT NOT NULL,
  log INTEGER NOT NULL,
  ended INTEGER NOT NULL,
  began INTEGER NOT NULL,
  first INTEGER NOT NULL,
  last INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (view, log, ended)
) STRICT, WITHOUT ROWID;

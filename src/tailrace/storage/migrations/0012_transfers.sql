-- Exports of tables to buckets, and imports from them.

CREATE TABLE transfers (
  id TEXT NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  token TEXT NOT NULL,
  digest BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  ended_ms INTEGER NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  details BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Resource policies of tables and of their change streams.

CREATE TABLE policies (
  name TEXT NOT NULL,
  label TEXT NOT NULL,
  revision TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (name, label)
) STRICT, WITHOUT ROWID;

-- Topics, their partitions and consumer groups; users, their sessions, and the roles of access keys.

CREATE TABLE topics (
  id INTEGER NOT NULL PRIMARY KEY,
  name TEXT NOT NULL,
  alias TEXT,
  partitions INTEGER NOT NULL,
  first_log INTEGER NOT NULL,
  hash INTEGER NOT NULL,
  retention_seconds INTEGER,
  retention_max_bytes INTEGER,
  max_attempts INTEGER,
  dead_letter INTEGER,
  created_ms INTEGER NOT NULL,
  created_by TEXT NOT NULL
) STRICT;

CREATE TABLE topic_names (
  name TEXT NOT NULL PRIMARY KEY,
  topic INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE topic_partitions (
  log INTEGER NOT NULL PRIMARY KEY,
  topic INTEGER NOT NULL,
  number INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;

CREATE TABLE topic_groups (
  log INTEGER NOT NULL,
  name TEXT NOT NULL,
  cursor INTEGER NOT NULL,
  leases INTEGER NOT NULL,
  delivered INTEGER NOT NULL,
  redelivered INTEGER NOT NULL,
  lost INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  ranges BLOB NOT NULL,
  PRIMARY KEY (log, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
  name TEXT NOT NULL PRIMARY KEY,
  role TEXT NOT NULL,
  password TEXT,
  access BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL,
  disabled INTEGER NOT NULL,
  generation INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  principal TEXT NOT NULL,
  id TEXT NOT NULL,
  secret BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  PRIMARY KEY (principal, id)
) STRICT, WITHOUT ROWID;

ALTER TABLE access_keys ADD COLUMN role TEXT NOT NULL DEFAULT 'dba';

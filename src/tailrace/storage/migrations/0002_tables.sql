-- Document tables, their indexes and change streams, and the keys that sign requests.

CREATE TABLE tables (
  name TEXT NOT NULL PRIMARY KEY,
  space INTEGER NOT NULL,
  definition BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE items (
  space INTEGER NOT NULL,
  key BLOB NOT NULL,
  size INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (space, key)
) STRICT;

CREATE TABLE index_entries (
  space INTEGER NOT NULL,
  key BLOB NOT NULL,
  item BLOB NOT NULL,
  PRIMARY KEY (space, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE counts (
  space INTEGER NOT NULL PRIMARY KEY,
  items INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;

CREATE TABLE dropped_spaces (
  space INTEGER NOT NULL PRIMARY KEY
) STRICT;

CREATE TABLE backfills (
  space INTEGER NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  after BLOB NOT NULL
) STRICT;

CREATE TABLE tokens (
  token TEXT NOT NULL PRIMARY KEY,
  digest BLOB NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE token_ages (
  at_ms INTEGER NOT NULL,
  token TEXT NOT NULL,
  PRIMARY KEY (at_ms, token)
) STRICT, WITHOUT ROWID;

CREATE TABLE change_streams (
  name TEXT NOT NULL,
  label TEXT NOT NULL,
  log INTEGER NOT NULL,
  space INTEGER NOT NULL,
  view TEXT NOT NULL,
  epoch TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  closed_ms INTEGER,
  max_age_s INTEGER,
  max_count INTEGER,
  schema BLOB NOT NULL,
  PRIMARY KEY (name, label)
) STRICT, WITHOUT ROWID;

CREATE TABLE change_cursors (
  log INTEGER NOT NULL,
  name TEXT NOT NULL,
  position INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  hold_bytes INTEGER NOT NULL,
  lost INTEGER NOT NULL,
  PRIMARY KEY (log, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE access_keys (
  id TEXT NOT NULL PRIMARY KEY,
  secret TEXT NOT NULL,
  principal TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  disabled INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

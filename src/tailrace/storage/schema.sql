-- The current schema: what the numbered migrations lead to, for people to read. Nothing runs this file; a test keeps it
-- equal to the migrations applied. After adding a migration: python -m tests.migration.schema

CREATE TABLE meta (
  name TEXT NOT NULL PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE logs (
  id INTEGER NOT NULL PRIMARY KEY,
  owner TEXT NOT NULL,
  parent INTEGER,
  base INTEGER NOT NULL,
  start INTEGER NOT NULL,
  next INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  forks INTEGER NOT NULL,
  depth INTEGER NOT NULL,
  dropped INTEGER NOT NULL
) STRICT;

CREATE TABLE entries (
  log INTEGER NOT NULL,
  position INTEGER NOT NULL,
  next INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  body BLOB NOT NULL
, sum INTEGER, layout BLOB) STRICT;

CREATE UNIQUE INDEX entries_key ON entries (log, position);

CREATE TABLE garbage (
  log INTEGER NOT NULL PRIMARY KEY
) STRICT;

CREATE TABLE streams (
  path TEXT NOT NULL PRIMARY KEY,
  log INTEGER NOT NULL,
  content_type TEXT NOT NULL,
  created_ms INTEGER NOT NULL,
  ttl_s INTEGER,
  expires_ms INTEGER,
  expires_text TEXT,
  deadline_ms INTEGER,
  closed INTEGER NOT NULL,
  seq TEXT,
  forked_from TEXT,
  fork_position INTEGER,
  fork_sub INTEGER,
  max_age_s INTEGER,
  max_bytes INTEGER,
  deleted INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE deadlines (
  at_ms INTEGER NOT NULL,
  path TEXT NOT NULL,
  PRIMARY KEY (at_ms, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE retained (
  path TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE producers (
  log INTEGER NOT NULL,
  id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  PRIMARY KEY (log, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscriptions (
  id TEXT NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL,
  pattern TEXT,
  webhook_url TEXT,
  wake_stream TEXT,
  lease_ms INTEGER NOT NULL,
  description TEXT,
  created_ms INTEGER NOT NULL,
  digest TEXT NOT NULL,
  base_url TEXT NOT NULL,
  log_floor INTEGER NOT NULL,
  links INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  wake_id TEXT,
  snapshot BLOB,
  holder TEXT,
  lease_until_ms INTEGER,
  retries INTEGER NOT NULL,
  next_attempt_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE links (
  subscription TEXT NOT NULL,
  path TEXT NOT NULL,
  explicit INTEGER NOT NULL,
  matched INTEGER NOT NULL,
  log INTEGER NOT NULL,
  acked INTEGER NOT NULL,
  PRIMARY KEY (subscription, path)
) STRICT, WITHOUT ROWID;

CREATE TABLE tables (
  name TEXT NOT NULL PRIMARY KEY,
  space INTEGER NOT NULL,
  definition BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE items (
  space INTEGER NOT NULL,
  key BLOB NOT NULL,
  size INTEGER NOT NULL,
  body BLOB NOT NULL, sum INTEGER,
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
, role TEXT NOT NULL DEFAULT 'dba') STRICT, WITHOUT ROWID;

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
, added BLOB) STRICT;

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

CREATE TABLE tiers (
  log INTEGER NOT NULL PRIMARY KEY,
  start INTEGER NOT NULL,
  tiered INTEGER NOT NULL,
  place TEXT NOT NULL
) STRICT;

CREATE TABLE cold_places (
  name TEXT NOT NULL PRIMARY KEY,
  generation INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
  name TEXT NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL,
  source TEXT NOT NULL,
  target TEXT NOT NULL,
  state TEXT NOT NULL,
  message TEXT NOT NULL,
  definition BLOB NOT NULL,
  rows INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  updated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job_positions (
  job TEXT NOT NULL,
  log INTEGER NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (job, log)
) STRICT, WITHOUT ROWID;

CREATE TABLE stages (
  id TEXT NOT NULL PRIMARY KEY,
  target TEXT NOT NULL,
  rows INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE stage_chunks (
  stage TEXT NOT NULL,
  number INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (stage, number)
) STRICT;

CREATE TABLE sinks (
  id TEXT NOT NULL PRIMARY KEY,
  batch INTEGER NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE staged_entries (
  id INTEGER NOT NULL PRIMARY KEY,
  log INTEGER NOT NULL,
  position INTEGER NOT NULL,
  next INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  body BLOB NOT NULL,
  layout BLOB,
  sum INTEGER
) STRICT;

CREATE TABLE copies (
  space INTEGER NOT NULL PRIMARY KEY,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  phase TEXT NOT NULL,
  source INTEGER NOT NULL,
  after BLOB NOT NULL,
  marks INTEGER NOT NULL,
  position INTEGER NOT NULL,
  until INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  details BLOB NOT NULL
) STRICT;

CREATE TABLE sent (
  server TEXT NOT NULL PRIMARY KEY,
  upto INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

CREATE TABLE policies (
  name TEXT NOT NULL,
  label TEXT NOT NULL,
  revision TEXT NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (name, label)
) STRICT, WITHOUT ROWID;

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

-- What is in cold storage, and the jobs that work on history: how far they are, and what they have staged.

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

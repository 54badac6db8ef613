-- Copies of tables: backups, and tables that are being restored.

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

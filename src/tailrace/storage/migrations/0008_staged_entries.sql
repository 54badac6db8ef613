-- Small rows of entries are staged here, in the order of their commits and without an index, until they are sealed:
-- joined to larger rows of entries. Rows of entries that are here already stay as they are.

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

-- The number of the last committed command of each server, in one of its lives: what is beyond is sent again when the
-- process that writes is replaced.

CREATE TABLE sent (
  server TEXT NOT NULL PRIMARY KEY,
  upto INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

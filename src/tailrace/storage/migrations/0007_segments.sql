-- A row of entries may hold several: layout says where each of them ends. Rows that are here already hold one.

ALTER TABLE entries ADD COLUMN layout BLOB;

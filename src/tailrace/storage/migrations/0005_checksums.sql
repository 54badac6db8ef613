-- Entries and items have checksums; those that are here already get theirs when they are next written.

ALTER TABLE entries ADD COLUMN sum INTEGER;

ALTER TABLE items ADD COLUMN sum INTEGER;

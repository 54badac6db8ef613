-- Partitions can be added to a topic: the numbers of the logs of those that were added. NULL: none were.

ALTER TABLE topics ADD COLUMN added BLOB;

"""Exports of tables to buckets, and imports from them: rows, commands, buckets, and the thread that does the work."""

"""Document tables: items under keys, their indexes, and the change stream that every write leaves."""

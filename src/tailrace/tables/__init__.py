"""Document tables: items, keys, indexes, and the change stream of all writes."""

"""Several servers over one PostgreSQL, while everything fails that can; and a checker of what their clients saw."""

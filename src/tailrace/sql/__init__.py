"""SQL: statements in, commands and queries out, rows back."""

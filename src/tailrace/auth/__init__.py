"""Authentication: users, passwords, sessions and tokens, access keys and request signatures, login throttling."""

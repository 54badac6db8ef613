"""Transactions over everything: rows, acknowledgements, messages and streams in one commit, if nothing changed that was
read."""

"""The asynchronous client of a server."""

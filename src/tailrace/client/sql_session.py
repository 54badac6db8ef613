"""The session of a client that runs SQL: the transaction that is open, as the server wrote it."""

from __future__ import annotations


class SqlClientSession:
    """Holds an open transaction between two requests; the server holds nothing."""

    def __init__(self) -> None:
        self.transaction = ""  # "": none is open

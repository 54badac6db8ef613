"""The asynchronous API of a database: tables, topics, streams, consumers and producers."""

"""A small shop on Tailrace: `make run` runs it beside a server and a pipeline, `make demo` checks every step once."""

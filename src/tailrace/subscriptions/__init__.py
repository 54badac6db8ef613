"""Durable cursors over streams, and how they wake workers: rules, commands, and what the dispatcher asks."""

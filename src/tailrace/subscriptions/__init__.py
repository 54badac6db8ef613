"""Subscriptions: durable cursors over streams that wake workers, by webhook or by pull."""

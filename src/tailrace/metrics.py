"""What is counted. Plain attributes, so that counting costs nothing; read when somebody asks."""

from __future__ import annotations

from typing import Final

# name -> (kind, what it says); every attribute of Metrics is listed here and in docs/reference/metrics.md.
NAMES: Final = {
    "commits": ("counter", "Durable commits."),
    "commands": ("counter", "Commands that took part in a commit, failed ones included."),
    "commands_failed": ("counter", "Commands that were refused with an error."),
    "commit_seconds": ("counter", "Time spent in COMMIT, the sync of the disk included."),
    "queue": ("gauge", "Commands waiting for the next commit."),
    "queries": ("counter", "Reads of committed state."),
    "entries": ("counter", "Entries appended to logs."),
    "entry_bytes": ("counter", "Bytes of the entries appended."),
    "live_readers": ("gauge", "Readers that wait for new entries (long-poll and SSE)."),
    "frames": ("counter", "Frames sent to live readers."),
    "expired": ("counter", "Streams deleted because they expired."),
    "items_expired": ("counter", "Items deleted because they expired (TTL)."),
    "trimmed": ("counter", "Times a stream was trimmed by its retention."),
    "wakes": ("counter", "Subscription wakes issued."),
    "webhooks": ("counter", "Webhook deliveries tried."),
    "webhooks_failed": ("counter", "Webhook deliveries that failed and are retried."),
    "requests": ("counter", "HTTP requests taken."),
    "connections": ("counter", "Connections accepted."),
    "refusals": ("counter", "Requests and connections that the transport itself refused, with 4xx or 503."),
    "failures": ("counter", "Requests answered 500: bugs of ours."),
    "readers_dropped": ("counter", "Live readers dropped because they did not keep up."),
}


class Metrics:
    """The counters of one database and the server over it."""

    def __init__(self) -> None:
        self.commits = 0
        self.commands = 0
        self.commands_failed = 0
        self.commit_seconds = 0.0
        self.queue = 0
        self.queries = 0
        self.entries = 0
        self.entry_bytes = 0
        self.live_readers = 0
        self.frames = 0
        self.expired = 0
        self.items_expired = 0
        self.trimmed = 0
        self.wakes = 0
        self.webhooks = 0
        self.webhooks_failed = 0
        self.requests = 0
        self.connections = 0
        self.refusals = 0
        self.failures = 0
        self.readers_dropped = 0

"""Metrics. Plain attributes, so that counting costs nothing.

Three tables list all metrics: NAMES and HISTOGRAMS are attributes of `Metrics`; LABELLED metrics are read from the
database for each scrape, per partition or consumer group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

# name -> (kind, help); every attribute of Metrics is listed here or below, and in docs/reference/metrics.md.
NAMES: Final = {
    "commits": ("counter", "Durable commits."),
    "commands": ("counter", "Commands that took part in a commit, failed ones included."),
    "commands_failed": ("counter", "Commands that failed with an error."),
    "commit_seconds": ("counter", "Time spent in COMMIT, including the sync to disk."),
    "queue": ("gauge", "Commands waiting for the next commit."),
    "queries": ("counter", "Reads of committed state."),
    "entries": ("counter", "Entries appended to logs."),
    "entry_bytes": ("counter", "Bytes of the entries appended."),
    "live_readers": ("gauge", "Readers that wait for new entries (long-poll and SSE)."),
    "consumers_waiting": ("gauge", "Of those, consumers that wait for messages of a topic."),
    "frames": ("counter", "Frames sent to live readers."),
    "published": ("counter", "Messages published to topics over HTTP. Messages routed from tables are not included."),
    "consumed": ("counter", "Messages delivered to consumers over HTTP, counting each delivery."),
    "acked": ("counter", "Messages acknowledged over HTTP."),
    "clock_ahead_seconds": (
        "gauge",
        "How far timestamps are ahead of the confirmed time, used for deletion by age: 0 unless the clock has jumped.",
    ),
    "clock_jumps": ("counter", "Times that the clock was found far ahead, also at a start."),
    "expired": ("counter", "Streams deleted because they expired."),
    "items_expired": ("counter", "Items deleted because they expired (TTL)."),
    "trimmed": ("counter", "Times a stream was trimmed by its retention."),
    "messages_trimmed": ("counter", "Messages removed from topics by their retention."),
    "cold_reads": ("counter", "Reads of cold storage for requests."),
    "cold_failures": ("counter", "Of those, failures, for example because a file was missing or damaged."),
    "wakes": ("counter", "Subscription wakes issued."),
    "webhooks": ("counter", "Webhook deliveries tried."),
    "webhooks_failed": ("counter", "Webhook deliveries that failed and are retried."),
    "requests": ("counter", "HTTP requests received."),
    "connections": ("counter", "Connections accepted."),
    "refusals": ("counter", "Requests and connections that the transport rejected with 4xx or 503."),
    "failures": ("counter", "Requests with status 500: bugs in Tailrace."),
    "readers_dropped": ("counter", "Live readers disconnected because they did not keep up."),
    "workers": ("gauge", "Worker processes that are connected to the one that writes; 0 if one process does both."),
    "forwarded": ("counter", "Commands that workers have sent to the process that writes."),
    "resent": ("counter", "Of those, commands that were sent again because that process was replaced."),
    "outcomes_unknown": ("counter", "Commands whose result was lost with that process, though they were committed."),
    "leading": ("gauge", "1 if this server of a cluster leads, 0 otherwise."),
    "epoch": ("gauge", "The epoch of the cluster's leader, which grows with each take-over."),
    "unsent_bytes": ("gauge", "Bytes of unsent responses."),
    "unsent_disconnects": (
        "counter",
        "Clients disconnected because of too many unsent bytes, of their own or in total.",
    ),
}

# name -> help
HISTOGRAMS: Final = {
    "delivery_seconds": "From a message's commit to its first delivery to a consumer over HTTP.",
    "consume_seconds": "How long requests to consume took, including the wait for messages.",
}
# Upper bounds in seconds, from the time of a commit to the longest wait of a request.
BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip

_GROUP: Final = ("topic", "group", "partition")
# name -> (kind, help, labels)
LABELLED: Final = {
    "topic_messages": ("gauge", "Messages that a partition holds.", ("topic", "partition")),
    "topic_bytes": ("gauge", "Bytes of the messages that a partition holds.", ("topic", "partition")),
    "topic_appended": ("counter", "Messages ever appended to a partition.", ("topic", "partition")),
    "group_lag": ("gauge", "Messages that a group has not acknowledged.", _GROUP),
    "group_in_flight": ("gauge", "Messages that a group's consumers hold.", _GROUP),
    "group_delivered": ("counter", "Messages delivered to a group, counting each delivery.", _GROUP),
    "group_redelivered": ("counter", "Messages delivered to a group again.", _GROUP),
    "group_lost": ("counter", "Messages that retention removed before a group acknowledged them.", _GROUP),
}
CUT: Final = ("series_cut", "1 if there are more partitions or groups than have metrics of their own.")

# Attributes that /v1/status and its samples are made of, and Prometheus is not shown.
RECENT: Final = ("commit_times",)
COMMIT_TIMES: Final = 4_096  # durations of commits that are kept


class Histogram:
    """Counts of durations by upper bound; the last count is of durations above all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += times
        self.sum_s += seconds * times


class Metrics:
    """The counters of one database and its server."""

    def __init__(self) -> None:
        self.commits = 0
        self.commands = 0
        self.commands_failed = 0
        self.commit_seconds = 0.0
        self.commit_times: deque[float] = deque(maxlen=COMMIT_TIMES)  # of the last ones; each sample empties it
        self.queue = 0
        self.queries = 0
        self.entries = 0
        self.entry_bytes = 0
        self.live_readers = 0
        self.consumers_waiting = 0
        self.frames = 0
        self.published = 0
        self.consumed = 0
        self.acked = 0
        self.delivery_seconds = Histogram()
        self.consume_seconds = Histogram()
        self.clock_ahead_seconds = 0.0
        self.clock_jumps = 0
        self.expired = 0
        self.items_expired = 0
        self.trimmed = 0
        self.messages_trimmed = 0
        self.cold_reads = 0
        self.cold_failures = 0
        self.wakes = 0
        self.webhooks = 0
        self.webhooks_failed = 0
        self.requests = 0
        self.connections = 0
        self.refusals = 0
        self.failures = 0
        self.readers_dropped = 0
        self.workers = 0
        self.forwarded = 0
        self.resent = 0
        self.outcomes_unknown = 0
        self.leading = 0
        self.epoch = 0
        self.unsent_bytes = 0
        self.unsent_disconnects = 0

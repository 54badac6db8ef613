"""The metrics of all processes, added up: each server sends its own, the writer adds them.

Counters of a server that has ended are kept, so that sums do not go back; its gauges are not."""

from __future__ import annotations

from tailrace.bus.asking import CountMetrics
from tailrace.metrics import HISTOGRAMS, NAMES, Histogram, Metrics

_COUNTERS = frozenset(name for name, (kind, _) in NAMES.items() if kind == "counter")
_OF_WRITER = ("clock_ahead_seconds", "workers", "leading", "epoch")  # gauges that are not added up


def counts_of(metrics: Metrics) -> CountMetrics:
    """The metrics of this process."""
    histograms: dict[str, tuple[list[int], float]] = {}
    for name in HISTOGRAMS:
        counted: Histogram = getattr(metrics, name)
        histograms[name] = (list(counted.counts), counted.sum_s)
    return CountMetrics({name: float(getattr(metrics, name)) for name in NAMES}, histograms)


def metrics_of(counts: CountMetrics) -> Metrics:
    """The same as an object."""
    found = Metrics()
    for name, value in counts.counts.items():
        if name in NAMES:
            setattr(found, name, value)
    for name, (each, sum_s) in counts.histograms.items():
        histogram = Histogram()
        histogram.counts, histogram.sum_s = list(each), sum_s
        if name in HISTOGRAMS:
            setattr(found, name, histogram)
    return found


class MetricTotals:
    """What every server has counted."""

    def __init__(self, own: Metrics) -> None:
        self._own = own
        self._servers: dict[str, CountMetrics] = {}  # by name and life

    def count(self, server: str, counts: CountMetrics) -> None:
        """A server's present counts."""
        self._servers[server] = counts

    def gone(self, server: str) -> None:
        """A server has ended, or lost its connection: then its counts come again."""
        counts = self._servers.get(server)
        if counts is not None:
            kept = {name: value for name, value in counts.counts.items() if name in _COUNTERS}
            self._servers[server] = CountMetrics(kept, counts.histograms)

    def sum(self) -> CountMetrics:
        """The counts of all servers and of this process."""
        own = counts_of(self._own)
        total = dict(own.counts)
        histograms = {name: (list(counts), sum_s) for name, (counts, sum_s) in own.histograms.items()}
        for server in self._servers.values():
            for name, value in server.counts.items():
                if name in total and name not in _OF_WRITER:
                    total[name] += value
            for name, (counts, sum_s) in server.histograms.items():
                if name in histograms:
                    before, before_s = histograms[name]
                    histograms[name] = ([a + b for a, b in zip(before, counts, strict=True)], before_s + sum_s)
        return CountMetrics(total, histograms)

"""The metrics of all processes, added up: each server sends its own, the writer adds them.

Counters of a server that has ended are kept, in one sum for all such servers, so that sums do not go back; its gauges
are not."""

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
        self._ended = CountMetrics({}, {})  # the counters of those that do not come back

    def count(self, server: str, counts: CountMetrics) -> None:
        """A server's present counts."""
        self._servers[server] = counts

    def gone(self, server: str) -> None:
        """A server has ended, or lost its connection: then its counts come again."""
        counts = self._servers.get(server)
        if counts is not None:
            kept = {name: value for name, value in counts.counts.items() if name in _COUNTERS}
            self._servers[server] = CountMetrics(kept, counts.histograms)

    def ended(self, server: str) -> None:
        """A server has ended, and does not come back."""
        self.gone(server)
        counts = self._servers.pop(server, None)
        if counts is not None:
            self._ended = _added(self._ended, counts)

    def sum(self) -> CountMetrics:
        """The counts of all servers and of this process."""
        total = counts_of(self._own)
        for server in (self._ended, *self._servers.values()):
            counts = {name: value for name, value in server.counts.items() if name not in _OF_WRITER}
            total = _added(total, CountMetrics(counts, server.histograms))
        return total


def _added(one: CountMetrics, other: CountMetrics) -> CountMetrics:
    counts, histograms = dict(one.counts), dict(one.histograms)
    for name, value in other.counts.items():
        counts[name] = counts.get(name, 0.0) + value
    for name, (more, more_s) in other.histograms.items():
        before, before_s = histograms.get(name, ([0] * len(more), 0.0))
        histograms[name] = ([a + b for a, b in zip(before, more, strict=True)], before_s + more_s)
    return CountMetrics(counts, histograms)

"""The figures of the mixed soak: samples, whether something grows without bound, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

WARM_UP: Final = 6  # samples of a server's life before its figures count: caches fill
JUDGED_MIN: Final = 12  # samples of one life below which growth cannot be judged
GROWTH_MAX: Final = 0.15  # of the median between the two halves of the last life
SLACK_MB: Final = 48.0  # below which memory may grow: garbage collection, the allocator, caches
SLACK_FILES: Final = 40
KINDS: Final = ("append", "put", "get", "consume", "select")


@dataclass
class Sample:
    """What was seen at one moment, and of the requests since the last one."""

    at_s: float
    life: int  # how often the server had been started by then
    rss_mb: float  # of the server and its worker processes
    files: int
    wal_mb: float
    database_mb: float
    requests_per_s: float
    p99_ms: dict[str, float]
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """As it is printed."""
        latencies = " ".join(f"{kind} {self.p99_ms[kind]:.0f}" for kind in KINDS if kind in self.p99_ms)
        faults = f"  | {', '.join(self.faults)}" if self.faults else ""
        return (
            f"{self.at_s / 60:6.1f} min  RSS {self.rss_mb:6.1f} MB  files {self.files:4}  WAL {self.wal_mb:6.1f} MB  "
            f"database {self.database_mb:7.1f} MB  {self.requests_per_s:6.0f} requests/s  p99 ms: {latencies}{faults}"
        )


def growth(samples: Sequence[Sample], wal_mb_max: float) -> list[str]:
    """What grew without bound; empty if nothing did. Memory and files are judged over the last life of the server,
    between the medians of its two halves; the WAL over all samples."""
    wrong = []
    highest = max((each.wal_mb for each in samples), default=0.0)
    if highest > wal_mb_max:
        wrong.append(f"the WAL grew to {highest:.0f} MB; {wal_mb_max:.0f} MB are allowed")
    last = [each for each in samples if each.life == samples[-1].life][WARM_UP:] if samples else []
    if len(last) < JUDGED_MIN:
        return [*wrong, f"the last life of the server has {len(last)} samples; {JUDGED_MIN} are needed to judge growth"]
    half = len(last) // 2
    for name, slack, values in (
        ("memory (MB)", SLACK_MB, [each.rss_mb for each in last]),
        ("open files", SLACK_FILES, [float(each.files) for each in last]),
    ):
        before, after = median(values[:half]), median(values[half:])
        if after - before > max(slack, GROWTH_MAX * before):
            wrong.append(f"{name} grew from {before:.0f} to {after:.0f} within the last life of the server")
    return wrong


# -- the picture

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 900, 110, 70, 24, 34


def picture(samples: Sequence[Sample]) -> str:
    """Four curves over time as SVG; kills are dashed lines."""
    charts = (
        ("memory of the server and its workers, MB", [each.rss_mb for each in samples]),
        ("write-ahead log, MB", [each.wal_mb for each in samples]),
        ("open files", [float(each.files) for each in samples]),
        ("p99 of an append, ms (cut at 1,000)", _capped(samples, "append")),
    )
    whole = samples[-1].at_s or 1.0
    height = len(charts) * (_HEIGHT + _GAP) + _TOP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="{height}" fill="#fff"/>',
    ]
    for number, (title, values) in enumerate(charts):
        top = _TOP + number * (_HEIGHT + _GAP)
        parts += _chart(title, samples, values, whole, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _capped(samples: Sequence[Sample], kind: str) -> list[float]:
    return [min(each.p99_ms.get(kind, 0.0), 1000.0) for each in samples]


def _chart(title: str, samples: Sequence[Sample], values: list[float], whole: float, top: int) -> list[str]:
    highest = max(values) or 1.0

    def x(at_s: float) -> str:
        return f"{_LEFT + at_s / whole * _WIDTH:.1f}"

    def y(value: float) -> str:
        return f"{top + _HEIGHT - value / highest * _HEIGHT:.1f}"

    points = " ".join(f"{x(each.at_s)},{y(value)}" for each, value in zip(samples, values, strict=True))
    kills = [each.at_s for each in samples if any("kill" in fault for fault in each.faults)]
    lines = "".join(
        f'<line x1="{x(at)}" x2="{x(at)}" y1="{top}" y2="{top + _HEIGHT}" stroke="#c33" stroke-dasharray="2 3"/>'
        for at in kills
    )
    return [
        f'<text x="{_LEFT}" y="{top - 6}">{title}; highest {highest:,.0f}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{highest:,.0f}</text>',
        f'<text x="{_LEFT - 6}" y="{top + _HEIGHT}" text-anchor="end">0</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="#f6f8fa" stroke="#ccc"/>',
        lines,
        f'<polyline points="{points}" fill="none" stroke="#2457c5" stroke-width="1.5"/>',
        f'<text x="{_LEFT + _WIDTH}" y="{top + _HEIGHT + 14}" text-anchor="end">{whole / 60:.0f} min</text>',
    ]

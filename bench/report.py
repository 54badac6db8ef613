"""What a run found, as a table in the terminal, as JSON and as a section of the documentation.

A ratio says by how much Tailrace is better than the best of the others, whichever way is better for that figure. A row
in which an answer was wrong, or in which a stream or a table does not hold what was acknowledged, says so in its cell
and cannot meet an expectation. A figure is the median of the samples during which others left the server's core
alone; where there is none, it is marked as disturbed, meets nothing, and is not written to the documentation.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.machine import Disk, Machine
from bench.rows import OTHERS_MAX, Line, Sample
from bench.servers import NAMES, PEERS, QUEUE_PEERS

OURS: Final = "tailrace"
GROUPS: Final = {  # the tables of a report: what each is called, and who stands in it
    "streams": ("Streams, beside the reference server and Electric", NAMES[1:]),
    "growth": ("Growth: more streams, more entries", ()),
    "embedded": ("Tables from Python, beside the bare sqlite3 module", ("sqlite3", "sqlite3+json")),
    "tables": ("Tables over HTTP, beside other servers of the DynamoDB API", PEERS),
    "topics": ("Topics over HTTP, beside Redis Streams and a queue in PostgreSQL", QUEUE_PEERS),
    "transactions": ("Transactions over HTTP, beside PostgreSQL at SERIALIZABLE", ("postgresql",)),
    "cluster": ("Several servers over PostgreSQL", ()),
    "routes": ("Routes from tables to topics", ("duckdb",)),
    "select": ("SELECT, beside DuckDB over SQLite and Parquet", ("duckdb+sqlite", "duckdb+parquet", "sqlite3")),
    "pipeline": ("The pipeline on Spark, beside Spark's own Parquet reader", ("parquet",)),
}
BEGIN: Final = "<!-- bench: begin; written by `python -m bench --markdown`, do not edit -->"
END: Final = "<!-- bench: end -->"


@dataclass
class RowResult:
    name: str
    title: str
    lines: list[Line]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # who was left out, and why
    group: str = "streams"

    @property
    def others(self) -> tuple[str, ...]:
        return GROUPS[self.group][1]

    def best(self, line: Line) -> float | None:
        """The best figure of the others."""
        found = [value for name in self.others if (value := self.figure(name, line.key)) is not None]
        return (max(found) if line.higher else min(found)) if found else None

    def figure(self, server: str, key: str) -> float | None:
        """The median over the repetitions that were not disturbed, or over all if each was."""
        samples = self.samples.get(server, [])
        quiet = [sample for sample in samples if not sample.disturbed]
        values = [sample.figures[key] for sample in quiet or samples if key in sample.figures]
        values = [value for value in values if not math.isnan(value)]
        return median(values) if values else None

    def disturbed(self, server: str) -> bool:
        """Whether others took too much of its core in every repetition."""
        samples = self.samples.get(server, [])
        return bool(samples) and all(sample.disturbed for sample in samples)

    def errors(self, server: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for sample in self.samples.get(server, []):
            found.update(sample.errors)
            found["what is stored or was read is not what was acknowledged"] += len(sample.complaints)
        return +found

    def sound(self, server: str) -> bool:
        return server not in self.failed and not self.errors(server)


@dataclass
class Report:
    machine: Machine
    disk: Disk
    quick: bool
    repetitions: int
    seconds: float
    rows: list[RowResult] = field(default_factory=list)
    disk_after: Disk | None = None
    peers: dict[str, str] = field(default_factory=dict)  # version and what they do when they acknowledge a write

    def row(self, name: str) -> RowResult | None:
        return next((row for row in self.rows if row.name == name), None)

    def narrowed(self, names: set[str]) -> Report:
        """The same with these rows alone."""
        rows = [row for row in self.rows if row.name in names]
        beside = {OURS, *(other for row in rows for other in row.others)}
        return replace(self, rows=rows, peers={name: text for name, text in self.peers.items() if name in beside})

    def sound(self) -> bool:
        """Whether Tailrace answered everything as it should have."""
        return all(row.sound(OURS) for row in self.rows)

    def groups(self) -> list[tuple[str, tuple[str, ...], list[RowResult]]]:
        """The tables: title, the others in it, rows."""
        found = [(*GROUPS[name], [row for row in self.rows if row.group == name]) for name in GROUPS]
        return [group for group in found if group[2]]


@dataclass
class Cells:
    """One line, ready to print."""

    label: str
    figures: list[str]  # ours, then the others'
    ratio: str
    expected: str
    met: bool | None
    secondary: bool


def better_by(line: Line, ours: float | None, theirs: float | None) -> float | None:
    if not line.compared or not ours or not theirs or ours < 0 or theirs < 0:
        return None
    return ours / theirs if line.higher else theirs / ours


def cells(report: Report, row: RowResult, line: Line, *, publish: bool = False) -> Cells:
    """A line of a row; with `publish` without disturbed figures and what would follow from them."""
    ours = row.figure(OURS, line.key)
    ratio = better_by(line, ours, row.best(line))
    disturbed = [name for name in (OURS, *row.others) if row.disturbed(name)]
    expected: list[str] = []
    verdicts: list[bool] = []

    def expect(text: str, verdict: bool | None) -> None:
        expected.append(text)
        if verdict is not None:
            verdicts.append(verdict)

    known = ours is not None
    if line.at_least is not None:
        expect(f"≥ {number(line.at_least)}{unit(line)}", ours >= line.at_least if ours is not None else None)
    if line.at_most is not None:
        expect(
            f"{'≤ ' if line.at_most else ''}{number(line.at_most)}{unit(line)}",
            ours <= line.at_most if ours is not None else None,
        )
    if line.ratio_at_least is not None:
        if line.against is None:
            wanted, beside = ratio if not disturbed else None, ""
        else:
            theirs = row.figure(line.against, line.key) if line.against not in disturbed else None
            wanted, beside = better_by(line, ours, theirs), f" {line.against}"
        expect(f"≥ {line.ratio_at_least:g}×{beside}", wanted >= line.ratio_at_least if wanted is not None else None)
    if line.share_at_least is not None:
        other, share = line.share_at_least
        found = report.row(other)
        whole = found.figure(OURS, line.key) if found and not found.disturbed(OURS) else None
        verdict = ours >= share * whole if ours is not None and whole is not None else None
        expect(f"≥ {share:.0%} of {other}", verdict)
    if line.within is not None:
        other, times = line.within
        limit = row.figure(OURS, other)
        expect(
            f"≤ {times:g}× bare fdatasync", ours <= times * limit if ours is not None and limit is not None else None
        )
    met = all(verdicts) if verdicts and known and OURS not in disturbed else None
    if expected and (OURS in row.failed or (known and not row.sound(OURS))):
        met = False
    return Cells(
        line.label,
        [cell(row, name, line, publish=publish) for name in (OURS, *row.others)],
        "" if ratio is None or line.secondary or (publish and disturbed) else f"{number(ratio)}×",
        ", ".join(expected),
        met,
        line.secondary,
    )


def shown(row: RowResult, server: str) -> str:
    """The row in a word: its first figure, or what was in the way."""
    return row.failed.get(server) or row.missing.get(server) or cell(row, server, row.lines[0])


def cell(row: RowResult, server: str, line: Line, *, publish: bool = False) -> str:
    if server in row.missing:
        return "" if line.secondary else "–"
    if server in row.failed:
        return "" if line.secondary else "failed"
    value = row.figure(server, line.key)
    if value is None:
        return ""
    if row.disturbed(server) and not line.secondary:
        return "disturbed" if publish else f"{number(value)}{unit(line)} (disturbed)"
    if row.disturbed(server) and publish and line.key != "others":
        return ""
    text = number(value) + unit(line)
    wrong = row.errors(server).total()
    has_errors_line = any(other.key == "errors" for other in row.lines)
    if wrong and not has_errors_line and not line.secondary:
        text += f" ({wrong:,} error{'s' if wrong > 1 else ''})"
    return text


def number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def unit(line: Line) -> str:
    return line.unit if line.unit in ("/s", "×", "") else f" {line.unit}"


def problems(report: Report) -> list[str]:
    """Everything that went wrong, one sentence each."""
    found = []
    for row in report.rows:
        for server in (OURS, *row.others):
            if server in row.failed:
                found.append(f"{row.name}: {server} failed: {row.failed[server]}")
            for what, count in row.errors(server).most_common():
                found.append(f"{row.name}: {server}: {count:,} × {what}")
            complaints = [text for sample in row.samples.get(server, []) for text in sample.complaints]
            found += [f"{row.name}: {server}: {text}" for text in complaints[:3]]
    return found


def left_out(report: Report) -> list[str]:
    """Who is missing in which rows, and why."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in report.rows:
        for server, why in row.missing.items():
            found.setdefault((server, why), []).append(row.name)
    return [f"{server} ({', '.join(names)}): {why}" for (server, why), names in found.items()]


def warnings(report: Report) -> list[str]:
    """Why a figure may be too low for reasons that are not the server's."""
    found = []
    for row in report.rows:
        for name in (OURS, *row.others):
            client, others = row.figure(name, "client"), row.figure(name, "others")
            whose = "" if name == OURS else f" of {name}"
            if client is not None and client > 90:
                found.append(
                    f"{row.name}: the load generator{whose} was {client:.0f} % busy and may be what was measured"
                )
            if others is not None and others > OTHERS_MAX:
                core = "cores" if row.group == "pipeline" else f"core{whose or ' of the server'}"
                found.append(f"{row.name}: others took {others:.0f} % of the {core}: disturbed")
    return found


def disk_text(disk: Disk) -> str:
    return (
        f"write 300 B + fdatasync: p50 {disk.grow_p50:.3f} ms, p99 {disk.grow_p99:.3f} ms"
        f" (over existing bytes: p50 {disk.over_p50:.3f} ms)"
    )


def setting_text(report: Report) -> str:
    text = (
        f"median of {report.repetitions} × {report.seconds:g} s, the servers in turn" if not report.quick else "quick"
    )
    return f"{text}, disturbed samples repeated" if not report.quick else text


def machine_lines(report: Report) -> list[tuple[str, str]]:
    machine = report.machine
    lines = [
        ("machine", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb:g} GB"),
        ("system", f"{machine.kernel}, {machine.filesystem}"),
        ("Python", machine.python),
        ("Tailrace", f"{machine.build}, commit {machine.commit}"),
        ("load generator", f"{machine.generator}; Node {machine.node}"),
        ("run", f"{machine.started}, load average before {machine.load_average}; {setting_text(report)}"),
        ("disk before", disk_text(report.disk)),
    ]
    if report.disk_after is not None:
        lines.append(("disk after", disk_text(report.disk_after)))
    return lines + list(report.peers.items())


def show(report: Report, console: Console) -> None:
    for title, others, rows in report.groups():
        table = Table(title=title, title_justify="left")
        table.add_column("measurement")
        for name in ("Tailrace", *others):
            table.add_column(name, justify="right")
        table.add_column("better by" if others else "", justify="right", style="bold")
        table.add_column("expected")
        table.add_column("met", justify="center")
        for row in rows:
            table.add_section()
            blank = [""] * (2 + len(others))
            table.add_row(f"[bold cyan]{escape(row.title)}[/]", *blank, f"[dim]{row.name}[/]")
            for line in row.lines:
                one = cells(report, row, line)
                met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[one.met]
                style = "dim" if one.secondary else None
                figures = [f"[red]{text}[/]" if "error" in text or text == "failed" else text for text in one.figures]
                table.add_row(f"  {escape(one.label)}", *figures, one.ratio, one.expected, met, style=style)
        console.print(table)
    for text in left_out(report):
        console.print(f"[bold yellow]left out:[/] {escape(text)}", soft_wrap=True, highlight=False)
    for text in problems(report):
        console.print(f"[red]✗[/] {escape(text)}", soft_wrap=True)
    for text in warnings(report):
        console.print(f"[yellow]![/] {escape(text)}", soft_wrap=True)
    for name, text in machine_lines(report):
        console.print(f"[dim]{name:>14}[/]  {escape(text)}", soft_wrap=True, highlight=False)


def markdown(report: Report) -> str:
    lines: list[str] = []
    for title, others, rows in report.groups():
        lines += [f"### {title}", ""]
        lines.append(f"| {' | '.join(('measurement', 'Tailrace', *others, 'better by', 'expected', 'met'))} |")
        lines.append(f"|---|---:|{'---:|' * len(others)}---:|---|---|")
        for row in rows:
            lines.append(f"| **{row.title}** | |{' |' * len(others)} | | |")
            for line in row.lines:
                one = cells(report, row, line, publish=True)
                met = {True: "yes", False: "**no**", None: ""}[one.met]
                figures = " | ".join(one.figures)
                lines.append(f"| {one.label} | {figures} | {one.ratio} | {one.expected} | {met} |")
        lines.append("")
    for title, texts in (
        ("Left out", left_out(report)),
        ("What went wrong", problems(report)),
        ("Worth knowing", warnings(report)),
    ):
        if texts:
            lines += [f"{title}:", "", *(f"- {text}" for text in texts), ""]
    lines += [
        "### Where and how",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in machine_lines(report)),
    ]
    return "\n".join(lines)


def write_markdown(report: Report, path: Path) -> None:
    """Replace what stands between the markers."""
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{path} has no markers; put these two lines where the figures belong:\n{BEGIN}\n{END}")
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{markdown(report)}\n\n{END}{rest.partition(END)[2]}")


def save(report: Report, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))


def read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)

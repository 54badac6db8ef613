"""What a figure stands on: the processor, the disk, and who else was using them.

Figures from a shared machine mean something only beside the disk's own speed in the same run and the share of the
core that other processes took; both are measured here.
"""

from __future__ import annotations

import importlib.machinery
import os
import platform
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tailrace
from bench.load import percentile, pinned

PROBE_BYTES: Final = 300


@dataclass
class Machine:
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    filesystem: str
    python: str
    build: str  # of Tailrace: plain Python, or compiled
    generator: str  # of the load
    node: str
    commit: str
    started: str
    load_average: str


@dataclass
class Disk:
    """A bare write of 300 B and an fdatasync, in ms: at the end of a growing file, and over bytes that are there."""

    grow_p50: float
    grow_p99: float
    over_p50: float


def interpreter_build() -> str:
    """Whether the interpreter was built for speed; such a build is 10 to 30 % faster."""
    options = f"{sysconfig.get_config_var('CONFIG_ARGS') or ''} {sysconfig.get_config_var('PY_CFLAGS') or ''}"
    distributed = "deb_system" in sysconfig.get_scheme_names()  # built with PGO, though the flags do not show it
    profiled = distributed or "--enable-optimizations" in options or "-fprofile-use" in options
    linked = "--with-lto" in options or "-flto" in options
    if not profiled:
        return "no optimized (PGO) build"
    return "optimized build (PGO, LTO)" if linked else "optimized build (PGO)"


def tailrace_build() -> str:
    """Whether the modules of Tailrace that are imported here, and so by the servers, are compiled."""
    home = Path(tailrace.__path__[0])
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    names = {path.parent / path.stem for path in home.rglob("*.py")}
    compiled = {path.parent / path.name.partition(".")[0] for path in home.rglob("*") if path.name.endswith(suffixes)}
    if not compiled & names:
        return "plain Python, not compiled"
    return f"compiled ({len(compiled & names)} of {len(names)} modules)"


def describe(root: Path, data: Path, generator: str) -> Machine:
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory_kb = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return Machine(
        cpu=cpu,
        cores=os.cpu_count() or 1,
        memory_gb=round(memory_kb / 1024 / 1024, 1),
        kernel=f"{platform.system()} {platform.release()}",
        filesystem=_filesystem(data),
        python=f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()}), "
        + interpreter_build(),
        build=tailrace_build(),
        generator=generator,
        node=_output(["node", "--version"]),
        commit=_output(["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=10"]),
        started=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        load_average=" ".join(f"{value:.2f}" for value in os.getloadavg()),
    )


def probe(directory: Path, cores: set[int], *, count: int = 300) -> Disk:
    """Time bare durable writes on the core the servers run on."""
    path = directory / "probe"
    data = b"x" * PROBE_BYTES
    clock = time.perf_counter
    with pinned(cores):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            grow, over = [], []
            for _ in range(count):
                begin = clock()
                os.write(file, data)
                os.fdatasync(file)
                grow.append((clock() - begin) * 1000)
            for at in range(count):
                begin = clock()
                os.pwrite(file, data, at * PROBE_BYTES)
                os.fdatasync(file)
                over.append((clock() - begin) * 1000)
        finally:
            os.close(file)
            path.unlink()
    grow.sort()
    over.sort()
    return Disk(percentile(grow, 0.5), percentile(grow, 0.99), percentile(over, 0.5))


class Core:
    """How much of one core was used between two looks at it, and how much of that by the server itself."""

    def __init__(self, core: int) -> None:
        self._name = f"cpu{core} "

    def look(self) -> tuple[float, float]:
        """Seconds since boot: busy, and in all. Stolen time counts as busy: another machine had it."""
        for line in _lines("/proc/stat"):
            if line.startswith(self._name):
                ticks = [int(field) for field in line.split()[1:9]]
                unit = os.sysconf("SC_CLK_TCK")
                return (sum(ticks) - ticks[3] - ticks[4]) / unit, sum(ticks) / unit
        return 0.0, 0.0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _filesystem(path: Path) -> str:
    """The type and device of the file system that holds `path`."""
    best = ("", "?")
    for line in _lines("/proc/mounts"):
        device, mount, kind = line.split()[:3]
        if path.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, f"{kind} on {device}")
    return best[1]


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"

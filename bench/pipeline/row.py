"""What the rows of the pipeline have in common: the plant that they run on, and how they are measured."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from bench.load import Failed
from bench.pipeline.plant import Chain, Cores, Plant, say
from bench.rows import Line, Row, Sample, Settings
from bench.servers import Contender
from tailrace.errors import Error

PARQUET: Final = "parquet"  # Spark's own reader, over the same rows


class Part(Contender):
    """One of those that take turns on the same plant."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class PipelineRow(Row[Part]):
    group = "pipeline"
    contenders: ClassVar[tuple[str, ...]] = ("tailrace",)
    repeated = False  # the sizes are repetitions enough
    repeatable = False  # each row leaves the history as the next one needs it

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.sizes = settings.pipeline
        self.most = max(self.sizes)

    @property
    def plant(self) -> Plant:
        return Plant.of(self.settings)

    def contender(self, name: str) -> Part:
        return Part(name, self.settings.data / self.name / name)

    def others(self) -> Line:
        return Line("others", "of the cores, taken by others", "%", higher=False, secondary=True)

    def measure(self, server: Part) -> Sample:
        try:
            return self._measure(server)
        except (Failed, Error, OSError):
            raise
        except Exception as error:  # whatever Spark, DuckDB or Delta raise is an error of the row
            raise Failed(f"{type(error).__name__}: {error}") from error

    def _measure(self, server: Part) -> Sample:
        self.ready()
        say(f"{self.name}: {server.name}")
        sample = Sample()
        with Cores(self.settings) as cores:
            self.work(server, sample)
        sample.figures["others"] = cores.others
        self.verify(server, sample)
        return sample

    def ready(self) -> None:
        """What is not measured."""
        self.plant.load()

    def work(self, server: Part, sample: Sample) -> None:
        raise NotImplementedError

    def verify(self, server: Part, sample: Sample) -> None:
        """Complain of what did not come about; not measured either."""


def millions(rows: int) -> str:
    return f"{rows / 1e6:g} M"


def compare(sample: Sample, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        sample.complaints.append(f"{what}: {found}, and it should be {expected}")


def cpu_lines(key: str = "", label: str = "") -> list[Line]:
    """The processor time of a change in the whole chain, and whose it is; the rest is the JVM's."""
    return [
        Line(f"cpu{key}", f"{label}CPU of server and Spark per change", "µs", higher=False),
        Line(f"server{key}", f"{label}of that the server", "µs", higher=False, secondary=True, compared=False),
        Line(f"python{key}", f"{label}of that Python: driver, source and staging", "µs", higher=False, secondary=True,
             compared=False),
    ]  # fmt: skip


def note_cpu(sample: Sample, before: Chain, after: Chain, changes: int, key: str = "") -> None:
    spent = [(each - then) / changes * 1e6 for each, then in zip(after, before, strict=True)]
    sample.figures |= {f"cpu{key}": sum(spent), f"server{key}": spent[0], f"python{key}": spent[1]}


class LapRow(PipelineRow):
    """A job that says how far it is: its rate up to each of the sizes."""

    contenders = ("tailrace", PARQUET)
    goal: ClassVar[float]

    def lines(self) -> list[Line]:
        lines = [
            Line(
                f"rate {size}", f"the first {millions(size)}", "/s", at_least=self.goal if size == self.most else None
            )
            for size in self.sizes
        ]  # fmt: skip
        return [*lines, *cpu_lines(), *self.more(), self.others()]

    def more(self) -> list[Line]:
        return []

    def work(self, server: Part, sample: Sample) -> None:
        before = self.plant.chain()
        if server.name == PARQUET:
            for size in self.sizes:
                sample.figures[f"rate {size}"] = size / self.native(size)
        else:
            self.note(sample, self.ours(sample))
        note_cpu(sample, before, self.plant.chain(), sum(self.sizes) if server.name == PARQUET else self.most)

    def ours(self, sample: Sample) -> dict[str, Any]:
        """Run the job; what it took."""
        raise NotImplementedError

    def native(self, size: int) -> float:
        """The seconds that Spark takes for the like over so many changes as Parquet."""
        raise NotImplementedError

    def note(self, sample: Sample, done: dict[str, Any]) -> None:
        for size, (rows, seconds) in zip(self.sizes, done["laps"], strict=False):
            sample.figures[f"rate {size}"] = rows / seconds
        sample.figures[f"rate {self.most}"] = self.most / done["seconds"]
        compare(sample, "rows that the job has counted", done["rows"], self.most)

"""The benchmarks: the load generator, both of its kinds, what a sample says, and what a report makes of samples."""

from __future__ import annotations

import asyncio
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tailrace
from bench import appends, generator, live, load, report, rows
from bench.generator import MARK, Pages, Prepared, Source
from bench.load import Address, Failed, Session
from bench.machine import Disk, interpreter_build, tailrace_build
from bench.machine import describe as machine_of
from bench.pipeline import rows as pipeline
from bench.pipeline.views import FreshViews
from bench.pipeline.worker import Kept
from bench.rows import Line, Row, Sample, Settings


def test_the_load_generator_measures_a_temporary_server() -> None:
    result = CliRunner().invoke(appends.main, ["--seconds", "0.2", "--connections", "2"])
    assert result.exit_code == 0, result.output
    assert "latency p50" in result.output


# -- the load generator


@pytest.fixture(scope="module")
def server() -> Iterator[Address]:
    with appends._server(None) as (address, _):
        yield address


@pytest.fixture(params=["compiled", "python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of load generator must do the same."""
    if request.param == "python":
        monkeypatch.setattr(generator, "programs", dict)
    elif not generator.programs():
        pytest.skip("there is no C compiler")
    return str(request.param)


def drive(address: Address, *sources: Source) -> generator.Driven:
    return asyncio.run(generator.drive(address, sources))


def test_appends_are_counted_by_stream_and_verified(server: Address, kind: str) -> None:
    targets = [f"/v1/stream/{kind}/{n}" for n in range(3)]
    with Session(server) as session:
        before = {target: session.create(target) for target in targets}
        sources = [generator.appends(targets, b"x" * 50, load.OCTETS, limit=7) for _ in range(2)]
        done = asyncio.run(generator.append(server, sources))
        assert not done.errors
        assert done.acknowledged == {targets[0]: 6, targets[1]: 4, targets[2]: 4}  # seven requests round three streams
        assert len(done.latencies) == 14
        assert done.seconds > 0
        assert not generator.verify(session, done, before, count=None, size=50)
        session.call("POST", targets[0], [("content-type", load.OCTETS)], b"y" * 50)
        complaints = generator.verify(session, done, before, count=None, size=50)
    assert len(complaints) == 2  # the tail is another one, and there is one append more


def test_a_producer_sends_the_next_sequence_each_time(server: Address, kind: str) -> None:
    target = f"/v1/stream/{kind}/produced"
    with Session(server) as session:
        before = {target: session.create(target)}
        source = generator.produced([target], "p", b"x" * 10, load.OCTETS)._replace(limit=12)
        done = asyncio.run(generator.append(server, [source]))
        assert not done.errors
        assert done.answers[0][0].number == 11
        assert not generator.verify(session, done, before, count=None, size=10)
    again = asyncio.run(generator.append(server, [source]))
    assert again.errors == {"status 204": 1}  # a duplicate, after which a producer does not go on


def test_a_status_or_a_text_that_is_not_expected_is_an_error(server: Address, kind: str) -> None:
    target = f"/v1/stream/{kind}/read"
    with Session(server) as session:
        session.create(target)
        session.call("POST", target, [("content-type", load.OCTETS)], b"abc abc")
    read = load.request("GET", f"{target}?offset=-1")
    found = Source([Prepared(read, needle=b"abc", times=2)], limit=3)
    other = Source([Prepared(read, needle=b"abc", times=1)], limit=4)
    missing = Source([Prepared(load.request("GET", f"{target}-not-there?offset=-1"))], limit=5)
    done = drive(server, found, other, missing)
    assert done.errors == {"wrong answer": 4, "status 404": 5}
    assert [answers[0].count for answers in done.answers] == [3, 0, 0]
    assert len(done.latencies) == 3


def test_pages_are_read_from_the_first_to_the_last(server: Address, kind: str) -> None:
    target = f"/v1/stream/{kind}/long"
    with Session(server) as session:
        session.create(target)
        done = drive(server, generator.appends([target], b"x" * 1_000_000, load.OCTETS, limit=12))
        assert not done.errors
        pages = Pages.of(session, target)
        part = Pages.of(session, target, most=1)
    assert sum(pages.lengths) == 12_000_000
    assert len(pages.lengths) > len(part.lengths) == 1
    called: list[str] = []
    done, read = asyncio.run(
        generator.read(server, pages, 0.0, partial(called.append, "started"), partial(called.append, "ended"))
    )
    assert (called, dict(done.errors), read) == (["started", "ended"], {}, 12_000_000)
    wrong = pages._replace(lengths=[length + 1 for length in pages.lengths])
    done, _ = asyncio.run(generator.read(server, wrong, 0.0, called.clear, called.clear))
    assert done.errors == {"a page of another length": len(pages.lengths)}


def test_a_body_in_chunks_counts_without_its_frames(kind: str) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\na\r\n0123456789\r\n0\r\n\r\n"

    class Answers(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1 << 16):
                for at in range(0, len(answer), 7):  # in pieces
                    self.request.sendall(answer[at : at + 7])

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        read = Prepared(load.request("GET", "/"))
        done = drive(Address(*server.server_address[:2]), Source([read], limit=3))
        found = drive(Address(*server.server_address[:2]), Source([read._replace(needle=b"cde", times=1)], limit=2))
        server.shutdown()
    assert (dict(done.errors), dict(found.errors)) == ({}, {})
    assert (done.answers[0][0].body_bytes, found.answers[0][0].count) == (45, 2)


def test_a_number_takes_the_place_of_its_mark(server: Address, kind: str) -> None:
    target = f"/v1/stream/{kind}/numbers"
    with Session(server) as session:
        session.create(target)
        done = drive(server, Source([Prepared(load.post(target, MARK), 204).numbered()], first=98, limit=3))
        assert done.answers == [[generator.Answered(3, 100, session.tail(target), 0)]]
        assert b"".join(page.body for page in session.pages(target)) == b"000000980000009900000100"


def test_a_window_of_time_is_measured(server: Address, kind: str) -> None:
    target = f"/v1/stream/{kind}/timed"
    with Session(server) as session:
        session.create(target)
    for seconds in (0.3, 3.0, 30.0):  # on a machine that is busy with other things the first may see no answer
        called: list[str] = []
        done = asyncio.run(
            generator.append(
                server,
                [generator.appends([target], b"x", load.OCTETS)],
                seconds=seconds,
                warmup_s=0.1,
                started=partial(called.append, "started"),
                ended=partial(called.append, "ended"),
            )
        )
        assert called == ["started", "ended"]
        assert not done.errors
        assert done.seconds >= seconds
        assert len(done.latencies) <= done.acknowledged[target]
        if done.latencies:
            break
    assert done.rate > 0


def test_a_server_that_is_not_there_is_a_failure(kind: str) -> None:
    source = Source([Prepared(load.request("GET", "/"))], limit=1)
    with pytest.raises((Failed, OSError)):
        drive(Address("127.0.0.1", 1), source)


def test_a_delivery_to_each_live_reader_is_timed(server: Address, kind: str) -> None:
    targets = [f"/v1/stream/{kind}/live-{n}" for n in range(2)]
    with Session(server) as session:
        for target in targets:
            session.create(target, load.TEXT)
    called: list[str] = []

    def deliver(targets: list[str], pace: float, *, lockstep: bool) -> live.Delivery:
        return asyncio.run(
            live.deliver(
                server,
                targets,
                readers_each=3,
                pens_each=1,
                rate=pace,
                seconds=0.5,
                started=partial(called.append, "started"),
                ended=partial(called.append, "ended"),
                lockstep=lockstep,
            )
        )

    done = deliver(targets, 20, lockstep=False)
    assert called == ["started", "ended"]
    assert not done.errors
    assert len(done.latencies) == done.appended * 3 == done.expected > 0
    assert min(done.latencies) > 0
    assert 1 <= deliver(targets[:1], 5, lockstep=True).appended <= 3
    with pytest.raises(Failed, match="404"):
        deliver([f"/v1/stream/{kind}/not-there"], 5, lockstep=True)


# -- processor time


def test_the_time_of_threads_that_have_ended_counts() -> None:
    program = (
        "import threading, time\n"
        "def burn():\n"
        "    while time.thread_time() < 0.3: pass\n"
        "thread = threading.Thread(target=burn); thread.start(); thread.join()\n"
        "print(time.process_time(), flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = float(child.stdout.readline())
        measured = load.cpu_s(child.pid)
        child.communicate("\n")
    assert said - 0.05 <= measured <= said + 0.2


# -- samples and reports


class Disturbed(Row[Any]):
    """A row whose samples say one after the other how much of the core others took."""

    def __init__(self, settings: Settings, others: list[float]) -> None:
        super().__init__(settings)
        self.others = others

    def measure(self, server: Any) -> Sample:
        return Sample({"rate": len(self.others), "others": self.others.pop(0)})


@pytest.mark.parametrize(
    ("others", "again", "in_all", "kept"),
    [
        ([3.0, 50.0], 3, 10, 3.0),  # quiet at once
        ([50.0, 20.0, 4.0, 1.0], 3, 10, 4.0),  # at the third attempt
        ([50.0, 20.0, 30.0, 40.0, 1.0], 3, 10, 20.0),  # never: the least disturbed one
        ([50.0, 1.0], 3, 0, 50.0),  # nothing left to spend on it
    ],
)
def test_a_disturbed_sample_is_repeated(
    others: list[float], again: int, in_all: int, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "AGAIN_AFTER_S", 0.0)
    settings = Settings(again=again, again_in_all=in_all)
    assert rows.quiet_sample(None, Disturbed(settings, others)).figures["others"] == kept


def made(**samples: list[tuple[float, float]]) -> report.RowResult:
    """A row with samples of each server: a rate, and what others took of the core."""
    line = Line("rate", "appends", "/s", ratio_at_least=2, against="electric")
    row = report.RowResult("append", "appends", [line])
    for server, pairs in samples.items():
        row.samples[server] = [Sample({"rate": rate, "others": others}) for rate, others in pairs]
    return row


def shown(row: report.RowResult, *, publish: bool) -> report.Cells:
    nothing: Any = None
    whole = report.Report(nothing, nothing, quick=False, repetitions=1, seconds=1, rows=[row])
    return report.cells(whole, row, row.lines[0], publish=publish)


def test_a_ratio_is_to_the_best_and_an_expectation_to_the_server_it_names() -> None:
    cells = shown(made(tailrace=[(300, 0)], reference=[(600, 0)], electric=[(100, 0)]), publish=True)
    assert (cells.figures, cells.ratio, cells.expected, cells.met) == (
        ["300/s", "600/s", "100/s"],
        "0.50×",
        "≥ 2× electric",
        True,
    )


def test_disturbed_samples_do_not_count_beside_quiet_ones() -> None:
    cells = shown(made(tailrace=[(10, 60), (300, 2), (20, 60)], electric=[(100, 0)]), publish=True)
    assert cells.figures == ["300/s", "", "100/s"]
    assert cells.met is True


def test_a_disturbed_figure_is_marked_and_not_published() -> None:
    row = made(tailrace=[(300, 60)], electric=[(100, 0)])
    assert shown(row, publish=True).figures == ["disturbed", "", "100/s"]
    assert shown(row, publish=True).ratio == ""
    assert shown(row, publish=False).figures == ["300/s (disturbed)", "", "100/s"]
    assert shown(row, publish=False).met is None
    other = made(tailrace=[(300, 0)], electric=[(100, 60)])
    assert (shown(other, publish=True).met, shown(other, publish=True).ratio) == (None, "")


def test_a_report_is_narrowed_to_some_rows(tmp_path: Path) -> None:
    disk = Disk(0.1, 0.1, 0.1)
    whole = report.Report(machine_of(tmp_path, tmp_path, "C"), disk, quick=True, repetitions=1, seconds=1)
    whole.rows = [report.RowResult(name, name, [], group=group) for name, group in (("a", "streams"), ("b", "tables"))]
    whole.peers = {"tailrace": "synced", "electric": "synced", "dynoxide": "synced"}
    narrowed = whole.narrowed({"b"})
    assert [row.name for row in narrowed.rows] == ["b"]
    assert set(narrowed.peers) == {"tailrace", "dynoxide"}
    report.save(whole, tmp_path / "run.json")
    assert report.read(tmp_path / "run.json").narrowed({"a", "b"}) == whole


def test_the_report_says_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PGO" in interpreter_build()
    monkeypatch.setattr(tailrace, "__path__", [str(tmp_path)])
    for name in ("__init__.py", "runner.py", "clock.py"):
        (tmp_path / name).touch()
    assert tailrace_build() == "plain Python, not compiled"
    (tmp_path / f"runner{EXTENSION_SUFFIXES[0]}").touch()
    assert tailrace_build() == "compiled (1 of 3 modules)"


# -- the pipeline


def test_the_rows_of_the_pipeline_say_what_they_measure(tmp_path: Path) -> None:
    settings = Settings.quick()
    settings.data = tmp_path
    measured = [row(settings) for row in pipeline.ROWS]
    assert len({row.name for row in measured}) == len(measured)
    assert isinstance(measured[-1], FreshViews), "it adds changes to the history"
    for row in measured:
        assert row.name.startswith("pipeline") and row.title and row.group == "pipeline"
        assert len({line.key for line in row.lines()}) == len(row.lines()) > 1
    assert "PySpark" in pipeline.about()


def test_a_job_that_keeps_a_view_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first write: the view may be at the end of its source while no job runs."""
    pytest.importorskip("pyspark")
    from tailrace.spark.jobs import view as job
    from tailrace.spark.jobs.progress import RUNNING, STARTING, Progress

    filled, failing = threading.Event(), threading.Event()

    def view(spark: Any, name: str, *, on_progress: Any, stop: threading.Event, **options: Any) -> None:
        for state, message in ((STARTING, ""), (RUNNING, "filling the view")):
            on_progress(Progress(job=name, kind="view", state=state, message=message))
        filled.wait()
        if failing.is_set():
            raise Failed("the view has no key")
        on_progress(Progress(job=name, kind="view", state=RUNNING))
        stop.wait()

    monkeypatch.setattr(job, "view", view)
    spark: Any = None
    kept = Kept(spark, "", "totals")
    with pytest.raises(TimeoutError, match="has not started"):
        kept.wait(0.1)
    filled.set()
    kept.wait()
    kept.stop()
    failing.set()
    with pytest.raises(Failed, match="the view has no key"):
        Kept(spark, "", "totals").wait()

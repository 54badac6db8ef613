"""The processes that run SELECT: used again, stopped, replaced, and stopped when idle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace import limits
from tailrace.errors import Invalid, TooLarge, Unavailable
from tailrace.sql import workers
from tailrace.sql.workers import DuckDBError, QueryInterrupted, SelectWorker, WorkerPool
from tests.support.patience import PATIENCE_S

ENDLESS = "WITH a AS (SELECT unnest([1,2,3,4,5,6,7,8,9,10]) v) SELECT count(a.v || b.v) FROM " + ", ".join(
    ["a", *(f"a {name}" for name in "bcdefghijklmno")]
)


def never() -> bool:
    return False


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


def rows(worker: SelectWorker, text: str, *params: Any, over: Callable[[], bool] = never) -> list[dict[str, Any]]:
    _, *batches = worker.run(text, params, [], over)
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_worker_is_used_again_and_forgets_what_it_was_sent(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        first = worker.pid
        table = pa.table({"n": [1, 2, 3]})
        _, batch = worker.run("SELECT sum(n) AS s FROM t", (), [("t", table)], never)
        assert batch.to_pylist() == [{"s": 6}]
    with pool.worker() as worker:
        assert worker.pid == first
        with pytest.raises(DuckDBError) as caught:
            rows(worker, "SELECT * FROM t")
        assert caught.value.kind == "CatalogException"
        assert rows(worker, "SELECT 1 AS one") == [{"one": 1}]


def test_two_statements_at_once_have_two_workers(pool: WorkerPool) -> None:
    with pool.worker() as one, pool.worker() as other:
        assert one.pid != other.pid


def test_a_statement_that_is_over_is_interrupted_and_its_worker_lives_on(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        begun = time.monotonic()
        with pytest.raises(QueryInterrupted):
            rows(worker, ENDLESS, over=lambda: time.monotonic() > begun + 0.3)
        assert worker.alive
        assert rows(worker, "SELECT 2 AS two") == [{"two": 2}]


def test_a_worker_of_a_large_server_is_not_large(pool: WorkerPool) -> None:
    large = b"x" * (limits.SELECT_WORKER_BYTES_MAX + (64 << 20))  # the ru_maxrss of a process that is started now
    with pool.worker() as worker:
        begun = time.monotonic()
        with pytest.raises(QueryInterrupted):  # after its memory was looked at
            rows(worker, ENDLESS, over=lambda: time.monotonic() > begun + 2.5)
        assert worker.alive
    del large


def test_whoever_stops_reading_stops_the_query(pool: WorkerPool) -> None:
    text = "WITH a AS (SELECT unnest([1,2,3,4,5,6,7,8,9,10]) v) SELECT a.v FROM a, a b, a c, a d, a e, a f, a g, a h"
    with pool.worker() as worker:
        answer = worker.run(text, (), [], never)
        next(answer)
        next(answer)
        answer.close()
        assert rows(worker, "SELECT 3 AS three") == [{"three": 3}]


def test_a_worker_that_was_killed_is_replaced(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        killed = worker.pid
    os.kill(killed, 9)
    deadline_s = time.monotonic() + PATIENCE_S
    while worker.alive:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pool.worker() as worker:
        assert worker.pid != killed
        assert rows(worker, "SELECT 1 AS one") == [{"one": 1}]


def test_a_worker_that_is_killed_while_it_runs_fails_its_statement_alone(pool: WorkerPool) -> None:
    with pytest.raises(TooLarge, match="status -9"), pool.worker() as worker:
        threading.Timer(0.3, os.kill, (worker.pid, 9)).start()
        rows(worker, ENDLESS)
    with pool.worker() as worker:
        assert rows(worker, "SELECT 1 AS one") == [{"one": 1}]


def test_a_worker_that_holds_much_memory_is_replaced(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_WORKER_KEPT_BYTES", 1)
    with pool.worker() as worker:
        first = worker.pid
        rows(worker, "SELECT 1")
    with pool.worker() as worker:
        assert worker.pid != first


def test_an_idle_worker_ends_but_for_one(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_WORKER_IDLE_S", 5.0)  # enough to use it, on a machine that is very busy
    with pool.worker() as kept, pool.worker() as other:
        assert rows(other, "SELECT 1 AS one") == [{"one": 1}]
    wait_for(lambda: not other.alive, "an idle worker stays")
    assert kept.alive
    with pool.worker() as worker:
        assert rows(worker, "SELECT 1 AS one") == [{"one": 1}]


def test_a_worker_gets_no_secrets_and_writes_no_files(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_TOKEN", "a secret of the server")
    with pool.worker() as worker:
        if sys.platform == "linux":
            assert b"a secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()
            bounds = Path(f"/proc/{worker.pid}/limits").read_text()
            assert f"Max data size             {limits.SELECT_WORKER_BYTES_MAX} " in bounds
            assert "Max file size             0 " in bounds
        with pytest.raises(DuckDBError):
            rows(worker, "SELECT * FROM read_text('/etc/hostname')")


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, ending: str) -> None:
    program = f"""
import os, tailrace
from tailrace.sql.workers import POOL
db = tailrace.open({str(tmp_path)!r}, housekeeping_s=None)
assert db.sql("SELECT 1 AS one").rows == [{{"one": 1}}]
print(POOL._kept.pid, flush=True)
{ending or "db.close()"}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stderr == ""
    pid = int(ended.stdout)
    wait_for(lambda: not _runs(pid), "a worker outlives its parent")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return (
        not stat.exists() or stat.read_text().rpartition(") ")[2][:1] != "Z"
    )  # its exit status may not be collected yet


def test_signals_to_all_processes_are_for_the_parent_to_answer(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        assert os.getpgid(worker.pid) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker.pid, number)
        assert rows(worker, "SELECT 1 AS one") == [{"one": 1}]


def test_after_a_fork_the_child_has_workers_of_its_own(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        ours = worker.pid
    pool.forget()  # as in the child
    with pool.worker() as worker:
        assert worker.pid != ours
    os.kill(ours, 9)


def test_parameters_are_plain_values(pool: WorkerPool) -> None:
    class Name(str):
        pass

    with pool.worker() as worker:
        assert rows(worker, "SELECT $1 AS a, $2 AS b", Name("x"), bytearray(b"y")) == [{"a": "x", "b": b"y"}]
        with pytest.raises(Invalid, match="parameter 1 is a object"):
            rows(worker, "SELECT $1", object())


def test_a_python_that_cannot_start_a_worker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for executable, message in (("/nowhere/python", "cannot start"), ("/bin/false", "exit status 1")):
        monkeypatch.setattr(workers.sys, "executable", executable)
        with pytest.raises(Unavailable, match=message):
            SelectWorker(0.0)


# -- sources that a worker keeps


def kept_rows(worker: SelectWorker, token: str, *values: int) -> list[Any]:
    table = pa.table({"n": list(values)}).replace_schema_metadata({workers.TOKEN: token})
    found = worker.run("SELECT sum(n) AS s FROM held", (), [("held", table)], lambda: False)
    next(found)
    return [row["s"] for batch in found for row in batch.to_pylist()]


def test_a_source_with_a_token_is_sent_once(pool: WorkerPool) -> None:
    with pool.worker() as worker:
        assert kept_rows(worker, "a", 1, 2) == [3]
        assert kept_rows(worker, "a", 50) == [3], "the worker has it still"
        assert kept_rows(worker, "b", 50) == [50]
        with pytest.raises(DuckDBError):
            list(worker.run("SELECT nope FROM held", (), [("held", pa.table({"n": [1]}))], lambda: False))
        assert kept_rows(worker, "a", 60) == [60], "after a failure nothing is taken for granted"
        with pytest.raises(DuckDBError):
            list(worker.run("SELECT n FROM held", (), [], lambda: False))


def test_what_a_worker_keeps_is_bounded(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SELECT_WORKER_HELD_BYTES", 16)
    with pool.worker() as worker:
        assert kept_rows(worker, "a", 1) + kept_rows(worker, "b", 2) == [1, 2]
        assert kept_rows(worker, "a", 10) == [1]
        assert kept_rows(worker, "c", 3) == [3]  # in place of b
        assert kept_rows(worker, "b", 20) == [20]
        assert kept_rows(worker, "d", 1, 2, 3) == [6]  # too large to be kept
        assert kept_rows(worker, "d", 1) == [1]

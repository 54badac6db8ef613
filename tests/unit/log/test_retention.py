"""Where a log should start: a boundary, never too far, and only over what is its own."""

from __future__ import annotations

import pytest

from tailrace import limits
from tailrace.log import log as logs
from tailrace.log.entry import LOGS, Log
from tailrace.log.retention import horizon
from tests.unit.log.conftest import Bench


def aged(bench: Bench, log: Log | None, *bodies: bytes) -> Log:
    """Appends, ten seconds apart; the clock stands at the last."""
    for number, body in enumerate(bodies):
        if number or log is not None:
            bench.now_ms += 10_000

        def work(tx: object, log: Log | None = log, body: bytes = body) -> Log:
            current = logs.create(tx, "test") if log is None else tx.get(LOGS, log.id)  # type: ignore
            return logs.append(tx, current, body, len(body))  # type: ignore[arg-type]

        log = bench.do(work)
    assert log is not None
    return log


def start(bench: Bench, log: Log, *, max_age_s: int | None = None, max_bytes: int | None = None) -> int:
    with bench.engine.reader(bench.now_ms) as reader:
        current = reader.get(LOGS, log.id)
        assert current is not None
        return horizon(reader, current, max_age_s=max_age_s, max_bytes=max_bytes)


@pytest.mark.parametrize(
    ("max_age_s", "expected"),
    [(1000, 0), (40, 0), (39, 2), (30, 2), (29, 4), (20, 4), (10, 6), (9, 8), (1, 8)],
)
def test_by_age(bench: Bench, max_age_s: int, expected: int) -> None:
    log = aged(bench, None, b"aa", b"bb", b"cc", b"dd", b"ee")
    assert start(bench, log, max_age_s=max_age_s) == expected


def test_everything_grows_old(bench: Bench) -> None:
    log = aged(bench, None, b"aa", b"bb")
    bench.now_ms += 3_600_000
    assert start(bench, log, max_age_s=60) == 4


@pytest.mark.parametrize(
    ("max_bytes", "expected"), [(100, 0), (10, 0), (9, 2), (8, 2), (7, 4), (4, 6), (3, 8), (2, 8), (1, 8)]
)
def test_by_bytes(bench: Bench, max_bytes: int, expected: int) -> None:
    log = aged(bench, None, b"aa", b"bb", b"cc", b"dd", b"ee")
    found = start(bench, log, max_bytes=max_bytes)
    assert found == expected
    assert log.next - found <= max(max_bytes, 2), "the last message stays"


def test_whichever_comes_first(bench: Bench) -> None:
    log = aged(bench, None, b"aa", b"bb", b"cc", b"dd", b"ee")
    assert start(bench, log, max_age_s=20, max_bytes=100) == 4
    assert start(bench, log, max_age_s=1000, max_bytes=4) == 6
    assert start(bench, log) == 0


def test_it_looks_at_one_step_at_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SWEEP_ENTRIES", 2)
    log = aged(bench, None, *[b"aa"] * 10)
    assert start(bench, log, max_bytes=2) == 6
    log = bench.do(lambda tx: logs.trim(tx, log, 6))
    assert start(bench, log, max_bytes=2) == 12


def fork(bench: Bench, parent: Log, position: int) -> Log:
    def work(tx: object) -> Log:
        return logs.fork(tx, tx.get(LOGS, parent.id), "fork", position)  # type: ignore

    return bench.do(work)


def test_a_fork_gives_up_what_it_inherited_as_a_whole(bench: Bench) -> None:
    parent = aged(bench, None, b"aa", b"bb", b"cc")
    log = aged(bench, fork(bench, parent, 4), b"11", b"22", b"33")
    assert start(bench, log, max_bytes=9) == 0, "one byte of what it inherited is within bounds"
    assert start(bench, log, max_bytes=6) == 4
    assert start(bench, log, max_bytes=3) == 8


def test_a_fork_with_nothing_of_its_own(bench: Bench) -> None:
    log = fork(bench, aged(bench, None, b"aa", b"bb"), 4)
    assert start(bench, log, max_age_s=60) == 0
    bench.now_ms += 61_000
    assert start(bench, log, max_age_s=60) == 4


def test_a_busy_fork_gives_up_what_it_inherited(bench: Bench) -> None:
    """What was inherited is older than the fork's first own entry; later ones must not keep it alive for ever."""
    log = fork(bench, aged(bench, None, b"aa", b"bb"), 4)
    log = aged(bench, log, *[b"11"] * 12)
    assert start(bench, log, max_age_s=35) == 20
    assert start(bench, log, max_age_s=200) == 0

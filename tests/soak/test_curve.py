"""The mixed soak fails when something grows, and only then."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.soak.curve import JUDGED_MIN, WARM_UP, Sample, growth, picture

WAL_MB_MAX = 64.0


def samples(
    count: int, *, life: int = 1, rss_mb: float = 200.0, leak_mb: float = 0.0, wal_mb: float = 4.0
) -> list[Sample]:
    return [
        Sample(10.0 * n, life, rss_mb + leak_mb * n, 50, wal_mb, 30.0, 100.0, {"append": 5.0}) for n in range(count)
    ]


def test_steady_figures_pass() -> None:
    assert growth(samples(60), WAL_MB_MAX) == []


def test_a_leak_is_found() -> None:
    (problem,) = growth(samples(60, leak_mb=3.0), WAL_MB_MAX)
    assert problem.startswith("memory (MB) grew")


def test_files_that_are_never_closed_are_found() -> None:
    leaking = samples(60)
    for number, each in enumerate(leaking):
        each.files += 5 * number
    (problem,) = growth(leaking, WAL_MB_MAX)
    assert problem.startswith("open files grew")


def test_one_large_wal_is_enough() -> None:
    found = samples(60)
    found[3].wal_mb = 100.0
    (problem,) = growth(found, WAL_MB_MAX)
    assert problem == "the WAL grew to 100 MB; 64 MB are allowed"


def test_a_restart_is_no_growth() -> None:
    assert growth(samples(30, rss_mb=100.0) + samples(60, life=2, rss_mb=300.0), WAL_MB_MAX) == []


def test_a_life_too_short_to_judge_is_no_success() -> None:
    (problem,) = growth(samples(WARM_UP + JUDGED_MIN - 1), WAL_MB_MAX)
    assert "are needed to judge growth" in problem


def test_the_picture_is_well_formed_and_shows_kills() -> None:
    found = samples(10)
    found[4].faults = ["kill -9"]
    drawn = picture(found)
    ElementTree.fromstring(drawn)
    assert drawn.count("stroke-dasharray") == 4, "one in each chart"

"""Shows at the end of a run how many tests of the official suite passed."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = [
        f"conformance, {value}"
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "conformance"
    ]
    for count in dict.fromkeys(counts):
        terminalreporter.write_line(count)

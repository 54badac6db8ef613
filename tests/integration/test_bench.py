"""`python -m bench.appends` measures a temporary server in dev mode."""

from __future__ import annotations

from click.testing import CliRunner

from bench.appends import main


def test_the_load_generator_measures_a_temporary_server() -> None:
    result = CliRunner().invoke(main, ["--seconds", "0.2", "--connections", "2"])
    assert result.exit_code == 0, result.output
    assert "latency p50" in result.output

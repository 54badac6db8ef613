"""`tailrace bench` measures a server of its own, in dev mode as any newcomer's."""

from __future__ import annotations

from click.testing import CliRunner

from tailrace.cli import cli


def test_bench_measures_a_temporary_server() -> None:
    result = CliRunner().invoke(cli, ["bench", "--seconds", "0.2", "--connections", "2"])
    assert result.exit_code == 0, result.output
    assert "ms" in result.output

"""The files for deployment agree with the product: settings load, commands exist, copied files are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from tailrace import config
from tailrace.cli import cli
from tailrace.spark.jobs import settings

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy").glob("*.service"))


def check_command(words: list[str]) -> None:
    """Parse a command line of tailrace without running it."""
    context: click.Context = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command(path: Path) -> None:
    (line,) = re.findall(r"^ExecStart=/opt/tailrace/bin/tailrace (.*)$", path.read_text(), re.M)
    check_command(shlex.split(line))


def test_the_settings_load() -> None:
    assert config.load(str(ROOT / "deploy" / "tailrace.toml"), environ={}).data == "/var/lib/tailrace"
    assert settings.load(str(ROOT / "deploy" / "pipeline.toml"), environ={}).tier.enabled


def test_the_images_are_built_from_files_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = {name for names in re.findall(r"^COPY (.+) \S+$", text, re.M) for name in names.split()}
    assert copied and copied <= set(allowed)
    assert all((ROOT / name).exists() for name in copied)
    for entry, arguments in re.findall(r"^ENTRYPOINT (\[.*\])\nCMD (\[.*\])$", text, re.M):
        check_command([*yaml.safe_load(entry)[1:], *yaml.safe_load(arguments)])
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.M))
    assert {service["build"]["target"] for service in services.values()} == {"server", "pipeline"} <= targets

"""Profiles: which server and which credentials a command uses, and the errors of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tailrace.cli.options import credentials, server_options
from tests.unit.cli.test_cli import program
from tests.unit.threaded import Served


@click.command()
@server_options
def shown(url: str, token: str | None) -> None:
    """Prints what a command would connect with."""
    facts = credentials(url, token, prompt=False)
    click.echo(f"{url} {facts}")


def run(*args: str, **env: str) -> str:
    result = CliRunner().invoke(shown, args, env=env)
    return result.output.strip() if result.exception is None else str(result.exception)


@pytest.fixture
def profiles(profiles_home: Path) -> Path:
    file = profiles_home / "tailrace.toml"
    file.write_text(
        """
[default]
url = "http://local:1"

[prod]
url = "https://prod:2"
token = "prod-token"

[ann]
url = "https://prod:2"
user = "ann"
password = "secret"
"""
    )
    file.chmod(0o600)
    return file


def test_without_a_file_the_url_is_the_local_server() -> None:
    assert run() == "http://127.0.0.1:4437 {'token': None}"


def test_a_profile_has_the_url_and_the_credentials(profiles: Path) -> None:
    assert run() == "http://local:1 {'token': None}"
    assert run("--profile", "prod") == "https://prod:2 {'token': 'prod-token'}"
    assert run(TAILRACE_PROFILE="prod") == "https://prod:2 {'token': 'prod-token'}"
    assert run("--profile", "ann") == "https://prod:2 {'user': 'ann', 'password': 'secret'}"


def test_the_environment_wins_over_a_profile_that_is_not_on_the_command_line(profiles: Path) -> None:
    assert run(TAILRACE_PROFILE="prod", TAILRACE_URL="http://x:3") == "http://x:3 {'token': None}"
    assert run("--profile", "prod", TAILRACE_URL="http://x:3", TAILRACE_TOKEN="t") == (
        "https://prod:2 {'token': 'prod-token'}"
    )
    assert run("--profile", "prod", "--token", "mine") == "https://prod:2 {'token': 'mine'}"
    assert run(TAILRACE_PROFILE="ann", TAILRACE_TOKEN="t") == "https://prod:2 {'token': 't'}"


def test_the_credentials_of_a_profile_go_to_its_server_only(profiles: Path) -> None:
    assert run("--profile", "prod", "--url", "http://elsewhere:4") == "http://elsewhere:4 {'token': None}"
    assert run("--profile", "ann", "--url", "http://elsewhere:4") == "http://elsewhere:4 {'token': None}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[prod]\nurl = 1", "url in [prod] must be text"),
        ("[prod]\nurl = ''", "url in [prod] must be text"),
        ("[prod]\nurI = 'http://x'", "[prod] has an unknown key 'urI'; a profile has url, token, user, password"),
        ("[prod]\ntoken = 'a'\nuser = 'b'", "[prod] has both token and user"),
        ("[prod]\npassword = 'a'", "[prod] has a password and no user"),
        ("prod = 1", "prod must be a table [prod]"),
        ("[prod", "is not TOML"),
        ("[other]\nurl = 'http://x'", "has no profile 'prod'; its profiles: other. Add a table [prod]"),
    ],
)
def test_an_error_names_the_file_and_the_key(profiles: Path, content: str, message: str) -> None:
    profiles.write_text(content)
    error = run("--profile", "prod")
    assert str(profiles) in error
    assert message in error


def test_a_file_with_secrets_must_be_private(profiles: Path) -> None:
    profiles.chmod(0o644)
    assert f"chmod 600 {profiles}" in run("--profile", "prod")
    assert run() == "http://local:1 {'token': None}", "the default profile has no secrets"


@pytest.fixture
def server(data_dir: Path) -> Iterator[Served]:
    with Served(data_dir) as served:
        yield served


def test_the_profile_may_stand_before_the_command(profiles: Path, server: Served) -> None:
    profiles.write_text(f'[here]\nurl = "{server.url}"\n')
    for args in (("--profile", "here", "streams", "list"), ("streams", "list", "--profile", "here")):
        done = program(*args, env={"TAILRACE_URL": "http://127.0.0.1:1"})
        assert (done.returncode, done.stdout) == (0, b""), done.stderr
    assert program("streams", "list", "--profile", "nothing").returncode == 1
    assert b"no profile 'nothing'" in program("--profile", "nothing", "streams", "list").stderr

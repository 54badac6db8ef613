"""``tailrace cluster``: the servers over one database in PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

import click
import httpx
import msgspec

from tailrace import config as settings
from tailrace.errors import Invalid
from tailrace.leadership import ClusterStatus, cluster_status
from tailrace.leadership import step_down as ask_to_step_down

ASK_S: Final = 3.0  # for the leader to answer how far the others are behind
database_option = click.option(
    "--database", metavar="URL", help="The database: postgresql://... (default: that of the settings)."
)
config_option = click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="The settings (default: tailrace.toml, if it exists)."
)


@click.command()
@database_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(database: str | None, file: str | None, as_json: bool) -> None:
    """Show which server leads, and which would take over. The status is 1 if none leads."""
    config = _settings(database, file)
    assert config.database is not None
    found = cluster_status(config.database)
    lags = _lags(found.leader, config.token) if found.followers else {}
    if as_json:
        facts = msgspec.to_builtins(found) | {"lag_s": {url: lags.get(url) for url in found.followers}}
        click.echo(msgspec.json.encode(facts).decode())
    else:
        _show(found, lags)
    if not found.leading:
        raise click.exceptions.Exit(1)


@click.command("step-down")
@database_option
@config_option
@click.option(
    "--timeout", "timeout_s", type=float, default=15, show_default=True, help="Seconds to wait for another one."
)
def step_down(database: str | None, file: str | None, timeout_s: float) -> None:
    """Ask the server that leads to let another one take over, and wait until one has."""
    url = _settings(database, file).database
    assert url is not None
    found = ask_to_step_down(url, timeout_s)
    click.echo(f"{found.leader or 'another server'} leads (epoch {found.epoch})")


def _settings(database: str | None, file: str | None) -> settings.Config:
    overrides: dict[str, Any] = {} if database is None else {"database": database}
    config = settings.load(file, **overrides)
    if config.database is None:
        raise Invalid("there is no cluster without a database in PostgreSQL; name it with --database postgresql://...")
    return config


def _lags(leader: str, token: str | None) -> dict[str, float | None]:
    """How far each follower is behind, as the leader says, if it can be asked: only it knows."""
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{leader}/v1/cluster", headers=headers, timeout=ASK_S)
        servers = answer.json()["servers"] if answer.status_code == 200 else []
        return {each["url"]: each["lag_s"] for each in servers if each["role"] == "follower"}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError):
        return {}


def _show(found: ClusterStatus, lags: dict[str, float | None]) -> None:
    if found.leading:
        renewed = "" if found.renewed_s is None else f", renewed {found.renewed_s:.1f} s ago (of {found.ttl_s:g})"
        click.echo(
            f"leader   {found.leader or '(without an address)'}  epoch {found.epoch}, {found.commits} commits{renewed}"
        )
    else:
        click.echo(f"leader   none; the last one was {found.leader or 'unknown'}, epoch {found.epoch}")
    for address in found.followers:
        lag = lags.get(address)
        click.echo(f"follower {address}" + ("" if lag is None else f"  {lag:.3f} s behind"))
    for address in found.standbys:
        click.echo(f"standby  {address}")

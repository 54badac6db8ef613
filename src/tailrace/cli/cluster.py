"""``tailrace cluster``: the servers over one database in PostgreSQL."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tailrace import config as settings
from tailrace.errors import Invalid
from tailrace.leadership import ClusterStatus, cluster_status
from tailrace.leadership import step_down as ask_to_step_down

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
    """Show which server leads, and which wait to take over. The status is 1 if none leads."""
    found = cluster_status(_url(database, file))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        _show(found)
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
    found = ask_to_step_down(_url(database, file), timeout_s)
    click.echo(f"{found.leader or 'another server'} leads (epoch {found.epoch})")


def _url(database: str | None, file: str | None) -> str:
    overrides: dict[str, Any] = {} if database is None else {"database": database}
    url = settings.load(file, **overrides).database
    if url is None:
        raise Invalid("there is no cluster without a database in PostgreSQL; name it with --database postgresql://...")
    return url


def _show(found: ClusterStatus) -> None:
    if found.leading:
        renewed = "" if found.renewed_s is None else f", renewed {found.renewed_s:.1f} s ago (of {found.ttl_s:g})"
        click.echo(
            f"leader   {found.leader or '(without an address)'}  epoch {found.epoch}, {found.commits} commits{renewed}"
        )
    else:
        click.echo(f"leader   none; the last one was {found.leader or 'unknown'}, epoch {found.epoch}")
    for address in found.standbys:
        click.echo(f"standby  {address}")

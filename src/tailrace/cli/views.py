"""``tailrace views``: the materialized views of a running server. The pipeline maintains them."""

from __future__ import annotations

import sys

import click
import msgspec

from tailrace.cli.names import view_argument
from tailrace.cli.options import connect, server_options
from tailrace.cli.text import quoted
from tailrace.cli.topics import print_json


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per view and line.")
@server_options
def list_views(as_json: bool, url: str, token: str | None) -> None:
    """List the materialized views: key, rows, phase, the state of the job, sources and SELECT."""
    with connect(url, token) as client:
        result = client.sql("SHOW MATERIALIZED VIEWS")[-1]
    if as_json:
        print_json(result.rows)
    elif result.rows:
        from tailrace.cli import drawing

        columns = [(column.name, column.type) for column in result.columns]
        console = drawing.terminal()
        console.print(drawing.grid(columns, result.rows, console.width if console.is_terminal else None))
    else:
        click.echo('there are no views; create one: tailrace sql "CREATE MATERIALIZED VIEW ..."', err=True)


@click.command()
@view_argument
@server_options
def describe(view: str, url: str, token: str | None) -> None:
    """Describe VIEW as JSON: its SELECT, its sources and its position in each."""
    with connect(url, token) as client:
        described = client.view(view)
    click.echo(msgspec.json.format(msgspec.json.encode(described), indent=2))


@click.command()
@view_argument
@server_options
def explain(view: str, url: str, token: str | None) -> None:
    """Show the strategy, the key, the columns and the derivative of VIEW, and warnings."""
    with connect(url, token) as client:
        rows = client.sql(f"EXPLAIN MATERIALIZED VIEW {quoted(view)}")[-1].rows
    for row in rows:
        click.echo(f"{row['property']:<11}{row['value']}")


@click.command()
@view_argument
@server_options
def refresh(view: str, url: str, token: str | None) -> None:
    """Have the job of VIEW fill it again from its sources."""
    with connect(url, token) as client:
        click.echo(client.sql(f"ALTER MATERIALIZED VIEW {quoted(view)} REFRESH")[-1].message)


@click.command()
@view_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@server_options
def drop(view: str, yes: bool, url: str, token: str | None) -> None:
    """Delete VIEW with its table. Its sources are not changed."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to confirm on: add --yes to drop the view")
        click.confirm(f"Drop materialized view {view!r}?", abort=True, err=True)
    with connect(url, token) as client:
        click.echo(client.sql(f"DROP MATERIALIZED VIEW {quoted(view)}")[-1].message)

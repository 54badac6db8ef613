"""``tailrace backup`` and ``tailrace restore``: a whole database with its cold storage.

Both work on local files and need no server; one may be running on the database that is backed up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from tailrace import config as settings
from tailrace.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from tailrace.backup import Manifest
    from tailrace.cold.store import Store

Advance = Callable[[str, int, int], None]
data_option = click.option("--data", type=click.Path(), default="data", show_default=True, help="The data directory.")
config_option = click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="The settings (default: tailrace.toml, if it exists)."
)


database_option = click.option(
    "--database",
    metavar="URL",
    envvar="TAILRACE_DATABASE",
    help="The database, if it is in PostgreSQL: postgresql://...",
)


def cold_of(cold: str | None, file: str | None) -> tuple[str | None, dict[str, str]]:
    """The URL of cold storage by the option or the settings, and its options; None: in the data directory."""
    configured = settings.load(file).cold
    return configured.url if cold is None else cold, configured.options


@click.command()
@click.argument("target")
@data_option
@click.option("--cold", metavar="URL", help="Its cold storage, if not that of the settings: a directory, or s3://...")
@config_option
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N backups, and delete the others."
)
@click.option("--deep", is_flag=True, help="Read all of cold storage, and read back everything stored.")
@database_option
def backup(
    target: str, data: str, cold: str | None, file: str | None, keep: int | None, deep: bool, database: str | None
) -> None:
    """Back up the database in a directory, with its cold storage, to TARGET: a directory, an archive (.tar, .tar.gz,
    .tar.zst) or s3://bucket/prefix. A server may be running on it. Files that TARGET already has are not stored again.
    The copy is verified before the backup is complete."""
    from tailrace.backup import back_up, open_source

    where, options = cold_of(cold, file)
    source = open_source(data, database or settings.load(file).database)
    with closing(source) as engine, _progress() as advance:
        made = back_up(
            engine,
            target,
            cold=_store(where, data, options),
            keep=keep,
            deep=deep,
            options=options,
            on_progress=advance,
        )
    manifest = made.manifest
    click.echo(
        f"{manifest.id}: {manifest.bytes:,} bytes in {len(manifest.files)} files "
        f"({manifest.cold_files} of cold storage), {manifest.written_bytes:,} new bytes stored in {made.target}"
    )
    for removed in made.removed:
        click.echo(f"{removed}: deleted")


@click.command()
@click.argument("source")
@click.argument("data", required=False)
@click.option("--list", "listed", is_flag=True, help="List the backups in SOURCE, and restore nothing.")
@click.option("--generation", metavar="ID", help="The backup to restore, as in --list (default: the newest).")
@click.option("--cold", metavar="URL", help="Where to restore cold storage (default: the directory cold in DATA).")
@click.option("--as-copy", is_flag=True, help="Give the copy an identity of its own, beside the original.")
@config_option
@click.option("--deep", is_flag=True, help="Read all of cold storage after restoring it.")
@click.option("--database", metavar="URL", help="An empty one in PostgreSQL, for the rows: postgresql://...")
def restore(
    source: str,
    data: str | None,
    listed: bool,
    generation: str | None,
    cold: str | None,
    as_copy: bool,
    file: str | None,
    deep: bool,
    database: str | None,
) -> None:
    """Restore a whole database from a backup into the directory DATA, which must be empty or missing. (`tailrace
    pipeline restore` rebuilds one table as of an earlier time.)"""
    from tailrace import backup as backups

    _, options = cold_of(None, file)
    if listed:
        for each in backups.generations(source, options=options):
            click.echo(f"damaged: {each}" if isinstance(each, Corrupt) else _line(each))
        return
    if data is None:
        raise Invalid("the target directory is missing: tailrace restore SOURCE DATA")
    store = None if cold is None else _store(cold, data, options)
    with _progress() as advance:
        done = backups.restore(
            source,
            data,
            generation=generation,
            cold=store,
            as_copy=as_copy,
            deep=deep,
            database=database,
            options=options,
            on_progress=advance,
        )
    click.echo(f"{done.manifest.id} restored to {done.data}: {done.manifest.bytes:,} bytes, verified")
    if done.cold_url is not None:
        click.echo(f"its cold storage is in {done.cold_url}: set that as the [cold] url, not the old one")


def _store(where: str | None, data: str, options: dict[str, str]) -> Store:
    from tailrace.cold.store import Store

    return Store(os.path.join(os.path.abspath(data), "cold") if where is None else where, options)


def _line(manifest: Manifest) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.made_ms / 1000))
    return (
        f"{manifest.id}  {at}  {manifest.bytes:,} bytes, {len(manifest.files)} files "
        f"({manifest.cold_files} of cold storage), {manifest.written_bytes:,} bytes were new"
    )


@contextmanager
def _progress() -> Iterator[Advance]:
    """A progress bar on a terminal; elsewhere a line per step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        printed: set[str] = set()

        def print_step(what: str, done: int, total: int) -> None:
            if what not in printed:
                printed.add(what)
                click.echo(f"{what} ...", err=True)

        yield print_step
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield advance

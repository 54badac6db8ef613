"""``tailrace backup`` and ``tailrace restore``: a whole database, its cold storage included.

Both work on files of this machine and need no server; one may be running on the database that is backed up.
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
data_option = click.option("--data", type=click.Path(), default="data", show_default=True, help="The directory.")
config_option = click.option(
    "--config", "file", type=click.Path(dir_okay=False), help="Settings; tailrace.toml if it is there."
)


def cold_of(cold: str | None, file: str | None) -> tuple[str | None, dict[str, str]]:
    """Where cold storage is, by the option or by the settings, and the options of it; None: in the directory."""
    configured = settings.load(file).cold
    return configured.url if cold is None else cold, configured.options


@click.command()
@click.argument("target")
@data_option
@click.option("--cold", metavar="URL", help="Its cold storage, if not as in the settings: a directory, or s3://...")
@config_option
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N backups, and remove others.")
@click.option("--deep", is_flag=True, help="Read cold storage whole, and read back all that is stored.")
def backup(target: str, data: str, cold: str | None, file: str | None, keep: int | None, deep: bool) -> None:
    """Back up the database in a directory, with its cold storage, to TARGET: a directory, an archive (.tar, .tar.gz,
    .tar.zst) or s3://bucket/prefix. A server may be running on it. What TARGET has already is not stored again. The
    copy is checked before it counts."""
    from tailrace.backup import back_up, open_source

    where, options = cold_of(cold, file)
    with closing(open_source(data)) as engine, _progress() as advance:
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
        f"({manifest.cold_files} of cold storage), {manifest.written_bytes:,} bytes stored anew in {made.target}"
    )
    for removed in made.removed:
        click.echo(f"{removed}: removed")


@click.command()
@click.argument("source")
@click.argument("data", required=False)
@click.option("--list", "listed", is_flag=True, help="List the backups that SOURCE has, and restore nothing.")
@click.option("--generation", metavar="ID", help="Which one to restore, as --list names it; by default the newest.")
@click.option("--cold", metavar="URL", help="Where its cold storage goes; by default the directory cold in DATA.")
@click.option("--as-copy", is_flag=True, help="Make it a database of its own, beside the original.")
@config_option
@click.option("--deep", is_flag=True, help="Read cold storage whole when it was restored.")
def restore(
    source: str,
    data: str | None,
    listed: bool,
    generation: str | None,
    cold: str | None,
    as_copy: bool,
    file: str | None,
    deep: bool,
) -> None:
    """Restore a whole database from a backup into the directory DATA, which must be empty or not there. (To have one
    table as it was at an earlier time, use `tailrace pipeline restore`.)"""
    from tailrace import backup as backups

    _, options = cold_of(None, file)
    if listed:
        for found in backups.generations(source, options=options):
            click.echo(f"damaged: {found}" if isinstance(found, Corrupt) else _told(found))
        return
    if data is None:
        raise Invalid("name the directory that the database is restored into: tailrace restore SOURCE DATA")
    store = None if cold is None else _store(cold, data, options)
    with _progress() as advance:
        done = backups.restore(
            source,
            data,
            generation=generation,
            cold=store,
            as_copy=as_copy,
            deep=deep,
            options=options,
            on_progress=advance,
        )
    click.echo(f"{done.manifest.id} is restored in {done.data}: {done.manifest.bytes:,} bytes, checked")
    if done.cold_url is not None:
        click.echo(f"its cold storage is in {done.cold_url}: serve it with that [cold] url, not with the old one")


def _store(where: str | None, data: str, options: dict[str, str]) -> Store:
    from tailrace.cold.store import Store

    return Store(os.path.join(os.path.abspath(data), "cold") if where is None else where, options)


def _told(manifest: Manifest) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.made_ms / 1000))
    return (
        f"{manifest.id}  {at}  {manifest.bytes:,} bytes, {len(manifest.files)} files "
        f"({manifest.cold_files} of cold storage), {manifest.written_bytes:,} bytes were new"
    )


@contextmanager
def _progress() -> Iterator[Advance]:
    """A bar on a terminal; elsewhere a line for each step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    if not sys.stderr.isatty():
        said: set[str] = set()

        def say(what: str, done: int, total: int) -> None:
            if what not in said:
                said.add(what)
                click.echo(f"{what} ...", err=True)

        yield say
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def advance(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield advance

"""``tailrace demo``: the whole path once, checked; or, with ``--serve``, running for you to look at."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from tailrace.config import DEFAULT_PORT

DEFAULT_DATA: Final = "data"
WITHIN_S: Final = 240.0


@click.command()
@click.option("--serve", "serving", is_flag=True, help="Go on until interrupted, over --data and on --port.")
@click.option("--data", type=click.Path(file_okay=False), help="With --serve: the database's directory (./data).")
@click.option("--port", type=click.IntRange(0, 65535), help="With --serve: the port to listen on (4437).")
@click.option(
    "--timeout", "within_s", type=click.FloatRange(1), default=WITHIN_S, show_default=True,
    help="Seconds that a step may take.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the files of a demo without --serve, and say where they are.")
def demo(serving: bool, data: str | None, port: int | None, within_s: float, keep: bool) -> None:
    """Show the whole path: a write, its live change, a message, a view, cold history.

    By itself it does so once, in a temporary directory, and checks what it finds. With --serve it starts a server, a
    pipeline and a small shop that writes, and says where to look.
    """
    if serving:
        from tailrace.cli import demo_serving

        sys.exit(demo_serving.run(Path(data or DEFAULT_DATA), DEFAULT_PORT if port is None else port))
    if data is not None or port is not None:
        raise click.UsageError("--data and --port go with --serve; a demo without it has a directory of its own")
    _once(within_s, keep)


def _once(within_s: float, keep: bool) -> None:
    from tailrace.cli import demo_steps

    began = time.monotonic()

    def say(step: str, text: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {click.style(f'{step:<7}', bold=True)} {text}")

    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    try:
        with _terminated():
            demo_steps.run(folder, say, within_s)
    finally:
        if keep:
            click.echo(f"the files are in {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    say("done", "all is well")


@contextmanager
def _terminated() -> Iterator[None]:
    """Let SIGTERM be as good as Ctrl-C: what was started is ended, and what was written is removed."""

    def asked(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
